"""Drives a run along the fused line (``core/fused``, which says what a plain step is and what is spared).

Theory of operation. A run comes here at the beginning of a super-step. As long as the step at hand is plain it is done here: the
node's first part is run in the driver's own task, its writes are packed, the line decides, the store writes. That a step is not
plain is found out when it shows, and then nothing of it is lost or done twice: its call goes on in the general way from where it
stands (``Ahead``), by the same clock and in the same task. So it is if it raises, was cancelled, asks for its context, returns
something else than writes that replace or go through built-in reducers, writes much, or is the run's last where somebody is asked about that; and if anybody has looked at
the run meanwhile, for a signal, a cancel or an answer, which ends the line. A node that only waits stays on it: ``bounded`` keeps its time here as there.
The run leaves the line at each boundary at which something else is to be done than the next plain step.

Runs that are driven beside each other *ride* along it, where the store writes their steps together. The driver's task waits for one wake-up, and the store tells the ride of each step that
has become durable. The ride does the next step at once, in the name of that task and in its context, and hands it to the store, without a future, a wake-up and a turn of the loop for each. The task is woken
when something else is to be done: where a node waits, or is none of the line's, the task goes on with it from where it stands.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from asyncio.tasks import _enter_task as enter  # asyncio documents this pair for those who run code in the name of a task
from asyncio.tasks import _leave_task as leave
from collections.abc import Awaitable, Callable, Mapping
from types import CoroutineType
from typing import Any, Protocol

import msgspec

from holdfast import machine
from holdfast.core import canon
from holdfast.core.checkpoint import Task
from holdfast.core.commit import Commit, Step, Tip
from holdfast.core.fused import Line
from holdfast.core.graph import Node, Program
from holdfast.core.outcomes import Terminal
from holdfast.engine.base.journal import Journal
from holdfast.engine.base.loopwatch import settle, struck
from holdfast.engine.base.services import Services
from holdfast.engine.calls.context import Context, Hand, face
from holdfast.engine.calls.functions import First, await_any, await_in_time
from holdfast.engine.drive import compensation
from holdfast.engine.drive.beginner import pack_looked_at
from holdfast.engine.drive.executor import HEAVY, NOTHING, Ahead

Came = Step | Commit | First | None
"""What a boundary leaves to be done: a step or an end to write, a call to go on with, or nothing for the line."""


class Driving(Protocol):
    """What the line needs of the driver whose run it is. ``scope``: the task whose step a command may end now."""

    scope: asyncio.Task[Any] | None

    @property
    def stops(self) -> bool:
        """Whether the run goes no further at this boundary, or its step was cut."""

    async def ends(self, write: Callable[[], Awaitable[None]]) -> bool:
        """Ends the run by ``write``, unless it was asked for something meanwhile."""


class Fused:
    """One run's way along the line. ``ran`` is the number of steps of the last time; ``over``: the run has come to its end on it."""

    def __init__(self, services: Services, journal: Journal, program: Program, driving: Driving) -> None:
        self._services = services
        self._journal = journal
        self._program = program
        self._driving = driving
        self._store = services.stepping if program.plain else None
        self._odd: set[str] = set()  # nodes that have turned out not to be plain
        self.ran = 0
        self.over = False

    async def along(self, room: int) -> Ahead | None:
        """Does plain steps, ``room`` at most; gives the one that turned out to be none and is begun, if there is one.

        Raises:
            LeaseLost, VersionConflict, StoreError: of a commit.
        """
        self.ran = 0
        program, store = self._program, self._store
        if store is None:
            return None
        pending = self._journal.progress.checkpoint.pending
        if len(pending) != 1 or pending[0].node not in program.plain or pending[0].node in self._odd:
            return None
        asked = self._journal.run.parent_run_id is not None or self._journal.echo is not None or compensation.outcome(self._services, program, self._journal) is not Terminal.DONE
        line = self._journal.line(program)
        if line is None:
            return None
        ride = _Ride(self._services, self._journal, program, self._driving, line, self._odd, room, ends=not asked)
        token = face.set(ride.hand)
        try:
            return await self._go(ride, store.step)
        finally:
            face.reset(token)
            self.ran = ride.ran

    async def _go(self, ride: _Ride, write: Callable[[Step], Awaitable[Tip]]) -> Ahead | None:
        journal, driving, hand = self._journal, self._driving, ride.hand
        journal.safe_points.clear()
        came = ride.call()
        while came is not None:
            if type(came) is Step:
                if ride.writes(came):
                    came = ride.on()
                elif ride.joins(came):
                    came = await ride.off()
                else:
                    await journal.step(write, ride.line, came)
                    ride.ran += 1
                    came = ride.on()
            elif type(came) is Commit:
                if await driving.ends(functools.partial(journal.end, ride.line, came)):
                    ride.ran += 1
                    self.over = True
                    return None
                came = ride.last
            elif type(came) is First and came.work is not None:
                try:
                    value: Any = await await_in_time(came, hand.time(), hand.what)
                except GeneratorExit:
                    raise  # this is closed from outside its task; what a node raises itself is a failure by now
                except BaseException as e:
                    return hand.over(_end(e))
                if driving.stops or hand.asked:
                    return hand.over(_end(None, value))
                came = ride.go_on_with(came, value)
            else:
                assert type(came) is First, "there is nothing else that a boundary leaves"
                return hand.over(await_in_time(came, hand.time(), hand.what))
        return None


class _Wake(asyncio.Future[None]):
    """What a driver's task waits for while its run rides. It learns in which context that task runs, which a task of Python 3.11 does not tell, and ``waits`` says
    at once that nobody waits any more."""

    context: contextvars.Context | None = None
    ride: _Ride

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: contextvars.Context | None = None) -> None:
        self.context = context
        super().add_done_callback(fn, context=context)

    def cancel(self, msg: Any = None) -> bool:
        self.ride.waits = False
        return super().cancel(msg)


class _Ride:
    """One time along the line: what is the same of all its steps, and where it stands between two of them. ``ran``: how many of them are durable;
    ``last``: the call of which the run's end was decided, in case that is not to be written.

    It is the seat (``ports.Seat``) that the store tells of each step that it has written with others.
    """

    __slots__ = (
        "_alive", "_came", "_cancelled", "_clock", "_context", "_crowd", "_driving", "_ends", "_forks", "_journal", "_loop", "_me", "_nodes", "_now", "_odd", "_program", "_room",
        "_stays", "_view", "_wake", "hand", "last", "line", "ran", "waits",
    )
    _wake: _Wake
    last: First

    def __init__(
        self, services: Services, journal: Journal, program: Program, driving: Driving, line: Line, odd: set[str], room: int, *, ends: bool
    ) -> None:
        me, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert me is not None, "a run must be executed inside an asyncio task"
        self._journal = journal
        self._program = program
        self._driving = driving
        self._odd = odd
        self._room = room
        self._ends = ends  # whether nobody is asked about the run's end
        self._me = me
        self._loop = loop
        self._clock = loop.time
        self._now = services.store.now
        self._alive = services.alive
        self._forks = machine.forks()
        self._nodes = program.nodes
        self._view = program.state._view
        self._crowd = services.crowd
        self._context: contextvars.Context | None = None
        self._stays = False  # whether its task does itself what comes next
        self._came: Came = None
        self._cancelled = 0  # how often its task had been cancelled when the call in hand came back
        self.hand = _Hand(services, journal, program, loop)
        self.line = line
        self.ran = 0
        self.waits = False

    # -- at a boundary ------------------------------------------------------------------------------

    def on(self) -> Came:
        """Goes on after a step, unless something else is to be done than the next one."""
        if self._driving.stops or not self._journal.goes_along(self.line) or not self._alive():
            return None
        return self.call()

    def call(self) -> Came:
        """Calls the next node, up to where it ends or waits first; None where what comes next is none of the line's."""
        line = self.line
        task = line.task
        if task is None or self.ran >= self._room:
            return None
        node = self._nodes[task.node]
        hand, me, forks = self.hand, self._me, self._forks
        snapshot = self._view(line.values, node.reads)
        began, cancelling = self._clock(), me.cancelling()
        hand.take(node, task, snapshot)
        self._driving.scope = me
        try:
            try:
                work = node.call(snapshot)
                if type(work) is not CoroutineType:
                    work = await_any(work)
                waiting = work.send(None)
            finally:
                if struck:
                    settle()
                here = machine.forks()  # the first call after the node: what it left to be called with it, as a trace function, is its own still
        except StopIteration as end:
            value = end.value
        except BaseException as e:
            machine.end_child(forks, node.name)
            return First(began, cancelling, forks, error=e)
        else:
            machine.end_child(forks, node.name)
            return First(began, cancelling, forks, work=work, waiting=waiting)
        del snapshot
        if here != forks or me.cancelling() != cancelling:
            return self._leave(began, cancelling, value)
        return self._take(task, node, value, began, cancelling)

    def go_on_with(self, first: First, value: Any) -> Came:
        """What becomes durable of a node that had to wait."""
        first.cancelling = self._me.cancelling()
        if machine.forks() != self._forks:
            return self._leave(first.began, first.cancelling, value)
        return self._take(self.hand.task, self.hand.node, value, first.began, first.cancelling)

    def _take(self, task: Task, node: Node, value: Any, began: float, cancelling: int) -> Step | Commit | First:
        """What is to be written of a node that has returned, or its call, if it is not plain after all."""
        hand, line, packed = self.hand, self.line, None
        writes: Mapping[str, Any] = NOTHING
        if hand.asked or not self._journal.goes_along(line):
            return self._leave(began, cancelling, value)
        if type(value) is dict:
            if value:
                program, name = self._program, node.name
                found = canon.pack_plain(value, program.quick[name], program.lists[name]) or pack_looked_at(program, node, value, program.plain[name])
                if found is None or len(found[1]) > HEAVY:
                    return self._leave(began, cancelling, value)
                writes, packed = found
        elif value is not None:
            return self._leave(began, cancelling, value)
        made = line.decide(task, writes, packed, self._now(), self._ends and not node.delivers)
        if made is None:
            return self._leave(began, cancelling, value)
        self._driving.scope = None
        if type(made) is Step:
            hand.drop()
        else:
            self.last = First(began, cancelling, self._forks, value=value)
        return made

    def _leave(self, began: float, cancelling: int, value: Any) -> First:
        """The call that is in hand, for the general way: it has returned, and its node is not plain after all."""
        machine.end_child(self._forks, self.hand.what)
        self._odd.add(self.hand.what)
        return First(began, cancelling, self._forks, value=value)

    # -- writing ------------------------------------------------------------------------------------

    def writes(self, step: Step) -> bool:
        """Has a step written at once, where the store does that for a run alone.

        Raises:
            LeaseLost, VersionConflict, StoreError: of the commit; and the journal is dead.
        """
        crowd = self._crowd
        if crowd is None:
            return False
        try:
            tip = crowd.step_at_once(step)
        except BaseException as e:
            self._journal.end_step(self.line, None, e)
            raise
        if tip is None:
            return False
        self._journal.end_step(self.line, tip)
        self.ran += 1
        return True

    def joins(self, step: Step) -> bool:
        """Hands a step to the store, if that writes those of others too."""
        crowd = self._crowd
        if crowd is None or not crowd.gathers:
            return False
        self._journal.stepping = self.waits = True  # the store may send it at once, and leaves out those for which nobody waits
        try:
            crowd.join(step, self)
        except BaseException as e:
            self.waits = False
            self._journal.end_step(self.line, None, e)
            raise
        return True

    async def off(self) -> Came:
        """Waits until something else is to be done than a step that is written with those of others.

        Raises:
            LeaseLost, VersionConflict, StoreError: of a commit.
        """
        self._wake = wake = _Wake(loop=self._loop)
        wake.ride = self
        self._stays = False
        try:
            await wake
        except BaseException as e:
            if self._journal.stepping:
                self._journal.end_step(self.line, None, e)
                raise
            if not isinstance(e, asyncio.CancelledError):
                raise
            self._strike_later()
        finally:
            self.waits, self._context = False, None
            del self._wake, wake.ride, wake  # each has the other, and would be left to the garbage collector
        return self.on() if self._stays else self._came

    def _strike_later(self) -> None:
        """A cancel has struck the task between two of its steps: it strikes where the task waits next, as one that finds it there. What the node at hand did not
        cause itself is none of its own."""
        me, came = self._me, self._came
        others = me.cancelling() - self._cancelled
        if type(came) is First and others > 0:
            self._came = msgspec.structs.replace(came, cancelling=came.cancelling + others)
        me.uncancel()
        me.cancel()

    def tell(self, tip: Tip) -> Step | None:
        """The step is durable. The next one follows at once, if nothing else is to be done."""
        self.ran += 1
        try:
            context = self._context or self._find_context()
            if context is None:
                self._journal.end_step(self.line, tip)
            else:
                came = context.run(self._go_on, tip)
                if type(came) is Step:
                    self._journal.stepping = True
                    return came
                self._came = came
            self._cancelled = self._me.cancelling()
        except BaseException as e:
            self._journal.dead = self._journal.dead or e
            self.refuse(e)
        else:
            if self.waits:
                self.waits = False
                self._wake.set_result(None)
        return None

    def refuse(self, error: BaseException) -> None:
        """The step was not written, or what became of it is not known."""
        if self.waits:
            self.waits = False
            self._wake.set_exception(error)

    def _find_context(self) -> contextvars.Context | None:
        """The context of its task; None where somebody runs the work of that task in another one, so that the task does itself what comes next."""
        found = self._wake.context
        if found is None or found.get(face) is not self.hand:
            self._stays = True
            return None
        self._context = found
        return found

    def _go_on(self, tip: Tip) -> Came:
        loop, me = self._loop, self._me
        enter(loop, me)
        try:
            if self._journal.end_step(self.line, tip) and not self._driving.stops and self._alive():
                return self.call()
            return None
        finally:
            leave(loop, me)


class _Hand(Hand):
    """The step in hand on the line, where none is under way for those who ask the run to stop; with an attempt the step is none of the line's."""

    __slots__ = ()

    def __call__(self) -> Context:
        if not self.asked:
            self.journal.safe_points.begin(self.key)
        return Context(self.ask())

    def over(self, calling: Any) -> Ahead:
        """Hands the step over to the general way, with what is left of its node's call."""
        if not self.asked:
            self.journal.safe_points.begin(self.key)
        return Ahead(calling, self)


async def _end(error: BaseException | None, value: Any = None) -> Any:
    """A call that has ended, in time."""
    try:
        if error is not None:
            raise error
        return value
    finally:
        del error  # its traceback refers to this frame


__all__ = ["Driving", "Fused"]

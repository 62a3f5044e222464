"""Drives plain steps along the fused path (``core/fused`` defines a plain step and says which work it saves).

Theory of operation. The driver calls ``Fused.along`` at the start of a super-step. While the next step is plain, everything happens here: the first part of
the node runs in the driver's own task, its writes are packed, the ``Line`` decides, and the store writes. Whether a step is plain often shows only while it
runs. Then nothing is lost or repeated: the call continues on the general path from where it stands (``Ahead``), in the same task and with the same timeout.
This happens if the node raises, is canceled, asks for its context, returns anything but writes to replacing channels or built-in reducers, or writes a lot;
if it is the last node of a run whose end needs a further question; and if another task has looked at the run, for a signal, a cancel or an answer, which
ends the line. A node that only waits stays on the fused path; its timeout is kept here too. The run leaves the fused path at the first boundary where
anything but a plain step comes next.

Runs that execute at the same time *ride* if the store writes their steps together. Then the driver's task waits for a single wake-up, and the store calls the
run's ``_Ride`` for each step that has become durable. The ride runs the next step at once, under the identity and the context of the driver's task, and hands
the step to the store. This saves a future, a wake-up and a turn of the event loop for each step. The task is woken when something else comes next: a node that
waits, or a step that is not plain. The task then continues from that point.
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
"""What to do next at a boundary: write a step, write the run's end, continue a call, or (None) leave the fused path."""


class Driving(Protocol):
    """The part of the driver that this module uses. ``scope``: the task whose current step a command may end."""

    scope: asyncio.Task[Any] | None

    @property
    def stops(self) -> bool:
        """Whether the run must stop at this boundary, or its step was cut off."""

    async def ends(self, write: Callable[[], Awaitable[None]]) -> bool:
        """Ends the run by ``write``, unless a command has arrived meanwhile; returns whether the run has ended."""


class Fused:
    """Executes plain steps of one run. ``ran``: how many steps the last call of ``along`` executed; ``over``: whether the run has ended here."""

    def __init__(self, services: Services, journal: Journal, program: Program, driving: Driving) -> None:
        self._services = services
        self._journal = journal
        self._program = program
        self._driving = driving
        self._store = services.stepping if program.plain else None
        self._odd: set[str] = set()  # nodes that were found not to be plain
        self.ran = 0
        self.over = False

    async def along(self, room: int) -> Ahead | None:
        """Executes at most ``room`` plain steps; returns the step that has begun and was found not to be plain, if there is one.

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
                    raise  # the coroutine was closed from outside; an error of the node itself has been turned into a failure by now
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
    """The future that a driver's task awaits while its run rides. It captures the context in which the task runs, because a task of Python 3.11 does not
    expose it. When the future is canceled, it clears ``waits`` of the ride at once."""

    context: contextvars.Context | None = None
    ride: _Ride

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: contextvars.Context | None = None) -> None:
        self.context = context
        super().add_done_callback(fn, context=context)

    def cancel(self, msg: Any = None) -> bool:
        self.ride.waits = False
        return super().cancel(msg)


class _Ride:
    """The state of one call of ``Fused.along``: what all its steps have in common, and the position between two steps. ``ran``: how many steps are durable;
    ``last``: the call after which the run's end was decided; it is needed if that end is not written after all.

    It is the ``ports.Seat`` that the store notifies of each step that it has written together with those of other runs.
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
        self._ends = ends  # whether the run may end without a further question
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
        self._stays = False  # whether the driver's task itself runs the next step
        self._came: Came = None
        self._cancelled = 0  # how often the task had been canceled when the current call returned
        self.hand = _Hand(services, journal, program, loop)
        self.line = line
        self.ran = 0
        self.waits = False

    # -- at a boundary ------------------------------------------------------------------------------

    def on(self) -> Came:
        """Runs the next step; returns None if the run must stop, or if something other than a plain step comes next."""
        if self._driving.stops or not self._journal.goes_along(self.line) or not self._alive():
            return None
        return self.call()

    def call(self) -> Came:
        """Calls the next node and runs it until it ends or first waits; returns None if the next task is not a plain step."""
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
                here = machine.forks()  # this must be the first call after the node: a trace function that the node has installed runs here and still counts as the node's
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
        """Takes the result of a node that had to wait."""
        first.cancelling = self._me.cancelling()
        if machine.forks() != self._forks:
            return self._leave(first.began, first.cancelling, value)
        return self._take(self.hand.task, self.hand.node, value, first.began, first.cancelling)

    def _take(self, task: Task, node: Node, value: Any, began: float, cancelling: int) -> Step | Commit | First:
        """Decides what to write for a node that has returned; returns its call if the step is not plain after all."""
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
        """Returns the current call for the general path: its node has returned and was found not to be plain."""
        machine.end_child(self._forks, self.hand.what)
        self._odd.add(self.hand.what)
        return First(began, cancelling, self._forks, value=value)

    # -- writing ------------------------------------------------------------------------------------

    def writes(self, step: Step) -> bool:
        """Writes a step at once, if the store does that for a run that executes alone; returns whether it did.

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
        """Hands a step to the store, if the store writes steps of several runs together; returns whether it did."""
        crowd = self._crowd
        if crowd is None or not crowd.gathers:
            return False
        self._journal.stepping = self.waits = True  # set before ``join``: the store may write at once, and skips steps whose ride does not wait
        try:
            crowd.join(step, self)
        except BaseException as e:
            self.waits = False
            self._journal.end_step(self.line, None, e)
            raise
        return True

    async def off(self) -> Came:
        """Waits until the task itself must do what comes next, instead of the store's notifications.

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
            del self._wake, wake.ride, wake  # they refer to each other; without this the garbage collector would have to free them
        return self.on() if self._stays else self._came

    def _strike_later(self) -> None:
        """Postpones a cancel that reached the task between two steps: it takes effect where the task waits next. The current node counts only the cancels that
        it caused itself."""
        me, came = self._me, self._came
        others = me.cancelling() - self._cancelled
        if type(came) is First and others > 0:
            self._came = msgspec.structs.replace(came, cancelling=came.cancelling + others)
        me.uncancel()
        me.cancel()

    def tell(self, tip: Tip) -> Step | None:
        """Notes that a step is durable, and returns the next step if one follows at once."""
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
        """Notes that a step was not written, or that its outcome is unknown."""
        if self.waits:
            self.waits = False
            self._wake.set_exception(error)

    def _find_context(self) -> contextvars.Context | None:
        """Returns the context of the driver's task; None if the task's work runs in another context, so that the task itself must run the next step."""
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
    """The current step of the fused path. It registers with the run's safe points only once an attempt is made for it, and then the step leaves the fused path."""

    __slots__ = ()

    def __call__(self) -> Context:
        if not self.asked:
            self.journal.safe_points.begin(self.key)
        return Context(self.ask())

    def over(self, calling: Any) -> Ahead:
        """Hands the step over to the general path, with the rest of its node's call."""
        if not self.asked:
            self.journal.safe_points.begin(self.key)
        return Ahead(calling, self)


async def _end(error: BaseException | None, value: Any = None) -> Any:
    """A coroutine that ends at once, with this value or error."""
    try:
        if error is not None:
            raise error
        return value
    finally:
        del error  # its traceback refers to this frame


__all__ = ["Driving", "Fused"]

"""Drives a run along the fused line (``core/fused``, which says what a plain step is and what is spared).

Theory of operation. A run comes here at the beginning of a super-step. As long as the step at hand is plain it is done here: the
node's first part is run in the driver's own task, its writes are packed, the line decides, the store writes. That a step is not
plain is found out when it shows, and then nothing of it is lost or done twice: its call goes on in the general way from where it
stands (``Ahead``), by the same clock and in the same task. So it is if it raises, was cancelled, asks for its context, returns
something else than writes that replace or go through built-in reducers, writes much, or is the run's last where somebody is asked about that; and if anybody has looked at
the run meanwhile, for a signal, a cancel or an answer, which ends the line. A node that only waits stays on it: ``bounded`` keeps its time here as there.
The run leaves the line at each boundary at which something else is to be done than the next plain step.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import CoroutineType
from typing import Any, Protocol

from holdfast import machine
from holdfast.core import canon
from holdfast.core.checkpoint import Task
from holdfast.core.commit import Commit, Step
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
from holdfast.ports import offers_steps


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
        self._store = services.store if program.plain and offers_steps(services.store) else None
        self._odd: set[str] = set()  # nodes that have turned out not to be plain
        self._asked = True
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
        self._asked = self._journal.run.parent_run_id is not None or compensation.outcome(self._services, program, self._journal) is not Terminal.DONE
        line = self._journal.line(program)
        if line is None:
            return None
        hand = _Hand(self._services, self._journal, program, asyncio.get_running_loop())
        token = face.set(hand)
        try:
            return await self._go(line, hand, store.step, room)
        finally:
            face.reset(token)

    async def _go(self, line: Line, hand: _Hand, write: Any, room: int) -> Ahead | None:
        journal, driving, alive, now = self._journal, self._driving, self._services.alive, self._services.store.now
        nodes, view, me, clock, forks = self._program.nodes, self._program.state._view, asyncio.current_task(), asyncio.get_running_loop().time, machine.forks()
        assert me is not None, "a run must be executed inside an asyncio task"
        journal.safe_points.clear()
        while self.ran < room and (task := line.task) is not None:
            node = nodes[task.node]
            snapshot = view(line.values, node.reads)
            began, cancelling = clock(), me.cancelling()
            hand.take(node, task, snapshot)
            driving.scope = me
            value: Any = None
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
                return hand.over(await_in_time(First(began, cancelling, forks, error=e), hand.time(), node.name))
            else:
                machine.end_child(forks, node.name)
                try:
                    value = await await_in_time(First(began, cancelling, forks, work=work, waiting=waiting), hand.time(), node.name)
                except GeneratorExit:
                    raise  # this is closed from outside its task; what a node raises itself is a failure by now
                except BaseException as e:
                    return hand.over(_end(e))
                if driving.stops or hand.asked:
                    return hand.over(_end(None, value))
                cancelling, here = me.cancelling(), machine.forks()
            step = None
            if here == forks and me.cancelling() == cancelling and journal.goes_along(line) and not hand.asked:
                step = self._decide(line, task, node, value, now)
            if type(step) is Commit:
                driving.scope = None
                if await driving.ends(functools.partial(journal.end, line, step)):
                    self.ran += 1
                    self.over = True
                    return None
            if type(step) is not Step:
                machine.end_child(forks, node.name)
                self._odd.add(task.node)
                return hand.over(await_in_time(First(began, cancelling, forks, value=value), hand.time(), node.name))
            driving.scope = None
            del snapshot
            hand.drop()
            await journal.step(write, line, step)
            self.ran += 1
            if driving.stops or not journal.goes_along(line) or not alive():
                break
        return None

    def _decide(self, line: Line, task: Task, node: Node, value: Any, now: Any) -> Step | Commit | None:
        """What is to be written of the step, None if it is not plain after all."""
        program = self._program
        writes: Mapping[str, Any] = NOTHING
        packed: bytes | None = None
        if type(value) is dict:
            if value:
                name = task.node
                found = canon.pack_plain(value, program.quick[name], program.lists[name]) or pack_looked_at(program, node, value, program.plain[name])
                if found is None:
                    return None
                writes, packed = found
                if len(packed) > HEAVY:
                    return None
        elif value is not None:
            return None
        return line.decide(task, writes, packed, now(), not self._asked and not node.delivers)


class _Hand(Hand):
    """The step in hand on the line, where none is under way for those who ask the run to stop; with an attempt the step is none of the line's."""

    __slots__ = ()

    def __call__(self) -> Context:
        if not self.asked:
            self.journal.safe_points.begin(self.key)
        return Context(self.ask())

    def over(self, calling: Coroutine[Any, Any, Any]) -> Ahead:
        """Hands the step over to the general way, with what is left of its node's call."""
        if not self.asked:
            self.journal.safe_points.begin(self.key)
        return Ahead(calling, self)


async def _end(error: BaseException | None, value: Any = None) -> Any:
    """A call that has ended, in time."""
    if error is not None:
        raise error
    return value


__all__ = ["Driving", "Fused"]

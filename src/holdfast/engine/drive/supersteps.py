"""Executes one super-step of several tasks (§4.3, §4.6, §5.2).

The tasks run concurrently, up to a bound. A result is durable as soon as its task ends, and that task never runs again. A wait is committed when its task reaches
it. If an answer comes while other tasks still run, its task is entered again in the same super-step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import msgspec

from holdfast.core import events as ev
from holdfast.core.checkpoint import REVIEW_TASK, Task, TaskResult, keys_of, list_ends
from holdfast.core.graph import Program
from holdfast.core.limits import Later
from holdfast.core.waits import Wait, WaitKind
from holdfast.engine.base.journal import Draft, Journal
from holdfast.engine.base.services import Services
from holdfast.engine.calls.attempt import Restart, Suspend
from holdfast.engine.calls.holds import Crowded
from holdfast.engine.calls.waits import Halted, Unattended
from holdfast.engine.drive.beginner import Beginner
from holdfast.engine.drive.executor import Finished, StepError
from holdfast.engine.drive.siblings import Siblings


class Outcome(msgspec.Struct):
    """The state of a super-step when none of its tasks runs: all have finished, or some have failed or wait.

    ``inline`` names results that are not durable yet and go into the barrier's commit; ``left`` holds everything else that is not durable and goes into the commit that
    ends the run. ``later``: what tasks that wait for a limit were told. Not ``whole``: some tasks were not entered, because the run is to stop.
    """

    results: dict[str, TaskResult] = {}
    decoded: dict[str, Mapping[str, Any]] = {}
    inline: set[str] = set()
    waits: tuple[Wait, ...] = ()
    whole: bool = True
    failed: StepError | None = None
    stopped: Halted | Unattended | None = None
    restart: tuple[Task, Restart] | None = None
    left: Draft | None = None
    later: tuple[Later, ...] = ()


def failure(journal: Journal, e: StepError) -> ev.StepFailed:
    """Returns the fact of a task that has failed for good in the current super-step."""
    return ev.StepFailed(journal.progress.checkpoint.step_of(e.task), e.task, e.error, e.outcome, e.attempt)


def find_parked(program: Program, waits: Sequence[Wait], pending: Sequence[Task], told: Collection[str]) -> dict[str, tuple[Wait, ...]]:
    """Returns the tasks of a run at rest that keep waiting, each with its waits. ``told``: the tasks whose answers have come. A delivery that was rejected waits for
    its reviewer, even if other questions were answered (§5.16)."""
    found = {t: tuple([w for w in waits if w.task == t]) for t in dict.fromkeys(w.task for w in waits) if t not in told}
    review = found.pop(REVIEW_TASK, None)
    if review is None:
        return found
    own = {t.key for t in pending if (node := program.nodes.get(t.node)) is not None and node.delivers}
    return found | dict.fromkeys(own.difference(found, told), review)


_key, _task = itemgetter(0), attrgetter("task")


class Round:
    """Runs the pending tasks, including those of earlier super-steps that wait while the run continues (§5.11). ``parked``: tasks that rest in these waits;
    each is entered again once one of its waits is answered.

    ``taken`` returns which tasks end a super-step with these results; the driver sets ``news`` when an answer has been recorded.
    """

    def __init__(
        self,
        services: Services,
        journal: Journal,
        program: Program,
        pending: tuple[Task, ...],
        parked: Mapping[str, tuple[Wait, ...]],
        taken: Callable[[Mapping[str, TaskResult]], tuple[Task, ...] | None],
        news: asyncio.Event,
    ) -> None:
        self._services = services
        self._journal = journal
        self._program = program
        self._pending = dict(zip(keys_of(pending), pending, strict=True))
        self._taken = taken
        self._news = news
        self._beginner = Beginner(services, journal, program)
        self._siblings = Siblings(services.parallel, self._begin, news.set)
        self._running: set[str] = set()
        self._waiting: dict[str, tuple[Wait, ...]] = {}
        self._outcome = Outcome()
        results = journal.progress.results
        if results or parked:
            self._outcome.results = {key: results[key] for key in self._pending if key in results}
            self._waiting = {key: parked[key] for key in self._pending if key in parked and key not in results}

    async def run(self) -> Outcome:
        """Runs until no task is running and no answered task is left to be entered again."""
        known, waiting = self._outcome.results, self._waiting
        self._start([key for key in self._pending if key not in known and key not in waiting] if known or waiting else [*self._pending])
        try:
            while self._running or self._reenter():
                await self._turn()
        finally:
            if self._running:
                await self._siblings.cancel()
            self._siblings.close()
        outcome, self._outcome = self._outcome, Outcome()  # a failed outcome holds an error whose traceback may refer to this object
        outcome.waits = tuple(w for waits in self._waiting.values() for w in waits)
        outcome.whole = len(outcome.results) + len(self._waiting) == len(self._pending)
        return outcome

    @property
    def _over(self) -> bool:
        """Whether something ends this super-step: running tasks may finish, but no further task begins."""
        return self._outcome.failed is not None or self._outcome.stopped is not None

    def _start(self, keys: list[str]) -> None:
        self._journal.safe_points.begin(*keys)
        self._running.update(keys)
        self._siblings.add(*keys)

    def _begin(self, key: str, me: asyncio.Task[Any]) -> Finished | Coroutine[Any, Any, Finished] | None:
        if self._outcome.failed is not None or self._outcome.stopped is not None or self._journal.safe_points.asked:
            return None
        return self._beginner.begin(key, self._pending[key], me)

    def _reenter(self) -> bool:
        """Starts the waiting tasks whose answers have come, unless a task has failed, which ends the super-step."""
        ready = self._ready()
        if self._over or not ready:
            return False
        keys = [k for k in self._pending if k in ready]
        for key in keys:
            del self._waiting[key]
        self._start(keys)
        return True

    def _ready(self) -> list[str]:
        """Returns the waiting tasks whose answers have come. The answer to a review is for the driver."""
        return [k for k, waits in self._waiting.items() if any(w.kind is not WaitKind.REVIEW and self._journal.has_answer(w) for w in waits)]

    async def _turn(self) -> None:
        """Waits until a task ends or an answer comes, and makes the new results durable."""
        await self._news.wait()
        self._news.clear()
        outcome, told, ended = self._outcome, list[ev.Fact | TaskResult](), self._siblings.take_ended()
        self._running.difference_update(map(_key, ended))
        for key, finished, error in ended:
            if error is not None:
                self._fail(key, error, told)
            elif finished is not None:
                outcome.results[key], outcome.decoded[key] = finished.result, finished.writes
                told.append(finished.result)
        self._reenter()
        if told and not self._running and self._over:
            outcome.left = self._draft(told)  # written with the run's end: a crash between two commits would allow one attempt too many (L-17)
        elif told and not self._running and self._ends(told):
            outcome.inline = {*map(_task, told)}
        elif told:
            await self._journal.save(self._draft(told))
        left = [*map(_key, ended)]
        if self._running:
            left = [key for key in left if key not in self._running]  # an answer may have made a task run again
        if left:
            self._journal.safe_points.end(*left)

    def _ends(self, told: Sequence[ev.Fact | TaskResult]) -> bool:
        """Whether all results are there and only these were missing; then they go into the barrier's commit."""
        group = self._taken(self._outcome.results)
        if group is None or self._ready() or {*map(type, told)} != {TaskResult}:
            return False
        return len(group) == len(self._pending) or {*map(_task, told)} <= {t.key for t in group}

    def _draft(self, told: Sequence[ev.Fact | TaskResult]) -> Draft:
        """Returns the draft that makes these results durable: each result with its fact."""
        checkpoint, draft = self._journal.progress.checkpoint, Draft()
        for each in told:
            if isinstance(each, TaskResult):
                draft.facts += list_ends(checkpoint, (each,))
                draft.results.append(each)
            else:
                draft.facts.append(each)
        return draft

    def _fail(self, key: str, error: BaseException, told: list[ev.Fact | TaskResult]) -> None:
        """Notes a task that has ended without a result."""
        match error:
            case Suspend():
                open_now = {w.wait_id for w in self._journal.run.waits}
                told += [ev.WaitRequested(w) for w in error.waits if w.wait_id not in open_now and not self._journal.has_answer(w)]
                self._waiting[key] = error.waits
            case Crowded():
                self._outcome.later += error.later
            case Halted() | Unattended():
                self._outcome.stopped = self._outcome.stopped or error
            case StepError():
                self._outcome.failed = self._outcome.failed or error
                told.append(failure(self._journal, error))
            case _:
                raise error


__all__ = ["Outcome", "Round", "failure", "find_parked"]

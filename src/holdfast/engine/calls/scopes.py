"""Scopes of recorded calls: ``gather``, ``map`` and ``first_of``, and the two ways out of a node that are no error (§4.12).

A scope numbers the calls of one line of control. Concurrent calls get scopes of their own beneath the call that opened them, so that the place of a call does not
depend on which call was faster. The outcome of a scope (which call was first, which failure was raised) is recorded, because a node that catches it and continues
must find the same outcome when it runs again.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Collection, Iterable
from typing import Any

from holdfast.core import canon, decisions
from holdfast.core import events as ev
from holdfast.core.called import Call, Called
from holdfast.core.checkpoint import StepRecord
from holdfast.core.errors import Conflict, RecordMismatch, StoreError, UsageError
from holdfast.core.run import Run
from holdfast.core.waits import TIMEOUT, Wait
from holdfast.engine.base import failures
from holdfast.engine.base.failures import contain, record
from holdfast.engine.base.journal import Draft
from holdfast.engine.calls.attempt import Attempt, Restart, Scope, Suspend, current
from holdfast.engine.calls.branches import Branch, enter, find_unused, make_branch, wait_to_end

TURNS = 64
SCOPES = frozenset({"scope", "first_of"})


async def gather(attempt: Attempt, calls: Iterable[Awaitable[Any]], limit: int, name: str) -> list[Any]:
    """Returns all results in the order of the calls; at most ``limit`` of them run at once.

    If one fails, the running ones are still awaited, so that their results are recorded; no further one begins.

    Raises:
        Exception: that of the first call in order that failed.
        Suspend: with the waits of all branches that rest.
    """
    given = list(calls)
    try:
        with attempt.places.open(name) as path:
            record = attempt.places.lookup(Call(path, name, "scope", opens=True))
            if record is not None:
                return list(attempt.serve(record))
            common = make_branch(attempt)
            return await _gather(attempt, path, name, _branches(attempt, path, given, limit, common), common)
    finally:
        _drop(given)


def _branches(attempt: Attempt, path: str, calls: list[Awaitable[Any]], limit: int, common: Branch, *, race: bool = False) -> list[asyncio.Task[Any]]:
    """Starts the branches. ``race``: each of them begins, even after another has failed, because its records may be older than that failure."""
    room, above = asyncio.Semaphore(max(1, limit)), attempt.places.scope()
    failed = False

    async def branch(number: int, awaitable: Awaitable[Any]) -> Any:
        nonlocal failed
        async with room:
            if failed and not race:
                return None
            enter(common)
            current.set(Scope(attempt.places.mark, f"{path}/{number}/", above.within, above.item))
            try:
                return await awaitable
            except Exception as e:
                failed = True
                attempt.places.errors.append(e)
                raise
            except BaseException as e:  # an exit that leaves a task would end the event loop
                error = contain(e, f"branch {number} of {path}")
                failed = True
                attempt.places.errors.append(error)
                raise error from e

    tasks = [asyncio.create_task(branch(i, c)) for i, c in enumerate(calls)]
    for task in tasks:
        failures.serve(task)
    return tasks


async def _gather(attempt: Attempt, path: str, name: str, tasks: list[asyncio.Task[Any]], common: Branch) -> list[Any]:
    failed: BaseException | None = None
    try:
        await all_end(tasks)
        failed, suspended = _find_what_they_raised(tasks)
        if failed is not None:
            await _record_failure(attempt, path, name, failed, common, [n for n, task in enumerate(tasks) if isinstance(task.exception(), Exception)])
            raise failed
        if suspended:
            raise Suspend(tuple(suspended.values()))
        return [t.result() for t in tasks]
    finally:
        del failed, tasks  # a task keeps its error, whose traceback refers to this frame


def _find_what_they_raised(tasks: list[asyncio.Task[Any]]) -> tuple[BaseException | None, dict[str, Wait]]:
    """Returns the failure of tasks that have ended, and the waits of those that rest."""
    suspended: dict[str, Wait] = {}
    failed: BaseException | None = None
    for task in tasks:
        error = task.exception()
        if isinstance(error, Suspend):
            suspended |= {w.wait_id: w for w in error.waits}
        elif error is not None and (failed is None or isinstance(failed, Exception) > isinstance(error, Exception)):
            failed = error  # the first in order; a way out that is no failure takes precedence
    return failed, suspended


async def first_of(attempt: Attempt, calls: Iterable[Awaitable[Any]]) -> tuple[int, Any]:
    """Returns the (index, value) of the call that finishes first; the other calls are canceled, and their waits closed.

    Raises:
        Exception: the first call to finish failed.
        Suspend: all of them rest.
    """
    given = list(calls)
    try:
        with attempt.places.open("first_of") as path:
            record = attempt.places.lookup(Call(path, "first_of", "first_of", opens=True))
            if record is not None:
                index, value = await attempt.give(record)
                return int(index), value
            common = make_branch(attempt)
            return await _race(attempt, path, _branches(attempt, path, given, len(given), common, race=True), common)
    finally:
        _drop(given)


async def _race(attempt: Attempt, path: str, tasks: list[asyncio.Task[Any]], common: Branch) -> tuple[int, Any]:
    error: BaseException | None = None
    try:
        winner = await _first(attempt, path, tasks)
        error = tasks[winner].exception()
        if error is not None:
            await _record_failure(attempt, path, "first_of", error, common, [winner])
            raise error
        value, data = canon.pack([winner, tasks[winner].result()], "first_of()")
        done = StepRecord(attempt.key, path, "first_of", value=data, kind="first_of")
        await _settle(attempt, path, "another came first", common, [winner], ev.StepCompleted(attempt.step, attempt.key, path=path, call=Called("first_of")), done)
        return winner, value[1]
    finally:
        del error, tasks  # as in ``_gather``


async def _first(attempt: Attempt, path: str, tasks: list[asyncio.Task[Any]]) -> int:
    """Returns the index of the first task that has finished and does not rest. If several have their answers on record, it is the one whose answer came first.

    Raises:
        Suspend: all of them rest, or there is none.
    """
    suspended: dict[str, Wait] = {}
    open_tasks = set(tasks)
    try:
        while open_tasks:
            done, open_tasks = await asyncio.wait(open_tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if isinstance(error := task.exception(), Suspend):
                    suspended |= {w.wait_id: w for w in error.waits}
            if any(not isinstance(t.exception(), Suspend) for t in done):
                await _catch_up(attempt, path, tasks)
                return _earliest(attempt, path, [n for n, t in enumerate(tasks) if t.done() and not isinstance(t.exception(), Suspend)])
    finally:
        for task in open_tasks:
            failures.cancel(task)
        await asyncio.gather(*tasks, return_exceptions=True)
    if not tasks:
        raise UsageError("first_of was given no calls, so none can come first")
    raise Suspend(tuple(suspended.values()))


async def _catch_up(attempt: Attempt, path: str, tasks: list[asyncio.Task[Any]]) -> None:
    """Lets branches whose answers are on record finish: a branch with scopes of its own needs some turns of the event loop for that, and commits."""
    for _ in range(TURNS):
        if not any(not task.done() and _answers(attempt, f"{path}/{n}") for n, task in enumerate(tasks)):
            return
        await asyncio.sleep(0)
        await attempt.journal.command(lambda run: None, ev.SYSTEM)


def _answers(attempt: Attempt, path: str) -> list[tuple[int, StepRecord]]:
    """Returns the records beneath a place, each with its number in the order in which they came. Records of scopes are left out: they came with the others."""
    records = attempt.journal.progress.records.values()
    return [(n, r) for n, r in enumerate(records) if r.task == attempt.key and r.path.startswith(f"{path}/") and r.kind not in SCOPES]


def _earliest(attempt: Attempt, path: str, done: list[int]) -> int:
    """Returns which of several finished branches was first: the one whose last record is the oldest. A timer counts from when it fell due, whenever that was noticed."""
    last: dict[int, tuple[int, StepRecord]] = {branch: found[-1] for branch in done if (found := _answers(attempt, f"{path}/{branch}"))}
    first = min(done, key=lambda branch: last[branch][0] if branch in last else math.inf)
    times = {branch: time for branch, (_, record) in last.items() if (time := _find_time(attempt, record)) is not None}
    if first not in times:
        return first
    timers = [branch for branch in times if decisions.read_answer(last[branch][1]).action == TIMEOUT and times[branch] < times[first]]
    return min(timers, key=times.__getitem__, default=first)


def _find_time(attempt: Attempt, record: StepRecord) -> int | None:
    """Returns when an answer came; None for any other record."""
    if record.kind != "wait":
        return None
    given = decisions.read_answer(record)
    asked = attempt.journal.progress.questions.get((record.task, record.path))
    return given.decided_at if given.action != TIMEOUT or asked is None or asked.deadline is None else asked.deadline


async def all_end(tasks: list[asyncio.Task[Any]]) -> None:
    """Waits for every task, whatever its outcome; a cancel is passed on to all of them and awaited."""
    try:
        if tasks:
            await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            failures.cancel(task)
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _record_failure(attempt: Attempt, path: str, name: str, error: BaseException, common: Branch, failed: Collection[int]) -> None:
    """Records which failure a scope raised and closes the waits beneath it, so that a node may catch it and continue. ``failed``: the branches that failed.

    A mistake in the code, an error of the store and a lost lease are not recorded: once fixed, they must not come back.
    """
    if not isinstance(error, Exception) or isinstance(error, UsageError | RecordMismatch | StoreError | Conflict) or attempt.journal.dead is not None:
        return
    kind = "first_of" if name == "first_of" else "scope"
    value = record(error, where=path)
    fact = ev.StepFailed(attempt.step, attempt.key, value, path=path, call=Called(name))
    await _settle(attempt, path, "another call of the same scope failed", common, failed, fact, StepRecord(attempt.key, path, name, error=value, kind=kind))


async def _settle(attempt: Attempt, path: str, reason: str, common: Branch, used: Collection[int], fact: ev.Fact, done: StepRecord) -> None:
    """Records the outcome of a scope. The same commit closes the waits beneath it, and gives back the signals that no code has used.

    The commit is composed when its turn comes, so that it includes what was answered meanwhile. ``used``: the branches whose outcome is the scope's.
    """
    branches, returned = [f"{path}/{number}" for number in used], list[ev.WaitClosed]()

    def become(run: Run) -> Draft:
        returned[:] = find_unused(attempt, path, common.given, branches, reason)
        return Draft(facts=[*returned, *_close(attempt, run, path, reason), fact], results=[done])

    attempt.refuse_late()
    await wait_to_end(attempt.journal.command(become, ev.SYSTEM))
    for closed in returned:
        assert closed.returned is not None
        attempt.journal.taking.discard((closed.returned.name, closed.returned.key))


def _close(attempt: Attempt, run: Run, path: str, reason: str) -> list[ev.WaitClosed]:
    """Drops the waits beneath a place; returns facts that close those that are open already."""

    def below(wait: Wait) -> bool:
        return wait.task == attempt.key and wait.step == attempt.step and wait.path.startswith(path + "/")

    for wait_id in [w.wait_id for w in attempt.waits.values() if below(w)]:
        del attempt.waits[wait_id]
    return [ev.WaitClosed(w.wait_id, reason) for w in run.waits if below(w)]


def _drop(calls: Iterable[Awaitable[Any]]) -> None:
    """Closes calls that never began; otherwise Python warns that they were never awaited."""
    for call in calls:
        if inspect.iscoroutine(call) and inspect.getcoroutinestate(call) == inspect.CORO_CREATED:
            if call.cr_code in (gather.__code__, first_of.__code__):
                _drop(inspect.getcoroutinelocals(call)["calls"])
            call.close()


__all__ = ["Restart", "Suspend", "all_end", "first_of", "gather"]

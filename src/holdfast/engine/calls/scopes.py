"""Scopes of recorded calls: ``gather``, ``map``, ``first_of``, and the two ways out of a node that are no error (§4.12).

A scope numbers the calls of one line of control. Concurrent calls get scopes of their own beneath the call that opened
them, so that a call's place does not depend on which of them was quicker. What a scope decided (who came first, which
failure was raised) is recorded, for a node that catches it and goes on must find the same when it is entered again.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Iterable
from typing import Any

from holdfast.core import canon
from holdfast.core import events as ev
from holdfast.core.called import Called
from holdfast.core.checkpoint import StepRecord
from holdfast.core.errors import Conflict, RecordMismatch, StoreError, UsageError
from holdfast.core.waits import Wait
from holdfast.engine.base import failures
from holdfast.engine.base.failures import contain, record
from holdfast.engine.base.journal import Draft
from holdfast.engine.calls.attempt import Attempt, Call, Restart, Scope, Suspend, current


async def gather(attempt: Attempt, calls: Iterable[Awaitable[Any]], limit: int, name: str) -> list[Any]:
    """All results, in the order of the calls, at most ``limit`` of them at once.

    When one fails, those under way are still waited for, so that what they finish is on record; none is begun after it.

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
            tasks = _branches(attempt, path, given, limit)
            await all_end(tasks)
            return await _gather(attempt, path, name, tasks)
    finally:
        _drop(given)


def _branches(attempt: Attempt, path: str, calls: list[Awaitable[Any]], limit: int) -> list[asyncio.Task[Any]]:
    room, above = asyncio.Semaphore(max(1, limit)), attempt.places.scope()
    failed = False

    async def branch(number: int, awaitable: Awaitable[Any]) -> Any:
        nonlocal failed
        async with room:
            if failed:
                return None
            current.set(Scope(attempt.places.mark, f"{path}/{number}/", above.within, above.item))
            try:
                return await awaitable
            except Exception:
                failed = True
                raise
            except BaseException as e:  # let out of a task, an exit would end the loop
                error = contain(e, f"branch {number} of {path}")
                failed = True
                raise error from e

    tasks = [asyncio.create_task(branch(i, c)) for i, c in enumerate(calls)]
    for task in tasks:
        failures.serve(task)
    return tasks


async def _gather(attempt: Attempt, path: str, name: str, tasks: list[asyncio.Task[Any]]) -> list[Any]:
    suspended: dict[str, Wait] = {}
    failed: BaseException | None = None
    for task in tasks:
        error = task.exception()
        if isinstance(error, Suspend):
            suspended |= {w.wait_id: w for w in error.waits}
        elif error is not None and (failed is None or isinstance(failed, Exception) > isinstance(error, Exception)):
            failed = error  # the first in order; a way out that is no error goes before
    if failed is not None:
        await _record_failure(attempt, path, name, failed)
        raise failed
    if suspended:
        raise Suspend(tuple(suspended.values()))
    return [t.result() for t in tasks]


async def first_of(attempt: Attempt, calls: Iterable[Awaitable[Any]]) -> tuple[int, Any]:
    """The (index, value) of the call that is done first; the others are given up, their waits closed.

    Raises:
        Exception: the first that was done had failed.
        Suspend: all of them rest.
    """
    given = list(calls)
    try:
        with attempt.places.open("first_of") as path:
            record = attempt.places.lookup(Call(path, "first_of", "first_of", opens=True))
            if record is not None:
                index, value = await attempt.give(record)
                return int(index), value
            tasks = _branches(attempt, path, given, len(given))
            winner = await _first(tasks)
            error = tasks[winner].exception()
            if error is not None:
                await _record_failure(attempt, path, "first_of", error)
                raise error
            value, data = canon.pack([winner, tasks[winner].result()], "first_of()")
            done = StepRecord(attempt.key, path, "first_of", value=data, kind="first_of")
            await attempt.save(Draft(facts=[*_close(attempt, path, "another came first"), ev.StepCompleted(attempt.step, attempt.key, path=path, call=Called("first_of"))], results=[done]))
            return winner, value[1]
    finally:
        _drop(given)


async def _first(tasks: list[asyncio.Task[Any]]) -> int:
    """The index of the first task that is done and does not rest.

    Raises:
        Suspend: every one of them rests, or there is none.
    """
    suspended: dict[str, Wait] = {}
    open_tasks = set(tasks)
    try:
        while open_tasks:
            done, open_tasks = await asyncio.wait(open_tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=tasks.index):
                error = task.exception()
                if not isinstance(error, Suspend):
                    return tasks.index(task)
                suspended |= {w.wait_id: w for w in error.waits}
    finally:
        for task in open_tasks:
            failures.cancel(task)
        await asyncio.gather(*tasks, return_exceptions=True)
    if not tasks:
        raise UsageError("first_of was given no calls, so none can come first")
    raise Suspend(tuple(suspended.values()))


async def all_end(tasks: list[asyncio.Task[Any]]) -> None:
    """Waits for every task, whatever becomes of it; a cancellation is passed on to all of them and awaited."""
    try:
        if tasks:
            await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            failures.cancel(task)
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _record_failure(attempt: Attempt, path: str, name: str, error: BaseException) -> None:
    """Records which failure a scope raised and closes the waits beneath it, so that a node may catch it and go on.

    A mistake in the code, of the store or of a lost lease is not recorded: mended, it must not come back.
    """
    if not isinstance(error, Exception) or isinstance(error, UsageError | RecordMismatch | StoreError | Conflict) or attempt.journal.dead is not None:
        return
    kind = "first_of" if name == "first_of" else "scope"
    value = record(error, where=path)
    facts = [*_close(attempt, path, "another call of the same scope failed"), ev.StepFailed(attempt.step, attempt.key, value, path=path, call=Called(name))]
    await attempt.save(Draft(facts=facts, results=[StepRecord(attempt.key, path, name, error=value, kind=kind)]))


def _close(attempt: Attempt, path: str, reason: str) -> list[ev.Fact]:
    """Forgets the waits beneath a place; the facts close those that are open already."""

    def below(wait: Wait) -> bool:
        return wait.task == attempt.key and wait.step == attempt.step and wait.path.startswith(path + "/")

    for wait_id in [w.wait_id for w in attempt.waits.values() if below(w)]:
        del attempt.waits[wait_id]
    return [ev.WaitClosed(w.wait_id, reason) for w in attempt.journal.run.waits if below(w)]


def _drop(calls: Iterable[Awaitable[Any]]) -> None:
    """Closes calls that were never begun; Python would warn that nobody awaited them."""
    for call in calls:
        if inspect.iscoroutine(call) and inspect.getcoroutinestate(call) == inspect.CORO_CREATED:
            call.close()


__all__ = ["Restart", "Suspend", "all_end", "first_of", "gather"]

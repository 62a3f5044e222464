"""Calls that a node made on its way out of an error: in an ``except`` that raised again, in a ``finally``, or at the end of a context manager (§4.12).

A node that failed, was canceled, or was handed back in the middle runs again from its first line, and this time it may take another way: it makes the calls that it
did not reach before. The calls on its way out are recorded at those places. So the end of the attempt names these records, and they are dropped before the node runs
again. After a failure they are dropped when the run is resumed or the node retried: a replay fails like its source and is answered with them. After a cancel they are
dropped at once, because the node is not canceled again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from holdfast.core.checkpoint import StepRecord
from holdfast.core.errors import StepTimeout
from holdfast.core.progress import LEFT, LEFT_AT_ONCE
from holdfast.engine.base.failures import ControlFlow, find_ways_out
from holdfast.engine.base.journal import Draft
from holdfast.engine.calls.attempt import Attempt


async def note(error: BaseException, attempts: Iterable[Attempt], outer: BaseException | None) -> None:
    """Records for attempts that end with an error which calls they made on their way out. ``outer``: the error that their caller is handling, if any."""
    for attempt in attempts:
        if isinstance(error, StepTimeout) and attempt.parked:
            await attempt.journal.safe_points.stand(attempt)  # if its time ran out while it was stopped to be handed back, that is no failure of its own
        _tell_left(attempt, error, outer)


def _tell_left(attempt: Attempt, error: BaseException, outer: BaseException | None) -> None:
    """Adds a record for each call that an attempt made on its way out to the next commit."""
    handled = attempt.places.handled
    if not handled or attempt.journal.dead is not None or any(find_ways_out(error)):
        return
    out: dict[int, BaseException] = {}
    for each in (error, *attempt.places.errors):
        _add_causes(each, out)
    around: dict[int, BaseException] = {}
    if outer is not None:
        _add_causes(outer, around)
    canceled = isinstance(error, asyncio.CancelledError)
    cut = canceled or isinstance(error, StepTimeout)
    paths = [path for path, x in handled if id(x) not in around and (id(x) in out or (cut and isinstance(x, asyncio.CancelledError)))]
    if paths:
        above, kind = f"{attempt.prefix}@{LEFT}/{attempt.number}", LEFT_AT_ONCE if canceled else LEFT
        attempt.journal.hold(Draft(results=[StepRecord(attempt.key, f"{above}/{n}", path, kind=kind) for n, path in enumerate(paths)]))


def _add_causes(error: BaseException, found: dict[int, BaseException]) -> None:
    """Collects an error and all errors that led to it, each once, without ways out of the node."""
    todo = [error]
    while todo:
        each = todo.pop()
        if id(each) in found or isinstance(each, ControlFlow):
            continue
        found[id(each)] = each
        todo += [e for e in (each.__context__, each.__cause__) if e is not None]
        if isinstance(each, BaseExceptionGroup):
            todo += each.exceptions


__all__ = ["note"]

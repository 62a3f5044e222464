"""What a node did on its way out of an error: in an ``except`` that let it out in the end, in a ``finally``, at the end of a context manager (§4.12).

A node that failed, was canceled, or was handed back in the middle is entered again from its first line, and goes another way then: it does what it had not come to.
What it did on its way out is on record at the places of those calls. So the end of the attempt tells which records these are, and who enters the node again
forgets them. After a failure they are forgotten when somebody goes on with the run, or the node is tried again: a replay fails like its source, and is served them.
After a cancel they are forgotten at once, for nobody who enters the node again is canceled there.
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
    """What is to be said of attempts that end with an error. ``outer``: what their caller handles, if anything."""
    for attempt in attempts:
        if isinstance(error, StepTimeout) and attempt.parked:
            await attempt.journal.safe_points.stand(attempt)  # its time was up while it stood still, to be handed back: that is no failure of its own
        _tell_left(attempt, error, outer)


def _tell_left(attempt: Attempt, error: BaseException, outer: BaseException | None) -> None:
    """Tells which calls of an attempt were made on the way out."""
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
    """An error with all that led to it, each once; a way out is none."""
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

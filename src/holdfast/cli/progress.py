"""What a command shows while it drives: a line for each step, and on a terminal the step under way with its time.

Progress goes to stderr, so that stdout has only the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any, TypeVar

import click

from holdfast.cli import output as o
from holdfast.handle import EventView
from holdfast.runtime import Runtime

T = TypeVar("T")
TICK = 0.12
PRIMED = 2_000
_ENDS: dict[str, o.Mark] = {"step.completed": "ok", "step.degraded": "part"}
_WHEEL = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class Progress:
    """Turns events into lines. ``names`` shows the run's id before each, for many runs at once."""

    def __init__(self, *, names: bool = False) -> None:
        self._began: dict[tuple[str, str], tuple[str, float]] = {}
        self._names = names
        self._live = sys.stderr.isatty()
        self._drawn = False
        self._wheel = itertools.cycle(_WHEEL if self._fine() else "|/-\\")

    def _fine(self) -> bool:
        return (getattr(sys.stderr, "encoding", "") or "").lower().replace("-", "") == "utf8"

    def prime(self, event: EventView) -> None:
        """Takes an earlier event, to know when a step under way began."""
        if event.event_type == "step.started":
            self._began[event.run_id, str(event.payload["task"])] = (event.occurred_at, time.monotonic())
        elif event.event_type in ("step.completed", "step.degraded", "step.skipped", "step.failed") and not event.payload.get("path"):
            self._began.pop((event.run_id, str(event.payload["task"])), None)

    def tell(self, event: EventView) -> None:
        """Prints a line for an event, if the event says something to a person who watches."""
        line = self._line(event)
        if line is None:
            return
        self.wipe()
        prefix = o.paint(f"{event.run_id[-8:]} ", dim=True) if self._names else ""
        click.echo(f"{prefix}  {line}", err=True)

    def _line(self, event: EventView) -> str | None:
        p = event.payload
        task = o.inline(p.get("task", ""), 40)
        place = (event.run_id, str(p.get("task", "")))
        match event.event_type:
            case "step.started":
                self._began[place] = (event.occurred_at, time.monotonic())
                return None
            case "step.completed" | "step.degraded" | "step.skipped" if not p.get("path"):
                kind = _ENDS.get(event.event_type, "skip")
                said = "" if p["outcome"] == "ok" else f"  {o.inline(p['outcome'], 200)}"
                again = f"  attempt {p['attempt']}" if p.get("attempt", 1) > 1 else ""
                return f"{o.mark(kind)} {task:<24} {self._took(place, event):>9}{again}{said}"
            case "step.failed" if not p.get("path"):  # a call that failed either fails its step, or the code has handled it
                return f"{o.mark('bad')} {task:<24} {self._took(place, event):>9}  {o.inline(p['error']['type'].rpartition('.')[2])}: {o.inline(p['error']['message'], 300)}"
            case "step.retry_scheduled":
                which = f"{o.inline(p['call'], 60)}, " if p.get("call") else ""
                return f"{o.mark('again')} {task:<24} {which}attempt {p['attempt']} failed: {o.inline(p['error']['message'], 200)}"
            case "wait.requested":
                wait = p["wait"]
                return f"{o.mark('ask')} {wait['task']:<24} {wait['kind']}: {o.inline(wait['prompt'] or wait['name'], 200)}"
            case "wait.timed_out":
                return f"{o.mark('go')} {'timed out':<24} nobody answered by the deadline"
            case "policy.evaluated" if p["verdict"] == "deny":
                return f"{o.mark('bad')} {task or o.inline(p['subject'], 40):<24} denied by the policy" + (f": {o.inline(p['reason'], 200)}" if p["reason"] else "")
            case "wait.decided":
                d = p["decision"]
                return f"{o.mark('go')} {'answered':<24} {o.inline(d['action'])} by {o.inline(d['actor'])}"
            case "run.cancel_requested":
                return f"{o.mark('bad')} {'cancel':<24} asked for by {o.inline(event.actor)}" + (f": {o.inline(p['reason'], 200)}" if p["reason"] else "")
            case "note.added":
                return f"{o.mark('dot')} {o.inline(p['text'], 300)}"
            case "run.recovered":
                return f"{o.mark('again')} {'taken over':<24} from {o.inline(p['previous_owner'], 60)} ({o.inline(p['cause'])})"
            case "side_effect.unknown" | "side_effect.failed":
                return f"{o.mark('bad')} {task:<24} {event.event_type}: {o.inline(p['detail'] or p['effect_id'], 200)}"
        return None

    def _took(self, place: tuple[str, str], event: EventView) -> str:
        began, _ = self._began.pop(place, (None, 0.0))
        a, b = o.moment(began), o.moment(event.occurred_at)
        return "" if a is None or b is None else o.span((b - a).total_seconds())

    # -- the line that moves ------------------------------------------------------------------------

    def draw(self) -> None:
        """Redraws the steps under way on a terminal, once one takes long enough to be seen."""
        if not self._live or not self._began:
            return
        under_way = [(task, time.monotonic() - since) for (_, task), (_, since) in self._began.items()]
        longest = max(seconds for _, seconds in under_way)
        if longest < 0.3:
            return
        names = ", ".join(o.inline(t, 24) for t, _ in under_way[:4]) + (f" and {len(under_way) - 4} more" if len(under_way) > 4 else "")
        self.wipe()
        click.echo(f"  {o.paint(next(self._wheel), 'cyan')} {names:<24} {o.span(longest):>9}", err=True, nl=False)
        self._drawn = True

    def wipe(self) -> None:
        if self._drawn:
            click.echo("\r\x1b[2K", err=True, nl=False)
            self._drawn = False


class Warned(logging.Handler):
    """Shows the library's warnings about the program that runs."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"{o.mark('part')} {o.inline(record.getMessage())}", err=True)


@contextlib.contextmanager
def _warn(name: str) -> Iterator[None]:
    handler, logger = Warned(logging.WARNING), logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


async def watch(rt: Runtime, run_id: str, act: Awaitable[T], progress: Progress | None, after: int = 0) -> T:
    """Awaits ``act`` and shows what happens to the run meanwhile; what happened by its end is shown before it returns."""
    if progress is None:
        return await act
    seen = after
    if 0 < after <= PRIMED:
        for event in await rt.events(run_id, limit=after):
            progress.prime(event)

    async def follow() -> None:
        nonlocal seen
        async for event in rt.events(run_id, seen, follow=True):
            progress.tell(event)
            seen = event.seq

    with _warn("holdfast.limits"):
        async with _ticking(progress):
            follower = asyncio.ensure_future(follow())
            try:
                return await act
            finally:
                follower.cancel()
                await asyncio.gather(follower, return_exceptions=True)
                for event in await rt.events(run_id, seen):
                    progress.tell(event)


@contextlib.asynccontextmanager
async def _ticking(progress: Progress) -> AsyncIterator[None]:
    async def tick() -> None:
        while True:
            await asyncio.sleep(TICK)
            progress.draw()

    ticker: asyncio.Future[Any] = asyncio.ensure_future(tick())
    try:
        yield
    finally:
        ticker.cancel()
        await asyncio.gather(ticker, return_exceptions=True)
        progress.wipe()

"""Server-sent events: one run from a number on, and many runs as they stand (§16.7).

Events carry their number as id, so that a client that comes back loses and repeats nothing. Chunks carry none: what replaces them is
durable. A slow reader is waited for by the transport; what is kept for it meanwhile is bounded: events are read from the store only when
it can take them, and chunks beyond a bound are dropped with a mark.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from holdfast.access import Access
from holdfast.api.table import resting
from holdfast.core import describe
from holdfast.core.codec import open_row
from holdfast.core.status import TERMINAL
from holdfast.engine.look.looker import Wanted
from holdfast.runtime import Runtime

PAGE = 200
QUIET_SECONDS = 15.0
CHECK_SECONDS = 20.0
POLL_SECONDS = 1.0
KEPT_CHUNKS = 1000
RETRY = b"retry: 1000\n\n"

Allowed = Callable[[], Awaitable[bool]]


def frame(kind: str, data: Any, number: int | None = None) -> bytes:
    """One event as it goes over the wire."""
    head = f"id: {number}\n" if number is not None else ""
    return f"{head}event: {kind}\ndata: {json.dumps(data, ensure_ascii=False, default=str)}\n\n".encode("utf-8", "backslashreplace")


class Beat:
    """When something has to be said although nothing happened, and when the token is to be looked at again."""

    def __init__(self, allowed: Allowed, stopping: asyncio.Event) -> None:
        self._allowed = allowed
        self._stopping = stopping
        self._said = self._checked = time.monotonic()

    def said(self) -> None:
        self._said = time.monotonic()

    def quiet(self) -> bool:
        return time.monotonic() - self._said >= QUIET_SECONDS

    async def over(self) -> bool:
        """Whether the stream has to end: the server goes down, or the token does not hold any more."""
        if self._stopping.is_set():
            return True
        if time.monotonic() - self._checked < CHECK_SECONDS:
            return False
        self._checked = time.monotonic()
        return not await self._allowed()


async def one(rt: Runtime, run_id: str, access: Access, after: int, beat: Beat) -> AsyncIterator[bytes]:
    """A run's events from a number on, its chunks where it is driven here, and how it rests; to its end."""
    chunks: deque[bytes] = deque()
    dropped = [0]

    async def listen() -> None:
        async for chunk in rt.stream(run_id):
            if len(chunks) >= KEPT_CHUNKS:
                chunks.popleft()
                dropped[0] += 1
            chunks.append(frame("chunk", {"attempt_id": chunk.attempt_id, "value": describe.value(chunk.value)}))

    ear = asyncio.ensure_future(listen())
    rested = -1
    try:
        yield b": open\n\n"
        while True:
            run, lease = await rt.look.found(run_id, access.tenant)
            rows = await rt.store.rows(run_id, after, PAGE)
            mask = await rt.look.mask(run)
            for row in rows:
                for event in open_row(row).events:
                    if event.seq > after:
                        after = event.seq
                        yield frame(event.type, describe.plain(describe.event(run, event), mask), event.seq)
                        beat.said()
            if dropped[0]:
                yield frame("dropped", {"chunks": dropped[0]})
                dropped[0] = 0
            while chunks:
                yield chunks.popleft()
                beat.said()
            if len(rows) == PAGE:
                continue
            shown = describe.run(run, lease, rt.store.now())
            if run.version <= after and resting(shown) and rested != run.version:
                rested = run.version
                yield frame("rest", describe.plain(shown, mask))
                beat.said()
            if (run.status in TERMINAL and run.version <= after) or await beat.over():
                yield RETRY
                return
            if beat.quiet():
                yield b": still here\n\n"
                beat.said()
            if ear.done() and not chunks and run.status not in TERMINAL:
                ear = asyncio.ensure_future(listen())
            await rt.store.wait_for_change(POLL_SECONDS)
    finally:
        ear.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ear


async def many(rt: Runtime, wanted: Wanted, beat: Beat) -> AsyncIterator[bytes]:
    """The matching runs as they stand, then each as it changes; it carries no ids, and begins so again after a break."""
    known: dict[str, tuple[int, str]] = {}
    yield b": open\n\n"
    while not await beat.over():
        for run in reversed(await rt.look.runs(wanted)):
            stands = (run.version, run.condition)
            if known.get(run.run_id) != stands:
                known[run.run_id] = stands
                yield frame("run", describe.plain(run))
                beat.said()
        if beat.quiet():
            yield b": still here\n\n"
            beat.said()
        await rt.store.wait_for_change(POLL_SECONDS)
    yield RETRY


__all__ = ["Beat", "many", "one"]

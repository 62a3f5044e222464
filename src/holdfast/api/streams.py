"""Server-sent events: one run from a number on, and many runs with their current state (§16.7).

Events carry their number as id, so that a client that reconnects loses and repeats nothing. Chunks carry no id, because what replaces them is durable;
a client that gives the cursor of a chunk as ``after`` gets what comes after the chunk. For a slow reader the transport waits, and nothing is kept for the
reader meanwhile: events and chunks are read from the store only when the reader can take them, and the stream says how many chunks the ring has lost by then.

All streams of a server read from one source (``sources.SharedSource``), so that a commit costs the same few reads for one listener and for two
hundred. The wire form of an event is also the same for all streams, and is made once.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import msgspec

from holdfast import logs
from holdfast.access import Access
from holdfast.api.boards import Boards, Stand
from holdfast.api.table import resting
from holdfast.core import describe
from holdfast.core.errors import StoreError
from holdfast.core.masks import Mask
from holdfast.core.run import Run
from holdfast.engine.look.looker import Wanted
from holdfast.engine.look.sources import Source
from holdfast.handle import StreamPart
from holdfast.protocols import MODES, Encoder
from holdfast.runtime import Runtime

QUIET_SECONDS = 15.0
CHECK_SECONDS = 20.0
POLL_SECONDS = 1.0
MOST_FRAMES = 1000
PIECE_BYTES = 32 * 2**10
RETRY = b"retry: 1000\n\n"

Allowed = Callable[[], Awaitable[bool]]
log = logs.logger("holdfast.api")


def frame(kind: str, data: Any, number: int | None = None) -> bytes:
    """Encodes one server-sent event."""
    head = f"id: {number}\n" if number is not None else ""
    return f"{head}event: {kind}\ndata: {json.dumps(data, ensure_ascii=False, default=str)}\n\n".encode("utf-8", "backslashreplace")


class Beat:
    """Tells a stream when to send a sign of life although nothing happens, and when to check its token again."""

    def __init__(self, allowed: Allowed, stopping: asyncio.Event) -> None:
        self._allowed = allowed
        self._stopping = stopping
        self._said = self._checked = time.monotonic()

    def note(self) -> None:
        self._said = time.monotonic()

    def quiet(self) -> bool:
        return time.monotonic() - self._said >= QUIET_SECONDS

    async def over(self) -> bool:
        """Whether the stream must end, because the server is shutting down or the token is no longer valid."""
        if self._stopping.is_set():
            return True
        if time.monotonic() - self._checked < CHECK_SECONDS:
            return False
        self._checked = time.monotonic()
        return not await self._allowed()


def encode(part: StreamPart, mask: Mask) -> bytes:
    """Encodes a part of a run's stream: an event with its number as id, everything else with its cursor."""
    by = {"step_id": part.step_id, "attempt": part.attempt, "attempt_id": part.attempt_id}
    if part.mode == "events":
        return frame(part.data.type, msgspec.to_builtins(part.data), part.data.seq)
    if part.superseded:
        return frame("superseded", by)
    if part.mode == "missed":
        return frame("dropped", {**by, "chunks": part.data})
    value = mask.record({"value": describe.value(part.data)})["value"]
    if part.mode in ("custom", "messages"):
        return frame("chunk" if part.mode == "custom" else "message", {**by, "value": value, "cursor": part.cursor})
    return frame(part.mode, {"value": value, "cursor": part.cursor})


class Wires:
    """What all streams of a server share: the source that they read from, and the wire form of the newest events."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._frames: dict[tuple[str, int], bytes] = {}

    def encode(self, part: StreamPart, run: Run, hidden: Mask) -> bytes:
        """Encodes a part of a run's stream."""
        if part.mode != "events" or run.secrets:  # not cached for a run with secrets: what must be hidden may become known later
            return encode(part, hidden)
        key = (run.run_id, part.data.seq)
        made = self._frames.get(key)
        if made is None:
            if len(self._frames) >= MOST_FRAMES:
                self._frames = dict(list(self._frames.items())[MOST_FRAMES // 2 :])
            made = self._frames[key] = encode(part, hidden)
        return made


async def one(rt: Runtime, wires: Wires, run_id: str, access: Access, after: str | None, modes: Iterable[str], beat: Beat) -> AsyncIterator[bytes]:
    """Streams one run: its events from a number on, or everything from a cursor on, what its steps emit, and its state when it rests. Ends with the run."""
    feed = rt.follower(run_id, after=after, modes=modes, tenant_id=access.tenant, source=wires.source)
    rested = -1
    yield b": open\n\n"
    news = True
    while True:
        if news:
            async for piece in pieces([wires.encode(part, feed.run, feed.hidden)] async for part in feed.ready()):
                yield piece
                beat.note()
                if await beat.over():  # a long log may take a slow reader minutes
                    yield RETRY
                    return
            if feed.level and rested != feed.run.version and resting(feed.run):
                rested = feed.run.version
                yield frame("rest", describe.plain(describe.run(feed.run, feed.lease, rt.store.now()), feed.hidden))
                beat.note()
        if feed.over or await beat.over():
            yield RETRY
            return
        if beat.quiet():
            yield b": still here\n\n"
            beat.note()
        news = await feed.news(POLL_SECONDS)


async def speak(rt: Runtime, wires: Wires, run_id: str, access: Access, after: str | None, beat: Beat, encoder: Encoder) -> AsyncIterator[bytes]:
    """Streams one run in the format of a protocol. Ends with the run."""
    feed = rt.follower(run_id, after=after, modes=MODES, tenant_id=access.tenant, source=wires.source)
    yield b": open\n\n"
    news = True
    while True:
        if news:
            async for piece in pieces([word(wire) for wire in encoder.encode(part, feed.hidden)] async for part in feed.ready()):
                yield piece
                beat.note()
                if await beat.over():  # a long log may take a slow reader minutes
                    yield RETRY
                    return
        if feed.over or await beat.over():
            yield encoder.after if feed.over else RETRY
            return
        if beat.quiet():
            yield b": still here\n\n"
            beat.note()
        news = await feed.news(POLL_SECONDS)


async def pieces(frames: AsyncIterator[list[bytes]]) -> AsyncIterator[bytes]:
    """Joins frames that are available at once into few pieces, because each piece passes through the server's layers separately."""
    held: list[bytes] = []
    size = 0
    async for made in frames:
        held += made
        size += sum(map(len, made))
        if size >= PIECE_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def word(wire: Any) -> bytes:
    return b"data: " + json.dumps(wire, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace") + b"\n\n"


def encode_run(run: describe.RunView) -> bytes:
    """Encodes the current state of a run."""
    return frame("run", describe.plain(run))


async def many(boards: Boards, wanted: Wanted, beat: Beat) -> AsyncIterator[bytes]:
    """Streams the matching runs: first the state of all, then each that changes, and which have left. It has no ids, and begins with all runs after a reconnect."""
    known: set[Stand] = set()
    turn = 0
    yield b": open\n\n"
    with boards.follow(wanted) as board:
        while not await beat.over():
            await board.news(turn, POLL_SECONDS)
            if board.turn != turn:
                turn, rows = board.turn, board.rows
                there = {stand.run_id for stand in rows}
                gone = {stand for stand in known if stand.run_id not in there}
                try:
                    left = await board.find_left(sorted({stand.run_id for stand in gone}))
                except StoreError as e:  # the client is told of them after a later read
                    log.debug("it is not known yet how runs stand that have left: %s", e)
                else:
                    if left:
                        yield b"".join(frame("left", msgspec.to_builtins(each)) for each in left)
                        beat.note()
                    gone = set()
                async for piece in boards.frames([stand for stand in reversed(rows) if stand not in known], rows):
                    yield piece
                    beat.note()
                    if await beat.over():
                        yield RETRY
                        return
                known = gone | set(rows)
            if beat.quiet():
                yield b": still here\n\n"
                beat.note()
    yield RETRY


__all__ = ["Beat", "Wires", "encode_run", "many", "one", "speak"]

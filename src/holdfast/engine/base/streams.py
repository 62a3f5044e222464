"""Live chunks of running steps, for ``rt.stream``: provisional, in this process, never durable (§13.2a)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

LIMIT = 10_000


class Chunk(msgspec.Struct, frozen=True):
    """A provisional piece of output, tagged with the attempt that made it."""

    run_id: str
    attempt_id: str
    value: Any


class Streams:
    """Fans chunks out to whoever listens to a run; a slow listener loses the oldest, never the run its speed."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[asyncio.Queue[Chunk | None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def emit(self, chunk: Chunk) -> None:
        """Hands a chunk on; plain nodes call this from their threads, and queues belong to the loop's."""
        if chunk.run_id not in self._listeners or self._loop is None:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._loop.call_soon_threadsafe(self._put, chunk)
        else:
            self._put(chunk)

    def _put(self, chunk: Chunk) -> None:
        for queue in self._listeners.get(chunk.run_id, ()):
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(chunk)

    def listen(self, run_id: str) -> asyncio.Queue[Chunk | None]:
        queue: asyncio.Queue[Chunk | None] = asyncio.Queue(LIMIT)
        self._loop = asyncio.get_running_loop()
        self._listeners.setdefault(run_id, []).append(queue)
        return queue

    def leave(self, run_id: str, queue: asyncio.Queue[Chunk | None]) -> None:
        listeners = self._listeners.get(run_id, [])
        if queue in listeners:
            listeners.remove(queue)
        if not listeners:
            self._listeners.pop(run_id, None)

    def end(self, run_id: str) -> None:
        """The run rests: listeners stop."""
        for queue in self._listeners.get(run_id, ()):
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(None)

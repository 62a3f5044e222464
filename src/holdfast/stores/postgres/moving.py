"""Work that writes to the row of every run: another schema, or a new incarnation.

Of many runs the server has more to write than it is given time for an answer elsewhere, and what is broken off there is taken back: begun again each
time, it would never come to its end. So it has a connection and a task of its own, which outlast whoever waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from holdfast import logs
from holdfast.machine import note_error
from holdfast.stores.postgres.connection import Connection, Place, connect

log = logs.logger("holdfast.store")


class Moving:
    """What is being moved through one store, one thing at a time."""

    def __init__(self, place: Place, url: str) -> None:
        self._place = place
        self._url = url
        self._task: asyncio.Task[None] | None = None

    async def do(self, work: Callable[[Connection], Awaitable[None]]) -> None:
        """Waits for the work, which is begun if none is under way. A caller that waits no longer leaves it under way."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._do(work))
            self._task.add_done_callback(note_error)
        await asyncio.shield(self._task)

    async def wait(self) -> bool:
        """Waits until what is under way has ended, however it ends. Whether something was."""
        if self._task is None or self._task.done():
            return False
        await asyncio.wait([self._task])
        return True

    async def close(self) -> None:
        """Gives up what is under way; the server takes it back."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _do(self, work: Callable[[Connection], Awaitable[None]]) -> None:
        db = await connect(self._place, prepared=False)
        log.warning("%s: the rows of all runs are being brought up to date; with many runs this can take minutes", self._url)
        try:
            await work(db)
        finally:
            with contextlib.suppress(OSError):
                await db.close()


__all__ = ["Moving"]

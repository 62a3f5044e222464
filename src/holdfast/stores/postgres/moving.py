"""Work that writes the row of every run: another schema, or a new incarnation.

With many runs this takes the server longer than the time limit of other answers. What is cancelled is rolled back, so work that was begun anew each
time would never finish. So it has a connection and a task of its own, which continue even if nobody waits for them any more.
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
    """The work of one store on all its rows, one task at a time."""

    def __init__(self, place: Place, url: str) -> None:
        self._place = place
        self._url = url
        self._task: asyncio.Task[None] | None = None

    async def do(self, work: Callable[[Connection], Awaitable[None]]) -> None:
        """Starts the work if none is under way, and waits for it. If the caller is cancelled, the work continues."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._do(work))
            self._task.add_done_callback(note_error)
        await asyncio.shield(self._task)

    async def wait(self) -> bool:
        """Waits until the current work has ended, with or without success; returns whether there was any."""
        if self._task is None or self._task.done():
            return False
        await asyncio.wait([self._task])
        return True

    async def close(self) -> None:
        """Cancels the current work; the server rolls it back."""
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

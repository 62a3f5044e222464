"""Runs that may end their process are driven alone (§10.6).

A run whose owner has died, and before that another one without any progress in between, is a suspect: what it does next may end this
process too, with all that is driven beside it. Those would be counted as if the fault were theirs, and end with it. So a suspect
waits until the runs in hand have come to a rest, for a little while, and is driven alone until it gets on, or for a little while; whoever
comes meanwhile waits. Suspects take turns. What has waited has not been begun, and does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

COMPANY_SECONDS = 2.0
"""For so long a suspect waits for the others to come to a rest; some rest late, and it is driven beside them."""
ALONE_SECONDS = 5.0
"""For so long it is driven alone; what has not ended its process by then goes on beside others."""


class Quarantine:
    """Which runs of this process are driven, and which of them alone."""

    def __init__(self) -> None:
        self._here: set[str] = set()
        self._suspects: list[str] = []
        self._moved = asyncio.Event()
        self._over: asyncio.TimerHandle | None = None

    async def enter(self, run_id: str, *, suspect: bool, waits: bool = True) -> None:
        """Returns when the run may be driven. ``waits``: whether it lets suspects go first; what is born here does not."""
        if not suspect:
            if waits and self._suspects:
                await self._until(lambda: not self._suspects, COMPANY_SECONDS + ALONE_SECONDS)
            self._here.add(run_id)
            return
        self._suspects.append(run_id)
        await self._until(lambda: self._suspects[0] == run_id, None)
        await self._until(lambda: not self._here, COMPANY_SECONDS)
        self._over = asyncio.get_running_loop().call_later(ALONE_SECONDS, self.clear, run_id)

    def clear(self, run_id: str) -> None:
        """The run has got on, or has lived long enough: it is driven beside others from now on."""
        if run_id in self._suspects:
            self._suspects.remove(run_id)
            self._here.add(run_id)
            self._tell()

    def leave(self, run_id: str) -> None:
        """The run is not driven here any more."""
        if run_id in self._suspects or run_id in self._here:
            if self._suspects[:1] == [run_id] and self._over is not None:
                self._over.cancel()
            self._suspects = [r for r in self._suspects if r != run_id]
            self._here.discard(run_id)
            self._tell()

    def _tell(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def _until(self, ready: Callable[[], bool], seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not ready():
                    await self._moved.wait()

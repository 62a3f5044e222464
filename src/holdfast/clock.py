"""The clock of this machine."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """Wall time in microseconds; monotonic seconds from the clock that goes on while the machine sleeps."""

    def now(self) -> int:
        return time.time_ns() // 1_000

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

"""A world to act on, and ways for a process to end in the middle of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from holdfast import Runtime
from holdfast.stores import MemoryStore, SqliteStore
from holdfast.testing.crash import SimulatedCrash
from tests.inside import die

SECOND = 1_000_000


class Crash(SimulatedCrash):
    """The process ends here: nothing after it runs, nothing is handed back."""


class Clock:
    """A clock moved by hand. A sleep moves the wall clock only, as if the heart went on beating meanwhile."""

    def __init__(self) -> None:
        self.at = 1_700_000_000 * SECOND
        self.since_boot = 0.0

    def now(self) -> int:
        return self.at

    def monotonic(self) -> float:
        return self.since_boot

    def forward(self, seconds: float) -> None:
        self.at += int(seconds * SECOND)
        self.since_boot += seconds

    async def sleep(self, seconds: float) -> None:
        self.at += int(seconds * SECOND)
        await asyncio.sleep(0)


class World:
    """Counts what is done to it. At act number ``crash_at`` the process dies before it can write down what it did."""

    def __init__(self, crash_at: int = 0) -> None:
        self.done: list[Any] = []
        self.keys: list[str] = []
        self.crash_at = crash_at

    async def upload(self, text: str) -> str:
        self.done.append(text)
        if len(self.done) == self.crash_at:
            raise Crash
        return f"receipt {len(self.done)}"

    async def charge(self, amount: int, idempotency_key: str) -> int:
        """A receiver that dedupes by the key."""
        self.keys.append(idempotency_key)
        if idempotency_key not in dict(self.done):
            self.done.append((idempotency_key, amount))
        if len(self.keys) == self.crash_at:
            raise Crash
        return amount


class House:
    """One database and the processes that use it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.clock = Clock()
        self.memory = MemoryStore(now=self.clock.now)
        self.runtimes: list[Runtime] = []

    async def process(self, *skills: Any, **options: Any) -> Runtime:
        """Another process: a runtime with an owner of its own."""
        store = self.memory if self.kind == "memory" else SqliteStore(self.folder / "runs.db", now=self.clock.now)
        rt = Runtime(store, skills=skills, clock=self.clock, **options)
        await rt.__aenter__()
        self.runtimes.append(rt)
        return rt

    def kill(self, rt: Runtime) -> None:
        """What kill -9 leaves: silence, and proof that the owner is dead."""
        die(rt)
        rt.store.abandon(rt.owner)  # type: ignore[attr-defined]

    def stop(self, rt: Runtime) -> None:
        """SIGSTOP as others see it: no renewal, its lease runs out, and no proof of death."""
        die(rt)
        self.clock.forward(31)

    async def close(self) -> None:
        for rt in self.runtimes:
            await rt.close()

"""What the engine's tests share: a clock that moves by itself, and a process that dies at a commit of one's choice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from holdfast.authoring import Skill
from holdfast.core import events as ev
from holdfast.core.commit import Commit, Tip
from holdfast.core.status import Status
from holdfast.handle import Run
from holdfast.ports import RunFilter
from holdfast.runtime import Runtime
from holdfast.stores.memory import MemoryStore
from holdfast.testing.crash import SimulatedCrash
from tests.inside import fall_silent


class FakeClock:
    """Time passes when somebody sleeps."""

    def __init__(self) -> None:
        self.at = 1_800_000_000_000_000

    def now(self) -> int:
        return self.at

    def monotonic(self) -> float:
        return self.at / 1_000_000

    async def sleep(self, seconds: float) -> None:
        self.at += int(seconds * 1_000_000)
        await asyncio.sleep(0)


class Crash(SimulatedCrash):
    """The process is gone."""


When = Callable[[Commit], bool]


class Dying:
    """One process's way to a store: gone for good at the first commit that ``when`` names, before or after it took effect."""

    def __init__(self, store: MemoryStore, when: When, *, after: bool) -> None:
        self._store = store
        self._when = when
        self._after = after
        self.gone = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, commit: Commit) -> Tip:
        if self.gone:
            raise Crash
        dies = self._when(commit)
        if dies and not self._after:
            self.gone = True
            raise Crash
        tip = await self._store.commit(commit)
        if dies:
            self.gone = True
            raise Crash
        return tip


def says(*kinds: type[ev.Fact], **fields: Any) -> When:
    """Names the commits that hold a fact of these kinds with these fields."""

    def when(commit: Commit) -> bool:
        return any(isinstance(e.fact, kinds) and all(getattr(e.fact, k) == v for k, v in fields.items()) for e in commit.events)

    return when


class World:
    """A store and a clock that outlive the processes that use them."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(now=self.clock.now)

    @asynccontextmanager
    async def runtime(self, *skills: Skill, **options: Any) -> AsyncIterator[Runtime]:
        async with Runtime(self.store, skills=skills, clock=self.clock, **options) as rt:
            yield rt

    async def crash(self, skill: Skill, inputs: dict[str, Any] | None = None, *, when: When, after: bool = True, resume: str | None = None, **options: Any) -> str:
        """Invokes (or resumes) in a process that dies at the named commit; gives the run's id. It must have got that far."""
        connection = Dying(self.store, when, after=after)
        rt = Runtime(connection, skills=[skill], clock=self.clock)  # type: ignore[arg-type]
        await rt.__aenter__()
        try:
            await (rt.invoke(skill, inputs or {}) if resume is None else rt.resume(resume, **options))  # type: ignore[call-overload]
        except Crash:
            pass
        finally:
            fall_silent(rt)
        assert connection.gone, "the process was to die, and lived"
        self.store.abandon(rt.owner)
        return await self.newest()

    async def newest(self) -> str:
        """The run that was made last."""
        return (await self.store.runs(RunFilter(limit=1)))[0][0].run_id

    async def ended(self) -> bool:
        """Whether any run is completed, as the store has it."""
        return bool(await self.store.runs(RunFilter(statuses=(Status.COMPLETED,))))

    async def recovered(self, *skills: Skill) -> Run[Any]:
        """What a new process makes of what the dead one left."""
        async with self.runtime(*skills) as rt:
            done = await rt.recover()
            assert len(done) == 1
            return done[0]

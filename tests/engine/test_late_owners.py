"""§10.6, X-18: an owner that lives and is late is not one that died. What makes its owners late comes to its end all the same, or says so."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from holdfast import Context, Runtime, flow
from holdfast.core.errors import HoldfastError
from holdfast.stores import MemoryStore
from holdfast.testing import VirtualClock

LEASE = 30.0
MOST = 15


class Shared(MemoryStore):
    """Several runtimes of one process share it: it outlives them."""

    async def close(self) -> None:
        """Nothing: others go on with it."""


class Handed:
    """A run that goes from one runtime to the next, each of which lives: its code keeps the interpreter for ``leases`` at every entry."""

    def __init__(self, leases: float) -> None:
        self.clock = VirtualClock()
        self.leases, self.entries = leases, 0
        self.runtimes: list[Runtime] = []
        self.drives: list[asyncio.Future[Any]] = []

    async def hold(self, run_id: str) -> None:
        """Time passes and no renewal does; then the next one takes the run over, where the lease let it."""
        self.entries += 1
        self.clock.advance(LEASE * self.leases)
        entered = self.entries
        other = asyncio.ensure_future(self.runtimes[self.entries].resume(run_id, wait=False))
        self.drives.append(other)
        while self.entries == entered and not other.done():
            await asyncio.wait([other], timeout=0.001)

    async def go(self) -> Any:
        held = self

        @flow("greedy")
        async def greedy(ctx: Context) -> str:
            await held.hold(ctx.run_id)
            return await ctx.step(str, "done")

        store = Shared(now=self.clock.now)
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(MOST):
                self.runtimes.append(await stack.enter_async_context(Runtime(store, skills=[greedy], clock=self.clock, lease=LEASE)))
            rt = self.runtimes[0]
            run = await rt.submit("greedy")
            self.drives.append(asyncio.ensure_future(rt.resume(run.run_id)))
            ended = 0
            while ended < len(self.drives):
                for error in await asyncio.gather(*self.drives[ended:], return_exceptions=True):
                    ended += 1
                    assert not isinstance(error, BaseException) or isinstance(error, HoldfastError), error
            return await rt.get(run.run_id), await rt.events(run.run_id)


@pytest.mark.parametrize(("leases", "entries"), [(0.9, 1), (1.75, 2), (3.0, 3), (7.5, 4)])
async def test_a_run_that_makes_its_owners_late_comes_to_its_end(leases: float, entries: int) -> None:
    """Each owner after a late one holds its lease twice as long, so that the run does not go round for ever; nobody has died."""
    handed = Handed(leases)
    async with asyncio.timeout(30):
        run, events = await handed.go()
    assert (run.condition, run.result) == ("done", "done"), run.error
    assert handed.entries == entries
    taken = [e.payload for e in events if e.type == "attempt.taken_over"]
    assert [(t["takeovers"], t["late"]) for t in taken] == [(0, n) for n in range(1, entries)]
    assert run.record.takeovers == 0


async def test_a_run_that_is_late_for_ever_says_so() -> None:
    """Ten owners that were late are enough; none of them is said to have died."""
    handed = Handed(100.0)
    async with asyncio.timeout(30):
        run, _ = await handed.go()
    assert (run.condition, run.stop_reason) == ("failed", "lease_too_short")
    assert "died" not in run.error.message and "late" in run.error.message

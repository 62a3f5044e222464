"""Whoever tells drivers of news looks at nothing that merely exists (issue «Speed», 6)."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from holdfast.core.errors import StoreClosed
from holdfast.engine.base.services import STALE, Drivers
from holdfast.stores.memory import MemoryStore
from tests.engine.support import FakeClock


class Fake:
    """A driver that counts how often it is told of news."""

    def __init__(self, due: int | None) -> None:
        self.deadline = due
        self.nudges = 0
        self.nudged = asyncio.Event()

    def nudge(self) -> None:
        self.nudges += 1
        self.nudged.set()

    def drain(self) -> None: ...

    def broke(self, error: BaseException) -> None:
        raise error


@pytest.mark.parametrize("many", [10, 300])
async def test_a_change_costs_nothing_for_runs_that_merely_exist(many: int) -> None:
    clock = FakeClock()
    store = MemoryStore(now=clock.now)
    await store.open()
    drivers = Drivers(store, clock, lambda: "me")
    soon, later = Fake(clock.now() + 1_000_000), [Fake(clock.now() + 10**12) for _ in range(many)]
    with ExitStack() as stack:
        for n, fake in enumerate(later):
            stack.enter_context(drivers.on(f"later{n}", fake, fake.deadline))
        stack.enter_context(drivers.on("soon", soon, soon.deadline))
        clock.at += 1_000_000
        await store.register("another", 1)
        async with asyncio.timeout(60):
            await soon.nudged.wait()
        assert sum(f.nudges for f in later) == 0
    await store.close()


async def test_the_newest_deadline_counts() -> None:
    """One that was put off falls due then, one that is gone never; and what is stale is let go."""
    clock = FakeClock()
    store = MemoryStore(now=clock.now)
    await store.open()
    drivers = Drivers(store, clock, lambda: "me")
    put_off, gone, marker = Fake(clock.now() + 1), Fake(clock.now() + 1), Fake(clock.now() + 2)
    with drivers.on("put_off", put_off, put_off.deadline), drivers.on("gone", gone, gone.deadline), drivers.on("marker", marker, marker.deadline):
        for n in range(3 * STALE):
            drivers.expect("put_off", clock.now() + 10_000_000 + n)
        drivers.expect("gone", None)
        drivers.expect("gone", None)
        clock.at += 5
        async with asyncio.timeout(60):
            await marker.nudged.wait()
        assert (put_off.nudges, gone.nudges, marker.nudges) == (0, 0, 1)
        clock.at += 20_000_000
        async with asyncio.timeout(60):
            await put_off.nudged.wait()
        assert (put_off.nudges, gone.nudges) == (1, 0)
    await store.close()


class Told(Fake):
    """A driver that notes what it is stopped with, and ends when it likes."""

    error: BaseException | None = None

    def broke(self, error: BaseException) -> None:
        self.error = error


async def test_a_close_lasts_until_the_last_run_is_let_go() -> None:
    """Each driver is stopped with the error at once; the close returns when all of them have ended, and not before."""
    clock = FakeClock()
    store = MemoryStore(now=clock.now)
    await store.open()
    drivers = Drivers(store, clock, lambda: "me")
    one, other, closed = Told(None), Told(None), StoreClosed()
    with drivers.on("other", other, None):
        with drivers.on("one", one, None):
            closing = asyncio.ensure_future(drivers.close(closed))
            await asyncio.sleep(0)
            assert [type(e) for e in (one.error, other.error)] == [StoreClosed] * 2 and one.error is not other.error, "of one error each would show the frames of all"
        await asyncio.sleep(0)
        assert not closing.done()
    async with asyncio.timeout(60):
        await closing
    await store.close()

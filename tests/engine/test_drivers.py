"""Whoever tells drivers of news looks at nothing that merely exists (issue «Speed», 6)."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from holdfast.core.errors import HoldfastError, StoreClosed
from holdfast.engine.base.services import STALE, Drivers, Written
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

    @property
    def journal(self) -> Written:
        raise AssertionError("nothing is written here")

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


class Ledger:
    """What is written of a run: nothing more, once it is stopped."""

    def __init__(self) -> None:
        self.quiet = asyncio.Event()
        self.stopped: HoldfastError | None = None

    def stop(self, error: HoldfastError) -> None:
        self.stopped = error


class Late(Told):
    """A driver that does not end when it is told to."""

    def __init__(self) -> None:
        super().__init__(None)
        self.ledger = Ledger()

    @property
    def journal(self) -> Ledger:
        return self.ledger


async def test_what_enters_after_a_close_is_stopped_and_what_outlasts_it_is_written_no_more() -> None:
    """What acts outside still may say how that ended (§6.5)."""
    clock = FakeClock()
    store = MemoryStore(now=clock.now)
    await store.open()
    drivers = Drivers(store, clock, lambda: "me")
    drivers.taken.take("idle")
    closing = asyncio.ensure_future(drivers.close(StoreClosed()))
    await asyncio.sleep(0)
    with pytest.raises(StoreClosed):
        drivers.taken.take("another")
    idle, acting = Late(), Late()
    idle.ledger.quiet.set()
    with drivers.on("idle", idle, None), drivers.on("acting", acting, None):
        assert [type(e) for e in (idle.error, acting.error)] == [StoreClosed] * 2
        await asyncio.sleep(0)
        assert not closing.done()
        drivers.abandon()
        assert [type(late.ledger.stopped) for late in (idle, acting)] == [StoreClosed, type(None)]
    async with asyncio.timeout(60):
        await closing
    await store.close()

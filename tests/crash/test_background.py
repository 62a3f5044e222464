"""What goes on beside the runs: the worker's loop and the renewals (X-14, T-79, T-80, X-13)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.crash.worlds import line, stage

from holdfast import Context, Runtime, flow
from holdfast.core.errors import StoreError
from holdfast.stores import MemoryStore
from holdfast.testing import Fault, World


def test_an_idle_worker_sleeps(holdfast_world: World) -> None:
    """§10.16: between two changes a worker waits; a minute of nothing costs two looks a second and no more."""

    async def story() -> int:
        host = await holdfast_world.host(line())
        host.start(host.rt.worker())
        await holdfast_world.clock.sleep(60)
        return host.connection.writes.count("claim")

    assert 60 <= holdfast_world.run(story()) <= 140


def test_a_worker_with_work_sleeps_too(holdfast_world: World) -> None:
    """While a run takes its time the worker does not ask the store in a circle."""
    stage.enter(holdfast_world)
    graph = line()

    @graph.node(after="third")
    async def long(state: Any) -> None:
        await holdfast_world.clock.sleep(30)

    async def story() -> int:
        host = await holdfast_world.host(graph)
        host.start(host.rt.worker())
        await host.do(host.rt.submit(graph, {"name": "Ada"}))
        await holdfast_world.clock.sleep(30)
        return host.connection.writes.count("claim")

    assert holdfast_world.run(story()) <= 100


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.APPLIED])
def test_a_store_that_fails_ends_the_worker(holdfast_world: World, fault: Fault) -> None:
    """X-14: an exception in the worker's loop is not swallowed: the worker ends with it."""

    async def story() -> None:
        host = await holdfast_world.host(line(), plan=lambda n, verb: fault if n > 5 and verb == "claim" else None)
        await asyncio.wait_for(host.do(host.rt.worker()), 60)

    with pytest.raises(StoreError):
        holdfast_world.run(story())


class Blind(MemoryStore):
    """Cannot say which runs have news, so many times."""

    times = 0
    error: Exception = StoreError("it cannot be read")
    asked = 0

    def __init__(self) -> None:
        super().__init__()
        self.looked = asyncio.Event()

    async def marked(self, owner: str) -> list[str]:
        self.asked += 1
        self.looked.set()
        if self.times:
            self.times -= 1
            raise self.error
        return await super().marked(owner)


@flow("long")
async def long_flow(ctx: Context) -> None:
    await asyncio.Event().wait()


async def test_a_watch_that_meets_a_failing_store_goes_on_when_it_is_well() -> None:
    """X-14: errors of the store while a run is driven do not make its owner deaf to a cancel."""
    store = Blind()
    store.times = 3
    async with Runtime(store, skills=[long_flow]) as owner, Runtime(store) as other:
        driving = asyncio.ensure_future(owner.invoke(long_flow, thread_id="t"))
        await asyncio.wait_for(store.looked.wait(), 20)
        await other.cancel((await other.runs(thread_id="t"))[0].run_id)
        assert (await asyncio.wait_for(driving, 20)).status == "canceled"
        assert store.asked > 3


async def test_a_watch_that_breaks_takes_its_runs_with_it() -> None:
    """X-14: the process does not go on half-dead, deaf to cancels: the run stops with the error, and the log says so."""
    store = Blind()
    store.times, store.error = 1_000, RuntimeError("a mistake in the watch")
    async with Runtime(store, skills=[long_flow]) as rt:
        with pytest.raises(RuntimeError, match="a mistake in the watch"):
            await asyncio.wait_for(rt.invoke(long_flow, thread_id="t"), 20)
        (left,) = await rt.runs(thread_id="t")
        assert left.condition == "interrupted" and left.lease.owner is None
        assert "a mistake in the watch" in str([e.payload for e in await rt.events(left.run_id)])

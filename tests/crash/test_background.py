"""What goes on beside the runs: the worker's loop and the renewals (X-14, T-79, T-80, X-13)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.crash.worlds import line, stage

from holdfast.core.errors import StoreError
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

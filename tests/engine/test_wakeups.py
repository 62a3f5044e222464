"""A wake-up is only a hint: the truth is found by query (§1.5, §10.16)."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Graph, Runtime, State
from holdfast.ports import ANYTHING, News
from holdfast.stores.memory import MemoryStore


class Deaf(MemoryStore):
    """No wake-up ever arrives: whoever waits comes back by itself."""

    async def wait_for_change(self, timeout: float, about: News = ANYTHING) -> News:
        await asyncio.sleep(0)
        return about


class Nervous(MemoryStore):
    """Every wake-up arrives many times: nobody is ever let to wait."""

    async def wait_for_change(self, timeout: float, about: News = ANYTHING) -> News:
        for _ in range(3):
            await super().wait_for_change(0, about)
        return about


class Count(State):
    n: int = 0


def counting(steps: int) -> Graph[Count]:
    graph = Graph("count", Count)

    async def add(state: Count) -> dict[str, int]:
        return {"n": state.n + 1}

    for i in range(steps):
        graph.node(f"s{i}", start=i == 0, after=None if i == 0 else f"s{i - 1}")(add)
    return graph


@pytest.mark.parametrize("kind", [Deaf, Nervous, MemoryStore])
async def test_a_follower_sees_every_event_once(kind: type[MemoryStore]) -> None:
    """T-18: with all notifications dropped or doubled, whoever asks by number misses nothing and sees nothing twice."""
    graph = counting(20)
    async with Runtime(kind(), skills=[graph]) as rt:
        run = await rt.submit(graph, {})

        async def follow() -> list[int]:
            return [e.seq async for e in rt.events(run.run_id, follow=True)]

        follower = asyncio.ensure_future(follow())
        await rt.worker(until_idle=True)
        seen = await asyncio.wait_for(follower, 10)
        done = await rt.get(run.run_id)
    assert done.state.n == 20
    assert seen == list(range(1, done.version + 1))

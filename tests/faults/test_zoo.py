"""The zoo: each kind of misbehaviour against `invoke`, and against a worker with ten healthy runs beside it (X-24)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Context, Graph, Runtime, State
from holdfast.engine.calls import functions
from holdfast.stores import MemoryStore
from tests.faults.zoo import KINDS, RELEASE, Kind

pytestmark = [pytest.mark.filterwarnings("ignore:coroutine .* was never awaited"), pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]


class Well(State):
    n: int = 0


def healthy() -> Graph[Well]:
    graph = Graph("healthy", Well)

    @graph.node(start=True)
    async def one(state: Well, ctx: Context) -> dict[str, int]:
        await ctx.step(asyncio.sleep, 0)
        return {"n": state.n + 1}

    @graph.node(after="one")
    def two(state: Well) -> dict[str, int]:
        return {"n": state.n + 1}

    return graph


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What swallows its cancel is abandoned soon; threads that were left running are let go of, and nothing goes on tracing."""
    monkeypatch.setattr(functions, "CLEANUP_SECONDS", 0.05)
    RELEASE.clear()
    traced, profiled = sys.gettrace(), sys.getprofile()
    yield
    sys.settrace(traced)
    sys.setprofile(profiled)
    RELEASE.set()


def test_the_zoo_is_large_enough() -> None:
    assert len(KINDS) >= 60


async def ended(rt: Runtime, kind: Kind, run: Any) -> None:
    assert run.status == kind.ends, (kind.name, run.status, run.stop_reason, run.error)
    if kind.ends == "failed":
        assert run.error is not None
        assert run.stop_reason not in (None, "takeover_limit")
    types = [e.type for e in await rt.events(run.run_id)]
    assert "attempt.taken_over" not in types and "run.handed_back" not in types


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
async def test_invoke(kind: Kind) -> None:
    async with asyncio.timeout(60), Runtime(MemoryStore(), skills=[graph := kind.make()]) as rt:
        await ended(rt, kind, await rt.invoke(graph, {}))
        assert (await rt.invoke(healthy(), {})).state.n == 2
        RELEASE.set()


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
async def test_worker(kind: Kind) -> None:
    good = healthy()
    async with asyncio.timeout(60), Runtime(MemoryStore(), skills=[graph := kind.make(), good]) as rt:
        odd = await rt.submit(graph, {})
        runs = [await rt.submit(good, {}) for _ in range(10)]
        await rt.worker(until_idle=True)
        assert [(await rt.get(r.run_id)).state.n for r in runs] == [2] * 10
        await ended(rt, kind, await rt.get(odd.run_id))
        RELEASE.set()

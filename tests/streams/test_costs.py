"""What a stream costs, counted on a clock that is moved: nothing where nothing is emitted, and at most one write in 50 ms where it is."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from holdfast import Context, Graph, Runtime, State
from holdfast.core.chunks import Emitted
from holdfast.core.commit import Commit, Tip
from holdfast.core.errors import StoreUnavailable
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import VirtualClock, run_virtual


class Counting(MemoryStore):
    """Notes when it is written to; ``down``: what is emitted cannot be kept."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(now=clock.now)
        self.clock = clock
        self.commits: list[Commit] = []
        self.emitted: list[tuple[float, list[Emitted]]] = []
        self.down = False

    async def commit(self, commit: Commit) -> Tip:
        self.commits.append(commit)
        return await super().commit(commit)

    async def emit(self, emitted: Any) -> None:
        self.emitted.append((self.clock.monotonic(), list(emitted)))
        if self.down:
            raise StoreUnavailable("the disk is away")
        await super().emit(emitted)


class Empty(State):
    n: int = 0


def talkers(clock: VirtualClock, chunks: int, every: float, steps: int = 3) -> Graph[Empty]:
    graph = Graph("talkers", Empty)

    async def talk(state: Empty, ctx: Context) -> dict[str, Any]:
        for n in range(chunks):
            ctx.emit(n)
            await clock.sleep(every)
        return {"n": state.n + chunks}

    for i in range(steps):
        graph.node(f"s{i}", start=i == 0, after=None if i == 0 else f"s{i - 1}")(talk)
    return graph


def driven(chunks: int, every: float, runs: int = 1, down: bool = False) -> tuple[Counting, list[Any]]:
    clock = VirtualClock()
    store = Counting(clock)
    store.down = down

    async def world() -> list[Any]:
        graph = talkers(clock, chunks, every)
        async with Runtime(store, skills=[graph], clock=clock) as rt:
            for _ in range(runs):
                await rt.submit(graph, {})
            await rt.worker(until_idle=True, concurrency=runs)
            return await rt.runs(limit=100)

    return store, run_virtual(world(), clock=clock)


def test_a_run_that_emits_nothing_writes_nothing_more() -> None:
    plain, _ = driven(0, 0.01)
    assert plain.emitted == [] and all(c.emitted is None for c in plain.commits)


@pytest.mark.parametrize("every", [0.001, 0.01, 0.2])
def test_a_run_that_nobody_reads_costs_at_most_one_write_in_50_ms_while_it_emits(every: float) -> None:
    quiet, _ = driven(0, every)
    store, runs = driven(100, every)
    assert runs[0].state.n == 300
    assert len(store.commits) == len(quiet.commits), "what is pending rides with the commits that there are"
    times = [at for at, _ in store.emitted]
    assert times and all(b - a >= 0.05 - 1e-6 for a, b in itertools.pairwise(times))
    assert len(times) <= 300 * every / 0.05 + 3


def test_many_runs_share_that_write() -> None:
    store, runs = driven(100, 0.01, runs=20)
    assert [r.state.n for r in runs] == [300] * 20
    times = [at for at, _ in store.emitted]
    assert all(b - a >= 0.05 - 1e-6 for a, b in itertools.pairwise(times)) and max(len(e) for _, e in store.emitted) == 20


def test_steps_that_end_at_once_cost_no_write_of_their_own() -> None:
    store, _ = driven(1, 0.0)
    assert store.emitted == [] and sum(c.emitted is not None for c in store.commits) == 3


def test_a_store_that_keeps_no_chunks_fails_no_run() -> None:
    store, runs = driven(100, 0.01, down=True)
    assert store.emitted and runs[0].status == "completed" and runs[0].state.n == 300

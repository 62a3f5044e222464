"""A simulated world sees every write, by whatever verb the store takes it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast import Graph, State
from holdfast.core import events as ev
from holdfast.stores import SqliteStore
from holdfast.testing import VirtualClock
from holdfast.testing.world import Host, World

STEPS = 5


class Line(State):
    n: int = 0


def line() -> Graph[Line]:
    graph = Graph("line", Line, version="1")

    async def add(state: Line) -> dict[str, int]:
        return {"n": state.n + 1}

    for n in range(STEPS):
        graph.node(f"s{n}", start=n == 0, after=f"s{n - 1}" if n else None)(add)
    return graph


def list_ends(world: World, run_id: str) -> list[int]:
    return [e.fact.step for _, commit in world.order if commit.run.run_id == run_id for e in commit.events if isinstance(e.fact, ev.StepEnded)]


def test_a_world_over_a_file_sees_the_steps_that_runs_write_alone_and_together(tmp_path: Path) -> None:
    """A run alone writes a step at once; of runs beside each other the store writes the steps of all."""
    clock = VirtualClock()
    world, graph = World(SqliteStore(tmp_path / "runs.db", now=clock.now), clock=clock), line()

    async def go(host: Host) -> list[str]:
        alone = await host.do(host.rt.invoke(graph, {}))
        both = await asyncio.gather(*(host.do(host.rt.invoke(graph, {})) for _ in range(2)))
        return [alone.run_id, *(run.run_id for run in both)]

    async def play() -> None:
        await world.store.open()
        host = await world.host(graph)
        for run_id in await go(host):
            assert list_ends(world, run_id) == [*range(1, STEPS + 1)]
        await world.assert_whole()
        assert {"join", "step_at_once"} & {*host.connection.writes}, "the store takes steps by verbs of their own"
        await host.close()
        await world.store.close()

    world.run(play())

"""The same rules in one process and in many (§10.7): lanes, and what becomes of the rest when a step fails."""

from __future__ import annotations

import itertools
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, State, append
from holdfast.core.run import Run
from holdfast.testing import World
from holdfast.testing.plays import PLAYS, STAGE

LINE = PLAYS["line"].skill


@pytest.mark.parametrize(("workers", "concurrency"), [(1, 1), (1, 4), (2, 1), (3, 2)])
def test_runs_of_one_lane_never_overlap_whoever_works(workers: int, concurrency: int, each_world: World) -> None:
    """T-81, §10.7, §10.8: a lane is held by a run, not by a worker: the same owner does not get it twice."""
    world = each_world
    STAGE.world = world

    async def story() -> list[Run]:
        await world.store.open()
        client = await world.host(LINE)
        ids = [(await client.do(client.rt.submit(LINE, {"name": name}, session_key="desk"))).run_id for name in ("Ada", "Bob", "Eve")]
        apart = [(await client.do(client.rt.submit(LINE, {"name": name}))).run_id for name in ("Joe", "Kim")]
        for _ in range(workers):
            host = await world.host(LINE)
            host.start(host.rt.worker(concurrency=concurrency))
        await world.clock.sleep(60)
        await world.assert_whole()  # lane_overlap and lane_order are among what it looks for
        found = [await world.store.get(run_id) for run_id in (*ids, *apart)]
        return [f[0] for f in found if f is not None]

    runs = world.run(story())
    assert [r.status for r in runs] == ["completed"] * 5
    spans = [(r.started_at or 0, r.finished_at or 0) for r in runs[:3]]
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    if workers * concurrency > 1:
        begun, ended = zip(*[(r.started_at or 0, r.finished_at or 0) for r in runs], strict=True)
        assert any(b < e for b, e in zip(begun[3:], ended[:1] * 2, strict=True)), "other lanes do not wait for it"


class S(State):
    items: Annotated[list[str], append]


def test_a_failed_run_begins_nothing_more(each_world: World) -> None:
    """T-87: siblings that had finished stay finished, those that waited for the failed one never begin, and nothing stays claimed."""
    graph = Graph("breaks", S)

    @graph.node(start=True)
    async def quick(state: S, ctx: Context) -> dict[str, Any]:
        return {"items": "quick"}

    @graph.node(start=True)
    async def breaks(state: S, ctx: Context) -> dict[str, Any]:
        await world.clock.sleep(1)
        raise ValueError("no")

    graph.node("after_quick", after="quick")(lambda state: {"items": "after quick"})
    graph.node("after_both", after=["quick", "breaks"])(lambda state: {"items": "after both"})
    world = each_world

    async def story() -> None:
        await world.store.open()
        host = await world.host(graph)
        run = await host.do(host.rt.submit(graph, {}))
        host.start(host.rt.worker(concurrency=4))
        await world.clock.sleep(30)
        reader = await world.host(graph)
        done = await reader.rt.get(run.run_id)
        assert (done.status, done.condition, done.stop_reason) == ("failed", "failed", "step_failed")
        assert done.error is not None and done.error.where == "breaks"
        by_type: dict[str, list[str]] = {}
        for event in await reader.rt.events(run.run_id):
            if event.event_type.startswith("step."):
                by_type.setdefault(event.event_type, []).append(event.payload["task"])
        assert by_type == {"step.started": ["quick", "breaks"], "step.completed": ["quick"], "step.failed": ["breaks"]}
        assert (await reader.rt.checkpoint(run.run_id)).pending_tasks == ("quick", "breaks"), "kept for a resume, not queued"
        assert done.lease.owner is None and done.lease.due is None, "nobody will claim it"
        assert await reader.rt.waits() == []
        await world.assert_whole()

    world.run(story())

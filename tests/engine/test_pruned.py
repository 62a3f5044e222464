"""X-06: prune, then go on with what failed: no second effect, whichever half of it was pruned (§6.10)."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Runtime, State
from holdfast.core.errors import RequestConflict, RunNotFound, RunPruned
from holdfast.stores import open_url
from tests.engine.outside import Clock, Crash, House, World
from tests.postgres.server import shared

DAY = 86_400.0


class Job(State):
    text: str = "a"
    receipt: str = ""


class Office:
    """Uploads, then fails for as long as ``broken`` is set."""

    def __init__(self) -> None:
        self.world = World()
        self.broken = True

    def graph(self, key: str | None = None, *, replay: str | None = None) -> Graph[Job]:
        graph = Graph("job", Job, version="1")

        @graph.node(start=True)
        async def send(state: Job, ctx: Context) -> dict[str, Any]:
            return {"receipt": await ctx.effect(self.world.upload, state.text, key=key, replay=replay)}

        @graph.node(after="send")
        async def file(state: Job, ctx: Context) -> None:
            if self.broken:
                raise RuntimeError("the archive is shut")

        return graph


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    h = House(request.param, tmp_path)
    yield h
    await h.close()


async def pruned(rt: Runtime, days: float) -> tuple[str, ...]:
    return (await rt.prune(dt.timedelta(days=days))).run_ids


async def test_what_is_younger_is_resumed_from_its_records(house: House) -> None:
    """X-06: the failed run was not old enough: its effect is on record, and resuming it does not repeat it."""
    office = Office()
    graph = office.graph()
    rt = await house.process(graph)
    old = await rt.invoke(graph, {"text": "old"})
    house.clock.forward(10 * DAY)
    run = await rt.invoke(graph, {"text": "new"})
    assert await pruned(rt, 5) == (old.run_id,)
    office.broken = False
    run = await rt.resume(run.run_id, acknowledge=run.stop_reason)
    assert (run.status, office.world.done) == ("completed", ["old", "new"])


async def test_what_was_pruned_is_not_resumed(house: House) -> None:
    """X-06: the failed run was old enough: there is nothing left that could resume, replay or fork, and nothing is done."""
    office = Office()
    graph = office.graph()
    rt = await house.process(graph)
    run = await rt.invoke(graph, {})
    house.clock.forward(10 * DAY)
    assert await pruned(rt, 5) == (run.run_id,)
    office.broken = False
    for again in (rt.resume(run.run_id, acknowledge=run.stop_reason), rt.replay(run.run_id), rt.fork(run.run_id)):
        with pytest.raises(RunNotFound):
            await again
    assert office.world.done == ["a"]
    assert (await rt.check()).ok


@pytest.mark.parametrize("youngest", ["replay", "fork", "resumed"])
async def test_a_lineage_goes_whole_or_not_at_all(house: House, youngest: str) -> None:
    """§6.10: one young run keeps its forebears' effects, whichever way it came of them: nothing is done twice."""
    office = Office()
    graph = office.graph()
    rt = await house.process(graph)
    source = await rt.invoke(graph, {})
    house.clock.forward(10 * DAY)
    match youngest:
        case "replay":
            later = await rt.replay(source.run_id)
        case "fork":
            later = await rt.fork(source.run_id, from_step="send")
        case _:
            later = await rt.resume(source.run_id, acknowledge=source.stop_reason)
    assert later.status == "failed"
    assert await pruned(rt, 5) == ()
    office.broken = False
    later = await rt.resume(later.run_id, acknowledge=later.stop_reason)
    assert (later.status, later.state.receipt, office.world.done) == ("completed", "receipt 1", ["a"])
    house.clock.forward(10 * DAY)
    assert source.run_id in await pruned(rt, 5)
    assert await rt.store.effects() == []


@pytest.mark.parametrize("same", [True, False], ids=["same", "other"])
async def test_a_shared_key_outlives_its_run(house: House, same: bool) -> None:
    """§6.10, T-45, T-41: the tombstone answers a later run under the key, or refuses it other arguments; it never acts again."""
    office = Office()
    graph = office.graph(key="order-42")
    rt = await house.process(graph)
    first = await rt.invoke(graph, {})
    house.clock.forward(10 * DAY)
    assert await pruned(rt, 5) == (first.run_id,)
    assert [(e.run_id, str(e.status)) for e in await rt.store.effects()] == [(first.run_id, "recorded")]
    office.broken = False
    run = await rt.invoke(graph, {"text": "a" if same else "b"})
    assert office.world.done == ["a"]
    if same:
        assert (run.status, run.state.receipt) == ("completed", "receipt 1")
        house.clock.forward(10 * DAY)
        assert await pruned(rt, 5) == (run.run_id,)
        assert (await rt.invoke(graph, {})).state.receipt == "receipt 1", "the second tombstone takes nothing from the first"
    else:
        assert run.record.error is not None
        assert run.record.error.code == "effect_conflict"


async def test_a_tombstone_asks_where_it_must(house: House) -> None:
    """§6.6: a policy that wants a person gets one, though the run that acted is gone."""
    office = Office()
    office.broken = False
    graph = office.graph(key="order-42", replay="require_human")
    rt = await house.process(graph)
    first = await rt.invoke(graph, {})
    house.clock.forward(10 * DAY)
    assert await pruned(rt, 5) == (first.run_id,)
    run = await rt.invoke(graph, {})
    assert (run.status, [w.kind for w in run.waits]) == ("waiting_for_human", ["gate"])
    run = await rt.approve(run.run_id)
    assert (run.status, run.state.receipt, office.world.done) == ("completed", "receipt 1", ["a"])


async def test_an_attempt_that_nobody_settled_keeps_its_lineage(house: House) -> None:
    """§6.5, §6.10: an unknown effect is not forgotten, however old: the run was ended by hand, the question stands."""
    office = Office()
    office.world.crash_at = 1
    graph = office.graph()
    rt = await house.process(graph)
    with pytest.raises(Crash):
        await rt.invoke(graph, {})
    house.kill(rt)
    rt = await house.process(graph)
    run = (await rt.recover())[0]
    await rt.decide(run.run_id, "halt")
    assert (await rt.get(run.run_id)).status == "canceled"
    house.clock.forward(10 * DAY)
    done = await rt.prune(dt.timedelta(days=5))
    assert (done.run_ids, done.kept) == ((), {run.run_id: "an effect or an intent is not settled"})


async def test_whoever_was_about_to_go_on_is_told(house: House) -> None:
    """§10.14: pruned between its load and its commit: refused by name, and nothing is left of it."""
    office = Office()
    graph = office.graph()
    rt, other = await house.process(graph), await house.process(graph)
    run = await rt.invoke(graph, {})
    house.clock.forward(10 * DAY)
    real = rt.store.load

    async def slow(run_id: str) -> Any:
        loaded = await real(run_id)
        await pruned(other, 5)
        return loaded

    rt.store.load = slow  # type: ignore[method-assign]
    try:
        with pytest.raises(RunNotFound):
            await rt.resume(run.run_id, acknowledge=run.stop_reason)
    finally:
        rt.store.load = real  # type: ignore[method-assign]
    assert await rt.runs() == []
    assert office.world.done == ["a"]


@pytest.mark.parametrize("url", ["memory:", "sqlite:///{folder}/runs.db", "workspace:{folder}/runs", "postgres"])
async def test_a_request_under_the_key_of_a_pruned_run_is_told_so(url: str, tmp_path: Path) -> None:
    """§3.5, §9.8: a key is kept for seven days, whether its run is or not; what it asked for is not done again."""
    clock = Clock()
    where = shared().fresh("pruned_keys") if url == "postgres" else url.format(folder=tmp_path)
    office = Office()
    office.broken = False
    graph = office.graph()
    async with Runtime(open_url(where, now=clock.now), skills=[graph], clock=clock) as rt:
        run = await rt.invoke(graph, {"text": "a"}, key="webhook-17")
        fork = await rt.fork(run.run_id, key="again")
        clock.forward(1)
        assert set(await pruned(rt, 0)) == {run.run_id, fork.run_id}
        for ask in (rt.submit, rt.invoke):
            with pytest.raises(RunPruned) as told:
                await ask(graph, {"text": "a"}, key="webhook-17")
            assert told.value.run_id == run.run_id
        with pytest.raises(RequestConflict):
            await rt.submit(graph, {"text": "b"}, key="webhook-17")
        assert office.world.done == ["a"] and await rt.check() == []
        clock.forward(7 * DAY)
        assert await pruned(rt, 0) == ()
        again = await rt.invoke(graph, {"text": "b"}, key="webhook-17")
        assert (again.status, again.deduplicated) == ("completed", False) and await rt.check() == []

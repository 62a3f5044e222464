"""Looking back costs what is looked at: each run of a thread once, and a state from the newest whole checkpoint on."""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated, Any

import pytest

from holdfast import Graph, Runtime, State, append, thread
from tests.engine.support import World


class Talk(State):
    said: Annotated[list[str], append, thread]
    text: str = ""


def talk() -> Graph[Talk]:
    graph = Graph("talk", Talk)

    @graph.node(start=True)
    async def hear(state: Talk) -> dict[str, Any]:
        return {"said": [state.text]}

    @graph.node(after="hear")
    async def answer(state: Talk) -> dict[str, Any]:
        return {"said": [f"{len(state.said)}: {'x' * 400}"]}

    return graph


class Counting:
    """One process's way to a store that counts what is asked of it, and the log rows that it is given."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)
        if name not in ("load", "rows"):
            return real

        async def call(*args: Any, **options: Any) -> Any:
            given = await real(*args, **options)
            self.asked[name] += 1
            self.asked["given"] += len(given) if name == "rows" else 0 if given is None else len(given.rows)
            return given

        return call


async def turns(world: World, graph: Graph[Talk], count: int) -> None:
    async with world.runtime(graph) as rt:
        for n in range(count):
            await rt.invoke(graph, {"text": str(n)}, thread_id="t")


@pytest.mark.parametrize("count", [10, 100])
async def test_the_history_of_a_thread_is_one_walk(count: int) -> None:
    """Each run's log is read once; none is gone back to for what the next one carries."""
    world, graph = World(), talk()
    await turns(world, graph, count)
    store = Counting(world.store)
    async with Runtime(store, skills=[graph], clock=world.clock) as rt:  # type: ignore[arg-type]
        store.asked.clear()
        found = await rt.history("t")
        assert (store.asked["rows"], store.asked["load"]) == (count, 0)
        assert [len(f["values"]["said"]) for f in found[-3:]] == [2 * count - 2, 2 * count - 1, 2 * count]
        assert [f["values"]["said"][-1][:5] for f in found[-1:]] == [f"{2 * count - 1}: {'x' * 40}"[:5]]
        store.asked.clear()
        page = await rt.history("t", limit=5, after=found[-6]["id"])
        assert page == found[-5:]
        assert store.asked["rows"] <= 4 and store.asked["given"] < 900


async def test_a_history_shares_what_its_checkpoints_have_in_common() -> None:
    """Issue «Speed», 6: thousands of turns are not copied as often as they have checkpoints; nobody can change one checkpoint through another."""

    class Notes(State):
        said: Annotated[list[dict[str, Any]], append, thread]
        text: str = ""

    graph = Graph("notes", Notes)

    @graph.node(start=True)
    async def hear(state: Notes) -> dict[str, Any]:
        return {"said": [{"text": state.text, "tags": ["a"]}]}

    @graph.node(after="hear")
    async def rest(state: Notes) -> dict[str, Any]:
        return {"text": "done"}

    world = World()
    async with world.runtime(graph) as rt:
        for n in range(3):
            await rt.invoke(graph, {"text": str(n)}, thread_id="t")
        found = await rt.history("t")
        said = [f["values"]["said"] for f in found]
        assert said[-1] is said[-2] and said[-1][0] is said[-3][0] and json.loads(json.dumps(found)) == found
        with pytest.raises(TypeError, match="read-only snapshot"):
            said[-1].append({})
        with pytest.raises(TypeError, match="read-only snapshot"):
            said[-1][0]["text"] = "other"
        found[-1]["values"]["text"] = "other"
        assert (await rt.history("t"))[-1]["values"]["text"] == "done" and found[-2]["values"]["text"] == "2"


async def test_a_state_begins_at_the_newest_whole_checkpoint() -> None:
    """A long run's newest states cost what came since, its oldest what came before."""
    graph = Graph("long", Talk)

    @graph.node(start=True, on=["text"])
    async def write(state: Talk) -> dict[str, Any] | None:
        n = int(state.text or 0)
        return {"text": str(n + 1), "said": ["x" * 1000]} if n < 330 else None

    world = World()
    async with world.runtime(graph) as rt:
        run = await rt.invoke(graph, {})
        points = await rt.checkpoints(run.run_id)
    store = Counting(world.store)
    async with Runtime(store, skills=[graph], clock=world.clock) as rt:  # type: ignore[arg-type]
        for point in (points[-1], points[-2], points[3], None):
            store.asked.clear()
            seen = await rt.checkpoint(run.run_id, None if point is None else point.checkpoint_id)
            assert seen == (point or points[-1])
            if point is not points[3]:
                assert store.asked["given"] < 300, "not the whole log"
            assert (await rt.state(run.run_id, seen.checkpoint_id)).said == seen.values["said"]

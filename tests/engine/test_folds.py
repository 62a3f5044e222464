"""Lists of runs that have not changed are not folded again, and show the same."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, State, append, thread
from holdfast.engine.look.looker import Looker, Wanted
from holdfast.engine.look.threads import Threads
from tests.statements import counting_statements


class Notes(State):
    said: Annotated[list[str], append, thread]
    go: int = 0


def notes() -> Graph[Notes]:
    graph = Graph("notes", Notes, version="1")

    @graph.node(start=True)
    async def write(state: Notes, ctx: Context) -> dict[str, Any]:
        return {"said": [f"note {state.go}"]}

    @graph.node(after="write")
    async def ask(state: Notes, ctx: Context) -> dict[str, Any]:
        await ctx.approve(f"Keep {state.go}?")
        return {"said": ["kept"]}

    return graph


@pytest.mark.parametrize("url", ["memory:", "sqlite:///{}/runs.db", "workspace:{}/runs"])
async def test_a_list_shows_what_a_fresh_look_shows(url: str, tmp_path: Path) -> None:
    """Through runs that begin, are answered, end, share a thread, and are pruned or not: at each moment the same as who looks for the first time."""
    graph = notes()
    async with Runtime(url.format(tmp_path), skills=[graph]) as rt:

        async def same() -> list[Any]:
            fresh = await Looker(rt.store, Threads(rt.store)).find(Wanted())
            for _ in range(2):
                found = await rt.look.find(Wanted())
                assert [(x.run, x.values) for x in found] == [(x.run, x.values) for x in fresh]
            return [dict(x.values).get("said") for x in fresh]

        runs = [await rt.invoke(graph, {"go": n}, thread_id=None if n < 3 else "t") for n in range(4)]
        assert await same() == [["note 3"], ["note 2"], ["note 1"], ["note 0"]]
        await rt.approve(runs[1].run_id)
        assert (await same())[2] == ["note 1", "kept"]
        await rt.approve(runs[3].run_id)
        await rt.invoke(graph, {"go": 4}, thread_id="t")
        assert (await same())[0] == ["note 3", "kept", "note 4"]


@pytest.mark.one_store("it counts SQLite's statements")
async def test_what_has_not_changed_is_not_read_again(tmp_path: Path) -> None:
    graph = notes()
    with counting_statements() as counts:
        async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[graph]) as rt:
            for n in range(6):
                await rt.invoke(graph, {"go": n})
            took = []
            for _ in range(3):
                before = counts["SELECT"] + counts["WITH"]
                assert len(await rt.look.find(Wanted())) == 6
                took.append(counts["SELECT"] + counts["WITH"] - before)
    assert took[1] == took[2] < took[0], took

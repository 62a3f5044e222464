"""``open_store``: a store by its URL, for tests that look at what is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Graph, Runtime, State
from holdfast.core.errors import UsageError
from holdfast.testing import VirtualClock, open_store


class Hello(State):
    name: str


GRAPH = Graph("hello", Hello)


@GRAPH.node(start=True)
async def greet(state: Hello) -> dict[str, str]:
    return {"name": state.name.upper()}


@pytest.mark.parametrize("url", ["sqlite:///{}/runs.db", "workspace:{}/space"])
async def test_it_opens_what_a_runtime_wrote(url: str, tmp_path: Path) -> None:
    async with Runtime(url.format(tmp_path), skills=[GRAPH]) as rt:
        run = await rt.invoke(GRAPH, {"name": "Ada"})
    async with open_store(url.format(tmp_path)) as store:
        loaded = await store.get(run.run_id)
        assert loaded is not None and loaded[0].skill_id == "hello"


async def test_it_may_be_awaited_and_closed_by_hand(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/runs.db")
    async with Runtime(store, skills=[GRAPH]) as rt:
        assert (await rt.invoke(GRAPH, {"name": "Ada"})).status == "completed"
    await store.close()


async def test_it_takes_a_clock() -> None:
    clock = VirtualClock()
    async with open_store("memory:", clock=clock) as store:
        before = store.now()
        clock.advance(60)
        assert store.now() - before == 60_000_000


def test_an_address_that_names_no_store_is_refused() -> None:
    with pytest.raises(UsageError, match="is not the URL of a store"):
        open_store("mongodb://here")

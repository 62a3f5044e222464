"""A channel that grows beyond its bound is refused at the write that does it (§14.3)."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from holdfast import Graph, State, append, merge, window
from holdfast.core import channels
from holdfast.engine.drive import driver, executor
from holdfast.named import CheckpointStore
from tests.engine.support import World

BOUND = 200_000
PIECE = 5_000


class Grown(State):
    items: Annotated[list[str], append]
    book: Annotated[dict[str, str], merge]
    few: Annotated[list[str], window(3)]
    n: int = 0


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "GROWN_BYTES", BOUND)
    for module in (executor, driver):
        monkeypatch.setattr(module, "ROOM", BOUND // 2)


def line(steps: int, **writes: Any) -> Graph[Grown]:
    graph = Graph("line", Grown)

    @graph.node(start=True, on=["n"])
    async def grow(state: Grown) -> dict[str, Any] | None:
        if state.n == steps:
            return None
        return {"n": state.n + 1, **{name: make(state.n) for name, make in writes.items()}}

    return graph


@pytest.mark.parametrize(("name", "make"), [
    ("items", lambda n: "x" * PIECE),
    ("items", lambda n: ["x" * (PIECE // 2)] * 2),
    ("book", lambda n: {f"k{n}": "x" * PIECE}),
    ("book", lambda n: {f"k{n}": "x" * PIECE, "same": str(n)}),
])
async def test_many_small_writes(name: str, make: Any) -> None:
    """Each is far below any bound; the one that brings the channel beyond its own fails its step, and what was there stays."""
    graph = line(100, **{name: make})
    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph, {})
        assert (run.status, run.stop_reason) == ("failed", "too_large") and name in run.error.message
        assert run.values["n"] == BOUND // PIECE - 1 and run.error.type.endswith("TooLarge")
        again = await rt.resume(run.run_id, acknowledge="too_large")
        assert (again.status, again.values["n"]) == ("failed", run.values["n"]), "as long as nobody makes room"
        empty: Any = {} if name == "book" else []
        await CheckpointStore(rt).save_checkpoint(run.run_id, {name: empty}, actor="ada", reason="make room")
        assert (await rt.resume(run.run_id, acknowledge="too_large")).values["n"] > run.values["n"]


@pytest.mark.parametrize(("name", "make"), [
    ("few", lambda n: "x" * (BOUND // 5)),
    ("book", lambda n: {"same": "x" * (BOUND // 5)}),
    ("few", lambda n: ["x" * (BOUND // 20)] * 9),
])
async def test_what_is_forgotten_weighs_nothing(name: str, make: Any) -> None:
    graph = line(30, **{name: make})
    async with World().runtime(graph) as rt:
        assert (await rt.invoke(graph, {})).status == "completed"


async def test_writers_beside_each_other() -> None:
    """None of them alone, all of them together: the barrier refuses it."""
    graph = Graph("wide", Grown)
    for number in range(10):

        @graph.node(name=f"w{number}", start=True)
        async def write(state: Grown) -> dict[str, Any]:
            return {"items": ["x" * (BOUND // 8)]}

    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph, {})
        assert (run.status, run.stop_reason, list(run.values["items"])) == ("failed", "too_large", [])

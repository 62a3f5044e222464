"""An empty list of ``Send``s is a fan-out of nothing: what comes after it runs (§4.3, §4.17)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest

from holdfast import Context, Goto, Graph, Send, State, append, last
from tests.engine.support import World


class Jobs(State):
    items: Annotated[list[int], last] = []  # noqa: RUF012
    done: Annotated[list[str], append]


def work_and_join(graph: Graph[Jobs], **options: Any) -> Graph[Jobs]:
    @graph.node
    async def work(state: Jobs, ctx: Context) -> dict[str, Any]:
        return {"done": [f"work {ctx.payload}"]}

    @graph.node(**(options or {"after": "work"}))
    async def join(state: Jobs) -> dict[str, Any]:
        return {"done": ["join"]}

    return graph


def by_node() -> Graph[Jobs]:
    graph = Graph("jobs", Jobs)

    @graph.node(start=True)
    async def split(state: Jobs) -> list[Send]:
        return [Send("work", n) for n in state.items]

    return work_and_join(graph)


def by_tuple_in_a_helper() -> Graph[Jobs]:
    graph = Graph("jobs", Jobs)

    @graph.node(start=True)
    def split(state: Jobs) -> tuple[Send, ...]:
        return sent(state.items)

    return work_and_join(graph)


def sent(items: list[int]) -> tuple[Send, ...]:
    return tuple(Send("work", n) for n in items)


def by_router() -> Graph[Jobs]:
    graph = Graph("jobs", Jobs)

    @graph.node(start=True)
    async def split(state: Jobs) -> None:
        return None

    graph.branch("split", lambda state: [Send("work", n) for n in state.items])
    return work_and_join(graph)


def beside_an_edge() -> Graph[Jobs]:
    graph = Graph("jobs", Jobs)

    @graph.node(start=True)
    async def split(state: Jobs) -> list[Send]:
        return [Send("work", n) for n in state.items]

    return work_and_join(graph, after=["split", "work"])


def inside_a_sub_flow() -> Graph[Jobs]:
    graph = Graph("outer", Jobs)
    graph.subgraph("inner", by_node(), start=True)
    return graph


WAYS = [by_node, by_tuple_in_a_helper, by_router, beside_an_edge, inside_a_sub_flow]


@pytest.mark.parametrize("items", [[], [1], [1, 2, 3]], ids=str)
@pytest.mark.parametrize("way", WAYS)
async def test_the_join_runs_once_after_all_of_them(way: Callable[[], Graph[Jobs]], items: list[int]) -> None:
    graph = way()
    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph, {"items": items})
        assert (run.status, list(run.state.done)) == ("completed", [*(f"work {n}" for n in items), "join"])
        assert [p for p in await rt.check(run.run_id) if p.severity == "error"] == []


@pytest.mark.parametrize(("a", "b"), [([], [1]), ([1], []), ([], []), ([1], [2])])
async def test_two_that_send_to_one_node_wait_for_each_other(a: list[int], b: list[int]) -> None:
    graph = Graph("two", Jobs)

    @graph.node(start=True)
    async def left(state: Jobs) -> list[Send]:
        return [Send("work", n) for n in a]

    @graph.node(start=True)
    async def right(state: Jobs) -> list[Send]:
        return [Send("work", n) for n in b]

    work_and_join(graph)
    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph)
        assert list(run.state.done) == [*(f"work {n}" for n in (*a, *b)), "join"]


async def test_another_fan_out_is_left_alone() -> None:
    graph = Graph("twofold", Jobs)

    @graph.node(start=True)
    async def split(state: Jobs) -> Any:
        return [Send("work", n) for n in state.items]

    work_and_join(graph)

    @graph.node(after="join")
    async def again(state: Jobs) -> Any:
        return [Send("other", n) for n in (7,)]

    @graph.node
    async def other(state: Jobs, ctx: Context) -> dict[str, Any]:
        return {"done": [f"other {ctx.payload}"]}

    @graph.node(after="other")
    async def last(state: Jobs) -> dict[str, Any]:
        return {"done": ["last"]}

    async with World().runtime(graph) as rt:
        assert list((await rt.invoke(graph)).state.done) == ["join", "other 7", "last"]


@pytest.mark.parametrize("answer", [None, {}, {"done": []}], ids=str)
async def test_a_node_that_chose_not_to_send_starts_nothing(answer: Any) -> None:
    """No list was returned: the way was not taken."""
    graph = Graph("triage", Jobs)

    @graph.node(start=True)
    async def look(state: Jobs) -> Any:
        return Send("page", 1) if state.items else answer

    @graph.node
    async def page(state: Jobs) -> dict[str, Any]:
        return {"done": ["page"]}

    @graph.node(after="page")
    async def acknowledge(state: Jobs) -> dict[str, Any]:
        return {"done": ["acknowledge"]}

    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph)
        assert (run.status, list(run.state.done)) == ("completed", [])


async def test_a_goto_to_a_node_is_no_fan_out() -> None:
    graph = Graph("goes", Jobs)

    @graph.node(start=True)
    async def look(state: Jobs) -> Any:
        return Goto("mend") if state.items else []

    @graph.node
    async def mend(state: Jobs) -> dict[str, Any]:
        return {"done": ["mend"]}

    @graph.node(after="mend")
    async def tell(state: Jobs) -> dict[str, Any]:
        return {"done": ["tell"]}

    async with World().runtime(graph) as rt:
        assert list((await rt.invoke(graph)).state.done) == []

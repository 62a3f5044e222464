"""Sub-flows: a child graph in a node's place (§4.14)."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, Send, State, append, flow, merge, window
from holdfast.core import events as ev
from holdfast.core.status import Status
from tests.engine.support import World, says

ran: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()


class Parent(State):
    items: Annotated[list[str], append]
    seen: Annotated[dict[str, int], merge]
    total: int = 0
    secret: str = "kept"


class Child(State):
    items: Annotated[list[str], append]
    seen: Annotated[dict[str, int], merge]
    total: int = 0
    own: str = ""


def review() -> Graph[Child]:
    child = Graph("review", Child)

    @child.node(start=True)
    async def first(state: Child, ctx: Context) -> dict[str, Any]:
        ran["first"] += 1
        ctx.record("audit", "first", {"had": list(state.items)})
        ctx.send("webhook", {"n": 1})
        return {"items": "one", "seen": {"first": 1}, "own": "x"}

    @child.node(after="first")
    async def second(state: Child, ctx: Context) -> dict[str, Any]:
        ran["second"] += 1
        await ctx.step(noted, "inside")
        return {"items": ["two"], "seen": {"second": state.total}, "total": state.total + 10}

    return child


async def noted(name: str) -> None:
    ran[name] += 1


def around(child: Graph[Any], **options: Any) -> Graph[Parent]:
    g = Graph("parent", Parent)

    @g.node(start=True)
    async def before(state: Parent) -> dict[str, Any]:
        ran["before"] += 1
        return {"items": ["zero"], "total": 1}

    g.subgraph("review", child, after="before", **options)

    @g.node(after="review")
    async def after(state: Parent) -> dict[str, Any]:
        ran["after"] += 1
        return {"items": ["end"]}

    return g


async def test_the_copy_is_isolated_until_it_returns_one_merged_write() -> None:
    """T-65: the child mutates, the parent is unchanged, one merged write at return; the ledger rows come with it."""
    async with World().runtime(g := around(review())) as rt:
        run = await rt.invoke(g, {})
        assert run.state.items == ["zero", "one", "two", "end"], "an append channel gets what the child added, once"
        assert run.state.seen == {"first": 1, "second": 1}
        assert run.state.total == 11 and run.state.secret == "kept"
        history = await rt.checkpoints(run.run_id)
        assert [list(c.values["items"]) for c in history] == [[], ["zero"], ["zero", "one", "two"], ["zero", "one", "two", "end"]]
        assert [dict(c.metadata["writes"]) for c in history][2] == {
            "review": {"items": ["one", "two"], "seen": {"first": 1, "second": 1}, "total": 11}
        }
        assert [(r.topic, r.key) for r in await rt.store.ledger(run.run_id)] == [("audit", "first")]
        assert [i.type for i in await rt.store.intents(run.run_id)] == ["webhook"]


async def test_only_what_is_passed_goes_in_and_out() -> None:
    g = around(review(), pass_in=["total"], pass_out=["seen"])
    async with World().runtime(g) as rt:
        run = await rt.invoke(g, {})
        assert run.state.items == ["zero", "end"] and run.state.total == 1
        assert run.state.seen == {"first": 1, "second": 1}
        row = (await rt.store.ledger(run.run_id))[0]
        assert b"zero" not in row.data


@pytest.mark.parametrize("after", [False, True])
async def test_a_crash_at_every_commit_redoes_nothing_that_was_durable(after: bool) -> None:
    """§4.14, L-05: inner finished tasks are recorded in the parent's place."""
    g = around(review())
    async with World().runtime(g) as rt:
        whole = await rt.invoke(g, {})
        kinds = [e.type for e in await rt.events(whole.run_id)]
    assert kinds.count("step.completed") == 6
    for seq in range(6, whole.version + 1):
        ran.clear()
        world = World()
        await world.crash(g, when=lambda c, seq=seq: any(e.seq == seq for e in c.events), after=after)  # type: ignore[misc]
        if await world.ended():
            continue
        run = await world.recovered(g)
        assert run.state == whole.state
        assert set(ran) == {"before", "first", "second", "inside", "after"}
        assert sum(ran.values()) <= 7, f"at most the one in flight, with its step, ran twice: {ran}"


async def test_a_wait_inside_rests_the_run_and_the_finished_stay_finished() -> None:
    child = Graph("child", Child)

    @child.node(start=True)
    async def quick(state: Child) -> dict[str, Any]:
        ran["quick"] += 1
        return {"items": "quick"}

    @child.node(start=True)
    async def asks(state: Child, ctx: Context) -> dict[str, Any]:
        await ctx.step(noted, "before asking")
        decision = await ctx.approve("Go on?")
        return {"items": [decision.actor]}

    @child.node(after=["quick", "asks"])
    async def join(state: Child) -> dict[str, Any]:
        return {"items": "joined"}

    world = World()
    g = around(child)
    async with world.runtime(g) as rt:
        run = await rt.invoke(g, {})
        assert run.status is Status.WAITING_FOR_HUMAN and run.waits[0].task == "review"
        assert run.state.items == ["zero"], "nothing of it is seen before it returns"
    async with world.runtime(g) as rt:
        run = await rt.approve(run.run_id, actor="ada")
    assert run.state.items == ["zero", "quick", "ada", "joined", "end"]
    assert ran["quick"] == ran["before asking"] == 1


async def test_a_child_in_a_child_in_parallel_by_send() -> None:
    """§4.2: the payload of a Send is input of the child it goes to."""

    class Leaf(State):
        name: str
        items: Annotated[list[str], append]

    leaf = Graph("leaf", Leaf)

    @leaf.node(start=True)
    async def work(state: Leaf, ctx: Context) -> dict[str, Any]:
        keys.append(ctx.idempotency_key)
        return {"items": state.name}

    def fan(state: Child) -> list[Send]:
        return [Send("leaf", {"name": n}) for n in "abc"]

    class Named(Child):
        name: str = ""

    holder = Graph("middle", Named)
    holder.node(start=True)(fan)
    holder.subgraph("leaf", leaf, pass_in=["name", "items"], pass_out=["items"])
    keys: list[str] = []
    g = around(holder)
    async with World().runtime(g) as rt:
        run = await rt.invoke(g, {})
    assert run.state.items == ["zero", "a", "b", "c", "end"]
    assert len(set(keys)) == 3, "every inner step has a key of its own"


async def test_a_failure_inside_names_its_place_and_resumes_there() -> None:
    broken = [True]
    child = Graph("child", Child)

    @child.node(start=True)
    async def good(state: Child) -> dict[str, Any]:
        ran["good"] += 1
        return {"items": "good"}

    @child.node(after="good")
    async def bad(state: Child) -> dict[str, Any]:
        if broken:
            raise ValueError("no")
        return {"items": "mended"}

    g = around(child)
    async with World().runtime(g) as rt:
        run = await rt.invoke(g, {})
        assert run.status is Status.FAILED and run.error is not None
        assert (run.error.type, run.error.where) == ("ValueError", "review/2.bad")
        assert run.state.items == ["zero"]
        broken.clear()
        run = await rt.resume(run.run_id, acknowledge="step_failed")
    assert run.state.items == ["zero", "good", "mended", "end"] and ran["good"] == 1


async def test_a_child_has_bounds_of_its_own() -> None:
    """§4.9, §4.14: its step limit fails the run, resumable; what it did is kept."""

    class Count(State):
        total: int = 0

    child = Graph("loop", Count, step_limit=5)

    @child.node(start=True, after="turn", when=lambda s: s.total < 8)
    async def turn(state: Count) -> dict[str, Any]:
        ran["turn"] += 1
        return {"total": state.total + 1}

    g = around(child)
    async with World().runtime(g) as rt:
        run = await rt.invoke(g, {})
        assert (run.stop_reason, ran["turn"]) == ("step_limit", 5)
        run = await rt.resume(run.run_id, acknowledge="step_limit")
    assert run.status is Status.COMPLETED and run.state.total == 8
    assert ran["turn"] == 7, "from 1 to 8, each once"


async def test_a_window_of_the_child_returns_what_it_wrote() -> None:
    class Small(State):
        items: Annotated[list[str], window(2)]

    child = Graph("small", Small)

    @child.node(start=True)
    async def write(state: Small) -> dict[str, Any]:
        assert state.items == ["zero"]
        return {"items": ["a", "b", "c"]}

    async with World().runtime(g := around(child)) as rt:
        assert (await rt.invoke(g, {})).state.items == ["zero", "a", "b", "c", "end"]


def test_a_graph_cannot_contain_itself() -> None:
    g = Graph("g", Parent)
    inner = Graph("inner", Parent)
    inner.subgraph("outer", g, start=True)
    g.subgraph("inner", inner, start=True)
    with pytest.raises(Exception, match="contains itself"):
        g.validate()


async def test_restart_is_for_flows_only_inside_too() -> None:
    child = Graph("child", Child)

    @child.node(start=True)
    async def again(state: Child, ctx: Context) -> None:
        ctx.restart()

    async with Runtime("memory:", skills=[g := around(child)]) as rt:
        assert (await rt.invoke(g, {})).stop_reason == "restart_outside_flow"


async def test_flows_and_sub_flows_do_not_share_places() -> None:
    """A flow's step at place 1 and a sub-flow's super-step 1 are told apart: they belong to different tasks."""

    @flow("f")
    async def f(ctx: Context) -> None:
        await ctx.step(noted, "x")

    world = World()
    await world.crash(around(review()), when=says(ev.StepCompleted, path="1.first"))
    run = await world.recovered(around(review()), f)
    assert ran["first"] == 1 and run.status is Status.COMPLETED

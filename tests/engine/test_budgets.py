"""Budgets: durable counters looked at before each step (§8.5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Send, State, append, flow
from holdfast.core.environments import Environment
from holdfast.core.errors import InvalidAnswer, InvalidInput, WaitNotFound
from tests.engine.outside import House
from tests.engine.support import World


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    h = House(request.param, tmp_path)
    yield h
    await h.close()


class Count(State):
    n: int = 0


def counting(turns: int) -> Graph[Count]:
    graph = Graph("counting", Count)

    @graph.node(start=True)
    async def turn(state: Count, ctx: Context) -> dict[str, Any]:
        return {"n": state.n + 1}

    graph.branch("turn", lambda s: "turn" if s.n < turns else None)
    return graph


@pytest.mark.parametrize("payload", [{"extend": -5}, {"extend": 0}, {"extend": True}, {"extend": "ten"}, {"extned": 10}, 10])
async def test_an_extension_that_is_none_is_refused(house: House, payload: Any) -> None:
    """§8.5: an amount is a number above zero; a slip of the pen neither takes from a budget nor passes for the amount proposed."""
    graph = counting(5)
    rt = await house.process(graph)
    run = await rt.invoke(graph, {}, budgets={"steps": 2})
    with pytest.raises(InvalidAnswer):
        await rt.approve(run.run_id, payload=payload)
    assert (await rt.get(run.run_id)).waits == run.waits, "the question stays open"
    assert (await rt.approve(run.run_id, payload={"extend": 10})).status == "completed"


async def test_an_extension_covers_one_extension(house: House) -> None:
    """T-95: exceed, approve, exceed again: a second pause."""
    graph = counting(5)
    rt = await house.process(graph)
    run = await rt.invoke(graph, {}, budgets={"steps": 2})
    assert (run.status, run.waits[0].kind, run.state.n) == ("waiting_for_human", "budget", 2)
    assert run.waits[0].show == {"budget": "steps", "used": 2.0, "limit": 2.0, "extend": 2.0}
    run = await rt.approve(run.run_id)
    assert (run.status, run.waits[0].show["limit"], run.state.n) == ("waiting_for_human", 4.0, 4)
    run = await rt.approve(run.run_id, payload={"extend": 10})
    assert (run.status, run.state.n) == ("completed", 5)
    told = [e.payload["used"] for e in await rt.events(run.run_id) if e.type == "budget.exceeded"]
    assert told == [2.0, 4.0]


async def test_a_denied_extension_halts(house: House) -> None:
    graph = counting(5)
    rt = await house.process(graph)
    run = await rt.invoke(graph, {}, budgets={"steps": 2})
    run = await rt.deny(run.run_id, reason="enough")
    assert (run.condition, run.state.n) == ("halted", 2)


async def test_what_a_step_spends_counts_once(house: House) -> None:
    """§8.5: durable, and node code that runs again does not count again."""

    def think(n: int) -> int:
        return n

    @flow("costly")
    async def costly(ctx: Context) -> int:
        total = 0
        for n in range(4):
            total += await ctx.step(think, n)
            ctx.spend(cost=1.0, tokens=100)
            await ctx.approve(f"go on after {n}?")
        return total

    rt = await house.process(costly)
    run = await rt.invoke(costly, {}, budgets={"cost": 1.5})
    run = await rt.approve(run.run_id)
    run = await rt.approve(run.run_id)
    assert (run.status, run.waits[0].kind, run.waits[0].show["used"]) == ("waiting_for_human", "budget", 2.0)
    assert run.spent == {"cost": 2.0, "tokens": 200.0}
    run = await rt.approve(run.run_id, payload={"extend": 100})
    for _ in range(2):
        run = await rt.approve(run.run_id)
    assert (run.status, run.result, run.spent["cost"]) == ("completed", 6, 4.0)


async def test_waits_do_not_count(house: House) -> None:
    """T-95: a long pause does not trip the wall time."""

    @flow("slow")
    async def slow(ctx: Context) -> str:
        await ctx.approve("now?")
        return str(await ctx.step(lambda: "done"))

    rt = await house.process(slow)
    run = await rt.invoke(slow, {}, budgets={"seconds": 60})
    house.clock.at += 3 * 24 * 3600 * 1_000_000
    other = await house.process(slow)
    run = await other.approve(run.run_id)
    assert (run.status, run.result) == ("completed", "done")


async def test_working_time_counts(house: House) -> None:
    async def work() -> None:
        house.clock.at += 61 * 1_000_000

    @flow("busy")
    async def busy(ctx: Context) -> None:
        await ctx.step(work, key="a")
        await ctx.step(work, key="b")

    rt = await house.process(busy)
    run = await rt.invoke(busy, {}, budgets={"seconds": 60})
    assert (run.status, run.waits[0].name) == ("waiting_for_human", "seconds")


async def test_an_environment_caps_what_is_asked_for(house: House) -> None:
    """§8.3."""
    graph = counting(5)
    rt = await house.process(graph, environment=Environment(name="small", budgets={"steps": 1}))
    assert (await rt.invoke(graph, {}, budgets={"steps": 4})).state.n == 1
    with pytest.raises(InvalidInput, match="positive number"):
        await rt.invoke(graph, {}, budgets={"steps": -1})


@flow("kin")
async def kin(ctx: Context) -> str:
    return "kin"


async def thinks() -> str:
    return "thought"


NEXT: dict[str, Callable[[Context], Awaitable[Any]]] = {
    "an effect": lambda ctx: ctx.effect(thinks),
    "an effect without a place of its own": lambda ctx: ctx.effect(thinks, key="mine"),
    "a step": lambda ctx: ctx.step(thinks),
    "a child": lambda ctx: ctx.child(kin),
    "an item of a map": lambda ctx: ctx.map(lambda _: "thought", [1]),
    "one of several": lambda ctx: ctx.gather(ctx.step(thinks), ctx.effect(thinks)),
}


@pytest.mark.parametrize("call", NEXT)
async def test_what_was_spent_a_moment_ago_counts_for_the_next_call(house: House, call: str) -> None:
    """§8.5: nothing else has to be durable first."""

    @flow("spends")
    async def spends(ctx: Context) -> Any:
        ctx.spend(cost=1)
        ctx.spend(cost=9)
        return await NEXT[call](ctx)

    rt = await house.process(spends, kin)
    run = await rt.invoke(spends, {}, budgets={"cost": 3})
    assert [(w.kind, w.show["used"]) for w in run.waits][:1] == [("budget", 10.0)] and {w.kind for w in run.waits} == {"budget"}
    assert [e.type for e in await rt.events(run.run_id)].count("side_effect.attempted") == 0 and len(await rt.runs()) == 1
    run = await rt.approve(run.run_id, wait_id=run.waits[0].wait_id, payload={"extend": 100})
    assert (run.status, run.spent) == ("completed", {"cost": 10.0})


@pytest.mark.parametrize("turns", range(12))
async def test_what_was_spent_counts_while_the_commit_with_it_is_under_way(house: House, turns: int) -> None:
    done: list[int] = []

    async def act() -> None:
        done.append(1)

    @flow("beside")
    async def beside(ctx: Context) -> Any:
        async def spends() -> None:
            ctx.spend(cost=10)
            for _ in range(turns):
                await asyncio.sleep(0)
            await ctx.effect(act)

        await ctx.gather(ctx.step(thinks), ctx.step(str), spends())

    rt = await house.process(beside)
    run = await rt.invoke(beside, {}, budgets={"cost": 3})
    assert {w.kind for w in run.waits} == {"budget"} and done == []


async def test_a_node_that_spends_too_much_is_asked_before_its_next_act(house: House) -> None:
    graph: Graph[Count] = Graph("spender", Count)

    @graph.node(start=True)
    async def turn(state: Count, ctx: Context) -> dict[str, Any]:
        ctx.spend(tokens=5)
        await ctx.effect(thinks)
        return {"n": state.n + 1}

    rt = await house.process(graph)
    run = await rt.invoke(graph, {}, budgets={"tokens": 4})
    assert [w.kind for w in run.waits] == ["budget"]
    run = await rt.approve(run.run_id)
    assert (run.status, run.state.n, run.spent) == ("completed", 1, {"tokens": 5.0})


@pytest.mark.parametrize("answered", [0, -1])
async def test_one_extension_answers_all_calls_that_asked(house: House, answered: int) -> None:
    """What the others asked is closed: nobody's silence about it ends the run later."""

    @flow("several")
    async def several(ctx: Context) -> Any:
        ctx.spend(cost=10)
        await ctx.gather(ctx.step(thinks), ctx.step(str), ctx.effect(thinks))
        return await ctx.wait("later")

    rt = await house.process(several)
    run = await rt.invoke(several, {}, budgets={"cost": 3})
    assert [w.kind for w in run.waits] == ["budget"] * 3
    run = await rt.approve(run.run_id, wait_id=run.waits[1].wait_id, payload={"extend": 1})
    assert [w.show["limit"] for w in run.waits].count(4.0) == 1, "asked anew, before the step is entered again"
    run = await rt.approve(run.run_id, wait_id=run.waits[answered].wait_id, payload={"extend": 100})
    assert [(w.kind, w.name) for w in run.waits] == [("signal", "later")]


class Done(State):
    done: Annotated[list[int], append]


def fan(spends: float) -> Graph[Done]:
    """Four tasks of one super-step, each of which spends and then calls; and one after them."""
    graph = Graph("fan", Done)

    @graph.node(start=True)
    async def deal(state: Done) -> list[Send]:
        return [Send("work", n) for n in range(4)]

    @graph.node
    async def work(state: Done, ctx: Context) -> dict[str, Any]:
        ctx.spend(cost=spends)
        await ctx.effect(thinks)
        return {"done": [ctx.payload]}

    @graph.node(after="work")
    async def join(state: Done) -> dict[str, Any]:
        return {"done": [len(state.done)]}

    return graph


@pytest.mark.parametrize("answered", [0, -1])
async def test_one_extension_lets_all_tasks_of_a_super_step_go_on(house: House, answered: int) -> None:
    """§8.5: an approval extends a budget once, whichever of the steps asked; what the others asked is closed, so nobody extends it twice."""
    graph = fan(10)
    rt = await house.process(graph)
    run = await rt.invoke(graph, {}, budgets={"cost": 3})
    assert [w.kind for w in run.waits] == ["budget"] * 4
    wait, other = run.waits[answered], run.waits[answered + 1]
    await rt.decide(run.run_id, "approve", wait_id=wait.wait_id, payload={"extend": 100})
    with pytest.raises(WaitNotFound):
        await rt.decide(run.run_id, "approve", wait_id=other.wait_id)
    run = await rt.resume(run.run_id)
    assert (run.status, run.state.done, run.spent) == ("completed", [0, 1, 2, 3, 4], {"cost": 40.0})
    assert list(await rt.check(run.run_id)) == []


async def test_an_extension_that_does_not_do_is_asked_about_again_by_all(house: House) -> None:
    graph = fan(10)
    rt = await house.process(graph)
    run = await rt.invoke(graph, {}, budgets={"cost": 3})
    run = await rt.approve(run.run_id, wait_id=run.waits[1].wait_id, payload={"extend": 1})
    assert [(w.kind, w.show["limit"]) for w in run.waits] == [("budget", 4.0)] * 4
    run = await rt.approve(run.run_id, wait_id=run.waits[0].wait_id, payload={"extend": 100})
    assert (run.status, run.state.done) == ("completed", [0, 1, 2, 3, 4])


async def test_an_extension_while_another_task_works_lets_those_that_asked_go_on() -> None:
    world, graph, ids = World(), Graph("beside", Done), list[str]()

    @graph.node(start=True)
    async def works(state: Done, ctx: Context) -> dict[str, Any]:
        await turns()  # the others come to their questions meanwhile
        ids.extend(w.wait_id for w in (await rt.get(ctx.run_id)).waits)
        await rt.decide(ctx.run_id, "approve", wait_id=ids[0], payload={"extend": 100})
        await turns()
        return {"done": [2]}

    async def spend(state: Done, ctx: Context) -> dict[str, Any]:
        ctx.spend(cost=10)
        await ctx.step(thinks)
        return {"done": [1]}

    async def turns() -> None:
        for _ in range(200):
            await asyncio.sleep(0)

    for name in ("one", "two"):
        graph.node(name, start=True)(spend)
    async with world.runtime(graph) as rt:
        run = await rt.invoke(graph, {}, budgets={"cost": 3})
        assert (len(ids), run.status, run.state.done) == (2, "completed", [2, 1, 1])
        events = [e.type for e in await rt.events(run.run_id)]
        assert (events.count("wait.requested"), events.count("run.waiting_for_human")) == (2, 0)

"""``current()``, names of calls, keyed calls at once, maps of calls, and what a wait about an effect shows (§4.12, §19.2)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Context, Graph, State, Tool, current, flow
from holdfast.core import events as ev
from holdfast.core.errors import HoldfastError
from holdfast.ports import ToolOutcome, ToolRequest
from tests.engine.support import World, says


class N(State):
    n: int = 0


async def library(n: int) -> int:
    """Code that was written for no engine, but asks whether it runs in one."""
    ctx = current()
    return n if ctx is None else await ctx.step(double, n, name="library")


async def double(n: int) -> int:
    return n * 2


def noted() -> str | None:
    ctx = current()
    if ctx is not None:
        ctx.record("notes", "k", "from a library")
    return None if ctx is None else ctx.run_id


# -- current() ----------------------------------------------------------------------------------------


async def test_outside_there_is_none() -> None:
    assert current() is None and await library(1) == 1


@pytest.mark.parametrize("shape", ["flow", "state", "state_ctx", "write"])
async def test_a_library_in_a_node_finds_it(shape: str) -> None:
    graph = Graph("g", N)
    if shape == "flow":

        @flow("g")
        async def skill(ctx: Context) -> int:
            assert current() is not None and current().run_id == ctx.run_id
            return await library(4)

    elif shape == "state_ctx":

        @graph.node(start=True)
        async def skill(state: N, ctx: Context) -> dict[str, Any]:
            return {"n": await library(4)}

    else:

        @graph.node(start=True, side_effects="write" if shape == "write" else "none")
        async def skill(state: N) -> dict[str, Any]:
            return {"n": await library(4)}

    made = skill if shape == "flow" else graph
    async with World().runtime(made) as rt:
        run = await rt.invoke(made)
        assert (run.result if shape == "flow" else run.state.n) == 8 and current() is None
        assert [e.payload["path"] for e in await rt.events(run.run_id) if e.type == "step.completed" and e.payload["path"] in ("0",)] == ["0"]


@pytest.mark.parametrize("plain", [True, False])
async def test_also_in_a_thread(plain: bool) -> None:
    graph = Graph("g", N)
    if plain:

        @graph.node(start=True)
        def note(state: N) -> None:
            assert noted() is not None
            with pytest.raises(HoldfastError, match="make it async"):
                current().sleep(1)  # type: ignore[union-attr]

    else:

        @graph.node(start=True)
        async def note(state: N) -> None:
            assert await asyncio.to_thread(noted) is not None

    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph)
        assert run.status == "completed", run.error
        assert [r.topic for r in await rt.store.ledger(run.run_id)] == ["notes"]


async def test_a_library_that_leaves_a_call_in_flight_is_told() -> None:
    graph = Graph("g", N)
    left: list[asyncio.Task[Any]] = []

    @graph.node(start=True)
    async def hasty(state: N) -> None:
        ctx = current()
        assert ctx is not None
        left.append(asyncio.ensure_future(ctx.step(asyncio.sleep, 0.01)))
        await asyncio.sleep(0)

    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph)
        assert run.stop_reason == "concurrent_scope"
    left[0].cancel()


async def test_a_library_may_ask_a_person_in_a_bare_node() -> None:
    graph = Graph("g", N)

    @graph.node(start=True)
    async def asks(state: N) -> dict[str, Any]:
        ctx = current()
        assert ctx is not None
        await ctx.approve("ok?")
        return {"n": 1}

    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph)
        assert run.status == "waiting_for_human" and (await rt.approve(run.run_id)).state.n == 1


# -- names and keys -----------------------------------------------------------------------------------


class Runner:
    async def run(self, request: ToolRequest) -> ToolOutcome:
        return ToolOutcome(stdout=request.tool)


async def test_names_are_what_calls_are_on_record_under() -> None:
    @flow("named")
    async def named(ctx: Context) -> str:
        await ctx.step(lambda: 1, name="first")
        await ctx.effect(lambda: 2, name="second")
        await ctx.effect(lambda: 3, name="third", side_effects="read")
        return (await ctx.tool("git", ["log"], name="fourth")).stdout

    async with World().runtime(named, tools=[Tool("git", side_effects="write")], tool_runner=Runner()) as rt:
        run = await rt.invoke(named)
        assert run.result == "git" and [e.capability for e in await rt.effects(run.run_id)] == ["second", "fourth"]


@pytest.mark.parametrize("how", ["gather", "group", "late"])
async def test_calls_with_keys_may_be_begun_at_once_in_any_order(how: str) -> None:
    world, made, order = World(), [], ["a", "b", "c"]

    async def work(name: str) -> str:
        made.append(name)
        await asyncio.sleep(0)
        return name

    @flow("keyed")
    async def keyed(ctx: Context) -> list[str]:
        calls = {k: ctx.effect(work, k, key=k, idempotent=True) if k == "b" else ctx.step(work, k, key=k) for k in order}
        if how == "gather":
            found = await asyncio.gather(*calls.values())
        elif how == "group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(c) for c in calls.values()]
            found = [t.result() for t in tasks]
        else:
            later = asyncio.ensure_future(calls[order[0]])
            found = [await calls[order[1]], await calls[order[2]], await later]
        await ctx.approve("ok?")
        return sorted(found)

    async with world.runtime(keyed) as rt:
        run = await rt.invoke(keyed)
        assert run.status == "waiting_for_human", run.error
    order.reverse()
    async with world.runtime(keyed) as rt:
        assert (await rt.approve(run.run_id)).result == ["a", "b", "c"] and sorted(made) == ["a", "b", "c"]


@pytest.mark.parametrize("keys", [("a", "a"), ("a", None), (None, None)])
async def test_a_call_without_a_key_or_with_the_same_one_is_refused(keys: tuple[str | None, ...]) -> None:
    @flow("clash")
    async def clash(ctx: Context) -> None:
        await asyncio.gather(*(ctx.step(double, n, key=k) for n, k in enumerate(keys)))

    async with World().runtime(clash) as rt:
        run = await rt.invoke(clash)
        assert run.stop_reason == "concurrent_scope" and "key" in str(run.error)


# -- maps ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [True, False])
async def test_a_map_of_functions_that_make_calls(after: bool) -> None:
    """What an item did is not done again when the map is entered again."""
    world, sent, most, now = World(), [], [0], [0]

    async def send(n: int) -> int:
        now[0] += 1
        most[0] = max(most[0], now[0])
        await asyncio.sleep(0)
        now[0] -= 1
        sent.append(n)
        return n

    @flow("mapped")
    async def mapped(ctx: Context) -> list[int]:
        async def one(n: int) -> int:
            got = await ctx.effect(send, n, idempotent=True)
            return await ctx.step(double, got) + await library(n)

        return await ctx.map(one, range(5), concurrency=2)

    run_id = await world.crash(mapped, when=says(ev.StepCompleted, path="0/3/0/1"), after=after)
    run = await world.recovered(mapped)
    assert (run.run_id, run.status, run.result) == (run_id, "completed", [0, 4, 8, 12, 16])
    assert sorted(sent) == [0, 1, 2, 3, 4] and most[0] <= 2


async def test_an_item_may_rest_and_others_go_on() -> None:
    @flow("mapped")
    async def mapped(ctx: Context) -> list[str]:
        async def one(n: int) -> str:
            return (await ctx.approve(f"item {n}?")).action if n % 2 else f"{await ctx.step(double, n)}"

        return await ctx.map(one, range(4))

    async with World().runtime(mapped) as rt:
        run = await rt.invoke(mapped)
        assert [w.prompt for w in run.waits] == ["item 1?", "item 3?"]
        for wait in run.waits:
            await rt.decide(run.run_id, "approve", wait_id=wait.wait_id)
        assert (await rt.resume(run.run_id)).result == ["0", "approve", "4", "approve"]


# -- what a wait about an effect shows ----------------------------------------------------------------


@pytest.mark.parametrize(("show", "seen"), [(None, ["ada", 3]), ({"to": "ada"}, {"to": "ada"}), ("a letter", "a letter")])
async def test_a_question_about_an_effect_shows_what_it_is_about(show: Any, seen: Any) -> None:
    world = World()

    @flow("post")
    async def post(ctx: Context) -> str:
        return await ctx.effect(lambda to, n: "sent", "ada", 3, show=show)

    run_id = await world.crash(post, when=says(ev.SideEffectAttempted))
    async with world.runtime(post) as rt:
        run = await rt.resume(run_id)
        assert run.waits[0].kind == "effect" and run.waits[0].show["show"] == seen


async def test_long_arguments_are_cut() -> None:
    world = World()

    @flow("post")
    async def post(ctx: Context) -> str:
        return await ctx.effect(lambda text: "sent", "x" * 100_000)

    run_id = await world.crash(post, when=says(ev.SideEffectAttempted))
    async with world.runtime(post) as rt:
        assert len((await rt.resume(run_id)).waits[0].show["show"]) <= 4_200

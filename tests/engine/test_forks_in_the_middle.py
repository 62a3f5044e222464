"""A fork that begins in the middle of a step serves what was recorded there (§7.7, §4.12)."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, State, append, flow
from tests.engine.support import World


class Calls:
    """Counts who was called, and whose turn it is to fail."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def made(self, name: str) -> Any:
        async def call(*args: Any) -> str:
            self.of[name] += 1
            return f"{name}{args[0] if args else ''}"

        call.__name__ = name
        return call


def trip(calls: Calls, *, ends: str, first: int = 1) -> Any:
    @flow("trip")
    async def trip(ctx: Context) -> list[Any]:
        out: list[Any] = [await ctx.step(calls.made("a"), first), ctx.now() and "now"]
        out += await ctx.gather(ctx.step(calls.made("b"), 1), ctx.step(calls.made("c"), 2))
        out.append(await ctx.effect(calls.made("pay"), 3))
        if ends == "wait":
            out.append((await ctx.approve("ok?")).action)
        elif ends == "failure" and not calls.of["mended"]:
            raise ValueError("boom")
        elif ends == "signal":
            out.append(await ctx.wait("go"))
        out.append(await ctx.step(calls.made("d")))
        return out

    return trip


@pytest.mark.parametrize("ends", ["wait", "failure", "signal"])
async def test_recorded_calls_of_a_flow_are_served(ends: str) -> None:
    calls = Calls()
    skill = trip(calls, ends=ends)
    async with World().runtime(skill) as rt:
        run = await rt.invoke(skill)
        before = Counter(calls.of)
        assert before == Counter("abc") + Counter(["pay"])
        calls.of["mended"] = 1
        fork = await rt.fork(run.run_id, actor="ada")
        if ends == "wait":
            assert [w.run_id for w in fork.waits] == [fork.run_id]
            fork = await rt.approve(fork.run_id)
        if ends == "signal":
            fork = await rt.signal(fork.run_id, "go", "went")
            fork = await rt.resume(fork.run_id)
        assert fork.status == "completed" and fork.result[-1] == "d"
        assert {n: calls.of[n] for n in ("a", "b", "c", "pay", "d")} == {"a": 1, "b": 1, "c": 1, "pay": 1, "d": 1}


async def test_a_fork_of_a_fork_serves_them_too() -> None:
    calls = Calls()
    skill = trip(calls, ends="wait")
    async with World().runtime(skill) as rt:
        run = await rt.invoke(skill)
        for _ in range(3):
            run = await rt.fork(run.run_id, actor="ada")
            assert run.status == "waiting_for_human"
        assert calls.of == Counter("abc") + Counter(["pay"])
        assert (await rt.approve(run.run_id)).result == ["a1", "now", "b1", "c2", "pay3", "approve", "d"]


async def test_from_the_beginning_everything_runs_again() -> None:
    calls = Calls()
    skill = trip(calls, ends="wait")
    async with World().runtime(skill) as rt:
        run = await rt.invoke(skill)
        first = (await rt.checkpoints(run.run_id))[0]
        fork = await rt.fork(run.run_id, first.checkpoint_id, actor="ada")
        assert fork.status == "waiting_for_human" and (calls.of["a"], calls.of["pay"]) == (2, 1)


async def test_other_arguments_are_computed_anew() -> None:
    world, calls = World(), Calls()
    async with world.runtime(trip(calls, ends="wait")) as rt:
        run = await rt.invoke("trip")
    async with world.runtime(trip(calls, ends="wait", first=9)) as rt:
        fork = await rt.approve((await rt.fork(run.run_id, actor="ada")).run_id)
        assert fork.result[0] == "a9" and calls.of["b"] == 1


async def test_edits_compute_everything_anew() -> None:
    calls = Calls()

    @flow("sum")
    async def total(ctx: Context, n: int) -> str:
        found = await ctx.step(calls.made("a"))
        await ctx.approve("ok?", show=n)
        return f"{found}{n}"

    async with World().runtime(total) as rt:
        run = await rt.invoke(total, {"n": 1})
        fork = await rt.fork(run.run_id, set={"n": 2}, actor="ada")
        assert fork.waits[0].show == 2 and calls.of["a"] == 2


class Said(State):
    said: Annotated[list[str], append]


async def test_finished_siblings_and_the_steps_of_the_waiting_node_are_served() -> None:
    calls, graph = Calls(), Graph("pair", Said)

    @graph.node(start=True)
    async def quick(state: Said) -> dict[str, Any]:
        return {"said": [await calls.made("quick")()]}

    @graph.node(start=True)
    async def asks(state: Said, ctx: Context) -> dict[str, Any]:
        found = await ctx.step(calls.made("a"))
        return {"said": [found, (await ctx.approve("ok?")).action]}

    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph)
        fork = await rt.approve((await rt.fork(run.run_id, actor="ada")).run_id)
        assert list(fork.state.said) == ["quick", "a", "approve"] and calls.of == Counter(["quick", "a"])
        assert [p for p in await rt.check(fork.run_id) if p.severity == "error"] == []
        replay = await rt.approve((await rt.replay(fork.run_id)).run_id)
        assert list(replay.state.said) == list(fork.state.said)

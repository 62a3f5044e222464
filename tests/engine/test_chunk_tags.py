"""Chunks are told apart by the attempt that made them: of the node, and of the recorded call inside it (§13.6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Graph, Retry, Runtime, State, flow
from tests.engine.support import World


class Empty(State):
    n: int = 0


class Talker:
    """Emits a word at each attempt, and fails at the first ones."""

    def __init__(self, fails: int = 2) -> None:
        self.fails = fails
        self.tries = 0

    def plain(self, ctx: Context) -> int:
        self.tries += 1
        ctx.emit(self.tries)
        if self.tries <= self.fails:
            raise ConnectionError("again")
        return self.tries

    async def async_(self, ctx: Context) -> int:
        return self.plain(ctx)


def step(talker: Talker) -> Any:
    @flow("talk")
    async def talk(ctx: Context) -> int:
        return await ctx.step(talker.async_, ctx, retry=Retry(max_attempts=3))

    return talk


def in_a_thread(talker: Talker) -> Any:
    @flow("talk")
    async def talk(ctx: Context) -> int:
        return await ctx.step(talker.plain, ctx, retry=3)

    return talk


def effect(talker: Talker) -> Any:
    @flow("talk")
    async def talk(ctx: Context) -> int:
        return await ctx.effect(lambda: talker.async_(ctx), idempotent=True, retry=3)

    return talk


def by_the_node(talker: Talker) -> Any:
    graph = Graph("talk", Empty)

    @graph.node(start=True, retry=3)
    async def talk(state: Empty, ctx: Context) -> None:
        await ctx.step(lambda: talker.async_(ctx))

    return graph


async def tags(rt: Runtime, skill: Any) -> list[str]:
    run = await rt.submit(skill)
    found: list[str] = []

    async def listen() -> None:
        async for chunk in rt.stream(run.run_id, modes=["custom"]):
            if not chunk.superseded:
                found.append(chunk.attempt_id.removeprefix(run.run_id))

    listening = asyncio.create_task(listen())
    await asyncio.sleep(0)
    await rt.worker(until_idle=True)
    await asyncio.wait_for(listening, 20)
    return found


@pytest.mark.parametrize("skill", [step, in_a_thread, effect, by_the_node])
async def test_each_attempt_of_a_call_has_a_tag_of_its_own(skill: Callable[[Talker], Any]) -> None:
    made = skill(Talker())
    async with World().runtime(made) as rt:
        found = await tags(rt, made)
        assert len(found) == len(set(found)) == 3, found
        assert all(t.startswith(".1.talk@") for t in found)


async def test_concurrent_calls_and_the_node_itself_are_told_apart() -> None:
    @flow("talk")
    async def talk(ctx: Context) -> None:
        ctx.emit("node")
        await ctx.gather(*(ctx.step(Talker(0).async_, ctx) for _ in range(3)))
        ctx.emit("node")

    async with World().runtime(talk) as rt:
        found = await tags(rt, talk)
        assert found[0] == found[-1] == ".1.talk@1" and len(set(found)) == 4

"""A call of an effect that is given up before its act has begun leaves no attempt open (§6.5, §6.10)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, flow
from tests.engine.outside import House

TURNS = range(40)
"""After so many turns of the loop the call is given up: before its attempt is durable, before its act, or in its midst."""


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    h = House(request.param, tmp_path)
    yield h
    await h.close()


async def after(turns: int) -> str:
    for _ in range(turns):
        await asyncio.sleep(0)
    return "now"


@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "thread"])
@pytest.mark.parametrize("options", [{}, {"key": "order-9"}, {"idempotent": True}], ids=["own key", "shared key", "idempotent"])
async def test_whatever_was_attempted_is_done_or_closed(house: House, plain: bool, options: dict[str, Any]) -> None:
    done: list[int] = []

    async def acts(turns: int) -> None:
        await asyncio.sleep(0)
        done.append(turns)

    def acts_in_a_thread(turns: int) -> None:
        done.append(turns)

    async def act(ctx: Context, turns: int) -> None:
        name = f"act-{turns}"
        await (ctx.effect(acts_in_a_thread, turns, name=name, **options) if plain else ctx.effect(acts, turns, name=name, **options))

    @flow("race")
    async def race(ctx: Context, turns: int) -> Any:
        return await ctx.first_of(after(turns), act(ctx, turns))

    @flow("again")
    async def again(ctx: Context, turns: int) -> None:
        await act(ctx, turns)

    rt = await house.process(race, again)
    for turns in TURNS:
        run = await rt.invoke(race, {"turns": turns})
        assert run.status == "completed"
        found = [e.status for e in await rt.effects(run.run_id)]
        assert found in ([], ["abandoned"], ["recorded"]) and (found == ["recorded"]) is (done == [turns]), (turns, found)
        second = await rt.invoke(again, {"turns": turns})
        assert second.status == "completed" and len(done) == (1 if "key" in options else 1 + (found == ["recorded"])), "nobody is asked about what was not begun"
        done.clear()
    assert list(await rt.check()) == []
    assert not (await rt.prune(timedelta(seconds=0))).kept


async def test_an_act_that_has_begun_comes_to_its_end(house: House) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def acts() -> str:
        begun.set()
        await go_on.wait()
        return "done"

    @flow("race")
    async def race(ctx: Context) -> Any:
        return await ctx.first_of(begun.wait(), ctx.effect(acts))

    rt = await house.process(race)
    driving = asyncio.ensure_future(rt.invoke(race, {}))
    await begun.wait()
    await after(20)
    go_on.set()
    run = await driving
    assert run.status == "completed"
    assert [e.status for e in await rt.effects(run.run_id)] == ["recorded"]

"""A replay asks people again, and asks about effects, wherever the code did: a combined result of several calls answers for none of them (§5.8, §6.6, §7.6)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Context, Flow, Runtime, flow


async def ask(ctx: Context, name: str = "") -> str:
    return await ctx.ask("Who?", schema=str)


@flow("in-a-race")
async def race(ctx: Context) -> str:
    _, answer = await ctx.first_of(ask(ctx), ctx.wait("never"))
    return answer


@flow("in-a-map")
async def each(ctx: Context) -> str:
    [answer] = await ctx.map(lambda name: ask(ctx, name), ["one"])
    return answer


@flow("in-a-race-in-a-scope")
async def within(ctx: Context) -> str:
    [(_, answer)] = await ctx.gather(ctx.first_of(ask(ctx), ctx.wait("never")))
    return answer


async def act(name: str) -> str:
    return name


@flow("acts-in-a-map")
async def acts(ctx: Context) -> list[str]:
    return await ctx.map(lambda name: ctx.effect(act, name), ["one"])


async def answer(rt: Runtime, run_id: str, payload: str) -> Any:
    [wait] = [w for w in (await rt.get(run_id)).waits if w.available_actions]
    await rt.decide(run_id, "answer", wait_id=wait.wait_id, actor=payload, payload=payload)
    return await rt.resume(run_id)


@pytest.mark.parametrize("skill", [race, each, within], ids=lambda skill: skill.id)
async def test_a_replay_asks_again_inside_scopes(skill: Flow[[], str]) -> None:
    async with Runtime("memory:", skills=[skill]) as rt:
        run = await rt.invoke(skill)
        run = await answer(rt, run.run_id, "ada")
        assert run.result == "ada"
        again = await rt.replay(run.run_id)
        assert again.status == "waiting_for_human", "what Ada said is not taken for an answer to the replay"
        again = await answer(rt, again.run_id, "bea")
        assert again.result == "bea"


async def test_a_replay_keeps_what_nobody_was_asked_for() -> None:
    """A race that a signal has won is decided, and its question is not asked again."""
    async with Runtime("memory:", skills=[race]) as rt:
        run = await rt.invoke(race)
        await rt.signal(run.run_id, "never", "came")
        run = await rt.resume(run.run_id)
        assert run.result == "came"
        assert (await rt.replay(run.run_id)).result == "came"


@pytest.mark.parametrize(("policy", "status"), [("use_recorded_result", "completed"), ("require_human", "waiting_for_human")])
async def test_the_policy_for_effects_reaches_into_a_map(policy: str, status: str) -> None:
    async with Runtime("memory:", skills=[acts]) as rt:
        run = await rt.invoke(acts)
        assert (await rt.replay(run.run_id, effects=policy)).status == status


@flow("races-signals")
async def signals(ctx: Context) -> str:
    _, came = await ctx.first_of(ctx.wait("red"), ctx.wait("blue"))
    return came


async def test_what_a_replay_waits_for_itself_is_not_answered_by_a_source_that_goes_on() -> None:
    """The source had no answer yet when the replay came to the race, so the replay waits for its own; what comes to the source later is no answer to it."""
    async with Runtime("memory:", skills=[signals]) as rt:
        run = await rt.invoke(signals)
        again = await rt.replay(run.run_id)
        await rt.signal(run.run_id, "blue", "to the source")
        assert (await rt.resume(run.run_id)).result == "to the source"
        await rt.signal(again.run_id, "red", "to the replay")
        assert (await rt.resume(again.run_id)).result == "to the replay"

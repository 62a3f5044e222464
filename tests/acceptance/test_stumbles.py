"""What newcomers stumbled over: mistakes that nothing told them of, or told them wrongly."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Absent, Context, Graph, Limit, Runtime, State, Unknown, flow
from holdfast.core.effects import read_answer
from holdfast.core.errors import ChannelEmpty, RunFailed, RunWaiting
from tests.engine.outside import Crash, House, World


async def nothing() -> int:
    return 1


class Mail(State):
    to: str
    tries: int
    text: str = "Hello"


def mail() -> Graph:
    graph = Graph("mail", Mail)

    @graph.node(start=True)
    def send(state: Mail) -> dict[str, Any]:
        return {"text": state.to}

    return graph


@pytest.mark.parametrize("wrong", [True, False, None, "yes", Absent, {"happened": True}])
def test_a_verify_that_answers_something_else_is_named(wrong: object) -> None:
    """X-05: it counts as not knowing, and whoever is asked then reads why."""
    said = read_answer(wrong, "verify of pay")
    assert isinstance(said, Unknown)
    assert said.why.startswith("verify of pay returned ")
    assert said.why.endswith("it must return Happened(result), Absent() or Unknown()")


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    made = House("memory", tmp_path)
    yield made
    await made.close()


async def in_doubt(house: House, world: World, **options: Any) -> tuple[Any, str]:
    """A run whose process died after the act and before its end was on record."""

    @flow("pays", version="1")
    async def pays(ctx: Context) -> Any:
        return await ctx.effect(world.upload, "x", key="k", **options)

    rt = await house.process(pays)
    with pytest.raises(Crash):
        await rt.invoke(pays)
    house.kill(rt)
    return pays, (await rt.runs())[0].run_id


async def test_a_question_says_what_verify_answered(house: House) -> None:
    world = World(crash_at=1)
    pays, run_id = await in_doubt(house, world, verify=lambda key, text: True)
    (wait,) = (await (await house.process(pays)).resume(run_id)).waits
    assert wait.show["verify"] == "verify of upload returned a bool; it must return Happened(result), Absent() or Unknown()"
    assert world.done == ["x"]


async def test_a_limit_that_nobody_declares_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    @flow("sends", version="1")
    async def sends(ctx: Context) -> None:
        for n in range(3):
            await ctx.effect(abs, n, key=f"{n}", limit="mial")
            await ctx.effect(abs, n, key=f"m{n}", limit="mail")
            await ctx.effect(abs, n, key=f"s{n}", limit="stored")

    with caplog.at_level(logging.WARNING, "holdfast.limits"):
        async with Runtime("memory:", skills=[sends], limits={"mail": Limit(in_flight=5)}) as rt:
            await rt.set_limit("stored", Limit(in_flight=5), actor="ada")
            await rt.invoke(sends)
    (record,) = [r for r in caplog.records if r.name == "holdfast.limits"]
    assert record.getMessage().startswith("the limit 'mial' is declared nowhere, so calls that name it are not limited")


async def test_a_run_that_has_not_begun_shows_its_input_and_defaults() -> None:
    async with Runtime("memory:", skills=[mail()]) as rt:
        run = await rt.submit("mail", {"to": "ada", "tries": 2})
        assert (run.state.to, run.state.tries, run.state.text) == ("ada", 2, "Hello")
        (listed,) = await rt.runs()
        assert listed.state.text == "Hello"
        with pytest.raises(ChannelEmpty):
            _ = listed.state.to
        assert (await rt.resume(run.run_id)).state.text == "ada"


async def test_a_call_that_was_not_awaited_says_so() -> None:
    @flow("forgets", version="1")
    async def forgets(ctx: Context) -> Any:
        return forgotten

    forgotten = nothing()
    async with Runtime("memory:", skills=[forgets]) as rt:
        with pytest.raises(RunFailed, match="it was not awaited: write await in front of the call"):
            await rt.run(forgets)
    forgotten.close()


async def test_what_ends_a_run_gives_its_way_out() -> None:
    @flow("asks", version="1")
    async def asks(ctx: Context) -> None:
        await ctx.approve("Go?")

    async with Runtime("memory:", skills=[asks]) as rt:
        with pytest.raises(RunWaiting, match=r"rt\.waits\(\) and holdfast waits show how to answer it"):
            await rt.run(asks)


async def test_the_overview_counts_acts_of_processes_that_are_gone(house: House) -> None:
    """An attempt whose process died is in doubt before anybody has taken its run over."""
    await in_doubt(house, World(crash_at=1))
    found = await (await house.process()).look.overview()
    assert (found.doubtful, found.effects.get("unknown", 0), found.conditions["interrupted"]) == (1, 0, 1)

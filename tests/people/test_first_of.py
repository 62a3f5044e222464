"""The branches that ``ctx.first_of`` gives up: their waits are closed, and the signals that they made no use of are there for whoever asks next (§5.10, §5.11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, flow
from holdfast.core import events as ev
from holdfast.core.run import AT_HAND
from holdfast.handle import Run
from holdfast.runtime import Runtime
from holdfast.testing import violations
from tests.engine.outside import House
from tests.engine.support import World, says

HOUR = 3600


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    h = House(request.param, tmp_path)
    yield h
    for rt in h.runtimes:
        assert [p for p in await rt.check() if p.severity != "info"] == []
    await h.close()


@flow("kid")
async def kid(ctx: Context) -> Any:
    return await ctx.wait("never")


async def send(rt: Runtime, run_id: str, *names: str) -> None:
    for number, name in enumerate(names):
        await rt.signal(run_id, name, name.upper(), key=f"{number}")


async def begin_with(rt: Runtime, skill: Any, *names: str) -> Run[Any]:
    """Submits a run, sends it signals before it asks for any, and drives it."""
    run = await rt.submit(skill, {})
    await send(rt, run.run_id, *names)
    return await rt.resume(run.run_id)


async def rest_then(rt: Runtime, skill: Any, *names: str) -> Run[Any]:
    """Lets a run rest in its waits, sends it signals while nobody drives it, and drives it on."""
    run = await rt.invoke(skill, {}, detach=True)
    await send(rt, run.run_id, *names)
    return await rt.resume(run.run_id)


LOSERS: dict[str, Callable[[Context], Awaitable[Any]]] = {
    "approval": lambda ctx: ctx.approve("Instead?", timeout=1),
    "question": lambda ctx: ctx.ask("Who?", str, timeout=1),
    "handoff": lambda ctx: ctx.handoff("Look?", verdict="bad", timeout=1),
    "signal": lambda ctx: ctx.wait("y", timeout=1),
    "timer": lambda ctx: ctx.sleep(1),
    "child": lambda ctx: ctx.child(kid),
    "several": lambda ctx: ctx.gather(ctx.wait("y", timeout=1), ctx.approve("Instead?", timeout=1)),
    "one of several": lambda ctx: ctx.first_of(ctx.wait("y", timeout=1), ctx.approve("Instead?", timeout=1)),
}


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("loser", LOSERS)
async def test_a_wait_of_a_branch_that_lost_is_closed_though_it_was_being_opened(house: House, loser: str, first: bool) -> None:
    """Its deadline, an answer to it and a signal for it mean nothing any more."""

    @flow("race")
    async def race(ctx: Context) -> Any:
        calls = [ctx.wait("x"), LOSERS[loser](ctx)]
        index, value = await ctx.first_of(*(calls if first else calls[::-1]))
        return [index, value, await ctx.wait("later"), await ctx.wait("y")]

    rt = await house.process(race, kid)
    run = await begin_with(rt, race, "x")
    assert [w.name for w in run.waits] == ["later"]
    house.clock.forward(HOUR)
    await rt.worker(until_idle=True)
    await send(rt, run.run_id, "y", "later")
    run = await rt.resume(run.run_id)
    assert (run.status, run.result) == ("completed", [0 if first else 1, "X", "LATER", "Y"])
    assert [r.status for r in await rt.runs() if r.parent_run_id == run.run_id] == (["canceled"] if loser == "child" else [])


async def test_a_flow_that_begins_afresh_leaves_no_wait_that_was_being_opened(house: House) -> None:
    @flow("again")
    async def again(ctx: Context, round: int = 0) -> Any:
        async def restarts() -> None:
            await ctx.wait("x")
            ctx.restart(round=1)

        if round == 0:
            await ctx.first_of(restarts(), ctx.approve("Instead?", timeout=1), ctx.wait("y", timeout=1))
        return await ctx.wait("later")

    rt = await house.process(again)
    run = await begin_with(rt, again, "x")
    assert [w.name for w in run.waits] == ["later"]


@flow("two")
async def two(ctx: Context) -> Any:
    index, value = await ctx.first_of(ctx.wait("a"), ctx.wait("b"))
    return [index, value, await ctx.wait("b" if index == 0 else "a", timeout=60, on_timeout="deliver")]


@pytest.mark.parametrize("drive", [begin_with, rest_then], ids=["early", "at rest"])
@pytest.mark.parametrize(("names", "result"), [("ab", [0, "A", "B"]), ("ba", [1, "B", "A"])])
async def test_the_signal_that_came_first_wins_and_the_other_is_kept(house: House, drive: Callable[..., Awaitable[Run[Any]]], names: str, result: Any) -> None:
    run = await drive(await house.process(two), two, *names)
    assert (run.status, run.result) == ("completed", result)


@pytest.mark.parametrize("drive", [begin_with, rest_then], ids=["early", "at rest"])
@pytest.mark.parametrize("names", ["abc", "acb", "bac", "bca", "cab", "cba"])
async def test_signals_are_taken_one_by_one_in_their_order(house: House, drive: Callable[..., Awaitable[Run[Any]]], names: str) -> None:
    @flow("each")
    async def each(ctx: Context) -> Any:
        return [(await ctx.first_of(ctx.wait("a"), ctx.wait("b"), ctx.wait("c")))[1] for _ in range(3)]

    run = await drive(await house.process(each), each, *names)
    assert (run.status, run.result) == ("completed", list(names.upper()))


@pytest.mark.parametrize("drive", [begin_with, rest_then], ids=["early", "at rest"])
@pytest.mark.parametrize(
    ("names", "result"),
    [("abc", [1, ["A", "B"], ["C"]]), ("bac", [1, ["A", "B"], ["C"]]), ("acb", [0, "C", ["A", "B"]]), ("cab", [0, "C", ["A", "B"]]), ("ac", [0, "C", ["A", None]])],
)
async def test_a_branch_of_several_waits_came_when_the_last_of_them_did(house: House, drive: Callable[..., Awaitable[Run[Any]]], names: str, result: Any) -> None:
    @flow("both")
    async def both(ctx: Context) -> Any:
        index, value = await ctx.first_of(ctx.wait("c"), ctx.gather(ctx.wait("a"), ctx.wait("b")))
        return [index, value, [await ctx.wait(name, timeout=1, on_timeout="deliver") for name in ("ab" if index == 0 else "c")]]

    rt = await house.process(both)
    run = await drive(rt, both, *names)
    house.clock.forward(2)
    await rt.worker(until_idle=True)
    run = await rt.get(run.run_id)
    assert (run.status, run.result) == ("completed", result)


@pytest.mark.parametrize("loser", ["inner", "outer"])
async def test_a_race_within_a_race_keeps_what_it_made_no_use_of(house: House, loser: str) -> None:
    @flow("nested")
    async def nested(ctx: Context) -> Any:
        first = await ctx.first_of(ctx.wait("c"), ctx.first_of(ctx.wait("a"), ctx.wait("b")))
        return [first, sorted([await ctx.wait(name, timeout=60, on_timeout="deliver") or "" for name in "abc" if name.upper() not in str(first)])]

    run = await rest_then(await house.process(nested), nested, *("cab" if loser == "inner" else "bca"))
    assert (run.status, run.result) == ("completed", [(0, "C"), ["A", "B"]] if loser == "inner" else [(1, (1, "B")), ["A", "C"]])


@pytest.mark.parametrize("place", [0, 1])
async def test_a_signal_that_came_before_a_timer_fell_due_comes_first(house: House, place: int) -> None:
    """Nobody drove the run in between. A deadline counts from when it fell due, not from when somebody noticed."""

    @flow("ticks")
    async def ticks(ctx: Context) -> Any:
        out = []
        for _ in range(3):
            calls = [ctx.sleep(10), ctx.wait("go")]
            out.append((await ctx.first_of(*(calls if place else calls[::-1])))[1])
        return out

    rt = await house.process(ticks)

    async def result(*pauses: float) -> Any:
        run = await rt.invoke(ticks, {}, detach=True)
        house.clock.forward(pauses[0])
        await rt.signal(run.run_id, "go", "GO", key="1")
        house.clock.forward(pauses[1])
        while not (run := await rt.get(run.run_id)).result:
            await rt.worker(until_idle=True)
            house.clock.forward(11)
        return run.result

    assert await result(5, 20) == ["GO", None, None]
    assert await result(20, 1) == [None, "GO", None]


async def test_an_answer_that_came_first_wins(house: House) -> None:
    @flow("asks")
    async def asks(ctx: Context) -> Any:
        return [await ctx.first_of(ctx.wait("go"), ctx.ask("Who?", str)), await ctx.wait("go")]

    rt = await house.process(asks)
    run = await rt.invoke(asks, {}, detach=True)
    await rt.decide(run.run_id, "answer", payload="bob")
    await rt.signal(run.run_id, "go", "GO")
    run = await rt.resume(run.run_id)
    assert (run.status, run.result) == ("completed", [(1, "bob"), "GO"])


@pytest.mark.parametrize("drive", [begin_with, rest_then], ids=["early", "at rest"])
async def test_what_a_failed_gather_took_is_kept_but_for_what_the_failure_came_of(house: House, drive: Callable[..., Awaitable[Run[Any]]]) -> None:
    @flow("caught")
    async def caught(ctx: Context) -> Any:
        async def fails() -> None:
            await ctx.wait("bad")
            raise ConnectionError("no")

        try:
            await ctx.gather(ctx.wait("go"), fails(), ctx.gather(ctx.wait("on")))
        except ConnectionError:
            return [await ctx.wait(name, timeout=1, on_timeout="deliver") for name in ("go", "on", "bad")]

    rt = await house.process(caught)
    run = await drive(rt, caught, "go", "bad", "on")
    house.clock.forward(2)
    await rt.worker(until_idle=True)
    run = await rt.get(run.run_id)
    assert (run.status, run.result) == ("completed", ["GO", "ON", None])


FAILING: dict[str, Callable[[Context, Callable[[Any], Awaitable[Any]]], Awaitable[Any]]] = {
    "gather": lambda ctx, fails: ctx.gather(ctx.wait("go"), fails(1)),
    "gather within": lambda ctx, fails: ctx.gather(ctx.gather(ctx.wait("go")), fails(1)),
    "race within": lambda ctx, fails: ctx.gather(ctx.first_of(ctx.wait("go"), ctx.sleep(HOUR)), fails(1)),
}


@pytest.mark.parametrize("caught", [True, False])
@pytest.mark.parametrize("scope", [*FAILING, "map"])
async def test_a_run_that_failed_by_a_scope_has_each_signal_once_when_it_is_resumed(house: House, scope: str, caught: bool) -> None:
    fine: list[int] = []

    @flow("failing")
    async def failing(ctx: Context) -> Any:
        async def fails(number: int) -> str:
            if not fine:
                raise ConnectionError("no")
            return "fine"

        async def item(number: int) -> Any:
            return await (ctx.wait("go") if number == 0 else fails(number))

        got: Any = "caught"
        try:
            got = await (ctx.map(item, [0, 1]) if scope == "map" else FAILING[scope](ctx, fails))
        except ConnectionError:
            if not caught:
                raise
        return str([got, await ctx.wait("go", timeout=1, on_timeout="deliver")])

    rt = await house.process(failing)
    run = await begin_with(rt, failing, "go")
    if not caught:
        assert run.status == "failed"
        fine.append(1)
        await rt.resume(run.run_id, acknowledge=run.stop_reason)
        house.clock.forward(2)
        await rt.worker(until_idle=True)
    run = await rt.get(run.run_id)
    assert run.status == "completed" and run.result.count("GO") == 1 and ("fine" in run.result) is not caught
    assert await violations(rt.store) == []


async def test_a_signal_that_a_branch_has_made_use_of_is_used_up(house: House) -> None:
    """It went on to another call: what came of that stands, so the signal is not given to anybody else."""
    done: list[Any] = []

    async def ship(order: str) -> None:
        done.append(order)

    @flow("ships")
    async def ships(ctx: Context) -> Any:
        async def handle() -> None:
            await ctx.effect(ship, await ctx.wait("order"))
            await ctx.wait("paid")

        first = await ctx.first_of(handle(), ctx.wait("stop"))
        return [first, await ctx.wait("order", timeout=1, on_timeout="deliver")]

    rt = await house.process(ships)
    run = await rt.invoke(ships, {})
    await rt.signal(run.run_id, "order", "o1")
    run = await rt.resume(run.run_id)
    await rt.signal(run.run_id, "stop", "now")
    run = await rt.resume(run.run_id)
    house.clock.forward(2)
    await rt.worker(until_idle=True)
    assert ((await rt.get(run.run_id)).result, done) == ([(1, "now"), None], ["o1"])


async def test_a_signal_that_comes_while_another_branch_is_at_work_is_kept(house: House) -> None:
    """The step ends first, for nobody entered the branch again that waits."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def works() -> str:
        begun.set()
        await go_on.wait()
        return "worked"

    @flow("busy")
    async def busy(ctx: Context) -> Any:
        return [await ctx.first_of(ctx.wait("go"), ctx.step(works)), await ctx.wait("go")]

    rt = await house.process(busy)
    driving = asyncio.ensure_future(rt.invoke(busy, {}))
    await begun.wait()
    run_id = (await rt.runs())[0].run_id
    await rt.signal(run_id, "go", "GO")
    async for part in rt.stream(run_id, modes=("events",)):
        if part.data["event_type"] == "wait.decided":
            break
    go_on.set()
    assert (await driving).result == [(1, "worked"), "GO"]


async def test_more_signals_than_a_runs_record_holds_keep_their_order(house: House) -> None:
    count = AT_HAND + 3

    @flow("many")
    async def many(ctx: Context) -> Any:
        return [(await ctx.first_of(ctx.wait("stop"), ctx.wait("go")))[1] for _ in range(count + 1)]

    rt = await house.process(many)
    run = await rt.submit(many, {})
    for n in range(count):
        await rt.signal(run.run_id, "go", n, key=f"{n}")
    await rt.signal(run.run_id, "stop", "STOP", key="s")
    run = await rt.resume(run.run_id)
    assert run.status == "completed"
    assert [v for v in run.result if v != "STOP"] == list(range(count)) and run.result.count("STOP") == 1


@pytest.mark.parametrize("after", [True, False])
async def test_a_crash_loses_no_signal_and_doubles_none(after: bool) -> None:
    """Before and after each of the commits by which a race is decided."""
    for kind, fields in ((ev.WaitDecided, {}), (ev.StepCompleted, {"path": "0"}), (ev.WaitDecided, {})):
        world = World()
        async with world.runtime(two) as rt:
            run = await rt.submit(two, {})
            await send(rt, run.run_id, "b", "a")
        await world.crash(two, when=says(kind, **fields), after=after, resume=run.run_id)
        assert (await world.recovered(two)).result == [1, "B", "A"]


async def test_an_event_tells_which_signal_was_kept(house: House) -> None:
    rt = await house.process(two)
    run = await rest_then(rt, two, "a", "b")
    told = [e.payload for e in await rt.events(run.run_id) if e.type == "wait.closed"]
    assert [t["returned"]["name"] for t in told] == ["b"] and told[0]["returned"]["payload"] == "B"


async def test_a_failure_that_comes_at_once_leaves_the_earlier_answer_of_another_branch(house: House) -> None:
    """Both were answered while nobody drove the run: the branch whose answer came first wins with what it gives, though the other fails before it begins."""

    async def refuse(ctx: Context) -> str:
        raise ValueError((await ctx.approve("One?")).action)

    async def accept(ctx: Context) -> str:
        return (await ctx.approve("Two?")).action

    @flow("both")
    async def both(ctx: Context) -> Any:
        return await ctx.first_of(refuse(ctx), accept(ctx))

    rt = await house.process(both)
    run = await rt.invoke("both")
    first, second = sorted(run.waits, key=lambda w: w.prompt, reverse=True)
    for wait in (first, second):
        await rt.decide(run.run_id, "approve", wait_id=wait.wait_id, actor="ada")
    run = await rt.resume(run.run_id)
    assert (run.status, list(run.result)) == ("completed", [1, "approve"])

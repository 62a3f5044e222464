"""A run, or its fork, goes another way than what is on record: none of that answers for it, and none of it stands in its way (§4.12, §6.11, §7.7)."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Runtime, flow
from tests.engine.outside import Crash, House
from tests.engine.test_after_an_undo import Desk


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    h = House(request.param, tmp_path)
    yield h
    await h.close()


@flow("helper")
async def helper(ctx: Context, given: str) -> str:
    if given == "second":
        await ctx.wait("go")
    return f"<{given}>"


def trips(desk: Desk, inputs: dict[str, str]) -> Any:
    """Asks a child about each booking, or a person about those that it has no input for."""

    @flow("trips")
    async def trips(ctx: Context) -> Any:
        booking = await ctx.effect(desk.book, "seat", undo=desk.cancel)
        if booking in inputs:
            await ctx.step(desk.note, booking)
            got = await ctx.child("helper", {"given": inputs[booking]})
        else:
            got = await ctx.ask("Who?", str), await ctx.ask(f"Who has {booking}?", str)
        await ctx.approve("Go?")
        return got

    return trips


async def answer(rt: Runtime, run: Any) -> Any:
    await rt.decide(run.run_id, "answer", payload="ada", actor="ada")
    return await rt.resume(run.run_id)


async def test_a_question_of_a_fork_is_none_of_what_its_source_has_there(house: House) -> None:
    desk = Desk()
    rt = await house.process(trips(desk, {"R1": "first"}), helper)
    run = await rt.resume((await rt.cancel((await rt.invoke("trips")).run_id)).run_id)
    assert [w.prompt for w in run.waits] == ["Who?"]
    fork = await answer(rt, await rt.fork(run.run_id))
    assert [w.prompt for w in fork.waits] == ["Who has R2?"]
    fork = await rt.resume((await rt.cancel(fork.run_id)).run_id)
    assert [w.prompt for w in fork.waits] == ["Who has R2?"], f"{fork.error}"
    fork = await rt.approve((await answer(rt, fork)).run_id)
    assert (fork.status, list(fork.result)) == ("completed", ["ada", "ada"])


async def test_a_fork_of_a_fork_waits_for_the_child_that_it_asks(house: House) -> None:
    """And is not given what another child, of their common source, had come to at that place."""
    desk = Desk()
    rt = await house.process(trips(desk, {"R1": "first", "R2": "second", "R3": "second"}), helper)
    run = await rt.cancel((await rt.invoke("trips")).run_id)
    fork = await rt.fork(run.run_id)
    assert fork.status == "waiting_for_signal"
    fork = await rt.fork((await rt.cancel(fork.run_id)).run_id)
    assert fork.status == "waiting_for_signal" and [w.kind for w in fork.waits] == ["child"]
    await rt.signal(fork.waits[0].name, "go", None)
    await rt.resume(fork.waits[0].name)
    fork = await rt.approve((await rt.resume(fork.run_id)).run_id)
    assert (fork.status, fork.result) == ("completed", "<second>")


async def test_a_fork_that_asks_a_third_child_is_given_what_that_one_says(house: House) -> None:
    desk = Desk()
    rt = await house.process(trips(desk, {"R1": "first", "R2": "second", "R3": "third"}), helper)
    run = await rt.cancel((await rt.invoke("trips")).run_id)
    fork = await rt.cancel((await rt.fork(run.run_id)).run_id)
    fork = await rt.approve((await rt.resume(fork.run_id)).run_id)
    assert (fork.status, fork.result) == ("completed", "<third>")


async def at_second(desk: Desk, given: Any) -> Any:
    """Fails the first time."""
    desk.fail_once()
    return given


def changed(desk: Desk, skill: dict[str, str]) -> Any:
    """First it books a seat in a scope; once it is changed it makes a note in that place."""

    @flow("changed")
    async def changed(ctx: Context) -> Any:
        if skill["way"] == "book":
            got: Any = await ctx.first_of(ctx.effect(desk.book, "seat", undo=desk.cancel), ctx.wait("never"))
        else:
            got = await ctx.step(desk.note, "no seats")
        await ctx.approve("Go?")
        return got

    return changed


async def test_a_fork_does_not_go_by_what_its_source_has_long_taken_back(house: House) -> None:
    desk, skill = Desk(), {"way": "book"}
    rt = await house.process(changed(desk, skill))
    run = await rt.cancel((await rt.invoke("changed")).run_id)
    skill["way"] = "note"
    run = await rt.resume(run.run_id)
    assert run.status == "waiting_for_human"
    fork = await rt.approve((await rt.fork(run.run_id)).run_id)
    assert (fork.status, fork.result, desk.standing) == ("completed", "no seats", set()), f"{fork.error}"


async def test_a_fork_that_goes_another_way_is_refused_once(house: House) -> None:
    """What it had taken over was undone in its source meanwhile: that is told once, and what it does itself in that place is its own."""
    desk, skill = Desk(), {"way": "book"}
    rt = await house.process(changed(desk, skill))
    run = await rt.invoke("changed")
    fork = await rt.fork(run.run_id)
    await rt.cancel(run.run_id)
    fork = await rt.approve(fork.run_id)
    assert (fork.status, fork.stop_reason, desk.standing) == ("failed", "effects_undone", set())
    skill["way"] = "note"
    fork = await rt.resume(fork.run_id, acknowledge="effects_undone")
    if fork.status == "waiting_for_human":
        fork = await rt.approve(fork.run_id)
    assert (fork.status, fork.result) == ("completed", "no seats"), f"{fork.error}"


async def test_a_fork_of_a_fork_does_not_go_by_what_a_failure_had_led_to(house: House) -> None:
    """Its first source met a failure and went another way; in the fork after it the effect succeeded."""
    desk = Desk()

    @flow("paid")
    async def paid(ctx: Context) -> Any:
        try:
            amount = await ctx.effect(functools.partial(at_second, desk), 7, side_effects="external_action", idempotent=True)
        except RuntimeError:
            ctx.now()
            return await ctx.ask("What now?", str)
        return amount, await ctx.ask("For whom?", str)

    rt = await house.process(paid)
    run = await rt.invoke("paid")
    first = await rt.fork(run.run_id)
    second = await rt.fork(first.run_id)
    assert [[w.prompt for w in r.waits] for r in (run, first, second)] == [["What now?"], ["For whom?"], ["For whom?"]], f"{second.error}"
    second = await answer(rt, second)
    assert (second.status, list(second.result)) == ("completed", [7, "ada"])


async def test_what_was_asked_before_an_undo_began_is_no_lost_record(house: House) -> None:
    """§6.11, §12.1: nobody could find how to take it back, and the run was cancelled; now its code is at hand."""
    desk = Desk()

    @flow("closed")
    async def closed(ctx: Context) -> None:
        await ctx.effect(desk.book, "flight", undo=lambda receipt: desk.standing.remove(receipt))
        await ctx.approve("Go?")
        desk.fail_once()

    rt = await house.process(closed)
    run = await rt.invoke("closed")
    house.kill(rt)
    rt = await house.process(closed)
    run = await rt.cancel(run.run_id)
    assert [w.kind for w in run.waits] == ["effect"] and desk.standing == {"R1"}
    run = await rt.resume((await rt.cancel(run.run_id)).run_id)
    assert run.status == "waiting_for_human"
    run = await rt.approve(run.run_id)
    assert (run.status, desk.standing) == ("failed", set())


def books_once_in_vain(desk: Desk) -> Any:
    """The process dies in its first booking, before it could write down what came of it."""
    dies = [True]

    async def book(what: str) -> str:
        got = await desk.book(what)
        if dies:
            dies.clear()
            desk.standing.clear()
            raise Crash
        return got

    @flow("asked")
    async def asked(ctx: Context) -> str:
        _, got = await ctx.gather(ctx.approve("Go?"), ctx.effect(book, "seat", side_effects="external_action", undo=desk.cancel))
        return str(got)

    return asked


async def test_each_attempt_of_a_fork_has_a_record_of_its_own(house: House) -> None:
    """§6.1: what it says about its forebear's act, what it does in its place, and what it does again after an undo; a fork of it finds what stands."""
    desk = Desk()
    asked = books_once_in_vain(desk)
    rt = await house.process(asked)
    with pytest.raises(Crash):
        await rt.invoke("asked", key="once")
    house.kill(rt)
    rt = await house.process(asked)
    run = await rt.invoke("asked", key="once")
    fork = await rt.fork(run.run_id)
    [question] = [w for w in fork.waits if w.kind == "effect"]
    await rt.decide(fork.run_id, "reexecute", wait_id=question.wait_id, actor="ada")
    fork = await rt.resume(fork.run_id)
    fork = await rt.resume((await rt.cancel(fork.run_id)).run_id)
    assert desk.standing == {"R3"}
    mine = [e for e in await rt.effects(fork.run_id) if e.run_id == fork.run_id and e.capability == "book"]
    assert [str(e.status) for e in mine] == ["abandoned", "recorded", "recorded"] and len({e.effect_id for e in mine}) == 3
    again = await rt.fork(fork.run_id)
    assert desk.standing == {"R3"} and [w.kind for w in again.waits] == ["approval"]


async def test_what_was_asked_about_an_act_that_was_taken_back_is_no_lost_record(house: House) -> None:
    """§6.5, §12.1: the question was about an attempt under the key before."""
    desk = Desk()
    asked = books_once_in_vain(desk)
    rt = await house.process(asked)
    with pytest.raises(Crash):
        await rt.invoke("asked", key="once")
    house.kill(rt)
    rt = await house.process(asked)
    run = await rt.invoke("asked", key="once")
    [question] = [w for w in run.waits if w.kind == "effect"]
    await rt.decide(run.run_id, "reexecute", wait_id=question.wait_id, actor="ada")
    run = await rt.resume(run.run_id)
    assert desk.standing == {"R2"} and [w.kind for w in run.waits] == ["approval"]
    run = await rt.resume((await rt.cancel(run.run_id)).run_id)
    assert [w.kind for w in run.waits] == ["approval"] and desk.standing == {"R3"}
    run = await rt.approve(run.run_id)
    assert (run.status, run.result) == ("completed", "R3")


async def test_a_fork_that_tries_again_does_not_do_again_what_it_was_given(house: House) -> None:
    """§6.6: its source has booked in the handler of a failure, and so has this run, by that: however often the handler is come to."""
    desk = Desk()

    async def refuse() -> None:
        raise RuntimeError("no")

    @flow("handled", retry=2)
    async def handled(ctx: Context) -> None:
        try:
            await ctx.step(refuse)
        finally:
            await ctx.effect(desk.book, "seat", side_effects="external_action")
            await ctx.ask("Seen?", str)

    rt = await house.process(handled)
    run = await rt.invoke("handled")
    fork = await answer(rt, await rt.fork(run.run_id))
    assert [w.prompt for w in fork.waits] == ["Seen?"] and desk.booked == 1
    assert (await answer(rt, fork)).status == "failed" and desk.booked == 1


async def test_a_fork_tries_again_what_had_failed(house: House) -> None:
    """§7.7: also where the code had caught it; what it did then answers no other call."""
    desk = Desk()

    @flow("noted")
    async def noted(ctx: Context) -> str:
        async def write() -> str:
            return how

        try:
            how = await ctx.step(functools.partial(at_second, desk), "as planned")
        except RuntimeError:
            how = "otherwise"
        written = await ctx.step(write)
        await ctx.ask(f"{written}?", str)
        return str(written)

    rt = await house.process(noted)
    run = await rt.invoke("noted")
    fork = await rt.fork(run.run_id)
    assert [[w.prompt for w in r.waits] for r in (run, fork)] == [["otherwise?"], ["as planned?"]]
    assert (await answer(rt, fork)).result == "as planned"


@pytest.mark.parametrize("later", ["a_scope", "a_question"])
async def test_a_replay_goes_by_the_last_way_alone(later: str, house: House) -> None:
    """§7.6: what stood at a place before the run went another way does not answer what it called there then."""
    desk = Desk()

    async def double(text: str) -> str:
        return text + text

    @flow("ways")
    async def ways(ctx: Context) -> Any:
        booking = await ctx.effect(desk.book, "seat", undo=desk.cancel)
        if booking == "R1":
            got: Any = await ctx.step(desk.note, booking)
        elif later == "a_scope":
            got = await ctx.map(double, [booking])
        else:
            got = (await ctx.approve("Sure?")).action
        await ctx.approve("Go?")
        return got

    rt = await house.process(ways)
    run = await rt.resume((await rt.cancel((await rt.invoke("ways")).run_id)).run_id)
    while run.waits:
        run = await rt.approve(run.run_id)
    assert run.status == "completed"
    again = await rt.replay(run.run_id)
    while again.waits:
        again = await rt.approve(again.run_id)
    assert (again.status, again.result, desk.booked) == ("completed", run.result, 2), f"{again.error}"


async def test_a_fork_with_other_arguments_is_not_asked_about_what_its_source_left_in_doubt(house: House) -> None:
    """§7.7: whoever forks says what is to be done. The attempt stays on the record of the run that made it, which asks about it."""
    desk, dies, what = Desk(), [True], ["window"]

    async def book(seat: str) -> str:
        if dies:
            dies.clear()
            raise Crash
        return f"{seat} {await desk.book(seat)}"

    @flow("seated")
    async def seated(ctx: Context) -> str:
        return str(await ctx.effect(book, what[0], side_effects="external_action"))

    rt = await house.process(seated)
    with pytest.raises(Crash):
        await rt.invoke("seated", key="once")
    house.kill(rt)
    what[0] = "aisle"
    rt = await house.process(seated)
    run = await rt.invoke("seated", key="once")
    assert ([w.kind for w in run.waits], desk.booked) == (["effect"], 0), run.error
    fork = await rt.fork(run.run_id)
    assert (fork.status, fork.result) == ("completed", "aisle R1"), f"{fork.waits} {fork.error}"
    assert [w.kind for w in (await rt.get(run.run_id)).waits] == ["effect"]


async def test_what_was_undone_on_another_way_is_no_matter_to_a_fork(house: House) -> None:
    """§6.11: a question stands now where the source had booked before it went another way. A fork that is asked it, and makes what the source had made, holds nothing of that booking."""
    desk, fails = Desk(), [True]

    async def check() -> None:
        if fails:
            fails.clear()
            raise ConnectionError("lost")

    @flow("ways")
    async def ways(ctx: Context) -> Any:
        async def item(name: str) -> str:
            try:
                await ctx.step(check)
            except ConnectionError:
                await ctx.effect(desk.book, name, undo=desk.cancel)
                raise
            await ctx.approve("Sure?")
            return name

        got = await ctx.map(item, ["seat"])
        await ctx.approve("Go?")
        return got

    rt = await house.process(ways)
    run = await rt.invoke("ways")
    assert (run.status, desk.booked, desk.standing) == ("failed", 1, set())
    run = await rt.resume(run.run_id, acknowledge=run.stop_reason)
    run = await rt.approve(run.run_id)
    fork = await rt.fork(run.run_id, actor="ada")
    for _ in range(2):
        assert [w.prompt for w in fork.waits] in (["Sure?"], ["Go?"]), fork.error
        fork = await rt.approve(fork.run_id)
    assert (fork.status, fork.result, desk.booked) == ("completed", ["seat"], 1), fork.error

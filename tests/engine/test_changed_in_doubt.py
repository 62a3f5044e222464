"""An attempt that nobody knows the outcome of, whose call is entered again with other arguments (§4.12, §5.8, §6.3, §6.5, decision 127).

A person is asked about the attempt, settles it, and the run goes on; the new call is an act of its own. Nothing is done twice against a
person's word, and no run is stopped for ever.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Retry, Tool, flow
from holdfast.core.errors import AttemptMayLive
from tests.engine.outside import Crash, House


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    house = House(request.param, tmp_path)
    yield house
    await house.close()


class Desk:
    """Books what it is told. The process dies in the act as often as ``dies`` says; what it did counts all the same."""

    def __init__(self, *dies: bool) -> None:
        self.dies = list(dies)
        self.booked: list[str] = []
        self.canceled: list[str] = []

    async def book(self, seat: str) -> str:
        self.booked.append(seat)
        if self.dies and self.dies.pop(0):
            raise Crash
        return f"R{len(self.booked)} {seat}"

    async def mail(self, to: str) -> str:
        self.booked.append(f"mail {to}")
        return f"mailed {to}"

    async def cancel(self, receipt: str, seat: str) -> None:
        self.canceled.append(f"{receipt}/{seat}")


class Seats:
    """A flow whose plain code computes another argument whenever somebody sets ``seat``, and may call ``mail`` in the place of ``book``."""

    def __init__(self, desk: Desk, **options: Any) -> None:
        self.desk = desk
        self.seat = "window"
        self.other = False
        self.options = options

    @property
    def skill(self) -> Any:
        @flow("seated", version="1")
        async def seated(ctx: Context) -> Any:
            if self.other:
                return await ctx.effect(self.desk.mail, self.seat)
            return await ctx.effect(self.desk.book, self.seat, **self.options)

        return seated


async def die_in(house: House, seats: Seats) -> Any:
    """A process that died in the act, and the next one."""
    rt = await house.process(seats.skill)
    with pytest.raises(Crash):
        await rt.invoke("seated", key="once")
    house.kill(rt)
    return await house.process(seats.skill)


async def rows(rt: Any, run_id: str) -> list[tuple[str, str]]:
    return [(e.effect_id.rpartition("#")[2], str(e.status)) for e in await rt.effects(run_id)]


async def is_clean(rt: Any, run_id: str) -> bool:
    return [p for p in await rt.check(run_id) if p.severity == "error"] == []


async def test_a_person_is_asked_about_the_attempt_and_shown_both(house: House) -> None:
    seats = Seats(Desk(True), undo=Desk().cancel)
    rt = await die_in(house, seats)
    seats.seat = "aisle"
    run = await rt.invoke("seated", key="once")
    assert run.status == "waiting_for_human", run.error
    (wait,) = run.waits
    (effect,) = await rt.effects(run.run_id)
    assert (wait.kind, wait.effect_id, effect.status) == ("effect", effect.effect_id, "unknown") and "other arguments" in wait.prompt
    assert wait.available_actions == ("record_result", "reexecute", "abandon", "halt")
    assert wait.show["key"] == effect.key and wait.show["arguments"] == effect.request_hash and wait.show["closed"] is True
    assert (wait.show["show"], wait.show["now"]["show"]) == (["window"], ["aisle"]) and wait.show["now"]["arguments"] != effect.request_hash
    assert seats.desk.booked == ["window"] and await is_clean(rt, run.run_id)


async def test_what_was_attempted_is_not_shown_where_it_is_not_known(house: House) -> None:
    """No record keeps arguments that no undo needs: those of the new call are not shown in their place."""
    seats = Seats(Desk(True))
    rt = await die_in(house, seats)
    seats.seat = "aisle"
    (wait,) = (await rt.invoke("seated", key="once")).waits
    assert wait.show["show"] is None and wait.show["now"]["show"] == ["aisle"]


@pytest.mark.parametrize("options", [{}, {"idempotent": True}, {"verify": lambda key, seat: None}, {"retry": Retry(3, base_us=0)}], ids=["plain", "idempotent", "verify", "retry"])
async def test_had_it_done_with_the_new_arguments(options: dict[str, Any], house: House) -> None:
    """`reexecute`: the attempt came to nothing, and the new call is an act of its own under a key of its own. No hook is asked about another act."""
    seats = Seats(Desk(True), **options)
    rt = await die_in(house, seats)
    seats.seat = "aisle"
    run = await rt.invoke("seated", key="once")
    await rt.decide(run.run_id, "reexecute", actor="ada")
    run = await rt.resume(run.run_id)
    assert (run.status, run.result) == ("completed", "R2 aisle"), run.error
    assert await rows(rt, run.run_id) == [("1", "abandoned"), ("2", "recorded")] and await is_clean(rt, run.run_id)
    old, new = await rt.effects(run.run_id)
    assert old.key != new.key and new.source_effect_id is None, "it is no repetition of the other"
    again = await rt.replay(run.run_id)
    assert (again.status, again.result, len(seats.desk.booked)) == ("completed", "R2 aisle", 2)
    fork = await rt.fork(run.run_id, from_checkpoint=(await rt.checkpoints(run.run_id))[0].checkpoint_id)
    assert (fork.status, fork.result, len(seats.desk.booked)) == ("completed", "R2 aisle", 2)


@pytest.mark.parametrize(("then", "result", "booked"), [("approve", "by hand", ["window"]), ("reexecute", "R2 aisle", ["window", "aisle"])])
async def test_it_happened(then: str, result: str, booked: list[str], house: House) -> None:
    """`record_result` settles the attempt alone. Whether its result is used, or the new call is carried out beside it, is the question of §6.3: nobody pays twice unasked."""
    seats = Seats(Desk(True))
    rt = await die_in(house, seats)
    seats.seat = "aisle"
    run = await rt.invoke("seated", key="once")
    await rt.decide(run.run_id, "record_result", payload="by hand", note="saw it", actor="ada")
    run = await rt.resume(run.run_id)
    (wait,) = run.waits
    assert (wait.kind, wait.available_actions) == ("gate", ("approve", "reexecute", "deny")) and seats.desk.booked == ["window"]
    assert await rows(rt, run.run_id) == [("1", "recorded")]
    assert [e.payload["detail"] for e in await rt.events(run.run_id) if e.type == "side_effect.recorded"] == ["as ada (saw it) found"]
    await rt.decide(run.run_id, then, actor="ada")
    run = await rt.resume(run.run_id)
    assert (run.status, run.result, seats.desk.booked) == ("completed", result, booked), run.error
    assert await is_clean(rt, run.run_id)
    again = await rt.replay(run.run_id)
    while again.waits:
        again = await rt.resume((await rt.decide(again.run_id, then, actor="ada")).run_id)
    assert (again.status, again.result, seats.desk.booked) == ("completed", result, booked), again.error


async def test_it_shall_not_be_done(house: House) -> None:
    """`abandon` means what it means: the call fails, and nothing is done unless a person says so later."""
    seats = Seats(Desk(True))
    rt = await die_in(house, seats)
    seats.seat = "aisle"
    run = await rt.invoke("seated", key="once")
    await rt.decide(run.run_id, "abandon", actor="ada")
    run = await rt.resume(run.run_id)
    assert (run.status, run.stop_reason, seats.desk.booked) == ("failed", "effect_abandoned", ["window"])
    for seat in ("aisle", "exit"):
        seats.seat = seat
        run = await rt.resume(run.run_id, acknowledge=run.stop_reason)
        (wait,) = run.waits
        assert (run.status, wait.available_actions) == ("waiting_for_human", ("reexecute", "abandon", "halt")) and wait.show["now"]["show"] == [seat]
        if seat == "aisle":
            await rt.decide(run.run_id, "abandon", actor="ada")
            run = await rt.resume(run.run_id)
            assert (run.status, run.stop_reason, seats.desk.booked) == ("failed", "effect_abandoned", ["window"])
    await rt.decide(run.run_id, "reexecute", actor="ada")
    run = await rt.resume(run.run_id)
    assert (run.status, run.result, seats.desk.booked) == ("completed", "R2 exit", ["window", "exit"]) and await is_clean(rt, run.run_id)


async def test_what_was_abandoned_is_asked_about_with_other_arguments(house: House) -> None:
    """The class, from its other end: what a person gave up when it was called as it had been attempted, and is called in another way now."""
    seats = Seats(Desk(True))
    rt = await die_in(house, seats)
    run = await rt.invoke("seated", key="once")
    await rt.decide(run.run_id, "abandon", actor="ada")
    run = await rt.resume(run.run_id)
    seats.seat = "aisle"
    run = await rt.resume(run.run_id, acknowledge=run.stop_reason)
    assert [w.available_actions for w in run.waits] == [("reexecute", "abandon", "halt")], run.error
    await rt.decide(run.run_id, "reexecute", actor="ada")
    run = await rt.resume(run.run_id)
    assert (run.status, run.result, seats.desk.booked) == ("completed", "R2 aisle", ["window", "aisle"])


async def test_halt_ends_the_run_over_it(house: House) -> None:
    seats = Seats(Desk(True))
    rt = await die_in(house, seats)
    seats.seat = "aisle"
    run = await rt.invoke("seated", key="once")
    await rt.decide(run.run_id, "halt", actor="ada")
    run = await rt.resume(run.run_id) if (await rt.get(run.run_id)).status != "canceled" else await rt.get(run.run_id)
    assert (run.status, run.settled, seats.desk.booked) == ("canceled", True, ["window"]) and await rows(rt, run.run_id) == [("1", "unknown")]


# -- answers cover what was shown -------------------------------------------------------------------


async def test_a_repetition_covers_the_arguments_that_were_shown(house: House) -> None:
    """X-28: that it may be done with 1 is no word about 1,000,000, neither before the arguments changed nor after."""
    seats = Seats(Desk(True))
    rt = await die_in(house, seats)
    run = await rt.invoke("seated", key="once")
    first = run.waits[0]
    await rt.decide(run.run_id, "reexecute", actor="ada", resume=False)
    for seat in ("aisle", "exit"):
        seats.seat = seat
        run = await rt.resume(run.run_id)
        (wait,) = run.waits
        assert (wait.kind, wait.show["now"]["show"], seats.desk.booked) == ("effect", [seat], ["window"]) and wait.wait_id != first.wait_id
        assert "ada" in wait.verdict and "ctx.step" in wait.verdict
        await rt.decide(run.run_id, "reexecute", actor="ada", resume=False)
    run = await rt.resume(run.run_id)
    assert (run.status, run.result, seats.desk.booked) == ("completed", "R2 exit", ["window", "exit"])


async def test_where_the_author_says_what_is_shown_that_is_compared(house: House) -> None:
    """§5.8: an argument that is new each time, such as a random number, asks once where ``show=`` leaves it out."""
    seats = Seats(Desk(True), show="a seat for ada")
    rt = await die_in(house, seats)
    seats.seat = "aisle"
    run = await rt.invoke("seated", key="once")
    await rt.decide(run.run_id, "reexecute", actor="ada", resume=False)
    seats.seat = "exit"
    run = await rt.resume(run.run_id)
    assert (run.status, run.result) == ("completed", "R2 exit"), run.waits


@pytest.mark.parametrize(("action", "options"), [("record_result", {"payload": "by hand"}), ("abandon", {})])
async def test_what_a_person_found_out_counts_whatever_the_arguments(action: str, options: dict[str, Any], house: House) -> None:
    """It is about the attempt, and was said when the code called it as it was attempted."""
    seats = Seats(Desk(True))
    rt = await die_in(house, seats)
    run = await rt.invoke("seated", key="once")
    await rt.decide(run.run_id, action, actor="ada", resume=False, **options)
    seats.seat = "aisle"
    run = await rt.resume(run.run_id)
    if action == "abandon":
        assert (run.status, run.stop_reason, seats.desk.booked) == ("failed", "effect_abandoned", ["window"])
    else:
        assert [w.kind for w in run.waits] == ["gate"] and await rows(rt, run.run_id) == [("1", "recorded")]


async def test_the_use_of_arguments_that_a_gate_did_not_show_is_asked_for_again(house: House) -> None:
    """The same for a result on record and other arguments (§6.3): to have it done with those that were shown is no word about others."""
    seats = Seats(Desk(True))
    rt = await die_in(house, seats)
    seats.seat = "aisle"
    run = await rt.invoke("seated", key="once")
    await rt.decide(run.run_id, "record_result", payload="by hand", actor="ada")
    run = await rt.resume(run.run_id)
    await rt.decide(run.run_id, "reexecute", actor="ada", resume=False)
    seats.seat = "exit"
    run = await rt.resume(run.run_id)
    assert [w.show["now"]["show"] for w in run.waits] == [["exit"]] and seats.desk.booked == ["window"]


async def test_the_arguments_come_back(house: House) -> None:
    """A question about other arguments is open, and the code calls as it had attempted: the answer repeats that, under its own key."""
    seats = Seats(Desk(True))
    rt = await die_in(house, seats)
    seats.seat = "aisle"
    run = await rt.invoke("seated", key="once")
    seats.seat = "window"
    await rt.decide(run.run_id, "reexecute", actor="ada")
    run = await rt.resume(run.run_id)
    assert [w.show["show"] for w in run.waits] == [["window"]] and seats.desk.booked == ["window"], "to have the other one done was no word about this one"
    await rt.decide(run.run_id, "reexecute", actor="ada")
    run = await rt.resume(run.run_id)
    assert (run.status, run.result, seats.desk.booked) == ("completed", "R2 window", ["window", "window"])


# -- an act is repeated only when it can happen no more -----------------------------------------------


async def test_a_frozen_process_may_still_act(house: House) -> None:
    """X-04: the new call is carried out beside an attempt that may still come through only when a person takes that upon them."""
    seats = Seats(Desk(True))
    rt = await house.process(seats.skill)
    with pytest.raises(Crash):
        await rt.invoke("seated", key="once")
    house.stop(rt)
    seats.seat = "aisle"
    rt = await house.process(seats.skill)
    run = await rt.invoke("seated", key="once")
    (wait,) = run.waits
    assert wait.show["closed"] is False
    with pytest.raises(AttemptMayLive):
        await rt.decide(run.run_id, "reexecute", actor="ada")
    await rt.decide(run.run_id, "reexecute", actor="ada", force=True)
    run = await rt.resume(run.run_id)
    assert (run.status, run.result) == ("completed", "R2 aisle")


# -- one attempt after another ------------------------------------------------------------------------


async def test_it_dies_in_each_of_them(house: House) -> None:
    """Three attempts at one place, each with other arguments, each in doubt: each is asked about, and has a record of its own."""
    desk = Desk(True, True, True)
    seats = Seats(desk)
    rt = await die_in(house, seats)
    asked: list[Any] = []
    for seat in ("aisle", "exit", "window"):
        seats.seat = seat
        run = await rt.invoke("seated", key="once")
        (wait,) = run.waits
        asked.append(wait.effect_id)
        await rt.decide(run.run_id, "reexecute", actor="ada", resume=False)
        if desk.dies:
            with pytest.raises(Crash):
                await rt.resume(run.run_id)
            house.kill(rt)
            rt = await house.process(seats.skill)
    run = await rt.resume(run.run_id)
    assert (run.status, run.result) == ("completed", "R4 window"), run.error
    assert len(set(asked)) == 3 and desk.booked == ["window", "aisle", "exit", "window"]
    assert await rows(rt, run.run_id) == [("1", "abandoned"), ("2", "abandoned"), ("3", "abandoned"), ("4", "recorded")] and await is_clean(rt, run.run_id)


async def test_an_attempt_under_a_key_beside_is_not_passed_over(house: House) -> None:
    """The second arguments are attempted under a key of their own. Where the code comes back to the first ones, that attempt is asked about before."""
    desk = Desk(True, True)
    seats = Seats(desk)
    rt = await die_in(house, seats)
    seats.seat = "aisle"
    run = await rt.invoke("seated", key="once")
    await rt.decide(run.run_id, "reexecute", actor="ada", resume=False)
    with pytest.raises(Crash):
        await rt.resume(run.run_id)
    house.kill(rt)
    seats.seat = "window"
    rt = await house.process(seats.skill)
    run = await rt.invoke("seated", key="once")
    second = (await rt.effects(run.run_id))[1]
    assert [w.effect_id for w in run.waits] == [second.effect_id] and desk.booked == ["window", "aisle"], run.error
    await rt.decide(run.run_id, "record_result", payload="by hand", actor="ada")
    run = await rt.resume(run.run_id)
    while run.waits:
        assert desk.booked == ["window", "aisle"]
        await rt.decide(run.run_id, "reexecute", actor="ada")
        run = await rt.resume(run.run_id)
    assert (run.status, run.result, desk.booked) == ("completed", "R3 window", ["window", "aisle", "window"])
    assert [s for _, s in await rows(rt, run.run_id)] == ["abandoned", "recorded", "recorded"] and await is_clean(rt, run.run_id)


# -- another call in its place ------------------------------------------------------------------------


@pytest.mark.parametrize(("action", "options", "status"), [("record_result", {"payload": "by hand"}, "recorded"), ("abandon", {}, "abandoned")])
async def test_another_effect_is_called_in_its_place(action: str, options: dict[str, Any], status: str, house: House) -> None:
    """The question is about what was attempted, and says so. It cannot be done again, for the code does not call it; what the code calls is carried out then."""
    seats = Seats(Desk(True))
    rt = await die_in(house, seats)
    seats.other = True
    run = await rt.invoke("seated", key="once")
    (wait,) = run.waits
    assert (wait.kind, wait.name, wait.available_actions) == ("effect", wait.show["effect"], ("record_result", "abandon", "halt"))
    assert "book" in wait.prompt and "mail" in wait.prompt and wait.show["now"]["effect"] != wait.name and seats.desk.booked == ["window"]
    await rt.decide(run.run_id, action, actor="ada", **options)
    run = await rt.resume(run.run_id)
    assert (run.status, run.result, seats.desk.booked) == ("completed", "mailed window", ["window", "mail window"]), run.error
    assert await rows(rt, run.run_id) == [("1", status), ("2", "recorded")] and await is_clean(rt, run.run_id)


async def test_a_repetition_said_of_the_call_before_does_not_carry_out_another(house: House) -> None:
    seats = Seats(Desk(True))
    rt = await die_in(house, seats)
    run = await rt.invoke("seated", key="once")
    await rt.decide(run.run_id, "reexecute", actor="ada", resume=False)
    seats.other = True
    run = await rt.resume(run.run_id)
    assert [w.available_actions for w in run.waits] == [("record_result", "abandon", "halt")] and seats.desk.booked == ["window"]


async def test_what_a_tool_did_is_told_as_an_outcome(house: House) -> None:
    """The attempt of a tool is told as one, also where the code calls no tool in its place; what is none is asked for again."""
    dies = [True]

    class Runner:
        async def run(self, request: Any) -> Any:
            if dies:
                dies.clear()
                raise Crash
            raise AssertionError("it is not called again")

    calls = ["print"]

    async def note(what: str) -> str:
        return f"noted {what}"

    @flow("printed", version="1")
    async def printed(ctx: Context) -> Any:
        return (await ctx.tool("print", calls)).stdout if calls else await ctx.effect(note, "it")

    options: dict[str, Any] = {"tools": [Tool("print", side_effects="external_action")], "tool_runner": Runner()}
    rt = await house.process(printed, **options)
    with pytest.raises(Crash):
        await rt.invoke("printed", key="once")
    house.kill(rt)
    calls.clear()
    rt = await house.process(printed, **options)
    run = await rt.invoke("printed", key="once")
    assert [w.name for w in run.waits] == ["tool:print"], run.error
    await rt.decide(run.run_id, "record_result", payload={"exit": 1}, actor="ada")
    run = await rt.resume(run.run_id)
    assert len(run.waits) == 1 and "did not fit" in run.waits[0].verdict
    await rt.decide(run.run_id, "record_result", payload={"exit_code": 1}, actor="ada")
    run = await rt.resume(run.run_id)
    assert (run.status, run.result) == ("completed", "noted it") and await rows(rt, run.run_id) == [("1", "failed"), ("2", "recorded")]


# -- with an undo, in forks and replays ---------------------------------------------------------------


async def test_what_happened_is_undone_with_the_rest(house: House) -> None:
    """§6.11: by its own result and the arguments that it was given, after what came later."""
    desk = Desk(True)

    class Failing(Seats):
        @property
        def skill(self) -> Any:
            @flow("seated", version="1")
            async def seated(ctx: Context) -> Any:
                await ctx.effect(self.desk.book, self.seat, undo=self.desk.cancel)
                await ctx.step(self.fail)

            return seated

        async def fail(self) -> None:
            raise ValueError("no")

    seats = Failing(desk)
    rt = await die_in(house, seats)
    seats.seat = "aisle"
    run = await rt.invoke("seated", key="once")
    for action, options in (("record_result", {"payload": "by hand"}), ("reexecute", {})):
        await rt.decide(run.run_id, action, actor="ada", **options)
        run = await rt.resume(run.run_id)
    assert (run.status, desk.canceled) == ("failed", ["R2 aisle/aisle", "by hand/window"]) and await is_clean(rt, run.run_id)


@pytest.mark.parametrize("action", ["record_result", "abandon", "reexecute"])
async def test_a_cancel_while_the_question_is_open(action: str, house: House) -> None:
    """It ends the run. What a person had said by then is on the record, and undone where it happened."""
    desk = Desk(True)
    seats = Seats(desk, undo=desk.cancel)
    rt = await die_in(house, seats)
    seats.seat = "aisle"
    run = await rt.invoke("seated", key="once")
    await rt.decide(run.run_id, action, actor="ada", resume=False, **({"payload": "by hand"} if action == "record_result" else {}))
    run = await rt.cancel(run.run_id)
    run = run if run.status == "canceled" else await rt.resume(run.run_id)
    assert (run.status, desk.canceled) == ("canceled", ["by hand/window"] if action == "record_result" else []) and desk.booked == ["window"]


async def test_a_fork_that_asks_is_answered_by_what_its_source_found_out(house: House) -> None:
    """Decision 38: the question is one, whatever the arguments of the run that answers it. What that run has done in its place is no answer to it."""
    seats = Seats(Desk(True))
    rt = await die_in(house, seats)
    run = await rt.invoke("seated", key="once")
    fork = await rt.fork(run.run_id, actor="ada")
    assert [w.wait_id for w in fork.waits] == [w.wait_id for w in run.waits]
    seats.seat = "aisle"
    await rt.decide(run.run_id, "reexecute", actor="ada")
    run = await rt.resume(run.run_id)
    await rt.decide(run.run_id, "reexecute", actor="ada")
    run = await rt.resume(run.run_id)
    assert (run.status, run.result) == ("completed", "R2 aisle")
    fork = await rt.get(fork.run_id)
    assert len(fork.waits) == 1, "another act has been carried out; nobody has said what became of that one"
    seats.seat = "window"
    await rt.decide(fork.run_id, "record_result", payload="by hand", actor="ada")
    fork = await rt.resume(fork.run_id)
    assert (fork.status, fork.result, seats.desk.booked) == ("completed", "by hand", ["window", "aisle"])


async def test_a_fork_whose_arguments_change_later_asks_too(house: House) -> None:
    """The fork has the doubt of its forebear on its own record, and is entered again with other arguments."""
    seats = Seats(Desk(True))
    rt = await die_in(house, seats)
    run = await rt.invoke("seated", key="once")
    fork = await rt.fork(run.run_id, actor="ada")
    seats.seat = "aisle"
    await rt.decide(fork.run_id, "record_result", payload="by hand", actor="ada")
    fork = await rt.resume(fork.run_id)
    assert [w.kind for w in fork.waits] == ["gate"], fork.error
    assert (await rt.get(run.run_id)).waits == () or (await rt.get(run.run_id)).waits[0].kind == "effect"
    await rt.decide(fork.run_id, "reexecute", actor="ada")
    fork = await rt.resume(fork.run_id)
    assert (fork.status, fork.result, seats.desk.booked) == ("completed", "R2 aisle", ["window", "aisle"])
    run = await rt.resume(run.run_id)
    assert [w.kind for w in run.waits] == ["gate"] and await rows(rt, run.run_id) == [("1", "recorded")], "the source takes over what was found out"


async def test_a_shared_key_with_other_arguments_stays_a_conflict(house: House) -> None:
    """§6.3, T-41: it is others' key too."""
    seats = Seats(Desk(True), key="seat-1")
    rt = await die_in(house, seats)
    seats.seat = "aisle"
    run = await rt.invoke("seated", key="once")
    assert (run.status, run.stop_reason, seats.desk.booked) == ("failed", "effect_conflict", ["window"])


async def attempt_beside(house: House, seats: Seats) -> tuple[Any, Any]:
    """A run whose first attempt was left behind for one with other arguments, in which its process died too; and the next process."""
    rt = await die_in(house, seats)
    seats.seat = "aisle"
    run = await rt.invoke("seated", key="once")
    await rt.decide(run.run_id, "reexecute", actor="ada", resume=False)
    with pytest.raises(Crash):
        await rt.resume(run.run_id)
    house.kill(rt)
    return await house.process(seats.skill), run


@pytest.mark.parametrize("seat", ["window", "middle"])
async def test_a_replay_with_other_arguments_than_its_sources_attempt_is_a_conflict(seat: str, house: House) -> None:
    """T-41, §7.6: it shows what happened, and does not act in place of an attempt in doubt: neither with new arguments, nor with those of an attempt that was left behind."""
    seats = Seats(Desk(True, True))
    rt, run = await attempt_beside(house, seats)
    seats.seat = seat
    again = await rt.replay(run.run_id)
    assert (again.status, again.stop_reason, seats.desk.booked) == ("failed", "effect_conflict", ["window", "aisle"])


async def test_a_replay_asks_about_its_sources_newest_attempt(house: House) -> None:
    """§6.5: with its arguments, and under whichever key it was made."""
    seats = Seats(Desk(True, True))
    rt, run = await attempt_beside(house, seats)
    again = await rt.replay(run.run_id)
    (wait,) = again.waits
    newest = (await rt.effects(run.run_id))[-1]
    assert (wait.kind, wait.show["show"], wait.effect_id) == ("effect", ["aisle"], newest.effect_id) and "other arguments" not in wait.prompt
    assert seats.desk.booked == ["window", "aisle"]
    await rt.decide(again.run_id, "record_result", payload="by hand", actor="ada")
    again = await rt.resume(again.run_id)
    assert (again.status, again.result) == ("completed", "by hand") and await is_clean(rt, again.run_id)
    assert [s for _, s in await rows(rt, run.run_id)] == ["abandoned", "attempted"], "the source's rows stay as they are (T-46)"


async def test_a_replay_does_not_do_what_its_source_left_behind(house: House) -> None:
    """T-41: the source did the second call at this place in the end, and that is what a replay shows."""
    seats = Seats(Desk(True))
    rt = await die_in(house, seats)
    seats.seat = "aisle"
    run = await rt.invoke("seated", key="once")
    await rt.decide(run.run_id, "reexecute", actor="ada")
    run = await rt.resume(run.run_id)
    assert run.result == "R2 aisle"
    seats.seat = "window"
    again = await rt.replay(run.run_id)
    assert (again.stop_reason, seats.desk.booked) == ("effect_conflict", ["window", "aisle"])
    again = await rt.replay(run.run_id, effects="reexecute")
    assert (again.status, again.result) == ("completed", "R3 window")

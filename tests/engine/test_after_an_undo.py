"""What goes on after an undo does again what was undone, and everything that was made of it (§6.11, §7.3, §7.7)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any

import pytest

from holdfast import Context, Goto, Graph, Runtime, State, append, flow
from holdfast.core.errors import EffectsUndone
from tests.engine.outside import Crash, House
from tests.inside import lower


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    h = House(request.param, tmp_path)
    yield h
    await h.close()


class Desk:
    """Books under a number of its own each time, so that everybody can tell a booking that was cancelled."""

    def __init__(self) -> None:
        self.booked = 0
        self.standing: set[str] = set()
        self.fails = True
        self.notes: list[str] = []

    async def book(self, what: str = "") -> str:
        self.booked += 1
        self.standing.add(f"R{self.booked}")
        return f"R{self.booked}"

    async def cancel(self, receipt: str) -> None:
        self.standing.remove(receipt)

    async def note(self, text: str) -> str:
        self.notes.append(text)
        return text

    def fail_once(self) -> None:
        if self.fails:
            self.fails = False
            raise RuntimeError("sold out")


class Trip(State):
    got: Annotated[list[str], append]
    paid: Annotated[list[str], append]


def in_a_map(desk: Desk) -> Graph[Trip]:
    graph = Graph("mapped", Trip)

    @graph.node(start=True)
    async def book(state: Trip, ctx: Context) -> dict[str, Any]:
        async def one(what: str) -> str:
            return str(await ctx.effect(desk.book, what, undo=desk.cancel))

        got = await ctx.map(one, ["flight", "hotel"])
        await ctx.approve("Go?")
        return {"got": got}

    return graph


def in_nested_scopes(desk: Desk) -> Graph[Trip]:
    graph = Graph("nested", Trip)

    @graph.node(start=True)
    async def book(state: Trip, ctx: Context) -> dict[str, Any]:
        async def inner(what: str) -> str:
            return str(await ctx.effect(desk.book, what, undo=desk.cancel))

        async def outer(whats: list[str]) -> list[str]:
            return await ctx.map(inner, whats)

        got = [r for rs in await ctx.map(outer, [["flight"], ["hotel", "car"]]) for r in rs]
        await ctx.approve("Go?")
        return {"got": got}

    return graph


def in_a_race(desk: Desk) -> Graph[Trip]:
    graph = Graph("raced", Trip)

    @graph.node(start=True)
    async def book(state: Trip, ctx: Context) -> dict[str, Any]:
        _, got = await ctx.first_of(ctx.effect(desk.book, "flight", undo=desk.cancel), ctx.wait("never"))
        await ctx.approve("Go?")
        return {"got": [got]}

    return graph


def in_a_sibling(desk: Desk) -> Graph[Trip]:
    graph = Graph("siblings", Trip)

    @graph.node(start=True)
    async def book(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"got": [await ctx.effect(desk.book, "flight", undo=desk.cancel)]}

    @graph.node(start=True)
    async def ask(state: Trip, ctx: Context) -> None:
        await ctx.approve("Go?")

    return graph


def in_a_declared_sibling(desk: Desk) -> Graph[Trip]:
    graph = Graph("declared", Trip)

    async def unbook(writes: Any) -> None:
        await desk.cancel(writes["got"][0])

    @graph.node(start=True, side_effects="external_action", undo=unbook)
    async def book(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"got": [await desk.book("flight")]}

    @graph.node(start=True)
    async def ask(state: Trip, ctx: Context) -> None:
        await ctx.approve("Go?")

    return graph


def in_a_subgraph(desk: Desk) -> Graph[Trip]:
    child = Graph("child", Trip)

    @child.node(start=True)
    async def book(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"got": [await ctx.effect(desk.book, "flight", undo=desk.cancel)]}

    @child.node(after="book")
    async def copy(state: Trip) -> dict[str, Any]:
        return {"paid": list(state.got)}

    @child.node(after="copy")
    async def ask(state: Trip, ctx: Context) -> None:
        await ctx.approve("Go?")

    graph = Graph("parent", Trip)
    graph.subgraph("trip", child, start=True)
    return graph


def under_a_check(desk: Desk) -> Graph[Trip]:
    graph = Graph("checked", Trip)

    @graph.node(start=True, check=lambda result: "Look", on_fail="require_human")
    async def book(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"got": [await ctx.effect(desk.book, "flight", undo=desk.cancel)]}

    return graph


def declared_under_a_check(desk: Desk) -> Graph[Trip]:
    graph = Graph("both", Trip)

    async def unbook(writes: Any) -> None:
        await desk.cancel(writes["got"][0])

    @graph.node(start=True, side_effects="external_action", undo=unbook, check=lambda result: "Look", on_fail="require_human")
    async def book(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"got": [await desk.book("flight")]}

    return graph


def checked_in_a_subgraph(desk: Desk) -> Graph[Trip]:
    graph = Graph("deep", Trip)
    graph.subgraph("inner", under_a_check(desk), start=True)
    return graph


PLACES = [
    in_a_map, in_nested_scopes, in_a_race, in_a_sibling, in_a_declared_sibling, in_a_subgraph, under_a_check, declared_under_a_check, checked_in_a_subgraph,
]


def then_fails(graph: Graph[Trip], desk: Desk) -> Graph[Trip]:
    """A step after those of the graph that fails once."""
    before = list(graph.program.nodes)

    @graph.node(after=before)
    async def pay(state: Trip) -> dict[str, Any]:
        desk.fail_once()
        return {"paid": list(state.got)}

    return graph


async def answer(rt: Runtime, run: Any) -> Any:
    while run.status == "waiting_for_human":
        run = await rt.approve(run.run_id, actor="ada")
    return run


def stands(desk: Desk, run: Any) -> None:
    """The run is built on what stands outside, and on nothing that was cancelled."""
    got = list(run.state.got)
    assert run.status == "completed" and got and set(got) == desk.standing and set(run.state.paid) <= desk.standing


@pytest.mark.parametrize("make", PLACES)
async def test_a_fork_does_again_what_a_later_step_had_undone(house: House, make: Callable[[Desk], Graph[Trip]]) -> None:
    """§7.7: though it begins in the middle of the step that did it, after whatever that had recorded of it."""
    desk = Desk()
    graph = then_fails(make(desk), desk)
    rt = await house.process(graph)
    run = await answer(rt, await rt.invoke(graph))
    assert (run.status, desk.standing) == ("failed", set())
    with pytest.raises(EffectsUndone):
        await rt.resume(run.run_id, acknowledge=run.stop_reason)
    fork = await answer(rt, await rt.fork(run.run_id))
    stands(desk, fork)
    assert list(fork.state.paid)[-1:] == list(fork.state.got)[-1:]


@pytest.mark.parametrize("make", PLACES)
async def test_a_fork_of_a_fork_does_it_again_too(house: House, make: Callable[[Desk], Graph[Trip]]) -> None:
    """What the first fork carried over from its source is no more than what the source still has."""
    desk = Desk()
    graph = then_fails(make(desk), desk)
    rt = await house.process(graph)
    run = await rt.invoke(graph)
    first = await rt.fork(run.run_id)
    assert run.status == first.status == "waiting_for_human"
    desk.fails = False
    await rt.cancel(run.run_id)
    assert desk.standing == set()
    await rt.cancel(first.run_id)
    stands(desk, await answer(rt, await rt.fork(first.run_id)))


@pytest.mark.parametrize("make", PLACES)
@pytest.mark.parametrize("how", ["resume", "fork"])
async def test_a_cancelled_run_goes_on_with_what_stands(house: House, make: Callable[[Desk], Graph[Trip]], how: str) -> None:
    """A result that a person is asked about, or was, goes with the effect that it came of."""
    desk = Desk()
    graph = make(desk)
    rt = await house.process(graph)
    run = await rt.cancel((await rt.invoke(graph)).run_id)
    assert (run.status, desk.standing) == ("canceled", set())
    again = await answer(rt, await (rt.resume(run.run_id) if how == "resume" else rt.fork(run.run_id)))
    stands(desk, again)


async def test_what_a_check_was_answered_goes_too(house: House) -> None:
    """Approved beside a step that then failed: the answer was given to a result that is cancelled, so it is asked for anew."""
    desk = Desk()
    graph = under_a_check(desk)

    @graph.node(start=True)
    async def other(state: Trip, ctx: Context) -> None:
        await ctx.approve("Also?")
        desk.fail_once()

    rt = await house.process(graph)
    run = await rt.invoke(graph)
    assert len(run.waits) == 2
    for wait in sorted(run.waits, key=lambda w: w.kind != "gate"):
        run = await rt.approve(run.run_id, wait_id=wait.wait_id, actor="ada")
    assert (run.status, desk.standing) == ("failed", set())
    run = await rt.resume(run.run_id, acknowledge=run.stop_reason)
    [wait] = run.waits
    assert (wait.kind, wait.show["got"], desk.standing) == ("gate", ["R2"], {"R2"})
    stands(desk, await answer(rt, run))


async def test_a_result_in_hand_stays_where_nothing_of_it_was_undone(house: House) -> None:
    """A sibling without an undo, and calls before and after: they are carried over and not done again."""
    desk = Desk()
    graph = in_a_map(desk)

    @graph.node(start=True)
    async def mail(state: Trip, ctx: Context) -> None:
        await desk.note("plain code")
        await ctx.effect(desk.note, "an effect")

    graph = then_fails(graph, desk)
    rt = await house.process(graph)
    run = await answer(rt, await rt.invoke(graph))
    assert desk.notes == ["plain code", "an effect"]
    stands(desk, await answer(rt, await rt.fork(run.run_id)))
    assert desk.notes == ["plain code", "an effect"]


# -- beside signals -----------------------------------------------------------------------------------


class Prices(State):
    price: Annotated[list[int], append]
    seen: Annotated[list[int], append]
    got: str = ""


def beside_signals(desk: Desk, *, act: bool) -> Graph[Prices]:
    """A step that waits while signals run steps of their own, and then fails; ``act``: these book something too."""
    graph = Graph("beside", Prices)

    @graph.node(start=True)
    async def watch(state: Prices, ctx: Context) -> dict[str, Any]:
        receipt = await ctx.effect(desk.book, "flight", undo=desk.cancel)
        await ctx.approve("Go?", show="the same")
        desk.fail_once()
        return {"got": receipt}

    @graph.node(on=["price"])
    async def note(state: Prices, ctx: Context) -> dict[str, Any]:
        if act:
            await ctx.effect(desk.book, f"at {len(state.price)}", undo=desk.cancel)
        return {"seen": [len(state.price)]}

    return graph


async def failed_beside_signals(house: House, desk: Desk, *, act: bool) -> tuple[Runtime, Any]:
    graph = beside_signals(desk, act=act)
    rt = await house.process(graph)
    run = await rt.invoke(graph)
    for price in (7, 8):
        await rt.signal(run.run_id, "price", [price], key=str(price))
        await rt.resume(run.run_id)
    run = await rt.approve(run.run_id, actor="ada")
    assert (run.status, list(run.state.seen), desk.standing) == ("failed", [1, 2], set())
    return rt, run


async def test_a_step_that_waited_beside_signals_is_the_one_that_failed(house: House) -> None:
    """§5.11: its super-step is an earlier one than that of the head, and it has not come to its end: a resume does it again."""
    desk = Desk()
    rt, run = await failed_beside_signals(house, desk, act=False)
    run = await answer(rt, await rt.resume(run.run_id, acknowledge=run.stop_reason))
    assert (run.status, list(run.state.price), list(run.state.seen), {run.state.got}) == ("completed", [7, 8], [1, 2], desk.standing)


async def test_a_fork_of_it_keeps_the_signals(house: House) -> None:
    desk = Desk()
    rt, run = await failed_beside_signals(house, desk, act=False)
    run = await answer(rt, await rt.fork(run.run_id))
    assert (run.status, list(run.state.price), list(run.state.seen), {run.state.got}) == ("completed", [7, 8], [1, 2], desk.standing)


async def test_what_a_signal_led_to_is_of_an_earlier_step(house: House) -> None:
    """Its super-step has come to its end: a resume is refused, naming it alone, and a fork begins before it."""
    desk = Desk()
    rt, run = await failed_beside_signals(house, desk, act=True)
    with pytest.raises(EffectsUndone, match=r"undone: book \(step 2\), book \(step 4\); a resume"):
        await rt.resume(run.run_id, acknowledge=run.stop_reason)
    run = await answer(rt, await rt.fork(run.run_id))
    assert (run.status, list(run.state.price), list(run.state.seen), len(desk.standing)) == ("completed", [7], [1], 2)


# -- a limit is no failure ------------------------------------------------------------------------------


class Round(State):
    n: int = 0
    got: Annotated[list[str], append]


def going_round(desk: Desk, rounds: int, **options: Any) -> Graph[Round]:
    graph = Graph("round", Round, **options)

    @graph.node(start=True)
    async def go(state: Round, ctx: Context) -> Any:
        got = [await ctx.effect(desk.book, "flight", undo=desk.cancel)] if state.n in (0, 5) else []
        if state.n == rounds:
            desk.fail_once()
            return {"got": got}
        return Goto("go", {"n": state.n + 1, "got": got})

    return graph


async def test_a_step_limit_takes_nothing_back(house: House) -> None:
    """§4.9, T-66: the state is kept, and with it what the run did; resumed with a higher limit it goes on from there."""
    desk = Desk()
    desk.fails = False
    graph = going_round(desk, 8)
    rt = await house.process(graph)
    run = await rt.invoke(graph, {}, step_limit=4)
    assert (run.status, run.stop_reason, desk.standing) == ("failed", "step_limit", {"R1"})
    run = await rt.resume(run.run_id, acknowledge=run.stop_reason, step_limit=100)
    assert (run.status, list(run.state.got), desk.standing) == ("completed", ["R1", "R2"], {"R1", "R2"})


async def test_the_limit_of_a_sub_graph_takes_nothing_back_either(house: House) -> None:
    desk = Desk()
    desk.fails = False
    graph = Graph("around", Round)
    graph.subgraph("inner", going_round(desk, 8, step_limit=4), start=True)
    rt = await house.process(graph)
    run = await rt.invoke(graph, {})
    assert (run.status, run.stop_reason, desk.standing) == ("failed", "step_limit", {"R1"})
    while run.status == "failed":
        assert run.stop_reason == "step_limit"
        run = await rt.resume(run.run_id, acknowledge=run.stop_reason)
    assert (run.status, list(run.state.got), desk.booked) == ("completed", ["R1", "R2"], 2)


async def test_what_stood_at_a_limit_is_taken_back_when_the_run_fails_after_all(house: House) -> None:
    desk = Desk()
    graph = going_round(desk, 8)
    rt = await house.process(graph)
    run = await rt.invoke(graph, {}, step_limit=4)
    run = await rt.resume(run.run_id, acknowledge=run.stop_reason, step_limit=100)
    assert (run.status, run.stop_reason, desk.standing) == ("failed", "step_failed", set())


async def killed_over_and_over(house: House, skill: Any, most: int) -> tuple[Runtime, str]:
    """A run whose owners die at their first act, one after the other, until there are no more takeovers."""
    rt = await house.process(skill)
    with pytest.raises(Crash):
        await rt.invoke(skill)
    house.kill(rt)
    [run] = await rt.runs()
    for _ in range(most):
        rt = await house.process(skill)
        lower(rt, takeovers=most)
        with pytest.raises(Crash):
            await rt.resume(run.run_id)
        house.kill(rt)
    rt = await house.process(skill)
    lower(rt, takeovers=most)
    return rt, run.run_id


async def test_no_more_takeovers_take_nothing_back_either(house: House) -> None:
    """§10.6, T-77: what kills the workers says nothing of what was done before; once it is found, the run goes on from there, as its hint says."""
    desk, deadly = Desk(), [True]
    graph = Graph("deadly", Trip)

    @graph.node(start=True)
    async def book(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"got": [await ctx.effect(desk.book, "flight", undo=desk.cancel)]}

    @graph.node(after="book")
    async def pay(state: Trip) -> dict[str, Any]:
        if deadly[0]:
            raise Crash
        return {"paid": list(state.got)}

    rt, run_id = await killed_over_and_over(house, graph, 2)
    run = await rt.resume(run_id)
    assert (run.status, run.stop_reason, desk.standing) == ("failed", "takeover_limit", {"R1"})
    assert "then resume" in run.error.hint
    deadly[0] = False
    run = await rt.resume(run_id, acknowledge=run.stop_reason)
    stands(desk, run)


async def test_no_more_takeovers_in_mid_undo_go_on_with_that(house: House) -> None:
    """§6.11: how the run is to end is on record, and the next owner goes on taking back."""
    desk = Dying("R1", through=False)
    skill = two_bookings(desk)
    rt, run_id = await killed_over_and_over(house, skill, 0)
    run = await rt.resume(run_id)
    assert [w.kind for w in run.waits] == ["effect"]
    run = await rt.decide(run_id, "abandon", actor="ada")
    run = await rt.resume(run_id)
    assert (run.status, run.stop_reason, desk.standing) == ("failed", "step_failed", {"R1"})


# -- an undo of which nobody knows how it went ----------------------------------------------------------


class Dying(Desk):
    """Its process dies in the undo of one booking, before or after that has come through."""

    def __init__(self, dies_at: str, *, through: bool) -> None:
        super().__init__()
        self.dies_at, self._through = dies_at, through

    async def cancel(self, receipt: str) -> None:
        if receipt == self.dies_at:
            self.dies_at = ""
            if self._through:
                await super().cancel(receipt)
            raise Crash
        await super().cancel(receipt)


def two_bookings(desk: Desk) -> Any:
    @flow("two")
    async def two(ctx: Context) -> list[str]:
        got = [await ctx.effect(desk.book, what, undo=desk.cancel) for what in ("flight", "hotel")]
        desk.fail_once()
        return got

    return two


def booked_before(desk: Desk) -> Graph[Trip]:
    graph = Graph("before", Trip)

    @graph.node(start=True)
    async def book(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"got": [await ctx.effect(desk.book, what, undo=desk.cancel) for what in ("flight", "hotel")]}

    @graph.node(after="book")
    async def pay(state: Trip) -> dict[str, Any]:
        desk.fail_once()
        return {"paid": list(state.got)}

    return graph


async def ended_in_doubt(house: House, skill: Any, *, asked: bool = True) -> tuple[Runtime, Any]:
    """A run that died in an undo and was cancelled over the question about that, or before anybody asked it."""
    rt = await house.process(skill)
    with pytest.raises(Crash):
        await rt.invoke(skill)
    house.kill(rt)
    rt = await house.process(skill)
    [run] = await rt.runs()
    if asked:
        run = await rt.resume(run.run_id)
        assert [w.kind for w in run.waits] == ["effect"]
    run = await rt.cancel(run.run_id)
    assert run.status == "canceled"
    return rt, run


@pytest.mark.parametrize("asked", [True, False], ids=["asked", "never asked"])
@pytest.mark.parametrize("dies_at", ["R1", "R2"])
@pytest.mark.parametrize("how", ["resume", "fork"])
async def test_what_may_have_been_undone_is_asked_about_and_done_again(house: House, how: str, dies_at: str, asked: bool) -> None:
    """§6.5: neither counts as done nor as undone. It was undone, says a person who has looked: then it is done again."""
    desk = Dying(dies_at, through=True)
    skill = two_bookings(desk)
    rt, run = await ended_in_doubt(house, skill, asked=asked)
    again = await (rt.resume(run.run_id) if how == "resume" else rt.fork(run.run_id))
    [wait] = again.waits
    assert (wait.kind, wait.available_actions, wait.show["undo"]) == ("effect", ("record_result", "abandon", "halt"), "cancel")
    assert "may have been undone" in wait.prompt and (again.run_id == run.run_id) is (how == "resume")
    await rt.decide(again.run_id, "record_result", actor="ada")
    again = await rt.resume(again.run_id)
    assert (again.status, set(again.result)) == ("completed", desk.standing)
    assert await rt.check() == []


@pytest.mark.parametrize("how", ["resume", "fork"])
async def test_what_was_not_undone_after_all_stands(house: House, how: str) -> None:
    desk = Dying("R1", through=False)
    skill = two_bookings(desk)
    rt, run = await ended_in_doubt(house, skill)
    again = await (rt.resume(run.run_id) if how == "resume" else rt.fork(run.run_id))
    await rt.decide(again.run_id, "abandon", actor="ada")
    again = await rt.resume(again.run_id)
    assert (again.status, again.result, desk.standing) == ("completed", ["R1", "R3"], {"R1", "R3"})
    assert await rt.check() == []


@pytest.mark.parametrize(("through", "said"), [(True, "record_result"), (False, "abandon")])
async def test_what_a_person_said_of_an_undo_holds_when_the_run_is_cancelled(house: House, through: bool, said: str) -> None:
    """§6.11: nobody went on with the run since. What came through is not undone twice, and what did not is undone; nobody is asked again."""
    desk = Dying("R2", through=through)
    rt, run = await ended_in_doubt(house, two_bookings(desk))
    run = await rt.resume(run.run_id)
    assert "may have been undone" in run.waits[0].prompt
    await rt.decide(run.run_id, said, actor="ada")
    run = await rt.cancel(run.run_id)
    assert (run.status, run.waits, desk.standing) == ("canceled", (), set())
    assert "failed" not in [e.status for e in await rt.effects(run.run_id)], "no booking is cancelled twice"
    assert await rt.check() == []


async def test_the_same_doubt_is_asked_about_each_time_it_arises(house: House) -> None:
    """It stood the first time; that is no answer to whether the next undo has come through."""
    desk = Dying("R1", through=False)
    skill = two_bookings(desk)
    rt, run = await ended_in_doubt(house, skill)
    await rt.resume(run.run_id)
    desk.fails, desk.dies_at = True, "R1"
    await rt.decide(run.run_id, "abandon", actor="ada")
    with pytest.raises(Crash):
        await rt.resume(run.run_id)
    house.kill(rt)
    rt = await house.process(skill)
    run = await rt.cancel(run.run_id)
    run = await rt.resume(run.run_id)
    [wait] = run.waits
    assert "may have been undone" in wait.prompt
    await rt.decide(run.run_id, "abandon", actor="ada")
    run = await rt.resume(run.run_id)
    assert (run.status, set(run.result)) == ("completed", desk.standing)


async def test_a_halt_at_that_question_ends_the_run(house: House) -> None:
    desk = Dying("R2", through=True)
    rt, run = await ended_in_doubt(house, two_bookings(desk))
    await rt.resume(run.run_id)
    run = await rt.decide(run.run_id, "halt", actor="ada")
    assert (run.status, run.condition) == ("canceled", "halted")


async def test_a_graph_does_not_go_on_where_an_earlier_step_may_be_undone(house: House) -> None:
    """A resume is refused, saying so; the fork that it sends people to asks."""
    desk = Dying("R2", through=True)
    graph = booked_before(desk)
    rt, run = await ended_in_doubt(house, graph)
    with pytest.raises(EffectsUndone, match=r"book \(step 1, whether it was undone is unknown\)"):
        await rt.resume(run.run_id)
    fork = await rt.fork(run.run_id)
    [wait] = fork.waits
    assert "may have been undone" in wait.prompt
    await rt.decide(fork.run_id, "record_result", actor="ada")
    stands(desk, await rt.resume(fork.run_id))


# -- what a source took back after it was forked --------------------------------------------------------


def boards(desk: Desk) -> Any:
    @flow("boards")
    async def trip(ctx: Context) -> str:
        receipt: str = await ctx.effect(desk.book, "flight", undo=desk.cancel)
        await ctx.approve("Go?")
        await ctx.effect(desk.note, f"board with {receipt}")
        return receipt

    return trip


async def test_a_fork_does_not_go_on_with_what_its_source_took_back(house: House) -> None:
    """It was given the booking, and is no owner of it: it fails before anything is made of that, and a resume books for itself."""
    desk = Desk()
    skill = boards(desk)
    rt = await house.process(skill)
    run = await rt.invoke(skill)
    fork = await rt.fork(run.run_id)
    await rt.cancel(run.run_id)
    assert desk.standing == set() and desk.booked == 1
    fork = await answer(rt, fork)
    assert (fork.status, fork.stop_reason, desk.notes) == ("failed", "effects_undone", [])
    assert run.run_id in fork.error.message and "book (step 1)" in fork.error.message and "resume" in fork.error.hint
    [row] = await rt.effects(fork.run_id)
    assert (row.status, bool(row.undone)) == ("reused", True)
    fork = await answer(rt, await rt.resume(fork.run_id, acknowledge=fork.stop_reason))
    assert (fork.status, {fork.result}, desk.notes) == ("completed", desk.standing, ["board with R2"])
    assert await rt.check() == []


@pytest.mark.parametrize("make", [in_a_map, in_a_sibling, in_a_declared_sibling, in_a_subgraph, under_a_check])
async def test_nor_with_what_it_had_taken_over_of_a_step(house: House, make: Callable[[Desk], Graph[Trip]]) -> None:
    """Also where it was given no effect, but a result that was made of one."""
    desk = Desk()
    desk.fails = False
    graph = then_fails(make(desk), desk)
    rt = await house.process(graph)
    run = await rt.invoke(graph)
    fork = await rt.fork(run.run_id)
    await rt.cancel(run.run_id)
    fork = await answer(rt, fork)
    assert (fork.status, fork.stop_reason, list(fork.state.paid)) == ("failed", "effects_undone", [])
    stands(desk, await answer(rt, await rt.resume(fork.run_id, acknowledge=fork.stop_reason)))


async def test_nor_past_a_step_that_was_done_before_it_began(house: House) -> None:
    """There a resume does not help: the step is completed in the fork. It says which run to fork."""
    desk = Desk()
    desk.fails = False
    graph = booked_before(desk)

    @graph.node(after="pay")
    async def ask(state: Trip, ctx: Context) -> None:
        await ctx.approve("Go?")

    rt = await house.process(graph)
    run = await rt.invoke(graph)
    house.clock.forward(1)
    fork = await rt.fork(run.run_id)
    house.clock.forward(1)
    await rt.cancel(run.run_id)
    fork = await answer(rt, fork)
    assert (fork.status, fork.stop_reason) == ("failed", "effects_undone") and f"holdfast fork {run.run_id}" in fork.error.hint
    stands(desk, await answer(rt, await rt.fork(run.run_id)))


async def test_a_source_that_takes_back_while_its_fork_is_under_way(house: House) -> None:
    """Asked once more before the fork ends, for then somebody goes by its result."""
    desk = Desk()

    @flow("late")
    async def late(ctx: Context) -> str:
        receipt: str = await ctx.effect(desk.book, "flight", undo=desk.cancel)
        await ctx.approve("Go?")
        if desk.notes:
            await desk.note((await rt.cancel(run.run_id)).status)
        return receipt

    rt = await house.process(late)
    run = await rt.invoke(late)
    fork = await rt.fork(run.run_id)
    desk.notes.append("now")
    fork = await answer(rt, fork)
    assert (fork.status, fork.stop_reason, desk.notes) == ("failed", "effects_undone", ["now", "canceled"])


async def test_a_checkpoint_that_somebody_names_is_begun_at(house: House) -> None:
    """Decision 29: what was undone before the fork was made is what they have chosen, and no reason to fail."""
    desk = Desk()
    graph = booked_before(desk)
    rt = await house.process(graph)
    run = await rt.invoke(graph)
    assert (run.status, desk.standing) == ("failed", set())
    house.clock.forward(1)
    fork = await rt.fork(run.run_id, from_step="pay")
    assert (fork.status, list(fork.state.got)) == ("completed", ["R1", "R2"])


async def test_a_fork_that_did_it_itself_goes_on(house: House) -> None:
    """With other arguments it has a booking of its own: that of its source is no matter."""
    desk = Desk()

    @flow("each")
    async def each(ctx: Context, where: str) -> str:
        receipt: str = await ctx.effect(desk.book, where, undo=desk.cancel)
        await ctx.approve("Go?")
        return receipt

    rt = await house.process(each)
    run = await rt.invoke(each, {"where": "Rome"})
    fork = await rt.fork(run.run_id, inputs={"where": "Oslo"})
    await rt.cancel(run.run_id)
    fork = await answer(rt, fork)
    assert (fork.status, {fork.result}) == ("completed", desk.standing)


# -- what somebody is told to do ------------------------------------------------------------------------


async def follow(rt: Runtime, command: str) -> Any:
    """Does what a command says, as the runtime's own verbs do it."""
    _, verb, run_id, _, *more = command.split()
    if verb == "resume":
        return await rt.resume(run_id, acknowledge=more[-1] if more else None)
    return await rt.fork(run_id, f"{run_id}.{more[-1]}" if more else None)


def asks_after(desk: Desk) -> Graph[Trip]:
    graph = Graph("after", Trip)

    @graph.node(start=True)
    async def book(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"got": [await ctx.effect(desk.book, "flight", undo=desk.cancel)]}

    @graph.node(after="book")
    async def ask(state: Trip, ctx: Context) -> None:
        await ctx.approve("Go?")

    return graph


@pytest.mark.parametrize("make", [two_bookings, booked_before, in_a_map, asks_after])
async def test_what_explain_advises_works(house: House, make: Callable[[Desk], Any]) -> None:
    """§7.3, §6.11: no command that it names is refused, and none goes on with what was undone. The same holds of a cancel as of a failure."""
    number, commands = 0, ["the first"]
    while number < len(commands):
        desk = Desk()
        rt = await house.process(skill := make(desk))
        run = await rt.invoke(skill)
        run = run if run.status == "failed" else await rt.cancel(run.run_id)
        assert run.terminal and desk.standing == set()
        commands = [a["command"] for a in (await rt.explain(run.run_id))["next"] if a["command"].split()[1] in ("resume", "fork")]
        again = await answer(rt, await follow(rt, commands[number]))
        assert again.status == "completed" and desk.standing == set(again.result if make is two_bookings else again.state.got), commands[number]
        number += 1
    assert number


async def test_the_refusal_of_a_failed_run_names_no_resume_that_is_refused_too(house: House) -> None:
    desk = Desk()
    rt = await house.process(booked_before(desk))
    run = await rt.invoke(booked_before(desk))
    with pytest.raises(EffectsUndone, match=r"book \(step 1\)"):
        await rt.resume(run.run_id)

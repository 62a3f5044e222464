"""What was recorded after an effect that is taken back answers only for the very same call (§6.11, §4.12)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Runtime, State, flow
from holdfast.core.errors import EffectsUndone
from tests.engine.outside import House
from tests.engine.test_after_an_undo import Desk


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    h = House(request.param, tmp_path)
    yield h
    await h.close()


class Office(Desk):
    """Writes down what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.meanwhile: Callable[[], Awaitable[Any]] | None = None

    async def wait_for_it(self) -> None:
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()

    async def write(self, text: str, *more: Any) -> str:
        self.asked.append(text)
        return f"<{text}>"

    def add(self, text: str) -> str:
        self.asked.append(text)
        return f"<{text}>"

    async def print(self, text: str) -> str:
        self.asked.append(text)
        return f"[{text}]"


Way = Callable[[Context, Office, str], Awaitable[Any]]


async def in_a_step(ctx: Context, office: Office, booking: str) -> Any:
    return await ctx.step(office.write, booking)


async def under_a_key(ctx: Context, office: Office, booking: str) -> Any:
    return await ctx.step(office.write, booking, key="text")


async def in_a_closure(ctx: Context, office: Office, booking: str) -> Any:
    return await ctx.step(lambda: office.add(booking))


async def in_a_closure_that_takes_something(ctx: Context, office: Office, booking: str) -> Any:
    async def write(prefix: str) -> str:
        return await office.write(prefix + booking)

    return await ctx.step(write, "for ")


async def with_arguments_of_no_stable_form(ctx: Context, office: Office, booking: str) -> Any:
    return await ctx.step(office.write, booking, object())


async def in_an_item(ctx: Context, office: Office, booking: str) -> Any:
    async def invite(guest: str) -> str:
        return await ctx.step(office.write, f"{guest} {booking}")

    return await ctx.map(invite, ["ada", "bo"])


async def in_a_plain_item(ctx: Context, office: Office, booking: str) -> Any:
    return await ctx.map(lambda guest: office.add(f"{guest} {booking}"), ["ada", "bo"])


async def in_a_branch(ctx: Context, office: Office, booking: str) -> Any:
    return await ctx.gather(ctx.step(office.write, booking), ctx.step(office.write, "map"))


async def in_a_race(ctx: Context, office: Office, booking: str) -> Any:
    return await ctx.first_of(ctx.step(office.write, booking), ctx.wait("never"))


async def in_a_failure(ctx: Context, office: Office, booking: str) -> Any:
    async def refuse(text: str) -> None:
        office.asked.append(text)
        raise ValueError(f"no {text}")

    try:
        await ctx.step(refuse, booking)
    except ValueError as e:
        return await ctx.step(office.write, str(e))


async def in_a_child(ctx: Context, office: Office, booking: str) -> Any:
    return await ctx.child("letter", {"booking": booking})


WAYS: list[Way] = [
    in_a_step,
    under_a_key,
    in_a_closure,
    in_a_closure_that_takes_something,
    with_arguments_of_no_stable_form,
    in_an_item,
    in_a_plain_item,
    in_a_branch,
    in_a_race,
    in_a_failure,
    in_a_child,
]


def trip(office: Office, way: Way) -> list[Any]:
    @flow("letter")
    async def letter(ctx: Context, booking: str) -> str:
        return f"letter about {booking}"

    @flow("trip")
    async def trip(ctx: Context) -> Any:
        booking = await ctx.effect(office.book, undo=office.cancel)
        made = await way(ctx, office, booking)
        await ctx.step(office.fail_once)
        return [booking, made]

    return [trip, letter]


async def resume(rt: Runtime, run_id: str, reason: str | None) -> Any:
    return await rt.resume(run_id, acknowledge=reason)


async def fork(rt: Runtime, run_id: str, reason: str | None) -> Any:
    return await rt.fork(run_id, actor="ada")


async def fork_twice(rt: Runtime, run_id: str, reason: str | None) -> Any:
    return await rt.fork((await rt.fork(run_id, actor="ada", detach=True)).run_id, actor="ada")


@pytest.mark.parametrize("go_on", [resume, fork])
@pytest.mark.parametrize("way", WAYS)
async def test_what_was_made_of_it_is_made_again(
    house: House, way: Way, go_on: Callable[[Runtime, str, str | None], Awaitable[Any]]
) -> None:
    office = Office()
    skills = trip(office, way)
    rt = await house.process(*skills)
    run = await rt.invoke("trip")
    assert run.status == "failed" and office.standing == set()
    run = await go_on(rt, run.run_id, run.stop_reason)
    assert run.status == "completed" and run.result[0] == "R2" and office.standing == {"R2"}
    assert "R2" in str(run.result[1]) and "R1" not in str(run.result[1])


@pytest.mark.parametrize("way", WAYS)
async def test_also_by_another_process_and_once_more(house: House, way: Way) -> None:
    """What was asked the same since is compared as before, each time that something is taken back."""
    office = Office()
    skills = trip(office, way)
    rt = await house.process(*skills)
    run = await rt.invoke("trip")
    for n in (2, 3):
        office.fails = True
        house.kill(rt)
        rt = await house.process(*skills)
        run = await rt.resume(run.run_id, acknowledge=run.stop_reason)
        assert run.status == "failed" and office.booked == n
    house.kill(rt)
    rt = await house.process(*skills)
    run = await rt.resume(run.run_id, acknowledge=run.stop_reason)
    assert run.status == "completed" and run.result[0] == "R4" and "R4" in str(run.result[1]) and "R3" not in str(run.result[1])


# -- results under a shared key -------------------------------------------------------------------------


def orders(office: Office) -> list[Any]:
    @flow("owner")
    async def owner(ctx: Context) -> str:
        receipt: str = await ctx.effect(office.book, key="order-7", undo=office.cancel)
        await ctx.approve("Go?")
        return receipt

    @flow("guest")
    async def guest(ctx: Context, asks: bool) -> Any:
        receipt = await ctx.effect(office.book, key="order-7", undo=office.cancel)
        text = await ctx.step(office.write, receipt)
        if asks:
            await ctx.approve("Go?")
        else:
            await ctx.step(office.wait_for_it)
        return [receipt, text]

    return [owner, guest]


async def test_a_run_does_not_end_with_what_the_owner_of_the_key_took_back(house: House) -> None:
    """Also where it is no fork (§6.3, §6.11): it fails, and a resume books for itself."""
    office = Office()
    skills = orders(office)
    rt = await house.process(*skills)
    first = await rt.invoke("owner")
    second = await rt.invoke("guest", {"asks": True})
    assert office.booked == 1 and second.status == "waiting_for_human"
    await rt.cancel(first.run_id)
    house.kill(rt)
    rt = await house.process(*skills)
    second = await rt.approve(second.run_id, actor="ada")
    assert (second.status, second.stop_reason) == ("failed", "effects_undone")
    assert first.run_id in second.error.message and "resume" in second.error.hint
    second = await rt.resume(second.run_id, acknowledge=second.stop_reason)
    second = await rt.approve(second.run_id, actor="ada") if second.waits else second
    assert (second.status, list(second.result)) == ("completed", ["R2", "<R2>"]) and office.standing == {"R2"}
    assert await rt.check() == []


async def test_nor_where_the_owner_takes_it_back_meanwhile(house: House) -> None:
    office = Office()
    rt = await house.process(*orders(office))
    first = await rt.invoke("owner")
    office.meanwhile = lambda: rt.cancel(first.run_id)
    second = await rt.invoke("guest", {"asks": False})
    assert (second.status, second.stop_reason) == ("failed", "effects_undone")
    second = await rt.resume(second.run_id, acknowledge=second.stop_reason)
    assert (second.status, list(second.result)) == ("completed", ["R2", "<R2>"]) and office.standing == {"R2"}


class Kept(State):
    receipt: str = ""
    n: int = 0


async def test_nor_past_a_step_that_is_done(house: House) -> None:
    """Plain steps follow, which need no look at the ledger. A fork of the run itself does it again."""
    office = Office()
    graph = Graph("steps", Kept)

    @graph.node(start=True)
    async def book(state: Kept, ctx: Context) -> dict[str, Any]:
        return {"receipt": await ctx.effect(office.book, key="order-7", undo=office.cancel)}

    @graph.node(after=book)
    async def wait(state: Kept) -> dict[str, Any]:
        await office.wait_for_it()
        return {"n": 1}

    @graph.node(after=wait)
    async def end(state: Kept) -> dict[str, Any]:
        return {"n": 2}

    rt = await house.process(*orders(office), graph)
    first = await rt.invoke("owner")
    office.meanwhile = lambda: rt.cancel(first.run_id)
    second = await rt.invoke(graph)
    assert (second.status, second.stop_reason) == ("failed", "effects_undone") and f"holdfast fork {second.run_id}" in second.error.hint
    with pytest.raises(EffectsUndone):
        await rt.resume(second.run_id, acknowledge=second.stop_reason)
    fork = await rt.fork(second.run_id, actor="ada")
    assert fork.status == "completed" and {fork.state.receipt} == {"R2"} == office.standing


async def test_a_result_that_stands_is_kept(house: House) -> None:
    office = Office()
    rt = await house.process(*orders(office))
    await rt.invoke("owner")
    second = await rt.invoke("guest", {"asks": False})
    assert (second.status, list(second.result)) == ("completed", ["R1", "<R1>"])

"""What was recorded after an effect that is taken back answers only for the very same call (§6.11, §4.12)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Runtime, flow
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

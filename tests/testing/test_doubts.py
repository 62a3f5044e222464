"""``holdfast_crashes`` over an effect of which nobody can say whether it happened: its default script makes nothing up."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Absent, Context, Happened, flow
from holdfast.authoring import Flow
from holdfast.testing.plugin import Crashes

BANK: list[str] = []
"""A receiver that books every payment, also one that it has booked before."""


@pytest.fixture(autouse=True)
def empty() -> None:
    BANK.clear()


def pay(cents: int, *, idempotency_key: str) -> str:
    BANK.append(idempotency_key)
    return f"paid {cents}"


def booked(key: str, cents: int) -> Happened | Absent:
    return Happened(f"paid {cents}") if key in BANK else Absent()


def order(**options: Any) -> Flow[Any, Any]:
    @flow("order", version="1")
    async def order(ctx: Context, cents: int) -> str:
        await ctx.approve("Pay?", show=cents)
        return await ctx.effect(pay, cents, **options)

    return order


def test_an_effect_without_a_hook_fails_the_test_by_what_is_missing(holdfast_crashes: Crashes) -> None:
    """Nobody looked at the bank, so no answer is right: to say that it did not happen pays twice."""
    with pytest.raises(AssertionError, match=r"a person is asked whether the effect 'pay' happened.*verify=.*script="):
        holdfast_crashes(order(), {"cents": 42}, fresh=lambda world: BANK.clear())
    assert len(BANK) <= 1, "and it is not done again"


def test_with_a_hook_or_a_receiver_that_knows_the_key_nobody_is_asked(holdfast_crashes: Crashes) -> None:
    books: list[list[str]] = []
    _, ends = holdfast_crashes(order(verify=booked), {"cents": 42}, fresh=lambda world: (books.append(list(BANK)), BANK.clear()))
    assert {len(book) for book in [*books[1:], BANK]} == {1}, "counted at the receiver: one payment in each run"
    assert {end.run.result for end in ends} == {"paid 42"}
    assert {end.run.result for end in holdfast_crashes(order(idempotent=True), {"cents": 42})[1]} == {"paid 42"}


def test_a_script_answers_from_what_it_sees_at_the_receiver(holdfast_crashes: Crashes) -> None:
    books: list[list[str]] = []

    async def look(host: Any, run: Any) -> None:
        for wait in run.waits:
            if wait.kind != "effect":
                await host.rt.approve(run.run_id, wait_id=wait.wait_id, drive=False)
            elif wait.show["key"] in BANK:
                await host.rt.decide(run.run_id, "record_result", wait_id=wait.wait_id, payload="paid 42")
            else:
                await host.rt.decide(run.run_id, "reexecute", wait_id=wait.wait_id, force=True)

    _, ends = holdfast_crashes(order(), {"cents": 42}, script=look, fresh=lambda world: (books.append(list(BANK)), BANK.clear()))
    assert {len(book) for book in [*books[1:], BANK]} == {1}
    assert {end.run.result for end in ends} == {"paid 42"}

"""What a terminal and a page say of an attempt that somebody is asked about: both calls where they differ, and whether it may still come through (§6.5, §17.4)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.outside import Clock, Crash
from tests.http.support import served
from tests.inside import die

from holdfast import Context, Runtime, flow
from holdfast.cli.pages import show_subject
from holdfast.stores import MemoryStore


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Any:
    def tell(**shown: Any) -> str:
        wait = {"key": "k", "attempted_at": "2026-01-01T00:00:00Z", "effect_id": "r.1.a.0#1", "show": {"effect": "pay", "show": [1], "reason": "effect_unknown", **shown}}
        show_subject(wait, indent="", lines=3)
        return " ".join(capsys.readouterr().out.split())

    return tell


def test_an_attempt_that_may_still_come_through_is_not_called_ended(told: Any) -> None:
    """X-04: whatever the reason of the question, it is said whether the process may live."""
    assert "its process may still be alive" in told(closed=False) and "that attempt has ended" in told(closed=True)
    assert "its process may still be alive" in told(closed=False, reason="attempt_may_live")


def test_both_calls_are_told_where_they_differ(told: Any) -> None:
    assert "about pay [1] now pay [2] key" in told(closed=True, now={"effect": "pay", "show": [2]})
    assert "about pay, with arguments that are not on record now mail [2] key" in told(closed=True, show=None, now={"effect": "mail", "show": [2]})


@pytest.mark.parametrize("dead", [True, False])
async def test_a_page_tells_the_same(dead: bool) -> None:
    clock, amount = Clock(), [1]
    memory = MemoryStore(now=clock.now)

    async def pay(amount: int) -> None:
        raise Crash

    @flow("paying", version="1")
    async def paying(ctx: Context) -> None:
        await ctx.effect(pay, amount[0])

    first = Runtime(memory, skills=[paying], clock=clock)
    await first.__aenter__()
    with pytest.raises(Crash):
        await first.invoke("paying", key="once")
    die(first)
    if dead:
        memory.abandon(first.owner)
    clock.forward(31)
    amount[0] = 271_828
    async with Runtime(memory, skills=[paying], clock=clock) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke("paying", key="once")
        page = (await http.get(f"/runs/{run.run_id}")).text
        assert "271828" in page and "The arguments of that attempt are not on record." in page
        assert ("That attempt has ended." in page, "may still be alive" in page) == (dead, not dead)
    await first.close()

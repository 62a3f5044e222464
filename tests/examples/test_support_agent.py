"""The support agent: one refund whatever happens, and a conversation that is carried on."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples.support_agent import agent

from examples import support_agent
from holdfast import Runtime

BROKEN = {"message": "My order 17 arrived broken."}


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(support_agent, "LEDGER", tmp_path / "refunds.txt")
    return tmp_path / "refunds.txt"


async def test_a_refund_is_asked_about_paid_once_and_remembered(ledger: Path) -> None:
    async with Runtime("memory:", skills=[agent]) as rt:
        run = await rt.invoke(agent, BROKEN, thread_id="ada")
        assert run.status == "waiting_for_human" and not ledger.exists()
        assert run.waits[0].show == {"order": "17", "cents": 4200}
        run = await rt.approve(run.run_id, actor="grace")
        assert run.state.reply == "I am sorry. I have refunded order 17."
        assert len(ledger.read_text().splitlines()) == 1
        run = await rt.invoke(agent, {"message": "Thanks!"}, thread_id="ada")
        assert run.state.reply.startswith("Thank you. We have spoken 1 times before.") and len(run.state.talk) == 4


async def test_a_denied_refund_is_answered_without_money(ledger: Path) -> None:
    async with Runtime("memory:", skills=[agent]) as rt:
        run = await rt.invoke(agent, BROKEN, thread_id="ada")
        run = await rt.deny(run.run_id, actor="grace", reason="looked fine on the photo")
        assert run.status == "completed" and "colleague" in run.state.reply and not ledger.exists()


def test_it_survives_a_crash_at_every_write(holdfast_crashes, ledger: Path) -> None:
    """An approved refund is paid once, wherever the process dies."""
    paid: list[int] = []

    def fresh(world: object) -> None:
        if ledger.exists():
            paid.append(len(ledger.read_text().splitlines()))
            ledger.unlink()

    _, ends = holdfast_crashes(agent, BROKEN, fresh=fresh)
    assert len(ends) > 10 and len(paid) == len(ends)
    assert set(paid) == {1}
    assert all(end.run.state.reply == "I am sorry. I have refunded order 17." for end in ends)

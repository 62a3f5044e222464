"""The campaign: every mail once, no faster than its limit, and on after a crash."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from examples.campaign import LIMITS, campaign

from examples import campaign as example
from holdfast import Runtime
from holdfast.testing import VirtualClock, run_virtual

PEOPLE = [f"reader{n}@example.org" for n in range(200)]


@pytest.fixture(autouse=True)
def outbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(example, "OUTBOX", tmp_path / "sent.jsonl")
    return tmp_path / "sent.jsonl"


def sent(outbox: Path) -> list[str]:
    return [json.loads(line)["to"] for line in outbox.read_text().splitlines()] if outbox.exists() else []


def test_everybody_gets_one_mail_and_no_faster_than_the_limit(outbox: Path) -> None:
    """200 mails at 50 a second with a burst of 10 take at least 3.8 seconds of the store's time."""
    clock = VirtualClock()

    async def work() -> float:
        async with Runtime("memory:", skills=[campaign], limits=LIMITS, clock=clock) as rt:
            began = clock.monotonic()
            assert await rt.run(campaign, PEOPLE) == "200 mails sent"
            return clock.monotonic() - began

    took = run_virtual(work(), clock=clock)
    assert sorted(sent(outbox)) == sorted(PEOPLE)
    assert 3.7 <= took < 60


def test_it_survives_a_crash_at_every_write(holdfast_crashes, outbox: Path) -> None:
    """Wherever the process dies, each of the mails is sent once."""
    mails: list[list[str]] = []

    def fresh(world: object) -> None:
        if outbox.exists():
            mails.append(sent(outbox))
            outbox.unlink()

    _, ends = holdfast_crashes(campaign, {"recipients": PEOPLE[:3]}, fresh=fresh)
    assert len(ends) > 5 and len(mails) == len(ends)
    assert all(sorted(m) == PEOPLE[:3] for m in mails)
    assert {end.run.result for end in ends} == {"3 mails sent"}

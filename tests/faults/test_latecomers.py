"""X-19: a command in the last millisecond of a run is followed, or answered as too late; over real processes."""

from __future__ import annotations

import sys

import pytest

from holdfast.testing.latecomers import Report, latecomers


def sound(report: Report) -> None:
    sys.stdout.write(report.text())
    assert not report.wrong, report.text()
    assert report.done + report.skipped == report.commands
    assert sum(report.ended.values()) == report.done


async def test_a_few_latecomers() -> None:
    report = await latecomers(commands=45, processes=2, seed=3, budget=0.25)
    sound(report)
    assert report.accepted and report.done >= 10


@pytest.mark.heavy
async def test_two_thousand_latecomers() -> None:
    report = await latecomers(commands=2_000, processes=3, seed=4, budget=30)
    sound(report)
    assert report.skipped == 0 and report.accepted and report.refused

"""Points 1 to 6 of «Mend» against real processes: killed twice in a row, frozen and then killed, late, with jumping clocks."""

from __future__ import annotations

import sys

import pytest

from holdfast.testing.chaos import Report, chaos


def sound(report: Report) -> None:
    assert not report.wrong, report.text()
    assert report.runs_done + report.runs_skipped == report.runs
    assert sum(report.faults_done.values()) + report.faults_skipped == report.faults
    assert sum(report.ended.values()) == report.runs_done


@pytest.mark.heavy  # beside another test process its workers starve, and runs are said not to end
async def test_a_little_chaos() -> None:
    """Every run ends, every accepted command is in its log, no act is done twice, no owner that lives is said to have died. What a busy
    machine does not get to in its time is counted as skipped."""
    report = await chaos(runs=100, faults=50, seed=11, budget=0.4)
    sys.stdout.write(report.text())
    sound(report)
    assert report.runs_done >= 10


@pytest.mark.heavy
async def test_much_chaos() -> None:
    report = await chaos(runs=2_000, faults=1_000, seed=12, budget=30)
    sound(report)
    assert (report.runs_skipped, report.faults_skipped) == (0, 0), report.text()

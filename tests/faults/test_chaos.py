"""Points 1 to 6 of «Mend» against real processes: killed twice in a row, frozen and then killed, late, with jumping clocks."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from holdfast.testing.chaos import Report, chaos
from holdfast.testing.nursery import Child, Nursery

NEVER = 60.0
"""Minutes: what is asked for is done, however long a busy machine takes for it."""


def sound(report: Report) -> None:
    sys.stdout.write(report.text())
    assert not report.wrong, report.text()
    assert (report.runs_done, report.runs_skipped) == (report.runs, 0), report.text()
    assert (sum(report.faults_done.values()), report.faults_skipped) == (report.faults, 0), report.text()
    assert sum(report.ended.values()) == report.runs_done


async def test_a_little_chaos() -> None:
    """Every run ends, every accepted command is in its log, no act is done twice, no owner that lives is said to have died."""
    sound(await chaos(runs=100, faults=50, seed=11, budget=NEVER))


async def test_processes_of_a_nursery(tmp_path: Path) -> None:
    """They begin at once, their ends are told however they come, and they go with it: stopped ones too."""
    async with Nursery("holdfast.testing.chaos", "--nursery", f"sqlite:///{tmp_path / 'runs.db'}", str(tmp_path)) as nursery:
        children: list[Child] = [await nursery.start() for _ in range(3)]
        assert len({c.pid for c in children}) == 3
        children[0].kill()
        await children[0].gone.wait()
        children[1].send(signal.SIGTERM)
        await children[1].gone.wait()
        children[2].send(signal.SIGSTOP)
        assert not children[2].gone.is_set()
        children[0].kill()  # nobody is meant any more
    with pytest.raises(ProcessLookupError):
        os.kill(children[2].pid, 0)


@pytest.mark.heavy
async def test_much_chaos() -> None:
    sound(await chaos(runs=2_000, faults=1_000, seed=12, budget=NEVER))

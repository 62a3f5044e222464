"""``doctor`` ends with what to do, in order: errors of the store, errors of runs, warnings, then runs that are due."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Type

from holdfast.cli.mending import MOST_STEPS, to_do


def problem(code: str, severity: str, run_id: str | None = None, hint: str = "mend it") -> dict[str, Any]:
    return {"code": code, "severity": severity, "message": f"about {code}", "repair_hint": hint, "run_id": run_id}


def test_the_most_urgent_comes_first_and_the_same_is_said_once() -> None:
    found = [problem("late", "warning"), problem("torn", "error", "r1"), problem("torn", "error", "r2"), problem("lost", "error"), problem("odd", "warning", "r3", "")]
    assert to_do(found, 2, "holdfast worker pay.py") == [
        "lost: mend it", "torn (run r1 and 1 more): mend it", "late: mend it", "odd (run r3): about odd",
        "2 runs are due and no worker is running. Start one: holdfast worker pay.py",
    ]
    assert to_do([], 0, "") == []
    many = to_do([problem(f"p{n}", "error") for n in range(MOST_STEPS + 5)], 0, "")
    assert len(many) == MOST_STEPS + 1 and many[-1] == "Then run holdfast doctor again: 5 more"


def test_a_due_run_without_a_worker(holdfast: Type) -> None:
    holdfast("submit", "work.py", "--input", '{"name": "quick"}')
    said = holdfast("doctor")
    assert said.code == 0 and "1. 1 run is due and no worker is running. Start one:" in " ".join(said.out.split())
    assert holdfast("doctor", "--json").json["to_do"] == ["1 run is due and no worker is running. Start one: python -m holdfast worker work.py:graph"]


def test_a_disk_that_is_nearly_full(holdfast: Type, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holdfast("run", "work.py", "--input", '{"name": "quick"}')
    usage = shutil.disk_usage(folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=5 << 20))
    said = holdfast("doctor")
    assert said.code == 0 and "disk_low" in said.out and "5 MiB left" in said.out and "1. disk_low: make room" in said.out

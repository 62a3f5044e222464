"""Nodes that do something to their process (X-24): it lives, or ends as docs/faults.md says; ten healthy runs beside it end well; what is left is sound."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.wild import KINDS

EVERY_TIME = (
    "changes_the_folder", "clears_the_environment", "makes_warnings_errors", "closes_stdout", "ignores_the_signals", "turns_the_clock_back",
    "logs_to_a_handler_that_raises", "hooks_exceptions", "a_thread_that_exits", "a_child_that_is_killed", "closes_the_loop", "exits_at_once", "spins",
)
HARMS_ITS_NEIGHBOURS = ("makes_no_more_tasks", "lowers_the_depth_of_calls")
"""What these change belongs to the whole interpreter, or to the loop: nothing is promised of what runs there beside them (docs/faults.md)."""


def test_there_are_many() -> None:
    assert len(KINDS) >= 50 and set(EVERY_TIME) <= KINDS.keys()


def tried(folder: Path, names: tuple[str, ...]) -> dict[tuple[str, str], dict[str, Any]]:
    command = [sys.executable, "-m", "tests.faults.wild", str(folder), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True, cwd=Path(__file__).parents[2])
    trials = [json.loads(line) for line in done.stdout.splitlines()]
    return {(t["name"], t["mode"]): t for t in trials}


def judged(trial: dict[str, Any]) -> str:
    """What is wrong with how it went; empty if nothing is."""
    kind = KINDS[trial["name"]]
    if trial["hung"]:
        return "it hung"
    if kind.lives is not None and (trial["exit"] == 0) is not kind.lives:
        return f"the process ended with {trial['exit']}"
    if trial["status"] not in kind.ends:
        return f"its run ended {trial['status']}"
    if trial["problems"] and kind.name not in HARMS_ITS_NEIGHBOURS:
        return "the store is not sound"
    well = [2] * (1 if trial["mode"] == "invoke" else 10)
    if trial["healthy"] not in ([well, []] if trial["mode"] == "invoke" and kind.lives is not True else [well]) and kind.name not in HARMS_ITS_NEIGHBOURS:
        return "a healthy run did not end well"
    return ""


def test_some_of_them(tmp_path: Path) -> None:
    trials = tried(tmp_path, EVERY_TIME)
    assert trials.keys() == {(name, mode) for name in EVERY_TIME for mode in KINDS[name].modes}
    assert not {key: (wrong, trial) for key, trial in trials.items() if (wrong := judged(trial))}


PARTS = 16  # each ends well before a test is ended for having hung


@pytest.mark.heavy
@pytest.mark.parametrize("part", range(PARTS))
def test_all_of_them(part: int, tmp_path: Path) -> None:
    names = tuple(KINDS)[part::PARTS]
    trials = tried(tmp_path, names)
    assert trials.keys() == {(name, mode) for name in names for mode in KINDS[name].modes}
    assert not {key: (wrong, trial) for key, trial in trials.items() if (wrong := judged(trial))}

"""The public interface as type checkers see it: ``interface.py`` is clean, and each mistake in ``mistakes.py`` is found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from holdfast import Run, handle
from holdfast.core.run import Run as Record

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CLEAN, WRONG = HERE / "interface.py", HERE / "mistakes.py"
MYPY = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary", "--python-version", "3.11"]
PYRIGHT = shutil.which("pyright", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}") or ""


def found(command: list[str]) -> dict[str, set[int]]:
    """By file, the lines that a checker finds fault with."""
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "MYPYPATH": str(ROOT / "src"), "NO_COLOR": "1"}
    done = subprocess.run([*command, str(CLEAN), str(WRONG)], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    faults: dict[str, set[int]] = {}
    for path, line in re.findall(r"([\w/.-]+\.py):(\d+)(?::\d+)?(?: -)?:? error", done.stdout):
        faults.setdefault(Path(path).name, set()).add(int(line))
    assert faults, f"the checker said nothing at all:\n{done.stdout}{done.stderr}"
    return faults


def test_a_run_names_the_fields_of_its_record_with_their_types() -> None:
    """They are read from the record; what a type checker and a completion are told of them is what is there."""
    told, kept = typing.get_type_hints(Run, localns=vars(handle)), typing.get_type_hints(Record)
    assert {name: kept.get(name) for name in told} == told
    assert {"run_id", "thread_id", "skill_id", "tags"} <= told.keys() < {*dir(Run.__new__(Run))}


def meant() -> set[int]:
    return {n for n, line in enumerate(WRONG.read_text("utf-8").splitlines(), 1) if line.endswith("# wrong")}


def test_mypy_strict() -> None:
    assert found(MYPY) == {"mistakes.py": meant()}


@pytest.mark.heavy  # its package fetches the checker on first use, which a test run without a network could not
@pytest.mark.skipif(not PYRIGHT, reason="pyright is not installed")
def test_pyright() -> None:
    assert found([PYRIGHT, "--pythonpath", sys.executable]) == {"mistakes.py": meant()}

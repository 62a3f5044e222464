"""The public interface as type checkers see it: ``interface.py`` is clean, and each mistake in ``mistakes.py`` is found."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Context, Run, Runtime, handle
from holdfast.core.run import Run as Record
from holdfast.engine.calls.context import AskOptions, ChildOptions, EffectOptions
from holdfast.engine.desk.door import OneRunOptions, RunOptions

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


@pytest.mark.parametrize(
    ("options", "function", "beside"),
    [
        (AskOptions, Context.ask, set()),
        (EffectOptions, Context.effect, set()),
        (ChildOptions, Context.child, set()),
        (OneRunOptions, holdfast.run, set()),
        (RunOptions, Runtime.invoke, {"step_limit", "detach"}),
    ],
)
def test_the_options_that_a_type_checker_knows_are_those_that_there_are(options: Any, function: Any, beside: set[str]) -> None:
    """They are written beside the signature, because an overload cannot take them from it. ``beside``: those that the overload names itself."""
    taken = {p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY}
    assert options.__annotations__.keys() | beside == taken


def meant() -> set[int]:
    return {n for n, line in enumerate(WRONG.read_text("utf-8").splitlines(), 1) if line.endswith("# wrong")}


def test_mypy_strict() -> None:
    assert found(MYPY) == {"mistakes.py": meant()}


@pytest.mark.heavy  # its package fetches the checker on first use, which a test run without a network could not
@pytest.mark.skipif(not PYRIGHT, reason="pyright is not installed")
def test_pyright() -> None:
    assert found([PYRIGHT, "--pythonpath", sys.executable]) == {"mistakes.py": meant()}

"""The core is proved by its own tests: every branch of it, by tests/core and nothing else."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def test_tests_core_cover_every_branch_of_the_core(tmp_path: pathlib.Path) -> None:
    """The command of docs/testing.md, in a process of its own. Some 15 seconds on one core."""
    env = {**os.environ, "COVERAGE_FILE": str(tmp_path / "coverage")}
    coverage = [sys.executable, "-m", "coverage"]
    ran = subprocess.run(
        [*coverage, "run", "--branch", "--source=holdfast.core", "-m", "pytest", "-n0", "tests/core", "-p", "no:cacheprovider"],
        cwd=ROOT, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-4000:]
    told = subprocess.run([*coverage, "report", "--show-missing", "--skip-covered", "--fail-under=100"], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout

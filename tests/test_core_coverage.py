"""Every branch of the core is covered by the core's own tests."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def test_tests_core_cover_every_branch_of_the_core(tmp_path: pathlib.Path) -> None:
    """The command of docs/testing.md, in a process of its own. Some 15 seconds on one core."""
    env = {**os.environ, "COVERAGE_FILE": str(tmp_path / "coverage"), "PYTEST_DEBUG_TEMPROOT": str(tmp_path)}  # its folders are tidied up by itself alone
    coverage = [sys.executable, "-m", "coverage"]
    ran = subprocess.run(
        [*coverage, "run", "--branch", "--source=holdfast.core", "-m", "pytest", "-n0", "tests/core", "-p", "no:cacheprovider"],
        cwd=ROOT, env=env, capture_output=True, text=True, check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
    subprocess.run([*coverage, "json", "-o", str(tmp_path / "covered.json")], cwd=ROOT, env=env, capture_output=True, check=True)
    files = json.loads((tmp_path / "covered.json").read_text())["files"]
    covered = {pathlib.Path(name).stem: found["summary"]["percent_covered"] for name, found in files.items()}
    assert len(covered) > 40
    below = {name: round(share, 1) for name, share in covered.items() if share < 100}
    assert not below, f"not all of it: {below}; coverage report --show-missing says where"

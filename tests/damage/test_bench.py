"""The benches of damage and of imports, small; large where it is asked for (X-21, X-23)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.damage.bench import FORMS, WAYS, memory, run
from tests.damage.imports import imported

SMALL = {"sqlite": 60, "workspace": 30, "export": 15, "postgres": 15}


def verdict(form: str, places: int, seed: int, *, jobs: int = 1) -> None:
    said: list[str] = []
    told = run(form, places, seed, said.append, folder=memory(), jobs=jobs)
    counts, ways = told.counts, told.ways
    assert not said, "\n".join(said)
    assert counts.total() == places
    assert counts["named"] >= places * 2 // 3, f"at most a third of the places may change nothing that can be read: {counts}"
    assert not ways[WAYS[4]]


@pytest.mark.parametrize("form", FORMS)
def test_a_few_places(form: str) -> None:
    """Targets: named on read or by the checker, 0 silent, 0 untyped, 0 endless; each problem mended, or it says what to do."""
    verdict(form, SMALL[form], 3)


@pytest.mark.heavy
@pytest.mark.parametrize("form", FORMS)
def test_five_thousand_places(form: str) -> None:
    verdict(form, 5000, 11, jobs=len(os.sched_getaffinity(0)))


async def test_mutated_workspaces(tmp_path: Path) -> None:
    """X-23: a typed refusal, or exactly what they say; nothing of others changes."""
    counts = await imported(tmp_path, 40, 5)
    assert counts["refused"] > 40 // 3 and counts["taken in"]


@pytest.mark.heavy
async def test_a_thousand_mutated_workspaces(tmp_path: Path) -> None:
    counts = await imported(tmp_path, 1000, 6)
    assert counts["refused"] + counts["taken in"] == 1000

"""The bench of the disk, small; all its places where it is asked for (``tests/faults/disk.py``)."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from tests.faults.disk import FORMS, Place, gone_through, places, sample


def told(form: str, tmp_path: Path, chosen: list[Place]) -> None:
    problems = {place: wrong[:4] for place, _, wrong in gone_through(form, tmp_path, chosen) if wrong}
    assert not problems, f"{len(problems)} of {len(chosen)}: " + json.dumps([[*p, w] for p, w in list(problems.items())[:12]], indent=1)


@pytest.mark.parametrize("form", FORMS)
def test_a_sample_of_places(form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    told(form, tmp_path, sample(places(form, tmp_path / "dry"), 40))


@pytest.mark.heavy
@pytest.mark.parametrize("form", FORMS)
def test_every_place(form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    told(form, tmp_path, places(form, tmp_path / "dry"))

"""`python -m tests.workers.pressure` says what it is not asked for rightly; its rounds are measurements, and are made by hand."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from holdfast import Runtime
from tests.workers.copies import ended_runs_in_file
from tests.workers.pressure import Batches, main


def test_a_round_that_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["no-such-round"])
    assert "there are snapshot" in capsys.readouterr().err


async def test_copies_in_a_file_are_sound_and_go_whole(tmp_path: Path) -> None:
    """What a prune is measured on is what real runs leave, and nothing of it stays but a note for each run."""
    made = await ended_runs_in_file(str(tmp_path / "s.db"), 150, 1, tenths=1)
    async with Runtime(f"sqlite:///{tmp_path}/s.db") as rt:
        assert (await rt.check()).runs == made >= 150
        assert list(await rt.check()) == []
        with Batches() as batches:
            assert len((await rt.prune(dt.timedelta(0))).run_ids) == made
        assert batches.longest > 0
        assert list(await rt.check()) == [] and await rt.runs() == []

"""The nightly pipeline: a failing shard runs again alone, and a deploy takes the run along."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples.nightly_pipeline import first, nightly

from examples import nightly_pipeline
from holdfast import Runtime


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shards"
    folder.mkdir()
    for n in range(5):
        (folder / f"{n}.txt").write_text(f"{n}\n{n}\n")
    monkeypatch.setattr(nightly_pipeline, "INPUT", folder)
    return folder


async def test_all_shards_are_counted(shards: Path) -> None:
    async with Runtime("memory:", skills=[nightly]) as rt:
        state = await rt.run(nightly, {"day": "2026-11-22"})
        assert state.log[-1] == "2026-11-22: 20 in 5 shards" and state.report.count("\n") == 5


async def test_only_the_failed_shard_runs_again_after_its_repair_and_a_deploy(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    plain = nightly_pipeline.count_rows

    def count_rows(shard: str) -> int:
        counted.append(shard)
        return plain(shard)

    monkeypatch.setattr(nightly_pipeline, "count_rows", count_rows)
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    (shards / "3.txt").write_text("3\nthree\n")
    async with Runtime(url, skills=[first]) as rt:
        run = await rt.invoke(first, {"day": "2026-11-22"})
        assert run.status == "failed" and run.error is not None and "three" in run.error.message
        assert sorted(counted) == ["0.txt", "1.txt", "2.txt", "3.txt", "4.txt"]
    (shards / "3.txt").write_text("3\n3\n")
    counted.clear()
    async with Runtime(url, skills=[nightly]) as rt:
        run = await rt.resume(run.run_id, acknowledge=run.stop_reason)
        assert run.status == "completed" and counted == ["3.txt"]
        assert run.state.report.endswith("2026-11-22: 20 in 5 shards")

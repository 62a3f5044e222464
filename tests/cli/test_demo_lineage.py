"""The demo replayed and forked, each command that drives a process of its own, with a git that counts and a model that counts (§7.6, §7.7)."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Type
from tests.cli.test_demo import STORE, Model, model, repo

from holdfast.demo import repository

assert model and repo, "fixtures"
TEXT = "# Mine\n"


@pytest.fixture
def counted(folder: Path, repo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line for each call of git by any process; git itself does what it always does."""
    real = shutil.which("git")
    assert real is not None
    calls = folder / "git-calls.txt"
    calls.touch()
    (folder / "bin").mkdir()
    fake = folder / "bin" / "git"
    fake.write_text(f'#!/bin/sh\necho "$@" >> "{calls}"\nexec "{real}" "$@"\n', "utf-8")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return calls


class Outside:
    """What has happened outside so far: calls of git, questions to the model, and the files that are there."""

    def __init__(self, folder: Path, calls: Path) -> None:
        self._folder = folder
        self._calls = calls

    def seen(self) -> tuple[int, int, dict[str, tuple[str, int]]]:
        files = sorted((self._folder / ".holdfast" / "demo").glob("release-notes-*.md"))
        lines = self._calls.read_text("utf-8").splitlines()
        return len(lines), len(Model.asked), {p.name: (p.read_text("utf-8"), p.stat().st_mtime_ns) for p in files}


@pytest.fixture
def outside(folder: Path, counted: Path, model: type[Model]) -> Outside:
    return Outside(folder, counted)


def begun(process: Type, repo: Path, outside: Outside) -> str:
    """The demo, from its commits to its file; git and the model have been asked."""
    said = process("demo", "--repo", str(repo), "--yes", "--json")
    assert said.code == 0, said.err
    git, asked, files = outside.seen()
    assert git >= 1 and asked == 1 and list(files) == [f"release-notes-{said.json['run_id']}.md"]
    assert said.json["values"]["author"] == "small"
    return str(said.json["run_id"])


def approved(process: Type, holdfast: Type, said: Any) -> Any:
    """A run that asks is approved and goes on, by another process (§5.4)."""
    assert (said.code, said.json["condition"]) == (4, "awaiting_gate_decision"), said.err
    run_id = said.json["run_id"]
    assert holdfast("approve", run_id, *STORE).code == 0
    done = process("resume", run_id, "--json", *STORE)
    assert (done.code, done.json["status"]) == (0, "completed"), done.err
    return done.json


def test_a_replay_asks_neither_git_nor_the_model(process: Type, holdfast: Type, repo: Path, outside: Outside) -> None:
    """§7.6: approvals are asked again; all else is answered from the records, and nothing is written again."""
    source = begun(process, repo, outside)
    before = outside.seen()
    replay = approved(process, holdfast, process("replay", source, "--json", *STORE))
    assert outside.seen() == before
    assert (replay["source_run_id"], replay["values"]["published"]["path"]) == (source, holdfast("show", source, "--json", *STORE).json["values"]["published"]["path"])
    assert [e["status"] for e in holdfast("effects", replay["run_id"], "--json", *STORE).json["effects"]] == ["reused"]


def test_a_fork_publishes_another_text_under_a_new_run(process: Type, holdfast: Type, repo: Path, outside: Outside) -> None:
    """§7.7: the source's file and records stay as they are; git and the model are not asked again."""
    source = begun(process, repo, outside)
    git, asked, files = outside.seen()
    record = holdfast("show", source, "--json", *STORE).json
    fork = approved(process, holdfast, process("fork", source, "--set", f"draft={TEXT}", "--reason", "shorter", "--json", *STORE))
    now = outside.seen()
    assert now[:2] == (git, asked)
    assert now[2].pop(f"release-notes-{fork['run_id']}.md")[0] == TEXT
    assert now[2] == files
    assert fork["run_id"] != source and fork["values"]["draft"] == TEXT
    assert holdfast("show", source, "--json", *STORE).json == record
    assert [e["status"] for e in holdfast("effects", fork["run_id"], "--json", *STORE).json["effects"]] == ["recorded"]


def test_a_replay_of_a_fork_of_a_replay(process: Type, holdfast: Type, repo: Path, outside: Outside) -> None:
    """T-47: nothing is asked and nothing is written, three generations on; and ``show`` draws them all from each of them."""
    source = begun(process, repo, outside)
    replay = approved(process, holdfast, process("replay", source, "--json", *STORE))
    fork = approved(process, holdfast, process("fork", replay["run_id"], "--set", f"draft={TEXT}", "--json", *STORE))
    before = outside.seen()
    last = approved(process, holdfast, process("replay", fork["run_id"], "--json", *STORE))
    assert outside.seen() == before
    assert last["values"]["draft"] == TEXT
    assert last["lineage_root"] == source
    assert holdfast("check", *STORE).code == 0
    beside = process("replay", source, "--json", *STORE).json["run_id"]
    for here in (source, replay["run_id"], fork["run_id"], last["run_id"]):
        lines = [line.rstrip() for line in holdfast("show", here, *STORE).out.splitlines()]
        at = lines.index("lineage")
        drawn = [line.strip() for line in lines[at + 1 : at + 6]]
        for line, run_id, branch, how in zip(
            drawn,
            (source, replay["run_id"], fork["run_id"], last["run_id"], beside),
            ("", "├─ ", "│  └─ ", "│     └─ ", "└─ "),
            ("", "replay of c", "fork of c", "replay of c", "replay of c"),
            strict=True,
        ):
            assert line.startswith(f"{branch}{run_id}"), drawn
            assert how in line
            assert ("← this run" in line) is (run_id == here)


def test_a_replay_that_wants_a_person_pauses_and_goes_on(process: Type, holdfast: Type, repo: Path, outside: Outside) -> None:
    """T-43, T-03: ``require_human`` is a pause with a checkpoint, not a failure; approved, the record is given and nothing is written."""
    source = begun(process, repo, outside)
    before = outside.seen()
    said = process("replay", source, "--effects", "require_human", "--json", *STORE)
    assert holdfast("approve", said.json["run_id"], *STORE).code == 0, "the demo's own question"
    paused = process("resume", said.json["run_id"], "--json", *STORE)
    assert (paused.code, paused.json["status"], [w["kind"] for w in paused.json["waits"]]) == (4, "waiting_for_human", ["gate"])
    assert "was done before" in paused.json["waits"][0]["prompt"]
    done = approved(process, holdfast, paused)
    assert outside.seen() == before
    kinds = [e["event_type"] for e in holdfast("events", done["run_id"], "--json", *STORE).json["events"]]
    assert kinds.index("run.replaying") < kinds.index("run.resumed") < kinds.index("run.waiting_for_human")
    assert "run.failed" not in kinds


def test_the_counting_git_counts(repo: Path, counted: Path) -> None:
    """What stands between the tests above and an empty promise."""
    assert repository.commits(repo) == 5
    assert counted.read_text("utf-8").splitlines()[-1] == "rev-list --count HEAD"

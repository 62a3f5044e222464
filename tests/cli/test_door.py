"""The command line's door (Harden 10): one clear line and exit 2 for what is no number or is said twice; looking runs no code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli.main import cli

WRONG = [
    (["events", "r", "--after", str(10**23)], "after"), (["events", "r", "--after", "-1"], "after"), (["runs", "--limit", "-3"], "limit"), (["runs", "--limit", "9" * 30], "limit"),
    (["worker", "--lease", "nan"], "lease"), (["resume", "r", "--lease", "inf"], "lease"), (["cancel", "r", "--wait", "nan"], "wait"),
    (["submit", "--input", '{"repo": "a", "repo": "b"}'], "twice"), (["submit", "--input", '{"repo": {"x": 1, "x": 2}}'], "twice"), (["signal", "r", "go", "--payload", '{"a": 1, "a": 1}'], "twice"),
    (["submit", "--input", '{"repo": NaN}'], "NaN"), (["fork", "r", "--set", 'a={"b": 1, "b": 2}'], "twice"), (["submit", "--delay", "9" * 40 + "d"], "length of time"),
]


@pytest.mark.parametrize(("words", "said"), WRONG, ids=[" ".join(w[0])[:40] for w in WRONG])
def test_one_line_and_exit_2(words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, [*words, "--store", f"sqlite:///{tmp_path}/s.db"], prog_name="holdfast")
    assert result.exit_code == 2, result.output
    line = result.stderr.strip()
    assert said in line and "\n" not in line and "Traceback" not in line
    assert not (tmp_path / "s.db").exists()


def test_looking_runs_no_code_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`graph RUN` imported whatever pyproject.toml of the current folder named."""
    monkeypatch.chdir(tmp_path)
    store = ["--store", f"sqlite:///{tmp_path}/s.db"]
    made = CliRunner().invoke(cli, ["submit", "holdfast.demo.notes:graph", "--input", '{"repo": ".", "folder": "."}', "--json", *store], prog_name="holdfast")
    assert made.exit_code == 0, made.output
    run_id = json.loads(made.stdout)["run_id"]
    (tmp_path / "pyproject.toml").write_text('[tool.holdfast]\nskills = ["evil.py"]\n')
    (tmp_path / "evil.py").write_text("open('ran', 'w')\n")
    for words in (["graph", run_id], ["show", run_id], ["runs"], ["events", run_id], ["waits"], ["check"], ["effects", run_id], ["checkpoints", run_id]):
        ran = CliRunner().invoke(cli, [*words, *store], prog_name="holdfast")
        assert ran.exit_code == 0, (words, ran.output)
        assert not (tmp_path / "ran").exists(), words

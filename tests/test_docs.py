"""What the pages say runs: each block of the tutorial in order, and README's hello."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tests.test_tidy import fences

ROOT = Path(__file__).parent.parent


def told(block: str) -> list[str]:
    """What a block says that it prints."""
    return [said[1:] if said.startswith(" ") else said for said in re.findall(r"# →(.*)$", block, re.M)]


def printed(block: str, names: dict[str, Any]) -> list[str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(block, "page", "exec"), names)
    return out.getvalue().splitlines()


def test_the_tutorial_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "tutorial"}
    blocks = fences((ROOT / "docs" / "tutorial.md").read_text("utf-8"), "python")
    assert sum(len(told(b)) for b in blocks) > 10, "a page that prints nothing shows nothing"
    for block in blocks:
        assert printed(block, names) == told(block), block


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_hello_takes_at_most_ten_lines(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    block = fences((ROOT / page).read_text("utf-8"), "python")[0]
    assert len([line for line in block.splitlines() if line.strip()]) <= 10
    assert printed(block, {"__name__": "hello"}) in (["Hello, Ada!"], ["Hello(name='Ada', text='Hello, Ada!')"])


def test_the_readmes_agent_runs_as_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    agent = fences((ROOT / "README.md").read_text("utf-8"), "python")[1]
    assert printed(agent, {"__name__": "__main__"}) == ["awaiting_gate_decision", "published: fsync is durable and fsync is slow", "completed page 1"]

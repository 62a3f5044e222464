"""A command line to type into, in a folder of its own, and a skill to run."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.cli.main import cli

SOURCE = Path(__file__).resolve().parents[2] / "src"
SKILL = '''
from typing import Annotated

from holdfast import Context, Graph, State, append


class Work(State):
    name: str
    done: Annotated[list[str], append]


graph = Graph("work", Work, version="3")


def note(word: str) -> str:
    with open("calls.txt", "a") as file:
        file.write(word + "\\n")
    return word


@graph.node(start=True)
async def first(state: Work, ctx: Context):
    return {"done": [await ctx.step(note, "first")]}


@graph.node(after="first")
async def ask(state: Work, ctx: Context):
    if state.name == "broken":
        raise ValueError("it is broken")
    if state.name != "quick":
        await ctx.approve("Go on?", show=f"after {state.done}")


@graph.node(after="ask")
async def last(state: Work, ctx: Context):
    return {"done": [await ctx.step(note, "last")]}
'''


@dataclass
class Said:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out, self.err
        return json.loads(self.out)


Type = Callable[..., Said]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with a skill in ``work.py``; nothing of this machine's settings."""
    for name in ("HOLDFAST_STORE", "HOLDFAST_SKILLS", "HOLDFAST_LEASE", "HOLDFAST_ACTOR", "HOLDFAST_LLM_URL", "UV_RUN_RECURSION_DEPTH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    (tmp_path / "work.py").write_text(SKILL, "utf-8")
    yield tmp_path
    sys.path[:] = path


@pytest.fixture
def holdfast() -> Type:
    """Types a command in this process."""

    def type_(*words: str, given: str | None = None) -> Said:
        done = CliRunner().invoke(cli, list(words), input=given, prog_name="holdfast")
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Said(done.exit_code, done.stdout, done.stderr)

    return type_


def environment() -> dict[str, str]:
    """What a process of its own needs to find the package."""
    return os.environ | {"PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def process() -> Type:
    """Types a command in a process of its own, without a terminal."""

    def type_(*words: str, given: str | None = None) -> Said:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *words], input=given or "", capture_output=True, text=True, env=environment(), timeout=60, check=False
        )
        return Said(done.returncode, done.stdout, done.stderr)

    return type_

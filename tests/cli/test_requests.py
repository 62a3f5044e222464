"""A person answers the request of a tool's call from the shell, and the waiting run goes on with it (§6.5, §11.3)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Type

from holdfast import workspaces

BUILDS = '''
from holdfast import Context, Graph, State, Tool


class Work(State):
    out: str = ""


graph = Graph("builds", Work, version="1")
tools = [Tool("sh", side_effects="write")]


@graph.node(start=True)
async def work(state: Work, ctx: Context):
    return {"out": (await ctx.tool("sh", ["-c", "printf x >> count; cat count"])).stdout}
'''


@pytest.fixture
def asked(holdfast: Type, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run whose request no runner answers."""
    (folder / "builds.py").write_text(BUILDS)
    (folder / "space").mkdir()
    monkeypatch.setenv("HOLDFAST_WORKSPACE", f"remote:{workspaces.find_id(str(folder / 'space'))}")
    (folder / "pyproject.toml").write_text('[tool.holdfast]\ntools = "builds:tools"\n')
    run = holdfast("run", "builds.py:graph", "--json")
    assert run.json["status"] == "waiting_for_signal", run.err
    return str(run.json["run_id"])


def request_of(holdfast: Type, run: str) -> str:
    return str(holdfast("outbox", run, "--json").json["intents"][-1]["intent_id"])


def resumed(holdfast: Type, run: str) -> dict[str, object]:
    found: dict[str, object] = holdfast("resume", run, "builds.py:graph", "--json").json
    return found


def test_what_may_be_said_is_printed(holdfast: Type, asked: str) -> None:
    """``explain`` leads to ``outbox``, and that to the commands."""
    request = request_of(holdfast, asked)
    assert f"python -m holdfast outbox {asked}" in [a["command"] for a in holdfast("explain", asked, "--json").json["next"]]
    said = holdfast("outbox", asked).out
    assert "sh, in the workspace " in said and "no tool runner answers its request" in said
    assert f"holdfast settle '{request}' --as sent --result '{{\"exit_code\": 0}}' --reason WHY" in " ".join(said.split())
    assert f"holdfast settle '{request}' --as abandoned --reason WHY" in " ".join(said.split()) and "redrive" not in said


def test_it_happened(holdfast: Type, folder: Path, asked: str) -> None:
    request = request_of(holdfast, asked)
    wrong = holdfast("settle", request, "--as", "sent", "--result", "done", "--actor", "ada")
    assert wrong.code == 2 and "--result is not JSON" in wrong.err
    (folder / "outcome.json").write_text(json.dumps({"stdout": "by hand"}))
    settled = holdfast("settle", request, "--as", "sent", "--result", "@outcome.json", "--actor", "ada", "--reason", "I looked")
    assert settled.code == 0 and settled.out.startswith(f"{request}  sent"), settled.err
    run = resumed(holdfast, asked)
    assert (run["status"], run["values"]) == ("completed", {"out": "by hand"})
    assert not (folder / "space" / "count").exists()
    assert "as ada (I looked) found" in holdfast("events", asked).out


def test_it_is_given_up(holdfast: Type, folder: Path, asked: str) -> None:
    assert holdfast("settle", request_of(holdfast, asked), "--as", "abandoned", "--actor", "ada", "--reason", "scrapped").code == 0
    assert resumed(holdfast, asked)["status"] == "failed"
    assert "sh was given up by ada (scrapped)" in " ".join(holdfast("explain", asked).out.split())


def test_it_did_not_happen(holdfast: Type, process: Type, folder: Path, asked: str) -> None:
    """A runner is killed with the request: it is sent again as a new one, which the next runner carries out."""
    (folder / "killing.py").write_text('from holdfast import Tool\n\ntools = [Tool("sh", side_effects="write", command=("sh", "-c", "kill -9 $PPID"))]\n')
    assert process("tool-runner", "--workspace", "space", "--tools", "killing.py:tools", "--until-idle").code == -9
    request = request_of(holdfast, asked)
    said = " ".join(holdfast("outbox", asked).out.split())
    assert "it may or may not have run" in said and f"holdfast redrive '{request}'" in said, said
    again = holdfast("redrive", request, "--actor", "ada", "--reason", "the folder is as it was")
    assert (again.code, again.out) == (0, f"{request}  abandoned: its run makes a new request\n"), again.err
    assert resumed(holdfast, asked)["status"] == "waiting_for_signal" and request_of(holdfast, asked) != request
    assert holdfast("tool-runner", "--workspace", "space", "--tools", "builds.py:tools", "--until-idle").code == 0
    run = resumed(holdfast, asked)
    assert (run["status"], run["values"]) == ("completed", {"out": "x"})

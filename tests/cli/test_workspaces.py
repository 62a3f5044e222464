"""Two machines played by two folders, from the shell (§11.3): a run begun in one is not worked on in the other; a third that has the workspace takes it over."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Type

from holdfast import workspaces

SITE = '''
from holdfast import Context, Graph, State, Tool


class Work(State):
    out: str = ""


graph = Graph("site", Work, version="1")
tools = [Tool("sh", side_effects="write")]


@graph.node(start=True)
async def first(state: Work, ctx: Context):
    await ctx.tool("sh", ["-c", "echo one > made"])


@graph.node(after="first")
async def ask(state: Work, ctx: Context):
    await ctx.approve("Go on?")


@graph.node(after="ask")
async def last(state: Work, ctx: Context):
    return {"out": (await ctx.tool("sh", ["-c", "cat made"])).stdout}
'''


def test_a_run_stays_where_its_tools_have_worked(holdfast: Type, process: Type, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "pages_site.py").write_text(SITE)
    (folder / "pyproject.toml").write_text('[tool.holdfast]\ntools = "pages_site:tools"\n')
    here, there = folder / "here", folder / "there"
    for place in (here, there):
        place.mkdir()
    (there / "made").write_text("wrong\n")
    workspace = workspaces.find_id(str(here))

    monkeypatch.setenv("HOLDFAST_WORKSPACE", str(here))
    run = str(process("run", "pages_site.py:graph", "--json").json["run_id"])
    assert process("approve", run, "--actor", "ada").code == 0

    monkeypatch.setenv("HOLDFAST_WORKSPACE", str(there))
    passed = process("worker", "pages_site.py:graph", "--until-idle")
    assert passed.code == 0 and f"{run}  ! no_worker_for" in passed.out and f"in the workspace {workspace}" in passed.out
    refused = process("resume", run, "pages_site.py:graph")
    assert refused.code == 6 and refused.err.startswith("workspace_elsewhere: ") and str(workspace) in refused.err
    assert "--upgrade" not in refused.err and "$HOLDFAST_WORKSPACE" in refused.err, "other code would not help"
    assert process("show", run, "--json").json["status"] == "waiting_for_human"

    monkeypatch.setenv("HOLDFAST_WORKSPACE", str(here))
    assert process("worker", "pages_site.py:graph", "--until-idle").code == 0
    done = process("show", run, "--json").json
    assert (done["status"], done["values"]) == ("completed", {"out": "one\n"})
    assert sorted(p.name for p in there.iterdir() if not p.name.startswith(".")) == ["made"] and (there / "made").read_text() == "wrong\n"


DYING = '''
from holdfast import Context, Graph, State, Tool


class Work(State):
    out: str = ""


graph = Graph("dying", Work, version="1")
tools = [Tool("sh", side_effects="write", idempotency="optional")]


@graph.node(start=True)
async def work(state: Work, ctx: Context):
    script = "test -e made || { echo one > made; kill -9 $PPID; }; cat made"
    return {"out": (await ctx.tool("sh", ["-c", script])).stdout}
'''


def test_a_third_with_the_workspace_takes_over_what_a_killed_one_had(process: Type, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is killed in the middle of a tool that may be called again; the second, elsewhere, leaves the run alone; the third calls it again."""
    (folder / "dying.py").write_text(DYING)
    (folder / "pyproject.toml").write_text('[tool.holdfast]\ntools = "dying:tools"\n')
    here, there = folder / "here", folder / "there"
    for place in (here, there):
        place.mkdir()
    run = str(process("submit", "dying.py:graph", "--json").json["run_id"])
    codes = []
    for place in (here, there, here):
        monkeypatch.setenv("HOLDFAST_WORKSPACE", str(place))
        codes.append(process("worker", "dying.py:graph", "--until-idle").code)
    assert codes == [-9, 0, 0]
    done = process("show", run, "--json").json
    assert (done["status"], done["values"]) == ("completed", {"out": "one\n"})
    told = [e["event_type"] for e in process("events", run, "--json").json["events"]]
    assert told.count("attempt.taken_over") == 1 and not (there / "made").exists(), "only the third took it"

"""Postconditions and artifacts (§11.4, T-96): kept with the call's end; a failed one fails it; a missing one asks a person."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Happened, Runtime, State, Tool, flow
from holdfast.core.errors import InvalidInput, PathOutsideWorkspace
from holdfast.core.evidence import Nowhere, Unseen, at, judge
from holdfast.ports import ToolOutcome
from holdfast.tools import Artifact, Command, ExitCode, FileExists, FileHash, HttpStatus, JsonPathEquals, Report, evidence
from holdfast.tools.local import confine
from tests.postgres.server import shared

MADE = hashlib.sha256(b"made\n").hexdigest()
SCRIPT = "import pathlib; p = pathlib.Path('out.txt'); p.write_text('made\\n'); c = pathlib.Path('count'); c.write_text((c.read_text() if c.exists() else '') + 'x')"


class Work(State):
    code: int = -1
    reports: list[Any] = []  # noqa: RUF012 - a state's defaults are copied
    artifacts: list[Any] = []  # noqa: RUF012


def working(tool: Tool) -> Graph[Work]:
    graph: Graph[Work] = Graph("working", Work, version="1")

    @graph.node(start=True)
    async def work(state: Work, ctx: Context) -> dict[str, Any]:
        outcome = await ctx.tool(tool.name, ["-c", SCRIPT])
        return {"code": outcome.exit_code, "reports": list(outcome.reports), "artifacts": list(outcome.artifacts)}

    return graph


def python(**more: Any) -> Tool:
    return Tool("python", command=(sys.executable,), **more)


@pytest.fixture(params=["memory:", "sqlite:///{}/a.db", "workspace:{}/runs", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return shared().fresh() if request.param == "postgresql" else str(request.param).format(tmp_path)


def space(tmp_path: Path) -> Path:
    (tmp_path / "space").mkdir(exist_ok=True)
    return tmp_path / "space"


@pytest.mark.parametrize("effects", ["read", "write"])
async def test_what_holds_is_kept_with_the_result(url: str, tmp_path: Path, effects: str) -> None:
    tool = python(side_effects=effects, postconditions=[ExitCode(0), FileExists("out.txt"), FileHash("out.txt", MADE), Command((sys.executable, "-c", ""))], artifacts=["*.txt"])
    graph = working(tool)
    async with Runtime(url, skills=[graph], tools=[tool], workspace=space(tmp_path)) as rt:
        run = await rt.invoke(graph, {})
        assert run.status == "completed", run.error
        assert run.state.reports == [Report("exit_code", True), Report("file_exists", True), Report("file_hash", True), Report("command", True)]
        assert run.state.artifacts == [Artifact("out.txt", 5, MADE)]
        assert await rt.store.blob(MADE) == b"made\n"
        events = await rt.events(run.run_id)
        kinds = [e.type for e in events]
        ends = [e.seq for e in events if e.type in ("step.completed", "side_effect.recorded")]
        told = [e.seq for e in events if e.type in ("postcondition.evaluated", "artifact.created")]
        assert kinds.count("postcondition.evaluated") == 4
        assert kinds.count("artifact.created") == 1
        assert max(told) < min(ends), "evidence is on record before any completion"


@pytest.mark.parametrize("effects", ["read", "write"])
async def test_what_does_not_hold_fails_the_attempt(url: str, tmp_path: Path, effects: str) -> None:
    tool = python(side_effects=effects, postconditions=[FileExists("other.txt"), ExitCode(0)])
    graph = working(tool)
    async with Runtime(url, skills=[graph], tools=[tool], workspace=space(tmp_path)) as rt:
        run = await rt.invoke(graph, {})
        assert run.status == "failed"
        assert run.error is not None and "other.txt" in run.error.message
        told = [e.payload for e in await rt.events(run.run_id) if e.type == "postcondition.evaluated"]
        assert [t["holds"] for t in told] == [False, True]


@pytest.mark.parametrize("effects", ["read", "write"])
@pytest.mark.parametrize("action", ["approve", "deny"])
async def test_missing_evidence_asks_and_nothing_is_done_twice(url: str, tmp_path: Path, effects: str, action: str) -> None:
    """T-96: approved it goes on, and the tool has run once; denied it halts."""
    tool = python(side_effects=effects, postconditions=[JsonPathEquals("report.json", "/ok", True)])
    graph = working(tool)
    async with Runtime(url, skills=[graph], tools=[tool], workspace=space(tmp_path)) as rt:
        run = await rt.invoke(graph, {})
        (wait,) = run.waits
        assert (run.status, wait.kind, wait.available_actions) == ("waiting_for_human", "takeover", ("approve", "deny"))
        assert wait.show["missing"][0]["kind"] == "json_path_equals"
        if action == "approve":
            run = await rt.approve(run.run_id, actor="ada")
            assert (run.status, run.state.code) == ("completed", 0)
            assert [r.ok for r in run.state.reports] == [None]
        else:
            run = await rt.deny(run.run_id, reason="no", actor="ada")
            assert (run.status, run.condition) == ("canceled", "halted")
        assert (space(tmp_path) / "count").read_text() == "x"


async def test_a_runner_that_does_not_report_gives_no_evidence(tmp_path: Path) -> None:
    from_runner = []

    class Silent:
        async def run(self, request: Any) -> Any:
            from_runner.append(request.postconditions)
            return ToolOutcome("", "", 0)

    tool = python(postconditions=[ExitCode(0)])
    graph = working(tool)
    async with Runtime("memory:", skills=[graph], tools=[tool], tool_runner=Silent()) as rt:
        run = await rt.invoke(graph, {})
        assert [w.kind for w in run.waits] == ["takeover"]
        assert from_runner == [(ExitCode(0),)]


async def test_what_verify_found_is_evidence_enough(tmp_path: Path) -> None:
    """Whatever it gives: the node gets that, and nobody is asked whether the call counts."""
    tool = python(postconditions=[ExitCode(0)], side_effects="write")
    graph: Graph[Work] = Graph("found", Work, version="1")

    async def look(key: str, *args: Any) -> Any:
        return Happened({"seen": True})

    @graph.node(start=True)
    async def work(state: Work, ctx: Context) -> dict[str, Any]:
        return {"reports": [await ctx.tool(tool.name, ["-c", "import time; time.sleep(60)"], timeout=0.2, verify=look)]}

    async with Runtime("memory:", skills=[graph], tools=[tool], workspace=space(tmp_path)) as rt:
        run = await rt.invoke(graph, {})
        assert (run.status, run.values["reports"]) == ("completed", [{"seen": True}]), run.error


async def test_evidence_stays_in_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("x")
    for tool in (python(postconditions=[FileExists("../secret.txt")]), python(artifacts=["../*.txt"]), python(artifacts=["/etc/hosts"])):
        graph = working(tool)
        async with Runtime("memory:", skills=[graph], tools=[tool], workspace=space(tmp_path)) as rt:
            run = await rt.invoke(graph, {})
            assert run.error is not None
            assert run.error.code == "path_outside_workspace"


def test_judging() -> None:
    unseen = Unseen("down")
    for condition in (ExitCode(), FileExists("a"), FileHash("a", "b"), JsonPathEquals("a", "/b"), HttpStatus("http://a"), Command(("a",))):
        assert judge(condition, unseen).ok is None
    assert judge(HttpStatus("http://a", 204), 204).ok
    assert judge(HttpStatus("http://a"), 500).ok is False
    assert judge(JsonPathEquals("a", "/b", 1), True).ok is False
    assert judge(JsonPathEquals("a", "/b", {"c": [1, 2]}), {"c": [1, 2]}).ok
    assert judge(JsonPathEquals("a", "/b"), Nowhere()).ok is False
    assert judge(FileHash("a", "ABC"), "abc").ok
    assert at({"a": [{"b/c": 1}]}, "/a/0/b~1c") == 1
    assert at({"a": 1}, "") == {"a": 1}
    for pointer in ("a", "/b", "/a/0", "/a/-"):
        assert at({"a": 1}, pointer) == Nowhere()
    with pytest.raises(InvalidInput, match="postconditions"):
        Tool("x", postconditions=["exit_code"])  # type: ignore[arg-type]


async def test_a_file_name_that_no_store_can_keep_fails_the_step(tmp_path: Path) -> None:
    """§1.10, §11.4: the run ends with a typed error that names the field; it is not left torn with an error of the codec."""
    tool = Tool("touch", command=("sh", "-c"), side_effects="write", artifacts=["odd*"])

    @flow("odd")
    async def odd(ctx: Context) -> str:
        return str(await ctx.tool("touch", ["touch \"$(printf 'odd\\377')\""]))

    async with Runtime("memory:", skills=[odd], tools=[tool], workspace=tmp_path) as rt:
        run = await rt.invoke(odd, {})
        assert (run.status, run.error and run.error.code) == ("failed", "unserializable")
        assert run.error is not None and ".name" in run.error.message


@pytest.mark.parametrize("wanted", [FileHash("pipe", "0" * 64), JsonPathEquals("pipe", "/a", 1)], ids=["hash", "json"])
async def test_what_is_no_file_is_no_evidence_and_holds_up_nobody(wanted: Any, tmp_path: Path) -> None:
    """§11.4: a named pipe that nobody writes to would be read for ever, and the process would never end; it is as a file that is not there."""
    os.mkfifo(tmp_path / "pipe")
    reports = await evidence.reports((wanted,), str(tmp_path), lambda path: path, 0, lambda argv: None)
    assert [(r.ok, "pipe" in r.detail) for r in reports] == [(None, True)]


async def test_a_link_that_leads_to_itself_leads_nowhere(tmp_path: Path) -> None:
    """§11.2: it is refused as any path that does not lead to a place in the workspace."""
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(PathOutsideWorkspace):
        confine(str(tmp_path), "loop/x")


@pytest.mark.parametrize("cwd", ["", "sub"])
@pytest.mark.parametrize("pattern", ["**/*", "*", ".*/*", "**/workspace", "sub/**/*", "link"])
async def test_what_is_holdfasts_own_is_no_artifact(pattern: str, cwd: str, tmp_path: Path) -> None:
    """§11.4: a pattern means what the tool left, not the folder's id nor a store that lies in it, in this workspace or in one within it."""
    folder = space(tmp_path)
    within = folder / cwd
    for other in (folder, folder / "sub", folder / "sub" / "sub"):
        (other / ".holdfast").mkdir(parents=True, exist_ok=True)
        (other / ".holdfast" / "runs.db").write_text("a store")
    (within / "link").symlink_to(folder / ".holdfast" / "runs.db")
    (within / ".config").mkdir()
    for mine in ("mine.txt", ".config/mine.txt", "sub/mine.txt", "workspace"):
        (within / mine).write_text("mine")
    tool = python(artifacts=[pattern])

    @flow("keeps")
    async def keeps(ctx: Context) -> list[str]:
        return [a.name for a in (await ctx.tool(tool, ["-c", ""], cwd=cwd or None)).artifacts]

    async with Runtime("memory:", skills=[keeps], tools=[tool], workspace=folder) as rt:
        run = await rt.invoke(keeps, {})
    everything = {".config/mine.txt", "mine.txt", "sub/mine.txt", "workspace"}
    wanted = {
        "**/*": everything, "*": {"mine.txt", "workspace"}, ".*/*": {".config/mine.txt"}, "**/workspace": {"workspace"}, "sub/**/*": {"sub/mine.txt"}, "link": set(),
    }
    assert run.error is None and set(run.result) == wanted[pattern]

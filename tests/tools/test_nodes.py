"""Tool nodes (§11.1): a node that yields what it asks of its tool; ``Send`` fans the calls out."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, Send, State, Tool, append
from holdfast.core.errors import InvalidGraph, InvalidInput, ToolFailed
from holdfast.ports import ToolOutcome
from holdfast.tools import FileExists, HttpStatus

PYTHON = Tool("python", command=(sys.executable,), side_effects="write")
Asking = Generator[Any, ToolOutcome, Any]


class Work(State):
    names: list[str] = []  # noqa: RUF012
    said: Annotated[list[str], append]


async def test_it_asks_and_returns_its_writes(tmp_path: Path) -> None:
    graph: Graph[Work] = Graph("asks", Work, version="1")

    @graph.node(start=True, tool="python")
    def look(state: Work) -> Asking:
        first = yield ["-c", "print('one')"]
        second = yield {"args": ["-c", "import sys; print(sys.stdin.read())"], "input": {"a": first.stdout.strip()}, "name": "second"}
        return {"said": [first.stdout.strip(), second.stdout.strip()]}

    async with Runtime(f"sqlite:///{tmp_path}/a.db", skills=[graph], tools=[PYTHON]) as rt:
        run = await rt.invoke(graph, {})
        assert (run.status, run.state.said) == ("completed", ["one", '{"a":"one"}']), run.error
        assert [e.capability for e in await rt.effects(run.run_id)] == ["tool:python", "second"]
        again = await rt.replay(run.run_id)
        assert (again.status, again.state.said) == ("completed", run.state.said)
        assert {e.status for e in await rt.effects(again.run_id)} == {"reused"}


async def test_send_fans_calls_out(tmp_path: Path) -> None:
    """Each call is a step of its own, with its own attempt; what failed is tried again alone."""
    graph: Graph[Work] = Graph("fans", Work, version="1")

    @graph.node(start=True)
    async def plan(state: Work) -> list[Send]:
        return [Send("touch", name) for name in state.names]

    script = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); p.write_text((p.read_text() if p.exists() else '') + 'x'); print(p.name)"

    @graph.node(tool=Tool("python", command=(sys.executable,), side_effects="write", postconditions=[FileExists("go")]))
    def touch(state: Work, ctx: Context) -> Asking:
        outcome = yield ["-c", script, ctx.payload]
        return {"said": [outcome.stdout.strip()]}

    space = tmp_path / "space"
    space.mkdir()
    (space / "go").touch()
    async with Runtime(f"sqlite:///{tmp_path}/a.db", skills=[graph], workspace=space) as rt:
        run = await rt.invoke(graph, {"names": ["a", "b", "c"]})
        assert (run.status, run.state.said) == ("completed", ["a", "b", "c"]), run.error
        assert [(space / n).read_text() for n in "abc"] == ["x", "x", "x"]
        steps = [s for s in await rt.steps(run.run_id) if s.name.startswith("touch") and not s.path]
        assert len({s.step_id for s in steps}) == 3 and {s.outcome for s in steps} == {"ok"}


async def test_a_failure_is_given_to_the_node() -> None:
    graph: Graph[Work] = Graph("fails", Work, version="1")

    @graph.node(start=True, tool=PYTHON)
    def look(state: Work) -> Asking:
        try:
            yield ["-c", "raise SystemExit(3)"]
        except ToolFailed:
            outcome = yield {"args": ["-c", "raise SystemExit(3)"], "check": False}
            return {"said": [str(outcome.exit_code)]}
        return None

    @graph.node(after="look", tool=PYTHON)
    def fall(state: Work) -> Asking:
        yield ["-c", "raise SystemExit(4)"]

    async with Runtime("memory:", skills=[graph]) as rt:
        run = await rt.invoke(graph, {})
        assert (run.status, run.state.said) == ("failed", ["3"])
        assert run.error is not None and run.error.code == "tool_failed"


async def test_what_it_rests_for_is_asked_once(tmp_path: Path) -> None:
    """§11.4: missing evidence opens a takeover wait in the midst of the node; approved, nothing is done twice."""
    graph: Graph[Work] = Graph("rests", Work, version="1")

    @graph.node(start=True, tool=Tool("python", command=(sys.executable,), side_effects="write", postconditions=[HttpStatus("http://127.0.0.1:1/")]))
    def write(state: Work) -> Asking:
        outcome = yield ["-c", "open('count', 'a').write('x'); print('done')"]
        return {"said": [outcome.stdout.strip()]}

    async with Runtime(f"sqlite:///{tmp_path}/a.db", skills=[graph], workspace=tmp_path) as rt:
        run = await rt.invoke(graph, {})
        assert [w.kind for w in run.waits] == ["takeover"]
        run = await rt.approve(run.run_id, actor="ada")
        assert (run.status, run.state.said, (tmp_path / "count").read_text()) == ("completed", ["done"], "x")


def test_what_is_no_tool_node() -> None:
    graph: Graph[Work] = Graph("wrong", Work, version="1")
    with pytest.raises(InvalidGraph, match="must yield the arguments of its tool"):

        @graph.node(tool="git")
        async def plain(state: Work) -> None:
            return None

    for wrong in (3, b"git", object()):
        with pytest.raises(InvalidInput, match="tool"):

            @graph.node(f"n{wrong!r:.1}", tool=wrong)  # type: ignore[call-overload]
            def asks(state: Work) -> Asking:
                yield []

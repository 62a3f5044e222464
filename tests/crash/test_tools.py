"""A tool is killed at each of its writes (§11.4, T-96): its outcome, its artifacts and its reports are there together, or a person is asked."""

from __future__ import annotations

import hashlib
import itertools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.crash.worlds import stage
from tests.postgres.blocking import blocking, finish
from tests.virtual import keep_in_virtual_time

from holdfast import Context, Graph, State, Tool
from holdfast.core.evidence import Artifact, ExitCode, FileExists, HttpStatus, Report
from holdfast.ports import Store, ToolOutcome, ToolRequest
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import Fault, VirtualClock
from holdfast.testing.world import Host, approve_all, crash_everywhere

Maker = Callable[[VirtualClock], Store]
CONTENT = b"made\n"
MADE = Artifact("out.txt", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
SEEN = (Report("exit_code", True), Report("file_exists", True))
UNSEEN = (Report("exit_code", True), Report("http_status", None, "nobody answered"))


@pytest.fixture
def maker(request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Maker]:
    keep_in_virtual_time(monkeypatch)
    names = itertools.count()
    makers: dict[str, Maker] = {
        "memory": lambda clock: MemoryStore(now=clock.now),
        "sqlite": lambda clock: SqliteStore(tmp_path / f"{next(names)}.db", now=clock.now),
        "postgres": lambda clock: blocking(clock.now),
    }
    yield makers[request.param]
    finish()


class Runner:
    """A runner whose tool acts outside, and leaves a file and what was seen."""

    def __init__(self, reports: tuple[Report, ...]) -> None:
        self.reports = reports

    async def run(self, request: ToolRequest) -> ToolOutcome:
        await stage.world.clock.sleep(0.01)
        stage.world.outside.act(request.step_id, request.env.get("HOLDFAST_IDEMPOTENCY_KEY"), OUTCOME)
        await stage.world.clock.sleep(0.01)
        return ToolOutcome("done", "", 0, False, self.reports, (MADE,))

    async def content(self, request: ToolRequest, artifact: Artifact) -> bytes:
        return CONTENT


OUTCOME = ToolOutcome("done", "", 0, False, SEEN, (MADE,))


class Work(State):
    said: str = ""
    names: list[str] = []  # noqa: RUF012


def building(conditions: tuple[Any, ...]) -> tuple[Graph[Work], Tool]:
    tool = Tool("build", side_effects="write", postconditions=conditions, artifacts=("*.txt",))
    graph: Graph[Work] = Graph("building", Work, version="1")

    @graph.node(start=True)
    async def build(state: Work, ctx: Context) -> dict[str, Any]:
        outcome = await ctx.tool("build", ["all"])
        return {"said": outcome.stdout, "names": [a.name for a in outcome.artifacts]}

    @graph.node(after="build")
    async def ask(state: Work, ctx: Context) -> None:
        await ctx.approve("Is all of it there?")

    return graph, tool


@pytest.mark.parametrize(("reports", "maker"), [(SEEN, "memory"), (UNSEEN, "memory"), (SEEN, "sqlite"), (UNSEEN, "sqlite"), (SEEN, "postgres")], indirect=["maker"])
def test_all_of_it_is_there_or_a_person_is_asked(reports: tuple[Report, ...], maker: Maker, request: pytest.FixtureRequest) -> None:
    """Before every write, and in memory also after it, which leaves the store as before the next. The tool acts once, unless the person who is asked has looked and says that it did not act."""
    graph, tool = building((ExitCode(0), FileExists("out.txt") if reports is SEEN else HttpStatus("http://nobody/")))
    faults = tuple(Fault)[:2] if "memory" in request.node.name else (Fault.BEFORE,)
    asked: list[str] = []
    checked: list[bool] = []

    async def look(host: Host, run: Any) -> None:
        asked.extend(w.kind for w in run.waits)
        if any(w.kind == "approval" for w in run.waits):
            events = await host.rt.events(run.run_id)
            told = [e["event_type"] for e in events if e["event_type"] in ("postcondition.evaluated", "artifact.created")]
            said = [e["seq"] for e in events if e["event_type"] == "wait.decided" and e["payload"]["decision"]["action"] == "record_result"]
            ends = [e["seq"] for e in events if e["event_type"] == "side_effect.recorded"]
            assert ends, "it goes on from a call that has ended"
            if not said:  # nobody had to look outside: then all of it is there, and was before the call was complete
                assert sorted(told) == ["artifact.created", "postcondition.evaluated", "postcondition.evaluated"], told
                assert max(e["seq"] for e in events if e["event_type"] in told) < ends[-1]
                assert await host.rt.store.blob(MADE.sha256) == CONTENT
            assert run.state.names == ["out.txt"]
            checked.append(not said)
        await approve_all(host, run)

    runtime = {"tools": [tool], "tool_runner": Runner(reports)}
    whole, ends = crash_everywhere(graph, {}, script=look, faults=faults, store=maker, fresh=stage.enter, runtime=runtime)
    assert whole.status == "completed" and (asked[0] == "takeover") == (reports is UNSEEN)
    for end in ends:
        assert end.run.status == "completed", (end.number, end.verb, end.fault)
        assert sum(end.world.outside.acts.values()) == 1, (end.number, end.verb, end.fault)
    assert {True, False} == set(checked) and "effect" in asked, "some deaths are seen from the record alone, and some are not"

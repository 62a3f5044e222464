"""What one step costs, counted and not timed (targets: "Exact counts come first")."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, Send, State, append, thread
from holdfast.engine.base import services
from holdfast.ports import ANYTHING, News
from holdfast.stores.changes import Changes
from holdfast.stores.sqlite import writer
from holdfast.stores.sqlite.connection import Q
from tests.statements import Commits, counting_commits, counting_statements

STEPS = 50
RUNS = 20
COUNTED = pytest.mark.one_store("it counts SQLite's statements; those of PostgreSQL are counted in tests/stores/test_postgres_counts.py")
CALLED = pytest.mark.one_store("its bound is that of SQLite's path, whose driver is not Python; a connection to a server is")


class Line(State):
    n: int = 0
    text: str = ""


def line(steps: int = STEPS) -> Graph[Line]:
    graph = Graph("line", Line, version="1")

    async def node(state: Line) -> dict[str, Any]:
        return {"n": state.n + 1, "text": "x" * 200}

    for i in range(steps):
        graph.node(f"s{i}", start=i == 0, after=None if i == 0 else f"s{i - 1}")(node)
    return graph


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits count as quick however busy the machine is, so that the counts are those of the quick path."""
    monkeypatch.setattr(writer, "SLOW", float("inf"))
    monkeypatch.setattr(services, "BOUNDS_SECONDS", float("inf"))  # limits are read again by the clock, not by steps


@pytest.fixture
def statements() -> Iterator[Counter[str]]:
    """Every statement that any connection runs, but for the look for news in inboxes, which goes by the clock, not by steps."""
    with counting_statements(lambda sql: sql != Q.marked) as found:
        yield found


@pytest.fixture
def commits() -> Iterator[Commits]:
    with counting_commits() as found:
        yield found


async def counts(rt: Runtime, steps: int, counted: Counter[str]) -> Counter[str]:
    graph = line(steps)
    before = Counter(counted)
    run = await rt.invoke(graph, {})
    assert run.state.n == steps
    return Counter({k: counted[k] - before[k] for k in counted})


@COUNTED
async def test_a_lone_step_is_one_commit_and_one_statement(tmp_path: Any, statements: Counter[str], commits: Commits) -> None:
    """A statement a step, which is a transaction of its own: its trigger writes the log row and the run's (architecture: "the same path is short")."""
    async with Runtime(f"sqlite:///{tmp_path}/a.db") as rt:
        await rt.invoke(line(2), {})
        before = commits.count
        few = await counts(rt, STEPS, statements)
        between = commits.count
        many = await counts(rt, 2 * STEPS, statements)
        assert (commits.count - between) - (between - before) == STEPS
    del many["PRAGMA"], few["PRAGMA"]  # the look for other processes' writes goes by the clock, not by steps
    looks = many.pop("SELECT", 0) - few.pop("SELECT", 0)
    assert looks < STEPS // 5, "a slow run is also looked at by the clock; none of these looks is a step's"
    assert many - few == Counter({"INSERT": STEPS})


async def test_a_step_is_two_events(tmp_path: Any) -> None:
    """§13.2: step.started and its end; nothing else is said of a step that went well."""
    async with Runtime(f"sqlite:///{tmp_path}/a.db") as rt:
        run = await rt.invoke(line(), {})
        kinds = Counter(e.type for e in await rt.events(run.run_id))
    assert kinds["step.started"] == kinds["step.completed"] == STEPS
    assert sum(kinds.values()) <= 2 * STEPS + 6


@COUNTED
async def test_runs_begun_together_share_their_commits(tmp_path: Any, statements: Counter[str]) -> None:
    """§1.11: the first run must not keep the loop to itself until its end, though its commits never wait."""
    runs = 20
    async with Runtime(f"sqlite:///{tmp_path}/a.db") as rt:
        await rt.invoke(line(1), {})
        before = statements["COMMIT"]
        graph = line()
        done = await asyncio.gather(*[rt.invoke(graph, {}) for _ in range(runs)])
        assert [r.state.n for r in done] == [STEPS] * runs
        assert statements["COMMIT"] - before < runs * STEPS / 4


async def test_what_invoke_returns_is_what_is_loaded(tmp_path: Any) -> None:
    """§4.2, §4.5: the run handed back at its end was never read, and equals what is read later."""
    async with Runtime(f"sqlite:///{tmp_path}/a.db") as rt:
        live = await rt.invoke(line(), {"n": 3})
        loaded = await rt.get(live.run_id)
    assert live.record == loaded.record
    assert live.values == loaded.values and live.state == loaded.state
    assert live.lease == loaded.lease and live.condition == loaded.condition


@CALLED
async def test_a_step_is_few_calls(tmp_path: Any) -> None:
    """Targets, "Exact counts come first": what a hundred runs at once pay for is Python. A step of one of many is some 65 calls of
    Python functions, comprehensions and continued coroutines included; this bound has room for another release of Python."""
    counted = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal counted
        counted += event == "call"

    async def calls(rt: Runtime, steps: int) -> int:
        nonlocal counted
        graph, counted = line(steps), 0
        sys.setprofile(count)
        try:
            await asyncio.gather(*[rt.invoke(graph, {}) for _ in range(RUNS)])
        finally:
            sys.setprofile(None)
        return counted

    async with Runtime(f"sqlite:///{tmp_path}/a.db") as rt:
        await rt.invoke(line(1), {})
        few, many = await calls(rt, STEPS), await calls(rt, 3 * STEPS)
    assert (many - few) / (2 * STEPS * RUNS) < 69


class Fan(State):
    out: Annotated[list[int], append]


def fan_out(tasks: int) -> Graph[Fan]:
    graph = Graph("fan", Fan, version="1")

    @graph.node(start=True)
    async def plan(state: Fan) -> Any:
        return [Send("task", i) for i in range(tasks)]

    @graph.node
    async def task(state: Fan, ctx: Context) -> Any:
        return {"out": [ctx.payload]}

    return graph


@CALLED
async def test_a_task_of_a_fan_out_is_few_calls_and_one_encoding(tmp_path: Any) -> None:
    """Issue «Speed»: what a task that never waits costs of Python: some 14 calls, and the encoding of what it wrote; what all were
    sent is encoded together."""
    calls = encodings = 0

    def count(_: Any, event: str, function: Any) -> None:
        nonlocal calls, encodings
        calls += event == "call"
        encodings += event == "c_call" and function.__name__ == "encode" and type(function.__self__).__name__ == "Encoder"

    async def counted(rt: Runtime, tasks: int) -> tuple[int, int]:
        nonlocal calls, encodings
        graph = fan_out(tasks)
        await rt.invoke(graph, {})
        calls = encodings = 0
        sys.setprofile(count)
        try:
            await rt.invoke(graph, {})
        finally:
            sys.setprofile(None)
        return calls, encodings

    async with Runtime(f"sqlite:///{tmp_path}/a.db") as rt:
        few, many = await counted(rt, STEPS), await counted(rt, 3 * STEPS)
    assert (many[0] - few[0]) / (2 * STEPS) < 16 and many[1] - few[1] == 2 * STEPS


async def test_a_step_is_one_encoding_of_what_is_new(tmp_path: Any) -> None:
    """The writes: the checkpoint's delta around them, and the log row around that, are put together from what is the same of each step."""
    counted = 0

    def count(_: Any, event: str, function: Any) -> None:
        nonlocal counted
        counted += event == "c_call" and function.__name__ == "encode" and type(function.__self__).__name__ == "Encoder"

    async def encodings(rt: Runtime, steps: int) -> int:
        nonlocal counted
        graph, counted = line(steps), 0
        sys.setprofile(count)
        try:
            await rt.invoke(graph, {})
        finally:
            sys.setprofile(None)
        return counted

    async with Runtime(f"sqlite:///{tmp_path}/a.db") as rt:
        await rt.invoke(line(2 * STEPS), {})  # what is worked out once about each way from node to node
        few, many = await encodings(rt, STEPS), await encodings(rt, 2 * STEPS)
    assert many - few == STEPS


class Chat(State):
    said: Annotated[list[str], append, thread]
    n: int = 0


def conversation() -> Graph[Chat]:
    graph = Graph("conversation", Chat, version="1")

    async def node(state: Chat) -> dict[str, Any]:
        return {"n": state.n + 1}

    async def says(state: Chat) -> dict[str, Any]:
        return {"said": ["answer " * 20]}

    graph.node("reads", start=True)(node)
    graph.node("thinks", after="reads")(node)
    graph.node("says", after="thinks")(says)
    return graph


@COUNTED
async def test_a_turn_of_a_conversation_is_few_statements(tmp_path: Any, statements: Counter[str], commits: Commits) -> None:
    """Issue «Speed», 3: born, claimed and begun in one commit; a commit and a statement a node; nothing is read back, at turn 3 as at turn 60."""

    async def turn(rt: Runtime) -> Counter[str]:
        before, first = Counter(statements), commits.count
        run = await rt.invoke(graph, {"said": ["question " * 20]}, thread_id="t")
        assert run.terminal
        found = Counter(statements) - before
        found["commits"] = commits.count - first
        found.pop("PRAGMA", 0)  # the look for other processes' writes goes by the clock
        return found

    graph = conversation()
    async with Runtime(f"sqlite:///{tmp_path}/a.db") as rt:
        turns = [await turn(rt) for _ in range(60)]
    wholes = {"INSERT": 1}  # now and then a whole checkpoint goes with a commit
    for found in (turns[3], turns[30], turns[59]):
        assert found.pop("commits") == 4
        assert found["COMMIT"] == 1 and found["ROLLBACK"] == 0, "that of the birth; each node is one statement, and a transaction of its own"
        assert (found - Counter(wholes)).total() <= 9
        assert found["SELECT"] == 1, "all that a birth needs to know"
    assert (turns[59] - turns[3]).total() <= 1


@COUNTED
async def test_others_are_told_once_of_what_is_committed_together(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue «Speed», 2: a hundred births or ends in one transaction are one piece of news for other processes, and one look for who waits here."""
    told: list[int] = []
    tell = Changes.tell
    monkeypatch.setattr(Changes, "tell", lambda self, news=int(ANYTHING): (told.append(news), tell(self, news))[1])
    async with Runtime(f"sqlite:///{tmp_path}/a.db") as rt:
        graph = line(1)
        await rt.invoke(graph, {})
        told.clear()
        done = await asyncio.gather(*[rt.invoke(graph, {}) for _ in range(RUNS)])
    assert {r.status for r in done} == {"completed"}
    assert len(told) < RUNS / 2
    assert any(news & News.FREED for news in told), "whoever waits for their lanes and limits hears of it"


@COUNTED
async def test_births_and_ends_of_a_crowd_share_their_looks(tmp_path: Any, statements: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue «Speed», 2: who takes and of which store is looked up once a group; a birth asks for its lane, an end for its inbox, at once. An end notes apart
    from the run's row where its log ends."""
    monkeypatch.setattr(writer, "TURN", 0.0)  # else the first of them may be born alone, a moment after the run before
    runs = 40
    async with Runtime(f"sqlite:///{tmp_path}/a.db") as rt:
        graph = line(1)
        await rt.invoke(graph, {})
        before = Counter(statements)
        await asyncio.gather(*[rt.invoke(graph, {}) for _ in range(runs)])
        found = Counter(statements) - before
    assert (found["INSERT"], found["UPDATE"]) == (4 * runs, runs)
    assert found["SELECT"] < 1.5 * runs


@CALLED
async def test_a_turn_of_a_conversation_is_few_calls(tmp_path: Any) -> None:
    """Issue «Speed», 3: what a turn of three nodes costs of Python: some 730 calls."""
    counted = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal counted
        counted += event == "call"

    graph, turns = conversation(), 20
    async with Runtime(f"sqlite:///{tmp_path}/a.db") as rt:
        for _ in range(3):
            await rt.invoke(graph, {"said": ["question"]}, thread_id="t")
        sys.setprofile(count)
        try:
            for _ in range(turns):
                await rt.invoke(graph, {"said": ["question"]}, thread_id="t")
        finally:
            sys.setprofile(None)
    assert counted / turns < 820


@CALLED
async def test_a_birth_and_an_end_are_few_calls(tmp_path: Any) -> None:
    """Issue «Speed», 2: what a run of one step costs, birth and end included: some 500 calls."""
    counted = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal counted
        counted += event == "call"

    async with Runtime(f"sqlite:///{tmp_path}/a.db") as rt:
        graph = line(1)
        await asyncio.gather(*[rt.invoke(graph, {}) for _ in range(RUNS)])
        sys.setprofile(count)
        try:
            await asyncio.gather(*[rt.invoke(graph, {}) for _ in range(RUNS)])
        finally:
            sys.setprofile(None)
    assert counted / RUNS < 555


async def test_a_birth_that_is_there_already_says_so(tmp_path: Any) -> None:
    """§1.11: births of a group share a statement; one that another stands against is tried alone, and told why in words of its own."""
    async with Runtime(f"sqlite:///{tmp_path}/a.db") as rt:
        graph = line(2)
        runs = await asyncio.gather(*[rt.invoke(graph, {}, session_key="one" if n % 2 else None) for n in range(12)])
        assert [r.status for r in runs] == ["completed"] * 12
        assert len({r.run_id for r in runs}) == 12

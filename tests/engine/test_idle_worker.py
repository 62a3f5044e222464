"""What a run through a worker that had nothing to do costs, counted and not timed: statements, commits, and what is compiled or read in vain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Annotated, Any

import apsw
import pytest

from holdfast import Graph, Runtime, State, append, thread
from holdfast.core.limits import Limit, Rule
from holdfast.stores import SqliteStore
from holdfast.stores.sqlite import writer
from holdfast.stores.sqlite.connection import Q
from tests.statements import counting_compilations

pytestmark = pytest.mark.one_store("it counts SQLite's statements, and damages its rows")


class Count(State):
    n: int = 0


def once() -> Graph[Count]:
    graph = Graph("once", Count, version="1")

    @graph.node(start=True)
    async def step(state: Count) -> dict[str, Any]:
        return {"n": state.n + 1}

    return graph


class Chat(State):
    said: Annotated[list[str], append, thread]


def chat() -> Graph[Chat]:
    graph = Graph("chat", Chat, version="1")

    @graph.node(start=True)
    async def say(state: Chat) -> dict[str, Any]:
        return {"said": [f"answer {len(state.said)}"]}

    return graph


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits count as quick however busy the machine is, so that the counts are those of the quick path."""
    monkeypatch.setattr(writer, "SLOW", float("inf"))


@pytest.fixture
def told() -> Iterator[list[str]]:
    """Every statement that any connection runs, in order."""
    found: list[str] = []

    def trace(_: Any, sql: str, __: Any) -> bool:
        found.append(sql)
        return True

    def hook(db: apsw.Connection) -> None:
        db.exec_trace = trace

    apsw.connection_hooks.append(hook)
    yield found
    apsw.connection_hooks.remove(hook)


async def test_no_statement_is_compiled_again(tmp_path: Any) -> None:
    """A statement that has run before runs as it was compiled, whatever values it is given."""
    graph = once()
    with counting_compilations() as compiled:
        async with Runtime(f"sqlite:///{tmp_path}/a.db", skills=[graph]) as rt:
            for _ in range(4):
                before = dict(compiled)
                run = await rt.submit(graph, {})
                await rt.worker(until_idle=True)
                assert (await rt.result(run.run_id)).n == 1
                found = {table: n - before.get(table, 0) for table, n in compiled.items() if n != before.get(table, 0)}
    assert compiled["run"] and compiled["log"], "what is compiled is counted"
    assert not found


async def test_what_submit_returns_is_not_read_back(tmp_path: Any, told: list[str]) -> None:
    """The run is handed back as its first commit left it, and equals what is read later (§1.7)."""
    clock, graph = 1_800_000_000_000_000, once()
    async with Runtime(SqliteStore(tmp_path / "a.db", now=lambda: clock), skills=[graph]) as rt:
        for given in ({}, {"thread_id": "t"}, {"thread_id": "t", "priority": 3}, {"delay": 5}, {"thread_id": "t", "on_busy": "ack"}):
            told.clear()
            run = await rt.submit(graph, {"n": 3}, **given)  # type: ignore[arg-type]
            assert told.count(Q.commit) == 1
            assert not {Q.run_load, Q.run_get, Q.log_back}.intersection(told)
            loaded = await rt.get(run.run_id)
            assert (run.record, run.lease, run.values, run.state) == (loaded.record, loaded.lease, loaded.values, loaded.state)
            assert (run.blocked, run.condition) == (loaded.blocked, loaded.condition)


async def through_a_worker(rt: Runtime, graph: Graph[Any], told: list[str], **options: Any) -> list[str]:
    """The statements from a worker's look until what it has found is done and nothing more is due."""
    run = await rt.submit(graph, {"n": 3} if graph.id == "once" else {"said": ["question"]}, **options)
    told.clear()
    await rt.worker(until_idle=True)
    found = list(told)
    assert (await rt.get(run.run_id)).status == "completed"
    return found


async def test_a_lone_run_is_taken_and_begun_in_one_commit(tmp_path: Any, told: list[str]) -> None:
    """The claim of a run that was never begun, and is all that is due, is its first commit: two commits are left of three, and one load."""
    graph = once()
    async with Runtime(f"sqlite:///{tmp_path}/a.db", skills=[graph]) as rt:
        await through_a_worker(rt, graph, told)
        found = await through_a_worker(rt, graph, told)
        assert found.count(Q.commit) == 1 + found.count(Q.offer_put), "begun, and offered by a worker that is new"
        assert found.count(Q.lone_end) == 1, "ended"
        assert found.count(Q.run_load) == 1 and not {Q.take_due, Q.take_due_holder, Q.take}.intersection(found)
        events = [e.type for e in await rt.events((await rt.runs(limit=1))[0].run_id)]
    assert events == ["run.submitted", "run.queued", "run.claimed", "run.started", "step.started", "checkpoint.saved", "step.completed", "run.completed"]
    begins = found.index(Q.run_load)
    first = found[begins + 1 : found.index(Q.commit, begins)]
    assert len(first) <= 12, first


async def test_a_worker_that_is_woken_begins_before_it_looks_after_anything_else(tmp_path: Any, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is submitted elsewhere wakes the worker, its sender of intents and whoever looks after inboxes. From its look for due runs to the first commit
    of the run it does nothing else, however long others have not had their turn."""
    graph = once()
    url = f"sqlite:///{tmp_path}/a.db"
    monkeypatch.setattr(writer, "TURN", 0.0)
    async with Runtime(url, skills=[graph]) as worker, Runtime(url, skills=[graph]) as rt:
        stop = asyncio.Event()
        working = asyncio.ensure_future(worker.worker(stop=stop))
        try:
            for _ in range(3):
                told.clear()
                run = await rt.submit(graph, {})
                assert (await rt.result(run.run_id)).n == 1
        finally:
            stop.set()
            await working
    done = [sql for sql in told if not sql.startswith("PRAGMA")]  # nor is the look whether another process has written anything
    begins = done.index(Q.run_load)
    assert done[begins - 1 : done.index(Q.commit, begins) + 1] == [
        Q.begin_read, Q.run_load, Q.rollback, Q.begin, Q.last_log, Q.run_state, Q.worker, Q.lane_blocker, Q.rule_any, Q.steps_log, Q.run_update, Q.tail_put, Q.commit,
    ]


async def test_a_turn_of_a_conversation_is_taken_and_begun_in_one_commit(tmp_path: Any, told: list[str]) -> None:
    """What the thread has for it is read before its lane is held, so its first commit is held against the thread's end (§4.15)."""
    graph = chat()
    async with Runtime(f"sqlite:///{tmp_path}/a.db", skills=[graph]) as rt:
        for _ in range(3):
            found = await through_a_worker(rt, graph, told, thread_id="t")
        assert not {Q.take_due, Q.take_due_holder, Q.take}.intersection(found)
        (last, *_) = await rt.runs(limit=1)
    assert last.values["said"] == ["question", "answer 1", "question", "answer 3", "question", "answer 5"]


async def test_several_runs_are_claimed_at_once(tmp_path: Any, told: list[str]) -> None:
    """Runs that are due together share the commit of their claims, and that of their beginnings."""
    graph = once()
    async with Runtime(f"sqlite:///{tmp_path}/a.db", skills=[graph]) as rt:
        await through_a_worker(rt, graph, told)
        runs = [await rt.submit(graph, {}) for _ in range(8)]
        told.clear()
        await rt.worker(until_idle=True)
        assert told.count(Q.take_due) == 8
        assert [(await rt.get(r.run_id)).status for r in runs] == ["completed"] * 8


@pytest.mark.parametrize("stored", [False, True])
async def test_a_run_that_a_limit_may_concern_is_claimed(tmp_path: Any, told: list[str], stored: bool) -> None:
    """§10.11: what a claim holds against limits it holds in its own transaction, as ever."""
    graph = once()
    async with Runtime(f"sqlite:///{tmp_path}/a.db", skills=[graph], limits={} if stored else {"queue:default": Limit(in_flight=2)}) as rt:
        if stored:
            assert await rt.store.put_rule(Rule("queue:default", Limit(in_flight=2)), None)
        assert Q.take_due in await through_a_worker(rt, graph, told)


@pytest.mark.parametrize("damage", ["UPDATE run SET doc = x'00'", "UPDATE run SET status = 'odd'", "UPDATE log SET data = x'00'", "INSERT INTO inbox (run, key, put_at, command) SELECT id, 'k', 0, x'00' FROM run"])
async def test_a_damaged_run_is_claimed_and_said_to_be_damaged(tmp_path: Any, damage: str) -> None:
    """§1.12: what is wrong with the one run that is due ends no worker, is told once, and is set aside with the run where that can be written."""
    graph, told = once(), list[Any]()
    async with Runtime(f"sqlite:///{tmp_path}/a.db", skills=[graph]) as rt:
        run = await rt.submit(graph, {})
        db = apsw.Connection(f"{tmp_path}/a.db")
        db.execute(damage)
        db.close()
        stop = asyncio.Event()

        def tell(report: Any) -> None:
            told.append(report)
            stop.set()

        await rt.worker(stop=stop, on_report=tell)
        assert [r.run_id for r in told] == [run.run_id] and told[0].error is not None, told
        other = await rt.submit(graph, {})
        await rt.worker(until_idle=True)
        assert (await rt.result(other.run_id)).n == 1


async def test_a_few_of_many_runs_begin_before_the_others_are_loaded(tmp_path: Any, told: list[str]) -> None:
    """After a crash, or with a long queue, the first step waits for a few loads and not for all; the commits are still shared."""
    many, before = 60, []
    graph = Graph("counted", Count, version="1")

    @graph.node(start=True)
    async def step(state: Count) -> dict[str, Any]:
        before.append(told.count(Q.run_load))
        return {"n": state.n + 1}

    async with Runtime(f"sqlite:///{tmp_path}/a.db", skills=[graph]) as rt:
        for _ in range(many):
            await rt.submit(graph, {})
        told.clear()
        await rt.worker(until_idle=True, concurrency=many)
        commits = told.count(Q.commit)
    assert len(before) == many
    assert before[0] <= 4, "it was as many as there are runs"
    assert commits <= 9, "claims, beginnings and ends of two groups"

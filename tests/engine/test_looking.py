"""Reading verbs (point 20 and 21): lists with values, one instant, one history, steps, attempts, the ledger, lanes, tenants."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, State, Tool, append, flow, thread
from holdfast.core.errors import CheckpointNotFound, InvalidInput, RunFailed, RunNotFound, RunWaiting, StoreCorrupt
from holdfast.engine.look.looker import Looker, Wanted
from holdfast.engine.look.snapshot import snapshot
from holdfast.engine.look.threads import Threads
from holdfast.handle import Run
from holdfast.named import CheckpointSaver, KernelExecutor
from holdfast.testing.kernels import SNAPSHOT


class Notes(State):
    name: str = ""
    said: Annotated[list[str], append]


def graph(id: str = "notes") -> Graph[Notes]:
    g = Graph(id, Notes)

    @g.node(start=True)
    async def first(state: Notes, ctx: Context) -> dict[str, Any]:
        await ctx.step(shout, state.name)
        ctx.record("greetings", state.name, {"to": state.name})
        return {"said": [f"hello {state.name}"]}

    @g.node(after="first")
    async def last(state: Notes, ctx: Context) -> dict[str, Any]:
        if state.name == "ask":
            await ctx.approve("Go on?")
        if state.name == "fail":
            raise ValueError("it broke")
        return {"said": ["bye"]}

    return g


async def shout(name: str) -> str:
    return name.upper()


async def test_a_list_gives_values_and_results() -> None:
    async with Runtime("memory:", skills=[g := graph()]) as rt:
        await rt.invoke(g, {"name": "Ada"}, tags=["blue"])
        await rt.invoke(g, {"name": "ask"}, thread_id="t1")
        asks, done = await rt.runs()
        assert (asks.values["name"], list(asks.values["said"]), asks.result) == ("ask", ["hello ask"], None)
        assert list(done.state.said) == ["hello Ada", "bye"] == list(done.result.said)


async def test_a_list_is_narrowed_by_every_filter() -> None:
    async with Runtime("memory:", skills=[g := graph(), other := graph("other")]) as rt:
        a = await rt.invoke(g, {"name": "Ada"}, tags=["blue", "urgent"])
        b = await rt.invoke(g, {"name": "ask"}, thread_id="t1")
        c = await rt.invoke(other, {"name": "fail"})

        async def ids(**wanted: Any) -> list[str]:
            return [r.run_id for r in await rt.runs(**wanted)]

        assert await ids() == [c.run_id, b.run_id, a.run_id]
        assert await ids(tag="blue") == [a.run_id] and await ids(tag="blu") == []
        assert await ids(text="hello ADA") == [a.run_id], "what is in the values is found, whatever the case"
        assert await ids(text="it broke") == [c.run_id] and await ids(text="go on?") == [b.run_id] and await ids(text="nowhere") == []
        assert await ids(status="failed") == [c.run_id] and await ids(condition="awaiting_gate_decision") == [b.run_id]
        assert await ids(skill_id="other") == [c.run_id] and await ids(thread_id="t1") == [b.run_id]
        soon = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
        assert await ids(since=soon) == [] and await ids(until=soon) == [c.run_id, b.run_id, a.run_id]
        assert await ids(since=b.created_at) == [c.run_id, b.run_id] and await ids(until=b.created_at) == [a.run_id]
        assert await ids(limit=1, before=c.run_id) == [b.run_id]
        assert await ids(tenant_id="elsewhere") == [] and await ids(tag="urgent", text="ada", limit=1) == [a.run_id]
        with pytest.raises(InvalidInput, match="since needs a timezone"):
            await rt.runs(since=dt.datetime(2026, 1, 1))  # noqa: DTZ001
        for wrong in (0, 501):
            with pytest.raises(InvalidInput, match="limit"):
                await rt.runs(limit=wrong)


async def test_a_snapshot_is_of_one_instant() -> None:
    """A run that moves while it is read is shown as its log was: record, events, steps and values agree."""
    async with Runtime("memory:", skills=[g := graph()]) as rt:
        run = await rt.invoke(g, {"name": "ask"})

        async def meanwhile(_: str) -> list[Any]:
            await rt.signal(run.run_id, "news", len(moved))
            moved.append(1)
            return []

        moved: list[int] = []
        seen = await snapshot(rt.store, rt.look.threads, run.run_id, check=meanwhile)
        assert len(moved) > 1, "it was read again"
        assert seen.record.version == len(seen.walk.events) == seen.events()[-1].seq
        assert seen.record.values == {"name": "ask", "said": ["hello ask"]}


async def test_another_tenants_run_is_not_found_in_the_same_words() -> None:
    """§14.2."""
    async with Runtime("memory:", skills=[g := graph()]) as rt:
        run = await rt.invoke(g, {"name": "Ada"}, tenant_id="acme")
        assert (await rt.look.snapshot(run.run_id, "acme")).run.run_id == run.run_id
        with pytest.raises(RunNotFound) as foreign:
            await rt.look.snapshot(run.run_id, "other")
        with pytest.raises(RunNotFound) as unknown:
            await rt.look.snapshot("0" * 26, "other")
        assert foreign.value.line() == unknown.value.line().replace("0" * 26, run.run_id)
        assert await rt.look.runs(Wanted(tenant_id="other")) == [] and (await rt.look.waits("other"))[0] == []


async def test_steps_attempts_and_the_ledger() -> None:
    async with Runtime("memory:", skills=[g := graph()]) as rt:
        run = await rt.invoke(g, {"name": "Ada"})
        steps = await rt.steps(run.run_id)
        assert [(s.name, s.path, s.outcome) for s in steps] == [("first", "", "ok"), ("shout", steps[1].path, "ok"), ("last", "", "ok")]
        assert [a.number for a in await rt.attempts(run.run_id)] == [1, 1, 1]
        (row,) = await rt.ledger(run.run_id)
        assert (row.topic, row.key, row.data, row.step_id) == ("greetings", "Ada", {"to": "Ada"}, steps[0].step_id)


async def test_the_ledger_is_read_page_by_page_over_all_runs() -> None:
    async with Runtime("memory:", skills=[g := graph()]) as rt:
        for name in ("a", "b", "c"):
            await rt.invoke(g, {"name": name})
        one = await rt.look.ledger(limit=2)
        two = await rt.look.ledger(limit=2, after=one.next_cursor)
        assert [r.key for r in one.rows + two.rows] == ["a", "b", "c"] and two.next_cursor is None
        assert [r.key for r in (await rt.look.ledger(topic="greetings", key="b")).rows] == ["b"] and (await rt.look.ledger(topic="none")).rows == []


async def test_there_is_one_history() -> None:
    """§4.16: the saver's is the runtime's, and no page of runs cuts it."""
    async with Runtime("memory:", skills=[g := graph()]) as rt:
        for name in ("a", "b"):
            await rt.invoke(g, {"name": name}, thread_id="t")
        whole = await rt.history("t")
        assert whole == await CheckpointSaver(rt).get_history("t") and set(whole[0]) >= SNAPSHOT
        assert await rt.history("t", limit=2) == whole[:2] and await rt.history("t", after=whole[2]["id"], limit=1) == whole[3:4]
        assert await rt.history("t", after=whole[-1]["id"]) == []
        for unknown in ("x.c1", f"{whole[0]['runId']}.c999"):
            with pytest.raises(CheckpointNotFound):
                await rt.history("t", after=unknown)
        with pytest.raises(InvalidInput):
            await rt.history("t", limit=0)


async def test_run_gives_a_result_whatever_drives_it() -> None:
    """§4.16: an executor gives back a status and values, and no more."""
    g = graph()

    class Other:
        def __init__(self, status: str) -> None:
            self.status, self.values = status, {"said": ["other"]}

        async def invoke(self, thread_id: str, input: Any = None) -> Any:
            return self

        async def resume(self, thread_id: str, payload: Any = None) -> Any:
            return self

    async with Runtime("memory:", skills=[g], executor=Other("completed")) as rt:
        assert await rt.run(g, {"name": "x"}) == {"said": ["other"]}
    async with Runtime("memory:", skills=[g], executor=Other("failed")) as rt:
        with pytest.raises(RunFailed):
            await rt.run(g, {"name": "x"})
    async with Runtime("memory:", skills=[g], executor=Other("waiting_for_human")) as rt:
        with pytest.raises(RunWaiting):
            await rt.run(g, {"name": "x"})
    async with Runtime("memory:", skills=[g], executor=KernelExecutor) as rt:
        assert list((await rt.run(g, {"name": "x"})).said) == ["hello x", "bye"]


async def test_what_is_declared_is_produced() -> None:
    """§13.2, point 21: versions, capabilities and bindings."""
    g = Graph("able", Notes)

    @g.node(start=True, capabilities=["write-notes"])
    async def work(state: Notes, ctx: Context) -> dict[str, Any]:
        await ctx.tool("true", [])
        await ctx.step(flaky, retry=2)
        return {}

    tries: list[int] = []

    async def flaky() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("not yet")

    async with Runtime("memory:", skills=[g], tools=[Tool("true", side_effects="read")]) as rt:
        run = await rt.invoke(g)
        told = [(e.type, e.payload) for e in await rt.events(run.run_id)]
        assert [p["capability"] for t, p in told if t == "capability.selected"] == ["write-notes"]
        assert [(p["binding"], p["outcome"]) for t, p in told if t == "binding.attempted"] == [("true", "ok")]
        assert [(p["attempt"], p["owner"] == rt.owner) for t, p in told if t == "attempt.started"] == [(2, True)]
        versions = (await rt.record(run.run_id))["versions"]
        assert all(versions.values()), versions
        assert [(a.number, a.outcome) for a in await rt.attempts(run.run_id) if ".1.work." in a.step_id][-2:] == [(1, "failed"), (2, "ok")]


async def test_lanes_show_who_holds_and_who_waits() -> None:
    async with Runtime("memory:", skills=[g := graph()]) as rt:
        holder = await rt.invoke(g, {"name": "ask"}, thread_id="t")
        behind = await rt.submit(g, {"name": "b"}, thread_id="t")
        (lane,) = await rt.lanes()
        assert (lane.session_key, lane.lane, lane.holder, lane.expires_at, lane.queued) == ("t", "main", holder.run_id, None, [behind.run_id])
        assert [w.owner for w in await rt.workers()] == [rt.owner]


@pytest.mark.parametrize("upgrade", [False, True])
async def test_workers_say_what_they_serve(upgrade: bool, tmp_path: Path) -> None:
    """The same in Python as in the table of the command line: a worker's skills, each in its version, and none of a process that only drives what it begins."""

    @flow("greet", version="7")
    async def greet(ctx: Context) -> str:
        return "hello"

    url = f"sqlite:///{tmp_path}/a.db"
    async with Runtime(url, skills=[graph(), greet]) as rt, Runtime(url) as other:
        await rt.invoke(greet, {})
        assert [(w.owner, w.serves, w.upgrade) for w in await other.workers() if w.owner == rt.owner] == [(rt.owner, [], False)]
        stop, until = asyncio.Event(), asyncio.get_running_loop().time() + 30
        work = asyncio.ensure_future(rt.worker(stop=stop, upgrade=upgrade))
        while not (found := [w for w in await other.workers() if w.serves]):
            assert asyncio.get_running_loop().time() < until
            await asyncio.sleep(0)
        stop.set()
        await work
        [worker] = found
        assert {(s.skill_id, s.version) for s in worker.serves} == {(s.id, s.version) for s in (graph(), greet)}
        assert all(s.fingerprint and s.workspace is None for s in worker.serves) and worker.upgrade is upgrade and worker.owner == rt.owner


@pytest.mark.parametrize("url", ["memory:", "sqlite:///{}/a.db"])
async def test_a_run_that_cannot_be_read_harms_its_own_line_only(url: str, tmp_path: Path) -> None:
    """§3.6."""

    class Kept(State):
        word: Annotated[str, thread] = ""

    g = Graph("kept", Kept)

    @g.node(start=True)
    async def say(state: Kept) -> dict[str, Any]:
        return {"word": state.word or "x" * 400}

    async with Runtime(url.format(tmp_path), skills=[g, fine := graph()]) as rt:
        await rt.invoke(fine, {"name": "Ada"})
        run: Run[Any] = await rt.invoke(g, {"word": ""}, thread_id="t")
        store: Any = Unreadable(rt.store, run.run_id)
        bad, good = await Looker(store, Threads(store)).runs(Wanted())
        assert (bad.values, good.values and good.values["name"]) == (None, "Ada")


class Unreadable:
    """A store in which the log of one run cannot be read, neither alone nor with others, where there is a verb for that."""

    def __init__(self, store: Any, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def __getattr__(self, name: str) -> Any:
        given = getattr(self._store, name)
        if name != "heads":
            return given

        async def heads(run_ids: Sequence[str]) -> Any:
            return {run_id: head for run_id, head in (await given(run_ids)).items() if run_id != self._run_id}

        return heads

    async def load(self, run_id: str) -> Any:
        if run_id == self._run_id:
            raise StoreCorrupt("a row is damaged", hint="restore a backup")
        return await self._store.load(run_id)

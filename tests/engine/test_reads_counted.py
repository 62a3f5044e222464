"""What a look costs, counted: a list is a few reads however long it is, and a page of events reads no more than its own rows."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from holdfast import Context, Graph, Runtime, State, append, thread
from holdfast.core.codec import Row
from holdfast.core.errors import ChainBroken, LaneBlocked
from holdfast.core.progress import Progress
from holdfast.engine.look.looker import Wanted
from holdfast.stores import MemoryStore, PostgresStore, SqliteStore, open_url
from tests.postgres.instead import OtherStore
from tests.postgres.server import shared
from tests.statements import counting_statements

STEPS = 5_000


class Told:
    """Stands before a store, and counts what is asked of it and the log rows that it gives. ``alter`` changes a row on its way."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.asked: Counter[str] = Counter()
        self.alter: int | None = None

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self.store, name)
        if not inspect.iscoroutinefunction(verb):
            return verb

        async def asked(*args: Any, **options: Any) -> Any:
            self.asked[name] += 1
            found = await verb(*args, **options)
            if name == "rows":
                self.asked["log rows"] += len(found)
                found = [msgspec.structs.replace(r, data=r.data.replace(b"s", b"t", 1)) if r.seq == self.alter else r for r in found]
            return found

        return asked

    def since(self) -> Counter[str]:
        asked, self.asked = self.asked, Counter()
        del asked["wait_for_change"], asked["find_marked"]
        return asked


def opened(kind: str, folder: Path) -> Told:
    match kind:
        case "sqlite" | "encrypted":
            return Told(SqliteStore(folder / "a.db"))
        case "postgres":
            return Told(PostgresStore(shared().fresh(f"counted_{folder.name}")))
    return Told(MemoryStore())


class Chat(State):
    name: str = ""
    said: Annotated[list[str], append, thread]


def chat() -> Graph[Chat]:
    graph = Graph("chat", Chat)

    @graph.node(start=True)
    async def say(state: Chat, ctx: Context) -> dict[str, Any]:
        if state.name == "ask":
            await ctx.approve("Go on?")
        return {"said": [f"hello {state.name} " + "x" * 300]}

    return graph


class Count(State):
    n: int = 0


def line(steps: int) -> Graph[Count]:
    graph = Graph("long", Count, step_limit=steps + 1)

    @graph.node("s", start=True)
    async def s(state: Count) -> dict[str, Any]:
        return {"n": state.n + 1}

    graph.branch("s", lambda state: "s" if state.n < steps else None)
    return graph


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "encrypted"])
async def test_a_list_of_fifty_runs_is_a_few_reads(kind: str, tmp_path: Path) -> None:
    """Ended, waiting and pending runs, and runs that carry a thread on: the values are those of each run read alone."""
    store, graph = opened(kind, tmp_path), chat()
    async with Runtime(store, skills=[graph], encryption={"k1": b"1" * 32} if kind == "encrypted" else None) as rt:
        for n in range(20):
            await rt.invoke(graph, {"name": f"lone {n}"})
        for n in range(15):
            await rt.invoke(graph, {"name": f"in turn {n}"}, thread_id="talk")
        for _ in range(5):
            await rt.invoke(graph, {"name": "ask"})
        for n in range(10):
            await rt.submit(graph, {"name": f"later {n}"}, thread_id="queue")
        store.since()
        found = await rt.look.runs(Wanted(limit=50))
        asked = store.since()
        assert len(found) == 50
        assert asked["runs"] <= 2 and asked["heads"] == 1 and not asked["load"], asked
        assert sum(asked.values()) <= 8, asked
        bare = await rt.look.runs(Wanted(limit=50), values=False)
        assert not {"heads", "load"} & store.since().keys()
        texts = await rt.look.runs(Wanted(limit=50, text="HELLO in turn 14"))
        assert store.since()["load"] == 0
        assert [r.run_id for r in texts] == [r.run_id for r in found if r.values and "hello in turn 14" in str(r.values["said"])] != []
        for view, plain in zip(found, bare, strict=True):
            assert view == (await rt.look.snapshot(view.run_id, check=False)).record
            assert plain == msgspec.structs.replace(view, values=None, result=None)
        python = await rt.runs(limit=50)
        assert [dict(r.values) for r in python] == [dict((await rt.get(r.run_id)).values) for r in python]


@pytest.mark.one_store("it counts SQLite's statements")
async def test_a_list_is_a_few_statements_of_sqlite(tmp_path: Path) -> None:
    with counting_statements() as counted:
        async with Runtime(f"sqlite:///{tmp_path}/a.db", skills=[graph := chat()]) as rt:
            for n in range(50):
                await rt.invoke(graph, {"name": f"lone {n}"})
            counted.clear()
            assert len(await rt.look.runs(Wanted(limit=50))) == 50
            assert counted.total() <= 12, counted


async def made(folder: Path) -> str:
    async with Runtime("memory:", skills=[graph := line(STEPS)]) as rt:
        run = await rt.invoke(graph, {})
        assert run.state.n == STEPS
        await rt.export(run.run_id, folder)
    return run.run_id


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of ten thousand events, as it is exported."""
    folder = tmp_path_factory.mktemp("long") / "run"
    return folder, asyncio.run(made(folder))


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "memory"])
async def test_a_page_of_events_reads_its_own_rows(kind: str, tmp_path: Path, long_run: tuple[Path, str]) -> None:
    """§1.9: the page is held against the chain from the row before it, so that an altered row is told of wherever the page begins."""
    store, (folder, run_id) = opened(kind, tmp_path), long_run
    async with Runtime(store) as rt:
        await rt.import_runs(folder)
        every = (await rt.look.snapshot(run_id, check=False)).events()
        assert len(every) >= 10_000
        for after in (0, 1, 2, 5_000, 5_001, len(every) - 50, len(every), len(every) + 7):
            store.since()
            page = await rt.look.events(run_id, after, 100)
            assert page == every[after : after + 100]
            assert store.since()["log rows"] <= 200
            assert [e.seq for e in await rt.events(run_id, after, limit=100)] == [e.seq for e in page]
            assert store.since()["log rows"] <= 200
        rows = await store.rows(run_id, 5_000, 3)
        store.alter = rows[1].seq
        for after in (5_000, rows[0].seq, rows[1].seq - 1):
            with pytest.raises(ChainBroken):
                await rt.events(run_id, after, limit=100)
        store.since()
        told = await rt.look.events(run_id, 5_000, 100)
        assert [e.seq for e in told] == list(range(5_001, 5_101)), "what can be read is shown"
        assert store.since()["log rows"] > STEPS, "and the whole of it is looked at"


async def test_whoever_waits_for_a_result_reads_the_log_once(tmp_path: Path, other_store: OtherStore) -> None:
    """However often the run moves meanwhile."""
    looked = asyncio.Event()
    graph = Graph("slow", Count)

    @graph.node("s", start=True)
    async def s(state: Count) -> dict[str, Any]:
        looked.clear()
        await looked.wait()
        return {"n": state.n + 1}

    graph.branch("s", lambda state: "s" if state.n < 6 else None)

    class Watched(Told):
        async def get(self, run_id: str) -> Any:
            self.asked["get"] += 1
            looked.set()
            return await self.store.get(run_id)

    url = other_store(f"sqlite:///{tmp_path}/a.db")
    store = Watched(open_url(url))
    async with Runtime(url, skills=[graph]) as driver, Runtime(store, skills=[graph]) as rt:
        run = await driver.submit(graph, {})
        work = asyncio.ensure_future(driver.worker(until_idle=True))
        store.since()
        assert (await rt.result(run.run_id, timeout=60)).n == 6
        asked = store.since()
        await work
    assert asked["get"] >= 6, asked
    assert (asked["load"], asked["log rows"]) == (1, 0), asked


async def test_of_many_runs_that_are_submitted_limits_and_workers_are_read_once_a_second(tmp_path: Path, other_store: OtherStore) -> None:
    """What lets a run begin now is not asked for again; what does not is."""
    graph, stranger = chat(), line(1)
    store = Told(open_url(other_store(f"sqlite:///{tmp_path}/a.db")))
    async with Runtime(store, skills=[graph, stranger]) as rt, Runtime(store.store.url, skills=[graph]) as other:
        work = asyncio.ensure_future(other.worker(queues=["elsewhere"]))
        while not await store.workers() or (await store.workers())[0].offer is None:
            await store.wait_for_change(0.05)
        store.since()
        for n in range(5):
            assert (await rt.submit(graph, {"name": f"run {n}"}, queue="elsewhere", delay=3600)).blocked_by is None
            assert (await rt.submit(graph, {"name": f"run {n}"})).no_worker_for is None
        asked = store.since()
        assert (asked["rules"], asked["workers"]) == (1, 1), asked
        await rt.pause_queue("default", actor="ada")
        assert (await rt.submit(graph, {"name": "held"})).blocked_why
        assert (await rt.submit(stranger, {}, queue="elsewhere")).no_worker_for is not None
        work.cancel()
        await asyncio.wait([work])


async def test_an_approval_walks_the_log_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is recorded on the run as it was loaded; whoever goes on with the run walks its log."""
    walked: list[int] = []
    walk = Progress.walk

    def counted(progress: Progress, rows: Sequence[Row]) -> Progress:
        walked.append(len(rows))
        return walk(progress, rows)

    graph = Graph("asking", Count)

    @graph.node("s", start=True)
    async def s(state: Count) -> dict[str, Any]:
        return {"n": state.n + 1}

    @graph.node("asks")
    async def asks(state: Count, ctx: Context) -> None:
        await ctx.approve("Go on?")

    graph.branch("s", lambda state: "s" if state.n < 60 else "asks")
    async with Runtime(f"sqlite:///{tmp_path}/a.db") as rt:
        run = await rt.invoke(graph, {})
        assert run.status == "waiting_for_human"
        monkeypatch.setattr(Progress, "walk", counted)
        assert (await rt.approve(run.run_id)).status == "completed"
        assert len(walked) == 1 and walked[0] > 60, walked


async def test_a_run_that_is_driven_to_a_question_is_loaded_once(tmp_path: Path, other_store: OtherStore) -> None:
    """It is shown as its driver has left it; one that has moved since is read."""
    graph = Graph("asking", Count)

    @graph.node("asks", start=True)
    async def asks(state: Count, ctx: Context) -> dict[str, Any]:
        await ctx.approve("Go on?")
        return {"n": state.n + 1}

    store = Told(open_url(other_store(f"sqlite:///{tmp_path}/a.db")))
    async with Runtime(store, skills=[graph]) as rt:
        run = await rt.submit(graph, {"n": 3})
        store.since()
        rested = await rt.resume(run.run_id)
        asked = store.since()
        assert (asked["load"], asked["get"]) == (1, 2), asked
        read = await rt.get(run.run_id)
        assert (rested.status, rested.state.n, [w.prompt for w in rested.waits]) == ("waiting_for_human", 3, ["Go on?"])
        assert rested.record == read.record and rested.state == read.state and rested.lease == read.lease
        done = await rt.approve(run.run_id)
        assert (done.status, done.state.n) == ("completed", 4)


async def test_a_run_in_a_session_of_its_own_is_resumed_without_a_look_at_its_lane(tmp_path: Path, other_store: OtherStore) -> None:
    """Nothing was before it when it was submitted. What was submitted after it to its session may have gone first, where it begins later: then the claim is
    refused, who is in the way is looked up, and nothing is written."""
    graph = Graph("asks", Count)

    @graph.node("asks", start=True)
    async def asks(state: Count, ctx: Context) -> dict[str, Any]:
        await ctx.approve("Go on?")
        return {"n": state.n + 1}

    store = Told(open_url(other_store(f"sqlite:///{tmp_path}/a.db")))
    async with Runtime(store, skills=[graph]) as rt:
        alone = await rt.submit(graph, {})
        store.since()
        await rt.resume(alone.run_id)
        assert store.since()["runs"] == 0
        later = await rt.submit(graph, {}, delay=60.0)
        after = await rt.submit(graph, {}, session_key=later.run_id)
        assert (await rt.resume(after.run_id)).status == "waiting_for_human"
        told = await rt.events(later.run_id)
        with pytest.raises(LaneBlocked) as caught:
            await rt.resume(later.run_id)
        assert caught.value.blocked_by == after.run_id and await rt.events(later.run_id) == told
        await rt.approve(after.run_id)
        assert (await rt.resume(later.run_id)).status == "waiting_for_human"

"""How often workers look for what they could claim, counted: a commit that makes nothing claimable is nobody's reason to look (§10.16)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import Graph, Limit, Runtime, State
from holdfast.engine.base.services import Skills
from holdfast.ports import ANYTHING, Claims, News
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres.news import HEARD_POLL
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import VirtualClock
from holdfast.testing.clock import VirtualLoop
from holdfast.workers.worker import CALM_SECONDS, IDLE_SECONDS, MOST_VAIN_SECONDS, Patience
from tests.postgres.server import shared

TTL = 30_000_000
STEPS = 60


class Count(State):
    n: int = 0


long: Graph[Count] = Graph("long", Count, version="1")
for i in range(STEPS):
    long.node(f"s{i}", start=i == 0, after=None if i == 0 else f"s{i - 1}")(lambda state: {"n": state.n + 1})

short: Graph[Count] = Graph("short", Count, version="1")


@short.node(start=True)
async def work(state: Count) -> dict[str, int]:
    for _ in range(5):
        await asyncio.sleep(0)
    return {"n": 1}


class Looks(Counter[str]):
    """How many claims each owner asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.first = asyncio.Event()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    found = Looks()
    claim = SqliteStore.claim

    async def counted(self: SqliteStore, owner: str, *given: Any, **more: Any) -> Claims:
        found[owner] += 1
        found.first.set()
        return await claim(self, owner, *given, **more)

    monkeypatch.setattr(SqliteStore, "claim", counted)
    return found


async def test_the_steps_of_one_worker_wake_no_other(tmp_path: Path, looks: Looks) -> None:
    """A worker whose look found nothing looks again for what has become due, for what was let go of, and twice a second; not for each step."""
    url, stop = f"sqlite:///{tmp_path}/a.db", asyncio.Event()
    async with Runtime(url, skills=[long]) as busy, Runtime(url, skills=[short]) as idle:
        waiting = asyncio.ensure_future(idle.worker(stop=stop, dispatch=False))
        await asyncio.wait_for(looks.first.wait(), 30)
        began, before = time.monotonic(), looks[idle.owner]
        runs = [(await busy.submit(long, {})).run_id for _ in range(3)]
        await busy.worker(until_idle=True, dispatch=False)
        assert [(await busy.get(run_id)).state.n for run_id in runs] == [STEPS] * 3
        polls = 1 + int((time.monotonic() - began) / IDLE_SECONDS)
        assert looks[idle.owner] - before <= 2 * len(runs) + polls, looks
        stop.set()
        await waiting


async def test_a_worker_that_is_full_is_not_woken_by_what_it_cannot_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for news once it has room, and takes what has become due meanwhile."""
    woken, free = Counter[str](), asyncio.Event()
    wait = MemoryStore.wait_for_change

    async def counted(self: MemoryStore, timeout: float, about: News = ANYTHING) -> News:
        found = await wait(self, timeout, about)
        woken["worker"] += about == News.DUE | News.FREED
        return found

    monkeypatch.setattr(MemoryStore, "wait_for_change", counted)
    held: Graph[Count] = Graph("held", Count, version="1")

    @held.node(start=True)
    async def waits(state: Count) -> dict[str, int]:
        begun.set()
        await free.wait()
        return {"n": 1}

    begun, stop = asyncio.Event(), asyncio.Event()
    async with Runtime("memory:", skills=[held, short]) as rt:
        working = asyncio.ensure_future(rt.worker(stop=stop, dispatch=False, concurrency=1))
        await rt.submit(held, {})
        await asyncio.wait_for(begun.wait(), 30)
        for _ in range(5):
            await asyncio.sleep(0)
        before = woken["worker"]
        given = []
        for _ in range(20):
            given.append((await rt.submit(short, {})).run_id)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert woken["worker"] <= before + 1, "it may have waited already"
        free.set()
        assert [(await rt.result(run_id)).n for run_id in given] == [1] * 20
        stop.set()
        await working


def test_a_worker_that_is_full_sweeps_on() -> None:
    """A schedule fires though no run of the worker ends."""
    clock = VirtualClock()
    held: Graph[Count] = Graph("held", Count, version="1")

    @held.node(start=True)
    async def waits(state: Count) -> dict[str, int]:
        await clock.sleep(3600)
        return {"n": 1}

    async def main() -> float:
        async with Runtime(MemoryStore(now=clock.now), clock=clock, skills=[held, short]) as rt:
            stop, began = asyncio.Event(), clock.monotonic()
            working = asyncio.ensure_future(rt.worker(stop=stop, dispatch=False, concurrency=1))
            await rt.submit(held, {})
            await rt.schedule("short", every=timedelta(seconds=30), id="soon")
            while not await rt.runs(skill_id="short"):
                await clock.sleep(1)
            took = clock.monotonic() - began
            stop.set()
            await working
            return took

    with contextlib.closing(VirtualLoop(clock)) as loop:
        assert 30 <= loop.run_until_complete(main()) < 30 + 2


async def test_the_steps_of_one_worker_wake_no_other_over_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same over PostgreSQL, where notifications say of which kind the news is; what is not told of is found by a slow poll."""
    claims = Counter[str]()
    claim = PostgresStore.claim

    async def counted(self: PostgresStore, owner: str, *given: Any, **more: Any) -> Claims:
        claims[owner] += 1
        return await claim(self, owner, *given, **more)

    monkeypatch.setattr(PostgresStore, "claim", counted)
    url, stop = shared().fresh(), asyncio.Event()
    async with Runtime(url, skills=[long]) as busy, Runtime(url, skills=[short]) as idle:
        waiting = asyncio.ensure_future(idle.worker(stop=stop, dispatch=False))
        await idle.result((await idle.submit(short, {})).run_id)  # by then it listens
        began, before = time.monotonic(), claims[idle.owner]
        runs = [(await busy.submit(long, {})).run_id for _ in range(3)]
        await busy.worker(until_idle=True, dispatch=False)
        assert [(await busy.get(run_id)).state.n for run_id in runs] == [STEPS] * 3
        polls = 1 + int((time.monotonic() - began) / HEARD_POLL)
        assert claims[idle.owner] - before <= 2 * len(runs) + polls, claims
        stop.set()
        await waiting


async def test_a_look_is_sent_before_its_worker_waits_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server reads it while the process waits anew."""
    told: list[str] = []
    look, wait = PostgresStore.claim, PostgresStore.wait_for_change

    async def looked(self: PostgresStore, owner: str, *given: Any, **more: Any) -> Claims:
        told.append("look")
        return await look(self, owner, *given, **more)

    async def waited(self: PostgresStore, timeout: float, about: News = ANYTHING) -> News:
        if about != News.DUE | News.FREED:
            return await wait(self, timeout, about)
        told.append("wait")
        found = await wait(self, timeout, about)
        told.append("woken")
        return found

    monkeypatch.setattr(PostgresStore, "claim", looked)
    monkeypatch.setattr(PostgresStore, "wait_for_change", waited)
    url, stop = shared().fresh(), asyncio.Event()
    async with Runtime(url, skills=[short]) as rt, Runtime(url, skills=[short]) as idle:
        waiting = asyncio.ensure_future(idle.worker(stop=stop, dispatch=False))
        for _ in range(10):
            await rt.result((await rt.submit(short, {})).run_id)
        stop.set()
        await waiting
    assert ("woken", "look") in itertools.pairwise(told), "a worker that is not in the midst of a look"


def test_shapes_are_put_together_when_a_skill_is_added() -> None:
    """And not for each look."""
    skills = Skills()
    skills.add(long.program)
    before = skills.shapes
    assert skills.shapes is before
    skills.add(long.program)
    assert skills.shapes is before
    skills.add(short.program)
    assert set(skills.shapes) > set(before)


async def test_few_workers_look_for_the_place_that_becomes_free(tmp_path: Path, looks: Looks) -> None:
    """§10.11: of ten workers that a limit of one holds back one gets the place that becomes free; each other one looks for it once at most, not for each commit."""
    url, stop, runs = f"sqlite:///{tmp_path}/a.db", asyncio.Event(), 60
    limits = {"queue:default": Limit(in_flight=1)}
    async with contextlib.AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(Runtime(url, skills=[short], limits=limits)) for _ in range(10)]
        given = [(await workers[0].submit(short, {})).run_id for _ in range(runs)]
        began = time.monotonic()
        working = [asyncio.ensure_future(rt.worker(stop=stop, dispatch=False)) for rt in workers]
        for run_id in given:
            assert (await workers[0].result(run_id)).n == 1
        polls = len(workers) * (1 + int((time.monotonic() - began) / IDLE_SECONDS))
        assert looks.total() <= (len(workers) + 3) * runs + polls, looks
        stop.set()
        await asyncio.gather(*working)


async def test_a_claim_that_finds_nothing_is_no_write(tmp_path: Path) -> None:
    """Another was first between its look and its transaction: that is undone, so that nobody is woken by it, and says when the rate lets the next one go."""
    limits = {"queue:default": Limit(per_second=2, burst=1)}
    async with Runtime(f"sqlite:///{tmp_path}/a.db", skills=[short]) as rt:
        await rt.submit(short, {})
        await rt.submit(short, {})
    quick, late = SqliteStore(tmp_path / "a.db"), SqliteStore(tmp_path / "a.db")
    await quick.open()
    said, taken = Counter[str](), list[Claims]()

    def begins(_: Any, sql: str, __: Any) -> bool:
        """What the late one asks; as it begins to write, the quick one claims."""
        said[sql.split()[0]] += 1
        if sql.startswith("BEGIN IMMEDIATE") and armed and not taken:
            try:
                quick.claim("quick", ("default",), None, limit=5, limits=limits).send(None)
            except StopIteration as claimed:
                taken.append(claimed.value)
        return True

    def trace(db: apsw.Connection) -> None:
        db.exec_trace = begins

    armed = False
    apsw.connection_hooks.append(trace)
    try:
        await late.open()
    finally:
        apsw.connection_hooks.remove(trace)
    for store, owner in ((quick, "quick"), (late, "late")):
        await store.register(owner, TTL)
    said.clear()
    armed = True
    got = await late.claim("late", ("default",), None, limit=5, limits=limits)
    assert len(taken[0]) == 1 and taken[0].again is not None
    assert got == [] and got.again == taken[0].again
    assert said["BEGIN"] == 1 and said["COMMIT"] == 0 and said["ROLLBACK"] == 1, said
    said.clear()
    assert (await late.claim("late", ("default",), None, limit=5, limits=limits)).again == got.again
    assert said["BEGIN"] == 0, "what a rate holds back is seen without a transaction"
    for store in (quick, late):
        await store.close()


def test_a_worker_comes_back_when_the_rate_lets_the_next_run_go() -> None:
    """§10.11: twenty runs at twenty a second take a second, and not as many polls as there are runs."""
    clock = VirtualClock()
    loop = VirtualLoop(clock)

    async def main() -> float:
        limits = {"queue:default": Limit(per_second=20, burst=1)}
        async with Runtime(MemoryStore(now=clock.now), clock=clock, skills=[short], limits=limits) as rt:
            runs = [(await rt.submit(short, {})).run_id for _ in range(21)]
            stop, began = asyncio.Event(), clock.monotonic()
            working = asyncio.ensure_future(rt.worker(stop=stop, dispatch=False))
            for run_id in runs:
                assert (await rt.result(run_id)).n == 1
            took = clock.monotonic() - began
            stop.set()
            await working
            return took

    with contextlib.closing(loop):
        assert 1.0 <= loop.run_until_complete(main()) < 1.0 + 2 * IDLE_SECONDS


def test_patience_grows_with_looks_in_vain_and_ends_with_calm() -> None:
    patience = Patience(lambda: 999)
    assert patience.free(0.0) == 0, "the first place that becomes free is looked for at once"
    pauses = []
    for n in range(12):
        patience.look(in_vain=True)
        pauses.append(patience.free(n / 100))
    assert pauses == sorted(pauses) and 0 < pauses[0] < pauses[1] and pauses[-1] <= MOST_VAIN_SECONDS
    patience.look(in_vain=False)
    assert patience.free(0.2) == 0, "whoever gets something is as quick as before"
    patience.look(in_vain=True)
    assert patience.free(0.3) > 0 == patience.free(0.3 + 2 * CALM_SECONDS), "after a while in which nothing was let go of nobody is in the way"

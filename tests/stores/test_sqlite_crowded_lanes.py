"""Runs that stand behind the holder of their lane, where there are many, over SQLite: claims do not go through them, and each comes in its turn (§10.8).

The store marks them while it claims, now and then; here it looks for them with each claim. The mark decides nothing: whatever becomes of it, the order
of a lane and who may go are as without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.statements import counting_work

from holdfast import Context, Limit, Runtime, flow
from holdfast.core.errors import QueueFull
from holdfast.engine.keep.check import Checker
from holdfast.ports import News
from holdfast.stores import SqliteStore, crowds
from holdfast.stores.sqlite import connection, lanes

pytestmark = pytest.mark.one_store("it counts the steps of SQLite's machine, and reads and alters the file")
BEHIND = 60
TTL = 60_000_000


@flow("chat")
async def chat(ctx: Context, asks: bool = False, sleeps: float = 0) -> None:
    if sleeps:
        await ctx.sleep(sleeps)
    if asks:
        await ctx.approve("ok?")


@pytest.fixture(autouse=True)
def looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each claim looks for crowds."""
    monkeypatch.setattr(crowds, "CALLS", 1)
    monkeypatch.setattr(crowds, "SECONDS", 0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


def opened(path: Path) -> Runtime:
    return Runtime(SqliteStore(path), skills=[chat])


async def behind(rt: Runtime, count: int, lane: str = "t", **options: Any) -> list[str]:
    """Submits so many, one after the other: their order in the lane is that of their submission."""
    return [(await rt.submit(chat, {}, thread_id=lane, **options)).run_id for _ in range(count)]


async def held(rt: Runtime, lane: str = "t", **options: Any) -> str:
    """A lane whose holder waits for a person."""
    holder = await rt.invoke(chat, {"asks": True}, thread_id=lane, **options)
    assert holder.status == "waiting_for_human"
    return str(holder.run_id)


async def goes_on(rt: Runtime, holder: str) -> None:
    """The holder's question is answered, and it ends."""
    assert (await rt.approve(holder, actor="ada")).status == "completed"


def no_more_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nobody looks for crowds, or for marks without a reason: what is in order is so by itself."""
    monkeypatch.setattr(crowds, "SECONDS", 3600.0)


_names = itertools.count()


async def looks(rt: Runtime, times: int = 2) -> str:
    """Claims by a worker that takes nothing which is here: it looks for crowds, and marks them. Gives its name."""
    await rt.store.register(name := f"looker-{next(_names)}", TTL)
    for _ in range(times):
        assert not await rt.store.claim(name, ("default",), ["another"], limit=10)
    return name


def by_hand(path: Path, statement: str, *values: str) -> list[Any]:
    with contextlib.closing(apsw.Connection(str(path))) as db:
        return db.execute(statement, values).fetchall()


def marked(path: Path) -> list[str]:
    return [run for (run,) in by_hand(path, "SELECT run_id FROM run WHERE behind <> 0 ORDER BY turn")]


async def ended(rt: Runtime) -> list[str]:
    """Those that have completed, in the order in which they did."""
    runs = [r for r in await rt.runs(limit=500) if r.status == "completed"]
    return [r.run_id for r in sorted(runs, key=lambda r: r.record.finished_at or 0)]


@pytest.mark.parametrize("limits", [{}, {"tenant:*": Limit(in_flight=30)}], ids=["free", "limited"])
async def test_claims_go_through_no_lane(tmp_path: Path, limits: dict[str, Limit]) -> None:
    """Beside two thousand that stand behind one holder a claim of another lane's run takes the steps that it takes beside a hundred; before they are marked
    it goes through all."""
    cost: dict[int, int] = {}
    for count in (100, 2_000):
        with counting_work() as done:
            async with opened(tmp_path / f"{count}.db") as rt:
                await held(rt)
                for _ in range(count // 100):
                    await asyncio.gather(*(rt.submit(chat, {}, thread_id="t") for _ in range(100)))
                name = await looks(rt, 1 + count // lanes.MARKED + 1)
                assert len(marked(tmp_path / f"{count}.db")) == count
                for n in range(4):
                    await rt.submit(chat, {}, thread_id=f"other {n}")
                before = done.steps
                for _ in range(4):
                    assert len(await rt.store.claim(name, ("default",), None, limit=1, limits=limits)) == 1
                cost[count] = done.steps - before
    assert cost[2_000] <= 1.1 * cost[100], cost


async def test_as_many_as_are_few_are_left_as_they_are(path: Path) -> None:
    """Where hardly anybody stands behind another, nothing is written: a claim goes through them in no time."""
    async with opened(path) as rt:
        for n in range(5):
            await held(rt, f"t{n}")
            await behind(rt, 3, f"t{n}")
        await looks(rt)
        assert marked(path) == []


async def test_a_crowd_is_marked_some_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim does not wait for a whole crowd to be marked; the next ones go on with it, and none of them tells others that there is anything to take."""
    async with opened(path) as rt:
        await held(rt)
        await behind(rt, BEHIND)
        monkeypatch.setattr("holdfast.stores.sqlite.lanes.MARKED", 25)
        name = await looks(rt, 1)
        no_more_looks(monkeypatch)
        counts = [len(marked(path))]
        for _ in range(3):
            await rt.store.wait_for_change(0.0)
            assert not await rt.store.claim(name, ("default",), ["another"], limit=10)
            assert not await rt.store.wait_for_change(0.0, News.DUE)
            counts.append(len(marked(path)))
        assert counts == [25, 50, 60, 60]


async def test_all_follow_in_their_turn(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(path) as rt:
        holder = await held(rt)
        order = await behind(rt, BEHIND)
        await looks(rt)
        no_more_looks(monkeypatch)
        assert marked(path) == order
        assert (await rt.get(order[-1])).blocked_by == holder
        assert [q.depth for q in await rt.queues()] == [BEHIND]
        assert [(b.due, b.laned) for b in await rt.store.backlog()] == [(BEHIND, BEHIND)]
        await goes_on(rt, holder)
        assert marked(path) == order[1:], "whoever lets go of the lane takes the mark from the first"
        last = await behind(rt, 1)
        await rt.worker(until_idle=True)
        assert await ended(rt) == [holder, *order, *last] and marked(path) == []
        assert await Checker(rt.store).all() == []


async def test_several_lanes_are_handed_over_in_one_transaction(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends of many runs share statements; each of them lets the next of its own lane go on."""
    async with opened(path) as rt:
        holders = [await held(rt, f"t{n}") for n in range(10)]
        behinds = [await behind(rt, 6, f"t{n}") for n in range(10)]
        await looks(rt)
        no_more_looks(monkeypatch)
        assert len(marked(path)) == BEHIND
        await asyncio.gather(*(goes_on(rt, holder) for holder in holders))
        await rt.worker(until_idle=True, concurrency=10)
        done = await ended(rt)
        assert [[run for run in done if run in lane] for lane in behinds] == behinds and marked(path) == []


async def test_a_queue_s_bound_counts_them(path: Path) -> None:
    """§10.11: those who are marked wait in their queue as all others do."""
    async with Runtime(SqliteStore(path), skills=[chat], max_queued=BEHIND + 1) as rt:
        await held(rt)
        await behind(rt, BEHIND)
        await looks(rt)
        assert len(marked(path)) == BEHIND
        await rt.submit(chat, {})
        with pytest.raises(QueueFull):
            await rt.submit(chat, {})


async def test_one_that_is_canceled_is_marked_no_longer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(path) as rt:
        holder = await held(rt)
        order = await behind(rt, BEHIND)
        await looks(rt)
        no_more_looks(monkeypatch)
        gone = {order[0], order[2], order[-1]}
        for run in sorted(gone):
            assert (await rt.cancel(run)).status == "canceled"
        assert not {holder, *gone} & set(marked(path))
        await goes_on(rt, holder)
        await rt.worker(until_idle=True)
        assert await ended(rt) == [holder, *(r for r in order if r not in gone)] and marked(path) == []


async def test_the_next_that_is_canceled_before_it_goes_lets_the_one_behind_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lane is free, and whoever was the next one is gone before anybody has claimed it."""
    async with opened(path) as rt:
        holder = await held(rt)
        order = await behind(rt, BEHIND)
        await looks(rt)
        no_more_looks(monkeypatch)
        await goes_on(rt, holder)
        for n in range(3):
            assert marked(path) == order[n + 1 :]
            await rt.cancel(order[n])
        await rt.worker(until_idle=True)
        assert await ended(rt) == [holder, *order[3:]] and marked(path) == []


async def test_the_next_whose_row_is_lost_lets_the_one_behind_it(path: Path) -> None:
    async with opened(path) as rt:
        holder = await held(rt)
        order = await behind(rt, BEHIND)
        await looks(rt)
        await goes_on(rt, holder)
        by_hand(path, "DELETE FROM run WHERE run_id = ?", order[0])
        assert marked(path) == order[2:]


async def test_a_holder_that_lets_go_while_it_waits_lets_the_next_go_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(path) as rt:
        first = await held(rt)
        letting = (await rt.submit(chat, {"asks": True}, thread_id="t", paused_lane="release")).run_id
        order = await behind(rt, BEHIND)
        await looks(rt)
        no_more_looks(monkeypatch)
        assert marked(path) == [letting, *order]
        await goes_on(rt, first)
        await rt.worker(until_idle=True)
        assert await ended(rt) == [first, *order] and marked(path) == []
        assert (await rt.get(letting)).status == "waiting_for_human"


async def test_a_holder_that_sleeps_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody goes before a holder whose time has not come; who stands behind it is marked all the same."""
    async with opened(path) as rt:
        holder = (await rt.submit(chat, {"sleeps": 3600.0}, thread_id="t")).run_id
        await rt.worker(until_idle=True)
        order = await behind(rt, BEHIND)
        await looks(rt)
        no_more_looks(monkeypatch)
        assert marked(path) == order
        assert (await rt.cancel(holder)).status == "canceled"
        await rt.worker(until_idle=True)
        assert await ended(rt) == order and marked(path) == []


async def test_a_run_that_is_marked_is_claimed_by_its_name(path: Path) -> None:
    """Whoever asks for a marked run by its name, once its lane is free, has it, and it is marked no longer."""
    async with opened(path) as rt:
        holder = await held(rt)
        order = await behind(rt, BEHIND)
        name = await looks(rt)
        await goes_on(rt, holder)
        by_hand(path, "UPDATE run SET behind = 1 WHERE due IS NOT NULL")
        claims = await rt.store.claim(name, ("default",), None, limit=1, run_id=order[0])
        assert [c.run_id for c in claims] == order[:1] and marked(path) == order[1:]


@pytest.mark.parametrize("wrong", ["behind = 1", "behind = 1 WHERE due IS NOT NULL", "behind = 7", "behind = -1"])
async def test_a_mark_without_a_reason_is_lost(path: Path, wrong: str) -> None:
    """However it came to be there: each look takes it from the first of lanes that nobody holds, so many lanes at a time, and tells whoever waits."""
    async with opened(path) as rt:
        pairs = [await behind(rt, 2, f"t{n}") for n in range(20)]
        by_hand(path, f"UPDATE run SET {wrong}")
        await rt.store.wait_for_change(0.0)
        await looks(rt, 1)
        assert await rt.store.wait_for_change(0.0, News.DUE)
        assert set(marked(path)) == {second for _, second in pairs}
        assert await Checker(rt.store).all() == [], "no digest says who is marked: it decides nothing"
        await rt.worker(until_idle=True)
        assert set(await ended(rt)) == {run for pair in pairs for run in pair} and marked(path) == []


async def test_looks_go_through_all_lanes_some_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.stores.sqlite.lanes.LANES", 3)
    async with opened(path) as rt:
        for n, tenant in itertools.product(range(4), "ab"):
            await rt.submit(chat, {}, thread_id=f"t{n}", tenant_id=tenant)
        by_hand(path, "UPDATE run SET behind = 1")
        left = []
        for _ in range(4):
            await looks(rt, 1)
            left.append(len(marked(path)))
        assert left == [5, 2, 0, 0]


async def test_a_holder_that_is_marked_itself_is_found_again(path: Path) -> None:
    """A mark on the holder, which only damage can set, would hide it and all who stand behind it."""
    async with opened(path) as rt:
        holder = await held(rt)
        order = await behind(rt, BEHIND)
        await looks(rt)
        by_hand(path, "UPDATE run SET behind = 1 WHERE run_id = ?", holder)
        await looks(rt, 1)
        assert marked(path) == order


async def test_nobody_is_left_behind_who_is_marked_while_the_holder_lets_go(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else with the same file marks whatever stands behind, again and again, while the holders end and the others follow them. No lane is left
    without anybody who goes on, though nobody looks for marks that have no reason."""
    no_more_looks(monkeypatch)
    over, counts = threading.Event(), list[int]()

    def marking(now: int) -> None:
        with contextlib.closing(connection.connect(str(path))) as db:
            while not over.is_set():
                with connection.writing(db):
                    counts.append(lanes.settle(db, lanes.Behind(("default", 0, "default")), now))

    async with opened(path) as rt:
        for _ in range(3):
            holders = [await held(rt, f"t{n}") for n in range(8)]
            for n in range(8):
                await behind(rt, 4, f"t{n}")
            over.clear()
            beside = asyncio.ensure_future(asyncio.to_thread(marking, rt.store.now()))
            await asyncio.gather(*(goes_on(rt, holder) for holder in holders))
            await rt.worker(until_idle=True)
            over.set()
            await beside
            assert {r.status for r in await rt.runs(limit=500)} == {"completed"} and marked(path) == []
        assert sum(counts) > 3 * 8, counts


def test_when_it_is_looked_for_crowds(monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many claims, and so much time; what was seen is kept until little of it is left to mark."""
    monkeypatch.setattr(crowds, "CALLS", 3)
    monkeypatch.setattr(crowds, "SECONDS", 1.0)
    at = [0.0]
    known = crowds.Crowds(lambda: at[0])
    assert [known.look() for _ in range(5)] == [False] * 5, "a second has to be over"
    at[0] = 1.5
    assert [known.look() for _ in range(4)] == [True, False, False, False], "and then as many claims again, and another second"
    at[0] = 3.0
    assert known.look()
    known.see([("q", 0, "t"), ("q", 0, "u")], ("t", "s", "l"))
    assert known.lines == [("q", 0, "t"), ("q", 0, "u")] and known.lane == ("t", "s", "l")
    known.mark(("q", 0, "t"), crowds.MARKED)
    assert known.lines == [("q", 0, "t"), ("q", 0, "u")]
    known.mark(("q", 0, "t"), crowds.CROWD - 1)
    assert known.lines == [("q", 0, "u")]
    known.see([], None)
    assert known.lines == [] and known.lane == crowds.START

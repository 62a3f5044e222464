"""Runs that stand behind the holder of their lane, where there are many: claims do not go through them, and each comes in its turn (§10.8).

A store marks them while it claims, now and then; here it looks for them with each claim. The mark decides nothing: whatever becomes of it, the order
of a lane and who may go are as without it.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import psycopg
import pytest
from tests.limits.test_costs import TTL, rows_read
from tests.postgres.server import shared

from holdfast import Context, Runtime, flow
from holdfast.stores import PostgresStore, crowds
from holdfast.stores.postgres.queries import Q

BEHIND = 60


@flow("chat")
async def chat(ctx: Context, asks: bool = False) -> None:
    if asks:
        await ctx.approve("ok?")


@pytest.fixture(autouse=True)
def looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each claim looks for crowds."""
    monkeypatch.setattr(crowds, "CALLS", 1)
    monkeypatch.setattr(crowds, "SECONDS", 0.0)


async def behind(rt: Runtime, count: int, lane: str = "t") -> list[str]:
    """Submits so many, one after the other: their order in the lane is that of their submission."""
    return [(await rt.submit(chat, {}, thread_id=lane)).run_id for _ in range(count)]


async def held(rt: Runtime, lane: str = "t", **options: Any) -> str:
    """A lane whose holder waits for a person."""
    holder = await rt.invoke(chat, {"asks": True}, thread_id=lane, **options)
    assert holder.status == "waiting_for_human"
    return holder.run_id


_names = itertools.count()


async def looks(rt: Runtime, times: int = 2) -> str:
    """Claims by a worker that takes nothing which is here: it looks for crowds, and marks them. Gives its name."""
    await rt.store.register(name := f"looker-{next(_names)}", TTL)
    for _ in range(times):
        assert not await rt.store.claim(name, ("default",), ["another"], limit=10)
    return name


def marked(_url: str) -> list[str]:
    with shared().admin("holdfast") as db:
        return [str(run) for (run,) in db.execute("SELECT run_id FROM holdfast.run WHERE behind ORDER BY turn").fetchall()]


def lost(_url: str) -> int:
    """How many lanes there are in which somebody is marked and that nobody holds."""
    with shared().admin("holdfast") as db:
        found = db.execute("""SELECT count(DISTINCT b.session_key) FROM holdfast.run b WHERE b.behind AND NOT EXISTS (
          SELECT 1 FROM holdfast.run h WHERE h.tenant_id = b.tenant_id AND h.session_key = b.session_key AND h.lane = b.lane AND (h.holds OR h.due IS NOT NULL AND NOT h.behind))""").fetchone()
    assert found is not None
    return int(str(found[0]))


def alter(text: str) -> None:
    with shared().admin("holdfast") as db:
        db.execute(text.encode())


async def ended(rt: Runtime) -> list[str]:
    """Those that have completed, in the order in which they did."""
    runs = [r for r in await rt.runs(limit=500) if r.status == "completed"]
    return [r.run_id for r in sorted(runs, key=lambda r: r.record.finished_at or 0)]


async def test_claims_go_through_no_lane() -> None:
    """Beside eight hundred that stand behind one holder a claim reads what it reads beside two hundred; before they are marked it goes through all."""
    read: dict[int, list[int]] = {}
    for count in (200, 800):
        url = shared().fresh()
        async with Runtime(url, skills=[chat]) as rt:
            await held(rt)
            await asyncio.gather(*[rt.submit(chat, {}, thread_id="t") for _ in range(count)])
        alter("VACUUM (INDEX_CLEANUP ON, ANALYZE) holdfast.run")
        read[count] = []
        for times in (1, 3 + count // crowds.MARKED, 1):
            before = rows_read()
            async with Runtime(url, skills=[chat]) as rt:
                await looks(rt, times)
            read[count].append(rows_read() - before)
            alter("VACUUM (INDEX_CLEANUP ON) holdfast.run")
        assert len(marked(url)) == count
    assert read[800][0] > read[200][0] + 400, "it goes through all of them while they are not marked"
    assert read[800][2] <= read[200][2] + 10, read


async def test_all_follow_in_their_turn() -> None:
    url = shared().fresh()
    async with Runtime(url, skills=[chat]) as rt:
        holder = await held(rt)
        order = await behind(rt, BEHIND)
        await looks(rt)
        assert marked(url) == order
        assert (await rt.get(order[-1])).blocked_by == holder
        assert [q.depth for q in await rt.queues()] == [BEHIND]
        assert (await rt.approve(holder)).status == "completed"
        assert marked(url) == order[1:], "whoever lets go of the lane takes the mark from the first"
        last = await behind(rt, 1)
        await rt.worker(until_idle=True)
        assert await ended(rt) == [holder, *order, *last] and marked(url) == []


async def test_a_limit_passes_them_over_too() -> None:
    url = shared().fresh()
    async with Runtime(url, skills=[chat]) as rt:
        await held(rt)
        await behind(rt, BEHIND)
        name = await looks(rt)
        other = (await rt.submit(chat, {}, tenant_id="other")).run_id
        claims = await rt.store.claim(name, ("default",), None, limit=5)
        assert [c.run_id for c in claims] == [other]


async def test_one_that_is_canceled_is_marked_no_longer() -> None:
    url = shared().fresh()
    async with Runtime(url, skills=[chat]) as rt:
        holder = await held(rt)
        order = await behind(rt, BEHIND)
        await looks(rt)
        for run in (order[0], order[2], order[-1]):
            assert (await rt.cancel(run)).status == "canceled"
        assert holder not in marked(url) and not {order[0], order[2], order[-1]} & set(marked(url))
        await rt.approve(holder)
        await rt.worker(until_idle=True)
        gone = {order[0], order[2], order[-1]}
        assert await ended(rt) == [holder, *(r for r in order if r not in gone)] and marked(url) == []


async def test_a_holder_that_lets_go_while_it_waits_lets_the_next_go_on() -> None:
    url = shared().fresh()
    async with Runtime(url, skills=[chat]) as rt:
        first = await held(rt)
        letting = (await rt.submit(chat, {"asks": True}, thread_id="t", paused_lane="release")).run_id
        order = await behind(rt, BEHIND)
        await looks(rt)
        assert marked(url) == [letting, *order]
        await rt.approve(first)
        await rt.worker(until_idle=True)
        assert await ended(rt) == [first, *order] and marked(url) == []
        assert (await rt.get(letting)).status == "waiting_for_human"


async def test_a_run_that_waits_elsewhere_is_claimed_by_its_name() -> None:
    """Whoever asks for a marked run by its name, once its lane is free, has it; at rest again it is found as any other."""
    url = shared().fresh()
    async with Runtime(url, skills=[chat]) as rt:
        holder = await held(rt)
        order = await behind(rt, BEHIND)
        name = await looks(rt)
        await rt.approve(holder)
        alter("UPDATE holdfast.run SET behind = true WHERE due IS NOT NULL")
        claims = await rt.store.claim(name, ("default",), None, limit=1, run_id=order[0])
        assert [c.run_id for c in claims] == order[:1] and marked(url) == order[1:]


@pytest.mark.parametrize("wrong", ["UPDATE holdfast.run SET behind = true", "UPDATE holdfast.run SET behind = true WHERE due IS NOT NULL"], ids=["all", "due"])
async def test_a_mark_without_a_reason_is_lost(wrong: str) -> None:
    """However it came to be there: each look takes it from the first of lanes that nobody holds."""
    url = shared().fresh()
    async with Runtime(url, skills=[chat]) as rt:
        lanes = [await behind(rt, 2, f"t{n}") for n in range(20)]
        alter(wrong)
        await looks(rt, 1)
        assert set(marked(url)) == {second for _, second in lanes}
        await rt.worker(until_idle=True)
        assert set(await ended(rt)) == {run for lane in lanes for run in lane}


async def test_a_holder_that_is_marked_goes_on() -> None:
    """However it came to be: it would hide its whole lane."""
    url = shared().fresh()
    async with Runtime(url, skills=[chat]) as rt:
        holder = await held(rt)
        order = await behind(rt, 3)
        alter("UPDATE holdfast.run SET behind = true")
        await looks(rt, 1)
        assert marked(url) == order
        await rt.approve(holder, drive=False)
        await rt.worker(until_idle=True)
        assert await ended(rt) == [holder, *order]


async def test_few_are_left_as_they_are() -> None:
    """Where hardly anybody stands behind another, nothing is written: a claim goes through them in no time."""
    url = shared().fresh()
    async with Runtime(url, skills=[chat]) as rt:
        for n in range(5):
            await held(rt, f"t{n}")
            await behind(rt, 3, f"t{n}")
        await looks(rt)
        assert marked(url) == []


async def test_nobody_is_left_behind_who_is_marked_while_the_holder_lets_go() -> None:
    """Two processes: one marks whatever it finds behind, again and again, the other ends the holders meanwhile. No lane is left without anybody who goes on."""
    url = shared().fresh()
    async with Runtime(url, skills=[chat]) as rt, Runtime(PostgresStore(url), skills=[chat]) as beside:
        for _ in range(6):
            holders = [await held(rt, f"t{n}") for n in range(8)]
            for n in range(8):
                await asyncio.gather(*[rt.submit(chat, {}, thread_id=f"t{n}") for _ in range(4)])
            over = asyncio.Event()

            async def marking(over: asyncio.Event = over) -> None:
                while not over.is_set():
                    await looks(beside, 3)

            task = asyncio.ensure_future(marking())
            await asyncio.gather(*[rt.approve(holder) for holder in holders])
            over.set()
            await task
            assert lost(url) == 0
            await rt.worker(until_idle=True)
        assert {r.status for r in await rt.runs(limit=500)} == {"completed"}


async def test_a_holder_does_not_let_go_while_those_behind_it_are_being_marked() -> None:
    """Marked in a transaction that is not over yet: whoever lets go of the lane waits for it, and then sees the first of them."""
    url = shared().fresh()
    line = {"queue": "default", "priority": 0, "tenant": "default", "begins": -(2**62), "among": crowds.AMONG, "marked": crowds.MARKED, "now": None}
    async with Runtime(url, skills=[chat]) as rt:
        holder = await held(rt)
        order = await behind(rt, 3)
        with psycopg.connect(url) as marking, shared().admin("holdfast") as db:
            assert len(marking.execute(Q.behind_set, line).fetchall()) == 3
            letting = asyncio.ensure_future(rt.approve(holder))
            waits = "SELECT 1 FROM pg_stat_activity WHERE datname = 'holdfast' AND wait_event_type = 'Lock'"
            while not letting.done() and not await asyncio.to_thread(lambda: db.execute(waits).fetchone()):
                pass
            assert not letting.done()
            marking.commit()
        assert (await letting).status == "completed"
        assert marked(url) == order[1:]

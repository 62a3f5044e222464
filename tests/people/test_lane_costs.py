"""What a long lane costs, counted: whoever comes to its end, and whoever looks at it, reads the first that is in the way and not all (§10.8)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Runtime, flow
from holdfast.core.errors import LaneBusy, Rejected
from holdfast.engine.look.looker import Wanted
from holdfast.stores import MemoryStore
from tests.limits.test_costs import rows_read
from tests.postgres.server import shared
from tests.statements import counting_work

SHORT, LONG = 20, 400
SQLITE = pytest.mark.one_store("it counts the steps of SQLite's machine")


@flow("chat")
async def chat(ctx: Context, asks: bool = False) -> None:
    if asks:
        await ctx.approve("ok?")


class Lane:
    """A lane with a holder that waits, and many behind it."""

    def __init__(self, rt: Runtime, holder: str, last: str) -> None:
        self.rt, self.holder, self.last = rt, holder, last

    async def come(self, how: str, **options: Any) -> str | None:
        """Who is in the way of one more that comes to its end."""
        run = await (self.rt.submit if how == "submit" else self.rt.invoke)(chat, {}, thread_id="t", **options)
        return run.blocked_by


Act = Callable[[Lane], Awaitable[None]]
ACTS: dict[str, Act] = {}
LOADS = {"invoke", "invoke_acknowledged", "get", "listed"}
"""These load runs with their logs beside looking at the lane: how PostgreSQL finds those in a small table is another matter."""


def act(function: Act) -> Act:
    ACTS[function.__name__] = function
    return function


@act
async def submit(lane: Lane) -> None:
    assert await lane.come("submit") == lane.holder


@act
async def submit_acknowledged(lane: Lane) -> None:
    assert await lane.come("submit", on_busy="ack") == lane.holder


@act
async def submit_refused(lane: Lane) -> None:
    with pytest.raises(LaneBusy, match=lane.holder):
        await lane.come("submit", on_busy="reject")


@act
async def invoke(lane: Lane) -> None:
    assert await lane.come("invoke") == lane.holder


@act
async def invoke_acknowledged(lane: Lane) -> None:
    assert await lane.come("invoke", on_busy="ack") == lane.holder


@act
async def invoke_refused(lane: Lane) -> None:
    with pytest.raises(LaneBusy, match=lane.holder):
        await lane.come("invoke", on_busy="reject")


@act
async def resume(lane: Lane) -> None:
    with pytest.raises(Rejected, match=lane.holder):
        await lane.rt.resume(lane.last)


@act
async def get(lane: Lane) -> None:
    assert (await lane.rt.get(lane.last)).blocked_by == lane.holder


@act
async def listed(lane: Lane) -> None:
    assert [r.blocked_by for r in await lane.rt.runs(limit=10)] == [lane.holder] * 10


@act
async def looked_at(lane: Lane) -> None:
    assert [r.blocked_by for r in await lane.rt.look.runs(Wanted(limit=10), values=False)] == [lane.holder] * 10


async def filled(rt: Runtime, length: int) -> Lane:
    holder = await rt.invoke(chat, {"asks": True}, thread_id="t")
    assert holder.status == "waiting_for_human"
    for first in range(0, length, 100):
        await asyncio.gather(*[rt.submit(chat, {}, thread_id="t") for _ in range(min(100, length - first))])
    return Lane(rt, holder.run_id, (await rt.submit(chat, {}, thread_id="t")).run_id)


class Told(MemoryStore):
    """Counts the runs that it gives when it is asked for some."""

    given = 0

    async def runs(self, query: Any) -> Any:
        found = await super().runs(query)
        self.given += len(found)
        return found


async def test_the_first_in_the_way_is_read_and_no_more() -> None:
    """Over any store: what the engine asks for does not grow with the lane."""
    given: dict[str, list[int]] = {name: [] for name in ACTS}
    for length in (SHORT, LONG):
        async with Runtime(store := Told(), skills=[chat]) as rt:
            lane = await filled(rt, length)
            for name, do in ACTS.items():
                store.given = 0
                await do(lane)
                given[name].append(store.given)
    assert {name: counts for name, counts in given.items() if counts[0] != counts[1] or counts[0] > 14} == {}


@SQLITE
async def test_a_long_lane_costs_sqlite_no_more(tmp_path: Path) -> None:
    cost: dict[str, list[int]] = {name: [] for name in ACTS}
    for length in (SHORT, LONG):
        with counting_work() as done:
            async with Runtime(f"sqlite:///{tmp_path}/{length}.db", skills=[chat]) as rt:
                lane = await filled(rt, length)
                for name, do in ACTS.items():
                    before = done.steps
                    await do(lane)
                    cost[name].append(done.steps - before)
    assert {name: steps for name, steps in cost.items() if steps[1] > 1.1 * steps[0] + 50} == {}


@pytest.mark.parametrize("known", [False, True], ids=["quiet", "true"])
async def test_a_long_lane_costs_postgresql_no_more(known: bool) -> None:
    """Whether the statistics are of a time when nothing was queued or know of the queue: how a lane is looked at does not depend on what they say."""
    url, read = shared().fresh(), Counter[int]()
    async with Runtime(url, skills=[chat]) as rt:
        await asyncio.gather(*[rt.invoke(chat, {}) for _ in range(20)])
    with shared().admin("holdfast") as db:
        db.execute("ANALYZE holdfast.run")
        db.execute("ALTER TABLE holdfast.run SET (autovacuum_enabled = false)")  # or it would learn of the queue meanwhile
    async with Runtime(url, skills=[chat]) as rt:
        lane = await filled(rt, 5 * SHORT)
    for length in (5 * SHORT, LONG):
        async with Runtime(url, skills=[chat]) as rt:
            await asyncio.gather(*[rt.submit(chat, {}, thread_id="t") for _ in range(length - 5 * SHORT)])
        if known:
            with shared().admin("holdfast") as db:
                db.execute("ANALYZE holdfast.run")
        before = rows_read()
        async with Runtime(url, skills=[chat]) as rt:
            for name, do in ACTS.items():
                if name not in LOADS:
                    await do(Lane(rt, lane.holder, lane.last))
        read[length] = rows_read() - before
    assert read[LONG] <= read[5 * SHORT] + 60, read


@SQLITE
async def test_driving_those_before_costs_as_much_for_each_however_many_there_are(tmp_path: Path) -> None:
    """§4.16: whoever is far back in a lane drives those before it one after the other, and reads only the next of them each time."""
    each: list[float] = []
    for length in (SHORT, 5 * SHORT):
        with counting_work() as done:
            async with Runtime(f"sqlite:///{tmp_path}/{length}.db", skills=[chat]) as rt:
                for _ in range(length):
                    await rt.submit(chat, {}, thread_id="t")
                before = done.steps
                assert (await rt.invoke(chat, {}, thread_id="t")).status == "completed"
                each.append((done.steps - before) / length)
                assert {r.status for r in await rt.runs(limit=length + 1)} == {"completed"}
    assert each[1] <= 1.1 * each[0], each

"""X-20, §10.3: the wall clock starts and delays nothing. Whatever was asked for under a clock that was an hour ahead, or behind, begins at
once when the clock is right: nobody asked for a time."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Retry, Runtime, State, flow
from holdfast.core import events as ev
from holdfast.handle import Run
from holdfast.stores import MemoryStore
from holdfast.testing import open_store
from holdfast.testing.conformance import Script
from holdfast.testing.conformance_outbox import MAIL, intent, settle
from tests.postgres.server import shared

HOUR = 3600.0
PATIENCE = 20.0


class Wall:
    """The host's wall clock, which somebody sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.off, real, read = 0.0, time.time_ns, time.clock_gettime_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() + int(self.off * 1e9))
        monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: read(clock) + (int(self.off * 1e9) if clock == time.CLOCK_REALTIME else 0))


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    return Wall(monkeypatch)


class Note(State):
    text: str = ""


def skills(wall: Wall, wrong: float) -> list[Any]:
    failed = asyncio.Event()

    @flow("plain")
    async def plain(ctx: Context) -> str:
        return "done"

    @flow("asks")
    async def asks(ctx: Context) -> str:
        await ctx.approve("Go on?")
        return "done"

    @flow("listens")
    async def listens(ctx: Context) -> str:
        await ctx.wait("go", timeout=50 * HOUR)
        return "done"

    @flow("tries")
    async def tries(ctx: Context) -> str:
        """It fails under a wrong clock, which is set right between the failure and the next attempt."""

        async def once() -> str:
            if not failed.is_set():
                wall.off = wrong
                failed.set()
                raise ConnectionError("once")
            return "done"

        ended = asyncio.ensure_future(ctx.step(once, retry=Retry(max_attempts=2, base_us=50_000)))
        await failed.wait()
        wall.off = 0.0
        return await ended

    @flow("parent")
    async def parent(ctx: Context) -> str:
        return str(await ctx.child("plain"))

    mails = Graph("mails", Note, version="1")

    @mails.node(start=True)
    async def send(state: Note, ctx: Context) -> None:
        ctx.send("mail", {"to": "ann"})

    return [plain, asks, listens, tries, parent, mails]


Asked = Callable[[Runtime], Awaitable[Run[Any]]]


async def submitted(rt: Runtime) -> Run[Any]:
    return await rt.submit("plain")


async def delayed_by_nothing(rt: Runtime) -> Run[Any]:
    return await rt.submit("plain", delay=0)


async def asked_for_a_time_that_has_come(rt: Runtime) -> Run[Any]:
    """By the store's clock: a file goes by the wall clock, a database by its own (§1.9)."""
    return await rt.submit("plain", at=dt.datetime.fromtimestamp(rt.store.now() / 1e6, dt.UTC) - dt.timedelta(minutes=1))


async def a_follow_up(rt: Runtime) -> Run[Any]:
    """It waits its turn behind another of its thread."""
    await rt.submit("plain", thread_id="talk")
    return await rt.submit("plain", thread_id="talk")


async def an_approval(rt: Runtime) -> Run[Any]:
    run = await rt.invoke("asks")
    await rt.approve(run.run_id, actor="ann", drive=False)
    return run


async def a_signal(rt: Runtime) -> Run[Any]:
    run = await rt.invoke("listens")
    await rt.signal(run.run_id, "go", actor="ann")
    return run


async def a_retry(rt: Runtime) -> Run[Any]:
    return await rt.submit("tries")


async def a_child(rt: Runtime) -> Run[Any]:
    return await rt.submit("parent")


async def a_schedule(rt: Runtime) -> Run[Any]:
    made = await rt.schedule("plain", every=HOUR, id="hourly")
    run = await rt.trigger(made.id)
    await rt.unschedule(made.id)
    return run


async def a_fork(rt: Runtime) -> Run[Any]:
    return await rt.fork((await rt.invoke("plain")).run_id, drive=False)


async def an_act_to_send(rt: Runtime) -> Run[Any]:
    return await rt.submit("mails")


WAYS: list[Asked] = [
    submitted, delayed_by_nothing, asked_for_a_time_that_has_come, a_follow_up, an_approval, a_signal, a_retry, a_child, a_schedule, a_fork,
    an_act_to_send,
]
URLS = {"memory": "memory:", "sqlite": "sqlite:///{}/runs.db", "workspace": "workspace:{}/runs"}


@pytest.mark.parametrize("wrong", [26 * HOUR, -HOUR], ids=["ahead", "behind"])
@pytest.mark.parametrize("way", WAYS, ids=lambda w: w.__name__)
@pytest.mark.parametrize("url", URLS.values(), ids=list(URLS))
async def test_what_is_asked_for_begins_at_once(url: str, way: Asked, wrong: float, wall: Wall, tmp_path: Path) -> None:
    """X-20: asked for under a wrong clock, and done as soon as somebody works under the right one."""
    got: list[Any] = []

    async def mail(payload: Any, key: str) -> None:
        got.append(payload)

    async with Runtime(url.format(tmp_path), skills=skills(wall, wrong), transports={"mail": mail}) as rt:
        wall.off = wrong
        run = await way(rt)
        wall.off = 0.0
        stop = asyncio.Event()
        working = asyncio.ensure_future(rt.worker(stop=stop))
        assert await rt.result(run.run_id, timeout=PATIENCE) is not None
        while way is an_act_to_send and not got:
            await rt.store.wait_for_change(0.1)
        stop.set()
        await working


@pytest.mark.parametrize("jumps", [(HOUR, -HOUR), (-HOUR, HOUR), (HOUR, 2 * HOUR, 0.0)], ids=["forth", "back", "twice"])
async def test_the_clock_jumps_in_between(jumps: tuple[float, ...], wall: Wall, tmp_path: Path) -> None:
    """X-20: the follow-ups of one thread, each asked for under another clock, go in the order in which they were asked for."""
    said: list[int] = []

    @flow("says")
    async def says(ctx: Context, n: int) -> int:
        said.append(n)
        return n

    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[says]) as rt:
        runs = []
        for n, off in enumerate((0.0, *jumps)):
            wall.off = off
            runs.append(await rt.submit("says", {"n": n}, thread_id="talk"))
        wall.off = 0.0
        async with asyncio.timeout(PATIENCE):
            await rt.worker(until_idle=True)
        assert said == list(range(len(runs)))
        assert all(run.condition == "done" for run in await rt.runs())


@pytest.mark.one_store("the wall clock that jumps is that of a file's machine; a database goes by its own")
async def test_a_time_that_was_asked_for_is_kept(wall: Wall, tmp_path: Path) -> None:
    """§10.15: a delay is one; a clock that jumps there makes it due, and none begins before."""
    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=skills(wall, 0.0)) as rt:
        run = await rt.submit("plain", delay=HOUR)
        await rt.worker(until_idle=True)
        assert (await rt.get(run.run_id)).condition == "queued"
        wall.off = HOUR + 1
        await rt.worker(until_idle=True)
        assert (await rt.get(run.run_id)).condition == "done"


async def test_a_database_does_not_go_by_the_wall_clock(wall: Wall) -> None:
    """§1.9: the same over PostgreSQL, whose own time has not come because a worker's clock has jumped."""
    async with Runtime(shared().fresh(), skills=skills(wall, 0.0)) as rt:
        run = await rt.submit("plain", delay=HOUR)
        wall.off = HOUR + 1
        await rt.worker(until_idle=True)
        assert (await rt.get(run.run_id)).condition == "queued"


@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["ahead", "behind"])
@pytest.mark.parametrize("url", URLS.values(), ids=list(URLS))
async def test_a_lease_neither_ends_nor_lasts_by_the_wall_clock(url: str, jump: float, wall: Wall, tmp_path: Path) -> None:
    """X-13, §10.3: whoever drives a run or sends an intent keeps it while the clock jumps, and loses it by its time alone; renewed or not."""
    hold, short = 60_000_000, 150_000
    async with open_store(url.format(tmp_path)) as store:
        await store.register("w", hold)
        await store.register("v", 60 * hold)
        script = await Script(store, "r1").begin("w")
        await script.write(script.commit(ev.NoteAdded("sends"), intents=tuple(intent("r1", n, 0) for n in ("a", "b"))))
        (kept, lost) = await store.claim_intents("w", MAIL, limit=2, ttl_us=hold)
        for off in (jump, 0.0):
            wall.off = off
            assert await store.claim("v", (), None, limit=1) == []
            assert await store.claim_intents("v", MAIL, limit=2, ttl_us=hold) == []
            found = await store.get("r1")
            assert found is not None and found[1].live(store.now())
            await store.renew_intents("w", hold)
            await store.renew("w", hold)
        assert await settle(store, kept)
        await store.renew_intents("w", short)
        await store.renew("w", short)
        wall.off = jump
        taken: list[Any] = []
        claims: list[Any] = []
        async with asyncio.timeout(PATIENCE):
            while not (taken and claims):
                taken = taken or await store.claim_intents("v", MAIL, limit=2, ttl_us=hold)
                claims = claims or await store.claim("v", (), None, limit=1)
                await store.wait_for_change(0.02)
        assert ([i.intent_id for i in taken], [c.run_id for c in claims]) == ([lost.intent_id], ["r1"])


@pytest.mark.parametrize("off", [-600, 600])
async def test_what_is_stored_is_told_by_the_stores_time(off: int) -> None:
    """§1.9: a worker's clock measures spans only. One that is ten minutes wrong puts no deadline, no retry and no attempt ten minutes off."""
    store = MemoryStore(now=lambda: time.time_ns() // 1000 + off * 1_000_000)

    @flow("sleeps", version="1")
    async def sleeps(ctx: Context) -> None:
        await ctx.sleep(HOUR)

    @flow("asks", version="1")
    async def asks(ctx: Context) -> None:
        await ctx.effect(len, "abc", key="e")
        await ctx.approve("Go?", timeout=HOUR)

    def near(moment: dt.datetime | None, wanted: float) -> bool:
        return moment is not None and abs(moment.timestamp() - store.now() / 1e6 - wanted) < 60

    async with Runtime(store, skills=[sleeps, asks]) as rt, asyncio.timeout(PATIENCE):
        for skill in (sleeps, asks):
            run = await rt.submit(skill)
            driven = asyncio.create_task(rt.resume(run.run_id))
            while not (run := await rt.get(run.run_id)).waits:
                await store.wait_for_change(0.02)
            driven.cancel()  # it would wait until the sleep is over
            await asyncio.wait([driven])
            (wait,) = run.waits
            assert near(wait.requested_at, 0) and near(wait.deadline, HOUR)
        (effect,) = await store.effects(run.run_id)
        assert effect.attempted_at is not None and abs(effect.attempted_at - store.now()) < 60_000_000

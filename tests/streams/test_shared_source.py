"""What it costs that many follow one run: the reads of one, whoever else listens; and none of them misses, repeats or sees anything out of order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import END, Context, Graph, Runtime, State
from holdfast.access import NOBODY
from holdfast.api.streams import Beat, Wires, one
from holdfast.core.codec import Row
from holdfast.core.errors import HoldfastError
from holdfast.engine.look.sources import SharedSource
from holdfast.handle import StreamPart
from holdfast.stores import MemoryStore
from tests.engine.test_reads_counted import Told, opened

LISTENERS = 60
STEPS = 25


class Count(State):
    n: int = 0
    until: int = STEPS


def talker(go: asyncio.Event | None = None) -> Graph[Count]:
    graph = Graph("talker", Count)

    @graph.node(start=True)
    async def say(state: Count, ctx: Context) -> dict[str, Any]:
        if go is not None and not state.n:
            await go.wait()
        ctx.emit(state.n)
        return {"n": state.n + 1}

    graph.branch("say", lambda s: "say" if s.n < s.until else END)
    return graph


async def heard(rt: Runtime, run_id: str, source: SharedSource | None, up: asyncio.Event | None = None) -> list[tuple[str, Any]]:
    """All that a listener is given, in order."""
    out: list[tuple[str, Any]] = []
    feed = rt.follower(run_id, source=source)
    while True:
        async for part in feed.ready():
            out.append(told(part))
        if up is not None:
            up.set()
        if feed.over:
            return out
        await feed.news(0.5)


def told(part: StreamPart) -> tuple[str, Any]:
    return (part.mode, part.data.seq) if part.mode == "events" else (part.mode, part.data)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
async def test_many_listeners_read_what_one_reads(kind: str, tmp_path: Path) -> None:
    """Issue «Serve», 5: each gets everything, and the log is read a few times a commit, not once for each listener."""
    go, store = asyncio.Event(), opened(kind, tmp_path)
    async with asyncio.timeout(60), Runtime(store, skills=[g := talker(go)]) as rt:
        run = await rt.submit(g)
        source, ups = SharedSource(rt.store, rt.look), [asyncio.Event() for _ in range(LISTENERS)]
        listeners = [asyncio.ensure_future(heard(rt, run.run_id, source, up)) for up in ups]
        await asyncio.gather(*(up.wait() for up in ups))
        store.since()
        driving = asyncio.ensure_future(rt.resume(run.run_id))
        go.set()
        done = await driving
        lists = await asyncio.gather(*listeners)
        asked = store.since()
        alone = await heard(rt, run.run_id, None)
        seqs = [e.seq for e in await rt.events(run.run_id)]
        for given in lists:
            assert [seq for mode, seq in given if mode == "events"] == seqs
            assert [n for mode, n in given if mode == "custom"] == list(range(STEPS))
        assert [x for x in alone if x[0] == "events"] == [x for x in lists[0] if x[0] == "events"]
        assert asked["rows"] < 5 * done.version and asked["chunks"] < 5 * done.version, asked


async def test_what_was_emitted_comes_before_the_event_that_replaces_it(tmp_path: Path) -> None:
    """§13.6: also for those that come at any time, and share what others have read."""
    store = opened("sqlite", tmp_path)
    async with asyncio.timeout(60), Runtime(store, skills=[g := talker()]) as rt:
        run = await rt.submit(g)
        source = SharedSource(rt.store, rt.look)
        listeners = [asyncio.ensure_future(heard(rt, run.run_id, source))]
        driving = asyncio.ensure_future(rt.resume(run.run_id))
        while not driving.done():
            await rt.store.wait_for_change(0.5)
            listeners.append(asyncio.ensure_future(heard(rt, run.run_id, source)))
        ends = [e.seq for e in await rt.events(run.run_id) if e.type == "step.completed"]
        for given in await asyncio.gather(*listeners):
            assert Counter(given).most_common(1)[0][1] == 1, "nothing twice"
            for n in (n for mode, n in given if mode == "custom"):
                assert given.index(("custom", n)) < given.index(("events", ends[n])), (n, given)


async def test_those_who_wait_at_another_run_are_not_woken(tmp_path: Path) -> None:
    """Idle listeners cost one read a change for each place, and nothing of their own."""
    store = opened("sqlite", tmp_path)
    async with asyncio.timeout(60), Runtime(store, skills=[g := talker()]) as rt:
        resting, source = await rt.submit(g, delay=3600), SharedSource(rt.store, rt.look)
        woken, up = Counter[str](), asyncio.Event()

        async def idle() -> None:
            feed = rt.follower(resting.run_id, source=source)
            while True:
                async for _ in feed.ready():
                    pass
                woken["looks"] += 1
                if woken["looks"] == LISTENERS:
                    up.set()
                await feed.news(60)

        idlers = [asyncio.ensure_future(idle()) for _ in range(LISTENERS)]
        await up.wait()
        await rt.invoke(g)
        assert woken["looks"] <= 2 * LISTENERS, "once more, at most"
        for each in idlers:
            each.cancel()
        await asyncio.gather(*idlers, return_exceptions=True)


async def test_whoever_waits_is_told_that_the_store_is_gone(tmp_path: Path) -> None:
    store: Told = opened("memory", tmp_path)
    async with asyncio.timeout(60), Runtime(store, skills=[g := talker()]) as rt:
        run = await rt.submit(g, delay=3600)
        source, ups = SharedSource(rt.store, rt.look), [asyncio.Event() for _ in range(3)]
        listeners = [asyncio.ensure_future(heard(rt, run.run_id, source, up)) for up in ups]
        await asyncio.gather(*(up.wait() for up in ups))
    for found in await asyncio.gather(*listeners, return_exceptions=True):
        assert isinstance(found, HoldfastError), found


class Between(MemoryStore):
    """Something is committed after a reader has seen the run and before it reads the log."""

    act: Callable[[], Awaitable[Any]] | None = None

    async def rows(self, run_id: str, after: int = 0, limit: int | None = None) -> list[Row]:
        act, self.act = self.act, None
        if act is not None:
            await act()
        return await super().rows(run_id, after, limit)


async def allowed() -> bool:
    return True


@pytest.mark.parametrize("name", ["the end", "a question", "both"])
async def test_a_commit_between_two_reads_of_a_look_is_told(name: str) -> None:
    """The run was read as it stood before its last commit, and the log with it: the stream still says that the run rests, after its events, and ends."""
    graph = Graph("asks", Count)

    @graph.node(start=True)
    async def ask(state: Count, ctx: Context) -> dict[str, Any]:
        if name == "the end":
            return {"n": 1}
        await ctx.approve("Go on?")
        return {"n": 1}

    async with asyncio.timeout(60), Runtime(store := Between(), skills=[graph]) as rt:
        run = await rt.submit(graph)

        async def act() -> None:
            await rt.resume(run.run_id)
            if name == "both":
                await rt.approve(run.run_id)

        store.act = act
        said = ""
        async for piece in one(rt, Wires(SharedSource(store, rt.look)), run.run_id, NOBODY, None, ["events"], Beat(allowed, asyncio.Event())):
            said += piece.decode()
            if name == "a question" and "event: rest" in said:
                break
        kinds = [line.removeprefix("event: ") for line in said.splitlines() if line.startswith("event: ")]
        assert kinds[-1] == "rest" and said.count("event: rest") == 1
        assert kinds[:-1] == [e.type for e in await rt.events(run.run_id)]

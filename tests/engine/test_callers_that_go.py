"""Whoever calls a runtime may go at any moment (`asyncio.timeout`, a request that is broken off): whoever calls next is served."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import traceback
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, Send, State, append, flow
from holdfast.core.commit import Commit, Tip
from holdfast.core.errors import Rejected, StoreClosed, StoreError, StoreUnavailable
from holdfast.stores import MemoryStore
from holdfast.testing.clock import VirtualClock
from tests.postgres.server import shared

TURNS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610)
"""After so many turns of the loop the caller goes: a server takes some hundred of them."""


@flow("greet")
async def greet(ctx: Context) -> str:
    return "hello"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store of its own each time, or an emptied one."""

    def made() -> Iterator[str]:
        for n in range(2 * len(TURNS)):
            yield {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/{n}.db"}.get(request.param) or shared().fresh("first")

    return made()


@flow("asks")
async def asks(ctx: Context) -> str:
    await ctx.approve("go on?")
    return str(await ctx.wait("go"))


async def go_after(turns: int, call: Awaitable[object]) -> bool:
    """Whether the call was broken off."""
    calling = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    calling.cancel()
    with contextlib.suppress(asyncio.CancelledError, Rejected):  # there may have been nothing to do
        await calling
    return calling.cancelled()


async def call_and_go(rt: Runtime, turns: int) -> None:
    await go_after(turns, rt.invoke(greet, {}))


async def test_whoever_goes_during_a_command_can_give_it_again(urls: Iterator[str]) -> None:
    """It was followed, or it was not; either way the run goes on when it is given once more."""
    async with Runtime(next(urls), skills=[asks]) as rt:
        for turns in TURNS:
            run = await rt.invoke(asks, {})
            await go_after(turns, rt.approve(run.run_id))
            with contextlib.suppress(Rejected):  # it is on record
                await rt.approve(run.run_id)
            await go_after(turns, rt.resume(run.run_id))
            await go_on(rt, run.run_id)
            for _ in range(2):
                await go_after(turns, rt.signal(run.run_id, "go", "on", key="one"))
            await rt.signal(run.run_id, "go", "on", key="one")
            await go_after(turns, rt.resume(run.run_id))
            await go_on(rt, run.run_id)
            ended = await rt.get(run.run_id)
            assert (ended.status, ended.result) == ("completed", "on"), turns
            second = await rt.invoke(asks, {})
            await go_after(turns, rt.cancel(second.run_id))
            with contextlib.suppress(Rejected):  # it is on record
                async with asyncio.timeout(60):
                    await rt.cancel(second.run_id)
            assert (await rt.get(second.run_id)).status == "canceled", turns


async def go_on(rt: Runtime, run_id: str) -> None:
    with contextlib.suppress(Rejected):  # it waits, or has ended
        async with asyncio.timeout(60):
            await rt.resume(run_id)


async def test_whoever_goes_during_the_first_call_leaves_a_runtime_that_works(urls: Iterator[str]) -> None:
    for turns in TURNS:
        async with Runtime(next(urls), skills=[greet]) as rt:
            await call_and_go(rt, turns)
            assert await rt.run(greet) == "hello"
            assert len(await rt.store.workers()) == 1


async def test_a_runtime_that_is_closed_meanwhile_leaves_no_worker(urls: Iterator[str], tmp_path: Path) -> None:
    """Its registration comes to its end first, and is taken back."""
    for turns in TURNS:
        url = next(urls)
        if url == "memory://":
            continue
        async with Runtime(url, skills=[greet]) as rt:
            await call_and_go(rt, turns)
        async with Runtime(url, skills=[greet]) as rt:
            assert await rt.store.workers() == []


def held() -> tuple[int, list[str]]:
    """How many files and sockets this process has open, and its threads of Holdfast's."""
    return len(os.listdir("/proc/self/fd")), sorted(t.name for t in threading.enumerate() if t.name.startswith("holdfast-"))


async def test_whoever_goes_while_it_is_opened_or_closed_leaves_nothing_behind(urls: Iterator[str]) -> None:
    before, (url, other) = held(), (next(urls), next(urls))
    for turns in TURNS:
        rt = Runtime(url, skills=[greet])
        if not await go_after(turns, rt.__aenter__()):
            await rt.close()
        async with rt:
            assert await rt.run(greet) == "hello"
        rt = await Runtime(other, skills=[greet]).__aenter__()
        assert await rt.run(greet) == "hello"
        await go_after(turns + 1, rt.close())  # after none it would not have begun
        async with rt:
            assert await rt.run(greet) == "hello"
        if turns < 3:
            before = held()[0], before[1]  # what is loaded or made once
        assert held() == before, turns


class Unanswered(MemoryStore):
    """Loses the answer to the first registration, which came through or did not."""

    def __init__(self, *, comes_through: bool) -> None:
        super().__init__()
        self.comes_through = comes_through
        self.lost = False

    async def register(self, owner: str, ttl_us: int) -> None:
        if self.lost or self.comes_through:
            await super().register(owner, ttl_us)
        if not self.lost:
            self.lost = True
            raise StoreUnavailable("the answer was lost")


@pytest.mark.parametrize("comes_through", [False, True])
async def test_a_registration_whose_answer_is_lost_is_made_anew(comes_through: bool) -> None:
    """No name is registered twice, so it is made under another one; and it is that one's lease that counts from then on."""
    clock = VirtualClock()
    async with Runtime(Unanswered(comes_through=comes_through), skills=[greet], clock=clock) as rt:
        with pytest.raises(StoreUnavailable):
            await rt.run(greet)
        clock.advance(60)
        assert await rt.run(greet) == "hello"


async def test_runs_that_are_stopped_together_show_their_own_frames(urls: Iterator[str]) -> None:
    """Each caller of a runtime that is closed under its runs gets an error of its own; else each printed the frames of all of them."""
    begun, never = asyncio.Semaphore(0), asyncio.Event()

    @flow("waits", version="1")
    async def waits(ctx: Context) -> None:
        begun.release()
        await never.wait()

    async with Runtime(next(urls), skills=[waits]) as rt:
        callers = [asyncio.ensure_future(rt.invoke(waits, {})) for _ in range(20)]
        async with asyncio.timeout(60):
            for _ in callers:
                await begun.acquire()
    errors = await asyncio.gather(*callers, return_exceptions=True)
    assert {type(e) for e in errors} == {StoreClosed} and len({id(e) for e in errors}) == len(errors)
    assert max(len(traceback.extract_tb(e.__traceback__)) for e in errors if isinstance(e, StoreClosed)) < 40


class Full(State):
    out: Annotated[list[int], append]


class Failing(MemoryStore):
    """Takes nothing any more once the tasks of a fan-out are on record."""

    fails = False

    async def commit(self, commit: Commit) -> Tip:
        if self.fails:
            raise StoreError("the disk is gone")
        self.fails = commit.checkpoint is not None and len(commit.checkpoint.pending) > 1
        return await super().commit(commit)


async def test_tasks_that_lose_their_store_together_show_their_own_frames() -> None:
    """The run's error is that of the commit, and not that of each task that met it afterwards."""
    graph: Graph[Full] = Graph("full", Full, version="1")

    @graph.node(start=True)
    async def plan(state: Full) -> list[Send]:
        return [Send("task", n) for n in range(60)]

    @graph.node
    async def task(state: Full, ctx: Context) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"out": [await ctx.step(same, ctx.payload)]}

    async with Runtime(Failing(), skills=[graph]) as rt:
        with pytest.raises(StoreError, match="the disk is gone") as caught:
            await rt.invoke(graph, {})
    assert len(traceback.extract_tb(caught.value.__traceback__)) < 60


async def same(n: int) -> int:
    return n

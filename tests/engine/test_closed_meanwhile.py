"""A runtime is closed while a call is at its beginning (X-18): the call ends with `StoreClosed`, and no error of Holdfast becomes the outcome of a step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Limit, Runtime, State
from holdfast.core.errors import StoreClosed
from holdfast.core.status import Status
from holdfast.stores import MemoryStore
from holdfast.stores.sqlite import writer
from tests.postgres.server import shared

TURNS = (*range(12), 14, 17, 21, 26, 33, 42)
"""After so many turns of the loop the runtime is closed."""


class Work(State):
    n: int = 0


graph = Graph("work", Work)


@graph.node(start=True)
async def first(state: Work) -> dict[str, int]:
    return {"n": 1}


@graph.node(after="first")
def in_a_thread(state: Work) -> dict[str, int]:
    return {"n": 2}


@graph.node(after="in_a_thread")
async def with_calls(state: Work, ctx: Context) -> dict[str, int]:
    return {"n": await ctx.step(abs, 3) + await ctx.effect(abs, 1, idempotent=True)}


async def submit_and_recover(rt: Runtime) -> None:
    await rt.submit(graph, {})
    await rt.recover()


async def submit_and_work(rt: Runtime) -> None:
    await rt.submit(graph, {})
    await rt.worker(until_idle=True)


async def two(rt: Runtime) -> None:
    await asyncio.gather(rt.invoke(graph, {}), rt.invoke(graph, {}))


async def limit(rt: Runtime) -> None:
    await rt.set_limit("mail", Limit(in_flight=1), actor="anna")


CALLS: dict[str, Callable[[Runtime], Awaitable[Any]]] = {
    "invoke": lambda rt: rt.invoke(graph, {}),
    "invoke_in_a_thread": lambda rt: rt.invoke(graph, {}, thread_id="t"),
    "submit": lambda rt: rt.submit(graph, {}),
    "recover": submit_and_recover, "worker": submit_and_work, "two": two, "limit": limit,
}


WRITTEN = (CALLS["submit"], CALLS["limit"])
"""What is written at once, or not at all."""


@pytest.fixture(params=["memory", "sqlite", "slow", "postgres"])
def urls(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A store of its own each time. A slow database is written in a thread."""

    def made() -> Iterator[Any]:
        for n in range(len(TURNS)):
            match request.param:
                case "memory":
                    yield MemoryStore()
                case "postgres":
                    yield shared().fresh("closed")
                case _:
                    yield f"sqlite:///{tmp_path}/{n}.db"

    if request.param == "slow":
        monkeypatch.setattr(writer, "SLOW", 0.0)
    return made()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
async def test_a_call_that_has_just_begun_ends_with_store_closed(urls: Iterator[Any], call: Callable[[Runtime], Awaitable[Any]], used: bool) -> None:
    ended = False
    for turns, store in zip(TURNS, urls, strict=False):
        rt = Runtime(store, skills=[graph])
        await rt.__aenter__()
        if used:
            await rt.invoke(graph, {})
        calling = asyncio.ensure_future(call(rt))
        for _ in range(turns):
            await asyncio.sleep(0)
        await rt.close()
        async with asyncio.timeout(60):
            (came,) = await asyncio.gather(calling, return_exceptions=True)
        assert not isinstance(came, BaseException) or type(came) is StoreClosed, (turns, repr(came))
        ended = ended or isinstance(came, StoreClosed)
        async with Runtime(store, skills=[graph]) as rt:
            assert [r.error for r in await rt.runs()] == [None] * len(await rt.runs())
            await rt.worker(until_idle=True)
            assert {r.status for r in await rt.runs()} <= {Status.COMPLETED}
    assert ended or call in WRITTEN

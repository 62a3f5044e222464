"""§5.11: which run of a thread a signal is for, and that the same key is for the same run."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, State, append
from holdfast.core.errors import RunNotFound, SignalConflict
from holdfast.engine.desk import door
from holdfast.engine.keep.check import keeper
from holdfast.engine.look.recipients import SHELF, recipient
from tests.engine.outside import House
from tests.http.support import served
from tests.postgres.server import shared

DAY = 86_400.0


class Mail(State):
    news: Annotated[list[str], append]
    got: Annotated[list[str], append]


def listening() -> Graph[Mail]:
    graph = Graph("listening", Mail, version="1")

    @graph.node(start=True)
    async def main(state: Mail, ctx: Context) -> dict[str, Any]:
        return {"got": [await ctx.wait("news"), await ctx.wait("news")]}

    return graph


@pytest.fixture(params=["memory", "sqlite", "workspace", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {
        "memory": lambda: "memory:",
        "sqlite": lambda: f"sqlite:///{tmp_path}/runs.db",
        "workspace": lambda: f"workspace:{tmp_path}/runs",
        "postgres": lambda: shared().fresh(),
    }[request.param]()


async def test_the_same_key_is_for_the_same_run(url: str) -> None:
    """By the time that a sender without an answer sends it again, the run has ended, and the thread's next run listens too."""
    graph = listening()
    async with Runtime(url, skills=[graph]) as rt:
        first = await rt.submit(graph, {}, thread_id="t")
        for word in ("a", "b"):
            assert (await rt.signal("t", "news", word, key=word)).run_id == first.run_id
        await rt.worker(until_idle=True)
        ended = await rt.get(first.run_id)
        assert ended.status == "completed" and ended.state.got == ["a", "b"]
        assert (await rt.signal("t", "news", "a", key="a")).record.version == ended.record.version
        with pytest.raises(RunNotFound):
            await rt.signal("no such thread", "news", "a", key="a")
        second = await rt.submit(graph, {}, thread_id="t")
        assert (await rt.signal("t", "news", "b", key="b")).run_id == first.run_id
        assert (await rt.get(second.run_id)).signals == ()
        assert (await rt.signal("t", "news", "a", key="c")).run_id == second.run_id
        with pytest.raises(SignalConflict, match="the key 'c' was used with another payload"):
            await rt.signal("t", "news", "other", key="c")
        assert (await rt.signal("t", "news", "new", key="a")).run_id == second.run_id, "what says something else is not the same again"
        assert (await rt.signal("t", "weather", "a", key="a")).run_id == second.run_id, "a key belongs to a name"
        assert (await rt.signal("t", "news", "a")).run_id == second.run_id, "without a key each is another signal"


@pytest.mark.parametrize("keyed", [lambda n: ({"Idempotency-Key": "k"}, {}), lambda n: ({}, {"key": "k"}), lambda n: ({"Idempotency-Key": f"k{n}"}, {"key": "k"})])
async def test_over_http_too(keyed: Callable[[int], tuple[dict[str, str], dict[str, str]]]) -> None:
    """§16.5: the server that took it died before it answered; another one, which has no answer of it, gets the same request."""
    graph = listening()
    async with Runtime("memory:", skills=[graph]) as rt:
        first = await rt.submit(graph, {}, thread_id="t")
        for attempt in range(3):
            async with served(rt, tokens=False) as http:
                headers, body = keyed(attempt)
                said = await http.post("/v1/threads/t/signal", json={"name": "news", "payload": "a", **body}, headers=headers)
                assert (said.status_code, said.json()["run_id"]) == (202, first.run_id), said.text
            await rt.signal(first.run_id, "news", "b", key="b")
            await rt.worker(until_idle=True)
            assert (await rt.get(first.run_id)).state.got == ["a", "b"]
            answers = rt.shelf("holdfast.answers")
            await answers.delete("")  # what the server kept of its answer goes with it
            await rt.submit(graph, {}, thread_id="t", key="next")


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    h = House(request.param, tmp_path)
    yield h
    await h.close()


async def chosen(rt: Runtime) -> str | None:
    said = door.signal("news", "a", key="k", actor="ada", fresh="")
    try:
        return (await recipient(rt.store, "t", said, keyed=True)).run_id
    except RunNotFound:
        return None


async def test_a_run_that_ended_without_the_signal_is_followed_by_the_next(house: House) -> None:
    """Its sender had chosen a run and died before it delivered. Of those who send it again at once, all choose the same next run."""
    graph = listening()
    rt = await house.process(graph)
    first = await rt.submit(graph, {}, thread_id="t")
    assert [await chosen(rt) for _ in range(3)] == [first.run_id] * 3
    await rt.cancel(first.run_id)
    assert await chosen(rt) is None
    later = [(await rt.submit(graph, {}, thread_id="t")).run_id for _ in range(2)]
    one = set(await asyncio.gather(*(chosen(rt) for _ in range(8))))
    assert len(one) == 1 and one < set(later)
    assert {(await rt.signal("t", "news", "a", key="k")).run_id} == one


async def test_a_choice_goes_with_its_run(house: House) -> None:
    graph = listening()
    rt = await house.process(graph)
    kept = rt.shelf(SHELF)
    first = await rt.submit(graph, {}, thread_id="t")
    await rt.signal("t", "news", "a", key="k")
    await rt.cancel(first.run_id)
    house.clock.forward(10 * DAY)
    second = await rt.submit(graph, {}, thread_id="t")
    await rt.signal("t", "news", "b", key="l")
    assert sorted(v.decode() for _, v in await kept.scan()) == sorted([first.run_id, second.run_id])
    await rt.prune(dt.timedelta(days=5), dry=True)
    assert len(await kept.scan()) == 2
    assert (await rt.prune(dt.timedelta(days=5))).run_ids == (first.run_id,)
    assert [v.decode() for _, v in await kept.scan()] == [second.run_id]


async def test_a_choice_whose_prune_was_ended_goes_with_the_next(house: House) -> None:
    """The lineage was gone, and then the process was killed: what the shelf says of it is not left there for ever."""
    graph = listening()
    rt = await house.process(graph)
    kept = rt.shelf(SHELF)
    run = await rt.submit(graph, {}, thread_id="t")
    await rt.signal("t", "news", "a", key="k")
    await rt.cancel(run.run_id)
    house.clock.forward(10 * DAY)
    assert (await keeper(rt.store).prune(rt.store.now())).run_ids == (run.run_id,)
    assert len(await kept.scan()) == 1
    assert (await rt.prune(dt.timedelta(days=5))).run_ids == ()
    assert await kept.scan() == []

"""What it costs to follow many runs: one look for all who do, and of each run one look at what it holds (§16.7)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from holdfast import Runtime
from holdfast.api.boards import Boards
from holdfast.api.streams import Beat, encode_run, many
from holdfast.core.errors import StoreUnavailable
from holdfast.engine.look.looker import Wanted
from holdfast.stores import SqliteStore
from tests.http.support import graph

LISTENERS, RUNS = 30, 20


class Counting(SqliteStore):
    """Counts what is asked, and may be away."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "a.db")
        self.asked: Counter[str] = Counter()
        self.away = False
        self.missed = asyncio.Event()

    async def runs(self, *asked: Any, **more: Any) -> Any:
        self.asked["runs"] += 1
        if self.away:
            self.missed.set()
            raise StoreUnavailable("away")
        return await super().runs(*asked, **more)

    async def heads(self, run_ids: Any) -> Any:
        self.asked["heads"] += len(run_ids)
        return await super().heads(run_ids)


async def hold(_: None = None) -> bool:
    return True


def listener(boards: Boards, wanted: Wanted) -> AsyncIterator[bytes]:
    return many(boards, wanted, Beat(hold, asyncio.Event()))


async def read(stream: AsyncIterator[bytes], words: int) -> bytes:
    """So many runs of a stream."""
    told = b""
    while told.count(b"event: run\n") < words:
        told += await anext(stream)
    return told


async def test_listeners_of_the_same_runs_share_the_looks(tmp_path: Path) -> None:
    """A server with fifty listeners read all runs for each of them with each commit: a few runs took all its time."""
    store = Counting(tmp_path)
    async with Runtime(store, skills=[g := graph()]) as rt, asyncio.timeout(60):
        runs = [await rt.invoke(g, {"name": "Ada"}) for _ in range(RUNS)]
        boards = Boards(rt.store, rt.look, encode_run)
        streams = [listener(boards, Wanted(limit=500)) for _ in range(LISTENERS)]
        store.asked.clear()
        begun = await asyncio.gather(*(read(each, RUNS) for each in streams))
        assert len(set(begun)) == 1 and all(run.run_id.encode() in begun[0] for run in runs)
        assert store.asked["runs"] <= 3 and store.asked["heads"] == RUNS
        store.asked.clear()
        following = [asyncio.ensure_future(read(each, 1)) for each in streams]
        await asyncio.sleep(0)
        await rt.approve(runs[3].run_id, drive=False)
        told = await asyncio.gather(*following)
        assert all(runs[3].run_id.encode() in each for each in told)
        assert store.asked["heads"] <= 2 and store.asked["runs"] <= 5
        for each in streams:
            await each.aclose()  # type: ignore[attr-defined]


async def test_who_follows_many_runs_outlasts_a_store_that_is_away(tmp_path: Path) -> None:
    """§1.5: what has happened meanwhile is told once the store is well again."""
    store = Counting(tmp_path)
    async with Runtime(store, skills=[g := graph()]) as rt, asyncio.timeout(60):
        run = await rt.invoke(g, {"name": "Ada"})
        stream = listener(Boards(rt.store, rt.look, encode_run), Wanted(limit=500))
        await read(stream, 1)
        store.away = True
        following = asyncio.ensure_future(read(stream, 1))
        await rt.approve(run.run_id, drive=False)
        await store.missed.wait()
        store.away = False
        assert run.run_id.encode() in await following
        await stream.aclose()  # type: ignore[attr-defined]

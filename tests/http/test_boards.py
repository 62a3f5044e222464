"""What it costs to follow many runs: one look for all who do, and of each run one look at what it holds (§16.7)."""

from __future__ import annotations

import asyncio
import json
import re
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
        self.failing = 0
        self.missed = asyncio.Event()

    async def runs(self, *asked: Any, **more: Any) -> Any:
        self.asked["runs"] += 1
        if self.away:
            self.missed.set()
            raise StoreUnavailable("away")
        return await super().runs(*asked, **more)

    async def get(self, *asked: Any, **more: Any) -> Any:
        self.asked["get"] += 1
        if self.failing:
            self.failing -= 1
            raise StoreUnavailable("away")
        return await super().get(*asked, **more)

    async def heads(self, run_ids: Any) -> Any:
        self.asked["heads"] += len(run_ids)
        return await super().heads(run_ids)


async def hold(_: None = None) -> bool:
    return True


def listener(boards: Boards, wanted: Wanted) -> AsyncIterator[bytes]:
    return many(boards, wanted, Beat(hold, asyncio.Event()))


async def read(stream: AsyncIterator[bytes], words: int, kind: bytes = b"run") -> bytes:
    """So many runs of a stream."""
    told = b""
    while told.count(b"event: " + kind + b"\n") < words:
        told += await anext(stream)
    return told


def data_of(told: bytes, kind: str) -> list[dict[str, Any]]:
    """What the events of one kind say."""
    return [json.loads(data) for data in re.findall(rf"event: {kind}\ndata: (.*)\n", told.decode())]


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


async def test_who_follows_some_runs_is_told_which_of_them_leave(tmp_path: Path) -> None:
    """§16.7: a listener of the runs that wait would go on showing one that has ended. It is told once per run, from one look for all listeners."""
    store = Counting(tmp_path)
    async with Runtime(store, skills=[g := graph()]) as rt, asyncio.timeout(60):
        answered, pruned, stays = [await rt.invoke(g, {"name": "Ada"}) for _ in range(3)]
        boards = Boards(rt.store, rt.look, encode_run)
        streams = [listener(boards, Wanted(status="waiting_for_human", limit=500)) for _ in range(LISTENERS)]
        await asyncio.gather(*(read(each, 3) for each in streams))
        store.asked.clear()
        following = [asyncio.ensure_future(read(each, 1, b"left")) for each in streams]
        await rt.approve(answered.run_id)
        left = [data_of(told, "left") for told in await asyncio.gather(*following)]
        run = await rt.get(answered.run_id)
        assert left == [[{"run_id": run.run_id, "version": run.record.version, "status": "completed", "condition": "done"}]] * LISTENERS
        assert store.asked["get"] < 2 * LISTENERS, "one look for all"
        await rt.cancel(pruned.run_id)
        following = [asyncio.ensure_future(read(each, 1, b"left")) for each in streams]
        assert {data_of(told, "left")[0]["run_id"] for told in await asyncio.gather(*following)} == {pruned.run_id}
        assert not [told for told in left for one in told if one["run_id"] == stays.run_id]
        for each in streams:
            await each.aclose()  # type: ignore[attr-defined]


async def test_who_follows_some_runs_is_told_of_one_that_is_pruned(tmp_path: Path) -> None:
    async with Runtime(f"sqlite:///{tmp_path}/a.db", skills=[g := graph()]) as rt, asyncio.timeout(60):
        run = await rt.invoke(g, {"name": "quick"})
        stream = listener(Boards(rt.store, rt.look, encode_run), Wanted(status="completed", limit=500))
        await read(stream, 1)
        await rt.prune(older_than=0)
        told = data_of(await read(stream, 1, b"left"), "left")
        assert told == [{"run_id": run.run_id, "version": None, "status": None, "condition": None}]
        await stream.aclose()  # type: ignore[attr-defined]


async def test_a_run_that_comes_back_is_told_of_again_and_one_beyond_the_limit_has_left(tmp_path: Path) -> None:
    async with Runtime(f"sqlite:///{tmp_path}/a.db", skills=[g := graph()]) as rt, asyncio.timeout(60):
        run = await rt.invoke(g, {"name": "Ada"})
        boards = Boards(rt.store, rt.look, encode_run)
        waiting, newest = listener(boards, Wanted(status="waiting_for_human", limit=500)), listener(boards, Wanted(limit=1))
        await asyncio.gather(read(waiting, 1), read(newest, 1))
        await rt.cancel(run.run_id)
        assert data_of(await read(waiting, 1, b"left"), "left")[0]["status"] == "canceled"
        await rt.resume(run.run_id)
        assert data_of(await read(waiting, 1), "run")[0]["run_id"] == run.run_id
        await rt.invoke(g, {"name": "Ada"})
        assert data_of(await read(newest, 1, b"left"), "left")[0] == {
            "run_id": run.run_id, "version": (await rt.get(run.run_id)).record.version, "status": "waiting_for_human", "condition": "awaiting_gate_decision"
        }
        for each in (waiting, newest):
            await each.aclose()  # type: ignore[attr-defined]


async def test_a_run_that_leaves_while_the_store_is_away_is_told_of_later(tmp_path: Path) -> None:
    store = Counting(tmp_path)
    async with Runtime(store, skills=[g := graph()]) as rt, asyncio.timeout(60):
        run = await rt.invoke(g, {"name": "Ada"})
        stream = listener(Boards(rt.store, rt.look, encode_run), Wanted(status="waiting_for_human", limit=500))
        await read(stream, 1)
        await rt.cancel(run.run_id)
        store.failing = 1
        told = await read(stream, 1, b"left")
        assert store.failing == 0 and data_of(told, "left") == [{"run_id": run.run_id, "version": (await rt.get(run.run_id)).record.version, "status": "canceled", "condition": "cancelled"}]
        await stream.aclose()  # type: ignore[attr-defined]

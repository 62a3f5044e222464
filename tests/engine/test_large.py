"""Large results: kept once, apart from the records that name them, and read back where they are needed (§6.4)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from holdfast import Context, Graph, Runtime, State
from holdfast.core import canon
from holdfast.core.blobs import LARGE, name_blobs, reference_in
from holdfast.core.codec import open_row
from holdfast.core.errors import StoreCorrupt
from holdfast.named import SideEffectLedger
from holdfast.stores import SqliteStore, WorkspaceStore
from holdfast.testing.plugin import Crashes
from tests.engine.outside import Crash, House
from tests.postgres.instead import OtherStore
from tests.upkeep.damage import flip

BULK = LARGE * 2


class Page(State):
    size: int = 0
    told: str = ""


class Web:
    """Pages that are longer than anybody wants to find in a log. The process dies at the first look into the third thing it is given."""

    def __init__(self, crash: bool = True) -> None:
        self.fetched: list[str] = []
        self.posted: list[int] = []
        self.crash = crash

    async def fetch(self, letter: str) -> str:
        self.fetched.append(letter)
        return letter * BULK

    async def post(self, text: str) -> str:
        self.posted.append(len(text))
        return text.upper()

    async def slow(self) -> str:
        raise AssertionError("it was given up")

    def graph(self, key: str | None = None) -> Graph[Page]:
        graph = Graph("page", Page, version="1")

        @graph.node(start=True)
        async def look(state: Page, ctx: Context) -> dict[str, Any]:
            page = await ctx.step(self.fetch, "a")
            again = await ctx.effect(self.post, page, key=key)
            _, won = await ctx.first_of(ctx.step(self.fetch, "b"))
            if self.crash:
                self.crash = False
                raise Crash
            return {"size": len(page) + len(again) + len(won), "told": page[:2] + again[:2] + won[:2]}

        return graph


@pytest.fixture(params=["memory", "sqlite", "workspace"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    h = House(request.param, tmp_path)
    if request.param == "workspace":
        h.kind, h.memory = "memory", WorkspaceStore(tmp_path / "runs", now=h.clock.now)
    yield h
    await h.close()


async def crashed(house: House, graph: Graph[Page]) -> str:
    rt = await house.process(graph)
    with pytest.raises(Crash):
        await rt.invoke(graph, {})
    house.kill(rt)
    return (await rt.runs())[0].run_id


async def test_what_was_done_is_given_back_after_a_crash(house: House) -> None:
    """§6.4, §4.12: a step's, an effect's and a race's large result are read back; nothing is done twice; the log stays small."""
    web = Web()
    graph = web.graph()
    run_id = await crashed(house, graph)
    rt = await house.process(graph)
    run = await rt.resume(run_id)
    assert (str(run.status), run.state.told, run.state.size) == ("completed", "aaAAbb", 3 * BULK)
    assert (web.fetched, web.posted) == (["a", "b"], [BULK])
    rows = await rt.store.rows(run_id)
    assert sum(len(r.data) for r in rows) < LARGE / 4
    digests = {d for r in rows for d in name_blobs(open_row(r).results)}
    assert len(digests) == 4, "two steps, an effect, and the race, which says who came first"
    (effect,) = await rt.effects(run_id)
    assert reference_in(effect.result) is not None and effect.blob in digests
    found = await SideEffectLedger(rt).find_by_idempotency_key(effect.key)
    assert found is not None and found.result is not None
    assert canon.decode(found.result) == "A" * BULK
    assert (await rt.check()).ok


async def test_a_replay_is_served_and_can_be_replayed(house: House) -> None:
    """§7.6, T-47: large results too; what it is given it names in its own log, and the bytes are kept once."""
    web = Web(crash=False)
    graph = web.graph()
    rt = await house.process(graph)
    run = await rt.invoke(graph, {})
    calls = (list(web.fetched), list(web.posted))
    first = await rt.replay(run.run_id)
    second = await rt.replay(first.run_id)
    assert (web.fetched, web.posted) == calls
    assert [r.state.told for r in (first, second)] == ["aaAAbb", "aaAAbb"]
    names = [{d for r in await rt.store.rows(i) for d in name_blobs(open_row(r).results)} for i in (run.run_id, second.run_id)]
    assert names[1] < names[0] and (len(names[0]), len(names[1])) == (4, 3), "what lost or won a race is in the record of the race"
    assert (await rt.check()).ok


async def test_another_run_is_given_it_under_a_shared_key(house: House) -> None:
    """§6.3, §6.10: also when the first run is pruned: the tombstone has its result."""
    web = Web(crash=False)
    graph = web.graph(key="once")
    rt = await house.process(graph)
    await rt.invoke(graph, {})
    for _ in range(2):
        assert (await rt.invoke(graph, {})).state.told == "aaAAbb"
        assert web.posted == [BULK]
        house.clock.forward(3600)
        assert len((await rt.prune(1)).run_ids) in (1, 2)
    assert (await rt.invoke(graph, {})).state.told == "aaAAbb"
    assert web.posted == [BULK]
    assert (await rt.check()).ok


async def test_it_is_exported_backed_up_and_replayed_elsewhere(house: House, tmp_path: Path) -> None:
    """§12.5, §1.9: the run's directory holds it, an import takes it over, a backup has it: a replay there calls nothing."""
    web = Web(crash=False)
    graph = web.graph()
    rt = await house.process(graph)
    run = await rt.invoke(graph, {})
    where = Path(await rt.export(run.run_id, tmp_path / "out"))
    assert len(list((where / "blobs").iterdir())) == 4
    async with Runtime(SqliteStore(tmp_path / "other.db"), skills=[graph]) as other:
        assert await other.import_runs(tmp_path / "out") == ([run.run_id], [])
        await other.backup(tmp_path / "copy.db")
        assert (await other.replay(run.run_id)).state.told == "aaAAbb"
        assert (await other.check()).ok
    async with Runtime(SqliteStore(tmp_path / "third.db"), skills=[graph]) as third:
        await third.restore(tmp_path / "copy.db")
        assert (await third.replay(run.run_id)).state.told == "aaAAbb"
    assert (web.fetched, web.posted) == (["a", "b"], [BULK])


def test_a_crash_at_any_write_loses_none(holdfast_crashes: Crashes) -> None:
    """§1.6: record and blob are in one commit: whichever write the process dies before or after, the run ends with the same."""
    graph = Graph("page", Page, version="1")

    async def fetch(letter: str) -> str:
        return letter * BULK

    @graph.node(start=True)
    async def look(state: Page, ctx: Context) -> dict[str, Any]:
        page = await ctx.step(fetch, "a")
        again = await ctx.effect(fetch, page[:1], idempotent=True)
        return {"size": len(page) + len(again), "told": page[:2] + again[:2]}

    @graph.node(after="look")
    async def last(state: Page, ctx: Context) -> dict[str, Any]:
        return {"size": state.size + len(await ctx.step(fetch, "b"))}

    run, ends = holdfast_crashes(graph, {})
    assert (run.state.size, run.state.told) == (3 * BULK, "aaaa")
    assert len(ends) > 10
    assert all(e.run.state == run.state for e in ends)


async def test_a_flipped_bit_stops_the_run_where_it_stands(tmp_path: Path) -> None:
    """X-01, §1.12: named by its own code, nothing is written, and with the bytes back it goes on."""
    house = House("sqlite", tmp_path)
    web = Web()
    graph = web.graph()
    run_id = await crashed(house, graph)
    flip(tmp_path / "runs.db", "blob")
    rt = await house.process(graph)
    with pytest.raises(StoreCorrupt) as e:
        await rt.resume(run_id)
    assert e.value.code == "blob_unreadable"
    events = [x.type for x in await rt.events(run_id)]
    assert "run.failed" not in events
    house.kill(rt)
    flip(tmp_path / "runs.db", "blob")
    rt = await house.process(graph)
    assert (await rt.resume(run_id)).state.told == "aaAAbb"
    assert web.fetched == ["a", "b"]
    await house.close()


async def test_what_is_too_large_is_refused_by_name(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """§14.3: with the place and the limit. A step fails; of an effect it is known that it was done."""
    monkeypatch.setattr(canon, "MAX_VALUE_BYTES", BULK - 1)
    web = Web(crash=False)
    graph = Graph("much", Page, version="1")

    @graph.node(start=True)
    async def look(state: Page, ctx: Context) -> None:
        await ctx.step(web.fetch, "a")

    rt = await house.process(graph)
    run = await rt.invoke(graph, {})
    assert run.record.error is not None
    assert (run.record.error.code, run.record.error.message) == ("too_large", f"fetch(): {BULK + 5} bytes, the limit is {BULK - 1}")

    acts = Graph("act", Page, version="1")

    @acts.node(start=True)
    async def act(state: Page, ctx: Context) -> None:
        await ctx.effect(web.fetch, "b")

    rt = await house.process(acts)
    run = await rt.invoke(acts, {})
    (effect,) = await rt.effects(run.run_id)
    assert (str(effect.status), effect.closed) == ("unknown", True)
    assert "done, but its result cannot be stored" in effect.detail
    assert web.fetched == ["a", "b"]


def blobs(url: str) -> int:
    """How many are kept."""
    ask = "SELECT count(*) FROM {}blob"
    if url.startswith("sqlite:///"):
        with contextlib.closing(apsw.Connection(url.removeprefix("sqlite:///"))) as file:
            return int(file.execute(ask.format("")).get)
    with psycopg.connect(url) as db:
        ((count,),) = db.execute(ask.format("holdfast.").encode()).fetchall()
        return int(count)


async def test_the_hot_path_writes_no_blob(tmp_path: Path, other_store: OtherStore) -> None:
    """A step whose result is not large is kept with its record: no row beside the log."""
    graph = Graph("small", Page, version="1")

    @graph.node(start=True)
    async def look(state: Page, ctx: Context) -> dict[str, Any]:
        return {"size": len(await ctx.step(str.upper, "x" * (LARGE - state.size)))}

    url = other_store(f"sqlite:///{tmp_path}/a.db")
    async with Runtime(url) as rt:
        run = await rt.invoke(graph, {"size": 10})
        assert run.state.size == LARGE - 10
        assert blobs(url) == 0
        await rt.invoke(graph, {"size": 0})
        assert blobs(url) == 1, "what is large is found where it is looked for"

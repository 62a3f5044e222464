"""The rows of ``HoldfastSaver`` (§19.3): few for each super-step, each version of a value once, and those of earlier releases still read."""

from __future__ import annotations

import copy
import operator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph

from holdfast.core.errors import StoreCorrupt
from holdfast.integrations.langgraph import HoldfastSaver
from holdfast.integrations.langgraph import rows as r
from holdfast.integrations.langgraph.rows import Thread, Value, encode

NODES = 90
FIRST = 10
"""So many fields had a checkpoint's row in earlier releases."""


class Line(TypedDict):
    n: int
    data: str
    once: str
    log: Annotated[list[str], operator.add]


def line(saver: Any, nodes: int = NODES) -> Any:
    graph = StateGraph(Line)
    names = [f"s{i}" for i in range(nodes)]
    for name in names:
        graph.add_node(name, lambda state: {"n": state["n"] + 1, "data": f"{state['n']:03}" * 100, "log": [f"{state['n']:03}" * 40]})
    for before, after in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(before, after)
    return graph.compile(checkpointer=saver)


BEGIN = {"n": 0, "data": "", "once": "of the input " * 30, "log": []}


def at(thread: str, **more: Any) -> Any:
    return {"configurable": {"thread_id": thread, **more}, "recursion_limit": 10_000}


class Given:
    """Remembers the checkpoints that a saver is given."""

    def __init__(self, saver: HoldfastSaver) -> None:
        self.checkpoints: dict[str, Any] = {}
        inner = saver._put

        async def put(config: Any, checkpoint: Any, *rest: Any) -> Any:
            self.checkpoints[checkpoint["id"]] = copy.deepcopy(checkpoint)
            return await inner(config, checkpoint, *rest)

        saver._put = put  # type: ignore[method-assign]


async def history(saver: HoldfastSaver, thread: str = "t") -> list[Any]:
    """All that a saver tells of a thread."""
    return [found async for found in saver.alist(at(thread, checkpoint_ns=""))]


async def told(saver: HoldfastSaver, thread: str = "t") -> list[Any]:
    """The same without what names the thread."""
    return [(found.checkpoint, found.metadata, found.pending_writes) for found in await history(saver, thread)]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


async def test_every_checkpoint_is_read_as_it_was_given(url: str) -> None:
    """Whole, by this process and by another, however much of it lies in other rows."""
    async with HoldfastSaver.from_url(url, durability="joined") as saver:
        given = Given(saver)
        await line(saver).ainvoke(BEGIN, at("t"))
        assert len(given.checkpoints) == NODES + 2
        assert [t.checkpoint for t in await history(saver)] == [given.checkpoints[id] for id in sorted(given.checkpoints, reverse=True)]
    async with HoldfastSaver.from_url(url) as saver:
        for id, checkpoint in given.checkpoints.items():
            found = await saver.aget_tuple(at("t", checkpoint_id=id))
            assert found is not None and found.checkpoint == checkpoint
            assert list(found.checkpoint["channel_versions"]) == list(checkpoint["channel_versions"])
        assert [t.checkpoint for t in await history(saver)] == [given.checkpoints[id] for id in sorted(given.checkpoints, reverse=True)]


async def test_a_super_step_puts_two_rows_side_by_side(url: str) -> None:
    """Its checkpoint with the values that came with it, and behind the checkpoint before what its tasks wrote. The versions of a graph of many
    nodes are not in each of them."""
    async with HoldfastSaver.from_url(url, durability="joined") as saver:
        await line(saver).ainvoke({**BEGIN, "log": ["x" * 2000]}, at("t"))
        rows = await saver.shelf.scan("t/", limit=10_000)
        sections = [key.split("/")[1] for key, _ in rows]
        assert sections.count("c") == 2 * (NODES + 2) - 1 and sections.count("v") == NODES + 2  # the input and the log are large
        assert 5 < sections.count("m") < NODES / 4
        assert [r.of_checkpoint(key) for key, _ in rows if "/c/" in key][:6] == [True, True, False, True, False, True]
        checkpoints = [data for key, data in rows if r.of_checkpoint(key)]
        assert sum(len(data) for data in checkpoints) < 2000 * len(checkpoints), "two maps of 90 versions take 8 KB"
        assert sum(b"of the input" in data for _, data in rows) == 3, "in the input, in its write, and with the checkpoint that it made"


async def test_a_row_that_another_checkpoint_needs_may_go(url: str) -> None:
    """Pruned to its newest checkpoint a thread has all of its values, and goes on; what nothing names is gone."""
    async with HoldfastSaver.from_url(url, durability="joined") as saver:
        graph = line(saver)
        await graph.ainvoke(BEGIN, at("t"))
        before = (await graph.aget_state(at("t"))).values
        assert before["once"] == BEGIN["once"]
        await saver.aprune(["t"])
        (newest,) = await history(saver)
        assert newest.checkpoint["channel_values"]["once"] == BEGIN["once"]
        assert len(await saver.shelf.scan("t/", limit=100)) < 12
        await graph.ainvoke({"n": 0}, at("t"))
        assert len((await graph.aget_state(at("t"))).values["log"]) == 2 * NODES
    async with HoldfastSaver.from_url(url) as saver:
        await saver.aprune(["t"])
        await saver.aprune(["t"])
        (newest,) = await history(saver)
        assert newest.checkpoint["channel_values"]["once"] == BEGIN["once"]
        await saver.adelete_thread("t")
        assert await saver.shelf.scan(limit=10) == []


async def test_the_checkpoints_of_a_run_go_and_leave_what_others_have_of_them(url: str) -> None:
    async with HoldfastSaver.from_url(url, durability="joined") as saver:
        graph = line(saver)
        for run in ("a", "b"):
            await graph.ainvoke(BEGIN if run == "a" else {"n": 0}, at("t") | {"metadata": {"run_id": run}})
        kept = [t for t in await told(saver) if t[1].get("run_id") == "b"]
        assert len(kept) == NODES + 2 and kept[-1][0]["channel_values"]["once"] == BEGIN["once"]
        await saver.adelete_for_runs(["a"])
        assert await told(saver) == kept
    async with HoldfastSaver.from_url(url) as saver:
        assert await told(saver) == kept


async def test_a_copied_thread_is_whole(url: str) -> None:
    async with HoldfastSaver.from_url(url, durability="joined") as saver:
        await line(saver).ainvoke(BEGIN, at("t") | {"metadata": {"run_id": "a"}})
        await saver.acopy_thread("t", "u")
        before = await told(saver)
        await saver.adelete_thread("t")
        assert await told(saver, "u") == before
        await saver.adelete_for_runs(["a"])
        assert await saver.shelf.scan("u/c/", limit=10) == []


async def as_before(saver: HoldfastSaver, thread: Thread) -> int:
    """Puts a thread's rows as earlier releases did: a checkpoint with both of its maps and no value of more than a few bytes, and the writes of
    its tasks apart from it. How many it has moved."""
    shelf, loads, dumps = saver.shelf, saver.serde.loads_typed, saver.serde.dumps_typed
    made: dict[str, bytes] = {}
    rows = dict(await shelf.scan(thread.prefix, limit=10_000))
    for key, data in rows.items():
        if "/v/" in key:
            made[key] = data
        if not r.of_checkpoint(key) or "/c/" not in key:
            continue
        row = r.checkpoint_of(data)
        body = loads((row.kind, row.body))
        if row.maps is not None:
            kept = r.value_of(rows[thread.maps(row.ns, row.maps)])
            for name, known in loads((kept.kind, kept.body)).items():
                body[name] = known | body[name]
        for channel, (kind, value) in row.inside.items():
            made[thread.value(row.ns, channel, body["channel_versions"][channel])] = encode(Value(kind, value))
        fields = [getattr(row, name) for name in row.__struct_fields__]
        fields[5:7] = dumps(body)
        fields[9] = (*row.apart, *row.inside, *row.elsewhere)
        made[key] = encode(fields[:FIRST])
        for place, writes in rows.items():
            if place.startswith(behind := thread.writes(row.ns, row.id)):
                made[thread.writes_apart(row.ns, row.id) + place.removeprefix(behind)] = writes
    await shelf.delete(thread.prefix)
    await shelf.put_many(made)
    return sum("/w/" in key for key in made)


async def test_rows_of_earlier_releases_are_read_and_gone_on_from(url: str) -> None:
    """All of them: values, maps of versions and writes; what comes after them is put as now, and both are pruned and deleted."""
    async with HoldfastSaver.from_url(url, durability="joined") as saver:
        await line(saver).ainvoke(BEGIN, at("t"))
        before = await told(saver)
        assert await as_before(saver, Thread.of("t")) == NODES + 1
        rows = await saver.shelf.scan("t/", limit=10_000)
        assert not any("/m/" in key or "~w/" in key for key, _ in rows)
    async with HoldfastSaver.from_url(url, durability="joined") as saver:
        graph = line(saver)
        assert await told(saver) == before and sum(len(writes) for _, _, writes in before) > NODES
        await graph.ainvoke({"n": 0}, at("t"))
        after = await told(saver)
        assert after[NODES + 2 :] == before
        assert (await graph.aget_state(at("t"))).values["once"] == BEGIN["once"]
        await saver.aprune(["t"])
        (newest,) = await told(saver)
        assert newest == after[0]
        assert not any("/w/" in key for key, _ in await saver.shelf.scan("t/", limit=10_000))
        await saver.adelete_thread("t")
        assert await saver.shelf.scan(limit=10) == []


async def test_writes_of_earlier_releases_stand(url: str) -> None:
    """Put by a release before, apart from their checkpoint: what a task puts again adds what is missing."""
    id = "00000001-0000-6000-8000-000000000000"
    checkpoint: Any = {"v": 4, "id": id, "ts": "2026-01-01T00:00:00+00:00", "channel_values": {}, "channel_versions": {}, "versions_seen": {}, "updated_channels": None}
    async with HoldfastSaver.from_url(url) as saver:
        await saver.aput(at("t", checkpoint_ns=""), checkpoint, {}, {})
        await saver.aput_writes(at("t", checkpoint_id=id), [("said", f"old {n}") for n in range(2)], "task")
        assert await as_before(saver, Thread.of("t")) == 1
        await saver.aput_writes(at("t", checkpoint_id=id), [("said", f"new {n}") for n in range(3)], "task")
        await saver.aput_writes(at("t", checkpoint_id=id), [("said", f"newer {n}") for n in range(4)], "task")
        found = await saver.aget_tuple(at("t", checkpoint_id=id))
        assert found is not None and [value for _, _, value in found.pending_writes or ()] == ["old 0", "old 1", "new 2", "newer 3"]


async def test_writes_whose_checkpoint_was_never_put_hide_no_other(url: str) -> None:
    """A process that died between them leaves writes alone; the newest checkpoint is still found, and nothing else is listed."""
    async with HoldfastSaver.from_url(url) as saver:
        graph = line(saver, 3)
        await graph.ainvoke(BEGIN, at("t"))
        newest = (await graph.aget_state(at("t"))).config["configurable"]["checkpoint_id"]
        for number in range(3):
            later = f"ffffffff-ffff-6fff-8000-{number:012}"
            for task in ("a", "b"):
                await saver.aput_writes(at("t", checkpoint_id=later), [("n", 1)], task)
        found = await saver.aget_tuple(at("t"))
        assert found is not None and found.config["configurable"]["checkpoint_id"] == newest
        assert len(await history(saver)) == 5 and len([t async for t in saver.alist(None)]) == 5
        await saver.aput_writes(at("u", checkpoint_id=newest), [("n", 1)], "a")
        assert await saver.aget_tuple(at("u")) is None and await history(saver, "u") == []


@pytest.mark.parametrize("damage", ["lost", "no maps", "no map"])
async def test_maps_that_are_lost_or_are_none_are_named(url: str, damage: str) -> None:
    async with HoldfastSaver.from_url(url, durability="joined") as saver:
        await line(saver).ainvoke(BEGIN, at("t"))
    async with HoldfastSaver.from_url(url) as saver:
        for key, _ in await saver.shelf.scan("t/m/", limit=100):
            if damage == "lost":
                await saver.shelf.delete(key)
            else:
                await saver.shelf.put(key, encode(Value(*saver.serde.dumps_typed("text" if damage == "no maps" else {"versions_seen": 1}))))
        with pytest.raises(StoreCorrupt, match="the versions of|is not a valid checkpoint") as refused:
            await saver.aget_tuple(at("t"))
        assert refused.value.code == ("value_missing" if damage == "lost" else "row_unreadable")

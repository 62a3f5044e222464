"""``HoldfastSaver`` against LangGraph's own conformance suite, on every store, and what that suite does not ask (§19.3)."""

from __future__ import annotations

import asyncio
import datetime as dt
import operator
import threading
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import apsw
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph

from holdfast import Graph, Runtime, State, UsageError
from holdfast.core.errors import RecordDamaged, StoreCorrupt, StoreError, TooLarge
from holdfast.integrations.langgraph import HoldfastSaver
from holdfast.integrations.langgraph import saver as saver_module
from holdfast.integrations.langgraph.rows import LONGEST_TAIL, Kept, Thread, Value, Write, encode, grow, head, join
from holdfast.integrations.langgraph.writer import Writer
from holdfast.shelf import Shelf


@pytest.fixture(params=["memory", "sqlite", "workspace"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/runs.db", "workspace": f"workspace:{tmp_path}/space"}[request.param]


@pytest.mark.parametrize("durability", ["strict", "joined"])
@pytest.mark.parametrize("strict_msgpack", [False, True])
async def test_langgraphs_conformance_suite(url: str, durability: str, strict_msgpack: bool) -> None:
    """All capabilities are detected, all pass. ``langgraph_suites`` asks the newest release, and the head's suite."""
    serde = JsonPlusSerializer(allowed_msgpack_modules=None) if strict_msgpack else None

    @checkpointer_test(name="HoldfastSaver")
    async def saver() -> AsyncIterator[HoldfastSaver]:
        async with HoldfastSaver.from_url(url, durability=durability, serde=serde) as found:
            yield found

    report = await validate(saver)
    failed = {name: result.failures for name, result in report.results.items() if not result.passed}
    assert failed == {}
    assert all(result.detected for result in report.results.values())
    assert sum(result.tests_passed for result in report.results.values()) > 60


# -- what the suite does not ask --------------------------------------------------------------------


class Talk(TypedDict):
    said: Annotated[list[str], operator.add]


def talk(saver: Any, word: str = "word") -> Any:
    builder = StateGraph(Talk)
    builder.add_node("say", lambda state: {"said": [f"{word} {len(state['said'])}"]})
    builder.add_edge(START, "say")
    builder.add_edge("say", END)
    return builder.compile(checkpointer=saver)


def at(thread: str, **more: Any) -> Any:
    return {"configurable": {"thread_id": thread, **more}}


def made(number: int, values: dict[str, Any], versions: dict[str, Any]) -> Checkpoint:
    return empty_checkpoint() | {"id": f"{number:08}-0000-6000-8000-000000000000", "channel_values": values, "channel_versions": versions}


async def test_what_was_put_is_there_in_another_process_of_the_store(url: str) -> None:
    if url == "memory:":
        return
    async with HoldfastSaver.from_url(url) as saver:
        await talk(saver).ainvoke({"said": ["a"]}, at("t"))
    async with HoldfastSaver.from_url(url) as saver:
        assert (await talk(saver).aget_state(at("t"))).values == {"said": ["a", "word 1"]}
        await talk(saver).ainvoke({"said": ["b"]}, at("t"))
        assert (await talk(saver).aget_state(at("t"))).values == {"said": ["a", "word 1", "b", "word 3"]}
        history = [s.values async for s in talk(saver).aget_state_history(at("t"))]
        assert history[-1] == {"said": []} and len(history) == 6


def test_a_synchronous_graph_runs_without_an_event_loop(url: str) -> None:
    with HoldfastSaver.from_url(url) as saver:
        graph = talk(saver)
        assert graph.invoke({"said": []}, at("t")) == {"said": ["word 0"]}
        assert graph.get_state(at("t")).values == {"said": ["word 0"]}
        threads = [threading.Thread(target=graph.invoke, args=({"said": []}, at(f"t{n}"))) for n in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert sorted(saver.threads()) == ["t", *(f"t{n}" for n in range(8))]
        saver.delete_thread("t")
        assert sorted(saver.threads()) == [f"t{n}" for n in range(8)]


async def test_a_synchronous_call_on_the_stores_own_loop_is_refused(url: str) -> None:
    async with HoldfastSaver.from_url(url) as saver:
        with pytest.raises(UsageError, match="wait for itself"):
            saver.get_tuple(at("t"))
        assert await asyncio.to_thread(saver.get_tuple, at("t")) is None


class Loads(JsonPlusSerializer):
    """Counts what is read."""

    loaded = 0

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        self.loaded += 1
        return super().loads_typed(data)


def put_many(saver: HoldfastSaver, count: int, size: int = 300) -> RunnableConfig:
    config: RunnableConfig = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    for n in range(count):
        made = empty_checkpoint()
        made["channel_values"], made["channel_versions"] = {"said": [f"{n}" * size]}, {"said": f"{n:032}.0"}
        saver.put(config, made, {"step": n}, {"said": f"{n:032}.0"})
    return config


def test_the_newest_of_a_long_list_is_read_without_the_others(url: str) -> None:
    """A history is looked through until something is found. All of it was read first, with all values of each checkpoint."""
    serde = Loads()
    with HoldfastSaver.from_url(url, serde=serde) as saver:
        config = put_many(saver, 100)
        serde.loaded = 0
        walk = saver.list(config)
        assert [next(walk).metadata["step"] for _ in range(3)] == [99, 98, 97]
        walk.close()  # type: ignore[attr-defined]
        assert serde.loaded < 100
        assert [found.metadata["step"] for found in saver.list(config)] == list(range(99, -1, -1))


async def test_the_newest_of_a_long_list_is_read_without_the_others_by_coroutines_too(url: str) -> None:
    serde = Loads()
    async with HoldfastSaver.from_url(url, serde=serde) as saver:
        config = await asyncio.to_thread(put_many, saver, 100)
        serde.loaded = 0
        async for found in saver.alist(config):
            assert found.metadata["step"] == 99
            break
        assert serde.loaded < 100


async def test_what_is_deleted_while_it_is_listed_is_left_out(url: str) -> None:
    """Whoever deletes as they go gets what is left, and no word of damage."""
    async with HoldfastSaver.from_url(url) as saver:
        config = await asyncio.to_thread(put_many, saver, 100, 20_000)
        told = []
        async for found in saver.alist(config):
            told.append(found.metadata["step"])
            if len(told) == 5:
                await saver.adelete_thread("t")
        assert told[:5] == [99, 98, 97, 96, 95] and len(told) < 100


async def test_it_shares_the_store_of_a_runtime(url: str) -> None:
    class Hello(State):
        name: str

    hello = Graph("hello", Hello)

    @hello.node(start=True)
    async def greet(state: Hello) -> dict[str, str]:
        return {"name": state.name.upper()}

    async with Runtime(url, skills=[hello]) as rt:
        saver = HoldfastSaver(rt)
        await talk(saver).ainvoke({"said": []}, at("t"))
        assert (await rt.invoke(hello, {"name": "ada"})).values == {"name": "ADA"}
        assert await saver.athreads() == ["t"]
        assert [p for p in await rt.check() if p.severity == "error"] == []


async def test_a_file_that_a_saver_opened_first_is_a_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with HoldfastSaver.from_url(url) as saver:
        await talk(saver).ainvoke({"said": []}, at("t"))
    async with Runtime(url) as rt:
        assert await rt.runs() == []
        assert [p for p in await rt.check() if p.severity == "error"] == []


async def test_the_newest_checkpoint_is_the_greatest_id_whatever_the_order_of_puts(url: str) -> None:
    async with HoldfastSaver.from_url(url) as saver:
        for number in (3, 1, 10, 2):
            await saver.aput(at("t", checkpoint_ns=""), made(number, {}, {}), {"step": number}, {})
        found = await saver.aget_tuple(at("t"))
        assert found is not None and found.metadata["step"] == 10
        listed = [t.metadata["step"] async for t in saver.alist(at("t", checkpoint_ns=""), limit=3)]
        assert listed == [10, 3, 2]
        before = [t.metadata["step"] async for t in saver.alist(at("t", checkpoint_ns=""), before=at("t", checkpoint_id=made(3, {}, {})["id"]))]
        assert before == [2, 1]


async def test_what_a_long_list_adds_is_what_it_costs(tmp_path: Path) -> None:
    """Linear, not quadratic: 200 steps of 1 KB take less than 1 MB, and each version reads back whole."""
    url = f"sqlite:///{tmp_path}/runs.db"
    said: list[str] = []
    async with HoldfastSaver.from_url(url) as saver:
        version: str | None = None
        for number in range(200):
            said = [*said, f"{number:04}" * 256]
            version = saver.get_next_version(version)
            await saver.aput(at("t", checkpoint_ns=""), made(number, {"said": said}, {"said": version}), {"step": number}, {"said": version})
    async with HoldfastSaver.from_url(url) as saver:
        rows = await saver.shelf.scan(limit=10_000)
        assert sum(len(data) for _, data in rows) < 1_000_000
        for number in (0, 1, 77, 128, 199):
            found = await saver.aget_tuple(at("t", checkpoint_id=made(number, {}, {})["id"]))
            assert found is not None and found.checkpoint["channel_values"]["said"] == said[: number + 1]


async def test_the_newest_of_a_thousand_steps_is_read_of_few_rows() -> None:
    """What a graph of two growing channels reads after 1,000 steps of 1 KB, and what all its rows take."""
    said: dict[str, list[str]] = {"said": [], "heard": []}
    version: str | None = None
    async with HoldfastSaver.from_url("memory:") as saver:
        for number in range(1000):
            said = {"said": [*said["said"], f"{number:04}" * 256], "heard": [*said["heard"], f"{number:04}" * 16]}
            version = saver.get_next_version(version)
            versions = dict.fromkeys(said, version)
            await saver.aput(at("t", checkpoint_ns=""), made(number, said, versions), {"step": number}, versions)
        saver._kept.clear()
        rows = Reads(saver.shelf)
        found = await saver.aget_tuple(at("t"))
        assert found is not None and found.checkpoint["channel_values"] == said
        assert rows.read <= 12 * len(said), rows.read
        first = rows.read
        for _ in range(2):
            again = await saver.aget_tuple(at("t"))
            assert again is not None and again.checkpoint == found.checkpoint
        assert rows.read == first + 2, "the checkpoint alone: its values were read a moment ago"
        assert sum(len(data) for key, data in await saver.shelf.scan(limit=10_000) if "/heard/" not in key) < 20_000_000
        for number in (0, 1, 2, 511, 512, 998):
            rows.read = 0
            past = await saver.aget_tuple(at("t", checkpoint_id=made(number, {}, {})["id"]))
            assert past is not None and past.checkpoint["channel_values"] == {name: texts[: number + 1] for name, texts in said.items()}
            assert rows.read <= 12 * len(said), (number, rows.read)


class Reads:
    """Counts the rows that are read of a shelf."""

    def __init__(self, shelf: Shelf) -> None:
        self.read = 0
        get, scan = shelf.get, shelf.scan

        async def one(key: str) -> bytes | None:
            self.read += 1
            return await get(key)

        async def several(prefix: str = "", *, after: str | None = None, limit: int = 100) -> list[tuple[str, bytes]]:
            found = await scan(prefix, after=after, limit=limit)
            self.read += len(found)
            return found

        shelf.get, shelf.scan = one, several  # type: ignore[method-assign,assignment]


@pytest.mark.parametrize("damage", ["none", "lost", "ring"])
async def test_tails_of_the_release_before_are_read(damage: str) -> None:
    """Each stands behind the version before. One that is lost, or stands behind itself, is told of; nothing reads on for ever."""
    async with HoldfastSaver.from_url("memory:") as saver:
        said = [f"{number:04}" * 256 for number in range(20)]
        thread = Thread.of("t")
        version = [f"{number:032}.0" for number in range(20)]
        for number in range(20):
            kind, body = saver.serde.dumps_typed(said[: number + 1])
            _, before = saver.serde.dumps_typed(said[:number])
            row = Value(
                kind,
                body[: head(body)] + body[head(body) + len(before) - head(before) :],
                version[number - 1],
                version[0],
                head(before),
                head(body),
            )
            await saver.aput(
                at("t", checkpoint_ns=""),
                made(number, {"said": said[: number + 1]}, {"said": version[number]}),
                {},
                {"said": version[number]},
            )
            if number:
                await saver.shelf.put(thread.value("", "said", version[number]), encode(row))
        saver._kept.clear()
        if damage == "lost":
            await saver.shelf.delete(thread.value("", "said", version[7]))
        if damage == "ring":
            await saver.shelf.put(thread.value("", "said", version[0]), encode(Value("msgpack", b"", version[3], version[0], 1, 1)))
        if damage == "none":
            found = await saver.aget_tuple(at("t"))
            assert found is not None and found.checkpoint["channel_values"] == {"said": said}
        else:
            with pytest.raises(StoreCorrupt, match="'said'"):
                await saver.aget_tuple(at("t"))


async def test_a_step_costs_one_commit_where_writes_ride_along(tmp_path: Path) -> None:
    """At most 1.1 commits a super-step; theirs is 2. ``bench/savers.py`` measures the rest beside theirs."""
    builder = StateGraph(Talk)
    names = [f"n{i}" for i in range(40)]
    for name in names:
        builder.add_node(name, lambda state: {"said": ["x" * 100]})
    for before, after in zip([START, *names], [*names, END], strict=True):
        builder.add_edge(before, after)
    async with HoldfastSaver.from_url(f"sqlite:///{tmp_path}/runs.db", durability="joined") as saver:
        commits = 0
        inner = saver.shelf.put_many

        async def counted(rows: dict[str, bytes], **options: Any) -> Any:
            nonlocal commits
            commits += 1
            return await inner(rows, **options)

        saver.shelf.put_many = counted  # type: ignore[method-assign,assignment]
        await builder.compile(checkpointer=saver).ainvoke({"said": []}, at("t") | {"recursion_limit": 100}, durability="sync")
        steps = len([t async for t in saver.alist(at("t"))])
        assert steps == 42 and commits <= 1.1 * steps, commits


async def test_two_branches_of_a_thread_do_not_mix_their_values(url: str) -> None:
    async with HoldfastSaver.from_url(url) as saver:
        long = ["x" * 200] * 5
        versions = [f"{n:032}.{n:016}" for n in range(1, 6)]
        await saver.aput(at("t"), made(1, {"said": long}, {"said": versions[0]}), {}, {"said": versions[0]})
        await saver.aput(at("t"), made(2, {"said": [*long, "left"]}, {"said": versions[1]}), {}, {"said": versions[1]})
        await saver.aput(at("t"), made(3, {"said": [*long, "right"]}, {"said": versions[2]}), {}, {"said": versions[2]})
        await saver.aput(at("t"), made(4, {"said": [*long, "left", "more"]}, {"said": versions[3]}), {}, {"said": versions[3]})
        got = [(await saver.aget_tuple(at("t", checkpoint_id=made(n, {}, {})["id"]))).checkpoint["channel_values"]["said"][5:] for n in (1, 2, 3, 4)]  # type: ignore[union-attr]
        assert got == [[], ["left"], ["right"], ["left", "more"]]


async def test_joined_writes_are_read_at_once_and_share_a_commit(url: str) -> None:
    async with HoldfastSaver.from_url(url, durability="joined") as saver:
        await saver.aput(at("t"), made(1, {}, {}), {}, {})
        config = at("t", checkpoint_id=made(1, {}, {})["id"])
        puts: list[int] = []
        inner = saver.shelf.put_many

        async def counted(rows: dict[str, bytes], **options: Any) -> Any:
            puts.append(len(rows))
            return await inner(rows, **options)

        saver.shelf.put_many = counted  # type: ignore[method-assign,assignment]
        await asyncio.gather(*(saver.aput_writes(config, [("said", n)], f"task {n}") for n in range(6)))
        await saver.aput(at("t"), made(2, {}, {}), {}, {})
        assert puts == [7], "six tasks' writes and a checkpoint in one commit"
        await saver.aput_writes(config, [("said", "late")], "task 9")
        found = await saver.aget_tuple(config)
        assert found is not None and len(found.pending_writes or ()) == 7


async def test_a_store_in_trouble_is_heard_of_by_the_next_writer(tmp_path: Path) -> None:
    async with HoldfastSaver.from_url("memory:", durability="joined") as saver:
        await saver.aput(at("t"), made(1, {}, {}), {}, {})
        config = at("t", checkpoint_id=made(1, {}, {})["id"])
        inner = saver.shelf.put_many

        async def broken(rows: dict[str, bytes], **options: Any) -> Any:
            raise StoreError("the disk is away")

        saver.shelf.put_many = broken  # type: ignore[method-assign,assignment]
        await saver.aput_writes(config, [("said", 1)], "task")
        with pytest.raises(StoreError):
            await saver.aput(at("t"), made(2, {}, {}), {}, {})
        saver.shelf.put_many = inner  # type: ignore[method-assign]
        found = await saver.aget_tuple(config)
        assert found is not None and len(found.pending_writes or ()) == 1, "what rode along is not lost"


async def test_what_is_on_its_way_to_a_slow_store_is_read_all_the_same() -> None:
    async with HoldfastSaver.from_url("memory:", durability="joined") as saver:
        await saver.aput(at("t"), made(1, {}, {}), {}, {})
        config = at("t", checkpoint_id=made(1, {}, {})["id"])
        begun, go = asyncio.Event(), asyncio.Event()
        inner = saver.shelf.put_many

        async def slow(rows: dict[str, bytes], **options: Any) -> Any:
            begun.set()
            await go.wait()
            return await inner(rows, **options)

        saver.shelf.put_many = slow  # type: ignore[method-assign,assignment]
        await saver.aput_writes(config, [("said", 1)], "task")
        await begun.wait()  # the commit is under way, and nobody waits for it
        reading = asyncio.ensure_future(saver.aget_tuple(config))
        await asyncio.sleep(0)
        go.set()
        found = await reading
        assert found is not None and [w[2] for w in found.pending_writes or ()] == [1]


async def test_the_clones_that_strict_graphs_make_write_through_one_writer(tmp_path: Path) -> None:
    """``compile`` clones a checkpointer that is given an allowlist: what the clone wrote last is on disk when the saver is closed."""
    url = f"sqlite:///{tmp_path}/runs.db"
    config = at("t", checkpoint_id=made(1, {}, {})["id"])
    async with HoldfastSaver.from_url(url, durability="joined", serde=JsonPlusSerializer(allowed_msgpack_modules=None)) as saver:
        clone = saver.with_allowlist([("uuid", "UUID")])
        assert clone is not saver
        await clone.aput(at("t"), made(1, {}, {}), {}, {})
        await saver.aput_writes(config, [("said", 0)], "task 0")
        await clone.aput_writes(config, [("said", 1)], "task 1")
        found = await saver.aget_tuple(config)
        assert found is not None and len(found.pending_writes or ()) == 2
        await clone.aput_writes(config, [("said", 2)], "task 2")
    async with HoldfastSaver.from_url(url) as saver:
        found = await saver.aget_tuple(config)
        assert found is not None and [w[2] for w in found.pending_writes or ()] == [0, 1, 2]


@pytest.mark.parametrize("durability", ["strict", "joined"])
async def test_what_is_too_large_is_refused_alone(durability: str) -> None:
    """The others who write in the same turn are served, and so is whoever comes after."""
    async with HoldfastSaver.from_url("memory:", durability=durability) as saver:
        large = saver.aput(at("large"), made(1, {"said": "x" * 17_000_000}, {"said": "1"}), {}, {"said": "1"})
        small = [saver.aput(at(f"small{n}"), made(1, {"said": "x"}, {"said": "1"}), {}, {"said": "1"}) for n in range(3)]
        refused, *done = await asyncio.gather(large, *small, return_exceptions=True)
        assert isinstance(refused, TooLarge) and not any(isinstance(d, BaseException) for d in done)
        with pytest.raises(TooLarge):
            await saver.aput_writes(at("small1", checkpoint_id=made(1, {}, {})["id"]), [("said", "x" * 17_000_000)], "task")
        await saver.aput(at("after"), made(1, {}, {}), {}, {})
        assert set(await saver.athreads()) == {"small0", "small1", "small2", "after"}


async def test_a_put_that_failed_is_not_made_later() -> None:
    async with HoldfastSaver.from_url("memory:") as saver:
        inner = saver.shelf.put_many

        async def broken(rows: dict[str, bytes], **options: Any) -> Any:
            raise StoreError("the disk is away")

        saver.shelf.put_many = broken  # type: ignore[method-assign,assignment]
        with pytest.raises(StoreError):
            await saver.aput(at("t"), made(1, {}, {}), {}, {})
        saver.shelf.put_many = inner  # type: ignore[method-assign]
        await saver.aput(at("other"), made(2, {}, {}), {}, {})
        assert await saver.athreads() == ["other"]


async def test_nothing_later_builds_on_what_was_not_written() -> None:
    """L-04: a save fails, and the same process goes on with the thread; each checkpoint that is there can be read whole."""
    async with HoldfastSaver.from_url("memory:") as saver:
        inner = saver.shelf.put_many
        fails: set[int] = {2, 3, 6}
        count = 0

        async def now_and_then(rows: dict[str, bytes], **options: Any) -> Any:
            nonlocal count
            count += 1
            if count in fails:
                raise StoreError("the disk is away")
            return await inner(rows, **options)

        saver.shelf.put_many = now_and_then  # type: ignore[method-assign,assignment]
        said: list[str] = []
        written: dict[str, list[str]] = {}
        for number in range(12):
            said = [*said, f"{number:04}" * 256]
            version = f"{number + 1:032}.0"
            checkpoint = made(number, {"said": said, "same": "s" * 600}, {"said": version, "same": "1"})
            try:
                await saver.aput(at("t"), checkpoint, {}, {"said": version} | ({"same": "1"} if number == 1 else {}))
                written[checkpoint["id"]] = said
            except StoreError:
                continue
        assert len(written) == 9
        for id, value in written.items():
            found = await saver.aget_tuple(at("t", checkpoint_id=id))
            assert found is not None and found.checkpoint["channel_values"] == {"said": value, "same": "s" * 600}


async def test_puts_behind_one_that_failed_are_not_made_on_top_of_it() -> None:
    async with HoldfastSaver.from_url("memory:") as saver:
        inner = saver.shelf.put_many
        begun, go = asyncio.Event(), asyncio.Event()

        async def broken(rows: dict[str, bytes], **options: Any) -> Any:
            begun.set()
            await go.wait()
            saver.shelf.put_many = inner  # type: ignore[method-assign]
            raise StoreError("the disk is away")

        saver.shelf.put_many = broken  # type: ignore[method-assign,assignment]
        one = asyncio.ensure_future(saver.aput(at("t"), made(1, {"said": ["x" * 600]}, {"said": "1"}), {}, {"said": "1"}))
        await begun.wait()
        two = asyncio.ensure_future(saver.aput(at("t"), made(2, {"said": ["x" * 600, "y"]}, {"said": "2"}), {}, {"said": "2"}))
        await asyncio.sleep(0)
        go.set()
        assert [type(e) for e in await asyncio.gather(one, two, return_exceptions=True)] == [StoreError, StoreError]
        await saver.aput(at("t"), made(3, {"said": ["x" * 600, "y", "z"]}, {"said": "3"}), {}, {"said": "3"})
        found = await saver.aget_tuple(at("t"))
        assert found is not None and found.checkpoint["channel_values"] == {"said": ["x" * 600, "y", "z"]}


def rest(*others: asyncio.Future[Any]) -> asyncio.Task[Any]:
    """The one task beside this one and these."""
    (found,) = asyncio.all_tasks() - {asyncio.current_task(), *others}  # type: ignore[arg-type]
    return found


async def test_who_waits_hears_of_a_commit_that_was_cancelled_before_it_began() -> None:
    async with Shelf.open("memory:", "rows") as shelf:
        writer = Writer(shelf)
        writer.ride({"riding": b"1"})
        two = [asyncio.ensure_future(writer.write({key: b"1"})) for key in ("a", "b")]
        await asyncio.sleep(0)  # both have asked for a commit, and it has not begun
        rest(*two).cancel()
        heard = await asyncio.wait_for(asyncio.gather(*two, return_exceptions=True), 5)
        assert [type(e) for e in heard] == [asyncio.CancelledError, asyncio.CancelledError]
        await asyncio.wait_for(writer.write({"c": b"1"}), 5)
        assert [key for key, _ in await shelf.scan()] == ["c", "riding"]


async def test_who_waits_hears_of_a_commit_that_was_cancelled_while_it_was_made() -> None:
    async with Shelf.open("memory:", "rows") as shelf:
        writer, inner, begun = Writer(shelf), shelf.put_many, asyncio.Event()

        async def endless(rows: dict[str, bytes], **options: Any) -> Any:
            begun.set()
            await asyncio.Event().wait()

        shelf.put_many = endless  # type: ignore[method-assign,assignment]
        one = asyncio.ensure_future(writer.write({"a": b"1"}))
        await begun.wait()
        two = asyncio.ensure_future(writer.write({"b": b"1"}))
        await asyncio.sleep(0)
        rest(one, two).cancel()
        heard = await asyncio.wait_for(asyncio.gather(one, two, return_exceptions=True), 5)
        assert [type(e) for e in heard] == [asyncio.CancelledError, asyncio.CancelledError]
        shelf.put_many = inner  # type: ignore[method-assign]
        await asyncio.wait_for(writer.write({"c": b"1"}), 5)
        assert [key for key, _ in await shelf.scan()] == ["c"]


async def test_who_is_cancelled_while_it_waits_takes_nothing_from_the_others() -> None:
    async with Shelf.open("memory:", "rows") as shelf:
        writer = Writer(shelf)
        one, two = (asyncio.ensure_future(writer.write({key: b"1"})) for key in ("a", "b"))
        await asyncio.sleep(0)
        one.cancel()
        await asyncio.wait_for(two, 5)
        assert one.cancelled()
        assert [key for key, _ in await shelf.scan()] == ["a", "b"]


async def test_writers_that_shared_a_commit_share_the_next_though_some_are_slower() -> None:
    async with Shelf.open("memory:", "rows") as shelf:
        writer, inner, commits = Writer(shelf), shelf.put_many, 0

        async def counted(rows: dict[str, bytes], **options: Any) -> Any:
            nonlocal commits
            commits += 1
            return await inner(rows, **options)

        async def puts(name: int) -> None:
            for number in range(10):
                await writer.write({f"{name}/{number}": b"1"})
                for _ in range(name % 3):
                    await asyncio.sleep(0)

        shelf.put_many = counted  # type: ignore[method-assign,assignment]
        await asyncio.wait_for(asyncio.gather(*map(puts, range(9))), 5)
        assert len(await shelf.scan()) == 90
        assert commits == 10


async def test_a_writer_that_puts_as_soon_as_its_commit_is_made_is_served() -> None:
    async with Shelf.open("memory:", "rows") as shelf:
        writer = Writer(shelf)
        for number in range(20):
            await asyncio.wait_for(writer.write({f"{number:02}": b"1"}), 5)
            await asyncio.wait_for(writer.settle(), 5)
        assert len(await shelf.scan()) == 20


async def test_what_is_remembered_of_a_thread_is_forgotten_however_many_were_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saver_module, "MET", 4)
    async with HoldfastSaver.from_url("memory:") as saver:
        version = f"{1:032}.0"
        for n in range(30):
            await saver.aput(at(f"t{n}"), made(1, {"said": "x" * 600}, {"said": version}), {}, {"said": version})
        for n in range(30):
            await saver.shelf.delete(Thread.of(f"t{n}").prefix)  # another process deletes the thread
            assert await saver.aget_tuple(at(f"t{n}")) is None
            await saver.aput(at(f"t{n}"), made(2, {"said": "x" * 600}, {"said": version}), {}, {})
            found = await saver.aget_tuple(at(f"t{n}"))
            assert found is not None and found.checkpoint["channel_values"] == {"said": "x" * 600}


async def test_a_thread_that_another_process_deleted_begins_anew(tmp_path: Path) -> None:
    """The same words again, in the process that remembers the old ones."""
    url = f"sqlite:///{tmp_path}/runs.db"
    async with HoldfastSaver.from_url(url) as saver, HoldfastSaver.from_url(url) as other:
        for life in range(2):
            said: list[str] = []
            for number in range(4):
                said = [*said, f"{number}" * 600]
                version = f"{number + 1:032}.{life}"
                assert ((await saver.aget_tuple(at("t"))) is None) == (number == 0)
                await saver.aput(at("t"), made(number, {"said": said}, {"said": version}), {}, {"said": version})
            seen = await other.aget_tuple(at("t"))
            assert seen is not None and seen.checkpoint["channel_values"] == {"said": said}
            await other.adelete_thread("t")


async def test_the_first_writes_of_a_task_stand_over_processes_too(url: str) -> None:
    if url == "memory:":
        return
    config = at("t", checkpoint_id=made(1, {}, {})["id"])
    for word in ("first", "second"):
        async with HoldfastSaver.from_url(url) as saver:
            await saver.aput(at("t"), made(1, {}, {}), {}, {})
            await saver.aput_writes(config, [("said", word)], "task")
            await saver.aput_writes(config, [("said", word + " again")], "task")
    async with HoldfastSaver.from_url(url) as saver:
        found = await saver.aget_tuple(config)
        assert found is not None and [value for _, _, value in found.pending_writes or ()] == ["first"]


@pytest.mark.parametrize("durability", ["strict", "joined"])
async def test_of_two_processes_with_one_task_the_first_is_heard(tmp_path: Path, durability: str) -> None:
    """Both began the task before either had put anything; what the second adds stands beside the writes of the first."""
    url = f"sqlite:///{tmp_path}/runs.db"
    config = at("t", checkpoint_id=made(1, {}, {})["id"])
    async with HoldfastSaver.from_url(url, durability=durability) as one, HoldfastSaver.from_url(url, durability=durability) as other:
        await one.aput(at("t"), made(1, {}, {}), {}, {})
        await asyncio.gather(
            one.aput_writes(config, [("said", "one 0"), ("said", "one 1")], "task"),
            other.aput_writes(config, [("said", "other 0"), ("said", "other 1"), ("said", "other 2")], "task"),
        )
        for saver in (one, other, one):
            await saver.aput(at(f"t{id(saver)}"), made(1, {}, {}), {}, {})  # what rides along is on disk with it
        for saver in (one, other):
            found = await saver.aget_tuple(config)
            assert found is not None and [value for _, _, value in found.pending_writes or ()] == ["one 0", "one 1", "other 2"]


async def test_writes_over_some_that_were_lost_are_refused(tmp_path: Path) -> None:
    """A row that is gone while its digest is there: nobody writes another in its place as if there had been none."""
    url, path = f"sqlite:///{tmp_path}/runs.db", tmp_path / "runs.db"
    config = at("t", checkpoint_id=made(1, {}, {})["id"])
    async with HoldfastSaver.from_url(url) as saver:
        await saver.aput(at("t"), made(1, {}, {}), {}, {})
        await saver.aput_writes(config, [("said", "first")], "task")
    db = apsw.Connection(str(path))
    db.execute("DELETE FROM shelf WHERE key LIKE 't/c/%~w/%'")
    assert db.changes() == 1
    db.close()
    async with HoldfastSaver.from_url(url) as saver:
        with pytest.raises(RecordDamaged):
            await saver.aput_writes(config, [("said", "second")], "task")
        with pytest.raises(RecordDamaged):
            await saver.aget_tuple(config)


async def test_a_task_that_puts_again_before_a_failed_commit_is_tried_again_keeps_its_first_writes() -> None:
    async with HoldfastSaver.from_url("memory:", durability="joined") as saver:
        config = at("t", checkpoint_id=made(1, {}, {})["id"])
        inner = saver.shelf.put_many

        async def broken(rows: dict[str, bytes], **options: Any) -> Any:
            saver.shelf.put_many = inner  # type: ignore[method-assign]
            raise StoreError("the disk is away")

        saver.shelf.put_many = broken  # type: ignore[method-assign,assignment]
        await saver.aput_writes(config, [("said", "first")], "task")
        with pytest.raises(StoreError):
            await saver.aput(at("t"), made(1, {}, {}), {}, {})
        await saver.aput_writes(config, [("said", "second"), ("said", "more")], "task")
        await saver.aput(at("t"), made(1, {}, {}), {}, {})
        found = await saver.aget_tuple(config)
        assert found is not None and [value for _, _, value in found.pending_writes or ()] == ["first", "more"]


async def test_writes_of_the_release_before_are_read_and_stand() -> None:
    """Each was a row of its own. What a task puts again adds what is missing, and the rest stays as it was first put."""
    config = at("t", checkpoint_id=made(1, {}, {})["id"])
    async with HoldfastSaver.from_url("memory:") as saver:
        await saver.aput(at("t"), made(1, {}, {}), {}, {})
        thread = Thread.of("t")
        for index, word in enumerate(["old 0", "old 1"]):
            row = Write("", "task", index, "said", *saver.serde.dumps_typed(word))
            await saver.shelf.put(thread.write("", config["configurable"]["checkpoint_id"], "task", index), encode(row))
        found = await saver.aget_tuple(config)
        assert found is not None and [value for _, _, value in found.pending_writes or ()] == ["old 0", "old 1"]
        for _ in range(2):
            await saver.aput_writes(config, [("said", f"new {n}") for n in range(3)], "task")
        await saver.aput_writes(config, [("said", f"newer {n}") for n in range(4)], "task")
        found = await saver.aget_tuple(config)
        assert found is not None and [value for _, _, value in found.pending_writes or ()] == ["old 0", "old 1", "new 2", "newer 3"]


@pytest.mark.parametrize("durability", ["strict", "joined"])
async def test_the_writes_of_a_task_are_one_row(durability: str) -> None:
    config = at("t", checkpoint_id=made(1, {}, {})["id"])
    async with HoldfastSaver.from_url("memory:", durability=durability) as saver:
        await saver.aput(at("t"), made(1, {}, {}), {}, {})
        before = len(await saver.shelf.scan(limit=100))
        await saver.aput_writes(config, [("said", n) for n in range(5)], "task")
        found = await saver.aget_tuple(config)
        assert found is not None and [value for _, _, value in found.pending_writes or ()] == [0, 1, 2, 3, 4]
        assert len(await saver.shelf.scan(limit=100)) == before + 1


async def test_prune_by_age_leaves_what_is_younger(url: str) -> None:
    async with HoldfastSaver.from_url(url) as saver:
        old = made(1, {}, {}) | {"ts": (dt.datetime.now(dt.UTC) - dt.timedelta(days=40)).isoformat()}
        await saver.aput(at("old"), old, {}, {})
        await saver.aput(at("new"), made(2, {}, {}), {}, {})
        await saver.aprune(older_than=dt.timedelta(days=30), strategy="delete")
        assert await saver.athreads() == ["new"]


async def test_pruning_keeps_what_a_delta_channel_is_rebuilt_from(url: str) -> None:
    async with HoldfastSaver.from_url(url) as saver:
        counted = {"counters_since_delta_snapshot": {"said": [2, 2]}}
        config = await saver.aput(at("t"), made(1, {"said": ["seed"]}, {"said": "1"}), {}, {"said": "1"})
        for number in (2, 3, 4):
            await saver.aput_writes(config, [("said", [f"write {number}"])], f"task {number}")
            config = await saver.aput(config, made(number, {}, {"said": str(number)}), counted, {"said": str(number)})  # type: ignore[arg-type]
        before = await saver.aget_delta_channel_history(config=config, channels=["said"])
        await saver.aput(at("t"), made(0, {}, {}), {}, {})
        await saver.aprune(["t"])
        after = await saver.aget_delta_channel_history(config=config, channels=["said"])
        assert before == after and after["said"]["seed"] == ["seed"] and len(after["said"]["writes"]) == 3
        assert len([t async for t in saver.alist(at("t"))]) == 4, "the checkpoint of another branch is gone"


@pytest.mark.parametrize("thread", ["a/b", "a%2Fb", "", "ä ö", "/r/x", "~", "a", "a/"])
async def test_threads_with_strange_names_stay_apart(thread: str) -> None:
    async with HoldfastSaver.from_url("memory:") as saver:
        for name in {thread, "a", "other"}:
            await saver.aput(at(name), made(1, {"who": name}, {"who": "1"}), {}, {"who": "1"})
        found = await saver.aget_tuple(at(thread))
        assert found is not None and found.checkpoint["channel_values"] == {"who": thread}
        assert found.config["configurable"]["thread_id"] == thread
        assert set(await saver.athreads()) == {thread, "a", "other"}
        await saver.adelete_thread(thread)
        assert set(await saver.athreads()) == {"a", "other"} - {thread}


async def test_wrong_input_is_refused_by_name() -> None:
    async with HoldfastSaver.from_url("memory:") as saver:
        with pytest.raises(TooLarge, match="thread_id"):
            await saver.aget_tuple(at("x" * 300))
        with pytest.raises(UsageError, match="strategy"):
            await saver.aprune(["t"], strategy="keep_newest")
        with pytest.raises(UsageError, match="checkpoint"):
            await saver.aput_writes(at("t"), [("said", 1)], "task")
    with pytest.raises(UsageError, match="durability"):
        HoldfastSaver.from_url("memory:", durability="stict")
    with pytest.raises(UsageError, match="is not the URL of a store"):
        HoldfastSaver.from_url("mongodb://here")


async def test_a_damaged_row_is_named(tmp_path: Path) -> None:
    async with HoldfastSaver.from_url("memory:") as saver:
        await saver.aput(at("t"), made(1, {"said": "x" * 600}, {"said": "1"}), {}, {"said": "1"})
        rows = dict(await saver.shelf.scan())
        for key, data in rows.items():
            await saver.shelf.put(key, data[:-3])
            saver._kept.clear()
            with pytest.raises(StoreCorrupt):
                await saver.aget_tuple(at("t"))
            await saver.shelf.put(key, data)


# -- values that grow, pure -------------------------------------------------------------------------


def test_a_chain_of_tails_is_never_longer_than_its_value() -> None:
    import msgspec  # the encoder of LangGraph's values writes the same heads

    rows: dict[str, Value] = {}
    kept: Kept | None = None
    items: list[str] = []
    random = uuid.UUID(int=7).bytes
    for number in range(300):
        items = [*items, "x" * (1 + random[number % 16])] if number % 50 else ["anew" * 200]
        body = msgspec.msgpack.encode(items)
        version = f"{number:04}"
        rows[version], kept = grow(kept, version, "msgpack", body)
        assert join(version, rows) == body
        assert kept.weight <= len(body)


def test_tails_stand_behind_a_few_others_and_never_grow_too_long() -> None:
    """At most log2 of them are read for any version; where a tail would be longer than 4 MiB, more of them are, and none is as long as the value."""
    for steps, each, most in ((500, 100, 9), (28, 512 * 1024, 3 + 3)):
        rows: dict[str, Value] = {}
        kept: Kept | None = None
        body = b""
        for number in range(steps):
            body = b"\xdd" + (number + 1).to_bytes(4, "big") + body[5:] + bytes([number % 251]) * each
            rows[f"{number:04}"], kept = grow(kept, f"{number:04}", "msgpack", body)
        assert join(kept.version if kept is not None else "", rows) == body
        for version in rows:
            chain: Value | None = rows[version]
            read = 0
            while chain is not None:
                assert len(chain.body) <= LONGEST_TAIL + 5
                read, chain = read + 1, None if chain.base is None else rows[chain.base]
            assert read <= most + 1, (version, read)


@pytest.mark.parametrize(("body", "size"), [(b"", 0), (b"\x93abc", 1), (b"\xdc\x00\x10", 3), (b"\xdd\x00\x00\x00\x10", 5), (b"\x81", 1), (b"\xc0", 0)])
def test_heads_of_lists_and_maps(body: bytes, size: int) -> None:
    assert head(body) == size

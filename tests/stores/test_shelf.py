"""``Shelf``: rows of others in every store, from coroutines and from threads (§19.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.statements import counting_statements

from holdfast import Runtime
from holdfast.core.errors import InvalidInput, StoreClosed, UsageError
from holdfast.shelf import Shelf

STORES = {"memory": "memory:", "sqlite": "sqlite:///{}/runs.db", "workspace": "workspace:{}/space"}


@pytest.fixture(params=list(STORES))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return STORES[request.param].format(tmp_path)


@pytest.fixture
async def shelf(url: str) -> AsyncIterator[Shelf]:
    async with Shelf.open(url, "mine") as found:
        yield found


async def test_rows_are_put_replaced_read_in_order_and_deleted(shelf: Shelf) -> None:
    await shelf.put_many({"b/1": b"one", "a/1": b"", "b/2": b"\x00\xff"})
    await shelf.put("b/1", b"anew")
    assert await shelf.get("b/1") == b"anew" and await shelf.get("b/3") is None
    assert await shelf.scan() == [("a/1", b""), ("b/1", b"anew"), ("b/2", b"\x00\xff")]
    assert await shelf.scan("b/", limit=1) == [("b/1", b"anew")]
    assert await shelf.scan("b/", after="b/1") == [("b/2", b"\x00\xff")]
    assert await shelf.add("b/2", b"late") == b"\x00\xff" and await shelf.add("c", b"new") is None
    assert await shelf.delete("b/") == 2
    assert [key for key, _ in await shelf.scan()] == ["a/1", "c"]


async def test_rows_that_are_to_be_new_leave_what_is_there(shelf: Shelf) -> None:
    await shelf.put_many({"a": b"1", "b": b"1"})
    assert await shelf.put_many({"a": b"2", "b": b"2", "c": b"2"}, once=["b", "c"]) == ["b"]
    assert await shelf.scan() == [("a", b"2"), ("b", b"1"), ("c", b"2")]
    for once, said in ((["d"], "'d'"), (7, "once"), ({"a": 1}, "once"), ([7], "once"), ([["a"]], "once"), (["a", None], "once")):
        with pytest.raises(InvalidInput, match=said):
            await shelf.put_many({"a": b"3"}, once=once)  # type: ignore[arg-type]
    assert await shelf.put_many({"a": b"3"}, once="a") == ["a"] and await shelf.get("a") == b"2"


async def test_a_prefix_is_text_and_no_pattern(shelf: Shelf) -> None:
    await shelf.put_many({"a%b": b"1", "axb": b"2", "a_b": b"3", "A%b": b"4"})
    assert [key for key, _ in await shelf.scan("a%")] == ["a%b"]
    assert await shelf.delete("a_") == 1
    assert len(await shelf.scan()) == 3


async def test_shelves_do_not_see_each_other(url: str) -> None:
    async with Runtime(url) as rt:
        await rt.shelf("one").put("k", b"1")
        assert await rt.shelf("two").get("k") is None
        assert await rt.shelf("two").delete("") == 0
        assert await rt.shelf("one").get("k") == b"1"


async def test_rows_are_there_after_the_store_was_closed(url: str) -> None:
    async with Shelf.open(url, "mine") as shelf:
        await shelf.put("k", b"kept")
    if url != "memory:":
        async with Shelf.open(url, "mine") as shelf:
            assert await shelf.get("k") == b"kept"


def test_each_verb_has_a_form_without_an_event_loop(url: str) -> None:
    with Shelf.open(url, "mine") as shelf:
        shelf.put_sync("a", b"1")
        shelf.put_many_sync({"b": b"2", "c": b"3"})
        assert shelf.put_many_sync({"b": b"0"}, once=["b"]) == ["b"]
        assert shelf.add_sync("a", b"0") == b"1" and shelf.get_sync("b") == b"2"
        assert [key for key, _ in shelf.scan_sync(after="a", limit=5)] == ["b", "c"]
        assert shelf.delete_sync("") == 3
    with pytest.raises(StoreClosed):
        shelf.get_sync("a")


async def test_other_threads_and_loops_reach_the_stores_own_loop(url: str) -> None:
    async with Runtime(url) as rt:
        shelf = rt.shelf("mine")
        await asyncio.to_thread(shelf.put_sync, "thread", b"1")
        await asyncio.to_thread(lambda: asyncio.run(rt.shelf("mine").put("loop", b"2")))
        assert [key for key, _ in await shelf.scan()] == ["loop", "thread"]
        with pytest.raises(UsageError, match="wait for itself"):
            shelf.get_sync("loop")


async def test_wrong_input_is_refused_by_name(shelf: Shelf) -> None:
    for call, field in (
        (lambda: shelf.put("", b""), "key"), (lambda: shelf.put(7, b""), "key"), (lambda: shelf.put("k", "text"), "value"), (lambda: shelf.put("k", None), "value"),
        (lambda: shelf.put("k" * 600, b""), "key"), (lambda: shelf.scan(limit=0), "limit"), (lambda: shelf.scan(limit=10**9), "limit"),
    ):
        with pytest.raises(UsageError) as refused:
            await call()  # type: ignore[no-untyped-call]
        assert field in str(refused.value)
    assert await shelf.scan() == []
    with pytest.raises(InvalidInput, match="name"):
        Shelf.open("memory:", "")


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_a_prefix_ends_where_the_next_text_begins(url: str, limit: int) -> None:
    """Pages of any prefix, at the edges of what is text."""
    keys = sorted(["a", "a/", "a/1", "a\x1f", "a\ud7ff", "a\ud7ffb", "a\ue000", "a\U0010ffff", "a\U0010ffff\U0010ffffz", "b", "\U0010ffff", "\U0010ffffx"])
    async with Runtime(url) as rt:
        shelf = rt.shelf("mine")
        await shelf.put_many({key: key.encode() for key in keys})
        for neighbour in ("min", "mind", "minf", "mine\x1e"):
            await rt.shelf(neighbour).put("a", b"of another shelf")
        for prefix in ["", *keys]:
            found: list[tuple[str, bytes]] = []
            while page := await shelf.scan(prefix, after=found[-1][0] if found else None, limit=limit):
                found += page
            assert found == [(key, key.encode()) for key in keys if key.startswith(prefix)], prefix
        assert await shelf.delete("a\ud7ff") == 2
        assert [key for key, _ in await shelf.scan()] == [key for key in keys if not key.startswith("a\ud7ff")]


async def test_a_put_counts_its_rows_with_one_statement(tmp_path: Path) -> None:
    """§12.1: how many rows a shelf has does not matter, nor how many are put."""
    with counting_statements() as found:
        async with Shelf.open(f"sqlite:///{tmp_path}/runs.db", "mine") as shelf:
            await shelf.put("first", b"")
            found.clear()
            await shelf.put("a", b"1")
            assert found == {"BEGIN": 1, "INSERT": 4, "COMMIT": 1}, "the row, its voucher, the count, and that something was written"
            await shelf.put_many({f"k{n:03}": b"x" for n in range(300)})
            found.clear()
            await shelf.put_many({f"k{n:03}": b"y" for n in range(100)})
            assert found == {"BEGIN": 1, "INSERT": 202, "COMMIT": 1}
            found.clear()
            await shelf.delete("k")
            assert found == {"BEGIN": 1, "INSERT": 1, "DELETE": 2, "UPDATE": 1, "COMMIT": 1}
            found.clear()
            await shelf.delete("k")
            assert found == {"BEGIN": 1, "INSERT": 1, "DELETE": 2, "COMMIT": 1}

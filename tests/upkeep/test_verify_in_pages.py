"""``verify`` of a SQLite store reads its log in pages: what is written meanwhile is neither held up nor called damage, and damage is found all the same."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.stores import SqliteStore
from holdfast.stores.sqlite import keeping
from holdfast.stores.sqlite.connection import Q
from holdfast.testing.conformance import TTL, Script

STEPS = 1200  # more than two pages


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    made = SqliteStore(tmp_path / "s.db")
    await made.open()
    await made.register("w", TTL)
    yield made
    await made.close()


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Awaitable[Any]]], list[int]]:
    """Has something done before each page but the first is read; gives a list of the pages before which it was."""

    def have(work: Callable[[], Awaitable[Any]]) -> list[int]:
        loop, read, done = asyncio.get_running_loop(), keeping.rows, []

        def rows(db: apsw.Connection, sql: str, values: Any = ()) -> list[Any]:
            if sql == Q.chain_page and values[0]:
                asyncio.run_coroutine_threadsafe(_do(work), loop).result()
                done.append(values[0])
            return read(db, sql, values)

        monkeypatch.setattr(keeping, "rows", rows)
        return done

    return have


async def _do(work: Callable[[], Awaitable[Any]]) -> None:
    await work()


async def test_the_file_beside_the_database_can_be_emptied_between_two_pages(store: SqliteStore, between: Any, tmp_path: Path) -> None:
    script = await (await Script(store, "r1").begin("w")).steps(STEPS)
    busy = []

    async def empty() -> None:
        await script.steps(1)
        with contextlib.closing(apsw.Connection(str(tmp_path / "s.db"))) as db:
            busy.append(next(db.execute("PRAGMA wal_checkpoint(TRUNCATE)"))[0])

    pages = between(empty)
    assert await store.verify() == []
    assert len(pages) > 2 and busy == [0] * len(pages)


async def test_what_is_written_and_pruned_meanwhile_is_no_damage(store: SqliteStore, between: Any) -> None:
    """Runs that are pruned leave the numbers of their rows to those that come after them."""
    other = await (await Script(store, "r2").begin("w")).steps(3)
    await (await (await Script(store, "r1").begin("w")).steps(STEPS)).complete()
    names = iter(range(100))

    async def go_on() -> None:
        await other.steps(2)
        await store.prune(store.now() + 1)
        await (await Script(store, f"new{next(names)}").begin("w")).steps(1)

    pages = between(go_on)
    assert await store.verify() == []
    assert pages and await store.load("r1") is None


@pytest.mark.parametrize("where", [3, STEPS])
async def test_damage_is_found_beside_what_is_written_meanwhile(store: SqliteStore, between: Any, tmp_path: Path, where: int) -> None:
    script = await (await Script(store, "r1").begin("w")).steps(STEPS)
    other = await (await Script(store, "r2").begin("w")).steps(3)
    with contextlib.closing(apsw.Connection(str(tmp_path / "s.db"))) as db:
        db.execute("UPDATE log SET hash = zeroblob(32) WHERE id = ?", (where,))
    pages = between(lambda: other.steps(1))
    (found,) = await store.verify()
    assert (found.code, found.run_id) == ("event_chain_broken", "r1") and pages
    assert script.run_id == "r1"

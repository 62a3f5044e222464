"""Every table and every file of every store, with what vouches for it (§12.1): one that is new and not listed here fails, and one that loses
all its rows, or is gone, is named, or is found again in what is left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import pytest

from holdfast.stores import MemoryStore
from tests.damage.bench import Bench, InFolder


class By(StrEnum):
    """What vouches for a table or a file."""

    CHAIN = "the chain of hashes of the log itself, and the anchor or the row that knows its end"
    FOLD = "the fold of the log; for what no event tells, a digest in the row"
    VOUCHER = "a voucher for each record (core/vouch.py)"
    RECORDS = "the records: one without its voucher is named as one that was altered"
    ANCHOR = "the anchor beside the file"
    STORE = "the store: its newest row is not the one that the anchor remembers"
    NEED = "the log of each run, which says what it needs of what others share; a blob by its name, which is its hash"
    HOUSE = "workspace.json, which states a digest of each"
    ENDS = "records.json, which states where each file beside a log ends; itself by the lines that are there"
    CACHE = "nothing: it only repeats what the log says, and is made anew from it"
    PROVISIONAL = "nothing: what a step emits until its result is durable"
    COUNT = "what is there, which it counts: a count that is gone or differs is named"
    UNUSED = "nothing is ever kept in it"


SQLITE = {
    "meta": By.ANCHOR, "log": By.CHAIN, "run": By.FOLD, "whole": By.CACHE, "inbox": By.VOUCHER, "claim": By.VOUCHER, "effect": By.VOUCHER,
    "intent": By.VOUCHER, "ledger": By.VOUCHER, "worker": By.VOUCHER, "offer": By.VOUCHER, "token": By.VOUCHER, "schedule": By.VOUCHER, "slot": By.UNUSED,
    "blob": By.NEED, "blob_use": By.NEED, "carry": By.NEED, "vouch": By.RECORDS, "shelf": By.VOUCHER, "pruned": By.VOUCHER, "rule": By.VOUCHER,
    "bucket": By.VOUCHER, "call": By.VOUCHER, "chunk": By.PROVISIONAL, "sqlite_sequence": By.PROVISIONAL, "tail": By.CACHE, "roll": By.COUNT, "shelf_roll": By.COUNT,
}
SQLITE_FILES = {"s.db": By.ANCHOR, "s.db-anchor": By.STORE}
POSTGRES = {
    "meta": By.VOUCHER, "doc": By.FOLD, **{t: by for t, by in SQLITE.items() if t not in ("meta", "slot", "sqlite_sequence", "tail")},
}
FILES = {
    "workspace.json": By.HOUSE, "schedules.json": By.HOUSE, "shelves.json": By.HOUSE, "tombstones.jsonl": By.HOUSE, "pruned.jsonl": By.HOUSE, "limits.json": By.HOUSE,
    "RUN/events.jsonl": By.CHAIN, "RUN/meta.json": By.FOLD, "RUN/checkpoints/N": By.CHAIN, "RUN/blobs/N": By.NEED, "blobs/N": By.NEED, "RUN/records.json": By.ENDS,
    "RUN/effects.jsonl": By.ENDS, "RUN/inbox.jsonl": By.ENDS, "RUN/claims.jsonl": By.ENDS, "RUN/intents.jsonl": By.ENDS, "RUN/ledger.jsonl": By.ENDS,
    "RUN/decisions/N": By.CACHE, "RUN/chunks.log": By.PROVISIONAL,
}
SILENT = (By.CACHE, By.PROVISIONAL, By.UNUSED)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def tables(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("tables"), request.param)
    bench.build()
    yield bench
    bench.at.close()


def test_each_table_has_its_voucher(tables: Bench) -> None:
    """A new table says what vouches for it, and is filled here; without its rows it is named."""
    listed = SQLITE if isinstance(tables.at, InFolder) else POSTGRES
    assert tables.at.tables().keys() == listed.keys()
    wrong = {}
    for table, by in listed.items():
        if by is By.UNUSED:
            assert not tables.at.tables()[table], table
            continue
        assert tables.at.tables()[table], f"the bench fills {table}"
        tables.at.emptied(table)
        judge = tables.judge()
        if judge.verdict != ("unreadable" if by in SILENT else "named"):
            wrong[table] = (judge.verdict, judge.said)
    assert not wrong


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    bench = Bench(tmp_path_factory.mktemp("files"), "workspace")
    bench.build()
    return bench


def kind_of(path: str) -> str:
    parts = path.split("/")
    if parts[0] != "blobs" and len(parts) > 1:
        parts[0] = "RUN"
    if len(parts) > 1 and parts[-2] in ("checkpoints", "blobs", "decisions"):
        parts[-1] = "N"
    return "/".join(parts)


def test_each_file_of_a_workspace_has_its_voucher(files: Bench) -> None:
    """A new file says what vouches for it; where it is gone that is named."""
    assert isinstance(files.at, InFolder)
    there: dict[str, str] = {}
    for place in files.at.places():
        there.setdefault(kind_of(place.removeprefix("ws/")), place)
    assert there.keys() == FILES.keys()
    wrong = {}
    for kind, place in there.items():
        files.at.removed(place)
        judge = files.judge()
        if judge.verdict != ("unreadable" if FILES[kind] in SILENT else "named"):
            wrong[kind] = (judge.verdict, judge.said)
    assert not wrong


def test_each_file_beside_a_database_has_its_voucher(tmp_path: Path) -> None:
    """The database and its anchor, each without the other."""
    bench = Bench(tmp_path, "sqlite")
    bench.build()
    assert isinstance(bench.at, InFolder)
    assert {p.name for p in bench.at.whole.iterdir()} == SQLITE_FILES.keys()
    for name in SQLITE_FILES:
        bench.at.removed(name)
        assert bench.judge().verdict == "named", name


def test_what_is_in_memory_ends_with_the_process() -> None:
    """The store in memory has no file that could be damaged: it takes none."""
    store = MemoryStore()
    assert store.url == "memory:" and not hasattr(store, "path") and not hasattr(store, "folder")
    assert asyncio.run(_opened(store)) == []


async def _opened(store: MemoryStore) -> list[str]:
    await store.open()
    try:
        return await store.run_ids()
    finally:
        await store.close()

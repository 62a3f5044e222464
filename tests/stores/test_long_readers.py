"""A reader that stays keeps the write-ahead log from starting anew: ``doctor`` names it, and once it has left the log is emptied (Harden 6)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import psycopg
import pytest
from tests.postgres.server import shared

from holdfast.core.errors import StoreFull
from holdfast.stores import PostgresStore, SqliteStore
from holdfast.stores.postgres import ground, upkeep
from holdfast.stores.sqlite import file as sqlite
from holdfast.testing.conformance import TTL, Script

READER = """
import apsw, sys
db = apsw.Connection(sys.argv[1])
db.execute("BEGIN; SELECT count(*) FROM log").fetchall()
print("reads", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def reader(path: Path) -> Iterator[int]:
    """Another process that reads one state of the store until the end."""
    with subprocess.Popen([sys.executable, "-c", READER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None and process.stdout.readline() == b"reads\n"
        yield process.pid
        process.stdin.close()
        process.wait()


async def test_a_long_reader_is_named_and_the_log_is_emptied_once_it_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "LOG_LIMIT", 100_000)
    path = tmp_path / "s.db"
    store = SqliteStore(path)
    await store.open()
    await store.register("w", TTL)
    script = await Script(store, "r1").begin("w")
    with reader(path) as pid:
        await script.steps(40, size=20_000)
        (told,) = await store.health()
        assert (told.code, told.severity) == ("snapshot_old", "warning") and told.repair_hint
        assert f"process {pid} (" in told.message and "began at 20" in told.message
        assert os.path.getsize(f"{path}-wal") > 100_000
    until = time.monotonic() + 60  # the anchor's thread looks each second
    while os.path.getsize(f"{path}-wal") > 100_000 and time.monotonic() < until:
        await store.wait_for_change(0.05)
    assert os.path.getsize(f"{path}-wal") <= 100_000
    assert await store.health() == []
    await script.steps(2)
    assert await store.verify() == []
    await store.close()


async def test_a_log_that_cannot_be_emptied_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``doctor`` names what stands in the way for as long as it does; it is tried again each second."""
    store = SqliteStore(tmp_path / "s.db")
    await store.open()

    def full(path: str, limit: int) -> bool:
        raise StoreFull("no room for it")

    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "begin_anew", full)
        until = time.monotonic() + 60
        while not (told := await store.health()) and time.monotonic() < until:
            await store.wait_for_change(0.05)
        assert [(p.code, p.severity) for p in told] == [("store_full", "warning")] and "cannot be emptied: no room for it" in told[0].message
    while await store.health() and time.monotonic() < until:
        await store.wait_for_change(0.05)
    assert await store.health() == []
    await store.close()


async def test_a_store_that_nobody_reads_from_has_nothing_to_say(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    await store.open()
    with contextlib.closing(apsw.Connection(store.path)) as db, db:
        db.execute("SELECT 1 FROM log").fetchall()
        assert await store.health() == []
    await store.close()


async def test_a_long_reader_of_postgres_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "OLD_SNAPSHOT_SECONDS", 0)
    store = PostgresStore(shared().fresh())
    await store.open()
    with psycopg.connect(shared().dsn(), application_name="report") as db:
        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        db.execute("SELECT count(*) FROM holdfast.log")
        (told,) = [p for p in await store.health() if p.code == "snapshot_old"]
        assert f"session {db.info.backend_pid} of holdfast (report, from this machine, since 20" in told.message
    await store.close()


def entries_read(index: str) -> int:
    """Of an index, how many entries all searches have gone through; sessions tell of theirs when they end."""
    with shared().admin("holdfast") as db:
        until = time.monotonic() + 60
        while db.execute("SELECT 1 FROM pg_stat_activity WHERE usename = 'holdfast' AND application_name = 'holdfast'").fetchone() and time.monotonic() < until:
            pass
        (read,) = db.execute("SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = %s", (index,)).fetchone() or (0,)
    return int(str(read))


async def test_a_claim_does_not_go_through_what_was_claimed_since_a_snapshot_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays in the index of what is due as long as the snapshot is held: a claim begins where what is due begins (issue 13, Must show 7)."""
    monkeypatch.setattr(ground, "EACH", 0.0)
    monkeypatch.setattr(ground, "FEW", 0)
    at = 1_800_000_000_000_000
    store = PostgresStore(shared().fresh(), now=lambda: at)
    before = entries_read("run_due")
    await store.open()
    await store.register("w", 3_600_000_000)
    with psycopg.connect(shared().dsn(user="postgres")) as db:
        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        db.execute("SELECT count(*) FROM holdfast.run")
        for n in range(40):
            for k in range(5):
                await Script(store, f"r{n}-{k}").submit()
            at += 10_000_000
            assert {c.run_id for c in await store.claim("w", [], None, limit=10)} == {f"r{n}-{k}" for k in range(5)}
        await Script(store, "late", priority=1).submit()
        await Script(store, "other", tenant_id="another").submit()
        assert {c.run_id for c in await store.claim("w", [], None, limit=10)} == {"late", "other"}, "lines that come anew are seen"
        await store.close()
        assert entries_read("run_due") - before < 40 * 50


async def test_a_run_with_an_earlier_time_is_found_though_a_claim_begins_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever commits late with an earlier time, and a clock that goes back: nothing is passed over for longer than until all is looked through again."""
    monkeypatch.setattr(ground, "EACH", 0.0)
    monkeypatch.setattr(ground, "FEW", 0)
    at = 1_800_000_000_000_000
    store = PostgresStore(shared().fresh(), now=lambda: at)
    await store.open()
    await store.register("w", 3_600_000_000)
    await Script(store, "r1").submit()
    assert [c.run_id for c in await store.claim("w", [], None, limit=10)] == ["r1"]
    at -= 600_000_000
    await Script(store, "r2").submit()
    assert [c.run_id for c in await store.claim("w", [], None, limit=10)] == ["r2"], "the clock went back"
    at += 600_000_000
    for name in ("r3", "r4"):  # where it begins has been seen
        await Script(store, name).submit()
        assert [c.run_id for c in await store.claim("w", [], None, limit=10)] == [name]
    at -= ground.MARGIN + 1_000_000
    await Script(store, "r5").submit()
    at += ground.MARGIN + 1_000_000
    assert await store.claim("w", [], None, limit=10) == []
    monkeypatch.setattr(ground, "WHOLE", 0.0)
    assert [c.run_id for c in await store.claim("w", [], None, limit=10)] == ["r5"]
    await store.close()

"""A reader that stays keeps the write-ahead log from starting anew: ``doctor`` names it, and once it has left the log is emptied (Harden 6)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
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
from holdfast.stores.postgres.queries import Q
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
        while left := db.execute("SELECT * FROM pg_stat_activity WHERE datname = 'holdfast' AND usename = 'holdfast'").fetchall():
            assert time.monotonic() < until, left
        (read,) = db.execute("SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = %s", (index,)).fetchone() or (0,)
    return int(str(read))


@contextlib.contextmanager
def snapshot() -> Iterator[None]:
    """A snapshot of all runs. What came and went under it is taken away afterwards: other tests count what they read."""
    with psycopg.connect(shared().dsn(user="postgres")) as db:
        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        db.execute("SELECT count(*) FROM holdfast.run")
        yield
    with shared().admin("holdfast") as db:
        db.execute("VACUUM (INDEX_CLEANUP ON) holdfast.run")


async def test_a_claim_does_not_go_through_what_was_claimed_since_a_snapshot_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays in the index of what is due as long as the snapshot is held: a claim begins where what is due begins (issue 13, Must show 7)."""
    monkeypatch.setattr(ground, "EACH", 0.0)
    monkeypatch.setattr(ground, "FEW", 0)
    at = 1_800_000_000_000_000
    store = PostgresStore(shared().fresh(), now=lambda: at)
    before = entries_read("run_due")
    await store.open()
    await store.register("w", 3_600_000_000)
    with snapshot():
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
    monkeypatch.setattr(ground, "PART", 0)
    assert [c.run_id for c in await store.claim("w", [], None, limit=10)] == ["r5"]
    await store.close()


LINES = {
    "priorities": [{"priority": n} for n in range(3)],
    "tenants": [{"tenant_id": name} for name in "abc"],
    "queues": [{"queue": name} for name in "abc"],
    "all of them": [{"queue": q, "priority": p, "tenant_id": t} for q in "ab" for p in (0, 5) for t in "xy"],
}


@pytest.mark.parametrize("kind", LINES)
async def test_nor_through_what_was_claimed_of_other_lines(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs come of several queues, priorities or tenants; those of one come and go while nothing is to come in the others."""
    for name, value in {"EACH": 0.0, "WHOLE": float("inf"), "FEW": 0}.items():
        monkeypatch.setattr(ground, name, value)
    at, lines, rounds = 1_800_000_000_000_000, LINES[kind], 48
    store = PostgresStore(shared().fresh(), now=lambda: at)
    before = entries_read("run_due")
    await store.open()
    await store.register("w", 3_600_000_000)
    with snapshot():
        for line in lines:
            await Script(store, f"first-{line}", **line).submit()
        while await store.claim("w", [], None, limit=3):
            at += 10_000_000
        for n in range(rounds):
            for k in range(5):
                await Script(store, f"r{n}-{k}", **lines[n % len(lines)]).submit()
            at += 10_000_000
            assert {c.run_id for c in await store.claim("w", [], None, limit=10)} == {f"r{n}-{k}" for k in range(5)}
        await store.close()
        read = entries_read("run_due") - before
    assert read < rounds * 60, read


@pytest.mark.parametrize(("busy", "other"), [("a", "b"), ("b", "a")])
async def test_a_queue_with_more_than_is_taken_keeps_no_other_waiting(busy: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EACH", "FEW"):
        monkeypatch.setattr(ground, name, 0)
    at = 1_800_000_000_000_000
    store = PostgresStore(shared().fresh(), now=lambda: at)
    await store.open()
    await store.register("w", 3_600_000_000)
    await Script(store, "other", queue=other).submit()
    taken: list[str] = []
    for n in range(6):
        for k in range(4):
            at += 1_000_000
            await Script(store, f"r{n}-{k}", queue=busy).submit()
        taken += [c.run_id for c in await store.claim("w", [], None, limit=2)]
    await store.close()
    assert "other" in taken and len(taken) == 12


async def test_what_is_to_come_is_found_whatever_of_it_is_known() -> None:
    """Each queue, priority and tenant once, whether it is known or lies above, between or below those that are."""
    dice = random.Random(7)
    store = PostgresStore(shared().fresh())
    await store.open()
    every = [(q, p, t) for q in ("a", "ab", "b") for p in (-3, 0, 2**31 - 1) for t in ("s", "t", "u")]
    there = set(dice.sample(every, 14))
    for n, (queue, priority, tenant) in enumerate(sorted(there)):
        await Script(store, f"r{n}", queue=queue, priority=priority, tenant_id=tenant).submit()
    await store.close()
    with shared().admin("holdfast") as db:
        for _ in range(200):
            some = sorted(dice.sample(every, dice.randrange(8)), reverse=True)
            known = [ground.Line(*line, *ground.BEGINNING) for line in some]
            asked = {name: list(value) if isinstance(value, tuple) else value for name, value in ground.ask_from(known).items()}
            found = db.execute(Q.due_lines, {**asked, "most_lines": 1000, "queues": None}).fetchall()
            assert sorted(line[:3] for line in found) == sorted(there), some
            assert {line[:3] for line in found if line[3:] == ground.BEGINNING} == there


@pytest.mark.parametrize("count", [1, 3])
async def test_a_run_that_stays_with_its_owner_is_not_written_anew(count: int) -> None:
    """Each time its row is written, a version of it stays behind as long as somebody holds a snapshot, and every look at the run goes through them all."""
    store = PostgresStore(shared().fresh())
    await store.open()
    await store.register("w", TTL)
    scripts = [await Script(store, f"r{n}").begin("w") for n in range(count)]

    def rows() -> list[tuple[object, ...]]:
        with shared().admin("holdfast") as db:
            return db.execute("SELECT run_id, ctid, xmin FROM holdfast.run ORDER BY run_id").fetchall()

    before = rows()
    for _ in range(30):
        await asyncio.gather(*(s.steps(1, size=20_000) for s in scripts))
    with shared().admin("holdfast") as db:
        (whole,) = db.execute("SELECT count(*) FROM holdfast.whole").fetchone() or (0,)
    assert int(str(whole)) >= 2 * count, "checkpoints were saved whole"
    assert rows() == before
    await scripts[0].wait()
    assert rows()[0] != before[0]
    assert await store.verify() == []
    await store.close()

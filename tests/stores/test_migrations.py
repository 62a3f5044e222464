"""From the schema of a past release to this one: what is kept, what a crash on the way leaves, and who is refused (§1.8)."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import Runtime
from holdfast.core import canon, codec, vouch
from holdfast.core.errors import LogRolledBack, StoreReadOnly, UnsupportedFormat
from holdfast.core.limits import Change, Limit, Rule
from holdfast.engine.keep.check import Checker
from holdfast.stores import SqliteStore, schema_version
from holdfast.stores.sqlite import connection
from holdfast.stores.sqlite.connection import MIGRATIONS
from holdfast.testing.conformance import TTL, Script, refused
from holdfast.testing.conformance_blobs import bulk, recording
from holdfast.testing.conformance_people import plan

LATEST = len(MIGRATIONS)
NEW = ("blob_use", "bucket", "call", "carry", "chunk", "offer", "pruned", "roll", "rule", "shelf", "shelf_roll", "sqlite_sequence", "tail", "vouch")
ORDERED = ("effect", "inbox", "intent", "schedule")
OLD = Path(__file__).resolve().parents[1] / "histories" / "0.1.0" / "store.db"

# Opens copies of the store, each in a process of its own that is killed before its n-th statement, until one comes through.
CHILD = """
import asyncio, os, shutil, signal, sys
import apsw
from holdfast.stores import SqliteStore

def trace(cursor, sql, bindings):
    global seen
    seen += 1
    if seen == number:
        os.kill(os.getpid(), signal.SIGKILL)
    return True

async def opened(path):
    store = SqliteStore(path)
    await store.open()
    await store.close()

apsw.connection_hooks.append(lambda db: setattr(db, "exec_trace", trace))
number, status = 0, -1
while status:
    number, seen = number + 1, 0
    shutil.copy(sys.argv[1], f"{sys.argv[2]}/{number}.db")
    if (pid := os.fork()) == 0:
        asyncio.run(opened(f"{sys.argv[2]}/{number}.db"))
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    print(status, flush=True)
"""
OPEN = """
import asyncio, sys
from holdfast.stores import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    await store.close()

asyncio.run(main())
"""


def child(program: str, *words: Path) -> subprocess.Popen[str]:
    """A program in a process of its own."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen([sys.executable, "-c", program, *map(str, words)], stdout=subprocess.PIPE, text=True, env=env)


def grown(before: dict[str, list[Any]], path: Path) -> dict[str, list[Any]]:
    """The tables as they were and the new ones: empty, but for a voucher for each record beside the log (§12.1), a digest in each run's row, which is
    not marked, and says when it ended; where the log of each run ends; and the number by which records are ordered, kept once more."""
    after = tables(path)
    found, runs = after["vouch"], after["run"]
    assert [r[:-3] for r in runs] == before["run"] and all(len(seal) == canon.HASH_BYTES and not behind for *_, seal, behind, _ in runs)
    assert [r[-1] for r in runs] == [codec.decode_run(doc).finished_at for doc in map(_doc_of, before["run"])] and any(r[-1] for r in runs)
    beside = sum(len(before[name]) for name in ("effect", "inbox", "claim", "token", "intent", "ledger", "schedule", "worker"))
    assert len(found) == beside > 0, "each record that was there is vouched for"
    assert all([r[:-1] for r in after[name]] == before[name] and all(r[-1] == r[0] for r in after[name]) for name in ORDERED)
    ids = {"schedule": [r[1] for r in before["schedule"]], "limit": [], "pruned": [], "token": [r[0].hex() for r in before["token"]]}
    assert sorted(after["roll"]) == sorted((kind, len(each), sum(vouch.weigh(kind, id) for id in each)) for kind, each in ids.items()), "what no log tells of is counted"
    assert after["tail"] == sorted((run[0], run[2]) for run in before["run"]), "where the log of each run ends"
    return {**before, **{name: [] for name in NEW}, "tail": after["tail"], "roll": after["roll"], "vouch": found, "run": runs, **{name: after[name] for name in ORDERED}}


def _doc_of(row: tuple[Any, ...]) -> bytes:
    """The encoded part of a run's row, which was its last column."""
    return bytes(row[-1])


def tables(path: Path, skip: tuple[str, ...] = ()) -> dict[str, list[Any]]:
    """All rows of all tables, by name."""
    db = apsw.Connection(str(path))
    names = [n for (n,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name") if n not in skip]
    found = {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in names}
    db.close()
    return found


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A database of release 0.1.0."""
    path = tmp_path / "store.db"
    shutil.copy(OLD, path)
    assert schema_version(f"sqlite:///{path}") == 1
    return path


def version(path: Path) -> int | None:
    return schema_version(f"sqlite:///{path}")


async def test_no_row_changes_and_new_ones_fit(old: Path) -> None:
    """§1.8: every table is as it was, and what the schema is for can be written."""
    before = tables(old)
    store = SqliteStore(old)
    await store.open()
    assert isinstance(store.suspect, LogRolledBack), "the file came without its anchor"
    assert tables(old) == grown(before, old)
    await store.acknowledge()
    await store.register("w", TTL)
    script = await Script(store, "r1").begin("w")
    await script.write(recording(script, bulk()))
    assert await store.blob(bulk().digest) == bulk().data
    assert await store.verify() == []
    await store.close()
    assert version(old) == LATEST


async def test_a_crash_at_any_statement_of_the_migration(old: Path, tmp_path: Path) -> None:
    """T-20's like for a schema: killed before any statement, the file has the old schema or the new one, and nothing else has changed."""
    before = tables(old)
    seen: set[int | None] = set()
    out, _ = child(CHILD, old, tmp_path).communicate(timeout=120)
    ends = [int(word) for word in out.split()]
    assert ends[-1] == 0, "one came through"
    assert set(ends[:-1]) == {signal.SIGKILL}
    assert len(ends) > 8, "the uncrashed one did the work"
    for number in range(1, len(ends)):
        path = tmp_path / f"{number}.db"
        left = version(path)
        seen.add(left)
        found = tables(path, NEW)
        whole = before if left == 1 else grown(before, path)
        assert found == {name: whole[name] for name in before}, number
        assert (set(NEW) & tables(path).keys() == set(NEW)) is (left == LATEST)
        store = SqliteStore(path)
        await store.open()
        await store.close()
        assert (version(path), tables(path)) == (LATEST, grown(before, path))
    assert seen == {1, LATEST}, "killed on either side"


async def test_what_a_release_before_has_written_is_counted(tmp_path: Path) -> None:
    """§12.1: schema 18 counts what is there; from then on what is lost is told."""
    path = tmp_path / "s.db"
    store = SqliteStore(path)
    await store.open()
    for name in ("a", "b"):
        await store.put_schedule(plan(name, 5), None)
        await store.put_rule(Rule(name).change(Change(1, "ada", "set", Limit(in_flight=1))), None)
    await store.close()
    kept = tables(path)["roll"]
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.execute("DROP TABLE roll; DROP TABLE shelf_roll; PRAGMA user_version = 17")
    await store.open()
    assert await Checker(store).all() == []
    await store.close()
    assert version(path) == LATEST and tables(path)["roll"] == kept and {(kind, n) for kind, n, _ in kept} == {("schedule", 2), ("limit", 2), ("token", 0), ("pruned", 0)}


async def test_rows_of_shelves_that_a_release_before_has_put_are_counted(tmp_path: Path) -> None:
    """§12.1: schema 19 counts them by shelf; from then on one that is lost together with its voucher is named."""
    path = tmp_path / "s.db"
    store = SqliteStore(path)
    await store.open()
    await store.shelve("cups", {"a": b"1", "b": b"2"})
    await store.shelve("plates", {"a": b"3"})
    await store.close()
    kept = tables(path)["shelf_roll"]
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.execute("DROP TABLE shelf_roll; PRAGMA user_version = 18")
    await store.open()
    assert await Checker(store).all() == []
    assert version(path) == LATEST and tables(path)["shelf_roll"] == kept and [(name, n) for name, n, _ in kept] == [("cups", 2), ("plates", 1)]
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.execute("DELETE FROM shelf WHERE name = 'plates'; DELETE FROM vouch WHERE under = 'plates'")
    assert [p.code for p in await Checker(store).all()] == ["shelf_record_missing"]
    await store.close()


def test_processes_that_come_at_once_migrate_once(old: Path) -> None:
    """§10.14: whoever is second finds it done."""
    before = tables(old)
    children = [child(OPEN, old) for _ in range(4)]
    assert [c.communicate(timeout=60) and c.returncode for c in children] == [0] * 4
    assert (version(old), tables(old)) == (LATEST, grown(before, old))


async def test_a_file_that_cannot_be_written(old: Path) -> None:
    """§1.8: read-only and old: it says which schema it has and who can help; nothing is touched."""
    before = old.read_bytes()

    def readonly(db: apsw.Connection) -> None:
        db.pragma("query_only", True)

    apsw.connection_hooks.append(readonly)
    try:
        error = await refused(StoreReadOnly, SqliteStore(old).open())
    finally:
        apsw.connection_hooks.remove(readonly)
    assert f"has schema 1, this release needs {LATEST}" in error.message
    assert "holdfast migrate" in error.hint
    assert old.read_bytes() == before


async def test_a_past_release_refuses_the_new_schema(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """§1.8: with both numbers; and it changes nothing."""
    store = SqliteStore(old)
    await store.open()
    await store.close()
    before = tables(old)
    monkeypatch.setattr(connection, "MIGRATIONS", MIGRATIONS[:1])
    error = await refused(UnsupportedFormat, SqliteStore(old).open())
    assert (f"has schema {LATEST}, this release knows 1" in error.message, error.hint) == (True, "use the release that wrote it")
    assert (version(old), tables(old)) == (LATEST, before)


def _as_before(statement: str) -> str:
    """It is given the same values; what it does not write, it compares with itself."""
    if ", ended, seal)" in statement:
        statement = statement.replace("?25, ?26", "iif(?26 IS ?26, ?25, ?25)")
    if (end := re.search(r", ended = (\?\d+)", statement)) is not None:
        statement = statement.replace(end[0], "").replace("\nWHERE", f"\nWHERE {end[1]} IS {end[1]} AND")
    statement = re.sub(r"EXISTS \(SELECT 1 FROM tail\b[^()]*\)", "0", statement)
    return re.sub(r", behind = 0|,\s+seal = standing\([^)]*\)|,\s+(seal|ended)\b|,\s+standing\([^)]*\)", "", statement)


@contextlib.contextmanager
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As release 0.1.0 was: its schema, and statements that know of no digest in a run's row, of nobody who is marked in it, of no end, and of no tail."""
    with monkeypatch.context() as patch:
        patch.setattr(connection, "MIGRATIONS", MIGRATIONS[:1])
        for name in ("run_insert", "runs_insert", "run_update", "ends_run", "run_state", "run_load", "run_get", "claim_due", "claim_one"):
            patch.setattr(connection.Q, name, _as_before(getattr(connection.Q, name)))
        patch.setattr(connection.Q, "tail_put", "SELECT ?, ? WHERE 0")
        alone = connection.Q.lone_ways.replace(", ended = new.ended", "").replace(", seal = standing(run_id, fence, NULL, NULL, 0, turn)", "")
        alone = alone.replace("INSERT OR REPLACE INTO tail (run, log) SELECT id, tip FROM run WHERE id = new.run;", "")
        patch.setattr(connection.Q, "lone_ways", alone)
        yield


def known_before(path: Path, owner: str) -> None:
    """Registers a worker as release 0.1.0 did: nothing vouches for it."""
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.execute("INSERT INTO worker VALUES (?, 0, ?, 'some', 0, 'here', 1)", (owner, time.time_ns() // 1000 + TTL))


async def test_a_past_release_that_is_at_work_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rolling deploy: the old process has the file open when the new one migrates it; both write."""
    path = tmp_path / "s.db"
    with as_before(monkeypatch):
        before = SqliteStore(path)
        await before.open()
        known_before(path, "old")
        script = await (await Script(before, "r1").begin("old")).steps(2)
    after = SqliteStore(path)
    await after.open()
    assert version(path) == LATEST
    await script.steps(2)
    await after.register("new", TTL)
    other = await Script(after, "r2").begin("new")
    await other.write(recording(other, bulk()))
    with as_before(monkeypatch):
        await script.complete()
    assert [len(await after.rows(r)) for r in ("r1", "r2")] == [6, 2]
    assert await after.verify() == []
    assert not [p for p in await Checker(after).all() if "'ended'" in p.message], "the old process wrote no time at which its run ended, and that is no damage"
    assert (await after.prune(after.now() + 1, dry=True)).run_ids == (await after.prune(after.now() + 1)).run_ids == ("r1",)
    await before.close()
    await after.close()


async def test_whole_checkpoints_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """§4.5: they move to a table with a rowid; each is found by its run as before, by its bytes."""
    path = tmp_path / "s.db"
    with as_before(monkeypatch):
        before = SqliteStore(path)
        await before.open()
        known_before(path, "old")
        for name in ("r1", "r2"):
            await (await Script(before, name).begin("old")).steps(3, size=60_000)
        was = sorted(tables(path)["whole"])
        await before.close()
    assert len(was) >= 2
    after = SqliteStore(path)
    await after.open()
    now = [await after.load(r) for r in ("r1", "r2")]
    assert all(x is not None and x.whole is not None for x in now)
    assert sorted(row[1:] for row in tables(path)["whole"]) == was
    assert await after.verify() == []
    await after.close()


async def test_an_old_backup_is_restored_into_a_new_store(old: Path, tmp_path: Path) -> None:
    """§1.9: what is poured in is brought up to date, under a new incarnation."""
    async with Runtime(f"sqlite:///{tmp_path}/new.db") as rt:
        was = rt.store.incarnation
        await rt.restore(old)
        assert rt.store.incarnation != was
        assert len(await rt.runs()) == 7
        await rt.store.register("w", TTL)
        script = await Script(rt.store, "r1").begin("w")
        await script.write(recording(script, bulk()))
    assert version(tmp_path / "new.db") == LATEST
    assert version(old) == 1, "the backup stays as it was"


async def test_a_failed_migration_leaves_the_old_schema(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it or none of it: a script that breaks half-way is rolled back, and the next release finds schema 1."""
    before = tables(old)
    with monkeypatch.context() as patch:
        patch.setattr(connection, "MIGRATIONS", [*MIGRATIONS, "CREATE TABLE later (id); SELECT a FROM nowhere;"])
        with pytest.raises(Exception, match="nowhere"):
            await SqliteStore(old).open()
    assert (version(old), tables(old)) == (1, before)
    store = SqliteStore(old)
    await store.open()
    await store.close()
    assert version(old) == LATEST

"""Damage to a store's file harms what it hits and nothing else, and is named (X-21, X-22, X-27, §12)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.faults.faulty import Faulty
from tests.postgres.server import shared

from holdfast import Context, Graph, Runtime, State
from holdfast.core.errors import ChainBroken, IncarnationChanged, StoreError, StoreMoved
from holdfast.engine.keep.check import Checker
from holdfast.stores import PostgresStore, SqliteStore, WorkspaceStore
from holdfast.stores.sqlite import anchor, connection
from holdfast.testing.conformance import TTL, Script, refused, signal


class Count(State):
    n: int = 0


def graph() -> Graph[Count]:
    made = Graph("count", Count, version="1")

    @made.node(start=True)
    async def ask(state: Count, ctx: Context) -> dict[str, Any]:
        await ctx.approve("go on?")
        return {"n": state.n + 1}

    return made


@contextlib.asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def by_hand(path: Path, *statements: str) -> None:
    with contextlib.closing(apsw.Connection(str(path))) as db:
        for statement in statements:
            db.execute(statement)


async def three(path: Path) -> list[str]:
    """Three runs that wait for a person."""
    async with Runtime(f"sqlite:///{path}", skills=[graph()]) as rt:
        return [(await rt.invoke("count", {})).run_id for _ in range(3)]


BAD = "CAST(x'66ff6f' AS TEXT)"
COLUMNS = ("run_id", "status", "step", "head", "tenant_id", "skill_id", "thread_id", "session_key", "lane", "queue", "lineage_root", "fingerprint")


@pytest.mark.parametrize("column", COLUMNS)
async def test_one_text_that_is_no_utf8_harms_one_run(tmp_path: Path, column: str) -> None:
    """X-22: lists, the checker and workers go on with the rest; the checker names it."""
    path = tmp_path / "s.db"
    first, second, third = await three(path)
    by_hand(path, f"UPDATE run SET {column} = {BAD} WHERE run_id = '{second}'")
    async with Runtime(f"sqlite:///{path}", skills=[graph()]) as rt:
        listed = {r.run_id for r in await rt.runs()}
        assert {first, third} <= listed
        problems = await rt.check()
        assert problems and not {p.run_id for p in problems} & {first, third}
        for run_id in (first, third):
            await rt.approve(run_id, actor="ada")
            assert (await rt.get(run_id)).status == "completed"
        await rt.worker(until_idle=True)


async def test_a_lost_incarnation_is_named(tmp_path: Path) -> None:
    """X-22: the store opens for reading, says so, and an operator sets it right."""
    path = tmp_path / "s.db"
    runs = await three(path)
    by_hand(path, "DELETE FROM meta")
    async with opened(path) as store:
        assert isinstance(store.suspect, IncarnationChanged)
        assert [r async for r in Checker(store).run_ids()] == sorted(runs)
        assert "store_incarnation_changed" in {p.code for p in await Checker(store).all()}
        await refused(IncarnationChanged, store.put(signal(runs[0], "k", 0)))
        await store.acknowledge()
        await store.put(signal(runs[0], "k", 0))


async def test_a_damaged_index_is_named_and_made_anew(tmp_path: Path) -> None:
    """§12.2: quick_check does not see it, and it hid waits and due runs for ever."""
    path = tmp_path / "s.db"
    run_id = (await three(path))[0]
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.pragma("wal_checkpoint(TRUNCATE)")
        number, size = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'run_tenant'").get, db.pragma("page_size")
    data = bytearray(path.read_bytes())
    at = data.index(run_id.encode(), (number - 1) * size)
    assert at < number * size
    data[at + len(run_id) - 1] ^= 1
    path.write_bytes(data)
    async with opened(path) as store:
        assert {p.code for p in await Checker(store).all()} == {"index_damaged"}
        await store.reindex()
        assert await Checker(store).all() == []


async def test_an_index_that_is_gone_is_named_and_made_anew(tmp_path: Path) -> None:
    """§10.14: what must be there once rests on unique indexes. SQLite's own check misses none."""
    path = tmp_path / "s.db"
    await three(path)
    with contextlib.closing(apsw.Connection(str(path))) as db:
        names = [str(name) for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL")]
        triggers = [str(name) for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'")]
    assert triggers
    by_hand(path, *[f"DROP INDEX {name}" for name in names], *[f"DROP TRIGGER {name}" for name in triggers], f"CREATE INDEX {names[0]} ON log (seq)")
    async with opened(path) as store:
        found = await Checker(store).all()
        assert {p.code for p in found} == {"index_damaged"} and all(any(f" {name} " in p.message for p in found) for name in (*names, *triggers))
        await store.reindex()
        assert await Checker(store).all() == []


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_trigger_of_somebodys_is_named_before_it_does_anything(kind: str, tmp_path: Path) -> None:
    """It may delete a row together with its digest. It was told of only after that, if at all."""
    store: SqliteStore | PostgresStore = SqliteStore(tmp_path / "s.db") if kind == "sqlite" else PostgresStore(shared().fresh("triggered"))
    await store.open()
    assert await store.verify() == []
    if kind == "sqlite":
        by_hand(tmp_path / "s.db", "CREATE TRIGGER theirs AFTER INSERT ON shelf BEGIN DELETE FROM vouch; END")
        assert [(p.code, p.severity, "DROP TRIGGER \"theirs\"" in p.repair_hint) for p in await store.verify()] == [("trigger_unknown", "warning", True)]
    else:
        with shared().admin("triggered") as db:
            db.execute("CREATE OR REPLACE FUNCTION theirs() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
            db.execute("CREATE TRIGGER theirs BEFORE INSERT ON holdfast.shelf FOR EACH ROW EXECUTE FUNCTION theirs()")
            db.execute("CREATE RULE theirs AS ON DELETE TO holdfast.effect DO INSTEAD NOTHING")
        found = [(p.code, p.severity, p.message.partition(" is not ")[0], p.repair_hint) for p in await store.verify()]
        assert [told[:3] for told in found] == [("trigger_unknown", "warning", "the trigger theirs on the table shelf"), ("trigger_unknown", "warning", "the rule theirs on the table effect")]
        with shared().admin("triggered") as db:
            for *_, way_out in found:
                db.execute(way_out.partition(": ")[2].partition(";")[0].encode())
        assert await store.verify() == []
    await store.close()


@pytest.mark.parametrize(("change", "code"), [("DROP TABLE effect", "unsupported_format"), ("PRAGMA user_version = 5", "store_corrupt"), ("PRAGMA user_version = 0", "store_corrupt")])
async def test_a_schema_that_is_another_one_is_said_to_be(tmp_path: Path, change: str, code: str) -> None:
    """A worker could only try again for ever."""
    path = tmp_path / "s.db"
    runs = await three(path)
    by_hand(path, change)
    with pytest.raises(StoreError) as told:
        async with opened(path) as store:
            await store.effects(runs[0])
    assert told.value.code == code and "backup" in told.value.hint and not told.value.passing


async def test_events_are_held_against_the_chain(tmp_path: Path) -> None:
    """§1.9: an approver that was altered is not shown, from the start or from a cursor."""
    path = tmp_path / "s.db"
    run_id = (await three(path))[0]
    async with Runtime(f"sqlite:///{path}", skills=[graph()]) as rt:
        await rt.approve(run_id, actor="adalbert")
        events = await rt.events(run_id)
    for after in (events[3].seq, events[-2].seq):
        async with Runtime(f"sqlite:///{path}") as rt:
            assert [e.seq for e in await rt.events(run_id, after=after)] == [e.seq for e in events if e.seq > after]
    with contextlib.closing(apsw.Connection(str(path))) as db:
        for number, data in db.execute("SELECT id, data FROM log").fetchall():
            db.execute("UPDATE log SET data = ? WHERE id = ?", (data.replace(b"adalbert", b"adalbern"), number))
    decided = next(e.seq for e in events if e.type == "wait.decided")
    async with Runtime(f"sqlite:///{path}") as rt:
        for after in (0, decided - 1):
            with pytest.raises(ChainBroken):
                await rt.events(run_id, after=after)


MOVES = {
    "removed": lambda path: path.unlink(),
    "moved": lambda path: path.rename(path.with_name("elsewhere.db")),
    "replaced": lambda path: (shutil.copy(path, path.with_name("copy.db")), path.with_name("copy.db").replace(path)),
    "replaced by another file": lambda path: (path.rename(path.with_name("elsewhere.db")), path.symlink_to(path.with_name("elsewhere.db"))),
    "emptied": lambda path: os.truncate(path, 0),
}


@pytest.mark.parametrize("how", MOVES)
async def test_a_store_that_moves_is_noticed(tmp_path: Path, how: str) -> None:
    """X-27: nothing is acknowledged into a file that nobody will find again."""
    path = tmp_path / "s.db"
    async with opened(path) as store:
        await store.register("w", TTL)
        script = await (await Script(store, "r1").begin("w")).steps(2)
        MOVES[how](path)
        error = await refused(StoreMoved, script.write(script.step()))
        assert how in error.message or "removed or moved" in error.message
        assert error.hint.startswith("end the processes that use it; then")  # to put it back is not enough
        await refused(StoreMoved, store.put(signal("r1", "k", 0)), "store_moved")
        together = [Script(store, f"n{n}") for n in range(3)]
        told = await asyncio.gather(*[s.write(s.first()) for s in together], return_exceptions=True)
        assert all(isinstance(e, StoreMoved) for e in told)


async def test_an_idle_store_notices_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X-27: within a second, by the thread that syncs the anchor."""
    monkeypatch.setattr(anchor, "SYNC_EVERY", 0.01)
    path = tmp_path / "s.db"
    async with opened(path) as store:
        path.unlink()
        for _ in range(500):
            await store.wait_for_change(0.01)
            if store.suspect is not None:
                break
        assert isinstance(store.suspect, StoreMoved)
        assert "store_moved" in {p.code for p in await store.verify()}


LOGS = {
    "removed": lambda path: path.unlink(),
    "replaced": lambda path: (shutil.copy(path, path.with_name("copy")), path.with_name("copy").replace(path)),
}


@pytest.mark.parametrize("kind", ["s.db-wal", "s.db-shm"])
@pytest.mark.parametrize("how", LOGS)
async def test_a_write_ahead_log_that_moves_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, kind: str) -> None:
    """X-27: another process would begin another log beside it, and what is written to this one would go with its process."""
    monkeypatch.setattr(anchor, "SYNC_EVERY", 0.01)
    path = tmp_path / "s.db"
    async with opened(path) as store:
        await store.register("w", TTL)
        script = await (await Script(store, "r1").begin("w")).steps(2)  # it is known from the first commit on, however soon it goes
        LOGS[how](path.with_name(kind))
        for _ in range(500):
            await store.wait_for_change(0.01)
            if store.suspect is not None:
                break
        error = await refused(StoreMoved, script.write(script.step()))
        assert kind in error.message and error.hint
    async with opened(path) as store:
        assert len(await store.rows("r1")) == 3, "an orderly end has brought all of it into the file"


MOVED = {
    "removed": shutil.rmtree,
    "moved": lambda folder: folder.rename(folder.with_name("elsewhere")),
    "replaced": lambda folder: (shutil.copytree(folder, folder.with_name("copy")), shutil.rmtree(folder), folder.with_name("copy").rename(folder)),
}


@pytest.mark.parametrize("how", MOVED)
async def test_a_workspace_that_moves_is_noticed(tmp_path: Path, how: str) -> None:
    """X-27: nothing is acknowledged into a folder that nobody will find again, and none is made in its place."""
    folder = tmp_path / "ws"
    store = WorkspaceStore(folder)
    await store.open()
    await store.register("w", TTL)
    script = await (await Script(store, "r1").begin("w")).steps(2)
    MOVED[how](folder)
    error = await refused(StoreMoved, script.write(script.step()), "store_moved")
    assert str(folder) in error.message and error.hint
    await refused(StoreMoved, store.put(signal("r1", "k", 0)), "store_moved")
    await refused(StoreMoved, store.shelve("cups", {"a": b"1"}), "store_moved")
    assert "store_moved" in {p.code for p in await store.verify()}
    assert folder.exists() is (how == "replaced")
    await store.close()


FILES = {
    "removed": lambda path: path.unlink(),
    "older": lambda path: path.write_bytes(path.read_bytes()[: path.read_bytes().rindex(b"\n", 0, -1) + 1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() * 2),
}


@pytest.mark.parametrize("how", FILES)
@pytest.mark.parametrize("written", [True, False], ids=["written", "only read"])
async def test_a_log_that_moves_under_a_workspace_is_noticed(tmp_path: Path, how: str, written: bool) -> None:
    """X-27: a commit follows the one before in the same file, or it is none."""
    store = WorkspaceStore(tmp_path / "ws")
    await store.open()
    await store.register("w", TTL)
    script = await (await Script(store, "r1").begin("w")).steps(2)
    if not written:
        await store.close()
        store = WorkspaceStore(tmp_path / "ws")
        await store.open()
        await store.register("v", TTL)
        script.store = store
        (claim,) = await store.claim("v", [], None, limit=1)
        loaded = await store.load("r1")
        assert loaded is not None
        script.fence, script.tip = claim.fence, loaded.tip
    FILES[how](Path(store.place("r1"), "events.jsonl"))
    before = {p: p.read_bytes() for p in tmp_path.rglob("events.jsonl")}
    await refused(StoreMoved, script.write(script.step()), "store_moved")
    assert {p: p.read_bytes() for p in tmp_path.rglob("events.jsonl")} == before
    other = await Script(store, "r2").begin("w" if written else "v")
    assert len(await store.rows("r2")) == 1 and other.tip is not None, "the others go on"
    await store.close()


async def test_an_anchor_that_cannot_be_synced_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X-14: one EIO in the thread that syncs: it goes on, writes stop, and everybody is told why."""
    monkeypatch.setattr(anchor, "SYNC_EVERY", 0.01)
    path = tmp_path / "s.db"
    real, failed = os.fsync, 0

    def failing(fd: int) -> None:
        nonlocal failed
        if os.readlink(f"/proc/self/fd/{fd}").endswith("-anchor"):
            failed += 1
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    async with opened(path) as store:
        await Script(store, "r1").submit()
        monkeypatch.setattr(os, "fsync", failing)
        await store.put(signal("r1", "k", 0))
        for _ in range(500):
            await store.wait_for_change(0.01)
            if failed > 1:
                break
        assert failed > 1, "the thread lives"
        assert (await refused(StoreError, store.put(signal("r1", "l", 0)), "store_io")).hint
        assert [r.code for r in await store.verify()] == ["store_io"]
        monkeypatch.setattr(os, "fsync", real)


async def test_a_backup_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Harden 5: no partial file that a restore would take for a backup."""
    path = tmp_path / "s.db"
    await three(path)

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with opened(path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            await refused(StoreError, store.backup(tmp_path / "b.db"), "store_full")
        assert [p.name for p in tmp_path.iterdir() if p.name.startswith("b.db")] == []
        await store.backup(tmp_path / "b.db")
    assert (tmp_path / "b.db").stat().st_size > 0


async def test_a_damaged_run_does_not_keep_a_worker_busy(tmp_path: Path) -> None:
    """Poison: a run whose inbox is damaged is set aside once, with the reason, and the others are driven."""
    path = tmp_path / "s.db"
    first, second, _ = await three(path)
    async with Runtime(f"sqlite:///{path}", skills=[graph()]) as rt:
        await rt.decide(first, "approve", actor="ada", resume=False)
        await rt.signal(second, "x", 1)
    by_hand(path, "UPDATE inbox SET command = x'00' WHERE taken IS NULL")
    async with Runtime(f"sqlite:///{path}", skills=[graph()]) as rt:
        await asyncio.wait_for(rt.worker(until_idle=True), 20)
        assert {p.run_id for p in await rt.check() if "_record_" in p.code} <= {first, second}


@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT"])
@pytest.mark.parametrize("number", [1, 2, 3, 7, 20])
async def test_a_store_that_cannot_be_made_leaves_nothing(tmp_path: Path, number: int, error: str) -> None:
    """Point 5: a full disk while creating is told so, and the next to come finds no half file."""
    folder = tmp_path / "full"
    folder.mkdir()
    layer = Faulty(str(folder))
    layer.plan = ("write", number, error, True)
    with layer.on():
        await refused(StoreError, SqliteStore(folder / "s.db").open(), "store_full")
    assert layer.met and os.listdir(folder) == []
    async with opened(folder / "s.db") as store:
        assert await store.run_ids() == []


@pytest.mark.parametrize("kind", ["write", "fsync", "rename"])
@pytest.mark.parametrize("number", [1, 2, 3])
async def test_an_export_that_finds_no_room_leaves_nothing(tmp_path: Path, kind: str, number: int) -> None:
    folder = tmp_path / "away"
    layer = Faulty(str(folder))
    async with Runtime(f"sqlite:///{tmp_path}/s.db", skills=[graph()]) as rt:
        run = await rt.invoke(graph(), {})
        layer.plan = (kind, number, "ENOSPC", True)
        with layer.on():
            await refused(StoreError, rt.export(run.run_id, folder), "store_full")
        assert layer.met and not folder.exists()
        await rt.export(run.run_id, folder)


def test_an_index_that_finds_no_room_is_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite tells of it by an I/O error of its own."""
    error = apsw.IOError("disk I/O error")
    assert connection.translate(error, str(tmp_path / "s.db")).code == "store_io"
    error.extendedresult = apsw.SQLITE_IOERR_SHMSIZE
    assert connection.translate(error, str(tmp_path / "s.db")).code == "store_io"
    monkeypatch.setattr(connection, "INDEX_BYTES", 1 << 62)
    assert connection.translate(error, str(tmp_path / "s.db")).code == "store_full"
    assert connection.translate(error, str(tmp_path / "no" / "s.db")).code == "store_io"

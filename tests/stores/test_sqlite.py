"""What only SQLite can get wrong: files that go backwards, several processes, full disks, damaged bytes."""

import asyncio
import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

from holdfast.core import codec
from holdfast.core import events as ev
from holdfast.core.errors import (
    EventUnreadable,
    HoldfastError,
    InboxUnread,
    IncarnationChanged,
    LeaseLost,
    LogRolledBack,
    RecordDamaged,
    RunNotFound,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    UnknownStatus,
    UnsupportedFormat,
    UsageError,
)
from holdfast.core.lease import COUNTER_BITS, RELEASE, Alive, Take
from holdfast.core.limits import Limit, Rule
from holdfast.stores import MemoryStore, SqliteStore, open_url
from holdfast.stores.sqlite import connection as connection_module
from holdfast.stores.sqlite import file as file_module
from holdfast.stores.sqlite import writer as writer_module
from holdfast.stores.sqlite.anchor import Mark, pack, unpack
from holdfast.stores.sqlite.connection import Pace, Q, Waits, connect
from holdfast.stores.sqlite.turns import Turns
from holdfast.testing.conformance import TTL, Script, rebuilt, refused
from holdfast.testing.conformance import signal as signal_to

PROLOGUE = """
import asyncio, os, sys
from holdfast.core import events as ev
from holdfast.core.errors import HoldfastError
from holdfast.stores import SqliteStore
from holdfast.testing.conformance import Script, TTL
path, me = sys.argv[1], sys.argv[2]
"""


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(body())  # type: ignore[arg-type]


def spawn(path: Path, name: str, program: str) -> subprocess.Popen[str]:
    """Another process on the same file."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    code = PROLOGUE + textwrap.dedent(program)
    return subprocess.Popen([sys.executable, "-c", code, str(path), name], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env=env)


def acknowledged(path: Path, events: int = 100) -> None:
    """A process that acknowledges this many events and is killed."""
    program = f"""
    async def main():
        store = SqliteStore(path)
        await store.open()
        await store.register(me, TTL)
        script = await Script(store, "r1").begin(me)
        while script.tip.seq < {events}:
            await script.steps(1)
        print("done", flush=True)
        sys.stdin.readline()
    asyncio.run(main())
    """
    child = spawn(path, "victim", program)
    assert child.stdout is not None
    assert child.stdout.readline() == "done\n"
    child.kill()
    child.wait()
    child.stdout.close()
    assert child.stdin is not None
    child.stdin.close()


def wal(path: Path) -> Path:
    return Path(f"{path}-wal")


async def opened(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    await store.open()
    return store


# -- X-01, §1.9: a log that went backwards ----------------------------------------------------------


def lose_wal(path: Path) -> None:
    wal(path).unlink()


def truncate_wal(path: Path) -> None:
    with wal(path).open("r+b") as f:
        f.truncate(wal(path).stat().st_size // 2)


def cut_last_frame(path: Path) -> None:
    with wal(path).open("r+b") as f:
        f.truncate(wal(path).stat().st_size - 100)


def flip_bit(path: Path) -> None:
    data = bytearray(wal(path).read_bytes())
    data[len(data) // 2] ^= 0x10
    wal(path).write_bytes(data)


def put_old_copy_back(path: Path) -> None:
    wal(path).unlink()
    shutil.copy(f"{path}.old", path)


def lose_everything(path: Path) -> None:
    wal(path).unlink()
    path.unlink()


@pytest.mark.parametrize("damage", [lose_wal, truncate_wal, cut_last_frame, flip_bit, put_old_copy_back, lose_everything])
def test_log_rolled_back_is_named(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """X-01: 100 acknowledged events, kill -9, damage: opening names it, reads work, nothing can be written until acknowledged."""
    path = tmp_path / "s.db"

    async def body() -> None:
        store = await opened(path)
        await store.register("early", TTL)
        await Script(store, "r0").begin("early")
        await store.close()
        shutil.copy(path, f"{path}.old")
        acknowledged(path)
        Path(f"{path}-shm").unlink(missing_ok=True)
        damage(path)
        store = await opened(path)
        assert isinstance(store.suspect, LogRolledBack)
        assert "log_rolled_back" in [p.code for p in await store.verify()]
        await store.get("r1")
        script = Script(store, "r2")
        await refused(LogRolledBack, store.commit(script.first()))
        await refused(LogRolledBack, store.register("w", TTL))
        await refused(LogRolledBack, store.claim("w", (), None, limit=1))
        await store.close()
        store = await opened(path)
        assert isinstance(store.suspect, LogRolledBack)
        old = store.incarnation
        await store.acknowledge()
        assert store.incarnation != old
        assert [p.code for p in await store.verify() if p.code == "log_rolled_back"] == []
        await Script(store, "r2").submit()
        await store.close()
        store = await opened(path)
        assert store.suspect is None
        await store.close()

    run(body)


def test_kill_loses_nothing(tmp_path: Path) -> None:
    """§1.9: after kill -9 alone nothing is suspected, and every acknowledged event is there."""
    path = tmp_path / "s.db"

    async def body() -> None:
        acknowledged(path)
        store = await opened(path)
        assert store.suspect is None
        assert await store.verify() == []
        rows = await store.rows("r1")
        assert rows[-1].seq >= 100
        await store.register("w", TTL)
        (claim,) = await store.claim("w", (), None, limit=1)
        assert claim.cause == "owner_dead"
        await store.close()

    run(body)


def test_missing_or_damaged_anchor_is_named(tmp_path: Path) -> None:
    """§1.9: without its anchor nothing vouches for the end of a log that is not empty."""
    path, anchor = tmp_path / "s.db", tmp_path / "s.db-anchor"

    async def body() -> None:
        store = await opened(path)
        await Script(store, "r1").submit()
        await store.close()
        good = anchor.read_bytes()
        for bad in (b"", good[:-1], good[:-1] + bytes([good[-1] ^ 1]), b"\0" * len(good)):
            anchor.write_bytes(bad)
            store = await opened(path)
            assert isinstance(store.suspect, LogRolledBack)
            await store.close()
        mark = unpack(good)
        assert mark is not None
        anchor.write_bytes(pack(Mark(mark.incarnation ^ 1, mark.last, mark.hash)))
        store = await opened(path)
        assert isinstance(store.suspect, IncarnationChanged)
        await store.close()
        anchor.write_bytes(pack(Mark(mark.incarnation, mark.last, b"x" * 16)))
        store = await opened(path)
        assert isinstance(store.suspect, LogRolledBack)
        await store.close()
        anchor.write_bytes(good)
        store = await opened(path)
        assert store.suspect is None
        await store.close()

    run(body)


def test_flipped_bit_in_the_file_is_named_when_read(tmp_path: Path) -> None:
    """X-01: SQLite calls it ok; the chain of hashes does not."""
    path = tmp_path / "s.db"

    async def body() -> None:
        store = await opened(path)
        await store.register("w", TTL)
        await (await Script(store, "r1").begin("w")).steps(5)
        await store.close()
        data = bytearray(path.read_bytes())
        data[data.index(b"3:xxxx") + 4] ^= 1
        path.write_bytes(data)
        store = await opened(path)
        assert [p.code for p in await store.verify()] == ["event_chain_broken"]
        loaded = await store.load("r1")
        assert loaded is not None
        with pytest.raises(StoreCorrupt) as caught:
            rebuilt(loaded)
        assert caught.value.code == "event_chain_broken"
        await store.close()

    run(body)


# -- backup, restore, incarnations ------------------------------------------------------------


def test_restore_fences_off_old_workers(tmp_path: Path) -> None:
    """X-02: after a restore, what was the newest fence belongs to another incarnation."""
    path, copy = tmp_path / "s.db", tmp_path / "copy.db"

    async def body() -> None:
        store = await opened(path)
        await store.register("w", TTL)
        script = await Script(store, "r1").begin("w")
        await store.backup(copy)
        await refused(UsageError, store.backup(copy))
        other = await opened(path)
        await other.register("v", TTL)
        stranger = await Script(other, "r2").begin("v")
        late = script.step()
        old = store.incarnation
        await store.restore(copy)
        assert store.incarnation != old
        await refused(LeaseLost, store.commit(late))
        await refused(RunNotFound, other.commit(stranger.step()))
        await refused(LeaseLost, other.commit(Script(other, "r3").first()))
        assert await store.renew("w", TTL) == 0
        loaded = await store.load("r1")
        assert loaded is not None
        assert loaded.lease.fence >> COUNTER_BITS == store.incarnation
        assert loaded.lease.owner is None
        await store.register("w2", TTL)
        assert [c.run_id for c in await store.claim("w2", (), None, limit=5)] == ["r1"]
        await other.close()
        await store.close()
        store = await opened(path)
        assert store.suspect is None
        assert await store.verify() == []
        await store.close()

    run(body)


def test_a_backup_opened_elsewhere_asks_first(tmp_path: Path) -> None:
    """§1.9: a copy without its anchor is read-only until somebody says that it is meant."""
    path, copy = tmp_path / "s.db", tmp_path / "copy.db"

    async def body() -> None:
        store = await opened(path)
        await Script(store, "r1").submit()
        await store.backup(copy)
        twin = await opened(copy)
        assert isinstance(twin.suspect, LogRolledBack)
        assert await twin.get("r1") is not None
        await twin.acknowledge()
        await Script(twin, "r2").submit()
        assert twin.incarnation != store.incarnation
        await twin.close()
        garbage = tmp_path / "garbage.db"
        garbage.write_bytes(b"no database at all" * 300)
        await refused(StoreCorrupt, store.restore(garbage))
        await refused(UsageError, store.restore(tmp_path / "nothing.db"))
        await Script(store, "r3").submit()
        await store.close()

    run(body)


# -- several processes ------------------------------------------------------------------------------


def test_two_processes_append(tmp_path: Path) -> None:
    """T-17: two processes append at the same time; numbers are gapless and unique, chains whole."""
    path = tmp_path / "s.db"
    program = """
    async def main():
        store = SqliteStore(path)
        await store.open()
        await store.register(me, TTL)
        a = await Script(store, me + "-a").begin(me)
        for i in range(60):
            await a.steps(1)
            await Script(store, f"{me}-{i}").submit()
        await store.close()
    asyncio.run(main())
    """

    async def body() -> None:
        store = await opened(path)
        children = [spawn(path, f"p{i}", program) for i in range(2)]
        for child in children:
            out, _ = child.communicate(timeout=60)
            assert (child.returncode, out) == (0, "")
        assert await store.verify() == []
        for i in range(2):
            events = [e.seq for r in await store.rows(f"p{i}-a") for e in codec.open_row(r).events]
            assert events == list(range(1, len(events) + 1))
            assert len(events) == 3 + 120
        await store.close()

    run(body)


def test_processes_race_for_claims(tmp_path: Path) -> None:
    """T-74: several processes race for the same runs; every run has one winner."""
    path = tmp_path / "s.db"
    program = """
    async def main():
        store = SqliteStore(path)
        await store.open()
        await store.register(me, TTL)
        print("ready", flush=True)
        sys.stdin.readline()
        got = []
        for _ in range(200):
            claims = await store.claim(me, (), None, limit=3)
            got += [c.run_id for c in claims]
            if not claims:
                break
        print(" ".join(got), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await store.close()
    asyncio.run(main())
    """

    async def body() -> None:
        store = await opened(path)
        for i in range(40):
            await Script(store, f"r{i:02}").submit()
        children = [spawn(path, f"p{i}", program) for i in range(4)]
        names: list[str] = []
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        for child in children:
            assert child.stdout is not None
            names += child.stdout.readline().split()
        for child in children:
            child.communicate("end\n", timeout=60)
        assert sorted(names) == [f"r{i:02}" for i in range(40)]
        await store.close()

    run(body)


def test_owner_of_another_process_is_proven_dead(tmp_path: Path) -> None:
    """§2.9: alive while its process lives; dead by proof as soon as it was killed; other processes are woken by a poll."""
    path = tmp_path / "s.db"
    program = """
    async def main():
        store = SqliteStore(path)
        await store.open()
        await store.register(me, TTL)
        await Script(store, "r1").begin(me)
        print("held", flush=True)
        sys.stdin.readline()
    asyncio.run(main())
    """

    async def body() -> None:
        store = await opened(path)
        await store.register("w", TTL)
        await store.wait_for_change(0)
        child = spawn(path, "other", program)
        await asyncio.wait_for(store.wait_for_change(20), 20)
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        got = await store.get("r1")
        assert got is not None
        assert got[1].owner_alive is Alive.YES
        assert await store.claim("w", (), None, limit=1) == []
        child.kill()
        child.wait()
        (claim,) = await store.claim("w", (), None, limit=1)
        assert (claim.previous_owner, claim.cause) == ("other", "owner_dead")
        await store.claim("w", (), None, limit=1)
        assert [w.owner for w in await store.workers()] == ["w"]
        child.communicate()
        await store.close()

    run(body)


def test_frozen_writer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """§10.14: a process stopped in mid-commit blocks the file; the loop stays free and the holder is named."""
    monkeypatch.setattr(writer_module, "PATIENCE", 0.5)
    path = tmp_path / "s.db"
    program = """
    import apsw
    db = apsw.Connection(path)
    db.execute("BEGIN IMMEDIATE")
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    db.execute("ROLLBACK")
    """

    async def body() -> None:
        store, patient = await opened(path), await opened(path)
        await store.register("w", TTL)
        script = await Script(store, "r1").begin("w")
        child = spawn(path, "x", program)
        assert child.stdout is not None
        pid = child.stdout.readline().strip()
        os.kill(child.pid, signal.SIGSTOP)
        for _ in range(5):  # a busy machine may keep the loop waiting now and then; a store that blocks it does so each time
            late, writing = [0.0], asyncio.ensure_future(store.commit(script.step()))
            while not writing.done():
                began = time.perf_counter()
                await asyncio.wait([writing], timeout=0.005)
                late.append(time.perf_counter() - began)
            error = await refused(StoreBusy, writing)
            assert pid in error.message
            assert error.code == "store_writer_stalled"
            if max(late) < 0.2:
                break
        assert max(late) < 0.2, "the loop was blocked"
        monkeypatch.setattr(writer_module, "PATIENCE", 30)  # the stopped process may take a while to go on
        script.store = patient
        writing = asyncio.ensure_future(script.steps(1))
        await asyncio.wait([writing], timeout=0.05)
        assert not writing.done()
        os.kill(child.pid, signal.SIGCONT)
        child.communicate("go\n")
        await writing
        script.store = store
        await script.steps(1)
        await store.close()
        await patient.close()

    run(body)


def test_renewal_from_a_thread(tmp_path: Path) -> None:
    """§10.4: renewal depends neither on the loop nor on its connection."""
    path = tmp_path / "s.db"

    async def body() -> None:
        store = await opened(path)
        await store.register("w", TTL)
        script = await Script(store, "r1").begin("w")

        def renew() -> list[int]:
            return [asyncio.run(store.renew("w", TTL)) for _ in range(20)]

        renewing = asyncio.ensure_future(asyncio.to_thread(renew))
        while not renewing.done():
            await script.steps(1)
            await asyncio.sleep(0)
        assert all(e > store.now() for e in await renewing)
        await store.close()

    run(body)


# -- disks, damage, versions ------------------------------------------------------------------------


def test_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """§1.12: what does not fit is refused by name; everything acknowledged stays, and the store goes on when there is room."""
    monkeypatch.setattr(writer_module, "SLOW", float("inf"))  # the bound is that of one connection: the thread has another
    path = tmp_path / "s.db"

    async def body() -> None:
        store = await opened(path)
        await store.register("w", TTL)
        script = await Script(store, "r1").begin("w")
        await script.steps(2)
        assert store._db is not None
        pages = store._db.pragma("page_count")
        store._db.pragma("max_page_count", pages + 4)
        with pytest.raises(StoreFull):
            await script.steps(100, size=3_000)
        assert script.tip is not None
        assert (await store.rows("r1"))[-1].seq == script.tip.seq
        many = [Script(store, f"n{i}", input=b"\xc4\xff" + b"x" * 255, tags=("t" * 9_000,)).first() for i in range(3)]
        outcomes = await asyncio.gather(*[store.commit(c) for c in many], return_exceptions=True)
        assert [type(o) for o in outcomes] == [StoreFull] * 3
        assert await store.get("n0") is None
        store._db.pragma("max_page_count", 1_000_000)
        await script.steps(1, size=3_000)
        assert await store.verify() == []
        await store.close()

    run(body)


@pytest.mark.parametrize("first", ["link", "file"])
async def test_a_link_to_a_store_is_that_store(tmp_path: Path, first: str) -> None:
    """Each path had an anchor of its own: whoever opened the store by another one was told that its end was lost, and was advised to acknowledge that, which
    would have shut out everybody else."""
    (tmp_path / "real").mkdir()
    paths = {"file": tmp_path / "real" / "s.db", "link": tmp_path / "l.db"}
    paths["link"].symlink_to(paths["file"])
    other = next(name for name in paths if name != first)
    one = await opened(paths[first])
    await Script(one, "r1").submit()
    two = await opened(paths[other])
    await Script(two, "r2").submit()
    await Script(one, "r3").submit()
    for store in (one, two):
        assert store.suspect is None and [await store.get(run_id) is not None for run_id in ("r1", "r2", "r3")] == [True] * 3
        assert await store.verify() == []
        await store.close()
    assert {p.name for p in tmp_path.iterdir()} == {"real", "l.db"}


async def test_what_a_past_release_laid_beside_a_link_stays_in_use(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    store = await opened(tmp_path / "real" / "s.db")
    await Script(store, "r1").submit()
    await store.close()
    (tmp_path / "l.db").symlink_to(tmp_path / "real" / "s.db")
    (tmp_path / "real" / "s.db-anchor").rename(tmp_path / "l.db-anchor")
    store = await opened(tmp_path / "l.db")
    await Script(store, "r2").submit()
    await store.close()


def test_read_only_folder_is_named(tmp_path: Path) -> None:
    """§1.12: a folder that cannot be written is an error with a way out, not a store that pretends."""
    program = """
    store, loop = SqliteStore(path), asyncio.new_event_loop()
    if os.geteuid() == 0:
        os.setuid(65534)
    try:
        loop.run_until_complete(store.open())
    except HoldfastError as e:
        print(e.code, flush=True)
    """
    folder = Path("/tmp") / f"holdfast-test-{os.getpid()}"
    folder.mkdir(mode=0o555)
    try:
        child = spawn(folder / "s.db", "x", program)
        out, _ = child.communicate(timeout=60)
        if child.returncode:
            pytest.skip("this account cannot run the interpreter")
        assert out == "store_read_only\n"
        assert list(folder.iterdir()) == []
    finally:
        shutil.rmtree(folder)


def test_read_only_connection_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's refusal to write is one typed error, and the log is as it was."""
    monkeypatch.setattr(writer_module, "SLOW", float("inf"))  # the thread has a connection of its own

    async def body() -> None:
        store = await opened(tmp_path / "s.db")
        await Script(store, "r1").submit()
        assert store._db is not None
        store._db.pragma("query_only", True)
        await refused(StoreReadOnly, store.commit(Script(store, "r2").first()))
        await refused(StoreReadOnly, store.put(signal_to("r1", "k", 0)))
        store._db.pragma("query_only", False)
        assert await store.get("r2") is None
        await Script(store, "r2").submit()
        await store.close()

    run(body)


def test_hostile_bytes(tmp_path: Path) -> None:
    """L-18, T-52: garbage in the file is one typed error for whoever reads it, and calls nothing."""
    path = tmp_path / "s.db"

    async def body() -> None:
        store = await opened(path)
        await store.register("w", TTL)
        script = await Script(store, "r1").begin("w")
        await store.put(signal_to("r1", "k", 0))
        await store.close()
        assert script.tip is not None
        db = apsw.Connection(str(path))
        saved = db.execute("SELECT doc FROM run").get

        async def reads(error: type[HoldfastError], sql: str, *values: object) -> None:
            db.execute(sql, values)
            again = await opened(path)
            await refused(error, again.load("r1"))
            await again.close()

        await reads(UnknownStatus, "UPDATE run SET status = 'paused'")
        db.execute("UPDATE run SET status = 'running'")
        for garbage in (b"", b"\xc1", saved[:-1], b"\x81" * 200_000, b"\xdd\xff\xff\xff\xff", b"cos\nsystem\n(S'true'\ntR."):
            await reads(EventUnreadable, "UPDATE run SET doc = ?", garbage)
        db.execute("UPDATE run SET doc = ?", (saved,))
        await reads(RecordDamaged, "UPDATE inbox SET command = x'c1'")
        await reads(RecordDamaged, "DELETE FROM inbox")
        db.execute("DELETE FROM vouch")
        await reads(StoreCorrupt, "DELETE FROM log WHERE id = (SELECT tip FROM run)")
        db.close()

    run(body)


@pytest.mark.parametrize("number", [2, 3])
def test_a_store_that_another_process_makes_meanwhile_is_no_strange_database(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes begin at once with a store that is not there yet: the other one makes it before the second, or third, statement of this one."""
    program = "import asyncio, sys\nfrom holdfast.stores import SqliteStore\ninput()\nasyncio.run(SqliteStore(sys.argv[1]).open())"
    there = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "a.db")], stdin=subprocess.PIPE)
    count = 0

    class Connection(apsw.Connection):
        def wait(self) -> None:
            nonlocal count
            count += 1
            if count == number:
                there.communicate(b"\n")

        def pragma(self, *words: Any, **more: Any) -> Any:
            self.wait()
            return super().pragma(*words, **more)

        def execute(self, *statement: Any, **more: Any) -> Any:
            self.wait()
            return super().execute(*statement, **more)

    monkeypatch.setattr(apsw, "Connection", Connection)
    store = SqliteStore(tmp_path / "a.db")
    run(lambda: _opened_and_closed(store))
    assert there.returncode == 0 and count > number


async def _opened_and_closed(store: SqliteStore) -> None:
    await store.open()
    await store.close()


def test_foreign_and_newer_files(tmp_path: Path) -> None:
    """§1.8: a newer schema is refused, and so is a file that is not ours; neither is touched."""

    async def body() -> None:
        ours, foreign, text = tmp_path / "s.db", tmp_path / "f.db", tmp_path / "t.db"
        await (await opened(ours)).close()
        db = apsw.Connection(str(ours))
        db.pragma("user_version", 99)
        db.close()
        await refused(UnsupportedFormat, SqliteStore(ours).open())
        db = apsw.Connection(str(foreign))
        db.execute("CREATE TABLE customers (id)")
        db.close()
        before = foreign.read_bytes()
        await refused(StoreCorrupt, SqliteStore(foreign).open())
        assert foreign.read_bytes() == before
        text.write_text("not a database, " * 100)
        await refused(StoreCorrupt, SqliteStore(text).open())
        await refused(UsageError, SqliteStore(tmp_path / "no" / "such" / "s.db").open())

    run(body)


def test_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative and absolute files, memory, and a named refusal of anything else."""
    relative, absolute = open_url("sqlite:///a/b.db"), open_url("sqlite:////tmp/b%20c.db")
    assert isinstance(relative, SqliteStore)
    assert isinstance(absolute, SqliteStore)
    assert (relative.path, absolute.path) == ("a/b.db", "/tmp/b c.db")
    assert isinstance(open_url("memory:"), MemoryStore)
    for url in ("", "sqlite:", "sqlite://", "sqlite:///", "sqlite:///:memory:", "mysql://x", "/tmp/x.db", "sqlite://host/x.db", "workspace:"):
        with pytest.raises(UsageError) as caught:
            open_url(url)
        assert caught.value.hint


# -- how much a step does ---------------------------------------------------------------------------


def test_a_lone_step_is_one_statement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trigger writes the log row and compares and sets the run's; it is a transaction of its own; no thread, no future."""
    monkeypatch.setattr(writer_module, "SLOW", float("inf"))  # a busy machine's commits are no slow disk's

    async def body() -> None:
        store = await opened(tmp_path / "s.db")
        await store.register("w", TTL)
        script = await Script(store, "r1").begin("w")
        assert store._db is not None
        await script.steps(1)  # the first makes the ways of a run alone
        seen: list[str] = []
        commits = 0

        def committed() -> bool:
            nonlocal commits
            commits += 1
            return False

        store._db.set_profile(lambda sql, _: seen.append(sql.split()[0]))
        store._db.set_commit_hook(committed)
        await script.steps(1)
        assert (seen, commits) == (["INSERT"], 1)
        seen.clear()
        other = Script(store, "r2", session_key="s2")
        await other.write(other.first(ev.RunStarted(), lease=Take("w")))
        seen.clear()
        await asyncio.gather(script.write(script.step()), other.write(other.step()))
        assert seen.count("COMMIT") == 1
        assert store._writer is not None
        assert store._writer._thread is None
        await store.close()

    run(body)


def test_slow_commits_move_to_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """§1.11: once commits take long the loop hands them over, and takes them back when they are quick again."""

    async def body() -> None:
        store = await opened(tmp_path / "s.db")
        await store.register("w", TTL)
        script = await Script(store, "r1").begin("w")
        writer = store._writer
        assert writer is not None
        monkeypatch.setattr(writer_module, "SLOW", 0.5)  # a line that the disk of a busy machine does not cross by itself
        writer._average = 5.0
        await script.steps(1)
        assert writer._thread is not None
        writer._average = 0.6
        for _ in range(30):
            await script.steps(1)
        assert writer._average < 0.5
        assert await store.verify() == []
        await store.close()

    run(body)


class Locked:
    """A committer over a database that another process keeps; a group fails for a reason of its own."""

    took = 0.0

    def __init__(self) -> None:
        self.db = apsw.Connection(":memory:")
        self.tried: list[str] = []

    def together(self, batch: Sequence[Any], keys: dict[str, int]) -> list[Any]:
        raise LeaseLost("one of them was late")

    def one(self, w: Any, key: int | None) -> Any:
        self.tried.append(w.run_id)
        raise apsw.BusyError("database is locked")


@pytest.mark.parametrize(("commit", "counts_as"), [(0.0, 0.00002), (0.00004, 0.00004), (0.0002, 0.0002), (0.01, 0.0002)])
def test_the_first_naps_before_a_locked_database_are_as_short_as_a_commit(commit: float, counts_as: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """§1.11: a lock that a neighbour has let go of is taken soon; one that is held for long is looked at less often, and not beyond the patience."""
    path, now, pauses = str(tmp_path / "s.db"), [0.0], list[float]()
    pace = Pace()
    pace.seconds = commit

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(connection_module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    with contextlib.closing(connect(path, create=True)) as holder, contextlib.closing(connect(path, waits=Waits(pace=pace))) as waiter:
        for _ in range(2):  # each wait begins with short pauses
            pauses.clear()
            holder.execute("BEGIN IMMEDIATE")
            with pytest.raises(apsw.BusyError):
                waiter.execute("BEGIN IMMEDIATE")
            holder.execute("ROLLBACK")
            assert 0.5 * counts_as <= min(pauses[:32]) < max(pauses[:32]) <= 4 * counts_as
            assert len(set(pauses[:32])) > 16, "pauses are uneven, so that two processes do not look in step"
            assert max(pauses[:32]) < max(pauses[32:]) <= 0.002
            assert 5.0 <= sum(pauses) < 5.0 + 0.002


def test_a_store_knows_how_long_its_commits_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the connection of its thread pauses as long before a locked database."""
    paces: dict[str, Pace] = {}

    def waiting(patience: float = 5.0, pace: Pace | None = None) -> Waits:
        paces[threading.current_thread().name] = pace or Pace()
        return Waits(patience, pace)

    async def body() -> None:
        monkeypatch.setattr(file_module, "Waits", waiting)
        store = await opened(tmp_path / "s.db")
        await store.register("w", TTL)
        await Script(store, "r1").begin("w")
        monkeypatch.setattr(writer_module, "SLOW", 0.0)  # whatever is written goes to the thread
        script = await Script(store, "r2").begin("w")
        here = paces["holdfast-writer"].seconds
        assert 0 < here < 1
        await script.steps(1)
        assert paces["holdfast-writer"].seconds != here
        await store.close()

    run(body)


@pytest.mark.parametrize("slow", [True, False])
def test_who_has_waited_for_a_locked_database_waits_no_second_time(slow: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """§1.11: a member of a group that met the lock has waited as long as it may, in the thread or in the loop, and is told so."""
    if slow:
        monkeypatch.setattr(writer_module, "SLOW", 0.0)  # whatever is written goes to the thread
    else:
        monkeypatch.setattr(writer_module, "PATIENCE", 0.0)

    async def body() -> None:
        committer: Any = Locked()
        turns = Turns(str(tmp_path / "none"), "s.db", lambda: False, Pace())
        writer = writer_module.Writer("s.db", committer, lambda: committer, lambda: None, lambda _: None, lambda _: None, Pace(), turns)
        commits: list[Any] = [SimpleNamespace(run_id="r1"), SimpleNamespace(run_id="r2")]
        told = await asyncio.gather(*[writer.commit(w) for w in commits], return_exceptions=True)
        assert [type(t) for t in told] == [StoreBusy, StoreBusy]
        assert committer.tried == ["r1", "r2"]
        writer.close()

    run(body)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process writes."""
    with contextlib.closing(apsw.Connection(str(path))) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


async def driving(path: Path, count: int) -> tuple[SqliteStore, list[Script]]:
    """A store, and so many runs that it drives."""
    store = await opened(path)
    await store.register("w", TTL)
    return store, [await Script(store, f"r{n}").begin("w") for n in range(count)]


@pytest.mark.parametrize("count", [1, 3])
def test_the_loop_goes_on_while_another_process_writes(count: int, tmp_path: Path) -> None:
    """§1.11: what finds the file locked is written by the loop once that is free, and the loop waits for nothing meanwhile."""

    async def body() -> None:
        path = tmp_path / "s.db"
        store, scripts = await driving(path, count)
        with locked(path):
            writing = [asyncio.ensure_future(script.steps(3)) for script in scripts]
            asked = asyncio.ensure_future(store.put(signal_to("r0", "k", store.now() + 1_000_000_000)))
            began = time.process_time()
            for _ in range(200):
                await asyncio.sleep(0)
            assert time.process_time() - began < 0.5
            assert not any(each.done() for each in (*writing, asked))
        await asyncio.wait_for(asyncio.gather(*writing, asked), 30)
        assert store._writer is not None and store._writer._thread is None
        assert [len(await store.log(f"r{n}")) for n in range(count)] == [4] * count
        assert len(await store.inbox("r0")) == 1
        assert await store.verify() == []
        await store.close()

    run(body)


def test_what_goes_by_no_line_waits_for_a_locked_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's connection waits for nothing where it commits, and as any other where it reads, or an operator accepts a loss: the file may be locked
    while it is recovered from a process that was killed."""

    async def body() -> None:
        path = tmp_path / "s.db"
        store, (script,) = await driving(path, 1)
        with contextlib.closing(apsw.Connection(str(path))) as other:
            other.execute("BEGIN IMMEDIATE")
            paused = []

            def sleep(seconds: float) -> None:
                paused.append(seconds)
                other.execute("ROLLBACK")

            monkeypatch.setattr(connection_module, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
            writing = asyncio.ensure_future(script.steps(1))
            asked = asyncio.ensure_future(store.put(signal_to("r0", "k", store.now() + 1_000_000_000)))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not writing.done() and not asked.done() and paused == []
            await store.acknowledge()
            assert len(paused) == 1
            await asyncio.wait_for(asyncio.wait([writing, asked]), 30)
            assert isinstance(writing.exception(), LeaseLost), "every fence given out before is void"
            await asked
        await store.close()

    run(body)


def test_who_is_cancelled_while_another_process_writes_writes_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        path = tmp_path / "s.db"
        store, scripts = await driving(path, 3)
        with locked(path):
            writing = [asyncio.ensure_future(script.steps(1)) for script in scripts]
            asked = asyncio.ensure_future(store.put(signal_to("r0", "k", store.now() + 1_000_000_000)))
            for _ in range(5):
                await asyncio.sleep(0)
            for each in (writing[1], asked):
                each.cancel()
        await asyncio.wait_for(asyncio.wait([*writing, asked]), 30)
        assert [each.cancelled() for each in (*writing, asked)] == [False, True, False, True]
        assert [len(await store.log(f"r{n}")) for n in range(3)] == [2, 1, 2]
        assert await store.inbox("r0") == []
        await store.close()

    run(body)


def test_a_command_waits_for_a_locked_file_as_long_as_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "PATIENCE", 0.01)

    async def body() -> None:
        path = tmp_path / "s.db"
        store, (script,) = await driving(path, 1)
        with locked(path):
            for asks in (lambda: store.register("v", TTL), lambda: store.commit(script.step())):
                with pytest.raises(StoreBusy, match=f"the process {os.getpid()} has held the write lock"):
                    await asks()
        await store.register("v", TTL)
        await script.steps(1)
        await store.close()

    run(body)


def test_who_waits_while_the_store_is_closed_is_told_so(tmp_path: Path) -> None:
    async def body() -> None:
        path = tmp_path / "s.db"
        store, scripts = await driving(path, 2)
        with locked(path):
            waiting = [asyncio.ensure_future(store.commit(script.step())) for script in scripts]
            waiting_too = asyncio.ensure_future(store.put(signal_to("r0", "k", store.now())))
            for _ in range(5):
                await asyncio.sleep(0)
            await store.close()
            told = await asyncio.gather(*waiting, waiting_too, return_exceptions=True)
        assert [type(t) for t in told] == [StoreClosed] * 3

    run(body)


@pytest.mark.skipif(sys.platform != "linux", reason="names that no folder shows are of Linux")
def test_a_run_alone_gives_way_to_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run alone commits in place, one step after the other: now and then whoever waits for the file comes first."""
    monkeypatch.setattr(writer_module, "TURN", -1.0)  # each of its commits is its last before it gives way
    monkeypatch.setattr(Pace, "pause", lambda _: 3600.0)  # whoever comes back was woken

    async def body() -> None:
        path = tmp_path / "s.db"
        other = await opened(path)
        store, (script,) = await driving(path, 1)
        await script.steps(3)
        waiting = Turns(str(path) + "-live/!news", str(path), lambda: True, Pace())
        waiting.wait(once=True)
        writing = asyncio.ensure_future(script.steps(1))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not writing.done(), "it has woken the other, which has not yet written"
        waiting.look()
        waiting.pass_on()
        await asyncio.wait_for(writing, 30)
        assert len(await store.log("r0")) == 5
        waiting.close()
        for each in (store, other):
            await each.close()

    run(body)


@pytest.mark.skipif(sys.platform != "linux", reason="names that no folder shows are of Linux")
def test_whoever_waits_is_woken_after_a_commit_that_has_waited_itself(tmp_path: Path) -> None:
    """Its run may be at rest now, and nothing else would tell."""

    async def body() -> None:
        path = tmp_path / "s.db"
        other = await opened(path)
        store, (script,) = await driving(path, 1)
        waiting = Turns(str(path) + "-live/!news", str(path), lambda: True, Pace())
        with locked(path):
            writing = asyncio.ensure_future(script.write(script.commit(ev.NoteAdded("x"))))
            for _ in range(5):
                await asyncio.sleep(0)
            assert not writing.done()
            waiting.wait(once=True)
        await asyncio.wait_for(writing, 30)
        assert select.select([waiting.fileno()], [], [], 0)[0]
        waiting.close()
        for each in (store, other):
            await each.close()

    run(body)


def test_a_lone_step_learns_its_row_whoever_wrote_between(tmp_path: Path) -> None:
    """Its row has the next free number, which the statement tells: another process may have written since this one last looked."""

    async def body() -> None:
        path = tmp_path / "s.db"
        stores = [await opened(path), await opened(path)]
        scripts = []
        for n, store in enumerate(stores):
            await store.register(f"w{n}", TTL)
            scripts.append(await Script(store, f"r{n}").begin(f"w{n}"))
        numbers = []
        for _ in range(3):
            for script in scripts:
                numbers.append((await script.write(script.step())).row)
        assert numbers == list(range(3, 9))
        for script, store in zip(scripts, stores, strict=True):
            await script.complete()
            assert await store.verify() == []
            await store.close()

    run(body)


def test_a_lone_step_or_end_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    """§10.2: the log row is undone with the compare-and-set that failed, the reason is said, and the store goes on."""

    async def body() -> None:
        store = await opened(tmp_path / "s.db")
        await store.register("w", TTL)
        script = await (await Script(store, "r1").begin("w")).steps(2)
        assert store._db is not None

        def rows() -> int:
            assert store._db is not None
            return int(store._db.execute("SELECT count(*) FROM log").fetchone()[0])  # type: ignore[index]

        script.fence += 1  # somebody else's, as far as the store knows
        with pytest.raises(LeaseLost):
            await store.commit(script.step())
        assert rows() == 3 and not store._db.in_transaction
        script.fence -= 1
        await store.put(signal_to("r1", "k", store.now()))
        with pytest.raises(InboxUnread):
            await store.commit(script.commit(ev.RunCompleted(), lease=RELEASE))
        assert rows() == 3 and not store._db.in_transaction
        loaded = await store.load("r1")
        assert loaded is not None and loaded.run.version == script.run.version
        await script.steps(1)
        assert rows() == 4
        await store.close()

    run(body)


def test_the_first_step_after_a_claim_is_one_statement_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store knows whom it has just claimed a run for: nothing is looked up again."""
    monkeypatch.setattr(writer_module, "SLOW", float("inf"))

    async def body() -> None:
        store = await opened(tmp_path / "s.db")
        await store.register("a", TTL)
        await store.register("b", TTL)
        script = await (await Script(store, "r1").begin("a")).steps(1)
        await store.retire("a")
        [claim] = await store.claim("b", (), None, limit=1, run_id="r1")
        loaded = await store.load("r1")
        assert loaded is not None
        script = Script.of(store, loaded, claim.fence)
        assert store._db is not None
        seen: list[str] = []
        store._db.set_profile(lambda sql, _: seen.append(sql.split()[0]))
        await script.steps(1)
        assert seen == ["INSERT"]
        await store.close()

    run(body)


def test_a_loop_that_died_blocks_nobody(tmp_path: Path) -> None:
    """A store outlives its loop: what one left behind does not keep the next from committing."""
    store = SqliteStore(tmp_path / "s.db")

    async def first() -> None:
        await store.open()
        for i in range(3):
            asyncio.ensure_future(store.commit(Script(store, f"a{i}").first()))  # noqa: RUF006
        await asyncio.wait([asyncio.ensure_future(store.commit(Script(store, "b").first()))], timeout=0)

    async def second() -> None:
        await asyncio.wait_for(asyncio.gather(*[store.commit(Script(store, f"c{i}").first()) for i in range(3)]), 20)
        await store.close()

    asyncio.run(first())
    asyncio.run(second())


def test_a_store_closes_what_it_has_opened(tmp_path: Path) -> None:
    """Each connection, that for renewals included, is closed by the close and not when somebody lets go of it."""
    made: list[apsw.Connection] = []
    apsw.connection_hooks.append(made.append)

    async def body() -> None:
        store = await opened(tmp_path / "s.db")
        await store.register("w", TTL)
        await store.renew("w", TTL)
        await store.close()

    try:
        run(body)
    finally:
        apsw.connection_hooks.remove(made.append)
    assert len(made) >= 2
    for db in made:
        with pytest.raises(apsw.ConnectionClosedError):
            db.execute("SELECT 1")


def test_closed_store_says_so(tmp_path: Path) -> None:
    async def body() -> None:
        store = await opened(tmp_path / "s.db")
        script = Script(store, "r1")
        commit = script.first()
        await store.close()
        with pytest.raises(HoldfastError, match="not open"):
            await store.commit(commit)
        with pytest.raises(HoldfastError, match="not open"):
            await store.get("r1")

    run(body)


STALE: dict[str, Callable[[SqliteStore], Awaitable[object]]] = {
    "put": lambda s: s.put(signal_to("r1", "k", s.now())),
    "claim": lambda s: s.claim("w", (), None, limit=1),
    "register": lambda s: s.register("v", TTL),
    "put_rule": lambda s: s.put_rule(Rule("model", Limit(in_flight=1)), None),
    "shelve": lambda s: s.shelve("s", {"k": b"1"}),
    "claim_intents": lambda s: s.claim_intents("w", ("mail",), limit=1, ttl_us=TTL, doubt=True),
}


@pytest.mark.parametrize("verb", STALE)
async def test_whoever_had_a_restored_store_open_writes_nothing(tmp_path: Path, verb: str) -> None:
    """X-02, §1.9: the refusal comes before the write, in verbs without a fence too."""
    path = str(tmp_path / "runs.db")
    stale = SqliteStore(path)
    await stale.open()
    await stale.register("w", TTL)
    await (await Script(stale, "r1").begin("w")).wait()
    await stale.put(signal_to("r1", "before", stale.now()))
    await stale.backup(tmp_path / "copy.db")
    other = SqliteStore(path)
    await other.open()
    await other.restore(str(tmp_path / "copy.db"))

    def kept() -> dict[str, list[Any]]:
        db = apsw.Connection(path)
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        found = {name: list(db.execute(f"SELECT * FROM {name}")) for name in tables}
        db.close()
        return found

    before = kept()
    for _ in range(2):
        with pytest.raises(IncarnationChanged, match="restored or acknowledged by another process"):
            await STALE[verb](stale)
        assert kept() == before
    await other.close()
    with contextlib.suppress(IncarnationChanged):
        await stale.close()


async def test_a_page_of_a_log_reads_its_own_rows_only(tmp_path: Path) -> None:
    """§12.6: whatever the limit, no page goes through the rows of other runs."""
    path = str(tmp_path / "runs.db")
    store = SqliteStore(path)
    await store.open()
    await store.close()
    db = connect(path)
    for limit in (1, 50, 1_000):
        plan = [detail for *_, detail in db.execute(f"EXPLAIN QUERY PLAN {Q.log_page}", (9, 0, 0, limit))]
        assert any(detail.startswith("SEARCH l ") for detail in plan) and "SCAN l" not in plan
    db.close()

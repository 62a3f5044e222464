"""Every code of §12.2, each from a real mutation or crash, and named by ``check``."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Runtime
from holdfast.core.consistency import SEVERITIES
from holdfast.core.errors import InvalidInput, RunNotFound, StoreCorrupt
from holdfast.core.run import Run
from holdfast.core.vouch import KINDS
from holdfast.engine.keep.check import Checker
from holdfast.engine.keep.transfer import copy
from holdfast.stores import MemoryStore, SqliteStore
from holdfast.stores.sqlite.upkeep import COPIED
from holdfast.testing.conformance import Clock, Script
from holdfast.testing.conformance_blobs import bulk
from tests.inside import OpenSqlite
from tests.upkeep import damage as d

Damage = Callable[[Path], None]


def nothing(path: Path) -> None:
    """The shape itself is the damage: a crash left it."""


def run_sql(*statements: str) -> Damage:
    return lambda path: d.sql(path, *statements)


TABLE: dict[str, tuple[d.Build, Damage]] = {
    "halt_decision_without_halted_meta": (d.halted_in_part, nothing),
    "terminal_with_stale_handoff": (d.done, d.stale),
    "meta_handoff_without_event": (d.waiting, d.ghost),
    "active_handoff_without_decision": (d.asking, nothing),
    "interrupted_with_active_handoff": (d.torn, nothing),
    "snapshot_status_drift": (d.waiting, run_sql("UPDATE run SET status = 'pending'")),
    "snapshot_field_drift": (d.waiting, run_sql("UPDATE run SET version = 99")),
    "terminal_event_without_terminal_snapshot": (d.done, run_sql("UPDATE run SET status = 'running'")),
    "terminal_snapshot_without_event": (d.waiting, run_sql("UPDATE run SET status = 'failed'")),
    "unknown_status": (d.waiting, run_sql("UPDATE run SET status = 'paused'")),
    "checkpoint_head_missing": (d.waiting, run_sql("UPDATE run SET head = 'r1.c999'")),
    "checkpoint_hash_mismatch": (d.long, lambda path: d.flip(path, "whole")),
    "checkpoint_orphaned": (d.long, run_sql("UPDATE whole SET seq = seq - 2")),
    "event_seq_gap": (d.done, run_sql("DELETE FROM log WHERE id = 3")),
    "event_seq_duplicate": (
        d.done,
        run_sql(
            "INSERT INTO log SELECT max(id) + 1, run, seq, max(id), hash, data FROM log",
            "UPDATE run SET tip = (SELECT max(id) FROM log)",
        ),
    ),
    "event_chain_broken": (d.done, lambda path: d.flip(path, "log", "id = 3", 0.9)),
    "event_unreadable": (d.done, run_sql("UPDATE log SET data = substr(data, 1, 5) WHERE id = 3")),
    "effect_attempted_without_result": (d.acting, nothing),
    "intent_sending_stale": (d.sending, nothing),
    "lease_expired_running": (d.interrupted, nothing),
    "completed_step_without_success_outcome": (d.misjudged, nothing),
    "run_row_missing": (d.done, run_sql("DELETE FROM run")),
    "blob_unreadable": (d.bulky, lambda path: d.flip(path, "blob")),
    "blob_use_record_missing": (d.bulky, run_sql("DELETE FROM blob_use")),
}
ELSEWHERE = {
    "log_rolled_back": "test_a_lost_log_is_named",
    "store_incarnation_changed": "test_another_store_in_its_place_is_named",
    "store_writer_stalled": "test_a_stopped_writer_is_named",
    "event_tail_partial": "test_workspace.py",
    "blob_orphaned": "test_workspace.py",
    "carry_record_missing": "tests/stores/test_vouched.py",
    "index_damaged": "tests/stores/test_damage.py",
    "trigger_unknown": "tests/stores/test_damage.py",
    "payload_sealed": "tests/engine/test_encryption.py",
    "record_unreadable": "tests/stores/test_damage.py",
    **{f"{kind}_record_{what}": "tests/stores/test_vouched.py" for kind in KINDS for what in ("missing", "altered")},
}


async def damaged(tmp_path: Path, build: d.Build, damage: Damage) -> OpenSqlite:
    """A store with one run in that shape, damaged; open."""
    path = tmp_path / "s.db"
    clock = Clock()
    store = d.clocked(path, clock)
    await store.open()
    await build(store)
    await store.close()
    damage(path)
    again: OpenSqlite = d.clocked(path, clock)
    await again.open()
    return again


async def checked(store: SqliteStore) -> list[str]:
    return [p.code for p in await Checker(store).all()]


def test_every_code_has_its_mutation() -> None:
    assert set(TABLE) | set(ELSEWHERE) == set(SEVERITIES)


async def test_a_large_result_that_is_gone_is_named_once(tmp_path: Path) -> None:
    """§12.1, X-01: with what refers to it; reading it is refused by the same code, and export passes nothing damaged on."""
    store = await damaged(tmp_path, d.bulky, run_sql("DELETE FROM blob"))
    found = [p for p in await Checker(store).all() if p.code == "blob_unreadable"]
    assert [p.message for p in found] == [f"the result of fetch in node: the large result {bulk().digest} is missing"]
    with pytest.raises(StoreCorrupt, match="is missing"):
        await copy(store, MemoryStore(), "r1")
    await store.close()


@pytest.mark.parametrize("code", TABLE)
async def test_each_code_is_named(code: str, tmp_path: Path) -> None:
    """§12.2, T-19, T-20: by all runs and by one; looking changes no byte of any file."""
    store = await damaged(tmp_path, *TABLE[code])
    try:
        before = content(tmp_path)
        found = await Checker(store).all()
        named = [p for p in found if p.code == code]
        assert named, f"{[p.code for p in found]} instead of {code}"
        assert {(p.severity, p.run_id) for p in named} == {(SEVERITIES[code].value, "r1")}
        assert code in [p.code for p in await Checker(store).run("r1")]
        assert found.runs == 1
        assert content(tmp_path) == before
    finally:
        await store.close()


def content(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and not p.name.endswith("-shm")}


@pytest.mark.parametrize("build", [d.done, d.waiting, d.long, d.driven], ids=lambda b: b.__name__)
async def test_a_sound_run_has_no_problem(build: d.Build, tmp_path: Path) -> None:
    """§12.1: nothing is named that is not there, whatever the run is doing."""
    store = d.clocked(tmp_path / "s.db")
    await store.open()
    await build(store)
    assert list(await Checker(store).all()) == []
    await store.close()
    memory = MemoryStore()
    await build(memory)
    assert list(await Checker(memory).all()) == []


COLUMNS = {
    "seq": "99", "version": "99", "step": "'x'", "head": "'x'", "run_id": "'r2'", "status": "'replaying'", "priority": "7",
    **{n: "'x'" for n in COPIED if n != "priority"}, "tip": "1", "doc": "x'00'",
}


@pytest.mark.parametrize("column", COLUMNS)
async def test_every_column_of_the_row_that_drifts_is_named(column: str, tmp_path: Path) -> None:
    """T-19: by hand, each column that the fold decides."""
    store = await damaged(tmp_path, d.waiting, run_sql(f"UPDATE run SET {column} = {COLUMNS[column]}"))
    try:
        found = await Checker(store).all()
        assert not found.ok
        assert {p.code for p in found} & {"snapshot_field_drift", "snapshot_status_drift", "event_seq_gap", "event_chain_broken"}
    finally:
        await store.close()


@pytest.mark.parametrize("name", [n for n in Run.__struct_fields__ if n not in ("status",)])
async def test_every_field_of_the_record_that_drifts_is_named(name: str, tmp_path: Path) -> None:
    """T-19: each field inside the encoded part; the hot ones lie in columns and are covered there."""
    from_columns = ("version", "current_step_id", "checkpoint_head")

    def edit(run: Run) -> Run:
        values = {f: getattr(run, f) for f in Run.__struct_fields__}
        values[name] = _other(values[name])
        return Run(**values)

    store = await damaged(tmp_path, d.waiting, lambda path: d.doc(path, edit))
    try:
        found = {p.code for p in await Checker(store).all()}
        assert found == (set() if name in from_columns else found & {"snapshot_field_drift", "meta_handoff_without_event"})
        assert found or name in from_columns
    finally:
        await store.close()


def _other(value: object) -> object:
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return value + "x"
        case tuple():
            return () if value else ("x",)
    return None if value is not None else "x"


def killed(program: str) -> None:
    """Another process, to its bitter end."""
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}, check=False)


def spawned(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def test_a_lost_log_is_named(tmp_path: Path) -> None:
    """X-01, §1.9: ``check`` says it too, with what to do, and reading goes on."""
    path = tmp_path / "s.db"
    program = f"""
import asyncio, os
from holdfast.stores import SqliteStore
from holdfast.testing.conformance import Script, TTL
async def main():
    store = SqliteStore({str(path)!r})
    await store.open()
    await store.register("w", TTL)
    await (await Script(store, "r1").begin("w")).steps(50)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    killed(program)
    for name in ("-wal", "-shm"):
        Path(f"{path}{name}").unlink()
    store = SqliteStore(path)
    await store.open()
    found = await Checker(store).all()
    assert [p.code for p in found] == ["log_rolled_back"]
    assert "doctor --acknowledge" in found[0].repair_hint
    await store.close()


async def test_another_store_in_its_place_is_named(tmp_path: Path) -> None:
    """§1.9: an old file of another life under the same name."""
    path, other = tmp_path / "s.db", tmp_path / "other.db"
    for where, steps in ((path, 1), (other, 9)):
        store = SqliteStore(where)
        await store.open()
        await store.register("w", d.TTL)
        await (await Script(store, "r1").begin("w")).steps(steps)
        await store.close()
    shutil.copy(other, path)
    store = SqliteStore(path)
    await store.open()
    assert [p.code for p in await Checker(store).all() if p.run_id is None] == ["store_incarnation_changed"]
    await store.close()


async def test_a_stopped_writer_is_named(tmp_path: Path) -> None:
    """§10.14: an owner frozen in mid-commit blocks the file; its process id is said."""
    path = tmp_path / "s.db"
    store = SqliteStore(path)
    await store.open()
    await d.done(store)
    store.patience = 0.05
    program = f"import apsw, sys\ndb = apsw.Connection({str(path)!r})\ndb.execute('BEGIN IMMEDIATE')\nprint('held', flush=True)\nsys.stdin.read()"
    with spawned(program) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        os.kill(child.pid, signal.SIGSTOP)
        found = await Checker(store).all()
        os.kill(child.pid, signal.SIGCONT)
        child.kill()
    assert [p.code for p in found] == ["store_writer_stalled"]
    assert str(child.pid) in found[0].message
    await store.close()


async def test_a_run_whose_first_commit_is_gone_hides_no_other(tmp_path: Path) -> None:
    """§12.1: one damaged run does not end the check of the rest."""
    path = tmp_path / "s.db"
    store = d.clocked(path)
    await store.open()
    await d.done(store)
    await Script(store, "r2").submit()
    await store.close()
    d.sql(path, "UPDATE run SET status = 'gone', doc = x'ff' WHERE run_id = 'r1'", "UPDATE run SET queue = 'q' WHERE run_id = 'r2'")
    store = d.clocked(path)
    await store.open()
    assert [(p.run_id, p.code) for p in await Checker(store).all()] == [("r1", "unknown_status"), ("r2", "snapshot_field_drift")]
    await store.close()


async def test_the_runtime_checks(tmp_path: Path) -> None:
    """interfaces.md: ``rt.check``."""
    async with Runtime(f"sqlite:///{tmp_path}/s.db") as rt:
        await d.waiting(rt.store)
        assert (await rt.check()).ok
        assert list(await rt.check("r1")) == []
        with pytest.raises(RunNotFound):
            await rt.check("nobody")
        with pytest.raises(InvalidInput):
            await rt.check("")

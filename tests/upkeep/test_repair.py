"""Repair: the safe shapes heal to what the live writer writes; all else stays as it is (§12.3, T-98…T-103)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from holdfast import Runtime
from holdfast.core import codec, decisions
from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core.commit import Commit
from holdfast.core.errors import LeaseLost, StoreFull, VersionConflict
from holdfast.core.run import Run, fold_all
from holdfast.engine.keep.check import Checker
from holdfast.engine.keep.repair import SAFE, Repairer
from holdfast.stores import SqliteStore
from holdfast.testing.conformance import TTL, Script
from tests.inside import OpenMemory
from tests.upkeep import damage as d
from tests.upkeep.test_check import TABLE, content, damaged

HEALED = sorted(SAFE - {"event_tail_partial", "carry_record_missing"})  # those: test_workspace.py, tests/stores/test_vouched.py
UNSAFE = sorted(set(TABLE) - SAFE - {"active_handoff_without_decision", "interrupted_with_active_handoff"})


def columns(path: Path) -> dict[str, Any]:
    db = apsw.Connection(str(path))
    names = [c[1] for c in db.execute("PRAGMA table_info(run)")]
    row = db.execute("SELECT * FROM run").fetchone()
    db.close()
    return dict(zip(names, row, strict=True))


async def folded(store: SqliteStore) -> Run:
    return fold_all(None, [e for row in await store.rows("r1") for e in codec.open_row(row).events])


@pytest.mark.parametrize("code", HEALED)
async def test_dry_run_writes_nothing(code: str, tmp_path: Path) -> None:
    """T-98: not even a folder."""
    store = await damaged(tmp_path, *TABLE[code])
    before = content(tmp_path)
    report = await Repairer(store).repair("r1")
    assert (report.dry_run, report.applied, report.backup) == (True, False, None)
    assert code in [a.code for a in report.actions]
    assert content(tmp_path) == before
    assert not Path(f"{store.path}-repairs").exists()
    await store.close()


@pytest.mark.parametrize("code", HEALED)
async def test_apply_heals_and_a_second_time_does_nothing(code: str, tmp_path: Path) -> None:
    """T-99, T-100, T-103: the row is the fold byte for byte, the audit record is the newest event, the status of an ended run stays."""
    build, damage = TABLE[code]
    twin = d.clocked(tmp_path / "twin.db")
    await twin.open()
    await build(twin)
    sound = columns(tmp_path / "twin.db")
    await twin.close()
    store = await damaged(tmp_path, build, damage)
    report = await Repairer(store).repair("r1", apply=True, actor="ann")
    assert report.applied, report
    assert report.backup is not None
    assert Path(report.backup).is_file()
    run = await folded(store)
    row = columns(tmp_path / "s.db")
    assert row["doc"] == codec.encode_run(run)
    assert (row["status"], row["version"], row["step"], row["head"]) == (run.status, run.version, run.current_step_id, run.checkpoint_head)
    last = codec.open_row((await store.rows("r1"))[-1])
    assert [(e.type, e.actor) for e in last.events][-1] == ("state.repaired", "ann")
    assert code in {e.fact.code for e in last.events if isinstance(e.fact, ev.StateRepaired)}
    assert not {p.code for p in await Checker(store).run("r1")} & SAFE
    if code != "halt_decision_without_halted_meta":
        assert row["status"] == sound["status"]
        same = replace(codec.decode_run(sound["doc"]), version=run.version, current_step_id=run.current_step_id, checkpoint_head=run.checkpoint_head)
        assert codec.encode_run(same) == row["doc"], "the live writer's record, but for the audit event that it does not have"
        if run.terminal:
            assert (row["owner"], row["due"], row["holds"]) == (None, None, 0)
    before = content(tmp_path)
    again = await Repairer(store).repair("r1", apply=True)
    assert (again.applied, again.backup, again.actions) == (False, None, ())
    assert content(tmp_path) == before
    assert await store.verify() == []
    await store.close()
    reopened = await _opened(tmp_path / "s.db")
    assert reopened.suspect is None
    await reopened.close()


async def _opened(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    await store.open()
    return store


async def test_a_halt_is_carried_out_as_of_its_decision(tmp_path: Path) -> None:
    """T-23, T-103: the live writer's events and record, byte for byte; halted_at is decided_at."""
    live = d.clocked(tmp_path / "live.db")
    await live.open()
    script = await d.asking(live)
    live.clock_forward()
    command = cmd.Decide(wait_id="r1.h1", action="halt", actor="ann")
    assert script.run is not None
    decided, *rest = decisions.decide(script.run, command, live.now())
    await script.write(_saving(script, decided, *rest))
    at = live.now()
    theirs = [e for row in await live.rows("r1") for e in codec.open_row(row).events]
    await live.close()

    store = await damaged(tmp_path, *TABLE["halt_decision_without_halted_meta"])
    report = await Repairer(store).repair("r1", apply=True)
    assert (report.status_before, report.status_after) == ("waiting_for_human", "canceled")
    ours = [e for row in await store.rows("r1") for e in codec.open_row(row).events]
    assert [(e.seq, e.at, e.fact, e.actor) for e in ours[:-1]] == [(e.seq, e.at, e.fact, e.actor) for e in theirs]
    mended, whole = fold_all(None, ours[:-1]), fold_all(None, theirs)
    assert codec.encode_run(mended) == codec.encode_run(whole)
    got = await store.get("r1")
    assert got is not None
    assert (got[0].finished_at, got[0].settled, got[0].stop_reason, got[1].due) == (at, True, "halted", None)
    assert await Checker(store).run("r1") == []
    await store.close()


def _saving(script: Script, *facts: ev.Fact) -> Commit:
    """What ``Journal.rest`` makes of an end at rest: the facts and a checkpoint of the parent's values."""
    data = codec.encode_delta(codec.Delta(step=script.checkpoint.step, source=codec.Source.CANCEL))
    digest = codec.canon.chain(script.checkpoint.hash, data)
    commit = script.touching(*facts, ev.CheckpointSaved(hash=digest, source="cancel"))
    saved = replace(script.checkpoint, seq=commit.events[-1].seq, hash=digest)
    return replace(commit, checkpoint=saved, delta=data, actor="ann", events=tuple(replace(e, actor="ann") for e in commit.events))


@pytest.mark.parametrize("code", UNSAFE)
async def test_what_is_not_safe_stays_as_it_is(code: str, tmp_path: Path) -> None:
    """§12.3: diagnosis only. What comes with it may be healed, but never by guessing."""
    store = await damaged(tmp_path, *TABLE[code])
    before = content(tmp_path)
    report = await Repairer(store).repair("r1", apply=True)
    if code == "checkpoint_head_missing":
        assert report.applied, "the head is a field of the row, and the fold knows the right one"
    else:
        assert not report.applied
        assert report.reason
        assert content(tmp_path) == before
    await store.close()


async def test_an_undecided_handoff_of_an_interrupted_run_needs_a_person(tmp_path: Path) -> None:
    """T-101: refused, said, nothing changed; with and without a damaged row."""
    for damage in ((), ("UPDATE run SET version = 99",), ("DELETE FROM run",)):
        folder = tmp_path / str(len(damage) + sum(map(len, damage)))
        folder.mkdir()
        store = await damaged(folder, d.torn, lambda path, do=damage: d.sql(path, *do))
        before = content(folder)
        for apply in (False, True):
            report = await Repairer(store).repair("r1", apply=apply)
            assert (report.applied, report.needs_operator_decision, report.refused) == (False, True, "needs_operator_decision")
            assert "holdfast decide" in report.reason
        assert content(folder) == before
        await store.close()


async def test_never_under_a_live_lease(tmp_path: Path) -> None:
    """T-102: nor when the owner comes between the look and the deed."""
    path = tmp_path / "s.db"
    store = d.clocked(path)
    await store.open()
    await d.waiting(store)
    d.sql(path, "UPDATE run SET version = 99")
    keeper = Repairer(store)
    evidence = await store.evidence("r1")
    (claim,) = await store.claim("w", (), None, limit=1, run_id="r1")
    report = await keeper.repair("r1", apply=True)
    assert (report.applied, report.refused) == (False, "run_is_live")
    script = Script.of(store, await store.load("r1"), claim.fence)
    with pytest.raises(VersionConflict):
        await store.rebuild(evidence, [script.commit(ev.StateRepaired("snapshot_field_drift"))])
    with pytest.raises(LeaseLost):
        await store.rebuild(await store.evidence("r1"), [script.commit(ev.StateRepaired("snapshot_field_drift"))])
    assert not list(tmp_path.glob("*-repairs"))
    await store.close()


async def test_a_failed_write_leaves_everything_as_it_was(tmp_path: Path) -> None:
    """T-99: the original intact, no backup of what was not changed, no audit record."""
    store = await damaged(tmp_path, d.waiting, lambda path: d.sql(path, "UPDATE run SET version = 99"))
    before, rows = columns(tmp_path / "s.db"), await store.rows("r1")
    db = store.connection
    db.set_exec_trace(lambda cursor, statement, bindings: _full(statement))
    with pytest.raises(StoreFull):
        await Repairer(store).repair("r1", apply=True)
    db.set_exec_trace(None)
    assert columns(tmp_path / "s.db") == before
    assert await store.rows("r1") == rows
    assert not Path(f"{store.path}-repairs").exists()
    assert (await Repairer(store).repair("r1", apply=True)).applied
    await store.close()


def _full(statement: str) -> bool:
    if statement.startswith("INSERT INTO run"):
        raise apsw.FullError("database or disk is full")
    return True


async def test_a_repaired_run_goes_on_only_when_somebody_says_so(tmp_path: Path) -> None:
    """T-102: what was due stays due, what was not does not become so; the old fence is void."""
    store = await damaged(tmp_path, d.waiting, lambda path: d.sql(path, "UPDATE run SET version = 99"))
    await store.register("v", TTL)
    before = await store.get("r1")
    assert (await Repairer(store).repair("r1", apply=True)).applied
    after = await store.get("r1")
    assert before is not None
    assert after is not None
    assert (after[1].due, after[1].owner, after[1].fence) == (None, None, before[1].fence + 1)
    assert await store.claim("v", (), None, limit=1) == []
    await store.close()


async def test_a_run_that_was_interrupted_keeps_its_dead_owner(tmp_path: Path) -> None:
    """§10.6: the takeover after a repair is still on record as one."""
    store = await damaged(tmp_path, d.interrupted, lambda path: d.sql(path, "UPDATE run SET version = 99"))
    await store.register("v", TTL)
    assert (await Repairer(store).repair("r1", apply=True)).applied
    (claim,) = await store.claim("v", (), None, limit=1)
    assert (claim.previous_owner, claim.run_id) == ("w", "r1")
    await store.close()


async def test_rebuild_takes_the_events_side(tmp_path: Path) -> None:
    """``doctor --rebuild``: an unknown status and a ghost handoff are written over; a damaged log never is."""
    for code in ("unknown_status", "meta_handoff_without_event", "terminal_snapshot_without_event"):
        folder = tmp_path / code
        folder.mkdir()
        store = await damaged(folder, *TABLE[code])
        assert not (await Repairer(store).repair("r1", apply=True)).applied
        assert (await Repairer(store).repair("r1", apply=True, rebuild=True)).applied
        assert await Checker(store).run("r1") == []
        await store.close()
    store = await damaged(tmp_path, d.done, lambda path: (d.flip(path, "log", "id = 3", 0.9), d.sql(path, "UPDATE run SET version = 9"))[1])
    assert not (await Repairer(store).repair("r1", apply=True, rebuild=True)).applied
    await store.close()


async def test_memory_is_mended_alike() -> None:
    """One port, one behaviour."""
    store = OpenMemory()
    await d.waiting(store)
    store.alter_run("r1", version=99)
    assert [p.code for p in await Checker(store).run("r1")] == ["snapshot_field_drift"]
    assert (await Repairer(store).repair("r1", apply=True)).applied
    assert await Checker(store).all() == []
    store.lose_run("r1")
    assert (await Repairer(store).repair("r1", apply=True)).applied
    assert await Checker(store).all() == []


async def test_memory_keeps_what_was_due_and_whose_it_was() -> None:
    """§10.6, §12.3: an interrupted run is taken over after its repair, one that has ended never."""
    store = OpenMemory()
    await d.interrupted(store)
    await store.register("v", TTL)
    store.alter_run("r1", version=99)
    assert (await Repairer(store).repair("r1", apply=True)).applied
    (claim,) = await store.claim("v", (), None, limit=1)
    assert (claim.previous_owner, claim.run_id) == ("w", "r1")
    ended = OpenMemory()
    await d.done(ended)
    await ended.register("v", TTL)
    ended.alter_run("r1", version=99)
    assert (await Repairer(ended).repair("r1", apply=True)).applied
    found = await ended.get("r1")
    assert found is not None and (found[1].due, found[1].owner) == (None, None) and await ended.claim("v", (), None, limit=1) == []


async def test_the_runtime_repairs(tmp_path: Path) -> None:
    """interfaces.md: ``rt.repair_run_state``; a dry run by default."""
    async with Runtime(f"sqlite:///{tmp_path}/s.db") as rt:
        await d.waiting(rt.store)
        d.sql(tmp_path / "s.db", "UPDATE run SET status = 'pending'")
        assert (await rt.repair_run_state("r1")).dry_run
        assert (await rt.repair_run_state("r1", apply=True, actor="ann")).applied
        assert (await rt.check()).ok
        assert (await rt.repair_run_state("r1", apply=True)).reason == "nothing to repair"


async def test_the_backup_is_whole_on_the_disk_before_anything_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """§12.3: what is synced is all of it, not what a buffer has let go by then."""
    store = await damaged(tmp_path, *TABLE["snapshot_status_drift"])
    synced: dict[str, bytes] = {}
    sync = os.fsync

    def noted(fd: int) -> None:
        name = os.readlink(f"/proc/self/fd/{fd}")
        if name.endswith(".json"):
            synced[name] = Path(name).read_bytes()
        sync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    report = await Repairer(store).repair("r1", apply=True, actor="ada")
    assert report.applied and report.backup is not None
    assert synced == {report.backup: Path(report.backup).read_bytes()} and synced[report.backup]
    await store.close()

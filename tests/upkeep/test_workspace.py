"""The workspace store: files that can be cut, flipped and crashed at every byte and write (§12.5, T-16, T-20, X-10)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import codec
from holdfast.core import events as ev
from holdfast.core.errors import HoldfastError, StoreBusy, StoreCorrupt, StoreFull
from holdfast.core.lease import RELEASE
from holdfast.engine.keep.check import Checker
from holdfast.engine.keep.repair import SAFE, Repairer
from holdfast.engine.keep.transfer import copy, dossier
from holdfast.stores import MemoryStore, SqliteStore, WorkspaceStore, workspace
from holdfast.testing.conformance import TTL, Script, effect
from holdfast.testing.conformance import signal as signal_to
from holdfast.testing.conformance_blobs import bulk, recording
from holdfast.testing.conformance_outbox import intent, settle
from tests.upkeep import damage as d
from tests.upkeep.test_check import content


async def opened(folder: Path) -> WorkspaceStore:
    store = WorkspaceStore(folder)
    await store.open()
    return store


async def codes(folder: Path) -> list[str]:
    store = await opened(folder)
    try:
        return [p.code for p in await Checker(store).all()]
    finally:
        await store.close()


async def made(folder: Path, build: d.Build = d.done) -> Path:
    """A workspace with one run; gives the run's directory."""
    store: Any = await opened(folder)
    store.clock_forward = lambda: None
    await build(store)
    await store.close()
    return folder / "r1"


async def whole_life(store: Any) -> Script:
    """A run with everything that hangs on one."""
    await store.register("w", TTL)
    script = await Script(store, "r1").begin("w")
    await script.steps(2)
    await script.write(recording(script, bulk()))
    await script.write(script.commit(ev.SideEffectAttempted("r1.x1", "k"), effects=(effect("r1", 1, "k"),)))
    await script.write(script.commit(ev.WaitRequested(d.HANDOFF), ev.RunWaitingForHuman(), lease=RELEASE))
    await store.put(signal_to("r1", "s", store.now()))
    decision = d.Decision("r1.h1", "continue", "ann", decided_at=store.now(), asked=d.HANDOFF.asked)
    await script.write(script.touching(ev.WaitDecided(decision), took=("signal:go:s",)))
    await script.write(script.taking("w", ev.RunResumed("decision")))
    child = Script(store, "c1", parent_run_id="r1").first()
    await script.write(script.commit(ev.NoteAdded("child"), intents=(intent("r1", "i1", store.now()),), creates=(child,)))
    return await script.complete()


async def test_people_can_read_it(tmp_path: Path) -> None:
    """§12.5: every line is JSON and says what happened; the files are where people look."""
    folder = await made(tmp_path / "ws", whole_life)
    lines = [json.loads(text) for text in (folder / "events.jsonl").read_text().splitlines()]
    assert [e["seq"] for e in lines] == list(range(1, len(lines) + 1))
    assert {"event_type", "occurred_at", "actor", "payload", "k", "n", "chain"} <= lines[0].keys()
    meta = json.loads((folder / "meta.json").read_text())
    assert (meta["run_id"], meta["status"], meta["version"]) == ("r1", "completed", len(lines))
    assert json.loads((folder / "effects.jsonl").read_text().splitlines()[0])["status"] == "attempted"
    assert [json.loads(p.read_text())["action"] for p in (folder / "decisions").iterdir()] == ["continue"]
    named = {e["record"]["checkpoint"] for e in lines if "record" in e and e["record"]["checkpoint"]}
    assert {p.stem for p in (folder / "checkpoints").iterdir()} == named
    assert all("writes" in json.loads(p.read_text()) for p in (folder / "checkpoints").iterdir())


async def test_what_is_loaded_is_what_was_written(tmp_path: Path) -> None:
    """§1.8: rows byte for byte, and all that hangs on the run."""
    store = await opened(tmp_path / "ws")
    await whole_life(store)
    before = await dossier(store, "r1")
    memory = MemoryStore()
    await store.close()
    store = await opened(tmp_path / "ws")
    after = await dossier(store, "r1")
    assert after == before
    assert len(before.rows) > 5
    assert [len(x) for x in (before.effects, before.intents, before.inbox)] == [1, 1, 1]
    assert await copy(store, memory, "r1")
    assert [r.data for r in await memory.rows("r1")] == [r.data for r in before.rows]
    assert (await store.get("c1")) is not None
    assert [p.code for p in await Checker(store).all()] == ["effect_attempted_without_result"]
    await store.close()


async def test_a_look_leaves_nothing_behind(tmp_path: Path) -> None:
    """T-98: not the folder, not a lock."""
    store = await opened(tmp_path / "nowhere")
    assert list(await Checker(store).all()) == []
    await store.close()
    assert list(tmp_path.iterdir()) == []
    await made(tmp_path / "ws")
    before = content(tmp_path)
    assert await codes(tmp_path / "ws") == []
    assert content(tmp_path) == before


async def test_one_writer(tmp_path: Path) -> None:
    """§12.5: a second store may look, and is told why it cannot write."""
    first = await opened(tmp_path)
    await d.waiting(first)
    second = await opened(tmp_path)
    assert await second.get("r1") is not None
    with pytest.raises(StoreBusy):
        await Script(second, "r2").submit()
    running = await Script(first, "r3").begin("w")
    third = await opened(tmp_path)
    assert [p.code for p in await Checker(third).all()] == [], "whoever the other process drives for is alive"
    report = await Repairer(third).repair("r3", apply=True)
    assert (report.applied, running.run is not None) == (False, True)
    await first.close()
    await second.close()
    await third.close()


# -- T-16: cut at every byte ------------------------------------------------------------------------


async def test_a_second_store_sees_intents_and_settles_none(tmp_path: Path) -> None:
    """§12.5, §9.7: a process that does not write the folder neither takes intents nor drops their payloads; it is told why."""
    first, second = await opened(tmp_path), await opened(tmp_path)
    await first.register("w", TTL)
    run = await Script(first, "r1").begin("w")
    assert await second.claim_intents("d", ("mail",), limit=1, ttl_us=TTL) == []
    await run.write(run.commit(ev.NoteAdded("x"), intents=(intent("r1", "i1", first.now()), intent("r1", "i2", first.now()))))
    with pytest.raises(StoreBusy):
        await second.claim_intents("d", ("mail",), limit=1, ttl_us=TTL)
    (got,) = await first.claim_intents("d", ("mail",), limit=1, ttl_us=TTL)
    assert await settle(first, got)
    before = content(tmp_path)
    with pytest.raises(StoreBusy):
        await second.drop_payloads(first.now() + 1, 10)
    assert content(tmp_path) == before
    assert await first.drop_payloads(first.now() + 1, 10) == 1
    assert await second.drop_payloads(0, 10) == 0, "there is nothing to be dropped, so nobody is asked for the lock"
    await second.close()
    await first.close()


async def test_the_log_cut_at_every_byte(tmp_path: Path) -> None:
    """T-16: never raises; what is left is the longest run of whole commits; clean, or named."""
    folder = await made(tmp_path / "ws", d.done)
    data = (folder / "events.jsonl").read_bytes()

    def files(name: str) -> bytes | None:
        path = folder / "checkpoints" / f"{name}.json"
        return path.read_bytes() if path.exists() else None

    full = workspace.read_log("r1", data, files)
    assert not full.problems
    ends = [i + 1 for i, byte in enumerate(data) if byte == 10]
    sizes = {0}
    for cut in range(len(data) + 1):
        kept = workspace.read_log("r1", data[:cut], files)
        assert kept.rows == full.rows[: len(kept.rows)]
        sizes.add(kept.size)
        assert kept.size <= cut
        named = [p.code for p in kept.problems]
        assert named == ([] if cut == kept.size else ["event_tail_partial"])
        assert kept.tail == data[kept.size : cut]
    assert sizes <= {0, *ends}
    assert len(sizes) == len(full.rows) + 1


@pytest.mark.parametrize("back", [1, 2, 50, 200])
async def test_a_cut_export_is_named_and_mended(back: int, tmp_path: Path) -> None:
    """T-16, §12.3: checked from the files, then cut to the last whole commit; the bytes stay in the backup."""
    folder = await made(tmp_path / "ws", d.done)
    log = folder / "events.jsonl"
    data = log.read_bytes()
    log.write_bytes(data[:-back])
    found = await codes(tmp_path / "ws")
    assert "event_tail_partial" in found
    store = await opened(tmp_path / "ws")
    report = await Repairer(store).repair("r1", apply=True, actor="ann")
    assert report.applied, report
    assert report.backup is not None
    assert json.loads(Path(report.backup).read_text())["tail"]
    assert (await Checker(store).all()).ok
    await store.close()
    assert await codes(tmp_path / "ws") == ["lease_expired_running"], "the end is lost, so it is not the run's end any more"
    assert data.startswith(log.read_bytes().rsplit(b'{"seq": ', 1)[0])
    again = await opened(tmp_path / "ws")
    assert not (await Repairer(again).repair("r1", apply=True)).applied
    await again.close()


@pytest.mark.parametrize("left", [b"{", b"{\"n\": 3, ", b"{" * 500])
async def test_what_a_dead_process_left_of_a_line_is_cut_off(left: bytes, tmp_path: Path) -> None:
    """X-01: one byte or many: the next line begins on a clean one, and nothing of either is lost."""
    folder = await made(tmp_path / "ws", d.waiting)
    store = await opened(tmp_path / "ws")
    before = {p: p.read_bytes() for p in folder.glob("*.jsonl")}
    await store.put(signal_to("r1", "a", 0))
    [grown] = [p for p in folder.glob("*.jsonl") if p.read_bytes() != before.get(p, b"")]
    with grown.open("ab") as f:
        f.write(left)
    await store.put(signal_to("r1", "b", 0))
    await store.close()
    again = await opened(tmp_path / "ws")
    assert [i.key for i in await again.inbox("r1")] == [signal_to("r1", k, 0).key for k in "ab"]
    assert left not in grown.read_bytes().splitlines()
    await again.close()


async def test_a_lost_end_is_named_by_the_cache(tmp_path: Path) -> None:
    """§1.9: cut between commits nothing is torn; ``meta.json`` still knows how far the log had come."""
    folder = await made(tmp_path / "ws", d.done)
    log = folder / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    kept = workspace.read_log("r1", b"".join(lines), lambda name: None)
    last = json.loads(lines[-1])["n"]
    log.write_bytes(b"".join(lines[:-last]))
    assert "log_rolled_back" in await codes(tmp_path / "ws")
    store = await opened(tmp_path / "ws")
    assert not (await Repairer(store).repair("r1", apply=True)).applied
    await store.close()
    assert kept.rows


@pytest.mark.parametrize("part", [0.05, 0.3, 0.5, 0.7, 0.97])
async def test_a_flipped_bit_in_any_line_is_an_error(part: float, tmp_path: Path) -> None:
    """T-16, X-01: a corrupt line in the middle, or at the end, is no torn tail; the run can be looked at and not written."""
    folder = await made(tmp_path / "ws", d.waiting)
    log = folder / "events.jsonl"
    data = bytearray(log.read_bytes())
    at = int(len(data) * part)
    data[at] ^= 0x01
    log.write_bytes(bytes(data))
    found = await codes(tmp_path / "ws")
    assert "event_unreadable" in found, found
    store = await opened(tmp_path / "ws")
    with pytest.raises(HoldfastError):
        await store.load("r1")
    assert not (await Repairer(store).repair("r1", apply=True)).applied
    await store.close()


async def test_checkpoint_files(tmp_path: Path) -> None:
    """§4.5: a file that is gone, changed, or vouched for by nobody."""
    folder = await made(tmp_path / "ws", d.waiting)
    files = sorted((folder / "checkpoints").iterdir())
    newest = json.loads((folder / "events.jsonl").read_text().splitlines()[-3])["record"]["checkpoint"]
    shutil.copy(files[0], folder / "checkpoints" / "00.json")
    assert await codes(tmp_path / "ws") == ["checkpoint_orphaned"]
    (folder / "checkpoints" / "00.json").unlink()
    path = folder / "checkpoints" / f"{newest}.json"
    kept = path.read_bytes()
    other = next(f for f in files if f.stem != newest)
    path.write_text(json.dumps({**json.loads(kept), "delta": json.loads(other.read_text())["delta"]}))
    assert {"checkpoint_hash_mismatch", "event_chain_broken"} <= set(await codes(tmp_path / "ws"))
    path.unlink()
    assert "checkpoint_head_missing" in await codes(tmp_path / "ws")
    path.write_bytes(kept)
    assert await codes(tmp_path / "ws") == []


async def test_large_results_are_files(tmp_path: Path) -> None:
    """§6.4, X-01: under their hash, in the directory that names them; gone, changed or named by nothing, they are told."""
    folder = await made(tmp_path / "ws", d.bulky)
    path = folder / "blobs" / bulk().digest
    data = bulk().data
    assert data is not None
    assert path.read_bytes() == data
    assert (folder / "events.jsonl").stat().st_size < 10_000
    assert await codes(tmp_path / "ws") == []
    (folder / "blobs" / "stray").write_bytes(b"")
    assert await codes(tmp_path / "ws") == ["blob_orphaned"]
    (folder / "blobs" / "stray").unlink()
    path.write_bytes(data[:-1] + b"?")
    assert await codes(tmp_path / "ws") == ["blob_unreadable"]
    path.unlink()
    assert await codes(tmp_path / "ws") == ["blob_unreadable"]
    store = await opened(tmp_path / "ws")
    assert await store.get("r1") is not None, "the run can be looked at all the same"
    with pytest.raises(StoreCorrupt, match="is missing"):
        await store.blob(bulk().digest)
    await store.close()


@pytest.mark.parametrize("links", [True, False], ids=["linked", "copied"])
async def test_each_directory_has_its_own_large_results(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """§12.5: a run that names another's result can be carried away by itself; either copy will do."""
    if not links:
        monkeypatch.setattr(os, "link", _no_link)
    await made(tmp_path / "ws", d.bulky)
    store = await opened(tmp_path / "ws")
    await store.register("v", TTL)
    script = await Script(store, "r2").begin("v")
    await script.write(recording(script, bulk(), kept=True))
    await script.complete()
    first, second = (tmp_path / "ws" / r / "blobs" / bulk().digest for r in ("r1", "r2"))
    assert second.read_bytes() == bulk().data
    assert (first.stat().st_ino == second.stat().st_ino) is links
    first.unlink()
    assert await store.blob(bulk().digest) == bulk().data
    assert [(p.code, p.run_id) for p in await Checker(store).all()] == [("blob_unreadable", "r1")]
    await store.close()
    assert await codes(tmp_path / "ws") == ["blob_unreadable"]


def _no_link(source: str, target: str) -> None:
    raise OSError(95, "Operation not supported")


async def test_a_tombstone_keeps_its_large_result_in_the_folder(tmp_path: Path) -> None:
    """§6.10: the run's directory is gone; who comes with the same key is given the result, also after the next start."""
    store = await opened(tmp_path / "ws")
    await store.register("w", TTL)
    script = await Script(store, "r1").begin("w")
    await script.write(recording(script, bulk(), key="all", shared=True))
    await script.complete()
    assert (await store.prune(store.now() + 1)).run_ids == ("r1",)
    await store.close()
    assert sorted(p.name for p in (tmp_path / "ws").iterdir()) == ["blobs", "pruned.jsonl", "tombstones.jsonl", "workspace.json"]
    store = await opened(tmp_path / "ws")
    (kept,) = await store.effects(key="all")
    assert await store.blob(kept.blob) == bulk().data
    await store.close()


META: dict[str, tuple[d.Build, dict[str, Any], str]] = {
    "status": (d.waiting, {"status": "pending"}, "snapshot_status_drift"),
    "ended": (d.done, {"status": "running"}, "terminal_event_without_terminal_snapshot"),
    "revived": (d.waiting, {"status": "failed"}, "terminal_snapshot_without_event"),
    "unknown": (d.waiting, {"status": "paused"}, "unknown_status"),
    "field": (d.waiting, {"queue": "other"}, "snapshot_field_drift"),
    "time": (d.waiting, {"created_at": "2020-01-01T00:00:00.000000Z"}, "snapshot_field_drift"),
    "type": (d.waiting, {"priority": "high"}, "snapshot_field_drift"),
    "stale": (d.done, {"active_handoff": "r1.h1"}, "terminal_with_stale_handoff"),
    "ghost": (d.waiting, {"active_handoff": "r9"}, "meta_handoff_without_event"),
    "head": (d.waiting, {"checkpoint_head": "r1.c99"}, "checkpoint_head_missing"),
}


@pytest.mark.parametrize("name", META)
async def test_meta_that_drifts_is_named_and_healed_if_safe(name: str, tmp_path: Path) -> None:
    """T-19, T-103: a hand-made edit of the cache; the repaired file is byte for byte the live writer's, but for the audit."""
    build, edit, code = META[name]
    folder = await made(tmp_path / "ws", build)
    path = folder / "meta.json"
    sound = json.loads(path.read_text())
    path.write_text(json.dumps({**sound, **edit}))
    assert code in await codes(tmp_path / "ws")
    store = await opened(tmp_path / "ws")
    report = await Repairer(store).repair("r1", apply=True)
    await store.close()
    assert report.applied is (code in SAFE or code == "checkpoint_head_missing")
    if report.applied:
        assert await codes(tmp_path / "ws") == []
        mended = json.loads(path.read_text())
        audit = {"version": mended["version"], "store": mended["store"]}
        assert path.read_text() == json.dumps({**sound, **audit}, ensure_ascii=False, indent=2) + "\n"


async def test_meta_of_an_earlier_release(tmp_path: Path) -> None:
    """§1.8: a field that did not exist then has its default; no drift, no error."""
    folder = await made(tmp_path / "ws", d.done)
    fields = json.loads((folder / "meta.json").read_text())
    for name in ("unattended", "kind", "waivers", "versions"):
        del fields[name]
    (folder / "meta.json").write_text(json.dumps(fields))
    assert await codes(tmp_path / "ws") == []
    del fields["skill_id"]
    (folder / "meta.json").write_text(json.dumps(fields))
    assert await codes(tmp_path / "ws") == ["snapshot_field_drift"]


async def test_meta_gone_or_torn(tmp_path: Path) -> None:
    """T-20: the cache can be thrown away."""
    folder = await made(tmp_path / "ws", d.waiting)
    for text, code in ((None, "run_row_missing"), ("{", "snapshot_field_drift"), ("", "snapshot_field_drift"), ("[]", "snapshot_field_drift")):
        (folder / "meta.json").unlink()
        if text is not None:
            (folder / "meta.json").write_text(text)
        assert await codes(tmp_path / "ws") == [code]
        store = await opened(tmp_path / "ws")
        assert await store.get("r1") is not None
        assert (await Repairer(store).repair("r1", apply=True)).applied
        await store.close()
        assert await codes(tmp_path / "ws") == []


# -- T-20: a crash between any two writes -----------------------------------------------------------


class Crash(BaseException):
    """The process ends here."""


WRITES = ("_add", "_replace")


def crash_at(monkeypatch: pytest.MonkeyPatch, number: int, *, half: bool) -> Callable[[], int]:
    """Ends the process at its n-th write: before it, or with half of it done. Gives how many writes there were."""
    count = 0
    add, replace = workspace._add, WorkspaceStore._replace

    def count_one(path: str, data: bytes, write: Callable[[bytes], None]) -> None:
        nonlocal count
        count += 1
        if count > number:
            raise Crash
        if count == number:
            if half and path.endswith(".jsonl"):
                with open(path, "ab") as f:
                    f.write(data[: len(data) // 2])
            raise Crash
        write(data)

    monkeypatch.setattr(workspace, "_add", lambda path, data: count_one(path, data, lambda x: add(path, x)))
    monkeypatch.setattr(
        WorkspaceStore, "_replace", lambda self, path, data, sync=False: count_one(path, data, lambda x: replace(self, path, x, sync=sync))
    )
    return lambda: count


EXPECTED = {
    "event_tail_partial", "checkpoint_orphaned", "blob_orphaned", "run_row_missing", "snapshot_field_drift", "snapshot_status_drift",
    "terminal_event_without_terminal_snapshot", "lease_expired_running", "effect_attempted_without_result", "active_handoff_without_decision",
    "interrupted_with_active_handoff",
}


@pytest.mark.parametrize("half", [False, True], ids=["before", "half"])
async def test_a_crash_between_any_two_writes(half: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T-20: every resulting shape is clean or in the code table, nothing acknowledged is lost, and the run goes on from it."""
    await made(tmp_path / "whole", whole_life)
    number, shapes = 0, set()
    while True:
        number += 1
        folder = tmp_path / f"{number}"
        store = await opened(folder)
        with monkeypatch.context() as patch:
            total = crash_at(patch, number, half=half)
            acknowledged = 0
            try:
                script = await whole_life(_Counting(store))
                acknowledged = script.tip.seq if script.tip else 0
            except Crash:
                acknowledged = _Counting.last
            writes = total()
        if store._lock >= 0:
            os.close(store._lock)
            store._lock = -1
        if writes < number:
            break
        found = set(await codes(folder))
        shapes |= found
        assert found <= EXPECTED, (number, found)
        again: Any = await opened(folder)
        again.clock_forward = lambda: None
        run = await again.get("r1")
        assert (run[0].version if run else 0) >= acknowledged, number
        if run is not None and not run[0].terminal:
            await again.register("v", TTL)
            claims = await again.claim("v", (), None, limit=5, run_id="r1")
            loaded = await again.load("r1")
            assert len(claims) == 1
            script = Script.of(again, loaded, claims[0].fence)
            await script.write(script.commit(ev.NoteAdded("goes on")))
            found = set(await codes_of(again))
            assert not found & {"event_tail_partial", "run_row_missing", "snapshot_field_drift", "snapshot_status_drift"}, (number, found)
        await again.close()
    assert number > 20, "the uncrashed world did the work"
    assert {"event_tail_partial"} <= shapes if half else {"checkpoint_orphaned", "blob_orphaned", "run_row_missing"} <= shapes


async def codes_of(store: WorkspaceStore) -> list[str]:
    return [p.code for p in await Checker(store).run("r1")]


class _Counting:
    """Passes everything on and remembers the newest acknowledged event of r1."""

    last = 0

    def __init__(self, store: WorkspaceStore) -> None:
        self._store = store
        _Counting.last = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, commit: Any) -> Any:
        tip = await self._store.commit(commit)
        if commit.run.run_id == "r1":
            _Counting.last = tip.seq
        return tip


async def test_a_disk_that_fills_in_the_middle_of_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X-10: refused by name; the next start names what was left, and appends on a clean line."""
    store = await opened(tmp_path / "ws")
    script = await d.driven(store)
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, data[: len(data) // 2]))
        patch.setattr(os, "ftruncate", _no_truncate)
        with pytest.raises(StoreFull):
            await script.write(script.commit(ev.NoteAdded("too much")))
    await store.close()
    assert "event_tail_partial" in await codes(tmp_path / "ws")
    store = await opened(tmp_path / "ws")
    await store.register("v", TTL)
    (claim,) = await store.claim("v", (), None, limit=1)
    script = Script.of(store, await store.load("r1"), claim.fence)
    await script.write(script.commit(ev.NoteAdded("goes on")))
    await script.complete()
    await store.close()
    assert await codes(tmp_path / "ws") == []
    assert list((tmp_path / "ws" / "r1" / "repairs").iterdir()), "the bytes are kept"


def _no_truncate(fd: int, size: int) -> None:
    raise OSError(28, "No space left on device")


async def test_a_full_disk_that_can_be_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X-10: in the same process the next commit follows the last whole one."""
    store = await opened(tmp_path / "ws")
    script = await d.driven(store)
    before = (tmp_path / "ws" / "r1" / "events.jsonl").read_bytes()
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, data[: len(data) // 2]))
        with pytest.raises(StoreFull):
            await script.write(script.commit(ev.NoteAdded("too much")))
    assert (tmp_path / "ws" / "r1" / "events.jsonl").read_bytes() == before
    await script.complete()
    await store.close()
    assert await codes(tmp_path / "ws") == []


async def test_a_repair_whose_replace_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T-99: the original intact, no temporary file, no backup, no audit record."""
    folder = await made(tmp_path / "ws", d.waiting)
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "queue": "other"}))
    before = content(tmp_path)
    store = await opened(tmp_path / "ws")
    move = os.replace

    def fail(src: str, dst: str) -> None:
        if dst.endswith("meta.json"):
            raise OSError(5, "Input/output error")
        move(src, dst)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(HoldfastError):
            await Repairer(store).repair("r1", apply=True)
    assert content(tmp_path) == before
    assert (await Repairer(store).repair("r1", apply=True)).applied
    await store.close()


# -- carrying over ----------------------------------------------------------------------------------


async def test_there_and_back_again(tmp_path: Path) -> None:
    """Issue item 3: SQLite → workspace → SQLite; events byte-identical, and all that hangs on the run."""
    first, second = SqliteStore(tmp_path / "a.db"), SqliteStore(tmp_path / "b.db")
    await first.open()
    await second.open()
    await whole_life(first)
    middle = await opened(tmp_path / "ws")
    assert await copy(first, middle, "r1")
    await middle.close()
    middle = await opened(tmp_path / "ws")
    assert [p.code for p in await Checker(middle).all()] == ["effect_attempted_without_result"]
    assert await copy(middle, second, "r1")
    assert not await copy(middle, second, "r1"), "a second time changes nothing"
    one, two = await dossier(first, "r1"), await dossier(second, "r1")
    assert [(r.seq, r.data, r.hash) for r in two.rows] == [(r.seq, r.data, r.hash) for r in one.rows]
    assert codec.encode_run(two.run) == codec.encode_run(one.run)
    assert (two.effects, two.intents, two.inbox, two.ledger) == (one.effects, one.intents, one.inbox, one.ledger)
    assert [p.code for p in await Checker(second).all()] == ["effect_attempted_without_result"]
    for store in (first, middle, second):
        await store.close()


async def test_an_imported_run_goes_on(tmp_path: Path) -> None:
    """§12.5: it rests where it rested; a worker of the new store takes it up under a fence of that store."""
    first, second = SqliteStore(tmp_path / "a.db"), SqliteStore(tmp_path / "b.db")
    await first.open()
    await second.open()
    await d.waiting(first)
    assert await copy(first, second, "r1")
    await second.register("v", TTL)
    assert await second.claim("v", (), None, limit=1) == []
    await second.put(signal_to("r1", "s", second.now()))
    (claim,) = await second.claim("v", (), None, limit=1)
    script = Script.of(second, await second.load("r1"), claim.fence)
    await script.write(script.commit(ev.RunResumed("signal"), took=("signal:go:s",)))
    await script.complete()
    assert await Checker(second).all() == []
    await first.close()
    await second.close()

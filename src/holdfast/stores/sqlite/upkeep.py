"""Upkeep (``ports.Upkeep``): reading damaged rows as they are, mending, adopting, pruning.

Nothing here is executed during a step. Reads take the row column by column, so that one bad value hides no other; writes are one transaction each,
like every verb; a prune has several, one for each batch of lineages.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import apsw

from holdfast.core import codec, vouch
from holdfast.core.codec import Row
from holdfast.core.commit import Commit, DedupClaim, Tip
from holdfast.core.consistency import problem
from holdfast.core.errors import HoldfastError, LeaseLost, LogRolledBack, StoreError, VersionConflict
from holdfast.core.run import Run
from holdfast.core.status import TERMINAL
from holdfast.core.vouch import OWN, Voucher
from holdfast.ports import Dossier, Evidence, Needs, Pruned
from holdfast.stores import apply
from holdfast.stores.apply import WHOLE_FLOOR, Aged, Stands, order_effects
from holdfast.stores.evidence import COPIED, STANDING, as_loaded, copy_of, end_of, end_problems, plain, row_problems, stands
from holdfast.stores.files import on_disk
from holdfast.stores.sqlite import besides, limits, outbox
from holdfast.stores.sqlite.commits import keep_blob
from holdfast.stores.sqlite.connection import Q, row, rows, value_of

COLUMNS = (
    "id", "seq", "tip", "since", "version", "step", "head", "fence", "owner", "due", "holds", "turn", "whole", "run_id", "status", "tenant_id",
    "skill_id", "fingerprint", "thread_id", "session_key", "lane", "queue", "priority", "parent_run_id", "lineage_root", "doc", "seal", "ended",
)
AT_ONCE = 4  # lineages that are judged and deleted together
_TERMINAL = frozenset(s.value for s in TERMINAL)


# -- looking ----------------------------------------------------------------------------------------


def orphans(db: apsw.Connection) -> dict[str, tuple[int, int]]:
    """Returns runs of which only the log is left, with their key and their newest row. Scans the whole log."""
    found = {}
    for key, tip in rows(db, Q.log_orphans):
        first = row(db, Q.log_first, (tip,))
        if first is None:
            continue
        try:
            events = codec.open_row(Row(*first)).events
        except StoreError:
            continue  # its first row does not say whose it is; the walk over all chains reports it
        run_id = getattr(events[0].fact, "run_id", None) if events else None
        if isinstance(run_id, str):
            found[run_id] = (key, tip)
    return found


def raw_row(db: apsw.Connection, run_id: str) -> dict[str, Any] | None:
    """Returns a run's row as it is, writable as JSON."""
    found = row(db, Q.run_raw, (run_id,))
    return None if found is None else {n: plain(v) for n, v in zip(COLUMNS, found, strict=True)}


def evidence_of(db: apsw.Connection, raw: dict[str, Any], lease: Any, beyond: int | None, tail: int | None) -> Evidence:
    """Returns the evidence of a run that has a row. ``beyond``: the newest row of its log, if the log goes on behind the run's tip; ``tail``: where
    the log ended when the row was last written by anything but a plain step."""
    run = as_loaded(raw)
    end = raw["tip"] if beyond is None or beyond < raw["tip"] else beyond
    last = row(db, Q.log_end, (end, raw["id"]))
    since, size = (raw["since"], raw["whole"]) if end == raw["tip"] else (WHOLE_FLOOR + 1, 0)
    tip = None if last is None else Tip(last[0], last[1], end, since, size)
    found = row_problems(raw, run, None if last is None else last[0])
    if tail is not None and tail > end:
        about = f"the log of {raw['run_id']} ends before its commit {tail}, which was there when the run was last written"
        found.append(problem(LogRolledBack.code, about, "restore a backup", raw["run_id"]))
    if raw["ended"] is not None:  # a release without this column may have written the end
        found += end_problems(raw, run)
    return Evidence(run_id=raw["run_id"], run=run, lease=lease, tip=tip, raw=raw, problems=tuple(found))


def find_orphan(run_id: str, key: int, tip: int, last: tuple[int, bytes]) -> Evidence:
    """Returns the evidence of a run without a row."""
    return Evidence(run_id=run_id, run=None, lease=None, tip=Tip(last[0], last[1], tip, WHOLE_FLOOR + 1, 0), raw={"id": key})


def needs(db: apsw.Connection, run_id: str, key: int) -> Needs:
    """Returns what is recorded of the needs of a run."""
    return Needs(
        frozenset(str(r) for (r,) in rows(db, Q.predecessors, (key,))), frozenset(in_hex(digest) for (digest,) in rows(db, Q.blobs_of_run, (run_id,)))
    )


def in_hex(digest: Any) -> str:
    return digest.hex() if isinstance(digest, bytes) else str(digest)


# -- mending ----------------------------------------------------------------------------------------


def keep_backup(path: str, evidence: Evidence) -> str:
    """Writes the row as it is beside the database, and syncs it before anything is changed. Returns the file's name."""
    folder = path + "-repairs"
    with on_disk(folder):
        return _keep_backup(folder, evidence)


def _keep_backup(folder: str, evidence: Evidence) -> str:
    os.makedirs(folder, exist_ok=True)
    target = os.path.join(folder, f"{quote(evidence.run_id, safe='')}-{evidence.tip.seq if evidence.tip else 0}.json")
    with open(target, "w", encoding="utf-8") as f:
        json.dump(evidence.raw, f, ensure_ascii=False, indent=2, sort_keys=True)
        f.flush()
        os.fsync(f.fileno())
    return target


def drop_backup(path: str, target: str) -> None:
    """Deletes a backup, and the folder if it was made for that, because nothing was changed after all."""
    os.unlink(target)
    try:
        os.rmdir(path + "-repairs")
    except OSError:
        pass  # there are older backups in it


def rebuild(db: apsw.Connection, evidence: Evidence, commits: Sequence[Commit], now: int, lost: Callable[[str], bool]) -> tuple[int, bytes]:
    """Inside a transaction: appends the commits and writes the last one's run over the row. Returns the newest log row."""
    run, fence = commits[-1].run, commits[-1].fence
    raw = raw_row(db, evidence.run_id)
    there = evidence.raw if raw is not None or "doc" in evidence.raw else None
    if raw != there:
        raise VersionConflict(f"{run.run_id} has changed since it was read", hint="read it again")
    if raw is not None and raw["owner"] is not None and not lost(raw["owner"]):
        raise LeaseLost(f"{run.run_id} is held by {raw['owner']}", hint="wait until nobody executes the run")
    assert evidence.tip is not None
    key, number, since, whole, digest = evidence.raw["id"], evidence.tip.row, evidence.tip.since, evidence.tip.whole, evidence.tip.hash
    for commit in commits:
        sealed = apply.prepare(commit).sealed.row
        db.execute(Q.step_log, (key, sealed.seq, number, sealed.hash, sealed.data))
        number, digest = db.last_insert_rowid(), sealed.hash
        since += len(sealed.data)
        besides.vouch_for(db, [besides.put_effect(db, effect, codec.encode_effect(effect)) for effect in order_effects(commit.effects)])
        besides.vouch_for(db, besides.claim_keys(db, commit.effects, all=True))
    held: dict[str, Any] = raw if raw is not None and stands(raw) else {"owner": None, "due": None, "holds": apply.would_hold(run), "turn": number, "status": ""}
    stood, moved = Stands(held["owner"], held["due"], bool(held["holds"])), held["status"] != run.status.value
    taken = row(db, Q.lane_holder, (run.tenant_id, run.session_key, run.lane, key)) is not None
    left = apply.rebuilt(commits[-1], stood, moved, now, unread=bool(row(db, Q.inbox_unread, (key,))[0]), taken=taken)
    db.execute(Q.run_delete, (key,))
    _insert(
        db, run, key, seq=commits[-1].events[-1].seq, tip=number, since=since, fence=fence, turn=held["turn"], whole=whole,
        owner=left.owner, due=left.due, holds=int(left.holds),
    )
    if evidence.needs is not None:
        db.executemany(Q.carry_again, [(key, predecessor) for predecessor in evidence.needs.predecessors])
        db.executemany(Q.blob_use, [(run.run_id, bytes.fromhex(name)) for name in evidence.needs.blobs])
    db.execute(Q.tail_put, (key, number))
    return number, digest


def _insert(db: apsw.Connection, run: Run, key: int | None, **columns: Any) -> int:
    values = {
        "id": key, "version": run.version, "step": run.current_step_id, "head": run.checkpoint_head, "run_id": run.run_id,
        "status": run.status.value, "doc": codec.encode_run(run), "ended": end_of(run), **columns, **{n: copy_of(run, n) for n in COPIED},
    }
    values["seal"] = vouch.standing(run.run_id, *[values[n] for n in STANDING])
    db.execute(Q.run_adopt, [values[n] for n in COLUMNS])
    return db.last_insert_rowid() if key is None else key


# -- carrying over ----------------------------------------------------------------------------------


def adopt(db: apsw.Connection, d: Dossier, incarnation: int, now: int) -> tuple[int, bytes]:
    """Inside a transaction: writes a run that is not here yet. Returns the newest log row."""
    run = d.run
    taken = row(db, Q.lane_holder, (run.tenant_id, run.session_key, run.lane, 0)) is not None  # no run has the key 0
    stands = apply.adopt(d, incarnation, now, taken=taken)
    turn = apply.place_adopted(run, row(db, Q.thread_next, (run.thread_id, run.tenant_id, run.run_id))[0], row(db, Q.last_log)[0] + 1)
    key = _insert(
        db, run, None, seq=stands.seq, tip=0, since=0, fence=stands.fence, owner=None, due=None, holds=int(stands.holds), turn=turn,
        whole=0,
    )
    number, digest = 0, b""
    vouchers: list[Voucher] = []
    for log in d.rows:
        db.execute(Q.step_log, (key, log.seq, number, log.hash, log.data))
        number, digest = db.last_insert_rowid(), log.hash
    for item in d.inbox:
        command = codec.encode_command(item.command)
        db.execute(Q.inbox_adopt, (key, item.key, item.put_at, item.taken_seq, command))
        vouchers.append(vouch.of_inbox(run.run_id, item.key, item.put_at, command, item.taken_seq))
    for claim in d.claims:
        if claim.kind == apply.KEY:  # such a claim follows from an effect, or is not genuine
            continue
        db.execute(Q.claim_adopt, (claim.kind, claim.scope, claim.key, claim.run_id, claim.digest, claim.expires_at))
        if db.changes():
            vouchers.append(vouch.of_claim(claim))
    vouchers += [besides.put_effect(db, effect, codec.encode_effect(effect)) for effect in d.effects]
    vouchers += besides.claim_keys(db, d.effects, all=True)
    vouchers += [outbox.put_intent(db, intent) for intent in d.intents]
    vouchers += outbox.put_ledger(db, d.ledger)
    besides.vouch_for(db, vouchers)
    besides.adopt_shelved(db, d.shelved)
    for blob in d.blobs:
        keep_blob(db, run.run_id, blob, now)
    if d.origin is not None:
        db.execute(Q.origin_insert, (d.origin, run.run_id))
    db.execute(Q.run_adopted, (number, stands.since, stands.whole, stands.due, key))
    db.execute(Q.tail_put, (key, number))
    return number, digest


# -- pruning ----------------------------------------------------------------------------------------


Place = tuple[int | None, int]
"""How far a prune has come: when the run that it examined last ended (None if no column says that), and the run's key."""

START: Place = (None, 0)
_FIRST = -(2**63)


def list_old(db: apsw.Connection, before: int, after: Place, limit: int) -> list[tuple[Place, str]]:
    """Returns the next lineages with a run that ended before that time: first those whose end no column says, then the others, oldest first."""
    ended, key = after
    if ended is None:
        if found := rows(db, Q.ended_unknown, (key, limit)):
            return [((None, key), root) for key, root in found]
        ended = _FIRST
    return [((ended, key), root) for ended, key, root in rows(db, Q.ended_before, (before, ended, key, limit))]


def judge(db: apsw.Connection, roots: Sequence[str], before: int, *, dry: bool) -> tuple[Pruned, dict[str, int]]:
    """Returns which of these lineages, and of those that stay or go with them, may be deleted (§6.10); and the keys of all their runs."""
    found = rows(db, Q.family, (json.dumps(roots), not dry))
    named = json.dumps([key for key, *_ in found])
    unsettled = {r for (r,) in rows(db, Q.open_among, (named, json.dumps(sorted({root for _, _, root, *_ in found}))))}
    carries = [] if dry else rows(db, Q.carries_among, (named,))
    aged = [Aged(run_id, root, parent, _end_of(status, ended, doc)) for _, run_id, root, parent, status, ended, doc in found]
    return apply.prunable(aged, before, unsettled, carries), {run_id: key for key, run_id, *_ in found}


def _end_of(status: str, ended: int | None, doc: bytes | None) -> int | None:
    """Returns when a run ended; None if it has not, or if that cannot be read."""
    if status not in _TERMINAL:
        return None
    try:
        return codec.decode_run(doc).finished_at if doc is not None else ended
    except HoldfastError:
        return None


def prune(db: apsw.Connection, roots: Sequence[str], before: int, *, at: int, by: str, over: Callable[[], bool]) -> tuple[Pruned, int]:
    """Inside a transaction: deletes lineages or says why they stay, a few at a time until ``over`` returns True. Also returns how many were judged."""
    gone: list[str] = []
    kept: dict[str, str] = {}
    done = 0
    while done < len(roots) and not (done and over()):
        found, keys = judge(db, roots[done : done + AT_ONCE], before, dry=False)
        _forget(db, {run_id: keys[run_id] for run_id in found.run_ids}, at)
        gone += found.run_ids
        kept |= found.kept
        done += AT_ONCE
    besides.bury(db, gone, at, by)
    return Pruned(tuple(gone), kept), done


def list_expired(db: apsw.Connection, now: int, limit: int) -> list[DedupClaim]:
    """Returns keys that have outlasted their pruned runs and have expired."""
    return [DedupClaim(*found) for found in rows(db, Q.claims_expired, (now, limit))]


def forget_claims(db: apsw.Connection, claims: Iterable[DedupClaim], now: int) -> None:
    """Deletes claims, except those that outlast their run and those that another run has taken meanwhile."""
    for claim in claims:
        named = (claim.kind, claim.scope, claim.key)
        if not apply.outlasts(claim, now) and rows(db, Q.prune_claim, (*named, claim.run_id)):
            db.execute(Q.vouch_drop, (OWN, "claim", vouch.claim_id(*named)))


def _forget(db: apsw.Connection, runs: Mapping[str, int], now: int) -> None:
    """Deletes runs, each given with its key, and all that belongs to them; effects under keys that other runs share stay, as tombstones."""
    if not runs:
        return
    forget_claims(db, besides.claims_among(db, list(runs)), now)
    _forget_log(db, list(runs.values()))
    for run_id, key in runs.items():
        besides.discount(db, "token", [id for (id,) in rows(db, Q.prune_token, (key,))])
        for statement in (Q.prune_whole, Q.prune_carry, Q.prune_inbox, Q.prune_chunk, Q.tail_drop, Q.run_delete):
            db.execute(statement, (key,))
        gone, large = apply.tombstones(besides.effects_of_run(db, run_id))
        db.executemany(Q.prune_effect, [(effect_id,) for effect_id in gone])
        db.executemany(Q.vouch_drop, [(run_id, "effect", effect_id) for effect_id in gone])
        kept = {bytes.fromhex(digest) for digest in large}
        for (digest,) in rows(db, Q.blobs_of_run, (run_id,)):
            if digest not in kept:
                db.execute(Q.prune_blob_use, (run_id, digest))
                db.execute(Q.prune_blob, (digest,))
        for statement in (Q.prune_intent, Q.prune_ledger, Q.vouch_prune):
            db.execute(statement, (run_id,))
        limits.forget(db, run_id)


def _forget_log(db: apsw.Connection, keys: Sequence[int]) -> None:
    """Deletes the log rows of runs. Log ids must never be used again, because the anchor relies on that: the newest row of all stays, emptied and
    without a run, until there is a newer one."""
    newest = row(db, Q.last_log)[0]
    found = rows(db, Q.log_among, (json.dumps(keys),))
    numbers = {number for number, _, _ in found}
    if broken := set(keys) - {key for _, before, key in found if not before}:
        numbers.update(number for (number,) in rows(db, Q.log_scan, (json.dumps(sorted(broken)),)))
    emptied = value_of(db, Q.meta_get, ("emptied",))
    if emptied is not None and emptied != newest:
        db.execute(Q.prune_emptied, (emptied,))
    if newest in numbers:
        db.execute(Q.empty_log, (newest,))
        db.execute(Q.meta_set, ("emptied", newest))
    db.executemany(Q.prune_log, [(number,) for number in sorted(numbers - {newest})])


__all__ = [
    "START", "Place", "adopt", "drop_backup", "evidence_of", "find_orphan", "forget_claims", "in_hex", "judge", "keep_backup", "list_expired", "list_old", "needs", "orphans", "prune",
    "raw_row", "rebuild",
]

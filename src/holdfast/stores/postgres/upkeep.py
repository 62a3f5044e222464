"""Upkeep (``ports.Upkeep``): reading damaged rows as they are, mending, adopting, pruning, and what is wrong with a server.

Nothing here is executed during a step. Writes are one transaction each, like every verb; a prune has several, one for each batch of lineages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core import codec, ids, vouch
from holdfast.core.codec import Row
from holdfast.core.commit import Commit, Tip
from holdfast.core.consistency import Problem
from holdfast.core.errors import LeaseLost, StoreError, VersionConflict
from holdfast.core.lease import Lease
from holdfast.core.pruned import missing
from holdfast.core.run import Run
from holdfast.core.vouch import Voucher
from holdfast.ports import Dossier, Evidence, Needs, Pruned
from holdfast.stores import apply
from holdfast.stores.apply import WHOLE_FLOOR, Aged, Stands
from holdfast.stores.evidence import COPIED, as_loaded, copy_of, end_of, end_problems, plain, row_problems, stands
from holdfast.stores.postgres import besides
from holdfast.stores.postgres.commits import Statement, keep_blob
from holdfast.stores.postgres.connection import POOLER_HINT, Connection, many
from holdfast.stores.postgres.outbox import put_intents
from holdfast.stores.postgres.queries import Q

COLUMNS = ("bucket", "id", "run_id", "fence", "owner", "due", "holds", "turn", "status", *COPIED, "ended", "doc", "seal", "previous", "cause")
APART_US = 1_000_000
OLD_SNAPSHOT_SECONDS = 300


class Key(msgspec.Struct, frozen=True, gc=False):
    """Where a run's log is, also if its row is missing."""

    bucket: int
    id: int


# -- looking ----------------------------------------------------------------------------------------


def orphans(found: Sequence[Sequence[Any]]) -> dict[str, Key]:
    """Returns runs of which only the log is left, found by their first rows, and where these are."""
    out = {}
    for bucket, run, seq, data, digest in found:
        try:
            events = codec.open_row(Row(seq, data, digest)).events
        except StoreError:
            continue  # its first row does not say whose it is; the walk over all chains reports it
        run_id = getattr(events[0].fact, "run_id", None) if events else None
        if isinstance(run_id, str):
            out[run_id] = Key(bucket, run)
    return out


def evidence_of(run_id: str, key: Key, row: Sequence[Any] | None, end: Sequence[Any] | None, lease: Lease | None) -> Evidence:
    """Returns the evidence of a run: its row as it is, and the newest row of its log."""
    tip = None if end is None else Tip(end[0], end[1], end[2], end[3], end[4])
    if row is None:
        tip = None if tip is None else Tip(tip.seq, tip.hash, tip.row, WHOLE_FLOOR + 1, 0)
        return Evidence(run_id=run_id, run=None, lease=None, tip=tip, raw={"bucket": key.bucket, "id": key.id})
    raw = {name: plain(value) for name, value in zip(COLUMNS, row, strict=True)}
    hot = dict(zip(("version", "step", "head"), end[5:] if end is not None else (0, None, None), strict=True))
    shown = {**raw, **hot, "seq": None if end is None else end[0]}
    run = as_loaded(shown)
    found = row_problems(shown, run, None if end is None else end[0])
    found += end_problems(shown, run)
    return Evidence(run_id=run_id, run=run, lease=lease, tip=tip, raw=shown, problems=tuple(found))


def needs(found: Sequence[Sequence[Any]]) -> Needs:
    """Returns what is recorded of the needs of a run."""
    return Needs(frozenset(predecessor for predecessor, _ in found if predecessor is not None), frozenset(digest for _, digest in found if digest is not None))


def _set(name: str, value: str) -> str:
    """Returns the statements that change a setting of the server without a restart."""
    return f"ALTER SYSTEM SET {name} = '{value}'; SELECT pg_reload_conf();"


def health(found: Sequence[Any], here: int, *, unnamed: bool = False) -> list[Problem]:
    """Returns what endangers stored data, or slows the store, in a server's settings and state. ``here``: this machine's time. ``unnamed``: a pooler
    that the URL does not mention is in front of the server."""
    synchronous, fsync, pages, asynchronous, there, snapshot, dead, autovacuum, reader = found
    out = []

    def warn(code: str, message: str, hint: str) -> None:
        out.append(Problem(code, "warning", message, hint))

    if fsync != "on":
        warn("server_not_durable", "the server runs with fsync = off: a crash of its machine may lose or damage everything", _set("fsync", "on"))
    if pages != "on":
        warn("server_not_durable", "the server runs with full_page_writes = off: a crash of its machine may damage pages", _set("full_page_writes", "on"))
    if synchronous in ("off", "local") and not (synchronous == "local" and not asynchronous):
        warn("server_not_durable", f"synchronous_commit is {synchronous}: the last commits may be lost with the server", _set("synchronous_commit", "on"))
    if asynchronous:
        warn("standby_asynchronous", f"{asynchronous} standby(s) follow asynchronously: a failover may lose the last commits", "name those that a commit waits for: " + _set("synchronous_standby_names", "ANY 1 (*)"))
    if abs(here - there) > APART_US:
        warn("clock_apart", f"this machine's clock and the server's are {abs(here - there) / 1e6:.1f} s apart", "the server's clock is the one that counts; set both clocks by NTP")
    if snapshot > OLD_SNAPSHOT_SECONDS:
        warn("snapshot_old", f"{reader} has held a snapshot for {snapshot:.0f} s: dead rows cannot be removed", "end it: SELECT pg_terminate_backend(N), where N is the number of the session")
    if dead or autovacuum != "on":
        warn("vacuum_behind", "autovacuum is off" if autovacuum != "on" else f"{dead} dead rows wait for autovacuum", _set("autovacuum", "on") if autovacuum != "on" else "leave it to autovacuum, or do it now: VACUUM (ANALYZE)")
    if unnamed:
        about = "a pooler stands before the server, and the URL does not say which: nothing is prepared, and work is found by polling"
        warn("pooler_unnamed", about, POOLER_HINT)
    return out


# -- mending ----------------------------------------------------------------------------------------


async def rebuild(db: Connection, evidence: Evidence, commits: Sequence[Commit], now: int) -> None:
    """Inside a transaction: appends the commits and writes the last one's run over the row."""
    run, fence = commits[-1].run, commits[-1].fence
    key, tip = Key(evidence.raw["bucket"], evidence.raw["id"]), evidence.tip
    assert tip is not None
    seen = {name: evidence.raw.get(name) for name in ("fence", "owner", "due", "holds", "turn", "status")}
    sound = "doc" not in evidence.raw or stands(evidence.raw)
    held: dict[str, Any] = seen if sound else {"owner": None, "due": None, "holds": apply.would_hold(run), "turn": None, "status": ""}
    locked, ends, unread, holder = await many(
        db,
        [
            (Q.claim_one, (ids.bucket_number(evidence.run_id), evidence.run_id)),
            (Q.log_tip, (key.bucket, key.id)),
            (Q.inbox_unread, (key.bucket, key.id)),
            (Q.lane_holder, (run.tenant_id, run.session_key, run.lane, run.run_id)),
        ],
    )
    there = None if not locked else locked[0][:5]
    shown = None if "doc" not in evidence.raw else (seen["fence"], seen["owner"], seen["holds"], seen["turn"], seen["status"])
    if there != shown or not ends or ends[0][1] != tip.hash:
        raise VersionConflict(f"{run.run_id} has changed since it was read", hint="read it again")
    if seen["owner"] is not None and evidence.lease is not None and evidence.lease.live(now):
        raise LeaseLost(f"{run.run_id} is held by {seen['owner']}", hint="wait until nobody executes the run")
    writes: list[Statement] = []
    n, since = tip.row, tip.since
    for commit in commits:
        log = apply.prepare(commit).sealed.row
        n, since = n + 1, since + len(log.data)
        end = (commit.run.version, commit.run.current_step_id, commit.run.checkpoint_head, log.hash, log.data)
        writes.append((Q.log_append, (key.bucket, key.id, n, log.seq, since, tip.whole, *end)))
        effects = apply.order_effects(commit.effects)
        writes += [*besides.put_effects(effects, map(codec.encode_effect, effects)), *besides.put_claims(apply.claim_keys(effects, all=True))]
    stood, moved = Stands(held["owner"], held["due"], bool(held["holds"])), held["status"] != run.status.value
    left = apply.rebuilt(commits[-1], stood, moved, now, unread=bool(unread[0][0]), taken=bool(holder))
    writes.append((Q.run_delete, (key.bucket, run.run_id)))
    writes += _row(run, key.id, fence=fence, owner=left.owner, due=left.due, holds=left.holds, turn=held["turn"])
    if evidence.needs is not None:
        writes += [(Q.carry_insert, (predecessor, run.run_id)) for predecessor in sorted(evidence.needs.predecessors)]
        writes += [(Q.use_again, (run.run_id, digest)) for digest in sorted(evidence.needs.blobs)]
    await many(db, writes)


def _row(run: Run, id: int, *, fence: int, owner: str | None, due: int | None, holds: bool, turn: int | None) -> list[Statement]:
    bucket, ended = ids.bucket_number(run.run_id), end_of(run)
    columns = [copy_of(run, name) for name in COPIED]
    stands = (fence, owner, due, holds)
    row: Statement = Q.run_put, (bucket, id, run.run_id, *stands, run.status.value, *columns, ended, run.run_id, *stands, turn)
    return [row, (Q.doc_put, (bucket, id, codec.encode_run(run)))]


# -- carrying over ----------------------------------------------------------------------------------


async def adopt(db: Connection, d: Dossier, incarnation: int, now: int) -> None:
    """Inside a transaction: writes a run that is not here yet."""
    run = d.run
    if (left := besides.read_pruned(*await many(db, besides.ask_pruned([run.run_id])))) is not None:
        raise missing(run.run_id, left)
    lane = (run.tenant_id, run.session_key, run.lane, run.run_id)
    after = (Q.thread_next, (run.thread_id, run.tenant_id, run.run_id))
    ((id,),), drawn, holder, ((next_turn,),) = await many(db, [(Q.next_number, None), (Q.see_numbers, {"count": len(d.ledger)}), (Q.lane_holder, lane), after])
    bucket, stands = ids.bucket_number(run.run_id), apply.adopt(d, incarnation, now, taken=bool(holder))
    writes = _row(run, id, fence=stands.fence, owner=None, due=stands.due, holds=stands.holds, turn=apply.place_adopted(run, next_turn, id))
    vouchers: list[Voucher] = []
    since = 0
    for n, log in enumerate(d.rows, 1):
        since += len(log.data)
        writes.append((Q.log_append, (bucket, id, n, log.seq, since, stands.whole, run.version, run.current_step_id, run.checkpoint_head, log.hash, log.data)))
    for i in d.inbox:
        command = codec.encode_command(i.command)
        writes.append((Q.inbox_adopt, (bucket, id, i.key, i.put_at, i.taken_seq, command)))
        vouchers.append(vouch.of_inbox(run.run_id, i.key, i.put_at, command, i.taken_seq))
    writes += besides.put_claims([*[c for c in d.claims if c.kind != apply.KEY], *apply.claim_keys(d.effects, all=True)])
    numbers = iter([number for (number,) in drawn])
    writes += [*besides.put_effects(d.effects, map(codec.encode_effect, d.effects)), *put_intents(d.intents), *besides.put_ledger(d.ledger, numbers), *besides.keep(vouchers)]
    writes += [statement for blob in d.blobs for statement in keep_blob(run.run_id, blob)]
    if d.origin is not None:
        writes.append((Q.origin_insert, (d.origin, bucket, run.run_id)))
    writes += [(Q.carry_insert, (predecessor, run.run_id)) for predecessor in stands.carries]
    await many(db, writes)
    for shelf, mine in sorted(apply.by_shelf(d.shelved).items()):
        if taken := [key for (key,) in (await many(db, [besides.put_shelf(shelf, mine, mine.keys())]))[0]]:
            there: dict[str, bytes] = dict((await many(db, [(Q.shelf_some, (shelf, taken))]))[0])
            apply.check_shelved(shelf, mine, {key: there.get(key) for key in taken})


# -- pruning ----------------------------------------------------------------------------------------


async def prune(db: Connection, roots: Sequence[str], before: int, *, dry: bool, at: int, by: str) -> Pruned:
    """Inside a transaction: deletes lineages, with those of their families, or says why they stay.

    The runs in question are locked first, and read after that: a commit that continues a thread from such a run, or creates a child of it, either
    came before and is seen, or comes after and finds the run gone.
    """
    whole = set(roots)
    while more := {r for (r,) in (await many(db, [(Q.family, {"roots": sorted(whole)})]))[0]} - whole:
        whole |= more
    among = {"roots": sorted(whole)}
    asked: list[Statement] = [(Q.members, among), (Q.carries_among, among), (Q.open_among, among)]
    answers = await many(db, asked if dry else [(Q.lock_members, among), *asked])
    rows, carries, unsettled = answers[-3:]
    known = {run_id for run_id, *_ in rows}
    carries = [] if dry else [(successor, predecessor) for successor, predecessor in carries if predecessor in known]
    runs = [Aged(*row) for row in rows]
    # A run that came meanwhile and was not read: the run whose thread it continues stays.
    runs += [Aged(successor, successor, None, None) for successor in {b for b, _ in carries} - known]
    found = apply.prunable(runs, before, {r for (r,) in unsettled}, carries)
    if found.run_ids and not dry:
        await _forget(db, list(found.run_ids), at)
        await many(db, [*besides.bury(found.run_ids, at, by)])
    return found


async def _forget(db: Connection, runs: list[str], now: int) -> None:
    """Deletes runs and all that belongs to them; effects under keys that other runs share stay, as tombstones, and claims by the rule of
    ``apply.outlasts``."""
    effects, _ = await many(db, [(Q.effects_among, {"runs": runs}), (Q.lock_blobs, {"runs": runs})])
    gone: list[str] = []
    kept: list[str] = []
    for run_id in {run_id for run_id, _ in effects}:
        ended, large = apply.tombstones([codec.decode_effect(data) for of, data in effects if of == run_id])
        gone += ended
        kept += [f"{run_id} {digest}" for digest in large]
    (uses,) = await many(db, [(Q.prune_uses, {"runs": runs, "kept": kept})])
    shas = sorted({sha for (sha,) in uses})
    await many(db, [(Q.prune_blobs, {"shas": shas}), (Q.prune_effects, {"runs": runs, "effects": gone}), (Q.prune_beside, {"runs": runs, "now": now}), (Q.prune_runs, {"runs": runs})])


__all__ = ["adopt", "evidence_of", "health", "orphans", "prune", "rebuild"]

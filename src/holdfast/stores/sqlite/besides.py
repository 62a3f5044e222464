"""The records beside the log, in SQLite. Each is written with its voucher and compared with it when it is read (``core/vouch.py``).

All functions work on a connection, inside whatever transaction is open there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import apsw
import msgspec

from holdfast.core import blobs, chunks, codec, vouch
from holdfast.core.bounds import behind
from holdfast.core.chunks import LINGER_US, Emitted
from holdfast.core.commit import DedupClaim, InboxItem, LedgerRow
from holdfast.core.effects import Effect
from holdfast.core.errors import HoldfastError, RecordDamaged, RunNotFound
from holdfast.core.pruned import Tombstone
from holdfast.core.pruned import missing as said
from holdfast.core.schedules import Schedule
from holdfast.core.tokens import Token
from holdfast.core.vouch import OWN, Kind, Voucher
from holdfast.ports import ShelfRow
from holdfast.stores import apply
from holdfast.stores.sqlite.connection import Q, row, rows

OPEN = frozenset({"attempted", "unknown"})
R = TypeVar("R")
T = TypeVar("T")


# -- vouching -----------------------------------------------------------------------------------------


def vouch_for(db: apsw.Connection, vouchers: Sequence[Voucher]) -> None:
    """Stores vouchers of records that were written in this transaction."""
    if vouchers:
        db.executemany(Q.vouch_put, vouchers)


def count(db: apsw.Connection, kind: Kind, ids: Sequence[str]) -> None:
    """Counts records that this transaction adds, of a kind in ``COUNTED``."""
    db.executemany(Q.roll_add, [(kind, id) for id in ids])


def discount(db: apsw.Connection, kind: Kind, ids: Sequence[str]) -> None:
    """Subtracts records that this transaction deletes from the count of their kind."""
    db.executemany(Q.roll_drop, [(kind, id) for id in ids])


def list_vouchers(db: apsw.Connection, run_id: str, kind: str) -> list[Voucher]:
    """Returns all vouchers of one kind that a run has."""
    return [Voucher(*r) for r in rows(db, Q.vouch_of_run, (run_id, kind))]


def one(db: apsw.Connection, run_id: str, kind: str, id: str) -> list[Voucher]:
    return [Voucher(*r) for r in rows(db, Q.vouch_get, (run_id, kind, id))]


def under(db: apsw.Connection, key: str, kind: str) -> list[Voucher]:
    return [Voucher(*r) for r in rows(db, Q.vouch_under, (key, kind))]


def under_any(db: apsw.Connection, keys: Sequence[Any], kind: str) -> list[Voucher]:
    """Returns all vouchers under these keys. A key that is not a text, as in a damaged row, has none."""
    return [Voucher(*r) for r in rows(db, Q.vouch_under_any, (json.dumps([k for k in keys if isinstance(k, str)]), kind))] if keys else []


def each(db: apsw.Connection, found: Sequence[Voucher]) -> list[bool]:
    """Returns for each of these records whether it is what was written, without a check for records that are lost."""
    return [v in one(db, v.run_id, v.kind, v.id) for v in found]


# -- effects ------------------------------------------------------------------------------------------


def put_effect(db: apsw.Connection, e: Effect, data: bytes) -> Voucher:
    """Writes an effect; ``data`` is its encoded form. Returns its voucher."""
    db.execute(Q.effect_upsert, (e.effect_id, e.run_id, e.lineage_root, e.key, e.status.value, data))
    return vouch.of_effect(e, data)


def claim_keys(db: apsw.Connection, effects: Sequence[Effect], *, all: bool = False) -> list[Voucher]:
    """Takes the keys of effects that runs share, if they are free. Returns the vouchers of the new claims."""
    vouchers = []
    for c in apply.claim_keys(effects, all=all):
        db.execute(Q.claim_adopt, (c.kind, c.scope, c.key, c.run_id, c.digest, c.expires_at))
        if db.changes():
            vouchers.append(vouch.of_claim(c))
    return vouchers


def effects_of_run(db: apsw.Connection, run_id: str) -> list[Effect]:
    found = rows(db, Q.effects_of_run, (run_id,))
    vouch.verify(map(vouch.of_effect_row, found), list_vouchers(db, run_id, "effect"))
    return [codec.decode_effect(r[-1]) for r in found]


def effects_of_key(db: apsw.Connection, key: str) -> list[Effect]:
    """Returns the effects under a key. If a record is lost, or its index does not find it, this raises, so that the effect is not performed again.
    That holds even if the record's voucher is lost too, because the claim of the key is still there."""
    found = rows(db, Q.effects_of_key, (key,))
    vouch.verify(map(vouch.of_effect_row, found), under(db, key, "effect"))
    if not found and (taken := row(db, Q.claim_row, (apply.KEY, "", key))) is not None:
        raise RecordDamaged("effect", taken[3], key, missing=True)
    return [codec.decode_effect(r[-1]) for r in found]


def effects_of_lineage(db: apsw.Connection, root: str) -> list[Effect]:
    found = rows(db, Q.effects_of_lineage, (root,))
    for voucher in map(vouch.of_effect_row, found):
        vouch.verify([voucher], one(db, voucher.run_id, "effect", voucher.id))
    return [codec.decode_effect(r[-1]) for r in found]


def effects_all(db: apsw.Connection) -> list[Effect]:
    """Returns all effects that can be read. A damaged one is reported when its run is read, and by the checker."""
    return sound(db, rows(db, Q.effects_all), vouch.of_effect_row, lambda r: codec.decode_effect(r[-1]))


def newest_effects(db: apsw.Connection, tenant_id: str | None, statuses: Sequence[str], limit: int) -> list[Effect]:
    """Returns the newest effects that can be read, with these statuses if any are given."""
    open_ = bool(statuses) and OPEN.issuperset(statuses)
    found = rows(db, Q.effects_newest_open if open_ else Q.effects_newest, (tenant_id, json.dumps(list(statuses)) if statuses else None, limit))
    return sound(db, found, vouch.of_effect_row, lambda r: codec.decode_effect(r[-1]))


def effects_open(db: apsw.Connection) -> list[Effect]:
    """Returns attempts without an outcome, of all runs. A damaged one is reported when its run is read."""
    return sound(db, rows(db, Q.effects_open), vouch.of_effect_row, lambda r: codec.decode_effect(r[-1]))


def sound(db: apsw.Connection, found: Sequence[R], voucher: Callable[[R], Voucher], decode: Callable[[R], T]) -> list[T]:
    fine = each(db, [voucher(r) for r in found])
    return [decode(r) for r, ok in zip(found, fine, strict=True) if ok]


# -- inbox --------------------------------------------------------------------------------------------


def inbox(db: apsw.Connection, run_id: str, key: int, *, taken: bool) -> list[InboxItem]:
    """Returns commands of a run, oldest first; without ``taken`` only those that were not taken."""
    found = rows(db, Q.inbox_all if taken else Q.inbox_untaken, (key,))
    known = list_vouchers(db, run_id, "inbox") if taken else [Voucher(*r) for r in rows(db, Q.vouch_untaken, (run_id,))]
    vouch.verify([vouch.of_inbox(run_id, name, at, command, seq) for name, command, at, seq in found], known)
    return [InboxItem(run_id, name, codec.decode_command(command), at, seq) for name, command, at, seq in found]


def inbox_item(db: apsw.Connection, run_id: str, found: Sequence[Any]) -> InboxItem:
    """Returns the item that is stored under a key."""
    name, command, at, seq = found
    vouch.verify([vouch.of_inbox(run_id, name, at, command, seq)], one(db, run_id, "inbox", name))
    return InboxItem(run_id, name, codec.decode_command(command), at, seq)


# -- claims -------------------------------------------------------------------------------------------


def find_claim(db: apsw.Connection, kind: str, scope: str, key: str, now: int) -> DedupClaim | None:
    there = row(db, Q.claim_any, (kind, scope, key))
    claim, status = (None, None) if there is None else (DedupClaim(kind, scope, key, *there[:3]), there[3])
    vouch.verify([] if claim is None else [vouch.of_claim(claim)], one(db, OWN, "claim", vouch.claim_id(kind, scope, key)))
    return claim if claim is not None and apply.still_taken(claim, status, now) else None


def claims_of(db: apsw.Connection, run_id: str) -> list[DedupClaim]:
    """Returns the claims of a run's request. The claims on its effects' keys follow from the effect records."""
    found = [DedupClaim(kind, scope, key, run_id, digest, until) for kind, scope, key, digest, until in rows(db, Q.claims_of_run, (run_id,))]
    vouch.verify(map(vouch.of_claim, found), [v for v in under(db, run_id, "claim") if not apply.is_of_effect(v)])
    return found


def claims_among(db: apsw.Connection, run_ids: Sequence[str]) -> list[DedupClaim]:
    """Returns the claims of several runs. They are found by their vouchers, because no index leads from a run to its claims."""
    stated = under_any(db, run_ids, "claim")
    found = [DedupClaim(*there) for v in stated for read in vouch.list_readings(v.id) if (there := row(db, Q.claim_row, read)) is not None]
    vouch.verify(map(vouch.of_claim, found), stated)
    return found


# -- tokens -------------------------------------------------------------------------------------------


def token(db: apsw.Connection, hash: bytes) -> Token | None:
    there = row(db, Q.token_get, (hash,))
    found = None if there is None else Token(*there)
    vouch.verify([] if found is None else [vouch.of_token(found)], under(db, hash.hex(), "token"))
    return found


def mark_token(db: apsw.Connection, t: Token) -> None:
    """Stores that a token was used or revoked."""
    db.execute(Q.token_mark, (t.used_at, t.revoked_at, t.hash))
    vouch_for(db, [vouch.of_token(t)])


def revoke_tokens(db: apsw.Connection, run_id: str, key: int, wait_id: str, now: int) -> None:
    """Revokes the open links of a wait. A damaged one opens nothing, and the checker names it."""
    open = [Token(*r) for (hash,) in rows(db, Q.tokens_open, (key, wait_id)) if (r := row(db, Q.token_get, (hash,))) is not None]
    for there in sound(db, open, vouch.of_token, lambda t: t):
        mark_token(db, msgspec.structs.replace(there, revoked_at=now))


# -- schedules ----------------------------------------------------------------------------------------


def put_schedule(db: apsw.Connection, s: Schedule, *, new: bool) -> None:
    data = codec.encode_schedule(s)
    if new:
        count(db, "schedule", [s.schedule_id])
    db.execute(Q.schedule_put, (s.schedule_id, s.tenant_id, s.due, data))
    vouch_for(db, [vouch.of_schedule(s, data)])


def schedule(db: apsw.Connection, schedule_id: str) -> Schedule | None:
    there = row(db, Q.schedule_get, (schedule_id,))
    vouch.verify([] if there is None else [vouch.of_schedule_row(there)], one(db, OWN, "schedule", schedule_id))
    return None if there is None else codec.decode_schedule(there[-1])


def schedules(db: apsw.Connection, due: int | None) -> list[Schedule]:
    """Returns the schedules that are what was written. A damaged one starts nothing, and the checker names it."""
    sql, values = (Q.schedules, ()) if due is None else (Q.schedules_due, (due,))
    return sound(db, rows(db, sql, values), vouch.of_schedule_row, lambda r: codec.decode_schedule(r[-1]))


def drop_schedule(db: apsw.Connection, schedule_id: str) -> bool:
    db.execute(Q.schedule_delete, (schedule_id,))
    done = db.changes() == 1
    db.execute(Q.vouch_drop, (OWN, "schedule", schedule_id))
    if done:
        discount(db, "schedule", [schedule_id])
    return done


# -- shelves ------------------------------------------------------------------------------------------


def shelve(db: apsw.Connection, shelf: str, kept: Mapping[str, bytes], once: Collection[str] = ()) -> list[str]:
    """Stores rows; of the keys in ``once`` only those that are free. Returns the others."""
    taken: list[str] = []
    if once:
        new = db.executemany(Q.shelf_add, [(shelf, key, kept[key], vouch.shelf_id(shelf, key)) for key in once]).fetchall()
        taken = sorted(set(once) - {key for (key,) in new})
    db.executemany(Q.shelf_put, [(shelf, key, data) for key, data in kept.items() if key not in once])
    vouchers = [vouch.of_shelf(shelf, key, data) for key, data in kept.items() if key not in taken]
    if vouchers:
        db.execute(Q.shelf_count, (shelf, len(vouchers), sum(vouch.heft(v.seal) for v in vouchers), json.dumps([v.id for v in vouchers])))
    vouch_for(db, vouchers)
    return taken


def adopt_shelved(db: apsw.Connection, kept: Iterable[ShelfRow]) -> None:
    """Stores the rows that come with an adopted run; those that are here already stay, if they are the same."""
    for shelf, mine in apply.by_shelf(kept).items():
        apply.check_shelved(shelf, mine, {key: find_shelved(db, shelf, key) for key in shelve(db, shelf, mine, mine.keys())})


def find_shelved(db: apsw.Connection, shelf: str, key: str) -> bytes | None:
    found = row(db, Q.shelf_get, (shelf, key, vouch.shelf_id(shelf, key)))
    there, known = found[:3], found[3:]
    vouch.verify([] if there[1] is None else [vouch.of_shelf(*there)], [] if known[2] is None else [Voucher(*known)])
    return None if there[1] is None else bytes(there[2])


def shelf_scan(db: apsw.Connection, shelf: str, prefix: str, after: str, limit: int) -> list[tuple[str, bytes]]:
    first = max(prefix, after + "\0") if after else prefix  # no key contains U+0000, so this is the next possible key
    found = rows(db, Q.shelf_scan, (shelf, first, _behind(prefix), limit))
    end = found[-1][1] + "\0" if len(found) == limit and found else None
    until = _behind(vouch.shelf_id(shelf, prefix)) if end is None else vouch.shelf_id(shelf, end)
    known = [Voucher(*r) for r in rows(db, Q.vouch_shelf, (shelf, vouch.shelf_id(shelf, first), until))]
    vouch.verify([vouch.of_shelf(*r) for r in found], known)
    return [(key, bytes(data)) for _, key, data in found]


def unshelve(db: apsw.Connection, shelf: str, prefix: str) -> int:
    db.execute(Q.shelf_drop, (shelf, prefix, _behind(prefix)))
    gone = db.changes()
    first = vouch.shelf_id(shelf, prefix)
    if seals := [seal for (seal,) in rows(db, Q.vouch_shelf_drop, (shelf, first, _behind(first)))]:
        db.execute(Q.shelf_discount, (shelf, len(seals), sum(map(vouch.heft, seals))))
    return gone


def _behind(prefix: str) -> str | bytes:
    """Returns the end of the index range of all texts with this prefix. Bytes come after every text."""
    return behind(prefix) or b""


# -- chunks -------------------------------------------------------------------------------------------


def emit(db: apsw.Connection, key: int, e: Emitted, now: int) -> None:
    """Stores chunks of a run, and deletes those that were replaced a while ago. Chunks are provisional: each is checked by itself only."""
    db.execute(Q.chunk_sweep, (now - LINGER_US,))
    for batch in e.batches:
        db.execute(Q.chunk_put, (key, batch.turn.key, batch.last, chunks.encode(e.run_id, batch)))
    for turn, first in e.before.items():
        db.execute(Q.chunk_cut, (key, turn, first))
    for turn in e.replaced:
        db.execute(Q.chunk_gone, (now, key, turn))


# -- runs that were pruned ----------------------------------------------------------------------------


def find_pruned(db: apsw.Connection, run_id: str) -> Tombstone | None:
    there = row(db, Q.pruned_get, (run_id,))
    vouch.verify([] if there is None else [vouch.of_pruned(*there)], one(db, OWN, "pruned", run_id))
    return None if there is None else Tombstone(*there)


def missing(db: apsw.Connection, run_id: str) -> RunNotFound:
    """Returns the error for a run that is not here."""
    return said(run_id, find_pruned(db, run_id))


def bury(db: apsw.Connection, run_ids: Sequence[str], at: int, by: str) -> None:
    """Records that runs were pruned."""
    count(db, "pruned", [run_id for run_id in run_ids if row(db, Q.pruned_get, (run_id,)) is None])
    db.executemany(Q.pruned_put, [(run_id, at, by) for run_id in run_ids])
    vouch_for(db, [vouch.of_pruned(run_id, at, by) for run_id in run_ids])


# -- what the checker asks ----------------------------------------------------------------------------


def damage_of_run(db: apsw.Connection, run_id: str, key: int | None) -> list[RecordDamaged]:
    """Returns every record of a run that is lost or is not what was written."""
    found: dict[str, list[Voucher]] = {
        "effect": [vouch.of_effect_row(r) for r in rows(db, Q.effects_of_run, (run_id,))],
        "inbox": [vouch.of_inbox(run_id, n, at, command, seq) for n, command, at, seq in rows(db, Q.inbox_all, (key,))],
        "token": [vouch.of_token(Token(*r)) for r in rows(db, Q.tokens_of_run, (key,))],
    }
    out: list[RecordDamaged] = []
    for kind, records in found.items():
        out += vouch.damage(vouch.by_id(records), vouch.by_id(list_vouchers(db, run_id, kind)))
    return out


_OF_STORE: dict[Kind, tuple[str, Callable[[Any], Voucher]]] = {
    "claim": (Q.claims_all, lambda r: vouch.of_claim(DedupClaim(*r))),
    "schedule": (Q.schedules_kept, vouch.of_schedule_row),
    "shelf": (Q.shelves_all, lambda r: vouch.of_shelf(*r)),
    "worker": (Q.workers, lambda r: vouch.of_worker(*r)),
    "offer": (Q.offers_all, lambda r: vouch.of_offer(*r)),
    "pruned": (Q.pruned_all, lambda r: vouch.of_pruned(*r)),
    "limit": (Q.rules, lambda r: vouch.of_limit(*r)),
    "bucket": (Q.buckets, lambda r: vouch.of_bucket(*r)),
    "call": (Q.calls_all, lambda r: vouch.of_call(*r)),
}


def _of_store(db: apsw.Connection, *kinds: Kind) -> dict[Kind, list[Voucher]]:
    """Computes the vouchers of the store's own records as they are now, of these kinds or of all."""
    return {kind: [voucher(r) for r in rows(db, sql)] for kind, (sql, voucher) in _OF_STORE.items() if not kinds or kind in kinds}


def damage_of_store(db: apsw.Connection) -> list[RecordDamaged]:
    """Returns every record of the store itself, or of a run that is not here, that is lost or is not what was written."""
    out: list[RecordDamaged] = []
    for kind, records in _of_store(db).items():
        stated = list_vouchers(db, OWN, kind)
        out += vouch.damage(vouch.by_id(records), vouch.by_id(stated))
        if kind == "shelf":
            out += vouch.find_miscounted_shelves({name: (n, total) for name, n, total in rows(db, Q.shelf_roll)}, records, stated)
    out += vouch.find_miscounted({kind: (n, total) for kind, n, total in rows(db, Q.roll)}, {k: _weigh_all(k, _list_known(db, k)) for k in vouch.COUNTED})
    left = {Voucher(*r) for r in rows(db, Q.vouch_runless)}
    runless = rows(db, Q.effects_runless)
    out += vouch.damage(vouch.by_id(map(vouch.of_effect_row, runless)), vouch.by_id(v for v in left if v.kind == "effect"))
    out += [RecordDamaged("blob_use", r[1], digest, missing=True) for r in runless for digest in _find_unnoted(db, r)]
    out += [RecordDamaged("effect", run_id, key, missing=True) for run_id, key in rows(db, Q.keys_lost)]
    out += [RecordDamaged(v.kind, v.run_id, v.id, missing=True) for v in left if v.kind != "effect"]
    return out


def _list_known(db: apsw.Connection, kind: Kind) -> set[str]:
    """Returns the ids of a kind that have a record or a voucher. A record that is lost while its voucher remains is reported through the voucher."""
    if kind == "token":
        return {id for (id,) in rows(db, Q.tokens_known)}
    return {v.id for v in (*_of_store(db, kind)[kind], *list_vouchers(db, OWN, kind))}


def _weigh_all(kind: Kind, ids: Collection[str]) -> tuple[int, int]:
    return len(ids), sum(vouch.weigh(kind, str(id)) for id in ids)


def _find_unnoted(db: apsw.Connection, kept: Sequence[Any]) -> list[str]:
    """Returns the large results that an effect of a pruned run refers to, and whose use is not recorded."""
    try:
        large = blobs.name_blobs((), [codec.decode_effect(kept[-1])])
    except HoldfastError:
        return []  # what is wrong with it is reported as such
    return [digest for digest in large if not row(db, Q.blob_used, (kept[1], bytes.fromhex(digest)))[0]]


def vouch_anew(db: apsw.Connection) -> None:
    """Vouches for all records as they are now, and for no others. Invalid texts count as they are read, so this is not done in SQL; records without a
    name, from a damaged page, remain reported by the checker."""
    for placed in (Q.place_effects, Q.place_inbox, Q.place_intents, Q.place_schedules):
        db.execute(placed)
    db.execute(Q.keys_free)
    db.execute(Q.vouch_forget)
    found = [voucher for records in _of_store(db).values() for voucher in records]
    found += [vouch.of_effect_row(r) for r in rows(db, Q.effects_all)]
    found += [vouch.of_inbox(*r) for r in rows(db, Q.inbox_kept)]
    found += [vouch.of_token(Token(*r)) for r in rows(db, Q.tokens_kept)]
    found += [vouch.of_intent_row(r) for r in rows(db, Q.intents)]
    found += [vouch.of_ledger(LedgerRow(*r)) for r in rows(db, Q.ledger)]
    vouch_for(db, [v for v in found if isinstance(v.run_id, str) and isinstance(v.id, str)])
    db.execute(Q.shelf_roll_forget)
    db.execute(Q.shelf_roll_anew)
    db.execute(Q.roll_forget)
    db.executemany(Q.roll_anew, [(kind, *_weigh_all(kind, {str(v.id) for v in found if v.kind == kind})) for kind in vouch.COUNTED])
    for kept in rows(db, Q.effects_runless):
        db.executemany(Q.blob_use, [(kept[1], bytes.fromhex(digest)) for digest in _find_unnoted(db, kept)])

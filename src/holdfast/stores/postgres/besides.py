"""The records beside the log, in PostgreSQL. Each is written with its voucher and compared with it when it is read (``core/vouch.py``).

A row is read with its voucher's digest as the last column. If all records of a run or a key are read, all their vouchers are read in the same
snapshot, so that a voucher without a record shows a loss.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.core import blobs, canon, codec, vouch
from holdfast.core.bounds import ID_BYTES, behind
from holdfast.core.commit import DedupClaim, InboxItem, LedgerRow
from holdfast.core.effects import Effect
from holdfast.core.errors import HoldfastError, RecordDamaged
from holdfast.core.intents import is_held_too_long
from holdfast.core.pruned import Tombstone
from holdfast.core.schedules import Schedule
from holdfast.core.tokens import Token
from holdfast.core.vouch import OWN, Kind, Voucher
from holdfast.stores.postgres.arrays import Blobs, Numbers, Texts
from holdfast.stores.postgres.queries import Q

Statement = tuple[str, Any]
Found = Sequence[Sequence[Any]]
T = TypeVar("T")
FEW = 64  # more records than this are compared with their vouchers in a thread
SLACK_US = 60_000_000  # a database's clock that was set back makes expiries seem later than they can be


# -- vouching -----------------------------------------------------------------------------------------


def keep(vouchers: Iterable[Voucher]) -> Iterator[Statement]:
    """Yields the statement that stores vouchers of records written in the same transaction; for each record, the last voucher counts."""
    last = {v[:3]: v for v in vouchers}
    if last:
        run, kind, id, seal, under, mark = zip(*(last[place] for place in sorted(last)), strict=True)
        yield Q.vouch_put, (Texts(run), Texts(kind), Texts(id), Blobs(seal), Texts(under), Numbers(mark))


def count(kind: Kind, id: str) -> Statement:
    """Counts a record that is added in the same transaction, of a kind in ``COUNTED``."""
    return Q.roll_add, {"kind": kind, "id": id}


def verify(found: Iterable[Voucher], stated: Found) -> None:
    """Compares records of one kind with their vouchers as read.

    Raises:
        RecordDamaged: the first that is lost, or is not what was written.
    """
    vouch.verify(found, [Voucher(*row) for row in stated])


def keep_sound(found: Found, voucher: Callable[[Sequence[Any]], Voucher], decode: Callable[[Sequence[Any]], T]) -> list[T]:
    """Returns the records that are what was written. Any other is reported when its run is read, and by the checker."""
    return [decode(row) for row in found if voucher(row).seal == row[-1]]


def same(voucher: Voucher, seal: bytes | None, mark: int | None = None) -> None:
    """Compares one record with its digest as read.

    Raises:
        RecordDamaged: it is not what was written.
    """
    if voucher.seal != seal or voucher.mark != mark:
        raise RecordDamaged(voucher.kind, voucher.under if voucher.kind == "claim" else voucher.run_id, voucher.id)


# -- effects ------------------------------------------------------------------------------------------


def put_effects(effects: Iterable[Effect], encoded: Iterable[bytes]) -> Iterator[Statement]:
    rows = [(e.effect_id, e.run_id, e.lineage_root, e.key, e.status.value, data) for e, data in zip(effects, encoded, strict=True)]
    yield from ((Q.effect_upsert, row) for row in rows)
    yield from keep(map(vouch.of_effect_row, rows))


def put_claims(claims: Iterable[DedupClaim]) -> Iterator[Statement]:
    """Takes keys that are free, in the order in which all transactions lock them."""
    for c in sorted(claims, key=lambda c: (c.kind, c.scope, c.key)):
        voucher = vouch.of_claim(c)
        named = {"kind": c.kind, "scope": c.scope, "key": c.key, "run": c.run_id, "digest": c.digest, "until": c.expires_at}
        yield Q.claim_adopt, {**named, "id": voucher.id, "seal": voucher.seal}


def decode_effect(row: Sequence[Any]) -> Effect:
    return codec.decode_effect(row[5])


# -- inbox --------------------------------------------------------------------------------------------


def of_item(run_id: str, row: Sequence[Any]) -> Voucher:
    key, command, put_at, taken = row[:4]
    return vouch.of_inbox(run_id, key, put_at, command, taken)


def decode_item(run_id: str, row: Sequence[Any]) -> InboxItem:
    key, command, put_at, taken = row[:4]
    return InboxItem(run_id, key, codec.decode_command(command), put_at, taken)


def item(run_id: str, row: Sequence[Any]) -> InboxItem:
    """Decodes an item that was read with its voucher's digest and mark."""
    same(of_item(run_id, row), row[4], row[5])
    return decode_item(run_id, row)


def items(run_id: str, rows: Found, stated: Found) -> list[InboxItem]:
    verify([of_item(run_id, row) for row in rows], stated)
    return [decode_item(run_id, row) for row in rows]


# -- tokens, claims, schedules, ledger ----------------------------------------------------------------


def decode_token(row: Sequence[Any]) -> Token:
    return Token(*row[:9])


def of_token_row(row: Sequence[Any]) -> Voucher:
    return vouch.of_token(decode_token(row))


def mark_tokens(tokens: Sequence[Token]) -> Iterator[Statement]:
    """Stores that tokens were used or revoked."""
    yield from ((Q.token_mark, (t.used_at, t.revoked_at, t.hash)) for t in tokens)
    yield from keep(map(vouch.of_token, tokens))


def revoke(tokens: Iterable[Token], run_id: str, waits: Iterable[str], now: int) -> Iterator[Statement]:
    """Revokes the links of waits that are closed."""
    closed = set(waits)
    yield from mark_tokens([msgspec.structs.replace(t, revoked_at=now) for t in tokens if t.run_id == run_id and t.wait_id in closed])


def of_claim_row(row: Sequence[Any]) -> Voucher:
    return vouch.of_claim(DedupClaim(*row[:6]))


def schedule_row(s: Schedule) -> tuple[Any, ...]:
    return (s.schedule_id, s.tenant_id, s.due, codec.encode_schedule(s))


def put_schedule(s: Schedule, *, new: bool) -> Iterator[Statement]:
    row = schedule_row(s)
    yield (Q.schedule_insert if new else Q.schedule_put), row
    if new:
        yield count("schedule", s.schedule_id)
    yield from keep([vouch.of_schedule_row(row)])


def schedule(rows: Found, stated: Found) -> Schedule | None:
    """Decodes the schedule that was read, after a comparison with the voucher for that id."""
    verify(map(vouch.of_schedule_row, rows), stated)
    return codec.decode_schedule(rows[0][3]) if rows else None


def ledger_row(r: LedgerRow) -> tuple[Any, ...]:
    return (r.number, r.run_id, r.topic, r.key, r.at, r.data, r.step_id, as_json(r.data))


def as_json(data: bytes) -> str:
    """Returns an encoded value as JSON, for people who type SQL."""
    return msgspec.json.encode(canon.reveal(data)).decode()


def shows(json: str | None, data: bytes) -> bool:
    """Whether the readable copy of a record is what was written; False if the record cannot be read."""
    try:
        return json == as_json(data)
    except HoldfastError:
        return False


def put_ledger(rows: Iterable[LedgerRow], numbers: Iterator[int]) -> Iterator[Statement]:
    """Writes ledger rows; ``numbers``: those that the sequence has given for them."""
    numbered = [msgspec.structs.replace(r, number=next(numbers)) for r in rows]
    yield from ((Q.ledger_insert, ledger_row(r)) for r in numbered)
    yield from keep(map(vouch.of_ledger, numbered))


# -- shelves ------------------------------------------------------------------------------------------


def shelf_row(row: Sequence[Any]) -> Voucher:
    return vouch.of_shelf(*row[:3])


def shelf_range(shelf: str, prefix: str, after: str = "") -> dict[str, Any]:
    """Returns where the keys of a shelf with this prefix are, from the one after ``after`` on, and where their vouchers are: ranges in the order of
    bytes."""
    first = max(prefix, after + "\1") if after else prefix  # no key contains U+0000, so this is at most the next possible key
    end = behind(prefix) or "\U0010ffff" * ID_BYTES
    return {"name": shelf, "first": first, "end": end, "id": vouch.shelf_id(shelf, first), "id_end": behind(vouch.shelf_id(shelf, prefix))}


def _with_vouchers(rows: str, vouchers: str) -> str:
    """Joins two selects into one statement: rows of a shelf, and vouchers. One statement sees one snapshot, and needs no transaction around it, so it
    takes one round trip. Rows of the shelf have no kind."""
    kept, known = (text.strip().rstrip(";") for text in (rows, vouchers))
    return f"SELECT NULL AS run, NULL AS kind, key AS id, data AS seal, name AS under, NULL::bigint AS mark FROM ({kept}) AS kept UNION ALL SELECT * FROM ({known}) AS known"


SCAN_SHELF = _with_vouchers(Q.shelf_scan, Q.vouch_shelf)
READ_SHELF = _with_vouchers(Q.shelf_get, Q.vouch_some)


def shelf_rows(found: Found) -> list[tuple[str, bytes]]:
    """Returns the rows that such a statement reads, by key, each compared with its voucher.

    Raises:
        RecordDamaged: the first that is lost, or is not what was written.
    """
    kept = sorted((under, id, seal) for _, kind, id, seal, under, _ in found if kind is None)
    verify(map(shelf_row, kept), [row for row in found if row[1] is not None])
    return [(key, bytes(data)) for _, key, data in kept]


def put_shelf(shelf: str, rows: Mapping[str, bytes], once: Collection[str]) -> Statement:
    keys = sorted(rows)  # all transactions lock them in this order
    seals = [vouch.shelf_seal(shelf, key, rows[key]) for key in keys]
    return Q.shelf_put, {"name": shelf, "keys": Texts(keys), "data": Blobs([rows[key] for key in keys]), "seals": Blobs(seals), "once": Texts(once)}


# -- runs that were pruned ----------------------------------------------------------------------------


def ask_pruned(run_ids: Sequence[str]) -> tuple[Statement, Statement]:
    """Returns the statements that read the tombstones of runs."""
    return (Q.pruned_get, (list(run_ids),)), (Q.vouch_some, (OWN, "pruned", list(run_ids)))


def read_pruned(rows: Found, stated: Found) -> Tombstone | None:
    """Returns the tombstone of the first of these runs that was pruned."""
    verify((vouch.of_pruned(*row) for row in rows), stated)
    return Tombstone(*rows[0]) if rows else None


def bury(run_ids: Sequence[str], at: int, by: str) -> Iterator[Statement]:
    """Records that runs were pruned."""
    yield Q.pruned_put, (at, by, list(run_ids))
    yield from keep(vouch.of_pruned(run_id, at, by) for run_id in run_ids)


# -- what the checker asks ----------------------------------------------------------------------------


def ask_kept_of_run(run_id: str, bucket: int) -> list[Statement]:
    """Returns the statements whose answers ``damage_of_run`` takes."""
    return [
        (Q.effects, {"run": run_id, "key": None, "root": None}),
        (Q.inbox_of, {"b": bucket, "run": run_id, "taken": True}),
        (Q.tokens_of_run, (run_id,)),
        (Q.intents + " WHERE i.run_id = %s", (run_id,)),
        (Q.ledger_of_run, (run_id,)),
        (Q.vouch_all_of_run, (run_id,)),
    ]


async def apart(answers: Sequence[Found], look: Callable[[], list[RecordDamaged]]) -> list[RecordDamaged]:
    """Compares few records with their vouchers at once, and many in a thread, so that other tasks of the event loop run meanwhile (§12.6)."""
    return look() if sum(map(len, answers)) <= FEW else await asyncio.to_thread(look)


def damage_of_run(run_id: str, answers: Sequence[Found], now: int) -> list[RecordDamaged]:
    """Returns every record of a run that is lost or is not what was written, and intents whose lease is longer than their sender was given."""
    effects, inbox, tokens, intents, ledger, vouchers = answers
    entries = [LedgerRow(*row[:7]) for row in ledger]
    found: dict[str, list[Voucher]] = {
        "effect": [vouch.of_effect_row(row) for row in effects],
        "inbox": [of_item(run_id, row) for row in inbox],
        "token": [of_token_row(row) for row in tokens],
        "intent": [vouch.of_intent_row(row) for row in intents],
        "ledger": [vouch.of_ledger(entry) for entry in entries],
    }
    stated = [Voucher(*row) for row in vouchers]
    out: list[RecordDamaged] = []
    for kind, records in found.items():
        out += vouch.damage(vouch.by_id(records), vouch.by_id(v for v in stated if v.kind == kind))
    told = {e.record for e in out}
    out += [RecordDamaged("intent", run_id, id) for id in _find_held_too_long(intents, now) if id not in told]
    for entry, row in zip(entries, ledger, strict=True):
        if (id := vouch.ledger_id(entry.number)) not in told and not shows(row[7], entry.data):
            out.append(RecordDamaged("ledger", run_id, id))
    return out


def _find_held_too_long(intents: Found, now: int) -> Iterator[str]:
    """Yields the ids of intents whose lease is longer than their sender was given."""
    for row in intents:
        with contextlib.suppress(HoldfastError):  # one that cannot be read is reported as such
            if row[5] is not None and is_held_too_long(codec.decode_intent(row[0]), row[5] - now):
                yield row[9]


def free(intents: Found, now: int) -> Statement:
    """Returns the statement that ends the leases of intents that are longer than they were given."""
    return Q.intents_free, (list(_find_held_too_long(intents, now)),)


_OWN_KINDS = ("schedule", "shelf", "worker", "offer", "pruned", "limit", "bucket", "call", "meta")
LIMITS: tuple[Statement, ...] = ((Q.rules, None), (Q.buckets, None), (Q.calls_all, None))


def ask_kept_by_store(now: int | None) -> list[Statement]:
    """Returns the statements whose answers ``damage_of_store`` takes."""
    own = [(Q.vouch_of_run, (OWN, kind)) for kind in _OWN_KINDS]
    rows = [(Q.schedules_all, None), (Q.shelves_all, None), (Q.workers_all, {"now": now}), (Q.offers_all, None), (Q.pruned_all, None), *LIMITS, (Q.meta, None)]
    return [*rows, *own, (Q.effects_runless, None), (Q.vouch_runless, None), (Q.claims_lost, None), (Q.uses_runless, None), (Q.keys_lost, None), (Q.roll, None), (Q.roll_found, None), (Q.shelf_roll, None)]


def damage_of_store(answers: Sequence[Found]) -> list[RecordDamaged]:
    """Returns every record of the store itself, except its claims, or of a run that is not here, that is lost or is not what was written."""
    kinds = len(_OWN_KINDS)
    schedules, shelves, workers, offers, pruned, limits, buckets, calls, meta, *stated = answers[: 2 * kinds]
    effects, runless, claims, uses, keys, roll, there, shelf_roll = answers[2 * kinds :]
    found: list[Iterable[Voucher]] = [
        map(vouch.of_schedule_row, schedules),
        map(shelf_row, shelves),
        (vouch.of_worker(*row[:6]) for row in workers),
        (vouch.of_offer(*row) for row in offers),
        (vouch.of_pruned(*row) for row in pruned),
        (vouch.of_limit(*row) for row in limits),
        (vouch.of_bucket(*row) for row in buckets),
        (vouch.of_call(*row) for row in calls),
        [vouch.of_meta({row[0]: row[1] for row in meta})] if stated[-1] else [],  # a store that was emptied by hand has none
    ]
    out: list[RecordDamaged] = []
    for records, vouchers in zip(found, stated, strict=True):
        out += vouch.damage(vouch.by_id(records), vouch.by_id(Voucher(*row) for row in vouchers))
    out += [
        RecordDamaged("worker", OWN, row[0]) for row in workers if row[6] > row[2] + SLACK_US
    ]  # no lease is longer than was requested
    out += vouch.find_miscounted({row[0]: (row[1], row[2]) for row in roll}, dict.fromkeys(vouch.COUNTED, (0, 0)) | {row[0]: (row[1], row[2]) for row in there})
    shelf_vouchers = stated[_OWN_KINDS.index("shelf")]
    out += vouch.find_miscounted_shelves({row[0]: (row[1], row[2]) for row in shelf_roll}, map(shelf_row, shelves), (Voucher(*row) for row in shelf_vouchers))
    left = [Voucher(*row) for row in runless]
    out += vouch.damage(vouch.by_id(map(vouch.of_effect_row, effects)), vouch.by_id(v for v in left if v.kind == "effect"))
    out += [RecordDamaged(v.kind, v.run_id, v.id, missing=True) for v in left if v.kind != "effect"]
    out += vouch.damage({}, vouch.by_id(Voucher(*row) for row in claims))
    out += [RecordDamaged("effect", run_id, key, missing=True) for run_id, key in keys]
    noted = {(run_id, digest) for run_id, digest in uses}
    out += [RecordDamaged("blob_use", *use, missing=True) for use in _large(effects) if use not in noted]
    return out


def _large(effects: Found) -> Iterator[tuple[str, str]]:
    """Yields the large results to which effects of pruned runs refer, each with its run."""
    for row in effects:
        with contextlib.suppress(HoldfastError):  # what is wrong with it is reported as such
            yield from ((row[1], digest) for digest in blobs.name_blobs((), [codec.decode_effect(row[5])]))


def damage_of_claims(rows: Found, stated: Found) -> list[RecordDamaged]:
    """Returns the claims of a page that are not what was written."""
    return list(vouch.damage(vouch.by_id(map(of_claim_row, rows)), vouch.by_id(Voucher(*row) for row in stated)))


# -- vouching anew ------------------------------------------------------------------------------------

KEPT: tuple[Statement, ...] = (
    (Q.effects, {"run": None, "key": None, "root": None}),
    (Q.intents, None),
    (Q.ledger_kept, None),
    (Q.inbox_kept, None),
    (Q.tokens_kept, None),
    (Q.claims_all, None),
    (Q.schedules_all, None),
    (Q.shelves_all, None),
    (Q.workers_all, {"now": None}),
    (Q.offers_all, None),
    (Q.pruned_all, None),
    *LIMITS,
    (Q.meta, None),
    (Q.effects_runless, None),
)


def vouch_for_limits(answers: Sequence[Found]) -> Iterator[Statement]:
    """Yields the statement that vouches for the answers of ``LIMITS``: a past release had no vouchers for them."""
    yield from keep(_of_limits(*answers))


def _of_limits(limits: Found, buckets: Found, calls: Found) -> Iterator[Voucher]:
    yield from (vouch.of_limit(*row) for row in limits)
    yield from (vouch.of_bucket(*row) for row in buckets)
    yield from (vouch.of_call(*row) for row in calls)


def vouch_for_all(answers: Sequence[Found]) -> Iterator[Statement]:
    """Yields the statements that vouch for every record in the answers of ``KEPT``."""
    effects, intents, ledger, inbox, tokens, claims, schedules, shelves, workers, offers, pruned, limits, buckets, calls, meta, runless = answers
    yield from ((Q.use_again, use) for use in _large(runless))
    yield from keep(
        [
            *map(vouch.of_effect_row, effects),
            *map(vouch.of_intent_row, intents),
            *(vouch.of_ledger(LedgerRow(*row)) for row in ledger),
            *(vouch.of_inbox(*row) for row in inbox),
            *map(of_token_row, tokens),
            *map(of_claim_row, claims),
            *map(vouch.of_schedule_row, schedules),
            *map(shelf_row, shelves),
            *(vouch.of_worker(*row[:6]) for row in workers),
            *(vouch.of_offer(*row) for row in offers),
            *(vouch.of_pruned(*row) for row in pruned),
            *_of_limits(limits, buckets, calls),
            vouch.of_meta({row[0]: row[1] for row in meta}),
        ]
    )

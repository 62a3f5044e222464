"""What vouches for the records beside the log: effects, inbox items, claims, tokens, intents, ledger rows, schedules, shelves, workers (§12.1).

Theory of operation. The log is a hash chain and vouches for itself. A record beside it is written in the same transaction as
its ``Voucher``, which a store keeps apart from the record: a digest over the record's content *and its place* (kind, run, id).
Whoever reads records holds them against their vouchers, and the vouchers against the records: one that was altered, moved into
another's place or put back from an older copy does not match; one that was deleted, or is not found because an index is
damaged, leaves its voucher behind. So is a voucher that is gone told by its record. The error names run and record, and only
that run is harmed.

A store calls the functions of this module and does no hashing of its own, so that all vouch alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from holdfast.core import canon
from holdfast.core.commit import DedupClaim, LedgerRow
from holdfast.core.effects import Effect
from holdfast.core.errors import RecordDamaged
from holdfast.core.intents import Intent
from holdfast.core.schedules import Schedule
from holdfast.core.tokens import Token

Kind = Literal["effect", "inbox", "claim", "token", "intent", "ledger", "schedule", "shelf", "worker", "offer", "pruned", "meta", "limit", "bucket", "call"]
KINDS: tuple[Kind, ...] = (
    "effect", "inbox", "claim", "token", "intent", "ledger", "schedule", "shelf", "worker", "offer", "pruned", "meta", "limit", "bucket", "call",
)
OWN = ""
"""The run of a record that belongs to the store itself."""

_encode = msgspec.msgpack.Encoder().encode
Part = str | bytes | int | None


class Voucher(NamedTuple):
    """What vouches for one record. ``under``: by which key it is looked for, where that is not its id.

    ``mark`` is what changes about a record whose content does not: of an inbox item, the number of the commit that took it.
    """

    run_id: str
    kind: str
    id: str
    seal: bytes
    under: str = ""
    mark: int | None = None


def seal(kind: str, run_id: str, id: str, *content: Part) -> bytes:
    """The digest of a record's content in its place."""
    return canon.chain(b"", _encode((kind, run_id, id, *content)))


# -- one function a kind: what of a record is vouched for ---------------------------------------------


def of_effect(e: Effect, data: bytes) -> Voucher:
    """``data`` is the record as kept."""
    return of_effect_row((e.effect_id, e.run_id, e.lineage_root, e.key, e.status.value, data))


def of_effect_row(kept: Sequence[Any]) -> Voucher:
    """Of an effect's row as it stands, whatever it says: id, run, lineage root, key, status, data."""
    id, run_id, root, key, status, data = kept[:6]
    return Voucher(run_id, "effect", id, seal("effect", run_id, id, root, key, status, data), key)


def of_inbox(run_id: str, key: str, put_at: int, command: bytes, taken: int | None) -> Voucher:
    return Voucher(run_id, "inbox", key, seal("inbox", run_id, key, put_at, command), "", taken)


def claim_id(kind: str, scope: str, key: str) -> str:
    """The id of a claim: all that it is looked for by."""
    return f"{kind}\x1f{scope}\x1f{key}"


def list_readings(id: str) -> list[tuple[str, str, str]]:
    """What kind, scope and key of a claim may be, by its id: a scope or a key may contain what stands between them, and then only the claim itself tells."""
    kind, *rest = id.split("\x1f")
    return [(kind, "\x1f".join(rest[:n]), "\x1f".join(rest[n:])) for n in range(1, len(rest))]


def of_claim(c: DedupClaim) -> Voucher:
    id = claim_id(c.kind, c.scope, c.key)
    return Voucher(OWN, "claim", id, seal("claim", OWN, id, c.run_id, c.digest, c.expires_at), c.run_id)


def of_token(t: Token) -> Voucher:
    id = t.hash.hex()
    content = (t.wait_id, t.tenant_id, t.actor, t.created_at, t.expires_at, t.used_at, t.revoked_at)
    return Voucher(t.run_id, "token", id, seal("token", t.run_id, id, *content), id)


def of_intent(i: Intent, data: bytes) -> Voucher:
    """``data`` is the record as kept. How long its sender may take is not vouched for: it moves on by itself."""
    found_by = (i.type, i.run_id, i.intent_id, i.target, i.order_key, i.created_at, i.attempts, bool(i.payload))
    return of_intent_row((data, i.tenant_id, i.state.value, i.due, i.owner, i.lease_until, i.settled_at, *found_by))


def of_intent_row(kept: Sequence[Any]) -> Voucher:
    """Of an intent's row as it stands, whatever it says, with its columns in this order."""
    data, tenant_id, state, due, owner, _, settled_at, type_, run_id, intent_id, target, order_key, created_at, attempts, carries = kept[:15]
    content = (tenant_id, type_, target, order_key, created_at, state, due, owner, settled_at, attempts, int(carries), data)
    return Voucher(run_id, "intent", intent_id, seal("intent", run_id, intent_id, *content), intent_id)


def of_ledger(row: LedgerRow) -> Voucher:
    id = ledger_id(row.number)
    return Voucher(row.run_id, "ledger", id, seal("ledger", row.run_id, id, row.topic, row.key, row.at, row.data, row.step_id))


def ledger_id(number: int) -> str:
    """The id of the row at a place of the ledger: ids sort as the numbers do."""
    return f"{number:020}"


def of_schedule(s: Schedule, data: bytes) -> Voucher:
    return of_schedule_row((s.schedule_id, s.tenant_id, s.due, data))


def of_schedule_row(kept: Sequence[Any]) -> Voucher:
    """Of a schedule's row as it stands: id, tenant, when it is due, data."""
    id, tenant, due, data = kept[:4]
    return Voucher(OWN, "schedule", id, seal("schedule", OWN, id, tenant, due, data))


def of_shelf(shelf: str, key: str, data: bytes) -> Voucher:
    """A row that others keep here (``rt.shelf``). All rows of a shelf are found by its name."""
    return Voucher(OWN, "shelf", shelf_id(shelf, key), shelf_seal(shelf, key, data), shelf)


def shelf_seal(shelf: str, key: str, data: bytes) -> bytes:
    return seal("shelf", OWN, shelf_id(shelf, key), data)


def shelf_id(shelf: str, key: str) -> str:
    return f"{shelf}\x1f{key}"


def of_worker(owner: str, *content: Part) -> Voucher:
    """A process that holds leases: all that its store keeps of it, but for an expiry that moves on by itself."""
    return Voucher(OWN, "worker", owner, seal("worker", OWN, owner, *content))


def of_offer(owner: str, data: bytes) -> Voucher:
    """What a worker works on."""
    return Voucher(OWN, "offer", owner, seal("offer", OWN, owner, data))


def of_pruned(run_id: str, at: int, by: str) -> Voucher:
    """What is left of a run that was pruned: when, and by whom."""
    return Voucher(OWN, "pruned", run_id, seal("pruned", OWN, run_id, at, by))


def of_meta(values: Mapping[str, int]) -> Voucher:
    """What a store knows of itself."""
    return Voucher(OWN, "meta", "store", seal("meta", OWN, "store", *(part for name in sorted(values) for part in (name, values[name]))))


def of_limit(name: str, data: bytes) -> Voucher:
    """A limit that somebody has set."""
    return Voucher(OWN, "limit", name, seal("limit", OWN, name, data))


def of_bucket(name: str, full_at: int) -> Voucher:
    """When the bucket of a rate would be full again."""
    return Voucher(OWN, "bucket", name, seal("bucket", OWN, name, full_at))


def of_call(place: str, name: str, owner: str | None, run_id: str, since: int) -> Voucher:
    """A call that holds a limit, or waits for one."""
    id = call_id(place, name)
    return Voucher(OWN, "call", id, seal("call", OWN, id, owner, run_id, since), run_id)


def call_id(place: str, name: str) -> str:
    return f"{place}\x1f{name}"


# -- how many there must be -------------------------------------------------------------------------


COUNTED: tuple[Kind, ...] = ("schedule", "limit", "token", "pruned")
"""What the store counts, because no log tells of it: a record that is lost together with its voucher is missing there."""


def weigh(kind: str, id: str) -> int:
    """What a record adds to the sum of its kind. Statements of a database make the same number, so it is one over plain text. The content is the
    voucher's to guard: so only a new record and a deleted one change the sum, and no step or claim does."""
    return int.from_bytes(hashlib.sha256(f"{kind}\x1f{id}".encode("utf-8", "surrogatepass")).digest()[:4])


def find_miscounted(stated: Mapping[str, tuple[int, int]], found: Mapping[str, tuple[int, int]]) -> Iterator[RecordDamaged]:
    """Of the kinds that are counted, those of which another number or other records are there, by number and sum. A store that was emptied by hand has
    neither counts nor records."""
    for kind in COUNTED:
        if kind not in stated:
            if found[kind][0]:
                yield RecordDamaged(kind, OWN, "count of all", missing=True)
        elif stated[kind] != found[kind]:
            n, m = stated[kind][0], found[kind][0]
            yield RecordDamaged(kind, OWN, f"{max(n - m, 1)} of {n}", missing=True) if m <= n else RecordDamaged(kind, OWN, f"count of all: {n}, not {m}")


# -- what a run's row says beside its log -------------------------------------------------------------


def standing(run_id: str, fence: int, owner: str | None, due: int | None, holds: bool, turn: int, previous: str | None = None, cause: str | None = None) -> bytes:
    """What vouches, in a run's row, for what no event tells: its fence, who holds it, when it is due, and its place in its lane.

    ``previous``, ``cause``: whom its owner took it over from, and why, where a store keeps that. Statements of a database that change
    these make the same digest, so it is one over plain text.
    """
    owned, timed, held = "\x1e" if owner is None else owner, "\x1e" if due is None else due, int(holds) if isinstance(holds, int) else holds
    text = f"{run_id}\x1f{fence}\x1f{owned}\x1f{timed}\x1f{held}\x1f{turn}"
    if owner is not None and (previous is not None or cause is not None):
        before, why = "\x1e" if previous is None else previous, "\x1e" if cause is None else cause
        text = f"{text}\x1f{before}\x1f{why}"
    return hashlib.sha256(text.encode()).digest()[: canon.HASH_BYTES]


# -- holding records and vouchers against each other --------------------------------------------------


def damage(found: Mapping[str, Voucher], stated: Mapping[str, Voucher]) -> Iterator[RecordDamaged]:
    """What differs between the records as they are and what was vouched for, both by id: in the order of their ids."""
    for id in sorted(found.keys() | stated.keys(), key=str):  # what a damaged page gives may be anything
        record, voucher = found.get(id), stated.get(id)
        known = voucher or record
        assert known is not None
        run_id = known.under if known.kind == "claim" else known.run_id
        if record is None:
            yield RecordDamaged(known.kind, run_id, id, missing=True)
        elif record != voucher:
            yield RecordDamaged(known.kind, run_id, id)


def by_id(vouchers: Iterable[Voucher]) -> dict[str, Voucher]:
    return {v.id: v for v in vouchers}


def verify(found: Iterable[Voucher], stated: Iterable[Voucher]) -> None:
    """Compares records of one kind with their vouchers.

    Raises:
        RecordDamaged: the first that is gone, or is not what was written.
    """
    for error in damage(by_id(found), by_id(stated)):
        raise error


__all__ = [
    "COUNTED",
    "KINDS",
    "OWN",
    "Kind",
    "Part",
    "Voucher",
    "by_id",
    "call_id",
    "claim_id",
    "damage",
    "find_miscounted",
    "ledger_id",
    "list_readings",
    "of_bucket",
    "of_call",
    "of_claim",
    "of_effect",
    "of_effect_row",
    "of_inbox",
    "of_intent",
    "of_intent_row",
    "of_ledger",
    "of_limit",
    "of_meta",
    "of_offer",
    "of_pruned",
    "of_schedule",
    "of_schedule_row",
    "of_shelf",
    "of_token",
    "of_worker",
    "seal",
    "shelf_id",
    "standing",
    "verify",
    "weigh",
]

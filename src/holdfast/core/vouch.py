"""Vouchers for the records beside the log: effects, inbox items, claims, tokens, intents, ledger rows, schedules, shelves, workers (§12.1).

Theory of operation. The log is a hash chain and vouches for itself. A record beside it is written in the same transaction as
its ``Voucher``, which a store keeps apart from the record: a digest over the record's content *and its place* (kind, run, id).
Readers compare records with their vouchers, and vouchers with their records. A record that was altered, moved to another
place or restored from an older copy does not match its voucher. If a record was deleted, or an index is damaged so that the record
is not found, its voucher is still there; and a record without a voucher shows that the voucher is missing. The error names the run
and the record, and affects only that run.

A store calls the functions of this module and does no hashing of its own, so that all stores make the same vouchers.
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
    """The digest that vouches for one record. ``under``: the key by which the record is looked up, if that is not its id.

    ``mark`` is the part of a record that changes while its content does not: of an inbox item, the number of the commit that took it.
    """

    run_id: str
    kind: str
    id: str
    seal: bytes
    under: str = ""
    mark: int | None = None


def seal(kind: str, run_id: str, id: str, *content: Part) -> bytes:
    """Returns the digest of a record's content and its place."""
    return canon.chain(b"", _encode((kind, run_id, id, *content)))


# -- one function for each kind: which parts of a record the voucher covers ---------------------------


def of_effect(e: Effect, data: bytes) -> Voucher:
    """Returns the voucher of an effect; ``data`` is the record as stored."""
    return of_effect_row((e.effect_id, e.run_id, e.lineage_root, e.key, e.status.value, data))


def of_effect_row(kept: Sequence[Any]) -> Voucher:
    """Returns the voucher of an effect's stored row, valid or not: id, run, lineage root, key, status, data."""
    id, run_id, root, key, status, data = kept[:6]
    return Voucher(run_id, "effect", id, seal("effect", run_id, id, root, key, status, data), key)


def of_inbox(run_id: str, key: str, put_at: int, command: bytes, taken: int | None) -> Voucher:
    return Voucher(run_id, "inbox", key, seal("inbox", run_id, key, put_at, command), "", taken)


def claim_id(kind: str, scope: str, key: str) -> str:
    """Returns the id of a claim: all the values by which it is looked up."""
    return f"{kind}\x1f{scope}\x1f{key}"


def list_readings(id: str) -> list[tuple[str, str, str]]:
    """Returns the possible (kind, scope, key) of a claim's id. A scope or a key may contain the separator; then only the claim itself shows which is right."""
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
    """Returns the voucher of an intent; ``data`` is the record as stored. It does not cover the sender's lease, which is renewed without a new voucher."""
    found_by = (i.type, i.run_id, i.intent_id, i.target, i.order_key, i.created_at, i.attempts, bool(i.payload))
    return of_intent_row((data, i.tenant_id, i.state.value, i.due, i.owner, i.lease_until, i.settled_at, *found_by))


def of_intent_row(kept: Sequence[Any]) -> Voucher:
    """Returns the voucher of an intent's stored row, valid or not, with its columns in this order."""
    data, tenant_id, state, due, owner, _, settled_at, type_, run_id, intent_id, target, order_key, created_at, attempts, carries = kept[:15]
    content = (tenant_id, type_, target, order_key, created_at, state, due, owner, settled_at, attempts, int(carries), data)
    return Voucher(run_id, "intent", intent_id, seal("intent", run_id, intent_id, *content), intent_id)


def of_ledger(row: LedgerRow) -> Voucher:
    id = ledger_id(row.number)
    return Voucher(row.run_id, "ledger", id, seal("ledger", row.run_id, id, row.topic, row.key, row.at, row.data, row.step_id))


def ledger_id(number: int) -> str:
    """Returns the id of the ledger row with this number: ids sort in the order of the numbers."""
    return f"{number:020}"


def of_schedule(s: Schedule, data: bytes) -> Voucher:
    return of_schedule_row((s.schedule_id, s.tenant_id, s.due, data))


def of_schedule_row(kept: Sequence[Any]) -> Voucher:
    """Returns the voucher of a schedule's stored row: id, tenant, due time, data."""
    id, tenant, due, data = kept[:4]
    return Voucher(OWN, "schedule", id, seal("schedule", OWN, id, tenant, due, data))


def of_shelf(shelf: str, key: str, data: bytes) -> Voucher:
    """Returns the voucher of a row of a shelf (``rt.shelf``). All rows of a shelf are looked up by the shelf's name."""
    return Voucher(OWN, "shelf", shelf_id(shelf, key), shelf_seal(shelf, key, data), shelf)


def shelf_seal(shelf: str, key: str, data: bytes) -> bytes:
    return seal("shelf", OWN, shelf_id(shelf, key), data)


def shelf_id(shelf: str, key: str) -> str:
    return f"{shelf}\x1f{key}"


def of_worker(owner: str, *content: Part) -> Voucher:
    """Returns the voucher of a process that holds leases: it covers all stored values but the expiry, which is renewed without a new voucher."""
    return Voucher(OWN, "worker", owner, seal("worker", OWN, owner, *content))


def of_offer(owner: str, data: bytes) -> Voucher:
    """Returns the voucher of what a worker offers."""
    return Voucher(OWN, "offer", owner, seal("offer", OWN, owner, data))


def of_pruned(run_id: str, at: int, by: str) -> Voucher:
    """Returns the voucher of a pruned run's tombstone: when it was pruned, and by whom."""
    return Voucher(OWN, "pruned", run_id, seal("pruned", OWN, run_id, at, by))


def of_meta(values: Mapping[str, int]) -> Voucher:
    """Returns the voucher of a store's values about itself."""
    return Voucher(OWN, "meta", "store", seal("meta", OWN, "store", *(part for name in sorted(values) for part in (name, values[name]))))


def of_limit(name: str, data: bytes) -> Voucher:
    """Returns the voucher of a limit that was set."""
    return Voucher(OWN, "limit", name, seal("limit", OWN, name, data))


def of_bucket(name: str, full_at: int) -> Voucher:
    """Returns the voucher of a rate's bucket: when it will be full again."""
    return Voucher(OWN, "bucket", name, seal("bucket", OWN, name, full_at))


def of_call(place: str, name: str, owner: str | None, run_id: str, since: int) -> Voucher:
    """Returns the voucher of a call that holds a limit, or waits for one."""
    id = call_id(place, name)
    return Voucher(OWN, "call", id, seal("call", OWN, id, owner, run_id, since), run_id)


def call_id(place: str, name: str) -> str:
    return f"{place}\x1f{name}"


# -- how many there must be -------------------------------------------------------------------------


COUNTED: tuple[Kind, ...] = ("schedule", "limit", "token", "pruned")
"""The kinds of records that the store counts, because no log mentions them. The count shows if a record is lost together with its voucher."""


def weigh(kind: str, id: str) -> int:
    """Returns the number that a record adds to the sum of its kind. Database statements compute the same number, so it is a hash of plain text. It does
    not cover the content, which the voucher covers: only new and deleted records change the sum, not steps or claims."""
    return int.from_bytes(hashlib.sha256(f"{kind}\x1f{id}".encode("utf-8", "surrogatepass")).digest()[:4])


def find_miscounted(stated: Mapping[str, tuple[int, int]], found: Mapping[str, tuple[int, int]]) -> Iterator[RecordDamaged]:
    """Yields an error for each counted kind whose records differ from the stored number and sum. A store that was emptied by hand has neither counts
    nor records, and gives no error."""
    for kind in COUNTED:
        if kind not in stated:
            if found[kind][0]:
                yield RecordDamaged(kind, OWN, "count of all", missing=True)
        elif stated[kind] != found[kind]:
            n, m = stated[kind][0], found[kind][0]
            yield RecordDamaged(kind, OWN, f"{max(n - m, 1)} of {n}", missing=True) if m <= n else RecordDamaged(kind, OWN, f"count of all: {n}, not {m}")


def heft(seal: bytes) -> int:
    """Returns the number that a row of a shelf adds to the sum of its shelf, from its voucher's digest. It covers the content, so the sum also changes
    when a row is replaced. Database statements compute the same number."""
    return int.from_bytes(seal[:4])


def find_miscounted_shelves(stated: Mapping[str, tuple[int, int]], found: Iterable[Voucher], vouchers: Iterable[Voucher]) -> Iterator[RecordDamaged]:
    """Yields an error for each shelf whose rows differ from the stored number and sum: rows were lost, or put back from an older copy, together with
    their vouchers. ``found``: the vouchers of the rows as they are. A row that differs from its voucher is reported as such, and then the sum says nothing."""
    rows, vouched = by_id(found), by_id(vouchers)
    there: dict[str, list[int]] = {name: [0, 0] for name in stated}
    harmed: set[str] = set()
    for id in rows.keys() | vouched.keys():
        row, voucher = rows.get(id), vouched.get(id)
        known = row or voucher
        assert known is not None
        if row != voucher:
            harmed.add(known.under)
        counted = there.setdefault(known.under, [0, 0])
        counted[0] += 1
        counted[1] += heft(known.seal)
    for name in sorted(there, key=str):
        (n, total), (m, sum) = stated.get(name, (0, 0)), there[name]
        if m < n:
            yield RecordDamaged("shelf", OWN, f"{name}\x1f{n - m} of {n}", missing=True)
        elif m > n:
            yield RecordDamaged("shelf", OWN, f"{name}\x1fcount of all: {n}, not {m}")
        elif total != sum and name not in harmed:
            yield RecordDamaged("shelf", OWN, f"{name}\x1fat least 1 of {n}")


# -- the values in a run's row that its log does not contain ------------------------------------------


def standing(run_id: str, fence: int, owner: str | None, due: int | None, holds: bool, turn: int, previous: str | None = None, cause: str | None = None) -> bytes:
    """Returns the digest, in a run's row, of the values that no event contains: its fence, its owner, when it is due, and its place in its lane.

    ``previous``, ``cause``: from whom its owner took it over, and why, if the store keeps these. The database statements that change
    these values compute the same digest, so it is a hash of plain text.
    """
    owned, timed, held = "\x1e" if owner is None else owner, "\x1e" if due is None else due, int(holds) if isinstance(holds, int) else holds
    text = f"{run_id}\x1f{fence}\x1f{owned}\x1f{timed}\x1f{held}\x1f{turn}"
    if owner is not None and (previous is not None or cause is not None):
        before, why = "\x1e" if previous is None else previous, "\x1e" if cause is None else cause
        text = f"{text}\x1f{before}\x1f{why}"
    return hashlib.sha256(text.encode()).digest()[: canon.HASH_BYTES]


# -- comparing records and vouchers -------------------------------------------------------------------


def damage(found: Mapping[str, Voucher], stated: Mapping[str, Voucher]) -> Iterator[RecordDamaged]:
    """Yields an error for each record that differs from its voucher or is missing; both are given by id. The errors are in the order of the ids."""
    for id in sorted(found.keys() | stated.keys(), key=str):  # an id from a damaged page may be of any type
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
        RecordDamaged: for the first record that is missing, or is not the one that was written.
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
    "find_miscounted_shelves",
    "heft",
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

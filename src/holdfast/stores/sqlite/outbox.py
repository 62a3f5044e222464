"""The outbox of the SQLite store: functions over a connection, inside a transaction if they write.

An intent's columns are those by which it is found, and those that change with each attempt; ``data`` has the rest, and columns take precedence. Free
intents are searched lane by lane: one lane is a (type, tenant, target, order key), so that neither a receiver with a long queue nor a held key keeps
the search from the other lanes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import apsw
from msgspec.structs import replace

from holdfast.core import codec, vouch
from holdfast.core.commit import LedgerRow, Settlement
from holdfast.core.errors import EventUnreadable, HoldfastError, RecordDamaged
from holdfast.core.intents import Intent, IntentState, drop_payload, is_held_too_long, stands, start_sending
from holdfast.core.lease import Alive
from holdfast.core.vouch import Voucher
from holdfast.ports import IntentCount
from holdfast.stores import apply
from holdfast.stores.sqlite import besides
from holdfast.stores.sqlite.connection import Q, as_json, row, rows
from holdfast.stores.sqlite.owners import Owners

_STATES = frozenset(IntentState)
LANES = 2_000  # lanes examined in one search; the next search continues after them

Lane = tuple[str, str, str, str]


def put_intent(db: apsw.Connection, i: Intent) -> Voucher:
    data = codec.encode_intent(i)
    values = (
        i.intent_id, i.run_id, i.tenant_id, i.type, i.target, i.order_key, i.created_at, i.state, i.due, i.owner, i.lease_until, i.settled_at,
        i.attempts, int(bool(i.payload)), data,
    )
    db.execute(Q.intent_upsert, values)
    return vouch.of_intent(i, data)


def decode_intent(kept: Sequence[Any]) -> Intent:
    """Decodes an intent as stored: ``data``, then the columns, which take precedence.

    Raises:
        EventUnreadable: damaged bytes.
    """
    data, tenant_id, state, due, owner, lease_until, settled_at = kept[:7]
    if state not in _STATES:
        raise EventUnreadable(f"an intent has the state {state!r}, which is unknown")
    return replace(
        codec.decode_intent(data), tenant_id=tenant_id, state=IntentState(state), due=due, owner=owner, lease_until=lease_until, settled_at=settled_at
    )


def _keep_sound(db: apsw.Connection, kept: Sequence[Sequence[Any]]) -> list[Intent]:
    """Returns the intents that are what was written: nothing else is sent. The others are reported when their run is read, and by the checker."""
    stated = set(besides.under_any(db, [k[9] for k in kept], "intent"))
    return [decode_intent(k) for k in kept if vouch.of_intent_row(k) in stated]


def put_ledger(db: apsw.Connection, entries: Sequence[LedgerRow]) -> list[Voucher]:
    if not entries:
        return []
    first = row(db, Q.ledger_last)[0] + 1
    numbered = [replace(r, number=n) for n, r in enumerate(entries, first)]
    db.executemany(Q.ledger_insert, [(r.number, r.run_id, r.topic, r.key, r.at, r.data, r.step_id, as_json(r.data)) for r in numbered])
    return [vouch.of_ledger(r) for r in numbered]


def read_list(
    db: apsw.Connection, run_id: str | None, state: str | None, type: str | None, tenant_id: str | None, after: str | None, limit: int
) -> list[Intent]:
    wanted = {"run_id = ?": run_id, "state = ?": state, "type = ?": type, "tenant_id = ?": tenant_id}
    wanted["id > (SELECT id FROM intent WHERE intent_id = ?)"] = after
    where = {sql: value for sql, value in wanted.items() if value is not None}
    sql = Q.intents + (" WHERE " + " AND ".join(where) if where else "") + " ORDER BY id LIMIT ?"
    if run_id is not None:
        hold_intents(db, run_id)
    return _keep_sound(db, rows(db, sql, (*where.values(), limit)))


def hold_intents(db: apsw.Connection, run_id: str) -> None:
    """Compares all intents of a run with their vouchers.

    Raises:
        RecordDamaged: the first that is lost, or is not what was written.
    """
    vouch.verify(
        map(vouch.of_intent_row, rows(db, Q.intents + " WHERE run_id = ? ORDER BY id", (run_id,))), besides.list_vouchers(db, run_id, "intent")
    )


def read_intent(db: apsw.Connection, intent_id: str) -> Intent | None:
    kept = row(db, Q.intents + " WHERE intent_id = ?", (intent_id,))
    vouch.verify([] if kept is None else [vouch.of_intent_row(kept)], besides.under(db, intent_id, "intent"))
    return None if kept is None else decode_intent(kept)


class Search:
    """The search for free intents, which continues after the lane at which the last one ended."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._after: dict[str, tuple[str, str, str]] = {}

    def ready(
        self, db: apsw.Connection, types: Sequence[str], now: int, limit: int, each: int, room: Mapping[tuple[str, str, str], int], run_id: str | None,
        mine: Callable[[Intent], bool] | None = None,
    ) -> list[tuple[Intent, bool]]:
        """Returns the intents that may be sent now, each with whether its sender is proven dead. ``mine``: whether the caller has an intent without
        knowing it."""
        lost: list[Intent] = []
        dead: set[str] = set()
        senders: dict[str | None, tuple[Any, bool]] = {None: (None, False)}
        for *kept, ticks in rows(db, Q.intents_sending):
            owner, until, type_, run = kept[4], kept[5], kept[7], kept[8]
            if type_ not in types or run_id not in (None, run):
                continue
            if owner not in senders:
                found_one = self._owners.find(db, owner)
                senders[owner] = (found_one, found_one is not None and self._owners.alive(found_one) is Alive.NO)
            worker, gone = senders[owner]
            left = self._owners.remaining_of(worker, ticks, until, now)
            if not gone and left > 0 and mine is None:
                continue
            found = _keep_sound(db, [kept])
            if gone or left <= 0 or (mine is not None and any(map(mine, found))):
                lost += found
                dead.update([owner] if gone and found else [])
        due = self._of_run(db, types, now, limit, run_id) if run_id is not None else self._by_lanes(db, types, now, limit, each, room)
        chosen = apply.by_turns(lost, due, limit, each, room)
        return [(i, i.owner in dead) for i in chosen]

    def _of_run(self, db: apsw.Connection, types: Sequence[str], now: int, limit: int, run_id: str) -> list[Intent]:
        found = _keep_sound(db, rows(db, Q.intents_of_run_due, (run_id, now, limit)))
        return [i for i in found if i.type in types]

    def _by_lanes(
        self, db: apsw.Connection, types: Sequence[str], now: int, limit: int, each: int, room: Mapping[tuple[str, str, str], int]
    ) -> list[Intent]:
        out: list[Intent] = []
        for type_ in types:
            begin = self._after.get(type_, ("", "", ""))
            at, wrapped, taken = begin, False, 0
            for _ in range(LANES):
                if taken >= limit:
                    break
                lane = row(db, Q.next_lane, (type_, *at))
                if lane is None or (wrapped and tuple(lane) > begin):
                    if wrapped or begin == ("", "", ""):
                        break
                    at, wrapped = ("", "", ""), True
                    lane = row(db, Q.next_lane_first, (type_,))
                    if lane is None or tuple(lane) > begin:
                        break
                at = tuple(lane)
                tenant, target, order = at
                free = min(limit - taken, room.get((type_, tenant, target), each))
                if free > 0:
                    kept = rows(db, Q.lane_head, (tenant, type_, order, target, now)) if order else rows(db, Q.lane_due, (type_, tenant, target, now, free))
                    out += _keep_sound(db, kept)
                    taken += len(kept)
            self._after[type_] = at
        return out


def claim(db: apsw.Connection, ready: Sequence[tuple[Intent, bool]], owner: str, now: int, until: int, ticks: int, mine: Callable[[Intent], bool] | None) -> list[Intent]:
    """Takes intents for a sender, with two statements for all of them."""
    out = [
        start_sending(i, owner, now, until, lost=i.state == IntentState.SENDING, dead=dead, answer_lost=mine is not None and mine(i)) for i, dead in ready
    ]
    kept = [_values_of(i) for i in out]
    besides.vouch_for(db, [vouch.of_intent(i, k[7]) for i, k in zip(out, kept, strict=True)])
    db.executemany(Q.intent_take, [(ticks, *k) for k in kept])
    return out


def _values_of(i: Intent) -> tuple[Any, ...]:
    return (i.state, i.due, i.owner, i.lease_until, i.settled_at, i.attempts, int(bool(i.payload)), codec.encode_intent(i), i.intent_id)


def _keep(db: apsw.Connection, intents: Sequence[Intent]) -> list[Voucher]:
    """Stores changed intents with one statement for all; returns their vouchers."""
    kept = [_values_of(i) for i in intents]
    db.executemany(Q.intent_keep, kept)
    return [vouch.of_intent(i, k[7]) for i, k in zip(intents, kept, strict=True)]


def settle(db: apsw.Connection, settlements: Sequence[Settlement], put: Callable[[Any], object]) -> list[bool]:
    """Stores the results of intents that still are as their senders saw them: four statements for all of them, and what their hooks returned.

    Raises:
        RecordDamaged: one of them is lost, or is not what was written.
    """
    wanted = [s.after.intent_id for s in settlements]
    found = rows(db, Q.intents_named, (json.dumps(wanted),))
    vouch.verify(map(vouch.of_intent_row, found), besides.under_any(db, wanted, "intent"))
    there = {i.intent_id: i for i in map(decode_intent, found)}
    done: list[Settlement] = []
    out: list[bool] = []
    for s in settlements:
        before = there.get(s.after.intent_id)
        out.append(before is not None and stands(before, s.before))
        if out[-1]:
            there[s.after.intent_id] = s.after
            done.append(s)
    vouchers = _keep(db, [s.after for s in done])
    for s in done:
        vouchers += [*(put_intent(db, intent) for intent in s.intents), *put_ledger(db, s.ledger)]
    besides.vouch_for(db, vouchers)
    for s in done:
        for item in s.puts:
            put(item)
    return out


def drop_payloads(db: apsw.Connection, before: int, limit: int) -> int:
    old = [drop_payload(i) for i in _keep_sound(db, rows(db, Q.intents_to_drop, (before, limit)))]
    besides.vouch_for(db, _keep(db, old))
    return len(old)


def counts(db: apsw.Connection) -> list[IntentCount]:
    return [IntentCount(*found) for found in rows(db, Q.intent_counts)]


def ledger(
    db: apsw.Connection, run_id: str | None, topic: str | None, key: str | None, tenant_id: str | None, after: int | None, limit: int | None
) -> list[LedgerRow]:
    wanted: dict[str, object] = {"run_id = ?": run_id, "topic = ?": topic, "key = ?": key, "id > ?": after}
    wanted["run_id IN (SELECT run_id FROM run WHERE tenant_id = ?)"] = tenant_id
    where = {sql: value for sql, value in wanted.items() if value is not None}
    sql = Q.ledger + (" WHERE " + " AND ".join(where) if where else "") + " ORDER BY id LIMIT ?"
    kept = [LedgerRow(*found) for found in rows(db, sql, (*where.values(), -1 if limit is None else limit))]
    if run_id is None or topic is not None or key is not None or tenant_id is not None:
        fine = besides.each(db, [vouch.of_ledger(entry) for entry in kept])
        return [entry for entry, ok in zip(kept, fine, strict=True) if ok]
    first, last = vouch.ledger_id(after or 0), vouch.ledger_id(kept[-1].number) if kept and len(kept) == limit else "9"
    known = [Voucher(*found) for found in rows(db, Q.vouch_between, (run_id, "ledger", first, last))]
    vouch.verify(map(vouch.of_ledger, kept), known)
    return kept


def damage_of_run(db: apsw.Connection, run_id: str, owners: Owners, now: int) -> list[RecordDamaged]:
    """Returns every intent and ledger row of a run that is lost or is not what was written, and intents whose lease is longer than their sender was
    given."""
    intents = map(vouch.of_intent_row, rows(db, Q.intents + " WHERE run_id = ?", (run_id,)))
    entries = [LedgerRow(*found) for found in rows(db, Q.ledger + " WHERE run_id = ?", (run_id,))]
    out = list(vouch.damage(vouch.by_id(intents), vouch.by_id(besides.list_vouchers(db, run_id, "intent"))))
    out += vouch.damage(vouch.by_id(map(vouch.of_ledger, entries)), vouch.by_id(besides.list_vouchers(db, run_id, "ledger")))
    told = {e.record for e in out}
    out += [RecordDamaged("intent", run_id, id) for id in _find_held_too_long(db, run_id, owners, now) if id not in told]
    shown = dict(rows(db, Q.ledger_shown, (run_id,)))
    out += [RecordDamaged("ledger", run_id, id) for e in entries if (id := vouch.ledger_id(e.number)) not in told and not _shows(shown[e.number], e.data)]
    return out


def _find_held_too_long(db: apsw.Connection, run_id: str | None, owners: Owners, now: int) -> Iterator[str]:
    """Yields the intents of a run, or of all runs, whose lease is longer than their sender was given."""
    for id, data, owner, until, ticks in rows(db, Q.intents_held, (run_id,)):
        worker = owners.find(db, owner) if owner is not None else None
        with contextlib.suppress(HoldfastError):  # one that cannot be read is reported as such
            if is_held_too_long(codec.decode_intent(data), owners.remaining_of(worker, ticks, until, now)):
                yield id


def free(db: apsw.Connection, owners: Owners, now: int) -> None:
    """Inside a transaction: ends the leases of intents that are longer than they were given."""
    db.executemany(Q.intent_free, [(id,) for id in [*_find_held_too_long(db, None, owners, now)]])


def _shows(json: str | None, data: bytes) -> bool:
    """Whether the readable copy of a record is what was written; False if the record cannot be read."""
    try:
        return json == as_json(data)
    except HoldfastError:
        return False

"""The outbox's part of the PostgreSQL store: statements inside a transaction.

An intent's columns are what it is found by and what changes with each attempt; ``data`` holds the rest, and columns win. Which intents
are free is found lane by lane; what another dispatcher is just claiming is passed over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core import canon, codec
from holdfast.core.commit import InboxItem, LedgerRow, Settlement
from holdfast.core.errors import EventUnreadable
from holdfast.core.intents import Intent, IntentState, claimed, dropped, stands
from holdfast.stores import apply
from holdfast.stores.postgres.connection import Connection, Q, many

Statement = tuple[str, Any]
_STATES = frozenset(IntentState)


def intent_row(i: Intent) -> tuple[object, ...]:
    return (
        i.intent_id, i.run_id, i.tenant_id, i.type, i.target, i.order_key, i.created_at, i.state.value, i.due, i.owner, i.lease_until, i.settled_at,
        i.attempts, bool(i.payload), codec.encode_intent(i),
    )  # fmt: skip


def decode_intent(kept: Sequence[Any]) -> Intent:
    """An intent as kept: ``data``, then the columns that win.

    Raises:
        EventUnreadable: damaged bytes.
    """
    data, tenant_id, state, due, owner, lease_until, settled_at = kept
    if state not in _STATES:
        raise EventUnreadable(f"an intent has the state {state!r}, which there is not")
    return replace(
        codec.decode_intent(data), tenant_id=tenant_id, state=IntentState(state), due=due, owner=owner, lease_until=lease_until, settled_at=settled_at
    )


def ledger_row(r: LedgerRow) -> tuple[object, ...]:
    return (r.run_id, r.topic, r.key, r.at, r.data, r.step_id, msgspec.json.encode(canon.reveal(r.data)).decode())


def listed(run_id: str | None, state: str | None, type: str | None, tenant_id: str | None, after: str | None, limit: int) -> Statement:
    """The statement that lists intents."""
    wanted = {"run_id = %s": run_id, "state = %s": state, "type = %s": type, "tenant_id = %s": tenant_id}
    wanted["id > (SELECT id FROM holdfast.intent WHERE intent_id = %s)"] = after
    return _where(Q.intents, wanted, limit)


def ledger(run_id: str | None, topic: str | None, key: str | None, tenant_id: str | None, after: int | None, limit: int | None) -> Statement:
    """The statement that lists ledger rows."""
    wanted: dict[str, object] = {"run_id = %s": run_id, "topic = %s": topic, "key = %s": key, "id > %s": after}
    wanted["run_id IN (SELECT run_id FROM holdfast.run WHERE tenant_id = %s)"] = tenant_id
    return _where(Q.ledger, wanted, limit)


def _where(text: str, wanted: Mapping[str, object], limit: int | None) -> Statement:
    where = {sql: value for sql, value in wanted.items() if value is not None}
    return text + (" WHERE " + " AND ".join(where) if where else "") + " ORDER BY id LIMIT %s", (*where.values(), limit)


async def claim(
    db: Connection,
    owner: str,
    types: Sequence[str],
    dead: Sequence[str],
    now: int,
    until: int,
    limit: int,
    each: int,
    room: Mapping[tuple[str, str, str], int],
    run_id: str | None,
) -> list[Intent]:
    """Takes what may be sent now: of lost senders, then of one lane after the other."""
    values = {"types": list(types), "dead": list(dead), "run": run_id, "limit": limit, "now": now}
    lost, due = await many(db, [(Q.intents_lost, values), (Q.intents_due if run_id is None else Q.intents_of_run_due, values)])
    chosen = apply.by_turns([decode_intent(k) for k in lost], [decode_intent(k) for k in due], limit, each, room)
    out = [claimed(i, owner, now, until, lost=i.state == IntentState.SENDING, dead=i.owner in dead) for i in chosen]
    await many(db, [(Q.intent_keep, _kept(i)) for i in out])
    return out


def _kept(i: Intent) -> tuple[object, ...]:
    return (i.state.value, i.due, i.owner, i.lease_until, i.settled_at, i.attempts, bool(i.payload), codec.encode_intent(i), i.intent_id)


async def settle(db: Connection, settlements: Sequence[Settlement], put: Callable[[InboxItem], Awaitable[object]], *, sent: bool) -> list[bool]:
    """Keeps what became of intents that still stand as their senders saw them. ``sent``: it was sent before, and the answer was lost."""
    (rows,) = await many(db, [(Q.intent_lock, ([s.after.intent_id for s in settlements],))])
    there = {i.intent_id: i for i in map(decode_intent, rows)}
    out: list[bool] = []
    writes: list[Statement] = []
    items: list[InboxItem] = []
    for s in settlements:
        found = there.get(s.after.intent_id)
        done = sent and found is not None and _kept(found) == _kept(s.after)
        if not done and found is not None and stands(found, s.before):
            done = True
            there[s.after.intent_id] = s.after
            writes.append((Q.intent_keep, _kept(s.after)))
            writes += [(Q.intent_upsert, intent_row(i)) for i in s.intents]
            writes += [(Q.ledger_insert, ledger_row(r)) for r in s.ledger]
            items += s.puts
        out.append(done)
    await many(db, writes)
    for item in items:
        await put(item)
    return out


async def drop_payloads(db: Connection, before: int, limit: int) -> int:
    (rows,) = await many(db, [(Q.intents_to_drop, (before, limit))])
    await many(db, [(Q.intent_keep, _kept(dropped(decode_intent(k)))) for k in rows])
    return len(rows)


__all__ = ["claim", "decode_intent", "drop_payloads", "intent_row", "ledger", "ledger_row", "listed", "settle"]

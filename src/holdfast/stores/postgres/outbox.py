"""The outbox of the PostgreSQL store: statements inside a transaction.

An intent's columns are those by which it is found, and those that change with each attempt; ``data`` has the rest, and columns take precedence. Free
intents are found lane by lane; intents that another dispatcher is claiming just now are skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast.core import codec, vouch
from holdfast.core.blobs import Blob
from holdfast.core.commit import InboxItem, Settlement
from holdfast.core.errors import EventUnreadable
from holdfast.core.intents import Intent, IntentState, answer_lost, drop_payload, stands, start_sending
from holdfast.core.vouch import Voucher
from holdfast.stores import apply
from holdfast.stores.postgres import besides
from holdfast.stores.postgres.arrays import Blobs, Numbers, Texts
from holdfast.stores.postgres.connection import Connection, many
from holdfast.stores.postgres.queries import Q

Statement = tuple[str, Any]
T = TypeVar("T")
PIECE = 8  # intents that are handled between two turns of the event loop
_STATES = frozenset(IntentState)


def intent_row(i: Intent) -> tuple[Any, ...]:
    return (
        i.intent_id, i.run_id, i.tenant_id, i.type, i.target, i.order_key, i.created_at, i.state.value, i.due, i.owner, i.lease_until, i.settled_at,
        i.attempts, bool(i.payload), codec.encode_intent(i),
    )


def put_intents(intents: Sequence[Intent]) -> Iterator[Statement]:
    rows = [intent_row(i) for i in intents]
    yield from ((Q.intent_upsert, row) for row in rows)
    yield from besides.keep(vouch.of_intent(i, row[-1]) for i, row in zip(intents, rows, strict=True))


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


def keep_sound(found: Sequence[Sequence[Any]]) -> list[Intent]:
    """Returns the intents that are what was written: nothing else is sent. The others are reported when their run is read, and by the checker."""
    return besides.keep_sound(found, vouch.of_intent_row, decode_intent)


def ask_list(run_id: str | None, state: str | None, type: str | None, tenant_id: str | None, after: str | None, limit: int) -> Statement:
    """Returns the statement that lists intents."""
    wanted = {"i.run_id = %s": run_id, "i.state = %s": state, "i.type = %s": type, "i.tenant_id = %s": tenant_id}
    wanted["i.id > (SELECT id FROM holdfast.intent WHERE intent_id = %s)"] = after
    return _where(Q.intents, wanted, "i.id", limit)


def ledger(run_id: str | None, topic: str | None, key: str | None, tenant_id: str | None, after: int | None, limit: int | None) -> Statement:
    """Returns the statement that lists ledger rows."""
    wanted: dict[str, object] = {"l.run_id = %s": run_id, "l.topic = %s": topic, "l.key = %s": key, "l.id > %s": after}
    wanted["l.run_id IN (SELECT run_id FROM holdfast.run WHERE tenant_id = %s)"] = tenant_id
    return _where(Q.ledger, wanted, "l.id", limit)


def of_ledger(run_id: str | None, after: int | None) -> list[Statement]:
    """Returns the statement that reads the vouchers of a run's ledger rows after a number, if one run is asked for."""
    return [] if run_id is None else [(Q.vouch_between, (run_id, "ledger", vouch.ledger_id(after or 0), "9"))]


def of_run(run_id: str | None) -> list[Statement]:
    """Returns the statements that read all intents of a run and their vouchers, if one run is asked for."""
    return [] if run_id is None else [(Q.intents + " WHERE i.run_id = %s", (run_id,)), (Q.vouch_of_run, (run_id, "intent"))]


def _where(text: str, wanted: Mapping[str, object], order: str, limit: int | None) -> Statement:
    where = {sql: value for sql, value in wanted.items() if value is not None}
    return text + (" WHERE " + " AND ".join(where) if where else "") + f" ORDER BY {order} LIMIT %s", (*where.values(), limit)


async def claim(
    db: Connection,
    owner: str,
    types: Sequence[str],
    dead: Callable[[str, str | None], bool],
    at: int | None,
    ttl_us: int,
    limit: int,
    each: int,
    room: Mapping[tuple[str, str, str], int],
    run_id: str | None,
    held: Collection[str],
    *,
    doubt: bool,
) -> list[Intent]:
    """Takes what may be sent now: intents of lost senders, then of one lane after the other. A transaction of two round trips, or three if ``dead``
    says that a sender is proven dead. ``at``: the time, if a test moves the clock."""
    values: dict[str, Any] = {"types": list(types), "dead": [], "run": run_id, "limit": limit, "now": at, "me": owner if doubt else None, "held": list(held)}
    _, _, senders, ((now, _),), lost, due = await many(
        db,
        [
            (Q.begin, None),
            (Q.bounded_by_index, None),
            (Q.intents_senders, None),
            (Q.see_now, {"now": at}),
            (Q.intents_lost, values),
            (Q.intents_due if run_id is None else Q.intents_of_run_due, values),
        ],
    )
    gone = [name for name, its in senders if dead(name, its)]
    if gone:
        (lost,) = await many(db, [(Q.intents_lost, {**values, "dead": gone})])
    chosen = apply.by_turns([i async for i in _read(lost)], [i async for i in _read(due)], limit, each, room)
    out = [
        start_sending(i, owner, now, now + ttl_us, lost=i.state == IntentState.SENDING, dead=i.owner in gone, answer_lost=answer_lost(i, owner, held, doubt=doubt)) for i in chosen
    ]
    await many(db, [*await _keep(out), (Q.commit, None)])
    return out


async def _read(found: Sequence[Sequence[Any]]) -> AsyncIterator[Intent]:
    """Yields the intents that are what was written."""
    async for piece in _in_pieces(found):
        for intent in keep_sound(piece):
            yield intent


async def _in_pieces(every: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """Yields a few items at a time, and lets other tasks of the event loop run in between: to decode, hash and encode a group takes milliseconds, and
    a run that is driven meanwhile would wait for all of it."""
    for n in range(0, len(every), PIECE):
        if n:
            await asyncio.sleep(0)
        yield every[n : n + PIECE]


async def _keep(intents: Sequence[Intent]) -> list[Statement]:
    """Returns two statements for all intents; if one occurs several times, the last counts."""
    kept: dict[str, tuple[tuple[Any, ...], Voucher]] = {}
    async for piece in _in_pieces(intents):
        for i in piece:
            row = _values_of(i)
            kept[i.intent_id] = row, vouch.of_intent(i, row[-2])
    if not kept:
        return []
    return [(Q.intent_keep, _columns([row for row, _ in kept.values()])), *besides.keep(v for _, v in kept.values())]


def _columns(rows: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Returns the arrays for rows of ``_values_of``."""
    state, due, owner, lease_until, settled_at, attempts, carries, data, intent_id = zip(*rows, strict=True)
    return (
        Texts(state), Numbers(due), Texts(owner), Numbers(lease_until), Numbers(settled_at), Numbers(attempts), list(carries), Blobs(data), Texts(intent_id),
    )


def _values_of(i: Intent) -> tuple[Any, ...]:
    return (i.state.value, i.due, i.owner, i.lease_until, i.settled_at, i.attempts, bool(i.payload), codec.encode_intent(i), i.intent_id)


async def settle_alone(db: Connection, settlements: Sequence[Settlement]) -> bool:
    """Stores the results of intents that have nothing else to write, if each intent is as its sender saw it: one statement, which is a transaction of
    its own. If one was taken over, or is not what was written, nothing is stored: ``settle`` says which."""
    names = ("state", "due", "owner", "lease_until", "settled_at", "attempts", "carries", "data", "intent_id")
    rows: list[tuple[Any, ...]] = []
    was: list[tuple[str, str | None, int, bytes]] = []
    seals: list[bytes] = []
    async for piece in _in_pieces(settlements):
        for s in piece:
            row = _values_of(s.after)
            rows.append(row)
            seals.append(vouch.of_intent(s.after, row[-2]).seal)
            was.append((s.before.state.value, s.before.owner, s.before.attempts, vouch.of_intent(s.before, codec.encode_intent(s.before)).seal))
    state, owner, attempts, seal = zip(*was, strict=True)
    values = dict(zip(names, _columns(rows), strict=True))
    values |= {"run": Texts([s.after.run_id for s in settlements]), "seal": Blobs(seals)}
    values |= {"was_state": Texts(state), "was_owner": Texts(owner), "was_attempts": Numbers(attempts), "was_seal": Blobs(seal)}
    found = await (await db.execute(Q.intents_settle, values)).fetchone()
    return found is not None and found[0] == len(settlements)


def alone(settlements: Sequence[Settlement]) -> bool:
    """Whether there are intents, and nothing to write beside their results."""
    return bool(settlements) and not any(s.ledger or s.puts or s.intents or s.blobs for s in settlements) and len({s.after.intent_id for s in settlements}) == len(settlements)


async def settle(
    db: Connection,
    settlements: Sequence[Settlement],
    put: Callable[[InboxItem], Awaitable[object]],
    keep_blob: Callable[[str, Blob], Iterable[Statement]],
    *,
    sent: bool,
) -> list[bool]:
    """Stores the results of intents that still are as their senders saw them. A transaction of two round trips, and one more for each item that
    ``put`` puts into an inbox. ``sent``: it was sent before, and the answer was lost."""
    wanted = [s.after.intent_id for s in settlements]
    count = sum(len(s.ledger) for s in settlements)
    _, _, rows, stated, drawn = await many(
        db, [(Q.begin, None), (Q.bounded, None), (Q.intent_lock, (wanted,)), (Q.vouch_under, (wanted, "intent")), (Q.see_numbers, {"count": count})]
    )
    vouchers: list[Voucher] = []
    there: dict[str, Intent] = {}
    async for piece in _in_pieces(rows):
        vouchers += map(vouch.of_intent_row, piece)
    besides.verify(vouchers, stated)  # before any of them is decoded
    async for piece in _in_pieces(rows):
        there.update((i.intent_id, i) for i in map(decode_intent, piece))
    numbers = iter([number for (number,) in drawn])
    out: list[bool] = []
    kept: list[Intent] = []
    writes: list[Statement] = []
    blobs: list[Statement] = []
    items: list[InboxItem] = []
    for s in settlements:
        found = there.get(s.after.intent_id)
        done = sent and found is not None and _values_of(found) == _values_of(s.after)
        if not done and found is not None and stands(found, s.before):
            done = True
            there[s.after.intent_id] = s.after
            kept.append(s.after)
            writes += [*put_intents(s.intents), *besides.put_ledger(s.ledger, numbers)]
            items += s.puts
        if done:
            blobs += [w for blob in s.blobs for w in keep_blob(s.after.run_id, blob)]
        out.append(done)
    writes = [*await _keep(kept), *writes]
    if items:
        await many(db, writes)
        writes = []
        for item in items:
            await put(item)
    await many(db, [*writes, *blobs, (Q.commit, None)])
    return out


async def drop_payloads(db: Connection, before: int, limit: int) -> int:
    (rows,) = await many(db, [(Q.intents_to_drop, (before, limit))])
    old = [drop_payload(i) for i in keep_sound(rows)]
    await many(db, await _keep(old))
    return len(old)


__all__ = ["alone", "ask_list", "claim", "decode_intent", "drop_payloads", "keep_sound", "ledger", "of_ledger", "of_run", "put_intents", "settle", "settle_alone"]

"""What bounds how much is under way at once, as the database keeps it (§10.11): rules, buckets, calls that hold limits or wait for them.

Whoever judges by what is in use holds one advisory lock to the end of its transaction; plain claims, which no limit binds, know nothing of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.core import codec
from holdfast.core.limits import Held, Later, Limit, Rule, in_force, may_enter
from holdfast.ports import Usage
from holdfast.stores.postgres.connection import Connection, Q, many

Lost = Callable[[str, str | None, int | None], str | None]


def decoded(found: Sequence[tuple[Any, ...]]) -> list[Rule]:
    return [codec.decode_rule(bytes(data)) for (data,) in found]


def held(found: Sequence[tuple[Any, ...]], lost: Lost) -> list[Held]:
    """Who holds how many runs; owners that are lost hold none."""
    return [Held(owner, queue, tenant, n) for owner, queue, tenant, n, boot, left in found if lost(owner, boot, left) is None]


def in_use(found: Sequence[tuple[Any, ...]], lost: Lost) -> Counter[str]:
    count: Counter[str] = Counter()
    for owner, name, n, boot, left in found:
        count[name] += n if lost(owner, boot, left) is None else 0
    return count


async def keep_buckets(db: Connection, changed: Mapping[str, int]) -> None:
    if changed:
        await db.execute(Q.bucket_put, {"names": list(changed), "full_at": list(changed.values())})


async def put_rule(db: Connection, rule: Rule, before: Rule | None) -> bool:
    _, there = await many(db, [(Q.limits_lock, None), (Q.rule_lock, (rule.name,))])
    if (decoded(there)[0] if there else None) != before:
        return False
    await db.execute(Q.rule_put, (rule.name, codec.encode_rule(rule)))
    return True


def usage(answers: Sequence[Sequence[tuple[Any, ...]]], lost: Lost) -> Usage:
    holders, calls, full = answers
    return Usage(tuple(held(holders, lost)), in_use(calls, lost), dict(full))


async def enter(
    db: Connection, lost: Lost, at: int | None, now: int, owner: str, run_id: str, place: str, needs: Mapping[str, Limit | None], *, resting: bool
) -> Later | None:
    """Begins a call, or says when to come back."""
    _, there, stored, calls, full = await many(
        db, [(Q.limits_lock, None), (Q.call_get, (place,)), (Q.rules, None), (Q.calls, {"now": at}), (Q.buckets, None)]
    )
    if there and there[0][0] == owner:
        return None
    since = there[0][1] if there and there[0][0] is None else None
    limits, count = in_force({}, decoded(stored)).limits, in_use(calls, lost)
    got = may_enter([(name, limits.get(name, limit), count[name]) for name, limit in needs.items()], dict(full), now, since)
    if isinstance(got, Later):
        if resting and not there:
            await db.execute(Q.call_put, {"place": place, "owner": None, "run": run_id, "names": [got.name], "now": now})
        return got
    await keep_buckets(db, got)
    gone = [o for o, _, _, boot, left in calls if lost(o, boot, left) is not None]
    await many(
        db,
        [
            (Q.call_drop, (place,)),
            (Q.call_put, {"place": place, "owner": owner, "run": run_id, "names": list(needs), "now": now}),
            (Q.calls_lost, {"lost": gone}),
        ],
    )
    return None


async def leave(db: Connection, at: int | None, owner: str, places: Sequence[str] | None) -> None:
    """Ends calls (None: all of the owner's), and wakes who has waited longest for what they held."""
    cursor = await db.execute(Q.calls_left, {"owner": owner, "places": None if places is None else list(places)})
    for name, n in Counter(name for (name,) in await cursor.fetchall()).items():
        await db.execute(Q.wake_line, {"name": name, "n": n, "now": at})


__all__ = ["decoded", "enter", "held", "in_use", "keep_buckets", "leave", "put_rule", "usage"]

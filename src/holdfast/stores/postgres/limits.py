"""What bounds how much is under way at once, as the database stores it (§10.11): rules, buckets, and calls that hold limits or wait for them.

A transaction that decides by what is in use holds one advisory lock to its end; plain claims, which are subject to no limit, do not take it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.core import codec, ids, vouch
from holdfast.core.limits import Held, Later, Limit, Rule, in_force, may_enter
from holdfast.core.vouch import OWN
from holdfast.ports import Usage
from holdfast.stores.postgres import besides
from holdfast.stores.postgres.connection import Connection, many
from holdfast.stores.postgres.queries import Q

Lost = Callable[[str, str | None, int | None], str | None]
PART = 20
QUICK = 0.005  # seconds


def decode(found: Sequence[tuple[Any, ...]]) -> list[Rule]:
    return [codec.decode_rule(bytes(data)) for _, data in found]


def read_sound(found: Sequence[tuple[Any, ...]], stated: Sequence[tuple[Any, ...]]) -> list[Rule]:
    """Returns all rules, checked, for callers that show or change them.

    Raises:
        RecordDamaged: one is lost, or is not what was set.
    """
    besides.verify((vouch.of_limit(*row) for row in found), stated)
    return decode(found)


def count_held(found: Sequence[tuple[Any, ...]], lost: Lost) -> list[Held]:
    """Returns how many runs each owner holds; lost owners hold none."""
    return [Held(owner, queue, tenant, n) for owner, queue, tenant, n, boot, left in found if lost(owner, boot, left) is None]


class Tally:
    """How many runs each owner holds, as last counted.

    The entries of former owners stay in the index of owners while a snapshot is held, and a count passes through all of them. If a count took longer
    than ``QUICK``, its result is used for a while, so that counting takes at most 1/``PART`` of the time; tenants then share by what they held a
    moment ago. A limit on runs in flight has them counted each time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.held: list[Held] = []
        self._until = float("-inf")

    @property
    def holds(self) -> bool:
        """Whether the last count is still used."""
        return self._clock() < self._until

    def see(self, held: Sequence[Held], seconds: float) -> None:
        """Stores what was counted just now, and how long that took."""
        self.held = list(held)
        self._until = self._clock() + PART * seconds if seconds > QUICK else float("-inf")

    def add(self, owner: str, queue: str, tenant: str) -> None:
        """Notes that one more run was claimed here."""
        self.held.append(Held(owner, queue, tenant, 1))


def in_use(found: Sequence[tuple[Any, ...]], lost: Lost) -> Counter[str]:
    count: Counter[str] = Counter()
    for owner, name, n, boot, left in found:
        count[name] += n if lost(owner, boot, left) is None else 0
    return count


async def keep_buckets(db: Connection, changed: Mapping[str, int]) -> None:
    if changed:
        put = (Q.bucket_put, {"names": list(changed), "full_at": list(changed.values())})
        await many(db, [put, *besides.keep(vouch.of_bucket(name, full_at) for name, full_at in changed.items())])


async def put_rule(db: Connection, rule: Rule, before: Rule | None) -> bool:
    _, there, stated = await many(db, [(Q.limits_lock, None), (Q.rule_lock, (rule.name,)), (Q.vouch_some, (OWN, "limit", [rule.name]))])
    if next(iter(read_sound(there, stated)), None) != before:
        return False
    data = codec.encode_rule(rule)
    counted = [besides.count("limit", rule.name)] if before is None else []
    await many(db, [(Q.rule_put, (rule.name, data)), *besides.keep([vouch.of_limit(rule.name, data)]), *counted])
    return True


def usage(answers: Sequence[Sequence[tuple[Any, ...]]], lost: Lost) -> Usage:
    holders, calls, full = answers
    return Usage(tuple(count_held(holders, lost)), in_use(calls, lost), dict(full))


async def enter(
    db: Connection, lost: Lost, at: int | None, now: int, owner: str, run_id: str, place: str, needs: Mapping[str, Limit | None], *, resting: bool
) -> Later | None:
    """Begins a call, or returns when to come back."""
    _, there, stored, calls, full = await many(
        db, [(Q.limits_lock, None), (Q.call_get, (place,)), (Q.rules, None), (Q.calls, {"now": at}), (Q.buckets, None)]
    )
    if there and there[0][0] == owner:
        return None
    since = there[0][1] if there and there[0][0] is None else None
    limits, count = in_force({}, decode(stored)).limits, in_use(calls, lost)
    got = may_enter([(name, limits.get(name, limit), count[name]) for name, limit in needs.items()], dict(full), now, since)
    if isinstance(got, Later):
        if resting and not there:
            await many(db, [*_put_calls(place, None, run_id, [got.name], now)])
        return got
    await keep_buckets(db, got)
    gone = [o for o, _, _, boot, left in calls if lost(o, boot, left) is not None]
    await many(
        db,
        [
            (Q.call_drop, (place,)),
            *_put_calls(place, owner, run_id, list(needs), now),
            (Q.calls_lost, {"lost": gone}),
        ],
    )
    return None


def _put_calls(place: str, owner: str | None, run_id: str, names: Sequence[str], now: int) -> Iterator[besides.Statement]:
    yield Q.call_put, {"place": place, "owner": owner, "run": run_id, "names": list(names), "now": now}
    yield from besides.keep(vouch.of_call(place, name, owner, run_id, now) for name in names)


async def leave(db: Connection, at: int | None, owner: str, places: Sequence[str] | None) -> None:
    """Ends calls (None: all of the owner's), and wakes the runs that have waited longest for the limits they held."""
    cursor = await db.execute(Q.calls_left, {"owner": owner, "places": None if places is None else list(places)})
    for name, n in Counter(name for (name,) in await cursor.fetchall()).items():
        await db.execute(Q.wake_line, {"name": name, "n": n, "now": at})


async def look_again(db: Connection, lost: Lost, at: int | None, now: int, run_id: str, needs: Mapping[str, Limit | None]) -> bool:
    """Makes a run at rest due if a call that uses these limits may begin."""
    _, _, stored, calls, full = await many(
        db, [(Q.limits_lock, None), (Q.calls_settled, (list(needs),)), (Q.rules, None), (Q.calls, {"now": at}), (Q.buckets, None)]
    )
    limits, count = in_force({}, decode(stored)).limits, in_use(calls, lost)
    if isinstance(may_enter([(name, limits.get(name, limit), count[name]) for name, limit in needs.items()], dict(full), now), Later):
        return False
    return bool(await (await db.execute(Q.wake_run, {"b": ids.bucket_number(run_id), "run": run_id, "now": at})).fetchall())


__all__ = ["Tally", "count_held", "decode", "enter", "in_use", "keep_buckets", "leave", "look_again", "put_rule", "read_sound", "usage"]

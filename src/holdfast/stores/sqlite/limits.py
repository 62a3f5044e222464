"""What bounds how much is under way at once, as the database stores it (§10.11): rules, buckets, and calls that hold limits or wait for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import apsw

from holdfast.core import codec, vouch
from holdfast.core.lease import at_once
from holdfast.core.limits import Backlog, Held, Later, Limit, Rule, Rules, Use, in_force, may_enter
from holdfast.core.vouch import OWN
from holdfast.ports import Usage
from holdfast.stores.sqlite import besides
from holdfast.stores.sqlite.connection import Q, row, rows
from holdfast.stores.sqlite.owners import Seen


def rules(db: apsw.Connection) -> list[Rule]:
    return [codec.decode_rule(data) for _, data in rows(db, Q.rules)]


def sound_rules(db: apsw.Connection) -> list[Rule]:
    """Returns all rules, checked, for callers that show or change them.

    Raises:
        RecordDamaged: one is lost, or is not what was set.
    """
    found = rows(db, Q.rules)
    vouch.verify((vouch.of_limit(*r) for r in found), besides.list_vouchers(db, OWN, "limit"))
    return [codec.decode_rule(data) for _, data in found]


def put_rule(db: apsw.Connection, rule: Rule, before: Rule | None) -> bool:
    """Inside a transaction: stores a rule if it has not been changed meanwhile; returns whether it was stored."""
    there = next((r for r in sound_rules(db) if r.name == rule.name), None)
    if there != before:
        return False
    data = codec.encode_rule(rule)
    db.execute(Q.rule_put, (rule.name, data))
    if before is None:
        besides.count(db, "limit", [rule.name])
    besides.vouch_for(db, [vouch.of_limit(rule.name, data)])
    return True


def count_held(db: apsw.Connection, workers: Sequence[Seen]) -> list[Held]:
    """Returns how many runs each owner holds; lost owners hold none."""
    living = {w.owner for w in workers if w.lost is None}
    return [h for h in (Held(*r) for r in rows(db, Q.held)) if h.owner in living]


def buckets(db: apsw.Connection) -> dict[str, int]:
    return dict(rows(db, Q.buckets))


def keep_buckets(db: apsw.Connection, changed: Mapping[str, int]) -> None:
    if changed:
        db.executemany(Q.bucket_put, list(changed.items()))
        besides.vouch_for(db, [vouch.of_bucket(name, full_at) for name, full_at in changed.items()])


def use(db: apsw.Connection, workers: Sequence[Seen], rules_now: Rules, owner: str, now: int) -> Use:
    return Use(rules_now, owner, count_held(db, workers), buckets(db), now)


def _in_use(db: apsw.Connection, workers: Sequence[Seen]) -> Counter[str]:
    living = {w.owner for w in workers if w.lost is None}
    count: Counter[str] = Counter()
    for owner, name, n in rows(db, Q.calls):
        count[name] += n if owner in living else 0
    return count


def usage(db: apsw.Connection, workers: Sequence[Seen]) -> Usage:
    return Usage(tuple(count_held(db, workers)), _in_use(db, workers), buckets(db))


def backlog(db: apsw.Connection, now: int) -> list[Backlog]:
    return [Backlog(*r) for r in rows(db, Q.backlog, (now,))]


def waiting_in(db: apsw.Connection, queue: str, tenant: str) -> int:
    """Returns how many runs of a tenant wait in a queue and have not begun."""
    count, priority = int(row(db, Q.waiting_behind, (tenant, queue))[0]), 2**62
    while (priority := row(db, Q.next_priority, (queue, priority))[0]) is not None:
        count += row(db, Q.waiting_in, (queue, priority, tenant))[0]
    return count


def may(db: apsw.Connection, workers: Sequence[Seen], owner: str, place: str, needs: Mapping[str, Limit | None], now: int) -> dict[str, int] | Later | None:
    """Returns whether a call may begin: the changed buckets, or when to come back; None if it has begun already."""
    there = row(db, Q.call_get, (place,))
    if there is not None and there[0] == owner:
        return None
    return _judge(db, workers, needs, now, there[1] if there is not None and there[0] is None else None)


def _judge(db: apsw.Connection, workers: Sequence[Seen], needs: Mapping[str, Limit | None], now: int, since: int | None) -> dict[str, int] | Later:
    stored, count = in_force({}, rules(db)).limits, _in_use(db, workers)
    return may_enter([(name, stored.get(name, limit), count[name]) for name, limit in needs.items()], buckets(db), now, since)


def enter(
    db: apsw.Connection, workers: Sequence[Seen], owner: str, run_id: str, place: str, needs: Mapping[str, Limit | None], now: int, *, resting: bool
) -> Later | None:
    """Inside a transaction: begins a call, or returns when to come back."""
    got = may(db, workers, owner, place, needs, now)
    if got is None:
        return None
    if isinstance(got, Later):
        if resting and row(db, Q.call_get, (place,)) is None:
            _put_calls(db, [(place, got.name, None, run_id, now)])
        return got
    keep_buckets(db, got)
    _drop(db, Q.call_drop, (place,))
    _put_calls(db, [(place, name, owner, run_id, now) for name in needs])
    for worker in workers:
        if worker.lost is not None:
            _drop(db, Q.calls_left, (worker.owner,))
    return None


def _put_calls(db: apsw.Connection, calls: Sequence[tuple[str, str, str | None, str, int]]) -> None:
    db.executemany(Q.call_put, calls)
    besides.vouch_for(db, [vouch.of_call(*call) for call in calls])


def _drop(db: apsw.Connection, statement: str, values: Sequence[str]) -> list[str]:
    """Deletes calls with their vouchers; returns the names of the limits they held."""
    gone = rows(db, statement, values)
    db.executemany(Q.vouch_drop, [(OWN, "call", vouch.call_id(place, name)) for place, name in gone])
    return [name for _, name in gone]


def forget(db: apsw.Connection, run_id: str) -> None:
    """Inside a transaction: deletes the calls of a pruned run."""
    _drop(db, Q.prune_call, (run_id,))


def leave(db: apsw.Connection, owner: str, places: Sequence[str] | None, now: int) -> None:
    """Inside a transaction: ends calls (None: all of the owner's), and wakes the runs that have waited longest for the limits they held."""
    freed: Counter[str] = Counter()
    if places is None:
        freed.update(_drop(db, Q.calls_left, (owner,)))
    for place in places or ():
        freed.update(_drop(db, Q.call_left, (place, owner)))
    for name, n in freed.items():
        for (key,) in rows(db, Q.line, (name, now, n)):
            db.execute(Q.wake, (at_once(now), key))


def look_again(db: apsw.Connection, workers: Sequence[Seen], run_id: str, needs: Mapping[str, Limit | None], now: int) -> bool:
    """Inside a transaction: makes a run at rest due if a call that uses these limits may begin."""
    asleep = row(db, Q.asleep, (run_id, now))
    if asleep is None or isinstance(_judge(db, workers, needs, now, None), Later):
        return False
    db.execute(Q.wake, (at_once(now), asleep[0]))
    return True


__all__ = ["backlog", "buckets", "count_held", "enter", "forget", "keep_buckets", "leave", "look_again", "may", "put_rule", "rules", "sound_rules", "usage", "use", "waiting_in"]

"""Schedules: when a skill is to be started again and again (§10.15).

A schedule is a value that moves from slot to slot, and a slot is an instant. Which comes next, which have been missed and what
becomes of them is decided here, pure: zones and the reading of cron lines are given (``Times``). A cron line whose hour is ``*``
goes on by elapsed time when the clocks change. Any other names times of the day, and each of them has one slot a day: one that the
change skips has it at the change, one that comes twice the first time.
"""

from __future__ import annotations

import datetime as dt
from collections import deque
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import InvalidInput

MAX_CATCH_UP = 100
MAX_CHANGES = 20
SECOND_US = 1_000_000
GRACE_US = 60 * SECOND_US
LONGEST_US = 100 * 366 * 86_400 * SECOND_US
LOOK = 500
"""So many slots are looked at in one decision: a worker that comes back after a year goes through them bit by bit."""
NICKNAMES = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_MINUTE = dt.timedelta(minutes=1)
_DAY = dt.timedelta(days=1)


class Missed(StrEnum):
    """What becomes of slots that passed while nobody was there to fire them."""

    SKIP = "skip"
    CATCH_UP = "catch_up"


class Change(msgspec.Struct, frozen=True):
    """Who did what to a schedule, and when: microseconds since 1970."""

    at: int
    actor: str
    what: str


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """When and what to start. Exactly one of ``cron`` and ``every_us`` is set; times are microseconds since 1970.

    ``due`` is the next slot, None while paused or when the line has no more; ``last_run`` the run of the newest slot that fired. Without
    ``overlap`` a slot is skipped while that run has not ended. A slot that is more than ``grace_us`` late counts as missed, and
    ``catch_up`` bounds how many of those are made up for. ``options`` are those of the runs' requests, ``changes`` the newest
    changes by people, and ``error`` is why the slot at ``due`` could not be fired yet.
    """

    schedule_id: str
    skill_id: str
    input: bytes
    cron: str = ""
    every_us: int = 0
    zone: str = "UTC"
    overlap: bool = False
    missed: Missed = Missed.SKIP
    catch_up: int = 1
    grace_us: int = GRACE_US
    tenant_id: str = "default"
    queue: str = "default"
    options: dict[str, Any] = {}
    created_at: int = 0
    due: int | None = None
    paused: bool = False
    last_slot: int | None = None
    last_run: str | None = None
    fired: int = 0
    skipped_missed: int = 0
    skipped_overlap: int = 0
    error: str = ""
    changes: tuple[Change, ...] = ()


_SAID = (
    "skill_id", "input", "cron", "every_us", "zone", "overlap", "missed", "catch_up", "grace_us", "tenant_id", "queue", "options",
)
_RULE = frozenset({"cron", "every_us", "zone"})


class Move(msgspec.Struct, frozen=True):
    """A schedule goes on from ``before``, which must be how it stands, to ``after``: in one commit with the run of its slot."""

    before: Schedule
    after: Schedule


class Firing(msgspec.Struct, frozen=True):
    """What is next for a schedule that is due: the slot to fire, None if there is only something to skip, and where it stands then."""

    slot: int | None
    moved: Schedule


class Times(Protocol):
    """What slots are computed with."""

    def zone(self, name: str) -> dt.tzinfo:
        """The rules of an IANA time zone.

        Raises:
            InvalidInput: it is not known here.
        """

    def cron(self, line: str, after: dt.datetime) -> Iterator[dt.datetime]:
        """The times that a line of five fields names, strictly after one that has a zone, by elapsed time, or none, by the calendar alone.

        Raises:
            InvalidInput: it is no such line.
        """


# -- slots ------------------------------------------------------------------------------------------


def fields(line: str) -> list[str]:
    """The five fields of a cron line, or of what a nickname stands for.

    Raises:
        InvalidInput: it has more or fewer.
    """
    found = NICKNAMES.get(line.strip().lower(), line).split()
    if len(found) != 5:
        hint = "five fields, minute hour day month weekday: '0 9 * * MON-FRI'; or " + ", ".join(NICKNAMES)
        raise InvalidInput(f"{line!r} is not a cron line: it has {len(found)} fields", hint=hint)
    return found


def next_slot(s: Schedule, after: int, times: Times) -> int | None:
    """The first slot strictly after a time; None if the cron line has no more."""
    if s.every_us:
        return s.created_at + ((after - s.created_at) // s.every_us + 1) * s.every_us
    zone, line = times.zone(s.zone), fields(s.cron)
    start = (_EPOCH + after * _MICROSECOND).astimezone(zone)
    if line[1] != "*":
        start = start.replace(tzinfo=None)
    for found in times.cron(" ".join(line), start):
        at = _instant(found if found.tzinfo is None else _look_between(line, start, found, times), zone)
        if at > after:
            return at
    return None


def _look_between(line: Sequence[str], start: dt.datetime, found: dt.datetime, times: Times) -> dt.datetime:
    """The first slot by elapsed time. Who computes them goes from an hour to the next by sixty minutes: where the clock is set by another time
    than whole hours meanwhile, that may pass over a slot, so every minute is looked at there."""
    if start.utcoffset() == found.utcoffset() and found - start <= _DAY:
        return found
    return next((t for t in times.cron(" ".join(["*", *line[1:]]), start) if t.minute == found.minute), found)


def _instant(found: dt.datetime, zone: dt.tzinfo) -> int:
    """When a time of the calendar comes: for the first time if it comes twice; if it is skipped, when the clock has jumped over it."""
    if found.tzinfo is None:
        while not _exists(found, zone):
            found += _MINUTE
        found = found.replace(tzinfo=zone)
    return (found - _EPOCH) // _MICROSECOND


def _exists(local: dt.datetime, zone: dt.tzinfo) -> bool:
    return local.replace(tzinfo=zone).astimezone(dt.UTC).astimezone(zone).replace(tzinfo=None) == local


def preview(s: Schedule, after: int, count: int, times: Times) -> list[int]:
    """The next slots after a time, as many as there are of them."""
    found: list[int] = []
    at = next_slot(s, after, times)
    while at is not None and len(found) < count:
        found.append(at)
        at = next_slot(s, at, times)
    return found


# -- what people do ---------------------------------------------------------------------------------


def check(s: Schedule, times: Times) -> None:
    """What can be wrong with a schedule.

    Raises:
        InvalidInput: naming it.
    """
    if not s.schedule_id or len(s.schedule_id) > 200 or not s.schedule_id.isprintable() or " " in s.schedule_id:
        raise InvalidInput(f"{s.schedule_id!r} is not a valid id for a schedule", hint="up to 200 letters, digits and signs, no spaces: nightly-report")
    if bool(s.cron) == bool(s.every_us):
        raise InvalidInput("a schedule has either a cron line or an interval", hint="cron='0 9 * * MON-FRI' or every=timedelta(hours=1)")
    if s.every_us and not SECOND_US <= s.every_us <= LONGEST_US:
        raise InvalidInput("an interval is at least a second, and at most a hundred years", hint="every=timedelta(minutes=15)")
    if not 1 <= s.catch_up <= MAX_CATCH_UP:
        raise InvalidInput(f"catch_up is 1 to {MAX_CATCH_UP}, not {s.catch_up}", hint="to run no missed slots: missed='skip'")
    if not 0 <= s.grace_us <= LONGEST_US:
        raise InvalidInput("grace must be a length of time that is not negative, and at most a hundred years", hint="grace=timedelta(minutes=5)")
    times.zone(s.zone)
    if next_slot(s, s.created_at, times) is None:
        raise InvalidInput(f"the cron line {s.cron!r} names no time in the next 50 years", hint="look at its day and month")


def compare(old: Schedule, new: Schedule) -> tuple[str, ...]:
    """What a schedule says otherwise than another one."""
    return tuple(name for name in _SAID if getattr(old, name) != getattr(new, name))


def revise(old: Schedule | None, new: Schedule, now: int, actor: str, times: Times) -> Schedule:
    """How a schedule stands after somebody has asked for ``new``; it stays as it is if it says that already.

    What has fired is not forgotten. Another rule begins with its first slot after ``now``; else the slots that are due stay due.

    Raises:
        InvalidInput: what is wrong with it.
    """
    check(new, times)
    if old is None:
        return replace(new, due=next_slot(new, now, times), changes=(Change(now, actor, "added"),))
    differs = compare(old, new)
    if not differs:
        return old
    said = {name: getattr(new, name) for name in differs}
    s = _note(replace(old, error="", **said), now, actor, "changed " + ", ".join(differs))
    return _restart(s, now, times) if _RULE & set(differs) and not s.paused else s


def pause(s: Schedule, now: int, actor: str) -> Schedule:
    """It fires nothing until it is unpaused."""
    return s if s.paused else _note(replace(s, due=None, paused=True), now, actor, "paused")


def unpause(s: Schedule, now: int, actor: str, times: Times) -> Schedule:
    """It goes on with its first slot after ``now``: what passed meanwhile was not missed."""
    return _restart(_note(replace(s, paused=False), now, actor, "unpaused"), now, times) if s.paused else s


def _note(s: Schedule, now: int, actor: str, what: str) -> Schedule:
    return replace(s, changes=(*s.changes, Change(now, actor, what))[-MAX_CHANGES:])


def _restart(s: Schedule, now: int, times: Times) -> Schedule:
    """Due at its next slot; never before one that has fired, even if the clock was put back meanwhile (X-13)."""
    return replace(s, due=next_slot(s, now if s.last_slot is None else max(now, s.last_slot), times))


# -- what workers do --------------------------------------------------------------------------------


def firing(s: Schedule, now: int, times: Times) -> Firing:
    """What is next for a schedule whose slot has come: one slot at a time, oldest first.

    Of those more than ``grace_us`` late all but the newest ``catch_up`` are skipped, or all of them; the others fire.
    """
    bound = s.catch_up if s.missed is Missed.CATCH_UP else 0
    late: deque[int] = deque()
    at, passed, looked = s.due, 0, 0
    if s.every_us and at is not None and (many := (now - s.grace_us - at) // s.every_us) > bound:
        passed = many - bound  # an interval of a second has as many slots in a night as nobody wants to count
        at += passed * s.every_us
    while at is not None and now - at > s.grace_us and looked < LOOK:
        late.append(at)
        if len(late) > bound:
            late.popleft()
            passed += 1
        at = next_slot(s, at, times)
        looked += 1
    s = replace(s, skipped_missed=s.skipped_missed + passed)
    if looked == LOOK:
        return Firing(None, replace(s, due=late[0] if late else at))
    if late:
        slot = late.popleft()
        return Firing(slot, replace(s, due=late[0] if late else at))
    if at is not None and at <= now:
        return Firing(at, replace(s, due=next_slot(s, at, times)))
    return Firing(None, replace(s, due=at))


def fire(f: Firing, run_id: str) -> Schedule:
    """Where a schedule stands once the slot has its run."""
    assert f.slot is not None
    return replace(f.moved, last_slot=f.slot, last_run=run_id, fired=f.moved.fired + 1, error="")


def skip_overlap(f: Firing) -> Schedule:
    """Where it stands if the slot is skipped because the run before has not ended."""
    return replace(f.moved, skipped_overlap=f.moved.skipped_overlap + 1, error="")


def scope(s: Schedule) -> str:
    """Where the slots of a schedule are unique."""
    return f"{s.tenant_id}\x1f{s.schedule_id}"

"""Schedules: when a skill is started repeatedly (§10.15).

A schedule is a value that moves from slot to slot; a slot is an instant. This module decides, without I/O, which slot is next, which
slots were missed, and what happens to these; time zones and cron lines are read by the given ``Times``. If the hour of a cron line is
``*``, slots follow elapsed time when the clocks change. Any other line names times of the day, each with one slot a day: a time that
the change skips has its slot at the change, and a time that occurs twice has it the first time.
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
"""The most slots that one decision goes through: a worker that returns after a year handles the missed slots in parts."""
NICKNAMES = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_MINUTE = dt.timedelta(minutes=1)
_DAY = dt.timedelta(days=1)


class Missed(StrEnum):
    """What happens to slots that passed while no worker was running."""

    SKIP = "skip"
    CATCH_UP = "catch_up"


class Change(msgspec.Struct, frozen=True):
    """Who did what to a schedule, and when: microseconds since 1970. ``via``: the id of the access token (§16.2)."""

    at: int
    actor: str
    what: str
    via: str = ""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """What to start and when. Exactly one of ``cron`` and ``every_us`` is set; times are microseconds since 1970.

    ``due`` is the next slot, None while paused or if the cron line has no more; ``last_run`` is the run of the newest slot that fired. Without
    ``overlap`` a slot is skipped while that run has not ended. A slot that is more than ``grace_us`` late counts as missed, and
    ``catch_up`` limits how many missed slots are fired late. ``options`` are those of the runs' requests, ``changes`` the newest
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
    """A schedule changes from ``before``, which must be its stored state, to ``after``, in one commit with the run of its slot."""

    before: Schedule
    after: Schedule


class Firing(msgspec.Struct, frozen=True):
    """The next action of a due schedule: the slot to fire, or None if slots are only skipped, and the schedule after that."""

    slot: int | None
    moved: Schedule


class Times(Protocol):
    """The time zones and cron lines with which slots are computed."""

    def zone(self, name: str) -> dt.tzinfo:
        """Returns the rules of an IANA time zone.

        Raises:
            InvalidInput: the zone is not known on this machine.
        """

    def cron(self, line: str, after: dt.datetime) -> Iterator[dt.datetime]:
        """Yields the times of a cron line of five fields, strictly after ``after``: by elapsed time if that has a zone, else by the calendar alone.

        Raises:
            InvalidInput: it is not such a line.
        """


# -- slots ------------------------------------------------------------------------------------------


def fields(line: str) -> list[str]:
    """Returns the five fields of a cron line, or of the line that a nickname stands for.

    Raises:
        InvalidInput: the line has more or fewer fields.
    """
    found = NICKNAMES.get(line.strip().lower(), line).split()
    if len(found) != 5:
        hint = "five fields, minute hour day month weekday: '0 9 * * MON-FRI'; or " + ", ".join(NICKNAMES)
        raise InvalidInput(f"{line!r} is not a cron line: it has {len(found)} fields", hint=hint)
    return found


def next_slot(s: Schedule, after: int, times: Times) -> int | None:
    """Returns the first slot strictly after a time, or None if the cron line has no more."""
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
    """Returns the first slot by elapsed time. ``times.cron`` goes from an hour to the next in steps of sixty minutes. If the clock changes in between
    by other than whole hours, this may pass over a slot, so every minute is checked then."""
    if start.utcoffset() == found.utcoffset() and found - start <= _DAY:
        return found
    return next((t for t in times.cron(" ".join(["*", *line[1:]]), start) if t.minute == found.minute), found)


def _instant(found: dt.datetime, zone: dt.tzinfo) -> int:
    """Returns the instant of a calendar time: the first if the time occurs twice; if it is skipped, the instant at which the clock jumps over it."""
    if found.tzinfo is None:
        while not _exists(found, zone):
            found += _MINUTE
        found = found.replace(tzinfo=zone)
    return (found - _EPOCH) // _MICROSECOND


def _exists(local: dt.datetime, zone: dt.tzinfo) -> bool:
    return local.replace(tzinfo=zone).astimezone(dt.UTC).astimezone(zone).replace(tzinfo=None) == local


def preview(s: Schedule, after: int, count: int, times: Times) -> list[int]:
    """Returns the next slots after a time: ``count``, or fewer if there are no more."""
    found: list[int] = []
    at = next_slot(s, after, times)
    while at is not None and len(found) < count:
        found.append(at)
        at = next_slot(s, at, times)
    return found


# -- changes by people ------------------------------------------------------------------------------


def check(s: Schedule, times: Times) -> None:
    """Checks a schedule.

    Raises:
        InvalidInput: names what is wrong with it.
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
    """Returns the names of the declared fields in which two schedules differ."""
    return tuple(name for name in _SAID if getattr(old, name) != getattr(new, name))


def revise(old: Schedule | None, new: Schedule, now: int, actor: str, times: Times) -> Schedule:
    """Returns a schedule after a request for ``new``; it is unchanged if it says the same already.

    The record of fired slots is kept. A new rule begins with its first slot after ``now``; with the same rule, due slots stay due.

    Raises:
        InvalidInput: names what is wrong with ``new``.
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


def pause(s: Schedule, now: int, actor: str, via: str = "") -> Schedule:
    """Pauses a schedule: it fires nothing until it is unpaused."""
    return s if s.paused else _note(replace(s, due=None, paused=True), now, actor, "paused", via)


def unpause(s: Schedule, now: int, actor: str, times: Times, via: str = "") -> Schedule:
    """Unpauses a schedule: it continues with its first slot after ``now``. Slots that passed during the pause do not count as missed."""
    return _restart(_note(replace(s, paused=False), now, actor, "unpaused", via), now, times) if s.paused else s


def _note(s: Schedule, now: int, actor: str, what: str, via: str = "") -> Schedule:
    return replace(s, changes=(*s.changes, Change(now, actor, what, via))[-MAX_CHANGES:])


def _restart(s: Schedule, now: int, times: Times) -> Schedule:
    """Makes a schedule due at its next slot, which is never before a slot that has fired, even if the clock was set back since (X-13)."""
    return replace(s, due=next_slot(s, now if s.last_slot is None else max(now, s.last_slot), times))


# -- steps of workers -------------------------------------------------------------------------------


def firing(s: Schedule, now: int, times: Times) -> Firing:
    """Returns the next action of a schedule whose slot has come: one slot at a time, oldest first.

    Slots that are more than ``grace_us`` late are missed: all of them are skipped, or all but the newest ``catch_up``. The others fire.
    """
    bound = s.catch_up if s.missed is Missed.CATCH_UP else 0
    late: deque[int] = deque()
    at, passed, looked = s.due, 0, 0
    if s.every_us and at is not None and (many := (now - s.grace_us - at) // s.every_us) > bound:
        passed = many - bound  # slots of a short interval are too many to go through one by one
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
    """Returns the schedule after the slot got its run."""
    assert f.slot is not None
    return replace(f.moved, last_slot=f.slot, last_run=run_id, fired=f.moved.fired + 1, error="")


def skip_overlap(f: Firing) -> Schedule:
    """Returns the schedule after the slot was skipped because the run before has not ended."""
    return replace(f.moved, skipped_overlap=f.moved.skipped_overlap + 1, error="")


def scope(s: Schedule) -> str:
    """Returns the scope in which the slots of a schedule are unique."""
    return f"{s.tenant_id}\x1f{s.schedule_id}"

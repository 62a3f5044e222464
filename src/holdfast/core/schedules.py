"""Schedules: when a skill is to be started again and again (§10.15).

A schedule is a value that moves from slot to slot: ``next_slot`` says which comes after, pure; the slot's start is a request
key of the run it starts, so that no slot fires twice whoever fires it. A cron line is read in its own zone: a local time
that a change of the clocks skips has no slot, one that it repeats has one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from enum import StrEnum
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from holdfast.core.errors import InvalidInput

MAX_CATCH_UP = 1_000
_UTC = dt.UTC


class Missed(StrEnum):
    """What becomes of slots that passed while nobody was there to fire them."""

    SKIP = "skip"
    CATCH_UP = "catch_up"


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """When and what to start. Exactly one of ``cron`` and ``every_us`` is set; times are microseconds since 1970.

    ``due`` is the next slot, None while paused; ``last_run`` the run of the newest slot that fired. With ``overlap`` False a
    slot is skipped while that run has not ended. ``catch_up`` bounds how many missed slots are made up for.
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
    tenant_id: str = "default"
    queue: str = "default"
    created_at: int = 0
    due: int | None = None
    last_slot: int | None = None
    last_run: str | None = None
    skipped: int = 0


Cron = Callable[[str, dt.datetime], Iterator[dt.datetime]]


def check(s: Schedule, cron: Cron) -> Schedule:
    """The schedule with its first slot.

    Raises:
        InvalidInput: naming what is wrong with it.
    """
    if bool(s.cron) == bool(s.every_us):
        raise InvalidInput("a schedule has either a cron line or an interval", hint="cron='0 9 * * MON-FRI' or every=timedelta(hours=1)")
    if s.every_us < 0 or (s.every_us and s.every_us < 1_000_000):
        raise InvalidInput("an interval is at least a second")
    if not 0 <= s.catch_up <= MAX_CATCH_UP:
        raise InvalidInput(f"catch_up is 0 to {MAX_CATCH_UP}")
    try:
        ZoneInfo(s.zone)
    except (ZoneInfoNotFoundError, ValueError) as e:
        raise InvalidInput(f"{s.zone!r} is not an IANA time zone", hint="Europe/Berlin, America/New_York, UTC") from e
    return msgspec.structs.replace(s, due=next_slot(s, s.created_at, cron))


def next_slot(s: Schedule, after: int, cron: Cron) -> int | None:
    """The first slot strictly after a time; None if the cron line has no more."""
    if s.every_us:
        return s.created_at + ((after - s.created_at) // s.every_us + 1) * s.every_us
    zone = ZoneInfo(s.zone)
    start = dt.datetime.fromtimestamp(after / 1_000_000, _UTC).astimezone(zone)
    seen: set[tuple[int, ...]] = {tuple(start.timetuple()[:5])} if start.fold else set()
    for found in cron(s.cron, start):
        local = found.replace(tzinfo=zone) if found.tzinfo is None else found.astimezone(zone)
        at = int(local.timestamp() * 1_000_000)
        # The second of two equal local times is the same slot; one that does not exist comes back as another time.
        exists = local.astimezone(_UTC).astimezone(zone).replace(tzinfo=None) == local.replace(tzinfo=None)
        if at > after and exists and not (local.fold and tuple(local.timetuple()[:5]) in seen) and not _repeats(local):
            return at
    return None


def _repeats(local: dt.datetime) -> bool:
    """Whether this local time came by an hour ago already: clocks were put back in between."""
    return local.fold == 1 and local.replace(fold=0).utcoffset() != local.utcoffset()


class Due(msgspec.Struct, frozen=True):
    """What firing a schedule at some moment means: the slots to start, and where it stands afterwards."""

    slots: tuple[int, ...]
    moved: Schedule


def fire(s: Schedule, now: int, cron: Cron) -> Due:
    """The slots that are due now. Of several missed ones all but the newest ``catch_up`` are skipped and counted.

    A slot less than a minute late is not missed, only served by a busy worker.
    """
    slots: list[int] = []
    at, passed = s.due, 0
    while at is not None and at <= now:
        slots.append(at)
        if len(slots) > MAX_CATCH_UP:
            slots.pop(0)
            passed += 1
        at = next_slot(s, at, cron)
    if s.missed is Missed.SKIP:
        kept = [t for t in slots[-1:] if now - t < 60_000_000]
    else:
        kept = slots[-s.catch_up :] if s.catch_up else []
    skipped = passed + len(slots) - len(kept)
    return Due(tuple(kept), msgspec.structs.replace(s, due=at, last_slot=slots[-1] if slots else s.last_slot, skipped=s.skipped + skipped))


def slot_key(s: Schedule, slot: int) -> str:
    """The request key of the run that a slot starts: unique, so that none fires twice."""
    return f"schedule:{s.schedule_id}:{slot}"

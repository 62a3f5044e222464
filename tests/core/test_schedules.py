"""Schedules: which slots there are, also where the clocks change, and what becomes of those that were missed (§10.15)."""

from __future__ import annotations

import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.calendar import CALENDAR
from holdfast.core import schedules as sch
from holdfast.core.errors import InvalidInput
from holdfast.core.schedules import Change, Missed, Schedule

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
START = 1_700_000_000 * SECOND


def us(text: str, zone: str = "UTC", *, fold: int = 0) -> int:
    """``2026-03-29 02:30`` in a zone, as microseconds since 1970."""
    return int(dt.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()) * SECOND


def cron(line: str, zone: str = "UTC", **more: Any) -> Schedule:
    return Schedule(schedule_id="s", skill_id="skill", input=b"", cron=line, zone=zone, **more)


def every(length: int, **more: Any) -> Schedule:
    return Schedule(schedule_id="s", skill_id="skill", input=b"", every_us=length, created_at=START, **more)


def local(s: Schedule, after: str, count: int) -> list[str]:
    """The next slots as the clocks on the wall show them, with their offset from UTC."""
    zone = ZoneInfo(s.zone)
    found = sch.preview(s, us(after, s.zone), count, CALENDAR)
    return [dt.datetime.fromtimestamp(at / SECOND, dt.UTC).astimezone(zone).strftime("%d %H:%M %z") for at in found]


# -- where the clocks change ------------------------------------------------------------------------

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"
CHANGES = [
    # A time of the day that is skipped has its slot at the change; the next days are as ever.
    ("30 2 * * *", BERLIN, "2026-03-28 12:00", ["29 03:00 +0200", "30 02:30 +0200"]),
    ("30 2 * * *", NEW_YORK, "2026-03-07 12:00", ["08 03:00 -0400", "09 02:30 -0400"]),
    ("15 2 * * *", LORD_HOWE, "2026-10-03 12:00", ["04 02:30 +1100", "05 02:15 +1100"]),
    # Several skipped times are one slot, and a time at the change itself is the same one.
    ("0,30 2 * * *", BERLIN, "2026-03-28 12:00", ["29 03:00 +0200", "30 02:00 +0200", "30 02:30 +0200"]),
    ("0 2,3 * * *", BERLIN, "2026-03-28 12:00", ["29 03:00 +0200", "30 02:00 +0200", "30 03:00 +0200"]),
    ("0 */2 * * *", BERLIN, "2026-03-28 22:00", ["29 00:00 +0100", "29 03:00 +0200", "29 04:00 +0200"]),
    # One that comes twice has its slot the first time.
    ("30 2 * * *", BERLIN, "2026-10-24 12:00", ["25 02:30 +0200", "26 02:30 +0100"]),
    ("30 1 * * *", NEW_YORK, "2026-10-31 12:00", ["01 01:30 -0400", "02 01:30 -0500"]),
    ("45 1 * * *", LORD_HOWE, "2026-04-04 12:00", ["05 01:45 +1100", "06 01:45 +1030"]),
    ("*/30 2 * * *", BERLIN, "2026-10-24 12:00", ["25 02:00 +0200", "25 02:30 +0200", "26 02:00 +0100"]),
    ("0 */2 * * *", BERLIN, "2026-10-24 23:00", ["25 00:00 +0200", "25 02:00 +0200", "25 04:00 +0100"]),
    # Every hour goes on by elapsed time: no hour of 60 minutes is without, and none has two.
    ("0 * * * *", BERLIN, "2026-03-29 00:00", ["29 01:00 +0100", "29 03:00 +0200", "29 04:00 +0200"]),
    ("0 * * * *", BERLIN, "2026-10-25 00:30", ["25 01:00 +0200", "25 02:00 +0200", "25 02:00 +0100", "25 03:00 +0100"]),
    ("*/30 * * * *", NEW_YORK, "2026-11-01 00:45", ["01 01:00 -0400", "01 01:30 -0400", "01 01:00 -0500", "01 01:30 -0500", "01 02:00 -0500"]),
    ("*/15 * * * *", LORD_HOWE, "2026-04-05 01:30", ["05 01:45 +1100", "05 01:30 +1030", "05 01:45 +1030", "05 02:00 +1030"]),
    ("*/15 * * * *", LORD_HOWE, "2026-10-04 01:30", ["04 01:45 +1030", "04 02:30 +1100", "04 02:45 +1100"]),
    # Where midnight itself is skipped.
    ("0 0 * * *", "Africa/Cairo", "2026-04-23 12:00", ["24 01:00 +0300", "25 00:00 +0300"]),
    # No change at all.
    ("0 9 * * MON-FRI", BERLIN, "2026-11-20 08:00", ["20 09:00 +0100", "23 09:00 +0100"]),
]


@pytest.mark.parametrize(("line", "zone", "after", "slots"), CHANGES, ids=[f"{line} {zone} {after[:7]}" for line, zone, after, _ in CHANGES])
def test_each_slot_once_over_both_changes_of_the_clocks(line: str, zone: str, after: str, slots: list[str]) -> None:
    """§10.15, "cron over both daylight-saving changes: each slot once"."""
    assert local(cron(line, zone), after, len(slots)) == slots


def test_in_the_repeated_hour_a_slot_that_has_been_does_not_come_again() -> None:
    """§10.15: whoever asks within the second of two equal hours is not given the first one's slots, which have passed."""
    s = cron("30 2 * * *", BERLIN)
    within = us("2026-10-25 02:10", BERLIN, fold=1)
    assert sch.next_slot(s, within, CALENDAR) == us("2026-10-26 02:30", BERLIN)
    assert sch.next_slot(s, us("2026-10-25 02:10", BERLIN), CALENDAR) == us("2026-10-25 02:30", BERLIN)


@given(
    line=st.sampled_from(["30 2 * * *", "0 * * * *", "*/20 1-3 * * *", "15 */2 * * *", "0 0 1 * *", "45 23 * * SUN", "5 4 L * *"]),
    zone=st.sampled_from([BERLIN, NEW_YORK, LORD_HOWE, "UTC", "Asia/Kathmandu", "America/Santiago"]),
    begin=st.integers(0, 400 * DAY // SECOND).map(lambda s: us("2026-01-01") + s * SECOND),
    looks=st.lists(st.integers(0, 3 * HOUR), min_size=1, max_size=20),
)
def test_slots_do_not_depend_on_when_somebody_looks(line: str, zone: str, begin: int, looks: list[int]) -> None:
    """§10.15: from wherever one asks, the next slot is the first of the same sequence that is later: none lost, none twice, in order."""
    s = cron(line, zone)
    whole = sch.preview(s, begin, 30, CALENDAR)
    assert whole == sorted(set(whole)) and whole[0] > begin
    at = begin
    for step in looks:
        at += step
        if at < whole[-1]:
            assert sch.next_slot(s, at, CALENDAR) == next(t for t in whole if t > at)


CHANGES = [
    ("Asia/Pyongyang", "2018-05-04T15:00"), ("Asia/Pyongyang", "2015-08-14T15:00"), ("America/Caracas", "2016-05-01T07:00"), ("America/Caracas", "2007-12-09T07:00"),
    (LORD_HOWE, "2026-04-04T15:00"), (LORD_HOWE, "2026-10-03T15:30"), (BERLIN, "2026-03-29T01:00"), (BERLIN, "2026-10-25T01:00"), ("America/Sao_Paulo", "2018-11-04T03:00"),
    ("America/Havana", "2026-11-01T05:00"), ("Pacific/Apia", "2011-12-30T10:00"), ("Asia/Kathmandu", "1985-12-31T18:30"),
]


@pytest.mark.parametrize(("zone", "change"), CHANGES)
@pytest.mark.parametrize("minutes", ["0", "30", "45", "7", "0,30", "*/20", "5-5"])
@pytest.mark.parametrize("days", ["* * *", "1-31 * *", "* * 0-6"])
def test_every_hour_is_every_hour_that_passes(zone: str, change: str, minutes: str, days: str) -> None:
    """Whatever the clock is set by: each minute of the time that passes is looked at, and named or not by what the clock shows then."""
    named = {"0,30": {0, 30}, "*/20": {0, 20, 40}, "5-5": {5}}.get(minutes) or {int(minutes)}
    moment, local = dt.datetime.fromisoformat(f"{change}+00:00"), ZoneInfo(zone)
    for minute in range(-185, 0, 37):
        after = moment + dt.timedelta(minutes=minute)
        passing = [after + dt.timedelta(minutes=n) for n in range(1, 600)]
        slots = [int(t.timestamp()) * 1_000_000 for t in passing if t.astimezone(local).minute in named]
        assert sch.preview(cron(f"{minutes} * {days}", zone), int(after.timestamp()) * 1_000_000, len(slots), CALENDAR) == slots


def test_a_year_of_a_night_in_berlin() -> None:
    """§10.15: 02:30 is one slot a day; the skipped one at 03:00, the doubled one once."""
    at = sch.preview(cron("30 2 * * *", BERLIN), us("2026-01-01", BERLIN), 365, CALENDAR)
    local = [dt.datetime.fromtimestamp(t / SECOND, dt.UTC).astimezone(ZoneInfo(BERLIN)) for t in at]
    assert [t.date() for t in local] == [dt.date(2026, 1, 1) + dt.timedelta(days=n) for n in range(365)]
    assert {(t.hour, t.minute) for t in local} == {(2, 30), (3, 0)}
    assert [t.date() for t in local if t.hour == 3] == [dt.date(2026, 3, 29)]


# -- lines, zones, intervals ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("@hourly", "2026-01-01 01:00"), ("@daily", "2026-01-02 00:00"), ("@MIDNIGHT", "2026-01-02 00:00"), (" @weekly ", "2026-01-04 00:00"),
        ("@monthly", "2026-02-01 00:00"), ("@yearly", "2027-01-01 00:00"), ("@annually", "2027-01-01 00:00"), ("0  9\t* * *", "2026-01-01 09:00"),
    ],
)
def test_nicknames(line: str, first: str) -> None:
    assert sch.next_slot(cron(line), us("2026-01-01 00:00"), CALENDAR) == us(first)


@pytest.mark.parametrize("line", ["* * * *", "0 * * * * *", "@fortnightly", "61 * * * *", "0 0 30 2 *", "a b c d e", "0 0 * * MON#2/2"])
def test_what_is_no_cron_line_is_said_with_one_that_is(line: str) -> None:
    """Also lines over which cronsim itself stumbles."""
    with pytest.raises(InvalidInput, match="is not a cron line") as e:
        sch.check(cron(line), CALENDAR)
    assert "0 9 * * MON-FRI" in e.value.hint
    assert "five fields" in e.value.hint or e.value.code == "bad_cron"


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", "\0", "Europe"])
def test_an_unknown_zone_is_said(zone: str) -> None:
    with pytest.raises(InvalidInput) as e:
        sch.check(cron("0 9 * * *", zone), CALENDAR)
    assert e.value.code == "zone_unknown" and "Europe/Berlin" in e.value.hint
    with pytest.raises(InvalidInput):
        sch.check(replace(every(HOUR), zone=zone), CALENDAR)


class Never:
    """A calendar without any day."""

    def zone(self, name: str) -> dt.tzinfo:
        return dt.UTC

    def cron(self, line: str, after: dt.datetime) -> Any:
        return iter(())


def test_a_line_that_names_no_day_is_refused() -> None:
    with pytest.raises(InvalidInput, match="names no time"):
        sch.check(cron("0 0 1 1 *"), Never())
    assert sch.preview(cron("0 0 1 1 *"), START, 3, Never()) == []


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"schedule_id": ""}, "is not a valid id", "nightly"),
    ({"schedule_id": "two words"}, "is not a valid id", "no spaces"),
    ({"schedule_id": "a\nb"}, "is not a valid id", "nightly"),
    ({"schedule_id": "x" * 201}, "is not a valid id", "200"),
    ({"cron": "0 * * * *"}, "either a cron line or an interval", "every="),
    ({"every_us": 0}, "either a cron line or an interval", "cron="),
    ({"every_us": SECOND - 1}, "at least a second", "minutes=15"),
    ({"every_us": -1}, "at least a second", "minutes=15"),
    ({"every_us": sch.LONGEST_US + 1}, "a hundred years", "minutes=15"),
    ({"catch_up": 0}, "catch_up is 1 to 100, not 0", "missed='skip'"),
    ({"catch_up": 101}, "catch_up is 1 to 100, not 101", "missed='skip'"),
    ({"grace_us": -1}, "grace must be a length of time that is not negative", "minutes=5"),
    ({"grace_us": sch.LONGEST_US + 1}, "grace must be a length of time that is not negative", "minutes=5"),
]


@pytest.mark.parametrize(("wrong", "said", "hint"), WRONG, ids=[str(w[0])[:40] for w in WRONG])
def test_what_is_wrong_with_a_schedule_is_said_with_the_way_out(wrong: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(InvalidInput, match=said) as e:
        sch.check(replace(every(HOUR), **wrong), CALENDAR)
    assert hint in e.value.hint


@pytest.mark.parametrize("right", [{"every_us": SECOND}, {"every_us": sch.LONGEST_US}, {"catch_up": 1}, {"catch_up": 100}, {"grace_us": 0}, {"grace_us": sch.LONGEST_US}, {"schedule_id": "x" * 200}])
def test_the_bounds_themselves_are_right(right: dict[str, Any]) -> None:
    assert sch.LONGEST_US == 100 * 366 * DAY
    sch.check(replace(every(HOUR), **right), CALENDAR)


def test_an_interval_counts_from_when_it_was_made() -> None:
    """Strictly after, on the grid, also before its beginning (a clock that was put back, X-13)."""
    s = every(10 * MINUTE)
    assert sch.preview(s, START, 3, CALENDAR) == [START + 10 * MINUTE, START + 20 * MINUTE, START + 30 * MINUTE]
    assert sch.next_slot(s, START + 10 * MINUTE - 1, CALENDAR) == START + 10 * MINUTE
    assert sch.next_slot(s, START - MINUTE, CALENDAR) == START


def test_what_is_stored_when_nothing_is_said() -> None:
    """§1.8: a schedule kept by this release is read so by later ones, whatever they add."""
    told = msgspec.msgpack.encode({"schedule_id": "s", "skill_id": "skill", "input": b"", "missed": "catch_up"})
    s = msgspec.msgpack.decode(told, type=Schedule)
    assert (s.cron, s.every_us, s.zone, s.overlap, s.missed, s.catch_up, s.grace_us) == ("", 0, "UTC", False, Missed.CATCH_UP, 1, 60 * SECOND)
    assert (s.tenant_id, s.queue, s.options, s.created_at, s.due, s.paused) == ("default", "default", {}, 0, None, False)
    assert (s.last_slot, s.last_run, s.fired, s.skipped_missed, s.skipped_overlap, s.error, s.changes) == (None, None, 0, 0, 0, "", ())
    assert replace(s, missed=Missed("skip")) == Schedule(schedule_id="s", skill_id="skill", input=b"")


# -- adding, changing, pausing ----------------------------------------------------------------------


def added(s: Schedule, now: int = START) -> Schedule:
    return sch.revise(None, s, now, "ada", CALENDAR)


def test_a_new_schedule_is_due_at_its_first_slot() -> None:
    s = added(every(HOUR))
    assert s.due == START + HOUR and s.changes == (Change(START, "ada", "added"),)
    with pytest.raises(InvalidInput):
        added(every(1))


def test_the_same_again_changes_nothing() -> None:
    """What has happened to it meanwhile is no difference."""
    s = replace(added(every(HOUR)), fired=3, last_slot=START + HOUR, last_run="r", error="why", due=START + 2 * HOUR)
    assert sch.revise(s, replace(every(HOUR), created_at=START + 5), START + DAY, "bob", CALENDAR) is s


DIFFERENT: list[tuple[str, Any]] = [
    ("skill_id", "other"), ("input", b"x"), ("overlap", True), ("missed", Missed.CATCH_UP), ("catch_up", 7), ("grace_us", 5), ("tenant_id", "t"),
    ("queue", "q"), ("options", {"tags": ["a"]}),
]


@pytest.mark.parametrize(("name", "value"), DIFFERENT)
def test_a_change_keeps_what_is_due(name: str, value: Any) -> None:
    """Another input, say: a slot that has come and waits for a worker still fires, and what has fired is not forgotten."""
    s = replace(added(every(HOUR)), fired=3, last_slot=START + HOUR, last_run="r", error="why", due=START + 2 * HOUR)
    after = sch.revise(s, replace(every(HOUR), created_at=START + DAY, **{name: value}), START + DAY, "bob", CALENDAR)
    assert after == replace(s, error="", changes=(*s.changes, Change(START + DAY, "bob", f"changed {name}")), **{name: value})


def test_another_rule_begins_after_now() -> None:
    """§10.15: it makes up for nothing that it would have fired before it was there."""
    s = replace(added(every(HOUR)), due=START + HOUR)
    now = us("2026-03-28 12:00", BERLIN)
    after = sch.revise(s, cron("30 2 * * *", BERLIN), now, "bob", CALENDAR)
    assert (after.cron, after.every_us, after.zone) == ("30 2 * * *", 0, BERLIN)
    assert after.due == us("2026-03-29 03:00", BERLIN) and after.created_at == START
    assert after.changes[-1].what == "changed cron, every_us, zone"
    assert sch.revise(s, replace(every(2 * HOUR), created_at=now), START + 3 * HOUR, "bob", CALENDAR).due == START + 4 * HOUR
    assert sch.revise(s, replace(every(HOUR), zone=BERLIN), START + 3 * HOUR, "bob", CALENDAR).due == START + 4 * HOUR
    with pytest.raises(InvalidInput):
        sch.revise(s, cron("nonsense"), now, "bob", CALENDAR)
    line = sch.revise(after, cron("30 4 * * *", BERLIN), now, "bob", CALENDAR)
    assert (line.due, line.changes[-1].what) == (us("2026-03-29 04:30", BERLIN), "changed cron")
    assert sch.revise(line, cron("30 4 * * *", NEW_YORK), now, "bob", CALENDAR).due == us("2026-03-29 04:30", NEW_YORK)


def test_it_never_goes_back_before_what_has_fired() -> None:
    """X-13: the clock was put back by an hour; neither a change nor a pause makes a slot come a second time."""
    s = replace(added(every(10 * MINUTE)), last_slot=START + HOUR, due=START + HOUR + 10 * MINUTE)
    back = START + 5 * MINUTE
    assert sch.revise(s, every(5 * MINUTE), back, "bob", CALENDAR).due == START + HOUR + 5 * MINUTE
    assert sch.unpause(sch.pause(s, back, "bob"), back, "bob", CALENDAR).due == START + HOUR + 10 * MINUTE
    forth = START + 2 * HOUR
    assert sch.unpause(sch.pause(s, back, "bob"), forth, "bob", CALENDAR).due == START + 2 * HOUR + 10 * MINUTE


def test_pausing() -> None:
    s = added(every(HOUR))
    p = sch.pause(s, START + 5, "bob")
    assert (p.due, p.paused, p.changes[-1]) == (None, True, Change(START + 5, "bob", "paused"))
    assert sch.pause(p, START + 6, "eve") is p
    changed = sch.revise(p, every(2 * HOUR), START + 7, "bob", CALENDAR)
    assert (changed.due, changed.paused, changed.every_us) == (None, True, 2 * HOUR)
    u = sch.unpause(p, START + 10 * HOUR, "bob", CALENDAR)
    assert (u.due, u.paused, u.changes[-1].what) == (START + 11 * HOUR, False, "unpaused")
    assert sch.unpause(u, START + 20 * HOUR, "eve", CALENDAR) is u


def test_the_newest_changes_are_kept() -> None:
    s = added(every(HOUR))
    for n in range(30):
        s = sch.unpause(sch.pause(s, START + n, "bob"), START + n, "bob", CALENDAR)
    assert len(s.changes) == sch.MAX_CHANGES == 20 and s.changes[-1].at == START + 29 and s.changes[0].what == "paused"


# -- firing -----------------------------------------------------------------------------------------


def drained(s: Schedule, now: int) -> tuple[list[int], Schedule]:
    """Fires all that is due at a moment, as a worker does; gives the slots and where it stands then."""
    slots: list[int] = []
    for _ in range(10_000):
        if s.due is None or s.due > now:
            return slots, s
        f = sch.firing(s, now, CALENDAR)
        assert f.moved.due is None or f.moved.due > s.due, "it goes on"
        if f.slot is None:
            s = f.moved
        else:
            slots.append(f.slot)
            s = sch.fire(f, f"run-{f.slot}")
    raise AssertionError("it never comes to an end")


def test_a_slot_in_time_fires() -> None:
    s = added(every(HOUR, grace_us=MINUTE))
    for late in (0, 1, MINUTE):
        slots, after = drained(s, START + HOUR + late)
        assert slots == [START + HOUR]
        assert after == replace(s, due=START + 2 * HOUR, last_slot=START + HOUR, last_run=f"run-{START + HOUR}", fired=1)


def test_all_that_are_in_time_fire() -> None:
    """A worker that was busy for a while loses nothing: late by less than the grace is not missed."""
    s = added(every(10 * SECOND))
    slots, after = drained(s, START + 45 * SECOND)
    assert slots == [START + n * 10 * SECOND for n in (1, 2, 3, 4)] and after.skipped_missed == 0 and after.fired == 4


def test_what_was_missed_is_skipped_and_counted() -> None:
    s = added(every(HOUR))
    slots, after = drained(s, START + 5 * HOUR + 2 * MINUTE)
    assert slots == [] and (after.skipped_missed, after.fired, after.last_slot, after.due) == (5, 0, None, START + 6 * HOUR)
    slots, after = drained(s, START + 5 * HOUR + MINUTE)
    assert slots == [START + 5 * HOUR] and after.skipped_missed == 4
    assert drained(s, START + HOUR + MINUTE + 1)[0] == []


@pytest.mark.parametrize("bound", [1, 3, 10])
def test_the_newest_of_the_missed_are_made_up_for_oldest_first(bound: int) -> None:
    s = added(every(HOUR, missed=Missed.CATCH_UP, catch_up=bound))
    slots, after = drained(s, START + 5 * HOUR + 2 * MINUTE)
    assert slots == [START + n * HOUR for n in range(1, 6)][-bound:]
    assert after.skipped_missed == max(0, 5 - bound) and after.fired == min(5, bound) and after.due == START + 6 * HOUR


def test_what_is_made_up_for_does_not_take_the_place_of_what_is_in_time() -> None:
    s = added(every(10 * SECOND, missed=Missed.CATCH_UP, catch_up=2))
    now = START + 100 * SECOND
    slots, after = drained(s, now)
    assert slots == [START + n * 10 * SECOND for n in (2, 3, 4, 5, 6, 7, 8, 9, 10)]  # 1 to 3 are late by more than a minute
    assert after.skipped_missed == 1


def test_catching_up_over_a_change_of_the_clocks() -> None:
    s = replace(cron("30 2 * * *", BERLIN, missed=Missed.CATCH_UP, catch_up=10), due=us("2026-10-24 02:30", BERLIN))
    slots, _ = drained(s, us("2026-10-27 12:00", BERLIN))
    assert slots == [us(f"2026-10-{d} 02:30", BERLIN) for d in (24, 25, 26, 27)]


def test_a_night_of_seconds_is_skipped_at_once() -> None:
    """An interval of a second over ten years: counted, not walked through; its end is the same as for a short absence."""
    for missed, bound in ((Missed.SKIP, 0), (Missed.CATCH_UP, 100)):
        s = added(every(SECOND, missed=missed, catch_up=100, grace_us=0))
        now = START + 10 * 365 * DAY
        f = sch.firing(s, now, CALENDAR)
        # The slot of this very moment is in time, though the grace is nothing.
        assert f.moved.skipped_missed == 10 * 365 * DAY // SECOND - 1 - bound
        assert f.slot == now - bound * SECOND


def test_a_long_absence_is_gone_through_bit_by_bit() -> None:
    """A minute's cron line over two days is too much for one look: what is certainly skipped is counted, and it goes on from there."""
    for missed, bound in ((Missed.SKIP, 0), (Missed.CATCH_UP, 3)):
        s = replace(cron("* * * * *", missed=missed, catch_up=3), due=us("2026-01-01 00:00"))
        now = us("2026-01-03 00:00")
        f = sch.firing(s, now, CALENDAR)
        assert f.slot is None and f.moved.skipped_missed == sch.LOOK - bound
        assert f.moved.due == us("2026-01-01 00:00") + (sch.LOOK - bound) * MINUTE
        slots, after = drained(s, now)
        late, in_time = 2 * 24 * 60 - 1, 2
        assert len(slots) == in_time + bound and slots[-1] == now
        assert after.skipped_missed == late - bound and after.due == now + MINUTE


def test_as_many_as_one_look_takes_in() -> None:
    """At the bound itself: the rest is looked at the next time, and nothing is lost by it."""
    s = replace(cron("* * * * *"), due=us("2026-01-01 00:00"))
    f = sch.firing(s, us("2026-01-01 00:00") + (sch.LOOK + 1) * MINUTE, CALENDAR)
    assert f.slot is None and f.moved.due == us("2026-01-01 00:00") + sch.LOOK * MINUTE
    assert drained(s, us("2026-01-01 00:00") + (sch.LOOK + 1) * MINUTE)[0] == [us("2026-01-01 00:00") + n * MINUTE for n in (sch.LOOK, sch.LOOK + 1)]


def test_a_line_that_ends() -> None:
    class Twice(Never):
        def cron(self, line: str, after: dt.datetime) -> Any:
            return (t for n in (1, 2) if (t := dt.datetime(2026, 1, n, tzinfo=after.tzinfo)) > after)

    s = replace(cron("0 0 * * *"), due=us("2026-01-02 00:00"))
    f = sch.firing(s, us("2026-01-02 00:00"), Twice())
    assert (f.slot, f.moved.due) == (us("2026-01-02 00:00"), None)
    f = sch.firing(s, us("2026-01-03 00:00"), Twice())
    assert (f.slot, f.moved.due, f.moved.skipped_missed) == (None, None, 1)
    f = sch.firing(replace(s, missed=Missed.CATCH_UP), us("2026-01-03 00:00"), Twice())
    assert (f.slot, f.moved.due) == (us("2026-01-02 00:00"), None)
    assert sch.firing(replace(s, due=None), START, Twice()).slot is None
    assert sch.firing(replace(every(HOUR), due=None), START, Twice()).slot is None


def test_nothing_is_due_yet() -> None:
    s = added(every(HOUR))
    assert sch.firing(s, START + HOUR - 1, CALENDAR) == sch.Firing(None, s)


def test_an_overlapped_slot_is_counted_and_is_not_the_last_one() -> None:
    """§10.15: overlap skip. A success or a skip ends what stood in the way before."""
    s = replace(added(every(HOUR)), last_slot=1, last_run="r", error="why")
    f = sch.firing(s, START + HOUR, CALENDAR)
    after = sch.skip_overlap(f)
    assert after == replace(s, due=START + 2 * HOUR, skipped_overlap=1, error="")
    assert sch.fire(f, "new") == replace(s, due=START + 2 * HOUR, last_slot=START + HOUR, last_run="new", fired=1, error="")


def test_slots_are_unique_in_their_schedule() -> None:
    s = every(HOUR)
    scopes = {sch.scope(s), sch.scope(replace(s, schedule_id="t")), sch.scope(replace(s, tenant_id="t"))}
    assert len(scopes) == 3 and sch.scope(replace(s, every_us=1)) == sch.scope(s)


SLOTS: dict[str, list[int]] = {}


def slots_of(rule: Schedule, begin: int) -> list[int]:
    """More of them than the longest series of looks reaches; found once for each rule."""
    made = replace(rule, created_at=begin)
    if repr(made) not in SLOTS:
        SLOTS[repr(made)] = sch.preview(made, begin, 1_000, CALENDAR)
    return SLOTS[repr(made)]



@given(
    rule=st.sampled_from([cron("*/7 * * * *"), cron("30 2 * * *", BERLIN), cron("0 * * * *", BERLIN), cron("*/20 1-3 * * *", NEW_YORK), every(11 * MINUTE)]),
    polls=st.lists(st.integers(1, 3 * HOUR), min_size=1, max_size=25),
)
def test_each_slot_fires_exactly_once_whenever_somebody_looks(rule: Schedule, polls: list[int]) -> None:
    """§10.15: with a grace longer than any pause all slots fire, each once and in order; without one each is fired or counted as missed."""
    begin = us("2026-10-24 12:00", BERLIN)
    expected = slots_of(rule, begin)
    for grace in (4 * HOUR, MINUTE):
        s = sch.revise(None, replace(rule, created_at=begin, grace_us=grace), begin, "ada", CALENDAR)
        now, fired = begin, []
        for step in polls:
            now += step
            slots, s = drained(s, now)
            fired += slots
        passed = [t for t in expected if t <= now]
        assert fired == [t for t in passed if t in set(fired)], "in order, each once, and all of them slots"
        assert len(fired) + s.skipped_missed == len(passed)
        assert s.due == next(t for t in expected if t > now)
        assert grace == MINUTE or fired == passed

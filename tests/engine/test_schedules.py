"""Schedules at work: added, fired by workers, each slot once, whatever happens to workers and clocks (§10.15)."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import itertools
import pathlib
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from holdfast import Context, Graph, Runtime, State, UsageError, calendar, flow, register
from holdfast.core.errors import Conflict, InvalidInput, ScheduleNotFound, SkillUnknown, UnknownOption
from holdfast.core.schedules import Schedule
from holdfast.handle import EventView, when
from holdfast.ports import Store
from holdfast.stores import MemoryStore, SqliteStore, WorkspaceStore
from holdfast.testing import Fault, SimulatedCrash, VirtualClock, World
from holdfast.testing.crash import Plan, at_write, never
from holdfast.testing.world import Host
from holdfast.workers import sweeper, worker
from holdfast.workers.worker import Report
from tests.inside import forget_types, sweep
from tests.virtual import keep_in_virtual_time

MINUTE = dt.timedelta(minutes=1)
HOUR = dt.timedelta(hours=1)


class Report_(State):
    day: str = ""
    wait: bool = False


def report(id: str = "report", seen: list[Any] | None = None) -> Graph[Report_]:
    """Notes which slot it runs for; waits for a person if told to."""
    graph = Graph(id, Report_)

    @graph.node(start=True)
    async def write(state: Report_, ctx: Context) -> dict[str, str]:
        if state.wait:
            await ctx.approve("Go on?")
        if seen is not None:
            seen.append(ctx.scheduled_at)
        return {"day": str(ctx.scheduled_at)}

    return graph


async def slots(rt: Runtime) -> list[dt.datetime | None]:
    """The slots of all runs, in their order."""
    return sorted((r.scheduled_at for r in await rt.runs(limit=500)), key=str)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that look every so many seconds, so that a year does not take one."""
    monkeypatch.setattr(worker, "IDLE_SECONDS", 20.0)


def minutes(start: dt.datetime, *numbers: int) -> list[dt.datetime]:
    return [start + n * MINUTE for n in numbers]


# -- adding and changing ----------------------------------------------------------------------------


async def test_the_same_schedule_again_is_the_same() -> None:
    """§10.15, §3.5: what a program says at each of its starts adds nothing; something else under the same id changes it, on record."""
    graph = report()
    async with Runtime("memory:", skills=[graph]) as rt:
        first = await rt.schedule(graph, {"day": "x"}, cron="0 9 * * MON-FRI", zone="Europe/Berlin", tags=("a", "b"), actor="ada")
        assert await rt.schedule(graph, {"day": "x"}, cron="0 9 * * MON-FRI", zone="Europe/Berlin", tags=["a", "b"], actor="bob") == first
        other = await rt.schedule(graph, {"day": "y"}, cron="0 9 * * MON-FRI", zone="Europe/Berlin", tags=("a", "b"))
        assert other.id != first.id and first.id.startswith("report-")
        named = await rt.schedule(graph, id="nightly", every=HOUR)
        changed = await rt.schedule("report", {"day": "z"}, id="nightly", every=2 * HOUR, actor="bob", queue="slow")
        assert [s.id for s in await rt.schedules()] == [s.id for s in sorted((first, other, changed), key=lambda s: s.next_at or 0)]
    assert (changed.inputs, changed.every, changed.queue, changed.created_at) == ({"day": "z"}, 2 * HOUR, "slow", named.created_at)
    assert [(c.actor, c.what) for c in changed.changes] == [("operator", "added"), ("bob", "changed input, every_us, queue")]
    assert [(c.actor, c.what) for c in first.changes] == [("ada", "added")]
    assert (first.cron, first.every, first.zone, first.overlap, first.missed, first.error) == ("0 9 * * MON-FRI", None, "Europe/Berlin", "skip", "skip", None)
    assert (first.grace, first.paused, first.overdue, first.fired, first.options) == (MINUTE, False, False, 0, {"tags": ["a", "b"]})


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, InvalidInput, "either a cron line or an interval"),
    ({"cron": "0 * * * *", "every": HOUR}, InvalidInput, "either a cron line or an interval"),
    ({"cron": "", "every": None}, InvalidInput, "either a cron line or an interval"),
    ({"cron": "61 * * * *"}, InvalidInput, "is not a cron line"),
    ({"cron": "0 9 * * *", "zone": "Berlin"}, InvalidInput, "time zone"),
    ({"every": 0}, InvalidInput, "at least a second"),
    ({"every": 0.5}, InvalidInput, "at least a second"),
    ({"every": -5}, InvalidInput, "length of time"),
    ({"every": float("nan")}, InvalidInput, "length of time"),
    ({"every": float("inf")}, InvalidInput, "length of time"),
    ({"every": dt.timedelta.max}, InvalidInput, "hundred years"),
    ({"every": HOUR, "grace": -1}, InvalidInput, "length of time"),
    ({"every": HOUR, "overlap": "maybe"}, InvalidInput, "overlap is skip or allow"),
    ({"every": HOUR, "missed": "never"}, InvalidInput, "missed is skip or catch_up"),
    ({"every": HOUR, "missed": "catch_up", "catch_up": 0}, InvalidInput, "catch_up is a whole number from 1 to 100"),
    ({"every": HOUR, "id": ""}, InvalidInput, "is not a valid id for a schedule"),
    ({"every": HOUR, "id": "a b"}, InvalidInput, "is not a valid id for a schedule"),
    ({"every": HOUR, "inputs": {"nothing": 1}}, InvalidInput, "no input 'nothing'"),
    ({"every": HOUR, "key": "k"}, UnknownOption, "no option 'key'"),
    ({"every": HOUR, "parent_run_id": "r"}, UnknownOption, "no option 'parent_run_id'"),
    ({"every": HOUR, "priority": "high"}, InvalidInput, "priority is a whole number"),
]


@pytest.mark.parametrize(("given", "error", "said"), WRONG, ids=[str(w[0])[:50] for w in WRONG])
async def test_what_is_wrong_is_said_at_once(given: dict[str, Any], error: type[Exception], said: str) -> None:
    """Not in the night, by a worker: when it is scheduled, and nothing is kept."""
    async with Runtime("memory:", skills=[report()]) as rt:
        with pytest.raises(error, match=said):
            await rt.schedule("report", **given)
        assert await rt.schedules() == []
        with pytest.raises(SkillUnknown):
            await rt.schedule("another", every=HOUR)


async def test_without_cronsim_intervals_work_and_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calendar, "cronsim", None)
    async with Runtime("memory:", skills=[report()]) as rt:
        await rt.schedule("report", every=HOUR)
        with pytest.raises(UsageError, match="cronsim") as e:
            await rt.schedule("report", cron="0 9 * * *")
    assert "pip install 'holdfast[cron]'" in e.value.hint and e.value.code == "cron_missing"


async def test_an_id_that_is_not_there() -> None:
    """§7.10: nothing is done by guess."""
    async with Runtime("memory:", skills=[report()]) as rt:
        await rt.schedule("report", every=HOUR, id="there")
        for act in (rt.unschedule, rt.pause_schedule, rt.unpause_schedule, rt.trigger):
            for id in ("not", ""):
                with pytest.raises(ScheduleNotFound):
                    await act(id)
        await rt.unschedule("there")
        assert await rt.schedules() == []


async def test_a_schedule_that_others_keep_moving() -> None:
    """A change is decided again on what a worker made of the schedule meanwhile; it is not lost, and not written over it."""

    class Busy(MemoryStore):
        moves = 3

        async def put_schedule(self, schedule: Schedule, before: Schedule | None) -> bool:
            if before is not None and self.moves:
                self.moves -= 1
                self._schedules[before.schedule_id] = replace(before, fired=before.fired + 1)
                return False
            return await super().put_schedule(schedule, before)

    store = Busy()
    async with Runtime(store, skills=[report()]) as rt:
        await rt.schedule("report", every=HOUR, id="s")
        assert (await rt.pause_schedule("s")).fired == 3
        store.moves = 1_000
        with pytest.raises(Conflict, match="others keep changing"):
            await rt.unpause_schedule("s")


@dataclasses.dataclass(frozen=True)
class Place:
    city: str


async def test_listed_without_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """§14.3: a process that does not know the types of an input lists it as plain data."""

    class Trip(State):
        to: Any

    graph = Graph("trip", Trip)
    graph.node("only", start=True)(lambda state: None)
    register(Place)
    async with Runtime("memory:", skills=[graph]) as rt:
        made = await rt.schedule(graph, {"to": Place("Ulm")}, every=HOUR)
        assert made.inputs == {"to": Place("Ulm")}
        forget_types(monkeypatch)
        assert (await rt.schedules())[0].inputs == {"to": {"city": "Ulm"}}


# -- firing -----------------------------------------------------------------------------------------


def test_a_worker_fires_each_slot_once(holdfast_world: World, unhurried: None) -> None:
    """§10.15: and the run knows its slot, its schedule, and who submitted it."""
    seen: list[Any] = []

    async def story() -> None:
        graph = report(seen=seen)
        host = await holdfast_world.host(graph)
        s = await host.do(host.rt.schedule(graph, {"day": "x"}, every=10 * MINUTE, id="ten", tags=["daily"], priority=3, thread_id="t"))
        start = s.created_at
        host.start(host.rt.worker())
        await holdfast_world.clock.sleep(35 * 60)
        assert seen == minutes(start, 10, 20, 30)
        (s,) = await host.do(host.rt.schedules())
        assert (s.fired, s.skipped_missed, s.skipped_overlap, s.last_at, s.next_at) == (3, 0, 0, start + 30 * MINUTE, start + 40 * MINUTE)
        run = await host.do(host.rt.get(s.last_run))
        assert (run.schedule_id, run.scheduled_at, run.tags, run.priority, run.thread_id) == ("ten", start + 30 * MINUTE, ("daily",), 3, "t")
        first = (await host.do(events(host, run.run_id)))[0]
        assert (first.type, first.actor) == ("run.submitted", "schedule:ten")
        replayed = await host.do(host.rt.replay(run.run_id))
        assert replayed.scheduled_at == run.scheduled_at and replayed.state == run.state

    holdfast_world.run(story())


def test_it_fires_within_a_second(holdfast_world: World) -> None:
    """Also one that another process adds while the worker waits."""

    async def story() -> None:
        worker, other = await holdfast_world.host(report()), await holdfast_world.host(report())
        worker.start(worker.rt.worker())
        await holdfast_world.clock.sleep(100)
        s = await other.do(other.rt.schedule("report", every=7))
        await holdfast_world.clock.sleep(8)
        (run,) = await other.do(other.rt.runs())
        assert run.created_at - s.created_at <= dt.timedelta(seconds=8)

    holdfast_world.run(story())


def test_an_idle_sweeper_asks_twice_a_second(holdfast_world: World) -> None:
    """§10.16: a schedule far away costs a look now and then, and no write."""

    async def story() -> int:
        host = await holdfast_world.host(report())
        await host.do(host.rt.schedule("report", cron="0 0 1 1 *"))
        looks = 0
        inner = holdfast_world.store.schedules

        async def counted(due: int | None = None) -> list[Schedule]:
            nonlocal looks
            looks += 1
            return await inner(due)

        holdfast_world.store.schedules = counted  # type: ignore[method-assign]
        host.start(host.rt.worker())
        await holdfast_world.clock.sleep(60)
        assert host.connection.writes.count("put_schedule") == 1
        return looks

    assert 60 <= holdfast_world.run(story()) <= 130


async def events(host: Host, run_id: str) -> list[EventView]:
    return list(await host.rt.events(run_id))


async def fired_by(rt: Runtime, **options: Any) -> list[Report]:
    reports: list[Report] = []
    await rt.worker(until_idle=True, on_report=reports.append, **options)
    return reports


def test_only_workers_fire(holdfast_world: World) -> None:
    """Whoever runs something else, or recovers, starts nothing that was not asked for."""

    async def story() -> None:
        graph = report()
        host = await holdfast_world.host(graph)
        await host.do(host.rt.schedule(graph, every=MINUTE))
        holdfast_world.clock.advance(90)
        await host.do(host.rt.invoke(graph))
        await host.do(host.rt.recover())
        assert len(await host.do(host.rt.runs())) == 1
        await host.do(fired_by(host.rt))
        assert len(await host.do(host.rt.runs())) == 2

    holdfast_world.run(story())


def test_a_schedule_of_another_skill_or_queue_is_left_to_another_worker(holdfast_world: World) -> None:
    """§10.11: and until one is there, it stands as overdue."""

    async def story() -> None:
        one, two = report("one"), report("two")
        both, host = await holdfast_world.host(one, two), await holdfast_world.host(one)
        for skill, queue in (("one", "default"), ("two", "default"), ("one", "slow")):
            await both.do(both.rt.schedule(skill, every=HOUR, queue=queue, grace=HOUR, id=f"{skill}-{queue}"))
        holdfast_world.clock.advance(3601)
        await host.do(fired_by(host.rt))
        assert [(r.skill_id, r.queue) for r in await host.do(host.rt.runs())] == [("one", "default")]
        await host.do(fired_by(host.rt, queues=("slow",)))
        assert [(r.skill_id, r.queue) for r in await host.do(host.rt.runs())] == [("one", "slow"), ("one", "default")]
        holdfast_world.clock.advance(3600)
        assert [s.id for s in await host.do(host.rt.schedules()) if s.overdue] == ["two-default"]
        await both.do(fired_by(both.rt))
        assert [s.id for s in await host.do(host.rt.schedules()) if s.overdue] == []

    holdfast_world.run(story())


def test_a_slot_is_skipped_while_the_run_before_has_not_ended(holdfast_world: World, unhurried: None) -> None:
    """§10.15: it waits for a person, say; the slots meanwhile are counted, and the first after its end fires."""

    async def story() -> None:
        graph = report()
        host = await holdfast_world.host(graph)
        skip = await host.do(host.rt.schedule(graph, {"wait": True}, every=10 * MINUTE, id="skip"))
        await host.do(host.rt.schedule(graph, {"wait": True}, every=10 * MINUTE, id="allow", overlap="allow"))
        host.start(host.rt.worker())
        await holdfast_world.clock.sleep(45 * 60)
        by = {s.id: s for s in await host.do(host.rt.schedules())}
        assert (by["skip"].fired, by["skip"].skipped_overlap, by["skip"].last_at) == (1, 3, skip.created_at + 10 * MINUTE)
        assert (by["allow"].fired, by["allow"].skipped_overlap) == (4, 0)
        run_id = by["skip"].last_run
        assert run_id is not None
        await host.do(host.rt.decide(run_id, "approve"))
        await holdfast_world.clock.sleep(10 * 60)
        by = {s.id: s for s in await host.do(host.rt.schedules())}
        assert (by["skip"].fired, by["skip"].skipped_overlap, by["skip"].last_at) == (2, 3, skip.created_at + 50 * MINUTE)

    holdfast_world.run(story())


def test_a_run_that_failed_or_is_gone_holds_nothing_up(holdfast_world: World, unhurried: None) -> None:
    graph = Graph("fails", State)

    @graph.node(start=True)
    async def fail(state: State) -> None:
        raise ValueError("no")

    async def story() -> None:
        host = await holdfast_world.host(graph)
        await host.do(host.rt.schedule(graph, every=10 * MINUTE))
        host.start(host.rt.worker())
        await holdfast_world.clock.sleep(15 * 60)
        assert len((await host.do(host.rt.prune(dt.timedelta(minutes=1)))).run_ids) == 1
        await holdfast_world.clock.sleep(20 * 60)
        (s,) = await host.do(host.rt.schedules())
        assert (s.fired, s.skipped_overlap) == (3, 0)

    holdfast_world.run(story())


@pytest.mark.parametrize(("missed", "bound", "made_up"), [("skip", 1, []), ("catch_up", 1, [5]), ("catch-up", 3, [3, 4, 5])])
def test_after_a_night_without_workers(holdfast_world: World, missed: str, bound: int, made_up: list[int]) -> None:
    """§10.15: missed-run policy skip or bounded catch-up; what was skipped is counted."""

    async def story() -> None:
        graph = report()
        host = await holdfast_world.host(graph)
        s = await host.do(host.rt.schedule(graph, every=HOUR, missed=missed, catch_up=bound, overlap="allow"))
        holdfast_world.clock.advance(5.5 * 3600)
        await host.do(fired_by(host.rt))
        assert await slots(host.rt) == [s.created_at + n * HOUR for n in made_up]
        (after,) = await host.do(host.rt.schedules())
        assert (after.fired, after.skipped_missed, after.next_at) == (len(made_up), 5 - len(made_up), s.created_at + 6 * HOUR)

    holdfast_world.run(story())


def test_what_is_caught_up_with_on_one_thread_takes_its_turns(holdfast_world: World) -> None:
    """§10.8: with a thread of its own and overlap allowed, the runs queue up in the order of their slots instead of running at once."""
    seen: list[Any] = []

    async def story() -> None:
        graph = report(seen=seen)
        host = await holdfast_world.host(graph)
        s = await host.do(host.rt.schedule(graph, every=HOUR, missed="catch_up", catch_up=4, overlap="allow", thread_id="books"))
        holdfast_world.clock.advance(4.5 * 3600)
        await host.do(fired_by(host.rt))
        assert seen == [s.created_at + n * HOUR for n in (1, 2, 3, 4)]
        queued = [r.record for r in await host.do(host.rt.runs(thread_id="books"))]
        assert all(r.status == "completed" for r in queued)

    holdfast_world.run(story())


def test_paused_it_does_not_fire_and_makes_up_for_nothing(holdfast_world: World, unhurried: None) -> None:
    async def story() -> None:
        graph = report()
        host = await holdfast_world.host(graph)
        s = await host.do(host.rt.schedule(graph, every=10 * MINUTE, id="s", missed="catch_up", catch_up=100))
        host.start(host.rt.worker())
        await holdfast_world.clock.sleep(11 * 60)
        paused = await host.do(host.rt.pause_schedule("s", actor="ada"))
        assert (paused.paused, paused.next_at) == (True, None)
        await holdfast_world.clock.sleep(100 * 60)
        await host.do(host.rt.unpause_schedule("s", actor="bob"))
        await holdfast_world.clock.sleep(10 * 60)
        assert await slots(host.rt) == minutes(s.created_at, 10, 120)
        (s,) = await host.do(host.rt.schedules())
        assert [c.actor for c in s.changes] == ["operator", "ada", "bob"] and s.skipped_missed == 0

    holdfast_world.run(story())


def test_triggered_it_runs_now_and_its_slots_stay_as_they_are(holdfast_world: World) -> None:
    async def story() -> None:
        graph = report()
        host = await holdfast_world.host(graph)
        s = await host.do(host.rt.schedule(graph, {"day": "x"}, every=HOUR, id="s", tags=["a"]))
        run = await host.do(host.rt.trigger("s", key="once"))
        again = await host.do(host.rt.trigger("s", key="once"))
        assert again.deduplicated and again.run_id == run.run_id
        assert (run.schedule_id, run.scheduled_at, run.tags, run.status) == ("s", None, ("a",), "pending")
        assert await host.do(host.rt.schedules()) == [s]

    holdfast_world.run(story())


def test_a_flow_is_scheduled_too(holdfast_world: World) -> None:
    @flow("greet")
    async def greet(ctx: Context, name: str) -> str:
        return f"{name} {ctx.scheduled_at:%H:%M}"

    async def story() -> None:
        host = await holdfast_world.host(greet)
        s = await host.do(host.rt.schedule(greet, {"name": "Ada"}, cron="30 2 * * *", zone="Europe/Berlin", grace=HOUR))
        with pytest.raises(InvalidInput, match="needs 'name'"):
            await host.do(host.rt.schedule(greet, cron="30 2 * * *"))
        assert s.next_at is not None
        holdfast_world.clock.advance((s.next_at - s.created_at).total_seconds())
        await host.do(fired_by(host.rt))
        (run,) = await host.do(host.rt.runs())
        assert (await host.do(host.rt.get(run.run_id))).result == "Ada 01:30"

    holdfast_world.run(story())


@pytest.mark.parametrize(("first", "days", "odd"), [(dt.date(2026, 3, 24), 10, dt.date(2026, 3, 29)), (dt.date(2026, 10, 20), 10, None)])
def test_daylight_saving_in_a_worker(first: dt.date, days: int, odd: dt.date | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """§10.15: 02:30 in Berlin is one run a day around both changes; the skipped one at 03:00, the doubled one once. tests/core/test_schedules.py has a whole year of it."""

    world = World(lease=1e9)
    world.clock.advance((first - dt.date(2026, 1, 1)).days * 86_400)

    async def story() -> None:
        graph = report()
        host = await world.host(graph)
        await host.do(host.rt.schedule(graph, cron="30 2 * * *", zone="Europe/Berlin", grace=HOUR))
        host.start(host.rt.worker(dispatch=False))  # nothing is sent, and days of looking twice a second would be long
        await world.clock.sleep(days * 86_400)
        found = [s for s in await slots(host.rt) if s is not None]
        local = [s.astimezone(ZoneInfo("Europe/Berlin")) for s in found]
        assert [s.date() for s in local] == [first + dt.timedelta(days=n) for n in range(days)]
        assert [(s.hour, s.minute) for s in local] == [(3, 0) if s.date() == odd else (2, 30) for s in local]

    monkeypatch.setattr(worker, "IDLE_SECONDS", 1800.0)
    world.run(story())


# -- what goes wrong --------------------------------------------------------------------------------


def test_what_is_wrong_with_one_schedule_stops_no_other(holdfast_world: World) -> None:
    """X-14: told once a minute, on record for everybody, not in a circle; and once it is mended, it fires."""

    class Narrow(State):
        other: str

    async def story() -> None:
        old, sound = report(), report("sound")
        narrow = Graph("report", Narrow)
        narrow.node("only", start=True)(lambda state: None)
        maker, host = await holdfast_world.host(old, sound), await holdfast_world.host(narrow, sound)
        await maker.do(maker.rt.schedule(old, {"day": "x"}, every=HOUR, id="broken", grace=HOUR))
        await maker.do(maker.rt.schedule(sound, every=HOUR, id="sound", grace=HOUR))
        holdfast_world.clock.advance(3601)
        told: list[Report] = []
        worker = host.start(host.rt.worker(on_report=told.append))
        await holdfast_world.clock.sleep(150)
        assert not worker.done()
        wrong = [r for r in told if r.schedule_id is not None]
        assert {r.schedule_id for r in wrong} == {"broken"} and len(wrong) == 3
        assert all(isinstance(r.error, InvalidInput) and r.run is None for r in wrong)
        by = {s.id: s for s in await maker.do(maker.rt.schedules())}
        assert by["sound"].fired == 1 and by["sound"].error is None
        assert (by["broken"].fired, by["broken"].next_at) == (0, by["broken"].created_at + HOUR)
        assert by["broken"].error is not None and "no input 'day'" in by["broken"].error
        assert host.connection.writes.count("put_schedule") == 1, "the same error is written once"
        await maker.do(fired_by(maker.rt))
        by = {s.id: s for s in await maker.do(maker.rt.schedules())}
        assert (by["broken"].fired, by["broken"].error) == (1, None)

    holdfast_world.run(story())


def test_an_error_that_nobody_foresaw(holdfast_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """X-14: it has its name on the schedule."""

    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("by zero")

    async def story() -> None:
        host = await holdfast_world.host(report())
        await host.do(host.rt.schedule("report", every=MINUTE))
        holdfast_world.clock.advance(60)
        with monkeypatch.context() as m:
            m.setattr(sweeper, "birth_of", broken)
            (told,) = await host.do(fired_by(host.rt))
        assert isinstance(told.error, ZeroDivisionError)
        (s,) = await host.do(host.rt.schedules())
        assert s.error == "ZeroDivisionError: by zero"

    holdfast_world.run(story())


# -- crashes, races, clocks -------------------------------------------------------------------------

Maker = Callable[[VirtualClock], Store]


@pytest.fixture(params=["memory", "sqlite", "workspace"])
def maker(request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    keep_in_virtual_time(monkeypatch)
    names = itertools.count()
    if request.param == "memory":
        return lambda clock: MemoryStore(now=clock.now)
    if request.param == "workspace":
        return lambda clock: WorkspaceStore(tmp_path / f"{next(names)}", now=clock.now)
    return lambda clock: SqliteStore(tmp_path / f"{next(names)}.db", now=clock.now)


RULES: dict[str, dict[str, Any]] = {
    "a": {"every": 20, "overlap": "allow"}, "b": {"cron": "* * * * *"}, "c": {"every": 30, "missed": "catch_up", "catch_up": 10, "grace": 1},
    "asks": {"every": 30, "inputs": {"wait": True}},
}
EXPECTED = {"a": [20, 40, 60], "b": [60], "c": [30, 60], "asks": [30]}


def minute(maker: Maker, plan: Plan) -> tuple[Host, dict[str, list[int]], dict[str, tuple[int, int, int]]]:
    """Four schedules, and workers for a minute, of which the first may die at a write. Gives that one; the slots that ran, by schedule,
    in seconds; and what the schedules count: fired, missed, overlapped."""
    clock = VirtualClock()
    world = World(maker(clock), clock=clock)

    async def story() -> tuple[Host, dict[str, list[int]], dict[str, tuple[int, int, int]]]:
        await world.store.open()
        graph = report()
        setup = await world.host(graph)
        for id, rule in RULES.items():
            await setup.do(setup.rt.schedule(graph, id=id, **rule))
        first = await world.host(graph, plan=plan)
        work = first.start(first.rt.worker())
        while clock.elapsed < 65 and not work.done() and not first.dead:
            await clock.sleep(5)
        if not first.dead:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await first.close()
        second = await world.host(graph)
        while clock.elapsed < 65:
            await second.do(fired_by(second.rt))
            await clock.sleep(5)
        await second.do(fired_by(second.rt))
        await world.assert_whole()
        ran: dict[str, list[int]] = {id: [] for id in RULES}
        for run in await second.do(second.rt.runs(limit=500)):
            assert run.schedule_id is not None and run.scheduled_at is not None
            assert run.status == ("waiting_for_human" if run.schedule_id == "asks" else "completed")
            ran[run.schedule_id].append(int((run.scheduled_at - when(clock.start_us)).total_seconds()))
        counted = {s.id: (s.fired, s.skipped_missed, s.skipped_overlap) for s in await second.do(second.rt.schedules())}
        await second.close()
        await world.store.close()
        return first, {id: sorted(found) for id, found in ran.items()}, counted

    return world.run(story())


def test_a_crash_at_any_write_of_a_worker_loses_no_slot_and_fires_none_twice(maker: Maker) -> None:
    """§10.15, "kill -9 inside the sweeper: nothing lost, nothing twice": before and after each write."""
    whole, ran, counted = minute(maker, never)
    assert ran == EXPECTED, "the uncrashed world does the work"
    assert counted == {"a": (3, 0, 0), "b": (1, 0, 0), "c": (2, 0, 0), "asks": (1, 0, 1)}
    moves = moving(whole)
    assert [verb for _, verb in moves].count("commit") == 7 and [verb for _, verb in moves].count("put_schedule") == 1
    for number, verb in moves:
        for fault in (Fault.BEFORE, Fault.AFTER):
            first, ran, again = minute(maker, at_write(number, fault))
            assert first.dead
            assert (ran, again) == (EXPECTED, counted), (number, verb, fault)


def moving(host: Host) -> list[tuple[int, str]]:
    """The writes of a host that moved a schedule on, by number."""
    applied = iter(commit for _, commit in host.world.order)
    return [(n, verb) for n, verb in enumerate(host.connection.writes, 1) if verb == "put_schedule" or (verb == "commit" and next(applied).moves)]


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.APPLIED])
def test_a_store_that_fails_at_a_slot(fault: Fault) -> None:
    """X-09, X-14: the worker is told that the write failed; whether it was applied or not, the slot has one run."""
    memory: Maker = lambda clock: MemoryStore(now=clock.now)  # noqa: E731
    whole, _, counted = minute(memory, never)
    for number, verb in moving(whole):
        assert minute(memory, at_write(number, fault))[1:] == (EXPECTED, counted), (number, verb)


def test_three_workers_at_once(holdfast_world: World) -> None:
    """§10.15: many seeds of an interleaving, and each slot has one run."""
    for seed in range(8):
        world = World(seed=seed)

        async def story(world: World = world) -> None:
            graph = report()
            pause = lambda: world.clock.sleep(world.rng.random() / 50)  # noqa: E731
            hosts = [await world.host(graph, pause=pause) for _ in range(3)]
            made = [await hosts[0].do(hosts[0].rt.schedule(graph, every=MINUTE, id=f"s{n}", overlap="allow")) for n in range(4)]
            for host in hosts:
                host.start(host.rt.worker())
            await world.clock.sleep(5 * 60 + 30)
            for s in made:
                ran = sorted(r.scheduled_at for r in await hosts[0].do(hosts[0].rt.runs(limit=500)) if r.schedule_id == s.id)
                assert ran == minutes(s.created_at, 1, 2, 3, 4, 5)
            await world.assert_whole()

        world.run(story(), seed=seed)


def test_a_worker_that_slept_for_days_at_the_worst_moment(holdfast_world: World) -> None:
    """§10.15: it has read the schedule, and fires it after others did, long after any request key has expired."""

    async def story() -> None:
        graph = report()
        held, go = asyncio.Event(), asyncio.Event()

        async def pause() -> None:
            if slow.connection.writes[-1] == "commit":
                held.set()
                await go.wait()

        quick = await holdfast_world.host(graph)
        s = await quick.do(quick.rt.schedule(graph, every=HOUR, id="s", grace=HOUR))
        slow = await holdfast_world.host(graph, pause=pause)
        holdfast_world.clock.advance(3601)
        work = slow.start(sweep(slow.rt))
        await held.wait()
        await quick.do(fired_by(quick.rt))
        holdfast_world.clock.advance(3 * 86_400)
        go.set()
        assert await work is False
        assert await slots(quick.rt) == [s.created_at + HOUR]

    holdfast_world.run(story())


def test_a_slot_that_has_its_run_already(holdfast_world: World) -> None:
    """The slot is a unique key: removed and made anew under the same id, with a clock that was put back, it does not fire again."""

    async def story() -> None:
        graph = report()
        host = await holdfast_world.host(graph)
        s = await host.do(host.rt.schedule(graph, cron="0 * * * *", id="s"))
        holdfast_world.clock.advance(3601)
        await host.do(fired_by(host.rt))
        (before,) = await host.do(host.rt.schedules())
        await host.do(host.rt.unschedule("s"))
        holdfast_world.clock.jump(-1800)
        await host.do(host.rt.schedule(graph, cron="0 * * * *", id="s"))
        holdfast_world.clock.advance(1801)
        await host.do(fired_by(host.rt))
        assert await slots(host.rt) == [s.next_at]
        (after,) = await host.do(host.rt.schedules())
        assert (after.last_run, after.last_at, after.fired) == (before.last_run, before.last_at, 1)
        assert after.next_at == before.next_at

    holdfast_world.run(story())


@pytest.mark.parametrize("hours", [1, -1])
@pytest.mark.parametrize("at", [5, 25, 59])
def test_a_clock_that_jumps_fires_nothing_twice(holdfast_world: World, unhurried: None, hours: int, at: int) -> None:
    """X-13: the wall clock jumps an hour either way, and back an hour later. Whatever it shows, a slot has one run at most; slots
    that the jump passed over are missed, counted and, by ``catch_up``, made up for; and none begins before its time."""

    async def story() -> None:
        clock, graph = holdfast_world.clock, report()
        host = await holdfast_world.host(graph)
        skip = await host.do(host.rt.schedule(graph, every=10 * MINUTE, id="skip", overlap="allow"))
        await host.do(host.rt.schedule(graph, every=10 * MINUTE, id="make-up", missed="catch_up", catch_up=50, overlap="allow"))
        host.start(host.rt.worker())
        await clock.sleep(at * 60)
        clock.jump(hours * 3600)
        await clock.sleep(3600)
        clock.jump(-hours * 3600)
        await clock.sleep(3600)
        runs = await host.do(host.rt.runs(limit=500))
        for run in runs:
            assert run.scheduled_at <= run.created_at, "early"
        for s in await host.do(host.rt.schedules()):
            ran = [r.scheduled_at for r in runs if r.schedule_id == s.id]
            assert len(ran) == len(set(ran)) == s.fired, "twice"
            last = max(ran)
            every = {skip.created_at + n * 10 * MINUTE for n in range(1, 100)}
            passed = {t for t in every if t <= last}
            assert set(ran) <= passed and len(passed) - len(ran) == s.skipped_missed
            assert s.id == "skip" or set(ran) == passed, "lost"
            assert when(clock.now()) - last <= 11 * MINUTE, "stood still"

    holdfast_world.run(story())


async def test_a_workspace_keeps_schedules_in_a_file(tmp_path: pathlib.Path) -> None:
    """§12.5: another process finds them; a look writes nothing; and one damaged is named, not ignored."""
    url = f"workspace:{tmp_path / 'runs'}"
    async with Runtime(url, skills=[report()]) as rt:
        made = await rt.schedule("report", {"day": "x"}, every=HOUR, id="s")
        await rt.schedule("report", every=HOUR, id="gone")
        await rt.unschedule("gone")
    async with Runtime(url) as rt:
        assert await rt.schedules() == [made]
    async with Runtime(url) as reader, Runtime(url, skills=[report()]) as writer:
        await writer.pause_schedule("s")
        assert (await reader.schedules())[0].paused
        await writer.unpause_schedule("s")
        there = await reader.store.schedule("s")
        assert there is not None and not there.paused and await reader.store.schedule("gone") is None
    file = tmp_path / "runs" / "schedules.json"
    assert '"schedule_id": "s"' in file.read_text()
    file.write_text("[{")
    async with Runtime(url) as rt:  # a damaged file closes nothing else (§3.6)
        (problem,) = await rt.check()
        assert problem.code == "schedule_record_altered" and "schedules.json' is damaged: its checksum does not match" in problem.message and "schedule it again" in problem.repair_hint


async def test_a_workspace_that_dies_between_the_run_and_the_file(tmp_path: pathlib.Path) -> None:
    """§10.15: there the move is no part of the append; the slot's key says that it has fired."""
    clock = VirtualClock()
    url = tmp_path / "runs"

    class Torn(WorkspaceStore):
        def _agenda(self, schedules: dict[str, Schedule]) -> None:
            if any(s.fired for s in schedules.values()):
                raise SimulatedCrash
            super()._agenda(schedules)

    async with Runtime(Torn(url, now=clock.now), skills=[report()], clock=clock) as rt:
        made = await rt.schedule("report", every=HOUR, id="s", grace=HOUR)
        clock.advance(3601)
        with pytest.raises(SimulatedCrash):
            await sweep(rt)
    clock.advance(30 * 60)
    async with Runtime(WorkspaceStore(url, now=clock.now), skills=[report()], clock=clock) as rt:
        assert (await rt.schedules())[0].fired == 0, "the file was left behind"
        await rt.worker(until_idle=True)
        assert await slots(rt) == [made.created_at + HOUR]
        (s,) = await rt.schedules()
        assert (s.fired, s.last_run) == (1, (await rt.runs())[0].run_id)


# -- a run at a time --------------------------------------------------------------------------------


def test_submitted_for_later(holdfast_world: World, unhurried: None) -> None:
    """§10.15: ``at`` and ``delay``: pending until then, and not a moment longer than a worker needs."""

    async def story() -> None:
        clock, graph = holdfast_world.clock, report()
        host = await holdfast_world.host(graph)
        now = when(clock.now())
        runs = {
            "at": await host.do(host.rt.submit(graph, at=(now + HOUR).astimezone(dt.timezone(dt.timedelta(hours=5)))),),
            "delay": await host.do(host.rt.submit(graph, delay=90 * MINUTE)),
            "seconds": await host.do(host.rt.submit(graph, delay=7200.0)),
            "past": await host.do(host.rt.submit(graph, at=now - HOUR)),
            "none": await host.do(host.rt.submit(graph, delay=0)),
        }
        assert {n: r.not_before for n, r in runs.items()} == {
            "at": now + HOUR, "delay": now + 90 * MINUTE, "seconds": now + 2 * HOUR, "past": now - HOUR, "none": now,
        }
        host.start(host.rt.worker())
        done: dict[str, float] = {}
        for minute in range(125):
            for name, run in runs.items():
                if name not in done and (await host.do(host.rt.get(run.run_id))).status == "completed":
                    done[name] = minute
            await clock.sleep(60)
        assert done["past"] <= 1 and done["none"] <= 1
        assert 60 <= done["at"] <= 61 and 90 <= done["delay"] <= 91 and 120 <= done["seconds"] <= 121

    holdfast_world.run(story())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"at": dt.datetime(2026, 1, 1)}, "timezone"),  # noqa: DTZ001
        ({"delay": -1}, "length of time"),
        ({"delay": dt.timedelta(seconds=-1)}, "length of time"),
        ({"delay": float("nan")}, "length of time"),
        ({"delay": float("inf")}, "length of time"),
        ({"delay": dt.timedelta.max}, "hundred years"),
        ({"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "delay": 1}, "not both"),
    ],
)
async def test_a_time_that_is_none_is_refused(given: dict[str, Any], said: str) -> None:
    """Before anything is written, with the way out."""
    async with Runtime("memory:", skills=[report()]) as rt:
        with pytest.raises(InvalidInput, match=said) as e:
            await rt.submit("report", **given)
        assert e.value.hint
        assert await rt.runs() == []

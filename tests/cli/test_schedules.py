"""``holdfast schedule``, runs that begin later, and a worker that is killed while it fires (§10.15)."""

import asyncio
import datetime as dt
import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Type

from holdfast import Runtime
from holdfast.cli.targets import resolve
from holdfast.machine import SystemClock

ADD = ("schedule", "add", "work.py")
KEYS = {
    "schedule_id", "skill_id", "cron", "every_seconds", "zone", "overlap", "missed", "catch_up", "grace_seconds", "queue", "tenant_id", "inputs", "options",
    "paused", "overdue", "next_at", "next_at_local", "last_at", "last_at_local", "last_run", "fired", "skipped_missed", "skipped_overlap", "error",
    "created_at", "changes",
}
STORE = "sqlite:///.holdfast/runs.db"


class Past(SystemClock):
    """A clock that is behind by some hours."""

    def __init__(self, hours: float) -> None:
        self.behind = int(hours * 3_600_000_000)

    def now(self) -> int:
        return super().now() - self.behind


def listed(holdfast: Type) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = holdfast("schedule", "list", "--json").json["schedules"]
    return found


def test_a_schedule_from_its_beginning_to_its_end(holdfast: Type) -> None:
    assert holdfast("schedule", "list").out == "no schedules\n"
    said = holdfast(*ADD, "--cron", "0 9 * * MON-FRI", "--zone", "Europe/Berlin", "--id", "daily", "--input", '{"name": "quick"}', "--actor", "ada", "--tag", "a")
    assert said.code == 0
    assert "daily: work, 0 9 * * MON-FRI Europe/Berlin" in said.out and "09:00:00 CE" in said.out and "worker work.py:graph  # starts its runs" in said.out
    again = holdfast(*ADD, "--cron", "0 9 * * MON-FRI", "--zone", "Europe/Berlin", "--id", "daily", "--input", '{"name": "quick"}', "--tag", "a", "--json").json
    assert set(again) == KEYS and again["changes"] == [{"at": again["changes"][0]["at"], "actor": "ada", "what": "added"}]
    assert (again["inputs"], again["options"]) == ({"name": "quick"}, {"tags": ["a"], "target": "work.py:graph"})
    assert again["next_at"].endswith("Z") and "T09:00:00+0" in again["next_at_local"]

    changed = holdfast(*ADD, "--every", "90m", "--id", "daily", "--input", '{"name": "quick"}', "--overlap", "allow", "--missed", "catch-up", "--catch-up", "3",
                       "--grace", "5m", "--queue", "slow", "--thread", "t", "--json").json
    assert (changed["cron"], changed["every_seconds"], changed["zone"], changed["overlap"], changed["missed"]) == (None, 5400.0, "UTC", "allow", "catch_up")
    assert (changed["catch_up"], changed["grace_seconds"], changed["queue"], changed["options"]["thread_id"]) == (3, 300.0, "slow", "t")
    assert [c["what"].split()[0] for c in changed["changes"]] == ["added", "changed"]
    line = holdfast("schedule", "list").out.splitlines()[1]
    assert line.startswith("daily ") and "every 1 h 30 min" in line and "in 1 h 29 min" in line

    assert "paused" in holdfast("schedule", "pause", "daily", "--actor", "bob").out
    (paused,) = listed(holdfast)
    assert (paused["paused"], paused["next_at"], paused["next_at_local"], paused["changes"][-1]["actor"]) == (True, None, None, "bob")
    assert "paused" in holdfast("schedule", "list").out
    assert holdfast("schedule", "unpause", "daily", "--json").json["next_at"] is not None

    made = holdfast("schedule", "trigger", "daily", "work.py", "--key", "k", "--json").json
    assert (made["schedule_id"], made["scheduled_at"], made["status"], made["queue"]) == ("daily", None, "pending", "slow")
    assert holdfast("schedule", "trigger", "daily", "work.py", "--key", "k", "--json").json["deduplicated"]
    assert made["run_id"] in holdfast("schedule", "trigger", "daily", "work.py", "--key", "k").out
    assert "is removed" in holdfast("schedule", "remove", "daily").out
    assert listed(holdfast) == []
    assert holdfast(*ADD, "--every", "1d", "--id", "x", "--input", '{"name": "x"}').code == 0
    assert holdfast("schedule", "remove", "x", "--json").json == {"removed": "x"}


def test_the_next_slots_over_a_change_of_the_clocks(holdfast: Type) -> None:
    """§10.15: seen before it is relied on; it needs no store."""
    said = holdfast("schedule", "next", "30 2 * * *", "--zone", "Europe/Berlin", "--after", "2026-03-28", "--count", "2")
    assert said.out.splitlines() == [
        "Sat 2026-03-28 02:30:00 CET  2026-03-28 01:30:00Z  in 2 h 30 min", "Sun 2026-03-29 03:00:00 CEST  2026-03-29 01:00:00Z  in 1 d 2 h",
    ]
    slots = holdfast("schedule", "next", "0 * * * *", "--zone", "Europe/Berlin", "--after", "2026-10-25T00:00Z", "--count", "2", "--json").json
    assert slots["slots"] == [
        {"at": "2026-10-25T01:00:00.000000Z", "at_local": "2026-10-25T02:00:00+01:00"}, {"at": "2026-10-25T02:00:00.000000Z", "at_local": "2026-10-25T03:00:00+01:00"},
    ]
    assert len(holdfast("schedule", "next", "@daily").out.splitlines()) == 5
    assert "next" in holdfast("schedule").out
    assert not Path(".holdfast").exists()


WRONG: list[tuple[tuple[str, ...], int, str]] = [
    ((*ADD, "--input", '{"name": "x"}'), 2, "invalid_input"),
    ((*ADD, "--input", '{"name": "x"}', "--cron", "0 9 * *"), 2, "invalid_input"),
    ((*ADD, "--input", '{"name": "x"}', "--cron", "0 25 * * *"), 2, "bad_cron"),
    ((*ADD, "--input", '{"name": "x"}', "--cron", "0 9 * * *", "--zone", "Berlin"), 2, "zone_unknown"),
    ((*ADD, "--input", '{"name": "x"}', "--every", "often"), 2, "invalid_input"),
    ((*ADD, "--input", '{"name": "x"}', "--every", "0s"), 2, "invalid_input"),
    ((*ADD, "--input", '{"name": "x"}', "--every", "1h", "--catch-up", "0"), 2, "usage"),
    ((*ADD, "--every", "1h"), 2, "invalid_input"),
    (("schedule", "add", "nowhere.py", "--every", "1h"), 3, "skill_unknown"),
    (("schedule", "pause", "nobody"), 3, "schedule_not_found"),
    (("schedule", "unpause", "nobody"), 3, "schedule_not_found"),
    (("schedule", "remove", "nobody"), 3, "schedule_not_found"),
    (("schedule", "trigger", "nobody", "work.py"), 3, "schedule_not_found"),
    (("schedule", "next", "never"), 2, "invalid_input"),
    (("schedule", "next", "0 9 * * *", "--after", "soon"), 2, "invalid_input"),
    (("schedule", "next", "0 9 * * *", "--zone", "Berlin"), 2, "zone_unknown"),
    (("submit", "work.py", "--input", '{"name": "x"}', "--at", "2026-11-21T09:00"), 2, "invalid_input"),
    (("submit", "work.py", "--input", '{"name": "x"}', "--at", "tomorrow"), 2, "invalid_input"),
    (("submit", "work.py", "--input", '{"name": "x"}', "--delay", "-5m"), 2, "invalid_input"),
    (("submit", "work.py", "--input", '{"name": "x"}', "--delay", "5m", "--at", "2026-11-21T09:00Z"), 2, "invalid_input"),
]


@pytest.mark.parametrize(("words", "code", "name"), WRONG, ids=[" ".join(w[0])[:70] for w in WRONG])
def test_what_is_wrong_is_one_line(process: Type, words: tuple[str, ...], code: int, name: str) -> None:
    said = process(*words)
    assert (said.code, said.err.splitlines()[-1].split(":")[0], said.out) == (code, name, "")


def test_submitted_for_later(holdfast: Type) -> None:
    """§10.15."""
    at = holdfast("submit", "work.py", "--input", '{"name": "quick"}', "--at", "2199-11-21T09:00+01:00", "--json").json
    assert (at["not_before"], at["status"]) == ("2199-11-21T08:00:00.000000Z", "pending")
    told = holdfast("submit", "work.py", "--input", '{"name": "quick"}', "--at", "2199-11-21T09:00+01:00").out
    assert "starts it at 2199-11-21 08:00:00Z" in told, "who reads it sees when, and how to have it at once"
    later = holdfast("submit", "work.py", "--input", '{"name": "quick"}', "--delay", "90m", "--json").json
    created, begins = (dt.datetime.fromisoformat(later[n]) for n in ("created_at", "not_before"))
    assert abs((begins - created) - dt.timedelta(minutes=90)) < dt.timedelta(seconds=5)
    assert holdfast("worker", "work.py", "--until-idle").code == 0
    assert {r["status"] for r in holdfast("runs", "--json").json["runs"]} == {"pending"}


def test_a_schedule_that_cannot_be_fired_is_said(holdfast: Type, folder: Path) -> None:
    """X-14: by the worker as a line, and in the list until it is mended."""

    async def before() -> None:
        async with Runtime(clock=Past(1.5)) as rt:
            await rt.schedule(resolve("work.py:graph")[0].skill, {"name": "quick"}, every=dt.timedelta(hours=1), id="s", grace=dt.timedelta(hours=2))

    asyncio.run(before())
    assert "in 30 min" not in holdfast("schedule", "list").out
    skill = (folder / "work.py").read_text("utf-8")
    (folder / "other.py").write_text(skill.replace("name: str", "title: str").replace("state.name", "state.title"), "utf-8")
    said = holdfast("worker", "other.py", "--until-idle")
    assert said.code == 0 and "schedule s" in said.out and "has no input 'name'" in said.out
    assert "has no input 'name'" in holdfast("schedule", "list").out
    assert holdfast("worker", "work.py", "--until-idle").code == 0
    (s,) = listed(holdfast)
    assert (s["fired"], s["error"]) == (1, None) and s["last_run"] in holdfast("schedule", "list").out


MORTAL = """
import os
import signal

from holdfast import Graph, State


class Slot(State):
    name: str


graph = Graph("slots", Slot)
calls = []


@graph.node(start=True)
async def note(state: Slot) -> None:
    calls.append(state.name)
    if len(calls) == 20 and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
"""
SLOTS = 60
NAMES = ("a", "b", "c", "d", "e")


def test_killed_while_it_fires_another_goes_on(process: Type, folder: Path) -> None:
    """§10.15, "kill -9 inside the sweeper: nothing lost, nothing twice": each slot of each schedule has one run, which ran once."""
    (folder / "slots.py").write_text(MORTAL, "utf-8")

    async def plan() -> None:
        graph = resolve("slots.py:graph")[0].skill
        async with Runtime(clock=Past(SLOTS + 0.5)) as rt:
            for name in NAMES:
                await rt.schedule(graph, {"name": name}, every=dt.timedelta(hours=1), id=name, overlap="allow", missed="catch_up", catch_up=SLOTS)

    asyncio.run(plan())
    killed = process("worker", "slots.py")
    assert killed.code == -signal.SIGKILL
    between = process("schedule", "list", "--json").json["schedules"]
    fired = sum(s["fired"] for s in between)
    assert 0 < fired < SLOTS * len(NAMES), "it was killed in the middle"
    assert process("worker", "slots.py", "--until-idle").code == 0

    async def runs() -> list[Any]:
        async with Runtime(STORE) as rt:
            return await rt.runs(limit=500)

    found = asyncio.run(runs())
    each = Counter((r.schedule_id, r.scheduled_at) for r in found)
    assert len(each) == len(found) == SLOTS * len(NAMES) and {r.status for r in found} == {"completed"}
    after = process("schedule", "list", "--json").json["schedules"]
    assert {s["schedule_id"]: (s["fired"], s["skipped_missed"]) for s in after} == dict.fromkeys(NAMES, (SLOTS, 0))
    assert json.loads(process("check", "--json").out)["problems"] == []


def test_catching_up_with_more_than_overlap_allows_is_said(holdfast: Type) -> None:
    words = (*ADD, "--every", "1h", "--id", "hourly", "--input", '{"name": "Ada"}', "--missed", "catch-up", "--catch-up", "3")
    assert "only the oldest of the missed slots" in holdfast(*words).err
    assert "oldest" not in holdfast(*words, "--overlap", "allow").err and "oldest" not in holdfast(*words[:-1], "1").err


def test_a_trigger_without_its_code_says_what_to_type(holdfast: Type) -> None:
    holdfast(*ADD, "--every", "1h", "--id", "hourly", "--input", '{"name": "Ada"}')
    refused = holdfast("schedule", "trigger", "hourly")
    assert refused.code == 3 and refused.err.startswith("skill_unknown: the skill 'work' of the schedule hourly") and "schedule trigger hourly work.py:graph" in refused.err
    assert holdfast("schedule", "trigger", "hourly", "work.py").code == 0
    assert holdfast("schedule", "trigger", "nothing").code == 3

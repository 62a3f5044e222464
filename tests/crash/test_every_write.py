"""A crash at every store write of scripted worlds, before and after (issue 2, must show 2).

Each world is first run undisturbed and must do its work. Then, for each write, its process dies there; another process on
the same store goes on, and the end must be the same: final values, no completed step run again, parallel siblings kept.
``crash_everywhere`` checks all invariants after each end, ``World.begin`` that nothing completed begins again.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.crash.worlds import WORLDS, acting, fan, stage
from tests.postgres.blocking import blocking, finish
from tests.virtual import keep_in_virtual_time

from holdfast.ports import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import Fault, VirtualClock
from holdfast.testing.world import Host, approve_all, crash_everywhere

Maker = Callable[[VirtualClock], Store]
EXPECTED: dict[str, Any] = {
    "line": ["first", "two one Ada", "third"],
    "parallel": ["lift 0", "lift 1", "lift 2", "left", "right"],
    "wait": ["approved by tester", "prepare all", "later"],
    "effect": ["pay model Ada", "steady"],
    "flow": ["pack Ada", ["walk a", "ride b"], "approve", ["look x"], True],
}


STORES = ("memory", "sqlite", "postgres")


@pytest.fixture(params=STORES)
def maker(request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Maker]:
    keep_in_virtual_time(monkeypatch)
    names = itertools.count()
    makers: dict[str, Maker] = {
        "memory": lambda clock: MemoryStore(now=clock.now),
        "sqlite": lambda clock: SqliteStore(tmp_path / f"{next(names)}.db", now=clock.now),
        "postgres": lambda clock: blocking(clock.now),
    }
    yield makers[request.param]
    finish()


def outcome(run: Any) -> Any:
    return run.result if run.skill_id == "journey" else run.state.trail


QUICK = ("line", "effect")  # over PostgreSQL the others are heavy: each crash opens a store of its own
WHERE = [pytest.param(name, store, marks=[pytest.mark.heavy] if store == "postgres" and name not in QUICK else []) for name in WORLDS for store in STORES]


@pytest.mark.parametrize(("name", "maker"), WHERE, indirect=["maker"])
def test_the_end_is_the_same(name: str, maker: Maker) -> None:
    """T-09, T-17, T-57, T-58, T-59, T-62, T-78, L-03, L-05, L-06: whatever write the process dies at."""
    skill, script = WORLDS[name]
    whole, ends = crash_everywhere(skill(), {"name": "Ada"}, script=script, store=maker, fresh=stage.enter)
    assert (whole.status, outcome(whole)) == ("completed", EXPECTED[name])
    assert len(ends) >= 10
    for end in ends:
        assert (end.run.status, outcome(end.run)) == ("completed", EXPECTED[name]), (end.number, end.verb, end.fault)
        assert end.run.record.takeovers <= 1


@pytest.mark.parametrize("name", WORLDS)
def test_a_store_that_fails_once_stops_nothing_for_good(name: str) -> None:
    """T-51, L-04, X-09: the process is told that the write failed, whether it was applied or not; nothing is lost or doubled."""
    skill, script = WORLDS[name]
    _, ends = crash_everywhere(skill(), {"name": "Ada"}, script=script, faults=(Fault.LOST, Fault.APPLIED), fresh=stage.enter)
    for end in ends:
        assert (end.run.status, outcome(end.run)) == ("completed", EXPECTED[name]), (end.number, end.verb, end.fault)


def test_siblings_keep_what_they_finished() -> None:
    """T-58, L-06: of three parallel tasks those that were done are not begun again, at any crash between them."""
    crashed_between = 0
    for end in crash_everywhere(fan(), {"name": "Ada"}, fresh=stage.enter)[1]:
        begun = {place: n for place, n in end.world.begun.items() if place[2].startswith("work") and place[3] == "lift"}
        assert len(begun) == 3
        crashed_between += 0 < sum(n > 1 for n in begun.values()) < 3
        assert all(n <= 2 for n in begun.values())
    assert crashed_between > 2


def test_what_nobody_knows_is_not_repeated(maker: Maker) -> None:
    """T-39, T-76, L-21, §6.5: killed between an effect's attempt and its result, it is done once all the same: a person is
    asked, looks outside, and says what happened."""
    asked: list[str] = []

    async def look(host: Host, run: Any) -> None:
        asked.extend(w.kind for w in run.waits if w.kind == "effect")
        await approve_all(host, run)

    ends = crash_everywhere(acting(idempotent=False), {"name": "Ada"}, fresh=stage.enter, script=look, store=maker)[1]
    for end in ends:
        assert (end.run.status, outcome(end.run)) == ("completed", EXPECTED["effect"])
        assert sum(end.world.outside.acts.values()) == 1
    assert len(asked) == 2, "after the attempt was written, and before its result was"

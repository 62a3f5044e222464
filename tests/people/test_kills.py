"""kill -9 between a decision and its resume, between resume and first step, and inside the sweeper (issue 4, must show 5).

Real processes over one SQLite file kill themselves with SIGKILL before or after each write they make; what a run does outside
goes into a file opened with O_APPEND. Whatever the place: nothing is lost and nothing happens twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Runtime
from holdfast.testing import violations
from tests.people.launcher import Ahead, Suicidal, does, opened, skill

ROOT = Path(__file__).resolve().parents[2]


class Place:
    """One store, one file outside, and a launcher of processes that die."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = str(folder / "acts")
        self.path = str(folder / "runs.db")
        self.wait_id = ""
        environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        self.launcher = subprocess.Popen(
            [sys.executable, "-m", "tests.people.launcher"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
        )

    def dies(self, hours: int, run_id: str, what: str, verb: str, when: str, number: int) -> int:
        assert self.launcher.stdin is not None
        assert self.launcher.stdout is not None
        self.launcher.stdin.write(f"{self.path} {self.file} {hours} {run_id} {what} {verb} {when} {number}\n")
        self.launcher.stdin.flush()
        return int(self.launcher.stdout.readline())

    async def asked(self) -> str:
        """A run that rests at its question."""
        program = skill(self.file)
        async with Runtime(opened(self.path, 0), skills=[program], clock=Ahead(0)) as rt:
            run = await rt.invoke(program)
            assert run.status == "waiting_for_human"
            self.wait_id = run.waits[0].wait_id
            return str(run.run_id)

    async def approved(self, run_id: str) -> None:
        async with Runtime(opened(self.path, 0), clock=Ahead(0)) as rt:
            await rt.decide(run_id, "approve", actor="ada")

    async def writes(self, hours: int, run_id: str, what: str) -> list[tuple[str, int]]:
        """The writes that a process makes of it when nobody kills it."""
        store = Suicidal(opened(self.path, hours))  # type: ignore[arg-type]
        await does(store, self.file, hours, run_id, what)
        return [(verb, n) for verb, count in store.calls.items() for n in range(1, count + 1)]

    async def whole(self, hours: int, run_id: str, answer: str, *, decide: bool) -> Counter[str]:
        """What other processes make of what the dead one left; every promise is held against the log."""
        store = opened(self.path, hours)
        async with Runtime(store, skills=[skill(self.file)], clock=Ahead(hours)) as rt:
            if decide:  # whoever was killed before it was told "accepted" says it again; said already, it is no other decision
                await rt.decide(run_id, "approve", wait_id=self.wait_id, actor="ada")
            await rt.worker(until_idle=True)
            run = await rt.get(run_id)
            assert (run.status, run.result, run.waits) == ("completed", answer, ())
            assert [line.split()[-1] for line in self.lines(run_id)] == [answer], "the act happened once"
            assert list(await violations(store)) == []
            return Counter(e.type for e in await rt.events(run_id))

    def lines(self, run_id: str) -> list[str]:
        return [line for line in Path(self.file).read_text().splitlines() if run_id in line]

    def close(self) -> None:
        assert self.launcher.stdin is not None
        assert self.launcher.stdout is not None
        self.launcher.stdin.close()
        self.launcher.wait(timeout=30)
        self.launcher.stdout.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


STORIES: dict[str, dict[str, Any]] = {
    "decision": {"what": "approve", "hours": 0, "answer": "approve", "event": "wait.decided"},
    "resume": {"what": "work", "hours": 0, "answer": "approve", "event": "wait.decided"},
    "timeout": {"what": "work", "hours": 1, "answer": "timeout", "event": "wait.timed_out"},
}


@pytest.mark.parametrize("rounds", [1, pytest.param(25, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("name", STORIES)
async def test_killed_at_every_write(place: Place, name: str, rounds: int) -> None:
    """T-23, T-34, T-37, §5.4, §5.10: the process dies with SIGKILL before and after each of its writes."""
    story = STORIES[name]
    what, hours = story["what"], story["hours"]

    async def set_up() -> str:
        run_id = await place.asked()
        if name == "resume":
            await place.approved(run_id)
        return run_id

    run_id = await set_up()
    points = await place.writes(hours, run_id, what)
    assert {verb for verb, _ in points} >= {"decision": {"put", "commit"}, "resume": {"claim", "commit"}, "timeout": {"claim", "put", "commit"}}[name]
    undisturbed = await place.whole(hours, run_id, story["answer"], decide=False)
    assert undisturbed[story["event"]] == 1
    for _ in range(rounds):
        for verb, number in points:
            for when in ("before", "after"):
                run_id = await set_up()
                at = f"{when} {verb} {number} of {name}"
                assert place.dies(hours, run_id, what, verb, when, number) == -9, f"it was to die {at}"
                kinds = await place.whole(hours, run_id, story["answer"], decide=name == "decision")
                assert kinds[story["event"]] == 1, at
                assert kinds["run.started"] == kinds["run.completed"] == kinds["wait.requested"] == 1, at

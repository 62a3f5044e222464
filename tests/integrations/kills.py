"""Kills the processes that drive an agent of Pydantic AI, or of the OpenAI Agents SDK, by ``kill -9`` at random (must show 4).

    uv run python -m tests.integrations.kills --rounds 50 --budget 10

A round is one run of ``desks`` in each framework, killed twice or three times, after so many parts of its stream. What must hold: the
tool that acts ran once, what is on record was asked once, the approval was asked once, and the stream has each piece once, in order, with
each broken attempt marked. About five seconds a round on an idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from typing import Any, Self

from holdfast import HoldfastError, Runtime
from tests.integrations import desks

NAMES = ("pydantic_ai", "openai_agents")
ONCE = ["model 0", "look_up 17", "look_up 18", "model 2", "pay 4200", "model 3"]


class Nursery:
    """A process that has the frameworks imported and forks one that drives the run, so that a kill costs no start."""

    def __enter__(self) -> Self:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._process = subprocess.Popen([sys.executable, "-m", "tests.integrations.kills", "--nursery"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def spawn(self, name: str, folder: pathlib.Path) -> int:
        """Begins a process that drives the run in this folder; gives its id once the run is there."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(name, folder, file=self._process.stdin, flush=True)
        pid = int(self._process.stdout.readline())
        assert self._process.stdout.readline() == "ready\n"
        return pid

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def nursery() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that are killed
    for line in sys.stdin:
        name, folder = line.split()
        if os.fork() == 0:
            os.environ["ACTS"] = f"{folder}/acts"
            asyncio.run(desks.drive(name, f"sqlite:///{folder}/runs.db", told=f"{os.getpid()}\nready"))
            os._exit(0)


async def follow(home: Nursery, name: str, folder: pathlib.Path, deaths: list[int]) -> tuple[Any, list[Any]]:
    """The run at its end, and all that its stream told; the process that drives it is killed after so many parts each."""
    up = await asyncio.to_thread(home.spawn, name, folder)
    acts = folder / "acts"
    parts: list[Any] = []
    try:
        async with asyncio.timeout(90), Runtime(f"sqlite:///{folder}/runs.db", lease=0.5) as rt:
            (run,) = await rt.runs()

            async def answer() -> None:
                while True:
                    for wait in (await rt.get(run.run_id)).waits:
                        with contextlib.suppress(HoldfastError):  # the process that may have acted may still live; it is asked again
                            if wait.kind != "effect":
                                await rt.decide(run.run_id, "approve", wait_id=wait.wait_id, actor="ada")
                            elif acts.exists() and "pay 4200" in acts.read_text().splitlines():
                                await rt.decide(run.run_id, "record_result", wait_id=wait.wait_id, actor="ada", payload="paid 4200")
                            else:
                                await rt.decide(run.run_id, "reexecute", wait_id=wait.wait_id, actor="ada")
                    await rt.store.wait_for_change(0.1)

            answering = asyncio.ensure_future(answer())
            async for part in rt.stream(run.run_id, modes=("messages", "events", "custom")):
                parts.append(part)
                if deaths and len(parts) >= deaths[0]:
                    deaths.pop(0)
                    os.kill(up, signal.SIGKILL)
                    up = await asyncio.to_thread(home.spawn, name, folder)
            answering.cancel()
            return await rt.get(run.run_id), parts
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(up, signal.SIGKILL)


def torment(home: Nursery, name: str, folder: pathlib.Path, dice: random.Random, kills: int) -> None:
    """One run whose processes are killed so often, somewhere.

    Raises:
        AssertionError: something happened twice, or was not told as it was.
    """
    deaths = sorted(dice.sample(range(1, 40), kills))
    story = f"{name}, killed after the parts {deaths}"
    run, parts = asyncio.run(follow(home, name, folder, list(deaths)))
    assert (run.status, run.result) == ("completed", desks.TEXT), (story, run.error)
    counts = Counter((folder / "acts").read_text().splitlines())
    assert counts.keys() == set(ONCE), story
    assert counts["pay 4200"] == 1, story
    assert sum(counts.values()) <= len(ONCE) + 2 * kills, story
    seqs = [p.data.seq for p in parts if p.mode == "events"]
    assert seqs == list(range(1, len(seqs) + 1)), story
    kinds = Counter(p.data.type for p in parts if p.mode == "events")
    assert kinds["run.completed"] == 1, story
    approvals = [p for p in parts if p.mode == "events" and p.data.type == "wait.requested" and p.data.payload["wait"]["kind"] == "approval"]
    assert len(approvals) == 1, story
    told: dict[str, list[str]] = {}
    broken: list[list[str]] = []
    for part in parts:
        if part.superseded:  # what goes on after a takeover is the same attempt: the mark divides what it told before and since
            broken.append(told.pop(part.attempt_id, []))
        elif part.mode == "messages" and part.data["content"]:
            told.setdefault(part.attempt_id, []).append(part.data["content"])
    assert list(told.values()) == [list(desks.PIECES)], (story, told)
    assert all(list(desks.PIECES)[: len(b)] == b for b in broken), (story, broken)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--budget", type=float, default=10, metavar="MINUTES", help="begins no round after so many minutes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nursery", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.nursery:
        nursery()
        return 0
    end = time.monotonic() + given.budget * 60
    dice = random.Random(given.seed)
    done = killed = 0
    wrong: list[str] = []
    with Nursery() as home:
        while done < given.rounds and time.monotonic() < end:
            for name in NAMES:
                kills = dice.choice((2, 3))
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        torment(home, name, pathlib.Path(folder), dice, kills)
                    except AssertionError as e:
                        wrong.append(str(e))
                        print(f"WRONG {e}", flush=True)
                killed += kills
            done += 1
    print(f"rounds asked {given.rounds}, done {done}, skipped {given.rounds - done}; runs {2 * done}, killed {killed} times, wrong {len(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

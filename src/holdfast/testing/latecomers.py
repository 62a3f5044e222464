"""Commands at the very end of short runs: `python -m holdfast.testing.latecomers [--commands N] [--processes N] [--seed N] [--budget MINUTES]`.

Several processes submit short runs over one SQLite file and cancel, signal or decide them at about the time when they end; other processes
drive the runs. A process learns when to give its commands: earlier after one that came too late, later after one that came in time. In the end
every command must either be in its run's log, or have been refused to its caller because the run, or the question, had ended; none is dropped (X-19).
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.authoring import flow
from holdfast.core.errors import AlreadyTerminal, Conflict, NotDecidable
from holdfast.core.status import TERMINAL
from holdfast.engine.calls.context import Context
from holdfast.handle import EventView
from holdfast.runtime import Runtime

DRIVERS = 2
TOGETHER = 4
SETTLE_SECONDS = 60.0
QUESTION = 0.05
TOO_LATE = (AlreadyTerminal, Conflict, NotDecidable)
CODES = frozenset({"already_terminal", "decision_conflict", "wait_not_open", "not_decidable", "wait_closed", "wait_not_found"})
KINDS = ("cancel", "signal", "decide")


@flow("brief")
async def brief(ctx: Context) -> str:
    """Does two steps and ends."""
    await ctx.step(str, "one")
    return await ctx.step(str, "two")


@flow("asks")
async def asks(ctx: Context) -> str:
    """Asks a question with a very short timeout, so that an answer comes at about the deadline."""
    await ctx.approve("Go on?", timeout=QUESTION, on_timeout="halt")
    return "approved"


SKILLS = (brief, asks)


class Said(msgspec.Struct, frozen=True):
    """What became of one command, as its caller was told. ``refused``: the error's code; empty if the command was accepted."""

    run_id: str
    kind: str
    key: str
    refused: str = ""


class Report(msgspec.Struct):
    """What was asked for and what was done. ``wrong`` lists what is wrong; it is empty if all holds."""

    seed: int
    commands: int
    accepted: dict[str, int] = {}
    refused: dict[str, int] = {}
    noted: dict[str, int] = {}
    skipped: int = 0
    ended: dict[str, int] = {}
    seconds: float = 0.0
    wrong: list[str] = []

    @property
    def done(self) -> int:
        return sum(self.accepted.values()) + sum(self.refused.values())

    def text(self) -> str:
        return "\n".join(
            [
                f"seed {self.seed}, {self.seconds:.0f} s",
                f"commands: {self.commands} asked, {self.done} done, {self.skipped} skipped",
                f"accepted {self.accepted}, of these answered in the log as too late {self.noted}",
                f"refused {self.refused}",
                f"runs ended {self.ended}",
                *(f"WRONG {w}" for w in self.wrong[:50]),
            ]
        )


# -- what the processes do ------------------------------------------------------------------------------


async def drive(url: str) -> None:
    async with Runtime(url, skills=list(SKILLS)) as rt:
        await rt.worker(concurrency=8)


class Aim:
    """Learns when to give a command, in seconds after the submit: at about the time when the run ends."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.after = dice, dict.fromkeys(KINDS, 0.03)

    def draw(self, kind: str) -> float:
        return self.after[kind] * (0.8 + 0.4 * self.dice.random())

    def learn(self, kind: str, late: bool) -> None:
        self.after[kind] = min(2.0, max(0.001, self.after[kind] * (0.93 if late else 1.05)))


async def give(url: str, file: Path, count: int, seed: int, until: float) -> None:
    """Gives ``count`` commands, several at a time, and writes down what became of each before it goes on."""
    dice = random.Random(seed)
    aim, left = Aim(dice), count
    async with Runtime(url, skills=list(SKILLS)) as rt:

        async def one_after_the_other() -> None:
            nonlocal left
            while left > 0 and time.monotonic() < until:
                left -= 1
                number, kind = left, dice.choice(KINDS)
                said = await _one(rt, aim, kind, f"{seed}-{number}")
                with file.open("ab") as out:
                    out.write(msgspec.json.encode(said) + b"\n")

        await asyncio.gather(*(one_after_the_other() for _ in range(TOGETHER)))


async def _one(rt: Runtime, aim: Aim, kind: str, key: str) -> Said:
    run_id = (await rt.submit("asks" if kind == "decide" else "brief", key=key)).run_id
    if kind == "decide":
        while not (run := await rt.get(run_id)).waits and run.status not in TERMINAL:
            await rt.store.wait_for_change(0.05)
    await asyncio.sleep(aim.draw(kind))
    try:
        match kind:
            case "cancel":
                await rt.cancel(run_id, actor=key)
            case "signal":
                await rt.signal(run_id, "news", key, key=key, actor=key)
            case _:
                await rt.approve(run_id, actor=key, drive=False)
    except TOO_LATE as e:
        aim.learn(kind, late=True)
        return Said(run_id, kind, key, e.code)
    aim.learn(kind, late=False)
    return Said(run_id, kind, key)


# -- one round -------------------------------------------------------------------------------------------


async def latecomers(*, commands: int = 60, processes: int = 2, seed: int = 0, budget: float = 1.0) -> Report:
    """Runs one round in a folder of its own. After ``budget`` minutes no more commands are given; those not given count as skipped."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-latecomers-") as place:
        folder = Path(place)
        url = f"sqlite:///{folder / 'runs.db'}"
        report = Report(seed, commands)
        async with Runtime(url, skills=list(SKILLS)) as rt:
            drivers = [_process("--drive", url) for _ in range(DRIVERS)]
            shares = [commands // processes + (n < commands % processes) for n in range(processes)]
            files = [folder / f"said-{n}" for n in range(processes)]
            until = str(began + budget * 60)
            givers = [_process("--give", url, str(files[n]), str(shares[n]), str(seed * 1000 + n), until) for n in range(processes)]
            try:
                await asyncio.gather(*(asyncio.to_thread(g.wait) for g in givers))
                report.wrong += [f"a process that gives commands ended with {g.returncode}" for g in givers if g.returncode]
                said = [msgspec.json.decode(line, type=Said) for f in files if f.exists() for line in f.read_bytes().splitlines()]
                await _settle(rt, said)
                await _judge(rt, said, report)
            finally:
                for process in (*drivers, *givers):
                    process.kill()
                    process.wait()
    report.skipped = commands - report.done
    report.seconds = time.monotonic() - began
    return report


def _process(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "holdfast.testing.latecomers", *arguments])


async def _settle(rt: Runtime, said: Sequence[Said]) -> None:
    """Waits until every run has ended."""
    until, left = time.monotonic() + SETTLE_SECONDS, {s.run_id for s in said}
    while left and time.monotonic() < until:
        left = {run_id for run_id in left if (await rt.get(run_id)).status not in TERMINAL}
        if left:
            await rt.store.wait_for_change(0.2)


async def _judge(rt: Runtime, said: Sequence[Said], report: Report) -> None:
    accepted, refused, noted, ended = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for one in said:
        run, events = await rt.get(one.run_id), await rt.events(one.run_id)
        ended[str(run.status)] += 1
        if run.status not in TERMINAL:
            report.wrong.append(f"{one.run_id} has not ended: {run.condition}")
        if one.refused:
            refused[f"{one.kind} {one.refused}"] += 1
            if one.refused not in CODES:
                report.wrong.append(f"{one.run_id}: a {one.kind} was refused as {one.refused}")
            if _was_followed(one, events):
                report.wrong.append(f"{one.run_id}: a {one.kind} was refused, but was carried out all the same")
            continue
        accepted[one.kind] += 1
        if _was_noted(events):
            noted[one.kind] += 1
        elif not _was_followed(one, events):
            report.wrong.append(f"{one.run_id}: a {one.kind} was accepted, but the log does not show it: {[e.type for e in events]}")
        elif one.kind == "cancel" and run.status != "canceled":
            report.wrong.append(f"{one.run_id}: a cancel was accepted, and the run ended {run.status}")
        if left := await rt.store.inbox(one.run_id):
            report.wrong.append(f"{one.run_id} has ended although {len(left)} commands were still waiting to be taken")
    report.accepted, report.refused, report.noted, report.ended = dict(accepted), dict(refused), dict(noted), dict(ended)


def _was_followed(one: Said, events: Sequence[EventView]) -> bool:
    """Whether the log shows that the command was taken."""
    match one.kind:
        case "cancel":
            return any(e.type in ("run.cancel_requested", "run.canceled") for e in events)
        case "signal":
            return any(e.type == "signal.received" for e in events)
        case _:
            return any(e.type == "wait.decided" and e.payload["decision"]["actor"] == one.key for e in events)


def _was_noted(events: Sequence[EventView]) -> bool:
    """Whether the log says that a command came too late."""
    return any(e.type == "note.added" and e.payload.get("refused") and e.payload.get("code") in CODES for e in events)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.latecomers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--commands", type=int, default=200, help="how many cancels, signals and decisions (2000 take about 3 minutes on two free cores)")
    parser.add_argument("--processes", type=int, default=3, help="the number of processes that send them; two more execute the runs")
    parser.add_argument("--seed", type=int, default=int(dt.datetime.now(dt.UTC).timestamp()) % 1_000_000, help="the seed that chooses the commands and their times; it is printed")
    parser.add_argument("--budget", type=float, default=5.0, metavar="MINUTES", help="minutes after which no more commands are sent; the others are counted as skipped")
    parser.add_argument("--drive", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--give", nargs=5, metavar=("URL", "FILE", "COUNT", "SEED", "UNTIL"), help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.drive:
        asyncio.run(drive(asked.drive))
        return 0
    if asked.give:
        url, file, count, seed, until = asked.give
        asyncio.run(give(url, Path(file), int(count), int(seed), float(until)))
        return 0
    report = asyncio.run(latecomers(commands=asked.commands, processes=asked.processes, seed=asked.seed, budget=asked.budget))
    sys.stdout.write(report.text() + "\n")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

__all__ = ["Report", "Said", "latecomers", "main"]

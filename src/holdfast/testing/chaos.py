"""Real worker processes in trouble: `python -m holdfast.testing.chaos [--runs N] [--faults N] [--seed N] [--budget MINUTES]`.

Worker processes drive short runs over one SQLite file. Workers are killed, and so are their successors. Workers are stopped past their
lease and then killed or thawed. Code that holds the interpreter keeps them from renewing. Their wall clocks jump. Meanwhile runs are
cancelled, approved and signalled at random. In the end every run must have ended or say what it waits for, every accepted command must
be in its run's log, no act may have been done twice, and no run may have failed for a reason of the runtime itself (``HOUSE``).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime as dt
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.authoring import flow
from holdfast.core.effects import Absent, Happened
from holdfast.core.errors import HoldfastError
from holdfast.core.lease import OwnerId
from holdfast.core.status import TERMINAL
from holdfast.engine.calls.context import Context
from holdfast.handle import EventView, Run
from holdfast.runtime import Runtime
from holdfast.testing.nursery import Child, Nursery, tend

LEASE = 0.8
SLOW = 0.04
WORKERS = 3
GREEDY = 25  # one run of so many holds the interpreter
STUCK_SECONDS = 60.0
FAULTS = ("kill", "kill_twice", "stop_and_kill", "stop_and_thaw", "clock", "cancel", "decide", "signal")
HOUSE = ("takeover_limit", "lease_too_short", "cancelled_inside", "lease_lost", "version_conflict", "store_error", "store_unavailable", "store_writer_stalled")


class Report(msgspec.Struct):
    """What was asked for and what was done. ``wrong`` lists what is wrong; it is empty if all holds."""

    seed: int
    runs: int = 0
    faults: int = 0
    runs_done: int = 0
    faults_done: dict[str, int] = {}
    runs_skipped: int = 0
    faults_skipped: int = 0
    asked_people: int = 0
    limited: int = 0
    ended: dict[str, int] = {}
    acts: int = 0
    seconds: float = 0.0
    wrong: list[str] = []

    def text(self) -> str:
        done = sum(self.faults_done.values())
        return "\n".join(
            [
                f"seed {self.seed}, {self.seconds:.0f} s",
                f"runs: {self.runs} asked, {self.runs_done} done, {self.runs_skipped} skipped; ended {self.ended}",
                f"{self.asked_people} questions put to people; {self.limited} gave up after ten owners in a row, each killed or stopped here",
                f"faults: {self.faults} asked, {done} done, {self.faults_skipped} skipped; {self.faults_done}",
                f"side effects: {self.acts}, none twice" if not self.wrong else f"side effects: {self.acts}",
                *(f"WRONG {w}" for w in self.wrong[:50]),
            ]
        )


# -- what the workers run -----------------------------------------------------------------------------


class Outside:
    """The receiver: a file that is only appended to."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "acts"

    def act(self, what: str) -> str:
        """Appends ``what`` to the file. Sleeps before and after that, so that a fault may strike at either point."""
        time.sleep(random.random() * SLOW)
        fd = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{what}\n".encode())
        os.close(fd)
        time.sleep(random.random() * SLOW)
        return what

    def list_done(self) -> list[str]:
        return self.file.read_text().split() if self.file.exists() else []

    def verify(self, key: str, what: str) -> Happened | Absent:
        return Happened(what) if what in self.list_done() else Absent()


def skills(outside: Outside) -> list[object]:
    """Flows of a few acts each: one with a ``verify`` hook, one without, one that asks a person, one that waits for a signal, one that holds the interpreter."""

    @flow("verified")
    async def act_verified(ctx: Context, name: str) -> str:
        for k in range(3):
            await ctx.effect(outside.act, f"{name}.{k}", verify=outside.verify)
        return name

    @flow("blind")
    async def blind(ctx: Context, name: str) -> str:
        for k in range(2):
            await ctx.effect(outside.act, f"{name}.{k}")
        return name

    @flow("asking")
    async def asking(ctx: Context, name: str) -> str:
        await ctx.approve("Go on?")
        await ctx.effect(outside.act, f"{name}.0", verify=outside.verify)
        return name

    @flow("listening")
    async def listening(ctx: Context, name: str) -> str:
        await ctx.wait("go")
        await ctx.effect(outside.act, f"{name}.0", verify=outside.verify)
        return name

    @flow("greedy")
    async def greedy(ctx: Context, name: str) -> str:
        """Lets no other thread run for half a lease to three leases, so that the lease is renewed late."""
        before = sys.getswitchinterval()
        sys.setswitchinterval(60)
        end = time.monotonic() + LEASE * (0.5 + 2.5 * (int(name.removeprefix("greedy")) % 3) / 2)
        while time.monotonic() < end:
            pass
        sys.setswitchinterval(before)
        await asyncio.sleep(0)
        await ctx.effect(outside.act, f"{name}.0", verify=outside.verify)
        return name

    return [act_verified, blind, asking, listening, greedy]


async def work(url: str, folder: Path) -> None:
    """Runs a worker. A file named after its process id shifts its wall clock, and with it the clock of its store."""
    offset, real, read = folder / f"clock-{os.getpid()}", time.time_ns, time.clock_gettime_ns

    def off() -> int:
        with contextlib.suppress(OSError, ValueError):
            return int(offset.read_text()) * 1_000_000_000
        return 0

    time.time_ns = lambda: real() + off()
    time.clock_gettime_ns = lambda clock: read(clock) + (off() if clock == time.CLOCK_REALTIME else 0)
    async with Runtime(url, skills=skills(Outside(folder)), lease=LEASE) as rt:  # type: ignore[arg-type]
        (folder / f"up-{os.getpid()}").touch()
        await rt.worker(concurrency=8)


# -- the faults ---------------------------------------------------------------------------------------


class Chaos:
    """One round: a store, its workers, its runs, and what was asked of them. ``url`` is a store to use instead of the round's own; ``kinds``
    are the faults to draw from; ``module`` is the module that runs as the nursery of its workers."""

    names: Sequence[str] = ("verified", "verified", "blind", "asking", "listening")
    workers_wanted = WORKERS
    greedy_each = GREEDY

    def __init__(
        self,
        folder: Path,
        *,
        runs: int,
        faults: int,
        seed: int,
        budget: float,
        url: str | None = None,
        kinds: Sequence[str] = FAULTS,
        module: str = "holdfast.testing.chaos",
    ) -> None:
        self.folder = folder
        self.url = url or f"sqlite:///{folder / 'runs.db'}"
        self.kinds = kinds
        self.outside = Outside(folder)
        self.dice = random.Random(seed)
        self.until = time.monotonic() + budget * 60
        self.report = Report(seed, runs, faults)
        self.nursery = Nursery(module, "--nursery", self.url, str(folder))
        self.workers: list[Child] = []
        self.runs: list[str] = []
        self.told: list[tuple[str, str]] = []  # the run, and what its log must show
        self.faults: Counter[str] = Counter()
        self.struck: set[int] = set()
        self.staffing = asyncio.Lock()

    def skills(self) -> list[object]:
        return skills(self.outside)

    @property
    def in_time(self) -> bool:
        return time.monotonic() < self.until

    async def _staff(self) -> None:
        """Starts workers until there are enough."""
        async with self.staffing:
            self.workers = [w for w in self.workers if not w.gone.is_set()]
            while len(self.workers) < self.workers_wanted:
                self.workers.append(await self.nursery.start())

    def _up(self, worker: Child) -> bool:
        return (self.folder / f"up-{worker.pid}").exists()

    async def _victim(self, rt: Runtime) -> Child:
        """Returns a worker that is up: a worker that is killed before it has begun holds nothing that could be lost."""
        while not (up := [w for w in self.workers if not w.gone.is_set() and self._up(w)]):
            await self._staff()
            await rt.store.wait_for_change(0.05)
        return self.dice.choice(up)

    async def go(self) -> Report:
        began = time.monotonic()
        async with self.nursery, Runtime(self.url, skills=self.skills()) as rt:  # type: ignore[arg-type]
            await self._trouble(rt)
            await self._settle(rt)
            await self._judge(rt)
        self.report.seconds = time.monotonic() - began
        self.report.faults_done = dict(self.faults)
        return self.report

    async def _trouble(self, rt: Runtime) -> None:
        await self._staff()
        report = self.report
        under_way: set[asyncio.Task[None]] = set()
        share = max(1, round(report.runs / max(1, report.faults)))
        while self.in_time and (len(self.runs) < report.runs or sum(self.faults.values()) < report.faults or under_way):
            await self._staff()
            for _ in range(min(share, report.runs - len(self.runs))):
                greedy = self.greedy_each > 0 and len(self.runs) % self.greedy_each == self.greedy_each // 2
                skill = "greedy" if greedy else self.dice.choice(self.names)
                with contextlib.suppress(HoldfastError):  # a stopped process may hold the file in a commit: the submit is tried again
                    self.runs.append((await rt.submit(skill, {"name": f"{skill}{len(self.runs)}"}, key=f"{skill}{len(self.runs)}")).run_id)
            await asyncio.sleep(self.dice.random() * 0.15)
            more = sum(self.faults.values()) < report.faults
            if more:
                befalling = asyncio.ensure_future(self._strike(rt, self.dice.choice(self.kinds)))
                under_way.add(befalling)
                befalling.add_done_callback(under_way.discard)
            if len(under_way) >= (self.workers_wanted - 1 if more else 1):  # a fault that could not be done is drawn again
                await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        while under_way:
            await asyncio.wait(under_way)
        report.runs_done, report.runs_skipped = len(self.runs), report.runs - len(self.runs)
        report.faults_skipped = report.faults - sum(self.faults.values())

    async def _strike(self, rt: Runtime, fault: str) -> None:
        self.faults[fault] += 1
        try:
            await self._befall(rt, fault)
        except HoldfastError:  # refused, or the file was held: this fault was not done
            self.faults[fault] -= 1

    def _were_struck(self, events: Sequence[EventView]) -> bool:
        """Whether this test killed or stopped every owner from which the run was taken over."""
        lost = [OwnerId.parse(str(e.payload["owner"])) for e in events if e.type == "attempt.lease_expired"]
        return all(o is not None and o.pid in self.struck for o in lost)

    async def _befall(self, rt: Runtime, fault: str) -> None:
        worker = await self._victim(rt)
        run_id = self.dice.choice(self.runs[-20:]) if self.runs else ""
        match fault:
            case "kill":
                self.struck.add(worker.pid)
                worker.kill()
            case "kill_twice":
                self.struck.add(worker.pid)
                worker.kill()
                await worker.gone.wait()
                await self._staff()
                heir = await self._victim(rt)
                await asyncio.sleep(self.dice.random() * 0.4)
                self.struck.add(heir.pid)
                heir.kill()
            case "stop_and_kill" | "stop_and_thaw":
                self.struck.add(worker.pid)
                worker.send(signal.SIGSTOP)
                await asyncio.sleep(LEASE * (1.1 + self.dice.random() * 0.5))
                worker.send(signal.SIGKILL if fault == "stop_and_kill" else signal.SIGCONT)
            case "clock":
                (self.folder / f"clock-{worker.pid}").write_text(str(self.dice.choice((-3600, -60, 60, 3600))))
            case "cancel":
                await rt.cancel(run_id, actor="chaos")
                self.told.append((run_id, "cancel"))
            case "decide":
                await self._answer(rt, await rt.get(run_id))
            case "signal":
                await rt.signal(run_id, "go", key=f"k{len(self.told)}")
                self.told.append((run_id, "signal.received"))

    async def _answer(self, rt: Runtime, run: Run[object]) -> bool:
        """Answers what a run asks people, as a person who looks outside would. Returns whether the run asked anything."""
        for wait in run.waits:
            if wait.kind == "effect":
                self.report.asked_people += 1
                done = self._act_of(run, len([e for e in await rt.effects(run.run_id) if e.status == "recorded"]))
                action = "record_result" if done in self.outside.list_done() else "reexecute"
                await rt.decide(run.run_id, action, wait_id=wait.wait_id, actor="chaos", payload=done if action == "record_result" else None)
                self.told.append((run.run_id, "wait.decided"))
                return True
            if "approve" in wait.available_actions:
                await rt.decide(run.run_id, "approve", wait_id=wait.wait_id, actor="chaos")
                self.told.append((run.run_id, "wait.decided"))
                return True
        return False

    def _act_of(self, run: Run[object], number: int) -> str:
        """Returns what the next act of a run writes outside."""
        return f"{run.record.request_key}.{number}"

    async def _settle(self, rt: Runtime) -> None:
        """Makes no more faults: sets the clocks right, answers questions, and waits until every run has ended."""
        for file in self.folder.glob("clock-*"):
            file.unlink()
        left, stood = set(self.runs), dict.fromkeys(self.runs, -1)
        until = time.monotonic() + STUCK_SECONDS
        while left and time.monotonic() < until:
            await self._staff()
            for run_id in sorted(left):
                with contextlib.suppress(HoldfastError):
                    run = await rt.get(run_id)
                    if run.version != stood[run_id]:  # a busy machine is slow: give up only when no run has changed for STUCK_SECONDS
                        stood[run_id], until = run.version, time.monotonic() + STUCK_SECONDS
                    if run.status in TERMINAL:
                        left.discard(run_id)
                    elif not await self._answer(rt, run) and any(w.kind == "signal" for w in run.waits):
                        await rt.signal(run_id, "go", key="settled")
            await rt.store.wait_for_change(0.2)

    async def _judge(self, rt: Runtime) -> None:
        wrong, told = self.report.wrong, Counter(self.told)
        twice = [what for what, n in Counter(self.outside.list_done()).items() if n > 1]
        self.report.acts = len(self.outside.list_done())
        wrong += [f"{what} was done twice" for what in twice]
        ends: Counter[str] = Counter()
        for run_id in self.runs:
            run = await rt.get(run_id)
            events = await rt.events(run_id)
            kinds = Counter(e.type for e in events)
            ends[str(run.status if run.status in TERMINAL else run.condition)] += 1
            if run.status not in TERMINAL and not run.waits and run.condition != "interrupted":
                wrong.append(f"{run_id} has not ended and waits for nobody: {run.condition}")
            text = json.dumps([e.payload for e in events], default=str)
            if run.stop_reason in ("takeover_limit", "lease_too_short") and self._were_struck(events):
                self.report.limited += 1  # this test killed or stopped each of its owners, so the stop reason is right
                continue
            for code in HOUSE:
                if run.stop_reason == code or f'"code": "{code}"' in text:
                    wrong.append(f"{run_id}: {code} was recorded as an outcome")
            if run.status == "failed" and run.stop_reason not in HOUSE:
                wrong.append(f"{run_id} failed, which no node of it does: {run.stop_reason}")
            refused = text.count("was refused") + text.count("changed nothing")
            if told[run_id, "cancel"] and not (kinds["run.cancel_requested"] or kinds["run.canceled"] or refused):
                wrong.append(f"{run_id}: a cancel was accepted, but the log does not show it")
            for kind in ("wait.decided", "signal.received"):
                if told[run_id, kind] and not (kinds[kind] or refused or run.status == "canceled"):
                    wrong.append(f"{run_id}: {kind} was accepted, but the log does not show it")
        self.report.ended = dict(ends)


async def chaos(*, runs: int = 100, faults: int = 50, seed: int = 0, budget: float = 0.5) -> Report:
    """Runs one round in a folder of its own. After ``budget`` minutes no more faults are made; what was not done is counted as skipped."""
    with tempfile.TemporaryDirectory(prefix="holdfast-chaos-") as folder:
        return await Chaos(Path(folder), runs=runs, faults=faults, seed=seed, budget=budget).go()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=100, help="short runs to submit (2000 in a long test)")
    parser.add_argument("--faults", type=int, default=50, help="how many faults and commands (1000 in a long test)")
    parser.add_argument("--seed", type=int, default=int(dt.datetime.now(dt.UTC).timestamp()), help="the seed that chooses the faults; it is printed")
    parser.add_argument("--budget", type=float, default=0.5, metavar="MINUTES", help="minutes after which no more faults are made (30 in a long test)")
    parser.add_argument("--nursery", nargs=2, metavar=("URL", "FOLDER"), help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.nursery:
        url, folder = asked.nursery
        tend(lambda: asyncio.run(work(url, Path(folder))))
        return 0
    report = asyncio.run(chaos(runs=asked.runs, faults=asked.faults, seed=asked.seed, budget=asked.budget))
    sys.stdout.write(report.text() + "\n")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

__all__ = ["Chaos", "Report", "chaos", "main"]

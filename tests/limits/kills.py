"""Kills workers that hold limited runs, and looks at how many were under way at once (§10.11, X-15).

    uv run python -m tests.limits.kills --workers 20 --runs 2000 --kills 100 --budget 10
    uv run python -m tests.limits.kills --backlog 100000

Every run writes a line when its step begins and when it has ended. What must hold: never more at once than the queue may, nor than a tenant
may; in no second do more begin than the rate, the bucket and those that may be late together; what a killed holder had is free within a lease and a
second; and every run ends. With ``--backlog`` one worker serves two tenants: how long the runs of the one take while the other has a hundred
runs waiting, and while it has that many.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import Context, Graph, Limit, Runtime, State

LEASE = 2.0
QUEUE, TENANT, RATE, BURST = 5, 2, 50.0, 5
LIMITS = {"queue:default": Limit(in_flight=QUEUE, per_second=RATE, burst=BURST), "tenant:*": Limit(in_flight=TENANT)}


class Load(State):
    log: str = ""
    pause: float = 0.1


graph: Graph[Load] = Graph("load", Load, version="1")


@graph.node(start=True)
async def work(state: Load, ctx: Context) -> None:
    _write(state.log, "b", ctx.run.run_id, ctx.run.tenant_id)
    await asyncio.sleep(random.uniform(0.2, 1.8) * state.pause)
    _write(state.log, "e", ctx.run.run_id, ctx.run.tenant_id)


def _write(path: str, *words: str) -> None:
    if path:
        with open(path, "a") as file:
            file.write(f"{' '.join((*words, str(os.getpid()), str(time.monotonic())))}\n")


async def worker(folder: Path) -> None:
    async with Runtime(f"sqlite:///{folder}/a.db", skills=[graph], lease=LEASE, limits=LIMITS) as rt:
        await rt.worker(concurrency=3, dispatch=False)


def forking(folder: Path) -> None:
    """Has everything imported, and forks a worker for each line that it reads, so that a kill costs no start."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(0)
            os.close(1)
            asyncio.run(worker(folder))
            os._exit(0)
        print(pid, flush=True)


class Line(NamedTuple):
    what: str
    run_id: str
    tenant: str
    pid: int
    at: float


def lines(path: Path) -> list[Line]:
    if not path.exists():
        return []
    whole = [text.split() for text in path.read_text().splitlines()]
    return [Line(w, r, t, int(p), float(at)) for w, r, t, p, at in (x for x in whole if len(x) == 5)]


def most_at_once(log: list[Line], killed: dict[int, float]) -> tuple[int, int]:
    """The most that were under way at once, in all and of one tenant; what a killed worker did ended with it."""
    ends = {(x.run_id, x.pid): x.at for x in log if x.what == "e"}
    moves: list[tuple[float, int, str]] = []
    for x in log:
        if x.what == "b":
            moves += [(x.at, 1, x.tenant), (ends.get((x.run_id, x.pid), killed.get(x.pid, float("inf"))), -1, x.tenant)]
    now: Counter[str] = Counter()
    every = mine = 0
    for _, step, tenant in sorted(moves, key=lambda m: (m[0], m[1])):
        now[tenant] += step
        every, mine = max(every, now.total()), max(mine, now[tenant])
    return every, mine


def most_in_a_second(log: list[Line]) -> int:
    times = sorted(x.at for x in log if x.what == "b")
    return max((sum(1 for t in times[n:] if t < first + 1.0) for n, first in enumerate(times)), default=0)


class Nursery:
    """A process that has everything imported and forks a worker when it is asked to."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.limits.kills", "--nursery", str(folder)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def spawn(self) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        print("go", file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


async def torment(folder: Path, workers: int, runs: int, kills: int, until: float, seed: int) -> dict[str, Any]:
    dice, log, nursery = random.Random(seed), folder / "log.txt", Nursery(folder)
    killed: dict[int, float] = {}
    async with Runtime(f"sqlite:///{folder}/a.db", skills=[graph]) as rt:
        made = [(await rt.submit(graph, {"log": str(log)}, tenant_id="abc"[n % 3])).run_id for n in range(runs)]
        up = [nursery.spawn() for _ in range(workers)]
        try:
            while time.monotonic() < until:
                await asyncio.sleep(0.05)
                ended = len({x.run_id for x in lines(log) if x.what == "e"})
                if ended >= runs:
                    break
                if len(killed) < kills:
                    open_now = {(x.run_id, x.pid) for x in lines(log) if x.what == "b"} - {(x.run_id, x.pid) for x in lines(log) if x.what == "e"}
                    holding = [pid for pid in up if any(p == pid for _, p in open_now)]
                    if not holding:
                        continue
                    victim = dice.choice(holding)
                    killed[victim] = time.monotonic()
                    os.kill(victim, signal.SIGKILL)
                    up[up.index(victim)] = nursery.spawn()
            with contextlib.suppress(TimeoutError):  # what has not ended within the budget is told as skipped
                for run_id in made:
                    await rt.result(run_id, timeout=max(1.0, until - time.monotonic()))
            left = Counter([str((await rt.get(run_id)).status) for run_id in made])
        finally:
            for pid in up:
                os.kill(pid, signal.SIGKILL)
            nursery.close()
    log_ = lines(log)
    every, mine = most_at_once(log_, killed)
    begins = sorted(x.at for x in log_ if x.what == "b")
    free = [next((b for b in begins if b > at), at) - at for at in killed.values() if begins and begins[0] < at < begins[-1]]
    a_second = most_in_a_second(log_)
    found: dict[str, Any] = {
        "workers": workers, "runs": runs, "ended": dict(left), "killed_holders": len(killed), "begun": len(begins),
        "skipped_runs": runs - left["completed"], "skipped_kills": kills - len(killed),
        "at_once": every, "of_one_tenant": mine, "in_a_second": a_second, "free_again_s": round(max(free, default=0.0), 3),
    }
    found["violations"] = [
        what for what, wrong in (
            ("queue", every > QUEUE), ("tenant", mine > TENANT), ("rate", a_second > RATE + BURST + QUEUE), ("free", max(free, default=0.0) > LEASE + 1),
            ("failed", any(left[status] for status in ("failed", "canceled"))),
        ) if wrong
    ]
    return found


async def latency(rt: Runtime, count: int) -> list[float]:
    """How long each of so many runs of the small tenant took, in ms, one after the other."""
    out = []
    for _ in range(count):
        began = time.monotonic()
        run = await rt.submit(graph, {"pause": 0.002}, tenant_id="small")
        await rt.result(run.run_id, timeout=60)
        out.append((time.monotonic() - began) * 1000)
    return sorted(out)


async def fair(folder: Path, backlog: int, count: int) -> dict[str, Any]:
    """One worker, two tenants: the small one's p50 and p99 beside a hundred waiting runs of the big one, and beside ``backlog``."""
    found: dict[str, Any] = {"backlog": backlog}
    for name, waiting in (("beside_100", 100), ("beside_backlog", backlog)):
        async with Runtime(f"sqlite:///{folder}/{name}.db", skills=[graph]) as rt:
            for first in range(0, waiting, 500):
                await asyncio.gather(*(rt.submit(graph, {"pause": 0.02}, tenant_id="big") for _ in range(min(500, waiting - first))))
            stop = asyncio.Event()
            working = asyncio.ensure_future(rt.worker(concurrency=10, stop=stop, dispatch=False))

            async def feed(most: int = waiting) -> None:
                while True:
                    depth = sum(q.depth for q in await rt.queues())
                    await asyncio.gather(*(rt.submit(graph, {"pause": 0.02}, tenant_id="big") for _ in range(max(0, min(50, most - depth)))))
                    await asyncio.sleep(0.1)

            feeding = asyncio.ensure_future(feed()) if waiting <= 100 else None
            await latency(rt, 20)
            times = await latency(rt, count)
            if feeding is not None:
                feeding.cancel()
            found[name] = {"p50_ms": round(times[len(times) // 2], 1), "p99_ms": round(times[int(len(times) * 0.99)], 1)}
            stop.set()
            await working
    found["p99_ratio"] = round(found["beside_backlog"]["p99_ms"] / found["beside_100"]["p99_ms"], 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--budget", type=float, default=10, help="minutes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backlog", type=int, default=0)
    parser.add_argument("--nursery", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.nursery is not None:
        forking(given.nursery)
        return
    with tempfile.TemporaryDirectory() as folder:
        if given.backlog:
            print(asyncio.run(fair(Path(folder), given.backlog, 300)))
            return
        found = asyncio.run(torment(Path(folder), given.workers, given.runs, given.kills, time.monotonic() + given.budget * 60, given.seed))
    print(found)
    sys.exit(1 if found["violations"] or found["skipped_runs"] or found["skipped_kills"] else 0)


if __name__ == "__main__":
    main()

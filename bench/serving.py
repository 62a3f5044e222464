"""What serving costs: ``uv run python bench/serving.py`` (about twenty minutes alone on two cores; ``--runs 2000 --steps 1000 --budget 5`` for a small round).

One server over a SQLite store beside a worker under load in another process. It prints a row for each figure that is asked for, and whether it holds:
reads of lists and of a run of 10,000 steps (p99 ≤ 50 ms with 100,000 runs), the run page (≤ 300 ms), 1,000 idle listeners (≤ 100 MB), 200 listeners on one busy
run (each gets everything), and from an event's commit to its line on a stream (≤ 100 ms).

Before that it asks the same of LangGraph's server for development (``peer_server.py``; a third of the budget, five minutes at most) and prints its figures
beside. It is installed when it is first needed, as the peers of ``run.py`` are; ``--peer none`` leaves it out.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import json
import re
import sys
import tempfile
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
from asking import at, frames, memory, reads, silent, worked
from peer_server import Beside, PeerMissing, measured
from record import Recorder

from holdfast import END, Context, Graph, Runtime, State

HERE = Path(__file__).resolve()


class Count(State):
    n: int = 0
    until: int = 1
    pause: float = 0.0


def line() -> Graph[Count]:
    g = Graph("line", Count)

    @g.node(start=True)
    async def step(state: Count, ctx: Context) -> dict[str, Any]:
        if state.pause:
            await asyncio.sleep(state.pause)
            ctx.emit(time.time_ns())
        return {"n": state.n + 1}

    g.branch("step", lambda s: "step" if s.n < s.until else END)
    return g


LINE = line()
READERS: list[asyncio.Future[bytes]] = []
"""What takes in what the processes say, so that none of them waits for it."""


MEASURED: list[dict[str, object]] = []


PEER_SECONDS = 300.0


class Table:
    """Rows of ours beside a peer's, if there is one: printed at once, and kept."""

    def __init__(self, beside: Beside | None) -> None:
        self._beside = beside
        if beside is not None:
            print(f"{'':<58} {'ours':>18} {'LangGraph':>18}", flush=True)

    def row(self, name: str, what: str, found: str, wanted: str, holds: bool) -> None:
        told: dict[str, object] = {"row": what, "found": found, "wanted": wanted, "holds": holds}
        peer = ""
        if self._beside is not None:
            theirs = self._beside.found.get(name)
            told["langgraph"] = theirs
            peer = f" {theirs or '-':>18}"
        MEASURED.append(told)
        print(f"{what:<58} {found:>18}{peer}   {wanted:<12} {'holds' if holds else 'MISSED'}", flush=True)

    def end(self) -> None:
        """What is to be known of the peer's figures."""
        if self._beside is not None:
            print("\nLangGraph's server, in memory; ours on a disk:")
            for note in self._beside.notes:
                print(f"- {note}")
            MEASURED.append({"row": "about LangGraph's server", "notes": self._beside.notes})


async def filled(url: str, runs: int, steps: int) -> str:
    """The store: so many runs, and one of so many steps, whose id it gives."""
    async with Runtime(url, skills=[LINE]) as rt:
        long = await rt.invoke(LINE, {"until": steps}, step_limit=steps + 10)
        for first in range(0, runs, 500):
            await asyncio.gather(*(rt.invoke(LINE, {"until": 1}) for _ in range(min(500, runs - first))))
    return long.run_id


async def started(*words: str) -> tuple[asyncio.subprocess.Process, str]:
    command = [sys.executable, "-m", "holdfast", *words]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    told = (await process.stderr.readline()).decode()
    READERS.append(asyncio.ensure_future(process.stderr.read()))
    return process, (re.findall(r"http://[^\s,]+", told) or [""])[0]


async def listen(place: str, run_id: str, up: asyncio.Event, late: list[float] | None = None) -> list[int]:
    """The numbers of all events that a listener is given."""
    seen: list[int] = []
    kind = b""
    async with aclosing(frames(place, f"/v1/runs/{run_id}/stream", up)) as lines:
        async for name, value in lines:
            if name == b"id":
                seen.append(int(value))
            elif name == b"event":
                kind = value
            elif late is not None and kind == b"step.completed" and name == b"data":
                late.append((time.time() - dt.datetime.fromisoformat(json.loads(value)["occurred_at"]).timestamp()) * 1000)
    return seen


async def main(runs: int, steps: int, idle: int, busy: int, reading: int, beside: Beside | None) -> int:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/runs.db"
        began = time.monotonic()
        long = await filled(url, runs, steps)
        print(f"{runs:,} runs, one of {steps:,} steps: {time.monotonic() - began:.0f} s", flush=True)
        server, place = await started("serve", "--no-auth", "--port", "0", "--store", url)
        worker, _ = await started("worker", f"{HERE}:LINE", "--store", url)
        limits = httpx.Limits(max_connections=None)
        table = Table(beside)
        carried = 0
        try:
            async with Runtime(url, skills=[LINE]) as rt, httpx.AsyncClient(base_url=place, timeout=60, limits=limits) as http:
                stop = asyncio.Event()

                async def load() -> None:
                    nonlocal carried
                    while not stop.is_set():
                        await rt.submit(LINE, {"until": 50})
                        carried += 1
                        await asyncio.sleep(0.02)

                loading = asyncio.ensure_future(load())
                since = time.monotonic()
                for key, name, path in (
                    ("list", "list 50 runs", "/v1/runs?limit=50"), ("waiting", "list those that wait", "/v1/runs?condition=awaiting_gate_decision&limit=50"),
                    ("inbox", "the inbox", "/v1/waits"), ("short", "a short run", f"/v1/runs/{(await rt.runs(limit=1))[0].run_id}"),
                    ("long", f"a run of {steps:,} steps", f"/v1/runs/{long}"), ("events", "its events", f"/v1/runs/{long}/events?after={2 * steps - 100}"),
                ):
                    took = await reads(http, path, reading)
                    table.row(key, f"read beside load: {name}, p50 / p99", f"{at(took, 0.5):.1f} / {at(took, 0.99):.1f} ms", "p99 ≤ 50 ms", at(took, 0.99) <= 50)
                for key, name, path in (("page-long", f"run page, {steps:,} steps", f"/runs/{long}"), ("page-overview", "overview", "/"), ("page-runs", "runs", "/runs")):
                    took = await reads(http, path, max(10, reading // 10))
                    table.row(key, f"page beside load: {name}, p50 / p99", f"{at(took, 0.5):.0f} / {at(took, 0.99):.0f} ms", "p99 ≤ 300 ms", at(took, 0.99) <= 300)
                stop.set()
                await loading
                print(f"{'':<4}beside these, {carried / (time.monotonic() - since):.0f} runs of 50 steps a second were submitted", flush=True)
                resting = (await rt.submit(LINE, {"until": 1}, delay=3600)).run_id
                before = memory(server.pid)
                ups = [asyncio.Event() for _ in range(idle)]
                listeners = [asyncio.ensure_future(silent(place, f"/v1/runs/{resting}/stream", up)) for up in ups]
                await asyncio.gather(*(up.wait() for up in ups))
                await asyncio.sleep(2)
                grown = memory(server.pid) - before
                table.row("idle", f"{idle:,} idle listeners, memory of the server", f"{grown:.0f} MB", "≤ 100 MB", grown <= 100)
                for each in listeners:
                    each.cancel()
                await asyncio.gather(*listeners, return_exceptions=True)
                used = worked(server.pid)
                run = await rt.submit(LINE, {"until": 200, "pause": 0.05})
                late: list[float] = []
                ups = [asyncio.Event() for _ in range(busy)]
                lists = [asyncio.ensure_future(listen(place, run.run_id, up, late if n == 0 else None)) for n, up in enumerate(ups)]
                seen = await asyncio.gather(*lists)
                events = [e.seq for e in await rt.events(run.run_id)]
                whole = sum(s == events for s in seen)
                table.row("busy", f"{busy} listeners on a busy run of {len(events)} events", f"{whole} got all", f"{busy}", whole == busy)
                used = worked(server.pid) - used
                print(f"{'':<4}of the server this took {used:.1f} s of a processor: {used / busy / len(events) * 1e6:.0f} us for each event of each listener", flush=True)
                if late:
                    table.row("late", "from an event's commit to its line on a stream, p50 / p99", f"{at(late, 0.5):.0f} / {at(late, 0.99):.0f} ms", "p99 ≤ 100 ms", at(late, 0.99) <= 100)
        finally:
            for process in (server, worker):
                process.terminate()
                await process.wait()
        table.end()
    return 0


async def everything(given: argparse.Namespace, versions: dict[str, str]) -> int:
    """The exit code; the version of the peer is put among the others."""
    asked = (given.runs, given.steps, given.idle, given.busy, given.reads)
    beside = None if given.peer == "none" else await measured(*asked, seconds=min(PEER_SECONDS, given.budget * 60 / 3))
    if beside is not None:
        versions["langgraph-api"] = beside.version
    return await main(*asked, beside)


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--runs", type=int, default=100_000)
    asked.add_argument("--steps", type=int, default=10_000)
    asked.add_argument("--idle", type=int, default=1_000)
    asked.add_argument("--busy", type=int, default=200)
    asked.add_argument("--reads", type=int, default=300)
    asked.add_argument("--budget", type=float, default=40, metavar="MINUTES")
    asked.add_argument("--peer", choices=("langgraph", "none"), default="langgraph", help="whose server is asked the same, beside ours (default: langgraph; it is installed when it is first needed)")
    Recorder.options(asked)
    given = asked.parse_args()
    recorder = Recorder.of(given)
    versions: dict[str, str] = {}
    try:
        code = asyncio.run(asyncio.wait_for(everything(given, versions), given.budget * 60))
    except PeerMissing as e:
        print(e, file=sys.stderr)
        sys.exit(2)
    except TimeoutError:
        print(f"the budget of {given.budget:g} minutes ended before the last rows: --budget gives it more, or fewer --runs and --steps", file=sys.stderr)
        code = 1
    recorder.write(MEASURED, **versions)
    sys.exit(code)

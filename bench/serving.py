"""What serving costs: ``uv run python bench/serving.py`` (about fifteen minutes alone on two cores; ``--runs 2000 --steps 1000 --budget 3`` for a small round).

One server over a SQLite store beside a worker under load in another process. It prints a row for each figure that is asked for, and whether it holds:
reads of lists and of a run of 10,000 steps (p99 ≤ 50 ms with 100,000 runs), the run page (≤ 300 ms), 1,000 idle listeners (≤ 100 MB), 200 listeners on one busy
run (each gets everything), and from an event's commit to its line on a stream (≤ 100 ms).
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
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


def at(values: Sequence[float], part: float) -> float:
    found = sorted(values)
    return found[min(len(found) - 1, int(len(found) * part))]


MEASURED: list[dict[str, object]] = []


def row(what: str, found: str, wanted: str, holds: bool) -> None:
    MEASURED.append({"row": what, "found": found, "wanted": wanted, "holds": holds})
    print(f"{what:<58} {found:>18}   {wanted:<12} {'holds' if holds else 'MISSED'}", flush=True)


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


def memory(pid: int) -> float:
    return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) / 1024


def worked(pid: int) -> float:
    """Seconds that a process has used a processor."""
    told = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")


async def reads(http: httpx.AsyncClient, path: str, count: int) -> list[float]:
    took = []
    for _ in range(count):
        began = time.perf_counter()
        answer = await http.get(path)
        took.append((time.perf_counter() - began) * 1000)
        assert answer.status_code == 200, answer.text[:300]
    return took


async def listen(place: str, run_id: str, up: asyncio.Event, late: list[float] | None = None) -> list[int]:
    """The numbers of all events that a listener is given. It reads the socket itself: a client with more comforts would be what is measured."""
    at = urlsplit(place)
    reader, writer = await asyncio.open_connection(at.hostname, at.port, limit=2**20)
    writer.write(f"GET /v1/runs/{run_id}/stream HTTP/1.1\r\nHost: {at.netloc}\r\n\r\n".encode())
    seen: list[int] = []
    kind = b""
    try:
        async for text in reader:
            up.set()
            if text.startswith(b"id: "):
                seen.append(int(text[4:]))
            elif text.startswith(b"event: "):
                kind = text[7:].strip()
            elif late is not None and kind == b"step.completed" and text.startswith(b"data: "):
                late.append((time.time() - dt.datetime.fromisoformat(json.loads(text[6:])["occurred_at"]).timestamp()) * 1000)
            elif text.startswith(b"retry:"):
                break
    finally:
        writer.close()
    return seen


async def main(runs: int, steps: int, idle: int, busy: int, reading: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/runs.db"
        began = time.monotonic()
        long = await filled(url, runs, steps)
        print(f"{runs:,} runs, one of {steps:,} steps: {time.monotonic() - began:.0f} s", flush=True)
        server, place = await started("serve", "--no-auth", "--port", "0", "--store", url)
        worker, _ = await started("worker", f"{HERE}:LINE", "--store", url)
        limits = httpx.Limits(max_connections=None)
        try:
            async with Runtime(url, skills=[LINE]) as rt, httpx.AsyncClient(base_url=place, timeout=60, limits=limits) as http:
                stop = asyncio.Event()

                async def load() -> None:
                    while not stop.is_set():
                        await rt.submit(LINE, {"until": 50})
                        await asyncio.sleep(0.02)

                loading = asyncio.ensure_future(load())
                for name, path in (
                    ("list 50 runs", "/v1/runs?limit=50"), ("list those that wait", "/v1/runs?condition=awaiting_gate_decision&limit=50"), ("the inbox", "/v1/waits"),
                    ("a short run", f"/v1/runs/{(await rt.runs(limit=1))[0].run_id}"), (f"a run of {steps:,} steps", f"/v1/runs/{long}"),
                    ("its events", f"/v1/runs/{long}/events?after={2 * steps - 100}"),
                ):  # fmt: skip
                    took = await reads(http, path, reading)
                    row(f"read beside load: {name}, p50 / p99", f"{at(took, 0.5):.1f} / {at(took, 0.99):.1f} ms", "p99 ≤ 50 ms", at(took, 0.99) <= 50)
                for name, path in ((f"run page, {steps:,} steps", f"/runs/{long}"), ("overview", "/"), ("runs", "/runs")):
                    took = await reads(http, path, max(10, reading // 10))
                    row(f"page beside load: {name}, p50 / p99", f"{at(took, 0.5):.0f} / {at(took, 0.99):.0f} ms", "p99 ≤ 300 ms", at(took, 0.99) <= 300)
                stop.set()
                await loading
                resting = (await rt.submit(LINE, {"until": 1}, delay=3600)).run_id
                before = memory(server.pid)
                ups = [asyncio.Event() for _ in range(idle)]
                listeners = [asyncio.ensure_future(listen(place, resting, up)) for up in ups]
                await asyncio.gather(*(up.wait() for up in ups))
                await asyncio.sleep(2)
                grown = memory(server.pid) - before
                row(f"{idle:,} idle listeners, memory of the server", f"{grown:.0f} MB", "≤ 100 MB", grown <= 100)
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
                row(f"{busy} listeners on a busy run of {len(events)} events", f"{whole} got all", f"{busy}", whole == busy)
                used = worked(server.pid) - used
                print(f"{'':<4}of the server this took {used:.1f} s of a processor: {used / busy / len(events) * 1e6:.0f} us for each event of each listener", flush=True)
                if late:
                    row("from an event's commit to its line on a stream, p50 / p99", f"{at(late, 0.5):.0f} / {at(late, 0.99):.0f} ms", "p99 ≤ 100 ms", at(late, 0.99) <= 100)
        finally:
            for process in (server, worker):
                process.terminate()
                await process.wait()
    return 0


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--runs", type=int, default=100_000)
    asked.add_argument("--steps", type=int, default=10_000)
    asked.add_argument("--idle", type=int, default=1_000)
    asked.add_argument("--busy", type=int, default=200)
    asked.add_argument("--reads", type=int, default=300)
    asked.add_argument("--budget", type=float, default=40, metavar="MINUTES")
    Recorder.options(asked)
    given = asked.parse_args()
    recorder = Recorder.of(given)
    code = asyncio.run(asyncio.wait_for(main(given.runs, given.steps, given.idle, given.busy, given.reads), given.budget * 60))
    recorder.write(MEASURED)
    sys.exit(code)

"""LangGraph's server beside ours: what ``serving.py`` asks of ours, asked of ``langgraph dev``, its server for development, by the same client.

It keeps everything in its own memory and drives the runs in its own process; no account and no network are needed. Threads stand for
runs, a thread's history for a run's events. What it has no counterpart for is not measured, and the reason is told.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from asking import at, frames, memory, reads, silent, worked
from run import interpreter

WHO = "langgraph_server"
JOBS = 10  # the number of runs at once that its documentation gives as the default
CLIENTS = 32  # that fill it
LOADING = 4  # that keep it busy while it is read

GRAPH = '''
import asyncio, time
from typing import TypedDict
from langgraph.graph import END, START, StateGraph

class Count(TypedDict, total=False):
    n: int
    until: int
    pause: float
    at: float

async def step(state):
    if state.get("pause"):
        await asyncio.sleep(state["pause"])
    return {"n": state.get("n", 0) + 1, "at": time.time()}

g = StateGraph(Count)
g.add_node("step", step)
g.add_edge(START, "step")
g.add_conditional_edges("step", lambda s: "step" if s["n"] < s["until"] else END, ["step", END])
graph = g.compile()
'''


class PeerMissing(Exception):
    """The peer's server cannot be run here; the words say why, and what to do."""


@dataclass
class Beside:
    """What was measured of a peer: by row, what is printed, or None and why not."""

    version: str
    found: dict[str, str | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def missing(self, row: str, why: str) -> None:
        self.found[row] = None
        self.notes.append(f"{row}: {why}")


def installed() -> tuple[Path, str]:
    """Its command and version; its environment is made when it is first needed.

    Raises:
        PeerMissing: it cannot be installed.
    """
    way = f"uv pip install -r bench/requirements/{WHO}.txt into an environment of its own and name that in BENCH_{WHO.upper()}; or leave it out: --peer none"
    try:
        python = Path(interpreter(WHO))
        asked = "import importlib.metadata; print(importlib.metadata.version('langgraph-api'))"
        version = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as e:
        raise PeerMissing(f"LangGraph's server is not installed and could not be ({e}). The way out: {way}") from e
    return python.parent / "langgraph", version


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@asynccontextmanager
async def served() -> AsyncIterator[tuple[str, int]]:
    """The server over a folder of its own: its address and the number of its process.

    Raises:
        PeerMissing: it did not come up within a minute.
    """
    command, _ = installed()
    unwanted = ("LANGSMITH_", "LANGCHAIN_", "LANGGRAPH_")  # no account, and nobody's own settings
    settings = {k: v for k, v in os.environ.items() if not k.startswith(unwanted)} | {"LANGGRAPH_CLI_NO_ANALYTICS": "1", "LANGSMITH_TRACING": "false", "LOG_LEVEL": "ERROR"}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "graph.py").write_text(GRAPH)
        (Path(folder) / "langgraph.json").write_text(json.dumps({"dependencies": ["."], "graphs": {"line": "./graph.py:graph"}}))
        port = free_port()
        said = Path(folder) / "said"
        with said.open("wb") as out:
            words = ["dev", "--no-browser", "--no-reload", "--port", str(port), "--n-jobs-per-worker", str(JOBS)]
            process = await asyncio.create_subprocess_exec(command, *words, cwd=folder, env=settings, stdout=out, stderr=out)
        place = f"http://127.0.0.1:{port}"
        try:
            async with httpx.AsyncClient(base_url=place) as http:
                until = time.monotonic() + 60
                while True:
                    with suppress(httpx.TransportError):
                        if (await http.get("/ok")).status_code == 200:
                            break
                    if process.returncode is not None or time.monotonic() > until:
                        last = (said.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
                        raise PeerMissing(f"LangGraph's server did not start: {last[:300]}. To leave it out: --peer none")
                    await asyncio.sleep(0.1)
            yield place, process.pid
        finally:
            if process.returncode is None:
                process.terminate()
                try:
                    await asyncio.wait_for(process.wait(), 10)
                except TimeoutError:
                    process.kill()
                    await process.wait()


async def thread(http: httpx.AsyncClient) -> str:
    return str((await http.post("/threads", json={})).json()["thread_id"])


async def begun(http: httpx.AsyncClient, thread_id: str, given: Mapping[str, float], **more: object) -> str:
    """A run on a thread; its id."""
    body = {"assistant_id": "line", "input": {"n": 0, **given}, "config": {"recursion_limit": int(given["until"]) + 10}, **more}
    answer = await http.post(f"/threads/{thread_id}/runs", json=body)
    assert answer.status_code == 200, answer.text[:300]
    return str(answer.json()["run_id"])


async def done(http: httpx.AsyncClient, until: int) -> str:
    """A run of so many steps on a thread of its own, waited for; the thread."""
    made = await thread(http)
    await http.get(f"/threads/{made}/runs/{await begun(http, made, {'until': until})}/join")
    return made


async def filled(http: httpx.AsyncClient, runs: int, seconds: float) -> int:
    """As many threads with a run of one step as fit into the time; gives how many."""
    until, left, made = time.monotonic() + seconds, runs, 0

    async def one() -> None:
        nonlocal left, made
        while left > 0 and time.monotonic() < until:
            left -= 1
            await done(http, 1)
            made += 1

    await asyncio.gather(*(one() for _ in range(CLIENTS)))
    return made


async def lengthened(http: httpx.AsyncClient, steps: int, seconds: float) -> tuple[str, int]:
    """A thread with a run of so many steps, or of those that fit into the time."""
    long = await thread(http)
    run = await begun(http, long, {"until": steps})
    with suppress(TimeoutError):
        await asyncio.wait_for(http.get(f"/threads/{long}/runs/{run}/join"), seconds)
    n = int((await http.get(f"/threads/{long}")).json()["values"].get("n", 0))
    if n < steps:
        await http.post(f"/threads/{long}/runs/{run}/cancel", params={"wait": "true"})
    return long, n


async def heard(place: str, path: str, up: asyncio.Event, late: list[float] | None) -> list[int]:
    """The numbers of all steps that a listener is told of."""
    seen: list[int] = []
    kind = b""
    async with aclosing(frames(place, path, up, "Last-Event-ID: -1\r\n")) as lines:
        async for name, value in lines:
            if name == b"event":
                kind = value
            elif name == b"data" and kind == b"updates":
                told = json.loads(value)["step"]
                seen.append(told["n"])
                if late is not None:
                    late.append((time.time() - told["at"]) * 1000)
    return seen


async def measured(runs: int, steps: int, idle: int, busy: int, reading: int, seconds: float) -> Beside:
    """The rows of ``serving.py``, by their names there. ``seconds``: how long it may take at most, two fifths of it to fill the server."""
    beside = Beside(installed()[1])
    try:
        await asyncio.wait_for(_measure(beside, runs, steps, idle, busy, reading, seconds), seconds)
    except TimeoutError:
        beside.notes.append(f"what is not shown did not fit into its {seconds:.0f} s")
    return beside


async def _measure(beside: Beside, runs: int, steps: int, idle: int, busy: int, reading: int, seconds: float) -> None:
    limits = httpx.Limits(max_connections=None)
    async with served() as (place, pid), httpx.AsyncClient(base_url=place, timeout=max(60.0, seconds), limits=limits) as http:
        began = time.monotonic()
        made = await filled(http, runs, seconds / 5)
        long, n = await lengthened(http, steps, seconds / 5)
        print(f"LangGraph's server {beside.version}: {made:,} threads of {runs:,}, one of {n:,} steps of {steps:,}: {time.monotonic() - began:.0f} s", flush=True)
        beside.notes.append(f"it holds {made:,} threads of one run each, and one of {n:,} steps: what fitted into {time.monotonic() - began:.0f} s")
        stop = asyncio.Event()
        carried = 0

        async def load() -> None:
            nonlocal carried
            while not stop.is_set():
                await done(http, 50)
                carried += 1
                await asyncio.sleep(0.02)

        loading = [asyncio.ensure_future(load()) for _ in range(LOADING)]
        since = time.monotonic()
        newest = (await http.post("/threads/search", json={"limit": 1})).json()[0]["thread_id"]
        asked: tuple[tuple[str, str, object], ...] = (
            ("list", "/threads/search", {"limit": 50}), ("waiting", "/threads/search", {"status": "interrupted", "limit": 50}),
            ("short", f"/threads/{newest}", None), ("long", f"/threads/{long}", None), ("events", f"/threads/{long}/history", {"limit": 100}),
        )
        for name, path, body in asked:
            took = await reads(http, path, reading, body, seconds=seconds / 20)
            beside.found[name] = f"{at(took, 0.5):.1f} / {at(took, 0.99):.1f} ms"
            if len(took) < reading:
                beside.notes.append(f"{name}: {len(took)} reads of {reading} fitted into the time")
        stop.set()
        await asyncio.gather(*loading)
        took_s = time.monotonic() - since
        beside.notes.append(f"load beside the reads: {carried / took_s:.1f} runs of 50 steps a second, which is what {LOADING} clients that wait for each run get from it")
        beside.missing("inbox", "no list of questions; threads that are interrupted are listed, as in the row above")
        for name in ("page-long", "page-overview", "page-runs"):
            beside.missing(name, "no pages of its own: Studio is a service elsewhere, with an account")
        resting = await thread(http)
        run = await begun(http, resting, {"until": 1}, after_seconds=3600)
        before = memory(pid)
        ups = [asyncio.Event() for _ in range(idle)]
        listeners = [asyncio.ensure_future(silent(place, f"/threads/{resting}/runs/{run}/stream", up)) for up in ups]
        for up in ups:
            await up.wait()
        await asyncio.sleep(2)
        beside.found["idle"] = f"{memory(pid) - before:.0f} MB"
        for each in listeners:
            each.cancel()
        await asyncio.gather(*listeners, return_exceptions=True)
        used = worked(pid)
        moving = await thread(http)
        run = await begun(http, moving, {"until": 200, "pause": 0.05}, stream_mode=["updates"], stream_resumable=True)
        late: list[float] = []
        path = f"/threads/{moving}/runs/{run}/stream"
        async with asyncio.TaskGroup() as group:
            lists = [group.create_task(heard(place, path, asyncio.Event(), late if k == 0 else None)) for k in range(busy)]
        whole = sum(seen.result() == list(range(1, 201)) for seen in lists)
        beside.found["busy"] = f"{whole} got all"
        used = worked(pid) - used
        beside.notes.append(f"busy: a run of 200 steps is 200 updates; {used:.1f} s of a processor, {used / busy / 200 * 1e6:.0f} us for each of each listener, the run itself included")
        if late:
            beside.found["late"] = f"{at(late, 0.5):.0f} / {at(late, 0.99):.0f} ms"
            beside.notes.append("late: from a step's return to its line, for its updates do not carry the time of their commit")

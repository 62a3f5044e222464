"""What sending costs: how fast queued intents are drained, what runs beside pay for it, and how long after its commit an intent is sent.

    uv run python bench/outbox.py drain --count 100000 [--url URL]      about five minutes
    uv run python bench/outbox.py latency --count 500 [--url URL]       about one minute

``drain`` sends to a function that does nothing, and tells how many claims and settlements it took; then again while runs are driven beside it.
``latency`` has one process commit and send, where nothing else is to be done. Without ``--url`` it is SQLite in a folder of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from record import Recorder

from holdfast import Context, Graph, Runtime, State

A_RUN = 500


class Load(State):
    count: int = 0


graph: Graph[Load] = Graph("load", Load, version="1")


@graph.node(start=True)
async def send(state: Load, ctx: Context) -> None:
    for n in range(state.count):
        ctx.send("nothing", {"n": n, "at": time.time()})


def part(times: list[float], share: float) -> float:
    return round(sorted(times)[min(len(times) - 1, int(len(times) * share))] * 1000, 2) if times else 0.0


async def beside(rt: Runtime, stop: asyncio.Event) -> list[tuple[float, float]]:
    """How long each of the runs took that were driven one after the other until ``stop``, by the wall clock and in this process's CPU time,
    which says the same on a machine that does other things besides."""
    times: list[tuple[float, float]] = []
    while not stop.is_set():
        began, cpu = time.perf_counter(), time.process_time()
        await rt.invoke(graph, {})
        times.append((time.perf_counter() - began, time.process_time() - cpu))
        await asyncio.sleep(0.01)
    return times


async def drain(url: str, count: int) -> dict[str, Any]:
    took: dict[str, int] = {"claim_intents": 0, "settle_intents": 0}

    async def nothing(payload: Any, key: str) -> None:
        return None

    found: dict[str, Any] = {"count": count}
    for name in ("alone", "with_runs"):
        async with Runtime(url) as rt:
            for _ in range(count // A_RUN):
                await rt.invoke(graph, {"count": A_RUN})
        async with Runtime(url, transports={"nothing": nothing}) as rt, Runtime(url) as other:
            for verb in took:
                took[verb] = 0
                setattr(rt.store, verb, counting(getattr(rt.store, verb), took, verb))
            stop = asyncio.Event()
            quiet = asyncio.ensure_future(beside(other, stop))
            await asyncio.sleep(2)
            stop.set()
            before = await quiet
            stop.clear()
            driving = asyncio.ensure_future(beside(other, stop)) if name == "with_runs" else None
            began, cpu = time.perf_counter(), time.process_time()
            sent = await rt.dispatch(until_idle=True)
            seconds, used = time.perf_counter() - began, time.process_time() - cpu
            stop.set()
            during = await driving if driving is not None else []
        wall, spent = [seconds for seconds, _ in before], [seconds for _, seconds in before]
        found[name] = {"sent": sent, "per_second": round(sent / seconds), "per_cpu_second": round(sent / used), "calls": dict(took)}
        if during:
            found[name] |= {"runs": len(during), "runs_p99_ms_before": part(wall, 0.99), "runs_p99_ms_during": part([seconds for seconds, _ in during], 0.99)}
            found[name] |= {"runs_p99_cpu_ms_before": part(spent, 0.99), "runs_p99_cpu_ms_during": part([seconds for _, seconds in during], 0.99)}
            found[name] |= {"runs_p50_cpu_ms_before": part(spent, 0.50), "runs_p50_cpu_ms_during": part([seconds for _, seconds in during], 0.50)}
    return found


def counting(verb: Any, took: dict[str, int], name: str) -> Any:
    async def counted(*args: Any, **options: Any) -> Any:
        took[name] += 1
        return await verb(*args, **options)

    return counted


async def latency(url: str, count: int) -> dict[str, Any]:
    times: list[float] = []

    async def note(payload: Any, key: str) -> None:
        times.append(time.time() - payload["at"])

    async with Runtime(url, skills=[graph], transports={"nothing": note}) as rt:
        for _ in range(count):
            await rt.invoke(graph, {"count": 1})
            await asyncio.sleep(0.01)
    return {"one_process": {"count": len(times), "p50_ms": part(times, 0.5), "p99_ms": part(times, 0.99)}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["drain", "latency"])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--url", default="")
    Recorder.options(parser)
    given = parser.parse_args()
    recorder = Recorder.of(given)
    with tempfile.TemporaryDirectory() as folder:
        url = given.url or f"sqlite:///{Path(folder) / 'a.db'}"
        work = drain(url, given.count) if given.what == "drain" else latency(url, given.count)
        found = asyncio.run(work)
    recorder.write({"case": case, **taken} for case, taken in found.items())
    print(json.dumps(found))


if __name__ == "__main__":
    main()

"""What sending costs: how fast queued intents are drained, what runs beside pay for it, and how long after its commit an intent is sent.

    uv run python bench/outbox.py drain --count 100000 [--store postgres | --url URL]      about five minutes
    uv run python bench/outbox.py latency --count 500 [--store postgres | --url URL]       about one minute

``drain`` sends to a function that does nothing, and tells how many claims and settlements it took; then again while runs are driven beside it.
``latency`` has one process commit and send, and then one commit and another send, where nothing else is to be done: the time from the answer
of the commit to the call of the transport. Without ``--url`` it is SQLite in a folder of its own, or a PostgreSQL server of its own, which syncs
each commit and tidies up after itself, as one does that nobody has configured.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from record import Recorder
from sending import graph

from holdfast import Runtime, machine

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

A_RUN = 500
QUIET_SECONDS = 10
"""How long runs are timed before anything is sent: some hundreds, so that their p99 is not the one that was unlucky."""
AS_INSTALLED = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "autovacuum": "on"}


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
    machine.settle()  # as ``holdfast worker`` and ``holdfast dispatch`` do
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
            await asyncio.sleep(QUIET_SECONDS)
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


class Committed:
    """When this process had the answer to a commit with an intent, one after the other."""

    def __init__(self, rt: Runtime) -> None:
        self.at: list[float] = []
        commit = rt.store.commit

        async def committed(what: Any) -> Any:
            tip = await commit(what)
            if getattr(what, "intents", ()):
                self.at.append(time.time())
            return tip

        rt.store.commit = committed


async def latency(url: str, count: int) -> dict[str, Any]:
    sent: list[float] = []

    async def note(payload: Any, key: str) -> None:
        sent.append(time.time())

    async with Runtime(url, transports={"nothing": note}) as rt:
        committed = Committed(rt)
        for _ in range(count):
            await rt.invoke(graph, {"count": 1})
            await asyncio.sleep(0.01)
    found = {"one_process": told(committed.at, sent)}
    command = [sys.executable, __file__, "sender", "--count", str(count), "--url", url]
    other = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert other.stdout is not None
    await other.stdout.readline()
    async with Runtime(url) as rt:
        committed = Committed(rt)
        for _ in range(count):
            await rt.invoke(graph, {"count": 1})
            await asyncio.sleep(0.03)
    out, _ = await asyncio.wait_for(other.communicate(), 60)
    return found | {"another_process": told(committed.at, json.loads(out))}


def told(committed: list[float], sent: list[float]) -> dict[str, Any]:
    times = [max(0.0, after - before) for before, after in zip(committed, sent, strict=False)]
    return {"count": len(times), "p50_ms": part(times, 0.5), "p99_ms": part(times, 0.99)}


async def sender(url: str, count: int) -> list[float]:
    """The other process: sends so many, and tells when."""
    sent: list[float] = []
    stop = asyncio.Event()

    async def note(payload: Any, key: str) -> None:
        sent.append(time.time())
        if len(sent) == count:
            stop.set()

    async with Runtime(url, transports={"nothing": note}) as rt:
        print("ready", flush=True)
        await asyncio.wait_for(rt.dispatch(stop=stop), 600)
    return sent


@contextlib.contextmanager
def place(store: str) -> Iterator[str]:
    """The URL of an empty store that is gone afterwards."""
    if store == "postgres":
        from tests.postgres.server import Server  # the binaries are of a package that this case alone needs

        server = Server(settings=AS_INSTALLED).create()
        try:
            yield server.url
        finally:
            server.remove()
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/a.db"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["drain", "latency", "sender"])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--url", default="")
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    Recorder.options(parser)
    given = parser.parse_args()
    recorder = Recorder.of(given)
    with contextlib.nullcontext(given.url) if given.url else place(given.store) as url:
        if given.what == "sender":
            print(json.dumps(asyncio.run(sender(url, given.count))))
            return
        found = asyncio.run(drain(url, given.count) if given.what == "drain" else latency(url, given.count))
    recorder.write({"case": case, **taken} for case, taken in found.items())
    print(json.dumps(found))


if __name__ == "__main__":
    main()

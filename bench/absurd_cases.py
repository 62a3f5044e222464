"""Absurd's cases, over PostgreSQL at its defaults; it has no other store. A task is a run, and each of its steps is durable."""

from __future__ import annotations

import asyncio
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

from absurd_sdk import AsyncAbsurd
from common import DATABASE, NODES, RUNS, SHORT, TEXT, clock, latencies, rate

LEASE = 600
QUEUE = "default"


def prepare() -> None:
    """Makes its schema and a queue."""
    tool = pathlib.Path(sys.executable).parent / "absurdctl"
    env = {**os.environ, "ABSURD_DATABASE_URL": DATABASE, "PGDATABASE": DATABASE}
    for arguments in (("init",), ("create-queue", QUEUE)):
        subprocess.run([sys.executable, str(tool), *arguments], env=env, check=True, stdout=subprocess.DEVNULL)


class Bench:
    """An application with the tasks that are measured, and what has ended of them."""

    def __init__(self) -> None:
        self.app = AsyncAbsurd(DATABASE)
        self.ended: set[str] = set()
        self._enough = (0, asyncio.Event())

        @self.app.register_task("line")
        async def line(given: dict[str, int], ctx: Any) -> int:
            for i in range(given["steps"]):

                async def grow(i: int = i) -> dict[str, object]:
                    return {"n": i, "data": TEXT}

                await ctx.step(f"s{i}", grow)
            self.ended.add(ctx.task_id)
            if len(self.ended) >= self._enough[0]:
                self._enough[1].set()
            return given["steps"]

        @self.app.register_task("stamp")
        async def stamp(given: dict[str, int], ctx: Any) -> float:
            return time.monotonic()


    async def until(self, ended: int) -> None:
        """So many tasks have ended in all."""
        self._enough = (ended, asyncio.Event())
        if len(self.ended) < ended:
            await self._enough[1].wait()


async def lin() -> None:
    bench, taken = Bench(), []
    for _ in range(4):
        await bench.app.spawn("line", {"steps": NODES})
        began = clock()
        await bench.app.work_batch("w", LEASE, 1)
        taken.append(clock() - began)
    assert len(bench.ended) == 4
    rate("lin", NODES, taken[1:], "steps/s")


async def conc() -> None:
    """Spawning them counts, as it does for the others."""
    bench = Bench()
    working = asyncio.create_task(bench.app.start_worker("w", LEASE, concurrency=32, poll_interval=0.05))
    await bench.app.spawn("line", {"steps": 1})
    await bench.until(1)
    began = clock()
    for _ in range(RUNS):
        await bench.app.spawn("line", {"steps": SHORT})
    await bench.until(1 + RUNS)
    rate("conc", RUNS * SHORT, [clock() - began], "steps/s")
    bench.app.stop_worker()
    await working


async def noop() -> None:
    bench = Bench()
    working = asyncio.create_task(bench.app.start_worker("w", LEASE))
    client, taken = AsyncAbsurd(DATABASE), []
    for _ in range(15):
        await asyncio.sleep(0.02)
        began = clock()
        spawned = await client.spawn("stamp", {}, queue=QUEUE)
        await client.await_task_result(spawned["task_id"], timeout=10)
        taken.append(clock() - began)
    latencies("noop", taken[1:])
    bench.app.stop_worker()
    await working


CASES = {"lin": lin, "conc": conc, "noop": noop}

if __name__ == "__main__":
    prepare()
    asyncio.run(CASES[sys.argv[1]]())
    os._exit(0)  # its worker may still wait for its next poll

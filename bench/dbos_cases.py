"""DBOS's cases, over its system database at its defaults."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from common import DATABASE, NODES, RUNS, SHORT, TASKS, TEXT, clock, emit, folder, latencies, rate, size
from dbos import DBOS, DBOSConfig


@DBOS.step()
async def grow(i: int) -> dict[str, object]:
    return {"n": i, "data": TEXT}


@DBOS.workflow()
async def line(steps: int) -> int:
    for i in range(steps):
        await grow(i)
    return steps


@DBOS.workflow()
async def fan_out(tasks: int) -> int:
    """Each task durable on its own: a child workflow of one step."""
    children = [await DBOS.start_workflow_async(line, 1) for _ in range(tasks)]
    return sum([await child.get_result() for child in children])


@DBOS.workflow()
def stamp() -> float:
    return time.monotonic()


@DBOS.workflow()
async def signalled() -> float:
    await DBOS.recv_async("go", timeout_seconds=60)
    return time.monotonic()


async def lin() -> None:
    taken = []
    for _ in range(4):
        began = clock()
        assert await line(NODES) == NODES
        taken.append(clock() - began)
    rate("lin", NODES, taken[1:], "steps/s")


async def wf() -> None:
    """The same as ``lin``: a workflow of recorded steps is what DBOS has."""
    taken = []
    for _ in range(3):
        began = clock()
        await line(NODES)
        taken.append(clock() - began)
    rate("wf", NODES, taken[1:], "steps/s")


async def conc() -> None:
    await line(SHORT)
    began = clock()
    handles = await asyncio.gather(*[DBOS.start_workflow_async(line, SHORT) for _ in range(RUNS)])
    await asyncio.gather(*[handle.get_result() for handle in handles])
    rate("conc", RUNS * SHORT, [clock() - began], "steps/s")


async def fan() -> None:
    await fan_out(2)
    began = clock()
    assert await fan_out(TASKS) == TASKS
    rate("fan", TASKS, [clock() - began], "tasks/s")


async def noop() -> None:
    await asyncio.to_thread(enqueued)


def enqueued() -> None:
    taken = []
    for _ in range(5):
        began = clock()
        DBOS.enqueue_workflow("bench", stamp).get_result()
        taken.append(clock() - began)
    latencies("noop", taken)


async def signal() -> None:
    taken = []
    for _ in range(5):
        handle = await DBOS.start_workflow_async(signalled)
        await asyncio.sleep(0.3)
        began = time.monotonic()
        await DBOS.send_async(handle.get_workflow_id(), "on", "go")
        taken.append(await handle.get_result() - began)
    latencies("signal: run goes on", taken)


CASES = {"lin": lin, "wf": wf, "conc": conc, "fan": fan, "noop": noop, "signal": signal}

def main(case: Callable[[], Coroutine[Any, Any, None]], *, queued: bool = False) -> None:
    with folder() as where:
        DBOS(config=DBOSConfig(name="bench", system_database_url=DATABASE or f"sqlite:///{where}/dbos.db", log_level="ERROR"))
        DBOS.launch()
        if queued:
            DBOS.register_queue("bench")
        asyncio.run(case())
        emit("database", size(where / "dbos.db"), "B")
        DBOS.destroy()


if __name__ == "__main__":
    main(CASES[sys.argv[1]], queued=sys.argv[1] == "noop")

"""How many machine instructions of its own process a step costs: ``uv run python bench/instructions.py [--only PATTERN]``, about one minute.

Instructions in user mode are counted, so that neither the disk nor whatever else the machine does changes them. Each row runs a case in two
processes, one of which repeats it oftener, and divides the difference: imports, the opening of the store and the first rounds are in neither.

A counter may slow a process fifty times. What goes by the clock is held where it is without one: commits count as quick, so that they are made in
place, limits are not read again, and a run alone gives others their turn after as many steps.

``perf stat`` counts them (Debian: linux-perf). Where the processor's counters cannot be read, as in most virtual machines, ``valgrind`` counts them (Debian:
valgrind); that takes about eight minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from common import NODES, RUNS, SHORT, folder
from ours import chat, line, url
from record import Recorder

from holdfast import Runtime
from holdfast.engine.base import services
from holdfast.stores.sqlite import writer

FEW, MANY = 1, 4


async def alone(times: int) -> None:
    """One run of 100 nodes after the other."""
    with folder() as where:
        async with Runtime(url(where)) as rt:
            for _ in range(10 * times):
                await rt.invoke(line(NODES), {})


def together(nodes: int) -> Callable[[int], Awaitable[None]]:
    async def runs(times: int) -> None:
        with folder() as where:
            async with Runtime(url(where)) as rt:
                for _ in range(times):
                    await asyncio.gather(*(rt.invoke(line(nodes), {}) for _ in range(RUNS)))

    return runs


async def by_worker(times: int) -> None:
    """100 runs of 100 nodes that a worker of this process claims."""
    with folder() as where:
        async with Runtime(url(where), skills=[line(NODES)]) as rt:
            for _ in range(times):
                handles = [await rt.submit(line(NODES), {}) for _ in range(RUNS)]
                await rt.worker(concurrency=RUNS, until_idle=True)
                assert (await rt.get(handles[-1].run_id)).state.n == NODES


async def turns(times: int) -> None:
    """Turns of three nodes on a thread, from the tenth on."""
    with folder() as where:
        async with Runtime(url(where)) as rt:
            for i in range(10 + 20 * times):
                await rt.invoke(chat(), {"messages": [{"role": "user", "content": "q" * 200, "n": i}]}, thread_id="t")


class Row(NamedTuple):
    name: str
    case: Callable[[int], Awaitable[None]]
    each: int
    """How many of them one repetition has."""
    most: int | None
    """What is asked; None where it is asked against another row."""


ROWS = {
    "alone": Row("a step of one run", alone, 10 * NODES, 180_000),
    "long": Row("a step of 100 runs of 100", together(NODES), RUNS * NODES, 130_000),
    "short": Row("a step of 100 runs of 20, with births and ends", together(SHORT), RUNS * SHORT, 190_000),
    "worker": Row("a step of 100 runs of 100, by a worker", by_worker, RUNS * NODES, None),
    "turn": Row("a turn of three nodes on a thread", turns, 20, 1_200_000),
}
BESIDE_INVOKE = 1.15  # a worker's step, at most


class Counter(NamedTuple):
    """A program that counts, and how its report tells the count."""

    command: tuple[str, ...]
    told: str


COUNTERS = (
    Counter(("perf", "stat", "-x,", "-e", "instructions:u"), r"^(\d+),[^\n]*instructions"),
    Counter(("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"), r"I\s+refs:\s+([\d,]+)"),
)


def read(counter: Counter, *command: str) -> int | None:
    """The instructions of a process; None where that program does not count here."""
    if shutil.which(counter.command[0]) is None:
        return None
    done = subprocess.run([*counter.command, *command], capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "0"})
    if done.returncode:
        raise SystemExit(f"instructions: {' '.join(command)} failed: {done.stderr.strip()[-500:]}")
    found = re.search(counter.told, done.stderr, re.MULTILINE)
    return int(found[1].replace(",", "")) if found else None


def counted(counter: Counter, case: str, times: int) -> int:
    """The instructions of one process that does a case so many times."""
    found = read(counter, sys.executable, __file__, "--case", case, "--times", str(times))
    assert found is not None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="PATTERN", help=f"rows whose name matches: {', '.join(ROWS)}")
    parser.add_argument("--case", choices=list(ROWS), help=argparse.SUPPRESS)
    parser.add_argument("--times", type=int, default=FEW, help=argparse.SUPPRESS)
    Recorder.options(parser)
    given = parser.parse_args()
    if given.case:
        writer.SLOW = services.BOUNDS_SECONDS = float("inf")
        writer.TURN = 0.1
        asyncio.run(_done(ROWS[given.case].case(given.times)))
        return
    counter = next((one for one in COUNTERS if read(one, sys.executable, "-c", "") is not None), None)
    if counter is None:
        raise SystemExit("instructions: neither perf nor valgrind counts here (Debian: apt install linux-perf valgrind)")
    recorder, found = Recorder.of(given), {}
    print(f"counted by {counter.command[0]}")
    for key, row in ROWS.items():
        if not re.search(given.only, key):
            continue
        subprocess.run([sys.executable, __file__, "--case", key], check=True)  # uncounted: what is compiled once is compiled by then
        found[key] = each = (counted(counter, key, MANY) - counted(counter, key, FEW)) // ((MANY - FEW) * row.each)
        most = row.most or int(BESIDE_INVOKE * found.get("long", 0))
        asked = f"asked at most {most:>10,}  {'met' if each <= most else 'NOT MET'}" if most else f"asked at most {BESIDE_INVOKE} times that of the row «long»"
        print(f"{row.name:<50} {each:>10,}  {asked}", flush=True)
    recorder.write({"row": ROWS[key].name, "instructions": each, "most": ROWS[key].most} for key, each in found.items())


async def _done(work: Awaitable[None]) -> None:
    await work


if __name__ == "__main__":
    main()

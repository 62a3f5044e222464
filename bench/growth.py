"""How the cost of one thing grows with how much there is: ``uv run python bench/growth.py [--only PATTERN] [--rounds 3]``, about five minutes.

Each row measures one thing beside 1, 10 and 100 times as much, in CPU time of this process (the least of several rounds), and
tells by what factor a tenfold makes it dearer. At most 1.3 is asked. Nothing here is a test: tests count.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NamedTuple

from common import folder
from ours import fan_out, line, url
from record import Recorder

from holdfast import Context, Goto, Graph, Runtime, State, append, flow, merge, thread, window

clock = time.process_time
STEPS = 60


class Growing(State):
    n: int = 0
    items: Annotated[list[str], append]
    table: Annotated[dict[str, int], merge]
    recent: Annotated[list[str], window(50)]


def growing(kind: str, begun: list[float]) -> Graph[Growing]:
    """Fills a channel with ``n`` items in one step, then adds one a step; ``begun`` is told when each begins."""
    graph = Graph(f"growing-{kind}", Growing, version="1")

    @graph.node(start=True)
    async def fill(state: Growing) -> dict[str, Any]:
        match kind:
            case "append":
                return {"items": ["a message"] * state.n}
            case "merge":
                return {"table": {f"key {i}": i for i in range(state.n)}}
        return {"recent": ["a message"] * state.n}

    before = "fill"
    for i in range(STEPS):

        async def add(state: Growing, i: int = i) -> dict[str, Any]:
            begun.append(clock())
            match kind:
                case "append":
                    return {"items": ["one more"]}
                case "merge":
                    return {"table": {f"new {i}": i}}
            return {"recent": ["one more"]}

        graph.node(f"add{i}", after=before)(add)
        before = f"add{i}"
    return graph


async def channel(kind: str, size: int) -> float:
    with folder() as where:
        async with Runtime(url(where)) as rt:
            begun: list[float] = []
            await rt.invoke(growing(kind, begun), {"n": size})
            return (begun[-1] - begun[10]) / (STEPS - 11)


class Counted(State):
    n: int = 0


async def steps(size: int) -> float:
    """A step of a run that has this many behind it."""
    begun: list[float] = []
    graph = Graph("loop", Counted, version="1", step_limit=size + 100)

    @graph.node(start=True)
    async def again(state: Counted) -> Any:
        begun.append(clock())
        return Goto("again", {"n": state.n + 1}) if state.n < size + 50 else {"n": 0}

    with folder() as where:
        async with Runtime(url(where)) as rt:
            await rt.invoke(graph, {})
    return (begun[-1] - begun[-50]) / 49


async def at_once(size: int) -> float:
    """A step, birth and end included, of this many runs at once."""
    with folder() as where:
        async with Runtime(url(where)) as rt:
            await asyncio.gather(*[rt.invoke(line(20), {}) for _ in range(10)])
            began = clock()
            await asyncio.gather(*[rt.invoke(line(20), {}) for _ in range(size)])
            return (clock() - began) / size / 20


async def fan(size: int) -> float:
    with folder() as where:
        async with Runtime(url(where)) as rt:
            await rt.invoke(fan_out(10), {})
            began = clock()
            await rt.invoke(fan_out(size), {})
            return (clock() - began) / size


class Chat(State):
    said: Annotated[list[str], append, thread]


def chat() -> Graph[Chat]:
    graph = Graph("chat", Chat, version="1")

    @graph.node(start=True)
    async def answer(state: Chat) -> dict[str, Any]:
        return {"said": ["an answer " * 10]}

    return graph


async def _turns(rt: Runtime, count: int) -> None:
    graph = chat()
    for _ in range(count):
        await rt.invoke(graph, {"said": ["a question " * 10]}, thread_id="t")


async def turn(size: int) -> float:
    """A turn of a conversation that has this many behind it."""
    with folder() as where:
        async with Runtime(url(where)) as rt:
            await _turns(rt, size)
            began = clock()
            await _turns(rt, 20)
            return (clock() - began) / 20


async def history(size: int) -> float:
    """A checkpoint of the history of a thread of this many turns."""
    with folder() as where:
        async with Runtime(url(where)) as rt:
            await _turns(rt, size)
            began = clock()
            found = await rt.history("t")
            return (clock() - began) / len(found)


@flow("waits", version="1")
async def waits(ctx: Context) -> str:
    await ctx.wait_signal("go")
    return "gone"


async def beside_waiting(size: int) -> float:
    """A step beside this many waiting runs."""
    with folder() as where:
        async with Runtime(url(where)) as rt:
            await asyncio.gather(*[rt.invoke(waits, {}) for _ in range(size)])
            await rt.invoke(line(100), {})
            began = clock()
            for _ in range(3):
                await rt.invoke(line(100), {})
            return (clock() - began) / 300


async def signals(size: int) -> float:
    """A signal to a run that has this many already, for which nobody has asked."""
    with folder() as where:
        async with Runtime(url(where)) as rt:
            run = await rt.invoke(waits, {})
            for n in range(size):
                await rt.signal(run.run_id, "other", n)
            began = clock()
            for n in range(20):
                await rt.signal(run.run_id, "other", n)
            return (clock() - began) / 20


async def checked(size: int) -> float:
    """A run of a store of this many that is checked."""
    with folder() as where:
        async with Runtime(url(where)) as rt:
            await asyncio.gather(*[rt.invoke(line(2), {}) for _ in range(size)])
            began = clock()
            await rt.check()
            return (clock() - began) / size


class Row(NamedTuple):
    name: str
    measure: Callable[[int], Awaitable[float]]
    first: int


ROWS = (
    Row("a step that appends to a list of", lambda n: channel("append", n), 1100),
    Row("a step that writes a key of a dict of", lambda n: channel("merge", n), 330),
    Row("a step that pushes into a window; pushed before", lambda n: channel("window", n), 1100),
    Row("a step of a run; steps before it", steps, 100),
    Row("a step, with the start and the end of its run included; runs at once", at_once, 10),
    Row("a task of a fan-out of", fan, 10),
    Row("a turn of a conversation; turns before it", turn, 30),
    Row("a checkpoint of a thread's history; turns", history, 30),
    Row("a step beside waiting runs", beside_waiting, 30),
    Row("a signal; signals before it", signals, 10),
    Row("check, a run; runs in the store", checked, 30),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a pattern of rows, such as 'turn|signal'")
    parser.add_argument("--rounds", type=int, default=3)
    Recorder.options(parser)
    options = parser.parse_args()
    recorder = Recorder.of(options)
    measured = []
    print("| µs of CPU | ×1 | ×10 | ×100 | cost factor for ten times the size | |\n|---|---|---|---|---|---|")
    for row in ROWS:
        if options.only and not re.search(options.only, row.name):
            continue
        sizes = [row.first * 10**i for i in range(3)]
        found = [min(asyncio.run(row.measure(size)) for _ in range(options.rounds)) * 1e6 for size in sizes]  # type: ignore[arg-type]
        measured += [{"row": row.name, "size": size, "value": value, "unit": "us"} for size, value in zip(sizes, found, strict=True)]
        factor = (found[-1] / found[0]) ** 0.5
        cells = " | ".join(f"{value:,.0f} ({size:,})" for value, size in zip(found, sizes, strict=True))
        print(f"| {row.name} | {cells} | {factor:.2f} | {'met' if factor <= 1.3 else 'NOT MET'} |", flush=True)
        recorder.write(measured)


if __name__ == "__main__":
    main()

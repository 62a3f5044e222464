"""HoldfastSaver beside LangGraph's own savers, interleaved in one process (issue 18, must show 3):

    uv run --with langgraph-checkpoint-sqlite python bench/savers.py --rounds 5
    uv run --with langgraph-checkpoint-postgres python bench/savers.py --store postgres --rounds 5

Each round gives every case to both, in an order that changes; ratios are taken within a round. CPU time and counts hold on a busy machine
too, times do not. About a minute a round. Ours is ``joined``, theirs is at LangGraph's default durability, both sync each commit.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import operator
import pathlib
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated, Any, NamedTuple, TypedDict

from common import TEXT, folder, size
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from record import Recorder

from holdfast.integrations.langgraph import HoldfastSaver

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

LINE, FAN, GRAPHS, LONG = 100, 60, 50, 1000
LINES = FANS = 5
"""A line and a fan-out take a tenth of a second: of so many the median counts."""
Place = Callable[[pathlib.Path], AbstractAsyncContextManager[Any]]


class Goal(NamedTuple):
    """What ours must be of theirs, or by itself: ``most`` is an upper bound, else it is a lower one."""

    must: float
    most: bool = True
    of_theirs: bool = True


GOALS = {
    "line, steps/s": Goal(1.5, False),
    "fan-out of 60, tasks/s": Goal(2.5, False),
    "50 graphs in one loop, CPU a step": Goal(0.5),
    "get_state after 1,000 steps": Goal(1.5),
    "commits a super-step": Goal(0.55),
    "1,000 steps of 1 KB, MB": Goal(20, of_theirs=False),
}


class Line(TypedDict):
    n: int
    data: str


class Fan(TypedDict):
    out: Annotated[list[int], operator.add]


class Long(TypedDict):
    said: Annotated[list[str], operator.add]


async def grow(state: Line) -> dict[str, Any]:
    return {"n": state["n"] + 1, "data": TEXT}


def line(nodes: int) -> StateGraph[Line]:
    graph = StateGraph(Line)
    names = [f"s{i}" for i in range(nodes)]
    for name in names:
        graph.add_node(name, grow)
    for before, after in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(before, after)
    return graph


def fan() -> StateGraph[Fan]:
    async def task(number: int) -> dict[str, list[int]]:
        return {"out": [number]}

    graph = StateGraph(Fan).add_node("task", task).add_conditional_edges(START, lambda state: [Send("task", i) for i in range(FAN)], ["task"])  # type: ignore[type-var]
    return graph.add_edge("task", END)


def long() -> StateGraph[Long]:
    async def say(state: Long) -> dict[str, list[str]]:
        return {"said": [f"{len(state['said']):04}" * 256]}

    graph = StateGraph(Long).add_node("say", say).add_edge(START, "say")
    return graph.add_conditional_edges("say", lambda state: "say" if len(state["said"]) < LONG else END, ["say", END])


def on(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}, "recursion_limit": 1_000_000}


async def usual(times: int, run: Callable[[int], Awaitable[object]]) -> float:
    """The median of how long each takes."""
    taken = []
    for go in range(times):
        began = time.perf_counter()
        await run(go)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


async def measure(open_saver: Place, where: pathlib.Path, weigh: Callable[[], int]) -> dict[str, float]:
    """All cases over one saver."""
    found: dict[str, float] = {}
    async with open_saver(where) as (saver, commits):
        built, start = line(LINE).compile(checkpointer=saver), {"n": 0, "data": ""}
        await built.ainvoke(start, on("warm"))
        before = commits()
        found["line, steps/s"] = LINE / await usual(LINES, lambda go: built.ainvoke(start, on(f"line {go}")))
        found["commits a super-step"] = (commits() - before) / LINES / (LINE + 1)

        wide = fan().compile(checkpointer=saver)
        found["fan-out of 60, tasks/s"] = FAN / await usual(FANS, lambda go: wide.ainvoke({"out": []}, on(f"fan {go}")))

        short = line(20).compile(checkpointer=saver)
        cpu = time.process_time()
        await asyncio.gather(*(short.ainvoke(start, on(f"many {n}")) for n in range(GRAPHS)))
        found["50 graphs in one loop, CPU a step"] = (time.process_time() - cpu) / GRAPHS / 20 * 1e6

        deep, before = long().compile(checkpointer=saver), weigh()
        await deep.ainvoke({"said": []}, on("long"))
        found["1,000 steps of 1 KB, MB"] = (weigh() - before) / 1e6
    async with open_saver(where) as (saver, _):
        deep = long().compile(checkpointer=saver)
        taken = []
        for _ in range(5):
            cpu = time.process_time()
            state = await deep.aget_state(on("long"))
            taken.append(time.process_time() - cpu)
            assert len(state.values["said"]) == LONG
        found["get_state after 1,000 steps"] = statistics.median(taken) * 1e3
    return found


def counting(saver: Any) -> Callable[[], int]:
    """How many commits ours has asked for."""
    count = 0
    inner = saver.shelf.put_many

    async def counted(rows: dict[str, bytes], **options: Any) -> Any:
        nonlocal count
        count += 1
        return await inner(rows, **options)

    saver.shelf.put_many = counted
    return lambda: count


def counting_theirs(saver: Any) -> Callable[[], int]:
    """How many puts theirs was asked for: it commits each."""
    count = 0

    def counting(inner: Any) -> Any:
        async def counted(*args: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            return await inner(*args, **options)

        return counted

    for verb in ("aput", "aput_writes"):
        setattr(saver, verb, counting(getattr(saver, verb)))
    return lambda: count


@asynccontextmanager
async def sqlite_ours(where: pathlib.Path) -> AsyncIterator[Any]:
    async with HoldfastSaver.from_url(f"sqlite:///{where}/runs.db", durability="joined") as saver:
        yield saver, counting(saver)


@asynccontextmanager
async def sqlite_theirs(where: pathlib.Path) -> AsyncIterator[Any]:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver  # a package that this case alone needs

    async with AsyncSqliteSaver.from_conn_string(f"{where}/runs.db") as saver:
        yield saver, counting_theirs(saver)


async def sqlite_round(first: int) -> dict[str, dict[str, float]]:
    found = {}
    for who, place in [("ours", sqlite_ours), ("theirs", sqlite_theirs)][:: 1 if first else -1]:
        with folder() as where:
            found[who] = await measure(place, where, lambda where=where: size(where / "runs.db"))  # type: ignore[misc]
    return found


class Postgres:
    """A server of its own, and a database for each measurement."""

    def __init__(self) -> None:
        from tests.postgres.server import Server  # the binaries are of a package that this case alone needs

        self.server = Server(settings={"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}).create()
        self._database = "holdfast"
        self._count = 0

    @asynccontextmanager
    async def ours(self, where: pathlib.Path) -> AsyncIterator[Any]:
        async with HoldfastSaver.from_url(self._url(), durability="joined") as saver:
            yield saver, counting(saver)

    @asynccontextmanager
    async def theirs(self, where: pathlib.Path) -> AsyncIterator[Any]:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver  # a package that this case alone needs

        async with AsyncPostgresSaver.from_conn_string(self._url()) as saver:
            await saver.setup()
            yield saver, counting_theirs(saver)

    def _url(self) -> str:
        return f"postgresql:///{self._database}?host={self.server.folder}&user=holdfast"

    def _weigh(self) -> int:
        with self.server.admin() as db:
            row = db.execute("SELECT pg_database_size(%s)", (self._database,)).fetchone()
        return int(str(row[0])) if row else 0

    async def round(self, first: int) -> dict[str, dict[str, float]]:
        found = {}
        for who, place in [("ours", self.ours), ("theirs", self.theirs)][:: 1 if first else -1]:
            self._count += 1
            self._database = f"bench{self._count}"
            self.server.fresh(self._database)
            found[who] = await measure(place, pathlib.Path("."), self._weigh)
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=10, metavar="MINUTES", help="begins no round after so many minutes")
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    Recorder.options(parser)
    given = parser.parse_args()
    recorder = Recorder.of(given)
    end = time.monotonic() + given.budget * 60
    one_round = sqlite_round if given.store == "sqlite" else Postgres().round
    rounds = []
    for number in range(given.rounds):
        if time.monotonic() > end:
            break
        rounds.append(asyncio.run(one_round(random.Random(number).randrange(2))))
        print(f"round {number + 1} of {given.rounds}", flush=True)
    recorder.write({"round": n, "who": who, "metric": name, "value": value} for n, r in enumerate(rounds) for who, taken in r.items() for name, value in taken.items())
    missed = 0
    for name, goal in GOALS.items():
        ours, theirs = (statistics.median(r[who][name] for r in rounds) for who in ("ours", "theirs"))
        ratio = statistics.median(r["ours"][name] / r["theirs"][name] for r in rounds)
        found = ratio if goal.of_theirs else ours
        met = found <= goal.must if goal.most else found >= goal.must
        missed += not met
        asked = f"{'ratio' if goal.of_theirs else 'ours'} must be {'≤' if goal.most else '≥'} {goal.must:.3f}"
        print(f"{name:38} ours {ours:10.2f}  theirs {theirs:10.2f}  ratio {ratio:6.3f}  {asked:26}  {'met' if met else 'MISSED'}")
    print(f"rounds asked {given.rounds}, done {len(rounds)}, missed {missed}")
    return 1 if missed else 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())

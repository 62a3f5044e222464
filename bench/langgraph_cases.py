"""LangGraph's cases, over its savers for asyncio: SQLite's, or PostgreSQL's with a pool of eight; ``durability`` is the case's own word, ``async`` being its default."""

from __future__ import annotations

import asyncio
import contextlib
import operator
import pathlib
import sys
from collections.abc import AsyncIterator
from typing import Annotated, Any, TypedDict

from common import DATABASE, NODES, RUNS, SHORT, TASKS, TEXT, clock, emit, folder, percentile, rate, size
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send


class Line(TypedDict):
    n: int
    data: str


async def grow(state: Line) -> dict[str, Any]:
    return {"n": state["n"] + 1, "data": TEXT}


def line(nodes: int, saver: Any) -> Any:
    graph = StateGraph(Line)
    names = [f"s{i}" for i in range(nodes)]
    for name in names:
        graph.add_node(name, grow)
    for before, after in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(before, after)
    return graph.compile(checkpointer=saver)


@contextlib.asynccontextmanager
async def saver(where: pathlib.Path) -> AsyncIterator[Any]:
    if not DATABASE:
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        async with AsyncSqliteSaver.from_conn_string(str(where / "lg.db")) as kept:
            yield kept
        return
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool

    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(DATABASE, min_size=8, max_size=8, open=False, kwargs=options) as pool:
        over = AsyncPostgresSaver(pool)  # type: ignore[arg-type]
        await over.setup()
        yield over


def on(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}, "recursion_limit": 1_000_000}


async def lin(durability: str = "async") -> None:
    with folder() as where:
        async with saver(where) as kept:
            graph, start = line(NODES, kept), {"n": 0, "data": ""}
            await graph.ainvoke(start, on("warm"), durability=durability)
            before, taken = size(where / "lg.db"), []
            for i in range(3):
                began = clock()
                out = await graph.ainvoke(start, on(f"r{i}"), durability=durability)
                taken.append(clock() - began)
                assert out["n"] == NODES
            rate("lin" if durability == "async" else f"lin ({durability})", NODES, taken, "steps/s")
            emit("lin bytes a step", (size(where / "lg.db") - before) / 3 / NODES, "B")


async def lin_sync() -> None:
    await lin("sync")


async def conc() -> None:
    with folder() as where:
        async with saver(where) as kept:
            graph, start = line(SHORT, kept), {"n": 0, "data": ""}
            await graph.ainvoke(start, on("warm"))
            began = clock()
            await asyncio.gather(*[graph.ainvoke(start, on(f"r{i}")) for i in range(RUNS)])
            rate("conc", RUNS * SHORT, [clock() - began], "steps/s")


class Fan(TypedDict):
    n: int
    data: str
    out: Annotated[list[int], operator.add]


async def fan() -> None:
    async def plan(state: Fan) -> dict[str, Any]:
        return {"n": 0}

    async def task(state: dict[str, int]) -> dict[str, Any]:
        return {"out": [state["i"]]}

    async def join(state: Fan) -> dict[str, Any]:
        return {"n": len(state["out"]), "data": TEXT}

    graph = StateGraph(Fan)
    graph.add_node("plan", plan)
    graph.add_node("task", task)  # type: ignore[type-var]
    graph.add_node("join", join)
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", lambda state: [Send("task", {"i": i}) for i in range(TASKS)], ["task"])
    graph.add_edge("task", "join")
    graph.add_edge("join", END)
    with folder() as where:
        async with saver(where) as kept:
            built, taken = graph.compile(checkpointer=kept), []
            for i in range(12):
                began = clock()
                out = await built.ainvoke({"n": 0, "data": "", "out": []}, on(f"r{i}"))
                taken.append(clock() - began)
                assert out["n"] == TASKS
            rate("fan", TASKS, taken[4:], "tasks/s")


class Chat(TypedDict):
    messages: Annotated[list[dict[str, Any]], operator.add]


async def turns(count: int = 100) -> None:
    """A tenth of the turns that ours takes: a thousand weigh gigabytes and take minutes."""

    async def ask(state: Chat) -> Any:
        return {"messages": [{"role": "assistant", "content": "y" * 300, "tool": True}]}

    async def tool(state: Chat) -> Any:
        return {"messages": [{"role": "tool", "content": "r" * 300}]}

    async def answer(state: Chat) -> Any:
        return {"messages": [{"role": "assistant", "content": "z" * 300, "tool": False}]}

    graph = StateGraph(Chat)
    for name, node in (("ask", ask), ("tool", tool), ("answer", answer)):
        graph.add_node(name, node)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", "tool")
    graph.add_edge("tool", "answer")
    graph.add_edge("answer", END)
    with folder() as where:
        async with saver(where) as kept:
            built, taken = graph.compile(checkpointer=kept), []
            for i in range(count):
                began = clock()
                out = await built.ainvoke({"messages": [{"role": "user", "content": "q" * 200, "n": i}]}, on("t"))
                taken.append(clock() - began)
            weight = sum(len(m["content"]) for m in out["messages"])
            emit("turns: turn 10", percentile(taken[5:15], 0.5) * 1e3, "ms")
            emit("turns: turn 100", percentile(taken[-10:], 0.5) * 1e3, "ms")
            emit("turns: database per byte of message", size(where / "lg.db") / weight, "x", turns=count)


CASES = {"lin": lin, "lin-sync": lin_sync, "conc": conc, "fan": fan, "turns": turns}

if __name__ == "__main__":
    asyncio.run(CASES[sys.argv[1]]())

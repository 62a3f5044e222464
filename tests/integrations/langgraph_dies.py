"""A turn whose process is killed in one of three parallel tasks, once the writes of the others are kept; begun again, it goes on.

    python tests/integrations/langgraph_dies.py FOLDER    (tells how the two processes ended)
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import operator
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from holdfast import Runtime
from holdfast.integrations.langgraph import HoldfastSaver, as_skill

FOLDER = Path(sys.argv[1])


class Log(TypedDict):
    log: Annotated[list[Any], operator.add]


def act(what: str) -> int:
    with (FOLDER / "acts").open("a") as file:
        file.write(f"{what}\n")
    return (FOLDER / "acts").read_text().split().count(what)


async def plan(state: Log) -> dict[str, list[Any]]:
    act("plan")
    return {"log": ["plan"]}


async def join(state: Log) -> dict[str, list[Any]]:
    act("join")
    return {"log": ["join"]}


async def main() -> None:
    url = f"sqlite:///{FOLDER}/runs.db"
    async with HoldfastSaver.from_url(url) as saver:

        async def siblings_are_kept() -> bool:
            found = await saver.aget_tuple({"configurable": {"thread_id": "t"}})
            return found is not None and {v[0] for _, c, v in found.pending_writes or () if c == "log" and v} >= {0, 1}

        async def work(number: int) -> dict[str, list[Any]]:
            if act(str(number)) == 1 and number == 2:
                for _ in range(10_000):
                    if await siblings_are_kept():
                        os.kill(os.getpid(), signal.SIGKILL)
                    await asyncio.sleep(0)
            return {"log": [number]}

        graph = StateGraph(Log).add_node("plan", plan).add_node("work", work).add_node("join", join)  # type: ignore[type-var]
        graph.add_edge(START, "plan").add_conditional_edges("plan", lambda state: [Send("work", n) for n in range(3)], ["work"])
        graph.add_edge("work", "join").add_edge("join", END)
        skill = as_skill(graph.compile(checkpointer=saver), "talk")
        async with Runtime(url, skills=[skill], lease=1) as rt:
            run = await rt.submit(skill, {"input": {"log": []}}, thread_id="t", key="one")
            stop = asyncio.Event()
            works = asyncio.ensure_future(rt.worker(stop=stop))
            await rt.result(run.run_id)
            stop.set()
            await works


def live() -> None:
    asyncio.run(main())


if __name__ == "__main__":
    ends: list[int | None] = []
    for _ in range(2):
        process = multiprocessing.get_context("fork").Process(target=live)  # LangGraph is imported once
        process.start()
        process.join(60)
        ends.append(process.exitcode)
        process.kill()
    print(json.dumps(ends))

"""Two processes, two turns at once in each, on one thread: how many of the four are kept.

    python tests/integrations/langgraph_turns.py FOLDER [KIND …]

Kinds: ``alone`` is LangGraph's own SQLite saver, ``saver`` is HoldfastSaver, both called by ``ainvoke``; ``skill`` is the graph as a skill.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import operator
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

from holdfast import Runtime
from holdfast.integrations.langgraph import HoldfastSaver, as_skill

KINDS = ("alone", "saver", "skill")
PROCESSES = multiprocessing.get_context("fork")  # the frameworks are imported once
PATIENCE_SECONDS = 60
AT: Any = {"configurable": {"thread_id": "t"}}


class Talk(TypedDict):
    said: Annotated[list[str], operator.add]


async def answer(state: Talk) -> dict[str, list[str]]:
    await asyncio.sleep(0.1)  # a model takes its time, so that turns are under way together
    return {"said": [f"to {state['said'][-1]}"]}


graph = StateGraph(Talk).add_node("answer", answer).add_edge(START, "answer").add_edge("answer", END)


def saver(kind: str, folder: str) -> AbstractAsyncContextManager[Any]:
    if kind == "alone":
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver  # a package that only this kind needs

        found: AbstractAsyncContextManager[Any] = AsyncSqliteSaver.from_conn_string(f"{folder}/alone.db")
        return found
    return HoldfastSaver.from_url(f"sqlite:///{folder}/{kind}.db")


async def turns(kind: str, folder: str, process: int, ready: Any) -> None:
    """Two turns at once; begun when the other process is ready too."""
    async with saver(kind, folder) as kept, contextlib.AsyncExitStack() as open_now:
        built = graph.compile(checkpointer=kept)
        skill = as_skill(built, "talk")
        rt = await open_now.enter_async_context(Runtime(f"sqlite:///{folder}/{kind}.runs.db", skills=[skill])) if kind == "skill" else None
        await asyncio.to_thread(ready.wait, PATIENCE_SECONDS)
        words = [f"{process}.{n}" for n in range(2)]
        if rt is None:
            await asyncio.gather(*(built.ainvoke({"said": [word]}, AT) for word in words))
        else:
            stop = asyncio.Event()
            works = asyncio.ensure_future(rt.worker(stop=stop))
            begun = await asyncio.gather(*(rt.submit(skill, {"input": {"said": [word]}}, thread_id="t") for word in words))
            await asyncio.gather(*(rt.result(run.run_id) for run in begun))
            stop.set()
            await works


async def kept(kind: str, folder: str) -> list[str]:
    """What the thread has of the four turns; makes the file if it is not there."""
    async with saver(kind, folder) as found:
        said = (await graph.compile(checkpointer=found).aget_state(AT)).values.get("said", [])
        return [word for word in said if not word.startswith("to ") and f"to {word}" in said]


def one_of_two(kind: str, folder: str, process: int, ready: Any) -> None:
    asyncio.run(turns(kind, folder, process, ready))


def told(kind: str, folder: str, say: Any) -> None:
    say.send(len(asyncio.run(kept(kind, folder))))


def count(kind: str, folder: str) -> int:
    """How many of four turns the thread has after two processes were done with them. This process has no event loop and no thread of its own: it forks."""
    hear, say = PROCESSES.Pipe(duplex=False)
    ready = PROCESSES.Barrier(2)
    looks = [PROCESSES.Process(target=told, args=(kind, folder, say)) for _ in range(2)]
    both = [PROCESSES.Process(target=one_of_two, args=(kind, folder, number, ready)) for number in range(2)]
    for together in ([looks[0]], both, [looks[1]]):
        for each in together:
            each.start()
        for each in together:
            each.join(2 * PATIENCE_SECONDS)
            each.kill()
            assert each.exitcode == 0, f"{kind}: a process ended with {each.exitcode}"
    hear.recv()
    return int(hear.recv())


if __name__ == "__main__":
    print(json.dumps({kind: count(kind, str(Path(sys.argv[1]).resolve())) for kind in sys.argv[2:] or KINDS}))

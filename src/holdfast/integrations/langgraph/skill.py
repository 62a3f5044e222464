"""A compiled LangGraph graph as a skill. The graph keeps its own checkpoints with its own checkpointer."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, StateSnapshot
from pydantic_core import to_jsonable_python

from holdfast import Context, Flow, Retry, StepFailure, UsageError, flow
from holdfast.integrations.langgraph.asked import Code

CATCH_UP_SECONDS = 0.05
PROMPT = 500
_CALL = "holdfast_call"


def as_skill(
    graph: CompiledStateGraph[Any, Any, Any, Any],
    id: str,
    *,
    version: str = "1",
    timeout: timedelta = timedelta(hours=1),
    retry: Retry | int | None = None,
) -> Flow[[dict[str, Any]], dict[str, Any]]:
    """A compiled LangGraph graph as a skill that takes ``input`` and gives the graph's values as plain JSON values.

    The LangGraph thread is the thread of the run, so that turns of one conversation share their state. A node that was under way
    when its process died runs again, as LangGraph does it; acts that must not happen twice belong into ``ctx.effect``
    under a key (``holdfast.current()`` gives the context inside a node). A graph that asks several questions at once opens them all, and
    goes on once each is answered.

    Args:
        graph: compiled with a checkpointer that outlives the process, such as ``HoldfastSaver``.
        id: the skill's id.
        version: the skill's version.
        timeout: how long one stretch of the graph, from its begin or an answer to its next rest, may take.
        retry: how often a stretch is tried; what is done is not done again. Failures of a process that died count, while LangGraph's own
            retry policies begin anew in each process.

    Raises:
        UsageError: the graph was compiled without a checkpointer.
    """
    if graph.checkpointer is None or graph.checkpointer is False:
        raise UsageError(f"the graph of the skill {id!r} has no checkpointer", hint="compile(checkpointer=HoldfastSaver(…))")

    code = Code.of(graph.nodes)

    @flow(id, version=version)
    async def run(ctx: Context, input: dict[str, Any]) -> dict[str, Any]:
        given: Any = input
        asked: dict[str, Any] = {}
        stretch = 0
        while True:
            call = f"{ctx.run_id}.{stretch}"
            rested = await ctx.step(
                _stretch, graph, code, ctx.run.thread_id, call, given, asked, key=f"stretch-{stretch}", name=f"{id}.stretch", timeout=timeout, retry=retry
            )
            if not rested["asks"]:
                values: dict[str, Any] = rested["values"]
                return values
            answers = await ctx.gather(*(ctx.ask(_prompt(value), object, show=value) for _, value in rested["asks"]))
            given = Command(resume={ask: answer for (ask, _), answer in zip(rested["asks"], answers, strict=True)})
            asked, stretch = rested, stretch + 1

    return run


async def _stretch(graph: Any, code: Code, thread_id: str, call: str, given: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Drives the graph until it rests. After a crash it continues from the graph's own checkpoints, and begins nothing anew."""
    if gone := next((node for node in asked.get("next", ()) if node not in graph.nodes), None):
        raise StepFailure(f"the node {gone!r} waits for an answer, but the graph no longer has it", code="pending_node_missing")
    at: RunnableConfig = {"configurable": {"thread_id": thread_id}}
    step = at | {"metadata": {_CALL: call}}
    state = await graph.aget_state(at)
    if asked.get("code", code.digest) != code.digest and not _has_begun(state, call):
        state = await _ask_again(graph, code, step, asked["asks"])
    if _has_begun(state, call):
        # ``next`` does not tell: it leaves out a task whose writes are stored, though the super-step of the task has not ended.
        if not state.tasks or state.interrupts:
            return _read_rested(state, code)
        given = None
    await _catch_up(state.config["configurable"].get("checkpoint_id", ""))
    await graph.ainvoke(given, step, durability="sync")
    return _read_rested(await graph.aget_state(at), code)


def _has_begun(state: StateSnapshot, call: str) -> bool:
    return (state.metadata or {}).get(_CALL) == call


async def _ask_again(graph: Any, code: Code, step: RunnableConfig, asks: list[Any]) -> StateSnapshot:
    """Lets changed code reach its questions before it is given the answers.

    Raises:
        StepFailure: the code asks another question in place of one. The recorded answer stays that of the old question.
    """
    await graph.ainvoke(None, step, durability="sync")
    state: StateSnapshot = await graph.aget_state({"configurable": step["configurable"]})
    found = dict(_asks(state))
    for ask, before in asks:
        if code.others(before, now := found.get(ask)):
            told = f"it asks {_prompt(now)!r}" if ask in found else "it does not ask that now"
            raise StepFailure(f"the graph asked {_prompt(before)!r}, the code was changed before the answer came, and {told}", code="question_changed")
    return state


async def _catch_up(newest: str) -> None:
    """Waits for a clock that is behind: LangGraph takes the checkpoint with the greatest id for the newest, and ids begin with the time."""
    while str(uuid6()) <= newest:  # noqa: ASYNC110
        await asyncio.sleep(CATCH_UP_SECONDS)


def _read_rested(state: StateSnapshot, code: Code) -> dict[str, Any]:
    return {"values": to_jsonable_python(state.values, fallback=str), "asks": _asks(state), "next": list(state.next), "code": code.digest}


def _asks(state: StateSnapshot) -> list[Any]:
    return [[i.id, to_jsonable_python(i.value, fallback=str)] for i in state.interrupts]


def _prompt(value: Any) -> str:
    """Returns a line for a person; the whole value is shown beside it."""
    text = str(value) or "?"
    return text if len(text) <= PROMPT else f"{text[:PROMPT]}…"


__all__ = ["as_skill"]

"""A compiled LangGraph graph as a skill. The graph keeps its own checkpoints with its own checkpointer."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command
from pydantic_core import to_jsonable_python

from holdfast import Context, Flow, UsageError, flow

_CALL = "holdfast_call"


def as_skill(
    graph: CompiledStateGraph[Any, Any, Any, Any], id: str, *, version: str = "1", timeout: timedelta = timedelta(hours=1)
) -> Flow[[dict[str, Any]], dict[str, Any]]:
    """A compiled LangGraph graph as a skill that takes ``input`` and gives the graph's values as plain JSON values.

    The LangGraph thread is the thread of the run, so that turns of one conversation share their state. A node that was under way
    when its process died runs again, as LangGraph does it; acts that must not happen twice belong into ``ctx.effect``
    (``holdfast.current()`` gives the context inside a node).

    Args:
        graph: compiled with a checkpointer that outlives the process, such as ``HoldfastSaver``.
        id: the skill's id.
        version: the skill's version.
        timeout: how long one stretch of the graph, from its begin or an answer to its next rest, may take.

    Raises:
        UsageError: the graph was compiled without a checkpointer.
    """
    if graph.checkpointer is None or graph.checkpointer is False:
        raise UsageError(f"the graph of the skill {id!r} has no checkpointer", hint="compile(checkpointer=HoldfastSaver(…))")

    @flow(id, version=version)
    async def run(ctx: Context, input: dict[str, Any]) -> dict[str, Any]:
        given: Any = input
        stretch = 0
        while True:
            rested = await ctx.step(_stretch, graph, ctx.run.thread_id, f"{ctx.run_id}.{stretch}", given, key=f"stretch-{stretch}", name=f"{id}.stretch", timeout=timeout)
            if not rested["asks"]:
                values: dict[str, Any] = rested["values"]
                return values
            answers = {ask: await ctx.ask(str(value), object, show=value) for ask, value in rested["asks"]}
            given, stretch = Command(resume=answers), stretch + 1

    return run


async def _stretch(graph: Any, thread_id: str, call: str, given: Any) -> dict[str, Any]:
    """Drives the graph to its next rest. After a crash it goes on where the graph's own checkpoints stand, and begins nothing anew."""
    config: RunnableConfig = {"configurable": {"thread_id": thread_id}, "metadata": {_CALL: call}}
    state = await graph.aget_state({"configurable": {"thread_id": thread_id}})
    if (state.metadata or {}).get(_CALL) == call:
        if not state.next or state.interrupts:
            return _rested(state.values, state.interrupts)
        given = None
    await graph.ainvoke(given, config, durability="sync")
    state = await graph.aget_state({"configurable": {"thread_id": thread_id}})
    return _rested(state.values, state.interrupts)


def _rested(values: Any, interrupts: Any) -> dict[str, Any]:
    return {"values": to_jsonable_python(values, fallback=str), "asks": [[i.id, to_jsonable_python(i.value, fallback=str)] for i in interrupts]}


__all__ = ["as_skill"]

"""A LangGraph graph as a skill: it asks a person before it pays, and what acts is an effect. Offline: no model is asked.

    python -m examples.langgraph_talk
"""

from __future__ import annotations

import asyncio
from typing import TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from holdfast import Runtime, current
from holdfast.integrations.langgraph import HoldfastSaver, as_skill

PAID: list[int] = []


class Talk(TypedDict):
    cents: int
    said: str


async def pay(cents: int) -> str:
    PAID.append(cents)
    return f"paid {cents}"


async def refund(state: Talk) -> dict[str, str]:
    """Runs again from its top with the answer, as LangGraph does it; the effect is on record and does not."""
    ctx = current()
    assert ctx is not None
    if interrupt({"pay back": state["cents"]}) != "yes":
        return {"said": "not paid"}
    return {"said": await ctx.effect(pay, state["cents"], key="refund")}


async def main(url: str = "sqlite:///talk.db") -> str:
    async with HoldfastSaver.from_url(url) as saver:
        graph = StateGraph(Talk).add_node("refund", refund).add_edge(START, "refund").add_edge("refund", END)
        talk = as_skill(graph.compile(checkpointer=saver), "talk")
        async with Runtime(url, skills=[talk]) as rt:
            run = await rt.invoke(talk, {"input": {"cents": 4200}}, thread_id="ada")
            run = await rt.resume(run.run_id, payload="yes")
            return f"{run.status}, {PAID}"


if __name__ == "__main__":
    print(asyncio.run(main()))

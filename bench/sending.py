"""The run whose sendings are measured: one step that sends so many intents of one type."""

from __future__ import annotations

from typing import Any

from holdfast import Context, Graph, State


class Sending(State):
    type: str = "nothing"
    payload: dict[str, Any] = {}  # noqa: RUF012
    count: int = 0


graph: Graph[Sending] = Graph("sending", Sending, version="1")


@graph.node(start=True)
async def send(state: Sending, ctx: Context) -> None:
    for _ in range(state.count):
        ctx.send(state.type, state.payload)


__all__ = ["Sending", "graph"]

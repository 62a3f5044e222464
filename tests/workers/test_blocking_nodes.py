"""Nodes that block a thread run as many at once as the worker drives runs (issue «Speed», 5)."""

from __future__ import annotations

import threading

from holdfast import Graph, Runtime, State

AT_ONCE = 60


class Row(State):
    met: bool = False


async def test_sixty_blocking_nodes_are_begun_at_once() -> None:
    """No clock: none of them ends before all have begun."""
    met = threading.Barrier(AT_ONCE, timeout=60)
    graph = Graph("blocks", Row, version="1")

    @graph.node(start=True)
    def block(state: Row) -> dict[str, bool]:
        met.wait()
        return {"met": True}

    async with Runtime("memory://") as rt:
        runs = [await rt.submit(graph, {}) for _ in range(AT_ONCE)]
        await rt.worker(until_idle=True, concurrency=AT_ONCE)
        assert [(await rt.get(run.run_id)).state.met for run in runs] == [True] * AT_ONCE

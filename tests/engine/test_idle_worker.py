"""What a run through a worker that had nothing to do costs, counted and not timed: statements, commits, and what is compiled or read in vain."""

from __future__ import annotations

from typing import Any

from holdfast import Graph, Runtime, State
from tests.statements import counting_compilations


class Count(State):
    n: int = 0


def once() -> Graph[Count]:
    graph = Graph("once", Count, version="1")

    @graph.node(start=True)
    async def step(state: Count) -> dict[str, Any]:
        return {"n": state.n + 1}

    return graph


async def test_no_statement_is_compiled_again(tmp_path: Any) -> None:
    """A statement that has run before runs as it was compiled, whatever values it is given."""
    graph = once()
    with counting_compilations() as compiled:
        async with Runtime(f"sqlite:///{tmp_path}/a.db", skills=[graph]) as rt:
            for _ in range(4):
                before = dict(compiled)
                run = await rt.submit(graph, {})
                await rt.worker(until_idle=True)
                assert (await rt.result(run.run_id)).n == 1
                found = {table: n - before.get(table, 0) for table, n in compiled.items() if n != before.get(table, 0)}
    assert compiled["run"] and compiled["log"], "what is compiled is counted"
    assert not found

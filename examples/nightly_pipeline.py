"""A nightly pipeline: one task for each shard, one shard that fails, and a deploy while the run waits for its repair.

    holdfast run examples/nightly_pipeline.py --input '{"day": "2026-11-22"}'

Shards are worked on side by side. When one fails, the finished ones keep their results: after the repair only the failed
shard runs again. Version 2 adds a report; it declares the shape it continues from, so a run that version 1 began goes on
under version 2.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from holdfast import Context, Graph, Send, State, append, merge

INPUT = Path("shards")


class Night(State):
    day: str
    totals: Annotated[dict[str, int], merge]
    log: Annotated[list[str], append]
    report: str = ""


def count_rows(shard: str) -> int:
    """Adds up the numbers of one shard, one a line."""
    return sum(int(line) for line in (INPUT / shard).read_text().splitlines())


def build(version: str, migrates: tuple[str, ...] = ()) -> Graph[Night]:
    """The pipeline as version 1 or 2."""
    graph = Graph("nightly", Night, version=version, migrates=migrates)

    @graph.node(start=True)
    def plan(state: Night) -> list[Send]:
        return [Send("load", path.name) for path in sorted(INPUT.iterdir())]

    @graph.node
    async def load(state: Night, ctx: Context) -> dict[str, object]:
        total = await ctx.step(count_rows, ctx.payload)
        return {"totals": {ctx.payload: total}, "log": [f"{ctx.payload}: {total}"]}

    @graph.node(after="load")
    def close(state: Night) -> dict[str, object]:
        return {"log": [f"{state.day}: {sum(state.totals.values())} in {len(state.totals)} shards"]}

    if version == "2":

        @graph.node(after="close")
        def report(state: Night) -> dict[str, str]:
            return {"report": "\n".join(state.log)}

    return graph


first = build("1")
nightly = build("2", migrates=(first.program.fingerprint,))

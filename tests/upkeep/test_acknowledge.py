"""``rt.acknowledge`` accepts the log of every store that notices where it has gone backwards (§1.9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Context, Graph, Runtime, State
from holdfast.core.errors import IncarnationChanged, LogRolledBack, UsageError
from tests.postgres.server import shared


class Work(State):
    n: int = 0


def asking() -> Graph[Work]:
    graph = Graph("ask", Work, version="1")

    @graph.node(start=True)
    async def ask(state: Work, ctx: Context) -> None:
        await ctx.approve("Go on?")

    return graph


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_store_takes_writes_again_once_its_log_is_accepted(kind: str, tmp_path: Path) -> None:
    url = shared().fresh("acknowledged") if kind == "postgres" else f"sqlite:///{tmp_path}/runs.db"
    graph = asking()
    async with Runtime(url, skills=[graph]) as rt:
        await rt.acknowledge()
        run = await rt.invoke(graph, {})
    if kind == "postgres":
        with shared().admin("acknowledged") as db:
            db.execute("DELETE FROM holdfast.meta WHERE key = 'store'")
    else:
        (tmp_path / "runs.db-anchor").unlink()
    async with Runtime(url, skills=[graph]) as rt:
        with pytest.raises((IncarnationChanged, LogRolledBack)):
            await rt.approve(run.run_id, actor="ada")
        await rt.acknowledge()
        assert (await rt.approve(run.run_id, actor="ada")).status == "completed"


@pytest.mark.parametrize("url", ["memory:", "workspace:{}/runs"])
async def test_a_store_that_does_not_notice_has_nothing_to_accept(url: str, tmp_path: Path) -> None:
    async with Runtime(url.format(tmp_path)) as rt:
        with pytest.raises(UsageError, match="nothing to acknowledge"):
            await rt.acknowledge()

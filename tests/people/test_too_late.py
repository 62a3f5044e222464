"""An answer that was accepted, and whose question was closed at that very moment: whoever gave it can see what became of it (X-19)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from holdfast import Context, Runtime, flow
from holdfast.core import events as ev
from holdfast.core.commit import Commit, Tip
from holdfast.core.errors import WaitNotFound
from tests.engine.support import World


class Interrupted:
    """A process's way to a store: once, before a question is closed, somebody else comes."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.then: Callable[[str], Awaitable[Any]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, commit: Commit) -> Tip:
        if self.then is not None and any(isinstance(e.fact, ev.WaitClosed) for e in commit.events):
            then, self.then = self.then, None
            await then(commit.run.run_id)
        return cast("Tip", await self._store.commit(commit))


async def fails() -> None:
    raise ValueError("no stock")


@flow("orders")
async def orders(ctx: Context) -> str:
    async def sell() -> None:
        await ctx.sleep(1)
        await ctx.step(fails)

    try:
        await ctx.gather(ctx.approve("Pay?"), sell())
    except ValueError:
        await ctx.wait("go on")
        return "not paid"
    return "paid"


async def test_an_answer_that_came_too_late_is_told() -> None:
    """X-19: it was accepted for a live run whose scope failed at that moment. ``explain`` says whose answer it was and why it does not count; giving it again is refused."""
    world = World()
    store = Interrupted(world.store)
    async with Runtime(store, skills=[orders], clock=world.clock) as rt, Runtime(world.store, clock=world.clock) as other:  # type: ignore[arg-type]
        accepted: list[str] = []

        async def approve(run_id: str) -> None:
            accepted.append((await other.get(run_id)).waits[0].wait_id)
            await other.approve(run_id, actor="ada", wait_id=accepted[0])

        run = await rt.invoke(orders)
        store.then = approve
        await world.clock.sleep(2)
        await rt.worker(until_idle=True)
        run = await rt.get(run.run_id)
        assert accepted and [w.kind for w in run.waits] == ["signal"], "the run went on without the answer"
        told = await other.explain(run.run_id)
        [said] = [s for s in told["happened"] if "ada" in s]
        assert said.startswith("ada answered approve, and that came too late: "), said
        [note] = [e for e in await other.events(run.run_id) if e.type == "note.added"]
        assert (note.payload["by"], note.payload["action"], note.payload["code"]) == ("ada", "approve", "wait_not_found")
        with pytest.raises(WaitNotFound):
            await other.approve(run.run_id, actor="ada", wait_id=accepted[0])

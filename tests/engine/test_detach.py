"""``invoke`` drives through timers and children; with ``detach`` it comes back at the first rest (§4.18)."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Context, Runtime, flow
from tests.engine.support import FakeClock


@flow("nap")
async def nap(ctx: Context) -> str:
    await ctx.sleep(3600)
    return "awake"


@flow("parent")
async def parent(ctx: Context) -> str:
    return str(await ctx.child(nap, {}))


@pytest.mark.parametrize("skill", [nap, parent], ids=["timer", "child"])
async def test_a_detached_run_comes_back_at_its_first_rest(tmp_path: Path, skill: object) -> None:
    """§4.18: attached it is driven to its end; detached it rests, and whoever comes later goes on with it."""
    clock = FakeClock()
    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[nap, parent], clock=clock) as rt:
        attached = await rt.invoke(skill.program.id)  # type: ignore[attr-defined]
        assert attached.result == "awake"
        before = clock.now()
        detached = await rt.invoke(skill.program.id, detach=True)  # type: ignore[attr-defined]
        assert detached.status == "waiting_for_signal"
        assert clock.now() - before < 3_600_000_000
        await rt.worker(until_idle=True)  # a child begins its nap only now
        await clock.sleep(3601)
        await rt.worker(until_idle=True)
        assert (await rt.get(detached.run_id)).result == "awake"

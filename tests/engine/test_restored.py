"""A runtime that restores or acknowledges its store drives on (§1.9): it is another owner of leases from then on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast import Context, Graph, Runtime, State, flow
from holdfast.core.errors import LeaseLost
from holdfast.core.status import Status
from holdfast.stores.sqlite import writer

pytestmark = pytest.mark.one_store("backups are of a store in one file")


class Work(State):
    n: int = 0


@flow("counts")
async def counts(ctx: Context) -> int:
    return await ctx.step(abs, -1)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
@pytest.mark.parametrize("driven", [False, True], ids=["before it drove", "after it drove"])
@pytest.mark.parametrize("verb", ["restore", "acknowledge"])
async def test_it_drives_on(url: str, tmp_path: Path, verb: str, driven: bool, slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow database is written by a thread, through a connection of its own. What was acknowledged of the log before is no end of the one after it."""
    if slow:
        monkeypatch.setattr(writer, "SLOW", 0.0)
    async with Runtime(url, skills=[counts]) as rt:
        if driven:
            assert (await rt.invoke(counts, {})).status is Status.COMPLETED
        await rt.submit(counts, {})
        await rt.backup(tmp_path / "copy.db")
        owner = rt.owner
        for _ in range(2):
            await (rt.restore(tmp_path / "copy.db") if verb == "restore" else rt.acknowledge())
            assert (await rt.invoke(counts, {})).result == 1
            await rt.worker(until_idle=True)
            assert await rt.recover() == []
            assert {r.status for r in await rt.runs()} == {Status.COMPLETED}
        assert rt.owner != owner
    async with Runtime(url, skills=[counts]) as another:
        assert (await another.invoke(counts, {})).status is Status.COMPLETED


async def test_an_act_that_was_under_way_in_the_backup_is_not_repeated_and_not_waited_for(url: str, tmp_path: Path) -> None:
    """The owner that had begun it is gone, though its process lives."""
    acts: list[int] = []
    graph = Graph("acts", Work)

    @graph.node(start=True)
    async def acting(state: Work, ctx: Context) -> dict[str, int]:
        async def act(n: int) -> int:
            acts.append(n)
            await rt.backup(tmp_path / "copy.db")
            return n

        return {"n": await ctx.effect(act, 1)}

    async with Runtime(url, skills=[graph]) as rt:
        assert (await rt.invoke(graph, {})).status is Status.COMPLETED
        await rt.restore(tmp_path / "copy.db")
        async with asyncio.timeout(60):
            await rt.worker(until_idle=True)
        (found,) = await rt.runs()
        assert (found.status, acts) == (Status.WAITING_FOR_HUMAN, [1])


async def test_what_it_drove_meanwhile_is_lost_to_it_and_taken_up_anew(url: str, tmp_path: Path) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()
    graph = Graph("stands", Work)

    @graph.node(start=True)
    async def stands(state: Work) -> dict[str, int]:
        reached.set()
        await go_on.wait()
        return {"n": 1}

    async with Runtime(url, skills=[graph]) as rt:
        driving = asyncio.ensure_future(rt.invoke(graph, {}))
        await reached.wait()
        await rt.backup(tmp_path / "copy.db")
        await rt.restore(tmp_path / "copy.db")
        go_on.set()
        with pytest.raises(LeaseLost):
            await driving
        await rt.worker(until_idle=True)
        (found,) = await rt.runs()
        assert (found.status, found.error) == (Status.COMPLETED, None)

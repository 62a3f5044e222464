"""A run knows its workspace (§10.11, §11.2, §11.3): it goes on where its tools have worked, and nowhere else; whoever writes there is alone."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Runtime, State, Tool, workspaces
from holdfast.core.errors import UsageError, WorkspaceElsewhere
from holdfast.core.status import Status
from holdfast.workers.worker import Report
from tests.outbox.conftest import Open


class Work(State):
    out: str = ""


graph: Graph[Work] = Graph("work", Work)


@graph.node(start=True)
async def first(state: Work, ctx: Context) -> dict[str, str]:
    return {"out": (await ctx.tool("sh", ["-c", "echo one > made; cat made"])).stdout}


@graph.node(after="first")
async def ask(state: Work, ctx: Context) -> None:
    await ctx.approve("Go on?")


@graph.node(after="ask")
async def last(state: Work, ctx: Context) -> dict[str, str]:
    return {"out": (await ctx.tool("sh", ["-c", "cat made"])).stdout}


def runtime(open_rt: Open, workspace: Path | None, **options: Any) -> Runtime:
    return open_rt(skills=[graph], tools=[Tool("sh", side_effects="write")], workspace=workspace, **options)


async def passed_over(rt: Runtime, *, upgrade: bool = False) -> list[str | None]:
    """The workspaces that the first run wants which a worker passes over."""
    told: list[Report] = []
    stop = asyncio.Event()

    def heard(report: Report) -> None:
        told.append(report)
        stop.set()

    await asyncio.wait_for(rt.worker(stop=stop, on_report=heard, upgrade=upgrade), 20)
    assert all(r.error is None for r in told), "none was claimed and handed back"
    return [r.passed.workspace for r in told if r.passed is not None]


async def test_a_run_goes_on_where_its_tools_have_worked(open_rt: Open, tmp_path: Path) -> None:
    """Must show 6: two machines played by two folders; a third with the workspace takes it over. On every store."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    async with runtime(open_rt, here) as rt:
        run = await rt.invoke(graph, {})
        assert run.status == Status.WAITING_FOR_HUMAN and (await rt.get(run.run_id)).record.workspace == workspaces.read_id(str(here))
        assert [e.payload["workspace"] for e in await rt.events(run.run_id) if e.event_type == "run.patched"] == [workspaces.read_id(str(here))]
    for other in (there, None):
        async with runtime(open_rt, other) as rt:
            (there / "made").write_text("wrong")
            workspaces.find_id(str(there))
            if other is there:
                await rt.decide(run.run_id, "approve", actor="ada")
            before = (await rt.get(run.run_id)).lease.fence
            for upgrade in (False, True):
                assert await passed_over(rt, upgrade=upgrade) == [workspaces.read_id(str(here))]
            assert (await rt.get(run.run_id)).lease.fence == before, "nobody has claimed it"
            stands = await rt.get(run.run_id)
            assert stands.status != Status.COMPLETED
            assert str(workspaces.read_id(str(here))) in (await rt.explain(run.run_id))["why"]
            with pytest.raises(WorkspaceElsewhere, match=str(workspaces.read_id(str(here)))):
                await rt.resume(run.run_id)
    async with runtime(open_rt, here) as rt:
        await rt.worker(until_idle=True)
        done = await rt.get(run.run_id)
        assert done.status == Status.COMPLETED and done.values["out"] == "one\n"
        assert (await rt.check(run.run_id)).ok


async def test_who_writes_is_alone_and_readers_are_together(tmp_path: Path) -> None:
    """§11.3: a lock on the folder's id; it ends with whoever holds it."""
    workspaces.find_id(str(tmp_path))
    inside: list[str] = []
    both, go = asyncio.Event(), asyncio.Event()

    async def work(name: str, writes: bool) -> None:
        async with workspaces.lock(str(tmp_path), writes=writes):
            inside.append(name)
            if inside == ["a", "b"]:
                both.set()
            await go.wait()
            inside.append(f"{name} left")

    readers = [asyncio.ensure_future(work(name, False)) for name in "ab"]
    await asyncio.wait_for(both.wait(), 10)
    writer = asyncio.ensure_future(work("c", True))
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(*readers, writer)
    assert inside[-2:] == ["c", "c left"]


def test_what_lies_there_and_is_no_id_is_named(tmp_path: Path) -> None:
    assert workspaces.read_id(None) is None and workspaces.read_id(str(tmp_path)) is None
    found = workspaces.find_id(str(tmp_path))
    assert found is not None and workspaces.find_id(str(tmp_path)) == found == workspaces.read_id(str(tmp_path))
    (tmp_path / ".holdfast" / "workspace").write_text("../x")
    with pytest.raises(UsageError, match="not the id"):
        workspaces.read_id(str(tmp_path))

"""What a driver owes to a run at moments that few tests come by: each was survived by a mutant of the code that keeps it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Runtime, State, flow
from holdfast.core import events as ev
from holdfast.core.commit import Commit, Tip
from holdfast.core.errors import EffectInProgress, IncarnationChanged, LeaseLost
from holdfast.core.policy import Policy, allow, require_human
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import writer
from holdfast.stores.sqlite.store import SqliteStore
from tests.engine.support import FakeClock, World, says


class Trail(State):
    text: str = ""


async def until(rt: Runtime, run_id: str, kind: str, seconds: float = 20) -> None:
    """Until an event of this type is on record."""
    async with asyncio.timeout(seconds):
        async for event in rt.events(run_id, follow=True):
            if event.type == kind:
                return


async def test_a_cancel_ends_nothing_before_its_threads_have_ended() -> None:
    """§6.5: also one whose step timed out long ago, so that nobody counts its act as in flight any more."""
    go, over = threading.Event(), threading.Event()
    release, works_now, acts_now = asyncio.Event(), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    graph = Graph("g", Trail)

    def act() -> str:
        loop.call_soon_threadsafe(acts_now.set)
        assert go.wait(20)
        over.set()
        return "done"

    @graph.node(start=True)
    async def acts(state: Trail, ctx: Context) -> None:
        await ctx.effect(act, timeout=1)

    @graph.node(start=True)
    async def works(state: Trail, ctx: Context) -> None:
        works_now.set()
        await release.wait()

    async with Runtime("memory:", skills=[graph]) as rt:
        driving = asyncio.ensure_future(rt.invoke(graph, {}))
        await asyncio.wait_for(asyncio.gather(works_now.wait(), acts_now.wait()), 20)
        [run] = await rt.runs()
        run_id = run.run_id
        await until(rt, run_id, "wait.requested")
        assert [e.status for e in await rt.effects(run_id)] == ["unknown"]
        await rt.cancel(run_id, actor="ada")
        await until(rt, run_id, "run.cancel_requested")
        for _ in range(300):
            await asyncio.sleep(0)
        assert not driving.done() and (await rt.get(run_id)).status == "running", "its thread acts still"
        go.set()
        run = await asyncio.wait_for(driving, 10)
        assert run.status == "canceled" and over.is_set()


async def test_a_deadline_passes_while_a_sibling_runs() -> None:
    """§5.2, §5.10: nothing is put and nothing changes but the time; the wait times out all the same, and its task goes on."""
    world, release, works_now, goes_on = World(), asyncio.Event(), asyncio.Event(), asyncio.Event()
    graph = Graph("g", Trail)
    came: list[Any] = []

    @graph.node(start=True)
    async def waits(state: Trail, ctx: Context) -> None:
        came.append(await ctx.wait("go", timeout=5, on_timeout="default", default="late"))
        goes_on.set()

    @graph.node(start=True)
    async def works(state: Trail, ctx: Context) -> None:
        works_now.set()
        await release.wait()

    async with world.runtime(graph) as rt:
        driving = asyncio.ensure_future(rt.invoke(graph, {}))
        await asyncio.wait_for(works_now.wait(), 20)
        [begun] = await rt.runs()
        await until(rt, begun.run_id, "wait.requested")
        assert not came
        world.clock.at += 6_000_000
        await until(rt, begun.run_id, "wait.timed_out")
        await asyncio.wait_for(goes_on.wait(), 20)
        assert came == ["late"] and not driving.done()
        release.set()
        assert (await asyncio.wait_for(driving, 10)).status == "completed"


class Refusing(MemoryStore):
    """Somebody else has attempted under the key between the look and the commit, and has given up since."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(now=clock.now)
        self.refused = 0

    async def commit(self, commit: Commit) -> Tip:
        if not self.refused and says(ev.SideEffectAttempted)(commit):
            self.refused += 1
            raise EffectInProgress("another run attempts it")
        return await super().commit(commit)


async def test_what_was_held_survives_an_attempt_that_was_refused() -> None:
    """§6.8: nothing is lost with a commit that was refused: the recorded clock, dice and ledger rows go into the next one."""
    clock = FakeClock()
    seen: list[Any] = []

    async def act() -> str:
        return "done"

    @flow("f")
    async def f(ctx: Context) -> str:
        seen.append((ctx.now(), ctx.random(), ctx.uuid()))
        done = await ctx.effect(act, key="k")
        await ctx.approve("Go on?")
        return done

    store = Refusing(clock)
    async with Runtime(store, skills=[f], clock=clock) as rt:
        run = await rt.invoke(f, {})
        assert store.refused == 1 and run.status == "waiting_for_human"
        clock.at += 1_000_000
        assert (await rt.approve(run.run_id)).status == "completed"
    assert len(seen) == 2 and seen[0] == seen[1]


class Slow(MemoryStore):
    """Its first commit comes through, and the answer does not come back in time."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()

    async def commit(self, commit: Commit) -> Tip:
        tip = await super().commit(commit)
        if not self.reached.is_set():
            self.reached.set()
            await asyncio.Event().wait()
        return tip


async def test_a_run_whose_first_commit_came_through_is_let_go() -> None:
    """§10.4: whoever asked for it is gone before it was driven; it stays with nobody, and another goes on with it."""
    graph = Graph("g", Trail)

    @graph.node(start=True)
    async def work(state: Trail) -> dict[str, Any]:
        return {"text": "done"}

    store = Slow()
    async with Runtime(store, skills=[graph]) as rt:
        asked = asyncio.ensure_future(rt.invoke(graph, {}))
        await asyncio.wait_for(store.reached.wait(), 20)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        [left] = await rt.runs()
        assert left.condition == "queued" and left.lease.owner is None
        async with Runtime(store, skills=[graph]) as other:
            assert (await other.resume(left.run_id)).state.text == "done"


async def test_one_that_is_put_off_holds_up_nobody_in_its_lane() -> None:
    """§10.8: a run whose time has not come is not the head of its lane; once it has come, it is."""
    world = World()
    graph = Graph("g", Trail)

    @graph.node(start=True)
    async def work(state: Trail, ctx: Context) -> None:
        if state.text == "ask":
            await ctx.approve("Go on?")

    async with world.runtime(graph) as rt:
        later = await rt.submit(graph, {}, thread_id="t", delay=3600)
        assert (await rt.submit(graph, {}, thread_id="t")).blocked_by is None
        assert (await rt.invoke(graph, {}, thread_id="t")).status == "completed"
        assert (await rt.get(later.run_id)).status == "pending"
        world.clock.at += 3_600_000_000
        again = await rt.invoke(graph, {"text": "ask"}, thread_id="t")
        assert (again.status, (await rt.get(later.run_id)).status) == ("waiting_for_human", "completed"), "its time had come, so it went first"


async def test_a_gate_is_asked_again_under_another_policy_only() -> None:
    """§5.8, T-31: a verdict on record holds under the policy that gave it."""
    asked: list[str] = []
    graph = Graph("g", Trail)

    @graph.node(start=True, capabilities=("disk",))
    async def step(state: Trail, ctx: Context) -> None:
        await ctx.approve("Inside?")

    def policy(version: str, ask: bool) -> Policy:
        def gate(request: Any) -> Any:
            asked.append(version)
            return require_human("May it?") if ask else allow()

        return Policy(gate=gate, version=version)

    store = MemoryStore()
    async with Runtime(store, skills=[graph], policy=policy("1", True)) as rt:
        run = await rt.invoke(graph, {})
        run = await rt.approve(run.run_id)
        assert [w.prompt for w in run.waits] == ["Inside?"]
        in_step = len(asked)
        before = len([e for e in await rt.events(run.run_id) if e.type == "policy.evaluated"])
        assert before >= 1 and in_step >= 1
    async with Runtime(store, skills=[graph], policy=policy("2", True)) as rt:
        run = await rt.approve(run.run_id)
        assert "2" in asked and [w.prompt for w in run.waits] == ["May it?"], "what was approved under the first policy counts for nothing now"


@pytest.mark.parametrize("slow", [1000.0, -1.0], ids=["in place", "in the thread"])
async def test_a_store_that_another_process_has_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: float) -> None:
    """X-02, §1.9: whoever had it open writes nothing more, and is told why, in the same words wherever it is written."""
    monkeypatch.setattr(writer, "SLOW", slow)
    path = tmp_path / "runs.db"
    graph = Graph("g", Trail)

    @graph.node(start=True)
    async def work(state: Trail) -> None:
        return None

    rt = Runtime(SqliteStore(str(path)), skills=[graph])
    await rt.__aenter__()
    try:
        await rt.invoke(graph, {})
        await rt.backup(tmp_path / "copy.db")
        async with Runtime(SqliteStore(str(path))) as other:
            await other.restore(tmp_path / "copy.db")
            there = [r.run_id for r in await other.runs()]
        with pytest.raises(LeaseLost, match="open the store again"):
            await rt.submit(graph, {})
        for _ in range(2):
            with pytest.raises(IncarnationChanged, match="restored or acknowledged by another process"):
                await rt.schedule(graph, every=3600)
    finally:
        with contextlib.suppress(IncarnationChanged):
            await rt.close()
    async with Runtime(SqliteStore(str(path)), skills=[graph]) as fresh:
        assert {r.run_id for r in await fresh.runs()} == set(there) and (await fresh.check()).ok
        assert (await fresh.invoke(graph, {})).status == "completed"

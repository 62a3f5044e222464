"""A run that is not driven to a rest is let go of: it stays with no owner that lives and does nothing (§10.4, §10.11)."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, State
from holdfast.core import commands as cmd
from holdfast.core.commit import Commit, InboxItem, Tip
from holdfast.core.errors import FingerprintMismatch, LeaseLost, RunFailed, StoreError, StoreFull
from holdfast.core.status import Condition, Status
from holdfast.machine import SystemClock
from holdfast.ports import ANYTHING, Claim, News
from holdfast.stores.memory import MemoryStore
from holdfast.workers.worker import Report
from tests.inside import OpenMemory


class Count(State):
    n: int = 0


class Sick(OpenMemory):
    """Refuses commits while it is ill; counts claims."""

    ill: Exception | None = None
    healthy_for = 0
    claims = 0

    async def commit(self, commit: Commit) -> Tip:
        if self.ill is not None:
            if not self.healthy_for:
                raise self.ill
            self.healthy_for -= 1
        return await super().commit(commit)

    async def claim(self, *args: Any, **options: Any) -> list[Claim]:
        got = await super().claim(*args, **options)
        self.claims += len(got)
        return got


class Gate:
    """A node's body that says when it was entered and waits until it may go on."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.go = asyncio.Event()

    async def pass_through(self) -> None:
        self.entered.set()
        await self.go.wait()


def counting(*names: str, gate: Gate | None = None) -> tuple[Graph[Count], list[str]]:
    ran: list[str] = []
    graph = Graph("count", Count)
    for before, name in zip((None, *names), names, strict=False):

        async def body(state: Count, name: str = name) -> dict[str, int]:
            ran.append(name)
            if gate is not None:
                await gate.pass_through()
            return {"n": state.n + 1}

        graph.node(name, start=before is None, after=before)(body)
    return graph, ran


async def kinds(rt: Runtime, run_id: str) -> list[str]:
    return [e.type for e in await rt.events(run_id)]


async def worked(rt: Runtime) -> list[Report]:
    """What a worker reports until nothing is due."""
    reports: list[Report] = []
    await rt.worker(until_idle=True, on_report=reports.append)
    return reports


# -- code that is not here --------------------------------------------------------------------------


async def test_a_worker_leaves_what_it_cannot_go_on_with() -> None:
    """§10.11, §3.2: old code next to new code; a run of another shape is for whoever has that."""
    store = MemoryStore()
    old, _ = counting("one", "two")
    new, _ = counting("one", "other")
    async with Runtime(store, skills=[old]) as has_old, Runtime(store, skills=[new]) as has_new:
        run = await has_old.submit(old, {})
        (passed,) = await worked(has_new)
        assert (passed.run, passed.error) == (None, None) and passed.passed is not None and passed.passed.wanted == old.program.fingerprint
        left = await has_old.get(run.run_id)
        assert (left.condition, left.lease.owner, left.record.version) == (Condition.QUEUED, None, 2)
        assert [r.run_id for r in await worked(has_old)] == [run.run_id]
        assert (await has_old.get(run.run_id)).status is Status.COMPLETED


async def test_a_declared_migration_is_claimed() -> None:
    store = MemoryStore()
    old, _ = counting("one", "two")
    new, _ = counting("one", "other")
    new.migrates = (old.program.fingerprint,)
    async with Runtime(store, skills=[old]) as has_old:
        run = await has_old.submit(old, {})
        async with Runtime(store, skills=[new]) as has_new:
            (report,) = await worked(has_new)
            assert (report.run_id, report.passed, report.error) == (run.run_id, None, None)
            assert (await has_new.get(run.run_id)).status is Status.COMPLETED


async def test_an_approval_here_takes_nothing_from_those_who_have_the_code() -> None:
    """§5.4: the decision is recorded; whoever can drive the run finds it free."""

    def asking(*after: str) -> Graph[Count]:
        graph = Graph("ask", Count)

        @graph.node(start=True)
        async def ask(state: Count, ctx: Context) -> None:
            await ctx.approve("Go on?")

        for name in after:
            graph.node(name, after="ask")(lambda state: {"n": 1})
        return graph

    store = MemoryStore()
    old, new = asking("a"), asking("b")
    async with Runtime(store, skills=[old]) as has_old, Runtime(store, skills=[new]) as has_new:
        run = await has_old.invoke(old, {})
        await has_new.approve(run.run_id)
        with pytest.raises(FingerprintMismatch, match=old.program.fingerprint):
            await has_new.resume(run.run_id)
        free = await has_old.get(run.run_id)
        assert (free.lease.owner, free.condition) == (None, Condition.QUEUED)
        assert (await has_old.resume(run.run_id)).status is Status.COMPLETED


# -- callers that leave -----------------------------------------------------------------------------


async def test_a_cancelled_caller_hands_its_run_back() -> None:
    """§10.13: a timeout around ``invoke`` does not leave the run with a process that no longer drives it."""
    gate = Gate()
    graph, ran = counting("one", "two", gate=gate)
    async with Runtime(MemoryStore(), skills=[graph]) as rt:
        task = asyncio.ensure_future(rt.invoke(graph, {}))
        await gate.entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (left,) = await rt.runs()
        assert (left.condition, left.lease.owner) == (Condition.QUEUED, None)
        assert (await kinds(rt, left.run_id))[-1] == "run.handed_back"
        gate.go.set()
        assert (await rt.resume(left.run_id)).state.n == 2
        assert ran == ["one", "one", "two"]


async def test_a_cancelled_worker_hands_its_runs_back() -> None:
    gate = Gate()
    graph, _ = counting("one", gate=gate)
    async with Runtime(MemoryStore(), skills=[graph]) as rt:
        run = await rt.submit(graph, {})
        task = asyncio.ensure_future(rt.worker())
        await gate.entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        left = await rt.get(run.run_id)
        assert (left.condition, left.lease.owner) == (Condition.QUEUED, None)


async def test_an_answered_run_that_is_handed_back_stays_due() -> None:
    """§10.16: no wake-up is lost: the answer is there, and the run is claimable at once."""
    graph = Graph("ask", Count)
    gate = Gate()

    @graph.node(start=True)
    async def ask(state: Count, ctx: Context) -> dict[str, int]:
        await ctx.approve("Go on?")
        await gate.pass_through()
        return {"n": 7}

    async with Runtime(MemoryStore(), skills=[graph]) as rt:
        run = await rt.invoke(graph, {})
        task = asyncio.ensure_future(rt.approve(run.run_id))
        await gate.entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.go.set()
        assert [r.run_id for r in await worked(rt)] == [run.run_id]
        assert (await rt.get(run.run_id)).state.n == 7


# -- stores that fail -------------------------------------------------------------------------------


async def test_a_save_that_fails_in_mid_run_stops_it_there() -> None:
    """L-04, T-51, §1.12: the caller is told, nothing later refers to what was never written, and the process can go on."""
    store = Sick()
    graph, ran = counting("one", "two", "three")
    async with Runtime(store, skills=[graph]) as rt:
        store.ill, store.healthy_for = StoreFull("the disk is full"), 2
        with pytest.raises(StoreFull):
            await rt.invoke(graph, {})
        assert ran == ["one", "two"], "the second step ran, and its result was refused"
        store.ill = None
        (left,) = await rt.runs()
        assert left.status is Status.RUNNING
        assert (await rt.state(left.run_id)).n == 1
        assert [c.boundaries for c in await rt.checkpoints(left.run_id)] == [("run_started",), ("step_completed",)]
        done = await rt.resume(left.run_id)
        assert (done.status, done.state.n) == (Status.COMPLETED, 3)
        assert ran == ["one", "two", "two", "three"]
        assert await rt.store.verify() == []


async def test_a_store_that_fails_under_a_worker_loses_nothing() -> None:
    """L-04, X-14: each run is reported with the error that stopped it; once the store is well again all go on to their ends."""
    store = Sick()
    graph, _ = counting("one", "two")
    async with Runtime(store, skills=[graph]) as rt:
        runs = [await rt.submit(graph, {}) for _ in range(3)]
        store.ill, store.healthy_for = StoreFull("the disk is full"), 2
        reports = await worked(rt)
        assert reports and all(isinstance(r.error, StoreFull) or r.error is None for r in reports)
        store.ill = None
    async with Runtime(store, skills=[graph]) as rt:
        await rt.recover()
        assert {(await rt.get(r.run_id)).state.n for r in runs} == {2}


async def test_closing_comes_to_its_end_whatever_the_store_says() -> None:
    """§10.4: an owner that cannot hand back must at least be seen to be gone."""

    class Stubborn(MemoryStore):
        closed = False

        async def retire(self, owner: str) -> None:
            raise StoreFull("the disk is full")

        async def close(self) -> None:
            self.closed = True
            await super().close()

    store = Stubborn()
    graph, _ = counting("one")
    rt = await Runtime(store, skills=[graph]).__aenter__()
    await rt.invoke(graph, {})
    with pytest.raises(StoreFull):
        await rt.close()
    assert store.closed


# -- runs that are damaged --------------------------------------------------------------------------


async def damage(store: OpenMemory, run_id: str) -> None:
    """Flips a bit in the run's newest log row."""
    row = (await store.rows(run_id))[-1]
    store.alter_row(run_id, row.seq, row.data[:-1] + bytes([row.data[-1] ^ 1]))


async def test_a_damaged_run_is_reported_once_and_set_aside() -> None:
    """§1.8, L-18: it stops nobody else, and no worker takes it again; ``check`` and a person see it."""
    store = Sick()
    graph, _ = counting("one")
    async with Runtime(store, skills=[graph]) as rt:
        bad, good = await rt.submit(graph, {}), await rt.submit(graph, {})
        await damage(store, bad.run_id)
        reports = {r.run_id: r for r in await worked(rt)}
        assert isinstance(reports[bad.run_id].error, StoreError)
        assert reports[good.run_id].error is None
        assert (await rt.get(good.run_id)).status is Status.COMPLETED
        found = await store.get(bad.run_id)
        assert found is not None
        run, lease = found
        assert run.interrupted_at is not None and lease.owner is None
        before = store.claims
        assert await worked(rt) == []
        assert store.claims == before


async def test_a_run_whose_row_cannot_be_read_spins_nobody() -> None:
    store = Sick()
    graph, _ = counting("one")
    async with Runtime(store, skills=[graph]) as rt:
        bad = await rt.submit(graph, {})
        store.alter_run(bad.run_id, doc=b"\x00")
        (report,) = await worked(rt)
        assert isinstance(report.error, StoreError)
        assert await worked(rt) == []
        assert store.claims == 1


# -- leases in doubt --------------------------------------------------------------------------------


class Clock(SystemClock):
    """A clock that tests move."""

    def __init__(self) -> None:
        self.at = 1_800_000_000_000_000
        self.slept = 0.0

    def now(self) -> int:
        return self.at

    def monotonic(self) -> float:
        return super().monotonic() + self.slept

    def sleep_over(self, seconds: float) -> None:
        """Lets time pass in which nothing was done, no lease renewed either, as when the machine slept."""
        self.at += int(seconds * 1_000_000)
        self.slept += seconds


class Forgetful(MemoryStore):
    """Knows nobody for a while who comes to renew a lease."""

    forgets = False

    async def renew(self, owner: str, ttl_us: int) -> int:
        return 0 if self.forgets else await super().renew(owner, ttl_us)


async def test_a_worker_in_doubt_of_its_lease_claims_nothing_and_says_why() -> None:
    """§10.3, X-14, T-79."""
    clock, (graph, ran) = Clock(), counting("one")
    store = Forgetful(now=clock.now)
    async with Runtime(store, skills=[graph], clock=clock) as rt:
        await rt.worker(until_idle=True)  # from here on it is known as an owner
        run = await rt.submit(graph, {})
        store.forgets = True
        clock.sleep_over(60)
        with pytest.raises(LeaseLost, match="no longer known"):
            await rt.worker(until_idle=True)
        assert ran == [] and (await rt.get(run.run_id)).lease.owner is None


async def test_a_run_stopped_in_doubt_is_free_for_the_next() -> None:
    """§10.3: the machine slept; the lease is renewed a moment later, and the run must not stay with an owner that dropped it."""
    clock, store = Clock(), Forgetful()
    graph: Graph[Count] = Graph("count", Count)
    ran: list[str] = []

    @graph.node(start=True)
    async def one(state: Count) -> dict[str, int]:
        ran.append("one")
        store.forgets = True
        clock.sleep_over(60)
        return {"n": state.n + 1}

    @graph.node(after=one)
    async def two(state: Count) -> dict[str, int]:
        ran.append("two")
        return {"n": state.n + 1}

    async with Runtime(store, skills=[graph], clock=clock) as rt:
        with pytest.raises(LeaseLost):
            await rt.invoke(graph, {})
        (left,) = await rt.runs()
        store.forgets = False
        assert (await rt.resume(left.run_id)).state.n == 2
        assert ran == ["one", "two"]


# -- runs whose time has not come -------------------------------------------------------------------


async def test_a_delayed_run_does_not_begin_early_because_something_was_put() -> None:
    """§10.15, §1.5: a wake-up is a hint; the run is looked at and left until its time."""
    clock = Clock()
    store = MemoryStore(now=clock.now)
    graph, ran = counting("one")
    async with Runtime(store, skills=[graph], clock=clock) as rt:
        run = await rt.submit(graph, {}, delay=dt.timedelta(hours=1))
        command = cmd.Signal(name="go", signal_key="k", payload=b"\xc0", actor="ada")
        await store.put(InboxItem(run_id=run.run_id, key=command.key, command=command, put_at=clock.now()))
        await worked(rt)
        assert ran == [] and (await rt.get(run.run_id)).status is Status.PENDING
        clock.at += 3600 * 1_000_000
        await store.renew(rt.owner, 30_000_000)
        await worked(rt)
        assert ran == ["one"]


# -- reducers that raise ----------------------------------------------------------------------------


def strict(old: int, new: int) -> int:
    if new < 0:
        raise ValueError("below zero")
    return old + new


class Sum(State):
    total: Annotated[int, strict] = 0


def summing(amount: int) -> Graph[Sum]:
    graph = Graph("sum", Sum)

    @graph.node(start=True)
    async def add(state: Sum) -> dict[str, int]:
        return {"total": amount}

    return graph


async def test_a_reducer_that_raises_fails_its_run() -> None:
    """§4.7, §4.8: it is the user's code; the run ends failed, its last good values kept."""
    graph = summing(-1)
    async with Runtime(MemoryStore(), skills=[graph]) as rt:
        run = await rt.invoke(graph, {"total": 5})
        assert (run.status, run.stop_reason) == (Status.FAILED, "reducer_failed")
        assert run.error is not None and "below zero" in run.error.message
        assert run.state.total == 5 and run.lease.owner is None


async def test_a_reducer_that_refuses_the_input_fails_its_run() -> None:
    """§4.8: whoever drives it, and however it was begun; the input that was refused is kept for people to look at."""
    graph = summing(1)
    async with Runtime(MemoryStore(), skills=[graph]) as rt:
        for thread in (None, "t"):
            run = await rt.invoke(graph, {"total": -5}, thread_id=thread)
            assert (run.status, run.stop_reason, run.lease.owner, run.state.total) == (Status.FAILED, "reducer_failed", None, -5)
            assert run.error is not None and "below zero" in run.error.message
            assert await kinds(rt, run.run_id) == ["run.submitted", "run.claimed", "run.started", "run.failed", "checkpoint.saved"]
            assert (await rt.get(run.run_id)).record == run.record
        with pytest.raises(RunFailed, match="below zero"):
            await rt.run(graph, {"total": -5})
        left = await rt.submit(graph, {"total": -5})
        assert len(await worked(rt)) == 1
        run = await rt.get(left.run_id)
        assert (run.status, run.lease.owner, run.state.total) == (Status.FAILED, None, -5)
        assert run.error is not None and "below zero" in run.error.message
        assert (await kinds(rt, left.run_id))[-4:] == ["run.claimed", "run.started", "run.failed", "checkpoint.saved"]


class Still(MemoryStore):
    """A store in which nothing ever changes, so that nobody is woken by it."""

    def __init__(self) -> None:
        super().__init__()
        self.watched = asyncio.Event()

    async def wait_for_change(self, timeout: float, about: News = ANYTHING) -> News:
        self.watched.set()
        await asyncio.Event().wait()
        return about


async def test_a_drain_wakes_an_idle_worker() -> None:
    """§10.13: it ends when it is told to, and not with the next change of the store."""
    store = Still()
    async with Runtime(store) as rt:
        stop = asyncio.Event()
        working = asyncio.ensure_future(rt.worker(stop=stop, dispatch=False))
        await store.watched.wait()
        for _ in range(100):  # turns of the loop: it has looked around by then, and waits
            await asyncio.sleep(0)
        stop.set()
        async with asyncio.timeout(60):
            await working

"""A run that an error of the store left with a process which does not drive it is given back once the store answers (§2.9, §10.4)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Graph, Runtime, State
from holdfast.core.commit import Commit, Tip
from holdfast.core.errors import HoldfastError, OutcomeUnknown, StoreError, StoreUnavailable
from holdfast.core.status import Condition, Status
from holdfast.ports import Claim
from holdfast.testing.clock import VirtualClock
from holdfast.workers.worker import Report
from tests.inside import OpenMemory


class Count(State):
    n: int = 0


def counting() -> Graph[Count]:
    graph = Graph("count", Count)

    @graph.node(start=True)
    async def one(state: Count) -> dict[str, int]:
        return {"n": state.n + 1}

    @graph.node(after="one")
    async def two(state: Count) -> dict[str, int]:
        return {"n": state.n + 1}

    return graph


class Sick(OpenMemory):
    """Refuses commits while it is ill, after some; ``vain`` counts them. ``loses_claims``: the answers to claims are lost."""

    ill: HoldfastError | None = None
    healthy_for = 0
    loses_claims = False
    vain = 0

    async def commit(self, commit: Commit) -> Tip:
        if self.ill is not None:
            if not self.healthy_for:
                self.vain += 1
                raise self.ill
            self.healthy_for -= 1
        return await super().commit(commit)

    async def claim(self, *args: Any, **options: Any) -> list[Claim]:
        got = await super().claim(*args, **options)
        if self.loses_claims:
            raise OutcomeUnknown("the answer was lost")
        return got


ERRORS = [StoreUnavailable("no answer"), OutcomeUnknown("no answer"), StoreError("a table is gone")]


async def freed(rt: Runtime, clock: VirtualClock, run_id: str) -> list[str]:
    """The kinds of a run's events once no lease of it is left; time passes meanwhile."""
    async with asyncio.timeout(20):
        while (await rt.get(run_id)).lease.owner is not None:
            clock.advance(0.5)
            await asyncio.sleep(0)
    return [e.type for e in await rt.events(run_id)]


async def completed(store: OpenMemory, graph: Graph[Count], run_id: str) -> None:
    """Somebody else can go on with the run."""
    async with Runtime(store, skills=[graph]) as other:
        assert (await other.resume(run_id)).status is Status.COMPLETED
        assert await other.check() == []


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: str(e.code))
@pytest.mark.parametrize("how", ["invoke", "resume", "worker"])
async def test_what_an_error_of_the_store_left_here_is_given_back(error: HoldfastError, how: str) -> None:
    store, clock, graph = Sick(), VirtualClock(), counting()
    async with Runtime(store, skills=[graph], clock=clock) as rt:
        run = None if how == "invoke" else await rt.submit(graph, {})
        store.ill, store.healthy_for = error, 1
        if how == "worker":
            reports: list[Report] = []
            await rt.worker(until_idle=True, on_report=reports.append)
            assert [type(r.error) for r in reports] == [type(error)]
        else:
            with pytest.raises(type(error)):
                await (rt.invoke(graph, {}) if run is None else rt.resume(run.run_id))
        (left,) = await rt.runs()
        assert left.lease.owner == rt.owner
        said = await rt.explain(left.run_id)
        assert "does not execute it" in said["why"] and "A worker is executing it" not in said["why"]
        store.ill = None
        assert (await freed(rt, clock, left.run_id))[-1] == "run.handed_back"
        assert (await rt.get(left.run_id)).condition is Condition.QUEUED
        await completed(store, graph, left.run_id)


async def test_it_is_tried_until_the_store_answers() -> None:
    store, clock, graph = Sick(), VirtualClock(), counting()
    async with Runtime(store, skills=[graph], clock=clock) as rt:
        store.ill, store.healthy_for = StoreUnavailable("no answer"), 1
        with pytest.raises(StoreUnavailable):
            await rt.invoke(graph, {})
        (left,) = await rt.runs()
        async with asyncio.timeout(20):
            for tries in range(2, 6):
                while store.vain < tries:
                    clock.advance(1.0)
                    await asyncio.sleep(0)
        assert (await rt.get(left.run_id)).lease.owner == rt.owner
        store.ill = None
        await freed(rt, clock, left.run_id)
        await completed(store, graph, left.run_id)


async def test_a_claim_whose_answer_was_lost_is_given_back() -> None:
    store, clock, graph = Sick(), VirtualClock(), counting()
    async with Runtime(store, skills=[graph], clock=clock) as rt:
        run = await rt.submit(graph, {})
        store.loses_claims = True
        with pytest.raises(OutcomeUnknown):
            await rt.resume(run.run_id)
        assert (await rt.get(run.run_id)).lease.owner == rt.owner
        store.loses_claims = False
        await freed(rt, clock, run.run_id)
        await completed(store, graph, run.run_id)


async def test_what_is_taken_up_again_here_is_left_alone() -> None:
    store, clock, graph = Sick(), VirtualClock(), counting()
    async with Runtime(store, skills=[graph], clock=clock) as rt:
        store.ill, store.healthy_for = StoreUnavailable("no answer"), 1
        with pytest.raises(StoreUnavailable):
            await rt.invoke(graph, {})
        store.ill = None
        (left,) = await rt.runs()
        assert (await rt.resume(left.run_id)).status is Status.COMPLETED
        assert (await freed(rt, clock, left.run_id)).count("run.handed_back") == 1, "the claim says so of the driving that broke off"


async def test_a_worker_beside_takes_it_up_again() -> None:
    """It need not be one that drove the run."""
    store, clock, graph = Sick(), VirtualClock(), counting()
    async with Runtime(store, skills=[graph], clock=clock) as rt:
        stop = asyncio.Event()
        working = asyncio.ensure_future(rt.worker(stop=stop))
        store.ill, store.healthy_for = StoreUnavailable("no answer"), 1
        with pytest.raises(StoreUnavailable):
            await rt.invoke(graph, {})
        store.ill = None
        (left,) = await rt.runs()
        async with asyncio.timeout(20):
            while (await rt.get(left.run_id)).status is not Status.COMPLETED:
                clock.advance(1.0)
                await asyncio.sleep(0)
        assert [e.type for e in await rt.events(left.run_id)].count("run.handed_back") == 1
        stop.set()
        await working

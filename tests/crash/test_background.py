"""What goes on beside the runs: the worker's loop and the renewals (X-14, T-79, T-80, X-13)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.crash.worlds import line, stage

from holdfast import Context, Graph, Runtime, State, flow
from holdfast.core.errors import StoreClosed, StoreError
from holdfast.stores import MemoryStore
from holdfast.testing import Fault, World
from holdfast.testing.world import Host
from holdfast.workers.worker import Report


class Letter(State):
    text: str = ""


CLAIMS = ("claim", "claim_or_load")
"""The verbs by which a worker looks for what is due."""


def claims(host: Host) -> int:
    return sum(host.connection.writes.count(verb) for verb in CLAIMS)


def test_an_idle_worker_sleeps(holdfast_world: World) -> None:
    """§10.16: between two changes a worker waits; a minute of nothing costs two looks a second and no more."""

    async def story() -> int:
        host = await holdfast_world.host(line())
        host.start(host.rt.worker())
        await holdfast_world.clock.sleep(60)
        return claims(host)

    assert 60 <= holdfast_world.run(story()) <= 140


def test_a_worker_with_work_sleeps_too(holdfast_world: World) -> None:
    """While a run takes its time the worker does not ask the store in a circle."""
    stage.enter(holdfast_world)
    graph = line()

    @graph.node(after="third")
    async def long(state: Any) -> None:
        await holdfast_world.clock.sleep(30)

    async def story() -> int:
        host = await holdfast_world.host(graph)
        host.start(host.rt.worker())
        await host.do(host.rt.submit(graph, {"name": "Ada"}))
        await holdfast_world.clock.sleep(30)
        return claims(host)

    assert holdfast_world.run(story()) <= 100


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.APPLIED])
def test_a_store_in_trouble_is_backed_off_from(holdfast_world: World, fault: Fault) -> None:
    """X-14: a store that fails for a while ends no worker; it is asked ever more seldom, that is told, and then all goes on."""
    stage.enter(holdfast_world)
    well = False

    async def story() -> tuple[list[Report], int, Any]:
        nonlocal well
        told: list[Report] = []
        skill = line()
        host = await holdfast_world.host(skill, plan=lambda n, verb: fault if not well and verb in CLAIMS else None)
        host.start(host.rt.worker(on_report=told.append))
        await holdfast_world.clock.sleep(300)
        asked, well = claims(host), True
        run = await host.do(host.rt.submit(skill, {"name": "Ada"}))
        await holdfast_world.clock.sleep(60)
        return told, asked, await host.do(host.rt.get(run.run_id))

    told, asked, run = holdfast_world.run(story())
    assert 5 <= asked <= 20
    assert [(r.run_id, type(r.error)) for r in told[:asked]] == [("", StoreError)] * asked
    assert run.status == "completed"


@pytest.mark.parametrize("verb", ["claim_intents", "settle_intents"])
@pytest.mark.parametrize("fault", [Fault.LOST, Fault.APPLIED])
def test_a_sender_in_trouble_is_backed_off_from(holdfast_world: World, fault: Fault, verb: str) -> None:
    """X-14, §9.1: a store that fails the sender for a while ends neither it nor the worker beside it: runs go on, the trouble is told ever
    more seldom, and then all is sent, once."""
    well, sent = False, []
    graph: Graph[Letter] = Graph("letters", Letter)

    @graph.node(start=True)
    async def write(state: Letter, ctx: Context) -> None:
        ctx.send("mail", {"to": "Ada"})

    async def mail(payload: Any, key: str) -> None:
        sent.append(payload)

    async def story() -> tuple[list[Report], int, list[str], str]:
        nonlocal well
        told: list[Report] = []
        host = await holdfast_world.host(graph, plan=lambda n, v: fault if not well and v == verb else None, transports={"mail": mail})
        host.start(host.rt.worker(on_report=told.append))
        runs = [await host.do(host.rt.submit(graph))]
        await holdfast_world.clock.sleep(200)
        runs.append(await host.do(host.rt.submit(graph)))
        await holdfast_world.clock.sleep(100)
        ended = [(await host.do(host.rt.get(r.run_id))).status.value for r in runs]
        asked, well = host.connection.writes.count(verb), True
        await holdfast_world.clock.sleep(90)
        (state,) = {i.state for i in await host.do(host.rt.intents())}
        return told, asked, ended, state

    told, asked, ended, state = holdfast_world.run(story())
    assert ended == ["completed", "completed"], "the runs go on meanwhile"
    assert 5 <= asked <= 40
    assert [r for r in told if r.run is None and isinstance(r.error, StoreError)]
    assert state == "sent" and len(sent) == 2


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.APPLIED])
def test_claims_that_work_while_commits_fail(holdfast_world: World, fault: Fault) -> None:
    """X-14: what is claimed cannot be driven; the worker tries ever more seldom, and the run counts no takeover for it."""
    stage.enter(holdfast_world)
    well = False

    async def story() -> tuple[int, Any, list[str]]:
        nonlocal well
        skill = line()
        host = await holdfast_world.host(skill, plan=lambda n, verb: fault if not well and verb == "commit" and n > 2 else None)
        run = await host.do(host.rt.submit(skill, {"name": "Ada"}))
        host.start(host.rt.worker())
        await holdfast_world.clock.sleep(600)
        tries, well = host.connection.writes.count("commit"), True
        await holdfast_world.clock.sleep(90)
        return tries, await host.do(host.rt.get(run.run_id)), [e.type for e in await host.rt.events(run.run_id)]

    tries, run, kinds = holdfast_world.run(story())
    assert tries <= 60
    assert run.status == "completed"
    assert "attempt.taken_over" not in kinds


async def test_closing_ends_a_worker_and_what_it_drives() -> None:
    """An error leaves `async with` at once, beside a worker that has something in hand."""
    begun = asyncio.Event()

    @flow("hanging")
    async def hanging(ctx: Context) -> None:
        begun.set()
        await asyncio.Event().wait()

    store = MemoryStore()
    work: list[asyncio.Task[Any]] = []

    async def failing() -> None:
        async with asyncio.timeout(60), Runtime(store, skills=[hanging]) as rt:
            await rt.submit(hanging, thread_id="t")
            work.extend([asyncio.ensure_future(rt.worker()), asyncio.ensure_future(rt.invoke(hanging, thread_id="u"))])
            await begun.wait()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing()
    assert (await asyncio.gather(*work, return_exceptions=True))[0] is None
    async with Runtime(store) as rt:
        assert {r.condition for r in await rt.runs()} == {"queued"}


async def test_whoever_waits_for_a_closed_store_is_told() -> None:
    store = MemoryStore()
    await store.open()

    async def waits() -> None:
        while True:
            await store.wait_for_change(60)

    waiting = asyncio.ensure_future(waits())
    for _ in range(3):
        await asyncio.sleep(0)
    await store.close()
    with pytest.raises(StoreClosed):
        await waiting
    with pytest.raises(StoreClosed):
        await store.wait_for_change(60)


class Blind(MemoryStore):
    """Cannot say which runs have news, so many times."""

    times = 0
    error: Exception = StoreError("it cannot be read")
    asked = 0

    def __init__(self) -> None:
        super().__init__()
        self.looked = asyncio.Event()

    async def find_marked(self, owner: str) -> list[str]:
        self.asked += 1
        self.looked.set()
        if self.times:
            self.times -= 1
            raise self.error
        return await super().find_marked(owner)


@flow("long")
async def long_flow(ctx: Context) -> None:
    await asyncio.Event().wait()


async def test_a_watch_that_meets_a_failing_store_goes_on_when_it_is_well() -> None:
    """X-14: errors of the store while a run is driven do not make its owner deaf to a cancel."""
    store = Blind()
    store.times = 3
    async with Runtime(store, skills=[long_flow]) as owner, Runtime(store) as other:
        driving = asyncio.ensure_future(owner.invoke(long_flow, {}, thread_id="t"))
        await asyncio.wait_for(store.looked.wait(), 20)
        await other.cancel((await other.runs(thread_id="t"))[0].run_id)
        assert (await asyncio.wait_for(driving, 20)).status == "canceled"
        assert store.asked > 3


async def test_a_watch_that_breaks_takes_its_runs_with_it() -> None:
    """X-14: the process does not go on half-dead, deaf to cancels: the run stops with the error, and the log says so."""
    store = Blind()
    store.times, store.error = 1_000, RuntimeError("a mistake in the watch")
    async with Runtime(store, skills=[long_flow]) as rt:
        with pytest.raises(RuntimeError, match="a mistake in the watch"):
            await asyncio.wait_for(rt.invoke(long_flow, {}, thread_id="t"), 20)
        (left,) = await rt.runs(thread_id="t")
        assert left.condition == "interrupted" and left.lease.owner is None
        assert "a mistake in the watch" in str([e.payload for e in await rt.events(left.run_id)])

"""§10.11: limits as the engine keeps them: for workers and whoever invokes, for nodes, effects and tools; and how a queue is bounded and paused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Context, Graph, Limit, Runtime, State, Tool
from holdfast.core.errors import InvalidInput, LimitReached, QueueFull
from holdfast.core.status import Status
from holdfast.stores import MemoryStore
from holdfast.testing.clock import VirtualClock
from tests.engine.support import FakeClock


class Empty(State):
    n: int = 0


class Meter:
    """How many are in it at once, and the most there were."""

    def __init__(self) -> None:
        self.now = self.most = self.done = 0

    @contextlib.asynccontextmanager
    async def inside(self, turns: int = 100) -> AsyncIterator[None]:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            for _ in range(turns):
                await asyncio.sleep(0)
            yield
        finally:
            self.now -= 1
            self.done += 1


def busy(meter: Meter, **options: Any) -> Graph[Empty]:
    graph = Graph("busy", Empty)

    @graph.node(start=True, **options)
    async def work(state: Empty) -> dict[str, int]:
        async with meter.inside():
            return {"n": 1}

    return graph


Open = Callable[..., Runtime]


@pytest.fixture(params=["memory:", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory:" else f"sqlite:///{tmp_path}/s.db"


async def test_workers_drive_no_more_than_the_queue_may(url: str) -> None:
    """Must show 7 in kind: however much a worker could do at once, its queue and tenant say how much it does."""
    meter = Meter()
    graph = busy(meter)
    async with Runtime(url, skills=[graph], limits={"queue:default": Limit(in_flight=3), "tenant:*": Limit(in_flight=2)}) as rt:
        runs = [await rt.submit(graph, {}, tenant_id="ab"[i % 2]) for i in range(12)]
        await rt.worker(concurrency=10, until_idle=True)
        assert [(await rt.get(r.run_id)).status for r in runs] == [Status.COMPLETED] * 12
    assert meter.most <= 3 and meter.done == 12


async def test_whoever_invokes_waits_its_turn(url: str) -> None:
    """§10.11: a limit holds for runs that are invoked as for those of workers."""
    meter = Meter()
    graph = busy(meter)
    async with Runtime(url, skills=[graph], limits={"queue:default": Limit(in_flight=2)}) as rt:
        runs = await asyncio.gather(*(rt.invoke(graph, {}) for _ in range(5)))
    assert [r.status for r in runs] == [Status.COMPLETED] * 5 and meter.most <= 2


async def test_a_paused_queue_gives_a_run_back_as_it_stands(url: str) -> None:
    meter = Meter()
    graph = busy(meter)
    async with Runtime(url, skills=[graph]) as rt:
        shown = await rt.pause_queue("slow", actor="ada", reason="upgrade")
        assert shown.paused
        run = await rt.invoke(graph, {}, queue="slow")
        assert run.status == Status.PENDING and run.blocked_by is None and run.blocked_why == "the queue slow is paused"
        with pytest.raises(LimitReached, match="paused"):
            await rt.resume(run.run_id)
        await rt.worker(queues=["slow"], until_idle=True)
        (queue,) = await rt.queues()
        assert (queue.queue, queue.depth, queue.in_flight, queue.paused, queue.blocked) == ("slow", 1, 0, True, {"paused": 1})
        assert not (await rt.unpause_queue("slow", actor="bob")).paused
        assert (await rt.resume(run.run_id)).status == Status.COMPLETED
        assert await rt.queues() == []
        (limit,) = await rt.limits()
        assert [(c.actor, c.action, c.reason) for c in limit.changes] == [("ada", "paused", "upgrade"), ("bob", "unpaused", "")]


async def test_the_stored_limit_wins_and_says_who_set_it(url: str) -> None:
    meter = Meter()
    graph = busy(meter)
    async with Runtime(url, skills=[graph], limits={"queue:default": Limit(in_flight=4)}) as rt:
        assert [(x.name, x.in_flight, x.stored) for x in await rt.limits()] == [("queue:default", 4, False)]
        await rt.set_limit("queue:default", Limit(in_flight=1), actor="ada")
        for _ in range(6):
            await rt.submit(graph, {})
        await rt.worker(until_idle=True)
        assert meter.most == 1
        found = await rt.unset_limit("queue:default", actor="bob")
        assert (found.in_flight, found.stored, [c.action for c in found.changes]) == (4, False, ["set", "unset"])
        for wrong in (("queue:", Limit(in_flight=1)), ("lane:x", Limit(in_flight=1)), ("model", 3)):
            with pytest.raises(InvalidInput):
                await rt.set_limit(wrong[0], wrong[1], actor="ada")  # type: ignore[arg-type]


async def test_a_full_queue_refuses_a_submit_and_says_when_to_come_back(url: str) -> None:
    """§10.11: bounded by queue and tenant; a request that is known already is no new one."""
    graph = busy(Meter())
    async with Runtime(url, skills=[graph], max_queued=2, limits={"queue:default": Limit(per_second=0.5)}) as rt:
        outcomes = await asyncio.gather(*(rt.submit(graph, {}, key=f"k{i}") for i in range(6)), return_exceptions=True)
        refused = [o for o in outcomes if isinstance(o, BaseException)]
        assert len(refused) == 4 and all(isinstance(o, QueueFull) and o.code == "queue_full" and o.retry_after == 2.0 for o in refused)
        taken = next(i for i, o in enumerate(outcomes) if not isinstance(o, BaseException))
        assert (await rt.submit(graph, {}, key=f"k{taken}")).deduplicated
        assert (await rt.submit(graph, {}, tenant_id="other")).status == Status.PENDING
        assert (await rt.submit(graph, {}, queue="other")).status == Status.PENDING
        assert len(await rt.runs()) == 4


@pytest.mark.parametrize("where", ["node", "step", "effect"])
async def test_calls_of_one_limit_are_not_under_way_at_once(url: str, where: str) -> None:
    """§10.11: nodes, effects and steps that name a limit share it, over all runs."""
    meter = Meter()

    async def act(n: int = 0) -> int:
        async with meter.inside():
            return n

    graph = Graph("calls", Empty)
    if where == "node":
        graph = busy(meter, limit="model")
    else:

        @graph.node(start=True)
        async def work(state: Empty, ctx: Context) -> dict[str, int]:
            effects = {"side_effects": "read"} if where == "step" else {}
            return {"n": await ctx.effect(act, 1, limit="model", **effects)}

    async with Runtime(url, skills=[graph], limits={"model": Limit(in_flight=2)}) as rt:
        runs, stop = [await rt.submit(graph, {}) for _ in range(8)], asyncio.Event()
        working = asyncio.ensure_future(rt.worker(stop=stop))
        for run in runs:  # one that waited for a second rests, and is due again
            await rt.result(run.run_id, timeout=30)
        stop.set()
        await working
        assert (await rt.store.usage()).calls == {}
    assert 1 <= meter.most <= 2 and meter.done == 8


async def test_a_call_that_waits_for_long_rests_and_holds_nothing(url: str) -> None:
    """§10.11: waiting for longer than a second is a rest with a due time; who leaves wakes it, and what was done is not done again."""
    entered, leave = asyncio.Event(), asyncio.Event()
    before: list[str] = []
    graph = Graph("rests", Empty)

    @graph.node(start=True)
    async def work(state: Empty, ctx: Context) -> dict[str, int]:
        await ctx.step(lambda: before.append(ctx.run.run_id))
        return {"n": await ctx.effect(act, limit="gpu")}

    async def act() -> int:
        entered.set()
        await leave.wait()
        return 1

    async with Runtime(url, skills=[graph], limits={"gpu": Limit(in_flight=1)}) as rt:
        stop = asyncio.Event()
        working = asyncio.ensure_future(rt.worker(stop=stop))
        first = await rt.submit(graph, {})
        await entered.wait()
        second = await rt.submit(graph, {})
        while (await rt.get(second.run_id)).status != Status.RUNNING or (await rt.get(second.run_id)).lease.owner is not None:
            await rt.store.wait_for_change(0.05)
        assert [h.runs for h in (await rt.store.usage()).held] == [1], "the one that waits holds no slot of its queue or tenant"
        assert any(e.event_type == "run.handed_back" and "limit gpu: 1 of 1 in flight" in str(e.payload) for e in await rt.events(second.run_id))
        leave.set()
        ends = [await rt.result(r.run_id, timeout=20) for r in (first, second)]
        assert ends and before == [first.run_id, second.run_id]
        stop.set()
        await working


@pytest.mark.parametrize("where", ["effects", "nodes"])
async def test_a_run_does_not_rest_for_a_limit_that_it_holds_itself(url: str, where: str) -> None:
    """§10.11: its calls take turns however long each of them lasts. Each begins once, and the run is not handed back, for it could not rest before they end."""
    clock, meter = FakeClock(), Meter()
    entered: list[int] = []

    async def act(n: int) -> int:
        async with meter.inside(turns=20):
            await clock.sleep(3)  # longer than any call waits where it is
        return n

    graph = Graph(where, Empty)
    if where == "nodes":
        for n in range(6):

            @graph.node(f"n{n}", start=True, limit="gpu")
            async def work(state: Empty, n: int = n) -> None:
                entered.append(n)
                await act(n)

    else:

        @graph.node(start=True)
        async def all_of_them(state: Empty, ctx: Context) -> None:
            entered.append(0)
            await ctx.gather(*(ctx.effect(act, n, limit="gpu", idempotent=True) for n in range(6)))

    async with Runtime(url, skills=[graph], clock=clock, limits={"gpu": Limit(in_flight=2)}) as rt:
        run = await rt.invoke(graph, {})
        assert run.status == Status.COMPLETED, run.error
        told = [e.event_type for e in await rt.events(run.run_id)]
    assert meter.most <= 2 and meter.done == 6
    assert "run.handed_back" not in told and len(entered) == len(set(entered))


@pytest.mark.parametrize("where", ["a node beside", "a branch", "between"])
async def test_what_is_freed_before_a_run_rests_is_not_waited_for(where: str) -> None:
    """§10.11: who leaves while the run is still driven can wake nobody. So the run looks once more when it rests; the clock stands still from then on."""
    clock, full, stay = VirtualClock(), asyncio.Event(), asyncio.Event()
    graph = Graph(where, Empty)

    class Told(MemoryStore):
        async def enter(self, owner: str, run_id: str, place: str, needs: Any, *, resting: bool = False) -> Any:
            later = await super().enter(owner, run_id, place, needs, resting=resting)
            if resting and later is not None:
                full.set()
                await self.leave(owner, ["x"] if where == "between" else [])
            return later

    async def act() -> int:
        return 1

    @graph.node("uses", start=True)
    async def uses(state: Empty, ctx: Context) -> None:
        if where == "a branch":
            await ctx.gather(ctx.effect(act, limit="full"), ctx.effect(act, key="second", limit="gpu"), ctx.step(stay.wait))
        else:
            await ctx.effect(act, limit="gpu")

    if where == "a node beside":

        @graph.node("stays", start=True)
        async def stays(state: Empty) -> None:
            await stay.wait()

    async with Runtime(Told(now=clock.now), skills=[graph], clock=clock, limits={"gpu": Limit(in_flight=1), "full": Limit(in_flight=1)}) as rt:
        await rt.recover()
        for place, name in (("x", "gpu"), ("y", "full")):
            assert await rt.store.enter(rt.owner, "none", place, {name: Limit(in_flight=1)}) is None
        run = await rt.submit(graph, {})
        stop = asyncio.Event()
        working = asyncio.ensure_future(rt.worker(stop=stop))
        while not full.is_set():
            clock.advance(0.05)
            await asyncio.sleep(0)
        await rt.store.leave(rt.owner, ["x", "y"] if where == "a branch" else ["x"])
        stay.set()
        async with asyncio.timeout(20):
            await rt.result(run.run_id)
        stop.set()
        await working
        assert [e.event_type for e in await rt.events(run.run_id)].count("run.handed_back") == 1


async def test_a_tool_uses_its_limit(tmp_path: Path) -> None:
    graph = Graph("tools", Empty)

    @graph.node(start=True)
    async def work(state: Empty, ctx: Context) -> dict[str, int]:
        out = await ctx.gather(*(ctx.tool("sh", ["-c", f"ls | wc -l; touch {n}; sleep 0.05; rm {n}"], cwd=tmp_path) for n in range(4)))
        return {"n": max(int(o.stdout) for o in out)}

    tool = Tool("sh", side_effects="read", limit="shell")
    async with Runtime("memory:", skills=[graph], tools=[tool], workspace=tmp_path, limits={"shell": Limit(in_flight=1)}) as rt:
        run = await rt.invoke(graph, {})
    assert run.values["n"] == 0, "each found the folder empty"


async def test_a_transport_uses_its_limit() -> None:
    """§10.11: sendings of a type that names a limit begin as its rate lets, and none is counted as a failed attempt."""
    meter = Meter()

    class Mail:
        dedupes = True
        limit = "smtp"

        async def send(self, payload: Any, key: str) -> None:
            async with meter.inside():
                return None

    graph = Graph("mails", Empty)

    @graph.node(start=True)
    async def work(state: Empty, ctx: Context) -> None:
        for n in range(6):
            ctx.send("mail", {"n": n})

    async with Runtime("memory:", skills=[graph], transports={"mail": Mail()}, limits={"smtp": Limit(in_flight=1)}) as rt:
        await rt.invoke(graph, {})
        await rt.dispatch(until_idle=True)
        assert {i.state for i in await rt.intents()} == {"sent"}
        assert (await rt.store.usage()).calls == {}
    assert meter.most == 1 and meter.done == 6


async def test_a_turn_is_waited_for_though_the_servers_time_is_known_a_little_late() -> None:
    """§1.9: a server says by its own time when to come back, and a worker knows that time by the way of an answer. A turn that comes within a second is
    not given up for that."""
    meter, asked = Meter(), 0

    class Asked(MemoryStore):
        async def enter(self, owner: str, run_id: str, place: str, needs: Any, *, resting: bool = False) -> Any:
            nonlocal asked
            asked += 1
            assert not resting, "it would come back only after its turn"
            later = await super().enter(owner, run_id, place, needs, resting=resting)
            return None if later is None else msgspec.structs.replace(later, at=later.at + 3_000)

    class Mail:
        dedupes = True
        limit = "smtp"

        async def send(self, payload: Any, key: str) -> None:
            async with meter.inside():
                return None

    graph = Graph("mails", Empty)

    @graph.node(start=True)
    async def work(state: Empty, ctx: Context) -> None:
        await asyncio.gather(*[ctx.effect(call, n, key=str(n), limit="smtp", side_effects="read") for n in range(4)])
        for n in range(4):
            ctx.send("mail", {"n": n})

    async def call(n: int) -> None:
        async with meter.inside():
            return None

    async with Runtime(Asked(), skills=[graph], transports={"mail": Mail()}, limits={"smtp": Limit(in_flight=1)}) as rt:
        assert (await rt.invoke(graph, {})).status == "completed"
        await rt.dispatch(until_idle=True)
        assert {i.state for i in await rt.intents()} == {"sent"}
    assert meter.most == 1 and meter.done == 8
    assert asked < 60, asked


def test_what_is_no_limit_is_refused() -> None:
    for wrong in ({"model": 3}, {"lane:x": Limit(in_flight=1)}, ["model"]):
        with pytest.raises(InvalidInput):
            Runtime("memory:", limits=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        Runtime("memory:", max_queued=0)
    with pytest.raises(InvalidInput):
        busy(Meter(), limit="queue:default")
    with pytest.raises(InvalidInput):
        Tool("sh", limit="worker")


async def test_how_much_is_in_use_is_told_of_each_limit(url: str) -> None:
    """Of a call's limit the calls that are under way, of a queue, a tenant and the worker their runs; of what nobody uses nothing."""
    seen: list[dict[str, int]] = []
    graph = Graph("busy", Empty)

    @graph.node(start=True, limit="llm")
    async def work(state: Empty) -> None:
        seen.append({v.name: v.in_use for v in await rt.limits()})

    names = ("llm", "other", "worker", "queue:default", "queue:other", "queue:*", "tenant:default")
    async with Runtime(url, skills=[graph], limits={name: Limit(in_flight=5) for name in names}) as rt:
        await rt.invoke(graph)
        seen.append({v.name: v.in_use for v in await rt.limits()})
    assert seen[0] == {"llm": 1, "other": 0, "worker": 1, "queue:default": 1, "queue:other": 0, "queue:*": 1, "tenant:default": 1}
    assert set(seen[1].values()) == {0}

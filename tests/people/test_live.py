"""Commands for runs that somebody drives right now, and policy gates (§5.2, §8.1, §10.12)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, State, append, flow
from holdfast.core import policy
from holdfast.core.errors import AlreadyTerminal, Denied
from tests.postgres.server import shared


class Trail(State):
    said: Annotated[list[str], append]


def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


async def kinds(rt: Runtime, run_id: str) -> list[str]:
    return [e.type for e in await rt.events(run_id)]


@pytest.mark.parametrize("over", ["sqlite", "postgres"])
async def test_a_cancel_reaches_a_step_in_another_process(over: str, tmp_path: Path) -> None:
    """T-89, L-20: the request is on record first, the effect in flight ends and is recorded, then the run ends."""
    begun, seen = asyncio.Event(), []

    async def act() -> str:
        begun.set()
        await asyncio.wait_for(asked.wait(), 20)
        seen.append("acted")
        return "done"

    @flow("long")
    async def long(ctx: Context) -> None:
        await ctx.effect(act)
        await asyncio.Event().wait()

    asked = asyncio.Event()
    place = url(tmp_path) if over == "sqlite" else shared().fresh()
    async with Runtime(place, skills=[long]) as owner, Runtime(place) as other:
        driving = asyncio.ensure_future(owner.invoke(long, {}, thread_id="t"))
        await asyncio.wait_for(begun.wait(), 20)
        run_id = (await other.runs(thread_id="t"))[0].run_id
        await other.cancel(run_id, actor="ada", reason="enough")
        async for event in other.events(run_id, follow=True):
            if event.type == "run.cancel_requested":
                assert event.actor == "ada"
                asked.set()
        run = await asyncio.wait_for(driving, 20)
        assert (run.status, run.condition, run.stop_reason, seen) == ("canceled", "cancelled", "canceled", ["acted"])
        found = await kinds(other, run_id)
        assert found.index("run.cancel_requested") < found.index("side_effect.recorded") < found.index("run.canceled")
        with pytest.raises(AlreadyTerminal):
            await other.cancel(run_id)


async def test_an_early_answer_goes_on_beside_running_siblings(tmp_path: Path) -> None:
    """§5.2: the wait is committed when its task reaches it; its answer re-enters that task in the same super-step."""
    graph = Graph("early", Trail)
    answered = asyncio.Event()

    @graph.node(start=True)
    async def asks(state: Trail, ctx: Context) -> dict[str, Any]:
        await ctx.approve("now?")
        answered.set()
        return {"said": ["asked"]}

    @graph.node(start=True)
    async def works(state: Trail) -> dict[str, Any]:
        await asyncio.wait_for(answered.wait(), 20)
        return {"said": ["worked"]}

    async with Runtime(url(tmp_path), skills=[graph]) as owner, Runtime(url(tmp_path)) as other:
        driving = asyncio.ensure_future(owner.invoke(graph, {}, thread_id="t"))
        run_id = ""
        while not run_id:
            await other.store.wait_for_change(0.05)
            run_id = next((r.run_id for r in await other.runs(thread_id="t") if r.waits), "")
        await other.decide(run_id, "approve")
        run = await asyncio.wait_for(driving, 20)
        assert run.status == "completed" and run.state.said == ["asked", "worked"]
        assert "run.waiting_for_human" not in await kinds(other, run_id)


# -- policy -----------------------------------------------------------------------------------------


def gated(ran: list[str]) -> Graph[Trail]:
    graph = Graph("gated", Trail)

    @graph.node(start=True, capabilities=("mail",), retry=5)
    async def one(state: Trail) -> None:
        ran.append("one")

    @graph.node(after="one", capabilities=("mail",))
    async def two(state: Trail) -> None:
        ran.append("two")

    return graph


async def test_an_approval_is_honoured_when_the_step_is_judged_again(tmp_path: Path) -> None:
    """T-10, T-31, T-32: one pause a gated step, one step.started each; both run after their approvals."""
    ran: list[str] = []
    graph = gated(ran)
    rule = policy.Policy(gate=lambda r: policy.require_human(f"let {r.node} send?"), version="1")
    async with Runtime(url(tmp_path), skills=[graph], policy=rule) as rt:
        run = await rt.invoke(graph, {})
        assert run.waits[0].kind == "gate" and run.condition == "awaiting_gate_decision" and ran == []
        run = await rt.approve(run.run_id)
        assert run.waits[0].prompt == "let two send?" and ran == ["one"]
        run = await rt.approve(run.run_id)
        assert run.status == "completed" and ran == ["one", "two"]
        found = await kinds(rt, run.run_id)
        assert found.count("wait.requested") == 2 and found.count("step.started") == 2 and found.count("policy.evaluated") == 2


async def test_a_denial_is_not_retried(tmp_path: Path) -> None:
    """T-88, §8.1: five attempts are allowed and none is made; the run is halted."""
    ran: list[str] = []
    graph = gated(ran)
    async with Runtime(url(tmp_path), skills=[graph], policy=lambda r: policy.deny("no mail today")) as rt:
        run = await rt.invoke(graph, {})
        assert (run.status, run.condition, run.stop_reason, ran) == ("canceled", "halted", "policy_denied", [])
        judged = [e.payload for e in await rt.events(run.run_id) if e.type == "policy.evaluated"]
        assert [(j["verdict"], j["reason"]) for j in judged] == [("deny", "no mail today")]


async def test_another_policy_asks_anew(tmp_path: Path) -> None:
    """§5.8: an approval given under one snapshot does not cover the next; the new wait says so."""

    @flow("careful")
    async def careful(ctx: Context) -> str:
        return (await ctx.approve("go?")).actor

    async with Runtime(url(tmp_path), policy=policy.Policy(version="1")) as rt:
        run = await rt.invoke(careful)
        first = run.waits[0].wait_id
        await rt.decide(run.run_id, "approve", actor="ada", resume=False)
    async with Runtime(url(tmp_path), skills=[careful], policy=policy.Policy(version="2")) as rt:
        run = await rt.resume(run.run_id)
        assert run.status == "waiting_for_human" and run.waits[0].wait_id != first
        assert "policy changed" in run.record.waits[0].verdict
        assert (await rt.approve(run.run_id, actor="bob")).result == "bob"


async def test_a_resume_asks_the_policy_in_force(tmp_path: Path) -> None:
    """§7.4, §7.5: a denial of a step still to come refuses the resume; force waives just that, and is on record."""
    ran: list[str] = []
    graph = gated(ran)
    async with Runtime(url(tmp_path), skills=[graph], policy=lambda r: policy.require_human("ok?")) as rt:
        run = await rt.invoke(graph, {})
        await rt.decide(run.run_id, "approve", resume=False)
    async with Runtime(url(tmp_path), skills=[graph], policy=lambda r: policy.deny("closed") if r.node == "two" else None) as rt:
        with pytest.raises(Denied, match="closed"):
            await rt.resume(run.run_id)
        assert ran == []
        run = await rt.resume(run.run_id, force=True, actor="ada")
        assert (run.status, ran) == ("completed", ["one", "two"])
        resumed = [e.payload for e in await rt.events(run.run_id) if e.type == "run.resumed"]
        assert resumed[-1]["forced"] is True, "also where a decision came first"


@pytest.mark.parametrize("end", ["failed", "canceled"])
async def test_force_rescues_and_its_waiver_stays(tmp_path: Path, end: str) -> None:
    """§7.4: a forced resume ends no run that an unforced one would have left resumable; a gate waived once stays waived for this run."""
    broken, ran = {"first", "second"}, []
    graph = Graph("risky", Trail)

    @graph.node(start=True)
    async def first(state: Trail, ctx: Context) -> None:
        if end == "canceled":
            await ctx.wait("go")
        elif "first" in broken:
            raise ValueError("boom")

    @graph.node(after="first", capabilities=("mail",))
    async def second(state: Trail) -> None:
        ran.append("second")
        if "second" in broken:
            raise ValueError("once more")

    async with Runtime(url(tmp_path), skills=[graph], policy=lambda r: policy.deny("closed") if r.node == "second" else None) as rt:
        run = await rt.invoke(graph, {})
        run = await rt.cancel(run.run_id) if end == "canceled" else run
        for _ in range(2):
            with pytest.raises(Denied, match="closed"):
                await rt.resume(run.run_id, acknowledge=run.stop_reason)
        broken.discard("first")
        run = await rt.resume(run.run_id, force=True, acknowledge=run.stop_reason)
        if end == "canceled":
            await rt.signal(run.run_id, "go")
            run = await rt.resume(run.run_id)
        assert run.status == "failed" and ran == ["second"], "the gate let it run, and its own failure ended it"
        broken.clear()
        run = await rt.resume(run.run_id, acknowledge=run.stop_reason)
        assert run.status == "completed" and ran == ["second", "second"], "nobody had to force it again"
        if end == "failed":
            assert (await rt.invoke(graph, {})).stop_reason == "policy_denied", "another run's gate is its own"

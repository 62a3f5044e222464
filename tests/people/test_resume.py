"""Resume: by an answer, under another policy, past a deadline (§4.16, §5.11, §7)."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, State, append, flow
from holdfast.core import events as ev
from holdfast.core import policy
from holdfast.core.environments import PRODUCTION
from holdfast.core.errors import (
    AcknowledgeRequired,
    AmbiguousWait,
    Denied,
    InvalidInput,
    NodeMissing,
    NotDecidable,
    RestrictedOption,
    RunNotFound,
    SkillUnknown,
    UndecidedWait,
)
from holdfast.handle import Run
from holdfast.named import KernelExecutor
from tests.engine.support import World, says


class Trail(State):
    said: Annotated[list[str], append]


@flow("ask")
async def ask(ctx: Context, what: str = "input") -> Any:
    match what:
        case "input":
            return await ctx.ask("well?", Any)  # type: ignore[arg-type]
        case "signal":
            return await ctx.wait("go")
        case "handoff":
            return (await ctx.handoff("look", verdict="rejected")).action
        case "sleep":
            return await ctx.sleep(1e9)
    given = await ctx.approve("ok?", on_deny="deliver")
    return [given.action, given.payload]


async def kinds(rt: Runtime, run_id: str) -> list[str]:
    return [e.type for e in await rt.events(run_id)]


# -- by an answer -----------------------------------------------------------------------------------


@pytest.mark.parametrize("thread", [False, True])
@pytest.mark.parametrize(("what", "payload", "result"), [
    ("input", "yes", "yes"),
    ("input", None, None),
    ("input", False, False),
    ("signal", {"a": 1}, {"a": 1}),
    ("approval", None, ["approve", None]),
    ("approval", True, ["approve", None]),
    ("approval", {"to": "b"}, ["approve", {"to": "b"}]),
    ("approval", False, ["deny", None]),
    ("handoff", None, "continue"),
])
async def test_a_payload_answers_the_one_open_wait(what: str, payload: Any, result: Any, thread: bool) -> None:
    """§5.11, §4.16: of a run or of a thread, whatever kind it is; False never approves. It is driven on."""
    async with World().runtime(ask) as rt:
        run = await rt.invoke(ask, {"what": what}, thread_id="t")
        done = await rt.resume("t" if thread else run.run_id, payload=payload, actor="ada")
        assert (done.run_id, done.status, done.result) == (run.run_id, "completed", result)
        decided = next(e for e in await rt.events(run.run_id) if e.type == "wait.decided")
        assert decided.payload["decision"]["actor"] == "ada"


async def test_what_a_payload_cannot_answer() -> None:
    """§5.11: nothing open, a timer, a False where nothing can be denied; nothing is written."""
    async with World().runtime(ask) as rt:
        for what, payload in (("handoff", False), ("sleep", 1)):
            run = await rt.invoke(ask, {"what": what}, detach=True)
            before = await kinds(rt, run.run_id)
            with pytest.raises(NotDecidable):
                await rt.resume(run.run_id, payload=payload)
            assert await kinds(rt, run.run_id) == before
        done = await rt.invoke(ask, {"what": "input"}, thread_id="t")
        await rt.resume("t", payload=1)
        for target in ("t", done.run_id):
            with pytest.raises(NotDecidable):
                await rt.resume(target, payload=1)
        with pytest.raises(RunNotFound):
            await rt.resume("nowhere", payload=1)
        with pytest.raises(InvalidInput, match="the run id is empty"):
            await rt.resume("", payload=1)


async def test_an_answer_is_given_where_it_can_be_acted_upon() -> None:
    """§5.11: without the skill's code nothing is recorded; decide takes an answer without it."""
    world = World()
    async with world.runtime(ask) as rt:
        run = await rt.invoke(ask, {"what": "input"})
    async with world.runtime() as bare:
        before = await kinds(bare, run.run_id)
        with pytest.raises(SkillUnknown):
            await bare.resume(run.run_id, payload="x")
        assert await kinds(bare, run.run_id) == before
        await bare.decide(run.run_id, "answer", payload="x")
    async with world.runtime(ask) as rt:
        assert (await rt.resume(run.run_id)).result == "x"


async def test_the_run_that_asks_is_answered_not_the_one_behind_it() -> None:
    """§5.11, §5.13: what is queued in the thread has asked nothing yet."""
    async with World().runtime(ask) as rt:
        first = await rt.invoke(ask, {}, thread_id="t")
        second = await rt.submit(ask, {}, thread_id="t")
        assert (await rt.resume("t", payload="a")).run_id == first.run_id
        await rt.worker(until_idle=True)
        assert (await rt.resume("t", payload="b")).run_id == second.run_id


async def test_the_first_answer_does_not_approve_the_second_question() -> None:
    """L-08: a resume without a payload past an open question is refused; with several open a payload is ambiguous and names them."""

    @flow("two")
    async def two(ctx: Context) -> list[Any]:
        first = await ctx.approve("one?")
        both = await ctx.gather(ctx.approve("two?"), ctx.approve("three?"))
        return [first.payload, *(d.payload for d in both)]

    async with World().runtime(two) as rt:
        kernel = KernelExecutor(rt, two)
        run = await kernel.invoke("t", {})
        run = await kernel.resume("t", {"n": 1})
        assert {w.prompt for w in run.waits} == {"two?", "three?"}
        with pytest.raises(UndecidedWait):
            await rt.resume(run.run_id)
        with pytest.raises(AmbiguousWait) as several:
            await rt.resume("t", payload={"n": 2})
        assert all(w.wait_id in several.value.message for w in run.waits)
        one, other = run.waits
        run = await rt.approve(run.run_id, wait_id=one.wait_id, payload={"n": 2})
        assert [w.wait_id for w in run.waits] == [other.wait_id] and run.status == "waiting_for_human"
        run = await kernel.resume("t", {"n": 3})
        assert run.result == [{"n": 1}, {"n": 2}, {"n": 3}]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", [ev.WaitDecided, ev.RunResumed, ev.StepCompleted])
@pytest.mark.parametrize("what", ["input", "signal"])
async def test_a_crash_right_after_resume_keeps_the_payload_once(what: str, kind: type[ev.Fact], after: bool) -> None:
    """T-37: what is given is durable before its consumption starts and consumed in the commit that says so; after a restart it is there once."""
    world = World()
    async with world.runtime(ask) as rt:
        run_id = (await rt.invoke(ask, {"what": what}, thread_id="t")).run_id
    await world.crash(ask, when=says(kind), after=after, resume=run_id, payload="given")
    async with world.runtime(ask) as rt:
        run = await rt.get(run_id)
        if run.status != "completed":
            run = await rt.resume(run_id)
        assert (run.status, run.result) == ("completed", "given")
        found = await rt.events(run_id)
        assert [e.type for e in found].count("wait.decided") == 1
        assert sum("given" in str(e.payload) for e in found if e.type in ("wait.decided", "signal.received")) == (2 if what == "signal" else 1)


# -- the policy at resume ---------------------------------------------------------------------------


def risky() -> Graph[Trail]:
    graph = Graph("risky", Trail)

    @graph.node(start=True)
    async def wait(state: Trail, ctx: Context) -> dict[str, Any]:
        await ctx.approve("ok?")
        return {"said": ["waited"]}

    @graph.node(after="wait", capabilities=("mail",))
    async def send(state: Trail) -> dict[str, Any]:
        return {"said": ["sent"]}

    return graph


async def paused(rt: Runtime, graph: Graph[Trail], *, end: str) -> Run[Any]:
    """A run before its gated step: answered and at rest, or canceled."""
    run = await rt.invoke(graph)
    return await (rt.cancel(run.run_id) if end == "canceled" else rt.decide(run.run_id, "approve", resume=False))


def verdict(version: str, answer: policy.Verdict) -> policy.Policy:
    return policy.Policy(gate=lambda request: answer, version=version)


async def evaluations(rt: Runtime, run_id: str) -> list[tuple[str, str]]:
    return [(e.payload["subject"], e.payload["verdict"]) for e in await rt.events(run_id) if e.type == "policy.evaluated"]


@pytest.mark.parametrize("end", ["answered", "canceled"])
async def test_what_the_policy_says_at_resume_is_on_record(end: str) -> None:
    """§7.5: the policy in force against every gated step still to come; a denial refuses, and both are facts."""
    world, graph = World(), risky()
    async with world.runtime(graph, policy=verdict("1", policy.allow())) as rt:
        run_id = (await paused(rt, graph, end=end)).run_id
    async with world.runtime(graph, policy=verdict("2", policy.deny("not today"))) as rt:
        before = await rt.get(run_id)
        with pytest.raises(Denied, match="not today"):
            await rt.resume(run_id)
        after = await rt.get(run_id)
        assert await evaluations(rt, run_id) == [("send", "deny")]
        assert (after.status, after.decisions, after.waits) == (before.status, before.decisions, before.waits)
        await rt.worker(until_idle=True)
        assert (await rt.get(run_id)).status == before.status, "a refused resume queues none"
    async with world.runtime(graph, policy=verdict("3", policy.allow())) as rt:
        run = await rt.resume(run_id)
        assert run.status == "waiting_for_human", "the approval was given under another policy, or before the cancel"
        run = await rt.approve(run_id)
        assert run.state.said == ["waited", "sent"]
        assert await evaluations(rt, run_id) == [("send", "deny"), ("send", "allow"), ("send", "allow")]
        found = await kinds(rt, run_id)
        assert found.index("policy.evaluated") < len(found) and found.count("run.started") == 1


async def test_a_policy_that_wants_a_person_opens_a_wait() -> None:
    """§7.5: the resume goes on to the step, and there it is asked."""
    world, graph = World(), risky()
    async with world.runtime(graph) as rt:
        run_id = (await paused(rt, graph, end="answered")).run_id
    async with world.runtime(graph, policy=verdict("2", policy.require_human("send it?"))) as rt:
        run = await rt.resume(run_id)
        assert [(w.kind, w.prompt) for w in run.waits] == [("gate", "send it?")] and run.state.said == ["waited"]
        assert (await rt.approve(run_id)).state.said == ["waited", "sent"]


async def test_force_waives_that_alone_and_is_on_record() -> None:
    """§7.4: audited; no undecided wait is skipped; where it is not allowed it is refused."""
    world, graph = World(), risky()
    async with world.runtime(graph) as rt:
        asked = (await rt.invoke(graph)).run_id
        run_id = (await paused(rt, graph, end="canceled")).run_id
    denies = policy.Policy(gate=lambda request: "never", version="2")
    async with world.runtime(graph, policy=policy.Policy(gate=lambda request: "never", version="2", allow_force=False)) as rt:
        with pytest.raises(RestrictedOption):
            await rt.resume(run_id, force=True)
    async with world.runtime(graph, environment=PRODUCTION) as rt:
        with pytest.raises(RestrictedOption):
            await rt.resume(run_id, force=True)
    async with world.runtime(graph, policy=denies) as rt:
        with pytest.raises(UndecidedWait):
            await rt.resume(asked, force=True)
        run = await rt.resume(run_id, force=True, actor="ada")
        assert run.status == "waiting_for_human"
        found = await rt.events(run_id)
        resumed = next(e for e in found if e.type == "run.resumed")
        assert resumed.payload["forced"] and resumed.actor == "ada"
        assert any(e.type == "note.added" and "ada waived the policy" in e.payload["text"] for e in found)
        run = await rt.approve(run_id)
        assert run.status == "completed", "a gate waived once stays waived for this run"


# -- deadlines --------------------------------------------------------------------------------------


async def test_a_resume_past_a_deadline_is_no_way_around_what_is_open() -> None:
    """§5.10, §7.2: the timeout comes first, by the way of decisions; then the same refusals hold as ever."""
    world = World()

    @flow("late")
    async def late(ctx: Context) -> list[str]:
        both = await ctx.gather(ctx.approve("soon?", timeout=10, on_timeout="deliver"), ctx.approve("some day?", timeout=1e6))
        return [d.action for d in both]

    @flow("halts")
    async def halts(ctx: Context) -> str:
        return (await ctx.approve("soon?", timeout=10)).action

    async with world.runtime(late, halts) as rt:
        run = await rt.invoke(late)
        other = await rt.invoke(halts)
        world.clock.at += 11_000_000
        run = await rt.resume(run.run_id)
        assert (run.status, [w.prompt for w in run.waits]) == ("waiting_for_human", ["some day?"])
        assert (await kinds(rt, run.run_id)).count("wait.timed_out") == 1
        with pytest.raises(UndecidedWait):
            await rt.resume(run.run_id)
        assert (await rt.approve(run.run_id)).result == ["timeout", "approve"]
        ended = await rt.resume(other.run_id)
        assert (ended.status, ended.stop_reason, ended.settled) == ("canceled", "wait_timed_out", True)


async def test_a_failed_run_past_its_questions_deadline_still_wants_to_be_looked_at() -> None:
    """§7.3: nothing about a deadline acknowledges a failure."""
    world, graph = World(), Graph("both", Trail)

    @graph.node(start=True)
    async def asks(state: Trail, ctx: Context) -> None:
        await ctx.approve("ok?", timeout=timedelta(seconds=10))

    @graph.node(start=True)
    async def fails(state: Trail) -> None:
        raise ValueError("boom")

    async with world.runtime(graph) as rt:
        run = await rt.invoke(graph)
        world.clock.at += 11_000_000
        with pytest.raises(UndecidedWait):
            await rt.resume(run.run_id, acknowledge="step_failed")
        await rt.decide(run.run_id, "approve")
        with pytest.raises(AcknowledgeRequired):
            await rt.resume(run.run_id)


# -- code that changed while it was paused ----------------------------------------------------------


async def test_waits_swapped_while_paused_show_the_difference() -> None:
    """L-10: a typed error that names both, and the answer stays for whoever puts the order right."""
    world = World()

    def version(first: str, second: str) -> Any:
        @flow("swapped")
        async def swapped(ctx: Context) -> list[Any]:
            return [await ctx.ask(first, str), await ctx.ask(second, str)]

        return swapped

    async with world.runtime(version("name?", "town?")) as rt:
        run = await rt.invoke("swapped")
        await rt.decide(run.run_id, "answer", payload="Ada", resume=False)
    async with world.runtime(version("town?", "name?")) as rt:
        run = await rt.resume(run.run_id)
        assert (run.status, run.stop_reason) == ("failed", "record_mismatch")
        assert "'name?'" in run.error.message and "'town?'" in run.error.message
    async with world.runtime(version("name?", "town?")) as rt:
        run = await rt.resume(run.run_id, acknowledge="record_mismatch")
        assert [w.prompt for w in run.waits] == ["town?"]
        assert (await rt.resume(run.run_id, payload="Oslo")).result == ["Ada", "Oslo"]


async def test_an_open_wait_that_the_code_asks_otherwise_shows_the_difference() -> None:
    """L-10: also before anybody has answered."""
    world = World()

    def version(*prompts: str) -> Any:
        @flow("pair")
        async def pair(ctx: Context) -> list[Any]:
            return [d.action for d in await ctx.gather(*(ctx.approve(p) for p in prompts))]

        return pair

    async with world.runtime(version("a?", "b?")) as rt:
        run = await rt.invoke("pair")
        await rt.decide(run.run_id, "approve", wait_id=run.waits[0].wait_id, resume=False)
    async with world.runtime(version("b?", "a?")) as rt:
        run = await rt.resume(run.run_id)
        assert run.stop_reason == "record_mismatch" and "'a?'" in run.error.message and "'b?'" in run.error.message


async def test_the_paused_node_is_renamed() -> None:
    """L-11: a typed error that names what is missing; the person's answer is kept and used by code that has the node."""
    world = World()

    def version(name: str) -> Graph[Trail]:
        graph = Graph("renamed", Trail)

        @graph.node(name, start=True)
        async def asks(state: Trail, ctx: Context) -> dict[str, Any]:
            return {"said": [(await ctx.approve("ok?")).note or ""]}

        return graph

    async with world.runtime(version("old")) as rt:
        run = await rt.invoke("renamed")
        await rt.decide(run.run_id, "approve", note="fine", resume=False)
    async with world.runtime(version("new")) as rt:
        with pytest.raises(NodeMissing, match="'old'"):
            await rt.resume(run.run_id, upgrade=True)
        assert (await rt.get(run.run_id)).decisions[0].note == "fine"
    async with world.runtime(version("old")) as rt:
        assert (await rt.resume(run.run_id)).state.said == ["fine"]

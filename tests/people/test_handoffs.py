"""What becomes of a handoff when its run fails, is torn, ends, or nobody attends (§5.14, §5.17)."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, State, append, flow
from holdfast.core import events as ev
from holdfast.core.errors import AcknowledgeRequired, SettledTerminal, UndecidedWait
from holdfast.handle import Run
from holdfast.named import RunStore
from tests.engine.support import World, says


class Trail(State):
    said: Annotated[list[str], append]


def judged(*, fails: list[bool] | None = None, works: bool = False) -> Graph[Trail]:
    """A judge that hands off, beside a node that fails for as long as ``fails`` says so."""
    graph = Graph("judged", Trail)

    @graph.node(start=True)
    async def judge(state: Trail, ctx: Context) -> dict[str, Any]:
        decision = await ctx.handoff("too long", verdict="rejected", show={"text": "x"}, actions=("continue", "halt"))
        return {"said": [decision.action]}

    if fails is not None:

        @graph.node(start=True)
        async def fail(state: Trail) -> None:
            for _ in range(50):  # until the question is on record
                await asyncio.sleep(0)
            if fails[0]:
                raise ValueError("boom")

    if works:

        @graph.node(start=True)
        async def work(state: Trail) -> None:
            return None

    return graph


async def sound(rt: Runtime, run: Run[Any]) -> None:
    codes = [(p.code, p.severity) for p in await rt.check(run.run_id)]
    assert [c for c in codes if c[1] != "info"] == []


async def test_a_failed_run_keeps_its_handoff() -> None:
    """T-21, §5.4, §7.2: it stays open, may be decided, and the decision is used by the resume that names the failure."""
    fails, world = [True], World()
    graph = judged(fails=fails)
    async with world.runtime(graph) as rt:
        run = await rt.invoke(graph)
        [wait] = run.waits
        assert (run.status, run.active_handoff, wait.show, wait.decidable) == ("failed", wait.wait_id, {"text": "x"}, True)
        with pytest.raises(UndecidedWait):
            await rt.resume(run.run_id, acknowledge="step_failed", force=True)
        run = await rt.decide(run.run_id, "continue")
        assert run.status == "failed", "it is only recorded"
        with pytest.raises(AcknowledgeRequired):
            await rt.resume(run.run_id)
        fails[0] = False
        run = await rt.resume(run.run_id, acknowledge="step_failed")
        assert (run.status, run.state.said) == ("completed", ["continue"])
        await sound(rt, run)


async def test_an_interrupted_run_keeps_its_handoff_and_so_does_its_failure() -> None:
    """T-21, T-22: its owner died; the question stays; failed afterwards, it stays still."""
    world, graph = World(), judged(works=True)
    run_id = await world.crash(graph, when=says(ev.StepCompleted, task="work"))
    async with world.runtime(graph) as rt:
        run = await rt.get(run_id)
        [wait] = run.waits
        assert run.condition == "interrupted" and run.active_handoff == wait.wait_id and wait.decidable
        run = await RunStore(rt).update_status(run_id, "failed", actor="ada", reason="given up")
        assert (run.status, run.active_handoff, run.record.waits[0].wait_id) == ("failed", wait.wait_id, wait.wait_id)
        assert run.waits[0].show == {"text": "x"}, "its payload is intact"


@pytest.mark.parametrize("end", ["halted", "cancelled", "done"])
async def test_what_ends_clears_it_and_remembers_it(end: str) -> None:
    """T-21, T-15, T-08: closed and gone from what is active; its history stays, and the checker finds nothing to say."""
    world, graph = World(), judged()
    async with world.runtime(graph) as rt:
        run = await rt.invoke(graph)
        wait_id = run.waits[0].wait_id
        if end == "cancelled":
            run = await rt.cancel(run.run_id)
        else:
            run = await rt.decide(run.run_id, "halt" if end == "halted" else "continue")
            run = run if run.status == "canceled" else await rt.resume(run.run_id)
        assert (run.condition, run.waits, run.active_handoff, run.seen_handoffs) == (end, (), None, (wait_id,))
        await sound(rt, run)
        if end == "halted":
            with pytest.raises(SettledTerminal):
                await rt.resume(run.run_id)


async def test_a_halt_after_two_handoffs_misses_nothing() -> None:
    """T-15: both are in the history, and the checker does not take the first for a handoff without an event."""
    world = World()

    @flow("twice")
    async def twice(ctx: Context) -> None:
        await ctx.handoff("one", verdict="rejected")
        await ctx.handoff("two", verdict="rejected")

    async with world.runtime(twice) as rt:
        run = await rt.invoke(twice)
        await rt.decide(run.run_id, "continue")
        run = await rt.resume(run.run_id)
        run = await rt.decide(run.run_id, "halt")
        assert len(run.seen_handoffs) == 2 and run.condition == "halted" and run.active_handoff is None
        await sound(rt, run)


# -- nobody attends (T-38) --------------------------------------------------------------------------


async def test_the_first_resume_only_asks_again() -> None:
    """T-38: zero nodes run; the same question with the same actions; a second resume is refused like any past an open question."""
    world, graph = World(), judged(works=True)
    async with world.runtime(graph) as rt:
        run = await rt.invoke(graph, unattended=True)
        assert (run.status, run.stop_reason, run.settled, run.condition) == ("canceled", "unattended_handoff", False, "halted")
        asked = next(e.payload["wait"] for e in await rt.events(run.run_id) if e.type == "wait.requested")
        started = len([e for e in await rt.events(run.run_id) if e.type.startswith("step.")])
        run = await rt.resume(run.run_id)
        again = (await rt.record(run.run_id))["waits"][0]
        same = {k: again[k] for k in again if k not in ("wait_id", "round", "requested_at", "deadline", "decidable")}
        assert same == {k: asked[k] for k in same} and again["wait_id"] == f"{asked['wait_id']}/!1"
        assert len([e for e in await rt.events(run.run_id) if e.type.startswith("step.")]) == started, "nothing ran"
        assert (run.status, run.condition) == ("waiting_for_human", "awaiting_phase_handoff")
        with pytest.raises(UndecidedWait):
            await rt.resume(run.run_id)
        await rt.decide(run.run_id, "continue", actor="ada")
        run = await rt.resume(run.run_id)
        assert run.state.said == ["continue"]
        await sound(rt, run)


async def test_a_worker_does_not_resume_what_stopped_for_want_of_people() -> None:
    """§5.17: it stays stopped until somebody asks for it."""
    world, graph = World(), judged()
    async with world.runtime(graph) as rt:
        run = await rt.submit(graph, {}, unattended=True)
        await rt.worker(until_idle=True)
        before = await rt.events(run.run_id)
        await rt.worker(until_idle=True)
        assert await rt.events(run.run_id) == before and (await rt.get(run.run_id)).stop_reason == "unattended_handoff"


async def test_advisory_ones_go_on_and_say_who_decided() -> None:
    """§5.17: by a recorded decision of the system's own, which a person can tell from a person's."""

    @flow("night")
    async def night(ctx: Context) -> list[str]:
        both = await ctx.gather(*(ctx.handoff(w, verdict="rejected", authoritative=False) for w in ("one", "two")))
        return [d.actor for d in both]

    async with World().runtime(night) as rt:
        run = await rt.invoke(night, unattended=True)
        assert run.result == ["unattended", "unattended"]
        decided = [e.payload["decision"] for e in await rt.events(run.run_id) if e.type == "wait.decided"]
        assert [(d["action"], d["note"]) for d in decided] == [("continue", "advisory")] * 2
        await sound(rt, run)


async def test_several_questions_at_once_are_asked_one_after_another() -> None:
    """§5.17: the one that stopped the run comes first; whoever answers it is told of the next."""
    graph = Graph("both", Trail)
    for name in ("one", "two"):

        @graph.node(name, start=True)
        async def asks(state: Trail, ctx: Context) -> dict[str, Any]:
            return {"said": [(await ctx.handoff("look", verdict="rejected")).action]}

    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph, unattended=True)
        for _ in range(2):
            assert run.stop_reason == "unattended_handoff"
            run = await rt.resume(run.run_id)
            assert len(run.waits) == 1
            await rt.decide(run.run_id, "continue")
            run = await rt.resume(run.run_id)
        assert (run.status, run.state.said) == ("completed", ["continue", "continue"])


@pytest.mark.parametrize("target", ["node", "draft"])
@pytest.mark.parametrize("beside", ["another_question", "a_failure"])
async def test_feedback_sends_one_of_several_steps_back(beside: str, target: str) -> None:
    """§5.5: the steps go on at once, each with its answer; one of them is done again with what the person said, or sends another node back."""
    fails, world = [True], World()
    graph = Graph("beside", Trail)

    @graph.node(start=True)
    async def draft(state: Trail, ctx: Context) -> dict[str, Any]:
        return {"said": [f"draft {ctx.feedback or ''}".strip()]}

    @graph.node(after="draft")
    async def judge(state: Trail, ctx: Context) -> dict[str, Any]:
        if ctx.feedback is not None or len(state.said) > 1:
            return {"said": [f"judged {ctx.feedback or ''}".strip()]}
        return {"said": [(await ctx.handoff("too long", verdict="rejected", redo=target)).action]}

    @graph.node(after="draft")
    async def other(state: Trail, ctx: Context) -> None:
        if beside == "another_question" and len(state.said) == 1:
            await ctx.approve("Go?")
        while beside == "a_failure" and fails[0]:
            if ctx.run.waits:
                raise ValueError("boom")
            await asyncio.sleep(0)

    async with world.runtime(graph) as rt:
        run = await rt.invoke(graph)
        for wait in run.waits:
            sent_back = {"action": "retry_feedback", "feedback": "shorter"} if wait.kind == "handoff" else {"action": "approve"}
            await rt.decide(run.run_id, wait_id=wait.wait_id, actor="ada", **sent_back)
        fails[0] = False
        run = await rt.resume(run.run_id, acknowledge=run.stop_reason)
        assert run.status == "completed", run
        again = ["draft shorter", "judged"] if target == "draft" else ["judged shorter"]
        assert run.state.said == ["draft", *again]
        await sound(rt, run)


async def test_feedback_closes_the_questions_of_the_round_that_is_done_again() -> None:
    """§5.5: nobody is asked any more for a round that is over, and a signal goes to the round that waits for it now."""

    @flow("review")
    async def review(ctx: Context) -> list[Any]:
        async def judged() -> str:
            return (await ctx.handoff(f"draft {ctx.feedback or 1}", verdict="poor")).action

        done, _, came = await ctx.gather(judged(), ctx.approve("Go?"), ctx.wait("blue"))
        return [done, came]

    world = World()
    async with world.runtime(review) as rt:
        run = await rt.invoke(review, {})
        for word in ("shorter", "longer"):
            [wait] = [w for w in run.waits if w.kind == "handoff"]
            await rt.decide(run.run_id, "retry_feedback", wait_id=wait.wait_id, feedback=word, actor="ada")
            run = await rt.resume(run.run_id)
            assert sorted(w.kind for w in run.waits) == ["approval", "handoff", "signal"]
            assert [w.prompt for w in run.waits if w.kind == "handoff"] == [f"draft {word}"]
        await rt.signal(run.run_id, "blue", "came", actor="bob")
        for wait in run.waits:
            if wait.available_actions:
                await rt.decide(run.run_id, "approve" if wait.kind == "approval" else "continue", wait_id=wait.wait_id, actor="ada")
        run = await rt.resume(run.run_id)
        assert (run.status, run.result) == ("completed", ["continue", "came"])
        await sound(rt, run)

"""What belongs to the state of a run that a person's review ends or sends back: all that was finished and sent before (§4.6, §5.11, §5.16)."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, State, append
from tests.engine.support import World


class Plan(State):
    note: str = ""
    counted: int = 0
    done: Annotated[list[str], append]


def beside(redo: str | None = None, *, asks: bool = False) -> Graph[Plan]:
    """A plan whose first delivery is rejected, beside a step that finishes, leaves a message and a row, and has a successor; and with ``asks`` beside one that
    asks a person."""
    graph = Graph("beside", Plan, kind="planning", redo=redo)

    @graph.node(start=True)
    async def plan(state: Plan, ctx: Context) -> dict[str, Any]:
        return {"done": [f"plan {ctx.feedback}"]}

    @graph.node(start=True)
    async def early(state: Plan) -> dict[str, Any]:
        return {"done": ["early"]}

    @graph.node(after="plan", delivers=True)
    async def publish(state: Plan, ctx: Context) -> None:
        ctx.report("delivered" if "plan shorter" in state.done else "rejected")

    @graph.node(after="early")
    async def audit(state: Plan, ctx: Context) -> dict[str, Any]:
        ctx.send("mail", {"to": "ada"})
        ctx.record("audits", "1", {"n": 1})
        return {"done": ["audit"], "counted": 1}

    @graph.node(after="audit")
    async def archive(state: Plan) -> dict[str, Any]:
        return {"done": ["archive"]}

    if asks:

        @graph.node(after="early")
        async def ask(state: Plan, ctx: Context) -> dict[str, Any]:
            return {"note": (await ctx.approve("Tell them?")).actor}

    return graph


def reviewed(kind: str | None = "planning") -> Graph[Plan]:
    """A plan that is reviewed; no node listens to its channels."""
    graph = Graph("reviewed", Plan, kind=kind)

    @graph.node(start=True)
    async def plan(state: Plan, ctx: Context) -> dict[str, Any]:
        return {"done": [f"plan {ctx.feedback} {state.note}"]}

    return graph


async def sound(rt: Runtime, run_id: str) -> None:
    assert [p for p in await rt.check(run_id) if p.severity == "error"] == []


@pytest.mark.parametrize("action", ["approve", "continue"])
async def test_an_approval_after_a_rejected_delivery_keeps_what_the_steps_beside_it_did(action: str) -> None:
    """§4.6, decision 21: their writes are in the state, their messages and rows leave. The run is completed, so nothing further begins."""
    graph, sent = beside(), list[Any]()
    async with World().runtime(graph, transports={"mail": lambda payload, key: sent.append(payload)}) as rt:
        run = await rt.invoke(graph)
        assert (run.condition, run.record.waits[0].verdict) == ("awaiting_human_review", "rejected")
        await rt.decide(run.run_id, action, actor="ada")
        run = await rt.resume(run.run_id)
        assert (run.status, run.result) == ("completed", run.state)
        assert (run.state.done, run.state.counted) == (["plan None", "early", "audit"], 1)
        assert (sent, len(await rt.ledger(run.run_id))) == ([{"to": "ada"}], 1)
        await sound(rt, run.run_id)


async def test_feedback_on_a_rejected_delivery_keeps_what_is_not_done_again() -> None:
    """§4.6, §5.5: what a step did that the round does not include counts, and its successors follow."""
    graph, sent = beside("plan"), list[Any]()
    async with World().runtime(graph, transports={"mail": lambda payload, key: sent.append(payload)}) as rt:
        run = await rt.invoke(graph)
        await rt.decide(run.run_id, "retry_feedback", feedback="shorter")
        run = await rt.resume(run.run_id)
        assert (run.condition, run.record.waits[0].verdict) == ("awaiting_human_review", "")
        assert sorted(run.state.done) == ["archive", "audit", "early", "plan None", "plan shorter"]
        assert (sent, len(await rt.ledger(run.run_id))) == ([{"to": "ada"}], 1)
        assert (await rt.approve(run.run_id)).status == "completed"
        await sound(rt, run.run_id)


@pytest.mark.parametrize("answered", [False, True], ids=["open", "answered"])
async def test_feedback_on_a_rejected_delivery_leaves_open_what_is_not_done_again(answered: bool) -> None:
    """§5.2, §5.5: the question of a step that the round does not include stays the same, and its answer counts once."""
    graph = beside("plan", asks=True)
    async with World().runtime(graph, transports={"mail": lambda payload, key: None}) as rt:
        run = await rt.invoke(graph)
        asked = {w.kind: w.wait_id for w in run.waits}
        if answered:
            run = await rt.approve(run.run_id, wait_id=asked["approval"], actor="bob")
        await rt.decide(run.run_id, "retry_feedback", wait_id=asked["review"], feedback="shorter")
        run = await rt.resume(run.run_id)
        if not answered:
            assert [w.wait_id for w in run.waits] == [asked["approval"]]
            run = await rt.approve(run.run_id, wait_id=asked["approval"], actor="bob")
        assert (run.condition, run.state.note, sorted(run.state.done)) == (
            "awaiting_human_review", "bob", ["archive", "audit", "early", "plan None", "plan shorter"],
        )
        assert (await rt.approve(run.run_id)).status == "completed"
        await sound(rt, run.run_id)


@pytest.mark.parametrize("graph", [beside(), reviewed()], ids=["rejected", "plain"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_approval_keeps_a_signal_for_a_channel_without_a_listener(graph: Graph[Plan], when: str) -> None:
    """§5.11: a signal is a write to the channel of its name, whether it came before the answer or before the run went on."""
    async with World().runtime(graph, transports={"mail": lambda payload, key: None}) as rt:
        run = await rt.invoke(graph)
        if when == "after":
            await rt.decide(run.run_id, "approve", actor="ada", resume=False)
        await rt.signal(run.run_id, "note", "hurry")
        if when == "before":
            await rt.decide(run.run_id, "approve", actor="ada", resume=False)
        run = await rt.resume(run.run_id)
        assert (run.status, run.state.note) == ("completed", "hurry")
        await sound(rt, run.run_id)


async def test_feedback_keeps_a_signal_for_a_channel_without_a_listener() -> None:
    """§5.11: the round that the reviewer asked for sees it, and so does a replay of the run, which asks the reviewer again."""
    graph = reviewed()
    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph)
        await rt.signal(run.run_id, "note", "hurry")
        await rt.decide(run.run_id, "retry_feedback", feedback="shorter", actor="ada")
        run = await rt.resume(run.run_id)
        assert (run.state.note, run.state.done) == ("hurry", ["plan None ", "plan shorter hurry"])
        run = await rt.approve(run.run_id)
        assert run.status == "completed"
        await sound(rt, run.run_id)

        again = await rt.replay(run.run_id)
        assert again.waits[0].step == 2 and again.state.note == ""
        await rt.decide(again.run_id, "retry_feedback", feedback="shorter", actor="bob")
        again = await rt.approve((await rt.resume(again.run_id)).run_id)
        assert (again.status, again.result, again.record.version) == ("completed", run.result, again.record.version)
        await sound(rt, again.run_id)


async def test_a_replay_of_a_run_that_was_approved_after_a_rejection_ends_alike() -> None:
    """§7.6: it asks the reviewer before it ends, as its source did."""
    graph = beside()
    async with World().runtime(graph, transports={"mail": lambda payload, key: None}) as rt:
        run = await rt.invoke(graph)
        await rt.signal(run.run_id, "note", "hurry")
        run = await rt.approve(run.run_id)
        again = await rt.replay(run.run_id)
        assert again.condition == "awaiting_human_review"
        again = await rt.approve(again.run_id)
        assert (again.status, again.result) == ("completed", run.result) and run.result.note == "hurry"
        await sound(rt, again.run_id)


async def test_a_reducer_that_refuses_what_was_kept_fails_the_run() -> None:
    """§4.8: the approval is kept, and the resumed run ends with it."""
    broken = [True]

    def add(old: int, new: int) -> int:
        if broken[0]:
            raise ValueError("no sum")
        return old + new

    class Sum(State):
        total: Annotated[int, add] = 0

    graph = Graph("sums", Sum, kind="planning")

    @graph.node(start=True)
    async def plan(state: Sum) -> None: ...

    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph)
        await rt.signal(run.run_id, "total", 3)
        run = await rt.approve(run.run_id)
        assert (run.status, run.stop_reason) == ("failed", "reducer_failed")
        broken[0] = False
        run = await rt.resume(run.run_id, acknowledge="reducer_failed")
        assert (run.status, run.state.total) == ("completed", 3)
        await sound(rt, run.run_id)


@pytest.mark.parametrize("action", ["approve", "retry_feedback"])
def test_a_crash_at_every_write_after_a_rejected_delivery(holdfast_crashes: Any, action: str) -> None:
    """§4.6: what the step beside the delivery did is in the state once, wherever the process dies."""
    graph = Graph("crashes", Plan, kind="planning", redo="plan")

    @graph.node(start=True)
    async def plan(state: Plan, ctx: Context) -> dict[str, Any]:
        return {"done": [f"plan {ctx.feedback}"]}

    @graph.node(after="plan", delivers=True)
    async def publish(state: Plan, ctx: Context) -> None:
        ctx.report("delivered" if "plan shorter" in state.done else "rejected")

    @graph.node(start=True)
    async def early(state: Plan) -> None: ...

    @graph.node(after="early")
    async def audit(state: Plan) -> dict[str, Any]:
        return {"done": ["audit"]}

    async def script(host: Any, run: Any) -> None:
        first = run.record.waits[0].verdict == "rejected"
        await host.rt.decide(run.run_id, action if first else "approve", feedback="shorter" if first else None)

    run, ends = holdfast_crashes(graph, {}, script=script)
    assert run.state.done == ["plan None", "audit", *(["plan shorter"] if action == "retry_feedback" else [])] and len(ends) > 6
    assert all(e.run.status == "completed" and e.run.state == run.state for e in ends)

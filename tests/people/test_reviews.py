"""Work that ends in a person's review, and products that are delivered (§5.16, §5.17)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, cast

import pytest

from holdfast import Context, Graph, Runtime, State, append, flow
from holdfast.core import events as ev
from holdfast.core.commit import Commit, Tip
from holdfast.core.errors import ActionUnavailable, InvalidInput, SettledTerminal, UndecidedWait, WaitNotFound
from holdfast.core.policy import Policy
from tests.engine.support import World, says


class Plan(State):
    facts: Annotated[list[str], append]
    plan: str = ""
    published: Annotated[list[str], append]


def planning(delivery: list[str] | None = None, *, kind: str | None = "planning", after: bool = False) -> Graph[Plan]:
    """Gathers, plans, and with ``delivery`` publishes: it reports the words one after another, delivered when there are none left."""
    graph = Graph("plans", Plan, kind=kind)

    @graph.node(start=True)
    async def gather(state: Plan) -> dict[str, Any]:
        return {"facts": ["a"]}

    @graph.node(after="gather")
    async def plan(state: Plan, ctx: Context) -> dict[str, Any]:
        return {"plan": f"plan for {ctx.feedback}"}

    if delivery is not None:

        @graph.node(after="plan", delivers=True, retry=3)
        async def publish(state: Plan, ctx: Context) -> dict[str, Any]:
            ctx.report(delivery.pop(0) if delivery else "delivered")
            return {"published": [state.plan]}

        if after:

            @graph.node(after="publish")
            async def notify(state: Plan) -> dict[str, Any]:
                return {"published": ["told"]}

    return graph


async def kinds(rt: Runtime, run_id: str) -> list[str]:
    return [e.type for e in await rt.events(run_id)]


async def sound(rt: Runtime, run_id: str) -> None:
    assert [p for p in await rt.check(run_id) if p.severity == "error"] == []


@pytest.mark.parametrize("action", ["approve", "continue"])
async def test_a_plan_is_reviewed_before_it_counts_as_done(action: str) -> None:
    """§5.16: kinds that are reviewed rest in a review when nothing is runnable; approve and continue complete."""
    graph = planning()
    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph)
        assert (run.status, run.condition, run.state.plan) == ("waiting_for_human", "awaiting_human_review", "plan for None")
        [review] = run.waits
        assert review.kind == "review" and review.available_actions == ("approve", "continue", "retry_feedback", "halt")
        with pytest.raises(UndecidedWait):
            await rt.resume(run.run_id, force=True)
        with pytest.raises(ActionUnavailable):
            await rt.decide(run.run_id, "deny")
        await rt.decide(run.run_id, action, actor="ada")
        run = await rt.resume(run.run_id)
        assert (run.status, run.condition, run.waits, run.result.plan) == ("completed", "done", (), "plan for None")
        boundaries = [b for c in await rt.checkpoints(run.run_id) for b in c.boundaries]
        assert boundaries[-2:] == ["waiting_for_human", "run_completed"]
        await sound(rt, run.run_id)


async def test_feedback_makes_one_more_round() -> None:
    """T-28, §5.16: the node that made the work sees the words; its new version is reviewed under a new id."""
    graph = planning([])
    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph)
        first = run.waits[0].wait_id
        with pytest.raises(InvalidInput, match="feedback"):
            await rt.decide(run.run_id, "retry_feedback")
        await rt.decide(run.run_id, "retry_feedback", feedback="shorter")
        run = await rt.resume(run.run_id)
        assert run.state.facts == ["a"] and run.state.published == ["plan for None", "plan for shorter"]
        assert run.condition == "awaiting_human_review" and run.waits[0].wait_id != first
        run = await rt.approve(run.run_id)
        assert run.status == "completed" and run.state.published == ["plan for None", "plan for shorter"]
        await sound(rt, run.run_id)


async def test_a_halt_ends_it_for_good() -> None:
    """§5.16: halted; §7.2: and nothing revives it."""
    graph = planning()
    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph)
        run = await rt.decide(run.run_id, "halt")
        assert (run.status, run.condition, run.stop_reason, run.settled) == ("canceled", "halted", "halted", True)
        with pytest.raises(SettledTerminal):
            await rt.resume(run.run_id)


@pytest.mark.parametrize(("policy", "kind", "reviewed"), [
    (None, "research", True),
    (None, "writing", False),
    (None, None, False),
    (Policy(), "planning", True),
    (lambda request: True, "planning", True),
    (Policy(reviews=()), "planning", False),
    (Policy(reviews=("writing",)), "writing", True),
])
async def test_the_policy_lists_what_is_reviewed(policy: Any, kind: str | None, reviewed: bool) -> None:
    """§5.16: planning and research, unless it lists others; also where no policy is given."""
    graph = planning(kind=kind)
    async with World().runtime(graph, policy=policy) as rt:
        run = await rt.invoke(graph)
        assert run.condition == ("awaiting_human_review" if reviewed else "done")


@pytest.mark.parametrize(("words", "kind", "condition", "published"), [
    (["delivered"], "planning", "awaiting_human_review", ["plan for None"]),
    (["no_change"], "planning", "done", ["plan for None"]),
    (["rejected"], "planning", "awaiting_human_review", []),
    (["delivered"], None, "done", ["plan for None"]),
    (["no_change"], None, "done", ["plan for None"]),
    (["rejected"], None, "halted", []),
])
async def test_the_reducer_is_asked_again_after_a_delivery(words: list[str], kind: str | None, condition: str, published: list[str]) -> None:
    """§5.16: no_change needs no review; a rejection is for a person where one reviews, else it halts; it is not retried."""
    graph = planning(list(words), kind=kind)
    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph)
        assert (run.condition, run.state.published) == (condition, published)
        if condition == "halted":
            assert run.stop_reason == "delivery_rejected" and run.settled
        if words == ["rejected"]:
            assert (await kinds(rt, run.run_id)).count("step.failed") == 1
        await sound(rt, run.run_id)


async def test_after_no_change_nothing_follows() -> None:
    """§5.16, §4.17: nothing was delivered, so what comes after the delivery is skipped and the run is done in the same commit."""
    graph = planning(["no_change"], after=True)
    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph)
        assert run.condition == "done" and "told" not in run.state.published
        head = (await rt.checkpoints(run.run_id))[-1]
        assert head.pending_tasks == () and head.boundaries == ("step_completed", "run_completed")
    graph = planning(["delivered"], after=True)
    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph)
        assert run.condition == "awaiting_human_review" and run.state.published[-1] == "told"


@pytest.mark.parametrize(("action", "published"), [("continue", []), ("retry_feedback", ["plan for shorter"])])
async def test_a_person_overrides_a_rejection_or_sends_it_back(action: str, published: list[str]) -> None:
    """§5.5: continue leaves the verdict and ends it; feedback makes the product anew, and it is delivered once more."""
    graph = planning(["rejected"])
    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph)
        assert run.record.waits[0].verdict == "rejected"
        await rt.decide(run.run_id, action, feedback="shorter")
        run = await rt.resume(run.run_id)
        assert run.state.published == published
        assert run.condition == ("done" if action == "continue" else "awaiting_human_review")
        await sound(rt, run.run_id)


async def test_nobody_is_there_to_review() -> None:
    """T-38, §5.17: the run stops with a named reason; the first resume runs nothing and asks, with the same actions."""
    entered: list[int] = []
    graph = planning()
    graph.node("last", after="plan")(lambda state: entered.append(1))
    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph, unattended=True)
        assert (run.status, run.stop_reason, run.settled, entered) == ("canceled", "unattended_handoff", False, [1])
        head = (await rt.checkpoints(run.run_id))[-1]
        assert head.boundaries == ("run_canceled",) and head.metadata["source"] == "cancel"
        run = await rt.resume(run.run_id)
        assert run.condition == "awaiting_human_review" and entered == [1]
        assert run.waits[0].available_actions == ("approve", "continue", "retry_feedback", "halt")
        assert (await rt.approve(run.run_id)).status == "completed" and entered == [1]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", [ev.WaitRequested, ev.RunResumed, ev.RunCompleted])
async def test_a_crash_around_the_review_loses_nothing(kind: type[ev.Fact], after: bool) -> None:
    """§5.16: the outcome is decided anew from what is on record; the work is not done again."""
    world, ran = World(), []
    graph = planning()
    graph.node("last", after="plan")(lambda state: ran.append(1))
    if kind is ev.WaitRequested:
        run_id = await world.crash(graph, when=says(kind), after=after)
        if not after:
            await world.recovered(graph)
    else:
        async with world.runtime(graph) as rt:
            run_id = (await rt.invoke(graph)).run_id
            await rt.decide(run_id, "approve", resume=False)
        await world.crash(graph, when=says(kind), after=after, resume=run_id)
    async with world.runtime(graph) as rt:
        run = await rt.get(run_id)
        if run.waits:
            assert run.condition == "awaiting_human_review"
            run = await rt.approve(run_id)
        elif run.status != "completed":
            run = await rt.resume(run_id)
        assert run.status == "completed" and ran == [1]
        assert (await kinds(rt, run_id)).count("wait.requested") == 1


async def test_a_cancel_closes_the_review_and_a_resume_asks_anew() -> None:
    """§5.14: under another id."""
    graph = planning()
    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph)
        first = run.waits[0].wait_id
        assert (await rt.cancel(run.run_id)).waits == ()
        run = await rt.resume(run.run_id)
        assert run.condition == "awaiting_human_review" and run.waits[0].wait_id == f"{first}/!1"
        assert (await rt.approve(run.run_id)).status == "completed"


async def test_a_review_under_another_policy_is_asked_again() -> None:
    """§5.8: the new question says why."""
    world, graph = World(), planning()
    async with world.runtime(graph, policy=Policy(version="1")) as rt:
        run = await rt.invoke(graph)
        await rt.decide(run.run_id, "approve", actor="ada", resume=False)
    async with world.runtime(graph, policy=Policy(version="2")) as rt:
        run = await rt.resume(run.run_id)
        assert run.condition == "awaiting_human_review"
        assert run.record.waits[0].verdict.startswith("the policy changed after ada had approved")
        assert (await rt.approve(run.run_id)).status == "completed"


async def test_a_fork_is_reviewed_again() -> None:
    """T-49, §5.8: a consent is never inherited."""
    graph = planning()
    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph)
        run = await rt.approve(run.run_id)
        for other in (await rt.fork(run.run_id), await rt.replay(run.run_id)):
            assert other.condition == "awaiting_human_review", other.origin
            assert (await rt.approve(other.run_id)).status == "completed"


async def test_a_parent_waits_for_its_childs_review() -> None:
    """§4.14: the child rests with a person, the parent with the child; the reviewed state is what it gets."""
    graph = planning()

    @flow("orders")
    async def orders(ctx: Context) -> str:
        return str((await ctx.child(graph)).plan)

    async with World().runtime(graph, orders) as rt:
        run = await rt.invoke(orders)
        child = await rt.get(run.waits[0].name)
        assert (run.condition, child.condition) == ("awaiting_signal", "awaiting_human_review")
        await rt.decide(child.run_id, "retry_feedback", feedback="shorter")
        child = await rt.resume(child.run_id)
        await rt.approve(child.run_id)
        assert (await rt.resume(run.run_id)).result == "plan for shorter"


def test_a_crash_at_every_write_of_a_review(holdfast_crashes: Any) -> None:
    """§5.16, T-28: sent back once, then approved, with the process killed before and after each write on the way."""
    graph = planning([])

    async def script(host: Any, run: Any) -> None:
        if run.state.plan == "plan for None":
            await host.rt.decide(run.run_id, "retry_feedback", feedback="shorter")
        else:
            await host.rt.approve(run.run_id, drive=False)

    run, ends = holdfast_crashes(graph, {}, script=script)
    assert run.state.published == ["plan for None", "plan for shorter"] and len(ends) > 10
    assert all(e.run.status == "completed" and e.run.state == run.state for e in ends)


def test_a_crash_at_every_write_of_a_rejected_delivery(holdfast_crashes: Any) -> None:
    """§5.16: the reducer is asked anew, and says the same."""
    graph = Graph("refused", Plan)

    @graph.node(start=True, delivers=True)
    async def publish(state: Plan, ctx: Context) -> None:
        ctx.report("rejected")

    run, ends = holdfast_crashes(graph, {})
    assert (run.stop_reason, run.settled) == ("delivery_rejected", True) and len(ends) > 4
    assert all((e.run.status, e.run.stop_reason) == ("canceled", "delivery_rejected") for e in ends)


def delivering(did: list[str]) -> Graph[Plan]:
    """A plan whose delivery is rejected the first time, beside a step that asks a person."""
    graph = Graph("delivers", Plan, kind="planning")

    @graph.node(start=True)
    async def plan(state: Plan, ctx: Context) -> dict[str, Any]:
        return {"facts": [ctx.feedback or "a"]}

    @graph.node(after="plan", delivers=True)
    async def publish(state: Plan, ctx: Context) -> dict[str, Any]:
        did.append("published")
        ctx.report("rejected" if len(did) == 1 else "delivered")
        return {"published": state.facts}

    @graph.node(after="plan")
    async def tell(state: Plan, ctx: Context) -> dict[str, Any]:
        return {"published": [(await ctx.approve("Tell them?")).action]}

    return graph


async def test_a_rejected_delivery_is_not_repeated_when_a_step_beside_it_is_answered() -> None:
    """§5.16: it is for the reviewer, who is asked once, whoever answers what else."""
    did: list[str] = []
    graph = delivering(did)
    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph)
        review, other = sorted(run.waits, key=lambda w: w.kind, reverse=True)
        run = await rt.approve(run.run_id, wait_id=other.wait_id)
        assert (run.condition, [w.wait_id for w in run.waits], did) == ("awaiting_human_review", [review.wait_id], ["published"])
        run = await rt.approve(run.run_id)
        assert (run.status, did) == ("completed", ["published"])
        await sound(rt, run.run_id)


@pytest.mark.parametrize("answered", [False, True], ids=["open", "answered"])
async def test_feedback_on_a_rejected_delivery_asks_anew_what_a_step_beside_it_asked(answered: bool) -> None:
    """§5.16: one more round of both; the question of the round before answers nothing any more."""
    did: list[str] = []
    graph = delivering(did)
    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph)
        review, other = sorted(run.waits, key=lambda w: w.kind, reverse=True)
        if answered:
            await rt.approve(run.run_id, wait_id=other.wait_id)
        await rt.decide(run.run_id, "retry_feedback", wait_id=review.wait_id, feedback="better")
        run = await rt.resume(run.run_id)
        assert [(w.kind, w.step) for w in run.waits] == [("approval", 3)]
        run = await rt.approve(run.run_id)
        assert ([(w.kind, w.step) for w in run.waits], did, run.state.facts) == ([("approval", 4)], ["published"] * 2, ["a", "better"])
        run = await rt.approve(run.run_id)
        assert [w.kind for w in run.waits] == ["review"] and run.state.published == ["approve", "a", "better", "approve"]
        run = await rt.approve(run.run_id)
        assert run.status == "completed"
        await sound(rt, run.run_id)


class Watched(State):
    plan: str = ""
    price: int = 0
    heard: Annotated[list[int], append]


def watching() -> Graph[Watched]:
    """A plan that is reviewed, and a node that listens to prices."""
    graph = Graph("watches", Watched, kind="planning")

    @graph.node(start=True)
    async def plan(state: Watched) -> dict[str, Any]:
        return {"plan": "buy"}

    @graph.node(on=["price"])
    async def listen(state: Watched, ctx: Context) -> dict[str, Any]:
        return {"heard": [state.price]}

    return graph


async def test_a_signal_during_a_review_runs_its_nodes_and_the_review_is_asked_anew() -> None:
    """§5.8, §5.11, §5.16: a review is about all that was done; a signal that starts more work closes it, and none is lost."""
    graph = watching()
    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph)
        asked = []
        for price in (7, 9):
            asked += [w.wait_id for w in run.waits]
            await rt.signal(run.run_id, "price", price)
            await rt.worker(until_idle=True)
            run = await rt.get(run.run_id)
            assert (run.condition, len(run.waits), run.state.price) == ("awaiting_human_review", 1, price)
        assert len({*asked, run.waits[0].wait_id}) == 3 and run.state.heard == [7, 9]
        with pytest.raises(WaitNotFound):
            await rt.approve(run.run_id, wait_id=asked[0])
        run = await rt.approve(run.run_id)
        assert (run.status, run.state.heard) == ("completed", [7, 9])
        await sound(rt, run.run_id)
        again = await rt.approve((await rt.replay(run.run_id)).run_id)
        assert (again.status, again.result) == ("completed", run.result)


async def test_a_signal_at_the_moment_in_which_a_review_is_asked_runs_its_nodes() -> None:
    """§5.11: nobody has to send another one first."""
    world, graph = World(), watching()
    store = Interrupted(world.store)
    async with Runtime(store, skills=[graph], clock=world.clock) as rt, world.runtime(graph) as other:  # type: ignore[arg-type]
        store.then = lambda run_id: other.signal(run_id, "price", 7)
        run = await rt.invoke(graph)
        assert (run.condition, len(run.waits), run.state.heard) == ("awaiting_human_review", 1, [7])
        assert (await rt.approve(run.run_id)).status == "completed"


class Interrupted:
    """A process's way to a store: once, before a review is asked, somebody else comes."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.then: Callable[[str], Awaitable[Any]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, commit: Commit) -> Tip:
        if self.then is not None and any(isinstance(e.fact, ev.WaitRequested) for e in commit.events):
            then, self.then = self.then, None
            await then(commit.run.run_id)
        return cast("Tip", await self._store.commit(commit))

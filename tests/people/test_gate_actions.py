"""What each action does at a gate, and which a policy or a node may offer there (§5.5, X-30)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Context, Graph, State, flow
from holdfast.core import waits as ws
from holdfast.core.errors import InvalidInput, UnknownOption
from holdfast.core.policy import Policy, Verdict, require_human
from holdfast.core.waits import AFTER_STEP, BEFORE_STEP, KNOWN, Passage
from tests.core.matrix import gate_cell
from tests.engine.support import World

NONSENSE = ("postpone", "aprove", "", "APPROVE", "timeout")


class Sum(State):
    total: int = 0
    kept: int = 0


class Till:
    """A gated step and one after it; ``ran`` tells how often the gated one ran, and with what words."""

    def __init__(self, **options: Any) -> None:
        self.ran: list[str | None] = []
        self.graph = graph = Graph("till", Sum)

        @graph.node(start=True, **options)
        async def pay(state: Sum, ctx: Context) -> dict[str, Any]:
            self.ran.append(ctx.feedback)
            return {"total": len(self.ran)}

        @graph.node(after="pay")
        async def keep(state: Sum) -> dict[str, Any]:
            return {"kept": state.total}


def offering(where: str, actions: tuple[str, ...], node: bool) -> tuple[Till, dict[str, Any]]:
    """A till whose gate offers these actions, from the node or from a policy, without asking the constructor."""
    verdict = Verdict(require_human("?").kind, "?", "?", actions)
    if node or where == "check":
        return Till(**{where: lambda request: verdict}), {}
    return Till(capabilities=("money",)), {"policy": Policy(gate=lambda request: verdict)}


@pytest.mark.parametrize("node", [True, False])
@pytest.mark.parametrize("action", KNOWN)
@pytest.mark.parametrize("where", ["gate", "check"])
async def test_each_action_does_what_the_table_says(where: str, action: str, node: bool) -> None:
    """docs/matrix.md is made by the code; here the engine is held against it."""
    gate = BEFORE_STEP if where == "gate" else AFTER_STEP
    till, options = offering(where, (action,), node)
    async with World().runtime(till.graph, **options) as rt:
        run = await rt.invoke(till.graph)
        if action not in gate:
            assert (run.status, run.stop_reason) == ("failed", "invalid_input") and repr(action) in run.error.message
            assert run.state.total == 0 and till.ran == ([] if where == "gate" else [None])
            assert gate_cell(action, where).startswith("✗")
            return
        await rt.decide(run.run_id, action, feedback="why", resume=False)
        if gate[action] is not Passage.ENDS:
            await rt.resume(run.run_id)
        ended = {
            Passage.PASSES: ("completed", None),
            Passage.FAILS: ("failed", "rejected"),
            Passage.REDOES: ("waiting_for_human", None),
            Passage.ENDS: ("canceled", "denied" if action == "deny" else "halted"),
        }[gate[action]]
        run = await rt.get(run.run_id)
        assert (run.status, run.stop_reason) == ended
        assert run.state.kept == (1 if gate[action] is Passage.PASSES else 0)
        before = [] if where == "gate" else [None]
        assert till.ran == {Passage.PASSES: [None], Passage.REDOES: [None, "why"]}.get(gate[action], before)


@pytest.mark.parametrize("action", NONSENSE)
@pytest.mark.parametrize("where", ["gate", "check", "policy"])
async def test_an_action_that_nobody_knows_is_refused_by_name(where: str, action: str) -> None:
    till, options = offering("gate" if where == "policy" else where, ("approve", action), where != "policy")
    async with World().runtime(till.graph, **options) as rt:
        run = await rt.invoke(till.graph)
        assert (run.status, run.stop_reason) == ("failed", "unknown_option") and repr(action) in run.error.message
        assert run.state.kept == 0


def test_a_policy_is_told_when_it_is_written() -> None:
    for action in ("postpone", *sorted(set(KNOWN) - set(AFTER_STEP))):
        with pytest.raises(UnknownOption if action == "postpone" else InvalidInput, match=action):
            require_human("?", ("approve", action))
    assert require_human("?", "approve").actions == ("approve",)
    with pytest.raises(UnknownOption) as refused:
        require_human("?", ("aprove",))
    assert (refused.value.name, refused.value.nearest) == ("aprove", "approve")


async def test_a_rejected_step_asks_anew_when_it_is_resumed() -> None:
    """§5.5: the rejection failed the step; who goes on with the run has changed something, and is asked again."""
    till, _ = offering("gate", ("approve", "reject"), True)
    async with World().runtime(till.graph) as rt:
        run = await rt.invoke(till.graph)
        first = run.waits[0].wait_id
        await rt.decide(run.run_id, "reject", note="too dear", resume=False)
        run = await rt.resume(run.run_id)
        assert run.stop_reason == "rejected" and "too dear" in run.error.message and till.ran == []
        run = await rt.resume(run.run_id, acknowledge="rejected")
        assert [w.wait_id != first for w in run.waits] == [True] and "rejected this" in run.waits[0].verdict
        assert (await rt.approve(run.run_id)).status == "completed" and till.ran == [None]


@pytest.mark.parametrize(("said", "told"), [({}, "was rejected by ada"), ({"note": "too dear"}, "was rejected by ada: too dear"), ({"feedback": "less"}, "was rejected by ada: less")])
async def test_a_rejection_says_by_whom_and_why(said: dict[str, str], told: str) -> None:
    """§5.5: where nobody has said why, nothing stands in its place."""
    till, _ = offering("gate", ("approve", "reject"), True)
    async with World().runtime(till.graph) as rt:
        run = await rt.invoke(till.graph)
        await rt.decide(run.run_id, "reject", actor="ada", resume=False, **said)
        run = await rt.resume(run.run_id)
        assert run.error is not None and run.error.message.endswith(told)


async def test_a_handoff_may_offer_rejection() -> None:
    @flow("sieve")
    async def sieve(ctx: Context) -> str:
        return (await ctx.handoff("too long", actions=("continue", "reject"))).action

    async with World().runtime(sieve) as rt:
        run = await rt.invoke(sieve)
        await rt.decide(run.run_id, "reject", resume=False)
        assert (await rt.resume(run.run_id)).stop_reason == "rejected"


@pytest.mark.parametrize("action", ["postpone", "approve", "answer"])
async def test_a_handoff_refuses_what_it_cannot_do(action: str) -> None:
    @flow("sieve")
    async def sieve(ctx: Context) -> str:
        return (await ctx.handoff("too long", actions=("continue", action))).action

    async with World().runtime(sieve) as rt:
        run = await rt.invoke(sieve)
        assert run.status == "failed" and repr(action) in run.error.message


# -- a policy whose wording changed -------------------------------------------------------------------


def asking(prompt: str, version: str) -> Policy:
    return Policy(gate=lambda request: require_human(prompt), version=version)


@pytest.mark.parametrize("decided", [True, False])
@pytest.mark.parametrize("version", ["1", "2"])
async def test_a_policy_that_words_it_otherwise_ends_no_run(version: str, decided: bool) -> None:
    """§5.8: under the same snapshot the approval counts; under another one it is asked anew, saying so."""
    world, till = World(), Till(capabilities=("money",))
    async with world.runtime(till.graph, policy=asking("May it pay?", "1")) as rt:
        run = await rt.invoke(till.graph)
        if decided:
            await rt.approve(run.run_id, actor="ada", drive=False)
    async with world.runtime(till.graph, policy=asking("Is it all right to pay?", version)) as rt:
        run = await (rt.resume(run.run_id) if decided else rt.approve(run.run_id, actor="ada"))
        if version == "2":
            assert [w.prompt for w in run.waits] == ["Is it all right to pay?"] and "ada" in run.waits[0].verdict and till.ran == []
            run = await rt.approve(run.run_id)
        assert run.status == "completed" and till.ran == [None]


async def test_a_policy_that_asks_no_more_closes_its_question() -> None:
    world, till = World(), Till(capabilities=("money",))
    async with world.runtime(till.graph, policy=asking("May it pay?", "1")) as rt:
        run = await rt.invoke(till.graph)
        await rt.approve(run.run_id, drive=False)
    async with world.runtime(till.graph, policy=Policy(version="3")) as rt:
        run = await rt.resume(run.run_id)
        assert (run.status, run.waits) == ("completed", ()) and till.ran == [None]


async def test_a_check_that_words_it_otherwise_keeps_its_result() -> None:
    world = World()
    first, second = (Till(check=lambda request, p=p: require_human(p)) for p in ("Good?", "Is it good?"))
    async with world.runtime(first.graph) as rt:
        run = await rt.invoke(first.graph)
    async with world.runtime(second.graph) as rt:
        assert (await rt.approve(run.run_id)).state.kept == 1 and (first.ran, second.ran) == ([None], [])


def test_every_action_is_in_the_tables() -> None:
    assert set(AFTER_STEP) - set(BEFORE_STEP) == {ws.RETRY}
    assert set(KNOWN) - set(AFTER_STEP) == {ws.ANSWER, ws.RECORD_RESULT, ws.REEXECUTE, ws.ABANDON}

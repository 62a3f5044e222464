"""Policy gates before a step (§8.1): asked once under a snapshot, answered by a verdict or a person, and on record."""

from __future__ import annotations

from typing import Any

from holdfast.core import canon
from holdfast.core import events as ev
from holdfast.core.checkpoint import StepRecord
from holdfast.core.errors import Denied
from holdfast.core.graph import Node
from holdfast.core.outcomes import DEGRADED
from holdfast.core.policy import Kind, Policy, Request, judge
from holdfast.core.run import Run
from holdfast.core.waits import ACTIONS, WaitKind
from holdfast.engine.journal import Draft
from holdfast.engine.waiting import Ask, request

PLACE = "@gate"


class Halted(BaseException):
    """A policy said no: the run ends halted, and nothing of the step runs, is retried or caught (§8.1)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def about(run: Run, node: Node, environment: str) -> Request:
    return Request(
        run=run, node=node.name, capabilities=node.capabilities, side_effects=node.side_effects.value, environment=environment, waivers=run.waivers
    )


async def before(ctx: Any, node: Node) -> None:
    """Asks whether this step may run. An answer on record under the policy in force is honoured (T-31).

    Raises:
        Halted: it may not. Suspend: a person is asked.
    """
    policy: Policy | None = ctx._services.policy
    if policy is None and node.gate is None:
        return
    journal = ctx._journal
    place = f"{ctx._root.prefix}{PLACE}"
    snapshot = policy.snapshot_id if policy is not None else ""
    known = journal.record(ctx._key, place)
    passed = canon.decode(known.value) if known is not None and known.kind == "gate" else None
    if passed is None or passed[1] != snapshot:
        verdict = judge(policy, node, about(journal.run, node, ctx._services.environment))
        fact = ev.PolicyEvaluated(node.name, verdict.kind.value, verdict.reason, snapshot or None)
        passed = (verdict.kind.value, snapshot, verdict.prompt or verdict.reason, list(verdict.actions))
        record = StepRecord(ctx._key, place, PLACE, value=canon.pack(list(passed), "verdict")[1], kind="gate")
        journal.hold(Draft(facts=[fact], results=[record]))
        if verdict.kind is Kind.DENY:
            raise Halted(verdict.reason)
    kind, _, prompt, actions = passed
    if kind == Kind.DEGRADE:
        ctx.report(DEGRADED)
    elif kind == Kind.REQUIRE_HUMAN:
        offered = tuple(actions) or ACTIONS[WaitKind.GATE]
        await request(ctx, Ask(kind=WaitKind.GATE, prompt=prompt or f"may {node.name} run?", actions=offered, path=f"{place}/0"))


def reevaluate(policy: Policy | None, nodes: list[Node], run: Run, environment: str) -> tuple[list[ev.Fact], Denied | None]:
    """The current policy against every gated step not yet executed (§7.5): its verdicts as facts, and the refusal if it denies one.

    Where it wants a person, the step itself opens the wait when the run comes to it.
    """
    found: list[ev.Fact] = []
    for node in nodes:
        verdict = judge(policy, node, about(run, node, environment))
        found.append(ev.PolicyEvaluated(node.name, verdict.kind.value, verdict.reason, policy.snapshot_id if policy is not None else None))
        if verdict.kind is Kind.DENY:
            why = f"the policy in force refuses {node.name}: {verdict.reason}"
            return found, Denied(why, hint="--force waives the re-evaluation, where it is allowed")
    return found, None

"""Gates before and after a step (§8.1, §8.2): each is asked once, answered by a verdict or a person, and recorded.

A step whose result a person must see has run when the person is asked. The result is kept with the question, so that what is approved is what was shown (§5.8), and
the step does not run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.core import canon
from holdfast.core import events as ev
from holdfast.core.checkpoint import CHECK, StepRecord, TaskResult
from holdfast.core.errors import Denied, StepFailure
from holdfast.core.graph import Node
from holdfast.core.outcomes import DEGRADED, OK
from holdfast.core.policy import Kind, Policy, Request, Verdict, check_result, judge
from holdfast.core.run import Run
from holdfast.core.waits import ACTIONS, AFTER_STEP, APPROVE, BEFORE_STEP, DENY, RETRY, Decision, Passage, WaitKind
from holdfast.engine.base.journal import Draft
from holdfast.engine.calls.attempt import Attempt
from holdfast.engine.calls.waits import Ask, Halted, Redo, about, open_at, reject, rejection_of, request

PLACE = "@gate"
ASKED_AFTER = (APPROVE, RETRY, DENY)


def facing(run: Run, node: Node, environment: str, state: Any = None, writes: Mapping[str, Any] | None = None) -> Request:
    return Request(
        run=run, node=node.name, capabilities=node.capabilities, side_effects=node.side_effects.value, environment=environment, waivers=run.waivers,
        state=state, writes=writes,
    )


async def before(attempt: Attempt, node: Node, state: Any) -> None:
    """Asks whether this step may run. An answer that is recorded under the current policy counts (T-31).

    Raises:
        Halted: it may not. Suspend: a person is asked.
    """
    policy: Policy | None = attempt.services.policy
    journal = attempt.journal
    place = f"{attempt.root}{PLACE}"
    if node.capabilities and journal.record(attempt.key, f"{place}/capabilities") is None:
        chosen = StepRecord(attempt.key, f"{place}/capabilities", PLACE, kind="capability")
        journal.hold(Draft(facts=[ev.CapabilitySelected(attempt.key, c) for c in node.capabilities], results=[chosen]))
    if policy is None and node.gate is None:
        return
    snapshot = policy.snapshot_id if policy is not None else ""
    known = attempt.record(place)
    passed = canon.decode(known.value) if known is not None and known.value is not None and known.kind == "gate" else None
    if passed is None or passed[1] != snapshot:
        verdict = judge(policy, node, facing(journal.run, node, attempt.services.environment, state))
        waived = verdict.kind is Kind.DENY and node.name in journal.waived
        fact = ev.PolicyEvaluated(node.name, ev.WAIVED if waived else verdict.kind.value, verdict.reason, snapshot or None)
        if waived:  # a waived gate stays waived for this run (§7.4)
            verdict = Verdict(Kind.ALLOW)
        passed = (verdict.kind.value, snapshot, verdict.prompt or verdict.reason, list(verdict.actions))
        record = StepRecord(attempt.key, place, PLACE, value=canon.pack(list(passed), "verdict")[1], kind="gate")
        journal.hold(Draft(facts=[fact], results=[record]))
        if verdict.kind is Kind.DENY:
            raise Halted(verdict.reason, "policy_denied")
    kind, _, prompt, actions = passed
    if kind == Kind.DEGRADE:
        attempt.outcome = DEGRADED
    elif kind == Kind.REQUIRE_HUMAN:
        offered = tuple(actions) or ACTIONS[WaitKind.GATE]
        question = Ask(
            kind=WaitKind.GATE, prompt=prompt or f"may {node.name} run?", actions=offered, path=f"{place}/0", about=about(attempt, None), fits=rejection_of(attempt)
        )
        _pass(attempt, await request(attempt, question), BEFORE_STEP)
    elif (open_now := open_at(attempt, f"{place}/0")) is not None:  # the current policy does not ask the question that an earlier policy asked
        journal.hold(Draft(facts=[ev.WaitClosed(open_now.wait_id, "the current policy does not ask this question")]))


def _pass(attempt: Attempt, given: Decision, gate: Mapping[str, Passage]) -> None:
    """Lets the step continue, or its result stand, if the action passes this gate (§5.5).

    Raises:
        StepRejected: a person rejected it. Redo: a person sent it back, with feedback.
        StepFailure: the action comes from an earlier release and has no meaning here.
    """
    match gate.get(given.action):
        case Passage.PASSES:
            return
        case Passage.REDOES:
            raise Redo(None, given.feedback or "")
        case Passage.FAILS:
            raise reject(attempt, given)
    raise StepFailure(f"{given.actor} answered {given.action!r}, which does not let the run past a gate", code="gate_not_passed", hint="approve it, or fork the run")


class Held(msgspec.Struct, frozen=True, array_like=True):
    """A result about which a person is asked, and the question."""

    prompt: str
    actions: tuple[str, ...]
    reason: str
    result: TaskResult


_held = msgspec.msgpack.Decoder(Held)


def _find_kept(attempt: Attempt) -> Held | None:
    record = attempt.record(f"{attempt.root}{CHECK}")
    return None if record is None or record.value is None else _held.decode(record.value)


def find_held(attempt: Attempt) -> TaskResult | None:
    """Returns the result of this step about which a person is or was asked; the step does not run again then."""
    kept = _find_kept(attempt)
    return None if kept is None else kept.result


async def after(attempt: Attempt, node: Node, state: Any, result: TaskResult, writes: Mapping[str, Any]) -> TaskResult:
    """Asks whether the result of this step may stand; returns the result as it then counts.

    Raises:
        Halted: it may not. Suspend: a person is asked. Redo: a person sent it back, with feedback.
    """
    place = f"{attempt.root}{CHECK}"
    kept = _find_kept(attempt)
    if kept is None:
        verdict = check_result(node, facing(attempt.journal.run, node, attempt.services.environment, state, writes))
        draft = Draft(facts=[ev.PolicyEvaluated(f"{node.name}:after", verdict.kind.value, verdict.reason)])
        if verdict.kind is Kind.REQUIRE_HUMAN:
            kept = Held(verdict.prompt or f"Accept the result of {node.name}?", verdict.actions or ASKED_AFTER, verdict.reason, result)
            draft.results.append(StepRecord(attempt.key, place, CHECK, value=msgspec.msgpack.encode(kept), kind="task"))
        attempt.journal.hold(draft)
        if verdict.kind is Kind.DENY:
            raise Halted(verdict.reason, "policy_denied")
        if verdict.kind is Kind.DEGRADE and result.outcome == OK:
            return msgspec.structs.replace(result, outcome=DEGRADED)
    if kept is None:
        return result
    shown = dict(writes) or None
    question = Ask(
        kind=WaitKind.GATE, prompt=kept.prompt, verdict=kept.reason, show=shown, actions=kept.actions, path=f"{place}/0", about=about(attempt, shown),
        fits=rejection_of(attempt),
    )
    _pass(attempt, await request(attempt, question), AFTER_STEP)
    return result


def waive_refusals(policy: Policy | None, nodes: Iterable[Node], run: Run, environment: str) -> list[ev.Fact]:
    """Returns the facts by which the gates that the current policy refuses are waived by force (§7.4)."""
    found = [(n.name, judge(policy, n, facing(run, n, environment))) for n in nodes if n.name not in run.waived]
    snapshot = policy.snapshot_id if policy is not None else None
    return [ev.PolicyEvaluated(name, ev.WAIVED, verdict.reason, snapshot) for name, verdict in found if verdict.kind is Kind.DENY]


def reevaluate(policy: Policy | None, nodes: list[Node], run: Run, environment: str) -> tuple[list[ev.Fact], Denied | None]:
    """Asks the current policy about every gated step that has not run yet (§7.5); returns its verdicts as facts, and the refusal if it denies a step.

    If it requires a person, the step itself opens the wait when the run comes to it.
    """
    found: list[ev.Fact] = []
    for node in nodes:
        verdict = judge(policy, node, facing(run, node, environment))
        found.append(ev.PolicyEvaluated(node.name, verdict.kind.value, verdict.reason, policy.snapshot_id if policy is not None else None))
        if verdict.kind is Kind.DENY:
            why = f"the policy in force refuses {node.name}: {verdict.reason}"
            return found, Denied(why, hint="--force waives the re-evaluation, where it is allowed")
    return found, None

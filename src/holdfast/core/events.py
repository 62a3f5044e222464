"""Facts: one frozen class per kind, in the past tense; and the registry of kinds (§13.2).

A ``Fact`` is what happened; an ``Event`` is a fact in its place: numbered, dated, under a fence, by an actor.
The facts of one commit share a row. Values that follow from the row or the run (ids, times, tenant, trace) are derived
on read and never stored with each fact. The number in ``tag`` and the name in ``wire`` are API: a golden file lists them.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, ClassVar

import msgspec

from holdfast.core.called import Called
from holdfast.core.errors import ErrorValue
from holdfast.core.waits import Decision, Wait

SYSTEM = "system"


class Fact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all kinds. ``hot`` facts change only a run's version, step and head."""

    wire: ClassVar[str] = ""
    hot: ClassVar[bool] = False


class Unknown(msgspec.Struct, frozen=True):
    """A fact of a kind that this release does not know: it is kept and shown, and changes nothing in the fold."""

    tag: int
    fields: Any
    wire: ClassVar[str] = "unknown"
    hot: ClassVar[bool] = True


class Event(msgspec.Struct, frozen=True, gc=False):
    """A fact in its place. ``seq`` counts from 1 per run; ``at`` is microseconds since 1970, UTC."""

    seq: int
    at: int
    fact: Fact | Unknown
    actor: str = SYSTEM
    fence: int = 0

    @property
    def type(self) -> str:
        return self.fact.wire


# -- the life of a run ------------------------------------------------------------------------------


class RunSubmitted(Fact, frozen=True, tag=1):
    """The first event of every run: all that is known before anything runs. ``input`` is encoded (``canon``). ``via``, here and in other facts: the id
    of the access token with which a person did this (§16.2)."""

    wire: ClassVar[str] = "run.submitted"
    run_id: str
    skill_id: str
    skill_version: str
    fingerprint: str
    input: bytes
    thread_id: str
    session_key: str
    lane: str = "main"
    queue: str = "default"
    priority: int = 0
    not_before: int | None = None
    tenant_id: str = "default"
    environment: str = "development"
    job_id: str | None = None
    trace_id: str | None = None
    tags: tuple[str, ...] = ()
    parent_run_id: str | None = None
    parent_wait_id: str | None = None
    source_run_id: str | None = None
    source_checkpoint_id: str | None = None
    lineage_root: str = ""
    policy_snapshot_id: str | None = None
    capabilities: str | None = None
    bindings: str | None = None
    registry_ref: str | None = None
    target: str | None = None
    request_key: str | None = None
    paused_lane: str = "hold"
    recovery: str = "auto"
    on_parent_end: str = "cancel"
    kind: str | None = None
    unattended: bool = False
    budgets: dict[str, float] = {}
    schedule_id: str | None = None
    slot: int | None = None
    secrets: tuple[str, ...] = ()
    via: str = ""


class RunQueued(Fact, frozen=True, tag=2):
    wire: ClassVar[str] = "run.queued"
    reason: str = ""
    blocked_by: str | None = None


class RunClaimed(Fact, frozen=True, tag=3):
    wire: ClassVar[str] = "run.claimed"
    owner: str
    fence: int


class RunStarted(Fact, frozen=True, tag=4):
    wire: ClassVar[str] = "run.started"


class RunResumed(Fact, frozen=True, tag=5):
    """``cause``: decision, signal, timer, child, timeout, operator, replayed or cancel. ``precedes``: the run that had the next turn of the thread, if this one had
    ended (§4.15)."""

    wire: ClassVar[str] = "run.resumed"
    cause: str
    wait_id: str | None = None
    checkpoint_id: str | None = None
    acknowledged: str | None = None
    forced: bool = False
    upgraded: str | None = None
    precedes: str = ""
    via: str = ""


class RunRecovered(Fact, frozen=True, tag=6):
    wire: ClassVar[str] = "run.recovered"
    previous_owner: str
    cause: str
    via: str = ""


class RunWaitingForHuman(Fact, frozen=True, tag=7):
    wire: ClassVar[str] = "run.waiting_for_human"


class RunWaitingForSignal(Fact, frozen=True, tag=8):
    wire: ClassVar[str] = "run.waiting_for_signal"


class RunReplaying(Fact, frozen=True, tag=9):
    wire: ClassVar[str] = "run.replaying"


class RunCompleted(Fact, frozen=True, tag=10):
    """``result`` is a flow's encoded value; a graph's result is its state and is not stored twice."""

    wire: ClassVar[str] = "run.completed"
    result: bytes | None = None


class RunFailed(Fact, frozen=True, tag=11):
    wire: ClassVar[str] = "run.failed"
    stop_reason: str
    error: ErrorValue


class RunCanceled(Fact, frozen=True, tag=12):
    """``settled``: by a halt, a denial or a policy. ``at_rest``: no node was running (§2.4). ``rearms``: questions of an unattended
    run; the first resume asks them again and runs nothing (§5.17)."""

    wire: ClassVar[str] = "run.canceled"
    stop_reason: str
    settled: bool = False
    at_rest: bool = False
    rearms: tuple[str, ...] = ()


class RunCancelRequested(Fact, frozen=True, tag=13):
    wire: ClassVar[str] = "run.cancel_requested"
    reason: str = ""
    via: str = ""


class RunInterrupted(Fact, frozen=True, tag=14):
    wire: ClassVar[str] = "run.interrupted"
    cause: str


class RunForked(Fact, frozen=True, tag=15):
    """``approvals``: whether the approvals in the source answer the same questions here (§5.8)."""

    wire: ClassVar[str] = "run.forked"
    source_run_id: str
    source_checkpoint_id: str | None = None
    reason: str = ""
    effects: str = ""
    approvals: bool = False


class RunReplayed(Fact, frozen=True, tag=16):
    wire: ClassVar[str] = "run.replayed"
    source_run_id: str
    source_checkpoint_id: str | None = None
    effects: str = ""
    approvals: bool = False


class RunPatched(Fact, frozen=True, tag=17):
    wire: ClassVar[str] = "run.patched"
    tags: tuple[str, ...] | None = None
    priority: int | None = None
    trace_id: str | None = None
    workspace: str | None = None


class RunHandedBack(Fact, frozen=True, tag=18):
    """``cut``: its driving was cancelled soon after it had begun, without a request to stop the worker: its step may have caused that."""

    wire: ClassVar[str] = "run.handed_back"
    owner: str
    why: str = ""
    cut: bool = False


# -- steps and attempts -----------------------------------------------------------------------------


class StepStarted(Fact, frozen=True, tag=20):
    wire: ClassVar[str] = "step.started"
    hot: ClassVar[bool] = True
    step: int
    task: str


class StepEnded(Fact, frozen=True):
    """Base of the facts of completed steps. ``hash``: of the checkpoint saved with it, else empty (§1.8); ``call``: None for a node."""

    hot: ClassVar[bool] = True
    step: int
    task: str
    outcome: str = "ok"
    hash: bytes = b""
    attempt: int = 1
    path: str = ""
    call: Called | None = None


class StepCompleted(StepEnded, frozen=True, tag=21):
    wire: ClassVar[str] = "step.completed"


class StepDegraded(StepEnded, frozen=True, tag=22):
    wire: ClassVar[str] = "step.degraded"


class StepSkipped(StepEnded, frozen=True, tag=23):
    wire: ClassVar[str] = "step.skipped"


class StepFailed(Fact, frozen=True, tag=24):
    wire: ClassVar[str] = "step.failed"
    step: int
    task: str
    error: ErrorValue
    outcome: str = "failed"
    attempt: int = 1
    path: str = ""
    call: Called | None = None


class StepRetryScheduled(Fact, frozen=True, tag=25):
    """``due`` is when the next attempt may begin, microseconds since 1970."""

    wire: ClassVar[str] = "step.retry_scheduled"
    step: int
    task: str
    attempt: int
    due: int
    error: ErrorValue
    path: str = ""
    call: Called | None = None


class AttemptStarted(Fact, frozen=True, tag=26):
    wire: ClassVar[str] = "attempt.started"
    step: int
    task: str
    attempt: int
    owner: str = ""
    path: str = ""
    call: Called | None = None


class AttemptLeaseExpired(Fact, frozen=True, tag=27):
    """``cause``: expired, or owner_dead if the liveness file proved that (§10.6)."""

    wire: ClassVar[str] = "attempt.lease_expired"
    owner: str
    cause: str


class AttemptTakenOver(Fact, frozen=True, tag=28):
    """``takeovers``: how many owners died without any progress in between; ``late``: how many lived, and were late to renew their lease.
    ``begun``: whether the last owner had begun to drive the run; if not, it had only claimed it and died because of another run."""

    wire: ClassVar[str] = "attempt.taken_over"
    owner: str
    takeovers: int
    late: int = 0
    begun: bool = True


class CheckpointSaved(Fact, frozen=True, tag=29):
    """Written only if no step event contains the checkpoint's hash."""

    wire: ClassVar[str] = "checkpoint.saved"
    hash: bytes
    source: str = "loop"


# -- policy, waits, signals -------------------------------------------------------------------------


WAIVED = "waived"


class PolicyEvaluated(Fact, frozen=True, tag=30):
    """``verdict``: a policy's, or ``waived`` if a forced resume, or a step after it, went on in spite of a refusal (§7.4)."""

    wire: ClassVar[str] = "policy.evaluated"
    subject: str
    verdict: str
    reason: str = ""
    snapshot_id: str | None = None


class WaitRequested(Fact, frozen=True, tag=31):
    wire: ClassVar[str] = "wait.requested"
    wait: Wait


class WaitDecided(Fact, frozen=True, tag=32):
    wire: ClassVar[str] = "wait.decided"
    decision: Decision


class WaitDenied(Fact, frozen=True, tag=33):
    """An attempt to decide that the authority refused (§5.7): for the audit only, the run did not change."""

    wire: ClassVar[str] = "wait.denied"
    wait_id: str
    action: str
    actor: str
    reason: str = ""
    via: str = ""


class WaitTimedOut(Fact, frozen=True, tag=34):
    wire: ClassVar[str] = "wait.timed_out"
    decision: Decision


class WaitClosed(Fact, frozen=True, tag=35):
    """``returned``: the signal that had answered this wait and was not used. It answers the next wait for such a signal."""

    wire: ClassVar[str] = "wait.closed"
    wait_id: str
    reason: str = ""
    returned: SignalReceived | None = None


class SignalReceived(Fact, frozen=True, tag=36):
    wire: ClassVar[str] = "signal.received"
    name: str
    key: str
    payload: bytes
    actor: str = SYSTEM
    via: str = ""


# -- side effects -----------------------------------------------------------------------------------


class EffectFact(Fact, frozen=True):
    effect_id: str
    key: str
    step: int = 0
    task: str = ""
    path: str = ""
    detail: str = ""


class SideEffectAttempted(EffectFact, frozen=True, tag=40):
    wire: ClassVar[str] = "side_effect.attempted"


class SideEffectRecorded(EffectFact, frozen=True, tag=41):
    wire: ClassVar[str] = "side_effect.recorded"


class SideEffectReused(EffectFact, frozen=True, tag=42):
    wire: ClassVar[str] = "side_effect.reused"


class SideEffectBlocked(EffectFact, frozen=True, tag=43):
    wire: ClassVar[str] = "side_effect.blocked"


class SideEffectFailed(EffectFact, frozen=True, tag=44):
    wire: ClassVar[str] = "side_effect.failed"


class SideEffectUnknown(EffectFact, frozen=True, tag=45):
    wire: ClassVar[str] = "side_effect.unknown"


class SideEffectAbandoned(EffectFact, frozen=True, tag=46):
    wire: ClassVar[str] = "side_effect.abandoned"


# -- outbox, ledger, the rest -----------------------------------------------------------------------


class IntentFact(Fact, frozen=True):
    intent_id: str
    intent_type: str
    detail: str = ""


class IntentEnqueued(IntentFact, frozen=True, tag=50):
    wire: ClassVar[str] = "intent.enqueued"


# Tags 51 to 53 were for deliveries, which no release ever wrote: deliveries are recorded beside the log (§9.3).


class LedgerAppended(Fact, frozen=True, tag=54):
    wire: ClassVar[str] = "ledger.appended"
    topic: str
    key: str


class CapabilitySelected(Fact, frozen=True, tag=55):
    wire: ClassVar[str] = "capability.selected"
    task: str
    capability: str


class BindingAttempted(Fact, frozen=True, tag=56):
    wire: ClassVar[str] = "binding.attempted"
    task: str
    binding: str
    outcome: str = ""


class BudgetExceeded(Fact, frozen=True, tag=57):
    wire: ClassVar[str] = "budget.exceeded"
    budget: str
    used: float
    limit: float


class ArtifactCreated(Fact, frozen=True, tag=58):
    wire: ClassVar[str] = "artifact.created"
    name: str
    size: int
    sha256: str


class PostconditionEvaluated(Fact, frozen=True, tag=59):
    wire: ClassVar[str] = "postcondition.evaluated"
    kind: str
    holds: bool
    detail: str = ""
    evidence: bool = True


class StateRepaired(Fact, frozen=True, tag=60):
    wire: ClassVar[str] = "state.repaired"
    code: str
    detail: str = ""
    via: str = ""


class StatePatched(Fact, frozen=True, tag=61):
    """A named person edited the state; the writes are in the checkpoint's delta (§7.7)."""

    wire: ClassVar[str] = "state.patched"
    channels: tuple[str, ...]
    reason: str
    hash: bytes = b""


class NoteAdded(Fact, frozen=True, tag=62):
    """``refused``: the inbox key of a command that came too late or does not fit, with the ``code`` of its refusal. ``by`` is who asked for it, and ``action``
    what a decision was."""

    wire: ClassVar[str] = "note.added"
    text: str
    refused: str = ""
    code: str = ""
    by: str = ""
    action: str = ""


class BudgetSpent(Fact, frozen=True, tag=63):
    """The amounts of the run's budgets that a step reported as used (§8.5)."""

    wire: ClassVar[str] = "budget.spent"
    step: int
    task: str
    amounts: dict[str, float]


def _kinds(base: type[Fact]) -> list[type[Fact]]:
    found = []
    for cls in base.__subclasses__():
        found += ([cls] if cls.wire else []) + _kinds(cls)
    return found


fact_of = attrgetter("fact")
"""Returns the fact of an event; it is mapped over many events at once."""
KINDS: dict[str, type[Fact]] = {k.wire: k for k in _kinds(Fact)}
HOT = frozenset([Unknown, *[k for k in KINDS.values() if k.hot]])
VOUCHING = frozenset([k for k in KINDS.values() if "hash" in k.__struct_fields__])
"""The kinds that may name a checkpoint's hash (§1.8)."""
TAGS: dict[int, type[Fact]] = {k.__struct_config__.tag: k for k in KINDS.values()}  # type: ignore[misc]
STEP_ENDS: dict[str, type[StepEnded]] = {"degraded": StepDegraded, "skipped": StepSkipped}


def step_ended(outcome: str) -> type[StepEnded]:
    """Returns the kind of fact for a completed step with this outcome."""
    if outcome == "ok":
        return StepCompleted
    word = outcome.strip().lower()
    return STEP_ENDS["skipped"] if word.startswith("skipped") else STEP_ENDS.get(word, StepCompleted)

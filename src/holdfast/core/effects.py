"""Effect records, and what to do about the call of an effect: reuse its result, act or ask (§6)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.core.bounds import one_of
from holdfast.core.errors import ErrorValue
from holdfast.core.lease import Alive


class EffectClass(StrEnum):
    NONE = "none"
    READ = "read"
    WRITE = "write"
    EXTERNAL = "external_action"


LEDGERED = frozenset({EffectClass.WRITE, EffectClass.EXTERNAL})


class Idempotency(StrEnum):
    REQUIRED = "required"
    OPTIONAL = "optional"
    NOT_SUPPORTED = "not_supported"


class EffectStatus(StrEnum):
    ATTEMPTED = "attempted"
    RECORDED = "recorded"
    REUSED = "reused"
    BLOCKED = "blocked"
    FAILED = "failed"
    UNKNOWN = "unknown"
    ABANDONED = "abandoned"


OPEN = frozenset({EffectStatus.ATTEMPTED, EffectStatus.UNKNOWN})
"""The statuses of effects whose outcome is not known yet."""


class ReplayPolicy(StrEnum):
    """Ordered from lax to strict; an environment may only make it stricter (§6.6)."""

    REEXECUTE = "reexecute"
    USE_RECORDED = "use_recorded_result"
    REQUIRE_HUMAN = "require_human"


class Effect(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One attempt at an effect (§6.4). Times are microseconds since 1970; ``result`` is encoded.

    ``key`` is the full key with its scope; at most one record of a key is open (attempted or unknown) at a time.
    ``closed``: no process can still be doing it (§6.5); ``blob``: where a large result is stored; ``undo``: the function that takes the effect back,
    ``args`` its arguments beside the result, encoded, and ``undone`` the effect that has taken this one back (§6.11).
    """

    effect_id: str
    run_id: str
    lineage_root: str
    step: int
    task: str
    path: str
    attempt: int
    capability: str
    effect_class: EffectClass
    key: str
    shared: bool = False
    request_hash: str = ""
    response_hash: str = ""
    status: EffectStatus = EffectStatus.ATTEMPTED
    replay_policy: ReplayPolicy = ReplayPolicy.USE_RECORDED
    idempotent: bool = False
    verifiable: bool = False
    result: bytes | None = None
    error: ErrorValue | None = None
    owner: str = ""
    fence: int = 0
    attempted_at: int = 0
    settled_at: int | None = None
    tenant_id: str = "default"
    source_effect_id: str | None = None
    closed: bool = False
    blob: str = ""
    undo: str = ""
    detail: str = ""
    args: bytes | None = None
    undone: str = ""

    @property
    def open(self) -> bool:
        """Whether its outcome is unknown, so that no call may act under its key until it is settled."""
        return self.status in OPEN


def origin(effect: Effect) -> str:
    """Returns the id of the act that a record is about: a fork's own record of an act of its forebear is about the forebear's act."""
    return effect.source_effect_id or effect.effect_id


def find_settlement(records: Sequence[Effect], act: str) -> Effect | None:
    """Returns the record that settled an act in any run of a lineage, with a result or given up by decision; None if its outcome is not known yet, or if the run that
    was told its result has undone it since."""
    about = [e for e in records if act in (e.effect_id, e.source_effect_id)]
    done = [e for e in reversed(about) if e.status is EffectStatus.RECORDED and not e.undone]
    if done:
        return min(done, key=lambda e: e.detail.startswith(ELSEWHERE))  # the run in which it was answered goes before those that copied the answer
    return next((e for e in reversed(about) if e.status is EffectStatus.ABANDONED and e.detail == BY_DECISION), None)


def count_repeats(records: Sequence[Effect], act: str, run_id: str) -> int:
    """Returns how many attempts of an act a run has abandoned to try it again."""
    return sum(e.run_id == run_id and act in (e.effect_id, e.source_effect_id) and e.status is EffectStatus.ABANDONED and e.detail != BY_DECISION for e in records)


def name_gone(gone: Sequence[Effect]) -> str:
    """Returns a text that names the effects that were undone, or may have been, and the steps that had done them."""
    return ", ".join(f"{e.capability} (step {e.step}{'' if e.undone else ', whether it was undone is unknown'})" for e in gone)


def attribute(actor: str, reason: str) -> str:
    """Returns the actor, with the reason if one was given."""
    return f"{actor} ({reason})" if reason else actor


def effect_key(tenant: str, kind: str, scope: str, key: str) -> str:
    """Returns the full key (§6.3). ``scope`` is the lineage root for a key of the run's own, any name for a shared key.

    The key is passed to outside services, so it contains only characters that are allowed in headers and file names.
    """
    return ":".join(quote(part, safe="/.=~@,+-_#") for part in (tenant, kind, scope, key))


def undo_key(key: str) -> str:
    """Returns the key of the effect that takes back the one under ``key``. No part of a full key contains a colon."""
    return f"{key}:undo"


def successor(key: str, records: Sequence[Effect]) -> str | None:
    """Returns the key that replaces one whose effect was taken back, or None if the effect was not taken back (§6.11).

    Doing the effect again is a new effect, also for a receiver that deduplicates by the key.
    """
    last = next((e for e in reversed(records) if e.status is EffectStatus.RECORDED), None)
    if last is None or not last.undone:
        return None
    head, _, number = key.rpartition(":")
    return f"{head}:{int(number) + 1}" if key.count(":") > _PARTS - 1 and number.isdecimal() else f"{key}:2"


_PARTS = 4
BY_DECISION = "by decision"
AGAIN = "attempted again; whether the attempt before it was carried out is unknown"
"""The detail of a record whose act is attempted again. If the new attempt fails, the outcome stays unknown: the first one may have been carried out."""
ELSEWHERE = "answered in the run "
_STRICTNESS = {ReplayPolicy.REEXECUTE: 0, ReplayPolicy.USE_RECORDED: 1, ReplayPolicy.REQUIRE_HUMAN: 2}


def as_policy(word: ReplayPolicy | str, field: str) -> ReplayPolicy:
    """Returns the policy that a word names.

    Raises:
        InvalidInput: the word names no policy; lists the policies.
    """
    return ReplayPolicy(one_of(word, field, tuple(ReplayPolicy)))


def strictest(*policies: ReplayPolicy | str | None) -> ReplayPolicy:
    """Returns the strictest of the given policies, or ``use_recorded_result`` if none is given (§6.6)."""
    said = [ReplayPolicy(p) for p in policies if p]
    return max(said, key=_STRICTNESS.__getitem__) if said else ReplayPolicy.USE_RECORDED


# -- what a verify hook answers -----------------------------------------------------------------------


class Happened(msgspec.Struct, frozen=True):
    """The effect happened; ``result`` is what it returned."""

    result: Any = None


class Absent(msgspec.Struct, frozen=True):
    """The effect did not happen."""


class Unknown(msgspec.Struct, frozen=True):
    """It is not known whether the effect happened; ``why`` is the reason."""

    why: str = ""


def read_answer(answer: object, hook: str) -> Happened | Absent | Unknown:
    """Returns the answer of a verify hook. Any other value counts as ``Unknown``, with a text for the person who is asked then (X-05)."""
    if isinstance(answer, Unknown):
        return Unknown(str(answer.why))
    if isinstance(answer, Happened | Absent):
        return answer
    given = f"the class {answer.__name__}" if isinstance(answer, type) else f"a {type(answer).__name__}"
    return Unknown(f"{hook} returned {given}; it must return Happened(result), Absent() or Unknown()")


# -- what to do about one call ------------------------------------------------------------------------


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One call of an effect: who calls, with what request, and what its author declared. ``placed``: the key was made from the call's place in the run."""

    request: str
    run_id: str
    place: tuple[int, str, str]
    fence: int = 0
    idempotent: bool = False
    verifiable: bool = False
    policy: ReplayPolicy = ReplayPolicy.USE_RECORDED
    name: str = ""
    lineage_root: str = ""
    placed: bool = False


class Reuse(msgspec.Struct, frozen=True):
    """Return the recorded result and do nothing."""

    effect: Effect


class Act(msgspec.Struct, frozen=True):
    """Do the effect. ``over`` is the attempt before this one; ``same``: use the same record, because the receiver deduplicates."""

    over: Effect | None = None
    same: bool = False


class Verify(msgspec.Struct, frozen=True):
    """Ask the effect's verify hook. ``closed``: it is known, before the hook is asked, that no process can still be doing the effect."""

    effect: Effect
    closed: bool


class Ask(msgspec.Struct, frozen=True):
    """Let a person decide."""

    effect: Effect
    reason: str
    closed: bool = True
    why: str = ""


class InProgress(msgspec.Struct, frozen=True):
    """Wait: another call does the effect now (§6.8)."""

    effect: Effect


class Beside(msgspec.Struct, frozen=True):
    """Use a key of its own: the record at this place is of another effect, and the code has taken another path since."""

    effect: Effect


class Mismatch(msgspec.Struct, frozen=True):
    """Refuse: the key is recorded with another request (§6.3)."""

    effect: Effect


class Doubt(msgspec.Struct, frozen=True):
    """Let a person say whether the effect still stands: it was done, and the outcome of an attempt to take it back is unknown (§6.5)."""

    effect: Effect
    undo: Effect


Verdict = Reuse | Act | Verify | Ask | InProgress | Beside | Mismatch | Doubt

REPLAY, OUTCOME_UNKNOWN, MAY_LIVE = "side_effect_replay", "effect_unknown", "attempt_may_live"
GIVEN_UP, OTHER_ARGUMENTS = "effect_abandoned", "other_arguments"
ARGUMENTS_CHANGED, CALL_CHANGED = "arguments_changed", "call_changed"


def judge(records: Sequence[Effect], asked: Asked, alive: Alive) -> Verdict:
    """Returns what to do about a call, from the records under its key, oldest first (§6.2, §6.5, §6.6).

    ``alive`` tells whether the process of the open attempt lives, if there is one: only proof of its death closes the attempt.
    """
    last = next((e for e in reversed(records) if e.status not in (EffectStatus.REUSED, EffectStatus.BLOCKED)), None)
    if last is None:
        return Act()
    own = (last.run_id, last.step, last.task, last.path) == (asked.run_id, *asked.place)
    if last.request_hash not in ("", asked.request):  # a record that was rebuilt from the log may lack its request
        return _judge_other(last, asked, own, alive)
    match last.status:
        case EffectStatus.RECORDED if last.undone:
            return Act(last)
        case EffectStatus.RECORDED:
            return _on_record(last, asked, own)
        case EffectStatus.ATTEMPTED | EffectStatus.UNKNOWN:
            return _in_the_gap(last, asked, alive)
        case EffectStatus.ABANDONED if last.detail == BY_DECISION and last.lineage_root == asked.lineage_root:
            return Ask(last, GIVEN_UP)
    return Act(last)  # failed, or abandoned: known not to have happened


def _judge_other(last: Effect, asked: Asked, own: bool, alive: Alive) -> Verdict:
    """Judges a call whose key is recorded with another request. If the key was made from this run's own place, the code has taken another path: the record is
    of an error handler whose failure is tried again, or depends on an effect that was taken back, or plain code has computed other arguments. What was done,
    abandoned or left in doubt with the old request is asked about first."""
    if not asked.placed or not own:
        return Mismatch(last)
    same = last.capability == asked.name
    if last.open:
        if _is_under_way(last, asked, alive):
            return InProgress(last)
        # No hook is asked and no act repeated: both would be given the arguments of another act.
        return Ask(last, ARGUMENTS_CHANGED if same else CALL_CHANGED, last.closed or alive is Alive.NO)
    if same and last.status is EffectStatus.RECORDED:
        return Ask(last, OTHER_ARGUMENTS)
    if same and last.status is EffectStatus.ABANDONED and last.detail == BY_DECISION:
        return Ask(last, GIVEN_UP)
    return Beside(last)


def find_undo(records: Sequence[Effect], effect: Effect) -> Effect | None:
    """Returns the newest attempt to take an effect back, from the records under the key of its undo."""
    return next((u for u in reversed(records) if u.source_effect_id == effect.effect_id), None)


def judge_undo(effect: Effect, undo: Effect, alive: Alive) -> Verdict | None:
    """Returns what to do about a call after an attempt to take its effect back; None if the attempt failed, so that the effect stands.
    ``alive`` tells whether the process of that attempt lives."""
    match undo.status:
        case EffectStatus.RECORDED:
            return Act(effect)
        case EffectStatus.ATTEMPTED if alive is Alive.YES:
            return InProgress(undo)
        case EffectStatus.ATTEMPTED | EffectStatus.UNKNOWN:
            return Doubt(effect, undo)
    return None


def _on_record(last: Effect, asked: Asked, own: bool) -> Verdict:
    if own or asked.policy is ReplayPolicy.USE_RECORDED:
        return Reuse(last)
    return Ask(last, REPLAY) if asked.policy is ReplayPolicy.REQUIRE_HUMAN else Act(last)


def _in_the_gap(last: Effect, asked: Asked, alive: Alive) -> Verdict:
    """Judges an attempt without a known outcome: it never counts as done, and is never repeated blindly (§6.5)."""
    if _is_under_way(last, asked, alive):
        return InProgress(last)
    if asked.idempotent:
        return Act(last, same=True)
    closed = last.closed or alive is Alive.NO
    if asked.verifiable:
        return Verify(last, closed)
    return Ask(last, OUTCOME_UNKNOWN, closed)


def _is_under_way(last: Effect, asked: Asked, alive: Alive) -> bool:
    """Whether another run, or this very claim, may be carrying it out now."""
    elsewhere = last.run_id != asked.run_id or last.fence == asked.fence
    return last.status is EffectStatus.ATTEMPTED and elsewhere and alive is Alive.YES


def verify(effect: Effect, answer: object, closed: bool) -> Verdict:
    """Returns what to do after a hook's answer. The caller handles ``Happened``. ``Absent`` is believed only if the attempt is closed."""
    match answer:
        case Absent() if closed:
            return Act(effect)
        case Absent():
            return Ask(effect, MAY_LIVE, closed)
        case Unknown(why):
            return Ask(effect, OUTCOME_UNKNOWN, closed, why)
    return Ask(effect, OUTCOME_UNKNOWN, closed)

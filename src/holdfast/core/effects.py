"""Effect records and what to do about one: reuse, act or ask (§6)."""

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
"""Of these nobody knows yet how they went."""


class ReplayPolicy(StrEnum):
    """Ordered from lax to strict; an environment may only make it stricter (§6.6)."""

    REEXECUTE = "reexecute"
    USE_RECORDED = "use_recorded_result"
    REQUIRE_HUMAN = "require_human"


class Effect(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One attempt at an effect (§6.4). Times are microseconds since 1970; ``result`` is encoded.

    ``key`` is the full key with its scope; at most one record of a key is open (attempted or unknown) at a time.
    ``closed``: nobody can still be doing it (§6.5); ``blob``: where a large result is kept; ``undo``: what takes it back,
    ``args`` what that is given beside the result, encoded, and ``undone`` the effect that has taken it back (§6.11).
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
        """Whether nobody may act under this key until it is settled."""
        return self.status in OPEN


def origin(effect: Effect) -> str:
    """The act that a record is about: a fork's own record of a forebear's act is about that one."""
    return effect.source_effect_id or effect.effect_id


def find_settlement(records: Sequence[Effect], act: str) -> Effect | None:
    """How an act was settled in any run of a lineage: with a result, or given up by decision; None while nobody knows."""
    about = [e for e in records if act in (e.effect_id, e.source_effect_id)]
    done = [e for e in reversed(about) if e.status is EffectStatus.RECORDED]
    if done:
        return min(done, key=lambda e: e.detail.startswith(ELSEWHERE))  # that of the run in which it was answered, before those that heard of it
    return next((e for e in reversed(about) if e.status is EffectStatus.ABANDONED and e.detail == BY_DECISION), None)


def count_repeats(records: Sequence[Effect], act: str, run_id: str) -> int:
    """How many attempts of an act a run has left behind to try it again."""
    return sum(e.run_id == run_id and act in (e.effect_id, e.source_effect_id) and e.status is EffectStatus.ABANDONED and e.detail != BY_DECISION for e in records)


def attribute(actor: str, reason: str) -> str:
    """Whose word something is, with the reason that was given."""
    return f"{actor} ({reason})" if reason else actor


def effect_key(tenant: str, kind: str, scope: str, key: str) -> str:
    """The full key (§6.3); ``scope`` is the lineage root for a key of the run's own, any name for a shared one.

    It is handed to outside services, so it holds nothing that a header or a file name could not.
    """
    return ":".join(quote(part, safe="/.=~@,+-_#") for part in (tenant, kind, scope, key))


def undo_key(key: str) -> str:
    """The key of the effect that takes back the one under ``key``. No part of a full key holds a colon."""
    return f"{key}:undo"


def successor(key: str, records: Sequence[Effect]) -> str | None:
    """The key that stands in place of one whose effect was taken back; None while it stands itself (§6.11).

    Done again it is another effect, also for a receiver that dedupes by the key.
    """
    last = next((e for e in reversed(records) if e.status is EffectStatus.RECORDED), None)
    if last is None or not last.undone:
        return None
    head, _, number = key.rpartition(":")
    return f"{head}:{int(number) + 1}" if key.count(":") > _PARTS - 1 else f"{key}:2"


_PARTS = 4
BY_DECISION = "by decision"
ELSEWHERE = "answered in the run "
_STRICTNESS = {ReplayPolicy.REEXECUTE: 0, ReplayPolicy.USE_RECORDED: 1, ReplayPolicy.REQUIRE_HUMAN: 2}


def as_policy(word: ReplayPolicy | str, field: str) -> ReplayPolicy:
    """The policy of a word.

    Raises:
        InvalidInput: it is none; says which there are.
    """
    return ReplayPolicy(one_of(word, field, tuple(ReplayPolicy)))


def strictest(*policies: ReplayPolicy | str | None) -> ReplayPolicy:
    """The strictest of those that were said; ``use_recorded_result`` if none was (§6.6)."""
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
    """What a verify hook said; anything else than one of the three answers nothing, and whoever is asked then reads so (X-05)."""
    if isinstance(answer, Unknown):
        return Unknown(str(answer.why))
    if isinstance(answer, Happened | Absent):
        return answer
    given = f"the class {answer.__name__}" if isinstance(answer, type) else f"a {type(answer).__name__}"
    return Unknown(f"{hook} returned {given}; it must return Happened(result), Absent() or Unknown()")


# -- what to do about one call ------------------------------------------------------------------------


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One call of an effect: who asks, for what, and what its author declared. ``placed``: its key is that of its place in the run."""

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
    """Its recorded result is given; nothing is done."""

    effect: Effect


class Act(msgspec.Struct, frozen=True):
    """It may be done. ``over`` is the attempt that this one follows; ``same``: under the same record, for the receiver dedupes."""

    over: Effect | None = None
    same: bool = False


class Verify(msgspec.Struct, frozen=True):
    """Its hook is asked. ``closed``: nobody can still be doing it, as known before the hook was asked."""

    effect: Effect
    closed: bool


class Ask(msgspec.Struct, frozen=True):
    """A person decides."""

    effect: Effect
    reason: str
    closed: bool = True
    why: str = ""


class InProgress(msgspec.Struct, frozen=True):
    """Somebody else does it now: wait for it (§6.8)."""

    effect: Effect


class Beside(msgspec.Struct, frozen=True):
    """Another effect is on record at this place, which the code went another way from since: this one has a key of its own."""

    effect: Effect


class Mismatch(msgspec.Struct, frozen=True):
    """The key is on record with another request (§6.3)."""

    effect: Effect


class Doubt(msgspec.Struct, frozen=True):
    """It was done, and an attempt to take it back has no outcome: a person says whether it stands (§6.5)."""

    effect: Effect
    undo: Effect


Verdict = Reuse | Act | Verify | Ask | InProgress | Beside | Mismatch | Doubt

REPLAY, OUTCOME_UNKNOWN, MAY_LIVE = "side_effect_replay", "effect_unknown", "attempt_may_live"
GIVEN_UP, OTHER_ARGUMENTS = "effect_abandoned", "other_arguments"


def judge(records: Sequence[Effect], asked: Asked, alive: Alive) -> Verdict:
    """What to do about a call, from the records under its key, oldest first (§6.2, §6.5, §6.6).

    ``alive`` is about the process of the open attempt, if there is one: only a proof of its death closes it.
    """
    last = next((e for e in reversed(records) if e.status not in (EffectStatus.REUSED, EffectStatus.BLOCKED)), None)
    if last is None:
        return Act()
    own = (last.run_id, last.step, last.task, last.path) == (asked.run_id, *asked.place)
    if last.request_hash not in ("", asked.request):  # a record that was made again from the log may not say what was asked
        return _judge_other(last, asked, own)
    match last.status:
        case EffectStatus.RECORDED if last.undone:
            return Act(last)
        case EffectStatus.RECORDED:
            return _on_record(last, asked, own)
        case EffectStatus.ATTEMPTED | EffectStatus.UNKNOWN:
            return _in_the_gap(last, asked, alive)
        case EffectStatus.ABANDONED if last.detail == BY_DECISION and last.lineage_root == asked.lineage_root:
            return Ask(last, GIVEN_UP)
    return Act(last)  # failed, or left behind: known not to have happened


def _judge_other(last: Effect, asked: Asked, own: bool) -> Verdict:
    """Another request is on record. At a place of the run itself that was of a handler, whose failure is tried again: the code goes another way now."""
    if not asked.placed or not own:
        return Mismatch(last)
    if last.status is EffectStatus.ABANDONED and last.detail != BY_DECISION:
        return Beside(last)  # nothing has happened
    if last.status is EffectStatus.FAILED and last.capability != asked.name:
        return Beside(last)
    if last.status is not EffectStatus.RECORDED:
        return Mismatch(last)
    return Ask(last, OTHER_ARGUMENTS) if last.capability == asked.name else Beside(last)


def find_undo(records: Sequence[Effect], effect: Effect) -> Effect | None:
    """The newest attempt to take an effect back, from the records under the key of its undo."""
    return next((u for u in reversed(records) if u.source_effect_id == effect.effect_id), None)


def judge_undo(effect: Effect, undo: Effect, alive: Alive) -> Verdict | None:
    """What to do about a call whose effect somebody has attempted to take back; None where that came to nothing, so that it stands.
    ``alive`` is about the process of that attempt."""
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
    """Attempted, and no result: never a result, never repeated blindly (§6.5)."""
    elsewhere = last.run_id != asked.run_id or last.fence == asked.fence
    if last.status is EffectStatus.ATTEMPTED and elsewhere and alive is Alive.YES:
        return InProgress(last)
    if asked.idempotent:
        return Act(last, same=True)
    closed = last.closed or alive is Alive.NO
    if asked.verifiable:
        return Verify(last, closed)
    return Ask(last, OUTCOME_UNKNOWN, closed)


def verify(effect: Effect, answer: object, closed: bool) -> Verdict:
    """What follows from a hook's answer; ``Happened`` is settled by the caller. Absent is believed only of a closed attempt."""
    match answer:
        case Absent() if closed:
            return Act(effect)
        case Absent():
            return Ask(effect, MAY_LIVE, closed)
        case Unknown(why):
            return Ask(effect, OUTCOME_UNKNOWN, closed, why)
    return Ask(effect, OUTCOME_UNKNOWN, closed)

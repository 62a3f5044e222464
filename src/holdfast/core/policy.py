"""Policy: what may run, who must be asked, and under which snapshot (§8).

A policy is a pure function from a request to a verdict, and a version. Its snapshot id is recorded with every run, wait and
decision made under it, so that an approval under one policy does not count as an approval under another (§5.8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from holdfast.core import bounds, canon
from holdfast.core.bounds import Declared, verb
from holdfast.core.bounds import check_arguments as admits
from holdfast.core.errors import InvalidInput
from holdfast.core.graph import Node
from holdfast.core.misused import is_function
from holdfast.core.run import Run
from holdfast.core.waits import AFTER_STEP, BEFORE_STEP, Passage, at_gate


class Kind(StrEnum):
    ALLOW = "allow"
    DENY = "deny"
    REQUIRE_HUMAN = "require_human"
    DEGRADE = "degrade"
    WARN = "warn"


class OnFail(StrEnum):
    """What happens if a node's own gate does not pass (§8.2)."""

    BLOCK = "block"
    WARN = "warn"
    DEGRADE = "degrade"
    REQUIRE_HUMAN = "require_human"


class Verdict(msgspec.Struct, frozen=True):
    """The answer of a gate. ``prompt`` and ``actions`` are for ``require_human``."""

    kind: Kind
    reason: str = ""
    prompt: str = ""
    actions: tuple[str, ...] = ()


ALLOW = Verdict(Kind.ALLOW)


def allow() -> Verdict:
    """The step runs."""
    return ALLOW


@verb
def deny(reason: str) -> Verdict:
    """The step does not run, and the run is halted; a denial is never retried (§8.1)."""
    return Verdict(Kind.DENY, reason)


@admits(prompt=bounds.asked, actions=bounds.as_given)
def require_human(prompt: str, actions: str | Iterable[str] = (), reason: str = "") -> Verdict:
    """A person is asked before the step runs, or, if the gate is asked after the step, before its result is accepted.

    Raises:
        InvalidInput: an action that a gate cannot offer (§5.5).
    """
    return Verdict(Kind.REQUIRE_HUMAN, reason or prompt, prompt, at_gate(actions, AFTER_STEP))


@verb
def degrade(reason: str) -> Verdict:
    """The step runs, and its outcome is ``degraded``."""
    return Verdict(Kind.DEGRADE, reason)


@verb
def warn(reason: str) -> Verdict:
    """The step runs, or its result is accepted, and the log reports what was wrong with it."""
    return Verdict(Kind.WARN, reason)


class Request(msgspec.Struct, frozen=True):
    """What a gate is asked about: a step of a run. ``waivers`` are those given in this run so far (§5.5); ``state`` is the state that the
    step reads.

    ``writes`` are the step's writes, for a gate after the step; None before it. ``undo`` is the name of the undo function if the question
    is whether an effect may be undone; empty for the step itself (§6.11).
    """

    run: Run
    node: str
    capabilities: tuple[str, ...]
    side_effects: str
    environment: str
    waivers: tuple[Any, ...] = ()
    state: Any = None
    writes: Mapping[str, Any] | None = None
    undo: str = ""


Gate = Callable[[Request], Any]
REVIEWS = ("planning", "research")
"""The kinds of work that end in a person's review, unless a policy lists others (§5.16)."""


class Policy(msgspec.Struct, frozen=True, metaclass=Declared):
    """A gate function with a version. ``gate`` gets a ``Request`` and answers with a ``Verdict``, True, False or a reason (a string); None
    allows every step. ``reviews`` are the kinds of work that end in a person's review (§5.16). ``allow_force`` is whether
    ``resume(force=True)`` may continue a run past the policy."""

    gate: Gate | None = None
    version: str = "1"
    reviews: tuple[str, ...] = REVIEWS
    allow_force: bool = True

    def __post_init__(self) -> None:
        if self.gate is not None:
            bounds.function(self.gate, "gate")
        bounds.text(self.version, "version")
        bounds.flag(self.allow_force, "allow_force")
        msgspec.structs.force_setattr(self, "reviews", bounds.texts(self.reviews, "reviews", bounds.ID_BYTES))

    @property
    def snapshot_id(self) -> str:
        """A name for this policy and its version; it is recorded with its decisions."""
        name = getattr(self.gate, "__qualname__", type(self.gate).__name__)
        return f"policy-{canon.digest([name, self.version, *self.reviews, str(self.allow_force)])[:12]}"

    def ask(self, request: Request) -> Verdict:
        """Calls ``gate`` with a request and returns its verdict."""
        return ALLOW if self.gate is None else verdict(self.gate(request))


def coerce(value: Any) -> Policy | None:
    """Returns a policy, given a policy, a gate function, or None."""
    if value is None or isinstance(value, Policy):
        return value
    if is_function(value):
        return Policy(gate=value, version=str(getattr(value, "version", "1")))
    raise bounds.wrong("policy", "a Policy or a function of a request", value)


def verdict(answer: Any, on_fail: str = OnFail.BLOCK) -> Verdict:
    """Returns a gate's answer as a verdict. True and None allow; False or a text denies, unless ``on_fail`` says otherwise.

    Raises:
        InvalidInput: for any other answer; an unknown answer never allows.
    """
    match answer:
        case Verdict():
            return answer
        case None | True:
            return ALLOW
        case False:
            return _fail("the gate refused", on_fail)
        case str():
            return _fail(answer, on_fail)
    raise InvalidInput(f"a gate must return a Verdict, a bool or a reason, not {type(answer).__name__}")


def _fail(reason: str, on_fail: str) -> Verdict:
    kind = {OnFail.BLOCK: Kind.DENY, OnFail.WARN: Kind.WARN, OnFail.DEGRADE: Kind.DEGRADE}.get(OnFail(on_fail), Kind.REQUIRE_HUMAN)
    return Verdict(kind, reason, reason if kind is Kind.REQUIRE_HUMAN else "", at_gate((), AFTER_STEP))


def asks(policy: Policy | None, node: Node) -> bool:
    """Whether a gate has to be asked about this node's step."""
    return node.gate is not None or (policy is not None and policy.gate is not None and node.gated)


def judge(policy: Policy | None, node: Node, request: Request) -> Verdict:
    """Returns the stricter of the policy's verdict and that of the node's own gate.

    Raises:
        InvalidInput: a verdict offers an action that has no meaning before a step (§5.5).
    """
    found = [verdict(node.gate(request), node.on_fail)] if node.gate is not None else []
    if policy is not None:
        found.append(policy.ask(request))
    for each in found:
        check_offer(each, BEFORE_STEP)
    return max(found, key=lambda v: _STRICT.index(v.kind), default=ALLOW)


def check_result(node: Node, request: Request) -> Verdict:
    """Returns the verdict of the node's own check on its result, after it ran (§8.2).

    Raises:
        InvalidInput: the verdict offers an action that has no meaning after a step (§5.5).
    """
    found = verdict(node.check(request), node.on_fail)
    check_offer(found, AFTER_STEP)
    return found


def check_offer(found: Verdict, gate: Mapping[str, Passage]) -> None:
    """Refuses a verdict that offers an action that this gate cannot carry out."""
    if found.actions:
        at_gate(found.actions, gate)


_STRICT = (Kind.ALLOW, Kind.WARN, Kind.DEGRADE, Kind.REQUIRE_HUMAN, Kind.DENY)

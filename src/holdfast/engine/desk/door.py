"""Makes all requests and commands, for Python, shell, ports and HTTP (§3.6).

Theory of operation. A caller's input comes either as arguments of a public verb or as a mapping of options, for a child, a schedule or a port.
Both are made into one frozen, typed, bounded value here, before anything is decided or read. No other module checks what a caller
gave.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import itertools
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, TypedDict, TypeVar

import msgspec

from holdfast.callers import VIA
from holdfast.core import bounds, canon
from holdfast.core import commands as cmd
from holdfast.core.bounds import wrong
from holdfast.core.effects import Effect, ReplayPolicy, as_policy
from holdfast.core.environments import Environment
from holdfast.core.errors import InvalidInput, UsageError
from holdfast.core.misused import is_function

T = TypeVar("T")


class OnBusy(StrEnum):
    """What happens to a new run whose lane is busy (§5.13): it waits its turn; it is refused; it ends at once, on record; or it replaces the runs that wait."""

    QUEUE = "queue"
    REJECT = "reject"
    ACK = "ack"
    REPLACE = "replace"


class RunOptions(TypedDict, total=False):
    """The options of every verb that creates a run; the verbs list them with their defaults."""

    thread_id: str | None
    key: str | None
    session_key: str | None
    lane: str
    queue: str
    priority: int
    job_id: str | None
    trace_id: str | None
    tags: Iterable[str]
    tenant_id: str
    target: str | None
    paused_lane: str
    recovery: str
    unattended: bool
    budgets: Mapping[str, float] | None
    on_busy: str


class OneRunOptions(TypedDict, total=False):
    """The options of ``holdfast.run``, for type checkers."""

    store: str | None
    thread_id: str | None
    key: str | None
    step_limit: int | None
    tags: Iterable[str]
    trace_id: str | None
    budgets: Mapping[str, float] | None
    unattended: bool


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller asks for in a new run; None means the default of §3.3."""

    thread_id: str | None = None
    session_key: str | None = None
    lane: str = "main"
    queue: str = "default"
    priority: int = 0
    not_before: int | None = None
    key: str | None = None
    job_id: str | None = None
    trace_id: str | None = None
    tags: tuple[str, ...] = ()
    tenant_id: str = "default"
    target: str | None = None
    paused_lane: str = "hold"
    recovery: str = "auto"
    parent_run_id: str | None = None
    parent_wait_id: str | None = None
    on_parent_end: str = "cancel"
    source_run_id: str | None = None
    source_checkpoint_id: str | None = None
    lineage_root: str = ""
    policy_snapshot_id: str | None = None
    unattended: bool = False
    budgets: dict[str, float] = {}
    on_busy: str = "queue"
    schedule_id: str | None = None
    slot: int | None = None


OPTIONS: Mapping[str, bounds.Convert] = {
    **{
        name: bounds.KNOWN[name]
        for name in (
            "thread_id", "session_key", "lane", "queue", "priority", "key", "job_id", "trace_id", "tags", "tenant_id", "target", "paused_lane",
            "recovery", "unattended",
        )
    },
    "budgets": bounds.limits,
    "on_busy": bounds.word(*OnBusy),
}
"""The options of a new run that a caller may give, each with the check of its value."""
USUAL = {name: field.default for field in msgspec.structs.fields(Request) if (name := field.name) in OPTIONS and field.default is not msgspec.NODEFAULT}
"""The value of each option that a caller does not give. It need not be checked."""
ANY = Request()  # no option given
KEPT = tuple(name for name in OPTIONS if name not in ("key", "on_busy"))
"""The options that a schedule keeps for its runs."""


def request(given: Mapping[str, Any], *, where: str, due: int | None = None, **own: Any) -> Request:
    """Makes a request for a new run from the options that a caller gave; ``own``: fields that the engine sets.

    Raises:
        UnknownOption: it names the option. InvalidInput, TooLarge: the same.
    """
    said = _find_said(given)
    return msgspec.convert({**bounds.admit(said, OPTIONS, where), "not_before": due, **own}, Request) if said or own or due is not None else ANY


def _find_said(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that a caller gave, without those that have their default value."""
    said = itertools.compress(given.items(), map(operator.is_not, given.values(), map(USUAL.get, given)))  # most callers give none of the many options
    return {name: value for name, value in said if value is not None}


def submission(given: Mapping[str, Any], input: Any, *, where: str, due: int | None = None) -> tuple[Request, Mapping[str, Any]]:
    """Makes a request for a new run, and its input, from the options and the input that a caller gave.

    Raises:
        UnknownOption: it names the option. InvalidInput, TooLarge: they name the option or the input.
    """
    said = _find_said(given)
    admitted, values = bounds.admit(said, OPTIONS, where), {} if input is None else bounds.mapping(input, "inputs")
    return msgspec.convert({**admitted, "not_before": due}, Request) if said or due is not None else ANY, values


def inputs(value: Any) -> Mapping[str, Any]:
    """Returns the input of a run: a mapping of names to values; None becomes an empty one.

    Raises:
        InvalidInput: it is something else.
    """
    return {} if value is None else bounds.mapping(value, "inputs")


def due(at: dt.datetime | None, delay: dt.timedelta | float | None, now: int) -> int | None:
    """Returns when a run begins that was requested with ``at=`` or ``delay=``; None for at once.

    Raises:
        InvalidInput: both were given, or one has an invalid value.
    """
    if at is not None and delay is not None:
        raise InvalidInput("a run begins at= a time or after a delay=, not both", field="delay", hint="give one of them")
    if at is not None:
        return bounds.moment(at, "at")
    return None if delay is None else now + bounds.duration(delay, "delay")


# -- replays and forks --------------------------------------------------------------------------------

REPLAY = "replay"
FORKED = "fork"

class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a replay or a fork; None means as in the source run. ``missing``: effects of the source that it has taken
    back; ``inherits``: whether approvals of the source count (§5.8)."""

    kind: str
    checkpoint_id: str | None = None
    step: int | str | None = None
    edits: Mapping[str, Any] = {}
    inputs: Mapping[str, Any] = {}
    reason: str = ""
    actor: str = "operator"
    effects: ReplayPolicy | None = None
    key: str | None = None
    upgrade: bool = False
    not_before: int | None = None
    missing: tuple[Effect, ...] = ()
    inherits: bool = False
    fields: Mapping[str, Any] = {}


FIELDS = ("tags", "priority", "queue", "lane", "job_id", "trace_id", "unattended", "tenant_id", "recovery", "environment", "policy_snapshot_id", "capabilities")
FORK: Mapping[str, bounds.Convert] = {
    **{name: bounds.KNOWN[name] for name in FIELDS},
    **{name: bounds.KNOWN[name] for name in ("set", "reason", "key", "upgrade", "at", "delay", "inherit_approvals")},
    "inputs": bounds.mapping,
    "effects": as_policy,
    "capabilities": bounds.text,
}
"""The options of a fork that a caller may give, each with the check of its value; those in ``FIELDS`` become fields of the new run."""
LEFT_OUT = {"reason": "", "upgrade": False}
"""The value of an option that a caller does not give, where that is not None."""


def fork(given: Mapping[str, Any], place: Environment, now: int, *, checkpoint_id: str | None, step: int | str | None, actor: str) -> Wish:
    """Makes the request for a fork. Whether this environment allows the options is checked first.

    Raises:
        RestrictedOption: the environment does not allow an option. UnknownOption: there is no such option. InvalidInput, TooLarge: they name the option.
    """
    said = {name: value for name, value in given.items() if value is not LEFT_OUT.get(name) and value != LEFT_OUT.get(name)}
    place.check_options(said)
    plain = bounds.admit(said, FORK, "fork")
    return Wish(
        kind=FORKED,
        checkpoint_id=checkpoint_id,
        step=step,
        edits=plain.get("set", {}),
        inputs=plain.get("inputs", {}),
        reason=plain.get("reason", ""),
        actor=actor,
        effects=plain.get("effects"),
        key=plain.get("key"),
        upgrade=plain.get("upgrade", False),
        not_before=due(plain.get("at"), plain.get("delay"), now),
        inherits=given.get("inherit_approvals") is True or (given.get("inherit_approvals") is None and place.inherit_approvals),
        fields={name: value for name, value in plain.items() if name in FIELDS},
    )


def check_made(value: Any, field: str) -> Request:
    """Checks that a value is a request made by this module, and returns it."""
    if not isinstance(value, Request):
        raise wrong(field, "a Request, which door.request makes", value)
    return value


# -- arguments of a runtime ---------------------------------------------------------------------------


def has(field: str, value: object, *verbs: str) -> None:
    """Checks that an object has the methods of its port.

    Raises:
        InvalidInput: it lacks one.
    """
    missing = [name for name in verbs if not callable(getattr(value, name, None))]
    if missing or isinstance(value, type):
        raise wrong(field, f"an object with {', '.join(verbs)}", value)


def check_store(value: object) -> None:
    """Checks that a value given as a store, if it is not a URL, has the methods of a store.

    Raises:
        InvalidInput: it is not a store.
    """
    if any(not callable(getattr(value, name, None)) for name in ("commit", "load", "claim")) or isinstance(value, type):
        path = f"sqlite:///{os.fspath(value)}" if isinstance(value, os.PathLike) else ""
        raise wrong("store_url", "a URL, such as sqlite:///runs.db, or a store", value, path)


def several(field: str, given: Iterable[T], kinds: tuple[type, ...], hint: str = "") -> list[T]:
    """Checks that all values are of these classes, and returns them. ``hint``: how to make one.

    Raises:
        InvalidInput: one is not.
    """
    wanted = f"a list of {' and '.join(kind.__name__ for kind in kinds)}"
    if isinstance(given, (str, bytes, *kinds)) or not isinstance(given, Iterable):
        raise wrong(field, wanted, given, f"{field}=[…]")
    found = list(given)
    for n, each in enumerate(found):
        if not isinstance(each, kinds):
            raise wrong(f"{field}[{n}]", " or ".join(f"a {kind.__name__}" for kind in kinds), each, hint)
    return found


def check_skills(given: Iterable[T], kinds: tuple[type, ...]) -> list[T]:
    """Checks that these are skills, and that no two have the same id and version.

    Raises:
        InvalidInput: one is not a skill. UsageError: two have the same id and version, so the second would replace the first.
    """
    found = several("skills", given, kinds, '@flow("id") makes a skill of an async function')
    programs: dict[tuple[str, str], Any] = {}
    for skill in found:
        program = getattr(skill, "program")  # noqa: B009 - every kind of skill has one
        if programs.setdefault((program.id, program.version), program) is not program:
            raise UsageError(f"two skills are called {program.id!r} in version {program.version!r}", hint="give one of them another id or another version")
    return found


def event(value: Any, field: str) -> Any:
    """Checks that a value is an event that a caller can set.

    Raises:
        InvalidInput: it is not an event.
    """
    if not isinstance(value, asyncio.Event):
        raise wrong(field, "an asyncio.Event", value)
    return value


def transports(given: Any) -> dict[str, Any]:
    """Checks what sends the intents of each type: a function of payload and key, or an object with a method ``send``.

    Raises:
        InvalidInput: a type is not a text, or its transport cannot send.
    """
    if given is None:
        return {}
    found = dict(bounds.mapping(given, "transports"))
    for kind, transport in found.items():
        send = getattr(transport, "send", transport)
        if isinstance(transport, type) or not is_function(send) or not _takes_two(send):
            raise wrong(f"transports[{kind!r}]", "a function of (payload, key), or an object with send(payload, key)", transport)
    return found


def _takes_two(send: Callable[..., Any]) -> bool:
    try:
        inspect.signature(send).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True


# -- commands -----------------------------------------------------------------------------------------


def payload(value: Any, field: str = "payload") -> bytes:
    """Encodes the payload of a signal, an answer or a decision.

    Raises:
        Unserializable: it names the path of the field. TooLarge.
    """
    return bounds.check_size(canon.pack(value, field)[1], field)


def decision(
    wait_id: str, action: str, *, actor: str, feedback: str | None, note: str | None, given: Any, at: int, resume: bool = True, force: bool = False, via: str | None = None
) -> cmd.Decide:
    """Makes a decision about a wait; ``given`` is its payload, ``...`` for none.

    Raises:
        InvalidInput, Unserializable, TooLarge: they name the argument.
    """
    return cmd.Decide(
        wait_id=bounds.text(wait_id, "wait_id"),
        action=bounds.text(action, "action"),
        actor=bounds.who(actor, "actor"),
        feedback=None if feedback is None else bounds.KNOWN["feedback"](feedback, "feedback"),
        note=None if note is None else bounds.note(note, "note"),
        payload=None if given is ... else payload(given),
        at=at,
        resume=bounds.flag(resume, "resume"),
        force=bounds.flag(force, "force"),
        via=VIA.get() if via is None else bounds.who(via, "via"),
    )


def signal(name: str, given: Any, *, key: str | None, actor: str, fresh: str) -> cmd.Signal:
    """Makes a signal; ``fresh`` is its key if the caller gave none.

    Raises:
        InvalidInput, Unserializable, TooLarge: they name the argument.
    """
    return cmd.Signal(
        name=bounds.check_signal(name, "name"),
        signal_key=fresh if key is None else bounds.text(key, "key"),
        payload=payload(given),
        actor=bounds.who(actor, "actor"),
        via=VIA.get(),
    )


def cancel(*, actor: str, reason: str, nonce: str) -> cmd.Cancel:
    """Makes a request that a run ends.

    Raises:
        InvalidInput, TooLarge: they name the argument.
    """
    return cmd.Cancel(actor=bounds.who(actor, "actor"), reason=bounds.note(reason, "reason"), nonce=nonce, via=VIA.get())


__all__ = ["FIELDS", "FORK", "FORKED", "KEPT", "OPTIONS", "REPLAY", "OnBusy", "Request", "Wish", "cancel", "check_made", "decision", "due", "event", "fork", "has", "inputs", "payload", "request", "several", "signal", "transports"]

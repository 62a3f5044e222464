"""The door: the only maker of requests and commands, for Python, shell, ports and HTTP (§3.6).

Theory of operation. What a caller hands in comes either as arguments of a public verb, which ``core.arguments`` has met, or as
a mapping of options: of a child, of a schedule, of a port. Both are made into one frozen, typed, bounded value here, before
anything is decided or read. Behind the door nobody looks at what a caller gave any more.
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

from holdfast.core import bounds, canon
from holdfast.core import commands as cmd
from holdfast.core.bounds import wrong
from holdfast.core.effects import Effect, ReplayPolicy, as_policy
from holdfast.core.environments import Environment
from holdfast.core.errors import InvalidInput, UsageError
from holdfast.core.misused import is_function

T = TypeVar("T")


class OnBusy(StrEnum):
    """What a new run does whose lane is busy (§5.13): wait its turn; be refused; end at once, on record; or take the place of those that wait."""

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


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller asks for when a run is created; None means the default of §3.3."""

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
"""What a caller may say about a new run, and what each may be."""
USUAL = {name: field.default for field in msgspec.structs.fields(Request) if (name := field.name) in OPTIONS and field.default is not msgspec.NODEFAULT}
"""The value of each where a caller says nothing of it. It need not be looked at."""
ANY = Request()  # with nothing said
KEPT = tuple(name for name in OPTIONS if name not in ("key", "on_busy"))
"""What a schedule says about its runs."""


def request(given: Mapping[str, Any], *, where: str, due: int | None = None, **own: Any) -> Request:
    """A request for a new run, of the options a caller gave; ``own``: what the engine says of it.

    Raises:
        UnknownOption: by its name. InvalidInput, TooLarge: by the name of the option.
    """
    said = _find_said(given)
    return msgspec.convert({**bounds.admit(said, OPTIONS, where), "not_before": due, **own}, Request) if said or own or due is not None else ANY


def _find_said(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a caller gave, but for those with the value that they have anyway."""
    said = itertools.compress(given.items(), map(operator.is_not, given.values(), map(USUAL.get, given)))  # of many options most callers give none
    return {name: value for name, value in said if value is not None}


def submission(given: Mapping[str, Any], input: Any, *, where: str, due: int | None = None) -> tuple[Request, Mapping[str, Any]]:
    """A request for a new run, of the options a caller gave, and the input that goes with it.

    Raises:
        UnknownOption: by its name. InvalidInput, TooLarge: by the name of the option, or of the input.
    """
    said = _find_said(given)
    admitted, values = bounds.admit(said, OPTIONS, where), {} if input is None else bounds.mapping(input, "inputs")
    return msgspec.convert({**admitted, "not_before": due}, Request) if said or due is not None else ANY, values


def inputs(value: Any) -> Mapping[str, Any]:
    """The input of a run: names to values; nothing is an empty one.

    Raises:
        InvalidInput: it is something else.
    """
    return {} if value is None else bounds.mapping(value, "inputs")


def due(at: dt.datetime | None, delay: dt.timedelta | float | None, now: int) -> int | None:
    """When a run begins that was asked for with ``at=`` or ``delay=``; None for at once.

    Raises:
        InvalidInput: both were given, or one is none.
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
    """What somebody wants out of a source run; None means as the source had it. ``missing``: what the source did, and took
    back; ``inherits``: what was approved there counts here (§5.8)."""

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
"""What a caller may say about a fork, and what each may be; ``FIELDS`` become fields of the new run."""
LEFT_OUT = {"reason": "", "upgrade": False}
"""What an option is where a caller says nothing; None for all others."""


def fork(given: Mapping[str, Any], place: Environment, now: int, *, checkpoint_id: str | None, step: int | str | None, actor: str) -> Wish:
    """What somebody wants a fork to be. Whether this place lets them is asked first.

    Raises:
        RestrictedOption: the place does not allow an option. UnknownOption: nobody knows it. InvalidInput, TooLarge: by its name.
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
    """A request that this door has made."""
    if not isinstance(value, Request):
        raise wrong(field, "a Request, which door.request makes", value)
    return value


# -- what a runtime is made of ------------------------------------------------------------------------


def has(field: str, value: object, *verbs: str) -> None:
    """Holds an object against the verbs of its port.

    Raises:
        InvalidInput: it lacks one.
    """
    missing = [name for name in verbs if not callable(getattr(value, name, None))]
    if missing or isinstance(value, type):
        raise wrong(field, f"an object with {', '.join(verbs)}", value)


def check_store(value: object) -> None:
    """Holds what names a store, and is no URL, against the port of stores.

    Raises:
        InvalidInput: it is no store.
    """
    if any(not callable(getattr(value, name, None)) for name in ("commit", "load", "claim")) or isinstance(value, type):
        path = f"sqlite:///{os.fspath(value)}" if isinstance(value, os.PathLike) else ""
        raise wrong("store_url", "a URL, such as sqlite:///runs.db, or a store", value, path)


def several(field: str, given: Iterable[T], kinds: tuple[type, ...], hint: str = "") -> list[T]:
    """Values of these classes. ``hint``: how one is made.

    Raises:
        InvalidInput: one is none.
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
    """Skills of which no two have one id and one version.

    Raises:
        InvalidInput: one is no skill. UsageError: a second one would take the place of the first.
    """
    found = several("skills", given, kinds, '@flow("id") makes a skill of an async function')
    programs: dict[tuple[str, str], Any] = {}
    for skill in found:
        program = getattr(skill, "program")  # noqa: B009 - every kind of skill has one
        if programs.setdefault((program.id, program.version), program) is not program:
            raise UsageError(f"two skills are called {program.id!r} in version {program.version!r}", hint="give one of them another id or another version")
    return found


def event(value: Any, field: str) -> Any:
    """What somebody sets to say that it is time.

    Raises:
        InvalidInput: it is none.
    """
    if not isinstance(value, asyncio.Event):
        raise wrong(field, "an asyncio.Event", value)
    return value


def transports(given: Any) -> dict[str, Any]:
    """What sends the intents of each type: a function of payload and key, or an object that has ``send``.

    Raises:
        InvalidInput: a type that no text names, or something that nothing can be sent through.
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
    except ValueError:  # built in, and it does not say
        return True
    return True


# -- commands -----------------------------------------------------------------------------------------


def payload(value: Any, field: str = "payload") -> bytes:
    """What a signal, an answer or a decision carries.

    Raises:
        Unserializable: by the path of the field. TooLarge.
    """
    return bounds.check_size(canon.pack(value, field)[1], field)


def decision(
    wait_id: str, action: str, *, actor: str, feedback: str | None, note: str | None, given: Any, at: int, resume: bool = True, force: bool = False, via: str | None = None
) -> cmd.Decide:
    """A decision about a wait; ``given`` is its payload, ``...`` for none.

    Raises:
        InvalidInput, Unserializable, TooLarge: by the name of what was given.
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
        via="" if via is None else bounds.who(via, "via"),
    )


def signal(name: str, given: Any, *, key: str | None, actor: str, fresh: str) -> cmd.Signal:
    """A signal; ``fresh`` is its key where the caller gave none.

    Raises:
        InvalidInput, Unserializable, TooLarge: by the name of what was given.
    """
    return cmd.Signal(
        name=bounds.check_signal(name, "name"),
        signal_key=fresh if key is None else bounds.text(key, "key"),
        payload=payload(given),
        actor=bounds.who(actor, "actor"),
    )


def cancel(*, actor: str, reason: str, nonce: str) -> cmd.Cancel:
    """A wish that a run ends.

    Raises:
        InvalidInput, TooLarge: by the name of what was given.
    """
    return cmd.Cancel(actor=bounds.who(actor, "actor"), reason=bounds.note(reason, "reason"), nonce=nonce)


__all__ = ["FIELDS", "FORK", "FORKED", "KEPT", "OPTIONS", "REPLAY", "OnBusy", "Request", "Wish", "cancel", "check_made", "decision", "due", "event", "fork", "has", "inputs", "payload", "request", "several", "signal", "transports"]

"""The request for a tool's call that a runner elsewhere carries out, and the runner's answer (§11.3).

A request is an intent of the type ``tool@WORKSPACE``; its answer is a signal to the run that asked. Both are decoded and checked here before
their contents are used. The request names a tool and its arguments; only the runner determines which command that is.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from holdfast.core import canon
from holdfast.core.errors import ErrorValue, InvalidInput

TYPE = "tool@"
INLINE = 8 * 1024  # an outcome of more bytes is sent as a blob
T = TypeVar("T")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A run's request for one call of a tool. ``effect_id`` and ``key`` are empty if the tool only reads; ``place`` is unique to this request."""

    place: str
    tool: str
    argv: tuple[str, ...]
    step_id: str
    attempt: int
    cwd: str = ""
    input: bytes = b""
    env: dict[str, str] = {}
    paths: tuple[str, ...] = ()
    timeout_us: int = 60_000_000
    effect_id: str = ""
    key: str = ""


class Word(msgspec.Struct, frozen=True):
    """A person's ruling on a request, in place of a runner's answer: ``action`` is the ruling on its intent."""

    action: str
    actor: str
    reason: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request: the packed ``outcome``, here or in the ``blob`` of that name; or an ``error``; or the reason why it was ``lost``, so that
    its outcome is unknown. ``owner`` is the runner; ``closed``: no process can still be doing it. With ``word`` a person has answered, and ``owner`` is
    the last runner, if any."""

    owner: str
    outcome: bytes = b""
    blob: str = ""
    error: ErrorValue | None = None
    lost: str = ""
    closed: bool = True
    word: Word | None = None


def type_of(workspace: str) -> str:
    """Returns the type of the intents for the runners of a workspace."""
    return f"{TYPE}{workspace}"


def owner_of(type: str, place: str) -> str:
    """Returns the owner of an attempt until a runner has answered: the request itself."""
    return f"{type}#{place}"


def place_of(owner: str) -> str | None:
    """Returns the place of the request that owns an attempt, or None if a process owns it."""
    return owner.rpartition("#")[2] if owner.startswith(TYPE) else None


def place_in(intent_id: str) -> str:
    """Returns the place of the request in an intent. It is taken from the intent's id, because the intent's payload may be unreadable."""
    return intent_id.rpartition("!")[2].partition(".")[0]


def plain(value: Asked | Answer) -> dict[str, Any]:
    """Returns the value in its stored form."""
    found: dict[str, Any] = msgspec.to_builtins(value, builtin_types=(bytes,))
    return found


def read_request(payload: Any) -> Asked:
    """Returns the request in an intent's payload.

    Raises:
        InvalidInput: the payload is not a request.
    """
    return _read(payload, Asked, "the request of a tool's call")


def read_answer(payload: bytes | None) -> Answer:
    """Returns the answer in a signal's payload.

    Raises:
        InvalidInput: the payload is not an answer.
    """
    return _read(None if payload is None else canon.thaw(canon.decode(payload)), Answer, "the answer of a tool runner")


def _read(value: Any, kind: type[T], what: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as e:
        raise InvalidInput(f"{what} cannot be read: {e}") from None


__all__ = ["INLINE", "TYPE", "Answer", "Asked", "Word", "owner_of", "place_in", "place_of", "plain", "read_answer", "read_request", "type_of"]

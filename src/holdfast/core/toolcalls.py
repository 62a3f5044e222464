"""A tool's call as it is asked of a runner elsewhere, and what the runner answers (§11.3).

A request is an intent of the type ``tool@WORKSPACE``; its answer is a signal to the run that asked. Both are decoded here from what a store
holds, and nothing of them is believed before. The request names a tool and its arguments; which command that is, only the runner says.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from holdfast.core import canon
from holdfast.core.errors import ErrorValue, InvalidInput

TYPE = "tool@"
INLINE = 8 * 1024  # an outcome of more bytes travels as a blob
T = TypeVar("T")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a tool, as a run asks for it. ``effect_id`` and ``key`` are empty where the tool only reads; ``place`` is unique to this request."""

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
    """What a person has said about a request, in the place of a runner's answer: ``action`` is the ruling about its intent."""

    action: str
    actor: str
    reason: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a request: the packed ``outcome``, here or as the ``blob`` of that name, or an ``error``; or it was ``lost``, for that reason, and nobody knows.
    ``owner`` is the runner; ``closed``: nobody can still be at it. With ``word`` a person has answered, and ``owner`` is the last runner, if there was one."""

    owner: str
    outcome: bytes = b""
    blob: str = ""
    error: ErrorValue | None = None
    lost: str = ""
    closed: bool = True
    word: Word | None = None


def type_of(workspace: str) -> str:
    """The type of the intents that ask the runners of a workspace."""
    return f"{TYPE}{workspace}"


def owner_of(type: str, place: str) -> str:
    """Who has an attempt until a runner has answered: the request."""
    return f"{type}#{place}"


def place_of(owner: str) -> str | None:
    """The request that has an attempt; None where a process has it."""
    return owner.rpartition("#")[2] if owner.startswith(TYPE) else None


def place_in(intent_id: str) -> str:
    """The place of the request that an intent is. It is told by the intent's id, for what the intent carries may be unreadable."""
    return intent_id.rpartition("!")[2].partition(".")[0]


def plain(value: Asked | Answer) -> dict[str, Any]:
    """As it is stored."""
    found: dict[str, Any] = msgspec.to_builtins(value, builtin_types=(bytes,))
    return found


def read_request(payload: Any) -> Asked:
    """The request in an intent's payload.

    Raises:
        InvalidInput: it is none.
    """
    return _read(payload, Asked, "the request of a tool's call")


def read_answer(payload: bytes | None) -> Answer:
    """The answer in a signal's payload.

    Raises:
        InvalidInput: it is none.
    """
    return _read(None if payload is None else canon.thaw(canon.decode(payload)), Answer, "the answer of a tool runner")


def _read(value: Any, kind: type[T], what: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as e:
        raise InvalidInput(f"{what} cannot be read: {e}") from None


__all__ = ["INLINE", "TYPE", "Answer", "Asked", "Word", "owner_of", "place_in", "place_of", "plain", "read_answer", "read_request", "type_of"]

"""Removes from a receiver's answer the link that it was sent, before the answer is stored (§5.9).

A receiver may repeat in its answer or in its refusal what it was sent. The store contains only the hash of a link's token, and people who may
read messages must not be able to answer with a link. What is stored has ``{wait_link}`` in place of the link.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core import canon
from holdfast.core.errors import ErrorValue, HoldfastError
from holdfast.core.intents import WAIT_LINK, Doubtful, Failed, Outcome, Refused
from holdfast.outbox.transports import Further, Given, Row, Signal

LEFT_OUT = "the answer repeats the link that was sent, so it is not kept"


class Said(msgspec.Struct, frozen=True):
    """A receiver's answer, and the link that it was sent, if there was one."""

    answer: Any = None
    link: str | None = None


def pack(answer: Any) -> bytes:
    """Encodes an answer for the store; an answer that cannot be stored is replaced by its description."""
    if answer is None:
        return b""
    try:
        return canon.pack(answer, "answer")[1]
    except HoldfastError:
        text = repr(answer)[:2000].replace("\0", "\ufffd").encode("utf-8", "replace").decode()
        return canon.pack(text, "answer")[1]


def pack_without(answer: Any, link: str | None) -> bytes:
    """Encodes an answer for the store, without a link."""
    data = pack(answer)
    if link is None or _token(link).encode() not in data:
        return data
    data = pack(leave_out(canon.thaw(canon.decode(data)), link))
    return data if _token(link).encode() not in data else pack(LEFT_OUT)


def leave_out(value: Any, link: str | None) -> Any:
    """Returns a value of plain types without a link."""
    if link is None:
        return value
    if isinstance(value, str):
        return value.replace(link, WAIT_LINK).replace(_token(link), WAIT_LINK)
    if isinstance(value, bytes):
        return value.replace(link.encode(), WAIT_LINK.encode()).replace(_token(link).encode(), WAIT_LINK.encode())
    if isinstance(value, Mapping):
        return {leave_out(k, link): leave_out(v, link) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [leave_out(v, link) for v in value]
    return value


def tell_without(outcome: Outcome, link: str | None) -> Outcome:
    """Returns the outcome of a failed sending without a link."""
    match outcome:
        case Refused(error) | Failed(error) | Doubtful(error) if link is not None:
            return replace(outcome, error=_error_without(error, link))
    return outcome


def make_without(given: Given, link: str | None) -> Given:
    """Returns what a transport's hook has returned, without a link."""
    match given:
        case Row(key=key, data=data):
            return replace(given, key=leave_out(key, link), data=leave_out(data, link))
        case Signal(payload=payload) | Further(payload=payload):
            return replace(given, payload=leave_out(payload, link))
    return given


def _error_without(error: ErrorValue, link: str) -> ErrorValue:
    return replace(error, message=leave_out(error.message, link), hint=leave_out(error.hint, link))


def _token(link: str) -> str:
    """Returns the token of a link, which opens it under any base URL."""
    return link.rpartition("/")[2]


__all__ = ["Said", "leave_out", "make_without", "pack_without", "tell_without"]

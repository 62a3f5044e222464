"""A recorded call, and its name for people: the function, and in a fan-out a short form of the item."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from holdfast.core import canon
from holdfast.core.envelopes import legible
from holdfast.core.errors import HoldfastError
from holdfast.core.masks import mask


class Called(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The name of a call for people: its function's ``name``, and, within an item of a map, a short form of that ``item``."""

    name: str
    item: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({legible(self.item)})" if self.item else self.name


class Call(msgspec.Struct, frozen=True, gc=False):
    """One call at its place. ``digest`` distinguishes calls of one name by their arguments; ``opens``: it has calls beneath it; ``fn`` is the function that it calls."""

    path: str
    name: str
    kind: str
    digest: str = ""
    args: tuple[Any, ...] = ()
    opens: bool = False
    called: Called = Called("")
    fn: Callable[..., Any] | None = None

    @property
    def telling(self) -> bool:
        """Whether its digest covers all its arguments."""
        return bool(self.digest) or not self.args


MOST_BRIEF = 40
"""The most characters of a value that are shown beside a name."""


def brief(value: Any, secret: Collection[str] = ()) -> str:
    """Returns a short form of a value: text unchanged, the entries of a mapping, anything else as JSON; empty if the value cannot be shown."""
    try:
        return _short(msgspec.to_builtins(value), secret)
    except (TypeError, ValueError, RecursionError):
        pass  # the type is registered only with Holdfast, or is unknown
    try:
        return _short(canon.reveal(canon.encode(canon.admit(value))), secret)
    except HoldfastError:
        return ""


def brief_of(data: bytes, secret: Collection[str] = ()) -> str:
    """Returns the short form of a stored value."""
    try:
        return _short(canon.reveal(data), secret)
    except HoldfastError:
        return ""


def _short(plain: Any, secret: Collection[str]) -> str:
    if secret:
        plain = mask(secret, ()).value(plain)
    text = ", ".join(f"{k}={_spell(v)}" for k, v in plain.items()) if isinstance(plain, Mapping) else _spell(plain)
    text = " ".join(text[: 4 * MOST_BRIEF].split())
    return text if len(text) <= MOST_BRIEF else text[: MOST_BRIEF - 1] + "…"


def _spell(plain: Any) -> str:
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, default=str)


__all__ = ["Call", "Called", "brief", "brief_of"]

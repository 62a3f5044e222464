"""A recorded call, and what it is called where people read of it: its function, and in a fan-out the item, in a few characters."""

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
    """A call: its function's ``name``, and within an item of a map a short form of that ``item``."""

    name: str
    item: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({legible(self.item)})" if self.item else self.name


class Call(msgspec.Struct, frozen=True, gc=False):
    """One call at its place. ``digest`` tells calls of one name apart by their arguments; a call that ``opens`` has calls beneath it; ``fn`` is the function that it calls."""

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
        """Whether its digest says all that it is given."""
        return bool(self.digest) or not self.args


MOST_BRIEF = 40
"""So many characters of a value fit beside a name."""


def brief(value: Any, secret: Collection[str] = ()) -> str:
    """A value in so few characters that it fits beside a name: text as it is, of a mapping its entries, all else as JSON; empty where it cannot be shown."""
    try:
        return _short(msgspec.to_builtins(value), secret)
    except (TypeError, ValueError, RecursionError):
        pass  # of a type that is registered with Holdfast alone, or of none that is known
    try:
        return _short(canon.reveal(canon.encode(canon.admit(value))), secret)
    except HoldfastError:
        return ""


def brief_of(data: bytes, secret: Collection[str] = ()) -> str:
    """The same of a stored value."""
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

"""JSON from outside, read as strictly as JSON can be (§3.6)."""

from __future__ import annotations

import json
from typing import Any


def json_of(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is none, or a name stands twice in one of its objects, or it holds a number that JSON has not.
    """
    return json.loads(text, parse_constant=_constant, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names differ: of two values under one name, nobody knows which was meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"the name {twice!r} occurs twice")
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


__all__ = ["json_of"]

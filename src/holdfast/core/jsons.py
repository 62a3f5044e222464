"""Reads JSON from outside strictly (§3.6)."""

from __future__ import annotations

import json
from typing import Any


def json_of(text: str | bytes) -> Any:
    """Returns the value of a JSON text.

    Raises:
        ValueError: the text is not JSON, an object has a name twice, or a number is not one that JSON allows.
    """
    return json.loads(text, parse_constant=_constant, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object; refuses it if a name occurs twice, because it would be unclear which value was meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"the name {twice!r} occurs twice")
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


__all__ = ["json_of"]

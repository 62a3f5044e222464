"""Hiding what is marked secret from those who look (§13.5). What nodes see, and what a resume needs, is never masked.

A run says which of its channels are secret. Where a value of the program's is shown, entries of those names are hidden; and
wherever a text that stands in such a channel appears (a prompt, an error, a payload), it is hidden there too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

HIDDEN = "•••"
SHORTEST = 4
"""A shorter text is hidden by its name only: in the midst of others it would be found everywhere."""

VALUES = frozenset({"input", "payload", "result", "value", "values", "show", "default", "writes", "pending_writes"})
"""Fields of what is shown that hold values of the program's, not our own."""


class Mask(msgspec.Struct, frozen=True):
    """``names`` are secret channels, ``texts`` what stands in them, the longest first."""

    names: frozenset[str] = frozenset()
    texts: tuple[str, ...] = ()

    def text(self, shown: str) -> str:
        for text in self.texts:
            shown = shown.replace(text, HIDDEN)
        return shown

    def value(self, shown: Any) -> Any:
        """A value of the program's: by name and by text."""
        return self._walk(shown, True) if self.names else shown

    def record(self, shown: Any) -> Any:
        """A record of ours: by text, and by name where it holds values of the program's."""
        return self._walk(shown, False) if self.names else shown

    def _walk(self, shown: Any, named: bool) -> Any:
        match shown:
            case str():
                return self.text(shown)
            case Mapping():
                return {k: self._entry(shown, k, v, named) for k, v in shown.items()}
            case list() | tuple():
                return [self._walk(v, named) for v in shown]
        return shown

    def _entry(self, holder: Mapping[Any, Any], key: Any, value: Any, named: bool) -> Any:
        if named and key in self.names:
            return HIDDEN
        if not named and key == "payload" and holder.get("name") in self.names:
            return HIDDEN  # a signal is a write to the channel of its name (§5.11)
        return self._walk(value, named or key in VALUES)


NOTHING = Mask()


def mask(names: Iterable[str], states: Iterable[Mapping[str, Any]]) -> Mask:
    """The mask of a run: its secret channels, and every text that ever stood in them."""
    secret = frozenset(names)
    found = {text for state in states for name in secret if name in state for text in _texts(state[name])}
    return Mask(secret, tuple(sorted((t for t in found if len(t) >= SHORTEST), key=lambda t: (-len(t), t))))


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for inner in value.values():
                yield from _texts(inner)
        case list() | tuple():
            for inner in value:
                yield from _texts(inner)


__all__ = ["HIDDEN", "NOTHING", "Mask", "mask"]

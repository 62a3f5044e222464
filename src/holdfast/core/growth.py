"""What channels weigh as they grow, and the bound that they may not pass (§14.3).

What one write adds is weighed, and what it pushes out; never what is there already, but once. As long as all that is stored of a run since
its last whole checkpoint, and that one, are lighter than the bound, nothing needs to be weighed at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.core import canon
from holdfast.core.bounds import GROWN_BYTES, VALUE_BYTES
from holdfast.core.channels import LAST, MISSING, TOPIC
from holdfast.core.errors import TooLarge
from holdfast.core.graph import Program

ROOM = GROWN_BYTES - VALUE_BYTES
"""A run of which less is stored has no channel that a single write could bring beyond the bound."""
_REPLACED = frozenset({LAST, "override", "custom"})


class Weights:
    """The weights of one run's growing channels, each with the value it was taken of. ``weighed``: how many bytes were looked at."""

    __slots__ = ("_known", "weighed")

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, int]] = {}
        self.weighed = 0

    def hold(self, program: Program, before: Mapping[str, Any], writes: Iterable[Mapping[str, Any]], after: Mapping[str, Any] | None = None) -> None:
        """Holds what channels become by these writes against their bound. ``after``: the values with them, if they stand.

        Raises:
            TooLarge: naming the channel.
        """
        by_channel: dict[str, list[Any]] = {}
        for each in writes:
            for name, value in each.items():
                if name in program.channels and name not in program.lasting:
                    by_channel.setdefault(name, []).append(value)
        for name, values in by_channel.items():
            weight = self._grown(program.channels[name].reducer.tag, name, before.get(name, MISSING), values, after)
            if weight > GROWN_BYTES:
                raise TooLarge(f"{name}, grown", weight, GROWN_BYTES, hint="keep fewer: window(n), or files whose names the channel holds")
            if after is not None and name in after:
                self._known[name] = (after[name], weight)

    def _grown(self, tag: str, name: str, old: Any, writes: list[Any], after: Mapping[str, Any] | None) -> int:
        if tag in _REPLACED:
            return self._of(after[name] if after is not None and name in after else writes[-1])
        was = 0 if old is MISSING or old is None or tag == TOPIC else self.weight(name, old)
        if tag == "merge":
            new: dict[str, Any] = {}
            for value in writes:
                new.update(value)
            return was + self._of(new) - sum(self._of({k: old[k]}) for k in new if was and k in old)
        items = [item for value in writes for item in (value if isinstance(value, list) else [value])]
        if tag.startswith("window:"):
            had = 0 if old is MISSING or old is None else len(old)
            out = max(had + len(items) - int(tag[7:]), 0)
            if had:
                was -= self._of(old[:out])
            items = items[max(out - had, 0) :]
        return was + self._of(items)

    def weight(self, name: str, value: Any) -> int:
        """What a channel's value weighs; weighed once, as long as it is the same value."""
        known = self._known.get(name)
        if known is None or known[0] is not value:
            known = self._known[name] = (value, self._of(value))
        return known[1]

    def _of(self, value: Any) -> int:
        """What a value weighs, of a list or a dict what it holds."""
        head = 0
        if isinstance(value, dict | list):
            head = 1 if len(value) < 16 else 3 if len(value) < 2**16 else 5
            value = canon.FrozenDict(value) if isinstance(value, dict) else canon.FrozenList(value)
        size = len(canon.encode(value)) - head
        self.weighed += size
        return size


__all__ = ["ROOM", "Weights"]

"""The events of one commit, with values that are needed again and again."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.events import Event, Fact, Unknown


class Recorded(tuple[Event, ...]):
    """Events as ``run.record`` makes them: numbered in sequence, with one time, actor and fence. ``facts`` are their facts, in the same order, and
    ``kinds`` the types of these facts. Code that replaces events makes a plain tuple, so ``facts`` never differs from the events."""

    facts: Sequence[Fact | Unknown]
    kinds: frozenset[type]


__all__ = ["Recorded"]

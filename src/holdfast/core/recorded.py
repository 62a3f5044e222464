"""The events of one commit, with what is asked of many of them again and again."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.events import Event, Fact, Unknown


class Recorded(tuple[Event, ...]):
    """Events as ``run.record`` makes them: numbered one after the other, with one time, actor and fence. ``facts`` are theirs, in their order, and
    ``kinds`` the kinds of these. Whoever puts other events in their place makes a plain tuple, and no one is told of the old facts."""

    facts: Sequence[Fact | Unknown]
    kinds: frozenset[type]


__all__ = ["Recorded"]

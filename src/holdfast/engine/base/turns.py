"""The calls of one run that use one limit in this process, those that hold it and those that wait for it (§10.11)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Users:
    """``inside`` counts the calls that hold the limit. Of those that wait, the one that has the ``turn`` asks the store."""

    __slots__ = ("count", "inside", "turn")

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.inside = self.count = 0


class Turns:
    """Who takes turns in this process, by the run and the limit."""

    def __init__(self) -> None:
        self._users: dict[tuple[str, str], Users] = {}

    @contextmanager
    def take(self, run_id: str, limit: str) -> Iterator[Users]:
        """The calls of a run that use a limit, one more for as long as this lasts."""
        place = run_id, limit
        users = self._users.get(place) or self._users.setdefault(place, Users())
        users.count += 1
        try:
            yield users
        finally:
            users.count -= 1
            if not users.count:
                del self._users[place]


__all__ = ["Turns", "Users"]

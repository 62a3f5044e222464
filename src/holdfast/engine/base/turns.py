"""The calls of one run that use one limit in this process: those that hold it and those that wait for it (§10.11)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Users:
    """``inside``: how many calls hold the limit. Of the waiting calls, the one that has the ``turn`` asks the store."""

    __slots__ = ("count", "inside", "turn")

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.inside = self.count = 0


class Turns:
    """The users of limits in this process, by run and limit."""

    def __init__(self) -> None:
        self._users: dict[tuple[str, str], Users] = {}

    @contextmanager
    def take(self, run_id: str, limit: str) -> Iterator[Users]:
        """Registers one more call of a run that uses a limit, for the duration of the block."""
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

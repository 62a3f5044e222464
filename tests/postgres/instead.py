"""``pytest --store postgres``: what a test opens by URL in memory or in SQLite is an empty PostgreSQL database instead.

Each store in memory is a database of its own, each SQLite file another, and the same file the same one, for as long as the test lasts.
Stores that a test makes by their class stay what they are: they are what it is about, or it reaches into them.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from holdfast import runtime, shelf
from holdfast.ports import Store
from holdfast.stores import open_url
from tests.postgres.server import shared


class Instead:
    """The databases of one test, by what they stand for."""

    def __init__(self) -> None:
        self._made: dict[str, str] = {}

    def url(self, named: str) -> str:
        """The database for a URL; itself where it names neither memory nor SQLite."""
        if named in ("memory:", "memory://"):
            named = f"memory {len(self._made)}"
        elif named.startswith("sqlite:///") and "\0" not in named and ":memory:" not in named and "?" not in named and named != "sqlite:///":
            named = os.path.abspath(named.removeprefix("sqlite:///"))
        else:
            return named
        if named not in self._made:
            self._made[named] = shared().fresh(f"instead{len(self._made)}")
        return self._made[named]

    def open(self, url: str, *, now: Callable[[], int] | None = None) -> Store:
        return open_url(self.url(url), now=now)


def stand_in(monkeypatch: pytest.MonkeyPatch) -> Instead:
    """From now on, in this test, every store opened by URL is one of these databases."""
    made = Instead()
    for module in (runtime, shelf):
        monkeypatch.setattr(module, "open_url", made.open)
    return made


__all__ = ["Instead", "stand_in"]

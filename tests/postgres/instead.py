"""``pytest --store postgres``: what a test opens by URL in memory or in SQLite is an empty PostgreSQL database instead.

Each store in memory is a database of its own, each SQLite file another, and the same file the same one, for as long as the test lasts.
Stores that a test makes by their class stay what they are: they are what it is about, or it reaches into them. So does what another process opens,
and what a test opens that is marked ``one_store``, with the reason: it is about SQLite's statements, a file, or the clock of a machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import apsw
import pytest

from holdfast import runtime, shelf
from holdfast.ports import Store
from holdfast.stores import open_url
from tests.postgres.server import shared

OtherStore = Callable[[str], str]
"""Gives the URL that stands for another in this test: for what a test opens by other ways than a runtime's, commands for one."""

MARK = "one_store"


class Instead:
    """The databases of one test, by what they stand for."""

    def __init__(self) -> None:
        self._made: dict[str, str] = {}
        self._hooks = list(apsw.connection_hooks)

    @property
    def made(self) -> tuple[str, ...]:
        """The URLs of the databases that have stood for something."""
        return tuple(self._made.values())

    def url(self, named: str) -> str:
        """The database for a URL; itself where it names neither memory nor SQLite."""
        if named in ("memory:", "memory://"):
            named = f"memory {len(self._made)}"
        elif named.startswith("sqlite:///") and "\0" not in named and ":memory:" not in named and "?" not in named and named != "sqlite:///":
            named = os.path.abspath(named.removeprefix("sqlite:///"))
        else:
            return named
        assert apsw.connection_hooks == self._hooks, f"it counts what SQLite does, which is nothing while PostgreSQL stands in for it: mark it {MARK}"
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


def kept_for(marks: Iterable[pytest.Mark]) -> str | None:
    """Why a test with these marks is run on the store that it names, whichever is asked for; None where nothing keeps it there.

    Raises:
        ValueError: it is marked so without a reason.
    """
    reason = None
    for mark in marks:
        if mark.name == MARK:
            match mark.args:
                case (str(reason),) if reason.strip() and not mark.kwargs:
                    pass
                case _:
                    raise ValueError(f"say in one sentence why the test is kept to the store that it names: @pytest.mark.{MARK}(...)")
    return reason


__all__ = ["MARK", "Instead", "OtherStore", "kept_for", "stand_in"]

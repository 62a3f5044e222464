"""Counts the statements that SQLite runs, by their first word: what a path costs, on a machine however busy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import apsw


def _every(sql: str) -> bool:
    return True


@contextmanager
def counting_statements(counts: Callable[[str], bool] = _every) -> Iterator[Counter[str]]:
    """Every statement that any connection opened meanwhile runs; one that is run for many rows is told for each. ``counts``: which of them."""
    found: Counter[str] = Counter()

    def trace(_: Any, sql: str, __: Any) -> bool:
        if counts(sql):
            found[sql.split(None, 1)[0].rstrip(";").upper()] += 1
        return True

    def hook(db: apsw.Connection) -> None:
        db.exec_trace = trace

    apsw.connection_hooks.append(hook)
    try:
        yield found
    finally:
        apsw.connection_hooks.remove(hook)


class Commits:
    """How many transactions have written something: a statement that is a transaction of its own says no COMMIT."""

    count = 0


@contextmanager
def counting_commits() -> Iterator[Commits]:
    """The commits of any connection opened meanwhile."""
    found = Commits()

    def committed() -> bool:
        found.count += 1
        return False

    def hook(db: apsw.Connection) -> None:
        db.set_commit_hook(committed)

    apsw.connection_hooks.append(hook)
    try:
        yield found
    finally:
        apsw.connection_hooks.remove(hook)


@contextmanager
def counting_compilations() -> Iterator[Counter[str]]:
    """The tables that statements of any connection opened meanwhile read, once for each time such a statement is compiled: compiled anew each time it
    runs, a statement costs ten times as much."""
    found: Counter[str] = Counter()

    def asked(code: int, name: str | None, *_: Any) -> int:
        if code == apsw.SQLITE_READ:
            found[name or ""] += 1
        return apsw.SQLITE_OK

    def hook(db: apsw.Connection) -> None:
        db.authorizer = asked

    apsw.connection_hooks.append(hook)
    try:
        yield found
    finally:
        apsw.connection_hooks.remove(hook)


class Work:
    """How many steps SQLite's machine has taken."""

    steps = 0


@contextmanager
def counting_work() -> Iterator[Work]:
    """What the statements of any connection opened meanwhile read and compare, in steps of SQLite's own machine: it grows with the rows that are looked at."""
    found = Work()

    def told(event: dict[str, Any]) -> None:
        found.steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    def hook(db: apsw.Connection) -> None:
        db.trace_v2(apsw.SQLITE_TRACE_PROFILE, told)

    apsw.connection_hooks.append(hook)
    try:
        yield found
    finally:
        apsw.connection_hooks.remove(hook)


__all__ = ["Commits", "Work", "counting_commits", "counting_compilations", "counting_statements", "counting_work"]

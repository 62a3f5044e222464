"""How the database marks runs that stand behind the holder of their lane, if there are many (``stores/crowds.py``); and how due runs are found, queue
by queue."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import apsw

from holdfast.stores.crowds import CROWD, FEW, LANES, LINES, Crowds, Line
from holdfast.stores.sqlite.connection import Q, row, rows

AMONG, MARKED = 4_000, 2_000
"""Due runs of a line among which a look finds those to mark, and how many it marks at once: about 20 ms. Fewer would take longer in all, because each
claim meanwhile examines the runs that are left."""


class Behind(NamedTuple):
    """What a claim does about crowds: the line in which it marks runs, and the keys of marked runs whose mark is no longer valid."""

    line: Line | None = None
    freed: Sequence[int] = ()

    def __bool__(self) -> bool:
        return self.line is not None or bool(self.freed)


NOBODY = Behind()


def names(db: apsw.Connection, sql: str, *given: Any) -> Iterator[str]:
    """Yields names in their order, with one read each. A name that is not a text is skipped; its rows wait for a repair."""
    found = b""
    while (found := row(db, sql, (*given, found))[0]) is not None:
        with contextlib.suppress(UnicodeDecodeError):
            yield found.decode()


def behind(db: apsw.Connection, crowds: Crowds, queues: Sequence[str], now: int) -> Behind:
    """Returns what this claim has to do. Now and then it looks where crowds are, and for marked runs in lanes that nobody holds, because a row that
    was changed by other means may have left its lane."""
    freed: list[int] = []
    if crowds.look():
        found = rows(db, Q.behind_lanes, (*crowds.lane, LANES))
        freed = [key for _, _, _, key in found if key is not None]
        crowded = [line for line in islice(_lines(db, queues), LINES) if row(db, Q.behind_first, (*line, now, FEW))[0] >= CROWD]
        crowds.see(crowded, found[-1] if len(found) == LANES else None)
    return Behind(next(iter(crowds.lines), None), freed)


def _lines(db: apsw.Connection, queues: Sequence[str]) -> Iterator[Line]:
    """Yields the queues, priorities and tenants in which there are runs to come."""
    for queue in queues or names(db, Q.next_queue):
        priority = 2**62
        while (priority := row(db, Q.next_priority, (queue, priority))[0]) is not None:
            yield from ((queue, priority, tenant) for tenant in names(db, Q.next_tenant, queue, priority))


def settle(db: apsw.Connection, found: Behind, now: int) -> int:
    """Inside a transaction: removes and sets these marks; returns how many were set."""
    db.executemany(Q.behind_clear, [(key,) for key in found.freed])
    if found.line is None:
        return 0
    db.execute(Q.behind_set, (*found.line, now, AMONG, MARKED))
    return db.changes()


__all__ = ["NOBODY", "Behind", "behind", "names", "settle"]

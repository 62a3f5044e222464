"""Runs that stand behind the holder of their lane, where there are many, as the database marks them (``stores/crowds.py``); and where what is due is
found, queue by queue."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import apsw

from holdfast.stores.crowds import CROWD, FEW, LANES, LINES, Crowds, Line
from holdfast.stores.sqlite.connection import Q, row, rows

AMONG, MARKED = 4_000, 2_000
"""Due runs of a line among which those are looked for that are marked, and so many of them at once: some 20 ms. Fewer would take longer in all, for each
claim meanwhile goes through those that are left."""


class Behind(NamedTuple):
    """What a claim does about them: in which line it marks some, and from which runs it takes a mark that they have in vain."""

    line: Line | None = None
    freed: Sequence[int] = ()

    def __bool__(self) -> bool:
        return self.line is not None or bool(self.freed)


NOBODY = Behind()


def names(db: apsw.Connection, sql: str, *given: Any) -> Iterator[str]:
    """Names in their order, one look each. One that is no text is passed over: what lies under it waits for its repair."""
    found = b""
    while (found := row(db, sql, (*given, found))[0]) is not None:
        with contextlib.suppress(UnicodeDecodeError):
            yield found.decode()


def behind(db: apsw.Connection, crowds: Crowds, queues: Sequence[str], now: int) -> Behind:
    """What there is to do in a claim; now and then it looks where crowds are, and who is marked in a lane that nobody holds: whoever was written to
    by other means may have let go of it."""
    freed: list[int] = []
    if crowds.look():
        found = rows(db, Q.behind_lanes, (*crowds.lane, LANES))
        freed = [key for _, _, _, key in found if key is not None]
        crowded = [line for line in islice(_lines(db, queues), LINES) if row(db, Q.behind_first, (*line, now, FEW))[0] >= CROWD]
        crowds.see(crowded, found[-1] if len(found) == LANES else None)
    return Behind(next(iter(crowds.lines), None), freed)


def _lines(db: apsw.Connection, queues: Sequence[str]) -> Iterator[Line]:
    """The queues, priorities and tenants in which there is anything to come."""
    for queue in queues or names(db, Q.next_queue):
        priority = 2**62
        while (priority := row(db, Q.next_priority, (queue, priority))[0]) is not None:
            yield from ((queue, priority, tenant) for tenant in names(db, Q.next_tenant, queue, priority))


def settle(db: apsw.Connection, found: Behind, now: int) -> int:
    """Inside a transaction: does it, and says how many were marked."""
    db.executemany(Q.behind_clear, [(key,) for key in found.freed])
    if found.line is None:
        return 0
    db.execute(Q.behind_set, (*found.line, now, AMONG, MARKED))
    return db.changes()


__all__ = ["NOBODY", "Behind", "behind", "names", "settle"]

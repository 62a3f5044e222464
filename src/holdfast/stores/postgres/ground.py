"""From where on a claim looks for what is due, so that it does not go through all that was due before.

What was claimed stays in the index of what is due until it is vacuumed, and as long as somebody holds a snapshot, a dump or a replica, it is
not: after ten minutes a claim would go through some hundred thousand dead entries, which are all older than what is due now. So this
process remembers lines (queue, priority, tenant), and the oldest that was due in each. Whoever commits late, with an earlier
time, is looked for ``MARGIN`` further back, and from time to time each line is looked through from its beginning: so long a run may wait that came while the
database's clock was behind. Lines that come anew are always seen. A process that has claimed few runs yet remembers nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.stores.postgres.arrays import Names, Numbers

EACH, WHOLE = 0.25, 1.0  # seconds at least between two looks at where lines begin, and between two of them that begin with nothing remembered
PART = 50  # such a look takes at most one part in so many of the time
QUICK = 0.01  # seconds: where such a look took no longer, little lies about, and lines in which nothing is to come are forgotten
MARGIN = 2_000_000  # microseconds
FEW = 1_000  # runs: to go through so many costs less than half a millisecond
LINES = 32  # that are remembered at most
NEW_LINES = 16  # that a claim goes through without counting who uses what
BEGINNING = (-(2**62), -1)


class Line(msgspec.Struct, frozen=True):
    """A queue, priority and tenant, and behind what times it begins: ``begins`` what is due at once, ``times`` what is due at a time."""

    queue: str
    priority: int
    tenant: str
    begins: int
    times: int


def ask_from(lines: Sequence[Line], *, whole: bool = False) -> Mapping[str, Any]:
    """What a statement is asked with that begins there; where it looks through the ``whole`` of them, their times count for nothing."""
    return {
        "in_queue": Names([*(line.queue for line in lines), ""]),
        "in_priority": Numbers([*(line.priority for line in lines), -(2**31) - 1]),
        "in_tenant": Names([*(line.tenant for line in lines), ""]),
        "in_begins": Numbers([BEGINNING[0] if whole else line.begins for line in lines]),
        "in_times": Numbers([BEGINNING[1] if whole else line.times for line in lines]),
        "most_lines": NEW_LINES,
    }


NOWHERE = ask_from(())


class Look(msgspec.Struct, frozen=True):
    """A look at where lines begin: what it is asked with, and whether it looks through the ``whole`` of them."""

    values: Mapping[str, Any]
    whole: bool


class Ground:
    """What is remembered. ``values``: what a statement is asked with that begins there."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines: list[Line] = []
        self.values = NOWHERE
        self._looked = self._looked_whole = float("-inf")
        self._whole_took = 0.0
        self._several_until = float("-inf")
        self._taken = 0

    def took(self, count: int) -> None:
        """So many runs were claimed here."""
        self._taken += count

    @property
    def single(self) -> bool:
        """Whether nothing is known of more than one line."""
        return len(self._lines) <= 1 and self._clock() >= self._several_until

    def see_several(self) -> None:
        """A claim that counted on a single line found that there is more to look at."""
        self._several_until = self._clock() + WHOLE

    def look(self) -> Look | None:
        """What is looked at before the next claim, if anything is."""
        now = self._clock()
        whole = now - self._looked_whole >= max(WHOLE, PART * self._whole_took)
        if self._taken < FEW or (not whole and now - self._looked < EACH):
            return None
        return Look({**ask_from(self._lines, whole=whole), "found_lines": LINES + NEW_LINES}, whole)

    def see(self, look: Look, found: Sequence[Sequence[Any]], seconds: float) -> None:
        """What a look has found, from the last line to the first, and for how long it was asked for. A line in which nothing is to come begins now;
        it is forgotten where there are too many of them."""
        self._looked = self._clock()
        if look.whole:
            self._looked_whole, self._whole_took = self._looked, seconds
        lines, live = [], set()
        for queue, priority, tenant, at, *oldest in found:
            begins, times = [(at if due is None else min(due, at)) - MARGIN for due in oldest]
            lines.append(Line(queue, priority, tenant, begins, times))
            if oldest != [None, None]:
                live.add(lines[-1])
        if len(lines) > LINES or (look.whole and seconds < QUICK):
            lines = [line for line in lines if line in live]
        self._lines = lines[:LINES]
        self.values = ask_from(self._lines)

    def begins(self, queue: str, priority: int, tenant: str) -> int:
        """Behind what time what is due at once begins in a line."""
        return next((line.begins for line in self._lines if (line.queue, line.priority, line.tenant) == (queue, priority, tenant)), BEGINNING[0])


__all__ = ["BEGINNING", "NOWHERE", "Ground", "Line", "Look", "ask_from"]

"""Where claims begin to search, so that they do not pass through all runs that were due before.

The entries of claimed runs stay in the index of due runs until it is vacuumed, and that is impossible while a snapshot, a dump or a replica is held.
After ten minutes a claim would pass through some hundred thousand dead entries, which are all older than what is due now. So this process remembers
lines (queue, priority, tenant), and the oldest due value in each. For commits that come late, with an earlier time, claims search ``MARGIN`` further
back; and from time to time each line is searched from its beginning, which limits how long a run may wait that was written while the database's clock
was behind. New lines are always seen. A process that has claimed few runs remembers nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.stores.postgres.arrays import Names, Numbers

EACH, WHOLE = 0.25, 1.0  # the least seconds between two looks at where lines begin, and between two such looks that use nothing remembered
PART = 50  # such looks take at most this part of the time (1/50)
QUICK = 0.01  # seconds: if such a look took no longer, there are few dead entries, and lines without runs to come are forgotten
MARGIN = 2_000_000  # microseconds
FEW = 1_000  # runs: to pass through so many costs less than half a millisecond
LINES = 32  # that are remembered at most
NEW_LINES = 16  # that a claim examines without counting usage
BEGINNING = (-(2**62), -1)


class Line(msgspec.Struct, frozen=True):
    """A queue, priority and tenant, and the values after which it begins: ``begins`` for runs due at once, ``times`` for runs due at a time."""

    queue: str
    priority: int
    tenant: str
    begins: int
    times: int


def ask_from(lines: Sequence[Line], *, whole: bool = False) -> Mapping[str, Any]:
    """Returns the values of a statement that begins at these lines; with ``whole`` it searches them from their beginning, whatever their times."""
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
    """A look at where lines begin: its values, and whether it searches the ``whole`` of them."""

    values: Mapping[str, Any]
    whole: bool


class Ground:
    """The lines that are remembered. ``values``: those of a statement that begins there."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines: list[Line] = []
        self.values = NOWHERE
        self._looked = self._looked_whole = float("-inf")
        self._whole_took = 0.0
        self._several_until = float("-inf")
        self._taken = 0

    def took(self, count: int) -> None:
        """Notes that so many runs were claimed here."""
        self._taken += count

    @property
    def single(self) -> bool:
        """Whether at most one line is known."""
        return len(self._lines) <= 1 and self._clock() >= self._several_until

    def see_several(self) -> None:
        """Notes that a claim which expected a single line has found that there is more to search."""
        self._several_until = self._clock() + WHOLE

    def look(self) -> Look | None:
        """Returns the look that is due before the next claim, if any."""
        now = self._clock()
        whole = now - self._looked_whole >= max(WHOLE, PART * self._whole_took)
        if self._taken < FEW or (not whole and now - self._looked < EACH):
            return None
        return Look({**ask_from(self._lines, whole=whole), "found_lines": LINES + NEW_LINES}, whole)

    def see(self, look: Look, found: Sequence[Sequence[Any]], seconds: float) -> None:
        """Stores what a look has found, from the last line to the first, and how many seconds it took. A line without runs to come begins now; it is
        forgotten if there are too many of them."""
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
        """Returns the value after which runs due at once begin in a line."""
        return next((line.begins for line in self._lines if (line.queue, line.priority, line.tenant) == (queue, priority, tenant)), BEGINNING[0])


__all__ = ["BEGINNING", "NOWHERE", "Ground", "Line", "Look", "ask_from"]

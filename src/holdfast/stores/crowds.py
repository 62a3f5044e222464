"""When a store looks for crowds: many due runs that stand behind the holder of their lane, so that every claim would examine them in vain.

Such runs are marked as standing behind, and claims no longer examine them. When a run leaves its lane, the first run behind it loses its
mark. The mark saves work and decides nothing: a run that lacks it is refused because of its lane, and a run that has it without reason loses
it when its lane is checked; each look checks some lanes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

CALLS = 20  # claims before the first look and, at the least, between two looks: where claims are rare, looks may be too
SECONDS = 1.0  # the least time between two looks
LINES = 64  # lines (queue, priority, tenant) that a look examines
FEW = 32  # due runs of each line that a look examines ...
CROWD = 16  # ... and how many of these stand behind a holder in a crowd
AMONG = 2_000  # due runs of a line among which a look finds those to mark
MARKED = 1_000  # runs marked at once: about 40 ms over PostgreSQL
LANES = 256  # lanes with marked runs that each look checks

Line = tuple[str, int, str]
Lane = tuple[str, str, str]
START: Lane = ("", "", "")


class Crowds:
    """What one process knows of crowds. ``lines``: where crowds were seen, each a queue, a priority and a tenant; ``lane``: the tenant,
    session key and name of the lane after which the next look continues."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.lines: list[Line] = []
        self.lane = START
        self._clock = clock
        self._calls = 0
        self._looked = clock()

    def look(self) -> bool:
        """Returns whether this claim is to look for crowds."""
        self._calls += 1
        if self._calls < CALLS or (now := self._clock()) - self._looked < SECONDS:
            return False
        self._calls, self._looked = 0, now
        return True

    def see(self, lines: Sequence[Sequence[Any]], last: Sequence[Any] | None) -> None:
        """Stores what a look has found. ``last``: the last lane that it has checked, None if it has reached the end."""
        self.lines = [(queue, priority, tenant) for queue, priority, tenant in lines]
        self.lane = START if last is None else (last[0], last[1], last[2])

    def mark(self, line: Line, count: int) -> None:
        """Notes that ``count`` runs of a line were marked; if they are few, the line is not crowded any more."""
        if count < CROWD and line in self.lines:
            self.lines.remove(line)


__all__ = ["AMONG", "CALLS", "CROWD", "FEW", "LANES", "LINES", "MARKED", "SECONDS", "START", "Crowds", "Lane", "Line"]

"""When a store looks for crowds: many due runs that stand behind the holder of their lane, and that every claim would go through in vain.

Those are marked as standing behind it, and claims do not look at them any more; whoever lets go of a lane takes the mark from the first that
stands behind. The mark saves work and decides nothing: a run that lacks it is refused by its lane, and one that has it for no reason loses it
when the lanes are gone through, some at each look.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

CALLS = 20  # claims before the first look, and at least between two: what is claimed seldom may take its time
SECONDS = 1.0  # at least between two looks
LINES = 64  # queues, priorities and tenants that a look goes through
FEW = 32  # due runs of each of them that it looks at ...
CROWD = 16  # ... of which so many stand behind a holder, where there is a crowd
AMONG = 2_000  # due runs of a line among which those are looked for that are marked
MARKED = 1_000  # of them at once: some 40 ms over PostgreSQL
LANES = 256  # in which somebody is marked, gone through at each look

Line = tuple[str, int, str]
Lane = tuple[str, str, str]
START: Lane = ("", "", "")


class Crowds:
    """What one process knows of them. ``lines``: where a crowd was seen, each a queue, a priority and a tenant; ``lane``: the tenant, session
    and name of the lane behind which the next look goes on."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.lines: list[Line] = []
        self.lane = START
        self._clock = clock
        self._calls = 0
        self._looked = clock()

    def look(self) -> bool:
        """Whether this claim looks for crowds."""
        self._calls += 1
        if self._calls < CALLS or (now := self._clock()) - self._looked < SECONDS:
            return False
        self._calls, self._looked = 0, now
        return True

    def see(self, lines: Sequence[Sequence[Any]], last: Sequence[Any] | None) -> None:
        """What a look has found. ``last``: the last lane that it has gone through, None where there was none any more."""
        self.lines = [(queue, priority, tenant) for queue, priority, tenant in lines]
        self.lane = START if last is None else (last[0], last[1], last[2])

    def mark(self, line: Line, count: int) -> None:
        """So many of its runs were marked: the line is crowded no longer where they are few."""
        if count < CROWD and line in self.lines:
            self.lines.remove(line)


__all__ = ["AMONG", "CALLS", "CROWD", "FEW", "LANES", "LINES", "MARKED", "SECONDS", "START", "Crowds", "Lane", "Line"]

"""Plans that are made before they are needed.

The server makes the plan of a prepared statement when it is used, over each connection anew, and once more after the connection has let go of its plans. For the
long ones that takes longer than the statement itself, and whoever asks waits for it. So what was read lately is read once more over each connection that is at
rest and has no plan for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from holdfast.stores.postgres.wire import GREATEST_AGE, Connection, Statement

AT_REST = 0.05  # seconds without an answer, after which connections are looked at
FORCED = 1  # uses until the server keeps a plan, where it is told not to make one for each
LEFT_ALONE = 6  # the same where it is left to itself: five are for one use each


class _Read(msgspec.Struct, frozen=True):
    """What was asked last. Its last statement is the one that is to be planned; what stands before it says how."""

    asked: Sequence[Statement]
    uses: int
    """How often it has to be used until its plan lasts."""
    until: float
    """When it is forgotten, if it is not asked again."""


class Ahead:
    """The reads that are likely to be asked again. They change nothing, whenever and however often they are asked."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reads: dict[str, _Read] = {}

    def expect(self, asked: Sequence[Statement], uses: int) -> None:
        """These are asked now, and are likely to be asked again. ``uses``: of the last of them, until the server keeps its plan."""
        self._reads[asked[-1][0]] = _Read(asked, uses, self._clock() + GREATEST_AGE)

    def expects(self) -> bool:
        """Whether anything was asked lately; the rest is forgotten."""
        now = self._clock()
        self._reads = {text: read for text, read in self._reads.items() if read.until >= now}
        return bool(self._reads)

    def list_lacking(self, db: Connection) -> list[Statement]:
        """What has to be asked over a connection so that it has the plans of all of them."""
        if not db.prepares:
            return []
        return [s for text, read in self._reads.items() for s in (*read.asked,) * db.plans.count_lacking(text, read.uses)]


__all__ = ["AT_REST", "FORCED", "LEFT_ALONE", "Ahead"]

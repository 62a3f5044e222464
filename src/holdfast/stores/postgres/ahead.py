"""Makes plans before they are needed.

The server makes the plan of a prepared statement at its use, separately over each connection, and again after the connection has discarded its plans.
For long statements that takes longer than the statement itself, and the caller waits for it. So statements that were read recently are read once more
over each idle connection that has no plan for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from holdfast.stores.postgres.wire import GREATEST_AGE, Connection, Statement

AT_REST = 0.05  # seconds without a question, after which connections are examined
FORCED = 1  # uses until the server keeps a plan if it is told not to make one for each use
LEFT_ALONE = 6  # the same without that setting: the first five plans are for one use each


class _Read(msgspec.Struct, frozen=True):
    """The statements asked last. The last one is to be planned; those before it set how."""

    asked: Sequence[Statement]
    uses: int
    """How often the last statement has to be used until its plan lasts."""
    until: float
    """When it is forgotten, if it is not asked again."""


class Ahead:
    """The reads that will probably be asked again. They change nothing, whenever and however often they are asked."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reads: dict[str, _Read] = {}

    def expect(self, asked: Sequence[Statement], uses: int) -> None:
        """Notes that these statements are asked now, and will probably be asked again. ``uses``: of the last of them, until the server keeps its
        plan."""
        self._reads[asked[-1][0]] = _Read(asked, uses, self._clock() + GREATEST_AGE)

    def expects(self) -> bool:
        """Whether anything was asked recently; forgets all else."""
        now = self._clock()
        self._reads = {text: read for text, read in self._reads.items() if read.until >= now}
        return bool(self._reads)

    def list_lacking(self, db: Connection) -> list[Statement]:
        """Returns the statements to ask over a connection so that it has all these plans."""
        if not db.prepares:
            return []
        return [s for text, read in self._reads.items() for s in (*read.asked,) * db.plans.count_lacking(text, read.uses)]


__all__ = ["AT_REST", "FORCED", "LEFT_ALONE", "Ahead"]

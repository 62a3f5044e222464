"""The run that this process was told of by its name, looked up before anybody asks for it.

A birth that comes alone says in its notification which run is due. A worker that waits would hear of it, come to its turn, and ask for all that is due. So the
run is looked up by its name in the turn of the loop in which the process hears of it: the answer is on its way while the worker comes to its turn.

Such a look stands in the place of one for all that is due only for so long after the last of these (``SECONDS``), and only where nothing else was told of since
then. It decides nothing: the first commit of the run takes it, or is refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.stores.postgres.wire import Rows

SECONDS = 0.25
LONGEST_NAME = 200
Answer = asyncio.Future[list[Rows]]


def may_name(run_id: str) -> bool:
    """Whether a notification names this run. Anybody who can connect to the database can notify, and what any connection can say is ASCII."""
    return run_id.isascii() and 0 < len(run_id) <= LONGEST_NAME


class Hints:
    """What was told since the last look for what is due."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._look_up: Callable[[str], Answer | None] | None = None
        self._asked: Sequence[Any] = ()
        self._until = float("-inf")
        self._told = 0
        self._answer: Answer | None = None

    def expect(self, asked: Sequence[Any], look_up: Callable[[str], Answer | None]) -> None:
        """All that is due to this claimer was looked for: from now on a run that it is told of is looked up."""
        self._asked, self._look_up = asked, look_up
        self._until = self._clock() + SECONDS

    def tell(self, run_id: str | None) -> None:
        """Something is due: this run, where it was said which."""
        self._told += 1
        self._answer = None
        if self._told == 1 and run_id is not None and may_name(run_id) and self._look_up is not None and self._clock() < self._until:
            self._answer = self._look_up(run_id)

    def take(self, asked: Sequence[Any] = ()) -> Answer | None:
        """The look-up of the one run that was told of since this was last asked, where it was made for this claimer."""
        answer, self._answer, self._told = self._answer, None, 0
        return answer if answer is not None and asked == self._asked and self._clock() < self._until else None


__all__ = ["LONGEST_NAME", "SECONDS", "Answer", "Hints", "may_name"]

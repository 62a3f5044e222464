"""The run that a notification has named, looked up before anybody asks for it.

The notification of a single birth names the run that is due. A waiting worker would be woken by it, wait for its turn, and search for all due runs.
So the run is looked up by its name in the turn of the event loop in which the process gets the notification: the answer is on its way while the
worker waits for its turn.

Such a look-up replaces a search for all due runs only within ``SECONDS`` after the last such search, and only if nothing else was notified since. It
decides nothing: the first commit of the run takes it, or is refused.
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
    """Whether a notification may name this run. Anybody who can connect to the database can notify, and only ASCII can be sent over every connection."""
    return run_id.isascii() and 0 < len(run_id) <= LONGEST_NAME


class Hints:
    """What was notified since the last search for due runs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._look_up: Callable[[str], Answer | None] | None = None
        self._asked: Sequence[Any] = ()
        self._until = float("-inf")
        self._told = 0
        self._answer: Answer | None = None

    def expect(self, asked: Sequence[Any], look_up: Callable[[str], Answer | None]) -> None:
        """Notes that all runs due to this claimer were searched for: from now on a run that is named is looked up."""
        self._asked, self._look_up = asked, look_up
        self._until = self._clock() + SECONDS

    def tell(self, run_id: str | None) -> None:
        """Notes that something is due: this run, if it was named."""
        self._told += 1
        self._answer = None
        if self._told == 1 and run_id is not None and may_name(run_id) and self._look_up is not None and self._clock() < self._until:
            self._answer = self._look_up(run_id)

    def take(self, asked: Sequence[Any] = ()) -> Answer | None:
        """Returns the look-up of the one run that was named since the last call, if it was made for this claimer."""
        answer, self._answer, self._told = self._answer, None, 0
        return answer if answer is not None and asked == self._asked and self._clock() < self._until else None


__all__ = ["LONGEST_NAME", "SECONDS", "Answer", "Hints", "may_name"]

"""How many intents one receiver gets at once (§9.1): more while it keeps up, fewer while it is slow or fails.

Theory of operation. A *lane* is a group of intents for one receiver. Each lane begins with the same number of places. A receiver that answers
quickly gets one more place for each intent, so that a queue is drained in large groups. One that answers slowly falls back to the places it began
with. One that fails loses half of its places each time, down to one. Places beyond the initial ones come from a common stock: however many of
these a receiver takes and keeps, the initial places of the others are not affected.

The intents that are claimed at once are a *group*, as are those that are settled at once. A group is as large as the wanted pace needs and no
larger, because it keeps the store and the event loop from the runs meanwhile. It grows while an intent's part of a transaction takes long, for
example on a slow disk, and shrinks while it does not. With a database server it grows to half of that: most of the time is spent per intent there, so
a larger group gains little pace, and a run beside it waits twice as long for the server and for the event loop. The rests after groups are then such
that the pace does not exceed the wanted one, because each intent uses time of the event loop and of the server that runs could have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from holdfast.core.intents import Doubtful, Failed, Outcome, Sent

Lane = tuple[str, str, str]

CONCURRENCY = 256
EACH = 16  # at once for one receiver about which nothing is known
MOST = 128  # at once for one that keeps up, and in a group
MOST_SERVED = 64  # in a group, with a database server
EXTRA = 128  # beyond the initial places, for all receivers together
SLOW_SECONDS, SHORT_SECONDS = 0.000_100, 0.000_050  # an intent's part of one transaction, of which each has two: 2,000 a second leave 500 us for each
FREE_SECONDS = 0.002  # a shorter transaction does not hinder other writers
LONGEST_REST = 0.020
LONGEST_REST_SERVED = 0.004  # with a database server, which lets others write meanwhile: after a slow transaction a longer rest would halve the pace
SERVED_SECONDS = 0.000_170  # an intent's part of a transaction and its rest, with a database server: some 2,400 a second, so that runs get the other time
QUICK_SECONDS = 0.025
LANES = 1_000  # how many are remembered


class Pace:
    """The places of one dispatcher. ``concurrency``: how many initial places all receivers have together; ``each``: how many one has. ``served``: the store
    is on a database server."""

    def __init__(self, concurrency: int = CONCURRENCY, each: int = EACH, *, served: bool = False) -> None:
        self._concurrency = concurrency
        self._served = served
        self._largest = MOST_SERVED if served else MOST
        self._longest_rest = LONGEST_REST_SERVED if served else LONGEST_REST
        self.each = each
        self.group = each
        self._sizes: dict[Lane, int] = {}

    def wrote(self, count: int, seconds: float) -> float | None:
        """Notes that a transaction with ``count`` intents took ``seconds``. Returns for how long the store is left to other writers before the next one;
        None if it was too small to be in their way."""
        if seconds > SLOW_SECONDS * count and count >= self.group // 2:
            self.group = min(self.group * 2, self._largest)
        elif seconds < SHORT_SECONDS * count:
            self.group = max(self.group * 3 // 4, self.each)
        if count < self.each:
            return None
        rest = min(max(0.0, seconds - FREE_SECONDS), self._longest_rest)
        return max(rest, SERVED_SECONDS * count - seconds) if self._served else rest

    def of(self, lane: Lane) -> int:
        """Returns how many intents a receiver may have at once."""
        return self._sizes.get(lane, self.each)

    def note(self, lane: Lane, outcome: Outcome, seconds: float) -> None:
        """Notes that an intent ended ``seconds`` after it was claimed."""
        size = self.of(lane)
        if isinstance(outcome, Failed | Doubtful):
            size = max(1, size // 2)
        elif isinstance(outcome, Sent):
            quick = seconds <= QUICK_SECONDS or size < self.each
            size = min(size + 1, MOST) if quick else max(size - 1, self.each)
        self._sizes.pop(lane, None)
        if size != self.each:
            self._sizes[lane] = size
        if len(self._sizes) > LANES:
            del self._sizes[next(iter(self._sizes))]

    def room(self, taken: Iterable[Lane]) -> tuple[int, Mapping[Lane, int]]:
        """Returns how many intents may be claimed now, and how many of each lane that is in use or does not have its initial size. ``taken``: the
        lanes of the intents in progress."""
        busy = Counter(taken)
        free = self._concurrency - sum(min(count, self.each) for count in busy.values())
        extra = max(0, EXTRA - sum(max(0, count - self.each) for count in busy.values()))
        room: dict[Lane, int] = {}
        above = 0
        for lane in {*busy, *self._sizes}:
            left = max(0, self.of(lane) - busy[lane])
            over = max(0, min(left, self.of(lane) - self.each, extra - above))
            room[lane] = over + max(0, min(left, self.each - busy[lane]))
            above += over
        return min(max(0, free) + above, self.group), room


__all__ = ["CONCURRENCY", "EACH", "Lane", "Pace"]

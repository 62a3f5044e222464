"""How many intents one receiver is given at once (§9.1): more while it keeps up, fewer while it is slow or fails.

Theory of operation. A *lane* is what shares a receiver. Each begins with the same number of places. One that answers quickly gets one more
for each intent, so that a queue is drained in large groups; one that answers slowly falls back to the places it began with, and one that
fails is given less at once, down to one. The places above those it began with come from a stock of their own: whatever a receiver takes
of it and then keeps, those that the others begin with are not touched.

What is claimed at once is a *group*, as is what is settled. It is as large as it has to be for the wanted pace and no larger, for the
store, and the loop, are kept from the runs meanwhile: it grows while an intent's part of a transaction takes long, as where each waits for a
slow disk, and shrinks where it does not. Behind a server it grows to half of that: there most of the time goes into each intent, so that
a larger group gains little pace, and a run beside it waits twice as long for the server and for the loop. There the rests are such that no more
than the wanted pace is reached, for each intent takes of the loop and of the server what runs could have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from holdfast.core.intents import Doubtful, Failed, Outcome, Sent

Lane = tuple[str, str, str]

CONCURRENCY = 256
EACH = 16  # to one receiver at once, where nothing is known of it
MOST = 128  # to one that keeps up, and in a group
MOST_SERVED = 64  # in a group, behind a server
EXTRA = 128  # above what receivers begin with, all together
SLOW_SECONDS, SHORT_SECONDS = 0.000_100, 0.000_050  # an intent's part of a transaction, of which each has two: 2,000 a second leave 500 us
FREE_SECONDS = 0.002  # what is shorter hinders nobody
LONGEST_REST = 0.020
LONGEST_REST_SERVED = 0.004  # behind a server, which lets others write meanwhile: after a slow transaction a longer rest would halve the pace
SERVED_SECONDS = 0.000_170  # an intent's part of a transaction and of the rest after it, behind a server: some 2,400 a second, so that runs have the others
QUICK_SECONDS = 0.025
LANES = 1_000  # so many are remembered


class Pace:
    """The places of one dispatcher. ``concurrency``: of those that receivers begin with, ``each`` of one at most. ``served``: the store is a
    server's."""

    def __init__(self, concurrency: int = CONCURRENCY, each: int = EACH, *, served: bool = False) -> None:
        self._concurrency = concurrency
        self._served = served
        self._largest = MOST_SERVED if served else MOST
        self._longest_rest = LONGEST_REST_SERVED if served else LONGEST_REST
        self.each = each
        self.group = each
        self._sizes: dict[Lane, int] = {}

    def wrote(self, count: int, seconds: float) -> float | None:
        """A transaction with so many intents took so long. Gives for how long the store is left to others before the next one; None where it
        was too small to be in anybody's way."""
        if seconds > SLOW_SECONDS * count and count >= self.group // 2:
            self.group = min(self.group * 2, self._largest)
        elif seconds < SHORT_SECONDS * count:
            self.group = max(self.group * 3 // 4, self.each)
        if count < self.each:
            return None
        rest = min(max(0.0, seconds - FREE_SECONDS), self._longest_rest)
        return max(rest, SERVED_SECONDS * count - seconds) if self._served else rest

    def of(self, lane: Lane) -> int:
        """How many intents a receiver may have at once."""
        return self._sizes.get(lane, self.each)

    def note(self, lane: Lane, outcome: Outcome, seconds: float) -> None:
        """An intent came to its end so many seconds after it was taken."""
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
        """How many intents may be taken now, and how many of each lane of which there is more to say than that it begins. ``taken``: the
        lanes of what is in hand."""
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

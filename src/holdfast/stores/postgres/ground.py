"""From where on a claim looks for what is due, so that it does not go through all that was due before.

What was claimed stays in the index of what is due until it is vacuumed, and as long as somebody holds a snapshot, a dump or a replica, it is
not: after ten minutes a claim would go through some hundred thousand dead entries, which are all older than what is due now. So this
process remembers the first line (queue, priority, tenant), and the oldest that was due in it. Whoever commits late, with an earlier
time, is looked for ``MARGIN`` further back, and every ``WHOLE`` seconds nothing is remembered: so long a run may wait that came while the
database's clock was behind. Lines that come anew are always seen. A process that has claimed few runs yet remembers nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

EACH, WHOLE = 0.25, 1.0  # seconds between two looks at where it begins, and between two looks at all there is
MARGIN = 2_000_000  # microseconds
FEW = 1_000  # runs: to go through so many costs less than half a millisecond
NOWHERE: Mapping[str, Any] = {"queue": None, "priority": None, "tenant": None, "begins": -(2**62), "times": -1}


class Ground:
    """What is remembered."""

    def __init__(self) -> None:
        self._values = NOWHERE
        self._looked = self._whole = float("-inf")
        self._taken = 0

    def where(self) -> tuple[Mapping[str, Any], bool]:
        """What goes with a claim, and whether to look besides at where it begins from now on."""
        if self._taken < FEW:
            return NOWHERE, False
        now = time.monotonic()
        if now - self._whole >= WHOLE:
            self._looked = self._whole = now
            return NOWHERE, True
        look = now - self._looked >= EACH
        if look:
            self._looked = now
        return self._values, look

    def took(self, count: int) -> None:
        """So many runs were claimed here."""
        self._taken += count

    def see(self, found: Sequence[Sequence[Any]]) -> None:
        """What a look has found: nothing where nothing is due, and then the line that was the first still is."""
        for queue, priority, tenant, at, begins, times in found:
            oldest = [at if due is None else min(due, at) for due in (begins, times)]
            self._values = {"queue": queue, "priority": priority, "tenant": tenant, "begins": oldest[0] - MARGIN, "times": oldest[1] - MARGIN}


__all__ = ["Ground"]

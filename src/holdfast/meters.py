"""Figures of this process, counted while somebody reads them (§18.3): steps, attempts, how long claims and commits took, how large groups were.

Theory of operation. Nothing is counted while ``METERS`` is empty: that list is checked once per group of commits or per claim, never once per
step. An active meter gets each commit of this process, as the log does (``logs.log_commit``); plain steps then get commits of their own.
"""

from __future__ import annotations

import bisect
import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence

from holdfast.core import events as ev
from holdfast.core.commit import Commit

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
SIZES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0)


class Histogram:
    """Counts how often a value was at most each bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def note(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def total(self) -> int:
        return sum(self.counts)


class Meter:
    """Figures counted since the meter was made."""

    def __init__(self) -> None:
        self.steps: Counter[str] = Counter()
        self.attempts = 0
        self.claims = Histogram(SECONDS)
        self.commits = Histogram(SECONDS)
        self.groups = Histogram(SIZES)

    def hear(self, commit: Commit) -> None:
        """Counts a commit of this process that has become durable."""
        for event in commit.events:
            match event.fact:
                case ev.StepEnded(outcome=outcome, path=""):
                    self.steps[outcome.partition(":")[0]] += 1
                    self.attempts += 1
                case ev.StepFailed(path=""):
                    self.steps["failed"] += 1
                    self.attempts += 1
                case ev.StepRetryScheduled(path="") | ev.AttemptLeaseExpired():
                    self.attempts += 1
                case _:
                    pass


METERS: list[Meter] = []


def group(size: int, took: float) -> None:
    """Counts a group of ``size`` commits that were made durable at once in ``took`` seconds."""
    for meter in METERS:
        meter.groups.note(size)
        meter.commits.note(took)


def meter_claim(took: float) -> None:
    """Counts a claim that took ``took`` seconds."""
    for meter in METERS:
        meter.claims.note(took)


@contextlib.contextmanager
def on() -> Iterator[Meter]:
    """Yields a meter that counts within this block."""
    meter = Meter()
    METERS.append(meter)
    try:
        yield meter
    finally:
        METERS.remove(meter)


__all__ = ["METERS", "Histogram", "Meter", "group", "meter_claim", "on"]

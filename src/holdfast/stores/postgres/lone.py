"""Runs that are returned as they are, instead of claims: their first commit takes them (``ports.Untaken``).

That saves a commit and a round trip if one worker waits for one run. If many workers wait, all of them would find the same run, and all but one would
send a commit in vain; so they claim, and check from time to time whether there are few workers.

Also runs that are returned with their log when they have ended, for callers that wait for the end (``ports.Awaited``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.core.codec import Row
from holdfast.core.commit import Tip
from holdfast.core.lease import Lease
from holdfast.core.run import Run
from holdfast.ports import Loaded
from holdfast.stores import apply

MOST_WORKERS = 4
SECONDS = 10.0  # for which many workers are assumed to be there still


class Few:
    """Whether there are few enough workers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._many_until = float("-inf")

    @property
    def likely(self) -> bool:
        return self._clock() >= self._many_until

    def see(self, workers: int) -> None:
        if workers > MOST_WORKERS:
            self._many_until = self._clock() + SECONDS


class Born(msgspec.Struct, frozen=True):
    """A run as its birth left it: its row as ``run_get`` returns it, its lease, its tip and its log row."""

    row: tuple[Any, ...]
    lease: Lease
    tip: Tip
    log: Row

    def load(self, run: Run) -> Loaded | None:
        """Returns the run if it is still as its birth left it."""
        loaded = Loaded(run, self.tip, self.lease, None, (self.log,), (), ())
        return loaded if apply.is_unbegun(loaded) else None


class Look(msgspec.Struct, frozen=True):
    """What a look has found. ``due``: runs that a claim would take, counted up to two; ``orphans``: whether an owner that is gone has any;
    ``bounded``: whether a limit may hold runs back, or runs of several tenants wait; ``workers``: how many are alive, counted up to one too many;
    ``known``: the names and boots of those on this machine, and the claimer's; ``born``: the only due run, if it has never begun."""

    due: int
    orphans: bool
    bounded: bool
    workers: int
    known: Sequence[tuple[str, str]]
    born: Born | None = None

    @property
    def nothing(self) -> bool:
        """Whether a claim would find nothing."""
        return not self.due and not self.orphans and not self.bounded


def look(found: Sequence[Any]) -> Look:
    """Reads the row of the statement ``lone``."""
    due, orphans, bounded, workers, known, run_id, *_ = found
    born = None if run_id is None or workers > MOST_WORKERS else read_born(found[5:])
    return Look(due, orphans, bounded, workers, known, born)


def read_born(found: Sequence[Any]) -> Born:
    """Reads a run from the columns ``{born}`` of the statements ``lone`` and ``named``."""
    run_id, doc, status, version, step, head, fence, due, seq, digest, n, since, whole, data = found
    return Born((run_id, doc, status, version, step, head), Lease(fence, due=due), Tip(seq, digest, n, since, whole), Row(seq, data, digest))


def read_ended(run: Run, lease: Lease, found: Sequence[Sequence[Any]], known: Tip | None) -> Loaded | tuple[Run, Lease]:
    """Reads the rows of the statement ``ended``: returns a run that has ended with its log, or its row alone. If its log ends before what is known to
    be committed here, ``load`` must handle it, and only the row is returned."""
    seq, digest, n, since, whole, last = found[-1][11:17]
    if last is None or last != seq or (known is not None and n < known.row):
        return run, lease
    return Loaded(run, Tip(seq, digest, n, since, whole), lease, None, tuple([Row(*row[16:]) for row in found]), (), ())


__all__ = ["MOST_WORKERS", "Born", "Few", "Look", "look", "read_born", "read_ended"]

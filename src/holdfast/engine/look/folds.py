"""The values of runs that were folded a moment ago, for whoever lists the same runs again.

A list of 50 runs folds 50 logs; of a run that has not changed since, the fold is the same. A run's row names its last event, so an equal row is
an unchanged run. Kept are runs whose whole log was folded, up to so many bytes of log: one with a whole checkpoint is read quickly anyway.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from holdfast.core.checkpoint import Checkpoint
from holdfast.core.run import Run

KEPT_BYTES = 16_000_000


class Fold(msgspec.Struct, frozen=True):
    """A run's row, and the checkpoint and the chain hash at its last event. ``size``: bytes of log."""

    run: Run
    checkpoint: Checkpoint
    hash: bytes
    size: int


class Folds:
    """Beyond ``most`` bytes the fold that was used longest ago is forgotten."""

    def __init__(self, most: int = KEPT_BYTES) -> None:
        self._most = most
        self._size = 0
        self._there: OrderedDict[str, Fold] = OrderedDict()

    def get(self, run: Run) -> Fold | None:
        there = self._there.get(run.run_id)
        if there is None or there.run != run:
            return None
        self._there.move_to_end(run.run_id)
        return there

    def keep(self, fold: Fold) -> None:
        before = self._there.pop(fold.run.run_id, None)
        self._size += fold.size - (0 if before is None else before.size)
        self._there[fold.run.run_id] = fold
        while self._size > self._most:
            self._size -= self._there.popitem(last=False)[1].size


__all__ = ["Fold", "Folds"]

"""A disk that a node of ``test_failing_runs`` fills: from then on every write below the folder fails with ENOSPC."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tests.faults.faulty import Faulty

LAYER = Faulty(os.getcwd())


@contextlib.contextmanager
def has_room(folder: Path) -> Iterator[None]:
    """The disk below this folder, which has room until it is filled: also where another one was filled in this process before."""
    LAYER.folder, LAYER.plan = os.path.realpath(folder), None
    with LAYER.on():
        yield


def fill() -> None:
    """No write succeeds any more."""
    LAYER.plan = ("write", LAYER.counts["write"] + 1, "ENOSPC", True)

"""A disk that a node of ``test_failing_runs`` fills: from then on every write below the folder fails with ENOSPC."""

import os

from tests.faults.faulty import Faulty

LAYER = Faulty(os.getcwd())


def fill() -> None:
    """No write succeeds any more."""
    LAYER.plan = ("write", LAYER.counts["write"] + 1, "ENOSPC", True)

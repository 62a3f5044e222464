"""Tools for tests: virtual time, crashes at every write, a simulator, and transcripts. This project tests itself with them.

Begin with ``World``, or with the pytest fixture ``holdfast_world``; ``docs/testing.md`` explains them.
"""

from __future__ import annotations

from holdfast.testing.clock import Process, VirtualClock, VirtualLoop, run_virtual
from holdfast.testing.crash import CrashingStore, Fault, SimulatedCrash
from holdfast.testing.invariants import Violation, violations
from holdfast.testing.opening import open_store
from holdfast.testing.replay import Difference, ReplayDiffers, Replayed, assert_replays, replay_check
from holdfast.testing.transcript import transcript
from holdfast.testing.world import World

__all__ = [
    "CrashingStore",
    "Difference",
    "Fault",
    "Process",
    "ReplayDiffers",
    "Replayed",
    "SimulatedCrash",
    "Violation",
    "VirtualClock",
    "VirtualLoop",
    "World",
    "assert_replays",
    "open_store",
    "replay_check",
    "run_virtual",
    "transcript",
    "violations",
]

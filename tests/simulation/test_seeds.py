"""Seeds of the simulator: everything goes wrong, nothing breaks (issue 3, must show 3; targets, "Reliability").

T-71, T-73, T-75, T-78, T-79, T-83, T-84, T-86, T-90, T-92, L-21, X-07, X-08, X-09, X-12, X-13.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.postgres.blocking import finish, over

from holdfast.ports import Store
from holdfast.testing import VirtualClock
from holdfast.testing.simulate import main, simulate

PARTS, IN_EACH = 8, 125
LEAST, SECONDS = 40, 9.0
"""Seeds that are played in each part however slow the machine is, and seconds of its processor for all of them."""
HAPPENS = {"after", "applied", "asked twice", "before", "cancelled", "frozen", "jumped", "killed", "lost", "submitted", "thawed"}


@pytest.mark.parametrize("part", range(PARTS))
def test_seeds(part: int, record_property: Callable[[str, object], None]) -> None:
    """A thousand of them, or as many as a slow machine has time for, from one on that is drawn; the end of the test run says which. The story of a broken seed is
    the message; ``python -m holdfast.testing.simulate --seed N`` tells it again."""
    happened: Counter[str] = Counter()
    first = int.from_bytes(os.urandom(2)) % IN_EACH
    until = time.process_time() + SECONDS
    played = 0
    for n in range(IN_EACH):
        if n >= LEAST and time.process_time() > until:
            break
        seed = part * IN_EACH + (first + n) % IN_EACH
        story = simulate(seed)
        assert story.ok, str(story)
        happened.update(story.happened)
        played += 1
    record_property("seeds", f"{played} from {part * IN_EACH + first}")
    assert happened.keys() >= HAPPENS, "a world in which nothing goes wrong proves nothing"


SQL = [("sqlite", range(6)), ("postgres", range(3, 7))]
FAULTS = {"after", "applied", "before", "frozen", "killed", "lost", "thawed"}


def played(store: Callable[[VirtualClock], Store], seeds: range) -> Counter[str]:
    happened: Counter[str] = Counter()
    try:
        for seed in seeds:
            story = simulate(seed, store=store)
            assert story.ok, str(story)
            happened.update(story.happened)
    finally:
        finish()
    return happened


@pytest.mark.parametrize(("name", "seeds"), [pytest.param(*part, id=f"{part[0]}-{part[1].start}") for part in SQL])
def test_seeds_over_a_database(name: str, seeds: range, tmp_path: Path) -> None:
    """The same faults over both SQL stores: the judge finds nothing wrong there either."""
    assert played(over(name, tmp_path), seeds).keys() >= FAULTS


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["sqlite", "postgres"])
def test_three_hundred_seeds_over_a_database(name: str, tmp_path: Path) -> None:
    assert played(over(name, tmp_path), range(1000, 1300)).keys() >= HAPPENS


def test_a_seed_is_one_story() -> None:
    """The same seed tells the same story, or a failure could not be looked at twice."""
    assert simulate(3, tell=True) == simulate(3, tell=True)


@pytest.mark.heavy
def test_ten_thousand_seeds() -> None:
    """Issue 3, must show 3."""
    assert main(["--seeds", "10000"]) == 0

"""Seeds of the simulator: everything goes wrong, nothing breaks (issue 3, must show 3; targets, "Reliability").

T-71, T-73, T-75, T-78, T-79, T-83, T-84, T-86, T-90, T-92, L-21, X-07, X-08, X-09, X-12, X-13.
"""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast.testing.simulate import main, simulate

PARTS = 20
IN_EACH = 50
HAPPENS = {"after", "applied", "asked twice", "before", "cancelled", "frozen", "jumped", "killed", "lost", "submitted", "thawed"}


@pytest.mark.parametrize("part", range(PARTS))
def test_seeds(part: int) -> None:
    """The story of a broken seed is the message; ``python -m holdfast.testing.simulate --seed N`` tells it again."""
    happened: Counter[str] = Counter()
    for seed in range(part * IN_EACH, (part + 1) * IN_EACH):
        story = simulate(seed)
        assert story.ok, str(story)
        happened.update(story.happened)
    assert happened.keys() >= HAPPENS, "a world in which nothing goes wrong proves nothing"


def test_a_seed_is_one_story() -> None:
    """The same seed tells the same story, or a failure could not be looked at twice."""
    assert simulate(3, tell=True) == simulate(3, tell=True)


@pytest.mark.heavy
def test_ten_thousand_seeds() -> None:
    """Issue 3, must show 3."""
    assert main(["--seeds", "10000"]) == 0

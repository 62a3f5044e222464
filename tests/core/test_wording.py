"""What is said to people in the same words on every surface."""

from __future__ import annotations

import pytest

from holdfast.core import wording


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0012, "1.2 ms"), (0.05, "50 ms"), (1.5, "1.50 s"), (42, "42 s"), (60, "1 min"), (95, "1 min 35 s"), (3_600, "1 h"), (90_000, "1 d 1 h"),
    ],
)
def test_a_duration_is_in_the_units_that_suit_it(seconds: float, said: str) -> None:
    assert wording.span(seconds) == said

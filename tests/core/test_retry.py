"""Pauses between attempts (§10.9): bounded, repeatable, and no longer for a clock that was set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.retry import CEILING, SECOND, backoff, time_left

IDS = st.text(max_size=40)
NUMBERS = st.integers(1, 10_000)
BASES = st.integers(0, 10 * CEILING)


@given(IDS, NUMBERS, BASES)
def test_a_pause_is_around_its_middle(attempt_id: str, attempt: int, base: int) -> None:
    """min(5 min, base x 2^(n-1)) x (0.5 + u), u in [0, 1)."""
    middle = min(CEILING, base * 2 ** (attempt - 1))
    pause = backoff(attempt_id, attempt, base)
    assert middle // 2 <= pause <= middle * 3 // 2
    assert backoff(attempt_id, attempt, base) == pause


def test_pauses_of_attempts_that_failed_together_differ() -> None:
    assert len({backoff(f"attempt-{n}", 1) for n in range(100)}) == 100


@pytest.mark.parametrize(("asked", "least"), [(None, SECOND // 2), (1, SECOND // 2), (7 * SECOND, 7 * SECOND), (2 * CEILING, 2 * CEILING)])
def test_what_the_receiver_asks_for_is_honoured_when_it_is_longer(asked: int | None, least: int) -> None:
    assert backoff("a", 1, retry_after_us=asked) == max(backoff("a", 1), asked or 0) >= least


@given(IDS, NUMBERS, st.integers(0, 2**50), st.integers(-(2**50), 2**50))
def test_what_is_left_of_a_pause_is_never_longer_than_one(attempt_id: str, attempt: int, failed_at: int, set_by: int) -> None:
    """§10.3: whatever the wall clock was set to since; and with a clock that goes right it is the rest of the pause."""
    due = failed_at + backoff(attempt_id, attempt)
    assert 0 <= time_left(due, failed_at + set_by, attempt) <= min(CEILING, SECOND * 2 ** (attempt - 1)) * 3 // 2
    assert time_left(due, failed_at, attempt) == due - failed_at
    assert time_left(due, due, attempt) == time_left(due, due + 1, attempt) == 0

"""What is due at once, and since when (§10.3)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.lease import at_once, due_since, due_time

TIMES = st.integers(0, 2**60)


@given(TIMES, TIMES)
def test_what_is_due_at_once_is_so_under_any_clock(stamped: int, now: int) -> None:
    """X-13: a clock that was ahead when it was written delays nothing."""
    assert at_once(stamped) <= now and at_once(stamped) < 0
    assert due_time(at_once(stamped)) == stamped


@given(TIMES)
def test_a_time_is_a_time(due: int) -> None:
    assert due_time(due) == due_since(due, 0) == due_since(due, due) == due


@given(TIMES, TIMES)
def test_whoever_waits_longest_goes_first(stamped: int, now: int) -> None:
    """What a clock ahead has stamped waits for nobody: it goes before all others."""
    assert due_since(at_once(stamped), now) == (stamped if stamped <= now else 0)

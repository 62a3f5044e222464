"""§14.5: what a run's log says of a limit that put it off stays in clear, so it holds nothing that programs or people say."""

from __future__ import annotations

import inspect
import re

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import limits
from holdfast.core.limits import Later, Limit, may_enter
from holdfast.engine.drive import driver

NAMES = st.text("abcdefghij0123456789.:-", min_size=1, max_size=12)
LIMITS = st.builds(lambda n, rate: Limit(in_flight=n, per_second=rate), st.integers(1, 9), st.one_of(st.none(), st.floats(0.01, 100)))


@given(NAMES, LIMITS, st.integers(0, 20), st.integers(0, 10**9), st.one_of(st.none(), st.integers(0, 10**9)))
def test_a_name_and_numbers(name: str, limit: Limit, count: int, full_at: int, since: int | None) -> None:
    match may_enter([(name, limit, count)], {name: full_at}, 10**6, since):
        case Later(why=why):
            assert re.fullmatch(rf"limit {re.escape(name)}: ([0-9.e+-]+ per second|[0-9]+ of [0-9]+ in flight)", why)


def test_nothing_else_makes_one_or_hands_back_with_words() -> None:
    """The text has one source and one use."""
    assert inspect.getsource(limits).count("= Later(") == 1
    assert re.findall(r"RunHandedBack\(([^()]*)\)", inspect.getsource(driver)).count("self._services.owner, soonest.why") == 1
    assert all(words in ("self._services.owner", "self._services.owner, soonest.why") for words in re.findall(r"RunHandedBack\(([^()]*)\)", inspect.getsource(driver)))

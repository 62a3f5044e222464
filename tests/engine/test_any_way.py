"""Whatever way a step goes, no record answers for a call with other arguments, and what a run ends with stands (§4.12, §6.3, §6.6, §6.11, §7.6)."""

from __future__ import annotations

import time

import pytest

from tests.engine import any_way
from tests.searches import search


@pytest.mark.parametrize("part", range(4))
def test_no_record_answers_for_another_call(part: int) -> None:
    done, wrong = search(range(part * 25, part * 25 + 25), time.monotonic() + 600, any_way.tell)
    assert (done, wrong) == (25, [])

"""Whatever people answer, and whenever: what a node is told is what was accepted, once, and what was refused is not done (§5, §8, §10.8–§10.12)."""

from __future__ import annotations

import time

import pytest

from tests.people import any_answer
from tests.searches import search


@pytest.mark.parametrize("part", range(4))
def test_what_a_node_is_told_is_what_was_accepted(part: int) -> None:
    first = part * 4
    done, wrong = search(range(first, first + 4), time.monotonic() + 600, any_answer.over(None))
    assert (done, wrong) == (4, [])

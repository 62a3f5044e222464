"""Whatever way a step goes, no record answers for a call with other arguments, and what a run ends with stands (§4.12, §6.3, §6.6, §6.11, §7.6)."""

from __future__ import annotations

import time

import pytest

from tests.engine import any_way


@pytest.mark.parametrize("part", range(4))
async def test_no_record_answers_for_another_call(part: int) -> None:
    done, wrong = await any_way.play_all(range(part * 25, part * 25 + 25), time.monotonic() + 600)
    assert (done, wrong) == (25, [])

"""Small rounds of what `python -m tests.workers.faults` does in earnest: workers in trouble, most of it over PostgreSQL, and each invariant held."""

from __future__ import annotations

import pytest

from tests.workers.faults import ROUNDS, Asked, main

NEVER = 60.0
"""Minutes: what is asked for is done, however long a busy machine takes for it."""
SMALL = {"kills": 3, "freezes": 2, "crashes": 2, "cuts": 3, "promotions": 1, "demotions": 1, "partitions": 1, "clocks": 4}


@pytest.mark.parametrize("name", SMALL)
async def test_a_little_of_it_over_postgres(name: str) -> None:
    """Everything that was asked for was done, and nothing is wrong (§10, targets.md)."""
    summary = await ROUNDS[name][0](Asked("postgres", SMALL[name], 7, NEVER, slack=10))
    assert not summary.wrong, summary.text()
    assert summary.done == summary.asked, summary.text()


async def test_clocks_over_sqlite() -> None:
    """§10.3: the store goes by its machine's clock, whatever its workers' clocks say."""
    summary = await ROUNDS["clocks"][0](Asked("sqlite", 4, 7, NEVER, slack=10))
    assert not summary.wrong, summary.text()
    assert summary.done == summary.asked, summary.text()


def test_a_round_that_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["no-such-round"])
    assert "there are kills" in capsys.readouterr().err

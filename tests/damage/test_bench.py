"""The damage bench at 60 places; at 5,000 where it is asked for (X-21)."""

from __future__ import annotations

import pytest

from tests.damage.bench import run


def verdict(form: str, places: int, seed: int) -> None:
    said: list[str] = []
    counts = run(form, places, seed, said.append)
    assert not said, "\n".join(said)
    assert counts["named"] >= places * 2 // 3, f"at most a third of the places may change nothing that can be read: {counts}"


@pytest.mark.parametrize("form", ["sqlite", "workspace"])
def test_sixty_places(form: str) -> None:
    """Targets: named on read or by the checker, 0 silent, 0 untyped, 0 endless."""
    verdict(form, 60, 3)


@pytest.mark.heavy
@pytest.mark.parametrize("form", ["sqlite", "workspace"])
def test_five_thousand_places(form: str) -> None:
    verdict(form, 5000, 11)

"""Programs drawn by a seed end in the simulator as they end undisturbed (§4.3, §4.6, §6.5, §7.1)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from tests.simulation.drawn import draw, play
from tests.simulation.mutants import MUTANTS

from holdfast.testing.simulate import simulate

SEEDS = 1000
LEAST, SECONDS = 10, 5.0
"""Seeds that are played however slow the machine is, and seconds of its processor for all of them."""


def test_what_is_drawn_ends_as_if_nothing_had_happened(record_property: Callable[[str, object], None]) -> None:
    """As many of a thousand seeds as there is time for; ``python -m tests.simulation.drawn --first N --seeds 1`` tells a broken one again."""
    first = int.from_bytes(os.urandom(2)) % SEEDS
    until = time.process_time() + SECONDS
    played = 0
    while played < LEAST or time.process_time() < until:
        story = play((first + played) % SEEDS)
        assert story is None or story.ok, str(story)
        played += 1
    record_property("seeds", f"{played} from {first}")


@pytest.mark.parametrize("mistake", ["records_dropped", "sibling_results_dropped"])
def test_a_mistake_is_seen_in_what_is_drawn(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    casts = {seed: draw(seed) for seed in range(12)}
    MUTANTS[mistake].plant(monkeypatch)
    assert not all(simulate(seed, cast=cast).ok for seed, cast in casts.items() if cast.plays)

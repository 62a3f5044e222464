"""What a killed world leaves of a framework's coroutines is collected in the test that made it, and complains there."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def imported() -> Iterator[None]:
    """What the frameworks made when they were imported lives on: looking through it after each test would take longer than most tests do."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()

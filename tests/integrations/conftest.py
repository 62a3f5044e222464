"""What a killed world leaves of a framework's coroutines is collected in the test that made it, and complains there."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()

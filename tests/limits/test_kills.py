"""Must show 7 in small: workers that hold limited runs are killed, and no limit is exceeded (the whole: ``python -m tests.limits.kills``)."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.limits.kills import torment


@pytest.mark.heavy
def test_no_limit_is_exceeded_though_holders_are_killed(tmp_path: Path) -> None:
    """§10.11, T-85: queue, tenant and rate hold while holders are killed; what they had is free again at once, and every run ends."""
    found = asyncio.run(torment(tmp_path, workers=4, runs=60, kills=4, until=time.monotonic() + 50, seed=7))
    assert found["violations"] == [], found
    assert found["ended"] == {"completed": 60} and found["killed_holders"] == 4, found

"""Must-show 2, in short: the same as ``python -m tests.outbox.kills``, 60 times."""

import time
from pathlib import Path

from tests.outbox.kills import torment


async def test_dispatchers_are_killed_and_frozen(tmp_path: Path) -> None:
    found = await torment(tmp_path, 60, time.monotonic() + 20, seed=7)
    assert found["asked_and_done"][1] >= 10
    assert found["intents"] > 0

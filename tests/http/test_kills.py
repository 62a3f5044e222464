"""A server is killed in the middle of streams and POSTs (issue «Serve», 4): a few of the rounds of ``python -m tests.http.kills``."""

from __future__ import annotations

from pathlib import Path

from tests.http.kills import torment


async def test_nothing_is_missed_repeated_or_done_twice(tmp_path: Path) -> None:
    told = await torment(2, 240, 7, tmp_path)
    assert told["kills"] == 2 and told["clients"] >= 4 and told["events"] > 4 * 5, told

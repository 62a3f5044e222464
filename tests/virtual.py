"""What a store over SQLite does by the clock or in a thread, left out where time is virtual."""

from __future__ import annotations

import pytest

from holdfast.stores import changes
from holdfast.stores.sqlite import writer

NEVER = 1e9


def keep_in_virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread, for virtual time does not wait for one; and no look at what other processes have written, for there are none: a minute has thousands."""
    monkeypatch.setattr(writer, "SLOW", float("inf"))
    for poll in ("ACTIVE_POLL", "IDLE_POLL"):
        monkeypatch.setattr(changes, poll, NEVER)


__all__ = ["keep_in_virtual_time"]

"""What a thread carries from one run to the next (§4.15)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core.graph import Program
from holdfast.core.progress import Progress
from holdfast.core.status import TERMINAL
from holdfast.ports import RunFilter, Store


async def carried(store: Store, program: Program, thread_id: str) -> Mapping[str, Any] | None:
    """The values of the thread's newest ended run, if the program has channels that carry over; else None."""
    if not any(c.thread for c in program.channels.values()):
        return None
    newest = await store.runs(RunFilter(thread_id=thread_id, statuses=tuple(TERMINAL), limit=1))
    if not newest:
        return None
    loaded = await store.load(newest[0][0].run_id)
    return None if loaded is None else Progress(loaded.run.run_id, loaded.whole).walk(loaded.rows).checkpoint.values

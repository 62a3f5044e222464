"""What a thread carries from one run to the next (§4.15), and its history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core.graph import Program
from holdfast.core.progress import Progress
from holdfast.core.status import TERMINAL
from holdfast.ports import RunFilter, Store

LOOKED_AT = 1000


def carries(program: Program) -> bool:
    """Whether runs of this program begin with what their thread's last run left."""
    return any(c.thread for c in program.channels.values())


async def carried(store: Store, program: Program, tenant_id: str, thread_id: str) -> Mapping[str, Any] | None:
    """The channels that carry over, from the thread's newest ended run; None if the program has none.

    Newest by its turn in the lane, which no clock decides (§3.4). A run that was canceled before it started has no channels,
    and one of another skill may lack some: for those the run before it is asked, so that a conversation is not lost
    to a run that took no part in it.
    """
    wanted = {c.name for c in program.channels.values() if c.thread}
    if not wanted:
        return None
    found: dict[str, Any] = {}
    looked, limit = 0, 1
    while wanted:
        page = await store.runs(RunFilter(tenant_id=tenant_id, thread_id=thread_id, statuses=tuple(TERMINAL), limit=limit, by_turn=True))
        for run, _ in page[looked:]:
            if run.started_at is None or not wanted:
                continue
            loaded = await store.load(run.run_id)
            if loaded is not None:
                values = Progress(run.run_id, loaded.whole).walk(loaded.rows).checkpoint.values
                found |= {n: values[n] for n in wanted & values.keys()}
                wanted -= found.keys()
        if len(page) < limit or limit >= LOOKED_AT:
            break
        looked, limit = len(page), limit * 10
    return found


__all__ = ["carried", "carries"]

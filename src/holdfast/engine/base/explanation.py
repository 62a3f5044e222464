"""Reads what ``core.explain`` needs, and hides secrets in what it says."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core import events as ev
from holdfast.core.codec import open_row
from holdfast.core.explain import Blocked, explain
from holdfast.core.lease import Alive, Lease
from holdfast.core.masks import Mask
from holdfast.core.payloads import mapped
from holdfast.core.run import Run
from holdfast.core.views import condition
from holdfast.engine.base import obstacles
from holdfast.ports import Store

PAGE = 1000
T = TypeVar("T")


async def explained(store: Store, run: Run, lease: Lease, hidden: Mask) -> dict[str, Any]:
    """What happened to a run, why it stands where it stands, and what would move it, as plain values."""
    events: list[ev.Event] = []
    previous = b""
    while rows := await store.rows(run.run_id, events[-1].seq if events else 0, PAGE):
        for row in rows:
            events += open_row(row, previous).events
            previous = row.hash
    lane = f"the run {run.blocked_by} is before it in its lane" if run.blocked_by else ""
    found = await obstacles.lacking(store, run, lease)
    if hidden.names:  # before anything is cut: a part of a secret is not found again
        run = _hiding(hidden, run)
        events = [e if isinstance(e.fact, ev.Unknown) else replace(e, fact=_hiding(hidden, e.fact)) for e in events]
    no_worker, shape = ("", "") if found is None else (found.said, found.wanted if found.offered and found.wanted not in found.offered else "")
    effects = tuple(await store.effects(run.run_id))
    blocked = Blocked(no_worker, shape, lane, lease.owner_alive is Alive.NO, effects, store.now())
    made = explain(run, condition(run, lease, store.now()), events, blocked)
    shown: dict[str, Any] = hidden.record(msgspec.json.decode(msgspec.json.encode(made)))
    return shown


def _hiding(hidden: Mask, value: T) -> T:
    """The record without what is secret in its texts."""
    made: T = mapped(value, "", lambda said, place: hidden.text(said) if isinstance(said, str) else said)
    return made


__all__ = ["explained"]

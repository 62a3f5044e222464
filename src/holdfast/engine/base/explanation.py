"""Reads what ``core.explain`` needs, and hides secrets in the explanation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core import events as ev
from holdfast.core.codec import open_row
from holdfast.core.compensation import find_taken_back, missing
from holdfast.core.effects import Effect
from holdfast.core.explain import Blocked, explain
from holdfast.core.lease import Alive, Lease, due_time
from holdfast.core.masks import Mask
from holdfast.core.payloads import change_each
from holdfast.core.progress import Progress
from holdfast.core.run import Run
from holdfast.core.status import RESUMABLE, Condition
from holdfast.core.toolcalls import TYPE, place_of
from holdfast.core.views import condition
from holdfast.engine.base import obstacles
from holdfast.engine.base.services import Services
from holdfast.engine.look.living import living, unsendable
from holdfast.ports import Store

PAGE = 1000
T = TypeVar("T")


async def explain_run(services: Services, run: Run, lease: Lease, hidden: Mask) -> dict[str, Any]:
    """Returns, as plain values, what happened to a run, why it is where it is, and what would move it."""
    store = services.store
    events: list[ev.Event] = []
    previous = b""
    while rows := await store.rows(run.run_id, events[-1].seq if events else 0, PAGE):
        for row in rows:
            events += open_row(row, previous).events
            previous = row.hash
    ahead = await obstacles.find_before(services, run, lease)
    lane, before = ("", "") if ahead is None else (f"the run {ahead.run_id} is before it in its lane ({ahead.why})", ahead.run_id)
    found = await obstacles.lacking(store, run, lease)
    if hidden.names:  # hidden before any text is shortened: part of a secret would not be recognized
        run = _hiding(hidden, run)
        events = [e if isinstance(e.fact, ev.Unknown) else replace(e, fact=_hiding(hidden, e.fact)) for e in events]
    no_worker, shape = ("", "") if found is None else (found.said, found.wanted if found.offered and found.wanted not in found.offered else "")
    effects, now = tuple(await store.effects(run.run_id)), store.now()
    limit = await obstacles.find_limit(services, run) if condition(run, lease, now) is Condition.QUEUED else None
    nobody = not any(o.works and (not o.queues or run.queue in o.queues) for o in await living(store, now))
    due = min(due_time(lease.due), now) if lease.due is not None and lease.due < 0 else lease.due
    idle = lease.owner == services.owner and run.run_id not in services.driving
    gone = await _find_gone(services, run, effects)
    blocked = Blocked(no_worker, shape, lane, before, lease.owner_alive is Alive.NO, effects, now, "" if limit is None else limit.why, nobody, due, await _requests(store, run), idle, gone)
    made = explain(run, condition(run, lease, store.now()), events, blocked)
    shown: dict[str, Any] = hidden.record(msgspec.json.decode(msgspec.json.encode(made)))
    return shown


async def _find_gone(services: Services, run: Run, effects: Sequence[Effect]) -> tuple[Effect, ...]:
    """Returns the effects of completed steps of an ended run that were undone, or may have been: because of these a resume would be refused."""
    if run.status not in RESUMABLE or run.settled or not missing(effects, run.run_id) or (loaded := await services.store.load(run.run_id)) is None:
        return ()
    loaded = await services.threads.carry(loaded)
    return tuple(find_taken_back(effects, run.run_id, Progress(run.run_id, loaded.whole).walk(loaded.rows).checkpoint))


async def _requests(store: Store, run: Run) -> tuple[str, ...]:
    """Returns the states of a run's requests that tool runners have or are to take."""
    if all(place_of(w.name) is None for w in run.waits):
        return ()
    lacking = await unsendable(store, ())
    said = []
    for i in await store.intents(run.run_id):
        if i.open and i.type.startswith(TYPE):
            nobody = f"no_transport_for {i.type}: no runner of that workspace is up" if lacking(i) else ""
            missing = "" if i.not_configured is None else i.not_configured.message
            over = f"{i.owner} had the request, and its lease is over" if i.lease_until is not None and i.lease_until <= store.now() else ""
            said.append(missing or nobody or over or (f"{i.owner} has the request" if i.owner else i.detail or "the request is queued"))
    return tuple(dict.fromkeys(said))


def _hiding(hidden: Mask, value: T) -> T:
    """Returns the record with secrets hidden in its texts."""
    made: T = change_each(value, "", lambda said, place: hidden.text(said) if isinstance(said, str) else said)
    return made


__all__ = ["explain_run"]

"""Which run of a thread a signal is for (§5.11).

It is the thread's newest run that has begun and not ended. The choice for a signal under a key is kept on a shelf of the store: a sender that
was not answered sends the same again, and that must reach the same run, also after it has ended. If that run ended without the signal, the
next choice is kept behind the first. No choice is ever replaced, so that two senders at the same time cannot choose two runs.
"""

from __future__ import annotations

import contextlib
import hashlib

from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core.codec import open_row
from holdfast.core.envelopes import in_clear
from holdfast.core.errors import KeyUnavailable, RecordDamaged
from holdfast.core.run import Run
from holdfast.core.status import NOT_ENDED, TERMINAL, Status
from holdfast.engine.look.snapshot import find_run
from holdfast.ports import RunFilter, Shelves, Store, Upkeep, offers_shelves

SHELF = "holdfast.signals"
MANY = 10_000
PAGE = 500


async def recipient(store: Store, target: str, said: cmd.Signal, *, keyed: bool, tenant_id: str | None = None) -> Run:
    """Returns the run that a signal is for: the one with that id, or one of a thread. ``keyed``: the sender gave the key, and may send again.

    Raises:
        InvalidInput, RunNotFound: there is no such run, and no such thread with a run that has not ended.
    """
    run = None
    if target and await store.get(target) is None:
        run = await (_choose(store, target, said, tenant_id) if keyed else newest_live(store, target, tenant_id))
    return run or (await find_run(store, target, tenant_id))[0]


async def _choose(store: Store, thread_id: str, said: cmd.Signal, tenant_id: str | None) -> Run | None:
    shelves = store if offers_shelves(store) else None
    if shelves is None:
        return await newest_live(store, thread_id, tenant_id)
    place = _place(tenant_id or "", thread_id, said.name, said.signal_key, hashlib.sha256(said.payload).hexdigest())
    while True:
        if (chosen := await shelves.find_shelved(SHELF, place)) is None:
            if (run := await newest_live(store, thread_id, tenant_id)) is None:
                return None
            if (chosen := await shelves.shelve_new(SHELF, place, run.run_id.encode())) is None:
                return run
        there = await store.get(in_clear(chosen, SHELF, place).decode())
        if there is not None and (there[0].status not in TERMINAL or await find_received(store, there[0].run_id, said) is not None):
            return there[0]
        place += "/"


async def newest_live(store: Store, thread_id: str, tenant_id: str | None = None) -> Run | None:
    """Returns a thread's newest run that has not ended. A run queued behind one that has begun has nothing to ask yet, and receives nothing."""
    rows = await store.runs(RunFilter(tenant_id=tenant_id, thread_id=thread_id, statuses=NOT_ENDED, limit=MANY, by_turn=True))
    begun = (run for run, _ in rows if run.status is not Status.PENDING)
    return next(begun, rows[0][0] if rows else None)


async def find_received(store: Store, run_id: str, said: cmd.Signal) -> ev.SignalReceived | None:
    """Returns the signal with that name and key from a run's log; None if the log has none."""
    seq = 0
    while rows := await store.rows(run_id, seq, PAGE):
        for fact in (e.fact for row in rows for e in open_row(row).events):
            if isinstance(fact, ev.SignalReceived) and (fact.name, fact.key) == (said.name, said.signal_key):
                return fact
        seq = rows[-1].seq
    return None


async def forget(store: Shelves, keeper: Upkeep) -> None:
    """Deletes the choices of runs that were pruned, by this prune or an earlier one. A prune that ended before it came here leaves them to
    the next prune, and so does a prune without the encryption keys of these rows."""
    after = ""
    with contextlib.suppress(KeyUnavailable):
        while rows := await store.shelf_scan(SHELF, "", after, PAGE):
            for place, chosen in rows:
                if await _is_pruned(keeper, in_clear(chosen, SHELF, place).decode()):
                    await store.unshelve(SHELF, place)
            after = rows[-1][0]


async def _is_pruned(keeper: Upkeep, run_id: str) -> bool:
    with contextlib.suppress(RecordDamaged):  # the checker reports it
        return await keeper.find_pruned(run_id) is not None
    return False


def _place(*parts: str) -> str:
    return hashlib.sha256("\x1f".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


__all__ = ["SHELF", "find_received", "forget", "newest_live", "recipient"]

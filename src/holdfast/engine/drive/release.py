"""Letting go of a claimed run that is not driven to a rest (§10.4, §10.13).

A run whose driving stops (its caller was cancelled, its code is not here, its log is damaged)
must not stay with an owner that lives and does nothing: nobody else could go on with it. So it is given back, and the
log says so; what another try cannot mend is set aside for a person as ``interrupted``, and no worker claims it again.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from holdfast.core import events as ev
from holdfast.core.commit import Tip
from holdfast.core.errors import (
    ChainBroken,
    EventUnreadable,
    FingerprintMismatch,
    HoldfastError,
    KeyUnavailable,
    LeaseLost,
    PayloadAltered,
    PlaintextRefused,
    RecordDamaged,
    SkillUnknown,
    StoreCorrupt,
    UnknownStatus,
    UnsupportedFormat,
    VersionConflict,
)
from holdfast.core.lease import AT_ONCE, Lease
from holdfast.core.progress import Progress
from holdfast.core.run import Run
from holdfast.core.status import WAITING
from holdfast.engine.base import pool
from holdfast.engine.base.journal import Draft, Journal
from holdfast.engine.base.reader import Reader
from holdfast.engine.base.services import Services, may_be_held_still
from holdfast.engine.drive.desk import Desk
from holdfast.engine.drive.driver import Driver
from holdfast.engine.drive.tails import surface
from holdfast.ports import Claim, Store, offers_upkeep

# What is wrong with one run; any other error of the store concerns all of them.
DAMAGED = (EventUnreadable, ChainBroken, UnsupportedFormat, UnknownStatus, RecordDamaged, KeyUnavailable, PayloadAltered, PlaintextRefused)
DAMAGED_CODES = frozenset({"checkpoint_head_missing", "checkpoint_hash_mismatch", "blob_unreadable"})
# What somebody else, or this process a moment later, may well go on with.
PASSING = (asyncio.CancelledError, KeyboardInterrupt, SkillUnknown, FingerprintMismatch)


async def driven(services: Services, driver: Driver, claim: Claim | None, inbox: tuple[Any, ...], *, named: bool = False) -> Run:
    """Drives to the next rest; lets go of the run before it passes on what cut the driving short.

    Raises:
        BaseException: what ended the driving.
    """
    pool.current.set(services.pool)
    try:
        run = await driver.drive(claim, inbox, named=named)
        for child in driver.journal.stopped:
            await Desk(services, Reader(services)).settle(child)  # at rest it ends at once, as if it had been asked itself (§10.12)
        if run.interrupted_at is not None:
            await Desk(services, Reader(services)).settle(run.run_id)  # what it was told before it was set aside for a person
        return run
    except (Exception, asyncio.CancelledError, KeyboardInterrupt) as e:
        if driver.journal.tip is not None:
            await asyncio.shield(let_go(services, driver.journal.run.run_id, driver.journal.fence, e, cut=driver.fresh))
        with contextlib.suppress(HoldfastError):  # told of by whoever comes next
            await surface(services)
        raise


async def let_go(services: Services, run_id: str, fence: int, error: BaseException, *, due: int | None = None, cut: bool = False) -> None:
    """Gives back the run whose driving ``error`` stopped, if it is still ours: due again at once, or at ``due``. ``cut``: it had only just
    begun; where it was cancelled, that counts as an owner that died of it, for a step can cancel whatever is in its loop.

    After an error of the store, or of the lease, nothing more is written (§1.12): its owner takes the run up again under a new
    fence, which also says what became of the effects in flight. The error itself is the caller's to raise or report.
    """
    damaged = isinstance(error, DAMAGED) or (isinstance(error, StoreCorrupt) and error.code in DAMAGED_CODES)
    if may_be_held_still(error) and not damaged:
        return
    again = due is not None or (isinstance(error, PASSING) and not damaged)
    why = error.line() if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
    fact: ev.Fact = ev.RunHandedBack(services.owner, cut=cut and isinstance(error, asyncio.CancelledError)) if again else ev.RunInterrupted(why[:1000])
    with contextlib.suppress(HoldfastError):  # a store that cannot say even this: its owner takes the run up again, or ends
        await hand_back(services, run_id, fence, fact, due=due)


async def hand_back(services: Services, run_id: str, fence: int, fact: ev.Fact, *, due: int | None = None) -> bool:
    """One commit with ``fact`` that gives the lease back; False if the run is not ours (any more)."""
    store = services.store
    for _ in range(3):
        held = await _held(store, run_id)
        if held is None or held[1].owner != services.owner or held[1].fence != fence:
            return False
        run, _, tip = held
        answered = run.status in WAITING and any(d.resume for d in run.decisions)
        journal = Journal(store, run, tip, fence, Progress(run_id))
        try:
            await journal.leave(Draft(facts=[fact], unfit=due is not None), due=AT_ONCE if answered and due is None else due)
            return True
        except LeaseLost:
            return False
        except VersionConflict:
            continue  # a commit that was under way when its caller left has come through
    return False


async def _held(store: Store, run_id: str) -> tuple[Run, Lease, Tip] | None:
    """The run, its lease and where its log ends; also where its log or what is beside it is damaged."""
    try:
        loaded = await store.load(run_id)
    except StoreCorrupt:
        evidence = await store.evidence(run_id) if offers_upkeep(store) else None
        if evidence is None or not isinstance(evidence.run, Run) or evidence.lease is None or evidence.tip is None:
            raise
        return evidence.run, evidence.lease, evidence.tip
    return None if loaded is None else (loaded.run, loaded.lease, loaded.tip)


__all__ = ["driven", "hand_back", "let_go"]

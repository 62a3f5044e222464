"""Giving a run back when its driving was cut short: by whoever awaited it, or by an interrupt."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.core import events as ev
from holdfast.core.errors import Conflict, StoreError
from holdfast.core.run import Run
from holdfast.core.status import LIVE
from holdfast.engine.driver import Driver
from holdfast.engine.journal import Draft, Journal
from holdfast.engine.services import Services
from holdfast.ports import Claim


async def driven(services: Services, driver: Driver, claim: Claim | None, inbox: tuple[Any, ...], *, named: bool = False) -> Run:
    """Drives to the next rest. A driving that is cancelled gives its run back before it passes the cancellation on.

    Raises:
        BaseException: what ended the driving. After an error nobody foresaw the run stays with its owner, and counts as taken
            over when that has gone: given back, it would end one worker after the other.
    """
    try:
        return await driver.drive(claim, inbox, named=named)
    except (asyncio.CancelledError, KeyboardInterrupt):
        await let_go(services, driver.journal)
        raise


async def let_go(services: Services, journal: Journal) -> None:
    """Hands the run back, due at once, as the last commit left it (§10.4).

    Otherwise it would stay with an owner that lives and does nothing about it. After an error of the store nothing more
    is written (§1.12): the lease runs out.
    """
    if journal.tip is None or journal.dead is not None or journal.run.status not in LIVE:
        return
    try:
        await journal.leave(Draft(facts=[ev.RunHandedBack(services.owner)]), due=services.store.now())
    except (Conflict, StoreError) as e:
        journal.dead = e  # it is somebody else's by now, or the lease runs out


__all__ = ["driven", "let_go"]

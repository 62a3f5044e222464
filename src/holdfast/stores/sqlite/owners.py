"""Workers as the database knows them: when a lease expires, and whether its owner is alive (§2.9, §10.3)."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from typing import NamedTuple

import apsw

from holdfast.core import vouch
from holdfast.core.lease import Alive
from holdfast.core.vouch import OWN
from holdfast.machine import boot, ticks
from holdfast.stores import apply
from holdfast.stores.liveness import Liveness
from holdfast.stores.sqlite.connection import Q, row, rows

FORGET_AFTER_US = 3600 * 1_000_000


class WorkerRow(NamedTuple):
    owner: str
    started_at: int
    expires_at: int
    boot: str
    ticks: int
    host: str
    pid: int


class Seen(NamedTuple):
    """A worker as it was found: whether it is proven alive or dead, and why its runs may be taken over (None: they may not)."""

    row: WorkerRow
    alive: Alive
    lost: str | None

    @property
    def owner(self) -> str:
        return self.row.owner


class Owners:
    """Judges owners. Between processes of one boot the clock since boot decides, which nobody sets (X-13).

    A clock given by the caller replaces both clocks, so that tests can move time.
    """

    def __init__(self, liveness: Liveness, now: Callable[[], int], *, given: bool) -> None:
        self._liveness = liveness
        self._now = now
        self._ticks = now if given else ticks
        self._boot = "" if given else boot()
        self._mine: dict[str, WorkerRow] = {}

    def register(self, db: apsw.Connection, owner: str, ttl_us: int) -> None:
        """Inside a transaction: registers an owner."""
        now = self._now()
        row = WorkerRow(owner, now, now + ttl_us, self._boot, self._ticks() + ttl_us, platform.node(), os.getpid())
        self._insert(db, row)
        self._mine[owner] = row
        for (lost,) in rows(db, Q.owners_lost):  # as long as nobody knows them, nobody takes their runs over: their leases have run out
            self._insert(db, WorkerRow(lost, now, now, "", self._ticks(), "", 0))

    def _insert(self, db: apsw.Connection, row: WorkerRow) -> None:
        db.execute(Q.worker_insert, row)
        db.execute(Q.vouch_put, vouch.of_worker(*row))

    def renew(self, db: apsw.Connection, owner: str, ttl_us: int) -> int:
        """Inside a transaction: renews a lease, and returns the new expiry, 0 if the owner is not known. For its own owners this process
        writes what it knows of them; for others, what is stored."""
        there = self._mine.get(owner) or self.find(db, owner)
        if there is None:
            return 0
        row = there._replace(expires_at=self._now() + ttl_us, ticks=self._ticks() + ttl_us)
        db.execute(Q.worker_renew, row)
        if db.changes() != 1:
            return 0
        db.execute(Q.vouch_put, vouch.of_worker(*row))
        return row.expires_at

    def drop(self, db: apsw.Connection, statement: str, owner: str) -> bool:
        """Inside a transaction: deletes an owner's row and its voucher."""
        db.execute(statement, (owner,))
        gone = bool(db.changes())
        if gone:
            db.execute(Q.vouch_drop, (OWN, "worker", owner))
        return gone

    def find(self, db: apsw.Connection, owner: str) -> WorkerRow | None:
        found = row(db, Q.worker, (owner,))
        return None if found is None else WorkerRow(*found)

    def all(self, db: apsw.Connection) -> list[WorkerRow]:
        return [WorkerRow(*found) for found in rows(db, Q.workers)]

    def look_at_all(self, db: apsw.Connection) -> list[Seen]:
        """Returns every worker, judged; the proof of life of each is checked once."""
        return [self._judge(w) for w in self.all(db)]

    def holding(self, db: apsw.Connection) -> list[Seen]:
        """Returns the workers that hold runs, judged. However many workers there are, those that hold runs are no more than there is work
        for."""
        return [self._judge(WorkerRow(*found)) for found in rows(db, Q.workers_holding)]

    def _judge(self, row: WorkerRow) -> Seen:
        alive = self.alive(row)
        return Seen(row, alive, apply.why_lost(self.remaining(row), alive))

    def remaining(self, row: WorkerRow) -> int:
        """Returns the microseconds until the lease expires; below one if it has."""
        return self.until(row, row.ticks, row.expires_at)

    def until(self, row: WorkerRow, ticks: int, at: int) -> int:
        """Returns the microseconds until a moment that this owner has recorded by both clocks."""
        return ticks - self._ticks() if row.boot == self._boot else at - self._now()

    def remaining_of(self, worker: WorkerRow | None, ticks: int | None, until: int | None, now: int) -> int:
        """Returns the microseconds that a sender has left for an intent: by its worker's clocks if it is a worker."""
        return (until or now) - now if ticks is None or worker is None else self.until(worker, ticks, until or now)

    def after(self, us: int) -> int:
        """Returns the moment after so many microseconds, by the clock that nobody sets."""
        return self._ticks() + us

    def alive(self, row: WorkerRow) -> Alive:
        """Returns whether an owner is alive, by proof only; a restart of the machine has ended all its processes."""
        return self._liveness.alive(row.owner) if self._boot == row.boot or row.host == platform.node() else Alive.UNKNOWN

    def is_alive(self, db: apsw.Connection, owner: str) -> Alive:
        """The same for an owner that may no longer be registered, because its row was tidied away or a store was acknowledged (X-17)."""
        row = self.find(db, owner)
        return self._liveness.alive(owner) if row is None else self.alive(row)

    def why_lost(self, row: WorkerRow | None) -> str | None:
        """Returns why an owner's runs may be taken over: ``owner_dead`` or ``expired``; None while it is alive (§10.6)."""
        return apply.why_lost(None, Alive.UNKNOWN) if row is None else apply.why_lost(self.remaining(row), self.alive(row))

    def forgettable(self, seen: Seen) -> bool:
        """Whether the row of a lost owner without runs may be deleted, if no open attempt names it."""
        return seen.alive is Alive.NO or (seen.alive is Alive.UNKNOWN and self.remaining(seen.row) < -FORGET_AFTER_US)

"""One store's connection to its database: opening, the schema, the incarnation, the clock, and the ways in for all verbs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
import psycopg
from psycopg import errors as sql

from holdfast.core import ids, vouch
from holdfast.core.commit import InboxItem
from holdfast.core.effects import EffectStatus
from holdfast.core.errors import (
    NOT_OPEN,
    HoldfastError,
    IncarnationChanged,
    RecordDamaged,
    RunNotFound,
    StoreClosed,
    StoreUnavailable,
    UnsupportedFormat,
)
from holdfast.core.lease import Alive, OwnerId
from holdfast.core.pruned import missing
from holdfast.core.vouch import OWN
from holdfast.machine import boot, sweep, ticks
from holdfast.ports import ANYTHING, LostTail, News
from holdfast.stores import apply
from holdfast.stores.crowds import Crowds
from holdfast.stores.liveness import Liveness
from holdfast.stores.postgres import besides, lone
from holdfast.stores.postgres.commits import RACED, TRIES, Committer, Statement, put_values
from holdfast.stores.postgres.connection import (
    PATIENCE,
    Connection,
    Connections,
    first_of,
    many,
    one_of,
    outlasting,
    place,
    rows_of,
    schema_of,
    too_many,
)
from holdfast.stores.postgres.ground import Ground
from holdfast.stores.postgres.hints import Hints
from holdfast.stores.postgres.limits import Tally
from holdfast.stores.postgres.moving import Moving
from holdfast.stores.postgres.news import Hearing
from holdfast.stores.postgres.queries import MIGRATIONS, Q
from holdfast.stores.postgres.remembered import Remembered

OPEN_PATIENCE = 5.0
CROWDED = 0.6  # if more than this part of its connections is in use, this process keeps only one
COUNT_SECONDS = 1.0  # while waiting for news, how often to check whether others need the server's connections more
SPEAK_US = 10_000_000  # after a failover nothing is claimed for this time, unless every living worker has compared what it remembers
VOUCHED = 2  # the schema from which on records beside the log have vouchers
_KNOWN = frozenset({"schema", "incarnation", "store", "system", "timeline"})  # what the table meta contains
T = TypeVar("T")


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """What a server says about itself over a new connection (``Q.server``)."""

    system: int
    timeline: int
    recovering: bool
    now: int
    full: float
    session: int
    begun: int
    checkpoint: int
    written: int
    flushed: int
    tables: int

    @property
    def history(self) -> tuple[int, int]:
        return self.system, self.timeline


class Server:
    """What all verbs of a store share: its connections, what is known of its server, and what this process remembers of it."""

    def __init__(
        self, url: str, *, now: Callable[[], int] | None = None, patience: float = PATIENCE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._place = place(url)
        self.url = self._place.url
        self.incarnation = 0
        self.patience = patience
        self._given = now
        self._plans = clock
        self._heard = (time.time_ns() // 1000, ticks())
        self._boot = "" if now is not None else boot()
        self._liveness: Liveness | None = None
        self._mine: dict[str, dict[str, Any]] = {}
        self._remembered = Remembered()
        self._ground = Ground(clock)
        self._tally = Tally()
        self._crowds = Crowds(clock)
        self._few = lone.Few(clock)
        self._moved = 0
        self._full = self._counted = 0.0
        self.suspect: HoldfastError | None = None
        self._history: tuple[int, int] = (0, 0)
        self._begun = 0
        self._flushed = 0
        self._tables = 0
        self._finding = asyncio.Lock()
        self._moving = Moving(self._place, self.url)
        self._dead: tuple[str, ...] = ()
        self._orphans: list[str] | None = None
        self._pool: Connections | None = None
        self._committer: Committer | None = None
        self._hints = Hints(clock)
        self._news = Hearing(self._place, self._look_for_news, lambda: self._pool is not None and self._pool.crowded, self._hints.tell)
        self._renewing: psycopg.Connection[tuple[Any, ...]] | None = None
        self._renewal = threading.Lock()
        self._home: asyncio.AbstractEventLoop | None = None

    # -- life ---------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Opens the store, or creates its schema in the database.

        Raises:
            StoreUnavailable, StoreRefused, StoreReadOnly, UnsupportedFormat, StoreError: depending on what prevents it.
        """
        if self._pool is not None:
            return
        self._finding = asyncio.Lock()
        pool = Connections(self._place, check=lambda db: self._same_server(pool, db), clock=self._plans)

        async def work(sent: int) -> None:
            async with pool.hold() as db:
                await self._make(db)

        until = time.monotonic() + self.patience
        try:
            while True:
                try:
                    await outlasting(work, self.url, min(OPEN_PATIENCE, self.patience), wrote=False)
                    break
                except StoreUnavailable as e:
                    if not await self._moving.wait() and (not too_many(e.__cause__) or time.monotonic() > until):
                        raise
        except BaseException:
            await self._moving.close()
            await pool.close()
            raise
        self._pool, self._home = pool, asyncio.get_running_loop()
        self._note_crowd(1.0 if pool.crowded else self._full)
        self._committer = Committer(pool, self.url, self.patience, self._clock, self._why_lost, self._news.tell, self._news.with_it)
        self._news.open(pool)
        sweep()

    async def _make(self, db: Connection) -> None:
        async with db.transaction():
            await db.execute(Q.one_maker)
            schema, tables = await one_of(db, Q.is_there)
            if not schema:  # one that an administrator has made for this role is as good
                await db.execute(Q.make_schema)
            if not tables:
                for script in MIGRATIONS:
                    await db.execute(schema_of(self._place, script))
                incarnation, store = secrets.randbits(31), secrets.randbits(62)
                system, timeline = self._history
                for name, value in (("schema", len(MIGRATIONS)), ("incarnation", incarnation), ("store", store), ("system", system), ("timeline", timeline)):
                    await db.execute(Q.meta_set, (name, value))
                await vouch_for_meta(db)
        meta = dict(await rows_of(db, Q.meta))
        self.suspect = None
        if lost := sorted(_KNOWN - meta.keys()):
            way_out = "look at what is missing (holdfast check), restore a backup, or accept the loss: holdfast doctor --acknowledge"
            self.suspect = IncarnationChanged(f"{self.url}: the table meta lacks {', '.join(lost)}, so the store cannot be identified", hint=way_out)
            self.incarnation = meta.get("incarnation", 0)
            self._liveness = self._liveness or Liveness(_proofs(f"{meta.get('system')}.{meta.get('store')}"))
            return
        if meta["schema"] > len(MIGRATIONS):
            raise UnsupportedFormat(f"{self.url} has the schema {meta['schema']}, this release reads {len(MIGRATIONS)}", hint="use the release that wrote it")
        if meta["schema"] < len(MIGRATIONS):
            await self._moving.do(self._migrate)
            meta |= dict(await rows_of(db, Q.meta))
        self.incarnation, self._moved = meta["incarnation"], meta.get("moved", 0)
        self._liveness = self._liveness or Liveness(_proofs(f"{meta['system']}.{meta['store']}"))
        if (meta["system"], meta["timeline"]) != self._history:
            await self._moving.do(functools.partial(self._new_incarnation, history=self._history))

    async def _migrate(self, db: Connection) -> None:
        """Brings an older schema up to date, in one transaction. Existing records are taken as they are; processes that still write the older schema
        are refused."""
        async with db.transaction():
            await db.execute(Q.unhurried)
            await db.execute(Q.one_maker)
            meta = dict(await rows_of(db, Q.meta_lock))
            if meta["schema"] == len(MIGRATIONS):
                return  # another process was first
            for script in MIGRATIONS[meta["schema"] :]:
                await db.execute(schema_of(self._place, script))
            await db.execute(Q.meta_set, ("schema", len(MIGRATIONS)))
            await self._void(db, meta["incarnation"])
            if meta["schema"] < VOUCHED:
                await vouch_anew(db)
            else:
                await many(db, [*besides.vouch_for_limits(await many(db, besides.LIMITS))])
                await vouch_for_meta(db)

    async def _same_server(self, pool: Connections, db: Connection) -> None:
        """Checks a new connection. A server in recovery is left; a server with another history, or one that was reset to an older state, becomes a
        new incarnation (§1.9)."""
        async with self._finding:  # no connection is used before what is remembered has been compared with this server
            flushed, (heard, _) = self._flushed, self._heard  # read before the question is sent: what is noted later may be newer than the answer
            here = Seen(*await one_of(db, Q.server))
            if here.session != db.pgconn.backend_pid and not self._place.pooler:
                db.prepares = False
                await pool.find_pooler()
            self._note_crowd(here.full)
            self._heard = (here.now, ticks())
            if here.recovering:
                raise sql.ReadOnlySqlTransaction("the server is a standby")
            if self._history != (0, 0):
                other, anew = self._history != here.history, here.begun != self._begun
                older = here.written < flushed or (anew and here.checkpoint < flushed) or self._is_put_back(here.tables)
                if other or older or (anew and await self._find_lost(db)):
                    await self._moving.do(functools.partial(self._new_incarnation, history=here.history, heard=None if other else heard))
                    self._flushed = 0
            self._history, self._begun, self._tables = here.history, here.begun, here.tables or self._tables
            self._note_flushed(here.flushed)

    def _is_another(self, here: Seen, flushed: int) -> bool:
        """Whether ``_same_server`` must check the server first: it is another one, in another state, or was restarted. ``flushed``: how much of its
        log was known before it was asked."""
        return here.history != self._history or here.begun != self._begun or here.written < flushed or self._is_put_back(here.tables)

    def _is_put_back(self, tables: int) -> bool:
        """Whether the tables are not those of before: a dump has replaced them while connections stayed open."""
        return self._tables not in (0, tables)

    def _note_flushed(self, flushed: int) -> None:
        """Notes up to where the server has written its log to the disk."""
        self._flushed = max(self._flushed, flushed)

    async def _find_rollback(self, run_id: str) -> None:
        """Handles a run that was read and ends before what was acknowledged here. That can happen without a new connection, because a pooler can
        switch servers unseen."""
        pool = self._open()
        async with pool.hold() as db, self._finding:
            if run_id in await self._find_lost(db):
                await self._moving.do(functools.partial(self._new_incarnation, history=self._history, heard=0))

    def _note_crowd(self, full: float) -> None:
        """Notes which part of its connections the server has in use."""
        self._full, self._counted = full, time.monotonic()
        if self._pool is not None:
            self._pool.crowded = full > CROWDED
            if self._pool.crowded and self._renewal.acquire(blocking=False):
                try:
                    if self._renewing is not None:
                        self._renewing.close()
                        self._renewing = None
                finally:
                    self._renewal.release()

    async def _new_incarnation(self, db: Connection, history: tuple[int, int], heard: int | None = None) -> None:
        """Sets a new incarnation, which makes every earlier fence void: the first process sets it, and the others read it. ``history``: the server's.
        ``heard``: given if the server is the same as before but was reset; the time last heard from it before that, so that an incarnation set by
        another process for the same reason is later."""
        async with db.transaction():
            await db.execute(Q.unhurried)
            await db.execute(Q.one_maker)  # the second process sees all that the first has written, new rows too
            meta = dict(await rows_of(db, Q.meta_lock))
            first = (meta["system"], meta["timeline"]) != history
            if heard is not None:
                first = first or meta["incarnation"] == self.incarnation or meta.get("moved", 0) <= heard
            if first:
                sound = [list(row) for row in await rows_of(db, Q.vouch_some, (OWN, "meta", ["store"]))] == [list(vouch.of_meta(meta))]
                meta["incarnation"] = await self._void(db, meta["incarnation"])
                await db.execute(Q.meta_set, ("system", history[0]))
                await db.execute(Q.meta_set, ("timeline", history[1]))
                ((now, _),) = await rows_of(db, Q.see_now, {"now": self._clock()})
                await db.execute(Q.meta_set, ("moved", now))
                meta["moved"] = now
                if sound:  # otherwise the checker names it until a person has decided
                    await vouch_for_meta(db)
            await self._reckon(db)
            for values in self._mine.values():  # the row of a living worker may be among what was lost; the renewal shows that it has compared
                await db.execute(Q.worker_keep, {**values, "now": self._clock()})
                await db.execute(Q.worker_renew, {**values, "now": self._clock()})
        self.incarnation, self._moved = meta["incarnation"], meta.get("moved", 0)
        if self._committer is not None:
            self._committer.forget()
        self._news.tell()

    async def _reckon(self, db: Connection) -> None:
        """Compares what was acknowledged here with what this server has. Runs that have lost commits are held back from all workers, because a
        process that remembers these commits may know of effects that are no longer on record."""
        gone = await self._find_lost(db)
        if not gone:
            return
        for run, left in gone.items():
            recorded = await rows_of(db, Q.effects_recorded, (run,))
            self._remembered.lose(run, left, {effect_id: EffectStatus(status) for effect_id, status in recorded})
        await db.execute(Q.hold_back, {"b": [ids.bucket_number(r) for r in gone], "run": list(gone)})

    async def _find_lost(self, db: Connection) -> dict[str, int | None]:
        """Returns the runs whose newest commit acknowledged here is missing, each with the row that it ends with now."""
        known = dict(self._remembered)
        if not known:
            return {}
        asked = {"b": [ids.bucket_number(r) for r in known], "run": list(known), "n": [t.row for t in known.values()], "hash": [t.hash for t in known.values()]}
        gone: dict[str, int | None] = dict(await rows_of(db, Q.tails, asked))
        for run, *_ in await rows_of(db, Q.pruned_get, (list(gone),)) if gone else ():
            del gone[run]
        return gone

    def take_tail(self) -> LostTail | None:
        return self._remembered.take()

    def keep_tail(self, tail: LostTail) -> None:
        self._remembered.keep(tail)

    async def _spoken(self, db: Connection) -> bool:
        """Whether all who may remember lost commits have compared them with this server: every living worker, since the incarnation moved."""
        if self._moved and (self.now() - self._moved >= SPEAK_US or not await rows_of(db, Q.unspoken, {"moved": self._moved, "now": self._clock()})):
            self._moved = 0
        return not self._moved

    async def _void(self, db: Connection, before: int) -> int:
        incarnation = before
        while incarnation == before:
            incarnation = secrets.randbits(31)
        await db.execute(Q.meta_set, ("incarnation", incarnation))
        await db.execute(Q.move_fences, {"incarnation": incarnation, "now": self._clock()})
        return incarnation

    async def acknowledge(self) -> None:
        """Accepts the log as it is, on behalf of an operator: sets a new incarnation, which makes every earlier fence void (§1.9)."""

        async def work(db: Connection, sent: int) -> int:
            meta = dict(await rows_of(db, Q.meta_lock))
            system, timeline = self._history
            known = {"schema": len(MIGRATIONS), "store": secrets.randbits(62), "system": system, "timeline": timeline}
            for name in known.keys() - meta.keys():
                await db.execute(Q.meta_set, (name, known[name]))
            await db.execute(Q.forget_workers)
            incarnation = await self._void(db, meta.get("incarnation", self.incarnation))
            await vouch_for_meta(db)
            return incarnation

        self.incarnation = await self._do(work, anyway=True)
        if self.suspect is not None:  # without its meta, its proofs of life had no name
            self.suspect, self._liveness = None, Liveness(_proofs(await self._name()))
        self._remembered.clear()
        self._commits().forget()
        self._news.tell()

    async def _name(self) -> str:
        """Returns which store this is, as its table meta says."""
        meta = dict((await self._ask((Q.meta, None)))[0])
        return f"{meta['system']}.{meta['store']}"

    async def close(self) -> None:
        """Finishes pending work, and gives up every owner's proof of life."""
        await self._moving.close()
        await self._news.close()
        if self._committer is not None:
            await self._committer.close()
            self._committer = None
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()
        with self._renewal:
            if self._renewing is not None:
                self._renewing.close()
                self._renewing = None
        if self._liveness is not None:
            self._liveness.close()
        self._mine = {}

    def _proofs(self) -> Liveness:
        if self._liveness is None:
            raise StoreClosed(f"{self.url} is not open", hint=NOT_OPEN)
        return self._liveness

    def _alive(self, owner: str, its: str | None) -> Alive:
        """Returns whether an owner is alive. Only a proof counts: a file on this machine that is locked while its process lives, or the owner's name."""
        if its is not None and its != self._boot and OwnerId.parse(owner) is None:
            return Alive.UNKNOWN
        return self._proofs().alive(owner)

    def _why_lost(self, owner: str, its: str | None, left: int | None) -> str | None:
        return apply.why_lost(left, self._alive(owner, its))

    def now(self) -> int:
        """Returns the database's time as last heard, plus what the clock since boot has counted from then on (§10.3)."""
        if self._given is not None:
            return self._given()
        heard, at = self._heard
        return heard + ticks() - at

    def _clock(self) -> int | None:
        """Returns the time that a statement compares with: that of a test, or None for the database's own."""
        return None if self._given is None else self._given()

    # -- the ways in --------------------------------------------------------------------------------

    def _open(self) -> Connections:
        if self._pool is None:
            raise StoreClosed(f"{self.url} is not open", hint=NOT_OPEN)
        return self._pool

    def _commits(self) -> Committer:
        if self._committer is None:
            raise StoreClosed(f"{self.url} is not open", hint=NOT_OPEN)
        return self._committer

    async def _ask(self, *asked: Statement, apart: bool = False) -> list[list[tuple[Any, ...]]]:
        """Reads with one or several statements in one round trip; several see one snapshot, unless they may be ``apart``."""
        apart = apart or len(asked) == 1
        every = asked if apart else ((Q.begin_snapshot, None), *asked, (Q.commit, None))
        found: list[list[tuple[Any, ...]]] | None = None
        if (answer := self._open().at_once(every)) is not None:
            with contextlib.suppress(psycopg.Error, OSError):  # nothing was written, so it is asked again with ``outlasting``
                found = await answer
        if found is None:
            found = await outlasting(lambda sent: self._open().answer(lambda db: many(db, every)), self.url, self.patience, wrote=False)
        return found if apart else found[1:-1]

    def _writable(self) -> None:
        """Refuses to write to a store whose identity is in doubt."""
        if self.suspect is not None:
            raise type(self.suspect)(self.suspect.message, hint=self.suspect.hint, code=self.suspect.code)

    async def _do(self, work: Callable[[Connection, int], Awaitable[T]], *, anyway: bool = False, whole: bool = False) -> T:
        """Runs a transaction. ``work`` is called with the number of times it has been sent before; ``anyway``: also on a store whose identity is in
        doubt; ``whole``: ``work`` begins and commits the transaction itself, in the round trips that it makes in any case."""
        pool = self._open()
        if not anyway:
            self._writable()

        async def transaction(sent: int) -> T:
            for attempt in range(TRIES):
                try:
                    async with pool.hold() as db:
                        if whole:
                            return await work(db, sent)
                        await many(db, [(Q.begin, None), (Q.bounded, None)])
                        done = await work(db, sent)
                        await db.ask((Q.commit, None))
                        return done
                except RACED:
                    if attempt == TRIES - 1:
                        raise
            raise AssertionError("the last attempt gives an outcome")

        return await outlasting(transaction, self.url, self.patience)

    async def _change(self, statement: str, values: Any, mine: Callable[[Connection], Awaitable[bool]] | None = None) -> bool:
        """Executes one statement that returns a row if it changed something. ``mine`` is called if an answer was lost, and returns whether what is
        there now is what was to be written."""

        async def work(db: Connection, sent: int) -> bool:
            done = await first_of(db, statement, values) is not None
            return done or (sent > 0 and mine is not None and await mine(db))

        return await self._do(work, whole=True)

    # -- news ---------------------------------------------------------------------------------------

    async def _look_for_news(self) -> int:
        """Returns a number that changes when anything is written; also reads the server's time."""
        pool = self._open()
        async with pool.hold() as db:
            number, now, flushed, tables = await one_of(db, Q.news)
            if tables and self._is_put_back(tables):
                await self._same_server(pool, db)
            if time.monotonic() - self._counted > COUNT_SECONDS:
                self._note_crowd((await one_of(db, Q.full))[0])
        self._heard = (now, ticks())
        self._note_flushed(flushed)
        return int(number)

    async def wait_for_change(self, timeout: float, about: News = ANYTHING) -> News:
        return await self._news.wait(timeout, about)

    # -- what several verbs do ----------------------------------------------------------------------

    async def _missing(self, error: RunNotFound, *run_ids: str) -> RunNotFound:
        """Returns the error for several runs of which one is not here, which says if that one was pruned."""
        left = besides.read_pruned(*await self._ask(*besides.ask_pruned(run_ids)))
        return error if left is None else missing(left.run_id, left)

    async def _tell_missing(self, db: Connection, run_id: str) -> RunNotFound:
        """Inside a transaction: returns the error for a run that is not here, which says if it was pruned."""
        return missing(run_id, besides.read_pruned(*await many(db, besides.ask_pruned([run_id]))))

    async def _put(self, db: Connection, item: InboxItem) -> InboxItem:
        bucket = ids.bucket_number(item.run_id)
        locked, there = await many(db, [(Q.lock_run, (bucket, item.run_id)), (Q.put, put_values(item, self._clock()))])
        if not locked:
            raise await self._tell_missing(db, item.run_id)
        if there and there[0][0] is None:
            raise RecordDamaged("inbox", item.run_id, item.key, missing=True)
        return besides.item(item.run_id, there[0]) if there else msgspec.structs.replace(item, taken_seq=None)


def _proofs(store: str) -> str:
    """Returns the folder of a store's proofs of life on this machine, for this user only."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return os.path.join(base, f"holdfast-{os.getuid()}", hashlib.sha256(store.encode()).hexdigest()[:24])


async def vouch_for_meta(db: Connection) -> None:
    await many(db, [*besides.keep([vouch.of_meta(dict(await rows_of(db, Q.meta)))])])


async def vouch_anew(db: Connection) -> None:
    """Inside a transaction: vouches for all records as they are now, and for no others."""
    _, _, *kept = await many(db, [(Q.keys_free, None), (Q.place_anew, None), *besides.KEPT])
    await many(db, [(Q.vouch_forget, None), *besides.vouch_for_all(kept), (Q.roll_anew, (list(vouch.COUNTED),)), (Q.shelf_roll_forget, None), (Q.shelf_roll_anew, None)])


__all__ = ["CROWDED", "Seen", "Server", "vouch_anew", "vouch_for_meta"]

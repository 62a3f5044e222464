"""The PostgreSQL store: the verbs of the port, each one transaction at READ COMMITTED.

Theory of operation. Nothing here rests on an isolation level: run rows are locked in the order of their ids, unique indexes guard
lanes, keys and the log, and every commit is a compare-and-set by fence and by the hash of the row it follows (``commits.py``).
All times are the database's: what is stored or compared is compared inside it, and ``now()`` is what it said last and the clock
since boot from there on. A few connections are shared by all verbs; renewal has one of its own, and so has the listener for news.

What passes (a lost connection, a restart, a deadlock) is outlasted: the same thing is sent again until ``patience`` ends, and each verb
tells its own earlier writing from somebody else's. A server that has become another one (a standby promoted, a backup put back) is a
new incarnation: every fence given out before is void, and workers load again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import hashlib
import os
import platform
import secrets
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import psycopg
from psycopg import errors as sql

from holdfast.core import blobs, canon, chunks, codec, ids, vouch
from holdfast.core.checkpoint import Checkpoint
from holdfast.core.chunks import Emitted, Stored
from holdfast.core.codec import Row
from holdfast.core.commit import Commit, DedupClaim, InboxItem, LedgerRow, Settlement, Step, Tip
from holdfast.core.consistency import Problem, record_problem
from holdfast.core.effects import Effect, EffectStatus
from holdfast.core.errors import (
    HoldfastError,
    IncarnationChanged,
    LeaseLost,
    LogRolledBack,
    RecordDamaged,
    RunNotFound,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
    UnknownStatus,
    UnsupportedFormat,
)
from holdfast.core.intents import Intent
from holdfast.core.lease import Alive, Lease, OwnerId, due_since
from holdfast.core.limits import Backlog, Due, Later, Limit, Rule, Use, chosen, in_force
from holdfast.core.offers import Offer
from holdfast.core.pruned import Tombstone, missing
from holdfast.core.run import Run
from holdfast.core.schedules import Schedule
from holdfast.core.status import Status
from holdfast.core.tokens import Token
from holdfast.core.vouch import OWN, Voucher
from holdfast.machine import boot, sweep, ticks
from holdfast.ports import (
    ANYTHING,
    NO_LIMITS,
    Claim,
    Claims,
    Dossier,
    Evidence,
    Head,
    IntentCount,
    Loaded,
    LostTail,
    News,
    Pruned,
    RunFilter,
    Tally,
    Usage,
    Worker,
)
from holdfast.stores import apply
from holdfast.stores.apply import Found
from holdfast.stores.crowds import AMONG, CROWD, FEW, LANES, LINES, MARKED, Crowds, Line
from holdfast.stores.liveness import Liveness
from holdfast.stores.postgres import besides, lone, outbox, upkeep
from holdfast.stores.postgres import limits as bounds
from holdfast.stores.postgres.arrays import Numbers, Texts
from holdfast.stores.postgres.commits import RACED, TRIES, Committer, Key, Statement, emitting, keep_blob, put_values
from holdfast.stores.postgres.connection import (
    MIGRATIONS,
    PATIENCE,
    Connection,
    Connections,
    Q,
    many,
    outlasting,
    place,
    schema_of,
    too_many,
    translate,
)
from holdfast.stores.postgres.ground import Ground
from holdfast.stores.postgres.listing import listings
from holdfast.stores.postgres.moving import Moving
from holdfast.stores.postgres.news import Hearing
from holdfast.stores.postgres.remembered import Remembered, said

OPEN_PATIENCE = 5.0
LONGEST_BESIDE = 1.0  # seconds for which a renewal waits for the loop that drives the other verbs
CROWDED = 0.6  # a server that has given away so much of its connections is left all but one
COUNT_SECONDS = 1.0  # whoever waits for news looks so often whether others need its connections more
SPEAK_US = 10_000_000  # after a failover nothing is claimed for so long, unless every living worker has said what it misses
VOUCHED = 2  # the schema from which on records beside the log have vouchers
MAX_LIST = 10_000
_KNOWN = frozenset({"schema", "incarnation", "store", "system", "timeline"})  # what the table meta says
MAX_PROBLEMS = 100
_LINEAGES = 100  # pruned in one transaction
T = TypeVar("T")


class PostgresStore:
    """A store in one PostgreSQL database, in a schema of its own. ``now`` replaces its clock, so that tests can move time; ``patience``
    is for how many seconds a verb outlasts an outage; ``clock`` counts the seconds for which a connection keeps its plans."""

    takes_statements = True
    has_server: bool = True

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
        self._ground = Ground()
        self._crowds = Crowds()
        self._few = lone.Few()
        self._moved = 0
        self._full = self._counted = 0.0
        self.suspect: HoldfastError | None = None
        self._history: tuple[int, int] = (0, 0)
        self._finding = asyncio.Lock()
        self._moving = Moving(self._place, self.url)
        self._dead: tuple[str, ...] = ()
        self._pool: Connections | None = None
        self._committer: Committer | None = None
        self._news = Hearing(self._place, self._look_for_news, lambda: self._pool is not None and self._pool.crowded)
        self._renewing: psycopg.Connection[tuple[Any, ...]] | None = None
        self._renewal = threading.Lock()
        self._home: asyncio.AbstractEventLoop | None = None

    # -- life ---------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Opens the store, or makes its schema in the database.

        Raises:
            StoreUnavailable, StoreReadOnly, UnsupportedFormat, StoreError: by what stands in the way.
        """
        if self._pool is not None:
            return
        self._finding = asyncio.Lock()
        pool = Connections(self._place, check=self._same_server, clock=self._plans)

        async def work(sent: int) -> None:
            async with pool.held() as db:
                await self._make(db)

        until = time.monotonic() + self.patience
        try:
            while True:
                try:
                    await outlasting(work, self.url, min(OPEN_PATIENCE, self.patience), wrote=False)
                    break
                except StoreUnavailable as e:
                    if not await self._moving.waited() and (not too_many(e.__cause__) or time.monotonic() > until):
                        raise
        except BaseException:
            await self._moving.close()
            await pool.close()
            raise
        self._pool, self._home = pool, asyncio.get_running_loop()
        self._crowded(1.0 if pool.crowded else self._full)
        self._committer = Committer(pool, self.url, self.patience, self._clock, self._lost, self._news.tell, self._news.with_it)
        self._news.open(pool)
        sweep()

    async def _make(self, db: Connection) -> None:
        async with db.transaction():
            await db.execute(Q.one_maker)
            schema, tables = await _one(db, Q.is_there)
            if not schema:  # one that an administrator has made for this role is as good
                await db.execute(Q.make_schema)
            if not tables:
                for script in MIGRATIONS:
                    await db.execute(schema_of(self._place, script))
                incarnation, store = secrets.randbits(31), secrets.randbits(62)
                system, timeline = self._history
                for name, value in (("schema", len(MIGRATIONS)), ("incarnation", incarnation), ("store", store), ("system", system), ("timeline", timeline)):
                    await db.execute(Q.meta_set, (name, value))
                await _vouch_for_meta(db)
        meta = dict(await _all(db, Q.meta))
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
            meta |= dict(await _all(db, Q.meta))
        self.incarnation, self._moved = meta["incarnation"], meta.get("moved", 0)
        self._liveness = self._liveness or Liveness(_proofs(f"{meta['system']}.{meta['store']}"))
        if (meta["system"], meta["timeline"]) != self._history:
            await self._moving.do(functools.partial(self._new_incarnation, history=self._history))

    async def _migrate(self, db: Connection) -> None:
        """Brings an older schema up to date, in one transaction. What is there counts as it is; whoever still writes as before is refused."""
        async with db.transaction():
            await db.execute(Q.one_maker)
            meta = dict(await _all(db, Q.meta_lock))
            if meta["schema"] == len(MIGRATIONS):
                return  # somebody else was first
            for script in MIGRATIONS[meta["schema"] :]:
                await db.execute(schema_of(self._place, script))
            await db.execute(Q.meta_set, ("schema", len(MIGRATIONS)))
            await self._void(db, meta["incarnation"])
            if meta["schema"] < VOUCHED:
                await _vouch_anew(db)
            else:
                await many(db, [*besides.vouch_for_limits(await many(db, besides.LIMITS))])
                await _vouch_for_meta(db)

    async def _same_server(self, db: Connection) -> None:
        """Looks at a new connection: a server in recovery is left, and one on another history is a new incarnation (§1.9)."""
        system, timeline, recovering, now, full = await _one(db, Q.server)
        self._crowded(full)
        self._heard = (now, ticks())
        if recovering:
            raise sql.ReadOnlySqlTransaction(f"{self.url} is a standby")
        async with self._finding:  # no connection is used before what is remembered has been held against what is here
            if self._history not in ((0, 0), (system, timeline)):
                await self._moving.do(functools.partial(self._new_incarnation, history=(system, timeline)))
            self._history = (system, timeline)

    def _crowded(self, full: float) -> None:
        """Notes how much of its connections the server has given away."""
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

    async def _new_incarnation(self, db: Connection, history: tuple[int, int]) -> None:
        """Every fence given out before is void; whoever comes first takes the new one, the others read it. ``history``: the server's."""
        async with db.transaction():
            meta = dict(await _all(db, Q.meta_lock))
            if (meta["system"], meta["timeline"]) != history:
                sound = [list(row) for row in await _all(db, Q.vouch_some, (OWN, "meta", ["store"]))] == [list(vouch.of_meta(meta))]
                meta["incarnation"] = await self._void(db, meta["incarnation"])
                await db.execute(Q.meta_set, ("system", history[0]))
                await db.execute(Q.meta_set, ("timeline", history[1]))
                ((now, _),) = await _all(db, Q.see_now, {"now": self._clock()})
                await db.execute(Q.meta_set, ("moved", now))
                meta["moved"] = now
                if sound:  # else the checker names it until somebody has looked
                    await _vouch_for_meta(db)
            await self._reckon(db)
            for values in self._mine.values():  # the row of a living worker may be among what was lost; and from now on it has spoken
                await db.execute(Q.worker_keep, {**values, "now": self._clock()})
                await db.execute(Q.worker_renew, {**values, "now": self._clock()})
        self.incarnation, self._moved = meta["incarnation"], meta.get("moved", 0)
        if self._committer is not None:
            self._committer.forget()
        self._news.tell()

    async def _reckon(self, db: Connection) -> None:
        """Holds what was acknowledged here against what this server has. A run that has lost commits is held back from all workers: somebody who
        remembers them may know of acts that are on record no more."""
        known = dict(self._remembered)
        if not known:
            return
        asked = {"b": [ids.bucket_number(r) for r in known], "run": list(known), "n": [t.row for t in known.values()], "hash": [t.hash for t in known.values()]}
        gone: dict[str, int | None] = dict(await _all(db, Q.tails, asked))
        for run, *_ in await _all(db, Q.pruned_get, (list(gone),)):
            del gone[run]
        for run, left in gone.items():
            recorded = await _all(db, Q.effects_recorded, (run,))
            self._remembered.lost(run, left, {effect_id: EffectStatus(status) for effect_id, status in recorded})
        await db.execute(Q.hold_back, {"b": [ids.bucket_number(r) for r in gone], "run": list(gone)})

    def take_tail(self) -> LostTail | None:
        return self._remembered.take()

    def keep_tail(self, tail: LostTail) -> None:
        self._remembered.keep(tail)

    async def _spoken(self, db: Connection) -> bool:
        """Whether all who may remember lost commits have held them against what is here: every living worker, since the server became another."""
        if self._moved and (self.now() - self._moved >= SPEAK_US or not await _all(db, Q.unspoken, {"moved": self._moved, "now": self._clock()})):
            self._moved = 0
        return not self._moved

    async def _void(self, db: Connection, before: int) -> int:
        incarnation = before
        while incarnation == before:
            incarnation = secrets.randbits(31)
        await db.execute(Q.meta_set, ("incarnation", incarnation))
        await db.execute(Q.move_fences, {"incarnation": incarnation, "now": self._clock()})
        return incarnation

    async def close(self) -> None:
        """Ends what is in hand, and lets go of every owner's proof of life."""
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

    def now(self) -> int:
        """The database's time as it was heard last, and what the clock since boot counted from there on (§10.3)."""
        if self._given is not None:
            return self._given()
        heard, at = self._heard
        return heard + ticks() - at

    def _clock(self) -> int | None:
        """The time that a statement compares with: a test's, or None for the database's own."""
        return None if self._given is None else self._given()

    # -- the ways in --------------------------------------------------------------------------------

    def _open(self) -> Connections:
        if self._pool is None:
            raise StoreError(f"{self.url} is not open", hint="await store.open() first", code="store_closed")
        return self._pool

    def _commits(self) -> Committer:
        if self._committer is None:
            raise StoreError(f"{self.url} is not open", hint="await store.open() first", code="store_closed")
        return self._committer

    async def _ask(self, *asked: Statement, apart: bool = False) -> list[list[tuple[Any, ...]]]:
        """Reads, one statement or several in one round trip; several see one snapshot, unless they may be ``apart``."""
        apart = apart or len(asked) == 1
        every = asked if apart else ((Q.begin_snapshot, None), *asked, (Q.commit, None))
        found: list[list[tuple[Any, ...]]] | None = None
        if (answer := self._open().at_once(every)) is not None:
            with contextlib.suppress(psycopg.Error, OSError):  # nothing was written: it is asked again, with patience
                found = await answer
        if found is None:
            found = await outlasting(lambda sent: self._open().answer(lambda db: many(db, every)), self.url, self.patience, wrote=False)
        return found if apart else found[1:-1]

    def _writable(self) -> None:
        """Refuses to write into what may be another store than it says."""
        if self.suspect is not None:
            raise type(self.suspect)(self.suspect.message, hint=self.suspect.hint, code=self.suspect.code)

    async def _do(self, work: Callable[[Connection, int], Awaitable[T]], *, anyway: bool = False, whole: bool = False) -> T:
        """A transaction. ``work`` is told how often it has been sent before; ``anyway``: also into a store that does not know itself; ``whole``:
        ``work`` begins and commits it itself, in the round trips that it makes in any case."""
        pool = self._open()
        if not anyway:
            self._writable()

        async def transaction(sent: int) -> T:
            for attempt in range(TRIES):
                try:
                    async with pool.held() as db:
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
        """One statement that gives a row if it changed something. ``mine``: whether what is there now is what was to be written, asked
        where an answer was lost."""

        async def work(db: Connection, sent: int) -> bool:
            done = await _first(db, statement, values) is not None
            return done or (sent > 0 and mine is not None and await mine(db))

        return await self._do(work, whole=True)

    # -- writing ------------------------------------------------------------------------------------

    async def commit(self, commit: Commit) -> Tip:
        committer = self._commits()
        self._writable()
        prepared = apply.prepare(commit)
        if __debug__ and not prepared.step:
            commit.check()
        try:
            tip = await committer.commit(prepared)
        except RunNotFound as e:
            raise await self._missing(e, commit.run.run_id, *(i.run_id for i in commit.puts)) from None
        self._remembered.committed(commit, tip)
        return tip

    async def step(self, step: Step) -> Tip:
        committer = self._commits()
        self._writable()
        try:
            tip = await committer.step(step)
        except RunNotFound as e:
            raise await self._missing(e, step.run_id) from None
        self._remembered.stepped(step.run_id, tip)
        return tip

    async def put(self, item: InboxItem) -> InboxItem:
        async def work(db: Connection, sent: int) -> InboxItem:
            return _mine(await self._put(db, item), item, sent)

        kept = await self._do(work, whole=True)
        self._news.tell(News.DUE | News.INBOX)
        return kept

    async def _missing(self, error: RunNotFound, *run_ids: str) -> RunNotFound:
        """What is said of runs of which one is not here: whether it was pruned."""
        left = besides.pruned(*await self._ask(*besides.pruned_of(run_ids)))
        return error if left is None else missing(left.run_id, left)

    async def _left(self, db: Connection, run_id: str) -> RunNotFound:
        """Inside a transaction: what is said of a run that is not here."""
        return missing(run_id, besides.pruned(*await many(db, besides.pruned_of([run_id]))))

    async def _put(self, db: Connection, item: InboxItem) -> InboxItem:
        bucket = ids.bucket_number(item.run_id)
        locked, there = await many(db, [(Q.lock_run, (bucket, item.run_id)), (Q.put, put_values(item, self._clock()))])
        if not locked:
            raise await self._left(db, item.run_id)
        if there and there[0][0] is None:
            raise RecordDamaged("inbox", item.run_id, item.key, missing=True)
        return besides.item(item.run_id, there[0]) if there else msgspec.structs.replace(item, taken_seq=None)

    async def settle_effect(self, effect: Effect, expected: str) -> bool:
        data = codec.encode_effect(effect)

        async def mine(db: Connection) -> bool:
            return await _first(db, Q.effect_get, (effect.key, effect.effect_id)) == (data,)

        values = {
            "run": effect.run_id, "id": effect.effect_id, "key": effect.key, "status": effect.status.value, "data": data, "expected": str(expected),
            "seal": vouch.of_effect(effect, data).seal,
        }  # fmt: skip
        done = await self._change(Q.effect_settle, values, mine)
        self._news.tell(News.OTHER)
        return done

    # -- leases and lanes ---------------------------------------------------------------------------

    async def claim(
        self,
        owner: str,
        queues: Sequence[str],
        skills: Sequence[str] | None,
        *,
        limit: int,
        run_id: str | None = None,
        shapes: Sequence[str] | None = None,
        limits: Mapping[str, Limit] = NO_LIMITS,
    ) -> Claims:
        if limit <= 0:
            return Claims()
        committer = self._commits()
        if run_id is not None:
            named = run_id

            async def by_name(db: Connection, sent: int) -> list[tuple[Key, Claim]]:
                return (await self._answers_lost(db, owner) if sent else []) or await self._claim_one(db, owner, named, limits)

            return _driven(committer, await self._do(by_name, whole=True))
        return await self._take_due(self._wanted(owner, queues, skills, shapes, limits) | {"limit": limit}, limits)

    async def _take_due(self, values: dict[str, Any], limits: Mapping[str, Limit]) -> Claims:
        """Claims what is due, or what owners have left that are gone."""
        if self._crowds.lines:
            await self._mark_crowd(self._crowds.lines[0])
        committer = self._commits()
        taken, dead, bounded = await self._do(lambda db, sent: self._claim(db, sent, values), whole=True)
        self._ground.took(len(taken))
        claims = _driven(committer, taken)  # from here on what is claimed below, and its answer lost, can be told from these
        if dead == self._dead and not bounded:
            return claims
        values |= {"dead": list(dead), "limit": values["limit"] - len(taken)}
        try:
            more, again = await self._do(lambda db, sent: self._claim_beside(db, sent, values, limits, bounded=bounded))
        except HoldfastError:
            if not taken:
                raise
            return claims  # they are held: whoever asks again finds the rest
        self._dead = dead
        return Claims([*claims, *_driven(committer, more)], again)

    def _wanted(self, owner: str, queues: Sequence[str], skills: Sequence[str] | None, shapes: Sequence[str] | None, limits: Mapping[str, Limit]) -> dict[str, Any]:
        """What a claim is asked for, and what it looks at besides."""
        begins, look = self._ground.where()
        return {
            "simple": not limits, "owner": owner, "queues": list(queues) or None, "skills": None if skills is None else list(skills),
            "shapes": None if shapes is None else list(shapes), "dead": list(self._dead), "now": self._clock(),
            **begins, "look": look, "crowds": self._crowds.look(),
        }  # fmt: skip

    async def claim_or_load(
        self,
        owner: str,
        queues: Sequence[str],
        skills: Sequence[str] | None,
        *,
        limit: int,
        shapes: Sequence[str] | None = None,
        limits: Mapping[str, Limit] = NO_LIMITS,
    ) -> Claims | Loaded:
        values = self._wanted(owner, queues, skills, shapes, limits) | {"limit": limit}
        beside = limits or self._moved or self._crowds.lines or values["look"] or values["crowds"]
        if limit > 0 and not beside and self._few.likely and (found := await self._lone(values)) is not None:
            return found
        return await self._take_due(values, limits) if limit > 0 else Claims()

    async def _lone(self, values: Mapping[str, Any]) -> Claims | Loaded | None:
        """The only run that is due, where it has never been begun; nothing where nothing is. None: whoever asks has to claim."""
        looked = {**values, "limit": 2, "most": lone.MOST_WORKERS + 1, "boot": self._boot}
        _, (found,) = await self._ask((Q.planned_once, None), (Q.lone, looked), apart=True)
        there = lone.look(found)
        self._few.seen(there.workers)
        if self._gone(values["owner"], there.known) != self._dead:
            return None
        if there.row is None:
            return Claims() if there.nothing else None
        with contextlib.suppress(HoldfastError, UnicodeDecodeError):  # one that cannot be read is claimed: its claimer says so on the run
            return there.loaded(self._run(there.row))
        return None

    def _gone(self, owner: str, known: Sequence[tuple[str, str]]) -> tuple[str, ...]:
        """Which owners are proven dead.

        Raises:
            LeaseLost: the claimer is not a known worker.
        """
        if owner not in {name for name, _ in known}:
            raise LeaseLost(f"{owner} is not a known worker", hint="register it first")
        return tuple([name for name, its in known if name != owner and self._alive(name, its) is Alive.NO])

    async def _claim(self, db: Connection, sent: int, values: Mapping[str, Any]) -> tuple[list[tuple[Key, Claim]], tuple[str, ...], bool]:
        """What is due, where nothing has to be counted: one round trip, which is a transaction of its own, and writes nothing where it finds nothing.
        Gives too which owners are proven dead, and whether a limit may hold runs back, or several tenants wait: then it takes none."""
        owner = values["owner"]
        if sent and (found := await self._answers_lost(db, owner)):
            return found, self._dead, False  # the claim whose answer was lost
        if self._moved and not await self._spoken(db):
            return [], self._dead, False
        asked: list[Statement] = [(Q.claim, values), (Q.claimers, {"owner": owner, "boot": self._boot})]
        looks: list[Statement] = [(Q.ground, values)] if values["look"] else []
        if values["crowds"]:
            tenant, session, lane = self._crowds.lane
            within = {"lines": LINES, "few": FEW, "crowd": CROWD, "lanes": LANES, "lane_tenant": tenant, "lane_session": session, "lane": lane}
            looks += [(Q.crowds, {**values, **within}), (Q.behind_lost, {**values, **within})]
        _, *seen, rows, known = await many(db, [(Q.planned_once, None), *looks, *asked])
        if values["look"]:
            self._ground.seen(seen[0])
        if values["crowds"]:
            self._crowds.seen(seen[-2], seen[-1][0] if seen[-1] else None)
        dead = self._gone(owner, known)
        bounded = bool(rows) and rows[0][0] is None
        return [] if bounded else self._claimed(rows), dead, bounded

    async def _mark_crowd(self, line: Line) -> None:
        """Marks some of those who stand behind the holders of their lanes: claims go through them no more."""
        queue, priority, tenant = line
        asked = {"queue": queue, "priority": priority, "tenant": tenant, "among": AMONG, "marked": MARKED, "now": self._clock()}
        marked = await self._do(lambda db, sent: _all(db, Q.behind_set, asked), whole=True)
        self._crowds.marked(line, len(marked))

    async def _claim_beside(
        self, db: Connection, sent: int, values: Mapping[str, Any], declared: Mapping[str, Limit], *, bounded: bool
    ) -> tuple[list[tuple[Key, Claim]], int | None]:
        """The runs of owners that have been found dead just now, or what limits leave."""
        if sent and (found := await self._answers_lost(db, values["owner"])):
            return found, None
        if self._moved and not await self._spoken(db):
            return [], None
        rows, again = [], None
        if values["dead"] != list(self._dead):
            if values["dead"] and values["limit"] and not bounded:
                rows = [r for r in await _all(db, Q.claim, values) if r[0] is not None]
            await self._tidy(db, values["owner"], values["dead"])
        if bounded:
            rows, again = await self._chosen(db, values, declared)
        return self._claimed(rows), again

    def _claimed(self, rows: list[tuple[Any, ...]]) -> list[tuple[Key, Claim]]:
        at = self.now()
        rows.sort(key=lambda r: (-r[6], due_since(r[7], at), r[8]))
        return [(Key(bucket, id), Claim(run, fence, previous, cause or "")) for run, bucket, id, fence, previous, cause, *_ in rows]

    async def _chosen(self, db: Connection, values: Mapping[str, Any], declared: Mapping[str, Limit]) -> tuple[list[tuple[Any, ...]], int | None]:
        """The claim where a limit may hold runs back, or several tenants wait: what is in use is counted, and who may go is chosen (§10.11)."""
        at, owner, room = {"now": self._clock()}, values["owner"], values["limit"]
        _, stored, full, holders, lines, ((now, _),) = await many(
            db, [(Q.limits_lock, None), (Q.rules, None), (Q.buckets, None), (Q.holders, at), (Q.due_lines, values), (Q.see_now, at)]
        )
        use = Use(in_force(declared, bounds.decoded(stored)), owner, bounds.held(holders, self._lost), dict(full), now)
        may = [line for line in lines if use.in_the_way(line[0], line[2]) is None]
        asked = {**values, "in_queues": [q for q, _, _ in may], "in_priorities": [p for _, p, _ in may], "in_tenants": [t for _, _, t in may]}
        orphans, due = await many(db, [(Q.due_orphans, values), (Q.due_in, asked)])
        waiting = {(b, id): (Due((b, id), queue, tenant, priority, due_since(due_at, now), turn), previous, cause)
                   for b, id, _, queue, tenant, priority, due_at, turn, previous, cause in (*orphans, *due)}  # fmt: skip
        got = chosen([d for d, _, _ in waiting.values()], use, room)
        if not got.keys:
            return [], got.again
        if not await _all(db, Q.see_takers, {"owners": [owner]}):
            raise LeaseLost(f"{owner} is not a known worker", hint="register it first")
        await bounds.keep_buckets(db, got.buckets)
        lost = [waiting[key][1:] for key in got.keys]
        taking = {"b": [b for b, _ in got.keys], "id": [id for _, id in got.keys], "previous": [p for p, _ in lost], "cause": [c for _, c in lost]}
        return await _all(db, Q.take_chosen, {**at, "owner": owner, **taking}), got.again

    async def _tidy(self, db: Connection, owner: str, dead: Sequence[str]) -> None:
        """Lets go of owners that are gone for good, hold nothing, and whom no attempt names that is not closed: that they are dead must stay provable."""
        idle, unsettled = await many(db, [(Q.workers_idle, {"owner": owner, "dead": dead, "now": self._clock()}), (Q.effects_open, None)])
        named = {e.owner for e in besides.sound(unsettled, vouch.of_effect_row, besides.decode_effect) if not e.closed}
        for (gone,) in await _all(db, Q.workers_delete, ([name for (name,) in idle if name not in named],)):
            self._proofs().forget(gone)

    async def _claim_one(self, db: Connection, owner: str, run_id: str, declared: Mapping[str, Limit]) -> list[tuple[Key, Claim]]:
        """A transaction of two round trips, and one more where the run's lane has to be looked at, or what limits it."""
        taken = await self._may_take(db, owner, run_id, declared)
        if taken is None:
            await db.rollback()
            return []
        key, claim = taken
        taking = {"owner": owner, "previous": claim.previous_owner, "cause": claim.cause or None, "b": key.bucket, "id": key.id, "now": self._clock()}
        await many(db, [(Q.take, taking), (Q.commit, None)])
        return [taken]

    async def _may_take(self, db: Connection, owner: str, run_id: str, declared: Mapping[str, Limit]) -> tuple[Key, Claim] | None:
        """Begins a transaction, and says how a run that was asked for by name may be claimed in it."""
        at = self._clock()
        _, _, stored, known, found, see = await many(
            db,
            [
                (Q.begin, None),
                (Q.bounded, None),
                (Q.rules, None),
                (Q.see_takers, {"owners": [owner]}),
                (Q.claim_one, (ids.bucket_number(run_id), run_id)),
                (Q.see_owner, {"b": ids.bucket_number(run_id), "run": run_id, "now": at}),
            ],
        )
        if not known:
            raise LeaseLost(f"{owner} is not a known worker", hint="register it first")
        if not found:
            raise await self._left(db, run_id)
        bucket, id, fence, previous, holds, turn, status, tenant, session, lane, queue = found[0]
        its, left = see[0]
        lost = None if previous is None else self._lost(previous, its, left)
        if not apply.takeable(Found(fence, previous, lost is None, 0, b"", holds, turn, status), owner):
            return None
        if not holds:
            asked = {"run": [run_id], "tenant": [tenant], "session": [session], "lane": [lane], "now": at}
            (_, holder, first, before), *_ = await _all(db, Q.see_lanes, asked)
            if holder is not None or (first is not None and before < turn):
                return None
        rules = in_force(declared, bounds.decoded(stored))
        if previous != owner and rules.touches(queue, tenant):
            _, full, holders, ((now, _),) = await many(db, [(Q.limits_lock, None), (Q.buckets, None), (Q.holders, {"now": at}), (Q.see_now, {"now": at})])
            use = Use(rules, owner, bounds.held(holders, self._lost), dict(full), now)
            if use.in_the_way(queue, tenant) is not None:
                return None
            use.take(queue, tenant)
            await bounds.keep_buckets(db, use.buckets)
        return Key(bucket, id), apply.taken(run_id, fence, previous, owner, lost)

    async def _answers_lost(self, db: Connection, owner: str) -> list[tuple[Key, Claim]]:
        """What an owner holds and has never been told of: claims whose answer was lost."""
        told = self._commits().fences
        held = await _all(db, Q.held, (owner,))
        return [(Key(bucket, id), Claim(run, fence, previous, cause or "")) for run, bucket, id, fence, previous, cause in held if told.get(run) != fence]

    async def register(self, owner: str, ttl_us: int) -> None:
        self._open()
        proofs = self._proofs()
        proofs.hold(owner)
        values = self._worker(owner, ttl_us)

        async def work(db: Connection, sent: int) -> None:
            there = await _first(db, Q.worker_known, (owner,)) if sent else None
            if there != (values["boot"], values["pid"]):
                await db.execute(Q.worker_insert, values)

        try:
            await self._do(work, whole=True)
        except BaseException:
            proofs.release(owner)
            raise
        self._mine[owner] = values

    def _worker(self, owner: str, ttl_us: int) -> dict[str, Any]:
        return _worker_values((owner, self.now(), ttl_us, self._boot, platform.node(), os.getpid()), ttl_us, self._clock())

    async def renew(self, owner: str, ttl_us: int) -> int:
        """May be driven from any thread, by a loop of its own: it has a connection of its own, which that thread waits for. On a crowded server
        it goes over the connection of the verbs, unless the loop that drives them is busy."""
        pool = self._open()
        self._writable()
        found = await self._renew_beside(pool, owner, ttl_us) if pool.crowded else None
        try:
            found = found or await asyncio.to_thread(self._renew, owner, ttl_us)
        except StoreUnavailable:
            found = await self._renew_beside(pool, owner, ttl_us)
            if found is None:
                raise
        if found is None:
            return 0
        self._heard = (found[1], ticks())
        return int(found[0])

    async def _renew_beside(self, pool: Connections, owner: str, ttl_us: int) -> tuple[Any, ...] | None:
        """The new expiry and the time; None where that cannot be had soon. Nothing is broken off: to renew twice does no harm."""
        home = self._home
        if home is None or not home.is_running():
            return None
        renewing = asyncio.run_coroutine_threadsafe(self._renew_over(pool, owner, ttl_us), home)
        await asyncio.to_thread(concurrent.futures.wait, [renewing], min(LONGEST_BESIDE, ttl_us / 10_000_000))
        return renewing.result() if renewing.done() and not renewing.cancelled() else None

    async def _renew_over(self, pool: Connections, owner: str, ttl_us: int) -> tuple[Any, ...] | None:
        try:
            async with pool.held() as db:
                known = self._mine.get(owner)
                row = (owner, *(known[name] for name in _WORKER[1:])) if known is not None else await _first(db, Q.worker_row, (owner,))
                found = None if row is None else await _first(db, Q.worker_renew, _worker_values(row, ttl_us, self._clock()))
                self._crowded((await _one(db, Q.full))[0])
                return found
        except (psycopg.Error, OSError, HoldfastError):
            return None  # it is tried over a connection of its own, which tells what is wrong

    def _renew(self, owner: str, ttl_us: int) -> tuple[Any, ...] | None:
        with self._renewal:
            try:
                if self._renewing is None or self._renewing.closed:
                    self._renewing = psycopg.connect(self._place.conninfo, autocommit=True, connect_timeout=5, tcp_user_timeout=5_000, prepare_threshold=None)
                    at = self._renewing.execute(Q.server).fetchone()
                    if at is None or at[:2] != self._history:  # a worker that has renewed has held what it remembers against what is here
                        raise psycopg.OperationalError("the server is another one: the other connections have to find it first")
                found, full = self._renewed(self._renewing, owner, ttl_us)
                self._crowded(full)
                if self._pool is None or self._pool.crowded:
                    self._renewing.close()
                    self._renewing = None
            except (psycopg.Error, OSError) as e:
                if self._renewing is not None:
                    self._renewing.close()
                    self._renewing = None
                raise translate(e, self.url) from e
        return found

    def _renewed(self, db: psycopg.Connection[tuple[Any, ...]], owner: str, ttl_us: int) -> tuple[tuple[Any, ...] | None, float]:
        """The new expiry and the time, and how full the server is, in one round trip. What this process knows of its own owner is written anew; of
        another's, what is there."""
        known = self._mine.get(owner)
        row = (owner, *(known[name] for name in _WORKER[1:])) if known is not None else db.execute(Q.worker_row, (owner,)).fetchone()
        with db.pipeline():
            renewed = None if row is None else db.execute(Q.worker_renew, _worker_values(row, ttl_us, self._clock()))
            full = db.execute(Q.full)
        return None if renewed is None else renewed.fetchone(), full.fetchone()[0]  # type: ignore[index]  # it gives a row whatever there is

    async def retire(self, owner: str) -> None:
        async def work(db: Connection, sent: int) -> None:
            asked = [(Q.lock_owned, (owner,)), (Q.hand_back, {"owner": owner, "now": self._clock()}), (Q.worker_delete, {"owner": owner})]
            await many(db, asked)
            await bounds.leave(db, self._clock(), owner, None)

        await self._do(work)
        self._mine.pop(owner, None)
        self._commits().forget()
        self._proofs().release(owner)
        self._news.tell(News.DUE | News.FREED)

    def abandon(self, owner: str) -> None:
        """Ends an owner's life without handing anything back, as a crash does: from now on it is proven dead."""
        self._mine.pop(owner, None)
        self._proofs().drop(owner)

    def _proofs(self) -> Liveness:
        if self._liveness is None:
            raise StoreError(f"{self.url} is not open", hint="await store.open() first", code="store_closed")
        return self._liveness

    async def outlive(self, owner: str) -> None:
        self._proofs().keep(owner)

    async def owner_alive(self, owner: str) -> Alive:
        (found,) = await self._ask((Q.worker_known, (owner,)))
        return self._alive(owner, found[0][0] if found else None)

    def _alive(self, owner: str, its: str | None) -> Alive:
        """By proof only: a file on this machine that is locked for as long as its process lives, or the owner's name."""
        if its is not None and its != self._boot and OwnerId.parse(owner) is None:
            return Alive.UNKNOWN
        return self._proofs().alive(owner)

    def _lost(self, owner: str, its: str | None, left: int | None) -> str | None:
        return apply.lost(left, self._alive(owner, its))

    async def workers(self, *, counted: bool = True) -> list[Worker]:
        (found,) = await self._ask((Q.workers_counted if counted else Q.workers, {"now": self._clock()}))
        return [
            Worker(owner, started, expires, self._alive(owner, its).value, count, _offer(owner, data, seal))
            for owner, started, expires, its, count, data, seal in found
        ]

    async def offer(self, owner: str, offer: Offer) -> None:
        async def work(db: Connection, sent: int) -> None:
            data = codec.encode_offer(offer)
            await many(db, [(Q.offers_forget, None), (Q.offer_put, {"owner": owner, "data": data, "seal": vouch.of_offer(owner, data).seal})])

        await self._do(work, whole=True)

    # -- limits: ports.Limiting ---------------------------------------------------------------------

    async def rules(self) -> list[Rule]:
        return bounds.sound(*await self._ask((Q.rules, None), (Q.vouch_of_run, (OWN, "limit"))))

    async def put_rule(self, rule: Rule, before: Rule | None) -> bool:
        async def work(db: Connection, sent: int) -> bool:
            if await bounds.put_rule(db, rule, before):
                return True
            return sent > 0 and rule in bounds.decoded(await _all(db, Q.rules))

        done = await self._do(work)
        self._news.tell(News.DUE)
        return done

    async def usage(self) -> Usage:
        at = {"now": self._clock()}
        return bounds.usage(await self._ask((Q.holders, at), (Q.calls, at), (Q.buckets, None)), self._lost)

    async def backlog(self) -> list[Backlog]:
        (found,) = await self._ask((Q.backlog, {"now": self._clock()}))
        return [Backlog(*r) for r in found]

    async def enter(self, owner: str, run_id: str, place: str, needs: Mapping[str, Limit | None], *, resting: bool = False) -> Later | None:
        async def work(db: Connection, sent: int) -> Later | None:
            known, ((now, _),) = await many(db, [(Q.see_takers, {"owners": [owner]}), (Q.see_now, {"now": self._clock()})])
            if not known:
                raise LeaseLost(f"{owner} is not a known worker", hint="register it first")
            return await bounds.enter(db, self._lost, self._clock(), now, owner, run_id, place, needs, resting=resting)

        return await self._do(work)

    async def leave(self, owner: str, places: Sequence[str]) -> None:
        async def work(db: Connection, sent: int) -> None:
            await bounds.leave(db, self._clock(), owner, places)

        await self._do(work)
        self._news.tell(News.DUE)

    # -- reading ------------------------------------------------------------------------------------

    def _run(self, found: Sequence[Any]) -> Run:
        """The run of a row.

        Raises:
            UnknownStatus: a stored status outside the eight (§2.6).
            EventUnreadable: the cold part is damaged.
        """
        run_id, doc, status, version, step, head = found[:6]
        try:
            known = Status(status)
        except ValueError:
            raise UnknownStatus(f"{run_id} is stored with the status {status!r}, which this release does not know", hint="holdfast check names the damage") from None
        run = codec.decode_run(doc)
        return run if version is None else codec.overlay(run, status=known.value, version=version, step=step, head=head)

    def _lease(self, fence: int, owner: str | None, due: int | None, expires: int | None, its: str | None) -> Lease:
        if owner is None or its is None:
            return Lease(fence, owner, None, Alive.UNKNOWN, due)
        return Lease(fence, owner, expires, self._alive(owner, its), due)

    async def get(self, run_id: str) -> tuple[Run, Lease] | None:
        (found,) = await self._ask((Q.run_get, {"b": ids.bucket_number(run_id), "run": run_id, "now": self._clock()}))
        return (self._run(found[0]), self._lease(*found[0][6:])) if found else None

    async def load_if_ended(self, run_id: str) -> Loaded | tuple[Run, Lease] | None:
        known = self._remembered.tip(run_id)
        (found,) = await self._ask((Q.ended, {"b": ids.bucket_number(run_id), "run": run_id, "now": self._clock()}))
        return lone.ended(self._run(found[-1]), self._lease(*found[-1][6:11]), found, known) if found else None

    async def load(self, run_id: str) -> Loaded | None:
        bucket = ids.bucket_number(run_id)
        by, name = (bucket, run_id), {"b": bucket, "run": run_id, "now": self._clock(), "taken": False}
        known = self._remembered.tip(run_id)  # what is acknowledged while the answer is on its way need not be in it
        found, tips, wholes, rows, items, stated, emitted = await self._ask(
            (Q.run_get, name), (Q.load_tip, by), (Q.load_whole, by), (Q.load_rows, by), (Q.inbox_of, name), (Q.vouch_untaken, (run_id,)),
            (Q.chunks_newest, (run_id,)),
        )
        if not found:
            return None
        run, lease = self._run(found[0]), self._lease(*found[0][6:])
        if not tips:
            raise StoreCorrupt(f"the newest commit of {run_id} is missing from the log", hint="restore a backup", code="checkpoint_head_missing")
        seq, digest, n, since, size = tips[0]
        tip = Tip(seq, digest, n, since, size)
        if known is not None and tip.row < known.row:  # a log that ends before what was committed here has lost its tail (§1.9)
            self._remembered.named[run_id] = said(run_id, tip.row, known.row)
        whole = codec.decode_whole(run_id, wholes[0][0]) if wholes else None
        newest = tuple(chunks.read(run_id, (data for (data,) in emitted)))
        return Loaded(run, tip, lease, whole, tuple([_row(r) for r in rows]), tuple(besides.items(run_id, items, stated)), newest)

    async def runs(self, query: RunFilter) -> list[tuple[Run, Lease]]:
        texts, values = listings(query)
        limit, seen = min(query.limit, MAX_LIST), 0
        out: list[tuple[Run, Lease]] = []
        while len(out) < limit:
            answers = await self._ask(*[(text, {**values, "limit": limit, "seen": seen, "now": self._clock()}) for text in texts])
            for kept in (row for found in answers for row in found):
                with contextlib.suppress(HoldfastError):  # one that cannot be read hides no other; the checker names it (§3.6)
                    out.append((self._run(kept), self._lease(*kept[6:])))
            seen += limit
            if all(len(found) < limit for found in answers):
                break
        return out[:limit]

    async def heads(self, run_ids: Sequence[str]) -> dict[str, Head]:
        named = {"b": [ids.bucket_number(r) for r in run_ids], "run": list(run_ids)}
        wholes, found = await self._ask((Q.heads, named), (Q.heads_rows, named))
        logs: dict[str, list[Row]] = {}
        for run_id, *kept in found:
            logs.setdefault(run_id, []).append(_row(kept))
        out: dict[str, Head] = {}
        for run_id, data in wholes:
            with contextlib.suppress(HoldfastError):  # loading this run alone says what is wrong with it
                out[run_id] = Head(None if data is None else codec.decode_whole(run_id, data), tuple(logs.get(run_id, ())))
        return out

    async def rows(self, run_id: str, after: int = 0, limit: int | None = None) -> list[Row]:
        (found,) = await self._ask((Q.rows, {"b": ids.bucket_number(run_id), "run": run_id, "after": after, "limit": limit}))
        return [_row(r) for r in found]

    async def emit(self, emitted: Sequence[Emitted]) -> None:
        async def work(db: Connection, sent: int) -> None:  # a batch that is written twice is told once: its chunks are numbered
            runs = sorted({e.run_id for e in emitted})
            fences = dict(await _all(db, Q.chunk_fences, {"b": [ids.bucket_number(r) for r in runs], "run": runs}))
            await many(db, [s for e in emitted if fences.get(e.run_id) == e.fence for s in emitting(e, self._clock())])

        await self._do(work)
        self._news.tell(News.OTHER)

    async def chunks(self, run_id: str, after: int = 0, limit: int = 1000) -> list[Stored]:
        (found,) = await self._ask((Q.chunks, (run_id, after, limit)))
        return [Stored(serial, batch, gone) for serial, data, gone in found if (batch := chunks.readable(run_id, data)) is not None]

    async def inbox(self, run_id: str, *, taken: bool = False) -> list[InboxItem]:
        vouchers = (Q.vouch_of_run, (run_id, "inbox")) if taken else (Q.vouch_untaken, (run_id,))
        found, stated = await self._ask((Q.inbox_of, {"b": ids.bucket_number(run_id), "run": run_id, "taken": taken}), vouchers)
        return besides.items(run_id, found, stated)

    async def marked(self, owner: str) -> list[str]:
        committer = self._commits()
        if not committer.knows_all:
            (found,) = await self._ask((Q.marked, (owner,)))
        else:
            driven = list(committer.fences)
            (found,) = await self._ask((Q.marked_of, {"owner": owner, "b": Numbers([ids.bucket_number(r) for r in driven]), "run": Texts(driven)}))
        return [run_id for (run_id,) in found]

    async def claimed(self, kind: str, scope: str, key: str) -> DedupClaim | None:
        asked = {"kind": kind, "scope": scope, "key": key, "now": self._clock()}
        found, stated = await self._ask((Q.claimed, asked), (Q.vouch_some, (OWN, "claim", [vouch.claim_id(kind, scope, key)])))
        claims = [DedupClaim(kind, scope, key, *row[:3]) for row in found]
        besides.hold(map(vouch.of_claim, claims), stated)
        if not claims:
            return None
        status = None
        if not apply.still_taken(claims[0], None, found[0][3]):
            run_id = claims[0].run_id
            (there,) = await self._ask((Q.see_statuses, {"b": [ids.bucket_number(run_id)], "run": [run_id]}))
            status = there[0][1] if there else None
        return claims[0] if apply.still_taken(claims[0], status, found[0][3]) else None

    async def effects(self, run_id: str | None = None, *, key: str | None = None, lineage_root: str | None = None) -> list[Effect]:
        """What was done under a key: a record that is lost is no licence to do it again."""
        asked = (Q.effects, {"run": run_id, "key": key, "root": lineage_root})
        if run_id is None and key is None:
            (found,) = await self._ask(asked)
            if lineage_root is None:
                return besides.sound(found, vouch.of_effect_row, besides.decode_effect)
            for row in found:
                besides.same(vouch.of_effect_row(row), row[-1])
        else:
            found, stated = await self._ask(asked, (Q.vouch_of_run, (run_id, "effect")) if key is None else (Q.vouch_under, ([key], "effect")))
            known = [v for v in map(Voucher._make, stated) if run_id is None or v.run_id == run_id]
            vouch.hold(map(vouch.of_effect_row, found), known if lineage_root is None else [v for v in known if v.id in {row[0] for row in found}])
        return [besides.decode_effect(row) for row in found]

    async def newest_effects(self, tenant_id: str | None = None, *, statuses: Sequence[str] = (), limit: int = 100) -> list[Effect]:
        (found,) = await self._ask((Q.effects_newest, {"tenant": tenant_id, "statuses": list(statuses) or None, "limit": min(limit, MAX_LIST)}))
        return besides.sound(found, vouch.of_effect_row, besides.decode_effect)

    async def tally(self, tenant_id: str | None = None) -> Tally:
        runs, effects = await self._ask((Q.tally_runs, {"tenant": tenant_id}), (Q.tally_effects, {"tenant": tenant_id}))
        return Tally(dict(runs), dict(effects))

    async def ledger(
        self,
        run_id: str | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
        tenant_id: str | None = None,
        after: int | None = None,
        limit: int | None = None,
    ) -> list[LedgerRow]:
        found, *stated = await self._ask(outbox.ledger(run_id, topic, key, tenant_id, after, limit), *outbox.of_ledger(run_id, after))
        kept = [LedgerRow(*r[:7]) for r in found]
        if not stated or topic is not None or key is not None or tenant_id is not None:
            return [entry for entry, row in zip(kept, found, strict=True) if vouch.of_ledger(entry).seal == row[-1]]
        last = vouch.ledger_id(kept[-1].number) if kept and len(kept) == limit else None
        besides.hold(map(vouch.of_ledger, kept), [v for v in stated[0] if last is None or v[2] <= last])
        return kept

    async def open_effects(self, owner: str) -> list[Effect]:
        (found,) = await self._ask((Q.effects_open, None))
        return [e for e in besides.sound(found, vouch.of_effect_row, besides.decode_effect) if e.owner == owner]

    async def blob(self, digest: str) -> bytes:
        (found,) = await self._ask((Q.blob_get, (digest,)))
        return blobs.read_back(digest, found[0][0] if found else None)

    # -- people and schedules -----------------------------------------------------------------------

    async def issue_token(self, token: Token) -> None:
        t, voucher = token, vouch.of_token(token)
        values = {
            "hash": t.hash, "wait": t.wait_id, "tenant": t.tenant_id, "actor": t.actor, "created": t.created_at, "expires": t.expires_at,
            "b": ids.bucket_number(t.run_id), "run": t.run_id, "id": voucher.id, "seal": voucher.seal,
        }  # fmt: skip
        if not await self._change(Q.token_insert, values):
            raise await self._missing(RunNotFound(f"there is no run {t.run_id}"), t.run_id)

    async def token(self, hash: bytes) -> Token | None:
        found, stated = await self._ask((Q.token_get, (hash,)), (Q.vouch_under, ([hash.hex()], "token")))
        besides.hold(map(besides.of_token_row, found), stated)
        return besides.decode_token(found[0]) if found else None

    async def redeem_token(self, hash: bytes, item: InboxItem) -> InboxItem:
        async def work(db: Connection, sent: int) -> InboxItem:
            bucket = ids.bucket_number(item.run_id)
            asked = [
                (Q.lock_run, (bucket, item.run_id)), (Q.token_lock, (hash,)), (Q.inbox_get, {"b": bucket, "run": item.run_id, "key": item.key}),
                (Q.vouch_under, ([hash.hex()], "token")),
            ]  # fmt: skip
            locked, tokens, there, stated = await many(db, asked)
            if sent and there and (kept := _mine(besides.item(item.run_id, there[0]), item, sent)).taken_seq is None:
                return kept
            besides.hold(map(besides.of_token_row, tokens), stated)
            used = apply.usable(besides.decode_token(tokens[0]) if tokens else None, self.now(), answered=not locked or bool(there))
            if used is not None:
                await many(db, [*besides.mark_tokens([used])])
            return await self._put(db, item)

        kept = await self._do(work)
        self._news.tell()
        return kept

    async def put_schedule(self, schedule: Schedule, before: Schedule | None) -> bool:
        async def work(db: Connection, sent: int) -> bool:
            id = schedule.schedule_id
            there = besides.schedule(*await many(db, [(Q.schedule_lock, (id,)), (Q.vouch_some, (OWN, "schedule", [id]))]))
            if sent and there == schedule:
                return True
            if there != before:
                return False
            await many(db, [*besides.put_schedule(schedule, new=before is None)])
            return True

        done = await self._do(work)
        self._news.tell()
        return done

    async def drop_schedule(self, schedule_id: str) -> bool:
        async def gone(db: Connection) -> bool:
            return True  # nobody else puts it back: that it is not there is this verb's doing

        return await self._change(Q.schedule_delete, {"id": schedule_id}, gone)

    async def schedule(self, schedule_id: str) -> Schedule | None:
        return besides.schedule(*await self._ask((Q.schedule_get, (schedule_id,)), (Q.vouch_some, (OWN, "schedule", [schedule_id]))))

    async def schedules(self, due: int | None = None) -> list[Schedule]:
        (found,) = await self._ask((Q.schedules, {"due": due}))
        return besides.sound(found, vouch.of_schedule_row, lambda row: codec.decode_schedule(row[3]))

    # -- outbox -------------------------------------------------------------------------------------

    async def intents(
        self,
        run_id: str | None = None,
        *,
        state: str | None = None,
        type: str | None = None,
        tenant_id: str | None = None,
        after: str | None = None,
        limit: int = 500,
    ) -> list[Intent]:
        found, *whole = await self._ask(outbox.listed(run_id, state, type, tenant_id, after, limit), *outbox.of_run(run_id))
        if whole:
            besides.hold(map(vouch.of_intent_row, whole[0]), whole[1])
        return outbox.sound(found)

    async def intent(self, intent_id: str) -> Intent | None:
        found, stated = await self._ask((Q.intents + " WHERE i.intent_id = %s", (intent_id,)), (Q.vouch_under, ([intent_id], "intent")))
        besides.hold(map(vouch.of_intent_row, found), stated)
        return outbox.decode_intent(found[0]) if found else None

    async def claim_intents(
        self,
        owner: str,
        types: Sequence[str],
        *,
        limit: int,
        ttl_us: int,
        each: int = 1_000_000,
        room: Mapping[tuple[str, str, str], int] | None = None,
        run_id: str | None = None,
        held: Collection[str] = (),
        doubt: bool = False,
    ) -> list[Intent]:
        async def work(db: Connection, sent: int) -> list[Intent]:
            def dead(name: str, its: str | None) -> bool:
                return self._alive(name, its) is Alive.NO

            again = doubt or sent > 0  # sent before, and the answer was lost
            return await outbox.claim(db, owner, types, dead, self._clock(), ttl_us, limit, each, room or {}, run_id, held, doubt=again)

        return await self._do(work, whole=True)

    async def renew_intents(self, owner: str, ttl_us: int) -> None:
        async def work(db: Connection, sent: int) -> None:
            await db.execute(Q.intents_renew, {"owner": owner, "ttl": ttl_us, "now": self._clock()})

        await self._do(work)

    async def settle_intents(self, settlements: Sequence[Settlement]) -> list[bool]:
        async def work(db: Connection, sent: int) -> list[bool]:
            if not sent and outbox.alone(settlements) and await outbox.settle_alone(db, settlements):
                return [True] * len(settlements)
            return await outbox.settle(db, settlements, lambda item: self._put(db, item), keep_blob, sent=sent > 0)

        done = await self._do(work, whole=True)
        self._news.tell(News.OUTBOX | News.DUE | News.INBOX if any(s.puts for s in settlements) else News.OUTBOX)
        return done

    async def drop_payloads(self, before: int, limit: int) -> int:
        return await self._do(lambda db, sent: outbox.drop_payloads(db, before, limit))

    async def intent_counts(self) -> list[IntentCount]:
        (found,) = await self._ask((Q.intent_counts, None))
        return [IntentCount(*r) for r in found]

    # -- shelves: ports.Shelves ---------------------------------------------------------------------

    async def shelve(self, shelf: str, rows: Mapping[str, bytes], once: Collection[str] = ()) -> list[str]:
        """One statement, which is a transaction of its own: one round trip."""
        pool = self._open()
        self._writable()
        if not rows:
            return []
        asked = besides.put_shelf(shelf, rows, once)

        async def work(sent: int) -> list[str]:
            async with pool.held() as db:
                taken = sorted(key for (key,) in await _all(db, *asked))
                if sent and taken:  # where an answer was lost they may have been put by this very call
                    mine = {key for key, data in await _all(db, Q.shelf_some, (shelf, taken)) if data == rows[key]}
                    taken = [key for key in taken if key not in mine]
                return taken

        return await outlasting(work, self.url, self.patience)

    async def shelve_new(self, shelf: str, key: str, data: bytes) -> bytes | None:
        voucher = vouch.of_shelf(shelf, key, data)
        values = {"name": shelf, "key": key, "data": data, "id": voucher.id, "seal": voucher.seal}

        async def work(db: Connection, sent: int) -> bytes | None:
            if await _first(db, Q.shelf_new, values) is not None:
                return None
            there = _shelved(await _all(db, *_shelf_read(shelf, key)))
            return None if sent and there == data else there

        return await self._do(work)

    async def shelved(self, shelf: str, key: str) -> bytes | None:
        return _shelved(*await self._ask(_shelf_read(shelf, key)))

    async def shelf_scan(self, shelf: str, prefix: str = "", after: str = "", limit: int = 100) -> list[tuple[str, bytes]]:
        asked = besides.shelf_range(shelf, prefix, after) | {"limit": limit}
        (found,) = await self._ask((besides.SCAN_SHELF, asked))
        return besides.shelf_rows(found)

    async def unshelve(self, shelf: str, prefix: str) -> int:
        async def work(db: Connection, sent: int) -> int:
            gone = await _all(db, Q.shelf_drop, besides.shelf_range(shelf, prefix))
            await db.execute(Q.vouch_drop, (OWN, "shelf", [vouch.shelf_id(shelf, key) for (key,) in gone]))
            return len(gone)

        return await self._do(work)

    # -- waiting ------------------------------------------------------------------------------------

    async def _look_for_news(self) -> int:
        """A number that moves when anything is written; and the time, heard anew."""
        async with self._open().held() as db:
            number, now = await _one(db, Q.news)
            if time.monotonic() - self._counted > COUNT_SECONDS:
                self._crowded((await _one(db, Q.full))[0])
        self._heard = (now, ticks())
        return int(number)

    async def wait_for_change(self, timeout: float, about: News = ANYTHING) -> News:
        return await self._news.wait(timeout, about)

    # -- the store as a whole -----------------------------------------------------------------------

    async def verify(self) -> list[Problem]:
        """Every chain of the log, in pages, and what was lost with a server's tail."""
        unknown = [] if self.suspect is None else [Problem(self.suspect.code, "error", self.suspect.message, self.suspect.hint)]
        problems = [*unknown, *self._lost_tails()]
        kept = await self._ask(*besides.kept_by_store(self._clock()))
        beside = await besides.apart(kept, lambda: besides.damage_of_store(kept))
        return [*problems, *map(record_problem, beside + await self._damaged_claims()), *await self._chains()]

    def _lost_tails(self) -> list[Problem]:
        return [Problem(LogRolledBack.code, "error", about, "look at what is missing: holdfast check", run) for run, about in self._remembered.named.items()]

    async def _damaged_claims(self) -> list[RecordDamaged]:
        """In pages: there may be many."""
        out: list[RecordDamaged] = []
        last: tuple[str, str, str] = ("", "", "")
        while page := (await self._ask((Q.claims_page, last)))[0]:
            last = page[-1][:3]
            (stated,) = await self._ask((Q.vouch_some, (OWN, "claim", [vouch.claim_id(*row[:3]) for row in page])))
            out += besides.damage_of_claims(page, stated)
        return out

    async def vouch_anew(self) -> None:
        """An operator accepts the records beside the log as they are: what is lost is lost, what was altered counts as it stands."""

        async def work(db: Connection, sent: int) -> None:
            await _vouch_anew(db)
            await many(db, [besides.free((await many(db, [(Q.intents, None)]))[0], self.now())])

        await self._do(work)
        self._news.tell()

    async def health(self) -> list[Problem]:
        """What of the server's settings and state endangers what is kept, or slows it: for ``doctor``."""
        (found,) = await self._ask((Q.health, None))
        return upkeep.health(found[0], time.time_ns() // 1000)

    async def _chains(self) -> list[Problem]:
        broken: dict[tuple[int, int], str] = {}
        last, at, previous = (-1, -1, -1), (-1, -1), b""
        while page := (await self._ask((Q.chain_page, last)))[0]:
            for bucket, run, n, seq, digest, data in page:
                before = last[2] if (bucket, run) == at else 0
                if (n != before + 1 or canon.chain(previous if before else b"", data) != digest) and len(broken) < MAX_PROBLEMS:
                    broken.setdefault((bucket, run), f"the commit that ends with event {seq} does not match its hash")
                last, at, previous = (bucket, run, n), (bucket, run), digest
        if not broken:
            names: dict[tuple[int, int], str] = {}
        else:
            (found,) = await self._ask((Q.run_names, ([b for b, _ in broken], [r for _, r in broken])))
            names = {(bucket, run): run_id for bucket, run, run_id in found}
        out = [Problem("event_chain_broken", "error", why, "restore a backup", names.get(key)) for key, why in broken.items()]
        for (run_id,) in (await self._ask((Q.runs_without_log, None)))[0]:
            out.append(Problem("event_chain_broken", "error", f"{run_id} has no log", "restore a backup", run_id))
        return out

    # -- upkeep: ports.Upkeep -----------------------------------------------------------------------

    async def run_ids(self, after: str = "", limit: int = 1000) -> list[str]:
        found, orphans = await self._ask((Q.run_ids, (after, limit)), (Q.log_orphans, None))
        here = [r for (r,) in found]
        end = here[-1] if len(here) == limit else None
        lost = [r for r in upkeep.orphans(orphans) if r > after and (end is None or r <= end)]
        return sorted([*here, *lost]) if lost else here

    async def _where(self, run_id: str) -> Key | None:
        """Where a run's rows lie, also where only its log is left."""
        found, orphans = await self._ask((Q.run_raw, (ids.bucket_number(run_id), run_id)), (Q.log_orphans, None))
        return Key(*found[0][:2]) if found else upkeep.orphans(orphans).get(run_id)

    async def evidence(self, run_id: str) -> Evidence | None:
        bucket = ids.bucket_number(run_id)
        raws, found, orphans = await self._ask(
            (Q.run_raw, (bucket, run_id)), (Q.run_get, {"b": bucket, "run": run_id, "now": self._clock()}), (Q.log_orphans, None)
        )
        key = Key(*raws[0][:2]) if raws else upkeep.orphans(orphans).get(run_id)
        if key is None:
            return None
        tips, needs, *beside = await self._ask((Q.log_tip, (key.bucket, key.id)), (Q.needs, {"run": run_id}), *besides.kept_of_run(run_id, bucket))
        lease = self._lease(*found[0][6:]) if found else None
        evidence = upkeep.evidence_of(run_id, key, raws[0] if raws else None, tips[0] if tips else None, lease)
        damaged = await besides.apart(beside, lambda: besides.damage_of_run(run_id, beside, self.now())) if raws else []
        return msgspec.structs.replace(evidence, problems=(*evidence.problems, *map(record_problem, damaged)), needs=upkeep.needs(needs) if raws else None)

    async def log(self, run_id: str, after: int = 0, limit: int = 1000) -> list[Row]:
        key = await self._where(run_id)
        return [] if key is None else [_row(r) for r in (await self._ask((Q.log_rows, (key.bucket, key.id, after, limit))))[0]]

    async def whole(self, run_id: str, after: int = 0) -> tuple[int, Checkpoint | HoldfastError] | None:
        key = await self._where(run_id)
        found = [] if key is None else (await self._ask((Q.whole_next, (key.bucket, key.id, after))))[0]
        if not found:
            return None
        seq, data = found[0]
        try:
            return seq, codec.decode_whole(run_id, data)[0]
        except HoldfastError as e:
            return seq, e

    async def rebuild(self, evidence: Evidence, commits: Sequence[Commit]) -> str:
        there = await self.evidence(evidence.run_id)
        if error := apply.mendable(evidence, there, self.now()):
            raise error
        await self._do(lambda db, sent: upkeep.rebuild(db, evidence, commits, self.now()))
        self._commits().forget()
        self._news.tell()
        return ""

    async def claims_of(self, run_id: str) -> list[DedupClaim]:
        found, stated = await self._ask((Q.claims_of, (run_id,)), (Q.vouch_under, ([run_id], "claim")))
        claims = [DedupClaim(kind, scope, key, run_id, digest, until) for kind, scope, key, digest, until in found]
        besides.hold(map(vouch.of_claim, claims), stated)
        return claims

    async def adopt(self, dossier: Dossier) -> bool:
        run_id = dossier.run.run_id
        if await self.get(run_id) is not None:
            return not apply.same(dossier, await self.rows(run_id))
        await self._do(lambda db, sent: upkeep.adopt(db, dossier, self.incarnation, self.now()))
        self._news.tell()
        return True

    async def loans(self) -> list[tuple[str, str]]:
        (found,) = await self._ask((Q.loans, None))
        return [(borrower, lender) for borrower, lender in found]

    async def keep_origin(self, run_id: str, origin: bytes) -> None:
        async def work(db: Connection, sent: int) -> None:
            await db.execute(Q.origin_insert, (origin, ids.bucket_number(run_id), run_id))

        await self._do(work)

    async def pruned(self, run_id: str) -> Tombstone | None:
        return besides.pruned(*await self._ask(*besides.pruned_of([run_id])))

    async def prune(self, before: int, *, dry: bool = False, actor: str = "operator") -> Pruned:
        """In batches of lineages, each a transaction of its own: what is found is locked, and looked at again, before it goes. After each batch others have
        the server to themselves for as long as it took."""
        gone: set[str] = set()
        kept: dict[str, str] = {}
        after = ""
        while roots := [r for (r,) in (await self._ask((Q.old_roots, {"before": before, "after": after, "limit": _LINEAGES})))[0]]:
            after = roots[-1]

            async def work(db: Connection, sent: int, roots: list[str] = roots) -> Pruned:
                return await upkeep.prune(db, roots, before, dry=dry, at=self.now(), by=actor)

            began = time.monotonic()
            found = await self._do(work)
            gone.update(found.run_ids)
            kept.update(found.kept)
            if not dry and len(roots) == _LINEAGES:
                await asyncio.sleep(time.monotonic() - began)
        if gone and not dry:
            self._news.tell()
        return Pruned(tuple(sorted(gone)), dict(sorted(kept.items())))

    async def acknowledge(self) -> None:
        """An operator accepts the log as it is: a new incarnation, and every fence given out before is void (§1.9)."""

        async def work(db: Connection, sent: int) -> int:
            meta = dict(await _all(db, Q.meta_lock))
            system, timeline = self._history
            known = {"schema": len(MIGRATIONS), "store": secrets.randbits(62), "system": system, "timeline": timeline}
            for name in known.keys() - meta.keys():
                await db.execute(Q.meta_set, (name, known[name]))
            await db.execute(Q.forget_workers)
            incarnation = await self._void(db, meta.get("incarnation", self.incarnation))
            await _vouch_for_meta(db)
            return incarnation

        self.incarnation = await self._do(work, anyway=True)
        if self.suspect is not None:  # its proofs of life were kept under no name
            self.suspect, self._liveness = None, Liveness(_proofs(await self._named()))
        self._remembered.clear()
        self._commits().forget()
        self._news.tell()

    async def _named(self) -> str:
        """Which store this is, as its meta says."""
        meta = dict((await self._ask((Q.meta, None)))[0])
        return f"{meta['system']}.{meta['store']}"


def _proofs(store: str) -> str:
    """The folder of a store's proofs of life on this machine, this user's alone."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return os.path.join(base, f"holdfast-{os.getuid()}", hashlib.sha256(store.encode()).hexdigest()[:24])


def _driven(committer: Committer, taken: Sequence[tuple[Key, Claim]]) -> Claims:
    """What was claimed through this store, as its caller is told of it."""
    for key, claim in taken:
        committer.drives(claim.run_id, key, claim.fence)
    return Claims([claim for _, claim in taken])


_WORKER = ("owner", "started", "ttl", "boot", "host", "pid")


def _worker_values(row: Sequence[Any], ttl_us: int, now: int | None) -> dict[str, Any]:
    """What is written of a worker: its row as given, with this lease, and what vouches for it."""
    values = {**dict(zip(_WORKER, row, strict=True)), "ttl": ttl_us}
    return {**values, "now": now, "seal": vouch.of_worker(*(values[name] for name in _WORKER)).seal}


def _offer(owner: str, data: bytes | None, seal: bytes | None) -> Offer | None:
    """What a worker says that it works on; nothing where that is not what it has written, which the checker names."""
    return None if data is None or vouch.of_offer(owner, data).seal != seal else codec.decode_offer(data)


def _shelf_read(shelf: str, key: str) -> Statement:
    return besides.READ_SHELF, (shelf, key, OWN, "shelf", [vouch.shelf_id(shelf, key)])


def _shelved(found: Sequence[tuple[Any, ...]]) -> bytes | None:
    rows = besides.shelf_rows(found)
    return rows[0][1] if rows else None


async def _vouch_for_meta(db: Connection) -> None:
    await many(db, [*besides.keep([vouch.of_meta(dict(await _all(db, Q.meta)))])])


async def _vouch_anew(db: Connection) -> None:
    """Inside a transaction: vouches for all records as they are now, and for none that is not there."""
    _, *kept = await many(db, [(Q.place_anew, None), *besides.KEPT])
    await many(db, [(Q.vouch_forget, None), *besides.vouch_for_all(kept)])


def _mine(there: InboxItem, item: InboxItem, sent: int) -> InboxItem:
    """The item that is there; where an answer was lost, and it is this one, as if it had just been put."""
    if sent and (there.command, there.put_at) == (item.command, item.put_at):
        return msgspec.structs.replace(item, taken_seq=None)
    return there


def _row(found: Sequence[Any]) -> Row:
    return Row(found[0], found[1], found[2])


async def _all(db: Connection, text: str, values: Any = None) -> list[tuple[Any, ...]]:
    return (await db.ask((text, values)))[0]


async def _first(db: Connection, text: str, values: Any = None) -> tuple[Any, ...] | None:
    found = await _all(db, text, values)
    return found[0] if found else None


async def _one(db: Connection, text: str, values: Any = None) -> tuple[Any, ...]:
    found = await _first(db, text, values)
    assert found is not None, "the statement gives a row whatever there is"
    return found


__all__ = ["PostgresStore"]

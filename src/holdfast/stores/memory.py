"""The reference store: the contract in its shortest form, in the memory of one process.

It stores the same encoded bytes as the databases, so whatever is read has gone through the codec. Every verb runs without a pause, so it is atomic in
its event loop; an error in the middle rolls back what the verb has done so far.

The module is long because it has all verbs of the ports, and in front of them what it shares with the stores built on it: rings of chunks, tables
with indexes, the owners, and the verbs that are made of other verbs.
"""

from __future__ import annotations

import asyncio
import base64
import bisect
import contextlib
import json
import secrets
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core import blobs, chunks, codec
from holdfast.core.blobs import Blob
from holdfast.core.checkpoint import Checkpoint
from holdfast.core.chunks import LINGER_US, Batch, Emitted, Stored
from holdfast.core.codec import Row
from holdfast.core.commit import Commit, DedupClaim, InboxItem, LedgerRow, Settlement, Step, ThreadEnd, Tip
from holdfast.core.effects import Effect
from holdfast.core.errors import Conflict, HoldfastError, LeaseLost, RunNotFound
from holdfast.core.intents import Intent, IntentState, answer_lost, drop_payload, is_spent, stands, start_sending
from holdfast.core.jsons import json_of
from holdfast.core.lease import Alive, Lease, Take, Touch, at_once
from holdfast.core.limits import Backlog, Chosen, Held, Later, Limit, Rule, Use, in_force
from holdfast.core.offers import Offer
from holdfast.core.pruned import Tombstone, missing
from holdfast.core.run import Run
from holdfast.core.schedules import Schedule
from holdfast.core.status import TERMINAL, Status
from holdfast.core.tokens import Token
from holdfast.machine import ticks, wall
from holdfast.ports import (
    ANYTHING,
    NO_LIMITS,
    Claim,
    Claims,
    Dossier,
    Evidence,
    IntentCount,
    Loaded,
    News,
    Problem,
    Pruned,
    RunFilter,
    Shelves,
    Store,
    Upkeep,
    Usage,
    Worker,
)
from holdfast.stores import apply
from holdfast.stores.apply import Aged, Call, Candidate, Found, Prepared, Stands, Wanted
from holdfast.stores.changes import Changes

# -- what stores share that one process has open and whose verbs run without a pause ------------------


class Kept(msgspec.Struct, frozen=True):
    """A batch of a ring. ``gone``: when a durable record replaced it."""

    serial: int
    turn: str
    last: int
    data: bytes
    gone: int | None = None


Ring = tuple[Kept, ...]


def ring_after(ring: Ring, e: Emitted, serials: Iterable[int], now: int) -> Ring:
    """Returns the ring after a write, without batches that were replaced a while ago."""
    gone = set(e.replaced)
    kept = [k for k in ring if k.last >= e.before.get(k.turn, 0) and (k.gone is None or k.gone >= now - LINGER_US)]
    kept += [Kept(serial, b.turn.key, b.last, chunks.encode(e.run_id, b)) for b, serial in zip(e.batches, serials, strict=True)]
    return tuple([msgspec.structs.replace(k, gone=now) if k.gone is None and k.turn in gone else k for k in kept])


def ring_beyond(run_id: str, ring: Ring, after: int, limit: int) -> list[Stored]:
    return [Stored(k.serial, chunks.decode(run_id, k.data), k.gone is not None) for k in ring if k.serial > after][:limit]


def ring_newest(run_id: str, ring: Ring) -> tuple[Batch, ...]:
    """Returns the newest batch of each turn that was not replaced."""
    return tuple({k.turn: chunks.decode(run_id, k.data) for k in ring if k.gone is None}.values())


# -- as lines of a file -----------------------------------------------------------------------------


def ring_lines(before: Ring, after: Ring) -> bytes:
    """Returns the changes from one ring to the other as lines: batches that were added, removed, or replaced."""
    was, now = {k.serial: k for k in before}, {k.serial: k for k in after}
    out: list[Any] = [["-", serial] for serial in was if serial not in now]
    out += [["+", k.serial, k.turn, k.last, base64.b64encode(k.data).decode(), k.gone] for s, k in now.items() if s not in was]
    out += [["=", k.serial, k.gone] for s, k in now.items() if s in was and was[s].gone != k.gone]
    return b"".join(json.dumps(line).encode() + b"\n" for line in out)


def ring_read(run_id: str, data: bytes) -> Ring:
    """Returns the ring that results from these lines. Damaged lines are left out: chunks are provisional."""
    kept: dict[int, Kept] = {}
    for line in data.splitlines():
        try:
            match json_of(line):
                case ["+", int(serial), str(turn), int(last), str(text), gone]:
                    chunks.decode(run_id, raw := base64.b64decode(text))
                    kept[serial] = Kept(serial, turn, last, raw, gone if isinstance(gone, int) else None)
                case ["=", int(serial), int(gone)] if serial in kept:
                    kept[serial] = msgspec.structs.replace(kept[serial], gone=gone)
                case ["-", int(serial)]:
                    kept.pop(serial, None)
        except (ValueError, msgspec.DecodeError):
            continue
    return tuple(kept[s] for s in sorted(kept))


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Indexed(dict[K, V]):
    """A dict whose rows ``of`` finds by ``fields``, oldest first as in the dict itself."""

    def __init__(self, **fields: Callable[[V], Hashable]) -> None:
        super().__init__()
        self._fields = fields
        self._found: dict[str, dict[Hashable, dict[K, int]]] = {name: {} for name in fields}
        self._count = 0

    def of(self, name: str, value: Hashable) -> list[V]:
        """Returns the rows with that value in that field."""
        found = self._found[name].get(value, {})
        return [self[key] for key in sorted(found, key=found.__getitem__)]

    def __setitem__(self, key: K, row: V) -> None:
        old = self.get(key)
        if old is None:
            self._count += 1
        for name, field in self._fields.items():
            value = field(row)
            number = self._count
            if old is not None:
                if (was := field(old)) == value:
                    continue
                number = self._drop(name, was, key)
            self._found[name].setdefault(value, {})[key] = number
        super().__setitem__(key, row)

    def _drop(self, name: str, value: Hashable, key: K) -> int:
        keys = self._found[name][value]
        number = keys.pop(key)
        if not keys:
            del self._found[name][value]
        return number

    def setdefault(self, key: K, row: V) -> V:
        if key not in self:
            self[key] = row
        return self[key]

    def pop(self, key: K, *default: Any) -> Any:
        if key in self:
            row = self[key]
            for name, field in self._fields.items():
                self._drop(name, field(row), key)
        return super().pop(key, *default)

    def __copy__(self) -> Indexed[K, V]:
        other: Indexed[K, V] = Indexed(**self._fields)
        for key, row in self.items():
            other[key] = row
        return other


EVERY = sys.maxsize
SLICE_ROWS = 8  # rows of a log that are checked between two turns of the event loop


class Present:
    """The owners of such a store. Each is alive until it is retired or abandoned; its lease ends at a time of the clock that nobody sets (``ticks``;
    §10.3). May be used from any thread."""

    def __init__(self, now: Callable[[], int], ticks: Callable[[], int]) -> None:
        self._now, self._ticks = now, ticks
        self._guard = threading.Lock()
        self.until: dict[str, int] = {}
        self.workers: dict[str, Worker] = {}
        self.dead: set[str] = set()
        self.acting: set[str] = set()  # some of their work may still run when they are retired

    def register(self, owner: str, ttl_us: int) -> None:
        if owner in self.workers:
            raise Conflict(f"the worker {owner} is registered already", hint="an owner id is unique per process start", code="owner_taken")
        self.until[owner] = self._ticks() + ttl_us
        self.workers[owner] = Worker(owner, self._now(), self._now() + ttl_us, Alive.YES.value)
        self.dead.discard(owner)

    def renew(self, owner: str, ttl_us: int) -> int:
        with self._guard:
            if owner not in self.workers or owner in self.dead:
                return 0
            self.until[owner] = self._ticks() + ttl_us
            return self._now() + ttl_us

    def retire(self, owner: str) -> None:
        with self._guard:
            self.workers.pop(owner, None)
            if owner not in self.acting:
                self.dead.add(owner)

    def need(self, owner: str) -> None:
        """Checks that an owner is registered.

        Raises:
            LeaseLost: the owner is not known.
        """
        if owner not in self.workers:
            raise LeaseLost(f"{owner} is not a known worker", hint="register it first")

    def alive(self, owner: str | None) -> Alive:
        if owner in self.dead:
            return Alive.NO
        return Alive.YES if owner in self.workers or owner in self.acting else Alive.UNKNOWN

    def remaining(self, owner: str | None) -> int | None:
        """Returns how long an owner's lease still lasts; None if the owner is not known."""
        return self.until[owner] - self._ticks() if owner is not None and owner in self.workers else None

    def why_lost(self, owner: str) -> str | None:
        """Returns why an owner's runs may be taken over; None while it is alive."""
        return apply.why_lost(self.remaining(owner), self.alive(owner))

    def lease(self, fence: int, owner: str | None, due: int | None) -> Lease:
        alive, left = self.alive(owner), self.remaining(owner)
        return Lease(fence, owner, None if left is None else self._now() + left, alive, due)

    def list_workers(self) -> list[Worker]:
        """Returns the known workers, each with the time that the clock will show at the end of its lease if nobody sets it."""
        alive = {owner: self.alive(owner).value for owner in self.workers}
        ahead = self._now() - self._ticks() if alive else 0
        return [replace(w, alive=alive[o], expires_at=ahead + self.until[o]) for o, w in self.workers.items()]


class _Kept(Store, Upkeep, Shelves, Protocol):
    """A store with all its verbs."""

    present: Present


class Small:
    """The verbs of the ports that need only ``Present``, and those made of other verbs."""

    present: Present
    changes: Changes
    has_server: bool = False

    async def wait_for_change(self, timeout: float, about: News = ANYTHING) -> News:
        return await self.changes.wait(timeout, about)

    async def register(self, owner: str, ttl_us: int) -> None:
        self.present.register(owner, ttl_us)

    async def renew(self, owner: str, ttl_us: int) -> int:
        return self.present.renew(owner, ttl_us)

    async def outlive(self, owner: str) -> None:
        self.present.acting.add(owner)

    async def owner_alive(self, owner: str) -> Alive:
        return self.present.alive(owner)

    async def offer(self, owner: str, offer: Offer) -> None:
        if owner in self.present.workers:
            self.present.workers[owner] = replace(self.present.workers[owner], offer=offer)

    def abandon(self, owner: str) -> None:
        """Ends an owner's life without handing anything back, as a crash does: from now on it is proven dead."""
        self.present.dead.add(owner)

    async def workers(self: _Kept, *, counted: bool = True) -> list[Worker]:
        listed = self.present.list_workers()
        return [replace(w, runs=len(await self.runs(RunFilter(owner=w.owner, limit=EVERY)))) for w in listed] if counted else listed

    async def get(self: _Kept, run_id: str) -> tuple[Run, Lease] | None:
        loaded = await self.load(run_id)
        return None if loaded is None else (loaded.run, loaded.lease)

    async def find_marked(self: _Kept, owner: str) -> list[str]:
        """Returns the runs of an owner whose inbox has items that were not taken."""
        return [run.run_id for run, _ in await self.runs(RunFilter(owner=owner, limit=EVERY)) if await self.inbox(run.run_id)]

    async def open_effects(self: _Kept, owner: str) -> list[Effect]:
        """Returns the attempts of an owner that are not settled."""
        return [e for e in await self.effects() if e.open and e.owner == owner]

    async def schedule(self: _Kept, schedule_id: str) -> Schedule | None:
        return next((s for s in await self.schedules() if s.schedule_id == schedule_id), None)

    async def intent(self: _Kept, intent_id: str) -> Intent | None:
        return next((i for i in await self.intents(limit=EVERY) if i.intent_id == intent_id), None)

    async def intent_counts(self: _Kept) -> list[IntentCount]:
        made: dict[tuple[str, str], list[int]] = {}
        for i in await self.intents(limit=EVERY):
            made.setdefault((i.type, i.state), []).append(i.created_at)
        return [IntentCount(type, state, len(at), min(at)) for (type, state), at in sorted(made.items())]

    async def find_shelved(self: _Kept, shelf: str, key: str) -> bytes | None:
        return dict(await self.shelf_scan(shelf, key, limit=1)).get(key)

    async def shelve_new(self: _Kept, shelf: str, key: str, data: bytes) -> bytes | None:
        there = await self.find_shelved(shelf, key)
        if there is None:
            await self.shelve(shelf, {key: data})
        return there

    async def log(self: _Kept, run_id: str, after: int = 0, limit: int = 1000) -> list[Row]:
        """Returns a run's log. A run whose row is lost keeps its log under the same id."""
        return await self.rows(run_id, after, limit)

    async def evidence(self: _Kept, run_id: str) -> Evidence | None:
        there = await self.load(run_id)
        if there is None:
            return None
        raw = {"run": msgspec.to_builtins(there.run), "tip": msgspec.to_builtins(there.tip), "lease": msgspec.to_builtins(there.lease)}
        return Evidence(run_id=run_id, run=there.run, lease=there.lease, tip=there.tip, raw=raw)

    async def verify(self: _Kept) -> list[Problem]:
        """Checks each run's hash chain; other tasks of the event loop run in between (§12.6)."""
        found = []
        for run_id in await self.run_ids(limit=EVERY):
            previous, after = b"", 0
            while page := await self.log(run_id, after, SLICE_ROWS):
                await asyncio.sleep(0)
                if (wrong := apply.find_broken(run_id, page, previous)) is not None:
                    found.append(wrong)
                    break
                previous, after = page[-1].hash, page[-1].seq
        return found


# -- the store --------------------------------------------------------------------------------------


class _Row(msgspec.Struct, frozen=True):
    """A run as stored: the encoded cold part, the hot columns and the operational ones."""

    number: int
    doc: bytes
    run: Run
    status: str
    version: int
    step: str | None
    head: str | None
    tip: Tip
    fence: int
    turn: int
    owner: str | None = None
    due: int | None = None
    holds: bool = False

    @property
    def lane(self) -> tuple[str, str, str]:
        return (self.run.tenant_id, self.run.session_key, self.run.lane)


_FOUND_BY = ("tenant_id", "skill_id", "thread_id", "session_key", "lane", "parent_run_id", "lineage_root")


class _Item(msgspec.Struct, frozen=True):
    run_id: str
    key: str
    command: bytes
    put_at: int
    taken_seq: int | None


class MemoryStore(Small):
    """A store that lives as long as this object. ``now`` is its clock, in microseconds since 1970; it replaces the clock of leases too."""

    url = "memory:"

    def __init__(self, *, now: Callable[[], int] | None = None) -> None:
        self.now = now or wall
        self._ticks = now or ticks
        self.incarnation = secrets.randbits(31)
        self._runs: dict[str, _Row] = {}
        self._log: dict[tuple[str, int], Row] = {}
        self._order: dict[str, tuple[int, ...]] = {}
        self._wholes: dict[str, tuple[int, bytes]] = {}
        self._origins: dict[str, bytes] = {}
        self._carries: dict[str, tuple[str, ...]] = {}
        self._inbox = Indexed[tuple[str, str], _Item](run=lambda item: item.run_id, unread=lambda item: item.run_id if item.taken_seq is None else None)
        self._claims: dict[tuple[str, str, str], DedupClaim] = {}
        self._effects = Indexed[str, tuple[Effect, bytes]](key=lambda e: e[0].key, run=lambda e: e[0].run_id, lineage=lambda e: e[0].lineage_root)
        self._intents: dict[str, Intent] = {}
        self._leased: dict[str, int] = {}  # until when a sender has an intent, by the clock that nobody sets
        self._ledger: dict[int, LedgerRow] = {}
        self._blobs: dict[str, bytes] = {}
        self._users: dict[str, tuple[str, ...]] = {}  # the runs that refer to a blob
        self._tokens: dict[bytes, Token] = {}
        self._schedules: dict[str, Schedule] = {}
        self._shelves: dict[tuple[str, str], bytes] = {}
        self._rings: dict[str, Ring] = {}
        self._pruned: dict[str, Tombstone] = {}
        self.present = Present(self.now, self._ticks)
        self._rules: dict[str, Rule] = {}
        self._buckets: dict[str, int] = {}
        self._calls: dict[str, Call] = {}
        self._count = 0
        self._undo: list[Callable[[], None]] = []
        self._guard = threading.RLock()
        self.changes = Changes()

    # -- life ---------------------------------------------------------------------------------------

    async def open(self) -> None:
        self.changes.reopen()

    async def close(self) -> None:
        self.present.dead.update(self.present.workers)
        self.changes.close()

    @contextlib.contextmanager
    def _atomic(self) -> Iterator[None]:
        """All of the block or none of it: after an error, what ``_set`` has changed is restored."""
        with self._guard:
            self._undo = []
            try:
                yield
            except BaseException:
                for back in reversed(self._undo):
                    back()
                raise

    def _set(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        if key in table:
            old = table[key]
            self._undo.append(lambda: table.__setitem__(key, old))
        else:
            self._undo.append(lambda: table.pop(key, None))
        table[key] = value

    def _next(self) -> int:
        self._count += 1
        return self._count

    # -- writing ------------------------------------------------------------------------------------

    async def commit(self, commit: Commit) -> Tip:
        prepared = apply.prepare(commit)
        with self._atomic():
            tip = self._apply(prepared)
        self.changes.tell()
        return tip

    async def step(self, step: Step) -> Tip:
        now, run_id = self.now(), step.run_id
        row = self._runs.get(run_id)
        if row is None:
            raise RunNotFound(f"there is no run {run_id}")
        if error := apply.step_refused(step, self._find(row, taking=False)):
            raise error
        with self._atomic():
            tip = step.tip(self._next())
            moved = msgspec.structs.replace(row, version=step.version, step=step.step, head=step.head, tip=tip, due=at_once(now))
            self._set(self._runs, run_id, moved)
            self._set(self._log, (run_id, step.seq), Row(step.seq, step.data, step.hash))
            self._set(self._order, run_id, (*self._order.get(run_id, ()), step.seq))
        self.changes.tell()
        return tip

    def _apply(self, p: Prepared) -> Tip:
        c, now, run_id = p.commit, p.commit.at, p.commit.run.run_id  # the time of the decision, by the same clock
        old = self._runs.get(run_id)
        taker = not isinstance(c.lease, Take) or c.lease.owner in self.present.workers
        found = None if old is None else self._find(old, taking=isinstance(c.lease, Take | Touch))
        ruling = apply.admit(p, found, Seen(self, now), incarnation=self.incarnation, taker=taker, now=now, limited=lambda: bool(self._rules))
        number = old.number if old else self._next()
        turn = ruling.turn or self._next()
        log = p.sealed.row
        tip = Tip(log.seq, log.hash, self._next(), p.since, p.whole_size)
        for key in c.took:
            self._set(self._inbox, (run_id, key), msgspec.structs.replace(self._inbox[run_id, key], taken_seq=tip.seq))
        doc = p.sealed.doc if p.sealed.doc is not None or old is None else old.doc
        self._set(
            self._runs,
            run_id,
            _Row(
                number=number, doc=doc or codec.encode_run(c.run), run=c.run, status=c.run.status.value, version=c.run.version,
                step=c.run.current_step_id, head=c.run.checkpoint_head, tip=tip, fence=c.fence, turn=turn, owner=ruling.owner,
                due=ruling.due, holds=ruling.holds,
            ),
        )
        self._set(self._log, (run_id, tip.seq), log)
        self._set(self._order, run_id, (*self._order.get(run_id, ()), tip.seq))
        if p.whole is not None:
            self._set(self._wholes, run_id, (tip.seq, p.whole))
        if c.behind is not None:
            self._set(self._carries, run_id, c.behind.runs)
        for wait_id in p.closed:
            for token in [t for t in self._tokens.values() if t.run_id == run_id and t.wait_id == wait_id and t.open]:
                self._set(self._tokens, token.hash, msgspec.structs.replace(token, revoked_at=now))
        self._beside(p, now)
        return tip

    async def thread_end(self, tenant_id: str, thread_id: str) -> ThreadEnd:
        return Seen(self, self.now()).thread_end(tenant_id, thread_id)

    def _unread(self, run_id: str) -> bool:
        return bool(self._inbox.of("unread", run_id))

    def _beside(self, p: Prepared, now: int) -> None:
        """Writes what a commit has beside its log row."""
        c = p.commit
        for claim in c.claims:
            self._set(self._claims, (claim.kind, claim.scope, claim.key), claim)
        for effect, data in zip(p.effects, p.encoded, strict=True):
            self._set(self._effects, effect.effect_id, (effect, data))
        for intent in c.intents:
            self._set(self._intents, intent.intent_id, intent)
        for row in c.ledger:
            self._set(self._ledger, number := self._next(), msgspec.structs.replace(row, number=number))
        for blob in c.blobs:
            self._keep(c.run.run_id, blob)
        if c.emitted is not None:
            self._emit(c.emitted, now)
        for child in p.creates:
            self._apply(child)
        for item in c.puts:
            self._put(item, now)
        for move in c.moves:
            self._set(self._schedules, move.after.schedule_id, move.after)

    def _keep(self, run_id: str, blob: Blob) -> None:
        """Records that a run refers to a blob, and stores its bytes if they are new."""
        users = self._users.get(blob.digest, ())
        if not users:
            self._stow(blob)
        if run_id not in users:
            self._set(self._users, blob.digest, (*users, run_id))

    def _stow(self, blob: Blob) -> None:
        self._set(self._blobs, blob.digest, blobs.read_back(blob.digest, blob.data))

    def _put(self, item: InboxItem, now: int) -> InboxItem:
        row = self._runs.get(item.run_id)
        if row is None:
            raise self._missing(item.run_id)
        there = self._inbox.get((item.run_id, item.key))
        if there is not None:
            return _item(there)
        self._set(self._inbox, (item.run_id, item.key), _Item(item.run_id, item.key, codec.encode_command(item.command), item.put_at, None))
        self._set(self._runs, item.run_id, msgspec.structs.replace(row, due=apply.due_when_woken(self._find(row), row.due, now)))
        return msgspec.structs.replace(item, taken_seq=None)

    def _emit(self, e: Emitted, now: int) -> None:
        self._set(self._rings, e.run_id, ring_after(self._rings.get(e.run_id, ()), e, [self._next() for _ in e.batches], now))

    async def emit(self, emitted: Sequence[Emitted]) -> None:
        with self._atomic():
            for e in self._current(emitted):
                self._emit(e, self.now())
        self.changes.tell()

    def _current(self, emitted: Sequence[Emitted]) -> list[Emitted]:
        """Returns the chunks that come from the current holder of the run."""
        return [e for e in emitted if (row := self._runs.get(e.run_id)) is not None and row.fence == e.fence]

    async def chunks(self, run_id: str, after: int = 0, limit: int = 1000) -> list[Stored]:
        return ring_beyond(run_id, self._rings.get(run_id, ()), after, limit)

    async def put(self, item: InboxItem) -> InboxItem:
        with self._atomic():
            kept = self._put(item, self.now())
        self.changes.tell()
        return kept

    # -- leases and lanes ---------------------------------------------------------------------------

    def _find(self, row: _Row, *, taking: bool = True) -> Found:
        live = taking and row.owner is not None and self.present.why_lost(row.owner) is None
        return Found(row.fence, row.owner, live, row.tip.row, row.tip.hash, row.holds, row.turn, row.status)

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
        now = self.now()
        with self._atomic():
            self.present.need(owner)
            if run_id is not None and run_id not in self._runs:
                raise self._missing(run_id)
            got = self._choose(Wanted(owner, queues, skills, shapes, run_id), limits, limit, now)
            for name, full_at in got.buckets.items():
                self._set(self._buckets, name, full_at)
            claims = Claims([self._take(r, owner, now) for r in got.keys])
            claims.again = got.again
            return claims

    def _choose(self, wanted: Wanted, limits: Mapping[str, Limit], limit: int, now: int) -> Chosen:
        rows = self._runs.values() if wanted.run_id is None else [self._runs[wanted.run_id]]
        free = wanted.run_id is not None and not limits and not self._rules
        use = None if free else Use(in_force(limits, self._rules.values()), wanted.claimer, self._holders(), self._buckets, now)
        return apply.choose([Candidate(r, r.run, self._find(r), r.due) for r in rows], wanted, Seen(self, now), use, now, limit)

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
        self.present.need(owner)
        found = () if limits or self._rules else self._choose(Wanted(owner, queues, skills, shapes), limits, min(limit, 2), self.now()).keys
        loaded = await self.load(found[0].run.run_id) if len(found) == 1 and found[0].owner is None else None
        if loaded is not None and apply.is_unbegun(loaded):
            return loaded
        return await self.claim(owner, queues, skills, limit=limit, shapes=shapes, limits=limits)

    # -- limits: ports.Limiting ---------------------------------------------------------------------

    def _holders(self) -> list[Held]:
        found = Counter((r.owner, r.run.queue, r.run.tenant_id) for r in self._runs.values() if r.owner is not None and self.present.why_lost(r.owner) is None)
        return [Held(owner, queue, tenant, count) for (owner, queue, tenant), count in found.items()]

    def _in_use(self) -> Counter[str]:
        return Counter(name for c in self._calls.values() if c.owner is not None and self.present.why_lost(c.owner) is None for name in c.names)

    async def rules(self) -> list[Rule]:
        return [self._rules[name] for name in sorted(self._rules)]

    async def put_rule(self, rule: Rule, before: Rule | None) -> bool:
        if self._rules.get(rule.name) != before:
            return False
        self._rules = {**self._rules, rule.name: rule}
        self.changes.tell()
        return True

    async def usage(self) -> Usage:
        return Usage(tuple(self._holders()), self._in_use(), dict(self._buckets))

    async def backlog(self) -> list[Backlog]:
        now = self.now()
        due = [r for r in self._runs.values() if r.owner is None and r.due is not None and r.due <= now]
        return apply.backlog((r.run, r.due or 0, not r.holds and Seen(self, now).blocker(r.run, r.turn) is not None) for r in due)

    async def enter(self, owner: str, run_id: str, place: str, needs: Mapping[str, Limit | None], *, resting: bool = False) -> Later | None:
        self.present.need(owner)
        now = self.now()
        with self._atomic():
            call, there = Call(place, owner, run_id, tuple(needs), now), self._calls.get(place)
            entry = apply.enter(call, needs, there, self._rules.values(), self._in_use(), self._buckets, resting=resting)
            for name, full_at in entry.buckets.items():
                self._set(self._buckets, name, full_at)
            if entry.call is not None:
                self._set(self._calls, place, entry.call)
        return entry.later

    async def leave(self, owner: str, places: Sequence[str]) -> None:
        with self._atomic():
            self._free([self._calls.pop(p) for p in places if p in self._calls and self._calls[p].owner == owner])
        self.changes.tell()

    async def look_again(self, run_id: str, needs: Mapping[str, Limit | None]) -> bool:
        now, row = self.now(), self._runs.get(run_id)
        if row is None or row.owner is not None or row.due is None or row.due <= now:
            return False
        if apply.enter(Call("", "", run_id, (), now), needs, None, self._rules.values(), self._in_use(), self._buckets, resting=False).later is not None:
            return False
        with self._atomic():
            self._set(self._runs, run_id, msgspec.structs.replace(row, due=at_once(now)))
        self.changes.tell()
        return True

    def _free(self, calls: Sequence[Call]) -> None:
        """Wakes the runs that have waited longest for the limits that these calls held."""
        now = self.now()

        def asleep(run_id: str) -> bool:
            row = self._runs.get(run_id)
            return row is not None and row.owner is None and row.due is not None and row.due > now

        for run_id in apply.next_in_line(calls, [c for c in self._calls.values() if c.owner is None], asleep):
            self._set(self._runs, run_id, msgspec.structs.replace(self._runs[run_id], due=at_once(now)))

    def _take(self, row: _Row, owner: str, now: int) -> Claim:
        lost = None if row.owner is None else self.present.why_lost(row.owner)
        claim = apply.take(row.run.run_id, row.fence, row.owner, owner, lost)
        due = at_once(now) if row.due is None else min(at_once(now), row.due)
        self._set(self._runs, row.run.run_id, msgspec.structs.replace(row, owner=owner, fence=claim.fence, holds=True, due=due))
        return claim

    async def retire(self, owner: str) -> None:
        now = self.now()
        with self._atomic():
            for row in [r for r in self._runs.values() if r.owner == owner]:
                self._set(self._runs, row.run.run_id, msgspec.structs.replace(row, owner=None, fence=row.fence + 1, due=at_once(now)))
            self._free([self._calls.pop(p) for p in [p for p, c in self._calls.items() if c.owner == owner]])
            self.present.retire(owner)
        self.changes.tell()

    # -- reading ------------------------------------------------------------------------------------

    async def find_marked(self, owner: str) -> list[str]:
        mine = {run_id for run_id, row in self._runs.items() if row.owner == owner}
        return list(dict.fromkeys(item.run_id for item in self._inbox.values() if item.run_id in mine and item.taken_seq is None))

    def _run(self, row: _Row) -> Run:
        return codec.overlay(codec.decode_run(row.doc), status=row.status, version=row.version, step=row.step, head=row.head)

    def _lease(self, row: _Row) -> Lease:
        return self.present.lease(row.fence, row.owner, row.due)

    async def load(self, run_id: str) -> Loaded | None:
        row = self._runs.get(run_id)
        if row is None:
            return None
        seq, data = self._wholes.get(run_id, (0, self._origins.get(run_id)))
        rows, inbox = tuple(await self.rows(run_id, seq)), tuple(await self.inbox(run_id))
        emitted = ring_newest(run_id, self._rings.get(run_id, ()))
        lease = self.present.lease(row.fence, row.owner, row.due)
        whole = None if data is None else codec.decode_whole(run_id, data)
        run = codec.overlay(codec.decode_run(row.doc), status=row.status, version=row.version, step=row.step, head=row.head)
        return Loaded(run, row.tip, lease, whole, rows, inbox, emitted)

    async def get(self, run_id: str) -> tuple[Run, Lease] | None:
        row = self._runs.get(run_id)
        if row is None:
            return None
        lease = self._lease(row)
        return self._run(row), lease

    async def runs(self, query: RunFilter) -> list[tuple[Run, Lease]]:
        asked = [(f, value) for f in _FOUND_BY if (value := getattr(query, f)) is not None]
        found = []
        for run_id, row in self._runs.items():
            if query.before is not None and run_id >= query.before:
                continue
            if query.statuses is not None and row.status not in query.statuses:
                continue
            if query.owner is not None and row.owner != query.owner:
                continue
            if all(getattr(row.run, f) == value for f, value in asked):
                found.append(row)
        out: list[tuple[Run, Lease]] = []
        for row in self._put_in_order(found, query):
            if len(out) == query.limit:
                break
            with contextlib.suppress(HoldfastError):  # an unreadable run does not hide the others; the checker names it (§3.6)
                lease = self._lease(row)
                out.append((self._run(row), lease))
        return out

    def _put_in_order(self, found: list[_Row], query: RunFilter) -> list[_Row]:
        if not query.ahead:
            return sorted(found, key=(lambda r: r.turn) if query.by_turn else (lambda r: r.run.run_id), reverse=True)
        now, until = self.now(), self._runs.get(query.until or "")
        due = [r for r in found if not r.holds and r.due is not None and r.due <= now and (until is None or r.turn <= until.turn)]
        return [r for r in found if r.holds] + sorted(due, key=lambda r: r.turn)

    async def rows(self, run_id: str, after: int = 0, limit: int | None = None) -> list[Row]:
        order = self._order.get(run_id, ())
        first = bisect.bisect_right(order, after)
        return [self._log[run_id, s] for s in order[first : None if limit is None else first + limit]]

    async def inbox(self, run_id: str, *, taken: bool = False) -> list[InboxItem]:
        return [_item(i) for i in self._inbox.of("run" if taken else "unread", run_id)]

    async def issue_token(self, token: Token) -> None:
        if token.run_id not in self._runs:
            raise self._missing(token.run_id)
        self._tokens[token.hash] = token

    async def token(self, hash: bytes) -> Token | None:
        return self._tokens.get(hash)

    async def redeem_token(self, hash: bytes, item: InboxItem) -> InboxItem:
        now = self.now()
        with self._atomic():
            used = apply.usable(self._tokens.get(hash), now, answered=(item.run_id, item.key) in self._inbox)
            if used is not None:
                self._set(self._tokens, hash, used)
            kept = self._put(item, now)
        self.changes.tell()
        return kept

    async def put_schedule(self, schedule: Schedule, before: Schedule | None) -> bool:
        if self._schedules.get(schedule.schedule_id) != before:
            return False
        self._schedules[schedule.schedule_id] = schedule
        self.changes.tell()
        return True

    async def drop_schedule(self, schedule_id: str) -> bool:
        return self._schedules.pop(schedule_id, None) is not None

    async def schedules(self, due: int | None = None) -> list[Schedule]:
        found = [s for s in self._schedules.values() if due is None or (s.due is not None and s.due <= due)]
        return sorted(found, key=lambda s: (s.due is None, s.due or 0))

    async def find_claim(self, kind: str, scope: str, key: str) -> DedupClaim | None:
        there = self._claims.get((kind, scope, key))
        return there if there is not None and Seen(self, self.now()).claimant(there) is not None else None

    async def effects(self, run_id: str | None = None, *, key: str | None = None, lineage_root: str | None = None) -> list[Effect]:
        choices = (("key", key), ("run", run_id), ("lineage", lineage_root))
        found = next((self._effects.of(name, value) for name, value in choices if value is not None), self._effects.values())
        return [codec.decode_effect(data) for e, data in found if run_id in (None, e.run_id) and lineage_root in (None, e.lineage_root)]

    async def settle_effect(self, effect: Effect, expected: str) -> bool:
        there = self._effects.get(effect.effect_id)
        if there is None or there[0].status != expected:
            return False
        self._effects[effect.effect_id] = (effect, codec.encode_effect(effect))
        self.changes.tell()
        return True

    # -- outbox and ledger --------------------------------------------------------------------------

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
        wanted = ((run_id, "run_id"), (state, "state"), (type, "type"), (tenant_id, "tenant_id"))
        found = [i for i in self._intents.values() if all(value is None or getattr(i, name) == value for value, name in wanted)]
        if after is not None:
            found = found[next((n for n, i in enumerate(found, 1) if i.intent_id == after), len(found)) :]
        return found[:limit]

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
        now = self.now()
        lost, due = apply.sendable(
            [i for i in self._intents.values() if i.open], types, run_id, now,
            lambda i: i.owner in self.present.dead or self._over(i, now) or answer_lost(i, owner, held, doubt=doubt),
        )
        chosen = apply.by_turns(lost, due, limit, each, room or {})
        with self._atomic():
            out = []
            for intent in chosen:
                gone = intent.state == IntentState.SENDING
                mine = answer_lost(intent, owner, held, doubt=doubt)
                taken = start_sending(intent, owner, now, now + ttl_us, lost=gone, dead=intent.owner in self.present.dead, answer_lost=mine)
                self._set(self._intents, intent.intent_id, taken)
                self._set(self._leased, intent.intent_id, self._ticks() + ttl_us)
                out.append(taken)
        return out

    def _over(self, intent: Intent, now: int) -> bool:
        """Whether the lease of an intent's sender has expired. An intent that was taken in another store has only its stored time."""
        until = self._leased.get(intent.intent_id)
        return (intent.lease_until or 0) <= now if until is None else until <= self._ticks()

    async def renew_intents(self, owner: str, ttl_us: int) -> None:
        until = self.now() + ttl_us
        for intent in [i for i in self._intents.values() if i.owner == owner and i.state == IntentState.SENDING]:
            self._intents[intent.intent_id] = msgspec.structs.replace(intent, lease_until=until)
            self._leased[intent.intent_id] = self._ticks() + ttl_us

    async def settle_intents(self, settlements: Sequence[Settlement]) -> list[bool]:
        with self._atomic():
            kept = [self._settle(s) for s in settlements]
        self.changes.tell()
        return kept

    def _settle(self, s: Settlement) -> bool:
        there = self._intents.get(s.after.intent_id)
        if there is None or not stands(there, s.before):
            return False
        self._set(self._intents, there.intent_id, s.after)
        self._leased.pop(there.intent_id, None)
        for intent in s.intents:
            self._set(self._intents, intent.intent_id, intent)
        for row in s.ledger:
            self._set(self._ledger, number := self._next(), msgspec.structs.replace(row, number=number))
        for blob in s.blobs:
            self._keep(there.run_id, blob)
        for item in s.puts:
            self._put(item, self.now())
        return True

    async def drop_payloads(self, before: int, limit: int) -> int:
        old = [i for i in self._intents.values() if is_spent(i, before)][:limit]
        for intent in old:
            self._intents[intent.intent_id] = drop_payload(intent)
        return len(old)

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
        wanted = ((run_id, "run_id"), (topic, "topic"), (key, "key"))
        found = [r for r in self._ledger.values() if all(value is None or getattr(r, name) == value for value, name in wanted)]
        if tenant_id is not None:
            found = [r for r in found if r.run_id in self._runs and self._runs[r.run_id].run.tenant_id == tenant_id]
        return [r for r in found if after is None or r.number > after][:limit]

    async def blob(self, digest: str) -> bytes:
        return blobs.read_back(digest, self._blobs.get(digest))

    # -- shelves: ports.Shelves ---------------------------------------------------------------------

    async def shelve(self, shelf: str, rows: Mapping[str, bytes], once: Collection[str] = ()) -> list[str]:
        taken = sorted(key for key in once if (shelf, key) in self._shelves)
        self._shelves |= {(shelf, key): data for key, data in rows.items() if key not in taken}
        return taken

    async def shelf_scan(self, shelf: str, prefix: str = "", after: str = "", limit: int = 100) -> list[tuple[str, bytes]]:
        return sorted((k, data) for (s, k), data in self._shelves.items() if s == shelf and k.startswith(prefix) and k > after)[:limit]

    async def list_shelves(self) -> list[str]:
        return sorted({shelf for shelf, _ in self._shelves})

    async def unshelve(self, shelf: str, prefix: str) -> int:
        gone = [place for place in self._shelves if place[0] == shelf and place[1].startswith(prefix)]
        for place in gone:
            del self._shelves[place]
        return len(gone)

    # -- upkeep: ports.Upkeep -----------------------------------------------------------------------

    async def run_ids(self, after: str = "", limit: int = 1000) -> list[str]:
        return sorted(r for r in self._order if r > after)[:limit]

    async def evidence(self, run_id: str) -> Evidence | None:
        row, rows = self._runs.get(run_id), await self.rows(run_id)
        if row is None:
            return None if not rows else Evidence(run_id=run_id, run=None, lease=None, tip=Tip(rows[-1].seq, rows[-1].hash, 0), raw={})
        run: Run | HoldfastError
        try:
            run = self._run(row)
        except HoldfastError as e:
            run = e
        raw = {"number": row.number, "fence": row.fence, "status": row.status, "version": row.version, "doc": row.doc.hex()}
        return Evidence(run_id=run_id, run=run, lease=self._lease(row), tip=row.tip, raw=raw)

    async def whole(self, run_id: str, after: int = 0) -> tuple[int, Checkpoint | HoldfastError] | None:
        seq, data = self._wholes.get(run_id, (0, b"")) if after >= 0 or run_id not in self._origins else (0, self._origins[run_id])
        if seq <= after or not data:
            return None
        try:
            return seq, codec.decode_whole(run_id, data)[0]
        except HoldfastError as e:
            return seq, e

    async def rebuild(self, evidence: Evidence, commits: Sequence[Commit]) -> str:
        now = await self._as_shown(evidence)
        with self._atomic():
            self._mend(evidence, commits, now)
        self.changes.tell()
        return ""

    async def _as_shown(self, evidence: Evidence) -> int:
        """Refuses to mend a run that has changed since it was read, or that a live owner has; returns the time."""
        now = self.now()
        if error := apply.mendable(evidence, await self.evidence(evidence.run_id), now):
            raise error
        return now

    def _mend(self, evidence: Evidence, commits: Sequence[Commit], now: int) -> list[Prepared]:
        """Appends the commits and replaces the row with the last one's run; the operational columns stay as they are."""
        run_id, run, old = evidence.run_id, commits[-1].run, self._runs.get(evidence.run_id)
        assert evidence.tip is not None
        written = [apply.prepare(c) for c in commits]
        for p in written:
            self._set(self._log, (run_id, p.sealed.row.seq), p.sealed.row)
            self._set(self._order, run_id, (*self._order.get(run_id, ()), p.sealed.row.seq))
            for effect, data in zip(p.effects, p.encoded, strict=True):
                self._set(self._effects, effect.effect_id, (effect, data))
        tip = written[-1].tip(self._next())
        stood = None if old is None else Stands(old.owner, old.due, old.holds)
        moved, taken = old is None or old.status != run.status.value, any(r.holds and r is not old for r in Seen(self, now).lane(run))
        stands = apply.rebuilt(commits[-1], stood, moved, now, unread=self._unread(run_id), taken=taken)
        self._set(
            self._runs,
            run_id,
            _Row(
                number=old.number if old else self._next(), doc=codec.encode_run(run), run=run, status=run.status.value, version=run.version,
                step=run.current_step_id, head=run.checkpoint_head, tip=tip, fence=commits[-1].fence, turn=old.turn if old else self._next(),
                owner=stands.owner, due=stands.due, holds=stands.holds,
            ),
        )
        return written

    async def claims_of(self, run_id: str) -> list[DedupClaim]:
        return [c for c in self._claims.values() if c.run_id == run_id]

    async def adopt(self, dossier: Dossier) -> bool:
        run_id = dossier.run.run_id
        if run_id in self._runs:
            return not apply.same(dossier, await self.rows(run_id))
        if run_id in self._pruned:
            raise self._missing(run_id)
        self._check_shelved(dossier)
        with self._atomic():
            self._take_over(dossier, None)
        self.changes.tell()
        return True

    def _check_shelved(self, d: Dossier) -> None:
        """Refuses an adopted run with a row of a shelf that is here already with another value."""
        for shelf, mine in apply.by_shelf(d.shelved).items():
            apply.check_shelved(shelf, mine, {key: self._shelves[shelf, key] for key in mine if (shelf, key) in self._shelves})

    def _take_over(self, d: Dossier, owner: str | None) -> None:
        """Adds a run from another store to the tables."""
        run, run_id, now = d.run, d.run.run_id, self.now()
        stands = apply.adopt(d, self.incarnation, now, taken=apply.would_hold(run) and any(r.holds for r in Seen(self, now).lane(run)))
        for row in d.rows:
            self._set(self._log, (run_id, row.seq), row)
        if d.origin is not None:
            self._set(self._origins, run_id, d.origin)
        if stands.carries:
            self._set(self._carries, run_id, stands.carries)
        self._set(self._order, run_id, tuple(r.seq for r in d.rows))
        for item in d.inbox:
            kept = _Item(run_id, item.key, codec.encode_command(item.command), item.put_at, item.taken_seq)
            self._set(self._inbox, (run_id, item.key), kept)
        for claim in d.claims:
            if (claim.kind, claim.scope, claim.key) not in self._claims:
                self._set(self._claims, (claim.kind, claim.scope, claim.key), claim)
        for effect in d.effects:
            self._set(self._effects, effect.effect_id, (effect, codec.encode_effect(effect)))
        for intent in d.intents:
            self._set(self._intents, intent.intent_id, intent)
        for entry in d.ledger:
            self._set(self._ledger, number := self._next(), msgspec.structs.replace(entry, number=number))
        for blob in d.blobs:
            self._keep(run_id, blob)
        self._shelves = {**self._shelves, **{(row.shelf, row.key): row.data for row in d.shelved}}
        number = self._next()
        later = [r.turn for r in self._runs.values() if r.run.thread_id == run.thread_id and r.run.tenant_id == run.tenant_id and r.run.run_id > run_id]
        tip = Tip(stands.seq, stands.hash, self._next(), stands.since, stands.whole)
        self._set(
            self._runs,
            run_id,
            _Row(
                number=number, doc=codec.encode_run(run), run=run, status=run.status.value, version=run.version, step=run.current_step_id,
                head=run.checkpoint_head, tip=tip, fence=stands.fence, turn=apply.place_adopted(run, min(later, default=None), number), owner=owner,
                due=at_once(now) if owner is not None else stands.due, holds=owner is not None or stands.holds,
            ),
        )

    async def list_carries(self) -> list[tuple[str, str]]:
        return [(run_id, predecessor) for run_id, predecessors in self._carries.items() if run_id not in self._origins for predecessor in predecessors if predecessor in self._runs]

    async def keep_origin(self, run_id: str, origin: bytes) -> None:
        self._origins.setdefault(run_id, origin)

    def _missing(self, run_id: str) -> RunNotFound:
        return missing(run_id, self._pruned.get(run_id))

    async def find_pruned(self, run_id: str) -> Tombstone | None:
        return self._pruned.get(run_id)

    async def prune(self, before: int, *, dry: bool = False, actor: str = "operator") -> Pruned:
        found = self._prunable(before, () if dry else await self.list_carries())
        if not dry:
            with self._atomic():
                self._bury([Tombstone(run_id, self.now(), actor) for run_id in found.run_ids])
            self.changes.tell()
        return found

    def _prunable(self, before: int, carries: Sequence[tuple[str, str]]) -> Pruned:
        root_of = {r.run.run_id: r.run.lineage_root for r in self._runs.values()}
        unsettled = {root_of[i.run_id] for i in self._intents.values() if i.open and i.run_id in root_of}
        unsettled |= {e.lineage_root for e, _ in self._effects.values() if e.open}
        return apply.prunable((Aged.of(r.run) for r in self._runs.values()), before, unsettled, carries)

    def _bury(self, graves: Sequence[Tombstone]) -> None:
        """Deletes pruned runs, and the claims that do not outlast them, also those of runs that were pruned earlier."""
        lasting = {name: c for name, c in self._claims.items() if apply.outlasts(c, self.now())}
        self._forget({grave.run_id for grave in graves})
        self._pruned |= {grave.run_id: grave for grave in graves}
        for name in [name for name, c in self._claims.items() if c.run_id in self._pruned and name not in lasting]:
            del self._claims[name]
        self._claims |= lasting

    def _forget(self, gone: set[str]) -> None:
        """Deletes runs and all that belongs to them; effects under keys that other runs share stay."""
        tables: list[tuple[dict[Any, Any], list[Any]]] = [
            (self._runs, [r for r in self._runs if r in gone]),
            (self._log, [k for k in self._log if k[0] in gone]),
            (self._order, [r for r in self._order if r in gone]),
            (self._wholes, [r for r in self._wholes if r in gone]),
            (self._origins, [r for r in self._origins if r in gone]),
            (self._carries, [r for r in self._carries if r in gone]),
            (self._rings, [r for r in self._rings if r in gone]),
            (self._inbox, [k for k in self._inbox if k[0] in gone]),
            (self._claims, [k for k, c in self._claims.items() if c.run_id in gone and c.kind != "effect"]),
            (self._effects, [k for k, (e, _) in self._effects.items() if e.run_id in gone and not e.shared]),
            (self._intents, [k for k, i in self._intents.items() if i.run_id in gone]),
            (self._ledger, [k for k, r in self._ledger.items() if r.run_id in gone]),
            (self._calls, [k for k, c in self._calls.items() if c.run_id in gone]),
        ]
        for table, owned in tables:
            for key in owned:
                table.pop(key)
        left = {(e.run_id, digest) for e, _ in self._effects.values() if e.run_id in gone for digest in blobs.name_blobs((), [e])}
        for digest, users in list(self._users.items()):
            kept = tuple([u for u in users if u not in gone or (u, digest) in left])
            if kept:
                self._users[digest] = kept
            else:
                del self._users[digest]
                self._blobs.pop(digest, None)


class Seen:
    """What a commit needs to know of the store in memory (``apply.Sight``), at one moment."""

    def __init__(self, store: MemoryStore, now: int) -> None:
        self._store = store
        self._now = now

    def missing(self, run_id: str) -> RunNotFound:
        return self._store._missing(run_id)

    def there(self, run_id: str) -> bool:
        return run_id in self._store._runs

    def lane(self, run: Run) -> list[_Row]:
        """Returns the other runs of a run's lane."""
        lane = (run.tenant_id, run.session_key, run.lane)
        return [r for r in self._store._runs.values() if r.lane == lane and r.run.run_id != run.run_id]

    def blocker(self, run: Run, turn: int) -> str | None:
        others, now = self.lane(run), self._now
        found = [r for r in others if r.holds] + [r for r in others if r.due is not None and r.due <= now and r.turn < turn]
        return found[0].run.run_id if found else None

    def thread_end(self, tenant_id: str, thread_id: str) -> ThreadEnd:
        rows = self._store._runs.values()
        mine = [r for r in rows if r.run.thread_id == thread_id and r.run.tenant_id == tenant_id and r.status in TERMINAL]
        newest = max(mine, key=lambda r: r.turn, default=None)
        return ThreadEnd() if newest is None else ThreadEnd(newest.run.run_id, newest.version, newest.fence)

    def unread(self, run_id: str, took: Sequence[str]) -> bool:
        return any(i.key not in took for i in self._store._inbox.of("unread", run_id))

    def untaken(self, run_id: str, key: str) -> bool:
        item = self._store._inbox.get((run_id, key))
        return item is not None and item.taken_seq is None

    def claimant(self, claim: DedupClaim) -> str | None:
        there = self._store._claims.get((claim.kind, claim.scope, claim.key))
        row = None if there is None else self._store._runs.get(there.run_id)
        return there.run_id if there is not None and apply.still_taken(there, None if row is None else row.status, self._now) else None

    def attempts(self, key: str) -> list[str]:
        return [e.effect_id for e, _ in self._store._effects.of("key", key) if e.open]

    def has_blob(self, digest: str) -> bool:
        return bool(self._store._users.get(digest))

    def schedule(self, schedule_id: str) -> Schedule | None:
        return self._store._schedules.get(schedule_id)

    def waiting(self, queue: str, tenant_id: str) -> int:
        rows = self._store._runs.values()
        return sum(1 for r in rows if r.status == Status.PENDING and r.owner is None and (r.run.queue, r.run.tenant_id) == (queue, tenant_id))


def _item(kept: _Item) -> InboxItem:
    return InboxItem(kept.run_id, kept.key, codec.decode_command(kept.command), kept.put_at, kept.taken_seq)


__all__ = ["Indexed", "MemoryStore", "Present", "Ring", "Seen", "Small", "ring_after", "ring_beyond", "ring_lines", "ring_newest", "ring_read"]

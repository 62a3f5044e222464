"""What stores share that one process has open and whose verbs run without a pause: tables, rings of chunks, who is there, and the
verbs that others tell."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import threading
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core import chunks
from holdfast.core.chunks import LINGER_US, Batch, Emitted, Stored
from holdfast.core.codec import Row
from holdfast.core.effects import Effect
from holdfast.core.errors import Conflict, LeaseLost
from holdfast.core.intents import Intent
from holdfast.core.jsons import json_of
from holdfast.core.lease import Alive, Lease
from holdfast.core.offers import Offer
from holdfast.core.run import Run
from holdfast.core.schedules import Schedule
from holdfast.ports import ANYTHING, Evidence, IntentCount, News, Problem, RunFilter, Shelves, Store, Upkeep, Worker
from holdfast.stores import apply
from holdfast.stores.changes import Changes


class Kept(msgspec.Struct, frozen=True):
    """A batch of a ring. ``gone``: when something durable replaced it."""

    serial: int
    turn: str
    last: int
    data: bytes
    gone: int | None = None


Ring = tuple[Kept, ...]


def changed(ring: Ring, e: Emitted, serials: Iterable[int], now: int) -> Ring:
    """The ring after a write; what was replaced a while ago goes on the way."""
    gone = set(e.replaced)
    kept = [k for k in ring if k.last >= e.before.get(k.turn, 0) and (k.gone is None or k.gone >= now - LINGER_US)]
    kept += [Kept(serial, b.turn.key, b.last, chunks.encode(e.run_id, b)) for b, serial in zip(e.batches, serials, strict=True)]
    return tuple([msgspec.structs.replace(k, gone=now) if k.gone is None and k.turn in gone else k for k in kept])


def beyond(run_id: str, ring: Ring, after: int, limit: int) -> list[Stored]:
    return [Stored(k.serial, chunks.decode(run_id, k.data), k.gone is not None) for k in ring if k.serial > after][:limit]


def newest(run_id: str, ring: Ring) -> tuple[Batch, ...]:
    """The newest batch of each turn that nothing has replaced."""
    return tuple({k.turn: chunks.decode(run_id, k.data) for k in ring if k.gone is None}.values())


# -- as lines of a file -----------------------------------------------------------------------------


def lines(before: Ring, after: Ring) -> bytes:
    """What leads from one to the other: batches that came, went, or were replaced."""
    was, now = {k.serial: k for k in before}, {k.serial: k for k in after}
    out: list[Any] = [["-", serial] for serial in was if serial not in now]
    out += [["+", k.serial, k.turn, k.last, base64.b64encode(k.data).decode(), k.gone] for s, k in now.items() if s not in was]
    out += [["=", k.serial, k.gone] for s, k in now.items() if s in was and was[s].gone != k.gone]
    return b"".join(json.dumps(line).encode() + b"\n" for line in out)


def read(run_id: str, data: bytes) -> Ring:
    """The ring that these lines leave. What is not what was written is left out: chunks are provisional."""
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
        """The rows with that value in that field."""
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
SLICE_ROWS = 8  # of a log between two turns of others


class Present:
    """The owners of such a store: each is alive until it is retired or abandoned, and its lease is a time of the clock that nobody sets
    (``ticks``; §10.3). May be asked from any thread."""

    def __init__(self, now: Callable[[], int], ticks: Callable[[], int]) -> None:
        self._now, self._ticks = now, ticks
        self._guard = threading.Lock()
        self.until: dict[str, int] = {}
        self.workers: dict[str, Worker] = {}
        self.dead: set[str] = set()
        self.acting: set[str] = set()  # something of them may still run when they are retired

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
        """
        Raises:
            LeaseLost: the owner is not known.
        """
        if owner not in self.workers:
            raise LeaseLost(f"{owner} is not a known worker", hint="register it first")

    def alive(self, owner: str | None) -> Alive:
        if owner in self.dead:
            return Alive.NO
        return Alive.YES if owner in self.workers or owner in self.acting else Alive.UNKNOWN

    def left(self, owner: str | None) -> int | None:
        """How long a lease still lasts; None where the owner is not known."""
        return self.until[owner] - self._ticks() if owner is not None and owner in self.workers else None

    def lost(self, owner: str) -> str | None:
        """Why an owner's runs may be taken over; None while it lives."""
        return apply.lost(self.left(owner), self.alive(owner))

    def lease(self, fence: int, owner: str | None, due: int | None) -> Lease:
        left = self.left(owner)
        return Lease(fence, owner, None if left is None else self._now() + left, self.alive(owner), due)

    def listed(self) -> list[Worker]:
        """Those that are known, each with what the clock will show at the end of its lease, if nobody sets it."""
        return [replace(w, alive=self.alive(o).value, expires_at=self._now() + (self.left(o) or 0)) for o, w in self.workers.items()]


class _Kept(Store, Upkeep, Shelves, Protocol):
    """A store with all its verbs."""

    present: Present


class Small:
    """The verbs of the ports that ``Present`` knows, and those that other verbs tell."""

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
        listed = self.present.listed()
        return [replace(w, runs=len(await self.runs(RunFilter(owner=w.owner, limit=EVERY)))) for w in listed] if counted else listed

    async def get(self: _Kept, run_id: str) -> tuple[Run, Lease] | None:
        loaded = await self.load(run_id)
        return None if loaded is None else (loaded.run, loaded.lease)

    async def marked(self: _Kept, owner: str) -> list[str]:
        """The runs of an owner whose inbox holds what nobody has taken."""
        return [run.run_id for run, _ in await self.runs(RunFilter(owner=owner, limit=EVERY)) if await self.inbox(run.run_id)]

    async def open_effects(self: _Kept, owner: str) -> list[Effect]:
        """The attempts of an owner that are not settled."""
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

    async def shelved(self: _Kept, shelf: str, key: str) -> bytes | None:
        return dict(await self.shelf_scan(shelf, key, limit=1)).get(key)

    async def shelve_new(self: _Kept, shelf: str, key: str, data: bytes) -> bytes | None:
        there = await self.shelved(shelf, key)
        if there is None:
            await self.shelve(shelf, {key: data})
        return there

    async def log(self: _Kept, run_id: str, after: int = 0, limit: int = 1000) -> list[Row]:
        """A run whose row is gone keeps its log under the same id."""
        return await self.rows(run_id, after, limit)

    async def evidence(self: _Kept, run_id: str) -> Evidence | None:
        there = await self.load(run_id)
        if there is None:
            return None
        raw = {"run": msgspec.to_builtins(there.run), "tip": msgspec.to_builtins(there.tip), "lease": msgspec.to_builtins(there.lease)}
        return Evidence(run_id=run_id, run=there.run, lease=there.lease, tip=there.tip, raw=raw)

    async def verify(self: _Kept) -> list[Problem]:
        """Each run's chain, held against its hashes; others of the loop have their turn meanwhile (§12.6)."""
        found = []
        for run_id in await self.run_ids(limit=EVERY):
            previous, after = b"", 0
            while page := await self.log(run_id, after, SLICE_ROWS):
                await asyncio.sleep(0)
                if (wrong := apply.broken(run_id, page, previous)) is not None:
                    found.append(wrong)
                    break
                previous, after = page[-1].hash, page[-1].seq
        return found

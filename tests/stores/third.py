"""A third SQL store, on the standard library's sqlite3: one more engine is reads, writes and transactions around ``stores/apply``, and no decision."""

from __future__ import annotations

import contextlib
import json
import secrets
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core import blobs, codec, intents, pruned
from holdfast.core.checkpoint import Checkpoint
from holdfast.core.chunks import Emitted, Stored
from holdfast.core.commit import Commit, DedupClaim, InboxItem, LedgerRow, Settlement, ThreadEnd, Tip
from holdfast.core.effects import Effect
from holdfast.core.errors import HoldfastError, RunNotFound
from holdfast.core.intents import Intent, IntentState
from holdfast.core.lease import Lease, Take, at_once
from holdfast.core.limits import Backlog, Held, Later, Limit, Rule, Use, in_force
from holdfast.core.run import Run
from holdfast.core.schedules import Schedule
from holdfast.core.tokens import Token
from holdfast.ports import NO_LIMITS, Claims, Dossier, Evidence, Loaded, Pruned, RunFilter, Usage
from holdfast.stores import apply, memory
from holdfast.stores.apply import Aged, Call, Candidate, Found, Prepared, Stands, Wanted
from holdfast.stores.changes import Changes
from holdfast.stores.memory import Present, Small

T = TypeVar("T")


class Table(Generic[T]):
    """Rows of one type, oldest first: what they are found by (fields of a struct, the first items of a tuple), and the whole in bytes."""

    def __init__(self, db: sqlite3.Connection, kind: type[T], name: str, key: str, also: str = "") -> None:
        paths = (key + " " + also).split()
        names, keys = [path.rpartition(".")[2] for path in paths], [path.rpartition(".")[2] for path in key.split()]
        self._db, self._name, self._decode, self._width = db, name, msgspec.msgpack.Decoder(kind).decode, len(paths)
        self._values = [attrgetter(path) for path in paths]
        db.execute(f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(names)}, data, UNIQUE ({', '.join(keys)}))")
        places, news = ", ".join("?" * (len(names) + 1)), ", ".join(f"{n} = excluded.{n}" for n in (*names, "data"))
        self._put = f"INSERT INTO {name} VALUES ({places}) ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {news}"
        self._key = " AND ".join(f"{k} = ?" for k in keys)

    def put(self, *rows: T) -> None:
        for row in rows:
            found_by = row[: self._width] if isinstance(row, tuple) else (value(row) for value in self._values)
            self._db.execute(self._put, (*found_by, msgspec.msgpack.encode(row)))

    def where(self, sql: str = "1", *values: Any) -> list[T]:
        """``sql``: what comes after WHERE; without an order of its own, the oldest first."""
        order = "" if "ORDER BY" in sql else " ORDER BY rowid"
        return [self._decode(data) for (data,) in self._db.execute(f"SELECT data FROM {self._name} WHERE {sql}{order}", values)]

    def get(self, *key: Any) -> T | None:
        return next(iter(self.where(self._key, *key)), None)

    def drop(self, sql: str, *values: Any) -> int:
        return self._db.execute(f"DELETE FROM {self._name} WHERE {sql}", values).rowcount


class Kept(msgspec.Struct, frozen=True):
    run: Run
    tip: Tip
    fence: int
    turn: int
    owner: str | None
    due: int | None
    holds: bool


class Books:
    """The tables, and what a commit needs to know of them (``apply.Sight``)."""

    def __init__(self, path: str, present: Present, now: Callable[[], int]) -> None:
        self.db = db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.present, self.now = present, now
        db.execute("CREATE TABLE IF NOT EXISTS number (n INTEGER PRIMARY KEY AUTOINCREMENT)")
        fields = ("tenant_id", "skill_id", "thread_id", "session_key", "lane", "queue", "parent_run_id", "lineage_root", "status")
        self.runs = Table(db, Kept, "run", "run.run_id", " ".join(f"run.{f}" for f in fields) + " owner due holds turn")
        self.log = Table(db, tuple[str, int, codec.Row], "log", "run_id seq")
        self.wholes = Table(db, tuple[str, int, bytes], "whole", "run_id seq")  # numbered 0: what the run carries from its thread
        self.carries = Table(db, tuple[str, str], "carry", "run_id predecessor")
        self.inbox = Table(db, InboxItem, "inbox", "run_id key", "taken_seq")
        self.claims = Table(db, DedupClaim, "claim", "kind scope key", "run_id")
        self.effects = Table(db, Effect, "effect", "effect_id", "run_id key lineage_root open owner")
        self.blobs, self.users = Table(db, tuple[str, bytes], "blob", "digest"), Table(db, tuple[str, str], "user", "digest run_id")
        self.intents = Table(db, Intent, "intent", "intent_id", "run_id tenant_id type state open owner settled_at")
        self.ledger = Table(db, LedgerRow, "ledger", "number", "run_id topic key")
        self.tokens = Table(db, Token, "token", "hash", "run_id wait_id")
        self.schedules = Table(db, Schedule, "schedule", "schedule_id", "due")
        self.rules, self.buckets = Table(db, Rule, "rule", "name"), Table(db, tuple[str, int], "bucket", "name")
        self.calls = Table(db, Call, "call", "place", "owner run_id")
        self.tombstones, self.rings = Table(db, pruned.Tombstone, "tombstone", "run_id"), Table(db, tuple[str, memory.Ring], "ring", "run_id")
        self.cups, self.settings = Table(db, tuple[str, str, bytes], "cup", "shelf key"), Table(db, tuple[str, int], "setting", "name")

    def next(self) -> int:
        return self.db.execute("INSERT INTO number DEFAULT VALUES").lastrowid or 0

    def missing(self, run_id: str) -> RunNotFound:
        return pruned.missing(run_id, self.tombstones.get(run_id))

    def there(self, run_id: str) -> bool:
        return self.runs.get(run_id) is not None

    def blocker(self, run: Run, turn: int) -> str | None:
        sql = "tenant_id = ? AND session_key = ? AND lane = ? AND run_id <> ? AND (holds OR (turn < ? AND due <= ?)) ORDER BY holds DESC, turn"
        return next((k.run.run_id for k in self.runs.where(sql, run.tenant_id, run.session_key, run.lane, run.run_id, turn, self.now())), None)

    def thread_end(self, tenant_id: str, thread_id: str) -> ThreadEnd:
        mine = self.runs.where("thread_id = ? AND tenant_id = ? ORDER BY turn DESC", thread_id, tenant_id)
        return next((ThreadEnd(k.run.run_id, k.run.version, k.fence) for k in mine if k.run.terminal), ThreadEnd())

    def unread(self, run_id: str, took: Sequence[str]) -> bool:
        return any(i.key not in took for i in self.inbox.where("run_id = ? AND taken_seq IS NULL", run_id))

    def untaken(self, run_id: str, key: str) -> bool:
        return (item := self.inbox.get(run_id, key)) is not None and item.taken_seq is None

    def claimant(self, claim: DedupClaim) -> str | None:
        taken = [(c, self.runs.get(c.run_id)) for c in self.claims.where("kind = ? AND scope = ? AND key = ?", claim.kind, claim.scope, claim.key)]
        return next((c.run_id for c, k in taken if apply.still_taken(c, k.run.status if k else None, self.now())), None)

    def attempts(self, key: str) -> list[str]:
        return [e.effect_id for e in self.effects.where("key = ? AND open", key)]

    def has_blob(self, digest: str) -> bool:
        return self.blobs.get(digest) is not None

    def schedule(self, schedule_id: str) -> Schedule | None:
        return self.schedules.get(schedule_id)

    def waiting(self, queue: str, tenant_id: str) -> int:
        return len(self.runs.where("status = 'pending' AND owner IS NULL AND queue = ? AND tenant_id = ?", queue, tenant_id))

    def lives(self, owner: str | None) -> bool:
        return owner is not None and self.present.why_lost(owner) is None

    def found(self, k: Kept) -> Found:
        return Found(k.fence, k.owner, self.lives(k.owner), k.tip.row, k.tip.hash, k.holds, k.turn, k.run.status)

    def held(self) -> list[Held]:
        owned = Counter((k.owner or "", k.run.queue, k.run.tenant_id) for k in self.runs.where("owner IS NOT NULL") if self.lives(k.owner))
        return [Held(*place, n) for place, n in owned.items()]

    def in_use(self) -> Counter[str]:
        return Counter(name for c in self.calls.where("owner IS NOT NULL") if self.lives(c.owner) for name in c.names)

    def free(self, calls: Sequence[Call]) -> None:
        self.calls.drop("place IN (SELECT value FROM json_each(?))", json.dumps([c.place for c in calls]))
        asleep = {k.run.run_id: k for k in self.runs.where("owner IS NULL AND due > ?", self.now())}
        for run_id in apply.next_in_line(calls, self.calls.where("owner IS NULL"), asleep.__contains__):
            self.runs.put(replace(asleep[run_id], due=at_once(self.now())))


class ThirdStore(Small):
    """A store in one file that one process has open. ``now`` gives its clock, microseconds since 1970."""

    def __init__(self, path: str, *, now: Callable[[], int]) -> None:
        self.url, self.now, self._path = f"third:{path}", now, path
        self.present, self.changes = Present(now, now), Changes()

    async def open(self) -> None:
        self._books = Books(self._path, self.present, self.now)
        self._books.settings.put(*(() if self._books.settings.where() else [("incarnation", secrets.randbits(31))]))
        self.incarnation = self._books.settings.where()[0][1]
        self.changes.reopen()

    async def close(self) -> None:
        self.changes.close()
        self._books.db.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Books]:
        """One transaction; whoever waits for news is told when it is durable."""
        self._books.db.execute("BEGIN IMMEDIATE")
        try:
            yield self._books
        except BaseException:
            self._books.db.execute("ROLLBACK")
            raise
        self._books.db.execute("COMMIT")
        self.changes.tell()

    async def commit(self, commit: Commit) -> Tip:
        commit.check()
        with self._writing() as books:
            return self._apply(apply.prepare(commit), books)

    def _apply(self, p: Prepared, books: Books) -> Tip:
        c, run_id, now, old = p.commit, p.run_id, self.now(), books.runs.get(p.run_id)
        taker = not isinstance(c.lease, Take) or c.lease.owner in self.present.workers
        ruling = apply.admit(p, None if old is None else books.found(old), books, incarnation=self.incarnation, taker=taker, now=now)
        tip = p.tip(books.next())
        books.inbox.put(*(replace(item, taken_seq=tip.seq) for key in c.took for item in books.inbox.where("run_id = ? AND key = ?", run_id, key)))
        books.runs.put(Kept(c.run, tip, c.fence, ruling.turn or books.next(), ruling.owner, ruling.due, ruling.holds))
        books.log.put((run_id, tip.seq, p.sealed.row))
        books.wholes.put(*([(run_id, tip.seq, p.whole)] if p.whole is not None else ()))
        books.carries.put(*((run_id, predecessor) for predecessor in (c.behind.runs if c.behind else ())))
        links = (t for wait in p.closed for t in books.tokens.where("run_id = ? AND wait_id = ?", run_id, wait))
        books.tokens.put(*(replace(t, revoked_at=now) for t in links if t.open))
        books.claims.put(*c.claims)
        self._keep(books, run_id, c.effects, c.intents, c.ledger, c.blobs)
        self._emit(books, [c.emitted] if c.emitted else [])
        for child in p.creates:
            self._apply(child, books)
        for item in c.puts:
            self._put(books, item)
        books.schedules.put(*(move.after for move in c.moves))
        return tip

    def _keep(self, books: Books, run_id: str, effects: Sequence[Effect], made: Sequence[Intent], ledger: Sequence[LedgerRow], large: Sequence[blobs.Blob] = ()) -> None:
        """What hangs on a run."""
        books.effects.put(*effects)
        books.intents.put(*made)
        books.ledger.put(*(replace(row, number=books.next()) for row in ledger))
        books.blobs.put(*((b.digest, blobs.read_back(b.digest, b.data)) for b in large if not books.has_blob(b.digest)))
        books.users.put(*((b.digest, run_id) for b in large))

    def _put(self, books: Books, item: InboxItem) -> InboxItem:
        if (kept := books.runs.get(item.run_id)) is None:
            raise books.missing(item.run_id)
        if (there := books.inbox.get(item.run_id, item.key)) is not None:
            return there
        books.inbox.put(new := replace(item, taken_seq=None))
        books.runs.put(replace(kept, due=apply.due_when_woken(books.found(kept), kept.due, self.now())))
        return new

    async def put(self, item: InboxItem) -> InboxItem:
        with self._writing() as books:
            return self._put(books, item)

    def _emit(self, books: Books, emitted: Sequence[Emitted]) -> None:
        for e in emitted:
            if (kept := books.runs.get(e.run_id)) is not None and kept.fence == e.fence:
                books.rings.put((e.run_id, memory.ring_after(self._ring(e.run_id), e, [books.next() for _ in e.batches], self.now())))

    def _ring(self, run_id: str) -> memory.Ring:
        return kept[1] if (kept := self._books.rings.get(run_id)) else ()

    async def emit(self, emitted: Sequence[Emitted]) -> None:
        with self._writing() as books:
            self._emit(books, emitted)

    async def chunks(self, run_id: str, after: int = 0, limit: int = 1000) -> list[Stored]:
        return memory.ring_beyond(run_id, self._ring(run_id), after, limit)

    async def thread_end(self, tenant_id: str, thread_id: str) -> ThreadEnd:
        return self._books.thread_end(tenant_id, thread_id)

    async def claim(
        self, owner: str, queues: Sequence[str], skills: Sequence[str] | None, *, limit: int, run_id: str | None = None, shapes: Sequence[str] | None = None, limits: Mapping[str, Limit] = NO_LIMITS
    ) -> Claims:
        with self._writing() as books:
            self.present.need(owner)
            if run_id is not None and not books.there(run_id):
                raise books.missing(run_id)
            now, found = self.now(), [Candidate(k, k.run, books.found(k), k.due) for k in books.runs.where()]
            use = Use(in_force(limits, books.rules.where()), owner, books.held(), dict(books.buckets.where()), now)
            got = apply.choose(found, Wanted(owner, queues, skills, shapes, run_id), books, use, now, limit)
            books.buckets.put(*got.buckets.items())
            claims = [apply.take(k.run.run_id, k.fence, k.owner, owner, self.present.why_lost(k.owner) if k.owner else None) for k in got.keys]
            books.runs.put(*(replace(k, owner=owner, fence=k.fence + 1, holds=True, due=min(at_once(now), k.due or 0)) for k in got.keys))
            return Claims(claims).until(got.again)

    async def rules(self) -> list[Rule]:
        return self._books.rules.where("1 ORDER BY name")

    async def put_rule(self, rule: Rule, before: Rule | None) -> bool:
        with self._writing() as books:
            books.rules.put(*([rule] if (same := books.rules.get(rule.name) == before) else ()))
            return same

    async def usage(self) -> Usage:
        return Usage(tuple(self._books.held()), self._books.in_use(), dict(self._books.buckets.where()))

    async def backlog(self) -> list[Backlog]:
        due = self._books.runs.where("owner IS NULL AND due <= ?", self.now())
        return apply.backlog((k.run, k.due or 0, not k.holds and self._books.blocker(k.run, k.turn) is not None) for k in due)

    async def enter(self, owner: str, run_id: str, place: str, needs: Mapping[str, Limit | None], *, resting: bool = False) -> Later | None:
        with self._writing() as books:
            self.present.need(owner)
            call, there = Call(place, owner, run_id, tuple(needs), self.now()), books.calls.get(place)
            entry = apply.enter(call, needs, there, books.rules.where(), books.in_use(), dict(books.buckets.where()), resting=resting)
            books.calls.put(*([entry.call] if entry.call else ()))
            books.buckets.put(*entry.buckets.items())
            return entry.later

    async def leave(self, owner: str, places: Sequence[str]) -> None:
        with self._writing() as books:
            books.free([c for c in books.calls.where("owner = ?", owner) if c.place in places])

    async def retire(self, owner: str) -> None:
        with self._writing() as books:
            books.runs.put(*(replace(k, owner=None, fence=k.fence + 1, due=at_once(self.now())) for k in books.runs.where("owner = ?", owner)))
            books.free(books.calls.where("owner = ?", owner))
            self.present.retire(owner)

    async def load(self, run_id: str) -> Loaded | None:
        if (k := self._books.runs.get(run_id)) is None:
            return None
        seq, data = next(((w[1], w[2]) for w in self._books.wholes.where("run_id = ? ORDER BY seq DESC LIMIT 1", run_id)), (0, None))
        whole, rows = None if data is None else codec.decode_whole(run_id, data), tuple(await self.rows(run_id, seq))
        return Loaded(k.run, k.tip, self.present.lease(k.fence, k.owner, k.due), whole, rows, tuple(await self.inbox(run_id)), memory.ring_newest(run_id, self._ring(run_id)))

    async def runs(self, query: RunFilter) -> list[tuple[Run, Lease]]:
        asked, *values = _given(**{name: getattr(query, name) for name in ("tenant_id", "skill_id", "thread_id", "session_key", "lane", "parent_run_id", "lineage_root", "owner")})
        ahead = " AND (holds OR (due <= ? AND turn <= ifnull((SELECT turn FROM run WHERE run_id = ?), turn))) ORDER BY holds DESC, turn"
        order, more = (ahead, (self.now(), query.until)) if query.ahead else (f" ORDER BY {'turn' if query.by_turn else 'run_id'} DESC", ())
        found = [k for k in self._books.runs.where(asked + order, *values, *more) if query.statuses is None or k.run.status in query.statuses]
        return [(k.run, self.present.lease(k.fence, k.owner, k.due)) for k in found if query.before is None or k.run.run_id < query.before][: query.limit]

    async def rows(self, run_id: str, after: int = 0, limit: int | None = None) -> list[codec.Row]:
        return [row for *_, row in self._books.log.where("run_id = ? AND seq > ? ORDER BY seq", run_id, after)][:limit]

    async def inbox(self, run_id: str, *, taken: bool = False) -> list[InboxItem]:
        return [i for i in self._books.inbox.where("run_id = ?", run_id) if taken or i.taken_seq is None]

    async def find_claim(self, kind: str, scope: str, key: str) -> DedupClaim | None:
        there = self._books.claims.get(kind, scope, key)
        return there if there is not None and self._books.claimant(there) else None

    async def effects(self, run_id: str | None = None, *, key: str | None = None, lineage_root: str | None = None) -> list[Effect]:
        return self._books.effects.where(*_given(run_id=run_id, key=key, lineage_root=lineage_root))

    async def settle_effect(self, effect: Effect, expected: str) -> bool:
        with self._writing() as books:
            there = books.effects.get(effect.effect_id)
            books.effects.put(*([effect] if (same := there is not None and there.status == expected) else ()))
            return same

    async def blob(self, digest: str) -> bytes:
        return blobs.read_back(digest, kept[1] if (kept := self._books.blobs.get(digest)) else None)

    async def issue_token(self, token: Token) -> None:
        with self._writing() as books:
            if not books.there(token.run_id):
                raise books.missing(token.run_id)
            books.tokens.put(token)

    async def token(self, hash: bytes) -> Token | None:
        return self._books.tokens.get(hash)

    async def redeem_token(self, hash: bytes, item: InboxItem) -> InboxItem:
        with self._writing() as books:
            used = apply.usable(books.tokens.get(hash), self.now(), answered=books.inbox.get(item.run_id, item.key) is not None)
            books.tokens.put(*([used] if used else ()))
            return self._put(books, item)

    async def put_schedule(self, schedule: Schedule, before: Schedule | None) -> bool:
        with self._writing() as books:
            books.schedules.put(*([schedule] if (same := books.schedule(schedule.schedule_id) == before) else ()))
            return same

    async def drop_schedule(self, schedule_id: str) -> bool:
        with self._writing() as books:
            return books.schedules.drop("schedule_id = ?", schedule_id) == 1

    async def schedules(self, due: int | None = None) -> list[Schedule]:
        return self._books.schedules.where("(?1 IS NULL OR due <= ?1) ORDER BY due NULLS LAST, rowid", due)

    async def intents(
        self, run_id: str | None = None, *, state: str | None = None, type: str | None = None, tenant_id: str | None = None, after: str | None = None, limit: int = 500
    ) -> list[Intent]:
        found = self._books.intents.where(*_given(run_id=run_id, state=state, type=type, tenant_id=tenant_id))
        return found[[i.intent_id for i in found].index(after) + 1 if after else 0 :][:limit]

    async def claim_intents(
        self, owner: str, types: Sequence[str], *, limit: int, ttl_us: int, each: int = 1_000_000, room: Mapping[tuple[str, str, str], int] | None = None, run_id: str | None = None,
        held: Collection[str] = (), doubt: bool = False,
    ) -> list[Intent]:
        with self._writing() as books:
            now, dead, own = self.now(), self.present.dead, {i.intent_id for i in books.intents.where("open") if intents.answer_lost(i, owner, held, doubt=doubt)}
            lost, due = apply.sendable(books.intents.where("open"), types, run_id, now, lambda i: (i.lease_until or 0) <= now or i.owner in dead or i.intent_id in own)
            free = [(i, i.state == IntentState.SENDING) for i in apply.by_turns(lost, due, limit, each, room or {})]
            out = [intents.start_sending(i, owner, now, now + ttl_us, lost=gone, dead=i.owner in dead, answer_lost=i.intent_id in own) for i, gone in free]
            books.intents.put(*out)
            return out

    async def renew_intents(self, owner: str, ttl_us: int) -> None:
        with self._writing() as books:
            books.intents.put(*(replace(i, lease_until=self.now() + ttl_us) for i in books.intents.where("state = 'sending' AND owner = ?", owner)))

    async def settle_intents(self, settlements: Sequence[Settlement]) -> list[bool]:
        with self._writing() as books:
            return [self._settle(books, s) for s in settlements]

    def _settle(self, books: Books, s: Settlement) -> bool:
        if (there := books.intents.get(s.after.intent_id)) is None or not intents.stands(there, s.before):
            return False
        self._keep(books, there.run_id, (), (s.after, *s.intents), s.ledger, s.blobs)
        for item in s.puts:
            self._put(books, item)
        return True

    async def drop_payloads(self, before: int, limit: int) -> int:
        with self._writing() as books:
            old = [i for i in books.intents.where("state IN ('sent', 'abandoned') AND settled_at < ?", before) if i.payload][:limit]
            books.intents.put(*map(intents.drop_payload, old))
            return len(old)

    async def ledger(
        self, run_id: str | None = None, *, topic: str | None = None, key: str | None = None, tenant_id: str | None = None, after: int | None = None, limit: int | None = None
    ) -> list[LedgerRow]:
        asked, *values = _given(run_id=run_id, topic=topic, key=key)
        tenant = f"{asked} AND number > ? AND (?{len(values) + 2} IS NULL OR run_id IN (SELECT run_id FROM run WHERE tenant_id = ?{len(values) + 2}))"
        return self._books.ledger.where(tenant, *values, after or 0, tenant_id)[:limit]

    async def shelve(self, shelf: str, rows: Mapping[str, bytes], once: Collection[str] = ()) -> list[str]:
        with self._writing() as books:
            taken = sorted(key for key in once if books.cups.where("shelf = ? AND key = ?", shelf, key))
            books.cups.put(*((shelf, key, data) for key, data in rows.items() if key not in taken))
            return taken

    async def shelf_scan(self, shelf: str, prefix: str = "", after: str = "", limit: int = 100) -> list[tuple[str, bytes]]:
        return [(key, data) for _, key, data in self._books.cups.where("shelf = ? AND key > ? ORDER BY key", shelf, after) if key.startswith(prefix)][:limit]

    async def unshelve(self, shelf: str, prefix: str) -> int:
        with self._writing() as books:
            return books.cups.drop("shelf = ?1 AND substr(key, 1, length(?2)) = ?2", shelf, prefix)

    async def list_shelves(self) -> list[str]:
        return sorted({shelf for shelf, _, _ in self._books.cups.where()})

    async def run_ids(self, after: str = "", limit: int = 1000) -> list[str]:
        return [k.run.run_id for k in self._books.runs.where("run_id > ? ORDER BY run_id", after)][:limit]

    async def whole(self, run_id: str, after: int = 0) -> tuple[int, Checkpoint | HoldfastError] | None:
        found = self._books.wholes.where("run_id = ? AND seq > ? ORDER BY seq LIMIT 1", run_id, after)
        return next(((seq, codec.decode_whole(run_id, data)[0]) for _, seq, data in found), None)

    async def rebuild(self, evidence: Evidence, commits: Sequence[Commit]) -> str:
        run, run_id, now = commits[-1].run, evidence.run_id, self.now()
        if error := apply.mendable(evidence, await self.evidence(run_id), now):
            raise error
        with self._writing() as books:
            written, (old,) = [apply.prepare(c) for c in commits], books.runs.where("run_id = ?", run_id)
            books.log.put(*((run_id, p.sealed.row.seq, p.sealed.row) for p in written))
            stood, taken = Stands(old.owner, old.due, old.holds), books.blocker(run, 0) is not None
            s = apply.rebuilt(commits[-1], stood, old.run.status != run.status, now, unread=books.unread(run_id, ()), taken=taken)
            books.runs.put(Kept(run, written[-1].tip(books.next()), commits[-1].fence, old.turn, s.owner, s.due, s.holds))
            return ""

    async def claims_of(self, run_id: str) -> list[DedupClaim]:
        return self._books.claims.where("run_id = ?", run_id)

    async def adopt(self, dossier: Dossier) -> bool:
        if self._books.there(run_id := (d := dossier).run.run_id):
            return not apply.same(d, await self.rows(run_id))
        with self._writing() as books:
            if books.tombstones.get(run_id) is not None:
                raise books.missing(run_id)
            a = apply.adopt(d, self.incarnation, self.now(), taken=books.blocker(d.run, 0) is not None)
            books.log.put(*((run_id, row.seq, row) for row in d.rows))
            books.wholes.put(*([(run_id, 0, d.origin)] if d.origin is not None else ()))
            books.carries.put(*((run_id, predecessor) for predecessor in a.carries))
            books.inbox.put(*d.inbox)
            for shelf, mine in apply.by_shelf(d.shelved).items():
                apply.check_shelved(shelf, mine, {key: there[2] for key in mine if (there := books.cups.get(shelf, key)) is not None})
            books.cups.put(*((row.shelf, row.key, row.data) for row in d.shelved))
            books.claims.put(*(c for c in d.claims if books.claims.get(c.kind, c.scope, c.key) is None))
            self._keep(books, run_id, d.effects, d.intents, d.ledger, d.blobs)
            later = [k.turn for k in books.runs.where("thread_id = ? AND tenant_id = ? AND run_id > ?", d.run.thread_id, d.run.tenant_id, run_id)]
            books.runs.put(Kept(d.run, Tip(a.seq, a.hash, books.next(), a.since, a.whole), a.fence, apply.place_adopted(d.run, min(later, default=None), books.next()), None, a.due, a.holds))
            return True

    async def list_carries(self) -> list[tuple[str, str]]:
        return self._books.carries.where("predecessor IN (SELECT run_id FROM run) AND run_id NOT IN (SELECT run_id FROM whole WHERE seq = 0)")

    async def keep_origin(self, run_id: str, origin: bytes) -> None:
        with self._writing() as books:
            books.wholes.put((run_id, 0, origin))

    async def find_pruned(self, run_id: str) -> pruned.Tombstone | None:
        return self._books.tombstones.get(run_id)

    async def prune(self, before: int, *, dry: bool = False, actor: str = "operator") -> Pruned:
        carries, now = () if dry else await self.list_carries(), self.now()
        with self._writing() as books:
            sending = [k.run for k in books.runs.where("run_id IN (SELECT run_id FROM intent WHERE open)")]
            unsettled = {x.lineage_root for x in (*sending, *books.effects.where("open"))}
            found = apply.prunable([Aged.of(k.run) for k in books.runs.where()], before, unsettled, carries)
            for run_id in () if dry else found.run_ids:
                gone, large = apply.tombstones(books.effects.where("run_id = ?", run_id))
                books.effects.drop("effect_id IN (SELECT value FROM json_each(?))", json.dumps(gone))
                books.claims.drop("run_id = ? AND key NOT IN (SELECT value FROM json_each(?))", run_id, json.dumps([c.key for c in books.claims.where("run_id = ?", run_id) if apply.outlasts(c, now)]))
                books.users.drop("run_id = ? AND digest NOT IN (SELECT value FROM json_each(?))", run_id, json.dumps(sorted(large)))
                for table in ("run", "log", "whole", "carry", "inbox", "token", "intent", "ledger", "call", "ring"):
                    books.db.execute(f"DELETE FROM {table} WHERE run_id = ?", (run_id,))
                books.tombstones.put(pruned.Tombstone(run_id, now, actor))
            books.blobs.drop("digest NOT IN (SELECT digest FROM user)")
            return found


def _given(**columns: str | None) -> list[str]:
    """A condition on those columns that are asked for, and its values."""
    asked = {name: value for name, value in columns.items() if value is not None}
    return [" AND ".join(["1", *(f"{name} = ?" for name in asked)]), *asked.values()]


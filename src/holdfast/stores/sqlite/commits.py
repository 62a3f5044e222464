"""What a commit writes: the body of the write transaction (§1.6, §1.11).

A step of a linear run is four statements: BEGIN, the log row, the compare-and-set of the run's hot columns, COMMIT.
Steps of many runs share a transaction through ``executemany``. Whatever else a commit holds goes the general way, which
reads the run's row first and so can say exactly why it refuses.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import apsw
import msgspec

from holdfast.core import blobs, codec, vouch
from holdfast.core.blobs import Blob
from holdfast.core.commit import InboxItem, Step, ThreadEnd, Tip
from holdfast.core.errors import HoldfastError, RecordDamaged, RunNotFound
from holdfast.core.lease import Take, Touch, at_once
from holdfast.core.schedules import Schedule
from holdfast.core.vouch import Voucher
from holdfast.stores import apply
from holdfast.stores.apply import Found, Prepared, Ruling
from holdfast.stores.sqlite import besides, limits, outbox
from holdfast.stores.sqlite.connection import Q, abort, row, writing
from holdfast.stores.sqlite.owners import Owners

Write = Prepared | Step
"""What may be written: any commit, or a plain step whose maker has sealed it."""


def step_of(w: Write) -> Step | None:
    """The plain step that a commit is, if it is one."""
    return w if isinstance(w, Step) else w.step


class Refused(Exception):
    """A compare-and-set of a step failed; which one, and why, the general way finds out."""


class Applied(msgspec.Struct, frozen=True, gc=False):
    """What became of a commit: its tip, the run's key, and whether somebody holds it now."""

    tip: Tip
    key: int
    owned: bool


class Committer:
    """Applies commits on one connection. ``last`` is the newest log row it has committed, its id and hash; ``wrote`` numbers the newest
    transaction that left no row in the log."""

    def __init__(self, db: apsw.Connection, owners: Owners, now: Callable[[], int]) -> None:
        self.db = db
        self.last: tuple[int, bytes] = (0, b"")
        self.wrote = 0
        self.took = 0.0
        self._cursor = db.cursor()
        self._owners = owners
        self._now = now
        self._log_id = 0
        self._log_hash = b""
        self._looked: dict[str, int] = {}  # what this transaction has found: owners that are known, and under "" the incarnation

    # -- transactions -------------------------------------------------------------------------------

    def step(self, s: Step, key: int) -> Applied:
        """A lone step: four statements, one sync.

        Raises:
            Refused: the compare-and-set failed; nothing was written.
        """
        execute, after = self._cursor.execute, s.after
        execute(Q.begin)
        try:
            execute(Q.step_log, (key, s.seq, after.row, s.hash, s.data))
            number = self.db.last_insert_rowid()
            execute(Q.step_run, (s.seq, s.since, s.version, s.step, s.head, key, s.fence, after.row, after.hash))
            if self.db.changes() != 1:
                raise Refused
            self._commit()
        except BaseException:
            abort(self.db)
            raise
        self.last = (number, s.hash)
        return Applied(s.tip(number), key, True)

    def one(self, w: Write, key: int | None) -> Applied:
        """One commit in a transaction of its own."""
        step = step_of(w)
        if key is not None and step is not None:
            try:
                return self.step(step, key)
            except Refused:
                pass  # the general way refuses it with the reason
        return self._transaction([w], {})[0]

    def together(self, batch: Sequence[Write], keys: Mapping[str, int]) -> list[Applied]:
        """Many commits of different runs in one transaction; any error undoes them all."""
        return self._transaction(batch, keys)

    def _transaction(self, batch: Sequence[Write], keys: Mapping[str, int]) -> list[Applied]:
        self._cursor.execute(Q.begin)
        try:
            self._log_id, self._looked = row(self.db, Q.last_log)[0], {}
            done: list[Applied | None] = [None] * len(batch)
            self._steps(batch, keys, done)
            now = self._now()
            applied = [a if a is not None else self._apply(w, now) if isinstance(w, Prepared) else self._apart(w) for w, a in zip(batch, done, strict=True)]
            self._commit()
        except BaseException:
            abort(self.db)
            raise
        self.last = (self._log_id, self._log_hash)
        return applied

    def _commit(self) -> None:
        began = time.perf_counter()
        self._cursor.execute(Q.commit)
        self.took = time.perf_counter() - began

    def _steps(self, batch: Sequence[Write], keys: Mapping[str, int], done: list[Applied | None]) -> None:
        """The plain steps of a batch, two statements for all of them; ``done`` gets what became of each."""
        number, digest, log, runs = self._log_id, b"", [], []
        for i, w in enumerate(batch):
            s = w if type(w) is Step else step_of(w)
            if s is None or (key := keys.get(s.run_id)) is None:
                continue
            number += 1
            after, digest = s.after, s.hash
            log.append((number, key, s.seq, after.row, digest, s.data))
            runs.append((s.seq, number, s.since, s.version, s.step, s.head, key, s.fence, after.row, after.hash))
            done[i] = Applied(s.tip(number), key, True)
        if not runs:
            return
        self._cursor.executemany(Q.steps_log, log)
        before = self.db.total_changes()
        self._cursor.executemany(Q.steps_run, runs)
        if self.db.total_changes() - before != len(runs):
            raise Refused
        self._log_id, self._log_hash = number, digest

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction of any other verb, counted so that the anchor covers it too (§1.9)."""
        with writing(self.db):
            yield
            number = int(row(self.db, Q.meta_wrote)[0])
        self.wrote = number

    # -- the general way ----------------------------------------------------------------------------

    def _apply(self, p: Prepared, now: int) -> Applied:
        """One commit inside the open transaction."""
        c, execute, log = p.commit, self._cursor.execute, p.sealed.row
        run = c.run
        state = row(self.db, Q.run_state, (run.run_id,))
        key, tip = (0, 0) if state is None else state[:2]
        ruling = self._ruled(p, None if state is None else state[1:])
        self._log_id = number = self._log_id + 1
        self._log_hash = log.hash
        if ruling.lane is not None:
            self._need_lane(p, key, ruling.lane, now)
        if c.follows is not None and thread_end(self.db, run.tenant_id, run.thread_id) != c.follows:
            raise apply.thread_moved(run)
        owner = ruling.owner
        hot = (log.seq, number, p.since, run.version, run.current_step_id, run.checkpoint_head, c.fence, owner)
        cold = (int(ruling.holds), ruling.turn or number, p.whole_size, run.status.value, run.priority, run.shape, p.sealed.doc)
        if state is None:
            found_by = (run.run_id, run.tenant_id, run.skill_id, run.thread_id, run.session_key, run.lane, run.queue, run.parent_run_id, run.lineage_root)
            execute(Q.run_insert, (*hot, apply.due_after(c, owner, now, False), *cold, *found_by))
            key = self.db.last_insert_rowid()
        execute(Q.steps_log, (number, key, log.seq, tip, log.hash, log.data))
        for taken in c.took:
            execute(Q.inbox_take, (log.seq, key, taken))
            if self.db.changes() != 1:
                raise apply.inbox_taken(run.run_id, taken)
            execute(Q.vouch_taken, (log.seq, run.run_id, taken))
            if self.db.changes() != 1:
                raise RecordDamaged("inbox", run.run_id, taken)
        if state is not None:
            unread = owner is None and bool(row(self.db, Q.inbox_unread, (key,))[0] if c.took else state[8])
            if ruling.ends and unread:
                raise apply.unread_at_the_end(run.run_id)
            execute(Q.run_update, (*hot, apply.due_after(c, owner, now, unread), *cold, key))
        if p.whole is not None:
            execute(Q.whole_insert, (key, log.seq, number, p.whole))
        for lender in c.behind.runs if c.behind is not None else ():
            execute(Q.carry_insert, (key, lender))
            if self.db.changes() != 1:
                raise apply.lender_gone(run.run_id, lender)
        for wait_id in p.closed:
            besides.revoke_tokens(self.db, run.run_id, key, wait_id, now)
        if not c.plain:
            self._beside(p, key, now)
        if c.max_queued is not None and limits.waiting_in(self.db, run.queue, run.tenant_id) > c.max_queued:
            raise apply.queue_full(run, c.max_queued)
        return Applied(p.tip(number), key, owner is not None)

    def _apart(self, s: Step) -> Applied:
        """A plain step inside the open transaction whose run's key is not at hand, or which was refused: what is wrong with it is said."""
        state = row(self.db, Q.run_state, (s.run_id,))
        if state is None:
            raise RunNotFound(f"there is no run {s.run_id}")
        key, tip, fence, owner, holds, turn, status, digest, _ = state
        if error := apply.step_refused(s, Found(fence, owner, False, tip, digest, bool(holds), turn, status)):
            raise error
        done: list[Applied | None] = [None]
        self._steps([s], {s.run_id: key}, done)
        assert done[0] is not None, "the run's key is there"
        return done[0]

    def _ruled(self, p: Prepared, state: tuple[Any, ...] | None) -> Ruling:
        """What becomes of the run's row, of which ``state`` holds tip, fence, owner, holds, turn, status and the tip's hash."""
        lease = p.commit.lease
        taker = not isinstance(lease, Take) or self._known(lease.owner)
        if state is None:
            ruling = apply.ruled(p, None, incarnation=self._incarnation(), taker=taker)
        else:
            tip, fence, owner, holds, turn, status, digest, _ = state
            live = owner is not None and isinstance(lease, Take | Touch) and self._owners.lost(self._owners.find(self.db, owner)) is None
            ruling = apply.ruled(p, Found(fence, owner, live, tip, digest, bool(holds), turn, status), incarnation=0, taker=taker)
        if isinstance(ruling, RunNotFound):
            raise besides.missing(self.db, p.commit.run.run_id)
        if isinstance(ruling, HoldfastError):
            raise ruling
        return ruling

    def _known(self, owner: str) -> bool:
        """Whether there is such a worker; looked up once in a transaction."""
        if owner not in self._looked:
            self._looked[owner] = self._owners.find(self.db, owner) is not None
        return bool(self._looked[owner])

    def _incarnation(self) -> int:
        if "" not in self._looked:
            self._looked[""] = int(row(self.db, Q.meta_get, ("incarnation",))[0])
        return self._looked[""]

    def _need_lane(self, p: Prepared, key: int, turn: int, now: int) -> None:
        """A run begins to execute only if nobody holds its lane and nobody due is before it (§10.8)."""
        run = p.commit.run
        if blocker := lane_blocker(self.db, (run.tenant_id, run.session_key, run.lane), key, turn, now):
            raise apply.lane_busy(run, blocker)

    def _beside(self, p: Prepared, key: int, now: int) -> None:
        """What a commit writes beside its log row."""
        c, execute, db = p.commit, self._cursor.execute, self.db
        for claim in c.claims:
            if (there := besides.claimed(db, claim.kind, claim.scope, claim.key, now)) is not None:
                raise apply.claim_taken(claim.kind, claim.key, there.run_id)
            execute(Q.claim_put, (claim.kind, claim.scope, claim.key, claim.run_id, claim.digest, claim.expires_at))
        vouchers: list[Voucher] = [vouch.of_claim(claim) for claim in c.claims]
        vouchers += [besides.put_effect(db, effect) for effect in c.effects]
        vouchers += [outbox.put_intent(db, intent) for intent in c.intents]
        if c.ledger:
            vouchers += outbox.put_ledger(db, c.ledger)
        besides.vouch_for(db, vouchers)
        for blob in c.blobs:
            keep_blob(self.db, c.run.run_id, blob, now)
        if c.emitted is not None:
            besides.emit(db, key, c.emitted, now)
        for child in p.creates:
            self._apply(child, now)
        for item in c.puts:
            self.put(item, now)
        for move in c.moves:
            if not self.put_schedule(move.after, move.before):
                raise apply.schedule_moved(move.after.schedule_id)

    def put_schedule(self, s: Schedule, before: Schedule | None) -> bool:
        """Inside a transaction: writes a schedule if it still stands as whoever moves it has seen it."""
        if besides.schedule(self.db, s.schedule_id) != before:
            return False
        besides.put_schedule(self.db, s)
        return True

    # -- inbox --------------------------------------------------------------------------------------

    def put(self, item: InboxItem, now: int) -> InboxItem:
        """Inside a transaction: keeps a command, or gives the one already there under its key."""
        execute = self._cursor.execute
        state = row(self.db, Q.run_tip, (item.run_id,))
        if state is None:
            raise besides.missing(self.db, item.run_id)
        command = codec.encode_command(item.command)
        execute(Q.inbox_insert, (state[0], item.key, item.put_at, command))
        if self.db.changes() != 1:
            return besides.inbox_item(self.db, item.run_id, row(self.db, Q.inbox_get, (state[0], item.key)))
        execute(Q.vouch_new, vouch.of_inbox(item.run_id, item.key, item.put_at, command, None))
        if self.db.changes() != 1:
            raise RecordDamaged("inbox", item.run_id, item.key, missing=True)
        execute(Q.inbox_wake, (at_once(now), state[0]))
        return msgspec.structs.replace(item, taken_seq=None)


def thread_end(db: apsw.Connection, tenant_id: str, thread_id: str) -> ThreadEnd:
    """The newest ended run of a thread."""
    found = row(db, Q.thread_end, (thread_id, tenant_id))
    return ThreadEnd() if found is None else ThreadEnd(*found)


def lane_blocker(db: apsw.Connection, lane: tuple[str, str, str], key: int, turn: int, now: int) -> str | None:
    """The run that holds a lane, or is due in it before this turn."""
    found = row(db, Q.lane_blocker, (*lane, key, turn, now))
    return None if found is None else str(found[0])


def keep_blob(db: apsw.Connection, run_id: str, blob: Blob, now: int) -> None:
    """Inside a transaction: keeps a blob unless it is there, and notes who names it."""
    digest = bytes.fromhex(blob.digest)
    if blob.data is not None:
        db.execute(Q.blob_insert, (digest, blob.size, now, blob.data))
    db.execute(Q.blob_use, (run_id, digest))
    if db.changes() != 1 and not row(db, Q.blob_used, (run_id, digest))[0]:
        blobs.read_back(blob.digest, None)

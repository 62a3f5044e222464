"""What a commit writes: the body of the write transaction (§1.6, §1.11).

A step of the only run that is driven here is one statement, whose trigger writes the log row and does the compare-and-set of the run's hot columns
(``lone_ways`` among the statements). Steps of several runs share a transaction through ``executemany``. Every other commit takes the general way,
which reads the run's row first and so can say exactly why it refuses.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import apsw
import msgspec

from holdfast.core import codec, vouch
from holdfast.core.blobs import Blob
from holdfast.core.commit import DedupClaim, InboxItem, Step, ThreadEnd, Tip
from holdfast.core.errors import HoldfastError, RecordDamaged, RunNotFound
from holdfast.core.lease import Take, Touch, at_once
from holdfast.core.run import Run
from holdfast.core.schedules import Schedule
from holdfast.core.vouch import Voucher
from holdfast.stores import apply
from holdfast.stores.apply import Found, Prepared, Ruling
from holdfast.stores.evidence import behind_its_log, end_of
from holdfast.stores.sqlite import besides, limits, outbox
from holdfast.stores.sqlite.connection import Q, Waits, abort, row, rows, writing
from holdfast.stores.sqlite.owners import Owners

Write = Prepared | Step
"""What may be written: any commit, or a plain step that its maker has sealed."""


def step_of(w: Write) -> Step | None:
    """Returns the plain step that a commit is; None if it is another commit."""
    return w if isinstance(w, Step) else w.step


class Refused(Exception):
    """A compare-and-set of a step failed; the general way finds out which one, and why."""


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The result of a commit that is not a plain step of a run driven here: its tip, the run's key, and whether anybody owns the run now.

    The result of a step is its tip alone.
    """

    tip: Tip
    key: int
    owned: bool


Outcome = Applied | Tip


class Committer:
    """Applies commits on one connection. ``last`` is the newest log row it has committed, its id and hash; ``wrote`` is the number of the newest
    transaction that left no row in the log. ``same`` is called with the incarnation that a transaction finds, and raises if the store is another one.
    ``waits``: the busy handler of the connection, given if no statement may wait for the write lock.
    """

    def __init__(self, db: apsw.Connection, owners: Owners, now: Callable[[], int], same: Callable[[int], None], waits: Waits | None = None) -> None:
        self.db = db
        self._waits = waits or Waits()
        self.last: tuple[int, bytes] = (0, b"")
        self.wrote = 0
        self.took = 0.0
        self._cursor = db.cursor()
        self._ready = False  # whether this connection has the temporary triggers of ``lone_ways``
        self._placed = placed = [0]  # the number of the log row that ``_lone`` has written
        self._owners = owners
        self._now = now
        self._same = same
        self._log_id = 0
        self._log_hash = b""
        self._looked: dict[str, int] = {}  # what this transaction has looked up: whether an owner is known, and under "" the incarnation

        def place(*values: Any) -> Any:
            placed[0] = values[0]
            return values[0]

        db.create_scalar_function("placed", place, 1)

    def forget(self) -> None:
        """Forgets the last commit, because the log is another one now and may be shorter."""
        self.last, self.wrote = (0, b""), 0

    # -- transactions -------------------------------------------------------------------------------

    def step(self, s: Step, key: int) -> Tip:
        """Writes a step alone: one statement, one sync.

        Raises:
            Refused: the compare-and-set failed; nothing was written.
        """
        after = s.after
        return s.tip(self._lone(Q.lone_step, s.hash, (key, s.seq, after.row, s.hash, s.data, s.since, s.version, s.step, s.head, s.fence, after.hash)))

    def _lone(self, statement: str, digest: bytes, values: tuple[Any, ...]) -> int:
        """Writes a log row and does the compare-and-set of its run, in a transaction of their own; returns the row's number."""
        if not self._ready:
            self.db.execute(Q.lone_ways)
            self._ready = True
        began = time.perf_counter()
        self._waits.never = True
        try:
            self._cursor.execute(statement, values)
        except apsw.ConstraintError as e:
            raise Refused from e
        finally:
            self._waits.never = False
        self.took = time.perf_counter() - began
        number = self._placed[0]
        self.last = (number, digest)
        return number

    def one(self, w: Write, key: int | None) -> Outcome:
        """Writes one commit in a transaction of its own."""
        step = step_of(w)
        try:
            if key is not None and step is not None:
                return self.step(step, key)
            if key is not None and isinstance(w, Prepared) and w.end:
                return Applied(w.tip(self._lone(Q.lone_end, w.sealed.row.hash, _lone_end(w, key))), key, False)
            if isinstance(w, Prepared) and w.birth:
                return self._transaction([w], {}, plainly=True, newest=0)[0]
        except Refused:
            pass  # the general way refuses it and says why
        return self._transaction([w], {})[0]

    def together(self, batch: Sequence[Write], keys: Mapping[str, int]) -> Sequence[Outcome]:
        """Writes many commits of different runs in one transaction; any error rolls all of them back."""
        return self._transaction(batch, keys, plainly=True)

    def _transaction(self, batch: Sequence[Write], keys: Mapping[str, int], *, plainly: bool = False, newest: int | None = None) -> Sequence[Outcome]:
        """Writes commits in one transaction. ``plainly``: plain births and ends take the short way, which may refuse them without a reason.
        ``newest``: 0 for a single birth, which reads the log's newest row together with all else it needs; None: that row is read at once."""
        self._waits.never = True
        try:
            self._cursor.execute(Q.begin)
        finally:
            self._waits.never = False
        try:
            self._log_id, self._looked = row(self.db, Q.last_log)[0] if newest is None else newest, {}
            done: list[Outcome | None] = [None] * len(batch)
            applied: Sequence[Outcome] = cast(list[Outcome], done)
            if self._steps(batch, keys, done) < len(batch):
                now = self._now()
                if plainly:
                    self._births(batch, done, now)
                    self._ends(batch, keys, done)
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

    def _steps(self, batch: Sequence[Write], keys: Mapping[str, int], done: list[Outcome | None]) -> int:
        """Writes the plain steps of a batch with two statements for all of them, and puts their results into ``done``. Returns how many there were."""
        number, digest, log, runs = self._log_id, b"", [], []
        for i, w in enumerate(batch):
            s = w if type(w) is Step else step_of(w)
            if s is None or (key := keys.get(s.run_id)) is None:
                continue
            number += 1
            after, digest, seq, since = s.after, s.hash, s.seq, s.since
            row = after.row
            log.append((number, key, seq, row, digest, s.data))
            runs.append((seq, number, since, s.version, s.step, s.head, key, s.fence, row, after.hash))
            done[i] = Tip(seq, digest, number, since, after.whole)
        if runs:
            self._many(log, Q.steps_run, runs)
            self._log_id, self._log_hash = number, digest
        return len(runs)

    def _births(self, batch: Sequence[Write], done: list[Outcome | None], now: int) -> None:
        """Writes the births in a batch that begin at once. If another run holds the lane of one, or has its id, the whole group is refused."""
        number, digest, born, log = self._log_id, self._log_hash, [], []
        key, carried = 0, []
        for i, p in enumerate(batch):
            if done[i] is not None or not isinstance(p, Prepared) or not p.birth:
                continue
            c, run = p.commit, p.commit.run
            owner: str = c.lease.owner  # type: ignore[union-attr]
            asked = None if c.follows is None else run.thread_id
            last, newest, incarnation, known, busy, *ended = row(self.db, Q.birth_look, (owner, run.tenant_id, run.session_key, run.lane, now, asked))
            self._log_id = self._log_id or newest
            number = number or newest
            ruling = apply.rule(p, None, incarnation=int(incarnation), taker=bool(known))
            if isinstance(ruling, HoldfastError) or busy or (asked is not None and thread_end(ended) != c.follows):
                continue  # the general way says what is wrong
            key = (key or last) + 1
            carried += [(key, predecessor) for predecessor in (() if c.behind is None else c.behind.runs)]
            number += 1
            digest = p.sealed.row.hash
            born.append((*_hot(p, number, owner), apply.due_after(c, owner, now, lambda: False), *_cold(p, ruling, number), *_list_found_by(run), key))
            log.append((number, key, p.sealed.row.seq, 0, digest, p.sealed.row.data))
            done[i] = Applied(p.tip(number), key, True)
        if born:
            try:
                self._cursor.executemany(Q.runs_insert, born)
            except apsw.ConstraintError as e:
                raise Refused from e
            self._many(log, Q.carry_insert, carried)
            self._log_id, self._log_hash = number, digest

    def _ends(self, batch: Sequence[Write], keys: Mapping[str, int], done: list[Outcome | None]) -> None:
        """Writes the plain ends in a batch. If a run was taken away, or has something in its inbox, the whole group is refused."""
        number, digest, log, ended = self._log_id, self._log_hash, [], []
        for i, p in enumerate(batch):
            if done[i] is not None or not isinstance(p, Prepared) or (key := keys.get(p.run_id)) is None or not p.end:
                continue
            sealed, after = p.sealed.row, p.commit.after
            assert after is not None, "the commit that ends a run must follow an earlier commit of it"
            number += 1
            digest = sealed.hash
            log.append((number, key, sealed.seq, after.row, digest, sealed.data))
            ended.append((*_end_row(p, key), number))
            done[i] = Applied(p.tip(number), key, False)
        if ended:
            self._cursor.executemany(Q.steps_log, log)
            for end in ended:  # one by one: changes to runs behind in the lane count in ``total_changes`` too
                self._cursor.execute(Q.ends_run, end)
                if self.db.changes() != 1:
                    raise Refused
            self._cursor.executemany(Q.tail_put, [(end[7], end[-1]) for end in ended])
            self._log_id, self._log_hash = number, digest

    def _many(self, log: Sequence[tuple[Any, ...]], statement: str, runs: Sequence[tuple[Any, ...]]) -> None:
        """Writes log rows, and does a compare-and-set of the run of each.

        Raises:
            Refused: one of them failed.
        """
        self._cursor.executemany(Q.steps_log, log)
        before = self.db.total_changes()
        self._cursor.executemany(statement, runs)
        if self.db.total_changes() - before != len(runs):
            raise Refused

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction of any other verb, numbered so that the anchor covers it too (§1.9)."""
        with writing(self.db, self._waits):
            number, incarnation = row(self.db, Q.meta_wrote)
            self._same(int(incarnation))
            yield
        self.wrote = int(number)

    # -- the general way ----------------------------------------------------------------------------

    def _apply(self, p: Prepared, now: int) -> Applied:
        """Applies one commit inside the open transaction."""
        c, execute, log = p.commit, self._cursor.execute, p.sealed.row
        run = c.run
        state = row(self.db, Q.run_state, (run.run_id,))
        # The driver of a run has its state in memory. All others, who come to a run at rest, rely on its row, so the row must say what its record
        # says.
        if state is not None and (state[9] or (isinstance(c.lease, Touch) and codec.decode_run(state[10]).status != state[6])):
            raise behind_its_log(run.run_id)
        key, tip = (0, 0) if state is None else state[:2]
        sight = Sight(self.db, now, key, bool(state[8]) if state is not None else False)
        ruling = self._rule(p, None if state is None else state[1:], sight, now)
        self._log_id = number = self._log_id + 1
        self._log_hash = log.hash
        owner = ruling.owner
        hot, cold = _hot(p, number, owner), _cold(p, ruling, number)
        if state is None:
            execute(Q.run_insert, (*hot, ruling.due, *cold, *_list_found_by(run), end_of(run)))
            key = self.db.last_insert_rowid()
        execute(Q.steps_log, (number, key, log.seq, tip, log.hash, log.data))
        for taken in c.took:
            execute(Q.inbox_take, (log.seq, key, taken))
            execute(Q.vouch_taken, (log.seq, run.run_id, taken))
            if self.db.changes() != 1:
                raise RecordDamaged("inbox", run.run_id, taken)
        if state is not None:
            execute(Q.run_update, (*hot, ruling.due, *cold, key, end_of(run)))
            execute(Q.tail_put, (key, number))
        if p.whole is not None:
            execute(Q.whole_insert, (key, log.seq, number, p.whole))
        for predecessor in c.behind.runs if c.behind is not None else ():
            execute(Q.carry_insert, (key, predecessor))
        for wait_id in p.closed:
            besides.revoke_tokens(self.db, run.run_id, key, wait_id, now)
        if not p.plain:
            self._beside(p, key, now)
        return Applied(p.tip(number), key, owner is not None)

    def _apart(self, s: Step) -> Applied:
        """Applies a plain step inside the open transaction if its run's key is not known here, or if the short way refused it; raises the reason."""
        state = row(self.db, Q.run_state, (s.run_id,))
        if state is None:
            raise RunNotFound(f"there is no run {s.run_id}")
        key, tip, fence, owner, holds, turn, status, digest, _, lags, _ = state
        if lags:
            raise behind_its_log(s.run_id)
        if error := apply.step_refused(s, Found(fence, owner, False, tip, digest, bool(holds), turn, status)):
            raise error
        done: list[Outcome | None] = [None]
        self._steps([s], {s.run_id: key}, done)
        assert isinstance(done[0], Tip), "the run's key is there"
        return Applied(done[0], key, True)

    def _rule(self, p: Prepared, state: tuple[Any, ...] | None, sight: Sight, now: int) -> Ruling:
        """Rules what becomes of the run's row. ``state`` has its tip, fence, owner, holds, turn, status and the tip's hash."""
        lease = p.commit.lease
        taker = not isinstance(lease, Take) or self._knows(lease.owner)
        if state is None:
            return apply.admit(p, None, sight, incarnation=self._incarnation(), taker=taker, now=now)
        tip, fence, owner, holds, turn, status, digest, *_ = state
        live = owner is not None and isinstance(lease, Take | Touch) and self._owners.why_lost(self._owners.find(self.db, owner)) is None
        there = Found(fence, owner, live, tip, digest, bool(holds), turn, status)
        return apply.admit(p, there, sight, incarnation=0, taker=taker, now=now, limited=lambda: bool(row(self.db, Q.rule_any)[0]))

    def _knows(self, owner: str) -> bool:
        """Returns whether there is such a worker; looked up once per transaction."""
        if owner not in self._looked:
            self._looked[owner] = self._owners.find(self.db, owner) is not None
        return bool(self._looked[owner])

    def _incarnation(self) -> int:
        if "" not in self._looked:
            self._looked[""] = int(row(self.db, Q.meta_get, ("incarnation",))[0])
        return self._looked[""]

    def _beside(self, p: Prepared, key: int, now: int) -> None:
        """Writes what a commit has beside its log row."""
        c, execute, db = p.commit, self._cursor.execute, self.db
        for claim in c.claims:
            execute(Q.claim_put, (claim.kind, claim.scope, claim.key, claim.run_id, claim.digest, claim.expires_at))
        vouchers: list[Voucher] = [vouch.of_claim(claim) for claim in c.claims]
        vouchers += [besides.put_effect(db, effect, data) for effect, data in zip(p.effects, p.encoded, strict=True)]
        vouchers += besides.claim_keys(db, p.effects)
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
            besides.put_schedule(db, move.after, new=move.before is None)

    def put_schedule(self, s: Schedule, before: Schedule | None) -> bool:
        """Inside a transaction: writes a schedule if it still is as the caller has seen it; returns whether it was."""
        if besides.schedule(self.db, s.schedule_id) != before:
            return False
        besides.put_schedule(self.db, s, new=before is None)
        return True

    # -- inbox --------------------------------------------------------------------------------------

    def put(self, item: InboxItem, now: int) -> InboxItem:
        """Inside a transaction: stores a command, or returns the one that is already there under its key."""
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


class Sight:
    """What a commit needs to know of the database, read inside its transaction (``apply.Sight``). ``key`` is that of the run it writes to;
    ``unread``: whether anything is in that run's inbox."""

    def __init__(self, db: apsw.Connection, now: int, key: int, unread: bool) -> None:
        self._db, self._now, self._key, self._unread = db, now, key, unread
        self._keys: set[str] | None = None

    def _find_untaken(self) -> set[str]:
        if self._keys is None:
            self._keys = {name for (name,) in rows(self._db, Q.inbox_untaken_keys, (self._key,))} if self._unread else set()
        return self._keys

    def missing(self, run_id: str) -> RunNotFound:
        return besides.missing(self._db, run_id)

    def there(self, run_id: str) -> bool:
        return row(self._db, Q.run_tip, (run_id,)) is not None

    def blocker(self, run: Run, turn: int) -> str | None:
        return lane_blocker(self._db, (run.tenant_id, run.session_key, run.lane), self._key, turn, self._now)

    def thread_end(self, tenant_id: str, thread_id: str) -> ThreadEnd:
        return thread_end(row(self._db, Q.thread_end, (thread_id, tenant_id)))

    def unread(self, run_id: str, took: Sequence[str]) -> bool:
        return bool(self._find_untaken().difference(took)) if took else self._unread

    def untaken(self, run_id: str, key: str) -> bool:
        return key in self._find_untaken()

    def claimant(self, claim: DedupClaim) -> str | None:
        there = besides.find_claim(self._db, claim.kind, claim.scope, claim.key, self._now)
        return None if there is None else there.run_id

    def attempts(self, key: str) -> list[str]:
        return [effect_id for (effect_id,) in rows(self._db, Q.effects_under_way, (key,))]

    def has_blob(self, digest: str) -> bool:
        return row(self._db, Q.blob_there, (bytes.fromhex(digest),)) is not None

    def schedule(self, schedule_id: str) -> Schedule | None:
        return besides.schedule(self._db, schedule_id)

    def waiting(self, queue: str, tenant_id: str) -> int:
        return limits.waiting_in(self._db, queue, tenant_id)


def _hot(p: Prepared, number: int, owner: str | None) -> tuple[Any, ...]:
    """The columns of a run's row that every commit writes."""
    run = p.commit.run
    return (p.sealed.row.seq, number, p.since, run.version, run.current_step_id, run.checkpoint_head, p.commit.fence, owner)


def _lone_end(p: Prepared, key: int) -> tuple[Any, ...]:
    """The values of the statement that writes the plain end of the only run here."""
    c, run, log, after = p.commit, p.commit.run, p.sealed.row, p.commit.after
    assert after is not None, "the commit that ends a run must follow an earlier commit of it"
    row = (key, log.seq, after.row, log.hash, log.data)
    return (*row, p.since, run.version, run.current_step_id, run.checkpoint_head, run.status.value, p.sealed.doc, c.fence, after.hash, run.finished_at)


def _end_row(p: Prepared, key: int) -> tuple[Any, ...]:
    """The values that a plain end writes to its run's row, and those it compares."""
    c, run, after = p.commit, p.commit.run, p.commit.after
    assert after is not None, "the commit that ends a run must follow an earlier commit of it"
    hot = (p.sealed.row.seq, p.since, run.version, run.current_step_id, run.checkpoint_head)
    return (*hot, run.status.value, p.sealed.doc, key, c.fence, after.row, after.hash, run.finished_at)


def _cold(p: Prepared, ruling: Ruling, number: int) -> tuple[Any, ...]:
    """The columns of a run's row that every commit except a plain step writes."""
    run = p.commit.run
    return (int(ruling.holds), ruling.turn or number, p.whole_size, run.status.value, run.priority, run.shape, p.sealed.doc)


def _list_found_by(run: Run) -> tuple[Any, ...]:
    """The columns by which a run is found, set at its birth."""
    return (run.run_id, run.tenant_id, run.skill_id, run.thread_id, run.session_key, run.lane, run.queue, run.parent_run_id, run.lineage_root)


def thread_end(found: Sequence[Any] | None) -> ThreadEnd:
    """Returns how a thread ends, from the row found of its newest ended run, if there is one."""
    return ThreadEnd(*found) if found and found[0] is not None else ThreadEnd()


def lane_blocker(db: apsw.Connection, lane: tuple[str, str, str], key: int, turn: int, now: int) -> str | None:
    """Returns the run that holds a lane, or is due in it before this turn."""
    holder, due = row(db, Q.lane_blocker, (*lane, key, turn, now))
    found = holder or due
    return None if found is None else str(found)


def keep_blob(db: apsw.Connection, run_id: str, blob: Blob, now: int) -> None:
    """Inside a transaction: stores a blob unless it is there, and records that the run refers to it."""
    digest = bytes.fromhex(blob.digest)
    if blob.data is not None:
        db.execute(Q.blob_insert, (digest, blob.size, now, blob.data))
    db.execute(Q.blob_use, (run_id, digest))

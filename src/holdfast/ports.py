"""The ports: what the engine needs from outside, as a few domain verbs with their guarantees."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from enum import IntFlag
from typing import Any, Protocol, TypeGuard, runtime_checkable

import msgspec

from holdfast.core import canon
from holdfast.core.blobs import Blob
from holdfast.core.bounds import wrong
from holdfast.core.checkpoint import Checkpoint
from holdfast.core.chunks import Batch, Emitted, Stored
from holdfast.core.codec import Row
from holdfast.core.commit import Commit, DedupClaim, InboxItem, LedgerRow, Settlement, Step, ThreadEnd, Tip
from holdfast.core.consistency import Problem
from holdfast.core.effects import Effect
from holdfast.core.errors import HoldfastError, InvalidInput
from holdfast.core.events import EffectFact
from holdfast.core.evidence import Artifact, Postcondition, Report
from holdfast.core.intents import Intent
from holdfast.core.lease import Alive, Lease
from holdfast.core.limits import Backlog, Held, Later, Limit, Rule
from holdfast.core.offers import Offer
from holdfast.core.pruned import Tombstone
from holdfast.core.run import Run
from holdfast.core.schedules import Schedule
from holdfast.core.tokens import Token

NO_LIMITS: Mapping[str, Limit] = {}


class News(IntFlag):
    """What may have changed in a store, by whom it concerns: a run has become due, or it was decided anew what may be claimed (``DUE``); a run was
    released, so that a run that a limit or a lane held back may begin (``FREED``); a command was put into an inbox (``INBOX``); an intent was created
    or settled (``OUTBOX``); anything else (``OTHER``)."""

    DUE = 1
    FREED = 2
    INBOX = 4
    OUTBOX = 8
    OTHER = 16


ANYTHING = News.DUE | News.FREED | News.INBOX | News.OUTBOX | News.OTHER


class Claim(msgspec.Struct, frozen=True):
    """A run that now belongs to its claimer under ``fence``. ``previous_owner`` is set when it was taken over."""

    run_id: str
    fence: int
    previous_owner: str | None = None
    cause: str = ""


class Claims(list[Claim]):
    """The runs that a claimer was given. ``again``: when, by the store's clock, a rate lets the next run begin that it holds back now; None if no
    rate holds any back."""

    again: int | None = None

    def until(self, again: int | None) -> Claims:
        """Sets ``again``, and returns these claims."""
        self.again = again
        return self


class Loaded(msgspec.Struct, frozen=True):
    """All that is needed to continue a run. ``whole``: the newest whole checkpoint with its row's chain hash, if any, or one numbered 0 with what the
    run carries from its thread (§4.15); ``rows``: the log after it (all of it without one); ``inbox``: commands not yet taken, oldest first;
    ``emitted``: the newest chunks of each turn that no durable record has replaced (§13.6)."""

    run: Run
    tip: Tip
    lease: Lease
    whole: tuple[Checkpoint, bytes] | None
    rows: tuple[Row, ...]
    inbox: tuple[InboxItem, ...]
    emitted: tuple[Batch, ...] = ()


class Head(msgspec.Struct, frozen=True):
    """What a run's values are folded from: its newest whole checkpoint with its row's chain hash, if any, and the log after it."""

    whole: tuple[Checkpoint, bytes] | None
    rows: tuple[Row, ...]


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What to list: None means any. ``before`` is a run id (the cursor): newest first, strictly older than it.

    ``by_turn`` orders by the runs' places in their lanes instead, the latest first; no clock influences this order.

    ``ahead``, of one lane of one tenant's session: only the runs that go before others of the lane (§10.8), in their order: the run that holds the
    lane, then the runs that are due now, by their turns. Runs with a later turn than the run ``until`` are left out; that run may be included. If it
    does not exist it has no turn yet, and comes after all.
    """

    tenant_id: str | None = None
    statuses: tuple[str, ...] | None = None
    skill_id: str | None = None
    thread_id: str | None = None
    session_key: str | None = None
    lane: str | None = None
    parent_run_id: str | None = None
    lineage_root: str | None = None
    owner: str | None = None
    before: str | None = None
    limit: int = 50
    by_turn: bool = False
    ahead: bool = False
    until: str | None = None


class Worker(msgspec.Struct, frozen=True):
    """A process that holds leases, as ``leases`` shows it. Times are microseconds since 1970. ``offer``: what it works on; None if it is no worker,
    but drives the runs that it begins itself."""

    owner: str
    started_at: int
    expires_at: int
    alive: str
    runs: int = 0
    offer: Offer | None = None


class IntentCount(msgspec.Struct, frozen=True):
    """How many intents of a type are in a state, and when the oldest of them was created."""

    type: str
    state: str
    count: int
    oldest: int


class Outbox(Protocol):
    """Intents that wait to be sent, who sends them, and their results: stored beside the runs, never in their logs (§9.3)."""

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
        """Returns intents, oldest first; ``after`` is an intent's id, the cursor."""

    async def intent(self, intent_id: str) -> Intent | None: ...

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
        """Takes intents of these types that are due, and those whose sender is lost: its lease has expired, or it is proven dead (§9.4).

        Under one (tenant, type, order key) only the oldest open intent is free. Of one lane (type, tenant, target) at most ``each`` are taken, or as
        many as ``room`` says; lanes take turns, so that no lane starves the others.

        ``held``: the intents that this owner is sending. In ``doubt``, as after a claim whose answer was lost, it takes all other intents of its own
        anew: none of these was begun.
        """

    async def renew_intents(self, owner: str, ttl_us: int) -> None:
        """Extends the lease of all intents that this owner is sending."""

    async def settle_intents(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Stores the results of intents, each if the intent still is as its sender saw it: the same state, owner and attempt.

        Raises:
            RunNotFound: a hook's signal is for a run that does not exist; then nothing is stored.
        """

    async def drop_payloads(self, before: int, limit: int) -> int:
        """Drops the payloads of intents that were sent or abandoned before that time; returns how many (§9.7)."""

    async def intent_counts(self) -> list[IntentCount]: ...

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
        """Returns ledger rows, oldest first; ``after`` is a row's number, the cursor (§9.6)."""


class Usage(msgspec.Struct, frozen=True):
    """What is in use now: how many runs each owner holds, how many calls hold each named limit, and when each bucket would be full again. Lost owners
    hold nothing."""

    held: tuple[Held, ...]
    calls: Mapping[str, int]
    buckets: Mapping[str, int]


class Limiting(Protocol):
    """What bounds how much work is under way at once, in addition to what each process declares: stored limits, paused queues, and who holds what
    (§10.11)."""

    async def rules(self) -> list[Rule]:
        """Returns the stored rules about limits and queues, by name."""

    async def put_rule(self, rule: Rule, before: Rule | None) -> bool:
        """Stores a rule in the place of ``before``; returns False if the stored one is not ``before``."""

    async def usage(self) -> Usage: ...

    async def backlog(self) -> list[Backlog]:
        """Counts due runs without an owner."""

    async def enter(self, owner: str, run_id: str, place: str, needs: Mapping[str, Limit | None], *, resting: bool = False) -> Later | None:
        """Begins a call that uses these limits; a stored limit takes precedence over a given one. It holds all of them from now on, or none, and then
        returns when to come back.

        ``resting``: the run is released meanwhile, and becomes due again at once when a call leaves the limit that is exhausted.

        Raises:
            LeaseLost: the owner is not known.
        """

    async def leave(self, owner: str, places: Sequence[str]) -> None:
        """Ends calls and frees the limits they held."""


class Owners(Protocol):
    """Who holds leases, and whether that process is alive (§2.9, §10.4)."""

    async def register(self, owner: str, ttl_us: int) -> None:
        """Registers an owner; its liveness can be proven from now on (§2.9)."""

    async def renew(self, owner: str, ttl_us: int) -> int:
        """Extends all leases of an owner at once; returns the new expiry, 0 if the owner is no longer known (§10.4).

        It may be called from any thread, in an event loop of its own.
        """

    async def retire(self, owner: str) -> None:
        """Ends an owner cleanly: its runs become claimable at once (§10.4)."""

    async def outlive(self, owner: str) -> None:
        """Notes that some work of an owner still runs, such as a thread that cannot be ended: the owner's proof of life stays until the process ends,
        even when the owner is retired."""

    async def owner_alive(self, owner: str) -> Alive:
        """Returns whether an owner's process is alive: NO only by proof, also for an owner that is not registered any more (§2.9, §6.5).

        The proof is kept as long as an open attempt that is not closed names the owner.
        """

    async def offer(self, owner: str, offer: Offer) -> None:
        """Notes what a worker works on, for as long as it is known (§10.11)."""

    async def workers(self, *, counted: bool = True) -> list[Worker]:
        """Returns the processes that hold leases. ``counted``: with the number of runs that each holds, which costs more the more they hold;
        otherwise ``runs`` is 0."""


class Links(Protocol):
    """Resume tokens: one answer from whoever has the link (§5.9)."""

    async def issue_token(self, token: Token) -> None:
        """Stores a resume token under its hash (§5.9).

        Raises:
            RunNotFound: there is no such run.
        """

    async def token(self, hash: bytes) -> Token | None: ...

    async def redeem_token(self, hash: bytes, item: InboxItem) -> InboxItem:
        """Uses a token and puts its decision, in one transaction. If the inbox already has an item under that key, returns it and leaves the token
        unused: a refused attempt costs nothing.

        Raises:
            TokenRefused: unknown, used or expired.
        """


class Schedules(Protocol):
    """What starts runs at given times (§10.15)."""

    async def put_schedule(self, schedule: Schedule, before: Schedule | None) -> bool:
        """Adds a schedule, or replaces ``before``; returns False if there is one already, or it is not ``before`` (§10.15)."""

    async def drop_schedule(self, schedule_id: str) -> bool: ...

    async def schedule(self, schedule_id: str) -> Schedule | None: ...

    async def schedules(self, due: int | None = None) -> list[Schedule]:
        """Returns schedules, soonest first, those that are never due last; with ``due`` those whose slot has come by then."""


class Streams(Protocol):
    """What steps emit until their results are durable: provisional chunks, in a ring beside each log (§13.6)."""

    async def emit(self, emitted: Sequence[Emitted]) -> None:
        """Stores chunks of runs in one transaction; those of a run whose fence is not the current one are left out (§13.6).

        They need not survive a crash of the machine: nobody is told that they are durable.
        """

    async def chunks(self, run_id: str, after: int = 0, limit: int = 1000) -> list[Stored]:
        """Returns the chunks in the ring of a run, beyond that serial."""


class Runs(Protocol):
    """Runs, their logs, inboxes and effects: what an engine needs to decide, drive and show them."""

    incarnation: int

    def now(self) -> int: ...

    async def commit(self, commit: Commit) -> Tip:
        """Applies everything or nothing, and answers after the sync.

        A large result is stored once, however many runs refer to it. A new run's fence is ``incarnation << 32 | 1``. A worker must be registered
        before it takes a run.

        Raises:
            LeaseLost: the fence is not the current one, the run is held, or the worker that takes it is not known.
            VersionConflict: the tip moved, the new run exists, or a run that it carries its thread on from is gone.
            EffectInProgress: another attempt under an effect's key is open.
            RunNotFound: the run, or one into whose inbox it puts something, does not exist.
            StoreCorrupt: it refers to a blob that does not exist.
            InboxUnread: it would end the run, and a command in its inbox has not been taken (§10.12).
            QueueFull: it would add to a queue in which ``max_queued`` runs of the tenant wait already.
            Conflict: ``claim_taken`` (a claim's key), ``lane_busy`` (it begins to execute and its lane is held or awaited: submit it as pending),
                ``inbox_taken``, ``schedule_moved`` (a schedule is not as the commit found it).
        """

    async def put(self, item: InboxItem) -> InboxItem:
        """Puts a command into an inbox; returns the item already there under that key, if any. A run at rest becomes claimable."""

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
        """Takes due runs, including those of expired or proven-dead owners. With ``run_id`` takes that run, due or not, if no live owner has it, or
        if it is the claimer's own: then it gets a new fence, and the cause is ``reclaimed``.

        Empty ``queues`` means all queues; ``skills`` and ``shapes`` of None mean any. Shapes are fingerprints (§3.2), each with the folder it is
        bound to, or ``run.ANY`` for every fingerprint. The most urgent runs come first, and among them those of the tenant that holds least in the
        queue. A run is left if its lane is held or has another run due before it, or if a limit holds it back: one of ``limits``, or a stored one,
        which takes precedence. A run of its own that a claimer takes up again counts as held already.

        Raises:
            LeaseLost: the claimer is not a known worker.
            RunNotFound: there is no such run.
        """

    async def load(self, run_id: str) -> Loaded | None: ...

    async def get(self, run_id: str) -> tuple[Run, Lease] | None: ...

    async def runs(self, query: RunFilter) -> list[tuple[Run, Lease]]: ...

    async def rows(self, run_id: str, after: int = 0, limit: int | None = None) -> list[Row]:
        """Returns log rows whose last event is newer than ``after``, oldest first."""

    async def inbox(self, run_id: str, *, taken: bool = False) -> list[InboxItem]: ...

    async def find_marked(self, owner: str) -> list[str]:
        """Returns the runs of an owner whose inbox has items that were not taken (§10.12)."""

    async def find_claim(self, kind: str, scope: str, key: str) -> DedupClaim | None: ...

    async def effects(self, run_id: str | None = None, *, key: str | None = None, lineage_root: str | None = None) -> list[Effect]:
        """Returns effect records, oldest first, of a run, of a key or of a lineage."""

    async def open_effects(self, owner: str) -> list[Effect]:
        """Returns the attempts of an owner that are not settled (§6.5)."""

    async def settle_effect(self, effect: Effect, expected: str) -> bool:
        """Compare-and-set of one effect record's status, allowed after lease loss (§6.5)."""

    async def blob(self, digest: str) -> bytes:
        """Returns a large result that a record refers to, checked against its hash (§6.4).

        Raises:
            StoreCorrupt: with the code ``blob_unreadable``: it is missing, or not what was written.
        """

    async def wait_for_change(self, timeout: float, about: News = ANYTHING) -> News:
        """Returns when something may have changed, or after ``timeout`` seconds: a hint that may be lost (§1.5). ``about``: only what concerns the
        caller. Returns the kinds that may have changed, nothing after the timeout. A store that cannot distinguish kinds returns all."""


class Store(Runs, Owners, Links, Schedules, Streams, Outbox, Limiting, Protocol):
    """Durable state behind a few verbs, grouped by purpose; every verb is one transaction. One test suite covers every store.

    All times are by the store's own clock, microseconds since 1970, UTC (§10.3). Every verb may raise StoreError.
    """

    url: str
    has_server: bool
    """Whether the store is behind a server, so that several processes write at the same time and each verb costs a round trip."""

    async def open(self) -> None:
        """Opens or creates the store and proves that its log has not gone backwards (§1.9).

        Raises:
            StoreCorrupt, UnsupportedFormat, StoreReadOnly: depending on what prevents it.
        """

    async def close(self) -> None: ...

    async def verify(self) -> list[Problem]:
        """Returns what is wrong with the store as a whole: integrity, incarnation, anchor (§1.9)."""


class Needs(msgspec.Struct, frozen=True):
    """What a run needs of records that others share, so that no prune deletes it: the runs it carries its thread on from, and large results by their
    digests."""

    predecessors: frozenset[str] = frozenset()
    blobs: frozenset[str] = frozenset()


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it is stored, sound or not: what the checker examines and repair compares with (§12.1).

    ``run`` is the row as loaded, or why it cannot be, or None if only the log knows the run. ``tip`` is where the log ends, None if it is empty.
    ``raw`` is the row as stored, writable as JSON: the backup of a repair. ``problems`` are those that only this kind of store can have. ``needs``:
    what the store has recorded of what the run needs; None if that is not recorded but found in the log each time.
    """

    run_id: str
    run: Run | HoldfastError | None
    lease: Lease | None
    tip: Tip | None
    raw: dict[str, Any]
    problems: tuple[Problem, ...] = ()
    needs: Needs | None = None


class ShelfRow(msgspec.Struct, frozen=True):
    """A row of a shelf (§19.2)."""

    shelf: str
    key: str
    data: bytes


class Dossier(msgspec.Struct, frozen=True, kw_only=True):
    """All records of one run, in the bytes in which they are stored: what is copied between stores (§12.5).

    ``origin`` is what the run carries from its thread, as a whole checkpoint numbered 0: the runs it carries from need not exist in the other store
    (§4.15). ``held``: if the run is unfinished, nobody may claim it in the other store, because it may continue in the first. ``shelved``: the rows of
    shelves whose keys begin with the run's id (§19.2). A row that the other store has already stays; one with another value refuses the run.
    """

    run: Run
    rows: tuple[Row, ...]
    held: bool = False
    origin: bytes | None = None
    inbox: tuple[InboxItem, ...] = ()
    claims: tuple[DedupClaim, ...] = ()
    effects: tuple[Effect, ...] = ()
    intents: tuple[Intent, ...] = ()
    ledger: tuple[LedgerRow, ...] = ()
    blobs: tuple[Blob, ...] = ()
    shelved: tuple[ShelfRow, ...] = ()


class Tally(msgspec.Struct, frozen=True):
    """How many runs there are by status, and how many effects by theirs."""

    runs: Mapping[str, int]
    effects: Mapping[str, int]


class Pruned(msgspec.Struct, frozen=True):
    """What prune deleted, or would delete: runs, and lineages that were old enough but are kept, with the reason."""

    run_ids: tuple[str, ...]
    kept: dict[str, str]


@runtime_checkable
class Upkeep(Protocol):
    """What the upkeep of a store needs beside ``Store``: to examine damaged runs, mend them, copy them, and delete old ones."""

    async def run_ids(self, after: str = "", limit: int = 1000) -> list[str]:
        """Returns the ids of all runs in ascending order, including those of which only the log is left."""

    async def evidence(self, run_id: str) -> Evidence | None:
        """Returns a run as it is stored; raises nothing about the run's own records."""

    async def log(self, run_id: str, after: int = 0, limit: int = 1000) -> list[Row]:
        """Like ``rows``, also if the run's row is missing or cannot be read."""

    async def whole(self, run_id: str, after: int = 0) -> tuple[int, Checkpoint | HoldfastError] | None:
        """Returns the next whole checkpoint after that event number, with the number of its commit; or why it cannot be read.

        After -1, the first is the run's origin, numbered 0, if one is stored.
        """

    async def rebuild(self, evidence: Evidence, commits: Sequence[Commit]) -> str:
        """Replaces the row with the last commit's run, appends the commits, and cuts a partial tail (§12.3).

        Crash-safe: the backup first, then all of it or none of it. Returns the backup's place, empty if there is nothing to back up. Operational
        columns stay as they are, so that a repair resumes nothing; what the run ``needs`` by the evidence is recorded.

        Raises:
            VersionConflict: the run is not as the evidence shows it any more.
            LeaseLost: a live owner has it.
        """

    async def claims_of(self, run_id: str) -> list[DedupClaim]: ...

    async def adopt(self, dossier: Dossier) -> bool:
        """Adopts a run from another store, its log byte for byte, at rest; returns False if the same run is here already.

        Raises:
            VersionConflict: there is another run of that id.
            RunPruned: a run of that id was pruned here.
        """

    async def list_carries(self) -> list[tuple[str, str]]:
        """Returns pairs of a run that carries its thread on from another run's log, and that other run; runs that have an origin of their own are
        left out."""

    async def keep_origin(self, run_id: str, origin: bytes) -> None:
        """Stores what a run carries from its thread with the run itself, so that it no longer continues from another run's log (§4.15)."""

    async def find_pruned(self, run_id: str) -> Tombstone | None:
        """Returns the tombstone of a run that was pruned here; None if none was."""

    async def prune(self, before: int, *, dry: bool = False, actor: str = "operator") -> Pruned:
        """Deletes whole lineages that ended before that time (§6.10). Effects under shared keys stay, as tombstones; large results to which nothing
        refers any more are deleted too. Of each run a ``Tombstone`` stays, so that every later verb for it raises ``RunPruned``.

        A lineage from which a remaining run continues stays too; a dry run assumes that there are none. A store that others write meanwhile prunes
        lineages in batches, each a transaction: however it is interrupted, each lineage is whole or gone.
        """


@runtime_checkable
class Copies(Protocol):
    """What a store in one file can do as a whole (§1.9)."""

    async def backup(self, path: str) -> None:
        """Writes a consistent copy to one file, while the store is in use."""

    async def restore(self, path: str) -> None:
        """Replaces the store with a backup, under a new incarnation."""


@runtime_checkable
class Watchful(Protocol):
    """A store that notices that its log has gone backwards (§1.9)."""

    async def acknowledge(self) -> None:
        """Accepts the log as it is, on behalf of an operator: sets a new incarnation, which makes every earlier fence void."""


@runtime_checkable
class Indexed(Protocol):
    """A store whose indexes can be created anew from its tables."""

    async def reindex(self) -> None: ...


@runtime_checkable
class Vouched(Protocol):
    """A store whose records beside the log have vouchers (§12.1)."""

    async def vouch_anew(self) -> None:
        """Accepts the records as they are, on behalf of an operator: lost ones stay lost, and altered ones count as they are."""


class LostTail(msgspec.Struct, frozen=True):
    """A run whose newest commits were acknowledged here and were lost with their server; with the effects in the lost commits, and what the log had
    recorded of these effects."""

    run_id: str
    about: str
    facts: tuple[EffectFact, ...] = ()
    effects: tuple[Effect, ...] = ()


@runtime_checkable
class Recalls(Protocol):
    """A store that remembers which commits were acknowledged as durable, and finds that another server in the place of the first lacks them (§1.9)."""

    def take_tail(self) -> LostTail | None:
        """Returns a lost tail that is not yet recorded in the run's own log, nor about to be."""

    def keep_tail(self, tail: LostTail) -> None:
        """Takes back a tail that could not be recorded now."""


@runtime_checkable
class Releases(Protocol):
    """A store whose claims do not read a run's log, so that a run may be claimed that can be neither loaded nor committed to (§1.4)."""

    async def release(self, run_id: str, owner: str, fence: int, due: int) -> None:
        """Gives back a run that this owner holds under this fence, without a commit: nobody takes it before ``due``."""


@runtime_checkable
class LooksAgain(Protocol):
    """A store that can be asked for room in a limit on behalf of a run at rest (§10.11)."""

    async def look_again(self, run_id: str, needs: Mapping[str, Limit | None]) -> bool:
        """Makes a run at rest due at once if a call that uses these limits may begin by now; returns whether it did. This holds no limit.

        A limit that is freed between a call's last question and the rest of its run wakes nobody, because the run is not at rest yet.
        """


@runtime_checkable
class Served(Protocol):
    """What a store behind a server can report about that server."""

    async def health(self) -> list[Problem]:
        """Returns warnings about settings and states of the server that endanger stored data, or slow the store (``doctor``)."""


@runtime_checkable
class Counted(Protocol):
    """A store that counts its records, and returns the newest of them, without reading all. A store without these verbs is asked for all records."""

    async def tally(self, tenant_id: str | None = None) -> Tally:
        """Counts the runs and effects of a tenant, or of all tenants."""

    async def newest_effects(self, tenant_id: str | None = None, *, statuses: Sequence[str] = (), limit: int = 100) -> list[Effect]:
        """Returns effect records, newest first; with these statuses, if any are given."""


@runtime_checkable
class Heads(Protocol):
    """A store that loads in few statements what the values of many runs are folded from. A store without this verb is asked for each run."""

    async def heads(self, run_ids: Sequence[str]) -> dict[str, Head]:
        """Returns the heads by run, all as of one instant. A run that does not exist, or whose whole checkpoint cannot be read, is left out."""


@runtime_checkable
class Shelves(Protocol):
    """Rows of other packages in the same store: named shelves of bytes under keys (§19.2). Each verb is one transaction."""

    async def shelve(self, shelf: str, rows: Mapping[str, bytes], once: Collection[str] = ()) -> list[str]:
        """Stores rows, which replace earlier ones under their keys. Of the keys in ``once``, only free ones are stored; returns the others, in their
        order. A row that is lost, or that has no voucher, leaves its key taken: its readers get an error."""

    async def shelve_new(self, shelf: str, key: str, data: bytes) -> bytes | None:
        """Stores a row if there is none under its key; otherwise changes nothing and returns the existing one."""

    async def find_shelved(self, shelf: str, key: str) -> bytes | None: ...

    async def shelf_scan(self, shelf: str, prefix: str = "", after: str = "", limit: int = 100) -> list[tuple[str, bytes]]:
        """Returns the rows whose keys have this prefix and come after ``after``, by key."""

    async def unshelve(self, shelf: str, prefix: str) -> int:
        """Deletes the rows whose keys have this prefix; returns how many."""

    async def list_shelves(self) -> list[str]:
        """Returns the names of the shelves that have rows, sorted."""


@runtime_checkable
class Threads(Protocol):
    """A store that compares a run's first commit with how its thread ends (``Commit.follows``), beside ``Store``."""

    async def thread_end(self, tenant_id: str, thread_id: str) -> ThreadEnd:
        """Returns the thread's newest ended run, by its turn in the lane."""


@runtime_checkable
class Steps(Protocol):
    """A store that takes a plain step in the sealed form in which it was decided. A store without this verb gets the same as a ``Commit``."""

    async def step(self, step: Step) -> Tip:
        """Does what ``Store.commit`` does with the commit that this step represents, and raises the same errors."""


class Seat(Protocol):
    """Where the answer to a step goes that is written together with others. A seat is told inside the event loop, and outside of any task."""

    @property
    def waits(self) -> bool:
        """Whether it still waits for the answer. If it does not, once the step was handed over, the step need not be written."""

    def tell(self, tip: Tip) -> Step | None:
        """Called when the step is durable. Returns the next one, which is written with the next group and answered in the same seat."""

    def refuse(self, error: BaseException) -> None:
        """Called when the step was refused, or its outcome is unknown."""


@runtime_checkable
class Gathering(Steps, Protocol):
    """A store that writes a step at once if it drives one run, and writes the steps of several runs together and answers each in its seat."""

    def step_at_once(self, step: Step) -> Tip | None:
        """As ``step``, within this turn of the event loop. Does nothing and returns None if others have something to write too, or it is their turn.

        Raises:
            StoreError: as ``step``.
        """

    @property
    def gathers(self) -> bool:
        """Whether others have something to write beside a step."""

    def join(self, step: Step, seat: Seat) -> None:
        """Has a step written with all else in this turn of the event loop, and then tells the seat what ``step`` would return or raise.

        Raises:
            StoreClosed, StoreMoved: nothing can be written; the seat is not told.
        """


@runtime_checkable
class Untaken(Protocol):
    """A store that can return a run as it is instead of a claim: the run's first commit takes it. A store without this verb is asked for claims."""

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
        """As ``Runs.claim``, with one difference: if that would take a single run, which has never begun and is subject to no limit, nothing is taken
        and the run is returned. The same is done with a run that was the only one with news since the last search for all due runs, a moment ago;
        runs that have become due since then without news are found by the next search.

        A commit with ``Take`` under the next fence takes the run. It is refused as a ``Conflict`` if the run, its inbox, its lane or the stored
        limits are not as they were found; a caller that is refused must claim.

        Raises:
            LeaseLost: the claimer is not a known worker.
        """


@runtime_checkable
class Awaited(Protocol):
    """A store that returns a whole run as soon as it has ended, for callers that wait for the end. A store without this verb is asked for the row,
    and then to load it."""

    async def load_if_ended(self, run_id: str) -> Loaded | tuple[Run, Lease] | None:
        """``Runs.load`` if the run has ended and that is a short read, otherwise ``Runs.get``. A single read, because callers ask at each change."""


@runtime_checkable
class Sealing(Protocol):
    """A store that stores payloads encrypted (§14.5)."""

    @property
    def as_kept(self) -> Store:
        """The store beneath it, with payloads as they are stored: these are copied from store to store."""

    async def seal_origin(self, run_id: str, origin: bytes) -> bytes:
        """Returns the stored form of what a run carries from its thread, as a whole checkpoint."""


class Rested(Protocol):
    """What an executor returns: a thread's run at rest. ``status`` is one of the words of §2.1, or equals it."""

    @property
    def status(self) -> str: ...

    @property
    def values(self) -> Mapping[str, Any]: ...


class Executor(Protocol):
    """The kernel of §4.16: drives one program on a thread. Another engine can replace it by having these two verbs (``Runtime(executor=…)``).

    ``holdfast.testing.kernels`` documents what each must do.
    """

    async def invoke(self, thread_id: str, input: Mapping[str, Any] | None = None) -> Rested:
        """Runs to the next rest. Unfinished work of the thread is driven first; with None nothing new begins after it."""

    async def resume(self, thread_id: str, payload: Any = None) -> Rested:
        """Answers what the thread waits for, and drives on; refuses if nothing waits, or if several waits could be meant."""


class Saver(Protocol):
    """The saver of §4.16. A snapshot is ``{values, metadata{source, step, writes}, createdAt, nextTasks}``."""

    async def put(self, thread_id: str, snapshot: Mapping[str, Any], *, actor: str) -> Mapping[str, Any]:
        """Sets channels of the thread, on record under the actor's name; returns the snapshot after that."""

    async def get(self, thread_id: str) -> Mapping[str, Any] | None:
        """Returns the newest snapshot; None for an unknown thread."""

    async def get_history(self, thread_id: str) -> Sequence[Mapping[str, Any]]:
        """Returns all snapshots, oldest first."""


def offers_upkeep(store: object) -> TypeGuard[Upkeep]:
    """Whether a store has these verbs itself, or passes them on to the store it wraps."""
    return _offers(store, Upkeep)


def offers_threads(store: object) -> TypeGuard[Threads]:
    """Whether a store has these verbs itself, or passes them on to the store it wraps."""
    return _offers(store, Threads)


def offers_steps(store: object) -> TypeGuard[Steps]:
    """Whether a store takes sealed steps by the same object and class as commits. If a wrapper intercepts only commits, it must see the steps as
    commits too."""
    return _offers(store, Steps) and _hand(store.step) == _hand(store.commit)  # type: ignore[attr-defined]


def offers_gathering(store: object) -> TypeGuard[Gathering]:
    """Whether a store takes the steps of many runs by the same object and class as those of one."""
    return offers_steps(store) and _offers(store, Gathering) and _hand(store.join) == _hand(store.step)  # type: ignore[attr-defined]


def offers_untaken(store: object) -> TypeGuard[Untaken]:
    """Whether a store returns runs instead of claims by the same object and class as claims. If a wrapper intercepts only claims, it must see them
    all."""
    return _offers(store, Untaken) and _hand(store.claim_or_load) == _hand(store.claim)  # type: ignore[attr-defined]


def offers_awaited(store: object) -> TypeGuard[Awaited]:
    """Whether a store returns an ended run by the same object and class as any run. If a wrapper intercepts only reads, it must see them all."""
    return _offers(store, Awaited) and _hand(store.load_if_ended) == _hand(store.load) == _hand(store.get)  # type: ignore[attr-defined]


def _hand(verb: Any) -> tuple[int, str]:
    """Returns which object a method is bound to, and which class defines it."""
    return id(getattr(verb, "__self__", None)), getattr(verb, "__qualname__", "").rpartition(".")[0]


def offers_release(store: object) -> TypeGuard[Releases]:
    """Whether a store has this verb itself, or passes it on to the store it wraps."""
    return _offers(store, Releases)


def offers_looking_again(store: object) -> TypeGuard[LooksAgain]:
    """Whether a store has this verb itself, or passes it on to the store it wraps."""
    return _offers(store, LooksAgain)


def offers_counting(store: object) -> TypeGuard[Counted]:
    """Whether a store has these verbs itself, or passes them on to the store it wraps."""
    return _offers(store, Counted)


def offers_heads(store: object) -> TypeGuard[Heads]:
    """Whether a store has these verbs itself, or passes them on to the store it wraps."""
    return _offers(store, Heads)


def offers_health(store: object) -> TypeGuard[Served]:
    """Whether a store has these verbs itself, or passes them on to the store it wraps."""
    return _offers(store, Served)


def offers_recall(store: object) -> TypeGuard[Recalls]:
    """Whether a store has these verbs itself, or passes them on to the store it wraps."""
    return _offers(store, Recalls)


def offers_copies(store: object) -> TypeGuard[Copies]:
    """Whether a store has these verbs itself, or passes them on to the store it wraps."""
    return _offers(store, Copies)


def offers_acknowledging(store: object) -> TypeGuard[Watchful]:
    """Whether a store has this verb itself, or passes it on to the store it wraps."""
    return _offers(store, Watchful)


def offers_reindexing(store: object) -> TypeGuard[Indexed]:
    """Whether a store has these verbs itself, or passes them on to the store it wraps."""
    return _offers(store, Indexed)


def offers_vouching(store: object) -> TypeGuard[Vouched]:
    """Whether a store has these verbs itself, or passes them on to the store it wraps."""
    return _offers(store, Vouched)


def offers_shelves(store: object) -> TypeGuard[Shelves]:
    """Whether a store has these verbs itself, or passes them on to the store it wraps."""
    return _offers(store, Shelves)


def offers_sealing(store: object) -> TypeGuard[Sealing]:
    """Whether a store has these verbs itself, or passes them on to the store it wraps."""
    return _offers(store, Sealing)


def as_kept(store: Store) -> Store:
    """Returns the store whose payloads are as they are stored, encrypted or not."""
    return store.as_kept if offers_sealing(store) else store


def takes_statements(store: Store) -> bool:
    """Whether the application's own tables are in the same database, so that its own SQL commits with a step (§9.6)."""
    return bool(getattr(as_kept(store), "takes_statements", False))


def _offers(store: object, port: object) -> bool:
    """Whether a store has all verbs of a port. From Python 3.12 on ``isinstance`` does not see attributes that ``__getattr__`` provides."""
    return all(map(functools.partial(hasattr, store), _list_verbs(port)))


@functools.cache
def _list_verbs(port: object) -> tuple[str, ...]:
    """Returns the verbs of a port. Cached, because the engine asks for each run what a store offers, and ports do not change."""
    return tuple(verb for verb in vars(port) if not verb.startswith("_"))


class Clock(Protocol):
    def now(self) -> int:
        """Microseconds since 1970, UTC."""

    def monotonic(self) -> float:
        """Returns seconds that also pass while the machine sleeps."""

    async def sleep(self, seconds: float) -> None: ...


class Transport(Protocol):
    """Sends one type of outgoing message (intent). ``dedupes`` is whether the receiver drops a repeated key."""

    dedupes: bool

    async def send(self, payload: Any, key: str) -> Any:
        """Sends a payload with a key; the returned value is kept as the answer."""


class ToolRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a tool (§11.1). ``workspace``: where it may work, None if nothing is declared; ``cwd`` and ``paths``
    may not leave it. ``env`` is all that is added to the allowed names; ``input`` goes to its standard input."""

    tool: str
    command: tuple[str, ...]
    step_id: str
    attempt: int = 1
    cwd: str = ""
    workspace: str | None = None
    paths: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    allow: tuple[str, ...] = ()
    input: bytes = b""
    timeout_us: int = 60_000_000
    postconditions: tuple[Postcondition, ...] = ()
    artifacts: tuple[str, ...] = ()


class ToolOutcome(msgspec.Struct, frozen=True):
    """The outcome of a tool call. ``truncated`` is True if the output was longer than the limit and was cut (§11.2). ``reports`` has one
    report for each postcondition, in their order; ``artifacts`` are the files that were kept (§11.4)."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    truncated: bool = False
    reports: tuple[Report, ...] = ()
    artifacts: tuple[Artifact, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the exit code is 0."""
        return self.exit_code == 0

    def json(self) -> Any:
        """Standard output, decoded from JSON. Raises ``msgspec.DecodeError`` if it is not JSON."""
        return msgspec.json.decode(self.stdout)


canon.register(ToolOutcome)


def outcome_told(value: Any, field: str) -> ToolOutcome:
    """Returns the outcome of a call as a person reports it, by the names of its fields; omitted fields are those of a successful call.

    Raises:
        InvalidInput: it is not an outcome, or it names files, whose content would not be stored.
    """
    if isinstance(value, ToolOutcome):
        value = msgspec.to_builtins(value)
    if not isinstance(value, Mapping):
        raise wrong(field, "the outcome of a tool's call", value, '{"exit_code": 0, "stdout": "…"}')
    names = ToolOutcome.__struct_fields__
    if other := sorted(set(value) - set(names), key=repr):
        raise InvalidInput(f"{field}: an outcome has no {other[0]!r}", field=field, hint="it has " + ", ".join(names))
    if value.get("artifacts"):
        raise InvalidInput(f"{field}.artifacts: files cannot be told, because their content would not be stored", field=f"{field}.artifacts", hint="leave them out")
    try:
        return msgspec.convert(canon.thaw(value), ToolOutcome)
    except msgspec.ValidationError as e:
        raise InvalidInput(f"{field}: {e}", field=field) from None


class ToolRunner(Protocol):
    """Runs a tool's call: the one boundary that filesystem and process work crosses (§11.1)."""

    async def run(self, request: ToolRequest) -> ToolOutcome:
        """Runs the call, and returns its outcome whatever its exit code.

        Raises:
            PathOutsideWorkspace: its cwd or a declared path leaves the workspace.
            StepTimeout: it took too long and was ended, with its whole process group.
            ToolMissing: there is no such command, or it cannot be run.
            TooLarge: its arguments are longer than the system takes.
            ToolFailed: the system had no room for its process.
        """


class Resolver(Protocol):
    """Decides whether an actor may take an action on a wait (§5.7)."""

    def __call__(self, actor: str, action: str, wait: Any, run: Run) -> bool | str: ...


__all__ = [
    "NO_LIMITS", "Claim", "Clock", "Copies", "Dossier", "Evidence", "Executor", "Gathering", "IntentCount", "Limiting", "Links", "Loaded", "LostTail", "Outbox", "Owners", "Problem", "Pruned", "Recalls", "Releases", "Resolver", "Rested", "RunFilter", "Runs", "Saver", "Schedules", "Sealing", "Seat", "Served",
    "ShelfRow", "Shelves", "Steps", "Store", "Streams", "Threads", "ToolOutcome", "ToolRequest", "ToolRunner", "Transport", "Upkeep", "Usage", "Watchful", "Worker", "as_kept", "offers_acknowledging", "offers_copies", "offers_gathering", "offers_health", "offers_recall", "offers_sealing", "offers_shelves",
    "offers_steps", "offers_threads", "offers_upkeep", "outcome_told", "takes_statements",
]

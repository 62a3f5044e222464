"""The ports: what the engine asks of the outside, in few domain verbs with their guarantees."""

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
    """What may have changed in a store, by whom it concerns: a run has become due, or what may be claimed was decided anew (``DUE``); a run was let
    go of, so that what a limit or a lane held back may go (``FREED``); a command was put into an inbox (``INBOX``); an intent was made or settled
    (``OUTBOX``); anything else (``OTHER``)."""

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
    """The runs that a claimer was given. ``again``: when, by the store's clock, a rate lets another one go that it holds back now; None if no rate holds any back."""

    again: int | None = None

    def until(self, again: int | None) -> Claims:
        """These, and when to come back."""
        self.again = again
        return self


class Loaded(msgspec.Struct, frozen=True):
    """All that is needed to go on with a run. ``whole``: the newest whole checkpoint with its row's chain hash, if any, or one
    numbered 0 with what the run carries from its thread (§4.15); ``rows``: the log after it (all of it without one); ``inbox``:
    commands not yet taken, oldest first; ``emitted``: the newest chunks of each turn that nothing durable has replaced (§13.6)."""

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

    ``by_turn`` orders by the runs' places in their lanes instead, the latest first: an order that no clock has a part in.

    ``ahead``, of one lane of one tenant's session: only the runs over which claims leave others of the lane (§10.8), in the order in which they go:
    whoever holds it, then who is due now, by their turns; of these none whose turn comes after that of the run ``until``, which may be among them.
    A run that is not there has no turn yet: it comes after all.
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
    """A process that holds leases, as ``leases`` shows it. Times are microseconds since 1970. ``offer``: what it works on; None where it is
    no worker, but drives what it begins itself."""

    owner: str
    started_at: int
    expires_at: int
    alive: str
    runs: int = 0
    offer: Offer | None = None


class IntentCount(msgspec.Struct, frozen=True):
    """How many intents of a type are in a state, and when the oldest of them was made."""

    type: str
    state: str
    count: int
    oldest: int


class Outbox(Protocol):
    """What waits to be sent, who sends it, and what came of it: beside the runs, never in their logs (§9.3)."""

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
        """Intents, oldest first; ``after`` is an intent's id, the cursor."""

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
        """Takes intents of these types that are due, and those whose sender is lost: its lease is over, or it is proven dead (§9.4).

        Of one (tenant, type, order key) only the oldest that is open is free. Of one lane (type, tenant, target) no more than
        ``each`` are taken, or what ``room`` says of it; lanes take turns, so that none starves the others.

        ``held``: what this owner is sending. In ``doubt``, as after a claim whose answer was lost, it takes anew whatever else is in its
        hands: nothing of that was begun.
        """

    async def renew_intents(self, owner: str, ttl_us: int) -> None:
        """Extends the lease of all that this owner is sending."""

    async def settle_intents(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Keeps what became of intents, each if it still stands as its sender saw it: the same state, owner and attempt.

        Raises:
            RunNotFound: a hook's signal is for a run that is not there; then nothing is kept.
        """

    async def drop_payloads(self, before: int, limit: int) -> int:
        """Drops what intents carried that were sent or abandoned before that time; gives how many (§9.7)."""

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
        """Ledger rows, oldest first; ``after`` is a row's number, the cursor (§9.6)."""


class Usage(msgspec.Struct, frozen=True):
    """What is in use now: who holds how many runs, how many hold each named limit, and when each bucket would be full again. Owners that are
    lost hold nothing."""

    held: tuple[Held, ...]
    calls: Mapping[str, int]
    buckets: Mapping[str, int]


class Limiting(Protocol):
    """What bounds how much is under way at once, beside what each process declares: stored limits, paused queues, and who holds what (§10.11)."""

    async def rules(self) -> list[Rule]:
        """What is stored of limits and queues, by name."""

    async def put_rule(self, rule: Rule, before: Rule | None) -> bool:
        """Keeps a rule in the place of ``before``; False if there is another one than that."""

    async def usage(self) -> Usage: ...

    async def backlog(self) -> list[Backlog]:
        """Due runs that nobody has taken, counted."""

    async def enter(self, owner: str, run_id: str, place: str, needs: Mapping[str, Limit | None], *, resting: bool = False) -> Later | None:
        """Begins a call that uses these limits, of which a stored one wins: all of them are held from now on, or none, and then it says when to come back.

        ``resting``: the run is given back meanwhile, and due again at once when somebody leaves the limit that is in the way.

        Raises:
            LeaseLost: the owner is not known.
        """

    async def leave(self, owner: str, places: Sequence[str]) -> None:
        """Ends calls: what they held is free."""


class Owners(Protocol):
    """Who holds leases, and whether it lives (§2.9, §10.4)."""

    async def register(self, owner: str, ttl_us: int) -> None:
        """Makes an owner known; its liveness can be proven from now on (§2.9)."""

    async def renew(self, owner: str, ttl_us: int) -> int:
        """Extends all of an owner's leases at once; gives the new expiry, 0 if the owner is no longer known (§10.4).

        It may be driven from any thread, by a loop of its own.
        """

    async def retire(self, owner: str) -> None:
        """A clean end: the owner's runs become claimable at once (§10.4)."""

    async def outlive(self, owner: str) -> None:
        """Something of an owner still runs, a thread that nothing can end: its proof of life stays until the process ends, also
        when it is retired."""

    async def owner_alive(self, owner: str) -> Alive:
        """Whether an owner's process lives: NO only by proof, also of one that is no worker any more (§2.9, §6.5).

        The proof is kept for as long as an open attempt that is not closed names the owner.
        """

    async def offer(self, owner: str, offer: Offer) -> None:
        """Notes what a worker works on, for as long as it is known (§10.11)."""

    async def workers(self, *, counted: bool = True) -> list[Worker]:
        """The processes that hold leases. ``counted``: with how many runs each holds, which costs the more the more they hold; else ``runs`` is 0."""


class Links(Protocol):
    """Resume tokens: one answer by whoever holds the link (§5.9)."""

    async def issue_token(self, token: Token) -> None:
        """Keeps a resume token under its hash (§5.9).

        Raises:
            RunNotFound: there is no such run.
        """

    async def token(self, hash: bytes) -> Token | None: ...

    async def redeem_token(self, hash: bytes, item: InboxItem) -> InboxItem:
        """Uses a token and puts its decision, in one transaction; gives the item already there under that key, if any, and then
        leaves the token unused: a refused attempt costs nothing.

        Raises:
            TokenRefused: unknown, used or expired.
        """


class Schedules(Protocol):
    """What starts runs by the clock (§10.15)."""

    async def put_schedule(self, schedule: Schedule, before: Schedule | None) -> bool:
        """Adds a schedule, or puts it in the place of ``before``; False if there is one already, or another than that (§10.15)."""

    async def drop_schedule(self, schedule_id: str) -> bool: ...

    async def schedule(self, schedule_id: str) -> Schedule | None: ...

    async def schedules(self, due: int | None = None) -> list[Schedule]:
        """Schedules, soonest first, those that are not due at any time last; with ``due`` those whose slot has come by then."""


class Streams(Protocol):
    """What steps emit until their results are durable: provisional, in a ring beside each log (§13.6)."""

    async def emit(self, emitted: Sequence[Emitted]) -> None:
        """Keeps chunks of runs in one transaction; those of a run whose fence is not the current one are left out (§13.6).

        They need not outlive the machine: nobody is told that they are durable.
        """

    async def chunks(self, run_id: str, after: int = 0, limit: int = 1000) -> list[Stored]:
        """What is in the ring of a run, beyond that serial."""


class Runs(Protocol):
    """Runs, their logs, inboxes and effects: what an engine needs to decide, drive and show them."""

    incarnation: int

    def now(self) -> int: ...

    async def commit(self, commit: Commit) -> Tip:
        """Applies everything or nothing, and answers after the sync.

        A large result is kept once, whoever names it. A new run's fence is ``incarnation << 32 | 1``. A taker is registered first.

        Raises:
            LeaseLost: the fence is not the current one, the run is held, or its taker is not known.
            VersionConflict: the tip moved, the new run exists, or one that it carries its thread on from is gone.
            EffectInProgress: another attempt under an effect's key is open.
            RunNotFound: the run, or one whose inbox it puts into, is not there.
            StoreCorrupt: a blob is named that is not there.
            InboxUnread: it would end the run, and a command in its inbox has not been taken (§10.12).
            QueueFull: it would add to a queue in which ``max_queued`` runs of the tenant wait already.
            Conflict: ``claim_taken`` (a claim's key), ``lane_busy`` (it begins to execute and its lane is held or awaited:
                submit it as pending), ``inbox_taken``, ``schedule_moved`` (a schedule does not stand where the commit found it).
        """

    async def put(self, item: InboxItem) -> InboxItem:
        """Puts a command into an inbox; gives the item already there under that key, if any. A run at rest becomes claimable."""

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
        """Takes due runs, expired or proven-dead owners' runs included; with ``run_id`` that one, due or not, if nobody lives on it,
        or if it is the claimer's own: then under a new fence, the cause is ``reclaimed``.

        No ``queues`` means all of them, ``skills`` and ``shapes`` (fingerprints, §3.2, each with the folder it is bound to; ``run.ANY`` for every fingerprint) None
        mean any. The most urgent come first, and among them those
        of the tenant that holds least in the queue; a run whose lane is held, or has somebody due before it, is left, and so is one that a limit holds back: one of
        ``limits``, or one that is stored, which wins. What a claimer takes up again of its own it holds already.

        Raises:
            LeaseLost: the claimer is not a known worker.
            RunNotFound: there is no such run.
        """

    async def load(self, run_id: str) -> Loaded | None: ...

    async def get(self, run_id: str) -> tuple[Run, Lease] | None: ...

    async def runs(self, query: RunFilter) -> list[tuple[Run, Lease]]: ...

    async def rows(self, run_id: str, after: int = 0, limit: int | None = None) -> list[Row]:
        """Log rows whose last event is newer than ``after``, oldest first."""

    async def inbox(self, run_id: str, *, taken: bool = False) -> list[InboxItem]: ...

    async def find_marked(self, owner: str) -> list[str]:
        """The runs of an owner whose inbox holds what nobody has taken (§10.12)."""

    async def find_claim(self, kind: str, scope: str, key: str) -> DedupClaim | None: ...

    async def effects(self, run_id: str | None = None, *, key: str | None = None, lineage_root: str | None = None) -> list[Effect]:
        """Effect records, oldest first, of a run, of a key or of a lineage."""

    async def open_effects(self, owner: str) -> list[Effect]:
        """The attempts of an owner that are not settled (§6.5)."""

    async def settle_effect(self, effect: Effect, expected: str) -> bool:
        """Compare-and-set of one effect record's status, allowed after lease loss (§6.5)."""

    async def blob(self, digest: str) -> bytes:
        """A large result that a record refers to, held against its hash (§6.4).

        Raises:
            StoreCorrupt: with the code ``blob_unreadable``: it is gone, or not what was written.
        """

    async def wait_for_change(self, timeout: float, about: News = ANYTHING) -> News:
        """Returns when something may have changed, or after ``timeout`` seconds: a hint, never the truth (§1.5). ``about``: only what concerns the
        caller; gives what may have changed of it, nothing after the timeout. A store that cannot tell of which kind a change was tells of all."""


class Store(Runs, Owners, Links, Schedules, Streams, Outbox, Limiting, Protocol):
    """Durable state behind few verbs, by purpose; every verb is one transaction. One suite proves every store.

    All times are the store's own clock, microseconds since 1970, UTC (§10.3). Every verb may raise StoreError.
    """

    url: str
    has_server: bool
    """Whether a server keeps it, so that several processes write at the same time and each verb is a way there and back."""

    async def open(self) -> None:
        """Opens or creates the store and proves that its log has not gone backwards (§1.9).

        Raises:
            StoreCorrupt, UnsupportedFormat, StoreReadOnly: by what stands in the way.
        """

    async def close(self) -> None: ...

    async def verify(self) -> list[Problem]:
        """What is wrong with the store as a whole: integrity, incarnation, anchor (§1.9)."""


class Needs(msgspec.Struct, frozen=True):
    """What a run needs of what others share, so that no prune takes it away: the runs it carries its thread on from, and large results by
    their digests."""

    predecessors: frozenset[str] = frozenset()
    blobs: frozenset[str] = frozenset()


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it is kept, sound or not: what the checker looks at and repair compares with (§12.1).

    ``run`` is the row as loaded, or why it cannot be, or None if only the log knows the run. ``tip`` is where the log
    ends, None if it is empty. ``raw`` is the row as kept, writable as JSON: the backup of a repair. ``problems`` are
    those that only this kind of store can have. ``needs``: what the store has noted of what the run needs; None where that is not noted but
    found in the log each time.
    """

    run_id: str
    run: Run | HoldfastError | None
    lease: Lease | None
    tip: Tip | None
    raw: dict[str, Any]
    problems: tuple[Problem, ...] = ()
    needs: Needs | None = None


class Dossier(msgspec.Struct, frozen=True, kw_only=True):
    """All there is of one run, in the bytes in which it is kept: what travels between stores (§12.5).

    ``origin`` is what the run carries from its thread, as a whole checkpoint numbered 0: where it arrives, the runs it carries from
    need not be (§4.15). ``held``: unfinished it is nobody's to claim where it arrives, for it may go on where it came from.
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


class Tally(msgspec.Struct, frozen=True):
    """How many runs there are by status, and how many effects by theirs."""

    runs: Mapping[str, int]
    effects: Mapping[str, int]


class Pruned(msgspec.Struct, frozen=True):
    """What prune took, or would take: runs, and lineages that were old enough but are kept, with the reason."""

    run_ids: tuple[str, ...]
    kept: dict[str, str]


@runtime_checkable
class Upkeep(Protocol):
    """What a store's keeper asks of it, beside ``Store``: to look at damaged runs, mend them, carry them over, let old ones go."""

    async def run_ids(self, after: str = "", limit: int = 1000) -> list[str]:
        """Ids of all runs in ascending order, those of which only the log is left included."""

    async def evidence(self, run_id: str) -> Evidence | None:
        """A run as it is kept; it raises nothing about the run's own records."""

    async def log(self, run_id: str, after: int = 0, limit: int = 1000) -> list[Row]:
        """Like ``rows``, also where the run's row is gone or cannot be read."""

    async def whole(self, run_id: str, after: int = 0) -> tuple[int, Checkpoint | HoldfastError] | None:
        """The next whole checkpoint after that event number, with the number of its commit; or why it cannot be read.

        After -1 that is first the run's origin, numbered 0, where one is kept.
        """

    async def rebuild(self, evidence: Evidence, commits: Sequence[Commit]) -> str:
        """Puts the last commit's run in the place of the row, appends the commits, and cuts a partial tail (§12.3).

        Crash-safe: the backup first, then all of it or none of it. Gives the backup's place, empty if there is nothing
        to keep. Operational columns stay as they are, so that a repair resumes nothing; what the evidence says that the run ``needs`` is noted.

        Raises:
            VersionConflict: the run is not as the evidence shows it any more.
            LeaseLost: somebody lives on it.
        """

    async def claims_of(self, run_id: str) -> list[DedupClaim]: ...

    async def adopt(self, dossier: Dossier) -> bool:
        """Takes over a run from elsewhere, its log byte for byte, at rest; False if it is here already, the same.

        Raises:
            VersionConflict: there is another run of that id.
            RunPruned: one of that id was pruned here.
        """

    async def list_carries(self) -> list[tuple[str, str]]:
        """Runs that carry their thread on from another run's log, and that one; those that keep an origin of their own no more."""

    async def keep_origin(self, run_id: str, origin: bytes) -> None:
        """Keeps what a run carries from its thread with the run itself, so that it continues from nobody's log any more (§4.15)."""

    async def find_pruned(self, run_id: str) -> Tombstone | None:
        """What is left of a run that was pruned here; None if none was."""

    async def prune(self, before: int, *, dry: bool = False, actor: str = "operator") -> Pruned:
        """Deletes whole lineages that ended before that time (§6.10). Effects under shared keys stay, as tombstones; large
        results that nothing left names go too. Of each run a ``Tombstone`` stays: every verb that is late for it says ``RunPruned``.

        A lineage that a run which stays continues from, stays too; a dry run takes it that there are none. A store that others write meanwhile takes
        lineages in batches, each a transaction: whatever ends it leaves each lineage whole or gone.
        """


@runtime_checkable
class Copies(Protocol):
    """What a store in one file can do as a whole (§1.9)."""

    async def backup(self, path: str) -> None:
        """A consistent copy in one file, while the store is in use."""

    async def restore(self, path: str) -> None:
        """Puts a backup in the place of what is there, under a new incarnation."""


@runtime_checkable
class Watchful(Protocol):
    """A store that notices where its log has gone backwards (§1.9)."""

    async def acknowledge(self) -> None:
        """An operator accepts the log as it is: a new incarnation, every fence given out before is void."""


@runtime_checkable
class Indexed(Protocol):
    """A store whose indexes can be made anew from its tables."""

    async def reindex(self) -> None: ...


@runtime_checkable
class Vouched(Protocol):
    """A store whose records beside the log have vouchers (§12.1)."""

    async def vouch_anew(self) -> None:
        """An operator accepts the records as they are: what is lost is lost, what was altered counts as it stands."""


class LostTail(msgspec.Struct, frozen=True):
    """A run whose newest commits were acknowledged here and are gone with the server that had them, with the effects among what was lost and
    what the log had told of these."""

    run_id: str
    about: str
    facts: tuple[EffectFact, ...] = ()
    effects: tuple[Effect, ...] = ()


@runtime_checkable
class Recalls(Protocol):
    """A store that remembers what it was told is durable, and finds that a server in the place of another has not got it (§1.9)."""

    def take_tail(self) -> LostTail | None:
        """One that nobody has told of yet in the run's own log, nor is about to."""

    def keep_tail(self, tail: LostTail) -> None:
        """It could not be told of now."""


@runtime_checkable
class Releases(Protocol):
    """A store whose claims do not look at what a run's log says, so that one may be claimed that can neither be loaded nor committed to (§1.4)."""

    async def release(self, run_id: str, owner: str, fence: int, due: int) -> None:
        """Gives back a run that this owner holds under this fence, without a commit: nobody takes it before ``due``."""


@runtime_checkable
class LooksAgain(Protocol):
    """A store that can be asked for room in a limit in the name of a run at rest (§10.11)."""

    async def look_again(self, run_id: str, needs: Mapping[str, Limit | None]) -> bool:
        """Makes a run at rest due at once if a call that uses these limits may begin by now; nothing is held by that. Whether it did.

        What is freed between a call's last question and its run's rest wakes nobody, because the run does not rest yet.
        """


@runtime_checkable
class Served(Protocol):
    """What a store behind a server can say of that server, beside what is kept there."""

    async def health(self) -> list[Problem]:
        """What of the server's settings and state endangers what is kept, or slows it: warnings (``doctor``)."""


@runtime_checkable
class Counted(Protocol):
    """A store that counts what is kept, and gives the newest of it, without handing all of it over. One without is asked for all."""

    async def tally(self, tenant_id: str | None = None) -> Tally:
        """How much there is of a tenant's, or of everybody's."""

    async def newest_effects(self, tenant_id: str | None = None, *, statuses: Sequence[str] = (), limit: int = 100) -> list[Effect]:
        """Effect records, the newest first; of these statuses, if any are named."""


@runtime_checkable
class Heads(Protocol):
    """A store that loads in few statements what the values of many runs are folded from. One without is asked for each run."""

    async def heads(self, run_ids: Sequence[str]) -> dict[str, Head]:
        """By run, all of one instant. A run that is not there, or whose whole checkpoint cannot be read, is left out."""


@runtime_checkable
class Shelves(Protocol):
    """Rows of others, kept in the same store: named shelves of bytes under keys (§19.2). Each verb is one transaction."""

    async def shelve(self, shelf: str, rows: Mapping[str, bytes], once: Collection[str] = ()) -> list[str]:
        """Puts rows; a row in the place of another is that other's end. Of the keys in ``once`` only those are put that are free; gives the
        others, in their order. A row that is lost, or that nothing vouches for, leaves its key taken: whoever reads it is told."""

    async def shelve_new(self, shelf: str, key: str, data: bytes) -> bytes | None:
        """Puts a row if there is none under its key; gives the one that is there already, and then changes nothing."""

    async def find_shelved(self, shelf: str, key: str) -> bytes | None: ...

    async def shelf_scan(self, shelf: str, prefix: str = "", after: str = "", limit: int = 100) -> list[tuple[str, bytes]]:
        """Rows whose keys begin so and come after that one, by key."""

    async def unshelve(self, shelf: str, prefix: str) -> int:
        """Deletes the rows whose keys begin so; gives how many."""


@runtime_checkable
class Threads(Protocol):
    """A store that holds a first commit against how its thread ends (``Commit.follows``), beside ``Store``."""

    async def thread_end(self, tenant_id: str, thread_id: str) -> ThreadEnd:
        """The thread's newest ended run, by its turn in the lane."""


@runtime_checkable
class Steps(Protocol):
    """A store that takes a plain step as whoever decided it has sealed it. One without is given the same as a ``Commit``."""

    async def step(self, step: Step) -> Tip:
        """What ``Store.commit`` does with the commit that this step stands for, and what it raises."""


class Seat(Protocol):
    """Who waits for a step that is written with those of others. It is told inside the event loop, and outside of any task."""

    @property
    def waits(self) -> bool:
        """Whether it still does, from the moment on in which the step is handed over: if it does not, the step need not be written."""

    def tell(self, tip: Tip) -> Step | None:
        """The step is durable. Gives the next one, to be written with what comes next and told of in the same seat."""

    def refuse(self, error: BaseException) -> None:
        """The step was refused, or what became of it is not known."""


@runtime_checkable
class Gathering(Steps, Protocol):
    """A store that writes a step of a run alone at once, and the steps of runs that are driven beside each other together, and tells each of them in its seat."""

    def step_at_once(self, step: Step) -> Tip | None:
        """What ``step`` does, without a turn of the loop; None, and nothing is done, where others have something to write too, or it is their turn.

        Raises:
            StoreError: as ``step``.
        """

    @property
    def gathers(self) -> bool:
        """Whether others have something to write beside a step."""

    def join(self, step: Step, seat: Seat) -> None:
        """Has a step written with what else comes in this turn of the loop, and then tells the seat what ``step`` would give or raise.

        Raises:
            StoreClosed, StoreMoved: nothing can be written; the seat is not told.
        """


@runtime_checkable
class Untaken(Protocol):
    """A store that can give a run, in the place of its claim, as it stands: its first commit takes it. One without is asked for claims."""

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
        """``Runs.claim``; but where that would take one run, which has never been begun and which no limit concerns, nothing is taken and this run
        is given. So is the one run of which there was news since all that is due was last looked for, a moment ago; what has fallen due since then without any
        news is found by the next look.

        A commit with ``Take`` under the next fence takes it. It is refused as a ``Conflict`` where the run, its inbox, its lane or the stored limits
        are not as they were found: whoever is refused claims.

        Raises:
            LeaseLost: the claimer is not a known worker.
        """


@runtime_checkable
class Awaited(Protocol):
    """A store that gives a run whole as soon as it has ended, for whoever waits for that. One without is asked for its row, and loads it then."""

    async def load_if_ended(self, run_id: str) -> Loaded | tuple[Run, Lease] | None:
        """``Runs.load`` where that is a short read and the run has ended, else ``Runs.get``: in one read, for it is asked at each change."""


@runtime_checkable
class Sealing(Protocol):
    """A store that keeps payloads encrypted (§14.5)."""

    @property
    def as_kept(self) -> Store:
        """The store beneath it, whose payloads are as they are kept: what is carried from store to store."""

    async def seal_origin(self, run_id: str, origin: bytes) -> bytes:
        """What a run carries from its thread, as a whole checkpoint, as it may be kept."""


class Rested(Protocol):
    """What an executor gives back: a thread's run as it rests. ``status`` is one of the words of §2.1, or equals it."""

    @property
    def status(self) -> str: ...

    @property
    def values(self) -> Mapping[str, Any]: ...


class Executor(Protocol):
    """The kernel of §4.16: drives one program on a thread. Another engine stands in by having these two (``Runtime(executor=…)``).

    ``holdfast.testing.kernels`` holds what each must do.
    """

    async def invoke(self, thread_id: str, input: Mapping[str, Any] | None = None) -> Rested:
        """Runs to the next rest. What was left behind on the thread is driven first; with None that is all, nothing new begins."""

    async def resume(self, thread_id: str, payload: Any = None) -> Rested:
        """Answers what the thread waits for, and drives on; refuses where nothing waits, and where it could mean several."""


class Saver(Protocol):
    """The saver of §4.16. A snapshot is ``{values, metadata{source, step, writes}, createdAt, nextTasks}``."""

    async def put(self, thread_id: str, snapshot: Mapping[str, Any], *, actor: str) -> Mapping[str, Any]:
        """Gives channels of the thread other values, on record under that name; gives the snapshot as it is then."""

    async def get(self, thread_id: str) -> Mapping[str, Any] | None:
        """The newest snapshot; None for a thread that is not known."""

    async def get_history(self, thread_id: str) -> Sequence[Mapping[str, Any]]:
        """All snapshots, oldest first."""


def offers_upkeep(store: object) -> TypeGuard[Upkeep]:
    """Whether a store has these verbs, its own or those of one that it stands before."""
    return _offers(store, Upkeep)


def offers_threads(store: object) -> TypeGuard[Threads]:
    """Whether a store has these verbs, its own or those of one that it stands before."""
    return _offers(store, Threads)


def offers_steps(store: object) -> TypeGuard[Steps]:
    """Whether a store takes sealed steps by the same hand as commits: whoever stands before its commits alone is to see them all."""
    return _offers(store, Steps) and _hand(store.step) == _hand(store.commit)  # type: ignore[attr-defined]


def offers_gathering(store: object) -> TypeGuard[Gathering]:
    """Whether a store takes the steps of many by the same hand as those of one."""
    return offers_steps(store) and _offers(store, Gathering) and _hand(store.join) == _hand(store.step)  # type: ignore[attr-defined]


def offers_untaken(store: object) -> TypeGuard[Untaken]:
    """Whether a store gives a run in the place of its claim by the same hand as claims: whoever stands before its claims alone is to see them all."""
    return _offers(store, Untaken) and _hand(store.claim_or_load) == _hand(store.claim)  # type: ignore[attr-defined]


def offers_awaited(store: object) -> TypeGuard[Awaited]:
    """Whether a store gives a run that has ended by the same hand as any: whoever stands before its reads alone is to see them all."""
    return _offers(store, Awaited) and _hand(store.load_if_ended) == _hand(store.load) == _hand(store.get)  # type: ignore[attr-defined]


def _hand(verb: Any) -> tuple[int, str]:
    """Whose method this is: the object's, and the class's that defines it."""
    return id(getattr(verb, "__self__", None)), getattr(verb, "__qualname__", "").rpartition(".")[0]


def offers_release(store: object) -> TypeGuard[Releases]:
    """Whether a store has this verb, its own or that of one that it stands before."""
    return _offers(store, Releases)


def offers_looking_again(store: object) -> TypeGuard[LooksAgain]:
    """Whether a store has this verb, its own or that of one that it stands before."""
    return _offers(store, LooksAgain)


def offers_counting(store: object) -> TypeGuard[Counted]:
    """Whether a store has these verbs, its own or those of one that it stands before."""
    return _offers(store, Counted)


def offers_heads(store: object) -> TypeGuard[Heads]:
    """Whether a store has these verbs, its own or those of one that it stands before."""
    return _offers(store, Heads)


def offers_health(store: object) -> TypeGuard[Served]:
    """Whether a store has these verbs, its own or those of one that it stands before."""
    return _offers(store, Served)


def offers_recall(store: object) -> TypeGuard[Recalls]:
    """Whether a store has these verbs, its own or those of one that it stands before."""
    return _offers(store, Recalls)


def offers_copies(store: object) -> TypeGuard[Copies]:
    """Whether a store has these verbs, its own or those of one that it stands before."""
    return _offers(store, Copies)


def offers_acknowledging(store: object) -> TypeGuard[Watchful]:
    """Whether a store has this verb, its own or that of one that it stands before."""
    return _offers(store, Watchful)


def offers_reindexing(store: object) -> TypeGuard[Indexed]:
    """Whether a store has these verbs, its own or those of one that it stands before."""
    return _offers(store, Indexed)


def offers_vouching(store: object) -> TypeGuard[Vouched]:
    """Whether a store has these verbs, its own or those of one that it stands before."""
    return _offers(store, Vouched)


def offers_shelves(store: object) -> TypeGuard[Shelves]:
    """Whether a store has these verbs, its own or those of one that it stands before."""
    return _offers(store, Shelves)


def offers_sealing(store: object) -> TypeGuard[Sealing]:
    """Whether a store has these verbs, its own or those of one that it stands before."""
    return _offers(store, Sealing)


def as_kept(store: Store) -> Store:
    """The store whose payloads are as they are kept, encrypted or not."""
    return store.as_kept if offers_sealing(store) else store


def takes_statements(store: Store) -> bool:
    """Whether the application's own tables lie in the same database, so that SQL of its own commits with a step (§9.6)."""
    return bool(getattr(as_kept(store), "takes_statements", False))


def _offers(store: object, port: object) -> bool:
    """From Python 3.12 on ``isinstance`` does not see what ``__getattr__`` hands on."""
    return all(map(functools.partial(hasattr, store), _list_verbs(port)))


@functools.cache
def _list_verbs(port: object) -> tuple[str, ...]:
    """The verbs of a port. Which store offers which is asked for each run, and the ports stay as they are."""
    return tuple(verb for verb in vars(port) if not verb.startswith("_"))


class Clock(Protocol):
    def now(self) -> int:
        """Microseconds since 1970, UTC."""

    def monotonic(self) -> float:
        """Seconds that go on while the machine sleeps."""

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
    """The outcome of a call as a person tells it, by the names of its fields; those that are left out are as of a call that went well.

    Raises:
        InvalidInput: it is none, or names files: nothing of them is stored.
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
        """What the call left, whatever its exit code.

        Raises:
            PathOutsideWorkspace: its cwd or a declared path leaves the workspace.
            StepTimeout: it took too long and was ended, its whole process group with it.
            ToolMissing: there is no such command, or it cannot be run.
            TooLarge: its arguments are longer than the system takes.
            ToolFailed: the system had no room for its process.
        """


class Resolver(Protocol):
    """Decides whether an actor may take an action on a wait (§5.7)."""

    def __call__(self, actor: str, action: str, wait: Any, run: Run) -> bool | str: ...


__all__ = [
    "NO_LIMITS", "Claim", "Clock", "Copies", "Dossier", "Evidence", "Executor", "Gathering", "IntentCount", "Limiting", "Links", "Loaded", "LostTail", "Outbox", "Owners", "Problem", "Pruned", "Recalls", "Releases", "Resolver", "Rested", "RunFilter", "Runs", "Saver", "Schedules", "Sealing", "Seat", "Served",
    "Shelves", "Steps", "Store", "Streams", "Threads", "ToolOutcome", "ToolRequest", "ToolRunner", "Transport", "Upkeep", "Usage", "Watchful", "Worker", "as_kept", "offers_acknowledging", "offers_copies", "offers_gathering", "offers_health", "offers_recall", "offers_sealing", "offers_shelves",
    "offers_steps", "offers_threads", "offers_upkeep", "outcome_told", "takes_statements",
]

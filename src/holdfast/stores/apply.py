"""What all stores decide in the same way: for a commit, a claim, a put, the use of a token, a rebuild, an adoption and a prune, what they need to
know and what they result in: rows, or a typed refusal.

These are pure functions over plain values. A store reads what they ask for, writes what they return, and does both in one transaction; stores differ
only in how they keep things.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import Any, Protocol

import msgspec

from holdfast.core import blobs, codec, limits
from holdfast.core.checkpoint import Delta, Source
from holdfast.core.commit import SIGNAL_EXTRA_BYTES, WHOLE_FLOOR, Commit, DedupClaim, Step, ThreadEnd, Tip, whole_due
from holdfast.core.consistency import Problem
from holdfast.core.effects import OPEN, Effect
from holdfast.core.errors import (
    ClaimTaken,
    Conflict,
    EffectInProgress,
    HoldfastError,
    InboxUnread,
    LeaseLost,
    QueueFull,
    RunNotFound,
    StoreError,
    TokenRefused,
    VersionConflict,
)
from holdfast.core.events import RunCompleted, StepCompleted, WaitClosed, fact_of
from holdfast.core.intents import Intent, IntentState
from holdfast.core.lease import (
    AT_ONCE,
    COUNTER_BITS,
    EXPIRED,
    OWNER_DEAD,
    RECLAIMED,
    Alive,
    Keep,
    Release,
    Take,
    Touch,
    at_once,
    counter,
    due_since,
    due_time,
)
from holdfast.core.limits import Backlog, Chosen, Due, Later, Limit, Rule, Use, in_force, may_enter
from holdfast.core.recorded import Recorded
from holdfast.core.run import Run, of_any
from holdfast.core.schedules import Schedule
from holdfast.core.status import LIVE, TERMINAL, WAITING, Status
from holdfast.core.tokens import Token
from holdfast.core.vouch import Voucher
from holdfast.ports import Claim, Dossier, Evidence, Loaded, News, Pruned, ShelfRow

LAST_TURN = 2**62
_NOWHERE = Tip(0, b"", 0)
_ENDING = frozenset({StepCompleted, RunCompleted})
_DUE, _FREED, _INBOX, _OUTBOX = int(News.DUE), int(News.FREED), int(News.INBOX), int(News.OUTBOX)

_delta = msgspec.msgpack.Decoder(Delta)
_key_of = operator.attrgetter("key")


class Prepared(msgspec.Struct, frozen=True, gc=False):
    """A commit encoded before its transaction begins (§1.11). ``whole`` is a whole checkpoint if one is due; ``since`` and ``whole_size`` go into the
    tip. ``step`` is set if the commit changes nothing but the log and the hot columns of a run that its owner keeps, and is written as such;
    ``plain``: it writes nothing beside its log row and the run's. ``effects``: as the commit leaves them, in the order in which they are written, so
    that an attempt is settled before the next under its key begins; ``encoded``: their bytes. ``closed``: the waits that it closes; the links given
    out for these are revoked (§5.9, §5.14)."""

    commit: Commit
    sealed: codec.Sealed
    whole: bytes | None
    since: int
    whole_size: int
    plain: bool
    creates: tuple[Prepared, ...] = ()
    step: Step | None = None
    effects: tuple[Effect, ...] = ()
    encoded: tuple[bytes, ...] = ()
    closed: tuple[str, ...] = ()

    @property
    def run_id(self) -> str:
        return self.commit.run.run_id

    @property
    def birth(self) -> bool:
        """Whether this is the birth of a run that begins at once, and writes nothing except the run's own rows."""
        c = self.commit
        if c.after is not None or type(c.lease) is not Take or c.run.terminal or self.whole is not None or c.max_queued is not None:
            return False
        return self.plain or c.alone

    @property
    def end(self) -> bool:
        """Whether this is the end of a run that succeeded, and writes nothing but its log row and the run's."""
        c = self.commit
        if not c.run.terminal or c.after is None or self.whole is not None or type(c.lease) is not Release or c.max_queued is not None:
            return False
        events = c.events
        return self.plain and _ENDING.issuperset(events.kinds if type(events) is Recorded else map(type, map(fact_of, events)))

    def tip(self, row: int) -> Tip:
        """Returns the end of the log once this commit is durable as ``row``."""
        return Tip(self.sealed.row.seq, self.sealed.row.hash, row, self.since, self.whole_size)


KEY = "effect"
"""The kind of claims on effect keys that runs share."""


def is_of_effect(v: Voucher) -> bool:
    """Whether the voucher is for the claim of an effect key."""
    return v.id.startswith(f"{KEY}\x1f")


def prepare(commit: Commit) -> Prepared:
    """Checks what must be true of every commit, for this one and all that it creates, and encodes it."""
    after = commit.after
    if after is None:
        after = _NOWHERE
    effects = order_effects(commit.effects)
    closed: tuple[str, ...] = ()
    events = commit.events
    if WaitClosed in (events.kinds if type(events) is Recorded else map(type, map(fact_of, events))):
        closed = tuple([e.fact.wait_id for e in events if type(e.fact) is WaitClosed])
    creates = tuple(map(prepare, commit.creates)) if commit.creates else ()
    signals, plain = commit.signals, commit.plain
    if __debug__:
        commit.check()
    encoded = tuple([codec.encode_effect(e) for e in effects]) if effects else ()
    sealed = codec.seal(commit, after.hash)
    since, size = len(sealed.row.data) + after.since + SIGNAL_EXTRA_BYTES * signals, after.whole
    if commit.behind is not None:  # what a load reads of earlier runs counts as if it were this run's own (§4.15)
        since, size = since + commit.behind.since, size + commit.behind.whole
    whole = None  # the usual case; the comparison with the floor alone decides it
    saved = commit.stands if commit.checkpoint is None else commit.checkpoint if since > WHOLE_FLOOR and whole_due(since, size) and _has_advanced(commit) else None
    if saved is not None:
        whole = codec.encode_whole(saved, sealed.row.hash)
        since, size = 0, len(whole)
    step = None
    if sealed.doc is None and whole is None and type(commit.lease) is Keep and commit.due is None and plain:
        run, log = commit.run, sealed.row
        step = Step(run.run_id, commit.fence, after, log.seq, log.hash, log.data, since, run.version, run.current_step_id, run.checkpoint_head)
    return Prepared(commit, sealed, whole, since, size, plain, creates, step, effects, encoded, closed)


def order_effects(effects: Sequence[Effect]) -> tuple[Effect, ...]:
    """Returns the effects as a commit leaves them, settled ones before those that begin."""
    if len(effects) < 2:
        return tuple(effects)
    return tuple(sorted({e.effect_id: e for e in effects}.values(), key=lambda e: e.open))


def claim_keys(effects: Iterable[Effect], *, all: bool = False) -> list[DedupClaim]:
    """Returns claims on the keys that runs share. They outlive the effects' records, so that a taken key without a record shows that a record was
    lost (§12.1). An attempt takes its effect's key; ``all``: the effects come from another store, with their outcomes, and all take their keys."""
    return [DedupClaim(KEY, "", e.key, e.run_id, "") for e in effects if e.shared and (all or e.open)]


def _has_advanced(commit: Commit) -> bool:
    """Whether the checkpoint includes all pending results: loading starts after a whole checkpoint and would miss them."""
    if commit.delta is None:
        return False
    delta = _delta.decode(commit.delta)
    return bool(delta.done) or (delta.values is not None and delta.source is not Source.PATCH)


class Found(msgspec.Struct, frozen=True, gc=False):
    """A run's row as the writer finds it. ``live``: its owner is not lost (``why_lost``); ``row`` and ``hash``: where its log ends."""

    fence: int
    owner: str | None
    live: bool
    row: int
    hash: bytes
    holds: bool = False
    turn: int = 0
    status: str = Status.PENDING


class Ruling(msgspec.Struct, frozen=True, gc=False):
    """What a commit makes of a run's row. ``turn`` 0: the run gets a new place in its lane. ``lane``: no other run may hold the lane, or be due in it
    before that turn; None if the lane need not be checked. ``ends``: the commit ends the run, which is refused if its inbox is unread. ``due``: when
    the run next needs a worker."""

    owner: str | None
    holds: bool
    turn: int = 0
    lane: int | None = None
    ends: bool = False
    due: int | None = None


def rule(p: Prepared, found: Found | None, *, incarnation: int, taker: bool) -> Ruling | HoldfastError:
    """Returns what a commit makes of a run in this state (None: there is no such run), or why it is refused.

    Args:
        p: the commit.
        found: the run as it is; ``live`` matters only if the commit takes the run.
        incarnation: the store's; only the fence of a new run is compared with it.
        taker: whether the worker that takes the run by this commit is known; True if no worker does.
    """
    c = p.commit
    if not taker:
        return LeaseLost(f"{c.lease.owner} is not a known worker", hint="register it first")  # type: ignore[union-attr]
    if found is None:
        if c.after is not None:
            return RunNotFound(f"there is no run {c.run.run_id}")
        if error := first_fence(c, incarnation):
            return error
        return Ruling(owner_after(c, None), holds_after(c, False), 0, LAST_TURN if wants_lane(c) else None)
    if c.after is None:
        return VersionConflict(f"{c.run.run_id} exists already", hint="load it")
    if error := refusal(c, found):
        return error
    turn = 0 if found.status in TERMINAL and c.run.status not in TERMINAL else found.turn
    lane = (turn or LAST_TURN) if wants_lane(c) and not found.holds else None
    return Ruling(owner_after(c, found.owner), holds_after(c, found.holds), turn, lane, c.run.status in TERMINAL and found.status not in TERMINAL)


class Sight(Protocol):
    """What a commit may need to know of a store beside the run's own row. Each question is asked only for a commit that touches its subject."""

    def missing(self, run_id: str) -> RunNotFound:
        """Returns the error for a run that does not exist."""

    def there(self, run_id: str) -> bool: ...

    def blocker(self, run: Run, turn: int) -> str | None:
        """Returns the run that holds the lane of this one, or is due in it before that turn (§10.8)."""

    def thread_end(self, tenant_id: str, thread_id: str) -> ThreadEnd: ...

    def unread(self, run_id: str, took: Sequence[str]) -> bool:
        """Whether the run's inbox has items that were not taken, apart from ``took``."""

    def untaken(self, run_id: str, key: str) -> bool: ...

    def claimant(self, claim: DedupClaim) -> str | None:
        """Returns the run that already has this key."""

    def attempts(self, key: str) -> Collection[str]:
        """Returns the open attempts under an effect's key."""

    def has_blob(self, digest: str) -> bool: ...

    def schedule(self, schedule_id: str) -> Schedule | None: ...

    def waiting(self, queue: str, tenant_id: str) -> int:
        """Returns how many runs of a tenant wait in a queue and have not begun."""


def _never_asked() -> bool:
    raise AssertionError("a store without ``ports.Untaken`` gives no run that its first commit takes")


def admit(p: Prepared, found: Found | None, sight: Sight, *, incarnation: int, taker: bool, now: int, limited: Callable[[], bool] = _never_asked) -> Ruling:
    """Returns what a commit makes of a run in this state, after checking all else that the commit touches.

    Runs that the commit creates are not checked: each is admitted by itself. ``limited`` returns whether any limit is stored; it is called if the
    commit replaces a claim.

    Raises:
        HoldfastError: why the commit may not be applied, as ``Store.commit`` documents.
    """
    ruling, c, run = rule(p, found, incarnation=incarnation, taker=taker), p.commit, p.commit.run
    if isinstance(ruling, RunNotFound):
        raise sight.missing(run.run_id)
    if isinstance(ruling, HoldfastError):
        raise ruling
    if ruling.lane is not None and (blocker := sight.blocker(run, ruling.lane)) is not None:
        raise lane_busy(run, blocker)
    if isinstance(c.lease, Take) and c.lease.found:
        if limited():
            raise Conflict(f"a limit may concern {run.run_id}", hint="claim it", code="limited")
        if sight.unread(run.run_id, c.took):
            raise InboxUnread(f"the inbox of {run.run_id} holds a command that was not processed", hint="claim it")
    if c.follows is not None and sight.thread_end(run.tenant_id, run.thread_id) != c.follows:
        raise thread_moved(run)
    for key in c.took:
        if not sight.untaken(run.run_id, key):
            raise inbox_taken(run.run_id, key)
    if ruling.ends and sight.unread(run.run_id, c.took):
        raise unread_at_the_end(run.run_id)
    if not p.plain:
        _beside(p, sight)
    if c.max_queued is not None:
        waits = ruling.owner is None and run.status is Status.PENDING
        if sight.waiting(run.queue, run.tenant_id) + waits > c.max_queued:
            raise queue_full(run, c.max_queued)
    due = due_after(c, ruling.owner, now, lambda: found is not None and sight.unread(run.run_id, c.took))
    return msgspec.structs.replace(ruling, due=due)


def _beside(p: Prepared, sight: Sight) -> None:
    """Refuses what a commit would write beside its log row if another run has it already, or if what it refers to is missing."""
    c, run_id = p.commit, p.commit.run.run_id
    for predecessor in c.behind.runs if c.behind is not None else ():
        if not sight.there(predecessor):
            raise predecessor_gone(run_id, predecessor)
    for claim in c.claims:
        if (taken := sight.claimant(claim)) is not None:
            raise claim_taken(claim.kind, claim.key, taken)
    written = {e.effect_id for e in c.effects}  # effects that the commit settles do not stand against those it begins
    begun = [e for e in p.effects if e.status in OPEN]
    for effect in begun:
        if sum([e.key == effect.key for e in begun]) > 1 or not written.issuperset(sight.attempts(effect.key)):
            raise EffectInProgress(f"another attempt under the key {effect.key!r} is not settled", hint="wait for it")
    for blob in c.blobs:
        if blob.data is None and not sight.has_blob(blob.digest):
            raise blobs.missing(blob.digest)
    for item in c.puts:
        if item.run_id != run_id and all(q.run_id != item.run_id for q in p.creates) and not sight.there(item.run_id):
            raise sight.missing(item.run_id)
    for move in c.moves:
        if sight.schedule(move.after.schedule_id) != move.before:
            raise schedule_moved(move.after.schedule_id)


def refusal(commit: Commit, found: Found) -> HoldfastError | None:
    """Returns why a commit may not be applied to a run in this state, or None (§10.2)."""
    return _refuse(commit.run.run_id, commit.fence, commit.after, found, taking=isinstance(commit.lease, Take | Touch))


def _refuse(run_id: str, under: int, after: Tip | None, found: Found, *, taking: bool = False) -> HoldfastError | None:
    fence = found.fence
    if fence != (under - 1 if taking else under):
        if fence >> COUNTER_BITS != under >> COUNTER_BITS:
            return LeaseLost(f"{run_id} was written under another generation of the store", hint="load it again")
        return LeaseLost(f"{run_id} is at fence {counter(fence)}; the commit carries {counter(under)}", hint="load it again")
    if taking and found.live:
        return LeaseLost(f"{run_id} is held by {found.owner}", hint="put a command into its inbox instead")
    if not taking and found.owner is None:
        return LeaseLost(f"{run_id} was released", hint="claim it again")
    if after is None or after.row != found.row or after.hash != found.hash:
        return VersionConflict(f"the log of {run_id} has new events since it was read", hint="load it again")
    return None


def step_refused(step: Step, found: Found) -> HoldfastError | None:
    """Returns why a plain step may not be written to a run in this state, or None, as ``rule`` does for the same commit (§10.2)."""
    return _refuse(step.run_id, step.fence, step.after, found)


def unread_at_the_end(run_id: str) -> InboxUnread:
    return InboxUnread(f"{run_id} cannot end: its inbox holds a command that was not processed", hint="take it first; then decide again")


def first_fence(commit: Commit, incarnation: int) -> HoldfastError | None:
    """A new run begins with counter 1 under the store's incarnation; a commit with any other fence comes from a worker of another store (X-02)."""
    if commit.fence != incarnation << COUNTER_BITS | 1:
        return LeaseLost(f"{commit.run.run_id} does not begin at fence 1 of this generation of the store", hint="open the store again")
    return None


def owner_after(commit: Commit, owner: str | None) -> str | None:
    """Returns the owner of the run after this commit."""
    if commit.run.status in TERMINAL or isinstance(commit.lease, Release | Touch):
        return None
    return commit.lease.owner if isinstance(commit.lease, Take) else owner


def wants_lane(commit: Commit) -> bool:
    """Whether the commit begins to execute the run, for which the run's lane must be free (§10.8)."""
    executed = commit.after is None and isinstance(commit.lease, Release) and commit.run.status is not Status.PENDING
    return executed or isinstance(commit.lease, Take)


def holds_after(commit: Commit, held: bool) -> bool:
    """Whether the run holds its lane after this commit. It holds the lane from its claim to its end, also while it waits, unless it releases the lane
    then. An owner that has come to go on with a waiting run holds its lane, also for what it writes before the run is resumed."""
    run, left = commit.run, isinstance(commit.lease, Release | Touch)
    if run.status in TERMINAL or (left and run.status in WAITING and run.paused_lane == "release"):
        return False
    if run.status is Status.PENDING and isinstance(commit.lease, Release | Touch):
        return False  # it only got a command: it has not begun
    return held or wants_lane(commit)


def would_hold(run: Run) -> bool:
    """Whether a run, by its record alone, holds its lane: one that has begun does, until its end (§10.8)."""
    return run.status not in TERMINAL and run.started_at is not None and not (run.status in WAITING and run.paused_lane == "release")


def due_after(commit: Commit, owner: str | None, now: int, unread: Callable[[], bool]) -> int | None:
    """Returns when the run next needs a worker. ``unread`` returns whether its inbox has items that were not taken; a resting run must look at them.

    Only a requested time or a timer's is stored as a time; all else is due at once under any clock (§10.3, X-20). A command that came while the run
    was held woke nobody, so its owner cannot leave it with a later due time (§10.16), unless that owner is unfit to take the command.
    """
    run = commit.run
    if run.status in TERMINAL:
        return None
    if commit.due is not None:
        return at_once(now) if commit.due == AT_ONCE or (owner is None and not commit.due_stands and unread()) else commit.due
    if owner is not None:
        return at_once(now)
    return None if run.interrupted_at is not None else due_at_rest(run, now, unread())  # an interrupted run is held until a named actor resumes it (§10.6)


def due_at_rest(run: Run, now: int, unread: bool) -> int | None:
    """Returns when a run without an owner next needs a worker."""
    if run.status in TERMINAL:
        return None
    if unread:
        return at_once(now)
    if run.status is Status.PENDING:
        return at_once(now) if run.begins_at is None else run.begins_at
    return run.wake_at if run.status in WAITING else at_once(now)


def news_of(p: Prepared, owned: bool) -> int:
    """Returns the kinds of news in a commit, beside news for those who wait for its run (``ports.News``). ``owned``: whether the run has an owner
    after it."""
    c, found = p.commit, 0
    if not owned:
        found = _FREED if c.run.status in TERMINAL else _FREED | _DUE
    if c.creates:
        found |= _DUE
    if c.puts:
        found |= _DUE | _INBOX
    return found | _OUTBOX if c.intents else found


def due_ranges(now: int) -> tuple[tuple[int, int], ...]:
    """Returns the ranges of due values to search, each after its first value and up to its second: due at once and stamped by a clock ahead, due at
    once, and due since a time. Each is one range of an index; ``due_since`` puts their rows into one order."""
    return (at_once(now), -1), (2 * AT_ONCE, at_once(now)), (-1, now)


def due_when_woken(found: Found, due: int | None, now: int) -> int | None:
    """Returns when a run needs a worker after a command was put into its inbox: a run at rest now, or earlier (§10.16); any other as before.

    A run without an owner that is in the middle of its work and never due is interrupted: it goes on when a named actor resumes it (§10.6).
    """
    if found.owner is not None or found.status in TERMINAL or (due is None and found.status in LIVE):
        return due
    return at_once(now) if due is None else min(at_once(now), due)


def is_unbegun(loaded: Loaded) -> bool:
    """Whether a run without an owner is as its birth left it, so that it begins with its input and nothing else."""
    run, plain = loaded.run, loaded.whole is None and len(loaded.rows) == 1 and not loaded.inbox and not loaded.emitted
    return plain and run.status is Status.PENDING and loaded.lease.owner is None and run.source_run_id is None and not run.origin


def takeable(found: Found, claimer: str) -> bool:
    """Whether a run that was asked for by name may be claimed, apart from its lane: it has not ended, and no other live owner has it."""
    return found.status not in TERMINAL and (found.owner is None or found.owner == claimer or not found.live)


def take(run_id: str, fence: int, owner: str | None, claimer: str, lost: str | None) -> Claim:
    """Returns the claim of a run that had this fence. ``lost``: why its owner's runs may be taken over, None while that owner is alive."""
    if owner is None:
        return Claim(run_id, fence + 1)
    return Claim(run_id, fence + 1, owner, lost or (RECLAIMED if owner == claimer else EXPIRED))


def why_lost(expires_in: int | None, alive: Alive) -> str | None:
    """Returns why an owner's runs may be taken over: it is proven dead, or its lease has expired (None: the owner is unknown); None while it is
    alive."""
    if alive is Alive.NO:
        return OWNER_DEAD
    return EXPIRED if expires_in is None or expires_in <= 0 else None


class Wanted(msgspec.Struct, frozen=True):
    """What a claimer takes: of which queues (empty: all), skills and shapes (None: any); or one run by its name."""

    claimer: str
    queues: Sequence[str] = ()
    skills: Sequence[str] | None = None
    shapes: Sequence[str] | None = None
    run_id: str | None = None

    def fits(self, run: Run, found: Found, due: int | None, now: int) -> bool:
        """Whether a run may be claimed, apart from its lane and from limits."""
        if self.run_id is not None:
            return run.run_id == self.run_id and takeable(found, self.claimer)
        if not takeable(found, "") or (found.owner is None and (due is None or due > now)):
            return False
        if (self.queues and run.queue not in self.queues) or (self.skills is not None and run.skill_id not in self.skills):
            return False
        return self.shapes is None or run.shape in self.shapes or of_any(run.shape) in self.shapes


class Candidate(msgspec.Struct, frozen=True):
    """A run that may be claimed; ``key`` is the store's own."""

    key: Any
    run: Run
    found: Found
    due: int | None


def choose(candidates: Iterable[Candidate], wanted: Wanted, sight: Sight, use: Use | None, now: int, limit: int) -> Chosen:
    """Returns which of these runs a claimer takes, and the buckets after that (§10.8, §10.11). A run that it holds already it keeps, even if a limit
    is exhausted. Without ``use``, one run is asked for by its name, and no limit is in force."""
    fit = [c for c in candidates if wanted.fits(c.run, c.found, c.due, now)]
    free = [c for c in fit if c.found.holds or sight.blocker(c.run, c.found.turn) is None]
    if use is None or (wanted.run_id is not None and free and free[0].found.owner == wanted.claimer):
        return Chosen(tuple(map(_key_of, free[:limit])), {})
    return limits.choose([Due(c.key, c.run.queue, c.run.tenant_id, c.run.priority, due_since(c.due or 0, now), c.found.turn) for c in free], use, limit)


class Call(msgspec.Struct, frozen=True):
    """A call that holds limits, or waits for them; one that waits has no ``owner`` (§10.11)."""

    place: str
    owner: str | None
    run_id: str
    names: tuple[str, ...]
    since: int


class Entry(msgspec.Struct, frozen=True):
    """The result for a call that wants to begin: ``call`` is to be stored, ``buckets`` are changed; ``later``: it may not begin yet."""

    call: Call | None = None
    buckets: Mapping[str, int] = {}
    later: Later | None = None


def enter(
    wanted: Call, needs: Mapping[str, Limit | None], there: Call | None, rules: Iterable[Rule], in_use: Mapping[str, int], buckets: Mapping[str, int], *, resting: bool
) -> Entry:
    """Lets a call that uses these limits begin, or says when to come back (§10.11). ``there``: the call that is stored at its place already."""
    if there is not None and there.owner == wanted.owner:
        return Entry()
    stored, since = in_force({}, rules).limits, None if there is None else there.since
    got = may_enter([(name, stored.get(name, limit), in_use.get(name, 0)) for name, limit in needs.items()], buckets, wanted.since, since)
    if not isinstance(got, Later):
        return Entry(wanted, got)
    queues_up = resting and since is None
    return Entry(msgspec.structs.replace(wanted, owner=None, names=(got.name,)) if queues_up else None, later=got)


def next_in_line(ended: Iterable[Call], waiting: Iterable[Call], asleep: Callable[[str], bool]) -> list[str]:
    """Returns the runs to wake after these calls have ended: of the runs that wait for the limits they held, those that have waited longest. Each
    keeps its place until it enters. ``asleep``: whether a run is at rest and not due."""
    room = Counter(name for call in ended for name in call.names)
    out: list[str] = []
    for call in sorted(waiting, key=lambda c: c.since):
        if room[call.names[0]] > 0 and call.run_id not in out and asleep(call.run_id):
            room[call.names[0]] -= 1
            out.append(call.run_id)
    return out


def backlog(due: Iterable[tuple[Run, int, bool]]) -> list[Backlog]:
    """Counts due runs without an owner. For each, ``due`` has when it became due, and whether it stands behind another run of its lane."""
    found: dict[tuple[str, str, str, str], Backlog] = {}
    for run, at, laned in due:
        place = (run.queue, run.tenant_id, run.skill_id, run.shape)
        b = found.get(place, Backlog(*place, 0, 0, due_time(at)))
        found[place] = b._replace(due=b.due + 1, laned=b.laned + laned, oldest=min(b.oldest, due_time(at)))
    return [found[place] for place in sorted(found)]


def usable(token: Token | None, now: int, *, answered: bool) -> Token | None:
    """Returns the token after its use; None if it stays as it is, because the question was already answered in another way (§5.9).

    Raises:
        TokenRefused: unknown, used, revoked or expired.
    """
    if token is None:
        raise TokenRefused("the link is not known here", hint="ask for another")
    token.refuse(now)
    return None if answered else msgspec.structs.replace(token, used_at=now)


class Stands(msgspec.Struct, frozen=True):
    """The operational columns of a rebuilt row."""

    owner: str | None
    due: int | None
    holds: bool


def rebuilt(commit: Commit, stood: Stands | None, moved: bool, now: int, *, unread: bool, taken: bool) -> Stands:
    """Returns the operational columns of a rebuilt row. They stay as they were, because a repair resumes nothing, unless the status ``moved``, or the
    deadline of a wait or an answer was forgotten: these are derived again from the events (§5.10). ``stood``: the former columns, None if they are
    unknown; ``taken``: another run holds the lane.
    """
    run, stood = commit.run, stood or Stands(None, None, would_hold(commit.run))
    owner, due = stood.owner, stood.due
    if run.status in TERMINAL:
        return Stands(None, None, False)
    forgotten = due is None and owner is None and run.status in WAITING
    if forgotten and (run.unasked or any(d.resume for d in run.decisions)):
        due = at_once(now)
    elif moved or forgotten:
        due = due_after(commit, owner, now, lambda: unread)
    return Stands(owner, due, stood.holds and not taken)


def mendable(evidence: Evidence, there: Evidence | None, now: int) -> HoldfastError | None:
    """Returns why a run may not be rebuilt, or None: it has changed since it was read, or a live owner has it (§12.3)."""
    if there is None or there.raw != evidence.raw:
        return VersionConflict(f"{evidence.run_id} has changed since it was read", hint="read it again")
    if there.lease is not None and there.lease.live(now):
        return LeaseLost(f"{evidence.run_id} is held by {there.lease.owner}", hint="wait until nobody executes the run")
    return None


class Adopted(msgspec.Struct, frozen=True):
    """The state of a run from another store after its adoption here: at rest, under a fence of this store."""

    fence: int
    seq: int
    hash: bytes
    since: int
    whole: int
    due: int | None
    holds: bool
    carries: tuple[str, ...]


def adopt(d: Dossier, incarnation: int, now: int, *, taken: bool) -> Adopted:
    """Returns the state of a run that is adopted from another store (§12.5). ``taken``: another run holds its lane here; otherwise a run that has
    begun holds its lane here too, so that runs submitted after it stay behind it (§10.8)."""
    newest = codec.open_row(d.rows[-1])
    return Adopted(
        fence=incarnation << COUNTER_BITS | max(1, counter(newest.fence)),
        seq=newest.seq,
        hash=newest.hash,
        since=sum(len(r.data) for r in d.rows),
        whole=len(d.origin or b""),
        due=None if d.held else due_at_rest(d.run, now, any(i.taken_seq is None for i in d.inbox)),
        holds=would_hold(d.run) and not taken,
        carries=tuple([c.run_id for c in codec.read_carried(d.rows)]),
    )


def place_adopted(run: Run, next_turn: int | None, number: int) -> int:
    """Returns the turn of an imported run. ``next_turn``: the turn of the first run of its thread here that was created after it. A run that has ended is placed before
    that run, so that the thread still continues from its newest run. ``number``: the turn of any other run."""
    return number if next_turn is None or not run.terminal else next_turn - 1


def by_shelf(rows: Iterable[ShelfRow]) -> dict[str, dict[str, bytes]]:
    """Returns the rows of shelves that come with an adopted run, by shelf and key."""
    found: dict[str, dict[str, bytes]] = {}
    for row in rows:
        found.setdefault(row.shelf, {})[row.key] = row.data
    return found


def check_shelved(shelf: str, mine: Mapping[str, bytes], there: Mapping[str, bytes | None]) -> None:
    """Compares rows that come with an adopted run with those ``there`` under the same keys: an application's row is never replaced by an import.

    Raises:
        VersionConflict: a row has another value here, or it was lost.
    """
    if (key := next((key for key in sorted(there) if there[key] != mine[key]), None)) is not None:
        raise VersionConflict(f"the row {key!r} of the shelf {shelf!r} is here already, with another value", hint="compare both; nothing was changed. To take the other one, delete this row first")


def newest_fence(row: codec.Row) -> int:
    """Returns the counter of the fence under which a log row was written; 0 if that cannot be read."""
    try:
        return counter(codec.open_row(row).fence)
    except HoldfastError:
        return 0


def same(d: Dossier, mine: Sequence[codec.Row]) -> bool:
    """Returns True if the run that is here already is this one, continued or not.

    Raises:
        VersionConflict: it is another run.
    """
    if [r.data for r in mine[: len(d.rows)]] == [r.data for r in d.rows]:
        return True
    raise VersionConflict(f"another run {d.run.run_id} is here already", hint="export that one first, or choose another store")


def tombstones(effects: Iterable[Effect]) -> tuple[list[str], set[str]]:
    """Returns the effects of a pruned run that are deleted, and the large results that stay because their key is shared with other runs (§6.10)."""
    kept = [e for e in effects if e.shared]
    return [e.effect_id for e in effects if not e.shared], set(blobs.name_blobs((), kept))


class Aged(msgspec.Struct, frozen=True):
    """A run as pruning sees it. ``ended``: when it ended; None if it has not."""

    run_id: str
    root: str
    parent: str | None
    ended: int | None

    @classmethod
    def of(cls, run: Run) -> Aged:
        return cls(run.run_id, run.lineage_root, run.parent_run_id, run.finished_at if run.terminal else None)


def prunable(runs: Iterable[Aged], before: int, open_roots: Set[str], carries: Sequence[tuple[str, str]] = ()) -> Pruned:
    """Returns which lineages may be deleted as a whole (§6.10).

    Args:
        runs: all runs; children are deleted with their parents.
        before: runs must have ended before this time.
        open_roots: lineages with intents or effects that are not settled.
        carries: pairs of a run that continues its thread from the log of another, and that other (§4.15).
    """
    members: dict[str, list[Aged]] = {}
    root_of: dict[str, str] = {}
    for run in runs:
        members.setdefault(run.root, []).append(run)
        root_of[run.run_id] = run.root
    kept: dict[str, str] = {}
    for root, lineage in members.items():
        if any(r.ended is None for r in lineage):
            kept[root] = "a run has not ended"
        elif any(r.ended >= before for r in lineage if r.ended is not None):
            kept[root] = ""
        elif root in open_roots:
            kept[root] = "an effect or an intent is not settled"
    links = [(r.run_id, r.parent) for lineage in members.values() for r in lineage if r.parent is not None]
    changed = True
    while changed:
        changed = False
        for child, parent in links:
            roots = {root_of[child], root_of.get(parent, root_of[child])}
            for root in roots - kept.keys():
                if roots & kept.keys():
                    kept[root], changed = "a parent or a child of it is kept", True
        for successor, predecessor in carries:
            if root_of[successor] in kept and root_of[predecessor] not in kept:
                kept[root_of[predecessor]], changed = "a later run of its thread continues from it", True
    old = {root for root, lineage in members.items() if all(r.ended is not None and r.ended < before for r in lineage)}
    run_ids = tuple(sorted(r.run_id for root, lineage in members.items() if root not in kept for r in lineage))
    return Pruned(run_ids, {root: why for root, why in kept.items() if root in old})


def sendable(
    open_intents: Iterable[Intent], types: Sequence[str], run_id: str | None, now: int, gone: Callable[[Intent], bool]
) -> tuple[list[Intent], list[Intent]]:
    """Returns, of the open intents (oldest first), those whose sender is ``gone``, and those that are due and first under their order key (§9.4)."""
    heads: dict[tuple[str, str, str], str] = {}
    lost: list[Intent] = []
    due: list[Intent] = []
    for i in open_intents:
        first = not i.order_key or heads.setdefault(i.order, i.intent_id) == i.intent_id
        if i.type not in types or run_id not in (None, i.run_id):
            continue
        if i.state == IntentState.SENDING and gone(i):
            lost.append(i)
        elif i.state == IntentState.QUEUED and i.due <= now and first:
            due.append(i)
    return lost, sorted(due, key=lambda i: i.due)


def by_turns(
    lost: Sequence[Intent], due: Sequence[Intent], limit: int, each: int, room: Mapping[tuple[str, str, str], int]
) -> list[Intent]:
    """Returns the intents to send next: those of lost senders, then one of each lane in turn, as far as the lane has room (§9.4)."""
    left: dict[tuple[str, str, str], int] = {}
    lanes: dict[tuple[str, str, str], list[Intent]] = {}
    for intent in (*lost, *due):
        left.setdefault(intent.lane, room.get(intent.lane, each))
        if len(lanes.setdefault(intent.lane, [])) < left[intent.lane]:
            lanes[intent.lane].append(intent)
    turns = [lane[n] for n in range(max((len(lane) for lane in lanes.values()), default=0)) for lane in lanes.values() if n < len(lane)]
    return turns[:limit]


def find_broken(run_id: str, rows: Iterable[codec.Row], previous: bytes = b"") -> Problem | None:
    """Returns what is wrong with a run's log, or a part of it: the first row that does not follow the one before (§1.9)."""
    for row in rows:
        try:
            codec.from_chain(row, previous)
        except StoreError as e:
            return Problem(e.code, "error", e.message, e.hint, run_id)
        previous = row.hash
    return None


def inbox_taken(run_id: str, key: str) -> Conflict:
    return Conflict(f"the inbox item {key!r} of {run_id} is missing, or was processed already", code="inbox_taken")


def lane_busy(run: Run, blocker: str) -> Conflict:
    return Conflict(
        f"the lane {run.lane!r} of session {run.session_key!r} is held or awaited by {blocker}", hint="submit it as pending", code="lane_busy"
    )


def queue_full(run: Run, most: int) -> QueueFull:
    return QueueFull(f"{most} runs of the tenant {run.tenant_id!r} wait in the queue {run.queue!r}, which is the maximum")


def still_taken(claim: DedupClaim, status: str | None, now: int) -> bool:
    """Whether a key is still taken: its time has not passed, or the run that has it has not ended (§3.5). ``status``: that run's, None if it is not
    in this store."""
    return claim.expires_at is None or claim.expires_at > now or (status is not None and status not in TERMINAL)


def outlasts(claim: DedupClaim, now: int) -> bool:
    """Whether a claim stays when its run is pruned: an effect's key, and any key whose time has not passed (§3.5, §6.10). A later request with that
    key is told that the run was pruned."""
    return claim.kind == "effect" or (claim.expires_at is not None and claim.expires_at > now)


def predecessor_gone(run_id: str, predecessor: str) -> VersionConflict:
    return VersionConflict(f"{run_id} continues the thread of {predecessor}, which was pruned in the meantime", hint="load it again")


def thread_moved(run: Run) -> Conflict:
    return Conflict(f"a run of the thread {run.thread_id!r} has ended in the meantime", hint="read the thread's values again, then submit the run again", code="thread_moved")


def schedule_moved(schedule_id: str) -> Conflict:
    return Conflict(f"the schedule {schedule_id} was advanced or changed in the meantime", hint="read it again", code="schedule_moved")


def claim_taken(kind: str, key: str, run_id: str) -> ClaimTaken:
    return ClaimTaken(f"the {kind} key {key!r} is taken by {run_id}", hint="read it with claimed()")


__all__ = [
    "LAST_TURN",
    "WHOLE_FLOOR",
    "Adopted",
    "Aged",
    "Call",
    "Candidate",
    "Entry",
    "Found",
    "Keep",
    "Prepared",
    "Ruling",
    "Sight",
    "Stands",
    "Wanted",
    "admit",
    "adopt",
    "backlog",
    "by_shelf",
    "by_turns",
    "check_shelved",
    "choose",
    "claim_taken",
    "due_after",
    "due_at_rest",
    "due_when_woken",
    "enter",
    "find_broken",
    "inbox_taken",
    "is_unbegun",
    "lane_busy",
    "mendable",
    "next_in_line",
    "outlasts",
    "predecessor_gone",
    "prepare",
    "prunable",
    "queue_full",
    "rebuilt",
    "rule",
    "same",
    "schedule_moved",
    "sendable",
    "step_refused",
    "still_taken",
    "take",
    "takeable",
    "thread_moved",
    "tombstones",
    "unread_at_the_end",
    "usable",
    "why_lost",
    "would_hold",
]

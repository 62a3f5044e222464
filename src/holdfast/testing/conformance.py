"""One test suite for every store: what ``ports.Store`` promises, case by case (§10.14).

Each ``case_*`` is an async function of a ``Harness`` and asserts with plain ``assert``. ``CASES`` lists the cases by name. The modules ``conformance_blobs``,
``_chunks``, ``_clocks``, ``_limits``, ``_outbox``, ``_people``, ``_shelves`` and ``_threads`` add their cases when they are imported. A test module runs the cases over the
stores it knows (``tests/stores/test_conformance.py``). ``Script`` makes the commits by hand, so that a store is judged without an engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from holdfast.core import canon, codec
from holdfast.core import events as ev
from holdfast.core.checkpoint import Checkpoint, Delta, Source, TaskResult, advance, empty, voucher
from holdfast.core.commands import Cancel, Decide, Signal
from holdfast.core.commit import Commit, DedupClaim, InboxItem, LedgerRow, Step, Tip
from holdfast.core.effects import Effect, EffectClass, EffectStatus
from holdfast.core.errors import (
    Conflict,
    EffectInProgress,
    ErrorValue,
    HoldfastError,
    InboxUnread,
    LeaseLost,
    RunNotFound,
    RunPruned,
    TokenRefused,
    VersionConflict,
)
from holdfast.core.lease import COUNTER_BITS, KEEP, RELEASE, TOUCH, Alive, Keep, LeaseAction, Take, Touch, counter
from holdfast.core.limits import Limit, Rule
from holdfast.core.pruned import Tombstone
from holdfast.core.run import Run, fold
from holdfast.core.tokens import Token
from holdfast.core.waits import Wait, WaitKind
from holdfast.engine.keep.check import keeper
from holdfast.engine.keep.transfer import dossier
from holdfast.ports import Claim, Loaded, RunFilter, Store, as_kept, offers_awaited, offers_gathering, offers_untaken
from holdfast.stores.apply import WHOLE_FLOOR, prepare
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sealing import SealedStore

TTL = 30_000_000
SECOND = 1_000_000
START = 1_700_000_000_000_000


class Clock:
    """The store's clock, moved by hand."""

    def __init__(self) -> None:
        self.at = START

    def __call__(self) -> int:
        return self.at

    def forward(self, us: int) -> None:
        self.at += us


class Harness(Protocol):
    """One empty store and its clock. ``kill`` ends an owner as a crash would, without handing anything back."""

    clock: Clock
    store: Store

    def kill(self, owner: str) -> None: ...


def elsewhere(h: Harness) -> Store:
    """Returns another, empty store whose records this store can take in. It encrypts with the same keys if this store encrypts."""
    beneath = MemoryStore(now=h.clock)
    return SealedStore(beneath, h.store.encryption) if isinstance(h.store, SealedStore) else beneath


class Script:
    """A run written by hand, step by step, through one store."""

    def __init__(self, store: Store, run_id: str, **submitted: Any) -> None:
        self.store = store
        self.run_id = run_id
        self.run: Run | None = None
        self.tip: Tip | None = None
        self.fence = (store.incarnation << COUNTER_BITS) | 1
        self.checkpoint: Checkpoint = empty(run_id)
        self._submitted = submitted

    @classmethod
    def of(cls, store: Store, loaded: Loaded, fence: int) -> Script:
        """Returns a script that continues a loaded run."""
        script = cls(store, loaded.run.run_id)
        script.run, script.tip, script.fence = loaded.run, loaded.tip, fence
        script.checkpoint = rebuilt(loaded)
        return script

    def first(self, *facts: ev.Fact, lease: LeaseAction = TOUCH, **beside: Any) -> Commit:
        """Returns the commit that submits the run, with further facts if given."""
        fields = {
            "run_id": self.run_id, "skill_id": "skill", "skill_version": "1", "fingerprint": "f", "input": canon.encode({}),
            "thread_id": self.run_id, "session_key": self.run_id, **self._submitted,
        }
        return self.commit(ev.RunSubmitted(**fields), *facts, lease=lease, **beside)

    def commit(self, *facts: ev.Fact, lease: LeaseAction = KEEP, **beside: Any) -> Commit:
        """Returns a commit after the tip, with its events folded; writes nothing yet."""
        seq = self.tip.seq if self.tip is not None else 0
        run, at, events = self.run, self.store.now(), []
        for number, fact in enumerate(facts, seq + 1):
            event = ev.Event(number, at, fact, fence=counter(self.fence))
            run = fold(run, event)
            events.append(event)
        assert run is not None
        return Commit(run=run, events=tuple(events), after=self.tip, fence=self.fence, at=at, lease=lease, **beside)

    def step(self, size: int = 100, **beside: Any) -> Commit:
        """Returns the commit of a plain step: two hot facts and a delta of about ``size`` bytes."""
        number = self.checkpoint.step + 1
        writes = canon.encode(canon.admit({"text": f"{number}:".ljust(size, "x")}))
        data = codec.encode_delta(Delta(step=number, done=(TaskResult("node", writes=writes),)))
        digest = canon.chain(self.checkpoint.hash, data)
        seq = (self.tip.seq if self.tip is not None else 0) + 1
        delta = Delta(step=number, done=(TaskResult("node", writes=writes),))
        checkpoint = advance(self.checkpoint, delta, {}, seq=seq, at=self.store.now(), hash=digest)
        facts = (ev.StepCompleted(step=number, task="node", hash=digest), ev.StepStarted(step=number + 1, task="node"))
        return self.commit(*facts, checkpoint=checkpoint, delta=data, **beside)

    async def write(self, commit: Commit) -> Tip:
        """Commits, and moves to the new tip if the store accepted the commit."""
        self.tip = await self.store.commit(commit)
        self.run, self.fence = commit.run, commit.fence
        if commit.checkpoint is not None:
            self.checkpoint = commit.checkpoint
        return self.tip

    async def submit(self, **beside: Any) -> Script:
        await self.write(self.first(**beside))
        return self

    async def begin(self, owner: str, **beside: Any) -> Script:
        """Submits, takes and starts in one commit, as ``invoke`` does."""
        await self.write(self.first(ev.RunClaimed(owner=owner, fence=1), ev.RunStarted(), lease=Take(owner), **beside))
        return self

    async def steps(self, count: int, size: int = 100) -> Script:
        for _ in range(count):
            await self.write(self.step(size))
        return self

    async def wait(self, deadline: int | None = None, **beside: Any) -> Script:
        """Commits a wait for a signal, so that the run rests."""
        wait = Wait(f"{self.run_id}.w", WaitKind.SIGNAL, 1, "node", name="go", deadline=deadline)
        await self.write(self.commit(ev.WaitRequested(wait=wait), ev.RunWaitingForSignal(), lease=RELEASE, **beside))
        return self

    async def complete(self, **beside: Any) -> Script:
        await self.write(self.commit(ev.RunCompleted(), lease=RELEASE, **beside))
        return self

    def touching(self, *facts: ev.Fact, **beside: Any) -> Commit:
        """Returns a commit to the run at rest: it uses the next fence and gives the run back at once."""
        self.fence += 1
        try:
            return self.commit(*facts, lease=Touch(), **beside)
        finally:
            self.fence -= 1

    def taking(self, owner: str, *facts: ev.Fact, **beside: Any) -> Commit:
        """Returns a commit that takes the run at rest."""
        self.fence += 1
        try:
            return self.commit(*facts, lease=Take(owner), **beside)
        finally:
            self.fence -= 1


def rebuilt(loaded: Loaded) -> Checkpoint:
    """Returns the newest checkpoint of a loaded run, and checks the hash chain on the way."""
    checkpoint, previous = loaded.whole or (empty(loaded.run.run_id), b"")
    for row in loaded.rows:
        record = codec.open_row(row, previous)
        previous = row.hash
        if record.delta is not None:
            vouched = voucher(record.events)
            assert vouched is not None
            digest = canon.chain(checkpoint.hash, record.delta_bytes)
            checkpoint = advance(checkpoint, record.delta, {}, seq=vouched.seq, at=record.at, hash=digest)
    assert previous == loaded.tip.hash
    return checkpoint


async def refused(error: type[HoldfastError], awaitable: Awaitable[Any], code: str | None = None) -> HoldfastError:
    """Asserts that the call raises this error, and with this code if one is given. Returns the error."""
    try:
        await awaitable
    except error as e:
        caught = e
    else:
        raise AssertionError(f"{error.__name__} was not raised")
    assert code is None or caught.code == code, caught.line()
    return caught


def effect(run_id: str, number: int, key: str, status: EffectStatus = EffectStatus.ATTEMPTED) -> Effect:
    return Effect(
        effect_id=f"{run_id}.x{number}", run_id=run_id, lineage_root=run_id, step=1, task="node", path="0", attempt=number, capability="mail",
        effect_class=EffectClass.EXTERNAL, key=key, status=status,
    )


def signal(run_id: str, key: str, at: int) -> InboxItem:
    command = Signal("go", key, canon.encode(1), "ann")
    return InboxItem(run_id, command.key, command, at)


CASES: dict[str, Callable[[Harness], Awaitable[None]]] = {}


def case(function: Callable[[Harness], Awaitable[None]]) -> Callable[[Harness], Awaitable[None]]:
    CASES[function.__name__.removeprefix("case_")] = function
    return function


# -- the log and the run ----------------------------------------------------------------------------


@case
async def case_create_and_load(h: Harness) -> None:
    """§1.6: what one commit wrote comes back whole, through the codec."""
    await h.store.register("w", TTL)
    script = await Script(h.store, "r1", tags=("a",), priority=3).begin("w")
    await script.steps(3)
    loaded = await h.store.load("r1")
    assert loaded is not None
    assert loaded.run == script.run
    assert loaded.tip == script.tip
    assert (loaded.lease.owner, loaded.lease.fence, loaded.lease.owner_alive) == ("w", script.fence, Alive.YES)
    assert loaded.lease.live(h.store.now())
    assert rebuilt(loaded).values == script.checkpoint.values
    assert await h.store.load("nobody") is None
    assert await h.store.get("nobody") is None
    assert await h.store.rows("nobody") == []


@case
async def case_gapless_events(h: Harness) -> None:
    """§1.1, T-17: events count 1, 2, 3 … and rows page forward without loss."""
    await h.store.register("w", TTL)
    script = await (await Script(h.store, "r1").begin("w")).steps(10)
    rows = await h.store.rows("r1")
    events = [e.seq for row in rows for e in codec.open_row(row).events]
    assert events == list(range(1, script.tip.seq + 1)) if script.tip else False
    paged, after = [], 0
    while page := await h.store.rows("r1", after, 3):
        assert len(page) <= 3
        paged += page
        after = page[-1].seq
    assert paged == rows
    assert [r.seq for r in await h.store.rows("r1", rows[4].seq - 1)] == [r.seq for r in rows[4:]]


@case
async def case_hot_columns_lie_over_the_cold_part(h: Harness) -> None:
    """§1.4: after plain steps the row shows the newest step, head and version."""
    await h.store.register("w", TTL)
    script = await (await Script(h.store, "r1").begin("w")).steps(2)
    got = await h.store.get("r1")
    assert got is not None
    assert script.run is not None
    assert got[0] == script.run
    assert got[0].current_step_id == "r1.2.node"
    assert got[0].checkpoint_head == script.checkpoint.checkpoint_id


@case
async def case_version_conflict(h: Harness) -> None:
    """§10.14: the tip is a compare-and-set; the loser changes nothing."""
    await h.store.register("w", TTL)
    script = await Script(h.store, "r1").begin("w")
    stale = script.step()
    await script.steps(1)
    before = await h.store.rows("r1")
    await refused(VersionConflict, h.store.commit(stale))
    assert await h.store.rows("r1") == before
    await refused(VersionConflict, h.store.commit(Script(h.store, "r1").first()))
    missing = Script(h.store, "r2")
    missing.run, missing.tip = script.run, script.tip
    assert script.run is not None
    await script.steps(1)


@case
async def case_tip_is_compared_by_hash(h: Harness) -> None:
    """§1.9: after a lost tail the same numbers are given out twice, so a commit is accepted only after the very row whose hash it names."""
    await h.store.register("w", TTL)
    script = await (await Script(h.store, "r1").begin("w")).steps(2)
    assert script.tip is not None
    before = await h.store.rows("r1")
    sound, script.tip = script.tip, replace(script.tip, hash=bytes(len(script.tip.hash)))
    for lost in (script.step(), script.commit(ev.NoteAdded("x")), script.commit(ev.RunCompleted(), lease=RELEASE)):
        await refused(VersionConflict, h.store.commit(lost))
    assert await h.store.rows("r1") == before
    script.tip = sound
    await (await script.steps(1)).complete()
    await refused(VersionConflict, h.store.commit(replace(script.touching(ev.NoteAdded("x")), after=replace(script.tip, hash=sound.hash))))


@case
async def case_zombie_is_fenced_off(h: Harness) -> None:
    """§10.2, T-75: an owner that wakes after its lease has expired can change nothing."""
    await h.store.register("w1", TTL)
    await h.store.register("w2", 10 * TTL)
    zombie = await Script(h.store, "r1").begin("w1")
    late = zombie.step()
    h.clock.forward(TTL + 1)
    (claim,) = await h.store.claim("w2", (), None, limit=5)
    assert (claim.previous_owner, claim.cause, claim.fence) == ("w1", "expired", zombie.fence + 1)
    await refused(LeaseLost, h.store.commit(late))
    loaded = await h.store.load("r1")
    assert loaded is not None
    await Script.of(h.store, loaded, claim.fence).steps(1)
    await refused(LeaseLost, h.store.commit(late))
    assert await h.store.claim("w1", (), None, limit=5) == []


@case
async def case_first_fence_belongs_to_the_incarnation(h: Harness) -> None:
    """X-02: a new run under another incarnation's fence is refused."""
    script = Script(h.store, "r1")
    script.fence = (((h.store.incarnation + 1) % 2**31) << COUNTER_BITS) | 1
    await refused(LeaseLost, h.store.commit(script.first()))
    script.fence = (h.store.incarnation << COUNTER_BITS) | 2
    await refused(LeaseLost, h.store.commit(script.first()))


@case
async def case_take_keep_release_touch(h: Harness) -> None:
    """§10.1, §10.5: take and touch need the next fence and no live owner; after a release and after the end a run has no owner."""
    await h.store.register("w", TTL)
    script = await Script(h.store, "r1").submit()
    got = await h.store.get("r1")
    assert got is not None
    assert (got[1].owner, got[1].fence) == (None, script.fence)
    await refused(LeaseLost, h.store.commit(script.commit(ev.NoteAdded("kept by nobody"))))
    await script.write(script.touching(ev.NoteAdded("at rest")))
    await script.write(script.taking("w", ev.RunStarted()))
    await refused(LeaseLost, h.store.commit(script.touching(ev.NoteAdded("held"))))
    await script.wait()
    await refused(LeaseLost, h.store.commit(script.commit(ev.NoteAdded("given back"))))
    await script.write(script.touching(ev.NoteAdded("at rest again")))
    await script.write(script.taking("w", ev.RunResumed(cause="signal")))
    await script.write(script.commit(ev.RunFailed("boom", ErrorValue("E", "m")), lease=Keep()))
    got = await h.store.get("r1")
    assert got is not None
    assert (got[1].owner, got[1].due, got[0].status) == (None, None, "failed")
    await refused(LeaseLost, h.store.commit(script.taking("stranger", ev.RunResumed(cause="operator"))))


@case
async def case_loading_starts_at_a_whole_checkpoint(h: Harness) -> None:
    """§4.5: now and then a checkpoint is stored whole; the state loaded from deltas equals the live state, and old rows stay readable."""
    await h.store.register("w", 10 * TTL)
    script = await (await Script(h.store, "r1").begin("w")).steps(14, size=8_000)
    loaded = await h.store.load("r1")
    assert loaded is not None
    assert loaded.whole is not None
    assert len(loaded.rows) < 14
    assert loaded.tip == script.tip
    assert loaded.tip.since < WHOLE_FLOOR
    checkpoint = rebuilt(loaded)
    assert (checkpoint.values, checkpoint.versions, checkpoint.hash) == (script.checkpoint.values, script.checkpoint.versions, script.checkpoint.hash)
    rows = await h.store.rows("r1")
    assert len(rows) == 15
    assert [r.seq for r in await h.store.rows("r1", 0, 12)] == [r.seq for r in rows[:12]]
    again = Script.of(h.store, loaded, script.fence)
    await again.steps(1)


@case
async def case_no_whole_checkpoint_over_pending_results(h: Harness) -> None:
    """§4.6: a checkpoint that does not advance is not stored whole, so its pending results stay in rows after the newest whole one."""
    await h.store.register("w", 10 * TTL)
    script = await Script(h.store, "r1").begin("w")
    big = TaskResult("a", writes=canon.encode({"text": "y" * 70_000}))
    await script.write(script.commit(ev.StepCompleted(step=0, task="a"), results=(big,)))
    data = codec.encode_delta(Delta(step=script.checkpoint.step, source=Source.FAILURE))
    digest = canon.chain(script.checkpoint.hash, data)
    saved = advance(script.checkpoint, Delta(step=script.checkpoint.step, source=Source.FAILURE), {}, seq=5, at=0, hash=digest)
    await script.write(script.commit(ev.CheckpointSaved(hash=digest), checkpoint=saved, delta=data))
    loaded = await h.store.load("r1")
    assert loaded is not None
    assert loaded.whole is None
    assert any(codec.open_row(r).results for r in loaded.rows)


@case
async def case_creates(h: Harness) -> None:
    """§1.6: the runs that a commit creates are stored with it, or not at all."""
    await h.store.register("w", TTL)
    parent = await Script(h.store, "p").begin("w")
    child = Script(h.store, "c", parent_run_id="p")
    await parent.write(parent.commit(ev.NoteAdded("child"), creates=(child.first(),)))
    got = await h.store.get("c")
    assert got is not None
    assert (got[0].parent_run_id, got[0].status) == ("p", "pending")
    assert [r.run_id for r, _ in await h.store.runs(RunFilter(parent_run_id="p"))] == ["c"]
    twice = parent.commit(ev.NoteAdded("again"), creates=(Script(h.store, "d").first(), Script(h.store, "c").first()))
    await refused(VersionConflict, h.store.commit(twice))
    assert await h.store.get("d") is None
    await parent.steps(1)


@case
async def case_listing(h: Harness) -> None:
    """§3.4: runs are listed newest first, by cursor and by filter."""
    for i in range(7):
        await Script(h.store, f"r{i}", tenant_id="odd" if i % 2 else "even").submit()
    everything = [r.run_id for r, _ in await h.store.runs(RunFilter())]
    assert everything == [f"r{i}" for i in reversed(range(7))]
    assert [r.run_id for r, _ in await h.store.runs(RunFilter(tenant_id="odd", limit=2))] == ["r5", "r3"]
    assert [r.run_id for r, _ in await h.store.runs(RunFilter(tenant_id="odd", before="r3"))] == ["r1"]
    assert await h.store.runs(RunFilter(statuses=("failed",))) == []
    assert len(await h.store.runs(RunFilter(statuses=("pending", "failed"), thread_id="r2"))) == 1


@case
async def case_listing_by_turn(h: Harness) -> None:
    """§3.4, §10.8: turns follow the order of submission, and not the ids, which depend on a clock."""
    for name in ("b", "c", "a"):
        await Script(h.store, name, thread_id="t", session_key="t").submit()
    await Script(h.store, "d", thread_id="other").submit()
    assert [r.run_id for r, _ in await h.store.runs(RunFilter(thread_id="t", by_turn=True))] == ["a", "c", "b"]
    assert [r.run_id for r, _ in await h.store.runs(RunFilter(thread_id="t", by_turn=True, limit=1))] == ["a"]


# -- inbox ------------------------------------------------------------------------------------------


@case
async def case_inbox_keys(h: Harness) -> None:
    """§5.6, T-97: a key has one item; the second caller gets the item of the first."""
    await Script(h.store, "r1").submit()
    first = signal("r1", "k", h.store.now())
    assert await h.store.put(first) == first
    other = InboxItem("r1", first.key, Signal("go", "k", canon.encode(2), "bob"), h.store.now())
    assert await h.store.put(other) == first
    second = await h.store.put(signal("r1", "k2", h.store.now()))
    assert await h.store.inbox("r1") == [first, second]
    await refused(RunNotFound, h.store.put(signal("nobody", "k", 0)))


@case
async def case_put_wakes_a_resting_run(h: Harness) -> None:
    """§10.16: put makes a run at rest claimable in its own transaction; an ended run just keeps the item."""
    await h.store.register("w", TTL)
    script = await (await Script(h.store, "r1").begin("w")).wait()
    assert await h.store.claim("w", (), None, limit=1) == []
    await h.store.put(signal("r1", "k", h.store.now()))
    (claim,) = await h.store.claim("w", ("default",), ("skill",), limit=1)
    assert claim.run_id == "r1"
    loaded = await h.store.load("r1")
    assert loaded is not None
    assert [i.key for i in loaded.inbox] == ["signal:go:k"]
    script = Script.of(h.store, loaded, claim.fence)
    await script.write(script.commit(ev.RunResumed(cause="signal"), took=("signal:go:k",)))
    assert await h.store.inbox("r1") == []
    (taken,) = await h.store.inbox("r1", taken=True)
    assert script.tip is not None
    assert taken.taken_seq == script.tip.seq
    await refused(Conflict, h.store.commit(script.commit(ev.NoteAdded("twice"), took=("signal:go:k",))), "inbox_taken")
    await script.write(script.commit(ev.RunFailed("boom", ErrorValue("E", "m")), lease=RELEASE))
    await h.store.put(InboxItem("r1", "cancel", Cancel("ann"), h.store.now()))
    assert await h.store.claim("w", (), None, limit=1) == []
    assert len(await h.store.inbox("r1")) == 1


@case
async def case_put_between_look_and_rest(h: Harness) -> None:
    """§10.16: an item that was put while the run was held, and was not taken, makes the run due as soon as it rests."""
    await h.store.register("w", TTL)
    script = await Script(h.store, "r1").begin("w")
    await h.store.put(signal("r1", "k", h.store.now()))
    await script.wait()
    assert [c.run_id for c in await h.store.claim("w", (), None, limit=1)] == ["r1"]


@case
async def case_told_before_it_begins(h: Harness) -> None:
    """§10.8: a run that was claimed for a command before its start time and handed back holds no lane: the runs behind it go on."""
    await h.store.register("w", TTL)
    later = h.store.now() + 100 * TTL
    await Script(h.store, "early", session_key="lane", not_before=later).submit()
    await h.store.put(signal("early", "k", h.store.now()))
    (claim,) = await h.store.claim("w", (), None, limit=1)
    loaded = await h.store.load("early")
    assert loaded is not None
    script = Script.of(h.store, loaded, claim.fence)
    await script.write(script.commit(ev.NoteAdded("told"), ev.RunHandedBack("w"), took=("signal:go:k",), lease=RELEASE, due=later))
    await Script(h.store, "behind", session_key="lane").submit()
    assert [c.run_id for c in await h.store.claim("w", (), None, limit=5)] == ["behind"]


@case
async def case_put_resumes_no_interrupted_run(h: Harness) -> None:
    """§10.6: a command does not make a run due that is held for a person, whether the command came before or after."""
    await h.store.register("w", TTL)
    for name, early in (("before", True), ("after", False)):
        script = await Script(h.store, name).begin("w")
        if early:
            await h.store.put(signal(name, "k", h.store.now()))
        await script.write(script.commit(ev.RunInterrupted("its owner died"), lease=RELEASE))
        await h.store.put(signal(name, "later", h.store.now()))
        assert await h.store.claim("w", (), None, limit=1) == []
        assert [c.run_id for c in await h.store.claim("w", (), None, limit=1, run_id=name)] == [name]


@case
async def case_no_later_time_over_what_was_put(h: Harness) -> None:
    """§10.16: if a command came meanwhile, an owner that hands a run back for a later time does not put the run off, whether the run waits,
    has not begun or is at work. Only an owner that could not take the command does (``due_stands``)."""
    await h.store.register("w", TTL)
    later = h.store.now() + 100 * TTL
    for name in ("waits", "waits until", "early", "at work", "unfit"):
        if name == "early":
            await Script(h.store, name, not_before=later).submit()
        else:
            script = await Script(h.store, name).begin("w")
        if name.startswith("waits"):
            await script.wait(deadline=later)
        if name not in ("at work", "unfit"):
            (claim,) = await h.store.claim("w", (), None, limit=1, run_id=name)
            loaded = await h.store.load(name)
            assert loaded is not None
            script = Script.of(h.store, loaded, claim.fence)
        await h.store.put(signal(name, "k", h.store.now()))
        due = None if name == "waits" else later
        await script.write(script.commit(ev.RunHandedBack("w"), lease=RELEASE, due=due, due_stands=name == "unfit"))
        claims = await h.store.claim("w", (), None, limit=1)
        assert [c.run_id for c in claims] == ([] if name == "unfit" else [name]), name


@case
async def case_puts_of_a_commit(h: Harness) -> None:
    """§1.6: a commit puts items into other inboxes; the first item under a key stays."""
    await h.store.register("w", TTL)
    await (await Script(h.store, "p").begin("w")).wait()
    child = await Script(h.store, "c").begin("w")
    await child.complete(puts=(signal("p", "k", h.store.now()),))
    assert [c.run_id for c in await h.store.claim("w", (), None, limit=5)] == ["p"]
    other = await Script(h.store, "d").begin("w")
    await other.complete(puts=(signal("p", "k", h.store.now()),))
    assert len(await h.store.inbox("p")) == 1


# -- claims -----------------------------------------------------------------------------------------


@case
async def case_dedup_claims(h: Harness) -> None:
    """§3.5, T-73: a key is taken once, with the commit or not at all; an expired key is free again once its run has ended."""
    until = h.store.now() + SECOND
    claim = DedupClaim("request", "default/skill", "k", "r1", "d", until)
    await h.store.register("w", 9 * SECOND)
    first = await Script(h.store, "r1").begin("w", claims=(claim,))
    assert await h.store.find_claim("request", "default/skill", "k") == claim
    again = DedupClaim("request", "default/skill", "k", "r2", "d", until + SECOND)
    await refused(Conflict, h.store.commit(Script(h.store, "r2").first(claims=(again,))), "claim_taken")
    assert await h.store.get("r2") is None
    h.clock.forward(SECOND)
    assert await h.store.find_claim("request", "default/skill", "k") == claim  # its run is still open
    await refused(Conflict, h.store.commit(Script(h.store, "r2").first(claims=(again,))), "claim_taken")
    await first.complete()
    assert await h.store.find_claim("request", "default/skill", "k") is None
    await Script(h.store, "r2").submit(claims=(again,))
    assert await h.store.find_claim("request", "default/skill", "k") == again


@case
async def case_claim_order(h: Harness) -> None:
    """§10.11: claims take the most urgent run first, then the one that has been due longest; they select by queue and by skill."""
    await h.store.register("w", TTL)
    for i, (priority, queue, skill) in enumerate([(0, "q", "a"), (5, "q", "a"), (0, "q", "b"), (9, "other", "a")]):
        await Script(h.store, f"r{i}", priority=priority, queue=queue, skill_id=skill).submit()
        h.clock.forward(10)
    await Script(h.store, "later", queue="q", skill_id="a", not_before=h.store.now() + SECOND).submit()
    assert [c.run_id for c in await h.store.claim("w", ("q",), ("a",), limit=5)] == ["r1", "r0"]
    assert [c.run_id for c in await h.store.claim("w", (), None, limit=1)] == ["r3"]
    assert [c.run_id for c in await h.store.claim("w", (), None, limit=5)] == ["r2"]
    h.clock.forward(SECOND)
    assert [c.run_id for c in await h.store.claim("w", (), None, limit=5)] == ["later"]


@case
async def case_claim_by_shape(h: Harness) -> None:
    """§10.11, §3.2: a worker claims only runs that it can continue, orphans included; the shape of a run may change."""
    for name in ("dead", "old", "new"):
        await h.store.register(name, TTL)
    await Script(h.store, "r1", fingerprint="f1").submit()
    await Script(h.store, "r2", fingerprint="f1").begin("dead")
    h.kill("dead")
    assert await h.store.claim("new", (), None, limit=5, shapes=("f2",)) == []
    assert await h.store.claim("new", (), None, limit=5, shapes=()) == []
    assert {c.run_id for c in await h.store.claim("old", (), None, limit=5, shapes=("f0", "f1"))} == {"r1", "r2"}
    ended = await Script(h.store, "r3", fingerprint="f1").begin("old")
    await ended.write(ended.commit(ev.RunFailed("boom", ErrorValue("E", "m")), lease=RELEASE))
    await ended.write(ended.touching(ev.RunResumed(cause="operator", upgraded="f2")))
    assert await h.store.claim("old", (), None, limit=5, shapes=("f1",)) == []
    assert [c.run_id for c in await h.store.claim("new", (), None, limit=5, shapes=("f2",))] == ["r3"]


@case
async def case_claim_any_shape_in_a_folder(h: Harness) -> None:
    """§11.2, §10.11: a worker that takes any shape takes runs bound to a folder only in the folders that it names, orphans included."""
    for name in ("dead", "here", "free"):
        await h.store.register(name, TTL)
    await Script(h.store, "unbound", fingerprint="f1").submit()
    for name, folder in (("mine", "w1"), ("theirs", "w2")):
        bound = Script(h.store, name, fingerprint="f1")
        await bound.submit()
        await bound.write(bound.touching(ev.RunPatched(workspace=folder)))
    lost = await Script(h.store, "lost", fingerprint="f1").begin("dead")
    await lost.write(lost.commit(ev.RunPatched(workspace="w2")))
    h.kill("dead")
    assert [c.run_id for c in await h.store.claim("free", (), None, limit=5, shapes=("*@w3",))] == []
    assert {c.run_id for c in await h.store.claim("here", (), None, limit=5, shapes=("*", "*@w1"))} == {"unbound", "mine"}
    assert {c.run_id for c in await h.store.claim("free", (), None, limit=5, shapes=("*", "*@w2"))} == {"theirs", "lost"}


@case
async def case_claim_by_id(h: Harness) -> None:
    """§7.1: one run can be claimed by id, due or not, unless a live owner holds it."""
    await h.store.register("w", TTL)
    await h.store.register("v", TTL)
    await (await Script(h.store, "r1").begin("w")).wait()
    (claim,) = await h.store.claim("v", (), None, limit=1, run_id="r1")
    assert claim.previous_owner is None
    assert await h.store.claim("w", (), None, limit=1, run_id="r1") == []
    await refused(RunNotFound, h.store.claim("w", (), None, limit=1, run_id="nobody"))
    await refused(LeaseLost, h.store.claim("stranger", (), None, limit=1, run_id="r1"))


@case
async def case_deadline_makes_due(h: Harness) -> None:
    """§5.10: a wait's deadline makes its run claimable."""
    await h.store.register("w", 10 * TTL)
    await (await Script(h.store, "r1").begin("w")).wait(deadline=h.store.now() + SECOND)
    assert await h.store.claim("w", (), None, limit=1) == []
    h.clock.forward(SECOND)
    assert [c.run_id for c in await h.store.claim("w", (), None, limit=1)] == ["r1"]


@case
async def case_tokens_are_revoked(h: Harness) -> None:
    """T-91, §5.9, §5.14: the commit that closes a wait revokes its links and no others; a used link stays used."""
    await h.store.register("w", TTL)
    script = await (await Script(h.store, "r1").begin("w")).wait()
    now, later = h.store.now(), h.store.now() + 3_600 * SECOND
    for name, wait_id in ((b"a", "r1.w"), (b"b", "r1.w"), (b"c", "r1.other")):
        await h.store.issue_token(Token(name, "r1", wait_id, "default", "ada", now, later))
    item = InboxItem(run_id="r1", key="wait:x", command=Decide(wait_id="x", action="approve", actor="ada"), put_at=now)
    assert (await h.store.redeem_token(b"a", item)).taken_seq is None
    await script.write(script.touching(ev.WaitClosed("r1.w", "canceled")))
    found = [await h.store.token(name) for name in (b"a", b"b", b"c")]
    assert [(t.used_at, t.revoked_at) for t in found if t is not None] == [(now, None), (None, now), (None, None)]
    await refused(TokenRefused, h.store.redeem_token(b"b", replace(item, key="wait:y")))
    assert [i.key for i in await h.store.inbox("r1")] == ["wait:x"]


@case
async def case_dead_owner(h: Harness) -> None:
    """§10.6: the runs of an owner proven dead are taken over at once, long before its lease expires."""
    await h.store.register("w1", TTL)
    await h.store.register("w2", TTL)
    await Script(h.store, "r1").begin("w1")
    assert await h.store.claim("w2", (), None, limit=1) == []
    h.kill("w1")
    got = await h.store.get("r1")
    assert got is not None
    assert got[1].owner_alive is Alive.NO
    assert not got[1].live(h.store.now())
    (claim,) = await h.store.claim("w2", (), None, limit=1)
    assert (claim.previous_owner, claim.cause) == ("w1", "owner_dead")


@case
async def case_renew_and_retire(h: Harness) -> None:
    """§10.4: one renewal covers all runs of an owner; a clean end hands them back at once and fences off late writes."""
    await h.store.register("w1", TTL)
    await h.store.register("w2", 10 * TTL)
    script = await Script(h.store, "r1").begin("w1")
    h.clock.forward(TTL - 1)
    assert await h.store.renew("w1", TTL) == h.store.now() + TTL
    h.clock.forward(TTL - 1)
    assert await h.store.claim("w2", (), None, limit=1) == []
    assert {w.owner: (w.runs, w.alive) for w in await h.store.workers()} == {"w1": (1, "true"), "w2": (0, "true")}
    assert {w.owner: (w.runs, w.alive) for w in await h.store.workers(counted=False)} == {"w1": (0, "true"), "w2": (0, "true")}
    late = script.step()
    await h.store.retire("w1")
    await refused(LeaseLost, h.store.commit(late))
    assert await h.store.renew("w1", TTL) == 0
    (claim,) = await h.store.claim("w2", (), None, limit=1)
    assert claim.previous_owner is None
    await refused(LeaseLost, h.store.commit(late))


@case
async def case_proof_of_death_is_kept(h: Harness) -> None:
    """X-16, X-17: as long as an attempt that is not closed names an owner, the owner's death can be proven, whatever was claimed since."""
    for owner in ("w1", "w2", "w3"):
        await h.store.register(owner, TTL)
    script = await Script(h.store, "r1").begin("w1")
    attempt = replace(effect("r1", 1, "k"), owner="w1")
    await script.write(script.commit(ev.SideEffectAttempted("r1.x1", "k"), effects=(attempt,)))
    assert await h.store.owner_alive("w1") is Alive.YES
    assert await h.store.open_effects("w1") == [attempt]
    assert await h.store.open_effects("w2") == []
    h.kill("w1")
    assert len(await h.store.claim("w2", (), None, limit=1)) == 1
    h.kill("w2")
    assert len(await h.store.claim("w3", (), None, limit=1)) == 1
    for _ in range(3):
        await h.store.claim("w3", (), None, limit=1)
    assert await h.store.owner_alive("w1") is Alive.NO
    assert await h.store.settle_effect(replace(attempt, closed=True), "attempted")
    assert [e.closed for e in await h.store.open_effects("w1")] == [True]


@case
async def case_frozen_and_then_killed(h: Harness) -> None:
    """X-17: an owner whose runs were taken over as expired is not known to be dead until it is killed."""
    await h.store.register("w1", TTL)
    script = await Script(h.store, "r1").begin("w1")
    await script.write(script.commit(ev.SideEffectAttempted("r1.x1", "k"), effects=(replace(effect("r1", 1, "k"), owner="w1"),)))
    h.clock.forward(TTL + 1)
    await h.store.register("w2", TTL)
    (claim,) = await h.store.claim("w2", (), None, limit=1)
    assert claim.cause == "expired"
    for _ in range(4):
        await h.store.claim("w2", (), None, limit=1)
        assert await h.store.owner_alive("w1") is Alive.YES
        h.clock.forward(3_600 * SECOND)
        await h.store.renew("w2", TTL)
    h.kill("w1")
    await h.store.claim("w2", (), None, limit=1)
    assert await h.store.owner_alive("w1") is Alive.NO


@case
async def case_retired_while_it_acts(h: Harness) -> None:
    """§6.5: a clean end proves that an owner no longer acts, unless one of its threads still does."""
    await h.store.register("w1", TTL)
    await h.store.register("w2", TTL)
    await h.store.outlive("w1")
    await h.store.retire("w1")
    assert await h.store.owner_alive("w1") is Alive.YES
    await h.store.retire("w2")
    assert await h.store.owner_alive("w2") is not Alive.YES
    assert await h.store.workers() == []


@case
async def case_worker_clock(h: Harness) -> None:
    """T-80: the store's clock decides; a worker's own clock decides nothing."""
    await h.store.register("w1", TTL)
    await h.store.register("w2", TTL)
    script = Script(h.store, "r1")
    commit = script.first(ev.RunStarted(), lease=Take("w1"))
    for skew in (-300 * SECOND, 300 * SECOND):
        other = Script(h.store, f"r{skew}")
        skewed = other.first(ev.RunStarted(), lease=Take("w1"))
        at = skewed.at + skew
        await h.store.commit(replace(skewed, at=at, events=tuple(replace(e, at=at) for e in skewed.events)))
    await h.store.commit(commit)
    assert await h.store.claim("w2", (), None, limit=5) == []


@case
async def case_two_workers_of_one_name(h: Harness) -> None:
    """X-08: an owner id is unique per process start; a second registration of the same name is refused."""
    await h.store.register("w", TTL)
    await refused(Conflict, h.store.register("w", TTL), "owner_taken")
    await Script(h.store, "r1").begin("w")


@case
async def case_own_run_is_reclaimed_by_id(h: Harness) -> None:
    """X-09: an owner whose driver broke off can claim its run again, under a new fence; what the old driver writes is refused."""
    await h.store.register("w", TTL)
    await h.store.register("other", TTL)
    script = await Script(h.store, "r0").begin("w")
    assert await h.store.claim("w", (), None, limit=5) == []
    assert await h.store.claim("other", (), None, limit=1, run_id="r0") == []
    (claim,) = await h.store.claim("w", (), None, limit=1, run_id="r0")
    assert (claim.previous_owner, claim.cause) == ("w", "reclaimed")
    await refused(LeaseLost, script.complete())


@case
async def case_claims_race(h: Harness) -> None:
    """T-74: of many claimers, one gets each run."""
    for i in range(4):
        await h.store.register(f"w{i}", TTL)
    for i in range(20):
        await Script(h.store, f"r{i:02}").submit()
    taken = await asyncio.gather(*[h.store.claim(f"w{i}", (), None, limit=8) for i in range(4)])
    names = [c.run_id for claims in taken for c in claims]
    assert sorted(names) == [f"r{i:02}" for i in range(20)]


# -- lanes ------------------------------------------------------------------------------------------


@case
async def case_given_whole_as_soon_as_it_has_ended(h: Harness) -> None:
    """§4.5: ``load_if_ended`` returns what ``load`` returns; but only the run's row while the run goes on, or if more than its log would have to be read."""
    store: object = h.store
    if not offers_awaited(store):
        return
    await h.store.register("w", TTL)
    assert await store.load_if_ended("r1") is None
    script = await Script(h.store, "r1").submit()
    assert await store.load_if_ended("r1") == await h.store.get("r1")
    script = await (await Script(h.store, "r2").begin("w")).steps(2)
    assert await store.load_if_ended("r2") == await h.store.get("r2")
    await script.complete()
    loaded = await h.store.load("r2")
    assert loaded is not None and len(loaded.rows) > 2 and loaded.run.terminal
    assert await store.load_if_ended("r2") == loaded
    await h.store.put(signal("r2", "k", h.store.now()))
    assert await store.load_if_ended("r2") == await h.store.get("r2")
    script = await (await Script(h.store, "r3").begin("w")).wait()
    assert await store.load_if_ended("r3") == await h.store.get("r3")


@case
async def case_found_and_taken_by_the_first_commit(h: Harness) -> None:
    """§1.11, §10.1, §10.2: where a store returns a loaded run instead of a claim, the run's first commit takes the run: once, and only if it is as it was found."""
    store = h.store
    finder: object = store
    if not offers_untaken(finder):
        return

    async def submit(run_id: str, **fields: Any) -> Script:
        return await Script(store, run_id, **fields).submit()

    async def look(owner: str = "w1") -> list[Claim] | Loaded:
        assert offers_untaken(finder)
        return await finder.claim_or_load(owner, (), None, limit=5)

    def first(script: Script, owner: str = "w1") -> Commit:
        return replace(script.taking(owner, ev.RunClaimed(owner, 2), ev.RunStarted()), lease=Take(owner, found=True))

    await refused(LeaseLost, look())
    for owner in ("w1", "w2"):
        await store.register(owner, TTL)
    assert await look() == []
    script = await submit("r1")
    found = await look("w1"), await look("w2")
    loaded = await store.load("r1")
    assert found == (loaded, loaded) and loaded is not None and loaded.lease.owner is None, "both have found it, and nobody has taken it"
    await refused(LeaseLost, store.commit(first(script, "nobody")))
    commit, late = first(script), first(script, "w2")
    await script.write(commit)
    await refused(LeaseLost, store.commit(late))
    after = await store.load("r1")
    assert after is not None and (after.lease.owner, after.lease.fence, after.run) == ("w1", script.fence, commit.run)
    assert await look("w2") == [] and await store.claim("w2", (), None, limit=5) == []
    await script.complete()

    # A command was put into the run's inbox meanwhile: the run is claimed instead, and begins with the command.
    script = await submit("r2")
    assert isinstance(await look(), Loaded)
    await store.put(signal("r2", "k", store.now()))
    await refused(InboxUnread, store.commit(first(script)))
    assert [c.run_id for c in await store.claim("w2", (), None, limit=5)] == ["r2"]

    # Another run of the lane goes first: it was submitted before and is due, or it has begun.
    script = await submit("r3", session_key="s")
    assert isinstance(await look(), Loaded)
    other = await submit("r4", session_key="s")
    await refused(Conflict, store.commit(first(other)), "lane_busy")
    await script.write(first(script))
    await refused(Conflict, store.commit(first(other)), "lane_busy")
    assert await look() == []

    # A limit was stored meanwhile: claims check limits and commits do not, so the commit is refused.
    script = await submit("r5")
    assert isinstance(await look(), Loaded)
    assert await store.put_rule(Rule("queue:default", Limit(in_flight=1)), None)
    await refused(Conflict, store.commit(first(script)), "limited")
    assert await look() == []

    # A run that was begun before, or has something in its inbox, is claimed.
    assert await store.put_rule(Rule("queue:default"), Rule("queue:default", Limit(in_flight=1)))
    claims = await look("w2")
    assert isinstance(claims, list) and [c.run_id for c in claims] == ["r5"]


@case
async def case_lane_serialises(h: Harness) -> None:
    """§10.8, T-81, T-84: one run of a lane at a time, in the order of submission, whoever claims."""
    await h.store.register("w", TTL)
    for i in range(3):
        await Script(h.store, f"r{i}", session_key="s").submit()
    order = []
    for _ in range(3):
        (claim,) = await h.store.claim("w", (), None, limit=5)
        order.append(claim.run_id)
        assert await h.store.claim("w", (), None, limit=5) == []
        for other in {"r0", "r1", "r2"} - {claim.run_id}:
            assert await h.store.claim("w", (), None, limit=1, run_id=other) == []
        loaded = await h.store.load(claim.run_id)
        assert loaded is not None
        script = Script.of(h.store, loaded, claim.fence)
        await script.write(script.commit(ev.RunStarted()))
        await script.complete()
    assert order == ["r0", "r1", "r2"]


@case
async def case_lanes_overlap_when_different(h: Harness) -> None:
    """T-83: a held lane does not hold back runs of other lanes, sessions and tenants."""
    await h.store.register("w", TTL)
    await Script(h.store, "r0", session_key="s").begin("w")
    await Script(h.store, "r1", session_key="s", lane="side").begin("w")
    await Script(h.store, "r2", session_key="s", tenant_id="other").begin("w")
    await Script(h.store, "r3", session_key="t").begin("w")


@case
async def case_invoke_respects_the_lane(h: Harness) -> None:
    """§10.8: taking a new run is refused while its lane is held or others wait for it; a run that is submitted as pending queues."""
    await h.store.register("w", TTL)
    holder = await Script(h.store, "r0", session_key="s").begin("w")
    again = Script(h.store, "r1", session_key="s")
    await refused(Conflict, h.store.commit(again.first(ev.RunStarted(), lease=Take("w"))), "lane_busy")
    assert await h.store.get("r1") is None
    await Script(h.store, "r1", session_key="s").submit()
    await holder.complete()
    late = Script(h.store, "r2", session_key="s")
    await refused(Conflict, h.store.commit(late.first(ev.RunStarted(), lease=Take("w"))), "lane_busy")
    assert [c.run_id for c in await h.store.claim("w", (), None, limit=5)] == ["r1"]


@case
async def case_waiting_run_holds_or_lets_go(h: Harness) -> None:
    """§10.8: a waiting run holds its lane, unless it asked to release it (``paused_lane``); then it queues again in its old turn."""
    await h.store.register("w", TTL)
    await (await Script(h.store, "h0", session_key="hold").begin("w")).wait()
    await Script(h.store, "h1", session_key="hold").submit()
    assert await h.store.claim("w", (), None, limit=5) == []
    await (await Script(h.store, "f0", session_key="free", paused_lane="release").begin("w")).wait()
    await Script(h.store, "f1", session_key="free").submit()
    (claim,) = await h.store.claim("w", (), None, limit=5)
    assert claim.run_id == "f1"
    await h.store.put(signal("f0", "k", h.store.now()))
    assert await h.store.claim("w", (), None, limit=5) == []
    loaded = await h.store.load("f1")
    assert loaded is not None
    other = Script.of(h.store, loaded, claim.fence)
    await other.write(other.commit(ev.RunStarted()))
    await other.complete()
    assert [c.run_id for c in await h.store.claim("w", (), None, limit=5)] == ["f0"]


@case
async def case_owner_of_a_waiting_run_holds_its_lane(h: Harness) -> None:
    """§10.8: a run that releases its lane while it waits has it again from its claim on, also while its owner writes what it found, before the run is resumed. A run
    with an earlier turn waits until then."""
    await h.store.register("w", TTL)
    for name in ("early", "late"):
        await (await Script(h.store, name, session_key="s", paused_lane="release").begin("w")).wait()
    await h.store.put(signal("late", "k", h.store.now()))
    (claim,) = await h.store.claim("w", (), None, limit=5)
    loaded = await h.store.load("late")
    assert loaded is not None and claim.run_id == "late"
    owner = Script.of(h.store, loaded, claim.fence)
    await h.store.put(signal("early", "k", h.store.now()))
    for fact in (ev.NoteAdded("a command"), ev.NoteAdded("another"), ev.RunResumed(cause="signal")):
        await owner.write(owner.commit(fact, took=("signal:go:k",) if isinstance(fact, ev.RunResumed) else ()))
        assert await h.store.claim("w", (), None, limit=5) == []
    await owner.wait()
    (claim,) = await h.store.claim("w", (), None, limit=5)
    assert claim.run_id == "early"


@case
async def case_lane_goes_with_the_lease(h: Harness) -> None:
    """T-86, T-82: if a lane's holder loses its owner, it is recovered before any run behind it; a run that is handed back keeps its turn."""
    await h.store.register("w1", TTL)
    await h.store.register("w2", TTL)
    await Script(h.store, "r0", session_key="s").begin("w1")
    await Script(h.store, "r1", session_key="s").submit()
    h.kill("w1")
    assert [c.run_id for c in await h.store.claim("w2", (), None, limit=5)] == ["r0"]
    await h.store.retire("w2")
    await h.store.register("w3", TTL)
    assert [c.run_id for c in await h.store.claim("w3", (), None, limit=5)] == ["r0"]


@case
async def case_resurrection_gets_a_new_turn(h: Harness) -> None:
    """§10.8: a failed run that is resumed queues behind the runs that were submitted meanwhile."""
    await h.store.register("w", TTL)
    script = await Script(h.store, "r0", session_key="s").begin("w")
    await script.write(script.commit(ev.RunFailed("boom", ErrorValue("E", "m")), lease=RELEASE))
    await Script(h.store, "r1", session_key="s").submit()
    await refused(Conflict, h.store.commit(script.taking("w", ev.RunResumed(cause="operator"))), "lane_busy")
    await script.write(script.touching(ev.RunResumed(cause="operator")))
    assert [c.run_id for c in await h.store.claim("w", (), None, limit=5)] == ["r1"]


async def _ahead(h: Harness, until: str | None = None, limit: int = 50) -> list[str]:
    """Returns the runs of the main lane of session s that go before others, as they are listed."""
    asked = RunFilter(tenant_id="default", session_key="s", lane="main", ahead=True, until=until, limit=limit)
    return [run.run_id for run, _ in await h.store.runs(asked)]


async def _only(h: Harness, owner: str, run_id: str, others: Sequence[str]) -> Script:
    """Claims the run that goes first, after checking that no other run of its lane can be claimed."""
    for other in others:
        assert await h.store.claim(owner, (), None, limit=1, run_id=other) == [], f"{other} went before {run_id}"
    (claim,) = await h.store.claim(owner, (), None, limit=5)
    assert claim.run_id == run_id
    loaded = await h.store.load(run_id)
    assert loaded is not None
    return Script.of(h.store, loaded, claim.fence)


@case
async def case_listing_who_goes_before_others(h: Harness) -> None:
    """§10.8: the listing has the holder of a lane first, then the due runs by their turns; claims let the first one listed go before the others."""
    await h.store.register("w", 1000 * TTL)
    later = h.store.now() + TTL
    assert await _ahead(h) == []
    await Script(h.store, "put-off", session_key="s", not_before=later).submit()
    for name in ("r2", "r1", "r0"):  # the order does not follow the ids
        await Script(h.store, name, session_key="s").submit()
    for beside in ({"lane": "side", "session_key": "s"}, {"tenant_id": "other", "session_key": "s"}, {"session_key": "t"}):
        await Script(h.store, "-".join(beside.values()), **beside).begin("w")
    assert await _ahead(h) == ["r2", "r1", "r0"]
    assert await _ahead(h, limit=1) == ["r2"]
    assert (await _ahead(h, "r2"), await _ahead(h, "r1"), await _ahead(h, "put-off")) == (["r2"], ["r2", "r1"], [])
    assert await _ahead(h, "nobody") == ["r2", "r1", "r0"], "one that is not there comes after all"
    lane = RunFilter(tenant_id="default", session_key="s", lane="main")
    assert [r.run_id for r, _ in await h.store.runs(replace(lane, by_turn=True))] == ["r0", "r1", "r2", "put-off"]
    assert [r.run_id for r, _ in await h.store.runs(replace(lane, ahead=True, statuses=("pending",), limit=2))] == ["r2", "r1"]

    # An item in its inbox, or its start time, makes the run due; it then goes by its turn.
    await h.store.put(signal("put-off", "k", h.store.now()))
    assert await _ahead(h) == ["put-off", "r2", "r1", "r0"]
    early = await _only(h, "w", "put-off", ("r2", "r1", "r0"))
    assert (await _ahead(h, limit=1), await _ahead(h, "r1")) == (["put-off"], ["put-off", "r2", "r1"]), "one that was taken and has not begun"
    await early.write(early.commit(ev.NoteAdded("told"), ev.RunHandedBack("w"), took=("signal:go:k",), lease=RELEASE, due=later))
    assert await _ahead(h) == ["r2", "r1", "r0"]
    h.clock.forward(2 * TTL)
    assert await _ahead(h) == ["put-off", "r2", "r1", "r0"]
    early = await _only(h, "w", "put-off", ("r2", "r1", "r0"))
    await early.write(early.commit(ev.RunStarted()))
    await early.complete()
    assert await _ahead(h) == ["r2", "r1", "r0"], "what has ended is in nobody's way"


@case
async def case_listing_who_holds_a_lane(h: Harness) -> None:
    """§10.8: the holder of a lane goes first, even if it waits, is interrupted or has lost its owner; a run that released its lane goes by its turn."""
    await h.store.register("w", 1000 * TTL)
    await (await Script(h.store, "r0", session_key="s", paused_lane="release").begin("w")).wait()
    assert await _ahead(h) == [], "it has let go of its lane, and is not due"
    for name in ("r1", "r2"):
        await Script(h.store, name, session_key="s").submit()
    holder = await _only(h, "w", "r1", ("r2",))
    await h.store.put(signal("r0", "k", h.store.now()))
    assert await _ahead(h) == ["r1", "r0", "r2"]
    assert await _ahead(h, "r0") == ["r1", "r0"]
    await holder.write(holder.commit(ev.RunStarted()))
    await holder.wait()
    assert await _ahead(h) == ["r1", "r0", "r2"]
    assert await h.store.claim("w", (), None, limit=5) == []
    await h.store.put(signal("r1", "k", h.store.now()))
    holder = await _only(h, "w", "r1", ("r0", "r2"))
    await holder.write(holder.commit(ev.RunResumed(cause="signal"), ev.RunInterrupted("its owner died"), took=("signal:go:k",), lease=RELEASE))
    assert await _ahead(h) == ["r1", "r0", "r2"]
    assert await h.store.claim("w", (), None, limit=5) == []
    assert [c.run_id for c in await h.store.claim("w", (), None, limit=1, run_id="r1")] == ["r1"]
    h.kill("w")
    await h.store.register("w2", 1000 * TTL)
    assert await _ahead(h) == ["r1", "r0", "r2"]
    holder = await _only(h, "w2", "r1", ("r0", "r2"))
    await holder.write(holder.commit(ev.RunFailed("boom", ErrorValue("E", "m")), lease=RELEASE))
    assert await _ahead(h) == ["r0", "r2"]
    await holder.write(holder.touching(ev.RunResumed(cause="operator")))
    assert await _ahead(h) == ["r0", "r2", "r1"], "one that is resumed after its end has a new turn"
    first = await _only(h, "w2", "r0", ("r2", "r1"))
    await first.write(first.commit(ev.RunResumed(cause="signal"), took=("signal:go:k",)))
    await first.complete()
    assert await _ahead(h) == ["r2", "r1"]


# -- effects, intents, ledger -----------------------------------------------------------------------


@case
async def case_effects(h: Harness) -> None:
    """§6.5, §6.8: a key has one open record, which is settled by compare-and-set, also after the lease is lost."""
    await h.store.register("w", TTL)
    script = await Script(h.store, "r1").begin("w")
    first = effect("r1", 1, "k")
    fact = ev.SideEffectAttempted("r1.x1", "k")
    await script.write(script.commit(fact, effects=(first,)))
    await refused(EffectInProgress, h.store.commit(script.commit(fact, effects=(effect("r1", 2, "k"),))))
    assert await h.store.effects("r1") == [first]
    done = effect("r1", 1, "k", EffectStatus.RECORDED)
    assert not await h.store.settle_effect(done, "unknown")
    assert await h.store.settle_effect(done, "attempted")
    assert not await h.store.settle_effect(done, "attempted")
    await script.write(script.commit(fact, effects=(effect("r1", 2, "k"),)))
    assert [e.status for e in await h.store.effects(key="k")] == ["recorded", "attempted"]
    assert len(await h.store.effects(lineage_root="r1")) == 2
    assert await h.store.effects("r2") == []


@case
async def case_an_attempt_follows_the_one_that_its_commit_settles(h: Harness) -> None:
    """§6.8: one commit may settle an attempt under a key and begin the next, in either order; it may not begin two."""
    await h.store.register("w", TTL)
    script = await Script(h.store, "r1").begin("w")
    fact, before = ev.SideEffectAttempted("x", "k"), effect("r1", 0, "k")
    await script.write(script.commit(fact, effects=(before,)))
    for number in (1, 2):
        done, after = replace(before, status=EffectStatus.FAILED), effect("r1", number, "k")
        await script.write(script.commit(fact, effects=(done, after) if number == 1 else (after, done)))
        assert [(e.effect_id, e.open) for e in await h.store.effects(key="k") if e.open] == [(after.effect_id, True)]
        before = after
    twice = (replace(before, status=EffectStatus.FAILED), effect("r1", 3, "k"), effect("r1", 4, "k"))
    await refused(EffectInProgress, h.store.commit(script.commit(fact, effects=twice)))
    third = effect("r1", 3, "k")
    known = (replace(before, status=EffectStatus.FAILED), third, replace(third, status=EffectStatus.UNKNOWN))  # the attempt begins, and its outcome is unknown at once
    await script.write(script.commit(fact, effects=known))
    fourth, fifth = effect("r1", 4, "k"), effect("r1", 5, "k")
    ended = (replace(third, status=EffectStatus.FAILED), fourth, replace(fourth, status=EffectStatus.FAILED), fifth)
    await script.write(script.commit(fact, effects=ended))
    assert [e.effect_id for e in await h.store.effects(key="k") if e.open] == [fifth.effect_id]
    await script.steps(1)


@case
async def case_ledger(h: Harness) -> None:
    """§9.6, T-63: the three rows of a commit are all written, or none is."""
    await h.store.register("w", TTL)
    script = await Script(h.store, "r1").begin("w")
    rows = tuple(LedgerRow("r1", "topic", f"k{i}", canon.encode(i), h.store.now()) for i in range(3))
    stale = script.commit(ev.NoteAdded("stale"), ledger=rows)
    await script.write(script.commit(ev.NoteAdded("x"), ledger=rows))
    await refused(VersionConflict, h.store.commit(stale))
    kept = await h.store.ledger("r1")
    assert [replace(r, number=0) for r in kept] == list(rows)
    assert [r.key for r in await h.store.ledger(topic="topic", after=kept[0].number, limit=1)] == ["k1"]
    assert [r.key for r in await h.store.ledger(key="k2", tenant_id="default")] == ["k2"]
    assert await h.store.ledger("r1", topic="other") == await h.store.ledger(tenant_id="other") == []


# -- groups, news, integrity ------------------------------------------------------------------------


@case
async def case_group_isolates(h: Harness) -> None:
    """§1.11, X-03: of 50 coalesced commits one breaks a constraint and one is fenced off; 48 succeed."""
    await h.store.register("w", TTL)
    scripts = [await Script(h.store, f"r{i:02}").begin("w") for i in range(50)]
    await scripts[0].write(scripts[0].commit(ev.SideEffectAttempted("x", "k"), effects=(effect("r00", 1, "k"),)))
    commits = [s.step() for s in scripts]
    commits[7] = scripts[7].commit(ev.SideEffectAttempted("x", "k"), effects=(effect("r07", 2, "k"),))
    scripts[9].fence += 1
    commits[9] = scripts[9].step()
    before = [len(await h.store.rows(s.run_id)) for s in scripts]
    outcomes = await asyncio.gather(*[h.store.commit(c) for c in commits], return_exceptions=True)
    assert isinstance(outcomes[7], EffectInProgress)
    assert isinstance(outcomes[9], LeaseLost)
    good = [i for i, o in enumerate(outcomes) if isinstance(o, Tip)]
    assert len(good) == 48
    for i, script in enumerate(scripts):
        assert len(await h.store.rows(script.run_id)) == before[i] + (i in good)
        loaded = await h.store.load(script.run_id)
        assert loaded is not None
        rebuilt(loaded)
        if i in good:
            assert loaded.tip == outcomes[i]


class _Sitting:
    """A seat that hands over its next step when it is told that one was written."""

    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps
        self.waits = True
        self.tips: list[Tip] = []
        self.error: BaseException | None = None
        self.over = asyncio.Event()

    def tell(self, tip: Tip) -> Step | None:
        assert asyncio.current_task() is None, "a seat is told outside of any task"
        self.tips.append(tip)
        if self.steps:
            return replace(self.steps.pop(0), after=tip)
        self.over.set()
        return None

    def refuse(self, error: BaseException) -> None:
        self.error = error
        self.over.set()


@case
async def case_seats_are_told(h: Harness) -> None:
    """§1.11: runs that hand over step after step are each told about their own steps. A refused run is told only of the error; one that no longer waits, of nothing."""
    crowd: object = h.store
    if not offers_gathering(crowd):
        return
    await h.store.register("w", TTL)
    scripts = [await Script(h.store, f"r{i:02}").begin("w") for i in range(6)]
    scripts[2].fence += 1
    seats, lengths = [], [len(await h.store.rows(s.run_id)) for s in scripts]
    assert crowd.gathers
    for script in scripts:
        first = prepare(script.step()).step
        assert first is not None and first.after is not None
        # Each further step follows the last one, whose tip the seat learns when it is told.
        seat = _Sitting([replace(first, seq=first.seq + 2, data=b"second", hash=bytes(16), since=first.since + 6, version=first.version + 2)])
        seats.append(seat)
        assert crowd.step_at_once(first) is None, "others have something to write too"
        crowd.join(first, seat)
    seats[4].waits = False
    await asyncio.wait_for(asyncio.gather(*[s.over.wait() for i, s in enumerate(seats) if i != 4]), 30)
    assert isinstance(seats[2].error, LeaseLost) and not seats[2].tips
    assert not seats[4].tips and seats[4].error is None, "nobody waited for it any more"
    for i, (script, seat) in enumerate(zip(scripts, seats, strict=True)):
        rows = await h.store.rows(script.run_id)
        assert len(rows) == lengths[i] + (0 if i in (2, 4) else 2)
        if i not in (2, 4):
            assert seat.error is None and (seat.tips[-1].seq, rows[-1].data) == (rows[-1].seq, b"second")


@case
async def case_one_run_twice_at_once(h: Harness) -> None:
    """§1.6: of two commits of one run at the same time, one wins and the other gets a VersionConflict."""
    await h.store.register("w", TTL)
    script = await Script(h.store, "r1").begin("w")
    await Script(h.store, "r2").begin("w")
    outcomes = await asyncio.gather(*[h.store.commit(script.step()) for _ in range(2)], return_exceptions=True)
    assert sorted(type(o).__name__ for o in outcomes) == ["Tip", "VersionConflict"], "of two commits at the same time exactly one succeeds; the other raises VersionConflict"


@case
async def case_wake_ups(h: Harness) -> None:
    """§10.16, T-18: a put wakes everyone who waits for a change, and nobody waits for a change that has already happened."""
    await Script(h.store, "r1").submit()
    await h.store.wait_for_change(0)
    await h.store.put(signal("r1", "k1", h.store.now()))
    await asyncio.wait_for(h.store.wait_for_change(60), 1)
    waiting = asyncio.gather(*[h.store.wait_for_change(60) for _ in range(5)])
    await asyncio.sleep(0)
    await h.store.put(signal("r1", "k2", h.store.now()))
    await asyncio.wait_for(waiting, 1)
    await h.store.wait_for_change(0.001)


# -- upkeep -----------------------------------------------------------------------------------------


@case
async def case_rebuild(h: Harness) -> None:
    """§12.3: the row becomes the fold with the audit record, if nothing changed since the evidence was read and no live owner holds the run."""
    await h.store.register("w", TTL)
    script = await (await Script(h.store, "r1").begin("w")).wait()
    upkeep = keeper(h.store)
    evidence = await upkeep.evidence("r1")
    assert evidence is not None
    assert (evidence.run, evidence.tip and evidence.tip.seq, evidence.problems) == (script.run, script.tip and script.tip.seq, ())
    audit = script.touching(ev.StateRepaired("snapshot_field_drift"))
    await upkeep.rebuild(evidence, [replace(audit, after=evidence.tip)])
    got = await h.store.get("r1")
    assert got is not None
    assert (got[0], got[1].fence, got[1].due) == (audit.run, audit.fence, None)
    assert [e.type for e in codec.open_row((await upkeep.log("r1"))[-1]).events] == ["state.repaired"]
    await refused(VersionConflict, upkeep.rebuild(evidence, [audit]))
    (claim,) = await h.store.claim("w", (), None, limit=1, run_id="r1")
    held = await upkeep.evidence("r1")
    assert held is not None
    await refused(LeaseLost, upkeep.rebuild(held, [audit]))
    loaded = await h.store.load("r1")
    assert loaded is not None
    going = Script.of(h.store, loaded, claim.fence)
    await going.write(going.commit(ev.RunResumed(cause="operator")))
    assert await h.store.verify() == []


@case
async def case_adopt(h: Harness) -> None:
    """§12.5: a run from another store is taken in byte for byte, once; it goes on under a fence of this store."""
    there, other = elsewhere(h), elsewhere(h)
    for store in (there, other):
        await store.register("w", TTL)
    script = await (await Script(there, "r1").begin("w")).steps(3)
    recorded = effect("r1", 1, "k", EffectStatus.RECORDED)
    await script.write(script.commit(ev.SideEffectRecorded(recorded.effect_id, "k", 1, "act"), effects=(recorded,)))
    await script.wait()
    found = await dossier(there, "r1")
    upkeep = keeper(h.store)
    assert await upkeep.adopt(found)
    assert not await upkeep.adopt(found)
    assert tuple(await as_kept(h.store).rows("r1")) == found.rows
    assert await as_kept(h.store).effects("r1") == list(found.effects)
    assert await h.store.effects("r1") == [recorded] == await there.effects("r1")
    assert await upkeep.run_ids() == ["r1"]
    await (await Script(other, "r1", lane="another").begin("w")).steps(3)
    await refused(VersionConflict, upkeep.adopt(await dossier(other, "r1")))
    await h.store.register("v", TTL)
    assert await h.store.claim("v", (), None, limit=1) == []
    (claim,) = await h.store.claim("v", (), None, limit=1, run_id="r1")
    assert claim.fence >> COUNTER_BITS == h.store.incarnation
    loaded = await h.store.load("r1")
    assert loaded is not None
    going = Script.of(h.store, loaded, claim.fence)
    await going.write(going.commit(ev.RunResumed(cause="operator")))
    await going.complete()
    assert await h.store.verify() == []


@case
async def case_prune(h: Harness) -> None:
    """§6.10, X-06: only whole lineages are pruned, if all their runs ended long enough ago; a shared key stays on record, and a lineage with an open effect stays."""
    await h.store.register("w", 100 * TTL)
    for run_id, root in (("a1", "a1"), ("a2", "a1"), ("b1", "b1"), ("c1", "c1")):
        await Script(h.store, run_id, lineage_root=root).begin("w")
    shared = replace(effect("a1", 1, "all", EffectStatus.RECORDED), lineage_root="a1", shared=True)
    own = replace(effect("a1", 2, "mine", EffectStatus.RECORDED), lineage_root="a1")
    for run_id, effects in (("a1", (shared, own)), ("b1", (replace(effect("b1", 1, "lost"), lineage_root="b1"),))):
        script = await _script(h, run_id)
        claim = DedupClaim("request", "default/notes", run_id, run_id, "d")
        await script.write(script.commit(ev.SideEffectAttempted("x", "k"), effects=effects, claims=(claim,)))
        await script.complete()
    h.clock.forward(SECOND)
    upkeep = keeper(h.store)
    assert (await upkeep.prune(h.store.now())).run_ids == ()
    await (await _script(h, "a2")).complete()
    assert (await upkeep.prune(h.store.now() - SECOND)).run_ids == ()
    h.clock.forward(SECOND)
    planned = await upkeep.prune(h.store.now(), dry=True)
    assert (planned.run_ids, list(planned.kept)) == (("a1", "a2"), ["b1"])
    assert await h.store.get("a1") is not None
    assert await upkeep.prune(h.store.now()) == planned
    assert [await h.store.get(r) for r in ("a1", "a2")] == [None, None]
    assert await upkeep.run_ids() == ["b1", "c1"]
    assert [e.key for e in await h.store.effects(key="all")] == ["all"]
    assert await h.store.effects(key="mine") == []
    assert [await h.store.find_claim("request", "default/notes", r) is None for r in ("a1", "b1")] == [True, False]
    assert await h.store.verify() == []
    await (await _script(h, "c1")).steps(1)
    assert await h.store.verify() == []


@case
async def case_whoever_is_late_for_a_pruned_run_is_told(h: Harness) -> None:
    """§6.10: a late commit, command, claim by id or import of a pruned run raises RunPruned; a run that never existed is not reported as pruned."""
    await h.store.register("w", 100 * TTL)
    script = await Script(h.store, "r1").begin("w")
    late = script.commit(ev.NoteAdded("late"))
    await script.complete()
    upkeep = keeper(h.store)
    assert await upkeep.find_pruned("r1") is None
    copy = await dossier(h.store, "r1")
    h.clock.forward(SECOND)
    await upkeep.prune(h.store.now(), dry=True, actor="eve")
    assert await upkeep.find_pruned("r1") is None
    await upkeep.prune(h.store.now(), actor="eve")
    assert await upkeep.find_pruned("r1") == Tombstone("r1", h.store.now(), "eve") and await upkeep.find_pruned("r2") is None
    for asked in (h.store.commit(late), h.store.put(signal("r1", "k", 0)), upkeep.adopt(copy), h.store.claim("w", (), None, limit=1, run_id="r1")):
        error = await refused(RunPruned, asked, "pruned")
        assert isinstance(error, RunPruned) and (error.run_id, error.by) == ("r1", "eve")
    await refused(RunNotFound, h.store.put(signal("r2", "k", 0)), "run_not_found")
    assert await h.store.verify() == []


@case
async def case_a_key_outlasts_its_pruned_run(h: Harness) -> None:
    """§3.5, §9.8: a key is kept for its time even if its run was pruned; after that the next prune removes it."""
    await h.store.register("w", 100 * TTL)
    until = h.store.now() + 10 * SECOND
    claims = {key: DedupClaim("request", "default/notes", key, "r1", "d", at) for key, at in (("timed", until), ("over", h.store.now()), ("bound", None))}
    script = await Script(h.store, "r1").begin("w")
    await script.write(script.commit(ev.NoteAdded("asked for"), claims=tuple(claims.values())))
    await script.complete()
    h.clock.forward(SECOND)
    await keeper(h.store).prune(h.store.now())
    assert [await h.store.find_claim("request", "default/notes", key) for key in claims] == [claims["timed"], None, None]
    again = DedupClaim("request", "default/notes", "timed", "r2", "d", until + SECOND)
    await refused(Conflict, h.store.commit(Script(h.store, "r2").first(claims=(again,))), "claim_taken")
    assert await h.store.verify() == []
    h.clock.forward(20 * SECOND)
    assert await h.store.find_claim("request", "default/notes", "timed") is None
    assert (await keeper(h.store).prune(h.store.now())).run_ids == ()
    assert await h.store.verify() == []
    await h.store.commit(Script(h.store, "r3").first(claims=(DedupClaim("request", "default/notes", "timed", "r3", "d", h.store.now() + SECOND),)))
    assert await h.store.verify() == []


async def _script(h: Harness, run_id: str) -> Script:
    loaded = await h.store.load(run_id)
    assert loaded is not None
    return Script.of(h.store, loaded, loaded.lease.fence)


@case
async def case_sound(h: Harness) -> None:
    """§1.9: ``verify`` finds nothing wrong in a store that was only used."""
    await h.store.register("w", TTL)
    await (await Script(h.store, "r1").begin("w")).steps(3)
    await Script(h.store, "r2").submit()
    assert await h.store.verify() == []


__all__ = ["CASES", "TTL", "Clock", "Harness", "Script", "effect", "rebuilt", "refused", "signal"]

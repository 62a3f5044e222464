"""The seam: everything that one decision makes durable (§1.6)."""

from __future__ import annotations

from itertools import compress
from operator import attrgetter

import msgspec

from holdfast.core import commands
from holdfast.core.blobs import APART, Blob, name_blobs
from holdfast.core.checkpoint import Checkpoint, Result, StepRecord
from holdfast.core.chunks import Emitted
from holdfast.core.effects import Effect
from holdfast.core.events import VOUCHING, Event, RunSubmitted, SignalReceived, fact_of
from holdfast.core.intents import Intent
from holdfast.core.lease import COUNTER, KEEP, LeaseAction, Release, Take, Touch
from holdfast.core.recorded import Recorded
from holdfast.core.run import Run
from holdfast.core.schedules import Move
from holdfast.core.status import TERMINAL

WHOLE_FLOOR = 64 * 1024
SIGNAL_EXTRA_BYTES = 2 * 1024
"""The bytes that a signal counts for in addition to its own: signals save no checkpoint, and a run may get thousands (§5.11)."""


def whole_due(since: int, whole: int) -> bool:
    """Whether a whole checkpoint is due: ``since`` bytes were logged since the last one, whose size is ``whole`` (§4.5)."""
    return since > WHOLE_FLOOR and since > whole


class Tip(msgspec.Struct, frozen=True, gc=False):
    """The end of a run's log, against which every commit is a compare-and-set.

    ``row`` is the store's own pointer. ``since`` are the bytes logged since the last whole checkpoint, and
    ``whole`` is that checkpoint's size; they determine when the next whole checkpoint is due.
    """

    seq: int
    hash: bytes
    row: int
    since: int = 0
    whole: int = 0


class Step(msgspec.Struct, frozen=True, gc=False):
    """The commit of a plain step, ready to be written: its log row, and the fields of the run's row that it changes.

    It changes nothing else, and its owner keeps the run. ``after``: the tip that it follows; ``seq`` to ``since`` go into the new tip;
    ``version``, ``step`` and ``head`` are the run's hot fields.
    """

    run_id: str
    fence: int
    after: Tip
    seq: int
    hash: bytes
    data: bytes
    since: int
    version: int
    step: str | None
    head: str | None

    def tip(self, row: int) -> Tip:
        """Returns the end of the log once this step is durable as ``row``."""
        return Tip(self.seq, self.hash, row, self.since, self.after.whole)


class InboxItem(msgspec.Struct, frozen=True):
    """A command that waits for a run, under a key that is unique in that run. ``put_at``: microseconds since 1970."""

    run_id: str
    key: str
    command: commands.AnyCommand
    put_at: int
    taken_seq: int | None = None


class DedupClaim(msgspec.Struct, frozen=True):
    """A key that may be taken once: for a request, an inbound message, a shared effect or a slot (§3.5, §9.8, §10.15).

    ``kind`` is request, inbound, effect or slot; ``digest`` is the fingerprint of what was requested under the key.
    """

    kind: str
    scope: str
    key: str
    run_id: str
    digest: str
    expires_at: int | None = None


class LedgerRow(msgspec.Struct, frozen=True):
    """A row kept for people and applications; the engine never reads it (§9.6). ``data`` is encoded.

    ``number`` is its position among all rows of the store, once it is stored; ``step_id`` is empty for rows of the first release.
    """

    run_id: str
    topic: str
    key: str
    data: bytes
    at: int
    step_id: str = ""
    number: int = 0


class Statement(msgspec.Struct, frozen=True):
    """SQL for the application's own tables in the same database: committed with the checkpoint, or not at all (§9.6). ``params`` are encoded."""

    text: str
    params: bytes


class Settlement(msgspec.Struct, frozen=True):
    """The new state of an intent, with what its transport's hook returned: written together, and only if the stored intent still equals ``before`` (§9.5)."""

    before: Intent
    after: Intent
    ledger: tuple[LedgerRow, ...] = ()
    puts: tuple[InboxItem, ...] = ()
    intents: tuple[Intent, ...] = ()
    blobs: tuple[Blob, ...] = ()


class Behind(msgspec.Struct, frozen=True):
    """The logs behind a first checkpoint that continues its thread (§4.15): the runs that it carries values from, and how much loading has
    to read there, as in ``Tip``: the bytes logged since the last whole checkpoint, and that checkpoint's size."""

    runs: tuple[str, ...]
    since: int
    whole: int


class ThreadEnd(msgspec.Struct, frozen=True):
    """The newest ended run of a thread, and its version and fence: if both are unchanged, so is its log. An empty ``run_id``: no run has ended yet."""

    run_id: str = ""
    version: int = 0
    fence: int = 0


_hash, _seq, _stamp = attrgetter("hash"), attrgetter("seq"), attrgetter("at", "actor", "fence")


class Commit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything that one decision makes durable. It is applied whole, or not at all.

    ``after`` is the tip that it follows (None: the run's first commit). ``fence`` is the full fence under which it was decided; with ``Take`` and
    ``Touch`` it is the fence being taken. ``delta`` is the encoded Delta of ``checkpoint``. ``stands`` is the head with all records since, to be saved
    as a whole checkpoint, if one is due and the commit has no checkpoint of its own. ``due``: when the run next needs a worker, or ``AT_ONCE``; None:
    the run itself determines it. ``due_stands``: ``due`` holds even if commands wait in the run's inbox, because the writer cannot take them.
    ``max_queued``: how many runs of the tenant may wait in the queue, including the new one. ``follows``: the end that its thread must still have,
    because the values that it begins with were read before (§4.15).
    """

    run: Run
    events: tuple[Event, ...]
    after: Tip | None
    fence: int
    at: int
    actor: str = "system"
    checkpoint: Checkpoint | None = None
    delta: bytes | None = None
    results: tuple[Result, ...] = ()
    effects: tuple[Effect, ...] = ()
    took: tuple[str, ...] = ()
    puts: tuple[InboxItem, ...] = ()
    creates: tuple[Commit, ...] = ()
    claims: tuple[DedupClaim, ...] = ()
    intents: tuple[Intent, ...] = ()
    ledger: tuple[LedgerRow, ...] = ()
    lease: LeaseAction = KEEP
    due: int | None = None
    blobs: tuple[Blob, ...] = ()
    behind: Behind | None = None
    moves: tuple[Move, ...] = ()
    max_queued: int | None = None
    follows: ThreadEnd | None = None
    emitted: Emitted | None = None
    due_stands: bool = False
    stands: Checkpoint | None = None
    statements: tuple[Statement, ...] = ()

    @property
    def signals(self) -> int:
        """How many signals its events report; each was taken from the inbox."""
        return sum(type(e.fact) is SignalReceived for e in self.events) if self.took else 0

    @property
    def plain(self) -> bool:
        """Whether it writes only its log row and the run's hot columns."""
        return self.behind is None and self.alone

    @property
    def alone(self) -> bool:
        """Whether it writes only what belongs to the run: its log row, its columns, and what it carries from its thread."""
        if self.effects or self.took or self.puts or self.creates or self.claims or self.intents or self.ledger:
            return False
        return not (self.statements or self.blobs or self.moves or self.emitted)

    def check(self) -> None:
        """Asserts what must hold for every commit in every store."""
        first = self.after.seq + 1 if self.after is not None else 1
        events, at, actor, fence = self.events, self.at, self.actor, self.fence & COUNTER
        facts = events.facts if type(events) is Recorded else [*map(fact_of, events)]
        assert events, "a commit without events decides nothing"
        assert (self.after is None) == (type(facts[0]) is RunSubmitted), "a run begins with run.submitted"
        assert (self.checkpoint is None) == (self.delta is None), "a checkpoint and its delta are written in the same commit"
        assert self.stands is None or (self.checkpoint is None and self.stands.upto == events[-1].seq), "stands must end at the commit's last event, and a commit with a checkpoint has none"
        assert self.behind is None or self.checkpoint is not None, "a commit that continues the values of another run must contain a checkpoint"
        each = (len(events) - 1 or 1) if type(events) is Recorded else 1  # events numbered in one go: checking the first and the last is enough
        assert [*map(_seq, events[::each])] == [*range(first, first + len(events), each)], "event numbers have a gap"
        assert {*map(_stamp, events[::each])} == {(at, actor, fence)}, "all events of a commit have the same time, actor and fence"
        hashes = filter(None, map(_hash, compress(reversed(facts), map(VOUCHING.__contains__, map(type, reversed(facts))))))
        vouched = next(hashes, None)
        assert each > 1 or next(hashes, None) is None, "two events of the commit name a checkpoint"
        assert not (self.run.status in TERMINAL and isinstance(self.lease, Take)), "a run that has ended has no lease"
        assert not self.creates or all(c.after is None and not c.creates for c in self.creates), "a run that a commit creates has a first commit of its own, which creates no other run"
        assert self.after is not None or type(self.lease) in (Take, Touch, Release), "the first commit of a run must take, touch or release its lease"
        if self.effects or [r for r in self.results if type(r) is StepRecord and r.kind in APART]:
            there = {b.digest for b in self.blobs}
            assert name_blobs(self.results, self.effects).keys() <= there, "a result or an effect needs a blob that the commit does not contain"
        if self.checkpoint is None:
            assert vouched is None, "an event names a checkpoint that the commit does not contain"
        else:
            assert vouched is not None, "no event of the commit names its checkpoint"
            assert vouched == self.checkpoint.hash, "the event names another hash"
            assert self.run.checkpoint_head == self.checkpoint.checkpoint_id, "the run's latest checkpoint is not the commit's checkpoint"

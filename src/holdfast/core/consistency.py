"""Finds what is wrong with a run and names it (§12.1, §12.2): read-only, and pure over rows that the caller has read.

Theory of operation. A ``Diagnosis`` is fed a run's log row by row. It keeps only the fold, the ends of the two hash
chains, a few counters and the names of the records that the log mentions, so that a million events need no more memory
than ten. At the end the fold is compared with the run's row, which is only a cache of it, and the names with the records. If a row cannot be read, the
fold is blind: all comparisons with it are left out rather than guessed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from holdfast.core import blobs, canon, codec, envelopes, ids, payloads
from holdfast.core import events as ev
from holdfast.core.checkpoint import Carry, Checkpoint, voucher
from holdfast.core.effects import OPEN, Effect, EffectStatus
from holdfast.core.errors import HoldfastError, RecordDamaged, StoreError, UnknownStatus
from holdfast.core.intents import Intent, IntentState
from holdfast.core.lease import Lease
from holdfast.core.outcomes import completes
from holdfast.core.run import Run, fold
from holdfast.core.status import LIVE, TERMINAL, WAITING, Condition, Status
from holdfast.core.toolcalls import TYPE, place_of
from holdfast.core.views import condition
from holdfast.core.vouch import KINDS
from holdfast.core.waits import HALT, HALTING, Decision, find_halt

PER_CODE = 20
_OPENED = (ev.SideEffectAttempted, ev.SideEffectUnknown)
_REBUILD = "holdfast repair-state RUN --apply rewrites it from the events"
_CLEAR = "holdfast repair-state RUN --apply clears it"
_HALT = "holdfast repair-state RUN --apply ends the run as the decision says"
_LOOK = "diagnosis only, because nothing repairs this safely: holdfast show RUN shows what can be read; restore a backup if it matters"


_AGAIN = "holdfast repair-state RUN --apply records it again: with its result if the log has it, otherwise as unknown, so that a person is asked"
_ACCEPT = "find out what became of it; then restore a backup, or accept the loss: holdfast doctor --rebuild --acknowledge"


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


SEVERITIES: dict[str, Severity] = {
    "halt_decision_without_halted_meta": Severity.ERROR,
    "terminal_with_stale_handoff": Severity.WARNING,
    "meta_handoff_without_event": Severity.ERROR,
    "active_handoff_without_decision": Severity.INFO,
    "interrupted_with_active_handoff": Severity.WARNING,
    "snapshot_status_drift": Severity.ERROR,
    "snapshot_field_drift": Severity.ERROR,
    "terminal_event_without_terminal_snapshot": Severity.ERROR,
    "terminal_snapshot_without_event": Severity.ERROR,
    "unknown_status": Severity.ERROR,
    "checkpoint_head_missing": Severity.ERROR,
    "checkpoint_hash_mismatch": Severity.ERROR,
    "checkpoint_orphaned": Severity.WARNING,
    "event_seq_gap": Severity.ERROR,
    "event_seq_duplicate": Severity.ERROR,
    "event_chain_broken": Severity.ERROR,
    "event_unreadable": Severity.ERROR,
    "event_tail_partial": Severity.WARNING,
    "log_rolled_back": Severity.ERROR,
    "store_incarnation_changed": Severity.ERROR,
    "store_writer_stalled": Severity.WARNING,
    "effect_attempted_without_result": Severity.WARNING,
    "intent_sending_stale": Severity.WARNING,
    "lease_expired_running": Severity.WARNING,
    "completed_step_without_success_outcome": Severity.ERROR,
    "run_row_missing": Severity.ERROR,
    "blob_unreadable": Severity.ERROR,
    "blob_orphaned": Severity.WARNING,
    "index_damaged": Severity.ERROR,
    "trigger_unknown": Severity.WARNING,
    "record_unreadable": Severity.ERROR,
    "payload_sealed": Severity.WARNING,
    "carry_record_missing": Severity.ERROR,
    "blob_use_record_missing": Severity.ERROR,
    **{f"{kind}_record_{what}": Severity.ERROR for kind in KINDS for what in ("missing", "altered")},
}
"""Every code of §12.1 and §12.2. The codes are API."""


class Problem(msgspec.Struct, frozen=True):
    """A named inconsistency with a stable code (§12.1)."""

    code: str
    severity: str
    message: str
    repair_hint: str = ""
    run_id: str | None = None


def problem(code: str, message: str, repair_hint: str = "", run_id: str | None = None) -> Problem:
    """Makes a problem with the severity of its code. The word RUN in the hint is replaced by the run's id."""
    return Problem(code, SEVERITIES[code].value, message, repair_hint if run_id is None else re.sub(r"\bRUN\b", lambda _: run_id, repair_hint), run_id)


def unknown_trigger(name: str, table: str, drop: str) -> Problem:
    """Returns the problem of a trigger or rule on a table of the store that Holdfast did not create. No record tells what it did or will do."""
    way_out = f"make sure that it only reads, or remove it: {drop}; then look for what it did: holdfast check"
    return problem("trigger_unknown", f"{name} on the table {table} is not Holdfast's; it may change or delete records of the store", way_out)


def record_problem(error: RecordDamaged) -> Problem:
    """Returns the problem of a record beside the log that is missing or altered. On a damaged page the kind can be anything; an unknown code becomes ``record_unreadable``."""
    return problem(error.code if error.code in SEVERITIES else RecordDamaged.code, error.message, error.hint, error.run_id or None)


RESTORE = "restore a backup"


def name_restore(found: Problem, how: str) -> Problem:
    """Returns the problem; if its hint is to restore a backup, the hint also says how that is done with this store."""
    if RESTORE not in found.repair_hint or how in found.repair_hint:
        return found
    return msgspec.structs.replace(found, repair_hint=found.repair_hint.replace(RESTORE, f"{RESTORE} ({how})"))


def ok(problems: Iterable[Problem]) -> bool:
    """Whether a check passes: none of the problems is an error (§12.1)."""
    return not any(p.severity == Severity.ERROR for p in problems)


class Diagnosis:
    """The examination of one run. Feed its log oldest first, then ask for the ``problems``. ``blobs`` are the large results that
    the run refers to, with what refers to each; ``queued``: how many of its intents of each type wait to be sent; ``not_configured``: how many
    of its intents had a sender that lacked something, by type, what was lacking, and the hint. ``lost``: the effects whose records are missing or older than
    the log; ``lost_codes``: the codes of missing records that the log mentions; ``request``: the run's request key, and the time of the request.

    Args:
        run_id: the run.
        row: the run's row as loaded; the error that loading it raised; or None if there is no row.
        lease: its operational columns, None if there are no leases.
        now: the store's clock, microseconds since 1970.
    """

    def __init__(self, run_id: str, row: Run | HoldfastError | None, lease: Lease | None, now: int) -> None:
        self.run_id = run_id
        self.row = row
        self.lease = lease
        self.now = now
        self.folded: Run | None = None
        self.blind = False
        self._seq = 0
        self._chain: bytes | None = b""
        self._head: bytes | None = b""
        self._saved = 0
        self._wanted = ids.checkpoint_seq(run_id, row.checkpoint_head) if isinstance(row, Run) and row.checkpoint_head else None
        self._met_head = False
        self.carries: tuple[Carry, ...] = ()
        self._halt: Decision | None = None
        self.blobs: dict[str, str] = {}
        self.queued: Counter[str] = Counter()
        self.not_configured: Counter[tuple[str, str, str]] = Counter()
        self._found: list[Problem] = []
        self._counts: dict[str, int] = {}
        self._keys: set[str] = set()
        self._acts: dict[str, tuple[ev.EffectFact, int]] = {}
        self._sends: dict[str, str] = {}
        self._entries: Counter[tuple[str, str]] = Counter()
        self._signals: dict[str, int] = {}
        self._answers: dict[str, int] = {}
        self.request: tuple[str, int] | None = None
        self.lost: set[str] = set()
        self.lost_codes: set[str] = set()

    # -- feeding ------------------------------------------------------------------------------------

    def feed(self, row: codec.Row) -> None:
        """Takes one row of the log, in order."""
        if self._chain is not None and canon.chain(self._chain, row.data) != row.hash:
            self._note("event_chain_broken", f"the commit that ends with event {row.seq} does not follow from the one before", _LOOK)
        self._chain = row.hash
        try:
            record = codec.open_row(row)
        except StoreError as e:
            self._note("event_unreadable", f"event {row.seq}: {e.message}", _LOOK)
            self.blind = True
            self._head = None
            self._seq = max(self._seq, row.seq)
            return
        shut = self._is_sealed(row, record)
        first = row.seq - len(record.events) + 1
        if first > self._seq + 1:
            self._note("event_seq_gap", f"the events {self._seq + 1} to {first - 1} are missing", _LOOK)
            self._head = None
        elif first <= self._seq:
            self._note("event_seq_duplicate", f"event {first} is there twice", _LOOK)
        self._seq = max(self._seq, row.seq)
        for event in record.events:
            self._event(event)
        self._refers(blobs.name_blobs(record.results))
        self._checkpoint(record, shut)

    def _is_sealed(self, row: codec.Row, record: codec.Record) -> bool:
        """Whether the record's delta needs a key that is not available; notes all missing keys of the record."""
        if envelopes.MARK not in row.data:
            return False
        for event in record.events:
            if not isinstance(event.fact, ev.Unknown):
                self._keys.update(payloads.keys_of(event.fact))
        self._keys.update(payloads.keys_of(record.results))
        lacking = () if record.delta is None else payloads.keys_of(record.delta)
        self._keys.update(lacking)
        return bool(lacking)

    def feed_whole(self, whole: Checkpoint) -> None:
        """Takes a whole checkpoint that the store keeps beside the log, directly after the row with which it was saved."""
        if whole.seq != self._saved:
            self._note("checkpoint_orphaned", f"the checkpoint {whole.checkpoint_id} is not recorded by any event", _LOOK)
        elif self._head is not None and whole.hash != self._head:
            self._note("checkpoint_hash_mismatch", f"{whole.checkpoint_id} does not match the hash in its event", _LOOK)

    def feed_lender(self, carry: Carry, hash: bytes | None) -> None:
        """Takes the chain hash, at the carried event, of another run whose values this run carries; None if that log is missing (§4.15)."""
        what = f"{', '.join(carry.channels)} came from {carry.run_id}"
        if hash is None:
            self._note("checkpoint_head_missing", f"{what}, whose log up to event {carry.seq} is missing", _LOOK)
        elif hash != carry.hash:
            self._note("checkpoint_hash_mismatch", f"{what}, whose log up to event {carry.seq} is not what it was", _LOOK)

    def feed_effect(self, effect: Effect) -> None:
        """Takes an effect record of the run."""
        self._refers(blobs.name_blobs((), [effect]))
        fact, at = self._acts.pop(effect.effect_id, (None, 0))
        if fact is not None and effect.status in OPEN and type(fact) not in _OPENED and effect.attempted_at <= at:
            self.lost.add(effect.effect_id)
            self._note("effect_record_altered", f"the effect record {effect.effect_id} says {effect.status}, which is older than the log, where it was followed by {fact.wire}", _AGAIN)
            return
        in_flight = self.lease is not None and self.lease.live(self.now) and self.lease.fence == effect.fence
        if effect.status is EffectStatus.ATTEMPTED and not in_flight and place_of(effect.owner) is None:
            self._note(
                "effect_attempted_without_result",
                f"{effect.capability or 'an effect'} of {effect.task} was attempted, and its outcome is not recorded ({effect.effect_id})",
                "find out whether it happened; then resume the run, and if it asks, answer it: holdfast explain RUN shows the commands",
            )

    def feed_intent(self, intent: Intent) -> None:
        """Takes an intent of the run."""
        self._sends.pop(intent.intent_id, None)
        answered = self._answers.get(f"intent:{intent.intent_id}") or self._answers.get(f"{intent.key}:word")
        if answered is not None and intent.state not in (IntentState.SENT, IntentState.ABANDONED):  # its answer was put into the inbox by the commit that settled it, and nothing reopens it
            said = f"the record of the intent {intent.intent_id} says {intent.state}, which is older than the log, where event {answered} is its answer"
            self._note("intent_record_altered", said, "before a dispatcher sends it again, settle it as it was: holdfast settle INTENT --as sent, or --as abandoned; or restore a backup")
            return
        if intent.state == "queued":
            self.queued[intent.type] += 1
        if (lacking := intent.not_configured) is not None:
            self.not_configured[intent.type, lacking.message, lacking.hint] += 1
        if intent.state == "sending" and (intent.lease_until is None or intent.lease_until <= self.now):
            self._note(
                "intent_sending_stale", f"{intent.intent_id} was being sent when its dispatcher died", "a dispatcher or a worker that sends this type takes it over when that lease has expired; to start one: holdfast dispatch --transports TARGET"
            )

    def feed_entry(self, topic: str, key: str) -> None:
        """Takes a ledger row that the run wrote."""
        self._entries[topic, key] -= 1

    def feed_command(self, key: str) -> None:
        """Takes the key of an item of the run's inbox, taken or not."""
        self._signals.pop(key, None)

    def tells_of_entries(self) -> bool:
        """Whether the log mentions ledger rows."""
        return bool(self._entries)

    def tells_of_signals(self) -> bool:
        """Whether the log mentions signals, which came through the inbox. Without its row the inbox of a run is not found."""
        return bool(self._signals) and self.row is not None

    def miss_claim(self) -> None:
        """Notes that the claim of the run's request key is missing."""
        if self.request is not None:
            self._miss("claim", f"the log tells that the run was asked for under the key {self.request[0]!r}")

    def miss_records(self) -> None:
        """Notes the records that the log mentions and that were not fed (§12.1). The log shows this even if a record was lost together with its voucher."""
        for effect_id, (fact, _) in self._acts.items():
            self.lost.add(effect_id)
            self._note("effect_record_missing", f"the log tells of the effect {effect_id} ({fact.wire}), but its record is missing", _AGAIN)
        for intent_id, type in self._sends.items():
            self._miss("intent", f"the log tells of the intent {intent_id} of type {type!r}")
        for (topic, key), count in self._entries.items():
            if count > 0:
                self._miss("ledger", f"the log tells of {count} more ledger row(s) of the topic {topic!r} with the key {key!r}")
        for signal, seq in self._signals.items() if self.tells_of_signals() else ():
            self._miss("inbox", f"the log tells of {signal} (event {seq})")

    def _miss(self, kind: str, told: str) -> None:
        self.lost_codes.add(f"{kind}_record_missing")
        self._note(f"{kind}_record_missing", f"{told}, but the record is missing", _ACCEPT)

    def _expect(self, event: ev.Event) -> None:
        """Notes which records a fact mentions. An effect counts only if its id begins with the run's id: the effects of other runs have their records there."""
        match event.fact:
            case ev.EffectFact(effect_id=effect_id) as fact if effect_id.startswith(f"{self.run_id}.") and not isinstance(fact, ev.SideEffectReused):
                self._acts[effect_id] = (fact, event.at)
            case ev.IntentEnqueued(intent_id=intent_id, intent_type=type):
                self._sends[intent_id] = type
            case ev.LedgerAppended(topic=topic, key=key):
                self._entries[topic, key] += 1
            case ev.SignalReceived(name=name, key=key, actor=actor):
                self._signals[f"signal:{name}:{key}"] = event.seq
                if actor.startswith("intent:"):
                    self._answers[actor] = event.seq
                elif name.startswith(TYPE) and key.endswith(":word"):  # a person has answered a tool's request
                    self._answers[key] = event.seq
            case ev.RunSubmitted(request_key=str(key)):
                self.request = (key, event.at)
            case ev.StateRepaired(code="inbox_record_missing"):
                self._signals.clear()
            case ev.StateRepaired(code="claim_record_missing"):
                self.request = None
            case ev.StateRepaired(code="intent_record_missing"):  # a person has accepted the loss of all until then
                self._sends.clear()
            case ev.StateRepaired(code="ledger_record_missing"):
                self._entries.clear()

    def _refers(self, found: Mapping[str, str]) -> None:
        for digest, what in found.items():
            self.blobs.setdefault(digest, what)

    def _event(self, event: ev.Event) -> None:
        fact = event.fact
        if isinstance(fact, ev.StepEnded) and not completes(fact.outcome):
            self._note(
                "completed_step_without_success_outcome",
                f"event {event.seq} completes {fact.task}, but with the outcome {fact.outcome!r}, which does not complete a step",
                _LOOK,
            )
        self._watch_halt(fact)
        self._expect(event)
        if self.blind:
            return
        try:
            self.folded = fold(self.folded, event)
        except HoldfastError as e:
            self._note("event_unreadable", f"the event {event.seq} ({event.type}) is not possible at this place of the log: {e.message}", _LOOK)
            self.blind = True

    def _watch_halt(self, fact: ev.Fact | ev.Unknown) -> None:
        """Remembers a halt that was decided and is not carried out yet (T-23)."""
        if isinstance(fact, ev.WaitDecided) and fact.decision.action in HALTING and fact.decision.resume and self._halts(fact.decision):
            self._halt = fact.decision
        elif isinstance(fact, ev.RunCanceled | ev.RunCompleted | ev.RunFailed):
            self._halt = None

    def _halts(self, decision: Decision) -> bool:
        """Whether a decision halts the run. A denial does, unless the wait delivers it to the node (§5.5)."""
        if decision.action == HALT or self.folded is None:
            return decision.action == HALT
        return any(w.wait_id == decision.wait_id and find_halt(w, decision) is not None for w in self.folded.waits)

    def _checkpoint(self, record: codec.Record, shut: bool) -> None:
        vouched = voucher(record.events)
        if vouched is None:
            if record.delta is not None:
                self._note("checkpoint_orphaned", f"the checkpoint saved with event {record.seq} is not recorded by any event", _LOOK)
            return
        stated: bytes = vouched.fact.hash  # type: ignore[union-attr]
        self._saved = vouched.seq
        if record.delta is not None and record.delta.carries:
            self.carries = record.delta.carries
        if record.delta is None:
            if vouched.seq == self._wanted:
                self._note("checkpoint_head_missing", f"the head {ids.checkpoint_id(self.run_id, vouched.seq)} is not in the log", _LOOK)
                self._met_head = True
        else:
            self._met_head = self._met_head or vouched.seq == self._wanted
            if self._head is not None and not shut and canon.chain(self._head, record.delta_bytes) != stated:
                name = ids.checkpoint_id(self.run_id, vouched.seq)
                self._note("checkpoint_hash_mismatch", f"{name} does not match the hash in event {vouched.seq}", _LOOK)
        self._head = stated

    def add(self, found: Problem) -> None:
        """Adds a problem that the caller found while it read the rows."""
        self._note(found.code, found.message, found.repair_hint)

    def _note(self, code: str, message: str, hint: str = "") -> None:
        count = self._counts[code] = self._counts.get(code, 0) + 1
        if count <= PER_CODE:
            self._found.append(problem(code, message, hint, self.run_id))

    # -- the verdict --------------------------------------------------------------------------------

    def problems(self) -> list[Problem]:
        """Returns all problems, in the order in which they were found. A second call returns the same."""
        more = [
            problem(code, f"and {count - PER_CODE} more of these", "", self.run_id)
            for code, count in self._counts.items()
            if count > PER_CODE
        ]
        return [*self._found, *more, *self._against_row(), *self._unread()]

    def _unread(self) -> list[Problem]:
        """Returns a problem if payloads could not be read (§14.5). The chain, the event numbers and the statuses were checked all the same."""
        if not self._keys:
            return []
        keys = ", ".join(sorted(self._keys))
        return [self._say("payload_sealed", f"payloads under the key {keys} could not be read; all else was checked", "give that key too, as a line of the file that $HOLDFAST_KEYS names; then check again: holdfast check RUN")]

    def _against_row(self) -> list[Problem]:
        row = self.row
        if row is None:
            return [self._say("run_row_missing", "the run has events and no row", _REBUILD)] if self._seq else []
        if isinstance(row, UnknownStatus) or (isinstance(row, Run) and not isinstance(row.status, Status)):
            word = row.message if isinstance(row, UnknownStatus) else f"the row's status is {row.status!r}"
            return [self._say("unknown_status", word, _LOOK)]
        if isinstance(row, HoldfastError):
            return [self._say("snapshot_field_drift", f"the run row cannot be read: {row.message}", _REBUILD)]
        found = [] if self._seq else [self._say("event_seq_gap", "the run has a row and no events", _LOOK)]
        if row.checkpoint_head and not self._met_head:
            found.append(self._say("checkpoint_head_missing", f"the head {row.checkpoint_head} is not in the log", _LOOK))
        return [*found, *self._handoff(row), *self._drift(row), *self._holder(row)]

    def _say(self, code: str, message: str, hint: str = "") -> Problem:
        return problem(code, message, hint, self.run_id)

    def _handoff(self, row: Run) -> list[Problem]:
        """Returns the problems of §12.2 that a handoff can have."""
        found = []
        if self._halt is not None and row.status not in TERMINAL and not self._busy():
            message = f"{self._halt.actor} decided {self._halt.action} on {self._halt.wait_id} and the run is not halted"
            found.append(self._say("halt_decision_without_halted_meta", message, _HALT))
        handoff = row.active_handoff
        if handoff is None:
            return found
        if row.status in (Status.COMPLETED, Status.CANCELED):
            return [*found, self._say("terminal_with_stale_handoff", f"the run has ended, but still has the open handoff {handoff}", _CLEAR)]
        if not self.blind and (self.folded is None or handoff not in self.folded.seen_handoffs):
            return [*found, self._say("meta_handoff_without_event", f"no event ever requested the handoff {handoff}", _LOOK)]
        if condition(row, self.lease, self.now) is Condition.INTERRUPTED:
            message = f"the run was interrupted with the handoff {handoff} undecided"
            return [*found, self._say("interrupted_with_active_handoff", message, "decide it first: holdfast waits RUN shows the commands")]
        return [*found, self._say("active_handoff_without_decision", f"the handoff {handoff} waits for its decision", "holdfast waits RUN shows the commands that decide it")]

    def _busy(self) -> bool:
        """Whether a live owner may be about to finish what the log shows half done."""
        return self.lease is not None and self.lease.live(self.now)

    def _drift(self, row: Run) -> list[Problem]:
        folded = self.folded
        if self.blind or folded is None:
            if row.status in TERMINAL and not self._seq:
                return [self._say("terminal_snapshot_without_event", f"the row says {row.status} and there are no events", _LOOK)]
            return []
        if row.status is not folded.status:
            said = f"the row says {row.status}, the events say {folded.status}"
            if folded.terminal and not row.terminal:
                return [self._say("terminal_event_without_terminal_snapshot", said, _REBUILD)]
            if row.terminal and not folded.terminal:
                return [self._say("terminal_snapshot_without_event", said, _LOOK)]
            return [self._say("snapshot_status_drift", said, _REBUILD)]
        names = drift(row, folded)
        if row.status in (Status.COMPLETED, Status.CANCELED) and row.active_handoff is not None:
            names = [n for n in names if n not in ("active_handoff", "waits")]  # reported under a code of its own
        if self._halt is None and asleep(folded, self.lease):
            names.append("due")
        if not names:
            return []
        return [self._say("snapshot_field_drift", f"the row differs from the events in {', '.join(names)}", _REBUILD)]

    def _holder(self, row: Run) -> list[Problem]:
        lease = self.lease
        if lease is None or lease.owner is None or row.status not in LIVE or lease.live(self.now):
            return []
        return [
            self._say(
                "lease_expired_running",
                f"the process {lease.owner}, which executed the run, has died or lost its lease",
                "a running worker takes it over; to resume it yourself, see: holdfast explain RUN",
            )
        ]


def drift(row: Run, folded: Run) -> list[str]:
    """Returns the fields in which a run's row differs from the fold of its events."""
    names = [n for n in Run.__struct_fields__ if getattr(row, n) != getattr(folded, n)]
    if names and (payloads.has_sealed(row) or payloads.has_sealed(folded)):  # encrypting the same payload twice gives different bytes
        row, folded = payloads.blank(row), payloads.blank(folded)
        names = [n for n in names if getattr(row, n) != getattr(folded, n)]
    return names


def asleep(run: Run, lease: Lease | None) -> bool:
    """Whether a run at rest has a deadline or an answer, but its row has no due time: its wake-up was lost (§5.10, §10.16)."""
    if lease is None or lease.owner is not None or lease.due is not None or run.status not in WAITING or run.interrupted_at is not None:
        return False
    return run.wake_at is not None or any(d.resume for d in run.decisions)


def diagnose(
    run_id: str,
    row: Run | HoldfastError | None,
    lease: Lease | None,
    now: int,
    rows: Iterable[codec.Row],
    *,
    wholes: Iterable[Checkpoint] = (),
    effects: Iterable[Effect] = (),
    intents: Iterable[Intent] = (),
) -> list[Problem]:
    """Returns everything that is wrong with one run. ``rows`` and ``wholes`` are ordered oldest first; each may be a generator."""
    diagnosis = Diagnosis(run_id, row, lease, now)
    kept = iter(wholes)
    whole = next(kept, None)
    for log_row in rows:
        diagnosis.feed(log_row)
        while whole is not None and whole.seq <= log_row.seq:
            diagnosis.feed_whole(whole)
            whole = next(kept, None)
    while whole is not None:
        diagnosis.feed_whole(whole)
        whole = next(kept, None)
    for effect in effects:
        diagnosis.feed_effect(effect)
    for intent in intents:
        diagnosis.feed_intent(intent)
    return diagnosis.problems()


__all__ = ["SEVERITIES", "Diagnosis", "Problem", "Severity", "asleep", "diagnose", "drift", "name_restore", "ok", "problem", "record_problem"]

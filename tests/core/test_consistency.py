"""What is wrong with a run, by name (§12)."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest

from holdfast.core import canon, codec, envelopes
from holdfast.core import events as ev
from holdfast.core.blobs import blob_of
from holdfast.core.checkpoint import Carry, Delta, StepRecord
from holdfast.core.codec import Row
from holdfast.core.consistency import (
    PER_CODE,
    SEVERITIES,
    Diagnosis,
    asleep,
    diagnose,
    drift,
    name_restore,
    ok,
    problem,
    record_problem,
    unknown_trigger,
)
from holdfast.core.effects import Effect, EffectClass, EffectStatus
from holdfast.core.envelopes import Envelope, Header
from holdfast.core.errors import ErrorValue, EventUnreadable, HoldfastError, RecordDamaged, UnknownStatus
from holdfast.core.intents import Delivery, Ended, Intent, IntentState
from holdfast.core.lease import Alive, Lease, Release
from holdfast.core.run import Run, Versions
from holdfast.core.status import Status
from holdfast.core.vouch import KINDS
from holdfast.core.waits import WaitKind
from holdfast.ports import Problem
from tests.core.build import RUN, Log, decided, raw, wait

NOW = 10**9
HELD = Lease(fence=1, owner="me", expires_at=NOW + 1, owner_alive=Alive.YES)
EXPIRED = Lease(fence=1, owner="me", expires_at=NOW)
FREE = Lease(fence=1)
HANDOFF = wait(WaitKind.HANDOFF, "h1", available_actions=("continue", "halt"))


def running() -> Log:
    log = Log().commit(ev.RunStarted(), ev.StepStarted(1, "a"), ev.CheckpointSaved(b""), delta=Delta(step=0))
    return log.commit(ev.StepCompleted(1, "a"), ev.StepStarted(2, "b"), delta=Delta(step=1))


def completed() -> Log:
    return running().commit(ev.StepCompleted(2, "b"), ev.RunCompleted(raw(1)), delta=Delta(step=2), lease=Release())


def asking() -> Log:
    return running().commit(ev.WaitRequested(HANDOFF), ev.CheckpointSaved(b""), ev.RunWaitingForHuman(), delta=Delta(step=1), lease=Release())


def codes(log: Log, row: Run | HoldfastError | str | None = "own", lease: Lease | None = FREE, **more: Any) -> list[str]:
    rows = more.pop("rows", log.rows)
    given = log.run if row == "own" else row
    assert not isinstance(given, str)
    return [p.code for p in diagnose(RUN, given, lease, NOW, rows, **more)]


def row(log: Log, **changes: Any) -> Run:
    assert log.run is not None
    return msgspec.structs.replace(log.run, **changes)


def test_a_run_is_held_against_the_log_it_carries_on_from() -> None:
    """§4.15: the log that its first checkpoint names is there, and is the one it names."""
    carry = Carry("before", 7, b"h", ("out", "log"))
    log = Log().commit(ev.RunStarted(), ev.StepStarted(1, "a"), ev.CheckpointSaved(b""), delta=Delta(step=0, carries=(carry,)))
    log.commit(ev.StepCompleted(1, "a"), ev.StepStarted(2, "b"), delta=Delta(step=1))

    def fed(hash: bytes | None) -> list[Problem]:
        diagnosis = Diagnosis(RUN, log.run, FREE, NOW)
        for each in log.rows:
            diagnosis.feed(each)
        assert diagnosis.carries == (carry,)
        diagnosis.feed_lender(carry, hash)
        return diagnosis.problems()

    assert fed(b"h") == []
    (gone,), (other,) = fed(None), fed(b"g")
    assert (gone.code, other.code) == ("checkpoint_head_missing", "checkpoint_hash_mismatch")
    for found in (gone, other):
        assert "out, log came from before, whose log up to event 7 is " in found.message
        assert found.repair_hint.startswith("diagnosis only")
    plain = Diagnosis(RUN, running().run, FREE, NOW)
    for each in running().rows:
        plain.feed(each)
    assert plain.carries == ()


def test_a_healthy_run_has_no_problem() -> None:
    """§12.1."""
    assert codes(running(), lease=HELD) == []
    assert codes(completed()) == []
    halted = asking().commit(ev.WaitDecided(decided("halt", "h1")), ev.RunCanceled("halted", settled=True), lease=Release())
    assert codes(halted) == []


def test_every_code_has_a_severity_and_ports_share_the_value() -> None:
    """§12.1 and §12.2: two for each kind of record beside the log, one for what can only be lost, and the rest by name."""
    assert {"carry_record_missing", "blob_use_record_missing"} < SEVERITIES.keys()
    assert len(SEVERITIES) == 32 + 2 + 2 * len(KINDS)
    assert Problem("snapshot_field_drift", "error", "m") == problem("snapshot_field_drift", "m")
    assert ok([problem("active_handoff_without_decision", "m"), problem("lease_expired_running", "m")])
    assert not ok([problem("unknown_status", "m")])


def test_what_a_run_refers_to_is_known_afterwards() -> None:
    """§6.4: for whoever can look whether it is there; the first that refers to it is told."""
    one, two = blob_of(raw("one")), blob_of(raw("two"))
    step = StepRecord("a", "0", "fetch", value=one.reference)
    log = running().commit(ev.NoteAdded("n"), results=(step, msgspec.structs.replace(step, name="again")), blobs=(one,))
    done = Effect(
        effect_id="e1", run_id=RUN, lineage_root=RUN, step=1, task="a", path="1", attempt=1, capability="post", effect_class=EffectClass.WRITE,
        key="k", status=EffectStatus.RECORDED, result=two.reference,
    )
    diagnosis = Diagnosis(RUN, log.run, HELD, NOW)
    assert diagnosis.blobs == {}
    for row in log.rows:
        diagnosis.feed(row)
    diagnosis.feed_effect(done)
    diagnosis.feed_effect(msgspec.structs.replace(done, result=one.reference))
    assert diagnosis.blobs == {one.digest: "the result of fetch in a", two.digest: "the result of post (e1)"}
    with pytest.raises(AssertionError, match="does not contain"):
        running().commit(ev.NoteAdded("n"), results=(step,), blobs=(two,))


# -- the log ----------------------------------------------------------------------------------------


def test_a_gap_a_duplicate_and_a_break() -> None:
    """T-16, X-01."""
    log = completed()
    missing = codes(log, rows=[r for i, r in enumerate(log.rows) if i != 2])
    assert missing[:2] == ["event_chain_broken", "event_seq_gap"]
    assert "event_seq_duplicate" in codes(log, rows=[*log.rows[:2], log.rows[1], *log.rows[2:]])
    edited = Row(log.rows[1].seq, log.rows[1].data.replace(b"\xa1a", b"\xa1z"), log.rows[1].hash)
    assert codes(log, rows=[log.rows[0], edited, *log.rows[2:]])[0] == "event_chain_broken"


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_an_unreadable_commit_is_named_and_blinds_the_fold(cut: int) -> None:
    """T-16: it never raises, and compares nothing it cannot know."""
    log = completed()
    torn = Row(log.rows[2].seq, log.rows[2].data[:cut], canon.chain(log.rows[1].hash, log.rows[2].data[:cut]))
    found = codes(log, rows=[*log.rows[:2], torn, log.rows[3]])
    assert found == ["event_unreadable", "event_chain_broken"]
    assert codes(log, row(log, active_handoff="ghost", status=Status.RUNNING), rows=[*log.rows[:2], torn]) == [
        "event_unreadable", "checkpoint_head_missing", "active_handoff_without_decision",
    ]


def test_events_that_cannot_follow_each_other_are_named() -> None:
    log = completed()
    extra = _sealed(log, ev.RunWaitingForHuman())
    assert codes(log, rows=[*log.rows, extra]) == ["event_unreadable"]


def _sealed(log: Log, *facts: ev.Fact, delta: bytes | None = None) -> Row:
    assert log.tip is not None
    data = msgspec.msgpack.encode([codec.FORMAT, 1, 1, "a", facts, delta, []])
    return Row(log.tip.seq + len(facts), data, canon.chain(log.tip.hash, data))


def test_an_outcome_that_completes_nothing_is_named() -> None:
    """T-12, §4.11."""
    log = running().commit(ev.StepCompleted(2, "b", outcome="halted: no"), delta=Delta(step=2))
    assert codes(log, lease=HELD) == ["completed_step_without_success_outcome"]


def test_problems_of_a_kind_are_counted_not_listed_without_end() -> None:
    log = running()
    for i in range(PER_CODE + 5):
        log.commit(ev.StepCompleted(i, "b", outcome="nope"))
    diagnosis = Diagnosis(RUN, log.run, HELD, NOW)
    for r in log.rows:
        diagnosis.feed(r)
    found = diagnosis.problems()
    assert len(found) == PER_CODE + 1
    assert found[-1].message == "and 5 more of these"
    assert diagnosis.problems() == found


def test_memory_does_not_grow_with_the_log() -> None:
    """§12.1: streaming; a thousand commits need no more than the interpreter's own caches."""
    log, diagnosis = running(), Diagnosis(RUN, None, FREE, NOW)
    for row_ in log.rows:
        diagnosis.feed(row_)

    def peak(commits: int) -> int:
        tracemalloc.start()
        for i in range(commits):
            log.commit(ev.StepCompleted(i, "b"), ev.StepStarted(i + 1, "b"), delta=Delta(step=i + 2))
            diagnosis.feed(log.rows.pop())
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    few, many = (min(peak(n) for _ in range(3)) for n in (500, 1_500))  # the least: a thread of whatever runs the tests may have something to do meanwhile
    assert many < max(few, 150_000)
    assert diagnosis.folded == log.run
    assert [p.code for p in diagnosis.problems()] == ["run_row_missing"]


# -- checkpoints ------------------------------------------------------------------------------------


def test_checkpoints_that_do_not_fit() -> None:
    """§4.5, §1.8."""
    log = running()
    assert log.run is not None
    wrong = _sealed(log, ev.StepCompleted(2, "b", hash=b"x" * 16), delta=codec.encode_delta(Delta(step=2)))
    assert "checkpoint_hash_mismatch" in codes(log, rows=[*log.rows, wrong], lease=HELD)
    orphan = _sealed(log, ev.NoteAdded("x"), delta=codec.encode_delta(Delta(step=2)))
    assert "checkpoint_orphaned" in codes(log, rows=[*log.rows, orphan], lease=HELD)
    bare = _sealed(log, ev.StepCompleted(2, "b", hash=b"x" * 16))
    assert codes(log, row(log, version=log.run.version + 1, checkpoint_head=f"{RUN}.c{bare.seq}"), rows=[*log.rows, bare], lease=HELD) == [
        "checkpoint_head_missing"
    ]
    assert codes(log, rows=[*log.rows, bare], lease=HELD) == ["snapshot_field_drift"]
    assert codes(log, row(log, checkpoint_head=f"{RUN}.c999"), lease=HELD) == ["checkpoint_head_missing", "snapshot_field_drift"]
    assert "checkpoint_head_missing" in codes(log, row(log, checkpoint_head="other.c1"), lease=HELD)


def test_whole_checkpoints_are_held_against_their_events() -> None:
    log = running()
    assert codes(log, wholes=[log.checkpoint], lease=HELD) == []
    assert codes(log, wholes=[msgspec.structs.replace(log.checkpoint, hash=b"other")], lease=HELD) == ["checkpoint_hash_mismatch"]
    assert codes(log, wholes=[msgspec.structs.replace(log.checkpoint, seq=6)], lease=HELD) == ["checkpoint_orphaned"]
    assert codes(log, wholes=[msgspec.structs.replace(log.checkpoint, seq=99)], lease=HELD) == ["checkpoint_orphaned"]


# -- the run row ------------------------------------------------------------------------------------

OTHER: dict[str, Any] = {
    "error": ErrorValue("E", "m"), "versions": Versions("x"), "waits": (HANDOFF,), "decisions": (decided("halt"),), "waivers": (decided("halt"),),
    "tags": ("x",), "seen_handoffs": ("x",), "result": raw("other"), "settled": True, "unattended": True,
}


@pytest.mark.parametrize("name", [n for n in Run.__struct_fields__ if n not in ("status", "checkpoint_head", "active_handoff")])
def test_every_field_that_drifts_is_named(name: str) -> None:
    """T-19, §12.2."""
    log = completed()
    assert log.run is not None
    value = getattr(log.run, name)
    other = OTHER[name] if name in OTHER else (value or 0) + 1 if isinstance(value, int | None) and not isinstance(value, bool) else "other"
    changed = row(log, **{name: other})
    assert codes(log, changed) == ["snapshot_field_drift"]
    assert drift(changed, log.run) == [name]


def test_a_status_that_drifts() -> None:
    """T-19, T-20: a crash between the events and the row."""
    done, live = completed(), running()
    assert codes(done, row(done, status=Status.RUNNING)) == ["terminal_event_without_terminal_snapshot"]
    assert codes(live, row(live, status=Status.FAILED)) == ["terminal_snapshot_without_event"]
    assert codes(live, row(live, status=Status.PENDING)) == ["snapshot_status_drift"]
    assert codes(live, None) == ["run_row_missing"]
    assert codes(live, None, rows=[]) == []
    assert codes(done, rows=[]) == ["event_seq_gap", "checkpoint_head_missing", "terminal_snapshot_without_event"]


def test_a_row_that_cannot_be_read() -> None:
    """T-52, §2.6: named, never coerced."""
    log = running()
    assert codes(log, UnknownStatus("'paused' is not a status")) == ["unknown_status"]
    assert codes(log, row(log, status="paused")) == ["unknown_status"]
    assert codes(log, EventUnreadable("the run row cannot be decoded")) == ["snapshot_field_drift"]


def test_an_expired_lease() -> None:
    """§2.9, §12.2."""
    assert codes(running(), lease=EXPIRED) == ["lease_expired_running"]
    assert codes(running(), lease=None) == []
    assert codes(completed(), lease=EXPIRED) == []


# -- handoffs ---------------------------------------------------------------------------------------


def test_a_halt_that_was_decided_and_not_carried_out() -> None:
    """T-23."""
    log = asking().commit(ev.WaitDecided(decided("halt", "h1")))
    assert codes(log) == ["halt_decision_without_halted_meta"]
    assert codes(log, lease=HELD) == [], "somebody alive may be about to carry it out"
    held_back = asking().commit(ev.WaitDecided(decided("halt", "h1", resume=False)))
    assert codes(held_back) == []
    denied = running().commit(ev.WaitRequested(wait()), ev.RunWaitingForHuman()).commit(ev.WaitDecided(decided("deny")))
    assert codes(denied) == ["halt_decision_without_halted_meta"]
    delivered = running().commit(ev.WaitRequested(wait(on_deny="deliver")), ev.RunWaitingForHuman()).commit(ev.WaitDecided(decided("deny")))
    assert codes(delivered, lease=Lease(fence=1, due=NOW)) == []
    failed = running().commit(ev.WaitRequested(HANDOFF), ev.RunFailed("x", ErrorValue("E", "m"))).commit(ev.WaitDecided(decided("halt", "h1")))
    assert codes(failed) == [], "a failed run only records it (§5.4)"


def test_a_denial_nobody_asked_for_halts_nothing() -> None:
    found = Diagnosis(RUN, None, None, NOW)
    found.feed(_sealed(running(), ev.WaitDecided(decided("deny"))))
    assert "halt_decision_without_halted_meta" not in [p.code for p in found.problems()]


def test_a_handoff_left_on_an_ended_run() -> None:
    """T-21, §5.14."""
    log = completed()
    assert codes(log, row(log, active_handoff="h1", waits=(HANDOFF,))) == ["terminal_with_stale_handoff"]
    assert codes(log, row(log, active_handoff="h1", tags=("x",))) == ["terminal_with_stale_handoff", "snapshot_field_drift"]


def test_a_handoff_that_no_event_requested() -> None:
    """T-15: history survives the clearing, so two handoffs and a halt are no misfire."""
    log = running()
    assert codes(log, row(log, active_handoff="ghost"), lease=HELD) == ["meta_handoff_without_event", "snapshot_field_drift"]
    second = wait(WaitKind.HANDOFF, "h2", available_actions=("halt",))
    twice = asking().commit(ev.WaitDecided(decided("continue", "h1")), ev.RunResumed("decision"))
    twice.commit(ev.WaitRequested(second), ev.RunWaitingForHuman())
    assert codes(twice) == ["active_handoff_without_decision"]
    twice.commit(ev.WaitDecided(decided("halt", "h2")), ev.RunCanceled("halted", settled=True), lease=Release())
    assert codes(twice) == []


def test_an_open_handoff_is_information() -> None:
    found = diagnose(RUN, asking().run, FREE, NOW, asking().rows)
    assert [(p.code, p.severity, p.run_id) for p in found] == [("active_handoff_without_decision", "info", RUN)]
    assert ok(found)


def test_a_run_interrupted_with_a_handoff() -> None:
    """T-101."""
    log = running().commit(ev.WaitRequested(HANDOFF))
    assert codes(log, lease=EXPIRED) == ["interrupted_with_active_handoff", "lease_expired_running"]


# -- effects and intents ----------------------------------------------------------------------------


def test_an_effect_without_its_result() -> None:
    """T-39, §6.5."""
    effect = Effect(
        effect_id="e", run_id=RUN, lineage_root=RUN, step=1, task="a", path="", attempt=1, capability="mail", effect_class=EffectClass.WRITE, key="k", fence=1
    )
    log = running()
    assert codes(log, effects=[effect], lease=HELD) == [], "in flight under the current fence"
    assert codes(log, effects=[msgspec.structs.replace(effect, fence=0, capability="")], lease=HELD) == ["effect_attempted_without_result"]
    assert codes(log, effects=[effect], lease=EXPIRED) == ["effect_attempted_without_result", "lease_expired_running"]
    assert codes(log, effects=[effect], lease=None) == ["effect_attempted_without_result"]
    for status in (EffectStatus.RECORDED, EffectStatus.UNKNOWN, EffectStatus.FAILED):
        assert codes(log, effects=[msgspec.structs.replace(effect, status=status)]) == []


def test_an_intent_nobody_is_sending_any_more() -> None:
    """§9.4."""
    intent = Intent(intent_id="i", run_id=RUN, type="webhook", payload=raw({}), key="k", state="sending", lease_until=NOW)
    log = running()
    assert codes(log, intents=[intent]) == ["intent_sending_stale"]
    assert codes(log, intents=[msgspec.structs.replace(intent, lease_until=None)]) == ["intent_sending_stale"]
    assert codes(log, intents=[msgspec.structs.replace(intent, lease_until=NOW + 1)]) == []
    assert codes(log, intents=[msgspec.structs.replace(intent, state="queued")]) == []


def test_what_a_reader_has_met_is_told_among_the_rest() -> None:
    """§12.1: a row that could not even be read is a problem like any other, and counted with its kind."""
    found = Diagnosis(RUN, running().run, HELD, NOW)
    for log_row in running().rows:
        found.feed(log_row)
    told = problem("event_unreadable", "the disk says no", "restore a backup", RUN)
    found.add(told)
    assert found.problems() == [told]
    for _ in range(PER_CODE):
        found.add(told)
    assert [p.message for p in found.problems()][-1] == "and 1 more of these"


def due(log: Log, at: int | None, **changes: Any) -> bool:
    return asleep(row(log, **changes), Lease(fence=1, due=at))


def test_a_forgotten_deadline_is_named() -> None:
    """T-33, §5.10: the row's wake-up is a hint; a run at rest that nobody would ever look at again differs from its events."""
    late = running().commit(
        ev.WaitRequested(wait(WaitKind.APPROVAL, "a1", deadline=NOW)), ev.CheckpointSaved(b""), ev.RunWaitingForHuman(), delta=Delta(step=1), lease=Release()
    )
    assert codes(late, lease=Lease(fence=1, due=None)) == ["snapshot_field_drift"]
    assert "in due" in diagnose(RUN, late.run, Lease(fence=1), NOW, late.rows)[0].message
    assert codes(late, lease=Lease(fence=1, due=NOW)) == codes(late, lease=None) == []
    assert due(late, None) and not due(late, 0)
    assert not asleep(row(late), HELD) and not asleep(row(late), None)
    assert not due(late, None, status=Status.RUNNING), "a run that goes on is somebody's"
    assert not due(asking(), None), "nothing wakes it but a person"


def test_a_forgotten_answer_is_named() -> None:
    """§10.16: a decision has queued a resume; one that was not to be resumed has not."""
    given = decided("continue", "h1")
    assert due(asking(), None, decisions=(given,))
    assert not due(asking(), None, decisions=(msgspec.structs.replace(given, resume=False),))


def test_a_sealed_record_with_an_event_of_a_later_release_is_checked_for_the_rest() -> None:
    """§1.8, §14.5: what nobody here knows has no key to ask for; the events beside it name theirs."""
    header = Header(envelopes.VERSION, "k9", b"abcd", "default", RUN, "end.result")
    sealed = envelopes.wrap(Envelope(header, b"n" * 12, b"data"))
    log = Log().commit(ev.RunStarted(), ev.NoteAdded("later"), ev.NoteAdded(envelopes.as_text(sealed)))
    written = msgspec.msgpack.decode(log.rows[-1].data)
    later = [[150, *fact[1:]] if fact[1:2] == ["later"] else fact for fact in written[4]]
    assert later != written[4]
    data = msgspec.msgpack.encode([*written[:4], later, *written[5:]])
    row = Row(log.rows[-1].seq, data, canon.chain(log.rows[-2].hash, data))
    assert log.run is not None
    known = msgspec.structs.replace(log.run, version=log.run.version - 1)  # as it is folded here
    found = diagnose(RUN, known, None, 0, [*log.rows[:-1], row])
    assert [p.code for p in found] == ["payload_sealed"] and "k9" in found[0].message


def test_what_a_sender_lacks_is_counted_by_type() -> None:
    error = ErrorValue("not_configured", "there is no secret", hint="set it")
    tries = (Delivery(1, "d", 0, ended_at=1, outcome=Ended.LATE, error=error),)
    diagnosis = Diagnosis(RUN, running().run, FREE, NOW)
    for given in (Intent(intent_id="i", run_id=RUN, type="mail", payload=b"", key="k", tries=tries), Intent(intent_id="j", run_id=RUN, type="mail", payload=b"", key="l")):
        diagnosis.feed_intent(given)
    assert (diagnosis.queued["mail"], sum(diagnosis.not_configured.values())) == (2, 1)


@pytest.mark.parametrize("kind", ["effecu", "", "\0\0", "inbox\n"])
def test_a_record_of_a_kind_that_nobody_knows_is_a_problem(kind: str) -> None:
    """Point 1 of «Harden»: of a voucher's kind a damaged page may say anything."""
    found = record_problem(RecordDamaged(kind, "r1", "x", missing=True))
    assert (found.code, found.severity, found.run_id) == ("record_unreadable", "error", "r1") and found.repair_hint


# -- the records that the log tells of --------------------------------------------------------------

EFFECT = Effect(
    effect_id=f"{RUN}.1.a.0", run_id=RUN, lineage_root=RUN, step=1, task="a", path="0", attempt=1, capability="mail", effect_class=EffectClass.WRITE, key="k",
    fence=1, attempted_at=1,
)
TELLING: list[tuple[ev.Fact, str, str]] = [
    (ev.SideEffectAttempted(EFFECT.effect_id, "k"), "effect_record_missing", f"the effect {EFFECT.effect_id} (side_effect.attempted)"),
    (ev.SideEffectRecorded(EFFECT.effect_id, "k"), "effect_record_missing", f"the effect {EFFECT.effect_id} (side_effect.recorded)"),
    (ev.IntentEnqueued("i", "mail"), "intent_record_missing", "the intent i of type 'mail'"),
    (ev.LedgerAppended("paid", "k"), "ledger_record_missing", "1 more ledger row(s) of the topic 'paid' with the key 'k'"),
    (ev.SignalReceived("go", "k", raw(1)), "inbox_record_missing", "signal:go:k"),
]
BY_CODE = {code: fact for fact, code, _ in TELLING}


def told_by(*facts: ev.Fact, **submitted: Any) -> Diagnosis:
    """The examination of a run whose log tells of these, one commit each."""
    log = Log(**submitted).commit(ev.RunStarted())
    for fact in facts:
        log.commit(fact)
    diagnosis = Diagnosis(RUN, log.run, HELD, NOW)
    for each in log.rows:
        diagnosis.feed(each)
    return diagnosis


def missed(diagnosis: Diagnosis) -> list[str]:
    diagnosis.miss_records()
    diagnosis.miss_claim()
    return [p.code for p in diagnosis.problems()]


@pytest.mark.parametrize(("fact", "code", "what"), TELLING)
def test_a_record_that_the_log_tells_of_and_is_not_there_is_named(fact: ev.Fact, code: str, what: str) -> None:
    """§12.1: what vouches for a record may be lost with it, and the log is there still."""
    diagnosis = told_by(fact)
    assert missed(diagnosis) == [code]
    (found,) = diagnosis.problems()
    assert what in found.message and found.message.endswith("record is missing") and found.severity == "error" and "RUN" not in found.repair_hint
    own = code == "effect_record_missing"  # it can be recorded again, so it is known by its id; the others are accepted by kind
    assert (diagnosis.lost, diagnosis.lost_codes) == (({EFFECT.effect_id}, set()) if own else (set(), {code}))


def test_a_record_that_is_there_is_not_missed() -> None:
    diagnosis = told_by(*(fact for fact, _, _ in TELLING))
    diagnosis.feed_effect(msgspec.structs.replace(EFFECT, status=EffectStatus.RECORDED))
    diagnosis.feed_intent(Intent(intent_id="i", run_id=RUN, type="mail", payload=b"", key="k"))
    diagnosis.feed_entry("paid", "k")
    diagnosis.feed_command("signal:go:k")
    diagnosis.feed_command("cancel")
    assert missed(diagnosis) == [] and not diagnosis.lost and not diagnosis.lost_codes
    other = told_by(*(fact for fact, _, _ in TELLING))
    other.feed_intent(Intent(intent_id="other", run_id=RUN, type="mail", payload=b"", key="k"))
    other.feed_entry("paid", "other")
    other.feed_command("signal:go:other")
    assert missed(other) == [*BY_CODE], "those of others do not stand for them"


ANSWERS = [
    (ev.SignalReceived("paid", "k", raw({}), "intent:i"), "mail"),
    (ev.SignalReceived("tool@w:1", "k:word", raw({}), "ada"), "tool@w"),
]
"""What answers the intent «i», whose key is «k»: its receiver, or a person in place of a tool's runner."""


@pytest.mark.parametrize(("fact", "type"), ANSWERS)
@pytest.mark.parametrize("state", IntentState)
def test_an_intent_that_is_older_than_its_answer_is_named(fact: ev.Fact, type: str, state: IntentState) -> None:
    """§12.1: it was put back from an older copy together with its voucher. A settled intent is never open again."""
    diagnosis = told_by(fact)
    diagnosis.feed_intent(Intent(intent_id="i", run_id=RUN, type=type, payload=b"", key="k", state=state, lease_until=NOW + 1))
    altered = [p for p in diagnosis.problems() if p.code == "intent_record_altered"]
    assert len(altered) == (state not in (IntentState.SENT, IntentState.ABANDONED))
    assert all("older than the log" in p.message and "holdfast settle" in p.repair_hint for p in altered)


@pytest.mark.parametrize("fact", [ev.SignalReceived("paid", "k", raw({}), "intent:other"), ev.SignalReceived("go", "k:word", raw({}), "ada")])
def test_the_answers_of_others_do_not_make_an_intent_older(fact: ev.Fact) -> None:
    diagnosis = told_by(fact)
    diagnosis.feed_intent(Intent(intent_id="i", run_id=RUN, type="mail", payload=b"", key="k"))
    assert [p for p in diagnosis.problems() if p.code == "intent_record_altered"] == []


@pytest.mark.parametrize(("rows", "more"), [(0, 3), (1, 2), (3, 0), (4, 0)])
def test_rows_of_the_ledger_are_counted_by_topic_and_key(rows: int, more: int) -> None:
    diagnosis = told_by(*[BY_CODE["ledger_record_missing"]] * 3)
    for _ in range(rows):
        diagnosis.feed_entry("paid", "k")
    assert missed(diagnosis) == ["ledger_record_missing"] * (more > 0)
    assert all(f"{more} more ledger row(s)" in p.message for p in diagnosis.problems())


@pytest.mark.parametrize(
    ("facts", "entries", "signals"),
    [((), False, False), ((BY_CODE["ledger_record_missing"],), True, False), ((BY_CODE["inbox_record_missing"],), False, True), ((BY_CODE["intent_record_missing"],), False, False)],
)
def test_what_need_not_be_read_is_known(facts: tuple[ev.Fact, ...], entries: bool, signals: bool) -> None:
    diagnosis = told_by(*facts)
    assert (diagnosis.tells_of_entries(), diagnosis.tells_of_signals()) == (entries, signals)


@pytest.mark.parametrize(
    "fact", [ev.SideEffectReused(EFFECT.effect_id, "k"), ev.SideEffectRecorded("another.1.a.0", "k"), ev.SideEffectUnknown(f"{RUN}x.1.a.0", "k")]
)
def test_an_effect_of_another_run_is_not_expected_here(fact: ev.Fact) -> None:
    """What a run tells of others' effects is theirs to keep."""
    assert missed(told_by(fact)) == []


@pytest.mark.parametrize("code", ["intent_record_missing", "ledger_record_missing", "inbox_record_missing"])
def test_a_loss_that_somebody_has_accepted_is_told_no_more(code: str) -> None:
    """Of that kind, and of what was lost until then."""
    accepted = ev.StateRepaired(code)
    others = [c for c in BY_CODE if c != code]
    assert missed(told_by(*BY_CODE.values(), accepted)) == others
    assert missed(told_by(accepted, *BY_CODE.values())) == [*BY_CODE]
    assert missed(told_by(*BY_CODE.values(), ev.StateRepaired("snapshot_field_drift"))) == [*BY_CODE]


def test_a_request_key_that_nobody_has_is_named() -> None:
    plain, asked = told_by(), told_by(request_key="order-7")
    assert (plain.request, asked.request) == (None, ("order-7", 1_000_000))
    assert missed(plain) == [] and missed(asked) == ["claim_record_missing"]
    assert "'order-7'" in asked.problems()[0].message and asked.lost_codes == {"claim_record_missing"}
    assert missed(told_by(ev.StateRepaired("claim_record_missing"), request_key="order-7")) == []


SETTLED = [ev.SideEffectRecorded, ev.SideEffectFailed, ev.SideEffectBlocked, ev.SideEffectAbandoned]
OPENED = [ev.SideEffectAttempted, ev.SideEffectUnknown]


@pytest.mark.parametrize("status", [EffectStatus.ATTEMPTED, EffectStatus.UNKNOWN])
@pytest.mark.parametrize("kind", SETTLED)
def test_an_effect_record_that_is_older_than_the_log_is_named(kind: type[ev.EffectFact], status: EffectStatus) -> None:
    """A record put back from an older copy says that nobody knows what the log knows."""
    diagnosis = told_by(ev.SideEffectAttempted(EFFECT.effect_id, "k"), kind(EFFECT.effect_id, "k"))
    diagnosis.feed_effect(msgspec.structs.replace(EFFECT, status=status))
    assert missed(diagnosis) == ["effect_record_altered"] and diagnosis.lost == {EFFECT.effect_id}
    (found,) = diagnosis.problems()
    assert f"{EFFECT.effect_id} says {status}" in found.message and kind.wire in found.message


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *((kind, {"status": EffectStatus.ATTEMPTED}) for kind in OPENED),
        *((kind, {"status": EffectStatus.UNKNOWN}) for kind in OPENED),
        *((kind, {"status": EffectStatus.RECORDED}) for kind in [*OPENED, *SETTLED]),  # it is as new as the log, or newer
        *((kind, {"status": EffectStatus.ATTEMPTED, "attempted_at": NOW}) for kind in SETTLED),  # attempted again since then
    ],
)
def test_an_effect_record_that_is_no_older_than_the_log_is_fine(kind: type[ev.EffectFact], changes: dict[str, Any]) -> None:
    diagnosis = told_by(kind(EFFECT.effect_id, "k"))
    diagnosis.feed_effect(msgspec.structs.replace(EFFECT, **changes))
    assert missed(diagnosis) == [] and not diagnosis.lost


def test_what_is_advised_names_a_command() -> None:
    """§12.1: whoever follows it knows what to type."""
    begun = Effect(effect_id=f"{RUN}.1.pay.0", run_id=RUN, lineage_root=RUN, key="k", task="pay", path="0", step=1, attempt=1, effect_class=EffectClass.WRITE, status=EffectStatus.ATTEMPTED, capability="pay")
    diagnosis = Diagnosis(RUN, running().run, FREE, NOW)
    diagnosis.feed_effect(begun)
    diagnosis.feed_intent(Intent(intent_id="i", run_id=RUN, type="mail", payload=b"", key="k", state="sending", lease_until=NOW - 1))
    hints = {p.code: p.repair_hint for p in diagnosis.problems()}
    assert f"holdfast explain {RUN}" in hints["effect_attempted_without_result"]
    assert "holdfast dispatch --transports TARGET" in hints["intent_sending_stale"]


def test_a_backup_is_restored_in_the_way_of_its_store() -> None:
    told = name_restore(problem("event_seq_gap", "gone", "restore a backup"), "holdfast restore FILE")
    assert told.repair_hint == "restore a backup (holdfast restore FILE)" and name_restore(told, "holdfast restore FILE") == told
    other = problem("blob_orphaned", "left", "it can be deleted")
    assert name_restore(other, "holdfast restore FILE") == other


def test_a_trigger_of_somebodys_is_named_with_what_removes_it() -> None:
    told = unknown_trigger("the trigger theirs", "effect", "DROP TRIGGER theirs")
    assert (told.code, told.severity) == ("trigger_unknown", "warning")
    assert "the trigger theirs on the table effect" in told.message and "DROP TRIGGER theirs" in told.repair_hint

"""Where a run stands, folded from its log (§4.5, §4.6)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.core import canon, codec, decisions, starts
from holdfast.core import checkpoint as cps
from holdfast.core import events as ev
from holdfast.core import superstep as ss
from holdfast.core.channels import Channel, append, last
from holdfast.core.checkpoint import INPUT_TASK, Boundary, Source, StepRecord, TaskResult
from holdfast.core.codec import Row
from holdfast.core.errors import ChainBroken, ChildFailed, ErrorValue, EventUnreadable, StoreCorrupt
from holdfast.core.lease import TOUCH
from holdfast.core.progress import LEFT, LEFT_AT_ONCE, Progress
from holdfast.core.waits import OnTimeout, WaitKind
from tests.core.build import RUN, Log, decided, folded, node, program, raw, wait
from tests.core.test_payloads import SEALED

BOOM = ErrorValue("ValueError", "boom")
PAIR = program(node("a", start=True), node("b", start=True), node("c", after=["a", "b"]), channels={"out": append, "n": last})


def asked_at(path: str, kind: WaitKind, **more: Any) -> ev.WaitRequested:
    return ev.WaitRequested(wait(kind, f"{RUN}.1.a.{path}", task="a", path=path, **more))


def answered_at(path: str, action: str, **more: Any) -> StepRecord:
    return decisions.answer(decided(action, f"{RUN}.1.a.{path}", **more))


def begun(given: dict[str, Any] | None = None) -> tuple[Log, cps.Checkpoint]:
    """A run of PAIR with its first checkpoint, and that checkpoint as live code has it."""
    given = given or {"n": 1}
    log = Log(input=raw(given))
    start = TaskResult(INPUT_TASK, writes=raw(given))
    delta, first = starts.first(PAIR, cps.empty(RUN), start)
    log.commit(ev.RunStarted(), ev.StepStarted(1, "a"), ev.StepStarted(1, "b"), ev.CheckpointSaved(b"", "input"), delta=delta)
    return log, first


def walked(log: Log) -> Progress:
    return Progress(RUN).walk(log.rows)


def finished(task: str, **writes: Any) -> TaskResult:
    return TaskResult(task, writes=raw(writes))


def test_what_a_run_carries_comes_before_its_first_checkpoint() -> None:
    """§4.15: with its origin the log folds to what was live; without one it is a named error, never a shorter list."""
    prog = program(node("a", start=True), channels={"out": Channel("out", append, thread=True)})
    log, given = Log(input=raw({"out": [2]})), TaskResult(INPUT_TASK, writes=raw({"out": [2]}))
    carries = (cps.Carry("before", 7, b"h", ("out",)),)
    delta, first = starts.first(prog, cps.empty(RUN), given, {"out": canon.admit([1])}, carries=carries)
    log.commit(ev.RunStarted(), ev.StepStarted(1, "a"), ev.CheckpointSaved(b"", "input"), delta=delta)
    origin = codec.decode_whole(RUN, codec.encode_whole(cps.empty(RUN, canon.admit({"out": [1]})), b""))
    found = Progress(RUN, origin).walk(log.rows)
    assert found.checkpoint.values == first.values == {"out": [1, 2]}
    assert (found.checkpoint.parent, found.hash) == (None, log.rows[-1].hash)
    with pytest.raises(StoreCorrupt, match="out of .* came from before") as lost:
        walked(log)
    assert lost.value.code == "checkpoint_head_missing"
    assert "both" in (lost.value.hint or "")
    assert codec.read_carried(log.rows) == codec.read_carried([*log.rows, *begun()[0].rows]) == carries, "the first checkpoint says it"
    assert codec.read_carried(begun()[0].rows) == codec.read_carried(log.rows[:1]) == ()
    with pytest.raises(EventUnreadable):
        codec.read_carried([Row(1, b"no", b"")])


def test_a_run_that_has_not_started_holds_its_input() -> None:
    """§2.4: the input is a finished task's writes, waiting for the first checkpoint."""
    found = walked(Log(input=raw({"n": 7})))
    assert found.checkpoint == cps.empty(RUN)
    assert found.results == {INPUT_TASK: finished(INPUT_TASK, n=7)}
    assert (found.seq, found.takeovers, found.waits, found.attempts) == (1, 0, (), {})


def test_the_first_checkpoint_takes_the_input_in() -> None:
    log, first = begun()
    found = walked(log)
    assert found.checkpoint.values == first.values == {"n": 1, "out": []}
    assert [t.key for t in found.checkpoint.pending] == ["a", "b"]
    assert found.checkpoint.boundaries == (Boundary.RUN_STARTED,)
    assert (found.checkpoint.step, found.checkpoint.seq, found.checkpoint.created_at) == (0, 5, 2_000_000)
    assert found.results == {}, "the barrier has carried it across"


def test_finished_siblings_stay_pending_until_the_barrier() -> None:
    """T-58, §4.6: a finished task is on record under its checkpoint, which has not moved."""
    log, _ = begun()
    head = walked(log).checkpoint
    log.commit(ev.StepCompleted(1, "a"), results=(finished("a", out="A"),))
    log.commit(ev.StepFailed(1, "b", BOOM, attempt=2))
    found = walked(log)
    assert found.checkpoint == head
    assert found.results == {"a": finished("a", out="A")}
    assert found.attempts == {("b", ""): (2, 0)}


def test_a_barrier_clears_what_it_carried_across() -> None:
    log, _ = begun()
    record = StepRecord("b", "0", "ask", value=raw(1))
    log.commit(ev.StepCompleted(1, "a"), results=(finished("a", out="A"), record))
    log.commit(ev.StepRetryScheduled(1, "b", 1, 9_000_000, BOOM))
    before = walked(log)
    assert before.records == {("b", "0"): record}
    assert before.attempts == {("b", ""): (1, 9_000_000)}
    results = {"a": finished("a", out="A"), "b": finished("b", out="B")}
    delta, _ = ss.barrier(PAIR, before.checkpoint, results, inline={"b"}, decoded={})
    log.commit(ev.StepCompleted(1, "b"), ev.StepStarted(2, "c"), delta=delta)
    after = walked(log)
    assert after.checkpoint.values["out"] == ["A", "B"]
    assert [t.key for t in after.checkpoint.pending] == ["c"]
    assert after.checkpoint.boundaries == (Boundary.STEP_COMPLETED,)
    assert after.checkpoint.parent == before.checkpoint.checkpoint_id
    assert (after.results, after.records, after.attempts) == ({}, {}, {})


def test_a_wait_moves_the_head_and_nothing_else() -> None:
    """§4.8, T-62: the parent's values and step; the records stay for the re-entry."""
    log, _ = begun()
    record = StepRecord("b", "0", "ask", value=raw(1))
    w = wait(wait_id="w")
    log.commit(ev.WaitRequested(w), results=(record,))
    before = walked(log)
    assert before.waits == (w,)
    log.commit(ev.CheckpointSaved(b"", "wait"), ev.RunWaitingForHuman(), delta=cps.Delta(step=0, source=Source.WAIT))
    after = walked(log)
    assert after.checkpoint.waits == (w,)
    assert after.checkpoint.seq > before.checkpoint.seq
    assert (after.checkpoint.step, after.checkpoint.values) == (0, before.checkpoint.values)
    assert after.checkpoint.boundaries == (Boundary.WAITING_FOR_HUMAN,)
    assert after.records == {("b", "0"): record}


def asked(*more: ev.Fact) -> Progress:
    log, _ = begun()
    log.commit(ev.WaitRequested(wait(wait_id="w1")), ev.WaitRequested(wait(WaitKind.SIGNAL, wait_id="w2")))
    return walked(log.commit(*more)) if more else walked(log)


@pytest.mark.parametrize(
    ("fact", "left"),
    [
        (ev.NoteAdded("nothing"), ["w1", "w2"]),
        (ev.WaitDecided(decided("approve", "w1")), ["w2"]),
        (ev.WaitTimedOut(decided("timeout", "w2")), ["w1"]),
        (ev.WaitClosed("w1", "done"), ["w2"]),
        (ev.WaitRequested(wait(wait_id="w1", prompt="again")), ["w2", "w1"]),
        (ev.RunCanceled("canceled", False), []),
        (ev.RunCompleted(), []),
        (ev.RunFailed("x", BOOM), ["w1", "w2"]),
    ],
)
def test_open_waits_follow_their_facts(fact: ev.Fact, left: list[str]) -> None:
    """§5.2, §5.14: a failed run keeps its questions, an ended one has none."""
    assert [w.wait_id for w in asked(fact).waits] == left


def test_takeovers_are_counted_since_the_last_step_that_ended() -> None:
    """§10.6: progress resets the budget."""
    log, _ = begun()
    taken = ev.AttemptTakenOver("you", 1)
    assert walked(log.commit(taken)).takeovers == 1
    assert walked(log.commit(taken)).takeovers == 2
    assert walked(log.commit(ev.StepCompleted(1, "a"), results=(finished("a"),))).takeovers == 0
    assert (walked(log.commit(taken)).takeovers, walked(log.commit(ev.StepDegraded(2, "b", "degraded"))).takeovers) == (1, 0)


def test_whether_a_run_may_have_something_to_send() -> None:
    """Its log tells; of what lies before a whole checkpoint nobody knows, and what a run carries from its thread is not its own."""
    log, head = begun()
    assert not walked(log).sends
    assert walked(log.commit(ev.IntentEnqueued("i", "mail"))).sends
    assert Progress(RUN, (msgspec.structs.replace(head, seq=3), b"")).sends and not Progress(RUN, (cps.empty(RUN), b"")).sends


def test_whether_a_run_may_go_by_what_another_did() -> None:
    """§6.3: its log tells; of what lies before a whole checkpoint nobody knows."""
    log, head = begun()
    assert not walked(log.commit(ev.SideEffectReused(f"{RUN}.1.a.0#1", "k"))).borrows
    assert walked(log.commit(ev.SideEffectReused("other.1.a.0#1", "k"))).borrows
    assert Progress(RUN, (msgspec.structs.replace(head, seq=3), b"")).borrows and not Progress(RUN, (cps.empty(RUN), b"")).borrows


def test_another_attempt_forgives_the_failures_beneath_it() -> None:
    """§10.9: a retried call runs its failed parts again, keeps its finished ones, and touches no other's."""
    log, _ = begun()
    good, bad = StepRecord("b", "0/0", "ask", value=raw(1)), StepRecord("b", "0/1", "tell", error=BOOM)
    beside, other = StepRecord("b", "1", "tell", error=BOOM), StepRecord("a", "0/1", "tell", error=BOOM)
    failures = [ev.StepFailed(1, task, BOOM, path=path) for task, path in (("b", "0/1"), ("b", "1"), ("a", "0/1"))]
    log.commit(*failures, results=(good, bad, beside, other))
    assert set(walked(log).attempts) == {("b", "0/1"), ("b", "1"), ("a", "0/1")}
    found = walked(log.commit(ev.StepRetryScheduled(1, "b", 1, 9, BOOM, path="0")))
    assert set(found.records) == {("b", "0/0"), ("b", "1"), ("a", "0/1")}
    assert found.attempts == {("b", "1"): (1, 0), ("a", "0/1"): (1, 0), ("b", "0"): (1, 9)}
    whole = walked(log.commit(ev.StepRetryScheduled(1, "b", 1, 9, BOOM)))
    assert set(whole.records) == {("b", "0/0"), ("a", "0/1")}
    assert whole.attempts == {("a", "0/1"): (1, 0), ("b", ""): (1, 9)}


def test_an_operator_forgives_failures_and_keeps_finished_work() -> None:
    """§7.3: what failed is tried afresh, what is recorded is not done again."""
    log, _ = begun()
    good, bad = StepRecord("b", "0", "ask", value=raw(1)), StepRecord("b", "1", "tell", error=BOOM)
    log.commit(ev.StepCompleted(1, "a"), results=(finished("a"), good, bad))
    log.commit(ev.AttemptTakenOver("you", 1), ev.StepFailed(1, "b", BOOM), ev.RunFailed("step_failed", BOOM))
    before = walked(log)
    assert (before.takeovers, set(before.records), before.attempts) == (1, {("b", "0"), ("b", "1")}, {("b", ""): (1, 0)})
    decision = Progress(RUN).walk([*log.rows])
    decision.tell([ev.Event(99, 0, ev.RunResumed(cause="decision"))])
    assert decision.attempts, "a decision forgives nothing"
    after = walked(log.commit(ev.RunResumed(cause="operator")))
    assert (after.takeovers, after.attempts) == (0, {})
    assert after.records == {("b", "0"): good}
    assert set(after.results) == {"a"}


def test_what_was_done_on_the_way_out_of_an_error_is_forgotten() -> None:
    """§4.12: after a failure once it no longer counts, after a cancel at once; with all beneath it, and nothing of others."""
    log, _ = begun()
    kept = [StepRecord(task, path, "ask", value=raw(1)) for task, path in (("b", "0"), ("b", "10"), ("a", "1"))]
    gone = [StepRecord("b", path, "ask", value=raw(1)) for path in ("1", "1/0/0")]
    log.commit(ev.NoteAdded("x"), results=(*kept, *gone))
    told = StepRecord("b", "@left/1/0", "1", kind=LEFT)
    failed = walked(log.commit(ev.StepFailed(1, "b", BOOM), ev.RunFailed("step_failed", BOOM), results=(told,)))
    assert {("b", "1"), ("b", "1/0/0")} <= set(failed.records), "a replay fails as its source did"
    after = walked(log.commit(ev.RunResumed(cause="operator")))
    assert set(after.records) == {(r.task, r.path) for r in kept}
    log.commit(ev.NoteAdded("x"), results=(gone[0], StepRecord("b", "=k", "ask", value=raw(1))))
    canceled = walked(log.commit(ev.RunHandedBack("w"), results=(msgspec.structs.replace(told, kind=LEFT_AT_ONCE),)))
    assert set(canceled.records) == {(r.task, r.path) for r in kept} | {("b", "=k")}
    log.commit(ev.NoteAdded("x"), results=(gone[0], told, msgspec.structs.replace(told, task="a", name="1")))
    retried = walked(log.commit(ev.StepRetryScheduled(1, "b", 1, 9, BOOM)))
    assert ("b", "1") not in retried.records and ("a", "1") in retried.records


def test_loading_goes_on_from_a_whole_checkpoint() -> None:
    """§4.5: what is loaded from a whole one and the rows after it is what the whole log gives."""
    log, _ = begun()
    early = walked(log)
    whole = codec.decode_whole(RUN, codec.encode_whole(early.checkpoint, log.rows[-1].hash))
    log.commit(ev.WaitRequested(wait()), results=(finished("a", out="A"),))
    mine = Progress(RUN, whole).walk(log.rows[-1:])
    all_of_it = walked(log)
    assert mine.results == {"a": finished("a", out="A")}
    assert (mine.seq, mine.hash, mine.waits) == (all_of_it.seq, all_of_it.hash, all_of_it.waits)
    # A whole checkpoint keeps what time travel needs; what it stands for is in the log alone.
    assert msgspec.structs.replace(mine.checkpoint, boundaries=(), writes={}) == msgspec.structs.replace(all_of_it.checkpoint, boundaries=(), writes={})


def test_a_whole_checkpoint_brings_its_waits() -> None:
    log, _ = begun()
    log.commit(ev.WaitRequested(wait()))
    log.commit(ev.CheckpointSaved(b"", "wait"), ev.RunWaitingForHuman(), delta=cps.Delta(step=0, source=Source.WAIT))
    found = walked(log)
    assert Progress(RUN, (found.checkpoint, found.hash)).waits == (wait(),)


def test_a_checkpoint_that_hashes_to_something_else_is_refused() -> None:
    """§1.8: the event log vouches for the chain."""
    log, _ = begun()
    record = codec.open_row(log.rows[-1], log.rows[-2].hash)
    found = Progress(RUN).walk(log.rows[:-1])
    found.checkpoint = msgspec.structs.replace(found.checkpoint, hash=b"another parent")
    with pytest.raises(ChainBroken, match="event 5 is not recorded"):
        found.step(record)
    assert found.checkpoint.seq == 0


def test_a_checkpoint_that_no_event_vouches_for_is_refused() -> None:
    log, _ = begun()
    record = codec.open_row(log.rows[-1], log.rows[-2].hash)
    silent = msgspec.structs.replace(record, events=tuple(e for e in record.events if not getattr(e.fact, "hash", b"")))
    with pytest.raises(ChainBroken):
        Progress(RUN).walk(log.rows[:-1]).step(silent)


def test_rows_are_held_against_the_chain() -> None:
    """§1.9: a row that does not follow the one before it is named, wherever the walk begins."""
    log, _ = begun()
    log.commit(ev.NoteAdded("x"))
    with pytest.raises(ChainBroken):
        Progress(RUN).walk([log.rows[0], log.rows[2]])
    with pytest.raises(ChainBroken):
        Progress(RUN).walk(log.rows[1:])


def test_a_result_that_is_not_on_record_is_named() -> None:
    """L-04: nothing refers to what was never written."""
    log, _ = begun()
    head = walked(log).checkpoint
    results = {"a": finished("a", out="A"), "b": finished("b", out="B")}
    delta, _ = ss.barrier(PAIR, head, results, inline={"b"}, decoded={})
    log.commit(ev.StepCompleted(1, "b"), delta=delta)
    with pytest.raises(EventUnreadable, match="result of a"):
        walked(log)


def test_one_progress_equals_another_step_by_step() -> None:
    """§4.5: walking all rows at once, or one by one, ends at the same place."""
    log, _ = begun()
    log.commit(ev.StepCompleted(1, "a"), results=(finished("a", out="A"),))
    together, single = walked(log), Progress(RUN)
    for row in log.rows:
        assert single.walk([row]) is single
    assert canon.plain(single.checkpoint.values) == canon.plain(together.checkpoint.values)
    assert (single.seq, single.hash, single.results) == (together.seq, together.hash, together.results)


def _recorded(*records: StepRecord, ended: ErrorValue | None = BOOM) -> Progress:
    """Where a run stands that failed with these records and is gone on with by an operator."""
    log, _ = begun()
    log.commit(ev.StepCompleted(1, "a", path="0"), results=records)
    log.commit(*([ev.StepFailed(1, "a", ended)] if ended else []), ev.RunFailed("step_failed", BOOM))
    log.commit(ev.RunResumed("operator"), lease=TOUCH)
    return walked(log)


def ok(path: str, kind: str = "step") -> StepRecord:
    return answered_at(path, "approve") if kind == "wait" else StepRecord("a", path, "f", value=raw(1), kind=kind)


def bad(path: str, error: ErrorValue = BOOM, kind: str = "step") -> StepRecord:
    return StepRecord("a", path, "f", error=error, kind=kind)


OTHER = ErrorValue("KeyError", "other")


@pytest.mark.parametrize(
    ("records", "kept"),
    [
        ([ok("0"), bad("1")], ["0"]),
        ([bad("0", OTHER), ok("1"), bad("2")], ["0", "1"]),
        ([bad("0"), ok("1"), ok("2", "effect"), ok("3", "wait")], []),
        ([bad("0"), ok("=a@b?c"), ok("=a@b", "effect")], []),
        ([bad("=a@b?c/0"), ok("=a@b?c/1", "wait"), ok("=a@b?c/1?1", "wait")], ["=a@b?c/1?1"]),
        ([bad("0"), ok("1", "feedback"), ok("0?1", "wait"), ok("@retry/1", "wait")], ["1", "0?1", "@retry/1"]),
        ([ok("0/0/0"), bad("0/1/0"), ok("0/2/0"), bad("0", kind="scope")], ["0/0/0", "0/2/0"]),
        ([bad("0/1/0", OTHER), ok("0/2/0"), bad("0", OTHER, kind="scope"), ok("1"), bad("2")], ["0/1/0", "0/2/0", "0", "1"]),
        ([bad("0/1/0", OTHER), ok("0/1/1"), bad("0/2/0")], ["0/1/0", "0/1/1"]),
        ([bad("1.a/0", OTHER), ok("1.a", "task"), bad("2.b/0")], ["1.a/0", "1.a"]),
        ([bad("1.a/0"), ok("1.ab/0")], ["1.ab/0"]),
    ],
)
def test_a_caught_failure_is_kept_and_the_one_that_ended_the_step_is_not(records: list[StepRecord], kept: list[str]) -> None:
    """§4.12, L-15: code that caught a failure and went on must find it again; what failed for good is tried again."""
    assert [path for _, path in _recorded(*records).records] == kept


def test_a_retry_forgets_beneath_itself_only() -> None:
    log, _ = begun()
    log.commit(ev.StepCompleted(1, "a", path="0"), results=(bad("1.x/0"), bad("2.y/0")))
    log.commit(ev.StepRetryScheduled(1, "a", 1, 5, BOOM, "1.x"))
    found = walked(log)
    assert [path for _, path in found.records] == ["2.y/0"]
    assert found.attempts == {("a", "1.x"): (1, 5)}


def test_signals_since_the_barrier_are_news_for_the_next_one() -> None:
    """§5.11: a keyed write to the run's channels, applied once, at the barrier after its arrival."""
    log, head = begun()
    log.commit(ev.SignalReceived("go", "k1", raw(1), "ada"))
    log.commit(ev.SignalReceived("go", "k2", raw(2), "ada"), ev.NoteAdded("x"))
    found = walked(log)
    assert [s.key for s in found.news] == ["k1", "k2"]
    results = {"a": finished("a", out="A"), "b": finished("b", out="B")}
    delta, _ = ss.barrier(PAIR, found.checkpoint, results, inline={"a", "b"}, decoded={})
    log.commit(ev.StepCompleted(1, "b"), delta=delta)
    assert walked(log).news == []


def test_a_signal_before_the_first_checkpoint_is_kept_for_the_first_step() -> None:
    """§5.11: early signals are kept; the input's checkpoint carries none of them across."""
    log = Log(input=raw({"n": 1}))
    log.commit(ev.SignalReceived("go", "k1", raw(1), "ada"))
    delta, _ = starts.first(PAIR, cps.empty(RUN), TaskResult(INPUT_TASK, writes=raw({"n": 1})))
    log.commit(ev.RunStarted(), ev.CheckpointSaved(b"", "input"), delta=delta)
    assert [s.key for s in walked(log).news] == ["k1"]


def test_how_often_a_place_has_asked_is_counted_until_the_barrier() -> None:
    """§5.14: each asking at one place has an id of its own."""
    log, head = begun()
    for round in range(2):
        log.commit(ev.WaitRequested(wait(wait_id=f"w{round}", task="a", path="0")))
    log.commit(ev.WaitRequested(wait(wait_id="w9", task="b", path="0")))
    assert walked(log).asked == {("a", "0"): 2, ("b", "0"): 1}
    results = {"a": finished("a", out="A"), "b": finished("b", out="B")}
    delta, _ = ss.barrier(PAIR, head, results, inline={"a", "b"}, decoded={})
    log.commit(ev.StepCompleted(1, "b"), delta=delta)
    assert walked(log).asked == {}


def test_owners_that_were_late_are_no_dead_ones() -> None:
    """§10.6: whoever lived and was late with its lease counts by itself; progress ends both counts."""
    log, _ = begun()
    assert (walked(log.commit(ev.AttemptTakenOver("you", 0, late=1))).takeovers, walked(log).late) == (0, 1)
    assert (walked(log.commit(ev.AttemptTakenOver("you", 0, late=2))).takeovers, walked(log).late) == (0, 2)
    died = walked(log.commit(ev.AttemptTakenOver("you", 1, late=2)))
    assert (died.takeovers, died.late) == (1, 2)
    ended = walked(log.commit(ev.StepCompleted(1, "a"), results=(finished("a"),)))
    assert (ended.takeovers, ended.late) == (0, 0)


KID_FAILED = canon.encode({"run_id": "kid", "status": "failed", "error": "boom"})
CHILD_FAILED = ErrorValue.of(ChildFailed("the child kid ended failed: boom"))


@pytest.mark.parametrize(
    ("facts", "results", "left"),
    [
        ([asked_at("0", WaitKind.APPROVAL, on_timeout=OnTimeout.FAIL)], [answered_at("0", "timeout")], set()),
        ([asked_at("0", WaitKind.APPROVAL, on_timeout=OnTimeout.DELIVER)], [answered_at("0", "timeout")], {"0"}),
        ([asked_at("0", WaitKind.APPROVAL, on_timeout=OnTimeout.FAIL)], [answered_at("0", "approve")], {"0"}),
        ([ev.WaitRequested(wait(WaitKind.APPROVAL, f"{RUN}.1.a.0/!1", task="a", path="0", on_timeout=OnTimeout.FAIL))], [answered_at("0", "timeout")], {"0"}),
        ([asked_at("0", WaitKind.CHILD)], [answered_at("0", "failed", payload=KID_FAILED)], set()),
        ([asked_at("0", WaitKind.CHILD)], [answered_at("0", "canceled", payload=KID_FAILED)], set()),
        ([asked_at("0", WaitKind.CHILD)], [answered_at("0", "completed", payload=raw(1))], {"0"}),
        ([asked_at("0", WaitKind.CHILD)], [answered_at("0", "failed", payload=KID_FAILED), StepRecord("a", "1", "apologise", value=raw(1))], {"0", "1"}),
        (
            [asked_at("0", WaitKind.CHILD), ev.StepFailed(1, "a", CHILD_FAILED)],
            [answered_at("0", "failed", payload=KID_FAILED), StepRecord("a", "1", "apologise", value=raw(1))],
            set(),
        ),
        ([asked_at("0", WaitKind.CHILD)], [StepRecord("a", "0", "child:", kind="wait", value=SEALED)], {"0"}),
        ([asked_at("0?1", WaitKind.EFFECT)], [answered_at("0?1", "abandon"), StepRecord("a", "0", "pay", error=BOOM, kind="effect")], set()),
        ([asked_at("=k?1/0?1", WaitKind.EFFECT)], [answered_at("=k?1/0?1", "abandon"), StepRecord("a", "=k?1/0", "pay", error=BOOM, kind="effect")], set()),
        ([asked_at("0?1", WaitKind.EFFECT)], [answered_at("0?1", "abandon")], {"0?1"}),
        ([asked_at("0?1", WaitKind.EFFECT)], [answered_at("0?1", "abandon"), StepRecord("a", "0", "pay", value=raw(1), kind="effect")], {"0?1", "0"}),
    ],
    ids=["silence", "silence that was told", "answered", "another question", "failed child", "canceled child", "completed child", "caught", "let out", "sealed", "abandoned", "abandoned under a key", "abandoned, not gone on with", "abandoned, and done"],
)
def test_an_operator_forgives_what_answered_nobody(facts: list[ev.Fact], results: list[StepRecord], left: set[str]) -> None:
    """§5.10, §7.1: a silence that failed the run, and the end of a child that the code did not go on from, are asked for anew."""
    log, _ = begun()
    log.commit(*facts, results=results)
    assert {path for _, path in walked(log).records} == {r.path for r in results}
    log.commit(ev.RunFailed("step_failed", BOOM))
    log.commit(ev.RunResumed(cause="operator"))
    assert {path for _, path in walked(log).records} == left


# -- a new owner -------------------------------------------------------------------------------------


RUNS = {
    "pending": folded(), "running": folded(ev.RunStarted()), "interrupted": folded(ev.RunStarted(), ev.RunInterrupted("why")),
    "waiting": folded(ev.RunStarted(), ev.WaitRequested(wait()), ev.RunWaitingForHuman()),
}
MINE = ev.RunClaimed("me", 5)
RESUMED, EXPIRED = ev.RunRecovered("", "a person resumed it", "t1"), ev.AttemptLeaseExpired("other", "owner_dead")


def over(n: int, late: int = 0, *, begun: bool = True) -> list[ev.Fact]:
    return [EXPIRED, ev.AttemptTakenOver("me", n, late, begun=begun), ev.RunRecovered("other", "owner_dead", "t1"), MINE]


@pytest.mark.parametrize(
    ("status", "before", "late", "stays", "facts"),
    [
        ("running", None, False, False, [MINE]),
        ("interrupted", None, False, False, [RESUMED, MINE]),
        ("waiting", "other", False, False, [MINE]),
        ("pending", "other", False, False, [MINE]),
        ("running", "me", False, False, [ev.RunHandedBack("me"), MINE]),
        ("running", "other", False, True, [EXPIRED, MINE]),
        ("running", "other", False, False, over(1)),
        ("running", "other", True, False, over(0, 1)),
    ],
)
def test_what_the_first_commit_of_a_new_owner_tells(status: str, before: str | None, late: bool, stays: bool, facts: list[ev.Fact]) -> None:
    """§1.4, §10.6."""
    assert Progress(RUN).enter(RUNS[status], MINE, before, "owner_dead", late=late, stays=stays, via="t1") == facts


@pytest.mark.parametrize(("fence", "begun"), [(0, True), (4, True), (3, False)])
def test_an_owner_that_had_claimed_a_run_and_not_begun_it_is_not_counted(fence: int, begun: bool) -> None:
    progress = Progress(RUN)
    progress.takeovers, progress.fence = 2, fence
    assert progress.enter(RUNS["running"], MINE, "other", "owner_dead", late=False, stays=False, via="t1") == over(2 + begun, begun=begun)


@pytest.mark.parametrize(
    ("takeovers", "cuts", "late", "was_late", "code", "said"),
    [
        (2, 0, 0, False, None, ""),
        (3, 0, 0, False, "takeover_limit", "its owners died 3 times without any progress in between"),
        (1, 2, 0, False, "takeover_limit", "its owners died 1 times, and were canceled 2 times right after they had begun to execute it, without"),
        (3, 0, 2, True, None, ""),
        (0, 0, 3, True, "lease_too_short", "3 owners in a row renewed their lease too late"),
        (0, 0, 3, False, None, ""),
    ],
)
def test_a_run_goes_on_until_one_of_its_budgets_is_spent(takeovers: int, cuts: int, late: int, was_late: bool, code: str | None, said: str) -> None:
    """§10.6: owners that died and owners that were late are counted apart."""
    progress = Progress(RUN)
    progress.takeovers, progress.cuts, progress.late = takeovers, cuts, late
    spent = progress.why_spent(3, late=was_late)
    assert (spent and spent.code, said in str(spent)) == (code, code is not None or said == "")

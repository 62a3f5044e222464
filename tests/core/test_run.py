"""The fold: the only place a run changes (§1.4)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import events as ev
from holdfast.core.errors import ErrorValue, EventUnreadable, IllegalTransition
from holdfast.core.run import Buffered, Run, Versions, fold, fold_all, of_any
from holdfast.core.status import Status
from holdfast.core.waits import WaitKind
from tests.core.build import RUN, decided, folded, numbered, raw, submitted, wait

BOOM = ErrorValue("ValueError", "boom")
HANDOFF = wait(WaitKind.HANDOFF, "h1", available_actions=("continue", "halt"))


def test_a_run_begins_pending_with_what_was_submitted() -> None:
    """§3.1."""
    run = folded(ev.RunQueued(blocked_by="other"))
    assert (run.status, run.version, run.created_at, run.blocked_by) == (Status.PENDING, 2, 1_000_000, "other")
    assert run.lineage_root == RUN
    assert run.versions == Versions()
    assert (run.schedule_id, run.slot) == (None, None)


def test_a_run_of_a_schedule_knows_its_slot() -> None:
    """§10.15."""
    run = fold_all(None, numbered([submitted(schedule_id="nightly", slot=7)]))
    assert (run.schedule_id, run.slot) == ("nightly", 7)


def test_a_fork_starts_from_its_source_checkpoint() -> None:
    """§3.1: resume_from_checkpoint_id."""
    run = fold_all(None, numbered([submitted(source_run_id="a", source_checkpoint_id="a.c3", lineage_root="a")]))
    assert (run.resume_from_checkpoint_id, run.lineage_root) == ("a.c3", "a")


def test_nothing_else_can_come_first() -> None:
    """§1.4."""
    with pytest.raises(EventUnreadable):
        fold(None, ev.Event(1, 0, ev.RunStarted()))
    with pytest.raises(EventUnreadable):
        fold_all(None, [])
    with pytest.raises(EventUnreadable):
        folded(submitted())
    assert fold(None, ev.Event(1, 0, ev.Unknown(99, []))) is None


def test_started_once_resumed_ever_after() -> None:
    """T-04, §2.7."""
    run = folded(ev.RunStarted(), ev.RunWaitingForHuman(), ev.RunResumed("decision"), ev.RunWaitingForSignal(), ev.RunResumed("signal"))
    assert (run.status, run.started_at) == (Status.RUNNING, 2_000_000)
    again = fold_all(run, [ev.Event(7, 9, ev.RunReplaying()), ev.Event(8, 10, ev.RunResumed("operator"))])
    assert again.started_at == 2_000_000


def test_a_guarded_resume_clears_the_end() -> None:
    """T-06, T-02: failed → running only by run.resumed, and the history stays in the events."""
    failed = folded(ev.RunStarted(), ev.RunCancelRequested("x"), ev.RunFailed("step_failed", BOOM))
    assert (failed.status, failed.finished_at, failed.stop_reason, failed.error) == (Status.FAILED, 4_000_000, "step_failed", BOOM)
    run = fold_all(failed, numbered([ev.RunResumed("operator", checkpoint_id="c", upgraded="g")], 5))
    assert (run.status, run.finished_at, run.stop_reason, run.error, run.settled, run.cancel_requested_at) == (
        Status.RUNNING, None, None, None, False, None,
    )
    assert (run.resume_from_checkpoint_id, run.fingerprint, run.started_at) == ("c", "g", 2_000_000)
    with pytest.raises(IllegalTransition):
        fold(failed, ev.Event(5, 0, ev.RunWaitingForHuman()))


@pytest.mark.parametrize("before", [(), (ev.RunStarted(), ev.RunWaitingForHuman()), (ev.RunStarted(), ev.RunWaitingForSignal())])
def test_a_cancel_at_rest_folds_through_running(before: tuple[ev.Fact, ...]) -> None:
    """T-01, §2.4: started_at stays null if it never started."""
    run = folded(*before, ev.RunCanceled("canceled", at_rest=True))
    assert run.status is Status.CANCELED
    assert (run.started_at is None) == (before == ())


def test_a_replay_cannot_complete_or_wait_at_once() -> None:
    """T-03, §2.5."""
    replaying = folded(ev.RunStarted(), ev.RunReplaying())
    for fact in (ev.RunCompleted(), ev.RunWaitingForHuman(), ev.RunWaitingForSignal()):
        with pytest.raises(IllegalTransition):
            fold(replaying, ev.Event(4, 0, fact))
    done = fold_all(replaying, numbered([ev.RunResumed("operator"), ev.RunCompleted(raw(1))], 4))
    assert (done.status, done.result) == (Status.COMPLETED, raw(1))


STOPS: list[ev.Fact] = [
    ev.RunCompleted(),
    ev.RunFailed("step_failed", BOOM),
    ev.RunFailed("step_limit", BOOM),
    ev.RunCanceled("canceled"),
    ev.RunCanceled("denied", settled=True),
    ev.RunCanceled("canceled", at_rest=True),
]
MOVES: list[ev.Fact] = [
    ev.RunStarted(),
    ev.RunWaitingForHuman(),
    ev.RunWaitingForSignal(),
    ev.RunResumed("decision"),
    ev.RunReplaying(),
    ev.RunInterrupted("sigterm"),
    ev.RunRecovered("w", "expired"),
    ev.WaitRequested(HANDOFF),
    ev.WaitDecided(decided("continue", "h1")),
    ev.StepStarted(1, "a"),
    ev.StepCompleted(1, "a", hash=b"h"),
    *STOPS,
]


@given(st.lists(st.sampled_from(MOVES), max_size=25))
def test_every_stop_has_a_reason(facts: list[ev.Fact]) -> None:
    """T-07, §2.8: over all paths of the machine; also version counts, and finished_at exactly at an end (§2.7)."""
    run = folded()
    for fact in facts:
        try:
            after = fold(run, ev.Event(run.version + 1, run.version + 1, fact))
        except IllegalTransition:
            continue
        assert after is not None
        assert after.version == run.version + 1
        run = after
        assert (run.finished_at is not None) == run.terminal
        if run.terminal and run.status is not Status.COMPLETED:
            assert run.stop_reason
        if run.status is Status.FAILED:
            assert run.error is not None


def test_a_late_continue_does_not_revive_a_halted_run() -> None:
    """T-08."""
    halted = folded(ev.RunStarted(), ev.WaitRequested(HANDOFF), ev.RunWaitingForHuman(), ev.WaitDecided(decided("halt", "h1")), ev.RunCanceled("halted", settled=True))
    late = fold_all(halted, numbered([ev.WaitDecided(decided("continue", "h1"))], 7))
    assert (late.status, late.settled, late.decisions) == (Status.CANCELED, True, ())
    assert late.version == 7


@pytest.mark.parametrize(
    ("end", "kept"),
    [
        (ev.RunFailed("step_failed", BOOM), True),
        (ev.RunInterrupted("sigterm"), True),
        (ev.RunCompleted(), False),
        (ev.RunCanceled("halted", settled=True), False),
        (ev.RunCanceled("canceled"), False),
    ],
)
def test_which_ends_keep_the_handoff(end: ev.Fact, kept: bool) -> None:
    """T-21, §5.14; and its history is never cleared (T-15)."""
    run = folded(ev.RunStarted(), ev.WaitRequested(HANDOFF), end)
    assert (run.active_handoff, bool(run.waits)) == (("h1", True) if kept else (None, False))
    assert run.seen_handoffs == ("h1",)


def test_failing_from_interrupted_keeps_it_whole() -> None:
    """T-22."""
    asked = wait(WaitKind.HANDOFF, "h1", show=raw({"draft": "x"}))
    run = folded(ev.RunStarted(), ev.WaitRequested(asked), ev.RunInterrupted("sigterm"), ev.RunFailed("lost", BOOM))
    assert run.waits == (asked,)
    assert run.active_handoff == "h1"


def test_human_review_keeps_the_handoff() -> None:
    """T-21."""
    run = folded(ev.RunStarted(), ev.WaitRequested(HANDOFF), ev.WaitRequested(wait(WaitKind.REVIEW, "r")), ev.RunWaitingForHuman())
    assert (run.active_handoff, len(run.waits)) == ("h1", 2)


@given(st.data())
def test_unknown_kinds_change_nothing(data: st.DataObject) -> None:
    """T-13: interleaved anywhere, the fold and its watermark are the same."""
    facts: list[ev.Fact] = [ev.RunStarted(), ev.WaitRequested(HANDOFF), ev.RunWaitingForHuman(), ev.WaitDecided(decided("continue", "h1")), ev.RunResumed("decision")]
    mixed: list[ev.Fact | ev.Unknown] = []
    for fact in facts:
        mixed += [ev.Unknown(200, ["x"])] * data.draw(st.integers(0, 2))
        mixed.append(fact)
    plain = fold_all(None, numbered([submitted(), *facts]))
    strange = fold_all(None, numbered([submitted(), *mixed], at=0))
    times = {"created_at": 0, "started_at": 0, "active_us": 0, "active_since": None}
    assert msgspec.structs.replace(plain, **times) == msgspec.structs.replace(strange, **times)
    assert strange.version == len(facts) + 1


def test_a_decision_closes_its_wait_and_is_kept_until_used() -> None:
    """§5.4, §5.5: waivers stay visible."""
    run = folded(ev.RunStarted(), ev.WaitRequested(HANDOFF), ev.WaitRequested(wait()), ev.RunWaitingForHuman())
    after = fold_all(run, numbered([ev.WaitDecided(decided("continue_with_waiver", "h1", feedback="fine")), ev.WaitTimedOut(decided("timeout", "w1"))], 6))
    assert (after.waits, after.active_handoff, [d.action for d in after.decisions]) == ((), None, ["continue_with_waiver", "timeout"])
    assert [d.feedback for d in after.waivers] == ["fine"]
    assert [d.wait_id for d in fold_all(after, numbered([ev.WaitClosed("h1")], 8)).decisions] == ["w1"]
    closed = fold_all(after, numbered([ev.WaitClosed("h1"), ev.WaitClosed("w1")], 8))
    assert closed.decisions == ()
    assert len(closed.waivers) == 1


def test_a_wait_requested_again_replaces_itself() -> None:
    run = folded(ev.RunStarted(), ev.WaitRequested(wait()), ev.WaitRequested(wait(prompt="again")))
    assert [w.prompt for w in run.waits] == ["again"]


def test_other_facts_and_their_fields() -> None:
    """§3.1: patches, recoveries, takeovers, heads."""
    run = folded(
        ev.RunStarted(), ev.RunInterrupted("x"), ev.RunRecovered("w", "owner_dead"), ev.AttemptTakenOver("w", 3), ev.NoteAdded("hello"),
        ev.RunPatched(tags=("a",), priority=4, trace_id="t"), ev.RunPatched(), ev.StepStarted(2, "b"), ev.StepCompleted(2, "b"),
    )
    assert (run.interrupted_at, run.takeovers, run.tags, run.priority, run.trace_id) == (None, 3, ("a",), 4, "t")
    assert (run.current_step_id, run.checkpoint_head, run.wake_at) == (f"{RUN}.2.b", None, None)
    saved = fold_all(run, numbered([ev.CheckpointSaved(b""), ev.StepSkipped(2, "b", hash=b"h"), ev.StepStarted(3, "c"), ev.StatePatched((), "r")], 11))
    assert saved.checkpoint_head == f"{RUN}.c12"
    assert fold_all(saved, numbered([ev.CheckpointSaved(b"h")], 15)).checkpoint_head == f"{RUN}.c15"


def test_every_kind_folds_or_is_left_alone() -> None:
    """§13.2: the fold is total over kinds."""
    assert len(ev.KINDS) == len(ev.TAGS)
    run: Run = folded(ev.RunStarted())
    for kind in ev.KINDS.values():
        fact = msgspec.convert([kind.__struct_config__.tag, *_example(kind)], kind)
        try:
            after = fold(run, ev.Event(3, 3, fact))
        except (IllegalTransition, EventUnreadable):
            continue
        assert after is not None
        assert after.version == run.version + 1


@pytest.mark.parametrize("named", [0, 3, 11])
@pytest.mark.parametrize("begins", [False, True])
def test_many_steps_at_once_fold_as_one_by_one(named: int, begins: bool) -> None:
    """A fan-out's commit: the end of each of its tasks, one of which names the checkpoint, or none, and what begins after it."""
    facts: list[ev.Fact] = [ev.StepCompleted(1, f"n~{i}", hash=b"h" if i == named else b"") for i in range(1, 12)]
    facts += [ev.StepStarted(2, f"m~{i}") for i in range(4)] if begins else []
    one: Run = folded(ev.RunStarted())
    events = numbered(facts, one.version + 1)
    together = fold_all(one, events)
    for event in events:
        found = fold(one, event)
        assert found is not None
        one = found
    assert together == one and (together.checkpoint_head is None) == (named == 0)


def _example(kind: type[ev.Fact]) -> list[object]:
    plain = {"str": "x", "int": 1, "float": 1.0, "bool": True, "bytes": b"x", "tuple[str, ...]": ["x"], "dict[str, float]": {"x": 1.0}}
    out: list[object] = []
    for field in msgspec.structs.fields(kind):
        if field.default is not msgspec.NODEFAULT or field.default_factory is not msgspec.NODEFAULT:
            break
        name = getattr(field.type, "__name__", str(field.type))
        if name == "Wait":
            out.append(["w", "approval", 1, "t"])
        elif name == "Decision":
            out.append(["w", "approve", "ada"])
        elif name == "ErrorValue":
            out.append(["E", "m"])
        elif name == "Raw":
            out.append(raw(1))
        else:
            out.append(plain.get(str(field.type), plain.get(name, "x")))
    return out


STEP_FACTS = st.one_of(
    st.builds(ev.StepStarted, step=st.integers(0, 9), task=st.sampled_from(["a", "b~1"])),
    st.builds(ev.StepCompleted, step=st.integers(0, 9), task=st.just("a"), hash=st.sampled_from([b"", b"h"])),
    st.builds(ev.StepDegraded, step=st.integers(0, 9), task=st.just("a"), hash=st.sampled_from([b"", b"h"])),
    st.builds(ev.RunCancelRequested),
    st.builds(ev.CheckpointSaved, hash=st.sampled_from([b"", b"h"])),
    st.just(ev.Unknown(99, [])),
)


@given(st.lists(STEP_FACTS, max_size=8), st.booleans())
def test_many_at_once_are_many_one_by_one(facts: list[ev.Fact], worn: bool) -> None:
    """§1.4: one pure function, whether a stretch of steps is folded together or event by event."""
    start = folded(ev.RunStarted())
    if worn:  # a run in which every field that a fold may reset is set
        start = msgspec.structs.replace(start, takeovers=3, interrupted_at=5, current_step_id="x.1.a", checkpoint_head="x.c1", tags=("t",))
    events = numbered(facts, 3)
    one_by_one = start
    for event in events:
        one_by_one = fold(one_by_one, event)  # type: ignore[assignment]
    assert fold_all(start, events) == one_by_one


@given(st.lists(STEP_FACTS, max_size=2), st.sampled_from([None, b"\x01"]), st.sampled_from([ev.RunStarted(), ev.RunClaimed("w", 1), ev.RunWaitingForSignal()]), st.booleans())
def test_an_end_with_the_last_step_is_one_event_by_event(facts: list[ev.Fact], result: bytes | None, before: ev.Fact, worn: bool) -> None:
    """§1.4: a run whose last step completes it is folded in one go, if it was running."""
    start = folded(ev.RunStarted(), *([] if type(before) is ev.RunStarted else [before]))
    if worn:
        start = msgspec.structs.replace(start, active_since=None, active_us=7, checkpoint_head="x.c1", error=BOOM, active_handoff="w", waits=(wait(),), decisions=())
    events = numbered([*facts, ev.RunCompleted(result)], 9)
    one_by_one: Run | None = start
    try:
        for event in events:
            one_by_one = fold(one_by_one, event)
    except IllegalTransition:
        with pytest.raises(IllegalTransition):
            fold_all(start, events)
    else:
        assert fold_all(start, events) == one_by_one


@given(st.lists(STEP_FACTS, max_size=3), st.sampled_from([(), ("t",)]), st.integers(0, 4))
def test_a_birth_at_once_is_one_event_by_event(facts: list[ev.Fact], tags: tuple[str, ...], upto: int) -> None:
    """§1.4: a run that is submitted, claimed and started in one commit is folded in one go."""
    born = [submitted(tags=tags), ev.RunClaimed("w", 1), ev.RunStarted()]
    events = numbered([*born[: max(upto, 1)], *facts])
    one_by_one = None
    for event in events:
        one_by_one = fold(one_by_one, event)
    assert fold_all(None, events) == one_by_one


@pytest.mark.parametrize("end", [ev.RunCompleted(), ev.RunCanceled("canceled")])
def test_a_signal_after_the_end_is_evidence_and_no_more(end: ev.Fact) -> None:
    """T-08, §5.11: nobody will ask for it; a failed run may be gone on with and keeps it."""
    late = ev.SignalReceived("go", "k", raw(1), "ada")
    assert folded(ev.RunStarted(), end, late).signals == ()
    assert folded(ev.RunStarted(), ev.RunFailed("x", BOOM), late).signals == (Buffered("go", "k", raw(1), "ada"),)


def test_a_decision_takes_the_signal_it_names_and_no_other() -> None:
    """§5.11, T-37: by name and key; a decision of people takes none."""
    received = [ev.SignalReceived("go", "k1", raw(1), "ada"), ev.SignalReceived("go", "k2", raw(2), "ada"), ev.SignalReceived("stop", "k1", raw(3), "ada")]
    run = folded(ev.RunStarted(), *received, ev.WaitRequested(wait(WaitKind.SIGNAL, name="go")))
    taken = fold_all(run, numbered([ev.WaitDecided(decided("signal", key="k1", asked="signal:go"))], run.version + 1))
    assert [(s.name, s.key) for s in taken.signals] == [("go", "k2"), ("stop", "k1")]
    assert fold_all(run, numbered([ev.WaitDecided(decided("approve", asked="signal:go"))], run.version + 1)).signals == run.signals


def test_a_run_knows_what_it_was_made_of_and_whether_it_inherits_approvals() -> None:
    """§5.8, §7.6, §7.7."""
    for fact, origin in ((ev.RunForked("a", effects="reexecute", approvals=True), "fork"), (ev.RunReplayed("a", effects="reexecute", approvals=True), "replay")):
        run = folded(fact)
        assert (run.origin, run.replay_effects, run.inherits) == (origin, "reexecute", True)
    assert not folded(ev.RunForked("a")).inherits


def test_a_kind_that_nobody_knows_still_has_a_name() -> None:
    """§1.8: what shows it can say that it is unknown; it touches nothing of a run that a step would not."""
    assert (ev.Unknown.wire, ev.Unknown(99, []).hot) == ("unknown", True)


@pytest.mark.parametrize(("not_before", "begins"), [(None, None), (999_999, None), (1_000_000, None), (1_000_001, 1_000_001)])
def test_a_run_asked_for_a_time_that_had_come_begins_at_once(not_before: int | None, begins: int | None) -> None:
    """§10.3: under any clock that is set later, for nothing is left to wait for."""
    run = fold_all(None, numbered([submitted(not_before=not_before)]))
    assert run.begins_at == begins


@pytest.mark.parametrize(("shape", "any_of"), [("f", "*"), ("f@folder", "*@folder")])
def test_who_takes_any_shape_names_the_folder_alone(shape: str, any_of: str) -> None:
    assert of_any(shape) == any_of

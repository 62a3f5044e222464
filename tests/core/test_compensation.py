"""What is taken back, in which order, and how a run then ends (§6.11)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import compensation as comp
from holdfast.core import effects as fx
from holdfast.core import events as ev
from holdfast.core.checkpoint import Checkpoint, StepRecord, Task, empty
from holdfast.core.effects import Effect, EffectClass, EffectStatus
from holdfast.core.errors import ErrorValue
from holdfast.core.lease import Alive
from holdfast.core.run import fold_all
from holdfast.core.status import Status
from holdfast.core.waits import Decision, Wait, WaitKind
from tests.core.build import RUN, folded, numbered, submitted, wait

ERROR = ErrorValue(type="builtins.ValueError", message="no")


def effect(path: str, number: int = 1, *, step: int = 1, **changes: Any) -> Effect:
    made = Effect(
        effect_id=f"{RUN}.{step}.pay.{path}#{number}", run_id=RUN, lineage_root=RUN, step=step, task="pay", path=path, attempt=1, capability="pay",
        effect_class=EffectClass.EXTERNAL, key=f"t:effect:{RUN}:{step}.pay.{path}", status=EffectStatus.RECORDED, undo="m:refund",
    )
    return replace(made, **changes)


# -- keys ---------------------------------------------------------------------------------------------


def test_the_key_of_an_undo_and_of_what_is_done_after_it() -> None:
    """§6.3: neither can be any other effect's, for no part of a full key holds a colon."""
    key = fx.effect_key("t", "effect", "r", "1.pay:0")
    assert fx.undo_key(key) == "t:effect:r:1.pay%3A0:undo"
    gone = [effect("0", undone="x")]
    assert fx.successor(key, []) is None and fx.successor(key, [effect("0")]) is None
    assert fx.successor(key, gone) == f"{key}:2" and fx.successor(f"{key}:2", gone) == f"{key}:3" and fx.successor(f"{key}:9", gone) == f"{key}:10"


def test_the_newest_recorded_one_says_whether_a_key_stands() -> None:
    failed = effect("0", status=EffectStatus.FAILED)
    assert fx.successor("a:b:c:d", [effect("0", undone="x"), failed]) == "a:b:c:d:2"
    assert fx.successor("a:b:c:d", [effect("0", undone="x"), effect("0")]) is None
    assert fx.successor("a:b:c:d", [failed]) is None


# -- the stack ----------------------------------------------------------------------------------------


def test_the_last_one_recorded_is_the_first_taken_back() -> None:
    """By the order of the log, not of the attempts nor of any clock; what the log does not tell of is the earliest."""
    a, b, c, d = effect("0"), effect("1"), effect("2"), effect("3")
    order = [c.effect_id, a.effect_id, "another", b.effect_id]
    assert comp.stack([a, b, c, d], RUN, order) == (b, a, c, d)
    assert comp.stack([d, a], RUN, []) == (d, a) == comp.stack([a, d], RUN, []), "repeatable all the same"


@pytest.mark.parametrize(
    "changes",
    [{"run_id": "other"}, {"undo": ""}, {"undone": "x"}, *({"status": s} for s in EffectStatus if s is not EffectStatus.RECORDED)],
    ids=str,
)
def test_what_is_not_taken_back(changes: dict[str, Any]) -> None:
    """Another run's, what has no undo, what was taken back, and what is not known to have happened: unknown stays unknown (§10.12)."""
    assert comp.stack([effect("0", **changes), effect("1")], RUN, []) == (effect("1"),)


def asked(effect_id: str, path: str, action: str, task: str = "pay", kind: WaitKind = WaitKind.EFFECT) -> tuple[Wait, dict[str, Decision]]:
    question = wait(kind=kind, task=task, path=path, effect_id=effect_id, wait_id=f"{RUN}.1.{task}.{path}")
    return question, {question.wait_id: Decision(wait_id=question.wait_id, action=action, actor="ada", decided_at=5)}


def test_what_a_person_has_said_of_an_attempt() -> None:
    """§6.5: that it was done. A fork asks about its own record of a forebear's act under that act's name."""
    unknown = effect("0", status=EffectStatus.UNKNOWN)
    question, given = asked(unknown.effect_id, "0?1", "record_result")
    [decision] = given.values()
    assert comp.find_told([unknown], RUN, [question], given) == [(unknown, decision)]
    forks = effect("0", status=EffectStatus.UNKNOWN, source_effect_id="act")
    question, given = asked("act", "0?1", "record_result")
    assert comp.find_told([forks], RUN, [question], given) == [(forks, *given.values())]


def test_what_a_person_has_said_of_an_undo() -> None:
    """That it came through, or that the effect stands."""
    undo = effect("1.pay.0#1", task=comp.TASK, undo="", status=EffectStatus.UNKNOWN, source_effect_id=effect("0").effect_id)
    for action in ("record_result", "abandon"):
        question, given = asked(undo.effect_id, "0?undo1.1", action)
        assert comp.find_told([undo], RUN, [question], given) == [(undo, *given.values())]
        of_itself = asked(undo.effect_id, "1.pay.0#1?1", action, task=comp.TASK)
        assert comp.find_told([undo], RUN, of_itself[:1], of_itself[1]) == [], "the undo asks for itself when it is entered again"


@pytest.mark.parametrize("action", ["abandon", "reexecute"])
def test_what_was_not_said_to_be_done_stays_unknown(action: str) -> None:
    unknown = effect("0", status=EffectStatus.UNKNOWN)
    question, given = asked(unknown.effect_id, "0?1", action)
    assert comp.find_told([unknown], RUN, [question], given) == []


def test_what_no_answer_is_about() -> None:
    """An open question, one of another kind, another effect, one that was attempted after the answer; and what cannot be taken back, is settled, or another run's."""
    unknown = effect("0", status=EffectStatus.UNKNOWN)
    question, given = asked(unknown.effect_id, "0?1", "record_result")
    assert comp.find_told([unknown], RUN, [question], {}) == []
    retry = asked(unknown.effect_id, "0?r1", "record_result", kind=WaitKind.RETRY)
    assert comp.find_told([unknown], RUN, retry[:1], retry[1]) == []
    others = [
        effect("1", status=EffectStatus.UNKNOWN), replace(unknown, attempted_at=6), replace(unknown, undo=""), replace(unknown, status=EffectStatus.RECORDED),
        replace(unknown, run_id="other"),
    ]
    assert comp.find_told(others, RUN, [question], given) == []


def test_the_place_names_the_effect() -> None:
    for path in ("0", "1.child/0/=k#1", "@node"):
        e = effect(path, 3, step=12)
        assert comp.place(e) == f"12.pay.{path}#3"
        assert comp.undone_at(comp.place(e)) == (12, "pay", path)


# -- the end ------------------------------------------------------------------------------------------


def test_which_ends_take_back() -> None:
    """A failure and a cancel on request; no limit on super-steps or on takeovers (§4.9, §10.6), no halt, denial, policy, and nobody's absence (§5.17)."""
    failed, canceled = ev.RunFailed("step_failed", ERROR), ev.RunCanceled("canceled")
    assert comp.ending([ev.NoteAdded("x"), failed]) == StepRecord("@undo", "@end", "step_failed", error=ERROR, kind="ending")
    assert comp.ending([canceled]) == StepRecord("@undo", "@end", "canceled", kind="ending")
    for other in (ev.RunCanceled("halted", settled=True), ev.RunCanceled("canceled", settled=True), ev.RunCanceled("unattended_handoff"), ev.RunCompleted(), ev.RunFailed("step_limit", ERROR), ev.RunFailed("takeover_limit", ERROR), ev.RunFailed("lease_too_short", ERROR)):
        assert comp.ending([other]) is None
    assert comp.ending([]) is None


def test_a_run_ends_as_was_written_down() -> None:
    run = folded(ev.RunStarted(), ev.WaitRequested(wait()))
    for fact in (ev.RunFailed("step_failed", ERROR), ev.RunCanceled("canceled")):
        record = comp.ending([fact])
        assert record is not None
        facts = comp.end_facts(run, record)
        assert facts[-1] == fact
        assert (ev.WaitClosed("w1", "canceled") in facts) is isinstance(fact, ev.RunCanceled)
        assert comp.before(facts) == list(facts[:-1])


def test_what_rests_is_woken_for_it() -> None:
    """§2.2: waiting→running is the edge there is; a run that is live already needs none."""
    failed, canceled = comp.ending([ev.RunFailed("x", ERROR)]), comp.ending([ev.RunCanceled("canceled")])
    assert failed is not None and canceled is not None
    resting = [submitted(), ev.RunStarted(), ev.WaitRequested(wait()), ev.RunWaitingForHuman()]
    run = fold_all(None, numbered(resting))
    facts = comp.wake_facts(run, [ev.RunCancelRequested("r"), ev.WaitClosed("w1"), ev.RunCanceled("canceled")], canceled)
    assert facts == [ev.RunResumed(cause="cancel"), ev.RunCancelRequested("r"), ev.WaitClosed("w1")]
    after = fold_all(run, numbered(facts, first=run.version + 1))
    assert (after.status, after.waits) == (Status.RUNNING, ()) and after.cancel_requested_at is not None
    assert comp.wake_facts(run, [ev.NoteAdded("n")], failed) == [ev.RunResumed(cause="timeout"), ev.NoteAdded("n")]
    live = folded(ev.RunStarted())
    assert comp.wake_facts(live, [ev.RunCancelRequested("r"), ev.RunCanceled("canceled")], canceled) == [ev.RunCancelRequested("r")]
    assert comp.wake_facts(live, [ev.RunCanceled("canceled")], canceled) == [ev.RunCancelRequested()], "a commit has an event"


# -- going on afterwards --------------------------------------------------------------------------------


def test_what_is_missing_is_what_was_not_done_again() -> None:
    gone, again = effect("0", undone="x"), effect("0", 2)
    assert comp.missing([gone], RUN) == [gone] and comp.missing([gone, again], RUN) == []
    assert comp.missing([gone, replace(again, status=EffectStatus.FAILED)], RUN) == [gone]
    assert comp.missing([replace(gone, run_id="other")], RUN) == []
    given = replace(gone, status=EffectStatus.REUSED, source_effect_id="r.1.pay.0#1")
    assert comp.missing([given], RUN) == [given] and comp.missing([replace(given, undone="")], RUN) == []
    later = effect("0", step=3, undone="y")
    assert comp.missing([later, gone], RUN) == [later, gone]


def undo_of(e: Effect, status: EffectStatus) -> Effect:
    return replace(e, effect_id=f"{RUN}.2.@undo.{comp.place(e)}#1", step=2, task=comp.TASK, path=comp.place(e), status=status, source_effect_id=e.effect_id, undo="")


@pytest.mark.parametrize("status", list(EffectStatus))
def test_an_undo_without_an_outcome_leaves_its_effect_in_doubt(status: EffectStatus) -> None:
    """§6.5: what may have been taken back is missing as what was; one that failed, or was given up, took nothing back."""
    done, other = effect("0"), effect("1")
    records = [done, other, undo_of(done, status)]
    doubtful = status in fx.OPEN
    assert comp.in_doubt(records) == frozenset({done.effect_id} if doubtful else ())
    assert comp.missing(records, RUN) == [done] * doubtful
    noted = comp.note_doubts([*records, effect("2", undone="x")], RUN)
    assert [(r.task, r.path, r.kind) for r in noted] == [("@undo", comp.place(done), "gone")] * doubtful
    assert comp.in_doubt([replace(records[-1], source_effect_id=None), effect("3", status=EffectStatus.UNKNOWN)]) == frozenset()


def test_what_a_call_does_whose_effect_is_being_taken_back() -> None:
    done = effect("0")
    for status, alive, verdict in [
        (EffectStatus.RECORDED, Alive.UNKNOWN, fx.Act), (EffectStatus.ATTEMPTED, Alive.YES, fx.InProgress), (EffectStatus.ATTEMPTED, Alive.NO, fx.Doubt),
        (EffectStatus.UNKNOWN, Alive.YES, fx.Doubt), (EffectStatus.FAILED, Alive.UNKNOWN, None), (EffectStatus.ABANDONED, Alive.UNKNOWN, None),
    ]:
        found = fx.judge_undo(done, undo_of(done, status), alive)
        assert (found is None) if verdict is None else isinstance(found, verdict)
    first, second = undo_of(done, EffectStatus.ABANDONED), replace(undo_of(done, EffectStatus.UNKNOWN), effect_id="later")
    assert fx.find_undo([first, second, undo_of(effect("1"), EffectStatus.RECORDED)], done) == second and fx.find_undo([], done) is None


def test_what_a_fork_goes_by_that_is_gone() -> None:
    """What it was given and does not know of yet, or holds something that was made of; nothing that it did itself, and nothing that stands."""
    gone = effect("0", run_id="r", undone="x")
    given = effect("0", status=EffectStatus.REUSED, source_effect_id=gone.effect_id, undo="")
    for theirs, own, made, named in [
        (gone, [given], False, True),
        (gone, [replace(given, undone="x")], True, False),
        (gone, [replace(given, source_effect_id="r.1.pay.0#9")], True, False),
        (gone, [given, effect("0", 2)], True, False),
        (gone, [], True, True),
        (gone, [], False, False),
        (replace(gone, undone=""), [given], True, False),
        (replace(gone, status=EffectStatus.REUSED), [given], True, False),
    ]:
        assert comp.find_gone([theirs], own, lambda e, made=made: made) == [theirs] * named


def test_what_a_run_was_given_that_is_gone() -> None:
    """Under a key that others have too: at whatever place the owner did it. What was done again since, or is known to be gone, is not named."""
    theirs = effect("7", run_id="r", undone="x")
    given = effect("0", status=EffectStatus.REUSED, source_effect_id=theirs.effect_id, undo="")
    assert comp.find_lent([theirs], [given]) == [replace(given, undone="x")]
    for other, own in [
        (replace(theirs, undone=""), [given]), (theirs, [replace(given, undone="x")]), (theirs, [given, effect("0", 2)]), (theirs, [replace(given, source_effect_id="r.1.pay.7#2")]),
        (theirs, [replace(given, status=EffectStatus.RECORDED)]), (theirs, []),
    ]:
        assert comp.find_lent([other], own) == []


def standing_at(step: int, *pending: Task) -> Checkpoint:
    """A checkpoint after so many super-steps; the values that waiting tasks see are no matter here."""
    return replace(empty(RUN), step=step, pending=pending, held={t.began: {} for t in pending if t.began})


@pytest.mark.parametrize(
    ("head", "named"),
    [
        (standing_at(0, Task("pay")), False),
        (standing_at(0, Task("ship")), False),
        (standing_at(1, Task("pay")), True),
        (standing_at(4, Task("pay", began=1), Task("ship")), False),
        (standing_at(4, Task("pay", began=2), Task("ship", began=1)), True),
        (standing_at(1), True),
    ],
    ids=["its step is the next", "it is not come to yet", "done in an earlier turn", "it waits while the run goes on", "another turn waits", "at the end"],
)
def test_a_resume_lacks_what_completed_steps_did(head: Checkpoint, named: bool) -> None:
    """§6.11, §7.3, §5.11: what a step did that has not come to its end is done again by itself; what a completed one did is not."""
    gone = effect("0", undone="x")
    assert comp.find_taken_back([gone], RUN, head) == [gone] * named
    assert comp.redoes(head, [gone]) is not named and comp.redoes(head, [])
    assert not comp.redoes(head, [gone, effect("0", step=1, task="another", undone="x")]) or head.step == 0

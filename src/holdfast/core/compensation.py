"""Compensation: what is taken back when a run fails or is cancelled, in which order, and how the run then ends (§6.11).

Taking back is done under a task of its own in the super-step that the run has come to. First it is written down how
the run is to end, so that whoever comes after a crash goes on taking back and runs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from holdfast.core import decisions
from holdfast.core import events as ev
from holdfast.core.checkpoint import Checkpoint, StepRecord
from holdfast.core.effects import Effect, EffectStatus
from holdfast.core.errors import StepLimit
from holdfast.core.run import Run
from holdfast.core.status import LIVE
from holdfast.core.waits import ABANDON, RECORD_RESULT, TIMEOUT, Decision, Wait, WaitKind

TASK = "@undo"
END = "@end"
TAKEOVER_LIMIT, LEASE_TOO_SHORT = "takeover_limit", "lease_too_short"
LIMITS = frozenset({StepLimit.code, TAKEOVER_LIMIT, LEASE_TOO_SHORT})
"""Why a run fails that has done nothing wrong that anybody knows of: it has come to a limit, and a person is to look before more is done."""
PLACE = (TASK, END)
"""Where it is on record how a run is to end that has begun to take back."""
ENDING = "ending"
GONE = "gone"
"""Names an effect that no resume serves: it may have been taken back, or was in the run that a fork had it from."""
STANDING = frozenset({EffectStatus.RECORDED, EffectStatus.REUSED})
CANCEL, CANCELED = "cancel", "canceled"


def stack(effects: Iterable[Effect], run_id: str, recorded: Sequence[str]) -> tuple[Effect, ...]:
    """The effects of a run that stand and can be taken back, the last one done first.

    ``recorded`` names effects in the order in which their results came into the log: what a person recorded elsewhere
    is not among them, and counts as the earliest.
    """
    order = {effect_id: n for n, effect_id in enumerate(recorded)}
    mine = [e for e in effects if e.run_id == run_id and e.undo and e.status is EffectStatus.RECORDED and not e.undone]
    return tuple(sorted(mine, key=lambda e: (order.get(e.effect_id, -1), e.effect_id), reverse=True))


def find_told(effects: Iterable[Effect], run_id: str, questions: Iterable[Wait], given: Mapping[str, Decision]) -> list[tuple[Effect, Decision]]:
    """The attempts of a run that nobody knows the outcome of but a person who has said it, before anybody went on with the run (§6.5).

    Of an effect: that it was done. Of the undo of one, which its call asks about: that it came through, or that it did not.
    ``given``: the answers, by the id of the wait. One is about the attempts that there were when it was given.
    """
    asked = [(w, given[w.wait_id]) for w in questions if w.kind is WaitKind.EFFECT and w.task != TASK and w.wait_id in given]
    told = []
    for effect in effects:
        if effect.run_id != run_id or not effect.open or not (effect.undo or effect.task == TASK):
            continue
        for wait, decision in asked:
            about = wait.effect_id == effect.effect_id or (effect.task != TASK and wait.effect_id == effect.source_effect_id)
            says = decision.action == RECORD_RESULT or (effect.task == TASK and decision.action == ABANDON)
            if about and says and effect.attempted_at <= decision.decided_at:
                told.append((effect, decision))
    return told


def place(effect: Effect) -> str:
    """Where an effect is taken back: its own id without the run's, which is unique however often it was done again."""
    return effect.effect_id.partition(".")[2]


def undone_at(path: str) -> tuple[int, str, str]:
    """The (step, task, path) of the effect that is taken back at a place."""
    step, task, rest = path.split(".", 2)
    return int(step), task, rest.rpartition("#")[0]


def ending(facts: Iterable[ev.Fact]) -> StepRecord | None:
    """How a run is to end by these facts, to be written down first; None if such an end takes nothing back.

    A failure does, and a cancel on request. A halt, a denial or a policy says that nothing more is to be done; a limit of the runtime's own, that
    the run goes on where it stands once somebody has looked (§4.9, §10.6).
    """
    for fact in facts:
        match fact:
            case ev.RunFailed(stop_reason=reason) if reason in LIMITS:
                return None
            case ev.RunFailed(stop_reason=reason, error=error):
                return StepRecord(TASK, END, reason, error=error, kind=ENDING)
            case ev.RunCanceled(stop_reason="canceled", settled=False):
                return StepRecord(TASK, END, CANCELED, kind=ENDING)
            case _:
                pass
    return None


def before(facts: Iterable[ev.Fact]) -> list[ev.Fact]:
    """Of the facts that would end a run, those that hold already while it takes back: what a cancel closes is closed at once."""
    return [f for f in facts if not isinstance(f, ev.RunFailed | ev.RunCanceled)]


def end_facts(run: Run, record: StepRecord) -> decisions.Facts:
    """The facts that end a run as was written down."""
    if record.error is None:
        return decisions.mark_run_canceled(run)
    return decisions.mark_run_failed(run, record.name, record.error)


def wake_facts(run: Run, facts: Iterable[ev.Fact], record: StepRecord) -> list[ev.Fact]:
    """What leaves a run that nobody drives to whoever does next, who takes back and ends it: a run at rest goes on first (§2.2)."""
    kept = before(facts)
    if run.status in LIVE:
        return kept or [ev.RunCancelRequested()]
    return [ev.RunResumed(cause=CANCEL if record.error is None else TIMEOUT), *kept]


def in_doubt(effects: Iterable[Effect]) -> frozenset[str]:
    """The effects of which nobody knows whether they were taken back: their undo was attempted, and has no outcome (§6.5)."""
    return frozenset([e.source_effect_id for e in effects if e.task == TASK and e.open and e.source_effect_id])


def missing(effects: Sequence[Effect], run_id: str) -> list[Effect]:
    """What was taken back, or may have been, and not done again: a run that went on after its step would go on without it."""
    latest: dict[tuple[int, str, str], Effect] = {}
    for e in effects:
        if e.run_id == run_id and e.status in STANDING:
            latest[e.step, e.task, e.path] = e
    doubtful = in_doubt(effects)
    return [e for e in latest.values() if e.undone or e.effect_id in doubtful]


def note_doubts(effects: Sequence[Effect], run_id: str) -> list[StepRecord]:
    """What goes on record with a resume, so that the effects in doubt are not served: their calls ask about them."""
    return [note_gone(e) for e in missing(effects, run_id) if not e.undone]


def note_gone(effect: Effect) -> StepRecord:
    return StepRecord(TASK, place(effect), effect.capability, kind=GONE)


def find_gone(theirs: Sequence[Effect], own: Iterable[Effect], made: Callable[[Effect], bool]) -> list[Effect]:
    """What the forebears of a fork have taken back though it goes by that: it was given the effect, and does not know yet, or holds what
    was ``made`` of it."""
    mine = {(e.step, e.task, e.path): e for e in own}

    def goes_by(e: Effect) -> bool:
        at = mine.get((e.step, e.task, e.path))
        return made(e) if at is None else at.status is EffectStatus.REUSED and at.source_effect_id == e.effect_id and not at.undone

    return [e for e in theirs if e.undone and e.status is EffectStatus.RECORDED and goes_by(e)]


def find_lent(theirs: Iterable[Effect], own: Iterable[Effect]) -> list[Effect]:
    """What a run was given under a key that others have too, and its owner has taken back since: the run's own records of it, as they are from now on."""
    undone = {e.effect_id: e.undone for e in theirs if e.undone}
    latest = {(e.step, e.task, e.path): e for e in own}
    return [replace(e, undone=undone[e.source_effect_id]) for e in latest.values() if e.status is EffectStatus.REUSED and not e.undone and e.source_effect_id in undone]


def redoes(checkpoint: Checkpoint, gone: Iterable[Effect]) -> bool:
    """Whether a run that goes on at this checkpoint does these effects again: there, their tasks have not begun or have not come to a barrier."""
    pending = {(checkpoint.step_of(t.key), t.key) for t in checkpoint.pending}
    return all(e.step > checkpoint.step or (e.step, e.task) in pending for e in gone)


def find_taken_back(effects: Sequence[Effect], run_id: str, head: Checkpoint) -> list[Effect]:
    """What completed steps did and is taken back, or may be: a resume would go on as if it stood, a fork does it again."""
    return [e for e in missing(effects, run_id) if not redoes(head, [e])]

"""Compensation: which effects are taken back when a run fails or is cancelled, in which order, and how the run then ends (§6.11).

Effects are taken back under a task of its own, in the current super-step of the run. Before that, the end of the run is
recorded, so that after a crash the next process continues to take back and runs nothing else.
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
"""Stop reasons of a run that reached a limit of the runtime. It may have done nothing wrong, so a person has to look before more is done."""
PLACE = (TASK, END)
"""The place of the record that says how a run ends after it has taken back its effects."""
ENDING = "ending"
GONE = "gone"
"""The kind of a record that names an effect whose result a resume must not use: it may have been taken back, here or in the run from which a fork got it."""
STANDING = frozenset({EffectStatus.RECORDED, EffectStatus.REUSED})
CANCEL, CANCELED = "cancel", "canceled"


def stack(effects: Iterable[Effect], run_id: str, recorded: Sequence[str]) -> tuple[Effect, ...]:
    """Returns the effects of a run that stand and can be taken back, the last one done first.

    ``recorded`` names effects in the order of their results in the log. An effect whose result a person recorded elsewhere
    is not among them, and counts as the earliest.
    """
    order = {effect_id: n for n, effect_id in enumerate(recorded)}
    mine = [e for e in effects if e.run_id == run_id and e.undo and e.status is EffectStatus.RECORDED and not e.undone]
    return tuple(sorted(mine, key=lambda e: (order.get(e.effect_id, -1), e.effect_id), reverse=True))


def find_told(effects: Iterable[Effect], run_id: str, questions: Iterable[Wait], given: Mapping[str, Decision]) -> list[tuple[Effect, Decision]]:
    """Returns the attempts of a run that are open on record but whose outcome a person has stated, each with that decision; the run has not continued since (§6.5).

    For an effect, the decision says that it was done. For an undo, about which the effect's call asks, it says that the undo was done or was not.
    ``given``: the answers, by the id of the wait. An answer counts only for attempts that began before it was given.
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
    """Returns the place at which an effect is taken back: its id without the run's id, which is unique even if the effect was done several times."""
    return effect.effect_id.partition(".")[2]


def undone_at(path: str) -> tuple[int, str, str]:
    """Returns the (step, task, path) of the effect that is taken back at a place."""
    step, task, rest = path.split(".", 2)
    return int(step), task, rest.rpartition("#")[0]


def ending(facts: Iterable[ev.Fact]) -> StepRecord | None:
    """Returns the record of how a run ends by these facts, to be written before effects are taken back; None if such an end takes nothing back.

    A failure takes back, and so does a cancel on request. After a halt, a denial or a policy, nothing more may be done; after a limit of the runtime, the
    run continues from the same point once a person has looked (§4.9, §10.6).
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
    """Returns those of the facts of an end that apply already while the run takes back: for example, a cancel closes waits at once."""
    return [f for f in facts if not isinstance(f, ev.RunFailed | ev.RunCanceled)]


def end_facts(run: Run, record: StepRecord) -> decisions.Facts:
    """Returns the facts that end a run as its record says."""
    if record.error is None:
        return decisions.mark_run_canceled(run)
    return decisions.mark_run_failed(run, record.name, record.error)


def wake_facts(run: Run, facts: Iterable[ev.Fact], record: StepRecord) -> list[ev.Fact]:
    """Returns the facts that wake a run which no process drives, so that its next owner takes back and ends it: a run at rest is resumed first (§2.2)."""
    kept = before(facts)
    if run.status in LIVE:
        return kept or [ev.RunCancelRequested()]
    return [ev.RunResumed(cause=CANCEL if record.error is None else TIMEOUT), *kept]


def in_doubt(effects: Iterable[Effect]) -> frozenset[str]:
    """Returns the effects for which it is not known whether they were taken back: their undo was attempted and has no outcome (§6.5)."""
    return frozenset([e.source_effect_id for e in effects if e.task == TASK and e.open and e.source_effect_id])


def missing(effects: Sequence[Effect], run_id: str) -> list[Effect]:
    """Returns the effects that were taken back, or may have been, and not done again: a run that continued after their steps would lack them."""
    latest: dict[tuple[int, str, str], Effect] = {}
    for e in effects:
        if e.run_id == run_id and e.status in STANDING:
            latest[e.step, e.task, e.path] = e
    doubtful = in_doubt(effects)
    return [e for e in latest.values() if e.undone or e.effect_id in doubtful]


def note_doubts(effects: Sequence[Effect], run_id: str) -> list[StepRecord]:
    """Returns the records to write with a resume, so that the results of effects in doubt are not used: their calls ask about them."""
    return [note_gone(e) for e in missing(effects, run_id) if not e.undone]


def note_gone(effect: Effect) -> StepRecord:
    return StepRecord(TASK, place(effect), effect.capability, kind=GONE)


def find_gone(theirs: Sequence[Effect], own: Iterable[Effect], made: Callable[[Effect], bool]) -> list[Effect]:
    """Returns the effects that the forebears of a fork have taken back although the fork relies on them: it reused the effect and has not noted that it
    was undone, or it contains what was ``made`` of the effect."""
    mine = {(e.step, e.task, e.path): e for e in own}

    def goes_by(e: Effect) -> bool:
        at = mine.get((e.step, e.task, e.path))
        return made(e) if at is None else at.status is EffectStatus.REUSED and at.source_effect_id == e.effect_id and not at.undone

    return [e for e in theirs if e.undone and e.status is EffectStatus.RECORDED and goes_by(e)]


def find_lent(theirs: Iterable[Effect], own: Iterable[Effect]) -> list[Effect]:
    """Returns a run's own records of effects that it reused under a shared key and that their owner has since taken back, now marked as undone."""
    undone = {e.effect_id: e.undone for e in theirs if e.undone}
    latest = {(e.step, e.task, e.path): e for e in own}
    return [replace(e, undone=undone[e.source_effect_id]) for e in latest.values() if e.status is EffectStatus.REUSED and not e.undone and e.source_effect_id in undone]


def redoes(checkpoint: Checkpoint, gone: Iterable[Effect]) -> bool:
    """Whether a run that continues at this checkpoint does these effects again: at it, their tasks have not begun, or no barrier has taken them."""
    pending = {(checkpoint.step_of(t.key), t.key) for t in checkpoint.pending}
    return all(e.step > checkpoint.step or (e.step, e.task) in pending for e in gone)


def find_taken_back(effects: Sequence[Effect], run_id: str, head: Checkpoint) -> list[Effect]:
    """Returns the effects of completed steps that were taken back, or may have been: a resume would continue as if they stood, a fork does them again."""
    return [e for e in missing(effects, run_id) if not redoes(head, [e])]

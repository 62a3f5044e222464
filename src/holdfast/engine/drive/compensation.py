"""Ends a run: asks the rule of §5.16 for its outcome, applies that outcome, and undoes effects before the run ends (§6.11).

Theory of operation. The way in which the run is to end is recorded together with the first undo. From then on every process that executes the run continues with
that record, and no node runs. Each undo is an effect of its own at a place of its own: its attempt is recorded before the act and its outcome after it, its key is
derived from the undone effect's key, and a person is asked if nobody knows the outcome. A failed undo is recorded as failed, and the remaining effects are still
undone. If only a person can settle an undo, the run waits for that person, so that the order of the undos is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from holdfast.core import canon, decisions, ids, reviews, superstep
from holdfast.core import compensation as core
from holdfast.core import events as ev
from holdfast.core.channels import ROOM
from holdfast.core.checkpoint import Checkpoint, Delta, Source, StepRecord, Task, TaskResult
from holdfast.core.codec import open_rows
from holdfast.core.commit import InboxItem
from holdfast.core.decisions import Facts
from holdfast.core.effects import Effect, name_gone
from holdfast.core.errors import EffectsUndone, LeaseLost, StoreError, make_own
from holdfast.core.graph import Node, Program
from holdfast.core.outcomes import REJECTED, Terminal, resolve_terminal_outcome
from holdfast.core.policy import REVIEWS, Kind, Request
from holdfast.core.progress import Progress
from holdfast.core.run import Run
from holdfast.core.status import WAITING
from holdfast.core.views import iso
from holdfast.core.waits import ABANDON, APPROVE, DENY, HALT, RECORD_RESULT, RETRY, Decision, WaitKind
from holdfast.core.wording import target_of
from holdfast.engine.base.failures import record
from holdfast.engine.base.journal import Draft, Journal
from holdfast.engine.base.services import Services
from holdfast.engine.calls import undos, words
from holdfast.engine.calls.attempt import Attempt, Suspend
from holdfast.engine.calls.effects import Options, Performance, perform_once
from holdfast.engine.calls.functions import accepts_key
from holdfast.engine.calls.waits import Ask, explain_outdated, request
from holdfast.engine.drive import outgoing
from holdfast.engine.look.snapshot import whole
from holdfast.ports import Store


class Standing(NamedTuple):
    """Effects of a run that can be undone and have not been, the newest first. ``found``: what people have answered about them that is not in the effects' records
    yet, because the run has not continued since."""

    stack: tuple[Effect, ...]
    found: Draft


async def _find_standing(store: Store, journal: Journal) -> Standing:
    run_id = journal.run.run_id
    effects = await store.effects(run_id)
    if not any(e.undo for e in effects):
        return Standing((), Draft())
    found = _settle_by_word(effects, journal, store.now())
    after = {e.effect_id: e for e in found.effects}
    recorded = [e.fact.effect_id for record in open_rows(await store.rows(run_id)) for e in record.events if isinstance(e.fact, ev.SideEffectRecorded)]
    recorded += [f.effect_id for f in found.facts if isinstance(f, ev.SideEffectRecorded)]
    return Standing(core.stack([after.get(e.effect_id, e) for e in effects], run_id, recorded), found)


def _settle_by_word(effects: list[Effect], journal: Journal, now: int) -> Draft:
    """Returns what people have answered about attempts of this run before it continued, in the form in which the calls themselves would record it."""
    draft, known = Draft(), {e.effect_id: e for e in effects}
    given = {d.wait_id: d for d in journal.run.decisions}
    for answer in [r for r in journal.progress.records.values() if r.kind == "wait"]:
        decision = decisions.read_answer(answer)
        given.setdefault(decision.wait_id, decision)
    for effect, decision in core.find_told(effects, journal.run.run_id, journal.progress.questions.values(), given):
        of = known.get(effect.source_effect_id or "") if effect.task == core.TASK else None
        if of is not None:
            draft.merge(words.settle_undo(of, effect, decision, now))
        elif effect.task != core.TASK and (data := words.read_result(effect, decision)) is not None:
            draft.merge(words.settle(effect, decision, data, now))
    return draft


def find_begun(progress: Progress) -> StepRecord | None:
    """Returns the record of how the run is to end, if it has begun to undo effects."""
    return progress.records.get(core.PLACE)


def tell_only(progress: Progress, facts: Iterable[ev.Fact]) -> list[ev.Fact] | None:
    """Returns the facts to write for a deadline that would end a run which already undoes its effects in order to end: only that the deadline has passed. Returns None if
    the facts are no such deadline, or the deadline of a question about an undo: then the run ends as it stands."""
    if find_begun(progress) is None:
        return None
    passed: list[ev.Fact] = [f for f in facts if isinstance(f, ev.WaitTimedOut) and decisions.place(f.decision.wait_id)[0] != core.TASK]
    return passed or None


def rests(journal: Journal) -> bool:
    """Whether the run has begun to undo effects and waits in between; if it is ended then, it ends as it stands. A run that is about to continue does not wait any more."""
    goes_on = any(isinstance(f, ev.RunResumed) for f in journal.held.facts) or is_told(journal)
    return find_begun(journal.progress) is not None and journal.run.status in WAITING and not goes_on


def is_told(journal: Journal) -> bool:
    """Whether a person has said how an undo ended, and the run has not continued since: that is recorded before the run may end, so that no resume goes by what was
    undone."""
    records, given = journal.progress.records, {d.wait_id for d in journal.run.decisions}
    given |= {decisions.read_answer(r).wait_id for (task, _), r in records.items() if task == core.TASK and r.kind == "wait"}
    asked = [w for w in journal.progress.questions.values() if w.task == core.TASK and w.kind is WaitKind.EFFECT and w.wait_id in given]
    return any((core.TASK, w.path.partition("?")[0]) not in records for w in asked)


async def leave_end(store: Store, run: Run, facts: tuple[ev.Fact, ...], journal: Journal, item: InboxItem | None = None) -> Draft | None:
    """Returns what is written instead of an end that no process is there to carry out: the process that executes the run next undoes its effects and ends it.

    Returns None if there is nothing to undo, or if undoing has begun and waits: then the run ends as it stands.
    """
    record = core.ending(facts)
    if record is None or find_begun(journal.progress) is not None or not (await _find_standing(store, journal)).stack:
        return None
    results = [*decisions.answers(run), *decisions.answer_records(list(facts)), record]
    return Draft(facts=core.wake_facts(run, facts, record), results=list(results), took=[] if item is None else [item.key])


def refuse_to_go_on(run: Run, effects: list[Effect], head: Checkpoint) -> None:
    """Refuses to resume a run after effects of its completed steps were undone.

    Raises:
        EffectsUndone: names the effects, and what to do instead.
    """
    gone = core.find_taken_back(effects, run.run_id, head)
    if gone:
        raise EffectsUndone(
            f"effects of its earlier steps were undone: {name_gone(gone)}; a resume would continue as if that were still done",
            hint=f"holdfast fork {run.run_id} {target_of(run.target)} does it again, from the step that did it",
        )


async def take_back(services: Services, journal: Journal, program: Program, end: Draft) -> tuple[Draft, Source] | None:
    """Undoes what can be undone, before the run ends by ``end``; returns the draft and the source of its last commit, or None if there was nothing to do.

    Raises:
        LeaseLost, StoreError: the run is left as the last commit made it.
    """
    begun = find_begun(journal.progress)
    record = begun or core.ending(end.facts)
    if record is None or journal.tip is None:
        return None
    standing = await _find_standing(services.store, journal)
    if begun is None:
        if not standing.stack:
            journal.hold(standing.found)
            return None
        leaves = journal.run.status in WAITING and not any(isinstance(f, ev.RunResumed) for f in journal.held.facts)
        facts = core.wake_facts(journal.run, end.facts, record) if leaves else core.before(end.facts)  # a person may have to be asked about an undo
        kept = list(decisions.answers(journal.run)) if leaves else []  # the run had been answered, and ends before the step that asked was entered again
        journal.hold(Draft(facts=facts, results=[*kept, record]).join(Draft(results=end.results, took=end.took)))
    if standing.found:
        await journal.save(standing.found)  # each undo depends on what is recorded
    for effect in standing.stack:
        try:
            await _Undoing(services, journal, program, effect).run()
        except Suspend as s:
            known = {w.wait_id for w in journal.run.waits}
            asked = [ev.WaitRequested(w) for w in s.waits if w.wait_id not in known]
            return Draft(facts=[*asked, ev.RunWaitingForHuman()]), Source.WAIT
    return Draft(facts=list(core.end_facts(journal.run, record))), Source.CANCEL if record.error is None else Source.FAILURE


async def _nothing(state: Any) -> None:
    """The function of the node in whose name effects are undone; it is never called."""


NODE = Node(name=core.TASK, call=_nothing)


class _Undoing:
    """Undoes one effect."""

    def __init__(self, services: Services, journal: Journal, program: Program, effect: Effect) -> None:
        self._services = services
        self._journal = journal
        self._program = program
        self._effect = effect
        self._path = core.place(effect)
        self._attempt = Attempt(services, journal, NODE, Task(core.TASK))
        self._by_hand = f"{self._path}?code"
        self._name = effect.undo.rpartition(":")[2].rpartition(".")[2]

    async def run(self) -> None:
        """Undoes the effect, once for this end of the run. A failure is recorded and does not stop the other undos.

        Raises:
            Suspend: a person is asked.
        """
        if self._journal.record(core.TASK, self._path) is not None:
            return
        try:
            await self._take_back(await self._find_ban())
        except (LeaseLost, StoreError):
            raise
        except Exception as e:  # the user's function may raise anything
            if self._journal.dead is not None:
                raise make_own(self._journal.dead) from None
            if self._journal.record(core.TASK, self._path) is None:
                self._fail(e)

    async def _take_back(self, ban: str | None) -> None:
        """Undoes the effect. If that cannot be done here, because this process lacks the function or because of the ``ban``, a person is asked about an attempt
        that an earlier process left without an outcome."""
        effect = self._effect
        undo = undos.find(self._services.undos, self._program, effect)
        options = Options(
            undoes=effect,
            side_effects=effect.effect_class.value,
            idempotent=effect.idempotent and undo is not None and accepts_key(undo),
            name=self._name,
        )
        by_hand = self._performance(_nothing, (), options)
        answered = any(task == core.TASK and path.startswith(self._by_hand) for task, path in self._journal.progress.records)  # to a process that could not undo it
        left = await by_hand.find_left() if undo is None or ban is not None or answered else None
        if ban is not None and left is None and not answered:
            raise await by_hand.block(ban)
        if undo is None or left is not None or answered:
            await by_hand.by_hand(await self._ask(left, ban), left)
        else:
            args = undos.fitting(undo, undos.read_given(await whole(self._services.store, effect)))
            await perform_once(self._attempt, undo, args, options, self._name, self._path)

    def _performance(self, undo: Any, args: tuple[Any, ...], options: Options) -> Performance:
        return Performance(self._attempt, undo, args, options, self._name, self._path)

    async def _ask(self, left: Effect | None, ban: str | None) -> Decision:
        """Asks a person about an undo that is not carried out here; returns the answer. ``left``: an attempt at it that has no outcome. ``ban``: why it is not
        allowed; if it is, this process cannot find the function."""
        effect, name, place = self._effect, self._name, self._by_hand
        show = {"effect": effect.capability, "key": effect.key, "undo": effect.undo, "step": effect.step}
        if left is None:
            prompt = f"{effect.capability} is to be undone by {name}, which the process that executes the run cannot find. Undo it by hand and record that, or abandon it."
        else:
            why = "the process that executes the run cannot find it" if ban is None else f"it may not be attempted again ({ban})"
            prompt = (
                f"{name}, which undoes {effect.capability}, was attempted, and its outcome is unknown; {why}. Check with its receiver. "
                f"Record the result if {effect.capability} was undone, also by hand; abandon {name} if it was not."
            )
            place = f"{place}{left.effect_id.rpartition('#')[2]}"
            show |= {"attempted_at": iso(left.attempted_at), "owner": left.owner, "closed": left.closed, "detail": left.detail}
        return await request(
            self._attempt,
            Ask(
                kind=WaitKind.EFFECT, prompt=prompt, name=name, show=show, actions=(RECORD_RESULT, ABANDON, HALT),
                effect_id=(left or effect).effect_id, path=place,
            ),
        )

    async def _find_ban(self) -> str | None:
        """Asks the current policy whether this effect may be undone (§6.11); returns why it may not, or None. An answer that is recorded under the same policy counts.

        Raises:
            Suspend: a person is asked.
        """
        policy = self._services.policy
        if policy is None:
            return None
        place = f"{self._path}?gate"
        known = self._journal.record(core.TASK, place)
        passed = None if known is None or known.kind != "gate" else canon.decode(known.value or b"")
        if passed is None or passed[1] != policy.snapshot_id:
            verdict = policy.ask(self._request())
            passed = [verdict.kind.value, policy.snapshot_id, verdict.prompt or verdict.reason]
            fact = ev.PolicyEvaluated(self._name, verdict.kind.value, verdict.reason, policy.snapshot_id)
            self._journal.hold(Draft(facts=[fact], results=[StepRecord(core.TASK, place, core.TASK, value=canon.pack(passed)[1], kind="gate")]))
        kind, _, why = passed
        if kind == Kind.REQUIRE_HUMAN:
            prompt = why or f"May {self._name} undo {self._effect.capability}?"
            asked = await request(self._attempt, Ask(kind=WaitKind.GATE, prompt=prompt, path=f"{place}/0", actions=(APPROVE, DENY), on_deny="deliver"))
            return None if asked.action == APPROVE else f"{asked.actor} denied it"
        return str(why) if kind == Kind.DENY else None

    def _request(self) -> Request:
        node = next((n for n in self._program.nodes.values() if n.name == ids.node_of(self._effect.task)), NODE)
        run = self._journal.run
        return Request(
            run=run, node=node.name, capabilities=node.capabilities, side_effects=self._effect.effect_class.value,
            environment=self._services.environment, waivers=run.waivers, undo=self._name,
        )

    def _fail(self, error: Exception) -> None:
        """Records a failure that has left no record of its own."""
        value = record(error, where=self._path)
        fact = ev.StepFailed(self._journal.progress.checkpoint.step + 1, core.TASK, value, path=self._path)
        self._journal.hold(Draft(facts=[fact], results=[StepRecord(core.TASK, self._path, self._name, error=value, kind="effect")]))


def _read_given(journal: Journal) -> Decision | None:
    record = journal.progress.records.get(reviews.AT)
    return None if record is None else decisions.read_answer(record)


def find_sent_back(journal: Journal) -> str | None:
    """Returns the feedback of a reviewer who has sent the result back; otherwise None."""
    given = _read_given(journal)
    return given.feedback if given is not None and given.action == RETRY else None


def redone(program: Program, journal: Journal) -> tuple[str, ...]:
    """Returns the nodes that run again after a review, under the names that the current code gives them, since the question may be older than the code."""
    return reviews.redone(program, journal.progress.checkpoint)


def cross_reviewed(
    services: Services, journal: Journal, program: Program, signals: tuple[TaskResult, ...], draft: Draft, feedback: str | None
) -> tuple[Delta, Checkpoint] | None:
    """Returns the barrier that follows the answer to a review; None if the run ends without one. It applies what tasks have finished beside a rejected delivery, and
    the ``signals`` since the last barrier. ``draft`` gets what these tasks leave to be sent. ``feedback``: another round begins with these words.

    Raises:
        Exception: a reducer of the user's raised it.
    """
    parent, results = journal.progress.checkpoint, journal.progress.results
    if feedback is not None:
        delta, moved = superstep.again(program, parent, redone(program, journal), feedback, results, signals)
    elif results or signals:
        delta, moved = superstep.close(program, parent, results, signals)
    else:
        return None
    if journal.stored > ROOM:
        journal.weights.hold(program.channels, parent.values, moved.writes.values(), moved.values)
    outgoing.add(services.store, journal, draft, [results[key] for key in delta.done if isinstance(key, str) and key in results], services.clock.now())
    return delta, moved


def outcome(services: Services, program: Program, journal: Journal, delivery: str | None = None) -> Terminal:
    """Returns how the run ends. A consent that was given under another policy does not count (§5.8)."""
    run, given = journal.run, _read_given(journal)
    kinds = REVIEWS if services.policy is None else services.policy.reviews
    return resolve_terminal_outcome(
        run.status,
        reviewed=program.kind in kinds,
        handoff=run.active_handoff is not None,
        decision=None if given is None or explain_outdated(services, given) else given.action,
        delivery=delivery,
    )


def source(run: Run, ends: Terminal) -> Source:
    """Returns the source of the run's last checkpoint."""
    if ends is Terminal.DONE:
        return Source.LOOP
    return Source.WAIT if ends is Terminal.AWAITING_HUMAN_REVIEW and not run.unattended else Source.CANCEL


def facts(services: Services, program: Program, journal: Journal, ends: Terminal, delivery: str | None) -> Facts:
    """Returns the facts of that outcome. Each review is asked under a new wait id."""
    run, given = journal.run, _read_given(journal)
    if ends is not Terminal.AWAITING_HUMAN_REVIEW:
        return decisions.apply_outcome(run, ends, why="delivery_rejected" if delivery == REJECTED else "halted")
    review = reviews.wait(
        program,
        run,
        journal.progress.checkpoint,
        round=journal.progress.asked.get(reviews.AT, 0),
        now=services.clock.now(),
        snapshot=run.policy_snapshot_id if services.policy is None else services.policy.snapshot_id,
        verdict=(explain_outdated(services, given) if given is not None else None) or ("rejected" if delivery == REJECTED else ""),
    )
    return decisions.apply_outcome(run, ends, review=review)


__all__ = ["cross_reviewed", "facts", "find_begun", "find_sent_back", "is_told", "leave_end", "outcome", "redone", "refuse_to_go_on", "source", "take_back"]

"""Repairs runs: only the safe kinds of damage of §12.3, with the result that the live writer would have written.

A plan is made from the same diagnosis that ``check`` prints, and making it writes nothing. Applying it is a single
method of the store: it makes a backup, then replaces the row by the fold of its events and appends the audit record
``state.repaired``. What a plan would leave is diagnosed before the plan is offered, so that a repair that would not fix the run
is never begun. A repair resumes nothing and decides nothing.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from holdfast.callers import VIA
from holdfast.core import canon, codec, decisions
from holdfast.core import events as ev
from holdfast.core.checkpoint import Checkpoint, Delta, Source, boundaries
from holdfast.core.codec import open_row
from holdfast.core.commit import Commit, Tip
from holdfast.core.consistency import Diagnosis, Problem, asleep, drift
from holdfast.core.effects import Effect
from holdfast.core.errors import InvalidInput, RepairRefused
from holdfast.core.lease import COUNTER_BITS, TOUCH, counter
from holdfast.core.progress import Progress
from holdfast.core.run import Run, fold, fold_all
from holdfast.core.status import LIVE, Condition
from holdfast.core.views import condition
from holdfast.core.waits import HALTING, Decision, find_halt
from holdfast.engine.keep.check import PAGE, Checker, find_needs, keeper, merge
from holdfast.engine.keep.remaking import LOST, Remaking
from holdfast.engine.look.snapshot import missing
from holdfast.engine.look.threads import Threads
from holdfast.ports import Evidence, Store

HALT = "halt_decision_without_halted_meta"
PARTIAL = "event_tail_partial"
FOLDABLE = frozenset(
    {
        "terminal_with_stale_handoff", "snapshot_status_drift", "snapshot_field_drift", "run_row_missing",
        "terminal_event_without_terminal_snapshot",
    }
)
UNDECIDED = "the run was interrupted with an undecided handoff: decide it first (holdfast decide)"
NOTES = frozenset({"carry_record_missing", "blob_use_record_missing"})
"""Missing records of what a run needs from shared data; the run's log says what it needs."""
RECORDS = frozenset({"effect_record_missing", "effect_record_altered"})
"""Records of effects that the log reports, and that are made again from it. A record whose digest does not match is not one of these."""
SAFE = FOLDABLE | {HALT, PARTIAL} | NOTES
"""The kinds of damage that can be repaired safely (§12.3); everything else is only diagnosed."""

APART, FAR = 2**16, 2 ** (COUNTER_BITS - 1)
"""A fence that is ``FAR`` beyond the newest one in the log cannot be right, because few claims make no commit; a repair then uses one that is ``APART`` beyond it."""

LOG_DAMAGE = frozenset(
    {"event_seq_gap", "event_seq_duplicate", "event_chain_broken", "event_unreadable", "checkpoint_hash_mismatch", "log_rolled_back"}
)
DOUBTFUL = frozenset({"unknown_status", "meta_handoff_without_event", "terminal_snapshot_without_event"})
"""The row says something that no event says: only a person can decide which of the two is right."""


class Action(msgspec.Struct, frozen=True):
    """One thing that a repair does, or would do, and the problem that it is for."""

    code: str
    does: str


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair found, would do or did. ``refused``: a stable code; empty if the repair is not refused."""

    run_id: str
    dry_run: bool
    applied: bool = False
    needs_operator_decision: bool = False
    refused: str = ""
    reason: str = ""
    problems: tuple[Problem, ...] = ()
    actions: tuple[Action, ...] = ()
    backup: str | None = None
    status_before: str | None = None
    status_after: str | None = None


class _Folded(msgspec.Struct, frozen=True):
    """What the log says: the run, the end of its log, its checkpoint, and a halt that was decided and not carried out."""

    run: Run
    tip: Tip
    checkpoint: Checkpoint
    fence: int
    halt: tuple[Run, Decision, str] | None
    effects: tuple[Effect, ...] = ()


class Repairer:
    """Plans and applies repairs over one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keeper = keeper(store)
        self._checker = Checker(store)

    async def repair(self, run_id: str, *, apply: bool = False, actor: str = "operator", rebuild: bool = False, accept: bool = False) -> Repair:
        """Diagnoses a run, and repairs it if ``apply``. With ``rebuild`` the fold of the events is taken to be right, whatever the row says. With ``accept``, records
        that the log mentions and that cannot be made again from it are accepted as lost.

        Raises:
            InvalidInput, RunNotFound: there is no such run.
            VersionConflict, LeaseLost: the run changed in the meantime; nothing was written.
            StoreError: the write failed; nothing was changed.
        """
        if not run_id:
            raise InvalidInput("the run id is empty", hint="list the runs: holdfast runs")
        evidence = await self._keeper.evidence(run_id)
        if evidence is None:
            raise await missing(self._store, run_id)
        diagnosis = await self._checker.examine(evidence)
        problems = tuple(merge(evidence, diagnosis))
        before = evidence.run.status.value if isinstance(evidence.run, Run) else None
        report = Repair(run_id=run_id, dry_run=not apply, problems=problems, status_before=before, status_after=before)
        codes = {p.code for p in problems}
        beside = (codes & RECORDS if diagnosis.lost else set()) | (diagnosis.lost_codes if accept else set())
        wanted = codes & (SAFE | DOUBTFUL if rebuild else SAFE) | beside
        undecided = self._is_undecided(evidence, diagnosis, codes)
        if undecided and not (evidence.lease is not None and evidence.lease.live(self._store.now())):
            return replace(report, refused="needs_operator_decision", reason=UNDECIDED, needs_operator_decision=True)
        if not wanted:
            return replace(report, reason="nothing to repair" if not codes else "diagnosis only: none of this has a safe repair")
        if (refusal := self._refusal(evidence, diagnosis, codes, rebuild)) is not None:
            code, reason = refusal
            return replace(report, refused=code, reason=reason)
        told = await self._fold(evidence, diagnosis.lost)
        if evidence.needs is not None:
            evidence = replace(evidence, needs=find_needs(diagnosis))
        commits = _commits(told, evidence, sorted(wanted), actor, self._store.now())
        after = commits[-1].run
        if left := await self._find_errors(evidence, told, codes - beside):
            return replace(report, refused="diagnosis_only", reason=f"the repair would not fix everything: {', '.join(left)} would be left")
        report = replace(report, actions=_actions(wanted, evidence, told, after), status_after=after.status.value)
        if not apply:
            return replace(report, reason="dry run: --apply does this")
        backup = await self._keeper.rebuild(evidence, commits)
        return replace(report, applied=True, backup=backup or None, reason="repaired")

    def _refusal(self, evidence: Evidence, diagnosis: Diagnosis, codes: set[str], rebuild: bool) -> tuple[str, str] | None:
        """Returns what prevents any repair of this run (§12.3); None if nothing does."""
        lease = evidence.lease
        if lease is not None and lease.live(self._store.now()):
            return "run_is_live", f"{lease.owner} executes the run; repair it when it waits or has ended"
        if damage := sorted(codes & LOG_DAMAGE):
            return "diagnosis_only", f"the log itself is damaged ({', '.join(damage)}), so nothing says what is right: restore a backup"
        # A row that is ahead of a partial tail of the log contains the commit of which the tail is the beginning.
        doubtful = DOUBTFUL - {"terminal_snapshot_without_event"} if PARTIAL in codes else DOUBTFUL
        if not rebuild and (doubt := sorted(codes & doubtful)):
            return "diagnosis_only", f"the row contains facts that no event records ({', '.join(doubt)}): look at the run first; holdfast doctor --rebuild then rewrites the row from the events"
        return None

    def _is_undecided(self, evidence: Evidence, diagnosis: Diagnosis, codes: set[str]) -> bool:
        """Whether the run was interrupted with a handoff that nobody has decided: nothing is repaired before that decision (§12.3)."""
        folded = diagnosis.folded
        if "interrupted_with_active_handoff" in codes:
            return True
        if folded is None or folded.active_handoff is None or folded.status not in LIVE:
            return False
        return evidence.lease is None or condition(folded, evidence.lease, self._store.now()) is Condition.INTERRUPTED

    async def _fold(self, evidence: Evidence, lost: Collection[str]) -> _Folded:
        """Walks the log once more, for what it says and not for what is wrong with it. ``lost``: the effects whose records are made again."""
        assert evidence.tip is not None
        progress, remaking, after = Progress(evidence.run_id), Remaking(lost), 0
        run: Run | None = None
        halt: tuple[Run, Decision, str] | None = None
        fence = self._store.incarnation << COUNTER_BITS
        while after < evidence.tip.seq and (page := await self._keeper.log(evidence.run_id, after, PAGE)):
            if not progress.checkpoint.seq and (origin := await Threads(self._store).origin(evidence.run_id, page)) is not None:
                progress.checkpoint = origin[0]
            for row in page:
                if row.seq > evidence.tip.seq:
                    break
                record = open_row(row)
                progress.step(record)
                remaking.step(record)
                fence = self._store.incarnation << COUNTER_BITS | record.fence
                for event in record.events:
                    halt = _halting(run, event.fact, halt)
                    run = fold(run, event)
            after = page[-1].seq
        if run is None:
            raise RepairRefused(f"{evidence.run_id} has no events from which its row could be rebuilt")
        tip = replace(evidence.tip, seq=progress.seq, hash=progress.hash)
        above = fence if evidence.lease is None else _above(evidence.lease.fence, fence)
        return _Folded(run, tip, progress.checkpoint, above, halt, remaking.effects(run, self._store.now()))

    async def _find_errors(self, evidence: Evidence, told: _Folded, codes: set[str]) -> list[str]:
        """Returns the errors that would remain if the row were the fold of the events."""
        lease = evidence.lease
        if lease is not None and asleep(told.run, lease):
            lease = replace(lease, due=told.run.wake_at or self._store.now())
        mended = await self._checker.examine(replace(evidence, run=told.run, lease=lease, problems=()))
        return sorted({p.code for p in mended.problems() if p.severity == "error" and p.code in codes} - {HALT})


def _above(stated: int, logged: int) -> int:
    """Returns the fence from which a repair continues: that of the row, unless the log shows that it cannot be right; then one that was never used."""
    return stated if logged <= stated < logged + FAR else logged + APART


def _halting(run: Run | None, fact: ev.Fact | ev.Unknown, halt: tuple[Run, Decision, str] | None) -> tuple[Run, Decision, str] | None:
    """Tracks a decision that ends the run until the run ends; keeps the run as it was before the decision, and the stop reason."""
    match fact:
        case ev.WaitDecided(decision=d) if run is not None and d.action in HALTING and d.resume:
            wait = next((w for w in run.waits if w.wait_id == d.wait_id), None)
            reason = None if wait is None else find_halt(wait, d)
            return halt if reason is None else (run, d, reason)
        case ev.RunCanceled() | ev.RunCompleted() | ev.RunFailed():
            return None
    return halt


def _commits(told: _Folded, evidence: Evidence, codes: list[str], actor: str, now: int) -> list[Commit]:
    """Makes the commits to append: the halt that was decided, with the time of its decision, and the audit record."""
    fence, run, tip = told.fence + 1, told.run, told.tip
    commits: list[Commit] = []
    if HALT in codes and told.halt is not None:
        commits.append(_halt(told, fence))
        run = commits[-1].run
        sealed = codec.seal(commits[-1], tip.hash).row
        tip = Tip(sealed.seq, sealed.hash, tip.row, tip.since, tip.whole)
        fence += 1
    facts: list[ev.Fact] = [ev.StateRepaired(code, _detail(code, evidence, told.run), VIA.get()) for code in codes]
    facts += [ev.SideEffectUnknown(e.effect_id, e.key, e.step, e.task, e.path, LOST) for e in told.effects if e.open]
    commits.append(replace(_commit(run, tip, tuple(facts), fence, now, actor), effects=told.effects))
    return commits


def _halt(told: _Folded, fence: int) -> Commit:
    """Makes the commit of a halt as the live writer does: the same facts, the same checkpoint, at the time of the decision (T-23)."""
    assert told.halt is not None
    before, decision, reason = told.halt
    facts = list(decisions.mark_run_halted(before, reason))
    data = codec.encode_delta(Delta(step=told.checkpoint.step, source=Source.CANCEL))
    digest = canon.chain(told.checkpoint.hash, data)
    facts.append(ev.CheckpointSaved(hash=digest, source=Source.CANCEL.value))
    bare = _commit(told.run, told.tip, tuple(facts), fence, decision.decided_at, decision.actor)
    checkpoint = replace(
        told.checkpoint, seq=bare.events[-1].seq, parent=told.checkpoint.checkpoint_id, created_at=decision.decided_at, hash=digest,
        waits=(), boundaries=boundaries(bare.events, advanced=False), source=Source.CANCEL, writes={},
    )
    return replace(bare, checkpoint=checkpoint, delta=data)


def _commit(run: Run, tip: Tip, facts: tuple[ev.Fact, ...], fence: int, at: int, actor: str) -> Commit:
    events = tuple(ev.Event(tip.seq + 1 + i, at, fact, actor, counter(fence)) for i, fact in enumerate(facts))
    return Commit(run=fold_all(run, events), events=events, after=tip, fence=fence, at=at, actor=actor, lease=TOUCH)


def _detail(code: str, evidence: Evidence, folded: Run) -> str:
    """Says what was wrong, for the audit record."""
    if code not in FOLDABLE or not isinstance(evidence.run, Run):
        return ""
    return ", ".join(_differing(evidence, evidence.run, folded))


def _differing(evidence: Evidence, row: Run, folded: Run) -> list[str]:
    return drift(row, folded) + (["due"] if asleep(folded, evidence.lease) else [])


def _actions(wanted: set[str], evidence: Evidence, told: _Folded, after: Run) -> tuple[Action, ...]:
    found = []
    for code in sorted(wanted):
        if code == HALT and told.halt is not None:
            found.append(Action(code, f"ends the run for good, with the status {after.status}, because of the decision of {told.halt[1].actor}"))
        elif code == PARTIAL:
            found.append(Action(code, "cuts the log to its last whole commit; the bytes stay in the backup"))
        elif code in RECORDS and told.effects:
            count = sum(e.open for e in told.effects)
            found.append(Action(code, f"records {len(told.effects)} effect(s) again from the log; the outcome of {count} of them is not there, so a person is asked"))
        elif code.endswith("_record_missing") and code not in NOTES:
            found.append(Action(code, "accepts that what the log tells of is lost; no check reports it from then on"))
        elif code in NOTES:
            found.append(Action(code, "records again what the run refers to, so that no prune deletes it"))
        elif isinstance(evidence.run, Run):
            names = ", ".join(_differing(evidence, evidence.run, told.run)) or "its copies"
            found.append(Action(code, f"rewrites the row from its {told.tip.seq} events: {names}"))
        else:
            found.append(Action(code, f"writes the row again from {told.tip.seq} events"))
    return tuple(found)


__all__ = ["DOUBTFUL", "LOG_DAMAGE", "SAFE", "Action", "Repair", "Repairer"]

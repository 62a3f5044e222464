"""How a run ends in which nothing is runnable: the reducer of §5.16 is asked, and here is what it is told and what its word does."""

from __future__ import annotations

from holdfast.core import decisions, reviews
from holdfast.core.checkpoint import Source
from holdfast.core.decisions import Facts
from holdfast.core.graph import Program
from holdfast.core.outcomes import REJECTED, Terminal, resolve_terminal_outcome
from holdfast.core.policy import REVIEWS
from holdfast.core.run import Run
from holdfast.core.waits import RETRY, Decision
from holdfast.engine.base.journal import Journal
from holdfast.engine.base.services import Services
from holdfast.engine.calls.waits import outdated


def answered(journal: Journal) -> bool:
    """Whether a person's answer to the review is on record and not acted upon yet."""
    return reviews.AT in journal.progress.records


def _given(journal: Journal) -> Decision | None:
    record = journal.progress.records.get(reviews.AT)
    return None if record is None else decisions.read_answer(record)


def sent_back(journal: Journal) -> str | None:
    """What a reviewer wants changed, if that is what the review came to."""
    given = _given(journal)
    return given.feedback if given is not None and given.action == RETRY else None


def redone(program: Program, journal: Journal) -> tuple[str, ...]:
    """The nodes that are done again: as the code that is here names them, since the question may be older than it."""
    return reviews.redone(program, journal.progress.checkpoint)


def outcome(services: Services, program: Program, journal: Journal, delivery: str | None = None) -> Terminal:
    """What becomes of the run. A consent given under another policy does not count (§5.8)."""
    run, given = journal.run, _given(journal)
    kinds = REVIEWS if services.policy is None else services.policy.reviews
    return resolve_terminal_outcome(
        run.status,
        reviewed=program.kind in kinds,
        handoff=run.active_handoff is not None,
        decision=None if given is None or outdated(services, given) else given.action,
        delivery=delivery,
    )


def source(run: Run, ends: Terminal) -> Source:
    """What the last checkpoint comes from."""
    if ends is Terminal.DONE:
        return Source.LOOP
    return Source.WAIT if ends is Terminal.AWAITING_HUMAN_REVIEW and not run.unattended else Source.CANCEL


def facts(services: Services, program: Program, journal: Journal, ends: Terminal, delivery: str | None) -> Facts:
    """The facts of that outcome. A review is asked under an id of its own each time."""
    run, given = journal.run, _given(journal)
    if ends is not Terminal.AWAITING_HUMAN_REVIEW:
        return decisions.applied(run, ends, why="delivery_rejected" if delivery == REJECTED else "halted")
    review = reviews.wait(
        program,
        run,
        journal.progress.checkpoint,
        round=journal.progress.asked.get(reviews.AT, 0),
        now=services.clock.now(),
        snapshot=run.policy_snapshot_id if services.policy is None else services.policy.snapshot_id,
        verdict=(outdated(services, given) if given is not None else None) or ("rejected" if delivery == REJECTED else ""),
    )
    return decisions.applied(run, ends, review=review)


__all__ = ["answered", "facts", "outcome", "redone", "sent_back", "source"]

"""What finished tasks leave to be sent, and their rows for people and for the application (§9.1, §9.2, §9.6)."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core import canon, ids, intents
from holdfast.core import events as ev
from holdfast.core.checkpoint import IntentWrite, TaskResult
from holdfast.core.commit import LedgerRow, Statement
from holdfast.core.effects import ReplayPolicy
from holdfast.core.errors import StatementFailed
from holdfast.core.lease import at_once
from holdfast.engine.base.journal import Draft, Journal
from holdfast.ports import Store, takes_statements


def add(store: Store, journal: Journal, draft: Draft, done: Sequence[TaskResult], now: int) -> None:
    """Adds the intents, ledger rows and SQL statements of the finished tasks, under keys that are the same if a task is computed again (§9.2).

    Raises:
        StatementFailed: the store executes no statements of the application.
        StepFailure: an ancestor whose messages this run must not repeat is not in this store.
    """
    run, echo = journal.run, journal.echo
    anew = run.replay_effects == ReplayPolicy.REEXECUTE
    if echo is not None and not anew and any(result.intents or any(row.statement for row in result.ledger) for result in done):
        echo.expect_source(run.run_id, "what this step sends")
    for result in done:
        step = journal.progress.checkpoint.step_of(result.task)
        step_id = ids.step_id(run.run_id, step, result.task)
        for n, write in enumerate(result.intents):
            if (key := _find_key(journal, f"{step}.{result.task}!{n}", write, anew=anew)) is not None:
                draft.intents.append(
                    intents.Intent(
                        intent_id=f"{step_id}!{n}", run_id=run.run_id, type=write.type, payload=write.payload, key=key, order_key=write.order_key,
                        created_at=now, due=at_once(now), tenant_id=run.tenant_id, target=intents.target(canon.decode(write.payload)),
                        digest=intents.digest(write.type, write.payload),
                    )
                )
                draft.facts.append(ev.IntentEnqueued(f"{step_id}!{n}", write.type))
        if echo is None or anew or echo.reached <= journal.progress.checkpoint.step:  # otherwise the source run has executed them
            draft.statements += _list_statements(store, result)
        for row in result.ledger:
            if not row.statement:
                draft.ledger.append(LedgerRow(run.run_id, row.topic, row.key, row.data, now, step_id))
                draft.facts.append(ev.LedgerAppended(row.topic, row.key))


def _find_key(journal: Journal, place: str, write: IntentWrite, *, anew: bool) -> str | None:
    """Returns the key of the intent at a place; None if the source run has sent the same, or will, so that it is not sent again (§7.8, T-72)."""
    run, echo = journal.run, journal.echo
    sent = None if echo is None or anew else echo.intents.get(place)
    if sent is not None and intents.same(sent, write.type, write.payload):
        return None
    if write.key:
        return write.key
    if echo is None:
        return f"{run.lineage_root}.{place}"
    return f"{run.run_id if anew or sent is not None else echo.scope}.{place}"


def _list_statements(store: Store, result: TaskResult) -> list[Statement]:
    found = [Statement(row.statement, row.data) for row in result.ledger if row.statement]
    if found and not takes_statements(store):
        raise StatementFailed(f"{store.url} does not support ctx.sql", hint="ctx.sql is for PostgreSQL")
    return found


__all__ = ["add"]

"""Figures of a store and of this process, for Prometheus and OpenTelemetry (§18.3). Labels have a bounded number of values; a run's id is never one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from holdfast.core.status import TERMINAL, WAITING, Condition, Status
from holdfast.core.views import condition
from holdfast.meters import Histogram, Meter
from holdfast.ports import RunFilter, Store, Tally

MOST = 10_000
OPEN = tuple(s for s in Status if s not in TERMINAL)
ENDED = {"done", "halted", "cancelled", "failed"}


class Figure(msgspec.Struct, frozen=True):
    """One figure: its name, its description (``says``), and its values by the value of their label ("" without a label). ``grows``: it is a counter."""

    name: str
    says: str
    values: Mapping[str, float]
    label: str = ""
    grows: bool = False


class Spread(msgspec.Struct, frozen=True):
    """A histogram: how often something was at most so large."""

    name: str
    says: str
    of: Histogram


async def figures(store: Store, tally: Tally, tenant_id: str | None, meter: Meter | None = None) -> list[Figure | Spread]:
    """Returns all figures: of the present state of the store and, with ``meter``, of what this process has done since the metrics were first read."""
    now = store.now()
    runs = await store.runs(RunFilter(tenant_id=tenant_id, statuses=OPEN, limit=MOST))
    stands = Counter(condition(run, lease, now).value for run, lease in runs)
    waiting = [run for run, _ in runs if run.status in WAITING]
    due = [(run, lease.due) for run, lease in runs if lease.owner is None and lease.due is not None and lease.due <= now]
    oldest: dict[str, float] = {}
    for run, at in due:
        oldest[run.queue] = max(oldest.get(run.queue, 0.0), (now - max(at, run.created_at)) / 1_000_000)
    holding = await store.workers()
    intents = Counter(str(i.state) for i in await store.intents(tenant_id=tenant_id, limit=MOST))
    unsent = await store.intents(state="queued", tenant_id=tenant_id, limit=1)
    first = min((w.requested_at for run in waiting for w in run.waits), default=now)
    told: list[Figure | Spread] = [
        Figure("holdfast_runs", "Runs that have not ended, by condition.", {c.value: stands.get(c.value, 0) for c in Condition if c.value not in ENDED}, "condition"),
        Figure("holdfast_runs_kept", "Runs that are kept, by status.", dict(tally.runs), "status"),
        Figure("holdfast_waits", "Open waits, by kind.", Counter(str(w.kind) for run in waiting for w in run.waits), "kind"),
        Figure("holdfast_effects", "Effect records, by status.", dict(tally.effects), "status"),
        Figure("holdfast_intents", "Intents, by state.", intents, "state"),
        Figure("holdfast_queue_due", "Runs that are due and not taken, by queue.", Counter(run.queue for run, _ in due), "queue"),
        Figure("holdfast_queue_oldest_seconds", "For how long the oldest run of a queue has been due.", oldest, "queue"),
        Figure("holdfast_workers", "Processes that hold leases, by whether they are alive.", Counter(w.alive for w in holding), "alive"),
        Figure("holdfast_unknown_effects", "Effects with an unknown outcome.", {"": tally.effects.get("unknown", 0)}),
        Figure("holdfast_takeovers", "Takeovers of runs that have not ended.", {"": sum(run.takeovers for run, _ in runs)}),
        Figure("holdfast_oldest_lease_seconds", "Age of the oldest process that holds leases.", {"": max(((now - w.started_at) // 1_000_000 for w in holding), default=0)}),
        Figure("holdfast_oldest_queued_intent_seconds", "Age of the oldest intent that is queued.", {"": sum(max(0, now - i.created_at) // 1_000_000 for i in unsent)}),
        Figure("holdfast_oldest_wait_seconds", "Age of the oldest open wait.", {"": round((now - first) / 1_000_000, 3)}),
    ]
    if meter is not None:
        told += [
            Figure("holdfast_steps_total", "Steps that this process has ended since the metrics were first read, by outcome.", dict(meter.steps), "outcome", True),
            Figure("holdfast_attempts_total", "Attempts at steps that this process has ended since the metrics were first read.", {"": meter.attempts}, "", True),
            Spread("holdfast_claim_seconds", "How long this process's claims took.", meter.claims),
            Spread("holdfast_commit_seconds", "How long it took to make a group of commits durable.", meter.commits),
            Spread("holdfast_commit_group_size", "How many commits were made durable at once.", meter.groups),
        ]
    return told


__all__ = ["Figure", "Spread", "figures"]

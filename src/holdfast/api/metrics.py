"""Figures for Prometheus: what stands in the store now (§18.3). Labels are bounded; a run's id is never one."""

from __future__ import annotations

from collections import Counter

from holdfast.core.status import TERMINAL, WAITING, Condition, Status
from holdfast.core.views import condition
from holdfast.ports import RunFilter
from holdfast.runtime import Runtime

MOST = 10_000


async def text(rt: Runtime, tenant_id: str | None) -> str:
    """Runs that have not ended by condition, waits and the oldest, effects by status, intents by state, workers, due and blocked runs."""
    now = rt.store.now()
    open_ = tuple(s for s in Status if s not in TERMINAL)
    runs = await rt.store.runs(RunFilter(tenant_id=tenant_id, statuses=open_, limit=MOST))
    stands = Counter(condition(run, lease, now).value for run, lease in runs)
    waits = Counter(str(w.kind) for run, _ in runs if run.status in WAITING for w in run.waits)
    oldest = min((w.requested_at for run, _ in runs if run.status in WAITING for w in run.waits), default=now)
    queues = Counter(run.queue for run, lease in runs if lease.owner is None and lease.due is not None and lease.due <= now)
    effects = Counter(str(e.status) for e in await rt.store.effects() if tenant_id in (None, e.tenant_id))
    intents = Counter(str(i.state) for i in await rt.store.intents(limit=MOST) if tenant_id in (None, i.tenant_id))
    queued = await rt.store.intents(state="queued", tenant_id=tenant_id, limit=1)
    holding = await rt.store.workers()
    workers = Counter(w.alive for w in holding)
    waiting: dict[str, int] = {}
    for run, lease in runs:
        if lease.owner is None and lease.due is not None and lease.due <= now:
            waiting[run.queue] = max(waiting.get(run.queue, 0), (now - lease.due) // 1_000_000)
    lines: list[str] = []
    _told(lines, "holdfast_runs", "Runs that have not ended, by condition.", "condition", {c.value: stands.get(c.value, 0) for c in Condition if c.value in _OPEN})
    _told(lines, "holdfast_waits", "Open waits, by kind.", "kind", waits)
    _told(lines, "holdfast_effects", "Effect records, by status.", "status", effects)
    _told(lines, "holdfast_intents", "Intents, by state.", "state", intents)
    _told(lines, "holdfast_queue_due", "Runs that are due and not taken, by queue.", "queue", queues)
    _told(lines, "holdfast_workers", "Processes that hold leases, by whether they live.", "alive", workers)
    _told(lines, "holdfast_queue_oldest_seconds", "For how long the oldest run of a queue has been due.", "queue", waiting)
    _single(lines, "holdfast_unknown_effects", "Effects of which nobody knows whether they happened.", effects.get("unknown", 0))
    _single(lines, "holdfast_takeovers", "Takeovers of runs that have not ended.", sum(run.takeovers for run, _ in runs))
    _single(lines, "holdfast_oldest_lease_seconds", "Age of the oldest process that holds leases.", max(((now - w.started_at) // 1_000_000 for w in holding), default=0))
    _single(lines, "holdfast_oldest_queued_intent_seconds", "Age of the oldest intent that is queued.", max(0, now - queued[0].created_at) // 1_000_000 if queued else 0)
    lines += ["# HELP holdfast_oldest_wait_seconds Age of the oldest open wait.", "# TYPE holdfast_oldest_wait_seconds gauge"]
    lines.append(f"holdfast_oldest_wait_seconds {(now - oldest) / 1_000_000:.3f}")
    return "\n".join(lines) + "\n"


_OPEN = {c.value for c in Condition} - {"done", "halted", "cancelled", "failed"}


def _told(lines: list[str], name: str, text: str, label: str, values: dict[str, int]) -> None:
    lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
    for value, number in sorted(values.items()):
        clean = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines.append(f'{name}{{{label}="{clean}"}} {number}')


def _single(lines: list[str], name: str, text: str, number: int) -> None:
    lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {number}"]

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
    workers = Counter(w.alive for w in await rt.store.workers())
    lines: list[str] = []
    _told(lines, "holdfast_runs", "Runs that have not ended, by condition.", "condition", {c.value: stands.get(c.value, 0) for c in Condition if c.value in _OPEN})
    _told(lines, "holdfast_waits", "Open waits, by kind.", "kind", waits)
    _told(lines, "holdfast_effects", "Effect records, by status.", "status", effects)
    _told(lines, "holdfast_intents", "Intents, by state.", "state", intents)
    _told(lines, "holdfast_queue_due", "Runs that are due and not taken, by queue.", "queue", queues)
    _told(lines, "holdfast_workers", "Processes that hold leases, by whether they live.", "alive", workers)
    lines += ["# HELP holdfast_oldest_wait_seconds Age of the oldest open wait.", "# TYPE holdfast_oldest_wait_seconds gauge"]
    lines.append(f"holdfast_oldest_wait_seconds {(now - oldest) / 1_000_000:.3f}")
    return "\n".join(lines) + "\n"


_OPEN = {c.value for c in Condition} - {"done", "halted", "cancelled", "failed"}


def _told(lines: list[str], name: str, text: str, label: str, values: dict[str, int]) -> None:
    lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
    for value, number in sorted(values.items()):
        clean = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines.append(f'{name}{{{label}="{clean}"}} {number}')

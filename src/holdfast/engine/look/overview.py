"""An overview of a store: how many runs are in which state, who is needed, what was done lately (§17.2). It changes nothing.

Theory of operation. The store counts runs and effects. What counts cannot say (who is asked, what nobody can take, how long
runs took) is computed from a limited number of runs, the newest of each status, so that an overview costs the same however many runs there are. If
some runs are left out, the answer says so (``whole``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import msgspec

from holdfast.core import describe, views
from holdfast.core.effects import EffectStatus
from holdfast.core.intents import IntentState
from holdfast.core.lease import Alive, Lease
from holdfast.core.run import Run
from holdfast.core.status import AT_REST, LIVE, WAITING, Condition, Status
from holdfast.ports import RunFilter, Store, Tally

READ = 1_000
"""How many runs of each kind of status are read."""
LISTED = 50
HOUR_US = 3_600_000_000
SLICES = 12
HUMAN = (Condition.AWAITING_GATE_DECISION, Condition.AWAITING_HUMAN_REVIEW, Condition.AWAITING_PHASE_HANDOFF)
NEED = (*HUMAN, Condition.FAILED, Condition.INTERRUPTED)


class Look(Protocol):
    """Shows runs and counts."""

    async def tally(self, tenant_id: str | None = None) -> Tally: ...

    async def show(self, run: Run, lease: Lease) -> describe.RunView: ...

    async def intent_tally(self, tenant_id: str | None = None) -> dict[str, int]: ...
    async def count_unsent(self, tenant_id: str | None = None) -> int: ...


class Lately(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that ended within the last hour: how many, how many of them failed, how long they took in seconds, and ended and failed by five minutes."""

    ended: int
    failed: int
    median: float | None
    slowest: float | None
    slices: tuple[tuple[int, int], ...]


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The state of everything. ``questions``: what people are asked; ``needed``: how many runs somebody has to look at; ``need``: the first of them;
    ``nobody``: runs that are due and that no living worker can take, or for which no worker is up. ``doubtful``: effects that were attempted in runs
    whose process is gone; they become ``unknown`` when another process takes the run over. ``unsent``: queued messages that no running process sends."""

    conditions: dict[str, int]
    total: int
    whole: bool
    questions: int
    needed: int
    need: list[describe.RunView]
    oldest_wait: str | None
    nobody: list[describe.RunView]
    effects: dict[str, int]
    doubtful: int
    intents: dict[str, int]
    unsent: int
    lately: Lately


async def overview(store: Store, look: Look, tenant_id: str | None = None) -> Overview:
    """Makes the overview of one tenant, or of all."""
    now = store.now()
    tally = await look.tally(tenant_id)
    counts: Counter[Condition] = Counter({Condition.DONE: tally.runs.get(Status.COMPLETED, 0), Condition.FAILED: tally.runs.get(Status.FAILED, 0)})
    whole, need, oldest, questions, due = True, [], None, 0, []
    for statuses, usual in _GROUPS:
        page = await store.runs(RunFilter(tenant_id=tenant_id, statuses=tuple(map(str, statuses)), limit=READ))
        left = sum(tally.runs.get(s, 0) for s in statuses) - len(page)
        whole = whole and left <= 0
        for run, lease in page:
            word = views.condition(run, lease, now)
            counts[word] += 1
            if word in NEED:
                need.append((run, lease))
            if run.status in WAITING:
                questions += sum(w.human for w in run.waits)
                oldest = min([*(w.requested_at for w in run.waits), *([] if oldest is None else [oldest])], default=None)
            if run.status in AT_REST and lease.owner is None and lease.due is not None and lease.due <= now:
                due.append((run, lease))
        if left > 0:
            counts[usual] += left
    failed = await store.runs(RunFilter(tenant_id=tenant_id, statuses=(Status.FAILED,), limit=LISTED))
    need.sort(key=lambda found: _urgency(found[0]))
    first = [*need, *failed][:LISTED]
    alone = not any(w.offer is not None and w.alive != Alive.NO and w.expires_at > now for w in await store.workers(counted=False))
    nobody = [r for r in [await look.show(run, lease) for run, lease in due[:LISTED]] if r.no_worker_for is not None or (alone and r.blocked_by is None)]
    lost = [run.run_id for run, lease in need if views.condition(run, lease, now) is Condition.INTERRUPTED][:LISTED]
    doubtful = sum([sum(e.status is EffectStatus.ATTEMPTED for e in await store.effects(run_id)) for run_id in lost])
    intents = await look.intent_tally(tenant_id)
    return Overview(
        conditions={c.value: counts.get(c, 0) for c in Condition}, total=sum(tally.runs.values()), whole=whole, questions=questions,
        needed=len(need) + tally.runs.get(Status.FAILED, 0), need=[await look.show(run, lease) for run, lease in first], oldest_wait=views.iso(oldest), nobody=nobody,
        effects=dict(tally.effects), doubtful=doubtful, intents=intents, unsent=await look.count_unsent(tenant_id) if intents.get(IntentState.QUEUED) else 0, lately=await _lately(store, tenant_id, now),
    )


_GROUPS = (
    (WAITING, Condition.AWAITING_SIGNAL),
    (LIVE, Condition.RUNNING),
    (frozenset({Status.PENDING}), Condition.QUEUED),
    (frozenset({Status.CANCELED}), Condition.CANCELLED),
)
"""Groups of statuses, and the condition that is assumed for runs of each that are counted but not read."""


def _urgency(run: Run) -> tuple[bool, int]:
    """Sorts unknown effects first, then the nearest deadline."""
    return not any(w.effect_id for w in run.waits), min((w.deadline for w in run.waits if w.deadline is not None), default=2**62)


async def _lately(store: Store, tenant_id: str | None, now: int) -> Lately:
    """Returns figures of the runs that ended within the last hour, among the newest ones."""
    ended: list[Run] = []
    for status in (Status.COMPLETED, Status.FAILED):
        page = await store.runs(RunFilter(tenant_id=tenant_id, statuses=(status,), limit=READ))
        ended += [run for run, _ in page if run.finished_at is not None and 0 <= now - run.finished_at < HOUR_US]
    took = sorted((run.finished_at - run.started_at) / 1_000_000 for run in ended if run.finished_at is not None and run.started_at is not None)
    return Lately(
        ended=len(ended), failed=sum(run.status is Status.FAILED for run in ended), median=_at(took, 0.5), slowest=_at(took, 0.99), slices=_slices(ended, now),
    )


def _at(took: Sequence[float], part: float) -> float | None:
    return took[min(len(took) - 1, int(len(took) * part))] if took else None


def _slices(ended: Sequence[Run], now: int) -> tuple[tuple[int, int], ...]:
    done, failed = [0] * SLICES, [0] * SLICES
    for run in ended:
        place = SLICES - 1 - (now - (run.finished_at or now)) * SLICES // HOUR_US
        (failed if run.status is Status.FAILED else done)[place] += 1
    return tuple(zip(done, failed, strict=True))


__all__ = ["Lately", "Overview", "overview"]

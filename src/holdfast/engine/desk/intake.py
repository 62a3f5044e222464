"""The entry of requests: they are validated, refused early, and turned into a run's first commit or an inbox item (§3.5, §5.4)."""

from __future__ import annotations

import datetime as dt
import functools
import os
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast import machine
from holdfast.callers import VIA
from holdfast.core import bounds, canon, ids, superstep
from holdfast.core import events as ev
from holdfast.core.checkpoint import INPUT_TASK, TaskResult
from holdfast.core.commit import DedupClaim
from holdfast.core.graph import Program
from holdfast.core.lease import COUNTER_BITS, OwnerId
from holdfast.core.progress import Progress
from holdfast.engine.base.journal import Draft, Journal
from holdfast.engine.base.services import Services
from holdfast.engine.desk.door import OnBusy, Request
from holdfast.ports import Store


class Birth(msgspec.Struct, frozen=True):
    """A run about to be created: its first fact, the claim of its request key, its journal; ``at``: when it was requested; ``given``: its validated
    input."""

    fact: ev.RunSubmitted
    claims: tuple[DedupClaim, ...]
    journal: Journal
    at: int
    given: Mapping[str, Any]
    on_busy: OnBusy = OnBusy.QUEUE

    @property
    def run_id(self) -> str:
        return self.fact.run_id

    def draft(self) -> Draft:
        return Draft(facts=[self.fact], claims=list(self.claims))


def first_fence(store: Store) -> int:
    """Returns the first fence of a new run: counter 1 under the store's incarnation."""
    return store.incarnation << COUNTER_BITS | 1


def birth(services: Services, program: Program, given: Mapping[str, Any], request: Request, *, run_id: str | None = None) -> Birth:
    """Checks the input and prepares a run.

    Raises:
        InvalidInput: it names the channel (§4.2).
        Unserializable: it names the path of the field (§1.10). TooLarge.
    """
    fence, budgets = first_fence(services.store), _budgets(services, request)
    bindings = _digest([[t.name, list(t.command), str(t.side_effects), str(t.idempotency)] for t in services.tools.values()]) if services.tools else None
    admitted, data = superstep.pack_input(program, given)
    bounds.check_size(data, "inputs")
    now = services.store.now()
    entropy, registry = services.entropy(), services.skills.ref
    run_id = run_id or ids.run_id(now, entropy, request.tenant_id, request.session_key or request.thread_id or "")
    thread = request.thread_id or run_id
    fact = ev.RunSubmitted(
        run_id=run_id,
        skill_id=program.id,
        skill_version=program.version,
        fingerprint=program.fingerprint,
        input=data,
        thread_id=thread,
        session_key=request.session_key or thread,
        lane=request.lane,
        queue=request.queue,
        priority=request.priority,
        not_before=request.not_before,
        tenant_id=request.tenant_id,
        environment=services.environment,
        job_id=request.job_id,
        trace_id=request.trace_id,
        tags=request.tags,
        parent_run_id=request.parent_run_id,
        parent_wait_id=request.parent_wait_id,
        on_parent_end=request.on_parent_end,
        source_run_id=request.source_run_id,
        source_checkpoint_id=request.source_checkpoint_id,
        lineage_root=request.lineage_root,
        capabilities=program.capabilities,
        bindings=bindings,
        registry_ref=registry,
        policy_snapshot_id=request.policy_snapshot_id or (services.policy.snapshot_id if services.policy is not None else None),
        target=request.target,
        request_key=request.key,
        paused_lane=request.paused_lane,
        recovery=request.recovery,
        kind=program.kind,
        unattended=request.unattended,
        budgets=budgets,
        schedule_id=request.schedule_id,
        slot=request.slot,
        secrets=program.secrets,
        via=VIA.get(),
    )
    claims: tuple[DedupClaim, ...] = ()
    if request.key is not None:
        digest = canon.fingerprint(admitted)
        claims = (DedupClaim("request", ids.request_scope(request.tenant_id, program.id), request.key, run_id, digest, now + bounds.KEY_RETENTION_US),)
    progress = Progress(run_id)
    progress.results[INPUT_TASK] = TaskResult(INPUT_TASK, writes=data)
    return Birth(fact, claims, Journal(services.store, None, None, fence, progress), now, admitted, OnBusy(request.on_busy))


def _digest(declared: list[Any]) -> str:
    """Returns a fingerprint of what was declared."""
    return canon.fingerprint(declared)


def _budgets(services: Services, request: Request) -> dict[str, float]:
    """Returns the budgets that a caller asked for, limited to those of the environment."""
    limits = dict(request.budgets)
    for name, most in services.place.budgets.items():
        limits[name] = min(limits.get(name, most), most)
    return limits


def owner_id() -> str:
    """Makes an owner's name, unique per process start (§10.1), from host, boot, process id, its start and random bits."""
    here = machine.here()
    return OwnerId(here.host, here.boot, os.getpid(), _start_of(os.getpid()), uuid.uuid4().hex[:8]).name


@functools.cache
def _start_of(pid: int) -> str:
    """Returns when this process started. The cache is per process id, so that a forked child asks for itself."""
    return machine.start_of(pid) or str(int(dt.datetime.now(dt.UTC).timestamp()))

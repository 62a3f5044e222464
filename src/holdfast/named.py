"""The named ports: public views of a runtime's store, for code that was written against them.

``RunStore(rt)``, ``CheckpointStore(rt)``, ``EventStore(rt)``, ``SideEffectLedger(rt)``, ``CheckpointSaver(rt)``,
``KernelExecutor(rt, skill)``. They act on runs at rest and only through events; none is a second way to write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from holdfast.authoring import Skill
from holdfast.core import canon, ids
from holdfast.core import events as ev
from holdfast.core.effects import Effect, EffectClass, EffectStatus
from holdfast.core.errors import EffectConflict, EffectInProgress, ErrorValue, InvalidInput, NotDecidable, NotFound
from holdfast.core.status import parse
from holdfast.engine.base import histories
from holdfast.engine.desk.door import Request
from holdfast.engine.drive.edits import Patches
from holdfast.engine.look.blobs import whole
from holdfast.handle import CheckpointView, EventView, Run
from holdfast.runtime import Runtime

T = TypeVar("T")


class Page(list[T], Generic[T]):
    """A list with the cursor of what comes after it; None at the end."""

    next_cursor: int | None = None


class _Port:
    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._patches = Patches(rt.store, rt._skills, rt._reader, rt._desk)


class RunStore(_Port):
    async def create_run(self, skill: Skill | str, inputs: Mapping[str, Any] | None = None, **options: Any) -> Run[Any]:
        """Submits a run; it is durable when this returns."""
        return await self._rt.submit(skill, inputs, **options)

    async def get_run(self, run_id: str) -> Run[Any]:
        return await self._rt.get(run_id)

    async def update_status(self, run_id: str, status: str, *, actor: str = "operator", reason: str = "") -> Run[Any]:
        """One of the twelve edges (§2.2); a failed or canceled run goes on by ``resume`` only (T-02).

        Raises:
            IllegalTransition: any other pair, naming both.
        """
        await self._patches.status(run_id, parse(status), actor=actor, reason=reason)
        return await self._rt.get(run_id)

    async def patch_run(
        self, run_id: str, *, tags: Sequence[str] | None = None, priority: int | None = None, trace_id: str | None = None, actor: str = "operator"
    ) -> Run[Any]:
        await self._patches.run(run_id, actor=actor, tags=None if tags is None else tuple(tags), priority=priority, trace_id=trace_id)
        return await self._rt.get(run_id)


class CheckpointStore(_Port):
    async def save_checkpoint(self, run_id: str, values: Mapping[str, Any], *, actor: str, reason: str = "") -> CheckpointView:
        """A state patch by a named person: ``state.patched``."""
        await self._patches.state(run_id, values, actor=actor, reason=reason)
        return await self._rt.checkpoint(run_id)

    async def load_checkpoint(self, run_id: str, checkpoint_id: str | None = None) -> CheckpointView:
        """The head by default."""
        return await self._rt.checkpoint(run_id, checkpoint_id)

    async def list_checkpoints(self, run_id: str) -> list[CheckpointView]:
        """Oldest first."""
        return await self._rt.checkpoints(run_id)


class EventStore(_Port):
    async def append(self, run_id: str, text: str, *, actor: str = "operator") -> EventView:
        """A note in the log: ``note.added``. Facts are the engine's to write."""
        await self._patches.note(run_id, text, actor=actor)
        run, _ = await self._rt._reader.found(run_id)
        found = await self._rt.events(run_id, after=run.version - 1)
        return next(e for e in reversed(found) if e.type == "note.added")

    async def list_events(self, run_id: str, cursor: int | None = None, limit: int = 100) -> Page[EventView]:
        """Events after ``cursor``, oldest first; ``next_cursor`` goes on."""
        if limit < 1:
            raise InvalidInput(f"limit is at least 1, not {limit}")
        found = [e async for e in self._rt._reader.events(run_id, cursor or 0, False, limit + 1)]
        page: Page[EventView] = Page(found[:limit])
        page.next_cursor = page[-1].seq if len(found) > limit else None
        return page


class SideEffectLedger(_Port):
    async def find_by_idempotency_key(self, key: str) -> Effect | None:
        """The newest record under a full key that stands for an attempt, with its result; None if there is none."""
        found = next((e for e in reversed(await self._rt.store.effects(key=key)) if e.status is not EffectStatus.REUSED), None)
        return None if found is None else await whole(self._rt.store, found)

    async def record_attempt(
        self, run_id: str, key: str, capability: str, request: Any = None, *, effect_class: str = "external_action", actor: str = "operator"
    ) -> Effect:
        """Puts an attempt on record before somebody acts under this key.

        Raises:
            EffectConflict: the key is on record with another request.
            EffectInProgress: an attempt under the key is not settled.
        """
        run, _ = await self._rt._reader.found(run_id)
        records = await self._rt.store.effects(key=key)
        digest = canon.fingerprint(request)
        for known in records:
            if known.request_hash != digest:
                raise EffectConflict(f"the key {key!r} is on record with another request", hint="use another key, or the same request")
            if known.open:
                raise EffectInProgress(f"an attempt under {key!r} is not settled: {known.effect_id}")
        effect = Effect(
            effect_id=f"{ids.step_id(run_id, 0, 'ledger', canon.digest([key]))}#{len(records) + 1}",
            run_id=run_id,
            lineage_root=run.lineage_root,
            step=0,
            task="ledger",
            path="",
            attempt=len(records) + 1,
            capability=capability,
            effect_class=EffectClass(effect_class),
            key=key,
            shared=True,
            request_hash=digest,
            owner=self._rt.owner,
            attempted_at=self._rt.store.now(),
            tenant_id=run.tenant_id,
        )
        await self._patches.effect(run_id, effect, ev.SideEffectAttempted(effect.effect_id, key), actor=actor)
        return effect

    async def record_result(self, effect_id: str, result: Any = None, *, error: str | None = None, actor: str = "operator") -> Effect:
        """Settles an open attempt, by its result or its failure.

        Raises:
            NotFound: there is no such effect.
            NotDecidable: it is settled already; what it says stays.
        """
        found = [e for e in await self._rt.store.effects(effect_id.partition(".")[0]) if e.effect_id == effect_id]
        if not found:
            raise NotFound(f"no effect {effect_id}", hint="holdfast effects lists a run's")
        effect = found[0]
        if not effect.open:
            raise NotDecidable(f"{effect_id} is {effect.status} already")
        now = self._rt.store.now()
        fact: ev.Fact
        if error is not None:
            value = ErrorValue(type="holdfast.EffectFailed", message=error, code="effect_failed")
            settled = replace(effect, status=EffectStatus.FAILED, error=value, settled_at=now, closed=True)
            fact = ev.SideEffectFailed(effect_id, effect.key, detail=error)
        else:
            frozen, data = canon.pack(result, "result")
            settled = replace(effect, status=EffectStatus.RECORDED, result=data, response_hash=canon.fingerprint(frozen), settled_at=now, closed=True)
            fact = ev.SideEffectRecorded(effect_id, effect.key)
        await self._patches.effect(effect.run_id, settled, fact, actor=actor)
        return settled


class CheckpointSaver(_Port):
    """The saver of §4.16, by thread. A snapshot is ``{values, metadata{source, step, writes}, createdAt, nextTasks}``."""

    async def put(self, thread_id: str, snapshot: Mapping[str, Any], *, actor: str, reason: str = "") -> dict[str, Any]:
        """Patches the state of the thread's newest run with ``snapshot["values"]``."""
        run = await self._newest(thread_id)
        if run is None:
            raise NotFound(f"no run in the thread {thread_id!r}", hint="invoke the skill on it first")
        await self._patches.state(run.run_id, snapshot.get("values", snapshot), actor=actor, reason=reason)
        return histories.snapshot(await self._rt.checkpoint(run.run_id))

    async def get(self, thread_id: str) -> dict[str, Any] | None:
        """The newest snapshot of the thread."""
        run = await self._newest(thread_id)
        if run is None or run.checkpoint_head is None:
            return None
        return histories.snapshot(await self._rt.checkpoint(run.run_id))

    async def get_history(self, thread_id: str) -> list[dict[str, Any]]:
        """All snapshots of the thread, oldest first."""
        return await self._rt.history(thread_id)

    async def _newest(self, thread_id: str) -> Run[Any] | None:
        found = await self._rt.runs(thread_id=thread_id, limit=1)
        return found[0] if found else None


class KernelExecutor(_Port):
    """The kernel of §4.16 by this package's own engine: ``invoke(thread_id, input)`` and ``resume(thread_id, payload)``."""

    def __init__(self, rt: Runtime, skill: Skill | str | None) -> None:
        super().__init__(rt)
        self._skill = skill

    async def invoke(self, thread_id: str, input: Mapping[str, Any] | None = None) -> Run[Any]:
        """Runs the skill on a thread to its rest. A run left behind there is driven first; without input it only recovers.

        Raises:
            ThreadNotFound: without input, on a thread that has no run.
        """
        return await self._rt.kernel_invoke(self._skill, input, Request(thread_id=thread_id))

    async def resume(self, thread_id: str, payload: Any = None) -> Run[Any]:
        """Answers the one open wait of the thread's newest live run, and drives on (§5.11).

        Raises:
            AmbiguousWait: several are open; names them.
            NotDecidable: nothing waits.
        """
        return await self._rt.kernel_resume(thread_id, payload=payload)


__all__ = ["CheckpointSaver", "CheckpointStore", "EventStore", "KernelExecutor", "Page", "RunStore", "SideEffectLedger"]

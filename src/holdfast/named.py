"""Classes with the names and methods of an agreed interface (``RunStore``, ``CheckpointStore`` and so on), for programs that already use it.
New programs use ``Runtime``.

Each is a view of a Runtime: ``RunStore(rt)``, ``KernelExecutor(rt, skill)``. They write only through events, and only to runs that wait or
have ended. A ``Seen`` in the signatures is a dict; it also has its fields as attributes, as in the first release.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from msgspec import structs

from holdfast.authoring import Skill
from holdfast.core import canon, describe, ids, views
from holdfast.core import events as ev
from holdfast.core.bounds import KNOWN, admit, as_given, check_arguments, check_known, mapping, note, number, one_of, text, verb, wrong
from holdfast.core.effects import Effect, EffectClass, EffectStatus, effect_key
from holdfast.core.errors import (
    CheckpointNotFound,
    EffectConflict,
    EffectInProgress,
    ErrorValue,
    InvalidInput,
    NotDecidable,
    NotFound,
    RunNotFound,
)
from holdfast.core.status import parse
from holdfast.engine.base import histories
from holdfast.engine.desk import door
from holdfast.engine.desk.door import Request
from holdfast.engine.drive.edits import StateEditor
from holdfast.engine.look.snapshot import whole
from holdfast.handle import CheckpointView, EventView, Run
from holdfast.ports import RunFilter
from holdfast.runtime import Runtime

T = TypeVar("T")


class Page(list[T], Generic[T]):
    """A list; ``next_cursor`` is the cursor for the next page, None at the end."""

    next_cursor: str | None = None


class _Both(dict[str, Any]):
    """A mapping of channels that can also be called, as ``dict.values`` can."""

    def __init__(self, channels: Mapping[str, Any], call: Callable[[], Any]) -> None:
        super().__init__(channels)
        self._call = call

    def __call__(self) -> Any:
        return self._call()


class Seen(dict[str, Any]):
    """A dict as these interfaces return it. It also has the attributes of the first release: ``seen.run_id`` beside ``seen["run_id"]``."""

    def __init__(self, fields: Mapping[str, Any], view: Any) -> None:
        super().__init__(fields)
        self._view = view

    @property
    def values(self) -> Any:
        """The state's values, as an attribute, as in the first release; if it is called, the values of this dict."""
        return _Both(self.get("values") or {}, super().values)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_view"), name)


class _Port:
    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._editor = StateEditor(rt.store, rt._skills, rt._reader, rt._desk)

    async def _run(self, run_id: str) -> Seen:
        run = await self._rt.get(run_id)
        return Seen({**await self._rt.record(run_id), "values": canon.thaw(dict(run.values))}, run)


def _check_given(call: str, given: object, known: tuple[str, ...], required: tuple[str, ...]) -> dict[str, Any]:
    """Checks the fields of a dict that a caller passes to a port.

    Raises:
        UnknownOption: the port does not know a field. InvalidInput: it is not a dict, or a field is missing.
    """
    found = dict(mapping(given, call))
    check_known(found, known, call)
    for name in required:
        if name not in found:
            raise InvalidInput(f"{call} needs {name!r}", field=name, hint="it takes " + ", ".join(known))
    return found


class RunStore(_Port):
    """Creates, reads and changes runs, as dicts."""
    async def create_run(self, run: Mapping[str, Any] | Skill | str, inputs: Mapping[str, Any] | None = None, **options: Any) -> Seen:
        """Submits a run, ``{skill_id, inputs, …options of submit}``. Returns its record when the run is stored durably.

        Raises:
            UnknownOption, InvalidInput, TooLarge: a field is wrong; the error names it.
            SkillUnknown: no skill with this id is registered.
        """
        skill: Any = run
        if isinstance(run, Mapping):
            said = _check_given("create_run", run, ("skill_id", "inputs", *door.OPTIONS), ("skill_id",))
            skill, inputs, options = text(said.pop("skill_id"), "skill_id"), said.pop("inputs", inputs), {**said, **options}
        made = await self._rt.submit(skill, inputs, **options)
        return await self._run(made.run_id)

    @verb
    async def get_run(self, run_id: str) -> Seen | None:
        """The record of a run; None if there is no such run."""
        try:
            return await self._run(run_id)
        except RunNotFound:
            return None

    @verb
    async def update_status(self, run_id: str, status: str, *, actor: str = "operator", reason: str = "") -> Seen:
        """Changes the status of a run, if the change is allowed (§2.2). A failed or canceled run continues only by ``resume`` (T-02).

        Raises:
            IllegalTransition: the change is not allowed; the error names both statuses.
            NotDecidable: the run has no open wait of the kind that the status needs.
            UndecidedWait: the run waits for a decision that nobody has made yet.
        """
        await self._editor.status(run_id, parse(status), actor=actor, reason=reason)
        return await self._run(run_id)

    @verb
    async def patch_run(
        self,
        run_id: str,
        fields: Mapping[str, Any] | None = None,
        *,
        tags: Sequence[str] | None = None,
        priority: int | None = None,
        trace_id: str | None = None,
        actor: str = "operator",
    ) -> Seen:
        """Changes ``tags``, ``priority`` or ``trace_id`` (event ``run.patched``).

        Raises:
            UnknownOption, InvalidInput, TooLarge: a field is wrong; the error names it.
        """
        said = _check_given("patch_run", fields or {}, ("tags", "priority", "trace_id", "actor"), ())
        plain = admit(said, {name: KNOWN[name] for name in ("tags", "priority", "trace_id", "actor")}, "patch_run")
        more = {"tags": tags, "priority": priority, "trace_id": trace_id}
        more |= {name: value for name, value in plain.items() if name != "actor"}
        await self._editor.run(run_id, actor=plain.get("actor", actor), **more)  # type: ignore[arg-type]
        return await self._run(run_id)


def _see_checkpoint(view: CheckpointView) -> Seen:
    fields = {name: canon.thaw(getattr(view, name)) for name in view.__struct_fields__ if name not in ("waits", "created_at")}
    fields = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
    waits = [structs.asdict(w) for w in view.waits]
    return Seen({**fields, "waits": waits, "created_at": views.iso(int(view.created_at.timestamp() * 1_000_000))}, view)


class CheckpointStore(_Port):
    """Checkpoints, as dicts, of runs that wait or have ended."""
    @check_arguments(run=as_given, values=mapping)
    async def save_checkpoint(self, run: Mapping[str, Any] | str, values: Mapping[str, Any], *, actor: str | None = None, reason: str = "") -> Any:
        """Changes the state of a run as a named person (event ``state.patched``). If ``run`` is a mapping ``{run_id, actor, reason}``, it
        returns the id of the new checkpoint; if ``run`` is a run's id, as in the first release, the checkpoint.

        Raises:
            UnknownOption, InvalidInput, TooLarge: a field is wrong; the error names it.
        """
        said = _check_given("save_checkpoint", run, ("run_id", "actor", "reason"), ("run_id", "actor")) if isinstance(run, Mapping) else {"run_id": run}
        plain = admit(said, {name: KNOWN[name] for name in ("run_id", "actor", "reason")}, "save_checkpoint")
        who = plain.get("actor", actor)
        if who is None:
            raise InvalidInput("a state patch names its actor", field="actor", hint="actor='ada'")
        await self._editor.state(plain["run_id"], values, actor=who, reason=plain.get("reason", reason))
        made = await self._rt.checkpoint(plain["run_id"])
        return made.checkpoint_id if isinstance(run, Mapping) else _see_checkpoint(made)

    @verb
    async def load_checkpoint(self, run_id: str, checkpoint_id: str | None = None) -> Seen | None:
        """One checkpoint, by default the latest; None if there is none."""
        try:
            return _see_checkpoint(await self._rt.checkpoint(run_id, checkpoint_id))
        except (RunNotFound, CheckpointNotFound):
            return None

    @verb
    async def list_checkpoints(self, run_id: str) -> list[Seen]:
        """All checkpoints of a run, oldest first."""
        return [_see_checkpoint(c) for c in await self._rt.checkpoints(run_id)]


def _see_event(view: EventView) -> Seen:
    return Seen(structs.asdict(view), view)


NOTE = "note.added"


class EventStore(_Port):
    """Reads the events of a run, as dicts, and appends notes."""
    @check_arguments(event=as_given)
    async def append(self, event: Mapping[str, Any] | str, text: str | None = None, *, actor: str = "operator") -> Seen:
        """Appends a note to the log: ``{run_id, event_type: "note.added", payload: {text}, actor}``. Other events are written only by the
        engine.

        Raises:
            UnknownOption, InvalidInput, TooLarge: a field is wrong, or the event has another type; the error names the field.
        """
        if isinstance(event, Mapping):
            said = _check_given("append", event, ("run_id", "event_type", "payload", "actor"), ("run_id", "event_type", "payload"))
            one_of(said["event_type"], "event_type", (NOTE,))
            text = _check_given("payload", said["payload"], ("text",), ("text",))["text"]
            run_id, actor = KNOWN["run_id"](said["run_id"], "run_id"), KNOWN["actor"](said.get("actor", actor), "actor")
        else:
            run_id = KNOWN["run_id"](event, "run_id")
        await self._editor.note(run_id, KNOWN["text"](text, "text"), actor=actor)
        run = await self._rt.get(run_id)
        found = await self._rt.events(run_id, after=max(0, run.version - 1))
        return _see_event(next(e for e in reversed(found) if e.type == NOTE))

    @check_arguments(cursor=as_given)
    async def list_events(self, run_id: str, cursor: str | int | None = None, limit: int = 100) -> Page[Seen]:
        """Events after ``cursor``, oldest first; pass ``next_cursor`` of the result to get the next ones.

        Raises:
            InvalidInput: the cursor was not returned by this class.
        """
        if isinstance(cursor, str) and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 16):
            raise wrong("cursor", "the next_cursor of the page before", cursor)
        after = number(int(cursor) if isinstance(cursor, str) else cursor or 0, "cursor")
        found = [e async for e in self._rt._reader.events(run_id, after, False, limit + 1)]
        page: Page[Seen] = Page(map(_see_event, found[:limit]))
        page.next_cursor = str(found[limit - 1].seq) if len(found) > limit else None
        return page


def _see_effect(effect: Effect) -> Seen:
    fields = structs.asdict(effect)
    fields |= {"idempotency_key": effect.key.rpartition(":")[2], "result": None if effect.result is None else canon.reveal(effect.result)}
    fields["error"] = None if (failed := describe.error(effect.error)) is None else describe.plain(failed)
    fields |= {name: views.iso(getattr(effect, name)) for name in ("attempted_at", "settled_at")}
    return Seen(fields, effect)


PAGE = 500


class SideEffectLedger(_Port):
    """The records of side effects by their keys, as dicts."""
    @check_arguments(key=text)
    async def find_by_idempotency_key(self, key: str) -> Seen | None:
        """The newest attempt that is recorded under a key: the key as the user gave it, or the full key as it is stored. None if there is
        none.

        Full keys begin with the tenant and the capability. A key as the user gave it is therefore searched run by run, newest first.
        """
        found = _newest(await self._rt.store.effects(key=key))
        end, before = ":" + quote(key, safe="/.=~@,+-_#"), None
        while found is None:
            runs = await self._rt.store.runs(RunFilter(before=before, limit=PAGE))
            for run, _ in runs:
                if found is None:
                    found = _newest([e for e in await self._rt.store.effects(run.run_id) if e.key.endswith(end)])
            if len(runs) < PAGE:
                break
            before = runs[-1][0].run_id
        return None if found is None else _see_effect(await whole(self._rt.store, found))

    @check_arguments(attempt=as_given, effect_class=as_given)
    async def record_attempt(
        self,
        attempt: Mapping[str, Any] | str,
        key: str | None = None,
        capability: str | None = None,
        request: Any = None,
        *,
        effect_class: str = "external_action",
        actor: str = "operator",
    ) -> Any:
        """Records an attempt before the effect with this key is carried out. With a mapping ``{run_id, idempotency_key, capability, request}`` it
        returns the id of the effect; with separate arguments, as in the first release, the record.

        Raises:
            EffectConflict: the key is recorded with another request.
            EffectInProgress: an attempt with this key has no outcome yet.
            UnknownOption, InvalidInput, TooLarge: a field is wrong; the error names it.
        """
        said: dict[str, Any] = {"run_id": attempt, "idempotency_key": key, "capability": capability, "request": request, "actor": actor}
        if isinstance(attempt, Mapping):
            fields = ("run_id", "idempotency_key", "capability", "request", "effect_class", "actor")
            said |= _check_given("record_attempt", attempt, fields, ("run_id", "idempotency_key", "capability"))
            effect_class = said.get("effect_class", effect_class)
        run_id = KNOWN["run_id"](said["run_id"], "run_id")
        short, name = text(said["idempotency_key"], "idempotency_key"), text(said["capability"], "capability")
        word = EffectClass(one_of(effect_class, "effect_class", tuple(c.value for c in EffectClass)))
        run, _ = await self._rt._reader.find(run_id)
        full = effect_key(run.tenant_id, "effect", name, short)
        records = await self._rt.store.effects(key=full)
        digest = canon.fingerprint(said["request"])
        for known in records:
            if known.request_hash != digest:
                raise EffectConflict(f"the key {short!r} is recorded with another request", hint="use another key, or the same request")
            if known.open:
                raise EffectInProgress(f"an attempt under {short!r} is not settled: {known.effect_id}")
        effect = Effect(
            effect_id=f"{ids.step_id(run_id, 0, 'ledger', canon.digest([full]))}#{len(records) + 1}",
            run_id=run_id,
            lineage_root=run.lineage_root,
            step=0,
            task="ledger",
            path="",
            attempt=len(records) + 1,
            capability=name,
            effect_class=word,
            key=full,
            shared=True,
            request_hash=digest,
            owner=self._rt.owner,
            attempted_at=self._rt.store.now(),
            tenant_id=run.tenant_id,
        )
        await self._editor.effect(run_id, effect, ev.SideEffectAttempted(effect.effect_id, full), actor=KNOWN["actor"](said["actor"], "actor"))
        return effect.effect_id if isinstance(attempt, Mapping) else _see_effect(effect)

    @check_arguments(error=note)
    async def record_result(self, effect_id: str, result: Any = None, *, error: str | None = None, actor: str = "operator") -> Seen:
        """Settles an open attempt with its result or its error.

        Raises:
            NotFound: there is no such effect.
            NotDecidable: it is already settled; its recorded result is not changed.
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
            settled = structs.replace(effect, status=EffectStatus.FAILED, error=value, settled_at=now, closed=True)
            fact = ev.SideEffectFailed(effect_id, effect.key, detail=error)
        else:
            frozen, data = canon.pack(result, "result")
            settled = structs.replace(effect, status=EffectStatus.RECORDED, result=data, response_hash=canon.fingerprint(frozen), settled_at=now, closed=True)
            fact = ev.SideEffectRecorded(effect_id, effect.key)
        await self._editor.effect(effect.run_id, settled, fact, actor=actor)
        return _see_effect(settled)


def _newest(records: Sequence[Effect]) -> Effect | None:
    return next((e for e in reversed(records) if e.status is not EffectStatus.REUSED), None)


class CheckpointSaver(_Port):
    """Snapshots of threads (§4.16). A snapshot is ``{id, runId, values, metadata{source, step, writes}, createdAt, nextTasks}``."""

    @check_arguments(snapshot=mapping)
    async def put(self, thread_id: str, snapshot: Mapping[str, Any], *, actor: str, reason: str = "") -> dict[str, Any]:
        """Patches the state of the thread's newest run with ``snapshot["values"]``, and returns the new snapshot.

        Raises:
            NotFound: the thread has no run.
        """
        run = await self._newest(thread_id)
        if run is None:
            raise NotFound(f"no run in the thread {thread_id!r}", hint="invoke the skill on it first")
        await self._editor.state(run.run_id, snapshot.get("values", snapshot), actor=actor, reason=reason)
        return histories.snapshot(await self._rt.checkpoint(run.run_id))

    @verb
    async def get(self, thread_id: str) -> dict[str, Any] | None:
        """The newest snapshot of the thread; None if there is none."""
        run = await self._newest(thread_id)
        if run is None or run.checkpoint_head is None:
            return None
        return histories.snapshot(await self._rt.checkpoint(run.run_id))

    @verb
    async def get_history(self, thread_id: str) -> list[dict[str, Any]]:
        """All snapshots of the thread, oldest first. Lists and dicts inside their values are read-only."""
        return await self._rt.history(thread_id)

    async def _newest(self, thread_id: str) -> Run[Any] | None:
        found = await self._rt.runs(thread_id=thread_id, limit=1)
        return found[0] if found else None


class KernelExecutor(_Port):
    """Holdfast's own engine as an executor for ``Runtime(executor=…)`` (§4.16).

    It has ``invoke(thread_id, input)`` and ``resume(thread_id, payload)``.
    """

    def __init__(self, rt: Runtime, skill: Skill | str | None) -> None:
        super().__init__(rt)
        self._skill = skill

    @check_arguments(input=mapping)
    async def invoke(self, thread_id: str, input: Mapping[str, Any] | None = None) -> Run[Any]:
        """Runs the skill on a thread until the run waits or ends. An unfinished run of the thread is executed first. Without input only
        that run is continued.

        Raises:
            ThreadNotFound: without input, on a thread that has no run.
        """
        return await self._rt.kernel_invoke(self._skill, input, Request(thread_id=thread_id))

    @verb
    async def resume(self, thread_id: str, payload: Any = None) -> Run[Any]:
        """Answers the one open wait of the thread's newest live run, and continues the run (§5.11).

        Raises:
            AmbiguousWait: several waits are open; the error names them.
            NotDecidable: no wait is open.
        """
        return await self._rt.kernel_resume(thread_id, payload=payload)


__all__ = ["CheckpointSaver", "CheckpointStore", "EventStore", "KernelExecutor", "Page", "RunStore", "SideEffectLedger"]

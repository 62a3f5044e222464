"""Traces and metrics for OpenTelemetry: a projection of committed events (§18). Extra ``telemetry``.

Theory of operation. What a run's log says is turned into spans by ``spans``, a pure function: one trace a run, a span for the run itself, for its time
in the queue, and for each attempt, effect, wait and intent that has ended. Their ids are computed from the run's and the events', so that whoever
exports a run again (after a crash, a takeover, a restart) sends the same spans, never a second one. ``Exporter`` hears which runs have moved in this process,
reads their logs now and then, and sends what is new from a thread of its own through a bounded queue: a collector that is slow or away costs
spans, and no run anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import queue
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from holdfast import logs, meters
from holdfast.core import events as ev
from holdfast.core import ids
from holdfast.core.codec import open_row
from holdfast.core.commit import Commit
from holdfast.core.errors import HoldfastError
from holdfast.core.intents import Intent
from holdfast.core.run import Run
from holdfast.engine.look.figures import Figure, Spread, figures
from holdfast.ports import RunFilter
from holdfast.runtime import Runtime

EVERY = 1.0
MEASURE_EVERY = 15.0
CLOSING_SECONDS = 2.0
"""How long a process that ends waits for a collector."""
PAGE = 1000
MOST_LINKS = 100
QUEUED = 10_000
"""Spans that wait to be sent; beyond them the newest are left out."""
KNOWN = 1000
"""Runs of which it is known in this process what was sent."""
SCOPE = InstrumentationScope("holdfast")
log = logs.logger("holdfast.telemetry")


class Span(msgspec.Struct, frozen=True):
    """One span, before it is one of OpenTelemetry's. Times are microseconds since 1970."""

    name: str
    of: str
    began: int
    ended: int
    attributes: Mapping[str, Any] = {}
    parent: str = ""
    error: str = ""
    marks: tuple[tuple[str, int], ...] = ()
    links: tuple[tuple[str, int], ...] = ()
    """Runs that this one comes from, each with its trace."""


def trace_id(run: Run) -> int:
    """The trace of a run: the one that it was given, as of a ``traceparent``, else its own."""
    given = (run.trace_id or "").replace("-", "").lower()
    if len(given) == 32 and all(c in "0123456789abcdef" for c in given) and int(given, 16):
        return int(given, 16)
    return int.from_bytes(hashlib.sha256(f"trace {run.trace_id or run.run_id}".encode()).digest()[:16])


def span_id(of: str) -> int:
    """The id of the span of something that has an id of its own."""
    return int.from_bytes(hashlib.sha256(f"span {of}".encode()).digest()[:8]) or 1


class _Open(msgspec.Struct):
    name: str
    began: int
    number: int
    owner: str


def spans(run: Run, events: Sequence[ev.Event], intents: Sequence[Intent] = (), kin: Sequence[Run] = ()) -> list[Span]:
    """The spans of a run that have ended, from all of its events. ``kin``: the runs that it comes from or started, whose traces are linked."""
    out: list[Span] = []
    root = run.run_id
    open_: dict[tuple[int, str, str], _Open] = {}
    counts: dict[tuple[int, str, str], int] = {}
    effects: dict[str, tuple[int, str]] = {}
    waits: dict[str, tuple[int, str, str]] = {}
    marks: list[tuple[str, int]] = []
    owner, queued_at, ended_at, failure = "", run.created_at, 0, ""

    def begin(step: int, task: str, path: str, at: int) -> None:
        place = (step, task, path)
        if place not in open_:
            counts[place] = counts.get(place, 0) + 1
            open_[place] = _Open(task, at, counts[place], owner)

    def end(step: int, task: str, path: str, at: int, outcome: str, error: str = "") -> None:
        place = (step, task, path)
        if place not in open_:
            begin(step, task, path, at)
        o = open_.pop(place)
        step_id = ids.step_id(run.run_id, step, task, path)
        above = open_.get((step, task, "")) if path else None
        parent = f"{ids.step_id(run.run_id, step, task)}@{above.number}" if above is not None else root
        said = {
            "holdfast.step_id": step_id, "holdfast.step": step, "holdfast.attempt": o.number, "holdfast.outcome": outcome, "holdfast.owner": o.owner,
        }
        out.append(Span(f"step {task}" if not path else f"call {task} {path}", f"{step_id}@{o.number}", o.began, at, said, parent, error))

    for e in events:
        at = e.at
        match e.fact:
            case ev.RunClaimed(owner=who):
                owner = who
                if queued_at:
                    if at > queued_at:
                        out.append(Span("queued", f"{root} queued {queued_at}", queued_at, at, {"holdfast.queue": run.queue}, root))
                    queued_at = 0
            case ev.StepStarted(step=step, task=task):
                begin(step, task, "", at)
            case ev.AttemptStarted(step=step, task=task, path=path):
                begin(step, task, path, at)
            case ev.StepEnded(step=step, task=task, path=path, outcome=outcome):
                end(step, task, path, at, outcome)
            case ev.StepFailed(step=step, task=task, path=path, error=error):
                end(step, task, path, at, "failed", error.message)
            case ev.StepRetryScheduled(step=step, task=task, path=path, error=error):
                end(step, task, path, at, "failed", error.message)
            case ev.AttemptLeaseExpired():
                marks.append(("lease expired", at))
                left = list(open_)
                for place in sorted(left, key=lambda p: not p[2]):  # calls before the steps that they are in
                    end(*place, at, "lost", "its owner died")
            case ev.AttemptTakenOver(owner=who):
                owner = who
                marks.append(("taken over", at))
                for place in {p for p in counts if not p[2]} - set(open_):
                    if any(s.attributes.get("holdfast.outcome") == "lost" and s.of == f"{ids.step_id(run.run_id, *place)}@{counts[place]}" for s in out):
                        begin(*place, at)
            case ev.SideEffectAttempted(effect_id=effect_id) as fact:
                effects[effect_id] = (at, fact.task)
            case ev.EffectFact(effect_id=effect_id) if effect_id in effects:
                began, task = effects.pop(effect_id)
                kind = e.fact.wire.rpartition(".")[2]
                told = {"holdfast.effect_id": effect_id, "holdfast.status": kind}
                out.append(Span(f"effect {task}", effect_id, began, at, told, root, kind if kind in ("failed", "unknown") else ""))
            case ev.WaitRequested(wait=wait):
                waits[wait.wait_id] = (at, str(wait.kind), wait.task)
            case ev.WaitDecided(decision=decision) | ev.WaitTimedOut(decision=decision) if decision.wait_id in waits:
                began, wait_kind, task = waits.pop(decision.wait_id)
                out.append(Span(f"wait {wait_kind}", decision.wait_id, began, at, {"holdfast.wait_id": decision.wait_id, "holdfast.action": decision.action}, root))
                queued_at = at
            case ev.WaitClosed(wait_id=wait_id) if wait_id in waits:
                began, wait_kind, task = waits.pop(wait_id)
                out.append(Span(f"wait {wait_kind}", wait_id, began, at, {"holdfast.wait_id": wait_id, "holdfast.action": "closed"}, root))
            case ev.RunInterrupted() | ev.RunResumed() | ev.RunRecovered():
                marks.append((e.fact.wire, at))
            case ev.RunFailed(error=error):
                ended_at, failure = at, "" if error is None else error.message
            case ev.RunCompleted() | ev.RunCanceled():
                ended_at, failure = at, ""
            case _:
                pass
    for i in intents:
        if i.settled_at is not None:
            sent = {"holdfast.intent_id": i.intent_id, "holdfast.type": i.type, "holdfast.state": str(i.state)}
            out.append(Span(f"intent {i.type}", i.intent_id, i.created_at, i.settled_at, sent, root))
    if run.terminal and ended_at:
        links = tuple((k.run_id, trace_id(k)) for k in kin)
        whole = {
            "holdfast.run_id": run.run_id, "holdfast.skill": run.skill_id, "holdfast.version": run.skill_version, "holdfast.status": run.status.value,
            "holdfast.tenant": run.tenant_id, "holdfast.thread_id": run.thread_id, "holdfast.takeovers": sum(name == "taken over" for name, _ in marks),
        }
        out.append(Span(f"run {run.skill_id}", root, run.created_at, ended_at, whole, "", failure, tuple(marks), links))
    return out


def readable(run: Run, span: Span, resource: Resource) -> ReadableSpan:
    """A span as the SDK's exporters take it."""
    trace = trace_id(run)

    def context(of: str, trace: int = trace) -> SpanContext:
        return SpanContext(trace, span_id(of), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    return ReadableSpan(
        name=span.name,
        context=context(span.of),
        parent=context(span.parent) if span.parent else None,
        resource=resource,
        attributes=dict(span.attributes),
        events=[Event(name, timestamp=at * 1000) for name, at in span.marks],
        links=[Link(context(of, its)) for of, its in span.links],
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.OK),
        start_time=span.began * 1000,
        end_time=max(span.ended, span.began) * 1000,
        instrumentation_scope=SCOPE,
    )


def asks_for_traces() -> bool:
    """Whether the environment asks for traces: an endpoint is named, and nothing turns them off."""
    return _asks_for("TRACES")


def asks_for_metrics() -> bool:
    """Whether the environment asks for metrics."""
    return _asks_for("METRICS")


def _asks_for(kind: str) -> bool:
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get(f"OTEL_{kind}_EXPORTER", "otlp") == "none"
    return not off and any(os.environ.get(name) for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{kind}_ENDPOINT"))


class Measured:
    """Metrics of a store and of this process, sent by the standard reader in a thread of its own (§18.3); what it sends is read now and then."""

    def __init__(self, rt: Runtime, reader: MetricReader | None = None, *, every: float = MEASURE_EVERY) -> None:
        self._rt = rt
        self._every = every
        resource = Resource.create({SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", "holdfast")})
        self._provider = MeterProvider([reader or _sender(every)], resource=resource)
        self._meter = self._provider.get_meter("holdfast")
        self._told: dict[str, Figure] = {}
        self._known: set[str] = set()

    async def go_round(self, meter: meters.Meter) -> None:
        """Reads the figures again and again, until it is cancelled."""
        while True:
            try:
                await self.read(meter)
            except HoldfastError as e:
                log.debug("metrics wait: %s", e)
            await asyncio.sleep(self._every)

    async def read(self, meter: meters.Meter) -> None:
        """Reads the figures once."""
        for each in await figures(self._rt.store, await self._rt.look.tally(), None, meter):
            for figure in _plain(each):
                self._told[figure.name] = figure
                if figure.name not in self._known:
                    self._known.add(figure.name)
                    make = self._meter.create_observable_counter if figure.grows else self._meter.create_observable_gauge
                    make(figure.name.replace("holdfast_", "holdfast.", 1), [functools.partial(self._observe, figure.name)], description=figure.says)

    def _observe(self, name: str, _: CallbackOptions) -> list[Observation]:
        figure = self._told[name]
        return [Observation(number, {figure.label: value} if figure.label else {}) for value, number in figure.values.items()]

    def close(self) -> None:
        """Sends the figures a last time, for as long as ``CLOSING_SECONDS``."""
        self._provider.shutdown(CLOSING_SECONDS * 1000)


def _sender(every: float) -> MetricReader:
    """The standard reader, which sends as often as the figures are read, or as often as the environment says."""
    return PeriodicExportingMetricReader(OTLPMetricExporter(), None if os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") else every * 1000)


def _plain(each: Figure | Spread) -> list[Figure]:
    """A spread as its count and its sum, which a collector can divide."""
    if isinstance(each, Figure):
        return [each]
    of = each.of
    return [Figure(f"{each.name}_{what}", each.says, {"": value}, "", True) for what, value in (("count", of.total), ("sum", of.sum))]


@contextlib.asynccontextmanager
async def measured(rt: Runtime, reader: MetricReader | None = None, *, every: float = MEASURE_EVERY) -> AsyncIterator[Measured]:
    """Within it the store and this process are measured: to ``reader``, by default to where the standard variables of OTLP say."""
    made = Measured(rt, reader, every=every)
    with meters.on() as meter:
        task = asyncio.ensure_future(made.go_round(meter))
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            with contextlib.suppress(HoldfastError):  # a command may end before the figures were read at all
                await made.read(meter)
            await asyncio.to_thread(made.close)


class Exporter:
    """Sends the spans of the runs that move in this process. ``dropped`` counts those that could not be sent."""

    def __init__(self, rt: Runtime, exporter: SpanExporter | None = None, *, every: float = EVERY, most: int = QUEUED) -> None:
        self._rt = rt
        self._exporter = exporter or OTLPSpanExporter()
        self._every = every
        self._resource = Resource.create({SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", "holdfast")})
        self._moved: dict[str, None] = {}
        self._sent: OrderedDict[str, set[str]] = OrderedDict()
        self._queue: queue.Queue[list[ReadableSpan] | None] = queue.Queue()
        self._waiting = 0
        self._most = most
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._send, name="holdfast-telemetry", daemon=True)
        self.dropped = 0
        self.sent = 0

    # -- life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._thread.start()
        logs.LISTENERS.append(self._hear)
        self._task = asyncio.ensure_future(self._go_round())

    async def close(self, timeout: float = CLOSING_SECONDS) -> None:
        """Sends what is there, for as long as that."""
        logs.LISTENERS.remove(self._hear)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with contextlib.suppress(HoldfastError):
            await self.flush()
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join, timeout)

    def _hear(self, commit: Commit) -> None:
        """A commit of this process; it is told from the loop that made it."""
        self.note(commit.run.run_id)

    def note(self, run_id: str) -> None:
        """A run has moved: what has ended of it is sent with the next round."""
        self._moved[run_id] = None

    async def _go_round(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            try:
                await self.flush()
            except HoldfastError as e:
                log.debug("traces wait: %s", e)

    # -- from runs to spans -------------------------------------------------------------------------

    async def flush(self) -> None:
        """Hands on what has ended since the last time, of the runs that have moved."""
        moved, self._moved = self._moved, {}
        for run_id in moved:
            found = await self._rt.store.get(run_id)
            if found is None:
                continue
            events: list[ev.Event] = []
            while rows := await self._rt.store.rows(run_id, events[-1].seq if events else 0, PAGE):
                events += [e for row in rows for e in open_row(row).events]
                await asyncio.sleep(0)
            known = self._sent.setdefault(run_id, set())
            self._sent.move_to_end(run_id)
            fresh = [s for s in spans(found[0], events, await self._rt.store.intents(run_id), await self._kin(found[0])) if s.of not in known]
            known.update(s.of for s in fresh)
            if any(s.error for s in fresh):  # what an error says may hold a secret of the run's (§13.5)
                hidden = await self._rt.mask(run_id)
                fresh = [msgspec.structs.replace(s, error=hidden.text(s.error)) for s in fresh]
            self._hand_on([readable(found[0], s, self._resource) for s in fresh])
        while len(self._sent) > KNOWN:
            self._sent.popitem(last=False)

    async def _kin(self, run: Run) -> list[Run]:
        """The runs that an ended run comes from, and those that it started: their traces may be given ones, which only their rows tell."""
        if not run.terminal:
            return []
        above = [await self._rt.store.get(k) for k in dict.fromkeys((run.parent_run_id, run.source_run_id)) if k]
        below = await self._rt.store.runs(RunFilter(parent_run_id=run.run_id, limit=MOST_LINKS))
        return [r for r, _ in (*(found for found in above if found is not None), *reversed(below))]

    def _hand_on(self, batch: list[ReadableSpan]) -> None:
        room = self._most - self._waiting
        self.dropped += max(0, len(batch) - room)
        if batch := batch[: max(0, room)]:
            self._waiting += len(batch)
            self._queue.put(batch)

    # -- the thread ---------------------------------------------------------------------------------

    def _send(self) -> None:
        while (batch := self._queue.get()) is not None:
            try:
                ok = self._exporter.export(batch) is SpanExportResult.SUCCESS
            except Exception as e:  # whatever an exporter raises: no run is to hear of it
                log.debug("spans were not sent: %s", e)
                ok = False
            self.sent += len(batch) * ok
            self.dropped += len(batch) * (not ok)
            self._waiting -= len(batch)
        self._exporter.shutdown()


@contextlib.asynccontextmanager
async def traced(rt: Runtime, exporter: SpanExporter | None = None, *, every: float = EVERY) -> AsyncIterator[Exporter]:
    """Within it the runs that move in this process are traced: to ``exporter``, by default to where the standard variables of OTLP say."""
    made = Exporter(rt, exporter, every=every)
    await made.start()
    closing: asyncio.Future[None] | None = None
    try:
        async with measured(rt) if exporter is None and asks_for_metrics() else contextlib.nullcontext():
            try:
                yield made
            finally:
                closing = asyncio.ensure_future(made.close())  # beside the last metrics, so that whoever ends waits once for a collector that is away
    finally:
        await (closing or made.close())


@contextlib.asynccontextmanager
async def export(rt: Runtime) -> AsyncIterator[None]:
    """Within it is sent what the standard variables of OpenTelemetry ask for: traces, metrics, both or neither."""
    if asks_for_traces():
        async with traced(rt):
            yield
    elif asks_for_metrics():
        async with measured(rt):
            yield
    else:
        yield


__all__ = ["Exporter", "Measured", "Span", "asks_for_metrics", "asks_for_traces", "export", "measured", "readable", "span_id", "spans", "trace_id", "traced"]

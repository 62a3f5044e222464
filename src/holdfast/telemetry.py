"""Traces and metrics for OpenTelemetry: a projection of committed events (§18). Extra ``telemetry``.

Theory of operation. A ``Story``, which is pure, turns a run's log into spans: one trace per run, with a span for the run itself, for its time
in the queue, and for each attempt, effect, wait and intent that has ended. The ids of the spans are computed from those of the run and its events. So a
process that exports a run again (after a crash, a takeover, a restart) sends the same spans, not new ones. ``Exporter`` is told which runs have moved in this
process, reads from time to time what is new in their logs, and sends it from a separate thread through a bounded queue: if a collector is slow or away,
spans are lost, but no run is affected. What the store could not answer is asked again in the next round.
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
from holdfast.core.errors import HoldfastError, StoreCorrupt
from holdfast.core.intents import Intent
from holdfast.core.run import Run
from holdfast.engine.look.figures import Figure, Spread, figures
from holdfast.ports import RunFilter
from holdfast.runtime import Runtime

EVERY = 1.0
MEASURE_EVERY = 15.0
CLOSING_SECONDS = 2.0
"""How long a process that ends waits for a collector, in seconds."""
PAGE = 1000
MOST_LINKS = 100
QUEUED = 10_000
"""The maximum number of spans that wait to be sent; beyond it, the newest are dropped."""
KNOWN = 1000
"""For how many runs this process remembers what was sent."""
SCOPE = InstrumentationScope("holdfast")
log = logs.logger("holdfast.telemetry")


class Span(msgspec.Struct, frozen=True):
    """One span, before it is converted to one of OpenTelemetry's. Times are microseconds since 1970."""

    name: str
    of: str
    began: int
    ended: int
    attributes: Mapping[str, Any] = {}
    parent: str = ""
    error: str = ""
    marks: tuple[tuple[str, int], ...] = ()
    links: tuple[tuple[str, int], ...] = ()
    """The runs that this span is linked to, each with its trace."""


def trace_id(run: Run) -> int:
    """Returns the trace id of a run: the one that it was given, as from a ``traceparent``, else one of its own."""
    given = (run.trace_id or "").replace("-", "").lower()
    if len(given) == 32 and all(c in "0123456789abcdef" for c in given) and int(given, 16):
        return int(given, 16)
    return int.from_bytes(hashlib.sha256(f"trace {run.trace_id or run.run_id}".encode()).digest()[:16])


def span_id(of: str) -> int:
    """Returns the span id for something that has an id of its own."""
    return int.from_bytes(hashlib.sha256(f"span {of}".encode()).digest()[:8]) or 1


class _Open(msgspec.Struct):
    name: str
    began: int
    number: int
    owner: str


_Place = tuple[int, str, str]
"""A super-step, its task, and the path of a call in it."""


class Story:
    """The state of a run's spans after the events so far. Each event is fed once, so that a long run costs only what is new in it."""

    def __init__(self, run: Run) -> None:
        self.seq = 0
        self._run = run
        self._open: dict[_Place, _Open] = {}
        self._counts: dict[_Place, int] = {}
        self._lost: set[_Place] = set()
        self._effects: dict[str, tuple[int, str]] = {}
        self._waits: dict[str, tuple[int, str]] = {}
        self._marks: list[tuple[str, int]] = []
        self._owner, self._queued_at, self._ended_at, self._failure = "", run.created_at, 0, ""

    def tell(self, events: Sequence[ev.Event]) -> list[Span]:
        """Takes events, which follow those taken before, and returns the spans that they have ended. The span of an effect with an unknown outcome is returned
        again when the outcome is known."""
        out: list[Span] = []
        for e in events:
            out += self._hear(e)
            self.seq = e.seq
        return out

    def whole(self, run: Run, kin: Sequence[Run] = ()) -> Span | None:
        """Returns the span of the run itself, when it has ended; else None. ``kin``: the runs that it comes from or started."""
        if not run.terminal or not self._ended_at:
            return None
        links = tuple((k.run_id, trace_id(k)) for k in kin)
        said = {
            "holdfast.run_id": run.run_id, "holdfast.skill": run.skill_id, "holdfast.version": run.skill_version, "holdfast.status": run.status.value,
            "holdfast.tenant": run.tenant_id, "holdfast.thread_id": run.thread_id, "holdfast.takeovers": sum(name == "taken over" for name, _ in self._marks),
        }
        return Span(f"run {run.skill_id}", run.run_id, run.created_at, self._ended_at, said, "", self._failure, tuple(self._marks), links)

    def _hear(self, e: ev.Event) -> list[Span]:
        at, root = e.at, self._run.run_id
        match e.fact:
            case ev.RunClaimed(owner=who):
                self._owner = who
                queued_at, self._queued_at = self._queued_at, 0
                if queued_at and at > queued_at:
                    return [Span("queued", f"{root} queued {queued_at}", queued_at, at, {"holdfast.queue": self._run.queue}, root)]
            case ev.StepStarted(step=step, task=task):
                self._begin((step, task, ""), at)
            case ev.AttemptStarted(step=step, task=task, path=path):
                self._begin((step, task, path), at)
            case ev.StepEnded(step=step, task=task, path=path, outcome=outcome):
                return [self._end((step, task, path), at, outcome)]
            case ev.StepFailed(step=step, task=task, path=path, error=error) | ev.StepRetryScheduled(step=step, task=task, path=path, error=error):
                return [self._end((step, task, path), at, "failed", error.message)]
            case ev.AttemptLeaseExpired():
                self._marks.append(("lease expired", at))
                left = sorted(self._open, key=lambda p: not p[2])  # calls first, then the steps that they are in
                self._lost.update(p for p in left if not p[2])
                return [self._end(place, at, "lost", "its owner died") for place in left]
            case ev.AttemptTakenOver(owner=who):
                self._owner = who
                self._marks.append(("taken over", at))
                for place in list(self._lost):
                    self._begin(place, at)
            case ev.SideEffectAttempted(effect_id=effect_id) as fact:
                self._effects[effect_id] = (at, fact.task)
            case ev.EffectFact(effect_id=effect_id) as fact if effect_id in self._effects:
                began, task = self._effects[effect_id]
                if not isinstance(fact, ev.SideEffectUnknown):  # the outcome of an unknown effect may be settled later
                    del self._effects[effect_id]
                kind = fact.wire.rpartition(".")[2]
                told = {"holdfast.effect_id": effect_id, "holdfast.status": kind}
                return [Span(f"effect {task}", effect_id, began, at, told, root, kind if kind in ("failed", "unknown") else "")]
            case ev.WaitRequested(wait=wait):
                self._waits[wait.wait_id] = (at, str(wait.kind))
            case ev.WaitDecided(decision=decision) | ev.WaitTimedOut(decision=decision) if decision.wait_id in self._waits:
                self._queued_at = at
                return [self._end_wait(decision.wait_id, at, decision.action)]
            case ev.WaitClosed(wait_id=wait_id) if wait_id in self._waits:
                return [self._end_wait(wait_id, at, "closed")]
            case ev.RunInterrupted() | ev.RunResumed() | ev.RunRecovered():
                self._marks.append((e.fact.wire, at))
            case ev.RunFailed(error=failed):
                self._ended_at, self._failure = at, "" if failed is None else failed.message
            case ev.RunCompleted() | ev.RunCanceled():
                self._ended_at, self._failure = at, ""
            case _:
                pass
        return []

    def _begin(self, place: _Place, at: int) -> _Open:
        self._lost.discard(place)
        if place not in self._open:
            number = self._counts[place] = self._counts.get(place, 0) + 1
            self._open[place] = _Open(place[1], at, number, self._owner)
        return self._open[place]

    def _end(self, place: _Place, at: int, outcome: str, error: str = "") -> Span:
        step, task, path = place
        o = self._open.pop(place, None)
        if o is None:
            o = self._begin(place, at)
            del self._open[place]
        root = self._run.run_id
        step_id = ids.step_id(root, step, task, path)
        above = self._open.get((step, task, "")) if path else None
        parent = f"{ids.step_id(root, step, task)}@{above.number}" if above is not None else root
        said = {
            "holdfast.step_id": step_id, "holdfast.step": step, "holdfast.attempt": o.number, "holdfast.outcome": outcome, "holdfast.owner": o.owner,
        }
        return Span(f"step {task}" if not path else f"call {task} {path}", f"{step_id}@{o.number}", o.began, at, said, parent, error)

    def _end_wait(self, wait_id: str, at: int, action: str) -> Span:
        began, kind = self._waits.pop(wait_id)
        return Span(f"wait {kind}", wait_id, began, at, {"holdfast.wait_id": wait_id, "holdfast.action": action}, self._run.run_id)


def _sendings(intents: Sequence[Intent]) -> list[Span]:
    """Returns the spans of the messages that are settled."""
    return [
        Span(
            f"intent {i.type}", i.intent_id, i.created_at, i.settled_at,
            {"holdfast.intent_id": i.intent_id, "holdfast.type": i.type, "holdfast.state": str(i.state)}, i.run_id,
        )
        for i in intents if i.settled_at is not None
    ]


def spans(run: Run, events: Sequence[ev.Event], intents: Sequence[Intent] = (), kin: Sequence[Run] = ()) -> list[Span]:
    """Returns the ended spans of a run from all of its events. ``kin``: the runs that it comes from or started, whose traces are linked."""
    story = Story(run)
    out = {s.of: s for s in story.tell(events)}
    out |= {s.of: s for s in _sendings(intents)}
    if (whole := story.whole(run, kin)) is not None:
        out[whole.of] = whole
    return list(out.values())


def readable(run: Run, span: Span, resource: Resource) -> ReadableSpan:
    """Converts a span to the form that the SDK's exporters accept."""
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
    """Whether the environment asks for traces: it names an endpoint, and nothing turns traces off."""
    return _asks_for("TRACES")


def asks_for_metrics() -> bool:
    """Whether the environment asks for metrics, in the same way."""
    return _asks_for("METRICS")


def _asks_for(kind: str) -> bool:
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get(f"OTEL_{kind}_EXPORTER", "otlp") == "none"
    return not off and any(os.environ.get(name) for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{kind}_ENDPOINT"))


def make_resource() -> Resource:
    """Makes the resource of the telemetry: the service that the standard variables name, else ``holdfast``."""
    named = Resource.create()
    unnamed = str(named.attributes.get(SERVICE_NAME, "")).startswith("unknown_service")
    return named.merge(Resource({SERVICE_NAME: "holdfast"})) if unnamed else named


class Measured:
    """Metrics of a store and of this process, sent by the standard reader in a thread of its own (§18.3). The figures that it sends are read periodically."""

    def __init__(self, rt: Runtime, reader: MetricReader | None = None, *, every: float = MEASURE_EVERY) -> None:
        self._rt = rt
        self._every = every
        self._provider = MeterProvider([reader or _sender(every)], resource=make_resource())
        self._meter = self._provider.get_meter("holdfast")
        self._told: dict[str, Figure] = {}
        self._known: set[str] = set()

    async def go_round(self, meter: meters.Meter) -> None:
        """Reads the figures periodically, until it is cancelled."""
        while True:
            try:
                await self.read(meter)
            except HoldfastError as e:
                log.debug("metrics wait: %s", e)
            except Exception:  # an unexpected error does not end the rounds either
                log.exception("metrics wait")
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
        """Sends the figures a last time, within ``CLOSING_SECONDS``."""
        self._provider.shutdown(CLOSING_SECONDS * 1000)


def _sender(every: float) -> MetricReader:
    """Makes the standard reader, which sends as often as the figures are read, or as often as the environment says."""
    return PeriodicExportingMetricReader(OTLPMetricExporter(), None if os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") else every * 1000)


def _plain(each: Figure | Spread) -> list[Figure]:
    """Returns a spread as two figures, its count and its sum, which a collector can divide."""
    if isinstance(each, Figure):
        return [each]
    of = each.of
    return [Figure(f"{each.name}_{what}", each.says, {"": value}, "", True) for what, value in (("count", of.total), ("sum", of.sum))]


@contextlib.asynccontextmanager
async def measured(rt: Runtime, reader: MetricReader | None = None, *, every: float = MEASURE_EVERY) -> AsyncIterator[Measured]:
    """Measures the store and this process within the block. Sends to ``reader``, by default to where the standard variables of OTLP say."""
    made = Measured(rt, reader, every=every)
    with meters.on() as meter:
        task = asyncio.ensure_future(made.go_round(meter))
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            with contextlib.suppress(HoldfastError):  # read once more, because a short command may end before the first round
                await made.read(meter)
            await asyncio.to_thread(made.close)


class _Told:
    """What was sent about a run by this process. Its story returns the spans of steps once; other spans may be returned again, and are sent again only if they differ."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self._last: dict[str, int] = {}

    def is_news(self, span: Span) -> bool:
        """Whether the span was not sent before in this form."""
        if "holdfast.run_id" not in span.attributes and "holdfast.intent_id" not in span.attributes:
            return True
        before = self._last.get(span.of)
        self._last[span.of] = span.ended
        return before != span.ended


class Exporter:
    """Sends the spans of the runs that move in this process. ``dropped``: how many could not be sent."""

    def __init__(self, rt: Runtime, exporter: SpanExporter | None = None, *, every: float = EVERY, most: int = QUEUED) -> None:
        self._rt = rt
        self._exporter = exporter or OTLPSpanExporter()
        self._every = every
        self._resource = make_resource()
        self._moved: dict[str, None] = {}
        self._settled: dict[str, list[Span]] = {}
        self._told: OrderedDict[str, _Told] = OrderedDict()
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
        logs.SETTLED.append(self._hear_settled)
        self._task = asyncio.ensure_future(self._go_round())

    async def close(self, timeout: float = CLOSING_SECONDS) -> None:
        """Sends what there is, within ``timeout`` seconds."""
        logs.LISTENERS.remove(self._hear)
        logs.SETTLED.remove(self._hear_settled)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.flush()
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join, timeout)

    def _hear(self, commit: Commit) -> None:
        """Notes a commit of this process; called in the event loop that made it."""
        self.note(commit.run.run_id)

    def _hear_settled(self, intent: Intent) -> None:
        """Notes a message that this process has settled, because the run's log does not contain that."""
        self._settled.setdefault(intent.run_id, []).extend(_sendings([intent]))
        self.note(intent.run_id)

    def note(self, run_id: str) -> None:
        """Notes that a run has moved: its ended spans are sent in the next round."""
        self._moved[run_id] = None

    async def _go_round(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            await self.flush()

    # -- from runs to spans -------------------------------------------------------------------------

    async def flush(self) -> None:
        """Queues the spans that have ended since the last time, for the runs that have moved. A run that cannot be read is tried again in the next round."""
        moved, self._moved = self._moved, {}
        for run_id in moved:
            try:
                await self._tell(run_id)
            except StoreCorrupt as e:  # trying again at once is no use: the run is tried again when it moves
                log.debug("%s is not traced: %s", run_id, e)
            except HoldfastError as e:
                log.debug("the trace of %s waits: %s", run_id, e)
                self.note(run_id)
            except Exception:  # an error of one run does not affect the others, and does not end the rounds
                log.exception("%s is not traced", run_id)
        while len(self._told) > KNOWN:
            self._told.popitem(last=False)
        while len(self._moved) > self._most:  # the store has been away for long
            run_id = next(iter(self._moved))
            del self._moved[run_id]
            self._settled.pop(run_id, None)

    async def _tell(self, run_id: str) -> None:
        found = await self._rt.store.get(run_id)
        if found is None:
            return
        run = found[0]
        told = self._told.get(run_id)
        settled = self._settled.pop(run_id, [])
        fresh: list[Span] = []
        try:
            if told is None or told.story.seq > run.version:  # first time, or the store was restored to an older state
                told = self._told[run_id] = _Told(Story(run))
                settled = await self._find_sent(run)
            self._told.move_to_end(run_id)
            while rows := await self._rt.store.rows(run_id, told.story.seq, PAGE):
                for row in rows:
                    fresh += told.story.tell([e for e in open_row(row).events if e.seq > told.story.seq])
                await asyncio.sleep(0)
            fresh += settled
            whole = told.story.whole(run, await self._kin(run))
            fresh += [] if whole is None else [whole]
            if any(s.error for s in fresh):  # the text of an error may contain a secret of the run (§13.5)
                hidden = await self._rt.mask(run_id)
                fresh = [msgspec.structs.replace(s, error=hidden.text(s.error)) for s in fresh]
        except BaseException:
            self._told.pop(run_id, None)  # start over next time: spans that it has returned were not sent
            raise
        self._hand_on([readable(run, s, self._resource) for s in fresh if told.is_news(s)])

    async def _find_sent(self, run: Run) -> list[Span]:
        out: list[Span] = []
        after: str | None = None
        while found := await self._rt.store.intents(run.run_id, after=after, limit=PAGE):
            out += _sendings(found)
            after = found[-1].intent_id
        return out

    async def _kin(self, run: Run) -> list[Run]:
        """Returns the runs that an ended run comes from, and those that it started. Their trace ids may be given ones, which only their rows contain."""
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
            except Exception as e:  # an exporter may raise anything, which must not affect a run
                log.debug("spans were not sent: %s", e)
                ok = False
            self.sent += len(batch) * ok
            self.dropped += len(batch) * (not ok)
            self._waiting -= len(batch)
        self._exporter.shutdown()


@contextlib.asynccontextmanager
async def traced(rt: Runtime, exporter: SpanExporter | None = None, *, every: float = EVERY) -> AsyncIterator[Exporter]:
    """Traces the runs that move in this process within the block. Sends to ``exporter``, by default to where the standard variables of OTLP say."""
    made = Exporter(rt, exporter, every=every)
    await made.start()
    closing: asyncio.Future[None] | None = None
    try:
        async with measured(rt) if exporter is None and asks_for_metrics() else contextlib.nullcontext():
            try:
                yield made
            finally:
                closing = asyncio.ensure_future(made.close())  # while the last metrics are sent, so that a process that ends waits only once for a collector that is away
    finally:
        await (closing or made.close())


@contextlib.asynccontextmanager
async def export(rt: Runtime) -> AsyncIterator[None]:
    """Sends within the block what the standard variables of OpenTelemetry ask for: traces, metrics, both or neither."""
    if asks_for_traces():
        async with traced(rt):
            yield
    elif asks_for_metrics():
        async with measured(rt):
            yield
    else:
        yield


__all__ = ["Exporter", "Measured", "Span", "Story", "asks_for_metrics", "asks_for_traces", "export", "make_resource", "measured", "readable", "span_id", "spans", "trace_id", "traced"]

"""Traces: one a run, whatever becomes of the processes that drive it; and an exporter that is away costs no run anything (§18)."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from holdfast import END, Context, Goto, Graph, Runtime, State, flow
from holdfast.core import events as ev
from holdfast.core.codec import Row, open_row
from holdfast.core.errors import StoreUnavailable
from holdfast.stores.memory import MemoryStore
from holdfast.telemetry import Exporter, asks_for_traces, make_resource, spans, trace_id, traced
from holdfast.transports import PermanentError
from tests.engine.support import World, says


class Notes(State):
    n: int = 0


def skill() -> Any:
    @flow("work")
    async def work(ctx: Context) -> str:
        one = await ctx.step(str, "one")
        sent = await ctx.effect(str, "sent", idempotent=True)
        await ctx.approve("good?")
        two = await ctx.step(str, "two")
        return f"{one} {sent} {two}"

    return work


async def test_a_run_killed_twice_and_taken_over_is_one_trace_without_doubled_spans() -> None:
    world, made, first, second = World(), skill(), InMemorySpanExporter(), InMemorySpanExporter()
    run_id = await world.crash(made, when=says(ev.StepCompleted, path="0"))
    async with world.runtime(made) as rt, traced(rt, first) as out:
        assert (await rt.recover())[0].status == "waiting_for_human"
        await out.flush()
    async with world.runtime(made) as rt:
        await rt.approve(run_id, drive=False)
    await world.crash(made, when=says(ev.RunResumed), resume=run_id)
    async with world.runtime(made) as rt, traced(rt, second) as out:
        assert (await rt.recover())[0].status == "completed"
        await out.flush()
    again = InMemorySpanExporter()
    async with world.runtime(made) as rt:
        made_again = Exporter(rt, again)
        await made_again.start()
        run = await rt.get(run_id)
        made_again.note(run_id)
        await made_again.flush()
        await made_again.close()
        expected = trace_id(run.record)
    spans = [*first.get_finished_spans(), *second.get_finished_spans()]
    assert {s.context.trace_id for s in spans} == {expected}, "one trace"
    by_id = {s.context.span_id: s for s in spans}
    told = [(s.name, s.attributes.get("holdfast.step_id"), s.attributes.get("holdfast.attempt"), s.start_time) for s in by_id.values()]
    assert len(told) == len(set(told)), "no second span for the same thing"
    names = [s.name for s in by_id.values()]
    assert names.count("run work") == 1 and names.count("wait approval") == 1 and names.count("effect work") == 1 and names.count("call work 0") == 1
    lost = [s for s in by_id.values() if s.attributes.get("holdfast.outcome") == "lost"]
    assert [s.name for s in lost] == ["step work"] * 2 and "taken over" in [e.name for s in by_id.values() if s.name == "run work" for e in s.events]
    assert {s.context.span_id for s in again.get_finished_spans()} == set(by_id), "who tells it again tells the same spans"
    assert all(s.parent is None or s.parent.span_id in by_id for s in by_id.values()) and [s.name for s in by_id.values() if s.parent is None] == ["run work"]


class Away(SpanExporter):
    """A collector that does not answer until it is let."""

    def __init__(self) -> None:
        self.there = threading.Event()
        self.got: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.there.wait(30)
        self.got += spans
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass


async def test_while_the_exporter_is_away_no_run_is_slower_or_fails() -> None:
    """§18.1: runs commit as often as without; what waits is bounded; afterwards spans are sent again."""
    graph = Graph("line", Notes)

    @graph.node(start=True)
    async def one(state: Notes) -> dict[str, Any]:
        return {"n": 1}

    away = Away()
    async with Runtime("memory:", skills=[graph]) as rt:
        out = Exporter(rt, away, most=50)
        await out.start()
        for _ in range(100):
            assert (await rt.invoke(graph, {})).status == "completed"
        await out.flush()
        assert away.got == [] and out.dropped == 150, "two spans a run; fifty may wait"
        away.there.set()
        await rt.invoke(graph, {})
        await out.close()
    assert len(away.got) >= 50 and out.sent == len(away.got)


async def test_an_exporter_that_raises_is_no_run_s_business() -> None:
    class Broken(InMemorySpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            raise RuntimeError("no")

    made = skill()
    async with Runtime("memory:", skills=[made]) as rt, traced(rt, Broken()) as out:
        run = await rt.invoke(made, {})
        await rt.approve(run.run_id)
    assert out.dropped > 0 and out.sent == 0


async def test_otlp_goes_where_the_standard_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[ExportTraceServiceRequest] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append(ExportTraceServiceRequest.FromString(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
        assert asks_for_traces()
        made = skill()
        async with Runtime("memory:", skills=[made]) as rt, traced(rt):
            run = await rt.invoke(made, {}, trace_id="0af7651916cd43dd8448eb211c80319c")
            await rt.approve(run.run_id)
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
    resources = [r for request in got for r in request.resource_spans]
    spans = [s for r in resources for scope in r.scope_spans for s in scope.spans]
    assert {s.trace_id.hex() for s in spans} == {"0af7651916cd43dd8448eb211c80319c"} and "run work" in {s.name for s in spans}
    assert {a.value.string_value for r in resources for a in r.resource.attributes if a.key == "service.name"} == {"shop"}


def test_nothing_is_sent_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert not asks_for_traces()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    assert asks_for_traces()
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not asks_for_traces()


class Counting(MemoryStore):
    """Counts the log rows that are read, and fails where it is told to."""

    read = 0
    fails: frozenset[str] | set[str] = frozenset()

    async def rows(self, run_id: str, after: int = 0, limit: int | None = None) -> list[Row]:
        if run_id in self.fails:
            raise StoreUnavailable("away")
        found = await super().rows(run_id, after, limit)
        self.read += len(found)
        return found


def line(length: int) -> Graph[Notes]:
    graph = Graph("line", Notes, step_limit=10_000)

    @graph.node(start=True)
    async def one(state: Notes) -> Goto:
        return Goto("one" if state.n < length else END, {"n": state.n + 1})

    return graph


async def test_what_a_store_could_not_tell_is_told_later_and_other_runs_are_told_now() -> None:
    """§18.1: a span that has ended is sent, also where the store was away meanwhile, or one run's records cannot be read."""
    graph, store, got = line(1), Counting(), InMemorySpanExporter()
    async with Runtime(store, skills=[graph]) as rt, traced(rt, got, every=3600) as out:
        first, second = [(await rt.invoke(graph, {})).run_id for _ in range(2)]
        store.fails = {first}
        await out.flush()
        store.fails = set()
        await out.flush()
    runs = [s.attributes["holdfast.run_id"] for s in got.get_finished_spans() if s.name == "run line" and s.attributes]
    assert runs == [second, first]


async def test_a_fault_of_one_run_does_not_end_the_rounds() -> None:
    """X-14: what nobody expected is logged, and the next run is told of all the same."""
    graph, got = line(1), InMemorySpanExporter()

    class Odd(MemoryStore):
        odd = True

        async def rows(self, run_id: str, after: int = 0, limit: int | None = None) -> list[Row]:
            odd, self.odd = self.odd, False
            if odd:
                raise RuntimeError("odd")
            return await super().rows(run_id, after, limit)

    async with Runtime(Odd(), skills=[graph]) as rt, traced(rt, got, every=3600) as out:
        await rt.invoke(graph, {})
        second = await rt.invoke(graph, {})
        await out.flush()
    assert [s.attributes["holdfast.run_id"] for s in got.get_finished_spans() if s.name == "run line" and s.attributes] == [second.run_id]


async def test_a_long_run_s_log_is_read_once() -> None:
    """§18.1: what is exported while a run goes on costs what is new, not all that the run has done."""
    store = Counting()
    made = line(40)
    async with Runtime(store, skills=[made]) as rt, traced(rt, InMemorySpanExporter(), every=3600) as out:
        run = await rt.invoke(made, {}, budgets={"steps": 10})
        before = 0
        while run.status == "waiting_for_human":
            await out.flush()
            assert store.read - before <= 40, "the rows that are new"
            run = await rt.approve(run.run_id)
            before = store.read
    assert run.status == "completed"


async def test_a_takeover_of_a_run_of_many_steps_is_told_in_a_moment() -> None:
    """Cost grows with the events, not with their product: a run of 20,000 steps that was taken over held the loop for minutes."""
    world, made = World(), line(2)
    run_id = await world.crash(made, when=says(ev.StepStarted))
    async with world.runtime(made) as rt:
        await rt.recover()
        run = (await rt.get(run_id)).record
        events = [e for row in await rt.store.rows(run_id) for e in open_row(row).events]
    step = next(e for e in events if isinstance(e.fact, ev.StepEnded))
    taken = [e for e in events if isinstance(e.fact, ev.AttemptLeaseExpired | ev.AttemptTakenOver)]
    assert len(taken) == 2
    many = [msgspec.structs.replace(step, fact=msgspec.structs.replace(step.fact, step=n)) for n in range(20_000)]
    began = time.process_time()
    told = spans(run, [*many, *taken * 20])
    assert len(told) == 20_000 and time.process_time() - began < 5


async def test_a_run_that_goes_on_after_its_end_is_told_as_it_ended_last() -> None:
    """§18.2: the same span again, not the first one for ever."""
    broken = [True]
    graph, got = Graph("line", Notes), InMemorySpanExporter()

    @graph.node(start=True)
    async def one(state: Notes) -> dict[str, Any]:
        if broken.pop() if broken else False:
            raise ValueError("no")
        return {"n": 1}

    async with Runtime("memory:", skills=[graph]) as rt, traced(rt, got, every=3600) as out:
        run = await rt.invoke(graph, {})
        assert run.status == "failed"
        await out.flush()
        await rt.resume(run.run_id, actor="ada", acknowledge=run.stop_reason)
    roots = [s for s in got.get_finished_spans() if s.name == "run line"]
    assert [s.status.status_code for s in roots] == [StatusCode.ERROR, StatusCode.OK] and len({s.context.span_id for s in roots}) == 1
    steps = [s for s in got.get_finished_spans() if s.name == "step one"]
    assert len({s.context.span_id for s in steps}) == len(steps) == 2, "what did not change is not sent again"


async def test_a_message_that_is_sent_after_its_run_has_ended_has_its_span() -> None:
    """§18.2: a span an intent; who sends it tells of it, however much later."""
    graph, got = Graph("post", Notes), InMemorySpanExporter()

    @graph.node(start=True)
    async def one(state: Notes, ctx: Context) -> None:
        for n in range(600):
            ctx.send("mail", {"n": n}, key=str(n))

    async def post(payload: Any, key: str) -> None:
        if payload["n"] == 7:
            raise PermanentError("no such person")

    store = MemoryStore()
    async with Runtime(store, skills=[graph]) as rt:
        run_id = (await rt.submit(graph, {})).run_id
        await rt.worker(until_idle=True, dispatch=False)
    async with Runtime(store, transports={"mail": post}) as rt, traced(rt, got, every=3600) as out:
        await rt.dispatch(until_idle=True)
        await out.flush()
        dead = (await rt.intents(run_id, state="dead"))[0]
        await rt.settle(dead.intent_id, "sent", actor="ada")
    told = [(s.attributes["holdfast.intent_id"], s.attributes["holdfast.state"]) for s in got.get_finished_spans() if s.name == "intent mail" and s.attributes]
    assert len({i for i, _ in told}) == 600
    assert [state for i, state in told if i == dead.intent_id][-1] == "sent"


async def test_an_effect_that_was_unknown_is_told_as_it_was_settled() -> None:
    world, got = World(), InMemorySpanExporter()

    @flow("work")
    async def work(ctx: Context) -> Any:
        return await ctx.effect(str, "sent")

    run_id = await world.crash(work, when=says(ev.SideEffectAttempted))
    async with world.runtime(work) as rt, traced(rt, got, every=3600) as out:
        assert (await rt.recover())[0].status == "waiting_for_human"
        await out.flush()
        await rt.decide(run_id, "record_result", actor="ada", payload="sent")
        assert (await rt.resume(run_id)).status == "completed"
    told = [s.attributes["holdfast.status"] for s in got.get_finished_spans() if s.name == "effect work" and s.attributes]
    assert told == ["unknown", "recorded"]


def test_the_service_is_named_as_the_standard_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    monkeypatch.delenv("OTEL_RESOURCE_ATTRIBUTES", raising=False)
    assert make_resource().attributes["service.name"] == "holdfast"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=shop,deployment.environment=test")
    assert make_resource().attributes["service.name"] == "shop" and make_resource().attributes["deployment.environment"] == "test"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "desk")
    assert make_resource().attributes["service.name"] == "desk"

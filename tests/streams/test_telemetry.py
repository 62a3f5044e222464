"""Traces: one a run, whatever becomes of the processes that drive it; and an exporter that is away costs no run anything (§18)."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast import Context, Graph, Runtime, State, flow
from holdfast.core import events as ev
from holdfast.telemetry import Exporter, asks_for_traces, trace_id, traced
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

"""Figures for Prometheus and OpenTelemetry (§13.4, §18.3): every one that is promised, counted right, and nothing where nobody looks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast import Context, Graph, Runtime, flow, logs, meters
from holdfast.telemetry import Exporter, measured, trace_id
from tests.http.scenes import Mail, many
from tests.http.support import Notes, served

PROMISED = {
    "runs", "steps_total", "attempts_total", "effects", "unknown_effects", "waits", "oldest_wait_seconds", "queue_due", "queue_oldest_seconds", "claim_seconds",
    "commit_seconds", "commit_group_size", "takeovers", "oldest_lease_seconds", "intents",
}


def values(text: str) -> dict[str, float]:
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            assert re.fullmatch(r'[a-z_]+(\{[a-z]+="[^"]*"\})? [0-9.e+-]+', line), line
            name, _, number = line.rpartition(" ")
            found[name] = float(number)
    return found


def closed(http: httpx.AsyncClient) -> None:
    """What the end of a server does: nothing is counted any more."""
    http.app.state.api.counting.close()  # type: ignore[attr-defined]


def steady() -> Graph[Notes]:
    g = Graph("steady", Notes)

    @g.node(start=True)
    async def one(state: Notes, ctx: Context) -> dict[str, Any]:
        return {"said": ["one"]}

    @g.node(after="one")
    async def two(state: Notes) -> dict[str, Any]:
        return {"said": ["two"]}

    @g.node(after="two", retry=3)
    async def three(state: Notes) -> dict[str, Any]:
        if state.name == "flaky" and TRIED.setdefault("three", 0) < 2:
            TRIED["three"] += 1
            raise ConnectionError("again")
        return {"said": ["three"]}

    return g


TRIED: dict[str, int] = {}


async def test_every_figure_that_is_promised_is_told_and_right(tmp_path: Path) -> None:
    """§18.3: counted by what was done since somebody first looked; labels are bounded, and none is a run's id."""
    TRIED.clear()
    async with Runtime(f"sqlite:///{tmp_path}/a.db", skills=[g := steady()]) as rt, served(rt, tokens=False) as http:
        assert not meters.METERS and not logs.has_listener()
        before = values((await http.get("/metrics")).text)
        assert before["holdfast_attempts_total"] == 0 and meters.METERS
        for _ in range(4):
            await rt.submit(g, {"name": "quick"})
        await rt.worker(until_idle=True)
        await rt.invoke(g, {"name": "flaky"})
        text = (await http.get("/metrics")).text
        after = values(text)
        assert {n.removeprefix("holdfast_") for n in re.findall(r"^# HELP (\w+)", text, re.M)} >= PROMISED
        assert (after['holdfast_steps_total{outcome="ok"}'], after["holdfast_attempts_total"]) == (15, 17)
        assert after["holdfast_claim_seconds_count"] > 0 and after["holdfast_commit_seconds_count"] == after["holdfast_commit_group_size_count"] > 0
        assert after['holdfast_commit_group_size_bucket{le="+Inf"}'] == after["holdfast_commit_group_size_count"]
        assert after['holdfast_runs_kept{status="completed"}'] == 5
        assert not any(r.run_id in text for r in await rt.runs())
        closed(http)
    assert not meters.METERS and not logs.has_listener(), "nobody looks any more"


async def test_what_stands_in_the_store_is_told(tmp_path: Path) -> None:
    async with Runtime(f"sqlite:///{tmp_path}/a.db", transports={"mail": Mail()}) as rt, served(rt, tokens=False) as http:
        await many(rt)
        told = values((await http.get("/metrics")).text)
        assert (told["holdfast_unknown_effects"], told['holdfast_effects{status="unknown"}'], told['holdfast_intents{state="dead"}']) == (1, 1, 1)
        assert told['holdfast_runs{condition="awaiting_gate_decision"}'] >= 4 and told["holdfast_oldest_wait_seconds"] > 0
        assert told['holdfast_waits{kind="approval"}'] >= 1 and told['holdfast_waits{kind="effect"}'] == 1
        closed(http)


async def test_the_same_figures_go_to_opentelemetry() -> None:
    """§13.4, §18.3: by the standard SDK, whose reader sends them; a spread as its count and its sum."""
    reader = InMemoryMetricReader()
    async with Runtime("memory:", skills=[g := steady()]) as rt, measured(rt, reader, every=3600) as out:
        (meter,) = meters.METERS
        await rt.invoke(g, {"name": "quick"})
        await out.read(meter)
        data: Any = reader.get_metrics_data()
        found = {m.name: m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
        nothing_of = {"waits", "effects", "intents", "queue_due", "queue_oldest_seconds"}  # a collector is told of what is there
        assert {n.removeprefix("holdfast.").removesuffix("_count") for n in found} >= PROMISED - nothing_of
        (steps,) = found["holdfast.steps_total"].data.data_points
        assert (steps.value, dict(steps.attributes)) == (3, {"outcome": "ok"})
    assert not meters.METERS


@pytest.mark.parametrize("given", ["4bf92f3577b34da6a3ce929d0e0e4736", None], ids=["traced from outside", "its own trace"])
async def test_kin_are_linked_in_their_own_traces(given: str | None) -> None:
    """§18.2: links to the parent, the source and the children, each under the trace that it really has."""

    @flow("child")
    async def child(ctx: Context) -> int:
        return 1

    @flow("parent")
    async def parent(ctx: Context) -> int:
        return await ctx.child(child, {})

    spans = InMemorySpanExporter()
    async with Runtime("memory:", skills=[parent, child]) as rt:
        out = Exporter(rt, spans)
        await out.start()
        run = await rt.submit(parent, {}, **({"trace_id": given} if given else {}))
        await rt.worker(until_idle=True)
        fork = await rt.replay(run.run_id)
        await out.close()
        rows = {r.run_id: r for r in await rt.runs(limit=50)}
        roots = {s.attributes["holdfast.run_id"]: s for s in spans.get_finished_spans() if s.parent is None and s.name.startswith("run ")}
        (kid,) = [i for i, r in rows.items() if r.parent_run_id == run.run_id]
        trace = {i: trace_id((await rt.store.get(i))[0]) for i in rows}  # type: ignore[index]
        assert {link.context.trace_id for link in roots[kid].links} == {trace[run.run_id]}
        assert trace[kid] in {link.context.trace_id for link in roots[run.run_id].links}
        assert trace[run.run_id] in {link.context.trace_id for link in roots[fork.run_id].links}
        assert {i: s.context.trace_id for i, s in roots.items()} == {i: trace[i] for i in roots}

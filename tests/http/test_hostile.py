"""No input makes a 5xx (§16.4), what fails by itself is seen by whoever runs the server, and a server that executes nothing is not ready (§16.9)."""

from __future__ import annotations

import asyncio
import logging
import re
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from holdfast import Runtime
from holdfast.api import app
from holdfast.api.openapi import EXAMPLES, document
from holdfast.api.table import ROUTES, Route
from holdfast.core.errors import InvalidInput
from tests.http.support import graph, served

NUMBERS = ["-1", "9007199254740993", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "9" * 30, "1e400", "nan", "inf", "-inf", "1_0", "٣", "²"]
WORDS = ["", "0", "x", "%00", "%ed%a0%80", "9.9.9.9." + "9" * 30, "c" + "9" * 30, ".", "..", "'", "2026-11-21T08:00", "0001-01-01T00:00Z", "9999-12-31T23:59:59-12:00", "%F0%9F%98%80" * 200]
VALUES: list[Any] = [None, True, -1, 2**63 - 1, -(2**63), 1e308, "", "x", "\0", "x" * 5000, [], [[]], {}, {"": 1}, {"x": {"x": 1}}, "0001-01-01T00:00Z"]
READS = [r for r in ROUTES if r.method == "GET" and r.path != "/v1/stream"]
ACTS = [r for r in ROUTES if r.body is not None]
STREAMED = "/v1/runs/{run_id}/stream"


def fill(path: str, run_id: str, name: str = "", value: str = "") -> str:
    known = {"run_id": run_id, "thread_id": run_id, "checkpoint_id": "head", name: value}
    return re.sub(r"{(\w+)}", lambda found: known.get(found[1], "nothing"), path)


def query_of(route: Route, name: str, value: str) -> str:
    needed = {"a": "head", "b": "head"} if route.path.endswith("/diff") else {}
    return "&".join(f"{n}={v}" for n, v in {**needed, name: value}.items())


def check(answer: httpx.Response, asked: object) -> None:
    assert answer.status_code < 500, (asked, answer.status_code, answer.text[:300])
    assert answer.status_code < 400 or answer.headers["content-type"] == "application/problem+json", (asked, answer.text[:300])


@pytest.mark.parametrize("route", READS, ids=lambda r: r.path)
async def test_no_parameter_makes_a_5xx(route: Route, tmp_path: Path) -> None:
    async with Runtime(f"sqlite:///{tmp_path}/a.db", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {"name": "quick"})
        for name in route.query.__struct_fields__:
            for value in NUMBERS + WORDS:
                check(await http.get(f"{fill(route.path, run.run_id)}?{query_of(route, name, value)}"), (name, value))
        for name in re.findall(r"{(\w+)}", route.path):
            for value in NUMBERS + [w for w in WORDS if w not in ("", ".", "..")]:
                check(await http.get(f"{fill(route.path, run.run_id, name, value)}?{query_of(route, 'a', 'head') if route.path.endswith('/diff') else ''}"), (name, value))
        if route.path == STREAMED:
            for value in NUMBERS + WORDS[:12]:
                check(await http.get(fill(route.path, run.run_id), headers={"Last-Event-ID": value.encode()}), value)


@pytest.mark.parametrize("route", ACTS, ids=lambda r: r.path)
async def test_no_field_of_a_body_makes_a_5xx(route: Route, tmp_path: Path) -> None:
    async with Runtime(f"sqlite:///{tmp_path}/a.db", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        schedule = await rt.schedule(g, {}, every=3600)
        path = fill(route.path, run.run_id).replace("/schedules/nothing/", f"/schedules/{schedule.id}/")
        assert route.body is not None
        example = EXAMPLES[route.body.__name__]
        for field in msgspec.structs.fields(route.body):
            for value in VALUES:
                check(await http.post(path, json={**example, field.encode_name: value}), (field.name, value))
        for name in ("priority", "delay", "at", "budgets", "tags", "queue", "session_key", "recovery", "target", "from_step"):
            for value in VALUES if "options" in example or "options" in route.body.__struct_fields__ else []:
                check(await http.post(path, json={**example, "options": {name: value}}), (name, value))


@pytest.mark.parametrize("header", ["content-length", "origin", "sec-fetch-site", "host", "cookie", "authorization", "content-type", "idempotency-key", "if-match", "if-none-match", "traceparent", "last-event-id"])
async def test_no_header_makes_a_5xx(header: str) -> None:
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {"name": "quick"})
        for value in (b"", b"-1", b"9" * 30, b"\xff", b"[", b"http://[", "²".encode("latin1"), "²".encode(), b"\xed\xa0\x80", b"a" * 5000):
            for method, path in (("GET", f"/v1/runs/{run.run_id}"), ("GET", f"/v1/runs/{run.run_id}/stream"), ("POST", f"/v1/runs/{run.run_id}/cancel"), ("POST", "/login"), ("GET", "/runs")):
                answer = await http.request(method, path, headers={header: value})
                assert answer.status_code < 500, (path, value, answer.text[:300])


def is_whole(kind: Any) -> bool:
    return kind is int or (isinstance(kind, types.UnionType) and int in kind.__args__ and str not in kind.__args__)


def test_every_whole_number_of_a_query_says_its_bounds() -> None:
    """A field without bounds reaches the store as it was given."""
    told = document("0")["paths"]
    seen = 0
    for route in ROUTES:
        whole = {n for n, kind in typing.get_type_hints(route.query).items() if is_whole(kind)}
        for parameter in told[route.path][route.method.lower()]["parameters"]:
            if parameter["in"] == "query" and parameter["name"] in whole:
                seen += 1
                assert {"minimum", "maximum"} <= set(parameter["schema"]), (route.path, parameter)
    assert seen > 12


@pytest.mark.parametrize(("ask", "given", "field"), [("events", int, "after"), ("ledger", str, "cursor"), ("ledger", int, "cursor")])
async def test_what_reads_is_bounded_for_every_surface(ask: str, given: type, field: str, tmp_path: Path) -> None:
    async with Runtime(f"sqlite:///{tmp_path}/a.db", skills=[g := graph()]) as rt:
        run = await rt.invoke(g, {"name": "quick"})
        for after in (-1, 2**53 + 1, 2**63, 10**30):
            with pytest.raises(InvalidInput) as refused:
                await getattr(rt.look, ask)(run.run_id, after=given(after))
            assert refused.value.field == field


def failing_store(rt: Runtime, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Whatever is read of the store fails from now on."""

    async def fail_so(*_: Any, **__: Any) -> Any:
        raise error

    for name in ("get", "load", "runs", "schedules", "schedule", "token", "intents", "intent", "ledger", "workers", "find_shelved", "scan_shelf", "tally", "rows"):
        if hasattr(rt.store, name):
            monkeypatch.setattr(rt.store, name, fail_so)


# -- what fails by itself -----------------------------------------------------------------------------


async def fail(*_: Any) -> None:
    raise RuntimeError("of our own")


async def end_early(*_: Any) -> None:
    return None


async def be_cancelled(*_: Any) -> None:
    raise asyncio.CancelledError


def set_up_no_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process of its own: pytest, which adds its handlers when a test begins, hears of nothing."""
    monkeypatch.setattr(logging.getLogger("holdfast"), "propagate", False)


async def test_a_fault_of_ours_is_seen_by_whoever_runs_the_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_no_logging(monkeypatch)
    async with Runtime("memory:") as rt, served(rt, tokens=False) as http:
        monkeypatch.setattr(rt.look, "workers", fail)
        answer = await http.get("/v1/workers", headers={"X-Request-Id": "mark-7"})
        assert answer.status_code == 500 and "of our own" not in answer.text and "mark-7" in answer.json()["hint"]
        told = capsys.readouterr().err
        assert told.count("RuntimeError: of our own") == 1 and "mark-7" in told and "Traceback" in told


async def test_whoever_has_set_up_logging_hears_of_it_there_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_no_logging(monkeypatch)
    heard: list[logging.LogRecord] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", heard.append)
    monkeypatch.setattr(logging.getLogger("holdfast"), "handlers", [logging.NullHandler(), handler])
    async with Runtime("memory:") as rt, served(rt, tokens=False) as http:
        monkeypatch.setattr(rt.look, "workers", fail)
        assert (await http.get("/v1/workers")).status_code == 500
        assert [r.levelname for r in heard if r.exc_info] == ["ERROR"] and "of our own" not in capsys.readouterr().err


@pytest.mark.parametrize(("path", "kind"), [("/v1/runs", "application/json"), ("/login", "application/x-www-form-urlencoded")])
async def test_a_client_that_leaves_in_the_midst_of_a_body_is_no_fault_of_ours(path: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """§16.4: any client could fill the server's log with tracebacks."""
    told: list[dict[str, Any]] = []
    heard = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> dict[str, Any]:
        return next(heard)

    async def send(message: dict[str, Any]) -> None:
        told.append(message)

    async with Runtime("memory:") as rt:
        scope = {
            "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
            "headers": [(b"host", b"holdfast"), (b"content-type", kind.encode()), (b"content-length", b"100")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
        }
        caplog.set_level(logging.INFO)
        await app(rt, tokens=False)(scope, receive, send)
    assert told[0]["status"] == 400 and not [r for r in caplog.records if r.levelno >= logging.WARNING], caplog.text


@pytest.mark.parametrize(("drives", "says"), [(fail, "RuntimeError: of our own"), (end_early, "has ended"), (be_cancelled, "was cancelled")])
async def test_a_server_whose_worker_has_ended_is_not_ready(drives: Callable[..., Any], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """§16.9: it says that it executes runs, so that whoever balances load must learn that it does not."""
    set_up_no_logging(monkeypatch)
    async with Runtime("memory:", skills=[graph()]) as rt:
        made = app(rt, tokens=False, drives=drives)
        async with made.router.lifespan_context(made), httpx.AsyncClient(transport=httpx.ASGITransport(app=made), base_url="http://holdfast") as http:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            gone = await http.get("/v1/ready")
            assert (gone.status_code, gone.json()["code"]) == (503, "not_executing") and int(gone.headers["retry-after"]) > 0, gone.text
            assert (await http.get("/v1/health")).status_code == 200 and (await http.get("/v1/runs")).status_code == 200
            assert says in capsys.readouterr().err, "it is said when it happens"


async def test_a_server_whose_worker_works_is_ready_until_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    async with Runtime("memory:", skills=[graph()]) as rt:

        async def drives(stop: asyncio.Event) -> None:
            await rt.worker(stop=stop)

        made = app(rt, tokens=False, drives=drives)
        async with made.router.lifespan_context(made), httpx.AsyncClient(transport=httpx.ASGITransport(app=made), base_url="http://holdfast") as http:
            assert (await http.get("/v1/ready")).json() == {"status": "ready"}
            assert (await http.post("/v1/runs", json={"skill_id": "notes", "input": {"name": "quick"}})).status_code == 202
        assert not [r for r in caplog.records if r.levelno >= logging.ERROR]

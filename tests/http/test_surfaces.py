"""What a server and its pages promise as a whole (§16, §17): where they stand, what they load, how they end, what they carry on."""

from __future__ import annotations

import asyncio
import enum
import json
import logging
import re
import signal
import sys
from pathlib import Path
from typing import Any, Literal

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast import Context, Graph, Runtime
from holdfast.api import app
from holdfast.api.openapi import document
from holdfast.core.errors import StoreUnavailable
from holdfast.core.schedules import Schedule
from holdfast.stores import MemoryStore
from tests.http.support import Notes, bearer, graph, served, token
from tests.http.test_pages import PAGES, Tags, field

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


# -- where it stands ----------------------------------------------------------------------------------


async def test_it_is_mounted_in_another_application_and_decides_without_code(tmp_path: Path) -> None:
    """§16.1: recording and deciding need no code of the run."""
    url = f"sqlite:///{tmp_path}/a.db"
    async with Runtime(url, skills=[g := graph()]) as rt:
        run = await rt.invoke(g, {"name": "Ada"})
    async with Runtime(url) as rt:
        outer = Starlette(routes=[Mount("/holdfast", app(rt, tokens=False, pages=False))])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=outer), base_url="http://elsewhere/holdfast") as http:
            assert (await http.get("/v1/health")).status_code == 200
            (wait,) = (await http.get("/v1/waits")).json()["waits"]
            decided = await http.post(f"/v1/runs/{run.run_id}/approve", json={"wait_id": wait["wait_id"], "actor": "grace"})
            assert decided.status_code == 202, decided.text
            assert (await http.get(f"/v1/runs/{run.run_id}")).json()["condition"] == "queued"
    async with Runtime(url, skills=[g]) as rt:
        assert (await rt.resume(run.run_id)).status == "completed"


# -- what it carries on ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (f"00-{TRACE}-00f067aa0ba902b7-01", TRACE),
        (f"cc-{TRACE}-00f067aa0ba902b7-01-what-a-later-version-adds", TRACE),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{'g' * 32}-00f067aa0ba902b7-01", None),
        (f"00-{TRACE.upper()}-00f067aa0ba902b7-01", None),
        (f"ff-{TRACE}-00f067aa0ba902b7-01", None),
        (f"00-{TRACE}-00f067aa0ba902b7-01-more", None),
        (f"00-{TRACE}-short-01", None),
        ("nonsense", None),
        ("", None),
    ],
)
async def test_a_trace_context_becomes_the_run_s_trace(given: str, kept: str | None) -> None:
    """§16.8: one that is none, by the rules of W3C, begins no trace and refuses nothing."""
    async with Runtime("memory:", skills=[graph()]) as rt, served(rt, tokens=False) as http:
        made = await http.post("/v1/runs", json={"skill_id": "notes", "input": {}}, headers={"traceparent": given})
        assert made.status_code == 202, made.text
        assert (await rt.get(made.json()["run_id"])).record.trace_id == kept


async def test_a_request_id_is_echoed_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """§16.8: whoever asks can find his request in the log; one that is none is replaced."""
    caplog.set_level(logging.INFO, "holdfast")
    async with Runtime("memory:") as rt, served(rt, tokens=False) as http:
        for given in ("abc-123", "x" * 129, "a\tb"):
            answer = await http.get("/v1/health", headers={"X-Request-Id": given})
            mark = answer.headers["x-request-id"]
            assert (mark == given) is (given == "abc-123") and mark
            assert any(mark in r.getMessage() and r.name.startswith("holdfast") for r in caplog.records)


# -- whether it is up, and how it ends ------------------------------------------------------------------


class Away(MemoryStore):
    """A store that cannot be reached while it is ``away``."""

    away = False

    async def schedules(self, due: int | None = None) -> list[Schedule]:
        if self.away:
            raise StoreUnavailable("the disk is gone")
        return await super().schedules(due)


async def test_whether_it_is_up_and_takes_requests() -> None:
    """§16.9: alive is not ready: ready needs a store that can be reached, and an end that has not begun."""
    store = Away()
    async with Runtime(store) as rt:
        made = app(rt, tokens=False)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=made), base_url="http://holdfast") as http:
            assert [(await http.get(f"/v1/{path}")).status_code for path in ("health", "ready")] == [200, 200]
            store.away = True
            gone = await http.get("/v1/ready")
            assert (gone.status_code, gone.headers["content-type"]) == (503, "application/problem+json") and int(gone.headers["retry-after"]) > 0
            assert (await http.get("/v1/health")).status_code == 200
            store.away = False
            assert (await http.get("/v1/ready")).status_code == 200
            made.state.api.stopping.set()
            assert [(await http.get(f"/v1/{path}")).status_code for path in ("health", "ready")] == [200, 503]


async def test_figures_are_for_those_who_may_look() -> None:
    """§16.9: scope view, unless the server was told otherwise."""
    async with Runtime("memory:") as rt:
        async with served(rt) as http:
            assert (await http.get("/metrics")).status_code == 401
            assert (await http.get("/metrics", headers=bearer(await token(rt, "submit")))).status_code == 403
            assert (await http.get("/metrics", headers=bearer(await token(rt, "view")))).status_code == 200
        async with served(rt, open_metrics=True) as http:
            told = await http.get("/metrics")
            assert told.status_code == 200 and told.headers["content-type"].startswith("text/plain; version=0.0.4")
            assert (await http.get("/v1/runs")).status_code == 401


async def test_a_server_listens_on_loopback_and_ends_well(tmp_path: Path) -> None:
    """§16.1, §16.9: by SIGTERM, with a stream open: the stream is closed with ``retry:``, and the exit is 0."""
    url = f"sqlite:///{tmp_path}/a.db"
    async with Runtime(url, skills=[g := graph()]) as rt:
        run = await rt.invoke(g, {"name": "Ada"})
    command = [sys.executable, "-m", "holdfast", "serve", "--no-auth", "--port", "0", "--store", url]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stderr is not None
        async with asyncio.timeout(60):
            place = re.findall(r"http://[^\s,]+", (await process.stderr.readline()).decode())[0]
            assert place.startswith("http://127.0.0.1:")
            async with httpx.AsyncClient(base_url=place, timeout=30) as http, http.stream("GET", f"/v1/runs/{run.run_id}/stream") as stream:
                told: list[str] = []
                async for line in stream.aiter_lines():
                    told.append(line)
                    if line == "event: rest":
                        process.send_signal(signal.SIGTERM)
            assert any(line.startswith("retry:") for line in told[told.index("event: rest") :])
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


# -- the document ---------------------------------------------------------------------------------------


def test_every_schema_of_a_body_has_an_example_and_every_reference_leads_somewhere() -> None:
    """§16.10: what a client is generated from is whole."""
    told = document("0")
    assert told["openapi"] == "3.1.0"
    components = told["components"]["schemas"]
    text = json.dumps(told)
    assert set(re.findall(r'"#/components/schemas/([^"]+)"', text)) <= set(components)
    operations = [way for ways in told["paths"].values() for way in ways.values()]
    assert len({way["operationId"] for way in operations}) == len(operations)
    for way in operations:
        if "requestBody" in way:
            (schema,) = [kind["schema"] for kind in way["requestBody"]["content"].values()]
            assert components[schema["$ref"].rpartition("/")[2]]["examples"]


class Client:
    """A client made of the document alone: a call for each operation, whose arguments, answers and errors are what it says."""

    def __init__(self, told: dict[str, Any], http: httpx.AsyncClient) -> None:
        self._components = told["components"]["schemas"]
        self._ways = {way["operationId"]: (method, path, way) for path, ways in told["paths"].items() for method, way in ways.items()}
        self._http = http

    @property
    def operations(self) -> list[str]:
        return list(self._ways)

    async def call(self, name: str, known: dict[str, str]) -> tuple[int, Any]:
        method, path, way = self._ways[name]
        given = {p["name"]: p for p in way.get("parameters", [])}
        filled = re.sub(r"{(\w+)}", lambda found: known.get(found[1], "nothing"), path)
        query = {n: known[n] for n, p in given.items() if p["in"] == "query" and n in known}
        assert set(re.findall(r"{(\w+)}", path)) == {n for n, p in given.items() if p["in"] == "path"}
        body: dict[str, Any] = {}
        if "requestBody" in way:
            (schema,) = [kind["schema"] for kind in way["requestBody"]["content"].values()]
            body = {"json": self._components[schema["$ref"].rpartition("/")[2]]["examples"][0]}
        answer = await self._http.request(method, filled, params=query, **body)
        assert str(answer.status_code) in way["responses"], (name, answer.status_code, answer.text)
        media = way["responses"][str(answer.status_code)].get("content", {})
        kind = answer.headers.get("content-type", "").partition(";")[0]
        assert kind in media or not media, (name, kind)
        if not kind.endswith("json"):
            return answer.status_code, answer.text
        self._fits(answer.json(), media[kind]["schema"], name)
        return answer.status_code, answer.json()

    def _fits(self, value: Any, schema: dict[str, Any], at: str) -> None:
        """Whether a value is what a schema says: its type, the fields that must be there, and what stands in them."""
        if "$ref" in schema:
            return self._fits(value, self._components[schema["$ref"].rpartition("/")[2]], at)
        if "anyOf" in schema:
            assert any(self._may_be(value, one) for one in schema["anyOf"]), (at, value)
            return None
        assert self._may_be(value, schema), (at, value, schema)
        if "enum" in schema:
            assert value in schema["enum"], (at, value)
        if isinstance(value, dict):
            assert set(schema.get("required", [])) <= set(value), (at, schema.get("required"), sorted(value))
            for name, inner in schema.get("properties", {}).items():
                if name in value:
                    self._fits(value[name], inner, f"{at}.{name}")
        if isinstance(value, list) and isinstance(schema.get("items"), dict):
            for n, one in enumerate(value):
                self._fits(one, schema["items"], f"{at}[{n}]")
        return None

    def _may_be(self, value: Any, schema: dict[str, Any]) -> bool:
        kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float), "null": type(None)}
        if "$ref" in schema or "type" not in schema:
            return True
        wanted = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return any(isinstance(value, kinds[kind]) and (kind == "boolean" or not isinstance(value, bool)) for kind in wanted)  # type: ignore[arg-type]


async def test_a_client_made_of_the_document_works() -> None:
    """§16.10: every operation with the example of its body gives an answer that the document tells of, in the shape that it tells."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        client = Client((await http.get("/v1/openapi.json")).json(), http)
        seen: dict[str, int] = {}
        for name in client.operations:
            if "stream" in name.lower():
                continue  # it goes on until the run has ended
            run = await rt.invoke(g, {"name": "Ada"})
            known = {"run_id": run.run_id, "checkpoint_id": "head", "thread_id": run.run_id, "a": "head", "b": "head", "name": "go"}
            seen[name], _ = await client.call(name, known)
        assert len(seen) > 30 and sum(status < 300 for status in seen.values()) > 25, seen


# -- the pages ------------------------------------------------------------------------------------------


async def test_no_page_leads_elsewhere_or_needs_a_script() -> None:
    """§17.1: what a page loads and where it goes is of its own origin; light and dark; what makes it live is pinned and says its licence."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        style = (await http.get("/static/style.css")).text
        assert "prefers-color-scheme" in style and not re.findall(r"url\((?!['\"]?(?:data:|/|#))|@import", style)
        assert re.search(r'version:\s*"\d+\.\d+\.\d+"', (await http.get("/static/htmx.min.js")).text) and "Permission" in (await http.get("/static/htmx.LICENSE")).text
        for path in [*PAGES, f"/runs/{run.run_id}", f"/runs/{run.run_id}/fork", "/login"]:
            page = await http.get(path)
            assert "default-src 'none'" in page.headers["content-security-policy"] or "default-src 'self'" in page.headers["content-security-policy"]
            forms = 0
            for tag, attributes in Tags(page.text).found:
                for name in ("href", "src", "action", "formaction", "hx-get", "hx-post", "data", "poster", "srcset", "background", "xlink:href"):
                    assert (attributes.get(name) or "/").startswith(("/", "#", "?")) and not (attributes.get(name) or "").startswith("//"), (path, tag, name)
                forms += tag == "form"
                if tag == "button":
                    assert attributes.get("type", "submit") in ("submit", "reset"), "a button of a form that a browser sends"
            assert "<noscript" not in page.text


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Order(msgspec.Struct):
    count: int
    colour: Literal["red", "blue"]
    size: Size = Size.SMALL
    rush: bool = False
    sizes: list[int] = []


async def test_the_inbox_asks_what_the_wait_asks() -> None:
    """§17.5: the question, what is shown, who may answer, until when, and a form made of the wait's schema; an answer that does not fit leaves it open."""
    shop = Graph("shop", Notes)

    @shop.node(start=True)
    async def ask(state: Notes, ctx: Context) -> dict[str, Any]:
        order = await ctx.ask("What shall we make?", Order, show={"stock": 7}, who=["ada", "operator"], timeout=3_600, on_timeout="fail")
        return {"said": [f"{order.count} {order.colour} {int(order.size)} {order.rush} {order.sizes}"]}

    async with Runtime("memory:", skills=[shop]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(shop, {})
        page = (await http.get("/waits")).text
        for said in ("What shall we make?", "stock", "7", "for ada, operator", "fails"):
            assert said in page, said
        form = {"csrf": field(page, "csrf"), "wait_id": field(page, "wait_id"), "action": "answer"}
        assert form["wait_id"] == run.waits[0].wait_id
        fields = {attributes["name"]: tag for tag, attributes in Tags(page).found if (attributes.get("name") or "").startswith("f.")}
        assert fields == {"f.count": "input", "f.colour": "select", "f.size": "select", "f.rush": "select", "f.sizes": "textarea"}
        for wrong in ({"f.count": "many", "f.colour": "red"}, {"f.count": "2"}, {"f.count": "2.5", "f.colour": "red"}, {"f.count": "2", "f.colour": "green"}, {"f.count": "2", "f.colour": "red", "f.sizes": '["a"]'}):
            refused = await http.post(f"/runs/{run.run_id}/answer", data={**form, **wrong})
            assert refused.status_code == 422, wrong
            assert (await rt.get(run.run_id)).status == "waiting_for_human"
        fine = await http.post(f"/runs/{run.run_id}/answer", data={**form, "f.count": "2", "f.colour": "red", "f.size": "2", "f.rush": "true", "f.sizes": "[1, 2]"})
        assert fine.status_code == 303, fine.text
        second = await http.post(f"/runs/{run.run_id}/answer", data={**form, "f.count": "3", "f.colour": "blue"})
        assert second.status_code == 409 and "operator" in second.text
        done = await rt.resume(run.run_id)
        assert done.values["said"] == ["2 red 2 True [1, 2]"]


@pytest.mark.parametrize("kind", [int, str, bool, list[int], dict[str, int], Size, None])
async def test_whatever_is_asked_for_can_be_answered(kind: Any) -> None:
    """§17.5: a plain value has a field of its own, all else is JSON."""
    given: dict[Any, tuple[dict[str, str], Any]] = {
        int: ({"value": "7"}, 7), str: ({"value": "7"}, "7"), bool: ({"value": "true"}, True), Size: ({"payload": "2"}, 2), None: ({"payload": '"x"'}, "x"),
    }
    form, said = given.get(kind, ({"payload": "[1, 2]"}, [1, 2]) if kind != dict[str, int] else ({"payload": '{"a": 1}'}, {"a": 1}))
    shop = Graph("shop", Notes)

    @shop.node(start=True)
    async def ask(state: Notes, ctx: Context) -> dict[str, Any]:
        return {"said": [repr(await ctx.ask("What?", kind))]}

    async with Runtime("memory:", skills=[shop]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(shop, {})
        page = (await http.get("/waits")).text
        names = {attributes.get("name") for _, attributes in Tags(page).found}
        assert set(form) <= names and len({"value", "payload"} & names) == 1
        answered = await http.post(f"/runs/{run.run_id}/answer", data={"csrf": field(page, "csrf"), "wait_id": field(page, "wait_id"), "action": "answer", **form})
        assert answered.status_code == 303, answered.text
        assert (await rt.resume(run.run_id)).values["said"] in ([repr(said)], [repr(Size(2))])


async def test_a_fork_begins_where_one_chooses() -> None:
    """§17.7: an earlier checkpoint, a channel in a form, the difference before anything starts."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {"name": "quick"})
        first = (await rt.checkpoints(run.run_id))[0].checkpoint_id
        page = (await http.get(f"/runs/{run.run_id}/fork", params={"from": first})).text
        assert field(page, "from") == first and first.rpartition(".")[2] in page
        form = {"csrf": field(page, "csrf"), "from": first, "set.name": '"Grace"', "reason": "somebody else"}
        shown = (await http.post(f"/runs/{run.run_id}/fork", data={**form, "look": "1"})).text
        assert "<ins>" in shown and "Grace" in shown and len(await rt.runs()) == 1
        bad = await http.post(f"/runs/{run.run_id}/fork", data={**form, "set.name": "{", "sure": "1"})
        assert bad.status_code == 422 and len(await rt.runs()) == 1
        started = await http.post(f"/runs/{run.run_id}/fork", data={**form, "sure": "1"})
        fork = await rt.get(started.headers["location"].rpartition("/")[2])
        assert (fork.source_run_id, fork.record.source_checkpoint_id) == (run.run_id, first)
        assert (await rt.resume(fork.run_id)).values["said"] == ["hello Grace"]
        assert (await http.get(f"/runs/{run.run_id}/fork", params={"from": "nothing"})).status_code == 404

"""Each status that the document tells of an operation is one that it sends, and no other is (§16.3, §16.10)."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest

from holdfast import Runtime
from holdfast.api.openapi import EXAMPLES, document
from holdfast.api.table import ROUTES, Route
from holdfast.core.errors import StoreUnavailable
from tests.http.support import bearer, graph, served, token
from tests.http.test_hostile import failing_store, fill

KNOWN = document("0")["paths"]


def told(route: Route) -> set[str]:
    return set(KNOWN[route.path][route.method.lower()]["responses"])


class Asking:
    """One operation, and what is sent to it where nothing is wrong."""

    def __init__(self, http: httpx.AsyncClient, route: Route, secret: str) -> None:
        self.http = http
        self.route = route
        self.secret = secret

    async def __call__(self, path: str, *, secret: str | None = None, **options: Any) -> int:
        headers = {**bearer(self.secret if secret is None else secret), **options.pop("headers", {})}
        if self.route.body is not None and "content" not in options:
            options.setdefault("json", EXAMPLES[self.route.body.__name__] if "{token}" not in self.route.path else {"action": "halt"})  # which is not offered, so that it uses up no link
        if self.route.path.endswith("/diff"):
            options["params"] = {"a": "head", "b": "head", **options.get("params", {})}
        method = "HEAD" if self.route.media == "text/event-stream" else self.route.method  # nobody would end the stream
        return (await self.http.request(method, path, headers=headers, **options)).status_code


WRONG: dict[str, Callable[[Asking, str], Awaitable[int]]] = {
    "400": lambda ask, path: ask(path, headers={"Host": "evil.example"}),
    "401": lambda ask, path: ask(path, secret="hf_none_at_all"),
    "404": lambda ask, path: ask(fill(ask.route.path, "0" * 26), json=EXAMPLES[ask.route.body.__name__] if ask.route.body is not None else None),
    "412": lambda ask, path: ask(path, headers={"If-Match": '"999"'}),
    "413": lambda ask, path: ask(path, content=b" " * (2 * 2**20 + 1), headers={"Content-Type": "application/json"}),
    "415": lambda ask, path: ask(path, content=b"{}", headers={"Content-Type": "text/plain"}),
    "422": lambda ask, path: ask(path, params={"nonsense": "1"}),
}


ELSEWHERE = {("404", "/v1/waits/{token}"), ("404", "/v1/runs")}
"""A link that is not known is 403; the run of one that is may be pruned. A run to create is of a skill that may not be known."""


@pytest.mark.parametrize("route", ROUTES, ids=lambda r: f"{r.method} {r.path}")
async def test_an_operation_sends_what_the_document_tells(route: Route) -> None:
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, hosts=["holdfast"]) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        schedule = await rt.schedule(g, {}, every=3600)
        link = await rt.issue_token(run.waits[0].wait_id, "grace")
        path = fill(route.path, run.run_id).replace("/schedules/nothing/", f"/schedules/{schedule.id}/").replace("/waits/nothing", f"/waits/{link}")
        ask, may = Asking(http, route, await token(rt, "admin")), told(route)
        for code, send in WRONG.items():
            if (code, route.path) in ELSEWHERE or (code == "412" and "{intent_id}" in route.path):
                continue
            found = await send(ask, path)
            assert (str(found) == code) == (code in may), (code, found)
        weak = await ask(path, secret=await token(rt, "submit" if route.scope != "submit" else "view"))
        assert (weak == 403) == (route.scope is not None) and (weak != 403 or "403" in may), weak


@pytest.mark.parametrize("route", ROUTES, ids=lambda r: f"{r.method} {r.path}")
async def test_a_store_that_fails_is_told_of_where_it_is_asked(route: Route, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Runtime("memory:", skills=[graph()]) as rt, served(rt) as http:
        secret = await token(rt, "admin")
        failing_store(rt, monkeypatch, StoreUnavailable("the disk is gone"))
        found = await Asking(http, route, secret)(fill(route.path, "0" * 26))
        assert (found == 503) == ("503" in told(route)), found


def test_what_makes_no_run_is_never_told_that_too_much_is_queued() -> None:
    full = {f"{r.method} {r.path}" for r in ROUTES if "429" in told(r)}
    assert full == {"POST /v1/runs", "POST /v1/runs/{run_id}/replay", "POST /v1/runs/{run_id}/fork", "POST /v1/schedules/{schedule_id}/trigger"}
    for route in ROUTES:
        assert not told(route) & {"405", "406"}, "an operation that is in the document has its method, and no answer depends on Accept"
        assert ("409" in told(route)) == (route.method == "POST" or "{run_id}" in route.path)


@pytest.mark.one_store("it edits a SQLite file")
async def test_a_check_names_the_status_that_no_other_view_can_show(tmp_path: Path) -> None:
    """§2.6: an error when read, and a named problem in the checker; also over HTTP."""
    async with Runtime(f"sqlite:///{tmp_path}/a.db", skills=[g := graph()]) as rt, served(rt) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        with contextlib.closing(apsw.Connection(str(tmp_path / "a.db"))) as db:
            db.execute("UPDATE run SET status = 'bogus'")
        every, one = [bearer(await token(rt, "view", tenant=tenant)) for tenant in ("*", "default")]
        shown = await http.get(f"/v1/runs/{run.run_id}", headers=every)
        assert (shown.status_code, shown.json()["code"]) == (409, "unknown_status")
        told = await http.get(f"/v1/runs/{run.run_id}/check", headers=every)
        assert told.status_code == 200 and "unknown_status" in [p["code"] for p in told.json()["problems"]] and not told.json()["ok"], told.text
        assert (await http.get(f"/v1/runs/{run.run_id}/check", headers=one)).status_code == 409, "whose run it is cannot be read"


async def test_a_skill_that_is_not_known_is_not_found() -> None:
    async with Runtime("memory:", skills=[graph()]) as rt, served(rt, tokens=False) as http:
        assert (await http.post("/v1/runs", json={"skill_id": "nope"})).status_code == 404

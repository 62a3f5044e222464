"""Every route × every scope × every kind of token, made from the table (§16.2, §16.3)."""

from __future__ import annotations

import json
import re

import httpx
import pytest

from holdfast import Runtime
from holdfast.access import SHELF, Scope, Tokens
from holdfast.api.bodies import decode
from holdfast.api.openapi import EXAMPLES, document
from holdfast.api.table import ROUTES, Route
from tests.http.support import bearer, graph, served, token

UNKNOWN = "0" * 26
STREAMS = {"/v1/runs/{run_id}/stream", "/v1/stream"}


def filled(route: Route, run_id: str) -> str:
    path = route.path.replace("{run_id}", run_id).replace("{checkpoint_id}", "head").replace("{thread_id}", run_id)
    return re.sub(r"{\w+}", "nothing", path) + ("?a=head&b=head" if path.endswith("/diff") else "")


async def ask(http: httpx.AsyncClient, route: Route, path: str, headers: dict[str, str]) -> httpx.Response:
    body = {"json": EXAMPLES.get(route.body.__name__, {})} if route.body is not None else {}
    return await http.request(route.method, path, headers=headers, **body)  # type: ignore[arg-type]


@pytest.mark.parametrize("route", [r for r in ROUTES if r.path not in STREAMS], ids=lambda r: f"{r.method} {r.path}")
async def test_a_row_lets_in_whom_it_says(route: Route) -> None:
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        path, tokens = filled(route, run.run_id), Tokens(rt.shelf(SHELF))
        if route.scope is None:
            assert (await ask(http, route, path, {})).status_code not in (401, 500)
            return
        expired = (await tokens.create(["admin"], now=0, expires_at=1)).token
        gone = await tokens.create(["admin"], now=0)
        await tokens.revoke(gone.access.id, now=1)
        for wrong in ({}, bearer("hf_x_y"), bearer(expired), bearer(gone.token), {"Authorization": "Basic YTpi"}):
            said = await ask(http, route, path, wrong)
            assert said.status_code == 401 and said.json()["code"] == "unauthorized", (wrong, said.text)
        for scope in Scope:
            said = await ask(http, route, path, bearer(await token(rt, scope)))
            allowed = scope in (route.scope, Scope.ADMIN)
            assert (said.status_code == 403 and said.json()["code"] == "forbidden") is not allowed, (scope, said.text)
            assert said.status_code != 500


@pytest.mark.parametrize("route", [r for r in ROUTES if "{" in r.path and r.scope is not None], ids=lambda r: f"{r.method} {r.path}")
async def test_a_foreign_id_is_answered_as_an_unknown_one(route: Route) -> None:
    """§14.2: byte for byte, but for the id itself."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt) as http:
        run = await rt.invoke(g, {"name": "Ada"}, tenant_id="theirs")
        mine = bearer(await token(rt, "admin", tenant="mine"))
        foreign, unknown = [await ask(http, route, filled(route, i), mine) for i in (run.run_id, UNKNOWN)]
        assert foreign.status_code == unknown.status_code == 404, foreign.text
        assert foreign.content.replace(run.run_id.encode(), UNKNOWN.encode()) == unknown.content
        assert {n for n in foreign.headers if n != "x-request-id"} == {n for n in unknown.headers if n != "x-request-id"}


def test_no_route_without_a_row_and_every_example_decodes() -> None:
    told = document("0")
    assert {(m.upper(), p) for p, ways in told["paths"].items() for m in ways} == {(r.method, r.path) for r in ROUTES}
    for route in ROUTES:
        if route.body is not None:
            assert decode(json.dumps(EXAMPLES[route.body.__name__]).encode(), route.body) is not None

"""Whose page sends a request: one of another site must not act where no token is asked for; everybody else must (§16.2, §16.4, §17.8)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Runtime
from tests.http.support import bearer, graph, served, token
from tests.http.test_pages import field

OWN = "http://holdfast"
JSON = {"Content-Type": "application/json"}
MINE: list[dict[str, str]] = [
    {},
    {"Origin": OWN},
    {"Origin": OWN, "Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "none"},
    {"Origin": "http://behind.a.proxy:8080", "Sec-Fetch-Site": "same-origin"},
    {"Origin": "https://ops.example.org"},
]
FOREIGN: list[dict[str, str]] = [
    {"Origin": "http://evil.example"},
    {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"},
    {"Origin": "null"},
    {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "http://holdfast:9000", "Sec-Fetch-Site": "same-site"},
    {"Origin": "http://holdfast.evil.example"},
    {"Origin": "http://evil.example/holdfast"},
    {"Origin": "file://"},
]


def acts(run_id: str, schedule_id: str) -> list[tuple[str, Any]]:
    return [
        ("/v1/runs", {"skill_id": "notes", "input": {"name": "quick"}}), (f"/v1/runs/{run_id}/cancel", {}), (f"/v1/runs/{run_id}/approve", {}),
        (f"/v1/threads/{run_id}/signal", {"name": "go"}), (f"/v1/schedules/{schedule_id}/trigger", {}), (f"/v1/schedules/{schedule_id}/pause", {}),
    ]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
async def test_a_page_of_another_site_does_nothing(headers: dict[str, str]) -> None:
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False, public_url="https://ops.example.org") as http:
        run = await rt.invoke(g, {"name": "Ada"})
        schedule = await rt.schedule(g, {}, every=3600)
        for path, body in acts(run.run_id, schedule.id):
            for sent in ({"json": body}, {}):
                refused = await http.post(path, headers=headers, **sent)
                assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), (path, refused.text)
        assert [r.version for r in await rt.runs()] == [run.version] and not (await rt.schedules())[0].paused
        assert (await http.get("/v1/runs", headers=headers)).status_code == 200, "who only looks cannot read the answer"


@pytest.mark.parametrize("headers", MINE, ids=str)
async def test_everybody_else_acts(headers: dict[str, str]) -> None:
    """A client that is no browser, a page of this server, a proxy that changes the name of the host."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False, public_url="https://ops.example.org") as http:
        run = await rt.invoke(g, {"name": "Ada"})
        schedule = await rt.schedule(g, {}, every=3600)
        assert (await http.post("/v1/runs", json={"skill_id": "notes"}, headers=headers)).status_code == 202
        for path in (f"/v1/runs/{run.run_id}/cancel", f"/v1/schedules/{schedule.id}/trigger"):
            bare = await http.post(path, headers=headers)
            assert "content-type" not in bare.request.headers and bare.status_code == 202, bare.text


async def test_a_token_speaks_for_itself() -> None:
    """A browser sends no token by itself, so that an application of another origin may use one."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        mine = bearer(await token(rt, "admin"))
        made = await http.post(f"/v1/runs/{run.run_id}/cancel", headers={**mine, "Origin": "http://app.example", "Sec-Fetch-Site": "cross-site"})
        assert made.status_code == 202, made.text


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonp", "text/plain;application/json", "*/*"])
async def test_a_body_is_json_by_its_type(kind: str) -> None:
    """§16.4: what a form of a page can send is refused for its type, also if it sends nothing."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        for path, body in ((f"/v1/runs/{run.run_id}/cancel", b""), (f"/v1/runs/{run.run_id}/cancel", b"{}"), ("/v1/runs", b'{"skill_id": "notes"}')):
            refused = await http.post(path, content=body, headers={"Content-Type": kind})
            assert (refused.status_code, refused.json()["code"]) == (415, "unsupported_media_type"), (path, refused.text)
        assert [r.version for r in await rt.runs()] == [run.version]


async def test_a_body_has_a_type() -> None:
    async with Runtime("memory:", skills=[graph()]) as rt, served(rt, tokens=False) as http:
        for body in (b'{"skill_id": "notes"}', b" ", b"[]"):
            refused = await http.post("/v1/runs", content=body)
            assert (refused.status_code, refused.json()["code"], refused.json()["hint"]) == (415, "unsupported_media_type", "Content-Type: application/json"), refused.text
        assert await rt.runs() == []
        for kind in ("application/json", "Application/JSON; charset=utf-8"):
            assert (await http.post("/v1/runs", content=b'{"skill_id": "notes"}', headers={"Content-Type": kind})).status_code == 202


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "http://evil.example"}, {"Origin": "null", "Sec-Fetch-Site": "cross-site"}], ids=str)
async def test_a_form_of_another_site_is_none_of_the_pages(headers: dict[str, str]) -> None:
    """It neither decides, nor logs anybody in as somebody else, nor out."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        secret = await token(rt, "admin")
        foreign = await http.post("/login", data={"token": secret}, headers=headers)
        assert foreign.status_code == 403 and "set-cookie" not in foreign.headers
        assert (await http.post("/login", data={"token": secret}, headers={"Origin": "null", "Sec-Fetch-Site": "same-origin"})).status_code == 303
        page = (await http.get("/waits")).text
        form = {"csrf": field(page, "csrf"), "wait_id": field(page, "wait_id"), "action": "approve"}
        for path in (f"/runs/{run.run_id}/answer", "/zone", "/logout"):
            refused = await http.post(path, data={**form, "zone": "UTC"}, headers=headers)
            assert refused.status_code == 403 and "set-cookie" not in refused.headers, path
        outside = {**headers, "Cookie": "holdfast=none"}
        assert "set-cookie" not in (await http.post("/logout", headers=outside)).headers, "a browser sends it without its cookie"
        assert (await http.get("/waits")).status_code == 200
        assert (await http.post(f"/runs/{run.run_id}/answer", data=form, headers={"Origin": "null"})).status_code == 303, "no-referrer hides the origin of a page's own form"

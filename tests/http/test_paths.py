"""Ids of any signs in paths: over HTTP, on the pages, at the root, under a prefix and within another application (§16.3, §17.6)."""

from __future__ import annotations

import html
import re
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast import Runtime
from holdfast.api import app
from holdfast.ui.requests import read_path
from tests.http.support import graph, served
from tests.http.test_pages import field

IDS = ["a/b", "/", "//", "a/b/history", "trigger/trigger", "%2F", "a%2Fb", "100%", "a,b|c", "a?b", "a#b", "é/ü", "a+b", "a;b=1", "a&b", "..a/..", "<b>/'\"", "\U0001f600/x"]


def part(name: str) -> str:
    return quote(name, safe="")


@pytest.mark.parametrize("name", IDS)
async def test_whatever_an_id_contains_it_is_reached(name: str) -> None:
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {"name": "wait"}, thread_id=name)
        await rt.schedule(g, {"name": "Ada"}, every=3600, id=name)
        history = await http.get(f"/v1/threads/{part(name)}/history")
        assert history.status_code == 200 and {x["runId"] for x in history.json()["history"]} == {run.run_id}, history.text
        sent = await http.post(f"/v1/threads/{part(name)}/signal", json={"name": "go"})
        assert (sent.status_code, sent.json()["run_id"]) == (202, run.run_id), sent.text
        for verb, paused in (("pause", True), ("unpause", False)):
            done = await http.post(f"/v1/schedules/{part(name)}/{verb}", json={})
            assert (done.status_code, done.json()["paused"], done.json()["schedule_id"]) == (200, paused, name), done.text
        made = await http.post(f"/v1/schedules/{part(name)}/trigger", json={})
        assert (await rt.get(made.json()["run_id"])).record.schedule_id == name
        for path in (f"/v1/threads/{part(name + '.')}/history", f"/v1/schedules/{part(name + '.')}/pause"):
            unknown = await http.request("POST" if path.endswith("pause") else "GET", path)
            assert unknown.status_code == 404 and name + "." in unknown.json()["detail"], unknown.text


def forms(page: str, start: str) -> list[str]:
    return [html.unescape(action) for action in re.findall(r'action="([^"]*)"', page) if action.startswith(start)]


@pytest.mark.parametrize("name", IDS)
async def test_the_buttons_of_the_pages_reach_what_they_stand_beside(name: str) -> None:
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        await rt.schedule(g, {"name": "Ada"}, every=3600, id=name)
        await rt.pause_queue(name, actor="ada")
        page = (await http.get("/schedules")).text
        (schedule,) = forms(page, "/schedules/")
        csrf = field(page, "csrf")
        assert (await http.post(schedule, data={"csrf": csrf, "verb": "pause"})).status_code == 303
        assert (await rt.schedules())[0].paused
        (queue,) = forms((await http.get("/workers")).text, "/queues/")
        assert (await http.post(queue, data={"csrf": csrf, "verb": "unpause"})).status_code == 303
        assert not any(q.paused for q in await rt.queues())


@pytest.mark.parametrize("name", ["a/b", "100%", "a?b"])
@pytest.mark.parametrize("prefix", ["", "/ops", "/ops/hold fast"])
async def test_it_is_reached_wherever_the_application_stands(name: str, prefix: str) -> None:
    """Behind a proxy that takes its prefix off, behind one that does not, and mounted in another application."""
    async with Runtime("memory:", skills=[g := graph()]) as rt:
        run = await rt.invoke(g, {"name": "quick"}, thread_id=name)
        behind = app(rt, tokens=False, public_url=f"https://ops.example.org{prefix}")
        mounted = Starlette(routes=[Mount(prefix, app(rt, tokens=False))]) if prefix else app(rt, tokens=False)
        for made, base in ((behind, ""), (behind, quote(prefix)), (mounted, quote(prefix))):
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app=made, raise_app_exceptions=False), base_url="http://holdfast") as http:
                found = await http.get(f"{base}/v1/threads/{part(name)}/history")
                assert found.status_code == 200 and found.json()["history"][0]["runId"] == run.run_id, (base, found.text)


async def test_a_key_is_of_one_id() -> None:
    """§16.5: two ids that differ in what a path is divided at are two paths."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        names = ["a", "a?b", "a?c", "a/b", "a%2Fb", "a#b"]
        for name in names:
            await rt.schedule(g, {"name": "quick"}, every=3600, id=name)
        made = [await http.post(f"/v1/schedules/{part(name)}/trigger", headers={"Idempotency-Key": "k"}) for name in names]
        assert [m.status_code for m in made] == [202] * len(names) and len({m.json()["run_id"] for m in made}) == len(names)
        assert [(await rt.get(m.json()["run_id"])).record.schedule_id for m in made] == names


@pytest.mark.parametrize(
    ("scope", "path"),
    [
        ({"path": "/a/b", "raw_path": b"/a%2Fb"}, "/a%2Fb"),
        ({"path": "/a/b", "raw_path": b"/a%2fb?x=/y"}, "/a%2Fb"),
        ({"path": "/a%2Fb", "raw_path": b"/a%252Fb"}, "/a%252Fb"),
        ({"path": "/a/b"}, "/a/b"),
        ({"path": "/100%"}, "/100%25"),
        ({"path": "/b", "raw_path": b"/taken/off/b"}, "/b"),
        ({"path": "/\ufffd", "raw_path": b"/%ff"}, "/\ufffd"),
    ],
)
def test_a_path_is_divided_as_it_came(scope: dict[str, Any], path: str) -> None:
    """Where a layer in between has changed the decoded path alone, that one counts."""
    assert read_path(scope) == path


async def test_a_login_leads_back_to_the_page_that_was_asked_for() -> None:
    async with Runtime("memory:") as rt, served(rt) as http:
        for name in ("a/b", "a?b", "a b", "100%"):
            asked = await http.get(f"/runs/{part(name)}")
            assert asked.status_code == 303
            page = await http.get(asked.headers["location"])
            assert field(page.text, "next") == f"/runs/{part(name)}"

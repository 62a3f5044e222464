"""What is refused says what is wrong, in the form and with the status of its kind, on every surface of the server (§16.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from holdfast import Context, Graph, Runtime
from holdfast.api.table import ROUTES
from holdfast.core.commands import FireTimeout
from holdfast.core.commit import InboxItem
from holdfast.core.errors import HoldfastError, KeyUnavailable, QueueFull, StoreBusy, StoreUnavailable
from tests.http.support import Notes, graph, served
from tests.http.test_pages import PAGES, field

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "NOPE"]


async def test_every_path_says_which_methods_it_has() -> None:
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        known: dict[str, set[str]] = {}
        for route in ROUTES:
            known.setdefault(route.path.replace("{run_id}", run.run_id).replace("{", "").replace("}", ""), set()).add(route.method)
        known |= {path: {"GET"} for path in PAGES} | {"/login": {"GET", "POST"}, "/zone": {"POST"}, "/w/x": {"GET", "POST"}, "/static/x": {"GET"}}
        known |= {f"/runs/{run.run_id}": {"GET"}, f"/runs/{run.run_id}/fork": {"GET", "POST"}, f"/runs/{run.run_id}/cancel": {"POST"}, "/runs/selection": {"GET", "POST"}}
        for path, there in known.items():
            allowed = {*there, *(["HEAD"] if "GET" in there else [])}
            for method in METHODS:
                if method in allowed:
                    continue
                refused = await http.request(method, path)
                assert (refused.status_code, refused.headers["allow"]) == (405, ", ".join(sorted(allowed))), (method, path, refused.text)
                assert refused.headers["content-type"] == "application/problem+json"
                assert method == "HEAD" or (refused.json()["code"] == "method_not_allowed" and method in refused.json()["detail"])
        for method in METHODS:
            assert (await http.request(method, "/nothing")).status_code == 404


@pytest.mark.parametrize(
    ("host", "fine"),
    [
        ("127.0.0.1", True), ("127.0.0.1:8321", True), ("LOCALHOST:1", True), ("[::1]", True), ("[::1]:80", True), ("a.example.org", True), ("evil.example", False),
        ("localhost.evil.example", False), ("example.org", False), ("evil@localhost", False), ("localhost:x", False), ("", False), ("[", False), ("local host", False),
    ],
)
async def test_a_wrong_host_is_a_problem(host: str, fine: bool) -> None:
    async with Runtime("memory:") as rt, served(rt, tokens=False, hosts=["127.0.0.1", "localhost", "::1", "*.example.org"]) as http:
        answer = await http.get("/v1/runs", headers={"Host": host})
        assert (answer.status_code == 200) is fine, answer.text
        if not fine:
            assert (answer.status_code, answer.headers["content-type"], answer.json()["code"]) == (400, "application/problem+json", "wrong_host")
            assert "x-request-id" in answer.headers


@pytest.mark.parametrize("field_name", ["since", "until"])
async def test_a_time_that_is_none_is_told_of_in_the_words_of_http(field_name: str) -> None:
    async with Runtime("memory:", skills=[graph()]) as rt, served(rt, tokens=False) as http:
        for given in ("2026-11-21T08:00", "2026-11-21", "0001-01-01T00:00Z", "1969-12-31T23:59Z", "yesterday", "1"):
            for told in (
                (await http.get("/v1/runs", params={field_name: given})).json(),
                (await http.post("/v1/runs", json={"skill_id": "notes", "options": {"at": given}})).json(),
            ):
                words = told["detail"] + told.get("hint", "")
                assert told["status"] == 422 and told["field"] in (field_name, "options.at") and given[:8] in words, told
                assert "datetime" not in words and "tzinfo" not in words, told
            page = await http.get("/runs", params={field_name: given})
            assert "datetime(" not in page.text and "type datetime" not in page.text and page.status_code == (200 if given.startswith("2026") else 422)


@pytest.mark.parametrize(("body", "name"), [("[]", None), ('"x"', None), ("1", None), ("null", None), ('{"inptu": 1, "skill_id": "notes"}', "inptu"), ("{}", "skill_id"), ('{"skill_id": []}', "skill_id")])
async def test_a_refusal_names_the_field_if_there_is_one(body: str, name: str | None) -> None:
    async with Runtime("memory:", skills=[graph()]) as rt, served(rt, tokens=False) as http:
        refused = await http.post("/v1/runs", content=body, headers={"Content-Type": "application/json"})
        assert (refused.status_code, refused.json().get("field")) == (422, name), refused.text


# -- one status for one error -------------------------------------------------------------------------


def failing(error: HoldfastError) -> Callable[..., Any]:
    async def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


ERRORS = [KeyUnavailable("k1 is not here"), StoreBusy("somebody writes"), StoreUnavailable("the disk is gone"), QueueFull("a thousand runs are queued")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: e.code)
async def test_a_page_answers_with_the_status_of_the_api(error: HoldfastError, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever watches the pages must be able to tell what the store cannot do from what the reader did wrong."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        csrf = {"csrf": field((await http.get(f"/runs/{run.run_id}")).text, "csrf")}
        link = await rt.issue_token(run.waits[0].wait_id, "grace")
        for name in ("checkpoint", "snapshot", "find_linked", "runs", "list_runs", "waits"):
            monkeypatch.setattr(rt.look, name, failing(error))
        monkeypatch.setattr(rt, "cancel", failing(error))

        def told(answer: httpx.Response) -> tuple[int, str | None]:
            return answer.status_code, answer.headers.get("retry-after")

        api = told(await http.get(f"/v1/runs/{run.run_id}/state"))
        assert api[0] in (503, 429) and api[1] is not None
        for path in (f"/runs/{run.run_id}/fork", f"/w/{link}", "/runs", "/waits"):
            page = await http.get(path)
            assert told(page) == api and error.code in page.text, path
        for path in (f"/runs/{run.run_id}/cancel", f"/runs/{run.run_id}/fork"):
            assert told(await http.post(path, data=csrf)) == api, path


async def test_a_link_is_refused_alike_on_its_page_and_by_the_api() -> None:
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        used, revoked = [await rt.issue_token(run.waits[0].wait_id, who) for who in ("grace", "ada")]
        assert (await http.post(f"/w/{used}", data={"action": "approve"})).status_code == 200
        for link in (used, revoked, "unknown", "x" * 400, "a/b"):
            path = link.replace("/", "%2F")
            by_api = await http.post(f"/v1/waits/{path}", json={"action": "approve"})
            pages = [await http.get(f"/w/{path}"), await http.post(f"/w/{path}", data={"action": "approve"})]
            assert [by_api.status_code, *(p.status_code for p in pages)] == [403] * 3 and all(by_api.json()["code"] in p.text for p in pages), link


async def test_whoever_comes_second_by_a_link_is_told_who_decided_what() -> None:
    """§17.5: on the page and by the API, by another link and by the same one, before the run goes on and after, and where nobody answered in time."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        first, second = [await rt.issue_token(run.waits[0].wait_id, who) for who in ("grace", "ada")]
        assert (await http.post(f"/w/{first}", data={"action": "approve"})).status_code == 200
        for goes_on in (False, True):
            if goes_on:
                await rt.resume(run.run_id)
            for link, says in ((first, "has been used already"), (second, "is closed already")):
                told = [await http.get(f"/w/{link}"), await http.post(f"/w/{link}", data={"action": "deny"}), await http.post(f"/v1/waits/{link}", json={"action": "deny"})]
                assert all(one.status_code == 403 and f"{says}: grace decided approve" in one.text for one in told), [one.text[-900:] for one in told]


async def test_an_answer_that_a_live_run_has_not_taken_yet_closes_the_link() -> None:
    """Nobody is offered a form for a question that somebody has answered."""
    begun, hold = asyncio.Event(), asyncio.Event()
    g = Graph("both", Notes)

    @g.node(start=True)
    async def ask(state: Notes, ctx: Context) -> None:
        await ctx.approve("Go on?")

    @g.node(start=True)
    async def work(state: Notes) -> None:
        begun.set()
        await hold.wait()

    async with Runtime("memory:", skills=[g]) as rt, served(rt) as http:
        running = asyncio.ensure_future(rt.invoke(g, {}))
        await begun.wait()
        while not (waits := (await rt.runs())[0].waits):
            await rt.store.wait_for_change(1)
        first, second = [await rt.issue_token(waits[0].wait_id, who) for who in ("grace", "ada")]
        assert "Go on?" in (await http.get(f"/w/{second}")).text
        await rt.redeem(first, "deny")
        page = await http.get(f"/w/{second}")
        assert page.status_code == 403 and "grace decided deny" in page.text
        hold.set()
        await running


async def test_a_link_whose_question_timed_out_says_so() -> None:
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        link = await rt.issue_token(run.waits[0].wait_id, "grace")
        command = FireTimeout(run.waits[0].wait_id, rt.store.now())
        await rt.store.put(InboxItem(run_id=run.run_id, key=command.key, command=command, put_at=rt.store.now()))
        page = await http.get(f"/w/{link}")
        assert page.status_code == 403 and "is closed already: it timed out" in page.text, page.text[-900:]

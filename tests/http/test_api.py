"""The API: the same runtime over HTTP (§16)."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest

from holdfast import Context, Graph, Runtime, State, append, thread
from holdfast.api.bodies import Answer, Decide
from holdfast.api.openapi import document
from holdfast.api.table import ROUTES, Route
from holdfast.core import describe
from holdfast.core.commands import Signal
from holdfast.core.commit import InboxItem
from holdfast.core.errors import InvalidInput
from holdfast.engine.look.looker import Looker, Wanted
from holdfast.stores.memory import MemoryStore
from tests.http.scenes import Mail, notes
from tests.http.support import bearer, graph, served, token

STORES = ["memory:", "sqlite:///{}/a.db"]


async def test_a_run_from_its_submission_to_its_end(tmp_path: Path) -> None:
    """Submit, drive, look, approve, resume: the words are those of the command line."""
    for url in STORES:
        async with Runtime(url.format(tmp_path), skills=[graph()]) as rt, served(rt, tokens=False) as http:
            made = await http.post("/v1/runs", json={"skill_id": "notes", "input": {"name": "Ada"}, "thread_id": "t1", "options": {"tags": ["x"]}})
            assert (made.status_code, made.json()["status"]) == (202, "pending"), made.text
            run_id = made.json()["run_id"]
            assert (await http.post(f"/v1/runs/{run_id}/resume", json={})).status_code == 202
            rests = (await http.get(f"/v1/runs/{run_id}", params={"wait": 5})).json()
            assert (rests["status"], rests["condition"]) == ("waiting_for_human", "awaiting_gate_decision")
            assert rests == await record(rt, run_id) | {"lease": rests["lease"]}
            (wait,) = (await http.get("/v1/waits")).json()["waits"]
            assert (wait["prompt"], wait["show"], wait["run_id"]) == ("Go on?", {"draft": "hello Ada"}, run_id)
            done = await http.post(f"/v1/runs/{run_id}/approve", json={"wait_id": wait["wait_id"], "actor": "grace", "note": "fine"})
            assert done.status_code == 202
            await http.post(f"/v1/runs/{run_id}/resume", json={})
            ended = (await http.get(f"/v1/runs/{run_id}?wait=5")).json()
            assert (ended["status"], ended["values"]["said"], ended["result"]["said"]) == ("completed", ["hello Ada", "bye"], ["hello Ada", "bye"])
            assert [r["run_id"] for r in (await http.get("/v1/runs", params={"tag": "x", "text": "ada", "limit": 1})).json()["runs"]] == [run_id]
            legacy = (await http.get(f"/v1/runs/{run_id}?view=legacy")).json()
            assert (legacy["status"], legacy["error"]) == ("completed", None)
            events = (await http.get(f"/v1/runs/{run_id}/events?after=2&limit=500")).json()["events"]
            assert events[0]["seq"] == 3 and events[-1]["event_type"] == "run.completed"
            for name in ("checkpoints", "waits", "effects", "intents", "steps", "attempts", "ledger"):
                listed = await http.get(f"/v1/runs/{run_id}/{name}")
                assert listed.status_code == 200 and set(listed.json()) == {name, "next_cursor"}, listed.text
            points = (await http.get(f"/v1/runs/{run_id}/checkpoints?limit=2")).json()
            assert "values" not in points["checkpoints"][0] and points["next_cursor"] == points["checkpoints"][1]["checkpoint_id"]
            one = (await http.get(f"/v1/runs/{run_id}/checkpoints/{points['next_cursor']}")).json()
            assert one["values"]["name"] == "Ada"
            diff = (await http.get(f"/v1/runs/{run_id}/diff", params={"a": points["checkpoints"][0]["checkpoint_id"], "b": "head"})).json()
            assert diff["changed"]["said"]["to"] == ["hello Ada", "bye"]
            assert (await http.get(f"/v1/runs/{run_id}/state")).json()["values"]["said"][-1] == "bye"
            assert (await http.get(f"/v1/runs/{run_id}/check")).json() == {"ok": True, "run_id": run_id, "problems": []}
            assert (await http.get("/v1/threads/t1/history")).json()["history"][-1]["values"]["said"][-1] == "bye"


class Talk(State):
    said: Annotated[list[str], append, thread]


def talk() -> Graph[Talk]:
    made = Graph("talk", Talk, version="1")

    @made.node(start=True)
    async def answer(state: Talk) -> dict[str, Any]:
        return {"said": [f"{len(state.said)}"]}

    return made


async def test_a_page_of_a_threads_history_costs_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """§16.1, issue «Speed», 6: of a thread of any length only the runs of the page are read, and the pages together are the whole history."""
    looked: list[str] = []
    snapshot = Looker.snapshot

    async def counting(self: Looker, run_id: str, *args: Any, **options: Any) -> Any:
        looked.append(run_id)
        return await snapshot(self, run_id, *args, **options)

    async with Runtime("memory:", skills=[g := talk()]) as rt, served(rt, tokens=False) as http:
        for n in range(20):
            await rt.invoke(g, {"said": [f"question {n}"]}, thread_id="t1")
        whole = (await http.get("/v1/threads/t1/history", params={"limit": 500})).json()
        assert len(whole["history"]) == 40 and whole["next_cursor"] is None and [len(x["values"]["said"]) for x in whole["history"]] == [*range(1, 41)]
        assert [x["id"] for x in whole["history"]] == [x["id"] for x in await rt.history("t1")]
        monkeypatch.setattr(Looker, "snapshot", counting)
        pages, after = [], {}
        while True:
            looked.clear()
            page = (await http.get("/v1/threads/t1/history", params={"limit": 6, **after})).json()
            assert len(looked) <= 5, "the runs of the page, and one to know whether there are more"
            pages += page["history"]
            if page["next_cursor"] is None:
                break
            after = {"after": page["next_cursor"]}
        assert pages == whole["history"]
        last = whole["history"][-1]["id"]
        assert (await http.get("/v1/threads/t1/history", params={"after": last})).json() == {"history": [], "next_cursor": None}
        other = await rt.invoke(g, {"said": ["x"]}, thread_id="t2")
        for unknown in (f"{last}0", "none", f"{other.run_id}.c4"):
            refused = await http.get("/v1/threads/t1/history", params={"after": unknown})
            assert (refused.status_code, refused.json()["code"]) == (404, "checkpoint_not_found"), refused.text


async def record(rt: Runtime, run_id: str) -> dict[str, Any]:
    return describe.plain((await rt.look.snapshot(run_id)).detail())


async def test_a_request_key_is_answered_once() -> None:
    """§16.5: the same body again, another body, and a run that the shell created under that key."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        body = {"skill_id": "notes", "input": {"name": "Ada"}}
        one = await http.post("/v1/runs", json=body, headers={"Idempotency-Key": "k"})
        two = await http.post("/v1/runs", json=body, headers={"Idempotency-Key": "k"})
        assert one.content == two.content and two.headers["Idempotent-Replayed"] == "true" and "Idempotent-Replayed" not in one.headers
        other = await http.post("/v1/runs", json={**body, "input": {"name": "B"}}, headers={"Idempotency-Key": "k"})
        assert (other.status_code, other.json()["code"]) == (422, "request_conflict")
        by_shell = await rt.submit(g, {"name": "Ada"}, key="other")
        found = await http.post("/v1/runs", json=body, headers={"Idempotency-Key": "other"})
        assert (found.status_code, found.json()["run_id"], found.json()["deduplicated"]) == (200, by_shell.run_id, True)
        run_id = one.json()["run_id"]
        forked = [await http.post(f"/v1/runs/{run_id}/cancel", json={}, headers={"Idempotency-Key": "c"}) for _ in range(2)]
        assert forked[0].content == forked[1].content and forked[0].json()["accepted"] is True


async def test_a_stale_decision_is_refused_and_what_has_not_moved_is_not_sent_again() -> None:
    """§16.6."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        seen = await http.get(f"/v1/runs/{run.run_id}")
        again = await http.get(f"/v1/runs/{run.run_id}", headers={"If-None-Match": seen.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        stale = await http.post(f"/v1/runs/{run.run_id}/approve", json={}, headers={"If-Match": '"1"'})
        assert (stale.status_code, stale.json()["code"]) == (412, "stale")
        fresh = await http.post(f"/v1/runs/{run.run_id}/approve", json={}, headers={"If-Match": seen.headers["etag"]})
        assert fresh.status_code == 202 and fresh.headers["etag"] != seen.headers["etag"]
        picked = (await http.get(f"/v1/runs/{run.run_id}?fields=status,run_id")).json()
        assert picked == {"status": picked["status"], "run_id": run.run_id}


async def test_what_has_not_changed_is_not_sent_again_however_it_is_named() -> None:
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        path = f"/v1/runs/{run.run_id}"
        tag = (await http.get(path)).headers["etag"]
        for named, status in ((tag, 304), (f"W/{tag}", 304), (f'"0", {tag}', 304), ("*", 304), (" * ", 304), ('"0"', 200), ("", 200), (tag.strip('"'), 200), (f'"{tag[1:-1]}0"', 200)):
            for method in ("GET", "HEAD"):
                answer = await http.request(method, path, headers={"If-None-Match": named})
                assert (answer.status_code, answer.headers["etag"]) == (status, tag), (method, named)
                assert (answer.content == b"") is (status == 304 or method == "HEAD")


@pytest.mark.parametrize("route", [r for r in ROUTES if r.body is not None], ids=lambda r: r.path)
async def test_a_precondition_holds_or_nothing_is_done(route: Route) -> None:
    """§16.6, for every POST: of what is about a run it is compared, of anything else it cannot hold; the document tells of it where it is compared."""
    async with Runtime("memory:", skills=[g := graph()], transports={"mail": Mail()}) as rt, served(rt, tokens=False) as http:
        rt.add(n := notes())
        sent = await rt.invoke(n, {"repo": "mail", "to": "nobody"})
        await rt.dispatch(until_idle=True)
        run = await rt.invoke(g, {"name": "wait" if "signal" in route.path else "Ada"}, thread_id="t")
        link = "" if "signal" in route.path else await rt.issue_token(run.waits[0].wait_id, "grace")
        ids = {"run_id": run.run_id, "thread_id": "t", "intent_id": (await rt.intents(sent.run_id))[0].intent_id, "token": link, "schedule_id": (await rt.schedule(g, {}, every=3600)).id}
        path = re.sub(r"{(\w+)}", lambda found: ids[found[1]], route.path)
        body = {"skill_id": "notes"} if route.path == "/v1/runs" else {"name": "go"} if "signal" in path else {"action": "approve"} if route.body in (Decide, Answer) else {"as": "sent"} if "settle" in path else {}
        about = sent if "intents" in path else run

        async def stands() -> list[Any]:
            return [describe.plain(r) for r in await rt.look.runs(Wanted(limit=50))] + [*map(describe.plain, await rt.look.intents()), *map(describe.plain, await rt.look.schedules())]

        before, version = await stands(), (await rt.get(about.run_id)).version
        for stale in ('"0"', f'"{version - 1}", "{version + 1}"', f'W/"{version}0"', str(version), ""):
            refused = await http.post(path, json=body, headers={"If-Match": stale})
            assert (refused.status_code, refused.json()["code"]) == (412, "stale" if route.matches else "no_etag"), (stale, refused.text)
        assert await stands() == before
        fine = await http.post(path, json=body, headers={"If-Match": f'"0", "{version}"' if route.matches else "*"})
        assert fine.status_code in (200, 202, 409), fine.text
        told = {p["name"] for p in document("0")["paths"][route.path]["post"]["parameters"]}
        assert ("If-Match" in told) is route.matches


BAD: list[tuple[bytes, str, int]] = [
    (b'{"skill_id": "notes", "input": {}, "inptu": 1}', "inptu", 422),
    (b'{"skill_id": "notes", "skill_id": "notes"}', "skill_id", 422),
    (b'{"skill_id": "notes", "input": {"a": NaN}}', "NaN", 422),
    (b'{"skill_id": "notes", "input": {"a": 1e999}}', "too large", 422),
    (b'{"skill_id": "notes", "input": {"a": 99999999999999999999999}}', "too large", 422),
    (b'{"skill_id": "notes", "input": {"a": "\\ud800"}}', "surrogate", 422),
    (b'{"skill_id": "notes", "input": {"name": "a\\u0000b"}}', "U+0000", 422),
    (b'{"skill_id": 7}', "skill_id", 422),
    (b'{"skill_id": "nobody"}', "nobody", 404),
    (b'{"skill_id": "notes", "options": {"quue": "a"}}', "quue", 422),
    (b"[" * 5000 + b"]" * 5000, "deep", 422),
    (b'{"a": ' * 200 + b"1" + b"}" * 200, "", 422),
    (b"\xff\xfe", "UTF-8", 422),
    (b"not json", "JSON", 422),
    (b"[]", "object", 422),
]


@pytest.mark.parametrize(("body", "says", "status"), BAD, ids=range(len(BAD)))
async def test_a_bad_body_is_a_problem_that_says_what_is_wrong(body: bytes, says: str, status: int) -> None:
    """§16.4."""
    async with Runtime("memory:", skills=[graph()]) as rt, served(rt, tokens=False) as http:
        said = await http.post("/v1/runs", content=body, headers={"Content-Type": "application/json"})
        assert said.status_code == status and said.headers["content-type"] == "application/problem+json", said.text
        told = said.json()
        assert set(told) >= {"type", "title", "status", "detail", "code"} and says in json.dumps(told) and told["status"] == status
        assert await rt.runs() == []


@pytest.mark.parametrize("query", ["", "?protocol=vercel", "many"])
async def test_a_head_of_a_stream_says_how_it_would_be_answered_and_holds_nothing(query: str) -> None:
    """§14.4, §16.7: nobody reads what would come, so that nothing is read for it."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {"name": "wait"}, detach=True)
        path = "/v1/stream" if query == "many" else f"/v1/runs/{run.run_id}/stream{query}"
        async with asyncio.timeout(5):
            asked = await http.head(path)
        assert (asked.status_code, asked.content) == (200, b"") and "content-length" not in asked.headers
        assert asked.headers["content-type"].startswith("text/event-stream") and asked.headers["cache-control"] == "no-store"
        assert (await http.head("/v1/runs/01kdvdna004vschfr8kqh2gh8g/stream")).status_code == 404
        await rt.cancel(run.run_id)
        if query != "many":
            whole = await http.get(path)
            assert {k: v for k, v in whole.headers.items() if k != "x-request-id"} == {k: v for k, v in asked.headers.items() if k != "x-request-id"}


async def test_the_edges_of_http() -> None:
    async with Runtime("memory:", skills=[graph()]) as rt, served(rt, tokens=False) as http:
        assert (await http.post("/v1/runs", content=b"x" * (2 * 2**20 + 1))).status_code == 413
        assert (await http.post("/v1/runs", content=b"a=b", headers={"Content-Type": "application/x-www-form-urlencoded"})).status_code == 415
        assert (await http.put("/v1/runs")).status_code == 405 and (await http.get("/v1/nothing")).status_code == 404
        assert (await http.get("/v1/runs?limit=501")).json()["field"] == "limit" and (await http.get("/v1/runs?limit=x")).status_code == 422
        assert (await http.get("/v1/runs?status=paused")).json()["code"] == "invalid_input"
        assert (await http.get("/v1/runs?a=1")).status_code == 422 and (await http.get("/v1/runs?limit=1&limit=2")).status_code == 422
        marked = await http.get("/v1/health", headers={"X-Request-Id": "abc"})
        assert marked.headers["x-request-id"] == "abc" and marked.headers["x-content-type-options"] == "nosniff"
        assert (await http.head("/v1/health")).status_code == 200
        assert (await http.get("/v1/ready")).json() == {"status": "ready"} and "holdfast_runs{" in (await http.get("/metrics")).text
        document = (await http.get("/v1/openapi.json")).json()
        assert document["openapi"] == "3.1.0" and "/v1/runs/{run_id}" in document["paths"]


async def test_a_failed_run_is_resumed_with_an_acknowledgement() -> None:
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {"name": "fail"})
        asked = await http.post(f"/v1/runs/{run.run_id}/resume", json={})
        assert (asked.status_code, asked.json()["code"]) == (409, "acknowledge_required")
        assert (await http.post(f"/v1/runs/{run.run_id}/resume", json={"acknowledge": run.stop_reason})).status_code == 202
        gone = await http.post(f"/v1/runs/{'0' * 26}/resume", json={})
        assert gone.status_code == 404


async def test_signals_forks_replays_and_links() -> None:
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        waits = await rt.invoke(g, {"name": "wait"}, thread_id="t", detach=True)
        assert (await http.post("/v1/threads/t/signal", json={"name": "go", "payload": 1})).status_code == 202
        run = await rt.invoke(g, {"name": "Ada"})
        secret = await rt.issue_token(run.waits[0].wait_id, "grace")
        linked = await http.post(f"/v1/waits/{secret}", json={"action": "approve"})
        assert (linked.status_code, linked.json()["run_id"]) == (202, run.run_id)
        assert (await http.post(f"/v1/waits/{secret}", json={"action": "approve"})).status_code == 403
        forked = await http.post(f"/v1/runs/{run.run_id}/fork", json={"set": {"name": "quick"}, "reason": "shorter"}, headers={"Idempotency-Key": "f"})
        assert forked.status_code == 202 and forked.json()["source_run_id"] == run.run_id, forked.text
        replayed = await http.post(f"/v1/runs/{run.run_id}/replay", json={})
        assert replayed.status_code == 202 and replayed.json()["origin"] == "replay"
        assert waits.run_id


async def lines(http: httpx.AsyncClient, url: str, until: str, **options: Any) -> list[tuple[str, str]]:
    """The events of a stream up to one of that kind: its id and its kind."""
    out: list[tuple[str, str]] = []
    async with asyncio.timeout(60):
        response = await http.get(url, **options)
    for block in response.text.split("\n\n"):
        fields = dict(line.partition(": ")[::2] for line in block.splitlines() if not line.startswith(":"))
        if "event" in fields:
            out.append((fields.get("id", ""), fields["event"]))
    assert out[-1][1] == until, out
    return out


async def test_a_stream_goes_on_where_it_was_left() -> None:
    """§16.7: ids are event numbers; nothing is missed or told twice; the rest of the run is told last."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {"name": "quick"})
        whole = await lines(http, f"/v1/runs/{run.run_id}/stream", "rest")
        assert [int(i) for i, kind in whole if kind != "rest"] == list(range(1, run.version + 1))
        left = await lines(http, f"/v1/runs/{run.run_id}/stream", "rest", headers={"Last-Event-ID": "3"})
        assert left == whole[3:] == await lines(http, f"/v1/runs/{run.run_id}/stream?after=3", "rest")
        assert (await http.get(f"/v1/runs/{run.run_id}/stream", headers={"Last-Event-ID": "x"})).status_code == 422


def loud() -> Graph[State]:
    made = Graph("loud", State, version="1")

    @made.node(start=True)
    async def talk(state: State, ctx: Context) -> None:
        for word in ("a", "b", "c"):
            ctx.emit(word)

    @made.node(after="talk")
    async def stop(state: State) -> None:
        return None

    return made


async def test_who_waits_for_a_run_waits_for_what_was_accepted() -> None:
    """§16.6: an answer that was accepted while others acted on the run is on its way to it. Whoever gave it and waited was shown the open question again."""

    class Held(MemoryStore):
        """What is in the inbox of its runs, nobody has taken yet."""

        def __init__(self) -> None:
            super().__init__()
            self.held = False
            self.asked = asyncio.Event()

        async def inbox(self, run_id: str, *, taken: bool = False) -> list[InboxItem]:
            self.asked.set()
            return [InboxItem(run_id, "k", Signal("go", "k", b"", "ada"), 0)] if self.held else await super().inbox(run_id, taken=taken)

    store = Held()
    async with Runtime(store, skills=[g := graph()]) as rt, served(rt, tokens=False) as http, asyncio.timeout(10):
        run = await rt.invoke(g, {"name": "Ada"})
        store.held = True
        waiting = asyncio.ensure_future(http.get(f"/v1/runs/{run.run_id}?wait=60"))
        await store.asked.wait()
        store.asked.clear()
        await store.asked.wait()
        assert not waiting.done()
        store.held = False
        assert (await waiting).json()["condition"] == "awaiting_gate_decision"



async def test_a_browser_that_reconnects_gets_each_event_once() -> None:
    """§16.7: it asks the address that it was given at first, which may name a place of its own, and tells besides what it had last."""
    async with Runtime("memory:", skills=[g := loud()]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {})
        path = f"/v1/runs/{run.run_id}/stream"
        whole = await lines(http, path, "rest")
        newest = run.version
        for after in (0, 1, 2, newest - 1):
            for last in (1, 3, newest - 1):
                told = await lines(http, f"{path}?after={after}", "rest", headers={"Last-Event-ID": str(last)})
                assert told == whole[last:], (after, last)
        for protocol in ("agui", "vercel"):
            plain, both = [await http.get(f"{path}?protocol={protocol}{more}", headers={"Last-Event-ID": str(newest - 2)}) for more in ("", "&after=1")]
            assert plain.text == both.text != (await http.get(f"{path}?protocol={protocol}&after=1")).text


async def test_a_place_that_the_run_has_not_come_to_is_refused() -> None:
    """§16.7: it is of another run, or of one that lost events with its store. All events up to it would be passed over in silence."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        last = run.record.version
        for beyond in (str(last + 1), f"{last + 1}.0.3.0.0"):
            for protocol in ("", "?protocol=agui"):
                by_header = await http.get(f"/v1/runs/{run.run_id}/stream{protocol}", headers={"Last-Event-ID": beyond})
                by_query = await http.get(f"/v1/runs/{run.run_id}/stream", params={"after": beyond})
                for refused, name in ((by_header, "Last-Event-ID"), (by_query, "after")):
                    assert (refused.status_code, refused.json()["field"]) == (422, name) and f"{run.run_id} has {last} events" in refused.json()["detail"], refused.text
            with pytest.raises(InvalidInput, match=f"has {last} events"):
                await anext(rt.stream(run.run_id, after=beyond))
        await rt.approve(run.run_id)
        there = await http.get(f"/v1/runs/{run.run_id}/stream", headers={"Last-Event-ID": str(last)})
        assert f"id: {last + 1}\n" in there.text


async def test_a_browser_that_began_at_a_chunk_goes_on_from_the_later_place() -> None:
    async with Runtime("memory:", skills=[g := loud()]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {})
        path = f"/v1/runs/{run.run_id}/stream"
        follower = rt.follower(run.run_id, after="0.0.0.0.0", modes=("events", "custom"))
        parts = [part async for part in follower.ready()]
        places = {part.data: part.cursor for part in parts if part.mode == "custom"}
        assert list(places) == ["a", "b", "c"]
        passed = int(places["a"].partition(".")[0])
        for last, wanted in ((0, "a"), (passed - 1, "a"), (passed, "a"), (passed + 1, None), (run.version, None)):
            both = (await http.get(path, params={"after": places["a"], "modes": "events,custom"}, headers={"Last-Event-ID": str(last)})).text
            alone = (await http.get(path, params={"after": places["a"] if wanted else str(last), "modes": "events,custom"})).text
            assert both == alone, last
        wrong = await http.get(path, params={"after": "1"}, headers={"Last-Event-ID": "x"})
        assert (wrong.status_code, wrong.json()["field"]) == (422, "Last-Event-ID")
        wrong = await http.get(path, params={"after": "x"}, headers={"Last-Event-ID": "1"})
        assert (wrong.status_code, wrong.json()["field"]) == (422, "after")


async def test_tenants_are_apart() -> None:
    """§14.2: another tenant's id is answered as one that was never given, byte for byte."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt) as http:
        mine, theirs = await token(rt, tenant="mine"), await token(rt, tenant="theirs")
        run = await rt.invoke(g, {"name": "Ada"}, tenant_id="mine")
        assert (await http.get(f"/v1/runs/{run.run_id}", headers=bearer(mine))).status_code == 200
        made = await http.post("/v1/runs", json={"skill_id": "notes", "input": {}}, headers=bearer(theirs))
        assert made.json()["tenant_id"] == "theirs"
        for path in ("/v1/runs", "/v1/waits", "/v1/lanes", "/v1/queues", "/v1/limits"):
            assert run.run_id not in (await http.get(path, headers=bearer(theirs))).text


async def test_without_code_a_server_records_what_needs_none(tmp_path: Path) -> None:
    """§16.1: ``serve`` without TARGETs, as its help and docs/http.md tell."""
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Runtime(url, skills=[g := graph()]) as known:
        runs = [(await known.invoke(g, {"name": name})).run_id for name in ("Ada", "Bob", "Cy", "wait")]
        schedule = await known.schedule(g, {}, every=3600)
        async with Runtime(url) as rt, served(rt, tokens=False) as http:
            for path, body in (
                (f"/v1/runs/{runs[0]}/fork", {}), (f"/v1/runs/{runs[0]}/replay", {}), (f"/v1/runs/{runs[0]}/approve", {}), (f"/v1/runs/{runs[1]}/deny", {}),
                (f"/v1/runs/{runs[2]}/cancel", {}), (f"/v1/runs/{runs[3]}/signal", {"name": "go"}),
            ):
                assert (done := await http.post(path, json=body)).status_code == 202, (path, done.text)
            for path, body in (("/v1/runs", {"skill_id": "notes"}), (f"/v1/schedules/{schedule.id}/trigger", {}), (f"/v1/runs/{runs[0]}/resume", {})):
                refused = await http.post(path, json=body)
                assert (refused.status_code, refused.json()["code"]) == (404, "skill_unknown"), (path, refused.text)

"""What an operator needs besides looking: sending again, settling, filters, figures, where it stands, in which zone (§16, §17)."""

from __future__ import annotations

import datetime as dt
import re
import zoneinfo
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast import END, Context, Graph, Runtime, State
from holdfast.access import FileTokens, Tokens
from holdfast.api import app
from holdfast.core import describe
from holdfast.core.errors import InvalidInput
from holdfast.engine.look.snapshot import TAIL
from holdfast.ui import words
from tests.http.scenes import Mail, many, notes
from tests.http.support import bearer, graph, served, token
from tests.http.test_pages import PAGES, Tags, field


class Silent(State):
    """Nothing."""


async def stuck(rt: Runtime) -> str:
    """An intent that is dead."""
    rt.add(g := notes())
    run = await rt.invoke(g, {"repo": "mail", "to": "nobody"})
    await rt.dispatch(until_idle=True)
    (intent,) = await rt.intents(run.run_id)
    assert intent.state == "dead"
    return intent.intent_id


async def test_an_intent_is_sent_again_and_settled() -> None:
    """§16.3: the same verbs and refusals as on the command line; another tenant's is not there."""
    async with Runtime("memory:", transports={"mail": Mail()}) as rt, served(rt) as http:
        intent = await stuck(rt)
        mine, theirs = bearer(await token(rt, "view", "decide")), bearer(await token(rt, "admin", tenant="theirs"))
        foreign = await http.post(f"/v1/intents/{intent}/redrive", headers=theirs, json={})
        assert (foreign.status_code, foreign.json()["code"]) == (404, "intent_not_found")
        again = await http.post(f"/v1/intents/{intent}/redrive", headers=mine, json={"reason": "the mailbox is back"})
        assert (again.status_code, again.json()["state"]) == (202, "queued"), again.text
        assert again.json()["rulings"][0] | {"at": None} == {"at": None, "actor": "ada", "via": mine["Authorization"].split("_")[1], "reason": "the mailbox is back", "action": "redrive", "forced": False}
        await rt.dispatch(until_idle=True)
        settled = await http.post(f"/v1/intents/{intent}/settle", headers=mine, json={"as": "abandoned", "reason": "no such person"})
        assert (settled.status_code, settled.json()["state"]) == (200, "abandoned"), settled.text
        other = await http.post(f"/v1/intents/{intent}/settle", headers=mine, json={"as": "sent"})
        assert other.status_code == 409 and other.json()["code"] == "intent_settled"
        wrong = await http.post(f"/v1/intents/{intent}/settle", headers=mine, json={"as": "lost"})
        assert wrong.status_code == 422
        unknown = await http.post("/v1/intents/nothing/redrive", headers=mine, json={})
        assert unknown.status_code == 404


async def test_the_outbox_page_sends_again() -> None:
    """§17.6: redrive and settle from the page, beside the reason."""
    async with Runtime("memory:", transports={"mail": Mail()}) as rt, served(rt, tokens=False) as http:
        intent = await stuck(rt)
        page = (await http.get("/effects")).text
        assert "One intent is dead" in page or "one intent is dead" in page
        sent = await http.post(f"/intents/{intent}", data={"csrf": field(page, "csrf"), "verb": "redrive", "reason": "again"})
        assert (sent.status_code, sent.headers["location"]) == (303, "/effects#outbox")
        assert [i.state for i in await rt.intents()] == ["queued"]
        await rt.dispatch(until_idle=True)
        assert (await http.post(f"/intents/{intent}", data={"csrf": field(page, "csrf"), "verb": "abandoned"})).status_code == 303
        assert [i.state for i in await rt.intents()] == ["abandoned"]
        assert (await http.post(f"/intents/{intent}", data={"csrf": field(page, "csrf"), "verb": "nothing"})).status_code == 422


async def test_an_unknown_effect_is_settled_from_its_page(tmp_path: Path) -> None:
    """§17.6: unknown effects lead, with the key to look for, and a person says what they saw; §17.2 counts them."""
    async with Runtime(f"sqlite:///{tmp_path}/a.db", transports={"mail": Mail()}) as rt, served(rt, tokens=False) as http:
        await many(rt)
        overview = (await http.get("/")).text
        for said in ("Questions open", "oldest wait", "Unknown effects", "Dead intents", "Runs nobody can take", "Ended in the last hour", "Time to the end"):
            assert said in overview, said
        page = (await http.get("/effects")).text
        assert page.index("Did upload happen?") < page.index("Outbox") and "Look for this key" in page
        (effect,) = await rt.look.effects(statuses=("unknown",))
        assert effect.key in page
        wait = (await rt.get(effect.run_id)).waits[0]
        form = {"csrf": field(page, "csrf"), "wait_id": wait.wait_id, "action": "record_result", "payload": '"https://notes.example.org/9"'}
        assert (await http.post(f"/runs/{effect.run_id}/answer", data=form)).status_code == 303
        assert (await rt.resume(effect.run_id)).values["published"] == "https://notes.example.org/9"
        assert await rt.look.effects(statuses=("unknown",)) == []


async def test_runs_are_filtered_and_counted() -> None:
    """§17.3: filters live in the URL, by time too, in the viewer's zone; each condition with its count."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        for name in ("quick", "quick", "Ada"):
            await rt.invoke(g, {"name": name}, tags=["nightly"] if name == "Ada" else [])
        page = (await http.get("/runs")).text
        chips = {a["href"] for t, a in Tags(page).found if t == "a" and a.get("href", "").startswith("/runs?condition=")}
        assert chips == {"/runs?condition=done", "/runs?condition=awaiting_gate_decision"}
        assert 'all <span class="tally">3</span>' in page
        for query, count in (({"since": "2020-01-01T00:00"}, 3), ({"until": "2020-01-01T00:00"}, 0), ({"since": "2999-01-01T00:00"}, 0), ({"tag": "nightly", "condition": "awaiting_gate_decision"}, 1)):
            found = await http.get("/runs", params=query)
            assert found.text.count('name="run"') == count, query
            assert all(v in found.text for v in query.values())
        assert (await http.get("/runs", params={"since": "yesterday"})).status_code == 422
        assert (await http.get("/runs", params={"since": "2026-01-01T00:00"}, headers={"Cookie": "holdfast_zone=Asia/Tokyo"})).status_code == 200


async def test_nobody_can_take_what_is_due() -> None:
    """§17.2: a run that no living worker can take is told on the first page, with what it needs."""
    async with Runtime("memory:", skills=[g := graph()]) as rt:
        await rt.submit(g, {"name": "quick"})
        async with served(rt, tokens=False) as http:
            assert "Nobody can take these" in (await http.get("/")).text


async def test_a_queue_is_paused_from_the_page() -> None:
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt) as http:
        await rt.submit(g, {"name": "quick"})
        page = (await http.get("/workers", headers=bearer(await token(rt, "admin", tenant="*")))).text
        assert "Queues" in page and "default" in page
        asked: dict[str, Any] = {"headers": bearer(await token(rt, "admin", tenant="*")), "data": {"verb": "pause", "reason": "a deploy"}}
        assert (await http.post("/queues/default", **asked)).status_code == 303
        assert [q.paused for q in await rt.queues()] == [True]
        assert (await http.post("/queues/default", headers=bearer(await token(rt, "admin")), data={"verb": "unpause"})).status_code == 403
        assert (await http.post("/queues/default", **{**asked, "data": {"verb": "unpause"}})).status_code == 303


async def test_a_decision_names_the_token_under_which_it_came() -> None:
    """§16.2: ``via`` is the token's id, on decisions and on refusals; the actor is a name that the caller gives."""
    async with Runtime("memory:", skills=[g := graph()], resolver=lambda actor, *_: actor != "eve") as rt, served(rt) as http:
        secret = await token(rt, "view", "decide")
        number = secret.split("_")[1]
        for verb, body in (("approve", {}), ("deny", {"reason": "no"}), ("decide", {"action": "approve"})):
            run = await rt.invoke(g, {"name": "Ada"})
            refused = await http.post(f"/v1/runs/{run.run_id}/{verb}", json={**body, "actor": "eve"}, headers=bearer(secret))
            assert (refused.status_code, refused.json()["code"]) == (403, "denied")
            done = await http.post(f"/v1/runs/{run.run_id}/{verb}", json=body, headers=bearer(secret))
            assert done.status_code == 202, done.text
            told = {e.type: e.payload for e in await rt.events(run.run_id)}
            assert told["wait.denied"]["via"] == number and told["wait.decided"]["decision"]["via"] == number
            assert told["wait.decided"]["decision"]["actor"] == "ada"
        run = await rt.invoke(g, {"name": "Ada"})
        page = await http.post("/login", data={"token": secret})
        csrf = field((await http.get(f"/runs/{run.run_id}")).text, "csrf")
        assert page.status_code == 303
        await http.post(f"/runs/{run.run_id}/answer", data={"csrf": csrf, "wait_id": run.waits[0].wait_id, "action": "approve"})
        assert (await rt.get(run.run_id)).record.decisions[0].via == number
        run = await rt.invoke(g, {"name": "Ada"})
        assert (await rt.approve(run.run_id, drive=False)).record.decisions[0].via == ""


async def test_the_page_of_workers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run that waits for a person holds a lane: with ten thousand of them the page had 3 MB, and took the server seconds."""
    lanes = [describe.LaneView(session_key=f"s{n}", lane="main", holder=f"run{n}", since=None, expires_at=None, queued=["q"] if n == 2_990 else []) for n in range(3_000)]

    async def list_lanes(*_: Any, **__: Any) -> list[describe.LaneView]:
        return lanes

    async with Runtime("memory:", skills=[graph()]) as rt, served(rt, tokens=False) as http:
        monkeypatch.setattr(rt.look, "lanes", list_lanes)
        page = (await http.get("/workers")).text
        assert page.count("/runs/run") == 200 and page.index("/runs/run2990") < page.index("/runs/run0"), "those that others wait for come first"
        assert "200 of 3,000" in page and "holdfast lanes" in page
        lanes = lanes[:3]
        assert " of 3" not in (await http.get("/workers")).text


# -- where it stands ----------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["/runs", "/holdfast/runs"], ids=["the proxy takes the prefix off", "the proxy leaves it"])
async def test_pages_stand_under_any_path(asked: str) -> None:
    """§16.1, ``--public-url``: every link, form and redirect of a page leads to a page, behind a proxy and mounted."""
    async with Runtime("memory:", skills=[g := graph()]) as rt:
        run = await rt.invoke(g, {"name": "Ada"})
        async with served(rt, tokens=False, public_url="https://ops.example.org/holdfast/") as http:
            await lead_on(http, asked.removesuffix("/runs"), run.run_id)
        outer = Starlette(routes=[Mount("/holdfast", app(rt, tokens=False))])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=outer), base_url="http://elsewhere") as http:
            await lead_on(http, "/holdfast", run.run_id)


async def lead_on(http: httpx.AsyncClient, prefix: str, run_id: str) -> None:
    for path in [*PAGES, f"/runs/{run_id}", f"/runs/{run_id}/fork"]:
        page = await http.get(prefix + path)
        assert page.status_code == 200, (path, page.status_code)
        for tag, attributes in Tags(page.text).found:
            for name in ("href", "src", "action", "hx-get", "data-stream"):
                place = attributes.get(name) or "#"
                assert place.startswith(("/holdfast/", "#", "?")), (path, tag, name, place)
    page = await http.get(f"{prefix}/runs/{run_id}")
    form = {"csrf": field(page.text, "csrf"), "wait_id": field(page.text, "wait_id"), "action": "nothing"}
    assert (await http.post(f"{prefix}/runs/{run_id}/answer", data=form)).status_code in (409, 422)
    moved = await http.post(f"{prefix}/runs/{run_id}/replay", data=form)
    assert moved.headers["location"].startswith("/holdfast/runs/")
    made = await http.post(f"{prefix}/v1/runs", json={"skill_id": "notes", "input": {"name": "quick"}})
    assert made.headers["location"].startswith("/holdfast/v1/runs/")


@pytest.mark.parametrize(("asked", "leads"), [("/runs/", "/runs"), ("/w/to%2Fk%25n/?x=1", "/w/to%2Fk%25n?x=1"), ("/v1/runs/a%3Fb/", "/v1/runs/a%3Fb"), ("//evil.example/", None), ("/nothing/", None)])
async def test_a_slash_at_the_end_leads_on_within_the_address_that_was_asked(asked: str, leads: str | None) -> None:
    """§16.1: the name and the scheme that a proxy talks to are none that a browser can reach; over the latter a link's token went out in the clear."""
    async with Runtime("memory:", skills=[graph()]) as rt:
        for prefix, options in (("", {}), ("/holdfast", {"public_url": "https://ops.example.org/holdfast/"})):
            async with served(rt, tokens=False, **options) as http:
                for method in ("GET", "HEAD"):
                    moved = await http.send(http.build_request(method, f"http://inside:8321{asked}"))
                    assert (moved.status_code, moved.headers.get("location")) == ((404, None) if leads is None else (307, prefix + leads)), asked


async def test_behind_tls_the_session_is_for_tls_alone() -> None:
    """§16.2: Secure over TLS, which only the public URL knows of behind a proxy; a form's origin is the public one."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, public_url="https://ops.example.org/holdfast") as http:
        run = await rt.invoke(g, {"name": "Ada"})
        secret = await token(rt, "view", "decide")
        inside = await http.post("/login", data={"token": secret, "next": f"/runs/{run.run_id}"})
        assert inside.headers["location"] == f"/holdfast/runs/{run.run_id}"
        cookie = inside.headers["set-cookie"]
        assert "Secure" in cookie and "Path=/holdfast" in cookie
        name, value = cookie.partition(";")[0].split("=", 1)
        outside = await http.get("/waits")
        assert outside.headers["location"] == "/holdfast/login?next=/waits"
        http.cookies.clear()
        with_cookie = {"Cookie": f"{name}={value}"}
        page = await http.get("/waits", headers=with_cookie)
        form = {"csrf": field(page.text, "csrf"), "wait_id": field(page.text, "wait_id"), "action": "approve"}
        for origin, status in (("https://evil.example", 403), ("https://ops.example.org", 303)):
            assert (await http.post(f"/runs/{run.run_id}/answer", data=form, headers={**with_cookie, "Origin": origin})).status_code == status


async def test_times_are_shown_in_the_viewer_s_zone() -> None:
    """§17.9: a cookie, else UTC; exact in UTC on demand; a zone that is none is refused and none is set."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        page = (await http.get(f"/runs/{run.run_id}")).text
        exact = describe_created(page)
        assert "UTC" in page and exact.endswith(("Z", "+00:00"))
        chosen = await http.post("/zone", data={"csrf": field(page, "csrf"), "zone": "Asia/Tokyo", "next": f"/runs/{run.run_id}"})
        assert chosen.status_code == 303 and "holdfast_zone" in chosen.headers["set-cookie"] and "Asia/Tokyo" in chosen.headers["set-cookie"]
        there = (await http.get(f"/runs/{run.run_id}")).text
        assert "JST" in there and describe_created(there) == exact
        wrong = await http.post("/zone", data={"csrf": field(page, "csrf"), "zone": "Mars/Base", "next": "/"})
        assert wrong.status_code == 422 and "set-cookie" not in wrong.headers
        assert (await http.post("/zone", data={"zone": "UTC", "next": "/"})).status_code == 403
        for hostile in ("../../etc/passwd", "<b>", "\u202e", "x" * 5000):
            assert (await http.get("/", headers={"Cookie": f"holdfast_zone={hostile}".encode()})).status_code == 200


def describe_created(page: str) -> str:
    return next(str(a["datetime"]) for t, a in Tags(page).found if t == "time")


async def test_all_times_of_a_run_are_told_in_the_chosen_zone() -> None:
    """The axis of the timeline stood in UTC, beside events in the zone of whoever looked."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        page = (await http.get(f"/runs/{run.run_id}", headers={"Cookie": "holdfast_zone=Asia/Tokyo"})).text
        axis = re.findall(r"<text [^>]*>([^<]+)</text>", page.split('<li class="axis"')[1].split("</li>")[0])
        assert run.started_at is not None
        began = run.started_at.astimezone(zoneinfo.ZoneInfo("Asia/Tokyo"))
        assert axis[0] == f"{began:%H:%M:%S}" and len(axis) == 2


def test_the_axis_of_several_days_tells_the_days() -> None:
    start, end = "2026-01-01T22:30:00Z", "2026-01-02T22:45:00Z"
    assert words.axis(start, end, dt.UTC) == ("01-01 22:30", "01-02 22:45")
    assert words.axis(start, "2026-01-01T23:30:05Z", dt.UTC) == ("22:30:00", "23:30:05")
    assert words.axis(start, "2026-01-01T23:30:05Z", zoneinfo.ZoneInfo("Europe/Berlin")) == ("01-01 23:30", "01-02 00:30")


async def test_a_message_that_nobody_sends_is_not_said_to_need_nothing() -> None:
    sender: Graph[Silent] = Graph("sender", Silent)

    @sender.node(start=True)
    def send(state: Silent, ctx: Context) -> None:
        ctx.send("pigeon", {"to": "ada"})

    async with Runtime("memory:", skills=[sender]) as rt, served(rt, tokens=False) as http:
        await rt.invoke(sender, {})
        page = (await http.get("/effects")).text
        assert "start a process that sends pigeon" in page


async def test_tokens_of_a_file_hold_beside_the_store_s(tmp_path: Path) -> None:
    """``serve --token-file``: a line that is gone is revoked; one that cannot be read is refused when the server starts."""
    file = tmp_path / "tokens"
    file.write_text("# operators\n" + "a" * 24 + " scopes=view tenant=default actor=ada\n" + "b" * 24 + "\n")
    async with Runtime("memory:", skills=[g := graph()]) as rt:
        run = await rt.invoke(g, {"name": "Ada"})
        async with served(rt, tokens=FileTokens(file, lambda: Tokens(rt.shelf("holdfast.access")))) as http:
            path = f"/v1/runs/{run.run_id}"
            assert (await http.get(path, headers=bearer("a" * 24))).status_code == 200
            assert (await http.post(f"{path}/approve", json={}, headers=bearer("a" * 24))).status_code == 403
            assert (await http.post(f"{path}/approve", json={}, headers=bearer("b" * 24))).status_code == 202
            assert (await http.get(path, headers=bearer(await token(rt, "view")))).status_code == 200
            assert (await http.get(path, headers=bearer("c" * 24))).status_code == 401
            file.write_text("b" * 24 + " scopes=view\n")
            assert (await http.get(path, headers=bearer("a" * 24))).status_code == 401
            assert (await http.get(path, headers=bearer("b" * 24))).status_code == 200
        for wrong in ("short", "d" * 24 + " scopes=everything", "d" * 24 + " rights=all", "d" * 24 + " scopes="):
            file.write_text(wrong)
            with pytest.raises(InvalidInput):
                FileTokens(file, lambda: Tokens(rt.shelf("holdfast.access")))
        with pytest.raises(InvalidInput):
            FileTokens(tmp_path / "none", lambda: Tokens(rt.shelf("holdfast.access")))


# -- very long runs -----------------------------------------------------------------------------------


class Count(State):
    n: int = 0
    until: int = 0


def line() -> Graph[Count]:
    g = Graph("line", Count)

    @g.node(start=True)
    async def step(state: Count, ctx: Context) -> dict[str, Any]:
        return {"n": state.n + 1}

    g.branch("step", lambda s: "step" if s.n < s.until else END)
    return g


async def test_a_long_run_opens_as_fast_as_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """§17.4: what a look reads does not grow with the run: counted in rows of its log, not timed."""
    read: list[int] = []
    async with Runtime("memory:", skills=[g := line()]) as rt, served(rt, tokens=False) as http:
        runs = [await rt.invoke(g, {"until": n}, step_limit=n + 5) for n in (10, 1_000, 2_000)]
        rows = rt.store.rows

        async def counted(run_id: str, after: int = 0, limit: int | None = None) -> Any:
            found = await rows(run_id, after, limit)
            read.append(len(found))
            return found

        monkeypatch.setattr(rt.store, "rows", counted)
        seen = []
        for run in runs:
            await http.get(f"/runs/{run.run_id}")  # what is wrong with a long run is looked for once a minute
            read.clear()
            page = await http.get(f"/runs/{run.run_id}")
            assert page.status_code == 200 and f"of {run.version}, newest first" in page.text
            record = (await http.get(f"/v1/runs/{run.run_id}")).json()
            assert (record["condition"], record["values"]["n"], record["version"]) == ("done", run.values["n"], run.version)
            seen.append(max(read))
        assert seen[2] <= TAIL and len(page.text) < 400_000
        short, long = [(await rt.look.glance(r.run_id)).record for r in (runs[0], runs[2])]
        assert set(short.__struct_fields__) == set(long.__struct_fields__)
        whole = (await rt.look.snapshot(runs[2].run_id)).record
        assert whole == long, "the record of a long run is the same, however it was read"

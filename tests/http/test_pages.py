"""The operator's pages: they read and decide without JavaScript (§17)."""

from __future__ import annotations

import datetime as dt
import html
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest

from holdfast import Context, Graph, Runtime, flow
from holdfast.access import SHELF, Tokens
from holdfast.ui.words import hour
from tests.http.scenes import long
from tests.http.support import Notes, bearer, graph, served, token

PAGES = ["/", "/runs", "/waits", "/effects", "/schedules", "/workers", "/health"]
HOSTILE = [
    "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "&lt;b&gt;", "\u202egnp.exe", "\x1b[31mred\x1b[0m", "{{ 7*7 }}", "</title></style></textarea>", "javascript:alert(1)", "x" * 5000,
]


def field(page: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', page)
    assert found is not None, page
    return html.unescape(found[1])


async def test_every_page_reads_with_no_data_and_with_some() -> None:
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        for path in PAGES:
            page = await http.get(path)
            assert page.status_code == 200 and "<h1>" in page.text, page.text[:500]
        for name in ("Ada", "fail", "wait", "quick"):
            await rt.invoke(g, {"name": name}, detach=True)
        await rt.schedule(g, {}, every=3600)
        for path in PAGES:
            assert (await http.get(path)).status_code == 200
        for run in await rt.runs():
            page = await http.get(f"/runs/{run.run_id}")
            assert page.status_code == 200 and run.condition.value in page.text and run.status.value in page.text
            assert (await http.get(f"/runs/{run.run_id}/fork")).status_code in (200, 404)
        gone = await http.get(f"/runs/{'0' * 26}")
        assert gone.status_code == 404 and "run_not_found" in gone.text


async def test_a_person_answers_from_the_inbox() -> None:
    """Read, approve, and see who decided; without JavaScript."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        page = (await http.get("/waits")).text
        assert "Go on?" in page and "hello Ada" in page
        form = {"csrf": field(page, "csrf"), "wait_id": field(page, "wait_id"), "action": "approve", "note": "fine"}
        answered = await http.post(f"/runs/{run.run_id}/answer", data=form)
        assert (answered.status_code, answered.headers["location"]) == (303, f"/runs/{run.run_id}")
        assert (await rt.get(run.run_id)).record.decisions[0].note == "fine"
        again = await http.post(f"/runs/{run.run_id}/answer", data={**form, "action": "deny"})
        assert again.status_code == 409 and "operator decided approve" in again.text, "the second is told who decided what"
        assert (await http.post(f"/runs/{run.run_id}/resume", data={"csrf": form["csrf"]})).status_code == 303


async def test_forks_cancels_and_selections() -> None:
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        page = (await http.get(f"/runs/{run.run_id}/fork")).text
        form = {"csrf": field(page, "csrf"), "from": field(page, "from"), "set.name": '"Grace"', "reason": "another name"}
        looked = await http.post(f"/runs/{run.run_id}/fork", data=form)
        assert looked.status_code == 200 and "What will be different" in looked.text and len(await rt.runs()) == 1, "it shows first"
        made = await http.post(f"/runs/{run.run_id}/fork", data={**form, "sure": "1"})
        fork = await rt.get(made.headers["location"].rpartition("/")[2])
        assert fork.source_run_id == run.run_id and fork.values["name"] == "Grace"
        ask = await http.post("/runs/selection", data={"csrf": form["csrf"], "run": run.run_id, "verb": "cancel"})
        assert ask.status_code == 200 and "is canceled" in ask.text and (await rt.get(run.run_id)).status == "waiting_for_human"
        sure = await http.post("/runs/selection", data={"csrf": form["csrf"], "run": run.run_id, "verb": "cancel", "sure": "1"})
        assert sure.status_code == 200 and (await rt.get(run.run_id)).status == "canceled"


async def test_after_an_undo_the_pages_offer_no_resume_that_is_refused() -> None:
    """§6.11: nor a fork that goes on with what was undone, where nobody chooses a checkpoint."""
    g = Graph("legs", Notes)

    async def book(what: str) -> str:
        return f"receipt {what}"

    async def unbook(receipt: str) -> None: ...

    @g.node(start=True)
    async def hotel(state: Notes, ctx: Context) -> dict[str, Any]:
        return {"name": await ctx.effect(book, state.name, undo=unbook)}

    @g.node(after="hotel")
    async def ask(state: Notes, ctx: Context) -> None:
        await ctx.approve("Go?")

    async with Runtime("memory:", skills=[g]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        assert 'name="from" value="' + run.record.checkpoint_head in (await http.get(f"/runs/{run.run_id}/fork")).text
        run = await rt.cancel(run.run_id)
        page = (await http.get(f"/runs/{run.run_id}")).text
        assert "so a resume is refused" in page and f"/runs/{run.run_id}/resume" not in page and f"/runs/{run.run_id}/fork" in page
        fork = (await http.get(f"/runs/{run.run_id}/fork")).text
        asked = await http.post("/runs/selection", data={"csrf": field(fork, "csrf"), "run": run.run_id, "verb": "resume"})
        assert "nothing: what its completed steps did was undone; fork it" in asked.text
        made = await http.post(f"/runs/{run.run_id}/fork", data={"csrf": field(fork, "csrf"), "from": field(fork, "from"), "sure": "1"})
        again = await rt.resume(made.headers["location"].rpartition("/")[2])
        assert [e.status for e in await rt.effects(again.run_id)] == ["recorded"], "it is carried out again"


async def test_a_failed_run_whose_thread_is_busy_names_the_run_in_the_way() -> None:
    """§4.16: a resume is refused until that run has ended; the page says so, and links to it."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        failed = await rt.invoke(g, {"name": "fail"}, thread_id="t", detach=True)
        free = (await http.get(f"/runs/{failed.run_id}")).text
        holder = await rt.invoke(g, {"name": "Ada"}, thread_id="t", detach=True)
        page = (await http.get(f"/runs/{failed.run_id}")).text
        said = f"The run {holder.run_id} is before it in its lane"
        assert said in page and f'href="/runs/{holder.run_id}"' in page and said not in free
        await rt.cancel(holder.run_id)
        assert said not in (await http.get(f"/runs/{failed.run_id}")).text


async def test_the_overview_says_what_does_not_continue_automatically() -> None:
    """A message that nobody sends continues by itself as little as a run that nobody takes."""

    @flow("mails")
    async def mails(ctx: Context) -> None:
        ctx.send("mail", {})

    async with Runtime("memory:", skills=[mails]) as rt, served(rt, tokens=False) as http:
        await rt.run(mails)
        await rt.run(mails)
        page = (await http.get("/")).text
        assert "2 messages have no transport that sends them; everything else continues automatically." in page.replace("Two messages", "2 messages"), page
    async with Runtime("memory:", skills=[mails], transports={"mail": Sink()}) as rt, served(rt, tokens=False) as http:
        await rt.run(mails)
        assert "Everything continues automatically." in (await http.get("/")).text


class Sink:
    async def send(self, payload: Any, key: str) -> None: ...


def test_events_of_several_days_show_the_day() -> None:
    """The time of day alone names no moment of a run that has waited for days."""
    at = "2026-01-02T03:04:05.678000Z"
    assert hour(at, dt.UTC, "2026-01-02T01:00:00Z", at) == "03:04:05.678"
    assert hour(at, dt.UTC, "2026-01-01T01:00:00Z", at) == "01-02 03:04:05.678"
    assert hour(at, ZoneInfo("Asia/Tokyo"), "2026-01-01T15:30:00Z", at) == "12:04:05.678", "one day there"


async def test_what_a_run_contains_is_text() -> None:
    """§17.8: a hostile corpus in every field of a run, on every page."""
    for text in HOSTILE:
        g = Graph("evil", Notes)

        @g.node(start=True)
        async def ask(state: Notes, ctx: Context, text: str = text) -> dict[str, Any]:
            ctx.record(text[:400], text[:400], text)
            await ctx.approve(text, show={text[:100]: text}, who=[text])
            return {}

        async with Runtime("memory:", skills=[g]) as rt, served(rt, tokens=False) as http:
            run = await rt.invoke(g, {"name": text, "said": [text]}, thread_id=text[:400], tags=[text[:1000]])
            for path in [*PAGES, f"/runs/{run.run_id}", f"/runs/{run.run_id}/fork", "/runs?" + str(httpx.QueryParams({"q": text[:300]}))]:
                page = (await http.get(path)).text
                assert "\x1b" not in page and "\u202e" not in page and "{{ 7" not in page.replace("{{ 7*7 }}", "")
                tags = Tags(page)
                assert {t for t, _ in tags.found} <= KNOWN, {t for t, _ in tags.found} - KNOWN
                for tag, attributes in tags.found:
                    assert not any(n.startswith("on") or n == "style" for n in attributes), (tag, attributes)
                    assert tag != "script" or attributes in ({"src": "/static/htmx.min.js", "defer": None}, {"src": "/static/live.js", "defer": None})
                    assert attributes.get("href", "/").startswith(("/", "#", "?"))


KNOWN = {"html", "head", "meta", "title", "link", "script", "body", "a", "svg", "symbol", "rect", "path", "circle", "pattern", "line", "header", "div", "nav", "ul", "li", "form", "input", "button", "main", "h1", "h2", "h3", "p", "code", "section", "table", "caption", "thead", "tbody", "tr", "th", "td", "time", "footer", "span", "use", "b", "dl", "dt", "dd", "pre", "details", "summary", "label", "textarea", "select", "option", "search", "text", "ol", "br", "ins", "del", "article"}


class Tags(HTMLParser):
    """Every tag of a page with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, Any]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


async def test_a_session_is_made_of_a_token_and_ends_with_it() -> None:
    """§16.2, §17.8: cookie flags, one answer for every wrong token, an end with the token."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        secret = await token(rt, "view", "decide")
        first = await http.get("/runs")
        assert (first.status_code, first.headers["location"]) == (303, "/login?next=/runs")
        wrong = await http.post("/login", data={"token": "hf_x_y"})
        assert wrong.status_code == 401 and "set-cookie" not in wrong.headers
        inside = await http.post("/login", data={"token": secret, "next": "//evil.example"})
        cookie = inside.headers["set-cookie"]
        assert (inside.status_code, inside.headers["location"]) == (303, "/") and secret not in cookie
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Max-Age=43200" in cookie
        page = await http.get("/waits")
        assert page.status_code == 200
        for name, wanted in (("content-security-policy", "frame-ancestors 'none'"), ("x-frame-options", "DENY"), ("referrer-policy", "no-referrer")):
            assert wanted in page.headers[name]
        assert "unsafe-inline" not in page.headers["content-security-policy"]
        form = {"wait_id": field(page.text, "wait_id"), "action": "approve"}
        forged = await http.post(f"/runs/{run.run_id}/answer", data=form)
        assert forged.status_code == 403 and "forbidden" in forged.text
        elsewhere = await http.post(f"/runs/{run.run_id}/answer", data={**form, "csrf": field(page.text, "csrf")}, headers={"Origin": "http://evil.example"})
        assert elsewhere.status_code == 403
        assert (await http.post(f"/runs/{run.run_id}/cancel", data={"csrf": field(page.text, "csrf")})).status_code == 403, "the token lacks cancel"
        fine = await http.post(f"/runs/{run.run_id}/answer", data={**form, "csrf": field(page.text, "csrf")})
        assert fine.status_code == 303 and (await rt.get(run.run_id)).record.decisions[0].actor == "ada"
        assert (await http.get("/", headers=bearer("nothing"))).status_code == 303
        from_store = await tokens_of(rt)
        await from_store[0][0].revoke(from_store[0][1], now=rt.store.now())
        assert (await http.get("/runs")).status_code == 303, "revoked with its token"


async def test_what_a_page_links_to_can_be_read_under_its_session() -> None:
    """§17.4: the live output and the raw events of a run's page are the API's, and a browser sends it the session alone; with that it reads, and never acts."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt) as http:
        run, other = await rt.submit(g, {"name": "Ada"}), await rt.submit(g, {"name": "Bob"}, tenant_id="acme")
        await http.post("/login", data={"token": await token(rt, "view", "decide", "cancel")})
        page = Tags((await http.get(f"/runs/{run.run_id}")).text)
        asked = {value for _, given in page.found for value in given.values() if value and value.startswith("/v1/")}
        assert {path.partition("?")[0].rpartition("/")[2] for path in asked} == {"events", "stream"}
        for path in asked:
            assert (await http.head(path)).status_code == 200, path
            assert (await http.head(path.replace(run.run_id, other.run_id))).status_code == 404, "a run of another tenant"
            assert (await http.head(path, headers=bearer("nothing"))).status_code == 401, "a token that is given counts alone"
        for path, body in ((f"/v1/runs/{run.run_id}/cancel", {}), (f"/v1/runs/{run.run_id}/signal", {"name": "go"})):
            assert (await http.post(path, json=body)).status_code == 401, "a session does not act on the API"
        known, number = (await tokens_of(rt))[0]
        await known.revoke(number, now=rt.store.now())
        assert {(await http.head(path)).status_code for path in asked} == {401}, "revoked with its token"
        await http.post("/login", data={"token": await token(rt, "decide")})
        assert {(await http.head(path)).status_code for path in asked} == {403}, "it lacks the scope view"


async def tokens_of(rt: Runtime) -> list[Any]:
    known = Tokens(rt.shelf(SHELF))
    return [(known, a.id) for a in await known.all()]


async def test_a_link_shows_and_a_post_decides() -> None:
    """§14.4: a mail scanner that follows the link changes nothing."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        secret = await rt.issue_token(run.waits[0].wait_id, "grace")
        for _ in range(3):
            page = await http.get(f"/w/{secret}")
            assert page.status_code == 200 and "Go on?" in page.text
        await http.head(f"/w/{secret}")
        assert (await rt.get(run.run_id)).status == "waiting_for_human"
        done = await http.post(f"/w/{secret}", data={"action": "approve"})
        assert done.status_code == 200 and "is recorded" in done.text
        assert (await rt.get(run.run_id)).record.decisions[0].actor == "grace"
        used = await http.get(f"/w/{secret}")
        assert used.status_code == 403 and "used" in used.text


async def test_who_has_no_account_is_not_told_where_the_store_is(tmp_path: Path) -> None:
    """§14.1: the address of a store names a machine, a database and a user."""
    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[g := graph()]) as rt, served(rt) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        link = await rt.issue_token(run.waits[0].wait_id, "grace")
        for path in ("/login", "/nowhere", f"/w/{link}", "/w/none", "/v1/runs"):
            page = await http.get(path, headers={"Accept": "text/html"})
            assert str(tmp_path) not in page.text, path
        wrong = [await http.post("/login", data={"token": "hf_x_y"}), await http.post("/zone", data={"zone": "Mars"}), await http.post(f"/w/{link}", data={"action": "continue"})]
        assert [page.status_code for page in wrong] == [401, 422, 409] and all(str(tmp_path) not in page.text for page in wrong)


async def test_a_refused_form_leads_back_to_itself() -> None:
    """Whoever has no account knows no other way to the question, which stays open."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        link = await rt.issue_token(run.waits[0].wait_id, "grace")

        async def back(path: str, **form: str) -> list[str]:
            page = await http.post(path, data=form)
            assert page.status_code >= 400
            return [href for href in re.findall(r'<a href="([^"]+)"', page.text.split("<main")[1]) if href != "/"]

        assert await back(f"/w/{link}", action="continue") == [f"/w/{link}"]
        assert "Go on?" in (await http.get(f"/w/{link}")).text
        assert await back("/w/none", action="approve") == [], "nothing is to be read there"
        await http.post("/login", data={"token": await token(rt, "admin", tenant="*")})
        csrf = field((await http.get("/runs")).text, "csrf")
        assert await back(f"/runs/{run.run_id}/answer", csrf=csrf, action="continue") == [f"/runs/{run.run_id}"]
        assert await back("/runs/selection", csrf=csrf, verb="x") == ["/runs"]
        assert await back("/queues/default", csrf=csrf) == ["/workers"]


async def test_a_browser_is_told_by_a_page_that_there_is_none() -> None:
    async with Runtime("memory:") as rt, served(rt) as http:
        for signed_in in (False, True):
            for path, media in (("/run", "text/html"), ("/runs/x/y/z", "text/html"), ("/v1/run", "application/problem+json")):
                shown = await http.get(path, headers={"Accept": "text/html,*/*;q=0.8"})
                assert shown.status_code == 404 and shown.headers["content-type"].startswith(media), path
                assert (media != "text/html") or ("<h1>there is no such page</h1>" in shown.text and ("Log out" in shown.text) == signed_in)
                assert (await http.get(path)).headers["content-type"] == "application/problem+json", "a program"
            await http.post("/login", data={"token": await token(rt, "view")})
    async with Runtime("memory:") as rt, served(rt, pages=False) as http:
        assert (await http.get("/run", headers={"Accept": "text/html"})).headers["content-type"] == "application/problem+json"


async def test_what_is_cut_or_scrolls_can_be_read_by_all() -> None:
    """§17.9: the name of a node in the graph is cut where it does not fit, and what is read out is whole; a long value is reached by keyboard."""
    async with Runtime("memory:") as rt, served(rt, tokens=False) as http:
        await long(rt)
        for run in await rt.runs():
            page = (await http.get(f"/runs/{run.run_id}")).text
            graph_of = page.split('<svg class="graph"')[1].split("</section>")[0]
            assert re.search(r'<a href="#step-read_part_7_of_the_archive"[^>]*><title>read_part_7_of_the_archive, [^<]+</title>', graph_of) and "aria-label=" not in graph_of
            assert all('aria-hidden="true"' in text for text in re.findall("<text[^>]*>", graph_of))
            shown = re.findall(r"<pre([^>]*)>([^<]*read_part_23[^<]*|https://example.org/[^<]*|The archive [^<]*)</pre>", page.split('id="events"')[0])
            assert len(shown) == 3 and all('tabindex="0"' in given for given, _ in shown), [given for given, _ in shown]


async def test_only_a_post_acts() -> None:
    """§14.4, §17.5: HEAD asks what GET asks, whatever comes with it; on every page."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        secret, link = await token(rt, "admin"), await rt.issue_token(run.waits[0].wait_id, "grace")
        before = (await rt.get(run.run_id)).version
        for path, form in ((f"/w/{link}", {"action": "approve"}), (f"/w/{link}", {"action": "nothing"}), ("/login", {"token": secret}), ("/login", {"token": "none"})):
            for sent in ({"data": form}, {}):
                shown, looked = await http.request("HEAD", path, **sent), await http.get(path)
                assert (shown.status_code, looked.status_code, shown.content) == (200, 200, b"") and "set-cookie" not in shown.headers, path
        assert (await rt.get(run.run_id)).version == before
        await http.post("/login", data={"token": secret})
        for path in [*PAGES, f"/runs/{run.run_id}", f"/runs/{run.run_id}/fork"]:
            assert (await http.head(path)).status_code == 200, path
        for path in (f"/runs/{run.run_id}/answer", f"/runs/{run.run_id}/cancel", "/logout", "/zone"):
            assert (await http.request("HEAD", path, data={"action": "approve"})).status_code == 405, path
        assert (await rt.get(run.run_id)).version == before


async def test_what_a_form_cannot_be_is_refused_without_a_session_too() -> None:
    async with Runtime("memory:") as rt, served(rt) as http:
        for path in ("/login", "/zone", "/logout"):
            for body in (b"token=%FF", b"token=\xff", b"&a=" * 3000, b"x" * (2 * 2**20 + 1)):
                assert (await http.post(path, content=body)).status_code in ((422, 413) if path != "/logout" else (303,)), (path, body[:20])
        for place in ("/%09/[", "/%0a/evil.example", "//[", "/\\evil.example", "https://evil.example"):
            page = await http.get(f"/login?next={place}")
            assert page.status_code == 200 and field(page.text, "next") == "/", place


@pytest.mark.parametrize("name", ["style.css", "htmx.min.js", "htmx.LICENSE"])
async def test_what_a_page_loads_is_its_own(name: str) -> None:
    async with Runtime("memory:") as rt, served(rt) as http:
        assert (await http.get(f"/static/{name}")).status_code == 200
        assert (await http.get("/static/..%2fapp.py")).status_code == 404


async def test_the_events_of_a_long_run_are_read_page_by_page() -> None:
    """§17.4: the newest 200 come first, and links lead to all others, with a filter or without one, and without a script."""
    made = Graph("long", Notes)

    @made.node(start=True)
    async def act(state: Notes, ctx: Context) -> None:
        for n in range(460):
            await ctx.step(abs, n)

    async with Runtime("memory:", skills=[made]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(made, {})
        total, seen, at = run.version, [], ""
        assert total > 450
        while True:
            page = (await http.get(f"/runs/{run.run_id}{at}")).text
            part = page[page.index('id="events"') :]
            numbers = [int(n) for n in re.findall(r'<tr><td class="num">(\d+)</td>', part[: part.index("</table>")])]
            assert f"{len(numbers)} of {total}, newest first: from {numbers[-1]} to {numbers[0]}." in part
            seen += numbers
            later = re.search(r'href="([^"]+)">(\d+) later events</a>', part)
            assert (later is None) == (numbers[0] == total)
            if (link := re.search(r'href="([^"]+)">(\d+) earlier events</a>', part)) is None:
                break
            at, count = html.unescape(link[1]), int(link[2])
            assert count == min(200, numbers[-1] - 1)
        assert seen == list(range(total, 0, -1))
        assert later is not None
        newer = (await http.get(f"/runs/{run.run_id}{html.unescape(later[1])}")).text
        assert f"from {seen[0] % 200 + 1} to" in newer or "later events" in newer
        only = (await http.get(f"/runs/{run.run_id}?event=run.submitted&before=150")).text
        assert "1 of" in only and "of type run.submitted: from 1 to 149" in only and ">run.submitted <" in only and "event=run.submitted" in only
        assert "No such events here" in (await http.get(f"/runs/{run.run_id}?event=run.submitted&before=400")).text
        for wrong in ("x", "-1", "1" * 30, "²"):
            assert (await http.get(f"/runs/{run.run_id}", params={"before": wrong})).status_code == 422
        assert (await http.get(f"/runs/{run.run_id}?before=99999")).text.count("later events") == 0
        assert (await http.get(f"/runs/{run.run_id}?before=0")).status_code == 200

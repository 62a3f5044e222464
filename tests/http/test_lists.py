"""Every list goes by pages (§16.6): all of it, each row once, no page after the last, and no cursor but those that were given out."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from holdfast import Context, Graph, Runtime, State
from holdfast.access import SHELF, Tokens
from holdfast.api.table import ROUTES
from holdfast.core.limits import Limit
from holdfast.ports import RunFilter
from tests.http.support import bearer, graph, served, token

COUNT = 4


def busy(name: str = "busy") -> Graph[State]:
    """Each run of it has rows of every kind of list."""
    made = Graph(name, State, version="1")

    @made.node(start=True)
    async def send(state: State, ctx: Context) -> None:
        for n in range(COUNT):
            ctx.record("greetings", f"k{n}", {"n": n})
            ctx.send("nowhere", {"n": n}, key=f"{ctx.run_id}.{n}")
            await ctx.effect(note, n)

    for n in range(COUNT):

        @made.node(after="send", name=f"ask{n}")
        async def ask(state: State, ctx: Context, n: int = n) -> None:
            await ctx.approve(f"Go on with {n}?")

    return made


async def note(n: int) -> int:
    return n


LISTS = [r for r in ROUTES if r.method == "GET" and r.answers is not None and "next_cursor" in getattr(r.answers, "__struct_fields__", ())]


def rows_of(page: dict[str, Any]) -> list[Any]:
    (name,) = set(page) - {"next_cursor"}
    found: list[Any] = page[name]
    return found


async def fill(rt: Runtime) -> str:
    rt.add(g := busy())
    runs = [await rt.invoke(g, {}, thread_id="t" if n == 0 else f"t{n}") for n in range(COUNT)]
    for n in range(COUNT):
        rt.add(busy(f"other{n}"))
        await rt.schedule(g, {}, every=3600, id=f"s{n}")
        await rt.pause_queue(f"q{n}", actor="ada")
        await rt.set_limit(f"model{n}", Limit(in_flight=1), actor="ada")
    return runs[0].run_id


async def walk(http: httpx.AsyncClient, path: str, limit: int, name: str = "cursor") -> list[Any]:
    found: list[Any] = []
    more: dict[str, Any] = {}
    while True:
        page = (await http.get(path, params={"limit": limit, **more})).json()
        rows = rows_of(page)
        assert len(rows) <= limit and (rows or not more), "no page is empty but the only one"
        found += rows
        if page["next_cursor"] is None:
            return found
        assert len(rows) == limit
        more = {name: page["next_cursor"]}


@pytest.mark.parametrize("route", LISTS, ids=lambda r: r.path)
async def test_the_pages_of_a_list_are_the_list(route: Any) -> None:
    async with Runtime("memory:") as rt, served(rt, tokens=False) as http:
        path = route.path.format(run_id=await fill(rt), thread_id="t")
        whole = rows_of((await http.get(path, params={"limit": 500})).json())
        least = {"/v1/workers": 1, "/v1/threads/{thread_id}/history": 2, "/v1/runs/{run_id}/checkpoints": 2, "/v1/waits": COUNT * COUNT}.get(route.path, COUNT)
        assert len(whole) >= least, whole
        in_runs = COUNT if route.path == "/v1/waits" else len(whole)
        for limit in {1, 2, in_runs - 1, in_runs, in_runs + 1} - {0}:
            if route.path == "/v1/waits":  # its pages are counted in runs
                found: list[Any] = []
                more: dict[str, str] = {}
                pages = 0
                while more or not pages:
                    page = (await http.get(path, params={"limit": limit, **more})).json()
                    pages, found, more = pages + 1, found + page["waits"], {} if page["next_cursor"] is None else {"cursor": page["next_cursor"]}
                    if not more:
                        break
                assert found == whole and pages == -(-COUNT // limit)
                continue
            assert [steady(r) for r in await walk(http, path, limit)] == [steady(r) for r in whole], limit


def steady(row: Any) -> Any:
    """A row without what the time changes."""
    return {n: v for n, v in row.items() if n not in ("expires_at", "lease")}


@pytest.mark.parametrize("path", ["/v1/runs/{}/events", "/v1/threads/t/history"])
async def test_what_takes_a_place_takes_a_cursor_too(path: str) -> None:
    async with Runtime("memory:") as rt, served(rt, tokens=False) as http:
        path = path.format(await fill(rt))
        assert await walk(http, path, 2, "after") == await walk(http, path, 2) == rows_of((await http.get(path)).json())


@pytest.mark.parametrize("route", LISTS, ids=lambda r: r.path)
async def test_a_cursor_that_was_never_given_is_refused(route: Any) -> None:
    """Of any list; one that is a run of another tenant's in the words of one that is none."""
    async with Runtime("memory:") as rt, served(rt) as http:
        path = route.path.format(run_id=await fill(rt), thread_id="t")
        theirs = await rt.invoke(rt.skills[0], {}, tenant_id="theirs")
        foreign = (await rt.intents(theirs.run_id))[0].intent_id if "intents" in path else theirs.run_id
        mine = bearer(await token(rt, "view"))
        for forged in ("zzz", "-1", "0" * 26, "7" + "z" * 25, foreign, "a/b", "x" * 600):
            refused = await http.get(path, params={"cursor": forged}, headers=mine)
            assert (refused.status_code, refused.json()["field"]) == (422, "cursor") and refused.json()["code"] == "invalid_input", (forged, refused.text)


@pytest.mark.parametrize("page", ["/runs", "/waits"])
async def test_a_page_refuses_such_a_cursor_and_leads_nowhere_from_the_last(page: str) -> None:
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        for _ in range(51):
            run = await rt.invoke(g, {"name": "Ada"}, detach=True)
        assert (await http.get(page, params={"cursor": "zzz"})).status_code == 422
        assert "cursor=" in (await http.get(page)).text
        await rt.cancel(run.run_id, actor="ada")
        await rt.prune(older_than=0)
        assert len(await rt.runs(limit=500)) == 50 and "cursor=" not in (await http.get(page)).text, "exactly a page"


async def test_a_cursor_outlives_the_run_that_it_names() -> None:
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt) as http:
        runs = [await rt.invoke(g, {"name": "quick"}) for _ in range(4)]
        all_ = bearer((await Tokens(rt.shelf(SHELF)).create(["view"], now=rt.store.now(), tenant_id="*")).token)
        page = (await http.get("/v1/runs?limit=2", headers=all_)).json()
        assert page["next_cursor"] == runs[1].run_id or page["next_cursor"] == runs[2].run_id
        await rt.prune(older_than=0)
        assert (await http.get("/v1/runs", params={"limit": 2, "cursor": page["next_cursor"]}, headers=all_)).json() == {"runs": [], "next_cursor": None}


async def test_a_cursor_outlives_the_row_that_it_names() -> None:
    """§16.6: whoever goes through a list and settles what is on each page finds the rest. The next page was refused (422), since the row was gone."""
    async with Runtime("memory:") as rt, served(rt, tokens=False) as http:
        run_id = await fill(rt)
        runs = [run.run_id for run in await rt.runs(limit=COUNT)]

        async def go(rows: list[Any], path: str) -> None:
            for row in rows:
                match path:
                    case "/v1/lanes":
                        await rt.cancel(row["holder"], actor="ada")
                    case "/v1/queues":
                        await rt.unpause_queue(row["queue"], actor="ada")
                    case "/v1/limits":
                        await rt.unset_limit(row["name"], actor="ada")
                    case "/v1/schedules":
                        await rt.unschedule(row["schedule_id"])
                    case _:
                        assert (await http.post(f"/v1/runs/{run_id}/approve", json={"wait_id": row["wait_id"]})).status_code == 202

        for path in (f"/v1/runs/{run_id}/waits", "/v1/queues", "/v1/limits", "/v1/schedules", "/v1/lanes"):
            whole = rows_of((await http.get(path)).json())
            first = (await http.get(path, params={"limit": 2})).json()
            await go(rows_of(first), path)
            second = await http.get(path, params={"limit": 500, "cursor": first["next_cursor"]})
            assert second.status_code == 200, (path, second.text)
            assert len(rows_of(first)) + len(rows_of(second.json())) == len(whole), path
        assert len(runs) == COUNT


async def test_a_state_that_is_none_is_refused() -> None:
    async with Runtime("memory:") as rt, served(rt, tokens=False) as http:
        await fill(rt)
        for state in ("nope", "QUEUED", "queue", " queued"):
            refused = await http.get("/v1/intents", params={"state": state})
            assert (refused.status_code, refused.json()["field"]) == (422, "state") and "queued" in refused.json()["hint"], refused.text
        for state in ("queued", "sending", "sent", "unknown", "dead", "abandoned"):
            assert (await http.get("/v1/intents", params={"state": state})).status_code == 200


@pytest.mark.parametrize("given", ["null", "NULL", "Null"])
async def test_no_value_is_a_value_that_was_left_out(given: str) -> None:
    """Clients write the cursor of the last page into the next request: the list would begin again, for ever."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        for route in (r for r in ROUTES if r.method == "GET" and r.path != "/v1/stream"):
            path = route.path.replace("{run_id}", run.run_id).replace("{thread_id}", run.thread_id).replace("{checkpoint_id}", "head")
            for name in {"cursor", "after", "limit", "wait"}.intersection(route.query.__struct_fields__):
                refused = await http.head(path, params={name: given}) if route.path.endswith("/stream") else await http.get(path, params={name: given})
                assert refused.status_code in (404, 422), (path, name, refused.text[:200])


async def test_ledger_rows_tell_one_tenant_nothing_of_others() -> None:
    """§14.2: rows are numbered over all tenants, and who counted the gaps learned how much others do."""
    made = graph()
    async with Runtime("memory:", skills=[made]) as rt, served(rt) as http:
        mine, every = bearer(await token(rt, tenant="mine")), bearer(await token(rt, tenant="*"))
        runs = []
        for tenant in ("mine", "theirs", "mine", "theirs", "theirs", "mine"):
            run = await rt.invoke(made, {"name": tenant}, tenant_id=tenant)
            runs += [run.run_id] if tenant == "mine" else []
        for path, wanted in (("/v1/ledger", runs), (f"/v1/runs/{runs[2]}/ledger", runs[2:])):
            rows = await walk_under(http, path, mine)
            assert [row["run_id"] for row in rows] == wanted and {row["number"] for row in rows} == {None}
        page = (await http.get("/v1/ledger?limit=1", headers=mine)).json()
        assert page["next_cursor"] == f"1/{runs[0]}"
        (there,) = [run.run_id for run, _ in await rt.store.runs(RunFilter(tenant_id="theirs", limit=1))]
        for cursor in ("1", "5", "0/x", f"0/{runs[0]}", f"2/{runs[0]}", f"1/{there}", "1/", f"-1/{runs[0]}"):
            said = await http.get("/v1/ledger", params={"cursor": cursor}, headers=mine)
            assert (said.status_code, said.json()["field"]) == (422, "cursor"), (cursor, said.text)
        assert [row["number"] for row in await walk_under(http, "/v1/ledger", every)] == sorted(r.number for r in await rt.store.ledger())
        assert (await http.get("/v1/ledger", params={"cursor": f"1/{runs[0]}"}, headers=every)).status_code == 422


async def walk_under(http: httpx.AsyncClient, path: str, headers: dict[str, str]) -> list[Any]:
    """All rows of a list, one for each page, under a token."""
    found: list[Any] = []
    cursor: dict[str, Any] = {}
    while True:
        page = (await http.get(path, params={"limit": 1, **cursor}, headers=headers)).json()
        found += rows_of(page)
        if page["next_cursor"] is None:
            return found
        cursor = {"cursor": page["next_cursor"]}

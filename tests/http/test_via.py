"""Whatever a person does over HTTP or on a page records the id of the access token (§16.2), for every row of the table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import httpx
import msgspec
import pytest

from holdfast import Context, Graph, PermanentError, Runtime, State
from holdfast.api.table import ROUTES
from holdfast.callers import VIA, acting
from holdfast.core import describe
from holdfast.ports import RunFilter
from tests.http.support import Notes, bearer, graph, served, token
from tests.http.test_pages import field


class Mail(State):
    to: str = "nobody"


def mailing() -> Graph[Mail]:
    made = Graph("mailing", Mail)

    @made.node(start=True)
    async def send(state: Mail, ctx: Context) -> None:
        ctx.send("mail", {"to": state.to})

    return made


def refuse(payload: Any, key: str) -> None:
    raise PermanentError("550 no such mailbox")


class World(NamedTuple):
    """An open runtime over a file."""

    rt: Runtime
    notes: Graph[Notes]
    path: Path

    async def run(self, name: str, **options: Any) -> str:
        return (await self.rt.invoke(self.notes, {"name": name}, **options)).run_id

    async def failed(self) -> str:
        return await self.run("fail")

    async def drifted(self) -> str:
        """A run whose row differs from its log."""
        run_id = await self.run("Ada")
        with apsw.Connection(str(self.path)) as db:
            db.execute("UPDATE run SET priority = 7 WHERE run_id = ?", (run_id,))
        return run_id

    async def dead(self) -> str:
        """A message that nobody takes."""
        run_id = (await self.rt.invoke("mailing", {})).run_id
        (intent,) = await self.rt.intents(run_id)
        assert intent.state == "dead"
        return str(intent.intent_id)

    async def schedule(self, *, paused: bool = False) -> str:
        made = await self.rt.schedule(self.notes, {"name": "quick"}, every=3600)
        if paused:
            await self.rt.pause_schedule(made.id)
        return str(made.id)

    async def named(self) -> str:
        """Everything that is recorded of what people did, as text."""
        found: list[Any] = []
        for run, _ in await self.rt.store.runs(RunFilter(limit=500)):
            found += await self.rt.look.events(run.run_id, 0, 500)
        found += (await self.rt.look.list_intents(None, state=None, after=None, limit=500))[0]
        found += await self.rt.look.schedules(None)
        found += await self.rt.store.rules()
        return "\n".join(msgspec.json.encode(describe.plain(each) if isinstance(each, describe.Shape) else each).decode() for each in found)


Scene = Callable[[World], Awaitable[tuple[str, dict[str, Any]]]]


def at(path: str, begin: Callable[[World], Awaitable[str]], **body: Any) -> tuple[str, Scene]:
    """A row of the table, what it is done to, and its body."""

    async def scene(world: World) -> tuple[str, dict[str, Any]]:
        name = await begin(world)
        for place in ("{run_id}", "{intent_id}", "{schedule_id}"):
            path_ = path.replace(place, name)
            if path_ != path:
                return path_, body
        return path.replace("{thread_id}", "talk"), body

    return path, scene


R = "/v1/runs/{run_id}"
SCENES: dict[str, Scene] = dict(
    (
        at("/v1/runs", lambda w: asyncio.sleep(0, ""), skill_id="notes", input={"name": "Ada"}),
        at(f"{R}/resume", World.failed, acknowledge="step_failed"),
        at(f"{R}/approve", lambda w: w.run("Ada")),
        at(f"{R}/deny", lambda w: w.run("Ada"), reason="no"),
        at(f"{R}/decide", lambda w: w.run("Ada"), action="approve"),
        at(f"{R}/signal", lambda w: w.run("wait"), name="go"),
        at(f"{R}/cancel", lambda w: w.run("Ada")),
        at(f"{R}/replay", lambda w: w.run("quick")),
        at(f"{R}/fork", lambda w: w.run("quick")),
        at(f"{R}/repair", World.drifted, apply=True),
        at("/v1/threads/{thread_id}/signal", lambda w: w.run("wait", thread_id="talk"), name="go"),
        at("/v1/intents/{intent_id}/redrive", World.dead),
        at("/v1/intents/{intent_id}/settle", World.dead, **{"as": "abandoned"}),
        at("/v1/schedules/{schedule_id}/pause", World.schedule),
        at("/v1/schedules/{schedule_id}/unpause", lambda w: w.schedule(paused=True)),
        at("/v1/schedules/{schedule_id}/trigger", World.schedule),
    )
)


def test_every_row_that_acts_under_a_token_has_a_scene() -> None:
    """A new route is added here too. The answer to a link names no token, because it needs none."""
    assert SCENES.keys() == {r.path for r in ROUTES if r.method == "POST" and r.scope is not None}
    assert [r.path for r in ROUTES if r.method == "POST" and r.scope is None] == ["/v1/waits/{token}"]


@pytest.mark.parametrize("path", SCENES)
async def test_what_a_row_does_names_the_token(path: str, tmp_path: Path) -> None:
    place = tmp_path / "s.db"
    async with Runtime(f"sqlite:///{place}", skills=[notes := graph(), mailing()], transports={"mail": refuse}) as rt, served(rt) as http:
        world, secret = World(rt, notes, place), await token(rt)
        where, body = await SCENES[path](world)
        number = secret.split("_")[1]
        assert number not in await world.named()
        done = await http.post(where, json=body, headers=bearer(secret))
        assert done.status_code < 300, done.text
        assert f'"via":"{number}"' in await world.named()
        assert VIA.get() == ""


async def test_what_a_page_does_names_the_token(tmp_path: Path) -> None:
    place = tmp_path / "s.db"
    async with Runtime(f"sqlite:///{place}", skills=[notes := graph(), mailing()], transports={"mail": refuse}) as rt, served(rt) as http:
        world = World(rt, notes, place)
        for act in PAGES:
            secret = await token(rt, tenant="*")
            assert (await http.post("/login", data={"token": secret})).status_code == 303
            await act(world, http)
            assert f'"via":"{secret.split("_")[1]}"' in await world.named(), act


async def _post(http: httpx.AsyncClient, page: str, path: str, **form: str) -> None:
    csrf = field((await http.get(page)).text, "csrf")
    assert (await http.post(path, data={"csrf": csrf, **form})).status_code < 400


async def cancel(w: World, http: httpx.AsyncClient) -> None:
    run_id = await w.run("Ada")
    await _post(http, f"/runs/{run_id}", f"/runs/{run_id}/cancel")


async def resume(w: World, http: httpx.AsyncClient) -> None:
    run_id = await w.failed()
    await _post(http, f"/runs/{run_id}", f"/runs/{run_id}/resume", acknowledge="step_failed")


async def cancel_several(w: World, http: httpx.AsyncClient) -> None:
    run_id = await w.run("Ada")
    await _post(http, f"/runs/{run_id}", "/runs/selection", run=run_id, verb="cancel", sure="1")


async def replay(w: World, http: httpx.AsyncClient) -> None:
    run_id = await w.run("quick")
    await _post(http, f"/runs/{run_id}", f"/runs/{run_id}/replay")


async def pause_schedule(w: World, http: httpx.AsyncClient) -> None:
    await _post(http, "/schedules", f"/schedules/{await w.schedule()}", verb="pause")


async def pause_queue(w: World, http: httpx.AsyncClient) -> None:
    await _post(http, f"/runs/{await w.run('Ada')}", "/queues/default", verb="pause")
    assert await w.rt.unpause_queue("default", actor="ada")


PAGES = (cancel, resume, cancel_several, replay, pause_schedule, pause_queue)


async def test_what_a_run_does_is_not_done_by_whoever_resumed_it() -> None:
    """A node that cancels another run, or starts one, does so for itself."""
    made, seen = Graph("boss", Notes), []

    @made.node(start=True)
    async def act(state: Notes, ctx: Context) -> None:
        seen.append(VIA.get())
        if state.name == "first" and len(seen) == 1:
            raise ValueError("it broke")

    async with Runtime("memory:", skills=[made]) as rt:
        run = await rt.invoke(made, {"name": "first"})
        with acting("t1"):
            await rt.resume(run.run_id, acknowledge=run.stop_reason)
            assert VIA.get() == "t1"
        assert seen == ["", ""]
        assert [e.payload["via"] for e in await rt.events(run.run_id) if e.type == "run.resumed"] == ["t1"]

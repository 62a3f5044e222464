"""Each situation of docs/matrix.md, made on each store (issue «Serve», 1): a run's status and condition are the same words over Python, shell, HTTP and page,
and what the table refuses is refused over HTTP by the same code, writing nothing. ``pytest --store postgres`` puts PostgreSQL in the place of SQLite."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from holdfast import Runtime
from holdfast.authoring import Skill
from holdfast.cli.main import cli
from holdfast.core.commit import Commit
from holdfast.core.errors import HoldfastError
from holdfast.core.status import TERMINAL
from tests.core.matrix import SITUATIONS
from tests.engine.support import World
from tests.http.support import served
from tests.people.test_matrix import ON_RECORD, VERBS, said, staged

STORES = ("memory", "sqlite", "workspace")
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "decide: approve": ("decide", {"action": "approve"}),
    "decide: deny": ("decide", {"action": "deny", "note": "no"}),
    "decide: not offered": ("decide", {"action": "abandon"}),
    "signal": ("signal", {"name": "go", "payload": 1}),
    "cancel": ("cancel", {}),
    "resume": ("resume", {}),
    "resume, acknowledged": ("resume", {"acknowledge": "step_failed"}),
}


class Elsewhere(World):
    """The same world on a store of another kind, by the machine's clock. What only one process may have open is shared."""

    def __init__(self, kind: str, folder: Path) -> None:
        super().__init__()
        self.url = {"sqlite": f"sqlite:///{folder}/runs.db", "workspace": f"workspace:{folder}/runs"}.get(kind, "memory:")
        self.left: tuple[Runtime, asyncio.Future[Any]] | None = None
        self.kept: Any = None if kind == "sqlite" else Runtime(self.url).store

    @asynccontextmanager
    async def runtime(self, *skills: Skill, **options: Any) -> AsyncIterator[Runtime]:
        async with Runtime(self.kept or self.url, skills=skills, **options) as rt:
            yield rt

    async def crash(self, skill: Skill, inputs: dict[str, Any] | None = None, *, when: Any, after: bool = True, resume: str | None = None, **options: Any) -> str:
        """Its process dies when the named commit has been made: it writes nothing any more, and is proven dead."""
        died, rt = asyncio.Event(), Runtime(self.kept or self.url, skills=[skill])
        store: Any = rt.store
        commit = store.commit

        async def dies(given: Commit) -> Any:
            if died.is_set():
                await asyncio.Event().wait()
            tip = await commit(given)
            if when(given):
                died.set()
                await asyncio.Event().wait()
            return tip

        store.commit = dies
        await rt.__aenter__()
        driving = asyncio.ensure_future(rt.invoke(skill, inputs or {}))
        await asyncio.wait_for(died.wait(), 30)
        store.abandon(rt.owner)
        del store.commit
        self.left = rt, driving
        return str(next(r.run_id for r in await rt.runs() if r.status not in TERMINAL))

    @asynccontextmanager
    async def buried(self) -> AsyncIterator[None]:
        """What a dead process had open is closed by the system; nothing is handed back."""
        assert self.left is not None
        (rt, driving), self.left = self.left, None
        await rt.store.close()
        try:
            yield
        finally:
            driving.cancel()
            await asyncio.gather(driving, return_exceptions=True)
            with contextlib.suppress(HoldfastError):
                await rt.close()


async def typed(url: str, *words: str, live: bool) -> Any:
    """What the shell says."""
    given = [*words, "--json", "--store", url]
    if live and url.startswith("workspace:"):  # who has a folder open is told apart by process
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "holdfast", *given, stdout=asyncio.subprocess.PIPE)
        return json.loads((await process.communicate())[0])
    done = await asyncio.to_thread(CliRunner().invoke, cli, given, prog_name="holdfast")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


async def paged(http: httpx.AsyncClient, run_id: str) -> dict[str, str]:
    """The words of a run's page."""
    page = await http.get(f"/runs/{run_id}")
    assert page.status_code == 200
    return dict(re.findall(r"<dt>(Condition|Status)</dt><dd>(\w+)</dd>", page.text))


@pytest.mark.parametrize("kind", STORES)
async def test_a_run_is_called_the_same_everywhere(kind: str, tmp_path: Path) -> None:
    world = Elsewhere(kind, tmp_path)
    for situation, model in SITUATIONS.items():
        async with asyncio.timeout(60), staged(situation, world) as (rt, run_id):
            while len((await rt.get(run_id)).waits) != len(model.waits):
                await rt.store.wait_for_change(0.1)
            run, url = await rt.get(run_id), rt.store.url
            words = {"Status": str(run.status), "Condition": str(run.condition)}
            assert run.status == model.status, situation
            async with served(rt, tokens=False) as http:
                shown = (await http.get(f"/v1/runs/{run_id}")).json()
                listed = next(r for r in (await http.get("/v1/runs?limit=500")).json()["runs"] if r["run_id"] == run_id)
                assert {"Status": shown["status"], "Condition": shown["condition"]} == words, situation
                assert {"Status": listed["status"], "Condition": listed["condition"]} == words, situation
                assert await paged(http, run_id) == words, situation
                assert f"condition={run.condition}" in (await http.get("/runs")).text
                if kind != "memory" and world.left is None:  # a store of one process alone: no shell could look
                    told = await typed(url, "show", run_id, live=run.status in ("running", "replaying"))
                    assert {"Status": told["status"], "Condition": told["condition"]} == words, situation
                wait_id = run.waits[0].wait_id if run.waits else f"{run_id}.2.ask.0"
                before = len(await rt.events(run_id))
                for verb in VERBS:
                    if code := ON_RECORD.get((situation, verb), said(situation, verb)):
                        path, body = ASKED[verb]
                        refused = await http.post(f"/v1/runs/{run_id}/{path}", json={**body, **({"wait_id": wait_id} if path == "decide" else {})})
                        assert (refused.json().get("code"), refused.status_code // 100) == (code, 4), (situation, verb, refused.text)
                        assert refused.headers["content-type"] == "application/problem+json"
                assert len(await rt.events(run_id)) == before, situation
        if world.left is not None:
            async with world.buried():
                if kind != "memory":
                    told = await typed(url, "show", run_id, live=False)
                    assert {"Status": told["status"], "Condition": told["condition"]} == words, (situation, told)

"""How a server ends: what is in hand is answered, nothing more is begun, and all of it shares one grace (§16.9)."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from holdfast import Runtime
from holdfast.api import app
from tests.http.support import graph


@asynccontextmanager
async def serving(store: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A server of its own process, and where it listens."""
    command = [sys.executable, "-m", "holdfast", "serve", "--no-auth", "--port", "0", "--store", store]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stderr is not None
        async with asyncio.timeout(60):
            yield process, re.findall(r"http://[^\s,]+", (await process.stderr.readline()).decode())[0]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_whoever_waits_for_a_run_is_answered_when_the_server_ends(tmp_path: Path) -> None:
    """§16.9: what is in hand is answered. It was cut off after twenty seconds, with 500."""
    store = f"sqlite:///{tmp_path}/a.db"
    async with Runtime(store, skills=[g := graph()]) as rt:
        run = await rt.submit(g, {"name": "Ada"})
    async with serving(store) as (process, place), httpx.AsyncClient(base_url=place, timeout=60) as http:
        waiting = asyncio.ensure_future(http.get(f"/v1/runs/{run.run_id}?wait=60"))
        assert (await http.get("/v1/health")).status_code == 200 and not waiting.done()
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            told = await waiting
            assert told.status_code == 200 and told.json()["condition"] == "queued"
            assert await process.wait() == 0


async def test_a_store_that_cannot_be_opened_is_an_error_of_the_command(tmp_path: Path) -> None:
    """One line that names the way out, and exit code 1. It was a traceback, and 3, which means that something was not found."""
    (tmp_path / "a.db").write_bytes(b"this is no database" * 100)
    command = [sys.executable, "-m", "holdfast", "serve", "--no-auth", "--port", "0", "--store", f"sqlite:///{tmp_path}/a.db"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    out, said = await process.communicate()
    assert process.returncode == 1 and not out
    assert re.fullmatch(r"store_corrupt: .*a\.db is damaged: .*restore a backup\)\n", said.decode())


async def test_what_executes_runs_beside_the_server_ends_with_the_first_signal() -> None:
    """§16.9, §10.13: a listener that reads nothing keeps the server up for its grace, in which no run is begun any more."""
    told = asyncio.Event()

    async def drives(stop: asyncio.Event) -> None:
        await stop.wait()
        told.set()

    async with Runtime("memory:", skills=[graph()]) as rt:
        made = app(rt, tokens=False, drives=drives)
        async with made.router.lifespan_context(made), asyncio.timeout(10):
            made.state.api.stopping.set()
            await told.wait()

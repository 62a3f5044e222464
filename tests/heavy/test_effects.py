"""Real processes killed and stopped exactly at their effects, with a counter outside (must show 1; X-04, X-05, X-12).

``HOLDFAST_KILLS`` and ``HOLDFAST_FREEZES`` say how many; 500 and 200 by default.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from holdfast import Runtime
from holdfast.core.errors import AttemptMayLive
from tests.heavy.launcher import LEASE_SECONDS, Outside, skill

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("HOLDFAST_KILLS", "500"))
FREEZES = int(os.environ.get("HOLDFAST_FREEZES", "200"))

pytestmark = pytest.mark.heavy


class World:
    """The outside: what was done, as the receiver counts it and as the file has it."""

    def __init__(self, folder: Path) -> None:
        self.stopped: int | None = None
        self.url = f"sqlite:///{folder / 'runs.db'}"
        self.file = folder / "acts"
        self.acts: Counter[str] = Counter()
        world = self

        class Receiver(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                world.acts[self.path[1:]] += 1
                self._say(b"done")

            def do_GET(self) -> None:
                self._say(str(world.acts[self.path[1:]]).encode())

            def _say(self, text: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        port = self.server.server_address[1]
        self.outside = Outside(port, str(self.file))
        environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        self.launcher = subprocess.Popen(
            [sys.executable, "-m", "tests.heavy.launcher", self.url, str(port), str(self.file)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment,
        )

    def say(self, line: str) -> None:
        assert self.launcher.stdin is not None
        self.launcher.stdin.write(line + "\n")
        self.launcher.stdin.flush()

    def hear(self) -> str:
        assert self.launcher.stdout is not None
        return self.launcher.stdout.readline().strip()

    def written(self, what: str) -> int:
        return self.file.read_text().splitlines().count(what) if self.file.exists() else 0

    def close(self) -> None:
        if self.stopped is not None:
            os.kill(self.stopped, signal.SIGKILL)
        assert self.launcher.stdin is not None
        self.launcher.stdin.close()
        self.launcher.wait(timeout=30)
        assert self.launcher.stdout is not None
        self.launcher.stdout.close()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    w = World(tmp_path)
    yield w
    w.close()


async def settled(rt: Runtime, world: World, run_id: str, what: str) -> None:
    """A person looks outside and says the truth; then it has happened exactly once."""
    if world.acts[what]:
        await rt.decide(run_id, "record_result", payload="seen by a person", actor="ada")
    else:
        await rt.decide(run_id, "reexecute", actor="ada")
    run = await rt.resume(run_id)
    assert run.status == "completed", run


async def found(rt: Runtime, what: str) -> str:
    run = next(r for r in await rt.runs(limit=5) if r.request_key == what)
    return str(run.run_id)


async def test_killed_at_the_effect(world: World) -> None:
    """No confirmed effect twice, and every unknown is surfaced: asked without ``verify``, settled with it."""
    parked: Counter[bool] = Counter()
    for n in range(KILLS):
        what, at, verified = f"kill-{n}", ("before", "after")[n % 2], n % 4 >= 2
        world.say(f"{what} {at} kill {int(verified)}")
        world.hear()
        assert world.hear() == "ended"
        assert world.acts[what] == world.written(what) == (1 if at == "after" else 0), "the crash came where it was told to"
        program = skill(world.outside, verified)
        async with Runtime(world.url, skills=[program]) as rt:
            run_id = await found(rt, what)
            run = await rt.resume(run_id)
            if run.status == "waiting_for_human":
                parked[verified] += 1
                assert [w.kind for w in run.waits] == ["effect"] and run.waits[0].show["closed"]
                assert [e.status.value for e in await rt.effects(run_id)] == ["unknown"]
                await settled(rt, world, run_id, what)
            else:
                assert run.status == "completed", run
        assert world.acts[what] == world.written(what) == 1, f"{what} was done {world.acts[what]} times"
    print(f"\n{KILLS} kills; parked without verify {parked[False]} of {KILLS // 2}, with verify {parked[True]} of {KILLS - KILLS // 2}")
    assert parked[True] == 0 and parked[False] == sum(1 for n in range(KILLS) if n % 4 < 2)


def stopped(pid: int) -> bool:
    return "\nState:\tT" in Path(f"/proc/{pid}/status").read_text()


async def until(what: str, true: object, seconds: float = 20) -> None:
    """Processes are waited for in real time."""
    end = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end, f"not in time: {what}"
        await asyncio.sleep(0.01)


async def test_stopped_at_the_effect(world: World) -> None:
    """X-12, X-04, X-05: past its lease, thawed after somebody else has taken the run."""
    parked: Counter[bool] = Counter()
    for n in range(FREEZES):
        what, at, verified = f"stop-{n}", ("before", "after")[n % 2], n % 4 >= 2
        world.say(f"{what} {at} stop {int(verified)}")
        pid = world.stopped = int(world.hear())
        await until("the stop", lambda pid=pid: stopped(pid))
        program = skill(world.outside, verified)
        async with Runtime(world.url, skills=[program]) as rt:
            run_id = await found(rt, what)
            await asyncio.sleep(LEASE_SECONDS)
            await rt.worker(until_idle=True)
            run = await rt.get(run_id)
            if run.status == "running":
                await asyncio.sleep(LEASE_SECONDS)
                await rt.worker(until_idle=True)
                run = await rt.get(run_id)
            happened = world.acts[what]
            assert happened == (1 if at == "after" else 0), "nobody else acts while its owner may live"
            if run.status == "waiting_for_human":
                parked[verified] += 1
                assert not run.waits[0].show["closed"]
                with pytest.raises(AttemptMayLive):
                    await rt.decide(run_id, "reexecute", actor="impatient")
            else:
                assert run.status == "completed" and verified and at == "after", run
            os.kill(pid, signal.SIGCONT)
            world.stopped = None
            world.say("wait")
            assert world.hear() == "ended"
            assert world.acts[what] == 1, "it acted once thawed, or had before"
            if run.status == "waiting_for_human":
                await settled(rt, world, run_id, what)
            late = [i for i in await rt.store.inbox(run_id, taken=True) if i.key.startswith("late:")]
            assert len(late) == 1, "what it did after its lease is kept as evidence"
        assert world.acts[what] == world.written(what) == 1, f"{what} was done {world.acts[what]} times"
    print(f"\n{FREEZES} freezes; parked without verify {parked[False]}, with verify {parked[True]}")

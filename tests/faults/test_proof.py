"""Proof of death is kept for as long as an attempt is open, and every open attempt is surfaced (X-16, X-17)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from holdfast import Absent, Context, Runtime, flow
from holdfast.core.lease import Alive, OwnerId
from holdfast.machine import alive_by_name, here, start_of
from holdfast.testing import Fault, VirtualClock, World, run_virtual

ACTS: dict[str, Any] = {}


async def act(what: str) -> str:
    """Ends its process in the middle of the act the first time; whoever comes next does it."""
    world, host = ACTS["world"], ACTS["host"]
    if ACTS.pop("first", True) and host is not None:
        ACTS["first"] = False
        ACTS["ends"](host)
        await world.clock.sleep(3600)
    world.outside.act(what)
    return what


async def absent(key: str, what: str) -> Absent:
    return Absent()


@flow("verified")
async def verified(ctx: Context, what: str) -> str:
    return str(await ctx.effect(act, what, verify=absent))


@flow("asked")
async def asked(ctx: Context, what: str) -> str:
    return str(await ctx.effect(act, what))


async def killed_twice(world: World, skill: Any, deaths: int = 1) -> Any:
    """A is killed in its effect; so many after it claim and are killed before their first commit. Gives the last worker."""
    a = await world.host(skill)
    ACTS.update(world=world, host=a, ends=lambda host: host.kill())
    ACTS.pop("first", None)
    run = await a.do(a.rt.submit(skill, {"what": "pay"}))
    a.start(a.rt.worker())
    await world.clock.sleep(1)
    assert a.dead
    for _ in range(deaths):
        b = await world.host(skill, plan=lambda n, verb: Fault.BEFORE if verb == "commit" else None)
        b.start(b.rt.worker())
        await world.clock.sleep(1)
        b.kill()
    c = await world.host(skill)
    c.start(c.rt.worker())
    await world.clock.sleep(2)
    return c, run.run_id


@pytest.mark.parametrize("deaths", [1, 2, 5])
def test_killed_in_an_effect_and_then_before_the_first_commit(holdfast_world: World, deaths: int) -> None:
    """X-16: the attempt of the first is surfaced, closed, and what its hook says is believed."""

    async def story() -> Any:
        c, run_id = await killed_twice(holdfast_world, verified, deaths)
        return await c.do(c.rt.get(run_id)), await c.do(c.rt.effects(run_id)), [e.type for e in await c.rt.events(run_id)]

    run, effects, kinds = holdfast_world.run(story())
    assert run.status == "completed"
    assert "side_effect.unknown" in kinds
    assert [(e.status, e.closed) for e in effects] == [("abandoned", True), ("recorded", False)]
    assert holdfast_world.outside.acts == {"pay": 1}


def test_a_person_may_have_it_done_again(holdfast_world: World) -> None:
    """X-16: without a hook a person is asked, and `reexecute` is accepted without force."""

    async def story() -> Any:
        c, run_id = await killed_twice(holdfast_world, asked)
        now = await c.do(c.rt.get(run_id))
        (wait,) = now.waits
        assert wait.kind == "effect"
        assert wait.show["closed"] is True
        await c.do(c.rt.decide(run_id, "reexecute", wait_id=wait.wait_id, actor="ada"))
        await holdfast_world.clock.sleep(2)
        return await c.do(c.rt.get(run_id))

    assert holdfast_world.run(story()).status == "completed"


def test_frozen_taken_over_and_then_killed(holdfast_world: World) -> None:
    """X-17: while it is frozen nobody believes its hook; once it was killed, `reexecute` needs no force."""

    async def story() -> Any:
        a = await holdfast_world.host(verified)
        ACTS.update(world=holdfast_world, host=a, ends=lambda host: host.process.freeze())
        ACTS.pop("first", None)
        run = await a.do(a.rt.submit(verified, {"what": "pay"}))
        a.start(a.rt.worker())
        await holdfast_world.clock.sleep(40)
        b = await holdfast_world.host(verified)
        b.start(b.rt.worker())
        await holdfast_world.clock.sleep(2)
        (wait,) = (await b.do(b.rt.get(run.run_id))).waits
        assert wait.show["closed"] is False
        for _ in range(3):
            await holdfast_world.clock.sleep(3600)  # its row would have been tidied away long since
        a.kill()
        await holdfast_world.clock.sleep(5)
        await b.do(b.rt.decide(run.run_id, "reexecute", wait_id=wait.wait_id, actor="ada"))
        await holdfast_world.clock.sleep(2)
        return await b.do(b.rt.get(run.run_id))

    assert holdfast_world.run(story()).status == "completed"
    assert holdfast_world.outside.acts == {"pay": 1}


PROGRAM = """
from __future__ import annotations
import asyncio, os, signal, sys
from holdfast import Context, Runtime, flow

def act(what: str) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return what

@flow("mail")
async def mail(ctx: Context, what: str) -> str:
    return str(await ctx.effect(act, what))

async def main():
    async with Runtime(sys.argv[1], skills=[mail]) as rt:
        await rt.invoke(mail, {"what": "pay"})

asyncio.run(main())
"""


def done(what: str) -> str:
    return what


@flow("mail")
async def mail(ctx: Context, what: str) -> str:
    return str(await ctx.effect(act_here, what))


def act_here(what: str) -> str:
    return what


act_here.__name__ = "act"


def killed(path: Path) -> str:
    url = f"sqlite:///{path}"
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(PROGRAM), url], check=False, cwd=path.parent)
    assert ended.returncode == -signal.SIGKILL
    return url


async def settled(url: str) -> None:
    """The attempt is closed: a person has it done again, without force."""
    async with Runtime(url, skills=[mail]) as rt:
        await rt.recover()
        run = (await rt.runs())[0]
        if not run.waits:
            run = await rt.resume(run.run_id)
        (wait,) = run.waits
        assert wait.show["closed"] is True, wait.show
        await rt.decide(run.run_id, "reexecute", wait_id=wait.wait_id, actor="ada")
        assert (await rt.resume(run.run_id)).status == "completed"


async def test_after_an_acknowledgement(tmp_path: Path) -> None:
    """X-17: `doctor --acknowledge` forgets workers, and what proves their death stays."""
    url = killed(tmp_path / "s.db")
    async with Runtime(url) as rt:
        await rt.acknowledge()
    await settled(url)


async def test_after_the_file_was_tidied_away(tmp_path: Path) -> None:
    """X-17: an older release deleted the liveness file; the name tells of a process that is not there any more."""
    url = killed(tmp_path / "s.db")
    async with Runtime(url) as rt:
        await rt.acknowledge()
    for file in (tmp_path / "s.db-live").iterdir():
        file.unlink()
    await settled(url)


async def test_after_a_reboot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X-17: what ran before the machine was started anew runs no more."""
    url = killed(tmp_path / "s.db")
    monkeypatch.setattr("holdfast.stores.sqlite.owners.boot", lambda: "another-boot")
    await settled(url)


def test_a_name_proves_a_death() -> None:
    this, pid = here(), os.getpid()
    born = start_of(pid) or ""

    def judged(host: str = this.host, boot: str = this.boot, pid: int = pid, born: str = born) -> Alive:
        return alive_by_name(OwnerId(host, boot, pid, born, "00000000").name)

    assert judged() is Alive.UNKNOWN  # the process lives; whether the owner in it does, the name cannot tell
    assert judged(born="1") is Alive.NO
    assert judged(boot="0badb007.1") is Alive.NO
    assert judged(host="elsewhere") is Alive.UNKNOWN
    assert judged(boot=this.boot.partition(".")[0] + ".7") is Alive.UNKNOWN
    assert alive_by_name("w1") is Alive.UNKNOWN
    assert OwnerId.parse("my-host-with-dashes-b.1-7-99-ab") == OwnerId("my-host-with-dashes", "b.1", 7, "99", "ab")


def test_a_closed_runtime_acts_no_more(tmp_path: Path) -> None:
    """§6.5: closing closes one's own attempts, also for other processes, which know nothing of what this one has closed. The minute for which
    the act may hang passes at once: the loop's clock is one that is moved."""
    run_virtual(_closed_in_mid_act(f"sqlite:///{tmp_path / 's.db'}"), clock=VirtualClock())


async def _closed_in_mid_act(url: str) -> None:
    begun = asyncio.Event()

    async def hangs(what: str) -> str:
        begun.set()
        await asyncio.Event().wait()
        return what

    @flow("hanging")
    async def hanging(ctx: Context) -> str:
        return str(await ctx.effect(hangs, "x"))

    async with Runtime(url, skills=[hanging]) as rt:
        task = asyncio.ensure_future(rt.invoke(hanging))
        await asyncio.wait_for(begun.wait(), 10)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    async with Runtime(url, skills=[hanging]) as rt:
        (run,) = await rt.runs()
        assert [e.closed for e in await rt.effects(run.run_id)] == [True]

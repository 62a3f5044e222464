"""One agent in Pydantic AI and in the OpenAI Agents SDK, killed at every store write and by ``kill -9`` (§19.4, §19.5).

What must hold: a tool that acts runs once, what is on record is never asked of a model or a tool again, an approval is asked once, and the
stream has each piece once with what was superseded marked.
"""

from __future__ import annotations

import asyncio
import pathlib
import random
from collections import Counter
from typing import Any

import pytest

from holdfast import Runtime
from holdfast.testing.world import Disturbed, Host
from tests.integrations import desks
from tests.integrations.kills import NAMES, ONCE, Nursery, torment

QUESTION = {"question": "Pay me back."}


@pytest.fixture(autouse=True)
def fresh() -> None:
    desks.acts.clear()


@pytest.mark.parametrize("name", NAMES)
async def test_an_undisturbed_run_asks_once_and_streams_messages(name: str) -> None:
    async with Runtime("memory:", skills=[desks.SKILLS[name]]) as rt:
        parts = []
        approved = 0
        async for part in rt.run_stream(desks.SKILLS[name], QUESTION, modes=("messages", "events")):
            parts.append(part)
            if part.mode == "events" and part.data.type == "wait.requested":
                approved += 1
                (run,) = await rt.runs()
                await rt.decide(run.run_id, "approve", actor="ada")
        (run,) = await rt.runs()
        assert (run.status, run.result, approved) == ("completed", desks.TEXT, 1), run.error
        assert sorted(desks.acts) == sorted(ONCE)
        told = [p.data for p in parts if p.mode == "messages" and not p.superseded]
        assert [t for t in told if t["content"]] == [{"role": "assistant", "content": piece} for piece in desks.PIECES]
        assert [e.capability for e in await rt.effects(run.run_id)] != [] and len(await rt.effects(run.run_id)) == 1


@pytest.mark.parametrize("name", NAMES)
async def test_the_tools_of_one_answer_run_together(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    both = asyncio.Barrier(2)

    async def meet() -> None:
        if desks.acts[-1].startswith("look_up"):
            async with asyncio.timeout(60):
                await both.wait()

    monkeypatch.setattr(desks, "pause", meet)
    async with Runtime("memory:", skills=[desks.SKILLS[name]]) as rt:
        run = await rt.invoke(desks.SKILLS[name], QUESTION)
        assert run.status == "waiting_for_human", run.error


unknown: list[str] = []


async def settle(host: Host, run: Any) -> None:
    """Ada looks outside before she answers what nobody knows."""
    for wait in run.waits:
        if wait.kind == "effect":
            unknown.append(wait.wait_id)
            if "pay 4200" in desks.acts:
                await host.rt.decide(run.run_id, "record_result", wait_id=wait.wait_id, actor="ada", payload="paid 4200")
            else:
                await host.rt.decide(run.run_id, "reexecute", wait_id=wait.wait_id, actor="ada", force=True)
        else:
            await host.rt.decide(run.run_id, "approve", wait_id=wait.wait_id, actor="ada")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the world drops the framework's coroutines where a process dies
@pytest.mark.parametrize("name", NAMES)
def test_killed_at_every_write(name: str, holdfast_crashes: Any) -> None:
    lives: list[list[str]] = []
    approvals: list[int] = []

    def begin(world: Any) -> None:
        lives.append(list(desks.acts))
        desks.acts.clear()

    _, ends = holdfast_crashes(desks.SKILLS[name], QUESTION, script=settle, fresh=begin)
    lives = [*lives[1:], list(desks.acts)]
    assert len(ends) == len(lives) - 1 >= 20
    for end, done in zip(ends, lives[1:], strict=True):
        assert (str(end.run.result), str(end.run.error)) == (desks.TEXT, "None"), (end.number, end.verb, end.fault)
        counts = Counter(done)
        assert counts.keys() == set(ONCE)
        assert counts["pay 4200"] == 1, "what acts, once"
        assert sum(counts.values()) <= len(ONCE) + 2, "what was under way at the crash, and nothing else, is asked again"
        asked = [e for e in end.world.run(events(end)) if e.event_type == "wait.requested" and e.payload["wait"]["kind"] == "approval"]
        approvals.append(len(asked))
    assert set(approvals) == {1}, "asked once"
    assert len(unknown) >= 2, "before the tool acted, and after"


async def events(end: Disturbed) -> list[Any]:
    host = await end.world.host()
    found = list(await host.rt.events(end.run.run_id))
    await host.close()
    return found


def test_killed_at_random(tmp_path: pathlib.Path) -> None:
    """``python -m tests.integrations.kills --rounds 50`` does more of it."""
    with Nursery() as nursery:
        for number, name in enumerate(NAMES):
            (tmp_path / name).mkdir()
            torment(nursery, name, tmp_path / name, random.Random(number), kills=2)

"""The page about effects runs: its agent, and the test of it, as they stand there."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Absent, Context, Happened, Limit, Runtime, Tool, flow
from holdfast.stores import MemoryStore
from tests.engine.outside import Clock, Crash
from tests.inside import die

PAGE = Path(__file__).resolve().parents[2] / "docs" / "effects.md"
AGENT, TEST, MANY, TRIP = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)


class Moved(Clock):
    def forward(self, seconds: Any) -> None:
        super().forward(seconds.total_seconds() if isinstance(seconds, dt.timedelta) else seconds)


class Outside:
    def __init__(self, crash_after_posting: bool) -> None:
        self.posted: list[str] = []
        self.crash = crash_after_posting
        self.tries = 0


def names() -> dict[str, Any]:
    """What the page says is yours, and the test's own helpers."""
    clock = Moved()
    world: dict[str, Any] = {"clock": clock, "pytest": pytest, "MemoryStore": MemoryStore, "Crash": Crash}

    def outside(**options: Any) -> Outside:
        world["outside"] = Outside(**options)
        return world["outside"]

    def model(facts: str) -> str:
        world["outside"].tries += 1
        if world["outside"].tries == 1:
            raise ConnectionError("the model is busy")
        return "Dear customer"

    async def post(reply: str) -> str:
        world["outside"].posted.append(reply)
        if world["outside"].crash:
            raise Crash
        return "posted"

    async def was_posted(key: str, reply: str) -> Happened | Absent:
        return Happened("posted") if reply in world["outside"].posted else Absent()

    @asynccontextmanager
    async def process(store: MemoryStore) -> AsyncIterator[Runtime]:
        async with Runtime(store, skills=[world["agent"]], tools=[Tool("echo", side_effects="read")], clock=clock) as rt:
            yield rt

    def kill(rt: Runtime) -> None:
        die(rt)
        rt.store.abandon(rt.owner)  # type: ignore[attr-defined]

    world |= {"Outside": outside, "model": model, "post": post, "was_posted": was_posted, "process": process, "kill": kill}
    return world


def test_the_agent_is_short() -> None:
    """Must show 5: an agent in at most 30 lines, its test in at most 15."""
    assert len([line for line in AGENT.splitlines() if line.strip()]) <= 30
    assert len([line for line in TEST.splitlines() if line.strip()]) <= 15


async def test_the_page_runs() -> None:
    """Must show 5: three days, a retry and a crash; nobody waits for any of them."""
    world = names()
    exec(compile(AGENT, "docs/effects.md", "exec"), world)
    exec(compile(TEST, "docs/effects.md", "exec"), world)
    await world["test_nobody_is_written_to_twice"]()


async def test_the_campaign_writes_to_each_once() -> None:
    """§6: many effects of one flow, each on record by itself, within a limit."""
    sent: list[str] = []

    async def post(address: str) -> str:
        sent.append(address)
        return "posted"

    world: dict[str, Any] = {"flow": flow, "Context": Context, "post": post}
    exec(compile(MANY, "docs/effects.md", "exec"), world)
    addresses = [f"{n}@example.com" for n in range(120)]
    async with Runtime(MemoryStore(), skills=[world["campaign"]], limits={"mail": Limit(in_flight=20)}) as rt:
        run = await rt.invoke(world["campaign"], {"addresses": addresses})
        assert (run.status, run.result, sorted(sent)) == ("completed", 120, sorted(addresses))
        assert len(await rt.effects(run.run_id)) == 120


async def test_the_trip_is_taken_back() -> None:
    """§6.11: as the page says, with bookings that are on a list."""
    world: dict[str, Any] = {}
    exec(compile(TRIP, "docs/effects.md", "exec"), world)
    log: list[str] = []

    async def book(what: str) -> str:
        log.append(f"book {what}")
        return f"receipt {what}"

    async def cancel(receipt: str, what: str) -> None:
        assert receipt == f"receipt {what}"
        log.append(f"cancel {what}")

    world |= {"book": book, "cancel": cancel}
    async with Runtime(MemoryStore(), skills=[world["trip"]]) as rt:
        run = await rt.invoke(world["trip"])
        run = await rt.approve(run.run_id)
        assert (run.status, run.error.message) == ("failed", "sold out")
    assert log == ["book flight", "book hotel", "cancel hotel", "cancel flight"]

"""Writes the records of this release that every later one must load: ``python -m tests.histories.make 0.1.0``.

Records of a release are written once and never again (``--again`` is for the release that is not out yet);
``test_histories.py`` loads them all. Times are virtual and the
owner's name is made up, so that nothing of the machine that wrote them is in them.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

from holdfast import Context, Graph, Runtime, Send, State, append, flow, merge
from holdfast.core.codec import open_row
from holdfast.engine.keep.transfer import copy
from holdfast.stores import MemoryStore, SqliteStore
from holdfast.testing import VirtualClock, run_virtual

HERE = Path(__file__).resolve().parent


class Order(State):
    item: str
    count: int = 1
    log: Annotated[list[str], append]
    totals: Annotated[dict[str, int], merge]


order = Graph("order", Order, version="1")
tries: list[int] = []


def price(item: str) -> int:
    return len(item) * 10


def flaky(item: str) -> str:
    tries.append(1)
    if len(tries) == 1:
        raise ConnectionError("the shop is closed")
    return f"reserved {item}"


def ship(item: str) -> dict[str, str]:
    return {"shipped": item}


@order.node(start=True)
async def look(state: Order, ctx: Context) -> Any:
    return {"log": ["looked"], "totals": {"price": await ctx.step(price, state.item)}}


@order.node(after="look", retry=3)
async def reserve(state: Order, ctx: Context) -> Any:
    if state.item == "nothing":
        raise ValueError("nothing cannot be reserved")
    return {"log": [await ctx.step(flaky, state.item)]}


@order.node(after="reserve")
async def fan(state: Order, ctx: Context) -> Any:
    return [Send("pack", n) for n in range(state.count)]


@order.node()
async def pack(state: Order, ctx: Context) -> Any:
    return {"log": [f"packed {ctx.payload}"]}


@order.node(after="pack")
async def ask(state: Order, ctx: Context) -> Any:
    await ctx.approve("Ship it?", show={"item": state.item, "when": dt.date(2026, 1, 2)})


@order.node(after="ask")
async def send(state: Order, ctx: Context) -> Any:
    done = await ctx.effect(ship, state.item, side_effects="external_action", idempotent=True)
    return {"log": [f"shipped {done['shipped']}"]}


@flow("greet", version="1")
async def greet(ctx: Context, name: str) -> str:
    await ctx.sleep(dt.timedelta(minutes=1))
    await ctx.approve("Greet?", timeout=dt.timedelta(days=30))
    return f"Hello, {name}"


SKILLS = [order, greet]


async def live(rt: Runtime, clock: VirtualClock) -> dict[str, str]:
    """Runs in every status, by name."""
    tries.clear()
    named = {}
    done = await rt.invoke(order, {"item": "lamp", "count": 2}, key="first", tags=("gift",))
    done = await rt.approve(done.run_id, actor="ada", note="go")
    named["completed"] = done.run_id
    named["waiting"] = (await rt.invoke(order, {"item": "chair"})).run_id
    denied = await rt.invoke(order, {"item": "table"})
    named["halted"] = (await rt.deny(denied.run_id, reason="too big", actor="bob")).run_id
    named["failed"] = (await rt.invoke(order, {"item": "nothing"})).run_id
    canceled = await rt.invoke(order, {"item": "door"})
    named["canceled"] = (await rt.cancel(canceled.run_id, actor="ada", reason="changed my mind")).run_id
    named["flow"] = (await rt.invoke(greet, {"name": "Ann"})).run_id
    named["queued"] = (await rt.submit(order, {"item": "shelf"}, delay=dt.timedelta(days=365))).run_id
    return named


async def expectation(rt: Runtime, run_id: str) -> dict[str, Any]:
    """What a later release must find in a run."""
    run = await rt.get(run_id)
    rows = await rt.store.rows(run_id)
    return {
        "run_id": run_id,
        "status": str(run.status),
        "stop_reason": run.record.stop_reason,
        "tags": list(run.record.tags),
        "waits": [w.prompt or w.name for w in run.waits],
        "values": json.loads(json.dumps(dict(run.values), default=str)),
        "events": [e.type for row in rows for e in open_row(row).events],
        "effects": [str(e.status) for e in await rt.effects(run_id)],
        "chain": rows[-1].hash.hex(),
    }


async def write(folder: Path, clock: VirtualClock) -> None:
    """Lives in memory, where virtual time waits for no disk, and carries the runs over."""
    store = SqliteStore(folder / "store.db", now=clock.now)
    await store.open()
    async with Runtime(MemoryStore(now=clock.now), skills=SKILLS, clock=clock) as rt:
        named = await live(rt, clock)
        expected = {name: await expectation(rt, run_id) for name, run_id in named.items()}
        for run_id in named.values():
            await rt.export(run_id, folder / "workspace")
            await copy(rt.store, store, run_id)
    await store.close()
    for left in folder.glob("store.db-*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    (folder / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n", "utf-8")


def main(release: str, again: bool = False) -> None:
    folder = HERE / release
    if again:
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        raise SystemExit(f"{folder} is there already: the records of a release are never written again")
    folder.mkdir()
    owner = mock.patch("holdfast.runtime.owner_id", return_value="somewhere-boot-1-1-history")
    with owner, mock.patch("platform.node", return_value="somewhere"):
        clock = VirtualClock()
        run_virtual(write(folder, clock), clock=clock)


if __name__ == "__main__":
    main(sys.argv[1], *[True for a in sys.argv[2:] if a == "--again"])

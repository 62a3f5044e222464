"""A crash at every store write of runs that take back what they did (§6.11).

The undisturbed world is shown to do the work; then its process dies at each write in turn, and another one goes on. Whatever it
dies at, everything is booked once and given back once, no node runs once giving back has begun, and the run ends as it was to end.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from tests.crash.worlds import Trail, stage
from tests.virtual import keep_in_virtual_time

from holdfast import Context, Flow, Graph, flow
from holdfast.ports import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import Fault, VirtualClock
from holdfast.testing.world import Host, approve_all, crash_everywhere

Maker = Callable[[VirtualClock], Store]


@pytest.fixture(params=["memory", "sqlite"])
def maker(request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    keep_in_virtual_time(monkeypatch)
    names = itertools.count()
    if request.param == "memory":
        return lambda clock: MemoryStore(now=clock.now)
    return lambda clock: SqliteStore(tmp_path / f"{next(names)}.db", now=clock.now)


async def _act(what: str, key: str, result: str) -> str:
    await stage.world.clock.sleep(0.01)
    stage.world.outside.act(what, key, result)
    await stage.world.clock.sleep(0.01)
    return result


async def book(what: str, *, idempotency_key: str) -> str:
    return await _act(f"book {what}", idempotency_key, f"receipt {what}")


async def unbook(receipt: str, what: str, *, idempotency_key: str) -> str:
    assert receipt == f"receipt {what}"
    return await _act(f"unbook {what}", idempotency_key, f"gone {what}")


def failing() -> Graph[Any]:
    """Three super-steps, the second of parallel tasks; the third fails."""
    graph = Graph("failing", Trail)

    @graph.node(start=True)
    async def fly(state: Trail, ctx: Context) -> dict[str, Any]:
        stage.world.begin(ctx)
        return {"trail": await ctx.effect(book, "flight", undo=unbook)}

    for name in ("hotel", "car"):

        async def stay(state: Trail, ctx: Context, name: str = name) -> dict[str, Any]:
            stage.world.begin(ctx)
            return {"trail": await ctx.effect(book, name, undo=unbook)}

        graph.node(name, after="fly")(stay)

    @graph.node(after=["hotel", "car"])
    async def pay(state: Trail, ctx: Context) -> None:
        await ctx.step(stage.telling(ctx, "think"), "hard")
        raise ConnectionError("the bank is closed")

    return graph


def waiting() -> Flow[..., Any]:
    """A flow that a person cancels while it waits."""

    @flow("waiting")
    async def wait(ctx: Context) -> None:
        await ctx.gather(ctx.effect(book, "flight", undo=unbook), ctx.effect(book, "hotel", undo=unbook))
        await ctx.approve("Go?")

    return wait


async def cancelling(host: Host, run: Any) -> None:
    """Cancels what waits for an approval, and answers about effects what can be seen outside."""
    if any(w.kind == "approval" for w in run.waits):
        await host.rt.cancel(run.run_id, actor="tester")
    else:
        await approve_all(host, run)


def booked_and_given_back(*names: str) -> dict[str, int]:
    return {f"{act} {name}": 1 for name in names for act in ("book", "unbook")}


def test_a_failed_run_gives_back_once(maker: Maker) -> None:
    whole, ends = crash_everywhere(failing(), {"name": "Ada"}, store=maker, fresh=stage.enter)
    assert (whole.status, whole.error.message) == ("failed", "the bank is closed")
    assert len(ends) >= 20
    for end in ends:
        where = (end.number, end.verb, end.fault)
        assert (end.run.status, end.run.error.message) == ("failed", "the bank is closed"), where
        assert end.world.outside.acts == booked_and_given_back("flight", "hotel", "car"), where


def test_a_cancelled_run_gives_back_once(maker: Maker) -> None:
    whole, ends = crash_everywhere(waiting(), store=maker, fresh=stage.enter, script=cancelling)
    assert (whole.status, whole.stop_reason) == ("canceled", "canceled")
    assert len(ends) >= 20
    for end in ends:
        where = (end.number, end.verb, end.fault)
        assert (end.run.status, end.run.stop_reason) == ("canceled", "canceled"), where
        assert end.world.outside.acts == booked_and_given_back("flight", "hotel"), where


@pytest.mark.parametrize("proven", [True, False], ids=["owner proven dead", "lease expired"])
def test_a_store_that_fails_once_gives_back_once(proven: bool) -> None:
    """T-51, X-09: told that a write failed, applied or not; and a crash that nobody can prove, so that its lease runs out first."""
    faults = (Fault.LOST, Fault.APPLIED) if proven else (Fault.AFTER,)
    _, ends = crash_everywhere(failing(), {"name": "Ada"}, fresh=stage.enter, faults=faults, proven=proven)
    for end in ends:
        assert end.run.status == "failed", (end.number, end.verb, end.fault)
        assert end.world.outside.acts == booked_and_given_back("flight", "hotel", "car"), (end.number, end.verb, end.fault)

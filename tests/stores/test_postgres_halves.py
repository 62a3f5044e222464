"""A crowd's commits over PostgreSQL: half of them are sent while the other half is still computed, so that neither the server nor this process waits for the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.postgres.server import shared

from holdfast.core.commit import Tip
from holdfast.core.errors import StoreError
from holdfast.stores import PostgresStore
from holdfast.stores.apply import prepare
from holdfast.stores.postgres.queries import BIRTHS, MOVES, Q
from holdfast.stores.postgres.wire import Connection, Exchange
from holdfast.testing.conformance import TTL, Script

CROWD = 100


async def crowd(store: PostgresStore, runs: int) -> list[Script]:
    await store.open()
    await store.register("w", TTL)
    scripts = [await Script(store, f"r{n}").begin("w") for n in range(runs)]
    await asyncio.gather(*[script.steps(1) for script in scripts])
    return scripts


def noted(monkeypatch: pytest.MonkeyPatch, text: str) -> list[tuple[int, int]]:
    """What is sent by this statement: how many rows, and how many commits had been handed in by then."""
    sent: list[tuple[int, int]] = []
    begin = Connection.begin

    def begun(db: Connection, asked: Sequence[tuple[str, Any]], over: Any) -> Any:
        sent.extend((len(values[0] if isinstance(values, list) else next(iter(values.values()))), Handed.many) for said, values in asked if said == text)
        return begin(db, asked, over)

    monkeypatch.setattr(Connection, "begin", begun)
    return sent


class Handed:
    many = 0


async def step(script: Script) -> None:
    Handed.many += 1
    await script.steps(1)


async def test_half_of_a_crowd_is_sent_while_the_other_half_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = PostgresStore(shared().fresh("halves"))
    scripts = await crowd(store, CROWD)
    sent, Handed.many = noted(monkeypatch, Q.steps), 0
    await asyncio.gather(*[step(script) for script in scripts])
    assert sent == [(CROWD // 2, CROWD // 2), (CROWD // 2, CROWD)]
    loaded = [await store.load(f"r{n}") for n in range(CROWD)]
    assert all(one is not None and one.tip == script.tip for one, script in zip(loaded, scripts, strict=True))
    await store.close()


async def test_few_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves of them would cost the server more than is gained."""
    store = PostgresStore(shared().fresh("few_together"))
    scripts = await crowd(store, 30)
    sent, Handed.many = noted(monkeypatch, Q.steps), 0
    await asyncio.gather(*[step(script) for script in scripts])
    assert sent == [(30, 30)]
    await store.close()


class Sitting:
    """A seat that keeps what it is told, and in whose midst."""

    def __init__(self) -> None:
        self.waits = True
        self.told: list[tuple[Tip, asyncio.Task[Any] | None]] = []
        self.over = asyncio.Event()

    def tell(self, tip: Tip) -> None:
        self.told.append((tip, asyncio.current_task()))
        self.over.set()

    def refuse(self, error: BaseException) -> None:
        raise error


async def test_a_step_that_is_looked_into_first_is_told_outside_of_any_task() -> None:
    """Its run is driven by another store of this process, so that this one does not know of it until it has looked."""
    url = shared().fresh("looked_into")
    one, other = PostgresStore(url), PostgresStore(url)
    (script,) = await crowd(one, 1)
    await other.open()
    step, seat = prepare(script.step()).step, Sitting()
    assert step is not None
    other.join(step, seat)
    await asyncio.wait_for(seat.over.wait(), 30)
    loaded = await one.load(script.run_id)
    assert loaded is not None and seat.told == [(loaded.tip, None)]
    await other.close()
    await one.close()


@pytest.mark.parametrize("what", ["end", "rest", "birth"])
async def test_what_is_forgotten_of_runs_meanwhile_keeps_no_commit_from_its_answer(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which runs are driven here is learnt anew when an owner hands back its runs, also while the server's answer to a commit is on its way."""
    store = PostgresStore(shared().fresh("forgotten"))
    await store.open()
    for owner in ("w", "another"):
        await store.register(owner, TTL)
    script = Script(store, "r1") if what == "birth" else await Script(store, "r1").begin("w")
    begin = Connection.begin
    answers: asyncio.Queue[Any] = asyncio.Queue()

    def begun(db: Connection, asked: Sequence[tuple[str, Any]], over: Any) -> Any:
        """Holds the server's answer to the commit back."""
        return begin(db, asked, (lambda: answers.put_nowait(over)) if {MOVES.for_one, BIRTHS.for_one} & {text for text, _ in asked} else over)

    monkeypatch.setattr(Connection, "begin", begun)
    committing = asyncio.ensure_future({"end": script.complete, "rest": script.wait, "birth": lambda: script.begin("w")}[what]())
    answered = await asyncio.wait_for(answers.get(), 10)
    monkeypatch.setattr(Connection, "begin", begin)
    await store.retire("another")
    answered()
    await asyncio.wait_for(committing, 10)
    loaded = await store.load("r1")
    assert loaded is not None and loaded.tip == script.tip
    await store.close()


async def test_steps_whose_answer_cannot_be_read_are_told() -> None:
    """What goes wrong in a callback of the event loop is raised to nobody: whoever waits for the step would wait for ever."""
    store = PostgresStore(shared().fresh("unread"))
    (script,) = await crowd(store, 1)
    with pytest.MonkeyPatch.context() as patch:

        def odd(exchange: Exchange) -> Any:
            raise RuntimeError("odd")

        patch.setattr(Exchange, "answers", odd)
        with pytest.raises(StoreError, match="RuntimeError: odd"):
            await asyncio.wait_for(script.steps(1), 10)
    loaded = await store.load("r0")
    assert loaded is not None
    await store.close()

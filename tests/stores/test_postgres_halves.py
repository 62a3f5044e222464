"""A crowd's commits over PostgreSQL: half of them are sent while the other half is still computed, so that neither the server nor this process waits for the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.postgres.server import shared

from holdfast.stores import PostgresStore
from holdfast.stores.postgres.connection import Q
from holdfast.stores.postgres.wire import Connection
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

"""The port: small protocols by purpose, and how few of their verbs a decision, a resume and a look take (issue «House»)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
from bench.house import order

from holdfast import Runtime, ports
from holdfast.stores import MemoryStore, PostgresStore, SqliteStore, WorkspaceStore

ENGINE = 20
HINTS = {"wait_for_change", "find_marked", "claim_intents"}
"""What goes by the clock and not by what is asked: a heartbeat's look for news, the outbox's."""


def verbs(port: type) -> set[str]:
    return {name for name, verb in vars(port).items() if inspect.isfunction(verb) and not name.startswith("_")}


def test_the_port_of_an_engine_is_small_and_the_whole_is_its_parts() -> None:
    """Each purpose has a protocol of at most twenty verbs; a store is all of them, and adds how it opens, closes and is checked."""
    parts = [ports.Runs, ports.Owners, ports.Links, ports.Schedules, ports.Streams, ports.Outbox, ports.Limiting]
    found = {part.__name__: verbs(part) for part in parts}
    assert {name: len(names) for name, names in found.items() if len(names) > ENGINE} == {}
    assert sum(map(len, found.values())) == len(set().union(*found.values())), "no verb stands in two of them"
    assert set(ports.Store.__bases__) == {*parts, Protocol} and verbs(ports.Store) == {"open", "close", "verify"}
    for keeper in (ports.Upkeep, ports.Copies, ports.Shelves, ports.Threads, ports.Steps, ports.Served):
        assert len(verbs(keeper)) <= ENGINE


@pytest.mark.parametrize("store", [MemoryStore, SqliteStore, PostgresStore, WorkspaceStore])
def test_every_store_gives_the_pages_of_the_port(store: type) -> None:
    """Whoever says no limit gets what the port promises, whatever store it is."""
    pages = {}
    for part in (ports.Store, ports.Upkeep):
        for name in dir(part):
            if inspect.isfunction(verb := getattr(part, name)) and (limit := inspect.signature(verb).parameters.get("limit")) is not None:
                pages[name] = limit.default
    assert {"run_ids", "log", "chunks"} <= pages.keys()
    assert {name: inspect.signature(getattr(store, name)).parameters["limit"].default for name in pages} == pages


def test_a_third_store_is_about_five_hundred_lines() -> None:
    """Reads, writes and transactions around ``stores/apply``: it passes the whole suite (``test_conformance.py``) and decides nothing."""
    lines = (Path(__file__).parent / "third.py").read_text().splitlines()
    assert len(lines) <= 510


class Told:
    """Stands before a store and notes the verbs that are asked of it."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self.store, name)
        if not inspect.iscoroutinefunction(verb):
            return verb

        async def asked(*args: Any, **options: Any) -> Any:
            if name not in HINTS:
                self.asked.append(name)
            return await verb(*args, **options)

        return asked

    def since(self) -> list[str]:
        asked, self.asked = self.asked, []
        return asked


MAKERS: dict[str, Callable[[Path], Any]] = {"memory": lambda _: MemoryStore(), "sqlite": lambda folder: SqliteStore(folder / "a.db")}


@pytest.mark.parametrize("maker", MAKERS)
async def test_few_verbs_decide_resume_and_show(maker: str, tmp_path: Path) -> None:
    """A decision reads, puts and commits; a resume looks, claims, reads and commits; a look reads. What either answers with is one more look."""
    store = Told(MAKERS[maker](tmp_path))
    async with Runtime(store, skills=[order]) as rt:
        run = await rt.invoke(order, {"n": 1})
        assert run.waits
        store.since()
        await rt.get(run.run_id)
        show = store.since()
        assert len(show) <= 3 and show[0] == "load", show
        await rt.approve(run.run_id, actor="ann", drive=False)
        decide = store.since()
        assert decide[:3] == ["load", "put", "commit"] and len(decide) - 3 <= 2, decide
        ended = await rt.resume(run.run_id)
        resume = store.since()
        assert resume[: resume.index("commit") + 1] == ["get", "inbox", "claim", "load", "commit"], resume
        assert ended.terminal

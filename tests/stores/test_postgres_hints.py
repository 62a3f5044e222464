"""A run that others are told of by its name is looked up before anybody asks for it, in the place of a look for all that is due (decision 98)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from tests.postgres.server import shared

from holdfast.core.limits import Limit, Rule
from holdfast.ports import Claims, Loaded, News
from holdfast.stores import PostgresStore
from holdfast.stores.postgres import connection, hints, news
from holdfast.stores.postgres.hints import Answer, Hints
from holdfast.stores.postgres.queries import Q
from holdfast.stores.postgres.wire import Connection, Exchange, Statement
from holdfast.testing.conformance import TTL, Script, signal

NAMES = {Q.named: "by its name", Q.lone: "all that is due", Q.claim: "claim", Q.claim_single: "claim"}


class Told:
    """Hints whose look-ups are noted, under a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.looked_up: list[str] = []
        self.hints = Hints(lambda: self.now)

    def look_up(self, run_id: str) -> Answer | None:
        self.looked_up.append(run_id)
        return asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    ("what", "runs", "given"),
    [("nothing", [], False), ("one run", ["r1"], True), ("something", [None], False), ("two runs", ["r1", "r2"], False), ("one run and something", ["r1", None], False),
     ("something and one run", [None, "r1"], False)],
)
async def test_one_run_alone_is_looked_up(what: str, runs: list[str | None], given: bool) -> None:
    told = Told()
    told.hints.expect(("q",), told.look_up)
    for run_id in runs:
        told.hints.tell(run_id)
    assert (told.hints.take(("q",)) is not None) is given, what
    assert told.looked_up == ["r1"] * (runs[:1] == ["r1"])
    assert told.hints.take(("q",)) is None, "once"


async def test_a_look_up_is_for_whoever_looked_for_all_a_moment_ago() -> None:
    told = Told()
    told.hints.tell("r0")
    assert told.hints.take() is None and told.looked_up == [], "nobody has looked"
    told.hints.expect(("q",), told.look_up)
    told.hints.tell("r1")
    assert told.hints.take(("other",)) is None, "who looks for something else"
    told.hints.tell("r2")
    told.now = hints.SECONDS
    assert told.hints.take(("q",)) is None, "by then something may have fallen due of which nobody was told"
    told.hints.tell("r3")
    assert told.hints.take(("q",)) is None and told.looked_up == ["r1", "r2"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The looks and claims that were sent."""
    found: list[str] = []
    begin = Connection.begin

    def noted(self: Connection, statements: Sequence[Statement], over: Callable[[], None]) -> Exchange:
        found.extend(NAMES[text] for text, _ in statements if text in NAMES)
        return begin(self, statements, over)

    monkeypatch.setattr(Connection, "begin", noted)
    return found


class Two:
    """A store that submits, and one of another process, as far as they know, whose worker waits. The clock of the second stands still unless it is moved."""

    def __init__(self, url: str) -> None:
        self.now = 0.0
        self.here = PostgresStore(url)
        self.there = PostgresStore(url, clock=lambda: self.now)
        self._waiting: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self.here.open()
        await self.there.open()
        await self.there.register("w", TTL)
        heard = asyncio.Event()

        async def wait() -> None:
            while True:
                await self.there.wait_for_change(60, News.DUE)
                heard.set()

        self._waiting, self.heard = asyncio.ensure_future(wait()), heard
        async with asyncio.timeout(60):
            for _ in ("its first wait is over at once", "it listens"):
                await heard.wait()
                heard.clear()
        await self.look()
        await self.look()

    async def close(self) -> None:
        assert self._waiting is not None
        self._waiting.cancel()
        await self.there.close()
        await self.here.close()

    async def hear(self, name: str, **fields: Any) -> None:
        """Has a run submitted, and waits until the other has heard of it."""
        self.heard.clear()
        await Script(self.here, name, **fields).submit()
        async with asyncio.timeout(60):
            await self.heard.wait()

    async def look(self) -> Claims | Loaded:
        return await self.there.claim_or_load("w", ("default",), None, limit=5)


@pytest.fixture
async def two(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Two]:
    """What is told is told at once and by notifications alone: no poll tells of everything besides."""
    monkeypatch.setattr(news, "QUIET", 0.0)
    for pause in ("HEARD_POLL", "ACTIVE_POLL", "IDLE_POLL"):
        monkeypatch.setattr(news, pause, 3600.0)
    monkeypatch.setattr(connection, "AT_REST", 3600.0)  # no plan is made before it is needed
    made = Two(shared().fresh("hints"))
    await made.open()
    yield made
    await made.close()


async def test_a_run_is_looked_up_when_it_is_heard_of(two: Two, asked: list[str]) -> None:
    """By then nobody has asked for it; whoever does is given it as it stands, and nothing else is asked."""
    for name in ("r1", "r2"):
        asked.clear()
        await two.hear(name)
        assert asked == ["by its name"]
        found = await two.look()
        assert isinstance(found, Loaded) and found == await two.here.load(name)
        assert asked == ["by its name"]
        assert [c.run_id for c in await two.there.claim("w", (), None, limit=5)] == [name]


async def test_all_that_is_due_is_looked_for_after_a_while(two: Two, asked: list[str]) -> None:
    two.now += hints.SECONDS
    await two.hear("r1")
    assert isinstance(await two.look(), Loaded)
    assert asked == ["all that is due"]


async def test_runs_that_were_told_of_since_the_last_look_are_claimed(two: Two) -> None:
    for name in ("r1", "r2", "r3"):
        await two.hear(name)
    found = await two.look()
    assert isinstance(found, Claims)
    assert sorted(c.run_id for c in found) == ["r1", "r2", "r3"]


@pytest.mark.parametrize("why", ["another queue", "a command", "taken", "its lane is held", "a limit"])
async def test_a_run_that_is_not_to_be_given_is_not(two: Two, asked: list[str], why: str) -> None:
    """Whoever asks then looks for all that is due, and is given what it would have been given."""
    await two.here.register("v", TTL)
    if why == "its lane is held":
        await Script(two.here, "r0", session_key="s").begin("v")
        await two.look()
    fields = {"another queue": {"queue": "other"}, "its lane is held": {"session_key": "s"}}.get(why, {})
    if why == "a limit":
        await two.there.put_rule(Rule("queue:default", Limit(in_flight=1)), None)
        await two.look()
    asked.clear()
    await two.hear("r1", **fields)
    assert asked == ["by its name"]
    if why == "a command":
        await two.here.put(signal("r1", "k", two.here.now()))
    if why == "taken":
        await two.here.claim("v", (), None, limit=1, run_id="r1")
    found = await two.look()
    if why == "taken":  # where it was looked up before, its first commit will be refused
        assert isinstance(found, Loaded) or found == Claims()
        assert await two.there.claim("w", ("default",), None, limit=5) == []
    elif why == "a command":  # of which this store may have heard by now
        assert isinstance(found, Loaded) or [c.run_id for c in found] == ["r1"]
        assert isinstance(found, Claims) or [c.run_id for c in await two.there.claim("w", ("default",), None, limit=5)] == ["r1"]
    else:
        assert "all that is due" in asked
        assert isinstance(found, Claims)
        assert [c.run_id for c in found] == (["r1"] if why == "a limit" else [])


@pytest.mark.parametrize("run_id", ["r\ufffd1", "é", "r" * (hints.LONGEST_NAME + 1)])
async def test_a_name_that_is_none_of_ours_is_not_looked_up(run_id: str) -> None:
    """Anybody who can connect can notify, also of names that the encoding of a connection cannot say."""
    told = Told()
    told.hints.expect((), told.look_up)
    told.hints.tell(run_id)
    assert told.hints.take() is None and told.looked_up == []


@pytest.mark.parametrize("payload", ["3 x ", "3 x '; DROP TABLE holdfast.run; --", "3 x " + "é" * 3000, "3 x r1 r2", "3", "", "x x x"])
async def test_a_notification_of_others_does_no_harm(two: Two, payload: str) -> None:
    two.heard.clear()
    with shared().admin("hints") as db:
        db.execute("SELECT pg_notify('holdfast_news', %s)", (payload,))
    async with asyncio.timeout(60):
        await two.heard.wait()
    assert await two.look() == Claims()
    await two.hear("r1")
    assert isinstance(await two.look(), Loaded)

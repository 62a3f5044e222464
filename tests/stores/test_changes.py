"""Waiting for news: whoever waits hears of it, or why it cannot be looked for."""

from __future__ import annotations

import asyncio
import itertools
import pathlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from holdfast.core.errors import StoreClosed, StoreError
from holdfast.core.limits import Rule
from holdfast.ports import ANYTHING, News
from holdfast.stores.changes import PLACES, Bell, Board, Changes
from holdfast.stores.sqlite.store import SqliteStore


async def test_a_look_that_fails_is_told_to_whoever_waits() -> None:
    """X-14: the timer that looks is awaited by nobody, so that its error would be seen by nobody; the next look is made all the same."""
    answers: list[int | StoreError] = [1, StoreError("input or output failed"), 1, 2]

    def probe() -> int:
        match answers.pop(0) if len(answers) > 1 else answers[0]:
            case StoreError() as error:
                raise error
            case number:
                return number

    unseen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: unseen.append(about))
    changes = Changes(probe)
    await changes.wait(0)
    with pytest.raises(StoreError, match="input or output"):
        await changes.wait(5)
    await changes.wait(5)
    changes.close()
    assert unseen == []


async def test_news_without_an_end_do_not_hold_up_the_event_loop() -> None:
    """Another process may write without a pause: whoever reads after each of its changes lets other tasks go on in between."""
    changes = Changes(itertools.count().__next__)
    turns = 0

    async def work() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    working = asyncio.ensure_future(work())
    for _ in range(50):
        await changes.wait(3600)
    working.cancel()
    changes.close()
    assert turns >= 40


# -- the bell ---------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "a.db"
    path.touch()
    return str(path)


def rung(file: str, probe: Callable[[], int]) -> Changes:
    changes = Changes(probe)
    changes.reopen(Bell.of(file))
    return changes


async def waits(changes: Changes, about: News = ANYTHING) -> None:
    """Until the next change: a task's first look only sets what is news to it."""
    await changes.wait(0, about)
    await changes.wait(3600, about)


@pytest.fixture
def slow_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll so slow that whoever wakes was told."""
    monkeypatch.setattr("holdfast.stores.changes.ACTIVE_POLL", 3600)
    monkeypatch.setattr("holdfast.stores.changes.IDLE_POLL", 3600)


@pytest.mark.skipif(sys.platform != "linux", reason="names without files are Linux's")
async def test_who_has_the_file_open_is_told_at_once(file: str, slow_poll: None) -> None:
    """Issue «Speed», 7: the one who waits need not poll; what is told in one turn is told once."""
    version = 1
    mine, theirs = rung(file, lambda: version), rung(file, lambda: version)
    waiting = asyncio.ensure_future(waits(mine))
    await asyncio.sleep(0)
    version = 2
    for _ in range(100):
        theirs.tell()
    await asyncio.wait_for(waiting, 30)
    bell = theirs.bell
    assert bell is not None and bell.heard
    assert bell.sent <= PLACES, "a hundred commits of one turn are told of once"
    theirs.tell()
    await asyncio.sleep(0)
    assert bell.sent <= PLACES + 1, "and from then on only those who hear"
    mine.close()
    theirs.tell()
    await asyncio.sleep(0)
    assert not bell.heard
    theirs.close()


async def test_a_look_for_nothing_wakes_nobody(file: str, slow_poll: None) -> None:
    mine, theirs = rung(file, lambda: 1), rung(file, lambda: 1)
    waiting = asyncio.ensure_future(waits(mine))
    await asyncio.sleep(0)
    looks = mine.looks
    theirs.tell()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done() and mine.looks <= looks + 1
    mine.close()
    theirs.close()
    with pytest.raises(StoreClosed):
        await waiting


async def test_commands_are_not_looked_out_for_as_often_as_answers(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run alone that was driven looked a thousand times a second whether somebody elsewhere had cancelled it: as much as a tenth of its steps' work. Who
    waits for anything else, or where no process rings, is not kept waiting."""
    monkeypatch.setattr("holdfast.stores.changes.ACTIVE_POLL", 0)
    monkeypatch.setattr("holdfast.stores.changes.IDLE_POLL", 3600)
    for rings, hurries in ((True, None), (True, News.DUE), (False, None)):
        changes = Changes(lambda: 1)
        changes.reopen(Bell.of(file) if rings else None, lambda: Board.of(f"{file}.news", file))
        changes.tell()
        driven = [asyncio.ensure_future(waits(changes, News.INBOX))]
        for _ in range(5):
            await asyncio.sleep(0)
        driven.append(asyncio.ensure_future(waits(changes, News.INBOX)))
        driven += [] if hurries is None else [asyncio.ensure_future(waits(changes, hurries))]
        for _ in range(5):
            await asyncio.sleep(0)
        before = changes.looks
        for _ in range(20):
            await asyncio.sleep(0)
        assert (changes.looks - before > 5) is (hurries is not None or not (rings and sys.platform == "linux"))
        changes.close()
        await asyncio.gather(*driven, return_exceptions=True)


@pytest.mark.skipif(sys.platform != "linux", reason="names without files are Linux's")
async def test_a_bell_wakes_nobody_in_vain(file: str, slow_poll: None) -> None:
    """A process is told of what somebody in it waits for, whatever else is news; what it was not told of it finds when it waits for that."""
    version = 1

    def with_board() -> Changes:
        changes = Changes(lambda: version)
        changes.reopen(Bell.of(file), lambda: Board.of(f"{file}.news", file))
        return changes

    mine, theirs = with_board(), with_board()
    theirs.tell(News.DUE)
    await asyncio.sleep(0)
    bell = theirs.bell
    assert bell is not None
    sent = bell.sent

    async def told(news: News) -> int:
        nonlocal sent, version
        version += 1
        before = sent
        theirs.tell(news)
        for _ in range(4):
            await asyncio.sleep(0)  # it is rung, and heard
        sent = bell.sent
        return sent - before

    assert await told(News.FREED) == 1, "who has not said what it waits for is told of everything"
    await mine.wait(0, News.INBOX)
    await mine.wait(0.001, News.INBOX)  # it sleeps, and hears from now on
    assert [await told(news) for news in (News.DUE, News.FREED, News.OUTBOX, News.OTHER)] == [0] * 4
    assert await told(News.INBOX) == 1
    assert await mine.wait(3600, News.INBOX) == News.INBOX
    assert await told(News.DUE) == 0
    assert await mine.wait(3600, News.DUE) == News.DUE, "though nobody told it"
    assert [await told(news) for news in (News.FREED, News.DUE, News.DUE)] == [0, 1, 0], "once it has been told in vain"
    for news in (News.FREED, News.OTHER):
        await mine.wait(0, ANYTHING)
        assert await told(news) == 1
    waiting = asyncio.ensure_future(mine.wait(3600, News.OUTBOX))
    for _ in range(5):
        await asyncio.sleep(0)  # it has heard, and nobody in it waits for anything else now
    assert [await told(news) for news in (News.DUE, News.OTHER, News.OUTBOX)] == [0, 0, 1]
    await waiting
    mine.close()
    theirs.close()


@pytest.mark.skipif(sys.platform != "linux", reason="names without files are Linux's")
async def test_where_nothing_can_be_said_everything_is_told(file: str, slow_poll: None, monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board.of(f"{file}.news", file)
    assert board is not None
    board.close()
    board.listen(3, int(News.DUE))  # on a disk without room, or a board that is gone
    assert board.listens() == bytes(PLACES)


async def test_the_poll_is_the_truth(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody need be reached: there are more processes than names, or no names at all."""
    version = 1
    crowd = [rung(file, lambda: version) for _ in range(PLACES)]
    late, silent = rung(file, lambda: version), Changes(lambda: version)
    waiting = asyncio.ensure_future(waits(late))
    await asyncio.sleep(0)
    version = 2
    silent.tell()
    await asyncio.wait_for(waiting, 30)
    for changes in (*crowd, late, silent):
        changes.close()


async def test_a_store_whose_time_is_given_rings_no_bell(tmp_path: pathlib.Path) -> None:
    """The order of what happens in a simulated world is the seed's alone."""
    for now, rings in ((None, sys.platform == "linux"), (lambda: 1, False)):
        store = SqliteStore(tmp_path / f"{rings}.db", now=now)
        await store.open()
        assert store.rings is rings
        await store.close()


# -- of which kind news is --------------------------------------------------------------------------


@pytest.fixture
async def pair(tmp_path: pathlib.Path) -> AsyncIterator[tuple[SqliteStore, SqliteStore]]:
    """Two stores over one file, as two processes have them."""
    one, two = SqliteStore(tmp_path / "a.db"), SqliteStore(tmp_path / "a.db")
    await one.open()
    await two.open()
    yield one, two
    await one.close()
    await two.close()


async def heard(store: SqliteStore, about: News, write: Callable[[], Awaitable[object]]) -> News:
    """What a task that waits for these kinds is told after a write elsewhere; nothing where the write is none of its business."""
    told: list[News] = []
    waits = asyncio.Event()

    async def wait() -> None:
        await store.wait_for_change(0, about)
        waits.set()
        told.append(await store.wait_for_change(3600, about))

    waiting = asyncio.ensure_future(wait())
    any_change = asyncio.ensure_future(_two_waits(store, waits))
    await waits.wait()
    await asyncio.sleep(0)
    await write()
    await any_change  # the store has seen that something was written
    for _ in range(10):
        await asyncio.sleep(0)
    waiting.cancel()
    return told[0] if told else News(0)


async def _two_waits(store: SqliteStore, waits: asyncio.Event) -> None:
    await store.wait_for_change(0)
    await waits.wait()
    await store.wait_for_change(3600)


async def test_whoever_waits_for_one_kind_of_news_is_not_woken_by_another(pair: tuple[SqliteStore, SqliteStore]) -> None:
    """A worker is not woken by each commit of any process: a lease that was renewed, or registered, makes nothing due."""
    one, two = pair
    await two.register("w", 60_000_000)
    for about in (News.DUE, News.FREED, News.INBOX, News.OUTBOX, News.DUE | News.FREED):
        assert await heard(one, about, lambda: two.renew("w", 60_000_000)) == News(0)
        assert await heard(one, about, lambda: two.put_rule(Rule("queue:q"), None)) == about & News.DUE
        await two.put_rule(Rule("queue:q"), Rule("queue:q"))
        assert await heard(one, about, lambda: two.retire("nobody")) == about & (News.DUE | News.FREED)


async def test_what_is_written_here_is_told_here_once(pair: tuple[SqliteStore, SqliteStore]) -> None:
    """Its own number on the board is no news to whoever put it there."""
    one, _ = pair
    await one.wait_for_change(0, News.DUE)
    await one.retire("nobody")
    assert await one.wait_for_change(0, News.DUE) == News.DUE
    assert await one.wait_for_change(0.02, News.DUE) == News(0)


async def test_without_a_board_every_change_is_of_every_kind(pair: tuple[SqliteStore, SqliteStore], monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in which nothing can be made keeps no worker from its work: each change wakes it."""
    one, two = pair
    monkeypatch.setattr(Board, "of", lambda *_: None)
    await one.close()
    await one.open()
    await two.register("w", 60_000_000)
    assert await heard(one, News.DUE, lambda: two.renew("w", 60_000_000)) == ANYTHING


def test_a_board_tells_of_what_others_wrote(tmp_path: pathlib.Path) -> None:
    database = tmp_path / "a.db"
    database.touch()
    mine, theirs = (Board.of(str(tmp_path / "live" / "!news"), str(database)) for _ in range(2))
    assert mine is not None and theirs is not None
    mine.say(News.DUE)
    assert mine.hear() == 0 and theirs.hear() == News.DUE
    mine.say(News.FREED | News.OTHER)
    theirs.say(News.DUE | News.OUTBOX)
    assert mine.hear() == News.DUE | News.OUTBOX and theirs.hear() == News.FREED
    assert mine.hear() == theirs.hear() == 0
    mine.close()
    assert mine.hear() == int(ANYTHING), "what cannot be read may say anything"
    assert Board.of(str(database / "live" / "!news"), str(database)) is None

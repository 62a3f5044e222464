"""Taking turns at the write lock (§1.11): whoever has committed wakes whoever waits; nothing depends on it."""

from __future__ import annotations

import os
import pathlib
import sys
import threading
from collections.abc import Iterator

import pytest

from holdfast.ports import ANYTHING
from holdfast.stores.changes import AFTER_NEWS, PLACES, Board
from holdfast.stores.sqlite.turns import Turns

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="names that no folder shows are of Linux")
LONG = 3600.0


@pytest.fixture
def place(tmp_path: pathlib.Path) -> tuple[str, str]:
    """A board, and the database that it lies beside."""
    database, board = tmp_path / "a.db", tmp_path / "live" / "!news"
    database.touch()
    assert Board.of(str(board), str(database)) is not None
    return str(board), str(database)


def waiting(board: str) -> list[int]:
    data = pathlib.Path(board).read_bytes()[AFTER_NEWS:]
    return [n for n, word in enumerate(data) if word]


class Waiter(threading.Thread):
    """Another process, as far as the file knows."""

    def __init__(self, place: tuple[str, str]) -> None:
        super().__init__(daemon=True)
        self.turns = Turns(*place)
        self.done = threading.Event()

    def run(self) -> None:
        self.turns.wait(LONG)
        self.done.set()


@pytest.fixture
def waiters(place: tuple[str, str]) -> Iterator[list[Waiter]]:
    """Two of them, who wait in this order of places."""
    made = [Waiter(place) for _ in range(2)]
    for n, waiter in enumerate(made):
        waiter.start()
        while n not in waiting(place[0]):
            waiter.done.wait(0.001)
    yield made
    for waiter in made:
        waiter.turns.close()


def test_one_of_those_who_wait_is_woken_by_each_commit_and_each_in_its_turn(place: tuple[str, str], waiters: list[Waiter]) -> None:
    first, second = waiters
    writer = Turns(*place)
    writer.pass_on()
    assert first.done.wait(LONG)
    assert not second.done.is_set()
    assert waiting(place[0]) == [0, 1], "who has been woken waits until it has the lock, or gives up"
    first.turns.pass_on()  # it has committed
    assert second.done.wait(LONG)
    assert waiting(place[0]) == [1]
    second.turns.leave()
    assert waiting(place[0]) == []
    writer.pass_on()  # nobody waits


def test_who_has_died_while_it_waited_is_passed_over(place: tuple[str, str], waiters: list[Waiter]) -> None:
    first, second = waiters
    with open(place[0], "r+b") as board:
        board.seek(AFTER_NEWS + 2)
        board.write(b"\1\1")  # nobody has these names
    first.turns.pass_on()
    assert second.done.wait(LONG)
    second.turns.pass_on()
    assert waiting(place[0]) == []
    first.turns.wait(0)  # whatever it was told meanwhile
    assert waiting(place[0]) == [0]


def test_news_of_every_kind_says_of_nobody_that_it_waits(place: tuple[str, str]) -> None:
    """Both lie on one board."""
    board = Board.of(*place)
    assert board is not None
    board.say(int(ANYTHING))
    turns = Turns(*place)
    turns.wait(0)
    board.say(int(ANYTHING))
    assert waiting(place[0]) == [0]
    board.close()


def test_a_wait_ends_by_itself(place: tuple[str, str]) -> None:
    """A hint that is lost costs the rest of a pause, as without it."""
    turns = Turns(*place)
    turns.wait(0.001)
    assert waiting(place[0]) == [0]


@pytest.mark.parametrize("lacks", ["board", "database", "name"])
def test_without_what_it_needs_a_pause_is_a_pause(lacks: str, place: tuple[str, str]) -> None:
    board, database = place
    others = [Turns(*place) for _ in range(PLACES)] if lacks == "name" else []
    for other in others:
        other.pass_on()  # takes its name
    if lacks != "name":
        os.unlink(board if lacks == "board" else database)
    turns = Turns(*place)
    turns.wait(0.001)
    turns.pass_on()
    turns.leave()
    assert lacks == "board" or waiting(board) == []


def test_who_stands_still_while_it_waits_keeps_nobody_else_waiting(place: tuple[str, str], waiters: list[Waiter]) -> None:
    """A process that is stopped is told as often as its socket takes it; after that the next one is."""
    first, second = waiters
    stopped = Turns(*place)
    stopped.wait(0)  # it has said that it waits, and does not look again
    assert waiting(place[0]) == [0, 1, 2], "so the second one tells it before the first"
    for _ in range(10_000):
        second.turns.pass_on()
        if first.done.wait(0):
            break
    assert first.done.is_set()
    stopped.close()

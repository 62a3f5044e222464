"""Taking turns at the write lock (§1.11): who goes on, who is let in, and who is woken; nothing depends on it."""

from __future__ import annotations

import asyncio
import os
import pathlib
import select
import sys
from collections.abc import Callable, Iterator

import pytest

from holdfast.core.errors import StoreClosed
from holdfast.ports import ANYTHING
from holdfast.stores.changes import AFTER_NEWS, PLACES, Board
from holdfast.stores.sqlite.connection import Pace
from holdfast.stores.sqlite.turns import LEAST_SECONDS, LEAVE_SECONDS, ON, ONCE, ROUND_SECONDS, TURN_SECONDS, LockWait, Turns

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="names that no folder shows are of Linux")

SOON = 0.002


class World:
    """A file with its board, a clock that the test moves, and processes as far as the file knows: the n-th has the place n."""

    def __init__(self, folder: pathlib.Path) -> None:
        database, self._board = folder / "a.db", folder / "live" / "!news"
        database.touch()
        self.place = str(self._board), str(database)
        board = Board.of(*self.place)
        assert board is not None
        board.close()
        self.now = 0.0
        self.made: list[Turns] = []

    def process(self, *, others: bool = True) -> Turns:
        turns = Turns(*self.place, lambda: others, Pace(), lambda: self.now)
        assert turns.fileno() >= 0
        self.made.append(turns)
        return turns

    def crowd(self, count: int) -> list[Turns]:
        """Processes that write one commit after the other, and wait for their turns."""
        first, crowd = len(self.made), [self.process() for _ in range(count)]
        assert all(turns.may_go_on() for turns in crowd)
        for turns in crowd:
            turns.wait(once=False)
        assert self.waits == dict.fromkeys(range(first, first + count), ON)
        return crowd

    def goes_on(self) -> Turns:
        """One of these."""
        (turns,) = self.crowd(1)
        return turns

    def end_turn(self) -> None:
        self.now += 1.01 * TURN_SECONDS

    def lone(self) -> Turns:
        """A process that has one commit to make, and waits for it."""
        turns = self.process()
        turns.wait(once=False)
        assert self.waits[len(self.made) - 1] == ONCE
        return turns

    @property
    def waits(self) -> dict[int, int]:
        """Who waits, by places, and for what."""
        return {place: word for place, word in enumerate(self._bytes()[:PLACES]) if word}

    @property
    def turn(self) -> int | None:
        """Whose turn it is."""
        word = self._bytes()[PLACES]
        return word - 1 if word else None

    def _bytes(self) -> bytes:
        return self._board.read_bytes()[AFTER_NEWS:].ljust(PLACES + 1, b"\0")

    def say(self, place: int, word: int) -> None:
        with open(self._board, "r+b") as board:
            board.seek(AFTER_NEWS + place)
            board.write(bytes([word]))


@pytest.fixture
def world(tmp_path: pathlib.Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    for turns in made.made:
        turns.close()


def woken(turns: Turns) -> bool:
    """Whether a process has been woken; then it looks."""
    if not select.select([turns.fileno()], [], [], 0)[0]:
        return False
    turns.look()
    return True


# -- turns ------------------------------------------------------------------------------------------


def test_where_nobody_waits_whoever_writes_goes_on_and_says_nothing(world: World) -> None:
    writer, other = world.process(), world.process()
    for _ in range(3):
        assert writer.may_go_on() and other.may_go_on()
        world.end_turn()
    assert not writer.give_way()
    writer.pass_on()
    writer.rest()
    assert world.waits == {} and world.turn is None


def test_one_with_one_commit_to_make_is_let_in_and_the_turn_goes_on_after_it(world: World) -> None:
    writer, lone = world.process(), world.lone()
    assert not writer.may_go_on(), "the lone one comes first"
    assert woken(lone) and world.waits == {} and world.turn == 0
    assert writer.wait(once=False) == LEAVE_SECONDS, "one that was let in and has died keeps nobody waiting"
    assert world.waits == {0: ON}
    lone.pass_on()  # it has committed
    assert woken(writer) and world.turn == 0
    assert writer.may_go_on()


def test_one_that_goes_on_waits_for_its_turn(world: World) -> None:
    writer, next_ = world.process(), world.goes_on()
    assert writer.may_go_on() and world.turn == 0
    world.now += TURN_SECONDS * 0.99
    assert writer.may_go_on() and not woken(next_)
    world.now += TURN_SECONDS * 0.02
    assert not writer.may_go_on()
    assert woken(next_) and world.turn == 1
    assert writer.wait(once=False) > TURN_SECONDS, "it waits until the other's turn is over"
    assert next_.may_go_on()
    world.end_turn()
    assert not next_.may_go_on()
    assert woken(writer) and world.turn == 0


@pytest.mark.parametrize("count", [1, 2, 3, 6, 15])
def test_the_more_wait_the_shorter_are_the_turns(count: int, world: World) -> None:
    writer = world.process()
    crowd = world.crowd(count)
    assert writer.may_go_on()
    length = max(LEAST_SECONDS, min(TURN_SECONDS, ROUND_SECONDS / count))
    assert length * count <= ROUND_SECONDS + 0.05
    world.now += length * 0.99
    assert writer.may_go_on()
    world.now += length * 0.02
    assert not writer.may_go_on()
    assert [woken(each) for each in crowd] == [True] + [False] * (count - 1), "one is woken"


def test_each_comes_in_its_turn(world: World) -> None:
    all_ = [world.process(), *world.crowd(3)]
    assert all_[0].may_go_on()
    had = [0]
    for _ in range(8):
        world.end_turn()
        mine = all_[had[-1]]
        assert not mine.may_go_on()
        mine.wait(once=False)
        (after,) = [n for n, each in enumerate(all_) if woken(each)]
        assert world.turn == after and all_[after].may_go_on()
        had.append(after)
    assert had == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_lone_ones_are_let_in_one_after_the_other(world: World) -> None:
    writer, lone = world.process(), [world.lone() for _ in range(3)]
    had = []
    for _ in range(7):
        assert not writer.may_go_on()
        writer.wait(once=False)
        (n,) = [n for n, each in enumerate(lone) if woken(each)]
        had.append(n)
        lone[n].pass_on()
        assert woken(writer), "it writes between them"
        lone[n].wait(once=False)
    assert had == [0, 1, 2, 0, 1, 2, 0]


def test_one_that_comes_between_writes_once_and_waits_for_its_turn_then(world: World) -> None:
    """A worker whose runs have just begun does not know yet that it goes on."""
    writer, waiting = world.process(), world.goes_on()
    assert writer.may_go_on() and world.turn == 0
    comes = world.lone()
    assert not writer.may_go_on()
    writer.wait(once=False)
    assert woken(comes)
    assert not comes.may_go_on(), "it has more to write, but it is another's turn"
    assert woken(writer) and world.turn == 0
    comes.wait(once=False)
    assert world.waits == {1: ON, 2: ON} and not woken(waiting)


def test_one_that_rests_wakes_the_next(world: World) -> None:
    writer, next_ = world.process(), world.goes_on()
    assert writer.may_go_on() and world.turn == 0
    writer.rest()
    assert woken(next_) and world.turn == 1
    next_.rest()
    assert world.turn is None
    writer.rest()  # it has no turn
    writer.wait(once=False)
    assert world.waits == {0: ONCE}, "after a rest it is let in again"


def test_one_that_rests_lets_the_lone_ones_in_first(world: World) -> None:
    writer, next_, lone = world.process(), world.goes_on(), world.lone()
    world.say(2, 0)
    assert writer.may_go_on()
    world.say(2, ONCE)
    writer.rest()
    assert woken(lone) and not woken(next_) and world.turn is None
    lone.pass_on()
    assert woken(next_) and world.turn == 1


def test_one_that_has_waited_for_too_long_takes_the_turn(world: World) -> None:
    """Whoever has the turn has died, or writes nothing and does not say so."""
    writer, next_ = world.process(), world.goes_on()
    assert writer.may_go_on() and world.turn == 0
    next_.look()  # its patience is at its end
    assert world.turn == 1
    assert not writer.may_go_on(), "it goes on after all, and waits now"
    writer.wait(once=False)
    assert world.waits == {0: ON}
    world.end_turn()
    assert not next_.may_go_on()
    assert woken(writer)


def test_a_run_alone_gives_way_and_is_let_in_again(world: World) -> None:
    alone = world.process()
    assert not alone.give_way()
    next_ = world.goes_on()
    assert alone.give_way()
    assert woken(next_) and world.turn == 1
    alone.wait(once=False)
    assert world.waits == {0: ONCE}
    assert not next_.may_go_on()
    next_.wait(once=False)
    assert woken(alone) and world.turn == 1
    assert alone.hand_back(), "it has made one commit"
    assert woken(next_) and world.turn == 1
    assert alone.give_way(), "its next commit comes after the other's next"
    alone.wait(once=False)
    next_.rest()
    assert woken(alone) and world.turn is None
    assert not alone.hand_back() and not alone.give_way(), "and now it is alone"


def test_runs_alone_give_way_to_each_other(world: World) -> None:
    first, second = world.process(), world.lone()
    assert first.give_way()
    first.wait(once=False)
    assert woken(second) and world.waits == {0: ONCE} and world.turn is None
    assert not second.hand_back(), "nobody has a turn: it goes on for a while"
    assert second.give_way()
    assert woken(first)


def test_one_that_does_not_use_its_turn_has_it_no_more(world: World) -> None:
    """It has died in it, or waits for something else than the file."""
    gone, next_ = world.process(), world.goes_on()
    assert gone.may_go_on() and world.turn == 0
    lone = world.process()
    lone.pass_on()  # it found the file free
    assert world.turn is None and not woken(next_)
    lone.pass_on()
    assert world.turn == 1 and woken(next_)
    assert not gone.may_go_on(), "if it comes back it waits"


def test_one_that_was_let_in_may_have_written_before_the_other_waits(world: World) -> None:
    """Whoever let it in has answered its own commit meanwhile; it does not wait in vain."""
    writer, next_, lone = world.process(), world.goes_on(), world.process()
    assert writer.may_go_on() and world.turn == 0
    lone.wait(once=False)
    assert not writer.may_go_on()
    assert woken(lone)
    lone.pass_on()
    assert world.turn is None and not woken(writer)
    assert writer.wait(once=False) == 0.0
    assert world.turn == 0
    writer.look()
    assert writer.may_go_on()
    lone.pass_on()
    assert world.turn is None
    assert writer.may_go_on() and world.turn == 0, "it says again whose turn it is"
    world.now += 0.9 * TURN_SECONDS
    assert writer.may_go_on()
    world.now += 0.2 * TURN_SECONDS
    assert not writer.may_go_on() and woken(next_), "and its turn has not begun anew"


def test_where_nobody_has_a_turn_whoever_waits_looks_soon(world: World) -> None:
    waits = world.process()
    assert waits.may_go_on()
    assert 0 < waits.wait(once=False) <= SOON
    waits.look()
    assert world.turn == 0
    other = world.process()
    assert not other.may_go_on()
    assert other.wait(once=False) > TURN_SECONDS


def test_a_command_is_let_in_though_its_process_waits_for_a_turn(world: World) -> None:
    writer, mixed = world.process(), world.goes_on()
    assert writer.may_go_on()
    mixed.wait(once=True)
    assert world.waits == {1: ONCE}
    assert not writer.may_go_on()
    writer.wait(once=False)
    assert woken(mixed) and world.turn == 0, "its turn has not come yet"
    mixed.wait(once=False)
    mixed.pass_on()  # the command is written
    assert woken(writer) and world.waits == {1: ON}


# -- who is not there -------------------------------------------------------------------------------


def test_who_has_died_while_it_waited_is_passed_over(world: World) -> None:
    writer, alive = world.process(), world.goes_on()
    assert writer.may_go_on()
    for gone in (2, 3):
        world.say(gone, ON)
    world.say(4, ONCE)
    world.end_turn()
    assert not writer.may_go_on()
    assert woken(alive), "and nobody has these names"
    world.say(1, 0)
    alive.rest()
    assert world.waits == {} and world.turn is None


def test_alone_again_after_the_last_one_died(world: World) -> None:
    writer = world.process()
    for word in (ONCE, ON):
        world.say(5, word)
        world.end_turn()
        assert writer.may_go_on()
        world.end_turn()
        assert writer.may_go_on()
        assert world.waits == {}
    world.say(PLACES, 200)  # no place at all
    assert writer.may_go_on()


def test_who_stands_still_while_it_waits_is_told_once(world: World) -> None:
    """A process that is stopped costs whoever commits one datagram, and then it is the next one's turn."""
    writer, (stopped, other) = world.process(), world.crowd(2)
    assert writer.may_go_on()
    world.end_turn()
    assert not writer.may_go_on()
    writer.wait(once=False)
    assert world.turn == 1 and world.waits == {0: ON, 2: ON}, "it has been woken, and does not look"
    writer.look()  # after a while it takes the turn back
    assert writer.may_go_on() and world.turn == 0
    world.end_turn()
    assert not writer.may_go_on()
    assert woken(other)
    assert woken(stopped), "it goes on"


def test_one_that_meets_the_lock_knows_that_it_is_not_alone(world: World) -> None:
    """The bell tells of others late, where little is told of."""
    writer, next_ = world.process(others=False), world.goes_on()
    assert writer.may_go_on() and world.turn is None
    writer.wait(once=False)
    writer.look()
    assert writer.may_go_on() and world.turn == 0
    world.end_turn()
    assert not writer.may_go_on()
    assert woken(next_)
    writer.rest()
    assert writer.may_go_on() and world.turn == 1


def test_news_of_every_kind_says_of_nobody_that_it_waits(world: World) -> None:
    """Both lie on one board."""
    board = Board.of(*world.place)
    assert board is not None
    board.say(int(ANYTHING))
    board.listen(PLACES - 1, int(ANYTHING))
    assert world.waits == {} and world.turn is None
    world.goes_on()
    board.say(int(ANYTHING))
    assert world.waits == {0: ON} and board.listens() == bytes(PLACES - 1) + bytes([0x80 | int(ANYTHING)])
    board.close()


@pytest.mark.parametrize("lacks", ["board", "database", "name"])
def test_without_what_it_needs_a_pause_is_a_pause(lacks: str, world: World) -> None:
    if lacks == "name":
        for _ in range(PLACES):
            world.process()
    else:
        os.unlink(world.place[lacks == "database"])
    turns = Turns(*world.place, lambda: True, Pace())
    assert turns.fileno() == -1
    assert 0 < turns.wait(once=False) < SOON
    turns.look()
    turns.pass_on()
    turns.rest()
    assert turns.may_go_on() and not turns.give_way()
    turns.close()
    assert lacks == "board" or (world.waits == {} and world.turn is None)


# -- waiting in the loop ----------------------------------------------------------------------------



class Writing:
    """What is written when the lock may be free."""

    def __init__(self, turns: Turns) -> None:
        self.wait = LockWait(turns, self._write)
        self.woken: asyncio.Queue[bool] = asyncio.Queue()

    def _write(self, others_first: bool) -> None:
        self.woken.put_nowait(others_first)

    async def of(self) -> bool:
        return await asyncio.wait_for(self.woken.get(), 30)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wakes was woken."""
    for name in ("ROUND_SECONDS", "LEAVE_SECONDS"):
        monkeypatch.setattr(f"holdfast.stores.sqlite.turns.{name}", 3600.0)
    monkeypatch.setattr(Pace, "pause", lambda _: 3600.0)


async def test_the_loop_is_woken_when_it_is_its_turn(world: World, patient: None) -> None:
    writer, next_ = world.process(), world.process()
    writing = Writing(next_)
    assert not writing.wait.on
    for _ in range(2):
        writing.wait.begin()
        assert writing.wait.on and world.waits == {1: ONCE}
        assert not writer.may_go_on()
        assert await writing.of() is False
        assert not writing.wait.on and world.waits == {}
    writing.wait.close()


async def test_the_loop_looks_by_itself_after_a_while(world: World) -> None:
    writing = Writing(world.process())
    writing.wait.begin()
    assert await writing.of() is False
    assert not writing.wait.on
    writing.wait.close()


async def test_what_stands_for_itself_is_told_first(world: World, patient: None) -> None:
    writer, mixed = world.process(), world.goes_on()
    writing = Writing(mixed)
    writing.wait.begin()
    assert world.waits == {1: ON}
    let_in = [asyncio.ensure_future(writing.wait.be_let_in()) for _ in range(3)]
    await asyncio.sleep(0)
    assert world.waits == {1: ONCE}
    let_in[1].cancel()
    await asyncio.sleep(0)
    assert not writer.may_go_on()
    assert await writing.of() is True
    await asyncio.gather(let_in[0], let_in[2])
    writing.wait.begin()
    writing.wait.begin()
    assert world.waits == {1: ON}, "and what goes on waits again"
    writing.wait.close()


async def test_who_waits_for_a_store_that_is_closed_is_told_so(world: World, patient: None) -> None:
    writing = Writing(world.process())
    waiting = asyncio.ensure_future(writing.wait.be_let_in())
    await asyncio.sleep(0)
    writing.wait.close()
    with pytest.raises(StoreClosed):
        await waiting
    assert not writing.wait.on and world.waits == {}


def test_a_loop_that_has_died_waits_no_more(world: World, patient: None) -> None:
    writer, turns = world.process(), world.process()
    writing = Writing(turns)

    async def waits() -> None:
        writing.wait.begin()
        assert writing.wait.on

    async def is_woken() -> None:
        assert not writing.wait.on
        writing.wait.begin()
        assert not writer.may_go_on()
        assert await writing.of() is False
        writing.wait.close()

    asyncio.run(waits())
    assert not writing.wait.on
    asyncio.run(is_woken())


def test_a_loop_that_hears_no_datagrams_looks_by_itself(world: World) -> None:
    class Deaf(asyncio.SelectorEventLoop):
        def add_reader(self, fd: object, callback: Callable[..., object], *args: object) -> None:  # type: ignore[override]
            raise NotImplementedError

    async def body() -> None:
        writing = Writing(world.process())
        writing.wait.begin()
        assert await writing.of() is False
        writing.wait.close()

    with asyncio.Runner(loop_factory=Deaf) as runner:
        runner.run(body())

"""A receiver that keeps up gets more at once, one that is slow or fails gets less, and none takes what the others begin with (§9.1)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Context, Graph, Runtime, State
from holdfast.core.errors import ErrorValue
from holdfast.core.intents import Doubtful, Failed, Intent, Outcome, Sent
from holdfast.outbox.dispatcher import Dispatcher, Sender
from holdfast.outbox.hands import Hands, NotReached
from holdfast.outbox.pace import CONCURRENCY, EACH, EXTRA, LONGEST_REST, LONGEST_REST_SERVED, MOST, SERVED_SECONDS, Lane, Pace
from holdfast.outbox.transports import route
from tests.outbox.conftest import Open
from tests.postgres.server import shared
from tests.statements import counting_statements

ERROR = ErrorValue.of(OSError("no"))
A, B = ("a", "default", ""), ("b", "default", "")
lanes = st.sampled_from([(letter, "default", "") for letter in "abcdef"])
ends = st.tuples(lanes, st.sampled_from([Sent(), Failed(ERROR), Doubtful(ERROR)]), st.sampled_from([0.001, 1.0]))


def after(*notes: tuple[Outcome, float], times: int = 1, lane: Lane = A) -> int:
    pace = Pace()
    for _ in range(times):
        for outcome, seconds in notes:
            pace.note(lane, outcome, seconds)
    return pace.of(lane)


def test_a_receiver_that_keeps_up_gets_more_at_once() -> None:
    assert after((Sent(), 0.001), times=10) == EACH + 10
    assert after((Sent(), 0.001), times=1_000) == MOST


def test_one_that_is_slow_keeps_what_it_began_with() -> None:
    assert after((Sent(), 1.0), times=1_000) == EACH
    pace = Pace()
    for seconds in [0.001] * 500 + [1.0] * 500:
        pace.note(A, Sent(), seconds)
    assert pace.of(A) == EACH, "it kept up, and does no more"


def test_one_that_fails_gets_less_and_comes_back() -> None:
    assert after((Failed(ERROR), 0.001), times=10) == 1
    assert after((Doubtful(ERROR), 1.0), times=1) == EACH // 2
    assert after((Failed(ERROR), 0.001), *[(Sent(), 1.0)] * 5) == EACH // 2 + 5, "also a slow one that is well again"


@given(st.lists(ends, max_size=200), st.dictionaries(lanes, st.integers(0, MOST), max_size=6))
def test_nobody_is_given_more_than_there_is(notes: list[tuple[Lane, Outcome, float]], busy: dict[Lane, int]) -> None:
    pace = Pace()
    for lane, outcome, seconds in notes:
        pace.note(lane, outcome, seconds)
    free, room = pace.room([lane for lane, count in busy.items() for _ in range(count)])
    used = sum(max(0, count - EACH) for count in busy.values())
    given_above = 0
    for lane, left in room.items():
        assert 0 <= left <= max(0, pace.of(lane) - busy.get(lane, 0))
        given_above += max(0, left - max(0, EACH - busy.get(lane, 0)))
    assert used + given_above <= max(used, EXTRA)
    assert free <= pace.group <= MOST


def test_what_hangs_takes_nothing_that_others_begin_with() -> None:
    """Eight receivers were quick, took all there was above, and hang: the others still have their places."""
    pace = Pace()
    quick = [(f"q{n}", "default", "") for n in range(8)]
    for lane in quick:
        for _ in range(500):
            pace.note(lane, Sent(), 0.001)
    taken = [lane for lane in quick for _ in range(EACH)] + quick[:1] * EXTRA
    free, room = pace.room(taken)
    assert free >= EACH and all(left == 0 for left in room.values())
    assert CONCURRENCY - 8 * EACH >= EACH


def test_a_group_is_as_large_as_the_disk_makes_it() -> None:
    pace = Pace()
    assert pace.wrote(1, 0.5) is None, "one intent is in nobody's way"
    for _ in range(10):
        rest = pace.wrote(pace.group, 0.009 + 0.000_05 * pace.group)
    assert pace.group == MOST and rest is not None and rest > 0.009, "the store is left to others for about as long"
    for _ in range(30):
        rest = pace.wrote(pace.group, 0.000_1 + 0.000_03 * pace.group)
    assert pace.group == EACH and rest == 0.0


def test_behind_a_server_a_group_grows_less() -> None:
    """Each intent takes its time there, and a run beside it waits for the whole group."""
    pace = Pace(served=True)
    for _ in range(10):
        pace.wrote(pace.group, 0.000_2 * pace.group)
        assert pace.room([])[0] <= pace.group <= MOST // 2
    assert pace.group == MOST // 2


class Slow:
    """A clock that stands still but where it is told that something took long."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds

    def taking(self, verb: Callable[..., Awaitable[list[Any]]], sizes: list[int]) -> Callable[..., Awaitable[list[Any]]]:
        async def slow(*args: Any, **options: Any) -> list[Any]:
            self.at += 0.05
            found = await verb(*args, **options)
            sizes.append(len(found))
            return found

        return slow


async def unlinked(intent: Intent) -> tuple[Intent, str]:
    raise AssertionError("nothing that is sent here has a link")


@pytest.mark.parametrize("served", [False, True])
async def test_groups_grow_as_far_as_the_store_lets_them(served: bool, tmp_path: Path) -> None:
    """Each transaction takes long, and the receiver keeps up."""

    async def mail(payload: Any, key: str) -> None:
        return None

    async with Runtime(shared().fresh() if served else f"sqlite:///{tmp_path}/a.db") as rt:
        await rt.invoke(load, {"count": 600})
        clock, sizes = Slow(), list[int]()
        for verb in ("claim_intents", "settle_intents"):
            setattr(rt.store, verb, clock.taking(getattr(rt.store, verb), sizes))
        await rt.store.register("slow", 600_000_000)
        sender = Sender("slow", lambda: True, 600_000_000)
        assert await Dispatcher(rt.store, clock, sender, {"mail": route("mail", mail)}, unlinked).run(until_idle=True) == 600
        await rt.store.retire("slow")
    assert max(sizes) == (MOST // 2 if served else MOST)


@pytest.mark.parametrize(("served", "short", "longest"), [(False, 0.0, LONGEST_REST), (True, SERVED_SECONDS * EACH - 0.001, LONGEST_REST_SERVED)])
def test_behind_a_server_the_others_need_no_long_rest_but_always_some(served: bool, short: float, longest: float) -> None:
    pace = Pace(served=served)
    assert [pace.wrote(EACH, seconds) for seconds in (0.001, 0.005, 0.500)] == [pytest.approx(short), pytest.approx(0.003), longest]
    assert pace.wrote(EACH - 1, 0.001) is None


def test_what_is_remembered_of_receivers_is_bounded() -> None:
    pace = Pace()
    for n in range(5_000):
        pace.note(("mail", "default", f"host{n}"), Failed(ERROR), 1.0)
    assert len(pace.room([])[1]) <= 1_000


# -- threads ------------------------------------------------------------------------------------------


async def test_a_quick_function_needs_one_thread() -> None:
    hands, seen = Hands(), set()
    await asyncio.gather(*[hands.do(A, lambda: seen.add(threading.current_thread().name)) for _ in range(100)])
    assert len(seen) <= EACH


async def test_a_slow_function_has_as_many_threads_as_places_and_leaves_the_others_theirs() -> None:
    hands, held = Hands(), threading.Event()
    inside = threading.Semaphore(0)

    def hang() -> bool:
        inside.release()
        return held.wait(20)

    going = [asyncio.ensure_future(hands.do(A, hang)) for _ in range(40)]
    for _ in range(EACH):
        assert await asyncio.to_thread(inside.acquire, timeout=60)
    assert await asyncio.wait_for(hands.do(B, lambda: 7), 10) == 7
    assert not inside.acquire(blocking=False), "of one receiver no more than it has places"
    held.set()
    assert await asyncio.wait_for(asyncio.gather(*going), 20) == [True] * 40


async def test_what_no_thread_has_come_to_has_not_happened() -> None:
    hands, held, calls = Hands(each=1), threading.Event(), []
    inside = threading.Semaphore(0)

    def hang() -> bool:
        inside.release()
        return held.wait(20)

    first = asyncio.ensure_future(hands.do(A, hang))
    assert await asyncio.to_thread(inside.acquire, timeout=60), "until a thread has come to it, it has not happened either"
    second = asyncio.ensure_future(hands.do(A, lambda: calls.append(1)))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(NotReached):
        await second
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await asyncio.wait_for(hands.do(A, lambda: 3), 10) == 3, "the thread that hangs is counted no more"
    held.set()
    assert calls == []


async def test_what_a_function_raises_comes_back() -> None:
    hands = Hands()

    def stop() -> None:
        raise StopIteration

    def end() -> None:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError):
        await hands.do(A, stop)
    with pytest.raises(asyncio.CancelledError):
        await hands.do(A, end)
    assert await asyncio.wait_for(hands.do(A, lambda: 1), 10) == 1


# -- from end to end ----------------------------------------------------------------------------------


class Load(State):
    count: int = 0
    type: str = "mail"


load: Graph[Load] = Graph("load", Load, version="1")


@load.node(start=True)
async def write(state: Load, ctx: Context) -> None:
    for n in range(state.count):
        ctx.send(state.type, {"n": n})


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_receiver_that_hangs_after_it_was_quick_hinders_no_other(open_rt: Open, threaded: bool) -> None:
    async with open_rt() as rt:
        await rt.invoke(load, {"count": 120, "type": "mail"})
        await rt.invoke(load, {"count": 20, "type": "fax"})
    held, faxed = threading.Event(), []
    numbers = iter(range(10_000))
    stop, over = asyncio.Event(), asyncio.Event()

    def mail(payload: Any, key: str) -> None:
        if next(numbers) >= 60:
            held.wait(20)

    async def mail_too(payload: Any, key: str) -> None:
        if next(numbers) >= 60:
            await over.wait()

    async def fax(payload: Any, key: str) -> None:
        faxed.append(payload["n"])
        if len(faxed) == 25:
            stop.set()

    async with open_rt(transports={"mail": mail if threaded else mail_too, "fax": fax}) as rt:
        going = asyncio.ensure_future(rt.dispatch(stop=stop))
        async with asyncio.timeout(60):
            while len(faxed) < 20:
                await rt.store.wait_for_change(0.1)
            await rt.submit(load, {"count": 5, "type": "fax"})
            await rt.worker(until_idle=True, dispatch=False)
            await stop.wait()
        held.set()
        over.set()
        await asyncio.wait_for(going, 20)
    assert len(faxed) == 25


@pytest.fixture
def statements() -> Iterator[Counter[str]]:
    with counting_statements() as found:
        yield found


async def test_what_a_group_reads_does_not_grow_with_it(tmp_path: Path, statements: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of sixteen: two transactions, and of an intent two rows each time, itself and what vouches for it. A queue however long is not read."""
    monkeypatch.setattr("holdfast.outbox.pace.MOST", EACH)  # how far groups grow goes by the clock

    async def mail(payload: Any, key: str) -> None:
        return None

    async def drained(count: int) -> Counter[str]:
        url = f"sqlite:///{tmp_path}/{count}.db"
        async with Runtime(url) as rt:
            await rt.invoke(load, {"count": count})
        async with Runtime(url, transports={"mail": mail}) as rt:
            before = Counter(statements)
            assert await rt.dispatch(until_idle=True) == count
            return Counter({k: statements[k] - before[k] for k in statements})

    few, many = await drained(160), await drained(480)
    assert many["BEGIN"] - few["BEGIN"] <= 2.2 * 320 // EACH
    assert many["SELECT"] - few["SELECT"] <= 20 * 320 // EACH
    for word in ("UPDATE", "INSERT"):
        assert 2 * 320 <= many[word] - few[word] <= 2.2 * 320, "the rest is the lease of this process, which goes by the clock"

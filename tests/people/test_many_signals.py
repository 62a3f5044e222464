"""§5.11: a signal costs the same whether it is the first or the five thousandth that a run has not asked for; counted, not timed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import apsw
import msgspec
import pytest

from holdfast import Context, Graph, Runtime, State, append, thread
from holdfast.authoring import Skill
from holdfast.core import codec, decisions
from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core.canon import encode
from holdfast.core.errors import TooManySignals
from holdfast.core.run import AT_HAND
from holdfast.encryption import Encryption, Keys
from holdfast.ports import Store
from holdfast.stores import MemoryStore
from tests.core.build import folded
from tests.postgres.server import shared

MANY = 3 * AT_HAND + 7
STORES = ("memory", "sqlite", "encrypted", "workspace", "postgres")


class Asks(State):
    said: Annotated[list[int], append]
    heard: Annotated[list[int], append]
    seen: int = 0


def taker(count: int) -> Graph[Asks]:
    """Waits for ``wanted``, then takes as many of ``other`` as it was told to, one at a time."""
    made = Graph("taker", Asks, version="1")

    @made.node(start=True)
    async def ask(state: Asks, ctx: Context) -> dict[str, Any]:
        first = await ctx.step(int, 7)
        return {"said": [await ctx.wait("wanted") + first]}

    @made.node(after="ask")
    async def take(state: Asks, ctx: Context) -> dict[str, Any]:
        got = []
        for _ in range(count):
            got.append(await ctx.wait("other"))
        return {"said": got}

    return made


def listener() -> Graph[Asks]:
    """Waits for a person beside a node that hears every signal of the name of its channel."""
    made = Graph("listener", Asks, version="1")

    @made.node(start=True)
    async def ask(state: Asks, ctx: Context) -> dict[str, Any]:
        await ctx.approve("Done?")
        return {"seen": state.seen + 1}

    @made.node(on=["heard"])
    async def hear(state: Asks) -> dict[str, Any]:
        return {"said": [len(state.heard)]}

    return made


class Place:
    """Where a store's runs are kept while processes come and go."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._options: dict[str, Any] = {"encryption": Encryption(Keys({"k": bytes(range(32))}), strict=True)} if kind == "encrypted" else {}
        file = f"sqlite:///{folder}/runs.db"
        self._url = {"sqlite": file, "encrypted": file, "workspace": f"workspace:{folder}/runs", "memory": "memory:"}.get(kind) or shared().fresh()
        self._kept: Store | None = MemoryStore() if kind == "memory" else None

    @asynccontextmanager
    async def runtime(self, *skills: Skill) -> AsyncIterator[Runtime]:
        async with Runtime(self._kept or self._url, skills=skills, **self._options) as rt:
            yield rt


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path)


class Weight(msgspec.Struct, frozen=True):
    """What loading a run reads: log rows and bytes, and what writing it writes."""

    rows: int
    log: int
    whole: int
    doc: int
    inbox: int


async def weight(rt: Runtime, run_id: str) -> Weight:
    loaded = await rt.store.load(run_id)
    assert loaded is not None
    whole = 0 if loaded.whole is None else len(codec.encode_whole(*loaded.whole))
    return Weight(len(loaded.rows), sum(len(r.data) for r in loaded.rows), whole, len(codec.encode_run(loaded.run)), len(loaded.inbox))


async def test_a_load_reads_no_more_after_many_signals(place: Place) -> None:
    """On every store: of the log, of the run's record and of its whole checkpoint."""
    async with place.runtime(taker(0)) as rt:
        run_id = (await rt.invoke("taker")).run_id
        for n in range(2 * AT_HAND):
            await rt.signal(run_id, "other", n, key=f"k{n:04}")
        few = await weight(rt, run_id)
        for n in range(2 * AT_HAND, 6 * AT_HAND):
            await rt.signal(run_id, "other", n, key=f"k{n:04}")
        many = await weight(rt, run_id)
    assert max(few.rows, many.rows) <= AT_HAND + 1
    assert many.log <= max(few.log, 10_000) and many.whole <= few.whole + 32 and many.doc <= few.doc + 32 and many.inbox == 0
    async with place.runtime() as rt:
        assert (await rt.check(run_id)).ok and list(await rt.check()) == []
        run = await rt.get(run_id)
        assert run.record.unasked == 6 * AT_HAND
        record = None
        async for event in rt.events(run_id):
            record = event
        assert record is not None and record.seq == run.version


async def test_they_are_taken_one_by_one_in_their_order(place: Place) -> None:
    """More than a run's record holds, across processes; what was recorded before they came is not done again."""
    async with place.runtime(taker(MANY)) as rt:
        run_id = (await rt.invoke("taker")).run_id
        for n in range(MANY - 5):
            await rt.signal(run_id, "other", n, key=f"k{n}")
            if n % 40 == 0:
                await rt.signal(run_id, "noise", n, key=f"k{n}")
    async with place.runtime(taker(MANY)) as rt:
        run = await rt.resume(run_id, payload=1)
        assert run.status == "waiting_for_signal" and [w.name for w in run.waits] == ["other"]
    async with place.runtime(taker(MANY)) as rt:
        for n in range(MANY - 5, MANY):
            await rt.signal(run_id, "other", n, key=f"k{n}")
        run = await rt.resume(run_id)
        assert run.status == "completed" and run.values["said"] == [8, *range(MANY)]
        assert list(await rt.check()) == []


async def test_a_channel_gets_all_that_came_while_nobody_drove(place: Place) -> None:
    """Signals that a whole checkpoint has left in the log reach the channel of their name, once and in their order."""
    async with place.runtime(listener()) as rt:
        run_id = (await rt.invoke("listener")).run_id
    async with place.runtime() as rt:  # a process without the code
        for n in range(MANY):
            await rt.signal(run_id, "heard", n, key=f"k{n}")
    async with place.runtime(listener()) as rt:
        await rt.worker(until_idle=True)
        run = await rt.get(run_id)
        assert run.status == "waiting_for_human" and run.values["heard"] == [*range(MANY)] and run.values["said"] == [MANY]
        for n in range(MANY, MANY + 3):
            await rt.signal(run_id, "heard", n, key=f"k{n}")
            await rt.worker(until_idle=True)
        assert (await rt.get(run_id)).values["said"] == [MANY, MANY + 1, MANY + 2, MANY + 3]
        done = await rt.approve(run_id)
        assert done.status == "completed" and list(await rt.check()) == []


async def test_what_wakes_a_run_stays_due_however_much_comes_after_it(place: Place) -> None:
    """The one signal that a node listens to is far back in the log when the last of the others comes."""
    async with place.runtime(listener()) as rt:
        run_id = (await rt.invoke("listener")).run_id
    async with place.runtime(listener()) as rt:
        await rt.signal(run_id, "heard", 1, key="one")
        for n in range(MANY):
            await rt.signal(run_id, "other", n, key=f"k{n}")
    async with place.runtime(listener()) as rt:
        await rt.worker(until_idle=True)
        assert (await rt.get(run_id)).values["said"] == [1]


async def test_a_run_that_has_not_begun_keeps_them(place: Place) -> None:
    """Its thread is carried on by the first checkpoint, which comes after them."""

    class Talk(State):
        lines: Annotated[list[str], append, thread]
        said: Annotated[list[int], append]

    made = Graph("talk", Talk, version="1")

    @made.node(start=True)
    async def talk(state: Talk, ctx: Context) -> dict[str, Any]:
        return {"lines": ["x" * 400], "said": [await ctx.wait("other", timeout=1), await ctx.wait("other", timeout=1)]}

    async with place.runtime(made) as rt:
        first = await rt.submit("talk", thread_id="t")
        await rt.signal(first.run_id, "other", 1, key="a")
        await rt.signal(first.run_id, "other", 2, key="b")
        await rt.worker(until_idle=True)
        assert (await rt.get(first.run_id)).status == "completed"
        second = await rt.submit("talk", thread_id="t")
        for n in range(MANY):
            await rt.signal(second.run_id, "other", n, key=f"k{n}")
        assert (await weight(rt, second.run_id)).rows <= AT_HAND + 1
    async with place.runtime(made) as rt:
        await rt.worker(until_idle=True)
        run = await rt.get(second.run_id)
        assert run.status == "completed" and run.values["said"] == [0, 1] and run.values["lines"] == ["x" * 400] * 2
        assert list(await rt.check()) == []


async def test_two_waits_at_once_take_two_signals() -> None:
    """One that came early answers one of them only."""
    made = Graph("pair", Asks, version="1")

    @made.node(start=True)
    async def ask(state: Asks, ctx: Context) -> dict[str, Any]:
        await ctx.wait("go")
        return {"said": list(await ctx.gather(ctx.wait("other"), ctx.wait("other")))}

    async with Runtime("memory:", skills=[made]) as rt:
        run_id = (await rt.invoke("pair")).run_id
        await rt.signal(run_id, "other", 1, key="k1")
        await rt.signal(run_id, "go", 0)
        run = await rt.resume(run_id)
        assert run.status == "waiting_for_signal" and len(run.waits) == 1, run.error
        await rt.signal(run_id, "other", 2, key="k2")
        run = await rt.resume(run_id)
        assert run.status == "completed" and sorted(run.values["said"]) == [1, 2]


async def test_a_live_run_takes_them_as_they_come(place: Place) -> None:
    """Its owner writes them down; whoever sends one does not read the log for it."""
    made = Graph("busy", Asks, version="1")
    begun, over = asyncio.Event(), asyncio.Event()

    @made.node(start=True)
    async def work(state: Asks, ctx: Context) -> dict[str, Any]:
        begun.set()
        await over.wait()
        return {"seen": 1}

    @made.node(after="work")
    async def take(state: Asks, ctx: Context) -> dict[str, Any]:
        return {"said": [await ctx.wait("other") for _ in range(MANY)]}

    async with place.runtime(made) as rt:
        driven = asyncio.ensure_future(rt.invoke("busy"))
        await begun.wait()
        (run,) = await rt.runs()
        for n in range(MANY):
            await rt.signal(run.run_id, "other", n, key=f"k{n}")
        async for event in rt.events(run.run_id, follow=True):
            if event.type == "signal.received" and event.payload["key"] == f"k{MANY - 1}":
                break
        assert (await weight(rt, run.run_id)).rows <= 2 * AT_HAND
        over.set()
        done = await driven
        assert done.status == "completed" and done.values["said"] == [*range(MANY)]
        assert list(await rt.check()) == []


# -- the record --------------------------------------------------------------------------------------


def test_a_run_keeps_so_many_names_at_hand_and_no_more() -> None:
    """Of one name thousands may wait; of so many names that the record itself would grow, no more than it has room for."""
    run = folded(ev.RunStarted())
    for n in range(decisions.MAX_AT_HAND):
        run = decisions.fold_facts(run, decisions.decide(run, cmd.Signal(f"n{n}", encode(n), "k", "ada"), 1), 1)
    with pytest.raises(TooManySignals):
        decisions.decide(run, cmd.Signal("one-more", encode(0), "k", "ada"), 1)


# -- SQLite, counted -----------------------------------------------------------------------------------

SQLITE = pytest.mark.one_store("it counts the statements of SQLite and the steps of its machine")

@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What SQLite does: statements, and the steps of its machine, of which each row that is read costs several."""
    counted: Counter[str] = Counter()

    def done(event: Any) -> None:
        counted["statements"] += 1
        counted["steps"] += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    def hook(db: apsw.Connection) -> None:
        db.trace_v2(apsw.SQLITE_TRACE_PROFILE, done)

    monkeypatch.setattr(apsw, "connection_hooks", [*apsw.connection_hooks, hook])
    return counted


async def cost(rt: Runtime, run_id: str, work: Counter[str], first: int, count: int) -> tuple[float, float]:
    """Statements and steps of a signal, on average over some."""
    before = Counter(work)
    for n in range(first, first + count):
        await rt.signal(run_id, "other", n, key=f"k{n}")
    return (work["statements"] - before["statements"]) / count, (work["steps"] - before["steps"]) / count


async def same(folder: Path, work: Counter[str], last: int) -> None:
    async with Runtime(f"sqlite:///{folder}/runs.db", skills=[taker(0)]) as rt:
        run = await rt.invoke("taker")
        few = await cost(rt, run.run_id, work, 0, 2 * AT_HAND)
        for n in range(2 * AT_HAND, last - 2 * AT_HAND):
            await rt.signal(run.run_id, "other", n, key=f"k{n}")
        many = await cost(rt, run.run_id, work, last - 2 * AT_HAND, 2 * AT_HAND)
        assert many[0] <= few[0] * 1.05, (few, many)
        assert many[1] <= few[1] * 1.05, (few, many)
        again = await rt.signal(run.run_id, "other", 3, key="k3")
        assert again.record.unasked == last


@SQLITE
async def test_the_four_hundredth_signal_costs_what_the_first_did(tmp_path: Path, work: Counter[str]) -> None:
    await same(tmp_path, work, 400)


@SQLITE
@pytest.mark.heavy
async def test_the_five_thousandth_too(tmp_path: Path, work: Counter[str]) -> None:
    await same(tmp_path, work, 5000)


def racer() -> Graph[Asks]:
    """Takes ``other`` or ``wanted``, whichever came first, and rests in between."""
    made = Graph("racer", Asks, version="1")

    @made.node(start=True)
    async def race(state: Asks, ctx: Context) -> dict[str, Any]:
        got = []
        for _ in range(AT_HAND + 4):
            got.append((await ctx.first_of(ctx.wait("wanted"), ctx.wait("other"), ctx.sleep(3600)))[1])
        await ctx.approve("Done?")
        return {"said": got, "heard": [await ctx.wait("wanted")]}

    return made


async def test_what_a_race_gives_back_is_kept_on_every_store(place: Place) -> None:
    """In the run's record, and in the log as its rebuilding finds it; the next process takes it in its order."""
    made = racer()
    async with place.runtime(made) as rt:
        run = await rt.submit(made, {})
        for n in range(AT_HAND + 4):
            await rt.signal(run.run_id, "other", n, key=f"k{n}")
        await rt.signal(run.run_id, "wanted", -1, key="w")
        run = await rt.resume(run.run_id)
        assert (run.status, run.record.unasked) == ("waiting_for_human", 1)
        await rt.signal(run.run_id, "wanted", -2, key="v")
    async with place.runtime(made) as rt:
        assert (await rt.check(run.run_id)).ok and list(await rt.check()) == []
        done = await rt.approve(run.run_id)
        assert done.status == "completed"
        assert [n for n in done.values["said"] if n >= 0] == list(range(AT_HAND + 3)) and (done.values["said"].count(-1), done.values["heard"]) == (1, [-2])

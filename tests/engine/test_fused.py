"""The fused line is the general way, byte for byte (``core/fused``, ``engine/drive/fused``)."""

from __future__ import annotations

import asyncio
import itertools
import pathlib
from collections import Counter
from collections.abc import Coroutine
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Context, Goto, Graph, Runtime, Send, State, append, current, merge, override, topic, window
from holdfast.core.codec import open_row
from holdfast.core.commit import Commit, Step, Tip
from holdfast.core.errors import HoldfastError, LeaseLost, RunNotFound
from holdfast.core.graph import any_of
from holdfast.core.progress import Progress
from holdfast.engine.drive.beginner import Beginner
from holdfast.engine.drive.executor import execute
from holdfast.ports import Loaded, RunFilter, Seat, Store, offers_gathering, offers_steps
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import writer
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import Fault, VirtualClock
from holdfast.testing.world import Host, World, crash_everywhere
from tests.inside import lower
from tests.virtual import keep_in_virtual_time

# -- a store that tells what it was given, and what a reader finds after it --------------------------


class Told(MemoryStore):
    """Keeps what a reader would load after each commit, and counts the steps that came sealed."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(now=clock.now)
        self.incarnation = 7
        self.after: list[Loaded | None] = []
        self.sealed = 0

    async def commit(self, commit: Commit) -> Tip:
        tip = await super().commit(commit)
        self.after.append(await self.load(commit.run.run_id))
        return tip

    async def step(self, step: Step) -> Tip:
        tip = await super().step(step)
        self.sealed += 1
        self.after.append(await self.load(step.run_id))
        return tip


class Gathers(Told):
    """The same, which writes all steps of a turn of the loop together, also where there is one, and tells them in their seats."""

    gathers = True
    alone = False

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self._waiting: list[tuple[Step, Seat]] = []
        self.joined = 0

    async def commit(self, commit: Commit) -> Tip:
        return await super().commit(commit)

    async def step(self, step: Step) -> Tip:
        return await super().step(step)

    def step_at_once(self, step: Step) -> Tip | None:
        return _at_once(self.step(step)) if self.alone else None

    def join(self, step: Step, seat: Seat) -> None:
        assert not self.alone, "each was written at once"
        assert seat.waits, "a store may write the step at once, and leaves out those for which nobody waits"
        self._waiting.append((step, seat))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        together, self._waiting = self._waiting, []
        for step, seat in together:
            if not seat.waits:
                continue
            self.joined += 1
            try:
                tip = _at_once(self.step(step))
            except HoldfastError as e:
                seat.refuse(e)
            else:
                if (following := seat.tell(tip)) is not None:
                    self.join(following, seat)


class AtOnce(Gathers):
    """The same for a run alone: each step is written before anything else has its turn."""

    alone = True


def _at_once(writing: Coroutine[Any, Any, Tip]) -> Tip:
    """What a store in memory answers, which waits for nothing."""
    try:
        writing.send(None)
    except StopIteration as written:
        return written.value  # type: ignore[no-any-return]
    raise AssertionError("it waits")


class General(Told):
    """The same without sealed steps."""

    @property
    def step(self) -> Any:  # type: ignore[override]
        raise AttributeError("step")


def test_whoever_stands_before_commits_alone_sees_them_all() -> None:
    clock = VirtualClock()

    class Before(MemoryStore):
        async def commit(self, commit: Commit) -> Tip:
            return await super().commit(commit)

    assert offers_steps(MemoryStore()) and offers_steps(Told(clock)) and not offers_gathering(Told(clock))
    assert offers_gathering(Gathers(clock)) and offers_gathering(SqliteStore("x.db"))

    class BeforeSteps(Gathers):
        async def step(self, step: Step) -> Tip:
            return await super().step(step)

        async def commit(self, commit: Commit) -> Tip:
            return await super().commit(commit)

    assert offers_steps(BeforeSteps(clock)) and not offers_gathering(BeforeSteps(clock))
    assert not offers_steps(Before()) and not offers_steps(General(clock))


async def passed(seconds: float) -> None:
    """Waits on the loop's own time, which is virtual in these worlds."""
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    await over.wait()


# -- random graphs ----------------------------------------------------------------------------------


class Board(State):
    a: int = 0
    b: str = ""
    c: Any = None
    d: float = 0.0
    items: Annotated[list[int], append]
    table: Annotated[dict[str, int], merge]
    recent: Annotated[list[int], window(2)]


WRITES = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d", "a", "c"]),
    st.one_of(st.integers(-3, 2**65), st.text(max_size=5), st.lists(st.integers(0, 9), max_size=3), st.none(), st.floats(0, 2), st.dictionaries(st.text(max_size=2), st.booleans(), max_size=2)),
    max_size=3,
)
ODD = ("goto", "list", "undeclared", "raises", "exits", "cancels", "own_cancel", "late", "asks", "asks_late", "heavy", "append", "nan", "system", "surrogate", "swallows")
ACTS = st.one_of(
    st.tuples(st.just("writes"), WRITES),
    st.tuples(st.just("writes"), st.fixed_dictionaries({"a": st.integers(0, 9)})),
    st.tuples(st.just("fits"), st.integers(0, 5)),
    st.tuples(st.sampled_from(["grows", "holds"]), st.integers(0, 5)),
    st.tuples(st.just("waits"), st.integers(1, 30)),
    st.tuples(st.sampled_from(["writes", "none"]), st.just({})),
    st.tuples(st.sampled_from(ODD), st.integers(0, 5)),
)
NODES = st.lists(
    st.fixed_dictionaries(
        {
            "after": st.sampled_from(["before", "before", "before", "any", "on", "two"]),
            "acts": st.lists(ACTS, min_size=1, max_size=3),
            "retry": st.sampled_from([1, 1, 2]),
            "timed": st.booleans(),
            "writes": st.sampled_from([None, None, None, ["a", "c"]]),
        }
    ),
    min_size=2,
    max_size=8,
)
DISTURBANCES = st.lists(
    st.tuples(st.sampled_from(["signal", "signal_channel", "cancel", "look"]), st.integers(1, 60)), max_size=2
)


def graph_of(nodes: list[dict[str, Any]], held: list[tuple[Board, str]] | None = None) -> Graph[Board]:
    """``held`` is given the states that nodes keep for longer than their step, and what they were."""
    held = [] if held is None else held
    graph = Graph("random", Board, version="1", step_limit=25)
    visits: Counter[int] = Counter()

    def declare(i: int, spec: dict[str, Any]) -> None:
        acts = spec["acts"]

        async def node(state: Board) -> Any:
            task = asyncio.current_task()
            turn = visits[i]
            visits[i] += 1
            kind, given = acts[turn % len(acts)]
            match kind:
                case "writes":
                    return dict(given)
                case "none":
                    return None
                case "fits":
                    return {"d": given, "a": state.a + 1}
                case "grows" | "holds":
                    if kind == "holds":
                        held.append((state, repr(state)))
                    return {"items": [given], "table": {str(given): turn}, "recent": given, "a": given}
                case "waits":
                    await passed(given / 1000)
                    return {"a": given}
                case "goto":
                    return Goto(f"n{given % len(nodes)}", {"a": given})
                case "list":
                    return []
                case "undeclared":
                    return {"nothing": given}
                case "raises":
                    await passed(given / 1000)
                    raise ValueError(f"no {given}")
                case "exits":
                    raise SystemExit(given)
                case "cancels":
                    raise asyncio.CancelledError
                case "own_cancel":
                    assert task is not None
                    task.cancel()
                    if given % 2:
                        await passed(0)
                    return {"a": given}
                case "late":
                    await passed(1000)
                case "asks":
                    ctx = current()
                    assert ctx is not None
                    return {"c": await ctx.step(doubled, given)}
                case "asks_late":
                    await passed(0.001)
                    ctx = current()
                    assert ctx is not None
                    return {"c": ctx.attempt, "a": state.a}
                case "heavy":
                    return {"c": "x" * (20_000 * (given + 1))}
                case "append":
                    return {"items": [given], "a": given}
                case "nan":
                    return {"c": float("nan")}
                case "surrogate":
                    return {"b": "\ud800"}
                case "system":
                    raise BaseException("base")
                case "swallows":
                    try:
                        await passed(0.01)
                    except asyncio.CancelledError:
                        await passed(0.003)
                    return {"a": given}
            return {}

        before = f"n{i - 1}"
        wired: dict[str, Any] = {"start": True}
        if i:
            wired = {"before": {"after": before}, "any": {"after": any_of(before, f"n{max(0, i - 2)}")}, "on": {"on": ["a"]}, "two": {"after": f"n{max(0, i - 2)}"}}[spec["after"]]
        graph.node(f"n{i}", retry=spec["retry"], timeout=0.05 if spec["timed"] else None, writes=spec["writes"], **wired)(node)

    for i, spec in enumerate(nodes):
        declare(i, spec)
    return graph


async def doubled(n: int) -> int:
    return 2 * n


async def disturb(host: Host, what: str, at: int, run_id: str) -> None:
    await passed(at / 1000 + 0.0005)
    try:
        match what:
            case "signal":
                await host.rt.signal(run_id, "news", at)
            case "signal_channel":
                await host.rt.signal(run_id, "a", at)
            case "cancel":
                await host.rt.cancel(run_id, actor="tester")
            case "look":
                await host.rt.get(run_id)
                await host.rt.state(run_id)
    except HoldfastError:
        pass  # it came too late


async def rows_of(store: Told) -> dict[str, list[tuple[int, bytes, bytes]]]:
    """By run, all that its log says; and it says the same to whoever reads it at once and to whoever reads it row by row."""
    found = {run.run_id: list(await store.rows(run.run_id)) for run, _ in await store.runs(RunFilter(limit=1_000))}
    for run_id, rows in found.items():
        at_once, by_row = Progress(run_id).walk(rows), Progress(run_id)
        for row in rows:
            by_row.step(open_row(row, by_row.hash))
        assert {name: getattr(at_once, name) for name in Progress.__slots__} == {name: getattr(by_row, name) for name in Progress.__slots__}
    return {run_id: [(r.seq, r.data, r.hash) for r in rows] for run_id, rows in found.items()}


def told(store: Told, graph: Graph[Any], disturbances: list[tuple[str, int]], clock: VirtualClock, room: int = 64) -> tuple[Any, ...]:
    """Drives one run of a graph and gives everything that was to be seen of it. ``room``: for so many tasks at once."""
    world = World(store, clock=clock)

    async def story() -> Any:
        host = await world.host(graph)
        lower(host.rt, parallel=room)
        run = await host.do(host.rt.submit(graph, {}))
        beside = [host.start(disturb(host, what, at, run.run_id)) for what, at in disturbances]
        ended: Any = await host.do(host.rt.resume(run.run_id))
        await asyncio.gather(*beside)
        if not ended.terminal:
            ended = await host.do(host.rt.get(run.run_id))
        checkpoints = await host.rt.checkpoints(run.run_id)
        await host.close()
        await world.assert_whole()
        return ended.record, dict(ended.values), checkpoints

    record, values, checkpoints = world.run(story())
    return record, values, checkpoints, asyncio.run(rows_of(store))


@settings(max_examples=60, deadline=None)
@given(NODES, DISTURBANCES)
def test_fast_is_general(nodes: list[dict[str, Any]], disturbances: list[tuple[str, int]]) -> None:
    """Issue «Speed», 1: rows, hashes, events, checkpoints, and what a reader finds after each commit."""
    seen = []
    for kind in (Told, General, Gathers, AtOnce):
        clock = VirtualClock()
        store = kind(clock)
        held: list[tuple[Board, str]] = []
        seen.append((told(store, graph_of(nodes, held), disturbances, clock), store.after))
        assert all(repr(state) == was for state, was in held), "what a node was given never moves"
    assert seen[0] == seen[1] == seen[2] == seen[3]


# -- fan-outs ---------------------------------------------------------------------------------------


class Wide(State):
    a: int = 0
    items: Annotated[list[int], append]
    any: Annotated[list[Any], append]
    table: Annotated[dict[str, int], merge]
    recent: Annotated[list[int], window(2)]
    now: Annotated[list[int], topic]
    best: Annotated[int, max]
    words: Annotated[tuple[str, ...], override] = ()


WIDE = st.dictionaries(
    st.sampled_from(["items", "any", "table", "recent", "now", "best", "words", "items", "any", "items", "nothing"]),
    st.one_of(
        st.integers(-3, 2**65), st.text(max_size=3), st.floats(allow_nan=True), st.none(), st.just("\ud800"), st.lists(st.integers(0, 2**64), max_size=3),
        st.lists(st.text(max_size=2), max_size=2), st.dictionaries(st.text(max_size=2), st.integers(), max_size=2), st.lists(st.lists(st.integers(), max_size=2), max_size=2),
    ),
    max_size=2,
)
GROWS = st.fixed_dictionaries({"items": st.one_of(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=2)), "any": st.text(max_size=2)})
PIECES = st.lists(
    st.fixed_dictionaries(
        {
            "node": st.sampled_from(["bare", "given", "given", "contract"]),
            "act": st.sampled_from(["writes"] * 6 + ["payload", "payload", "none", "waits", "raises", "asks", "says", "steps", "goes", "sends", "late", "cancels", "own_cancel", "exits", "heavy", "once"]),
            "writes": st.one_of(GROWS, GROWS, WIDE),
        }
    ),
    max_size=7,
)


def fan_of(pieces: list[dict[str, Any]]) -> Graph[Wide]:
    """A fan-out to nodes with and without a context, and what comes after it."""
    graph: Graph[Wide] = Graph("wide", Wide, version="1", step_limit=12)
    visits: Counter[int] = Counter()

    async def act(number: int, state: Wide) -> Any:
        piece = pieces[number]
        visits[number] += 1
        match piece["act"]:
            case "none":
                return None
            case "payload":
                found = current()
                assert found is not None
                return {"items": found.payload, "any": [len(state.items)]}
            case "waits":
                await passed((number + 1) / 1000)
            case "raises":
                raise ValueError("no")
            case "once" if visits[number] == 1:
                raise ValueError("not at once")
            case "asks":
                ctx = current()
                assert ctx is not None
                await ctx.wait("go", timeout=0.01 * (1 + number), on_timeout="deliver")
            case "says":
                ctx = current()
                assert ctx is not None
                ctx.report("degraded")
            case "steps":
                ctx = current()
                assert ctx is not None
                return {"items": await ctx.step(doubled, number)}
            case "goes":
                return Goto("more", piece["writes"])
            case "sends":
                return [Send("bare", number)]
            case "late":
                await passed(1000)
            case "cancels":
                raise asyncio.CancelledError
            case "own_cancel":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            case "exits":
                raise SystemExit(3)
            case "heavy":
                return {"any": "x" * 70_000}
        return dict(piece["writes"])

    @graph.node(start=True)
    async def plan(state: Wide) -> Any:
        return [Send(p["node"], number) for number, p in enumerate(pieces)]

    async def bare(state: Wide) -> Any:
        ctx = current()
        assert ctx is not None
        return await act(ctx.payload, state)

    async def given_(state: Wide, ctx: Context) -> Any:
        return await act(ctx.payload, state)

    graph.node("bare", timeout=0.05, retry=2)(bare)
    graph.node("given", timeout=0.05)(given_)
    graph.node("contract", reads=["items"], writes=["items", "any"], timeout=0.05)(given_)

    @graph.node(after=any_of("bare", "given", "contract"))
    async def join(state: Wide) -> Any:
        return {"a": len(state.items)}

    @graph.node
    async def more(state: Wide) -> Any:
        return {"recent": state.a}

    return graph


@settings(max_examples=120, deadline=None)
@given(PIECES, DISTURBANCES, st.integers(1, 64))
def test_what_begins_tasks_together_is_general(pieces: list[dict[str, Any]], disturbances: list[tuple[str, int]], room: int) -> None:
    """Issue «Speed»: tasks whose first part is run at once leave what they leave one by one through ``execute``."""
    seen = []
    for general in (False, True):
        clock = VirtualClock()
        store = Told(clock)
        with pytest.MonkeyPatch.context() as patch:
            if general:
                patch.setattr(Beginner, "begin", lambda self, key, task, me: execute(self._services, self._journal, self._program, task))
            seen.append((told(store, fan_of(pieces), disturbances, clock, room), store.after))
    assert seen[0] == seen[1]


# -- what must go along it, and what not -------------------------------------------------------------


class Row(State):
    n: int = 0
    text: str = ""


def row(length: int, odd: Any = None) -> Graph[Row]:
    """Plain nodes in a row, the third of which may be something else; every other one waits a little."""
    graph = Graph("row", Row, version="1")

    def declare(i: int) -> None:
        async def node(state: Row) -> dict[str, Any]:
            if i % 2:
                await passed(0.001)
            return {"n": state.n + 1, "text": f"{i}" * 20}

        graph.node(f"s{i}", start=i == 0, after=None if i == 0 else f"s{i - 1}")(odd if odd is not None and i == 2 else node)

    for i in range(length):
        declare(i)
    return graph


@pytest.mark.parametrize("odd", ODD)
def test_each_odd_step_leaves_the_line_as_it_would_have_been(odd: str) -> None:
    """Failures, cancels, timeouts, a context asked for, targets, heavy writes: in the middle of plain steps."""
    nodes: list[dict[str, Any]] = [{"after": "before", "acts": [("writes", {"a": i})], "retry": 1, "timed": False, "writes": None} for i in range(5)]
    nodes[2]["acts"] = [(odd, 2), ("writes", {"a": 7})]
    seen = []
    for kind in (Told, General):
        clock = VirtualClock()
        store = kind(clock)
        seen.append((told(store, graph_of(nodes), [], clock), store.after))
        assert store.sealed >= 2 or kind is General
    assert seen[0] == seen[1]


def test_whole_checkpoints_are_saved_when_they_are_due() -> None:
    """Steps before one go the general way, and the line goes on after it."""

    async def big(state: Row) -> dict[str, Any]:
        return {"n": state.n + 1, "text": chr(97 + state.n % 26) * 9_000}

    seen = []
    for kind in (Told, General):
        graph = Graph("big", Row, version="1")
        for i in range(40):
            graph.node(f"s{i}", start=i == 0, after=None if i == 0 else f"s{i - 1}")(big)
        clock = VirtualClock()
        store = kind(clock)
        world = World(store, clock=clock)

        async def story(world: World = world, graph: Graph[Row] = graph) -> Any:
            host = await world.host(graph)
            run = await host.do(host.rt.invoke(graph, {}))
            await host.close()
            await world.assert_whole()
            return run.record

        seen.append((world.run(story()), store.after))
        assert kind is General or 25 < store.sealed < 38
        assert any(loaded is not None and loaded.whole is not None for loaded in store.after)
    assert seen[0] == seen[1]


@pytest.mark.parametrize("kind", ["memory", "sqlite", "gathers"])
def test_a_crash_at_every_write_of_the_line(kind: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Must show: before and after each write, and each write lost or applied with the answer gone (X-09)."""
    keep_in_virtual_time(monkeypatch)
    names = itertools.count()

    def made(clock: VirtualClock) -> Store:
        if kind == "gathers":
            return Gathers(clock)
        return MemoryStore(now=clock.now) if kind == "memory" else SqliteStore(tmp_path / f"{next(names)}.db", now=clock.now)

    whole, ends = crash_everywhere(row(5), {}, store=made, faults=tuple(Fault))
    assert len([end for end in ends if end.verb in ("step", "step_at_once", "join")]) >= 4 * 4
    for end in [whole, *(e.run for e in ends)]:
        assert (end.status, end.state.n) == ("completed", 5)


def test_groups_hold_sealed_steps_and_others(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """§1.11: runs on the line and beside it share transactions; each log is what it is without the line."""
    monkeypatch.setattr(writer, "SLOW", float("inf"))

    class Plainly(SqliteStore):
        @property
        def step(self) -> Any:  # type: ignore[override]
            raise AttributeError("step")

    async def asks(state: Row) -> dict[str, Any]:
        ctx = current()
        assert ctx is not None
        return {"n": state.n + 1, "text": str(await ctx.step(doubled, state.n))}

    logs = []
    for number, kind in enumerate((SqliteStore, Plainly)):
        clock = VirtualClock()
        store = kind(tmp_path / f"{number}.db", now=clock.now)
        world = World(store, clock=clock)

        async def story(world: World = world, store: SqliteStore = store) -> Any:
            await store.open()
            plain, mixed = row(12), row(12, asks)
            mixed.id = "mixed"
            host = await world.host(plain, mixed)
            runs = await asyncio.gather(*[host.do(host.rt.invoke(plain if n % 2 else mixed, {})) for n in range(10)])
            assert [r.state.n for r in runs] == [12] * 10
            await host.close()
            await world.assert_whole()
            found = {r.run_id: ([(x.seq, x.data, x.hash) for x in await store.rows(r.run_id)], r.record) for r in runs}
            await store.close()
            return found

        logs.append(world.run(story()))
    assert logs[0] == logs[1]


async def test_a_step_of_the_line_is_refused_with_the_reason(tmp_path: pathlib.Path) -> None:
    """§10.2: fence, tip and owner are held against the run in the statement itself, whoever made the row."""
    for store in (MemoryStore(), SqliteStore(tmp_path / "a.db")):
        await store.open()
        async with Runtime(store) as rt:
            given: list[Step] = []
            kept = type(store).step

            async def step(self: Any, s: Step, given: list[Step] = given, kept: Any = kept) -> Tip:
                given.append(s)
                return await kept(self, s)  # type: ignore[no-any-return]

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(type(store), "step", step)
                step.__qualname__ = f"{type(store).__name__}.step"
                patch.setattr(type(store), "step_at_once", lambda self, s: None, raising=False)
                run = await rt.invoke(row(4), {})
            assert len(given) == 3
            late = given[1]
            for altered, error, words in (
                (late, LeaseLost, "was released"),
                (msgspec.structs.replace(late, fence=late.fence + 1), LeaseLost, "at fence"),
                (msgspec.structs.replace(late, fence=late.fence + (1 << 32)), LeaseLost, "generation"),
                (msgspec.structs.replace(late, run_id="none"), RunNotFound, "no run"),
            ):
                with pytest.raises(error, match=words):
                    await store.step(altered)
            rows = await store.rows(run.run_id)
            assert [r.seq for r in rows] == sorted({r.seq for r in rows})
        await store.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_late_owner_writes_nothing_by_the_line(kind: str, tmp_path: pathlib.Path) -> None:
    """§10.2, X-17: its runs have been taken from it while its node waited."""
    store: Store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "b.db")
    gate, began = asyncio.Event(), asyncio.Event()
    graph: Graph[Row] = Graph("slow", Row, version="1")

    @graph.node(start=True)
    async def first(state: Row) -> dict[str, Any]:
        began.set()
        await gate.wait()
        return {"n": 1}

    @graph.node(after="first")
    async def second(state: Row) -> dict[str, Any]:
        return {"n": 2}

    async with Runtime(store, skills=[graph]) as rt:
        driving = asyncio.ensure_future(rt.invoke(graph, {}))
        await began.wait()
        await store.retire(rt.owner)
        gate.set()
        with pytest.raises(LeaseLost):
            await driving

"""Bad input, bad code and bad files: one typed line with the way out, nothing lost, and the process goes on (§1.10–1.12).

Each case begins with runs that were acknowledged and ends by reading them again, checking the store, and running one more.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import pathlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import apsw
import pytest

from holdfast import Context, Graph, Runtime, Send, State
from holdfast.core.errors import (
    ChainBroken,
    CheckpointNotFound,
    EventUnreadable,
    HoldfastError,
    IncarnationChanged,
    InvalidInput,
    LogRolledBack,
    RunNotFound,
    SkillUnknown,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    UnknownOption,
    Unserializable,
    UnsupportedFormat,
    UsageError,
)
from holdfast.core.status import Status
from holdfast.ports import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import writer
from tests.inside import OpenSqlite


class Note(State):
    text: str
    n: int = 0


good = Graph("good", Note)


@good.node(start=True)
async def count(state: Note) -> dict[str, int]:
    return {"n": len(state.text)}


class Place:
    """A store that can be opened again and again, with a run that was acknowledged in it."""

    def __init__(self, url: str | Store) -> None:
        self.url = url
        self.known: dict[str, int] = {}

    @contextlib.asynccontextmanager
    async def open(self, *skills: Any) -> AsyncIterator[Runtime]:
        async with Runtime(self.url, skills=[good, *skills]) as rt:
            yield rt

    async def fill(self, rt: Runtime) -> None:
        run = await rt.invoke(good, {"text": "x" * (len(self.known) + 1)})
        assert run.status is Status.COMPLETED
        self.known[run.run_id] = run.state.n

    async def sound(self, rt: Runtime) -> None:
        """What was acknowledged is there, the store is whole, and more can be done."""
        await self.fill(rt)
        for run_id, n in self.known.items():
            assert (await rt.get(run_id)).state.n == n
            assert len(await rt.events(run_id)) > 3
        assert await rt.store.verify() == []


@pytest.fixture(params=["memory", "sqlite"])
async def place(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Place:
    made = Place(MemoryStore() if request.param == "memory" else f"sqlite:///{tmp_path}/s.db")
    async with made.open() as rt:
        await made.fill(rt)
    return made


@pytest.fixture
def disk(file: Place, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> OpenSqlite:
    """The store of ``file``, with the one connection that writes: on a slow disk a thread would commit, on one of its own."""
    monkeypatch.setattr(writer, "SLOW", float("inf"))
    file.url = store = OpenSqlite(tmp_path / "s.db")
    return store


@pytest.fixture
async def file(tmp_path: pathlib.Path) -> Place:
    made = Place(f"sqlite:///{tmp_path}/s.db")
    async with made.open() as rt:
        for _ in range(3):
            await made.fill(rt)
    return made


async def refused(kind: type[HoldfastError], act: Awaitable[Any], *words: str) -> HoldfastError:
    """One line, a stable code, and each of ``words`` in it."""
    with pytest.raises(kind) as caught:
        await act
    error = caught.value
    line = error.line()
    assert "\n" not in line and line.startswith(f"{error.code}: ")
    assert error.code == kind.code
    for word in words:
        assert word in line, line
    return error


# -- what callers give ------------------------------------------------------------------------------

UNKEEPABLE: list[tuple[dict[str, Any], str]] = [
    ({"text": object()}, "input.text"),
    ({"text": "a\0b"}, "input.text"),
    ({"text": "a\ud800"}, "input.text"),
    ({"text": ["a", {"b": float("nan")}]}, "input.text[1].b"),
    ({"text": {"b": (1, float("inf"))}}, "input.text.b[1]"),
]


@pytest.mark.parametrize(("given", "path"), UNKEEPABLE)
@pytest.mark.parametrize("verb", ["invoke", "submit"])
async def test_an_input_no_store_could_keep(place: Place, given: dict[str, Any], path: str, verb: str) -> None:
    """X-11, §1.10: refused at the edge with the field's path, alike on every store, before anything is written."""
    async with place.open() as rt:
        error = await refused(Unserializable, getattr(rt, verb)(good, given))
        assert error.path.startswith(path), (error.path, path)
        assert len(await rt.runs()) == len(place.known)
        await place.sound(rt)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ("text", "needs")),
        ({"n": 1}, ("text", "needs")),
        ({"text": "a", "txet": "b"}, ("txet", "text, n")),
        (["text"], ("mapping", "list")),
        ("text", ("mapping", "str")),
    ],
)
async def test_an_input_that_does_not_fit(place: Place, given: Any, words: tuple[str, ...]) -> None:
    """§4.2: the missing and the unknown field are named, and what there is."""
    async with place.open() as rt:
        for verb in (rt.invoke, rt.submit):
            await refused(InvalidInput, verb(good, given), *words)
        assert len(await rt.runs()) == len(place.known)
        await place.sound(rt)


async def test_names_that_nobody_has(place: Place) -> None:
    """§7.9, §7.10: not found, with where to look; an empty id never means the newest."""
    async with place.open() as rt:
        (run_id,) = place.known
        await refused(SkillUnknown, rt.invoke("nobody", {}), "nobody", "known: good")
        await refused(SkillUnknown, rt.submit("nobody", {}), "nobody", "known: good")
        acts: list[Callable[[str], Awaitable[Any]]] = [
            rt.get, rt.resume, rt.cancel, rt.approve, rt.checkpoints, rt.state, rt.record, rt.effects, rt.waits,
            lambda r: rt.decide(r, "approve"), lambda r: rt.signal(r, "go"), lambda r: rt.deny(r, reason="no"), lambda r: _all(rt, r),
        ]
        for act in acts:
            await refused(InvalidInput, act(""), "the run id is empty")
            await refused(RunNotFound, act("nobody"), "nobody")
        await refused(CheckpointNotFound, rt.state(run_id, "nothing"), "nothing")
        await place.sound(rt)


async def _all(rt: Runtime, run_id: str) -> list[Any]:
    return [e async for e in rt.events(run_id)]


async def test_options_that_make_no_sense(place: Place) -> None:
    async with place.open() as rt:
        await refused(UnknownOption, rt.invoke(good, {"text": "a"}, priorty=3), "priorty", "priority")
        await refused(InvalidInput, rt.submit(good, {"text": "a"}, at=dt.datetime(2030, 1, 1)), "timezone")  # noqa: DTZ001
        await refused(InvalidInput, rt.runs(limit=0), "1 to 500")
        await refused(InvalidInput, rt.runs(status="paused"), "paused", "waiting_for_human")
        await refused(InvalidInput, rt.runs(condition="stuck"), "stuck", "interrupted")
        await place.sound(rt)


# -- what nodes give --------------------------------------------------------------------------------


def one(body: Callable[..., Any], state: type[State] = Note, **options: Any) -> Graph[Any]:
    graph: Graph[Any] = Graph("bad", state, **options)
    graph.node("body", start=True)(body)
    return graph


async def failing(place: Place, graph: Graph[Any], code: str, *words: str) -> None:
    """The run fails by that name with its state kept; the line says where; everything else goes on."""
    async with place.open(graph) as rt:
        run = await rt.invoke(graph, {"text": "abc"})
        assert (run.status, run.stop_reason) == (Status.FAILED, code), run.error
        assert run.error is not None
        for word in words:
            assert word in run.error.message, run.error.message
        assert run.state.text == "abc"
        assert run.lease.owner is None
        await place.sound(rt)


async def test_a_write_no_store_could_keep(place: Place) -> None:
    """§1.10, §4.2: the node and the field are named; another attempt would not mend it."""
    ran = []

    async def body(state: Note) -> dict[str, Any]:
        ran.append(1)
        return {"text": {"deep": [object()]}}

    await failing(place, one(body), "unserializable", "body.text.deep[0]")
    assert len(ran) == 1


async def test_a_step_result_no_store_could_keep(place: Place) -> None:
    def opened() -> Any:
        return {"handle": open}

    async def body(state: Note, ctx: Context) -> None:
        await ctx.step(opened)

    await failing(place, one(body), "unserializable", "opened", "handle")


async def test_a_payload_no_store_could_keep(place: Place) -> None:
    async def body(state: Note) -> Any:
        return [Send("body", {"x": float("nan")})]

    await failing(place, one(body), "unserializable", "Send('body')", "x")


async def test_a_decision_no_store_could_keep(place: Place) -> None:
    """§5.7: nothing enters the run; the question stays open for a better answer."""

    async def body(state: Note, ctx: Context) -> dict[str, int]:
        decision = await ctx.approve("Go on?")
        return {"n": decision.payload}

    graph = one(body)
    async with place.open(graph) as rt:
        run = await rt.invoke(graph, {"text": "a"})
        before = run.record.version
        error = await refused(Unserializable, rt.approve(run.run_id, payload={"k": object()}))
        assert error.path == "payload.k"
        assert (await rt.get(run.run_id)).record.version == before
        assert (await rt.approve(run.run_id, payload=7)).state.n == 7
        await place.sound(rt)


async def test_a_channel_nobody_declared(place: Place) -> None:
    """§4.1."""

    async def body(state: Note) -> dict[str, Any]:
        return {"txet": 1}

    await failing(place, one(body), "undeclared_channel", "body", "txet")


async def test_two_writers_of_one_value(place: Place) -> None:
    """§4.1: neither wins; both are named, and finished work is kept."""

    async def write(state: Note) -> dict[str, Any]:
        return {"n": 1}

    graph = one(write)
    graph.node("other", start=True)(write)
    await failing(place, graph, "two_writers", "body", "other", "'n'")


async def test_a_value_nobody_would_return(place: Place) -> None:
    async def body(state: Note) -> Any:
        return 7

    await failing(place, one(body), "bad_return", "body", "int")


async def test_a_target_nobody_has(place: Place) -> None:
    async def body(state: Note) -> Any:
        return [Send("nowhere", 1)]

    await failing(place, one(body), "node_missing", "nowhere")


async def test_a_graph_past_its_limit(place: Place) -> None:
    """T-66, §4.9: it counts per invocation; the failure keeps the state and can be resumed with a higher limit."""
    graph: Graph[Note] = Graph("loop", Note)

    @graph.node(start=True)
    async def again(state: Note) -> dict[str, int]:
        return {"n": state.n + 1}

    graph.branch("again", lambda state: "again" if state.n < 12 else None)
    async with place.open(graph) as rt:
        run = await rt.invoke(graph, {"text": "a"}, step_limit=5)
        assert (run.status, run.stop_reason, run.state.n) == (Status.FAILED, "step_limit", 5)
        run = await rt.resume(run.run_id, acknowledge="step_limit", step_limit=4)
        assert (run.stop_reason, run.state.n) == ("step_limit", 9)
        run = await rt.resume(run.run_id, acknowledge="step_limit", step_limit=100)
        assert (run.status, run.state.n) == (Status.COMPLETED, 12)
        await place.sound(rt)


# -- files ------------------------------------------------------------------------------------------


def path_of(place: Place, ending: str = "") -> pathlib.Path:
    assert isinstance(place.url, str)
    return pathlib.Path(place.url.removeprefix("sqlite:///") + ending)


def copied(place: Place, folder: pathlib.Path) -> None:
    folder.mkdir(exist_ok=True)
    for found in path_of(place).parent.glob("s.db*"):
        if found.is_file():
            shutil.copy2(found, folder / found.name)


def put_back(place: Place, folder: pathlib.Path) -> None:
    for found in path_of(place).parent.glob("s.db*"):
        if found.is_file():
            found.unlink()
    for found in folder.iterdir():
        shutil.copy2(found, path_of(place).parent / found.name)


async def opening(place: Place, kind: type[HoldfastError], *words: str) -> None:
    rt = Runtime(place.url, skills=[good])
    await refused(kind, rt.__aenter__(), *words)


def garbage(path: pathlib.Path) -> None:
    path.write_bytes(b"this is no database at all, and long enough to be looked at" * 40)


def headless(path: pathlib.Path) -> None:
    path.write_bytes(b"\0" * 100 + path.read_bytes()[100:])


@pytest.mark.parametrize("damage", [garbage, headless])
async def test_a_file_that_is_no_database(file: Place, tmp_path: pathlib.Path, damage: Callable[[pathlib.Path], None]) -> None:
    """§1.9: named on opening, not overwritten; the copy that was kept is whole."""
    copied(file, tmp_path / "kept")
    damage(path_of(file))
    damaged = path_of(file).read_bytes()
    await opening(file, StoreCorrupt, "s.db", "backup")
    assert path_of(file).read_bytes() == damaged
    put_back(file, tmp_path / "kept")
    async with file.open() as rt:
        await file.sound(rt)


async def test_a_file_that_was_cut(file: Place, tmp_path: pathlib.Path) -> None:
    """§1.9: it is named by whoever meets it first: opening, reading, or the check; never served as if whole."""
    copied(file, tmp_path / "kept")
    data = path_of(file).read_bytes()
    for keep in (len(data) // 2, len(data) - 4096, 4096):
        path_of(file).write_bytes(data[:keep])
        found: list[str] = []
        try:
            async with file.open() as rt:
                found += [p.code for p in await rt.store.verify()]
                for run_id in file.known:
                    try:
                        await rt.get(run_id)
                    except HoldfastError as e:
                        found.append(e.code)
        except HoldfastError as e:
            found.append(e.code)
        assert found, f"{keep} of {len(data)} bytes"
        put_back(file, tmp_path / "kept")
    async with file.open() as rt:
        await file.sound(rt)


async def test_a_flipped_byte_is_the_matter_of_one_run(file: Place) -> None:
    """X-01: the read that meets it and the check name it; other runs go on."""
    victim = next(iter(file.known))
    with contextlib.closing(apsw.Connection(str(path_of(file)))) as db:
        number, data = db.execute("SELECT l.id, l.data FROM log l JOIN run r ON r.id = l.run WHERE r.run_id = ? ORDER BY l.id LIMIT 1", (victim,)).get
        db.execute("UPDATE log SET data = ? WHERE id = ?", (data[:-1] + bytes([data[-1] ^ 0x40]), number))
    async with file.open() as rt:
        with pytest.raises((ChainBroken, EventUnreadable)) as caught:
            await rt.get(victim)
        assert "\n" not in caught.value.line()
        assert "event_chain_broken" in {p.code for p in await rt.store.verify()}
        others = [r for r in file.known if r != victim]
        assert [(await rt.get(r)).state.n for r in others] == [file.known[r] for r in others]
        assert (await rt.invoke(good, {"text": "more"})).status is Status.COMPLETED


async def test_a_log_that_went_backwards(file: Place, tmp_path: pathlib.Path) -> None:
    """X-01, §1.9: an old copy opens for reading; every write says what happened and what to do, and changes nothing."""
    copied(file, tmp_path / "old")
    async with file.open() as rt:
        newest = await rt.invoke(good, {"text": "acknowledged"})
        waiting = await rt.submit(good, {"text": "later"})
    anchor = path_of(file, "-anchor").read_bytes()
    put_back(file, tmp_path / "old")
    path_of(file, "-anchor").write_bytes(anchor)
    async with file.open() as rt:
        assert "log_rolled_back" in {p.code for p in await rt.store.verify()}
        assert {r.run_id for r in await rt.runs()} == set(file.known)
        await refused(RunNotFound, rt.get(newest.run_id))
        await refused(RunNotFound, rt.cancel(waiting.run_id))
        for act in (rt.invoke(good, {"text": "a"}), rt.submit(good, {"text": "a"}), rt.worker(until_idle=True), rt.recover()):
            await refused(LogRolledBack, act, "acknowledged", "restore a backup", "holdfast doctor --acknowledge")
        assert {r.run_id for r in await rt.runs()} == set(file.known)


async def test_another_stores_anchor(file: Place, tmp_path: pathlib.Path) -> None:
    other = Place(f"sqlite:///{tmp_path}/other.db")
    async with other.open() as rt:
        await other.fill(rt)
    shutil.copy2(path_of(other, "-anchor"), path_of(file, "-anchor"))
    async with file.open() as rt:
        await refused(IncarnationChanged, rt.invoke(good, {"text": "a"}), "--acknowledge")
        for run_id, n in file.known.items():
            assert (await rt.get(run_id)).state.n == n


async def test_a_disk_that_is_full(file: Place, disk: OpenSqlite) -> None:
    """§1.12: the run stops where it stands and says so; with room again the same process takes it up and loses nothing."""
    graph: Graph[Note] = Graph("big", Note)
    ran: list[str] = []

    def filling(name: str) -> Callable[[Note], Awaitable[dict[str, Any]]]:
        async def fill(state: Note) -> dict[str, Any]:
            ran.append(name)
            return {"text": os.urandom(20_000).hex(), "n": state.n + 1}

        return fill

    for before, name in zip((None, "a", "b", "c"), ("a", "b", "c", "d"), strict=True):
        graph.node(name, start=before is None, after=before)(filling(name))
    async with file.open(graph) as rt:
        db = disk.connection
        db.pragma("max_page_count", db.pragma("page_count") + 20)
        await refused(StoreFull, rt.invoke(graph, {"text": "a"}), "disk is full", "free some space")
        (left,) = [r for r in await rt.runs() if r.run_id not in file.known]
        assert left.status is Status.RUNNING
        done = (await rt.state(left.run_id)).n
        assert 0 <= done < 4 and len(ran) == done + 1
        db.pragma("max_page_count", 1_000_000)
        run = await rt.resume(left.run_id)
        assert (run.status, run.state.n) == (Status.COMPLETED, 4)
        assert len(ran) == 5, "only the refused step ran twice"
        await file.sound(rt)


async def test_a_file_that_cannot_be_written(file: Place, disk: OpenSqlite) -> None:
    async with file.open() as rt:
        await file.fill(rt)
        db = disk.connection
        db.pragma("query_only", True)
        await refused(StoreReadOnly, rt.invoke(good, {"text": "a"}), "cannot be written", "permissions")
        await refused(StoreReadOnly, rt.submit(good, {"text": "a"}), "cannot be written")
        db.pragma("query_only", False)
        await file.sound(rt)


async def test_a_folder_that_is_not_there(tmp_path: pathlib.Path) -> None:
    await opening(Place(f"sqlite:///{tmp_path}/none/s.db"), UsageError, "none", "create")


async def test_a_folder_in_the_place_of_the_file(tmp_path: pathlib.Path) -> None:
    (tmp_path / "s.db").mkdir()
    await opening(Place(f"sqlite:///{tmp_path}/s.db"), StoreReadOnly, "s.db")


async def test_somebody_elses_database(tmp_path: pathlib.Path) -> None:
    """It is refused before anything in it is touched."""
    with contextlib.closing(apsw.Connection(str(tmp_path / "s.db"))) as db:
        db.execute("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")
    before = (tmp_path / "s.db").read_bytes()
    await opening(Place(f"sqlite:///{tmp_path}/s.db"), StoreCorrupt, "not one of Holdfast's", "file of its own")
    assert (tmp_path / "s.db").read_bytes() == before


async def test_a_newer_releases_store(file: Place) -> None:
    """§1.8: never a guess; the file is as it was, for the release that wrote it."""
    with contextlib.closing(apsw.Connection(str(path_of(file)))) as db:
        ours = db.pragma("user_version")
        db.pragma("user_version", 99)
    await opening(file, UnsupportedFormat, "99", "release")
    with contextlib.closing(apsw.Connection(str(path_of(file)))) as db:
        db.pragma("user_version", ours)
    async with file.open() as rt:
        await file.sound(rt)


@pytest.mark.parametrize("url", ["mysql://host/db", "sqlite:", "sqlite:///", "nonsense", "redis://x"])
async def test_a_store_of_a_kind_nobody_knows(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        Runtime(url)
    assert "sqlite:///" in caught.value.line() and "\n" not in caught.value.line()

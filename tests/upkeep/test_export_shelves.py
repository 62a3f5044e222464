"""§19.2: an export takes the rows of shelves whose keys begin with the run's id, and an import brings them back without replacing any."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace

from holdfast import Graph, Runtime, State
from holdfast.core.errors import HoldfastError, PlaintextRefused, StoreCorrupt, UsageError, VersionConflict
from holdfast.encryption import Encryption, Keys, new_key
from holdfast.engine.keep.transfer import dossier, foreign, take_in
from holdfast.ports import ShelfRow, Store
from holdfast.stores import MemoryStore, WorkspaceStore
from tests.postgres.server import shared

Url = Callable[[str], str]


class Note(State):
    text: str = ""


def graph() -> Graph[Note]:
    made = Graph("note", Note, version="1")

    @made.node(start=True)
    def act(state: Note) -> dict[str, str]:
        return {"text": state.text + "!"}

    return made


@pytest.fixture(params=["memory", "sqlite", "workspace", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Url:
    """The URLs of stores of each kind, by name."""
    made = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/{{}}.db", "workspace": f"workspace:{tmp_path}/{{}}"}
    kind = str(request.param)
    return lambda name: made[kind].format(name) if kind in made else shared().fresh()


async def exported(url: str, folder: Path, **options: object) -> str:
    """A run with rows on two shelves, and rows that are not its own; exported into a folder."""
    async with Runtime(url, skills=[graph()], **options) as rt:  # type: ignore[arg-type]
        run = await rt.invoke("note", {"text": "a"})
        await rt.shelf("cups").put_many({f"{run.run_id}/1": b"\x00one", f"{run.run_id}/2": b"", "another/1": b"no"})
        await rt.shelf("plates").put(run.run_id, b"two")
        await rt.shelf("holdfast.access").put(f"{run.run_id}/token", b"no")
        await rt.export(run.run_id, folder)
        return run.run_id


async def rows(rt: Runtime) -> dict[str, list[tuple[str, bytes]]]:
    return {shelf: found for shelf in ("cups", "plates", "holdfast.access") if (found := await rt.shelf(shelf).scan())}


def forged(folder: Path, change: Callable[[list[object]], object]) -> None:
    """Changes the first row in an export, and removes the file that states their digest."""
    path = folder / "shelves.json"
    kept = json.loads(path.read_bytes())
    change(kept["rows"][0])
    path.write_text(json.dumps(kept))
    (folder / "workspace.json").unlink()


async def test_rows_of_a_run_are_exported_and_imported(url: Url, tmp_path: Path) -> None:
    run_id = await exported(url("source"), tmp_path / "out")
    own = {"cups": [(f"{run_id}/1", b"\x00one"), (f"{run_id}/2", b"")], "plates": [(run_id, b"two")]}
    async with Runtime(url("target"), skills=[graph()]) as rt:
        assert await rt.import_runs(tmp_path / "out") == ([run_id], [])
        assert await rows(rt) == own
        await rt.shelf("cups").put(f"{run_id}/1", b"newer")
        assert await rt.import_runs(tmp_path / "out") == ([], [run_id]), "the run is here already, and its rows stay as they are"
        assert await rt.shelf("cups").get(f"{run_id}/1") == b"newer"
        assert (await rt.check()).ok
        await rt.export(run_id, tmp_path / "again")
    async with Runtime("memory:", skills=[graph()]) as rt:
        assert await rt.import_runs(tmp_path / "again" / run_id) == ([run_id], []), "one run by its directory"
        assert await rt.shelf("cups").get(f"{run_id}/1") == b"newer" and await rt.shelf("plates").get(run_id) == b"two"


async def test_rows_that_are_here_stay(url: Url, tmp_path: Path) -> None:
    run_id = await exported(url("source"), tmp_path / "out")
    async with Runtime(url("target"), skills=[graph()]) as rt:
        await rt.shelf("cups").put_many({f"{run_id}/1": b"mine", f"{run_id}/2": b""})
        with pytest.raises(VersionConflict, match=f"'{run_id}/1' of the shelf 'cups'"):
            await rt.import_runs(tmp_path / "out")
        assert await rows(rt) == {"cups": [(f"{run_id}/1", b"mine"), (f"{run_id}/2", b"")]} and await rt.store.get(run_id) is None
        await rt.shelf("cups").delete(f"{run_id}/1")
        assert await rt.import_runs(tmp_path / "out") == ([run_id], [])
        assert await rt.shelf("cups").get(f"{run_id}/1") == b"\x00one" and (await rt.check()).ok


async def test_a_later_export_into_the_same_folder_has_the_rows_of_now(url: Url, tmp_path: Path) -> None:
    async with Runtime(url("source"), skills=[graph()]) as rt:
        run_id = (await rt.invoke("note", {"text": "a"})).run_id
        await rt.shelf("cups").put_many({f"{run_id}/1": b"1", f"{run_id}/2": b"1"})
        await rt.export(run_id, tmp_path / "out")
        await rt.shelf("cups").delete(f"{run_id}/1")
        await rt.shelf("cups").put_many({f"{run_id}/2": b"2", f"{run_id}/3": b"2"})
        await rt.export(run_id, tmp_path / "out")
    async with Runtime("memory:", skills=[graph()]) as rt:
        await rt.import_runs(tmp_path / "out")
        assert await rt.shelf("cups").scan() == [(f"{run_id}/2", b"2"), (f"{run_id}/3", b"2")]


async def test_an_export_without_rows_has_no_file_of_them_and_loads(tmp_path: Path) -> None:
    async with Runtime("memory:", skills=[graph()]) as rt:
        run_id = (await rt.invoke("note", {"text": "a"})).run_id
        await rt.export(run_id, tmp_path / "out")
    assert not (tmp_path / "out" / "shelves.json").exists()
    async with Runtime("memory:", skills=[graph()]) as rt:
        assert await rt.import_runs(tmp_path / "out") == ([run_id], [])


async def test_altered_rows_are_refused(tmp_path: Path) -> None:
    run_id = await exported("memory:", tmp_path / "out")
    path = tmp_path / "out" / "shelves.json"
    sound = path.read_bytes()
    async with Runtime("memory:", skills=[graph()]) as rt:
        path.write_bytes(sound.replace(b'"dHdv"', b'"dHdp"'))
        with pytest.raises(StoreCorrupt) as altered:
            await rt.import_runs(tmp_path / "out")
        assert altered.value.code == "shelf_record_altered"
        path.unlink()
        with pytest.raises(StoreCorrupt) as missing:
            await rt.import_runs(tmp_path / "out")
        assert missing.value.code == "shelf_record_missing"
        assert await rt.store.get(run_id) is None and await rows(rt) == {}


@pytest.mark.parametrize(
    ("code", "said", "change"),
    [
        ("invalid_input", r"U\+0000", lambda row: row.__setitem__(1, row[1] + "\0")),
        ("too_large", "the key of a row", lambda row: row.__setitem__(1, row[1] + "x" * 1000)),
        ("event_unreadable", "cannot be read", lambda row: row.__setitem__(1, 7)),
        ("event_unreadable", "cannot be read", lambda row: row.__setitem__(2, 7)),
    ],
)
async def test_rows_that_no_shelf_has_are_refused(code: str, said: str, change: Callable[[list[object]], object], tmp_path: Path) -> None:
    run_id = await exported("memory:", tmp_path / "out")
    forged(tmp_path / "out", change)
    async with Runtime("memory:", skills=[graph()]) as rt:
        with pytest.raises(HoldfastError, match=said) as refused:
            await rt.import_runs(tmp_path / "out")
        assert refused.value.code == code
        assert await rt.store.get(run_id) is None and await rows(rt) == {}


async def test_an_export_brings_no_rows_of_the_runtimes_own_shelves(tmp_path: Path) -> None:
    """A forged export could otherwise bring an access token, whose id is the key of its row."""
    run_id = await exported("memory:", tmp_path / "out")
    forged(tmp_path / "out", lambda row: row.__setitem__(0, "holdfast.access"))
    async with Runtime("memory:", skills=[graph()]) as rt:
        await rt.import_runs(tmp_path / "out")
        assert (await rows(rt)).keys() == {"cups", "plates"}
        found = replace(await dossier(rt.store, run_id), shelved=(ShelfRow("holdfast.access", run_id, b""),))
        assert foreign(found) == "it has a row of the shelf 'holdfast.access', which is the runtime's own"
        found = replace(found, shelved=(ShelfRow("cups", "another", b""),))
        assert "does not begin with its id" in (foreign(found) or "")


async def test_encrypted_rows_stay_encrypted_on_the_way(tmp_path: Path) -> None:
    keys = Encryption(Keys({"k1": new_key()}), strict=True)
    run_id = await exported("memory:", tmp_path / "out", encryption=keys)
    assert b'"dHdv"' not in (tmp_path / "out" / "shelves.json").read_bytes()
    assert "k1" in (tmp_path / "out" / run_id / "encrypted.json").read_text()
    async with Runtime(f"sqlite:///{tmp_path}/target.db", skills=[graph()], encryption=keys) as rt:
        assert await rt.import_runs(tmp_path / "out") == ([run_id], [])
        assert await rt.shelf("plates").get(run_id) == b"two"
    plain = await exported("memory:", tmp_path / "plain")
    async with Runtime("memory:", skills=[graph()], encryption=keys) as rt:
        with pytest.raises(PlaintextRefused):
            await rt.import_runs(tmp_path / "plain")
        assert await rt.store.get(plain) is None


class Bare:
    """A store that has no shelves."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        if name == "list_shelves":
            raise AttributeError(name)
        return getattr(self._store, name)


async def test_a_store_without_shelves_refuses_a_run_with_rows(tmp_path: Path) -> None:
    run_id = await exported("memory:", tmp_path / "out")
    source, target = WorkspaceStore(tmp_path / "out"), MemoryStore()
    await source.open()
    try:
        with pytest.raises(UsageError, match="does not support shelves"):
            await take_in(source, cast(Store, Bare(target)), run_id)
    finally:
        await source.close()
    assert await target.get(run_id) is None

"""The part of the store suite about shelves (§19.2). Importing this module adds its cases to ``conformance.CASES``."""

from __future__ import annotations

from holdfast.core.errors import VersionConflict
from holdfast.engine.keep.check import keeper
from holdfast.engine.keep.transfer import dossier
from holdfast.ports import as_kept, offers_shelves
from holdfast.testing.conformance import TTL, Harness, Script, case, elsewhere, refused


@case
async def case_shelf_keeps_rows(h: Harness) -> None:
    """§19.2: each shelf has rows of bytes under keys of its own; a new row under a key replaces the old one."""
    store = h.store
    assert offers_shelves(store)
    await store.shelve("cups", {"a": b"1", "b": b"\x00\xff"})
    await store.shelve("cups", {"a": b"2"})
    await store.shelve("plates", {"a": b"3"})
    assert [await store.find_shelved("cups", key) for key in ("a", "b", "c")] == [b"2", b"\x00\xff", None]
    assert await store.find_shelved("plates", "a") == b"3" and await store.find_shelved("none", "a") is None
    await store.shelve("cups", {})
    assert await h.store.verify() == []


@case
async def case_shelf_takes_a_new_row_once(h: Harness) -> None:
    """§19.2: the second caller gets the row that is there, and changes nothing."""
    store = h.store
    assert offers_shelves(store)
    assert await store.shelve_new("cups", "a", b"1") is None
    assert await store.shelve_new("cups", "a", b"2") == b"1" and await store.find_shelved("cups", "a") == b"1"
    assert await store.unshelve("cups", "a") == 1
    assert await store.shelve_new("cups", "a", b"3") is None
    assert await h.store.verify() == []


@case
async def case_shelf_takes_new_rows_once_beside_others(h: Harness) -> None:
    """§19.2: one transaction writes rows that may replace others and rows that must be new; if the key of a row that must be new is taken, the old row stays."""
    store = h.store
    assert offers_shelves(store)
    assert await store.shelve("cups", {"a": b"1", "b": b"1", "c": b"1"}, ("a", "c")) == []
    await store.shelve("plates", {"d": b"another shelf"})
    assert await store.shelve("cups", {"a": b"2", "b": b"2", "c": b"2", "d": b"2"}, {"d": None, "c": None, "a": None}.keys()) == ["a", "c"]
    assert await store.shelf_scan("cups") == [("a", b"1"), ("b", b"2"), ("c", b"1"), ("d", b"2")]
    assert await store.shelve("cups", {"a": b"1"}, ("a",)) == ["a"], "the same bytes are taken too"
    assert await store.unshelve("cups", "a") == 1
    assert await store.shelve("cups", {"a": b"3"}, ("a",)) == [] and await store.find_shelved("cups", "a") == b"3"
    assert await h.store.verify() == []


@case
async def case_shelf_is_scanned_by_key(h: Harness) -> None:
    """§19.2: a scan is in the order of the keys' bytes, by prefix, after a key, up to a limit; pattern characters such as ``%`` stand for themselves."""
    store = h.store
    assert offers_shelves(store)
    keys = ["B", "a", "a%", "a/1", "a/2", "aé", "b", "a\U0001f600"]
    await store.shelve("cups", {key: key.encode() for key in keys})
    await store.shelve("cups2", {"a/3": b""})
    assert [k for k, _ in await store.shelf_scan("cups")] == sorted(keys)
    assert [k for k, _ in await store.shelf_scan("cups", "a/")] == ["a/1", "a/2"]
    assert [k for k, _ in await store.shelf_scan("cups", "a%")] == ["a%"]
    assert [k for k, _ in await store.shelf_scan("cups", "a", "a/1", 2)] == ["a/2", "aé"]
    assert await store.shelf_scan("cups", "a", "zzz") == []
    assert [k for k, _ in await store.shelf_scan("cups", "a", "B", 1)] == ["a"]


@case
async def case_shelf_is_scanned_between_the_ends_of_a_prefix(h: Harness) -> None:
    """§19.2: scans by prefix go by code points, also at the last code point and around the gap that UTF-8 leaves out; pages give the same rows as one scan."""
    store = h.store
    assert offers_shelves(store)
    letters = ["\x01", "\x1f", " ", "a", "~", "é", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff"]
    keys = sorted([*letters, *(one + other for one in letters for other in letters), "\U0010ffff" * 3])
    for shelf in ("cups", "cup", "cups\x1e", "cups "):
        await store.shelve(shelf, {key: f"{shelf}{key}".encode() for key in keys})
    for prefix in ["", *letters, "\U0010ffff" * 2, "none"]:
        wanted = [(key, f"cups{key}".encode()) for key in keys if key.startswith(prefix)]
        assert await store.shelf_scan("cups", prefix, limit=1000) == wanted
        seen: list[tuple[str, bytes]] = []
        while page := await store.shelf_scan("cups", prefix, seen[-1][0] if seen else "", 7):
            seen += page
        assert seen == wanted
    for letter in letters[1::2]:
        assert await store.unshelve("cups", letter) == sum(key.startswith(letter) for key in keys)
    kept = [key for key in keys if not key.startswith(tuple(letters[1::2]))]
    assert [key for key, _ in await store.shelf_scan("cups", limit=1000)] == kept
    assert [key for key, _ in await store.shelf_scan("cup", limit=1000)] == keys
    assert await h.store.verify() == []


@case
async def case_shelves_are_listed(h: Harness) -> None:
    """§19.2: the names of shelves are those that have rows, each once."""
    store = h.store
    assert offers_shelves(store)
    assert await store.list_shelves() == []
    await store.shelve("plates", {"a": b"1", "b": b"2"})
    await store.shelve("Cups é", {"a": b"1"})
    await store.shelve("cups", {"a": b"1"})
    assert await store.list_shelves() == sorted(["plates", "Cups é", "cups"])
    await store.unshelve("plates", "")
    assert await store.list_shelves() == sorted(["Cups é", "cups"])


@case
async def case_adopted_rows_replace_none(h: Harness) -> None:
    """§19.2: a run comes with its rows of shelves; one that is here with another value refuses the run, and then nothing of it is here."""
    store, source = h.store, elsewhere(h)
    there = source
    assert offers_shelves(store) and offers_shelves(there)
    await source.register("w", TTL)
    await (await Script(source, "r1").begin("w")).steps(1)
    await there.shelve("cups", {"r1/a": b"1", "r1/b": b"2", "r2": b"no"})
    await there.shelve("plates", {"r1": b"3"})
    found = await dossier(source, "r1")
    await store.shelve("cups", {"r1/a": b"1", "r1/b": b"another"})
    await refused(VersionConflict, keeper(h.store).adopt(found))
    assert await h.store.get("r1") is None and await store.list_shelves() == ["cups"]
    await store.unshelve("cups", "r1/b")
    kept = as_kept(h.store)
    assert offers_shelves(kept)
    await kept.shelve("cups", {"r1/a": found.shelved[0].data})
    assert await keeper(h.store).adopt(found)
    assert await store.shelf_scan("cups") == [("r1/a", b"1"), ("r1/b", b"2")] and await store.find_shelved("plates", "r1") == b"3"
    assert await h.store.verify() == []


@case
async def case_shelf_is_cleared_by_prefix(h: Harness) -> None:
    """§19.2: clearing removes the rows whose keys begin with the prefix, of that shelf alone."""
    store = h.store
    assert offers_shelves(store)
    await store.shelve("cups", {"a/1": b"", "a/2": b"", "a_": b"", "b": b""})
    await store.shelve("cups2", {"a/1": b"other"})
    assert await store.unshelve("cups", "a/") == 2 and await store.unshelve("cups", "a/") == 0
    assert [k for k, _ in await store.shelf_scan("cups")] == ["a_", "b"]
    assert await store.unshelve("cups", "") == 2 and await store.find_shelved("cups2", "a/1") == b"other"
    assert await h.store.verify() == []

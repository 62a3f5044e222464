"""The anchor beside a SQLite file: many write it, none waits for another, and what is newest counts (§1.9)."""

from __future__ import annotations

import asyncio
import fcntl
import random
import struct
import threading
import zlib
from pathlib import Path

import pytest

from holdfast.core.errors import StoreBusy
from holdfast.stores import SqliteStore
from holdfast.stores.sqlite import anchor
from holdfast.stores.sqlite.anchor import ROWS, SIZE, WRITES, Anchor, Mark, pack, unpack
from holdfast.testing.conformance import Script, signal


def mark(last: int, writes: int = 0, incarnation: int = 7) -> Mark:
    return Mark(incarnation, last, last.to_bytes(16, "big") if last else b"", writes)


def begun(path: Path) -> Anchor:
    made = Anchor(str(path))
    assert made.open() is None
    made.begin(mark(0), first=True)
    return made


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_written_late_takes_nothing_away(tmp_path: Path, seed: int) -> None:
    """Two processes commit in turns, and each writes down what it has committed when it comes to it, in whatever order."""
    dice = random.Random(seed)
    ours, theirs = begun(tmp_path / "a"), Anchor(str(tmp_path / "a"))
    theirs.open()
    last = writes = 0
    under_way: list[Mark] = []
    for _ in range(300):
        last, writes = dice.choice(((last + 1, writes), (last, writes + 1), (last + 3, writes + 1)))
        under_way.append(mark(last, writes))
        while len(under_way) > dice.randrange(1, 8):
            assert dice.choice((ours, theirs)).raise_to(under_way.pop(dice.randrange(len(under_way))))
    for late in under_way:
        assert ours.raise_to(late)
    assert ours.read() == theirs.read() == mark(last, writes)
    ours.close()
    theirs.close()


def test_one_that_is_a_whole_round_late_takes_nothing_away(tmp_path: Path) -> None:
    ours = begun(tmp_path / "a")
    for number in (3 + ROWS * WRITES, 3):
        assert ours.raise_to(mark(number, number))
    assert ours.read() == mark(3 + ROWS * WRITES, 3 + ROWS * WRITES)
    ours.close()


def test_another_incarnation_begins_below(tmp_path: Path) -> None:
    """What was written of an incarnation that is over counts no more, also if it is written after that."""
    ours, theirs = begun(tmp_path / "a"), Anchor(str(tmp_path / "a"))
    theirs.open()
    ours.raise_to(mark(50, 50))
    ours.begin(mark(9, 9, incarnation=8))
    assert not theirs.raise_to(mark(51, 51)) and not theirs.of(7) and theirs.of(8)
    late = pack(mark(51, 51))
    with open(tmp_path / "a", "r+b") as file:  # it stood still between its look and its write
        at = (1 + 51 % ROWS) * 32
        file.seek(at)
        file.write(late[at : at + 32])
    assert ours.read() == mark(9, 9, incarnation=8)
    ours.close()
    theirs.close()


def test_any_byte_that_is_another_is_seen() -> None:
    good = pack(mark(5, 6))
    assert unpack(good) == mark(5, 6) and len(good) == SIZE
    for at in range(SIZE):
        assert unpack(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]) is None
    for bad in (b"", good[:-1], good + b"\0", bytes(SIZE)):
        assert unpack(bad) is None


@pytest.mark.parametrize(("layout", "magic", "fields"), [(">4sIQ16s", b"HFA1", (7, 5, b"h" * 16)), (">4sIQ16sQ", b"HFA2", (7, 5, b"h" * 16, 6))])
def test_one_of_a_past_release_becomes_one_of_this(tmp_path: Path, layout: str, magic: bytes, fields: tuple[int | bytes, ...]) -> None:
    body = struct.pack(layout, magic, *fields)
    (tmp_path / "a").write_bytes(body + zlib.crc32(body).to_bytes(4, "big"))
    ours = Anchor(str(tmp_path / "a"))
    there = ours.open()
    assert there == Mark(*fields)  # type: ignore[arg-type]
    assert not ours.raise_to(mark(6, 7)), "not before it is one of this release"
    ours.renew()
    assert ours.read() == there and ours.raise_to(mark(6, 7)) and ours.read() == mark(6, 7)
    ours.close()


def test_a_process_that_stands_still_holds_up_nobody(tmp_path: Path) -> None:
    """Whatever lock a process held when it was stopped: others open the store, write to it and close it."""
    path = tmp_path / "s.db"

    async def works(run_id: str) -> None:
        store = SqliteStore(str(path))
        await store.open()
        await Script(store, run_id).submit()
        await store.put(signal(run_id, "k", 0))
        await store.close()

    asyncio.run(works("r1"))
    with open(f"{path}-anchor", "rb") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        working = threading.Thread(target=asyncio.run, args=(works("r2"),), daemon=True)
        working.start()
        working.join(20)
        assert not working.is_alive()


def test_who_begins_it_afresh_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchor, "PATIENCE", 0.0)
    ours = begun(tmp_path / "a")
    with open(tmp_path / "a", "rb") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        with pytest.raises(StoreBusy, match="another process"):
            ours.begin(mark(1, 1, incarnation=8))
    assert ours.read() == mark(0)
    ours.close()

"""The part of the store suite about what steps emit (§13.6). Importing this module adds its cases to ``conformance.CASES``."""

from __future__ import annotations

from holdfast.core.chunks import LINGER_US, Batch, Emitted, Place, Turn
from holdfast.core.errors import VersionConflict
from holdfast.core.lease import COUNTER_BITS
from holdfast.testing.conformance import TTL, Harness, Script, case, refused


def turn(run_id: str, number: int = 1, task: str = "node") -> Turn:
    return Turn(Place(1, task), number, 1, 0, f"{run_id}.1.{task}", f"{run_id}.1.{task}@1")


def batch(run_id: str, first: int, *chunks: bytes, number: int = 1, task: str = "node") -> Batch:
    return Batch(turn(run_id, number, task), first, 3, chunks)


def emit(script: Script, *batches: Batch, fence: int | None = None, **more: object) -> Emitted:
    return Emitted(script.run_id, script.fence if fence is None else fence, batches, **more)  # type: ignore[arg-type]


async def numbers(h: Harness, run_id: str, after: int = 0) -> list[tuple[int, bool]]:
    """Returns the numbers of the chunks that are there, and whether each was replaced."""
    return [(n, s.replaced) for s in await h.store.chunks(run_id, after) for n in range(s.batch.first, s.batch.last + 1)]


@case
async def case_chunks_are_kept_in_order_and_by_cursor(h: Harness) -> None:
    """§13.6: emitted chunks are read from the beginning or after a serial, and come back as they were."""
    await h.store.register("w", TTL)
    mine = await Script(h.store, "r1").begin("w")
    other = await Script(h.store, "r2").begin("w")
    await h.store.emit([emit(mine, batch("r1", 1, b"a", b"b")), emit(other, batch("r2", 1, b"x"))])
    await h.store.emit([emit(mine, batch("r1", 3, b"c"), batch("r1", 1, b"y", task="beside"))])
    found = await h.store.chunks("r1")
    assert [s.batch for s in found] == [batch("r1", 1, b"a", b"b"), batch("r1", 3, b"c"), batch("r1", 1, b"y", task="beside")]
    assert [s.serial for s in found] == sorted({s.serial for s in found}) and not any(s.replaced for s in found)
    assert await h.store.chunks("r1", found[0].serial) == found[1:] and await h.store.chunks("r1", limit=2) == found[:2]
    assert await h.store.chunks("r1", found[-1].serial) == [] == await h.store.chunks("unknown")
    loaded = await h.store.load("r1")
    assert loaded is not None and set(loaded.emitted) == {found[1].batch, found[2].batch}, "the newest of each turn"


@case
async def case_chunks_of_a_late_owner_are_left_out(h: Harness) -> None:
    await h.store.register("w", TTL)
    mine, other = await Script(h.store, "r1").begin("w"), await Script(h.store, "r2").begin("w")
    late = mine.fence - 1 if mine.fence & ((1 << COUNTER_BITS) - 1) > 1 else mine.fence + 1
    await h.store.emit([emit(mine, batch("r1", 1, b"late"), fence=late), emit(other, batch("r2", 1, b"x")), Emitted("gone", 1, (batch("gone", 1, b"z"),))])
    assert await numbers(h, "r1") == [] and await numbers(h, "r2") == [(1, False)]


@case
async def case_chunks_ride_with_a_commit_and_are_replaced_by_it(h: Harness) -> None:
    """A commit writes its chunks in its transaction: a refused commit leaves the ring as it was. Replaced chunks are removed a while later."""
    await h.store.register("w", TTL)
    script = await Script(h.store, "r1").begin("w")
    await h.store.emit([emit(script, batch("r1", 1, b"a"))])
    stale = script.tip
    await script.write(script.step(emitted=emit(script, batch("r1", 2, b"b"), replaced=(turn("r1").key,))))
    assert await numbers(h, "r1") == [(1, True), (2, True)]
    script.tip, kept = stale, script.tip
    await refused(VersionConflict, h.store.commit(script.step(emitted=emit(script, batch("r1", 1, b"c", number=2)))))
    script.tip = kept
    assert await numbers(h, "r1") == [(1, True), (2, True)]
    loaded = await h.store.load("r1")
    assert loaded is not None and loaded.emitted == ()
    h.clock.forward(LINGER_US + 1_000_000)
    await h.store.emit([emit(script, batch("r1", 1, b"new", number=3))])
    assert await numbers(h, "r1") == [(1, False)]


@case
async def case_rings_are_cut(h: Harness) -> None:
    await h.store.register("w", TTL)
    script = await Script(h.store, "r1").begin("w")
    for n in range(1, 6):
        await h.store.emit([emit(script, batch("r1", n, b"x"))])
    before = await h.store.chunks("r1")
    await h.store.emit([emit(script, batch("r1", 6, b"x"), batch("r1", 1, b"y", number=2), before={turn("r1").key: 4})])
    assert [n for n, _ in await numbers(h, "r1")] == [4, 5, 6, 1]
    assert all(s.serial > before[-1].serial for s in (await h.store.chunks("r1"))[-2:]), "no serial is used again"


@case
async def case_chunks_need_no_repair(h: Harness) -> None:
    """Chunks are provisional: the checker finds no problem with them, and a run is loaded as before."""
    await h.store.register("w", TTL)
    script = await Script(h.store, "r1").begin("w")
    await h.store.emit([emit(script, batch("r1", 1, b"a"))])
    await script.steps(2)
    assert await h.store.verify() == []
    loaded = await h.store.load("r1")
    assert loaded is not None and loaded.tip == script.tip

"""The part of the store suite about large results (§6.4, §6.10). Importing this module adds its cases to ``conformance.CASES``."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core import canon
from holdfast.core import events as ev
from holdfast.core.blobs import LARGE, Blob, blob_of, name_blobs
from holdfast.core.checkpoint import StepRecord
from holdfast.core.codec import open_row
from holdfast.core.commit import Commit
from holdfast.core.effects import EffectStatus
from holdfast.core.errors import StoreCorrupt, VersionConflict
from holdfast.engine.keep.check import keeper
from holdfast.engine.keep.transfer import copy, dossier
from holdfast.ports import as_kept
from holdfast.testing.conformance import SECOND, TTL, Harness, Script, case, effect, elsewhere, refused


def bulk(letter: str = "x") -> Blob:
    """Returns a large result, encoded."""
    return blob_of(canon.encode(letter * (LARGE + 1)))


def recording(script: Script, blob: Blob, *, kept: bool = False, key: str = "", shared: bool = False) -> Commit:
    """Returns a commit that records a step's result, and with ``key`` that of an effect, as references. ``kept``: the store has the bytes already."""
    step = StepRecord("node", f"{script.tip.seq if script.tip else 0}", "fetch", value=blob.reference, kind="effect" if key else "step")
    done = replace(effect(script.run_id, 1, key, EffectStatus.RECORDED), result=blob.reference, blob=blob.digest, shared=shared)
    given = Blob(blob.digest, blob.size) if kept else blob
    return script.commit(ev.NoteAdded("large"), results=(step,), effects=(done,) if key else (), blobs=(given,))


@case
async def case_blob_is_kept_once(h: Harness) -> None:
    """§6.4: a blob is written with the first record that names it, and kept once even if others name it later; it is read back as it was written."""
    await h.store.register("w", TTL)
    blob = bulk()
    await refused(StoreCorrupt, h.store.blob(blob.digest), "blob_unreadable")
    first, second = await Script(h.store, "r1").begin("w"), await Script(h.store, "r2").begin("w")
    await first.write(recording(first, blob, key="k"))
    await first.write(recording(first, blob))
    await second.write(recording(second, blob, kept=True))
    assert await h.store.blob(blob.digest) == blob.data
    loaded = await h.store.load("r2")
    assert loaded is not None
    assert list(name_blobs(open_row(loaded.rows[-1]).results)) == [blob.digest]
    assert all(len(row.data) < 1_000 for row in loaded.rows), "the log holds the reference alone"
    (done,) = await h.store.effects("r1")
    assert (done.blob, done.result) == (blob.digest, blob.reference)
    assert await h.store.verify() == []


@case
async def case_blob_goes_with_its_commit(h: Harness) -> None:
    """§1.6: a refused commit leaves no blob; a commit that names a blob which is not there is refused."""
    await h.store.register("w", TTL)
    script = await Script(h.store, "r1").begin("w")
    stale = recording(script, bulk("s"))
    await script.steps(1)
    await refused(VersionConflict, h.store.commit(stale))
    await refused(StoreCorrupt, h.store.blob(bulk("s").digest), "blob_unreadable")
    before = await h.store.rows("r1")
    await refused(StoreCorrupt, h.store.commit(recording(script, bulk("n"), kept=True)), "blob_unreadable")
    assert await h.store.rows("r1") == before
    await script.steps(1)


@case
async def case_blob_is_pruned_with_the_last_that_names_it(h: Harness) -> None:
    """§6.10: a blob is removed in the transaction that removes the last record that names it; a tombstone is such a record."""
    await h.store.register("w", 100 * TTL)
    both, own, told = bulk("b"), bulk("o"), bulk("t")
    for run_id, kept in (("r1", False), ("r2", True)):
        script = await Script(h.store, run_id).begin("w")
        await script.write(recording(script, both, kept=kept))
        if run_id == "r1":
            await script.write(recording(script, own))
            await script.write(recording(script, told, key="all", shared=True))
        await script.complete()
        h.clock.forward(SECOND)
    upkeep = keeper(h.store)
    assert (await upkeep.prune(h.store.now() - SECOND)).run_ids == ("r1",)
    assert await h.store.blob(both.digest) == both.data
    assert await h.store.blob(told.digest) == told.data
    await refused(StoreCorrupt, h.store.blob(own.digest), "blob_unreadable")
    later = await Script(h.store, "r3").begin("w")
    await later.write(recording(later, told, kept=True))
    assert (await upkeep.prune(h.store.now())).run_ids == ("r2",)
    await refused(StoreCorrupt, h.store.blob(both.digest), "blob_unreadable")
    await later.complete()
    h.clock.forward(SECOND)
    assert (await upkeep.prune(h.store.now())).run_ids == ("r3",)
    assert await h.store.blob(told.digest) == told.data, "the tombstone still gives its result"
    assert [e.result for e in await h.store.effects(key="all")] == [told.reference]


@case
async def case_blob_travels_with_its_run(h: Harness) -> None:
    """§12.5: a run that is copied to another store, or from it, takes its large results with it."""
    there, blob = elsewhere(h), bulk()
    for number, (source, target) in enumerate(((h.store, there), (there, h.store)), 1):
        await source.register("w", TTL)
        script = await Script(source, f"r{number}").begin("w")
        await script.write(recording(script, blob, key=f"k{number}"))
        await script.complete()
        assert (await dossier(source, f"r{number}", opened=True)).blobs == (blob,)
        assert [b.data for b in (await dossier(source, f"r{number}")).blobs] == [await as_kept(source).blob(blob.digest)]
        assert await copy(source, target, f"r{number}")
        assert await target.blob(blob.digest) == blob.data


__all__ = ["bulk", "recording"]

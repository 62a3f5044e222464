"""The part of the store suite about runs that carry their thread on (§4.15, decision 35), and about claims in batches. Importing this
module adds its cases to ``conformance.CASES``."""

from __future__ import annotations

from holdfast.core import canon, codec
from holdfast.core import events as ev
from holdfast.core.checkpoint import INPUT_TASK, Carry, Delta, Source, TaskResult, advance, empty
from holdfast.core.commit import Behind, Commit
from holdfast.core.errors import VersionConflict
from holdfast.engine.keep.check import keeper
from holdfast.engine.keep.transfer import dossier
from holdfast.ports import as_kept
from holdfast.testing.conformance import SECOND, TTL, Harness, Script, case, elsewhere, refused

SAID = canon.admit({"text": "said before"})
PART = 40_000


def carrying(script: Script, predecessor: Script, *, since: int = 0, whole: int = 0, size: int = 10) -> Commit:
    """Returns the commit of a first checkpoint that carries ``text`` on from another run's log."""
    assert predecessor.tip is not None
    given = TaskResult(INPUT_TASK, writes=canon.encode(canon.admit({"new": "x" * size})))
    delta = Delta(step=0, source=Source.INPUT, done=(given,), carries=(Carry(predecessor.run_id, predecessor.tip.seq, predecessor.tip.hash, ("text",)),))
    data = codec.encode_delta(delta)
    digest = canon.chain(b"", data)
    seq = (script.tip.seq if script.tip is not None else 0) + 1
    checkpoint = advance(empty(script.run_id, SAID), delta, {}, seq=seq, at=script.store.now(), hash=digest)
    return script.commit(ev.CheckpointSaved(digest), checkpoint=checkpoint, delta=data, behind=Behind((predecessor.run_id,), since, whole))


def origin_of(run_id: str) -> bytes:
    return codec.encode_whole(empty(run_id, SAID), b"")


@case
async def case_carry_counts_what_lies_behind(h: Harness) -> None:
    """§4.5, §4.15: the count of bytes since the last whole checkpoint is carried on from run to run, and so is that checkpoint's size."""
    await h.store.register("w", TTL)
    first = await (await Script(h.store, "r1").begin("w")).complete()
    second = await Script(h.store, "r2").begin("w")
    assert second.tip is not None
    before = second.tip.since
    tip = await second.write(carrying(second, first, since=PART, whole=70))
    assert (tip.since > before + PART, tip.whole) == (True, 70)
    third = await Script(h.store, "r3").begin("w")
    tip = await third.write(carrying(third, second, since=PART, size=PART))
    assert (tip.since, tip.whole > PART) == (0, True), "together more than the limit: a whole one was due"
    loaded = await h.store.load("r3")
    assert loaded is not None and loaded.tip == tip
    if loaded.whole is not None:  # a workspace keeps no whole checkpoint across processes, and needs none
        assert loaded.whole[0].values["text"] == "said before"
    assert await h.store.verify() == []


@case
async def case_carry_needs_its_lender(h: Harness) -> None:
    """§4.15, §1.6: a first checkpoint commits only while the run from which it carries on is there; otherwise nothing of it is written."""
    await h.store.register("w", TTL)
    first = await (await Script(h.store, "r1").begin("w")).complete()
    second = await Script(h.store, "r2").begin("w")
    commit = carrying(second, first)
    h.clock.forward(SECOND)
    assert (await keeper(h.store).prune(h.store.now())).run_ids == ("r1",)
    await refused(VersionConflict, h.store.commit(commit))
    assert await keeper(h.store).list_carries() == []
    await second.steps(1)
    assert await h.store.verify() == []


@case
async def case_carry_keeps_its_lender(h: Harness) -> None:
    """§6.10, §4.15: a run from which another one carries on is not pruned until the other has an origin of its own, or is pruned too."""
    await h.store.register("w", 100 * TTL)
    first = await (await Script(h.store, "r1").begin("w")).complete()
    second = await Script(h.store, "r2").begin("w")
    await second.write(carrying(second, first))
    await second.complete()
    third = await Script(h.store, "r3").begin("w")
    await third.write(carrying(third, second))
    h.clock.forward(SECOND)
    keep = keeper(h.store)
    assert sorted(await keep.list_carries()) == [("r2", "r1"), ("r3", "r2")]
    assert (await keep.prune(h.store.now(), dry=True)).run_ids == ("r1", "r2")
    held = await keep.prune(h.store.now())
    assert (held.run_ids, held.kept.get("r2")) == ((), "a later run of its thread continues from it")
    assert await keep.whole("r3", -1) is None
    for _ in range(2):
        await keep.keep_origin("r3", origin_of("r3"))
    assert await keep.list_carries() == [("r2", "r1")]
    found = await keep.whole("r3", -1)
    assert found is not None and found[0] == 0 and found[1] == empty("r3", SAID)
    assert await keep.whole("r3") is None, "it is no checkpoint of the run's log"
    loaded = await h.store.load("r3")
    assert loaded is not None and loaded.whole is not None
    assert (loaded.whole[0].values, loaded.whole[1], len(loaded.rows)) == (SAID, b"", 2)
    assert len(await h.store.rows("r3")) == len(await h.store.rows("r3", 0, 10)) == 2
    assert (await keep.prune(h.store.now())).run_ids == ("r1", "r2")
    assert await keep.list_carries() == []
    await third.complete()
    h.clock.forward(SECOND)
    assert (await keep.prune(h.store.now())).run_ids == ("r3",)
    assert await keep.whole("r3", -1) is None
    assert await h.store.verify() == []


@case
async def case_carry_travels_with_its_origin(h: Harness) -> None:
    """§12.5: a run that was copied with its origin needs no other run here, and continues from no other run's log."""
    there = elsewhere(h)
    await there.register("w", TTL)
    first = await (await Script(there, "r1").begin("w")).complete()
    second = await Script(there, "r2").begin("w")
    await second.write(carrying(second, first))
    await second.complete()
    await keeper(there).keep_origin("r2", origin_of("r2"))
    carried = await dossier(there, "r2")
    assert carried.origin is not None
    assert await keeper(h.store).adopt(carried)
    assert await keeper(h.store).list_carries() == []
    loaded = await h.store.load("r2")
    assert loaded is not None and loaded.whole is not None
    assert (loaded.whole[0].values, loaded.tip.whole) == (SAID, len(carried.origin))
    assert tuple(await as_kept(h.store).rows("r2")) == carried.rows
    assert await h.store.verify() == []


@case
async def case_claim_in_one_go(h: Harness) -> None:
    """§10.1, §10.8: one claim takes all due runs, the most urgent first: runs that hold their lane and runs that do not, of any queue."""
    await h.store.register("w", 100 * TTL)
    for n in range(4):
        waiting = await Script(h.store, f"h{n}", priority=n % 2).begin("w")
        await waiting.wait(h.store.now() + SECOND, due=h.store.now() + SECOND)
    h.clock.forward(SECOND)
    for n in range(4):
        await Script(h.store, f"p{n}", priority=n % 2, queue=f"q{n % 2}").submit()
    await Script(h.store, "behind", session_key="p0").submit()
    h.clock.forward(SECOND)
    await h.store.register("v", 100 * TTL)
    claims = await h.store.claim("v", (), None, limit=20)
    urgent = [c.run_id for c in claims]
    assert sorted(urgent[:4]) == ["h1", "h3", "p1", "p3"]
    assert sorted(urgent[4:]) == ["h0", "h2", "p0", "p2"], "and not the one behind p0"
    for claim in claims:
        found = await h.store.get(claim.run_id)
        assert found is not None
        lease = found[1]
        assert (lease.owner, lease.fence, claim.previous_owner, claim.cause) == ("v", claim.fence, None, "")
    assert await h.store.claim("v", (), None, limit=20) == []
    assert await h.store.verify() == []


@case
async def case_claim_by_hundreds(h: Harness) -> None:
    """§10.1: no run is claimed twice, however the batches are cut, and every fence is the next one of its run."""
    await h.store.register("w", 100 * TTL)
    scripts = [await Script(h.store, f"r{n:03}").submit() for n in range(25)]
    h.clock.forward(SECOND)
    taken = [c for _ in range(4) for c in await h.store.claim("w", (), None, limit=7)]
    assert [c.run_id for c in taken] == [s.run_id for s in scripts], "in the order of their turns"
    assert {c.fence for c in taken} == {scripts[0].fence + 1}
    for script, claim in zip(scripts, taken, strict=True):
        script.fence = claim.fence
        await script.write(script.commit(ev.RunClaimed(owner="w", fence=2), ev.RunStarted()))


__all__ = ["carrying", "origin_of"]

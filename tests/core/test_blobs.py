"""Large results apart from their records: references, and what is read back (§6.4, §1.10)."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from holdfast.core import blobs, canon
from holdfast.core.blobs import LARGE, Blob, blob_of, name_blobs, read_back, reference_in, set_apart
from holdfast.core.checkpoint import StepRecord, TaskResult
from holdfast.core.effects import Effect, EffectClass
from holdfast.core.errors import EventUnreadable, StoreCorrupt

BIG = canon.encode(canon.admit("x" * LARGE))
EDGE = b"\xc5" + (LARGE - 3).to_bytes(2, "big") + bytes(LARGE - 3)


def record(value: bytes | None, kind: str = "step") -> StepRecord:
    return StepRecord("look", "0", "fetch", value=value, kind=kind)


def effect(result: bytes | None) -> Effect:
    return Effect(
        effect_id="r1.1.look.0#1", run_id="r1", lineage_root="r1", step=1, task="look", path="0", attempt=1, capability="post",
        effect_class=EffectClass.WRITE, key="k", result=result,
    )


def test_a_reference_says_what_it_stands_for() -> None:
    """§6.4: digest and size, in 43 bytes."""
    blob = blob_of(BIG)
    assert (blob.digest, blob.size, blob.data) == (hashlib.sha256(BIG).hexdigest(), len(BIG), BIG)
    assert len(blob.reference) == 43
    assert reference_in(blob.reference) == Blob(blob.digest, blob.size)
    assert canon.reveal(blob.reference) == {"blob": blob.digest, "size": len(BIG)}


@pytest.mark.parametrize("value", [None, b"", BIG, canon.encode(41 * "x"), canon.encode("x"), blob_of(BIG).reference[:-1], blob_of(BIG).reference + b"\0"])
def test_nothing_else_is_a_reference(value: bytes | None) -> None:
    assert reference_in(value) is None


def test_a_reference_is_never_taken_for_a_value() -> None:
    """§1.8: whoever decodes one unawares is told, and given nothing."""
    with pytest.raises(EventUnreadable, match=blob_of(BIG).digest):
        canon.decode(blob_of(BIG).reference)
    with pytest.raises(EventUnreadable, match="extension 2"):
        canon.reveal(msgspec.msgpack.encode(msgspec.msgpack.Ext(canon.REFERENCE, b"short")))


def test_what_is_large_is_set_apart_once() -> None:
    """§6.4: a result and the effect's record of it name one blob; what is not larger than the limit stays where it is."""
    small = record(EDGE)
    assert len(EDGE) == LARGE
    results, effects, found = set_apart([record(BIG, "effect"), small, TaskResult("t", writes=BIG)], [effect(BIG)])
    blob = blob_of(BIG)
    assert found == (blob,)
    assert results == (record(blob.reference, "effect"), small, TaskResult("t", writes=BIG))
    assert results[1] is small
    assert (effects[0].result, effects[0].blob) == (blob.reference, blob.digest)


@pytest.mark.parametrize(("kind", "apart"), [("step", True), ("effect", True), ("first_of", True), ("task", False), ("wait", False), ("value", False)])
def test_results_of_calls_are_set_apart(kind: str, apart: bool) -> None:
    """Answers of people and the tasks of a sub-flow stay in the log."""
    results, _, found = set_apart([record(BIG, kind)], [])
    assert bool(found) is apart
    assert results == ((record(blob_of(BIG).reference, kind),) if apart else (record(BIG, kind),))


def test_a_reference_is_named_again_without_its_bytes() -> None:
    """A replay writes what it is served into its own log: the store has the bytes."""
    again = record(blob_of(BIG).reference)
    odd = record(b"\xc4\x29" + bytes(41))
    results, effects, found = set_apart([again, odd], [effect(again.value), effect(None)])
    assert (results, found) == ((again, odd), (Blob(blob_of(BIG).digest, len(BIG)),))
    assert effects == (effect(again.value), effect(None))
    assert set_apart([record(BIG), again], [])[2] == (blob_of(BIG),)
    assert set_apart([again, record(BIG)], [])[2] == (blob_of(BIG),), "the bytes are kept, whoever named them first"


def test_what_records_name() -> None:
    """§12.1: for the checker, with what refers to it."""
    one, two = blob_of(BIG), blob_of(BIG + b"\xc0")
    found = name_blobs([record(one.reference), record(one.reference, "first_of"), record(EDGE), TaskResult("t", writes=BIG)], [effect(two.reference), effect(None)])
    assert found == {one.digest: "the result of fetch in look", two.digest: "the result of post (r1.1.look.0#1)"}
    assert name_blobs([record(one.reference)], [effect(one.reference)]) == {one.digest: "the result of fetch in look"}
    assert name_blobs([]) == {}


def test_bytes_are_held_against_their_name() -> None:
    """X-01: a flipped bit, or nothing at all, is named."""
    blob = blob_of(BIG)
    assert read_back(blob.digest, BIG) == BIG
    for data, said in ((None, "is missing"), (BIG[:-1] + b"y", "its checksum does not match")):
        with pytest.raises(StoreCorrupt, match=said) as e:
            read_back(blob.digest, data)
        assert e.value.code == blobs.UNREADABLE == "blob_unreadable"
        assert blob.digest in e.value.message
        assert e.value.hint

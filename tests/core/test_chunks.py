"""Chunks of ``ctx.emit`` (§13.6): how they are numbered and named, and which of them a durable result replaces."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import chunks
from holdfast.core.checkpoint import StepRecord, TaskResult
from holdfast.core.chunks import Batch, Emitted, Place, Turn, find_replaced

NODE = Place(1, "a")
CALL, BENEATH, BESIDE = Place(1, "a", "0"), Place(1, "a", "0/2"), Place(1, "a", "01")
OTHER, LATER = Place(1, "b", "0"), Place(2, "a", "0")
PLACES = (NODE, CALL, BENEATH, BESIDE, OTHER, LATER)


def turn(place: Place = CALL, number: int = 1) -> Turn:
    return Turn(place, number, number, 0, "s1", "t1")


def test_every_turn_of_a_place_has_a_name_of_its_own() -> None:
    """§13.3: two beginnings of one call are told apart, and so are the parts of a name that could run into each other."""
    turns = [turn(place, number) for place in (*PLACES, Place(11, "a", ""), Place(1, "", "a"), Place(1, "a", "1")) for number in (1, 11)]
    assert len({t.key for t in turns}) == len(turns)
    assert turn().key == turn().key


@given(st.integers(1, 10**9), st.lists(st.binary(max_size=20), min_size=1, max_size=5))
def test_a_batch_numbers_its_chunks_and_comes_back(first: int, data: list[bytes]) -> None:
    """§13.6: chunks of an attempt are numbered; the batch after begins where this one ended."""
    batch = Batch(turn(), first, 7, tuple(data))
    assert batch.last == first + len(data) - 1
    assert batch.size == len(b"".join(data))
    assert chunks.decode("r", chunks.encode("r", batch)) == batch


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x90", msgspec.msgpack.encode(["a", 1, 2, []])])
def test_a_damaged_batch_is_an_error(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        chunks.decode("r", data)


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=3), st.data())
def test_an_altered_batch_is_none(texts: list[bytes], data: st.DataObject) -> None:
    """Point 1 of «Harden»: no bit of it can be turned without notice, and it is none of another run."""
    kept = chunks.encode("r1", Batch(turn(), 3, 7, tuple(texts)))
    at, bit = data.draw(st.integers(0, len(kept) - 1)), data.draw(st.integers(0, 7))
    assert chunks.readable("r1", kept[:at] + bytes([kept[at] ^ 1 << bit]) + kept[at + 1 :]) is None
    assert chunks.readable("r2", kept) is None and chunks.readable("r1", kept[:at]) is None


def test_a_batch_of_a_past_release_counts_as_it_stands() -> None:
    batch = Batch(turn(), 3, 7, (b"x",))
    assert chunks.decode("r1", msgspec.msgpack.encode(batch)) == batch


def test_a_write_that_only_cuts_is_none() -> None:
    """Rings are cut when something is added to them: by itself a cut changes nothing that a reader sees."""
    assert not Emitted("r", 1) and not Emitted("r", 1, before={"k": 3})
    assert Emitted("r", 1, (Batch(turn(), 1, 1, (b"x",)),)) and Emitted("r", 1, replaced=("k",))


@pytest.mark.parametrize(
    ("result", "replaced"),
    [
        (StepRecord("a", "0", "ask"), {CALL, BENEATH}),
        (StepRecord("a", "0/2", "ask"), {BENEATH}),
        (StepRecord("a", "01", "ask"), {BESIDE}),
        (StepRecord("b", "0", "ask"), {OTHER}),
        (StepRecord("b", "1", "ask"), set()),
        (TaskResult("a"), {NODE, CALL, BENEATH, BESIDE}),
        (TaskResult("c"), set()),
    ],
)
def test_a_result_replaces_what_led_to_it(result: StepRecord | TaskResult, replaced: set[Place]) -> None:
    """§13.6: a call's result its own chunks and those beneath it, a task's all of the task; those of another step stay."""
    assert find_replaced([result], PLACES, 1) == replaced


def test_results_of_one_commit_replace_together() -> None:
    assert find_replaced([StepRecord("a", "0", "ask"), TaskResult("b")], PLACES, 1) == {CALL, BENEATH, OTHER}
    assert find_replaced([TaskResult("a")], PLACES, 2) == {LATER}
    assert find_replaced([], PLACES, 1) == set()


@pytest.mark.parametrize("damaged", [b"", b"\xc1", b"\x93\x01", None, "text", 7])
def test_what_cannot_be_read_is_left_out(damaged: object) -> None:
    """§13.6: chunks are provisional; whatever a damaged page gives, the others are read."""
    batch = chunks.Batch(chunks.Turn(chunks.Place(1, "n", ""), 1, 1, 0, "s", "a"), 1, 0, (b"x",))
    assert chunks.read("r", [chunks.encode("r", batch), damaged, chunks.encode("r", batch)]) == [batch, batch]
    assert chunks.readable("r", damaged) is None

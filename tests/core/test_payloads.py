"""§14.5: envelopes, and which fields are payload."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.core import blobs, canon, codec, commands, envelopes, payloads
from holdfast.core import events as ev
from holdfast.core.checkpoint import Delta, StepRecord, Task, TaskResult, Unfinished
from holdfast.core.commit import InboxItem, LedgerRow
from holdfast.core.consistency import diagnose
from holdfast.core.effects import Effect, EffectClass
from holdfast.core.envelopes import Envelope, Header
from holdfast.core.errors import ErrorValue, EventUnreadable, Frame, KeyUnavailable, StoreCorrupt
from holdfast.core.intents import SENDER_LOST, Intent
from holdfast.core.run import Buffered
from holdfast.core.schedules import Schedule
from holdfast.core.waits import Decision, Wait, WaitKind
from tests.core.build import RUN, Log

HEADER = Header(envelopes.VERSION, "k1", b"abcd", "default", "r1", "end.result")
SEALED = envelopes.wrap(Envelope(HEADER, b"n" * 12, b"data"))


def placed(value: Any, base: str = "here") -> list[str]:
    found: list[str] = []

    def note(data: Any, place: str) -> Any:
        found.append(place)
        return data

    assert payloads.change_each(value, base, note) is value
    return found


@pytest.mark.parametrize("size", [1, 300, 70_000])
def test_an_envelope_comes_back(size: int) -> None:
    made = Envelope(HEADER, b"n" * 12, b"x" * size)
    data = envelopes.wrap(made)
    assert envelopes.is_sealed(data) and envelopes.unwrap(data) == made
    text = envelopes.as_text(data)
    assert envelopes.is_sealed(text) and envelopes.unwrap(text) == made
    assert envelopes.header_of(text) == HEADER and HEADER.associated.startswith(envelopes.MARK)


def test_what_is_none() -> None:
    for value in (None, b"", "", "text", b"text", canon.encode({"a": 1}), b"\xc7", SEALED[:4], blobs.blob_of(b"x").reference):
        assert not envelopes.is_sealed(value)
    for value in ("HFsealed:", "HFsealed:AAAA", "HFsealed:\u00fc", b"\x01", b"\xc1", SEALED[:-1], SEALED + b"x", SEALED.replace(b"HFs", b"HFx")):
        with pytest.raises(EventUnreadable):
            envelopes.unwrap(value)
        assert envelopes.header_of(value) is None
    later = envelopes.wrap(Envelope(msgspec.structs.replace(HEADER, version=2), b"", b""))
    with pytest.raises(EventUnreadable, match="version 2"):
        envelopes.unwrap(later)
    with pytest.raises(EventUnreadable):
        envelopes.open_envelope(b"HFsealed\x01")


@pytest.mark.parametrize(
    ("text", "shown"),
    [(None, None), ("", ""), ("said", "said"), ("HFsealed:x", "HFsealed:x"), ("HFsealed", "HFsealed"), (envelopes.as_text(SEALED), "encrypted under k1")],
)
def test_in_the_place_of_an_encrypted_text_its_key_is_shown(text: str | None, shown: str | None) -> None:
    """Somebody's words that only look so are shown as they are."""
    assert envelopes.legible(text) == shown


@pytest.mark.parametrize("row", [b"", b"data", SEALED, SEALED[:-1], envelopes.wrap(Envelope(msgspec.structs.replace(HEADER, place="shelf:memory:other"), b"n" * 12, b"d"))])
def test_a_row_that_was_not_encrypted_in_its_place_is_handed_out_as_it_is(row: bytes) -> None:
    """Only the envelope that was written there stands for data that cannot be read; bytes that a user keeps may be any."""
    assert envelopes.in_clear(row, "memory", "k") == row


@pytest.mark.parametrize(("shelf", "key"), [("memory", "k"), ("answers", "a:b")])
def test_an_encrypted_row_of_a_shelf_is_not_handed_out_for_its_data(shelf: str, key: str) -> None:
    place = envelopes.place_of(shelf, key)
    row = envelopes.wrap(Envelope(msgspec.structs.replace(HEADER, run_id="", place=place), b"n" * 12, b"data"))
    with pytest.raises(KeyUnavailable) as caught:
        envelopes.in_clear(row, shelf, key)
    assert (caught.value.key_id, caught.value.place) == ("k1", place)


def test_who_decodes_it_unawares_is_told_which_key() -> None:
    with pytest.raises(KeyUnavailable) as caught:
        canon.decode(SEALED)
    assert (caught.value.key_id, caught.value.run_id, caught.value.place) == ("k1", "r1", "end.result")
    assert canon.reveal(SEALED) == {"sealed": "k1"}
    assert "a payload is" in str(KeyUnavailable("k2"))


def test_places_are_the_same_wherever_a_fold_carries_them() -> None:
    error = ErrorValue("E", "m", hint="h", frames=(Frame("f", 1, "g", "s"),))
    assert placed(ev.RunFailed("step_failed", error)) == ["end.error.message", "end.error.hint", "end.error.frames/0.source"]
    wait = Wait("w1", WaitKind.APPROVAL, 1, "ask", prompt="p", show=b"s", default=b"d")
    assert placed(ev.WaitRequested(wait)) == placed((wait,)) == ["wait:w1.prompt", "wait:w1.show", "wait:w1.default"]
    decision = Decision("w1", "approve", "ann", feedback="f", note="n", payload=b"p", asked="approval:p")
    assert placed(ev.WaitDecided(decision)) == placed(decision) == [f"decision:w1.{n}" for n in ("feedback", "note", "payload", "asked")]
    assert placed(ev.SignalReceived("go", "k", b"p")) == placed(Buffered("go", "k", b"p")) == ["signal:go:k.payload"]
    assert placed(ev.NoteAdded("said"), "event:7") == ["event:7.text"]
    assert placed(InboxItem("r1", "cancel", commands.Cancel("ann", "why"), 1)) == ["inbox:cancel.command.reason"]
    assert placed(LedgerRow("r1", "t", "k", b"d", 5)) == ["ledger:t:k:5.data"]
    assert placed(Schedule(schedule_id="s", skill_id="x", input=b"i")) == ["schedule:s.input"]
    assert placed(Intent(intent_id="i", run_id="r1", type="t", payload=b"p", key="k")) == ["intent:i.payload"]
    delta = Delta(step=1, done=("a", TaskResult("b", writes=b"w")), values=b"v", pending=(Task("c", payload=b"p"),))
    assert placed(delta, "d") == ["d.done/1.writes", "d.values", "d.pending/0.payload"]


def test_what_a_fold_or_a_store_must_read_is_in_clear() -> None:
    reference = blobs.blob_of(b"large").reference
    assert placed(Wait("w1", WaitKind.BUDGET, 1, "ask", default=b"d")) == []
    assert placed(Decision("w1", "signal", "ann", asked="signal:go", key="k")) == []
    assert placed(StepRecord("t", "0", "step", value=reference)) == [] and placed(StepRecord("t", "0", "ask: x", kind="wait")) == ["here.name"]
    effect = Effect(
        effect_id="e", run_id="r1", lineage_root="r1", step=1, task="t", path="", attempt=1, capability="c", effect_class=EffectClass.READ, key="k", result=reference
    )
    assert placed(effect) == [] and placed(msgspec.structs.replace(effect, result=b"r")) == ["effect:e.result"]


def test_what_may_be_plain_under_strict_encryption() -> None:
    assert payloads.may_be_plain(SENDER_LOST, "intent:i.detail") and not payloads.may_be_plain("said", "intent:i.detail")
    for value in (5, 1.5, {"extend": 3}):
        assert payloads.may_be_plain(canon.encode(canon.admit(value)), "decision:w.payload")
    for value in ("5", {"extend": "x"}, {"extend": 1, "x": 2}, [5]):
        assert not payloads.may_be_plain(canon.encode(canon.admit(value)), "decision:w.payload")
    assert not payloads.may_be_plain(canon.encode(5), "end.result") and not payloads.may_be_plain(b"\xc1", "decision:w.payload")


def test_what_is_still_sealed() -> None:
    shut = ev.RunCompleted(SEALED)
    assert payloads.has_sealed(shut) and payloads.keys_of(shut) == {"k1"} and payloads.blank(shut) == ev.RunCompleted(b"")
    note = ev.NoteAdded(envelopes.as_text(SEALED))
    assert payloads.blank(note) == ev.NoteAdded("")
    with pytest.raises(KeyUnavailable):
        payloads.hold_open(note)
    fine = ev.RunCompleted(canon.encode("HFsealed:x"))
    assert not payloads.has_sealed(fine) and payloads.blank(fine) is fine and not payloads.has_sealed(ev.NoteAdded("HFsealed:x"))
    payloads.hold_open(fine)


def test_a_large_result_that_is_encrypted_is_held_against_its_name_without_a_key() -> None:
    blob = blobs.blob_of(b"large")
    kept = blobs.seal(envelopes.wrap(Envelope(msgspec.structs.replace(HEADER, place=blobs.place(blob.digest)), b"n", b"d")))
    assert blobs.read_back(blob.digest, kept) == kept and blobs.envelope_of(b"large") is None
    other = blobs.blob_of(b"other").digest
    for digest, data in ((other, kept), (blob.digest, kept[:-1] + b"x"), (blob.digest, blobs.seal(b"large")), (blob.digest, b"small")):
        with pytest.raises(StoreCorrupt):
            blobs.read_back(digest, data)


def test_a_check_without_the_key_says_so_and_checks_the_rest() -> None:
    """The row and the log hold the same payload, sealed differently, and a delta whose hash is over what cannot be read."""
    log = Log().commit(ev.RunStarted(), ev.StepStarted(1, "a"), ev.CheckpointSaved(b""), delta=Delta(step=0))
    log.commit(ev.StepCompleted(1, "a"), ev.RunCompleted(SEALED), delta=Delta(step=1, values=SEALED), results=(StepRecord("a", "0", "s", value=SEALED),))
    assert log.run is not None
    other = envelopes.wrap(Envelope(HEADER, b"m" * 12, b"else"))
    row = msgspec.structs.replace(log.run, result=other)
    found = diagnose(RUN, row, None, 0, log.rows)
    assert [(p.code, p.severity) for p in found] == [("payload_sealed", "warning")] and "k1" in found[0].message
    assert [p.code for p in diagnose(RUN, msgspec.structs.replace(row, lane="x"), None, 0, log.rows)] == ["snapshot_field_drift", "payload_sealed"]
    words = Log().commit(ev.RunStarted(), ev.NoteAdded("HFsealed:x")).commit(ev.NoteAdded("HFsealed"))
    assert diagnose(RUN, words.run, None, 0, words.rows) == []
    assert payloads.has_sealed(codec.open_row(log.rows[-1]).delta) and not payloads.has_sealed(codec.open_row(log.rows[-2]).delta)


def test_the_failures_of_tasks_that_wait_are_payload() -> None:
    """A whole checkpoint holds them by the name of the task; what is said there is sealed, the rest of the record is as it was."""
    error = ErrorValue("ValueError", "card 4111 declined")
    kept = Unfinished(failed={"a": error, "b": ErrorValue("ValueError", "")})
    assert placed(kept) == ["here.failed:a.message"]
    changed = payloads.change_each(kept, "here", lambda data, place: "sealed")
    assert changed == Unfinished(failed={"a": msgspec.structs.replace(error, message="sealed"), "b": ErrorValue("ValueError", "")})

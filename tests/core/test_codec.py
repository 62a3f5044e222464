"""Records to bytes and back (§1.8, §1.9, §1.10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import canon, codec, commands
from holdfast.core import checkpoint as cps
from holdfast.core import events as ev
from holdfast.core.channels import append
from holdfast.core.checkpoint import Delta, StepRecord, Task, TaskResult
from holdfast.core.codec import Row
from holdfast.core.commit import Commit
from holdfast.core.effects import Effect, EffectClass
from holdfast.core.errors import ChainBroken, ErrorValue, EventUnreadable, StoreError, UnknownStatus, UnsupportedFormat
from tests.core.build import RUN, Log, World, folded, node, program, raw, submitted, wait

EFFECT = Effect(
    effect_id="e", run_id=RUN, lineage_root=RUN, step=1, task="a", path="", attempt=1, capability="c", effect_class=EffectClass.WRITE, key="k",
    result=raw({"x": 1}),
)
COMMANDS: list[commands.AnyCommand] = [
    commands.Decide("w", "approve", "ada", payload=raw(None)),
    commands.FireTimeout("w", 5),
    commands.Signal("go", "k", raw({"a": 1}), "ada"),
    commands.Cancel("ada"),
    commands.Cancel("ada", nonce="2"),
    commands.ChildEnded("r2", "failed", error=ErrorValue("E", "m")),
    commands.Resume("ada", nonce="1"),
    commands.LateResult("s@1", "x"),
]


@pytest.fixture
def upcasters() -> Iterator[Callable[..., None]]:
    before = {tag: list(steps) for tag, steps in codec._upcasters.items()}
    yield codec.upcast
    codec._upcasters.clear()
    codec._upcasters.update(before)


def small() -> Log:
    log = Log()
    log.commit(ev.RunStarted(), ev.StepStarted(1, "a"), ev.CheckpointSaved(b""), delta=Delta(step=0, done=("@input",)))
    result = TaskResult("a", writes=raw({"x": 1}))
    record = StepRecord("a", "0", "f", raw([1]))
    log.commit(ev.StepCompleted(1, "a"), ev.StepStarted(2, "b"), delta=Delta(step=1, done=(result,), pending=(Task("b"),)), results=(record,))
    log.commit(ev.WaitRequested(wait(show=raw({"q": 1}))), ev.RunWaitingForHuman())
    return log


def test_a_commit_comes_back_as_it_was() -> None:
    """§1.6."""
    log = small()
    previous = b""
    facts: list[Any] = []
    for row in log.rows:
        record = codec.open_row(row, previous)
        previous = row.hash
        facts += [e.type for e in record.events]
    assert facts == [
        "run.submitted", "run.started", "step.started", "checkpoint.saved", "step.completed", "step.started", "wait.requested", "run.waiting_for_human",
    ]
    third = codec.open_row(log.rows[2])
    assert [e.seq for e in third.events] == [5, 6]
    assert (third.at, third.fence, third.actor, third.seq, third.size) == (5_000_000, 1, "system", 6, len(log.rows[2].data))
    assert third.delta is not None
    assert canon.chain(codec.open_row(log.rows[1]).events[-1].fact.hash, third.delta_bytes) == third.events[0].fact.hash  # type: ignore[union-attr]
    assert third.results == (StepRecord("a", "0", "f", raw([1])),)
    assert codec.open_row(log.rows[3]).events[0].fact == ev.WaitRequested(wait(show=raw({"q": 1})))


def test_only_cold_commits_carry_the_run_row() -> None:
    """§1.6: a plain step writes hot columns only."""
    run = folded(ev.RunStarted())
    for fact, cold in ((ev.StepStarted(1, "a"), False), (ev.StepCompleted(1, "a"), False), (ev.Unknown(99, []), False), (ev.RunCompleted(), True)):
        commit = msgspec.structs.replace(_any_commit(), run=run, events=(ev.Event(3, 3, fact),))
        assert (codec.seal(commit).doc is not None) is cold
    assert codec.decode_run(codec.seal(_any_commit()).doc or b"") == _any_commit().run


def _any_commit() -> Commit:
    return Commit(run=folded(), events=(ev.Event(1, 1, submitted()),), after=None, fence=7, at=1)


def test_a_broken_chain_is_named() -> None:
    """X-01, §1.9: any flipped bit of any row."""
    log = small()
    good = log.rows[1]
    assert codec.open_row(good, log.rows[0].hash).seq == good.seq
    with pytest.raises(ChainBroken):
        codec.open_row(good, b"other")
    for at in range(len(good.data)):
        data = bytearray(good.data)
        data[at] ^= 1
        with pytest.raises(ChainBroken):
            codec.open_row(Row(good.seq, bytes(data), good.hash), log.rows[0].hash)


@pytest.mark.parametrize(("version", "reads"), [(100, True), (109, True), (200, False), (0, False)])
def test_majors_are_refused_and_minors_are_read(version: int, reads: bool) -> None:
    """T-54: 1.0, 1.9, 2.0; §1.8: never a guess."""
    fields = msgspec.msgpack.decode(small().rows[1].data)
    fields[0] = version
    row = Row(4, msgspec.msgpack.encode(fields), b"")
    if reads:
        assert codec.open_row(row).events[0].fact == ev.RunStarted()
        return
    with pytest.raises(UnsupportedFormat, match=f"{version // 100}.0"):
        codec.open_row(row)


def test_older_shapes_are_upgraded_in_order(upcasters: Callable[..., None]) -> None:
    """T-54, §1.8: by registered pure functions, oldest first."""
    upcasters(62, 105, lambda fields: [fields[0] + "!"])
    upcasters(62, 103, lambda fields: [fields[0].upper()])
    for version, text in ((100, "HI!"), (104, "hi!"), (105, "hi")):
        row = Row(1, msgspec.msgpack.encode([version, 0, 0, "a", [[62, "hi"]], None, []]), b"")
        assert codec.open_row(row).events[0].fact == ev.NoteAdded(text)
    upcasters(62, 106, lambda fields: 3)
    with pytest.raises(EventUnreadable):
        codec.open_row(row)


def _row(format: int, fields: list[Any]) -> Row:
    data = msgspec.msgpack.encode([format, 1, 1, "system", [fields], None, []])
    return Row(1, data, canon.chain(b"", data))


def test_an_older_payload_is_upgraded_and_a_newer_major_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """T-54, §1.8: versions 1.0, 1.9 and 2.0. In 1.0 ``run.queued`` had the blocking run first."""
    monkeypatch.setattr(codec, "_upcasters", {})
    monkeypatch.setattr(codec, "FORMAT", 109)
    codec.upcast(2, 105, lambda fields: [fields[1], fields[0]])
    old = codec.open_row(_row(100, [2, "run-1", "lane busy"]), b"").events[0].fact
    new = codec.open_row(_row(109, [2, "lane busy", "run-1"]), b"").events[0].fact
    assert old == new == ev.RunQueued("lane busy", blocked_by="run-1")
    with pytest.raises(UnsupportedFormat, match=r"2\.0.*1\.9"):
        codec.open_row(_row(200, [2, "lane busy", "run-1"]), b"")


def test_a_newer_minor_may_have_kinds_and_fields_we_do_not_know() -> None:
    """T-13, §1.8."""
    row = Row(3, msgspec.msgpack.encode([101, 0, 0, "a", [[150, "x", 2], [300, 1], [62, "hi", "", "", "", "", "new field"]], None, []]), b"")
    facts = [e.fact for e in codec.open_row(row).events]
    assert facts[0] == ev.Unknown(150, ["x", 2])
    assert facts[1] == ev.Unknown(300, [1])
    assert facts[2] == ev.NoteAdded("hi")


def test_a_row_of_the_usual_kind_says_what_it_says_beside_others() -> None:
    """It is decoded in one piece; with a fact that is seldom, or in a newer minor format, piece by piece."""
    facts: list[ev.Fact] = [submitted(input=raw({"x": [1]})), ev.RunStarted(), ev.StepStarted(1, "a"), ev.CheckpointSaved(b"h", "input"), ev.StepCompleted(1, "a", hash=b"h"), ev.RunCompleted()]
    results = (TaskResult("a", writes=raw({"x": 1})), StepRecord("a", "0", "f", raw([1])))
    delta = codec.encode_delta(Delta(step=1, done=(results[0],), pending=(Task("b"),)))

    def opened(facts: list[ev.Fact], format: int = codec.FORMAT) -> codec.Record:
        data = msgspec.msgpack.encode([format, *msgspec.msgpack.decode(codec.encode_row(5, 7, "ada", facts, delta, results))[1:]])
        return codec.open_row(Row(10 + len(facts), data, canon.chain(b"", data)), b"")

    usual = opened(facts)
    assert [e.fact for e in usual.events] == facts
    assert [e.seq for e in usual.events] == [*range(11, 17)]
    assert (usual.results, usual.delta_bytes, usual.at, usual.fence, usual.actor) == (results, delta, 5, 7, "ada")
    more = opened([*facts, ev.BudgetSpent(1, "a", {"usd": 1.0})])
    assert more.events[:-1] == usual.events
    newer = opened(facts, codec.FORMAT + 3)
    assert newer.events == usual.events
    for other in (more, newer):
        assert (other.results, other.delta, other.delta_bytes) == (usual.results, usual.delta, usual.delta_bytes)


@pytest.mark.parametrize(
    "fact", [5, [], {}, ["x"], [-1], [21], [21, "x", "y"], [7.5], [[1]], [4294967295 * 2]], ids=repr,
)
def test_a_fact_that_is_none_is_a_typed_error(fact: Any) -> None:
    """L-18."""
    with pytest.raises(EventUnreadable):
        codec.open_row(Row(1, msgspec.msgpack.encode([100, 0, 0, "a", [fact], None, []]), b""))


def test_facts_of_many_fields_have_long_headers() -> None:
    """A run.submitted has more than 15 fields, so its array is written otherwise."""
    full = submitted(tags=tuple("abc"))
    row = Row(1, msgspec.msgpack.encode([100, 0, 0, "a", [full], None, []]), b"")
    assert codec.open_row(row).events[0].fact == full


@pytest.mark.parametrize("part", [[None, [[9]]], [b"\xc1", []], [b"\x03", []]])
def test_a_bad_delta_or_result_is_a_typed_error(part: list[Any]) -> None:
    with pytest.raises(EventUnreadable, match="checkpoint of event"):
        codec.open_row(Row(1, msgspec.msgpack.encode([100, 0, 0, "a", [[62, "x"]], *part]), b""))


def test_the_other_records_round_trip() -> None:
    """§1.8."""
    run = small().run
    assert run is not None
    assert codec.decode_run(codec.encode_run(run)) == run
    assert codec.decode_effect(codec.encode_effect(EFFECT)) == EFFECT
    delta = Delta(step=3, done=("a", TaskResult("b", writes=raw(1))), kinds={"x": "append"}, pending=(Task("c", payload=raw(1)),))
    assert codec.decode_delta(codec.encode_delta(delta)) == delta
    for command in COMMANDS:
        assert codec.decode_command(codec.encode_command(command)) == command
    assert len({c.key for c in COMMANDS}) == len(COMMANDS) - 1, "a decision and its timeout share a key (§5.6)"
    with pytest.raises(NotImplementedError):
        _ = commands.Command().key


def test_a_whole_checkpoint_comes_back_with_its_chain() -> None:
    """§4.5: whole now and then, always loaded whole."""
    prog = program(node("a", start=True), node("no", start=True, when=lambda s: False), channels={"l": append})
    cp = msgspec.structs.replace(World(prog, a=lambda s: {"l": [1, {"x": (2,)}]}).drive().head, waits=(wait(),), created_at=5)
    again, chain = codec.decode_whole(RUN, codec.encode_whole(cp, b"chain"))
    assert chain == b"chain"
    assert msgspec.structs.replace(again, writes=cp.writes) == cp
    with pytest.raises(TypeError):
        again.values["l"].append(1)


def test_an_unknown_status_in_a_row_is_its_own_error() -> None:
    """T-52, §2.6."""
    fields = msgspec.msgpack.decode(codec.encode_run(folded()))
    for word in ("paused", "DONE", 7):
        fields[codec._STATUS] = word
        with pytest.raises(UnknownStatus):
            codec.decode_run(msgspec.msgpack.encode(fields))
    fields[codec._STATUS] = "pending"
    fields[0] = 7
    with pytest.raises(EventUnreadable):
        codec.decode_run(msgspec.msgpack.encode(fields))
    for damaged in (b"", b"\xc1", msgspec.msgpack.encode(3)):
        with pytest.raises(EventUnreadable):
            codec.decode_run(damaged)


def _decoders() -> list[Callable[[bytes], Any]]:
    return [
        codec.decode_run, codec.decode_effect, codec.decode_command, codec.decode_delta, lambda d: codec.decode_whole(RUN, d),
        lambda d: codec.open_row(Row(9, d, b"")), canon.decode, canon.reveal,
    ]


def _samples() -> list[bytes]:
    cp = msgspec.structs.replace(cps.empty(RUN), values=canon.admit({"a": [1]}), pending=(Task("a"),), waits=(wait(),))
    return [
        codec.encode_run(folded(ev.WaitRequested(wait(show=raw(1))))), codec.encode_effect(EFFECT), *map(codec.encode_command, COMMANDS),
        codec.encode_delta(Delta(step=1, done=(TaskResult("a", writes=raw({"x": 1})),))), codec.encode_whole(cp, b"c"), *(r.data for r in small().rows),
    ]


SAMPLES = _samples()


@given(st.sampled_from(range(8)), st.binary(max_size=80))
def test_any_bytes_are_read_or_are_a_typed_error(which: int, data: bytes) -> None:
    """L-18: every decoder."""
    try:
        _decoders()[which](data)
    except (StoreError, UnknownStatus):
        pass


@given(st.sampled_from(range(8)), st.sampled_from(SAMPLES), st.lists(st.tuples(st.integers(0, 999), st.integers(0, 255)), max_size=3), st.integers(0, 999))
def test_damaged_records_are_read_or_are_a_typed_error(which: int, sample: bytes, flips: list[tuple[int, int]], cut: int) -> None:
    """L-18: real records, with bytes changed and the end cut off."""
    data = bytearray(sample[: max(1, cut)])
    for at, byte in flips:
        data[at % len(data)] = byte
    try:
        _decoders()[which](bytes(data))
    except (StoreError, UnknownStatus):
        pass


@pytest.mark.parametrize("which", range(8))
def test_bytes_nested_without_end_are_a_typed_error(which: int) -> None:
    """L-18."""
    for data in (b"\x91" * 200_000, b"\x81\xa1a" * 100_000, msgspec.msgpack.encode([100, 0, 0, "a", [msgspec.Raw(b"\x91" * 50_000 + b"\x01")], None, []])):
        with pytest.raises(StoreError):
            _decoders()[which](data)


def test_a_log_is_opened_from_its_first_row() -> None:
    log = Log(ev.RunStarted()).commit(ev.NoteAdded("hi"))
    assert [e.fact for record in codec.open_rows(log.rows) for e in record.events][1:] == [ev.RunStarted(), ev.NoteAdded("hi")]
    with pytest.raises(ChainBroken):
        list(codec.open_rows(log.rows[1:]))


def test_a_log_is_opened_from_the_middle_where_the_hash_before_it_is_not_at_hand() -> None:
    log = Log(ev.RunStarted()).commit(ev.NoteAdded("one")).commit(ev.NoteAdded("two"))
    (first, second) = codec.open_rows(log.rows[1:], None)
    assert [e.fact for record in (first, second) for e in record.events] == [ev.NoteAdded("one"), ev.NoteAdded("two")]
    with pytest.raises(ChainBroken):
        codec.open_rows([log.rows[0], log.rows[2]], None)


def test_the_columns_of_a_run_are_laid_over_its_record() -> None:
    """T-19: an edit made by hand is seen by whoever compares."""
    run = Log().run
    here: dict[str, Any] = {"version": run.version, "step": run.current_step_id, "head": run.checkpoint_head}
    assert codec.overlay(run, status=run.status, **here) is run
    assert codec.overlay(run, status="failed", **here) == msgspec.structs.replace(run, status="failed")
    moved = codec.overlay(run, status=run.status, **here | {"version": 9, "step": "s", "head": "c9"})
    assert (moved.version, moved.current_step_id, moved.checkpoint_head, moved.status) == (9, "s", "c9", run.status)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32), st.sampled_from(["a", "node" * 20]), st.one_of(st.none(), st.binary(max_size=300), st.just(b"x" * 70_000)))
def test_a_plain_step_s_row_is_put_together_as_it_is_encoded(at: int, fence: int, step: int, name: str, writes: bytes | None) -> None:
    """Issue «Speed»: the pieces around what changes, and what changes, are the bytes that the encoders make."""

    def delta(step: int, writes: bytes | None) -> cps.Delta:
        return cps.Delta(step, cps.Source.LOOP, (cps.TaskResult(name, "ok", writes),), {}, pending=(cps.Task("next", seen=(f"done:{name}",)),))

    form = codec.form(delta(0, None), ev.StepCompleted(0, name, "ok", bytes(canon.HASH_BYTES)), ev.StepStarted(0, "next"))
    found = form.fill(b"before", codec.number(step), codec.number(step + 1), writes, at, codec.number(fence))
    data = codec.encode_delta(delta(step, writes))
    hash = canon.chain(b"before", data)
    assert found == (hash, codec.encode_row(at, fence, ev.SYSTEM, [ev.StepCompleted(step, name, "ok", hash), ev.StepStarted(step + 1, "next")], data))


@pytest.mark.parametrize("value", [0, 0x7F, 0x80, 0xFF, 0x100, 0xFFFF, 0x1_0000, 0xFFFF_FFFF, 0x1_0000_0000, 2**64 - 1])
def test_a_number_is_encoded_as_everywhere(value: int) -> None:
    assert codec.number(value) == msgspec.msgpack.encode(value)
    form = codec.form(Delta(0, done=(TaskResult("a"),), pending=(Task("b", seen=("done:a",)),)), ev.StepCompleted(0, "a", "ok", bytes(canon.HASH_BYTES)), ev.StepStarted(0, "b"))
    writes = bytes(min(value, 0x1_0000))
    data = codec.encode_delta(Delta(1, done=(TaskResult("a", writes=writes),), pending=(Task("b", seen=("done:a",)),)))
    assert data in form.fill(b"", codec.number(1), codec.number(2), writes, value, codec.number(2))[1]

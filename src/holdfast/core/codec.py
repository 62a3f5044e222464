"""Encodes records to bytes and back (§1.8, §1.10): each commit leaves one row in the log, encoded in one call.

A row is ``[format, at, fence, actor, facts, delta, results]`` in msgpack. Its hash is H(previous row's hash, row);
this hash chain shows which row was lost, cut or edited. ``format`` is major x 100 + minor; an older minor is upgraded by
registered upcasters, another major is a typed error.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.core import canon, commands
from holdfast.core import events as ev
from holdfast.core.checkpoint import (
    FORMAT,
    Carry,
    Checkpoint,
    Delta,
    Held,
    Result,
    Source,
    Task,
    TaskResult,
    Unfinished,
    pack_held,
    unpack_held,
)
from holdfast.core.commit import Commit
from holdfast.core.effects import Effect
from holdfast.core.errors import ChainBroken, EventUnreadable, StoreCorrupt, UnsupportedFormat, UsageError
from holdfast.core.intents import Intent
from holdfast.core.limits import Rule
from holdfast.core.offers import Offer
from holdfast.core.recorded import Recorded
from holdfast.core.run import Run
from holdfast.core.schedules import Schedule
from holdfast.core.status import Status, parse
from holdfast.core.waits import Wait

_encoder = msgspec.msgpack.Encoder()


class Record(msgspec.Struct, frozen=True):
    """One commit as read from the log. ``seq`` is the number of its last event."""

    seq: int
    at: int
    fence: int
    actor: str
    events: tuple[ev.Event, ...]
    delta: Delta | None
    delta_bytes: bytes
    results: tuple[Result, ...]
    hash: bytes
    size: int


class Opener(Protocol):
    """Decrypts the payloads in the records of one run (§14.5)."""

    def record(self, record: Record) -> Record:
        """Returns the record with its payloads decrypted, as far as their keys are available."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """A log row as a store keeps it: the last event's number, the bytes and their hash in the chain. ``opener`` decrypts its payloads, if they
    are encrypted. The chain is checked before that, and this check needs no key."""

    seq: int
    data: bytes
    hash: bytes
    opener: Opener | None = None


_UsualFact = (
    ev.RunSubmitted | ev.RunQueued | ev.RunClaimed | ev.RunStarted | ev.RunResumed | ev.RunWaitingForHuman | ev.RunWaitingForSignal | ev.RunCompleted
    | ev.StepStarted | ev.StepCompleted | ev.CheckpointSaved | ev.SideEffectAttempted | ev.SideEffectRecorded
    | ev.WaitRequested | ev.WaitDecided | ev.SignalReceived
)


class _Outgoing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    format: int
    at: int
    fence: int
    actor: str
    facts: list[Any]
    delta: bytes | None
    results: tuple[Result, ...]


class _Incoming(msgspec.Struct, frozen=True, array_like=True):
    format: int
    at: int
    fence: int
    actor: str
    facts: tuple[msgspec.Raw, ...]
    delta: bytes | None
    results: tuple[msgspec.Raw, ...]


class _Usual(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row whose facts are all of the most common kinds: it is decoded in one piece."""

    format: int
    at: int
    fence: int
    actor: str
    facts: tuple[_UsualFact, ...]
    delta: bytes | None
    results: tuple[Result, ...]


class PlainRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row of the shape that only plain steps write: one task has ended, one task is next. ``delta`` is encoded."""

    format: int
    at: int
    fence: int
    actor: str
    facts: tuple[ev.StepCompleted, ev.StepStarted]
    delta: bytes
    results: tuple[()]


class Sealed(msgspec.Struct, frozen=True, gc=False):
    """A commit that is ready to be written: its log row, and the cold part of the run's row if that changed."""

    row: Row
    doc: bytes | None


def encode_row(at: int, fence: int, actor: str, facts: list[Any], delta: bytes | None, results: tuple[Result, ...] = ()) -> bytes:
    """Returns the bytes of a log row; ``fence`` is the full fence."""
    return _encoder.encode(_Outgoing(FORMAT, at, fence & 0xFFFFFFFF, actor, facts, delta, results))


class Form(msgspec.Struct, frozen=True, gc=False):
    """The log row of a plain step whose node is always followed by one other node, cut into the pieces around the values that change from step to
    step: the step's number and the next one's, the writes, the time, the fence, and the hash."""

    delta: tuple[bytes, ...]
    row: tuple[bytes, ...]

    def fill(self, previous: bytes, step: bytes, after: bytes, writes: bytes | None, at: int, fence: bytes) -> tuple[bytes, bytes]:
        """Returns the checkpoint's hash, and the row with the delta in it. ``step``, ``after`` and ``fence`` are encoded by ``number``."""
        a, b, c = self.delta
        data = b"".join((a, step, b, _NIL, c) if writes is None else (a, step, b, _binary(len(writes)), writes, c))
        hash, size = canon.chain(previous, data), len(data)
        a, b, c, d, e, f = self.row
        when = _long(0xCF, at) if at > 0xFFFF_FFFF else number(at)  # the usual case is inlined to save a call, as with the size below
        return hash, b"".join((a, when, fence, b, step, c, hash, d, after, e, _short(0xC5, size) if 0xFF < size < 0x1_0000 else _binary(size), data, f))


def form(delta: Delta, ended: ev.StepEnded, started: ev.StepStarted) -> Form:
    """Returns the form of steps with this delta and these two facts, which are given without writes and with zero for each number and hash."""
    replace, (result,) = msgspec.structs.replace, delta.done
    assert isinstance(result, TaskResult), "a plain step has its result in its delta"

    def row(at: int = 0, ended: ev.StepEnded = ended, started: ev.StepStarted = started, delta: bytes | None = None) -> bytes:
        return encode_row(at, 0, ev.SYSTEM, [ended, started], delta)

    written = replace(delta, done=(replace(result, writes=b""),))
    return Form(
        _around(encode_delta(delta), (encode_delta(replace(delta, step=1)), 1), (encode_delta(written), 1)),
        _around(
            row(),
            (row(at=1), 2),  # the time, and the fence after it
            (row(ended=replace(ended, step=1)), 1),
            (row(ended=replace(ended, hash=b"\xff" * len(ended.hash))), len(ended.hash)),
            (row(started=replace(started, step=1)), 1),
            (row(delta=b""), 1),
        ),
    )


def _around(data: bytes, *others: tuple[bytes, int]) -> tuple[bytes, ...]:
    """Cuts out of ``data``, for each of ``others``, ``length`` bytes from the first byte that differs, and returns the remaining pieces."""
    pieces, end = [], 0
    for other, length in others:
        start = next(n for n, (mine, its) in enumerate(zip(data, other, strict=False)) if mine != its)
        pieces.append(data[end:start])
        end = start + length
    return (*pieces, data[end:])


def number(value: int) -> bytes:
    """Returns the encoding of a number that is not negative."""
    if value < 0x80:
        return _ONE[value]
    if value < 0x100:
        return _byte(0xCC, value)
    if value < 0x1_0000:
        return _short(0xCD, value)
    return _middling(0xCE, value) if value < 0x1_0000_0000 else _long(0xCF, value)


def _binary(size: int) -> bytes:
    """Returns the msgpack header of ``size`` bytes."""
    if size < 0x100:
        return _byte(0xC4, size)
    return _short(0xC5, size) if size < 0x1_0000 else _middling(0xC6, size)


_NIL = b"\xc0"
_ONE = tuple([bytes((n,)) for n in range(0x80)])
_byte, _short, _middling, _long = struct.Struct(">BB").pack, struct.Struct(">BH").pack, struct.Struct(">BI").pack, struct.Struct(">BQ").pack


def seal(commit: Commit, previous: bytes = b"") -> Sealed:
    """Encodes a commit, before its transaction begins. ``previous`` is the hash at the tip that it follows."""
    events = commit.events
    facts = [*(events.facts if type(events) is Recorded else map(ev.fact_of, events))]
    hot = ev.HOT.issuperset(events.kinds if type(events) is Recorded else map(type, facts))
    data = encode_row(commit.at, commit.fence, commit.actor, facts, commit.delta, commit.results)
    row = Row(events[-1].seq, data, canon.chain(previous, data))
    return Sealed(row, None if hot else _encoder.encode(commit.run))


_row = msgspec.msgpack.Decoder(_Incoming)
_delta = msgspec.msgpack.Decoder(Delta)
_any = msgspec.msgpack.Decoder()
UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""What a decoder raises if it cannot decode the bytes."""


@functools.cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Returns the decoder of a type, made on first use: making the decoders of all facts at once took a fifth of the import time."""
    return msgspec.msgpack.Decoder(kind)


T = TypeVar("T")
Upcaster = Callable[[list[Any]], list[Any]]
_upcasters: dict[int, list[tuple[int, Upcaster]]] = {}


def upcast(tag: int, before: int, function: Upcaster) -> None:
    """Registers a pure function that brings a fact's stored fields up to date if they were written in a format below ``before``."""
    _upcasters.setdefault(tag, []).append((before, function))
    _upcasters[tag].sort(key=lambda pair: pair[0])


def check_format(format: int) -> None:
    """Refuses another major version (§1.8).

    Raises:
        UnsupportedFormat: names both versions.
    """
    if format // 100 != FORMAT // 100:
        have, want = f"{format // 100}.{format % 100}", f"{FORMAT // 100}.{FORMAT % 100}"
        raise UnsupportedFormat(f"the payload has format {have}, this release reads {want}", hint="use the release that wrote it, or migrate")


def open_row(row: Row, previous: bytes | None = None) -> Record:
    """Decodes a row. With ``previous``, the hash of the row before it, it also checks the row against the hash chain.

    Raises:
        ChainBroken, EventUnreadable, UnsupportedFormat: according to what is wrong with the row.
    """
    from_chain(row, previous)
    return _open(row)


def open_rows(rows: Sequence[Row], previous: bytes | None = b"") -> list[Record]:
    """Decodes a log and checks each row against the hash chain. ``previous`` is the hash before the first row, None if that is not known.

    Raises:
        ChainBroken, EventUnreadable, UnsupportedFormat: according to what is wrong with the first bad row.
    """
    if previous is None and rows:
        return [_open(rows[0]), *open_rows(rows[1:], rows[0].hash)]
    records = []
    for row, hash in zip(rows, canon.chain_each(previous or b"", [row.data for row in rows]), strict=True):
        hold_against(hash, row)
        records.append(_open(row))
    return records


def open_to_checkpoint(rows: Sequence[Row], hashes: Sequence[bytes], start: int) -> list[Record]:
    """Decodes the rows from ``start`` up to and including the next one that saves a checkpoint, or all of them if none does. ``hashes`` are the rows' hashes
    as computed along the chain.

    Raises:
        ChainBroken, EventUnreadable, UnsupportedFormat: according to what is wrong with the first bad row.
    """
    records = []
    for row, hash in islice(zip(rows, hashes, strict=True), start, None):
        hold_against(hash, row)
        records.append(_open(row))
        if records[-1].delta is not None:
            break
    return records


def _open(row: Row) -> Record:
    usual: _Usual | None
    try:
        usual = _decoder(_Usual).decode(row.data)
    except UNDECODABLE:
        usual = None  # it is decoded piece by piece below, which also finds what is wrong
    if usual is not None and usual.format == FORMAT:
        return _record(row, usual, usual.facts, usual.results)
    raw = _incoming(row)
    first = row.seq - len(raw.facts) + 1
    facts = [_fact(f, raw.format, first + i) for i, f in enumerate(raw.facts)]
    try:
        results = tuple([_decoder(Result).decode(r) for r in raw.results])
    except UNDECODABLE as e:
        raise EventUnreadable(f"the checkpoint of event {row.seq} cannot be decoded: {e}") from e
    return _record(row, raw, facts, results)


def _record(row: Row, raw: _Usual | _Incoming, facts: Sequence[ev.Fact | ev.Unknown], results: tuple[Result, ...]) -> Record:
    at, fence, actor, data = raw.at, raw.fence, raw.actor, raw.delta
    events = tuple([ev.Event(seq, at, fact, actor, fence) for seq, fact in enumerate(facts, row.seq - len(facts) + 1)])
    delta = None if data is None else _strict(_delta, data, f"the checkpoint of event {row.seq}")
    record = Record(row.seq, at, fence, actor, events, delta, data or b"", results, row.hash, len(row.data))
    return record if row.opener is None else row.opener.record(record)


@functools.cache
def plain_decoders() -> tuple[Callable[[bytes], PlainRow], Callable[[bytes], Delta]]:
    """Returns the decoders of a plain step's row and of the delta in it. For any other bytes they raise one of ``UNDECODABLE``."""
    return _decoder(PlainRow).decode, _delta.decode


def _incoming(row: Row) -> _Incoming:
    try:
        raw = _row.decode(row.data)
    except UNDECODABLE as e:
        raise EventUnreadable(f"the commit that ends with event {row.seq} cannot be decoded: {e}") from e
    check_format(raw.format)
    return raw


def read_carried(rows: Iterable[Row]) -> tuple[Carry, ...]:
    """Returns what a run's first checkpoint carries from other runs (§4.15). ``rows`` begin with the run's first row; only those up to the first
    checkpoint are decoded.

    Raises:
        EventUnreadable, UnsupportedFormat: according to what is wrong with the rows.
    """
    for row in rows:
        if (delta := _incoming(row).delta) is not None:
            return _strict(_delta, delta, f"the checkpoint of event {row.seq}").carries
    return ()


def from_chain(row: Row, previous: bytes | None) -> None:
    """Checks a row against the hash chain, unless ``previous`` is None because the row before it is not known."""
    if previous is not None:
        hold_against(canon.chain(previous, row.data), row)


def hold_against(hash: bytes, row: Row) -> None:
    """Refuses a row whose hash differs from ``hash``, which was computed along the chain.

    Raises:
        ChainBroken: the row is not the one that was written, or not in its place.
    """
    if hash != row.hash:
        raise ChainBroken(f"the commit that ends with event {row.seq} does not match its hash", hint="holdfast check names the damage; restore a backup")


def _fact(raw: msgspec.Raw, format: int, seq: int) -> ev.Fact | ev.Unknown:
    try:
        fields = None
        tag = _tag(raw)
        kind = ev.TAGS.get(tag)
        if kind is None:
            fields = _any.decode(raw)
            return ev.Unknown(tag, fields[1:])
        known = _upcasters.get(tag)
        if known is not None and (todo := [f for before, f in known if format < before]):
            fields = list(_any.decode(raw))[1:]
            for function in todo:
                fields = function(fields)
            raw = msgspec.Raw(_encoder.encode([tag, *fields]))
        fact: ev.Fact = _decoder(kind).decode(raw)
        return fact
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as e:
        raise EventUnreadable(f"event {seq} cannot be decoded: {e}") from e


def _tag(raw: msgspec.Raw) -> int:
    """The first element of a msgpack array, without decoding the rest."""
    data = bytes(memoryview(raw)[:8])
    if len(data) > 1 and data[0] & 0xF0 == 0x90 and data[1] < 0x80:
        return data[1]  # the usual case
    at = 1 if data[0] & 0xF0 == 0x90 else 3 if data[0] == 0xDC else -1
    if not 0 < at < len(data):
        raise ValueError("a fact is not an array")
    if data[at] < 0x80:
        return data[at]
    if 0xCC <= data[at] <= 0xCE:  # uint 8, 16, 32
        return int.from_bytes(data[at + 1 : at + 1 + (1 << data[at] - 0xCC)], "big")
    raise ValueError("a fact has no tag")


def encode_delta(delta: Delta) -> bytes:
    return _encoder.encode(delta)


def decode_delta(data: bytes) -> Delta:
    return _strict(_delta, data, "a checkpoint's delta")


def encode_run(run: Run) -> bytes:
    return _encoder.encode(run)


def overlay(run: Run, *, status: str, version: int, step: str | None, head: str | None) -> Run:
    """Returns the run with the values of its hot columns in place of those in the cold part.

    A status that differs is taken from the column, so that a comparison detects a manual edit (T-19).
    """
    if run.status != status:
        run = msgspec.structs.replace(run, status=Status(status))
    if run.version != version or run.current_step_id != step or run.checkpoint_head != head:
        run = msgspec.structs.replace(run, version=version, current_step_id=step, checkpoint_head=head)
    return run


_STATUS = Run.__struct_encode_fields__.index("status")


def decode_run(data: bytes) -> Run:
    """Decodes the cold part of a run's row.

    Raises:
        UnknownStatus: the stored status is not one of the eight; it is never coerced (§2.6).
        EventUnreadable: damaged bytes.
    """
    try:
        run: Run = _strict(_decoder(Run), data, "the run row")
        return run
    except EventUnreadable:
        parse(_read_status(data))
        raise


def _read_status(data: bytes) -> str:
    """Returns the status in a run's row that cannot be decoded, or ``pending`` if the status cannot be read either."""
    try:
        word = _any.decode(data)[_STATUS]
    except (msgspec.MsgspecError, ValueError, TypeError, LookupError, RecursionError):
        return Status.PENDING
    return word if isinstance(word, str) else repr(word)


def encode_effect(effect: Effect) -> bytes:
    return _encoder.encode(effect)


def decode_effect(data: bytes) -> Effect:
    effect: Effect = _strict(_decoder(Effect), data, "an effect record")
    return effect


def encode_command(command: commands.AnyCommand) -> bytes:
    return _encoder.encode(command)


def decode_command(data: bytes) -> commands.AnyCommand:
    command: commands.AnyCommand = _strict(_decoder(commands.AnyCommand), data, "an inbox item")
    return command


def encode_offer(offer: Offer) -> bytes:
    return _encoder.encode(offer)


def decode_offer(data: bytes) -> Offer:
    """Decodes a worker's offer.

    Raises:
        EventUnreadable: damaged bytes.
    """
    offer: Offer = _strict(_decoder(Offer), data, "what a worker offers")
    return offer


def encode_rule(rule: Rule) -> bytes:
    return msgspec.json.encode(rule)


def decode_rule(data: bytes) -> Rule:
    """Decodes the stored rule of a limit or a queue.

    Raises:
        EventUnreadable: damaged bytes.
    """
    try:
        return msgspec.json.decode(data, type=Rule)
    except (TypeError, msgspec.MsgspecError, UsageError, UnicodeDecodeError) as e:
        raise EventUnreadable(f"a limit cannot be read: {e}", hint="holdfast limits set NAME … puts another in its place") from e


def encode_intent(intent: Intent) -> bytes:
    return _encoder.encode(intent)


def decode_intent(data: bytes) -> Intent:
    intent: Intent = _strict(_decoder(Intent), data, "an intent")
    return intent


def encode_schedule(schedule: Schedule) -> bytes:
    return _encoder.encode(schedule)


def decode_schedule(data: bytes) -> Schedule:
    schedule: Schedule = _strict(_decoder(Schedule), data, "a schedule")
    return schedule


def _strict(decoder: msgspec.msgpack.Decoder[T], data: bytes, what: str) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as e:  # a damaged page gives no bytes at all
        raise EventUnreadable(f"{what} cannot be decoded: {e}") from e


class _Whole(msgspec.Struct, frozen=True, array_like=True):
    format: int
    seq: int
    step: int
    values: bytes
    versions: dict[str, int]
    seen: dict[str, dict[str, int]]
    pending: tuple[Task, ...]
    parent: str | None
    skipped: tuple[str, ...]
    topics: tuple[str, ...]
    waits: tuple[Wait, ...]
    source: str
    hash: bytes
    created_at: int
    chain: bytes
    held: tuple[Held, ...] = ()
    idle: int = 0
    unfinished: Unfinished | None = None


WITH_WAITING = FORMAT + 100
"""The format of a whole checkpoint that holds the records of unfinished tasks: a release that does not know this format refuses it."""
_whole = msgspec.msgpack.Decoder(_Whole)


def encode_whole(cp: Checkpoint, chain: bytes) -> bytes:
    """Encodes a whole checkpoint with the hash of its log row, so that loading can start the hash chain there, and with a checksum of its own."""
    values = canon.encode(canon.FrozenDict(cp.values))
    seen = {n: dict(s) for n, s in cp.seen.items()}
    data = _encoder.encode(
        _Whole(
            FORMAT if cp.unfinished is None and not cp.held else WITH_WAITING, cp.seq, cp.step, values, dict(cp.versions), seen, cp.pending, cp.parent, tuple(sorted(cp.skipped)),
            cp.topics, cp.waits, cp.source, cp.hash, cp.created_at, chain,
            pack_held(cp.values, cp.held), cp.idle, cp.unfinished,
        )
    )
    return data + canon.chain(b"", data)


def decode_whole(run_id: str, data: bytes) -> tuple[Checkpoint, bytes]:
    """Returns the checkpoint, and the hash of the log row with which it was saved.

    Raises:
        StoreCorrupt: its bytes have changed. Without this check, wrong values would be used as the run's (X-01).
    """
    data, digest = data[: -canon.HASH_BYTES], data[-canon.HASH_BYTES :]
    if canon.chain(b"", data) != digest:
        raise StoreCorrupt(f"a whole checkpoint of {run_id} is damaged: its checksum does not match", hint="restore a backup", code="checkpoint_hash_mismatch")
    w: _Whole = _strict(_whole, data, "a whole checkpoint")
    if w.format != WITH_WAITING:
        check_format(w.format)
    values = canon.decode(w.values)
    cp = Checkpoint(
        run_id=run_id, seq=w.seq, step=w.step, values=values, versions=w.versions, seen=w.seen, pending=w.pending,
        parent=w.parent, skipped=frozenset(w.skipped), topics=w.topics, waits=w.waits, source=Source(w.source), hash=w.hash,
        created_at=w.created_at, format=FORMAT if w.format == WITH_WAITING else w.format, held=unpack_held(values, w.held), idle=w.idle,
        unfinished=w.unfinished,
    )
    return cp, w.chain

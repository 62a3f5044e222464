"""The lines of a workspace's log: how a commit is written as text, and how a file of them is read (§12.5, T-16). No I/O: bytes in, bytes out."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from holdfast.core import canon, checkpoint, codec, describe, ids, views
from holdfast.core.checkpoint import Delta
from holdfast.core.codec import Row
from holdfast.core.consistency import Problem, problem
from holdfast.core.jsons import json_of
from holdfast.core.run import Run

EVENTS = "events.jsonl"
_SUM = re.compile(rb', "sum": "([0-9a-f]{16})"}$')
_HASH = re.compile(r"[0-9a-f]{32}")
_NIL = b"\xc0"
_pack = msgspec.msgpack.Encoder().encode
_pieces = msgspec.msgpack.Decoder(list[msgspec.Raw])
_REPAIR = "holdfast repair-state RUN --apply cuts it to the last whole commit and keeps the bytes"
_LOOK = "restore a backup; what is before it can be read"


def line(fields: dict[str, Any]) -> bytes:
    """Returns one line: JSON that ends with a digest of itself."""
    body = json.dumps(fields, ensure_ascii=False, default=str)[:-1].encode()
    return body + f', "sum": "{hashlib.sha256(body).hexdigest()[:16]}"}}\n'.encode()


def unline(data: bytes) -> dict[str, Any] | None:
    """Returns the fields of a line without its newline; None if a byte of it has changed."""
    found = _SUM.search(data)
    if found is None or hashlib.sha256(data[: found.start()]).hexdigest()[:16].encode() != found[1]:
        return None
    try:
        fields = json_of(data)
    except (ValueError, RecursionError):  # it has a valid digest, but was not written here
        return None
    return fields if isinstance(fields, dict) else None


class End(msgspec.Struct, frozen=True, array_like=True):
    """Where a file of records ends: how many numbered lines it has, and the digest of the last one."""

    number: int = 0
    sum: str = ""


class Beside(msgspec.Struct):
    """The content of a file of records: its whole lines, where it ends, and what is wrong with it (``missing`` lines, and ``altered`` ones)."""

    lines: list[dict[str, Any]] = []
    end: End = End()
    altered: list[str] = []
    missing: list[str] = []


def number_lines(records: Iterable[dict[str, Any]], end: End) -> tuple[bytes, End]:
    """Returns records as lines that continue from ``end``: each has its number and the digest of the one before."""
    out = []
    for fields in records:
        text = line({**fields, "n": end.number + 1, "prev": end.sum})
        end = End(end.number + 1, _sum_of(text[:-1]))
        out.append(text)
    return b"".join(out), end


def _sum_of(text: bytes) -> str:
    found = _SUM.search(text)
    return "" if found is None else found[1].decode()


def read_beside(data: bytes, stated: End | None) -> Beside:
    """Reads the lines of a file of records, and checks them against each other and against what is stated elsewhere about its end. It never
    raises.

    What follows the last newline is the rest of an unfinished write, and does not count. Lines of a past release have no number.
    """
    kept = Beside()
    at_stated = stated is None or stated.number == 0
    for place, text in enumerate(data.split(b"\n")[:-1], 1):
        if not text:
            continue
        try:
            fields = unline(text)
        except (ValueError, RecursionError):
            fields = None
        if fields is None:
            kept.altered.append(f"line {place}")
            kept.end = End(kept.end.number + 1, "")  # the next line says which number it had
            continue
        if isinstance(number := fields.get("n"), int):
            if number > kept.end.number + 1:
                kept.missing.append(f"the lines before line {place}")
            elif number <= kept.end.number or (kept.end.sum and fields.get("prev") != kept.end.sum):
                kept.altered.append(f"line {place}")
            kept.end = End(number, _sum_of(text))
            at_stated = at_stated or kept.end == stated
        kept.lines.append(fields)
    if stated is not None and kept.end.number < stated.number:
        kept.missing.append(f"the last {stated.number - kept.end.number} lines")
    elif not at_stated and not kept.altered and not kept.missing:
        kept.altered.append("the file is not the one that was written")
    return kept


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Kept(msgspec.Struct):
    """A run's log as its files have it. ``last`` is what the newest commit says about the run's place in the store."""

    rows: list[Row] = []
    size: int = 0
    tail: bytes = b""
    problems: list[Problem] = []
    last: dict[str, Any] = {}
    born: tuple[str, str] | None = None
    checkpoints: set[str] = set()

    @property
    def sound(self) -> bool:
        return not any(p.severity == "error" for p in self.problems)


def commit_lines(run: Run, row: Row, place: dict[str, Any]) -> tuple[bytes, dict[str, bytes]]:
    """Returns a commit as lines, and the checkpoint files it refers to by name."""
    record = codec.open_row(row)
    head, files, data = 1, {}, row.data
    kept: dict[str, Any] = {"checkpoint": None, **place}
    if record.delta is not None:
        pieces = _pieces.decode(row.data)
        head += sum(len(bytes(p)) for p in pieces[:5])
        stated = checkpoint.voucher(record.events)
        name = (stated.fact.hash if stated is not None else row.hash).hex()  # type: ignore[union-attr]
        files[name] = _checkpoint_file(run.run_id, record, record.delta, stated.seq if stated is not None else row.seq, name)
        data = row.data[:head] + row.data[head + len(bytes(pieces[5])) :]
        kept["checkpoint"] = name
    out = []
    for k, event in enumerate(record.events, 1):
        shown = {"seq": event.seq, "event_type": event.type, "occurred_at": views.iso(event.at), "actor": event.actor, "fence": event.fence}
        fields = {**shown, "payload": describe.payload(run.run_id, event), "k": k, "n": len(record.events), "chain": row.hash.hex()}
        if k == len(record.events):
            fields["record"] = {"data": b64(data), "cut": head if record.delta is not None else None, **kept}
        out.append(line(fields))
    return b"".join(out), files


def _checkpoint_file(run_id: str, record: codec.Record, delta: Delta, seq: int, name: str) -> bytes:
    done = {d if isinstance(d, str) else d.task: None if isinstance(d, str) or d.writes is None else canon.reveal(d.writes) for d in delta.done}
    shown = {
        "checkpoint_id": ids.checkpoint_id(run_id, seq), "hash": name, "step": delta.step, "source": delta.source.value,
        "created_at": views.iso(record.at), "writes": done, "pending": None if delta.pending is None else [t.key for t in delta.pending],
        "delta": b64(record.delta_bytes),
    }
    return json.dumps(shown, ensure_ascii=False, indent=2, default=str).encode() + b"\n"


def read_log(run_id: str, data: bytes, checkpoint: Callable[[str], bytes | None]) -> Kept:
    """Reads a run's log from the bytes of its file. It never raises; ``problems`` has what is wrong (T-16)."""
    kept = Kept()
    pending: list[dict[str, Any]] = []
    at = 0
    for number, text in enumerate(data.split(b"\n")[:-1], 1):
        at += len(text) + 1
        fields = _well_formed(text)
        if fields is None:
            kept.problems.append(problem("event_unreadable", f"line {number} of {EVENTS} is damaged: its checksum does not match", _LOOK, run_id))
            pending = []
            continue
        follows = fields["k"] == len(pending) + 1 and (not pending or pending[0]["chain"] == fields["chain"])
        if not follows:
            kept.problems.append(problem("event_seq_gap", f"line {number} of {EVENTS} belongs to an incomplete commit", _LOOK, run_id))
            pending = []
            if fields["k"] != 1:
                continue
        pending.append(fields)
        if fields["k"] == fields["n"]:
            _finish(run_id, kept, fields, checkpoint)
            pending, kept.size = [], at
    kept.tail = data[kept.size :] if not any(p.code == "event_unreadable" for p in kept.problems) or data[-1:] != b"\n" else b""
    if kept.tail:
        about = f"{EVENTS} ends in the middle of a commit: {len(kept.tail)} bytes that do not count"
        kept.problems.append(problem("event_tail_partial", about, _REPAIR, run_id))
    return kept


def _well_formed(text: bytes) -> dict[str, Any] | None:
    try:
        fields = unline(text)
    except (ValueError, RecursionError):
        return None
    if fields is None or not isinstance(fields.get("k"), int) or not isinstance(fields.get("n"), int) or not isinstance(fields.get("chain"), str):
        return None
    if not isinstance(fields.get("seq"), int) or (fields["k"] == fields["n"] and not isinstance(fields.get("record"), dict)):
        return None
    return fields


def _finish(run_id: str, kept: Kept, fields: dict[str, Any], checkpoint: Callable[[str], bytes | None]) -> None:
    """Adds the row of a commit all of whose lines are there."""
    record = fields["record"]
    try:
        data, digest = base64.b64decode(record["data"]), bytes.fromhex(fields["chain"])
        if (name := record.get("checkpoint")) is not None:
            if not isinstance(name, str) or _HASH.fullmatch(name) is None:
                raise ValueError("a checkpoint's name is not a hash")
            kept.checkpoints.add(name)
            given = _delta_of(checkpoint(name))
            if given is None:
                about = f"checkpoints/{name}.json is missing or cannot be read"
                kept.problems.append(problem("checkpoint_head_missing", about, "restore it from a backup", run_id))
            cut = int(record["cut"])
            data = data[:cut] + (_NIL if given is None else _pack(given)) + data[cut:]
        born = record.get("born")
        parent = None if born is None else (str(born["run"]), str(born["hash"]))
    except (KeyError, TypeError, ValueError) as e:
        kept.problems.append(problem("event_unreadable", f"the commit that ends with event {fields['seq']} has no record: {e}", _LOOK, run_id))
        return
    kept.rows.append(Row(fields["seq"], data, digest))
    kept.last = record
    if len(kept.rows) == 1:
        kept.born = parent


def _delta_of(data: bytes | None) -> bytes | None:
    if data is None:
        return None
    try:
        return base64.b64decode(json_of(data)["delta"], validate=True)
    except (ValueError, KeyError, TypeError, binascii.Error, RecursionError):
        return None


__all__ = ["EVENTS", "Beside", "End", "Kept", "b64", "commit_lines", "line", "number_lines", "read_beside", "read_log", "unline"]

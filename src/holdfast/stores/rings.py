"""The ring of a run as memory and workspace keep it: batches in the order of their serials (§13.6)."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.core import chunks
from holdfast.core.chunks import LINGER_US, Batch, Emitted, Stored
from holdfast.core.jsons import json_of


class Kept(msgspec.Struct, frozen=True):
    """A batch of a ring. ``gone``: when something durable replaced it."""

    serial: int
    turn: str
    last: int
    data: bytes
    gone: int | None = None


Ring = tuple[Kept, ...]


def changed(ring: Ring, e: Emitted, serials: Iterable[int], now: int) -> Ring:
    """The ring after a write; what was replaced a while ago goes on the way."""
    gone = set(e.replaced)
    kept = [k for k in ring if k.last >= e.before.get(k.turn, 0) and (k.gone is None or k.gone >= now - LINGER_US)]
    kept += [Kept(serial, b.turn.key, b.last, chunks.encode(b)) for b, serial in zip(e.batches, serials, strict=True)]
    return tuple([msgspec.structs.replace(k, gone=now) if k.gone is None and k.turn in gone else k for k in kept])


def beyond(ring: Ring, after: int, limit: int) -> list[Stored]:
    return [Stored(k.serial, chunks.decode(k.data), k.gone is not None) for k in ring if k.serial > after][:limit]


def newest(ring: Ring) -> tuple[Batch, ...]:
    """The newest batch of each turn that nothing has replaced."""
    return tuple({k.turn: chunks.decode(k.data) for k in ring if k.gone is None}.values())


# -- as lines of a file -----------------------------------------------------------------------------


def lines(before: Ring, after: Ring) -> bytes:
    """What leads from one to the other: batches that came, went, or were replaced."""
    was, now = {k.serial: k for k in before}, {k.serial: k for k in after}
    out: list[Any] = [["-", serial] for serial in was if serial not in now]
    out += [["+", k.serial, k.turn, k.last, base64.b64encode(k.data).decode(), k.gone] for s, k in now.items() if s not in was]
    out += [["=", k.serial, k.gone] for s, k in now.items() if s in was and was[s].gone != k.gone]
    return b"".join(json.dumps(line).encode() + b"\n" for line in out)


def read(data: bytes) -> Ring:
    """The ring that these lines leave. What cannot be read is left out: chunks are provisional."""
    kept: dict[int, Kept] = {}
    for line in data.splitlines():
        try:
            match json_of(line):
                case ["+", int(serial), str(turn), int(last), str(text), gone]:
                    chunks.decode(raw := base64.b64decode(text))
                    kept[serial] = Kept(serial, turn, last, raw, gone if isinstance(gone, int) else None)
                case ["=", int(serial), int(gone)] if serial in kept:
                    kept[serial] = msgspec.structs.replace(kept[serial], gone=gone)
                case ["-", int(serial)]:
                    kept.pop(serial, None)
        except (ValueError, msgspec.DecodeError):
            continue
    return tuple(kept[s] for s in sorted(kept))


__all__ = ["Kept", "Ring", "beyond", "changed", "lines", "newest", "read"]

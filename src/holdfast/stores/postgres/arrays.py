"""Lists of texts, of bytes and of numbers as the arrays of a statement, in the format of the wire.

psycopg looks at each item of a list to find what array it makes: of a put of three rows that is most of what the client does. The statements
here say what their arrays hold, so that one join of bytes makes each.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Any

from psycopg import AsyncConnection
from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper
from psycopg.pq import Format

_NONE = struct.Struct("!iii")
_HEAD = struct.Struct("!iiiii")
_SIZE = struct.Struct("!i")
_NULL = _SIZE.pack(-1)
_NUMBER = struct.Struct("!iq")
_TEXT, _TEXTS, _BYTEA, _BYTEAS, _BIGINT, _BIGINTS = 25, 1009, 17, 1001, 20, 1016


class Texts(list[str | None]):
    """A ``text[]``."""


class Blobs(list[bytes | None]):
    """A ``bytea[]``."""


class Numbers(list[int | None]):
    """A ``bigint[]``."""


class _Texts(Dumper):
    format = Format.BINARY
    oid = _TEXTS

    def __init__(self, cls: type, context: AdaptContext | None = None) -> None:
        super().__init__(cls, context)
        self._encoding = "utf-8" if self.connection is None else self.connection.info.encoding

    def dump(self, obj: Texts) -> bytes:
        return _array(_TEXT, [None if text is None else text.encode(self._encoding) for text in obj])


class _Blobs(Dumper):
    format = Format.BINARY
    oid = _BYTEAS

    def dump(self, obj: Blobs) -> bytes:
        return _array(_BYTEA, obj)


class _Numbers(Dumper):
    format = Format.BINARY
    oid = _BIGINTS

    def dump(self, obj: Numbers) -> bytes:
        if None in obj:
            return _add_head(_BIGINT, obj, [_NULL if number is None else _NUMBER.pack(8, number) for number in obj])
        sized: list[int | None] = [8] * (2 * len(obj))
        sized[1::2] = obj
        return _add_head(_BIGINT, obj, (_numbers(len(obj)).pack(*sized),))


def _array(of: int, items: Sequence[bytes | None]) -> bytes:
    parts: list[bytes] = []
    for item in items:
        parts += (_NULL,) if item is None else (_SIZE.pack(len(item)), item)
    return _add_head(of, items, parts)


@functools.lru_cache(1024)
def _numbers(count: int) -> struct.Struct:
    """So many numbers, each with its size."""
    return struct.Struct("!" + "iq" * count)


def _add_head(of: int, items: Sequence[object], parts: Sequence[bytes]) -> bytes:
    """An array of one dimension whose first item has the number 1; an empty one has no dimension."""
    return b"".join((_HEAD.pack(1, int(None in items), of, len(items), 1), *parts)) if items else _NONE.pack(0, 0, of)


def taught(db: AsyncConnection[Any]) -> None:
    """Makes a connection take ``Texts``, ``Blobs`` and ``Numbers``."""
    db.adapters.register_dumper(Texts, _Texts)
    db.adapters.register_dumper(Blobs, _Blobs)
    db.adapters.register_dumper(Numbers, _Numbers)


__all__ = ["Blobs", "Numbers", "Texts", "taught"]

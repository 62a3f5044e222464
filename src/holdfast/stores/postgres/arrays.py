"""Lists of texts and of bytes as the arrays of a statement, in the format of the wire.

psycopg looks at each item of a list to find what array it makes: of a put of three rows that is most of what the client does. The statements
here say what their arrays hold, so that one join of bytes makes each.
"""

from __future__ import annotations

import struct
from typing import Any

from psycopg import AsyncConnection
from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper
from psycopg.pq import Format

_NONE = struct.Struct("!iii")
_HEAD = struct.Struct("!iiiii")
_SIZE = struct.Struct("!i")
_TEXT, _TEXTS, _BYTEA, _BYTEAS = 25, 1009, 17, 1001


class Texts(list[str]):
    """A ``text[]``."""


class Blobs(list[bytes]):
    """A ``bytea[]``."""


class _Texts(Dumper):
    format = Format.BINARY
    oid = _TEXTS

    def __init__(self, cls: type, context: AdaptContext | None = None) -> None:
        super().__init__(cls, context)
        self._encoding = "utf-8" if self.connection is None else self.connection.info.encoding

    def dump(self, obj: Texts) -> bytes:
        return _array(_TEXT, [text.encode(self._encoding) for text in obj])


class _Blobs(Dumper):
    format = Format.BINARY
    oid = _BYTEAS

    def dump(self, obj: Blobs) -> bytes:
        return _array(_BYTEA, obj)


def _array(of: int, items: list[bytes]) -> bytes:
    """An array of one dimension whose first item has the number 1; an empty one has no dimension."""
    if not items:
        return _NONE.pack(0, 0, of)
    parts = [_HEAD.pack(1, 0, of, len(items), 1)]
    for item in items:
        parts += (_SIZE.pack(len(item)), item)
    return b"".join(parts)


def taught(db: AsyncConnection[Any]) -> None:
    """Makes a connection take ``Texts`` and ``Blobs``."""
    db.adapters.register_dumper(Texts, _Texts)
    db.adapters.register_dumper(Blobs, _Blobs)


__all__ = ["Blobs", "Texts", "taught"]

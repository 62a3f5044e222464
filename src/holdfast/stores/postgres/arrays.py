"""Lists of texts, of bytes and of numbers as the arrays of a statement, in the format of the wire.

psycopg looks at each item of a list to find what array it makes: of a put of three rows that is most of what the client does. The statements
here say what their arrays hold, so that one join of bytes makes each.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Mapping, Sequence
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
_UNNEST = re.compile(r"unnest\(((?:%\(\w+\)b::\w+\[\],?\s*)+)\)\s+AS t \(([^)]*)\)")
_TEXT, _TEXTS, _BYTEA, _BYTEAS, _BIGINT, _BIGINTS = 25, 1009, 17, 1001, 20, 1016


class Texts(list[str | None]):
    """A ``text[]``."""


class Blobs(list[bytes | None]):
    """A ``bytea[]``."""


class Numbers(list[int | None]):
    """A ``bigint[]``."""


class Columns:
    """What the rows of a statement hold: ``Texts``, ``Blobs`` or ``Numbers``, by the name of each column's array.

    The statement for one row, ``for_one``, is made of that for many. Its values come as three arrays, one of each kind: an array for each column would be most of
    what a lone row costs.
    """

    def __init__(self, text: str, kinds: Mapping[str, type[Texts] | type[Blobs] | type[Numbers]]) -> None:
        self.for_many = text
        self._kinds = kinds
        names = list(kinds)
        self._places = {kind: [name for name in names if kinds[name] is kind] for kind in (Numbers, Texts, Blobs)}
        self._picks = {kind: [names.index(name) for name in among] for kind, among in self._places.items() if among}
        self.for_one = _UNNEST.sub(self._take_apart, text)
        assert self.for_one != text, "a statement for many rows takes them from arrays"

    def _take_apart(self, found: re.Match[str]) -> str:
        given, names = re.findall(r"%\((\w+)\)b", found[1]), [name.strip() for name in found[2].split(",")]
        assert given == list(self._kinds), "the arrays of a statement stand in the order of its columns"
        return f"(SELECT {', '.join(f'{self._read(column)} AS {name}' for column, name in zip(given, names, strict=True))}) AS t"

    def _read(self, column: str) -> str:
        kind = self._kinds[column]
        return f"(%({kind.__name__})b::{_TYPES[kind]}[])[{self._places[kind].index(column) + 1}]"

    def many(self, rows: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
        return {name: kind(column) for (name, kind), column in zip(self._kinds.items(), zip(*rows, strict=True), strict=True)}

    def one(self, row: tuple[Any, ...]) -> dict[str, Any]:
        return {kind.__name__: kind([row[n] for n in picks]) for kind, picks in self._picks.items()}


_TYPES = {Numbers: "bigint", Texts: "text", Blobs: "bytea"}


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


__all__ = ["Blobs", "Columns", "Numbers", "Texts", "taught"]

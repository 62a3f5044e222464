"""Lists of texts, of bytes and of numbers as the arrays of a statement, in the wire format.

psycopg examines each item of a list to find the type of the array, which is most of the client's work for a put of three rows. The statements here
declare what their arrays contain, so one join of bytes makes each array.
"""

from __future__ import annotations

import functools
import operator
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
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


class Names(tuple[str, ...]):
    """A ``text[]`` that is sent again and again: its bytes are cached."""


class Blobs(list[bytes | None]):
    """A ``bytea[]``."""


class Numbers(list[int | None]):
    """A ``bigint[]``."""


class Columns:
    """The columns of a statement's rows: ``Texts``, ``Blobs`` or ``Numbers``, by the name of each column's array.

    The statement for one row, ``for_one``, is derived from the one for many. Its values are sent as three arrays, one of each kind, because an array
    for each column would be most of the cost of a single row.
    """

    def __init__(self, text: str, kinds: Mapping[str, type[Texts] | type[Blobs] | type[Numbers]]) -> None:
        self.for_many = text
        self._kinds = kinds
        names = list(kinds)
        self._places = {kind: [name for name in names if kinds[name] is kind] for kind in (Numbers, Texts, Blobs)}
        self._picks = [(kind.__name__, kind, _pick([names.index(name) for name in among])) for kind, among in self._places.items() if among]
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
        return {name: kind(pick(row)) for name, kind, pick in self._picks}


def _pick(places: Sequence[int]) -> Callable[[tuple[Any, ...]], Iterable[Any]]:
    """Returns a function that takes the items at these places from a row."""
    return operator.itemgetter(*places) if len(places) > 1 else lambda row: (row[places[0]],)


_TYPES = {Numbers: "bigint", Texts: "text", Blobs: "bytea"}


class _Texts(Dumper):
    format = Format.BINARY
    oid = _TEXTS

    def __init__(self, cls: type, context: AdaptContext | None = None) -> None:
        super().__init__(cls, context)
        self._encoding = "utf-8" if self.connection is None else self.connection.info.encoding

    def dump(self, obj: Texts) -> bytes:
        parts, encoding = [b""], self._encoding
        for text in obj:
            if text is None:
                parts.append(_NULL)
            else:
                item = text.encode(encoding)
                parts += (_SIZE.pack(len(item)), item)
        return _join(_TEXT, obj, parts)


class _Names(_Texts):
    def dump(self, obj: Names) -> bytes:  # type: ignore[override]
        return _put_together(obj, self._encoding)


class _Blobs(Dumper):
    format = Format.BINARY
    oid = _BYTEAS

    def dump(self, obj: Blobs) -> bytes:
        parts = [b""]
        for item in obj:
            if item is None:
                parts.append(_NULL)
            else:
                parts += (_SIZE.pack(len(item)), item)
        return _join(_BYTEA, obj, parts)


class _Numbers(Dumper):
    format = Format.BINARY
    oid = _BIGINTS

    def dump(self, obj: Numbers) -> bytes:
        if None in obj:
            parts = [b""]
            for number in obj:
                parts.append(_NULL if number is None else _NUMBER.pack(8, number))
            return _join(_BIGINT, obj, parts)
        sized: list[int | None] = [8] * (2 * len(obj))
        sized[1::2] = obj
        return _join(_BIGINT, obj, [b"", _numbers(len(obj)).pack(*sized)])


@functools.lru_cache(256)
def _put_together(names: Names, encoding: str) -> bytes:
    parts = [b""]
    for name in names:
        item = name.encode(encoding)
        parts += (_SIZE.pack(len(item)), item)
    return _join(_TEXT, names, parts)


@functools.lru_cache(1024)
def _numbers(count: int) -> struct.Struct:
    """Returns the format of that many numbers, each with its size."""
    return struct.Struct("!" + "iq" * count)


def _join(of: int, items: Sequence[object], parts: list[bytes]) -> bytes:
    """Joins the parts of an array of one dimension whose first item has the index 1; an empty array has no dimension. The first part is replaced by
    the array's header."""
    if not items:
        return _NONE.pack(0, 0, of)
    parts[0] = _HEAD.pack(1, int(None in items), of, len(items), 1)
    return b"".join(parts)


def taught(db: AsyncConnection[Any]) -> None:
    """Makes a connection accept ``Texts``, ``Names``, ``Blobs`` and ``Numbers``."""
    db.adapters.register_dumper(Texts, _Texts)
    db.adapters.register_dumper(Names, _Names)
    db.adapters.register_dumper(Blobs, _Blobs)
    db.adapters.register_dumper(Numbers, _Numbers)


__all__ = ["Blobs", "Columns", "Names", "Numbers", "Texts", "taught"]

"""The rows in which a saver keeps checkpoints: their keys, their bytes, and values that only grew.

Theory of operation. Everything of a thread lies under keys that begin with the thread, so that one deletion ends it. Under it lie
checkpoints (``c``), each with the writes of its tasks behind it, channel values apart from them (``v``), and maps of versions (``m``). A scan
gives rows by key, ascending; the newest checkpoint is wanted first, so a checkpoint's place spells its id with each character mirrored. What
a super-step puts is so few rows, and side by side: a store writes as many pages as the keys of a commit are places. Earlier releases kept the
writes of tasks apart from their checkpoint (``w``).

A value is kept once for each version: a small one (``NEAR_BYTES``) in the row of the checkpoint that it came with (``Checkpoint.inside``); the
checkpoints after it say in which (``Checkpoint.elsewhere``). When that row is deleted the value is put apart. The versions that a checkpoint
has seen are two maps that grow with the graph and of which a step changes two or three entries: where they have many, a row has those that are
not as in the maps ``Checkpoint.maps`` (``Maps.rest``), and maps are put anew when these become many.

A larger value is kept apart. A list that only grew is kept as its tail behind an earlier version (``Value.base``); ``whole`` is
the version where the chain of tails begins. Tail number i of a chain stands behind number i less its lowest bit (as in a Fenwick tree; 0 is
the whole value): a read follows as many rows as i has bits, at most log2(i), and each item of a list is written log2(i) / 2 times in the
mean. A tail grows to 4 MiB so, and not beyond: behind that, tails follow one another. Rows of earlier releases stand behind the version
before; ``base`` says so itself, and they are read the same way.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote

import msgspec

from holdfast.core.errors import StoreCorrupt, TooLarge

T = TypeVar("T")
Slot = tuple[str, str, str]
"""A channel: the thread's prefix, the namespace, the name."""
PART_BYTES = 96
REMEMBERED = 4096
"""So many parts of keys are not made anew."""
THREAD_BYTES = 200
LONGEST_TAIL = 4 * 1024 * 1024
"""A tail is not made longer than that to shorten a chain."""
TAIL_BYTES = 512
"""From this size on a value is compared with the version before."""
NEAR_BYTES = 1024
"""A value of at most so many bytes lies in the row of the checkpoint that it came with."""
MANY = 64
"""Maps of fewer entries are in the checkpoint's own row."""
_PLAIN = re.compile(r"[A-Za-z0-9_.~-]+")
"""Text that quoting leaves as it is: most of what makes up a key."""
_MIRROR = {c: 0xA3 - c for c in range(0x25, 0x7F)}


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint without the values that lie apart: ``apart`` are the channels whose values do, ``inside`` are values that came with it, and
    ``elsewhere`` names, of a channel, the checkpoint that its value came with. ``maps`` are the maps of versions of which ``body`` has what
    differs. ``behind``: the writes of its tasks lie behind it; to those of earlier releases none do, or only some."""

    ns: str
    id: str
    parent: str | None
    run: str | None
    at: str
    kind: str
    body: bytes
    meta_kind: str
    meta: bytes
    apart: tuple[str, ...] = ()
    inside: dict[str, tuple[str, bytes]] = {}
    elsewhere: dict[str, str] = {}
    maps: str | None = None
    behind: bool = False


class Value(msgspec.Struct, frozen=True, array_like=True):
    """A channel's value at a version, or its tail behind ``base``: ``before`` and ``after`` are the lengths of the heads of both."""

    kind: str
    body: bytes
    base: str | None = None
    whole: str | None = None
    before: int = 0
    after: int = 0


class Write(msgspec.Struct, frozen=True, array_like=True):
    """One write of a task. Those that a task puts together are one row."""

    path: str
    task: str
    index: int
    channel: str
    kind: str
    body: bytes

    @property
    def order(self) -> tuple[str, str, int]:
        """The order in which live execution applies the writes of a step."""
        return (self.path, self.task, self.index)


_ENCODER = msgspec.msgpack.Encoder()
_CHECKPOINTS = msgspec.msgpack.Decoder(Checkpoint)
_VALUES = msgspec.msgpack.Decoder(Value)
_WRITES = msgspec.msgpack.Decoder(Write)
_TASKS = msgspec.msgpack.Decoder(tuple[Write, ...])
encode = _ENCODER.encode


def checkpoint_of(data: bytes) -> Checkpoint:
    """Raises StoreCorrupt: these bytes are no checkpoint."""
    return _decode(_CHECKPOINTS, data)


def value_of(data: bytes) -> Value:
    """Raises StoreCorrupt: these bytes are no value."""
    return _decode(_VALUES, data)


def writes_of(data: bytes) -> tuple[Write, ...]:
    """The writes of a row: those of a task, or a single one.

    Raises:
        StoreCorrupt: these bytes are no writes.
    """
    try:
        return _TASKS.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return (_decode(_WRITES, data),)


def _decode(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise StoreCorrupt(f"a row of a LangGraph thread cannot be read: {e}", code="row_unreadable", hint="delete the thread, or restore a backup") from e


# -- keys -------------------------------------------------------------------------------------------


@functools.lru_cache(REMEMBERED)
def _quote(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else quote(text, safe="") or "%"


@functools.lru_cache(REMEMBERED)
def _part(text: str) -> str:
    """A part of a key; a long one by its digest. Namespaces, channels and tasks come again with each row."""
    found = _quote(text)
    if len(found) <= PART_BYTES:
        return found
    return f"{found[:24]}%{hashlib.sha256(text.encode()).hexdigest()}"


@functools.lru_cache(REMEMBERED)
def _mirror(text: str) -> str:
    """A part of a key such that of two texts the later one comes first."""
    return _part(text).translate(_MIRROR)


@functools.lru_cache(REMEMBERED)
def _name(prefix: str) -> str:
    """The thread whose keys begin so."""
    return unquote(prefix.rstrip("/").rstrip("%"))


class Thread(NamedTuple):
    """The keys of one thread."""

    prefix: str

    @classmethod
    def of(cls, thread_id: object) -> Thread:
        """The keys of a thread.

        Raises:
            TooLarge: its id is too long for a key.
        """
        name = _quote(str(thread_id))
        if len(name) > THREAD_BYTES:
            raise TooLarge("thread_id", len(name), THREAD_BYTES)
        return cls(f"{name}/")

    @property
    def id(self) -> str:
        return _name(self.prefix)

    def checkpoints(self, ns: str | None = None) -> str:
        return f"{self.prefix}c/" if ns is None else f"{self.prefix}c/{_part(ns)}/"

    def checkpoint(self, ns: str, id: str) -> str:
        return f"{self.checkpoints(ns)}{_mirror(id)}~"

    def values(self, ns: str | None = None, channel: str | None = None) -> str:
        if ns is None:
            return f"{self.prefix}v/"
        return f"{self.prefix}v/{_part(ns)}/" if channel is None else f"{self.prefix}v/{_part(ns)}/{_part(channel)}/"

    def value(self, ns: str, channel: str, version: str) -> str:
        return f"{self.values(ns, channel)}{_part(version)}"

    def maps(self, ns: str | None = None, id: str = "") -> str:
        return f"{self.prefix}m/" if ns is None else f"{self.prefix}m/{_part(ns)}/{_part(id)}"

    def writes(self, ns: str, id: str) -> str:
        """Where the writes of a checkpoint's tasks are. No mirrored id has a ``w``."""
        return f"{self.checkpoint(ns, id)}w/"

    def writes_apart(self, ns: str, id: str) -> str:
        """Where earlier releases have put them."""
        return f"{self.prefix}w/{_part(ns)}/{_part(id)}/"

    def task(self, ns: str, id: str, task: str) -> str:
        return f"{self.writes(ns, id)}{_part(task)}/"

    def write(self, ns: str, id: str, task: str, index: int) -> str:
        return f"{self.task(ns, id, task)}{index}"

    def together(self, ns: str, id: str, task: str) -> str:
        """Where the writes that a task puts first are; behind those that stand alone."""
        return f"{self.task(ns, id, task)}_"


def of_checkpoint(key: str) -> bool:
    """Whether the row at a key among the checkpoints is one; else it is of a task's writes."""
    return key.endswith("~")


def behind_writes(key: str) -> str:
    """Behind the writes of the checkpoint to which these belong."""
    return f"{key[: key.index('~w/')]}~w0"


def thread_of(key: str) -> Thread:
    """The thread that a row belongs to."""
    return Thread(f"{key.partition('/')[0]}/")


def of_run(run: str) -> str:
    """Where the checkpoints of a run are listed; no thread's key begins so."""
    return f"!r/{_part(run)}/"


# -- maps of versions -------------------------------------------------------------------------------


Seen = dict[str, dict[str, Any]]


class Maps(NamedTuple):
    """The versions of a checkpoint's channels and those that its nodes have seen, as they were put under ``id``."""

    id: str
    versions: dict[str, Any]
    seen: Seen

    def rest(self, versions: dict[str, Any], seen: Seen) -> tuple[dict[str, Any], Seen] | None:
        """What of later maps is not as in these; None where they lack an entry of these, or so much differs that they are better put anew: what
        the rows behind them repeat is then as much as they are."""
        if not (self.versions.keys() <= versions.keys() and self.seen.keys() <= seen.keys()):
            return None
        was, had = self.versions.get, self.seen.get
        new = {name: version for name, version in versions.items() if was(name) != version}
        met = {name: each for name, each in seen.items() if had(name) != each}
        return (new, met) if (len(new) + len(met)) ** 2 <= 2 * (len(versions) + len(seen)) else None


# -- values that grow -------------------------------------------------------------------------------


class End(NamedTuple):
    """A version that later tails may stand behind: how long its head and the rest are, what the tails that it is read from take, and how
    many versions its own tail spans."""

    version: str
    head: int
    size: int
    weight: int
    span: int


class Kept(NamedTuple):
    """What a saver remembers of the version it wrote last: ``ends`` are the versions that it is read from, itself the last."""

    kind: str
    body: bytes
    ends: tuple[End, ...]

    @property
    def version(self) -> str:
        return self.ends[-1].version

    @property
    def weight(self) -> int:
        """What the tails take that this version is read from."""
        return self.ends[-1].weight


def head(body: bytes) -> int:
    """How long the head of a MessagePack array or map is; 0 for anything else."""
    first = body[0] if body else 0
    if 0x80 <= first <= 0x9F:
        return 1
    return {0xDC: 3, 0xDE: 3, 0xDD: 5, 0xDF: 5}.get(first, 0)


def grow(before: Kept | None, version: str, kind: str, body: bytes) -> tuple[Value, Kept]:
    """The row of a value, and what to remember: the tail behind an earlier version, where the value only grew at its end since the last."""
    new = head(body)
    whole = Value(kind, body), Kept(kind, body, (End(version, new, len(body) - new, 0, 0),))
    if before is None or before.kind != kind or before.version >= version or len(body) <= TAIL_BYTES:
        return whole
    last = before.ends[-1]
    if not last.head or not new or body[new : new + last.size] != before.body[last.head :]:
        return whole
    ends, span = list(before.ends), 1
    while ends[-1].span == span and len(body) - new - ends[-2].size <= LONGEST_TAIL:
        ends.pop()
        span *= 2
    base = ends[-1]
    tail = body[:new] + body[new + base.size :]
    weight = base.weight + len(tail)
    if weight >= len(body):
        return whole
    ends.append(End(version, new, len(body) - new, weight, span))
    return Value(kind, tail, base.version, ends[0].version, base.head, new), Kept(kind, body, tuple(ends))


def join(version: str, rows: Mapping[str, Value]) -> bytes | None:
    """The value at a version, of the rows of its chain; None where one is not there."""
    tails: list[Value] = []
    at = rows.get(version)
    while at is not None and at.base is not None:
        tails.append(at)
        at = rows.get(at.base)
    if at is None:
        return None
    parts = [at.body]
    for tail in reversed(tails):
        parts[0] = parts[0][tail.before :]
        parts = [tail.body[: tail.after], *parts, tail.body[tail.after :]]
    return b"".join(parts)


def latest(rows: Sequence[Checkpoint]) -> dict[str, Checkpoint]:
    """The newest checkpoint of each namespace."""
    found: dict[str, Checkpoint] = {}
    for row in rows:
        if row.ns not in found or found[row.ns].id < row.id:
            found[row.ns] = row
    return found

"""The rows in which a saver keeps checkpoints: their keys, their bytes, and values that only grew.

Theory of operation. All keys of a thread begin with the thread's prefix, so that one deletion removes the thread. Under the prefix are its
checkpoints (``c``), each followed by the writes of its tasks, the channel values that are kept apart (``v``), and maps of versions (``m``). A scan
returns rows in ascending order of keys, and the newest checkpoint is wanted first; so a checkpoint's key has its id with each character mirrored.
A super-step thus puts few rows, and next to each other: a store writes one page for each place at which a commit has keys. Earlier releases kept
the writes of tasks apart from their checkpoint (``w``).

A value is stored once for each version. A small value (``NEAR_BYTES``) is in the row of the checkpoint that it came with (``Checkpoint.inside``);
later checkpoints name that checkpoint (``Checkpoint.elsewhere``). When that row is deleted, the value is put apart. The versions of a checkpoint
are two maps, which grow with the graph while a step changes two or three entries. If they have many entries, a row has only those that differ
from the stored maps ``Checkpoint.maps`` (``Maps.rest``); when these become many, the maps are stored anew.

A larger value is kept apart. If a list only grew, it is stored as a tail that follows an earlier version (``Value.base``); ``whole`` is the version
where the chain of tails begins. Tail number i of a chain follows number i minus its lowest set bit (as in a Fenwick tree; 0 is the whole value). So a
read follows as many rows as i has set bits, at most log2(i), and each item of a list is written log2(i) / 2 times on average. In this way a tail
becomes at most 4 MiB long; beyond that, each tail follows the last one. Rows of earlier releases always follow the version before; their ``base``
says so, and they are read the same way.
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
"""How many parts of keys are cached."""
THREAD_BYTES = 200
LONGEST_TAIL = 4 * 1024 * 1024
"""A tail is not made longer than that to shorten a chain."""
TAIL_BYTES = 512
"""A value that is larger than this is compared with the version before."""
NEAR_BYTES = 1024
"""A value of at most this many bytes is in the row of the checkpoint that it came with."""
MANY = 64
"""Maps with fewer entries are in the checkpoint's own row."""
_PLAIN = re.compile(r"[A-Za-z0-9_.~-]+")
"""Text that quoting does not change, which is most of the text in keys."""
_MIRROR = {c: 0xA3 - c for c in range(0x25, 0x7F)}


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint without the values that are kept apart. ``apart`` names the channels of those values, ``inside`` has values that came with this
    checkpoint, and ``elsewhere`` names for a channel the checkpoint that its value came with. ``maps`` is the id of stored maps of versions; ``body``
    has what differs from them. ``behind``: the writes of its tasks follow it; of a checkpoint of earlier releases none do, or only some."""

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
    """A channel's value at a version, or its tail after ``base``. ``before`` and ``after`` are the lengths of the heads of ``base`` and of this version."""

    kind: str
    body: bytes
    base: str | None = None
    whole: str | None = None
    before: int = 0
    after: int = 0


class Write(msgspec.Struct, frozen=True, array_like=True):
    """One write of a task. The writes that a task puts together are one row."""

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
    """Decodes a checkpoint. Raises StoreCorrupt if the bytes are none."""
    return _decode(_CHECKPOINTS, data)


def value_of(data: bytes) -> Value:
    """Decodes a value. Raises StoreCorrupt if the bytes are none."""
    return _decode(_VALUES, data)


def writes_of(data: bytes) -> tuple[Write, ...]:
    """Returns the writes of a row: those of a task, or a single one.

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
    """Returns a part of a key; a long text is replaced by its digest. Cached, because namespaces, channels and tasks come again with each row."""
    found = _quote(text)
    if len(found) <= PART_BYTES:
        return found
    return f"{found[:24]}%{hashlib.sha256(text.encode()).hexdigest()}"


@functools.lru_cache(REMEMBERED)
def _mirror(text: str) -> str:
    """Returns a part of a key such that of two texts the later one comes first."""
    return _part(text).translate(_MIRROR)


@functools.lru_cache(REMEMBERED)
def _name(prefix: str) -> str:
    """Returns the id of the thread whose keys begin with this prefix."""
    return unquote(prefix.rstrip("/").rstrip("%"))


class Thread(NamedTuple):
    """The keys of one thread."""

    prefix: str

    @classmethod
    def of(cls, thread_id: object) -> Thread:
        """Returns the keys of a thread.

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
        """Returns the prefix of the writes of a checkpoint's tasks. No mirrored id has a ``w``."""
        return f"{self.checkpoint(ns, id)}w/"

    def writes_apart(self, ns: str, id: str) -> str:
        """Returns the prefix under which earlier releases put the writes."""
        return f"{self.prefix}w/{_part(ns)}/{_part(id)}/"

    def task(self, ns: str, id: str, task: str) -> str:
        return f"{self.writes(ns, id)}{_part(task)}/"

    def write(self, ns: str, id: str, task: str, index: int) -> str:
        return f"{self.task(ns, id, task)}{index}"

    def together(self, ns: str, id: str, task: str) -> str:
        """Returns the key of the row with the writes that a task puts first; it comes after the keys of single writes."""
        return f"{self.task(ns, id, task)}_"


def of_checkpoint(key: str) -> bool:
    """Whether a key among the checkpoints is that of a checkpoint; if not, it is that of a task's writes."""
    return key.endswith("~")


def behind_writes(key: str) -> str:
    """Returns the key that comes after all writes of the checkpoint to which this key of a write belongs."""
    return f"{key[: key.index('~w/')]}~w0"


def thread_of(key: str) -> Thread:
    """Returns the thread that a row belongs to, by its key."""
    return Thread(f"{key.partition('/')[0]}/")


def of_run(run: str) -> str:
    """Returns the prefix under which the checkpoints of a run are listed; no thread's key begins with it."""
    return f"!r/{_part(run)}/"


# -- maps of versions -------------------------------------------------------------------------------


Seen = dict[str, dict[str, Any]]


class Maps(NamedTuple):
    """The versions of a checkpoint's channels and those that its nodes have seen, as they were stored under ``id``."""

    id: str
    versions: dict[str, Any]
    seen: Seen

    def rest(self, versions: dict[str, Any], seen: Seen) -> tuple[dict[str, Any], Seen] | None:
        """Returns the entries of later maps that differ from these. Returns None if later maps lack an entry of these, or if so much differs that
        it is better to store them anew, because the rows that follow would repeat as much as the maps themselves take."""
        if not (self.versions.keys() <= versions.keys() and self.seen.keys() <= seen.keys()):
            return None
        was, had = self.versions.get, self.seen.get
        new = {name: version for name, version in versions.items() if was(name) != version}
        met = {name: each for name, each in seen.items() if had(name) != each}
        return (new, met) if (len(new) + len(met)) ** 2 <= 2 * (len(versions) + len(seen)) else None


# -- values that grow -------------------------------------------------------------------------------


class End(NamedTuple):
    """A version that later tails may follow: the lengths of its head and of the rest, how many bytes the tails take from which it is read, and
    how many versions its own tail spans."""

    version: str
    head: int
    size: int
    weight: int
    span: int


class Kept(NamedTuple):
    """What a saver remembers of the version it wrote last. ``ends`` are the versions from which it is read; the last of them is the version itself."""

    kind: str
    body: bytes
    ends: tuple[End, ...]

    @property
    def version(self) -> str:
        return self.ends[-1].version

    @property
    def weight(self) -> int:
        """How many bytes the tails take from which this version is read."""
        return self.ends[-1].weight


def head(body: bytes) -> int:
    """Returns the length of the head of a MessagePack array or map; 0 for anything else."""
    first = body[0] if body else 0
    if 0x80 <= first <= 0x9F:
        return 1
    return {0xDC: 3, 0xDE: 3, 0xDD: 5, 0xDF: 5}.get(first, 0)


def grow(before: Kept | None, version: str, kind: str, body: bytes) -> tuple[Value, Kept]:
    """Returns the row of a value, and what to remember. The row is a tail after an earlier version if the value only grew at its end since the last."""
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
    """Returns the value at a version, from the rows of its chain; None if one of them is missing."""
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
    """Returns the newest checkpoint of each namespace."""
    found: dict[str, Checkpoint] = {}
    for row in rows:
        if row.ns not in found or found[row.ns].id < row.id:
            found[row.ns] = row
    return found

"""Chunks of ``ctx.emit``: provisional output, kept in a ring until a durable result replaces it (§13.6).

An attempt numbers its chunks from 1. Chunks that are written together are a ``Batch``; the newest batches of an attempt are its ring. If an attempt
is done again from its beginning (after a crash, a failure, another round), it is a new ``turn`` of its place, which supersedes the turn before. A node
that is entered again after a wait continues its turn, and the chunks that it emits again on the way there are not stored twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.core import canon
from holdfast.core.checkpoint import Result, StepRecord

RING_CHUNKS = 10_000
RING_BYTES = 4 * 2**20
RUN_BYTES = 32 * 2**20
"""The limit for all current attempts of a run together; if there are many, each has less than ``RING_BYTES``."""
LINGER_US = 30_000_000
"""How long chunks are kept after they were replaced, for readers that were already following."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """The place in a run that emits: a task of a step, and the path of a recorded call in it (empty: the node itself)."""

    step: int
    task: str
    path: str = ""


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """One attempt of a place from its beginning. ``number`` is the attempt's number; ``turn`` numbers the beginnings: a later one has a higher number."""

    place: Place
    turn: int
    number: int
    rounds: int
    step_id: str
    attempt_id: str

    @property
    def key(self) -> str:
        """Its name within the run."""
        return f"{self.place.step}\n{self.place.task}\n{self.place.path}\n{self.turn}"


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Chunks of one turn that were written together. ``first`` is the number of the first one; ``after`` is the number of the event after
    which they were emitted; each chunk is an encoded value."""

    turn: Turn
    first: int
    after: int
    chunks: tuple[bytes, ...]

    @property
    def last(self) -> int:
        return self.first + len(self.chunks) - 1

    @property
    def size(self) -> int:
        return sum(map(len, self.chunks))


class Stored(msgspec.Struct, frozen=True):
    """A batch as it is stored. ``serial`` grows within a run; ``replaced``: the result that replaces it is durable."""

    serial: int
    batch: Batch
    replaced: bool = False


class Emitted(msgspec.Struct, frozen=True):
    """What one write does to the ring of a run: it adds ``batches``, cuts rings (``before``: the first number that stays, by turn), and marks
    the turns that are ``replaced``."""

    run_id: str
    fence: int
    batches: tuple[Batch, ...] = ()
    before: Mapping[str, int] = {}
    replaced: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.batches or self.replaced)


def find_replaced(results: Iterable[Result], places: Iterable[Place], step: int) -> set[Place]:
    """Returns the places whose chunks are replaced by these results of a step: for a recorded call its own place and those beneath it, for a task all its places."""
    tasks: set[str] = set()
    paths: set[tuple[str, str]] = set()
    for result in results:
        if isinstance(result, StepRecord):
            paths.add((result.task, result.path))
        else:
            tasks.add(result.task)
    return {p for p in places if p.step == step and (p.task in tasks or any(p.task == t and _beneath(p.path, path) for t, path in paths))}


def _beneath(path: str, above: str) -> bool:
    return path == above or path.startswith(f"{above}/")


class _Kept(Batch, frozen=True, array_like=True):
    """A batch as it is written, with the digest that vouches for it in its run; the digest is empty if a past release wrote the batch."""

    seal: bytes = b""


_batch = msgspec.msgpack.Decoder(_Kept)


def _seal(run_id: str, batch: Batch) -> bytes:
    return canon.chain(b"", msgspec.msgpack.encode((run_id, batch.turn, batch.first, batch.after, batch.chunks)))


def encode(run_id: str, batch: Batch) -> bytes:
    return msgspec.msgpack.encode(_Kept(batch.turn, batch.first, batch.after, batch.chunks, _seal(run_id, batch)))


def decode(run_id: str, data: bytes) -> Batch:
    """
    Raises:
        msgspec.DecodeError: the data are not those that were written.
    """
    try:
        kept = _batch.decode(data)
    except UnicodeDecodeError as e:
        raise msgspec.DecodeError(str(e)) from e
    if kept.seal not in (b"", _seal(run_id, kept)):
        raise msgspec.DecodeError("the chunks are not what was written")
    return Batch(kept.turn, kept.first, kept.after, kept.chunks)


def read(run_id: str, kept: Iterable[Any]) -> list[Batch]:
    """Returns the stored batches of a run. A batch that was damaged is left out, because chunks are provisional."""
    return [batch for data in kept if (batch := readable(run_id, data)) is not None]


def readable(run_id: str, data: Any) -> Batch | None:
    """Returns a stored batch, or None if it was damaged; ``data`` may be anything that a damaged page gives."""
    try:
        return decode(run_id, data)
    except (msgspec.MsgspecError, TypeError):
        return None


__all__ = ["LINGER_US", "RING_BYTES", "RING_CHUNKS", "RUN_BYTES", "Batch", "Emitted", "Place", "Stored", "Turn", "decode", "encode", "find_replaced", "read", "readable"]

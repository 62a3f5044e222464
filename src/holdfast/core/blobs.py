"""Large results, stored once under the hash of their bytes (§6.4); a record contains a reference in their place.

A reference is a value of its own kind: 43 bytes that no other value encodes to. Code that does not expect it, for example
an older release, gets a typed error when it decodes it, and never a wrong value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core import canon, envelopes
from holdfast.core.checkpoint import Result, StepRecord
from holdfast.core.effects import Effect
from holdfast.core.errors import StoreCorrupt

LARGE = 64 * 1024
UNREADABLE = "blob_unreadable"
APART = frozenset({"step", "effect", "first_of"})
"""The kinds of records whose results may be stored as blobs."""
_SEALED = b"\xc1" + envelopes.MARK + b"\n"
_HASH = 32
_SIZE = 8
_HEAD = bytes([0xC7, _HASH + _SIZE, canon.REFERENCE])
REFERENCE_BYTES = len(_HEAD) + _HASH + _SIZE

T = TypeVar("T", StepRecord, Effect)


class Blob(msgspec.Struct, frozen=True):
    """Bytes under the hex digits of their SHA-256. Without ``data`` it names a blob that the store has already."""

    digest: str
    size: int
    data: bytes | None = None

    @property
    def reference(self) -> bytes:
        """The bytes that are recorded in its place."""
        return _HEAD + bytes.fromhex(self.digest) + self.size.to_bytes(_SIZE, "big")


def blob_of(data: bytes) -> Blob:
    return Blob(hashlib.sha256(data).hexdigest(), len(data), data)


def reference_in(value: bytes | None) -> Blob | None:
    """Returns the blob to which a recorded value refers, or None if it is the value itself."""
    if value is None or len(value) != REFERENCE_BYTES or not value.startswith(_HEAD):
        return None
    return Blob(value[len(_HEAD) : -_SIZE].hex(), int.from_bytes(value[-_SIZE:], "big"))


def missing(digest: str) -> StoreCorrupt:
    return StoreCorrupt(f"the large result {digest} is missing", hint="restore a backup", code=UNREADABLE)


def read_back(digest: str, data: bytes | None) -> bytes:
    """Returns bytes that were read from a store, after a check against their digest.

    Raises:
        StoreCorrupt: ``blob_unreadable``: the bytes are missing, or are not those that were written.
    """
    if data is None:
        raise missing(digest)
    if hashlib.sha256(data).hexdigest() == digest or _intact(digest, data):
        return data
    raise StoreCorrupt(f"the large result {digest}: its checksum does not match, so it is damaged", hint="restore a backup", code=UNREADABLE)


def _intact(digest: str, data: bytes) -> bool:
    """Whether the data are an undamaged encrypted result with this digest; the check needs no key."""
    inner = envelope_of(data)
    if inner is None or data[len(_SEALED) : -len(inner)] != hashlib.sha256(inner).digest():
        return False
    return envelopes.is_sealed(inner) and envelopes.unwrap(inner).header.place == place(digest)


def place(digest: str) -> str:
    """Returns the place of a large result, as it is written in its envelope."""
    return f"blob:{digest}"


def seal(envelope: bytes) -> bytes:
    """Returns an encrypted large result as it is stored: with a digest of its own, so that damage is detected without the key."""
    return _SEALED + hashlib.sha256(envelope).digest() + envelope


def envelope_of(data: bytes) -> bytes | None:
    """Returns the envelope in stored data, or None if the data are the result itself."""
    return data[len(_SEALED) + _HASH :] if data.startswith(_SEALED) else None


def set_apart(results: Sequence[Result], effects: Sequence[Effect]) -> tuple[tuple[Result, ...], tuple[Effect, ...], tuple[Blob, ...]]:
    """Returns the records with references in place of large results, and the blobs that they refer to, each once."""
    found: dict[str, Blob] = {}
    kept = tuple([_apart(r, r.value, found) if isinstance(r, StepRecord) and r.kind in APART else r for r in results])
    done = tuple([_apart(e, e.result, found) for e in effects])
    return kept, done, tuple(found.values())


def _apart(record: T, value: bytes | None, found: dict[str, Blob]) -> T:
    blob = reference_in(value)
    if blob is not None:
        found.setdefault(blob.digest, blob)
        return record
    if value is None or len(value) <= LARGE:
        return record
    blob = blob_of(value)
    found[blob.digest] = blob
    if isinstance(record, Effect):
        return replace(record, result=blob.reference, blob=blob.digest)
    return replace(record, value=blob.reference)


def name_blobs(results: Iterable[Result], effects: Iterable[Effect] = ()) -> dict[str, str]:
    """Returns the digests of the blobs that records refer to, each with a text that names the record."""
    found: dict[str, str] = {}
    for result in results:
        if isinstance(result, StepRecord) and (blob := reference_in(result.value)) is not None:
            found.setdefault(blob.digest, f"the result of {result.name} in {result.task}")
    for effect in effects:
        if (blob := reference_in(effect.result)) is not None:
            found.setdefault(blob.digest, f"the result of {effect.capability} ({effect.effect_id})")
    return found

"""Sealed payloads: the bytes that replace a payload that is encrypted at rest (§14.5). This module has the format only, no cipher.

An envelope is a MessagePack extension of its own kind, so that code that does not expect it gets a typed error and never a wrong value.
It contains, unencrypted, the key's name, and where the payload belongs: tenant, run, place and version. The cipher's tag
covers all of these. ``check`` are a few bytes derived from the key; they distinguish another key of the same name from damage. If the
payload is a text, the replacement is a text too: the mark, and the same bytes in base64.
"""

from __future__ import annotations

import base64
from typing import Any, TypeVar

import msgspec

from holdfast.core.errors import EventUnreadable, KeyUnavailable

VERSION = 1
CODE = 3  # of the extension
MARK = b"HFsealed"
TEXT = MARK.decode() + ":"
_AT = {0xC7: 3, 0xC8: 4, 0xC9: 6}  # where an extension's content begins, by its first byte

Text = TypeVar("Text", bound=str | None)
_encoder = msgspec.msgpack.Encoder()


class Header(msgspec.Struct, frozen=True, array_like=True):
    """The unencrypted part of an envelope. ``check`` identifies the key; ``place``: which payload of the run this is."""

    version: int
    key_id: str
    check: bytes
    tenant_id: str
    run_id: str
    place: str

    @property
    def associated(self) -> bytes:
        """The bytes that the cipher's tag covers in addition to the payload."""
        return MARK + _encoder.encode(self)


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    header: Header
    nonce: bytes
    data: bytes


_any: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder()
_envelope = msgspec.msgpack.Decoder(Envelope)


def wrap(envelope: Envelope) -> bytes:
    """Returns the bytes to store."""
    return _encoder.encode(msgspec.msgpack.Ext(CODE, MARK + _encoder.encode(envelope)))


def is_sealed(value: bytes | str | None) -> bool:
    """Whether a value is an envelope in place of a payload."""
    if isinstance(value, str):
        return value.startswith(TEXT)
    if not value:
        return False
    at = _AT.get(value[0], 0)
    return at > 0 and len(value) > at and value[at - 1] == CODE and value.startswith(MARK, at)


def unwrap(value: bytes | str) -> Envelope:
    """Returns the envelope in such bytes, or in such a text.

    Raises:
        EventUnreadable: the envelope is damaged.
    """
    try:
        data = base64.b64decode(value[len(TEXT) :], validate=True) if isinstance(value, str) else value
        found = _any.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as e:
        raise EventUnreadable(f"an encrypted payload is damaged: {e}") from e
    if not isinstance(found, msgspec.msgpack.Ext) or found.code != CODE or not bytes(found.data).startswith(MARK):
        raise EventUnreadable("an encrypted payload is damaged: it is not an envelope")
    return open_envelope(bytes(found.data))


def header_of(value: bytes | str) -> Header | None:
    """Returns the header of a sealed payload, or None if it is damaged, or is an ordinary text that only looks like one."""
    try:
        return unwrap(value).header
    except EventUnreadable:
        return None


def open_envelope(content: bytes) -> Envelope:
    """Returns the envelope in an extension's content.

    Raises:
        EventUnreadable: the envelope is damaged, or has a version that this release does not know.
    """
    try:
        envelope = _envelope.decode(content[len(MARK) :])
    except (msgspec.MsgspecError, ValueError, RecursionError) as e:
        raise EventUnreadable(f"an encrypted payload is damaged: {e}") from e
    if envelope.header.version != VERSION:
        raise EventUnreadable(f"an encrypted payload has version {envelope.header.version}, this release reads {VERSION}")
    return envelope


def as_text(envelope: bytes) -> str:
    return TEXT + base64.b64encode(envelope).decode()


def unavailable(header: Header) -> KeyUnavailable:
    """Returns the error for a payload whose key is not available."""
    return KeyUnavailable(header.key_id, header.run_id, header.place)


def legible(text: Text) -> Text:
    """Returns a text that may be shown; for an encrypted text, a note that names its key."""
    if text is None or not text.startswith(TEXT):
        return text
    header = header_of(text)
    return text if header is None else f"encrypted under {header.key_id}"  # type: ignore[return-value]


def place_of(shelf: str, key: str) -> str:
    """Returns the place of a shelf's row."""
    return f"shelf:{shelf}:{key}"


def in_clear(row: bytes, shelf: str, key: str) -> bytes:
    """Returns a shelf's row if it is not encrypted. A store without keys returns rows as they are stored, and an encrypted row is not the caller's data.

    Raises:
        KeyUnavailable: the row is the envelope that was written at this place.
    """
    header = header_of(row) if is_sealed(row) else None
    if header is not None and header.place == place_of(shelf, key):
        raise unavailable(header)
    return row


def show(header: Header) -> dict[str, str]:
    """Returns what a view shows in place of the payload."""
    return {"sealed": header.key_id}


__all__ = ["CODE", "MARK", "TEXT", "VERSION", "Envelope", "Header", "as_text", "header_of", "in_clear", "is_sealed", "legible", "open_envelope", "place_of", "show", "unavailable", "unwrap", "wrap"]

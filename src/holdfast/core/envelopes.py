"""Sealed payloads: the bytes that stand in the place of a payload that is encrypted at rest (§14.5). No cipher is here, only the form.

An envelope is a MessagePack extension of its own kind, so that whoever decodes it unawares gets a typed error and never a wrong value.
It says in clear under which key it was sealed, and where it belongs: tenant, run, place and version, all of which the cipher's tag
covers. ``check`` are a few bytes made from the key, by which another key of the same name is told from damage. In the place of a text
stands a text: the mark, and the same bytes in base64.
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
    """What an envelope says in clear. ``check``: by which a key is known again; ``place``: which payload of the run this is."""

    version: int
    key_id: str
    check: bytes
    tenant_id: str
    run_id: str
    place: str

    @property
    def associated(self) -> bytes:
        """What the cipher's tag covers beside the payload."""
        return MARK + _encoder.encode(self)


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    header: Header
    nonce: bytes
    data: bytes


_any: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder()
_envelope = msgspec.msgpack.Decoder(Envelope)


def wrap(envelope: Envelope) -> bytes:
    """The bytes that are kept."""
    return _encoder.encode(msgspec.msgpack.Ext(CODE, MARK + _encoder.encode(envelope)))


def is_sealed(value: bytes | str | None) -> bool:
    """Whether this stands in the place of a payload."""
    if isinstance(value, str):
        return value.startswith(TEXT)
    if not value:
        return False
    at = _AT.get(value[0], 0)
    return at > 0 and len(value) > at and value[at - 1] == CODE and value.startswith(MARK, at)


def unwrap(value: bytes | str) -> Envelope:
    """The envelope of such bytes, or of such a text.

    Raises:
        EventUnreadable: it is damaged.
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
    """What a sealed payload says in clear; None where it is damaged, or somebody's words that only look so."""
    try:
        return unwrap(value).header
    except EventUnreadable:
        return None


def open_envelope(content: bytes) -> Envelope:
    """The envelope of an extension's content.

    Raises:
        EventUnreadable: it is damaged, or of a version that this release does not know.
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
    """What reading this ends in where its key is not at hand."""
    return KeyUnavailable(header.key_id, header.run_id, header.place)


def legible(text: Text) -> Text:
    """A text as it may be shown: in the place of an encrypted one the key that it is encrypted under."""
    if text is None or not text.startswith(TEXT):
        return text
    header = header_of(text)
    return text if header is None else f"encrypted under {header.key_id}"  # type: ignore[return-value]


def place_of(shelf: str, key: str) -> str:
    """The place of a shelf's row."""
    return f"shelf:{shelf}:{key}"


def in_clear(row: bytes, shelf: str, key: str) -> bytes:
    """A shelf's row as it may be handed out. Where a store has no keys at all it gives what is kept, which for an encrypted row is no data.

    Raises:
        KeyUnavailable: it is the envelope that was written in this place.
    """
    header = header_of(row) if is_sealed(row) else None
    if header is not None and header.place == place_of(shelf, key):
        raise unavailable(header)
    return row


def show(header: Header) -> dict[str, str]:
    """What a view has in the place of the payload."""
    return {"sealed": header.key_id}


__all__ = ["CODE", "MARK", "TEXT", "VERSION", "Envelope", "Header", "as_text", "header_of", "in_clear", "is_sealed", "legible", "open_envelope", "place_of", "show", "unavailable", "unwrap", "wrap"]

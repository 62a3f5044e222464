"""The cipher of payloads at rest (§14.5): AES-256-GCM from the ``cryptography`` package, which is used here and nowhere else.

Each run of each tenant is sealed under a key of its own, derived from the given one, so that random nonces stay far from their limit, and an envelope
that was copied to another run cannot be opened there.
"""

from __future__ import annotations

import functools
import hmac
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from holdfast.core.envelopes import VERSION, Envelope, Header, unwrap, wrap
from holdfast.core.errors import KeyUnavailable, PayloadAltered
from holdfast.encryption import KeyProvider

_NONCE = 12
_CHECK = 4
_RUNS = 4096


class Vault:
    """Seals and opens payloads under the keys of a provider."""

    def __init__(self, keys: KeyProvider) -> None:
        self._keys = keys

    def seal(self, data: bytes, tenant_id: str, run_id: str, place: str) -> bytes:
        """Returns the envelope of a payload, under the newest key.

        Raises:
            KeyUnavailable: the provider does not have the key that it calls the newest.
        """
        key_id = self._keys.newest()
        key = self._keys.key(key_id)
        if key is None:
            raise KeyUnavailable(key_id, run_id, place)
        header = Header(VERSION, key_id, _check(key), tenant_id, run_id, place)
        nonce = secrets.token_bytes(_NONCE)
        return wrap(Envelope(header, nonce, _cipher(key, tenant_id, run_id).encrypt(nonce, data, header.associated)))

    def open(self, value: bytes | str, tenant_id: str | None, run_id: str, place: str) -> bytes:
        """Returns the payload of an envelope stored at this place.

        Args:
            value: the envelope, or the text that contains it.
            tenant_id: of the run; None if it is not known, and then the envelope's own is used.
            run_id: whose payload it must be; empty for payloads of no run.
            place: which one it must be.

        Raises:
            KeyUnavailable: its key is missing, or the provider has another key of that name.
            PayloadAltered: it is not what was written there.
        """
        envelope = unwrap(value)
        header = envelope.header
        if (header.run_id, header.place) != (run_id, place) or tenant_id not in (None, header.tenant_id):
            raise PayloadAltered(f"{place} of {run_id} contains a payload that was encrypted for {header.place} of {header.run_id}", hint="restore a backup")
        key = self._keys.key(header.key_id)
        if key is None or not hmac.compare_digest(_check(key), header.check):
            raise KeyUnavailable(header.key_id, run_id, place)
        try:
            return _cipher(key, header.tenant_id, run_id).decrypt(envelope.nonce, envelope.data, header.associated)
        except (InvalidTag, ValueError) as e:
            raise PayloadAltered(f"{place} of {run_id} is not what was encrypted", hint="holdfast check names the damage; restore a backup") from e


@functools.lru_cache(maxsize=16)
def _check(key: bytes) -> bytes:
    return hmac.digest(key, b"holdfast: which key is this?", "sha256")[:_CHECK]


@functools.lru_cache(maxsize=_RUNS)
def _cipher(key: bytes, tenant_id: str, run_id: str) -> AESGCM:
    parts = [b"holdfast: payloads of a run", tenant_id.encode(), run_id.encode()]
    return AESGCM(hmac.digest(key, b"".join(len(p).to_bytes(4, "big") + p for p in parts), "sha256"))


__all__ = ["Vault"]

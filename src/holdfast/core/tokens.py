"""Resume tokens: the holder of a link may give one answer to one wait (§5.9). The store keeps only the hash."""

from __future__ import annotations

import hashlib

import msgspec

from holdfast.core.errors import TokenRefused


class Token(msgspec.Struct, frozen=True):
    """A token, and the wait that it may answer. Times are microseconds since 1970."""

    hash: bytes
    run_id: str
    wait_id: str
    tenant_id: str
    actor: str
    created_at: int
    expires_at: int
    used_at: int | None = None
    revoked_at: int | None = None

    @property
    def open(self) -> bool:
        return self.used_at is None and self.revoked_at is None

    def refuse(self, now: int) -> None:
        """Raises if the token may not be used.

        Raises:
            TokenRefused: it was used or revoked, or has expired.
        """
        if self.used_at is not None:
            raise TokenRefused("the link has been used already", hint="a link can be used only once")
        if self.revoked_at is not None:
            raise TokenRefused("the link was revoked: its question was closed", hint="nothing is left to answer")
        if self.expires_at <= now:
            raise TokenRefused("the link has expired", hint="ask for another")


def hash_secret(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()

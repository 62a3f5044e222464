"""Resume tokens (§5.9)."""

from __future__ import annotations

import hashlib

import pytest
from msgspec.structs import replace

from holdfast.core.errors import TokenRefused
from holdfast.core.tokens import Token, hash_secret

TOKEN = Token(hash=hash_secret("secret"), run_id="r", wait_id="r.1.ask", tenant_id="default", actor="ada", created_at=1, expires_at=10)


def test_a_fresh_token_is_good_until_its_end() -> None:
    """§5.9: expiring; the moment itself is too late."""
    TOKEN.refuse(0)
    TOKEN.refuse(9)
    for late in (10, 11):
        with pytest.raises(TokenRefused, match="expired"):
            TOKEN.refuse(late)


@pytest.mark.parametrize("now", [5, 50])
def test_a_used_token_is_refused_as_used(now: int) -> None:
    """§5.9: single use; whether it would have expired since is not what is told. Time 0 is a time, too."""
    for used in (0, 4):
        with pytest.raises(TokenRefused, match="used already"):
            replace(TOKEN, used_at=used).refuse(now)


@pytest.mark.parametrize("revoked", [0, 4])
def test_a_revoked_token_is_refused_as_revoked(revoked: int) -> None:
    """§5.9, T-91: its question was closed; that it was used before is told first."""
    with pytest.raises(TokenRefused, match="was revoked"):
        replace(TOKEN, revoked_at=revoked).refuse(50)
    with pytest.raises(TokenRefused, match="used already"):
        replace(TOKEN, used_at=0, revoked_at=revoked).refuse(5)
    assert TOKEN.open and not replace(TOKEN, revoked_at=revoked).open and not replace(TOKEN, used_at=revoked).open


def test_only_the_hash_of_a_secret_is_kept() -> None:
    """§5.9; a link that was cut or mangled on its way is refused, not a crash."""
    assert hash_secret("secret") == hashlib.sha256(b"secret").digest()
    assert hash_secret("secre\ud800") != hash_secret("secre?")

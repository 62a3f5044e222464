"""Access tokens: who may do what over HTTP, for which tenant (§14.1, §16.2). The store keeps only a hash; the token is shown once.

A token contains the id of its row and a secret, so that it is found by an index and compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from holdfast.core.bounds import text
from holdfast.core.errors import HoldfastError, InvalidInput, NotFound
from holdfast.shelf import Shelf

SHELF = "holdfast.access"
EVERY_TENANT = "*"
SHORTEST = 16


class Scope(StrEnum):
    """What a token allows. A token with any scope may also read what needs no scope."""

    VIEW = "view"
    SUBMIT = "submit"
    DECIDE = "decide"
    CANCEL = "cancel"
    FORK = "fork"
    REPAIR = "repair"
    ADMIN = "admin"


class Unauthorized(HoldfastError):
    """There is no token, or it is unknown, expired or revoked. The answer is the same for all of these."""

    code = "unauthorized"
    exit_code = 6


class Forbidden(HoldfastError):
    """The token lacks a scope."""

    code = "forbidden"
    exit_code = 6


def check_site(headers: Mapping[str, str], public_url: str | None, *, opaque: bool = False) -> None:
    """Refuses a request that a page of another site has made a browser send.

    ``Sec-Fetch-Site`` of a browser is believed, because the browser knows its own origin behind a proxy too; an older browser sends only ``Origin``. A client
    that is not a browser sends neither, and is accepted. ``opaque``: accept a hidden origin as the server's own; that is for forms that carry
    a token of their own.

    Raises:
        Forbidden: the request comes from another site.
    """
    site, origin = headers.get("sec-fetch-site", ""), headers.get("origin")
    if site:
        own = site in ("same-origin", "none")
    elif origin is None or origin == "null":
        own = origin is None or opaque
    else:
        own = origin.partition("://")[2] in (headers.get("host"), urlsplit(public_url or "").netloc or None)
    if not own:
        raise Forbidden("this request comes from a page of another site", hint="use the pages of this server; behind a proxy, name its address with --public-url")


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """The rights of a token, its tenant and its actor. Times are microseconds since 1970; the tenant ``*`` is every tenant."""

    id: str
    digest: bytes
    tenant_id: str = "default"
    scopes: tuple[Scope, ...] = ()
    actor: str = "operator"
    created_at: int = 0
    expires_at: int | None = None
    revoked_at: int | None = None

    def live(self, now: int) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    @property
    def tenant(self) -> str | None:
        """The tenant that the token is bound to; None for all tenants."""
        return None if self.tenant_id == EVERY_TENANT else self.tenant_id

    def need(self, scope: Scope) -> None:
        """Checks that the token has this scope; ``admin`` includes all.

        Raises:
            Forbidden: it does not; the error names the scope.
        """
        if scope not in self.scopes and Scope.ADMIN not in self.scopes:
            raise Forbidden(f"this token does not have the scope {scope}", hint=f"a token with the scope {scope}: holdfast token create --scopes {scope}")


class Issued(msgspec.Struct, frozen=True):
    """A new token. Its text is shown only here."""

    token: str
    access: Access


NOBODY = Access(id="none", digest=b"", tenant_id=EVERY_TENANT, scopes=(Scope.ADMIN,), actor="operator")
"""The access of a caller if no token is required: for a server on loopback that was started so."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Access).decode


def scopes(words: Iterable[str]) -> tuple[Scope, ...]:
    """Returns the scopes with these names.

    Raises:
        InvalidInput: there is no such scope, or none was given.
    """
    found: list[Scope] = []
    for word in words:
        if word not in set(Scope):
            raise InvalidInput(f"{word!r} is not a scope", hint="one of " + ", ".join(Scope))
        found.append(Scope(word))
    if not found:
        raise InvalidInput("a token without a scope allows nothing", hint="--scopes " + ",".join(Scope))
    return tuple(dict.fromkeys(found))


class Tokens:
    """The access tokens of one store."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def create(self, words: Iterable[str], *, now: int, tenant_id: str = "default", actor: str = "operator", expires_at: int | None = None) -> Issued:
        """Makes a token. Its text is only in the result and is not stored."""
        number, secret = secrets.token_hex(6), secrets.token_urlsafe(24)
        access = Access(
            id=number, digest=_digest(secret), tenant_id=text(tenant_id, "tenant"), scopes=scopes(words), actor=text(actor, "actor"), created_at=now, expires_at=expires_at
        )
        await self._shelf.put(number, _encode(access))
        return Issued(f"hf_{number}_{secret}", access)

    async def all(self) -> list[Access]:
        """Returns all tokens in the order of their ids, including revoked and expired ones."""
        out: list[Access] = []
        while page := await self._shelf.scan(after=out[-1].id if out else None, limit=500):
            out += [_decode(data) for _, data in page]
        return out

    async def holds(self, access: Access, *, now: int) -> bool:
        """Whether a token that was accepted before is still valid."""
        data = await self._shelf.get(access.id)
        return data is not None and _decode(data).live(now)

    async def revoke(self, token_id: str, *, now: int) -> Access:
        """Revokes a token at once.

        Raises:
            NotFound: there is none with that id.
        """
        data = await self._shelf.get(token_id)
        if data is None:
            raise NotFound(f"there is no token {token_id!r}", hint="list the tokens: holdfast token list")
        found = _decode(data)
        gone = replace(found, revoked_at=found.revoked_at or now)
        await self._shelf.put(token_id, _encode(gone))
        return gone

    async def find(self, token: str, *, now: int) -> Access | None:
        """Returns the access of a token; None if the token is unknown, expired or revoked. The time it takes does not depend on which of these it is."""
        head, _, rest = token.partition("_")
        number, _, secret = rest.partition("_")
        data = await self._shelf.get(number) if head == "hf" and number else None
        found = _decode(data) if data is not None else None
        same = hmac.compare_digest(_digest(secret), found.digest if found is not None else _digest(""))
        return found if same and found is not None and found.live(now) else None


class Known(Protocol):
    """Finds tokens: those of a store, or of a file beside them."""

    async def find(self, token: str, *, now: int) -> Access | None:
        """Returns the access of a token; None if the token is unknown or not valid."""

    async def holds(self, access: Access, *, now: int) -> bool:
        """Whether a token that was accepted before is still valid."""


class FileTokens:
    """Tokens in a file that the operator of the server writes, for example from a container's secrets; the tokens of the store are valid as well.

    A line is a token, followed by its rights if these are not everything in the tenant ``default``:
    ``TOKEN scopes=view,decide tenant=acme actor=ada``. The file is read again when it has changed: a token whose line is gone is revoked.
    """

    def __init__(self, file: Path, beside: Callable[[], Known]) -> None:
        self._file = file.absolute()  # absolute, because a node may change the working directory before it is read again
        self._beside = beside
        self._read: tuple[int, int, dict[bytes, Access]] | None = None
        self._lines()

    def _lines(self) -> dict[bytes, Access]:
        try:
            at = self._file.stat()
            if self._read is None or self._read[:2] != (at.st_mtime_ns, at.st_size):
                self._read = at.st_mtime_ns, at.st_size, dict(map(_line, _spell(self._file.read_text("utf-8"))))
        except (OSError, UnicodeDecodeError) as e:
            raise InvalidInput(f"the token file cannot be read: {e}", field="token_file", hint="a line for each token: TOKEN scopes=view,decide") from e
        return self._read[2]

    async def find(self, token: str, *, now: int) -> Access | None:
        return self._lines().get(_digest(token)) or await self._beside().find(token, now=now)

    async def holds(self, access: Access, *, now: int) -> bool:
        return access in self._lines().values() or await self._beside().holds(access, now=now)


def _spell(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _line(line: str) -> tuple[bytes, Access]:
    token, *rest = line.split()
    if len(token) < SHORTEST:
        raise InvalidInput(f"a token of a token file has at least {SHORTEST} characters", field="token_file", hint="openssl rand -hex 24")
    said = dict(word.partition("=")[::2] for word in rest)
    if unknown := said.keys() - {"scopes", "tenant", "actor"}:
        raise InvalidInput(f"{min(unknown)!r} is not a known field of a token file", field="token_file", hint="TOKEN scopes=view,decide tenant=acme actor=ada")
    digest = _digest(token)
    return digest, Access(
        id=f"file-{digest.hex()[:12]}", digest=digest, tenant_id=text(said.get("tenant", "default"), "tenant"), actor=text(said.get("actor", "operator"), "actor"),
        scopes=scopes([w for w in said.get("scopes", "admin").split(",") if w]),
    )


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


__all__ = ["EVERY_TENANT", "NOBODY", "SHELF", "Access", "FileTokens", "Forbidden", "Issued", "Known", "Scope", "Tokens", "Unauthorized", "scopes"]

"""Sessions of the pages. A login with a token begins one; it lasts for twelve hours at most, and ends when its token does (§16.2)."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.access import NOBODY, Access
from holdfast.shelf import Shelf

SHELF = "holdfast.sessions"
COOKIE = "holdfast"
LASTS_US = 12 * 3600 * 1_000_000

Known = Callable[[str], Awaitable[Access | None]]


class _Session(msgspec.Struct, frozen=True):
    token: bytes
    access: Access
    until: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Session).decode


class Viewer(msgspec.Struct, frozen=True):
    """The person or program that looks at a page: their rights, and the secret of their session, which is empty with a bearer header."""

    access: Access
    secret: str

    @property
    def csrf(self) -> str:
        """The token that their forms carry. It is bound to the session's secret, and is not that secret."""
        return hashlib.sha256(f"csrf:{self.secret}".encode()).hexdigest()[:32]

    def owns(self, given: str) -> bool:
        """Whether the token of a form is theirs."""
        return not self.secret or hmac.compare_digest(self.csrf.encode(), given.encode("utf-8", "surrogatepass"))  # as bytes: texts can be compared only if they are ASCII


class Sessions:
    """Sessions of one store. ``alive`` says whether a token is still valid; it gets the access that the session has of the token. ``without``: no token is
    needed, and this is the secret of everybody's forms."""

    def __init__(self, shelf: Shelf, known: Known, alive: Callable[[Access], Awaitable[bool]], now: Callable[[], int], *, without: str | None = None) -> None:
        self._shelf = shelf
        self._known = known
        self._alive = alive
        self._now = now
        self._without = without

    async def begin(self, token: str) -> str | None:
        """Begins a session for a token and returns its secret; None if the token is not known."""
        access = await self._known(token)
        if access is None:
            return None
        secret = secrets.token_urlsafe(24)
        until = min(self._now() + LASTS_US, access.expires_at or self._now() + LASTS_US)
        await self._shelf.put(_place(secret), _encode(_Session(b"", access, until)))
        return secret

    async def end(self, secret: str) -> None:
        await self._shelf.delete(_place(secret))

    async def viewer(self, request: Request) -> Viewer | None:
        """Returns who sent a request; None if the sender is not known."""
        secret = request.cookies.get(COOKIE, "")
        if self._without is not None:
            return Viewer(NOBODY, self._without)
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            access = await self._known(token.strip())
            return None if access is None else Viewer(access, "")
        data = await self._shelf.get(_place(secret)) if secret else None
        if data is None:
            return None
        session = _decode(data)
        if session.until <= self._now() or not await self._alive(session.access):
            await self.end(secret)
            return None
        return Viewer(session.access, secret)


async def sweep(shelf: Shelf, now: int, after: str) -> str | None:
    """Deletes those of the next hundred sessions that have ended or cannot be read. Returns the key after which to continue, None at the end."""
    rows = await shelf.scan(after=after, limit=100)
    for place, data in rows:
        if _until(data) <= now:
            await shelf.delete(place)
    return rows[-1][0] if rows else None


def _until(data: bytes) -> int:
    try:
        return _decode(data).until
    except msgspec.MsgspecError:
        return 0


def _place(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def set_cookie(response: Response, secret: str, *, secure: bool, path: str = "/") -> None:
    """Sets the session's cookie: HttpOnly, SameSite=Strict, Secure over TLS."""
    response.set_cookie(COOKIE, secret, max_age=LASTS_US // 1_000_000, httponly=True, samesite="strict", secure=secure, path=path)


__all__ = ["COOKIE", "SHELF", "Sessions", "Viewer", "set_cookie", "sweep"]

"""The webhook: sends one HTTP request for each intent to a public address, bounded in time and size (§9.1, §9.4).

The name is looked up once, its addresses are checked, and the connection goes to a checked address, so that a name that changes
its address between the check and the connection leads nowhere else. Redirects are not followed. Each request carries the key as
``Idempotency-Key``. A receiver is expected to drop a repeated key, so by default a sending with an unknown outcome is repeated.
"""

from __future__ import annotations

import asyncio
import email.utils
import hashlib
import hmac
import ipaddress
import os
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from holdfast.core.addresses import mask, scrub
from holdfast.core.bounds import NOTE_BYTES, amount, check_arguments, text, texts, wrong
from holdfast.core.errors import MaybeSent, PermanentError, RetryAfter
from holdfast.outbox.lookups import Lookups, Place

ALLOW = "HOLDFAST_WEBHOOK_ALLOW"
BODY_CAP = 16 * 1024 * 1024
ANSWER_CAP = 64 * 1024
HEAD_CAP = 64 * 1024
LONGEST_PAUSE = 24 * 3600.0
REACHED_PART = 0.9
METHODS = ("POST", "PUT", "PATCH", "DELETE")
OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "idempotency-key", "holdfast-signature", "expect", "upgrade"})
AGAIN = frozenset({408, 409, 423, 425, 429})
NAT64 = ipaddress.ip_network("64:ff9b::/96")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_lookups = Lookups()


class Answer(msgspec.Struct, frozen=True):
    """A receiver's answer. ``cut``: its body was longer than what is kept."""

    status: int
    body: str = ""
    cut: bool = False


class Request(msgspec.Struct, frozen=True):
    """One request, ready to be sent."""

    method: str
    secure: bool
    host: str
    port: int
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


def secret(value: Any, field: str) -> str | bytes:
    """Checks the secret with which requests are signed."""
    if isinstance(value, str):
        return text(value, field, NOTE_BYTES)
    if not isinstance(value, bytes) or not value:
        raise wrong(field, "text, or bytes", value)
    return value


def hosts(value: Any, field: str) -> tuple[str, ...]:
    """Checks the names of hosts; a single text is one host."""
    return texts([value] if isinstance(value, str) else value, field)


class Webhook:
    """Sends ``{url, body, method="POST", headers={}}``. A string is sent as it is, any other body as JSON.

    Args:
        secret: signs each request: ``Holdfast-Signature: t=<unix time>,v1=<hex of HMAC-SHA256 over "t.body">``.
        allow: the private, loopback and link-local hosts to which it may send: ``host``, ``host:port``, an address, or a network.
            ``$HOLDFAST_WEBHOOK_ALLOW`` names more, separated by commas.
        timeout: seconds for the whole request, from the look-up of the name to the end of the answer.
        dedupes: whether the receiver drops a repeated ``Idempotency-Key``; if not, a person is asked when the outcome of a message is
            unknown.
    """

    @check_arguments(secret=secret, allow=hosts, timeout=amount)
    def __init__(self, secret: str | bytes | None = None, allow: str | Sequence[str] = (), timeout: float = 10, *, dedupes: bool = True) -> None:
        self._secret = secret.encode() if isinstance(secret, str) else secret
        self._allow = tuple(allow)
        self._tls: ssl.SSLContext | None = None
        self.timeout = timeout
        self.dedupes = dedupes

    async def send(self, payload: Any, key: str) -> dict[str, Any]:
        """Sends the request; returns ``{status, body, cut}``. ``cut`` is True if the body was longer than what is kept.

        Raises:
            PermanentError: the request is invalid, or the receiver refuses it permanently.
            RetryAfter: the receiver named the time for another attempt.
            MaybeSent: the connection broke after the sending began.
        """
        asked = request(payload, key, self._secret, int(time.time()))
        reader, writer = await self._reach(asked)
        try:
            answer = await _exchange(reader, writer, asked)
        except (asyncio.LimitOverrunError, ValueError) as e:
            raise MaybeSent(f"what {asked.host} answered is not valid HTTP") from e
        except (OSError, EOFError) as e:
            raise MaybeSent(f"{asked.host} closed the connection: {e or type(e).__name__}") from e
        finally:
            writer.transport.abort()  # whatever the receiver still sends is not read
        return msgspec.structs.asdict(judge(asked.host, *answer))

    async def _reach(self, asked: Request) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects, within a part of the time of the whole request, so that if the host is not reached, it is certain that nothing was sent.

        Raises:
            PermanentError: sending there is not permitted.
            OSError: the host was not reached.
        """
        seconds = self.timeout * REACHED_PART
        try:
            async with asyncio.timeout(seconds):
                return await self._connect(asked, await self._addresses(asked.host, asked.port))
        except TimeoutError:
            raise OSError(f"{asked.host} was not reached within {seconds:g} s") from None

    async def _addresses(self, host: str, port: int) -> list[Place]:
        """Returns the permitted addresses of a host, with their families.

        Raises:
            PermanentError: all are private and not allowed.
            OSError: the name cannot be resolved now.
        """
        try:
            found = await _lookups.addresses(host, port)
        except UnicodeError:
            raise PermanentError(f"{host!r} is not a host name") from None
        named = (*self._allow, *(w.strip() for w in os.environ.get(ALLOW, "").split(",") if w.strip()))
        usable = [(family, address) for family, address in found if is_permitted(host, port, address, named)]
        if not usable:
            raise PermanentError(
                f"{host} is a private, loopback or link-local address, and may not be sent to", hint=f"Webhook(allow=({host!r},)), or ${ALLOW}"
            )
        return usable

    async def _connect(self, asked: Request, addresses: Sequence[Place]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects to the first address that accepts a connection. Nothing has been sent before that."""
        if asked.secure and self._tls is None:
            self._tls = await asyncio.to_thread(ssl.create_default_context)
        failed: OSError | None = None
        for family, address in addresses[:4]:
            try:
                return await asyncio.open_connection(
                    address, asked.port, family=family, ssl=self._tls if asked.secure else None, server_hostname=asked.host if asked.secure else None, limit=HEAD_CAP
                )
            except OSError as e:
                failed = e
        assert failed is not None
        raise failed


def is_permitted(host: str, port: int, address: str, allow: Sequence[str]) -> bool:
    """Whether sending to this address of a host is permitted: it is public, or ``allow`` names the host or the address."""
    place = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(place, ipaddress.IPv6Address):
        inner = place.ipv4_mapped or place.sixtofour or (ipaddress.IPv4Address(int(place) & 0xFFFFFFFF) if place in NAT64 else None)
        place = inner or place
    if place.is_global and not place.is_multicast:
        return True
    name = host.lower().rstrip(".")
    return any(_names(word.lower(), name, port, place) for word in allow)


def _names(word: str, host: str, port: int, place: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if word in (host, f"{host}:{port}", f"[{host}]:{port}", str(place), f"{place}:{port}", f"[{place}]:{port}"):
        return True
    try:
        return "/" in word and place in ipaddress.ip_network(word, strict=False)
    except ValueError:
        return False


def request(payload: Any, key: str, secret: bytes | None, now: int) -> Request:
    """Makes the request that a payload describes.

    Raises:
        PermanentError: it describes no valid request; the error says what is wrong.
    """
    if not isinstance(payload, Mapping) or not isinstance(payload.get("url"), str):
        raise PermanentError("the payload of a webhook is {url, body, method, headers}", hint='ctx.send("webhook", {"url": "https://…", "body": …})')
    if unknown := set(payload) - {"url", "body", "method", "headers"}:
        raise PermanentError(f"a webhook has no field {sorted(map(str, unknown))[0]!r}", hint="the payload is {url, body, method, headers}")
    method = payload.get("method", "POST")
    if not isinstance(method, str) or method.upper() not in METHODS:
        raise PermanentError(f"{method!r} is not a method of a webhook", hint="one of " + ", ".join(METHODS))
    secure, host, port, path, shown = _place(payload["url"])
    given = payload.get("body")
    plain = isinstance(given, str)
    body = b"" if given is None else given.encode("utf-8", "replace") if plain else bytes(given) if isinstance(given, bytes) else msgspec.json.encode(given)
    if len(body) > BODY_CAP:
        raise PermanentError(f"the body has {len(body)} bytes; a webhook takes {BODY_CAP}")
    headers = {
        "Content-Type": "text/plain; charset=utf-8" if plain else "application/octet-stream" if isinstance(given, bytes) else "application/json",
        "User-Agent": "holdfast",
        "Accept": "*/*",
        **_headers(payload.get("headers")),
    }
    ours = {"Host": shown, "Content-Length": str(len(body)), "Connection": "close", "Idempotency-Key": quote(key, safe="!#$&'()*+,/:;=?@[]~|^ {}<>`")}
    if secret is not None:
        ours["Holdfast-Signature"] = f"t={now},v1={signature(secret, now, body)}"
    return Request(method.upper(), secure, host, port, path, tuple((headers | ours).items()), body)


def signature(secret: bytes, at: int, body: bytes) -> str:
    """Returns the hex HMAC-SHA256 over ``b"<at>." + body``. A receiver compares it with the header to check who sent a request, and when
    (``at``, Unix time in seconds)."""
    return hmac.new(secret, b"%d.%b" % (at, body), hashlib.sha256).hexdigest()


def _place(url: str) -> tuple[bool, str, int, str, str]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as e:
        raise PermanentError(f"{mask(url)[:200]!r} is not a valid URL: {scrub(str(e), url)}") from None
    if parts.scheme not in ("http", "https") or not host or parts.username is not None:
        raise PermanentError(f"{mask(url)[:200]!r} is not an address for a webhook", hint="http://host/path or https://host/path, without a name and a password")
    secure = parts.scheme == "https"
    number = port or (443 if secure else 80)
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._") + (f"?{quote(parts.query, safe='/%:@!$&()*+,;=~-._?')}" if parts.query else "")
    name = f"[{host}]" if ":" in host else host.encode("idna").decode() if not host.isascii() else host
    return secure, name.strip("[]"), number, path, name if port is None else f"{name}:{port}"


def _headers(given: Any) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise PermanentError("the headers of a webhook must be a mapping of names to strings")
    out = {}
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str) or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise PermanentError(f"the header {name!r} cannot be sent", hint="names and values are text without line breaks")
        if name.lower() in OURS:
            raise PermanentError(f"the header {name!r} is the webhook's own")
        out[name.title()] = value
    return out


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: Request) -> tuple[int, dict[str, str], bytes, bool]:
    """Sends the request; returns status, headers and body of the answer, the body up to its cap, and whether it was cut."""
    head = [f"{asked.method} {asked.path} HTTP/1.1", *(f"{name}: {value}" for name, value in asked.headers), "", ""]
    writer.write("\r\n".join(head).encode("latin-1") + asked.body)
    await writer.drain()
    while True:
        status, headers = _parse(await reader.readuntil(b"\r\n\r\n"))
        if status >= 200:
            break
    if status in (204, 304):
        return status, headers, b"", False
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return status, headers, *await _chunks(reader)
    length = int(headers["content-length"]) if "content-length" in headers else None
    if length is None:
        body = await _upto(reader, ANSWER_CAP + 1)
    else:
        body = await reader.readexactly(min(length, ANSWER_CAP + 1))
    return status, headers, body[:ANSWER_CAP], len(body) > ANSWER_CAP


async def _upto(reader: asyncio.StreamReader, size: int) -> bytes:
    kept = bytearray()
    while len(kept) < size and (chunk := await reader.read(size - len(kept))):
        kept += chunk
    return bytes(kept)


async def _chunks(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    kept = bytearray()
    while len(kept) <= ANSWER_CAP:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        if size == 0:
            return bytes(kept), False
        if size < 0:
            raise ValueError("a chunk with a negative length")
        kept += await reader.readexactly(min(size, ANSWER_CAP + 1 - len(kept)))
        if len(kept) > ANSWER_CAP:
            break
        await reader.readexactly(2)
    return bytes(kept[:ANSWER_CAP]), True


def _parse(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise ValueError("the answer is not HTTP")
    return int(rest[:3]), {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}


def judge(host: str, status: int, headers: Mapping[str, str], body: bytes, cut: bool) -> Answer:
    """Decides what an answer means.

    Raises:
        PermanentError: the receiver will never accept it, or answered with a redirect, which is not followed.
        RetryAfter: the receiver says when to try again.
        OSError: the receiver does not accept it now.
    """
    if 200 <= status < 300:
        return Answer(status, body.decode("utf-8", "replace").replace("\0", "\ufffd"), cut)
    said = f"{host} answered {status}"
    if 300 <= status < 400:
        raise PermanentError(f"{said}, a redirect, which is not followed", hint="give the address that it leads to")
    if status not in AGAIN and status < 500:
        raise PermanentError(f"{said}: {body[:200].decode('utf-8', 'replace')}")
    if (pause := retry_after(headers.get("retry-after", ""), time.time())) is not None:
        raise RetryAfter(pause, said)
    raise OSError(said)


def retry_after(text: str, now: float) -> float | None:
    """Returns the seconds that a ``Retry-After`` header says, as a number or a date, bounded; None if it says nothing."""
    try:
        seconds = float(text) if text.isdigit() else email.utils.parsedate_to_datetime(text).timestamp() - now
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(0.0, seconds), LONGEST_PAUSE)


__all__ = ["Answer", "Webhook", "is_permitted", "judge", "request", "retry_after", "signature"]

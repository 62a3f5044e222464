"""Addresses: parses the URL of a store or a receiver, and removes its secrets so that it may be shown in an error, a log or on a page."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

import msgspec

HIDDEN = "***"
FILES = ("sqlite:", "workspace:", "memory:")
"""A URL with one of these prefixes names a file or nothing, and contains no secret."""
ENCODED = "in the user, the password and the database's name write @ as %40, / as %2F, ? as %3F, # as %23 and % as %25"
OPEN = frozenset({
    "application_name", "channel_binding", "client_encoding", "connect_timeout", "dbname", "gssencmode", "host", "hostaddr", "keepalives", "keepalives_count",
    "keepalives_idle", "keepalives_interval", "listen", "load_balance_hosts", "options", "partitions", "passfile", "pooler", "port", "require_auth", "service",
    "sslcert", "sslcompression", "sslcrl", "sslkey", "sslmode", "sslnegotiation", "sslrootcert", "sslsni", "target_session_attrs", "tcp_user_timeout", "user",
})
"""The parameters whose values may be shown. The value of any other may be a secret, now or in a later release of libpq."""
_SCHEME = re.compile(r"[A-Za-z][\w+.-]*://")
_HOSTS = re.compile(r"(?:\[[^]]*\]|[^:,\[\]]*)(?::\d*)?(?:,(?:\[[^]]*\]|[^:,\[\]]*)(?::\d*)?)*")
_NAMED = re.compile(r"(\w*(?:passw|pwd|secret|token|_key)\w*\s*=\s*)('(?:\\.|[^'\\])*'|\S+)", re.IGNORECASE)


class Address(msgspec.Struct, frozen=True):
    """A URL in its parts, none of them decoded. ``user`` may have a password after a colon; ``clear`` is False if it is uncertain where the password ends,
    because a character is not percent-encoded that should be."""

    start: str
    user: str | None
    place: str
    query: tuple[str, ...]
    clear: bool

    def parameters(self) -> list[tuple[str, str, str]]:
        """Returns each parameter as it is written, with its name and its value."""
        return [(pair, unquote(name), unquote(value)) for pair in self.query for name, _, value in (pair.partition("="),)]


def parse(url: str) -> Address | None:
    """Parses a URL as libpq does: the text before an ``@`` is the user, unless a ``/`` comes first. Returns None if the text has no ``://``."""
    scheme = _SCHEME.match(url)
    if scheme is None:
        return None
    user, rest = None, url[scheme.end() :]
    if (found := re.search("[@/]", rest)) is not None and found[0] == "@":
        user, rest = rest[: found.start()], rest[found.end() :]
    place, _, asked = rest.partition("?")
    hosts, _, path = place.partition("/")
    query = tuple(pair for pair in asked.split("&") if pair)
    doubtful = "@" in place if user is not None else "@" in path and ":" in hosts
    return Address(scheme[0], user, place, query, _HOSTS.fullmatch(hosts) is not None and not doubtful and all("=" in pair for pair in query))


def mask(url: str) -> str:
    """Returns the URL without its passwords and other secrets, also without those of a URL inside it."""
    return _mask(url, [])


def scrub(text: str, url: str) -> str:
    """Returns a text about a URL without the URL's secrets."""
    hidden: list[str] = []
    shown = _mask(url, hidden)
    text = text.replace(url, shown)
    for secret in sorted({form for piece in hidden for form in (piece, unquote(piece)) if form}, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _mask(url: str, hidden: list[str]) -> str:
    if url.startswith(FILES):
        return url
    found = parse(url)
    if found is None:
        return _mask_words(_cut(url, 0, hidden) if "@" in url else url, hidden)
    if not found.clear:  # all that may be the password is hidden, up to the last @
        return _mask_query(_cut(url, len(found.start), hidden), hidden)
    name, colon, password = (found.user or "").partition(":")
    hidden.append(password)
    user = "" if found.user is None else f"{name}{colon and f':{HIDDEN}'}@"
    return f"{found.start}{user}{found.place}{_query(found.query, hidden)}"


def _cut(text: str, start: int, hidden: list[str]) -> str:
    """Returns the text with everything hidden between its first colon and its last ``@``, or its end."""
    colon, at = text.find(":", start), text.rfind("@")
    if colon < 0:
        return text
    end = at if at > colon else len(text)
    hidden.append(text[colon + 1 : end])
    return text[: colon + 1] + HIDDEN + text[end:]


def _mask_query(text: str, hidden: list[str]) -> str:
    before, mark, asked = text.partition("?")
    return before + _query(tuple(asked.split("&")), hidden) if mark else text


def _query(pairs: tuple[str, ...], hidden: list[str]) -> str:
    shown = [_pair(pair, hidden) for pair in pairs]
    return "?" + "&".join(shown) if shown else ""


def _pair(pair: str, hidden: list[str]) -> str:
    name, equals, value = pair.partition("=")
    if not equals or not value:
        return pair
    if unquote(name).lower() not in OPEN:
        hidden.append(value)
        return f"{name}={HIDDEN}"
    plain = unquote(value)
    shown = _mask(plain, hidden) if "://" in plain else _mask_words(plain, hidden)
    return pair if shown == plain else f"{name}={quote(shown, safe=':/@*,')}"


def _mask_words(text: str, hidden: list[str]) -> str:
    """Returns the text with values such as ``password=…`` hidden, as in a connection string of libpq."""
    hidden += [value for _, value in _NAMED.findall(text)]
    return _NAMED.sub(rf"\1{HIDDEN}", text)


__all__ = ["ENCODED", "Address", "mask", "parse", "scrub"]

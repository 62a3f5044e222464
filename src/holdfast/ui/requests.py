"""What the pages and the API alike read of a request: its path, part by part, and the length of its body.

A path is divided before it is decoded, so that an id in it may contain a slash. What the server hands on is decoded already; what came over the
wire stands beside it as ``raw_path``, which counts if it is the same path: a layer in between may have changed the decoded one alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from starlette.routing import Match, Route


def read_length(headers: Mapping[str, str]) -> int:
    """How long the body is said to be; 0 if that is not said."""
    told = headers.get("content-length", "")
    return int(told[:20]) if told.isascii() and told.isdecimal() else 0


def read_path(scope: Mapping[str, Any]) -> str:
    """The path of a request, with the slashes and percent signs that are part of an id as ``%2F`` and ``%25``."""
    path = str(scope["path"])
    raw = scope.get("raw_path", b"").partition(b"?")[0].decode("latin-1")
    return "/".join(_quote(unquote(part)) for part in raw.split("/")) if unquote(raw) == path else path.replace("%", "%25")


def read_place(scope: Mapping[str, Any]) -> str:
    """The path that was asked for, as this application sees it, wherever it stands."""
    return quote(read_path(scope), safe="/%").removeprefix(quote(str(scope.get("root_path", "")))) or "/"


def turn_slash(scope: Mapping[str, Any]) -> dict[str, Any]:
    """The same request with a slash at the end of its path, or without the one that is there."""
    raw = scope.get("raw_path", b"").partition(b"?")[0] or quote(str(scope["path"])).encode()
    turned = raw[:-1] if raw.endswith(b"/") else raw + b"/"
    return {**scope, "raw_path": turned, "path": unquote(turned.decode("latin-1"))}


def _quote(part: str) -> str:
    return part.replace("%", "%25").replace("/", "%2F")


class Path(Route):
    """A route whose parameters may contain any sign."""

    def matches(self, scope: Any) -> tuple[Match, Any]:
        if scope["type"] != "http":
            return Match.NONE, {}
        base = scope.get("root_path", "").replace("%", "%25")
        match, found = super().matches({**scope, "path": read_path(scope), "root_path": base, "path_params": {}})
        if match is not Match.NONE:
            found["path_params"] = {**scope.get("path_params", {}), **{name: unquote(value) for name, value in found["path_params"].items()}}
        return match, found


__all__ = ["Path", "read_length", "read_path", "read_place", "turn_slash"]

"""What both the pages and the API read from a request: its path, part by part, and the length of its body.

A path is split before it is decoded, so that an id in it may contain a slash. The server passes on the decoded path as ``path``, and the path as it was
sent as ``raw_path``. ``raw_path`` is used only if it decodes to ``path``, because a layer in between may have changed ``path`` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from starlette.routing import Match, Route


def read_length(headers: Mapping[str, str]) -> int:
    """Returns the length of the body that the headers state; 0 if they state none."""
    told = headers.get("content-length", "")
    return int(told[:20]) if told.isascii() and told.isdecimal() else 0


def read_path(scope: Mapping[str, Any]) -> str:
    """Returns the path of a request, with slashes and percent signs inside an id written as ``%2F`` and ``%25``."""
    path = str(scope["path"])
    raw = scope.get("raw_path", b"").partition(b"?")[0].decode("latin-1")
    return "/".join(_quote(unquote(part)) for part in raw.split("/")) if unquote(raw) == path else path.replace("%", "%25")


def read_place(scope: Mapping[str, Any]) -> str:
    """Returns the requested path relative to this application, wherever it is mounted."""
    return quote(read_path(scope), safe="/%").removeprefix(quote(str(scope.get("root_path", "")))) or "/"


def turn_slash(scope: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the same request with a slash added at the end of its path, or with the one there removed."""
    raw = scope.get("raw_path", b"").partition(b"?")[0] or quote(str(scope["path"])).encode()
    turned = raw[:-1] if raw.endswith(b"/") else raw + b"/"
    return {**scope, "raw_path": turned, "path": unquote(turned.decode("latin-1"))}


def _quote(part: str) -> str:
    return part.replace("%", "%25").replace("/", "%2F")


class Path(Route):
    """A route whose parameters may contain any character."""

    def matches(self, scope: Any) -> tuple[Match, Any]:
        if scope["type"] != "http":
            return Match.NONE, {}
        base = scope.get("root_path", "").replace("%", "%25")
        match, found = super().matches({**scope, "path": read_path(scope), "root_path": base, "path_params": {}})
        if match is not Match.NONE:
            found["path_params"] = {**scope.get("path_params", {}), **{name: unquote(value) for name, value in found["path_params"].items()}}
        return match, found


__all__ = ["Path", "read_length", "read_path", "read_place", "turn_slash"]

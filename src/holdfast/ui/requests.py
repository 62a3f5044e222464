"""What the pages and the API alike read of a request."""

from __future__ import annotations

from collections.abc import Mapping


def read_length(headers: Mapping[str, str]) -> int:
    """How long the body is said to be; 0 if that is not said."""
    told = headers.get("content-length", "")
    return int(told[:20]) if told.isascii() and told.isdecimal() else 0


__all__ = ["read_length"]

"""Under which access token the current task acts (§16.2).

The HTTP API and the pages set it around each request, so that no route can forget to. Whatever the request records takes it from here. A run that is
driven because of a request acts for itself: the driver clears it, so that nothing that the run does names the token.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

VIA: contextvars.ContextVar[str] = contextvars.ContextVar("holdfast_via", default="")
"""The id of the access token under which this task acts; empty if it acts under none."""


@contextlib.contextmanager
def acting(via: str) -> Iterator[None]:
    """Notes the token under which this task acts in the block, and the tasks that it starts there."""
    before = VIA.set(via)
    try:
        yield
    finally:
        VIA.reset(before)


__all__ = ["VIA", "acting"]

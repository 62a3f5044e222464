"""Stores, and how a URL names one."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.ports import Store
from holdfast.stores.memory import MemoryStore


def open_url(url: str, *, now: Callable[[], int] | None = None) -> Store:
    """The store a URL names; nothing is opened or created yet."""
    return MemoryStore(now=now)

"""Opens a store by its URL, for tests that look at what is stored."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Any

from holdfast.ports import Clock, Store
from holdfast.stores import open_url


class Opening:
    """A store that is about to be opened. Enter it with ``async with``, or await it and close the store yourself."""

    def __init__(self, url: str, clock: Clock | None) -> None:
        self._store: Store = open_url(url, now=None if clock is None else clock.now)

    def __await__(self) -> Generator[Any, None, Store]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Store:
        await self._store.open()
        return self._store

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._store.close()


def open_store(url: str, *, clock: Clock | None = None) -> Opening:
    """Opens the store at a URL, and creates it if it does not exist: ``async with open_store("sqlite:///runs.db") as store``.

    Args:
        url: as for ``Runtime``.
        clock: the store's clock; by default the machine's.

    Raises:
        UsageError: the URL does not name a store.
        StoreError: the store cannot be opened.
    """
    return Opening(url, clock)


__all__ = ["Opening", "open_store"]

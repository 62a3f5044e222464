"""A shelf: rows of others, kept in the same store as the runs (§19.2).

``rt.shelf("name")`` shares the store of a Runtime. ``async with Shelf.open(url, "name") as shelf`` opens the store for the shelf alone;
so does ``with``, for code without an event loop.

Theory of operation. A store lives on one event loop, its home. A call from a coroutine of that loop goes straight to the store. A call
from anywhere else, another loop or a thread without one, is handed to the home loop and waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, Self, TypeVar

from holdfast.core.arguments import checked, data, mapping, verb, whole
from holdfast.core.bounds import text
from holdfast.core.errors import StoreClosed, UsageError
from holdfast.ports import Shelves, Store, offers_shelves
from holdfast.stores import open_url

T = TypeVar("T")
MANY = 10_000
"""The most rows that one look gives."""


def beginning(value: Any, field: str) -> str:
    """How keys begin; empty for all of them."""
    return text(value, field, empty=True)


class Home:
    """The event loop on which a store lives, and the way to it from elsewhere."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._thread: threading.Thread | None = None

    def settle(self) -> None:
        """Makes the running loop the home, if there is none yet."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()

    def begin(self) -> None:
        """Makes a loop in a thread of its own the home."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-shelf", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ends the thread of ``begin``."""
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        self._loop = self._thread = None

    async def join(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits work on the home loop, from any loop."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        if self._loop is asyncio.get_running_loop():
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Does work on the home loop and waits for it, from a thread.

        Raises:
            UsageError: called on the home loop itself, which would wait for itself; or there is no home yet.
        """
        here: asyncio.AbstractEventLoop | None = None
        with contextlib.suppress(RuntimeError):
            here = asyncio.get_running_loop()
        if self._loop is None or here is self._loop:
            work.close()
            if self._loop is None:
                raise StoreClosed("the store of this shelf is not open", hint="with Shelf.open(url, name) as shelf")
            raise UsageError("a synchronous call on the store's own event loop would wait for itself", hint="await the asynchronous form, or call it from a thread")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class Shelf:
    """Rows of bytes under keys, by name. A row is durable when the call that puts it returns. Each call is one transaction.

    Every verb has a form for code without an event loop: ``put_sync``, ``get_sync`` and so on.
    """

    def __init__(self, store: Store, name: str, *, owned: bool = False, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._whole = store
        self._store: Shelves = _shelves(store)
        self._name = text(name, "name")
        self._owned = owned
        self.home = Home(loop)

    @classmethod
    def open(cls, url: str, name: str) -> Shelf:
        """A shelf whose store is opened by ``with`` or ``async with``, and closed at its end.

        Raises:
            UsageError: the URL names no store, or one that keeps no shelves.
        """
        return cls(open_url(url), name, owned=True)

    async def __aenter__(self) -> Self:
        self.home.settle()
        if self._owned:
            await self._whole.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._owned:
            await self._whole.close()
            self.home.end()

    def __enter__(self) -> Self:
        if self._owned:
            self.home.begin()
            try:
                self.home.call(self._whole.open())
            except BaseException:
                self.home.end()
                raise
        return self

    def __exit__(self, *error: object) -> None:
        if self._owned:
            try:
                self.home.call(self._whole.close())
            finally:
                self.home.end()

    @checked(value=data)
    async def put(self, key: str, value: bytes) -> None:
        """Puts a row, in the place of the one there."""
        await self.home.join(self._store.shelve(self._name, {key: value}))

    @checked(rows=mapping)
    async def put_many(self, rows: Mapping[str, bytes]) -> None:
        """Puts all of these or none."""
        given = {text(key, "key"): data(value, f"rows[{key!r}]") for key, value in rows.items()}
        await self.home.join(self._store.shelve(self._name, given))

    @checked(value=data)
    async def add(self, key: str, value: bytes) -> bytes | None:
        """Puts a row if there is none under its key; gives the one there already."""
        return await self.home.join(self._store.shelve_new(self._name, key, value))

    @verb
    async def get(self, key: str) -> bytes | None:
        """The row under a key, None if there is none."""
        return await self.home.join(self._store.shelved(self._name, key))

    @checked(prefix=beginning, after=beginning, limit=whole(1, MANY))
    async def scan(self, prefix: str = "", *, after: str | None = None, limit: int = 100) -> list[tuple[str, bytes]]:
        """Rows whose keys begin so, by key, after that one; so many at most."""
        return await self.home.join(self._store.shelf_scan(self._name, prefix, after or "", limit))

    @checked(prefix=beginning)
    async def delete(self, prefix: str) -> int:
        """Deletes the rows whose keys begin so; gives how many."""
        return await self.home.join(self._store.unshelve(self._name, prefix))

    @checked(value=data)
    def put_sync(self, key: str, value: bytes) -> None:
        """``put`` for code without an event loop."""
        self.home.call(self.put(key, value))

    @checked(rows=mapping)
    def put_many_sync(self, rows: Mapping[str, bytes]) -> None:
        """``put_many`` for code without an event loop."""
        self.home.call(self.put_many(rows))

    @checked(value=data)
    def add_sync(self, key: str, value: bytes) -> bytes | None:
        """``add`` for code without an event loop."""
        return self.home.call(self.add(key, value))

    @verb
    def get_sync(self, key: str) -> bytes | None:
        """``get`` for code without an event loop."""
        return self.home.call(self.get(key))

    @checked(prefix=beginning, after=beginning, limit=whole(1, MANY))
    def scan_sync(self, prefix: str = "", *, after: str | None = None, limit: int = 100) -> list[tuple[str, bytes]]:
        """``scan`` for code without an event loop."""
        return self.home.call(self.scan(prefix, after=after, limit=limit))

    @checked(prefix=beginning)
    def delete_sync(self, prefix: str) -> int:
        """``delete`` for code without an event loop."""
        return self.home.call(self.delete(prefix))


def _shelves(store: Store) -> Shelves:
    if not offers_shelves(store):
        raise UsageError(f"{store.url} keeps no shelves", hint="keep these rows in a store of another kind")
    return store


__all__ = ["Home", "Shelf"]

"""A shelf: rows of your application, kept in the same store as the runs (§19.2).

``rt.shelf("name")`` shares the store of a Runtime. ``async with Shelf.open(url, "name") as shelf`` opens a store for the shelf alone;
so does ``with``, for code without an event loop.

A store belongs to one event loop. A call from a coroutine of that loop goes directly to the store. A call from another loop, or from a
thread without one, is passed to the store's loop and waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Collection, Coroutine, Iterable, Mapping
from typing import Any, Self, TypeVar

from holdfast.core.bounds import VALUE_BYTES, check_arguments, data, mapping, text, verb, whole, wrong
from holdfast.core.envelopes import in_clear
from holdfast.core.errors import InvalidInput, StoreClosed, UsageError
from holdfast.encryption import coerce
from holdfast.ports import Shelves, Store, offers_shelves
from holdfast.stores import open_url, seal

T = TypeVar("T")
MANY = 10_000
"""The maximum number of rows that one ``scan`` returns."""


def beginning(value: Any, field: str) -> str:
    """Checks the prefix of keys; an empty one matches all keys."""
    return text(value, field, empty=True)


def rows(value: Any, field: str) -> dict[str, bytes]:
    """Checks a mapping of keys to values, each once."""
    given: dict[str, bytes] = mapping(value, field)
    return {str.__str__(key): one if type(one) is bytes and len(one) <= VALUE_BYTES else data(one, f"{field}[{key!r}]") for key, one in given.items()}


def keys(value: Any, field: str) -> frozenset[str]:
    """Checks a collection of keys; a single text is one key."""
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise wrong(field, "a collection of keys", value)
    return frozenset(text(key, field) for key in ([value] if isinstance(value, str) else value))


class Home:
    """The event loop of a store, and how other threads and loops reach it. ``Shelf`` uses it; applications seldom need it."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._thread: threading.Thread | None = None

    def settle(self) -> None:
        """Makes the running loop the store's loop, if it has none yet."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()

    def begin(self) -> None:
        """Starts a loop for the store in a new thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-shelf", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ends the thread that ``begin`` started."""
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        self._loop = self._thread = None

    async def join(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits ``work`` on the store's loop, from any loop."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        if self._loop is asyncio.get_running_loop():
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs ``work`` on the store's loop and waits for it, from a thread without a loop.

        Raises:
            UsageError: it was called on the store's own loop, which would wait for itself.
            StoreClosed: the store has no loop yet.
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
    """A named collection of rows: bytes under string keys. A row is durable when the call that puts it returns. Each call is one
    transaction.

    Every method also has a form for code without an event loop: ``put_sync``, ``get_sync`` and so on.
    """

    def __init__(self, store: Store, name: str, *, owned: bool = False, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._whole = store
        self._store: Shelves = _shelves(store)
        self._name = text(name, "name")
        self._owned = owned
        self.home = Home(loop)

    @classmethod
    def open(cls, url: str, name: str) -> Shelf:
        """A shelf with a store of its own: ``with`` or ``async with`` opens the store, and closes it at the end. Its rows are encrypted if
        ``$HOLDFAST_KEYS`` names a file of keys.

        Raises:
            UsageError: the URL does not name a store, the store has no shelves, or there are no such keys.
        """
        return cls(seal(open_url(url), coerce(None)), name, owned=True)

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

    @check_arguments(value=data)
    async def put(self, key: str, value: bytes) -> None:
        """Stores a row; replaces an existing one."""
        await self.home.join(self._store.shelve(self._name, {key: value}))

    @check_arguments(rows=rows, once=keys)
    async def put_many(self, rows: Mapping[str, bytes], *, once: Collection[str] = ()) -> list[str]:
        """Stores all of these rows, or none, except that a row whose key is in ``once`` is stored only if its key is free.

        Returns:
            the keys of ``once`` that were taken.
        """
        if not once:
            return await self.home.join(self._store.shelve(self._name, rows))
        if (missing := next((key for key in once if key not in rows), None)) is not None:
            raise InvalidInput(f"once names {missing!r}, which is not one of the rows", field="once", hint="give a row for each key")
        return await self.home.join(self._store.shelve(self._name, rows, once))

    @check_arguments(value=data)
    async def add(self, key: str, value: bytes) -> bytes | None:
        """Stores a row if its key is free, and returns None; otherwise returns the stored value."""
        there = await self.home.join(self._store.shelve_new(self._name, key, value))
        return None if there is None else in_clear(there, self._name, key)

    @verb
    async def get(self, key: str) -> bytes | None:
        """The value under a key; None if there is none."""
        there = await self.home.join(self._store.find_shelved(self._name, key))
        return None if there is None else in_clear(there, self._name, key)

    @check_arguments(prefix=beginning, after=beginning, limit=whole(1, MANY))
    async def scan(self, prefix: str = "", *, after: str | None = None, limit: int = 100) -> list[tuple[str, bytes]]:
        """Returns up to ``limit`` rows ``(key, value)`` whose keys begin with ``prefix``, in key order, after the key ``after``."""
        found = await self.home.join(self._store.shelf_scan(self._name, prefix, after or "", limit))
        return [(key, in_clear(value, self._name, key)) for key, value in found]

    @check_arguments(prefix=beginning)
    async def delete(self, prefix: str) -> int:
        """Deletes the rows whose keys begin with ``prefix``; returns their number."""
        return await self.home.join(self._store.unshelve(self._name, prefix))

    @check_arguments(value=data)
    def put_sync(self, key: str, value: bytes) -> None:
        """``put`` for code without an event loop."""
        self.home.call(self.put(key, value))

    @check_arguments(rows=mapping, once=keys)
    def put_many_sync(self, rows: Mapping[str, bytes], *, once: Collection[str] = ()) -> list[str]:
        """``put_many`` for code without an event loop."""
        return self.home.call(self.put_many(rows, once=once))

    @check_arguments(value=data)
    def add_sync(self, key: str, value: bytes) -> bytes | None:
        """``add`` for code without an event loop."""
        return self.home.call(self.add(key, value))

    @verb
    def get_sync(self, key: str) -> bytes | None:
        """``get`` for code without an event loop."""
        return self.home.call(self.get(key))

    @check_arguments(prefix=beginning, after=beginning, limit=whole(1, MANY))
    def scan_sync(self, prefix: str = "", *, after: str | None = None, limit: int = 100) -> list[tuple[str, bytes]]:
        """``scan`` for code without an event loop."""
        return self.home.call(self.scan(prefix, after=after, limit=limit))

    @check_arguments(prefix=beginning)
    def delete_sync(self, prefix: str) -> int:
        """``delete`` for code without an event loop."""
        return self.home.call(self.delete(prefix))


def _shelves(store: Store) -> Shelves:
    if not offers_shelves(store):
        raise UsageError(f"{store.url} does not support shelves", hint="keep these rows in a store of another kind")
    return store


__all__ = ["Home", "Shelf"]

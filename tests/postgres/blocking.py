"""A store for loops in virtual time, which do not wait for a server: each verb is done at once, in a loop of its own thread."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from holdfast.ports import ANYTHING, News, Store
from holdfast.stores.changes import Changes
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import VirtualClock
from tests.postgres.server import shared

SECONDS = 60.0
TELLING = frozenset({"commit", "put", "redeem_token", "put_schedule", "settle_effect", "settle_intents", "retire", "rebuild", "adopt"})


class Blocking:
    """Stands before a store and hands on its verbs. Whoever waits for changes waits for those that are made through here."""

    def __init__(self, store: PostgresStore | SqliteStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._changes = Changes()

    def __getattr__(self, name: str) -> Any:
        target = getattr(self._store, name)
        if not inspect.iscoroutinefunction(target):
            return target

        async def verb(*args: Any, **options: Any) -> Any:
            try:
                return asyncio.run_coroutine_threadsafe(target(*args, **options), self._loop).result(SECONDS)
            finally:
                if name in TELLING:
                    self._changes.tell()

        return verb

    async def wait_for_change(self, timeout: float, about: News = ANYTHING) -> News:
        return await self._changes.wait(timeout, about)

    async def close(self) -> None:
        self.end()

    def end(self) -> None:
        self._changes.close()
        asyncio.run_coroutine_threadsafe(self._store.close(), self._loop).result(SECONDS)


_last: Blocking | None = None
_loop: asyncio.AbstractEventLoop | None = None


def _there() -> asyncio.AbstractEventLoop:
    """The one loop of the thread in which all such stores live."""
    global _loop
    if _loop is None:
        _loop = asyncio.new_event_loop()
        threading.Thread(target=_loop.run_forever, name="postgres", daemon=True).start()
    return _loop


def hold(store: PostgresStore | SqliteStore) -> Blocking:
    """A store whose verbs are done at once, beside others; whoever asked for it ends it."""
    return Blocking(store, _there())


def at_once(store: PostgresStore | SqliteStore) -> Store:
    """A store whose verbs are done at once. There is one at a time: the one before is closed."""
    global _last
    finish()
    _last = hold(store)
    return cast(Store, _last)


def blocking(now: Callable[[], int]) -> Store:
    """An empty store over PostgreSQL, for a loop in virtual time."""
    finish()  # before its tables are emptied
    return at_once(PostgresStore(shared().fresh(), now=now))


def over(name: str, folder: Path) -> Callable[[VirtualClock], Store]:
    """Returns what makes the store of each seed's world, ``sqlite`` or ``postgres``; each of its verbs is done at once, because virtual time does not wait for a disk or a server."""
    numbers = itertools.count()
    if name == "sqlite":
        return lambda clock: at_once(SqliteStore(folder / f"{next(numbers)}.db", now=clock.now))
    return lambda clock: blocking(clock.now)


def finish() -> None:
    """Closes what is open: a world leaves its store to whoever made it."""
    global _last
    store, _last = _last, None
    if store is not None:
        store.end()

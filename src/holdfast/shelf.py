"""A shelf: rows of others, kept in the same store as the runs (§19.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core.arguments import checked, data, mapping, verb, whole
from holdfast.core.bounds import text
from holdfast.core.errors import UsageError
from holdfast.ports import Store, offers_shelves

MANY = 10_000
"""The most rows that one look gives."""


def beginning(value: Any, field: str) -> str:
    """How keys begin; empty for all of them."""
    return text(value, field, empty=True)


class Shelf:
    """Rows of bytes under keys, by name. A row is durable when the call that puts it returns."""

    def __init__(self, store: Store, name: str) -> None:
        if not offers_shelves(store):
            raise UsageError(f"{store.url} keeps no shelves", hint="keep these rows in a store of another kind")
        self._store = store
        self._name = text(name, "name")

    @checked(value=data)
    async def put(self, key: str, value: bytes) -> None:
        """Puts a row, in the place of the one there."""
        await self._store.shelve(self._name, {key: value})

    @checked(rows=mapping)
    async def put_many(self, rows: Mapping[str, bytes]) -> None:
        """Puts all of these or none."""
        await self._store.shelve(self._name, {text(key, "rows"): data(value, f"rows[{key!r}]") for key, value in rows.items()})

    @checked(value=data)
    async def add(self, key: str, value: bytes) -> bytes | None:
        """Puts a row if there is none under its key; gives the one there already."""
        return await self._store.shelve_new(self._name, key, value)

    @verb
    async def get(self, key: str) -> bytes | None:
        return await self._store.shelved(self._name, key)

    @checked(prefix=beginning, after=beginning, limit=whole(1, MANY))
    async def scan(self, prefix: str = "", *, after: str | None = None, limit: int = 100) -> list[tuple[str, bytes]]:
        """Rows whose keys begin so, by key, after that one."""
        return await self._store.shelf_scan(self._name, prefix, after or "", limit)

    @checked(prefix=beginning)
    async def delete(self, prefix: str) -> int:
        """Deletes the rows whose keys begin so; gives how many."""
        return await self._store.unshelve(self._name, prefix)


__all__ = ["Shelf"]

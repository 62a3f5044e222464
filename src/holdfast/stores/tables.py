"""A table in memory that finds its rows by other fields than their key."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Indexed(dict[K, V]):
    """A dict whose rows ``of`` finds by ``fields``, oldest first as in the dict itself."""

    def __init__(self, **fields: Callable[[V], Hashable]) -> None:
        super().__init__()
        self._fields = fields
        self._found: dict[str, dict[Hashable, dict[K, int]]] = {name: {} for name in fields}
        self._count = 0

    def of(self, name: str, value: Hashable) -> list[V]:
        """The rows with that value in that field."""
        found = self._found[name].get(value, {})
        return [self[key] for key in sorted(found, key=found.__getitem__)]

    def __setitem__(self, key: K, row: V) -> None:
        old = self.get(key)
        if old is None:
            self._count += 1
        for name, field in self._fields.items():
            value = field(row)
            number = self._count
            if old is not None:
                if (was := field(old)) == value:
                    continue
                number = self._drop(name, was, key)
            self._found[name].setdefault(value, {})[key] = number
        super().__setitem__(key, row)

    def _drop(self, name: str, value: Hashable, key: K) -> int:
        keys = self._found[name][value]
        number = keys.pop(key)
        if not keys:
            del self._found[name][value]
        return number

    def setdefault(self, key: K, row: V) -> V:
        if key not in self:
            self[key] = row
        return self[key]

    def pop(self, key: K, *default: Any) -> Any:
        if key in self:
            row = self[key]
            for name, field in self._fields.items():
                self._drop(name, field(row), key)
        return super().pop(key, *default)

    def __copy__(self) -> Indexed[K, V]:
        other: Indexed[K, V] = Indexed(**self._fields)
        for key, row in self.items():
            other[key] = row
        return other

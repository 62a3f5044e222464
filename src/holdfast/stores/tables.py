"""A table in memory that finds its rows by other fields than their key."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Indexed(dict[K, V]):
    """A dict whose rows ``of`` finds by ``fields``, oldest first as in the dict itself. A row's fields stay what they were at first."""

    def __init__(self, **fields: Callable[[V], Hashable]) -> None:
        super().__init__()
        self._fields = fields
        self._found: dict[str, dict[Hashable, dict[K, None]]] = {name: {} for name in fields}

    def of(self, name: str, value: Hashable) -> list[V]:
        """The rows with that value in that field."""
        return [self[key] for key in self._found[name].get(value, ())]

    def __setitem__(self, key: K, row: V) -> None:
        if key not in self:
            for name, field in self._fields.items():
                self._found[name].setdefault(field(row), {})[key] = None
        super().__setitem__(key, row)

    def setdefault(self, key: K, row: V) -> V:
        if key not in self:
            self[key] = row
        return self[key]

    def pop(self, key: K, *default: Any) -> Any:
        if key in self:
            row = self[key]
            for name, field in self._fields.items():
                keys = self._found[name][field(row)]
                del keys[key]
                if not keys:
                    del self._found[name][field(row)]
        return super().pop(key, *default)

    def __copy__(self) -> Indexed[K, V]:
        other: Indexed[K, V] = Indexed(**self._fields)
        for key, row in self.items():
            other[key] = row
        return other

"""A cache of recently read values, limited by size, so that they are not read from the store again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A cache by key, which drops the least recently used values when the given sizes add up to more than ``most``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._there: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        there = self._there.get(key)
        if there is None:
            return None
        self._there.move_to_end(key)
        return there[0]

    def keep(self, key: K, value: V, size: int) -> None:
        self.drop(key)
        self._there[key] = value, size
        self._size += size
        while self._size > self._most:
            self.drop(next(iter(self._there)))

    def __iter__(self) -> Iterator[K]:
        return iter(self._there)

    def drop(self, key: K) -> None:
        there = self._there.pop(key, None)
        self._size -= 0 if there is None else there[1]

    def drop_where(self, fits: Callable[[K], bool]) -> None:
        for key in [key for key in self._there if fits(key)]:
            self.drop(key)


__all__ = ["Recent"]

"""What is left of a coroutine that was begun where it was made."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any


class Rest:
    """What is left of a coroutine whose first part has been run: it stands where it waits for ``waiting``."""

    __slots__ = ("_waiting", "_work")

    def __init__(self, work: Coroutine[Any, Any, Any], waiting: Any) -> None:
        self._work = work
        self._waiting = waiting

    def __await__(self) -> Generator[Any, Any, Any]:
        work, waiting = self._work, self._waiting
        while True:
            try:
                yield waiting
            except GeneratorExit:
                work.close()  # which may have been done already, where both are thrown away together
                raise
            except BaseException as e:  # it belongs where the coroutine waits
                step: Callable[[Any], Any] = work.throw
                given: Any = e
            else:
                step, given = work.send, None
            try:
                waiting = step(given)
            except StopIteration as end:
                return end.value


__all__ = ["Rest"]

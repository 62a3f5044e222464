"""What is left of a coroutine that was begun where it was made."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Rest(Generic[T]):
    """What is left of a coroutine whose first part has been run: it stands where it waits for ``waiting``. It goes on in ``context``, where it has one of
    its own."""

    __slots__ = ("_context", "_waiting", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], waiting: Any, context: Context | None = None) -> None:
        self._work = work
        self._waiting = waiting
        self._context = context

    def __await__(self) -> Generator[Any, Any, T]:
        work, waiting, context = self._work, self._waiting, self._context
        while True:
            try:
                yield waiting
            except GeneratorExit:
                work.close() if context is None else context.run(work.close)  # which may have been done already, where both are thrown away together
                raise
            except BaseException as e:  # it belongs where the coroutine waits
                step: Callable[[Any], Any] = work.throw
                given: Any = e
            else:
                step, given = work.send, None
            try:
                waiting = step(given) if context is None else context.run(step, given)
            except StopIteration as end:
                value: T = end.value
                return value


__all__ = ["Rest"]

"""What is left of a coroutine that was begun where it was made."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


class Rest(Coroutine[Any, Any, T]):
    """What is left of a coroutine whose first part has been run: it stands where it waits for ``waiting``. It goes on in ``context``, where it has one of
    its own.

    A task may have it as it is: one that is cancelled before its first step has the coroutine cancelled where it stands. Wrapped in another one it would stay
    there, with what it holds, for as long as somebody knows of it.
    """

    __slots__ = ("_context", "_steps", "_waiting", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], waiting: Any, context: Context | None = None) -> None:
        self._work = work
        self._waiting = waiting
        self._context = context
        self._steps: Generator[Any, Any, T] | None = None

    def send(self, value: Any) -> Any:
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:
        if self._steps is None:
            self.send(None)
        assert self._steps is not None
        return self._steps.throw(*error)

    def close(self) -> None:
        if self._steps is None:
            self.send(None)
        assert self._steps is not None
        self._steps.close()

    def __await__(self) -> Generator[Any, Any, T]:
        work, waiting, context, self._waiting = self._work, self._waiting, self._context, None
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
            except BaseException:
                del waiting  # a future that failed keeps its error, whose traceback refers to this frame
                raise
            finally:
                del given  # so may an error that was thrown in


__all__ = ["Rest"]

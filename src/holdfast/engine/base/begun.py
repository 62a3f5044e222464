"""The remainder of a coroutine whose first part was run by its caller, before it had a task of its own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


class Rest(Coroutine[Any, Any, T]):
    """The remainder of a coroutine ``work`` whose first part has been run: the coroutine is suspended and waits for ``waiting``. It continues in
    ``context``, if one is given.

    A task can be made of it directly: if the task is cancelled before its first step, the cancellation reaches the coroutine where it is suspended. If
    this object were wrapped in another coroutine, ``work`` would stay suspended, with all that it holds, for as long as anything refers to it.
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
                work.close() if context is None else context.run(work.close)  # does nothing if both are garbage collected together and it is closed already
                raise
            except BaseException as e:  # raised in the coroutine, where it waits
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
                del waiting  # a failed future keeps its error, and the error's traceback refers to this frame
                raise
            finally:
                del given  # an error that was thrown in may refer to this frame as well


__all__ = ["Rest"]

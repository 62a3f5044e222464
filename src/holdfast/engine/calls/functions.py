"""Calls user code, as a coroutine or in a thread, under a timeout, and names it for the record.

Theory of operation. A coroutine is stepped by hand in its caller's task: the first part before a timer is set, the rest as the event loop resumes it. So the engine
sees whether the coroutine canceled its own task, whether it forked the process, and whether it continues after a cancel; such a coroutine is abandoned where it stands.
A thread is waited for until its time is up, and then abandoned. The outcome is a value, a failure of the step, a way out that is no failure (``ControlFlow``), or a
cancel from outside (X-24).
"""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import functools
import inspect
import os
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from types import CoroutineType, FunctionType, MethodType
from typing import Any, Generic, TypeVar

import msgspec

from holdfast import logs, machine
from holdfast.authoring import microseconds
from holdfast.core.errors import ConcurrentScope, StepTimeout
from holdfast.core.graph import DEFAULT_TIMEOUT_US
from holdfast.engine.base import failures, loopwatch, pool
from holdfast.engine.base.begun import Rest
from holdfast.engine.base.failures import ControlFlow, contain
from holdfast.engine.base.streams import Track

T = TypeVar("T")
LAMBDA = "<lambda>"
CLEANUP_SECONDS = 5.0  # how long a coroutine may clean up after a cancel
log = logs.logger("holdfast.run")


class Calling:
    """An attempt of a recorded call. ``tag`` follows the tag of the node's attempt: ``.<path>@<attempt>``; ``track``: the chunks that it emits."""

    __slots__ = ("number", "path", "tag", "track")
    tag: str

    def __init__(self, above: Calling | None, path: str, number: int) -> None:
        self.path = path
        self.number = number
        self.tag = f"{'' if above is None else above.tag}.{path}@{number}"
        self.track: Track | None = None


calling: contextvars.ContextVar[Calling | None] = contextvars.ContextVar("holdfast_calling", default=None)
"""The attempt of a recorded call inside which the code runs."""


@contextmanager
def attempting(path: str, attempt: int) -> Iterator[None]:
    """Makes what is emitted inside belong to this attempt of the call at this path."""
    token = calling.set(Calling(calling.get(), path, attempt))
    try:
        yield
    finally:
        calling.reset(token)


def refuse_beside(name: str, busy: Mapping[str, str]) -> ConcurrentScope:
    """Returns the error for a call without a key while others of its scope are running. ``busy``: their names by their paths. The call may be made by the code of one
    of them."""
    if (within := calling.get()) is not None and within.path in busy:
        around = busy[within.path]
        return ConcurrentScope(
            f"{around} makes the call of {name}, and it was itself given to a ctx call, which is recorded as a whole",
            hint=f"await {around}(…) as it is: then each ctx call that it makes is recorded",
        )
    return ConcurrentScope(
        f"the call of {name} began while {', '.join(busy.values())} of the same scope was under way",
        hint="await each call before the next, use ctx.gather, or give each call a key",
    )


class Patience:
    """How long user code may take: its ``own`` time counts from its start, the default time from its last progress (§10.10).

    While it is ``held``, its time does not count: one of its own calls is running and has its own time.
    """

    __slots__ = ("_held", "limit_us", "moved", "own")

    def __init__(self, limit_us: int, *, own: bool) -> None:
        self.limit_us = limit_us
        self.own = own
        self.moved = 0.0
        self._held = 0

    @classmethod
    def of(cls, timeout: dt.timedelta | float | None) -> Patience:
        """Returns the patience of a call: the given time, or the default."""
        return cls(microseconds(timeout, DEFAULT_TIMEOUT_US), own=timeout is not None)

    def move(self, now: float) -> None:
        self.moved = now

    def hold(self) -> None:
        self._held += 1

    def release(self, now: float) -> None:
        self._held -= 1
        if not self.own:
            self.moved = now

    def remaining(self, now: float) -> float:
        """Returns the seconds until the time is up, if there is no further progress."""
        limit = self.limit_us / 1_000_000
        return limit if self._held and not self.own else self.moved + limit - now

    def overdue(self, now: float, still: float) -> bool:
        """Whether the time is up after the code has blocked the event loop for so many seconds, so that no timer could fire."""
        if self.moved and (self.own or not self._held):
            return self.limit_us > 0 and self.remaining(now) <= 0
        return 0 < self.limit_us <= still * 1_000_000

    def over(self, what: str, more: str) -> StepTimeout:
        seconds = f"{self.limit_us / 1_000_000:g} s"
        if self.own:
            return StepTimeout(f"{what} took longer than {seconds}{more}", hint="raise its timeout= if it may take longer")
        hint = "set its timeout=, or call ctx.progress() while it works"
        return StepTimeout(f"{what} took longer than {seconds} without any progress{more}", hint=hint)


def name_of(function: Callable[..., Any]) -> str:
    """Returns the name under which a call is recorded."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None) or type(function).__name__
    return str(name)


def describe_function(function: Callable[..., Any], name: str) -> str:
    """Returns the name for people: a method with its class, a lambda with its line."""
    if name == LAMBDA:
        while isinstance(function, functools.partial):
            function = function.func
        code = function.__code__
        return f"lambda at {code.co_filename.replace(os.sep, '/').rpartition('/')[2]}:{code.co_firstlineno}"
    if type(function) is MethodType and not isinstance(function.__self__, type):
        return f"{type(function.__self__).__name__}.{name}"
    return name


def accepts_key(function: Callable[..., Any]) -> bool:
    """Whether a function asks for its effect's key (§6.3)."""
    try:
        return "idempotency_key" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def asynchronous(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    if type(function) is FunctionType and function.__code__.co_flags & inspect.CO_COROUTINE:
        return True  # the usual case; ``inspect`` takes longer
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))


async def call(function: Callable[..., Any], args: tuple[Any, ...], limit: int | Patience, what: str) -> Any:
    """Awaits a coroutine function, or runs a plain one in a thread.

    Raises:
        StepTimeout: its time is up; what a thread still does after that is fenced off (§10.10).
        StepFailure: the code raised something that is no Exception; that fails this step and does not end the process, which executes other runs too.
    """
    patience = limit if isinstance(limit, Patience) else Patience(limit, own=True)
    return await await_in_time(function(*args) if asynchronous(function) else _in_thread(function, args, what, patience), patience, what)


class First(msgspec.Struct):
    """A coroutine of user code whose first part, up to where it first waits, has already run.

    Either it has ended with ``value`` or ``error``, or ``work`` is the rest of it, which awaits ``waiting``. ``began``, ``cancelling`` and ``forks``: the clock, the cancel
    count of the task and the fork count of the process before it began.
    """

    began: float
    cancelling: int
    forks: int
    value: Any = None
    error: BaseException | None = None
    work: Coroutine[Any, Any, Any] | None = None
    waiting: Any = None

    def __await__(self) -> Generator[Any, Any, Any]:
        if self.error is not None:
            error, self.error = self.error, None
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame, which refers to this object
        if self.work is None:
            return self.value
        return (yield from Rest(self.work, self.waiting).__await__())


async def await_in_time(work: Coroutine[Any, Any, T] | First, limit: int | Patience, what: str) -> T:
    """Awaits a coroutine of user code for as long as its time lasts; zero means for ever. ``First``: a coroutine that began elsewhere and continues here.

    The first part, up to where the coroutine first waits, runs before a timer is set: no timer could end that part, and many nodes end in it, for which a timer would cost
    more than the node.

    Raises:
        StepTimeout, StepFailure: as ``call``.
    """
    task = asyncio.current_task()
    assert task is not None, "user code must be executed inside an asyncio task"
    if type(work) is First:
        began, before, forks = work.began, work.cancelling, work.forks
    else:
        began, before, forks = asyncio.get_running_loop().time(), task.cancelling(), machine.PROCESS.forks
    patience = limit if isinstance(limit, Patience) else Patience(limit, own=True)
    rest: Begun[T] | None = None
    try:
        rest = Begun(work if type(work) is CoroutineType else await_any(work), task, what, before, forks, patience)
        if not rest.over:
            await _within(rest, began)
    except Exception:
        if task.cancelling() > before:
            await _absorb(task, before, rest)
        raise
    except asyncio.CancelledError as e:
        caused = failures.count_own_cancels(task, before) if rest is None else rest.caused
        if task.cancelling() - caused > before and failures.was_asked(task):
            raise
        while task.cancelling() > before:
            task.uncancel()
        raise contain(e, what) from e
    except ControlFlow:
        raise
    except BaseException as e:
        if isinstance(e, GeneratorExit) and rest is not None and rest.closed:
            raise  # the awaiting coroutine is being closed from outside its task
        if task.cancelling() > before:
            await _absorb(task, before, rest)
        raise contain(_unwrap(e), what) from e
    else:
        if task.cancelling() > before and await _absorb(task, before, rest):
            raise contain(asyncio.CancelledError(), what)
        return rest.value
    finally:
        del task, rest  # a task keeps its error, whose traceback keeps this frame


async def _absorb(task: asyncio.Task[Any], before: int, rest: Begun[Any] | None) -> bool:
    """Removes a cancel that the step made itself and that would otherwise hit its task's next wait; returns whether there was one.

    Raises:
        CancelledError: the user pressed Ctrl-C meanwhile. It is passed on here, whatever the step made of it, because a run of computing steps may not wait again.
    """
    caused = failures.count_own_cancels(task, before) if rest is None else rest.caused
    if task.cancelling() - before > caused and not failures.did_we_cancel(task) and failures.was_interrupted():
        await asyncio.sleep(0)  # raises the cancel, unless the step has caught it already
        raise asyncio.CancelledError
    if caused <= 0:
        return False
    for _ in range(caused):
        task.uncancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        if task.cancelling() > before:
            raise
    return True


def _unwrap(error: BaseException) -> BaseException:
    """Returns the way out in an exception group that holds nothing else: a TaskGroup puts the wait of its branch into a group."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves, rest = error.split(ControlFlow)
    if leaves is None or rest is not None:
        return error
    found = _flat(leaves)
    return found[0].join(found[1:])


def _flat(group: BaseExceptionGroup[ControlFlow]) -> list[ControlFlow]:
    out: list[ControlFlow] = []
    for e in group.exceptions:
        out += _flat(e) if isinstance(e, BaseExceptionGroup) else [e]
    return out


async def await_any(work: Awaitable[T]) -> T:
    """Turns any awaitable into a coroutine."""
    return await work


async def _within(rest: Begun[T], began: float) -> None:
    patience = rest.patience
    if patience.limit_us <= 0:
        await rest
        return
    loop = asyncio.get_running_loop()
    patience.moved = max(patience.moved, began)
    scope = asyncio.timeout(None)
    limit = _Limit(loop, rest, scope)
    try:
        async with scope:
            await rest
    except TimeoutError:
        if scope.expired():
            raise patience.over(rest.what, rest.left_behind) from None
        raise
    finally:
        limit.end()


class _Limit:
    """Ends a scope once its time is up. The deadline is read again each time, because progress may have moved it."""

    __slots__ = ("_loop", "_rest", "_scope", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, rest: Begun[Any], scope: asyncio.Timeout) -> None:
        self._loop = loop
        self._rest = rest
        self._scope = scope
        self._timer = loop.call_later(rest.patience.remaining(loop.time()), self._look)

    def _look(self) -> None:
        if (left := self._rest.patience.remaining(self._loop.time())) > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._rest.told = True
            self._scope.reschedule(self._loop.time())

    def end(self) -> None:
        self._timer.cancel()


# Coroutines that continued after a cancel; kept, so that nothing cancels them again.
_abandoned: list[Generator[Any, Any, None]] = []


class Begun(Generic[T]):
    """A coroutine whose first part, up to where it first waits, has run in the caller's task: it is ``over`` with a ``value``, or must be awaited further. An error of the
    first part is raised at once.

    ``caused``: how many cancels of its task it made itself; ``told``: a timeout or the engine has canceled it. ``left_behind``: describes what of it still runs.
    """

    __slots__ = ("_forks", "_gives_up", "_steps", "_task", "_timer", "_waiting", "caused", "closed", "left_behind", "over", "patience", "told", "value", "what")
    value: T

    def __init__(self, work: Coroutine[Any, Any, T], task: asyncio.Task[Any], what: str, before: int, forks: int, patience: Patience) -> None:
        self.over = self.told = self.closed = self._gives_up = False
        self.left_behind = ""
        self._task = weakref.ref(task)  # a task keeps its error, whose traceback has frames that keep this object
        self.what = what
        self.patience = patience
        self._timer: asyncio.TimerHandle | None = None
        self._forks = forks
        self._steps = self._keep(work).__await__()
        try:
            self._waiting = next(self._steps, None)
            self.caused = failures.count_own_cancels(task, before) if task.cancelling() != before else 0
        finally:
            del task
            if loopwatch.struck:
                loopwatch.settle()
            if machine.PROCESS.forks != forks:
                machine.end_child(forks, what)

    async def _keep(self, work: Coroutine[Any, Any, T]) -> None:
        """Stores the value apart: a coroutine that returns None ends without an exception, which would cost more than all of this."""
        self.value = await work
        self.over = True

    def __await__(self) -> Generator[Any, Any, None]:
        steps, waiting, self._waiting = self._steps, self._waiting, None
        try:
            while not self.over:
                try:
                    yield waiting
                except BaseException as e:  # a cancel or a timeout is thrown in where the coroutine waits
                    if self._gives_up:
                        if (task := self._task()) is not None:
                            task.uncancel()  # the engine's own cancel, made in order to get here
                        del task
                        raise
                    self.closed = isinstance(e, GeneratorExit) and not self._stepping()
                    waiting = self._step(steps.throw, e)
                    if not self.over and isinstance(e, asyncio.CancelledError) and (self.told or failures.did_we_cancel(self._its_task())):
                        self._wait_no_longer()
                else:
                    waiting = self._step(steps.send, None)
        finally:
            del waiting  # a failed future keeps its error, whose traceback has this frame
            if self._timer is not None:
                self._timer.cancel()

    def _stepping(self) -> bool:
        """Whether the event loop is stepping its task now."""
        try:
            return asyncio.current_task() is self._task()
        except RuntimeError:
            return False

    def _step(self, go_on: Callable[[Any], Any], given: Any) -> Any:
        """Runs it until it next waits."""
        task = self._task()  # None: the task was dropped with its event loop, and its coroutine is being closed
        before = 0 if task is None else task.cancelling()
        try:
            try:
                return go_on(given)
            finally:
                if loopwatch.struck:
                    loopwatch.settle()
        except StopIteration:
            return None
        finally:
            if task is not None and (now := task.cancelling()) != before:
                self.caused = max(0, self.caused + (now - before if now < before else failures.count_own_cancels(task, before)))
            del task, given  # a thrown-in error has this frame in its traceback
            if machine.PROCESS.forks != self._forks:
                machine.end_child(self._forks, self.what)

    def _its_task(self) -> asyncio.Task[Any]:
        task = self._task()
        assert task is not None, "a task that is stepped is kept by its loop"
        return task

    def _wait_no_longer(self) -> None:
        """Handles a coroutine that continues after a cancel: it may clean up for a while, and is then abandoned where it stands."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CLEANUP_SECONDS, self._abandon)

    def _abandon(self) -> None:
        self._gives_up = True
        self.left_behind = f", and continued for {CLEANUP_SECONDS:g} s after it was canceled: it was abandoned"
        _abandoned.append(self._steps)
        log.warning("%s did not stop when it was canceled, and was abandoned", self.what)
        self._its_task().cancel()


async def _in_thread(function: Callable[..., Any], args: tuple[Any, ...], what: str, patience: Patience) -> Any:
    """Runs a plain callable in a thread, and awaits the result if that is awaitable, as with a lambda around a coroutine function."""
    loop = asyncio.get_running_loop()
    job = pool.Job(_call_carried, (function, args), what, lambda: patience.move(loop.time()))  # the time spent waiting for a free thread does not count
    try:
        value = await loop.run_in_executor(pool.Taking(job), _call_carried, function, args)
    except asyncio.CancelledError:
        if job.running:
            pool.current.get().give_up(job)
        raise
    return await value if inspect.isawaitable(value) else value


def _call_carried(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Calls a function and converts two errors. A future cannot carry a StopIteration, so its waiter would wait for ever; a GeneratorExit would look as if the waiter
    itself were closed."""
    try:
        return function(*args)
    except (StopIteration, GeneratorExit) as e:
        raise RuntimeError(f"a plain function raised {type(e).__name__}") from e


__all__ = ["Calling", "First", "Patience", "accepts_key", "asynchronous", "attempting", "await_any", "await_in_time", "call", "calling", "name_of"]

"""What may come out of a node: failures, as records and as exceptions made from records; ways out that are no failure; and cancels (§4.12, §14.3).

Code that caught a failure when it first happened catches it again on re-entry. A record keeps the frames of the user's own code: file, line,
function and the text of the line (§13.2). Frames of this package, and those of the standard library's task and thread code between them, mean
nothing to the user and are left out. Stored bytes name a class; they never determine what is imported or called. If a class of that name is
loaded already, an instance of it is made without calling its constructor; whatever an ``except`` clause can name is loaded. Otherwise
the failure becomes a StepFailure with the recorded code.

asyncio has the same cancel for every caller: the engine, somebody outside, and the step that runs in the task (X-24). A step that cancels its own
task, or raises a CancelledError that nobody asked for, has failed; only a cancel from outside ends the run's execution, and with it the
worker. So the engine marks the tasks that it cancels, and knows which tasks it has made: if such a task was cancelled neither by the engine nor
through the task it works for, its step cancelled it."""

from __future__ import annotations

import asyncio
import builtins
import concurrent.futures
import contextlib
import inspect
import linecache
import pathlib
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import holdfast
from holdfast.core.errors import ErrorValue, Frame, HoldfastError, RunFailed, RunWaiting, StepFailure, storable
from holdfast.core.status import TERMINAL, Status, parse
from holdfast.engine.base import failures
from holdfast.engine.base.loopwatch import Overdue
from holdfast.handle import Run
from holdfast.ports import Rested

MOST_FRAMES = 20
LONGEST_SOURCE = 200
_PACKAGE = pathlib.Path(inspect.getfile(holdfast)).resolve().parent
_OURS = tuple(f"{_PACKAGE / room}{suffix}" for room, suffix in (("engine", "/"), ("stores", "/"), ("core", "/"), ("workers", "/"), ("tools", "/"), ("runtime", ".py"), ("authoring", ".py")))
_MACHINERY = (
    *(str(pathlib.Path(inspect.getfile(m)).parent) + "/" for m in (asyncio, concurrent.futures)),
    *(inspect.getfile(m) for m in (threading, contextlib)),
)


def record(error: BaseException, where: str = "") -> ErrorValue:
    """Returns the record of a failure, with the frames of the user's code that led to it."""
    return ErrorValue.of(error, where, frames_of(error))


def frames_of(error: BaseException) -> tuple[Frame, ...]:
    """Returns the calls of the user's code that led to an exception, the outermost first. If there are many, only the first and the last ones."""
    found = []
    at = error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        if not code.co_filename.startswith((*_OURS, *_MACHINERY)):
            found.append((code.co_filename, at.tb_lineno or code.co_firstlineno, code.co_qualname, at.tb_frame.f_globals))
        at = at.tb_next
    if len(found) > MOST_FRAMES:
        found = found[: MOST_FRAMES // 2] + found[-MOST_FRAMES // 2 :]
    return tuple(Frame(storable(file), line, storable(name), _source(file, line, scope)) for file, line, name, scope in found)


def _source(file: str, line: int, scope: dict[str, Any]) -> str:
    return storable(linecache.getline(file, line, scope).strip())[:LONGEST_SOURCE]


def with_traceback(error: ErrorValue) -> Exception:
    """Makes the exception of a recorded failure, with a traceback that shows the recorded frames."""
    made = revive(error)
    tail: types.TracebackType | None = None
    try:
        for frame in reversed(error.frames):
            tail = types.TracebackType(tail, _standing(frame), -1, frame.line)  # -1: no instruction, so that the given line number is used
        return made.with_traceback(tail)
    finally:
        del made, tail  # the recorded frames refer to this frame, which called them


class _Recorded:
    """Gives the traceback module the recorded line if the file cannot be read any more."""

    def __init__(self, frame: Frame) -> None:
        self._text = "\n" * (frame.line - 1) + frame.source + "\n"

    def get_source(self, name: str) -> str:
        return self._text


def _standing(frame: Frame) -> types.FrameType:
    """Makes a frame with the recorded file and function. None of the recorded code is run."""
    code = compile("at()", frame.file or "?", "exec").replace(co_name=frame.function, co_qualname=frame.function, co_firstlineno=max(1, frame.line))
    kept: list[types.FrameType] = []
    scope: dict[str, Any] = {"at": _caller(kept), "__name__": "recorded", "__loader__": _Recorded(frame)}
    exec(code, scope)
    return kept.pop()  # popped, because the frame's globals refer to this list


def _caller(kept: list[types.FrameType]) -> Callable[[], None]:
    def at() -> None:
        frame = sys._getframe(1)
        kept.append(frame)

    return at


def revive(error: ErrorValue) -> Exception:
    """Makes the exception that a recorded failure stands for."""
    made = _make(_find_loaded(error.type), error)
    return made if made is not None else StepFailure(f"{error.type}: {error.message}", code=error.code, hint=error.hint)


def _find_loaded(name: str) -> type[Exception] | None:
    """Returns the exception class with this qualified name if it is loaded, else None."""
    found = getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, Exception):
        return found
    newest = None
    for cls in _below(Exception):
        if f"{cls.__module__}.{cls.__qualname__}" == name:
            newest = cls
    return newest


def _below(cls: type[Exception]) -> Iterator[type[Exception]]:
    seen = {cls}
    todo = [cls]
    while todo:
        for inner in todo.pop().__subclasses__():
            if inner not in seen:
                seen.add(inner)
                todo.append(inner)
                yield inner


def _make(cls: type[Exception] | None, error: ErrorValue) -> Exception | None:
    """Makes an instance that carries the message, through the builtin class that it derives from. None if that class needs more than a message."""
    if cls is None:
        return None
    base = next(c for c in cls.__mro__ if c.__module__ == "builtins")
    try:
        made: object = base.__new__(cls, error.message)  # type: ignore[arg-type]
    except TypeError:
        return None
    if not isinstance(made, Exception):
        return None
    made.args = (error.message,)
    if isinstance(made, HoldfastError):
        made.message, made.hint, made.code = error.message, error.hint, error.code
    return made


_RUN = asyncio.Runner.run.__code__
_told: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
_serving: weakref.WeakKeyDictionary[asyncio.Task[Any], weakref.ref[asyncio.Task[Any]]] = weakref.WeakKeyDictionary()


def cancel(task: asyncio.Task[Any]) -> None:
    """Cancels a task on behalf of the engine."""
    _told.add(task)
    task.cancel()


def uncancel(task: asyncio.Task[Any]) -> int:
    """Takes one cancel of the engine back; returns how many cancels remain."""
    _told.discard(task)
    return task.uncancel()


def did_we_cancel(task: asyncio.Task[Any]) -> bool:
    """Whether the engine has cancelled the task."""
    return task in _told


def count_own_cancels(task: asyncio.Task[Any], before: int) -> int:
    """Returns how many of the cancels that the current task got since it had ``before`` were made by the code that ran meanwhile.

    Ctrl-C does not count: ``asyncio.run`` cancels its main task, and all that this task waits for, in the middle of whatever code the signal interrupts.
    """
    made = max(0, task.cancelling() - before)
    return made - 1 if made and was_interrupted() else made


def was_interrupted() -> bool:
    """Whether SIGINT has cancelled the main task of the ``asyncio.Runner`` (``asyncio.run``) that is running.

    asyncio has no public function for this. The signal handler is no help either, if an application has installed its own, so the runner is looked up on the stack.
    """
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is _RUN:
            return getattr(frame.f_locals["self"], "_interrupt_count", 0) > 0
        frame = frame.f_back
    return False


def serve(task: asyncio.Task[Any], root: asyncio.Task[Any] | None = None) -> None:
    """Notes that the engine made this task and that it works for ``root`` (default: the current task): a cancel of ``root`` ends this task too."""
    root = root or asyncio.current_task()
    if root is not None:
        _serving[task] = weakref.ref(root)


def was_asked(task: asyncio.Task[Any]) -> bool:
    """Whether a cancel of this task came from outside its step: from the engine, or through the task it works for.

    Any cancel of a task that the engine has not made counts, because its maker may cancel it.
    """
    if task in _told:
        return True
    found = _serving.get(task)
    if found is None:
        return task.cancelling() > 0
    root = found()
    return root is None or root.done() or was_asked(root)


class ControlFlow(BaseException):
    """Leaves a node without being a failure of it: a wait, a fresh start, a halt. User code should never catch it."""

    def join(self, others: Sequence[ControlFlow]) -> ControlFlow:
        """Returns the way out of a node when several of its branches raised one: the first, unless a subclass decides otherwise."""
        return self


def find_ways_out(error: BaseException | None) -> Iterator[ControlFlow]:
    """Yields the ways out in an error, including those in exception groups."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from find_ways_out(each)
    elif isinstance(error, ControlFlow):
        yield error


def contain(error: BaseException, what: str) -> Exception:
    """Returns the failure of its step that a BaseException from user code counts as, so that it does not end a process that serves other runs.

    Raises:
        BaseException: the same one, if it is for the engine (``ControlFlow``), from somebody at the keyboard, or a cancel from outside.
    """
    try:
        if isinstance(error, Exception):
            return error
        if isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is not None and task.cancelling() and failures.was_asked(task):
                raise error
            while task is not None and task.cancelling():
                task.uncancel()
            return StepFailure(f"{what} raised a CancelledError although nobody had canceled it", code="cancelled_inside")
        if isinstance(error, ControlFlow | KeyboardInterrupt):
            raise error
        if isinstance(error, Overdue):
            return error.timeout
        if isinstance(error, SystemExit):
            return StepFailure(f"{what} called sys.exit({_show(error.code)})", code="system_exit")
        if isinstance(error, BaseExceptionGroup):
            if (pressed := error.subgroup(KeyboardInterrupt)) is not None:
                raise KeyboardInterrupt from pressed
            return StepFailure(f"{what} raised {type(error).__name__} of {len(error.exceptions)}: {'; '.join(map(_name, error.exceptions))}", code="base_exception")
        return StepFailure(f"{what} raised {_name(error)}", code="base_exception")
    finally:
        del error  # if it is raised, its traceback refers to this frame


def _name(error: BaseException) -> str:
    return f"{type(error).__name__}: {_show(error)}"


def _show(value: object) -> str:
    """Returns the text of a value, even if its ``__str__`` raises."""
    try:
        return str(value) if isinstance(value, BaseException) else repr(value)
    except KeyboardInterrupt:
        raise
    except BaseException as e:
        return f"(its text cannot be made: {type(e).__name__})"


def result_of(run: Run[Any] | Rested) -> Any:
    """Returns the result of a run.

    Raises:
        RunFailed: it has ended without a result.
        RunWaiting: it has not ended.
    """
    if not isinstance(run, Run):
        return _read_rested(run)
    if run.status is Status.COMPLETED:
        return run.result
    if run.status in TERMINAL:
        why = run.error.message if run.error is not None else run.stop_reason
        hint = "" if run.error is None else run.error.hint
        raise RunFailed(run, f"{run.run_id} ended {run.status}: {why}", hint=hint) from None if run.error is None else with_traceback(run.error)
    asked = "; ".join(w.prompt or w.name or w.kind for w in run.waits)
    asks = any(w.available_actions for w in run.waits)
    raise RunWaiting(run, f"{run.run_id} is waiting: {run.condition} ({asked})", hint="rt.waits() and holdfast waits show how to answer it" if asks else "")


def _read_rested(run: Rested) -> Any:
    """Returns the result of a run that another engine drove: its values, if it has completed (§4.16)."""
    status = parse(str(run.status))
    if status is Status.COMPLETED:
        return run.values
    if status in TERMINAL:
        raise RunFailed(run, f"the run ended {status}")
    raise RunWaiting(run, f"the run is not being executed: {status}")


__all__ = ["ControlFlow", "cancel", "contain", "did_we_cancel", "find_ways_out", "frames_of", "record", "revive", "serve", "uncancel", "was_asked", "with_traceback"]

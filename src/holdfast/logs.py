"""Committed events as records of the standard ``logging``, under ``holdfast.run``. Silent unless the application sets a handler.

A record says what happened, to which run and step, and with which code. It contains no value of the program, so that no secret
gets into a log. Of a decision that ends a run at most one record is a warning. The same facts are attributes of the record: ``event_type``, ``run_id``, ``seq``, ``step_id``, ``call``, ``attempt``,
``skill_id``, ``trace_id``, ``code``.
"""

from __future__ import annotations

import contextlib
import contextvars
import datetime as dt
import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from holdfast.core import events as ev
from holdfast.core import ids
from holdfast.core.commit import Commit
from holdfast.core.errors import ErrorValue
from holdfast.core.intents import Intent
from holdfast.core.visible import escape
from holdfast.meters import METERS

ROOT = logging.getLogger("holdfast")
ROOT.addHandler(logging.NullHandler())


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that does not fail if one of the application's handlers or filters raises: the error is printed as ``logging`` itself prints errors of
    handlers."""

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        return msg, {**kwargs, "extra": self.extra} if self.extra else kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        try:
            super().log(level, msg, *args, **kwargs)
        except Exception:
            if logging.raiseExceptions and sys.stderr is not None:
                with contextlib.suppress(OSError, ValueError):
                    traceback.print_exc()


def logger(name: str) -> SafeLogger:
    """Returns the library's logger with that name."""
    return SafeLogger(logging.getLogger(name), {})


LOG = logger("holdfast.run")

FIELDS = ("run_id", "seq", "step_id", "call", "attempt", "skill_id", "trace_id", "code")
QUIET = frozenset({"step.started", "checkpoint.saved", "run.claimed", "run.queued", "attempt.started"})
LOUD = frozenset(
    {"run.failed", "run.interrupted", "step.failed", "side_effect.unknown", "side_effect.failed", "attempt.lease_expired", "wait.timed_out", "budget.exceeded"}
)


def level_of(wire: str) -> int:
    """Returns the level of an event: WARNING if something went wrong, DEBUG if nothing was decided, else INFO."""
    return logging.WARNING if wire in LOUD else logging.DEBUG if wire in QUIET else logging.INFO


def has_listener() -> bool:
    """Whether anybody listens to commits that succeed: plain steps then get commits of their own, so that each is logged."""
    return bool(METERS) or LOG.isEnabledFor(logging.INFO)


_muted: contextvars.ContextVar[bool] = contextvars.ContextVar("holdfast_muted", default=False)


@contextlib.contextmanager
def mute() -> Iterator[None]:
    """Does not log the commits made within the block: for tests that end processes on purpose."""
    token = _muted.set(True)
    try:
        yield
    finally:
        _muted.reset(token)


LISTENERS: list[Callable[[Commit], None]] = []
"""Called with each commit that this process has made durable; for a line of plain steps, at the latest with its last one. A listener only notes the commit."""

SETTLED: list[Callable[[Intent], None]] = []
"""Called with each message that this process has settled, which the run's log does not contain. A listener only notes the message."""


def tell_settled(intent: Intent) -> None:
    """Tells the listeners the state of a message after it was settled."""
    for listener in SETTLED:
        listener(intent)


def log_commit(commit: Commit) -> None:
    """Logs the events of a commit that has become durable."""
    for listener in LISTENERS:
        listener(commit)
    for meter in METERS:
        meter.hear(commit)
    if not LOG.isEnabledFor(logging.INFO) and LOUD.isdisjoint([event.fact.wire for event in commit.events]):
        return  # nearly always true: usually nobody listens to commits that succeed
    if not LOG.isEnabledFor(logging.WARNING) or _muted.get():
        return
    run = commit.run
    ended = any(event.fact.wire == "run.failed" for event in commit.events)
    task = next((event.fact.task for event in commit.events if isinstance(event.fact, ev.StepFailed) and not event.fact.path), "")
    for event in commit.events:
        wire = event.fact.wire
        level = logging.INFO if ended and wire == "step.failed" else level_of(wire)
        if LOG.isEnabledFor(level):
            LOG.log(level, "%s %s%s", wire, run.run_id, _cause(event.fact, run, task) if level >= logging.WARNING else "", extra=_extra(event.fact, wire, run, event.seq))


def _cause(fact: Any, run: Any, task: str) -> str:
    """Returns what a warning is about: the step (``task``, if the fact names none), the kind of the error and where it was raised, or what
    ended the lease."""
    error = getattr(fact, "error", None)
    if isinstance(error, ErrorValue):
        at = f" at {error.frames[-1].file}:{error.frames[-1].line}" if error.frames else ""
        where = ".".join(x for x in (getattr(fact, "task", task), getattr(fact, "path", "")) if x)
        return f": {run.skill_id}{where and f' {where}'}, {error.type.rpartition('.')[2]}{at}"
    cause, owner = getattr(fact, "cause", ""), getattr(fact, "owner", "")
    return f": {cause}, {owner}" if isinstance(fact, ev.AttemptLeaseExpired) else f": {run.skill_id} {fact.task}" if getattr(fact, "task", "") else ""


def _extra(fact: Any, wire: str, run: Any, seq: int) -> dict[str, Any]:
    step, task = getattr(fact, "step", None), getattr(fact, "task", None)
    path = getattr(fact, "path", "")
    error = getattr(fact, "error", None)
    return {
        "event_type": wire,
        "run_id": run.run_id,
        "seq": seq,
        "step_id": ids.step_id(run.run_id, step, task, path) if isinstance(step, int) and isinstance(task, str) else None,
        "call": None if (call := getattr(fact, "call", None)) is None else call.name,
        "attempt": getattr(fact, "attempt", None),
        "skill_id": run.skill_id,
        "trace_id": run.trace_id,
        "code": error.code if isinstance(error, ErrorValue) else getattr(fact, "stop_reason", None) or None,
    }


class Text(logging.Formatter):
    """One line per record: time in UTC, level, what happened, and its attributes."""

    def format(self, record: logging.LogRecord) -> str:
        known = " ".join(f"{name}={_visible(value)}" for name in FIELDS[1:] if (value := getattr(record, name, None)) is not None)
        line = f"{_time(record)} {record.levelname.lower():7} {_visible(record.getMessage())}{' ' if known else ''}{known}"
        return line if record.exc_info is None else f"{line}\n{self.formatException(record.exc_info)}"


class Json(logging.Formatter):
    """One JSON object per record."""

    def format(self, record: logging.LogRecord) -> str:
        known = {name: value for name in ("event_type", *FIELDS) if (value := getattr(record, name, None)) is not None}
        shown: dict[str, Any] = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage(), **known}
        if record.exc_info is not None:
            shown["traceback"] = self.formatException(record.exc_info)
        return json.dumps(shown, default=str)


def _time(record: logging.LogRecord) -> str:
    return dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _visible(value: object) -> str:
    """Returns text with control characters escaped, so that one record stays one line."""
    return escape(str(value), lambda c: not c.isprintable())


class LastResort(logging.Handler):
    """Writes a record to standard error if no other handler shows it: for what the operator of a server must see, whatever logging is set up."""

    def emit(self, record: logging.LogRecord) -> None:
        if not _is_heard(logging.getLogger(record.name)):
            with contextlib.suppress(OSError, ValueError):  # standard error is closed
                sys.stderr.write(Text().format(record) + "\n")


def _is_heard(of: logging.Logger) -> bool:
    """Whether a logger or one of its parents has a handler that shows records."""
    at: logging.Logger | None = of
    while at is not None:
        if not all(isinstance(handler, logging.NullHandler | LastResort) for handler in at.handlers):
            return True
        at = at.parent if at.propagate else None
    return False


FORMATS: dict[str, type[logging.Formatter]] = {"text": Text, "json": Json}


def show(format: str, *, level: int = logging.INFO, out: TextIO | None = None) -> logging.Handler:
    """Writes what the library logs to ``out`` (standard error by default), as ``text`` or ``json``; returns the handler."""
    handler = logging.StreamHandler(out or sys.stderr)
    handler.setFormatter(FORMATS[format]())
    ROOT.addHandler(handler)
    ROOT.setLevel(level)
    return handler


__all__ = ["FORMATS", "LOG", "LastResort", "SafeLogger", "level_of", "log_commit", "logger", "mute", "show"]

"""``Context``: what a node may do, as people read and write it (§4.12, §5, §6).

The thin face of an ``Attempt``: each member says what it does and hands on to the module that does it. A wait leaves the node by ``Suspend``, a
BaseException that user code has no business catching; the node is entered again from its first line, and what it did through ``ctx`` is
answered from its record (``places``).
"""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import inspect
import logging
import os
import random as _random
import re
import sys
import threading
import traceback
import uuid as _uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import cached_property
from types import FunctionType
from typing import Any, NoReturn, ParamSpec, Protocol, TypeAlias, TypedDict, TypeVar, TypeVarTuple, Unpack, cast, overload

from holdfast import logs
from holdfast.authoring import Flow, Graph, State, Tool, microseconds
from holdfast.core import bounds, canon, ids
from holdfast.core.bounds import asked, check_arguments, function, lasting, mapping, people, text, variables, verb, word, words
from holdfast.core.checkpoint import IntentWrite, LedgerWrite, Task, TaskResult
from holdfast.core.effects import EffectClass, ReplayPolicy
from holdfast.core.errors import NotAwaited, UsageError
from holdfast.core.graph import DEFAULT_TIMEOUT_US, Node, Program
from holdfast.core.lease import counter
from holdfast.core.limits import check_name
from holdfast.core.masks import NOTHING, Mask, mask
from holdfast.core.retry import ONCE, Retry, coerce
from holdfast.core.run import Run
from holdfast.core.waits import OnTimeout
from holdfast.engine.base import loopwatch
from holdfast.engine.base.journal import Journal
from holdfast.engine.base.services import Services
from holdfast.engine.calls import children, scopes, steps
from holdfast.engine.calls import effects as performing
from holdfast.engine.calls import waits as waiting
from holdfast.engine.calls.attempt import Attempt, Restart
from holdfast.engine.calls.functions import Patience
from holdfast.engine.calls.tools import call_tool, find_tool
from holdfast.handle import Decision, when
from holdfast.ports import ToolOutcome, takes_statements

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
I = TypeVar("I")  # noqa: E741 - the item of a map
S = TypeVar("S", bound=State)
P = ParamSpec("P")
Ts = TypeVarTuple("Ts")
Made: TypeAlias = Coroutine[Any, Any, T]
"""A call that its node is to await."""
Duration = dt.timedelta | float | int | None


class AskOptions(TypedDict, total=False):
    """The options of ``Context.ask``, for type checkers."""

    show: Any
    who: str | Iterable[str] | None
    timeout: Duration
    on_deny: str
    on_timeout: str
    default: Any


class EffectOptions(TypedDict, total=False):
    """The options of ``Context.effect``, for type checkers."""

    key: str | None
    side_effects: str
    idempotent: bool
    replay: str | None
    verify: Callable[..., Any] | None
    undo: Callable[..., Any] | None
    retry: Retry | int | None
    timeout: Duration
    name: str | None
    show: Any
    limit: str | None


class ChildOptions(TypedDict, total=False):
    """The options of ``Context.child``, for type checkers."""

    on_parent_end: str
    timeout: Duration
    on_timeout: str
    thread_id: str | None
    key: str | None
    session_key: str | None
    lane: str | None
    queue: str | None
    priority: int | None
    job_id: str | None
    trace_id: str | None
    tags: Iterable[str] | None
    tenant_id: str | None
    target: str | None
    paused_lane: str | None
    recovery: str | None
    unattended: bool | None
    budgets: Mapping[str, float] | None


BOUNDED = lasting(low=1)
TIMED_OUT = word(*OnTimeout)


def check_node(value: Any, field: str) -> str | None:
    """A node's name; None for none."""
    return None if value is None else bounds.text(value, field)


def check_key(value: Any, field: str) -> str:
    """A key that may be empty: then the place names it."""
    return bounds.text(value, field, empty=True)


class MaskedLogger(logs.SafeLogger):
    """Hides secrets in what is logged."""

    def __init__(self, logger: logging.Logger, extra: Mapping[str, object], hidden: Mask) -> None:
        super().__init__(logger, extra)
        self._hidden = hidden

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if self._hidden.texts and self.isEnabledFor(level):
            record = logging.LogRecord("", level, "", 0, msg, args, None)  # it knows how messages and their arguments go together
            text = self._hidden.text(record.getMessage())
            if raised := _find_raised(kwargs.pop("exc_info", None)):
                text += "\n" + self._hidden.text("".join(traceback.format_exception(raised)).rstrip())
            msg, args = text, ()
        super().log(level, msg, *args, **kwargs)


def _find_raised(exc_info: object) -> BaseException | None:
    """The exception that a log call is to show, in whichever way it was given."""
    match exc_info:
        case BaseException():
            return exc_info
        case (_, BaseException() as error, _):
            return error
    return sys.exc_info()[1] if exc_info else None


def _count_holders(made: Sequence[tuple[str, object]]) -> int:
    """How many places hold the last one."""
    return sys.getrefcount(made[-1][1])


KEPT_HERE = _count_holders([("", object())])
"""The count of a call that nobody holds but the list of those that were made."""

_FIRST_WORD = re.compile(r"\s*(?:(?:--[^\n]*\n|/\*.*?\*/)\s*)*([A-Za-z]+)", re.DOTALL)
_CHANGES = ("INSERT", "UPDATE", "DELETE", "MERGE", "WITH", "SELECT")


class Context:
    """One attempt of one task, as its node sees it. Methods that must be awaited need an async node; all others also work in plain nodes.
    """

    def __init__(self, attempt: Attempt | None = None, hand: Hand | None = None) -> None:
        if attempt is not None:
            self._attempt = attempt
        self._hand = hand

    @cached_property
    def _attempt(self) -> Attempt:
        """Made when its code asks for more than what came with its task."""
        assert self._hand is not None, "a context is that of an attempt, or of a step in hand"
        return self._hand.ask()

    def _waits(self, what: str) -> None:
        """Refuses a member that waits where nothing can: in a plain node, or in a thread of its own."""
        if not self._attempt.plain:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                pass
            else:
                return
        name = self._attempt.node.name
        if self._attempt.plain:
            beneath = inspect.iscoroutinefunction(inspect.unwrap(self._attempt.node.call))
            hint = "a decorator has made it plain: make that decorator async" if beneath else f"make it async: async def {name}(…)"
            raise UsageError(f"ctx.{what} waits, and it was called outside the event loop, from plain code of {name}", hint=hint)
        raise UsageError(
            f"ctx.{what} waits, and a plain function called it: {name} has passed that function to another ctx call, which runs it in a thread",
            hint=f"await ctx.{what} in {name} itself; a function that is passed to ctx.map may make ctx calls if it is async",
        )

    def _make(self, verb: str, call: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Hands a call to the node, which is to await it. A coroutine counts as true, so the code may have taken one that it has thrown away for an
        answer: nothing is done after it."""
        made = self._attempt.made
        while made and inspect.getcoroutinestate(made[-1][1]) != inspect.CORO_CREATED:
            made.pop()
        if made and _count_holders(made) <= KEPT_HERE:
            call.close()
            forgotten, never = made.pop()
            never.close()
            raise NotAwaited(f"ctx.{forgotten} was called without await, before ctx.{verb}", hint=f"await ctx.{forgotten}(…)")
        made.append((verb, call))
        return call

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._attempt.number

    # -- facts about the attempt --------------------------------------------------------------------

    @property
    def run(self) -> Run:
        """The run record (§3.1), as of the last commit."""
        return self._attempt.journal.run

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._attempt.journal.run.run_id

    @property
    def step_id(self) -> str:
        """The id of the step: the run, the number of the super-step and the task."""
        return self._attempt.step_id

    @property
    def attempt_id(self) -> str:
        """The id of this attempt at the step."""
        return self._attempt.attempt_id

    @property
    def fence(self) -> int:
        """The fencing number: it grows each time a worker takes the run over. A receiver that stores the highest number it has seen can
        refuse requests from an outdated worker."""
        return counter(self._attempt.journal.fence)

    @property
    def idempotency_key(self) -> str:
        """A key for this step that stays the same in retries, after crashes and in replays (§6.3)."""
        return ids.step_id(self._attempt.journal.run.lineage_root, self._attempt.step, self._attempt.key, self._attempt.inner)

    @property
    def payload(self) -> Any:
        """The payload of the ``Send`` that started this task; None for a task that an edge started."""
        return self._attempt.payload if self._hand is None else self._hand.payload

    @property
    def deadline(self) -> dt.datetime | None:
        """The time at which this attempt times out, counted from the moment at which you read this property, by the worker's clock; None
        without a timeout. So read it at the beginning of the step."""
        return when(self._attempt.services.clock.now() + self._attempt.node.timeout_us) if self._attempt.node.timeout_us else None

    @property
    def scheduled_at(self) -> dt.datetime | None:
        """The scheduled time (slot) for which this run was started, UTC, even if it began late; None if no schedule started the run
        (§10.15)."""
        return None if self._attempt.journal.run.slot is None else when(self._attempt.journal.run.slot)

    @property
    def feedback(self) -> str | None:
        """The feedback that a person gave with ``retry_feedback``, in a step that runs again because of it; otherwise None (§5.5)."""
        return self._attempt.feedback

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that adds the ids of the run and the step to each message, and hides the values of secret channels (§13.5)."""
        extra = {"run_id": self.run_id, "step_id": self.step_id, "attempt_id": self.attempt_id}
        names, values = self._attempt.journal.run.secrets, self._attempt.journal.progress.checkpoint.values
        hidden = mask(names, [canon.reveal(canon.encode(canon.FrozenDict({n: values[n] for n in names if n in values})))]) if names else NOTHING
        return MaskedLogger(logging.getLogger("holdfast.run"), extra, hidden)

    # -- recorded steps -----------------------------------------------------------------------------

    @overload
    def step(
        self,
        fn: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        key: str | None = None,
        retry: Retry | int | None = None,
        timeout: Duration = None,
        name: str | None = None,
    ) -> Made[T]: ...

    @overload
    def step(
        self,
        fn: Callable[[*Ts], T],
        /,
        *args: *Ts,
        key: str | None = None,
        retry: Retry | int | None = None,
        timeout: Duration = None,
        name: str | None = None,
    ) -> Made[T]: ...

    @verb  # type: ignore[misc]
    def step(  # mypy does not match a TypeVarTuple with the Any of an implementation
        self, fn: Any, /, *args: Any, key: str | None = None, retry: Retry | int | None = None, timeout: Duration = None, name: str | None = None
    ) -> Coroutine[Any, Any, Any]:
        """Runs ``fn(*args)`` and records what it returns (§4.12). A recorded step is not run again in this run; a step that a crash
        interrupted is run again.

        Args:
            key: identifies the call by this key instead of by its position among the calls of its scope (the node, an item of ``map``, or a
                call of ``gather``).
            retry: the number of attempts including the first, or a ``Retry``; failures before a restart count too.
            timeout: timedelta or seconds, counted from the start of the call. By default the call fails after 60 s without progress.
            name: the name to record it under; by default the name of ``fn``.

        Calls with keys may run concurrently, in any order. A call without a key is refused with ``ConcurrentScope`` while another call of
        the same scope is running.

        Raises:
            RecordMismatch: another call is recorded at this position.
            StepTimeout: it took longer than ``timeout``.
        """
        self._waits("step")
        function(fn, "fn")
        return self._make("step", steps.step(self._attempt, fn, args, key=key, retry=coerce(retry), patience=Patience.of(timeout), name=name))

    @verb
    def progress(self, note: str = "") -> None:
        """Reports progress: the default timeout starts again from here (§10.10). This is not stored; ``note`` is logged.

        An explicit ``timeout=`` is not extended: it always counts from the start of the step.
        """
        self._attempt.move_on()
        if note:
            self.log.info("%s", note)

    def spend(self, **amounts: float) -> None:
        """Reports what this step has used of the run's budgets: ``ctx.spend(cost=0.02, tokens=1_500)``. Each call is counted once, even if
        the step runs again after a crash. When a budget is exceeded, a person is asked before the next step."""
        steps.spend(self._attempt, amounts)

    # -- several calls at once ----------------------------------------------------------------------

    @overload
    def gather(self, call: Awaitable[T], /) -> Made[list[T]]: ...

    @overload
    def gather(self, a: Awaitable[A], b: Awaitable[B], /) -> Made[tuple[A, B]]: ...

    @overload
    def gather(self, a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], /) -> Made[tuple[A, B, C]]: ...

    @overload
    def gather(self, a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], d: Awaitable[D], /) -> Made[tuple[A, B, C, D]]: ...

    @overload
    def gather(  # this one is not open from its first call on: mypy would hold it to be as good a match as those above, and give Any
        self, a: Awaitable[T], b: Awaitable[T], c: Awaitable[T], d: Awaitable[T], e: Awaitable[T], /, *calls: Awaitable[T]
    ) -> Made[list[T]]: ...

    def gather(self, *calls: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
        """Awaits several ctx calls concurrently; each has its own scope, so none needs a key. The results are a list, in the order of the calls.
        As with ``asyncio.gather``, a type checker takes two to four results for a tuple, so that each has its own type.

        If one call fails, the others finish first, so that their results are recorded; then the failure is raised. Signals that the others got are
        kept as in ``first_of``.
        """
        self._waits("gather")
        return self._make("gather", scopes.gather(self._attempt, calls, len(calls), "gather"))

    @overload
    def map(self, fn: Callable[[I], Awaitable[T]], items: Iterable[I], *, concurrency: int = 16) -> Made[list[T]]: ...

    @overload
    def map(self, fn: Callable[[I], T], items: Iterable[I], *, concurrency: int = 16) -> Made[list[T]]: ...

    @check_arguments(fn=function)
    def map(self, fn: Callable[[I], Any], items: Iterable[I], *, concurrency: int = 16) -> Coroutine[Any, Any, list[Any]]:
        """Calls ``step(fn, item)`` for every item, at most ``concurrency`` at the same time; the results are in the order of the items. An
        async ``fn`` may make ctx calls itself, and so may a lambda. They are recorded under its item, and a recorded item does not run again. If an item
        raises an error, those that have begun finish, no further one begins, and the error is raised."""
        self._waits("map")
        function = _await_calls_of(fn) if _makes_calls(fn) else None
        calls = [steps.item(self._attempt, fn, item, function) for item in items]
        return self._make("map", scopes.gather(self._attempt, calls, concurrency, "map"))

    def first_of(self, *calls: Awaitable[Any]) -> Coroutine[Any, Any, tuple[int, Any]]:
        """Returns ``(index, value)`` of the call that finishes first; the others are canceled. If that call failed, its error is raised.
        The choice is recorded, so it is the same if the step runs again.

        If several calls have their answers, the one whose answer came first wins, and a timer counts from when it fell due. The waits of the others are
        closed. A signal that one of them got is kept for the next ``ctx.wait`` of its name, unless its code went on to another ctx call after it."""
        self._waits("first_of")
        return self._make("first_of", scopes.first_of(self._attempt, calls))

    # -- questions, signals, timers, children -------------------------------------------------------

    @check_arguments(prompt=asked, who=people, redo=text, on_timeout=TIMED_OUT)
    def approve(
        self,
        prompt: str,
        *,
        show: Any = None,
        who: str | Iterable[str] | None = None,
        timeout: Duration = None,
        on_deny: str = "halt",
        on_timeout: str = "halt",
        default: Any = None,
        schema: Any = None,
        redo: str | None = None,
    ) -> Coroutine[Any, Any, Decision]:
        """Asks a person to approve; the run waits until somebody has approved or denied (§5).

        Args:
            prompt: the question.
            show: what is shown with the question.
            who: the people who may answer; by default anybody.
            timeout: timedelta or seconds, 7 days by default.
            on_deny: after a denial: ``halt`` ends the run; ``deliver`` returns the decision to the node.
            on_timeout: if nobody answers in time: ``halt`` ends the run, ``fail`` fails it, ``deliver`` returns the decision to the node,
                ``default`` returns it with ``default`` as its payload.
            default: the payload after a timeout with ``on_timeout="default"``.
            schema: a type. With it a person may edit what is approved: the ``payload`` of the decision has this type, or is None if nothing
                was edited. Without it nothing offers an edit.
            redo: with this option a person may also send the work back (``retry_feedback``). The node with this name, or this node with
                ``"node"``, then runs again and gets the feedback in ``ctx.feedback``.
        """
        self._waits("approve")
        options = {"show": show, "who": who, "timeout": timeout, "on_deny": on_deny, "on_timeout": on_timeout, "default": default}
        return self._make("approve", waiting.approve(self._attempt, prompt, schema, redo=redo, **options))

    @overload
    def ask(self, prompt: str, schema: type[T], **options: Unpack[AskOptions]) -> Made[T]: ...

    @overload
    def ask(self, prompt: str, schema: Any = None, **options: Unpack[AskOptions]) -> Made[Any]: ...

    @check_arguments(prompt=asked, who=people, on_timeout=TIMED_OUT)
    def ask(
        self,
        prompt: str,
        schema: Any = None,
        *,
        show: Any = None,
        who: str | Iterable[str] | None = None,
        timeout: Duration = None,
        on_deny: str = "halt",
        on_timeout: str = "halt",
        default: Any = None,
    ) -> Coroutine[Any, Any, Any]:
        """Asks a person for a value of the type ``schema`` and returns it. An answer of another type is refused, and the question stays
        open.

        With ``on_timeout="default"`` the call returns ``default`` if nobody answers in time. The other options are those of ``approve``.
        """
        self._waits("ask")
        options = {"show": show, "who": who, "timeout": timeout, "on_deny": on_deny, "on_timeout": on_timeout, "default": default}
        return self._make("ask", waiting.ask(self._attempt, prompt, schema, **options))

    @check_arguments(prompt=asked, who=people, redo=check_node, actions=people, on_timeout=TIMED_OUT)
    def handoff(
        self,
        prompt: str,
        *,
        verdict: str = "rejected",
        redo: str | None = "node",
        actions: str | Iterable[str] | None = None,
        show: Any = None,
        who: str | Iterable[str] | None = None,
        timeout: Duration = None,
        on_timeout: str = "halt",
        authoritative: bool = True,
    ) -> Coroutine[Any, Any, Decision]:
        """Shows a person a result that the program did not accept by itself. The person answers ``continue``, ``continue_with_waiver``,
        ``retry_feedback`` or ``halt`` (§5.5).

        ``verdict`` is the program's own judgement of the result. ``continue`` does not change it; the returned decision shows that a person
        overrode it.

        After ``retry_feedback`` the node named by ``redo`` runs again and gets the feedback in ``ctx.feedback``; ``"node"`` is this node.
        With ``redo=None`` the call returns the decision, so that you can write a loop of your own.

        ``actions`` are the answers that are offered, by default the four above. You may also name ``reject``, which fails the step. With
        ``authoritative=False`` an unattended run continues without asking.
        """
        self._waits("handoff")
        options = {"show": show, "who": who, "timeout": timeout, "on_timeout": on_timeout}
        return self._make("handoff", waiting.handoff(self._attempt, prompt, verdict=verdict, redo=redo, authoritative=authoritative, actions=actions, **options))

    @check_arguments(signal=bounds.check_signal, on_timeout=TIMED_OUT)
    def wait(self, signal: str, *, timeout: Duration = None, on_timeout: str = "halt", default: Any = None) -> Coroutine[Any, Any, Any]:
        """Waits for the signal with this name and returns its payload. A signal that came earlier is kept until it is asked for (§5.11).

        If it does not come within ``timeout`` (timedelta or seconds), ``on_timeout`` decides: ``halt`` ends the run, ``fail`` fails it,
        ``deliver`` and ``default`` return ``default``.
        """
        self._waits("wait")
        kind = "default" if on_timeout == "deliver" and default is not None else on_timeout
        return self._make("wait", waiting.signal(self._attempt, signal, timeout=timeout, on_timeout=kind, default=default))

    @check_arguments(duration=lasting())
    def sleep(self, duration: dt.timedelta | float) -> Coroutine[Any, Any, None]:
        """Waits for ``duration`` (timedelta or seconds). No process needs to run meanwhile, and a crash does not restart the timer."""
        self._waits("sleep")
        return self._make("sleep", waiting.sleep(self._attempt, duration))

    @overload
    def child(self, skill: Flow[P, T], inputs: Mapping[str, Any] | None = None, **options: Unpack[ChildOptions]) -> Made[T]: ...

    @overload
    def child(self, skill: Graph[S], inputs: Mapping[str, Any] | S | None = None, **options: Unpack[ChildOptions]) -> Made[S]: ...

    @overload
    def child(self, skill: str, inputs: Mapping[str, Any] | None = None, **options: Unpack[ChildOptions]) -> Made[Any]: ...

    @check_arguments(inputs=mapping, on_timeout=TIMED_OUT)
    def child(
        self,
        skill: Any,
        inputs: Mapping[str, Any] | None = None,
        *,
        on_parent_end: str = "cancel",
        timeout: Duration = None,
        on_timeout: str = "halt",
        thread_id: str | None = None,
        key: str | None = None,
        session_key: str | None = None,
        lane: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        job_id: str | None = None,
        trace_id: str | None = None,
        tags: Iterable[str] | None = None,
        tenant_id: str | None = None,
        target: str | None = None,
        paused_lane: str | None = None,
        recovery: str | None = None,
        unattended: bool | None = None,
        budgets: Mapping[str, float] | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Starts a child run, waits until it has ended, and returns a flow's value or a graph's state (§4.14).

        The options of the new run are those of ``Runtime.invoke``. So ``key`` is a request key, which all runs share: if another run has
        started a child under it, this call returns what that child returned. Children at several places of one run need none.

        With ``on_parent_end="keep"`` the child continues when its parent is canceled.

        Raises:
            ChildFailed: the child did not complete.
            LaneOfAncestor: the child would have to wait for this run or one of its own parents.
        """
        self._waits("child")
        said = {
            "thread_id": thread_id, "key": key, "session_key": session_key, "lane": lane, "queue": queue, "priority": priority, "job_id": job_id,
            "trace_id": trace_id, "tags": tags, "tenant_id": tenant_id, "target": target, "paused_lane": paused_lane, "recovery": recovery,
            "unattended": unattended, "budgets": budgets,
        }
        options = {name: value for name, value in said.items() if value is not None}
        return self._make("child", children.child(self._attempt, skill, inputs, options=options, on_parent_end=on_parent_end, timeout=timeout, on_timeout=on_timeout))

    @property
    def waivers(self) -> tuple[Decision, ...]:
        """The ``continue_with_waiver`` decisions that people made in this run, oldest first; they are kept after a restart (§5.5)."""
        return tuple(Decision.of(d) for d in self._attempt.journal.run.waivers)

    # -- effects, outgoing messages, ledger ---------------------------------------------------------

    @overload
    def effect(self, fn: Callable[..., Awaitable[T]], /, *args: Any, **options: Unpack[EffectOptions]) -> Made[T]: ...

    @overload
    def effect(self, fn: Callable[..., T], /, *args: Any, **options: Unpack[EffectOptions]) -> Made[T]: ...

    @check_arguments(fn=function, timeout=BOUNDED, side_effects=word(*EffectClass), replay=word(*ReplayPolicy), limit=check_name)
    def effect(
        self,
        fn: Callable[..., Any],
        /,
        *args: Any,
        key: str | None = None,
        side_effects: str = "external_action",
        idempotent: bool = False,
        replay: str | None = None,
        verify: Callable[..., Any] | None = None,
        undo: Callable[..., Any] | None = None,
        retry: Retry | int | None = None,
        timeout: Duration = None,
        name: str | None = None,
        show: Any = None,
        limit: str | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Carries out a side effect: the attempt is recorded before ``fn`` is called, the result after it (§6). Returns what ``fn``
        returned.

        Args:
            key: with a key the effect is carried out only once across runs; by default the key is made from this run and the position of the call
                in it. A replay uses the keys of the run that it replays; a fork has keys of its own.
            side_effects: ``write`` or ``external_action``; ``none`` and ``read`` are plain steps.
            idempotent: the receiver ignores a repeated key, so after a crash the effect is carried out again with the same key.
            replay: what a replay, or another run with the same key, does with the recorded result: ``use_recorded_result``, ``reexecute``
                or ``require_human`` (§6.6).
            verify: a function that finds out whether the effect of an interrupted attempt happened: ``verify(key, *args)`` returns ``Happened(result)``,
                ``Absent()`` or ``Unknown()``.
            undo: ``undo(result, *args)`` undoes the effect if the run fails or is canceled (§6.11).
            retry: the number of attempts including the first. Only an idempotent effect is retried automatically; for any other a person is
                asked.
            timeout: timedelta or seconds, counted from the start of the call; by default 60 s without progress. After a timeout the outcome is
                unknown.
            name: the name to record it under; by default the name of ``fn``.
            show: what is shown to a person who is asked about the effect; by default its arguments.
            limit: the name of the limit that the call counts against (§10.11).

        Raises:
            EffectConflict: the key was already used with another request.
            EffectInProgress: another run has been carrying out the effect for longer than its timeout.
            EffectFailed: the effect was not allowed, or a person abandoned it. An error that ``fn`` raises is raised as it is.
        """
        self._waits("effect")
        options = performing.Options(
            key=key, side_effects=side_effects, idempotent=idempotent, replay=replay, verify=verify, undo=undo,
            timeout_us=DEFAULT_TIMEOUT_US if timeout is None else microseconds(timeout, DEFAULT_TIMEOUT_US),
            retry=ONCE if retry is None else coerce(retry), timed=timeout is not None,
            name="" if name is None else bounds.text(name, "name"), show=show, limit=limit,
        )
        return self._make("effect", performing.perform(self._attempt, fn, args, options))

    @check_arguments(tool=find_tool, args=words, timeout=BOUNDED, check=bounds.flag, replay=word(*ReplayPolicy), env=variables)
    def tool(
        self,
        tool: str | Tool,
        /,
        args: Sequence[str] | str = (),
        *,
        cwd: str | os.PathLike[str] | None = None,
        input: Any = None,
        env: Mapping[str, str] | None = None,
        paths: Sequence[str | os.PathLike[str]] = (),
        check: bool = True,
        timeout: Duration = None,
        key: str | None = None,
        retry: Retry | int | None = None,
        replay: str | None = None,
        verify: Callable[..., Any] | None = None,
        undo: Callable[..., Any] | None = None,
        name: str | None = None,
    ) -> Coroutine[Any, Any, ToolOutcome]:
        """Runs a tool through the ToolRunner and returns its outcome: ``(await ctx.tool("git", ["log"])).stdout`` (§11).

        A tool that only reads is a recorded step. Any other tool, and every tool that is not declared, is an effect.

        Args:
            cwd: the folder in which the tool runs; it must be inside ``Runtime(workspace=…)``.
            input: a value that is passed as JSON on standard input.
            env: environment variables that are added.
            paths: the files that the tool uses; they must be inside ``Runtime(workspace=…)``.
            check: whether an exit code other than 0 is a failure; with False the outcome is returned.
            name: the name to record it under; by default the name of the tool.

        The other options are those of ``effect``.

        Raises:
            ToolFailed: the exit code is not 0, or a postcondition does not hold.
            ToolMissing: the tool is not registered, or its command cannot be run.
            TooLarge: the system does not take so long an argument, or so many.
            PathOutsideWorkspace: ``cwd`` or one of ``paths`` is outside the workspace.
            StepTimeout: the tool ran longer than ``timeout``.
        """
        self._waits("tool")
        return self._make(
            "tool",
            call_tool(
                self._attempt, tool, args, cwd=cwd, input=input, env=env or {}, paths=paths, check=check, timeout=timeout, key=key, retry=retry,
                replay=replay, verify=verify, undo=undo, name="" if name is None else bounds.text(name, "name"),
            ),
        )

    @check_arguments(key=check_key)
    def send(self, type: str, payload: Any, *, key: str = "", order: str = "") -> None:
        """Creates an outgoing message (intent) that is sent after the step has committed, never before (§9.1).

        Args:
            type: the type of the message, which selects the transport.
            payload: the content.
            key: a key that the receiver gets; by default one is made from this step.
            order: messages with the same type and ``order`` are sent strictly one after another.
        """
        self._attempt.intents.append(IntentWrite(type, canon.pack(payload, "intent")[1], key, order))

    @check_arguments(key=check_key)
    def record(self, topic: str, key: str, data: Any) -> None:
        """Stores a ledger row ``(topic, key, data)`` in the commit of the step (§9.6). ``Runtime.ledger`` lists the rows."""
        self._attempt.ledger.append(LedgerWrite(topic, key, canon.pack(data, "ledger")[1]))

    @check_arguments(statement=asked)
    def sql(self, statement: str, params: Sequence[Any] | Mapping[str, Any] = ()) -> None:
        """Runs an SQL statement on the application's own tables in the same PostgreSQL database. It is committed together with the step's
        writes, or not at all (§9.6).

        The placeholders are those of psycopg: ``%s``, or ``%(name)s`` if ``params`` is a mapping. A mapping among the parameters is passed
        as jsonb. A replay does not run the statement again, unless it is made with ``effects="reexecute"``; a fork runs it again.

        Raises:
            UsageError: the store is not a PostgreSQL database, or the statement does not begin with ``INSERT``, ``UPDATE``, ``DELETE``,
                ``MERGE``, ``WITH`` or ``SELECT``.
            Unserializable, TooLarge: the parameters cannot be stored.
        """
        if (word := _FIRST_WORD.match(statement)) is None or word.group(1).upper() not in _CHANGES:
            raise UsageError(f"{statement.strip()[:40]!r} is not a statement that ctx.sql allows", hint=f"one of {', '.join(_CHANGES)}; one statement a call")
        if isinstance(params, str | bytes) or not isinstance(params, Sequence | Mapping):
            raise bounds.wrong("params", "a list of values, or a mapping", params)
        data = canon.pack(dict(params) if isinstance(params, Mapping) else list(params), "params")[1]
        if not takes_statements(self._attempt.services.store):
            raise UsageError(f"{self._attempt.services.store.url} does not support ctx.sql", hint="ctx.sql is for PostgreSQL; ctx.record keeps rows in every store")
        self._attempt.ledger.append(LedgerWrite("", "", data, statement))

    @verb
    def emit(self, value: Any) -> None:
        """Sends a provisional chunk to all readers that stream the run (``Runtime.stream``). It is kept until the result of the step
        replaces it (§13.6).

        The chunk belongs to the attempt of the node, or of the recorded call, during which it is emitted. A mapping with ``role`` and
        ``content`` is a piece of a message.

        Raises:
            Unserializable, TooLarge: a chunk can hold what a channel can hold, up to 4 MiB.
        """
        self._attempt.emit(value)

    @verb
    def report(self, outcome: str) -> None:
        """Sets the outcome of this step to ``degraded`` or ``skipped: why``; without this call it is ``ok``. A node with ``delivers=True``
        reports the outcome of its delivery: ``delivered``, ``no_change`` or ``rejected`` (§5.16).

        Any other value means that the step did not complete (§4.11).
        """
        self._attempt.outcome = outcome

    # -- recorded time and random numbers -----------------------------------------------------------

    def now(self) -> dt.datetime:
        """The current time, recorded: it is the same if the step runs again."""
        return cast("dt.datetime", steps.value(self._attempt, "now", lambda: when(self._attempt.services.clock.now())))

    def random(self) -> float:
        """A random number in [0, 1), recorded: it is the same if the step runs again."""
        return cast("float", steps.value(self._attempt, "random", lambda: _random.Random(self._attempt.services.entropy()).random()))

    def uuid(self) -> _uuid.UUID:
        """A random UUID, recorded: it is the same if the step runs again."""
        return cast("_uuid.UUID", steps.value(self._attempt, "uuid", lambda: _uuid.UUID(int=self._attempt.services.entropy() % (1 << 128), version=4)))

    def restart(self, **inputs: Any) -> NoReturn:
        """Ends this pass of a long flow and restarts the flow with other inputs, in the same run; does not return.

        The flow's recorded calls are dropped: the next pass starts from these inputs with an empty record.
        """
        self._attempt.places.leave()
        self._attempt.restarting = True
        raise Restart(inputs)


_asking = threading.Lock()


class Face(loopwatch.Placed, Protocol):
    """Gives the context of a step to code that asks for it, and identifies the step."""

    def __call__(self) -> Context: ...


class Given:
    """The ``Face`` of an attempt that exists already."""

    __slots__ = ("_attempt",)

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def __call__(self) -> Context:
        return Context(self._attempt)

    @property
    def patience(self) -> Patience:
        return self._attempt.patience

    @property
    def step_id(self) -> str:
        return self._attempt.step_id


class Hand:
    """The current step while its node is called without an ``Attempt``, and its ``Face``: an attempt is created when the node's code asks for one. ``asked`` holds it.
    ``ended``: the node's code has ended; an attempt that code which it left running asks for is closed from the start."""

    __slots__ = ("_key", "_loop", "_number", "_path", "_patience", "_program", "_services", "_state", "asked", "ended", "journal", "node", "task")

    def __init__(self, services: Services, journal: Journal, program: Program, loop: asyncio.AbstractEventLoop) -> None:
        self._services = services
        self.journal = journal
        self._program = program
        self._loop = loop  # code in a thread may be the first to ask for the attempt
        self.asked: list[Attempt] = []
        self.ended = False
        self._key, self._path, self._number = "", "", 1

    def at(self, key: str, path: str, number: int) -> None:
        """Sets the number of the attempt; ``key`` and ``path``: the position of the step, if it is not a task of the run."""
        self._key, self._path, self._number = key, path, number

    def take(self, node: Node, task: Task, state: State) -> None:
        """Makes a step the current one, with the state that it sees."""
        self.node, self.task, self._state = node, task, state
        self._patience: Patience | None = None

    def drop(self) -> None:
        """Ends the current step; what its node was given can be freed unless its code has kept it."""
        del self._state

    def again(self) -> None:
        """Prepares another call of the node's code, with a new attempt."""
        self.asked.clear()
        self.ended = False

    def send_back(self, target: str | None, feedback: str) -> TaskResult | None:
        """Returns the result with which the step ends because a person sent ``target`` back. None if ``target`` is this step itself, which then runs again with their feedback."""
        at = self.asked[0]
        if target is None:
            waiting.close_round(at)
            at.send_back(feedback)
            return None
        return TaskResult(self.task.key, goto=(target,), feedback=canon.pack(feedback, "feedback")[1], attempt=self._number, ledger=tuple(at.ledger))

    @property
    def what(self) -> str:
        return self.node.name

    @property
    def key(self) -> str:
        return self._key or self.task.key

    @property
    def payload(self) -> Any:
        return None if self.task.payload is None else canon.decode(self.task.payload)

    @property
    def step_id(self) -> str:
        return ids.step_id(self.journal.run.run_id, self.journal.progress.checkpoint.step_of(self.key), self.key, self._path)

    @property
    def patience(self) -> Patience:
        """The step's patience, for reading; any thread may read it."""
        return self._patience or Patience(self.node.timeout_us, own=self.node.timed)

    def time(self) -> Patience:
        """The step's patience, created if it does not exist yet."""
        if self._patience is None:
            self._patience = self.patience
        return self._patience

    def attempt(self) -> Attempt:
        """Returns a new attempt, which becomes the one that was asked for."""
        at = Attempt(
            self._services, self.journal, self.node, self.task, number=self._number, key=self.key, inner=self._path, program=self._program, state=self._state,
            patience=self.time(), loop=self._loop,
        )
        self.asked[:] = [at]
        return at

    def ask(self) -> Attempt:
        """Returns the attempt that the node's code has asked for, and creates it the first time."""
        with _asking:  # several threads of the node may ask at once
            if not self.asked:
                at = self.attempt()
                at.plain = not self.node.asynchronous
                if self.ended:
                    at.close()
                else:
                    self.journal.safe_points.enter(at.key, at)
            return self.asked[0]

    def __call__(self) -> Context:
        return Context(hand=self)


face: contextvars.ContextVar[Face | None] = contextvars.ContextVar("holdfast_face", default=None)
"""Gives the context of the node that is running this code; set while the node's own call lasts."""


def current() -> Context | None:
    """Returns the context of the node that is running this code, also in a thread that the node started for it; None outside of a node."""
    found = face.get()
    return None if found is None else found()


def _makes_calls(fn: Callable[..., Any]) -> bool:
    """Whether a plain function is meant to make ctx calls for its caller to await: a lambda that refers to a context, because a lambda cannot be async."""
    return type(fn) is FunctionType and fn.__name__ == "<lambda>" and Context in map(type, inspect.getclosurevars(fn).nonlocals.values())


def _await_calls_of(fn: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
    """Returns the async function that such a lambda stands for."""

    async def awaiting(item: Any) -> Any:
        made = fn(item)
        return await made if inspect.isawaitable(made) else made

    return awaiting


def whose(context: contextvars.Context) -> Face | None:
    """Returns the step whose code runs in that context; None if it is no step's."""
    return context.get(face)


__all__ = ["Context", "Face", "Given", "Hand", "current", "face", "whose"]

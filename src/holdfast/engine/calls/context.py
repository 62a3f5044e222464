"""``Context``: what a node may do, as people read and write it (§4.12, §5, §6).

The thin face of an ``Attempt``: each member says what it does and hands on to the module that does it. A wait leaves the node by ``Suspend``, a
BaseException that user code has no business catching; the node is entered again from its first line, and what it did through ``ctx`` is
answered from its record (``places``).
"""

from __future__ import annotations

import contextvars
import datetime as dt
import logging
import os
import random as _random
import re
import sys
import traceback
import uuid as _uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeVar, TypeVarTuple, cast, overload

from holdfast import logs
from holdfast.authoring import Tool, microseconds
from holdfast.core import bounds, canon, ids
from holdfast.core.arguments import asked, checked, function, lasting, mapping, people, variables, verb, word, words
from holdfast.core.bounds import text
from holdfast.core.checkpoint import IntentWrite, LedgerWrite
from holdfast.core.effects import EffectClass, ReplayPolicy
from holdfast.core.errors import UsageError
from holdfast.core.graph import DEFAULT_TIMEOUT_US
from holdfast.core.lease import counter
from holdfast.core.limits import own_name
from holdfast.core.masks import NOTHING, Mask, mask
from holdfast.core.retry import Retry, coerce
from holdfast.core.run import Run
from holdfast.core.waits import OnTimeout
from holdfast.engine.base import blocked
from holdfast.engine.calls import effects as performing
from holdfast.engine.calls import scopes, steps
from holdfast.engine.calls import waits as waiting
from holdfast.engine.calls.attempt import Attempt, Restart
from holdfast.engine.calls.functions import Patience
from holdfast.engine.calls.tools import call_tool, named_tool
from holdfast.handle import Decision, when
from holdfast.ports import ToolOutcome, takes_statements

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741 - the item of a map
Ts = TypeVarTuple("Ts")
Duration = dt.timedelta | float | int | None


BOUNDED = lasting(low=1)
TIMED_OUT = word(*OnTimeout)


def named_node(value: Any, field: str) -> str | None:
    """A node's name; None for none."""
    return None if value is None else bounds.text(value, field)


def named(value: Any, field: str) -> str:
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
            if raised := _raised(kwargs.pop("exc_info", None)):
                text += "\n" + self._hidden.text("".join(traceback.format_exception(raised)).rstrip())
            msg, args = text, ()
        super().log(level, msg, *args, **kwargs)


def _raised(exc_info: object) -> BaseException | None:
    """The exception that a log call is to show, in whichever way it was given."""
    match exc_info:
        case BaseException():
            return exc_info
        case (_, BaseException() as error, _):
            return error
    return sys.exc_info()[1] if exc_info else None


_FIRST_WORD = re.compile(r"\s*(?:(?:--[^\n]*\n|/\*.*?\*/)\s*)*([A-Za-z]+)", re.DOTALL)
_CHANGES = ("INSERT", "UPDATE", "DELETE", "MERGE", "WITH", "SELECT")


class Context:
    """One attempt of one task, as its node sees it. Members that wait are for async nodes; the others serve both."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._attempt.number

    # -- facts about where we are -------------------------------------------------------------------

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
        """The lease's counter: a receiver that keeps the highest one seen can refuse a late worker."""
        return counter(self._attempt.journal.fence)

    @property
    def idempotency_key(self) -> str:
        """A key for this step that survives retries, crashes and replays (§6.3)."""
        return ids.step_id(self._attempt.journal.run.lineage_root, self._attempt.step, self._attempt.key, self._attempt.inner)

    @property
    def payload(self) -> Any:
        """What a ``Send`` gave this task; None for a task that came by an edge."""
        return self._attempt.payload

    @property
    def deadline(self) -> dt.datetime | None:
        """When this attempt times out if it begins now, by the worker's clock; None without a timeout."""
        return when(self._attempt.services.clock.now() + self._attempt.node.timeout_us) if self._attempt.node.timeout_us else None

    @property
    def scheduled_at(self) -> dt.datetime | None:
        """The slot of the schedule for which this run runs, however late it began; None if somebody else started it (§10.15)."""
        return None if self._attempt.journal.run.slot is None else when(self._attempt.journal.run.slot)

    @property
    def feedback(self) -> str | None:
        """What a person asked to be changed, in a step that is done again after ``retry_feedback`` (§5.5)."""
        return self._attempt.feedback

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that carries the run's and step's ids, and hides what stands in secret channels (§13.5)."""
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
    ) -> Coroutine[Any, Any, T]: ...

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
    ) -> Coroutine[Any, Any, T]: ...

    @verb  # type: ignore[misc]
    def step(  # mypy does not match a TypeVarTuple with the Any of an implementation
        self, fn: Any, /, *args: Any, key: str | None = None, retry: Retry | int | None = None, timeout: Duration = None, name: str | None = None
    ) -> Coroutine[Any, Any, Any]:
        """Runs ``fn(*args)`` once in the life of the run and records what it returns (§4.12).

        Args:
            key: frees the call from its position among its siblings.
            retry: attempts in all, or a ``Retry``; failures are counted across restarts.
            timeout: seconds or timedelta, 60 s by default.
            name: under which it is on record, if not that of ``fn``.

        Calls with keys may be begun at once, in any order; one without a key is refused while another of its scope is in flight.

        Raises:
            RecordMismatch: another call is on record at this place.
            StepTimeout: it took longer than ``timeout``.
        """
        steps.waits(self._attempt, "step")
        if not callable(fn):
            raise bounds.wrong("fn", "a function", fn)
        return steps.step(self._attempt, fn, args, key=key, retry=coerce(retry), patience=Patience.of(timeout), name=name)

    @verb
    def progress(self, note: str = "") -> None:
        """Says that this step gets on: a default timeout counts anew from here (§10.10). Nothing of it is durable; ``note`` is logged.

        A ``timeout=`` of one's own counts from the start, whatever is said here.
        """
        self._attempt.moved_on()
        if note:
            self.log.info("%s", note)

    def spend(self, **amounts: float) -> None:
        """Says what this step has used of the run's budgets: ``ctx.spend(cost=0.02, tokens=1_500)``. Counted once."""
        steps.spend(self._attempt, amounts)

    # -- scopes -------------------------------------------------------------------------------------

    def gather(self, *calls: Awaitable[T]) -> Coroutine[Any, Any, list[T]]:
        """Awaits several ctx calls at once; each has a scope of its own. Results come in the order given.

        When one fails, the others end first, so that what they finish is on record; then the failure is raised.
        """
        steps.waits(self._attempt, "gather")
        return scopes.gather(self._attempt, calls, len(calls), "gather")

    @overload
    def map(self, fn: Callable[[I], Awaitable[T]], items: Iterable[I], *, concurrency: int = 16) -> Coroutine[Any, Any, list[T]]: ...

    @overload
    def map(self, fn: Callable[[I], T], items: Iterable[I], *, concurrency: int = 16) -> Coroutine[Any, Any, list[T]]: ...

    @checked(fn=function)
    def map(self, fn: Callable[[I], Any], items: Iterable[I], *, concurrency: int = 16) -> Coroutine[Any, Any, list[Any]]:
        """``step(fn, item)`` for every item, at most ``concurrency`` at once; results in the order of the items. An async ``fn`` may itself make
        ctx calls, which stand beneath its item: an item that is on record is not gone through again."""
        steps.waits(self._attempt, "map")
        calls = [steps.item(self._attempt, fn, item) for item in items]
        return scopes.gather(self._attempt, calls, concurrency, "map")

    def first_of(self, *calls: Awaitable[Any]) -> Coroutine[Any, Any, tuple[int, Any]]:
        """The (index, value) of the call that is done first; the others are given up. Recorded: it is the same again later."""
        steps.waits(self._attempt, "first_of")
        return scopes.first_of(self._attempt, calls)

    # -- waits --------------------------------------------------------------------------------------

    @checked(prompt=asked, who=people, redo=text, on_timeout=TIMED_OUT)
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
        """Asks a person to approve; the run rests until somebody has (§5).

        A denial or a timeout halts the run, unless ``on_deny="deliver"`` or ``on_timeout="deliver"`` hands it to the
        node. ``timeout`` is 7 days by default. The decision may carry edited arguments as ``payload``, which must fit
        ``schema``, a type, if one is given. With ``redo`` a person may also send it back (``retry_feedback``): the node named there,
        or ``"node"`` for this very one, is done again and finds the words in ``ctx.feedback``.
        """
        steps.waits(self._attempt, "approve")
        options = {"show": show, "who": who, "timeout": timeout, "on_deny": on_deny, "on_timeout": on_timeout, "default": default}
        return waiting.approve(self._attempt, prompt, schema, redo=redo, **options)

    @checked(prompt=asked, who=people, on_timeout=TIMED_OUT)
    def ask(
        self,
        prompt: str,
        schema: type[T] | None = None,
        *,
        show: Any = None,
        who: str | Iterable[str] | None = None,
        timeout: Duration = None,
        on_deny: str = "halt",
        on_timeout: str = "halt",
        default: Any = None,
    ) -> Coroutine[Any, Any, T]:
        """Asks a person for a value of the type ``schema``. An answer that does not fit is refused and the question stays open.

        With ``on_timeout="default"`` the step gets ``default`` when nobody answers in time.
        """
        steps.waits(self._attempt, "ask")
        options = {"show": show, "who": who, "timeout": timeout, "on_deny": on_deny, "on_timeout": on_timeout, "default": default}
        return waiting.ask(self._attempt, prompt, schema, **options)

    @checked(prompt=asked, who=people, redo=named_node, actions=people, on_timeout=TIMED_OUT)
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
        """Hands a machine's verdict to a person, who says continue, continue_with_waiver, retry_feedback or halt (§5.5).

        ``continue`` leaves the verdict as it is: the returned decision is the override. After ``retry_feedback`` the node
        named by ``redo`` is done again and finds the words in ``ctx.feedback``; ``"node"`` is this very node, and with
        ``redo=None`` the decision comes back here, for a loop of your own.
        """
        steps.waits(self._attempt, "handoff")
        options = {"show": show, "who": who, "timeout": timeout, "on_timeout": on_timeout}
        return waiting.handoff(self._attempt, prompt, verdict=verdict, redo=redo, authoritative=authoritative, actions=actions, **options)

    @checked(on_timeout=TIMED_OUT)
    def wait(self, signal: str, *, timeout: Duration = None, on_timeout: str = "halt", default: Any = None) -> Coroutine[Any, Any, Any]:
        """Rests until the signal of that name comes and gives its payload. One that came earlier is kept until asked for (§5.11).

        When it does not come in time, ``on_timeout`` says halt, fail, or ``deliver``/``default``, which give ``default``.
        """
        steps.waits(self._attempt, "wait")
        kind = "default" if on_timeout == "deliver" and default is not None else on_timeout
        return waiting.signal(self._attempt, signal, timeout=timeout, on_timeout=kind, default=default)

    @checked(duration=lasting())
    def sleep(self, duration: dt.timedelta | float) -> Coroutine[Any, Any, None]:
        """Rests for a time without a thread, a task or a byte of memory; a crash does not start it over."""
        steps.waits(self._attempt, "sleep")
        return waiting.sleep(self._attempt, duration)

    @checked(inputs=mapping, on_timeout=TIMED_OUT)
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
        """Starts a run of its own and rests until it has ended; gives a flow's value or a graph's state (§4.14).

        The other options are those of ``submit``. With ``on_parent_end="keep"`` the child goes on when its parent is cancelled.

        Raises:
            ChildFailed: it ended otherwise than completed.
        """
        steps.waits(self._attempt, "child")
        said = {
            "thread_id": thread_id, "key": key, "session_key": session_key, "lane": lane, "queue": queue, "priority": priority, "job_id": job_id,
            "trace_id": trace_id, "tags": tags, "tenant_id": tenant_id, "target": target, "paused_lane": paused_lane, "recovery": recovery,
            "unattended": unattended, "budgets": budgets,
        }  # fmt: skip
        options = {name: value for name, value in said.items() if value is not None}
        return waiting.child(self._attempt, skill, inputs, options=options, on_parent_end=on_parent_end, timeout=timeout, on_timeout=on_timeout)

    @property
    def waivers(self) -> tuple[Decision, ...]:
        """What people have waived in this run so far, oldest first; it survives restarts (§5.5)."""
        return tuple(Decision.of(d) for d in self._attempt.journal.run.waivers)

    # -- effects, intents, ledger -------------------------------------------------------------------

    @checked(fn=function, timeout=BOUNDED, side_effects=word(*EffectClass), replay=word(*ReplayPolicy), limit=own_name)
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
        """Acts on the outside world, once: attempt on record before, result after (§6).

        Args:
            key: dedupes across runs; by default the key belongs to this place in this run's lineage.
            side_effects: ``write`` or ``external_action``; ``none`` and ``read`` are plain steps.
            idempotent: the receiver dedupes by the key, so that after a crash it is executed again under the same one.
            replay: what a replay or another run under the same key does with the recorded result (§6.6).
            verify: ``verify(key, *args)`` gives ``Happened(result)``, ``Absent()`` or ``Unknown()``.
            undo: ``undo(result, *args)`` takes it back when the run fails or is cancelled (§6.11).
            retry: attempts in all. Only an idempotent effect is tried again by itself; for another a person is asked.
            name: under which it is on record, if not that of ``fn``.
            show: what a wait about it shows, if not its arguments.
            limit: names what it uses while it is done (§10.11).
        """
        steps.waits(self._attempt, "effect")
        options = performing.Options(
            key=key, side_effects=side_effects, idempotent=idempotent, replay=replay, verify=verify, undo=undo,
            timeout_us=microseconds(timeout, DEFAULT_TIMEOUT_US), retry=coerce(retry), timed=timeout is not None,
            name="" if name is None else bounds.text(name, "name"), show=show, limit=limit,
        )  # fmt: skip
        return performing.perform(self._attempt, fn, args, options)

    @checked(tool=named_tool, args=words, timeout=BOUNDED, check=bounds.flag, replay=word(*ReplayPolicy), env=variables)
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
        """Runs a tool through the ToolRunner: ``(await ctx.tool("git", ["log"])).stdout`` (§11).

        A tool that only reads is a recorded step; any other, and every undeclared one, goes through the ledger of effects.

        Args:
            cwd: where it runs, and ``paths`` what it is told to touch: neither may leave ``Runtime(workspace=…)``.
            input: JSON for its standard input.
            check: an exit code other than 0 is a failure; with False the outcome is handed over.
            name: under which it is on record, if not that of the tool.

        Raises:
            ToolFailed, ToolMissing, PathOutsideWorkspace, StepTimeout.
        """
        steps.waits(self._attempt, "tool")
        return cast(
            "Coroutine[Any, Any, ToolOutcome]",
            call_tool(
                self._attempt, tool, args, cwd=cwd, input=input, env=env or {}, paths=paths, check=check, timeout=timeout, key=key, retry=retry,
                replay=replay, verify=verify, undo=undo, name="" if name is None else bounds.text(name, "name"),
            ),
        )  # fmt: skip

    @checked(key=named)
    def send(self, type: str, payload: Any, *, key: str = "", order: str = "") -> None:
        """Asks for something to be sent after the step has committed, never before (§9.1)."""
        self._attempt.intents.append(IntentWrite(type, canon.pack(payload, "intent")[1], key, order))

    @checked(key=named)
    def record(self, topic: str, key: str, data: Any) -> None:
        """A ledger row that commits with the step (§9.6)."""
        self._attempt.ledger.append(LedgerWrite(topic, key, canon.pack(data, "ledger")[1]))

    @checked(statement=asked)
    def sql(self, statement: str, params: Sequence[Any] | Mapping[str, Any] = ()) -> None:
        """SQL for the application's own tables in the same PostgreSQL database: committed with the step's writes, or not at all (§9.6).

        Places are psycopg's: ``%s``, or ``%(name)s`` of a mapping. A mapping among the parameters goes as jsonb. A replay leaves it out.

        Raises:
            UsageError: the store is no PostgreSQL database, or the statement is none that changes rows.
            Unserializable, TooLarge: the parameters cannot be kept.
        """
        if (word := _FIRST_WORD.match(statement)) is None or word.group(1).upper() not in _CHANGES:
            raise UsageError(f"{statement.strip()[:40]!r} is no statement that commits with a step", hint=f"one of {', '.join(_CHANGES)}; one statement a call")
        if isinstance(params, str | bytes) or not isinstance(params, Sequence | Mapping):
            raise bounds.wrong("params", "a list of values, or a mapping", params)
        data = canon.pack(dict(params) if isinstance(params, Mapping) else list(params), "params")[1]
        if not takes_statements(self._attempt.services.store):
            raise UsageError(f"{self._attempt.services.store.url} takes no SQL of the application", hint="ctx.sql is for PostgreSQL; ctx.record keeps rows in every store")
        self._attempt.ledger.append(LedgerWrite("", "", data, statement))

    @verb
    def emit(self, value: Any) -> None:
        """A provisional chunk for whoever streams the run (``rt.stream``), kept until the result of the step replaces it (§13.6).

        It belongs to the attempt of the node, or of the recorded call in whose midst it is made. A mapping with ``role`` and ``content`` is a
        piece of a message.

        Raises:
            Unserializable, TooLarge: a chunk holds what a channel can hold, up to 4 MiB.
        """
        self._attempt.emit(value)

    @verb
    def report(self, outcome: str) -> None:
        """How this step ended, if not ``ok``: ``degraded``, ``skipped: why``, or anything else, which is then no completion (§4.11).

        A node with ``delivers=True`` says what came of its product: ``delivered``, ``no_change`` or ``rejected`` (§5.16).
        """
        self._attempt.outcome = outcome

    # -- recorded clock and dice --------------------------------------------------------------------

    def now(self) -> dt.datetime:
        """The time, recorded: the same when the step is entered again."""
        return cast("dt.datetime", steps.value(self._attempt, "now", lambda: when(self._attempt.services.clock.now())))

    def random(self) -> float:
        """A number in [0, 1), recorded."""
        return cast("float", steps.value(self._attempt, "random", lambda: _random.Random(self._attempt.services.entropy()).random()))

    def uuid(self) -> _uuid.UUID:
        """A random UUID, recorded."""
        return cast("_uuid.UUID", steps.value(self._attempt, "uuid", lambda: _uuid.UUID(int=self._attempt.services.entropy() % (1 << 128), version=4)))

    def restart(self, **inputs: Any) -> NoReturn:
        """Ends a long flow and begins it afresh with other inputs, under the same lineage; does not return.

        What the flow has recorded is done with: the next turn starts from these inputs and an empty record.
        """
        self._attempt.restarting = True
        raise Restart(inputs)


class Face(blocked.Placed, Protocol):
    """Gives the context of a step to code that asks for it, and says which step it is."""

    def __call__(self) -> Context: ...


class Given:
    """The face of one attempt that there is already."""

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


face: contextvars.ContextVar[Face | None] = contextvars.ContextVar("holdfast_face", default=None)
"""What gives the context of the node in whose midst this code runs; set for as long as the node's own call lasts."""


def current() -> Context | None:
    """The context of the node in whose midst this code runs, also in a thread that it was handed to; None outside of one."""
    found = face.get()
    return None if found is None else found()


def whose(context: contextvars.Context) -> Face | None:
    """Whose code runs in that context; None if it is no step's."""
    return context.get(face)


__all__ = ["Context", "Face", "Given", "current", "face", "whose"]

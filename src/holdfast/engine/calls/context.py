"""``Context``: what a node may do (§4.12, §5, §6).

Theory of operation. A node is re-entered from its first line after a crash or a wait. Whatever it does through ``ctx`` is
recorded under its place: a path of positions, one per call in its scope, or an explicit key. A call whose place has a
record is answered from it; the names must match, else the code no longer fits what happened and says so. ``gather``,
``map`` and ``first_of`` open numbered scopes, so that concurrent calls have places that do not depend on timing.
A wait leaves the node by ``Suspend``, a BaseException that user code has no business catching.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import logging
import os
import random as _random
import uuid as _uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar, TypeVarTuple, cast, overload

import msgspec

from holdfast.authoring import microseconds
from holdfast.core import bounds, budgets, canon, ids
from holdfast.core import events as ev
from holdfast.core.checkpoint import IntentWrite, LedgerWrite, StepRecord, Task
from holdfast.core.effects import Effect
from holdfast.core.errors import ConcurrentScope, InvalidInput, RecordMismatch, SuspensionSwallowed, UsageError
from holdfast.core.graph import DEFAULT_TIMEOUT_US, Node, Program
from holdfast.core.lease import counter
from holdfast.core.masks import NOTHING, Mask, mask
from holdfast.core.outcomes import OK
from holdfast.core.retry import Retry, backoff, coerce
from holdfast.core.waits import Decision as RawDecision
from holdfast.core.waits import Wait, WaitKind
from holdfast.engine.base.failures import recorded, revived
from holdfast.engine.base.journal import Draft, Journal
from holdfast.engine.base.services import Asked, Services
from holdfast.engine.base.streams import Chunk
from holdfast.engine.calls import effects as performing
from holdfast.engine.calls import scopes
from holdfast.engine.calls import waits as waiting
from holdfast.engine.calls.functions import Patience, call, name_of
from holdfast.engine.calls.scopes import Restart, Scope, Suspend, current
from holdfast.engine.calls.tools import call_tool
from holdfast.handle import Decision, when
from holdfast.ports import ToolOutcome

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741 - the item of a map
Ts = TypeVarTuple("Ts")
Duration = dt.timedelta | float | int | None


class Discreet(logging.LoggerAdapter[logging.Logger]):
    """Hides secrets in what is logged."""

    def __init__(self, logger: logging.Logger, extra: Mapping[str, object], hidden: Mask) -> None:
        super().__init__(logger, extra)
        self._hidden = hidden

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if self._hidden.texts and self.isEnabledFor(level):
            msg, args = self._hidden.text(str(msg) % args if args else str(msg)), ()
        super().log(level, msg, *args, **kwargs)


class Context:
    """One attempt of one task, as its node sees it. Members that wait are for async nodes; the others serve both."""

    def __init__(
        self,
        services: Services,
        journal: Journal,
        node: Node,
        task: Task,
        *,
        attempt: int = 1,
        prefix: str = "",
        root: str = "",
        program: Program | None = None,
        state: Mapping[str, Any] = canon.EMPTY_DICT,
    ) -> None:
        self._services = services
        self._journal = journal
        self._node = node
        self._task = task
        self._key = root or task.key
        self._inner = prefix.removesuffix("/")
        self._step = journal.checkpoint.step + 1
        self._nodes: Mapping[str, Any] = {} if program is None else program.nodes
        number, self._feedback = waiting.redone(self)
        self._root = Scope(self, f"{prefix}@{number}/" if number else prefix)
        self._state = state
        self._reworded: set[str] = set()
        self._told: list[str] = []
        self._odd: dict[tuple[str, str], str] = {}
        self._scopes: frozenset[str] | None = None
        self._closed = False
        self._restarting = False
        self._suspended: dict[str, Wait] = {}
        self._intents: list[IntentWrite] = []
        self._ledger: list[LedgerWrite] = []
        self._outcome = OK
        self._sync = False
        self._calls = 0
        self._parked = False
        self._loop = asyncio.get_running_loop()
        self._patience = Patience(node.timeout_us, own=node.timed)
        self._patient: list[Patience] = [self._patience]
        self.attempt = attempt

    # -- facts about where we are -------------------------------------------------------------------

    @property
    def run(self) -> Any:
        """The run record (§3.1), as of the last commit."""
        return self._journal.run

    @property
    def run_id(self) -> str:
        return self._journal.run.run_id

    @property
    def step_id(self) -> str:
        return ids.step_id(self.run_id, self._step, self._key, self._inner)

    @property
    def attempt_id(self) -> str:
        return ids.attempt_id(self.step_id, self.attempt)

    @property
    def fence(self) -> int:
        """The lease's counter: a receiver that keeps the highest one seen can refuse a late worker."""
        return counter(self._journal.fence)

    @property
    def idempotency_key(self) -> str:
        """A key for this step that survives retries, crashes and replays (§6.3)."""
        return ids.step_id(self._journal.run.lineage_root, self._step, self._key, self._inner)

    @property
    def payload(self) -> Any:
        """What a ``Send`` gave this task; None for a task that came by an edge."""
        return None if self._task.payload is None else canon.decode(self._task.payload)

    @property
    def deadline(self) -> dt.datetime | None:
        return when(self._services.clock.now() + self._node.timeout_us) if self._node.timeout_us else None

    @property
    def scheduled_at(self) -> dt.datetime | None:
        """The slot of the schedule for which this run runs, however late it began; None if somebody else started it (§10.15)."""
        return None if self._journal.run.slot is None else when(self._journal.run.slot)

    @property
    def feedback(self) -> str | None:
        """What a person asked to be changed, in a step that is done again after ``retry_feedback`` (§5.5)."""
        return self._feedback

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that carries the run's and step's ids, and hides what stands in secret channels (§13.5)."""
        extra = {"run_id": self.run_id, "step_id": self.step_id, "attempt_id": self.attempt_id}
        names, values = self._journal.run.secrets, self._journal.checkpoint.values
        hidden = mask(names, [canon.reveal(canon.encode(canon.FrozenDict({n: values[n] for n in names if n in values})))]) if names else NOTHING
        return Discreet(logging.getLogger("holdfast.run"), extra, hidden)

    # -- places -------------------------------------------------------------------------------------

    def _current(self) -> Scope:
        scope = current.get()
        return scope if scope is not None and scope.owner is self else self._root

    @contextmanager
    def _place(self, name: str, key: str | None = None) -> Iterator[str]:
        """The path of one call; refuses a second one in flight in the same scope (§4.12)."""
        scope = self._current()
        if self._closed:
            raise ConcurrentScope(f"ctx.{name} was called after {self._node.name} had ended", hint="await every ctx call, or use ctx.gather")
        if scope.busy:
            raise ConcurrentScope(f"ctx.{name} was called while {scope.busy} of the same scope is in flight", hint="use ctx.gather")
        if key is None:
            path = f"{scope.prefix}{scope.next}"
            scope.next += 1
        else:
            if not key or "/" in key or len(key) > 200:
                raise InvalidInput(f"the key {key!r} must be 1 to 200 characters without '/'")
            path = f"{scope.prefix}={key}"
        scope.busy = name
        try:
            yield path
        finally:
            scope.busy = ""

    def _lookup(self, path: str, name: str, kind: str, digest: str = "", args: tuple[Any, ...] = ()) -> StepRecord | None:
        """The record at a place, if it is one of this call. Without one, the place must not belong to another call.

        ``digest`` tells calls of one name apart by their arguments. Plain code may well compute other arguments when it
        runs again; but arguments that are on record at another place mean that two calls were swapped.

        Raises:
            RecordMismatch: showing what was recorded and what the code calls now.
        """
        self._told.append(_label(kind, name))
        record = self._journal.record(self._key, path, digest)
        if record is None and self._services.recording is not None:
            record = self._services.recording.answer(Asked(self.run_id, self._step, self._key, path, kind, name, digest, args))
            if record is not None:
                self._journal.hold(Draft(results=[record]))
                return record
        if record is None:
            if kind in _ENDS_REPLAY:
                self._journal.replayed()
            if (name, digest) in self._odd:
                raise self._mismatch(path, f"{name} with the arguments recorded at call {self._odd[name, digest]}")
            if kind not in _OPENS and path in self._opened():
                raise self._mismatch(path, _label(kind, name))
            return None
        if (record.name, record.kind) != (name, kind):
            raise self._mismatch(path, _label(kind, name))
        if digest and record.digest and digest != record.digest:
            for r in self._mine():
                if r.digest == digest and r.name == name:
                    raise self._mismatch(path, f"{name} with the arguments recorded at call {r.path}")
            self._odd[name, record.digest] = path
        return record

    def _mine(self) -> list[StepRecord]:
        return [r for (task, _), r in list(self._journal.progress.records.items()) if task == self._key and r.path.startswith(self._root.prefix)]

    def _opened(self) -> frozenset[str]:
        """The places of an earlier attempt that were scopes: something is recorded beneath them."""
        if self._scopes is None:
            found = set()
            for record in self._mine():
                path = record.path
                while "/" in path:
                    path = path.rpartition("/")[0]
                    found.add(path)
            self._scopes = frozenset(found)
        return self._scopes

    def _mismatch(self, path: str, now: str) -> RecordMismatch:
        """The difference between what is on record and what the code calls, in one sentence."""
        recorded = [f"{r.path.removeprefix(self._root.prefix)} {_label(r.kind, r.name)}" for r in self._mine()]
        called = ", ".join([*self._told[:-1], now])
        return RecordMismatch(
            f"call {path} of {self._key} does not fit its record: recorded are {', '.join(recorded)}; the code now calls {called}",
            hint="restore the order of the calls, give them keys, or fork the run from an earlier checkpoint",
        )

    def _waiting(self, what: str) -> None:
        """Refuses a member that waits where nothing can: in a plain node, or in a thread of its own."""
        if not self._sync:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                pass
            else:
                return
        name = self._node.name
        raise UsageError(f"ctx.{what} waits, and it was called outside the event loop, from plain code of {name}", hint=f"make it async: async def {name}(…)")

    async def _save(self, draft: Draft) -> None:
        """Makes something durable for this attempt; what outlives the attempt has no say any more."""
        if self._closed:
            raise ConcurrentScope(f"a ctx call of {self._node.name} ended after the node had", hint="await every ctx call, or use ctx.gather")
        await self._journal.save(draft)

    def _end(self) -> None:
        """The node has returned or raised. Nothing it left running may write into the next step's records.

        Raises:
            ConcurrentScope: it returned while a call of its own was in flight.
        """
        self._closed = True
        if self._root.busy:
            raise ConcurrentScope(f"{self._node.name} returned while ctx.{self._root.busy} was in flight", hint="await it, or use ctx.gather")
        if self._suspended or self._restarting:
            raise SuspensionSwallowed(f"{self._node.name} caught the way out it was to take", hint="do not catch BaseException around ctx calls")

    # -- recorded steps -----------------------------------------------------------------------------

    @overload
    def step(
        self, fn: Callable[[*Ts], Awaitable[T]], /, *args: *Ts, key: str | None = None, retry: Retry | int | None = None, timeout: Duration = None
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def step(
        self, fn: Callable[[*Ts], T], /, *args: *Ts, key: str | None = None, retry: Retry | int | None = None, timeout: Duration = None
    ) -> Coroutine[Any, Any, T]: ...

    def step(  # type: ignore[misc]  # mypy does not match a TypeVarTuple with the Any of an implementation
        self, fn: Any, /, *args: Any, key: str | None = None, retry: Retry | int | None = None, timeout: Duration = None
    ) -> Coroutine[Any, Any, Any]:
        """Runs ``fn(*args)`` once in the life of the run and records what it returns (§4.12).

        Args:
            key: frees the call from its position among its siblings.
            retry: attempts in all, or a ``Retry``; failures are counted across restarts.
            timeout: seconds or timedelta, 60 s by default.

        Raises:
            RecordMismatch: another call is on record at this place.
            StepTimeout: it took longer than ``timeout``.
        """
        self._waiting("step")
        return self._do_step(fn, args, key, coerce(retry), Patience.of(timeout))

    async def _do_step(self, fn: Callable[..., Any], args: tuple[Any, ...], key: str | None, retry: Retry, patience: Patience) -> Any:
        name = name_of(fn)
        digest = _digest(args) if args and key is None else ""
        with self._place(name, key) as path:
            record = self._lookup(path, name, "step", digest, args)
            if record is not None:
                return await self._given(record)
            await self._afford(path)
            await self._begin()
            try:
                value, packed, attempt = await self._attempts(path, name, retry, digest, lambda: self._patiently(fn, args, patience, name))
                done = StepRecord(self._key, path, name, value=packed, attempt=attempt, digest=digest)
                fact = ev.StepCompleted(self._step, self._key, attempt=attempt, path=path)
                await self._save(Draft(facts=[fact], results=[done]))
                return value
            finally:
                self._finish()

    async def _begin(self) -> None:
        """A call is to begin; none does once somebody has asked the run to stop at its next boundary (§10.13)."""
        if self._journal.boundaries.asked:
            await self._journal.boundaries.stand(self)
        self._calls += 1
        self._patience.hold()

    def _finish(self) -> None:
        """The call has ended, and what came of it is on record."""
        self._calls -= 1
        self._patience.release(self._loop.time())
        if self._journal.boundaries.asked:
            self._journal.boundaries.look()

    async def _afford(self, path: str) -> None:
        """Rests in a wait of kind ``budget`` if one of the run's budgets is spent (§8.5)."""
        while self._journal.run.budgets:
            over = budgets.exceeded(self._journal.run, self._journal.checkpoint.step, self._services.clock.now())
            if over is None:
                return
            place = f"{path}?{over.name}={over.limit:g}"
            if self._journal.record(self._key, place) is not None:
                return  # decided, and it was not extended: this step was allowed all the same
            wait_id = ids.wait_id(self.run_id, self._step, self._key, place)
            if all(w.wait_id != wait_id for w in self._journal.run.waits):
                self._journal.hold(Draft(facts=[ev.BudgetExceeded(over.name, over.used, over.limit)]))
            prompt = f"The budget of {over.limit:g} {over.name} is spent. Extend it by {over.extend:g}?"
            await self._wait_at(place, WaitKind.BUDGET, prompt, name=over.name, show=budgets.shown(over), default=over.extend, schema=budgets.EXTENSION)

    def spend(self, **amounts: float) -> None:
        """Says what this step has used of the run's budgets: ``ctx.spend(cost=0.02, tokens=1_500)``. Counted once."""
        with self._place("spend") as path:
            if self._lookup(path, "spend", "value") is not None:
                return
            clean = bounds.limits({n: a for n, a in amounts.items() if a != 0}, "spend", bounds.SPENT)
            self._journal.hold(
                Draft(
                    facts=[ev.BudgetSpent(self._step, self._key, clean)],
                    results=[StepRecord(self._key, path, "spend", value=canon.encode(canon.FrozenDict(clean)), kind="value")],
                )
            )

    async def _patiently(self, fn: Callable[..., Any], args: tuple[Any, ...], patience: Patience, name: str) -> Any:
        """Calls it, and lets ``progress`` move its time on meanwhile."""
        with self._minding(patience):
            return await call(fn, args, patience, name)

    @contextmanager
    def _minding(self, patience: Patience) -> Iterator[None]:
        """For a call's time: progress moves it on."""
        patience.move(self._loop.time())
        self._patient.append(patience)
        try:
            yield
        finally:
            self._patient.remove(patience)

    def progress(self, note: str = "") -> None:
        """Says that this step gets on: a default timeout counts anew from here (§10.10). Nothing of it is durable; ``note`` is logged.

        A ``timeout=`` of one's own counts from the start, whatever is said here.
        """
        now = self._loop.time()
        for patience in list(self._patient):
            if not patience.own:
                patience.move(now)
        if note:
            self.log.info("%s", note)

    async def _attempts(self, path: str, name: str, retry: Retry, digest: str, act: Callable[[], Awaitable[Any]]) -> tuple[Any, bytes, int]:
        """Tries until it works or the budget is spent; every failure is durable before the next try (§10.9)."""
        attempt, due = self._journal.progress.attempts.get((self._key, path), (0, 0))
        while True:
            if due:
                await self._pause(due)
            attempt += 1
            if attempt > 1:
                self._journal.hold(Draft(facts=[ev.AttemptStarted(self._step, self._key, attempt, self._services.owner, path)]))
            try:
                with scopes.attempting(path, attempt):
                    value, data = canon.pack(await act(), f"{name}()")
                return value, data, attempt
            except Exception as e:
                error = recorded(e, where=path)
                if not retry.retries(e, attempt):
                    failed = StepRecord(self._key, path, name, error=error, attempt=attempt, digest=digest)
                    fact = ev.StepFailed(self._step, self._key, error, attempt=attempt, path=path)
                    await self._save(Draft(facts=[fact], results=[failed]))
                    raise
                due = self._services.clock.now() + backoff(f"{self.step_id}.{path}@{attempt}", attempt, retry.base_us)
                self._journal.progress.attempts[self._key, path] = (attempt, due)
                await self._save(Draft(facts=[ev.StepRetryScheduled(self._step, self._key, attempt, due, error, path)]))

    async def _pause(self, due: int) -> None:
        left = due - self._services.clock.now()
        if left > 0:
            await self._services.clock.sleep(left / 1_000_000)

    def _served(self, record: StepRecord) -> Any:
        if record.error is not None:
            raise revived(record.error)
        return None if record.value is None else canon.decode(record.value)

    async def _given(self, record: StepRecord) -> Any:
        """What a record holds, wherever it is kept."""
        return self._served(await self._journal.whole(record))

    # -- scopes -------------------------------------------------------------------------------------

    def gather(self, *calls: Awaitable[T]) -> Coroutine[Any, Any, list[T]]:
        """Awaits several ctx calls at once; each has a scope of its own. Results come in the order given.

        When one fails, the others end first, so that what they finish is on record; then the failure is raised.
        """
        self._waiting("gather")
        return scopes.gather(self, calls, len(calls), "gather")

    @overload
    def map(self, fn: Callable[[I], Awaitable[T]], items: Iterable[I], *, concurrency: int = 16) -> Coroutine[Any, Any, list[T]]: ...

    @overload
    def map(self, fn: Callable[[I], T], items: Iterable[I], *, concurrency: int = 16) -> Coroutine[Any, Any, list[T]]: ...

    def map(self, fn: Callable[[I], Any], items: Iterable[I], *, concurrency: int = 16) -> Coroutine[Any, Any, list[Any]]:
        """``step(fn, item)`` for every item, at most ``concurrency`` at once; results in the order of the items."""
        self._waiting("map")
        calls = [self._do_step(fn, (item,), None, coerce(None), Patience.of(None)) for item in items]
        return scopes.gather(self, calls, concurrency, "map")

    def first_of(self, *calls: Awaitable[Any]) -> Coroutine[Any, Any, tuple[int, Any]]:
        """The (index, value) of the call that is done first; the others are given up. Recorded: it is the same again later."""
        self._waiting("first_of")
        return scopes.first_of(self, calls)

    # -- waits --------------------------------------------------------------------------------------

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
        self._waiting("approve")
        options = {"show": show, "who": who, "timeout": timeout, "on_deny": on_deny, "on_timeout": on_timeout, "default": default}
        return waiting.approve(self, prompt, schema, redo=redo, **options)

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
        self._waiting("ask")
        options = {"show": show, "who": who, "timeout": timeout, "on_deny": on_deny, "on_timeout": on_timeout, "default": default}
        return waiting.ask(self, prompt, schema, **options)

    def handoff(
        self,
        prompt: str,
        *,
        verdict: str = "rejected",
        redo: str | None = "node",
        actions: Iterable[str] | None = None,
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
        self._waiting("handoff")
        options = {"show": show, "who": who, "timeout": timeout, "on_timeout": on_timeout}
        return waiting.handoff(self, prompt, verdict=verdict, redo=redo, authoritative=authoritative, actions=actions, **options)

    def wait(self, signal: str, *, timeout: Duration = None, on_timeout: str = "halt", default: Any = None) -> Coroutine[Any, Any, Any]:
        """Rests until the signal of that name comes and gives its payload. One that came earlier is kept until asked for (§5.11).

        When it does not come in time, ``on_timeout`` says halt, fail, or ``deliver``/``default``, which give ``default``.
        """
        self._waiting("wait")
        kind = "default" if on_timeout == "deliver" and default is not None else on_timeout
        return waiting.signal(self, signal, timeout=timeout, on_timeout=kind, default=default)

    def sleep(self, duration: dt.timedelta | float) -> Coroutine[Any, Any, None]:
        """Rests for a time without a thread, a task or a byte of memory; a crash does not start it over."""
        self._waiting("sleep")
        return waiting.sleep(self, duration)

    def child(
        self,
        skill: Any,
        inputs: Mapping[str, Any] | None = None,
        *,
        on_parent_end: str = "cancel",
        timeout: Duration = None,
        on_timeout: str = "halt",
        **options: Any,
    ) -> Coroutine[Any, Any, Any]:
        """Starts a run of its own and rests until it has ended; gives a flow's value or a graph's state (§4.14).

        ``options`` are those of ``submit``. With ``on_parent_end="keep"`` the child goes on when its parent is cancelled.

        Raises:
            ChildFailed: it ended otherwise than completed.
        """
        self._waiting("child")
        return waiting.child(self, skill, inputs, options=options, on_parent_end=on_parent_end, timeout=timeout, on_timeout=on_timeout)

    @property
    def waivers(self) -> tuple[Decision, ...]:
        """What people have waived in this run so far, oldest first; it survives restarts (§5.5)."""
        return tuple(Decision.of(d) for d in self._journal.run.waivers)

    async def _wait_at(self, path: str, kind: WaitKind, prompt: str, **options: Any) -> RawDecision:
        """The decision on record at a path of the caller's choice, else the wait itself is raised."""
        return await waiting.request(self, waiting.Ask(kind=kind, prompt=prompt, path=path, **options))

    @property
    def place_prefix(self) -> str:
        """Under which all places of this task stand, whatever the round it is done in."""
        return f"{self._inner}/" if self._inner else ""

    async def own_effects(self) -> list[Effect]:
        """The effects attempted in this step so far, in all its attempts and rounds, oldest first."""
        mine, beneath = (self._step, self._key), self.place_prefix
        return [e for e in await self._services.store.effects(self.run_id) if (e.step, e.task) == mine and e.path.startswith(beneath)]

    @property
    def retry_allowed(self) -> bool:
        """Whether a person has allowed another attempt of this step."""
        allowed = f"{self.place_prefix}@retry/"
        return any(task == self._key and path.startswith(allowed) for task, path in self._journal.progress.records)

    def _reads(self) -> dict[str, Any]:
        """What this step goes by: the state it sees, and what a ``Send`` gave it."""
        return {**self._state, "payload": self.payload} if self._task.payload is not None else dict(self._state)

    def _peek(self) -> str:
        """The place of the call in hand: the one that the next call will be given."""
        scope = self._current()
        return f"{scope.prefix}{scope.next}"

    def _rearmed(self) -> frozenset[str]:
        """Open questions that an operator has had asked again: somebody is there now (§5.17)."""
        return frozenset(w.wait_id for w in self._journal.run.waits if w.round > 0)

    @property
    def _concurrent(self) -> bool:
        """Whether other calls of this task may still run, so that a wait must be durable at once (§5.2)."""
        return self._current() is not self._root or bool(self._inner)

    # -- effects, intents, ledger -------------------------------------------------------------------

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
        """
        self._waiting("effect")
        options = performing.Options(
            key=key, side_effects=side_effects, idempotent=idempotent, replay=replay, verify=verify, undo=undo,
            timeout_us=microseconds(timeout, DEFAULT_TIMEOUT_US), retry=coerce(retry), timed=timeout is not None,
        )  # fmt: skip
        return performing.perform(self, fn, args, options)

    def tool(
        self,
        name: str,
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
    ) -> Coroutine[Any, Any, ToolOutcome]:
        """Runs a tool through the ToolRunner: ``(await ctx.tool("git", ["log"])).stdout`` (§11).

        A tool that only reads is a recorded step; any other, and every undeclared one, goes through the ledger of effects.

        Args:
            cwd: where it runs, and ``paths`` what it is told to touch: neither may leave ``Runtime(workspace=…)``.
            input: JSON for its standard input.
            check: an exit code other than 0 is a failure; with False the outcome is handed over.

        Raises:
            ToolFailed, ToolMissing, PathOutsideWorkspace, StepTimeout.
        """
        self._waiting("tool")
        return cast(
            "Coroutine[Any, Any, ToolOutcome]",
            call_tool(
                self, name, args, cwd=cwd, input=input, env=env or {}, paths=paths, check=check, timeout=timeout, key=key, retry=retry,
                replay=replay, verify=verify, undo=undo,
            ),
        )  # fmt: skip

    def send(self, type: str, payload: Any, *, key: str = "", order: str = "") -> None:
        """Asks for something to be sent after the step has committed, never before (§9.1)."""
        self._intents.append(IntentWrite(type, canon.pack(payload, "intent")[1], key, order))

    def record(self, topic: str, key: str, data: Any) -> None:
        """A ledger row that commits with the step (§9.6)."""
        self._ledger.append(LedgerWrite(topic, key, canon.pack(data, "ledger")[1]))

    def emit(self, value: Any) -> None:
        """A provisional chunk for whoever streams the run now; nothing of it is durable (§13.2a). Its tag names the attempt of the node, and
        of the recorded call in whose midst it is made."""
        self.progress()
        self._services.streams.emit(Chunk(self.run_id, self.attempt_id + scopes.calling.get(), value))

    def report(self, outcome: str) -> None:
        """How this step ended, if not ``ok``: ``degraded``, ``skipped: why``, or anything else, which is then no completion (§4.11).

        A node with ``delivers=True`` says what came of its product: ``delivered``, ``no_change`` or ``rejected`` (§5.16).
        """
        self._outcome = outcome

    # -- recorded clock and dice --------------------------------------------------------------------

    def now(self) -> dt.datetime:
        """The time, recorded: the same when the step is entered again."""
        return cast("dt.datetime", self._once("now", lambda: when(self._services.clock.now())))

    def random(self) -> float:
        """A number in [0, 1), recorded."""
        return cast("float", self._once("random", lambda: _random.Random(self._services.entropy()).random()))

    def uuid(self) -> _uuid.UUID:
        """A random UUID, recorded."""
        return cast("_uuid.UUID", self._once("uuid", lambda: _uuid.UUID(int=self._services.entropy() % (1 << 128), version=4)))

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        with self._place(name) as path:
            record = self._lookup(path, name, "value")
            if record is not None:
                return self._served(record)
            value, data = canon.pack(make(), name)
            self._journal.hold(Draft(results=[StepRecord(self._key, path, name, value=data, kind="value")]))
            return value

    def restart(self, **inputs: Any) -> NoReturn:
        """Ends a long flow and begins it afresh with other inputs, under the same lineage; does not return.

        What the flow has recorded is done with: the next turn starts from these inputs and an empty record.
        """
        self._restarting = True
        raise Restart(inputs)


_ENDS_REPLAY = frozenset({"step", "value", "child"})
_OPENS = frozenset({"scope", "first_of"})
_plain = msgspec.msgpack.Encoder(order="sorted")


def _label(kind: str, name: str) -> str:
    match kind:
        case "step" | "effect" | "scope" | "first_of":
            return name
        case "wait":
            return " ".join(repr(part) if i else part for i, part in enumerate(name.split(":", 1)))
    return f"{kind} {name!r}" if kind != name else kind


def _digest(args: tuple[Any, ...]) -> str:
    """Tells calls of one function apart by their arguments; empty where these have no stable form."""
    try:
        return hashlib.blake2b(_plain.encode(args), digest_size=8).hexdigest()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return ""


__all__ = ["Context", "Restart", "Scope", "Suspend", "revived"]

"""``Runtime``: the façade and composition root; the only module that imports stores and engine."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import pathlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar, Unpack, overload
from urllib.parse import unquote

from holdfast import logs, machine, stores, workspaces
from holdfast.authoring import Flow, Graph, Skill, State, Tool, microseconds
from holdfast.callers import VIA
from holdfast.core import bounds
from holdfast.core import limits as bounding
from holdfast.core import policy as policies
from holdfast.core import schedules as sch
from holdfast.core.bounds import check_arguments, duration, function, lasting, moment, verb, wrong
from holdfast.core.bounds import number as bounds_of
from holdfast.core.bounds import text as text_of
from holdfast.core.describe import AttemptView, LaneView, LimitView, QueueView, StepView, WorkerView
from holdfast.core.effects import Effect, ReplayPolicy, as_policy
from holdfast.core.environments import Environment
from holdfast.core.environments import environment as as_environment
from holdfast.core.errors import Conflict, ForeignLoop, NotFound, ProcessForked, StoreClosed, StoreError, StoreReadOnly, UsageError
from holdfast.core.graph import Program
from holdfast.core.intents import IntentState
from holdfast.core.lease import DEFAULT_TTL_US
from holdfast.core.limits import Limit
from holdfast.core.masks import Mask
from holdfast.core.misused import EnteredAsync, is_function
from holdfast.core.offers import Offer
from holdfast.core.selection import where as selected
from holdfast.core.status import TERMINAL
from holdfast.core.waits import check_action
from holdfast.encryption import Encryption, KeyProvider
from holdfast.encryption import coerce as encrypted
from holdfast.engine.base import histories
from holdfast.engine.base.explanation import explain_run
from holdfast.engine.base.failures import result_of
from holdfast.engine.base.loopwatch import Watch
from holdfast.engine.base.reader import POLL_SECONDS, Reader
from holdfast.engine.base.services import Heartbeat, Services, Skills, StoreClock
from holdfast.engine.calls.context import whose
from holdfast.engine.calls.effects import closed_owners, retire
from holdfast.engine.desk import door
from holdfast.engine.desk.door import FORK, REPLAY, OneRunOptions, Request, RunOptions, Wish
from holdfast.engine.desk.intake import birth, owner_id
from holdfast.engine.desk.schedules import Rule, Scheduler, birth_of
from holdfast.engine.drive.commands import Desk
from holdfast.engine.drive.conductor import Conductor
from holdfast.engine.keep import transfer
from holdfast.engine.keep.check import Checker, Findings, keeper, watchful
from holdfast.engine.keep.pruning import prune
from holdfast.engine.keep.repair import Repair, Repairer
from holdfast.engine.look.following import MODES, Cursor, Follower, modes_of, next_or_failed
from holdfast.engine.look.living import unsendable
from holdfast.engine.look.looker import Looker, Wanted
from holdfast.engine.look.sources import DirectSource, Source
from holdfast.handle import CheckpointView, Decided, EventView, Feed, IntentView, LedgerView, Run, Schedule, StreamPart, Wait
from holdfast.machine import SystemClock
from holdfast.outbox.deliveries import Deliveries
from holdfast.outbox.dispatcher import Dispatcher, Sender
from holdfast.outbox.links import Links
from holdfast.outbox.rulings import Rulings
from holdfast.outbox.transports import routes
from holdfast.outbox.webhook import Webhook
from holdfast.ports import Clock, Copies, Executor, Pruned, Resolver, Store, offers_copies
from holdfast.shelf import Shelf
from holdfast.stores import open_url, seal
from holdfast.tools import LocalRunner
from holdfast.workers.worker import Report, Worker, run_worker

S = TypeVar("S", bound=State)
R = TypeVar("R")
P = ParamSpec("P")
T = TypeVar("T")
log = logs.logger("holdfast.runtime")
CLOSE_SECONDS = 5.0
MOST_DECISIONS = 100_000
"""How many waits one call of ``decide`` may name."""
CHANGE_TRIES = 10
DEFAULT_STORE = "sqlite:///.holdfast/runs.db"
_OWN_ROUTES = routes({"webhook": Webhook()})


class Parts(NamedTuple):
    """What a runtime puts its callers through to."""

    reader: Reader
    desk: Desk
    scheduler: Scheduler
    conductor: Conductor


def choose_store(url: str | None) -> str:
    """The store to use: the one named, else ``$HOLDFAST_STORE``, else ``.holdfast/runs.db`` here."""
    return url if url is not None else os.environ.get("HOLDFAST_STORE") or DEFAULT_STORE


class Runtime(EnteredAsync):
    """Runs skills (graphs and flows) over a store. Use it as ``async with Runtime(url, skills=[…]) as rt``. Several may share a process.

    Args:
        store_url: ``sqlite:///file.db``, ``postgresql://…``, ``workspace:folder``, ``memory:``, or a store; by default ``$HOLDFAST_STORE``,
            else ``sqlite:///.holdfast/runs.db``.
        skills: the graphs and flows that this process can run.
        tools: the tools that nodes can call by name.
        policy: a ``holdfast.policy.Policy``, or a gate function: it decides before each gated step whether it may run.
        resolver: a function ``(actor, action, wait, run)`` that decides whether somebody may decide a wait: True, False, or the reason for
            a refusal.
        environment: the name of an environment (such as ``development`` or ``production``), or an ``Environment``.
        transports: what sends outgoing messages (intents), by their type (``holdfast.transports``); ``webhook`` is built in.
        tool_runner: what runs tools; by default a ``holdfast.tools.LocalRunner``.
        workspace: the folder that tools may use.
        lease: timedelta or seconds, 30 s by default: how long a run stays with a worker that no longer reports, before another worker may
            take it over.
        clock: another clock, such as ``holdfast.testing.VirtualClock``.
        executor: another engine for ``invoke`` and ``resume`` (§4.16): an object with these two methods, or a function ``(runtime, skill)``
            that returns one, such as a wrapper around ``named.KernelExecutor``. By default Holdfast's own engine.
        base_url: the address of the web pages, for links in outgoing messages.
        limits: how much may run at the same time (§10.11), by name: ``worker``, ``queue:Q``, ``tenant:T`` (``*`` for each), or a name that
            nodes, tools and transports use. A limit that ``holdfast limits`` has stored takes precedence.
        max_queued: how many runs of a tenant may wait in a queue; beyond this number ``submit`` raises ``QueueFull``.
        encryption: how payloads are encrypted (``holdfast.encryption``): an ``Encryption``, or a provider of keys. By default with the keys
            in the file that ``$HOLDFAST_KEYS`` names; without such a file payloads are not encrypted.
    """

    @check_arguments(environment=bounds.as_given, lease=lasting(low=1), resolver=function, base_url=bounds.address)
    def __init__(
        self,
        store_url: str | Store | None = None,
        *,
        skills: Iterable[Skill] = (),
        tools: Iterable[Tool] = (),
        policy: Any = None,
        resolver: Resolver | None = None,
        environment: str | Environment = "development",
        transports: Mapping[str, Any] | None = None,
        tool_runner: Any = None,
        workspace: str | os.PathLike[str] | None = None,
        lease: dt.timedelta | float | None = None,
        clock: Clock | None = None,
        executor: Executor | Callable[[Any, Any], Executor] | None = None,
        base_url: str | None = None,
        limits: Mapping[str, Limit] | None = None,
        max_queued: int | None = None,
        encryption: Encryption | KeyProvider | Mapping[str, bytes] | None = None,
    ) -> None:
        if executor is not None and not is_function(executor):
            door.has("executor", executor, "invoke", "resume")
        self._executor = executor
        if clock is not None:
            door.has("clock", clock, "now", "monotonic", "sleep")
        # A store measures leases by the clock since boot, unless the caller passes a clock.
        now = None if clock is None else clock.now
        if store_url is not None and not isinstance(store_url, str):
            door.check_store(store_url)
        kept = open_url(choose_store(store_url), now=now) if store_url is None or isinstance(store_url, str) else store_url
        self._store: Store = seal(kept, encrypted(encryption))
        self._clock: Clock = StoreClock(self._store, clock or SystemClock())
        self._ttl_us = microseconds(lease, DEFAULT_TTL_US)
        self._skills = Skills()
        for skill in door.check_skills(skills, (Graph, Flow)):
            self._skills.add(skill.program)
        place = as_environment(environment)
        if tool_runner is not None:
            door.has("tool_runner", tool_runner, "run")
        self._services = Services(
            store=self._store,
            clock=self._clock,
            owner=owner_id(),
            skills=self._skills,
            environment=place.name,
            place=place,
            tools={t.name: t for t in door.several("tools", tools, (Tool,))},
            resolver=resolver,
            policy=policies.coerce(policy),
            tool_runner=tool_runner or LocalRunner(),
            workspace=None if workspace is None else workspaces.fix_place(bounds.path(workspace, "workspace")),
            limits=bounding.admit({} if limits is None else bounds.mapping(limits, "limits")),
            max_queued=None if max_queued is None else bounds_of(max_queued, "max_queued", 1),
        )
        self._heartbeat = Heartbeat(self._store, self._clock, self._services.owner, self._ttl_us)
        self._watch = Watch(self._heartbeat, whose, lambda: bool(self._working))
        reader = Reader(self._services)
        desk = Desk(self._services, reader)
        self._parts = Parts(reader, desk, Scheduler(self._services), Conductor(self._services, reader, desk, self._own))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._forks = machine.PROCESS.forks
        self._entered = 0
        self._routes = routes(door.transports(transports), _OWN_ROUTES)
        self._looker = Looker(self._store, self._services.threads, self.check, self._routes, reader.obstacles, reader.before)
        self._links = Links(self._store, lambda: base_url)
        self._rulings = Rulings(self._store, lambda: unsendable(self._store, self._routes), closed_owners, self._desk.allow)
        self._sender: Sender | None = None
        self._deliveries = Deliveries(self._clock, self._dispatcher)
        self._services.sendings = self._deliveries
        self._working: set[Worker] = set()
        self._following: set[asyncio.Future[None]] = set()
        self._registered = False
        self._sending = 0
        self._open = False

    # -- opening and closing ------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._open:
            self._here(None)
            self._entered += 1
            return self
        if self._store.url == DEFAULT_STORE and self._loop is None:
            _home()
        if self._loop is not None:
            self._begin_anew()
        self._loop, self._forks, self._entered = asyncio.get_running_loop(), machine.PROCESS.forks, 1
        await self._store.open()
        self._open = True
        self._services.go_by(self._heartbeat)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._entered -= 1
        if self._entered <= 0:
            await self.close()

    def _begin_anew(self) -> None:
        """Makes a runtime that is entered again a new owner of leases; the owner before it is proven to be gone."""
        self._services.begin_anew(owner_id())
        self._heartbeat = Heartbeat(self._store, self._clock, self._services.owner, self._ttl_us)
        self._services.go_by(self._heartbeat)
        self._watch = Watch(self._heartbeat, whose, lambda: bool(self._working))
        self._deliveries = Deliveries(self._clock, self._dispatcher)
        self._services.sendings = self._deliveries
        self._registered = False

    async def _start_over(self) -> None:
        """Makes this runtime a new owner, because the store does not know the old one any more; runs that the old owner executed are given up."""
        if await self._heartbeat.settle():
            await retire(self._services)
        self._watch.stop()
        self._heartbeat.stop()
        self._services.pool.close(0)
        self._begin_anew()

    def _here(self, part: T) -> T:
        """Returns a part of the engine, after a check that the event loop and the process are those in which this runtime was entered."""
        if self._loop is None or not self._open:
            return part
        if machine.PROCESS.forks != self._forks:
            raise ProcessForked("this Runtime was opened in the parent process, before the fork", hint="make a Runtime of its own in the child")
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return part
        if running is not self._loop:
            raise ForeignLoop(
                "this Runtime was entered in another event loop, or another thread",
                hint="make one per loop, or hand the call over: asyncio.run_coroutine_threadsafe(rt.get(…), loop)",
            )
        return part

    @property
    def _reader(self) -> Reader:
        return self._here(self._parts.reader)

    @property
    def _desk(self) -> Desk:
        return self._here(self._parts.desk)

    @property
    def _scheduler(self) -> Scheduler:
        return self._here(self._parts.scheduler)

    @property
    def _conductor(self) -> Conductor:
        return self._here(self._parts.conductor)

    async def _own(self) -> None:
        """Registers this process as an owner of leases, once, before it first executes a run."""
        self._here(None)
        if self._loop is not None and not self._open:
            raise StoreClosed("this runtime was closed")
        if self._registered:
            return
        try:
            await (heartbeat := self._heartbeat).begin()
        except Exception:
            if heartbeat is self._heartbeat:
                self._begin_anew()  # the registration may have been applied, and no name may be registered twice
            raise
        self._registered = True
        self._watch.start()

    async def close(self) -> None:
        """Releases the leases, so that other workers can continue the runs, and closes the store (§10.4).

        Raises:
            ForeignLoop: the runtime was entered in another event loop or thread that still exists.
        """
        if not self._open:
            return
        if self._loop is not None and not self._loop.is_closed() and machine.PROCESS.forks == self._forks:
            self._here(None)
        self._open = False
        try:
            await self._end_work()
            await _end_threads(self._services)
            if await self._heartbeat.settle():
                await self._deliveries.close()
                self._watch.stop()
                self._heartbeat.stop()
                await retire(self._services)
        finally:  # even if handing back fails, this owner is gone now, and closing proves it
            self._watch.stop()
            self._heartbeat.stop()
            if self._heartbeat.begun and not self._services.acting:
                closed_owners.add(self._services.owner)
            await self._store.close()

    async def _dispatcher(self) -> Dispatcher:
        await self._own()
        if self._sender is None or self._sender.owner != self._services.owner:
            self._sender = Sender(self._services.owner, lambda: self._services.alive(), self._ttl_us)
        return Dispatcher(self._store, self._clock, self._sender, self._routes, self._links, limits=self._services.limits)

    async def _end_work(self) -> None:
        """Ends the workers of this runtime and everything else that it executes; threads can only be waited for."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._services.grace + CLOSE_SECONDS):
                await asyncio.gather(*(w.close() for w in list(self._working)))
                await self._services.drivers.close(StoreClosed("this runtime was closed while it executed the run"))
        for driving in self._following:
            driving.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
        await self._services.leftovers.close()
        await self._services.streams.close()

    @property
    def store(self) -> Store:
        """The store. Its methods are those of ``holdfast.ports.Store``."""
        return self._here(self._store)

    @property
    def transports(self) -> tuple[str, ...]:
        """The types of outgoing messages (intents) that this runtime can send."""
        return tuple(self._routes)

    @property
    def declared(self) -> Mapping[str, Limit]:
        """The limits that this process declares."""
        return self._services.limits

    @property
    def opened(self) -> bool:
        """Whether the runtime is open."""
        return self._open

    @property
    def owner(self) -> str:
        """The name under which this runtime holds leases."""
        return self._services.owner

    def add(self, *skills: Skill) -> None:
        """Registers more skills."""
        for skill in door.several("skills", skills, (Graph, Flow)):
            self._skills.add(skill.program)

    @property
    def skills(self) -> tuple[Program, ...]:
        """The skills that this runtime can run."""
        return tuple(self._skills)

    def _program(self, skill: Skill | Program | str) -> Program:
        if isinstance(skill, str):
            return self._skills.find(skill)
        if not isinstance(skill, Program | Graph | Flow):
            raise wrong("skill", "a graph, a flow, or the id of one", skill)
        return self._skills.add(skill if isinstance(skill, Program) else skill.program)

    # -- creating and executing runs ----------------------------------------------------------------

    @verb
    async def submit(
        self,
        skill: Skill | str,
        inputs: Mapping[str, Any] | State | None = None,
        *,
        at: dt.datetime | None = None,
        delay: dt.timedelta | float | None = None,
        thread_id: str | None = None,
        key: str | None = None,
        session_key: str | None = None,
        lane: str = "main",
        queue: str = "default",
        priority: int = 0,
        job_id: str | None = None,
        trace_id: str | None = None,
        tags: Iterable[str] = (),
        tenant_id: str = "default",
        target: str | None = None,
        paused_lane: str = "hold",
        recovery: str = "auto",
        unattended: bool = False,
        budgets: Mapping[str, float] | None = None,
        on_busy: str = "queue",
    ) -> Run[Any]:
        """Creates a run for a worker to execute; returns when the run is stored durably (§1.7).

        The same ``key`` with the same input returns the existing run, with ``deduplicated`` set (§3.5). The other arguments are those of ``invoke``.

        Args:
            at: the time at which the run begins (a timezone-aware datetime). A time that has passed means now (§10.15).
            delay: timedelta or seconds after which it begins, instead of ``at``.

        Raises:
            RequestConflict: the key was already used with another input.
            UnknownOption, InvalidInput, TooLarge, Unserializable: an option or a field of the input is wrong; the error names it.
            QueueFull: the queue already holds ``max_queued`` runs of this tenant.
            LaneBusy: with ``on_busy="reject"``, another run of the lane is in the way.
        """
        given = {
            "thread_id": thread_id, "key": key, "session_key": session_key, "lane": lane, "queue": queue, "priority": priority, "job_id": job_id, "trace_id": trace_id,
            "tags": tags, "tenant_id": tenant_id, "target": target, "paused_lane": paused_lane, "recovery": recovery, "unattended": unattended, "budgets": budgets,
            "on_busy": on_busy,
        }
        request, values = door.submission(given, inputs, where="submit", due=None if at is None and delay is None else door.due(at, delay, self.store.now()))
        return await self._conductor.submit(birth(self._services, self._program(skill), values, request))

    @overload
    async def invoke(
        self, skill: Graph[S], inputs: Mapping[str, Any] | S | None = None, *, step_limit: int | None = None, detach: bool = False, **options: Unpack[RunOptions]
    ) -> Run[S]: ...

    @overload
    async def invoke(
        self, skill: Flow[P, R] | str, inputs: Mapping[str, Any] | None = None, *, step_limit: int | None = None, detach: bool = False, **options: Unpack[RunOptions]
    ) -> Run[Any]: ...

    @verb
    async def invoke(
        self,
        skill: Skill | str,
        inputs: Mapping[str, Any] | State | None = None,
        *,
        step_limit: int | None = None,
        detach: bool = False,
        thread_id: str | None = None,
        key: str | None = None,
        session_key: str | None = None,
        lane: str = "main",
        queue: str = "default",
        priority: int = 0,
        job_id: str | None = None,
        trace_id: str | None = None,
        tags: Iterable[str] = (),
        tenant_id: str = "default",
        target: str | None = None,
        paused_lane: str = "hold",
        recovery: str = "auto",
        unattended: bool = False,
        budgets: Mapping[str, float] | None = None,
        on_busy: str = "queue",
    ) -> Run[Any]:
        """Creates a run and executes it here until it waits or ends (§4.16). Returns the run in every case, even if it failed.

        Earlier runs of its lane (runs that execute one after another, such as those of one thread) are executed first if no living process
        is executing them. If one of them cannot be executed here (another process holds its lease, it is on hold or waits, its skill is not
        registered), the new run is returned pending, with ``blocked_by`` and ``blocked_why``.

        With a ``thread_id`` and ``inputs=None`` no run is created: the newest run of the thread continues as far as it can and is returned.

        Args:
            skill: a graph, a flow, or the id of a registered one.
            inputs: the values of its channels or parameters, by name.
            step_limit: the number of super-steps in this call after which the run fails with ``StepLimit``; it can be resumed (§4.9).
            detach: return at the first wait; a worker or a later call then continues the run. By default the call waits for timers and
                children.
            thread_id: the conversation that the run belongs to; by default the run's own id.
            key: a request key: the same key with the same input returns the existing run instead of a new one.
            session_key, lane: runs with the same two values execute one after another; by default the thread, and ``main``.
            queue: the queue whose workers may execute the run.
            priority: runs with a higher number are executed first.
            job_id, trace_id: the ids of a request and of a trace in your own systems; they are recorded with the run.
            tags: labels by which runs can be listed.
            tenant_id: the tenant that the run belongs to.
            target: where the skill's code is (such as ``app.py:skill``), for the commands that are shown to people.
            paused_lane: whether the run keeps its lane while it waits (``hold``), or lets the next run begin (``release``).
            recovery: if the worker dies: ``auto`` lets another worker continue the run, ``hold`` waits until a person resumes it.
            unattended: whether nobody is there to answer. The run then continues past advisory handoffs (``authoritative=False``), and
                stops at any other handoff or review.
            budgets: limits for this run: ``steps``, ``seconds``, ``cost``, ``tokens``, or names that ``ctx.spend`` uses. A person is asked
                when one is exceeded.
            on_busy: if the lane is busy: ``queue`` waits its turn, ``reject`` raises ``LaneBusy``, ``ack`` records the run as canceled, ``replace``
                cancels the runs that are queued.

        Raises:
            RequestConflict: the key was already used with another input.
            UnknownOption, InvalidInput, TooLarge, Unserializable: an option or a field of the input is wrong; the error names it.
            LaneBusy: with ``on_busy="reject"``, another run of the lane is in the way.
        """
        given = {
            "thread_id": thread_id, "key": key, "session_key": session_key, "lane": lane, "queue": queue, "priority": priority, "job_id": job_id, "trace_id": trace_id,
            "tags": tags, "tenant_id": tenant_id, "target": target, "paused_lane": paused_lane, "recovery": recovery, "unattended": unattended, "budgets": budgets,
            "on_busy": on_busy,
        }
        request = door.request(given, where="invoke")
        if self._executor is not None:
            if request != Request(thread_id=thread_id) or step_limit is not None or detach:
                raise UsageError("this Runtime uses another executor, which takes only a thread and an input, no options", hint="configure the executor itself")
            return await self._stand_in(skill).invoke(thread_id or uuid.uuid4().hex, None if inputs is None and thread_id is not None else door.inputs(inputs))  # type: ignore[no-any-return]
        return await self.kernel_invoke(skill, inputs, request, step_limit=step_limit, detach=detach)

    def _stand_in(self, skill: Any) -> Any:
        """Returns the custom executor, or the one that the given function creates for a skill."""
        made: Any = self._executor
        return made if hasattr(made, "invoke") and not isinstance(made, type) else made(self, skill)

    @check_arguments(request=door.check_made)
    async def kernel_invoke(self, skill: Any, inputs: Any, request: Request, *, step_limit: int | None = None, detach: bool = False) -> Run[Any]:
        """Like ``invoke``, but always with Holdfast's own engine. A custom ``executor`` that wraps this engine calls it."""
        program = self._program(skill)
        if request.thread_id is not None and inputs is None:
            return await self._conductor.go_on(request.tenant_id, request.thread_id)
        born = birth(self._services, program, door.inputs(inputs), request)
        return await self._conductor.invoke(program, born, shared=request.thread_id is not None, step_limit=step_limit, detach=detach)

    @overload
    async def run(self, skill: Flow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    async def run(self, /, skill: Graph[S], inputs: Mapping[str, Any] | S | None = None, *, step_limit: int | None = None, **options: Unpack[RunOptions]) -> S: ...

    async def run(self, /, *args: Any, **kwargs: Any) -> Any:
        """Like ``invoke``, but returns the result: a flow's value or a graph's state. All arguments after a flow are its inputs, whatever their names; for options of
        ``invoke`` use ``invoke``.

        Raises:
            RunFailed: the run did not complete; ``run`` is the run.
            RunWaiting: the run waits and has no result yet; ``run`` is the run.
        """
        if args and isinstance(args[0], Flow):
            return result_of(await self.invoke(args[0], args[0].bind(*args[1:], **kwargs)))
        return result_of(await self.invoke(*args, **kwargs))

    def drain(self) -> None:
        """Stops between two steps or recorded calls: the runs that this process executes are released, so that a worker can continue them,
        and no new run is started (§10.13).

        A running node or recorded call finishes first; then ``invoke``, ``resume`` and similar calls return.
        """
        self._services.drivers.drain()

    @property
    def driving(self) -> tuple[str, ...]:
        """The ids of the runs that this process is executing now."""
        return self._services.drivers.driven

    @property
    def left(self) -> tuple[str, ...]:
        """The ids of the runs that were released since ``drain`` was called."""
        return tuple(self._services.drivers.left)

    @verb
    async def recover(self) -> list[Run[Any]]:
        """Takes over runs whose owners have died, executes them until they wait or end, and returns them (§10.6)."""
        await self._own()
        done: list[Report] = []
        worker = Worker(self._services, queues=(), concurrency=100, on_report=done.append, until_idle=True, schedules=False)
        await worker.run()
        for report in done:
            if isinstance(report.error, StoreError):
                raise report.error
        return [await self._reader.get(r.run_id) for r in done]

    @check_arguments(stop=door.event)
    async def worker(
        self,
        *,
        queues: Sequence[str] = ("default",),
        concurrency: int = 10,
        until_idle: bool = False,
        on_report: Callable[[Report], Awaitable[None] | None] | None = None,
        stop: asyncio.Event | None = None,
        dispatch: bool = True,
        upgrade: bool = False,
    ) -> None:
        """Executes due runs, fires schedules and sends outgoing messages (intents) until ``stop`` is set (§10).

        Args:
            queues: the queues to take runs from.
            concurrency: how many runs it executes at the same time.
            until_idle: return when nothing is due.
            on_report: a plain or async function; it is called with a report after each claim.
            stop: when this event is set, the worker takes no new runs, and returns when those that it executes wait or have ended.
            dispatch: whether it also sends outgoing messages.
            upgrade: whether it also takes runs of its skills that began with another version of the skill's graph. By default it takes only
                runs of the current version and of those that the skill lists in ``migrates=`` (§10.11).
        """
        await self._own()

        def make() -> Worker:
            return Worker(self._services, queues=queues, concurrency=concurrency, on_report=on_report, until_idle=until_idle, upgrade=upgrade)

        await run_worker(make, await self._dispatcher() if dispatch else None, self._sends, self._working, stop=stop, until_idle=until_idle)

    # -- the outbox ---------------------------------------------------------------------------------

    @check_arguments(stop=door.event)
    async def dispatch(self, *, stop: asyncio.Event | None = None, until_idle: bool = False) -> int:
        """Sends due outgoing messages (intents) of the types for which there is a transport, until ``stop`` is set; with ``until_idle``
        until nothing is due (§9.1). Returns how many were settled.

        Raises:
            StoreError: a store operation failed.
        """
        dispatcher = await self._dispatcher()
        async with self._sends(not until_idle):
            return await dispatcher.run(stop=stop, until_idle=until_idle)

    @contextlib.asynccontextmanager
    async def _sends(self, told: bool = True) -> AsyncIterator[None]:
        """Tells the store that this process sends intents for which it has transports, for as long as the code inside runs."""
        if not told:
            yield
            return
        self._sending += 1
        self._services.sends = tuple(self._routes)
        try:
            if not self._working:  # otherwise the workers tell it with their own offer
                await self._store.offer(self._services.owner, Offer((), (), works=False, sends=self._services.sends))
            yield
        finally:
            self._sending -= 1
            if not self._sending:
                self._services.sends = ()
                with contextlib.suppress(StoreError):  # the store fails or is closed: the offer of this process ends with its lease
                    await self._store.offer(self._services.owner, next((w.offer for w in self._working), Offer((), (), works=False, sends=())))

    @check_arguments(state=bounds.word(*IntentState), after=bounds.text)
    async def intents(self, run_id: str | None = None, *, state: str | None = None, type: str | None = None, after: str | None = None, limit: int = 100) -> list[IntentView]:
        """Outgoing messages (intents), oldest first, each with all attempts at sending it (§9.3). With ``after``, an intent's id, only later ones."""
        if run_id is not None:
            await self._reader.find(run_id)
        return await self._here(self._rulings).views(await self.store.intents(run_id, state=state, type=type, after=after, limit=limit))

    @verb
    async def redrive(self, intent_id: str, *, actor: str, reason: str = "", force: bool = False) -> IntentView:
        """Sends a dead or unknown outgoing message (intent) again; a postponed one is sent at once (§9.4).

        Raises:
            IntentNotFound: there is no intent with this id.
            IntentSettled: it was already sent or abandoned.
            IntentInFlight: it is being sent.
            AttemptMayLive: its last sender may still be sending it; ``force`` accepts that it may be sent twice.
        """
        return await self._here(self._rulings).redrive(intent_id, actor=actor, reason=reason, force=force)

    @verb
    async def settle(self, intent_id: str, outcome: str, *, actor: str, reason: str = "", result: Any = ...) -> IntentView:
        """Records the outcome of an outgoing message (intent) that is unknown or must not be sent: ``sent`` or ``abandoned`` (§9.4). If it is the
        request of a tool call, the run continues with that: ``result`` is the call's outcome, as a mapping of the fields of ``ToolOutcome``.

        Raises:
            IntentNotFound: there is no intent with this id.
            IntentSettled: it already has another outcome.
            IntentInFlight: it is being sent.
            Denied: the resolver refused it.
        """
        return await self._here(self._rulings).settle(intent_id, outcome, actor=actor, reason=reason, result=result)

    @verb
    async def ledger(
        self, run_id: str | None = None, *, topic: str | None = None, key: str | None = None, after: int | None = None, limit: int = 100
    ) -> list[LedgerView]:
        """Rows of the ledger, oldest first (§9.6). With ``after``, the number of a row, only later ones."""
        if run_id is not None:
            await self._reader.find(run_id)
        return [LedgerView.of(r) for r in await self.store.ledger(run_id, topic=topic, key=key, after=after, limit=limit)]

    # -- schedules ----------------------------------------------------------------------------------

    @verb
    async def schedule(
        self,
        skill: Skill | str,
        inputs: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        cron: str | None = None,
        every: dt.timedelta | float | None = None,
        zone: str | None = None,
        overlap: str = "skip",
        missed: str = "skip",
        catch_up: int = 1,
        grace: dt.timedelta | float | None = None,
        actor: str = "operator",
        thread_id: str | None = None,
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
    ) -> Schedule:
        """Starts a skill regularly from now on. Any running worker that has the skill starts its runs (§10.15).

        The same call again changes nothing; with other values under the same ``id`` it changes the schedule.

        Args:
            id: the schedule's name; by default made from the skill and all arguments.
            cron: five fields, read in ``zone`` (an IANA name, UTC by default): ``0 9 * * MON-FRI``.
            every: an interval (timedelta or seconds), counted from now, instead of ``cron``.
            overlap: what to do at a scheduled time (slot) while the run of the previous slot has not ended: ``skip`` the slot, or ``allow``
                both runs.
            missed: what to do with slots that passed while no worker was running: ``skip`` them, or ``catch_up`` with the newest
                ``catch_up`` of them.
            grace: how late a slot may begin without counting as missed; a minute by default.

        The other arguments are options of its runs, as in ``invoke``.

        Raises:
            InvalidInput, Unserializable: a field of the input, the cron line, the zone or the interval is wrong; the error names it.
            UsageError: cron lines need the extra ``cron``.
        """
        options = {
            "thread_id": thread_id, "session_key": session_key, "lane": lane, "queue": queue, "priority": priority, "job_id": job_id, "trace_id": trace_id, "tags": tags,
            "tenant_id": tenant_id, "target": target, "paused_lane": paused_lane, "recovery": recovery, "unattended": unattended, "budgets": budgets,
        }
        rule = Rule(
            cron=cron, every_us=None if every is None else duration(every, "every"), zone=zone, overlap=overlap, missed=missed, catch_up=catch_up,
            grace_us=sch.GRACE_US if grace is None else duration(grace, "grace"),
        )
        return self._show(await self._scheduler.put(self._program(skill), door.inputs(inputs), rule, id, actor, options))

    @verb
    async def schedules(self) -> list[Schedule]:
        """All schedules; the one whose next slot is soonest comes first."""
        return [self._show(s) for s in await self.store.schedules()]

    @verb
    async def unschedule(self, schedule_id: str) -> None:
        """Removes a schedule. Its runs are not changed.

        Raises:
            ScheduleNotFound: there is no schedule with this id.
        """
        await self._scheduler.drop(schedule_id)

    @verb
    async def pause_schedule(self, schedule_id: str, *, actor: str = "operator") -> Schedule:
        """Pauses a schedule until it is unpaused."""
        return self._show(await self._scheduler.pause(schedule_id, actor))

    @verb
    async def unpause_schedule(self, schedule_id: str, *, actor: str = "operator") -> Schedule:
        """Unpauses a schedule: it continues with its next slot. Slots that passed while it was paused are not made up for."""
        return self._show(await self._scheduler.unpause(schedule_id, actor))

    @verb
    async def trigger(self, schedule_id: str, *, key: str | None = None) -> Run[Any]:
        """Submits a run of the schedule now, in addition to its slots."""
        return await self._conductor.submit(birth_of(self._services, await self._scheduler.find(schedule_id), key=key))

    def _show(self, schedule: sch.Schedule) -> Schedule:
        return Schedule.of(schedule, self.store.now())

    # -- replay and fork ----------------------------------------------------------------------------

    @check_arguments(effects=as_policy)
    async def replay(
        self,
        run_id: str,
        from_checkpoint: str | None = None,
        from_step: int | str | None = None,
        effects: ReplayPolicy | str | None = None,
        *,
        actor: str = "operator",
        reason: str = "",
        key: str | None = None,
        upgrade: bool = False,
        drive: bool = True,
    ) -> Run[Any]:
        """Creates a new run that repeats this one with the results that are recorded for it, and for the runs that it was forked or replayed
        from (§7.6). The source run is not changed.

        Recorded steps, tools and effects return their recorded results, node code runs again, and approvals are asked again.

        Args:
            from_checkpoint: the checkpoint to begin at; by default the start.
            from_step: the step to begin before: its number, or its node's name.
            effects: ``use_recorded_result`` (default), ``reexecute`` or ``require_human``; an environment can only make it stricter.
            drive: whether to execute the new run here until it waits or ends, if this process has the skill.
        """
        policy = None if effects is None else ReplayPolicy(effects)
        wish = Wish(
            kind=REPLAY, checkpoint_id=from_checkpoint, step=from_step, effects=policy, actor=actor, reason=reason, key=key, upgrade=upgrade,
            inherits=self._services.place.inherit_approvals,
        )
        return await self._conductor.reborn(run_id, wish, drive)

    @check_arguments(**dict.fromkeys(FORK, bounds.as_given))
    async def fork(
        self,
        run_id: str,
        from_checkpoint: str | None = None,
        from_step: int | str | None = None,
        *,
        set: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
        reason: str = "",
        actor: str = "operator",
        effects: ReplayPolicy | str | None = None,
        key: str | None = None,
        upgrade: bool = False,
        at: dt.datetime | None = None,
        delay: dt.timedelta | float | None = None,
        inherit_approvals: bool | None = None,
        drive: bool = True,
        tags: Iterable[str] | None = None,
        priority: int | None = None,
        queue: str | None = None,
        lane: str | None = None,
        job_id: str | None = None,
        trace_id: str | None = None,
        environment: str | None = None,
        policy_snapshot_id: str | None = None,
        capabilities: str | None = None,
        unattended: bool | None = None,
        tenant_id: str | None = None,
        recovery: str | None = None,
    ) -> Run[Any]:
        """Creates a new run from a checkpoint of this one, with other values or options (§7.7). The source run is not changed.

        Without a checkpoint it begins where the source run last wrote the edited channels, so that everything that depends on them is done
        again, approvals included. Without edits it begins at the last checkpoint that has work left.

        Args:
            set: channels and their new values, recorded as a patch with ``actor`` and ``reason``.
            inputs: another input; the new run then begins at the start.
            at, delay: when the new run is due; a worker then begins it.
            inherit_approvals: whether approvals of the source run answer the same questions here; the default is set by the environment.
            drive: whether to execute the new run here until it waits or ends, if this process has the skill.

        The other arguments are those of ``replay`` and options of the new run, as in ``invoke``.

        Raises:
            RestrictedOption: the environment does not allow an option; the error names it. Options that raise privileges are never allowed
                by default.
        """
        said = {
            "set": set, "inputs": inputs, "reason": reason, "effects": effects, "key": key, "upgrade": upgrade, "at": at, "delay": delay,
            "inherit_approvals": inherit_approvals, "tags": tags, "priority": priority, "queue": queue, "lane": lane, "job_id": job_id,
            "trace_id": trace_id, "environment": environment, "policy_snapshot_id": policy_snapshot_id, "capabilities": capabilities,
            "unattended": unattended, "tenant_id": tenant_id, "recovery": recovery,
        }
        place = self._services.place
        wish = door.fork(said, place, self.store.now(), checkpoint_id=from_checkpoint, step=from_step, actor=actor)
        return await self._conductor.reborn(run_id, wish, drive)

    # -- answers, signals, cancel -------------------------------------------------------------------

    @verb
    async def decide(
        self,
        run_id: str,
        action: str,
        *,
        wait_id: str | None = None,
        actor: str = "operator",
        feedback: str | None = None,
        note: str | None = None,
        payload: Any = ...,
        resume: bool = True,
        force: bool = False,
        via: str | None = None,
    ) -> Run[Any]:
        """Records a decision about a wait (§5.4). It needs no code and does not continue the run here: a worker or ``resume`` does.

        ``payload`` is the answer, the edited arguments, or the result of the effect; ``record_result`` without it records None as the result.
        With ``resume=False`` no worker continues the run either, until ``resume`` is called. ``via`` is the id of the access token used.

        Raises:
            AmbiguousWait: several waits are open and ``wait_id`` is not given.
            DecisionConflict: the wait was already decided in another way.
            NotDecidable: the wait is not open, or the run's status does not allow a decision.
            ActionUnavailable: the wait does not offer this action.
            Denied: the resolver refused it.
            AttemptMayLive: if the effect is repeated it may happen twice; ``force`` accepts that if the environment allows it (§6.5).
        """
        await self._desk.decide(
            run_id, action, wait_id=wait_id, actor=actor, feedback=feedback, note=note, payload=payload, resume=resume, force=force, via=via
        )
        return await self._reader.get(run_id)

    @check_arguments(limit=bounds.whole(1, MOST_DECISIONS))
    async def decide_all(
        self,
        action: str,
        *,
        where: Mapping[str, str],
        actor: str,
        feedback: str | None = None,
        note: str | None = None,
        payload: Any = ...,
        limit: int = 1000,
    ) -> list[Decided]:
        """Records the same decision about many waits, those of the oldest runs first, each in its own commit.

        Args:
            where: which waits, by ``skill``, ``step``, ``kind``, ``name``, ``thread`` and ``tag``; all given values must be equal.
            limit: the maximum number of waits.

        Returns:
            One value for each wait, with the code of the refusal if the decision was not accepted.

        Raises:
            UnknownOption: an unknown action or an unknown key of ``where``.
            InvalidInput: ``where`` is empty.
        """
        check_action(action)
        chosen = [(run.run_id, wait.wait_id) for run, wait in await self.look.waiting(selected(where), limit)]
        return await self._desk.decide_each(chosen, action, actor=actor, feedback=feedback, note=note, payload=payload)

    @verb
    async def approve(
        self, run_id: str, *, wait_id: str | None = None, actor: str = "operator", note: str | None = None, payload: Any = ..., drive: bool = True,
        via: str | None = None,
    ) -> Run[Any]:
        """Approves the open wait, and continues the run here if this process has the skill. ``payload`` holds edited arguments.

        Args:
            wait_id: the question that is meant. With it the same call can be repeated at any time and changes nothing.
            drive: False only records the approval and leaves the run to a worker, which is what a web application needs.
        """
        await self._desk.decide(run_id, "approve", wait_id=wait_id, actor=actor, note=note, payload=payload, via=via)
        return await (self._conductor.if_able(run_id) if drive else self._reader.get(run_id))

    @verb
    async def deny(
        self, run_id: str, *, reason: str, wait_id: str | None = None, actor: str = "operator", drive: bool = True, via: str | None = None
    ) -> Run[Any]:
        """Denies the open wait. The run is halted, unless the wait delivers denials to its node."""
        await self._desk.decide(run_id, "deny", wait_id=wait_id, actor=actor, note=reason, via=via)
        return await (self._conductor.if_able(run_id) if drive else self._reader.get(run_id))

    @verb
    async def cancel(self, run_id: str, *, actor: str = "operator", reason: str = "") -> Run[Any]:
        """Asks a run to end (§10.12). A run that waits ends at once; a step under way is cut off, unless an effect of it has begun.

        Its effects that have an ``undo=`` are undone first, in this process if it has the skill (§6.11).

        Raises:
            AlreadyTerminal: the run has already ended.
        """
        await self._desk.cancel(run_id, actor=actor, reason=reason)
        return await self._conductor.end_if_asked(run_id)

    @verb
    async def signal(
        self, run_id: str, name: str, payload: Any = None, *, key: str | None = None, actor: str = "operator", tenant_id: str | None = None
    ) -> Run[Any]:
        """Sends a signal to a run, or to the newest run of a thread that has begun. Signals with the same key are delivered once (§5.11)."""
        return await self._reader.get(await self._desk.signal(run_id, name, payload, key=key, actor=actor, tenant_id=tenant_id))

    @verb
    async def issue_token(self, wait_id: str, actor: str, ttl: dt.timedelta | float = dt.timedelta(days=7)) -> str:
        """Creates a secret token that answers one wait once, as ``actor`` (§5.9). It is returned here and not stored. ``redeem`` takes it."""
        return await self._desk.issue(wait_id, actor=actor, ttl_us=duration(ttl, "ttl"))

    @verb
    async def redeem(
        self, token: str, action: str, *, feedback: str | None = None, note: str | None = None, payload: Any = ..., tenant_id: str | None = None
    ) -> Run[Any]:
        """Decides a wait by its token. A refused attempt does not use the token up (§5.9).

        Raises:
            TokenRefused: the token is unknown, used or expired, or its wait is closed.
            DecisionConflict: the wait was already decided in another way.
        """
        return await self._reader.get(await self._desk.redeem(token, action, feedback=feedback, note=note, payload=payload, tenant_id=tenant_id))

    # -- resume -------------------------------------------------------------------------------------

    @verb
    async def resume(
        self,
        run_id: str,
        *,
        payload: Any = ...,
        actor: str = "operator",
        acknowledge: str | None = None,
        force: bool = False,
        wait: bool = True,
        upgrade: bool = False,
        step_limit: int | None = None,
    ) -> Run[Any]:
        """Resumes a run where it stopped, and executes it in this process (§7). The run may have been answered, have failed or been
        canceled, have lost its owner, or have been submitted and not yet started.

        With a ``payload`` it first answers the one open wait of the run, or of the newest live run of the thread if ``run_id`` is the id of
        a thread (§5.11).

        Raises:
            AmbiguousWait: several waits are open, so it is not clear which one the payload answers; the error names them.
            AcknowledgeRequired: the run failed, and ``acknowledge`` is neither its latest checkpoint nor its stop reason (§7.3).
            UndecidedWait: the run waits for a decision that nobody has made yet.
            NothingEligible: what the run waits for has not come yet.
            SettledTerminal: the run has ended permanently.
            RunIsLive: a worker is executing the run now; the error names it and the time at which its lease expires.
        """
        if self._executor is not None and payload is not ...:
            return await self._stand_in(None).resume(run_id, payload)  # type: ignore[no-any-return]
        return await self._conductor.resume(
            run_id, payload=payload, actor=actor, acknowledge=acknowledge, force=force, wait=wait, upgrade=upgrade, step_limit=step_limit
        )

    @verb
    async def kernel_resume(
        self,
        run_id: str,
        *,
        payload: Any = ...,
        actor: str = "operator",
        acknowledge: str | None = None,
        force: bool = False,
        wait: bool = True,
        upgrade: bool = False,
        step_limit: int | None = None,
    ) -> Run[Any]:
        """Like ``resume``, but always with Holdfast's own engine."""
        return await self._conductor.resume(
            run_id, payload=payload, actor=actor, acknowledge=acknowledge, force=force, wait=wait, upgrade=upgrade, step_limit=step_limit
        )

    # -- reading, queues and limits -----------------------------------------------------------------

    @verb
    async def get(self, run_id: str) -> Run[Any]:
        """The run as it is now, with its state."""
        return await self._reader.get(run_id)

    @verb
    async def runs(
        self,
        *,
        status: str | None = None,
        condition: str | None = None,
        skill_id: str | None = None,
        thread_id: str | None = None,
        tag: str | None = None,
        text: str | None = None,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        limit: int = 50,
        before: str | None = None,
        tenant_id: str | None = None,
    ) -> list[Run[Any]]:
        """Runs with their values and results, newest first. For the next page, ``before`` is the last id of this one.

        Args:
            text: only runs with this text in their ids, tags, question, error or values; secret values are not searched.
            since: only runs that were created at this time or later.
            until: only runs that were created before this time.

        Raises:
            InvalidInput, UnknownStatus: an unknown status or condition, a time without a time zone, or a limit above 500.
        """
        wanted = Wanted(
            tenant_id=tenant_id, status=status, condition=condition, skill_id=skill_id, thread_id=thread_id, tag=tag, text=text,
            since=None if since is None else moment(since, "since"), until=None if until is None else moment(until, "until"), limit=limit, before=before,
        )
        return await self._reader.runs(wanted)

    @verb
    async def waits(self, run_id: str | None = None, *, limit: int = 100) -> list[Wait]:
        """Open waits, of one run or of all runs."""
        return await self._reader.waits(run_id, limit=limit)

    @verb
    def events(self, run_id: str, after: int = 0, follow: bool = False, limit: int | None = None) -> Feed[EventView]:
        """Events newer than the number ``after``: ``await`` it for a list, or use ``async for``; with ``follow`` the loop continues until
        the run has ended."""
        return self._reader.events(run_id, after, follow, limit)

    @verb
    async def checkpoints(self, run_id: str) -> list[CheckpointView]:
        """All checkpoints of a run, oldest first (§4.5)."""
        return await self._reader.checkpoints(run_id)

    @verb
    async def checkpoint(self, run_id: str, checkpoint_id: str | None = None) -> CheckpointView:
        """One checkpoint; by default the latest."""
        return await self._reader.checkpoint(run_id, checkpoint_id)

    @verb
    async def state(self, run_id: str, checkpoint_id: str | None = None) -> State:
        """The values of the channels at a checkpoint; by default at the latest."""
        return await self._reader.state(run_id, checkpoint_id)

    @verb
    async def mask(self, run_id: str) -> Mask:
        """Returns a ``Mask`` that hides the run's secret values in other texts (§13.5)."""
        return await self._reader.mask(run_id)

    @verb
    async def record(self, run_id: str) -> dict[str, Any]:
        """The whole run record with all its fields (§3.1), as values that can be written as JSON."""
        return await self._reader.record(run_id)

    @verb
    async def explain(self, run_id: str) -> dict[str, Any]:
        """Explains what happened to a run, why it is in its present state, and how to continue it.

        Returns:
            ``{"run_id", "happened": [sentence], "why": sentence, "next": [{"text", "command"}]}``.
        """
        run, lease = await self._reader.find(run_id)
        return await explain_run(self._services, run, lease, await self._reader.mask(run_id))

    @verb
    async def effects(self, run_id: str) -> list[Effect]:
        """The effect records of a run, oldest first (§6.4)."""
        return await self._reader.effects(run_id)

    @verb
    def shelf(self, name: str) -> Shelf:
        """A shelf: rows of your application, kept in the same store (§19.2)."""
        return Shelf(self._store, name, loop=self._loop)

    @property
    def look(self) -> Looker:
        """The read access behind the command line, the HTTP API and the pages: typed values from one moment, with secrets hidden."""
        return self._here(self._looker)

    @verb
    async def steps(self, run_id: str) -> list[StepView]:
        """The steps of a run and the recorded calls inside them, in the order in which they began."""
        return (await self.look.snapshot(run_id, check=False)).steps()

    @verb
    async def attempts(self, run_id: str) -> list[AttemptView]:
        """All attempts at all steps of a run (§10.9)."""
        return (await self.look.snapshot(run_id, check=False)).attempts()

    @verb
    async def workers(self) -> list[WorkerView]:
        """The processes that hold leases."""
        return await self.look.workers()

    @verb
    async def lanes(self) -> list[LaneView]:
        """The lanes (runs that execute one after another, such as those of one thread) that a run holds, and the runs that wait for them
        (§10.8)."""
        return await self.look.lanes()

    @verb
    async def queues(self) -> list[QueueView]:
        """The queues that have a due or running run, or that are paused: how many runs, and what prevents them from starting (§10.11)."""
        return await self.look.queues(self._services.limits)

    @verb
    async def limits(self) -> list[LimitView]:
        """The limits in force: those that are stored, and those that this process and the running workers declare (§10.11)."""
        return await self.look.limits(self._services.limits)

    @check_arguments(limit=bounds.as_given)
    async def set_limit(self, name: str, limit: Limit, *, actor: str, reason: str = "") -> LimitView:
        """Stores a limit. From then on it takes precedence over the one that any process declares.

        Raises:
            InvalidInput: ``name`` cannot be the name of a limit, or ``limit`` is not a ``Limit``.
        """
        ((found, given),) = bounding.admit({name: limit}).items()
        return await self._change(found, "set", given, actor, reason)

    @verb
    async def unset_limit(self, name: str, *, actor: str, reason: str = "") -> LimitView:
        """Removes the stored limit with this name; the limits that processes declare apply again."""
        return await self._change(bounding.name(name), "unset", None, actor, reason)

    @verb
    async def pause_queue(self, queue: str, *, actor: str, reason: str = "") -> QueueView:
        """Pauses a queue: no more of its runs start; those that are being executed continue until they wait or end."""
        await self._change(bounding.QUEUE + queue, "paused", None, actor, reason)
        return await self._queue(queue)

    @verb
    async def unpause_queue(self, queue: str, *, actor: str, reason: str = "") -> QueueView:
        """Unpauses a queue."""
        await self._change(bounding.QUEUE + queue, "unpaused", None, actor, reason)
        return await self._queue(queue)

    async def _queue(self, queue: str) -> QueueView:
        return next((q for q in await self.queues() if q.queue == queue), QueueView(queue=queue, depth=0, oldest_at=None, in_flight=0, paused=False, blocked={}))

    async def _change(self, name: str, action: str, limit: Limit | None, actor: str, reason: str) -> LimitView:
        change = bounding.Change(self.store.now(), actor, action, limit, reason, VIA.get())
        for _ in range(CHANGE_TRIES):
            before = next((r for r in await self.store.rules() if r.name == name), None)
            if await self.store.put_rule((before or bounding.Rule(name)).change(change), before):
                self._services.rebound()
                return await self.look.limit(name, self._services.limits)
        raise Conflict(f"others keep changing {name}", hint="try again")

    # -- upkeep, results, streams -------------------------------------------------------------------

    @verb
    async def check(self, run_id: str | None = None) -> Findings:
        """Checks one run, or the store and all its runs, and returns what is wrong (§12). It writes nothing."""
        checker = Checker(self.store, self._routes)
        return await checker.all() if run_id is None else await checker.run(run_id)

    @verb
    async def repair_run_state(self, run_id: str, apply: bool = False, *, actor: str = "operator", rebuild: bool = False, accept: bool = False) -> Repair:
        """Repairs the damage that can be repaired safely (§12.3), and only that. Without ``apply`` it reports what it would do and writes nothing.

        With ``rebuild``, as with ``doctor --rebuild``, the run's row is computed from its events again, even if the row holds facts that no event records.
        With ``accept``, as with ``doctor --rebuild --acknowledge``, intents and ledger rows that the events name and that are missing are accepted as lost.
        """
        return await Repairer(self.store).repair(run_id, apply=apply, actor=actor, rebuild=rebuild, accept=accept)

    @verb
    async def export(self, run_id: str, folder: str | os.PathLike[str]) -> str:
        """Writes a run into a workspace below ``folder``, with exactly the stored bytes of its events; returns the run's directory (§12.5)."""
        target = stores.WorkspaceStore(folder, now=self._clock.now)
        await target.open()
        try:
            found = await transfer.dossier(self.store, run_id)
            await transfer.write_out(found, target)
            if keys := transfer.keys_in(found):
                told = {"keys": keys, "encrypted": "what programs and people said", "in clear": "ids, names, keys, tags, actors, times, statuses and digests"}
                target.note(run_id, "encrypted.json", told)
            return target.place(run_id)
        except BaseException:
            target.unmake()
            raise
        finally:
            await target.close()

    @verb
    async def import_runs(self, folder: str | os.PathLike[str]) -> tuple[list[str], list[str]]:
        """Imports the runs of a workspace, or a single run by its directory. Returns the ids of the imported runs and the ids of those that
        existed already.

        Raises:
            NotFound: the folder does not exist, or it holds no run.
        """
        folder, kept = os.path.abspath(folder), self.store
        way_out = "give the folder that an export wrote, or one run's folder in it"
        if not os.path.isdir(folder):
            raise NotFound(f"there is no folder {folder}", hint=way_out)
        only = unquote(os.path.basename(folder)) if os.path.isfile(os.path.join(folder, "events.jsonl")) else None
        source = stores.WorkspaceStore(os.path.dirname(folder) if only else folder, now=self._clock.now)
        await source.open()
        taken: list[str] = []
        there: list[str] = []
        try:
            async for run_id in Checker(source).run_ids():
                if only not in (None, run_id):
                    continue
                (taken if await transfer.take_in(source, kept, run_id) else there).append(run_id)
        finally:
            await source.close()
        if not taken and not there:
            raise NotFound(f"there is no run in the folder {folder}", hint=way_out)
        return taken, there

    @verb
    async def prune(self, older_than: dt.timedelta, *, dry: bool = False, actor: str = "operator") -> Pruned:
        """Deletes runs with their forks, replays and children, if all of them ended longer ago than ``older_than`` and none has an unsettled
        effect or intent (§6.10). A later request for a deleted run raises ``RunPruned``, with the time and the actor."""
        before = self.store.now() - duration(older_than, "older_than")
        return await prune(self.store, keeper(self.store), before, dry=dry, actor=text_of(actor, "actor"))

    @verb
    async def backup(self, path: str | os.PathLike[str]) -> None:
        """Copies the store into one file, while it is in use."""
        await self._copies().backup(os.path.abspath(path))

    @verb
    async def restore(self, path: str | os.PathLike[str]) -> None:
        """Replaces the content of the store with a backup. Workers and calls that began before are refused from then on (X-02): ``LeaseLost``."""
        await self._copies().restore(os.path.abspath(path))
        await self._start_over()

    @verb
    async def acknowledge(self) -> None:
        """Accepts a log whose end was lost (§1.9). Call it only after an operator has decided so."""
        await watchful(self.store).acknowledge()
        await self._start_over()

    def _copies(self) -> Copies:
        if offers_copies(self.store):
            return self.store
        raise UsageError(f"{self.store.url} is not a store in one file", hint="use the database's own tools, copy a workspace's directory, or export its runs")

    @verb
    async def result(self, run_id: str, timeout: dt.timedelta | float | None = None) -> Any:
        """Waits for a run's end and returns its result. ``timeout`` is a timedelta or seconds.

        Raises:
            RunFailed: the run ended without a result.
            RunWaiting: the run waits and has no result yet.
            TimeoutError: the run is still being executed after ``timeout``.
        """
        limit = None if timeout is None else duration(timeout, "timeout") / 1_000_000
        return result_of(await self._reader.wait_for_rest(run_id, limit))

    @check_arguments(after=bounds.as_given, modes=bounds.as_given)
    def stream(self, run_id: str, *, after: str | None = None, modes: Iterable[str] = ("events", "custom")) -> AsyncIterator[StreamPart]:
        """Follows a run from any process, also across its waits, until it has ended (§13.6).

        Args:
            after: the cursor of a part: only later parts, each once. By default from the beginning, with the chunks that no durable result
                has replaced yet.
            modes: the kinds of parts. ``events``: the run's events; ``custom``: the chunks of ``ctx.emit``; ``messages``: those chunks that
                are pieces of messages, mappings with ``role`` and ``content``; ``updates``: the writes of each step; ``values``: the
                channels after each step.
        """
        return self.follower(run_id, modes=modes, after=after).parts()

    @check_arguments(after=Cursor.read, modes=modes_of)
    def follower(
        self, run_id: str, *, after: Any = None, modes: Iterable[str] = ("events", "custom"), tenant_id: str | None = None, source: Source | None = None
    ) -> Follower:
        """The lower-level reader behind ``stream``, for servers whose readers share one source."""
        return Follower(self.store, source or DirectSource(self.store, self.look), self._services.threads, run_id, frozenset(modes), after, tenant_id)

    @check_arguments(modes=modes_of)
    async def run_stream(
        self,
        skill: Skill | str,
        inputs: Mapping[str, Any] | State | None = None,
        *,
        modes: Iterable[str] = MODES,
        thread_id: str | None = None,
        key: str | None = None,
        session_key: str | None = None,
        lane: str = "main",
        queue: str = "default",
        priority: int = 0,
        job_id: str | None = None,
        trace_id: str | None = None,
        tags: Iterable[str] = (),
        tenant_id: str = "default",
        target: str | None = None,
        paused_lane: str = "hold",
        recovery: str = "auto",
        unattended: bool = False,
        budgets: Mapping[str, float] | None = None,
        on_busy: str = "queue",
    ) -> AsyncIterator[StreamPart]:
        """Creates a run, executes it here and streams it until it ends. The first part is the run itself, with the mode ``run``.

        The stream continues across waits, wherever they are answered. If you leave the loop, the run is still executed until it waits or
        ends. The other arguments are those of ``invoke``.

        Args:
            modes: the kinds of parts, as in ``stream``.

        Raises:
            UnknownOption, InvalidInput, TooLarge, Unserializable: an option or a field of the input is wrong; the error names it.
        """
        run = await self.submit(
            skill, inputs, thread_id=thread_id, key=key, session_key=session_key, lane=lane, queue=queue, priority=priority, job_id=job_id, trace_id=trace_id,
            tags=tags, tenant_id=tenant_id, target=target, paused_lane=paused_lane, recovery=recovery, unattended=unattended, budgets=budgets, on_busy=on_busy,
        )
        await self._own()
        driving = asyncio.ensure_future(self._drive_to_its_end(run.run_id))
        self._following.add(driving)
        driving.add_done_callback(self._following.discard)
        feed = self.follower(run.run_id, modes=modes, after=str(Cursor())).parts()
        try:
            yield StreamPart("run", run, "0", run.run_id)
            while (part := await next_or_failed(feed, driving)) is not None:
                yield part
        finally:
            await feed.aclose()  # type: ignore[attr-defined]

    async def _drive_to_its_end(self, run_id: str) -> None:
        """Executes a run as far as possible, and continues whenever its wait is over."""
        while (driven := await self._conductor.drive_on(run_id, named=False)).status not in TERMINAL:
            waits = driven.blocked_by is not None
            while waits or not await self._moves(run_id):
                await self._store.wait_for_change(POLL_SECONDS)
                waits = False

    async def _moves(self, run_id: str) -> bool:
        """Whether a run has ended, or can be continued."""
        run, lease = await self._reader.find(run_id)
        now = self._store.now()
        return run.status in TERMINAL or (not lease.live(now) and lease.due is not None and lease.due <= now)

    @check_arguments(after=text_of)
    async def history(self, thread_id: str, *, limit: int | None = None, after: str | None = None) -> list[dict[str, Any]]:
        """Every checkpoint of the runs of a thread, oldest first, as ``{id, runId, values, metadata, createdAt, nextTasks}`` (§4.16). With
        ``after``, the id of a checkpoint, only later ones. Lists and dicts inside ``values`` are read-only; copy one (``list(x)``, ``dict(x)``) to change it.

        Raises:
            CheckpointNotFound: ``after`` is not a checkpoint of this thread.
        """
        return await histories.history(self.store, self._reader, thread_id, limit=limit, after=after)

    @verb
    async def diff(self, run_id: str, a: str, b: str) -> dict[str, Any]:
        """What changed in a run's state from checkpoint ``a`` to checkpoint ``b``: the added, removed and changed channels."""
        return await histories.diff(self._reader, run_id, a, b)

async def _end_threads(services: Services) -> None:
    """Waits a while for the threads that still run plain code, and reports those that continue: a thread cannot be ended."""
    services.drivers.abandon()
    pool = services.pool
    left = await asyncio.get_running_loop().run_in_executor(None, pool.close, CLOSE_SECONDS) if pool.running else pool.close(0)
    if left:
        log.warning("closed while %s still ran in a thread, which nothing can end; what it does is not recorded any more", ", ".join(left))


def _home() -> None:
    """Creates the folder of the default store."""
    try:
        pathlib.Path(".holdfast").mkdir(exist_ok=True)
    except OSError as e:
        raise StoreReadOnly(f".holdfast cannot be made here: {e.strerror}", hint="name a store elsewhere: sqlite:////path/to/runs.db") from e


@overload
def run(skill: Flow[P, R], inputs: Mapping[str, Any] | None = None, **options: Unpack[OneRunOptions]) -> R: ...
@overload
def run(skill: Graph[S], inputs: Mapping[str, Any] | S | None = None, **options: Unpack[OneRunOptions]) -> S: ...
@check_arguments(inputs=bounds.mapping, store=bounds.path)
def run(
    skill: Skill,
    inputs: Mapping[str, Any] | State | None = None,
    *,
    store: str | None = None,
    thread_id: str | None = None,
    key: str | None = None,
    step_limit: int | None = None,
    tags: Iterable[str] = (),
    trace_id: str | None = None,
    budgets: Mapping[str, float] | None = None,
    unattended: bool = False,
) -> Any:
    """Runs a skill to its end with one call and returns its result. You need no event loop. The options are those of ``Runtime.invoke``.

    Args:
        store: the URL of the store, as for ``Runtime``.

    Raises:
        UsageError: it was called inside a running event loop.
        RunFailed: the run did not complete; ``run`` is the run.
        RunWaiting: the run waits and has no result yet; ``run`` is the run.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        given = {"thread_id": thread_id, "key": key, "step_limit": step_limit, "tags": tags, "trace_id": trace_id, "budgets": budgets, "unattended": unattended}
        return asyncio.run(_run(skill, inputs, store, given))
    raise UsageError("holdfast.run starts an event loop, and one is running here", hint="async with Runtime(…) as rt: await rt.run(…)")


async def _run(skill: Skill, inputs: Mapping[str, Any] | State | None, store: str | None, options: Mapping[str, Any]) -> Any:
    async with Runtime(store, skills=[skill]) as rt:
        return result_of(await rt.invoke(skill, inputs, **options))


__all__ = ["Runtime", "choose_store", "run"]

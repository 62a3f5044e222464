"""``Attempt``: what one attempt at a step may see and do. ``Context`` is the part of it that users see (§4.12).

The engine passes it to everything that it does for the step: recorded steps, effects, waits, scopes, gates and tools. Each of these is a module of functions that
take an attempt and use only its public members.

Places. After a crash or a wait a node runs again from its first line. Each of its calls is recorded under a place: a path of positions, one per call in its scope,
or an explicit key. If a call's place has a record, the record answers the call. Their names must match; otherwise the code no longer fits what was recorded, and
the call raises. ``gather``, ``map`` and ``first_of`` open numbered scopes, so that the places of concurrent calls do not depend on timing; calls with keys may begin
in any order. A call is answered by the run's own log, by a record that a replay or fork takes over (``Journal.record``), or by a recording (``holdfast.testing``).
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
import threading
import weakref
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from holdfast.core import bounds, canon, ids, outdated
from holdfast.core.called import Call
from holdfast.core.checkpoint import IntentWrite, LedgerWrite, StepRecord, Task, find_scopes
from holdfast.core.chunks import RING_BYTES, Place
from holdfast.core.effects import Effect
from holdfast.core.errors import ConcurrentScope, InvalidInput, NotAwaited, RecordMismatch, SuspensionSwallowed
from holdfast.core.graph import Node, Program
from holdfast.core.outcomes import OK
from holdfast.core.retry import time_left
from holdfast.core.waits import Wait, WaitKind
from holdfast.engine.base.failures import ControlFlow, find_ways_out, revive
from holdfast.engine.base.journal import Draft, Journal
from holdfast.engine.base.services import Asked, Services
from holdfast.engine.base.streams import Track
from holdfast.engine.calls.functions import Calling, Patience, calling, refuse_beside

MOST_KEY_CHARS = 200
_making = threading.Lock()  # a plain node may make its first recorded calls from several threads
SWALLOWED, CAUGHT = "caught the internal exception that suspends it", "do not catch BaseException around ctx calls"
SHOWN = 3  # how many calls an error shows before and after the one that differs


class Suspend(ControlFlow):
    """Leaves the node because it waits; users are not meant to catch it (§5.12)."""

    def __init__(self, waits: tuple[Wait, ...]) -> None:
        super().__init__("the node is being suspended; do not catch BaseException around ctx calls")
        self.waits = waits

    def join(self, others: Sequence[ControlFlow]) -> ControlFlow:
        """Combines the ways out of branches: the waits of all, or another way out if a branch has one."""
        other = next((e for e in others if not isinstance(e, Suspend)), None)
        waits = {w.wait_id: w for e in (self, *others) if isinstance(e, Suspend) for w in e.waits}
        return other or Suspend(tuple(waits.values()))


class Restart(ControlFlow):
    """Leaves a flow to restart it in the same lineage (§4.12)."""

    def __init__(self, inputs: dict[str, Any]) -> None:
        super().__init__("the flow begins afresh; do not catch BaseException around ctx.restart")
        self.inputs = inputs


class Scope:
    """Numbers the calls of one line of control. ``prefix``: the path to it; ``made``: how many calls it has made; ``busy``: the paths of its calls in flight; ``within``:
    how many items of maps it is inside, each of which is a call in flight itself; ``item``: a short form of the innermost item; ``mark``: the one of its ``Places``;
    ``left``: the asyncio task that last left it to wait, and the waits."""

    __slots__ = ("busy", "item", "left", "made", "mark", "next", "prefix", "within")

    def __init__(self, mark: object, prefix: str, within: int = 0, item: str = "") -> None:
        self.mark = mark
        self.prefix = prefix
        self.next = self.made = 0
        self.busy: dict[str, str] = {}
        self.within = within
        self.item = item
        self.left: tuple[weakref.ref[asyncio.Task[Any]], tuple[Wait, ...]] | None = None


current: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("holdfast_scope", default=None)


class Places:
    """The places of one attempt at a task. ``node``: the node's name, for errors; ``waits``: the waits of the attempt; ``handled``: the calls that were made while an error
    was being handled; ``errors``: the errors of its branches. Scopes know it by ``mark`` only, because a reference would form a cycle that only the garbage collector frees."""

    def __init__(self, services: Services, journal: Journal, key: str, step: int, node: str, prefix: str, waits: Mapping[str, Wait]) -> None:
        self._services = services
        self._journal = journal
        self._key = key
        self._step = step
        self._node = node
        self._waits = waits
        self.handled: list[tuple[str, BaseException]] = []
        self.errors: list[BaseException] = []
        self.mark = object()
        self.root = Scope(self.mark, prefix)
        self.closed = False
        self.reworded: set[str] = set()
        self._told: list[str] = []
        self._odd: dict[tuple[str, str], str] = {}
        self._scopes: frozenset[str] | None = None

    def scope(self) -> Scope:
        """Returns the scope of the current line of control."""
        scope = current.get()
        return scope if scope is not None and scope.mark is self.mark else self.root

    @property
    def nested(self) -> bool:
        """Whether other lines of control of this task may still run."""
        scope = self.scope()
        return scope is not self.root or len(scope.busy) > 1

    def peek(self) -> str:
        """Returns the place that the next call without a key will get."""
        scope = self.scope()
        return f"{scope.prefix}{scope.next}"

    @contextmanager
    def open(self, name: str, key: str | None = None) -> Iterator[str]:
        """Opens the path of one call; refuses a call without a key while another call of the same scope is in flight (§4.12)."""
        scope = self.scope()
        if self.closed:
            raise ConcurrentScope(f"the call of {name} began after {self._node} had ended", hint="await every ctx call, or use ctx.gather")
        self.leave()
        if key is None:
            if scope.busy:
                raise refuse_beside(name, scope.busy)
            path = f"{scope.prefix}{scope.next}"
            scope.next += 1
        else:
            if not key or "/" in key or len(key) > MOST_KEY_CHARS:
                raise InvalidInput(f"the key {key!r} must be 1 to {MOST_KEY_CHARS} characters without '/'")
            path = f"{scope.prefix}={key}"
            if path in scope.busy:
                raise ConcurrentScope(f"the call of {name} began while {scope.busy[path]} with the same key {key!r} was under way", hint="give each call its own key")
        if (error := sys.exception()) is not None:
            self.handled.append((path, error))
        scope.busy[path] = name
        scope.made += 1
        try:
            yield path
        except Suspend as rests:
            if (task := asyncio.current_task()) is not None:
                scope.left = weakref.ref(task), rests.waits
            raise
        finally:
            del scope.busy[path]

    def leave(self) -> None:
        """Raises the way out again if the calling code runs on the way out, as in a ``finally``. The node passes this call again when it ends.

        Raises:
            Suspend: the way out that the node is taking.
            SuspensionSwallowed: the node has caught it.
        """
        if self._waits and (rests := [w for way in find_ways_out(sys.exception()) if isinstance(way, Suspend) for w in way.waits if w.wait_id in self._waits]):
            raise Suspend(tuple(rests))
        left = self.scope().left if self._waits else None
        if left is not None and left[0]() is asyncio.current_task() and any(w.wait_id in self._waits for w in left[1]):
            raise SuspensionSwallowed(f"{self._node} {SWALLOWED}", hint=CAUGHT)

    def lookup(self, call: Call) -> StepRecord | None:
        """Returns the record at a place, if it belongs to this call. If there is none, the place must not belong to another call.

        Plain code may compute other arguments when it runs again. But if the arguments are recorded at another place, two calls were swapped.

        Raises:
            RecordMismatch: shows what was recorded and what the code calls now.
        """
        path, name, kind, digest = call.path, call.name, call.kind, call.digest
        self._told.append(label(kind, name))
        record = self._journal.record(self._key, path, call)
        if record is not None and (self._key, path) in self._journal.progress.outdated and not outdated.is_same(record, call):
            record = None
        if record is None and self._services.recording is not None:
            record = self._services.recording.answer(Asked(self._journal.run.run_id, self._step, self._key, path, kind, name, digest, call.args))
            if record is not None:
                self._journal.hold(Draft(results=[record]))
                return record
        if record is None:
            if kind in _ENDS_REPLAY:
                self._journal.end_replay()
            if (name, digest) in self._odd:
                raise self.mismatch(path, f"{name} with the arguments recorded at call {self._odd[name, digest]}")
            if not call.opens and path in self._find_scopes():
                raise self.mismatch(path, label(kind, name))
            return None
        if (record.name, record.kind) != (name, kind):
            raise self.mismatch(path, label(kind, name))
        if digest and record.digest and digest != record.digest:
            for r in self._mine():
                if r.digest == digest and r.name == name:
                    raise self.mismatch(path, f"{name} with the arguments recorded at call {r.path}")
            self._odd[name, record.digest] = path
        return record

    def is_outdated(self, path: str) -> bool:
        """Whether the record or question at a place answers only the very same call, because something that its arguments may depend on has been dropped."""
        return (self._key, path) in self._journal.progress.outdated

    def find_question(self, path: str, kind: WaitKind, prompt: str, *, swappable: bool) -> Wait | None:
        """Returns the question of this kind that was asked at a place, whatever its wording (§5.8).

        Raises:
            RecordMismatch: the wording is that of a question at another place, so two questions were swapped (L-10).
        """
        questions, out = self._journal.progress.questions, self._journal.progress.outdated
        before = questions.get((self._key, path))
        if before is not None and before.kind is not kind:
            return None
        if swappable and (before is None or before.prompt != prompt):
            for (task, at), wait in questions.items():
                other = task == self._key and at != path and (task, at) not in out
                if other and wait.kind is kind and wait.prompt == prompt and (before is not None or at in self.reworded):
                    raise self.mismatch(path, f"{kind.value} {prompt!r}, which was asked at {at}")
            if before is not None:
                self.reworded.add(path)
        return before

    def _mine(self) -> list[StepRecord]:
        prefix = self.root.prefix
        out = self._journal.progress.outdated
        return [r for place, r in list(self._journal.progress.records.items()) if place[0] == self._key and r.path.startswith(prefix) and place not in out]

    def _find_scopes(self) -> frozenset[str]:
        """Returns the places of an earlier attempt that were scopes: places with records beneath them."""
        if self._scopes is None:
            mine = self._mine()
            self._scopes = find_scopes(mine) if mine else frozenset()
        return self._scopes

    def mismatch(self, path: str, now: str) -> RecordMismatch:
        """Describes in one sentence how the records at and near this place differ from what the code calls."""
        recorded = self._beside(path)
        at = next((n for n, (place, _) in enumerate(recorded) if place == path), len(recorded))
        shown = [said for _, said in recorded[max(0, at - SHOWN) : at + SHOWN + 1]]
        called = [*self._told[:-1], now][-SHOWN - 1 :]
        return RecordMismatch(
            f"call {path} of {self._key} does not match its record: the record has {', '.join(shown)}, but the code now calls {', '.join(called)}",
            hint="restore the order of the calls, give them keys, or fork the run from an earlier checkpoint",
        )

    def _beside(self, path: str) -> list[tuple[str, str]]:
        """Returns the recorded calls at the level of a place, each with its name; a scope without a record of its own is described as one."""
        above, depth = path.rpartition("/")[0], path.count("/") + 1
        found: dict[str, str] = {}
        for record in self._mine():
            at = record.path.removeprefix(self.root.prefix)
            if not above or at.startswith(f"{above}/"):
                place = "/".join(at.split("/")[:depth])
                if place == at:
                    found[place] = f"{place} {label(record.kind, record.name)}"
                else:
                    found.setdefault(place, f"{place} with calls of its own")
        return list(found.items())


_ENDS_REPLAY = frozenset({"step", "value", "child"})


def label(kind: str, name: str) -> str:
    """Returns a call as errors show it."""
    match kind:
        case "step" | "effect" | "scope" | "first_of":
            return name
        case "wait":
            return " ".join(repr(part) if i else part for i, part in enumerate(name.split(":", 1)))
    return f"{kind} {name!r}" if kind != name else kind


REDO = "@redo"
RETRY = "@retry"
NO_NODES: Mapping[str, Node] = {}


class Attempt:
    """One attempt at one task. ``number`` counts from 1. ``key``: the run's own task; ``inner``: the path to a task of a sub-flow inside it (§4.14); ``state``: what
    the step sees; ``waits``: the waits in which it is to rest; ``calls``: how many calls are in flight; ``parked``: it has stopped in order to be handed back
    (§10.13). ``plain``: it runs outside the event loop."""

    def __init__(
        self, services: Services, journal: Journal, node: Node, task: Task, *, number: int = 1, key: str = "", inner: str = "", program: Program | None = None,
        state: Mapping[str, Any] = canon.EMPTY_DICT, patience: Patience | None = None, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self.services = services
        self.journal = journal
        self.node = node
        self.task = task
        self.number = number
        self.key = key or task.key
        self.inner = inner
        self.prefix = f"{inner}/" if inner else ""  # the prefix of all places of this task, in every round
        self.nodes: Mapping[str, Node] = NO_NODES if program is None else program.nodes
        self.state = state
        self.rounds, self.feedback = self._count_redone()
        self.step = journal.progress.checkpoint.step_of(self.key)
        self._closed = False
        self._places: Places | None = None  # most steps make no recorded call
        self.waits: dict[str, Wait] = {}
        self.intents: list[IntentWrite] = []
        self.ledger: list[LedgerWrite] = []
        self.before: list[Effect] | None = None  # the run's effects, as they were when a call first looked for other keys at its place
        self.outcome = OK
        self.plain = False
        self.restarting = False
        self.calls = 0
        self.parked = False
        self.patience = Patience(node.timeout_us, own=node.timed) if patience is None else patience
        self._loop = asyncio.get_running_loop() if loop is None else loop
        self._patient = [self.patience]
        self._track: Track | None = None
        self.made: list[tuple[str, Coroutine[Any, Any, Any]]] = []  # the newest calls that the node is to await, with their verbs

    # -- where it stands ----------------------------------------------------------------------------

    @property
    def step_id(self) -> str:
        return ids.step_id(self.journal.run.run_id, self.step, self.key, self.inner)

    @property
    def attempt_id(self) -> str:
        return ids.attempt_id(self.step_id, self.number)

    @property
    def root(self) -> str:
        """The prefix of all places of this round."""
        return f"{self.prefix}@{self.rounds}/" if self.rounds else self.prefix

    @property
    def places(self) -> Places:
        """The places of its recorded calls."""
        if self._places is None:
            with _making:
                if self._places is None:
                    places = Places(self.services, self.journal, self.key, self.step, self.node.name, self.root, self.waits)
                    places.closed = self._closed
                    self._places = places
        return self._places

    @property
    def payload(self) -> Any:
        return None if self.task.payload is None else canon.decode(self.task.payload)

    @property
    def reads(self) -> dict[str, Any]:
        """What the step depends on: the state that it sees, and the payload of a ``Send``."""
        return {**self.state, "payload": self.payload} if self.task.payload is not None else dict(self.state)

    @property
    def concurrent(self) -> bool:
        """Whether other calls of this task may still run, so that a wait must be durable at once (§5.2)."""
        return self.places.nested or bool(self.inner)

    @property
    def rearmed(self) -> frozenset[str]:
        """Open questions that an operator has asked again because a person is there now (§5.17)."""
        return frozenset(w.wait_id for w in self.journal.run.waits if w.round > 0)

    async def effects(self) -> list[Effect]:
        """The effects attempted in this step so far, in all its attempts and rounds, oldest first."""
        found = await self.journal.asking(self.services.store.effects(self.journal.run.run_id))
        return [e for e in found if (e.step, e.task) == (self.step, self.key) and e.path.startswith(self.prefix)]

    # -- what is on record --------------------------------------------------------------------------

    def record(self, path: str) -> StepRecord | None:
        return self.journal.record(self.key, path)

    def serve(self, record: StepRecord) -> Any:
        """Returns the value of a record that is stored whole; raises a recorded failure again."""
        if record.error is not None:
            raise revive(record.error)
        return None if record.value is None else canon.decode(record.value)

    async def give(self, record: StepRecord) -> Any:
        """Returns the value of a record, wherever it is stored."""
        return self.serve(await self.journal.whole(record))

    async def save(self, draft: Draft) -> None:
        """Makes a draft of this attempt durable."""
        self.refuse_late()
        await self.journal.save(draft)

    def refuse_late(self) -> None:
        """Raises if the attempt is over: code that outlives it must not write."""
        if self.places.closed:
            raise ConcurrentScope(f"a ctx call of {self.node.name} ended later than the node itself", hint="await every ctx call, or use ctx.gather")

    async def pause(self, due: int, failed: int, base_us: int) -> None:
        """Waits until a call that has failed so often may be attempted again."""
        if pause := time_left(due, self.services.clock.now(), failed, base_us):
            await self.services.clock.sleep(pause / 1_000_000)

    # -- its time -----------------------------------------------------------------------------------

    @contextmanager
    def minding(self, patience: Patience) -> Iterator[None]:
        """Makes progress extend the time of a call while it runs (§10.10)."""
        patience.move(self._loop.time())
        self._patient.append(patience)
        try:
            yield
        finally:
            self._patient.remove(patience)

    def move_on(self) -> None:
        """Notes progress: default timeouts count anew from here."""
        now = self._loop.time()
        for patience in list(self._patient):
            if not patience.own:
                patience.move(now)

    # -- what it emits ------------------------------------------------------------------------------

    def emit(self, value: Any) -> None:
        """Stores a chunk for those who stream the run (§13.6).

        Raises:
            Unserializable, TooLarge: it cannot be stored.
        """
        self.move_on()
        data = bounds.check_size(canon.pack(value, "chunk")[1], "chunk", RING_BYTES)
        self.services.streams.emit(self.journal.ring, self._track_of(calling.get()), data, self.journal.run.version, self._loop)

    def _track_of(self, within: Calling | None) -> Track:
        """Returns the track of this attempt, or of the recorded call that is running."""
        if within is None:
            if self._track is None:
                self._track = self._enter(self.inner, self.number, "", again=True)
            return self._track
        if within.track is None:
            within.track = self._enter(within.path, within.number, within.tag, again=False)
        return within.track

    def _enter(self, path: str, number: int, tag: str, *, again: bool) -> Track:
        place = Place(self.step, self.key, path)
        return self.journal.ring.enter(place, number, self.rounds, self.step_id, self.attempt_id + tag, again=again)

    # -- safe points --------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Begins a call; refuses it once the run was asked to stop at its next boundary (§10.13)."""
        if self.journal.safe_points.asked:
            self.calls -= self.places.scope().within  # the items of maps around it stop with it
            await self.journal.safe_points.stand(self)
        self.calls += 1
        self.patience.hold()

    def finish(self) -> None:
        """Notes that a call has ended and its result is recorded."""
        self.calls -= 1
        self.patience.release(self._loop.time())
        if self.journal.safe_points.asked:
            self.journal.safe_points.look()

    def close(self) -> None:
        """Ends the attempt, so that code which the node has left running cannot write into the next step's records."""
        self._closed = True
        self.made.clear()
        if self._places is not None:
            self._places.closed = True
            self._places.handled.clear()
            self._places.errors.clear()

    def end(self) -> None:
        """Notes that the node has returned.

        Raises:
            ConcurrentScope: it returned while one of its calls was in flight.
            NotAwaited: it never awaited one of its calls.
            SuspensionSwallowed: it caught the way out that it was to take.
        """
        forgotten = [verb for verb, call in self.made if inspect.getcoroutinestate(call) == inspect.CORO_CREATED]
        self.close()
        if self._places is not None and (busy := self._places.root.busy):
            raise ConcurrentScope(f"{self.node.name} returned while ctx.{', '.join(busy.values())} was in flight", hint="await it, or use ctx.gather")
        if self.waits or self.restarting:
            raise SuspensionSwallowed(f"{self.node.name} {SWALLOWED}", hint=CAUGHT)
        if forgotten:
            raise NotAwaited(f"{self.node.name} returned, and ctx.{forgotten[-1]} was called without await", hint=f"await ctx.{forgotten[-1]}(…)")

    # -- done again ---------------------------------------------------------------------------------

    def _count_redone(self) -> tuple[int, str | None]:
        """Returns how often this task has been sent back so far, and the latest feedback."""
        record = self.record(f"{self.prefix}{REDO}")
        if record is None or record.value is None:
            return 0, None if self.task.feedback is None else canon.decode(self.task.feedback)
        number, feedback = canon.decode(record.value)
        return number, feedback

    def send_back(self, feedback: str) -> None:
        """Records that this task runs again. Its calls get new places, so that no record of the last round answers them."""
        value = canon.pack([self.rounds + 1, feedback], "feedback")[1]
        self.journal.hold(Draft(results=[StepRecord(self.key, f"{self.prefix}{REDO}", REDO, value=value, kind="feedback")]))


__all__ = ["REDO", "RETRY", "Attempt", "Call", "Places", "Restart", "Scope", "Suspend", "current", "label"]

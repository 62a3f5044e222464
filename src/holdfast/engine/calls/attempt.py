"""``Attempt``: what one attempt at a step may see and do. ``Context`` is its face for people (§4.12).

It is handed to whatever the engine does for the step: recorded steps, effects, waits, scopes, gates, tools. Each of these is a module of functions over
an attempt; none reaches for anything that is not public here.

Places. A node is re-entered from its first line after a crash or a wait. Whatever it does is recorded under its place: a path of positions,
one per call in its scope, or an explicit key. A call whose place has a record is answered from it; the names must match, else the code no
longer fits what happened and says so. ``gather``, ``map`` and ``first_of`` open numbered scopes, so that concurrent calls have places that do
not depend on timing; calls with keys may be begun in any order. One thing answers a call: the run's own log, what a replay or fork takes
over (``Journal.record``), or a recording that stands in for the outside.
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
from holdfast.engine.calls.functions import Calling, Patience, calling

MOST_KEY_CHARS = 200
_making = threading.Lock()  # a plain node may make its first recorded calls from several threads
SWALLOWED, CAUGHT = "caught the internal exception that suspends it", "do not catch BaseException around ctx calls"
SHOWN = 3  # calls before and after the one that differs, so that what the code calls now stays in sight


class Suspend(ControlFlow):
    """Leaves the node because it rests in waits; never raised in code that users are meant to see (§5.12)."""

    def __init__(self, waits: tuple[Wait, ...]) -> None:
        super().__init__("the node is being suspended; do not catch BaseException around ctx calls")
        self.waits = waits

    def join(self, others: Sequence[ControlFlow]) -> ControlFlow:
        """All branches rest, or one of them has another way out."""
        other = next((e for e in others if not isinstance(e, Suspend)), None)
        waits = {w.wait_id: w for e in (self, *others) if isinstance(e, Suspend) for w in e.waits}
        return other or Suspend(tuple(waits.values()))


class Restart(ControlFlow):
    """Leaves a flow to begin it afresh under the same lineage (§4.12)."""

    def __init__(self, inputs: dict[str, Any]) -> None:
        super().__init__("the flow begins afresh; do not catch BaseException around ctx.restart")
        self.inputs = inputs


class Scope:
    """Numbers the calls of one line of control; ``prefix`` is the path to it, ``made`` counts them, ``busy`` are those in flight by their paths, ``within`` how many
    items of maps it is in, each of which is a call in flight itself, ``item`` a short form of the innermost. ``mark`` is that of its ``Places``. ``left``: the task
    of the event loop that last left it to rest, and the waits in which."""

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
    """The places of one attempt at a task. ``node`` is the node's name, for those who read an error, ``waits`` are those in which the attempt is to rest; ``handled``:
    the calls that were made while an error was handled, ``errors``: those that branches ended with. Its scopes know it by a ``mark``: if they referred to it, all that it holds would be freed by the garbage collector alone."""

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
        """The scope of the line of control that asks."""
        scope = current.get()
        return scope if scope is not None and scope.mark is self.mark else self.root

    @property
    def nested(self) -> bool:
        """Whether other lines of control of this task may still run."""
        scope = self.scope()
        return scope is not self.root or len(scope.busy) > 1

    def peek(self) -> str:
        """The place that the next call without a key will be given."""
        scope = self.scope()
        return f"{scope.prefix}{scope.next}"

    @contextmanager
    def open(self, name: str, key: str | None = None) -> Iterator[str]:
        """The path of one call; refuses one without a key while another of the same scope is in flight (§4.12)."""
        scope = self.scope()
        if self.closed:
            raise ConcurrentScope(f"the call of {name} began after {self._node} had ended", hint="await every ctx call, or use ctx.gather")
        self.leave()
        if key is None:
            if scope.busy:
                raise ConcurrentScope(
                    f"the call of {name} began while {', '.join(scope.busy.values())} of the same scope was under way",
                    hint="await each call before the next, use ctx.gather, or give each call a key",
                )
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
        """Goes on to leave where the code that asks is on its way out to rest, as in a ``finally``. The node comes by there again when it ends.

        Raises:
            Suspend: the way out that it is on.
            SuspensionSwallowed: it has caught that.
        """
        if self._waits and (rests := [w for way in find_ways_out(sys.exception()) if isinstance(way, Suspend) for w in way.waits if w.wait_id in self._waits]):
            raise Suspend(tuple(rests))
        left = self.scope().left if self._waits else None
        if left is not None and left[0]() is asyncio.current_task() and any(w.wait_id in self._waits for w in left[1]):
            raise SuspensionSwallowed(f"{self._node} {SWALLOWED}", hint=CAUGHT)

    def lookup(self, call: Call) -> StepRecord | None:
        """The record at a place, if it is one of this call. Without one, the place must not belong to another call.

        Plain code may well compute other arguments when it runs again; but arguments that are on record at another place mean
        that two calls were swapped.

        Raises:
            RecordMismatch: showing what was recorded and what the code calls now.
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
        """Whether what is on record at a place, or asked there, answers only the very same call: something that it may have been made of is no more."""
        return (self._key, path) in self._journal.progress.outdated

    def find_question(self, path: str, kind: WaitKind, prompt: str, *, swappable: bool) -> Wait | None:
        """The question of this kind that was asked at a place, whatever its wording (§5.8).

        Raises:
            RecordMismatch: the wording is that of the question at another place, so that two of them were swapped (L-10).
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
        """The places of an earlier attempt that were scopes: something is recorded beneath them."""
        if self._scopes is None:
            mine = self._mine()
            self._scopes = find_scopes(mine) if mine else frozenset()
        return self._scopes

    def mismatch(self, path: str, now: str) -> RecordMismatch:
        """The difference between what is on record at this place and beside it, and what the code calls, in one sentence."""
        recorded = self._beside(path)
        at = next((n for n, (place, _) in enumerate(recorded) if place == path), len(recorded))
        shown = [said for _, said in recorded[max(0, at - SHOWN) : at + SHOWN + 1]]
        called = [*self._told[:-1], now][-SHOWN - 1 :]
        return RecordMismatch(
            f"call {path} of {self._key} does not match its record: the record has {', '.join(shown)}, but the code now calls {', '.join(called)}",
            hint="restore the order of the calls, give them keys, or fork the run from an earlier checkpoint",
        )

    def _beside(self, path: str) -> list[tuple[str, str]]:
        """The calls on record at the level of a place, each with its name; one that only holds others is said to hold them."""
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
    """A call as people read of it."""
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
    """One attempt at one task. ``number`` counts from 1; ``key`` is the run's own task, ``inner`` leads to one of a sub-flow inside it (§4.14);
    ``state`` is what the step sees; ``waits`` are those in which it is to rest; ``calls`` counts the calls in flight, and it is ``parked`` once
    it stands still to be handed back (§10.13). ``plain``: it runs outside the event loop."""

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
        self.prefix = f"{inner}/" if inner else ""  # under which all places of this task stand, whatever the round it is done in
        self.nodes: Mapping[str, Node] = NO_NODES if program is None else program.nodes
        self.state = state
        self.rounds, self.feedback = self._count_redone()
        self.step = journal.progress.checkpoint.step_of(self.key)
        self._closed = False
        self._places: Places | None = None  # most steps make no recorded call
        self.waits: dict[str, Wait] = {}
        self.intents: list[IntentWrite] = []
        self.ledger: list[LedgerWrite] = []
        self.outcome = OK
        self.plain = False
        self.restarting = False
        self.calls = 0
        self.parked = False
        self.patience = Patience(node.timeout_us, own=node.timed) if patience is None else patience
        self._loop = asyncio.get_running_loop() if loop is None else loop
        self._patient = [self.patience]
        self._track: Track | None = None
        self.made: list[tuple[str, Coroutine[Any, Any, Any]]] = []  # by their verbs the calls that its node was given to await, the last ones

    # -- where it stands ----------------------------------------------------------------------------

    @property
    def step_id(self) -> str:
        return ids.step_id(self.journal.run.run_id, self.step, self.key, self.inner)

    @property
    def attempt_id(self) -> str:
        return ids.attempt_id(self.step_id, self.number)

    @property
    def root(self) -> str:
        """Under which the places of this round stand."""
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
        """What this step goes by: the state it sees, and what a ``Send`` gave it."""
        return {**self.state, "payload": self.payload} if self.task.payload is not None else dict(self.state)

    @property
    def concurrent(self) -> bool:
        """Whether other calls of this task may still run, so that a wait must be durable at once (§5.2)."""
        return self.places.nested or bool(self.inner)

    @property
    def rearmed(self) -> frozenset[str]:
        """Open questions that an operator has had asked again: somebody is there now (§5.17)."""
        return frozenset(w.wait_id for w in self.journal.run.waits if w.round > 0)

    async def effects(self) -> list[Effect]:
        """The effects attempted in this step so far, in all its attempts and rounds, oldest first."""
        found = await self.journal.asking(self.services.store.effects(self.journal.run.run_id))
        return [e for e in found if (e.step, e.task) == (self.step, self.key) and e.path.startswith(self.prefix)]

    # -- what is on record --------------------------------------------------------------------------

    def record(self, path: str) -> StepRecord | None:
        return self.journal.record(self.key, path)

    def serve(self, record: StepRecord) -> Any:
        """What a record holds, where it is kept whole; a recorded failure is raised again."""
        if record.error is not None:
            raise revive(record.error)
        return None if record.value is None else canon.decode(record.value)

    async def give(self, record: StepRecord) -> Any:
        """What a record holds, wherever it is kept."""
        return self.serve(await self.journal.whole(record))

    async def save(self, draft: Draft) -> None:
        """Makes something durable for this attempt."""
        self.refuse_late()
        await self.journal.save(draft)

    def refuse_late(self) -> None:
        """What outlives the attempt has no say any more."""
        if self.places.closed:
            raise ConcurrentScope(f"a ctx call of {self.node.name} ended later than the node itself", hint="await every ctx call, or use ctx.gather")

    async def pause(self, due: int, failed: int, base_us: int) -> None:
        """Until another attempt at a call that has failed so often may begin."""
        if pause := time_left(due, self.services.clock.now(), failed, base_us):
            await self.services.clock.sleep(pause / 1_000_000)

    # -- its time -----------------------------------------------------------------------------------

    @contextmanager
    def minding(self, patience: Patience) -> Iterator[None]:
        """For a call's time: progress moves it on (§10.10)."""
        patience.move(self._loop.time())
        self._patient.append(patience)
        try:
            yield
        finally:
            self._patient.remove(patience)

    def move_on(self) -> None:
        """The step gets on: default timeouts count anew from here."""
        now = self._loop.time()
        for patience in list(self._patient):
            if not patience.own:
                patience.move(now)

    # -- what it emits ------------------------------------------------------------------------------

    def emit(self, value: Any) -> None:
        """Keeps a chunk for whoever streams the run (§13.6).

        Raises:
            Unserializable, TooLarge: it cannot be kept.
        """
        self.move_on()
        data = bounds.check_size(canon.pack(value, "chunk")[1], "chunk", RING_BYTES)
        self.services.streams.emit(self.journal.ring, self._track_of(calling.get()), data, self.journal.run.version, self._loop)

    def _track_of(self, within: Calling | None) -> Track:
        """The track of this attempt, or of the recorded call in whose midst it is."""
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
        """A call is to begin; none does once somebody has asked the run to stop at its next boundary (§10.13)."""
        if self.journal.safe_points.asked:
            self.calls -= self.places.scope().within  # the items of maps that it is part of stand still with it
            await self.journal.safe_points.stand(self)
        self.calls += 1
        self.patience.hold()

    def finish(self) -> None:
        """The call has ended, and what came of it is on record."""
        self.calls -= 1
        self.patience.release(self._loop.time())
        if self.journal.safe_points.asked:
            self.journal.safe_points.look()

    def close(self) -> None:
        """Nothing that the node left running may write into the next step's records."""
        self._closed = True
        self.made.clear()
        if self._places is not None:
            self._places.closed = True
            self._places.handled.clear()
            self._places.errors.clear()

    def end(self) -> None:
        """The node has returned.

        Raises:
            ConcurrentScope: it returned while a call of its own was in flight.
            NotAwaited: it has a call that it never awaited.
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
        """How often this task has been sent back so far, and with what feedback the last time."""
        record = self.record(f"{self.prefix}{REDO}")
        if record is None or record.value is None:
            return 0, None if self.task.feedback is None else canon.decode(self.task.feedback)
        number, feedback = canon.decode(record.value)
        return number, feedback

    def send_back(self, feedback: str) -> None:
        """Records that this very task is done again; its calls stand at new places, so nothing of the last round is served."""
        value = canon.pack([self.rounds + 1, feedback], "feedback")[1]
        self.journal.hold(Draft(results=[StepRecord(self.key, f"{self.prefix}{REDO}", REDO, value=value, kind="feedback")]))


__all__ = ["REDO", "RETRY", "Attempt", "Call", "Places", "Restart", "Scope", "Suspend", "current", "label"]

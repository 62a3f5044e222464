"""``Attempt``: what one attempt at a step may see and do. ``Context`` is its face for people (§4.12).

It is handed to whatever the engine does for the step: recorded steps, effects, waits, scopes, gates, tools. Each of these is a module of functions over
an attempt; none reaches for anything that is not public here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from holdfast.core import bounds, canon, ids
from holdfast.core.checkpoint import IntentWrite, LedgerWrite, StepRecord, Task
from holdfast.core.chunks import RING_BYTES, Place
from holdfast.core.effects import Effect
from holdfast.core.errors import ConcurrentScope, SuspensionSwallowed
from holdfast.core.graph import Node, Program
from holdfast.core.outcomes import OK
from holdfast.core.retry import left
from holdfast.core.waits import Wait
from holdfast.engine.base.failures import revived
from holdfast.engine.base.journal import Draft, Journal
from holdfast.engine.base.services import Services
from holdfast.engine.base.streams import Track
from holdfast.engine.calls.functions import Patience
from holdfast.engine.calls.places import Calling, Places, calling

REDO = "@redo"
RETRY = "@retry"
NO_NODES: Mapping[str, Node] = {}


class Attempt:
    """One attempt at one task. ``number`` counts from 1; ``key`` is the run's own task, ``inner`` leads to one of a sub-flow inside it (§4.14);
    ``state`` is what the step sees; ``waits`` are those in which it is to rest; ``calls`` counts the calls in flight, and it is ``parked`` once
    it stands still to be handed back (§10.13). ``plain``: it runs outside the event loop."""

    def __init__(
        self,
        services: Services,
        journal: Journal,
        node: Node,
        task: Task,
        *,
        number: int = 1,
        key: str = "",
        inner: str = "",
        program: Program | None = None,
        state: Mapping[str, Any] = canon.EMPTY_DICT,
        patience: Patience | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.services = services
        self.journal = journal
        self.node = node
        self.task = task
        self.number = number
        self.key = key or task.key
        self.inner = inner
        self.step = journal.progress.checkpoint.step_of(self.key)
        self.step_id = ids.step_id(journal.run.run_id, self.step, self.key, inner)
        self.attempt_id = ids.attempt_id(self.step_id, number)
        self.prefix = f"{inner}/" if inner else ""  # under which all places of this task stand, whatever the round it is done in
        self.nodes: Mapping[str, Node] = NO_NODES if program is None else program.nodes
        self.state = state
        self.rounds, self.feedback = self._redone()
        prefix = f"{self.prefix}@{self.rounds}/" if self.rounds else self.prefix
        self.places = Places(services, journal, self.key, self.step, node.name, prefix)
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

    # -- where it stands ----------------------------------------------------------------------------

    @property
    def root(self) -> str:
        """Under which the places of this round stand."""
        return self.places.root.prefix

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

    @property
    def retry_allowed(self) -> bool:
        """Whether a person has allowed another attempt of this step."""
        allowed = f"{self.prefix}{RETRY}/"
        return any(task == self.key and path.startswith(allowed) for task, path in self.journal.progress.records)

    async def effects(self) -> list[Effect]:
        """The effects attempted in this step so far, in all its attempts and rounds, oldest first."""
        found = await self.services.store.effects(self.journal.run.run_id)
        return [e for e in found if (e.step, e.task) == (self.step, self.key) and e.path.startswith(self.prefix)]

    # -- what is on record --------------------------------------------------------------------------

    def record(self, path: str) -> StepRecord | None:
        return self.journal.record(self.key, path)

    def served(self, record: StepRecord) -> Any:
        """What a record holds, where it is kept whole; a recorded failure is raised again."""
        if record.error is not None:
            raise revived(record.error)
        return None if record.value is None else canon.decode(record.value)

    async def given(self, record: StepRecord) -> Any:
        """What a record holds, wherever it is kept."""
        return self.served(await self.journal.whole(record))

    async def save(self, draft: Draft) -> None:
        """Makes something durable for this attempt; what outlives the attempt has no say any more."""
        if self.places.closed:
            raise ConcurrentScope(f"a ctx call of {self.node.name} ended after the node had", hint="await every ctx call, or use ctx.gather")
        await self.journal.save(draft)

    async def pause(self, due: int, failed: int, base_us: int) -> None:
        """Until another attempt at a call that has failed so often may begin."""
        if pause := left(due, self.services.clock.now(), failed, base_us):
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

    def moved_on(self) -> None:
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
        self.moved_on()
        data = bounds.sized(canon.pack(value, "chunk")[1], "chunk", RING_BYTES)
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
        self.places.closed = True

    def end(self) -> None:
        """The node has returned.

        Raises:
            ConcurrentScope: it returned while a call of its own was in flight.
            SuspensionSwallowed: it caught the way out that it was to take.
        """
        self.close()
        if busy := self.places.root.busy:
            raise ConcurrentScope(f"{self.node.name} returned while ctx.{', '.join(busy.values())} was in flight", hint="await it, or use ctx.gather")
        if self.waits or self.restarting:
            raise SuspensionSwallowed(f"{self.node.name} caught the way out it was to take", hint="do not catch BaseException around ctx calls")

    # -- done again ---------------------------------------------------------------------------------

    def _redone(self) -> tuple[int, str | None]:
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


__all__ = ["REDO", "RETRY", "Attempt"]

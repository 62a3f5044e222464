"""What people decide about intents, and how intents are shown (§9.3, §9.4).

For the request of a tool call, a person decides in place of the tool runner (§11.3). The waiting run continues with the decision: the call
happened, with its outcome; it did not happen, and the run makes a new request; or it is given up, and the call fails. The decision reaches the run as a
runner's answer does, by a signal in the transaction that settles the request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

from msgspec.structs import replace

from holdfast import logs
from holdfast.callers import VIA
from holdfast.core import canon, toolcalls
from holdfast.core.blobs import Blob, blob_of
from holdfast.core.commands import Signal
from holdfast.core.commit import InboxItem, Settlement
from holdfast.core.errors import AttemptMayLive, IntentInFlight, IntentNotFound, IntentSettled, InvalidInput
from holdfast.core.intents import ABANDON, ELSEWHERE, MARK_SENT, REDRIVE, Intent, IntentState, find_lost, may_live, redrive, rule
from holdfast.core.lease import Alive
from holdfast.core.run import Run
from holdfast.core.toolcalls import Answer, Word
from holdfast.core.waits import ABANDON as GIVE_UP
from holdfast.core.waits import RECORD_RESULT, REEXECUTE, Wait
from holdfast.handle import IntentView
from holdfast.ports import Store, ToolOutcome, outcome_told

ACTIONS = {MARK_SENT: RECORD_RESULT, REDRIVE: REEXECUTE, ABANDON: GIVE_UP}
"""For each ruling about a request, the equivalent answer to a question about an effect: an actor who may not give the one may not give the other."""
ASKED_ANEW = "its run makes a new request"

Allow = Callable[[Run, Wait, str, str, bool], Awaitable[None]]


class Rulings:
    """The decisions of people about the intents of a store. ``lacking`` returns a function that says whether no process sends an intent's type; ``closed``: the
    owners of this process that no longer exist. ``allow`` raises if an actor may not take an action about a wait; it gets the run, the wait, the action, the actor, and
    whether the action is forced."""

    def __init__(self, store: Store, lacking: Callable[[], Awaitable[Callable[[Intent], bool]]], closed: Collection[str], allow: Allow) -> None:
        self._store = store
        self._lacking = lacking
        self._closed = closed
        self._allow = allow

    async def views(self, found: Iterable[Intent]) -> list[IntentView]:
        """Returns intents as they are shown."""
        lacking = await self._lacking()
        return [IntentView.of(i, no_transport=lacking(i)) for i in found]

    async def redrive(self, intent_id: str, *, actor: str, reason: str, force: bool) -> IntentView:
        """Has an intent sent again. The request of a tool call is given up and the run makes a new one, unless no runner has begun with it.

        Raises:
            IntentNotFound, IntentSettled, IntentInFlight, AttemptMayLive, Denied, RestrictedOption.
        """
        before = await self._intent(intent_id)
        alive = await self._alive()
        known = self._look_at(before, alive)
        after = redrive(known, actor=actor, reason=reason, forced=force, now=self._store.now(), via=VIA.get())
        if not force and (attempt := may_live(known, alive)) is not None:
            if attempt.owner == ELSEWHERE:
                way_out = "give it up in that store (holdfast settle), then send it here with --force"
                raise AttemptMayLive(f"{intent_id} was imported, and the store that it comes from may send it too", hint=way_out)
            raise AttemptMayLive(
                f"attempt {attempt.number} of {intent_id} was begun by {attempt.owner}, which may still be alive; sent again now, it could arrive twice",
                hint="wait until that process is proven dead; --force accepts that it may happen twice",
            )
        asking = await self._asking(before)
        if asking is None or before.state is IntentState.QUEUED:
            return await self._keep(Settlement(before, after))
        await self._allow(*asking, ACTIONS[REDRIVE], actor, force)
        after = replace(after, state=IntentState.ABANDONED, due=before.due, settled_at=self._store.now(), detail=ASKED_ANEW)
        return await self._keep(self._answer(before, after, Word(REDRIVE, actor, reason), waits=True))

    async def settle(self, intent_id: str, outcome: str, *, actor: str, reason: str, result: Any = ...) -> IntentView:
        """Decides the state of an intent. The same call again changes nothing. ``result``: the outcome of a tool call that happened.

        Raises:
            IntentNotFound, IntentSettled, IntentInFlight, InvalidInput, Denied.
        """
        before = await self._intent(intent_id)
        request = before.type.startswith(toolcalls.TYPE)
        if result is not ... and (not request or outcome != MARK_SENT):
            raise InvalidInput("a result is that of a tool's call that happened", field="result", hint=f"only a request of the type {toolcalls.TYPE}… has one, settled as {MARK_SENT}")
        found = ToolOutcome() if result is ... else outcome_told(result, "result")
        known = self._look_at(before, await self._alive())
        after = rule(known, outcome, actor=actor, reason=reason, now=self._store.now(), via=VIA.get())
        if after is known:
            if result is not ... and before.answer and _outcome(before.answer) != _fields(found)[0]:
                raise IntentSettled(f"{intent_id} is {before.state} with another result", hint="look at it: holdfast outbox")
            return (await self.views([before]))[0]
        if not request:
            return await self._keep(Settlement(before, after))
        asking = await self._asking(before)
        if asking is not None:
            await self._allow(*asking, ACTIONS[outcome], actor, False)
        word = Word(outcome, actor, reason)
        return await self._keep(self._answer(before, after, word, found if outcome == MARK_SENT else None, waits=asking is not None))

    def _answer(self, before: Intent, after: Intent, word: Word, outcome: ToolOutcome | None = None, *, waits: bool) -> Settlement:
        """Makes the settlement of a request with a person's decision, which is also stored on the request itself, for a run that is resumed later."""
        fields, blobs = ({}, ()) if outcome is None else _fields(outcome)
        owner = before.tries[-1].owner if before.tries else toolcalls.owner_of(before.type, toolcalls.place_in(before.intent_id))
        payload = canon.pack(toolcalls.plain(Answer(owner=owner, word=word, **fields)), "answer")[1]
        signal = Signal(toolcalls.owner_of(before.type, toolcalls.place_in(before.intent_id)), f"{before.key}:word", payload, word.actor, VIA.get())
        puts = (InboxItem(before.run_id, signal.key, signal, self._store.now()),) if waits else ()
        return Settlement(before, replace(after, answer=payload), puts=puts, blobs=blobs)

    async def _asking(self, intent: Intent) -> tuple[Run, Wait] | None:
        """Returns the run and the wait for the answer to a request. None if the intent is not a request, or if no run waits for it any more."""
        if not intent.type.startswith(toolcalls.TYPE) or (found := await self._store.get(intent.run_id)) is None:
            return None
        name = toolcalls.owner_of(intent.type, toolcalls.place_in(intent.intent_id))
        wait = next((w for w in found[0].waits if w.name == name), None)
        return None if wait is None else (found[0], wait)

    async def _alive(self) -> dict[str, Alive]:
        return {w.owner: Alive(w.alive) for w in await self._store.workers(counted=False)} | dict.fromkeys(self._closed, Alive.NO)

    def _look_at(self, intent: Intent, alive: dict[str, Alive]) -> Intent:
        return find_lost(intent, self._store.now(), alive.get(intent.owner or "", Alive.UNKNOWN))

    async def _intent(self, intent_id: str) -> Intent:
        found = await self._store.intent(intent_id)
        if found is None:
            raise IntentNotFound(f"there is no intent {intent_id!r}", hint="holdfast outbox lists them")
        return found

    async def _keep(self, settlement: Settlement) -> IntentView:
        if not (await self._store.settle_intents([settlement]))[0]:
            raise IntentInFlight(f"another process is handling {settlement.before.intent_id}", hint="look at it again: holdfast outbox")
        logs.tell_settled(settlement.after)
        return (await self.views([settlement.after]))[0]


def _fields(outcome: ToolOutcome) -> tuple[dict[str, Any], tuple[Blob, ...]]:
    """Returns the fields of an answer for an outcome: with the outcome in the answer, or in a blob beside it if it is large."""
    data = canon.pack(outcome, "result")[1]
    if len(data) <= toolcalls.INLINE:
        return {"outcome": data}, ()
    blob = blob_of(data)
    return {"blob": blob.digest}, (blob,)


def _outcome(answer: bytes) -> dict[str, Any]:
    """Returns the outcome in a stored answer, in the same form as ``_fields``."""
    found = toolcalls.read_answer(answer)
    return {"blob": found.blob} if found.blob else {"outcome": found.outcome}


__all__ = ["Rulings"]

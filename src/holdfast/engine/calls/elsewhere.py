"""Tool calls that a runner in another process carries out (§11.3).

The request is an intent. It is stored in the commit that records the attempt and opens a wait for the answer. The run then rests, and holds no thread and no lease.
The runner's answer comes as a signal, in the commit that settles the intent. The process that executes the run next records the outcome as if it had run the tool
itself.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.core import canon, ids, intents
from holdfast.core import events as ev
from holdfast.core.commit import Settlement
from holdfast.core.effects import Effect, attribute
from holdfast.core.errors import InvalidInput, PermanentError
from holdfast.core.intents import ABANDON, REDRIVE, Ended, Intent, IntentState
from holdfast.core.lease import at_once
from holdfast.core.toolcalls import Answer, Asked, owner_of, place_of, plain, read_answer, type_of
from holdfast.core.waits import Wait, WaitKind
from holdfast.engine.base.journal import Draft
from holdfast.engine.calls.attempt import Attempt
from holdfast.engine.calls.functions import calling
from holdfast.engine.calls.waits import Ask, open_at, request

TAKEN_BACK = "the run was canceled while a tool runner had the request, and its answer was not kept"
UNDONE = "an effect that it may depend on was undone before a runner began it"
NOT_BEGUN = frozenset({Ended.REFUSED, Ended.LATE})
Args = tuple[Any, ...]


class Elsewhere:
    """The runners of one workspace, as one call uses them. ``made``: creates the request from the place, the effect's id and key, and the arguments; ``ended``: turns an
    answer into the call's outcome."""

    def __init__(
        self, attempt: Attempt, workspace: str, tool: str, made: Callable[[str, str, str, Args], Asked], ended: Callable[[Args, Answer], Awaitable[Any]]
    ) -> None:
        self._attempt = attempt
        self._tool = tool
        self._type = type_of(workspace)
        self._made = made
        self._ended = ended

    async def end(self, args: Args, answer: Answer) -> Any:
        """Returns or raises what an answer means for the call."""
        return await self._ended(args, answer)

    def request(self, effect_id: str) -> str:
        """Returns the request for a new attempt, which names its owner."""
        run = self._attempt.journal.run
        return owner_of(self._type, canon.digest([run.run_id, effect_id, str(run.version)])[:16])

    async def ask(self, path: str, effect: Effect, args: Args, draft: Draft) -> None:
        """Makes the request durable, together with ``draft``, the attempt.

        Raises:
            Suspend: the run rests until it is answered.
            EffectInProgress: another attempt under the key is open; nothing was written.
        """
        place = place_of(effect.owner)
        assert place is not None, "the attempt is not a request"
        await self._answer(self._question(path, place, lambda: self._made(place, effect.effect_id, effect.key, args), draft))

    async def answer(self, path: str, effect: Effect) -> Answer | None:
        """Returns the answer to a request; None if the request was taken back before a runner began it.

        Raises:
            Suspend: there is no answer yet.
        """
        place = place_of(effect.owner)
        assert place is not None, "the attempt is not a request"
        at = f"{path}>{place}"
        if self._attempt.record(at) is None:
            kept = await self._attempt.journal.asking(self._attempt.services.store.intent(self._intent_id(place)))
            if (kept is None or not kept.open) and not await self._came(place, kept):
                if (wait := open_at(self._attempt, at)) is not None:
                    self._attempt.journal.hold(Draft(facts=[ev.WaitClosed(wait.wait_id, "nothing is asked of a runner any more")]))
                if kept is not None and kept.answer and (said := read_answer(kept.answer)).word is not None:
                    return said  # a person has settled it while the run was not waiting
                if kept is not None and all(t.outcome in NOT_BEGUN for t in kept.tries):
                    return None
                return Answer(owner=kept.tries[-1].owner if kept is not None and kept.tries else effect.owner, lost=TAKEN_BACK, closed=kept is not None)
        return await self._answer(self._question(path, place))

    async def withdraw(self, effect: Effect) -> None:
        """Takes back a request that no runner has begun, because an effect that it may depend on was undone. The answer to a request that a runner has is awaited."""
        place, store, now = place_of(effect.owner), self._attempt.services.store, self._attempt.services.store.now()
        kept = None if place is None else await self._attempt.journal.asking(store.intent(self._intent_id(place)))
        if kept is None or kept.state is not IntentState.QUEUED or any(t.outcome not in NOT_BEGUN for t in kept.tries):
            return
        gone = intents.rule(kept, IntentState.ABANDONED, actor=ev.SYSTEM, reason=UNDONE, now=now)
        await self._attempt.journal.asking(store.settle_intents([Settlement(kept, gone)]))  # if a runner has just begun it, nothing is changed

    async def read(self, args: Args) -> Any:
        """Returns the outcome of a call that only reads; requests it again if it was lost."""
        within = calling.get()
        assert within is not None, "a tool that reads is a recorded step"
        run_id = self._attempt.journal.run.run_id
        for again in itertools.count():
            place = canon.digest([run_id, within.path, str(within.number), canon.fingerprint(list(args)), str(again)])[:16]
            answer = await self._answer(self._question(within.path, place, functools.partial(self._made, place, "", "", args), Draft()))
            said = answer.word
            if said is not None and said.action == ABANDON:
                raise PermanentError(f"tool:{self._tool} was given up by {attribute(said.actor, said.reason)}", code="effect_abandoned")
            if not answer.lost and (said is None or said.action != REDRIVE):
                return await self._ended(args, answer)

    def _intent_id(self, place: str, round: int = 0) -> str:
        run_id = self._attempt.journal.run.run_id
        return f"{ids.step_id(run_id, self._attempt.step, self._attempt.key)}!{place}{f'.{round}' if round else ''}"

    async def _came(self, place: str, kept: Intent | None) -> bool:
        """Whether an answer is recorded or in the inbox."""
        journal, name = self._attempt.journal, owner_of(self._type, place)
        if any(s.name == name for s in journal.run.signals) or await journal.later(name) is not None:
            return True
        waiting = await journal.asking(self._attempt.services.store.inbox(journal.run.run_id))
        return kept is not None and any(kept.key in i.key for i in waiting)

    def _question(self, path: str, place: str, made: Callable[[], Asked] | None = None, draft: Draft | None = None) -> Ask:
        def creates(wait: Wait) -> Draft:
            assert made is not None and draft is not None
            run, now = self._attempt.journal.run, self._attempt.services.clock.now()
            intent_id, payload = self._intent_id(place, wait.round), canon.pack(plain(made()), "the request")[1]
            draft.intents.append(
                Intent(
                    intent_id=intent_id, run_id=run.run_id, type=self._type, payload=payload, key=f"{run.run_id}.{intent_id.partition('.')[2]}", created_at=now,
                    due=at_once(now), tenant_id=run.tenant_id, digest=intents.digest(self._type, payload),
                )
            )
            draft.facts.append(ev.IntentEnqueued(intent_id, self._type))
            return draft

        prompt = f"{self._tool} runs in the workspace {self._type.rpartition('@')[2]}"
        return Ask(kind=WaitKind.SIGNAL, prompt=prompt, name=owner_of(self._type, place), path=f"{path}>{place}", creates=None if made is None else creates)

    async def _answer(self, question: Ask) -> Answer:
        given = await request(self._attempt, question)
        try:
            return read_answer(given.payload)
        except InvalidInput as e:
            return Answer(owner=given.actor, lost=e.message, closed=False)


__all__ = ["Elsewhere"]

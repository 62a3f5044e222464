"""What people say about intents, and how intents are shown (§9.3, §9.4)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable

from holdfast.core.commit import Settlement
from holdfast.core.errors import AttemptMayLive, IntentInFlight, IntentNotFound
from holdfast.core.intents import Intent, may_live, redriven, ruled
from holdfast.core.lease import Alive
from holdfast.handle import IntentView
from holdfast.ports import Store


class Rulings:
    """The word of people about the intents of a store. ``lacking`` gives what tells of an intent whether nobody sends its type; ``closed`` are the
    owners of this process that are gone."""

    def __init__(self, store: Store, lacking: Callable[[], Awaitable[Callable[[Intent], bool]]], closed: Collection[str]) -> None:
        self._store = store
        self._lacking = lacking
        self._closed = closed

    async def views(self, found: Iterable[Intent]) -> list[IntentView]:
        """Intents as they are shown."""
        lacking = await self._lacking()
        return [IntentView.of(i, no_transport=lacking(i)) for i in found]

    async def redrive(self, intent_id: str, *, actor: str, reason: str, force: bool) -> IntentView:
        """Has an intent sent again.

        Raises:
            IntentNotFound, IntentSettled, IntentInFlight, AttemptMayLive.
        """
        before = await self._intent(intent_id)
        after = redriven(before, actor=actor, reason=reason, forced=force, now=self._store.now())
        alive = {w.owner: Alive(w.alive) for w in await self._store.workers()} | dict.fromkeys(self._closed, Alive.NO)
        if not force and (attempt := may_live(before, alive)) is not None:
            raise AttemptMayLive(
                f"attempt {attempt.number} of {intent_id} was begun by {attempt.owner}, which may still be alive; sent again now, it could arrive twice",
                hint="wait until that process is proven dead; --force accepts that it may happen twice",
            )
        return await self._kept(before, after)

    async def settle(self, intent_id: str, outcome: str, *, actor: str, reason: str) -> IntentView:
        """Says how an intent stands; the same again changes nothing.

        Raises:
            IntentNotFound, IntentSettled, IntentInFlight.
        """
        before = await self._intent(intent_id)
        after = ruled(before, outcome, actor=actor, reason=reason, now=self._store.now())
        return (await self.views([before]))[0] if after is before else await self._kept(before, after)

    async def _intent(self, intent_id: str) -> Intent:
        found = await self._store.intent(intent_id)
        if found is None:
            raise IntentNotFound(f"there is no intent {intent_id!r}", hint="holdfast outbox lists them")
        return found

    async def _kept(self, before: Intent, after: Intent) -> IntentView:
        if not (await self._store.settle_intents([Settlement(before, after)]))[0]:
            raise IntentInFlight(f"another process is handling {before.intent_id}", hint="look at it again: holdfast outbox")
        return (await self.views([after]))[0]


__all__ = ["Rulings"]

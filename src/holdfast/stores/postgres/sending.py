"""The outbox of the PostgreSQL store: intents of runs, and their results (``ports.Outbox``)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from holdfast.core import vouch
from holdfast.core.commit import Settlement
from holdfast.core.intents import Intent
from holdfast.core.lease import Alive
from holdfast.ports import IntentCount, News
from holdfast.stores.postgres import besides, outbox
from holdfast.stores.postgres.commits import keep_blob
from holdfast.stores.postgres.connection import Connection
from holdfast.stores.postgres.queries import Q
from holdfast.stores.postgres.server import Server


class Sending(Server):
    """The verbs of ``ports.Outbox``, except the ledger."""

    async def intents(
        self,
        run_id: str | None = None,
        *,
        state: str | None = None,
        type: str | None = None,
        tenant_id: str | None = None,
        after: str | None = None,
        limit: int = 500,
    ) -> list[Intent]:
        found, *whole = await self._ask(outbox.ask_list(run_id, state, type, tenant_id, after, limit), *outbox.of_run(run_id))
        if whole:
            besides.verify(map(vouch.of_intent_row, whole[0]), whole[1])
        return outbox.keep_sound(found)

    async def intent(self, intent_id: str) -> Intent | None:
        found, stated = await self._ask((Q.intents + " WHERE i.intent_id = %s", (intent_id,)), (Q.vouch_under, ([intent_id], "intent")))
        besides.verify(map(vouch.of_intent_row, found), stated)
        return outbox.decode_intent(found[0]) if found else None

    async def claim_intents(
        self,
        owner: str,
        types: Sequence[str],
        *,
        limit: int,
        ttl_us: int,
        each: int = 1_000_000,
        room: Mapping[tuple[str, str, str], int] | None = None,
        run_id: str | None = None,
        held: Collection[str] = (),
        doubt: bool = False,
    ) -> list[Intent]:
        async def work(db: Connection, sent: int) -> list[Intent]:
            def dead(name: str, its: str | None) -> bool:
                return self._alive(name, its) is Alive.NO

            again = doubt or sent > 0  # sent before, and the answer was lost
            return await outbox.claim(db, owner, types, dead, self._clock(), ttl_us, limit, each, room or {}, run_id, held, doubt=again)

        return await self._do(work, whole=True)

    async def renew_intents(self, owner: str, ttl_us: int) -> None:
        async def work(db: Connection, sent: int) -> None:
            await db.execute(Q.intents_renew, {"owner": owner, "ttl": ttl_us, "now": self._clock()})

        await self._do(work)

    async def settle_intents(self, settlements: Sequence[Settlement]) -> list[bool]:
        async def work(db: Connection, sent: int) -> list[bool]:
            if not sent and outbox.alone(settlements) and await outbox.settle_alone(db, settlements):
                return [True] * len(settlements)
            return await outbox.settle(db, settlements, lambda item: self._put(db, item), keep_blob, sent=sent > 0)

        done = await self._do(work, whole=True)
        self._news.tell(News.OUTBOX | News.DUE | News.INBOX if any(s.puts for s in settlements) else News.OUTBOX)
        return done

    async def drop_payloads(self, before: int, limit: int) -> int:
        return await self._do(lambda db, sent: outbox.drop_payloads(db, before, limit))

    async def intent_counts(self) -> list[IntentCount]:
        (found,) = await self._ask((Q.intent_counts, None))
        return [IntentCount(*r) for r in found]


__all__ = ["Sending"]

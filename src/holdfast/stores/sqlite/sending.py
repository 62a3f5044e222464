"""The outbox of the SQLite store: intents of runs, and their results (``ports.Outbox``)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from holdfast.core.commit import Settlement
from holdfast.core.intents import Intent, answer_lost
from holdfast.ports import IntentCount, News
from holdfast.stores.sqlite import outbox
from holdfast.stores.sqlite.commits import Committer, keep_blob
from holdfast.stores.sqlite.connection import Q, map_errors, rows
from holdfast.stores.sqlite.file import File


class Sending(File):
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
        with map_errors(self.path):
            return outbox.read_list(self._read(), run_id, state, type, tenant_id, after, limit)

    async def intent(self, intent_id: str) -> Intent | None:
        with map_errors(self.path):
            return outbox.read_intent(self._read(), intent_id)

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
        with map_errors(self.path):
            if not doubt and not self._search.ready(self._read(), types, self._now(), 1, each, room or {}, run_id):
                return []

        def work(committer: Committer) -> list[Intent]:
            now = self._now()
            with committer.writing():
                mine = partial(answer_lost, owner=owner, held=held, doubt=True) if doubt else None
                ready = self._search.ready(committer.db, types, now, limit, each, room or {}, run_id, mine)
                return outbox.claim(committer.db, ready, owner, now, now + ttl_us, self._owners.after(ttl_us), mine)

        return await self._write().run(work)

    async def renew_intents(self, owner: str, ttl_us: int) -> None:
        def work(committer: Committer) -> None:
            with committer.writing():
                committer.db.execute(Q.intents_renew, (self._now() + ttl_us, self._owners.after(ttl_us), owner))

        await self._write().run(work)

    async def settle_intents(self, settlements: Sequence[Settlement]) -> list[bool]:
        def work(committer: Committer) -> list[bool]:
            now = self._now()
            with committer.writing():
                kept = outbox.settle(committer.db, settlements, lambda item: committer.put(item, now))
                for s in (s for s, held in zip(settlements, kept, strict=True) if held):
                    for blob in s.blobs:
                        keep_blob(committer.db, s.after.run_id, blob, now)
                return kept

        done = await self._write().run(work)
        self._changes.tell(News.OUTBOX | News.DUE | News.INBOX if any(s.puts for s in settlements) else News.OUTBOX)
        return done

    async def drop_payloads(self, before: int, limit: int) -> int:
        with map_errors(self.path):
            if not rows(self._read(), Q.intents_to_drop, (before, 1)):
                return 0

        def work(committer: Committer) -> int:
            with committer.writing():
                return outbox.drop_payloads(committer.db, before, limit)

        return await self._write().run(work)

    async def intent_counts(self) -> list[IntentCount]:
        with map_errors(self.path):
            return outbox.counts(self._read())


__all__ = ["Sending"]

"""Who works on a SQLite store: workers, their leases, and what each of them offers (§10.4)."""

from __future__ import annotations

import apsw

from holdfast.core import codec, vouch
from holdfast.core.lease import Alive, at_once
from holdfast.core.offers import Offer
from holdfast.ports import News, Worker
from holdfast.stores.sqlite import besides, limits
from holdfast.stores.sqlite.commits import Committer
from holdfast.stores.sqlite.connection import Q, map_errors, value_of, writing
from holdfast.stores.sqlite.file import File


class Leases(File):
    """The verbs of ``ports.Owners``."""

    async def register(self, owner: str, ttl_us: int) -> None:
        writer = self._write()
        self._liveness.hold(owner)

        def work(committer: Committer) -> None:
            with committer.writing():
                self._owners.register(committer.db, owner, ttl_us)

        try:
            await writer.run(work)
        except BaseException:
            self._liveness.release(owner)
            raise

    async def renew(self, owner: str, ttl_us: int) -> int:
        """May be called from any thread (``asyncio.run``): it has a connection of its own and awaits nothing."""
        self._write()
        with self._renewal, map_errors(self.path):
            if self._renewing is None:
                self._renewing = self._another()
            with writing(self._renewing):
                return self._owners.renew(self._renewing, owner, ttl_us)

    async def retire(self, owner: str) -> None:
        def work(committer: Committer) -> None:
            with committer.writing():
                committer.db.execute(Q.hand_back, (at_once(self._now()), owner))
                limits.leave(committer.db, owner, None, self._now())
                self._owners.drop(committer.db, Q.worker_delete, owner)

        writer = self._write()
        await writer.run(work)
        writer.forget()
        self._liveness.release(owner)
        self._changes.tell(News.DUE | News.FREED)

    async def outlive(self, owner: str) -> None:
        self._liveness.keep(owner)

    async def owner_alive(self, owner: str) -> Alive:
        with map_errors(self.path):
            return self._owners.is_alive(self._read(), owner)

    def abandon(self, owner: str) -> None:
        """Ends an owner's life without handing anything back, as a crash does: from now on it is proven dead."""
        self._liveness.drop(owner)

    async def workers(self, *, counted: bool = True) -> list[Worker]:
        db, now = self._read(), self._now()
        with map_errors(self.path):
            return [
                Worker(
                    w.owner, w.started_at, now + self._owners.remaining(w), self._owners.alive(w).value,
                    value_of(db, Q.worker_runs, (w.owner,)) if counted else 0, self._offer(db, w.owner),
                )
                for w in self._owners.all(db)
            ]

    def _offer(self, db: apsw.Connection, owner: str) -> Offer | None:
        data = value_of(db, Q.offer_get, (owner,))
        sound = data is not None and all(besides.each(db, [vouch.of_offer(owner, data)]))
        return codec.decode_offer(data) if sound else None  # the checker names one that is not what was written

    async def offer(self, owner: str, offer: Offer) -> None:
        def work(committer: Committer) -> None:
            with committer.writing():
                data = codec.encode_offer(offer)
                committer.db.execute(Q.offers_forget)
                committer.db.execute(Q.vouch_offers_forget)
                committer.db.execute(Q.offer_put, (owner, data))
                besides.vouch_for(committer.db, [vouch.of_offer(owner, data)])

        await self._write().run(work)


__all__ = ["Leases"]

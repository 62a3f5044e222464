"""Who works on a PostgreSQL store: workers, their leases, and what each of them offers (§10.4)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import platform
from collections.abc import Sequence
from typing import Any

import psycopg

from holdfast.core import codec, ids, vouch
from holdfast.core.errors import HoldfastError, StoreUnavailable
from holdfast.core.lease import Alive
from holdfast.core.offers import Offer
from holdfast.machine import ticks
from holdfast.ports import News, Worker
from holdfast.stores.postgres import limits as bounds
from holdfast.stores.postgres.connection import Connection, Connections, first_of, many, one_of, rows_of, shut_for_now, translate
from holdfast.stores.postgres.queries import Q
from holdfast.stores.postgres.server import Seen, Server

LONGEST_BESIDE = 1.0  # seconds for which a renewal waits for the event loop that drives the other verbs


class Owners(Server):
    """The verbs of ``ports.Owners``."""

    async def register(self, owner: str, ttl_us: int) -> None:
        self._open()
        proofs = self._proofs()
        proofs.hold(owner)
        values = self._worker(owner, ttl_us)

        async def work(db: Connection, sent: int) -> None:
            there = await first_of(db, Q.worker_known, (owner,)) if sent else None
            if there == (values["boot"], values["pid"]):
                return
            for (lost,) in await rows_of(db, Q.worker_insert, values):  # as long as nobody knows them, nobody takes their runs over: their leases have run out
                await db.execute(Q.worker_keep, _worker_values((lost, values["started"], 0, "", "", 0), 0, self._clock()))

        try:
            await self._do(work, whole=True)
        except BaseException:
            proofs.release(owner)
            raise
        self._mine[owner] = values

    def _worker(self, owner: str, ttl_us: int) -> dict[str, Any]:
        return _worker_values((owner, self.now(), ttl_us, self._boot, platform.node(), os.getpid()), ttl_us, self._clock())

    async def renew(self, owner: str, ttl_us: int) -> int:
        """May be called from any thread, in an event loop of its own: it has a connection of its own, for which that thread waits. On a crowded
        server it uses a connection of the verbs, unless the event loop that drives them is busy."""
        pool = self._open()
        self._writable()
        found = await self._renew_beside(pool, owner, ttl_us) if pool.crowded else None
        try:
            found = found or await asyncio.to_thread(self._renew, owner, ttl_us)
        except StoreUnavailable:
            found = await self._renew_beside(pool, owner, ttl_us)
            if found is None:
                raise
        if found is None:
            return 0
        self._heard = (found[1], ticks())
        return int(found[0])

    async def _renew_beside(self, pool: Connections, owner: str, ttl_us: int) -> tuple[Any, ...] | None:
        """Renews over a connection of the verbs. Returns the new expiry and the time; None if there is no answer soon. Nothing is cancelled: renewing
        twice does no harm."""
        home = self._home
        if home is None or not home.is_running():
            return None
        renewing = asyncio.run_coroutine_threadsafe(self._renew_over(pool, owner, ttl_us), home)
        await asyncio.to_thread(concurrent.futures.wait, [renewing], min(LONGEST_BESIDE, ttl_us / 10_000_000))
        return renewing.result() if renewing.done() and not renewing.cancelled() else None

    async def _renew_over(self, pool: Connections, owner: str, ttl_us: int) -> tuple[Any, ...] | None:
        try:
            async with pool.hold() as db:
                if pool.pooled or self._place.pooler:  # connections to a pooler outlast a server
                    await self._same_server(pool, db)
                known = self._mine.get(owner)
                row = (owner, *(known[name] for name in _WORKER[1:])) if known is not None else await first_of(db, Q.worker_row, (owner,))
                found = None if row is None else await first_of(db, Q.worker_renew, _worker_values(row, ttl_us, self._clock()))
                full, flushed, _ = await one_of(db, Q.full)
                self._note_crowd(full)
                self._note_flushed(flushed)
                return found
        except (psycopg.Error, OSError, HoldfastError):
            return None  # it is tried over a connection of its own, which reports what is wrong

    def _renew(self, owner: str, ttl_us: int) -> tuple[Any, ...] | None:
        with self._renewal:
            try:
                anew = False
                if self._renewing is None or self._renewing.closed:
                    self._renewing = psycopg.connect(self._place.conninfo, autocommit=True, connect_timeout=5, tcp_user_timeout=5_000, prepare_threshold=None)
                    anew = True
                if anew or self._pool is None or self._pool.pooled or self._place.pooler:
                    flushed = self._flushed
                    at = self._renewing.execute(Q.server).fetchone()
                    if at is None or self._is_another(Seen(*at), flushed):  # a worker may renew only after it has compared what it remembers with this server
                        raise psycopg.OperationalError("the server is another one: the other connections have to find it first")
                found, full, flushed = self._write_renewal(self._renewing, owner, ttl_us)
                self._note_crowd(full)
                self._note_flushed(flushed)
                if self._pool is None or self._pool.crowded:
                    self._renewing.close()
                    self._renewing = None
            except (psycopg.Error, OSError) as e:
                if self._renewing is not None:
                    self._renewing.close()
                    self._renewing = None
                raise translate(shut_for_now(e) if isinstance(e, psycopg.Error) else e, self.url) from e
        return found

    def _write_renewal(self, db: psycopg.Connection[tuple[Any, ...]], owner: str, ttl_us: int) -> tuple[tuple[Any, ...] | None, float, int]:
        """Returns the new expiry and the time, how full the server is and how far it has written its log, in one round trip. For its own owners this
        process writes what it knows of them; for others, what is stored."""
        known = self._mine.get(owner)
        row = (owner, *(known[name] for name in _WORKER[1:])) if known is not None else db.execute(Q.worker_row, (owner,)).fetchone()
        with db.pipeline():
            renewed = None if row is None else db.execute(Q.worker_renew, _worker_values(row, ttl_us, self._clock()))
            full = db.execute(Q.full)
        crowd, flushed, _ = full.fetchone()  # type: ignore[misc]  # the statement always returns a row
        return None if renewed is None else renewed.fetchone(), crowd, flushed

    async def retire(self, owner: str) -> None:
        async def work(db: Connection, sent: int) -> None:
            mine = (Q.lock_owned, (owner,))  # runs are locked first, as by a commit; and once more, because one may have been taken before the owner was locked
            asked = [mine, (Q.worker_lock, (owner,)), mine, (Q.hand_back, {"owner": owner, "now": self._clock()}), (Q.worker_delete, {"owner": owner})]
            await many(db, asked)
            await bounds.leave(db, self._clock(), owner, None)

        await self._do(work)
        self._mine.pop(owner, None)
        self._commits().forget()
        self._proofs().release(owner)
        self._news.tell(News.DUE | News.FREED)

    async def release(self, run_id: str, owner: str, fence: int, due: int) -> None:
        values = {"b": ids.bucket_number(run_id), "run": run_id, "owner": owner, "fence": fence, "due": due}
        await self._do(lambda db, sent: many(db, [(Q.release_one, values)]))
        self._commits().forget()
        self._news.tell(News.FREED)

    def abandon(self, owner: str) -> None:
        """Ends an owner's life without handing anything back, as a crash does: from now on it is proven dead."""
        self._mine.pop(owner, None)
        self._proofs().drop(owner)

    async def outlive(self, owner: str) -> None:
        self._proofs().keep(owner)

    async def owner_alive(self, owner: str) -> Alive:
        (found,) = await self._ask((Q.worker_known, (owner,)))
        return self._alive(owner, found[0][0] if found else None)

    async def workers(self, *, counted: bool = True) -> list[Worker]:
        (found,) = await self._ask((Q.workers_counted if counted else Q.workers, {"now": self._clock()}))
        return [
            Worker(owner, started, expires, self._alive(owner, its).value, count, _offer(owner, data, seal))
            for owner, started, expires, its, count, data, seal in found
        ]

    async def offer(self, owner: str, offer: Offer) -> None:
        async def work(db: Connection, sent: int) -> None:
            data = codec.encode_offer(offer)
            await many(db, [(Q.offers_forget, None), (Q.offer_put, {"owner": owner, "data": data, "seal": vouch.of_offer(owner, data).seal})])

        await self._do(work, whole=True)


_WORKER = ("owner", "started", "ttl", "boot", "host", "pid")


def _worker_values(row: Sequence[Any], ttl_us: int, now: int | None) -> dict[str, Any]:
    """Returns the values written for a worker: its row as given, with this lease, and its voucher."""
    values = {**dict(zip(_WORKER, row, strict=True)), "ttl": ttl_us}
    return {**values, "now": now, "seal": vouch.of_worker(*(values[name] for name in _WORKER)).seal}


def _offer(owner: str, data: bytes | None, seal: bytes | None) -> Offer | None:
    """Returns what a worker says it works on; None if that is not what it has written, which the checker names."""
    return None if data is None or vouch.of_offer(owner, data).seal != seal else codec.decode_offer(data)


__all__ = ["Owners"]

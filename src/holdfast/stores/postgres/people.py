"""What comes from outside to a PostgreSQL store: commands for runs, tokens, schedules, and what applications keep on shelves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core import codec, ids, vouch
from holdfast.core.commit import InboxItem
from holdfast.core.errors import RunNotFound
from holdfast.core.schedules import Schedule
from holdfast.core.tokens import Token
from holdfast.core.vouch import OWN
from holdfast.ports import News
from holdfast.stores import apply
from holdfast.stores.postgres import besides
from holdfast.stores.postgres.commits import Statement
from holdfast.stores.postgres.connection import Connection, first_of, many, outlasting, rows_of
from holdfast.stores.postgres.queries import Q
from holdfast.stores.postgres.server import Server


class People(Server):
    """Commands into inboxes, and the verbs of ``ports.Links``, ``ports.Schedules`` and ``ports.Shelves``."""

    async def put(self, item: InboxItem) -> InboxItem:
        async def work(db: Connection, sent: int) -> InboxItem:
            return _mine(await self._put(db, item), item, sent)

        kept = await self._do(work, whole=True)
        self._news.tell(News.DUE | News.INBOX)
        return kept

    async def issue_token(self, token: Token) -> None:
        t, voucher = token, vouch.of_token(token)
        values = {
            "hash": t.hash, "wait": t.wait_id, "tenant": t.tenant_id, "actor": t.actor, "created": t.created_at, "expires": t.expires_at,
            "b": ids.bucket_number(t.run_id), "run": t.run_id, "id": voucher.id, "seal": voucher.seal,
        }
        if not await self._change(Q.token_insert, values):
            raise await self._missing(RunNotFound(f"there is no run {t.run_id}"), t.run_id)

    async def token(self, hash: bytes) -> Token | None:
        found, stated = await self._ask((Q.token_get, (hash,)), (Q.vouch_under, ([hash.hex()], "token")))
        besides.verify(map(besides.of_token_row, found), stated)
        return besides.decode_token(found[0]) if found else None

    async def redeem_token(self, hash: bytes, item: InboxItem) -> InboxItem:
        async def work(db: Connection, sent: int) -> InboxItem:
            bucket = ids.bucket_number(item.run_id)
            asked = [
                (Q.lock_run, (bucket, item.run_id)), (Q.token_lock, (hash,)), (Q.inbox_get, {"b": bucket, "run": item.run_id, "key": item.key}),
                (Q.vouch_under, ([hash.hex()], "token")),
            ]
            locked, tokens, there, stated = await many(db, asked)
            if sent and there and (kept := _mine(besides.item(item.run_id, there[0]), item, sent)).taken_seq is None:
                return kept
            besides.verify(map(besides.of_token_row, tokens), stated)
            used = apply.usable(besides.decode_token(tokens[0]) if tokens else None, self.now(), answered=not locked or bool(there))
            if used is not None:
                await many(db, [*besides.mark_tokens([used])])
            return await self._put(db, item)

        kept = await self._do(work)
        self._news.tell()
        return kept

    async def put_schedule(self, schedule: Schedule, before: Schedule | None) -> bool:
        async def work(db: Connection, sent: int) -> bool:
            id = schedule.schedule_id
            there = besides.schedule(*await many(db, [(Q.schedule_lock, (id,)), (Q.vouch_some, (OWN, "schedule", [id]))]))
            if sent and there == schedule:
                return True
            if there != before:
                return False
            await many(db, [*besides.put_schedule(schedule, new=before is None)])
            return True

        done = await self._do(work)
        self._news.tell()
        return done

    async def drop_schedule(self, schedule_id: str) -> bool:
        async def is_gone(db: Connection) -> bool:
            return True  # it is gone and nobody else puts it back, so this call has deleted it

        return await self._change(Q.schedule_delete, {"id": schedule_id}, is_gone)

    async def schedule(self, schedule_id: str) -> Schedule | None:
        return besides.schedule(*await self._ask((Q.schedule_get, (schedule_id,)), (Q.vouch_some, (OWN, "schedule", [schedule_id]))))

    async def schedules(self, due: int | None = None) -> list[Schedule]:
        (found,) = await self._ask((Q.schedules, {"due": due}))
        return besides.keep_sound(found, vouch.of_schedule_row, lambda row: codec.decode_schedule(row[3]))

    async def shelve(self, shelf: str, rows: Mapping[str, bytes], once: Collection[str] = ()) -> list[str]:
        """Stores rows with one statement, which is a transaction of its own: one round trip."""
        pool = self._open()
        self._writable()
        if not rows:
            return []
        asked = besides.put_shelf(shelf, rows, once)

        async def work(sent: int) -> list[str]:
            async with pool.hold() as db:
                taken = sorted(key for (key,) in await rows_of(db, *asked))
                if sent and taken:  # if an answer was lost, this call itself may have put them
                    mine = {key for key, data in await rows_of(db, Q.shelf_some, (shelf, taken)) if data == rows[key]}
                    taken = [key for key in taken if key not in mine]
                return taken

        return await outlasting(work, self.url, self.patience)

    async def shelve_new(self, shelf: str, key: str, data: bytes) -> bytes | None:
        voucher = vouch.of_shelf(shelf, key, data)
        values = {"name": shelf, "key": key, "data": data, "id": voucher.id, "seal": voucher.seal}

        async def work(db: Connection, sent: int) -> bytes | None:
            if await first_of(db, Q.shelf_new, values) is not None:
                return None
            there = _read_shelved(await rows_of(db, *_shelf_read(shelf, key)))
            return None if sent and there == data else there

        return await self._do(work)

    async def find_shelved(self, shelf: str, key: str) -> bytes | None:
        return _read_shelved(*await self._ask(_shelf_read(shelf, key)))

    async def shelf_scan(self, shelf: str, prefix: str = "", after: str = "", limit: int = 100) -> list[tuple[str, bytes]]:
        asked = besides.shelf_range(shelf, prefix, after) | {"limit": limit}
        (found,) = await self._ask((besides.SCAN_SHELF, asked))
        return besides.shelf_rows(found)

    async def list_shelves(self) -> list[str]:
        (found,) = await self._ask((Q.shelf_names, None))
        return sorted(name for (name,) in found)

    async def unshelve(self, shelf: str, prefix: str) -> int:
        async def work(db: Connection, sent: int) -> int:
            gone = await rows_of(db, Q.shelf_drop, besides.shelf_range(shelf, prefix))
            await db.execute(Q.shelf_unvouch, {"name": shelf, "ids": [vouch.shelf_id(shelf, key) for (key,) in gone]})
            return len(gone)

        return await self._do(work)


def _shelf_read(shelf: str, key: str) -> Statement:
    return besides.READ_SHELF, (shelf, key, OWN, "shelf", [vouch.shelf_id(shelf, key)])


def _read_shelved(found: Sequence[tuple[Any, ...]]) -> bytes | None:
    rows = besides.shelf_rows(found)
    return rows[0][1] if rows else None


def _mine(there: InboxItem, item: InboxItem, sent: int) -> InboxItem:
    """Returns the item that is stored; if an answer was lost and it is this very item, returns it as if it had just been put."""
    if sent and (there.command, there.put_at) == (item.command, item.put_at):
        return msgspec.structs.replace(item, taken_seq=None)
    return there


__all__ = ["People"]

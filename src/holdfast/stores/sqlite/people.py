"""What comes from outside to a SQLite store: commands for runs, tokens, schedules, and what applications keep on shelves."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from holdfast.core import vouch
from holdfast.core.commit import InboxItem
from holdfast.core.schedules import Schedule
from holdfast.core.tokens import Token
from holdfast.ports import News
from holdfast.stores import apply
from holdfast.stores.sqlite import besides
from holdfast.stores.sqlite.commits import Committer
from holdfast.stores.sqlite.connection import Q, map_errors, reading, row
from holdfast.stores.sqlite.connection import rows as rows_of
from holdfast.stores.sqlite.file import File


class People(File):
    """Commands into inboxes, and the verbs of ``ports.Links``, ``ports.Schedules`` and ``ports.Shelves``."""

    async def put(self, item: InboxItem) -> InboxItem:
        def work(committer: Committer) -> InboxItem:
            with committer.writing():
                return committer.put(item, self._now())

        kept = await self._write().run(work)
        self._changes.tell(News.DUE | News.INBOX)
        return kept

    async def issue_token(self, token: Token) -> None:
        t = token

        def work(committer: Committer) -> None:
            with committer.writing():
                if row(committer.db, Q.run_tip, (t.run_id,)) is None:
                    raise besides.missing(committer.db, t.run_id)
                committer.db.execute(Q.token_insert, (t.hash, t.run_id, t.wait_id, t.tenant_id, t.actor, t.created_at, t.expires_at))
                besides.vouch_for(committer.db, [vouch.of_token(t)])
                besides.count(committer.db, "token", [t.hash.hex()])

        await self._write().run(work)

    async def token(self, hash: bytes) -> Token | None:
        db = self._read()
        with map_errors(self.path), reading(db):
            return besides.token(db, hash)

    async def redeem_token(self, hash: bytes, item: InboxItem) -> InboxItem:
        def work(committer: Committer) -> InboxItem:
            with committer.writing():
                now = self._now()
                token = besides.token(committer.db, hash)
                run = row(committer.db, Q.run_tip, (item.run_id,))
                answered = run is None or row(committer.db, Q.inbox_get, (run[0], item.key)) is not None
                if (usable := apply.usable(token, now, answered=answered)) is not None:
                    besides.mark_token(committer.db, usable)
                return committer.put(item, now)

        kept = await self._write().run(work)
        self._changes.tell()
        return kept

    async def put_schedule(self, schedule: Schedule, before: Schedule | None) -> bool:
        def work(committer: Committer) -> bool:
            with committer.writing():
                return committer.put_schedule(schedule, before)

        done = await self._write().run(work)
        self._changes.tell()
        return done

    async def drop_schedule(self, schedule_id: str) -> bool:
        def work(committer: Committer) -> bool:
            with committer.writing():
                return besides.drop_schedule(committer.db, schedule_id)

        return await self._write().run(work)

    async def schedule(self, schedule_id: str) -> Schedule | None:
        db = self._read()
        with map_errors(self.path), reading(db):
            return besides.schedule(db, schedule_id)

    async def schedules(self, due: int | None = None) -> list[Schedule]:
        db = self._read()
        with map_errors(self.path):
            if due is not None and row(db, Q.schedules_due, (due,)) is None:
                return []  # nearly always the answer when a worker asks
            with reading(db):
                return besides.schedules(db, due)

    async def shelve(self, shelf: str, rows: Mapping[str, bytes], once: Collection[str] = ()) -> list[str]:
        def work(committer: Committer) -> list[str]:
            with committer.writing():
                return besides.shelve(committer.db, shelf, rows, once)

        return await self._write().run(work)

    async def shelve_new(self, shelf: str, key: str, data: bytes) -> bytes | None:
        def work(committer: Committer) -> bytes | None:
            with committer.writing():
                there = besides.find_shelved(committer.db, shelf, key)
                if there is None:
                    besides.shelve(committer.db, shelf, {key: data})
                return there

        return await self._write().run(work)

    async def find_shelved(self, shelf: str, key: str) -> bytes | None:
        with map_errors(self.path):
            return besides.find_shelved(self._read(), shelf, key)

    async def shelf_scan(self, shelf: str, prefix: str = "", after: str = "", limit: int = 100) -> list[tuple[str, bytes]]:
        with map_errors(self.path), reading(self._read()):
            return besides.shelf_scan(self._read(), shelf, prefix, after, limit)

    async def list_shelves(self) -> list[str]:
        with map_errors(self.path):
            return [name for (name,) in rows_of(self._read(), Q.shelf_names)]

    async def unshelve(self, shelf: str, prefix: str) -> int:
        def work(committer: Committer) -> int:
            with committer.writing():
                return besides.unshelve(committer.db, shelf, prefix)

        return await self._write().run(work)


__all__ = ["People"]

"""What is read of runs from a SQLite store."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

import apsw

from holdfast.core import blobs, chunks, codec
from holdfast.core.chunks import Emitted, Stored
from holdfast.core.codec import Row
from holdfast.core.commit import DedupClaim, InboxItem, LedgerRow, Tip
from holdfast.core.effects import Effect
from holdfast.core.errors import HoldfastError, StoreCorrupt, UnknownStatus
from holdfast.core.lease import Alive, Lease
from holdfast.core.run import Run
from holdfast.core.status import TERMINAL, Status
from holdfast.ports import Head, Loaded, News, RunFilter, Tally
from holdfast.stores import apply
from holdfast.stores.evidence import behind_its_log
from holdfast.stores.sqlite import besides, outbox
from holdfast.stores.sqlite.commits import Committer
from holdfast.stores.sqlite.connection import Q, map_errors, reading, row, rows, value_of, writing
from holdfast.stores.sqlite.file import File

MAX_LIST = 10_000
_FILTERS = {
    "tenant_id": "tenant_id = ?",
    "skill_id": "skill_id = ?",
    "thread_id": "thread_id = ?",
    "session_key": "session_key = ?",
    "lane": "lane = ?",
    "parent_run_id": "parent_run_id = ?",
    "lineage_root": "lineage_root = ?",
    "owner": "owner = ?",
    "before": "run_id < ?",
}
_OPEN = "status <> 'completed' AND status <> 'failed' AND status <> 'canceled'"  # the same expression as in an index
_LIST = "SELECT run_id, doc, status, version, step, head, fence, owner, due, EXISTS (SELECT 1 FROM tail WHERE tail.run = run.id AND log > tip) FROM run"
_DUE = f"holds = 0 AND due IS NOT NULL AND due <= ? AND turn <= ifnull((SELECT turn FROM run WHERE run_id = ?), {apply.LAST_TURN})"


class Reading(File):
    """The verbs of ``ports.Runs`` that write nothing, and the verbs for the records of runs: effects, ledger, blobs and chunks."""

    def _run(self, row: Sequence[Any]) -> Run:
        """Returns the run of a row, whose last column says whether the log goes on behind the tip.

        Raises:
            UnknownStatus: a stored status outside the eight (§2.6).
            StoreCorrupt: the row does not match its log (§1.4).
            EventUnreadable: the cold part is damaged.
        """
        run_id, doc, status, version, step, head = row[:6]
        if row[-1]:
            raise behind_its_log(run_id)
        try:
            known = Status(status)
        except ValueError:
            raise UnknownStatus(f"{run_id} is stored with the status {status!r}, which this release does not know", hint="holdfast check names the damage") from None
        return codec.overlay(codec.decode_run(doc), status=known.value, version=version, step=step, head=head)

    def _lease(self, db: apsw.Connection, fence: int, owner: str | None, due: int | None) -> Lease:
        if owner is None:
            return Lease(fence, None, None, Alive.UNKNOWN, due)
        worker = self._owners.find(db, owner)
        if worker is None:
            return Lease(fence, owner, None, Alive.UNKNOWN, due)
        return Lease(fence, owner, self._now() + self._owners.remaining(worker), self._owners.alive(worker), due)

    async def get(self, run_id: str) -> tuple[Run, Lease] | None:
        db = self._read()
        with map_errors(self.path):
            found = row(db, Q.run_get, (run_id,))
            return None if found is None else (self._run(found), self._lease(db, *found[6:9]))

    async def load(self, run_id: str) -> Loaded | None:
        db = self._read()
        with map_errors(self.path), reading(db):
            return self._load(db, run_id)

    def _load(self, db: apsw.Connection, run_id: str) -> Loaded | None:
        """Returns a run with all that is needed to continue it; parts that are known to be empty are not read."""
        found = row(db, Q.run_load, (run_id,))
        if found is None:
            return None
        run, lease, (key, tip, since, size, seq, digest, data, prev, saved, told, emitted) = self._run(found), self._lease(db, *found[6:9]), found[9:-1]
        if digest is None:
            raise StoreCorrupt(f"the newest commit of {run_id} is missing from the log", hint="restore a backup", code="checkpoint_head_missing")
        newest = row(db, Q.whole_newest, (key,)) if saved else None
        whole, stop = (None, 0) if newest is None else (codec.decode_whole(run_id, newest[2]), newest[1])
        since_then = [Row(seq, data, digest)] if prev == stop else log_back(db, tip, stop, 0)
        items = tuple(besides.inbox(db, run_id, key, taken=False)) if told else ()
        batches = tuple(chunks.read(run_id, (data for (data,) in rows(db, Q.chunks_newest, (key,))))) if emitted else ()
        return Loaded(run, Tip(seq, digest, tip, since, size), lease, whole, tuple(since_then), items, batches)

    async def runs(self, query: RunFilter) -> list[tuple[Run, Lease]]:
        db = self._read()
        limit, out = min(query.limit, MAX_LIST), list[tuple[Run, Lease]]()
        with map_errors(self.path), reading(db):
            for sql, values in _listing(query, self._now()):
                seen = 0
                while len(out) < limit:
                    found = rows(db, sql + " LIMIT ? OFFSET ?", [*values, limit, seen])
                    for kept in found:
                        with contextlib.suppress(HoldfastError):  # an unreadable run does not hide the others; the checker names it (§3.6)
                            out.append((self._run(kept), self._lease(db, *kept[6:9])))
                    seen += len(found)
                    if len(found) < limit:
                        break
        return out[:limit]

    async def heads(self, run_ids: Sequence[str]) -> dict[str, Head]:
        db, named = self._read(), (json.dumps(list(run_ids)),)
        with map_errors(self.path), reading(db):
            wholes, found = rows(db, Q.heads, named), rows(db, Q.heads_back, named)
        logs: dict[str, list[Row]] = {}
        for run_id, seq, data, digest in found:
            logs.setdefault(run_id, []).append(Row(seq, data, digest))
        out: dict[str, Head] = {}
        for run_id, data in wholes:
            with contextlib.suppress(HoldfastError):  # loading this run alone reports what is wrong with it
                out[run_id] = Head(None if data is None else codec.decode_whole(run_id, data), tuple(logs.get(run_id, ())))
        return out

    async def rows(self, run_id: str, after: int = 0, limit: int | None = None) -> list[Row]:
        """Reads page by page forward, from one whole checkpoint to the next; each of these stretches is walked backwards."""
        db = self._read()
        with map_errors(self.path), reading(db):
            found = row(db, Q.run_tip, (run_id,))
            return [] if found is None else log_forward(db, found[0], found[1], after, limit)

    async def inbox(self, run_id: str, *, taken: bool = False) -> list[InboxItem]:
        db = self._read()
        with map_errors(self.path):
            found = row(db, Q.run_tip, (run_id,))
            if found is None:
                return []
            return besides.inbox(db, run_id, found[0], taken=taken)

    async def find_marked(self, owner: str) -> list[str]:
        with map_errors(self.path):
            return [run_id for (run_id,) in rows(self._read(), Q.marked, (owner,))]

    async def find_claim(self, kind: str, scope: str, key: str) -> DedupClaim | None:
        db = self._read()
        with map_errors(self.path), reading(db):
            return besides.find_claim(db, kind, scope, key, self._now())

    async def open_effects(self, owner: str) -> list[Effect]:
        with map_errors(self.path):
            return [e for e in besides.effects_open(self._read()) if e.owner == owner]

    async def effects(self, run_id: str | None = None, *, key: str | None = None, lineage_root: str | None = None) -> list[Effect]:
        db = self._read()
        choices = ((key, besides.effects_of_key), (run_id, besides.effects_of_run), (lineage_root, besides.effects_of_lineage))
        with map_errors(self.path), reading(db):
            found = next((read(db, value) for value, read in choices if value is not None), None)
            if found is None:
                found = besides.effects_all(db)
        return [e for e in found if run_id in (None, e.run_id) and lineage_root in (None, e.lineage_root)]

    async def newest_effects(self, tenant_id: str | None = None, *, statuses: Sequence[str] = (), limit: int = 100) -> list[Effect]:
        db = self._read()
        with map_errors(self.path), reading(db):
            return besides.newest_effects(db, tenant_id, statuses, min(limit, MAX_LIST))

    async def tally(self, tenant_id: str | None = None) -> Tally:
        db = self._read()
        with map_errors(self.path), reading(db):
            runs = rows(db, Q.tally_runs, ()) if tenant_id is None else rows(db, Q.tally_runs_of, (tenant_id,))
            return Tally(dict(runs), dict(rows(db, Q.tally_effects, (tenant_id,))))

    async def ledger(
        self,
        run_id: str | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
        tenant_id: str | None = None,
        after: int | None = None,
        limit: int | None = None,
    ) -> list[LedgerRow]:
        with map_errors(self.path):
            return outbox.ledger(self._read(), run_id, topic, key, tenant_id, after, limit)

    async def blob(self, digest: str) -> bytes:
        with map_errors(self.path):
            found = row(self._read(), Q.blob_get, (bytes.fromhex(digest),))
        return blobs.read_back(digest, None if found is None else found[0])

    async def emit(self, emitted: Sequence[Emitted]) -> None:
        def work(committer: Committer) -> None:
            with writing(committer.db):
                for e in emitted:
                    key, fence = row(committer.db, Q.run_fence, (e.run_id,)) or (0, 0)
                    if key and fence == e.fence:
                        besides.emit(committer.db, key, e, self.now())

        await self._write().run(work)
        self._changes.tell(News.OTHER)

    async def chunks(self, run_id: str, after: int = 0, limit: int = 1000) -> list[Stored]:
        with map_errors(self.path):
            found = rows(self._read(), Q.chunks, (run_id, after, limit))
        return [Stored(serial, batch, bool(gone)) for serial, data, gone in found if (batch := chunks.readable(run_id, data)) is not None]


def _listing(query: RunFilter, now: int) -> list[tuple[str, list[Any]]]:
    """Returns the statement that lists these runs, or several for one after the other."""
    where = [sql for field, sql in _FILTERS.items() if getattr(query, field) is not None]
    values: list[Any] = [getattr(query, field) for field in _FILTERS if getattr(query, field) is not None]
    if query.statuses is not None:
        where.append("status IN (SELECT value FROM json_each(?))")
        values.append(json.dumps([str(s) for s in query.statuses]))
        if not TERMINAL.intersection(query.statuses):
            where.append(_OPEN)
    if not query.ahead:
        return [(_LIST + (" WHERE " + " AND ".join(where) if where else "") + (" ORDER BY turn DESC" if query.by_turn else " ORDER BY run_id DESC"), values)]
    held, due = (f"{_LIST} WHERE {' AND '.join([*where, also])}" for also in ("holds = 1", _DUE))
    return [(held, values), (due + " ORDER BY turn", [*values, now, query.until])]


def log_back(db: apsw.Connection, start: int, stop: int, after: int) -> list[Row]:
    """Returns the chain from row ``start`` back to, but without, ``stop`` or events up to ``after``; oldest first."""
    return [Row(seq, data, digest) for seq, data, digest in reversed(rows(db, Q.log_back, (start, stop, after)))]


def log_forward(db: apsw.Connection, key: int, tip: int, after: int, limit: int | None) -> list[Row]:
    """Returns log rows of a run, oldest first; with ``limit`` at most that many are in memory."""
    if limit is None:
        return log_back(db, tip, 0, after)
    out: list[Row] = []
    stop, skip = 0, 0
    while len(out) < limit:
        end = value_of(db, Q.whole_after, (key, after, skip))
        page = rows(db, Q.log_page, (tip if end is None else end, stop, after, limit - len(out)))
        out += [Row(seq, data, digest) for seq, data, digest in page]
        if end is None or end == tip:
            break
        stop, skip = end, skip + 1
    return out


__all__ = ["MAX_LIST", "Reading", "log_back", "log_forward"]

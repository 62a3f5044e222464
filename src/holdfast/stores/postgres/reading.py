"""What is read of runs from a PostgreSQL store, each time in one snapshot."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from holdfast.core import blobs, chunks, codec, ids, vouch
from holdfast.core.chunks import Emitted, Stored
from holdfast.core.codec import Row
from holdfast.core.commit import DedupClaim, InboxItem, LedgerRow, Tip
from holdfast.core.effects import Effect
from holdfast.core.errors import HoldfastError, RecordDamaged, StoreCorrupt, UnknownStatus
from holdfast.core.lease import Alive, Lease, counter
from holdfast.core.run import Run
from holdfast.core.status import Status
from holdfast.core.vouch import OWN, Voucher
from holdfast.ports import Head, Loaded, News, RunFilter, Tally
from holdfast.stores import apply
from holdfast.stores.evidence import behind_its_log, changes_record, misfit
from holdfast.stores.postgres import besides, lone, outbox
from holdfast.stores.postgres.ahead import LEFT_ALONE
from holdfast.stores.postgres.arrays import Numbers, Texts
from holdfast.stores.postgres.commits import emitting
from holdfast.stores.postgres.connection import Connection, many, rows_of
from holdfast.stores.postgres.listing import listings
from holdfast.stores.postgres.queries import Q
from holdfast.stores.postgres.remembered import tell_rollback
from holdfast.stores.postgres.server import Server

MAX_LIST = 10_000
PAGE = 500  # rows of a log that are read at once


class Reading(Server):
    """The verbs of ``ports.Runs`` that write nothing, and the verbs for the records of runs: effects, ledger, blobs and chunks."""

    def _run(self, found: Sequence[Any]) -> Run:
        """Returns the run of a row."""
        return self._read(found)[0]

    def _read(self, found: Sequence[Any]) -> tuple[Run, int]:
        """Returns the run of a row, and the number of events of which its record knows: later events are plain steps, unless the row lags behind its
        log.

        Raises:
            UnknownStatus: a stored status outside the eight (§2.6).
            StoreCorrupt: the row does not match its log (§1.4).
            EventUnreadable: the cold part is damaged.
        """
        run_id, doc, status, version, step, head = found[:6]
        try:
            known = Status(status)
        except ValueError:
            raise UnknownStatus(f"{run_id} is stored with the status {status!r}, which this release does not know", hint="holdfast check names the damage") from None
        run = codec.decode_run(doc)
        if version is None:
            return run, run.version
        if (error := misfit(run, known, version)) is not None:
            raise error
        return codec.overlay(run, status=known.value, version=version, step=step, head=head), run.version

    def _lease(self, fence: int, owner: str | None, due: int | None, expires: int | None, its: str | None) -> Lease:
        if owner is None or its is None:
            return Lease(fence, owner, None, Alive.UNKNOWN, due)
        return Lease(fence, owner, expires, self._alive(owner, its), due)

    async def get(self, run_id: str) -> tuple[Run, Lease] | None:
        (found,) = await self._ask((Q.run_get, {"b": ids.bucket_number(run_id), "run": run_id, "now": self._clock()}))
        return (self._run(found[0]), self._lease(*found[0][6:])) if found else None

    async def load_if_ended(self, run_id: str) -> Loaded | tuple[Run, Lease] | None:
        known = self._remembered.tip(run_id)
        asked = (Q.ended, {"b": ids.bucket_number(run_id), "run": run_id, "now": self._clock()})
        self._open().expect([asked], LEFT_ALONE)
        (found,) = await self._ask(asked)
        return lone.read_ended(self._run(found[-1]), self._lease(*found[-1][6:11]), found, known) if found else None

    async def load(self, run_id: str) -> Loaded | None:
        bucket = ids.bucket_number(run_id)
        by, name = (bucket, run_id), {"b": bucket, "run": run_id, "now": self._clock(), "taken": False}
        known = self._remembered.tip(run_id)  # what is acknowledged while the answer is on its way need not be in it
        found, tips, wholes, rows, items, stated, emitted = await self._ask(
            (Q.run_get, name), (Q.load_tip, by), (Q.load_whole, by), (Q.load_rows, by), (Q.inbox_of, name), (Q.vouch_untaken, (run_id,)),
            (Q.chunks_newest, (run_id,)),
        )
        if not found:
            return None
        (run, upto), lease = self._read(found[0]), self._lease(*found[0][6:])
        if not tips:
            raise StoreCorrupt(f"the newest commit of {run_id} is missing from the log", hint="restore a backup", code="checkpoint_head_missing")
        tip = Tip(*tips[0])
        if known is not None and tip.row < known.row:  # the log ends before what was committed here, so it has lost its tail (§1.9)
            self._remembered.named[run_id] = tell_rollback(run_id, tip.row, known.row)
            await self._find_rollback(run_id)
            return await self.load(run_id)
        whole = codec.decode_whole(run_id, wholes[0][0]) if wholes else None
        since = tuple([log_row(r) for r in rows])
        if await self._lags(run, upto, lease.fence, tip, whole[0].seq if whole is not None else 0, since):
            raise behind_its_log(run_id)
        newest = tuple(chunks.read(run_id, (data for (data,) in emitted)))
        return Loaded(run, tip, lease, whole, since, tuple(besides.items(run_id, items, stated)), newest)

    async def _lags(self, run: Run, upto: int, fence: int, tip: Tip, begin: int, rows: Sequence[Row]) -> bool:
        """Returns whether a row lags behind its log, because its record may be that of ``upto`` events. ``rows`` are the log rows after the event
        ``begin``; rows before it that the record does not include are read too. Rows after ``tip`` were committed after the row was read, and do not
        count."""
        rows = [row for row in rows if row.seq <= tip.seq]
        if rows and apply.newest_fence(rows[-1]) > counter(fence):
            return True
        if upto >= run.version or tip.seq != run.version:  # a later release has written what this one does not count
            return False
        after = upto
        while after < begin and (page := await self.rows(run.run_id, after, PAGE)):
            if any(row.seq <= tip.seq and changes_record(row) for row in page):
                return True
            after = page[-1].seq
        return any(row.seq > upto and changes_record(row) for row in rows)

    async def runs(self, query: RunFilter) -> list[tuple[Run, Lease]]:
        texts, values = listings(query)
        limit, seen = min(query.limit, MAX_LIST), 0
        out: list[tuple[Run, Lease]] = []
        while len(out) < limit:
            answers = await self._ask(*[(text, {**values, "limit": limit, "seen": seen, "now": self._clock()}) for text in texts])
            for kept in (row for found in answers for row in found):
                with contextlib.suppress(HoldfastError):  # an unreadable run does not hide the others; the checker names it (§3.6)
                    out.append((self._run(kept), self._lease(*kept[6:])))
            seen += limit
            if all(len(found) < limit for found in answers):
                break
        return out[:limit]

    async def heads(self, run_ids: Sequence[str]) -> dict[str, Head]:
        named = {"b": [ids.bucket_number(r) for r in run_ids], "run": list(run_ids)}
        wholes, found = await self._ask((Q.heads, named), (Q.heads_rows, named))
        logs: dict[str, list[Row]] = {}
        for run_id, *kept in found:
            logs.setdefault(run_id, []).append(log_row(kept))
        out: dict[str, Head] = {}
        for run_id, data in wholes:
            with contextlib.suppress(HoldfastError):  # loading this run alone reports what is wrong with it
                out[run_id] = Head(None if data is None else codec.decode_whole(run_id, data), tuple(logs.get(run_id, ())))
        return out

    async def rows(self, run_id: str, after: int = 0, limit: int | None = None) -> list[Row]:
        (found,) = await self._ask((Q.rows, {"b": ids.bucket_number(run_id), "run": run_id, "after": after, "limit": limit}))
        return [log_row(r) for r in found]

    async def emit(self, emitted: Sequence[Emitted]) -> None:
        async def work(db: Connection, sent: int) -> None:  # a batch that is written twice is delivered once, because chunks are numbered
            runs = sorted({e.run_id for e in emitted})
            fences = dict(await rows_of(db, Q.chunk_fences, {"b": [ids.bucket_number(r) for r in runs], "run": runs}))
            await many(db, [s for e in emitted if fences.get(e.run_id) == e.fence for s in emitting(e, self._clock())])

        await self._do(work)
        self._news.tell(News.OTHER)

    async def chunks(self, run_id: str, after: int = 0, limit: int = 1000) -> list[Stored]:
        (found,) = await self._ask((Q.chunks, (run_id, after, limit)))
        return [Stored(serial, batch, gone) for serial, data, gone in found if (batch := chunks.readable(run_id, data)) is not None]

    async def inbox(self, run_id: str, *, taken: bool = False) -> list[InboxItem]:
        vouchers = (Q.vouch_of_run, (run_id, "inbox")) if taken else (Q.vouch_untaken, (run_id,))
        found, stated = await self._ask((Q.inbox_of, {"b": ids.bucket_number(run_id), "run": run_id, "taken": taken}), vouchers)
        return besides.items(run_id, found, stated)

    async def find_marked(self, owner: str) -> list[str]:
        committer = self._commits()
        if not committer.knows_all:
            (found,) = await self._ask((Q.marked, (owner,)))
        else:
            driven = list(committer.fences)
            (found,) = await self._ask((Q.marked_of, {"owner": owner, "b": Numbers([ids.bucket_number(r) for r in driven]), "run": Texts(driven)}))
        return [run_id for (run_id,) in found]

    async def find_claim(self, kind: str, scope: str, key: str) -> DedupClaim | None:
        asked = {"kind": kind, "scope": scope, "key": key, "now": self._clock()}
        found, stated = await self._ask((Q.claimed, asked), (Q.vouch_some, (OWN, "claim", [vouch.claim_id(kind, scope, key)])))
        claims = [DedupClaim(kind, scope, key, *row[:3]) for row in found]
        besides.verify(map(vouch.of_claim, claims), stated)
        if not claims:
            return None
        status = None
        if not apply.still_taken(claims[0], None, found[0][3]):
            run_id = claims[0].run_id
            (there,) = await self._ask((Q.see_statuses, {"b": [ids.bucket_number(run_id)], "run": [run_id]}))
            status = there[0][1] if there else None
        return claims[0] if apply.still_taken(claims[0], status, found[0][3]) else None

    async def effects(self, run_id: str | None = None, *, key: str | None = None, lineage_root: str | None = None) -> list[Effect]:
        """Returns effects. If the record of a key is lost, this raises, so that the effect is not performed again, even if the record's voucher is
        lost too."""
        asked = (Q.effects, {"run": run_id, "key": key, "root": lineage_root})
        if run_id is None and key is None:
            (found,) = await self._ask(asked)
            if lineage_root is None:
                return besides.keep_sound(found, vouch.of_effect_row, besides.decode_effect)
            for row in found:
                besides.same(vouch.of_effect_row(row), row[-1])
        else:
            vouchers = [(Q.vouch_of_run, (run_id, "effect"))] if key is None else [(Q.vouch_under, ([key], "effect")), (Q.claim_of_key, (key,))]
            found, stated, *taken = await self._ask(asked, *vouchers)
            known = [v for v in map(Voucher._make, stated) if run_id is None or v.run_id == run_id]
            vouch.verify(map(vouch.of_effect_row, found), known if lineage_root is None else [v for v in known if v.id in {row[0] for row in found}])
            if not found and taken and taken[0] and run_id is None and lineage_root is None:
                raise RecordDamaged("effect", taken[0][0][0], str(key), missing=True)
        return [besides.decode_effect(row) for row in found]

    async def newest_effects(self, tenant_id: str | None = None, *, statuses: Sequence[str] = (), limit: int = 100) -> list[Effect]:
        (found,) = await self._ask((Q.effects_newest, {"tenant": tenant_id, "statuses": list(statuses) or None, "limit": min(limit, MAX_LIST)}))
        return besides.keep_sound(found, vouch.of_effect_row, besides.decode_effect)

    async def tally(self, tenant_id: str | None = None) -> Tally:
        runs, effects = await self._ask((Q.tally_runs, {"tenant": tenant_id}), (Q.tally_effects, {"tenant": tenant_id}))
        return Tally(dict(runs), dict(effects))

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
        found, *stated = await self._ask(outbox.ledger(run_id, topic, key, tenant_id, after, limit), *outbox.of_ledger(run_id, after))
        kept = [LedgerRow(*r[:7]) for r in found]
        if not stated or topic is not None or key is not None or tenant_id is not None:
            return [entry for entry, row in zip(kept, found, strict=True) if vouch.of_ledger(entry).seal == row[-1]]
        last = vouch.ledger_id(kept[-1].number) if kept and len(kept) == limit else None
        besides.verify(map(vouch.of_ledger, kept), [v for v in stated[0] if last is None or v[2] <= last])
        return kept

    async def open_effects(self, owner: str) -> list[Effect]:
        (found,) = await self._ask((Q.effects_open, None))
        return [e for e in besides.keep_sound(found, vouch.of_effect_row, besides.decode_effect) if e.owner == owner]

    async def blob(self, digest: str) -> bytes:
        (found,) = await self._ask((Q.blob_get, (digest,)))
        return blobs.read_back(digest, found[0][0] if found else None)


def log_row(found: Sequence[Any]) -> Row:
    return Row(found[0], found[1], found[2])


__all__ = ["MAX_LIST", "Reading", "log_row"]

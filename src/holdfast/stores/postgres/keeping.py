"""The PostgreSQL store as a whole: checks, repair, import and pruning (``ports.Upkeep``)."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from holdfast.core import canon, codec, ids, vouch
from holdfast.core.checkpoint import Checkpoint
from holdfast.core.codec import Row
from holdfast.core.commit import Commit, DedupClaim
from holdfast.core.consistency import Problem, problem, record_problem, unknown_trigger
from holdfast.core.errors import Conflict, HoldfastError, LogRolledBack, RecordDamaged
from holdfast.core.pruned import Tombstone
from holdfast.core.run import Run
from holdfast.core.vouch import OWN, Voucher
from holdfast.ports import Dossier, Evidence, Pruned
from holdfast.stores import apply
from holdfast.stores.batches import Batch, prune_in_batches
from holdfast.stores.evidence import behind_its_log, doc_of, misfit
from holdfast.stores.postgres import besides, indexes, upkeep
from holdfast.stores.postgres.connection import Connection, many
from holdfast.stores.postgres.queries import Q
from holdfast.stores.postgres.reading import Reading, log_row
from holdfast.stores.postgres.server import vouch_anew
from holdfast.stores.postgres.upkeep import Key

MAX_PROBLEMS = 100
_LINEAGES = 100  # pruned in one transaction at most
_REST = 3  # seconds of pause after each second of such a transaction


class Keeping(Reading):
    """The verbs of ``ports.Upkeep``, and what the checker asks of a store."""

    async def verify(self) -> list[Problem]:
        """Checks every hash chain of the log, in pages, and reports what was lost with a server's tail."""
        unknown = [] if self.suspect is None else [Problem(self.suspect.code, "error", self.suspect.message, self.suspect.hint)]
        there, made = await self._ask((Q.indexes_there, None), (Q.triggers_there, None))
        problems = [*unknown, *self._list_lost_tails(), *indexes.find_lost([name for name, _ in there], [name for name, sound in there if not sound])]
        problems += [unknown_trigger(f"the {what} {name}", table, f"DROP {what.upper()} \"{name}\" ON holdfast.{table}") for what, name, table in made]
        kept = await self._ask(*besides.ask_kept_by_store(self._clock()))
        beside = await besides.apart(kept, lambda: besides.damage_of_store(kept))
        return [*problems, *map(record_problem, beside + await self._find_damaged_claims()), *await self._chains()]

    def _list_lost_tails(self) -> list[Problem]:
        return [Problem(LogRolledBack.code, "error", about, f"look at what is left (holdfast events {run}); then a person resumes it: holdfast explain {run} shows the command", run) for run, about in self._remembered.named.items()]

    async def _find_damaged_claims(self) -> list[RecordDamaged]:
        """Checks the claims in pages, because there may be many."""
        out: list[RecordDamaged] = []
        last: tuple[str, str, str] = ("", "", "")
        while page := (await self._ask((Q.claims_page, last)))[0]:
            last = page[-1][:3]
            (stated,) = await self._ask((Q.vouch_some, (OWN, "claim", [vouch.claim_id(*row[:3]) for row in page])))
            out += besides.damage_of_claims(page, stated)
        return out

    async def vouch_anew(self) -> None:
        """Accepts the records beside the log as they are, on behalf of an operator: lost ones stay lost, and altered ones count as they are."""

        async def work(db: Connection, sent: int) -> None:
            await vouch_anew(db)
            await many(db, [besides.free((await many(db, [(Q.intents, None)]))[0], self.now())])

        await self._do(work)
        self._news.tell()

    async def health(self) -> list[Problem]:
        """Reports settings and states of the server that endanger stored data, or slow the store, for ``doctor``."""
        (found,) = await self._ask((Q.health, None))
        return upkeep.health(found[0], time.time_ns() // 1000, unnamed=self._open().pooled)

    async def _chains(self) -> list[Problem]:
        broken: dict[tuple[int, int], str] = {}
        last, at, previous = (-1, -1, -1), (-1, -1), b""
        while page := (await self._ask((Q.chain_page, last)))[0]:
            for bucket, run, n, seq, digest, data in page:
                before = last[2] if (bucket, run) == at else 0
                if (n != before + 1 or canon.chain(previous if before else b"", data) != digest) and len(broken) < MAX_PROBLEMS:
                    broken.setdefault((bucket, run), f"the commit that ends with event {seq} does not match its hash")
                last, at, previous = (bucket, run, n), (bucket, run), digest
        if not broken:
            names: dict[tuple[int, int], str] = {}
        else:
            (found,) = await self._ask((Q.run_names, ([b for b, _ in broken], [r for _, r in broken])))
            names = {(bucket, run): run_id for bucket, run, run_id in found}
        out = [Problem("event_chain_broken", "error", why, "restore a backup", names.get(key)) for key, why in broken.items()]
        for (run_id,) in (await self._ask((Q.runs_without_log, None)))[0]:
            out.append(Problem("event_chain_broken", "error", f"{run_id} has no log", "restore a backup", run_id))
        return out

    async def run_ids(self, after: str = "", limit: int = 1000) -> list[str]:
        if not after or self._orphans is None:  # this reads every log, so it is done once for all pages
            self._orphans = list(upkeep.orphans((await self._ask((Q.log_orphans, None)))[0]))
        (found,) = await self._ask((Q.run_ids, (after, limit)))
        here = [r for (r,) in found]
        end = here[-1] if len(here) == limit else None
        lost = [r for r in self._orphans if r > after and (end is None or r <= end)]
        return sorted([*here, *lost]) if lost else here

    async def _where(self, run_id: str) -> Key | None:
        """Returns where a run's log is, also if only the log is left."""
        (found,) = await self._ask((Q.run_raw, (ids.bucket_number(run_id), run_id)))
        return Key(*found[0][:2]) if found else await self._find_orphan(run_id)

    async def _find_orphan(self, run_id: str) -> Key | None:
        """Returns where the log of a run without a row is. This reads every log."""
        (found,) = await self._ask((Q.log_orphans, None))
        return upkeep.orphans(found).get(run_id)

    async def evidence(self, run_id: str) -> Evidence | None:
        bucket = ids.bucket_number(run_id)
        key = await self._where(run_id)
        if key is None:
            return None
        # The row and the end of its log are read together: otherwise, while the run is driven, one of them would be newer.
        raws, found, tips, needs, *beside = await self._ask(
            (Q.run_raw, (bucket, run_id)), (Q.run_get, {"b": bucket, "run": run_id, "now": self._clock()}), (Q.log_tip, (key.bucket, key.id)), (Q.needs, {"run": run_id}),
            *besides.ask_kept_of_run(run_id, bucket),
        )
        lease = self._lease(*found[0][6:]) if found else None
        evidence = upkeep.evidence_of(run_id, key, raws[0] if raws else None, tips[0] if tips else None, lease)
        evidence = msgspec.structs.replace(evidence, problems=(*evidence.problems, *await self._find_misfit(evidence)))
        damaged = await besides.apart(beside, lambda: besides.damage_of_run(run_id, beside, self.now())) if raws else []
        return msgspec.structs.replace(evidence, problems=(*evidence.problems, *map(record_problem, damaged)), needs=upkeep.needs(needs) if raws else None)

    async def _find_misfit(self, evidence: Evidence) -> list[Problem]:
        """Returns why a run's row does not match its log, as loading it would report."""
        run, tip = evidence.run, evidence.tip
        if not isinstance(run, Run) or tip is None or evidence.lease is None:
            return []
        record = codec.decode_run(doc_of(evidence.raw))
        error = misfit(record, run.status, run.version)
        if error is None and await self._lags(run, record.version, evidence.lease.fence, tip, tip.seq, await self.rows(run.run_id, tip.seq - 1)):
            error = behind_its_log(run.run_id)
        return [] if error is None else [problem(error.code, error.message, error.hint, run.run_id)]

    async def log(self, run_id: str, after: int = 0, limit: int = 1000) -> list[Row]:
        key = await self._where(run_id)
        return [] if key is None else [log_row(r) for r in (await self._ask((Q.log_rows, (key.bucket, key.id, after, limit))))[0]]

    async def whole(self, run_id: str, after: int = 0) -> tuple[int, Checkpoint | HoldfastError] | None:
        key = await self._where(run_id)
        found = [] if key is None else (await self._ask((Q.whole_next, (key.bucket, key.id, after))))[0]
        if not found:
            return None
        seq, data = found[0]
        try:
            return seq, codec.decode_whole(run_id, data)[0]
        except HoldfastError as e:
            return seq, e

    async def rebuild(self, evidence: Evidence, commits: Sequence[Commit]) -> str:
        there = await self.evidence(evidence.run_id)
        if error := apply.mendable(evidence, there, self.now()):
            raise error
        await self._do(lambda db, sent: upkeep.rebuild(db, evidence, commits, self.now()))
        self._commits().forget()
        self._news.tell()
        return ""

    async def claims_of(self, run_id: str) -> list[DedupClaim]:
        found, stated = await self._ask((Q.claims_of, (run_id,)), (Q.vouch_under, ([run_id], "claim")))
        claims = [DedupClaim(kind, scope, key, run_id, digest, until) for kind, scope, key, digest, until in found]
        vouch.verify(map(vouch.of_claim, claims), [v for v in map(Voucher._make, stated) if not apply.is_of_effect(v)])
        return claims

    async def adopt(self, dossier: Dossier) -> bool:
        run_id = dossier.run.run_id
        if await self.get(run_id) is not None:
            return not apply.same(dossier, await self.rows(run_id))
        try:
            await self._do(lambda db, sent: upkeep.adopt(db, dossier, self.incarnation, self.now()))
        except Conflict as e:
            if e.code != "lane_busy":
                raise
            return await self.adopt(dossier)  # another run took its lane after the check, which now sees it
        self._news.tell()
        return True

    async def list_carries(self) -> list[tuple[str, str]]:
        (found,) = await self._ask((Q.carries, None))
        return [(successor, predecessor) for successor, predecessor in found]

    async def keep_origin(self, run_id: str, origin: bytes) -> None:
        async def work(db: Connection, sent: int) -> None:
            await db.execute(Q.origin_insert, (origin, ids.bucket_number(run_id), run_id))

        await self._do(work)

    async def find_pruned(self, run_id: str) -> Tombstone | None:
        return besides.read_pruned(*await self._ask(*besides.ask_pruned([run_id])))

    async def prune(self, before: int, *, dry: bool = False, actor: str = "operator") -> Pruned:
        """Prunes in batches: what is found is locked, and checked again, before it is deleted. If the store is larger than the server's memory, each
        deleted row is a page that the server reads, logs and writes back, and the commits of others wait for that."""

        async def find(after: str) -> list[tuple[str, str]]:
            (found,) = await self._ask((Q.old_roots, {"before": before, "after": after, "limit": _LINEAGES}))
            return [(root, root) for (root,) in found]

        async def take(roots: Sequence[str]) -> Batch:
            async def work(db: Connection, sent: int) -> Pruned:
                return await upkeep.prune(db, roots, before, dry=dry, at=self.now(), by=actor)

            began = time.monotonic()
            pruned = await self._do(work)
            return Batch(pruned, len(roots), time.monotonic() - began)

        async def forget_expired(db: Connection, sent: int) -> None:
            await many(db, [(Q.prune_expired, {"now": self.now()})])

        done = await prune_in_batches("", find, take, rest=0 if dry else _REST)
        if not dry:
            await self._do(forget_expired)
        if done.run_ids and not dry:
            self._news.tell()
        return done


__all__ = ["Keeping"]

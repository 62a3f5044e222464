"""What a worker takes from a SQLite store: claims, and the limits that hold runs back (§10.1, §10.11)."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import apsw

from holdfast.core.errors import HoldfastError, LeaseLost
from holdfast.core.lease import at_once, due_since
from holdfast.core.limits import Backlog, Due, Later, Limit, Rule, choose, in_force
from holdfast.ports import NO_LIMITS, Claim, Claims, Loaded, News, Usage
from holdfast.stores import apply
from holdfast.stores.apply import Found
from holdfast.stores.evidence import behind_its_log
from holdfast.stores.sqlite import besides, lanes, limits
from holdfast.stores.sqlite.commits import Committer, lane_blocker
from holdfast.stores.sqlite.connection import Q, map_errors, reading, row, rows, value_of
from holdfast.stores.sqlite.lanes import NOBODY, Behind
from holdfast.stores.sqlite.leases import Leases
from holdfast.stores.sqlite.owners import Seen
from holdfast.stores.sqlite.reading import Reading

TIDY_SECONDS = 1.0


class _Candidate(NamedTuple):
    """A run that may be claimed. ``holds``: for a due run at rest, whether it holds its lane; None for any other run."""

    key: int
    run_id: str
    fence: int
    previous: str | None
    holds: int | None


class _Found(NamedTuple):
    """The runs that may be claimed, the buckets after that, and when a rate lets the next run begin."""

    runs: Sequence[_Candidate] = ()
    buckets: Mapping[str, int] = {}
    again: int | None = None


class _Nothing(Exception):
    """Other claimers were first: the transaction of a claim that takes nothing is rolled back, so that it causes no news."""

    def __init__(self, again: int | None) -> None:
        super().__init__(again)
        self.again = again


class _Wanted(NamedTuple):
    """What a claimer takes: of which queues (empty: all), of which skills and shapes (as JSON, None: any), within which declared limits."""

    queues: tuple[str, ...]
    skills: str | None
    shapes: str | None
    limits: Mapping[str, Limit]

    @classmethod
    def of(cls, queues: Sequence[str], skills: Sequence[str] | None, shapes: Sequence[str] | None, limits: Mapping[str, Limit]) -> _Wanted:
        return cls(tuple(queues), None if skills is None else json.dumps(list(skills)), None if shapes is None else json.dumps(list(shapes)), limits)


class Claiming(Leases, Reading):
    """Claims by due time and by name, and the verbs of ``ports.Limiting``."""

    async def claim(
        self,
        owner: str,
        queues: Sequence[str],
        skills: Sequence[str] | None,
        *,
        limit: int,
        run_id: str | None = None,
        shapes: Sequence[str] | None = None,
        limits: Mapping[str, Limit] = NO_LIMITS,
    ) -> Claims:
        self._write()
        wanted = _Wanted.of(queues, skills, shapes, limits)
        with map_errors(self.path):
            found = self._find_due(self._read(), owner, wanted, min(limit, 1), run_id)
            behind = lanes.behind(self._read(), self._crowds, queues, self._now()) if run_id is None else NOBODY
        return await self._take(owner, wanted, limit, run_id, found, behind)

    async def claim_or_load(
        self,
        owner: str,
        queues: Sequence[str],
        skills: Sequence[str] | None,
        *,
        limit: int,
        shapes: Sequence[str] | None = None,
        limits: Mapping[str, Limit] = NO_LIMITS,
    ) -> Claims | Loaded:
        self._write()
        wanted = _Wanted.of(queues, skills, shapes, limits)
        with map_errors(self.path):
            db = self._read()
            found = self._find_due(db, owner, wanted, min(limit, 2), None)
            behind = lanes.behind(db, self._crowds, queues, self._now())
            alone = len(found.runs) == 1 and found.runs[0].holds is not None and not behind
            if alone and (loaded := self._load_unbegun(db, found.runs[0].run_id, limits)) is not None:
                return loaded
        return await self._take(owner, wanted, limit, None, found, behind)

    def _load_unbegun(self, db: apsw.Connection, run_id: str, declared: Mapping[str, Limit]) -> Loaded | None:
        """Returns a run as it is, if it has not begun and no limit is stored or declared. A run that cannot be read is claimed instead, so that its
        claimer records the error on the run."""
        if declared or row(db, Q.rule_any)[0]:
            return None
        with contextlib.suppress(HoldfastError, UnicodeDecodeError), reading(db):
            if (loaded := self._load(db, run_id)) is not None and apply.is_unbegun(loaded):
                return loaded
        return None

    async def _take(self, owner: str, wanted: _Wanted, limit: int, run_id: str | None, found: _Found, behind: Behind) -> Claims:
        """Takes what may be taken; ``found``: a part of it, from a read before the transaction."""
        writer = self._write()
        with map_errors(self.path):
            if not found.runs and not behind and (run_id is not None or not self._litter(self._read(), owner)):
                self._require_known(self._read(), owner)
                return Claims().until(found.again)

        def work(committer: Committer) -> tuple[list[tuple[int, Claim]], int | None, int]:
            with committer.writing():
                self._require_known(committer.db, owner)
                marked = lanes.settle(committer.db, behind, self._now()) if behind else 0
                found = self._find_due(committer.db, owner, wanted, limit, run_id)
                if not found.runs and not marked and not behind.freed and not self._litter(committer.db, owner):
                    raise _Nothing(found.again)
                return self._give(committer.db, owner, found), found.again, marked

        try:
            taken, again, marked = await writer.run(work)
        except _Nothing as e:
            taken, again, marked = [], e.again, 0
        if behind.line is not None:
            self._crowds.mark(behind.line, marked)
        if behind.freed:
            self._changes.tell(News.DUE)
        for key, claim in taken:
            writer.drives(claim.run_id, key)
        return Claims([claim for _, claim in taken]).until(again)

    def _find_due(self, db: apsw.Connection, owner: str, wanted: _Wanted, limit: int, run_id: str | None) -> _Found:
        if run_id is not None:
            return self._candidate(db, owner, run_id, wanted.limits, self._now())
        return self._candidates(db, self._owners.holding(db), owner, wanted, limit)

    def _require_known(self, db: apsw.Connection, owner: str) -> None:
        """Checks the claimer.

        Raises:
            LeaseLost: the claimer is not a known worker.
        """
        if self._owners.find(db, owner) is None:
            raise LeaseLost(f"{owner} is not a known worker", hint="register it first")

    def _give(self, db: apsw.Connection, owner: str, found: _Found) -> list[tuple[int, Claim]]:
        """Inside a transaction: gives an owner the runs that were found, and deletes the owners that are gone for good."""
        now = self._now()
        limits.keep_buckets(db, found.buckets)
        for holds, statement in ((0, Q.take_due), (1, Q.take_due_holder)):
            if due := [(owner, c.key, c.fence) for c in found.runs if c.holds == holds]:
                db.executemany(statement, due)
        if others := [(owner, at_once(now), c.key, c.fence) for c in found.runs if c.holds is None]:
            db.executemany(Q.take, others)
        # A killed process leaves many runs: why they may be taken is determined once for all of them.
        lost = {o: self._owners.why_lost(self._owners.find(db, o)) for o in {c.previous for c in found.runs if c.previous is not None}}
        out = [(c.key, self._claim_of(c, owner, lost)) for c in found.runs]
        if any(c.previous is not None for c in found.runs):
            self._tidied = -math.inf  # an owner is gone
        for gone in self._litter(db, owner):
            if self._owners.drop(db, Q.worker_delete_idle, gone):
                self._liveness.forget(gone)
        return out

    @staticmethod
    def _claim_of(c: _Candidate, owner: str, lost: Mapping[str, str | None]) -> Claim:
        """Returns the claim of a run that was due, was asked for by name, or had a lost owner; ``lost``: for each owner, why it is lost."""
        if c.holds is not None:
            return Claim(c.run_id, c.fence + 1)
        return apply.take(c.run_id, c.fence, c.previous, owner, lost.get(c.previous) if c.previous is not None else None)

    def _litter(self, db: apsw.Connection, owner: str) -> list[str]:
        """Returns the owners that are gone for good, hold nothing, and are not named by an attempt that is not closed, because their death must stay
        provable. They do no harm, so they are searched for once a second and after a takeover."""
        if not self._moved and time.monotonic() - self._tidied < TIDY_SECONDS:
            return []
        gone = [w.owner for w in self._owners.look_at_all(db) if w.owner != owner and self._owners.forgettable(w)]
        gone = [o for o in gone if not row(db, Q.worker_runs, (o,))[0]]
        named = {e.owner for e in besides.effects_open(db) if not e.closed} if gone else set()
        litter = [o for o in gone if o not in named]
        if not litter:
            self._tidied = time.monotonic()
        return litter

    def _candidates(
        self, db: apsw.Connection, workers: Sequence[Seen], owner: str, wanted: _Wanted, limit: int
    ) -> _Found:
        """Returns what may be claimed, most urgent first: due runs at rest, and the runs of lost owners; and the buckets after that."""
        now = self._now()
        rules = in_force(wanted.limits, limits.rules(db))
        use = limits.use(db, workers, rules, owner, now) if rules else None
        among = json.dumps(wanted.queues) if wanted.queues else None
        found: list[Any] = []
        for worker in workers:
            if worker.owner != owner and worker.lost is not None:
                found += rows(db, Q.claim_orphans, (worker.owner, among, wanted.skills, limit, wanted.shapes))
        for queue in wanted.queues or lanes.names(db, Q.next_queue):
            here: list[Any] = []
            priority = 2**62
            while len(here) < limit and (priority := value_of(db, Q.next_priority, (queue, priority))) is not None:
                for tenant in lanes.names(db, Q.next_tenant, queue, priority):
                    if use is None or use.in_the_way(queue, tenant) is None:
                        for after, until in apply.due_ranges(now):
                            here += rows(db, Q.claim_due, (queue, priority, now, wanted.skills, limit, wanted.shapes, tenant, after, until))
            found += here
        candidates = {r[0]: _Candidate(r[0], r[1], r[2], r[3], r[6]) for r in found}
        if use is None and len({r[9] for r in found}) > 1:
            use = limits.use(db, workers, rules, owner, now)
        if use is None:
            found.sort(key=lambda r: (-r[4], due_since(r[5], now), r[7]))
            return _Found([candidates[r[0]] for r in found[:limit]])
        got = choose([Due(r[0], r[8], r[9], r[4], due_since(r[5], now), r[7]) for r in found], use, limit)
        return _Found([candidates[key] for key in got.keys], got.buckets, got.again)

    def _candidate(
        self, db: apsw.Connection, claimer: str, run_id: str, declared: Mapping[str, Limit], now: int
    ) -> _Found:
        found = row(db, Q.claim_one, (run_id,))
        if found is None:
            raise besides.missing(db, run_id)
        key, fence, owner, status, tenant, session, lane, holds, turn, queue, lags = found
        if lags:
            raise behind_its_log(run_id)
        live = owner is not None and self._owners.why_lost(self._owners.find(db, owner)) is None
        if not apply.takeable(Found(fence, owner, live, 0, b"", bool(holds), turn, status), claimer):
            return _Found()
        if not holds and lane_blocker(db, (tenant, session, lane), key, turn, now) is not None:
            return _Found()
        one = [_Candidate(key, run_id, fence, owner, None)]
        rules = in_force(declared, limits.rules(db))
        if owner == claimer or not rules.touches(queue, tenant):
            return _Found(one)
        use = limits.use(db, self._owners.holding(db), rules, claimer, now)
        if use.in_the_way(queue, tenant) is not None:
            return _Found(again=use.again)
        use.take(queue, tenant)
        return _Found(one, use.buckets)

    async def rules(self) -> list[Rule]:
        with map_errors(self.path):
            return limits.sound_rules(self._read())

    async def put_rule(self, rule: Rule, before: Rule | None) -> bool:
        def work(committer: Committer) -> bool:
            with committer.writing():
                return limits.put_rule(committer.db, rule, before)

        done = await self._write().run(work)
        self._changes.tell(News.DUE)
        return done

    async def usage(self) -> Usage:
        db = self._read()
        with map_errors(self.path):
            return limits.usage(db, self._owners.look_at_all(db))

    async def backlog(self) -> list[Backlog]:
        with map_errors(self.path):
            return limits.backlog(self._read(), self._now())

    async def enter(self, owner: str, run_id: str, place: str, needs: Mapping[str, Limit | None], *, resting: bool = False) -> Later | None:
        writer = self._write()
        with map_errors(self.path):
            db = self._read()
            if self._owners.find(db, owner) is None:
                raise LeaseLost(f"{owner} is not a known worker", hint="register it first")
            if not resting and isinstance(found := limits.may(db, self._owners.look_at_all(db), owner, place, needs, self._now()), Later | None):
                return found

        def work(committer: Committer) -> Later | None:
            with committer.writing():
                return limits.enter(committer.db, self._owners.look_at_all(committer.db), owner, run_id, place, needs, self._now(), resting=resting)

        return await writer.run(work)

    async def leave(self, owner: str, places: Sequence[str]) -> None:
        def work(committer: Committer) -> None:
            with committer.writing():
                limits.leave(committer.db, owner, places, self._now())

        await self._write().run(work)
        self._changes.tell(News.DUE)

    async def look_again(self, run_id: str, needs: Mapping[str, Limit | None]) -> bool:
        def work(committer: Committer) -> bool:
            with committer.writing():
                return limits.look_again(committer.db, self._owners.look_at_all(committer.db), run_id, needs, self._now())

        if woken := await self._write().run(work):
            self._changes.tell(News.DUE)
        return woken


__all__ = ["Claiming"]

"""What a worker takes from a PostgreSQL store: claims, and the limits that hold runs back (§10.1, §10.11)."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from holdfast.core import ids, vouch
from holdfast.core.errors import HoldfastError, LeaseLost
from holdfast.core.lease import Alive, due_since
from holdfast.core.limits import Backlog, Due, Later, Limit, Rule, Use, choose, in_force
from holdfast.core.vouch import OWN
from holdfast.ports import NO_LIMITS, Claim, Claims, Loaded, News, Usage
from holdfast.stores import apply
from holdfast.stores.apply import Found
from holdfast.stores.crowds import AMONG, CROWD, FEW, LANES, LINES, MARKED, Line
from holdfast.stores.postgres import besides, lone
from holdfast.stores.postgres import limits as bounds
from holdfast.stores.postgres.ahead import FORCED, LEFT_ALONE
from holdfast.stores.postgres.arrays import Names
from holdfast.stores.postgres.commits import Committer, Statement
from holdfast.stores.postgres.connection import Connection, many, rows_of
from holdfast.stores.postgres.hints import Answer
from holdfast.stores.postgres.owners import Owners
from holdfast.stores.postgres.queries import Q
from holdfast.stores.postgres.reading import Reading

EVERY_LINE = 2**31  # a claim that counts usage examines all lines there are


class Claiming(Owners, Reading):
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
        if limit <= 0:
            return Claims()
        self._hints.take()
        committer = self._commits()
        if run_id is not None:
            named = run_id

            async def by_name(db: Connection, sent: int) -> list[Claim]:
                return (await self._answers_lost(db, owner) if sent else []) or await self._claim_one(db, owner, named, limits)

            return _note_driven(committer, await self._do(by_name, whole=True))
        return await self._take_due(self._ask_for(owner, queues, skills, shapes, limits) | {"limit": limit}, limits)

    async def _take_due(self, values: dict[str, Any], limits: Mapping[str, Limit]) -> Claims:
        """Claims due runs, and the runs of owners that are gone."""
        if values["look"] is not None:
            values |= await self._do(lambda db, sent: self._look_for_ground(db, values))
        if self._crowds.lines:
            await self._mark_crowd(self._crowds.lines[0])
        committer = self._commits()
        taken, dead, bounded = await self._do(lambda db, sent: self._claim(db, sent, values), whole=True)
        self._ground.took(len(taken))
        claims = _note_driven(committer, taken)  # noted now, so that a claim below whose answer is lost can be told from these
        if dead == self._dead and not bounded:
            return claims
        values |= {"dead": Names(dead), "limit": values["limit"] - len(taken)}
        try:
            more, again = await self._do(lambda db, sent: self._claim_beside(db, sent, values, limits, bounded=bounded))
        except HoldfastError:
            if not taken:
                raise
            return claims  # these are held: the next claim finds the rest
        self._dead = dead
        self._ground.took(len(more))
        return Claims([*claims, *_note_driven(committer, more)]).until(again)

    def _ask_for(self, owner: str, queues: Sequence[str], skills: Sequence[str] | None, shapes: Sequence[str] | None, limits: Mapping[str, Limit]) -> dict[str, Any]:
        """Returns the values of a claim's statements, and what it examines in addition."""
        return {
            "simple": not limits, "owner": owner, "queues": Names(queues) or None, "skills": None if skills is None else Names(skills),
            "shapes": None if shapes is None else Names(shapes), "dead": Names(self._dead), "now": self._clock(),
            **self._ground.values, "look": self._ground.look(), "crowds": self._crowds.look(),
        }

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
        values = self._ask_for(owner, queues, skills, shapes, limits) | {"limit": limit}
        beside = limits or self._moved or self._crowds.lines or values["look"] is not None or values["crowds"]
        may_give = limit > 0 and not beside and self._few.likely
        asked = values["queues"], values["skills"], values["shapes"]
        told = self._hints.take(asked)
        if told is not None and may_give and limit > 1 and (named := await self._read_named(told)) is not None:
            return named
        self._hints.take()  # what was told meanwhile is found by the read that follows
        if may_give and (found := await self._lone(values)) is not None:
            self._hints.expect(asked, functools.partial(self._look_up, values))
            return found
        return await self._take_due(values, limits) if limit > 0 else Claims()

    async def _lone(self, values: Mapping[str, Any]) -> Claims | Loaded | None:
        """Returns the only run that is due, if it has never begun; no claims if nothing is due; None if the caller has to claim."""
        looked = {**values, "limit": 2, "most": lone.MOST_WORKERS + 1, "boot": self._boot}
        asked: tuple[Statement, ...] = ((Q.planned_once, None), (Q.lone, looked))
        self._open().expect(asked, FORCED)
        _, (found,) = await self._ask(*asked, apart=True)
        there = lone.look(found)
        self._few.see(there.workers)
        if self._find_gone(values["owner"], there.known) != self._dead:
            return None
        return self._load_born(there.born) if there.born is not None else Claims() if there.nothing else None

    def _look_up(self, asked: Mapping[str, Any], run_id: str) -> Answer | None:
        """Asks for a run that is said to be due."""
        named = {**asked, "b": ids.bucket_number(run_id), "run": run_id, "now": self._clock()}
        if self._pool is None:
            return None
        self._pool.expect([(Q.named, named)], LEFT_ALONE)
        return self._pool.at_once([(Q.named, named)])

    async def _read_named(self, told: Answer) -> Loaded | None:
        """Returns the run that a notification has named, if this claimer may take it; None if the caller has to search for due runs."""
        with contextlib.suppress(psycopg.Error, OSError):
            (found,) = await told
            return self._load_born(lone.read_born(found[0])) if found else None
        return None

    def _load_born(self, born: lone.Born) -> Loaded | None:
        with contextlib.suppress(HoldfastError, UnicodeDecodeError):  # a run that cannot be read is claimed, so that its claimer records the error on the run
            return born.load(self._run(born.row))
        return None

    def _find_gone(self, owner: str, known: Sequence[tuple[str, str]]) -> tuple[str, ...]:
        """Returns the owners that are proven dead.

        Raises:
            LeaseLost: the claimer is not a known worker.
        """
        if owner not in {name for name, _ in known}:
            raise LeaseLost(f"{owner} is not a known worker", hint="register it first")
        return tuple([name for name, its in known if name != owner and self._alive(name, its) is Alive.NO])

    async def _claim(self, db: Connection, sent: int, values: Mapping[str, Any]) -> tuple[list[Claim], tuple[str, ...], bool]:
        """Claims what is due if nothing has to be counted: one round trip, which is a transaction of its own and writes nothing if it finds nothing.
        At most once a second there is a second one, when the shorter statement, for a single line and nothing else, was asked in vain.

        Also returns the owners that are proven dead, and whether a limit may hold runs back, or runs of several tenants wait: then it takes none.
        """
        owner = values["owner"]
        if sent and (found := await self._answers_lost(db, owner)):
            return found, self._dead, False  # the claim whose answer was lost
        if self._moved and not await self._spoken(db):
            return [], self._dead, False
        single = self._ground.single and values["simple"] and not values["dead"]
        statement = Q.claim_single if single else Q.claim
        self._open().expect([(Q.planned_once, None), (statement, {**values, "limit": 0})], FORCED)
        asked: list[Statement] = [(statement, values), (Q.claimers, {"owner": owner, "boot": self._boot})]
        looks: list[Statement] = []
        if values["crowds"]:
            tenant, session, lane = self._crowds.lane
            within = {"lines": LINES, "few": FEW, "crowd": CROWD, "lanes": LANES, "lane_tenant": tenant, "lane_session": session, "lane": lane}
            looks = [(Q.crowds, {**values, **within}), (Q.behind_lost, {**values, **within})]
        _, *seen, rows, known = await many(db, [(Q.planned_once, None), *looks, *asked])
        if values["crowds"]:
            self._crowds.see(seen[0], seen[1][0] if seen[1] else None)
        dead = self._find_gone(owner, known)
        if single and rows and rows[0][0] is None:
            self._ground.see_several()
            _, rows = await many(db, [(Q.planned_once, None), (Q.claim, values)])
        bounded = bool(rows) and rows[0][0] is None
        return [] if bounded else self._read_claims(rows), dead, bounded

    async def _look_for_ground(self, db: Connection, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Finds where lines begin; returns the values with which claims ask from now on."""
        look, began = values["look"], time.monotonic()
        _, found = await many(db, [(Q.planned_once, None), (Q.ground, {**values, **look.values})])
        self._ground.see(look, found, time.monotonic() - began)
        return self._ground.values

    async def _mark_crowd(self, line: Line) -> None:
        """Marks some of the runs that stand behind the holders of their lanes, so that claims no longer examine them."""
        queue, priority, tenant = line
        asked = {"queue": queue, "priority": priority, "tenant": tenant, "begins": self._ground.begins(*line), "among": AMONG, "marked": MARKED, "now": self._clock()}
        marked = await self._do(lambda db, sent: rows_of(db, Q.behind_set, asked), whole=True)
        self._crowds.mark(line, len(marked))

    async def _claim_beside(
        self, db: Connection, sent: int, values: Mapping[str, Any], declared: Mapping[str, Limit], *, bounded: bool
    ) -> tuple[list[Claim], int | None]:
        """Claims the runs of owners that were found dead just now, or what limits allow."""
        if sent and (found := await self._answers_lost(db, values["owner"])):
            return found, None
        if self._moved and not await self._spoken(db):
            return [], None
        rows, again = [], None
        if values["dead"] != self._dead:
            if values["dead"] and values["limit"] and not bounded:
                rows = [r for r in await rows_of(db, Q.claim, values) if r[0] is not None]
            await self._tidy(db, values["owner"], values["dead"])
        if bounded:
            rows, again = await self._choose(db, values, declared)
        return self._read_claims(rows), again

    def _read_claims(self, rows: list[tuple[Any, ...]]) -> list[Claim]:
        at = self.now()
        rows.sort(key=lambda r: (-r[4], due_since(r[5], at), r[6]))
        return [Claim(run, fence, previous, cause or "") for run, fence, previous, cause, *_ in rows]

    async def _choose(self, db: Connection, values: Mapping[str, Any], declared: Mapping[str, Limit]) -> tuple[list[tuple[Any, ...]], int | None]:
        """Claims if a limit may hold runs back, or runs of several tenants wait: counts what is in use, and chooses which runs may begin (§10.11)."""
        at, owner, room = {"now": self._clock()}, values["owner"], values["limit"]
        count: list[Statement] = [(Q.see_now, at), (Q.holders, at), (Q.see_now, at)]
        _, stored, full, lines, ((now, _),), *counted = await many(
            db, [(Q.limits_lock, None), (Q.rules, None), (Q.buckets, None), (Q.due_lines, {**values, "most_lines": EVERY_LINE}),
                 *(count[:1] if self._tally.holds else count)]
        )
        rules = in_force(declared, bounds.decode(stored))
        if not counted and rules.counts_runs:
            counted = await many(db, count[1:])
        if counted:
            self._tally.see(bounds.count_held(counted[0], self._why_lost), (counted[1][0][0] - now) / 1_000_000)
        use = Use(rules, owner, self._tally.held, dict(full), now)
        may = [line for line in lines if use.in_the_way(line[0], line[2]) is None]
        columns = zip(("of_queues", "of_priorities", "of_tenants", "of_begins", "of_times"), zip(*may, strict=True) if may else [()] * 5, strict=True)
        asked = {**values, **{name: list(column) for name, column in columns}}
        orphans, due = await many(db, [(Q.due_orphans, values), (Q.due_in, asked)])
        waiting = {run: (Due(run, queue, tenant, priority, due_since(due_at, now), turn), previous, cause)
                   for run, queue, tenant, priority, due_at, turn, previous, cause in (*orphans, *due)}
        got = choose([d for d, _, _ in waiting.values()], use, room)
        if not got.keys:
            return [], got.again
        if not await rows_of(db, Q.see_takers, {"owners": [owner]}):
            raise LeaseLost(f"{owner} is not a known worker", hint="register it first")
        await bounds.keep_buckets(db, got.buckets)
        for due_run, _, _ in (waiting[run] for run in got.keys):
            self._tally.add(owner, due_run.queue, due_run.tenant)
        lost = [waiting[run][1:] for run in got.keys]
        taking = {"b": [ids.bucket_number(run) for run in got.keys], "run": list(got.keys), "previous": [p for p, _ in lost], "cause": [c for _, c in lost]}
        return await rows_of(db, Q.take_chosen, {**at, "owner": owner, **taking}), got.again

    async def _tidy(self, db: Connection, owner: str, dead: Sequence[str]) -> None:
        """Deletes the workers that are gone for good, hold nothing, and are not named by an attempt that is not closed, because their death must stay
        provable."""
        idle, unsettled = await many(db, [(Q.workers_idle, {"owner": owner, "dead": dead, "now": self._clock()}), (Q.effects_open, None)])
        named = {e.owner for e in besides.keep_sound(unsettled, vouch.of_effect_row, besides.decode_effect) if not e.closed}
        for (gone,) in await rows_of(db, Q.workers_delete, ([name for (name,) in idle if name not in named],)):
            self._proofs().forget(gone)

    async def _claim_one(self, db: Connection, owner: str, run_id: str, declared: Mapping[str, Limit]) -> list[Claim]:
        """Claims one run in a transaction of two round trips, and one more each if the run's lane or its limits have to be checked."""
        claim = await self._may_take(db, owner, run_id, declared)
        if claim is None:
            await db.rollback()
            return []
        taking = {"owner": owner, "previous": claim.previous_owner, "cause": claim.cause or None, "b": ids.bucket_number(run_id), "run": run_id, "now": self._clock()}
        await many(db, [(Q.take, taking), (Q.commit, None)])
        return [claim]

    async def _may_take(self, db: Connection, owner: str, run_id: str, declared: Mapping[str, Limit]) -> Claim | None:
        """Begins a transaction, and returns how a run that was asked for by name may be claimed in it."""
        at = self._clock()
        _, _, stored, known, found, see = await many(
            db,
            [
                (Q.begin, None),
                (Q.bounded, None),
                (Q.rules, None),
                (Q.see_takers, {"owners": [owner]}),
                (Q.claim_one, (ids.bucket_number(run_id), run_id)),
                (Q.see_owner, {"b": ids.bucket_number(run_id), "run": run_id, "now": at}),
            ],
        )
        if not known:
            raise LeaseLost(f"{owner} is not a known worker", hint="register it first")
        if not found:
            raise await self._tell_missing(db, run_id)
        fence, previous, holds, turn, status, tenant, session, lane, queue = found[0]
        its, left = see[0]
        lost = None if previous is None else self._why_lost(previous, its, left)
        if not apply.takeable(Found(fence, previous, lost is None, 0, b"", holds, turn, status), owner):
            return None
        if not holds:
            asked = {"run": [run_id], "tenant": [tenant], "session": [session], "lane": [lane], "now": at}
            (_, holder, first, before), *_ = await rows_of(db, Q.see_lanes, asked)
            if holder is not None or (first is not None and before < turn):
                return None
        rules = in_force(declared, bounds.decode(stored))
        if previous != owner and rules.touches(queue, tenant):
            _, full, holders, ((now, _),) = await many(db, [(Q.limits_lock, None), (Q.buckets, None), (Q.holders, {"now": at}), (Q.see_now, {"now": at})])
            use = Use(rules, owner, bounds.count_held(holders, self._why_lost), dict(full), now)
            if use.in_the_way(queue, tenant) is not None:
                return None
            use.take(queue, tenant)
            await bounds.keep_buckets(db, use.buckets)
        return apply.take(run_id, fence, previous, owner, lost)

    async def _answers_lost(self, db: Connection, owner: str) -> list[Claim]:
        """Returns the claims of an owner whose answer was lost: runs that it holds without having been told so."""
        told = self._commits().fences
        held = await rows_of(db, Q.held, (owner,))
        return [Claim(run, fence, previous, cause or "") for run, fence, previous, cause in held if told.get(run) != fence]

    async def rules(self) -> list[Rule]:
        return bounds.read_sound(*await self._ask((Q.rules, None), (Q.vouch_of_run, (OWN, "limit"))))

    async def put_rule(self, rule: Rule, before: Rule | None) -> bool:
        async def work(db: Connection, sent: int) -> bool:
            if await bounds.put_rule(db, rule, before):
                return True
            return sent > 0 and rule in bounds.decode(await rows_of(db, Q.rules))

        done = await self._do(work)
        self._news.tell(News.DUE)
        return done

    async def usage(self) -> Usage:
        at = {"now": self._clock()}
        return bounds.usage(await self._ask((Q.holders, at), (Q.calls, at), (Q.buckets, None)), self._why_lost)

    async def backlog(self) -> list[Backlog]:
        (found,) = await self._ask((Q.backlog, {"now": self._clock()}))
        return [Backlog(*r) for r in found]

    async def enter(self, owner: str, run_id: str, place: str, needs: Mapping[str, Limit | None], *, resting: bool = False) -> Later | None:
        async def work(db: Connection, sent: int) -> Later | None:
            known, ((now, _),) = await many(db, [(Q.see_takers, {"owners": [owner]}), (Q.see_now, {"now": self._clock()})])
            if not known:
                raise LeaseLost(f"{owner} is not a known worker", hint="register it first")
            return await bounds.enter(db, self._why_lost, self._clock(), now, owner, run_id, place, needs, resting=resting)

        return await self._do(work)

    async def leave(self, owner: str, places: Sequence[str]) -> None:
        async def work(db: Connection, sent: int) -> None:
            await bounds.leave(db, self._clock(), owner, places)

        await self._do(work)
        self._news.tell(News.DUE)

    async def look_again(self, run_id: str, needs: Mapping[str, Limit | None]) -> bool:
        async def work(db: Connection, sent: int) -> bool:
            (((now, _),),) = await many(db, [(Q.see_now, {"now": self._clock()})])
            return await bounds.look_again(db, self._why_lost, self._clock(), now, run_id, needs)

        if woken := await self._do(work):
            self._news.tell(News.DUE)
        return woken


def _note_driven(committer: Committer, taken: Sequence[Claim]) -> Claims:
    """Notes what was claimed through this store, and returns it as the caller's claims."""
    committer.note_driven(taken)
    return Claims(taken)


__all__ = ["Claiming"]

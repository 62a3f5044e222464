"""Reads runs and what belongs to them, as every surface shows them, for one tenant or for all. It changes nothing.

The results are typed (``core.describe``), and secrets are hidden in them already. Another tenant's ids are not found, with the same words as for
ids that never existed (§14.2).
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.calendar import CALENDAR
from holdfast.core import bounds, canon, describe, views
from holdfast.core import limits as bounding
from holdfast.core.checkpoint import Checkpoint
from holdfast.core.commit import LedgerRow
from holdfast.core.consistency import Problem
from holdfast.core.errors import (
    CheckpointNotFound,
    HoldfastError,
    IntentNotFound,
    InvalidInput,
    RunNotFound,
    RunPruned,
    ScheduleNotFound,
    UnknownStatus,
)
from holdfast.core.graph import Program
from holdfast.core.intents import IntentState
from holdfast.core.lanes import Blocked
from holdfast.core.lease import Lease
from holdfast.core.limits import Limit
from holdfast.core.masks import HIDDEN, NOTHING, Mask
from holdfast.core.offers import NoWorker, Offer
from holdfast.core.progress import Progress
from holdfast.core.recent import Recent
from holdfast.core.run import Run
from holdfast.core.schedules import Schedule
from holdfast.core.selection import Where
from holdfast.core.status import RESUMABLE, TERMINAL, WAITING, Condition, Status, parse
from holdfast.core.waits import Wait
from holdfast.engine.look import linked
from holdfast.engine.look.living import find_sent_types, living, unsendable
from holdfast.engine.look.overview import Overview, overview
from holdfast.engine.look.snapshot import TAIL, Check, Snapshot, find_run, page, snapshot, tail
from holdfast.engine.look.threads import Ends, Threads
from holdfast.handle import when
from holdfast.ports import Head, RunFilter, Store, Tally, Usage, offers_counting, offers_heads

PAGE = 500
KEPT_BYTES = 16_000_000
"""How many bytes of logs have their computed values cached: a list of 50 runs folds 50 logs, and need not fold them again a moment later."""
AT_ONCE = 100
"""How many runs' values are in memory at once while a text is searched in them."""
MOST = 10_000
FRESH_US = 60_000_000
OVERVIEW_US = 1_000_000
MOST_CHECKED = 100
_CONDITIONS = {**{c.value: c for c in Condition}, "canceled": Condition.CANCELLED}


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to list; None means any. ``text`` is searched in what a run says about itself, ignoring case.

    ``since`` and ``until``: times of creation, in microseconds since 1970. ``before``: a run's id; lists, newest first, only runs older than that run.
    """

    tenant_id: str | None = None
    status: str | None = None
    condition: str | None = None
    skill_id: str | None = None
    thread_id: str | None = None
    tag: str | None = None
    text: str | None = None
    since: int | None = None
    until: int | None = None
    limit: int = 50
    before: str | None = None


class Look(msgspec.Struct, frozen=True):
    """A run of a list: its row and its values; None if these cannot be read."""

    run: Run
    lease: Lease
    checkpoint: Checkpoint | None

    @property
    def values(self) -> Mapping[str, Any]:
        return {} if self.checkpoint is None else self.checkpoint.values


Blocks = Callable[[Sequence[tuple[Run, Lease]]], Awaitable[list[tuple[Blocked | None, NoWorker | None]]]]
"""Returns for each of these runs what is in its way, and why no living worker can take it."""
Before = Callable[[Run, Lease], Awaitable[Blocked | None]]
"""Returns the run of its lane for which a run at rest has to wait."""


class Ledger(msgspec.Struct, frozen=True):
    """A page of ledger rows, and the cursor of the next one."""

    rows: list[describe.LedgerView]
    next_cursor: str | None


class _Fold(msgspec.Struct, frozen=True):
    """A run's row, and the checkpoint and the chain hash at its last event. A run whose row is equal to this one has not changed since."""

    run: Run
    checkpoint: Checkpoint
    hash: bytes


class Looker:
    """Reads through one store. ``check`` finds a run's problems; ``transports``: the types of intents that can be sent here;
    ``blocked`` says what is in a run's way, and ``before`` which run of its lane is."""

    def __init__(
        self, store: Store, threads: Threads, check: Check | None = None, transports: Collection[str] | None = None, blocked: Blocks | None = None,
        before: Before | None = None,
    ) -> None:
        self._store = store
        self.threads = threads
        self._check = check
        self._transports = transports
        self._blocked = blocked
        self._before = before
        self._overviews: dict[str | None, tuple[int | None, Overview]] = {}
        self._sound: dict[str, tuple[int | None, tuple[Problem, ...]]] = {}
        self._folds: Recent[str, _Fold] = Recent(KEPT_BYTES)

    # -- one run ------------------------------------------------------------------------------------

    async def find_row(self, run_id: str, tenant_id: str | None = None) -> tuple[Run, Lease]:
        """Returns the row of a run.

        Raises:
            InvalidInput, RunNotFound: there is no such run here.
        """
        return await find_run(self._store, run_id, tenant_id)

    async def snapshot(self, run_id: str, tenant_id: str | None = None, *, check: bool = True) -> Snapshot:
        """Reads everything about a run at one instant.

        Raises:
            InvalidInput, RunNotFound: there is no such run here.
        """
        seen = await snapshot(self._store, self.threads, run_id, tenant_id=tenant_id, check=self._check if check else None)
        ((blocked, no_worker),) = await self._ways([(seen.run, seen.lease)])
        lacking = await unsendable(self._store, self._transports) if seen.intent_records else None
        behind = await self._find_before(seen)
        return dataclasses.replace(seen, blocked=blocked, behind=behind, no_worker=no_worker, unsendable=lacking) if blocked or behind or no_worker or lacking else seen

    async def glance(self, run_id: str, tenant_id: str | None = None, *, check: bool = True) -> Snapshot:
        """Reads a run with its last events: all of it if it is short, only its end if it is long (``snapshot.TAIL``).

        A long run is checked for problems once a minute. A run with secrets is read whole, because a secret may appear anywhere.

        Raises:
            InvalidInput, RunNotFound: there is no such run here.
        """
        run, _ = await self.find_row(run_id, tenant_id)
        if run.version <= TAIL or run.secrets:
            return await self.snapshot(run_id, tenant_id, check=check)
        seen = await tail(self._store, self.threads, run_id, tenant_id=tenant_id)
        ((blocked, no_worker),) = await self._ways([(seen.run, seen.lease)])
        problems = await self._run_check(run_id) if check else ()
        lacking = await unsendable(self._store, self._transports) if seen.intent_records else None
        behind = await self._find_before(seen)
        return dataclasses.replace(seen, blocked=blocked, behind=behind, no_worker=no_worker, problems=problems, unsendable=lacking)

    async def _find_before(self, seen: Snapshot) -> Blocked | None:
        """Returns what refuses a resume of an ended run for now, if the run could otherwise be resumed."""
        return await self._before(seen.run, seen.lease) if self._before is not None and seen.run.status in RESUMABLE and not seen.run.settled else None

    async def _ways(self, found: Sequence[tuple[Run, Lease]]) -> list[tuple[Blocked | None, NoWorker | None]]:
        return [(None, None)] * len(found) if self._blocked is None else await self._blocked(found)

    async def events(self, run_id: str, after: int = 0, limit: int = 100, tenant_id: str | None = None) -> list[describe.EventView]:
        """Returns the first ``limit`` events of a run newer than ``after``. The cost of a page does not grow with the run.

        A run with secrets is read whole, because a secret may appear anywhere. A run with damage on this page is read whole as well, and what
        can be read of it is shown.

        Raises:
            InvalidInput, RunNotFound: there is no such run here; ``after`` is not the number of an event.
        """
        bounds.number(after, "after")
        run, _ = await self.find_row(run_id, tenant_id)
        if not run.secrets:
            with contextlib.suppress(HoldfastError), canon.looking():
                return [describe.event(run, e) for e in await page(self._store, run_id, after, limit)]
        return (await self.snapshot(run_id, tenant_id, check=False)).events(after, limit)

    async def _run_check(self, run_id: str) -> tuple[Problem, ...]:
        if self._check is None:
            return ()
        at, problems = self._sound.get(run_id, (None, ()))
        now = self._store.now()
        if at is None or not 0 <= now - at < FRESH_US:
            problems = tuple(await self._check(run_id))
            self._sound = {**dict(list(self._sound.items())[-MOST_CHECKED:]), run_id: (now, problems)}
        return problems

    async def checkpoint(self, run_id: str, name: str | None = None, tenant_id: str | None = None) -> describe.CheckpointView:
        """Returns a checkpoint by its id or by its short form ``c12``; by default the head.

        Raises:
            CheckpointNotFound: there is none with this name.
        """
        return _find_named((await self.snapshot(run_id, tenant_id, check=False)).checkpoints(), run_id, name)

    async def diff(self, run_id: str, a: str, b: str, tenant_id: str | None = None) -> describe.DiffView:
        """Returns what changed between two checkpoints, given by their ids or their short form ``c12``.

        Raises:
            CheckpointNotFound: there is none with one of these names.
        """
        seen = await self.snapshot(run_id, tenant_id, check=False)
        every = seen.checkpoints(hidden=False)
        was, now = _find_named(every, run_id, a), _find_named(every, run_id, b)
        found, names = describe.diff(was, now), seen.run.secrets
        hide = dict.fromkeys(names, HIDDEN)
        parts = {kind: {n: hide.get(n, v) for n, v in getattr(found, kind).items()} for kind in ("added", "removed")}
        changed = {n: dict.fromkeys(("from", "to"), HIDDEN) if n in hide else v for n, v in found.changed.items()}
        return describe.hide(replace(found, **parts, changed=changed), seen.mask)

    async def lineage(self, run: Run) -> list[describe.RunView]:
        """Returns all runs of a lineage, oldest first; empty if the run is the only one."""
        kin = await self._store.runs(RunFilter(lineage_root=run.lineage_root, tenant_id=run.tenant_id, limit=PAGE))
        now = self._store.now()
        return [describe.run(r, lease, now) for r, lease in reversed(kin)] if len(kin) > 1 else []

    async def children(self, run: Run) -> list[describe.RunView]:
        """Returns the runs that this one started, oldest first."""
        kin = await self._store.runs(RunFilter(parent_run_id=run.run_id, tenant_id=run.tenant_id, limit=PAGE))
        now = self._store.now()
        return [describe.run(r, lease, now) for r, lease in reversed(kin)]

    async def mask(self, run: Run) -> Mask:
        """Returns what of a run must be hidden from readers."""
        if not run.secrets:
            return NOTHING
        return (await self.snapshot(run.run_id, check=False)).mask

    # -- lists --------------------------------------------------------------------------------------

    async def find(self, wanted: Wanted, *, values: bool = True) -> list[Look]:
        """Returns runs as they are, newest first, with their values if ``values``.

        Raises:
            InvalidInput: there is no such status or condition; the limit is larger than a page.
        """
        return await self._load(await self._gather(wanted), values)

    async def runs(self, wanted: Wanted, *, values: bool = True) -> list[describe.RunView]:
        """Returns the same runs as they are shown. Without ``values`` a completed graph has no result either, because the result is made from them."""
        return await self._views(await self.find(wanted, values=values))

    async def rows(self, wanted: Wanted) -> list[tuple[Run, Lease]]:
        """Returns only the rows of such runs, newest first.

        Raises:
            InvalidInput: as for ``find``.
        """
        return await self._gather(wanted)

    async def show_all(self, found: Sequence[tuple[Run, Lease]]) -> list[describe.RunView]:
        """Returns runs as lists show them, with their values."""
        return await self._views(await self._looks(found))

    async def list_runs(self, wanted: Wanted, *, values: bool = True) -> tuple[list[describe.RunView], str | None]:
        """Returns a page of runs and the cursor of the next page, which is its ``before``; None after the last page.

        Raises:
            InvalidInput: as for ``find``; or ``before`` is not the cursor of a page.
        """
        await self._check_place(wanted.before, wanted.tenant_id)
        found = await self._gather(wanted, 1)
        page = found[: wanted.limit]
        return await self._views(await self._load(page, values)), page[-1][0].run_id if len(found) > len(page) else None

    async def _gather(self, wanted: Wanted, more: int = 0) -> list[tuple[Run, Lease]]:
        """Returns the rows of the wanted runs. ``more``: how many more to read, to find out whether that is all."""
        if not 1 <= wanted.limit <= PAGE:
            raise InvalidInput(f"limit is 1 to {PAGE}, not {wanted.limit}")
        out: list[tuple[Run, Lease]] = []
        async for run, lease in self._matching(replace(wanted, limit=wanted.limit + more)):
            out.append((run, lease))
            if len(out) == wanted.limit + more:
                break
        return out

    async def _load(self, found: Sequence[tuple[Run, Lease]], values: bool) -> list[Look]:
        return await self._looks(found) if values else [Look(run, lease, None) for run, lease in found]

    async def _check_place(self, cursor: str | None, tenant_id: str | None) -> None:
        """Refuses a cursor that no page of runs has given out. A run that was pruned since still has its place in the order.

        Raises:
            InvalidInput: there is no such run here.
        """
        if cursor is None:
            return
        try:
            await self.find_row(cursor, tenant_id)
        except RunPruned:
            return
        except (InvalidInput, RunNotFound):
            raise refuse_cursor(cursor) from None

    async def _views(self, looks: Sequence[Look]) -> list[describe.RunView]:
        now = self._store.now()
        out = []
        for look, (blocked, no_worker) in zip(looks, await self._ways([(x.run, x.lease) for x in looks]), strict=True):
            channels = None if look.checkpoint is None else describe.values(look.values)
            view = describe.run(look.run, look.lease, now, channels=channels, blocked=blocked, no_worker=no_worker)
            out.append(describe.hide(view, await self.mask(look.run)))
        return out

    async def show(self, run: Run, lease: Lease) -> describe.RunView:
        """Returns a run as lists show it, without its values."""
        ((blocked, no_worker),) = await self._ways([(run, lease)])
        return describe.hide(describe.run(run, lease, self._store.now(), blocked=blocked, no_worker=no_worker), await self.mask(run))

    async def overview(self, tenant_id: str | None = None) -> Overview:
        """Returns the overview of the store (§17.2). It is cached for ``OVERVIEW_US``, however often pages ask for it."""
        at, found = self._overviews.get(tenant_id, (None, None))
        now = self._store.now()
        if at is None or found is None or not 0 <= now - at < OVERVIEW_US:
            found = await overview(self._store, self, tenant_id)
            self._overviews = {**dict(list(self._overviews.items())[-MOST_CHECKED:]), tenant_id: (now, found)}
        return found

    async def intent_tally(self, tenant_id: str | None = None) -> dict[str, int]:
        """Returns the number of intents by state."""
        counts: Counter[str] = Counter()
        if tenant_id is None:
            for c in await self._store.intent_counts():
                counts[c.state] += c.count
            return counts
        for state in IntentState:
            counts[str(state)] = len(await self._store.intents(state=state, tenant_id=tenant_id, limit=MOST))
        return counts

    async def _matching(self, wanted: Wanted) -> AsyncIterator[tuple[Run, Lease]]:
        statuses = _statuses(wanted)
        word = _condition(wanted.condition)
        narrow = word is not None or any((wanted.tag, wanted.text, wanted.since, wanted.until))
        size = PAGE if narrow else wanted.limit
        cursor = wanted.before
        while True:
            query = RunFilter(
                tenant_id=wanted.tenant_id, statuses=statuses, skill_id=wanted.skill_id, thread_id=wanted.thread_id, before=cursor, limit=size
            )
            found = await self._store.runs(query)
            now = self._store.now()
            mine = [
                (run, lease)
                for run, lease in found
                if (word is None or views.condition(run, lease, now) is word) and (wanted.tag is None or wanted.tag in run.tags) and _within(run, wanted)
            ]
            for start in range(0, len(mine), AT_ONCE):
                for run, lease in await self._saying(mine[start : start + AT_ONCE], wanted.text):
                    yield run, lease
            if len(found) < size or (wanted.since is not None and found[-1][0].created_at < wanted.since - LATE_US):
                return
            cursor = found[-1][0].run_id

    async def _saying(self, found: Sequence[tuple[Run, Lease]], text: str | None) -> list[tuple[Run, Lease]]:
        """Returns those of these runs in which this text appears anywhere that is shown; secrets are not searched."""
        if text is None:
            return list(found)
        sought = text.casefold()
        saying = {run.run_id for run, _ in found if _says(_tell(run), sought)}
        secret: dict[str, Look] = {}
        for look in await self._looks([(run, lease) for run, lease in found if run.run_id not in saying or run.secrets]):
            if look.run.secrets:
                secret[look.run.run_id] = look
            mine = {n: v for n, v in look.values.items() if n not in look.run.secrets}
            if _says([json.dumps(describe.values(mine), ensure_ascii=False)], sought):
                saying.add(look.run.run_id)
        return [(run, lease) for run, lease in found if run.run_id in saying and (not run.secrets or await self._shows(secret[run.run_id], sought))]

    async def _shows(self, look: Look, sought: str) -> bool:
        """Whether the run contains the text even after its secrets are hidden. A value that a step derived from a secret, such as a question or an error, may contain the secret
        too."""
        hidden = await self.mask(look.run)
        values = hidden.value(describe.values(look.values))
        return _says([hidden.text(said) for said in _tell(look.run)], sought) or _says([json.dumps(values, ensure_ascii=False)], sought)

    async def _looks(self, found: Sequence[tuple[Run, Lease]]) -> list[Look]:
        """Reads runs with their values, together if the store can. The oldest are folded first, because they have what later runs of a thread carry."""
        heads: dict[str, Head] = {}
        ends: Ends = {}
        out: list[Look] = []
        known = {run.run_id: fold for run, _ in found if (fold := self._folds.get(run.run_id)) is not None and fold.run == run}
        changed = [run.run_id for run, _ in found if run.run_id not in known]
        if changed and offers_heads(self._store):
            with contextlib.suppress(HoldfastError):  # each run is then read by itself, so that damage affects only that run
                heads = await self._store.heads(changed)
        for run, lease in reversed(found):
            if (fold := known.get(run.run_id)) is not None:
                ends[run.run_id, run.version, fold.hash] = fold.checkpoint.values
                out.append(Look(run, lease, fold.checkpoint))
                continue
            head = heads.get(run.run_id)
            checkpoint = None if head is None else await self._fold(run, head, ends)
            out.append(await self._look(run, lease) if checkpoint is None else Look(run, lease, checkpoint))
        return out[::-1]

    async def _fold(self, run: Run, head: Head, ends: Ends) -> Checkpoint | None:
        """Computes a run's checkpoint at the time when its row was read; None if a newer whole checkpoint has replaced what is needed, or the log cannot be followed."""
        rows = [row for row in head.rows if row.seq <= run.version]
        try:
            progress = Progress(run.run_id, await self.threads.begin(run.run_id, head.whole, rows, ends)).walk(rows)
        except HoldfastError:
            return None
        if progress.seq != run.version:
            return None
        ends[run.run_id, progress.seq, progress.hash] = progress.checkpoint.values
        if head.whole is None and run.thread_id == run.run_id:  # carried values may be large, and their size is not that of the log
            self._folds.keep(run.run_id, _Fold(run, progress.checkpoint, progress.hash), sum(len(row.data) for row in rows))
        return progress.checkpoint

    async def _look(self, run: Run, lease: Lease) -> Look:
        """Reads one run with its values; damage to them affects only this run (§3.6)."""
        try:
            loaded = await self.threads.load(run.run_id)
            if loaded is None:
                return Look(run, lease, None)
            progress = Progress(run.run_id, loaded.whole).walk(loaded.rows)
        except HoldfastError:
            return Look(run, lease, None)
        return Look(loaded.run, loaded.lease, progress.checkpoint)

    async def waits(self, tenant_id: str | None = None, *, before: str | None = None, limit: int = 100) -> tuple[list[describe.WaitView], str | None]:
        """Returns the open waits of all runs that wait, those of the newest runs first, and the cursor of the next page; None after the last. A page counts runs.

        Raises:
            InvalidInput: ``before`` is not the cursor of a page.
        """
        await self._check_place(before, tenant_id)
        found = await self._store.runs(RunFilter(tenant_id=tenant_id, statuses=tuple(WAITING), before=before, limit=limit + 1))
        page = found[:limit]
        out: list[describe.WaitView] = []
        for run, _ in page:
            effects = {e.effect_id: e for e in await self._store.effects(run.run_id)} if any(w.effect_id for w in run.waits) else {}
            hidden = await self.mask(run)
            out += [describe.hide(describe.wait(w, effects.get(w.effect_id or ""), status=run.status), hidden) for w in run.waits]
        return out, page[-1][0].run_id if len(found) > limit else None

    async def waiting(self, where: Where, limit: int) -> list[tuple[Run, Wait]]:
        """Returns the open waits that a selection matches, those of the oldest runs first, at most ``limit``."""
        found: list[tuple[Run, Wait]] = []
        cursor: str | None = None
        while True:
            page = await self._store.runs(RunFilter(statuses=tuple(WAITING), skill_id=where.skill, thread_id=where.thread, before=cursor, limit=PAGE))
            found += [(run, wait) for run, _ in page for wait in reversed(run.waits) if where.takes(run, wait)]
            if len(page) < PAGE:
                return found[::-1][:limit]
            cursor = page[-1][0].run_id

    async def find_linked(self, secret: str) -> describe.WaitView:
        """Returns the wait that a link answers, for the holder of the link (§5.9).

        Raises:
            TokenRefused: the link is unknown, used or expired, or its wait is answered or closed.
        """
        token = await linked.find_token(self._store, secret)
        seen = await self.snapshot(token.run_id, check=False)
        await linked.find_wait(self._store, token, seen.run)
        wait = next((w for w in seen.waits if w.wait_id == token.wait_id), None)
        if wait is None:
            raise linked.refuse_closed(seen.run)
        return wait

    async def effects(self, tenant_id: str | None = None, *, statuses: Iterable[str] = (), limit: int = 100) -> list[describe.EffectView]:
        """Returns the effect records of all runs, newest first."""
        wanted = tuple(statuses)
        if offers_counting(self._store):
            mine = await self._store.newest_effects(tenant_id, statuses=wanted, limit=limit)
        else:
            mine = [e for e in await self._store.effects() if tenant_id in (None, e.tenant_id) and (not wanted or str(e.status) in wanted)][-limit:][::-1]
        masks = _Masks(self)
        return [describe.hide(describe.effect(e), await masks.of(e.run_id)) for e in mine]

    async def tally(self, tenant_id: str | None = None) -> Tally:
        """Returns the numbers of runs and effects, by status."""
        if offers_counting(self._store):
            return await self._store.tally(tenant_id)
        runs: Counter[str] = Counter()
        cursor: str | None = None
        while page := await self._store.runs(RunFilter(tenant_id=tenant_id, before=cursor, limit=MOST)):
            runs.update(str(run.status) for run, _ in page)
            cursor = page[-1][0].run_id
        return Tally(runs, Counter(str(e.status) for e in await self._store.effects() if tenant_id in (None, e.tenant_id)))

    async def intents(self, tenant_id: str | None = None, *, state: str | None = None, after: str | None = None, limit: int = 100) -> list[describe.IntentView]:
        """Returns outgoing messages (intents), sent or not.

        Raises:
            InvalidInput: there is no such state.
        """
        if state is not None:
            bounds.one_of(state, "state", [str(one) for one in IntentState])
        masks, lacking = _Masks(self), await unsendable(self._store, self._transports)
        out: list[describe.IntentView] = []
        for i in await self._store.intents(state=state, tenant_id=tenant_id, after=after, limit=limit):
            out.append(describe.hide(describe.intent(i, no_transport=lacking(i)), await masks.of(i.run_id)))
        return out

    async def list_intents(
        self, tenant_id: str | None = None, *, state: str | None = None, after: str | None = None, limit: int = 100
    ) -> tuple[list[describe.IntentView], str | None]:
        """Returns a page of intents and the cursor of the next page, which is its ``after``; None after the last page.

        Raises:
            InvalidInput: there is no such state; or ``after`` is not the cursor of a page.
        """
        if after is not None:
            there = await self._store.intent(after)
            if there is None or tenant_id not in (None, there.tenant_id):
                raise refuse_cursor(after)
        found = await self.intents(tenant_id, state=state, after=after, limit=limit + 1)
        return found[:limit], found[limit - 1].intent_id if len(found) > limit else None

    async def intent(self, intent_id: str, tenant_id: str | None = None) -> describe.IntentView:
        """Returns one intent.

        Raises:
            IntentNotFound: there is none with that id here.
        """
        i = await self._store.intent(intent_id)
        if i is None or tenant_id not in (None, i.tenant_id):
            raise IntentNotFound(f"there is no intent {intent_id!r}", hint="holdfast outbox lists them")
        lacking = await unsendable(self._store, self._transports)
        return describe.hide(describe.intent(i, no_transport=lacking(i)), await _Masks(self).of(i.run_id))

    async def count_unsent(self, tenant_id: str | None = None) -> int:
        """Returns how many messages wait that no running process sends."""
        types = await find_sent_types(self._store, self._transports)
        if types is None:
            return 0
        if tenant_id is None:
            return sum(c.count for c in await self._store.intent_counts() if c.state == IntentState.QUEUED and c.type not in types)
        return sum(i.type not in types for i in await self._store.intents(state=str(IntentState.QUEUED), tenant_id=tenant_id, limit=MOST))

    async def count_queued(self) -> describe.QueuedView:
        """Returns what waits to be sent, of all tenants."""
        waiting = [c for c in await self._store.intent_counts() if c.state == IntentState.QUEUED]
        types = await find_sent_types(self._store, self._transports) if waiting else None
        return describe.QueuedView(
            queued=sum(c.count for c in waiting),
            oldest_at=views.iso(min((c.oldest for c in waiting), default=None)),
            no_transport_for=sorted(c.type for c in waiting if types is not None and c.type not in types),
        )

    async def ledger(
        self,
        run_id: str | None = None,
        tenant_id: str | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Ledger:
        """Returns ledger rows of one run or of all, oldest first. ``after``: the ``next_cursor`` of the page before.

        Rows are numbered over all tenants, and their numbers would tell one tenant how much others do. So for one tenant rows have no number, and a
        cursor names a run and how many of its rows come before.
        """
        if not 1 <= limit <= PAGE:
            raise InvalidInput(f"limit is 1 to {PAGE}, not {limit}")
        if run_id is not None:
            await self.find_row(run_id, tenant_id)
        behind = None if after is None else await self._find_entry(after, tenant_id)
        masks = _Masks(self)
        found = await self._store.ledger(run_id, topic=topic, key=key, tenant_id=tenant_id, after=behind, limit=limit + 1)
        page = found[:limit]
        shown = page if tenant_id is None else [msgspec.structs.replace(row, number=0) for row in page]
        out = [describe.hide(describe.ledger(row), await masks.of(row.run_id)) for row in shown]
        return Ledger(out, await self._place_entry(page[-1], tenant_id) if len(found) > limit else None)

    async def _place_entry(self, row: LedgerRow, tenant_id: str | None) -> str:
        """Returns the cursor of a ledger row."""
        if tenant_id is None:
            return str(row.number)
        return f"{sum(r.number <= row.number for r in await self._store.ledger(row.run_id))}/{row.run_id}"

    async def _find_entry(self, cursor: str, tenant_id: str | None) -> int:
        """Returns the number of the ledger row that a cursor names.

        Raises:
            InvalidInput: it is not a cursor for this tenant, or its run was pruned.
        """
        place, _, run_id = bounds.text(cursor, "cursor", bounds.NOTE_BYTES).partition("/")
        if not place.isascii() or not place.isdigit() or int(place) > bounds.BIGGEST or bool(run_id) is (tenant_id is None):
            raise refuse_cursor(cursor)
        if tenant_id is None:
            return int(place)
        try:
            await self.find_row(run_id, tenant_id)
        except (InvalidInput, RunNotFound):
            raise refuse_cursor(cursor) from None
        rows = await self._store.ledger(run_id)
        if not 1 <= int(place) <= len(rows):
            raise refuse_cursor(cursor)
        return rows[int(place) - 1].number

    # -- who works ----------------------------------------------------------------------------------

    async def workers(self) -> list[describe.WorkerView]:
        """Returns the processes that hold leases."""
        return [
            describe.WorkerView(
                owner=w.owner, started_at=views.iso(w.started_at), expires_at=views.iso(w.expires_at), alive=w.alive, runs=w.runs,
                serves=(serves := describe.list_served(w.offer)), upgrade=bool(serves) and w.offer is not None and w.offer.upgrade,
            )
            for w in await self._store.workers()
        ]

    async def lanes(self, tenant_id: str | None = None, *, session_key: str | None = None) -> list[describe.LaneView]:
        """Returns the lanes that a run holds, and the runs that wait behind it, by their turns (§10.8)."""
        open_ = tuple(s for s in Status if s not in TERMINAL)
        mine = await self._store.runs(RunFilter(tenant_id=tenant_id, session_key=session_key, statuses=open_, limit=MOST, by_turn=True))
        lanes: dict[tuple[str, str, str], list[tuple[Run, Lease]]] = {}
        for run, lease in reversed(mine):
            lanes.setdefault((run.tenant_id, run.session_key, run.lane), []).append((run, lease))
        out = []
        for (_, session, lane), there in lanes.items():
            holder = next(((r, le) for r, le in there if _holds(r)), None)
            if holder is None:
                continue
            run, lease = holder
            out.append(
                describe.LaneView(
                    session_key=session,
                    lane=lane,
                    holder=run.run_id,
                    since=views.iso(run.started_at or run.created_at),
                    expires_at=views.iso(lease.expires_at),
                    queued=[r.run_id for r, _ in there if r.run_id != run.run_id],
                )
            )
        return out

    async def queues(self, declared: Mapping[str, Limit], tenant_id: str | None = None) -> list[describe.QueueView]:
        """Returns the queues in which something is due or driven, or that are paused, and what is in the way (§10.11). With a tenant, only its own runs count."""
        offers = await living(self._store, self._store.now())
        rules, usage = bounding.in_force(_merge_declared(offers, declared), await self._store.rules()), await self._store.usage()

        def takers(b: bounding.Backlog) -> bool:
            mine = [o for o in offers if o.works and (not o.queues or b.queue in o.queues)]
            return not mine or any(o.has(b.skill_id, b.fingerprint) for o in mine)

        backlog = [b for b in await self._store.backlog() if tenant_id in (None, b.tenant)]
        found = bounding.queues(backlog, usage.held, rules, usage.buckets, self._store.now(), takers)
        held = [h for h in usage.held if tenant_id in (None, h.tenant)]
        mine = {h.queue for h in held} | {b.queue for b in backlog} | rules.paused
        return [
            describe.QueueView(queue=q.queue, depth=q.depth, oldest_at=views.iso(q.oldest_at), in_flight=sum(h.runs for h in held if h.queue == q.queue), paused=q.paused, blocked=q.blocked)
            for q in found
            if q.queue in mine
        ]

    async def limits(self, declared: Mapping[str, Limit], tenant_id: str | None = None) -> list[describe.LimitView]:
        """Returns the limits by name: those in force, and the stored changes of those no longer in force; with a tenant, without the limits of other tenants."""
        stored = {r.name: r for r in await self._store.rules()}
        rules, usage = bounding.in_force(_merge_declared(await living(self._store, self._store.now()), declared), stored.values()), await self._store.usage()
        return [_limit(name, rules.limits.get(name), stored.get(name), usage) for name in sorted({*rules.limits, *stored}) if _of_tenant(name, tenant_id)]

    async def limit(self, name: str, declared: Mapping[str, Limit]) -> describe.LimitView:
        return next(found for found in await self.limits(declared) if found.name == name)

    async def schedules(self, tenant_id: str | None = None) -> list[describe.ScheduleView]:
        """Returns all schedules, the soonest first."""
        return [self._schedule(s) for s in await self._store.schedules() if tenant_id in (None, s.tenant_id)]

    async def schedule(self, schedule_id: str, tenant_id: str | None = None) -> describe.ScheduleView:
        """Returns one schedule.

        Raises:
            ScheduleNotFound: there is none with that id here.
        """
        s = await self._store.schedule(schedule_id)
        if s is None or tenant_id not in (None, s.tenant_id):
            raise ScheduleNotFound(f"no schedule {schedule_id}", hint="holdfast schedule list")
        return self._schedule(s)

    def _schedule(self, s: Schedule) -> describe.ScheduleView:
        return describe.schedule(s, self._store.now(), next_local=_local(s.due, s.zone), last_local=_local(s.last_slot, s.zone))


def refuse_cursor(cursor: str) -> InvalidInput:
    """Makes the error for a cursor that no page of a list has given out."""
    return InvalidInput(f"{cursor[:80]!r} is not a cursor of this list", field="cursor", hint="give the next_cursor of the page before")


def _find_named(every: list[describe.CheckpointView], run_id: str, name: str | None) -> describe.CheckpointView:
    if name in (None, "head") and every:
        return every[-1]
    full = name if name is not None and "." in name else f"{run_id}.{name}"
    for c in every:
        if c.checkpoint_id == full:
            return c
    raise CheckpointNotFound(f"{run_id} has no checkpoint {name or 'yet'}", hint=f"holdfast checkpoints {run_id}")


LATE_US = 3600 * 1_000_000
"""How far apart the clocks may be of the processes that made two ids. Ids are sorted by these clocks."""


class _Masks:
    """The masks of the runs of one list, each computed once."""

    def __init__(self, looker: Looker) -> None:
        self._looker = looker
        self._runs: dict[str, Run | None] = {}
        self._masks: dict[str, Mask] = {}

    async def _run(self, run_id: str) -> Run | None:
        if run_id not in self._runs:
            try:
                self._runs[run_id] = (await self._looker.find_row(run_id))[0]
            except RunNotFound:
                self._runs[run_id] = None
        return self._runs[run_id]

    async def of(self, run_id: str) -> Mask:
        if run_id not in self._masks:
            run = await self._run(run_id)
            self._masks[run_id] = NOTHING if run is None else await self._looker.mask(run)
        return self._masks[run_id]


def skills(programs: Iterable[Program]) -> list[describe.SkillView]:
    """Returns the registered programs as data."""
    return [describe.skill(p) for p in programs]


def _statuses(wanted: Wanted) -> tuple[str, ...] | None:
    if not wanted.status:
        word = _condition(wanted.condition)
        return None if word is None else tuple(s.value for s in views.STATUSES[word])
    try:
        return (parse(wanted.status).value,)
    except UnknownStatus as e:
        raise InvalidInput(e.message, hint=e.hint) from None


def _condition(word: str | None) -> Condition | None:
    if not word:
        return None
    if word not in _CONDITIONS:
        raise InvalidInput(f"{word!r} is not a condition", hint="one of " + ", ".join(c.value for c in Condition))
    return _CONDITIONS[word]


def _within(run: Run, wanted: Wanted) -> bool:
    return (wanted.since is None or run.created_at >= wanted.since) and (wanted.until is None or run.created_at < wanted.until)


def _says(texts: Iterable[str], sought: str) -> bool:
    return any(sought in text.casefold() for text in texts)


def _tell(run: Run) -> Iterable[str]:
    yield from (run.run_id, run.thread_id, run.skill_id, run.session_key, run.job_id or "", run.trace_id or "", run.stop_reason or "", *run.tags)
    if run.error is not None:
        yield from (run.error.message, run.error.type)
    for wait in run.waits:
        yield from (wait.prompt, wait.name)


def _holds(run: Run) -> bool:
    """Whether a run that has not ended holds its lane."""
    if run.status is Status.PENDING:
        return False
    return run.status not in WAITING or run.paused_lane != "release"


def _local(at: int | None, zone: str) -> str | None:
    """Returns a time as local time in that zone; in UTC if the zone is not known here."""
    if at is None:
        return None
    moment: dt.datetime = when(at)
    try:
        return moment.astimezone(CALENDAR.zone(zone)).isoformat()
    except InvalidInput:
        return moment.isoformat()


def _merge_declared(offers: Iterable[Offer], mine: Mapping[str, Limit]) -> dict[str, Limit]:
    return {**{name: limit for offer in offers for name, limit in offer.limits.items()}, **mine}


def _of_tenant(name: str, tenant_id: str | None) -> bool:
    return tenant_id is None or not name.startswith(bounding.TENANT) or name in (bounding.TENANT + tenant_id, bounding.TENANT + bounding.ANY)


def _figures(limit: Limit | None) -> tuple[int | None, float | None, int | None]:
    return (None, None, None) if limit is None else (limit.in_flight, limit.per_second, limit.burst)


def _limit(name: str, limit: Limit | None, rule: bounding.Rule | None, usage: Usage) -> describe.LimitView:
    kind, colon, rest = name.partition(":")
    if colon:
        at = [h.queue if kind == "queue" else h.tenant for h in usage.held for _ in range(h.runs)]
        in_use = len(at) if rest == bounding.ANY else at.count(rest)
    else:
        in_use = sum(h.runs for h in usage.held) if name == bounding.WORKER else usage.calls.get(name, 0)
    changes = [
        describe.LimitChangeView(
            at=views.iso(c.at), actor=c.actor, via=c.via or None, action=c.action, in_flight=_figures(c.limit)[0], per_second=_figures(c.limit)[1], burst=_figures(c.limit)[2],
            reason=c.reason,
        )
        for c in (() if rule is None else rule.changes)
    ]
    return describe.LimitView(
        name=name, in_flight=_figures(limit)[0], per_second=_figures(limit)[1], burst=_figures(limit)[2],
        stored=rule is not None and rule.limit is not None, in_use=in_use, changes=changes,
    )


__all__ = ["Ledger", "Look", "Looker", "Wanted", "refuse_cursor", "skills"]

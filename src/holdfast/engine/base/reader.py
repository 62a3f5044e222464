"""Reads runs, events, checkpoints and state as they are; changes nothing."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast

from holdfast.authoring import State, Values
from holdfast.core import canon, describe, ids
from holdfast.core import checkpoint as cps
from holdfast.core import run as records
from holdfast.core.codec import open_row, read_carried
from holdfast.core.effects import Effect
from holdfast.core.errors import CheckpointNotFound, InvalidInput
from holdfast.core.lanes import Blocked
from holdfast.core.lease import Lease, at_once
from holdfast.core.masks import Mask
from holdfast.core.offers import NoWorker
from holdfast.core.progress import Progress
from holdfast.core.status import AT_REST, TERMINAL, Status
from holdfast.core.waits import WaitKind
from holdfast.engine.base import obstacles
from holdfast.engine.base.journal import Journal
from holdfast.engine.base.services import Services
from holdfast.engine.look.looker import Looker, Wanted
from holdfast.engine.look.snapshot import find_run, missing
from holdfast.engine.look.threads import Ends
from holdfast.handle import CheckpointView, EventView, Feed, Run, Wait
from holdfast.ports import Loaded, RunFilter, offers_awaited

POLL_SECONDS = 0.5
PAGE = 1000


def at_rest(run: records.Run, lease: Lease, now: int) -> bool:
    """Whether a run has ended, or waits for an answer that has not been given yet."""
    asks = run.status in AT_REST and any(w.kind not in (WaitKind.TIMER, WaitKind.CHILD) for w in run.waits)
    # An answer in the inbox makes the run due, and the process that claims the run has the answer before the events show it.
    return run.status in TERMINAL or (asks and not lease.live(now) and not (lease.due is not None and lease.due <= now))


class Reader:
    """Reads through one store. ``services`` knows the skills, so that states have their types."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._store = services.store
        self._looker = Looker(services.store, services.threads, blocked=self.obstacles)

    async def obstacles(self, found: Sequence[tuple[records.Run, Lease]]) -> list[tuple[Blocked | None, NoWorker | None]]:
        """Returns for each of these runs what is in its way now, and why no living worker can take it."""
        sight = obstacles.Sight(self._services)
        return [
            (await obstacles.find_blocker(self._services, run, lease, sight), await obstacles.lacking(self._store, run, lease, sight)) for run, lease in found
        ]

    async def before(self, run: records.Run, lease: Lease) -> Blocked | None:
        """Returns the run of its lane for which a run at rest has to wait."""
        return await obstacles.find_before(self._services, run, lease)

    # -- reading ------------------------------------------------------------------------------------

    async def find(self, run_id: str) -> tuple[records.Run, Lease]:
        return (await self._store.get(run_id) if run_id else None) or await find_run(self._store, run_id)  # raises an error that says why there is none

    async def load(self, run_id: str) -> Loaded:
        if not run_id:
            raise InvalidInput("the run id is empty", hint="list the runs: holdfast runs")
        loaded = await self._store.load(run_id)
        if loaded is None:
            raise await missing(self._store, run_id)
        if loaded.whole is None and not read_carried(loaded.rows):
            return loaded
        return await self._services.threads.carry(loaded)

    async def get(self, run_id: str) -> Run[Any]:
        """Returns the run as it is, with its state."""
        loaded = await self.load(run_id)
        if loaded.run.status is not Status.PENDING and loaded.lease.due is None:
            return self.handle(loaded)  # it is not to be claimed, so nothing is in its way
        sight = obstacles.Sight(self._services)
        blocked = await obstacles.find_blocker(self._services, loaded.run, loaded.lease, sight)
        return self.handle(loaded, blocked, await obstacles.lacking(self._store, loaded.run, loaded.lease, sight))

    async def wait_for_rest(self, run_id: str, seconds: float | None) -> Run[Any]:
        """Does what ``wait_until_rest`` does, for at most so many seconds.

        Raises:
            TimeoutError: the run is still being executed.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self.wait_until_rest(run_id)
        except TimeoutError:
            now = (await self.find(run_id))[0].status
            raise TimeoutError(f"the run {run_id} is still {now} after {seconds:g} s; holdfast explain {run_id} says what it waits for") from None

    async def wait_until_rest(self, run_id: str) -> Run[Any]:
        """Waits until a run has ended, or waits for an answer that has not been given yet. While the run moves, only its row is read."""
        await self._store.wait_for_change(0.0)  # earlier writes of this process do not count as a change
        while True:
            found = await self._look(run_id)
            run, lease = (found.run, found.lease) if isinstance(found, Loaded) else found
            if at_rest(run, lease, self._store.now()):
                loaded = await (self._services.threads.carry(found) if isinstance(found, Loaded) else self.load(run_id))
                if at_rest(loaded.run, loaded.lease, self._store.now()):
                    return self.handle(loaded)
            await self._store.wait_for_change(POLL_SECONDS)

    async def _look(self, run_id: str) -> Loaded | tuple[records.Run, Lease]:
        """Returns the row of a run, or all of the run if it has ended and the store can return both in one read."""
        store = self._store
        return (await store.load_if_ended(run_id) if run_id and offers_awaited(store) else None) or await self.find(run_id)

    def handle(self, loaded: Loaded, blocked: Blocked | None = None, no_worker: NoWorker | None = None) -> Run[Any]:
        progress = Progress(loaded.run.run_id, loaded.whole).walk(loaded.rows)
        values = progress.checkpoint.values
        given = progress.results.get(cps.INPUT_TASK) if progress.checkpoint.seq == 0 else None
        view = self._view(loaded.run, values if given is None else cps.decode_writes(given))
        return Run(loaded.run, loaded.lease, self._store.now(), values, view, blocked=blocked, no_worker=no_worker)

    async def show_born(self, journal: Journal, now: int) -> Run[Any]:
        """Returns a run that was created at ``now`` and has not begun. It is as its first commit left it, so it is not read back. What is in its way is looked
        up, except for other runs if its session is its own: first by limits and workers of the last second, then afresh if these would not let it begin."""
        if journal.tip is None:  # a run that is not on record is not reported, whatever the result of its commit (§1.7)
            raise await missing(self._store, journal.progress.checkpoint.run_id)
        run = journal.run
        begins = run.begins_at
        lease = Lease(journal.fence, due=None if run.status in TERMINAL else at_once(now) if begins is None else begins)
        for fresh in (False, True):
            sight = obstacles.Sight(self._services, now, fresh=fresh)
            blocked = await obstacles.find_blocker(self._services, run, lease, sight, first=run.session_key == run.run_id)
            no_worker = await obstacles.lacking(self._store, run, lease, sight)
            if (blocked is None or blocked.run_id) and no_worker is None:
                break
        progress = journal.progress
        view = self._view(run, cps.decode_writes(progress.results[cps.INPUT_TASK]) if progress.checkpoint.seq == 0 else progress.checkpoint.values)
        return Run(run, lease, now, progress.checkpoint.values, view, blocked=blocked, no_worker=no_worker)

    def show_left(self, run: records.Run, lease: Lease, values: Mapping[str, Any], now: int) -> Run[Any]:
        """Returns a run as its driver has just left it, ended or waiting. The live values are what would be loaded (§4.5), so nothing is read back."""
        return Run(run, lease, now, values, self._view(run, values))

    def _view(self, run: records.Run, values: Mapping[str, Any]) -> State:
        known = run.skill_id in self._services.skills.ids
        cls: type[State] = self._services.skills.find(run.skill_id, run.skill_version).state if known else Values
        if run.status is Status.PENDING and cls.__channels__:  # no checkpoint yet: its input and the defaults, before any reducer
            values = cls._defaults() | {n: v for n, v in values.items() if n in cls.__channels__}
        return cls._view(canon.FrozenDict(values))

    async def runs(self, wanted: Wanted) -> list[Run[Any]]:
        """Returns runs with their values, newest first."""
        now = self._store.now()
        out: list[Run[Any]] = []
        found = await self._looker.find(wanted)
        ways = await self.obstacles([(x.run, x.lease) for x in found])
        for x, (blocked, no_worker) in zip(found, ways, strict=True):
            out.append(Run(x.run, x.lease, now, x.values, self._view(x.run, x.values), blocked=blocked, no_worker=no_worker))
        return out

    async def waits(self, run_id: str | None = None, *, limit: int = 100) -> list[Wait]:
        """Returns the open waits of one run, or of all runs that wait."""
        if run_id is not None:
            run, _ = await self.find(run_id)
            return [Wait.of(w, run.status) for w in run.waits]
        found = await self._store.runs(RunFilter(statuses=(Status.WAITING_FOR_HUMAN, Status.WAITING_FOR_SIGNAL), limit=limit))
        # An effect asks once, even if several runs of a lineage wait for that question: it is shown for the run that attempted the effect.
        waits = [Wait.of(w, run.status) for run, _ in found for w in sorted(run.waits, key=lambda w: not w.wait_id.startswith(run.run_id))]
        return list({w.wait_id: w for w in waits}.values())

    def events(self, run_id: str, after: int = 0, follow: bool = False, limit: int | None = None) -> Feed[EventView]:
        """Returns events newer than ``after``: ``await`` it for a list, or use ``async for``; with ``follow`` until the run has ended."""
        return Feed(lambda: self._events(run_id, after, follow, limit))

    async def _events(self, run_id: str, after: int, follow: bool, limit: int | None) -> AsyncIterator[EventView]:
        given = 0
        previous = await self._chain_at(run_id, after)
        while True:
            run, _ = await self.find(run_id)
            size = PAGE if limit is None else min(PAGE, max(1, limit - given))
            rows = await self._store.rows(run_id, after, size)
            hidden = await self._looker.mask(run)
            for row in rows:
                record, previous = open_row(row, previous), row.hash
                for event in record.events:
                    if event.seq <= after:
                        continue
                    after = event.seq
                    yield EventView(**describe.plain(describe.event(run, event), hidden))
                    given += 1
                    if limit is not None and given >= limit:
                        return
            if len(rows) == size:
                continue
            if not follow or run.status in TERMINAL:
                return
            await self._store.wait_for_change(POLL_SECONDS)

    async def _chain_at(self, run_id: str, after: int) -> bytes | None:
        """Returns the hash of the row before the first row with an event newer than ``after``; without such a row, the last row's; None if there is none."""
        newer = await self._store.rows(run_id, after, 1)
        if not newer:
            held = await self._store.rows(run_id, max(0, after - 1), 1)
            return held[0].hash if held else None
        first = open_row(newer[0]).events[0].seq
        before = await self._store.rows(run_id, first - 2, 1) if first > 1 else []
        return before[0].hash if before else b""

    async def checkpoints(self, run_id: str) -> list[CheckpointView]:
        """All checkpoints of a run, oldest first (§4.5)."""
        await self.find(run_id)
        return [view async for view in self.walk(run_id)]

    async def walk(self, run_id: str, ends: Ends | None = None) -> AsyncIterator[CheckpointView]:
        """Yields the checkpoints of a run, oldest first. ``ends``: the ends of earlier runs that were walked, with which a thread's next run begins;
        this run's end is added."""
        rows = await self._store.rows(run_id)
        progress = Progress(run_id, await self._services.threads.origin(run_id, rows, ends or {}))
        for row in rows:
            record = open_row(row, progress.hash)
            progress.step(record)
            if record.delta is not None:
                yield _checkpoint_view(progress)
        if ends is not None:
            ends[run_id, progress.seq, progress.hash] = progress.checkpoint.values

    async def checkpoint(self, run_id: str, checkpoint_id: str | None = None) -> CheckpointView:
        """Returns one checkpoint, by default the head. A checkpoint newer than the run's newest whole checkpoint is found from there."""
        loaded = await self.load(run_id)
        seq = None if checkpoint_id is None else ids.checkpoint_seq(run_id, checkpoint_id)
        if loaded.whole is not None and loaded.whole[0].seq and (checkpoint_id is None or (seq is not None and seq > loaded.whole[0].seq)):
            progress, found = Progress(run_id, loaded.whole), None
            for row in loaded.rows:
                record = open_row(row, progress.hash)
                progress.step(record)
                if record.delta is not None and (checkpoint_id is None or progress.checkpoint.checkpoint_id == checkpoint_id):
                    found = _checkpoint_view(progress)
            if found is not None:
                return found
        last = None
        async for view in self.walk(run_id):
            if view.checkpoint_id == checkpoint_id:
                return view
            last = view
        if checkpoint_id is None and last is not None:
            return last
        raise CheckpointNotFound(f"{run_id} has no checkpoint {checkpoint_id}", hint=f"holdfast checkpoints {run_id} lists them")

    async def mask(self, run_id: str) -> Mask:
        """Returns what of this run must be hidden from readers (§13.5)."""
        run, _ = await self.find(run_id)
        return await self._looker.mask(run)

    async def state(self, run_id: str, checkpoint_id: str | None = None) -> State:
        """The channels' values at the head, or at any checkpoint."""
        run, _ = await self.find(run_id)
        if checkpoint_id is None:
            return cast(State, (await self.get(run_id)).state)
        return self._view(run, (await self.checkpoint(run_id, checkpoint_id)).values)

    async def record(self, run_id: str) -> dict[str, Any]:
        """The run record with every field of §3.1, as JSON-able values."""
        return describe.plain((await self._looker.snapshot(run_id)).record)

    async def effects(self, run_id: str) -> list[Effect]:
        """The effect records of a run, oldest first (§6.4)."""
        await self.find(run_id)
        return list(await self._store.effects(run_id))


def _checkpoint_view(progress: Progress) -> CheckpointView:
    from_now = progress.checkpoint
    left = {k: cps.decode_writes(r) for k, r in (progress.results or {}).items() if k != cps.INPUT_TASK}
    return CheckpointView(
        checkpoint_id=from_now.checkpoint_id,
        run_id=from_now.run_id,
        seq=from_now.seq,
        step=from_now.step,
        parent_id=from_now.parent,
        boundaries=tuple(b.value for b in from_now.boundaries),
        values=canon.FrozenDict(from_now.values),
        channel_versions=canon.FrozenDict(from_now.versions),
        versions_seen=canon.FrozenDict(from_now.seen),
        pending_tasks=tuple(t.key for t in from_now.pending),
        pending_writes=canon.FrozenDict(left),
        waits=tuple(Wait.of(w) for w in from_now.waits),
        metadata=canon.FrozenDict({"source": from_now.source.value, "step": from_now.step, "writes": from_now.writes}),
        created_at=dt.datetime.fromtimestamp(from_now.created_at / 1_000_000, dt.UTC),
        hash=from_now.hash.hex(),
        format=from_now.format,
    )

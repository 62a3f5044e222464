"""Checks every run of a store against its own log. The log is streamed, and nothing is written (§12.1, §12.6).

The judgement is pure and is in ``core/consistency``. This module reads the evidence for it, a page at a time, so that a log of a
million events needs no more memory than a log of ten.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection

from holdfast.core.bounds import KEY_RETENTION_US
from holdfast.core.checkpoint import Checkpoint
from holdfast.core.consistency import Diagnosis, Problem, name_restore, ok, problem, record_problem
from holdfast.core.errors import HoldfastError, InvalidInput, RecordDamaged, StoreCorrupt, UsageError
from holdfast.core.run import Run
from holdfast.core.status import NOT_ENDED
from holdfast.engine.base import obstacles
from holdfast.engine.look.living import find_sent_types, living
from holdfast.engine.look.snapshot import missing
from holdfast.ports import Evidence, Needs, RunFilter, Store, Upkeep, Watchful, as_kept, offers_acknowledging, offers_upkeep

PAGE = 500
SLICE_ROWS, SLICE_BYTES = 32, 256 * 1024
"""After reading this much of a log, the check yields to other tasks, so that it never blocks the event loop (§12.6)."""
MOST = 10_000


class Findings(list[Problem]):
    """The problems found, and how much was checked."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0
        self.events = 0
        self.left_out = 0

    @property
    def ok(self) -> bool:
        """Whether there is no error; there may be warnings (§12.1)."""
        return ok(self)

    def note(self, problems: list[Problem]) -> None:
        room = max(0, MOST - len(self))
        self.extend(problems[:room])
        self.left_out += len(problems) - len(problems[:room])


def keeper(store: Store) -> Upkeep:
    """Returns the store as one with methods for upkeep.

    Raises:
        UsageError: this kind of store has no such methods.
    """
    if offers_upkeep(store):
        return store
    raise UsageError(f"{store.url} cannot be checked or repaired by this command", hint="export its runs, or use the database's own tools")


def watchful(store: Store) -> Watchful:
    """Returns the store as one whose log an operator can accept as it is.

    Raises:
        UsageError: this kind of store cannot notice that its log has gone backwards.
    """
    if offers_acknowledging(store):
        return store
    raise UsageError(f"{store.url} has nothing to acknowledge: it does not record where its log ended", hint="holdfast check names what is damaged")


class Checker:
    """Checks the runs of one store. ``transports``: the types of intents that this process sends; None if it sends none for other processes."""

    def __init__(self, store: Store, transports: Collection[str] | None = None) -> None:
        self._store = store
        self._keeper = keeper(store)
        self._transports = transports

    async def all(self) -> Findings:
        """Checks the store as a whole, then each run."""
        found, whole = Findings(), await self._store.verify()
        before = ""
        try:
            async for run_id in self.run_ids():
                try:
                    if not await self._one(run_id, found) and run_id in await self._keeper.run_ids(before, 1):
                        found.note([problem("record_unreadable", f"a run is listed as {run_id} and is not found under that id", "restore a backup", run_id)])
                except HoldfastError as e:  # an error of one run does not keep the others from being checked
                    found.note([Problem(e.code, "error", e.message, e.hint, run_id)])
                before = run_id
        except StoreCorrupt as e:
            found.note([Problem(e.code, "error", e.message, e.hint)])
        told = {(p.code, p.run_id) for p in found}
        found[:0] = [p for p in whole if (p.code, p.run_id) not in told]
        return self._name_restore(found)

    async def run_ids(self) -> AsyncIterator[str]:
        """Yields the ids of all runs, page by page."""
        after = ""
        while page := await self._keeper.run_ids(after):
            for run_id in page:
                yield run_id
                await asyncio.sleep(0)  # gives other tasks a turn
            if page[-1] <= after:
                raise StoreCorrupt(f"{self._store.url}: the list of runs cannot be read after {after!r}", hint="rebuild the indexes: holdfast doctor --rebuild; if that does not help, restore a backup")
            after = page[-1]

    async def run(self, run_id: str) -> Findings:
        """Checks one run.

        Raises:
            InvalidInput, RunNotFound: there is no such run.
        """
        if not run_id:
            raise InvalidInput("the run id is empty", hint="list the runs: holdfast runs")
        found = Findings()
        if not await self._one(run_id, found):
            raise await missing(self._store, run_id)
        return self._name_restore(found)

    def _name_restore(self, found: Findings) -> Findings:
        """Adds how a backup of this kind of store is restored to each problem whose advice is to restore one."""
        if hasattr(self._store, "restore"):
            how = "holdfast restore FILE"
        else:
            how = "copy the folder back while nothing writes to it" if self._store.url.startswith("workspace:") else "with the database's own tools"
        found[:] = [name_restore(p, how) for p in found]
        return found

    async def _nobody(self, evidence: Evidence) -> list[Problem]:
        """Reports a due run that no living worker of its queue can take (§10.11)."""
        run, lease = evidence.run, evidence.lease
        if not isinstance(run, Run) or lease is None or (lacking := await obstacles.lacking(self._store, run, lease)) is None:
            return []
        return [Problem("no_worker_for", "warning", lacking.said, lacking.way_out(run.run_id), run.run_id)]

    async def _find_unsent(self, diagnosis: Diagnosis) -> list[Problem]:
        """Reports queued intents of a type that no running process sends (§9.1), and those for which a sender lacked something (§5.9)."""
        lacking = [
            Problem("not_configured", "warning", f"{count} queued {'message' if count == 1 else 'messages'} of type {type!r} could not be sent: {what}", way, diagnosis.run_id)
            for (type, what, way), count in sorted(diagnosis.not_configured.items())
        ]
        if not diagnosis.queued or (types := await find_sent_types(self._store, self._transports)) is None:
            return lacking
        way = "start a worker or a dispatcher with a transport for it: holdfast dispatch --transports TARGET"
        return lacking + [
            Problem("no_transport_for", "warning", f"no running process sends messages of type {type!r}; {count} queued", way, diagnosis.run_id)
            for type, count in sorted(diagnosis.queued.items())
            if type not in types
        ]

    async def idle(self) -> list[Run]:
        """Returns the runs that are due although no worker at all is up; empty if one is."""
        if any(o.works for o in await living(self._store, self._store.now())):
            return []
        now = self._store.now()
        found = await self._store.runs(RunFilter(statuses=NOT_ENDED, limit=MOST))
        return [run for run, lease in found if lease.due is not None and lease.due <= now and not lease.live(now)]

    async def _one(self, run_id: str, found: Findings) -> bool:
        evidence = await self._keeper.evidence(run_id)
        if evidence is None:
            return False
        diagnosis = await self.examine(evidence)
        problems = merge(evidence, diagnosis)
        if problems and await self._keeper.evidence(run_id) is None:
            return False  # it was pruned while it was read
        found.note(problems)
        found.note(await self._nobody(evidence))
        found.note(await self._find_unsent(diagnosis))
        found.runs += 1
        found.events += evidence.tip.seq if evidence.tip is not None else 0
        return True

    async def examine(self, evidence: Evidence) -> Diagnosis:
        """Diagnoses a run as the evidence shows it; later commits are not considered."""
        run_id, store = evidence.run_id, self._store
        diagnosis = Diagnosis(run_id, evidence.run, evidence.lease, store.now())
        end = evidence.tip.seq if evidence.tip is not None else 0
        after, whole = 0, await self._keeper.whole(run_id)
        rows = size = 0
        while after < end and (page := await self._keeper.log(run_id, after, PAGE)):
            for row in page:
                if row.seq > end:
                    break
                diagnosis.feed(row)
                rows, size = rows + 1, size + len(row.data)
                if rows >= SLICE_ROWS or size >= SLICE_BYTES:
                    rows = size = 0
                    await asyncio.sleep(0)
                while whole is not None and whole[0] <= row.seq:
                    _feed_whole(diagnosis, whole[1])
                    whole = _further(whole[0], await self._keeper.whole(run_id, whole[0]))
            if page[-1].seq <= after:
                diagnosis.add(problem("event_seq_duplicate", f"the log cannot be read after event {after}", "restore a backup", run_id))
                break
            after = page[-1].seq
            await asyncio.sleep(0)
        while whole is not None and whole[0] <= end:
            _feed_whole(diagnosis, whole[1])
            whole = _further(whole[0], await self._keeper.whole(run_id, whole[0]))
        await self._lenders(diagnosis)
        await self._beside(diagnosis)
        if evidence.needs is not None:
            for found in lacking(run_id, evidence.needs, find_needs(diagnosis)):
                diagnosis.add(found)
        return diagnosis

    async def _lenders(self, diagnosis: Diagnosis) -> None:
        """Checks what the run carries from its thread: an origin kept with the run, or the logs of other runs (§4.15)."""
        if not diagnosis.carries:
            return
        kept = await self._keeper.whole(diagnosis.run_id, -1)
        if kept is not None and kept[0] == 0:
            _feed_whole(diagnosis, kept[1])
            diagnosis.carries = ()
            return
        for carry in diagnosis.carries:
            row = next(iter(await self._keeper.log(carry.run_id, carry.seq - 1, 1)), None)
            diagnosis.feed_lender(carry, row.hash if row is not None and row.seq == carry.seq else None)

    async def _beside(self, diagnosis: Diagnosis) -> None:
        """Checks effects, intents and large results; what cannot be read is reported as such."""
        try:
            for n, effect in enumerate(await self._store.effects(diagnosis.run_id), 1):
                diagnosis.feed_effect(effect)
                if not n % SLICE_ROWS:
                    await asyncio.sleep(0)
            intents = await self._store.intents(diagnosis.run_id, limit=MOST)
            for n, intent in enumerate(intents, 1):
                diagnosis.feed_intent(intent)
                if not n % SLICE_ROWS:
                    await asyncio.sleep(0)
            if diagnosis.tells_of_entries():
                for row in await self._store.ledger(diagnosis.run_id):
                    diagnosis.feed_entry(row.topic, row.key)
            if diagnosis.tells_of_signals():
                for item in await self._store.inbox(diagnosis.run_id, taken=True):
                    diagnosis.feed_command(item.key)
            if len(intents) < MOST:
                diagnosis.miss_records()
            if await self._has_lost_its_key(diagnosis):
                diagnosis.miss_claim()
        except RecordDamaged as e:
            diagnosis.add(record_problem(e))
        except HoldfastError as e:
            diagnosis.add(problem("record_unreadable", e.message, "restore a backup", diagnosis.run_id))
        for digest, what in diagnosis.blobs.items():
            try:
                await as_kept(self._store).blob(digest)  # its digest is checked without decrypting it
            except StoreCorrupt as e:
                diagnosis.add(problem("blob_unreadable", f"{what}: {e.message}", "restore a backup", diagnosis.run_id))


    async def _has_lost_its_key(self, diagnosis: Diagnosis) -> bool:
        """Whether the claim of a run's request key is missing although its retention has not ended. For an imported run, another run may hold the key."""
        run = diagnosis.folded
        if run is None or diagnosis.request is None or self._store.now() >= diagnosis.request[1] + KEY_RETENTION_US:
            return False
        key, _ = diagnosis.request
        if any((c.kind, c.key) == ("request", key) for c in await self._keeper.claims_of(run.run_id)):
            return False
        scope = run.skill_id if run.source_run_id is None else f"{run.origin}:{run.source_run_id}"
        return await self._store.find_claim("request", f"{run.tenant_id}\x1f{scope}", key) is None


def find_needs(diagnosis: Diagnosis) -> Needs:
    """Returns which shared data a run needs, according to its log and its effects."""
    return Needs(frozenset(c.run_id for c in diagnosis.carries), frozenset(diagnosis.blobs))


def lacking(run_id: str, noted: Needs, needed: Needs) -> list[Problem]:
    """Reports what a run needs and its store has no record of: a prune would delete it."""
    hint = "holdfast repair-state RUN --apply records it again"
    carries = [problem("carry_record_missing", f"this run continues values of {predecessor}, but the record that says so is missing", hint, run_id) for predecessor in sorted(needed.predecessors - noted.predecessors)]
    uses = [problem("blob_use_record_missing", f"this run needs the blob {digest}, but the record that says so is missing", hint, run_id) for digest in sorted(needed.blobs - noted.blobs)]
    return carries + uses


def merge(evidence: Evidence, diagnosis: Diagnosis) -> list[Problem]:
    """Returns the problems that the store itself noticed and those of the diagnosis, each once."""
    problems = diagnosis.problems()
    codes = {p.code for p in problems}
    told = {(p.code, p.message) for p in problems}
    return [*(p for p in evidence.problems if (p.code, p.message) not in told and (p.code not in codes or "_record_" in p.code)), *problems]


def _further(seq: int, whole: tuple[int, Checkpoint | HoldfastError] | None) -> tuple[int, Checkpoint | HoldfastError] | None:
    """Returns the next whole checkpoint; None if a damaged index returns one that does not come after the last."""
    return whole if whole is None or whole[0] > seq else None


def _feed_whole(diagnosis: Diagnosis, whole: Checkpoint | HoldfastError) -> None:
    if isinstance(whole, HoldfastError):
        diagnosis.add(problem("checkpoint_hash_mismatch", whole.message, "restore a backup", diagnosis.run_id))
    elif whole.seq:  # an origin (seq 0) has no event that names its hash, only its own digest
        diagnosis.feed_whole(whole)


__all__ = ["Checker", "Findings", "find_needs", "keeper", "lacking", "merge"]

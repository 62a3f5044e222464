"""What a thread carries from one run to the next (§4.15), by reference (decision 16).

Theory of operation. The first checkpoint of a run that continues a thread does not contain the carried channels. It names the run that they
come from and where that run's log ended, by event number and chain hash (``core.checkpoint.Carry``). Loading reads that log, and
goes on to earlier runs until it finds a whole checkpoint. Because the bytes logged since the last whole checkpoint are counted across
the runs of a thread, that is never far. What a run carries is its *origin*: a checkpoint numbered 0 that comes before its
first one. Stores keep an origin if the earlier runs are not available: with a run that was imported, and with a run whose predecessors
were pruned.

A process that drives turn after turn keeps the ends of a thread's newest runs in memory and need not read back to them. Whether the thread still
ends this way is seen from the run's row: under the same fence, which contains the store's incarnation, a log with the same number of
events is the same log. In addition, a run that refers to such an end names the hash of its chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core import codec
from holdfast.core.checkpoint import Carry, Checkpoint, empty
from holdfast.core.codec import Row
from holdfast.core.commit import Behind, ThreadEnd, Tip
from holdfast.core.errors import ChainBroken, StoreCorrupt
from holdfast.core.graph import Program
from holdfast.core.lease import Lease
from holdfast.core.progress import Progress
from holdfast.core.run import Run
from holdfast.core.status import TERMINAL
from holdfast.ports import Loaded, RunFilter, Store, offers_threads, offers_upkeep

LOOKED_AT = 1000
NONE_KNOWN: Mapping[tuple[str, int, bytes], Mapping[str, Any]] = {}
LIGHT = 256  # bytes: carried values no larger than this are stored again, because a reference to them would not be much shorter
KEPT_BYTES = 4 * 2**20  # of logs and whole checkpoints whose values are kept in memory
KEPT_THREADS = 256

Origin = tuple[Checkpoint, bytes]
Ends = dict[tuple[str, int, bytes], Mapping[str, Any]]
"""Values, by the run and the place in its log from which another run carries them."""


class CarriedValues(msgspec.Struct, frozen=True):
    """What a thread has for its next run: ``values`` by channel, and ``carries``, where they are on record. ``follows``: how the thread
    ended when they were read, if the commit that begins with them has to be checked against that."""

    values: Mapping[str, Any]
    carries: tuple[Carry, ...]
    since: int = 0
    whole: int = 0
    follows: ThreadEnd | None = None

    def behind(self, carries: tuple[Carry, ...]) -> Behind | None:
        """Returns what the commit of a first checkpoint with these references says about them; None if there are none."""
        return Behind(tuple([c.run_id for c in carries]), self.since, self.whole) if carries else None


class _End(msgspec.Struct, frozen=True):
    """How a run's log ends."""

    run_id: str
    tip: Tip
    fence: int
    checkpoint: Checkpoint


class _Log(msgspec.Struct, frozen=True):
    """A run's log up to where another run carries on from it. It begins at the newest whole checkpoint before that place, or else at what the run itself carries."""

    begin: Origin | None
    rows: tuple[Row, ...]
    carries: tuple[Carry, ...]


class _Places:
    """Puts the ended runs of a thread, which come by their turns, latest first, into the order in which their turns began: a run that was resumed after later
    turns had begun comes after the run that it ``precedes``. ``moved``: there are such runs."""

    def __init__(self) -> None:
        self.moved = False
        self._looked = 0
        self._known: set[str] = set()
        self._aside: dict[str, list[tuple[Run, Lease]]] = {}

    def order(self, page: Sequence[tuple[Run, Lease]], *, last: bool) -> list[tuple[Run, Lease]]:
        """Returns the runs of a page that no page before had. One whose later turn has not come yet waits for it, at most until the ``last`` page."""
        found: list[tuple[Run, Lease]] = []
        for entry in page[self._looked :]:
            if (later := entry[0].precedes) and later not in self._known:
                self._aside.setdefault(later, []).append(entry)
                self.moved = True
                continue
            todo = [entry]
            while todo:
                found.append(todo.pop())
                self._known.add(found[-1][0].run_id)
                todo += reversed(self._aside.pop(found[-1][0].run_id, []))
        self._looked = len(page)
        if last:
            found += [entry for left in self._aside.values() for entry in left]
        return found


class Threads:
    """Finds what runs carry, in one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ends: dict[tuple[str, str], tuple[_End, ...]] = {}
        self._weight = 0

    # -- for the next run ---------------------------------------------------------------------------

    async def ahead(self, program: Program, tenant_id: str, thread_id: str) -> CarriedValues | None:
        """Returns what the thread has for a run that is created and begun in one commit. That commit is valid only if no run of the thread has ended meanwhile.

        Values in memory are not read again. None: the store cannot check a commit against the thread's end, or the program carries nothing.
        """
        if not offers_threads(self._store):
            return None
        wanted, kept = program.carried, self._ends.get((tenant_id, thread_id))
        if kept is not None and wanted and kept[0].checkpoint.values.keys() >= set(wanted):
            end = kept[0]
            mine = {n: end.checkpoint.values[n] for n in wanted}
            follows = ThreadEnd(end.run_id, end.tip.seq, end.fence)
            if _room_left(mine, LIGHT) >= 0:
                return CarriedValues(mine, (), follows=follows)
            return CarriedValues(mine, (Carry(end.run_id, end.tip.seq, end.tip.hash, tuple(mine)),), end.tip.since, end.tip.whole, follows)
        follows = await self._store.thread_end(tenant_id, thread_id)
        carried_values = await self.find_carried_values(program, tenant_id, thread_id)
        return None if carried_values is None else msgspec.structs.replace(carried_values, follows=follows)

    async def find_carried_values(self, program: Program, tenant_id: str, thread_id: str) -> CarriedValues | None:
        """Returns what the thread's newest ended run has for the next one; None if the program carries nothing.

        The newest run is found by its turn in the lane, which does not depend on a clock (§3.4). A run that was resumed after later turns had begun has its old place
        among them (decision 130). A run that was canceled before it started has no channels, and a run of another skill may lack some. The missing channels are taken
        from earlier runs, so that a conversation is not lost because of a run that did not take part in it.
        """
        wanted = list(program.carried)
        if not wanted:
            return None
        found: dict[str, Any] = {}
        carries: list[Carry] = []
        since = whole = 0
        places = _Places()
        limit = 1
        while wanted:
            page = await self._store.runs(RunFilter(tenant_id=tenant_id, thread_id=thread_id, statuses=tuple(TERMINAL), limit=limit, by_turn=True))
            last = len(page) < limit or limit >= LOOKED_AT
            for run, lease in places.order(page, last=last):
                if run.started_at is None or not wanted or (end := await self._end(run, lease, newest=not found and not places.moved)) is None:
                    continue
                values = end.checkpoint.values
                if mine := {n: values[n] for n in wanted if n in values}:
                    found |= mine
                    if _room_left(mine, LIGHT) < 0:
                        carries.append(Carry(end.run_id, end.tip.seq, end.tip.hash, tuple(mine)))
                        since, whole = since + end.tip.since, whole + end.tip.whole
                    wanted = [n for n in wanted if n not in found]
            if last:
                break
            limit *= 10
        return CarriedValues(found, tuple(carries), since, whole)

    async def find_next(self, run: Run) -> str:
        """Returns the run that had the turn after this one in their thread; empty if no later turn was taken."""
        limit = 1 if run.thread_id != run.run_id else 0
        while limit:
            page = await self._store.runs(RunFilter(tenant_id=run.tenant_id, thread_id=run.thread_id, limit=limit, by_turn=True))
            ids = ["", *[r.run_id for r, _ in page]]
            if run.run_id in ids:
                return ids[ids.index(run.run_id) - 1]
            if len(page) < limit or limit >= LOOKED_AT:
                return ids[-1]
            limit *= 10
        return ""

    async def _end(self, run: Run, lease: Lease, *, newest: bool) -> _End | None:
        """Returns how a run's log ends: from memory if that is still up to date, else from the store."""
        for kept in self._ends.get((run.tenant_id, run.thread_id), ()):
            if (kept.run_id, kept.tip.seq, kept.fence) == (run.run_id, run.version, lease.fence):
                return kept
        loaded = await self.load(run.run_id)
        if loaded is None:
            return None  # pruned meanwhile
        checkpoint = Progress(run.run_id, loaded.whole).walk(loaded.rows).checkpoint
        if newest:
            return self.keep(run, loaded.tip, loaded.lease.fence, checkpoint)
        return _End(run.run_id, loaded.tip, loaded.lease.fence, checkpoint)

    def keep(self, run: Run, tip: Tip, fence: int, checkpoint: Checkpoint) -> _End:
        """Keeps in memory how the newest run of a thread ends, and how the run before it ends, which is where the newest run began.

        The thread that was updated last stays, however large; the others stay as long as there is room.
        """
        end, place = _End(run.run_id, tip, fence, checkpoint), (run.tenant_id, run.thread_id)
        old = self._ends.pop(place, ())
        if run.precedes:
            self._weight -= _weight(old)
            return end  # later turns come after it, so the next run reads which is the newest
        self._ends[place] = (end, *[e for e in old if e.run_id != run.run_id][:1])
        self._weight += _weight(self._ends[place]) - _weight(old)
        while len(self._ends) > 1 and (self._weight > KEPT_BYTES or len(self._ends) > KEPT_THREADS):
            self._weight -= _weight(self._ends.pop(next(iter(self._ends))))
        return end

    # -- for loading --------------------------------------------------------------------------------

    async def load(self, run_id: str) -> Loaded | None:
        """Loads a run as ``Store.load`` does, with what it carries.

        Raises:
            StoreCorrupt: the run carries from a run that is missing or has changed.
        """
        loaded = await self._store.load(run_id)
        return None if loaded is None else await self.carry(loaded)

    async def carry(self, loaded: Loaded) -> Loaded:
        """Adds to a loaded run what it carries.

        Raises:
            StoreCorrupt: the run carries from a run that is missing or has changed.
        """
        begin = await self.begin(loaded.run.run_id, loaded.whole, loaded.rows)
        return loaded if begin is loaded.whole else msgspec.structs.replace(loaded, whole=begin)

    async def begin(
        self, run_id: str, whole: Origin | None, rows: Iterable[Row], known: Mapping[tuple[str, int, bytes], Mapping[str, Any]] = NONE_KNOWN
    ) -> Origin | None:
        """Returns where the walk over a run's newest rows begins: its newest whole checkpoint, or what the run carries, or None; ``known`` as for ``origin``.

        Raises:
            StoreCorrupt: the run carries from a run that is missing or has changed.
        """
        if whole is not None and (whole[0].seq or whole[0].unfinished is None):
            return whole
        if (origin := await self.origin(run_id, rows, known)) is None or whole is None:
            return origin or whole
        return msgspec.structs.replace(whole[0], values=origin[0].values), whole[1]  # saved before the run's first checkpoint, because signals had arrived already

    async def origin(self, run_id: str, rows: Iterable[Row], known: Mapping[tuple[str, int, bytes], Mapping[str, Any]] = NONE_KNOWN) -> Origin | None:
        """Returns what comes before a run's first checkpoint; None if it carries nothing. ``rows``: its log from the beginning; ``known``: values of
        earlier runs that the caller has in memory.

        Raises:
            StoreCorrupt: the run carries from a run that is missing or has changed.
        """
        carries = codec.read_carried(rows)
        if not carries:
            return None
        values = {(e.run_id, e.tip.seq, e.tip.hash): e.checkpoint.values for ends in self._ends.values() for e in ends} | dict(known)
        if any(_place(c) not in values for c in carries):
            if (kept := await self._find_kept(run_id)) is not None:
                return kept
            await self._walk(run_id, carries, values)
        return _origin(run_id, carries, values)

    async def _find_kept(self, run_id: str) -> Origin | None:
        """Returns the origin that the store keeps with a run; None if it keeps none."""
        found = await self._store.whole(run_id, -1) if offers_upkeep(self._store) else None
        if found is None or found[0] != 0:
            return None
        if not isinstance(found[1], Checkpoint):
            raise found[1]
        return found[1], b""

    async def _walk(self, run_id: str, carries: tuple[Carry, ...], values: dict[tuple[str, int, bytes], Mapping[str, Any]]) -> None:
        """Fills ``values`` with what these references name. Works depth first and without recursion, because a thread may go back a thousand runs."""
        todo, logs = [(run_id, c) for c in carries], dict[tuple[str, int, bytes], _Log]()
        while todo:
            successor, carry = todo[-1]
            place = _place(carry)
            if place in values:
                todo.pop()
                continue
            log = logs.get(place) or logs.setdefault(place, await self._log(successor, carry))
            if needed := [(carry.run_id, c) for c in log.carries if _place(c) not in values]:
                todo += needed
                continue
            begin = log.begin or (_origin(carry.run_id, log.carries, values) if log.carries else None)
            progress = Progress(carry.run_id, begin).walk(log.rows)
            if progress.hash != carry.hash:
                raise ChainBroken(f"the log of {carry.run_id} is not the one that {successor} carries on from", hint="restore a backup that has both runs")
            values[place] = progress.checkpoint.values
            del logs[place]

    async def _log(self, successor: str, carry: Carry) -> _Log:
        loaded = await self._store.load(carry.run_id)
        if loaded is None:
            raise StoreCorrupt(
                f"{successor} carries {', '.join(carry.channels)} from {carry.run_id}, which is not there", hint="restore a backup that has both runs",
                code="checkpoint_head_missing",
            )
        begin, rows = loaded.whole, loaded.rows
        if begin is not None and begin[0].upto > carry.seq:  # the run has continued since, and this checkpoint is too new
            begin, rows = await self._find_kept(carry.run_id), tuple(await self._store.rows(carry.run_id))
        rows = tuple([r for r in rows if r.seq <= carry.seq])
        return _Log(begin, rows, () if begin is not None else codec.read_carried(rows))


def _room_left(value: Any, room: int) -> int:
    """Returns about how many of ``room`` bytes remain after a value is stored. Negative if the value is larger; it is then not examined further."""
    if isinstance(value, str | bytes):
        return room - len(value) - 2
    if isinstance(value, dict):
        for name, item in value.items():
            room = _room_left(item, room - len(name) - 1)
            if room < 0:
                return room
        return room - 1
    if isinstance(value, list):
        for item in value:
            room = _room_left(item, room)
            if room < 0:
                return room
        return room - 1
    return room - 9 if value is None or isinstance(value, bool | int | float) else -1


def _weight(ends: tuple[_End, ...]) -> int:
    return sum([e.tip.since + e.tip.whole for e in ends])


def _place(carry: Carry) -> tuple[str, int, bytes]:
    return carry.run_id, carry.seq, carry.hash


def _origin(run_id: str, carries: tuple[Carry, ...], values: Mapping[tuple[str, int, bytes], Mapping[str, Any]]) -> Origin:
    if lost := [f"{n} of {c.run_id}" for c in carries for n in c.channels if n not in values[_place(c)]]:
        raise StoreCorrupt(f"{run_id} continues values of earlier runs that are missing: {', '.join(lost)}", hint="restore a backup", code="checkpoint_head_missing")
    return empty(run_id, {n: values[_place(c)][n] for c in carries for n in c.channels}), b""


__all__ = ["CarriedValues", "Origin", "Threads"]

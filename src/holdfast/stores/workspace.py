"""A store of files for people to read: one directory per run (§12.5), and the form in which any run is exported.

Theory of operation. ``events.jsonl`` is the source of truth. A commit is one append: a line for each event, numbered k of n and with the commit's
chain hash. The last line has the record's bytes in base64, so that what is loaded is what was written, byte for byte; the readable part is for
people. A commit without its n-th line does not count. What a commit refers to is written before it: the checkpoint's delta and large results under
their own hashes; effects, intents, inbox items and claims as lines that name their commit and do not count without it. ``meta.json`` is the run's
row, a cache, replaced atomically afterwards; ``decisions/`` repeats decisions, for people.

In memory this is a ``MemoryStore`` that was read from those files; the files are written inside each of its transactions. One process may write,
under a lock on the directory that it takes with its first write. A process without the lock checks, before each read, the sizes and times of the
files, and reads again those that have changed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

import msgspec
from msgspec.structs import replace

from holdfast.core import blobs, canon, codec, describe, toolcalls, views
from holdfast.core import events as ev
from holdfast.core.blobs import Blob
from holdfast.core.checkpoint import Checkpoint
from holdfast.core.chunks import Emitted, Stored
from holdfast.core.codec import Row
from holdfast.core.commit import Commit, DedupClaim, InboxItem, LedgerRow, Settlement, Tip
from holdfast.core.consistency import Problem, problem, record_problem
from holdfast.core.effects import Effect
from holdfast.core.errors import (
    EventUnreadable,
    HoldfastError,
    RecordDamaged,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreMoved,
    StoreReadOnly,
    VersionConflict,
)
from holdfast.core.intents import Intent, is_spent
from holdfast.core.jsons import json_of
from holdfast.core.lease import COUNTER_BITS, DEFAULT_TTL_US, Alive, Lease, counter
from holdfast.core.limits import Backlog, Limit, Rule
from holdfast.core.pruned import Tombstone
from holdfast.core.run import Run, fold
from holdfast.core.schedules import Schedule
from holdfast.core.status import TERMINAL
from holdfast.ports import NO_LIMITS, Claims, Dossier, Evidence, IntentCount, Pruned, RunFilter
from holdfast.stores import apply, memory
from holdfast.stores.apply import Prepared
from holdfast.stores.documents import agenda, document, read_schedules, revive
from holdfast.stores.files import Identity, disk_told, fix_place, store_error
from holdfast.stores.loglines import EVENTS, Beside, End, Kept, b64, commit_lines, line, number_lines, read_beside, read_log, unline
from holdfast.stores.memory import MemoryStore

FORMAT = 1
META, HOUSE, TOMBSTONES, SCHEDULES, SHELVES, LIMITS, BLOBS = "meta.json", "workspace.json", "tombstones.jsonl", "schedules.json", "shelves.json", "limits.json", "blobs"
PRUNED = "pruned.jsonl"
ORIGIN, RECORDS, CHUNKS = "origin.json", "records.json", "chunks.log"
LOOSE = 4 * 2**20
SLICE_BYTES = 64 * 1024  # bytes of logs, without their checkpoints, that are read between two turns of the event loop
TOP = ""
TRIES, NAP = 20, 0.001
Stamp = tuple[tuple[str, int, int, int], ...]
_pack = msgspec.msgpack.Encoder().encode


# -- the store --------------------------------------------------------------------------------------


class _Commits:
    """Which commits exist, by run: records beside a log count only with the commit that they name. ``missed``: a named commit did not exist (yet)."""

    def __init__(self, log: Callable[[str], Kept | None]) -> None:
        self._log = log
        self._hashes: dict[str, set[str] | None] = {}
        self.missed = False

    def have(self, run_id: str, digest: str) -> bool:
        if run_id not in self._hashes:
            kept = self._log(run_id)
            self._hashes[run_id] = None if kept is None else {r.hash.hex() for r in kept.rows}
        known = self._hashes[run_id]
        there = known is None or digest in known
        self.missed = self.missed or not there
        return there


@disk_told(lambda store: store.folder)
class WorkspaceStore(MemoryStore):
    """Runs as directories below ``folder``. Nothing is created before the first write, not even the folder."""

    def __init__(self, folder: str | os.PathLike[str], *, now: Callable[[], int] | None = None) -> None:
        super().__init__(now=now)
        self.folder = os.fspath(folder)
        self.url = f"workspace:{self.folder}"
        self._lock = -1
        self._made = False
        self._held_elsewhere = False
        self._broken: dict[str, StoreError] = {}
        self._parsed: tuple[str, Kept] | None = None
        self._stamps: dict[str, Stamp] = {}
        self._harmed: dict[str, tuple[RecordDamaged, ...]] = {}  # what is wrong beside the logs, by run
        self._house: tuple[Problem, ...] = ()
        self._unscheduled: StoreError | None = None
        self._unshelved: StoreError | None = None
        self._unlimited: StoreError | None = None
        self._files: dict[str, list[str]] = {}
        self._ends: dict[str, dict[str, End]] = {}  # where the files beside a run's log end
        self._unnoted: dict[str, memory.Ring] = {}  # rings as their files have them, if memory is ahead
        self._ring_sizes: dict[str, int] = {}  # of the files of chunks
        self._looked: dict[str, int] = {}  # runs whose log has no partial tail, and how long their logs are; after a failed append this is checked again
        self._place: Identity | None = None  # of the folder, while it is written

    # -- life ---------------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._lock >= 0:
            return  # two runtimes of one process share it
        await super().open()
        self.folder = fix_place(self.folder)
        if os.path.exists(self.folder) and not os.path.isdir(self.folder):
            raise StoreReadOnly(f"{self.folder} is not a directory", hint="a workspace is a directory with one directory per run")
        self._look()

    async def close(self) -> None:
        await super().close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock, self._place = -1, None
            self._looked.clear()

    def _take_lock(self) -> bool:
        """Takes the lock of the writer. It is on the directory itself, so that checking it leaves no file behind."""
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        for _ in range(TRIES):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(NAP)  # another process may only be checking whether it is held
                continue
            self._lock = fd
            return True
        os.close(fd)
        return False

    def _is_held(self) -> bool:
        """Whether another process writes here now."""
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False

    def _writable(self) -> None:
        """Creates the folder and takes the lock, at the first write; what others have written until then is read before anything is written.

        Raises:
            StoreMoved: the folder that was written until now is not there any more.
        """
        if self._lock >= 0:
            self._same_folder()
            return
        self._made = not os.path.lexists(self.folder)
        try:
            os.makedirs(self.folder, exist_ok=True)
        except FileExistsError as e:
            raise StoreReadOnly(f"{self.folder} cannot be made: {e.strerror}", hint="a file has this name: remove it, or choose another folder") from e
        if not self._take_lock():
            raise StoreBusy(f"another process writes {self.folder}", hint="a workspace allows one writer: wait until the other process ends")
        self._place = Identity(self.folder)
        self._catch_up(None, held=False)
        if not os.path.exists(os.path.join(self.folder, HOUSE)):
            self._write_house({})

    def _same_folder(self) -> None:
        """Checks that the path still leads to the locked folder, so that nothing is acknowledged into another one (X-27)."""
        if self._place is not None and (what := self._place.tell_lost()):
            way_out = "put the folder back, or end the processes that use it and open what is there now"
            raise StoreMoved(f"{self.folder} {what} while it was open", hint=way_out)

    def place(self, run_id: str) -> str:
        """Returns the directory of a run, with the folder as it was given."""
        return os.path.join(self.url.removeprefix("workspace:"), os.path.basename(self._at(run_id)))

    def unmake(self) -> None:
        """Deletes the folder again after a failure, if this store has created the folder and is its writer."""
        if self._made and self._lock >= 0:
            shutil.rmtree(self.folder, ignore_errors=True)

    def note(self, run_id: str, name: str, fields: Mapping[str, Any]) -> None:
        """Writes a file for people into a run's directory; no store reads it."""
        self._replace(self._at(run_id, name), _json(dict(fields)))

    def _at(self, run_id: str, *names: str) -> str:
        name = quote(run_id, safe="~@+=, ")
        return os.path.join(self.folder, f"%2E{name[1:]}" if name.startswith(".") else name, *names)

    # -- reading what there is ----------------------------------------------------------------------

    def _look(self, run_id: str | None = None) -> None:
        """Brings memory up to date with the files of a run, or of all runs. The memory of the writer is always up to date."""
        if self._lock < 0 and os.path.isdir(self.folder):
            self._catch_up(None if run_id is None else [run_id], held=self._is_held())

    async def _look_by_turns(self, run_id: str | None = None) -> None:
        """As ``_look``, some files at a time and a long log in a thread; other tasks of the event loop run meanwhile (§12.6)."""
        some: list[str] = []
        read: dict[str, tuple[Stamp, Kept]] = {}
        size = 0
        for name in (self._on_disk() if run_id is None else [run_id]) if self._lock < 0 else ():
            if (stamp := self._stamp(name)) == self._stamps.get(name, ()):
                continue
            if (long := _bytes(stamp)) > SLICE_BYTES:
                read[name] = stamp, await asyncio.to_thread(self._read_kept, name)
            some.append(name)
            if (size := size + long) > SLICE_BYTES:
                self._catch_up(some, held=self._is_held(), read=read)
                some, read, size = [], {}, 0
                await asyncio.sleep(0)
        self._look(run_id)

    def _catch_up(self, run_ids: Sequence[str] | None, *, held: bool, read: Mapping[str, tuple[Stamp, Kept]] | None = None) -> None:
        """Brings memory up to date. ``read``: logs that were read already, each with its stamp from before that."""
        if not held:  # all earlier writers are gone
            self.present.dead.update(r.owner for r in self._runs.values() if r.owner is not None and r.owner not in self.present.workers)
        self._held_elsewhere = held
        found = {name: self._stamp(name) for name in (self._on_disk() if run_ids is None else run_ids)}
        gone = self._stamps.keys() - found.keys() - {TOP} if run_ids is None else {n for n, stamp in found.items() if not stamp and n in self._stamps}
        changed = [n for n, stamp in found.items() if stamp and stamp != self._stamps.get(n)]
        house = self._stamps.get(TOP) if run_ids is not None else self._stamp(TOP)
        if changed or gone or house != self._stamps.get(TOP):
            have = {n: kept for n, (stamp, kept) in (read or {}).items() if stamp == found.get(n)}
            self._reload({n: have.get(n) or self._read_kept(n) for n in changed}, gone, found)
            if house is not None:
                self._stamps[TOP] = house

    def _stamp(self, run_id: str) -> Stamp:
        """Returns what shows whether the files of a run, or of the folder itself (``TOP``), have changed; taken before they are read. Empty if there
        is no run."""
        try:
            files = [e for e in os.scandir(self._at(run_id)) if e.name.endswith(".jsonl") or e.name in (META, ORIGIN, HOUSE, SCHEDULES, SHELVES, LIMITS, RECORDS)]
            found = [(e.name, (s := e.stat()).st_size, s.st_mtime_ns, s.st_ino) for e in files]
        except (FileNotFoundError, NotADirectoryError):
            return ()
        return tuple(sorted(found)) if run_id == TOP or any(name == EVENTS for name, *_ in found) else ()

    def _reload(self, kept: dict[str, Kept], gone: set[str], stamps: dict[str, Stamp]) -> None:
        """Reads runs again, and forgets those that are gone."""
        house: list[Problem] = []
        self._read_house(house)
        commits = _Commits(lambda n: kept.get(n) or (self._read_kept(n) if os.path.isfile(self._at(n, EVENTS)) else None))
        with self._atomic():
            self._forget(gone | {n for n in kept if n in self._order})
            for name in (*gone, *kept):
                self._stamps.pop(name, None)
                self._broken.pop(name, None)
                self._harmed.pop(name, None)
                self._ends.pop(name, None)
            for run_id, log in kept.items():
                commits.missed = False
                if log.born is None or commits.have(*log.born):
                    self._install(run_id, log, commits)
                if not commits.missed:  # otherwise records may begin to count without a change of these files
                    self._stamps[run_id] = stamps[run_id]
            tombstones = read_beside(_read(os.path.join(self.folder, TOMBSTONES)) or b"", None)
            house += [problem("effect_record_altered", f"{where} of {TOMBSTONES} is damaged: its checksum does not match", _LOOK) for where in tombstones.altered]
            for fields in tombstones.lines:
                try:
                    effect = codec.decode_effect(base64.b64decode(fields["data"]))
                except (*_MALFORMED, HoldfastError) as e:
                    house.append(problem("effect_record_altered", f"a line of {TOMBSTONES} cannot be read: {e}", _LOOK))
                    continue
                self._effects.setdefault(effect.effect_id, (effect, codec.encode_effect(effect)))
                self._note_users(TOP, blobs.name_blobs((), [effect]))
            left = read_beside(_read(os.path.join(self.folder, PRUNED)) or b"", None)
            house += [problem("pruned_record_altered", f"{where} of {PRUNED} is damaged: its checksum does not match", _LOOK) for where in left.altered]
            self._pruned = {f["run_id"]: Tombstone(f["run_id"], f["at"], f["by"]) for f in left.lines if _is_tombstone(f)}
            for fields in left.lines:
                try:
                    kept_claims = [_ASIDE["claims"][1](fields["run_id"], f) for f in fields.get("claims", ())]
                except (*_MALFORMED, HoldfastError) as e:
                    house.append(problem("pruned_record_altered", f"a line of {PRUNED} cannot be read: {e}", _LOOK))
                    continue
                for c in kept_claims:
                    if apply.outlasts(c, self.now()):
                        self._claims.setdefault((c.kind, c.scope, c.key), c)
        damaged = {name: error for name in _OF_HOUSE if (error := self._differs(name)) is not None}
        house += [record_problem(error) for error in damaged.values()]
        self._unscheduled = damaged.get(SCHEDULES)
        try:
            self._schedules = read_schedules(_read(os.path.join(self.folder, SCHEDULES)) or b"[]") if self._unscheduled is None else {}
        except EventUnreadable as e:
            self._schedules, self._unscheduled = {}, e
            house.append(problem("schedule_record_altered", e.message, e.hint))
        self._unshelved = damaged.get(SHELVES)
        try:
            kept_rows = (_read_json(os.path.join(self.folder, SHELVES)) or {}).get("rows", []) if self._unshelved is None else []
            self._shelves = {(_text({"shelf": name}, "shelf"), _text({"key": key}, "key")): base64.b64decode(data) for name, key, data in kept_rows}
        except _MALFORMED as e:
            self._shelves, self._unshelved = {}, EventUnreadable(f"{SHELVES} cannot be read: {e}", hint="restore it from a backup")
            house.append(problem("shelf_record_altered", self._unshelved.message, self._unshelved.hint))
        self._rules, self._unlimited = {}, damaged.get(LIMITS)
        for n, kept_rule in enumerate((_read_json(os.path.join(self.folder, LIMITS)) or {}).get("limits", [])):
            try:
                rule = codec.decode_rule(msgspec.json.encode(kept_rule))
            except EventUnreadable as e:
                house.append(problem("record_unreadable", f"limit {n} of {LIMITS}: {e.message}", e.hint))
                continue
            self._rules[rule.name] = rule
        self._house = tuple(house)

    def _differs(self, name: str) -> RecordDamaged | None:
        """Returns what is wrong with a file of the workspace itself, by what ``workspace.json`` states of it."""
        stated = self._files.get(name)
        data = _read(os.path.join(self.folder, name))
        return None if stated is None or _digest(data) in stated else RecordDamaged(_OF_HOUSE[name], "", name, missing=data is None)

    def _write_house(self, files: dict[str, list[str]]) -> None:
        """Writes the workspace's own file, which states the digests of the files beside the runs."""
        fields = {"format": FORMAT, "incarnation": self.incarnation, "files": files}
        self._replace(os.path.join(self.folder, HOUSE), _json({**fields, "sum": _digest(json.dumps(fields, sort_keys=True).encode())}), sync=True)
        self._files = files

    def _put_file(self, name: str, data: bytes) -> None:
        """Replaces a file beside the runs. Until that is done, ``workspace.json`` allows for the old and the new content."""
        digest = _digest(data)
        self._write_house({**self._files, name: [*self._files.get(name, [_digest(_read(os.path.join(self.folder, name)))])[-1:], digest]})
        self._replace(os.path.join(self.folder, name), data, sync=True)
        self._write_house({**self._files, name: [digest]})

    def _add_to_file(self, name: str, data: bytes) -> None:
        self._put_file(name, (_read(os.path.join(self.folder, name)) or b"") + data)

    def _read_house(self, problems: list[Problem]) -> None:
        """Reads the workspace's own file. If it cannot be read, that is reported; the runs, which do not need it, are not affected."""
        path = os.path.join(self.folder, HOUSE)
        text = _read(path)
        if text is None:
            if self._on_disk():  # a run's directory can be copied by itself, so the file may never have been here
                about = f"{HOUSE} is missing, so the files beside the runs cannot be verified"
                problems.append(Problem("record_unreadable", "warning", about, "restore it from a backup; otherwise the next write creates a new one"))
            return
        house = _read_json(path) or {}
        form, incarnation = house.get("format"), house.get("incarnation")
        stated = house.pop("sum", None)
        whole = stated is None or stated == _digest(json.dumps(house, sort_keys=True).encode())
        if not whole or not isinstance(form, int) or not isinstance(incarnation, int) or not 0 <= incarnation < 2**31:
            problems.append(problem("record_unreadable", f"{HOUSE} cannot be read", "restore it from a backup, or remove it: it is then created again"))
            return
        codec.check_format(form * 100)
        self.incarnation, self._files = incarnation, house.get("files", {})

    def _note_users(self, run_id: str, digests: Iterable[str]) -> None:
        """Records which directory has a large result; ``TOP`` is the folder itself, for results that outlive their run."""
        for digest in digests:
            users = self._users.get(digest, ())
            if run_id not in users:
                self._users[digest] = (*users, run_id)

    def _on_disk(self) -> list[str]:
        if not os.path.isdir(self.folder):
            return []
        return [r for r in self._folders() if os.path.isfile(self._at(r, EVENTS))]

    def _folders(self) -> list[str]:
        """Returns the runs that have a directory here, also one whose log is lost."""
        names = [n for n in _list(self.folder) if not n.startswith(".") and any(_is_filled(os.path.join(self.folder, n, f)) for f in (EVENTS, META))]
        return sorted(unquote(n) for n in names)

    def _read_kept(self, run_id: str) -> Kept:
        return read_log(run_id, _read(self._at(run_id, EVENTS)) or b"", lambda name: _read(self._at(run_id, "checkpoints", f"{name}.json")))

    async def _keep_now(self, run_id: str) -> Kept:
        """As ``_read_kept``, a long log in a thread; reads again if it was written meanwhile."""
        stamp = self._stamp(run_id)
        kept = await asyncio.to_thread(self._read_kept, run_id) if _bytes(stamp) > SLICE_BYTES else None
        return self._read_kept(run_id) if kept is None or stamp != self._stamp(run_id) else kept

    def _install(self, run_id: str, kept: Kept, commits: _Commits) -> None:
        """Puts a run into memory. An inconsistent run can be inspected, and nothing else."""
        run, previous = None, b""
        large: dict[str, str] = {}
        try:
            if not kept.sound:
                raise StoreCorrupt("; ".join(p.message for p in kept.problems if p.severity == "error"), code=kept.problems[0].code)
            for row in kept.rows:
                record = codec.open_row(row, previous)
                for event in record.events:
                    run = fold(run, event)
                    if isinstance(event.fact, ev.ArtifactCreated):
                        large.setdefault(event.fact.sha256, event.fact.name)
                large |= blobs.name_blobs(record.results)
                previous = row.hash
            if run is not None and run.run_id != run_id:
                raise StoreCorrupt(f"the log names the run {run.run_id!r}", code="record_unreadable")
        except HoldfastError as e:
            hint = f"holdfast check {run_id} --workspace {self.folder} names it"
            self._broken[run_id] = StoreCorrupt(f"{run_id} is damaged: {e.message}", hint=hint, code=e.code)
            return
        if run is None:
            return  # there is no whole commit, so the run was never acknowledged
        try:
            dossier = self._dossier(run, kept, commits)
            if harm := self._harmed.get(run_id):
                raise harm[0]
        except (*_MALFORMED, HoldfastError) as e:
            hint = f"holdfast check {run_id} --workspace {self.folder} names it"
            self._broken[run_id] = e if isinstance(e, StoreError) else StoreCorrupt(f"{run_id} is damaged: {e}", hint=hint, code="record_unreadable")
            return
        self._take_over(dossier, None)
        self._note_users(run_id, large | blobs.name_blobs((), dossier.effects))
        if any(i.type.startswith(toolcalls.TYPE) for i in dossier.intents):  # answers of tool runners are stored before anything in the log refers to them
            self._note_users(run_id, _list(self._at(run_id, BLOBS)))
        self._broken.pop(run_id, None)
        place, row_ = kept.last, self._runs[run_id]
        lease = self._meta_place(run_id, kept.rows[-1]) or place
        owner = lease.get("owner") if not run.terminal else None
        if owner is not None and not self._held_elsewhere:
            self.present.dead.add(owner)
        fence = max(int(lease.get("fence") or 0), codec.open_row(kept.rows[-1]).fence)
        unread = row_.due is not None and row_.due <= self.now()
        self._runs[run_id] = replace(
            row_, owner=owner, turn=int(place.get("turn") or row_.turn), holds=bool(place.get("holds")) and not run.terminal,
            fence=self.incarnation << COUNTER_BITS | max(1, fence), due=row_.due if unread or "due" not in place or run.terminal else place["due"],
        )
        self._count = max(self._count, self._runs[run_id].turn)
        if there := _read(self._at(run_id, CHUNKS)):
            self._rings[run_id], self._ring_sizes[run_id] = memory.ring_read(run_id, there), len(there)
            self._count = max([self._count, *(k.serial for k in self._rings[run_id])])

    def _meta_place(self, run_id: str, newest: Row) -> dict[str, Any] | None:
        """Returns what ``meta.json`` says about the run's place in the store, if it was written after the newest commit."""
        store = (_read_json(self._at(run_id, META)) or {}).get("store")
        return store if isinstance(store, dict) and store.get("chain") == newest.hash.hex() else None

    def _dossier(self, run: Run, kept: Kept, commits: _Commits) -> Dossier:
        found = {name: self._aside(run.run_id, name, commits) for name in _ASIDE}
        inbox: dict[str, InboxItem] = {}
        for item in found["inbox"]:
            old = inbox.get(item.key)
            inbox[item.key] = item if old is None or item.taken_seq is not None else old
        return Dossier(
            run=run, rows=tuple(kept.rows), origin=self._origin(run.run_id), inbox=tuple(inbox.values()), claims=tuple(found["claims"]),
            effects=tuple({e.effect_id: e for e in found["effects"]}.values()),
            intents=tuple({i.intent_id: i for i in found["intents"]}.values()), ledger=tuple(found["ledger"]),
        )

    def _origin(self, run_id: str) -> bytes | None:
        """Returns what the run carries from its thread, if that is stored with the run (§4.15)."""
        fields = _read_json(self._at(run_id, ORIGIN))
        return None if fields is None else base64.b64decode(fields["data"])

    def _aside(self, run_id: str, name: str, commits: _Commits) -> list[Any]:
        """Returns the records of a file beside the log; lines of commits that do not exist do not count."""
        load, kind, found = _ASIDE[name][1], KIND_OF[name], []
        kept = self._records_of(run_id, name)
        harm = [RecordDamaged(kind, run_id, f"{where} of {name}.jsonl") for where in kept.altered]
        harm += [RecordDamaged(kind, run_id, f"{where} of {name}.jsonl", missing=True) for where in kept.missing]
        for fields in kept.lines:
            try:
                if not fields.get("of") or commits.have(fields["by"], fields["of"]):
                    found.append(load(run_id, fields))
                    if found[-1].run_id != run_id:
                        harm.append(RecordDamaged(kind, run_id, f"a line of {name}.jsonl that names another run"))
            except (*_MALFORMED, HoldfastError):
                harm.append(RecordDamaged(kind, run_id, f"a line of {name}.jsonl"))
        if harm:
            self._harmed[run_id] = (*self._harmed.get(run_id, ()), *harm)
        return found

    def _records_of(self, run_id: str, name: str) -> Beside:
        """Reads a file beside the log, and checks its end against ``records.json``."""
        data = _read(self._at(run_id, RECORDS))
        stated = _read_ends(data)
        kept = read_beside(_read(self._at(run_id, f"{name}.jsonl")) or b"", None if stated is None else stated.get(name, End()))
        if stated is None or (data is None and kept.end.number):  # lines of a past release have no number, and nothing vouches for them
            kept.altered.append(f"{RECORDS}, which holds its checksum,")
        self._ends.setdefault(run_id, {})[name] = kept.end
        return kept

    # -- writing ------------------------------------------------------------------------------------

    async def commit(self, commit: Commit) -> Tip:
        self._usable(commit.run.run_id)
        prepared = apply.prepare(commit)
        with self._atomic():
            tip = self._apply(prepared)
            self._persist(prepared)
        self._meta([commit.run.run_id, *(c.run.run_id for c in commit.creates)])
        self._decisions(commit)
        if commit.moves:
            with contextlib.suppress(StoreError):  # if this fails, the schedule fires its slot again, and finds that the slot has its run
                self._agenda(self._schedules)
        self.changes.tell()
        return tip

    def _usable(self, run_id: str) -> None:
        if error := self._broken.get(run_id):
            raise error
        self._writable()

    def _persist(self, p: Prepared) -> None:
        """Writes the files first and the append last: that is the commit (§12.5)."""
        c, run_id, digest = p.commit, p.commit.run.run_id, p.sealed.row.hash.hex()
        with self._disk():
            for child in p.creates:
                os.makedirs(self._at(child.commit.run.run_id), exist_ok=True)
                for name in os.listdir(self._at(child.commit.run.run_id)):  # remains of a commit that does not exist
                    _remove(self._at(child.commit.run.run_id, name))
                self._ends.pop(child.commit.run.run_id, None)
                self._besides(child, child.sealed.row.hash.hex())
                self._append(child, {"run": run_id, "hash": digest})
            os.makedirs(self._at(run_id), exist_ok=True)
            self._besides(p, digest)
            self._append(p, None)
            if c.after is None:
                _sync_folder(self.folder)

    def _besides(self, p: Prepared, digest: str) -> None:
        c, run_id = p.commit, p.commit.run.run_id
        by = {"of": digest, "by": run_id}
        for blob in c.blobs:
            self._place_blob(run_id, blob)
        taken = [self._inbox[run_id, key] for key in c.took]
        items = [InboxItem(i.run_id, i.key, codec.decode_command(i.command), i.put_at, i.taken_seq) for i in taken]
        for name, values in (("effects", c.effects), ("intents", c.intents), ("ledger", c.ledger), ("claims", c.claims), ("inbox", items)):
            if values:
                self._lines(run_id, name, values, by)
        for item in c.puts:
            self._lines(item.run_id, "inbox", [item], by)
        if c.emitted is not None:
            self._note_ring(run_id)

    def _emit(self, e: Emitted, now: int) -> None:
        self._unnoted[e.run_id] = self._rings.get(e.run_id, ())
        super()._emit(e, now)

    def _note_ring(self, run_id: str) -> None:
        """Brings the file of a run's ring up to date: by an append, or by a rewrite if most of its content is obsolete. Chunks are provisional, so it
        is not synced."""
        ring, path = self._rings.get(run_id, ()), self._at(run_id, CHUNKS)
        text = memory.ring_lines(self._unnoted.pop(run_id, ring), ring)
        size = self._ring_sizes.get(run_id, 0) + len(text)
        if not ring:
            _remove(path)
            size = 0
        elif size > LOOSE + 3 * sum(len(k.data) for k in ring):
            text = memory.ring_lines((), ring)
            self._replace(path, text)
            size = len(text)
        else:
            with open(path, "ab") as f:
                f.write(b"\n" + text)  # on a line of its own, in case a crash has left a part of another one
        self._ring_sizes[run_id] = size

    async def emit(self, emitted: Sequence[Emitted]) -> None:
        self._writable()
        with self._atomic(), self._disk():
            for e in self._current(emitted):
                self._emit(e, self.now())
                self._note_ring(e.run_id)
        self.changes.tell()

    async def chunks(self, run_id: str, after: int = 0, limit: int = 1000) -> list[Stored]:
        if self._lock >= 0:
            return await super().chunks(run_id, after, limit)
        return memory.ring_beyond(run_id, memory.ring_read(run_id, _read(self._at(run_id, CHUNKS)) or b""), after, limit)

    def _stow(self, blob: Blob) -> None:
        """The commit writes the bytes to the disk; memory does not hold them."""
        if blob.data is None:
            blobs.read_back(blob.digest, None)

    def _place_blob(self, run_id: str, blob: Blob) -> None:
        """Stores a large result as a file of the run that refers to it, so that each directory can be copied by itself."""
        path = self._at(run_id, BLOBS, blob.digest)
        if os.path.exists(path):
            return
        there = [p for user in self._users.get(blob.digest, ()) if os.path.exists(p := self._at(user, BLOBS, blob.digest))]
        if blob.data is not None or not there:
            self._replace(path, blobs.read_back(blob.digest, blob.data), sync=True)
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            os.link(there[0], path)
        except OSError:  # the file system has no links, or too many of this file
            self._replace(path, blobs.read_back(blob.digest, _read(there[0])), sync=True)

    def _lines(self, run_id: str, name: str, values: Iterable[Any], by: dict[str, str]) -> None:
        """Appends to a file beside the log, on a new line."""
        ends = self._ends.setdefault(run_id, {})
        if name not in ends:
            self._records_of(run_id, name)
        _note(self._at(run_id), ends, name, [{**by, **_ASIDE[name][0](v)} for v in values], self._replace)

    def _append(self, p: Prepared, born: dict[str, str] | None) -> None:
        run, path = p.commit.run, self._at(p.commit.run.run_id, EVENTS)
        row = self._runs[run.run_id]
        place: dict[str, Any] = {"owner": row.owner, "due": row.due, "holds": row.holds, "turn": row.turn}
        if born is not None:
            place["born"] = born
        text, files = commit_lines(run, p.sealed.row, place)
        for name, data in files.items():
            self._replace(self._at(run.run_id, "checkpoints", f"{name}.json"), data, sync=True)
        self._cut_tail(run.run_id, p.commit.after)
        size = os.path.getsize(path) if os.path.exists(path) else 0
        if size != self._looked[run.run_id]:
            way_out = "put it back, or open the workspace again and look at what is there (holdfast check)"
            raise StoreMoved(f"{path} was removed, replaced or written to by somebody else while it was open", hint=way_out)
        _add(path, text)
        self._looked[run.run_id] = size + len(text)

    def _cut_tail(self, run_id: str, after: Tip | None) -> None:
        """Makes a commit begin on a new line: what a crash or a full disk left of another commit is moved to ``repairs`` (X-10).

        Raises:
            StoreMoved: the log does not end where this process left it.
        """
        if run_id in self._looked:
            return
        kept = self._read_kept(run_id)
        ends = [r.seq for r in kept.rows]
        if after is not None and (not ends or kept.rows[-1].hash != after.hash or ends != sorted(set(ends))):
            raise StoreMoved(f"{self._at(run_id, EVENTS)} does not end where it did when it was read", hint="open the workspace again and look (holdfast check)")
        if kept.tail:
            self._replace(self._at(run_id, "repairs", f"tail-{kept.size}.bin"), kept.tail, sync=True)
            os.truncate(self._at(run_id, EVENTS), kept.size)
        self._looked[run_id] = kept.size

    @contextlib.contextmanager
    def _disk(self) -> Any:
        """Maps errors of the disk. What was written of the commit does not count; the next append cuts it off."""
        try:
            yield
        except OSError as e:
            self._looked.clear()
            raise store_error(e, self.folder) from e

    def _replace(self, path: str, data: bytes, *, sync: bool = False) -> None:
        """Replaces a file atomically."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.{os.getpid()}.tmp"
        try:
            with open(temporary, "wb") as f:
                f.write(data)
                f.flush()
                if sync:
                    os.fsync(f.fileno())
            os.replace(temporary, path)
        except BaseException:
            _remove(temporary)
            raise

    def _meta(self, run_ids: Iterable[str]) -> None:
        """Brings the caches up to date. They are not a part of the commit: ``check`` reports one that was not written."""
        for run_id in run_ids:
            row = self._runs[run_id]
            with contextlib.suppress(OSError):
                self._replace(self._at(run_id, META), self._meta_text(row.run, row.tip, self._log[run_id, row.tip.seq]))

    def _meta_text(self, run: Run, tip: Tip, newest: Row) -> bytes:
        row = self._runs.get(run.run_id)
        place = {"seq": tip.seq, "chain": tip.hash.hex(), "events": len(codec.open_row(newest).events)}
        held = {} if row is None else {"fence": counter(row.fence), "owner": row.owner}
        return _json({**document(run), "store": {**place, **held}})

    def _decisions(self, commit: Commit) -> None:
        """Repeats decisions as files, for people; the log has them."""
        for event in commit.events:
            if isinstance(event.fact, ev.WaitDecided | ev.WaitTimedOut):
                path = self._at(commit.run.run_id, "decisions", f"{event.seq}.json")
                with contextlib.suppress(OSError):
                    self._replace(path, _json({"seq": event.seq, **describe.plain(describe.decision(event.fact.decision))}))

    async def put(self, item: InboxItem) -> InboxItem:
        self._usable(item.run_id)
        with self._atomic(), self._disk():
            new = (item.run_id, item.key) not in self._inbox
            kept = self._put(item, self.now())
            if new:
                self._lines(item.run_id, "inbox", [item], {"of": "", "by": ""})
        self.changes.tell()
        return kept

    async def put_schedule(self, schedule: Schedule, before: Schedule | None) -> bool:
        self._writable()
        if self._schedules.get(schedule.schedule_id) != before:
            return False
        self._agenda({**self._schedules, schedule.schedule_id: schedule})
        self.changes.tell()
        return True

    async def drop_schedule(self, schedule_id: str) -> bool:
        self._writable()
        if schedule_id not in self._schedules:
            return False
        self._agenda({i: s for i, s in self._schedules.items() if i != schedule_id})
        return True

    def _agenda(self, schedules: dict[str, Schedule]) -> None:
        if self._unscheduled is not None:
            raise self._unscheduled  # the existing file would be overwritten
        with self._disk():
            self._put_file(SCHEDULES, agenda(schedules.values()))
        self._schedules = schedules

    async def put_rule(self, rule: Rule, before: Rule | None) -> bool:
        self._writable()
        if self._unlimited is not None:
            raise self._unlimited  # the existing file would be overwritten
        if not await super().put_rule(rule, before):
            return False
        with self._disk():
            self._put_file(LIMITS, _json({"limits": [msgspec.to_builtins(r) for r in self._rules.values()]}))
        return True

    async def rules(self) -> list[Rule]:
        self._look()
        if self._unlimited is not None:
            raise self._unlimited  # the file is not what was set
        return await super().rules()

    async def backlog(self) -> list[Backlog]:
        self._look()
        return await super().backlog()

    async def shelve(self, shelf: str, rows: Mapping[str, bytes], once: Collection[str] = ()) -> list[str]:
        self._writable()
        taken = sorted(key for key in once if (shelf, key) in self._shelves)
        self._write_shelves({**self._shelves, **{(shelf, key): data for key, data in rows.items() if key not in taken}})
        return taken

    async def find_shelved(self, shelf: str, key: str) -> bytes | None:
        self._readable()
        return await super().find_shelved(shelf, key)

    async def shelf_scan(self, shelf: str, prefix: str = "", after: str = "", limit: int = 100) -> list[tuple[str, bytes]]:
        self._readable()
        return await super().shelf_scan(shelf, prefix, after, limit)

    async def list_shelves(self) -> list[str]:
        self._readable()
        return await super().list_shelves()

    def _readable(self) -> None:
        self._look()
        if self._unshelved is not None:
            raise self._unshelved  # the file is damaged: its checksum does not match

    async def unshelve(self, shelf: str, prefix: str) -> int:
        self._writable()
        kept = {place: data for place, data in self._shelves.items() if place[0] != shelf or not place[1].startswith(prefix)}
        gone = len(self._shelves) - len(kept)
        self._write_shelves(kept)
        return gone

    def _write_shelves(self, shelves: dict[tuple[str, str], bytes]) -> None:
        rows = [[name, key, base64.b64encode(data).decode()] for (name, key), data in sorted(shelves.items())]
        if self._unshelved is not None:
            raise self._unshelved  # the existing file would be overwritten
        with self._disk():
            self._put_file(SHELVES, _json({"rows": rows}))
        self._shelves = shelves

    async def settle_effect(self, effect: Effect, expected: str) -> bool:
        self._usable(effect.run_id)
        there = self._effects.get(effect.effect_id)
        if there is None or there[0].status != expected:
            return False
        with self._disk():
            self._lines(effect.run_id, "effects", [effect], {"of": "", "by": ""})
        return await super().settle_effect(effect, expected)

    async def claim_intents(
        self,
        owner: str,
        types: Sequence[str],
        *,
        limit: int,
        ttl_us: int,
        each: int = 1_000_000,
        room: Mapping[tuple[str, str, str], int] | None = None,
        run_id: str | None = None,
        held: Collection[str] = (),
        doubt: bool = False,
    ) -> list[Intent]:
        self._look()
        if not any(i.open for i in self._intents.values()):
            return []
        self._writable()
        taken = await super().claim_intents(owner, types, limit=limit, ttl_us=ttl_us, each=each, room=room, run_id=run_id, held=held, doubt=doubt)
        self._note(taken)
        return taken

    async def settle_intents(self, settlements: Sequence[Settlement]) -> list[bool]:
        self._writable()
        kept = await super().settle_intents(settlements)
        for s in (s for s, held in zip(settlements, kept, strict=True) if held):
            run_id, beside = s.after.run_id, {"of": "", "by": ""}
            with self._disk():
                for blob in s.blobs:
                    self._place_blob(run_id, blob)
                if s.ledger:
                    self._lines(run_id, "ledger", s.ledger, beside)
                for item in s.puts:
                    self._lines(item.run_id, "inbox", [item], beside)
            self._note((*s.intents, s.after))
        return kept

    async def drop_payloads(self, before: int, limit: int) -> int:
        self._look()
        if not any(is_spent(i, before) for i in self._intents.values()):
            return 0
        self._writable()
        carried = {i.intent_id for i in self._intents.values() if i.payload}
        count = await super().drop_payloads(before, limit)
        self._note([i for i in self._intents.values() if i.intent_id in carried and not i.payload])
        return count

    def _note(self, intents: Iterable[Intent]) -> None:
        with self._disk():
            for intent in intents:
                self._lines(intent.run_id, "intents", [intent], {"of": "", "by": ""})

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
        self._look(run_id)
        if run_id is not None:
            self._usable(run_id)
        elif any(row.status not in TERMINAL for row in self._runs.values()):
            self._writable()  # a claim is the beginning of a write
        return await super().claim(owner, queues, skills, limit=limit, run_id=run_id, shapes=shapes, limits=limits)

    async def retire(self, owner: str) -> None:
        held = [r.run.run_id for r in self._runs.values() if r.owner == owner]
        await super().retire(owner)
        if self._lock >= 0:
            self._meta(held)

    # -- reading ------------------------------------------------------------------------------------

    async def get(self, run_id: str) -> tuple[Run, Lease] | None:
        self._look_at(run_id)
        return await super().get(run_id)

    async def load(self, run_id: str) -> Any:
        self._look_at(run_id)
        return await super().load(run_id)

    async def runs(self, query: RunFilter) -> list[tuple[Run, Lease]]:
        self._look()
        return await super().runs(query)

    def _look_at(self, run_id: str | None) -> None:
        """Brings memory up to date with one run, or with all.

        Raises:
            StoreCorrupt: the run's files are inconsistent.
        """
        self._look(run_id)
        if run_id is not None and (error := self._broken.get(run_id)):
            raise error

    def _may_be_lost(self, kind: str, found: object) -> None:
        """Refuses to answer that there is no record if it may be among the damaged lines of another run."""
        if not found:
            for harm in self._harmed.values():
                if (lost := next((e for e in harm if e.kind == kind), None)) is not None:
                    raise lost

    async def rows(self, run_id: str, after: int = 0, limit: int | None = None) -> list[Row]:
        self._look_at(run_id)
        return await super().rows(run_id, after, limit)

    async def inbox(self, run_id: str, *, taken: bool = False) -> list[InboxItem]:
        self._look_at(run_id)
        return await super().inbox(run_id, taken=taken)

    async def effects(self, run_id: str | None = None, *, key: str | None = None, lineage_root: str | None = None) -> list[Effect]:
        self._look_at(run_id)
        found = await super().effects(run_id, key=key, lineage_root=lineage_root)
        if key is not None and key.split(":")[2:3] != [] and key.split(":")[2] not in self._runs:
            self._may_be_lost("effect", found)
        return found

    async def open_effects(self, owner: str) -> list[Effect]:
        self._look()
        return await super().open_effects(owner)

    async def intents(
        self,
        run_id: str | None = None,
        *,
        state: str | None = None,
        type: str | None = None,
        tenant_id: str | None = None,
        after: str | None = None,
        limit: int = 500,
    ) -> list[Intent]:
        self._look_at(run_id)
        return await super().intents(run_id, state=state, type=type, tenant_id=tenant_id, after=after, limit=limit)

    async def intent(self, intent_id: str) -> Intent | None:
        self._look()
        return await super().intent(intent_id)

    async def intent_counts(self) -> list[IntentCount]:
        self._look()
        return await super().intent_counts()

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
        self._look_at(run_id)
        return await super().ledger(run_id, topic=topic, key=key, tenant_id=tenant_id, after=after, limit=limit)

    async def schedule(self, schedule_id: str) -> Schedule | None:
        self._look()
        return await super().schedule(schedule_id)

    async def schedules(self, due: int | None = None) -> list[Schedule]:
        self._look()
        return await super().schedules(due)

    async def find_claim(self, kind: str, scope: str, key: str) -> DedupClaim | None:
        self._look()
        found = await super().find_claim(kind, scope, key)
        self._may_be_lost("claim", found)
        return found

    def _lease(self, row: Any) -> Lease:
        """While another process writes here, the owner of a run counts as alive."""
        lease = super()._lease(row)
        if not self._held_elsewhere or lease.owner is None:
            return lease
        return replace(lease, owner_alive=Alive.YES, expires_at=self.now() + DEFAULT_TTL_US)

    async def blob(self, digest: str) -> bytes:
        """Reads a large result from any directory that has it and in which it is sound."""
        if digest not in self._users:
            self._look()
        found: StoreCorrupt | None = None
        for user in self._users.get(digest, ()):
            try:
                return blobs.read_back(digest, _read(self._at(user, BLOBS, digest)))
            except StoreCorrupt as e:
                found = e
        if found is not None:
            raise found
        return blobs.read_back(digest, None)

    async def verify(self) -> list[Problem]:
        """Returns what is wrong with the workspace itself; what is wrong with a run is reported by its evidence."""
        await self._look_by_turns()
        try:
            self._same_folder()
        except StoreMoved as e:
            return [Problem(e.code, "error", e.message, e.hint), *self._house]
        return list(self._house)

    # -- upkeep: ports.Upkeep, from the files as they are -------------------------------------------

    async def run_ids(self, after: str = "", limit: int = 1000) -> list[str]:
        return [r for r in self._folders() if r > after][:limit]

    async def evidence(self, run_id: str) -> Evidence | None:
        if not run_id or not any(os.path.isfile(self._at(run_id, f)) for f in (EVENTS, META)):
            return None
        await self._look_by_turns(run_id)
        kept = await self._keep_now(run_id)
        self._parsed = (run_id, kept)
        text = _read(self._at(run_id, META))
        tip = None if not kept.rows else Tip(kept.rows[-1].seq, kept.rows[-1].hash, 0, sum(len(r.data) for r in kept.rows), 0)
        run, store = _meta_run(text)
        if tip is None and not kept.problems and text is None:
            return None  # there is not one byte of a commit, so there is no run
        found = [*kept.problems, *map(record_problem, self._harmed.get(run_id, ())), *self._files_problems(run_id, kept), *_ahead(run_id, store, tip, kept)]
        row = self._runs.get(run_id)
        raw = {"meta": None if text is None else text.decode("utf-8", "backslashreplace"), "tail": b64(kept.tail), "events": tip.seq if tip else 0}
        lease = self._lease(row) if row is not None else None
        return Evidence(run_id=run_id, run=run, lease=lease, tip=tip, raw=raw, problems=tuple(found))

    def _files_problems(self, run_id: str, kept: Kept) -> list[Problem]:
        names = [n.removesuffix(".json") for n in _list(self._at(run_id, "checkpoints")) if n.endswith(".json")]
        loose = sorted(set(names) - kept.checkpoints)
        found = [problem("checkpoint_orphaned", f"checkpoints/{n}.json is not recorded by any event", "it can be deleted", run_id) for n in loose[:20]]
        if run_id in self._runs:
            wanted, there = {d for d, users in self._users.items() if run_id in users}, set(_list(self._at(run_id, BLOBS)))
            found += [problem("blob_unreadable", f"{BLOBS}/{n} is missing", "restore a backup", run_id) for n in sorted(wanted - there)[:20]]
            found += [problem("blob_orphaned", f"no result refers to {BLOBS}/{n}", "it can be deleted", run_id) for n in sorted(there - wanted)[:20]]
        return found

    async def log(self, run_id: str, after: int = 0, limit: int = 1000) -> list[Row]:
        if self._parsed is None or self._parsed[0] != run_id:
            self._parsed = (run_id, await self._keep_now(run_id))
        return [r for r in self._parsed[1].rows if r.seq > after][:limit]

    async def whole(self, run_id: str, after: int = 0) -> tuple[int, Checkpoint | HoldfastError] | None:
        """Whole checkpoints are not on the disk, except for an origin."""
        return await super().whole(run_id, after) if after < 0 and run_id in self._origins else None

    async def keep_origin(self, run_id: str, origin: bytes) -> None:
        self._usable(run_id)
        with self._disk():
            self._replace(self._at(run_id, ORIGIN), _origin_file(run_id, origin), sync=True)
        await super().keep_origin(run_id, origin)

    async def rebuild(self, evidence: Evidence, commits: Sequence[Commit]) -> str:
        """Writes the backup, then replaces the cache with the fold, then cuts the tail and appends the audit record (T-99)."""
        run_id = evidence.run_id
        self._writable()
        now = await self._as_shown(evidence)
        kept = self._read_kept(run_id)
        run: Run | None = None
        for row in kept.rows:
            for event in codec.open_row(row).events:
                run = fold(run, event)
        assert run is not None and evidence.tip is not None
        backup = self._at(run_id, "repairs", f"{evidence.tip.seq}.json")
        with self._disk():
            self._replace(backup, _json(evidence.raw), sync=True)
            try:
                self._replace(self._at(run_id, META), self._meta_text(run, evidence.tip, kept.rows[-1]), sync=True)
            except BaseException:
                _remove(backup)
                with contextlib.suppress(OSError):
                    os.rmdir(os.path.dirname(backup))
                raise
            self._broken.pop(run_id, None)
            with self._atomic():
                written = self._mend(evidence, commits, now)
                if kept.tail:
                    os.truncate(self._at(run_id, EVENTS), kept.size)
                self._looked.pop(run_id, None)
                for p in written:
                    self._append(p, None)
                    if p.effects:
                        self._lines(run_id, "effects", p.effects, {"of": "", "by": ""})
        self._meta([run_id])
        self._parsed = None
        self.changes.tell()
        return backup

    async def adopt(self, dossier: Dossier) -> bool:
        run_id = dossier.run.run_id
        if run_id in self._broken:
            raise VersionConflict(f"a damaged run {run_id} is here already", hint="choose another directory")
        self._writable()
        mine = [self._log[run_id, seq].data for seq in self._order.get(run_id, ())]
        if mine and len(mine) < len(dossier.rows) and mine == [r.data for r in dossier.rows[: len(mine)]]:
            self._check_shelved(dossier)
            self._forget({run_id})  # an older export of the same run, which has continued since
        shelves = self._shelves
        if not await super().adopt(dossier):
            return False
        final, building = self._at(run_id), self._at(f".{run_id}.tmp")
        try:
            self._looked.pop(run_id, None)
            with self._disk():
                shutil.rmtree(building, ignore_errors=True)
                os.makedirs(building)
                self._write_dossier(dossier, building)
                if dossier.shelved:
                    self._write_shelves(self._shelves)
                older = self._at(f".{run_id}.gone")
                if os.path.isdir(final):
                    os.rename(final, older)
                os.rename(building, final)
                shutil.rmtree(older, ignore_errors=True)
                _sync_folder(self.folder)
        except BaseException:
            self._forget({run_id})
            self._shelves = shelves
            shutil.rmtree(building, ignore_errors=True)
            raise
        self._meta([run_id])
        return True

    def _write_dossier(self, d: Dossier, folder: str) -> None:
        row, text = self._runs[d.run.run_id], []
        ends: dict[str, End] = {}
        self._ends[d.run.run_id] = ends
        if d.origin is not None:
            self._replace(os.path.join(folder, ORIGIN), _origin_file(d.run.run_id, d.origin), sync=True)
        for number, log in enumerate(d.rows, 1):
            last = number == len(d.rows)
            lines, files = commit_lines(d.run, log, {"due": row.due, "turn": row.turn} if last else {})
            text.append(lines)
            for name, data in files.items():
                self._replace(os.path.join(folder, "checkpoints", f"{name}.json"), data)
            for event in codec.open_row(log).events:
                if isinstance(event.fact, ev.WaitDecided | ev.WaitTimedOut):
                    shown = {"seq": event.seq, **describe.plain(describe.decision(event.fact.decision))}
                    self._replace(os.path.join(folder, "decisions", f"{event.seq}.json"), _json(shown))
        besides: list[tuple[str, Sequence[Any]]] = [
            ("effects", d.effects), ("intents", d.intents), ("ledger", d.ledger), ("claims", d.claims), ("inbox", d.inbox),
        ]
        for name, values in besides:
            if values:
                _note(folder, ends, name, [{"of": "", "by": "", **_ASIDE[name][0](v)} for v in values], self._replace)
        for blob in d.blobs:
            self._replace(os.path.join(folder, BLOBS, blob.digest), blobs.read_back(blob.digest, blob.data))
        _add(os.path.join(folder, EVENTS), b"".join(text))

    async def prune(self, before: int, *, dry: bool = False, actor: str = "operator") -> Pruned:
        self._look()
        found = self._prunable(before, () if dry else await self.list_carries())
        if dry or not found.run_ids:
            return found
        self._writable()
        found = self._prunable(before, await self.list_carries())  # after the commits of the last writer
        gone = set(found.run_ids)
        with self._disk():
            shared = [e for e, _ in self._effects.values() if e.run_id in gone and e.shared]
            left = blobs.name_blobs((), shared)
            for digest in left:
                self._place_blob(TOP, Blob(digest, 0))
            if shared:
                self._add_to_file(TOMBSTONES, b"".join(line(_dump_effect(e)) for e in shared))
            graves = [Tombstone(run_id, self.now(), actor) for run_id in found.run_ids]
            keys = {run_id: [_ASIDE["claims"][0](c) for c in self._claims.values() if c.run_id == run_id and c.kind != "effect" and apply.outlasts(c, self.now())] for run_id in gone}
            self._add_to_file(PRUNED, b"".join(line({**msgspec.structs.asdict(t), "when": views.iso(t.at), "claims": keys[t.run_id]}) for t in graves))
            for run_id in found.run_ids:
                away = self._at(f".{run_id}.gone")
                os.rename(self._at(run_id), away)
                shutil.rmtree(away)
        self._note_users(TOP, left)
        self._bury(graves)
        for run_id in gone:
            self._looked.pop(run_id, None)
        self.changes.tell()
        return found


_OF_HOUSE = {SCHEDULES: "schedule", SHELVES: "shelf", TOMBSTONES: "effect", PRUNED: "pruned", LIMITS: "limit"}
"""The files beside the runs, and the kind of their records."""


def _bytes(stamp: Stamp) -> int:
    return sum(size for _, size, _, _ in stamp)


def _digest(data: bytes | None) -> str:
    return "" if data is None else hashlib.sha256(data).hexdigest()[:32]


def _is_tombstone(fields: dict[str, Any]) -> bool:
    return isinstance(fields.get("run_id"), str) and isinstance(fields.get("at"), int) and isinstance(fields.get("by"), str)


# -- what is kept beside the log --------------------------------------------------------------------


def _dump_effect(e: Effect) -> dict[str, Any]:
    shown = {"effect_id": e.effect_id, "status": e.status.value, "capability": e.capability, "key": e.key.replace("\x1f", "/")}
    times = {"attempted_at": views.iso(e.attempted_at), "settled_at": views.iso(e.settled_at)}
    return {**shown, "step": e.step, "task": e.task, "path": e.path, **times, "data": b64(codec.encode_effect(e))}


def _dump_intent(i: Intent) -> dict[str, Any]:
    return {"intent_id": i.intent_id, "type": i.type, "state": i.state, "key": i.key, "attempts": i.attempts, "data": b64(_pack(i))}


def _dump_inbox(i: InboxItem) -> dict[str, Any]:
    shown = {"key": i.key, "put_at": views.iso(i.put_at), "taken": i.taken_seq, "command": type(i.command).__name__}
    return {**shown, "at": i.put_at, "data": b64(codec.encode_command(i.command))}


_intent = msgspec.msgpack.Decoder(Intent)

_LOOK = "restore a backup; the other lines are read"
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, OverflowError, msgspec.MsgspecError)
KIND_OF = {"effects": "effect", "intents": "intent", "inbox": "inbox", "ledger": "ledger", "claims": "claim"}
Dump = Callable[[Any], dict[str, Any]]
Revive = Callable[[str, dict[str, Any]], Any]


def _text(fields: Mapping[str, Any], name: str) -> str:
    """Returns a text field of a line, which another program may have written."""
    value = fields[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is not a text")
    return value


def _number(fields: Mapping[str, Any], name: str) -> int:
    value = fields[name]
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is not a number")
    return value


_ASIDE: dict[str, tuple[Dump, Revive]] = {
    "effects": (_dump_effect, lambda run_id, f: codec.decode_effect(base64.b64decode(f["data"]))),
    "intents": (_dump_intent, lambda run_id, f: _intent.decode(base64.b64decode(f["data"]))),
    "inbox": (_dump_inbox, lambda run_id, f: InboxItem(run_id, _text(f, "key"), codec.decode_command(base64.b64decode(f["data"])), _number(f, "at"), None if f["taken"] is None else _number(f, "taken"))),
    "ledger": (
        lambda r: {"topic": r.topic, "key": r.key, "at": r.at, "step_id": r.step_id, "shown": canon.reveal(r.data), "data": b64(r.data)},
        lambda run_id, f: LedgerRow(run_id, _text(f, "topic"), _text(f, "key"), base64.b64decode(f["data"]), _number(f, "at"), _text({"step_id": "", **f}, "step_id")),
    ),
    "claims": (
        lambda c: {"kind": c.kind, "scope": c.scope, "key": c.key, "digest": c.digest, "expires_at": c.expires_at},
        lambda run_id, f: DedupClaim(_text(f, "kind"), _text(f, "scope"), _text(f, "key"), run_id, _text(f, "digest"), None if f["expires_at"] is None else _number(f, "expires_at")),
    ),
}


def _origin_file(run_id: str, origin: bytes) -> bytes:
    checkpoint, _ = codec.decode_whole(run_id, origin)
    return _json({"values": canon.reveal(canon.encode(canon.FrozenDict(checkpoint.values))), "data": b64(origin)})


# -- files ------------------------------------------------------------------------------------------


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as f:
            return f.read()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def _is_filled(path: str) -> bool:
    """Whether a file exists and is not empty: a failed first commit leaves an empty log, which was never a run."""
    return os.path.isfile(path) and os.path.getsize(path) > 0


def _list(path: str) -> list[str]:
    """Returns the names in a folder; empty if there is no folder."""
    return os.listdir(path) if os.path.isdir(path) else []


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, indent=2, default=str).encode() + b"\n"


def _read_json(path: str) -> dict[str, Any] | None:
    """Returns the object in a file; None if there is none."""
    try:
        found = json_of(_read(path) or b"null")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _read_ends(data: bytes | None) -> dict[str, End] | None:
    """Returns where the files beside a log end, according to ``records.json``; None if it cannot be read. Without that file nothing is stated."""
    if data is None:
        return {}
    try:
        fields = unline(data.rstrip(b"\n"))
        return None if fields is None else {name: End(int(number), str(digest)) for name, (number, digest) in fields["ends"].items()}
    except (*_MALFORMED, RecursionError):
        return None


def _note(folder: str, ends: dict[str, End], name: str, records: Sequence[dict[str, Any]], replace_file: Callable[..., None]) -> None:
    """Appends records to a file beside the log, then states its new end: the file may be ahead of the statement, never behind."""
    if not any(e.number for e in ends.values()):  # if there are numbered lines but no such file, it was lost
        replace_file(os.path.join(folder, RECORDS), line({"ends": {}}), sync=True)
    text, end = number_lines(records, ends.get(name, End()))
    _add(os.path.join(folder, f"{name}.jsonl"), text)
    ends[name] = end
    stated = {n: [e.number, e.sum] for n, e in sorted(ends.items()) if e.number}
    replace_file(os.path.join(folder, RECORDS), line({"ends": stated}), sync=True)


def _add(path: str, data: bytes) -> None:
    """Appends once, on a new line, and syncs. If that fails, what was written is taken back if the disk allows it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = _whole_lines(fd)
        try:
            written = os.write(fd, data)
            if written != len(data):
                raise OSError(28, "No space left on device")
            os.fsync(fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, size)
            raise
    finally:
        os.close(fd)


def _whole_lines(fd: int) -> int:
    """Returns the size of a file up to its last newline, and cuts off what follows: the rest of a write during which its process ended."""
    size = os.fstat(fd).st_size
    if not size or os.pread(fd, 1, size - 1) == b"\n":
        return size
    whole = os.pread(fd, size, 0).rfind(b"\n") + 1
    os.ftruncate(fd, whole)
    return whole


def _remove(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.unlink(path)


def _sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _meta_run(text: bytes | None) -> tuple[Run | HoldfastError | None, dict[str, Any]]:
    """Returns the run of ``meta.json``, or why it cannot be read; and what the file says about the log."""
    if text is None:
        return None, {}
    try:
        fields = json_of(text)
        store = fields.get("store") if isinstance(fields, dict) else None
        return revive(Run, fields), store if isinstance(store, dict) else {}
    except (ValueError, RecursionError) as e:
        return EventUnreadable(f"{META} is not JSON: {e}"), {}
    except HoldfastError as e:
        return e, {}


def _ahead(run_id: str, store: dict[str, Any], tip: Tip | None, kept: Kept) -> list[Problem]:
    """Reports a cache that is ahead of the log. The cache is written after the log, so the log has lost its end (§1.9)."""
    known, last = store.get("seq"), tip.seq if tip is not None else 0
    if not isinstance(known, int) or known <= last or not kept.sound:
        return []
    if kept.tail and known - int(store.get("events") or 0) == last:
        return []  # the missing commit is the one that the partial tail begins
    way_out = f"look at what is left (holdfast events {run_id}), restore a backup, or accept the loss: holdfast doctor --rebuild --acknowledge"
    return [problem("log_rolled_back", f"{META} knows of {known} events, {EVENTS} ends with {last}", way_out, run_id)]


__all__ = ["WorkspaceStore", "line", "read_log", "unline"]

"""A LangGraph checkpointer over a Holdfast store: one file, or one database, for runs and for graphs."""

from __future__ import annotations

import datetime as dt
import functools
import random
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Self, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import ERROR

from holdfast import Runtime, UsageError
from holdfast.core.bounds import one_of
from holdfast.core.errors import InvalidInput, StoreCorrupt
from holdfast.core.recent import Recent
from holdfast.integrations.langgraph import rows as r
from holdfast.integrations.langgraph.rows import Kept, Thread, Value, Write
from holdfast.integrations.langgraph.writer import Otherwise, Writer
from holdfast.shelf import Shelf

T = TypeVar("T")
SHELF = "langgraph"
SMALL = 128
"""A value of at most this many bytes is part of the checkpoint's own body."""
PAGE = 500
LISTED = 20
"""How many checkpoints of a list are read before the first of them is returned: each holds all values of its time."""
REMEMBERED = 1024
READ_BYTES = 16_000_000
MAPS = ("channel_versions", "versions_seen")
MAPS_READ = "\0maps"
"""The name under which the maps that were read last are cached; no channel has this name."""
MET = 10_000
"""When this many threads were met, those of which nothing is cached any more are left out."""


class Durability(StrEnum):
    """When the writes of a task are on disk: before ``put_writes`` returns, or with the next commit, at most 2 ms later."""

    STRICT = "strict"
    JOINED = "joined"


class HoldfastSaver(BaseCheckpointSaver[str]):
    """Keeps checkpoints in a Holdfast store: ``graph.compile(checkpointer=saver)``.

    ``async with HoldfastSaver.from_url(url) as saver`` opens the store, ``with`` does so for synchronous graphs. ``HoldfastSaver(rt)`` uses the
    store of a Runtime that is open. Synchronous calls may come from any thread but that of the store's own event loop.

    Args:
        source: an open Runtime, or the URL of a store.
        durability: ``strict``: every put is on disk before it returns. ``joined``: the writes of single tasks are part of the next
            commit, at most 2 ms later; reads include them. Checkpoints are always on disk before their put returns.
        serde: how values become bytes; LangGraph's own serializer by default.

    Raises:
        UsageError: the store has no shelves.
    """

    def __init__(self, source: Runtime | str, *, durability: str = "strict", serde: SerializerProtocol | None = None) -> None:
        super().__init__(serde=serde)
        self.durability = Durability(one_of(durability, "durability", tuple(Durability)))
        self.shelf = source.shelf(SHELF) if isinstance(source, Runtime) else Shelf.open(source, SHELF)
        self._writer = Writer(self.shelf)
        self._kept: OrderedDict[tuple[str, str, str], Kept] = OrderedDict()
        self._read: Recent[r.Slot, tuple[str, tuple[str, bytes]]] = Recent(READ_BYTES)
        self._known: OrderedDict[str, None] = OrderedDict()
        self._inside: OrderedDict[r.Slot, tuple[str, str]] = OrderedDict()
        self._maps: OrderedDict[tuple[str, str], r.Maps] = OrderedDict()
        self._met: set[str] = set()
        self._most_met = MET

    @classmethod
    def from_url(cls, url: str, *, durability: str = "strict", serde: SerializerProtocol | None = None) -> Self:
        """Returns a saver whose store is opened by ``with`` or ``async with``, and closed at its end."""
        return cls(url, durability=durability, serde=serde)

    async def __aenter__(self) -> Self:
        await self.shelf.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        try:
            await self.shelf.home.join(self._writer.settle())
        finally:
            await self.shelf.__aexit__(*error)

    def __enter__(self) -> Self:
        self.shelf.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._call(self._writer.settle())
        finally:
            self.shelf.__exit__(*error)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return self.shelf.home.call(work)

    async def _join(self, work: Coroutine[Any, Any, T]) -> T:
        return await self.shelf.home.join(work)

    def get_next_version(self, current: str | None, channel: None = None) -> str:
        """Returns the version after this one. Versions are texts that sort in the order in which they were made."""
        number = 0 if current is None else current if isinstance(current, int) else int(str(current).partition(".")[0])
        return f"{number + 1:032}.{random.random():016}"

    # -- writing -------------------------------------------------------------------------------------

    async def _put(self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions) -> RunnableConfig:
        thread, ns, parent = _place(config)
        id = checkpoint["id"]
        made: dict[str, bytes] = {}
        near: dict[str, Any] = {}
        inside: dict[str, tuple[str, bytes]] = {}
        elsewhere: dict[str, str] = {}
        apart: list[str] = []
        versions = checkpoint["channel_versions"]
        for channel, value in checkpoint["channel_values"].items():
            version = versions.get(channel)
            if version is not None and channel not in new_versions:
                at = self._inside.get((thread.prefix, ns, channel))
                if at is not None and at[0] == version:
                    elsewhere[channel] = at[1]
                    continue
                if thread.value(ns, channel, str(version)) in self._known:
                    apart.append(channel)
                    continue
            if version is None or _short(value):
                near[channel] = value
                continue
            kind, body = self.serde.dumps_typed(value)
            if len(body) <= SMALL:
                near[channel] = value
                continue
            self._meet(thread)
            if len(body) <= r.NEAR_BYTES:
                inside[channel] = (kind, body)
                _remember(self._inside, (thread.prefix, ns, channel), (version, id))
                continue
            apart.append(channel)
            key = thread.value(ns, channel, str(version))
            made[key] = r.encode(self._value(thread, ns, channel, str(version), kind, body))
            _remember(self._known, key, None)
        shown: dict[str, Any] = {**checkpoint, "channel_values": near}
        maps = self._map_versions(thread, ns, checkpoint, shown, made)
        kind, body = self.serde.dumps_typed(shown)
        meta = get_checkpoint_metadata(config, metadata)
        meta_kind, told = self.serde.dumps_typed(meta)
        run = None if (given := meta.get("run_id")) is None else str(given)
        row = r.Checkpoint(ns, id, parent, run, checkpoint["ts"], kind, body, meta_kind, told, tuple(apart), inside, elsewhere, maps, True)
        key = thread.checkpoint(ns, id)
        made[key] = r.encode(row)
        if run is not None:
            made[r.of_run(run) + key] = b""
        try:
            await self._writer.write(made)
        except BaseException:
            self._forget(thread)  # nothing later may build on what was not written
            raise
        return _config(thread, ns, id)

    def _map_versions(self, thread: Thread, ns: str, checkpoint: Checkpoint, shown: dict[str, Any], made: dict[str, bytes]) -> str | None:
        """Leaves in ``shown`` only what differs from the maps of versions that were stored last, and returns their id. Stores the maps anew if need be."""
        versions, seen = checkpoint["channel_versions"], checkpoint["versions_seen"]
        if len(versions) + len(seen) < r.MANY:
            return None
        before = self._maps.get((thread.prefix, ns))
        rest = None if before is None else before.rest(versions, seen)
        if before is None or rest is None:
            before, rest = r.Maps(checkpoint["id"], dict(versions), {name: dict(each) for name, each in seen.items()}), ({}, {})
            made[thread.maps(ns, before.id)] = r.encode(Value(*self.serde.dumps_typed({"channel_versions": versions, "versions_seen": seen})))
            self._meet(thread)
            _remember(self._maps, (thread.prefix, ns), before)
        shown["channel_versions"], shown["versions_seen"] = rest
        return before.id

    def _value(self, thread: Thread, ns: str, channel: str, version: str, kind: str, body: bytes) -> Value:
        slot = (thread.prefix, ns, channel)
        before = self._kept.get(slot)
        row, kept = r.grow(before, version, kind, body)
        _remember(self._kept, slot, kept)
        return row

    async def _put_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str) -> None:
        thread, ns, id = _place(config)
        if id is None:
            raise InvalidInput("writes belong to a checkpoint, and the config names none", field="checkpoint_id", hint='config["configurable"]["checkpoint_id"]')
        if any(channel == ERROR for channel, _ in writes):
            # A task that failed has no result. What its node wrote before its router raised is left out, because it would count as the whole result.
            writes = [(channel, value) for channel, value in writes if channel in WRITES_IDX_MAP or channel.startswith(ERROR[:-2])]
        made: dict[str, bytes] = {}
        once: list[Write] = []
        for place, (channel, value) in enumerate(writes):
            write = Write(task_path, task_id, WRITES_IDX_MAP.get(channel, place), channel, *self.serde.dumps_typed(value))
            if channel in WRITES_IDX_MAP:
                made[thread.write(ns, id, task_id, write.index)] = r.encode(write)
            else:
                once.append(write)
        first: dict[str, Otherwise] = {}
        if once:
            key = thread.together(ns, id, task_id)
            while self._writer.holds(key):
                await self._writer.settle()
            made[key] = r.encode(tuple(once))
            first[key] = functools.partial(self._missing, thread, ns, id, task_id, once)
        if not made:
            return
        if self.durability is Durability.JOINED:
            self._writer.ride(made, first)
        else:
            await self._writer.write(made, first)

    async def _missing(self, thread: Thread, ns: str, id: str, task: str, writes: Sequence[Write]) -> dict[str, bytes]:
        """Returns the rows of those writes that are not stored yet. A write that the task has already, perhaps from another process, stays."""
        there = {w.index async for _, data in self._rows(thread.task(ns, id, task)) for w in r.writes_of(data)}
        return {thread.write(ns, id, task, w.index): r.encode(w) for w in writes if w.index not in there}

    # -- reading -------------------------------------------------------------------------------------

    async def _rows(self, prefix: str, after: str | None = None) -> AsyncIterator[tuple[str, bytes]]:
        while True:
            page = await self.shelf.scan(prefix, after=after, limit=PAGE)
            for row in page:
                yield row
            if len(page) < PAGE:
                return
            after = page[-1][0]

    async def _row(self, config: RunnableConfig) -> tuple[Thread, r.Checkpoint] | None:
        thread, ns, id = _place(config)
        if id is not None:
            data = await self.shelf.get(thread.checkpoint(ns, id))
            return None if data is None else (thread, r.checkpoint_of(data))
        after: str | None = None
        while found := await self.shelf.scan(thread.checkpoints(ns), after=after, limit=1):
            if r.of_checkpoint(found[0][0]):
                return thread, r.checkpoint_of(found[0][1])
            after = r.behind_writes(found[0][0])  # these are writes of a checkpoint that was never put
        return None

    async def _near(self, thread: Thread, row: r.Checkpoint, channel: str, version: str) -> Any:
        """Returns the value that a checkpoint's channel has had since an earlier checkpoint; if that one was deleted, the value is kept apart."""
        slot = (thread.prefix, row.ns, channel)
        if (read := self._read.get(slot)) is not None and read[0] == version:
            return self._value_of(read[1])
        data = await self.shelf.get(thread.checkpoint(row.ns, row.elsewhere[channel]))
        found = None if data is None else r.checkpoint_of(data).inside.get(channel)
        if found is None:
            return await self._load(thread, row.ns, channel, version)
        self._meet(thread)
        self._read.keep(slot, (version, found), len(found[1]))
        return self._value_of(found)

    async def _load(self, thread: Thread, ns: str, channel: str, version: str) -> Any:
        slot = (thread.prefix, ns, channel)
        written = self._kept.get(slot)
        if written is not None and written.version == version:
            return self._value_of((written.kind, written.body))
        if (read := self._read.get(slot)) is not None and read[0] == version:
            return self._value_of(read[1])
        chain: dict[str, Value] = {}
        at: str | None = version
        while at is not None:
            data = await self.shelf.get(thread.value(ns, channel, at))
            if data is None:
                raise _refuse_lost(thread, channel, version)
            chain[at] = row = r.value_of(data)
            at = row.base
            if at is not None and at in chain:
                raise StoreCorrupt(f"the value of {channel!r} refers to itself in the thread {thread.id!r}", code="row_unreadable", hint="restore a backup")
        body = r.join(version, chain)
        if body is None:
            raise _refuse_lost(thread, channel, version)
        found = (chain[version].kind, body)
        self._meet(thread)
        self._read.keep(slot, (version, found), len(body))
        return self._value_of(found)

    async def _writes(self, thread: Thread, row: r.Checkpoint) -> list[PendingWrite]:
        found: dict[tuple[str, int], Write] = {}
        for prefix in (thread.writes(row.ns, row.id),) if row.behind else (thread.writes_apart(row.ns, row.id), thread.writes(row.ns, row.id)):
            async for _, data in self._rows(prefix):
                for write in r.writes_of(data):
                    found.setdefault((write.task, write.index), write)
        return [(w.task, w.channel, self._value_of((w.kind, w.body))) for w in sorted(found.values(), key=lambda w: w.order)]

    async def _tuple(self, thread: Thread, row: r.Checkpoint, wanted: set[str] | None = None) -> CheckpointTuple:
        body = await self._body(thread, row)
        values, versions = body["channel_values"], body["channel_versions"]
        for channel, kept in row.inside.items():
            if wanted is None or channel in wanted:
                values[channel] = self._value_of(kept)
        for channel in row.elsewhere:
            if wanted is None or channel in wanted:
                values[channel] = await self._near(thread, row, channel, str(versions[channel]))
        for channel in row.apart:
            if wanted is None or channel in wanted:
                values[channel] = await self._load(thread, row.ns, channel, str(versions[channel]))
        parent = None if row.parent is None else _config(thread, row.ns, row.parent)
        return CheckpointTuple(_config(thread, row.ns, row.id), body, self._meta(row), parent, await self._writes(thread, row))

    async def _body(self, thread: Thread, row: r.Checkpoint) -> Checkpoint:
        """Returns a checkpoint with its maps of versions, and with those of its values that are in its own body."""
        body = self._value_of((row.kind, row.body))
        maps = {} if row.maps is None else await self._mapping(thread, row, row.maps)
        for each in (body, maps):
            if not isinstance(each, dict) or not all(isinstance(each.get(name, {}), dict) for name in MAPS):
                raise _invalid(thread, row)
        if not {"channel_values", "channel_versions"} <= body.keys():
            raise _invalid(thread, row)
        for name in MAPS if maps else ():
            body[name] = {**maps.get(name, {}), **body.get(name, {})}
        return cast(Checkpoint, body)

    async def _mapping(self, thread: Thread, row: r.Checkpoint, id: str) -> Any:
        """Returns maps of versions as they were stored."""
        slot = (thread.prefix, row.ns, MAPS_READ)
        if (read := self._read.get(slot)) is not None and read[0] == id:
            return self._value_of(read[1])
        data = await self.shelf.get(thread.maps(row.ns, id))
        if data is None:
            raise StoreCorrupt(f"the versions of the checkpoint {row.id!r} of the thread {thread.id!r} are not in the store", code="value_missing", hint="restore a backup")
        kept = r.value_of(data)
        self._meet(thread)
        self._read.keep(slot, (id, (kept.kind, kept.body)), len(kept.body))
        return self._value_of((kept.kind, kept.body))

    def _value_of(self, kept: tuple[str, bytes]) -> Any:
        try:
            return self.serde.loads_typed(kept)
        except Exception as e:  # a serializer may raise anything over bytes that are not its own
            raise StoreCorrupt(f"a value of a LangGraph thread cannot be read: {e}", code="row_unreadable", hint="delete the thread, or restore a backup") from e

    def _meta(self, row: r.Checkpoint) -> CheckpointMetadata:
        return cast(CheckpointMetadata, self._value_of((row.meta_kind, row.meta)))

    async def _get(self, config: RunnableConfig) -> CheckpointTuple | None:
        await self._writer.settle()
        found = await self._row(config)
        if found is None:
            self._forget(_place(config)[0])
            return None
        loaded = await self._tuple(*found)
        if _place(config)[2] is None:
            self._refresh(found[0], found[1], loaded.checkpoint["channel_versions"])
        return loaded

    async def _list(
        self, config: RunnableConfig | None, filter: dict[str, Any] | None, before: RunnableConfig | None, limit: int | None
    ) -> AsyncGenerator[CheckpointTuple, None]:
        await self._writer.settle()
        given = {} if config is None else config["configurable"]
        thread = Thread.of(given["thread_id"]) if given.get("thread_id") is not None else None
        ns, id = given.get("checkpoint_ns"), given.get("checkpoint_id")
        until = None if before is None else get_checkpoint_id(before)
        told = 0
        async for owner, row in self._newest_first(thread, ns, until):
            if limit is not None and told >= limit:
                return
            if (id and row.id != id) or (until and row.id >= until):
                continue
            if filter:
                meta = cast(dict[str, Any], self._meta(row))
                if any(meta.get(name) != value for name, value in filter.items()):
                    continue
            try:
                loaded = await self._tuple(owner, row)
            except StoreCorrupt:
                if await self.shelf.get(owner.checkpoint(row.ns, row.id)) is not None:
                    raise
                continue  # it was deleted since its row was read
            told += 1
            yield loaded

    async def _newest_first(self, thread: Thread | None, ns: str | None, until: str | None) -> AsyncIterator[tuple[Thread, r.Checkpoint]]:
        if thread is not None and ns is not None:
            start = thread.checkpoint(ns, until) if until else None
            async for key, data in self._rows(thread.checkpoints(ns), start):
                if r.of_checkpoint(key):
                    yield thread, r.checkpoint_of(data)
            return
        owners = [thread] if thread is not None else [Thread.of(t) for t in await self._threads()]
        found = [(owner, row) for owner in owners for row in await self._checkpoints(owner)]
        for each in sorted(found, key=lambda f: f[1].id, reverse=True):
            yield each

    async def _checkpoints(self, thread: Thread) -> list[r.Checkpoint]:
        return [r.checkpoint_of(data) async for key, data in self._rows(thread.checkpoints()) if r.of_checkpoint(key)]

    async def _threads(self) -> list[str]:
        """Returns the ids of all threads, with one scan for each."""
        await self._writer.settle()
        found: list[str] = []
        after = "!~"  # after the lists of runs
        while page := await self.shelf.scan(after=after, limit=1):
            thread = r.thread_of(page[0][0])
            found.append(thread.id)
            after = thread.prefix + "~~"
        return found

    async def _history(self, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
        """Walks the ancestors of a checkpoint, and loads a channel's value only from the first of them that has one."""
        await self._writer.settle()
        found = await self._row(config)
        writes: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        left = set(channels)
        while found is not None and found[1].parent is not None and left:
            thread, row = found
            found = await self._row(_config(thread, row.ns, row.parent or ""))
            if found is None:
                break
            seen = await self._tuple(*found, wanted=left)
            for write in reversed(seen.pending_writes or ()):
                if write[1] in left:
                    writes[write[1]].append(write)
            for channel in left & seen.checkpoint["channel_values"].keys():
                seeds[channel] = seen.checkpoint["channel_values"][channel]
                left.discard(channel)
        out: dict[str, DeltaChannelHistory] = {}
        for channel in channels:
            out[channel] = {"writes": writes[channel][::-1]}
            if channel in seeds:
                out[channel]["seed"] = seeds[channel]
        return out

    # -- keeping -------------------------------------------------------------------------------------

    def _refresh(self, thread: Thread, row: r.Checkpoint, versions: ChannelVersions) -> None:
        """Drops cached values and maps that are not those of the newest checkpoint, because another process may have deleted or pruned them."""
        if thread.prefix not in self._met:
            return
        place = (thread.prefix, row.ns)
        if place in self._maps and self._maps[place].id != row.maps:
            del self._maps[place]
        for channel, version in versions.items():
            slot = (*place, channel)
            if slot in self._inside and self._inside[slot][0] != str(version):
                del self._inside[slot]
            if (read := self._read.get(slot)) is not None and read[0] != str(version):
                self._read.drop(slot)
            if slot in self._kept and self._kept[slot].version != str(version):
                del self._kept[slot]

    def _meet(self, thread: Thread) -> None:
        """Notes that something of this thread will be cached."""
        if len(self._met) >= self._most_met:
            known = {r.thread_of(key).prefix for key in self._known}
            self._met.intersection_update(known.union(slot[0] for slots in (self._kept, self._read, self._inside, self._maps) for slot in slots))
            self._most_met = max(MET, 2 * len(self._met))
        self._met.add(thread.prefix)

    def _forget(self, thread: Thread) -> None:
        if thread.prefix not in self._met:
            return  # to search all caches takes longer than the read that found no such thread
        self._met.discard(thread.prefix)
        remembers: tuple[OrderedDict[Any, Any], ...] = (self._kept, self._inside, self._maps)
        for remembered in remembers:
            for place in [p for p in remembered if p[0] == thread.prefix]:
                del remembered[place]
        self._read.drop_where(lambda slot: slot[0] == thread.prefix)
        for key in [k for k in self._known if k.startswith(thread.prefix)]:
            del self._known[key]

    async def _delete(self, thread: Thread) -> None:
        await self._writer.settle()
        for row in await self._checkpoints(thread):
            if row.run is not None:
                await self.shelf.delete(r.of_run(row.run) + thread.checkpoint(row.ns, row.id))
        await self.shelf.delete(thread.prefix)
        self._forget(thread)

    async def _copy(self, source: Thread, target: Thread) -> None:
        await self._writer.settle()
        if await self.shelf.scan(target.prefix, limit=1):
            raise UsageError(f"the thread {target.id!r} already exists", hint="copy into a thread that has no checkpoints")
        made: dict[str, bytes] = {}
        async for key, data in self._rows(source.prefix):
            moved = target.prefix + key.removeprefix(source.prefix)
            made[moved] = data
            if key.startswith(source.checkpoints()) and r.of_checkpoint(key) and (run := r.checkpoint_of(data).run) is not None:
                made[r.of_run(run) + moved] = b""
        if made:
            await self.shelf.put_many(made)

    async def _drop(self, thread: Thread, gone: Sequence[r.Checkpoint]) -> None:
        """Deletes checkpoints of a thread, and what no other checkpoint names. Values that came with them and that other checkpoints still have
        are put apart first."""
        if not gone:
            return
        going = {(row.ns, row.id): row for row in gone}
        used: set[str] = set()
        saved: dict[str, bytes] = {}
        for row in [row for row in await self._checkpoints(thread) if (row.ns, row.id) not in going]:
            versions = (await self._body(thread, row))["channel_versions"]
            used |= {thread.value(row.ns, channel, str(versions[channel])) for channel in (*row.apart, *row.elsewhere)}
            used |= set() if row.maps is None else {thread.maps(row.ns, row.maps)}
            for channel, id in row.elsewhere.items():
                if (leaving := going.get((row.ns, id))) is not None and channel in leaving.inside:
                    saved[thread.value(row.ns, channel, str(versions[channel]))] = r.encode(Value(*leaving.inside[channel]))
        if saved:
            await self.shelf.put_many(saved)
        for row in gone:
            key = thread.checkpoint(row.ns, row.id)
            await self.shelf.delete(key)
            await self.shelf.delete(thread.writes_apart(row.ns, row.id))
            if row.run is not None:
                await self.shelf.delete(r.of_run(row.run) + key)
        self._forget(thread)
        values = {key: r.value_of(data) async for key, data in self._rows(thread.values())}
        for key in list(used):
            while (row_at := values.get(key)) is not None and row_at.base is not None:
                key = f"{key.rpartition('/')[0]}/{row_at.base}"
                used.add(key)
        maps = {key async for key, _ in self._rows(thread.maps())}
        for key in (values.keys() | maps) - used:
            await self.shelf.delete(key)

    async def _delete_runs(self, run_ids: Sequence[str]) -> None:
        await self._writer.settle()
        for run in run_ids:
            listed = [key.removeprefix(r.of_run(str(run))) async for key, _ in self._rows(r.of_run(str(run)))]
            by_thread: dict[Thread, list[r.Checkpoint]] = {}
            for key in listed:
                if (data := await self.shelf.get(key)) is not None:
                    by_thread.setdefault(r.thread_of(key), []).append(r.checkpoint_of(data))
            for thread, gone in by_thread.items():
                await self._drop(thread, gone)
            await self.shelf.delete(r.of_run(str(run)))

    async def _prune(self, thread_ids: Sequence[str] | None, strategy: str, older_than: dt.timedelta | None) -> None:
        one_of(strategy, "strategy", ("keep_latest", "delete"))
        if thread_ids is None and older_than is None:
            raise InvalidInput("prune needs threads or an age", field="thread_ids", hint="prune(older_than=timedelta(days=30))")
        before = None if older_than is None else dt.datetime.now(dt.UTC) - older_than
        await self._writer.settle()
        for thread in [Thread.of(t) for t in (await self._threads() if thread_ids is None else thread_ids)]:
            every = await self._checkpoints(thread)
            if before is not None and any(dt.datetime.fromisoformat(row.at) >= before for row in every):
                continue
            if strategy == "delete":
                await self._delete(thread)
                continue
            kept = {(row.ns, row.id) for row in every if row in r.latest(every).values()}
            kept |= {place for row in r.latest(every).values() for place in self._find_needed(row, every)}
            await self._drop(thread, [row for row in every if (row.ns, row.id) not in kept])

    def _find_needed(self, row: r.Checkpoint, every: Sequence[r.Checkpoint]) -> list[tuple[str, str]]:
        """Returns the ancestors from which a checkpoint's delta channels are rebuilt: back to one that holds a value for each."""
        left = set(cast(dict[str, Any], self._meta(row)).get("counters_since_delta_snapshot") or ())
        by_place = {(each.ns, each.id): each for each in every}
        needed: list[tuple[str, str]] = []
        at: r.Checkpoint | None = row
        while left and at is not None and at.parent is not None:
            at = by_place.get((at.ns, at.parent))
            if at is not None:
                needed.append((at.ns, at.id))
                left -= {*at.apart, *at.inside, *at.elsewhere, *self._value_of((at.kind, at.body))["channel_values"]}
        return needed

    # -- the checkpointer's verbs, for coroutines ----------------------------------------------------

    async def aput(self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions) -> RunnableConfig:
        """Stores a checkpoint; it is on disk when this returns."""
        return await self._join(self._put(config, checkpoint, metadata, new_versions))

    async def aput_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        """Stores what a task wrote; the first writes of a task stand."""
        await self._join(self._put_writes(config, writes, task_id, task_path))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Returns a checkpoint, or the newest of its thread."""
        return await self._join(self._get(config))

    async def alist(
        self, config: RunnableConfig | None, *, filter: dict[str, Any] | None = None, before: RunnableConfig | None = None, limit: int | None = None
    ) -> AsyncIterator[CheckpointTuple]:
        """Yields checkpoints, newest first. They are read a few at a time, so that a caller may stop early."""
        walk = self._list(config, filter, before, limit)
        try:
            while some := await self._join(_take(walk)):
                for found in some:
                    yield found
        finally:
            await self._join(walk.aclose())

    async def adelete_thread(self, thread_id: str) -> None:
        """Deletes everything of a thread."""
        await self._join(self._delete(Thread.of(thread_id)))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Deletes the checkpoints that these runs made, with their writes."""
        await self._join(self._delete_runs(run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies everything of a thread into a new one, in one commit.

        Raises:
            UsageError: the target has checkpoints already.
        """
        await self._join(self._copy(Thread.of(source_thread_id), Thread.of(target_thread_id)))

    async def aprune(self, thread_ids: Sequence[str] | None = None, *, strategy: str = "keep_latest", older_than: dt.timedelta | None = None) -> None:
        """Keeps the newest checkpoint of each namespace of these threads, or with ``delete`` nothing.

        Args:
            thread_ids: which threads; with ``older_than`` None means all.
            strategy: ``keep_latest`` or ``delete``. What a delta channel of a kept checkpoint is rebuilt from is kept too.
            older_than: only threads whose newest checkpoint is older than that.
        """
        await self._join(self._prune(thread_ids, strategy, older_than))

    async def athreads(self) -> list[str]:
        """Returns the ids of all threads."""
        return await self._join(self._threads())

    async def aget_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
        """Returns what channels received since the value with which they were last stored."""
        return await self._join(self._history(config, channels))

    # -- the same, synchronous -----------------------------------------------------------------------

    def put(self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions) -> RunnableConfig:
        """Like ``aput``."""
        return self._call(self._put(config, checkpoint, metadata, new_versions))

    def put_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        """Like ``aput_writes``."""
        self._call(self._put_writes(config, writes, task_id, task_path))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Like ``aget_tuple``."""
        return self._call(self._get(config))

    def list(
        self, config: RunnableConfig | None, *, filter: dict[str, Any] | None = None, before: RunnableConfig | None = None, limit: int | None = None
    ) -> Iterator[CheckpointTuple]:
        """Like ``alist``."""
        walk = self._list(config, filter, before, limit)
        try:
            while some := self._call(_take(walk)):
                yield from some
        finally:
            self._call(walk.aclose())

    def delete_thread(self, thread_id: str) -> None:
        """Like ``adelete_thread``."""
        self._call(self._delete(Thread.of(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Like ``adelete_for_runs``."""
        self._call(self._delete_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Like ``acopy_thread``."""
        self._call(self._copy(Thread.of(source_thread_id), Thread.of(target_thread_id)))

    def prune(self, thread_ids: Sequence[str] | None = None, *, strategy: str = "keep_latest", older_than: dt.timedelta | None = None) -> None:
        """Like ``aprune``."""
        self._call(self._prune(thread_ids, strategy, older_than))

    def threads(self) -> Sequence[str]:
        """Like ``athreads``."""
        return self._call(self._threads())

    def get_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
        """Like ``aget_delta_channel_history``."""
        return self._call(self._history(config, channels))


K = TypeVar("K")


def _remember(cache: OrderedDict[K, Any], key: K, value: Any) -> None:
    cache[key] = value
    cache.move_to_end(key)
    if len(cache) > REMEMBERED:
        cache.popitem(last=False)


async def _take(walk: AsyncIterator[CheckpointTuple]) -> list[CheckpointTuple]:
    """Returns the next few checkpoints of a list; none at its end."""
    some: list[CheckpointTuple] = []
    async for found in walk:
        some.append(found)
        if len(some) == LISTED:
            break
    return some


def _short(value: Any) -> bool:
    """Whether a value certainly takes at most ``SMALL`` bytes. Of other values this is known only when they are encoded."""
    kind = type(value)
    return value is None or kind is bool or kind is float or (kind is int and -(2**63) <= value < 2**63) or (kind is str and len(value) * 4 < SMALL)


def _place(config: RunnableConfig) -> tuple[Thread, str, str | None]:
    """Returns the thread, the namespace and the checkpoint that a config names."""
    given = config["configurable"]
    return Thread.of(given["thread_id"]), given.get("checkpoint_ns") or "", get_checkpoint_id(config) or None


def _config(thread: Thread, ns: str, id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread.id, "checkpoint_ns": ns, "checkpoint_id": id}}


def _invalid(thread: Thread, row: r.Checkpoint) -> StoreCorrupt:
    about = f"the checkpoint {row.id!r} of the thread {thread.id!r} is not a valid checkpoint"
    return StoreCorrupt(about, code="row_unreadable", hint="delete the thread, or restore a backup")


def _refuse_lost(thread: Thread, channel: str, version: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"the value of {channel!r} at version {version} of the thread {thread.id!r} is not in the store", code="value_missing", hint="restore a backup"
    )


__all__ = ["Durability", "HoldfastSaver"]

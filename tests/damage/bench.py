"""The damage bench: a populated store, one place of it damaged, what is told of it, and what can be done about it (X-21).

    python -m tests.damage.bench --form sqlite --form workspace --form export --places 5000 --seed 7     # some 25 minutes on two cores
    python -m tests.damage.bench --form postgres --places 5000 --seed 7 --budget 10     # as many as there is time for: one at a time

Each place is a table, an index or a file and a kind of damage: a flipped bit, zeros, a cut, a swap, an older copy. After it the store is
opened, all that can be read is read, and the checker looks at it. Told is: *named* (a typed error on read, or a problem of the checker),
*unreadable* (nothing that can be read differs), *silent* (something differs and nobody says so), *untyped*, *endless*.

For every problem that is named, in each kind of place, the ways out are tried in their order: ``repair-state``, ``doctor --rebuild``,
``doctor --rebuild --acknowledge``. What none of them mends has to be explained: each problem says what to do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import apsw
import psycopg
from msgspec.structs import replace

from holdfast import Context, Graph, Runtime, State, append, thread
from holdfast.cli.mending import mend
from holdfast.core import canon
from holdfast.core.chunks import Batch, Emitted, Place, Turn
from holdfast.core.effects import EffectStatus
from holdfast.core.errors import HoldfastError
from holdfast.core.intents import Intent
from holdfast.core.lease import Lease
from holdfast.core.limits import Change, Limit, Rule
from holdfast.core.offers import Offer, Shape
from holdfast.core.progress import Progress
from holdfast.engine.keep.check import Checker
from holdfast.engine.keep.transfer import take_in
from holdfast.ports import Loaded, RunFilter, Store, Worker
from holdfast.stores import MemoryStore, PostgresStore, SqliteStore, WorkspaceStore
from holdfast.testing.conformance import TTL, Clock, Script, effect
from holdfast.testing.conformance_blobs import bulk, recording
from holdfast.testing.conformance_people import link, plan
from tests.postgres.server import shared

PATIENCE = 60
MEMORY = "/dev/shm"  # damage is made by hand, so that no place needs a disk that is slow to sync
KINDS = ("flip", "zero", "truncate", "swap", "old")
FORMS = ("sqlite", "workspace", "export", "postgres")
VERDICTS = ("named", "unreadable", "silent", "untyped", "endless")
WAYS = ("repair-state", "doctor --rebuild", "doctor --rebuild --acknowledge", "explained", "NOT EXPLAINED")


class Notes(State):
    text: str = ""
    n: int = 0


def graph() -> Graph[Notes]:
    made = Graph("notes", Notes, version="1")

    @made.node(start=True)
    async def act(state: Notes, ctx: Context) -> dict[str, Any]:
        await ctx.effect(_mail, state.text, key=f"mail-{state.text}")
        await ctx.effect(_mail, state.n)
        ctx.send("mail", {"to": "ada", "text": state.text})
        ctx.record("notes", state.text, {"n": state.n})
        return {"text": state.text * 2}

    @made.node(after="act")
    async def ask(state: Notes, ctx: Context) -> dict[str, Any]:
        await ctx.approve("go on?", show=state.text)
        return {"n": state.n + 1}

    return made


class Said(State):
    said: Annotated[list[str], append, thread]


def talk() -> Graph[Said]:
    """What carries its thread on."""
    made = Graph("talk", Said, version="1")

    @made.node(start=True)
    async def answer(state: Said, ctx: Context) -> dict[str, Any]:
        return {"said": ["well"]}

    return made


async def _mail(what: Any) -> str:
    return f"sent {what}"


# -- a populated store --------------------------------------------------------------------------------


async def populate(store: Any, clock: Clock, half: Callable[[], None]) -> None:
    """Runs in every state with everything beside them; ``half`` is called in the middle, for the older copy."""
    async with Runtime(store, skills=[graph()]) as rt:
        for n in range(4):
            run = await rt.invoke("notes", {"text": f"note{n}", "n": n}, thread_id=f"t{n}", tags=("a",))
            if n % 2:
                await rt.approve(run.run_id, actor="ada")
        await rt.submit("notes", {"text": "later"}, key="k1")
        half()
        waiting = [r for r in await rt.runs() if r.status == "waiting_for_human"]
        await rt.decide(waiting[0].run_id, "approve", actor="ada", resume=False)
        await rt.submit("notes", {"text": "later still"}, key="k2")
    await store.open()
    await store.register("w", 10**6 * TTL)
    await store.offer("w", Offer(("q",), (Shape("notes", "1", "f"),)))
    await store.shelve("cups", {"a/1": b"one", "a/2": b"two"})
    for name in ("s1", "s2", "s3"):
        await store.put_schedule(plan(name, store.now() + 10**12), None)
    for name in ("model", "gpu"):
        await store.put_rule(Rule(name).change(Change(1, "ada", "set", Limit(in_flight=1, per_second=1))), None)
    for run_id in ("p1", "p2"):
        gone = await Script(store, run_id).begin("w")
        await gone.write(recording(gone, bulk(run_id), key=f"default:effect:shared:{run_id}", shared=True))
        await gone.complete()
    clock.forward(1_000_000)
    await store.prune(store.now(), actor="eve")
    script = await (await Script(store, "r1").begin("w")).steps(6, size=24_000)
    await script.write(recording(script, bulk(), key="big"))
    shared = replace(effect("r1", 5, "default:effect:shared:pay"), shared=True, status=EffectStatus.RECORDED, result=canon.encode("paid"))
    await script.complete(effects=(shared,))
    other = await Script(store, "r2").begin("w")
    await other.steps(3)
    for place in ("r1.a", "r2.a"):
        await store.enter("w", place[:2], place, {"model": None, "gpu": None}, resting=True)
    await store.emit([Emitted("r2", other.fence, (Batch(Turn(Place(3, "node", ""), 1, 1, 0, "", ""), 1, 1, (canon.encode("half"),)),))])
    await store.issue_token(link(_Harness(store), "secret", run_id="r2"))
    await store.close()
    async with Runtime(store, skills=[talk()]) as rt:
        for text in ("first", "second"):
            await rt.invoke("talk", {"said": [text * 100]}, thread_id="talk")


class _Harness:
    def __init__(self, store: Any) -> None:
        self.store = store


# -- what can be read ---------------------------------------------------------------------------------


def meant(read: Any) -> Any:
    """What a reading means, whichever way led to it: a run's state, whatever whole checkpoint it was loaded from; and a lease without
    its expiry, which a worker's row holds and each renewal writes anew."""
    match read:
        case Loaded():
            return read.run, meant(read.lease), read.tip.hash, read.inbox, Progress(read.run.run_id, read.whole).walk(read.rows).checkpoint.values
        case Lease():
            return read.owner, read.fence, read.due
        case Intent():
            return replace(read, lease_until=None)  # it moves on by itself
        case Worker():
            return read.owner, read.started_at, read.runs, read.offer
        case list() | tuple():
            return [meant(r) for r in read]
    return read


async def seen(store: Store, told: Callable[[Exception], None]) -> dict[str, Any]:
    """All that a reader can get out of a store; what cannot be read is told."""
    found: dict[str, Any] = {}

    async def look(name: str, reading: Awaitable[Any]) -> Any:
        try:
            found[name] = meant(await reading)
        except Exception as e:
            told(e)
        return found.get(name)

    ids = await look("ids", store.run_ids()) or []  # type: ignore[attr-defined]
    listed = await look("runs", store.runs(RunFilter(limit=1000)))
    found["listed"] = [r.run_id for r, _ in listed or []]
    for run_id in ids:
        for name, verb in (("load", store.load), ("get", store.get), ("rows", store.rows), ("effects", store.effects), ("intents", store.intents), ("ledger", store.ledger)):
            await look(f"{name} {run_id}", verb(run_id))
        await look(f"inbox {run_id}", store.inbox(run_id, taken=True))
        await look(f"claims {run_id}", store.claims_of(run_id))  # type: ignore[attr-defined]
    for key in KEYS:
        await look(f"key {key}", store.effects(key=key))
    await look("claimed", store.find_claim("request", "default\x1fnotes", "k1"))
    await look("schedules", store.schedules())
    await look("tokens", store.token(link(_Harness(store), "secret").hash))  # type: ignore[arg-type]
    await look("blob", store.blob(bulk().digest))
    await look("workers", store.workers())
    await look("shelf", store.shelf_scan("cups"))  # type: ignore[attr-defined]
    await look("row", store.find_shelved("cups", "a/1"))  # type: ignore[attr-defined]
    for run_id in ("p1", "p2"):
        if await look(f"pruned {run_id}", store.find_pruned(run_id)) is not None:  # type: ignore[attr-defined]
            await look(f"blob {run_id}", store.blob(bulk(run_id).digest))
    await look("list_carries", store.list_carries())  # type: ignore[attr-defined]
    await look("limits", store.rules())
    await look("usage", store.usage())
    return found


KEYS = ("default:effect:shared:pay", "default:effect:shared:p1", "default:effect:shared:p2", "default:effect:_mail:mail-note1", "default:effect:_mail:mail-note2")


class Judged:
    """What is told of a store: the verdict, what was said, what was read, and the problems of the checker."""

    def __init__(self, verdict: str, said: str, found: dict[str, Any], codes: set[str], runs: set[str]) -> None:
        self.verdict, self.said, self.found, self.codes, self.runs = verdict, said, found, codes, runs


async def judged(make: Callable[[], Any], truth: Judged | None, into: Callable[[Any], Awaitable[Any]] | None = None) -> Judged:
    """Judges a store. ``into``: what else is done with it, as an import of its runs; what comes of it counts as read."""
    errors: list[Exception] = []
    found: dict[str, Any] = {}
    codes: set[str] = set()
    runs: set[str] = set()
    store = make()
    try:
        await store.open()
        if getattr(store, "suspect", None) is not None:
            codes.add(store.suspect.code)
        found = await seen(store, errors.append)
        problems = [p for p in await Checker(store).all() if p.severity != "info"]
        codes |= {p.code for p in problems}
        runs = {p.run_id for p in problems if p.run_id is not None}
        if into is not None:
            found["into"] = await into(store)
    except Exception as e:
        errors.append(e)
    finally:
        with contextlib.suppress(Exception):
            await store.close()
    if untyped := [e for e in errors if not isinstance(e, HoldfastError)]:
        return Judged("untyped", repr(untyped[0]), found, codes, runs)
    codes |= {e.code for e in errors if isinstance(e, HoldfastError)}
    known = truth.codes if truth is not None else set()
    if named := codes - known:
        return Judged("named", ",".join(sorted(named)), found, named, runs)
    if truth is None or found == truth.found:
        return Judged("unreadable", "", found, codes, runs)
    differs = [k for k in found.keys() | truth.found.keys() if found.get(k) != truth.found.get(k)]
    return Judged("silent", ",".join(sorted(differs)[:3]), found, codes, runs)


# -- what can be done about it ------------------------------------------------------------------------


async def tried(make: Callable[[], Any], judge: Judged, truth: Judged) -> str:
    """Which of the ways out mends it, or that what is left says what to do."""
    left: Any = None
    for way in WAYS[:3]:
        store = make()
        try:
            async with Runtime(store) as rt:
                if way == WAYS[0]:
                    for run_id in sorted(judge.runs):
                        await rt.repair_run_state(run_id, True, actor="eve")
                    left = await rt.check()
                else:
                    _, left, _ = await mend(rt, rebuild=True, acknowledge=way == WAYS[2], actor="eve")
        except HoldfastError as e:
            left = e
        if isinstance(left, HoldfastError) or {p.code for p in left if p.severity == "error"} - truth.codes:
            continue
        after = await judged(make, None)
        if after.verdict in ("named", "unreadable") and not after.codes - truth.codes:
            return way
    told = [left] if isinstance(left, HoldfastError) else [p for p in left if p.severity == "error"]
    return WAYS[3] if all(getattr(p, "hint", "") or getattr(p, "repair_hint", "") for p in told) else WAYS[4]


# -- damage -------------------------------------------------------------------------------------------


def flipped(data: bytes, rng: random.Random, kind: str) -> bytes:
    """A value with one bit turned, zeros in it, or its end gone."""
    if not data:
        return b"\x01"
    out = bytearray(data)
    at = rng.randrange(len(out))
    if kind == "flip":
        out[at] ^= 1 << rng.randrange(8)
    elif kind == "zero":
        end = min(len(out), at + 8)
        out[at:end] = bytes(end - at)
    else:
        out = out[:at]
    return bytes(out)


def in_table(path: Path, old: Path, table: str, kind: str, rng: random.Random) -> str:
    """Damages one row of a table, past all constraints that can be got past."""
    with contextlib.closing(apsw.Connection(str(path))) as db:
        columns = [(n, t) for _, n, t, *_ in db.execute(f"PRAGMA table_info({table})")]
        keys = [n for _, n, _, _, _, pk in db.execute(f"PRAGMA table_info({table})") if pk]
        name, type_ = rng.choice([c for c in columns if c[0] not in keys] or columns)
        there = db.execute(f"SELECT {', '.join(keys)} FROM {table}").fetchall()
        if not there:
            return "empty"
        key = rng.choice(there)
        where = " AND ".join(f"{k} IS ?" for k in keys)
        try:
            if kind == "old":
                with contextlib.closing(apsw.Connection(str(old))) as before:
                    was = before.execute(f"SELECT {', '.join(n for n, _ in columns)} FROM {table} WHERE {where}", key).fetchall()
                db.execute(f"DELETE FROM {table} WHERE {where}", key)
                for row in was:
                    db.execute(f"INSERT INTO {table} ({', '.join(n for n, _ in columns)}) VALUES ({', '.join('?' * len(row))})", row)
            elif kind == "truncate" and rng.random() < 0.5:
                db.execute(f"DELETE FROM {table} WHERE {where}", key)
            elif kind == "swap":
                mate = rng.choice(there)
                mine, theirs = [db.execute(f"SELECT {name} FROM {table} WHERE {where}", k).get for k in (key, mate)]
                db.execute("BEGIN")
                db.execute(f"UPDATE {table} SET {name} = ? WHERE {where}", (theirs, *key))
                db.execute(f"UPDATE {table} SET {name} = ? WHERE {where}", (mine, *mate))
                db.execute("COMMIT")
            else:
                value = db.execute(f"SELECT CAST({name} AS BLOB), typeof({name}) FROM {table} WHERE {where}", key).fetchone()
                if value[1] == "integer":
                    number = db.execute(f"SELECT {name} FROM {table} WHERE {where}", key).get
                    new: Any = {"flip": number ^ (1 << rng.randrange(31)), "zero": 0}.get(kind, number >> 8)
                    db.execute(f"UPDATE {table} SET {name} = ? WHERE {where}", (new, *key))
                else:
                    cast = {"TEXT": "CAST(? AS TEXT)", "INTEGER": "1"}.get(type_, "?")
                    values = () if cast == "1" else (flipped(value[0] or b"", rng, kind),)
                    db.execute(f"UPDATE {table} SET {name} = {cast} WHERE {where}", (*values, *key))
        except apsw.Error as e:
            if db.in_transaction:
                db.execute("ROLLBACK")
            return f"refused: {e}"
        return name


def in_file(path: Path, old: Path, kind: str, rng: random.Random, begin: int = 0, end: int | None = None) -> str:
    """Damages the bytes of a file, between two places of it."""
    data = bytearray(path.read_bytes())
    end = len(data) if end is None else min(end, len(data))
    if end <= begin:
        return "empty"
    at = rng.randrange(begin, end)
    if kind == "flip":
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "zero":
        data[at : min(end, at + 64)] = bytes(min(end, at + 64) - at)
    elif kind == "truncate":
        del data[at:]
    elif kind == "swap":
        size = min(512, (end - begin) // 2)
        a = rng.randrange(begin, end - 2 * size + 1)
        b = rng.randrange(a + size, end - size + 1)
        data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]
    else:
        if not old.exists():
            path.unlink()
            return "removed"
        shutil.copy(old, path)
        return "old"
    path.write_bytes(bytes(data))
    return str(at)


# -- the places of each form --------------------------------------------------------------------------


class InFolder:
    """A populated store in a folder: an SQLite file, a workspace, or what a store's runs were exported to."""

    def __init__(self, folder: Path, form: str) -> None:
        self.form = form
        self.folder, self.whole, self.old, self.here = folder, folder / "whole", folder / "old", folder / "here"
        self.clock = Clock()
        self.spans: dict[str, tuple[int, int]] = {}
        for f in (self.whole, self.old):
            f.mkdir(parents=True)

    def make(self, folder: Path) -> Any:
        return SqliteStore(folder / "s.db", now=self.clock) if self.form == "sqlite" else WorkspaceStore(folder / "ws", now=self.clock)

    def damaged(self) -> Any:
        return self.make(self.here)

    def sound(self) -> Any:
        return self.make(self.whole)

    async def into(self, store: Any) -> Any:
        """All runs taken into another store, and what is there then."""
        target = MemoryStore(now=self.clock)
        for run_id in await store.run_ids():
            await take_in(store, target, run_id)
        out = []
        for run_id in await target.run_ids():
            loaded = await target.load(run_id)
            assert loaded is not None, "it was imported"
            run, _, _, inbox, values = meant(loaded)
            out.append((run, inbox, values, await target.effects(run_id), await target.intents(run_id), await target.ledger(run_id)))
        return out

    def build(self) -> None:
        whole, old = self.whole, self.old
        if self.form == "workspace":
            asyncio.run(populate(self.make(whole), self.clock, lambda: shutil.copytree(whole / "ws", old / "ws")))
            return

        def half() -> None:
            with contextlib.closing(apsw.Connection(str(whole / "s.db"))) as db:
                db.execute("VACUUM INTO ?", (str(old / "s.db"),))
            shutil.copy(whole / "s.db-anchor", old / "s.db-anchor")

        asyncio.run(populate(SqliteStore(whole / "s.db", now=self.clock), self.clock, half))
        for f in (old, whole):
            if self.form == "export":
                if f is whole:  # the same folder a while later: exported into again
                    shutil.copytree(old / "ws", whole / "ws")
                asyncio.run(self._export(f))
                (f / "s.db").unlink()
                (f / "s.db-anchor").unlink()
            shutil.rmtree(f / "s.db-live", ignore_errors=True)
        if self.form == "sqlite":
            self._look_at_pages()

    async def _export(self, folder: Path) -> None:
        async with Runtime(SqliteStore(folder / "s.db", now=self.clock)) as rt:
            for run in await rt.runs():
                await rt.export(run.run_id, folder / "ws")

    def _look_at_pages(self) -> None:
        with contextlib.closing(apsw.Connection(str(self.whole / "s.db"))) as db:
            tables = [f"table {n}" for (n,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name")]
            roots = db.execute("SELECT 'index ' || name, rootpage FROM sqlite_schema WHERE type = 'index' AND rootpage > 0 ORDER BY name").fetchall()
            size = int(db.pragma("page_size"))
            self._filled = [t for t in tables if db.execute(f"SELECT EXISTS (SELECT 1 FROM {t[6:]})").get]
        data = (self.whole / "s.db").read_bytes()
        spans = {name: _used(data, (page - 1) * size, size) for name, page in roots}
        self.spans = {name: span for name, span in spans.items() if span[0] < span[1]}

    def places(self) -> list[str]:
        """Tables, indexes and files, so many of each that each of these has the same chance."""
        if self.form != "sqlite":
            return sorted(str(p.relative_to(self.whole)) for p in self.whole.rglob("*") if p.is_file())
        most = max(len(self._filled), len(self.spans))
        files = ["file s.db", "file s.db-anchor"]
        return [kinds[i % len(kinds)] for kinds in (self._filled, sorted(self.spans), files) for i in range(most)]

    def tables(self) -> dict[str, bool]:
        """All tables, and whether anything is in them."""
        with contextlib.closing(apsw.Connection(str(self.whole / "s.db"))) as db:
            names = [str(n) for (n,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
            return {n: bool(db.execute(f"SELECT EXISTS (SELECT 1 FROM {n})").get) for n in names}

    def emptied(self, table: str) -> None:
        """A copy in which a table has lost all its rows."""
        self._copy()
        with contextlib.closing(apsw.Connection(str(self.here / "s.db"))) as db:
            db.execute(f"DELETE FROM {table}")

    def removed(self, name: str) -> None:
        """A copy without a file."""
        self._copy()
        (self.here / name).unlink()

    def _copy(self) -> None:
        shutil.rmtree(self.here, ignore_errors=True)
        shutil.copytree(self.whole, self.here)

    def damage(self, place: str, kind: str, rng: random.Random) -> str | None:
        """Where it was damaged; None if nothing changed by it."""
        self._copy()
        path, old = self.here / "s.db", self.old / "s.db"
        what, _, name = place.partition(" ")
        if what == "table":
            before = _dump(path, name)
            where = in_table(path, old, name, kind, rng)
            return where if _dump(path, name) != before else None
        if what == "index":
            where, name = in_file(path, old, "flip" if kind in ("truncate", "old") else kind, rng, *self.spans[place]), "s.db"
        else:
            name = name or place
            where = in_file(self.here / name, self.old / name, kind, rng)
        return None if (self.here / name).exists() and (self.here / name).read_bytes() == (self.whole / name).read_bytes() else where

    def close(self) -> None:
        pass


def _dump(path: Path, table: str) -> Any:
    with contextlib.closing(apsw.Connection(str(path))) as db:
        names = [n for _, n, *_ in db.execute(f"PRAGMA table_info({table})")]
        try:
            return db.execute(f"SELECT {', '.join(f'typeof({n}), CAST({n} AS BLOB)' for n in names)} FROM {table}").fetchall()
        except apsw.Error as e:
            return str(e)


class InPostgres:
    """A populated store in a database: rows altered by hand, and put back as they were."""

    def __init__(self, folder: Path, form: str) -> None:
        self.clock = Clock()
        self.into = None
        self.url, self._server = shared().fresh("damage"), shared()
        self._db = self._server.admin("damage")
        self._touched: set[str] = set()

    def damaged(self) -> Any:
        return PostgresStore(self.url, now=self.clock, patience=5)

    sound = damaged

    def build(self) -> None:
        asyncio.run(populate(self.damaged(), self.clock, lambda: self._save("was")))
        self._save("saved")
        self._db.execute("SET search_path TO holdfast")
        asked = "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
        self._columns = {t: dict(self._db.execute(asked, (f"holdfast.{t}",)).fetchall()) for t in self._tables}
        keys = "SELECT attname FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey) WHERE indrelid = %s::regclass AND indisprimary"
        self._keys = {t: [str(k) for (k,) in self._db.execute(keys, (f"holdfast.{t}",))] for t in self._tables}

    def _save(self, schema: str) -> None:
        self._tables = [str(t) for (t,) in self._db.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast' ORDER BY tablename")]
        self._db.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}".encode())
        for table in self._tables:
            self._db.execute(f"CREATE TABLE {schema}.{table} AS SELECT * FROM holdfast.{table}".encode())

    def places(self) -> list[str]:
        return [f"table {t}" for t, filled in self.tables().items() if filled]

    def tables(self) -> dict[str, bool]:
        """All tables, and whether anything is in them."""
        return {t: self._db.execute(f"SELECT EXISTS (SELECT 1 FROM {t})".encode()).fetchone() == (True,) for t in self._tables}

    def emptied(self, table: str) -> None:
        """A table loses all its rows; the others are as they were."""
        self._restored(table)
        self._db.execute(f"DELETE FROM {table}".encode())

    def _restored(self, table: str) -> None:
        for other in sorted(self._touched):
            self._db.execute(f"DELETE FROM {other}; INSERT INTO {other} SELECT * FROM saved.{other}".encode())
        self._touched = {table, "meta", "run", "vouch"}  # opening may move the incarnation

    def damage(self, place: str, kind: str, rng: random.Random) -> str | None:
        table = place[6:]
        self._restored(table)
        before = self._db.execute(f"SELECT * FROM {table} ORDER BY ctid".encode()).fetchall()
        try:
            where = self._damaged(table, kind, rng, [str(c) for (c,) in self._db.execute(f"SELECT ctid FROM {table} ORDER BY ctid".encode())])
        except psycopg.Error as e:
            return None if isinstance(e, psycopg.IntegrityError | psycopg.DataError | psycopg.ProgrammingError) else f"refused: {e}"
        after = self._db.execute(f"SELECT * FROM {table} ORDER BY ctid".encode()).fetchall()
        return where if sorted(map(repr, before)) != sorted(map(repr, after)) else None

    def _damaged(self, table: str, kind: str, rng: random.Random, there: list[str]) -> str:
        columns, keys = self._columns[table], self._keys[table]
        name = rng.choice([c for c in columns if c not in keys] or list(columns))
        at, mate = rng.choice(there), rng.choice(there)
        if kind == "truncate" and rng.random() < 0.5:
            self._run(f"DELETE FROM {table} WHERE ctid = '{at}'")
        elif kind == "swap":
            values = f"SELECT ctid AS at, {name} AS v FROM {table}"
            swapped = f"CASE {table}.ctid WHEN '{at}'::tid THEN '{mate}'::tid ELSE '{at}'::tid END"
            self._run(f"UPDATE {table} SET {name} = s.v FROM ({values}) s WHERE {table}.ctid IN ('{at}', '{mate}') AND s.at = {swapped}")
        elif kind == "old":
            same = " AND ".join(f"w.{k} IS NOT DISTINCT FROM {table}.{k}" for k in keys)
            others = ", ".join(f"{c} = w.{c}" for c in columns if c not in keys)
            found = self._run(f"SELECT 1 FROM {table} JOIN was.{table} w ON {same} WHERE {table}.ctid = '{at}'").fetchone()
            if found is None or not others:
                self._run(f"DELETE FROM {table} WHERE ctid = '{at}'")
            else:
                self._run(f"UPDATE {table} SET {others} FROM was.{table} w WHERE {same} AND {table}.ctid = '{at}'")
        else:
            (value,) = self._run(f"SELECT {name} FROM {table} WHERE ctid = '{at}'").fetchone() or (None,)
            self._run(f"UPDATE {table} SET {name} = %s WHERE ctid = '{at}'", (_other(value, columns[name], kind, rng),))
        return name

    def mended(self) -> None:
        """What was mended has written to any table."""
        self._touched = set(self._tables)

    def _run(self, statement: str, values: tuple[Any, ...] | None = None) -> Any:
        return self._db.execute(statement.encode(), values)

    def close(self) -> None:
        self._db.close()


def _other(value: Any, type_: str, kind: str, rng: random.Random) -> Any:
    """A value with a bit turned, zeros in it, or its end gone."""
    match value:
        case bool():
            return not value
        case int():
            return {"flip": value ^ (1 << rng.randrange(15 if type_ == "smallint" else 31)), "zero": 0}.get(kind, value >> 8)
        case bytes():
            return flipped(value, rng, kind)
        case None:
            return 1 if type_ in ("bigint", "integer", "smallint") else b"\x01" if type_ == "bytea" else "\x01"
        case list() | dict():
            return "[7]"
    return flipped(str(value).encode(), rng, kind).replace(b"\0", b"0").decode("utf-8", "replace")


# -- the bench ----------------------------------------------------------------------------------------


class Bench:
    """A populated store, places in it, and what is told of it once one of them is damaged."""

    def __init__(self, folder: Path, form: str) -> None:
        self.at: InFolder | InPostgres = InPostgres(folder, form) if form == "postgres" else InFolder(folder, form)
        self.form = form
        self._into = self.at.into if form == "export" else None
        self._tried: set[tuple[str, str]] = set()

    def build(self) -> None:
        self.at.build()
        self._truth = asyncio.run(judged(self.at.sound, None, self._into))
        if self._truth.verdict not in ("named", "unreadable"):
            raise AssertionError(f"the undamaged store is {self._truth.verdict}: {self._truth.said}")

    def judge(self) -> Judged:
        with alarm(PATIENCE):
            try:
                return asyncio.run(judged(self.at.damaged, self._truth, self._into))
            except Endless:
                return Judged("endless", f"more than {PATIENCE} s", {}, set(), set())

    def mend(self, place: str, judge: Judged) -> str | None:
        """Which way out mends what was named, or explains it; None if the same was tried in such a place before."""
        if (place, judge.said) in self._tried or self._into is not None:
            return None
        self._tried.add((place, judge.said))
        if isinstance(self.at, InPostgres):
            self.at.mended()
        with alarm(PATIENCE):
            try:
                return asyncio.run(tried(self.at.damaged, judge, self._truth))
            except Endless:
                return "NOT EXPLAINED"


def _used(data: bytes, begin: int, size: int) -> tuple[int, int]:
    """Where the cells of a page are: what is between its header and them is nobody's."""
    cells = int.from_bytes(data[begin + 3 : begin + 5], "big")
    return (begin + int.from_bytes(data[begin + 5 : begin + 7], "big") if cells else begin + size, begin + size)


class Endless(BaseException):
    pass


@contextlib.contextmanager
def alarm(seconds: int) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Endless

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Told:
    """What was told of places, what the ways out came to, and the number of the place that is next."""

    def __init__(self, at: int) -> None:
        self.counts: Counter[str] = Counter()
        self.ways: Counter[str] = Counter()
        self.next = at

    def joined(self, other: Told) -> Told:
        self.counts += other.counts
        self.ways += other.ways
        self.next = max(self.next, other.next)
        return self


class Wish(NamedTuple):
    """How much is to be damaged: so many places, from the one numbered ``at`` on, each ``step``-th, until then by the monotonic clock."""

    places: int
    seed: int
    at: int
    step: int
    until: float | None
    verbose: bool


def run(
    form: str, places: int, seed: int, say: Callable[[str], None] = print, *, at: int = 0, verbose: bool = False, budget: float | None = None,
    folder: str | None = None, jobs: int = 1,
) -> Told:
    """Damages so many places, equally over tables, files and kinds, for ``budget`` minutes at most, beginning with the place numbered ``at``;
    counts what was told of them. A place is known by its seed and its number, however many are looked at before it. So many ``jobs`` at once
    take turns by number, each in a process of its own, beside the one store that was populated; a database is one job's."""
    jobs = 1 if form == "postgres" else jobs
    until = None if budget is None else time.monotonic() + budget * 60
    with tempfile.TemporaryDirectory(dir=folder) as made:
        bench = Bench(Path(made), form)
        bench.build()
        if jobs == 1:
            told = share(bench, Wish(places, seed, at, 1, until, verbose), say)
        else:
            told = Told(at)
            shares = [Wish(places // jobs + (n < places % jobs), seed, at + n, jobs, until, verbose) for n in range(jobs)]
            with multiprocessing.get_context("fork").Pool(jobs, initializer=_begin, initargs=(bench,)) as pool:
                for one, lines in pool.imap_unordered(_shared, shares, chunksize=1):
                    told.joined(one)
                    for line in lines:
                        say(line)
        bench.at.close()
    return told


_here: list[Bench] = []  # that of a process which was forked for a share


def _begin(bench: Bench) -> None:
    assert isinstance(bench.at, InFolder)
    bench.at.here = bench.at.folder / f"here{os.getpid()}"
    _here.append(bench)


def _shared(wish: Wish) -> tuple[Told, list[str]]:
    lines: list[str] = []
    return share(_here[0], wish, lines.append), lines


def share(bench: Bench, wish: Wish, say: Callable[[str], None]) -> Told:
    told = Told(wish.at)
    form = bench.form
    targets = [(p, k) for k in KINDS for p in bench.at.places()]
    random.Random(wish.seed).shuffle(targets)
    while told.counts.total() < wish.places and (wish.until is None or time.monotonic() < wish.until):
        number = told.next
        told.next += wish.step
        place, kind = targets[number % len(targets)]
        where = bench.at.damage(place, kind, random.Random(f"{wish.seed}/{number}"))
        if where is None:
            continue  # nothing was damaged by it
        judge = bench.judge()
        told.counts[judge.verdict] += 1
        if wish.verbose or judge.verdict in ("silent", "untyped", "endless"):
            say(f"{judge.verdict}: {form} #{number} {place} {kind} at {where}: {judge.said}")
        if judge.verdict == "named" and (way := bench.mend(place, judge)) is not None:
            told.ways[way] += 1
            if wish.verbose or way == WAYS[4]:
                say(f"{way}: {form} #{number} {place} {kind} at {where}: {judge.said}")
    return told


def memory() -> str | None:
    """Where a disk costs nothing."""
    return MEMORY if os.path.isdir(MEMORY) else None


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.damage.bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--places", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at", type=int, default=0, metavar="N", help="Begin with the place of this number.")
    parser.add_argument("--budget", type=float, metavar="MINUTES", help="For each form; it stops earlier where the places are done.")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="At once, each in a process of its own; one for PostgreSQL.")
    parser.add_argument("--form", choices=FORMS, action="append")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args(words)
    bad = 0
    for form in given.form or FORMS:
        began = time.monotonic()
        told = run(form, given.places, given.seed, at=given.at, verbose=given.verbose, budget=given.budget, folder=memory(), jobs=given.jobs)
        counts, ways = told.counts, told.ways
        speed = counts.total() / (time.monotonic() - began)
        print(f"{form}, seed {given.seed}, numbers {given.at} to {told.next - 1}: {counts.total()} places, {speed:.1f} a second: " + ", ".join(f"{counts[v]} {v}" for v in VERDICTS), flush=True)
        if ways:
            print(f"  of {ways.total()} different problems: " + ", ".join(f"{ways[w]} {w}" for w in WAYS), flush=True)
        bad += counts["silent"] + counts["untyped"] + counts["endless"] + ways[WAYS[4]]
        bad += counts["unreadable"] > counts.total() // 3
    return 1 if bad else 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main(sys.argv[1:]))

"""The damage bench: a populated store, one place of it damaged, and what is told of it (X-21).

    python -m tests.damage.bench --places 5000 --seed 7

Each place is a table, an index or a file and a kind of damage: a flipped bit, zeros, a cut, a swap, an older copy. After it the store is
opened, all that can be read is read, and the checker looks at it. Told is: *named* (a typed error on read, or a problem of the checker),
*unreadable* (nothing that can be read differs), *silent* (something differs and nobody says so), *untyped*, *endless*.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
from msgspec.structs import replace

from holdfast import Context, Graph, Runtime, State
from holdfast.core import canon
from holdfast.core.effects import EffectStatus
from holdfast.core.errors import HoldfastError
from holdfast.core.lease import Lease
from holdfast.core.progress import Progress
from holdfast.engine.keep.check import Checker
from holdfast.ports import Loaded, RunFilter, Store
from holdfast.stores import SqliteStore, WorkspaceStore
from holdfast.testing.conformance import TTL, Clock, Script, effect
from holdfast.testing.conformance_blobs import bulk, recording
from holdfast.testing.conformance_people import link, plan

PATIENCE = 20
KINDS = ("flip", "zero", "truncate", "swap", "old")
Told = tuple[str, str]


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
    for name in ("s1", "s2", "s3"):
        await store.put_schedule(plan(name, store.now() + 10**12), None)
    script = await (await Script(store, "r1").begin("w")).steps(30, size=8_000)
    await script.write(recording(script, bulk(), key="big"))
    shared = replace(effect("r1", 5, "default:effect:shared:pay"), shared=True, status=EffectStatus.RECORDED, result=canon.encode("paid"))
    await script.complete(effects=(shared,))
    other = await Script(store, "r2").begin("w")
    await other.steps(3)
    await store.issue_token(link(_Place(store), "secret", run_id="r2"))
    await store.close()


class _Place:
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
    await look("claimed", store.claimed("request", "default\x1fnotes", "k1"))
    await look("schedules", store.schedules())
    await look("tokens", store.token(link(_Place(store), "secret").hash))  # type: ignore[arg-type]
    await look("blob", store.blob(bulk().digest))
    await look("loans", store.loans())  # type: ignore[attr-defined]
    return found


KEYS = ("default:effect:shared:pay", "default:effect:_mail:mail-note1", "default:effect:_mail:mail-note2")


async def judged(make: Callable[[], Any], truth: dict[str, Any] | None) -> tuple[str, str, dict[str, Any]]:
    """What is told of a store: the verdict, what was said, and what was read."""
    errors: list[Exception] = []
    found: dict[str, Any] = {}
    codes: set[str] = set()
    store = make()
    try:
        await store.open()
        if getattr(store, "suspect", None) is not None:
            codes.add(store.suspect.code)
        found = await seen(store, errors.append)
        codes |= {p.code for p in await Checker(store).all() if p.severity != "info"}
    except Exception as e:
        errors.append(e)
    finally:
        with contextlib.suppress(Exception):
            await store.close()
    untyped = [e for e in errors if not isinstance(e, HoldfastError)]
    if untyped:
        return "untyped", repr(untyped[0]), found
    named = codes | {e.code for e in errors if isinstance(e, HoldfastError)}
    if truth is not None:
        named -= truth["codes"]
    if named:
        return "named", ",".join(sorted(named)), found
    if truth is None or found == truth["found"]:
        return "unreadable", "", {"found": found, "codes": codes}
    differs = [k for k in found.keys() | truth["found"].keys() if found.get(k) != truth["found"].get(k)]
    return "silent", ",".join(sorted(differs)[:3]), found


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


# -- the bench ----------------------------------------------------------------------------------------


class Bench:
    """A populated store in a folder, and places in it."""

    def __init__(self, folder: Path, form: str) -> None:
        self.folder = folder
        self.form = form
        self.whole, self.old, self.here = folder / "whole", folder / "old", folder / "here"
        self.clock = Clock()
        for f in (self.whole, self.old):
            f.mkdir(parents=True)

    def make(self, folder: Path) -> Any:
        return SqliteStore(folder / "s.db", now=self.clock) if self.form == "sqlite" else WorkspaceStore(folder / "ws", now=self.clock)

    def build(self) -> None:
        store = self.make(self.whole)

        def half() -> None:
            if self.form == "sqlite":
                with contextlib.closing(apsw.Connection(str(self.whole / "s.db"))) as db:
                    db.execute("VACUUM INTO ?", (str(self.old / "s.db"),))
                shutil.copy(self.whole / "s.db-anchor", self.old / "s.db-anchor")
            else:
                shutil.copytree(self.whole / "ws", self.old / "ws")

        asyncio.run(populate(store, self.clock, half))
        shutil.rmtree(self.whole / "s.db-live", ignore_errors=True)
        verdict, said, read = asyncio.run(judged(lambda: self.make(self.whole), None))
        if verdict != "unreadable" and verdict != "named":
            raise AssertionError(f"the undamaged store is {verdict}: {said}")
        self.truth = {"found": read.get("found", read), "codes": set(said.split(",")) if said else set()}

    def places(self) -> list[str]:
        if self.form == "workspace":
            return sorted(str(p.relative_to(self.whole)) for p in self.whole.rglob("*") if p.is_file())
        with contextlib.closing(apsw.Connection(str(self.whole / "s.db"))) as db:
            tables = [f"table {n}" for (n,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
            roots = db.execute("SELECT 'index ' || name, rootpage FROM sqlite_schema WHERE type = 'index' AND rootpage > 0 ORDER BY name").fetchall()
            size = int(db.pragma("page_size"))
            data = (self.whole / "s.db").read_bytes()
            spans = {name: _used(data, (page - 1) * size, size) for name, page in roots}
            self.spans = {name: span for name, span in spans.items() if span[0] < span[1]}
            filled = [t for t in tables if db.execute(f"SELECT EXISTS (SELECT 1 FROM {t[6:]})").get]
        many = len(self.spans) // len(filled) + 1
        return [*(filled * many), *self.spans, *(["file s.db", "file s.db-anchor"] * many)]

    def damage(self, place: str, kind: str, rng: random.Random) -> str:
        shutil.rmtree(self.here, ignore_errors=True)
        shutil.copytree(self.whole, self.here)
        if self.form == "workspace":
            return in_file(self.here / place, self.old / place, kind, rng)
        path, old = self.here / "s.db", self.old / "s.db"
        what, _, name = place.partition(" ")
        if what == "table":
            return in_table(path, old, name, kind, rng)
        if what == "index":
            return in_file(path, old, "flip" if kind in ("truncate", "old") else kind, rng, *self.spans[place])
        return in_file(self.here / name, self.old / name, kind, rng)

    def judge(self) -> Told:
        with alarm(PATIENCE):
            try:
                verdict, said, _ = asyncio.run(judged(lambda: self.make(self.here), self.truth))
            except Endless:
                return "endless", f"more than {PATIENCE} s"
        return verdict, said


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


def run(form: str, places: int, seed: int, say: Callable[[str], None] = print, *, verbose: bool = False) -> Counter[str]:
    """Damages so many places, equally over tables, files and kinds; counts what was told of them."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), form)
        bench.build()
        targets = [(p, k) for k in KINDS for p in bench.places()]
        random.Random(seed).shuffle(targets)
        for number in range(places):
            place, kind = targets[number % len(targets)]
            rng = random.Random(f"{seed}/{number}")
            where = bench.damage(place, kind, rng)
            verdict, said = bench.judge()
            counts[verdict] += 1
            if verbose or verdict in ("silent", "untyped", "endless"):
                say(f"{verdict}: {form} #{number} {place} {kind} at {where}: {said}")
    return counts


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.damage.bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--places", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--form", choices=("sqlite", "workspace"), action="append")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args(words)
    bad = 0
    for form in given.form or ("sqlite", "workspace"):
        counts = run(form, given.places, given.seed, verbose=given.verbose)
        print(f"{form}: " + ", ".join(f"{counts[v]} {v}" for v in ("named", "unreadable", "silent", "untyped", "endless")) + f" of {given.places} places, seed {given.seed}")
        bad += counts["silent"] + counts["untyped"] + counts["endless"]
    return 1 if bad else 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main(sys.argv[1:]))

"""A million ended runs, copied from a hundred real ones: by COPY into a server, by INSERT into a file.

Every id hangs on the id of its run (core/ids), on its thread or on its request's key, all of fixed length here. A copy is what its original
left in every table, with these replaced by new ones; the chain of its log, the seals of its rows and what vouches for the records beside its
log are made anew by the functions that stores make them by. ``rt.check`` finds nothing to say against such copies.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import apsw
import psycopg
from psycopg.types.json import set_json_loads

from holdfast import Context, Graph, Run, Runtime, State, append, flow, thread
from holdfast.core import canon, codec, ids, vouch
from holdfast.core.checkpoint import voucher
from holdfast.core.commit import DedupClaim, LedgerRow
from tests.postgres.server import Server

TENANT = "default"
Row = dict[str, Any]
FAMILIES_AT_ONCE = 2_000
# Which rows of a table are a run's. What is not named here holds nothing of a run that has ended, or nothing that these originals leave.
TABLES = {
    "run": "run_id = ANY(%(runs)s)",
    "doc": "(bucket, run) IN (SELECT bucket, id FROM holdfast.run WHERE run_id = ANY(%(runs)s))",
    "log": "(bucket, run) IN (SELECT bucket, id FROM holdfast.run WHERE run_id = ANY(%(runs)s))",
    "whole": "(bucket, run) IN (SELECT bucket, id FROM holdfast.run WHERE run_id = ANY(%(runs)s))",
    "inbox": "(bucket, run) IN (SELECT bucket, id FROM holdfast.run WHERE run_id = ANY(%(runs)s))",
    "carry": "run = ANY(%(runs)s)",
    "claim": "run_id = ANY(%(runs)s)",
    "effect": "run_id = ANY(%(runs)s)",
    "ledger": "run_id = ANY(%(runs)s)",
    "blob_use": "run_id = ANY(%(runs)s)",
    "vouch": "run = ANY(%(runs)s) OR (under = ANY(%(runs)s) AND kind = 'claim')",
}
_KEYS = "IN (SELECT id FROM run WHERE run_id IN (SELECT value FROM json_each(:runs)))"
_NAMES = "IN (SELECT value FROM json_each(:runs))"
IN_FILE = {
    "run": f"run_id {_NAMES}",
    "log": f"run {_KEYS} ORDER BY run, id",
    "whole": f"run {_KEYS}",
    "inbox": f"run {_KEYS}",
    "carry": f"run {_KEYS}",
    "claim": f"run_id {_NAMES}",
    "effect": f"run_id {_NAMES}",
    "ledger": f"run_id {_NAMES}",
    "blob_use": f"run_id {_NAMES}",
    "vouch": f"run {_NAMES} OR (under {_NAMES} AND kind = 'claim')",
}
NUMBERED = ("inbox", "effect", "ledger")


# -- the originals ------------------------------------------------------------------------------------


class Line(State):
    n: int = 0
    data: str = ""


class Chat(State):
    said: Annotated[list[str], append, thread]


def line() -> Graph[Line]:
    graph: Graph[Line] = Graph("line", Line, version="1")
    for i in range(5):

        @graph.node(f"s{i}", start=i == 0, after=None if i == 0 else f"s{i - 1}")
        async def grow(state: Line) -> dict[str, Any]:
            return {"n": state.n + 1, "data": "x" * 300}

    return graph


def chat() -> Graph[Chat]:
    graph: Graph[Chat] = Graph("chat", Chat, version="1")

    @graph.node(start=True)
    async def answer(state: Chat) -> dict[str, Any]:
        return {"said": ["an answer " * 10]}

    return graph


@flow("worked", version="1")
async def worked(ctx: Context, key: str) -> str:
    """Acts on the outside, has a result that is kept apart, and notes both in the ledger."""
    await ctx.step(lambda: "x" * 300)
    await ctx.effect(lambda: "done")
    ctx.record("paid", key, {"n": 1})
    return "y" * 300


@flow("large", version="1")
async def large(ctx: Context) -> str:
    return str(len(await ctx.step(lambda: "z" * 200_000)))


@flow("signalled", version="1")
async def signalled(ctx: Context) -> Any:
    return await ctx.wait("go")


@flow("parent", version="1")
async def parent(ctx: Context) -> Any:
    return await ctx.child(large, {})


SKILLS = (line(), chat(), worked, large, signalled, parent)


def _key(kind: str, number: int) -> str:
    return f"{kind}-{number:016d}"


async def originals(rt: Runtime, tenths: int = 10) -> list[list[str]]:
    """A hundred real runs, or so many tenths of them, ended, in families: those that go together."""
    families: list[list[Run]] = [[await rt.invoke(line(), {})] for _ in range(4 * tenths)]
    for n in range(2 * tenths):
        families.append([await rt.invoke(worked, {"key": _key("paid", n)}, key=_key("request", n))])
    for _ in range(tenths):
        run = await rt.invoke(signalled, {})
        await rt.signal(run.run_id, "go", "now")
        await rt.worker(until_idle=True)
        families.append([await rt.get(run.run_id)])
    for _ in range(-(-tenths // 2)):
        run = await rt.invoke(parent, {})
        families.append([run, await rt.get(ids.child_run_id(run.run_id, 1, "parent", "0", tenant=TENANT))])
    for n in range(tenths):
        families.append([await rt.invoke(chat(), {"said": ["a question " * 10]}, thread_id=_key("thread", n)) for _ in range(2)])
    assert all(str(run.status) == "completed" for family in families for run in family), "an original has not ended"
    return [[run.run_id for run in family] for family in families]


# -- copies -------------------------------------------------------------------------------------------


class Text:
    """A value with ids and digests in it, cut where they are."""

    def __init__(self, value: str | bytes, names: re.Pattern[bytes]) -> None:
        parts = names.split(value.encode() if isinstance(value, str) else value)
        self._text = isinstance(value, str)
        self._literal, self._names = parts[0::2], parts[1::2]
        self.fixed = not self._names

    def filled(self, new: dict[bytes, bytes]) -> Any:
        out = [self._literal[0]]
        for name, literal in zip(self._names, self._literal[1:], strict=True):
            out += (new[name], literal)
        data = b"".join(out)
        return data.decode() if self._text else data


class Digests(NamedTuple):
    """Of a log row: its place in the chain, and the hash of the checkpoint that it saves, with what that is one of."""

    row: bytes
    checkpoint: bytes
    delta: Text


class Family:
    """Runs that go together, and all rows that are theirs."""

    def __init__(self, rows: dict[str, list[Row]]) -> None:
        self.rows = rows
        self.runs = {row["run_id"]: row for row in self.rows["run"]}
        sessions = {r["session_key"] for r in self.rows["run"]} - self.runs.keys()
        keys = {r["key"] for table in ("ledger", "claim") for r in self.rows[table]}
        self.names = [*self.runs, *sorted(sessions | keys)]
        records = [codec.open_row(codec.Row(r["seq"], r["data"], r["hash"])) for r in self.rows["log"]]
        stated = [getattr(v.fact, "hash", b"") if (v := voucher(r.events)) is not None else b"" for r in records]
        digests = [d for d in (*stated, *(c.hash for r in records if r.delta is not None for c in r.delta.carries or ())) if d]
        pattern = re.compile(b"(" + b"|".join(map(re.escape, (*(n.encode() for n in self.names), *digests))) + b")", re.DOTALL)
        self._digests = [Digests(r.hash, s, Text(r.delta_bytes, pattern)) for r, s in zip(records, stated, strict=True)]
        self._cut = {
            table: [{c: text for c, v in row.items() if isinstance(v, str | bytes) and not (text := Text(v, pattern)).fixed} for row in rows]
            for table, rows in self.rows.items()
        }

    def new_names(self, dice: random.Random, at: int, number: int) -> dict[str, str]:
        """What stands for each id in a copy. A run lies in the bucket of its lane; a child is named after its parent as ever."""
        new = {s: f"{s.rpartition('-')[0]}-{number:016d}" for s in self.names if s not in self.runs}
        for run_id, row in sorted(self.runs.items(), key=lambda r: r[1]["parent_run_id"] or ""):  # a parent before its child
            session = new.get(row["session_key"], "")
            if (of := row["parent_run_id"]) is None:
                new[run_id] = ids.run_id(at, dice.getrandbits(ids.ENTROPY_BITS), TENANT, session)
            else:
                new[run_id] = ids.child_run_id(new[of], 1, "parent", "0", tenant=TENANT)
        return new

    def copy(self, names: dict[str, str], numbers: Iterator[int]) -> dict[str, list[Row]]:
        """The rows of a copy in a server."""
        out = self._renamed(names)
        keys: dict[tuple[int, int], tuple[int, int]] = {}
        run_of: dict[tuple[int, int], str] = {}
        for before, row in zip(self.rows["run"], out["run"], strict=True):
            key = (ids.bucket_number(row["run_id"]), next(numbers))
            keys[before["bucket"], before["id"]], run_of[key] = key, row["run_id"]
            row["bucket"], row["id"], row["turn"] = *key, next(numbers)
        for table in ("doc", "log", "whole", "inbox"):
            for row in out[table]:
                row["bucket"], row["run"] = keys[row["bucket"], row["run"]]
        self._vouch(out, lambda row: run_of[row["bucket"], row["run"]], dict.fromkeys(NUMBERED, numbers))
        return out

    def copy_into_file(self, names: dict[str, str], numbers: dict[str, Iterator[int]]) -> dict[str, list[Row]]:
        """The same in a file, where each table has its own numbers, and log rows name the one before."""
        out = self._renamed(names)
        keys, logs, run_of = {}, {0: 0}, {}
        for before, row in zip(self.rows["log"], out["log"], strict=True):
            row["id"] = logs[before["id"]] = next(numbers["log"])
            row["prev"] = logs[before["prev"]]
        for before, row in zip(self.rows["run"], out["run"], strict=True):
            row["id"] = keys[before["id"]] = next(numbers["run"])
            row["tip"], row["turn"], run_of[row["id"]] = logs[before["tip"]], logs[before["turn"]], row["run_id"]
        for table in ("log", "whole", "inbox", "carry"):
            for row in out[table]:
                row["run"] = keys[row["run"]]
        for row in out["whole"]:
            row["id"], row["log"] = next(numbers["whole"]), logs[row["log"]]
        for row in out["carry"]:
            row["source"] = keys[row["source"]]
        self._vouch(out, lambda row: run_of[row["run"]], numbers)
        return out

    def _renamed(self, names: dict[str, str]) -> dict[str, list[Row]]:
        """All rows with new names in them, and the hashes of the log's as they are then."""
        new = {old.encode(): name.encode() for old, name in names.items()}
        of, head, previous = None, b"", b""
        chain: list[bytes] = []
        for row, cut, digests in zip(self.rows["log"], self._cut["log"], self._digests, strict=True):
            if row["run"] != of:
                of, head, previous = row["run"], b"", b""
            if digests.checkpoint:
                head = new[digests.checkpoint] = canon.chain(head, digests.delta.filled(new))
            previous = canon.chain(previous, cut["data"].filled(new) if "data" in cut else row["data"])
            new[digests.row] = previous
            chain.append(previous)
        out = {
            table: [{**row, **{c: text.filled(new) for c, text in cut.items()}} for row, cut in zip(rows, self._cut[table], strict=True)]
            for table, rows in self.rows.items()
        }
        for row, hash in zip(out["log"], chain, strict=True):
            row["hash"] = hash
        return out

    def _vouch(self, out: dict[str, list[Row]], run_of: Callable[[Row], str], numbers: dict[str, Iterator[int]]) -> None:
        """Numbers the records beside the log, and has everything vouched for as it is now."""
        for row in out["run"]:
            row["seal"] = vouch.standing(row["run_id"], row["fence"], row["owner"], row["due"], row["holds"], row["turn"])
        moved: dict[str, str] = {}
        for table in NUMBERED:
            for row in out[table]:
                before, row["id"] = row["id"], next(numbers[table])
                if table == "ledger":
                    moved[vouch.ledger_id(before)] = vouch.ledger_id(row["id"])
                else:
                    row["placed"] = row["id"]
        vouchers = {(v.run_id, v.kind, v.id): v for v in _vouchers(out, run_of)}
        for row in out["vouch"]:
            row["id"] = moved.get(row["id"], row["id"])
            row["seal"] = vouchers.pop((row["run"], row["kind"], row["id"])).seal
        assert not vouchers, "a record that nothing vouched for"


def _vouchers(rows: dict[str, list[Row]], run_of: Callable[[Row], str]) -> Iterable[vouch.Voucher]:
    for r in rows["inbox"]:
        yield vouch.of_inbox(run_of(r), r["key"], r["put_at"], r["command"], r["taken"])
    for r in rows["claim"]:
        yield vouch.of_claim(DedupClaim(r["kind"], r["scope"], r["key"], r["run_id"], r["digest"], r["expires_at"]))
    for r in rows["effect"]:
        yield vouch.of_effect_row((r["effect_id"], r["run_id"], r["lineage_root"], r["key"], r["status"], r["data"]))
    for r in rows["ledger"]:
        yield vouch.of_ledger(LedgerRow(r["run_id"], r["topic"], r["key"], r["data"], r["at"], r["step_id"], r["id"]))


def _of_server(db: psycopg.Connection[tuple[Any, ...]], runs: Sequence[str]) -> dict[str, list[Row]]:
    """All rows of a family, by table."""
    rows: dict[str, list[Row]] = {}
    for table, theirs in TABLES.items():
        order = "ORDER BY run, n" if table == "log" else ""
        found = db.execute(f"SELECT * FROM holdfast.{table} WHERE {theirs} {order}".encode(), {"runs": list(runs)})
        columns = [c.name for c in found.description or ()]
        rows[table] = [dict(zip(columns, row, strict=True)) for row in found]
    return rows


def _of_file(db: apsw.Connection, runs: Sequence[str]) -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {}
    for table, theirs in IN_FILE.items():
        found = db.execute(f"SELECT * FROM {table} WHERE {theirs}", {"runs": json.dumps(list(runs))})
        every = found.fetchall()
        columns = [c for (c,) in db.execute("SELECT name FROM pragma_table_info(?)", (table,))]
        rows[table] = [dict(zip(columns, row, strict=True)) for row in every]
    return rows


def copies(db: psycopg.Connection[tuple[Any, ...]], families: Sequence[Sequence[str]], wanted: int, seed: int) -> int:
    """Makes so many runs, or a few more: all families equally often. Gives how many there are, the originals among them."""
    dice = random.Random(seed)
    set_json_loads(lambda data: data.decode() if isinstance(data, bytes) else data, db)
    originals = [Family(_of_server(db, runs)) for runs in families]
    done = sum(len(f.runs) for f in originals)
    first = time.time_ns() // 1000 - 86_400_000_000
    number = 1_000_000
    while done < wanted:
        made: dict[str, list[Row]] = {table: [] for table in TABLES}
        some = (originals * (FAMILIES_AT_ONCE // len(originals) + 1))[: max(len(originals), FAMILIES_AT_ONCE // len(originals) * len(originals))]
        highest = db.execute("SELECT nextval('holdfast.number')").fetchone()
        assert highest is not None
        numbers = iter(range(highest[0] + 1, highest[0] + 100 * len(some)))
        for family in some:
            if done >= wanted:
                break
            number += 1
            for table, rows in family.copy(family.new_names(dice, first + number * 1000, number), numbers).items():
                made[table] += rows
            done += len(family.runs)
        with db.transaction():
            for table, rows in made.items():
                _write(db, table, rows)
            db.execute("SELECT setval('holdfast.number', %s)", (next(numbers),))
    return done


def copies_in_file(path: str, families: Sequence[Sequence[str]], wanted: int, seed: int) -> int:
    """The same in a file that nobody has open. One original after the other: its copies say that they ended when it did, and in a file what ended at one
    time lies together."""
    dice = random.Random(seed)
    first, number = time.time_ns() // 1000 - 86_400_000_000, 1_000_000
    with contextlib.closing(apsw.Connection(path)) as db:
        db.execute("PRAGMA synchronous = OFF")
        originals = [Family(_of_file(db, runs)) for runs in families]
        done = sum(len(f.runs) for f in originals)
        numbers: dict[str, Iterator[int]] = {}
        for table in ("log", "run", "whole", *NUMBERED):
            ((highest,),) = db.execute(f"SELECT ifnull(max(id), 0) FROM {table}").fetchall()
            numbers[table] = itertools.count(highest + 1)
        each = -(-(wanted - done) // done)
        for family in originals:
            with db:
                for _ in range(min(each, -(-(wanted - done) // len(family.runs)))):
                    number += 1
                    for table, rows in family.copy_into_file(family.new_names(dice, first + number * 1000, number), numbers).items():
                        if rows:
                            put = f"INSERT INTO {table} ({', '.join(rows[0])}) VALUES ({', '.join('?' * len(rows[0]))})"
                            db.executemany(put, [tuple(row.values()) for row in rows])
                    done += len(family.runs)
    return done


def _write(db: psycopg.Connection[tuple[Any, ...]], table: str, rows: Sequence[Row]) -> None:
    if rows:
        columns = list(rows[0])
        with db.cursor().copy(f"COPY holdfast.{table} ({', '.join(columns)}) FROM STDIN".encode()) as copy:
            for row in rows:
                copy.write_row([row[c] for c in columns])


async def ended_runs(server: Server, wanted: int, seed: int, tenths: int = 10) -> int:
    """Fills the store of a server with so many ended runs, and lets it settle."""
    async with Runtime(server.url, skills=list(SKILLS)) as rt:
        families = await originals(rt, tenths)

    def work() -> int:
        with server.admin("holdfast") as db:
            done = copies(db, families, wanted, seed)
            db.execute("VACUUM ANALYZE")
            db.execute("CHECKPOINT")
            return done

    return await asyncio.to_thread(work)


async def ended_runs_in_file(path: str, wanted: int, seed: int, tenths: int = 10) -> int:
    """Fills a file with so many ended runs."""
    async with Runtime(f"sqlite:///{path}", skills=list(SKILLS)) as rt:
        families = await originals(rt, tenths)
    return await asyncio.to_thread(copies_in_file, path, families, wanted, seed)


__all__ = ["SKILLS", "copies", "copies_in_file", "ended_runs", "ended_runs_in_file", "originals"]

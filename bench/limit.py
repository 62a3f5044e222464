"""The raw limit: what the database itself gives for the least that a durable step has to write, without an engine.

SQLite: one row of 600 bytes appended, one row updated, one commit with its sync: ``1`` of them a transaction, or ``100``. PostgreSQL: one row
appended by one prepared statement, which is a transaction of its own, or ``100`` by one.
"""

from __future__ import annotations

import os
import sys

import apsw
from common import DATABASE, RUNS, clock, emit, folder


def limit(together: int, seconds: float) -> None:
    with folder() as where:
        db = apsw.Connection(str(where / "raw.db"))
        db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "FULL")
        db.pragma("cache_size", -16384)
        db.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, run INTEGER, data BLOB); CREATE TABLE run (id INTEGER PRIMARY KEY, head INTEGER)")
        db.execute("BEGIN")
        db.executemany("INSERT INTO run VALUES (?, 0)", [(i,) for i in range(RUNS)])
        db.execute("COMMIT")
        data, cursor, done, began = os.urandom(600), db.cursor(), 0, 0.0
        for warm in (True, False):
            done, began = 0, clock()
            while clock() - began < (seconds / 3 if warm else seconds):
                runs = [(done + i) % RUNS for i in range(together)]
                cursor.execute("BEGIN IMMEDIATE")
                cursor.executemany("INSERT INTO log (run, data) VALUES (?, ?)", [(r, data) for r in runs])
                cursor.executemany("UPDATE run SET head = ? WHERE id = ?", [(done, r) for r in runs])
                cursor.execute("COMMIT")
                done += together
        emit("lin" if together == 1 else "conc-long", done / (clock() - began), "steps/s")
        db.close()


def limit_of_server(together: int, seconds: float) -> None:
    import psycopg

    with psycopg.connect(DATABASE, autocommit=True) as db:
        db.prepare_threshold = 1
        db.execute("CREATE TABLE log (run int, n bigint, data bytea, PRIMARY KEY (run, n))")
        data, done, began = os.urandom(600), 0, 0.0
        lone, many = "INSERT INTO log VALUES (%s, %s, %b)", "INSERT INTO log SELECT * FROM unnest(%s::int[], %s::bigint[], %s::bytea[])"
        for warm in (True, False):
            first, began = done, clock()
            while clock() - began < (seconds / 3 if warm else seconds):
                if together == 1:
                    db.execute(lone, (0, done, data))
                else:
                    db.execute(many, (list(range(together)), [done] * together, [data] * together))
                done += together
        emit("lin" if together == 1 else "conc-long", (done - first) / (clock() - began), "steps/s")


def sync() -> None:
    """What a bare sync takes: 4 KiB written in place, and ``fdatasync``."""
    with folder() as where, open(where / "raw", "wb", buffering=0) as file:
        file.write(bytes(1 << 20))
        os.fdatasync(file.fileno())
        taken = []
        for n in range(500):
            os.pwrite(file.fileno(), os.urandom(4096), n % 256 * 4096)
            began = clock()
            os.fdatasync(file.fileno())
            taken.append(clock() - began)
    emit("a bare sync", sorted(taken)[len(taken) // 2] * 1e6, "us")


if __name__ == "__main__" and sys.argv[1] == "sync":
    sync()
elif __name__ == "__main__":
    (limit_of_server if DATABASE else limit)(RUNS if sys.argv[1] == "conc-long" else 1, 1.0)

"""The raw limit: what SQLite itself gives for the least that a durable step has to write, without an engine.

One row of 600 bytes appended, one row updated, one commit with its sync: ``1`` of them a transaction, or ``100``.
"""

from __future__ import annotations

import os
import sys

import apsw
from common import RUNS, clock, emit, folder


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
    limit(RUNS if sys.argv[1] == "conc-long" else 1, 1.0)

"""Processes that are stopped while they hold nothing that others need."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import apsw


def stop(pid: int, path: Path) -> None:
    """Stops a child outside of its commits to this file: stopped within one, it would keep everybody else from writing.

    Where it stops is by chance, and each renewal of a lease is a commit too; so it goes on and is stopped again until others can write.
    """
    until = time.monotonic() + 60
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.set_busy_timeout(300)
        while True:
            os.kill(pid, signal.SIGSTOP)
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            if _writable(db):
                return
            os.kill(pid, signal.SIGCONT)
            while not _writable(db):
                assert time.monotonic() < until, f"{pid} does not come to the end of its commit"


def _writable(db: apsw.Connection) -> bool:
    try:
        db.execute("BEGIN IMMEDIATE; ROLLBACK")
    except apsw.BusyError:
        return False
    return True

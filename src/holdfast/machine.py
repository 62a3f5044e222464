"""This machine: its clocks, and its processes, as far as they prove that an owner of leases is alive or dead (§2.9, §10.1).

A process is identified by its number and its start time, within one namespace of process numbers and one boot.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import gc
import os
import socket
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from holdfast.core.lease import Alive, OwnerId


class Here(NamedTuple):
    """Where this process runs: the machine's name, and its boot id with the namespace of process numbers after a dot."""

    host: str
    boot: str


LOOKED_AFTER = (10_000, 10, 20)
"""Thresholds of the garbage collector in a serving process: how many new objects, and collections of each younger generation, before it collects."""


_swept = False


def sweep() -> None:
    """Runs the garbage collector over what has been loaded, once per process. Otherwise the collector does so by itself as soon as a quarter has been added to what it
    visited last, which is soon after a program was loaded: in the middle of one of its first runs, where it takes longer than the run."""
    global _swept
    if not _swept and gc.isenabled():
        gc.collect()
    _swept = True


def settle() -> None:
    """Tells the garbage collector to skip what has been loaded and to run less often, for a process that serves or executes runs from now on.

    During a full collection no request is answered and no run continues. That took 30 ms and more, every two seconds under load, and
    nearly all visited objects were modules.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*LOOKED_AFTER)


def note_error(ended: asyncio.Future[Any]) -> None:
    """Reads the error of a task whose caller may be gone, because the event loop reports each error that nobody has read."""
    if not ended.cancelled():
        ended.exception()


def call_nobody(*_: object) -> None:
    """Does nothing. Replaces a callback that is no longer called, so that nothing refers back to the callback's owner."""


def boot() -> str:
    """Returns the boot id of this machine: a lock or a tick count is meaningful only within one boot."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            return f.read().strip()
    except OSError:
        return socket.gethostname()


def wall() -> int:
    """Returns microseconds of the wall clock of this machine, which all its processes share, even if one of them has replaced ``time.time``.

    A store in a file on this machine has no other clock (§10.3).
    """
    return time.clock_gettime_ns(time.CLOCK_REALTIME) // 1000


def ticks() -> int:
    """Returns microseconds of a clock that continues while the machine sleeps and that nobody sets (§10.3)."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1000


@functools.cache
def here() -> Here:
    try:
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        space = 0
    return Here(socket.gethostname(), f"{boot()[:8].replace('-', '')}.{space}")


def start_of(pid: int) -> str | None:
    """Returns the start time of a process in the kernel's units; None if there is no such process, or the system does not say."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
            return f.read().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return None


def alive_by_name(owner: str) -> Alive:
    """Whether the process in an owner's name is gone: the machine was booted again, or the process no longer exists.

    Returns NO only with proof. Never returns YES, because a process may outlive an owner in it.
    """
    named, this = OwnerId.parse(owner), here()
    if named is None or named.host != this.host or not os.path.exists("/proc/self/stat"):
        return Alive.UNKNOWN
    boot, _, space = named.boot.partition(".")
    if boot != this.boot.partition(".")[0]:
        return Alive.NO
    if not space or space != this.boot.partition(".")[2]:
        return Alive.UNKNOWN
    return Alive.UNKNOWN if start_of(named.pid) == named.started else Alive.NO


class Process:
    """This process. ``forks``: how many forks lie between the program's start and this process; what was opened before the last one belongs to its parent."""

    forks = 0

    def note_fork(self) -> None:
        self.forks += 1


PROCESS = Process()
os.register_at_fork(after_in_child=PROCESS.note_fork)


def forks() -> int:
    """Returns ``PROCESS.forks``. It is a function so that a trace function that user code has left set runs here, and not in the code after the call."""
    return PROCESS.forks


def end_child(since: int, what: str) -> None:
    """Ends this process if the code it ran has forked it ``since`` then: a child shares its parent's event loop and connections, and may neither
    commit nor execute effects. A child that has work of its own must end with ``os._exit``, or be started with ``subprocess``."""
    if PROCESS.forks == since:
        return
    error = sys.exception()
    code = error.code if isinstance(error, SystemExit) else 1
    with contextlib.suppress(OSError):
        os.write(2, f"holdfast: {what} forked, and the child process returned to the worker's code: it is ended here (end it yourself with os._exit)\n".encode())
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def may_prove(owner: str) -> bool:
    """Whether a lock that this machine can take says anything about an owner with that name: not if the owner runs on another machine."""
    named = OwnerId.parse(owner)
    return named is None or named.host == here().host or named.boot == here().boot


def sole(values: Mapping[str, Any], name: str) -> bool:
    """Whether only this mapping refers to the value with that name. This compares the interpreter's reference count with one measured once for a value
    without other references. Always False if the interpreter does not count references exactly."""
    return _holders(values, name) == _SOLE


def _holders(values: Mapping[str, Any], name: str) -> int:
    return sys.getrefcount(values[name])


_SOLE = -1 if sysconfig.get_config_var("Py_GIL_DISABLED") else _holders({"": []}, "")


NO_PROGRAM = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ELOOP, errno.EISDIR})
"""The errors of the system for a command that cannot be started until somebody has corrected the command or its working directory."""


class SystemClock:
    """Wall time in microseconds; monotonic seconds from the clock that continues while the machine sleeps."""

    monotonic: Callable[[], float] = staticmethod(functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic)

    def now(self) -> int:
        return time.time_ns() // 1_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


__all__ = ["NO_PROGRAM", "PROCESS", "Here", "Process", "SystemClock", "alive_by_name", "boot", "end_child", "forks", "here", "may_prove", "settle", "sole", "start_of", "sweep", "ticks"]

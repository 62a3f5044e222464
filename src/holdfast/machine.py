"""This machine: its clocks, and its processes, as far as they prove that an owner of leases lives or is dead (§2.9, §10.1).

A process is told apart by its number and the moment of its start, within one namespace of process numbers and one boot.
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
    """Where this process runs: the machine's name, and its boot with the namespace of process numbers behind a dot."""

    host: str
    boot: str


LOOKED_AFTER = (10_000, 10, 20)
"""Of the garbage collector of such a process: new objects, and generations, before it looks again."""


_swept = False


def sweep() -> None:
    """Has the garbage collector go through what has been loaded, once in a process. It does so by itself as soon as a quarter has been added to what it went
    through last, which is soon after a program was loaded: in the midst of one of its first runs, where it takes longer than the run."""
    global _swept
    if not _swept and gc.isenabled():
        gc.collect()
    _swept = True


def settle() -> None:
    """For a process that serves, or executes runs, from now on: the garbage collector passes over what has been loaded, and looks less often.

    While it looks through everything no request is answered, and no run goes on. That took 30 ms and more, every two seconds under load, and
    nearly all it looked at were modules.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*LOOKED_AFTER)


def note_error(ended: asyncio.Future[Any]) -> None:
    """Reads the error of a task whose caller may have gone before it ended: the event loop reports each that nobody has read."""
    if not ended.cancelled():
        ended.exception()


def call_nobody(*_: object) -> None:
    """In the place of what was called and is called no more, so that nothing refers back to it."""


def boot() -> str:
    """Which boot of which machine this is: a lock or a tick count means something only within it."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            return f.read().strip()
    except OSError:
        return socket.gethostname()


def wall() -> int:
    """Microseconds of the wall clock of this machine: all its processes share it, whatever one of them has put in the place of ``time.time``.

    A store that is a file on this machine has no other clock (§10.3).
    """
    return time.clock_gettime_ns(time.CLOCK_REALTIME) // 1000


def ticks() -> int:
    """Microseconds of a clock that goes on while the machine sleeps and that nobody sets (§10.3)."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1000


@functools.cache
def here() -> Here:
    try:
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        space = 0
    return Here(socket.gethostname(), f"{boot()[:8].replace('-', '')}.{space}")


def start_of(pid: int) -> str | None:
    """When a process started, in the kernel's words; None if there is no such process, or nothing that tells."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
            return f.read().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return None


def alive_by_name(owner: str) -> Alive:
    """Whether the process that an owner's name tells of is gone: the machine was started anew, or the process is not there any more.

    NO only by proof; never YES, for a process may outlive an owner in it.
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
    """This process. ``forks``: how often it was forked from another since it was started; what was opened before the last time is not its own."""

    forks = 0

    def note_fork(self) -> None:
        self.forks += 1


PROCESS = Process()
os.register_at_fork(after_in_child=PROCESS.note_fork)


def forks() -> int:
    """``PROCESS.forks``, by a call: a trace function that somebody has left is met here, and not in what follows."""
    return PROCESS.forks


def end_child(since: int, what: str) -> None:
    """Ends this process if it was forked ``since``, by the code it runs: it shares its parent's loop and connections, and may neither
    commit nor act. A child that is to do something of its own ends by ``os._exit``, or is made by ``subprocess``."""
    if PROCESS.forks == since:
        return
    error = sys.exception()
    code = error.code if isinstance(error, SystemExit) else 1
    with contextlib.suppress(OSError):
        os.write(2, f"holdfast: {what} forked, and the child process returned to the worker's code: it is ended here (end it yourself with os._exit)\n".encode())
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def may_prove(owner: str) -> bool:
    """Whether a lock that this machine can take says something about an owner of that name: not if it runs on another one."""
    named = OwnerId.parse(owner)
    return named is None or named.host == here().host or named.boot == here().boot


def sole(values: Mapping[str, Any], name: str) -> bool:
    """Whether these values alone hold the one of that name: by the interpreter's own count of holders, which is measured once for something
    that nobody else holds. Where holders are not counted exactly, never."""
    return _holders(values, name) == _SOLE


def _holders(values: Mapping[str, Any], name: str) -> int:
    return sys.getrefcount(values[name])


_SOLE = -1 if sysconfig.get_config_var("Py_GIL_DISABLED") else _holders({"": []}, "")


NO_PROGRAM = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ELOOP, errno.EISDIR})
"""What the system says of a command that cannot be started before somebody has mended it, or the folder where it is to run."""


class SystemClock:
    """Wall time in microseconds; monotonic seconds from the clock that goes on while the machine sleeps."""

    monotonic: Callable[[], float] = staticmethod(functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic)

    def now(self) -> int:
        return time.time_ns() // 1_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


__all__ = ["NO_PROGRAM", "PROCESS", "Here", "Process", "SystemClock", "alive_by_name", "boot", "end_child", "forks", "here", "may_prove", "settle", "sole", "start_of", "sweep", "ticks"]

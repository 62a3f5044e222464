"""The one place where tests reach into what they do not test.

What is here serves two needs that nobody has but a test: a process that dies without a word, and data that is damaged. And it changes what
a runtime decides for itself, such as how many tasks of a step run at once, so that a test needs two of them and not sixty-five.
"""

from __future__ import annotations

import apsw
import pytest
from msgspec.structs import replace

from holdfast import Runtime, machine
from holdfast.core import canon
from holdfast.engine.look.threads import Threads
from holdfast.stores import MemoryStore, SqliteStore
from holdfast.workers.sweeper import Sweeper

# -- processes --------------------------------------------------------------------------------------


def fall_silent(rt: Runtime) -> None:
    """Ends the renewing of leases, as a death does. Closing would end it too, but it also hands everything back, and the dead hand nothing back."""
    rt._heartbeat.stop()


def die(rt: Runtime) -> None:
    """Leaves a runtime as a killed process is: nothing is renewed, and closing it later, for the test's sake, hands nothing back either."""
    fall_silent(rt)
    rt._heartbeat.begun = False


def lower(rt: Runtime, *, parallel: int | None = None, takeovers: int | None = None, grace: float | None = None) -> None:
    """Sets how many tasks of a step run at once, how many takeovers a run survives, and for how many seconds a cancel waits for an effect. A
    runtime decides these itself, and so high that a test would take long to get there."""
    if parallel is not None:
        rt._services.parallel = parallel
    if takeovers is not None:
        rt._services.max_takeovers = takeovers
    if grace is not None:
        rt._services.grace = grace


async def sweep(rt: Runtime) -> bool:
    """Looks once which schedules are due and fires them; True if some still are. A worker would look again and drive the runs, while the tests
    that ask for this are about what happens in the middle of one look."""

    async def fail(schedule_id: str, error: Exception) -> None:
        raise error

    return await Sweeper(rt._services, (), fail).sweep()


def threads_of(rt: Runtime) -> Threads:
    """The ends of threads that a runtime has in hand. How many these are is seen by nobody, only felt, in memory."""
    return rt._services.threads


def forget_types(patch: pytest.MonkeyPatch) -> None:
    """Reads values as a process does that has registered none of the caller's types. Nothing takes a type back, for who would read what is stored?"""
    patch.setattr(canon, "_by_tag", {})


def begin_process(patch: pytest.MonkeyPatch) -> None:
    """Goes on as a process that has opened no store yet, as far as its garbage is concerned, which is gone through once."""
    patch.setattr(machine, "_swept", False)


# -- stores -----------------------------------------------------------------------------------------


class OpenMemory(MemoryStore):
    """A memory store that can be damaged. There is no file to do it to, and no verb of a store writes what is wrong."""

    def alter_run(self, run_id: str, **columns: object) -> None:
        """Writes over columns of a run's row."""
        self._runs[run_id] = replace(self._runs[run_id], **columns)

    def lose_run(self, run_id: str) -> None:
        """Takes a run's row away, and nothing else of it."""
        del self._runs[run_id]

    def alter_row(self, run_id: str, seq: int, data: bytes) -> None:
        """Writes over what a row of the log says, and leaves its hash."""
        self._log[run_id, seq] = replace(self._log[run_id, seq], data=data)


class OpenSqlite(SqliteStore):
    """A SQLite store whose own connection a test can limit or follow; what is done to another connection ends with that one."""

    @property
    def connection(self) -> apsw.Connection:
        """The connection that reads, and that writes while the disk is quick."""
        return self._read()

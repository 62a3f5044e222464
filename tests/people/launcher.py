"""Forks a process per line of its input: it answers, or works, and kills itself before or after one of its writes.

``URL FILE HOURS RUN WHAT VERB WHEN N``: ``WHAT`` is ``approve`` or ``work``; the Nth call of the store's verb ``VERB`` is the place, its
``WHEN`` ``before`` or ``after``. ``HOURS`` is how far this process's clock is ahead.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, cast

from holdfast import Absent, Context, Flow, Happened, Runtime, flow
from holdfast.machine import SystemClock
from holdfast.ports import Store
from holdfast.stores import SqliteStore

HOUR = 3_600_000_000
WRITES = ("put", "commit", "claim", "settle_effect")


class Ahead(SystemClock):
    """A clock that is hours ahead, so that deadlines have passed."""

    def __init__(self, hours: int) -> None:
        self.hours = hours

    def now(self) -> int:
        return time.time_ns() // 1000 + self.hours * HOUR


class Suicidal:
    """A store whose process ends at one of its writes. ``calls`` counts them, for whoever wants to know which there are.

    A claim that takes nothing writes nothing and is not counted: how often a worker asks again depends on how fast the machine is.
    """

    def __init__(self, store: Store, verb: str = "", when: str = "", number: int = 0) -> None:
        self._store = store
        self._place = (verb, when, number)
        self.calls: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)
        if name not in WRITES:
            return real

        async def call(*args: Any, **options: Any) -> Any:
            number = self.calls.get(name, 0) + 1
            self._here(name, "before", number)
            given = await real(*args, **options)
            if name != "claim" or given:
                self.calls[name] = number
                self._here(name, "after", number)
            return given

        return call

    def _here(self, *place: object) -> None:
        if place == self._place:
            os.kill(os.getpid(), signal.SIGKILL)


def skill(file: str) -> Flow[..., Any]:
    """Asks, then writes down outside what it was told."""

    def act(word: str, idempotency_key: str) -> str:
        handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(handle, f"{idempotency_key.replace(chr(31), '/')} {word}\n".encode())
        os.close(handle)
        return word

    def done(key: str, word: str) -> Happened | Absent:
        lines = Path(file).read_text().splitlines() if os.path.exists(file) else []
        return Happened(word) if any(line.startswith(key.replace(chr(31), "/") + " ") for line in lines) else Absent()

    @flow("asks")
    async def asks(ctx: Context) -> str:
        decision = await ctx.approve("go?", timeout=1800, on_timeout="deliver")
        return cast(str, await ctx.effect(act, decision.action, verify=done))

    return asks


async def does(store: Any, file: str, hours: int, run_id: str, what: str) -> None:
    async with Runtime(store, skills=[skill(file)], clock=Ahead(hours)) as rt:
        if what == "approve":
            await rt.decide(run_id, "approve", actor="ada")
        else:
            await rt.worker(until_idle=True)


def opened(path: str, hours: int) -> SqliteStore:
    return SqliteStore(path, now=Ahead(hours).now)


def main() -> None:
    for line in sys.stdin:
        path, file, hours, run_id, what, verb, when, number = line.split()
        pid = os.fork()
        if pid == 0:
            code = 3
            try:
                asyncio.run(does(Suicidal(cast(Store, opened(path, int(hours))), verb, when, int(number)), file, int(hours), run_id, what))
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()

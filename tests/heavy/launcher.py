"""Forks a process per line of its input: one that drives a run and is killed, or stopped, exactly at its effect."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import urllib.request

from holdfast import Absent, Context, Happened, Runtime, flow

LEASE_SECONDS = 0.5


class Outside:
    """The receiver: an HTTP server that counts, and a file that is only appended to. ``at``: where this process ends or stops."""

    def __init__(self, port: int, file: str, at: str = "", number: signal.Signals = signal.SIGKILL) -> None:
        self.url = f"http://127.0.0.1:{port}/"
        self.file = file
        self.at = at
        self.number = number

    def _here(self, at: str) -> None:
        if at == self.at:
            # To this very thread: sent to the process, it could go on for a while before the signal stops it.
            signal.pthread_kill(threading.get_ident(), self.number)

    def act(self, what: str) -> str:
        self._here("before")
        with urllib.request.urlopen(self.url + what, data=b"act", timeout=10) as answer:
            told = answer.read().decode()
        fd = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{what}\n".encode())
        os.close(fd)
        self._here("after")
        return str(told)

    def happened(self, key: str, what: str) -> Happened | Absent:
        with urllib.request.urlopen(self.url + what, timeout=10) as answer:
            return Happened("seen") if answer.read() == b"1" else Absent()


def skill(outside: Outside, verified: bool):  # type: ignore[no-untyped-def]
    @flow("acting")
    async def acting(ctx: Context, what: str) -> str:
        return str(await ctx.effect(outside.act, what, verify=outside.happened if verified else None))

    return acting


async def drive(url: str, what: str, verified: bool, outside: Outside) -> None:
    program = skill(outside, verified)
    async with Runtime(url, skills=[program], lease=LEASE_SECONDS) as rt:
        await rt.invoke(program, {"what": what}, key=what)


def main() -> None:
    url, port, file = sys.argv[1:4]
    for line in sys.stdin:
        what, at, how, verified = line.split()
        pid = os.fork()
        if pid == 0:
            code = 3
            try:
                number = signal.SIGSTOP if how == "stop" else signal.SIGKILL
                asyncio.run(drive(url, what, verified == "1", Outside(int(port), file, at, number)))
                code = 0
            finally:
                os._exit(code)
        print(pid, flush=True)
        if how == "kill":
            os.waitpid(pid, 0)
            print("ended", flush=True)
        else:
            sys.stdin.readline()  # the parent lets it go on, then asks for its end
            os.waitpid(pid, 0)
            print("ended", flush=True)


if __name__ == "__main__":
    main()

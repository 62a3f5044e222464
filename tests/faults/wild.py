# ruff: noqa: ASYNC222
"""Nodes that do something to their process (X-24), each in a process of its own: ``python -m tests.faults.wild FOLDER [NAME…]``.

Every kind is tried twice: by `invoke`, with a healthy run after it, and by a worker with ten healthy runs beside it. What the
process left is then looked at, and gone on with, by processes that know nothing of it. Each line of the output is one trial.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import ctypes
import functools
import gc
import json
import locale
import logging
import os
import random
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec

from holdfast import Context, Graph, Runtime, State
from holdfast.engine.base import loopwatch

PATIENCE_SECONDS = 60.0
AT_ONCE = 3
GENERATIONS = 14
MODES = ("invoke", "worker")


class Odd(State):
    n: int = 0
    anything: Any = None


class Well(State):
    n: int = 0


class Wild(msgspec.Struct, frozen=True):
    """``ends``: how its run must end; ``lives``: whether its process must outlive it (None: the docs promise neither). ``timeout`` of its node;
    the lease is short where there is one. Of what holds the loop of `invoke` for ever nothing is promised but that others go on with its run."""

    name: str
    function: Callable[..., Any]
    ends: tuple[str, ...]
    lives: bool | None
    timeout: float | None = None
    modes: tuple[str, ...] = MODES


KINDS: dict[str, Wild] = {}


def wild(*ends: str, lives: bool | None = True, timeout: float | None = None, modes: tuple[str, ...] = MODES) -> Callable[[Any], Any]:
    def put(function: Any) -> Any:
        KINDS[function.__name__] = Wild(function.__name__, function, ends or ("completed",), lives, timeout, modes)
        return function

    return put


# -- what belongs to the process ----------------------------------------------------------------------


@wild()
async def changes_the_folder(state: Odd) -> None:
    os.chdir(tempfile.gettempdir())


@wild()
async def removes_its_folder(state: Odd) -> None:
    there = tempfile.mkdtemp()
    os.chdir(there)
    os.rmdir(there)


@wild()
def clears_the_environment(state: Odd) -> None:
    os.environ.clear()


@wild()
async def sets_the_mask(state: Odd) -> None:
    os.umask(0o777)


@wild()
async def stops_the_collector(state: Odd) -> None:
    gc.disable()
    gc.set_threshold(0)


@wild()
async def collects_at_everything(state: Odd) -> None:
    gc.set_threshold(1)


@wild()
async def makes_warnings_errors(state: Odd) -> None:
    warnings.simplefilter("error")


@wild()
async def closes_stdout(state: Odd) -> None:
    sys.stdout.close()


@wild()
async def closes_the_descriptors_of_text(state: Odd) -> None:
    for fd in (0, 1, 2):
        with contextlib.suppress(OSError):
            os.close(fd)


@wild()
async def has_no_streams(state: Odd) -> None:
    sys.stdout = sys.stderr = sys.stdin = None  # type: ignore[assignment]


@wild()
async def prints_to_a_broken_stream(state: Odd) -> None:
    class Broken:
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

    sys.stdout = sys.stderr = Broken()  # type: ignore[assignment]


@wild()
async def ignores_the_signals(state: Odd) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)


@wild("failed")
async def handles_a_signal_by_raising(state: Odd) -> None:
    def handler(number: int, frame: Any) -> None:
        raise ValueError("from a handler")

    signal.signal(signal.SIGUSR1, handler)
    os.kill(os.getpid(), signal.SIGUSR1)


@wild()
async def takes_the_wakeup_descriptor(state: Odd) -> None:
    signal.set_wakeup_fd(-1)


@wild()
async def sets_another_locale(state: Odd) -> None:
    locale.setlocale(locale.LC_ALL, "C")


@wild()
async def seeds_the_dice(state: Odd, ctx: Context) -> None:
    random.seed(0)
    await ctx.step(asyncio.sleep, 0)


@wild()
async def turns_the_clock_back(state: Odd) -> None:
    time.time = lambda: 0.0  # type: ignore[assignment]
    time.time_ns = lambda: 0  # type: ignore[assignment]


@wild()
async def stops_the_wall_clock(state: Odd) -> None:
    now = time.time_ns()
    time.time_ns = lambda: now  # type: ignore[assignment]


@wild()
async def takes_print_and_open_away(state: Odd) -> None:
    builtins.print = builtins.open = builtins.input = None  # type: ignore[assignment]


@wild()
async def forgets_modules(state: Odd) -> None:
    for name in ("json", "secrets", "shutil", "holdfast.core.errors"):
        sys.modules.pop(name, None)


@wild()
async def changes_how_modules_are_found(state: Odd) -> None:
    sys.path.clear()
    sys.meta_path.clear()


# -- hooks ------------------------------------------------------------------------------------------------


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise ValueError("a handler that raises")


@wild()
async def logs_to_a_handler_that_raises(state: Odd, ctx: Context) -> None:
    logging.getLogger().addHandler(_Handler())
    logging.getLogger("holdfast").setLevel(logging.DEBUG)
    await ctx.step(asyncio.sleep, 0)


@wild()
async def filters_logs_by_raising(state: Odd) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise ValueError("a filter that raises")

    logging.getLogger("holdfast").addFilter(refuse)
    for name in ("holdfast.run", "holdfast.worker", "holdfast.runtime", "holdfast.node"):
        logging.getLogger(name).addFilter(refuse)


@wild("completed", "failed")
async def traces_by_raising(state: Odd) -> None:
    def trace(*_: Any) -> Any:
        raise ValueError("a trace function that raises")

    sys.settrace(trace)


@wild()
async def hooks_exceptions(state: Odd) -> None:
    def hook(*_: Any) -> None:
        raise ValueError("a hook that raises")

    sys.excepthook = threading.excepthook = sys.unraisablehook = hook  # type: ignore[assignment]
    asyncio.get_running_loop().set_exception_handler(hook)


class _Reluctant:
    def __del__(self) -> None:
        raise ValueError("from __del__")


@wild()
async def leaves_what_raises_when_it_goes(state: Odd) -> None:
    for _ in range(3):
        _Reluctant()
    loop: list[Any] = [_Reluctant()]
    loop.append(loop)


@wild()
async def audits_by_raising_for_a_while(state: Odd) -> None:
    on = [True]

    def hook(name: str, _: Any) -> None:
        if on and name == "subprocess.Popen":
            raise ValueError("not that")

    sys.addaudithook(hook)


# -- threads and processes ----------------------------------------------------------------------------------


@wild()
async def a_thread_that_exits(state: Odd) -> None:
    thread = threading.Thread(target=lambda: sys.exit(3))
    thread.start()
    thread.join()


@wild()
async def a_thread_that_raises(state: Odd) -> None:
    threading.Thread(target=lambda: 1 // 0).start()


@wild()
async def hundreds_of_threads(state: Odd) -> None:
    for _ in range(300):
        threading.Thread(target=time.sleep, args=(0.2,), daemon=True).start()


@wild()
async def a_thread_that_stays(state: Odd) -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()


@wild()
async def a_thread_that_interrupts_the_loop(state: Odd) -> None:
    loop = asyncio.get_running_loop()
    threading.Thread(target=lambda: loop.call_soon_threadsafe(lambda: 1 // 0)).start()


@wild()
def a_child_that_exits_at_once(state: Odd) -> None:
    pid = os.fork()
    if not pid:
        os._exit(7)
    os.waitpid(pid, 0)


@wild()
async def a_child_that_is_killed(state: Odd) -> None:
    pid = os.fork()
    if not pid:
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


@wild()
async def a_child_that_nobody_waits_for(state: Odd) -> None:
    if not os.fork():
        os._exit(0)


@wild()
async def a_child_that_uses_the_loop(state: Odd) -> None:
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            asyncio.get_running_loop().call_soon(print)
            await asyncio.sleep(0)
        os._exit(0)
    os.waitpid(pid, 0)


# -- the event loop ------------------------------------------------------------------------------------------


@wild("failed")
async def closes_the_loop(state: Odd) -> None:
    asyncio.get_running_loop().close()


@wild()
async def a_loop_beside_the_loop(state: Odd) -> None:
    def other() -> None:
        asyncio.run(asyncio.sleep(0))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()


@wild("failed")
async def runs_a_loop_in_the_loop(state: Odd) -> None:
    asyncio.run(asyncio.sleep(0))


@wild()
async def sets_no_loop(state: Odd) -> None:
    asyncio.set_event_loop(None)


@wild()
async def debugs_the_loop(state: Odd) -> None:
    asyncio.get_running_loop().set_debug(True)
    asyncio.get_running_loop().slow_callback_duration = 0.0


@wild()
async def shuts_the_default_executor_down(state: Odd) -> None:
    await asyncio.get_running_loop().shutdown_default_executor()


@wild("failed", lives=None)
async def stops_the_loop(state: Odd) -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)


@wild("completed", "failed", lives=None)
async def makes_no_more_tasks(state: Odd) -> None:
    def refuse(loop: Any, coro: Any, **_: Any) -> Any:
        coro.close()
        raise ValueError("no more tasks")

    asyncio.get_running_loop().set_task_factory(refuse)


@wild("completed", "failed", lives=None)
async def cancels_every_task(state: Odd) -> None:
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0)


# -- what holds the loop --------------------------------------------------------------------------------------


@wild("failed", timeout=0.5)
async def spins(state: Odd) -> None:
    while True:
        pass


@wild("failed", timeout=0.5)
async def spins_in_a_task(state: Odd) -> None:
    async def inner() -> None:
        while True:
            pass

    await asyncio.create_task(inner())


@wild("failed", timeout=0.5)
async def sleeps_on_the_loop(state: Odd) -> None:
    for _ in range(1000):
        select.select([], [], [], 0.1)


@wild("failed", lives=False, timeout=0.5, modes=("worker",))
async def spins_and_catches_all(state: Odd) -> None:
    while True:
        with contextlib.suppress(BaseException):
            select.select([], [], [], 0.001)


@wild("failed", timeout=0.5)
async def is_long_in_c(state: Odd) -> None:
    threading.Lock().acquire() and select.select([], [], [], 3.0)


@wild("failed", lives=False, timeout=0.5, modes=("worker",))
async def never_comes_back_from_c(state: Odd) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


@wild("failed", lives=False, timeout=0.5, modes=("worker",))
async def reads_what_never_comes(state: Odd) -> None:
    os.read(os.pipe()[0], 1)


# -- limits ----------------------------------------------------------------------------------------------------


@wild("completed", "failed", "running", "pending", lives=None)
async def lowers_the_depth_of_calls(state: Odd) -> None:
    depth = 0
    frame: Any = sys._getframe()
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    sys.setrecursionlimit(depth + 12)


@wild("failed")
async def goes_too_deep_in_c(state: Odd) -> Any:
    deep: Any = None
    for _ in range(100_000):
        deep = functools.partial(int, deep)
    return {"anything": repr(deep)}


@wild("failed")
async def wants_all_memory(state: Odd) -> Any:
    return {"anything": [bytearray(1 << 60)]}


@wild()
async def a_number_without_end(state: Odd) -> Any:
    return {"anything": 10**5000}


# -- ends its process ---------------------------------------------------------------------------------------------


@wild("failed", lives=False)
async def exits_at_once(state: Odd) -> None:
    os._exit(9)


@wild("failed", lives=False)
def exits_from_a_thread(state: Odd) -> None:
    os._exit(9)


@wild("failed", lives=False)
async def kills_itself(state: Odd) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@wild("failed", lives=False)
async def breaks_the_memory(state: Odd) -> None:
    ctypes.string_at(0)


@wild("completed", "failed", lives=None)
async def closes_all_descriptors(state: Odd) -> None:
    os.closerange(3, 256)


# -- a reducer, a condition ------------------------------------------------------------------------------------------


def deeper(old: int, new: int) -> int:
    return deeper(old, new) + 1


class Summed(State):
    n: Annotated[int, deeper] = 0


def graph_of(kind: Wild) -> Graph[Any]:
    if kind.name == "a_reducer_without_end":
        made: Graph[Any] = Graph(kind.name, Summed)
        made.node("odd", start=True)(kind.function)
        return made
    made = Graph(kind.name, Odd)
    made.node("odd", start=True, timeout=kind.timeout)(kind.function)
    return made


def runtime(kind: Wild, url: str, *skills: Graph[Any]) -> Runtime:
    if kind.timeout is None:
        return Runtime(url, skills=list(skills))
    loopwatch.CLEANUP_SECONDS = 0.5
    return Runtime(url, skills=list(skills), lease=2)


@wild("failed")
async def a_reducer_without_end(state: Summed) -> dict[str, int]:
    return {"n": 1}


def healthy() -> Graph[Well]:
    graph = Graph("healthy", Well)

    @graph.node(start=True)
    async def one(state: Well, ctx: Context) -> dict[str, int]:
        await ctx.step(asyncio.sleep, 0)
        return {"n": state.n + 1}

    @graph.node(after="one")
    def two(state: Well) -> dict[str, int]:
        return {"n": state.n + 1}

    return graph


# -- trials ------------------------------------------------------------------------------------------------------------


async def first(kind: Wild, mode: str, url: str) -> dict[str, Any]:
    """The process that meets the node."""
    odd, good = graph_of(kind), healthy()
    async with runtime(kind, url, odd, good) as rt:
        if mode == "invoke":
            await rt.invoke(odd, {})
            return {"after": (await rt.invoke(good, {})).values.get("n")}
        await rt.submit(odd, {})
        for _ in range(10):
            await rt.submit(good, {})
        await rt.worker(until_idle=True)
        return {"after": [r.values.get("n") for r in await rt.runs(skill_id="healthy")]}


async def further(kind: Wild, url: str) -> dict[str, Any]:
    """A process that takes up whatever is left."""
    async with runtime(kind, url, graph_of(kind), healthy()) as rt:
        await rt.worker(until_idle=True)
        return {"open": [r.run_id for r in await rt.runs(limit=100) if r.status in ("pending", "running")]}


async def look(kind: Wild, url: str) -> dict[str, Any]:
    async with Runtime(url) as rt:
        runs = await rt.runs(limit=100)
        (odd,) = [r for r in runs if r.skill_id == kind.name]
        error = None if odd.error is None else f"{odd.error.type}: {odd.error.message}"
        return {
            "status": str(odd.status), "reason": odd.stop_reason, "error": error, "healthy": [r.values.get("n") for r in runs if r.skill_id == "healthy"],
            "problems": [f"{p.code}: {p.message}" for p in await rt.check()],
        }


def child(work: Callable[[], Any], answer: Path) -> None:
    """Runs in a process that was forked for it, and never comes back."""
    code = 1
    try:
        done = asyncio.run(work())
        fd = os.open(answer, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(fd, json.dumps(done).encode())
        os.close(fd)
        code = 0
    except BaseException:
        with contextlib.suppress(BaseException):
            fd = os.open(answer, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.write(fd, json.dumps({"raised": traceback.format_exc()[-2000:]}).encode())
            os.close(fd)
    finally:
        os._exit(code)


class Trial:
    """One kind in one mode: a process, then as many as it takes, then a look."""

    def __init__(self, kind: Wild, mode: str, folder: Path) -> None:
        self.kind, self.mode, self._folder = kind, mode, folder / f"{kind.name}-{mode}"
        self._folder.mkdir(parents=True)
        self.said: dict[str, Any] = {"name": kind.name, "mode": mode, "generations": 0, "hung": False}
        self._begin("first")

    @property
    def _url(self) -> str:
        return f"sqlite:///{self._folder}/runs.db"

    def _begin(self, phase: str) -> None:
        self._phase, self._until = phase, time.monotonic() + PATIENCE_SECONDS
        self._answer = self._folder / f"{phase}{self.said['generations']}.json"
        kind, url = self.kind, self._url
        work = {"first": lambda: first(kind, self.mode, url), "further": lambda: further(kind, url), "look": lambda: look(kind, url)}[phase]
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            quiet = os.open(self._folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            child(work, self._answer)

    def step(self) -> bool:
        """Goes on if its process has ended; True when all is over."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            if time.monotonic() > self._until:
                os.kill(self.pid, signal.SIGKILL)
                self.said["hung"] = True
            return False
        code = os.waitstatus_to_exitcode(status)
        told = json.loads(self._answer.read_text() or "{}") if self._answer.exists() else {}
        if self._phase == "look":
            self.said |= told
            return True
        if self._phase == "first":
            self.said |= told | {"exit": code}
        over = (code == 0 and not told.get("open")) or self.said["generations"] >= GENERATIONS or self.said["hung"]
        if over and (self._phase == "further" or self.kind.lives is True):
            self._begin("look")
            return False
        self.said["generations"] += 1
        self._begin("further")
        return False


def main(folder: Path, names: list[str]) -> None:
    os.environ["HOLDFAST_TEST"] = "1"
    waiting = [(KINDS[name], mode) for name in names or KINDS for mode in KINDS[name].modes]
    here: list[Trial] = []
    while waiting or here:
        while waiting and len(here) < AT_ONCE:
            here.append(Trial(*waiting.pop(0), folder))
        for trial in list(here):
            if trial.step():
                here.remove(trial)
                print(json.dumps(trial.said), flush=True)
        ends = [os.pidfd_open(trial.pid) for trial in here]
        select.select(ends, [], [], 1.0)
        for end in ends:
            os.close(end)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

"""What all commands share: options, the store, an event loop that ends cleanly, and the errors of ``main``."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import functools
import getpass
import io
import math
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar
from urllib.parse import unquote

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from holdfast.authoring import Skill, Tool
from holdfast.cli import extras, leaving
from holdfast.cli import output as o
from holdfast.cli.targets import names_skills, setting, workspace
from holdfast.core import canon
from holdfast.core.addresses import mask
from holdfast.core.errors import AmbiguousRun, HoldfastError, InvalidInput, NotFound, RunNotFound, StoreUnavailable, UsageError
from holdfast.core.jsons import json_of
from holdfast.core.limits import Limit
from holdfast.core.status import LIVE
from holdfast.core.wording import YOUR_FILE
from holdfast.engine.keep.check import keeper
from holdfast.engine.look.looker import Wanted, refuse_cursor
from holdfast.ports import RunFilter
from holdfast.runtime import Runtime, choose_store
from holdfast.stores import schema_version

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
DEBUG = "holdfast.debug"
GRACE_SECONDS = 10.0
PATIENT = 2  # how many signals ask a command to end; the next one kills it
END_SECONDS = 5.0
"""How long a command that was told to end may take for it, whatever the store does: to release its runs, to close, to say how to go on. What it has not
released by then is free when its lease expires."""


class Stopped(HoldfastError):
    """A signal ended the command, and the runs that it drove were handed back. ``go_on`` are the commands that continue them."""

    code = "stopped"

    def __init__(self, number: int, go_on: Sequence[str] = ()) -> None:
        text = "; its runs are released, and a worker resumes them" if go_on else ""
        super().__init__(f"by {signal.Signals(number).name}{text}", hint="or: " + "; ".join(go_on) if go_on else "")
        self.exit_code = 128 + number


class Ending:
    """The deadline of a command that was told to end, by the clock of its event loop; None before. Everything that is done until then shares it."""

    def __init__(self) -> None:
        self.until: float | None = None

    def begin(self) -> None:
        if self.until is None:
            self.until = asyncio.get_running_loop().time() + END_SECONDS

    @property
    def left(self) -> float | None:
        """The seconds until the deadline."""
        return None if self.until is None else max(0.0, self.until - asyncio.get_running_loop().time())

    @contextlib.asynccontextmanager
    async def close(self, rt: Runtime) -> AsyncIterator[Runtime]:
        """Opens a runtime, and closes it in the time that is left."""
        await rt.__aenter__()
        try:
            yield rt
        finally:
            closing = asyncio.ensure_future(rt.__aexit__(None, None, None))
            if self.until is None:
                await closing
            else:
                await asyncio.wait({closing}, timeout=self.left)
                if not closing.done() or isinstance(closing.exception(), StoreUnavailable):
                    click.echo("the store did not answer in time: what was not released is free when its lease ends", err=True)
                else:
                    closing.result()


ENDING: contextvars.ContextVar[Ending] = contextvars.ContextVar("holdfast_ending")


@dataclasses.dataclass(frozen=True)
class Call:
    """The options that every command has."""

    store: str
    named: bool
    as_json: bool = False
    lease: float | None = None
    drives: bool = False

    def line(self, *words: str) -> str:
        """Returns the command to type next, with the same store."""
        return shlex.join([*program(), *words, *(["--store", self.shown] if self.named else [])])

    def code(self, target: str | None) -> list[str]:
        """Returns a run's TARGET for a command: the one it was submitted with; else nothing if this project names skills; else a word to replace."""
        return [target] if target else [] if names_skills() else [YOUR_FILE]

    def retype(self, **instead: str | bool) -> str:
        """Returns the command that was typed, with other or further arguments and options."""
        context = click.get_current_context()
        words: list[str] = []
        for param in sorted(context.command.params, key=lambda p: not isinstance(p, click.Argument)):
            name = param.name or ""
            value = instead.get(name, context.params.get(name))
            given = name in instead or context.get_parameter_source(name) is ParameterSource.COMMANDLINE
            if not given or value in (None, False) or name in ("store", "workspace"):
                continue
            each = [str(v) for v in value] if isinstance(value, tuple) else [str(value)]
            if isinstance(param, click.Argument):
                words += each
            else:
                words += [param.opts[0]] if value is True else [word for v in each for word in (param.opts[0], v)]
        path: list[str] = []
        while context.parent is not None:  # schedule trigger, token create
            path.insert(0, str(context.command.name))
            context = context.parent
        return self.line(*path, *words)

    def next_page(self, cursor: object) -> str | None:
        """Returns the command that was typed, for the page after this one; None on the last page."""
        return None if cursor is None else self.retype(cursor=str(cursor))

    def spell(self, text: str) -> str:
        """Returns a text of the library with its commands as they are typed here: with the program's name, this store, and the project's skills."""
        if "--store" in text:
            return text
        known = click.get_current_context().find_root().command
        start = shlex.join([*program(), *(["--store", self.shown] if self.named else [])])
        commands = known.commands if isinstance(known, click.Group) else {}
        said = _COMMAND.sub(lambda m: f"{start} {m[1]}" if m[1] in commands else m[0], text)
        return said.replace(f" {YOUR_FILE}", "") if names_skills() else said

    @property
    def looking(self) -> Call:
        """The same call, for an action that only looks and drives nothing."""
        return dataclasses.replace(self, drives=False)

    def schema(self) -> int | None:
        """Returns the present schema of the store."""
        return schema_version(self.store)

    @property
    def is_kept(self) -> bool:
        """Whether the store still exists when the command has ended."""
        return self.store not in ("memory:", "memory://")

    @property
    def shown(self) -> str:
        """The store's URL without its password, as it may be printed."""
        return mask(self.store)

    @property
    def file(self) -> Path | None:
        """The store's file, if the store is SQLite."""
        form = "sqlite:///"
        return Path(unquote(self.store.removeprefix(form))) if self.store.startswith(form) else None

    @property
    def missing(self) -> Path | None:
        """The file or folder of a store that does not exist yet; else None."""
        for form in ("sqlite:///", "workspace:"):
            if self.store.startswith(form):
                path = Path(unquote(self.store.removeprefix(form)))
                try:
                    path.stat()
                except (FileNotFoundError, NotADirectoryError):
                    return path
                except OSError:
                    return None  # whether it exists is unknown: the store says what is in the way when it is opened
        return None


@dataclasses.dataclass(frozen=True)
class Project:
    """What this project gives to a command that drives: ``[tool.holdfast] transports|tools|policy|limits|workspace`` in pyproject.toml."""

    transports: Mapping[str, Any] | None = None
    tools: tuple[Tool, ...] = ()
    policy: Any = None
    limits: Mapping[str, Limit] | None = None
    workspace: str | None = None

    @classmethod
    def of(cls, transports: str | None = None) -> Project:
        return cls(setting("transports", transports), tuple(setting("tools") or ()), setting("policy"), setting("limits"), workspace())


_COMMAND = re.compile(r"(?<![\w./-])(?<!-m )(?<!run )holdfast ([a-z][a-z-]*)\b")


def program() -> list[str]:
    """Returns how this command was called, so that the commands that we tell people to type work."""
    if os.environ.get("UV_RUN_RECURSION_DEPTH"):
        return ["uv", "run", "holdfast"]
    return ["holdfast"] if Path(sys.argv[0]).name == "holdfast" else ["python", "-m", "holdfast"]


# -- options ----------------------------------------------------------------------------------------


def options(*, data: bool = True, drives: bool = False, default: str | None = None, folder: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds ``--store`` and related options to a command, and passes them as its first argument, a ``Call``.

    Args:
        data: the command prints data, so it takes ``--json``.
        drives: the command drives runs, so it takes ``--lease``.
        default: its store if neither an option nor ``$HOLDFAST_STORE`` names one.
        folder: the command takes ``--workspace``, which names a store.
    """

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def act(
            *args: Any, store: str | None, debug: bool, workspace: str | None = None, as_json: bool = False, lease: float | None = None, **more: Any
        ) -> Any:
            context = click.get_current_context()
            if debug:
                context.meta[DEBUG] = True
            above = context.find_root().params
            if store is not None and workspace is not None:
                raise UsageError("--store and --workspace cannot be combined: each names a store", hint="give one of them")
            given = next((url for url in (store, None if workspace is None else f"workspace:{workspace}", above.get("store")) if url is not None), None)
            named = given if given is not None else os.environ.get("HOLDFAST_STORE") or default
            usual = choose_store(None)
            url = usual if named is None else named
            call = Call(url, url != usual, as_json, lease, drives)
            try:
                for name in (p.name for p in context.command.params if isinstance(p.type, RunName)):
                    if name is not None and more.get(name):
                        more[name] = whole_id(call, more[name])
                with o.keeping_apart() if as_json else contextlib.nullcontext():
                    return function(call, *args, **more)
            except HoldfastError as e:
                e.hint = call.spell(e.hint)
                raise

        decorated: Callable[..., Any] = act
        for add in _add_shared(data, drives, folder):
            decorated = add(decorated)
        return decorated

    return declare


def _add_shared(data: bool, drives: bool, folder: bool) -> list[Callable[[Any], Any]]:
    found: list[Callable[[Any], Any]] = [
        click.option("--debug", is_flag=True, help="On an error, show the traceback too."),
        *([click.option("--workspace", metavar="DIR", help="Use the workspace DIR as the store; it has one directory for each run.")] if folder else []),
        click.option("--store", metavar="URL", help="The store. [default: $HOLDFAST_STORE, else .holdfast/runs.db here]"),
    ]
    if drives:
        seconds = Within(min=0.1, max=86_400)
        text = "How long a run, or a message that is being sent, stays with a process that no longer responds. [default: $HOLDFAST_LEASE, else 30]"
        found.append(click.option("--lease", type=seconds, metavar="SECONDS", envvar="HOLDFAST_LEASE", help=text))
    if data:
        found.append(click.option("--json", "as_json", is_flag=True, help="Print one JSON object."))
    return found


class RunName(click.ParamType):  # type: ignore[type-arg]  # it has a parameter from click 8.4 on, and 8.2 will do
    """A run: its id, the beginning of its id, or ``last`` for the newest (§7.10). ``options`` replaces it by the whole id."""

    name = "run"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Returns ``last``, and the newest runs whose ids begin with what was typed."""
        url = ctx.params.get("store") or ctx.find_root().params.get("store") or os.environ.get("HOLDFAST_STORE") or choose_store(None)
        call = Call(url, False)
        if call.missing is not None:
            return []

        async def look(rt: Runtime) -> list[CompletionItem]:
            found = await rt.look.runs(Wanted(limit=OFFERED), values=False)
            return [CompletionItem(r.run_id, help=f"{r.skill_id} {r.condition}") for r in found]

        return [item for item in [CompletionItem(LAST, help="the newest run"), *over(call, look)] if item.value.startswith(incomplete)]


RUN = RunName()
OFFERED = 50
"""How many runs the shell completion offers."""
RUN_ID = re.compile(r"[0-9a-z]{26}")
SHORT_ID = re.compile(r"[0-9a-z]{6,25}")
LAST = "last"


def whole_id(call: Call, text: str) -> str:
    """Returns the whole id of the run that was typed. If it was not typed as a whole, it is printed on stderr before anything is done.

    Raises:
        AmbiguousRun: the ids of several runs begin with it. RunNotFound: there is no run yet that ``last`` could mean.
    """
    if call.missing is not None or (text != LAST and not SHORT_ID.fullmatch(text)):
        return text

    async def look(rt: Runtime) -> list[str]:
        if text == LAST:
            return [run.run_id for run, _ in await rt.store.runs(RunFilter(limit=1))]
        return [i for i in await keeper(rt.store).run_ids(text, 3) if i.startswith(text)]

    found = over(call.looking, look)
    if len(found) > 1:
        raise AmbiguousRun(f"several runs' ids begin with {text}: {', '.join(found[:2])}{', …' if len(found) > 2 else ''}", hint="give more of the id")
    if not found and text == LAST:
        raise RunNotFound(f"there is no run yet in {call.shown}", hint=f"{call.line('run', *call.code(None))}; --store names another store")
    if not found:
        return text
    click.echo(f"run {found[0]}", err=True)
    return found[0]


def run_argument(*, required: bool = True) -> Callable[[F], F]:
    """Adds the argument RUN to a command."""
    return click.argument("run_id", type=RUN, metavar="RUN" if required else "[RUN]", required=required)


def add_paging(most: str = "All of them, if not given.") -> Callable[[F], F]:
    """Adds ``--limit`` and ``--cursor`` to a command that lists something. ``most``: help text for what holds without a limit."""

    def declare(function: F) -> F:
        cursor = click.option("--cursor", metavar="C", help="Continue after this one: the next_cursor of the previous page.")
        limit = click.option("--limit", type=click.IntRange(1, 500), metavar="N", help=f"How many at most. {most}")
        return limit(cursor(function))

    return declare


C = TypeVar("C", str, int)


async def find_next(found: Sequence[T], limit: int | None, name: Callable[[T], C], beyond: Callable[[C], Awaitable[Sequence[object]]]) -> C | None:
    """Returns the cursor of a page if the page is full and something comes after it. ``beyond`` reads what comes after a cursor."""
    if limit is None or len(found) < limit:
        return None
    cursor = name(found[-1])
    return cursor if await beyond(cursor) else None


def page(items: Sequence[T], name: Callable[[T], str], limit: int | None, cursor: str | None) -> tuple[list[T], str | None]:
    """Returns the items after the one that the cursor names, and the cursor of the page after them.

    Raises:
        InvalidInput: the cursor names none of them.
    """
    start = 0
    if cursor is not None:
        start = next((n for n, item in enumerate(items, 1) if name(item) == cursor), 0)
        if not start:
            raise refuse_cursor(cursor)
    found = list(items[start:] if limit is None else items[start : start + limit])
    return found, name(found[-1]) if found and start + len(found) < len(items) else None


def actor_option(function: F) -> F:
    return click.option("--actor", metavar="NAME", envvar="HOLDFAST_ACTOR", default=login, help="The name under which this is recorded. [default: $HOLDFAST_ACTOR, else your user name]")(function)


def login() -> str:
    """Returns the name of the user at the keyboard."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "operator"


def parse(text: str | None, what: str) -> Any:
    """Reads JSON from the command line: the text itself, ``@FILE``, or ``-`` for stdin.

    Raises:
        InvalidInput: it cannot be read or is not JSON; the message says where the mistake is.
    """
    if text is None:
        return None
    try:
        if text == "-":
            text = sys.stdin.read()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text("utf-8")
    except (OSError, ValueError) as e:
        raise InvalidInput(f"{what} cannot be read: {e}") from None
    try:
        return json_of(text)
    except (ValueError, RecursionError) as e:
        raise InvalidInput(f"{what} is not JSON: {e}", hint=_example(what)) from None


def _example(what: str) -> str:
    """Returns an example of JSON as it is typed for this option."""
    return """in a shell: '{"name": "Ada"}'""" if what == "--input" else """in a shell: '"a text"', 42, true or '{"name": "Ada"}'"""


MOST = 2**53


class Within(click.FloatRange):
    """A finite number within a range. Nan is refused here, because no comparison with it holds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return found


ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")


def export(rt: Runtime) -> contextlib.AbstractAsyncContextManager[None]:
    """Sends the traces and metrics of this process if the standard variables of OpenTelemetry ask for them (§18)."""
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return contextlib.nullcontext()
    return extras.telemetry.export(rt)


# -- running ----------------------------------------------------------------------------------------


class Patience:
    """Says on a terminal that something is still under way: one line, after the first second, removed at the end. In a pipe it says nothing."""

    def __init__(self, what: str, stream: TextIO | None = None, every: float = 1.0) -> None:
        self._what = what
        self._stream = stream or sys.stderr
        self._every = every
        self._task: asyncio.Task[None] | None = None
        self._told = False

    async def __aenter__(self) -> None:
        if self._what and self._stream.isatty():
            self._task = asyncio.ensure_future(self._tell())

    async def __aexit__(self, *error: object) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._told:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()

    async def _tell(self) -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(self._every)
            self._told = True
            self._stream.write(f"\r\x1b[2K{self._what}, {time.monotonic() - began:.0f} s")
            self._stream.flush()


def over(
    call: Call, act: Callable[[Runtime], Awaitable[T]], skills: Iterable[Skill] = (), *, make: bool = False, transports: str | Project | None = None, long: str = "",
    tried: Callable[[Runtime], Awaitable[object]] | None = None,
) -> T:
    """Opens the store, acts, closes it. Without ``make`` a store that does not exist reads as an empty one and is not made. An error that
    results from that says so; otherwise a line on stderr does.

    A command that drives has the project's transports, tools, policy and limits. ``transports`` is a TARGET that replaces the first, or a
    ``Project`` that replaces them all. ``long`` says what is under way if it may take more than a second. If ``make`` is to make the store,
    ``tried`` is first done to a store in memory, so that a refused command leaves no store behind.

    SIGINT and SIGTERM end the act: what it drives is handed back at its next safe boundary (§10.13).
    """

    project = transports if isinstance(transports, Project) else Project.of(transports) if call.drives else Project()
    missing = None if make else call.missing
    if tried is not None and make and call.missing is not None:
        over(dataclasses.replace(call.looking, store="memory:"), tried, skills, make=True)

    async def whole() -> T:
        ENDING.set(ending := Ending())
        leaving.watch_threads()
        made = Runtime(
            call.store if missing is None else "memory:", skills=skills, lease=call.lease, transports=project.transports, tools=project.tools, policy=project.policy,
            limits=project.limits, workspace=project.workspace,
        )
        async with ending.close(made) as rt, export(rt) if call.drives else contextlib.nullcontext(), Patience(long):
            return await stoppable(act(rt), call, rt)

    try:
        with contextlib.nullcontext() if call.drives else canon.looking():
            found = asyncio.run(whole())
    except NotFound as e:
        if missing is None:
            raise
        raise type(e)(f"{e.message}: there is no store at {missing.absolute()} yet", hint="--store names another", code=e.code) from e
    if missing is not None:
        click.echo(f"there is no store at {missing.absolute()} yet", err=True)
    return found


def there(call: Call) -> None:
    """Refuses a command that makes no sense for a store that does not exist.

    Raises:
        NotFound: the store does not exist yet.
    """
    if (path := call.missing) is not None:
        raise NotFound(f"there is no store at {path.absolute()}", hint="check the current folder, or choose another store with --store", code="no_store")


async def stoppable(act: Awaitable[T], call: Call, rt: Runtime) -> T:
    """Awaits ``act``. The first SIGINT or SIGTERM gives the runs that it drives some time to reach a safe boundary; a second one cancels
    them at once; a third kills the process as usual. A command that only looks is ended by the first.

    Raises:
        Stopped: it did not end by itself.
    """
    loop, ending = asyncio.get_running_loop(), ENDING.get()
    told: list[int] = []
    news = asyncio.Event()

    def tell(number: int) -> None:
        told.append(number)
        news.set()

    task: asyncio.Future[T] = asyncio.ensure_future(act)
    with handling(loop, tell):
        await either(task, news)
        if not task.done() and call.drives:
            click.echo(f"stopping when the current step or recorded call has ended, in {GRACE_SECONDS:g} s at the latest (Ctrl-C again: at once)", err=True)
            rt.drain()
            news.clear()
            await either(task, news, GRACE_SECONDS)
        left = rt.driving
        if not task.done():
            ending.begin()
            task.cancel()
            await asyncio.wait({task}, timeout=ending.left)
        elif not rt.left:
            return task.result()
    if task.done() and not task.cancelled():
        task.exception()  # whatever error the stop led to: the signal is reported instead
    raise Stopped(told[0], await _tell_how_to_go_on(call, rt, dict.fromkeys([*rt.left, *left]), ending))


async def _tell_how_to_go_on(call: Call, rt: Runtime, run_ids: Iterable[str], ending: Ending) -> list[str]:
    """Returns the commands that continue those of these runs that are still live; if the store does not answer, those of all runs."""
    try:
        async with asyncio.timeout_at(ending.until):
            runs = [await rt.get(run_id) for run_id in run_ids]
    except (TimeoutError, StoreUnavailable):
        return [call.line("resume", run_id, *call.code(None)) for run_id in run_ids]
    return [call.line("resume", r.run_id, *call.code(r.target)) for r in runs if r.status in LIVE]


async def either(task: asyncio.Future[Any], news: asyncio.Event, seconds: float | None = None) -> None:
    """Waits until the task is done or there is news, but not longer than ``seconds``."""
    waiting = asyncio.ensure_future(news.wait())
    try:
        await asyncio.wait({task, waiting}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


@contextlib.contextmanager
def handling(loop: asyncio.AbstractEventLoop, act: Callable[[int], None]) -> Any:
    """Calls ``act`` with the number of a SIGINT or SIGTERM, which would otherwise end the process; the third one does end it."""
    held: list[signal.Signals] = []
    heard: list[int] = []

    def hear(number: int) -> None:
        heard.append(number)
        leaving.note_signal()
        if len(heard) <= PATIENT:
            act(number)
            return
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not in the main thread, or not on this system
            loop.add_signal_handler(number, hear, number)
            held.append(number)
    try:
        yield
    finally:
        for number in held:
            loop.remove_signal_handler(number)


# -- the end ----------------------------------------------------------------------------------------


class Commands(click.Group):
    """The group of all commands. It turns every error into one line on stderr and an exit code."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.sections: dict[str, list[click.Command]] = {}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands under their titles, in the order in which a user comes to need them."""
        longest = max(len(name) for name in self.commands)
        for title, commands in self.sections.items():
            room = formatter.width - 6 - longest
            with formatter.section(title):
                formatter.write_dl([((c.name or "").ljust(longest), c.get_short_help_str(room)) for c in commands if not c.hidden])

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, *rest: Any, standalone_mode: bool = True, **more: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a terminal without some sign is no reason to fail
        act = functools.partial(super().main, args, prog_name, *rest, standalone_mode=False, **more)
        if not standalone_mode:
            return act()
        with o.keeping_one_object() as tell:
            return sys.exit(_end(act, tell if "--json" in (sys.argv[1:] if args is None else args) else None))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as e:
            if ctx.meta.get(DEBUG) and not isinstance(e, click.exceptions.Exit | click.Abort | o.Gone):
                sys.excepthook(type(e), e, e.__traceback__)
            if isinstance(e, BrokenPipeError):  # a pipe of the run, because stdout raises an error of its own: click would end without a message
                raise HoldfastError(f"{e.filename or 'input or output'}: {e.strerror or e}", code="io_error") from e
            raise


def _end(act: Callable[[], Any], tell: Callable[[HoldfastError], None] | None = None) -> int:
    """Returns the exit code of a command. Prints its error as one line, and with ``tell`` also as the answer."""
    try:
        code = act()
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as e:
        return e.exit_code
    except click.exceptions.NoArgsIsHelpError as e:
        return _end(functools.partial(click.echo, e.message))  # if a group is typed alone, the message is its help
    except o.Gone:
        return 128 + signal.SIGPIPE
    except (Exception, KeyboardInterrupt) as e:
        code, line, error = _describe(e)
        _say(line)
        if tell is not None:
            tell(error)
        return code


def _describe(error: BaseException) -> tuple[int, str, HoldfastError]:
    """Returns how a command ends with an error: its exit code, the line for people, and the error for programs."""
    match error:
        case click.Abort():
            return 130, "stopped", HoldfastError("stopped", code="stopped")
        case click.UsageError():
            name = error.ctx.command_path if error.ctx is not None else "holdfast"
            wrong = HoldfastError(_plain(error.format_message()), hint=f"{name} --help", code="usage")
            return 2, wrong.line(), wrong
        case click.ClickException():
            wrong = HoldfastError(error.format_message(), code="usage")
            return 2, wrong.line(), wrong
        case HoldfastError():
            return error.exit_code, error.line(), error
        case KeyboardInterrupt():
            return 130, "stopped: interrupted", HoldfastError("interrupted", code="stopped")
        case OSError():
            wrong = HoldfastError(f"{error.filename or 'input or output'}: {error.strerror or error}", code="io_error")
            return 1, wrong.line(), wrong
    wrong = HoldfastError(f"{type(error).__name__}: {' '.join(str(error).split())}", hint="--debug shows where", code="internal")
    return 1, wrong.line(), wrong


def _plain(message: str) -> str:
    """Returns what click says about a number, in words that users know."""
    return re.sub(r"is not a valid (integer|float)( range)?\b", lambda m: "is not a whole number" if m[1] == "integer" else "is not a number", message).rstrip(".")


def _say(line: str) -> None:
    click.echo(o.inline(line), err=True)

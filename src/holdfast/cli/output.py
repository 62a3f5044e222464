"""What people and programs read: JSON as one object, plain lines in a pipe, colour and width only on a terminal.

All text of a run (prompts, values, messages) passes ``clean`` first, so that stored text can neither move the cursor
of an operator's terminal nor break a line in two.
"""

from __future__ import annotations

import contextlib
import contextvars
import datetime as dt
import json
import os
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TextIO, cast

import click

from holdfast.core import canon, wording
from holdfast.core.errors import HoldfastError
from holdfast.core.status import Condition
from holdfast.core.visible import JOINER, NON_JOINER, escape

COLOURS: dict[str, str] = {
    Condition.QUEUED: "cyan",
    Condition.RUNNING: "cyan",
    Condition.REPLAYING: "cyan",
    Condition.AWAITING_PHASE_HANDOFF: "yellow",
    Condition.AWAITING_GATE_DECISION: "yellow",
    Condition.AWAITING_HUMAN_REVIEW: "yellow",
    Condition.AWAITING_SIGNAL: "blue",
    Condition.DONE: "green",
    Condition.HALTED: "magenta",
    Condition.CANCELLED: "magenta",
    Condition.FAILED: "red",
    Condition.UNKNOWN: "red",
    Condition.INTERRUPTED: "red",
}
Mark = Literal["ok", "bad", "warn", "ask", "go", "part", "skip", "again", "dot"]
_MARKS: dict[Mark, tuple[str, str]] = {
    "warn": ("!", "!"), "ok": ("✓", "+"), "bad": ("✗", "x"), "ask": ("?", "?"), "go": ("→", ">"), "part": ("≈", "~"), "skip": ("–", "-"), "again": ("↻", "@"), "dot": ("·", "."),
}
_MARK_COLOURS: dict[Mark, str] = {"ok": "green", "warn": "yellow", "bad": "red", "ask": "yellow", "part": "yellow", "again": "yellow", "go": "cyan"}


# -- programs ---------------------------------------------------------------------------------------


_OUTSIDE = re.compile(r"[^\x00-\x7f]+")
_answer: contextvars.ContextVar[TextIO | None] = contextvars.ContextVar("holdfast_answer", default=None)
"""The stream for the answer of a command that prints JSON; None means standard output."""
_emitted: contextvars.ContextVar[list[bool]] = contextvars.ContextVar("holdfast_emitted")
"""The list is filled once there is an answer."""


def emit(data: Mapping[str, Any], *, whole: bool = True) -> None:
    """Prints one JSON object on standard output. It is indented on a terminal, unless it is one of several, each on its own line."""
    stream = _answer.get() or sys.stdout
    if (said := _emitted.get(None)) is not None:
        said.append(True)
    text = as_json(data, indent=2 if whole and stream.isatty() else None)
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        text = _OUTSIDE.sub(lambda found: json.dumps(found[0])[1:-1], text)  # JSON has an escape for what the output cannot carry
    click.echo(text, file=stream)


@contextlib.contextmanager
def keeping_one_object() -> Iterator[Callable[[HoldfastError], None]]:
    """Yields a function that prints an error as the answer if there is none yet, so that a reader of JSON gets one object."""
    said: list[bool] = []
    token = _emitted.set(said)

    def tell(error: HoldfastError) -> None:
        if not said:
            with contextlib.suppress(Gone, OSError):  # standard output itself may be what failed
                emit({"error": {"code": error.code, "message": error.message, "hint": error.hint or None}})

    try:
        yield tell
    finally:
        _emitted.reset(token)


@contextlib.contextmanager
def keeping_apart() -> Iterator[None]:
    """Sends to standard error what the code of a run prints meanwhile, and what programs that it starts print, so that the answer is JSON and nothing else."""
    out = sys.stdout
    kept: TextIO | None = None
    answer = out
    if isinstance(out, Answered):  # only then are the descriptors those of this process, and not of a test within it
        out.flush()
        number = out.fileno()
        kept = open(os.dup(number), "w", encoding=out.encoding, errors=out.errors)  # noqa: SIM115 - closed below
        os.dup2(sys.stderr.fileno(), number)
        answer = cast(TextIO, Answered(kept))
    token = _answer.set(answer)
    sys.stdout = sys.stderr
    try:
        yield
        answer.flush()
    finally:
        sys.stdout = out
        _answer.reset(token)
        if kept is not None:
            os.dup2(kept.fileno(), number)
            with contextlib.suppress(OSError):  # that it could not write was already reported
                kept.close()


def as_json(data: Any, indent: int | None = None) -> str:
    """Returns JSON in which no character moves a cursor or reverses a line; such characters have JSON escapes."""
    text = json.dumps(data, ensure_ascii=False, indent=indent, default=str)
    return escape(text, lambda c: c != "\n" and _would_obey(c), lambda c: json.dumps(c)[1:-1])


def show(value: Any) -> Any:
    """Returns a decoded value as JSON has it: registered types show their fields."""
    try:
        return canon.reveal(canon.pack(value, "value")[1])
    except HoldfastError as e:
        return {"unreadable": e.message}


# -- people -----------------------------------------------------------------------------------------


def paint(text: str, colour: str | None = None, *, bold: bool = False, dim: bool = False) -> str:
    """Colours a text, unless the user wants no colour; ``click.echo`` removes the colour if the output is no terminal."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return click.style(text, fg=colour, bold=bold or None, dim=dim or None)


def mark(kind: Mark) -> str:
    """Returns a sign of one column, in ASCII if the output cannot encode another."""
    fine, plain = _MARKS[kind]
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        fine.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        fine = plain
    return paint(fine, _MARK_COLOURS.get(kind))


def _would_obey(c: str) -> bool:
    """Whether a terminal would obey a character rather than show it: control characters, bidi overrides, line separators."""
    return c < " " or (c > "~" and (unicodedata.category(c)[0] == "C" or c in "\u2028\u2029"))


def clean(text: object) -> str:
    """Makes text of a run safe to print: control characters are shown, not obeyed."""
    return escape(str(text), lambda c: c not in "\n\t" and _would_obey(c))


_OURS = re.compile(r"\x1b\[[0-9;]*m|\r\x1b\[2K|[\n\t]")


def show_raw(text: str) -> str:
    """Makes text safe for a terminal: keeps our own colours and the progress line's own return, and shows anything else that a terminal would obey."""
    out, at = [], 0
    for own in _OURS.finditer(text):
        out += [escape(text[at : own.start()], _would_obey), own[0]]
        at = own.end()
    return "".join([*out, escape(text[at:], _would_obey)])


class Shown:
    """The only stream to the terminal: all writes to it pass ``show_raw``."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(text if text.isprintable() else show_raw(text))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def drop(self) -> None:
        """Sends nothing more to the descriptor after a write has failed, because Python would try again when it ends."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Gone(Exception):
    """The reader of standard output has closed it and wants nothing more. This is no OSError, so that a broken pipe of a run is not taken for it."""


class Answered(Shown):
    """Standard output, which has the answer. Once a write has failed, each further one fails in the same way, even if the first error was ignored."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._failed: Exception | None = None

    def write(self, text: str) -> int:
        with self._trying():
            return super().write(text)

    def flush(self) -> None:
        with self._trying():
            super().flush()

    @contextlib.contextmanager
    def _trying(self) -> Iterator[None]:
        if self._failed is not None:
            raise self._failed
        try:
            yield
        except OSError as e:
            self.drop()
            self._failed = Gone() if isinstance(e, BrokenPipeError) else OSError(e.errno, e.strerror, "standard output")
            raise self._failed from e


class Told(Shown):
    """Standard error, for what is told beside the answer. A write that fails changes neither what is done nor the exit code."""

    def write(self, text: str) -> int:
        with self._trying():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._trying():
            super().flush()

    @contextlib.contextmanager
    def _trying(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self.drop()


def inline(text: object, limit: int = 0) -> str:
    """Returns a text on one line, cut to ``limit`` columns if given."""
    line = " ".join(clean(text).split())
    return cut(line, limit) if limit else line


def cut(line: str, limit: int) -> str:
    """Cuts a line to at most ``limit`` columns; a line that is cut ends with ``…``."""
    if columns(line) <= limit:
        return line
    kept, used = [], 0
    for c in line:
        used += columns(c)
        if used > max(0, limit - 1):
            break
        kept.append(c)
    return "".join(kept).rstrip() + "…"


def width() -> int:
    """Returns how many columns to use: those of the terminal; in a pipe nothing is cut."""
    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 10_000


def columns(text: str) -> int:
    """Returns how many columns a text takes on a terminal."""
    return sum(0 if unicodedata.combining(c) or c in (NON_JOINER, JOINER) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in click.unstyle(text))


def pad(text: str, to: int) -> str:
    return text + " " * max(0, to - columns(text))


def more(command: str | None) -> None:
    """Prints the command that shows the next page; nothing on the last page."""
    if command is not None:
        click.echo(paint(f"more: {command}", dim=True))


WHOLE = frozenset({"run", "condition", "checkpoint", "intent", "schedule", "token", "started", "attempted", "again", "created", "since", "next", "held by"})
"""Columns of ids that are typed again, of conditions, and of times: they are never cut."""
LEAST = 8


def fit(widths: Sequence[int], whole: Container[int], room: int) -> list[int]:
    """Returns widths that fit into ``room`` columns, with two between them. The widest are cut first, none below ``LEAST``."""
    found = list(widths)
    while sum(found) + 2 * (len(found) - 1) > room:
        able = [i for i, w in enumerate(found) if i not in whole and w > LEAST]
        if not able:
            break
        found[max(able, key=lambda i: (found[i], i))] -= 1
    return found


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, below: str = "") -> None:
    """Prints aligned columns that fit the terminal; what is cut ends with ``…``. ``below``: a column that gets a line of its own if there is no room."""
    body = [list(r) for r in rows]
    notes = [""] * len(body)
    if below and sum(max([columns(h), *(columns(r[i]) for r in body)]) + 2 for i, h in enumerate(heads)) - 2 > width():
        at = heads.index(below)
        heads = [h for h in heads if h != below]
        notes = [row.pop(at) for row in body]
    widths = fit([max([columns(h), *(columns(r[i]) for r in body)]) for i, h in enumerate(heads)], {i for i, h in enumerate(heads) if h in WHOLE}, width())
    for number, row in enumerate([list(heads), *body]):
        cells = [pad(c if columns(c) <= w else cut(click.unstyle(c), w), w) for c, w in zip(row, widths, strict=True)]
        line = "  ".join(cells).rstrip()
        click.echo(paint(line, dim=True) if number == 0 else line)
        if number and notes[number - 1]:
            click.echo(cut(f"    {click.unstyle(notes[number - 1])}", width()))


def head(text: str) -> None:
    """Prints the title of a section, after an empty line."""
    click.echo()
    click.echo(paint(text, bold=True))


def fields(pairs: Iterable[tuple[str, str]]) -> None:
    """Prints ``name  value`` lines, without those that have no value."""
    said = [(n, v) for n, v in pairs if v]
    gap = max((len(n) for n, _ in said), default=0)
    for name, value in said:
        click.echo(f"  {paint(name.ljust(gap), dim=True)}  {value}")


def block(text: str, *, indent: str = "    ", lines: int = 0) -> None:
    """Prints text of a run, indented; with ``lines`` at most that many lines."""
    room = width() - columns(indent)
    every = [part for line in clean(text).splitlines() or [""] for part in textwrap.wrap(line, room, replace_whitespace=False, drop_whitespace=False) or [""]]
    shown_lines = every if not lines or len(every) <= lines else every[:lines]
    for line in shown_lines:
        click.echo(f"{indent}{line}".rstrip())
    if len(shown_lines) < len(every):
        click.echo(paint(f"{indent}… {len(every) - len(shown_lines)} more lines", dim=True))


def count_of(number: int, what: str) -> str:
    """Returns a count with its noun: ``1 run``, ``2 runs``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def prose(text: str, *, first: str, indent: str, bold: int | None = None) -> None:
    """Prints sentences, wrapped between words: the first line after ``first``, the others after ``indent``. ``bold``: the column where bold text begins."""
    lines = textwrap.wrap(inline(text), max(20, width() - columns(indent)), break_long_words=False, break_on_hyphens=False) or [""]
    for n, line in enumerate(lines):
        plain = len(line) if bold is None else 0 if n else bold
        click.echo(f"{indent if n else first}{line[:plain]}{paint(line[plain:], bold=True)}" if plain < len(line) else f"{indent if n else first}{line}")


def value_line(value: Any, limit: int) -> str:
    """Returns a channel's value in one line: its beginning and, for a list, its length."""
    text = inline(json.dumps(value, ensure_ascii=False, default=str), limit)
    return f"{len(value)} items  {inline(text, limit - 10)}" if isinstance(value, list) and len(value) > 1 else text


# -- times ------------------------------------------------------------------------------------------


def size(number: int) -> str:
    """Returns a number of bytes in a suitable unit."""
    for unit, least in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= least:
            return f"{number / least:.1f} {unit}"
    return f"{number} bytes"


def span(seconds: float | None) -> str:
    """Returns a duration for people."""
    return "" if seconds is None else wording.span(seconds)


def moment(at: str | dt.datetime | None) -> dt.datetime | None:
    """Returns a datetime from an ISO text; None if the text is no time."""
    if at is None or isinstance(at, dt.datetime):
        return at
    try:
        return dt.datetime.fromisoformat(at)
    except ValueError:
        return None


def clock(at: str | dt.datetime | None) -> str:
    """``2026-11-20 11:55:50Z``."""
    known = moment(at)
    return str(at or "") if known is None else known.strftime("%Y-%m-%d %H:%M:%SZ")


def ago(at: str | dt.datetime | None, now: dt.datetime, *, brief: bool = False) -> str:
    """Returns how long before or after ``now`` a time is; ``brief``: in one unit."""
    known = moment(at)
    if known is None:
        return ""
    seconds = (now - known).total_seconds()
    if abs(seconds) < 1:
        return "now"
    said = f"{int(abs(seconds))} s" if abs(seconds) < 60 else span(abs(seconds))
    if brief:
        said = " ".join(said.split()[:2])
    return f"{said} ago" if seconds > 0 else f"in {said}"

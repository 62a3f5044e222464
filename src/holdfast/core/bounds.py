"""Bounds: what a value from outside may be, and how large (§3.6, §14.3); and one table of what each named argument of a public function may be.

Each function here takes a given value and the name of its field, and returns a plain value, or raises an error that names the field. If
text is wanted, only a ``str`` is accepted, and nothing else is converted to one.

A public function declares its parameters in full and is marked with ``verb``. Each call is checked here first: an unknown keyword
is refused by name, with the nearest known one, and every argument whose name is in ``KNOWN`` becomes a plain, bounded value of
its type, or is refused by that name. The function itself gets only checked values.
"""

from __future__ import annotations

import datetime as dt
import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from holdfast.core.errors import InvalidInput, TooLarge, UnknownOption, UsageError
from holdfast.core.misused import NotCalled

ID_BYTES = 512
"""An id, a key, a name."""
NOTE_BYTES = 4 * 1024
"""A tag, an actor, a note, a reason."""
VALUE_BYTES = 16 * 1024 * 1024
"""An input, a signal, an answer, a patch, a single write."""
GROWN_BYTES = 64 * 1024 * 1024
"""The value of a channel that has grown, and the result of a step, a tool or an effect."""
MANY = 1_000
KEY_RETENTION_US = 7 * 24 * 3600 * 1_000_000
"""The least time for which the key of a request is kept (§3.5)."""
LONGEST_US = 100 * 366 * 86_400 * 1_000_000
LAST_MOMENT_US = 253_402_214_400 * 1_000_000
"""One day before the end of the year 9999, so that it is a valid time in every zone."""
BIGGEST = 2**53


def wrong(field: str, wanted: str, given: object, hint: str = "") -> InvalidInput:
    """Returns the error for a wrong value: its field, what is wanted, and what was given."""
    return InvalidInput(f"{field} is {wanted}, not {show(given)}", field=field, hint=hint)


_SNAPSHOTS = {"FrozenDict": "dict", "FrozenList": "list"}
"""What people call the containers that a snapshot is made of."""


def show(value: object) -> str:
    """Describes a value in a few words, with its type; the text is at most a line long. It never raises."""
    kind = _SNAPSHOTS.get(type(value).__name__) or type(value).__name__
    if isinstance(value, NotCalled):
        return f"the skill {value.id!r}"
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, str | bytes | bytearray):
        return f"{value[:40]!r}{'…' if len(value) > 40 else ''} of type {kind}"
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, int | float):
        return f"{value!r} of type {kind}"
    if inspect.iscoroutine(value):
        return "a coroutine, which was not awaited"
    if isinstance(value, type) or inspect.isroutine(value):
        return f"the {'class' if isinstance(value, type) else 'function'} {value.__name__[:60]}"
    return f"a value of type {kind}"


def text(value: object, field: str, most: int = ID_BYTES, *, empty: bool = False) -> str:
    """Checks a text and returns it as a plain ``str`` of at most ``most`` bytes of UTF-8.

    Raises:
        InvalidInput: the value is not a text, is empty, or cannot be stored. TooLarge: it is longer.
    """
    if not isinstance(value, str):
        raise wrong(field, "text", value)
    plain = str.__str__(value)
    if not plain and not empty:
        raise InvalidInput(f"the text given for {field} is empty", field=field, hint="give at least one character, or leave it out")
    if plain.isascii():
        size = len(plain)
    else:
        try:
            size = len(plain.encode())
        except UnicodeEncodeError:
            raise InvalidInput(f"{field} contains an unpaired surrogate, which cannot be stored", field=field, hint="decode it with errors='replace'") from None
    if size > most:
        raise TooLarge(field, size, most)
    if "\0" in plain:
        raise InvalidInput(f"{field} contains U+0000, which cannot be stored", field=field, hint="strip it")
    return plain


def check_signal(value: object, field: str) -> str:
    """Checks and returns the name of a signal that is sent or waited for.

    Raises:
        InvalidInput, TooLarge: it cannot be the name of a signal.
    """
    name = text(value, field)
    if ":" in name:
        raise InvalidInput(f"a signal's name must not contain a colon: {name!r}", field=field, hint="order-paid")
    return name


def behind(prefix: str) -> str | None:
    """Returns the first text, in the order of code points, after all texts with this prefix, or None if there is none."""
    for at in range(len(prefix) - 1, -1, -1):
        if (code := ord(prefix[at])) < 0x10FFFF:
            return prefix[:at] + chr(0xE000 if code == 0xD7FF else code + 1)
    return None


def texts(value: object, field: str, most: int = NOTE_BYTES) -> tuple[str, ...]:
    """Checks and returns several texts; a single ``str`` is refused, not split into its letters.

    Raises:
        InvalidInput, TooLarge: names the position of the text.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise wrong(field, "a list of strings", value, f"{field}=[…]")
    found = list(value)
    if len(found) > MANY:
        raise TooLarge(field, len(found), MANY, unit="items")
    return tuple(text(each, f"{field}[{n}]", most) for n, each in enumerate(found))


def number(value: object, field: str, low: int = 0, high: int = BIGGEST) -> int:
    """Checks and returns a whole number within bounds.

    Raises:
        InvalidInput: not a whole number, or outside the bounds.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise wrong(field, f"a whole number from {low} to {high}", value)
    return int(value)


def amount(value: object, field: str) -> float:
    """Checks and returns a positive, finite number.

    Raises:
        InvalidInput: the value is not such a number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e300:
        raise wrong(field, "a positive number", value)
    return float(value)


def flag(value: object, field: str) -> bool:
    """Checks and returns True or False; other values that count as true or false are refused.

    Raises:
        InvalidInput: the value is neither.
    """
    if not isinstance(value, bool):
        raise wrong(field, "True or False", value)
    return value


def one_of(value: object, field: str, known: Collection[str]) -> str:
    """Checks and returns one of the known words.

    Raises:
        InvalidInput: another word, with the nearest known one, or not a word at all.
    """
    found = text(value, field)
    if found not in known:
        raise InvalidInput(f"{field}={found!r} is not known{guess(found, known)}", field=field, hint="one of " + ", ".join(known))
    return found


def duration(value: object, field: str, low: int = 0, high: int = LONGEST_US) -> int:
    """Returns a length of time, given as a timedelta or in seconds, in microseconds.

    Raises:
        InvalidInput: not a length of time, or outside the bounds (in microseconds).
    """
    if isinstance(value, dt.timedelta):
        us = value // dt.timedelta(microseconds=1)
    elif isinstance(value, int | float) and not isinstance(value, bool) and -1e12 < value < 1e12:
        us = round(value * 1_000_000)
    else:
        raise wrong(field, "a length of time", value, "timedelta(minutes=5), or seconds")
    if not low <= us <= high:
        least = "nothing" if not low else f"{low / 1_000_000:g} s"
        most = "a hundred years" if high == LONGEST_US else f"{high / 1_000_000:g} s"
        raise wrong(field, f"a length of time from {least} to {most}", us / 1_000_000, "timedelta(minutes=5), or seconds")
    return us


def moment(value: object, field: str) -> int:
    """Returns a time with a zone, from 1970 to 9999, in microseconds since 1970.

    Raises:
        InvalidInput: not a time, a time without a zone, or outside these years.
    """
    if not isinstance(value, dt.datetime):
        raise wrong(field, "a datetime", value, "datetime(2026, 11, 21, 9, tzinfo=UTC)")
    if value.utcoffset() is None:
        raise InvalidInput(f"{field} needs a timezone", field=field, hint="datetime(…, tzinfo=UTC)")
    us = (value - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    if not 0 <= us <= LAST_MOMENT_US:
        raise InvalidInput(f"{field} is a time from 1970 to 9999, not {value.isoformat()}", field=field)
    return us


def address(value: object, field: str) -> str:
    """Checks and returns the address at which browsers reach the pages: an http or https URL with which links begin.

    Raises:
        InvalidInput: not such a URL, or one with a query, a fragment or a user.
    """
    given = text(value, field, NOTE_BYTES)
    refused = wrong(field, "an http or https URL without a user, a query or a fragment", given, "https://runs.example.org/holdfast")
    try:
        parts = urlsplit(given)
    except ValueError:
        raise refused from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None or "?" in given or "#" in given or not given.isprintable() or given != given.strip():
        raise refused
    return given


def check_size(data: bytes, field: str, most: int = VALUE_BYTES) -> bytes:
    """Checks the size of bytes that are to be stored, and returns them.

    Raises:
        TooLarge: names the field, the size and the limit.
    """
    if len(data) > most:
        raise TooLarge(field, len(data), most, hint="keep the bulk in a file and store its name")
    return data


# -- options --------------------------------------------------------------------------------------


def refuse_unknown(name: object, known: Iterable[str], where: str, message: str = "") -> UnknownOption:
    """Returns the error for an unknown option, with the most similar known one. ``message``: the text before its name, instead of one that says where it is unknown."""
    label = name[:80] if isinstance(name, str) else show(name)
    found = difflib.get_close_matches(label, sorted(known), n=1, cutoff=0.0)
    return UnknownOption(label, found[0] if found else "", where, message and f"{message} {label!r}")


def guess(name: str, known: Iterable[str]) -> str:
    """Returns a guess at the intended name, as a part of a message; empty if no known name is similar."""
    found = difflib.get_close_matches(name[:80], list(known), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def check_known(given: Iterable[Any], known: Collection[str], where: str) -> None:
    """Refuses unknown names.

    Raises:
        UnknownOption: names the first one.
    """
    for name in given:
        if name not in known:
            raise refuse_unknown(name, known, where)


SPENT = ("cost", "tokens")
"""The budgets that steps report with ``ctx.spend``."""
BUDGETS = ("cost", "seconds", "steps", "tokens")


def limits(given: object, field: str = "budgets", kinds: tuple[str, ...] = BUDGETS) -> dict[str, float]:
    """Checks and returns the limits of budgets, by name.

    Raises:
        UnknownOption: a budget of another kind. InvalidInput: not a mapping of names to positive numbers.
    """
    if not isinstance(given, Mapping):
        raise wrong(field, "a mapping of names to limits", given, 'budgets={"cost": 2.5, "steps": 100}')
    check_known(given, kinds, field)
    return {str(name): amount(limit, f"{field}[{name!r}]") for name, limit in given.items()}


# -- arguments of public functions ------------------------------------------------------------------


F = TypeVar("F", bound=Callable[..., Any])
Convert = Callable[[Any, str], Any]
ANY_KEYWORD = inspect.Parameter.VAR_KEYWORD
PLACED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


# -- converters: a value and the name of its field in, the plain value out -----------------------------


def whole(low: int = 0, high: int = BIGGEST) -> Convert:
    return functools.partial(number, low=low, high=high)


note: Convert = functools.partial(text, most=NOTE_BYTES, empty=True)
"""Text for people; it may be empty."""
asked: Convert = functools.partial(text, most=VALUE_BYTES, empty=True)
"""The text of a question to a person."""
who: Convert = functools.partial(text, most=NOTE_BYTES)
names: Convert = functools.partial(texts, most=ID_BYTES)
"""Several ids."""
notes: Convert = texts
"""Several texts for people."""


def words(value: Any, field: str) -> Any:
    """Returns the words of a command; a single text is one word."""
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise wrong(field, "a list of strings", value, f"{field}=[…]")
    each = [value] if isinstance(value, str) else list(value)
    return [text(one, f"{field}[{n}]", VALUE_BYTES, empty=True) for n, one in enumerate(each)]


def variables(value: Any, field: str) -> Any:
    """Checks and returns environment variables."""
    for name in mapping(value, field):
        if "=" in name:
            raise InvalidInput(f"{field}: {name!r} is not the name of a variable, because it contains =", field=field, hint=f'{field}={{"NAME": "value"}}')
    return {name: text(one, f"{field}[{name!r}]", VALUE_BYTES, empty=True) for name, one in mapping(value, field).items()}


def people(value: Any, field: str) -> tuple[str, ...]:
    """Returns the names of those who may do something; a single text is one name."""
    return texts([value] if isinstance(value, str) else value, field)


def word(*known: str) -> Convert:
    return functools.partial(one_of, known=known)


def lasting(low: int = 0, high: int = LONGEST_US) -> Convert:
    """Returns a converter that checks a length of time and returns it unchanged."""

    def convert(value: Any, field: str) -> Any:
        duration(value, field, low, high)
        return value

    return convert


def when(value: Any, field: str) -> Any:
    """Checks a time and returns it unchanged."""
    moment(value, field)
    return value


def function(value: Any, field: str) -> Any:
    if isinstance(value, NotCalled):
        raise wrong(field, "a function", value, "a run executes another skill with: await ctx.child(skill, {…})")
    if not callable(value):
        raise wrong(field, "a function", value, "give the function itself and its arguments after it, as in step(f, x), not what it returns, as in step(f(x))")
    return value


def classes(value: Any, field: str) -> Any:
    """Classes of exceptions, one or several."""
    found = value if isinstance(value, tuple) else (value,)
    if not found or not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in found):
        raise wrong(field, "a class of exceptions, or a tuple of them", value)
    return found


def mapping(value: Any, field: str) -> Any:
    """Checks a mapping of names to values. Its values are checked later, against the state. A state may have a channel named ``keys``: nothing else of it is called."""
    if not isinstance(value, Mapping):
        raise wrong(field, "a mapping of names to values", value)
    for name in value:
        text(name, f"a name in {field}")
    return value if type(value) is dict else {name: value[name] for name in value}


def as_given(value: Any, field: str) -> Any:
    """Returns a value unchanged, because the function itself checks it."""
    return value


def path(value: Any, field: str) -> str:
    """Returns a path as text."""
    spelt = getattr(type(value), "__fspath__", None)
    if not isinstance(value, str) and spelt is None:
        raise wrong(field, "a path", value)
    return text(value if spelt is None else spelt(value), field, NOTE_BYTES)


def paths(value: Any, field: str) -> Any:
    """Several paths."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise wrong(field, "a list of paths", value, f"{field}=[…]")
    return tuple(path(each, f"{field}[{n}]") for n, each in enumerate(value))


def several(value: Any, field: str) -> Any:
    """Checks that the value is an iterable of values, not a text or a mapping; its items may be anything."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise wrong(field, "a list", value, f"{field}=[…]")
    return value


def data(value: Any, field: str) -> bytes:
    if not isinstance(value, bytes):
        raise wrong(field, "bytes", value)
    return check_size(value, field)


def step(value: Any, field: str) -> int | str:
    """A step's number, or its node's name."""
    return number(value, field) if isinstance(value, int) else text(value, field)


def run(value: Any, field: str) -> str:
    """A run's id; an empty one never means the newest (§7.10)."""
    if value == "":
        raise InvalidInput("the run id is empty", field=field, hint="list the runs: holdfast runs")
    if isinstance(getattr(value, "run_id", None), str):
        raise wrong(field, "text", value, "give its id: run.run_id")
    return text(value, field)


INT32 = 2**31 - 1
PAGE = 500
LANE_POLICIES = ("hold", "release")
RECOVERIES = ("auto", "hold")
IDS = (
    "thread_id", "session_key", "lane", "queue", "key", "job_id", "trace_id", "tenant_id", "wait_id", "checkpoint_id",
    "from_checkpoint", "schedule_id", "skill_id", "effect_id", "intent_id", "before", "action", "id", "zone", "policy_snapshot_id", "version",
    "status", "condition", "cron", "overlap", "missed", "type", "order", "topic", "on_busy", "outcome", "signal", "idempotency_key",
    "capability", "cursor", "environment", "a", "b", "name", "verdict", "redo",
)
KNOWN: dict[str, Convert] = {
    **dict.fromkeys(IDS, text),
    **dict.fromkeys(("note", "reason", "text"), note),
    **dict.fromkeys(("actor", "acknowledge", "target", "tag", "token", "via"), who),
    **dict.fromkeys(
        ("unattended", "detach", "until_idle", "upgrade", "drive", "force", "resume", "wait", "inherit_approvals", "follow", "apply", "rebuild", "accept",
         "dry", "dispatch", "start", "delivers", "idempotent", "check_exit", "authoritative", "dedupes"), flag,
    ),
    **dict.fromkeys(("delay", "grace", "timeout", "older_than", "ttl"), lasting()),
    **dict.fromkeys(("verify", "undo", "gate", "when", "router", "on_report"), function),
    **dict.fromkeys(("set", "budgets", "fields"), mapping),
    **dict.fromkeys(("path", "folder", "cwd"), path),
    "paths": paths,
    "items": several,
    "on_deny": word("halt", "deliver"),
    "feedback": asked,
    "run_id": run,
    "every": lasting(),
    **dict.fromkeys(("at", "since", "until"), when),
    "tags": notes,
    "queues": names,
    "migrates": names,
    "capabilities": names,
    "priority": whole(-INT32, INT32),
    "step_limit": whole(1, INT32),
    "concurrency": whole(1, 10_000),
    "catch_up": whole(1, 100),
    "limit": whole(1, PAGE),
    "after": whole(),
    "from_step": step,
    "paused_lane": word(*LANE_POLICIES),
    "recovery": word(*RECOVERIES),
    "on_parent_end": word("cancel", "keep"),
}
KNOWN |= dict.fromkeys(("order", "topic", "schedule_id", "id", "cron", "zone"), functools.partial(text, empty=True))


def admit(given: Mapping[str, Any], known: Mapping[str, Convert], where: str) -> dict[str, Any]:
    """Returns named values, each converted by the converter of its name.

    Raises:
        UnknownOption: a name is not known. InvalidInput, TooLarge: a value is wrong, named by its name.
    """
    check_known(given, known, where)
    return {name: known[name](value, name) for name, value in given.items()}


# -- the mark of a public function --------------------------------------------------------------------


def verb(function: F) -> F:
    """Marks a public function whose arguments are converted by ``KNOWN``."""
    return check_arguments()(function)


def check_arguments(**own: Convert) -> Callable[[F], F]:
    """Marks a public function; ``own``: converters of arguments that differ from those in ``KNOWN``."""

    def mark(function: F) -> F:
        parameters = inspect.signature(function).parameters
        asked = frozenset(n for n, p in parameters.items() if p.kind in NAMED)
        open_ended = any(p.kind is ANY_KEYWORD for p in parameters.values())
        calls = "fn" in parameters and any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters.values())
        converts = {n: own.get(n) or KNOWN[n] for n, p in parameters.items() if n in own or n in KNOWN}
        optional = {n: p.default for n, p in parameters.items() if p.default is None or p.default is ...}
        places = [(i, n) for i, (n, p) in enumerate(parameters.items()) if p.kind in PLACED and n in converts]
        where = function.__qualname__.removesuffix(".__init__")
        order = {n: i for i, (n, p) in enumerate(parameters.items()) if p.kind in PLACED and n in asked}

        def see(args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
            for name, value in options.items():
                if name not in asked:
                    if open_ended:
                        continue
                    error = refuse_unknown(name, asked - {"self"}, where)
                    if calls:
                        error.hint += f" To give fn a keyword argument, pass functools.partial(fn, {error.name}=…)"
                    if "inputs" in parameters:
                        error.hint += f" An input is given in a mapping: {{{error.name!r}: …}}"
                    raise error
                if order.get(name, len(args)) < len(args):
                    hint = f"an input with that name is given in a mapping: {{{name!r}: …}}" if "inputs" in parameters else ""
                    raise UsageError(f"{where} was given {name!r} twice: by its place, and by its name", hint=hint)
                if name in converts and not (name in optional and value is optional[name]):
                    options[name] = converts[name](value, name)
            if not places or places[0][0] >= len(args):
                return args
            given = list(args)
            for place, name in places:
                if place < len(given) and not (name in optional and given[place] is optional[name]):
                    given[place] = converts[name](given[place], name)
            return tuple(given)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def waiting(*args: Any, **options: Any) -> Any:
                return await function(*see(args, options), **options)

            return waiting  # type: ignore[return-value]

        @functools.wraps(function)
        def plain(*args: Any, **options: Any) -> Any:
            return function(*see(args, options), **options)

        return plain  # type: ignore[return-value]

    return mark


class Declared(msgspec.StructMeta):
    """The metaclass of values that authors declare: an unknown option is refused by name."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        check_known(options, cls.__struct_fields__, cls.__name__)
        return super().__call__(*args, **options)


C = TypeVar("C", bound=type[Any])


def constructor(**own: Convert) -> Callable[[C], C]:
    """Marks the constructor of a dataclass in the same way."""

    def mark(cls: C) -> C:
        cls.__init__ = check_arguments(**own)(cls.__init__)
        return cls

    return mark

"""Arguments: what each named argument of a public verb may be, in one table (§3.6).

Theory of operation. A public verb is declared with its parameters spelt out and marked with ``verb``. Whoever calls it is met
here first: a keyword that it does not have is refused by name with the nearest one, and every argument whose name stands in
``KNOWN`` becomes a plain, bounded value of its type, or is refused by that name. The verb itself then sees nothing else.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from holdfast.core import bounds
from holdfast.core.bounds import NOTE_BYTES, unknown, wrong
from holdfast.core.errors import InvalidInput

F = TypeVar("F", bound=Callable[..., Any])
Convert = Callable[[Any, str], Any]
ANY_KEYWORD = inspect.Parameter.VAR_KEYWORD
PLACED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


# -- converters: a value and the name of its field in, the plain value out -----------------------------


def whole(low: int = 0, high: int = bounds.BIGGEST) -> Convert:
    return functools.partial(bounds.number, low=low, high=high)


note: Convert = functools.partial(bounds.text, most=NOTE_BYTES, empty=True)
"""Text for people; it may be empty."""
asked: Convert = functools.partial(bounds.text, most=bounds.VALUE_BYTES, empty=True)
"""What a person is asked."""
who: Convert = functools.partial(bounds.text, most=NOTE_BYTES)
names: Convert = functools.partial(bounds.texts, most=bounds.ID_BYTES)
"""Several ids."""
notes: Convert = bounds.texts
"""Several texts for people."""


def words(value: Any, field: str) -> Any:
    """The words of a command; one alone is the only one."""
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise wrong(field, "a list of strings", value, f"{field}=[…]")
    each = [value] if isinstance(value, str) else list(value)
    return [bounds.text(one, f"{field}[{n}]", bounds.VALUE_BYTES, empty=True) for n, one in enumerate(each)]


def variables(value: Any, field: str) -> Any:
    """Variables of an environment."""
    return {name: bounds.text(one, f"{field}[{name!r}]", bounds.VALUE_BYTES, empty=True) for name, one in mapping(value, field).items()}


def people(value: Any, field: str) -> tuple[str, ...]:
    """Who may do something, by name; one alone is the only one."""
    return bounds.texts([value] if isinstance(value, str) else value, field)


def word(*known: str) -> Convert:
    return functools.partial(bounds.one_of, known=known)


def lasting(low: int = 0, high: int = bounds.LONGEST_US) -> Convert:
    """A length of time, handed on as it was given."""

    def convert(value: Any, field: str) -> Any:
        bounds.duration(value, field, low, high)
        return value

    return convert


def moment(value: Any, field: str) -> Any:
    """A time, handed on as it was given."""
    bounds.moment(value, field)
    return value


def function(value: Any, field: str) -> Any:
    if not callable(value):
        raise wrong(field, "a function", value)
    return value


def classes(value: Any, field: str) -> Any:
    """Classes of exceptions, one or several."""
    found = value if isinstance(value, tuple) else (value,)
    if not found or not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in found):
        raise wrong(field, "a class of exceptions, or a tuple of them", value)
    return found


def mapping(value: Any, field: str) -> Any:
    """Names to values. What the values may be is for the state to say."""
    if not isinstance(value, Mapping):
        raise wrong(field, "a mapping of names to values", value)
    for name in value:
        bounds.text(name, f"a name in {field}")
    return value


def as_given(value: Any, field: str) -> Any:
    """For what the verb itself has to look at first."""
    return value


def path(value: Any, field: str) -> str:
    """A path as text."""
    spelt = getattr(type(value), "__fspath__", None)
    if not isinstance(value, str) and spelt is None:
        raise wrong(field, "a path", value)
    return bounds.text(value if spelt is None else spelt(value), field, NOTE_BYTES)


def paths(value: Any, field: str) -> Any:
    """Several paths."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise wrong(field, "a list of paths", value, f"{field}=[…]")
    return tuple(path(each, f"{field}[{n}]") for n, each in enumerate(value))


def several(value: Any, field: str) -> Any:
    """Values in their order, whatever each is."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise wrong(field, "a list", value, f"{field}=[…]")
    return value


def data(value: Any, field: str) -> bytes:
    if not isinstance(value, bytes):
        raise wrong(field, "bytes", value)
    return bounds.sized(value, field)


def step(value: Any, field: str) -> int | str:
    """A step's number, or its node's name."""
    return bounds.number(value, field) if isinstance(value, int) else bounds.text(value, field)


def run(value: Any, field: str) -> str:
    """A run's id; an empty one never means the newest (§7.10)."""
    if value == "":
        raise InvalidInput("the run id is empty", field=field, hint="list the runs: holdfast runs")
    return bounds.text(value, field)


INT32 = 2**31 - 1
PAGE = 500
LANE_POLICIES = ("hold", "release")
RECOVERIES = ("auto", "hold")
IDS = (
    "thread_id", "session_key", "lane", "queue", "key", "job_id", "trace_id", "tenant_id", "wait_id", "checkpoint_id",
    "from_checkpoint", "schedule_id", "skill_id", "effect_id", "intent_id", "before", "action", "id", "zone", "policy_snapshot_id", "version",
    "status", "condition", "cron", "overlap", "missed", "type", "order", "topic", "on_busy", "outcome", "signal", "idempotency_key",
    "capability", "cursor", "environment", "a", "b", "name", "verdict", "redo",
)  # fmt: skip
KNOWN: dict[str, Convert] = {
    **dict.fromkeys(IDS, bounds.text),
    **dict.fromkeys(("note", "reason", "text"), note),
    **dict.fromkeys(("actor", "acknowledge", "target", "tag", "token", "via"), who),
    **dict.fromkeys(
        ("unattended", "detach", "until_idle", "upgrade", "drive", "force", "resume", "wait", "inherit_approvals", "follow", "apply", "rebuild",
         "dry", "dispatch", "start", "delivers", "idempotent", "check_exit", "authoritative", "dedupes"), bounds.flag,
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
    **dict.fromkeys(("at", "since", "until"), moment),
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
}  # fmt: skip
KNOWN |= dict.fromkeys(("order", "topic", "schedule_id", "id", "cron", "zone"), functools.partial(bounds.text, empty=True))


def admitted(given: Mapping[str, Any], known: Mapping[str, Convert], where: str) -> dict[str, Any]:
    """Named values, each as its converter gives it.

    Raises:
        UnknownOption: a name that is not known. InvalidInput, TooLarge: a value, by its name.
    """
    bounds.known_only(given, known, where)
    return {name: known[name](value, name) for name, value in given.items()}


# -- the mark of a public verb ------------------------------------------------------------------------


def verb(function: F) -> F:
    """Marks a public verb whose arguments are those of ``KNOWN``."""
    return checked()(function)


def checked(**own: Convert) -> Callable[[F], F]:
    """Marks a public verb; ``own``: what arguments of it may be that mean something else here than in ``KNOWN``."""

    def mark(function: F) -> F:
        parameters = inspect.signature(function).parameters
        asked = frozenset(n for n, p in parameters.items() if p.kind in NAMED)
        open_ended = any(p.kind is ANY_KEYWORD for p in parameters.values())
        converts = {n: own.get(n) or KNOWN[n] for n, p in parameters.items() if n in own or n in KNOWN}
        optional = {n: p.default for n, p in parameters.items() if p.default is None or p.default is ...}
        places = [(i, n) for i, (n, p) in enumerate(parameters.items()) if p.kind in PLACED and n in converts]
        where = function.__qualname__.removesuffix(".__init__")

        def seen(args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
            for name, value in options.items():
                if name not in asked:
                    if open_ended:
                        continue
                    raise unknown(name, asked - {"self"}, where)
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
                return await function(*seen(args, options), **options)

            return waiting  # type: ignore[return-value]

        @functools.wraps(function)
        def plain(*args: Any, **options: Any) -> Any:
            return function(*seen(args, options), **options)

        return plain  # type: ignore[return-value]

    return mark


class Declared(msgspec.StructMeta):
    """The class of values that authors declare: an option that they do not have is refused by name."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        bounds.known_only(options, cls.__struct_fields__, cls.__name__)
        return super().__call__(*args, **options)


C = TypeVar("C", bound=type[Any])


def constructor(**own: Convert) -> Callable[[C], C]:
    """Marks the constructor of a class that dataclasses has made."""

    def mark(cls: C) -> C:
        cls.__init__ = checked(**own)(cls.__init__)
        return cls

    return mark


__all__ = ["KNOWN", "Declared", "admitted", "as_given", "asked", "checked", "constructor", "data", "function", "path", "people", "several", "variables", "verb", "word", "words"]

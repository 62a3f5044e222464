"""Bounds: what a value from outside may be, and how large (§3.6, §14.3).

Each function takes what somebody handed in and the name of the field, and gives a plain value or refuses by that name. Where
text is wanted a ``str`` counts, and nothing else is turned into one.
"""

from __future__ import annotations

import datetime as dt
import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from holdfast.core.errors import InvalidInput, TooLarge, UnknownOption

ID_BYTES = 512
"""An id, a key, a name."""
NOTE_BYTES = 4 * 1024
"""A tag, an actor, a note, a reason."""
VALUE_BYTES = 16 * 1024 * 1024
"""An input, a signal, an answer, a patch, a single write."""
GROWN_BYTES = 64 * 1024 * 1024
"""What a channel has grown to, and the result of a step, a tool or an effect."""
MANY = 1_000
LONGEST_US = 100 * 366 * 86_400 * 1_000_000
LAST_MOMENT_US = 253_402_214_400 * 1_000_000
"""The end of the year 9999 but for a day, so that it is a time in every zone."""
BIGGEST = 2**53


def wrong(field: str, wanted: str, given: object, hint: str = "") -> InvalidInput:
    """The refusal of a value: its field, what is wanted, and what was given."""
    return InvalidInput(f"{field} is {wanted}, not {shown(given)}", field=field, hint=hint)


def shown(value: object) -> str:
    """A value in a few words, with its type; never longer than a line, and it never raises."""
    kind = type(value).__name__
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, str | bytes | bytearray):
        return f"{value[:40]!r}{'…' if len(value) > 40 else ''} of type {kind}"
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, int | float):
        return f"{value!r} of type {kind}"
    return f"a value of type {kind}"


def text(value: object, field: str, most: int = ID_BYTES, *, empty: bool = False) -> str:
    """Plain text of at most so many bytes of UTF-8.

    Raises:
        InvalidInput: no text, an empty one, or text that no store could keep. TooLarge: it is longer.
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


def behind(prefix: str) -> str | None:
    """The first text behind all that begin so, by code points; None where nothing is behind them."""
    for at in range(len(prefix) - 1, -1, -1):
        if (code := ord(prefix[at])) < 0x10FFFF:
            return prefix[:at] + chr(0xE000 if code == 0xD7FF else code + 1)
    return None


def texts(value: object, field: str, most: int = NOTE_BYTES) -> tuple[str, ...]:
    """Several texts; one alone is not taken for the list of its letters.

    Raises:
        InvalidInput, TooLarge: by the place of the text.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise wrong(field, "a list of strings", value, f"{field}=[…]")
    found = list(value)
    if len(found) > MANY:
        raise TooLarge(field, len(found), MANY, unit="items")
    return tuple(text(each, f"{field}[{n}]", most) for n, each in enumerate(found))


def number(value: object, field: str, low: int = 0, high: int = BIGGEST) -> int:
    """A whole number within bounds.

    Raises:
        InvalidInput: no whole number, or outside.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise wrong(field, f"a whole number from {low} to {high}", value)
    return int(value)


def amount(value: object, field: str) -> float:
    """A positive, finite number.

    Raises:
        InvalidInput: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e300:
        raise wrong(field, "a positive number", value)
    return float(value)


def flag(value: object, field: str) -> bool:
    """True or False, and nothing that could be taken for one of them.

    Raises:
        InvalidInput: it is neither.
    """
    if not isinstance(value, bool):
        raise wrong(field, "True or False", value)
    return value


def one_of(value: object, field: str, known: Collection[str]) -> str:
    """One of the known words.

    Raises:
        InvalidInput: another word, with the nearest known one, or no word at all.
    """
    found = text(value, field)
    if found not in known:
        raise InvalidInput(f"{field}={found!r} is not known{meant(found, known)}", field=field, hint="one of " + ", ".join(known))
    return found


def duration(value: object, field: str, low: int = 0, high: int = LONGEST_US) -> int:
    """A length of time, given as a timedelta or in seconds; in microseconds.

    Raises:
        InvalidInput: none, or outside the bounds (in microseconds).
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
    """A time with its zone, from 1970 to 9999; in microseconds since 1970.

    Raises:
        InvalidInput: no time, without a zone, or outside.
    """
    if not isinstance(value, dt.datetime):
        raise wrong(field, "a datetime", value, "datetime(2026, 11, 21, 9, tzinfo=UTC)")
    if value.utcoffset() is None:
        raise InvalidInput(f"{field} needs a timezone", field=field, hint="datetime(…, tzinfo=UTC)")
    us = (value - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    if not 0 <= us <= LAST_MOMENT_US:
        raise wrong(field, "a time from 1970 to 9999", value)
    return us


def sized(data: bytes, field: str, most: int = VALUE_BYTES) -> bytes:
    """Bytes that are to be kept, if they are not too many.

    Raises:
        TooLarge: naming field, size and limit.
    """
    if len(data) > most:
        raise TooLarge(field, len(data), most, hint="keep the bulk in a file and store its name")
    return data


# -- options --------------------------------------------------------------------------------------


def unknown(name: object, known: Iterable[str], where: str) -> UnknownOption:
    """The refusal of an option that nobody knows, with the one that is most like it."""
    label = name[:80] if isinstance(name, str) else shown(name)
    found = difflib.get_close_matches(label, sorted(known), n=1, cutoff=0.0)
    return UnknownOption(label, found[0] if found else "", where)


def meant(name: str, known: Iterable[str]) -> str:
    """A guess at what was meant."""
    found = difflib.get_close_matches(name[:80], list(known), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def known_only(given: Iterable[Any], known: Collection[str], where: str) -> None:
    """Refuses the first name that is not known.

    Raises:
        UnknownOption: by its name.
    """
    for name in given:
        if name not in known:
            raise unknown(name, known, where)


SPENT = ("cost", "tokens")
"""What steps report by ``ctx.spend``."""
BUDGETS = ("cost", "seconds", "steps", "tokens")


def limits(given: object, field: str = "budgets", kinds: tuple[str, ...] = BUDGETS) -> dict[str, float]:
    """Limits by name, as a caller gives them.

    Raises:
        UnknownOption: a budget of another kind. InvalidInput: not a mapping of names to positive numbers.
    """
    if not isinstance(given, Mapping):
        raise wrong(field, "a mapping of names to limits", given, 'budgets={"cost": 2.5, "steps": 100}')
    known_only(given, kinds, field)
    return {str(name): amount(limit, f"{field}[{name!r}]") for name, limit in given.items()}

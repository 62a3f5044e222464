"""Hides values that are marked secret when a run is shown (§13.5). The values that nodes see, and those that a resume needs, are never masked.

A run records which of its channels are secret. If a value of the program is shown, entries with these names are hidden. If
a text from such a channel appears anywhere else (in a prompt, an error, a payload), it is hidden there too.
"""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec

HIDDEN = "•••"
SHORTEST = 4
"""A shorter text is hidden only by its channel's name: searched for as a text, it would be found everywhere."""

LONGEST = 4096
"""A longer text is searched for only in its known forms, not with a pattern."""
CUT = 200
"""A shown text of this length or more may have been cut."""

_UUID = re.compile(r"[0-9a-fA-F]{32}")
_HEX = re.compile(r"[0-9a-f]{8,}")
_RUNS = re.compile(r"[A-Za-z0-9]+")
_PLAIN = re.compile(r"[A-Za-z0-9]*")
_NAMED = {
    "\n": r"\\+n", "\r": r"\\+r", "\t": r"\\+t", "\b": r"\\+b", "\f": r"\\+f", "\x0b": r"\\+v", "\a": r"\\+a", "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&apos;",
    " ": r"\+",
}

VALUES = frozenset({"input", "payload", "result", "value", "values", "show", "default", "writes", "pending_writes"})
"""The fields of shown records that contain values of the program."""


class Mask(msgspec.Struct, frozen=True):
    """The secrets of a run. ``names`` are its secret channels, ``texts`` the texts in them, the longest first; ``quoted`` are patterns for texts
    whose characters are escaped when they are printed, even several times, each with a part of the text that no escaping changes."""

    names: frozenset[str] = frozenset()
    texts: tuple[str, ...] = ()
    quoted: tuple[tuple[str, str], ...] = ()

    def text(self, shown: str) -> str:
        for part, pattern in self.quoted:
            if part in shown:
                shown = _compile(pattern).sub(HIDDEN, shown)
        for text in self.texts:
            shown = shown.replace(text, HIDDEN)
        return shown if len(shown) < CUT else self._whole(shown)

    def _whole(self, shown: str) -> str:
        """Hides the end of a text if it is the beginning of a secret: a long text may have been cut inside a secret."""
        for text in self.texts:
            first, at = text[:SHORTEST], len(shown)
            while (at := shown.rfind(first, max(0, len(shown) - len(text)), at)) >= 0:
                if text.startswith(shown[at:]):
                    return shown[:at] + HIDDEN
        return shown

    def value(self, shown: Any) -> Any:
        """Masks a value of the program, by name and by text."""
        return self._walk(shown, True) if self.names else shown

    def record(self, shown: Any) -> Any:
        """Masks a record of the runtime: by text, and by name where it contains values of the program."""
        return self._walk(shown, False) if self.names else shown

    def _walk(self, shown: Any, named: bool) -> Any:
        match shown:
            case str():
                return self.text(shown)
            case bool() | None:
                return shown
            case int() | float():
                return HIDDEN if str(shown) in self.texts or repr(shown) in self.texts else shown
            case bytes():
                return HIDDEN if any(form in self.texts for form in _of_bytes(shown)) else shown
            case Mapping():
                return {self.text(k) if isinstance(k, str) else k: self._entry(shown, k, v, named) for k, v in shown.items()}
            case list() | tuple():
                return [self._walk(v, named) for v in shown]
        return shown

    def _entry(self, holder: Mapping[Any, Any], key: Any, value: Any, named: bool) -> Any:
        if named and key in self.names:
            return HIDDEN
        if not named and key == "payload" and holder.get("name") in self.names:
            return HIDDEN  # a signal is a write to the channel of its name (§5.11)
        return self._walk(value, named or key in VALUES)


NOTHING = Mask()


def mask(names: Iterable[str], states: Iterable[Mapping[str, Any]]) -> Mask:
    """Returns the mask of a run: its secret channels, and every text that these contain in ``states``, in every form in which it may be printed."""
    secret = frozenset(names)
    found = {text for state in states for name in secret if name in state for text in _texts(state[name])}
    found |= {form for text in found if _HEX.fullmatch(text) and len(text) % 2 == 0 for form in _of_bytes(bytes.fromhex(text))}
    forms = {form for text in found for form in _forms(text) if len(form) >= SHORTEST}
    odd = sorted((t for t in found if len(t) >= SHORTEST and not _PLAIN.fullmatch(t)), key=lambda t: (-len(t), t))
    return Mask(secret, tuple(sorted(forms, key=lambda t: (-len(t), t))), tuple([(max(_RUNS.findall(t), key=len, default=""), _pattern(t)) for t in odd if len(t) <= LONGEST]))


def _pattern(text: str) -> str:
    """Returns a pattern that finds a text however its characters are escaped, as in Python, JSON, URLs or HTML, once or several times."""
    return "".join([c if c.isascii() and c.isalnum() else _sign(c) for c in text])


@functools.lru_cache(maxsize=4096)
def _sign(c: str) -> str:
    if c == "\\":
        return r"(?:\\+|%(?:25)*5[Cc])"
    code = ord(c)
    forms = [re.escape(c), rf"\\+x{code:02x}", rf"\\+u{code:04x}", rf"\\+U{code:08x}", f"&#{code};", f"&#[xX]0*{code:x};"]
    forms += [_NAMED[c]] if c in _NAMED else []
    if code > 0xFFFF:
        high, low = 0xD800 + (code - 0x10000 >> 10), 0xDC00 + (code - 0x10000 & 0x3FF)
        forms.append(rf"\\+u{high:04x}\\+u{low:04x}")
    if not 0xD800 <= code < 0xE000:
        raw = c.encode()
        forms += ["".join(rf"\\+x{b:02x}" for b in raw), "".join(f"%(?:25)*{b:02x}" for b in raw)]
    return rf"\\*(?i:{'|'.join(forms)})"


@functools.lru_cache(maxsize=512)
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _texts(value: Any) -> Iterator[str]:
    """Yields the texts of a value that appear if the value, or a part of it, is printed."""
    match value:
        case str():
            yield value
        case bool() | None:
            return
        case int() | float():
            yield from {str(value), repr(value)}
        case bytes():
            yield from _of_bytes(value)
        case Mapping():
            for key, inner in value.items():
                yield from _texts(key)
                yield from _texts(inner)
        case list() | tuple() | set() | frozenset():
            for inner in value:
                yield from _texts(inner)
        case _:
            yield str(value)


def _of_bytes(value: bytes) -> Iterator[str]:
    yield value.hex()
    yield base64.b64encode(value).decode()
    yield repr(value)[2:-1]
    try:
        yield value.decode()
    except UnicodeDecodeError:
        return


def _forms(text: str) -> Iterator[str]:
    """Yields the forms in which programs print a text: unchanged, line by line, quoted as in Python or JSON, once or twice, and as bytes."""
    once = {text, repr(text)[1:-1], ascii(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    once |= {text.replace("\\", "\\\\").replace("'", "\\'"), text.strip()}
    yield from once
    yield from (json.dumps(form)[1:-1] for form in once)
    yield from (repr(form)[1:-1] for form in once)
    yield from (part for line in text.splitlines() if (part := line.strip()) != text)
    if not any("\ud800" <= c <= "\udfff" for c in text):
        raw = text.encode()
        yield from (repr(raw)[2:-1], raw.hex(), base64.b64encode(raw).decode(), quote(text), quote_plus(text))
    compact = text.replace("-", "")
    if _UUID.fullmatch(compact) is not None:  # printed with its dashes, without them, or as a number
        dashed = "-".join(compact[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))
        yield from (form for each in (compact, dashed, text) for form in (each.lower(), each.upper()))
        yield str(int(compact, 16))


__all__ = ["HIDDEN", "NOTHING", "Mask", "mask"]

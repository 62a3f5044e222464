"""Text of others, made safe to show: characters that a terminal or a browser would obey, or would not show, become visible escapes.

The joiners U+200C and U+200D are such characters too, but Persian, Indic scripts and many emoji need them. They are shown where they join, and escaped
anywhere else: between Latin letters, at the ends of words and behind each other they could only make two different texts look alike.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

NON_JOINER, JOINER = "\u200c", "\u200d"
_VIRAMA = 9
_ARROWS = "\u2194\u2195"  # of «shaking head»: an emoji that is no symbol of category So


def as_escape(c: str) -> str:
    """Returns the escape of a character, as Python writes it."""
    return c.encode("unicode_escape").decode()


def escape(text: str, is_unsafe: Callable[[str], bool], write: Callable[[str], str] = as_escape) -> str:
    """Returns a text with each unsafe character written as an escape, except joiners that join."""
    return "".join([c if not is_unsafe(c) or (c in (NON_JOINER, JOINER) and joins(text, at)) else write(c) for at, c in enumerate(text)])


def joins(text: str, at: int) -> bool:
    """Whether the joiner at this place changes how its neighbours are drawn: between letters of a script that joins them, behind a virama, or between emoji."""
    before, after = text[max(0, at - 1) : at], text[at + 1 : at + 2]
    if not before or not after:
        return False
    if unicodedata.combining(before) == _VIRAMA:
        return after.isalpha()
    base = at - 1
    while base > 0 and unicodedata.category(text[base]) in ("Mn", "Me", "Sk"):  # vowel signs, variation selectors, skin tones
        base -= 1
    if _is_joined(text[base]) and _is_joined(after):
        return True
    return text[at] == JOINER and _is_emoji(text[base]) and _is_emoji(after)


def _is_joined(c: str) -> bool:
    """Whether a character is a letter of Arabic or a script like it, whose letters change their forms beside others."""
    return c.isalpha() and unicodedata.bidirectional(c) == "AL"


def _is_emoji(c: str) -> bool:
    return unicodedata.category(c) == "So" or c in _ARROWS


__all__ = ["JOINER", "NON_JOINER", "as_escape", "escape", "joins"]

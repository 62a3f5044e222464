"""X-26: terminal escapes, line feeds and bidi marks of a run show as text, in whatever is printed."""

from __future__ import annotations

import io
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli import output

EVIL = ("\x1b]0;owned\x07", "\x1b[2J", "\r", "\x9b31m", "\u202egnp.exe", "\u2066x\u2069", "\x7f", "\u2028", "\x00", "\x08")


@pytest.mark.parametrize("text", EVIL)
def test_nothing_is_obeyed(text: str) -> None:
    """Tables, lines, blocks, JSON, and whatever is written past them."""
    stream = io.StringIO()
    output.Shown(stream).write(f"a{text}b\n")
    for shown in (output.clean(text), output.inline(text), output.as_json({text: text}), stream.getvalue().rstrip("\n")):
        assert all(unicodedata.category(c)[0] != "C" and c not in "\u2028\u2029" for c in shown), ascii(shown)
    assert json.loads(output.as_json({text: [text]})) == {text: [text]}


@given(st.text())
def test_json_stays_what_it_says(text: str) -> None:
    assert json.loads(output.as_json({"a": text})) == {"a": text}


def test_our_own_colours_pass() -> None:
    """And the line that progress is shown on, which returns to its begin."""
    for own in ("\x1b[32mfine\x1b[0m\n", "\r\x1b[2K", "a\tb\n"):
        assert output.show_raw(own) == own

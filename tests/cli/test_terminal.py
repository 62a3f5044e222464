"""X-26: terminal escapes, line feeds and bidi marks of a run show as text, in whatever is printed."""

from __future__ import annotations

import io
import json
import logging
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import logs
from holdfast.cli import output
from holdfast.ui import words

EVIL = ("\x1b]0;owned\x07", "\x1b[2J", "\r", "\x9b31m", "\u202egnp.exe", "\u2066x\u2069", "\x7f", "\u2028", "\x00", "\x08")


@pytest.mark.parametrize("text", EVIL)
def test_nothing_is_obeyed(text: str) -> None:
    """Tables, lines, blocks, JSON, and whatever is written past them."""
    stream = io.StringIO()
    output.Shown(stream).write(f"a{text}b\n")
    for shown in (output.clean(text), output.inline(text), output.as_json({text: text}), stream.getvalue().rstrip("\n")):
        assert all(unicodedata.category(c)[0] != "C" and c not in "\u2028\u2029" for c in shown), ascii(shown)
    assert json.loads(output.as_json({text: [text]})) == {text: [text]}


JOINED = ("می\u200cخواهم", "हिन्\u200dदी", "क्\u200cष", "👩\u200d💻", "👩🏽\u200d🚀", "🏳\ufe0f\u200d🌈", "❤\ufe0f\u200d🔥", "🙂\u200d↔\ufe0f", "👨\u200d👩\u200d👧\u200d👦")
STRAY = ("pay\u200cpal", "pay\u200dpal", "a\u200d💻", "💻\u200da", "می\u200c", "\u200cمی", "می\u200c خواهم", "می\u200c\u200cخواهم", "👩\u200d\u200d💻", "👩\u200d", "1\u200d2", "👩\u200c💻", "क्\u200d1")


@pytest.mark.parametrize("text", JOINED)
def test_a_joiner_is_shown_where_it_joins(text: str) -> None:
    """Persian, Indic scripts and emoji need it. Wherever text of others is shown."""
    stream = io.StringIO()
    output.Shown(stream).write(f"\x1b[32m{text}\x1b[0m\n")
    assert stream.getvalue() == f"\x1b[32m{text}\x1b[0m\n"
    assert output.clean(text) == output.inline(text) == words.clean(text) == words.line(text) == text
    assert text in output.as_json({"a": text})
    record = logging.LogRecord("holdfast.run", logging.INFO, "", 1, text, None, None)
    assert logs.Text().format(record).endswith(text)


@pytest.mark.parametrize("text", STRAY)
def test_a_joiner_that_joins_nothing_is_escaped(text: str) -> None:
    """There it could only make two different texts look alike."""
    for shown in (output.clean(text), output.inline(text), words.clean(text), words.line(text), output.as_json([text])):
        assert shown != text and "\\u200" in shown, ascii(shown)


@given(st.text(st.sampled_from("aمخ\u200c\u200d👩💻🏽\ufe0f्क\u202e\u2066\u200b\x1b \u034f")))
def test_nothing_else_passes_beside_joiners(text: str) -> None:
    """No two joiners pass behind each other, none at an end, and no other character that is not shown."""
    for shown in (output.clean(text), words.clean(text)):
        assert not {c for c in shown if unicodedata.category(c)[0] == "C"} - {"\u200c", "\u200d"}
        assert not re.search("[\u200c\u200d]{2}|^[\u200c\u200d]|[\u200c\u200d]$|[a ][\u200c\u200d]|[\u200c\u200d][a ]", shown)


def test_a_joiner_takes_no_room() -> None:
    assert output.columns("می\u200cخواهم") == 7


@given(st.text())
def test_json_stays_what_it_says(text: str) -> None:
    assert json.loads(output.as_json({"a": text})) == {"a": text}


def test_our_own_colours_pass() -> None:
    """And the line that progress is shown on, which returns to its begin."""
    for own in ("\x1b[32mfine\x1b[0m\n", "\r\x1b[2K", "a\tb\n"):
        assert output.show_raw(own) == own

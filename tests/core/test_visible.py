"""Characters that a terminal would obey, or would not show, are escaped; joiners pass where they join."""

from __future__ import annotations

import unicodedata

import pytest

from holdfast.core.visible import JOINER, NON_JOINER, escape, joins


def is_unsafe(c: str) -> bool:
    return unicodedata.category(c)[0] == "C"


@pytest.mark.parametrize(
    ("text", "at"), [("می\u200cخواهم", 2), ("क्\u200cष", 2), ("हिन्\u200dदी", 4), ("👩\u200d💻", 1), ("👩🏽\u200d🚀", 2), ("🏳\ufe0f\u200d🌈", 2), ("🙂\u200d↔\ufe0f", 1), ("مَ\u200cم", 2)]
)
def test_a_joiner_joins(text: str, at: int) -> None:
    assert text[at] in (JOINER, NON_JOINER) and joins(text, at) and escape(text, is_unsafe) == text


@pytest.mark.parametrize(
    ("text", "at"),
    [("pay\u200dpal", 3), ("\u200cمی", 0), ("می\u200c", 2), ("می\u200c خ", 2), ("👩\u200c💻", 1), ("a\u200d💻", 1), ("💻\u200da", 1), ("क्\u200d1", 2), ("1\u200d2", 1)],
)
def test_a_joiner_joins_nothing(text: str, at: int) -> None:
    assert not joins(text, at)
    assert escape(text, is_unsafe) == f"{text[:at]}\\u{ord(text[at]):04x}{text[at + 1 :]}"


def test_what_is_unsafe_is_written_as_the_caller_wants() -> None:
    assert escape("a\x1b[2J\u202eb", is_unsafe) == "a\\x1b[2J\\u202eb"
    assert escape("a\u202eb\u200dc", is_unsafe, lambda c: f"<{ord(c)}>") == "a<8238>b<8205>c"

"""What is hidden from those who look (§13.5, T-94)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.masks import HIDDEN, NOTHING, mask

STATES: list[dict[str, Any]] = [{"token": "sk-1234"}, {"token": {"now": "sk-12345", "all": ["old!", "x"]}, "name": "ada lovelace"}, {}]
MASK = mask(["token"], STATES)


def test_texts_of_all_times_are_found_the_longest_first() -> None:
    """A secret that was changed is one still; short texts are left, for they stand everywhere."""
    assert [t for t in MASK.texts if t in ("sk-12345", "sk-1234", "old!")] == ["sk-12345", "sk-1234", "old!"]
    assert list(MASK.texts) == sorted(MASK.texts, key=lambda t: (-len(t), t))
    short = mask(["token"], [{"token": ("abcd", 7, None)}])
    assert "abcd" in short.texts and short.text("7 of None") == "7 of None"
    assert mask(["token"], [{"token": "abc"}]).text("abc") == "abc"


def test_text_is_hidden_wherever_it_stands() -> None:
    assert MASK.text("Bearer sk-12345, sk-1234.") == f"Bearer {HIDDEN}, {HIDDEN}."
    assert MASK.text("ada lovelace") == "ada lovelace"


def test_a_value_is_hidden_by_name_too() -> None:
    """However deep; names that are not secret keep what is not."""
    shown = MASK.value({"token": 7, "a": [{"token": "x", "b": "is old! now"}], "name": "ada", "n": 1, "none": None})
    assert shown == {"token": HIDDEN, "a": [{"token": HIDDEN, "b": f"is {HIDDEN} now"}], "name": "ada", "n": 1, "none": None}


def test_a_record_is_not_hidden_by_the_names_of_its_own_fields() -> None:
    """A channel may be called status: what is hidden then is its value, not the run's."""
    named = mask(["status", "news"], [])
    record = {"status": "failed", "result": {"status": "s", "more": ({"status": 1},)}, "error": {"message": "status"}}
    assert named.record(record) == {"status": "failed", "result": {"status": HIDDEN, "more": [{"status": HIDDEN}]}, "error": {"message": "status"}}


@pytest.mark.parametrize(("name", "shown"), [("news", HIDDEN), ("other", {"a": 1})])
def test_a_signal_is_a_write_to_the_channel_of_its_name(name: str, shown: Any) -> None:
    """§5.11."""
    assert mask(["news"], []).record({"name": name, "payload": {"a": 1}}) == {"name": name, "payload": shown}


def test_where_nothing_is_secret_nothing_is_touched() -> None:
    shown = {"token": "sk-1234", "input": ("a",)}
    assert NOTHING.value(shown) is shown and NOTHING.record(shown) is shown and NOTHING.text("sk-1234") == "sk-1234"


def test_a_signal_into_a_secret_channel_is_hidden_by_its_name() -> None:
    """§5.11: it is a write to the channel of that name; numbers, bytes and keys are hidden by what they print as."""
    found = mask(["token"], [{"token": ["sk-1234", 98765, b"\xffbytes", {"key-of-it": 1.25}, {"in-a-set"}, 10**30]}])
    assert found.record({"name": "token", "payload": "anything"}) == {"name": "token", "payload": HIDDEN}
    assert found.record({"name": "other", "payload": "anything"}) == {"name": "other", "payload": "anything"}
    shown = found.record({"n": 98765, "f": 1.25, "b": b"\xffbytes", "plain": b"other", "true": True, "none": None, "sk-1234": 1, 7: [10**30], "o": Ellipsis})
    assert shown == {"n": HIDDEN, "f": HIDDEN, "b": HIDDEN, "plain": b"other", "true": True, "none": None, HIDDEN: 1, 7: [HIDDEN], "o": Ellipsis}
    assert NOTHING.record({"n": 98765}) == {"n": 98765} and NOTHING.value([98765]) == [98765]


class Odd:
    """A value of a class of the user's."""

    def __str__(self) -> str:
        return "odd-secret"


def test_every_form_of_a_secret_is_hidden() -> None:
    """X-25: as it is quoted, as bytes, by lines, by its digits."""
    found = mask(["token"], [{"token": ["first line\nsecond line", "12345678-1234-5678-1234-567812345678", Odd(), "lone \ud800 surrogate", b"plain bytes"]}])
    for form in (
        "first line\\nsecond line", "second line", "12345678123456781234567812345678", str(0x12345678123456781234567812345678), "odd-secret",
        "706c61696e206279746573", "cGxhaW4gYnl0ZXM=", "plain bytes", "first%20line%0Asecond%20line", "lone \ud800 surrogate",
    ):
        assert found.text(f"<{form}>") == f"<{HIDDEN}>", form


@pytest.mark.parametrize("kept", [4, 9, 21])
def test_a_secret_that_was_cut_off_is_hidden_to_its_end(kept: int) -> None:
    """A long text that is shown may have been cut in the midst of what is secret: its begin is secret too."""
    secret = "sk-0123456789-abcdefghij"
    found = mask(["token"], [{"token": [secret, "another-secret"]}])
    before = f"{'said ' * 60}{secret[:4]}! "
    assert found.text(before + secret[:kept]) == before + HIDDEN
    assert found.text(before + secret[:3]) == before + secret[:3]
    assert found.text(before + secret[:kept] + "?") == before + secret[:kept] + "?"
    assert found.text("short " + secret[:kept]) == "short " + secret[:kept]


@pytest.mark.parametrize("form", ["\\ud83d\\ude00", "\\U0001f600", "&#128512;", "%F0%9F%98%80", "\\xf0\\x9f\\x98\\x80", "😀"])
def test_signs_beyond_the_first_plane_are_hidden_as_they_are_quoted(form: str) -> None:
    found = mask(["token"], [{"token": "smile 😀 please"}])
    assert found.text(f"<smile {form} please>") == f"<{HIDDEN}>"

"""What a consent covers (§5.8): the subject of a question, and how what is asked now differs from it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core import canon, waits
from holdfast.core.masks import HIDDEN
from tests.core.build import raw, wait


def asked(subject: waits.Subject, prompt: str = "Pay?") -> Any:
    return wait(prompt=prompt, covers=subject.covers, reads=waits.pack(subject), show=None if subject.show is None else raw(subject.show))


def test_what_was_shown_is_compared_and_both_are_told() -> None:
    before = asked(waits.subject_of({"amount": 1}))
    assert waits.compare(before, "Another wording?", waits.subject_of({"amount": 1})) is None, "another wording alone is no difference"
    told = waits.compare(before, "Pay?", waits.subject_of({"amount": 1_000_000}))
    assert told == "{'amount': 1} was shown, and it is {'amount': 1000000} now"
    assert waits.pack(waits.subject_of(1)) is None
    assert waits.compare(before, "Pay?", waits.subject_of({"amount": 1}, verdict="rejected")) is not None, "what a machine said of it is shown too"


def test_a_bare_question_is_about_what_the_step_reads() -> None:
    before = asked(waits.read({"a": 1, "b": "x", "gone": 2}, ()))
    assert waits.compare(before, "Pay?", waits.read({"a": 1, "b": "x", "gone": 2}, ())) is None
    told = waits.compare(before, "Pay?", waits.read({"a": 2, "b": "x", "new": 3}, ()))
    assert told == "a was 1 and is 2, gone was 2 and is None, new was None and is 3"
    assert waits.compare(before, "Pay?", waits.read({"a": 1, "b": "x", "gone": 2}, (), verdict="bad")) == "the values that the step reads have changed"


def test_names_and_numbers_of_a_bare_question_count() -> None:
    """L-10: two swapped questions are told apart by them; the other words are wording."""
    reads = waits.read({"a": 1}, ())
    before = asked(reads, "Publish to prod.example.org 3 times, Ada?")
    assert waits.compare(before, "Please publish to prod.example.org 3 times, dear Ada!", reads) is None
    assert waits.compare(before, "Publish to prod.example.org 4 times, Ada?", reads) is not None
    assert waits.particulars("Send 5 mails to a@b.c, and to A. Lovelace") == ["5", "a@b.c", "Lovelace"]


def test_large_and_secret_values_are_kept_as_digests() -> None:
    large, hidden = "x" * (waits.EXCERPT_BYTES + 1), "hunter2"
    subject = waits.read({"large": large, "key": hidden, "small": 1}, {"key"})
    assert subject.reads is not None and subject.reads["small"] == 1
    assert subject.reads["large"] == "…" + canon.fingerprint(large)[:8] and subject.reads["key"].startswith(HIDDEN) and hidden not in str(subject)
    told = waits.compare(asked(subject), "Pay?", waits.read({"large": large, "key": "other", "small": 1}, {"key"}), {"key"})
    assert told is not None and told.startswith(f"key was '{HIDDEN}") and "hunter2" not in told and "large" not in told


def test_a_secret_in_what_was_shown_is_not_told() -> None:
    told = waits.compare(asked(waits.subject_of({"key": "hunter2", "n": 1})), "Pay?", waits.subject_of({"key": "hunter2", "n": 2}), {"key"})
    assert told is not None and "'n': 1" in told and "'n': 2" in told


def test_a_question_of_a_release_that_kept_no_digest() -> None:
    """It is compared by what it showed; one that showed nothing passes."""
    old = wait(prompt="Pay?", show=raw({"amount": 1}))
    assert waits.compare(old, "Pay?", waits.subject_of({"amount": 1})) is None
    assert waits.compare(old, "Pay?", waits.subject_of({"amount": 2})) == "{'amount': 1} was shown, and it is {'amount': 2} now"
    assert waits.compare(wait(prompt="Pay?"), "Pay?", waits.read({"a": 2}, ())) is None


@pytest.mark.parametrize("kept", [b"\xff\x00", raw([1])])
def test_what_cannot_be_read_differs_from_everything(kept: bytes) -> None:
    broken = wait(prompt="Pay?", covers="read:other", reads=kept)
    assert waits.compare(broken, "Pay?", waits.read({"a": 1}, ())) == "a was None and is 1"
    shown = wait(prompt="Pay?", covers="show:other", show=b"\xff\x00")
    told = waits.compare(shown, "Pay?", waits.subject_of(1))
    assert told is not None and told.startswith("'unreadable:") and told.endswith(" was shown, and it is 1 now")


def test_what_is_told_is_cut() -> None:
    told = waits.compare(asked(waits.subject_of("a" * 1_000)), "Pay?", waits.subject_of("b"))
    assert told is not None and "…" in told and len(told) < 500

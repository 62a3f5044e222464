"""Every answer is one that the document tells of, whatever is asked (§16.4, §16.10): 500 of the cases of ``python -m tests.http.fuzz``."""

from __future__ import annotations

from tests.http.fuzz import fuzz


def test_no_answer_is_a_fault_or_unknown_to_the_document() -> None:
    found = fuzz("memory:", 500, 300)
    assert found.total() == 500 and not [status for status in found if status >= "500"], found
    assert {"200", "404", "422"} <= found.keys() and found["202"] + found["409"] > 0, found

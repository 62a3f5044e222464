"""The request for a tool's call and its answer, as they are stored and as they are read back (§11.3)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import canon
from holdfast.core.errors import ErrorValue, Frame, InvalidInput
from holdfast.core.toolcalls import Answer, Asked, Word, owner_of, place_in, place_of, plain, read_answer, read_request, type_of

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
requests = st.builds(
    Asked, place=text, tool=text, argv=st.lists(text, max_size=3).map(tuple), step_id=text, attempt=st.integers(1, 99), cwd=text, input=st.binary(max_size=8),
    env=st.dictionaries(text, text, max_size=2), paths=st.lists(text, max_size=2).map(tuple), timeout_us=st.integers(0, 2**40), effect_id=text, key=text,
)
errors = st.builds(ErrorValue, type=text, message=text, code=text, where=text, hint=text, frames=st.just((Frame("f.py", 3, "f", "x()"),)) | st.just(()))
words = st.builds(Word, action=text, actor=text, reason=text)
answers = st.builds(Answer, owner=text, outcome=st.binary(max_size=8), blob=text, error=st.none() | errors, lost=text, closed=st.booleans(), word=st.none() | words)


@given(requests)
def test_a_request_is_read_as_it_was_made(request: Asked) -> None:
    stored = canon.pack(plain(request), "request")[1]
    assert read_request(canon.thaw(canon.decode(stored))) == request


@given(answers)
def test_an_answer_is_read_as_it_was_made(answer: Answer) -> None:
    assert read_answer(canon.pack(plain(answer), "answer")[1]) == answer


@pytest.mark.parametrize("payload", [None, 3, "x", [], {}, {"place": "a"}, {"owner": None}, {"owner": "x", "error": ["E"]}, {"owner": "x", "outcome": 7}])
def test_what_is_none_is_refused(payload: Any) -> None:
    with pytest.raises(InvalidInput, match="the request of a tool's call cannot be read"):
        read_request(payload)
    with pytest.raises(InvalidInput, match="the answer of a tool runner cannot be read"):
        read_answer(canon.pack(payload, "answer")[1])


def test_an_answer_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput):
        read_answer(None)


def test_a_request_owns_an_attempt_and_a_process_does_not() -> None:
    assert place_of(owner_of(type_of("0123456789abcdef"), "p1")) == "p1"
    assert place_of("host.1-2-3") is None and place_of("") is None


def test_a_request_is_told_by_the_id_of_its_intent() -> None:
    """Also in a later round of the same question."""
    assert [place_in(f"run.1.work!{rest}") for rest in ("p1", "p1.2")] == ["p1", "p1"]

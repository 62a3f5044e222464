"""Which open waits a decision about many is meant for (§5.12)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.errors import InvalidInput, TooLarge, UnknownOption
from holdfast.core.run import fold_all
from holdfast.core.selection import Where, where
from holdfast.core.waits import WaitKind
from tests.core.build import folded, numbered, submitted, wait

RUN = folded()
ASKED = wait(WaitKind.EFFECT, task="pay~3", name="charge")


@pytest.mark.parametrize(
    ("field", "meant", "other"),
    [
        ("skill", ["notes"], "mail"),
        ("thread", ["t"], "u"),
        ("kind", ["effect"], "retry"),
        ("name", ["charge"], "refund"),
        ("step", ["pay", "pay~3"], "pay~4"),
    ],
)
def test_each_name_narrows_what_is_meant(field: str, meant: list[str], other: str) -> None:
    """A node means all of its tasks, a task only itself."""
    for value in meant:
        assert where({field: value}).takes(RUN, ASKED)
    assert not where({field: other}).takes(RUN, ASKED)


def test_all_that_is_given_must_be_so() -> None:
    assert where({"skill": "notes", "kind": "effect", "step": "pay"}).takes(RUN, ASKED)
    assert not where({"skill": "notes", "kind": "effect", "step": "ask"}).takes(RUN, ASKED)


def test_a_tag_is_one_of_the_run_s() -> None:
    tagged = fold_all(None, numbered([submitted(tags=("web", "eu"))]))
    assert where({"tag": "eu"}).takes(tagged, ASKED)
    assert not where({"tag": "e"}).takes(tagged, ASKED) and not where({"tag": "eu"}).takes(RUN, ASKED)


@pytest.mark.parametrize("kind", [k for k in WaitKind if k not in {WaitKind.EFFECT}])
def test_what_no_person_can_answer_is_never_meant(kind: WaitKind) -> None:
    asked = wait(kind, task="pay~3", name="charge")
    assert where({"step": "pay"}).takes(RUN, asked) is asked.human


@pytest.mark.parametrize("given", [{}, {"skill": None}, {"kind": "timer"}, {"kind": 3}, {"skill": 7}, {"step": "a\0"}, "skill", [("skill", "a")], None])
def test_what_names_no_wait_is_refused(given: Any) -> None:
    """§3.6: nothing at all would mean every wait there is."""
    with pytest.raises(InvalidInput):
        where(given)


def test_a_name_that_is_too_long_is_refused() -> None:
    """§14.3."""
    with pytest.raises(TooLarge, match="tag"):
        where({"tag": "x" * 4_097})
    assert where({"tag": "x" * 4_096})


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownOption, match="skill"):
        where({"skil": "notes"})


def test_a_selection_keeps_what_was_given() -> None:
    assert where({"skill": "notes", "tag": "web"}) == Where(skill="notes", tag="web")

"""What is written by mistake in a first hour is refused with the way out (§3.6)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.bounds import check_arguments, function, mapping, run, show
from holdfast.core.canon import EMPTY_LIST, FrozenDict
from holdfast.core.channels import append
from holdfast.core.errors import InvalidGraph, InvalidInput, UnknownOption, UsageError
from holdfast.core.graph import Goto, Send
from holdfast.core.misused import EnteredAsync, NotCalled, is_function


class Pay(NotCalled):
    id = "pay"


class Door(EnteredAsync):
    pass


def test_a_skill_is_no_function() -> None:
    skill: Any = Pay()
    with pytest.raises(UsageError, match="the skill 'pay' is not called like a function"):
        skill(1, key=2)
    assert is_function(len) and not is_function(skill) and not is_function(1)
    assert show(skill) == "the skill 'pay'"
    with pytest.raises(InvalidInput, match=r"ctx\.child"):
        function(skill, "fn")


def test_what_is_entered_with_async_with_alone() -> None:
    door: Any = Door()
    with pytest.raises(UsageError, match="a Door is entered with `async with`, not with `with`"), door:
        pass
    door.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda: Goto(len), r"Goto takes the name of a node, not the function len; Goto\('len'\)$"),  # type: ignore[arg-type]
        (lambda: Goto(["a", len]), r"Goto takes the name of a node, not the function len; Goto\('len'\)$"),  # type: ignore[list-item]
        (lambda: Send(len, 1), r"Send takes the name of a node, not the function len; Send\('len', …\)$"),  # type: ignore[arg-type]
        (lambda: Send(5), "Send takes the name of a node, not 5 of type int$"),  # type: ignore[arg-type]
        (lambda: append(), r"a reducer is named in an annotation, and not called; Annotated\[list\[str\], append\]"),
        (lambda: run(Handle(), "run_id"), r"run_id is text, not a value of type Handle; give its id: run\.run_id"),
    ],
)
def test_what_stands_in_the_place_of_a_name(use: Any, said: str) -> None:
    with pytest.raises((InvalidInput, InvalidGraph), match=said):
        use()
    assert Goto("a").targets == ("a",) and Goto(("a", "b")).targets == ("a", "b") and Send("a").node == "a"


class Handle:
    run_id = "r1"


def test_an_input_that_is_given_as_an_option() -> None:
    @check_arguments()
    def start(inputs: Any, *, key: Any = None) -> None: ...

    with pytest.raises(UnknownOption, match=r"has no option 'topic'; did you mean .* An input is given in a mapping: \{'topic': …\}"):
        start({}, topic="a")  # type: ignore[call-arg]


class Odd(dict[str, Any]):
    """A mapping that has another value under the name of its method."""

    keys: Any = 5


def test_a_mapping_is_read_by_its_items_alone() -> None:
    given = mapping(Odd(a=1), "inputs")
    assert given == {"a": 1} and type(given) is dict


def test_a_snapshot_is_called_what_it_is_a_snapshot_of() -> None:
    assert show(FrozenDict()) == "a value of type dict" and show(EMPTY_LIST) == "a value of type list"

"""What recorded calls are called: their names in facts, in brief, in the story and in the explanation."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.core import canon, describe
from holdfast.core import events as ev
from holdfast.core.called import MOST_BRIEF, Called, brief, brief_of
from holdfast.core.errors import ErrorValue
from holdfast.core.explain import EDIT, Blocked, explain
from holdfast.core.status import Condition
from holdfast.core.turns import Turns
from holdfast.core.views import timeline
from holdfast.core.waits import ACTIONS, WaitKind
from tests.core.build import wait
from tests.core.test_explain import run

ERROR = ErrorValue("shop.Broken", "no such shard", "step_failed")


class Order(msgspec.Struct):
    number: int
    to: str


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("eu-1", "eu-1"), (7, "7"), (None, "null"), (True, "true"), ({"to": "ada", "n": 1}, "to=ada, n=1"), ([1, "a"], '[1, "a"]'), (Order(1, "x"), "number=1, to=x"),
        ("two\nlines", "two lines"), ("x" * 99, "x" * (MOST_BRIEF - 1) + "…"), ({"token": "abc", "to": "ada"}, "token=•••, to=ada"), (object(), ""), (float("nan"), "NaN"), ("", ""),
    ],
)
def test_a_value_in_brief(value: Any, said: str) -> None:
    assert brief(value, ("token",)) == said


def test_a_stored_value_in_brief() -> None:
    assert brief_of(canon.encode(canon.admit({"shard": "eu-1"}))) == "shard=eu-1" and brief_of(b"\xc1") == ""


def test_a_call_is_named_with_its_item() -> None:
    assert (str(Called("fetch")), str(Called("fetch", "eu-1"))) == ("fetch", "fetch (eu-1)")


def facts() -> list[ev.Event]:
    call = Called("fetch", "eu-2")
    told: list[ev.Fact] = [
        ev.RunStarted(), ev.StepStarted(1, "pull"), ev.StepRetryScheduled(1, "pull", 1, 5, ERROR, "0/1/0", call), ev.AttemptStarted(1, "pull", 2, "w", "0/1/0", call),
        ev.StepFailed(1, "pull", ERROR, attempt=2, path="0/1/0", call=call), ev.StepFailed(1, "pull", ERROR, path="0"), ev.StepCompleted(1, "pull", path="0/0/0", call=Called("fetch", "eu-1")),
        ev.StepCompleted(1, "pull"),
    ]
    return [ev.Event(n, n, fact) for n, fact in enumerate(told, 1)]


def test_steps_attempts_and_the_story_have_the_name() -> None:
    told = Turns(run()).feed(facts())
    assert {s.path: s.call for s in told.steps({(1, "pull", "0"): "map"})} == {"": "pull", "0/1/0": "fetch (eu-2)", "0": "map", "0/0/0": "fetch (eu-1)"}
    assert [a.call for a in told.attempts() if a.number == 2] == ["fetch (eu-2)"]
    said = [m.detail for m in timeline(facts(), (), {(1, "pull", ""): "pull (shard=eu)"})]
    assert "fetch (eu-2): Broken: no such shard" in said and "fetch (eu-1)" in said and "pull (shard=eu)" in said
    assert describe.payload("r", facts()[6])["call"] == "fetch (eu-1)" and "call" not in describe.payload("r", facts()[7])


def test_the_explanation_tells_of_failures_that_the_code_handled() -> None:
    happened = explain(run(), Condition.DONE, facts()).happened
    assert "In the step pull the call fetch (eu-2) is tried again after attempt 1." in happened
    assert any(line.startswith("In the step pull one call failed, and the code of the step handled that: fetch (eu-2): Broken: no such shard") for line in happened)
    two = [*facts()[:5], ev.Event(6, 6, ev.StepFailed(1, "pull", ERROR, path="1")), facts()[7]]
    assert any("2 calls failed" in line and "call 1: " in line for line in explain(run(), Condition.DONE, two).happened)


def test_an_edit_is_advised_where_it_can_be_checked() -> None:
    asked = wait(WaitKind.APPROVAL, available_actions=ACTIONS[WaitKind.APPROVAL], schema=canon.encode({"type": "integer"}))
    found = explain(msgspec.structs.replace(run(), waits=(asked,)), Condition.AWAITING_GATE_DECISION, [])
    assert [a.command.endswith("--payload JSON") for a in found.next] == [False, False, True] and found.next[-1].text == f"{EDIT}."


def test_a_queue_without_a_worker_is_named() -> None:
    found = explain(msgspec.structs.replace(run(), queue="mail"), Condition.QUEUED, [], Blocked(nobody=True))
    assert found.why == "It is due, and no worker of the queue 'mail' is running."

"""A decision with a TARGET: it is recorded, and the run is executed at once, as by ``resume``."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Type

MORE = '''
from holdfast import Context, flow

@flow("asks")
async def asks(ctx: Context, deny: str = "halt"):
    first = await ctx.approve("First?", on_deny=deny)
    number = await ctx.ask("How many?", int)
    paid = await ctx.wait("paid")
    return [first.action, number, paid]

@flow("two")
async def two(ctx: Context):
    return await ctx.gather(ctx.ask("One?", int), ctx.ask("Two?", int))
'''


@pytest.fixture(autouse=True)
def more(folder: Path) -> None:
    (folder / "more.py").write_text(MORE, "utf-8")


def waiting(holdfast: Type, skill: str = "asks", *more: str) -> str:
    return str(holdfast("run", f"more.py:{skill}", *more, "--json").json["run_id"])


def test_each_decision_executes_the_run_until_it_waits_or_ends(holdfast: Type) -> None:
    run = waiting(holdfast)
    approved = holdfast("approve", run, "more.py:asks")
    assert approved.code == 4 and "approved: First?" in approved.out and "How many?" in approved.out and "queued" not in approved.out
    answered = holdfast("decide", run, "more.py", "--action", "answer", "--payload", "3")
    assert answered.code == 4 and "signal: paid" in answered.out
    told = holdfast("signal", run, "paid", "more.py:asks", "--payload", "7", "--json")
    assert told.code == 0 and told.json["status"] == "completed" and told.json["result"] == ["approve", 3, 7]


def test_a_denial_that_is_delivered_is_executed_and_one_that_halts_is_not(holdfast: Type) -> None:
    halted = holdfast("deny", waiting(holdfast), "more.py:asks", "--reason", "no")
    assert halted.code == 5 and "halted" in halted.out
    delivered = holdfast("deny", waiting(holdfast, "asks", "--input", '{"deny": "deliver"}'), "more.py:asks", "--reason", "no")
    assert delivered.code == 4 and "How many?" in delivered.out


def test_without_a_target_it_is_recorded_only(holdfast: Type) -> None:
    run = waiting(holdfast)
    said = holdfast("approve", run)
    assert said.code == 0 and "queued" in said.out and f"holdfast resume {run} more.py:asks" in said.out


def test_code_that_has_another_skill_decides_nothing(holdfast: Type) -> None:
    run = waiting(holdfast)
    refused = holdfast("approve", run, "work.py")
    assert refused.code == 3 and refused.err.startswith("skill_unknown: ") and f"holdfast approve {run} more.py:asks" in refused.err
    assert holdfast("approve", run, "nothing.py").code == 3
    assert holdfast("show", run, "--json").json["decisions"] == []


def test_a_run_that_waits_for_more_says_so(holdfast: Type) -> None:
    run = waiting(holdfast, "two")
    first = holdfast("show", run, "--json").json["waits"][0]["wait_id"]
    said = holdfast("decide", run, "more.py:two", "--wait", first, "--action", "answer", "--payload", "1")
    assert said.code == 4 and "Two?" in said.out and "One?" in said.out.splitlines()[0]


@pytest.mark.parametrize("words", [("--no-resume",), ("--all",)])
def test_what_contradicts_a_target(holdfast: Type, words: tuple[str, ...]) -> None:
    run = waiting(holdfast)
    refused = holdfast("decide", *([] if "--all" in words else [run]), *(["last", "more.py:asks"] if "--all" in words else ["more.py:asks"]), "--action", "approve", *words)
    assert refused.code == 2 and "cannot be combined" in refused.err

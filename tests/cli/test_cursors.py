"""Lists in pages: whatever the size of a page, all pages together are the list, and the cursor is null on the last one alone."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.cli.conftest import Type

SKILL = '''
from typing import Annotated

from holdfast import Context, Graph, State, append, flow


@flow("ob", version="1")
async def ob(ctx: Context) -> int:
    for i in range(3):
        ctx.send("nope", {"i": i}, key=str(i))
        ctx.record("t", f"k{i}", {"i": i})
        await ctx.effect(str, i, idempotent=True)
    return 1


class Two(State):
    said: Annotated[list[str], append]


two = Graph("two", Two, version="1")


@two.node(start=True)
async def first(state: Two, ctx: Context):
    return {"said": ["a"]}


@two.node(after="first")
async def left(state: Two, ctx: Context):
    await ctx.approve("left?")


@two.node(after="first")
async def right(state: Two, ctx: Context):
    await ctx.approve("right?")
'''
LISTS = {
    "runs": ("runs", 4), "runs --skill ob": ("runs", 2), "runs --condition done": ("runs", 2), "waits": ("waits", 4), "outbox": ("intents", 6), "outbox OB": ("intents", 3),
    "outbox --type nope --state queued": ("intents", 6), "ledger": ("ledger", 6), "ledger OB": ("ledger", 3), "ledger --topic t --key k1": ("ledger", 2), "events OB": ("events", 0),
    "steps OB": ("steps", 0), "attempts OB": ("attempts", 0), "effects OB": ("effects", 3), "checkpoints OB": ("checkpoints", 0), "waits TWO": ("waits", 2),
}
"""By command the key of its list, and how many there are; 0 where that is the engine's business."""


@pytest.fixture
def ids(holdfast: Type, folder: Path) -> dict[str, str]:
    (folder / "many.py").write_text(SKILL, "utf-8")
    for _ in range(2):
        assert holdfast("run", "many.py:ob").code == 0
        assert holdfast("run", "many.py:two", "--input", "{}").code == 4
    found = holdfast("runs", "--json").json["runs"]
    return {name: next(run["run_id"] for run in found if run["skill_id"] == name.lower()) for name in ("OB", "TWO")}


def words(command: str, ids: dict[str, str]) -> list[str]:
    return [ids.get(word, word) for word in command.split()]


@pytest.mark.parametrize("command", LISTS)
def test_all_pages_are_the_list_and_the_last_has_no_cursor(command: str, holdfast: Type, ids: dict[str, str]) -> None:
    key, count = LISTS[command]
    typed = words(command, ids)
    whole = holdfast(*typed, "--json").json
    assert whole["next_cursor"] is None and whole[key] and count in (0, len(whole[key]))
    for size in (1, 2, len(whole[key]) - 1, len(whole[key]), len(whole[key]) + 1):
        if size < 1:
            continue
        found, cursor, pages = [], None, 0
        while pages == 0 or cursor is not None:
            page = holdfast(*typed, "--limit", str(size), *([] if cursor is None else ["--cursor", str(cursor)]), "--json").json
            assert page[key], "no page is empty"
            found += page[key]
            cursor, pages = page["next_cursor"], pages + 1
        assert found == whole[key]


@pytest.mark.parametrize("command", LISTS)
def test_the_command_for_the_next_page_is_printed_where_there_is_one(command: str, holdfast: Type, ids: dict[str, str]) -> None:
    """It keeps what was typed: with another limit, or without its filters, it would be another list."""
    key, _ = LISTS[command]
    typed = words(command, ids)
    found = []
    following = [*typed, "--limit", "1"]
    while following:
        found += holdfast(*following, "--json").json[key]
        said = holdfast(*following).out
        more = re.search(r"^more: python -m holdfast (.*)$", said, re.M)
        assert (more is not None) == (holdfast(*following, "--json").json["next_cursor"] is not None)
        following = shlex.split(more[1]) if more else []
    assert found == holdfast(*typed, "--json").json[key]


FORGED = ["zzz", "", "0" * 26, "z" * 26, "01m8ft", "last", "-1", "1.5", "a b", "ä"]


@pytest.mark.parametrize("command", LISTS)
@pytest.mark.parametrize("cursor", FORGED)
def test_a_forged_cursor_is_refused(command: str, cursor: str, holdfast: Type, ids: dict[str, str]) -> None:
    if cursor == "0" * 26 and command.startswith(("ledger", "events")):
        cursor = "x"  # as a number it is the beginning
    done = holdfast(*words(command, ids), f"--cursor={cursor}", "--json")
    assert done.code == 2 and list(done.json) == ["error"], done.err


def test_a_cursor_of_another_run_s_outbox_is_refused(holdfast: Type, ids: dict[str, str]) -> None:
    every = holdfast("outbox", "--json").json["intents"]
    other = next(i["intent_id"] for i in every if i["run_id"] != ids["OB"])
    assert holdfast("outbox", ids["OB"], "--cursor", other).code == 2
    assert holdfast("outbox", "--cursor", other).code == 0


def test_a_run_that_was_pruned_keeps_its_place(holdfast: Type, ids: dict[str, str]) -> None:
    """A list stays stable while others delete of it."""
    gone = holdfast("run", "work.py", "--input", '{"name": "quick"}', "--json").json["run_id"]
    newest = holdfast("submit", "work.py", "--input", '{"name": "quick"}', "--json").json["run_id"]
    assert holdfast("prune", "--older-than", "0s", "--json").json["pruned"] == [gone]
    older = [run["run_id"] for run in holdfast("runs", "--cursor", gone, "--json").json["runs"]]
    assert older == [run["run_id"] for run in holdfast("runs", "--json").json["runs"] if run["run_id"] != newest] and ids["OB"] in older


def test_after_is_the_same_as_cursor_where_it_was_there_first(holdfast: Type, ids: dict[str, str]) -> None:
    for command in ("ledger", f"events {ids['OB']}"):
        by = [holdfast(*command.split(), option, "2", "--json").json for option in ("--after", "--cursor")]
        assert by[0] == by[1]

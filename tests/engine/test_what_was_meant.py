"""The usual mistakes of a first hour end in an error that names the way out (§3.6)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Runtime, flow
from holdfast.core.errors import InvalidInput, LogRolledBack, RunFailed, StoreReadOnly, UsageError
from holdfast.stores.urls import open_url


def work(number: int = 1) -> int:
    return number


@flow("one")
async def one(ctx: Context) -> int:
    return await ctx.step(work)


async def test_a_call_in_the_place_of_a_function() -> None:
    @flow("calls")
    async def calls(ctx: Context) -> Any:
        return await ctx.step(work(3))  # type: ignore[call-overload]

    async with Runtime("memory:", skills=[calls]) as rt:
        with pytest.raises(RunFailed, match=r"fn is a function, not 3 of type int; give the function itself .* step\(f, x\)"):
            await rt.run(calls)


@pytest.mark.parametrize(
    ("skill", "said"),
    [
        (work, "skills[0] is a Graph or a Flow, not the function work; @flow("),
        (Graph, "skills[0] is a Graph or a Flow, not the class Graph; @flow("),
        ("one", "skills[0] is a Graph or a Flow, not 'one' of type str; @flow("),
    ],
)
def test_what_is_no_skill(skill: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Runtime("memory:", skills=[skill])
    assert str(caught.value).startswith(said)


def test_a_class_that_is_no_state() -> None:
    with pytest.raises(InvalidInput, match="state is a subclass of State, not the class dict"):
        Graph("g", dict)  # type: ignore[type-var]


def test_a_path_in_the_place_of_a_url() -> None:
    with pytest.raises(InvalidInput, match=r"store_url is a URL, such as sqlite:///runs.db, or a store, not a value of type \w+; sqlite:////data/runs.db$"):
        Runtime(Path("/data/runs.db"))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="store_url is a URL"):
        Runtime(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("runs.db", "sqlite:///runs.db"),
        ("sqlite://runs.db", "sqlite:///runs.db"),
        ("sqlite:runs.db", "sqlite:///runs.db"),
        ("sqlite:/data/runs.db", "sqlite:////data/runs.db"),
        (":memory:", "memory:"),
        ("memory", "memory:"),
        ("sqlite://", "memory:"),
    ],
)
def test_a_url_that_is_nearly_right(url: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_url(url)
    assert caught.value.hint.startswith(f"did you mean {meant}? ")
    open_url(meant)


@pytest.mark.parametrize("url", ["mysql://db", "sqlite:///", "", "workspace:", "sqlite:///a.db?mode=ro", "runs"])
def test_a_url_for_which_nothing_is_guessed(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_url(url)
    assert caught.value.hint.startswith("supported: ")


async def test_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(StoreReadOnly, match="is a folder; a SQLite store is a file: add its name"):
        async with Runtime(f"sqlite:///{tmp_path}"):
            pass


async def test_a_store_that_was_moved_without_its_anchor_opens_once_the_anchor_has_followed(tmp_path: Path) -> None:
    """§1.9: what the hint says is done."""
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    async with Runtime(f"sqlite:///{old}", skills=[one]) as rt:
        run = await rt.invoke(one, {})
    old.rename(new)
    with pytest.raises(LogRolledBack, match="move its anchor to .*new.db-anchor too"):
        async with Runtime(f"sqlite:///{new}", skills=[one]) as rt:
            await rt.invoke(one, {})
    (tmp_path / "old.db-anchor").rename(tmp_path / "new.db-anchor")
    async with Runtime(f"sqlite:///{new}", skills=[one]) as rt:
        assert (await rt.get(run.run_id)).result == 1
        assert (await rt.invoke(one, {})).result == 1


async def test_what_a_task_group_holds_is_told() -> None:
    """Its own text says «1 sub-exception», and nothing of the way out."""

    @flow("grouped")
    async def grouped(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step(work))
            group.create_task(ctx.step(work))

    async with Runtime("memory:", skills=[grouped]) as rt:
        with pytest.raises(RunFailed, match=r"1 sub-exception\): ConcurrentScope: the call of work began .* use ctx.gather"):
            await rt.run(grouped)


async def test_keyword_arguments_of_a_step() -> None:
    @flow("keywords")
    async def keywords(ctx: Context) -> Any:
        return await ctx.step(work, number=3)  # type: ignore[call-overload]

    async with Runtime("memory:", skills=[keywords]) as rt:
        with pytest.raises(RunFailed, match=r"has no option 'number'; .*functools.partial\(fn, number=…\)"):
            await rt.run(keywords)


def test_two_skills_of_one_name_and_version_in_one_list() -> None:
    """The second took the place of the first without a word. One skill named twice is no mistake, and neither is another version."""

    def make(version: str) -> Any:
        @flow("orders", version=version)
        async def orders(ctx: Context) -> int:
            return 1

        return orders

    first = make("1")
    with pytest.raises(UsageError, match="two skills are called 'orders' in version '1'; give one of them another id or another version"):
        Runtime("memory:", skills=[first, make("1")])
    Runtime("memory:", skills=[first, first, make("2")]).add(make("1"))

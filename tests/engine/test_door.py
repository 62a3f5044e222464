"""One door (§3.6, X-33): what a caller hands in becomes a plain, bounded value, or is refused by its name; nothing that could not be
read back is ever committed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Runtime, State
from holdfast.core.errors import InvalidInput, TooLarge, UnknownOption, UsageError


class Note(State):
    text: str = ""


def note() -> Graph[Note]:
    graph = Graph("note", Note)

    @graph.node(start=True)
    async def write(state: Note, ctx: Context) -> dict[str, Any]:
        if state.text == "ask":
            await ctx.approve("Go on?")
        return {"text": state.text + "!"}

    return graph


@pytest.fixture(params=["memory:", "sqlite"])
async def rt(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    url = request.param if request.param == "memory:" else f"sqlite:///{tmp_path}/s.db"
    async with Runtime(url, skills=[note()]) as runtime:
        yield runtime


async def sound(rt: Runtime) -> None:
    """The whole store can be listed, read and checked."""
    for run in await rt.runs():
        assert (await rt.get(run.run_id)).run_id == run.run_id
        assert await rt.events(run.run_id) is not None
    findings = await rt.check()
    assert findings.ok, findings


class Name(str):
    """Text of a class of its own."""


WRONG: list[tuple[str, Any]] = [
    ("thread_id", 42), ("key", 7), ("tags", [1]), ("job_id", 12), ("session_key", b"s"), ("lane", None), ("tenant_id", 3.5), ("trace_id", ["t"]),
    ("queue", object()), ("priority", "high"), ("priority", 2**31), ("priority", True), ("tags", "abc"), ("tags", 3), ("target", 5), ("unattended", "yes"),
    ("budgets", [1]), ("budgets", {"cost": -1}), ("paused_lane", "keep"), ("recovery", "never"), ("on_busy", "drop"), ("delay", "1h"),
    ("delay", float("nan")), ("delay", -1), ("at", "tomorrow"), ("key", ""), ("thread_id", "a\0b"), ("key", "\udc80"), ("priority", 10**30),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG, ids=[f"{n}={v!r:.20}" for n, v in WRONG])
async def test_an_option_of_another_type_is_refused_by_its_name(rt: Runtime, name: str, value: Any) -> None:
    """X-33: 42 was committed as a thread once, and ``runs`` of the whole store failed for ever."""
    with pytest.raises(InvalidInput) as caught:
        await rt.submit("note", {"text": "a"}, **{name: value})
    assert caught.value.field.split("[")[0] == name and name in str(caught.value)
    if name not in ("at", "delay"):
        with pytest.raises(InvalidInput):
            await rt.invoke("note", {"text": "a"}, **{name: value})
    assert await rt.runs() == []
    await sound(rt)


@pytest.mark.parametrize(("name", "most"), [("thread_id", 512), ("key", 512), ("queue", 512), ("tags", 4096), ("target", 4096)])
async def test_text_is_bounded(rt: Runtime, name: str, most: int) -> None:
    def given(size: int) -> Any:
        return ["x" * size] if name == "tags" else "x" * size

    run = await rt.submit("note", {"text": "a"}, **{name: given(most)})
    with pytest.raises(TooLarge) as caught:
        await rt.submit("note", {"text": "a"}, **{name: given(most + 1)})
    error = caught.value
    assert error.field.split("[")[0] == name and (error.size, error.limit) == (most + 1, most) and str(most) in str(error)
    assert [r.run_id for r in await rt.runs()] == [run.run_id]
    await sound(rt)


async def test_a_class_of_texts_becomes_plain(rt: Runtime) -> None:
    run = await rt.submit("note", {"text": "a"}, thread_id=Name("t"), key=Name("k"), tags=[Name("x")], job_id=Name("j"))
    again = await rt.get(run.run_id)
    assert (again.thread_id, again.tags, again.job_id) == ("t", ("x",), "j")
    assert {type(v) for v in (again.thread_id, again.tags[0], again.job_id)} == {str}
    await sound(rt)


async def test_the_other_verbs(rt: Runtime) -> None:
    run = await rt.invoke("note", {"text": "ask"})
    for act in (
        lambda: rt.approve(run.run_id, actor=7),  # type: ignore[arg-type]
        lambda: rt.deny(run.run_id, reason=b"no"),  # type: ignore[arg-type]
        lambda: rt.decide(run.run_id, 3),  # type: ignore[arg-type]
        lambda: rt.cancel(run.run_id, reason=["why"]),  # type: ignore[arg-type]
        lambda: rt.signal(run.run_id, 5),  # type: ignore[arg-type]
        lambda: rt.signal(run.run_id, "go", key=4),  # type: ignore[arg-type]
        lambda: rt.approve(run.run_id, note=9),  # type: ignore[arg-type]
        lambda: rt.resume(run.run_id, acknowledge=1),  # type: ignore[arg-type]
        lambda: rt.resume(run.run_id, step_limit=0),
        lambda: rt.get(None),  # type: ignore[arg-type]
        lambda: rt.runs(limit=10**30),
        lambda: rt.runs(before=5),  # type: ignore[arg-type]
        lambda: rt.replay(run.run_id, from_step=1.5),  # type: ignore[arg-type]
        lambda: rt.issue_token(run.waits[0].wait_id, 5),  # type: ignore[arg-type]
        lambda: rt.schedule("note", every=3600, tags=[2]),  # type: ignore[list-item]
        lambda: rt.events(run.run_id, after="x"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidInput) as caught:
            await act()  # type: ignore[no-untyped-call]
        assert caught.value.field
    with pytest.raises(TooLarge):
        await rt.approve(run.run_id, note="x" * 4097)
    with pytest.raises(TooLarge):
        await rt.signal(run.run_id, "go", "x" * (16 * 1024 * 1024 + 1))
    with pytest.raises(TooLarge):
        await rt.submit("note", {"text": "x" * (16 * 1024 * 1024 + 1)})
    assert (await rt.get(run.run_id)).version == run.version, "nothing was written"
    await sound(rt)


UNKNOWN: list[tuple[str, str, tuple[Any, ...], str, str]] = [
    ("submit", "note", ({},), "theard_id", "thread_id"), ("invoke", "note", ({},), "priorty", "priority"), ("decide", "r", ("approve",), "notes", "note"),
    ("cancel", "r", (), "reson", "reason"), ("runs", "", (), "stauts", "status"), ("fork", "r", (), "from_chekpoint", "from_checkpoint"),
    ("schedule", "note", (), "evry", "every"), ("signal", "r", ("go",), "keys", "key"), ("worker", "", (), "concurency", "concurrency"),
    ("resume", "r", (), "acknowlege", "acknowledge"), ("events", "r", (), "folow", "follow"), ("run", "note", ({},), "tag", "tags"),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "first", "rest", "name", "nearest"), UNKNOWN, ids=[u[3] for u in UNKNOWN])
async def test_an_unknown_option_is_refused_with_the_nearest(rt: Runtime, verb: str, first: str, rest: tuple[Any, ...], name: str, nearest: str) -> None:
    with pytest.raises(UnknownOption) as caught:
        await getattr(rt, verb)(*([first] if first else []), *rest, **{name: "x"})
    error = caught.value
    assert (error.name, error.nearest) == (name, nearest) and name in str(error) and nearest in str(error)
    assert isinstance(error, UsageError) and isinstance(error, TypeError) and str(error).endswith(error.hint)


async def test_a_budget_of_another_kind_is_refused(rt: Runtime) -> None:
    with pytest.raises(UnknownOption) as caught:
        await rt.submit("note", {"text": "a"}, budgets={"costs": 3})
    assert caught.value.nearest == "cost"

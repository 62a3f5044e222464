"""One door (§3.6, X-33): what a caller hands in becomes a plain, bounded value, or is refused by its name; nothing that could not be
read back is ever committed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Retry, Runtime, State, Tool, flow
from holdfast import run as run_now
from holdfast.core.environments import Environment
from holdfast.core.errors import InvalidInput, TooLarge, UnknownOption, UsageError
from holdfast.core.policy import Policy


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
]


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
]


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


# -- declarations -----------------------------------------------------------------------------------


async def body(state: Note) -> None:
    return None


async def act(ctx: Context, n: int = 1) -> int:
    return n


def decorated(**options: Any) -> Any:
    return Graph("g", Note).node("body", **{"start": True, **options})(body)


def made(**options: Any) -> Any:
    return flow("f", **options)(act)


DECLARED: list[tuple[Any, str, str]] = [
    (decorated, "gates", "gate"), (decorated, "side_effect", "side_effects"), (decorated, "time_out", "timeout"), (decorated, "retries", "retry"),
    (decorated, "chek", "check"), (made, "versoin", "version"), (made, "timeuot", "timeout"), (made, "idempotnet", "idempotent"),
    (lambda **o: Graph("g", Note, **o), "versoin", "version"), (lambda **o: Graph("g", Note, **o), "steps_limit", "step_limit"),
    (lambda **o: Graph("g", Note).subgraph("s", note(), **o), "pass_on", "pass_in"), (lambda **o: Tool("git", **o), "side_effect", "side_effects"),
    (lambda **o: Tool("git", **o), "time_out", "timeout"), (lambda **o: Retry(**o), "max_attempt", "max_attempts"), (lambda **o: Policy(**o), "versoin", "version"),
    (lambda **o: Environment(name="e", **o), "allow_forced", "allow_force"), (lambda **o: Runtime("memory:", **o), "skill", "skills"),
    (lambda **o: Runtime("memory:", **o), "transport", "transports"), (lambda **o: run_now(note(), **o), "stroe", "store"),
]


@pytest.mark.parametrize(("declare", "name", "nearest"), DECLARED, ids=[d[1] for d in DECLARED])
def test_an_unknown_option_of_a_declaration(declare: Any, name: str, nearest: str) -> None:
    """Mend 11: ``gates=`` was accepted, and nobody was ever asked."""
    with pytest.raises(UnknownOption) as caught:
        declare(**{name: 3})
    assert (caught.value.name, caught.value.nearest) == (name, nearest) and name in str(caught.value) and nearest in str(caught.value)


def sent() -> Any:
    return None


class Letter:
    """A transport that sends nothing."""


VALUES: list[tuple[Any, str, Any]] = [
    *[(d, "retry", v) for d in (decorated, made) for v in (-2, 0, "3", True, 1.5)], *[(d, "timeout", v) for d in (decorated, made) for v in (0, -1, "5", float("nan"))],
    (decorated, "side_effects", "external"), (decorated, "on_fail", "shout"), (decorated, "gate", "ask"), (decorated, "verify", 3), (decorated, "idempotent", "yes"),
    (decorated, "capabilities", "net"), (decorated, "reads", [3]), (decorated, "start", 1), (decorated, "on", 5), (made, "undo", 4), (made, "version", 2),
    (lambda **o: Graph("g", Note, **o), "version", 2), (lambda **o: Graph("g", Note, **o), "step_limit", 0), (lambda **o: Graph("g", Note, **o), "migrates", "abc"),
    (lambda **o: Graph("g", Note, **o), "kind", 3), (lambda **o: Tool("git", **o), "side_effects", "some"), (lambda **o: Tool("git", **o), "timeout", 0),
    (lambda **o: Tool("git", **o), "idempotency", "maybe"), (lambda **o: Tool(**o), "name", ""), (lambda **o: Retry(**o), "max_attempts", 0),
    (lambda **o: Retry(**o), "base_us", -1), (lambda **o: Retry(**o), "on", ("KeyError",)), (lambda **o: Policy(**o), "gate", "deny"),
    (lambda **o: Policy(**o), "version", 2), (lambda **o: Runtime("memory:", **o), "lease", 0), (lambda **o: Runtime("memory:", **o), "lease", "30"),
    (lambda **o: Runtime("memory:", **o), "environment", 5), (lambda **o: Runtime("memory:", **o), "policy", "strict"),
    (lambda **o: Runtime("memory:", **o), "resolver", "ada"), (lambda **o: Runtime("memory:", **o), "skills", [body]),
    (lambda **o: Runtime("memory:", **o), "skills", note()), (lambda **o: Runtime("memory:", **o), "tools", ["git"]),
    (lambda **o: Runtime("memory:", **o), "workspace", 3), (lambda **o: Runtime("memory:", **o), "clock", 3), (lambda **o: Runtime(**o), "store_url", 3),
    *[(lambda **o: Runtime("memory:", **o), "transports", {"mail": t}) for t in (object(), None, "smtp", Letter(), sent, Letter)],
    (lambda **o: Runtime("memory:", **o), "transports", [sent]), (lambda **o: Runtime("memory:", **o), "tool_runner", 3),
    (lambda **o: Runtime("memory:", **o), "executor", 3),
]


@pytest.mark.parametrize(("declare", "name", "value"), VALUES, ids=[f"{v[1]}={v[2]!r:.20}" for v in VALUES])
def test_a_bad_value_of_a_declaration(declare: Any, name: str, value: Any) -> None:
    with pytest.raises((InvalidInput, UsageError)) as caught:
        declare(**{name: value})
    assert isinstance(caught.value, InvalidInput) and caught.value.field.split("[")[0] == name and name in str(caught.value)


async def test_a_flow_takes_the_options_of_a_node() -> None:
    """Interfaces: ``@flow`` as ``node``, but for edges. What it declares has its effect."""
    asked: list[str] = []

    def gate(request: Any) -> bool:
        asked.append(request.node)
        return request.side_effects == "write"

    @flow("careful", side_effects="write", capabilities=("disk",), gate=gate, idempotent=True)
    async def careful(ctx: Context, n: int) -> int:
        return n + 1

    async with Runtime("memory:") as rt:
        assert await rt.run(careful, 2) == 3
        [done] = await rt.runs()
        assert asked == ["careful"] and [e.status for e in await rt.effects(done.run_id)] == ["recorded"]

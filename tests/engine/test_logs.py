"""The standard log: silent by default, one record for each event of a commit, without values of the program's (§18.4)."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, State, flow, logs, secret


class Login(State):
    name: str
    password: Annotated[str, secret] = ""


graph = Graph("login", Login, version="1")


@graph.node(start=True)
def check(state: Login) -> dict[str, str]:
    if state.name == "eve":
        raise PermissionError(f"{state.password} is wrong")
    return {}


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    written = io.StringIO()
    yield written
    for handler in logs.ROOT.handlers[1:]:
        logs.ROOT.removeHandler(handler)
    logs.ROOT.setLevel(logging.NOTSET)


async def played(name: str) -> str:
    async with Runtime("memory:", skills=[graph]) as rt:
        return (await rt.invoke(graph, {"name": name, "password": "correct horse"})).run_id


async def test_a_library_is_silent(out: io.StringIO, capfd: pytest.CaptureFixture[str]) -> None:
    await played("eve")
    assert capfd.readouterr() == ("", "")


async def test_text_has_a_line_for_each_decision_and_no_secret(out: io.StringIO) -> None:
    logs.show("text", out=out)
    run_id = await played("eve")
    lines = out.getvalue().splitlines()
    assert any("warning run.failed" in line and run_id in line and "code=step_failed" in line for line in lines)
    assert any("step.failed" in line and f"step_id={run_id}.1.check" in line and "skill_id=login" in line for line in lines)
    assert all(line[10] == "T" for line in lines) and "correct horse" not in out.getvalue()


async def test_json_is_an_object_a_line(out: io.StringIO) -> None:
    logs.show("json", out=out)
    run_id = await played("ada")
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [r["event_type"] for r in found if r["level"] == "info"] == ["run.submitted", "run.started", "step.completed", "run.completed"]
    assert {r["run_id"] for r in found} == {run_id} and all(r["logger"] == "holdfast.run" and r["seq"] > 0 for r in found)


def test_a_record_stays_one_line(out: io.StringIO) -> None:
    logs.show("text", out=out)
    logging.getLogger("holdfast.run").warning("two\nlines \x1b[31m")
    assert out.getvalue().count("\n") == 1 and "\\x1b" in out.getvalue()


def test_a_traceback_goes_with_its_record(out: io.StringIO) -> None:
    logs.show("json", out=out)
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("holdfast.outbox").exception("it failed")
    assert "ValueError: no" in json.loads(out.getvalue())["traceback"]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.startswith("holdfast") and r.levelno >= logging.WARNING]


async def test_a_run_that_fails_is_one_warning_that_names_the_line(caplog: pytest.LogCaptureFixture) -> None:
    """What a failing test of a user prints: the step, the error's kind and its line; no value, and nothing twice."""
    run_id = await played("eve")
    (said,) = warnings(caplog)
    assert said.startswith(f"run.failed {run_id}: login check, PermissionError at ") and "test_logs.py:" in said and "correct horse" not in said


async def test_a_failure_that_is_handled_is_a_warning_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(n: int) -> None:
        raise ValueError(n)

    @flow("handles")
    async def handles(ctx: Context) -> str:
        try:
            await ctx.step(refuse, 1)
        except ValueError:
            return "handled"
        return ""

    async with Runtime("memory:", skills=[handles]) as rt:
        run = await rt.invoke(handles)
    (said,) = warnings(caplog)
    assert run.result == "handled" and said.startswith(f"step.failed {run.run_id}: handles handles.0, ValueError at ")


def test_crashes_on_purpose_are_no_warnings(caplog: pytest.LogCaptureFixture, holdfast_crashes: Any) -> None:
    @flow("calm")
    async def calm(ctx: Context) -> int:
        return await ctx.step(abs, -1)

    _, ends = holdfast_crashes(calm)
    assert len(ends) > 4 and warnings(caplog) == []

"""Tools as subprocesses: confined, capped, ended with all they started (§11.1, §11.2)."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Retry, Runtime, Tool, flow
from holdfast.core.errors import PathOutsideWorkspace, StepTimeout, TooLarge, ToolFailed, ToolMissing
from holdfast.core.evidence import FileExists, FileHash
from holdfast.ports import ToolRequest
from holdfast.tools.local import LocalRunner

PYTHON = sys.executable


def request(code: str, **options: Any) -> ToolRequest:
    return ToolRequest(tool="python", command=(PYTHON, "-c", code), step_id="r.1.n", **options)


async def test_what_it_says_and_how_it_ends() -> None:
    got = await LocalRunner().run(request("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"))
    assert (got.stdout, got.stderr, got.exit_code, got.truncated, got.ok) == ("out\n", "err\n", 3, False, False)


async def test_json_goes_in_and_comes_out() -> None:
    got = await LocalRunner().run(request("import sys, json; print(json.dumps(json.load(sys.stdin) + [3]))", input=b"[1, 2]"))
    assert got.json() == [1, 2, 3]


async def test_output_is_cut_and_marked() -> None:
    got = await LocalRunner(output_cap=100_000).run(request("print('x' * 5_000_000)"))
    assert (len(got.stdout), got.truncated, got.exit_code) == (100_000, True, 0)


async def test_the_cap_is_four_mebibytes() -> None:
    got = await LocalRunner().run(request("import sys; sys.stdout.write('x' * (4 * 1024 * 1024 + 1))"))
    assert len(got.stdout) == 4 * 1024 * 1024 and got.truncated


async def test_bytes_that_no_store_keeps_are_marked() -> None:
    """§1.10: a tool may print anything."""
    got = await LocalRunner().run(request(r"import sys; sys.stdout.buffer.write(b'a\0b\xff')"))
    assert got.stdout == "a\ufffdb\ufffd"


async def test_it_sees_the_allowed_environment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s")
    monkeypatch.setenv("WANTED", "w")
    got = await LocalRunner().run(request("import os; print(sorted(os.environ))", allow=("WANTED",), env={"GIVEN": "g"}))
    assert "'WANTED'" in got.stdout and "'GIVEN'" in got.stdout and "SECRET" not in got.stdout


@pytest.mark.parametrize("path", ["..", "../other", "/etc", "link"])
async def test_nothing_leaves_the_workspace(path: str, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    os.symlink("/etc", tmp_path / "w" / "link")
    workspace = str(tmp_path / "w")
    with pytest.raises(PathOutsideWorkspace):
        await LocalRunner().run(request("pass", cwd=path, workspace=workspace))
    with pytest.raises(PathOutsideWorkspace):
        await LocalRunner().run(request("pass", paths=(path,), workspace=workspace))


async def test_it_works_inside_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    got = await LocalRunner().run(request("import os; print(os.getcwd())", cwd="in", workspace=str(tmp_path)))
    assert got.stdout.strip() == str((tmp_path / "in").resolve())


def _ended(pid: int) -> bool:
    """Whether a process that was killed is gone, or goes within seconds: a busy kernel takes its time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()  # select() takes no descriptor beyond 1,023, and a long test session has more
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(10_000))
    finally:
        os.close(handle)


async def test_a_timeout_ends_the_whole_process_group(tmp_path: Path) -> None:
    """SIGTERM is ignored here, by the child and by what it started; SIGKILL is not."""
    code = (
        "import os, signal, subprocess, sys, pathlib\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '600'], preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN))\n"
        f"pathlib.Path({str(tmp_path / 'pids')!r}).write_text(f'{{os.getpid()}} {{child.pid}}')\n"
        "child.wait()\n"
    )
    with pytest.raises(StepTimeout, match="took longer than 1 s"):
        await LocalRunner(grace_seconds=0.1).run(request(code, timeout_us=1_000_000))
    for pid in (tmp_path / "pids").read_text().split():
        assert _ended(int(pid)), f"{pid} still lives"


@pytest.mark.parametrize("session", [False, True], ids=["in its group", "in a session of its own"])
async def test_what_a_tool_leaves_running_holds_up_nobody(session: bool, tmp_path: Path) -> None:
    """§11.2: the tool has ended, and its exit code is known. What it has left running with its output is no reason to wait for the timeout and then not to know."""
    code = (
        "import pathlib, subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session={session})\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        "print('begun', flush=True); sys.exit(3)\n"
    )
    before = len(os.listdir("/proc/self/fd"))
    try:
        got = await LocalRunner(grace_seconds=0.1).run(request(code, timeout_us=60_000_000))
        await asyncio.sleep(0)  # the loop closes what the runner has let go of
        assert (got.stdout, got.exit_code, got.truncated) == ("begun\n", 3, True) and len(os.listdir("/proc/self/fd")) <= before
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    "declared", [{"artifacts": ("../*.txt",)}, {"artifacts": ("/etc/hosts",)}, {"postconditions": (FileExists("../made"),)}, {"postconditions": (FileHash("/etc/hosts", "0"),)}],
    ids=["artifacts above", "artifacts elsewhere", "a file above", "a file elsewhere"],
)
async def test_what_is_declared_to_lie_outside_is_refused_before_anything_is_done(declared: dict[str, Any], tmp_path: Path) -> None:
    """§11.2: a tool that has acted, and is said to have failed, would be called again."""
    with pytest.raises(PathOutsideWorkspace):
        await LocalRunner().run(request("open('acted', 'w')", workspace=str(tmp_path), **declared))
    assert not (tmp_path / "acted").exists()


async def test_a_missing_command_is_named() -> None:
    with pytest.raises(ToolMissing, match="no-such-thing"):
        await LocalRunner().run(ToolRequest(tool="t", command=("no-such-thing",), step_id="s"))


@pytest.mark.parametrize(
    ("command", "options", "told", "way_out"),
    [
        (("no-such-thing",), {}, "there is no command no-such-thing", "install it"),
        (("./nothing",), {}, "there is no command ./nothing", "install it"),
        (("./file/nothing",), {}, "there is no command ./file/nothing", "install it"),
        (("./folder",), {}, "./folder is a folder", "install it"),
        (("./plain",), {}, "./plain is not executable", "chmod +x"),
        (("./strange",), {}, "./strange is no program", "#! line"),
        (("./orphan",), {}, "no program that the first line of ./orphan names", "#! line"),
        (("echo",), {"cwd": "nowhere"}, "there is no folder", "cwd="),
        (("echo",), {"cwd": "file"}, "is not a folder", "cwd="),
    ],
)
async def test_what_cannot_be_run_is_named_with_the_way_out(command: tuple[str, ...], options: dict[str, str], told: str, way_out: str, tmp_path: Path) -> None:
    """§11.2: the tool and its command are named, not the error of the system alone."""
    (tmp_path / "folder").mkdir()
    for name, text, mode in (("file", "", 0o644), ("plain", "#!/bin/sh\n", 0o644), ("strange", "\x01\x02", 0o755), ("orphan", "#!/no/such\n", 0o755)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    command = tuple(c if not c.startswith("./") else str(tmp_path / c) for c in command)
    with pytest.raises(ToolMissing) as raised:
        await LocalRunner().run(ToolRequest(tool="lint", command=command, step_id="s", workspace=str(tmp_path), **options))
    assert raised.value.message.startswith("the tool lint cannot be run: ")
    assert told.replace("./", f"{tmp_path}/") in raised.value.message and way_out in raised.value.hint


@pytest.mark.parametrize(
    ("argv", "env", "field"),
    [(["a", "x" * 200_000], {}, "command[2] of lint"), (["x" * 1_000] * 5_000, {}, "command and environment of lint"), ([], {"A": "x" * 200_000}, "env['A'] of lint")],
    ids=["one argument", "many", "the environment"],
)
async def test_arguments_beyond_what_the_system_takes_are_told_by_their_size(argv: list[str], env: dict[str, str], field: str) -> None:
    """§14.3: an error that names field, size and limit; another attempt would not mend it."""
    with pytest.raises(TooLarge) as raised:
        await LocalRunner().run(ToolRequest(tool="lint", command=("echo", *argv), step_id="s", env=env))
    assert raised.value.field == field and raised.value.size > raised.value.limit > 100_000
    assert "input=" in raised.value.hint


async def test_a_process_that_the_system_has_no_room_for_is_tried_again() -> None:
    """§10.9: what may pass is an error of the tool, which a retry may follow; nothing of it has run."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(ToolFailed) as raised:
            await LocalRunner().run(ToolRequest(tool="lint", command=("true",), step_id="s"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "the tool lint could not be started: " in raised.value.message and "descriptors" in raised.value.hint
    assert Retry(2).retries(raised.value, 1) and not Retry(2).retries(ToolMissing("x"), 1)


# -- through a run --------------------------------------------------------------------------------------


def working(**options: Any) -> Any:
    @flow("working")
    async def work(ctx: Context, code: str) -> str:
        outcome = await ctx.tool("py", ["-c", code], **options)
        return outcome.stdout.strip()

    return work


@pytest.mark.parametrize(("side_effects", "rows"), [("read", 0), ("write", 1), ("external_action", 1)])
async def test_a_reading_tool_is_a_recorded_step_any_other_an_effect(side_effects: str, rows: int, tmp_path: Path) -> None:
    """T-44, §6.1: the class is said once, where the tool is declared."""
    tool = Tool("py", side_effects=side_effects, command=(PYTHON,))
    skill = working()
    async with Runtime("memory:", skills=[skill], tools=[tool], workspace=tmp_path) as rt:
        run = await rt.invoke(skill, {"code": "print('hi')"})
        assert (run.status, run.result) == ("completed", "hi")
        effects = await rt.effects(run.run_id)
        assert len(effects) == rows and all(e.capability == "tool:py" for e in effects)
        assert "step.completed" in [e.type for e in await rt.events(run.run_id)]


async def test_an_undeclared_tool_is_an_external_action() -> None:
    """§6.1."""

    @flow("undeclared")
    async def undeclared(ctx: Context) -> str:
        return (await ctx.tool("echo", "hi")).stdout

    async with Runtime("memory:", skills=[undeclared]) as rt:
        run = await rt.invoke(undeclared, {})
        [effect] = await rt.effects(run.run_id)
        assert (run.result, effect.effect_class) == ("hi\n", "external_action")


async def test_an_acting_tool_is_told_its_key() -> None:
    """§6.3: the key is handed on, to pass to the outside service."""
    skill = working(key="order-7")
    async with Runtime("memory:", skills=[skill], tools=[Tool("py", command=(PYTHON,))]) as rt:
        run = await rt.invoke(skill, {"code": "import os; print(os.environ['HOLDFAST_IDEMPOTENCY_KEY'])"})
        [effect] = await rt.effects(run.run_id)
        assert run.result == effect.key.strip() and "order-7" in run.result


async def test_a_failing_tool_fails_the_step_unless_asked_not_to() -> None:
    tool = Tool("py", side_effects="read", command=(PYTHON,))
    strict, lax = working(), working(check=False)
    async with Runtime("memory:", skills=[strict], tools=[tool]) as rt:
        run = await rt.invoke(strict, {"code": "import sys; sys.exit('broken')"})
        assert (run.status, run.stop_reason) == ("failed", "tool_failed") and "broken" in run.error.message
        run = await rt.invoke(lax, {"code": "import sys; print('part'); sys.exit(2)"})
        assert (run.status, run.result) == ("completed", "part")

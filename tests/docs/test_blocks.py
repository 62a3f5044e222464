"""Every fenced block of every page is run by a test: ``ELSEWHERE`` names the tests of pages with one of their own, the others run here.

What a page calls yours (a skill, a run) is given to its blocks; a block itself runs as it stands.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Runtime, State, flow
from holdfast.encryption import Encryption, KeyFile
from holdfast.testing import replay_check
from tests.docs.pages import ROOT, blocks, lines
from tests.docs.test_lines import of_holdfast
from tests.postgres.server import shared

BLOCKS = {(b.page, b.language, b.number): b for b in blocks()}
ELSEWHERE = {
    ("README.md", "sh"): "tests/test_tidy.py",
    ("README.md", "python"): "tests/test_docs.py",
    ("docs/tutorial.md", "python"): "tests/test_docs.py",
    ("docs/effects.md", "python"): "tests/docs/test_effects_page.py",
    ("docs/outbox.md", "python"): "tests/docs/test_outbox_page.py",
    ("docs/tools.md", "python"): "tests/docs/test_outbox_page.py",
    ("docs/schedules.md", "python"): "tests/docs/test_schedules_page.py",
    ("docs/schedules.md", "sh"): "tests/docs/test_schedules_page.py",
    ("docs/integrations.md", "python"): "tests/integrations/test_page.py",
    ("docs/stuck.md", "text"): "tests/cli/test_failing_runs.py",
    ("docs/testing.md", "python"): "tests/testing/test_docs.py",
}
HELLO = '''
from holdfast import Context, Graph, State


class Notes(State):
    name: str
    text: str = ""


notes = Graph("notes", Notes)


@notes.node(start=True)
async def greet(state: Notes, ctx: Context):
    return {"text": f"Hello, {state.name}!"}


@notes.node(after="greet")
async def ask(state: Notes, ctx: Context):
    await ctx.approve("Send?", show=state.text)
'''
"""What the pages call your skill."""
HERE: dict[tuple[str, str], Callable[..., Any]] = {}
"""What runs the blocks of a page in one language, here."""


def of(page: str, language: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def keep(function: Callable[..., Any]) -> Callable[..., Any]:
        HERE[page, language] = function
        return function

    return keep


def text(page: str, language: str, number: int) -> str:
    return BLOCKS[page, language, number].text


async def run(code: str, names: dict[str, Any]) -> dict[str, Any]:
    """Runs a block, ``await`` at its top level included, and gives its names."""
    done = eval(compile(code, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if inspect.iscoroutine(done):
        await done
    return names


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with ``notes.py``, and commands as they are typed: ``holdfast`` is that of this tree."""
    for name in [n for n in os.environ if n.startswith(("HOLDFAST_", "OTEL_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "bin").mkdir()
    curl = 'PATH="$REAL" exec curl' if shutil.which("curl") else f"exec {sys.executable} {ROOT / 'tests' / 'docs' / 'curl.py'}"
    for name, command in (("holdfast", f'exec {sys.executable} -m holdfast "$@"'), ("curl", f'[ "$1" = -N ] && set -- -m 1 "$@"; {curl} -sS "$@"')):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{command}\n", "utf-8")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("REAL", os.environ["PATH"])
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.py").write_text(HELLO, "utf-8")
    (tmp_path / "skills.py").write_text(HELLO, "utf-8")
    return tmp_path


def shell(script: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs lines as somebody types them, in one shell that ends at the first that fails."""
    typed = "\n".join(line.removeprefix("$ ") for line in script.splitlines())
    return subprocess.run(["bash", "-euc", typed], env=os.environ | more, capture_output=True, text=True, timeout=60, check=False)


# -- nothing is left out ----------------------------------------------------------------------------


def test_every_block_is_run_somewhere() -> None:
    known = set(ELSEWHERE) | set(HERE)
    assert {f"{b.page}: {b.language} {b.number}" for b in BLOCKS.values() if (b.page, b.language) not in known} == set()
    assert {key for key in known if not any(key == (b.page, b.language) for b in BLOCKS.values())} == set(), "these have no block any more"
    gone = [test for (page, _), test in ELSEWHERE.items() if Path(page).name not in (ROOT / test).read_text("utf-8")]
    assert gone == [], "these tests do not speak of their page"


# -- pages that have no test of their own ------------------------------------------------------------


@of("README.md", "text")
def test_the_table_of_the_mail_that_was_sent_twice() -> None:
    """The rows that need nothing else are counted in tests/examples; ``-m heavy`` runs all four."""
    rows = {line[:14].strip(): line[14:].split()[:3] for line in text("README.md", "text", 0).splitlines()[1:]}
    assert rows == {"plain script": ["2", "2", "2"], "LangGraph": ["2", "1", "2"], "DBOS": ["2", "1", "2"], "Holdfast": ["2", "1", "1"]}


@pytest.mark.heavy
def test_the_command_of_that_table_prints_it() -> None:
    (command,) = re.findall(r"`(uv run --with dbos [^`]*)`", (ROOT / "README.md").read_text("utf-8"))
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == text("README.md", "text", 0)


@of("CONTRIBUTING.md", "sh")
def test_how_a_change_is_tried() -> None:
    """The block is what .ci/run does, on a machine that has nothing yet; this very process is its last line."""
    steps = [part for line in text("CONTRIBUTING.md", "sh", 0).splitlines() for part in line.split(" && ")]
    assert steps == ["pip install uv", "uv sync --all-extras", "uv run pytest"]
    done = (ROOT / ".ci" / "run").read_text("utf-8")
    assert "pip install uv" in done and "uv run pytest" in done


@of("docs/encryption.md", "python")
async def test_encryption_in_python(folder: Path) -> None:
    (folder / "holdfast-keys").write_text("k1 " + "A" * 43 + "=\n", "utf-8")
    code = text("docs/encryption.md", "python", 0).replace("/run/secrets/", f"{folder}/")
    names = await run(code, {"Encryption": Encryption, "KeyFile": KeyFile})
    await names["rt"].close()


@of("docs/encryption.md", "console")
def test_encryption_in_a_shell(folder: Path) -> None:
    done = shell(text("docs/encryption.md", "console", 0) + "holdfast run notes.py --input '{\"name\": \"Ada Lovelace\"}' || test $? = 4\nholdfast show last\n")
    assert done.returncode == 0, done.stderr
    assert "Hello, Ada Lovelace!" in done.stdout
    written = [p for p in (folder / ".holdfast").glob("runs.db*") if p.is_file()]
    assert written and not any(b"Lovelace" in p.read_bytes() for p in written)


@of("docs/howto/deploy.md", "nginx")
@of("docs/howto/deploy.md", "dockerfile")
@of("docs/howto/deploy.md", "ini")
def test_what_stands_before_a_server_names_commands_that_are_there() -> None:
    """No proxy, container or service manager is at hand here: what of ours they start is held against the command line, and what streams need."""
    nginx, container, unit = (text("docs/howto/deploy.md", language, 0) for language in ("nginx", "dockerfile", "ini"))
    assert re.search(r"proxy_buffering off;", nginx) and re.search(r"proxy_set_header X-Forwarded-Proto \$scheme;", nginx)
    entry, command = (json.loads(re.search(rf"^{word} (\[.*\])$", container, re.M)[1]) for word in ("ENTRYPOINT", "CMD"))  # type: ignore[index]
    assert entry == ["holdfast"] and of_holdfast(command) == ""
    assert re.search(r"^USER (?!root)\w+$", container, re.M), "it runs as a plain user"
    (start,) = re.findall(r"^ExecStart=\S+/holdfast (.*)$", unit, re.M)
    assert of_holdfast(start.split()) == "" and "User=holdfast" in unit


@of("docs/howto/deploy.md", "sh")
def test_a_worker_on_postgresql(folder: Path) -> None:
    (line,) = [line for line in text("docs/howto/deploy.md", "sh", 0).splitlines() if line.startswith("holdfast")]
    url = shared().fresh("pages")
    line = line.replace("postgresql://holdfast@db.example/holdfast", f"'{url}'")
    with subprocess.Popen(["bash", "-c", f"exec {line}"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0, said + process.stderr.read()
    assert "notes" in said and "up to 10 runs at the same time" in said


@of("docs/howto/deploy.md", "python")
def test_the_web_application_is_the_example() -> None:
    program = (ROOT / "examples" / "web_app.py").read_text("utf-8")
    blocks = [b.text for b in BLOCKS.values() if (b.page, b.language) == ("docs/howto/deploy.md", "python")]
    assert [part for block in blocks for part in block.split("\n\n\n") if part.strip() not in program] == []


@of("docs/limits.md", "python")
async def test_limits() -> None:
    names = await run(text("docs/limits.md", "python", 0), {})
    async with names["rt"] as rt:
        assert set(names["limits"]) == {"worker", "queue:default", "queue:*", "tenant:*", "model"} and await rt.runs() == []


@of("docs/people.md", "python")
async def test_reviews_checks_and_policies() -> None:
    review, check, rules = [await run(text("docs/people.md", "python", n), {}) for n in range(3)]
    async with Runtime("memory:", skills=[review["graph"], check["letters"]]) as rt:
        plan = await rt.invoke(review["graph"], {})
        letter = await rt.invoke(check["letters"], {})
    assert (plan.condition, letter.condition) == ("awaiting_human_review", "awaiting_gate_decision")
    graph = Graph("pay", State)

    @graph.node(start=True, capabilities=("payments",))
    async def pay(state: Any) -> None:
        return None

    async with Runtime("memory:", skills=[graph], policy=rules["policy"]) as rt:
        denied = await rt.invoke(graph, {})
        events = await rt.events(denied.run_id)
    assert denied.condition == "halted" and "no payments outside production" in str([e.payload for e in events if e.type == "policy.evaluated"])


@of("docs/streams.md", "python")
async def test_streams(capsys: pytest.CaptureFixture[str]) -> None:
    @flow("writer")
    async def writer(ctx: Context, topic: str) -> str:
        ctx.emit(f"The {topic} ")
        return topic

    async with Runtime("memory:", skills=[writer]) as rt:
        done = await rt.invoke(writer, {"topic": "moon"})
        names = await run(text("docs/streams.md", "python", 0), {"rt": rt, "writer": writer, "run_id": done.run_id, "cursor": None})
    assert done.status == "completed" and "The tides " in capsys.readouterr().out and names["cursor"] is not None


@of("docs/testing.md", "text")
async def test_what_a_changed_skill_and_a_broken_seed_print(tmp_path: Path) -> None:
    def summarise(repo: str) -> str:
        return "It works."

    def polish(text: str) -> str:
        return text

    def skill(polished: bool) -> Graph[Any]:
        class Notes(State):
            repo: str = "."
            draft: str = ""

        graph = Graph("notes", Notes)

        @graph.node(start=True)
        async def collect(state: Any, ctx: Context) -> dict[str, str]:
            return {"draft": await ctx.step(summarise, state.repo)}

        @graph.node(after="collect")
        async def draft(state: Any, ctx: Context) -> None:
            if polished:
                await ctx.step(polish, state.draft)

        return graph

    async with Runtime("memory:", skills=[skill(False)]) as rt:
        recorded = await rt.invoke("notes", {})
        await rt.export(recorded.run_id, tmp_path / "recorded")
    said = str(await replay_check(skill(True), tmp_path / "recorded"))
    differs, seed = (re.sub(r"\b01[0-9a-z]{24}\b", "RUN", text("docs/testing.md", "text", n)) for n in (0, 1))
    assert said.replace(recorded.run_id, "RUN").splitlines() == differs.splitlines()
    story = (ROOT / "tests" / "golden" / "stories" / "unknown_effect_repeated.txt").read_text("utf-8").splitlines()
    assert [line for line in seed.splitlines()[1:] if line.strip() not in ("", "…") and line not in story] == []


@of("docs/testing.md", "sh")
def test_the_simulator_is_asked_as_the_page_says() -> None:
    line = text("docs/testing.md", "sh", 0).strip()
    done = subprocess.run([sys.executable, *line.replace("1000", "2").split()[1:]], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "2" in done.stdout, done.stderr


@of("docs/telemetry.md", "python")
async def test_telemetry(folder: Path) -> None:
    begun = asyncio.Event()

    @flow("traced")
    async def skill(ctx: Context) -> None:
        begun.set()

    async with Runtime("sqlite:///runs.db", skills=[skill]) as rt:
        await rt.submit(skill)
    running = asyncio.ensure_future(run(text("docs/telemetry.md", "python", 0), {"skill": skill}))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_the_lines_over_http(folder: Path) -> None:
    """Every line with ``curl``, and the one that makes a token, against a server of its own."""
    found = [line for page, line in lines() if page == "docs/http.md"]
    (token,) = [line for line in found if line.startswith("holdfast token create")]
    curls = [line for line in found if line.startswith("curl") and set(re.findall(r"\$(\w+)", line)) <= {"T", "H", "RUN"}]
    post, *looks = [line for line in curls if " -d " not in line or '"skill_id"' in line]
    (approve,) = [line for line in curls if "/approve" in line]
    assert '"skill_id"' in post and len(looks) >= 24, "those that need a scene of their own are sent in tests/http/test_docs.py"
    store = f"sqlite:///{folder / 'runs.db'}"
    with subprocess.Popen(
        ["holdfast", "serve", "notes.py", "--port", "0", "--store", store], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, bufsize=1
    ) as server:
        assert server.stderr is not None
        try:
            host = next(m[0] for line in server.stderr if (m := re.search(r"http://127\.0\.0\.1:\d+", line)))
            made = shell(f"{token} --store {store}")
            secret = re.search(r"\bhf_\S+|^\S{30,}$", made.stdout, re.M)
            assert secret is not None, made.stdout + made.stderr
            given = {"T": secret[0], "H": host, "RUN": ""}
            given["RUN"] = re.search(r'"run_id": ?"(\w+)"', shell(post, **given).stdout)[1]  # type: ignore[index]
            assert '"waiting_for_human"' in shell('curl -H "Authorization: Bearer $T" "$H/v1/runs/$RUN?wait=2"', **given).stdout
            for line in (*looks, approve):
                done = shell(line.replace("-s -N", "-N"), **given)
                assert done.returncode in (0, 28) and '"code"' not in done.stdout[:40], f"{line}\n{done.stdout}{done.stderr}"
            assert '"completed"' in shell('curl -H "Authorization: Bearer $T" "$H/v1/runs/$RUN?wait=2"', **given).stdout
        finally:
            server.terminate()
            server.stderr.read()


def test_each_kind_of_block_has_a_language() -> None:
    assert [f"{b.page}: {b.text[:40]}" for b in BLOCKS.values() if not b.language] == []


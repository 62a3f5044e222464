"""``holdfast mcp``: the official client starts the command and speaks with it (§19.5)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from holdfast.cli.main import cli

SKILL = '''
from holdfast import Context, Graph, State

class Work(State):
    name: str

graph = Graph("work", Work)

@graph.node(start=True)
async def ask(state: Work, ctx: Context):
    await ctx.approve("Go on?", show=state.name)
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work.py").write_text(SKILL, "utf-8")


async def typed(*words: str) -> Any:
    """What a command prints as JSON; it has an event loop of its own, so it runs in a thread."""
    done = await asyncio.to_thread(CliRunner().invoke, cli, [*words, "--json"])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


async def token(scopes: str, tenant: str = "default") -> str:
    made = await typed("token", "create", "--scopes", scopes, "--tenant", tenant, "--actor", "bot")
    Path("token").write_text(made["token"], "utf-8")
    return str(made["id"])


def client(*words: str) -> Client:
    source = Path(__file__).resolve().parents[2] / "src"
    return Client(stdio_client(StdioServerParameters(command=sys.executable, args=["-m", "holdfast", "mcp", *words], env=os.environ | {"PYTHONPATH": str(source)})))


def read(answer: Any) -> Any:
    assert not answer.is_error, answer.content
    texts = [json.loads(block.text) for block in answer.content]
    return texts[0] if len(texts) == 1 else texts


async def run_of(speaking: Client, tenant_key: str = "k") -> str:
    return str(read(await speaking.call_tool("start_run", {"skill_id": "work", "input": {"name": "Ada"}, "key": tenant_key}))["run_id"])


async def settled(speaking: Client, run_id: str, status: str) -> dict[str, Any]:
    """The run once it has this status; the worker beside is another process, so it is asked for."""
    async with asyncio.timeout(30):
        while True:
            record: dict[str, Any] = read(await speaking.call_tool("get_run", {"run_id": run_id}))
            if record["status"] == status:
                return record


async def test_a_client_starts_a_run_and_answers_its_question_under_a_token() -> None:
    await token("view,submit,decide")
    async with client("work.py", "--token-file", "token") as speaking:
        assert {t.name for t in (await speaking.list_tools()).tools} == {"get_run", "list_skills", "list_waits", "start_run", "decide", "signal_run"}
        run_id = await run_of(speaking)
        record = await settled(speaking, run_id, "waiting_for_human")
        await speaking.call_tool("decide", {"run_id": run_id, "wait_id": record["waits"][0]["wait_id"], "action": "approve"})
        done = await settled(speaking, run_id, "completed")
        assert done["run_id"] == run_id
    seen = (await typed("events", run_id))["events"]
    assert [e["actor"] for e in seen if e["event_type"] == "wait.decided"] == ["bot"]


async def test_a_token_of_another_tenant_finds_nothing_and_a_revoked_one_is_refused() -> None:
    await token("view,submit")
    async with client("work.py", "--token-file", "token") as speaking:
        run_id = await run_of(speaking)
    number = await token("view", "other")
    async with client("--token-file", "token") as speaking:
        assert (await speaking.call_tool("get_run", {"run_id": run_id})).is_error
        await typed("token", "revoke", number)
        refused = await speaking.call_tool("list_skills", {})
        assert refused.is_error and "revoked" in str(refused.content)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--token-file", "nowhere"], 2, "cannot be read"), (["--token-file", "bad"], 6, "unauthorized"), (["--scopes", "veiw"], 2, "veiw"), (["nothing.py"], 3, "nothing.py"),
    ],
)
def test_wrong_words_are_refused_in_one_line(words: list[str], code: int, told: str) -> None:
    Path("bad").write_text("hf_nobody_x", "utf-8")
    done = CliRunner().invoke(cli, ["mcp", *words])
    assert done.exit_code == code and told in done.stderr and "Traceback" not in done.stderr


async def test_sigterm_ends_it() -> None:
    source = Path(__file__).resolve().parents[2] / "src"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "holdfast", "mcp", "work.py", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(source)},
    )
    assert process.stderr is not None
    assert b"serving" in await process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(30):
        assert await process.wait() in (0, 143)

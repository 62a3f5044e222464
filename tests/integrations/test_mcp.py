"""MCP: runs as tools of a server, and a server's tools as effects of a run (§19.5)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp import Client
from mcp.server import MCPServer
from mcp_types import ToolAnnotations

from holdfast import Context, Runtime, UsageError, flow
from holdfast.integrations.mcp import mcp_tool, server

paid: list[str] = []
bank = MCPServer("bank")


async def pay(to: str) -> str:
    paid.append(to)
    return f"paid {to}"


async def balance() -> str:
    return "17"


bank.tool(name="pay", annotations=ToolAnnotations(idempotent_hint=True))(pay)
bank.tool(name="transfer")(pay)  # says nothing of what a second call would do
bank.tool(name="balance", annotations=ToolAnnotations(read_only_hint=True))(balance)


@flow("mcp-transfer", version="1")
async def transferring(ctx: Context, to: str) -> str:
    return str((await mcp_tool(bank, "transfer", {"to": to}))[0]["text"])


@flow("mcp-pay", version="1")
async def skill(ctx: Context, to: str) -> str:
    left = await mcp_tool(bank, "balance")
    await ctx.approve(f"Pay {to}?", show=left[0]["text"])
    done = await mcp_tool(bank, "pay", {"to": to})
    return str(done[0]["text"])


@pytest.fixture(autouse=True)
def fresh() -> None:
    paid.clear()


def read(answer: Any) -> Any:
    texts = [json.loads(block.text) for block in answer.content]
    return texts[0] if len(texts) == 1 else texts


async def test_a_client_starts_watches_and_decides() -> None:
    async with Runtime("memory:", skills=[skill]) as rt, Client(server(rt, actor="mcp:ada")) as client:
        assert {t.name for t in (await client.list_tools()).tools} >= {"start_run", "get_run", "list_waits", "decide", "signal_run", "cancel_run"}
        run_id = read(await client.call_tool("start_run", {"skill_id": "mcp-pay", "input": {"to": "ada"}, "key": "k1"}))["run_id"]
        assert read(await client.call_tool("start_run", {"skill_id": "mcp-pay", "input": {"to": "ada"}, "key": "k1"}))["run_id"] == run_id
        await rt.worker(until_idle=True)
        waits = read(await client.call_tool("list_waits", {}))
        wait = waits[0] if isinstance(waits, list) else waits
        assert wait["run_id"] == run_id and wait["show"] == "17"
        await client.call_tool("decide", {"run_id": run_id, "wait_id": wait["wait_id"], "action": "approve"})
        await rt.worker(until_idle=True)
        record = read(await client.call_tool("get_run", {"run_id": run_id}))
        assert (record["status"], record["result"], paid) == ("completed", "paid ada", ["ada"])
        decided = [e for e in await rt.events(run_id) if e.event_type == "wait.decided"]
        assert decided[0].actor == "mcp:ada"


async def test_scopes_hide_what_they_do_not_allow() -> None:
    async with Runtime("memory:", skills=[skill]) as rt:
        async with Client(server(rt, actor="a", scopes=("view",))) as client:
            assert {t.name for t in (await client.list_tools()).tools} == {"get_run", "list_skills", "list_waits"}
        with pytest.raises(UsageError, match="'veiw'"):
            server(rt, actor="a", scopes=("veiw",))


async def test_a_tool_that_is_missing_fails_the_step_by_a_code() -> None:
    @flow("missing", version="1")
    async def missing(ctx: Context) -> None:
        await mcp_tool(bank, "nothing")

    async with Runtime("memory:", skills=[missing]) as rt:
        run = await rt.invoke(missing, {})
        assert run.error is not None and run.error.code == "mcp_tool_missing"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the world drops the framework's coroutines where a process dies
def test_a_crash_at_any_write_pays_under_one_key(holdfast_crashes: Any) -> None:
    _, ends = holdfast_crashes(skill, {"to": "ada"})
    assert {(str(end.run.result), str(end.run.error), end.run.condition) for end in ends} == {("paid ada", "None", "done")}


unknown: list[str] = []


async def settle(host: Any, run: Any) -> None:
    """Ada asks the bank before she answers what nobody knows."""
    for wait in run.waits:
        unknown.append(wait.wait_id)
        assert wait.kind == "effect"
        if paid:
            await host.rt.decide(run.run_id, "record_result", wait_id=wait.wait_id, actor="ada", payload=[{"type": "text", "text": "paid ada"}])
        else:
            await host.rt.decide(run.run_id, "reexecute", wait_id=wait.wait_id, actor="ada", force=True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the world drops the framework's coroutines where a process dies
def test_a_tool_killed_in_mid_call_is_unknown_and_asked_about(holdfast_crashes: Any) -> None:
    """Without a hint of what a second call would do it is never called again by itself."""
    lives: list[int] = []
    _, ends = holdfast_crashes(transferring, {"to": "ada"}, script=settle, fresh=lambda world: (lives.append(len(paid)), paid.clear()))
    assert {(str(end.run.result), str(end.run.error)) for end in ends} == {("paid ada", "None")}
    assert {*lives[1:], len(paid)} == {1}, "paid once, wherever it was killed"
    assert len(unknown) >= 2, "killed before the call, and after"


def said(answer: Any) -> str:
    """An error without the name of the tool."""
    return str(answer.content[0].text).partition(": ")[2]


async def test_tenants_see_their_own_runs_and_waits_alone() -> None:
    async with Runtime("memory:", skills=[skill]) as rt:
        async with Client(server(rt, actor="a", tenant_id="one")) as one, Client(server(rt, actor="b", tenant_id="two")) as two:
            mine = read(await one.call_tool("start_run", {"skill_id": "mcp-pay", "input": {"to": "ada"}, "key": "k"}))["run_id"]
            theirs = read(await two.call_tool("start_run", {"skill_id": "mcp-pay", "input": {"to": "bob"}, "key": "k"}))["run_id"]
            assert mine != theirs, "a key is a tenant's own"
            await rt.worker(until_idle=True)
            wait = read(await one.call_tool("list_waits", {}))  # one alone
            assert wait["run_id"] == mine and theirs
            absent = await two.call_tool("get_run", {"run_id": "nothing"})
            for tool, arguments in (
                ("get_run", {}), ("decide", {"wait_id": wait["wait_id"], "action": "approve"}), ("signal_run", {"name": "n", "payload": 1, "key": "k"}), ("cancel_run", {}),
            ):
                refused = await two.call_tool(tool, {"run_id": mine, **arguments})
                assert refused.is_error, tool
                assert said(refused).replace(mine, "nothing") == said(absent), "what is another tenant's is not there"
            assert (await rt.get(mine)).status == "waiting_for_human"

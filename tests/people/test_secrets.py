"""What is marked secret is hidden from those who look, and whole for those who work (T-94, §13.5)."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated, Any

import pytest
from click.testing import CliRunner

from holdfast import Context, Graph, Runtime, State, append, flow, secret, thread
from holdfast.cli.main import cli
from holdfast.stores import MemoryStore
from tests.cli.conftest import Said
from tests.postgres.instead import OtherStore

KEY, NEWS = "sk-live-0123456789", "hunter22222"


class Deploy(State):
    host: str
    token: Annotated[str, secret]
    news: Annotated[list[str], append, secret]
    used: tuple[str, ...] = ()


def deploy(seen: list[Any]) -> Graph[Deploy]:
    graph = Graph("deploy", Deploy)

    @graph.node(start=True)
    async def ask(state: Deploy, ctx: Context) -> dict[str, Any]:
        ctx.log.warning("deploying with %s", state.token)
        decision = await ctx.approve(f"Use {state.token}?", show={"token": state.token, "line": f"curl -H {state.token}", "host": state.host})
        seen.append((state.token, decision.payload))
        return {"used": [await ctx.effect(call, state.token, state.host)]}

    @graph.node(after="ask")
    async def fails(state: Deploy, ctx: Context) -> None:
        seen.append((state.token, await ctx.wait("news"), list(state.used)))
        raise ValueError(f"the host refused {state.token}")

    async def call(token: str, host: str) -> str:
        seen.append(token)
        return f"{host} took {token}"

    return graph


def typed(*words: str) -> Said:
    done = CliRunner().invoke(cli, list(words), prog_name="holdfast")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return Said(done.exit_code, done.stdout, done.stderr)


async def story(url: str, seen: list[Any]) -> str:
    """To the failure, each leg of the way by a process of its own."""
    async with Runtime(url, skills=[deploy(seen)]) as rt:
        run = await rt.invoke(deploy(seen), {"host": "h1", "token": KEY})
        assert run.status == "waiting_for_human" and run.state.token == KEY
    async with Runtime(url) as rt:
        await rt.decide(run.run_id, "approve", payload={"token": KEY, "host": "h1"}, note=f"with {KEY}")
        await rt.signal(run.run_id, "news", NEWS)
    async with Runtime(url, skills=[deploy(seen)]) as rt:
        run = await rt.resume(run.run_id)
        assert run.status == "failed"
        assert run.state.token == KEY, "the program's own view is whole"
    return str(run.run_id)


def test_secrets_are_hidden_from_those_who_look(tmp_path: Path, caplog: pytest.LogCaptureFixture, other_store: OtherStore) -> None:
    """T-94, §13.5: in every view, log and page, with --json and without; nodes, resumes and exports have them whole."""
    import asyncio

    url, seen = other_store(f"sqlite:///{tmp_path}/runs.db"), list[Any]()
    with caplog.at_level(logging.WARNING):
        run_id = asyncio.run(story(url, seen))
    assert seen == [(KEY, {"token": KEY, "host": "h1"}), KEY, (KEY, NEWS, [f"h1 took {KEY}"])], "it survived two resumes"
    assert "deploying with •••" in caplog.text and KEY not in caplog.text
    first, head = f"{run_id}.c", "head"
    cps = json.loads(typed("checkpoints", run_id, "--store", url, "--json").out)["checkpoints"]
    first = cps[0]["checkpoint_id"]
    looks = [
        ("show", run_id), ("events", run_id), ("events", run_id, "--follow"), ("checkpoints", run_id), ("state", run_id), ("state", run_id, "--at", first),
        ("diff", run_id, first, head), ("effects", run_id), ("runs",), ("waits", run_id), ("outbox",), ("check", run_id),
    ]
    for look in looks:
        for more in ((), ("--json",)):
            said = typed(*look, "--store", url, *more)
            assert said.code in (0, 1), (look, said.err)
            assert KEY not in said.out + said.err and NEWS not in said.out + said.err, look
    shown = json.loads(typed("show", run_id, "--store", url, "--json").out)
    assert (shown["values"]["token"], shown["values"]["host"]) == ("•••", "h1")
    assert shown["error"]["message"] == "the host refused •••"
    asked = next(e for e in json.loads(typed("events", run_id, "--store", url, "--json").out)["events"] if e["event_type"] == "wait.requested")
    assert asked["payload"]["wait"]["show"] == {"token": "•••", "line": "curl -H •••", "host": "h1"} and asked["payload"]["wait"]["prompt"] == "Use •••?"
    assert typed("export", run_id, str(tmp_path / "out"), "--store", url).code == 0
    assert any(KEY in p.read_text("utf-8", "replace") for p in (tmp_path / "out").rglob("*") if p.is_file()), "an export is the records themselves"


async def test_replays_and_forks_have_secrets_whole_and_hidden() -> None:
    """§13.5: what comes of a run hides the same channels and is given the same values."""
    seen: list[Any] = []
    async with Runtime("memory:", skills=[deploy(seen)]) as rt:
        run = await rt.invoke("deploy", {"host": "h1", "token": KEY})
        fork = await rt.fork(run.run_id, set={"host": "h2"})
        assert fork.state.token == KEY and fork.record.secrets == ("token", "news")
        assert KEY not in str([e.payload for e in await rt.events(fork.run_id)])
        await rt.approve(fork.run_id)
        assert seen[0] == (KEY, None)


async def test_a_flow_may_have_secret_inputs(caplog: pytest.LogCaptureFixture) -> None:
    @flow("login")
    async def login(ctx: Context, user: str, password: Annotated[str, secret]) -> str:
        ctx.log.warning("%s logs in with %s", user, password)
        ctx.log.warning("100 % sure")
        return f"{user}:{password}"

    async with Runtime("memory:", skills=[login]) as rt:
        run = await rt.invoke(login, {"user": "ada", "password": KEY})
        assert run.result == f"ada:{KEY}"
        told = str([e.payload for e in await rt.events(run.run_id)])
        assert KEY not in told and "ada" in told
        assert (await rt.record(run.run_id))["result"] == "ada:•••"
        assert "ada logs in with •••" in caplog.text and "100 % sure" in caplog.text


class Kept(State):
    token: Annotated[str, thread, secret]
    said: str = ""


async def test_a_secret_without_a_value_hides_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """§13.5: what a thread is to carry is not there yet in its first run; a node may log all the same."""
    graph = Graph("kept", Kept)

    @graph.node(start=True)
    async def look(state: Kept, ctx: Context) -> dict[str, Any]:
        ctx.log.warning("there is no token yet")
        return {"said": "looked"}

    async with Runtime(MemoryStore()) as rt:
        run = await rt.invoke(graph, {})
    assert (run.status, run.state.said) == ("completed", "looked")
    assert "there is no token yet" in caplog.text

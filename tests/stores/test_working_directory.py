"""A node changes the working directory (docs/faults.md): what was named by a relative path stays what it was when it was named."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from holdfast import Context, Graph, Runtime, State, Tool
from holdfast.access import FileTokens, Known
from holdfast.core.errors import StoreMoved
from holdfast.encryption import Encryption, KeyFile
from holdfast.stores.sqlite import writer


class Work(State):
    elsewhere: str
    n: int = 0


graph = Graph("work", Work)


@graph.node(start=True)
async def goes_elsewhere(state: Work) -> dict[str, int]:
    os.chdir(state.elsewhere)
    return {"n": 1}


@graph.node(after="goes_elsewhere")
async def with_calls(state: Work, ctx: Context) -> dict[str, int]:
    return {"n": await ctx.step(abs, 2)}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the node goes to; this one is another."""
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)  # and back at the end
    return there


async def drive(rt: Runtime, elsewhere: Path) -> None:
    for count in (1, 2):
        run = await rt.invoke(graph, {"elsewhere": str(elsewhere)})
        assert (run.state.n, len(await rt.runs())) == (2, count)


@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
@pytest.mark.parametrize("url", [None, "sqlite:///runs.db", "sqlite:///../runs.db", "sqlite:///./a b.db", "workspace:runs", "workspace:."])
async def test_a_store_stays_where_it_was(elsewhere: Path, url: str | None, slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow database is written by a thread, through a connection of its own."""
    if slow:
        monkeypatch.setattr(writer, "SLOW", 0.0)
    here = Path.cwd()
    async with Runtime(url, skills=[graph]) as rt:
        await drive(rt, elsewhere)
        assert Path.cwd() == elsewhere
        assert rt.store.url == (url or "sqlite:///.holdfast/runs.db"), "it is named as it was given"
    assert not list(elsewhere.iterdir())
    async with rt:
        assert len(await rt.runs()) == 2
    assert not list(elsewhere.iterdir())
    os.chdir(here)
    async with Runtime(url, skills=[graph]) as again:
        assert len(await again.runs()) == 2


async def test_a_file_that_is_moved_is_still_noticed(elsewhere: Path) -> None:
    rt = await Runtime("sqlite:///runs.db", skills=[graph]).__aenter__()
    await drive(rt, elsewhere)
    os.rename(elsewhere.parent / "here" / "runs.db", elsewhere / "runs.db")
    with pytest.raises(StoreMoved):
        await rt.invoke(graph, {"elsewhere": str(elsewhere)})
    with pytest.raises(StoreMoved):
        await rt.close()


async def test_the_files_of_keys_and_tokens_are_read_again_where_they_are(elsewhere: Path) -> None:
    keys, tokens, secret = Path("keys"), Path("tokens"), "s" * 40
    keys.write_text(f"k1 {base64.b64encode(bytes(32)).decode()}\n", "utf-8")
    tokens.write_text(f"{secret}\n", "utf-8")

    def ask_nobody() -> Known:
        raise AssertionError("the file has it")

    held, file = FileTokens(tokens, ask_nobody), KeyFile("keys")
    async with Runtime("sqlite:///runs.db", skills=[graph], encryption=Encryption(file)) as rt:
        await drive(rt, elsewhere)
    assert repr(file) == "KeyFile('keys')"
    assert await held.find(secret, now=0) is not None


async def test_tools_work_in_the_folder_that_was_named(elsewhere: Path) -> None:
    Path("work").mkdir()
    there = Path.cwd() / "work"
    tool = Tool("touch", side_effects="read")
    tools = Graph("tools", Work)

    @tools.node(start=True)
    async def goes(state: Work) -> None:
        os.chdir(state.elsewhere)

    @tools.node(after="goes")
    async def works(state: Work, ctx: Context) -> None:
        await ctx.tool("touch", ["made"])

    async with Runtime("memory:", skills=[tools], tools=[tool], workspace="work") as rt:
        run = await rt.invoke(tools, {"elsewhere": str(elsewhere)})
        assert run.error is None
    assert (there / "made").exists() and not list(elsewhere.iterdir())

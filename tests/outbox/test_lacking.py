"""What this process lacks for a sending, or cannot tell its store, costs no intent anything (§9.4)."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Limit, State
from holdfast.core.errors import StoreFull
from holdfast.transports import Function, Subprocess
from tests.outbox.conftest import Open


class Note(State):
    text: str = "hello"


note: Graph[Note] = Graph("note", Note, version="1")


@note.node(start=True)
async def write(state: Note, ctx: Context) -> None:
    ctx.send("mail", {"text": state.text})


async def test_a_program_that_is_not_installed_here_is_left_to_others(open_rt: Open, tmp_path: Path) -> None:
    script = tmp_path / "unreadable"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o600)
    strange = tmp_path / "strange"
    strange.write_bytes(b"\x01\x02")
    strange.chmod(0o700)
    for program in ("no-such-program", str(script), str(strange), str(strange / "within")):
        async with open_rt(skills=[note], transports={"mail": Subprocess([program])}) as rt:
            run = await rt.invoke(note, {})
            (intent,) = await rt.intents(run.run_id)
            assert (intent.state, intent.detail) == ("queued", f"{program} cannot be run here; install it, or name its path")
            assert [p.code for p in await rt.check(run.run_id)].count("not_configured") == 1


@pytest.mark.parametrize("cut", [False, True])
async def test_a_limit_that_cannot_be_given_back_at_once_is_given_back_later(open_rt: Open, cut: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store fails just as the sending is over: it was sent all the same, and its place is free again once the store is well."""
    lost: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context["message"]))
    sent: list[Any] = []
    begun = asyncio.Event()

    async def mail(payload: Any, key: str) -> None:
        begun.set()
        if cut and not sent:
            sent.append(None)
            await asyncio.Event().wait()
        sent.append(payload["text"])

    options: dict[str, Any] = {"limits": {"mail": Limit(in_flight=1)}, "transports": {"mail": Function(mail, limit="mail")}}
    async with open_rt() as rt:
        await rt.invoke(note, {"text": "a"})
    async with open_rt(**options) as rt:
        leave, failed = rt.store.leave, []

        async def leaves(owner: str, places: Any) -> None:
            if not failed:
                failed.append(places)
                raise StoreFull("the disk is full")
            await leave(owner, places)

        monkeypatch.setattr(rt.store, "leave", leaves)
        going = asyncio.ensure_future(rt.dispatch(until_idle=True))
        if cut:
            await asyncio.wait_for(begun.wait(), 10)
            going.cancel()
        await asyncio.wait([going], timeout=60)
        assert failed
        (found,) = await rt.intents()
        assert found.state == ("unknown" if cut else "sent")
        await rt.invoke(note, {"text": "b"})
        assert sent[-1] == "b", "the place is free"
    gc.collect()
    assert lost == []

"""A stream that is over ends at its next piece, however much there is still to say: the server goes down, or the token does not hold any more (§16.2, §16.9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast import Context, Runtime, flow
from holdfast.access import NOBODY
from holdfast.api import streams
from holdfast.api.boards import Boards
from holdfast.engine.look.looker import Wanted
from holdfast.engine.look.sources import SharedSource
from holdfast.protocols import PROTOCOLS

STEPS = 400
RUNS = 80


@flow("long")
async def long(ctx: Context, n: int) -> None:
    async def same(text: str) -> str:
        return text

    for _ in range(n):
        await ctx.step(same, "x" * 200)
        ctx.emit("y" * 200)
    await ctx.approve("Go on?")


def opened(rt: Runtime, kind: str, run_id: str, beat: streams.Beat) -> AsyncIterator[bytes]:
    wires = streams.Wires(SharedSource(rt.store, rt.look))
    match kind:
        case "many":
            return streams.many(Boards(rt.store, rt.look, streams.encode_run), Wanted(tenant_id=None, limit=500), beat)
        case "one":
            return streams.one(rt, wires, run_id, NOBODY, None, ("events",), beat)
    return streams.speak(rt, wires, run_id, NOBODY, None, beat, PROTOCOLS[kind](run_id, run_id))


@pytest.mark.parametrize("why", ["stopping", "revoked"])
@pytest.mark.parametrize("kind", ["one", "many", "agui"])
async def test_a_stream_with_much_to_say_ends_when_it_is_over(kind: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow reader of a long log held the server that was told to end, and read on under a revoked token."""
    monkeypatch.setattr(streams, "CHECK_SECONDS", 0.0)
    async with Runtime("memory:", skills=[long]) as rt:
        run = await rt.invoke(long, {"n": STEPS})
        for _ in range(RUNS if kind == "many" else 0):
            await rt.submit(long, {"n": 1})
        stopping, holds = asyncio.Event(), True

        async def allowed() -> bool:
            return holds

        cut = []
        async for piece in opened(rt, kind, run.run_id, streams.Beat(allowed, stopping)):
            cut.append(piece)
            if len(cut) == 2:  # the first one only opens the stream
                holds = False
                if why == "stopping":
                    stopping.set()
        assert len(cut) == 3 and cut[-1] == streams.RETRY, [piece[:60] for piece in cut]

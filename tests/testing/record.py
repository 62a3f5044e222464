"""Records the sample runs that ``docs/testing.md`` and ``test_replay.py`` hold code against: ``python -m tests.testing.record``.

Times are virtual and the owner's name is made up, so that nothing of the machine that wrote them is in them.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest import mock

from holdfast import Context, Graph, Runtime, State
from holdfast.stores import MemoryStore
from holdfast.testing import VirtualClock, run_virtual

HERE = Path(__file__).resolve().parent / "recorded"


class Publish(State):
    text: str


publish = Graph("publish", Publish)


@publish.node(start=True)
async def ask(state: Any, ctx: Context) -> None:
    await ctx.approve("Publish?", show=state.text)


async def record(clock: VirtualClock) -> None:
    async with Runtime(MemoryStore(now=clock.now), skills=[publish], clock=clock) as rt:
        run = await rt.invoke(publish, {"text": "…"})
        await rt.approve(run.run_id, actor="ada")
        await rt.export(run.run_id, HERE / "approved")


def main() -> None:
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    with mock.patch("holdfast.runtime.owner_id", return_value="somewhere-boot-1-1-sample"), mock.patch("platform.node", return_value="somewhere"):
        clock = VirtualClock()
        run_virtual(record(clock), clock=clock)


if __name__ == "__main__":
    main()

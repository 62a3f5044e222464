"""What a broken promise reads like: three seeded bugs in small worlds, told as a failing seed is told (issue 3, must show 3).

The files in tests/golden/stories are read when they change: ``python -m tests.simulation.test_stories`` writes them anew.
They are played without a seed, so that they change with what they tell and not with every draw before it.
"""

from __future__ import annotations

import pathlib
from collections.abc import Awaitable, Callable

import pytest
from tests.simulation.mutants import MUTANTS

from holdfast.testing import World
from holdfast.testing.plays import PLAYS, STAGE

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "stories"
LINE = PLAYS["line"].skill


async def late_owner(world: World) -> None:
    """A worker stands still beyond its lease: another one claims the run, and its owner, which cannot know, writes on."""
    one = await world.host(LINE)
    driving = one.start(one.rt.invoke(LINE, {"name": "Ada"}))
    await world.clock.sleep(0.2)
    one.process.freeze()
    await world.clock.sleep(60)
    two = await world.host(LINE, pause=lambda: world.clock.sleep(0.015))
    taking = two.start(two.rt.recover())
    await world.clock.sleep(0.09)
    one.process.thaw()
    await taking
    driving.cancel()


async def death_in_the_gap(world: World) -> None:
    """A worker dies between an act and its record."""
    one = await world.host(LINE)
    one.start(one.rt.invoke(LINE, {"name": "Ada"}))
    await world.clock.sleep(0.2)
    one.kill()
    two = await world.host(LINE)
    await two.do(two.rt.recover())


async def two_in_a_lane(world: World) -> None:
    """Two runs of one session, and two workers that could take one each."""
    client = await world.host(LINE)
    for name in ("Ada", "Bob"):
        await client.do(client.rt.submit(LINE, {"name": name}, session_key="desk"))
    hosts = [await world.host(LINE), await world.host(LINE)]
    for host in hosts:
        host.start(host.rt.worker(concurrency=1))
    await world.clock.sleep(3)


STORIES: dict[str, Callable[[World], Awaitable[None]]] = {
    "fence_ignored": late_owner,
    "unknown_effect_repeated": death_in_the_gap,
    "lane_ignored": two_in_a_lane,
}


def told(name: str, *, planted: bool = True) -> tuple[list[str], str]:
    """The codes of the promises that broke, and the story."""
    world = World()
    STAGE.world = world

    async def story() -> tuple[list[str], str]:
        await world.store.open()
        await STORIES[name](world)
        broken = await world.check()
        return [v.code for v in broken], await world.story(broken)

    with pytest.MonkeyPatch.context() as patch:
        if planted:
            MUTANTS[name].plant(patch)
        codes, text = world.run(story())
    return codes, f"{name}: {MUTANTS[name].says}\n{text}\n"


@pytest.mark.parametrize("name", STORIES)
def test_a_broken_promise_reads_like_this(name: str) -> None:
    """T-39, T-75, T-83: the bug shows as what it is; and without the bug the same world keeps its promises."""
    broken, text = told(name)
    assert broken
    assert text == (GOLDEN / f"{name}.txt").read_text(), "python -m tests.simulation.test_stories writes it anew; read the difference"
    assert told(name, planted=False)[0] == []


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name in STORIES:
        (GOLDEN / f"{name}.txt").write_text(told(name)[1])

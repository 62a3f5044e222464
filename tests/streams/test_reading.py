"""``rt.stream`` and ``rt.run_stream``: every part once, in order, over waits, from any point (§13.6)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Retry, Runtime, State, flow
from holdfast.core.errors import InvalidInput


class Notes(State):
    topic: str
    draft: str = ""


def writer() -> Graph[Notes]:
    graph = Graph("writer", Notes)

    @graph.node(start=True)
    async def write(state: Notes, ctx: Context) -> dict[str, Any]:
        for word in ("a", "b", "c"):
            ctx.emit({"word": word})
        ctx.emit({"role": "assistant", "content": "well"})
        return {"draft": "abc"}

    @graph.node(after="write")
    async def ask(state: Notes, ctx: Context) -> dict[str, Any]:
        ctx.emit("before")
        await ctx.approve("good?")
        ctx.emit("after")
        return {"draft": state.draft.upper()}

    return graph


@pytest.fixture(params=["memory:", "sqlite", "workspace"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path}/runs.db"
        case "workspace":
            return f"workspace:{tmp_path}/runs"
    return str(request.param)


async def test_a_run_is_streamed_over_its_wait_to_its_end(url: str) -> None:
    graph = writer()
    async with Runtime(url, skills=[graph]) as rt:
        parts: list[Any] = []
        async for part in rt.run_stream(graph, {"topic": "x"}):
            parts.append(part)
            if part.mode == "events" and part.data.type == "run.waiting_for_human":
                await rt.approve(part.run_id, actor="ada")
        assert parts[0].mode == "run" and parts[0].data.run_id == parts[0].run_id
        assert [p.data for p in parts if p.mode == "custom"] == [{"word": w} for w in "abc"] + ["before", "after"], "nothing twice over the wait"
        assert [p.data["content"] for p in parts if p.mode == "messages"] == ["well"]
        assert [p.data for p in parts if p.mode == "updates"] == [{"write": {"draft": "abc"}}, {"ask": {"draft": "ABC"}}]
        assert [p.data["draft"] for p in parts if p.mode == "values"] == ["", "abc", "ABC"]
        kinds = [p.data.type for p in parts if p.mode == "events"]
        assert kinds[0] == "run.submitted" and kinds[-1] == "run.completed"
        said = [p.mode if p.mode != "events" else p.data.type for p in parts]
        assert said.index("custom") < said.index("step.completed") < said.index("updates") < said.index("run.waiting_for_human")


async def test_from_every_cursor_the_rest_comes_once(url: str) -> None:
    graph = writer()
    modes = ("values", "updates", "custom", "messages", "events")
    async with Runtime(url, skills=[graph]) as rt:
        run = await rt.submit(graph, {"topic": "x"})
        whole: list[Any] = []
        later: list[list[Any]] = []

        async def follow(after: str | None, into: list[Any], most: int | None = None) -> None:
            async for part in rt.stream(run.run_id, after=after, modes=modes):
                into.append(part)
                if len(into) == most:
                    return

        first = asyncio.create_task(follow(None, whole))
        await asyncio.sleep(0)
        await rt.resume(run.run_id)
        await rt.approve(run.run_id)
        await asyncio.wait_for(first, 20)
        for n in range(len(whole)):
            rest: list[Any] = []
            await asyncio.wait_for(follow(whole[n].cursor, rest), 20)
            later.append(rest)
        for n, rest in enumerate(later):
            assert [(p.mode, p.cursor) for p in rest] == [(p.mode, p.cursor) for p in whole[n + 1 :]], n


async def test_a_reader_that_comes_late_is_given_no_chunks_that_results_have_replaced(url: str) -> None:
    graph = writer()
    async with Runtime(url, skills=[graph]) as rt:
        run = await rt.invoke(graph, {"topic": "x"})
        seen: list[Any] = []
        async for part in rt.stream(run.run_id):
            seen.append(part)
            if part.mode == "custom":
                break
        assert seen[-1].data == "before", "of the step that waits"
        await rt.approve(run.run_id)
        assert [p async for p in rt.stream(run.run_id, modes=["custom"])] == []


async def test_a_failed_attempt_is_marked_as_superseded(url: str) -> None:
    tries: list[int] = []

    @flow("talk")
    async def talk(ctx: Context) -> str:
        async def speak() -> str:
            tries.append(1)
            ctx.emit(f"try {len(tries)}")
            if len(tries) < 3:
                raise ConnectionError("again")
            return "done"

        return await ctx.step(speak, retry=Retry(max_attempts=3, base_us=1))

    async with Runtime(url, skills=[talk]) as rt:
        parts = [p async for p in rt.run_stream(talk, {}, modes=["custom"]) if p.mode == "custom"]
        told = [(p.attempt, "superseded" if p.superseded else p.data) for p in parts]
        assert told == [(1, "try 1"), (1, "superseded"), (2, "try 2"), (2, "superseded"), (3, "try 3")]
        assert len({p.step_id for p in parts}) == 1 and len({p.attempt_id for p in parts}) == 3


async def test_chunks_come_from_plain_nodes_in_threads_too(url: str) -> None:
    graph = Graph("plain", Notes)

    @graph.node(start=True)
    def talk(state: Notes, ctx: Context) -> dict[str, Any]:
        for n in range(100):
            ctx.emit(n)
        return {}

    async with Runtime(url, skills=[graph]) as rt:
        assert [p.data async for p in rt.run_stream(graph, {"topic": ""}, modes=["custom"]) if p.mode == "custom"] == list(range(100))


async def test_what_is_no_mode_or_no_cursor_is_refused_by_name(url: str) -> None:
    graph = writer()
    async with Runtime(url, skills=[graph]) as rt:
        run = await rt.invoke(graph, {"topic": "x"})
        with pytest.raises(InvalidInput, match="evnts"):
            rt.stream(run.run_id, modes=["evnts"])
        for wrong in ("", "x", "1.2", "1.2.3.4.5.6", "-1.0.0.0.0", "9" * 300):
            with pytest.raises(InvalidInput, match="cursor"):
                rt.stream(run.run_id, after=wrong)
        with pytest.raises(InvalidInput, match="modes"):
            async for _ in rt.run_stream(graph, {"topic": "x"}, modes=["all"]):
                pass


async def test_the_ring_keeps_the_newest_and_tells_how_many_were_missed(url: str) -> None:
    said = asyncio.Event()

    @flow("much")
    async def much(ctx: Context) -> None:
        for n in range(12_000):
            ctx.emit(n)
        await ctx.approve("go on?")

    async with Runtime(url, skills=[much]) as rt:
        run = await rt.invoke(much, {})
        seen: list[Any] = []
        async for part in rt.stream(run.run_id, modes=["custom"]):
            seen.append(part)
            if part.data == 11_999:
                break
        assert seen[0].mode == "missed" and seen[0].data == 2_000
        assert [p.data for p in seen[1:]] == list(range(2_000, 12_000))
        assert not said.is_set()


async def test_a_heavy_ring_is_bounded_by_its_bytes(url: str) -> None:
    @flow("heavy")
    async def heavy(ctx: Context) -> None:
        for n in range(30):
            ctx.emit(f"{n}".ljust(400_000))
            await ctx.step(str, n)
        await ctx.approve("go on?")

    async with Runtime(url, skills=[heavy]) as rt:
        run = await rt.invoke(heavy, {})
        ring = await rt.store.chunks(run.run_id)
        assert 0 < sum(s.batch.size for s in ring) <= 4 * 2**20
        seen: list[Any] = []
        async for part in rt.stream(run.run_id, modes=["custom"]):
            seen.append(part)
            if part.mode == "custom" and part.data.strip() == "29":
                break
        assert seen[0].mode == "missed" and seen[0].data == 30 - len(seen[1:])


async def test_two_hundred_readers_get_everything() -> None:
    @flow("busy")
    async def busy(ctx: Context) -> None:
        for n in range(200):
            ctx.emit(n)
            if n % 20 == 0:
                await asyncio.sleep(0)

    async with Runtime("memory:", skills=[busy]) as rt:
        run = await rt.submit(busy, {})

        async def read() -> list[Any]:
            return [p.data async for p in rt.stream(run.run_id, modes=["custom"])]

        reading = [asyncio.create_task(read()) for _ in range(200)]
        await asyncio.sleep(0)
        await rt.resume(run.run_id)
        for found in await asyncio.wait_for(asyncio.gather(*reading), 20):
            assert found == list(range(200))

"""The kernel and the saver as protocols, and another engine in this one's place (§4.16)."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, State, append
from holdfast.core.errors import NotDecidable, NotFound, UsageError
from holdfast.named import CheckpointSaver, KernelExecutor
from holdfast.testing.kernels import Bench, executor_suite, saver_suite
from tests.engine.support import World


class Talk(State):
    text: str
    said: Annotated[list[str], append]


def talk() -> Graph[Talk]:
    graph = Graph("talk", Talk)

    @graph.node(start=True)
    async def hear(state: Talk) -> dict[str, Any]:
        return {"said": [state.text]}

    @graph.node(after="hear")
    async def ask(state: Talk, ctx: Context) -> dict[str, Any]:
        return {"said": [await ctx.ask("and?", str)]}

    return graph


class Foreign:
    """Another engine, in a few lines: it keeps its threads in a dictionary."""

    class Rest:
        def __init__(self, status: str, said: list[str]) -> None:
            self.status = status
            self.values: Mapping[str, Any] = {"said": said}

    def __init__(self) -> None:
        self.threads: dict[str, list[dict[str, Any]]] = {}

    def _snap(self, thread_id: str, said: list[str], tasks: list[str]) -> Rest:
        at = dt.datetime.now(dt.UTC).isoformat()
        snapshot = {"values": {"said": said}, "metadata": {"source": "loop", "step": 1, "writes": {}}, "createdAt": at, "nextTasks": tasks}
        self.threads.setdefault(thread_id, []).append(snapshot)
        return self._rest(snapshot)

    def _rest(self, snapshot: dict[str, Any]) -> Rest:
        return self.Rest("waiting_for_human" if snapshot["nextTasks"] else "completed", snapshot["values"]["said"])

    async def invoke(self, thread_id: str, input: Mapping[str, Any] | None = None) -> Rest:
        if input is None:
            return self._rest(self.threads[thread_id][-1])
        return self._snap(thread_id, [input["text"]], ["ask"])

    async def resume(self, thread_id: str, payload: Any = None) -> Rest:
        newest = self.threads.get(thread_id, [{"nextTasks": []}])[-1]
        if not newest["nextTasks"]:
            raise NotDecidable(f"nothing waits in {thread_id}")
        return self._snap(thread_id, [*newest["values"]["said"], payload], [])

    async def put(self, thread_id: str, snapshot: Mapping[str, Any], *, actor: str) -> Mapping[str, Any]:
        self._snap(thread_id, snapshot["values"]["said"], self.threads[thread_id][-1]["nextTasks"])
        return self.threads[thread_id][-1]

    async def get(self, thread_id: str) -> Mapping[str, Any] | None:
        return self.threads[thread_id][-1] if thread_id in self.threads else None

    async def get_history(self, thread_id: str) -> list[dict[str, Any]]:
        return self.threads.get(thread_id, [])


@asynccontextmanager
async def own() -> AsyncIterator[Bench]:
    graph = talk()
    async with World().runtime(graph) as rt:
        yield Bench(KernelExecutor(rt, graph), CheckpointSaver(rt))


@asynccontextmanager
async def foreign() -> AsyncIterator[Bench]:
    engine = Foreign()
    yield Bench(engine, engine)


@pytest.mark.parametrize("make", [own, foreign])
async def test_every_kernel_and_saver_does_this(make: Any) -> None:
    """§4.16: the suite, on this engine and on another."""
    await executor_suite(make)
    await saver_suite(make)


class Deaf(Foreign):
    async def resume(self, thread_id: str, payload: Any = None) -> Foreign.Rest:
        return self._snap(thread_id, [], [])


class Forgetful(Foreign):
    async def get_history(self, thread_id: str) -> list[dict[str, Any]]:
        return self.threads.get(thread_id, [])[-1:]


@pytest.mark.parametrize(("engine", "suite"), [(Deaf, executor_suite), (Forgetful, saver_suite)])
async def test_the_suite_can_fail(engine: type[Foreign], suite: Any) -> None:
    @asynccontextmanager
    async def make() -> AsyncIterator[Bench]:
        made = engine()
        yield Bench(made, made)

    with pytest.raises(AssertionError):
        await suite(make)


async def test_another_engine_stands_in() -> None:
    """§4.16: invoke and resume go through it; this store never hears of them."""
    graph, engine = talk(), Foreign()
    async with World().runtime(graph, executor=engine) as rt:
        run = await rt.invoke(graph, {"text": "hello"}, thread_id="t")
        assert run.status == "waiting_for_human" and run.values["said"] == ["hello"]
        assert (await rt.resume("t", payload="yes")).values["said"] == ["hello", "yes"]
        await rt.invoke(graph, {"text": "elsewhere"})
        assert len(engine.threads) == 2 and await rt.runs() == []
        for options in ({"key": "k"}, {"detach": True}, {"step_limit": 3}, {"priority": 1}):
            with pytest.raises(UsageError, match="takes only a thread and an input, no options"):
                await rt.invoke(graph, {"text": "x"}, thread_id="t", **options)


async def test_a_wrapper_around_the_own_engine_stands_in() -> None:
    """§4.16: a function of the runtime and the skill; what it wraps does not come back to it."""
    seen: list[str] = []

    class Counting(KernelExecutor):
        async def invoke(self, thread_id: str, input: Mapping[str, Any] | None = None) -> Any:
            seen.append(f"invoke {thread_id}")
            return await super().invoke(thread_id, input)

        async def resume(self, thread_id: str, payload: Any = None) -> Any:
            seen.append(f"resume {thread_id}")
            return await super().resume(thread_id, payload)

    graph = talk()
    async with World().runtime(graph, executor=Counting) as rt:
        run = await rt.invoke(graph, {"text": "hello"}, thread_id="t")
        done = await rt.resume("t", payload="yes")
        assert (done.run_id, done.state.said) == (run.run_id, ["hello", "yes"]) and seen == ["invoke t", "resume t"]
        assert (await rt.get(run.run_id)).status == "completed"
        with pytest.raises(NotFound):
            await KernelExecutor(rt, graph).invoke("nowhere")


async def test_without_input_the_kernel_only_recovers() -> None:
    """§4.16: a run left behind is driven to its rest; nothing new begins."""
    world, graph = World(), talk()
    run_id = await world.crash(graph, {"text": "hello"}, when=lambda c: any(e.type == "step.completed" for e in c.events))
    async with world.runtime(graph) as rt:
        kernel: Any = KernelExecutor(rt, graph)
        thread = (await rt.get(run_id)).thread_id
        run = await kernel.invoke(thread)
        assert (run.run_id, run.status) == (run_id, "waiting_for_human")
        assert (await kernel.invoke(thread)).run_id == run_id and len(await rt.runs()) == 1


def test_the_protocols_are_the_ones_in_use(tmp_path: Any) -> None:
    """The types fit, too: mypy reads this file."""
    rt = Runtime(f"sqlite:///{tmp_path}/runs.db", executor=KernelExecutor)
    assert rt.owner

"""Somebody else comes between any two looks at the store: what was accepted is followed or answered as too late (§5.6, §10.12, X-19).

``Interposed`` is one process's way to a store: at one of its calls, before or after it, somebody else acts. Every test goes
through all the places there are, until there is none left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from holdfast import Context, Graph, Limit, Runtime, State, flow
from holdfast.core.commands import LateResult
from holdfast.core.commit import InboxItem
from holdfast.core.errors import AlreadyTerminal, Conflict, DecisionConflict, HoldfastError, NotDecidable, RunIsLive, WaitNotFound
from holdfast.handle import Run
from tests.engine.support import World

VERBS = ("load", "get", "put", "commit", "inbox", "claim")
Then = Callable[[], Awaitable[Any]]
TOLD = (AlreadyTerminal, Conflict, DecisionConflict, NotDecidable, WaitNotFound)


class Interposed:
    """``then`` happens once: before or after the ``number``-th call of ``verb``."""

    def __init__(self, store: Any, verb: str, number: int, when: str, then: Then) -> None:
        self._store = store
        self._place = (verb, number, when)
        self._then = then
        self._calls: dict[str, int] = {}
        self.reached = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)
        if name != self._place[0]:
            return real

        async def call(*args: Any, **options: Any) -> Any:
            number = self._calls[name] = self._calls.get(name, 0) + 1
            await self._here((name, number, "before"))
            given = await real(*args, **options)
            await self._here((name, number, "after"))
            return given

        return call

    async def _here(self, place: tuple[str, int, str]) -> None:
        if place == self._place and not self.reached:
            self.reached = True
            await self._then()


Place = tuple[str, int, str]


def places(reached: set[Place], verbs: tuple[str, ...] = VERBS) -> Iterator[Place]:
    """Every place there is. Whoever tries one adds it to ``reached`` if it was met: a call that is never made is followed by no other of its verb."""
    for verb in verbs:
        for number in range(1, 30):
            yield verb, number, "before"
            if (verb, number, "before") not in reached:
                break
            yield verb, number, "after"


async def outcome(act: Awaitable[Any]) -> Any:
    try:
        return await act
    except HoldfastError as e:
        return e


async def kinds(rt: Runtime, run_id: str) -> list[str]:
    return [e.type for e in await rt.events(run_id)]


@flow("asks")
async def asks(ctx: Context) -> str:
    return (await ctx.approve("ok?", timeout=10, on_timeout="deliver")).action


ACTS: dict[str, Callable[[Runtime, str, str], Awaitable[Any]]] = {
    "approve": lambda rt, run, wait: rt.approve(run, wait_id=wait, drive=False),
    "record": lambda rt, run, wait: rt.decide(run, "approve", wait_id=wait, resume=False),
    "deny": lambda rt, run, wait: rt.deny(run, reason="no", wait_id=wait, drive=False),
    "cancel": lambda rt, run, wait: rt.cancel(run),
    "signal": lambda rt, run, wait: rt.signal(run, "go", key="k"),
    "work": lambda rt, run, wait: rt.worker(until_idle=True),
}


@pytest.mark.parametrize("mine", ["approve", "deny", "cancel", "signal"])
@pytest.mark.parametrize("theirs", ["approve", "record", "deny", "cancel", "signal", "work"])
async def test_two_commands_for_a_run_at_rest(mine: str, theirs: str) -> None:
    """One at each place within the other: each is followed, or told in the words of what was first; nothing stays unread."""
    reached: set[Place] = set()
    for verb, number, when in places(reached):
        world = World()
        async with world.runtime(asks) as two:
            run = await two.invoke(asks)
            wait_id, said = run.waits[0].wait_id, []

            async def then(two: Runtime = two, run_id: str = run.run_id, wait_id: str = wait_id, said: list[Any] = said) -> None:
                said.append(await outcome(asyncio.wait_for(ACTS[theirs](two, run_id, wait_id), 5)))

            store = Interposed(world.store, verb, number, when, then)
            async with Runtime(store, skills=[asks], clock=world.clock) as one:  # type: ignore[arg-type]
                said.append(await outcome(asyncio.wait_for(ACTS[mine](one, run.run_id, wait_id), 5)))
            if not store.reached:
                continue
            reached.add(place := (verb, number, when))
            found = await kinds(two, run.run_id)
            end = await two.get(run.run_id)
            for answer in said:
                assert not isinstance(answer, HoldfastError) or isinstance(answer, TOLD), (place, answer)
            assert await world.store.inbox(run.run_id) == [], (place, found)
            assert found.count("wait.decided") <= 1 and found.count("run.canceled") + found.count("run.completed") <= 1, (place, found)
            accepted = [not isinstance(a, HoldfastError) for a in said]
            for act, ok in zip((theirs, mine), accepted, strict=True):
                traces = {"cancel": "run.cancel_requested", "signal": "signal.received", "approve": "wait.decided", "record": "wait.decided", "deny": "wait.decided"}
                assert not ok or act == "work" or traces[act] in found, (place, act, found)
            if {mine, theirs} >= {"approve", "deny"}:
                assert accepted.count(True) == 1, (place, said)
            assert end.status in ("waiting_for_human", "completed", "canceled"), place
    assert len(reached) > 5


async def test_a_resume_after_an_answer_that_somebody_else_is_about_to_read() -> None:
    """§5.4, §7.1: another process may claim a run as soon as its answer lies in the inbox. The resume that follows the answer finds the run executed; it
    never says that nobody has answered."""
    reached: set[Place] = set()
    claims = 0
    for verb, number, when in places(reached):
        world = World()
        async with world.runtime(asks) as two:
            run = await two.invoke(asks)
            await world.store.register("another", 10**12)
            claimed: list[Any] = []

            async def then(world: World = world, claimed: list[Any] = claimed) -> None:
                claimed.extend(await world.store.claim("another", ("default",), None, limit=1))

            store = Interposed(world.store, verb, number, when, then)
            async with Runtime(store, skills=[asks], clock=world.clock) as one:  # type: ignore[arg-type]
                said = await outcome(asyncio.wait_for(one.approve(run.run_id, drive=False), 5))
                assert isinstance(said, Run), (verb, number, when, said)
                if not store.reached:
                    continue
                reached.add(place := (verb, number, when))
                if claimed and (await two.get(run.run_id)).record.decisions:
                    continue  # the answer is on record: a resume waits until the other has gone on with it
                claims += len(claimed)
                end = await outcome(asyncio.wait_for(two.resume(run.run_id, wait=False), 5))
                assert isinstance(end, RunIsLive) if claimed else isinstance(end, Run) and end.status == "completed", (place, claimed, end)
    assert len(reached) > 5 and claims > 0


async def waits(rt: Runtime) -> Run[Any]:
    return await rt.invoke(asks)


async def waits_without_end(rt: Runtime) -> Run[Any]:
    return await rt.invoke(listens)


async def is_early(rt: Runtime) -> Run[Any]:
    return await rt.submit(asks, delay=3600)


async def lacks_room(rt: Runtime) -> Run[Any]:
    """Another run is at the only place there is."""
    busy = await rt.submit(crowded, {"n": 1})
    await rt.store.register("another", 10**12)
    await rt.store.enter("another", busy.run_id, "there", {"one": None})
    await rt.cancel(busy.run_id)
    return await rt.submit(crowded, {"n": 2})


@flow("listens")
async def listens(ctx: Context) -> str:
    return str(await ctx.wait("go"))


@flow("crowded")
async def crowded(ctx: Context, n: int) -> str:
    return await ctx.effect(str, n, limit="one", side_effects="write")


@pytest.mark.parametrize(
    ("rests", "act", "end"),
    [(waits, "approve", "completed"), (waits, "cancel", "canceled"), (waits_without_end, "signal", "completed"), (waits_without_end, "cancel", "canceled"),
     (is_early, "cancel", "canceled"), (lacks_room, "cancel", "canceled")],
)
async def test_a_command_while_a_run_is_held_for_nothing(rests: Callable[[Runtime], Awaitable[Run[Any]]], act: str, end: str) -> None:
    """§10.16: a worker takes a run for something that changes nothing, and leaves it again; what is asked of it meanwhile, at any place, is
    seen to without anything else being asked, and without time going by."""
    reached: set[Place] = set()
    limits = {"one": Limit(in_flight=1)}
    for verb, number, when in places(reached):
        world = World()
        async with world.runtime(asks, listens, crowded, limits=limits) as two:
            run = await rests(two)
            await world.store.put(InboxItem(run.run_id, "late:x", LateResult("x", "nothing new"), world.store.now()))

            async def then(two: Runtime = two, run: Run[Any] = run) -> None:
                await ACTS[act](two, run.run_id, run.waits[0].wait_id if run.waits else "")

            store = Interposed(world.store, verb, number, when, then)
            async with Runtime(store, skills=[asks, listens, crowded], clock=world.clock, limits=limits) as one:  # type: ignore[arg-type]
                await asyncio.wait_for(one.worker(until_idle=True, dispatch=False), 20)
                if not store.reached:
                    continue
                reached.add((verb, number, when))
                await asyncio.wait_for(two.worker(until_idle=True, dispatch=False), 20)
                found = await kinds(two, run.run_id)
                assert await world.store.inbox(run.run_id) == [], (verb, number, when, found)
                assert (await two.get(run.run_id)).status == end, (verb, number, when, found)
    assert len(reached) > 5


class Counted(State):
    n: int = 0


def chain(steps: int) -> Graph[Counted]:
    """A run of so many short steps."""
    graph = Graph("chain", Counted)
    for step in range(steps):

        async def node(state: Counted) -> dict[str, Any]:
            return {"n": state.n + 1}

        graph.node(name=f"s{step}", start=step == 0, after=None if step == 0 else f"s{step - 1}")(node)
    return graph


@flow("calls")
async def calls(ctx: Context) -> str:
    return await ctx.step(str, "a") + await ctx.step(str, "b")


@flow("fails")
async def fails(ctx: Context) -> None:
    await ctx.step(str, "a")
    raise ValueError("boom")


def wide() -> Graph[Counted]:
    graph = Graph("wide", Counted)

    @graph.node(start=True)
    async def a(state: Counted) -> None: ...

    @graph.node(start=True)
    async def b(state: Counted) -> dict[str, Any]:
        return {"n": 1}

    return graph


SKILLS = {"chain": lambda: chain(3), "calls": lambda: calls, "fails": lambda: fails, "wide": wide}


@pytest.mark.parametrize("command", ["cancel", "signal"])
@pytest.mark.parametrize("name", list(SKILLS))
async def test_a_command_at_any_instant_of_a_short_run(name: str, command: str) -> None:
    """X-19: an accepted cancel ends the run canceled, an accepted signal is on record before its end; else the caller is told that it is too late."""
    ends: set[str] = set()
    reached: set[Place] = set()
    for verb, number, when in places(reached, ("commit",)):
        world, said, skill = World(), [], SKILLS[name]()
        async with world.runtime() as two:

            async def then(two: Runtime = two, said: list[Any] = said) -> None:
                runs = await two.runs(limit=1)
                said.append(await outcome(ACTS[command](two, runs[0].run_id, "")) if runs else None)

            store = Interposed(world.store, verb, number, when, then)
            async with Runtime(store, skills=[skill], clock=world.clock) as one:  # type: ignore[arg-type]
                run = await asyncio.wait_for(one.invoke(skill, {}, thread_id="t"), 20)
            if not store.reached:
                continue
            reached.add((verb, number, when))
            if said == [None]:
                continue
            found = await kinds(two, run.run_id)
            ended = [k for k in found if k in ("run.completed", "run.failed", "run.canceled")]
            assert len(ended) == 1 and await world.store.inbox(run.run_id) == [], (number, when, found)
            if isinstance(said[0], HoldfastError):
                assert isinstance(said[0], AlreadyTerminal) and when == "after", (number, when, said)
            elif command == "cancel":
                assert ended == ["run.canceled"], (number, when, found)
            else:
                assert "signal.received" in found, (number, when, found)
            assert [p for p in await two.check(run.run_id) if p.severity == "error"] == []
            ends.add(f"{ended[0]} {type(said[0]).__name__}")
    assert len(ends) >= (2 if command == "cancel" else 1), ends

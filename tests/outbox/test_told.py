"""What is told of the outbox: types that nobody sends, what has waited longest, attempts among what happened (§9.1, §9.3, §10.11)."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import Context, Graph, Runtime, State
from holdfast.api import metrics
from holdfast.core.offers import Offer, find_sent
from holdfast.ui import render
from tests.outbox.conftest import Open

graph: Graph[State] = Graph("teller", State, version="1")


@graph.node(start=True)
async def notify(state: State, ctx: Context) -> None:
    ctx.send("mail", {"url": "https://h.example/x"})


class Once:
    """Fails at its first attempt, and takes every later one."""

    failed = False

    async def send(self, payload: Any, key: str) -> str:
        if not self.failed:
            self.failed = True
            raise OSError("the line is busy")
        return "ok"


async def codes(rt: Runtime, run_id: str | None = None) -> list[tuple[str, str]]:
    return [(p.code, p.severity) for p in await rt.check(run_id)]


async def lacks(rt: Runtime, run_id: str) -> list[Any]:
    """What each surface says of the one intent of a run."""
    (by_python,), (by_list,) = await rt.intents(run_id), await rt.look.intents()
    (by_run,) = (await rt.look.snapshot(run_id)).intents()
    return [by_python.no_transport_for, by_list.no_transport_for, by_run.no_transport_for, (await rt.look.count_queued()).no_transport_for]


async def until(condition: Any, rt: Runtime) -> None:
    async with asyncio.timeout(60):
        while not await condition():
            await rt.store.wait_for_change(0.05)


LACKING, NONE = ["mail", "mail", "mail", ["mail"]], [None, None, None, []]


async def test_a_type_is_lacked_that_nobody_who_is_up_sends(open_rt: Open) -> None:
    """§9.1, §12.2: by what this process and the living ones send: a worker, or one that only dispatches; not one that sends nothing."""
    async with open_rt() as rt:
        run = await rt.invoke(graph, {})
        assert await lacks(rt, run.run_id) == LACKING
        assert await codes(rt, run.run_id) == await codes(rt) == [("no_transport_for", "warning")]
        assert (await rt.check()).ok

        going, release = asyncio.Event(), asyncio.Event()

        async def slow(payload: Any, key: str) -> None:
            going.set()
            await release.wait()

        for work in ("worker", "dispatch"):
            going.clear()
            release.clear()
            await rt.invoke(graph, {})
            async with open_rt(transports={"mail": slow}, limits={}) as other:
                stop = asyncio.Event()
                sending = asyncio.ensure_future(getattr(other, work)(stop=stop))
                await going.wait()
                assert None not in {o.offer and o.offer.sends for o in await rt.store.workers() if o.offer is not None}
                held = await rt.invoke(graph, {}, key=work)
                assert (await rt.intents(held.run_id))[0].no_transport_for is None
                assert ("no_transport_for", "warning") not in await codes(rt, held.run_id)
                assert (await rt.look.count_queued()).no_transport_for == []
                release.set()
                stop.set()
                await sending
                assert all(o.offer.sends == () for o in await rt.store.workers() if o.offer is not None), "it sends no more"

        later = await rt.invoke(graph, {})
        async with open_rt(skills=[graph]) as silent:
            stop = asyncio.Event()
            working = asyncio.ensure_future(silent.worker(stop=stop, dispatch=False))

            async def offered() -> bool:
                return any(w.offer is not None and w.offer.works for w in await rt.store.workers())

            await until(offered, rt)
            assert (await rt.intents(later.run_id))[0].no_transport_for == "mail"
            stop.set()
            await working


async def test_who_only_dispatches_takes_no_runs(open_rt: Open) -> None:
    """§10.11: beside it a due run has no worker at all, which is told, and is not one that no worker can take."""
    async with open_rt(skills=[graph]) as rt:
        run = await rt.submit(graph, {})
        async with open_rt() as other:
            stop = asyncio.Event()
            sending = asyncio.ensure_future(other.dispatch(stop=stop))

            async def up() -> bool:
                return any(w.offer is not None for w in await rt.store.workers())

            await until(up, rt)
            assert (await rt.get(run.run_id)).no_worker_for is None
            assert await codes(rt, run.run_id) == []
            stop.set()
            await sending


def test_one_that_does_not_tell() -> None:
    """A process of a release before this one does not say what it sends: then nobody says that a type is lacked."""
    silent, telling = Offer((), ()), Offer((), (), sends=("mail",))
    assert find_sent(("webhook",), [telling, telling]) == {"webhook", "mail"}
    assert find_sent((), []) == frozenset()
    assert find_sent(("webhook",), [telling, silent]) is None


async def test_attempts_are_told_among_what_happened(open_rt: Open) -> None:
    """§9.3: by their times, in ``show`` and on the page; the log does not hold them, and its events are what they were."""
    async with open_rt(transports={"mail": Once()}) as rt:
        run = await rt.invoke(graph, {})
        log = [e["event_type"] for e in await rt.events(run.run_id)]
        await rt.redrive((await rt.intents(run.run_id))[0].intent_id, actor="ada", reason="they have called")
        await rt.dispatch(until_idle=True)
        seen = await rt.look.snapshot(run.run_id)
        story = seen.story()
        assert [(m.what, m.step, m.detail) for m in story if m.what.startswith("intent.") and m.what != "intent.enqueued"] == [
            ("intent.failed", "notify", "mail to h.example: the line is busy"),
            ("intent.redrive", "notify", "mail to h.example, by ada: they have called"),
            ("intent.sent", "notify", "mail to h.example, attempt 2"),
        ]
        assert [m.at for m in story if m.at] == sorted(m.at for m in story if m.at)
        assert [e["event_type"] for e in await rt.events(run.run_id)] == log
        page = render.run_context(seen, None, [], [])
        (line,) = [x for x in page["timeline"].lines if x.name == "send mail to h.example"]
        assert (line.state, [b.kind for b in line.bars], line.why) == ("done", ["fail", "done"], "2 attempts; the line is busy")
        assert "send mail to h.example" in render.alone(seen, [], "memory:")


async def test_the_oldest_is_told(open_rt: Open) -> None:
    """One line of ``doctor``, one metric."""
    async with open_rt() as rt:
        assert (await rt.look.count_queued()).queued == 0
        assert "holdfast_oldest_queued_intent_seconds 0\n" in await metrics.text(rt, None)
        first = await rt.invoke(graph, {})
        await rt.invoke(graph, {})
        queued = await rt.look.count_queued()
        (oldest,) = await rt.intents(first.run_id)
        assert (queued.queued, queued.oldest_at) == (2, oldest.created_at.isoformat(timespec="microseconds").replace("+00:00", "Z"))
        await rt.settle(oldest.intent_id, "abandoned", actor="ada")
        assert (await rt.look.count_queued()).queued == 1
        assert "# TYPE holdfast_oldest_queued_intent_seconds gauge" in await metrics.text(rt, "default")

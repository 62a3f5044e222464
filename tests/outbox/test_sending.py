"""What is decided in a step is sent after its commit, by whoever is up, and settled once (§9, T-67 to T-72)."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, State, append
from holdfast.core import canon
from holdfast.core.errors import AttemptMayLive, IntentNotFound, IntentSettled, InvalidInput, StoreError, StoreFull, UsageError
from holdfast.outbox.dispatcher import Dispatcher
from holdfast.outbox.pace import EACH
from holdfast.transports import Absent, Function, Further, Happened, MaybeSent, PermanentError, Retry, RetryAfter, Row, Signal, Unknown
from tests.engine.support import World
from tests.outbox.conftest import Open, Shared


class Note(State):
    text: str = "hello"
    done: Annotated[list[str], append]


def sender(*, steps: int = 1, order: str = "", fail: bool = False) -> Graph[Note]:
    """A graph whose every step sends one mail."""
    graph: Graph[Note] = Graph("sender", Note, version="1")
    for n in range(steps):

        async def node(state: Note, ctx: Context) -> dict[str, Any]:
            ctx.send("mail", {"text": state.text, "step": len(state.done)}, order=order)
            if fail:
                raise ValueError("the step does not commit")
            return {"done": ["x"]}

        graph.node(f"s{n}", start=n == 0, after=f"s{n - 1}" if n else None)(node)
    return graph


class Odd(BaseException):
    """What no code should raise."""


class Mailbox:
    """A receiver; ``dedupes``: it drops a repeated key."""

    def __init__(self, *, dedupes: bool = False) -> None:
        self.dedupes = dedupes
        self.got: list[tuple[Any, str]] = []
        self.calls = 0

    async def send(self, payload: Any, key: str) -> str:
        self.calls += 1
        if not (self.dedupes and any(k == key for _, k in self.got)):
            self.got.append((payload, key))
        return "ok"


async def test_invoke_sends_the_runs_own_intents(open_rt: Open) -> None:
    """§4.18, §9.1: after the commit, under a key, before invoke comes back; T-69: five steps, five sends."""
    box = Mailbox()
    async with open_rt(transports={"mail": box.send}) as rt:
        run = await rt.invoke(sender(steps=5), {})
        assert run.status == "completed"
        assert [p["step"] for p, _ in box.got] == [0, 1, 2, 3, 4]
        found = await rt.intents(run.run_id)
        assert [i.state for i in found] == ["sent"] * 5
        assert [i.key for i in found] == [k for _, k in box.got]
        assert found[0].attempts[0].outcome == "sent" and found[0].answer == "ok"
        assert await rt.dispatch(until_idle=True) == 0
        assert box.calls == 5


async def test_only_a_run_that_may_have_intents_is_looked_at(open_rt: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """§4.18: no dispatcher is made for a claimed run that has enqueued nothing; what one has left is sent when it is driven on."""
    asked: list[str] = []
    run_of = Dispatcher.run

    async def counted(self: Dispatcher, **options: Any) -> int:
        asked.append(str(options["run_id"]))
        return await run_of(self, **options)

    monkeypatch.setattr(Dispatcher, "run", counted)
    box = Mailbox()
    rest: Graph[Note] = Graph("rest", Note, version="1")

    @rest.node(start=True)
    async def first(state: Note, ctx: Context) -> dict[str, Any]:
        if state.text == "send":
            ctx.send("mail", {"n": 1})
        return {"done": ["x"]}

    @rest.node(after=first)
    async def second(state: Note, ctx: Context) -> None:
        await ctx.approve("Go on?")

    async with open_rt(transports={"mail": box.send}) as rt:
        quiet = await rt.submit(rest, {})
        await rt.resume(quiet.run_id)
        assert (await rt.approve(quiet.run_id, actor="ann")).status == "completed" and asked == []
    async with open_rt() as rt:
        sends = await rt.invoke(rest, {"text": "send"})  # nobody here sends mail
        assert set(asked) == {sends.run_id} and box.calls == 0
    async with open_rt(transports={"mail": box.send}, skills=[rest]) as rt:
        assert (await rt.approve(sends.run_id, actor="ann")).status == "completed"
        assert box.calls == 1


async def test_what_does_not_commit_is_not_sent(open_rt: Open) -> None:
    """T-71."""
    box = Mailbox()
    async with open_rt(transports={"mail": box}) as rt:
        run = await rt.invoke(sender(fail=True), {})
        assert run.status == "failed"
        assert box.calls == 0
        assert await rt.intents() == []


async def test_a_dispatcher_alone_and_no_checkpoint_moves(open_rt: Open) -> None:
    """T-70: whoever dispatches needs no code of the run, no lease on it, and changes nothing of it."""
    box = Mailbox()
    async with open_rt() as rt:
        run = await rt.invoke(sender(), {})
        (intent,) = await rt.intents(run.run_id)
        assert (intent.state, intent.no_transport_for) == ("queued", "mail")
        before = [c.hash for c in await rt.checkpoints(run.run_id)], [e["seq"] for e in await rt.events(run.run_id)]
        async with open_rt(transports={"mail": box}) as other:
            assert await other.dispatch(until_idle=True) == 1
            assert (await other.intents())[0].no_transport_for is None
        after = [c.hash for c in await rt.checkpoints(run.run_id)], [e["seq"] for e in await rt.events(run.run_id)]
        assert (after, len(box.got)) == (before, 1)


async def test_a_worker_sends_too(open_rt: Open) -> None:
    """§9.1: until idle means that nothing is left to be sent either; a worker may leave it to others."""
    box = Mailbox()
    graph = sender(steps=3)
    async with open_rt(transports={"mail": box}, skills=[graph]) as rt:
        await rt.submit(graph, {})
        await rt.worker(until_idle=True, dispatch=False)
        assert box.calls == 0
        await rt.submit(graph, {})
        await rt.worker(until_idle=True)
        assert box.calls == 6
        stop = asyncio.Event()
        working = asyncio.ensure_future(rt.worker(stop=stop))
        await rt.submit(graph, {})
        async with asyncio.timeout(60):
            while box.calls < 9:
                await rt.store.wait_for_change(0.1)
        stop.set()
        await working
        assert {i.state for i in await rt.intents()} == {"sent"}


async def test_a_replay_sends_nothing_again(open_rt: Open) -> None:
    """T-72, §7.8."""
    box = Mailbox()
    graph = sender(steps=2)
    async with open_rt(transports={"mail": box}, skills=[graph]) as rt:
        run = await rt.invoke(graph, {})
        await rt.replay(run.run_id)
        await rt.dispatch(until_idle=True)
        assert box.calls == 2
        forked = await rt.fork(run.run_id, set={"text": "other"}, from_step=1)
        assert box.calls == 4, "another text is another mail"
        keys = {i.key for i in await rt.intents(forked.run_id)}
        assert keys.isdisjoint(i.key for i in await rt.intents(run.run_id))


@pytest.mark.parametrize("dedupes", [True, False])
async def test_a_send_whose_mark_is_lost(dedupes: bool, open_rt: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """T-67: the dispatcher dies between send and settle. With a receiver that dedupes there is one logical mail; without, a person is asked."""
    box = Mailbox(dedupes=dedupes)
    rt = open_rt(lease=0.3)
    async with rt:
        run = await rt.invoke(sender(), {})
    dying = open_rt(transports={"mail": box}, lease=0.3)
    await dying.__aenter__()

    async def dies(settlements: Any) -> Any:
        raise StoreFull("the process is gone")

    monkeypatch.setattr(dying.store, "settle_intents", dies)
    with pytest.raises(StoreFull):
        await dying.dispatch(until_idle=True)
    assert box.calls == 1
    monkeypatch.undo()
    await dying.close()
    async with open_rt(transports={"mail": box}, lease=0.3) as other:
        async with asyncio.timeout(60):
            while not await other.dispatch(until_idle=True):
                await other.store.wait_for_change(0.05)
        (intent,) = await other.intents(run.run_id)
        assert len(box.got) == 1
        if dedupes:
            assert (intent.state, box.calls) == ("sent", 2)
            assert [a.outcome for a in intent.attempts] == ["lost", "sent"]
            return
        assert (intent.state, intent.detail, box.calls) == ("unknown", "sender_lost", 1)
        assert await other.dispatch(until_idle=True) == 0
        done = await other.settle(intent.intent_id, "sent", actor="ada", reason="it is in my inbox")
        assert (done.state, done.rulings[0].actor, done.rulings[0].reason) == ("sent", "ada", "it is in my inbox")
        with pytest.raises(IntentSettled):
            await other.redrive(intent.intent_id, actor="bob")


class Looked(Mailbox):
    """A receiver that can be asked about a key."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    async def verify(self, payload: Any, key: str) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    "answer, state, calls",
    [
        (Happened("seen"), "sent", 0),
        (Absent(), "sent", 1),
        (Unknown("cannot say"), "unknown", 0),
        (OSError("down"), "unknown", 0),
        ("nonsense", "unknown", 0),
    ],
    ids=["happened", "absent", "unknown", "raises", "nonsense"],
)
async def test_a_transport_that_looks_the_key_up(answer: Any, state: str, calls: int, open_rt: Open) -> None:
    """§9.4: three answers, as for effects."""
    box = Looked(answer)
    async with open_rt(lease=30) as rt:
        run = await rt.invoke(sender(), {})
        await rt.store.register("dead", 30_000_000)
        await rt.store.claim_intents("dead", ("mail",), limit=1, ttl_us=30_000_000)
        rt.store.abandon("dead")  # type: ignore[attr-defined]
        async with open_rt(transports={"mail": box}) as other:
            await other.dispatch(until_idle=True)
            (intent,) = await other.intents(run.run_id)
            assert (intent.state, box.calls) == (state, calls)


async def test_absent_while_the_old_sender_may_live_asks_a_person(open_rt: Open) -> None:
    """§6.5: what was not there yet may still come; sent again only by force."""
    box = Looked(Absent())
    async with open_rt(transports={"mail": box}) as rt:
        async with open_rt() as other:
            run = await other.invoke(sender(), {})
        await rt.store.claim_intents("somebody", ("mail",), limit=1, ttl_us=1)
        await rt.store.wait_for_change(0.01)
        await rt.dispatch(until_idle=True)
        (intent,) = await rt.intents(run.run_id)
        assert (intent.state, intent.detail, box.calls) == ("unknown", "attempt_may_live", 0)
        with pytest.raises(AttemptMayLive, match="somebody"):
            await rt.redrive(intent.intent_id, actor="ada")
        again = await rt.redrive(intent.intent_id, actor="ada", reason="I looked", force=True)
        assert (again.state, again.rulings[0].forced) == ("queued", True)
        await rt.dispatch(until_idle=True)
        assert (box.calls, (await rt.intents(run.run_id))[0].state) == (1, "sent")


@pytest.mark.parametrize(
    "error, state, attempts",
    [
        (PermanentError("no such address"), "dead", 1),
        (UsageError("no such option"), "dead", 1),
        (RetryAfter(60), "queued", 1),
        (ValueError("not now"), "queued", 1),
        (MaybeSent("it broke off"), "unknown", 1),
        (SystemExit(3), "queued", 1),
        (asyncio.CancelledError(), "queued", 1),
        (StopIteration(), "queued", 1),
        (Odd("neither"), "queued", 1),
        *((RetryAfter(s), "queued", 1) for s in (-1.0, 1e30, float("inf"), float("nan"))),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, BaseException) else None,
)
@pytest.mark.parametrize("threaded", [True, False])
async def test_what_a_transport_raises(error: BaseException, state: str, attempts: int, threaded: bool, open_rt: Open) -> None:
    """The type says what happened, and concerns this intent alone; the text is kept."""

    async def fails(payload: Any, key: str) -> None:
        raise error

    def fails_in_thread(payload: Any, key: str) -> None:
        raise error

    async with open_rt(transports={"mail": fails_in_thread if threaded else fails}) as rt:
        run = await rt.invoke(sender(), {})
        assert run.status == "completed"
        (intent,) = await rt.intents(run.run_id)
        assert (intent.state, len(intent.attempts)) == (state, attempts)
        if isinstance(error, RetryAfter) and error.seconds == 60:
            assert intent.due is not None and (intent.due - intent.attempts[0].started_at).total_seconds() >= 60


async def test_a_poison_intent_is_dead_after_its_attempts_and_can_be_redriven(open_rt: Open) -> None:
    class Poison(Mailbox):
        retry = Retry(3, base_us=20_000)
        broken = True

        async def send(self, payload: Any, key: str) -> str:
            if self.broken:
                self.calls += 1
                raise ValueError("cannot")
            return await super().send(payload, key)

    box = Poison()
    async with open_rt(transports={"mail": box}) as rt:
        run = await rt.invoke(sender(), {})
        async with asyncio.timeout(60):
            while (await rt.intents(run.run_id))[0].state != "dead":
                await rt.dispatch(until_idle=True)
                await rt.store.wait_for_change(0.02)
        (intent,) = await rt.intents(run.run_id)
        assert (intent.state, len(intent.attempts), intent.detail) == ("dead", 3, "cannot")
        box.broken = False
        await rt.redrive(intent.intent_id, actor="ada", reason="fixed")
        await rt.dispatch(until_idle=True)
        (intent,) = await rt.intents(run.run_id)
        assert (intent.state, len(intent.attempts)) == ("sent", 4)


async def test_a_plain_function_says_how_it_is_to_be_tried(open_rt: Open) -> None:
    """§9.4: ``Function`` gives one its attempts, the errors worth another, its time and its hooks."""
    calls: list[str] = []
    kinds: dict[str, BaseException] = {"0": ValueError("not now"), "1": KeyError("never")}

    def fails(payload: Any, key: str) -> None:
        calls.append(key)
        raise kinds[str(payload["step"])]

    told: list[str] = []
    picky = Function(fails, retry=Retry(2, base_us=1, on=(ValueError,)))
    async with open_rt(transports={"mail": picky}) as rt:
        run = await rt.invoke(sender(steps=2), {})
        async with asyncio.timeout(60):
            while len(calls) < 3:
                await rt.dispatch(until_idle=True)
                await rt.store.wait_for_change(0.01)
        assert [(i.state, len(i.attempts)) for i in await rt.intents(run.run_id)] == [("dead", 2), ("dead", 1)]
    hooked = Function(lambda payload, key: "ok", dedupes=True, timeout=5, on_response=lambda intent, answer: told.append(answer))
    async with open_rt(transports={"mail": hooked}) as rt:
        await rt.invoke(sender(), {"text": "other"})
        assert told == ["ok"]
    for wrong in ({"retry": 0}, {"retry": "many"}, {"timeout": "soon"}, {"verify": 3}, {"limit": "queue:x"}):
        with pytest.raises(InvalidInput):
            Function(fails, **wrong)


async def test_a_slow_transport_is_timed_out(open_rt: Open) -> None:
    """A sending that hangs is in doubt, be it a coroutine or a thread, and the dispatcher goes on."""
    release = threading.Event()

    class Hangs:
        timeout = 0.05

        async def send(self, payload: Any, key: str) -> None:
            await asyncio.Event().wait()

    class HangsInThread:
        timeout = 0.05

        def send(self, payload: Any, key: str) -> None:
            release.wait(30)

    for transport in (Hangs(), HangsInThread()):
        async with open_rt(transports={"mail": transport}) as rt:
            run = await rt.invoke(sender(), {})
            (intent,) = await rt.intents(run.run_id)
            assert (intent.state, intent.attempts[0].outcome) == ("unknown", "unknown")
    release.set()


async def test_order_per_key(open_rt: Open) -> None:
    """Strictly first in, first out, also over a failure; the second waits for the first's retry."""
    seen: list[int] = []

    async def flaky(payload: Any, key: str) -> None:
        seen.append(payload["step"])
        if len(seen) == 1:
            raise ValueError("not now")

    async with open_rt(transports={"mail": flaky}) as rt:
        await rt.invoke(sender(steps=3, order="k"), {})
        assert seen == [0]
        async with asyncio.timeout(60):
            while len(seen) < 4:
                await rt.dispatch(until_idle=True)
                await rt.store.wait_for_change(0.05)
        assert seen == [0, 0, 1, 2]


async def test_what_a_hook_gives_is_kept_with_the_settlement(open_rt: Open) -> None:
    """§9.5: a ledger row, a signal and a further intent, each once."""

    class Hooked(Mailbox):
        async def on_response(self, intent: Any, answer: Any) -> Any:
            if intent.key.endswith(":3"):
                return None
            return [
                Row("mail", intent.key, {"answer": answer}),
                {"name": "posted", "payload": answer},
                Further("mail", {"text": "copy", "step": 9}),
            ]

    graph: Graph[Note] = Graph("asks", Note, version="1")

    @graph.node(start=True)
    async def send(state: Note, ctx: Context) -> None:
        ctx.send("mail", {"text": "hello"}, key="mine")

    @graph.node(after="send")
    async def wait(state: Note, ctx: Context) -> dict[str, Any]:
        return {"done": [await ctx.wait("posted")]}

    box = Hooked()
    async with open_rt(transports={"mail": box}, skills=[graph]) as rt:
        run = await rt.invoke(graph, {})
        assert (run.status, run.state.done) == ("completed", ["ok"])
        await rt.dispatch(until_idle=True)
        assert [k for _, k in box.got] == ["mine", "mine:3"]
        (row,) = await rt.ledger(topic="mail")
        assert (row.key, row.data, row.run_id) == ("mine", {"answer": "ok"}, run.run_id)
        assert row.step_id.endswith(".1.send")


@pytest.mark.parametrize("hook", ["on_response", "verify"])
async def test_a_hook_that_hangs_hinders_no_other_receiver(tmp_path: Path, hook: str) -> None:
    """A plain function that hangs keeps its thread, of those that its own receiver has; what others' hooks give comes meanwhile."""
    release, hanging, got = threading.Event(), [], []
    graph: Graph[Note] = Graph("hooked", Note, version="1")

    @graph.node(start=True)
    async def act(state: Note, ctx: Context) -> None:
        for n in range(3 * EACH):
            ctx.send("bad", {"url": f"http://bad{n % 3}.example/"})
        ctx.send("good", {"url": "http://good.example/"})

    def hangs(*args: Any) -> Any:
        hanging.append(args)
        release.wait(60)
        return Happened() if hook == "verify" else None

    def quick(*args: Any) -> Any:
        got.append(args)
        return Happened() if hook == "verify" else None

    async def send(payload: Any, key: str) -> str:
        return "ok"

    url, types = f"sqlite:///{tmp_path}/a.db", ("bad", "good")
    async with Runtime(url, skills=[graph]) as rt:
        await rt.submit(graph, {})
        await rt.worker(until_idle=True, dispatch=False)
        if hook == "verify":  # each sender was lost, so each is asked whether it has sent
            await rt.store.claim_intents("a sender that died", types, limit=1_000, ttl_us=1)
    async with Runtime(url, transports={"bad": Function(send, **{hook: hangs}), "good": Function(send, **{hook: quick})}) as rt:
        stop = asyncio.Event()
        sending = asyncio.ensure_future(rt.dispatch(stop=stop))
        try:
            async with asyncio.timeout(60):
                while len(hanging) < 3 * EACH or not got:
                    await rt.store.wait_for_change(0.05)
        finally:
            release.set()
            stop.set()
            await sending
        assert {i.state for i in await rt.intents(limit=500)} == {"sent"}


WRONG: dict[str, Any] = {
    "nonsense": 42, "nobody": [Signal("x", run_id="nobody")], "raises": RuntimeError("hook"), "exits": SystemExit(1), "colon": Signal("a:b"), "number": Row(5, "k"),  # type: ignore[arg-type]
    "none": {"topic": "t", "key": None}, "no type": Further(""), "no order": Further("mail", order=5), "nul": {"name": "a", "key": "\0"},  # type: ignore[arg-type]
}


@pytest.mark.parametrize("given", WRONG.values(), ids=WRONG.keys())
async def test_a_hook_that_fails_is_told_and_the_intent_is_sent(given: Any, open_rt: Open) -> None:
    class Hooked(Mailbox):
        def on_response(self, intent: Any, answer: Any) -> Any:
            if isinstance(given, BaseException):
                raise given
            return given

    async with open_rt(transports={"mail": Hooked()}) as rt:
        await rt.invoke(sender(), {})
        (intent,) = await rt.intents()
        assert intent.state == "sent"
        assert "on_response" in intent.detail


async def test_intents_of_a_cancelled_run_are_still_sent(open_rt: Open) -> None:
    box = Mailbox()
    graph: Graph[Note] = Graph("rests", Note, version="1")

    @graph.node(start=True)
    async def send(state: Note, ctx: Context) -> None:
        ctx.send("mail", "hello")

    @graph.node(after="send")
    async def wait(state: Note, ctx: Context) -> None:
        await ctx.approve("?")

    async with open_rt(skills=[graph]) as rt:
        run = await rt.invoke(graph, {})
        await rt.cancel(run.run_id)
    async with open_rt(transports={"mail": box}) as rt:
        await rt.dispatch(until_idle=True)
        assert box.calls == 1


async def test_a_store_that_fails_ends_the_dispatcher(open_rt: Open) -> None:
    """X-14: alone it says so and ends; one beside a worker outlasts it (tests/crash/test_background.py)."""
    box = Mailbox()
    async with open_rt() as rt:
        await rt.invoke(sender(), {})
    async with open_rt(transports={"mail": box}, skills=[sender()]) as rt:

        async def broken(*_: Any, **__: Any) -> Any:
            raise StoreFull("no space")

        rt.store.claim_intents = broken  # type: ignore[method-assign]
        with pytest.raises(StoreFull):
            await rt.dispatch(until_idle=True)


class Unheard:
    """A way to a store whose claims of intents are applied, and whose caller is cancelled before it hears of it."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.claimed = asyncio.Event()
        self.told = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim_intents(self, *args: Any, **wanted: Any) -> Any:
        found = await self._store.claim_intents(*args, **wanted)
        if found and not self.told.is_set():
            self.claimed.set()
            await self.told.wait()
        return found


async def test_a_sender_that_is_ended_while_it_claims(tmp_path: Path) -> None:
    """§9.4: it has begun nothing: what it took is free again, and no person is asked."""
    box = Mailbox()
    unheard = Unheard(Shared())
    async with Runtime(unheard, skills=[sender()], transports={"mail": box}) as rt:  # type: ignore[arg-type]
        await rt.submit("sender")
        await rt.worker(until_idle=True, dispatch=False)
        for _ in range(2):
            sending = asyncio.ensure_future(rt.dispatch())
            await unheard.claimed.wait()
            sending.cancel()
            unheard.told.set()
            await asyncio.gather(sending, return_exceptions=True)
            (intent,) = await rt.intents()
            assert (intent.state, box.calls) == ("queued", 0)
            unheard.claimed.clear()
            unheard.told.clear()
        unheard.told.set()
        assert await rt.dispatch(until_idle=True) == 1
        (intent,) = await rt.intents()
        assert (intent.state, box.calls) == ("sent", 1)


class Broken(Unheard):
    """One claim that takes something is applied, and its answer lost, once ``armed``."""

    armed = False

    async def claim_intents(self, *args: Any, **wanted: Any) -> Any:
        found = await self._store.claim_intents(*args, **wanted)
        if found and self.armed:
            self.armed = False
            raise StoreError("the answer was lost", code="store_unreachable")
        return found


async def test_a_claim_whose_answer_is_lost_beside_a_sending() -> None:
    """§9.4, X-14: the sending comes to its end though its dispatcher's store has failed, and the next dispatcher finds what was claimed."""
    got: list[str] = []
    going, done = asyncio.Event(), asyncio.Event()

    async def slow(payload: Any, key: str) -> None:
        got.append(key)
        going.set()
        await done.wait()

    store = Broken(Shared())
    async with Runtime(store, skills=[sender()], transports={"mail": slow}) as rt, asyncio.timeout(60):  # type: ignore[arg-type]
        await rt.submit("sender")
        await rt.worker(until_idle=True, dispatch=False)
        first = asyncio.ensure_future(rt.dispatch())
        await going.wait()
        store.armed = True
        await rt.submit("sender")
        await rt.worker(until_idle=True, dispatch=False)
        while store.armed:
            await rt.store.wait_for_change(0.05)
        second = asyncio.ensure_future(rt.dispatch(until_idle=True))
        while len(got) < 2:
            await rt.store.wait_for_change(0.05)
        assert not first.done()
        done.set()
        with pytest.raises(StoreError):
            await first
        assert await second == 1
        assert [(i.state, [t.outcome for t in i.attempts]) for i in await rt.intents()] == [("sent", ["sent"]), ("sent", ["late", "sent"])]
        assert len(set(got)) == len(got) == 2


async def test_wrong_words(open_rt: Open) -> None:
    async with open_rt() as rt:
        run = await rt.invoke(sender(), {})
        (intent,) = await rt.intents(run.run_id)
        with pytest.raises(InvalidInput, match="delivered"):
            await rt.intents(state="delivered")
        with pytest.raises(IntentNotFound):
            await rt.redrive("nobody", actor="ada")
        with pytest.raises(InvalidInput, match="done"):
            await rt.settle(intent.intent_id, "done", actor="ada")
        gone = await rt.settle(intent.intent_id, "abandoned", actor="ada", reason="not wanted")
        assert (await rt.settle(intent.intent_id, "abandoned", actor="bob", reason="")).rulings == gone.rulings
    for wrong in (3, object(), lambda payload: None):
        with pytest.raises(UsageError, match="mail"):
            Runtime("memory:", transports={"mail": wrong})


async def test_a_day_after_it_was_settled_what_it_carried_is_dropped() -> None:
    """§9.7: looked for every five minutes; its key, state, times and attempts stay, so that a replay sends nothing again. What waits for a person keeps all."""

    class Choosy(Mailbox):
        retry = 1

        async def send(self, payload: Any, key: str) -> str:
            if payload["step"]:
                raise PermanentError("no such address")
            return await super().send(payload, key)

    world, box, graph = World(), Choosy(), sender(steps=3)
    async with world.runtime(graph, transports={"mail": box}) as rt:
        run = await rt.invoke(graph, {})
        assert [i.state for i in await rt.intents(run.run_id)] == ["sent", "dead", "dead"]
        given_up = (await rt.intents(run.run_id))[1]
        await rt.settle(given_up.intent_id, "abandoned", actor="ada", reason="he has moved")
        settled = await rt.intents(run.run_id)
        stop = asyncio.Event()
        sending = asyncio.ensure_future(rt.dispatch(stop=stop))

        async def carried(seconds: int, until: list[bool] | None = None) -> list[bool]:
            """Whether each still has its payload, when so much time has passed and the dispatcher has looked round once more."""
            world.clock.at += seconds * 1_000_000
            async with asyncio.timeout(60):
                for _ in range(20):
                    await rt.shelf("news").put("k", b"v")
                    await asyncio.sleep(0)
                while until is not None and [i.payload is not None for i in await rt.intents(run.run_id)] != until:
                    await rt.store.wait_for_change(0.05)
            return [i.payload is not None for i in await rt.intents(run.run_id)]

        assert await carried(24 * 3600 - 200) == [True, True, True]
        assert await carried(290) == [True, True, True], "a day is over, and the five minutes since it last looked are not"
        assert await carried(20, [False, False, True]) == [False, False, True]
        stop.set()
        await sending
        for before, after in zip(settled, await rt.intents(run.run_id), strict=True):
            assert (after.key, after.state, after.created_at, after.settled_at, after.attempts, after.rulings) == (
                before.key, before.state, before.created_at, before.settled_at, before.attempts, before.rulings,
            )
        replay = await rt.replay(run.run_id)
        assert replay.status == "completed" and len(box.got) == 1


class Book(State):
    paid: Annotated[list[str], append]


def bookkeeping(broken: list[bool]) -> Graph[Book]:
    """Two steps at once that each record rows; one fails while it is ``broken``."""
    graph: Graph[Book] = Graph("book", Book, version="1")

    @graph.node(start=True)
    async def pay(state: Book, ctx: Context) -> dict[str, Any]:
        ctx.record("book", "debit", {"amount": 3})
        ctx.record("book", "credit", {"amount": -3})
        return {"paid": ["ada"]}

    @graph.node(start=True)
    async def fee(state: Book, ctx: Context) -> dict[str, Any]:
        ctx.record("book", "fee", {"amount": 1})
        if broken:
            raise ValueError("no")
        return {"paid": ["bank"]}

    return graph


async def rows_of(rt: Runtime, run_id: str) -> tuple[list[tuple[str, Any]], Any]:
    """The rows of a run beside the values of its head."""
    return [(r.key, canon.thaw(canon.decode(r.data))) for r in await rt.store.ledger(run_id)], (await rt.get(run_id)).values["paid"]


ALL = ([("debit", {"amount": 3}), ("credit", {"amount": -3}), ("fee", {"amount": 1})], ["ada", "bank"])


@pytest.mark.parametrize("after", [False, True])
async def test_ledger_rows_commit_with_the_checkpoint(after: bool) -> None:
    """§9.6: killed before the commit there is neither, after it both, and each once, whoever goes on."""
    world, graph = World(), bookkeeping([])
    run_id = await world.crash(graph, when=lambda c: bool(c.ledger), after=after)
    async with world.runtime(graph) as rt:
        assert await rows_of(rt, run_id) == (ALL if after else ([], []))
        await rt.recover()
        assert await rows_of(rt, run_id) == ALL


async def test_ledger_rows_of_a_round_come_all_or_none() -> None:
    """§9.6: one step of a round fails, so the other's rows are not there either, as its writes are not; once it is mended, all are."""
    broken = [True]
    async with Runtime("memory:", skills=[graph := bookkeeping(broken)]) as rt:
        run = await rt.invoke(graph, {})
        assert run.status == "failed" and await rows_of(rt, run.run_id) == ([], [])
        broken.clear()
        await rt.resume(run.run_id, acknowledge=run.stop_reason)
        assert await rows_of(rt, run.run_id) == ALL


async def test_an_intent_that_is_written_by_hand_says_no_more_than_it_does() -> None:
    """§9.1: a mapping with a type; without a payload of its own the rest of it is that; without a key one is made, and it stands in no order."""
    graph: Graph[Note] = Graph("by_hand", Note, version="1")

    @graph.node(start=True)
    async def node(state: Note) -> dict[str, Any]:
        return {"intents": [{"type": "mail", "to": "ada"}, {"type": "mail", "payload": 7, "key": "mine", "order": "o"}]}

    box = Mailbox()
    async with Runtime("memory:", skills=[graph], transports={"mail": box}) as rt:
        run = await rt.invoke(graph, {})
        first, second = await rt.intents(run.run_id)
        assert (first.payload, first.order, second.payload, second.order) == ({"to": "ada"}, "", 7, "o")
        assert first.key.startswith(run.run_id) and second.key.endswith("mine")


HAND = [
    ({"key": 5}, "key"), ({"order": True}, "order"), ({"type": ""}, "type"), ({"type": "x" * 600}, "type"), ({"key": "x" * 600}, "key"), ({"key": "a\0"}, "key"), ({"ordr": "o"}, "ordr"),
]


@pytest.mark.parametrize(("wrong", "named"), HAND)
async def test_what_an_intent_written_by_hand_cannot_say(wrong: dict[str, Any], named: str) -> None:
    """§3.6, §9.1: what ``ctx.send`` refuses is refused here; nothing is turned into text, and nothing is left out unsaid."""
    graph: Graph[Note] = Graph("by_hand", Note, version="1")

    @graph.node(start=True)
    async def node(state: Note) -> dict[str, Any]:
        return {"intents": [{"type": "mail", "payload": 1, "key": None, "order": None}, {"type": "mail", "payload": 2, **wrong}]}

    async with Runtime("memory:", skills=[graph], transports={"mail": Mailbox()}) as rt:
        run = await rt.invoke(graph, {})
        assert run.condition == "failed" and run.error is not None and named in run.error.message
        assert await rt.intents() == []


async def test_an_intent_written_by_hand_with_no_key_gets_one() -> None:
    """§9.2: None is no key; as the text ``None`` it was the key of all of them, and a receiver that dedupes dropped all but one."""
    graph: Graph[Note] = Graph("by_hand", Note, version="1")

    @graph.node(start=True)
    async def node(state: Note) -> dict[str, Any]:
        return {"intents": [{"type": "mail", "payload": n, "key": None, "order": None} for n in range(2)]}

    box = Mailbox(dedupes=True)
    async with Runtime("memory:", skills=[graph], transports={"mail": box}) as rt:
        assert (await rt.invoke(graph, {})).condition == "done"
        assert [payload for payload, _ in box.got] == [0, 1]
        assert [i.order for i in await rt.intents()] == ["", ""]


@pytest.mark.parametrize("url", ["sqlite:///{}/a.db", "workspace:{}/ws"])
async def test_what_was_dropped_stays_dropped(url: str, tmp_path: Path) -> None:
    """§9.7: whoever opens the store again finds neither payload nor answer, and the rest as it was."""
    box, graph, place = Mailbox(), sender(steps=2), url.format(tmp_path)
    async with Runtime(place, skills=[graph], transports={"mail": box}) as rt:
        run = await rt.invoke(graph, {})
        before = await rt.intents(run.run_id)
        assert [(i.payload is not None, i.answer) for i in before] == [(True, "ok")] * 2
        assert await rt.store.drop_payloads(rt.store.now() + 1, 10) == 2
    async with Runtime(place, skills=[graph]) as rt:
        after = await rt.intents(run.run_id)
        assert [(i.payload, i.answer) for i in after] == [(None, None)] * 2
        assert [(i.key, i.state, i.attempts, i.settled_at) for i in after] == [(i.key, i.state, i.attempts, i.settled_at) for i in before]
        assert [p for p in await rt.check() if p.severity == "error"] == []


many: Graph[State] = Graph("sends_many", State, version="1")


@many.node(start=True)
async def send_many(state: State, ctx: Context) -> None:
    for n in range(160):
        ctx.send("mail", {"n": n})


async def test_what_one_receiver_takes_is_claimed_and_settled_in_groups(open_rt: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen intents to one receiver cost one claim and one settlement, and the end is found out by one claim more."""
    async with open_rt(skills=[many]) as rt:
        await rt.invoke(many, {})
    sent: list[int] = []

    async def mail(payload: Any, key: str) -> None:
        sent.append(payload["n"])

    async with open_rt(transports={"mail": mail}) as rt:
        calls: list[str] = []
        claim, settle = rt.store.claim_intents, rt.store.settle_intents

        async def claimed(*args: Any, **options: Any) -> Any:
            calls.append("claim")
            return await claim(*args, **options)

        async def settled(*args: Any, **options: Any) -> Any:
            calls.append("settle")
            return await settle(*args, **options)

        monkeypatch.setattr(rt.store, "claim_intents", claimed)
        monkeypatch.setattr(rt.store, "settle_intents", settled)
        assert await rt.dispatch(until_idle=True) == len(sent) == 160
        assert sorted(sent) == list(range(160))
        assert calls.count("settle") <= 10 and calls.count("claim") <= 11

"""The dispatcher: claims due intents, sends each through its transport, and settles the outcome (§9.1).

Theory of operation. Each dispatcher has one loop. It begins at once what it claims, so that its lease covers nothing that waits: it
claims no more than it has room for, and for each receiver no more than that receiver has lately been able to take (``outbox/pace.py``).
Each sending is a task. The outcomes of tasks are settled in groups, before more is claimed. Two dispatchers need not know of
each other: the store gives an intent to one of them, and accepts a settlement only from the one that has the intent.

A sender that dies leaves its intents claimed. The dispatcher that finds them decides with ``intents.next_move``: it sends again if the receiver drops
repeated keys, asks the transport, or leaves the decision to a person. An error of the store ends the dispatcher, which must not continue without a
working store (X-14). An error of a transport affects one intent.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast import logs
from holdfast.core import bounds, canon, intents
from holdfast.core import effects as fx
from holdfast.core.blobs import Blob
from holdfast.core.commands import Signal as SignalCommand
from holdfast.core.commit import InboxItem, LedgerRow, Settlement
from holdfast.core.errors import ErrorValue, HoldfastError, MaybeSent, PermanentError, RetryAfter, StoreError, UsageError
from holdfast.core.intents import Ask, Doubtful, Failed, Intent, IntentState, Late, LookUp, Outcome, Refused, Sent
from holdfast.core.lease import SAFE_PART, at_once
from holdfast.core.limits import Later, Limit, soon
from holdfast.handle import IntentView
from holdfast.outbox.hands import Hands, NotReached
from holdfast.outbox.pace import Lane, Pace
from holdfast.outbox.repeated import Said, leave_out, make_without, pack_without, tell_without
from holdfast.outbox.transports import Further, Given, NotConfigured, Route, Row, Signal, asynchronous, read_given
from holdfast.ports import NO_LIMITS, Clock, News, Store

POLL_SECONDS = 0.5
TURNS = 20  # turns of the event loop after a group: about what a short run needs for a step
AT_ONCE = 8  # intents that are begun in one turn of the event loop
GATHER_SECONDS = 0.005  # how long an outcome may wait for others, to be settled with them
SWEEP_SECONDS = 300.0
SWEEP_BATCH = 500
VERIFY_SECONDS = 30.0
CONFIGURED_US = 5_000_000  # how long an intent that this process cannot send is left to others
ENDED = "its sender was ended before it began"

log = logs.logger("holdfast.outbox")

class NotBegun(Exception):
    """The intent was not sent, because its lease may be over or another process has it: nothing has happened."""


class Shut(Exception):
    """Something that an intent needs before it can be sent is missing. ``after_us``: after what time to try again; 0 for never."""

    def __init__(self, why: str, after_us: int = 0) -> None:
        super().__init__(why)
        self.why = why
        self.after_us = after_us


LOOK_US = 50_000


class Sender:
    """What the dispatchers of one process send as: ``owner`` has their leases, and ``safe`` says whether something may begin under them.

    It knows which intents all of them hold, to tell an intent of a claim whose answer was lost from one that is being sent. For this, only one claim runs at a time.
    """

    def __init__(self, owner: str, safe: Callable[[], bool], ttl_us: int) -> None:
        self.owner = owner
        self.safe = safe
        self.ttl_us = ttl_us
        self._held: set[str] = set()
        self._doubt = False
        self._lock = asyncio.Lock()

    async def claim(self, claim: Callable[[Collection[str], bool], Awaitable[list[Intent]]]) -> list[Intent]:
        """Calls ``claim`` with the ids that are held and with whether there may be others, and returns its result. The claim continues if the caller is
        cancelled: await it as a task of its own."""
        async with self._lock:
            held, doubt, self._doubt = frozenset(self._held), self._doubt, True
            found = await claim(held, doubt)
            self._doubt = False
            self._held.update(i.intent_id for i in found)
        return found

    def forget(self, intent_ids: Iterable[str]) -> None:
        """Notes that these intents are no longer held."""
        self._held.difference_update(intent_ids)


class Dispatcher:
    """Sends the intents for which it has routes. ``link`` makes the text that replaces ``{wait_link}`` in an intent.

    ``settled``: how many intents were settled; ``put_off``: until when (``clock.monotonic``) an intent waits for a question to be asked.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        sender: Sender,
        routes: Mapping[str, Route],
        link: Callable[[Intent], Awaitable[tuple[Intent, str]]],
        *,
        pace: Pace | None = None,
        limits: Mapping[str, Limit] = NO_LIMITS,
    ) -> None:
        self._store = store
        self._clock = clock
        self._sender = sender
        self._routes = routes
        self._link = link
        self._pace = pace or Pace(served=store.has_server)
        self._limits = limits
        self._tasks: dict[asyncio.Task[None], Intent] = {}
        self._claiming: asyncio.Task[list[Intent]] | None = None
        self._done: list[Settlement] = []
        self._leaving: set[str] = set()
        self._news = asyncio.Event()
        self._hands: Hands | None = None
        self._hooks: Hands | None = None
        self._rest: float | None = None
        self._swept = float("-inf")
        self._renewed = float("-inf")
        self.settled = 0
        self.put_off = float("-inf")

    # -- the loop -----------------------------------------------------------------------------------

    async def run(self, *, stop: asyncio.Event | None = None, until_idle: bool = False, run_id: str | None = None) -> int:
        """Sends until ``stop`` is set; with ``until_idle`` until nothing is due; with ``run_id`` only that run's intents.

        Sendings in progress are finished first. Returns how many intents were settled.

        Raises:
            StoreError: the store failed; nothing is reported as sent that is not settled.
        """
        before = self.settled
        watch = asyncio.ensure_future(self._watch(stop))
        watch.add_done_callback(lambda _: self._news.set())
        try:
            while True:
                stopping = stop is not None and stop.is_set()
                await self._settle()
                await self._give_way()
                found = [] if stopping else await self._claim(run_id)
                for n, intent in enumerate(found, 1):
                    task = asyncio.ensure_future(self._one(intent, self._clock.monotonic()))
                    self._tasks[task] = intent
                    task.add_done_callback(lambda _: self._news.set())
                    if n % AT_ONCE == 0:  # a run beside it does not have to wait until the whole group is begun
                        await asyncio.sleep(0)
                await self._give_way()
                if not found and not self._tasks and not self._done and (stopping or until_idle):
                    return self.settled - before
                if run_id is None and not stopping:
                    await self._sweep()
                await self._pause(bool(found))
                if watch.done() and not stopping:
                    watch.result()
        except StoreError:
            if self._tasks:  # an error of the store is no reason to cut sendings off: they are finished
                await asyncio.wait(self._tasks)
            raise
        finally:
            watch.cancel()
            await asyncio.shield(self._break_off())

    async def _watch(self, stop: asyncio.Event | None) -> None:
        """Watches for changes in one task that stays, because a store tells each task what it has not told this task yet."""
        stopped = asyncio.ensure_future(stop.wait()) if stop is not None else None
        if stopped is not None:
            stopped.add_done_callback(lambda _: self._news.set())
        try:
            while True:
                await self._store.wait_for_change(POLL_SECONDS, News.OUTBOX)
                self._news.set()
                await asyncio.sleep(0)  # a store that was closed meanwhile returns at once
        finally:
            if stopped is not None:
                stopped.cancel()

    async def _pause(self, busy: bool) -> None:
        if busy:
            await asyncio.sleep(0)
        if not self._done:
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._news.wait()
            except TimeoutError:
                pass
        if self._done and self._tasks:
            await asyncio.wait(self._tasks, timeout=GATHER_SECONDS)
        self._news.clear()
        for task in [t for t in self._tasks if t.done()]:
            del self._tasks[task]
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        await self._renew()

    async def _break_off(self) -> None:
        """Cuts off what is still being sent, and records what is known of it."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks.clear()
        claiming, self._claiming = self._claiming, None
        if claiming is not None:  # this task was ended before the claim was answered, or the store failed
            await asyncio.wait([claiming])
            for intent in [] if claiming.cancelled() or claiming.exception() is not None else claiming.result():
                self._done.append(Settlement(intent, intents.after(intent, Late(ENDED), self._routes[intent.type].how, self._store.now())))
        with contextlib.suppress(StoreError):  # what cannot be recorded is found by the next sender, after this sender's lease
            await self._settle()

    async def _claim(self, run_id: str | None) -> list[Intent]:
        if not self._routes:
            return []
        free, room = self._pace.room(i.lane for i in self._tasks.values())
        if free <= 0 or not self._sender.safe():
            return []

        def claim(held: Collection[str], doubt: bool) -> Awaitable[list[Intent]]:
            return self._store.claim_intents(
                self._sender.owner, tuple(self._routes), limit=free, ttl_us=self._sender.ttl_us, each=self._pace.each, room=room, run_id=run_id, held=held, doubt=doubt
            )

        began = self._clock.monotonic()
        self._claiming = asyncio.ensure_future(self._sender.claim(claim))
        found = await asyncio.shield(self._claiming)
        self._claiming = None
        self._rest = self._pace.wrote(len(found), self._clock.monotonic() - began)
        return found

    async def _give_way(self) -> None:
        """Gives runs a turn after a group's transaction: those of this event loop, and if the transaction took long, other writers as well."""
        rest, self._rest = self._rest, None
        if rest is None:
            return
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if rest:
            await asyncio.sleep(rest)

    async def _renew(self) -> None:
        """Renews the leases of sendings that take long, such as speech or an upload, so that no other dispatcher takes them."""
        now = self._clock.monotonic()
        if not self._tasks:
            self._renewed = now
        elif now - self._renewed >= self._sender.ttl_us / 3_000_000 and self._sender.safe():
            await self._store.renew_intents(self._sender.owner, self._sender.ttl_us)
            self._renewed = now

    async def _sweep(self) -> None:
        """Drops the payloads of intents that were settled a day ago (§9.7), a batch at a time."""
        now = self._clock.monotonic()
        if now - self._swept >= SWEEP_SECONDS:
            dropped = await self._store.drop_payloads(self._store.now() - intents.RETENTION_US, SWEEP_BATCH)
            self._swept = now if dropped < SWEEP_BATCH else self._swept

    # -- settling -----------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Records the outcomes in one transaction; if that is refused, because a hook's signal has no receiver, each in its own."""
        if self._leaving:
            await self._leave()
        done, self._done = self._done, []
        if not done:
            return
        began = self._clock.monotonic()
        try:
            kept = await self._store.settle_intents(done)
        except StoreError:
            self._done = [*done, *self._done]  # the outcomes are recorded when the store works again
            raise
        except HoldfastError:
            kept = [await self._alone(s) for s in done]
        self._sender.forget(s.before.intent_id for s in done)
        self.settled += sum(kept)
        for s, held in zip(done, kept, strict=True):
            if held:
                logs.tell_settled(s.after)
            else:
                log.warning("%s was taken over while it was sent as attempt %d: its outcome is not recorded", s.after.intent_id, s.before.attempts)
                if (late := self._routes[s.after.type].late) is not None:
                    await late(self._store, s.after)
        self._rest = self._pace.wrote(len(done), self._clock.monotonic() - began)

    async def _alone(self, s: Settlement) -> bool:
        try:
            return (await self._store.settle_intents([s]))[0]
        except StoreError:
            raise
        except HoldfastError as e:
            after = replace(s.after, detail=f"sent; what on_response gave was not kept: {e.message}"[:1000])
            return (await self._store.settle_intents([Settlement(s.before, after)]))[0]

    # -- one intent ---------------------------------------------------------------------------------

    async def _one(self, intent: Intent, began: float) -> None:
        route = self._routes[intent.type]
        before = intent
        try:
            move = intents.next_move(intent, route.how)
            if isinstance(move, LookUp):
                intent, settled, said = await self._look_up(intent, route, move)
                if settled is not None:
                    await self._end(before, intent, settled, route, said)
                    return
            elif isinstance(move, Ask):
                self._done.append(Settlement(before, intents.ask(intent, move.why, self._store.now())))
                return
            intent, outcome, said = await self._send_one(intent, route, began)
        except StoreError:
            raise
        except Exception as e:  # an error of one intent is recorded on it and affects no other
            outcome, said = Failed(ErrorValue.of(e)), Said()
        self._pace.note(intent.lane, outcome, self._clock.monotonic() - began)
        if isinstance(outcome, Late) and outcome.after_us and outcome.error is None and route.limit is None:
            self.put_off = self._clock.monotonic() + outcome.after_us / 1_000_000
        after = intents.after(intent, outcome, route.how, self._store.now())
        await self._end(before, intent, after, route, said)

    async def _end(self, before: Intent, intent: Intent, after: Intent, route: Route, said: Said) -> None:
        """Adds what is to be settled; if the intent was sent, by any attempt, together with what the transport's hook returns."""
        hooked = after.state is IntentState.SENT and route.on_response is not None
        found = await self._call_hook(intent, after, route, said) if hooked else Settlement(before, after)
        self._done.append(replace(found, before=before))  # added only after the hook, because others may be settled meanwhile

    async def _look_up(self, intent: Intent, route: Route, move: LookUp) -> tuple[Intent, Intent | None, Said]:
        """Asks the transport about an attempt that was lost. Returns the intent to send; the settled intent, or None if it must be sent; and the answer."""
        assert route.verify is not None
        link = await self._find_link(intent)
        try:
            async with asyncio.timeout(VERIFY_SECONDS):
                answer = fx.read_answer(await self._call(intent.lane, route.verify, canon.thaw(canon.decode(intent.payload)), intent.key), f"verify of {intent.type}")
        except (Exception, SystemExit) as e:  # the hook is user code; if it raises or hangs, the answer is unknown
            answer = fx.Unknown(f"verify raised {type(e).__name__}: {e}")
        now = self._store.now()
        match answer:
            case fx.Happened(result):
                sent = Sent(pack_without(result, link), "verified: it had been sent")
                return intent, intents.after(intent, sent, route.how, now), Said(result, link)
            case fx.Absent() if move.closed:
                return intents.note_absent(intent), None, Said()
            case fx.Absent():
                return intent, intents.ask(intent, intents.MAY_LIVE, now), Said()
            case fx.Unknown(why):
                return intent, intents.ask(intent, leave_out(why, link) or intents.SENDER_LOST, now), Said()

    async def _find_link(self, intent: Intent) -> str | None:
        """Returns the link that was sent with an intent, if there was one and this process has the secret of links."""
        if not intent.wait_id or intents.WAIT_LINK.encode() not in intent.payload:
            return None
        try:
            return (await self._link(intent))[1]
        except (NotConfigured, Shut):
            return None

    async def _send_one(self, intent: Intent, route: Route, began: float) -> tuple[Intent, Outcome, Said]:
        """Sends one intent. Returns the intent as it was sent, the outcome without the link that was sent, and the receiver's answer."""
        links: list[str] = []
        intent, outcome, answer = await self._try_to_send(intent, route, began, links)
        link = links[0] if links else None
        if isinstance(outcome, Sent):
            return intent, replace(outcome, answer=pack_without(answer, link)), Said(answer, link)
        return intent, tell_without(outcome, link), Said()

    async def _try_to_send(self, intent: Intent, route: Route, began: float, links: list[str]) -> tuple[Intent, Outcome, Any]:
        """Does the same, with the outcome as the receiver gave it. The link that is sent is added to ``links``."""
        try:
            payload = canon.thaw(canon.decode(intent.payload))
            limit = route.limit
            if route.admit is not None:
                limit = await route.admit(self._store, intent)
            elif intents.WAIT_LINK.encode() in intent.payload:
                intent, link = await self._link(intent)
                links.append(link)
                payload = _fill(payload, link)
            if limit is None:
                answer = await self._act(route, intent.lane, payload, intent.key, began)
            elif (later := await self._enter(intent, limit)) is not None:
                return intent, Late(later.why, max(0, later.at - self._store.now())), None
            else:
                try:
                    answer = await self._act(route, intent.lane, payload, intent.key, began)
                finally:
                    self._leaving.add(intent.intent_id)
                    await asyncio.shield(self._leave())
        except (NotBegun, NotReached) as e:
            return intent, Late(str(e)), None
        except NotConfigured as e:
            return intent, Late(str(e.error), CONFIGURED_US, ErrorValue.of(e.error)), None
        except Shut as e:
            return intent, Late(e.why, e.after_us) if e.after_us else Refused(ErrorValue.of(PermanentError(e.why))), None
        except asyncio.CancelledError as e:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                return intent, Doubtful(ErrorValue.of(MaybeSent("its sender was ended while it was sending"))), None
            return intent, Failed(ErrorValue.of(e)), None
        except TimeoutError:
            return intent, Doubtful(ErrorValue.of(MaybeSent(f"there was no answer within {route.timeout:g} s"))), None
        except RetryAfter as e:
            return intent, Failed(ErrorValue.of(e), int(e.seconds * 1_000_000)), None
        except (PermanentError, UsageError) as e:
            return intent, Refused(ErrorValue.of(e)), None
        except MaybeSent as e:
            return intent, Doubtful(ErrorValue.of(e)), None
        except StoreError:
            raise
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as e:  # a transport is user code and may raise anything
            tried_again = isinstance(e, route.on) or not isinstance(e, Exception)
            return intent, Failed(ErrorValue.of(e)) if tried_again else Refused(ErrorValue.of(e)), None
        return intent, Sent(), answer

    async def _enter(self, intent: Intent, limit: str) -> Later | None:
        """Acquires a limit for one sending, or returns when to try again; waits if there is room within a second (§10.11)."""
        began = self._clock.monotonic()
        try:
            while (later := await self._store.enter(self._sender.owner, intent.run_id, intent.intent_id, {limit: self._limits.get(limit)})) is not None:
                now = self._store.now()
                if not soon(later, self._clock.monotonic() - began, now):
                    return later
                await self._clock.sleep(min(max(later.at - now, 1_000), LOOK_US) / 1_000_000)
        except BaseException:
            self._leaving.add(intent.intent_id)  # it may hold the limit nevertheless
            raise
        return None

    async def _leave(self) -> None:
        """Gives back limits that are no longer held. If the store fails, they are given back with the next settlement."""
        places = list(self._leaving)
        try:
            await self._store.leave(self._sender.owner, places)
        except StoreError:
            return  # this owner holds the limit until then, or until its lease ends
        self._leaving.difference_update(places)

    async def _act(self, route: Route, lane: Lane, payload: Any, key: str, began: float) -> Any:
        def gate() -> None:
            """Checks the lease immediately before the sending, in the thread that sends (§6.5)."""
            if self._clock.monotonic() - began > self._sender.ttl_us * SAFE_PART / 1_000_000:
                raise NotBegun("its turn came when its lease was nearly over")
            if not self._sender.safe():
                raise NotBegun("the lease may have been lost")

        def act_in_thread() -> Any:
            gate()
            return route.send(payload, key)

        async with asyncio.timeout(route.timeout):
            if not route.threaded:
                gate()
                return await route.send(payload, key)
            self._hands = self._hands or Hands(self._pace.each)
            value = await self._hands.do(lane, act_in_thread)
            return await value if isinstance(value, Awaitable) else value

    # -- hooks --------------------------------------------------------------------------------------

    async def _call(self, lane: Lane, hook: Callable[..., Any], *args: Any) -> Any:
        """Returns what a hook returns. An asynchronous hook is awaited; a plain one is called in one of the threads that its receiver has for hooks."""
        if asynchronous(hook):
            return await hook(*args)
        self._hooks = self._hooks or Hands(self._pace.each)
        value = await self._hooks.do(lane, functools.partial(hook, *args))
        return await value if isinstance(value, Awaitable) else value

    async def _call_hook(self, intent: Intent, after: Intent, route: Route, said: Said) -> Settlement:
        """Returns the settlement with what the transport's hook returns (§9.5). If the hook fails, that is noted on the intent, which was sent nevertheless."""
        assert route.on_response is not None
        try:
            async with asyncio.timeout(route.timeout):
                values = read_given(await self._call(intent.lane, route.on_response, IntentView.of(after), leave_out(said.answer, said.link)))
            return self._beside(intent, after, [make_without(value, said.link) for value in values])
        except (Exception, SystemExit) as e:  # the hook is user code and may raise anything
            told = leave_out(f"sent; on_response failed: {type(e).__name__}: {e}", said.link)
            return Settlement(intent, replace(after, detail=told[:1000]))

    def _beside(self, intent: Intent, after: Intent, values: Sequence[Given]) -> Settlement:
        now = self._store.now()
        ledger: list[LedgerRow] = []
        puts: list[InboxItem] = []
        more: list[Intent] = []
        kept: list[Blob] = []
        for n, value in enumerate(values, 1):
            key = f"{intent.key}:{n}"
            match value:
                case Row(topic, row_key, data):
                    topic, row_key = bounds.text(topic, "topic"), bounds.text(row_key, "key", empty=True)
                    step = intent.intent_id.rpartition("!")[0]
                    ledger.append(LedgerRow(intent.run_id, topic, row_key, canon.pack(data, "ledger")[1], now, step))
                case Signal(name, payload, signal_key, run_id):
                    name, signal_key, run_id = bounds.check_signal(name, "name"), bounds.text(signal_key, "key", empty=True), bounds.text(run_id, "run_id", empty=True)
                    command = SignalCommand(name=name, signal_key=signal_key or key, payload=canon.pack(payload, "payload")[1], actor=f"intent:{intent.intent_id}")
                    puts.append(InboxItem(run_id=run_id or intent.run_id, key=command.key, command=command, put_at=now))
                case Blob():
                    kept.append(value)
                case Further(type_, payload, order):
                    type_, order = bounds.text(type_, "type"), bounds.text(order, "order", empty=True)
                    data = canon.pack(payload, "intent")[1]
                    more.append(
                        Intent(
                            intent_id=f"{intent.intent_id}:{n}", run_id=intent.run_id, type=type_, payload=data, key=key, order_key=order, created_at=now,
                            due=at_once(now), tenant_id=intent.tenant_id, target=intents.target(payload), digest=intents.digest(type_, data),
                        )
                    )
        return Settlement(intent, after, tuple(ledger), tuple(puts), tuple(more), tuple(kept))


def _fill(value: Any, link: str) -> Any:
    """Returns the value with the link in place of ``{wait_link}``."""
    if isinstance(value, str):
        return value.replace(intents.WAIT_LINK, link)
    if isinstance(value, Mapping):
        return {_fill(k, link): _fill(v, link) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_fill(v, link) for v in value]
    return value


__all__ = ["Dispatcher", "NotBegun", "Sender", "Shut"]

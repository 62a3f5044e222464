"""Side effects under a key: record the attempt, act, record the result (§6.2).

Theory of operation. A call is answered from the record at its place. Otherwise it is judged by the records under its key (``core.effects.judge``): reused, carried
out, waited for, verified, or asked about. To carry it out takes three moves, and a crash may fall between any two: the attempt is durable before the act; the gate is
asked in the thread that acts; the result is durable before it is used. An attempt without a result is unknown, and is never simply repeated: the receiver deduplicates
by the key, or the user's ``verify`` finds out, or the run rests in a wait of kind ``effect``. An owner that is too late closes its own attempt by a compare-and-set, or
leaves its result as evidence.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from typing import Any, NoReturn

import msgspec
from msgspec.structs import replace

from holdfast.core import canon, commands, compensation, ids, intents, views
from holdfast.core import effects as fx
from holdfast.core import events as ev
from holdfast.core.called import Call, Called
from holdfast.core.checkpoint import StepRecord
from holdfast.core.commit import InboxItem
from holdfast.core.effects import LEDGERED, Effect, EffectClass, EffectStatus, ReplayPolicy, effect_key
from holdfast.core.errors import (
    AttemptMayLive,
    Conflict,
    EffectAbandoned,
    EffectConflict,
    EffectFailed,
    EffectInProgress,
    HoldfastError,
    InvalidInput,
    LeaseLost,
    RecordDamaged,
    StepFailure,
    StepTimeout,
    TooLarge,
    Unserializable,
)
from holdfast.core.lease import Alive
from holdfast.core.masks import mask
from holdfast.core.payloads import hold_open
from holdfast.core.retry import ONCE, Retry
from holdfast.core.toolcalls import place_of
from holdfast.core.waits import ABANDON, APPROVE, DENY, HALT, HOW_TO_KEEP, RECORD_RESULT, REEXECUTE, Decision, WaitKind
from holdfast.engine.base import failures
from holdfast.engine.base.failures import record
from holdfast.engine.base.journal import Act, Draft
from holdfast.engine.base.services import Services
from holdfast.engine.calls import retries, steps, undos, words
from holdfast.engine.calls.attempt import Attempt, Restart, Suspend
from holdfast.engine.calls.elsewhere import Elsewhere
from holdfast.engine.calls.functions import LAMBDA, Patience, accepts_key, asynchronous, attempting, call, describe_function, name_of
from holdfast.engine.calls.holds import hold
from holdfast.engine.calls.waits import Ask, Redo, request
from holdfast.engine.desk import door
from holdfast.engine.look.snapshot import whole

VERIFY_TIMEOUT_US = 30_000_000
PATIENCE_US = 60_000_000
LOOK_SECONDS = 0.05
SUMMARY_CHARS = 2_000
SHOWN_CHARS = 4_096
QUESTIONS = {
    fx.OUTCOME_UNKNOWN: "{name} was attempted, and its outcome is unknown. Check with its receiver, then record what happened.",
    fx.MAY_LIVE: "{name} does not seem to have happened, but the process that attempted it may still be alive. Check with its receiver, then record what happened.",
    fx.REPLAY: "{name} was done before. Approve to use its recorded result, or have it done again.",
    fx.OTHER_ARGUMENTS: "{name} was done here before, with other arguments. Approve to use its recorded result, or have it done with the new arguments.",
    fx.GIVEN_UP: "{name} was abandoned by decision. Should it be done after all?",
    fx.ARGUMENTS_CHANGED: "{name} was attempted with other arguments, and its outcome is unknown. Check with its receiver, then record what happened, or have it done with the new arguments.",
    fx.CALL_CHANGED: "{name} was attempted, and its outcome is unknown. The code now calls {now} in its place. Check with the receiver of {name}, "
    "then record its result, or abandon it if it was not done. {now} is done after that.",
}
MAYBE_UNDONE = (
    "{name} was done, and may have been undone: {undo} was attempted, and its outcome is unknown. Check with its receiver. "
    "Record the result of {undo} if it was undone, and {name} is done again; abandon {undo} if it was not."
)

_AS_GATE, _ABOUT_OUTCOME = (WaitKind.GATE, (APPROVE, REEXECUTE, DENY)), (WaitKind.EFFECT, (RECORD_RESULT, REEXECUTE, ABANDON, HALT))
_ANSWERS = {
    fx.OUTCOME_UNKNOWN: _ABOUT_OUTCOME,
    fx.MAY_LIVE: _ABOUT_OUTCOME,
    fx.REPLAY: _AS_GATE,
    fx.OTHER_ARGUMENTS: _AS_GATE,
    fx.GIVEN_UP: (WaitKind.EFFECT, (REEXECUTE, ABANDON, HALT)),
    fx.ARGUMENTS_CHANGED: _ABOUT_OUTCOME,
    fx.CALL_CHANGED: (WaitKind.EFFECT, (RECORD_RESULT, ABANDON, HALT)),
}
"""As which kind of wait each question is asked, and what may be answered."""
OWNER_DEAD = "owner_dead"
LOST = "the lease may have been lost"
GIVEN_UP = "its call was canceled before it began"

LEFT, NOW = "left behind for a call with other arguments, as", "now"

# Owners of this process that were closed. They act no more, and nothing else proves that (§2.9).
closed_owners: set[str] = set()


class Options(msgspec.Struct, frozen=True):
    """The user's options of one effect. ``undoes``: the effect that this one undoes (§6.11); ``show``: what a question about it shows, by default its arguments;
    ``elsewhere``: the runners that carry it out instead of this process (§11.3); ``told``: turns a person's answer into the call's value, and refuses an answer
    that is no value; without it the answer itself is the value."""

    key: str | None = None
    side_effects: str = "external_action"
    idempotent: bool = False
    replay: str | None = None
    verify: Callable[..., Any] | None = None
    undo: Callable[..., Any] | None = None
    timeout_us: int = 60_000_000
    timed: bool = True
    retry: Retry = ONCE
    name: str = ""
    cooperative: bool = True
    undoes: Effect | None = None
    show: Any = None
    limit: str | None = None
    elsewhere: Elsewhere | None = None
    told: Callable[[Any], Callable[[], Awaitable[Any]]] | None = None


class NotBegun(Exception):
    """The gate was closed when the act was to begin (§6.5). ``late``: only because the lease could not be confirmed in time."""

    def __init__(self, why: str, *, late: bool = False) -> None:
        super().__init__(why)
        self.late = late


async def perform(attempt: Attempt, fn: Callable[..., Any], args: tuple[Any, ...], options: Options) -> Any:
    """Runs one effect at its place: returns its recorded result, or records the attempt, carries it out and records the result.

    Raises:
        EffectConflict: the key is recorded with another request (§6.3).
        EffectInProgress: another caller has been carrying it out for longer than its timeout (§6.8).
        Suspend: a person must say what happened (§6.5).
    """
    name = options.name or name_of(fn)
    if EffectClass(options.side_effects) not in LEDGERED:
        return await steps.step(
            attempt, fn, args, key=options.key, retry=options.retry, patience=Patience(options.timeout_us, own=options.timed), name=options.name or None,
            limit=options.limit,
        )
    places = attempt.places
    with places.open(name, options.key) as path:
        if options.undo is not None:
            _keep_undo(attempt, path, options.undo)
        digest = _request(attempt, name, args, options) if (attempt.key, path) in attempt.journal.progress.outdated else ""
        record = places.lookup(Call(path, name, "effect", digest, args))
        return await _answer(attempt, fn, args, options, name, path, record, places.scope().item)


async def perform_at(attempt: Attempt, path: str, fn: Callable[..., Any], args: tuple[Any, ...], options: Options) -> Any:
    """Runs an effect at a given path, for a node that declares itself an effect."""
    return await perform_once(attempt, fn, args, options, options.name, path)


async def perform_once(attempt: Attempt, fn: Callable[..., Any], args: tuple[Any, ...], options: Options, name: str, path: str) -> Any:
    """Runs an effect at a place that is open."""
    if options.undo is not None:
        _keep_undo(attempt, path, options.undo)
    digest = _request(attempt, name, args, options) if (attempt.key, path) in attempt.journal.progress.outdated else ""
    record = attempt.places.lookup(Call(path, name, "effect", digest, args))  # different arguments do not matter if nothing before it is outdated: the act is done
    return await _answer(attempt, fn, args, options, name, path, record, attempt.places.scope().item)


def _keep_undo(attempt: Attempt, path: str, undo: Callable[..., Any]) -> None:
    undos.keep(attempt.services.undos, ids.step_id(attempt.journal.run.run_id, attempt.step, attempt.key, path), undo)


def _request(attempt: Attempt, name: str, args: tuple[Any, ...], options: Options) -> str:
    """Returns the digest of an effect's request (§6.3)."""
    return canon.fingerprint([name, list(args)], "" if options.key is not None else attempt.journal.run.run_id)


async def _answer(
    attempt: Attempt, fn: Callable[..., Any], args: tuple[Any, ...], options: Options, name: str, path: str, record: StepRecord | None, item: str
) -> Any:
    """Returns the recorded result at this place. Only if there is none, keys are derived and records looked up. A failure that is to be retried does not count (§10.9)."""
    if record is not None:
        return await attempt.give(record)
    return await Performance(attempt, fn, args, options, name, path, item).run()


class Performance:
    """One call of ``ctx.effect`` at its place. ``item``: a short form of the map item that it belongs to."""

    def __init__(self, attempt: Attempt, fn: Callable[..., Any], args: tuple[Any, ...], options: Options, name: str, path: str, item: str = "") -> None:
        self.attempt = attempt
        self.fn = fn
        self.args = args
        self.options = options
        self.name = name
        self.path = path
        self.services: Services = attempt.services
        self.journal = attempt.journal
        self.store = self.services.store
        self.request = _request(attempt, name, args, options)
        run, echo = self.journal.run, self.journal.echo
        self.shared = options.key is not None
        self.policy = fx.strictest(fx.strictest(options.replay, run.replay_effects), self.services.place.replay)
        scope = run.lineage_root if echo is None else echo.scope
        self._own = options.key or f"{attempt.step}.{attempt.key}.{path}"
        self.key = effect_key(run.tenant_id, "effect", name if self.shared else scope, self._own)
        # A replay that acts again uses a key of its own, so that later replays still find the source's record.
        self.apart = self.key if self.shared or echo is None else self._key(run.run_id)
        if self.policy is ReplayPolicy.REEXECUTE:
            self.key = self.apart
        if options.undoes is not None:
            self.key = self.apart = fx.undo_key(options.undoes.key)
            self.request = canon.fingerprint([name, options.undoes.effect_id])
        self.records: list[Effect] = []
        self.act = self.about = self.found = ""
        self.called = Called(name if name != LAMBDA else describe_function(fn, name), item)
        self.seen: list[Effect] = []  # all attempts that were found here, of this run or of its ancestors
        self.doubted: Effect | None = None  # this run's own record of an ancestor's act about which a person is asked
        self.given_up = False  # its node or its branch was canceled

    def _key(self, scope: str) -> str:
        return effect_key(self.journal.run.tenant_id, "effect", scope, self._own)

    # -- deciding -----------------------------------------------------------------------------------

    async def run(self) -> Any:
        """Returns the effect's result, from a record under its key or by carrying it out now."""
        if self.journal.echo is not None and self.policy is ReplayPolicy.USE_RECORDED and (echoed := self._find_echo()) is not None:
            return await self._replay(echoed)
        until: int | None = None
        answered = ""  # the key under which an answer was looked for
        while True:
            if self.options.elsewhere is not None and answered != self.key:
                done, value = await self._take_answer(self.options.elsewhere)
                if done:
                    return value
                answered = self.key
            verdict = await self._judge()
            if isinstance(verdict, fx.Verify):
                answer = await self._verify()
                if isinstance(answer, fx.Happened):
                    return await self._settle(verdict.effect, *canon.pack(answer.result, f"verify of {self.name}"))
                verdict = fx.verify(verdict.effect, answer, verdict.closed)
            match verdict:
                case fx.Reuse(effect):
                    return await self._reuse(effect)
                case fx.Beside():
                    self._stand_apart()
                    continue
                case fx.Mismatch():
                    raise EffectConflict(
                        f"the key of {self.name} ({self.options.key or self.path}) is recorded with other arguments",
                        hint="use another key, or the same arguments" if self.options.key else f"holdfast fork {self.journal.run.run_id}, whose effects have keys of their own",
                    )
                case fx.InProgress(effect):
                    now = self.services.clock.now()
                    until = now + (self.options.timeout_us or PATIENCE_US) if until is None else until
                    if now >= until:
                        raise EffectInProgress(f"{self.name} is under way in the run {effect.run_id}", hint="resume this run after that one has ended")
                    await self.journal.asking(self.store.wait_for_change(LOOK_SECONDS))
                    continue
                case fx.Doubt(effect, undo):
                    done, value = await self._ask_whether_undone(effect, undo)
                    if done:
                        return value
                case fx.Ask():
                    done, value = await self._ask(verdict)
                    if done:
                        return value
                case fx.Act(over, same):
                    await self._may_retry()
                    done, value = await self._act(over, same)
                    if done:
                        return value

    def _find_echo(self) -> StepRecord | None:
        """Returns what the source of a replay recorded here, if it is the very same call."""
        echoed = self.journal.find_echo(self.attempt.key, self.path)
        if echoed is None:
            return None
        if (echoed.kind, echoed.name) != ("effect", self.name):
            if self.journal.echo is not None and (self.attempt.step, self.attempt.key, self.path) in self.journal.echo.outdated:
                return None
            raise self.attempt.places.mismatch(self.path, f"effect {self.name}")
        return echoed if echoed.digest in ("", self.request) else None

    def _of_source(self) -> Effect | None:
        """Returns the source's effect at this place."""
        here = (self.attempt.step, self.attempt.key, self.path)
        echo = self.journal.echo
        return None if echo is None else next((e for e in reversed(echo.effects) if (e.step, e.task, e.path) == here), None)

    async def _hold_open(self, found: list[Effect]) -> list[Effect]:
        """Returns the records with all that they hold. Records of other runs may be encrypted under a key that this process lacks; that is found out here, before anything
        that depends on them is recorded (§14.5)."""
        for effect in found:
            hold_open(effect)
        return found

    async def _on_record(self, key: str) -> tuple[str, list[Effect]]:
        """Returns the records under a key, or under the key that replaced it if its effect was undone."""
        records = await self.journal.asking(self.store.effects(key=key))
        self.seen += records
        while (later := fx.successor(key, records)) is not None:
            key, records = later, await self.journal.asking(self.store.effects(key=later))
            self.seen += records
        return key, records and await self.journal.asking(self._hold_open(records))

    def _stand_apart(self) -> None:
        """Switches to a key that no other request has at this place."""
        self.key = self.apart = f"{self.key}~{self.request[:16]}"

    async def _find_beside(self) -> list[Effect]:
        """Finds the attempt with an unknown outcome that was made at this place with another request, under another key (decision 127)."""
        here = (self.attempt.step, self.attempt.key, self.path)
        if self.attempt.before is None:
            self.attempt.before = await self.journal.asking(self.store.effects(self.journal.run.run_id))
        mine = [e for e in self.attempt.before if (e.step, e.task, e.path) == here]
        self.seen += mine
        for key in dict.fromkeys(e.key for e in mine if not e.shared and e.key != self.key):
            for effect in await self.journal.asking(self.store.effects(key=key)):
                if effect.open and effect.run_id == self.journal.run.run_id and self._is_changed(effect):
                    return [effect]
        return []

    def _is_changed(self, effect: Effect) -> bool:
        """Whether a record is about another request than this call's. A record that was rebuilt from the log may lack its request."""
        return effect.request_hash not in ("", self.request)

    async def _judge(self) -> fx.Verdict:
        self.key, self.records = await self._on_record(self.key)
        echo = self.journal.echo
        if echo is not None and not self.shared and self.options.undoes is None:
            aside: list[Effect] = [] if self.apart == self.key else await self.journal.asking(self.store.effects(key=self.apart))
            if aside:
                self.key, self.records = await self._on_record(self.apart)
            elif self.policy is not ReplayPolicy.REEXECUTE and all(e.status is EffectStatus.REUSED for e in self.records):
                # A fork has keys of its own; an act of its ancestors here with the same arguments is not repeated, however often it is called.
                here = (self.attempt.step, self.attempt.key, self.path)
                self.records = [e for e in echo.effects if (e.step, e.task, e.path) == here and not e.shared and e.request_hash == self.request]
                self.seen += self.records
            elif self.journal.run.origin == door.REPLAY and self.policy is not ReplayPolicy.REEXECUTE and (there := self._of_source()) is not None and there.key != self.key:
                # Its source attempted this call under a key beside, or another one at last: neither is passed over for what it left behind before.
                if there.request_hash not in ("", self.request):
                    return fx.Mismatch(there)
                self.key, self.records = await self._on_record(there.key)
        run = self.journal.run
        if not self.records and (run.decisions or run.waits) and self.policy is not ReplayPolicy.REEXECUTE and await self.journal.asking(self._lacks_what_was_asked_about()):
            await self.journal.asking(self._miss())
        if self.records and self.options.undoes is None and (verdict := await self._judge_undo()) is not None:
            return verdict
        if self.records and not self.shared and self.options.undoes is None:
            self.records = [*self.records, *await self._find_beside()]
        alive = Alive.UNKNOWN
        if self.records and (known := next((e for e in reversed(self.records) if e.open), None)) is not None:
            alive = await self.journal.asking(alive_now(self.services, known))
        asked = fx.Asked(
            request=self.request,
            run_id=run.run_id,
            place=(self.attempt.step, self.attempt.key, self.path),
            fence=self.journal.fence,
            idempotent=self.options.idempotent,
            verifiable=self.options.verify is not None,
            policy=self.policy,
            name=self.name,
            lineage_root=run.lineage_root if self.options.undoes is None else "",  # an abandoned undo is due again with the next end that undoes effects
            placed=not self.shared,
        )
        return fx.judge(self.records, asked, alive)

    async def _miss(self) -> NoReturn:
        """Returns the store's error for a record that is known to be lost."""
        raise RecordDamaged("effect", self.journal.run.run_id, self.key, missing=True)

    async def _lacks_what_was_asked_about(self) -> bool:
        """Whether a person was asked about an attempt here whose record is gone."""
        here, mine = f"{self.path}?", f"{self.journal.run.run_id}."
        asked = [w.effect_id for (task, path), w in self.journal.progress.questions.items() if task == self.attempt.key and path.startswith(here)]
        acts = {act for act in asked if act is not None and act.startswith(mine)}
        return bool(acts) and not acts.issubset([e.effect_id for e in await self.store.effects(self.journal.run.run_id)])

    async def _judge_undo(self) -> fx.Verdict | None:
        """Returns what to do if the recorded effect is being undone, or may have been; None if it stands, or there is none."""
        last = next((e for e in reversed(self.records) if e.status is EffectStatus.RECORDED), None)
        if last is None or last.undone or not last.undo or last.request_hash != self.request:
            return None
        undo = fx.find_undo(await self.journal.asking(self.store.effects(key=fx.undo_key(last.key))), last)
        if undo is None:
            return None
        alive = await self.journal.asking(alive_now(self.services, undo)) if undo.open else Alive.UNKNOWN
        return fx.judge_undo(last, undo, alive)

    async def _verify(self) -> object:
        """Returns the answer of ``verify``. If it raises, hangs or returns anything else, the outcome stays unknown (X-05)."""
        hook = self.options.verify
        assert hook is not None
        try:
            return fx.read_answer(await call(hook, (self.key, *self.args), VERIFY_TIMEOUT_US, f"verify of {self.name}"), f"verify of {self.name}")
        except Exception as e:  # ``verify`` is user code and may raise anything
            return fx.Unknown(f"verify raised {type(e).__name__}: {e}")

    # -- asking -------------------------------------------------------------------------------------

    async def _ask(self, ask: fx.Ask) -> tuple[bool, Any]:
        """Returns what a person said about the effect; (False, None) if the call is to be judged again or carried out.

        A person is asked once about an act: the runs of a lineage share one question, and what one of them finds out holds for all.
        """
        effect, changed = ask.effect, self._is_changed(ask.effect)
        place = f"{self.path}?{effect.effect_id.rpartition('#')[2]}"
        if effect.open and self.options.undoes is None and effect.lineage_root == self.journal.run.lineage_root:
            self.act = self.about = fx.origin(effect)
            place = f"{self.path}?{self.act.rpartition('#')[2]}"
            kin = await self.journal.asking(self.store.effects(lineage_root=effect.lineage_root))
            found = fx.find_settlement(kin, self.act)
            if found is not None:
                return await self._as_settled(effect, found)
            if again := fx.count_repeats(kin, self.act, self.journal.run.run_id):
                # The answer that allowed a repetition was about the earlier attempt; this question is a new one (§6.5).
                self.act, place = "", f"{place}~{again}"
        place = self._beside_other_questions(place, ask)
        while True:
            if self._is_superseded(f"{place}!"):
                place = f"{place}!"
                continue
            decision = await self._decision(place, ask)
            if decision.action != REEXECUTE or ask.closed or decision.forced:
                break
            # To act again while the first attempt may still act could do it twice: the question is asked again and says so.
            place, ask = f"{place}!", replace(ask, reason=fx.MAY_LIVE)
        if decision.action == APPROVE:
            return True, await self._reuse(effect)
        by = fx.attribute(decision.actor, decision.note or "")
        if ask.reason == fx.CALL_CHANGED or (changed and effect.open and decision.action != ABANDON):
            await self._settle_before(effect, decision, by)
            return False, None
        if decision.action == RECORD_RESULT:
            return await self._take_word(effect, words.read_payload(decision))
        if decision.action == ABANDON:
            return True, await self._give_up(effect, by)
        if ask.reason == fx.REPLAY:
            self.key, self.policy = self.apart, ReplayPolicy.REEXECUTE
            return False, None
        if changed:
            self._stand_apart()
            return False, None
        return await self._act(effect, same=False)

    async def _settle_before(self, effect: Effect, decision: Decision, by: str) -> None:
        """Records what a person said about an attempt with another request, in that attempt's record alone. The call is judged again afterwards."""
        now = self.services.clock.now()
        if decision.action == RECORD_RESULT:
            draft = await self._read_word(effect, decision, now)
        else:
            why = fx.BY_DECISION if decision.action == ABANDON else f"{LEFT} {by} decided"
            gone = replace(effect, status=EffectStatus.ABANDONED, closed=True, settled_at=now, detail=why)
            draft = Draft(facts=[self._fact(ev.SideEffectAbandoned, effect, why)], effects=[gone])
        if decision.action != REEXECUTE and self.act:
            await self._tell(draft, decision.action, None if decision.action == ABANDON else words.read_payload(decision))
        self.act = self.about = ""
        await self.journal.save(draft)

    async def _read_word(self, effect: Effect, decision: Decision, now: int) -> Draft:
        """Returns the record of the result that a person stated for an attempt with another request, as that attempt's own call would have recorded it."""
        if effect.capability == self.name and self.options.told is not None:
            try:
                found = await self.options.told(canon.decode(words.read_payload(decision)))()
            except StepFailure as e:
                return words.fail(effect, record(e, where=self.path), decision, now)
            return words.settle(effect, decision, canon.pack(found, f"the result of {self.name}")[1], now)
        data = words.read_result(effect, decision)
        if data is None:
            failure = EffectFailed(f"{effect.capability} failed, as {fx.attribute(decision.actor, decision.note or '')} found")
            return words.fail(effect, record(failure, where=self.path), decision, now)
        return words.settle(effect, decision, data, now)

    async def _ask_whether_undone(self, effect: Effect, undo: Effect) -> tuple[bool, Any]:
        """Asks a person whether the effect stands. (False, None): it does not, so the call is judged again or carried out."""
        mine = effect.run_id == self.journal.run.run_id
        if self.shared and not mine:
            raise EffectInProgress(f"{self.name} may have been undone by the run {undo.run_id}; the outcome is unknown", hint="resume that run first: it asks what happened")
        shown = {
            "effect": self.name, "key": effect.key, "undo": undo.capability, "attempted_at": views.iso(undo.attempted_at), "owner": undo.owner,
            "detail": undo.detail, "show": self._show(),
        }
        number = f"{effect.effect_id.rpartition('#')[2]}.{undo.effect_id.rpartition('#')[2]}"
        decision = await request(
            self.attempt,
            Ask(
                kind=WaitKind.EFFECT, prompt=MAYBE_UNDONE.format(name=self.name, undo=undo.capability), name=undo.capability, show=shown,
                actions=(RECORD_RESULT, ABANDON, HALT), effect_id=undo.effect_id, path=f"{self.path}?undo{number}",
            ),
        )
        stands = decision.action == ABANDON
        if mine:
            await self.journal.save(words.settle_undo(effect, undo, decision, self.services.clock.now()))
        if stands:
            return True, await self._reuse(effect)
        return (False, None) if mine else await self._act(effect, same=False)

    async def _take_word(self, effect: Effect, data: bytes) -> tuple[bool, Any]:
        """Takes the result that a person stated: returns it in the form of the call's value, or fails the call with it."""
        value = canon.decode(data)
        if self.options.told is None:
            return True, await self._settle(effect, value, data)
        try:
            found = await self.options.told(value)()
        except StepFailure as e:
            if effect.run_id != self.journal.run.run_id:
                raise  # it is the act of another run, and that run judges it
            return await self._fail(effect, e)
        return True, await self._settle(effect, *canon.pack(found, f"the result of {self.name}"))

    def _unfit(self, effect: Effect, place: str, decision: Decision) -> str | None:
        """Returns why an answer must be asked for again; None if it can be used. The stated result may be no value of the call, or a ``reexecute`` may have covered other
        arguments than these (§5.8)."""
        if decision.action == REEXECUTE:
            return self._explain_cover(place, decision)
        if decision.action != RECORD_RESULT:
            return None
        try:
            if self.options.told is not None and effect.capability == self.name:
                self.options.told(None if decision.payload is None else canon.decode(decision.payload))
            else:
                words.check_result(effect, decision)
        except InvalidInput as e:
            return f"the last answer, by {decision.actor}, did not fit: {e}"
        return None

    def _explain_cover(self, place: str, decision: Decision) -> str | None:
        asked = self.journal.progress.questions.get((self.attempt.key, place))
        if asked is None or asked.wait_id != decision.wait_id or asked.show is None:
            return None
        shown = canon.decode(asked.show)
        call = shown.get(NOW, shown)
        if call["arguments"] in ("", self.request) and call["effect"] == self.name:
            return None
        if call["effect"] == self.name and self.options.show is not None and canon.fingerprint(call["show"]) == canon.fingerprint(self._show()):
            return None
        return f"{decision.actor} answered {decision.action} when {call['effect']} was called with other arguments. {HOW_TO_KEEP}"

    def _beside_other_questions(self, place: str, ask: fx.Ask) -> str:
        """Returns a place for a question that no question of another kind about the same record has."""
        while (before := self.journal.progress.questions.get((self.attempt.key, place))) is not None and before.kind is not _ANSWERS[ask.reason][0]:
            place = f"{place}+"
        return place

    def _is_superseded(self, place: str) -> bool:
        """Whether the question was asked anew at that place: an answer covers what was shown, and no later state (§5.8)."""
        here = (self.attempt.step, self.attempt.key, place)
        return self.journal.record(self.attempt.key, place) is not None or any((w.step, w.task, w.path) == here for w in self.journal.run.waits)

    async def _decision(self, place: str, ask: fx.Ask) -> Decision:
        """Returns the recorded decision at a wait's place, or opens the wait."""
        effect, (kind, actions) = ask.effect, _ANSWERS[ask.reason]
        if effect.run_id != self.journal.run.run_id and self.act and self.doubted is None:
            # The effect in question is recorded in this run's own ledger too.
            self.key = self.apart = self._key(self.journal.run.run_id)
            self.doubted = own = replace(
                self._attempt(None), status=EffectStatus.UNKNOWN, owner=effect.owner, fence=effect.fence, attempted_at=effect.attempted_at,
                detail=effect.detail, closed=ask.closed, shared=False,
            )
            if all(e.effect_id != own.effect_id for e in await self.journal.asking(self.store.effects(self.journal.run.run_id))):
                self.journal.hold(Draft(facts=[self._fact(ev.SideEffectUnknown, own, own.detail)], effects=[own]))
            self.seen.append(own)
        if effect.status is EffectStatus.ATTEMPTED and effect.run_id == self.journal.run.run_id:
            unknown = replace(effect, status=EffectStatus.UNKNOWN, detail=ask.reason, closed=ask.closed)
            self.journal.hold(Draft(facts=[self._fact(ev.SideEffectUnknown, effect, ask.reason)], effects=[unknown]))
        echo = self.journal.echo
        if self.act and effect.effect_id != self.act and echo is not None:
            effect = next((e for e in echo.effects if e.effect_id == self.act), effect)  # every run of the lineage shows the original act
        changed = self._is_changed(effect)
        name = effect.capability if changed else self.name  # a record that was rebuilt from the log lacks its name
        shown = {
            "effect": name,
            "key": effect.key,
            "arguments": effect.request_hash,
            "attempted_at": views.iso(effect.attempted_at),
            "owner": effect.owner,
            "reason": ask.reason,
            "closed": ask.closed,
            "detail": effect.detail,
            "show": self._show_attempted(effect) if changed else self._show(),
            **({"verify": ask.why} if ask.why else {}),
            **({NOW: {"effect": self.name, "arguments": self.request, "show": self._show()}} if changed else {}),
        }
        return await request(
            self.attempt,
            Ask(
                kind=kind,
                prompt=QUESTIONS[ask.reason].format(name=name, now=self.name),
                name=name,
                show=shown,
                actions=actions,
                effect_id=self.act or effect.effect_id,
                wait_id=self._question(place) if self.act else "",
                path=place,
                fits=functools.partial(self._unfit, effect, place),
            ),
        )

    def _show(self) -> Any:
        """Returns what a person is shown about the act: ``show``, or at most 4 KiB of its arguments."""
        return self.options.show if self.options.show is not None else self._cut(canon.encode(canon.admit(list(self.args))))

    def _show_attempted(self, effect: Effect) -> Any:
        """Returns the arguments of an attempt with another request, if they are recorded; the arguments of this call would mislead the person who decides."""
        return None if effect.args is None else self._cut(effect.args)

    def _cut(self, args: bytes) -> Any:
        told = mask(self.journal.run.secrets, [self.journal.progress.checkpoint.values]).value(canon.reveal(args))
        text = repr(told)
        return told if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…"

    def _question(self, place: str) -> str:
        """Returns the wait id under which every run of the lineage asks about this act: the id in the run that attempted it."""
        return ids.wait_id(self.act.partition(".")[0], self.attempt.step, self.attempt.key, place)

    async def _as_settled(self, effect: Effect, found: Effect) -> tuple[bool, Any]:
        """Takes what another run of the lineage found out, or was told, about the same act. (False, None): it is recorded, and the call is judged again."""
        path = f"{self.path}?"
        where, self.act = f"{fx.ELSEWHERE}{found.run_id}", ""
        mine = [w for w in self.journal.run.waits if w.task == self.attempt.key and w.path.startswith(path)]
        self.journal.hold(Draft(facts=[ev.WaitClosed(w.wait_id, where) for w in mine]))
        if self._is_changed(effect):
            settled = replace(
                effect, status=found.status, result=found.result, blob=found.blob, response_hash=found.response_hash, closed=True, settled_at=self.services.clock.now(),
                detail=where if found.status is EffectStatus.RECORDED else fx.BY_DECISION,
            )
            kind: type[ev.EffectFact] = ev.SideEffectRecorded if found.status is EffectStatus.RECORDED else ev.SideEffectAbandoned
            self.about = ""
            await self.journal.save(Draft(facts=[self._fact(kind, effect, where)], effects=[settled]))
            return False, None
        if found.status is not EffectStatus.RECORDED:
            return True, await self._give_up(effect, f"decision, {where}")
        effect = replace(effect, detail=where)
        data = (await whole(self.store, found)).result or canon.encode(None)
        return True, await self._settle(effect, canon.decode(data), data)

    async def _tell(self, draft: Draft, action: str, data: bytes | None = None) -> None:
        """Answers the same question in the runs that came from this one, in the commit that settles the act here.

        The source run is not changed (T-46): it finds the answer when it continues.
        """
        if not self.act:
            return
        run, echo = self.journal.run, self.journal.echo
        before = () if echo is None else echo.forebears
        about = [e for e in await self.journal.asking(self.store.effects(lineage_root=run.lineage_root)) if self.act in (e.effect_id, e.source_effect_id) and e.open]
        for other in dict.fromkeys(e.run_id for e in about if e.run_id not in (run.run_id, *before)):
            there = await self.journal.asking(self.store.get(other))
            for wait in [] if there is None else [w for w in there[0].waits if w.effect_id == self.act]:
                command = commands.Decide(wait.wait_id, action, "system", note=f"answered in the run {run.run_id}", payload=data, at=self.store.now())
                if all(i.key != command.key for i in await self.journal.asking(self.store.inbox(other, taken=True))):
                    draft.puts.append(InboxItem(run_id=other, key=command.key, command=command, put_at=command.at))

    async def _may_retry(self) -> None:
        """Handles an earlier failure at this place: only an idempotent effect is retried without asking, and only when its time has come (§10.9)."""
        tries = self._tries()
        if not tries or self.options.retry.max_attempts <= tries:
            return
        failed, due = self.journal.progress.attempts.get((self.attempt.key, self.path), (0, 0))
        if due:
            await self.attempt.pause(due, failed, self.options.retry.base_us)
        else:
            await self._again(tries)

    def _tries(self) -> int:
        """Returns the number of recorded failures at this place."""
        here = (self.journal.run.run_id, self.attempt.step, self.attempt.key, self.path)
        return sum(1 for e in self.records if e.status is EffectStatus.FAILED and (e.run_id, e.step, e.task, e.path) == here)

    async def _again(self, number: int) -> None:
        """Whether a failed effect may be attempted again: without asking only if it is idempotent, otherwise if a person allows it (§10.9)."""
        if not self.options.idempotent and not await retries.is_allowed(self.attempt, self.path):
            prompt = f"{self.name} failed and is not declared idempotent. Try it again?"
            await request(self.attempt, Ask(kind=WaitKind.RETRY, prompt=prompt, name=self.name, path=f"{self.path}?r{number}"))

    # -- acting -------------------------------------------------------------------------------------

    async def _act(self, over: Effect | None, same: bool) -> tuple[bool, Any]:
        """Records the attempt, passes the gate, acts, and records the result. (False, None): another caller was first, or the call is to be attempted again."""
        if over is not None and over.run_id != self.journal.run.run_id and not self.shared:
            self.key, self.records, over, same = self.apart, [], None, False  # the record of an ancestor must not be written here
        if self.options.undoes is not None:  # an undo runs even over budget, or if the run is to stop soon
            return await self._begin_attempt(over, same)
        if self.journal.run.budgets:
            await steps.afford(self.attempt, self.path)
        self._stands()
        await self.attempt.begin()
        try:
            if self.options.limit is None:
                return await self._begin_attempt(over, same)
            async with hold(self.services, self.journal, f"{self.attempt.attempt_id}/{self.path}", self.options.limit):
                return await self._begin_attempt(over, same)
        finally:
            self.attempt.finish()

    async def _begin_attempt(self, over: Effect | None, same: bool) -> tuple[bool, Any]:
        self.journal.end_replay()
        if not await self.services.holds():
            self._too_late()
        effect = self._attempt(over if same else None)
        if self.options.elsewhere is not None:
            effect = replace(effect, owner=self.options.elsewhere.request(effect.effect_id))
        draft = Draft(facts=[self._fact(ev.SideEffectAttempted, effect)], effects=[effect])
        if over is not None and over.open and not same:
            draft.effects.insert(0, replace(over, status=EffectStatus.ABANDONED, closed=True, settled_at=effect.attempted_at))
            draft.facts.insert(0, self._fact(ev.SideEffectAbandoned, over, "done again"))
        if self.options.elsewhere is not None:
            return await self._request(self.options.elsewhere, effect, draft)
        # Set from before the attempt is visible until its outcome is: other callers wait meanwhile.
        # Named by the fence too: a driver that was overtaken by another one in this process must not end that one's turn.
        turn = (effect.effect_id, f"call {effect.fence}")
        self.services.acting.add(turn)
        try:
            await self._put_on_record(effect, draft)
            doing = asyncio.ensure_future(self._perform(effect))
            cancelled = await self._wait_to_end(doing)
            ends = self.journal.cut or self.journal.run.cancel_requested_at is not None
            if doing.cancelled() and ends and not cancelled and self.journal.dead is None:
                await asyncio.Event().wait()  # the node is being canceled: its own cancel is about to arrive
            try:
                return doing.result()
            finally:
                del doing  # it keeps what it ended with, whose traceback has this frame
                if cancelled:
                    raise asyncio.CancelledError
        except EffectInProgress:
            return False, None
        finally:
            self.services.acting.discard(turn)

    async def _put_on_record(self, effect: Effect, draft: Draft) -> None:
        """Makes the attempt durable. If the call is canceled meanwhile, the attempt is closed at once, because nothing has begun.

        Raises:
            EffectInProgress: another attempt under the key is open; nothing was written.
        """
        try:
            await self.journal.attempt(draft)
        except asyncio.CancelledError:
            self.given_up = True
            with suppress(HoldfastError):
                await self.journal.command(lambda run: None, ev.SYSTEM)  # continues after that commit
            if effect.effect_id in self.journal.acting:
                with suppress(LeaseLost):  # the run's present owner finds it closed
                    await self._abandon(effect, NotBegun(GIVEN_UP))
            raise

    async def _wait_to_end(self, act: asyncio.Task[Any]) -> bool:
        """Waits for an act, even if its node is canceled meanwhile, because its outcome must be recorded (§10.12). An act that has not begun does not begin then.

        After a second cancel the act is canceled too, and its outcome stays unknown. Returns whether the node was canceled.
        """
        while not act.done():
            try:
                await asyncio.wait({act})
            except asyncio.CancelledError:
                if self.given_up:
                    act.cancel()
                    raise
                self.given_up = True
        return self.given_up

    async def _request(self, elsewhere: Elsewhere, effect: Effect, draft: Draft) -> tuple[bool, Any]:
        """Requests the act from a runner in another process, in the commit of the attempt, and rests. (False, None): another caller was first."""
        if self.journal.run.cancel_requested_at is not None:
            raise asyncio.CancelledError("the run is being canceled")
        try:
            await elsewhere.ask(self.path, effect, self.args, draft)
        except EffectInProgress:
            pass
        return False, None

    async def _take_answer(self, elsewhere: Elsewhere) -> tuple[bool, Any]:
        """Takes the answer to the request that is recorded here; (False, None) if there is none, or if the call must be judged further."""
        here = (self.journal.run.run_id, self.attempt.step, self.attempt.key, self.path)
        for key in dict.fromkeys((self.key, self.apart)):
            key, records = await self._on_record(key)
            asked = [e for e in records if e.status is EffectStatus.ATTEMPTED and place_of(e.owner) and (e.run_id, e.step, e.task, e.path) == here]
            if asked:
                break
        else:
            return False, None
        self.key, self.records, effect = key, records, asked[-1]
        aside = self._is_changed(effect) and await self._is_outdated(effect)
        if aside:
            await elsewhere.withdraw(effect)
        answer = await elsewhere.answer(self.path, effect)
        if answer is None:
            return await self._close_in_vain(effect, "its request was taken back before it began")
        effect = replace(effect, owner=answer.owner)
        if answer.lost:
            await self._lose_track(effect, answer.lost, closed=answer.closed)
            return False, None
        if answer.word is not None:
            by = fx.attribute(answer.word.actor, answer.word.reason)
            if answer.word.action == intents.ABANDON:
                await self._give_up(effect, by)
            if answer.word.action == intents.REDRIVE:
                return await self._close_in_vain(effect, f"done again, as {by} decided")
            self.found = f"as {by} found"
            effect = replace(effect, detail=self.found)
        act = asyncio.ensure_future(elsewhere.end(self.args, answer))
        await asyncio.wait({act})
        if aside:
            await self._settle_aside(effect, act)
            return False, None
        return await self._after(effect, act)

    async def _is_outdated(self, effect: Effect) -> bool:
        """Whether an effect of this task was undone after a request was made: the request may depend on that effect."""
        run = self.journal.run
        ledger = {e.effect_id: e for e in await self.journal.asking(self.store.effects(run.run_id))}
        gone = [ledger[e.undone] for e in ledger.values() if e.undone in ledger and (e.step, e.task) == (self.attempt.step, self.attempt.key)]
        return any(undo.fence >= effect.fence for undo in gone)

    async def _settle_aside(self, effect: Effect, act: asyncio.Future[Any]) -> None:
        """Records the outcome of a request with other arguments, which answers no call any more, in its own record. The call is judged again afterwards."""
        now, failure = self.services.clock.now(), act.exception()
        if failure is not None:
            error = record(failure, where=self.path)
            row, fact = replace(effect, status=EffectStatus.FAILED, error=error, settled_at=now), self._fact(ev.SideEffectFailed, effect, error.message)
        else:
            data = canon.pack(act.result(), f"{self.name}()")[1]
            row = replace(effect, status=EffectStatus.RECORDED, result=data, response_hash=canon.chain(b"", data).hex(), settled_at=now)
            fact = self._fact(ev.SideEffectRecorded, effect, self.found)
        self.found = ""
        await self.journal.save(Draft(facts=[fact], effects=[row]))

    async def _close_in_vain(self, effect: Effect, why: str) -> tuple[bool, Any]:
        """Closes an attempt that did not begin; the call is judged again."""
        if effect.detail == fx.AGAIN:
            await self._lose_track(effect, why, closed=True)
            return False, None
        gone = replace(effect, status=EffectStatus.ABANDONED, closed=True, detail=why, settled_at=self.services.clock.now())
        await self.journal.save(Draft(facts=[self._fact(ev.SideEffectAbandoned, effect, why)], effects=[gone]))
        return False, None

    async def _perform(self, effect: Effect) -> tuple[bool, Any]:
        """Runs the act and records its outcome. A cancel can end a coroutine; it cannot end a thread."""
        tries = self._tries() + 1
        fn = hand_key(self.fn, self.key)
        patience, ends = Patience(self.options.timeout_us, own=self.options.timed), asynchronous(fn)
        gated, cooperative = self._gate(effect, fn, ends), ends and self.options.cooperative
        with attempting(self.path, tries) if self.path.rpartition("/")[2] != undos.NODE_PATH else nullcontext():
            act = asyncio.ensure_future(call(gated, self.args, patience, self.name))
        acts = self.journal.acts
        acts[effect.effect_id] = Act(self.name, act if cooperative else None)
        try:
            with self.attempt.minding(patience):
                await asyncio.wait({act})
        finally:
            if not act.done():
                failures.cancel(act)  # this task itself was canceled, so the act is canceled too
            del acts[effect.effect_id]
        after = self._after(effect, act)
        del act  # it keeps what it ended with, whose traceback will have this frame
        return await after

    def _stands(self) -> None:
        """Checks a replay or a fork that is about to act. It must not act without the runs whose results it takes over. A replay repeats what its source did, even what
        was undone afterwards, but must not continue from there (§6.11).

        Raises:
            StepFailure: it would.
        """
        run, echo = self.journal.run, self.journal.echo
        if echo is None or self.policy is ReplayPolicy.REEXECUTE:
            return
        if not self.shared:
            echo.expect_source(run.run_id, self.name)
        if run.origin != "replay":
            return
        gone = [e.capability for r in echo.forebears for e in compensation.missing(echo.effects, r)]
        if gone:
            raise StepFailure(
                f"{', '.join(gone)} of the run {run.source_run_id} was undone, or may have been, so this replay of the run cannot continue from there; a fork carries out {', '.join(gone)} again",
                code="effects_undone",
            )

    async def _after(self, effect: Effect, act: asyncio.Task[Any]) -> tuple[bool, Any]:
        """Records the outcome of an act that has ended."""
        if act.cancelled():
            return await self._cut_short(effect)
        if (failure := act.exception()) is not None:
            del act  # it keeps what it ended with, whose traceback will have this frame
            try:
                return await self._after_failure(effect, failure)
            finally:
                del failure
        try:
            value, data = canon.pack(act.result(), f"{self.name}()")
        except (Unserializable, TooLarge) as e:
            await self._lose_track(effect, f"done, but its result cannot be stored: {e.message}", closed=True)
            raise
        return True, await self._record(effect, value, data)

    async def _after_failure(self, effect: Effect, failure: BaseException) -> tuple[bool, Any]:
        """Records that an act has failed, timed out, or left its node."""
        try:
            if isinstance(failure, NotBegun):
                return await self._abandon(effect, failure)
            if isinstance(failure, StepTimeout) and not self.options.idempotent:
                # It may have happened: ``verify`` or a person must say.
                await self._lose_track(effect, "timed out", closed=self._cooperative())
                if self.options.verify is None or not self._cooperative():
                    return False, None
                answer = await self._verify()
                if isinstance(answer, fx.Happened):
                    return True, await self._settle(effect, *canon.pack(answer.result, f"verify of {self.name}"))
                if not isinstance(answer, fx.Absent):
                    return False, None
            if isinstance(failure, Suspend | Restart | Redo):
                # It rests before it has finished; when it runs again it is attempted anew.
                if effect.detail == fx.AGAIN:
                    await self._lose_track(effect, "its node is waiting", closed=True)
                    raise failure
                blocked = replace(effect, status=EffectStatus.BLOCKED, closed=True, settled_at=self.services.clock.now())
                await self._save(effect, Draft(facts=[self._fact(ev.SideEffectBlocked, effect, "its node is waiting")], effects=[blocked]), "it rests")
                raise failure
            if not isinstance(failure, Exception):
                raise failure
            return await self._fail(effect, failure)
        finally:
            del failure  # its traceback will have this frame

    async def _cut_short(self, effect: Effect) -> tuple[bool, Any]:
        """Handles an act that a cancel has ended in the middle: ``verify`` finds out what happened, otherwise the outcome stays unknown (§10.12)."""
        why = "canceled while it was being carried out"
        await self._lose_track(effect, why, closed=True)
        if self.options.verify is not None:
            answer = await self._verify()
            if isinstance(answer, fx.Happened):
                return True, await self._settle(effect, *canon.pack(answer.result, f"verify of {self.name}"))
            if isinstance(answer, fx.Absent):
                return await self._abandon(effect, NotBegun(why))
        raise asyncio.CancelledError(why)

    def _cooperative(self) -> bool:
        """Whether a timeout has ended the act: a thread continues."""
        return self.options.cooperative and asynchronous(self.fn)

    async def _fail(self, effect: Effect, failure: Exception) -> tuple[bool, Any]:
        """Records a failure, which is a result too; the retry policy decides what follows (§6.9)."""
        error = record(failure, where=self.path)
        now = self.services.clock.now()
        failed = replace(effect, status=EffectStatus.FAILED, error=error, settled_at=now)
        tries = self._tries() + 1
        again = self.options.retry.retries(failure, tries)
        draft = Draft(facts=[self._fact(ev.SideEffectFailed, effect, error.message)], effects=[failed])
        if not again:
            draft.results.append(StepRecord(self.attempt.key, self.path, self.name, error=error, kind="effect", attempt=self.attempt.number, digest=self.request))
            draft.facts.append(ev.StepFailed(self.attempt.step, self.attempt.key, error, attempt=self.attempt.number, path=self.path, call=self.called))
            try:
                await self._save(effect, draft, error.message)
                raise failure
            finally:
                del failure  # its traceback will have this frame
        if not self.options.idempotent:
            await self._save(effect, draft, error.message)
            return False, None
        draft.facts.append(retries.again(self.attempt, self.path, self.called, tries, self.options.retry, error, effect.effect_id))
        await self._save(effect, draft, error.message)
        return False, None

    def _attempt(self, same: Effect | None) -> Effect:
        attempt, run = self.attempt, self.journal.run
        if same is None:
            last = max([0, *[int(e.effect_id.rpartition("#")[2]) for e in self.seen]])  # a number that no attempt here has
            effect_id = f"{ids.step_id(run.run_id, attempt.step, attempt.key, self.path)}#{last + 1}"
        else:
            effect_id = same.effect_id
        return Effect(
            effect_id=effect_id,
            run_id=run.run_id if same is None else same.run_id,
            lineage_root=run.lineage_root if same is None else same.lineage_root,
            step=attempt.step,
            task=attempt.key,
            path=self.path,
            attempt=attempt.number,
            capability=self.name,
            effect_class=EffectClass(self.options.side_effects),
            key=self.key,
            shared=self.shared,
            request_hash=self.request,
            replay_policy=self.policy,
            idempotent=self.options.idempotent,
            verifiable=self.options.verify is not None,
            owner=self.services.owner,
            fence=self.journal.fence,
            attempted_at=self.services.clock.now(),
            tenant_id=run.tenant_id,
            undo=undos.label(self.options.undo) if self.options.undo is not None else "",
            args=canon.pack(list(self.args), f"what {self.name} is given")[1] if self.options.undo is not None else None,
            detail="" if same is None else fx.AGAIN,
            source_effect_id=self.about or None if self.options.undoes is None else self.options.undoes.effect_id,
        )

    def _gate(self, effect: Effect, fn: Callable[..., Any], awaited: bool) -> Callable[..., Any]:
        """Runs the act behind its gate. The gate is asked in the thread that acts, immediately before the act (§6.5). ``awaited``: the act is a coroutine function."""
        acting, thread = self.services.acting, (effect.effect_id, f"thread {effect.fence}")

        def gate() -> None:
            if self.journal.dead is not None:
                raise NotBegun(f"this process can no longer record anything for the run: {self.journal.dead}")
            if self.journal.run.cancel_requested_at is not None and self.options.undoes is None:
                raise NotBegun("the run is being canceled")
            if self.given_up:
                raise NotBegun(GIVEN_UP)

        if awaited:

            async def act(*args: Any) -> Any:
                gate()
                if not await self.services.holds():
                    raise NotBegun(LOST, late=True)
                gate()
                return await fn(*args)

            return act

        def act_in_thread(*args: Any) -> Any:
            acting.add(thread)  # a thread may continue after its timeout
            try:
                gate()
                if not self.services.confirm():
                    raise NotBegun(LOST, late=True)
                gate()
                return fn(*args)
            finally:
                acting.discard(thread)

        return act_in_thread

    # -- writing down -------------------------------------------------------------------------------

    async def _record(self, effect: Effect, value: Any, data: bytes) -> Any:
        now = self.services.clock.now()
        recorded = replace(effect, status=EffectStatus.RECORDED, result=data, response_hash=canon.chain(b"", data).hex(), settled_at=now)
        done = StepRecord(self.attempt.key, self.path, self.name, value=data, kind="effect", attempt=self.attempt.number, digest=self.request)
        facts: list[ev.Fact] = [
            self._fact(ev.SideEffectRecorded, effect, self.found),
            ev.StepCompleted(self.attempt.step, self.attempt.key, attempt=self.attempt.number, path=self.path, call=self.called),
        ]
        draft = Draft(facts=facts, results=[done], effects=[recorded])
        if self.options.undoes is not None:
            draft.effects.append(replace(self.options.undoes, undone=effect.effect_id))
        await self._tell(draft, RECORD_RESULT, data)
        await self._save(effect, draft, f"it gave {value!r}")
        return value

    async def _settle(self, effect: Effect, value: Any, data: bytes) -> Any:
        """Records the result of an unknown attempt that ``verify`` or a person has stated."""
        if effect.run_id != self.journal.run.run_id and not self.shared:
            self.key, self.records = self.apart, []
            return await self._record(replace(self._attempt(None), closed=True, source_effect_id=fx.origin(effect)), value, data)
        if effect.run_id != self.journal.run.run_id:
            now = self.services.clock.now()
            settled = replace(effect, status=EffectStatus.RECORDED, result=data, response_hash=canon.chain(b"", data).hex(), settled_at=now, closed=True)
            await self._settle_theirs(settled, effect.status)
            return await self._reuse(settled, self._fact(ev.SideEffectRecorded, settled, f"in the run {effect.run_id}, whose effect it is"))
        return await self._record(replace(effect, closed=True), value, data)

    async def _settle_theirs(self, settled: Effect, seen: EffectStatus) -> None:
        """Records the stated result in another run's record, whose effect it is under a shared key. Its owner finds it there.

        Raises:
            EffectConflict: another caller has settled it meanwhile, so the statement is about an earlier state.
        """
        if await self.journal.asking(self.store.settle_effect(settled, seen)):
            return
        there = next(e.status for e in await self.journal.asking(self.store.effects(key=self.key)) if e.effect_id == settled.effect_id)
        raise EffectConflict(f"{self.name} was settled in the meantime as {there}, possibly by the run {settled.run_id}", hint=f"see what was recorded: holdfast effects {settled.run_id}")

    async def find_left(self) -> Effect | None:
        """Returns the attempt that an earlier process left without an outcome, now noted as unknown; None if there is none."""
        verdict = await self._judge()
        if not isinstance(verdict, fx.Ask) or not verdict.effect.open:
            return None
        unknown = replace(verdict.effect, status=EffectStatus.UNKNOWN, detail=verdict.effect.detail or verdict.reason, closed=verdict.closed)
        if verdict.effect.status is EffectStatus.ATTEMPTED:
            self.journal.hold(Draft(facts=[self._fact(ev.SideEffectUnknown, unknown, unknown.detail)], effects=[unknown]))
        return unknown

    async def by_hand(self, decision: Decision, left: Effect | None) -> Any:
        """Records what a person said in place of a function that this process does not have, or may not call: how the attempt that was ``left`` ended, or what they
        did by hand.

        Raises:
            EffectFailed: it was not done, and shall not be.
        """
        self.key, self.records = await self._on_record(self.key)
        effect = left or self._attempt(None)
        if decision.action != RECORD_RESULT:
            return await self._give_up(effect, fx.attribute(decision.actor, decision.note or ""))
        data = words.read_payload(decision)
        return await self._record(replace(effect, closed=True), canon.decode(data), data)

    async def block(self, why: str) -> EffectFailed:
        """Records that the effect may not be carried out; returns the failure that says so."""
        self.key, self.records = await self._on_record(self.key)
        failure = EffectFailed(f"{self.name} was not allowed: {why}", code="effect_blocked")
        error = record(failure, where=self.path)
        effect = self._attempt(None)
        row = replace(effect, status=EffectStatus.BLOCKED, closed=True, detail=why, settled_at=effect.attempted_at, error=error)
        done = StepRecord(self.attempt.key, self.path, self.name, error=error, kind="effect", attempt=self.attempt.number, digest=self.request)
        await self.journal.save(Draft(facts=[self._fact(ev.SideEffectBlocked, effect, why)], results=[done], effects=[row]))
        return failure

    async def _give_up(self, effect: Effect, by: str) -> NoReturn:
        failure = EffectAbandoned(f"{self.name} was given up by {by}")
        error = record(failure, where=self.path)
        gone = replace(effect, status=EffectStatus.ABANDONED, closed=True, settled_at=self.services.clock.now(), detail=fx.BY_DECISION)
        draft = Draft(
            facts=[self._fact(ev.SideEffectAbandoned, effect, fx.BY_DECISION), ev.StepFailed(self.attempt.step, self.attempt.key, error, attempt=self.attempt.number, path=self.path, call=self.called)],
            results=[StepRecord(self.attempt.key, self.path, self.name, error=error, kind="effect", attempt=self.attempt.number, digest=self.request)],
        )
        if effect.run_id == self.journal.run.run_id:
            draft.effects.append(gone)
        elif not self.shared:
            self.key, self.records = self.apart, []
            draft.effects.append(replace(self._attempt(None), status=gone.status, closed=True, source_effect_id=fx.origin(effect), settled_at=gone.settled_at, detail=fx.BY_DECISION))
        else:
            await self._settle_theirs(gone, effect.status)
        await self._tell(draft, ABANDON)
        await self.journal.save(draft)
        raise failure

    async def _reuse(self, effect: Effect, *told: ev.EffectFact) -> Any:
        """Returns a recorded result under the key, and records here whose result it is."""
        run = self.journal.run
        done = StepRecord(self.attempt.key, self.path, self.name, value=effect.result, kind="effect", attempt=self.attempt.number, digest=self.request)
        draft = Draft(facts=[*told, self._fact(ev.SideEffectReused, effect)], results=[done])
        if effect.run_id != run.run_id:
            self.journal.progress.borrows = True
            row = replace(self._attempt(None), status=EffectStatus.REUSED, source_effect_id=effect.effect_id, settled_at=self.services.clock.now())
            draft.effects.append(row)
        await self.journal.save(draft)
        return await self.attempt.give(done)

    async def _replay(self, echoed: StepRecord) -> Any:
        """Returns the source's recorded result or failure in a replay; nothing is carried out."""
        of = self._of_source()
        draft = Draft(results=[replace(echoed, attempt=self.attempt.number)])
        if of is not None:
            self.seen += await self.journal.asking(self.store.effects(key=self.key))
            row = self._attempt(None)
            row = replace(row, key=of.key, status=EffectStatus.REUSED, source_effect_id=of.effect_id, settled_at=row.attempted_at)
            draft.effects.append(row)
            draft.facts.append(self._fact(ev.SideEffectReused, of))
        self.journal.hold(draft)
        return await self.attempt.give(echoed)

    async def _lose_track(self, effect: Effect, why: str, *, closed: bool) -> None:
        unknown = replace(effect, status=EffectStatus.UNKNOWN, detail=why, closed=closed)
        await self._save(effect, Draft(facts=[self._fact(ev.SideEffectUnknown, effect, why)], effects=[unknown]), why)

    async def _abandon(self, effect: Effect, shut: NotBegun) -> tuple[bool, Any]:
        """Closes an attempt that came too late to act, in its own record, whichever process has the lease now (§6.5). If it was late for a moment only, it is attempted
        anew. An earlier attempt in the same record stays as unknown as it was."""
        why = str(shut)
        kind: type[ev.EffectFact] = ev.SideEffectAbandoned
        gone = replace(effect, status=EffectStatus.ABANDONED, closed=True, detail=why, settled_at=self.services.clock.now())
        if effect.detail == fx.AGAIN:
            gone, kind = replace(effect, status=EffectStatus.UNKNOWN, closed=True, detail=why), ev.SideEffectUnknown
        if self.journal.dead is None and await self.services.holds():
            await self.journal.save(Draft(facts=[self._fact(kind, effect, why)], effects=[gone]))
            if shut.late:
                return False, None
            raise asyncio.CancelledError(why)
        for status in (EffectStatus.ATTEMPTED, EffectStatus.UNKNOWN):
            if await self.journal.asking(self.store.settle_effect(gone, status)):
                break
        self._too_late(f"{self.name} was not begun: {why}")

    def _too_late(self, why: str = f"{LOST}: no effect is begun") -> NoReturn:
        """Makes the journal refuse everything that this execution still produces."""
        self.journal.stop(LeaseLost(why))
        raise LeaseLost(why)

    async def _save(self, effect: Effect, draft: Draft, summary: str) -> None:
        """Makes an outcome durable. An owner that has lost its lease leaves the outcome as evidence and closes its attempt (§10.2)."""
        try:
            await self.journal.save(draft)
        except Conflict:
            await self._late(effect, summary)
            raise

    async def _late(self, effect: Effect, summary: str) -> None:
        attempt_id = f"{effect.effect_id}@{effect.fence & 0xFFFFFFFF}"
        command = commands.LateResult(attempt_id, f"{self.name}: {summary}"[:SUMMARY_CHARS])
        for status in (EffectStatus.UNKNOWN, EffectStatus.ATTEMPTED):
            if await self.journal.asking(self.store.settle_effect(replace(effect, status=status, closed=True, detail=command.summary), status)):
                break
        await self.store.put(InboxItem(run_id=self.journal.run.run_id, key=command.key, command=command, put_at=self.store.now()))

    def _fact(self, kind: type[ev.EffectFact], effect: Effect, detail: str = "") -> ev.EffectFact:
        return kind(effect.effect_id, effect.key, self.attempt.step, self.attempt.key, self.path, detail)


async def alive_now(services: Services, effect: Effect) -> Alive:
    """Returns whether the process that attempted an effect may still be carrying it out; NO only if its death is proven (§2.9)."""
    if place_of(effect.owner) is not None:  # a request to a runner: it may be answered until its run has ended
        asking = await services.store.get(effect.run_id)
        return Alive.UNKNOWN if asking is None or asking[0].terminal else Alive.YES
    if effect.owner == services.owner:
        at_it = any(effect_id == effect.effect_id for effect_id, _ in services.acting)
        return Alive.YES if at_it else Alive.NO
    return Alive.NO if effect.owner in closed_owners else await services.store.owner_alive(effect.owner)


async def surface_open(services: Services, run_id: str, previous_owner: str, cause: str) -> Draft:
    """Returns the draft that marks the open attempts of a run that changes hands as unknown, whichever owner made them (§6.5, X-16): the earlier owner may have died before it
    could do so. ``closed`` is set if a death is proven, also on attempts that were marked before."""
    draft = Draft()
    for effect in await services.store.effects(run_id):
        if not effect.open or effect.closed or place_of(effect.owner) is not None:
            continue
        dead = effect.owner == previous_owner and cause == OWNER_DEAD
        closed = dead or await alive_now(services, effect) is Alive.NO
        if effect.status is EffectStatus.ATTEMPTED and (effect.owner != services.owner or closed):
            draft.effects.append(replace(effect, status=EffectStatus.UNKNOWN, closed=closed, detail=OWNER_DEAD if closed else cause))
            draft.facts.append(ev.SideEffectUnknown(effect.effect_id, effect.key, effect.step, effect.task, effect.path, cause))
        elif effect.status is EffectStatus.UNKNOWN and closed:
            draft.effects.append(replace(effect, closed=True))
    return draft


async def retire(services: Services) -> None:
    """Ends an owner: releases its runs and its proof of life, unless one of its threads still carries out an effect."""
    await _close_attempts(services)
    if services.acting:
        await services.store.outlive(services.owner)
    else:
        closed_owners.add(services.owner)
    await services.store.retire(services.owner)


async def _close_attempts(services: Services) -> None:
    """Closes the attempts of an owner that ends, by a compare-and-set, except those that one of its threads still carries out (§6.5)."""
    under_way = {effect_id for effect_id, _ in services.acting}
    for effect in await services.store.open_effects(services.owner):
        if not effect.closed and effect.effect_id not in under_way:
            await services.store.settle_effect(replace(effect, closed=True), effect.status)


async def refuse_to_repeat(services: Services, effect_id: str) -> None:
    """Refuses to carry out an effect again while its first attempt may still act (§6.5).

    Raises:
        AttemptMayLive: says what may happen, and what to do instead.
    """
    for effect in await services.store.effects(effect_id.partition(".")[0]):
        if effect.effect_id == effect_id and effect.open and not effect.closed and await alive_now(services, effect) is not Alive.NO:
            raise AttemptMayLive(
                f"{effect.capability} was attempted by {effect.owner}, which may still be alive; if it is done again now, it could happen twice",
                hint="wait until that process is proven dead; --force accepts that it may happen twice",
            )


def hand_key(fn: Callable[..., Any], key: str) -> Callable[..., Any]:
    """Passes the key to a function that has a parameter named ``idempotency_key`` (§6.3)."""
    return functools.partial(fn, idempotency_key=key) if accepts_key(fn) else fn


__all__ = ["NotBegun", "Options", "Performance", "alive_now", "closed_owners", "hand_key", "perform", "perform_at", "refuse_to_repeat", "retire", "surface_open"]

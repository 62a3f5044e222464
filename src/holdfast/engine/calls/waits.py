"""The waits of a node: approvals, questions, handoffs, signals and timers (§5); children are in ``children``.

Theory of operation. Every wait has a place in its task. A call first looks there: a recorded answer is returned; a wait that is open suspends the node again; otherwise
a new wait is opened, and the node leaves by ``Suspend``. Each question at one place has a round number. So a question that is asked again (the run was canceled and
resumed, the answer did not fit, the policy changed) has a new id, and no older answer can apply to it.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.authoring import microseconds
from holdfast.core import canon, decisions, ids, kinds, waits
from holdfast.core import events as ev
from holdfast.core import waits as ws
from holdfast.core.called import Call
from holdfast.core.checkpoint import StepRecord
from holdfast.core.errors import ClaimTaken, EffectInProgress, HoldfastError, InvalidInput, RecordMismatch, StepRejected
from holdfast.core.waits import Decision as RawDecision
from holdfast.core.waits import OnTimeout, Wait, WaitKind
from holdfast.engine.base.echo import Echo
from holdfast.engine.base.failures import ControlFlow
from holdfast.engine.base.journal import Draft, Journal
from holdfast.engine.base.services import Services
from holdfast.engine.calls.attempt import Attempt, Suspend
from holdfast.engine.calls.branches import Branch, find_branch
from holdfast.handle import Decision

Duration = dt.timedelta | float | int | None
HERE = "node"


class Unattended(ControlFlow):
    """Leaves the node because nobody is there to answer an authoritative question (§5.17)."""

    def __init__(self, wait: Wait) -> None:
        super().__init__("the run is unattended")
        self.wait = wait


class Halted(ControlFlow):
    """Ends the run with ``stop_reason``: the rest of the node does not run, is not retried, and cannot catch this. A policy refused (§8.1), or the recorded answer ends
    the run (§5.5)."""

    def __init__(self, why: str, stop_reason: str) -> None:
        super().__init__(why)
        self.stop_reason = stop_reason


class Redo(ControlFlow):
    """Leaves the node so that ``target`` runs again with a person's feedback; None means this node (§5.5)."""

    def __init__(self, target: str | None, feedback: str) -> None:
        super().__init__("the step is done again with feedback")
        self.target = target
        self.feedback = feedback


def close_round(attempt: Attempt) -> None:
    """Closes what a step that is sent back still asks and waits for: nobody is asked any more for a round that is over, and no signal goes there. A child goes on, and
    ends with its parent if it was begun so."""
    mine = [w for w in attempt.journal.run.waits if (w.task, w.step) == (attempt.key, attempt.step) and w.path.startswith(attempt.prefix)]
    attempt.journal.hold(Draft(facts=[ev.WaitClosed(w.wait_id, "the work is done again") for w in mine if w.kind is not WaitKind.CHILD]))


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A question at a place. ``fits``: returns what is wrong with a recorded answer, or None if it can be used. ``about``: what a consent covers (§5.8); if it is given, the
    wording of the prompt does not identify the question. ``wait_id``: the id of the same question of another run of the lineage. ``stands``: whether a record or an
    earlier question at this place may belong to this call."""

    kind: WaitKind
    prompt: str = ""
    name: str = ""
    show: Any = None
    who: str | Iterable[str] | None = None
    timeout: Duration = None
    on_deny: str = "halt"
    on_timeout: str = "halt"
    actions: tuple[str, ...] | None = None
    schema: Any = None
    default: Any = None
    authoritative: bool = True
    redo: str = ""
    verdict: str = ""
    cascade: bool = False
    path: str | None = None
    effect_id: str | None = None
    wait_id: str = ""
    fits: Callable[[RawDecision], str | None] | None = None
    about: waits.Subject | None = None
    creates: Callable[[Wait], Draft] | None = None
    stands: bool = True

    @property
    def asked(self) -> str:
        return f"{self.kind.value}:{self.prompt if self.kind is WaitKind.CHILD else self.name or self.prompt}"


async def request(attempt: Attempt, ask: Ask) -> RawDecision:
    """Opens a wait at this place, or returns the decision that is recorded there.

    Raises:
        Suspend: the node rests.
        Halted: the decision ends the run.
        RecordMismatch: another question is recorded at this place (L-10).
    """
    name, verdict, places = ask.asked, ask.verdict, attempt.places
    with places.open(ask.kind.value) if ask.path is None else nullcontext(ask.path) as path:
        outdated = attempt.journal.progress.outdated and places.is_outdated(path)
        again = not ask.stands or (outdated and not _asks_the_same(attempt, ask, path, verdict))
        if not again and ask.about is not None and ask.kind is not WaitKind.INPUT:  # a consent is identified by its place and by what it covers; its wording may change (§5.8)
            before = places.find_question(path, ask.kind, ask.prompt, swappable=ask.path is None)
            name = name if before is None else before.asked
        record = None if again else places.lookup(Call(path, name, "wait"))
        if record is not None:
            given = decisions.read_answer(record)
            wrong = explain_outdated(attempt.services, given) or (ask.fits(given) if ask.fits is not None else None) or _explain_change(attempt, ask, path, given)
            if wrong is None:
                if (halt := ws.find_halt(ask, given)) is not None:  # the answer was given while the run had failed; now that the run is resumed, it ends the run
                    raise Halted(f"{given.actor} answered {given.action}", halt)
                return given
            verdict = wrong
        known = open_at(attempt, path)
        if known is not None and again:
            attempt.journal.hold(Draft(facts=[ev.WaitClosed(known.wait_id, "something else is asked")]))
        elif known is not None:
            if known.asked != name:
                raise RecordMismatch(
                    f"wait {path} of {attempt.key}: the open question is {known.asked!r}, but the code now asks {ask.asked!r}", hint="restore the order of the waits"
                )
            attempt.waits[known.wait_id] = known
            if ask.kind is WaitKind.SIGNAL and (came := await _take_arrived(attempt, known)) is not None:
                return came
            raise Suspend((known,))
        wait = make_wait(attempt, ask, path, verdict)
        if ask.kind is WaitKind.SIGNAL and (came := await _take_arrived(attempt, wait)) is not None:
            return came
        if attempt.journal.echo is not None and (inherited := await _inherit(attempt, wait, attempt.journal.echo)) is not None:
            return inherited
        attempt.waits[wait.wait_id] = wait
        if ask.creates is not None:
            draft = ask.creates(wait)
            draft.facts.append(ev.WaitRequested(wait))
            try:
                await _open(attempt, attempt.journal.attempt(draft) if draft.effects or any(made.claims for made in draft.creates) else attempt.save(draft))
            except (EffectInProgress, ClaimTaken):
                del attempt.waits[wait.wait_id]
                raise
        elif attempt.concurrent:
            # Other tasks may run for long; the question is asked as soon as this task reaches it (§5.2).
            await _open(attempt, attempt.save(Draft(facts=[ev.WaitRequested(wait)])))
            if ask.kind is WaitKind.SIGNAL and (came := await _take_arrived(attempt, wait)) is not None:
                return came
        raise Suspend((wait,))


async def _open(attempt: Attempt, opening: Awaitable[None]) -> None:
    """Opens a wait. If the call is canceled meanwhile, it continues until the wait is durable, because the code that canceled it closes the open waits."""
    try:
        await opening
    except asyncio.CancelledError:
        with suppress(HoldfastError):
            await attempt.journal.command(lambda run: None, ev.SYSTEM)  # continues after that commit
        raise


def _asks_the_same(attempt: Attempt, ask: Ask, path: str, verdict: str) -> bool:
    """Whether the recorded question has exactly the wording of this one. A signal is compared by its name, and a child by its input."""
    before = attempt.journal.progress.questions.get((attempt.key, path))
    if before is None or ask.kind in (WaitKind.SIGNAL, WaitKind.CHILD):
        return before is None or before.asked == ask.asked
    now = make_wait(attempt, ask, path, verdict)
    return _say(now) == _say(before)


def _say(wait: Wait) -> tuple[object, ...]:
    """Returns the full text of a question, and how long it waits for an answer."""
    return wait.asked, wait.digest, wait.covers, wait.schema, None if wait.deadline is None else wait.deadline - wait.requested_at


def open_at(attempt: Attempt, path: str) -> Wait | None:
    here = (attempt.step, attempt.key, path)
    return next((w for w in attempt.journal.run.waits if (w.step, w.task, w.path) == here), None)


def _explain_change(attempt: Attempt, ask: Ask, path: str, given: RawDecision) -> str | None:
    """Returns why a recorded consent does not count: it covered something other than what the step is about now (§5.8)."""
    before = attempt.journal.progress.questions.get((attempt.key, path))
    if ask.about is None or before is None or before.wait_id != given.wait_id or given.action not in (*ws.CONSENTS, ws.ANSWER):
        return None
    how = waits.compare(before, ask.prompt, ask.about, attempt.journal.run.secrets)
    return None if how is None else f"{given.actor} answered {given.action} to something else: {how}. {waits.HOW_TO_KEEP}"


def about(attempt: Attempt, show: Any, verdict: str = "") -> waits.Subject:
    """Returns what a question at this place is about: what is shown, or else the arguments and the state that the step reads."""
    if show is not None:
        return waits.subject_of(show, verdict)
    return waits.read(attempt.reads, attempt.journal.run.secrets, verdict)


def explain_outdated(services: Services, given: RawDecision) -> str | None:
    """Returns why a consent does not count that was given under another policy snapshot (§5.8)."""
    policy = services.policy
    if policy is None or given.policy is None or given.policy == policy.snapshot_id or given.action not in ws.CONSENTS:
        return None
    return f"the policy changed after {given.actor} had approved under {given.policy}"


def make_wait(attempt: Attempt, ask: Ask, path: str, verdict: str) -> Wait:
    """Returns the wait that a question opens."""
    run, step_id = attempt.journal.run, attempt.step_id
    round = attempt.journal.progress.asked.get((attempt.key, path), 0)
    wait_id = ids.again(ask.wait_id, round) if ask.wait_id else ids.wait_id(run.run_id, attempt.step, attempt.key, path, round)
    at = attempt.services.clock.now()
    span = microseconds(ask.timeout, ws.DEFAULT_DEADLINE_US if ask.kind in ws.HUMAN else 0)
    reads = None if ask.about is None else waits.pack(ask.about)
    policy = attempt.services.policy
    snapshot = policy.snapshot_id if policy is not None else run.policy_snapshot_id
    return Wait(
        wait_id=wait_id,
        kind=ask.kind,
        step=attempt.step,
        task=attempt.key,
        path=path,
        prompt=ask.prompt,
        name=ask.name,
        show=None if ask.show is None else canon.pack(ask.show, "show")[1],
        available_actions=ask.actions if ask.actions is not None else ws.ACTIONS.get(ask.kind, ()),
        schema=None if ask.schema is None else canon.pack(ask.schema, "schema")[1],
        deadline=at + span if span or ask.timeout is not None else None,
        on_timeout=OnTimeout(ask.on_timeout),
        default=None if ask.default is None else canon.pack(ask.default, "default")[1],
        on_deny=ask.on_deny,
        who=(ask.who,) if isinstance(ask.who, str) else tuple(ask.who or ()),
        requested_at=at,
        digest=canon.digest([step_id, path, ask.prompt, canon.fingerprint(ask.show), snapshot or ""]),
        policy_snapshot_id=snapshot,
        round=round,
        authoritative=ask.authoritative,
        redo=ask.redo,
        verdict=verdict,
        cascade=ask.cascade,
        effect_id=ask.effect_id,
        covers="" if ask.about is None else ask.about.covers,
        reads=reads,
    )


async def _take_arrived(attempt: Attempt, wait: Wait) -> RawDecision | None:
    given = await take_signal(attempt.journal, wait, attempt.services.clock.now(), find_branch(attempt))
    if given is not None:
        attempt.waits.pop(wait.wait_id, None)
    return given


async def take_signal(journal: Journal, wait: Wait, now: int, branch: Branch | None = None) -> RawDecision | None:
    """Takes the oldest signal of that name that came before the wait, in the commit that records it (T-37); in a branch, together with those of other branches."""
    signals = enumerate(journal.run.signals)
    place, at_hand = next(((n, s) for n, s in signals if s.name == wait.name and (s.name, s.key) not in journal.taking), (0, None))
    found = (at_hand, 0) if at_hand is not None else await journal.later(wait.name)
    if found is None:
        return None
    signal, came = found
    journal.taking.add((signal.name, signal.key))
    given = decisions.answer_by_signal(wait, signal.key, signal.payload, signal.actor, now, came)
    opened = [] if any(w.wait_id == wait.wait_id for w in journal.run.waits) else [ev.WaitRequested(wait)]
    draft = Draft(facts=[*opened, ev.WaitDecided(given)], results=[decisions.answer(given)])
    await (journal.save(draft) if branch is None else branch.early.answer((came, place), draft))
    return given


async def _inherit(attempt: Attempt, wait: Wait, echo: Echo) -> RawDecision | None:
    """Takes over a consent to the very same question from a run that this one forks or replays, if consents are inherited; records it here as asked and answered (§5.8)."""
    if (found := echo.consents.get((wait.step, wait.task, wait.path))) is None:
        return None
    before, consent = found
    covers = ("kind", "prompt", "name", "show", "schema", "who", "available_actions", "policy_snapshot_id", "effect_id", "verdict", "covers")
    if wait.round or any(getattr(before, f) != getattr(wait, f) for f in covers):
        return None
    given: RawDecision = msgspec.structs.replace(consent, wait_id=wait.wait_id, note=f"inherited from {before.wait_id}")
    await attempt.save(Draft(facts=[ev.WaitRequested(wait), ev.WaitDecided(given)], results=[decisions.answer(given)]))
    return given


def read_value(given: RawDecision) -> Any:
    return None if given.payload is None else canon.decode(given.payload)


# -- approvals and questions ------------------------------------------------------------------------


async def approve(attempt: Attempt, prompt: str, schema: Any, *, redo: str | None, **options: Any) -> Decision:
    """Asks for approval or denial; if ``redo`` names what can run again, a person may also send it back with feedback (§5.5)."""
    target = _target(attempt, redo)
    _check_default(schema, options)
    question = Ask(kind=WaitKind.APPROVAL, prompt=prompt, schema=schema_of(schema), about=about(attempt, options["show"]), **options)
    if redo is not None:
        question = replace(question, actions=(*ws.ACTIONS[WaitKind.APPROVAL], ws.RETRY), redo=target or attempt.node.name)
    given = await request(attempt, question)
    if given.action == ws.RETRY:
        raise Redo(target, given.feedback or "")
    return Decision.of(given)


def _target(attempt: Attempt, redo: str | None) -> str | None:
    """Returns the node that ``redo`` names; None for this node."""
    return None if redo in (None, HERE, attempt.node.name) and HERE not in attempt.nodes else redo


async def ask(attempt: Attempt, prompt: str, schema: Any, **options: Any) -> Any:
    """Returns the answer as a value of the given type; an answer that does not fit is asked again."""
    canon.register_named(schema)
    _check_default(schema, options)
    shown = None if options["show"] is None else about(attempt, options["show"])

    def fits(given: RawDecision) -> str | None:
        if given.action != ws.ANSWER:
            return None
        try:
            convert(read_value(given), schema)
        except (InvalidInput, ValueError, TypeError) as e:
            return f"the last answer, by {given.actor}, did not fit: {e}"
        return None

    given = await request(attempt, Ask(kind=WaitKind.INPUT, prompt=prompt, schema=schema_of(schema), fits=fits, about=shown, **options))
    return convert(read_value(given), schema) if given.action == ws.ANSWER else read_value(given)


def _check_default(schema: Any, options: Mapping[str, Any]) -> None:
    """Refuses, before anybody is asked, a default that is no valid answer.

    Raises:
        InvalidInput: it does not have the type of an answer.
    """
    if options["on_timeout"] == "default" and options["default"] is not None:
        try:
            convert(canon.pack(options["default"], "default")[0], schema)
        except InvalidInput as e:
            raise InvalidInput(f"the default does not fit the question: {e.message}", field="default") from None


def schema_of(kind: Any) -> dict[str, Any] | None:
    """Returns the JSON schema of a type, for people and for early checks; None for a type that has none."""
    if kind is None or kind is Any or kind is object:
        return None
    if isinstance(kind, Mapping):
        return dict(kind)
    own = getattr(kind, "model_json_schema", None)
    if own is not None:
        return dict(own())
    try:
        return msgspec.json.schema(kind)
    except TypeError:
        return None


def convert(value: Any, kind: Any) -> Any:
    """Returns a stored answer as a value of the type that was asked for.

    Raises:
        InvalidInput: it has another type.
    """
    found = None if kind is object or isinstance(kind, Mapping) or kind is None else kinds.compile_kind(kind)
    try:
        return value if found is None else found.fit(value, "answer")
    except kinds.Misfit as e:
        raise InvalidInput(str(e), field=e.path) from None


async def handoff(attempt: Attempt, prompt: str, *, verdict: str, redo: str | None, authoritative: bool, actions: Iterable[str] | None, **options: Any) -> Decision:
    """Shows a verdict of the program to a person (§5.5). In an unattended run an advisory handoff continues with a recorded decision (§5.17)."""
    journal = attempt.journal
    offered = ws.ACTIONS[WaitKind.HANDOFF] if actions is None else tuple(actions)
    for action in offered:
        ws.check_action(action)
        if action not in (*ws.ACTIONS[WaitKind.HANDOFF], ws.REJECT):
            raise InvalidInput(f"a handoff cannot offer {action!r}", hint="it offers " + ", ".join((*ws.ACTIONS[WaitKind.HANDOFF], ws.REJECT)))
    target = _target(attempt, redo)
    question = Ask(
        kind=WaitKind.HANDOFF, prompt=prompt, verdict=verdict, redo=target or attempt.node.name, authoritative=authoritative, actions=offered,
        about=about(attempt, options["show"], verdict), fits=rejection_of(attempt), **options
    )
    try:
        given = await request(attempt, question)
    except Suspend as s:
        if not journal.run.unattended or s.waits[0].wait_id in attempt.rearmed:
            raise
        attempt.waits.clear()
        if authoritative:
            raise Unattended(s.waits[0]) from None
        wait = s.waits[0]
        given = RawDecision(
            wait_id=wait.wait_id, action=ws.CONTINUE, actor="unattended", decided_at=attempt.services.clock.now(), asked=wait.asked, note="advisory"
        )
        opened = [] if any(w.wait_id == wait.wait_id for w in journal.run.waits) else [ev.WaitRequested(wait)]
        await journal.save(Draft(facts=[*opened, ev.WaitDecided(given)], results=[decisions.answer(given)]))
    if given.action == ws.RETRY and redo is not None:
        raise Redo(target, given.feedback or "")
    if given.action == ws.REJECT:
        raise reject(attempt, given)
    return Decision.of(given)


def reject(attempt: Attempt, given: RawDecision) -> StepRejected:
    """Returns the failure of a step that a person rejected, and records the rejection as used: after a resume the question is asked again."""
    attempt.journal.hold(Draft(results=[StepRecord(attempt.key, _rejection(given), ws.REJECT, value=canon.encode(given.wait_id), kind="wait:used")]))
    why = given.feedback or given.note
    return StepRejected(f"{attempt.node.name} was rejected by {given.actor}" + (f": {why}" if why else ""))


def rejection_of(attempt: Attempt) -> Callable[[RawDecision], str | None]:
    """Returns a check for recorded answers: it refuses a rejection that has failed the step already, and says why."""

    def tell_used(given: RawDecision) -> str | None:
        if given.action != ws.REJECT or attempt.record(_rejection(given)) is None:
            return None
        return f"{given.actor} rejected this before the run was resumed"

    return tell_used


def _rejection(given: RawDecision) -> str:
    return f"@{ws.REJECT}/{given.wait_id}"


# -- signals, timers --------------------------------------------------------------------------------


async def signal(attempt: Attempt, name: str, **options: Any) -> Any:
    place = attempt.places.peek()
    given = await request(attempt, Ask(kind=WaitKind.SIGNAL, name=name, **options))
    if (branch := find_branch(attempt)) is not None:
        branch.give(place, attempt.places.scope())
    return read_value(given)


async def sleep(attempt: Attempt, duration: dt.timedelta | float) -> None:
    await request(attempt, Ask(kind=WaitKind.TIMER, name="sleep", timeout=duration, on_timeout="deliver"))

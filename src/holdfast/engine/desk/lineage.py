"""Replay and fork: new runs made from old ones, and the records that answer their calls (§7.6–7.8).

Theory of operation. Both begin at a checkpoint of the source, which is copied whole into the new run's first checkpoint; nothing of the
source is written. A replay is a run whose recorded calls are answered from an *echo*: the records of its source and, if the source is itself
a replay, of the source's source. The replay writes each answer into its own log, so that it can be replayed as well.
A fork executes its code again, under effect keys of its own, and finds in the ledger what its ancestors did at the same place
with the same arguments. A fork without edits that begins in the middle of a step is answered from what that step had finished and recorded.
Both ask for approvals again, unless approvals are inherited: then the consent to the very same question, shown the same under the same policy,
is taken over and recorded as taken over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast.callers import VIA
from holdfast.core import bounds, canon, compensation, decisions, ids, outdated, superstep
from holdfast.core import checkpoint as cps
from holdfast.core import events as ev
from holdfast.core.checkpoint import Base, Checkpoint, Delta, Ended, Source, StepRecord, TaskResult
from holdfast.core.codec import Row, open_row, open_rows
from holdfast.core.commit import DedupClaim
from holdfast.core.effects import Effect, EffectStatus, origin
from holdfast.core.errors import CheckpointNotFound, InvalidInput, StepFailure
from holdfast.core.intents import Intent
from holdfast.core.lease import COUNTER_BITS, TOUCH
from holdfast.core.progress import LEFT, LEFT_AT_ONCE, Progress
from holdfast.core.run import Run
from holdfast.core.waits import APPROVE, HUMAN, Decision, Wait, WaitKind
from holdfast.core.wording import target_of
from holdfast.engine.base.echo import Children, Echo, Held
from holdfast.engine.base.journal import Draft, Journal
from holdfast.engine.base.services import Services
from holdfast.engine.desk.door import REPLAY, Wish
from holdfast.ports import Loaded, Store, offers_upkeep

MANY = 1_000_000
Place = tuple[int, str, str]
_OF_PEOPLE = frozenset(f"{kind.value}:" for kind in HUMAN)
# Calls inside these are answered one by one, so that the policy for each effect applies.
_OPENED = frozenset({"task", "feedback", LEFT, LEFT_AT_ONCE})
# The kinds of records that a fork in the middle of a step takes over; effects are found in the ledger, and gates are asked again.
_CARRIED = frozenset({"step", "value", "scope", "first_of", "wait", "task", "feedback", "child"})


async def echo(services: Services, run: Run, of: str) -> Echo:
    """Reads what a replay or a fork ``of`` another run takes over."""
    store = services.store
    found = Echo(scope=run.run_id)
    serving, scoped = run.origin == REPLAY, run.origin != REPLAY
    source: str | None = of
    while source is not None:
        loaded = await store.get(source)
        if loaded is None:
            found.lost = source  # it was not imported with this run, or its row is lost; the rest of the lineage still answers
            break
        forebear = loaded[0]
        found.forebears.append(source)
        found.intents |= {_place(i): i for i in await store.intents(source, limit=MANY)}
        if serving:
            rows = await store.rows(source)
            progress = Progress(source, await services.threads.origin(source, rows))
            read = read_records(rows, progress)
            found.reached = max(found.reached, progress.checkpoint.step)
            found.outdated |= read.outdated.difference(found.records)
            found.records = read.records | found.records
            found.ended = read.ended | found.ended
            serving = forebear.origin == REPLAY
        if run.inherits:
            for place, given in consents(await store.rows(source)).items():
                found.consents.setdefault(place, given)
        if not scoped and forebear.origin != REPLAY:
            found.scope, scoped = source, True
        source = forebear.source_run_id
    if run.origin != REPLAY and run.source_checkpoint_id is not None:
        found.began, edited = await _read_birth(store, run)
    if found.began >= 0 and run.source_checkpoint_id is not None and not edited:
        unfinished = await find_unfinished(services, of, run.source_checkpoint_id)
        found.records, found.results, found.exact, found.stood = unfinished.records, tuple(unfinished.results.values()), True, unfinished.stood
        found.held = unfinished.held
        found.outdated, found.scopes = frozenset(unfinished.outdated), frozenset(unfinished.scopes)
    found.effects = [e for r in reversed(found.forebears) for e in await store.effects(r)]
    return found


class Read(NamedTuple):
    """The recorded calls of a run by (step, task, path), except those that are asked or executed again; the places of those that answer only the very same
    call; and how the run's barriers ended."""

    records: dict[Place, StepRecord]
    outdated: set[Place]
    ended: dict[int, Ended]


def read_records(rows: list[Row], progress: Progress) -> Read:
    """Returns the records that answer a replay. ``progress``: at the run's beginning."""
    out, stale, asked, acted = dict[Place, StepRecord](), set[Place](), set[Place](), set[Place]()
    ended: dict[int, Ended] = {}
    for row in rows:
        record = open_row(row, progress.hash)
        for result in record.results:
            if not isinstance(result, StepRecord) or result.kind in _OPENED or result.task == compensation.TASK:
                continue
            place = progress.checkpoint.step_of(result.task), result.task, result.path
            out.pop(place, None)  # an earlier record at this place belongs to a path that the run has left
            if not _of_people(result):
                out[place] = result
                if result.kind == "effect":
                    acted.add(place)
            elif not outdated.is_beside(result):
                asked.add(place)
        if record.delta is not None and (how := cps.note_end(record.delta)) is not None:
            ended[record.delta.step] = how
        before = _list_outdated(progress)
        progress.step(record)
        stale = {p for p in stale | before if p[0] != progress.checkpoint.step_of(p[1])}
        if any(map(_is_tried_again, record.events)) or any(isinstance(r, StepRecord) and r.kind == LEFT_AT_ONCE for r in record.results):
            # Records that the run dropped, such as a failure or an answer that nobody waits for, are not served: the replay makes them again.
            for place in [p for p in out if p[0] == progress.checkpoint.step_of(p[1]) and p[1:] not in progress.records]:
                del out[place]
    # What a scope gave answers for none of the people and effects in it, each of which has a policy of its own. The other calls in it are served. A race that no
    # person has decided stays decided, because what it cut off would act.
    for step, task, path in asked | acted:
        for around in outdated.list_scopes(path):
            if (scope := out.get((step, task, around))) is not None and (scope.kind != "first_of" or (step, task, path) in asked):
                del out[step, task, around]
    return Read(out, stale | _list_outdated(progress), ended)


def _list_outdated(progress: Progress) -> set[Place]:
    return {(progress.checkpoint.step_of(task), task, path) for task, path in progress.outdated}


def _is_tried_again(event: ev.Event) -> bool:
    return isinstance(event.fact, ev.StepRetryScheduled) or (isinstance(event.fact, ev.RunResumed) and event.fact.cause == "operator")


async def _read_birth(store: Store, run: Run) -> tuple[int, bool]:
    """Returns the super-step of the checkpoint that a fork began at, and whether the fork began with other values than its source had there."""
    [row] = await store.rows(run.run_id, 0, 1)
    first = open_row(row)
    return -1 if first.delta is None else first.delta.step, any(isinstance(e.fact, ev.StatePatched) for e in first.events)


async def expect_standing(services: Services, journal: Journal) -> None:
    """Refuses to continue a run if an effect whose result it was given, or that a fork took over, has been taken back in the run that executed it. This is
    recorded with the failure, so that a resume executes the effect again if its step has not finished.

    Raises:
        StepFailure: it names the effect and says what to do.
    """
    run, echo, progress = journal.run, journal.echo, journal.progress
    if run.origin == REPLAY:
        return
    own = await journal.asking(services.store.effects(run.run_id))
    lenders = {_owner(e) for e in own if e.status is EffectStatus.REUSED and e.source_effect_id}.difference([run.run_id] if echo is None else [run.run_id, *echo.forebears])
    progress.borrows = bool(lenders)
    lent = compensation.find_lent([e for lender in lenders for e in await journal.asking(services.store.effects(lender))], own)
    if lent:
        journal.hold(Draft(results=[compensation.note_gone(e) for e in lent], effects=lent))
        raise _explain_gone(run, progress, lent, _owner(lent[0]), "which gave this run its result", run.run_id)
    if echo is None:
        return
    theirs = [e for forebear in echo.forebears for e in await journal.asking(services.store.effects(forebear))]
    undone_at = {e.effect_id: e.attempted_at for e in theirs}
    pending = {(progress.checkpoint.step_of(t.key), t.key) for t in progress.checkpoint.pending}
    records = {(progress.checkpoint.step_of(task), task, path): record for (task, path), record in progress.records.items()}

    def keeps(effect: Effect) -> bool:
        if (effect.step, effect.task) in pending:
            if echo.stood.get((effect.step, effect.task, effect.path)) != effect.effect_id:
                return False
            return echo.held.is_among(progress.results, records, (effect.step, effect.task, effect.path))
        return effect.step <= echo.began and (effect.settled_at or 0) < run.created_at < undone_at.get(effect.undone, 0)

    gone = compensation.find_gone(theirs, own, keeps)
    if not gone:
        return
    undone = {e.effect_id: e.undone for e in gone}
    rows = [msgspec.structs.replace(e, undone=undone[e.source_effect_id]) for e in own if e.status is EffectStatus.REUSED and e.source_effect_id in undone]
    journal.hold(Draft(results=[compensation.note_gone(e) for e in gone], effects=rows))
    raise _explain_gone(run, progress, gone, gone[0].run_id, "which this run was forked from", gone[0].run_id)


def _owner(effect: Effect) -> str:
    """Returns the run that executed the effect."""
    return origin(effect).partition(".")[0]


def _explain_gone(run: Run, progress: Progress, gone: list[Effect], owner: str, how: str, again: str) -> StepFailure:
    """Makes the failure of a run that depends on effects that ``owner`` has taken back. ``again``: the run to fork to execute them again, if this run is past them."""
    return StepFailure(
        f"{', '.join(f'{e.capability} (step {e.step})' for e in gone)} of the run {owner}, {how}, was undone there in the meantime",
        code="effects_undone",
        hint="resume this run: it carries that out itself" if compensation.redoes(progress.checkpoint, gone) else f"holdfast fork {again} {target_of(run.target)} carries that out again",
    )


class Unfinished(NamedTuple):
    """What the unfinished tasks of a checkpoint in the middle of a step had finished and recorded. ``stood``: by place, the effects in the log there;
    ``held``: what contained their results; ``known``: effects that no longer stand and whose consequences are outdated already; ``outdated``: places of
    records that may depend on something that no longer exists; ``scopes``: places with calls beneath them."""

    results: dict[str, TaskResult]
    records: dict[Place, StepRecord]
    stood: dict[Place, str]
    held: Held
    known: set[str]
    outdated: set[Place]
    scopes: set[Place]


async def find_unfinished(services: Services, run_id: str, checkpoint_id: str) -> Unfinished:
    """Returns what was finished and recorded of a step, for a fork that begins at a checkpoint in the middle of it. What may depend on effects that no longer
    stand is outdated, whichever run of the lineage took them back. Failures, effects and people's answers are left out, because the fork meets them anew."""
    found = await _read_unfinished(services, run_id, checkpoint_id)
    await _outdate_lost(services, found)
    for at, record in list(found.records.items()):
        if record.kind not in _CARRIED or _of_people(record):
            del found.records[at]
    return found


async def _outdate_lost(services: Services, found: Unfinished) -> None:
    """Outdates what may depend on effects that no longer stand, or on records that a fork meets anew; removes the latter."""
    effects = [e for owner in {act.partition(".")[0] for act in found.stood.values()} for e in await services.store.effects(owner)]
    undone = ({e.effect_id for e in effects if e.undone} | compensation.in_doubt(effects)) - found.known
    for (step, task, path), act in found.stood.items():
        if act in undone:
            found.results.pop(task, None)
            _outdate(found, step, task, path)
    found.known.update(undone)
    for step, task, path in [p for p, r in found.records.items() if _is_met_anew(r)]:
        if (step, task, path) in found.records:
            _outdate(found, step, task, path)
            found.records.pop((step, task, path), None)


def _outdate(found: Unfinished, step: int, task: str, path: str) -> None:
    out = outdated.find_outdated([r for p, r in found.records.items() if p[:2] == (step, task)], path)
    for gone in out.gone:
        del found.records[step, task, gone]
    found.outdated.update([(step, task, p) for p in out.same])


def _is_met_anew(record: StepRecord) -> bool:
    """Whether the fork may get another answer here than its source did: it asks people again, and it retries what failed, even if the code had caught the failure."""
    return record.error is not None or (_of_people(record) and not outdated.is_beside(record))


async def _read_unfinished(services: Services, run_id: str, checkpoint_id: str) -> Unfinished:
    """Reads from the log what is known of the unfinished tasks of a checkpoint. For a fork of a fork, this includes what the first fork began with."""
    loaded = await services.store.get(run_id)
    if loaded is None:
        return Unfinished({}, {}, {}, Held(), set(), set(), set())
    rows = await services.store.rows(run_id)
    progress = Progress(run_id, await services.threads.origin(run_id, rows))
    stood: dict[tuple[int, str, str], str] = {}
    for row in rows:
        record = open_row(row, progress.hash)
        stood |= {(f.step, f.task, f.path): f.effect_id for e in record.events if isinstance(f := e.fact, ev.SideEffectRecorded | ev.SideEffectReused)}
        progress.step(record)
        if progress.checkpoint.checkpoint_id == checkpoint_id:
            break
    checkpoint, forebear = progress.checkpoint, loaded[0]
    pending = {(checkpoint.step_of(t.key), t.key) for t in checkpoint.pending}
    progress.forgive()
    # The others, and what depends on them, are settled already. So are those whose place now holds another record, because the code has taken another path.
    given = {place for place, record in progress.records.items() if record.kind == "effect" and record.error is None}
    stood = {p: act for p, act in stood.items() if p[:2] in pending and p[1:] in given}
    records = {(checkpoint.step_of(task), task, path): record for (task, path), record in progress.records.items() if task != compensation.TASK}
    out = {(checkpoint.step_of(task), task, path) for task, path in progress.outdated}
    results = {r.task: r for r in progress.results.values() if r.task[0] != "@"}
    held, known = Held(dict(results), _find_around(stood, records)), set[str]()
    source, at = forebear.source_run_id, forebear.source_checkpoint_id
    if source is not None and at is not None and forebear.origin != REPLAY and not (await _read_birth(services.store, forebear))[1]:
        theirs = await _read_unfinished(services, source, at)
        await _outdate_lost(services, theirs)
        known = theirs.known.difference(stood.values(), [act for p, act in theirs.stood.items() if theirs.held.is_among(results, records, p)])
        earlier = {p: r for p, r in theirs.records.items() if p[:2] in pending and p not in records}
        out |= {p for p in theirs.outdated if p in earlier}
        if earlier or forebear.current_step_id is None:
            results = theirs.results | results
        records |= earlier  # appended: records of calls that this run has not reached count as later than all that it has
        stood = {p: act for p, act in theirs.stood.items() if p[:2] in pending} | stood
        held = theirs.held.join(held)
    scopes = {(*at, scope) for at in pending for scope in cps.find_scopes([r for place, r in records.items() if place[:2] == at])}
    return Unfinished(results, records, stood, held, known, out, scopes)


def _find_around(stood: Mapping[Place, str], records: Mapping[Place, StepRecord]) -> dict[Place, StepRecord]:
    """Returns the records that contain the results of these effects."""
    around = {(step, task, at) for step, task, path in stood for at in outdated.list_around(path)}
    return {at: r for at, r in records.items() if at in around}


async def find_child(store: Store, echo: Echo, place: tuple[int, str, str]) -> str | None:
    """Returns the run that the nearest ancestor has started as a child at a place."""
    return (await _find_children(store, echo)).by_place.get(place)


async def find_child_of(store: Store, echo: Echo, answer: StepRecord) -> str | None:
    """Returns the child whose end a record reports. Its place is not enough to find it, because other children may have been started there."""
    return (await _find_children(store, echo)).by_wait.get(decisions.read_answer(answer).wait_id)


async def _find_children(store: Store, echo: Echo) -> Children:
    if echo.children is None:
        found = Children()
        for forebear in reversed(echo.forebears):
            for event in (e for row in await store.rows(forebear) for e in open_row(row).events):
                if isinstance(event.fact, ev.WaitRequested) and (wait := event.fact.wait).kind is WaitKind.CHILD:
                    found.by_place[wait.step, wait.task, wait.path] = found.by_wait[wait.wait_id] = wait.name
        echo.children = found
    return echo.children


def begin_child(parent: Run, former: Run, *, same: bool) -> ev.RunReplayed | ev.RunForked:
    """Returns the first fact of a child that repeats a former child: in a replay, and with the same input, a replay of that child; else a fork of it."""
    if parent.origin == REPLAY and same:
        return ev.RunReplayed(former.run_id, None, parent.replay_effects, parent.inherits)
    return ev.RunForked(former.run_id, None, f"child of {parent.run_id}", parent.replay_effects, parent.inherits)


def consents(rows: list[Row]) -> dict[tuple[int, str, str], tuple[Wait, Decision]]:
    """Returns what people approved in a run, by (step, task, path), with the question as it was asked."""
    asked: dict[str, Wait] = {}
    out: dict[tuple[int, str, str], tuple[Wait, Decision]] = {}
    for event in (e for record in open_rows(rows) for e in record.events):
        match event.fact:
            case ev.WaitRequested(wait=wait) if wait.kind in (WaitKind.APPROVAL, WaitKind.GATE):
                asked[wait.wait_id] = wait
            case ev.WaitDecided(decision=given) if given.action == APPROVE and given.wait_id in asked:
                wait = asked[given.wait_id]
                out[wait.step, wait.task, wait.path] = wait, given
            case _:
                pass
    return out


def _of_people(record: StepRecord) -> bool:
    return record.kind == "wait" and record.name.partition(":")[0] + ":" in _OF_PEOPLE


def _place(intent: Intent) -> str:
    """Returns an intent's place in its run, which is the same in a replay."""
    return intent.intent_id.partition(".")[2]


# -- making one ---------------------------------------------------------------------------------------


async def create(services: Services, source: Loaded, wish: Wish) -> str:
    """Creates the new run at its checkpoint, without an owner and due; returns its id.

    Raises:
        CheckpointNotFound: the source has no such checkpoint or step, or no checkpoint at all.
        InvalidInput: an edit of a channel that the state does not have.
        Conflict: with the code ``claim_taken``, if the request key was used.
    """
    run = source.run
    first, found = await point(services, run, wish)
    edits = {**wish.inputs, **wish.edits}
    unknown = [n for n in edits if n not in found.values and n not in _channels(services, run)]
    if unknown:
        raise InvalidInput(f"{run.skill_id} has no channel {', '.join(unknown)}", hint="channels: " + ", ".join(found.values))
    now = services.store.now()
    thread, session = [ids.shorten(await _root(services, run, name)) for name in (run.thread_id, run.session_key)]
    run_id = ids.run_id(now, services.entropy(), run.tenant_id, beside=session)
    program = services.skills.find(run.skill_id, run.skill_version) if run.skill_id in services.skills.ids else None
    if program is not None:
        edits = superstep.check_values(program, edits, "set", program.values)
    values = canon.admit({**found.values, **edits}, "set")
    bounds.check_size(canon.encode(canon.admit(edits, "set")), "set")
    given = canon.encode(canon.admit({**canon.decode(first.input), **{n: edits[n] for n in wish.inputs}}, "inputs")) if wish.inputs else first.input
    anew = {"environment": services.environment, **wish.fields}
    submitted = msgspec.structs.replace(
        first,
        run_id=run_id,
        input=given,
        fingerprint=program.fingerprint if program is not None and wish.upgrade else run.fingerprint,
        thread_id=f"{thread}~{run_id}",
        session_key=f"{session}~{run_id}",
        not_before=wish.not_before,
        parent_run_id=None,
        parent_wait_id=None,
        source_run_id=run.run_id,
        source_checkpoint_id=found.checkpoint_id,
        lineage_root=run.lineage_root,
        request_key=wish.key,
        via=VIA.get(),
        **anew,
    )
    facts: list[ev.Fact] = [submitted]
    if wish.kind == REPLAY:
        facts.append(ev.RunReplayed(run.run_id, found.checkpoint_id, wish.effects.value if wish.effects else "", wish.inherits))
    else:
        facts.append(ev.RunForked(run.run_id, found.checkpoint_id, wish.reason, wish.effects.value if wish.effects else "", wish.inherits))
    if edits:
        facts.append(ev.StatePatched(tuple(edits), wish.reason))
    claims = []
    if wish.key is not None:
        claims = [DedupClaim("request", request_scope(run, wish.kind), wish.key, run_id, _digest(found, wish), now + bounds.KEY_RETENTION_US)]
    journal = Journal(services.store, None, None, services.store.incarnation << COUNTER_BITS | 1, Progress(run_id))
    held = cps.pack_held(values, {step: {**seen, **{n: values[n] for n in edits}} for step, seen in found.held.items()})
    delta = Delta(
        step=found.step,
        source=Source.FORK,
        values=canon.encode(canon.FrozenDict(values)),
        pending=found.pending,
        base=Base(dict(found.versions), {n: dict(s) for n, s in found.seen.items()}, tuple(sorted(found.skipped)), found.topics, held, found.idle),
    )
    checkpoint = cps.advance(journal.progress.checkpoint, delta, {}, seq=0, at=0, hash=b"")
    draft = Draft(facts=facts, claims=claims)
    await journal.checkpoint(draft, delta, checkpoint, lease=TOUCH, actor=wish.actor)
    return run_id


async def _root(services: Services, run: Run, name: str) -> str:
    """Returns the thread or the session from which the run's own was made, without the suffixes that forks and replays added. A suffix that a user chose stays."""
    while (found := ids.split_own(name)) is not None and await _is_made_for(services, run, name, found[1]):
        name = found[0]
    return name


async def _is_made_for(services: Services, run: Run, name: str, owner: str) -> bool:
    """Whether that name was made for the run ``owner`` when it was forked or replayed. Later turns of its thread have the name too."""
    if owner != run.run_id:
        found = await services.store.get(owner)
        if found is None:  # it was pruned, or never existed
            return offers_upkeep(services.store) and await services.store.find_pruned(owner) is not None
        if found[0].tenant_id != run.tenant_id:
            return False
        run = found[0]
    return run.source_run_id is not None and name in (run.thread_id, run.session_key)


def request_scope(run: Run, kind: str) -> str:
    """Returns the scope in which the request keys of a run's replays or forks are unique (§3.5)."""
    return ids.request_scope(run.tenant_id, f"{kind}:{run.run_id}")


async def digest(services: Services, run: Run, wish: Wish) -> str:
    """Returns a digest of the request, so that the same key with another request is a conflict."""
    return _digest((await point(services, run, wish))[1], wish)


def _digest(found: Checkpoint, wish: Wish) -> str:
    edits = {**wish.inputs, **wish.edits}
    return canon.fingerprint([found.checkpoint_id, wish.kind, wish.effects.value if wish.effects else "", edits, dict(wish.fields), wish.inherits])


def _channels(services: Services, run: Run) -> Mapping[str, Any]:
    if run.skill_id not in services.skills.ids:
        return {}
    return services.skills.find(run.skill_id, run.skill_version).channels


async def point(services: Services, run: Run, wish: Wish) -> tuple[ev.RunSubmitted, Checkpoint]:
    """Returns the source's first fact and the checkpoint at which to begin.

    A replay begins at the start. A fork with edits begins where the edited channels were last written, so that the edit
    replaces that write and everything that depends on it is executed again, approvals included. A fork without edits begins at the last checkpoint with
    something left to do. No fork begins after a step whose effects were taken back: that step is executed again (§6.11).
    """
    rows = await services.store.rows(run.run_id)
    progress = Progress(run.run_id, await services.threads.origin(run.run_id, rows))
    submitted: ev.RunSubmitted | None = None
    all_of_them: list[Checkpoint] = []
    for row in rows:
        record = open_row(row, progress.hash)
        for event in record.events:
            if isinstance(event.fact, ev.RunSubmitted):
                submitted = event.fact
        progress.step(record)
        if record.delta is not None:
            all_of_them.append(progress.checkpoint)
    if submitted is None or not all_of_them:
        raise CheckpointNotFound(f"{run.run_id} has no checkpoint yet", hint="let it start first")
    return submitted, _choose(run, all_of_them, wish)


def _choose(run: Run, found: list[Checkpoint], wish: Wish) -> Checkpoint:
    if wish.checkpoint_id is not None:
        for cp in found:
            if cp.checkpoint_id == wish.checkpoint_id:
                return cp
        raise CheckpointNotFound(f"{run.run_id} has no checkpoint {wish.checkpoint_id}", hint=f"holdfast checkpoints {run.run_id} lists them")
    if wish.step is not None:
        for cp in found:
            if cp.step + 1 == wish.step or any(wish.step in (t.key, t.node) for t in cp.pending):
                return cp
        raise CheckpointNotFound(f"{run.run_id} never reached the step {wish.step}", hint=f"holdfast checkpoints {run.run_id} shows its steps")
    if wish.kind == REPLAY or wish.inputs:
        return found[0]
    able = [cp for cp in found if cp.pending and compensation.redoes(cp, wish.missing)]
    if wish.edits:
        written = max((found[-1].versions.get(name, 0) for name in wish.edits), default=0)
        return next((cp for cp in able if cp.step >= written), able[-1] if wish.missing else found[-1])
    return able[-1] if able else found[-1]


__all__ = ["begin_child", "create", "digest", "echo", "expect_standing", "find_child", "find_child_of", "point", "read_records", "request_scope"]

"""Children: runs that a node starts and waits for (§4.14).

Theory of operation. A child is created in the commit that opens the wait for it, and reports its end to its parent's inbox. A run that did the same work may exist
already: from an earlier round, which a cancel or a failure ended before the parent was resumed; in the run that the parent replays or forks; or under the same
request key. Its work is not repeated. If it is a child of this very parent and has completed meanwhile, its result is used; if it still runs, the parent waits for it.
Otherwise the new child is a fork of it, or its replay in a replay, and finds in the ledger what was done (§6.6, §7.6).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import msgspec

from holdfast.core import canon, decisions, ids, superstep
from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import waits as ws
from holdfast.core.bounds import wrong
from holdfast.core.called import Call
from holdfast.core.codec import open_row
from holdfast.core.commit import InboxItem
from holdfast.core.errors import ChildFailed, ClaimTaken, RequestConflict
from holdfast.core.graph import Program
from holdfast.core.lease import TOUCH
from holdfast.core.payloads import hold_open
from holdfast.core.progress import Progress
from holdfast.core.run import Run
from holdfast.core.status import Status
from holdfast.core.waits import Wait, WaitKind
from holdfast.engine.base.journal import Draft
from holdfast.engine.base.services import Services
from holdfast.engine.calls import steps
from holdfast.engine.calls.attempt import Attempt, Suspend
from holdfast.engine.calls.waits import Ask, make_wait, open_at, read_value, request
from holdfast.engine.desk import door, lanes, lineage
from holdfast.engine.desk.intake import birth

Duration = dt.timedelta | float | int | None


class Former(msgspec.Struct, frozen=True):
    """A run that did the work of a child before. ``own``: it was started by this parent, or by one that this parent replays or forks; ``here``: by this parent itself; ``same``:
    with the same input."""

    run: Run
    own: bool
    here: bool
    same: bool


async def child(
    attempt: Attempt, skill: Any, inputs: Mapping[str, Any] | None, *, options: Mapping[str, Any], on_parent_end: str, timeout: Duration, on_timeout: str
) -> Any:
    """Starts a child run in the commit that opens the wait for it, and returns its result (§4.14). If the store cannot read other runs, or reads records under a key that
    this process lacks, that is no failure of the step (§1.12, §14.5).

    Raises:
        ChildFailed: it ended otherwise than completed.
        LaneOfAncestor: it would wait for a run that waits for it.
        RequestConflict: its key was used with another input, or belongs to a run that has not completed and is no child of this parent (§3.5).
    """
    begun = _start(attempt, skill, inputs, options=options, on_parent_end=on_parent_end, timeout=timeout, on_timeout=on_timeout)
    return await attempt.journal.asking(begun)


async def _start(
    attempt: Attempt, skill: Any, inputs: Mapping[str, Any] | None, *, options: Mapping[str, Any], on_parent_end: str, timeout: Duration, on_timeout: str, here: str | None = None
) -> Any:
    """Starts the child of a call, or finds it. ``here``: the place of the call, if it is open already."""
    services, journal = attempt.services, attempt.journal
    program = services.skills.find(skill) if isinstance(skill, str) else services.skills.add(_program(skill))
    given = dict(inputs or {})
    path = attempt.places.peek() if here is None else here
    stands = await _may_stand(attempt, path, program, given)
    known, former = open_at(attempt, path) if stands else None, None
    if known is None:
        await lanes.refuse_own(services.store, journal.run, options)
        if not stands or journal.record(attempt.key, path, Call(path, f"{WaitKind.CHILD.value}:{program.id}", "wait")) is None:
            await steps.afford(attempt, path)
            former = await _find_former(attempt, path, program, given, options)
    joined = former.run.run_id if former is not None and former.here and former.same and not former.run.terminal else None
    round = journal.progress.asked.get((attempt.key, path), 0)
    session = options.get("session_key") or options.get("thread_id") or ""
    name = ids.child_run_id(journal.run.run_id, attempt.step, attempt.key, path, round, tenant=journal.run.tenant_id, session=str(session))
    name = joined or name if known is None else known.name

    def create(wait: Wait) -> Draft:
        if joined is not None:
            return Draft()
        parent = journal.run
        asked = {"tenant_id": parent.tenant_id, "job_id": parent.job_id, "trace_id": parent.trace_id, "queue": parent.queue, "unattended": parent.unattended, **options}
        if former is not None:
            asked.pop("key", None)  # the former child has the key
        made = door.request(
            asked, where="ctx.child", parent_run_id=parent.run_id, parent_wait_id=wait.wait_id, on_parent_end=on_parent_end,
            source_run_id=None if former is None else former.run.run_id, lineage_root="" if former is None else former.run.lineage_root,
        )
        born = birth(services, program, given, made, run_id=wait.name)
        draft = born.draft()
        if former is not None:
            draft.facts.append(lineage.begin_child(parent, former.run, same=former.same))
        draft.facts.append(ev.RunQueued(f"child of {parent.run_id}"))
        return Draft(creates=[born.journal.unsent(draft, TOUCH)])

    question = Ask(
        kind=WaitKind.CHILD, prompt=program.id, name=name, cascade=on_parent_end == "cancel", timeout=timeout, on_timeout=on_timeout, creates=create, path=here,
        stands=stands,
    )
    if former is not None and former.run.status is Status.COMPLETED and former.same and (former.here or not former.own):
        result = await _adopt(attempt, question, path, former.run)
    else:
        try:
            result = await request(attempt, question)
        except Suspend as rests:
            await _tell_end(attempt, rests.waits[0])
            raise
        except ClaimTaken:  # another run took the key a moment ago; it is read once
            if here is None:
                return await _start(attempt, skill, inputs, options=options, on_parent_end=on_parent_end, timeout=timeout, on_timeout=on_timeout, here=path)
            raise RequestConflict(f"the key {options.get('key')!r} was used by another run a moment ago", hint="retry the step, or use another key") from None
    if result.action == Status.COMPLETED:
        value = read_value(result)
        return value if program.flow else program.state._view(value)
    if result.action == ws.TIMEOUT:
        return read_value(result)
    raise ChildFailed(ws.tell_child(result) or f"the child {name} ended {result.action}", hint=f"holdfast show {name}")


def _program(skill: Any) -> Program:
    """Returns the program of a skill that was given by value.

    Raises:
        InvalidInput: it is no skill.
    """
    found = getattr(skill, "program", skill)
    if not isinstance(found, Program):
        raise wrong("skill", "a graph, a flow, or the id of one", skill)
    return found


async def _find_former(attempt: Attempt, path: str, program: Program, given: Mapping[str, Any], options: Mapping[str, Any]) -> Former | None:
    """Returns the run that did the work of this child before, if there is one.

    Raises:
        RequestConflict: the key was used otherwise.
    """
    services, journal = attempt.services, attempt.journal
    mine, forebears = journal.run.run_id, journal.echo.forebears if journal.echo is not None else []
    key = options.get("key")
    if key is not None:
        tenant = options.get("tenant_id") or journal.run.tenant_id
        taken = await services.store.find_claim("request", ids.request_scope(tenant, program.id), key)
        if taken is not None:
            if taken.digest != canon.fingerprint(superstep.pack_input(program, given)[0]):
                raise RequestConflict(f"the key {key!r} was used with another input, by the run {taken.run_id}", hint="use another key")
            if (run := await _find_run(services, taken.run_id)) is None:
                raise RequestConflict(f"the key {key!r} was used by the run {taken.run_id}, which was deleted", hint="use another key")
            own = run.parent_run_id == mine or run.parent_run_id in forebears
            if not own and run.status is not Status.COMPLETED:
                raise RequestConflict(f"the key {key!r} was used by the run {run.run_id}, which is {run.status} and was started elsewhere", hint="retry the step when it has completed, or use another key")
            return Former(run, own, run.parent_run_id == mine, same=True)
    asked = journal.progress.questions.get((attempt.key, path))
    if asked is not None and asked.kind is WaitKind.CHILD:
        return await _describe_former(services, asked.name, program, given, here=True)
    if journal.echo is None or (name := await lineage.find_child(services.store, journal.echo, (attempt.step, attempt.key, path))) is None:
        return None
    return await _describe_former(services, name, program, given, here=False)


async def _find_run(services: Services, run_id: str) -> Run | None:
    """Returns another run as it is now.

    Raises:
        KeyUnavailable: it has ended, and its result is encrypted under a key that this process lacks; a record of that result could never be read.
    """
    found = await services.store.get(run_id)
    if found is not None and found[0].terminal:
        hold_open(found[0])
    return None if found is None else found[0]


async def _may_stand(attempt: Attempt, path: str, program: Program, given: Mapping[str, Any]) -> bool:
    """Whether the record at this place may be the end of such a child. It is not, if the child had another input and something before it has been dropped; a fork takes over
    no such end."""
    journal, place = attempt.journal, (attempt.step, attempt.key, path)

    async def is_same(run_id: str | None) -> bool:
        former = None if run_id is None else await _describe_former(attempt.services, run_id, program, given, here=True)
        return former is not None and former.same

    if (echo := journal.echo) is not None and echo.exact:
        theirs = echo.records.get(place)
        if theirs is not None and theirs.kind == "wait" and not await is_same(await lineage.find_child_of(attempt.services.store, echo, theirs)):
            del echo.records[place]
    if not attempt.places.is_outdated(path):
        return True
    asked = journal.progress.questions.get(place[1:])
    return asked is not None and asked.kind is WaitKind.CHILD and await is_same(asked.name)


async def _describe_former(services: Services, run_id: str, program: Program, given: Mapping[str, Any], *, here: bool) -> Former | None:
    """Returns the run that was at this place before, if it is one of the same skill."""
    run = await _find_run(services, run_id)
    if run is None or run.skill_id != program.id:
        return None
    asked = superstep.pack_input(program, given)[1]
    first = [event.fact for row in await services.store.rows(run_id, 0, 1) for event in open_row(row).events]
    return Former(run, own=True, here=here, same=any(isinstance(fact, ev.RunSubmitted) and fact.input == asked for fact in first))


async def _adopt(attempt: Attempt, question: Ask, path: str, run: Run) -> ws.Decision:
    """Returns the result of a run that has completed, and records the child here as asked and answered."""
    with attempt.places.open(question.kind.value) if question.path is None else nullcontext():
        wait = make_wait(attempt, msgspec.structs.replace(question, name=run.run_id), path, "")
        ended = await _end_of(attempt.services, run)
        given = ws.Decision(wait.wait_id, ended.status, ev.SYSTEM, payload=ended.result, decided_at=attempt.services.clock.now(), asked=wait.asked)
        await attempt.save(Draft(facts=[ev.WaitRequested(wait), ev.WaitDecided(given)], results=[decisions.answer(given)]))
    return given


async def _tell_end(attempt: Attempt, wait: Wait) -> None:
    """Reports the end of a child again that this wait has not started: it may have ended before any run waited for it."""
    if wait.wait_id not in attempt.waits or attempt.journal.progress.asked.get((attempt.key, wait.path), 1) < 2:
        return
    run = await _find_run(attempt.services, wait.name)
    if run is not None and run.terminal:
        ended = msgspec.structs.replace(await _end_of(attempt.services, run), nonce=wait.wait_id)
        await attempt.services.store.put(InboxItem(run_id=attempt.journal.run.run_id, key=ended.key, command=ended, put_at=attempt.services.clock.now()))
        attempt.services.drivers.nudge(attempt.journal.run.run_id)


async def _end_of(services: Services, run: Run) -> cmd.ChildEnded:
    """Returns how a run has ended, in the form in which its parent is told."""
    result = run.result
    if run.status is Status.COMPLETED and result is None and (loaded := await services.threads.load(run.run_id)) is not None:
        result = canon.encode(canon.FrozenDict(Progress(run.run_id, loaded.whole).walk(loaded.rows).checkpoint.values))
    return cmd.ChildEnded(run.run_id, run.status.value, result, run.error)


__all__ = ["child"]

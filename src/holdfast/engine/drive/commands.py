"""Takes commands for runs: decisions, cancels and signals, whether or not a process executes the run (§5.4, §10.12).

A command is put into the run's inbox under a unique key. If the run rests, the process that has put the command turns it into events at once, in one commit that
takes the next fence and releases it. If the run is being executed, its owner does that.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from holdfast.core import canon, decisions, superstep
from holdfast.core import checkpoint as cps
from holdfast.core import commands as cmd
from holdfast.core import effects as fx
from holdfast.core import events as ev
from holdfast.core import run as records
from holdfast.core.codec import open_row
from holdfast.core.commit import InboxItem
from holdfast.core.errors import (
    AlreadyTerminal,
    AmbiguousWait,
    Conflict,
    DecisionConflict,
    Denied,
    HoldfastError,
    NotDecidable,
    Rejected,
    SignalConflict,
    StoreError,
    UsageError,
)
from holdfast.core.graph import Program
from holdfast.core.lease import AT_ONCE, TOUCH, Alive
from holdfast.core.progress import Progress
from holdfast.core.status import LIVE, TERMINAL, WAITING
from holdfast.core.tokens import Token, hash_secret
from holdfast.core.waits import ABANDON, RECORD_RESULT, REEXECUTE, Wait, WaitKind, answering, decidable
from holdfast.core.wording import target_of
from holdfast.engine.base.journal import Draft, Journal
from holdfast.engine.base.reader import Reader
from holdfast.engine.base.services import Services
from holdfast.engine.calls.effects import refuse_to_repeat, surface_open
from holdfast.engine.desk import door
from holdfast.engine.drive import compensation
from holdfast.engine.look import linked, recipients
from holdfast.engine.look.snapshot import whole
from holdfast.handle import Decided
from holdfast.ports import Loaded, RunFilter

PATIENCE = 100


class Desk:
    """Takes commands for runs. Runs that this process executes are notified at once; other owners see the mark of their inbox."""

    def __init__(self, services: Services, reader: Reader) -> None:
        self._services = services
        self._store = services.store
        self._reader = reader

    async def decide(
        self,
        run_id: str,
        action: str,
        *,
        wait_id: str | None = None,
        actor: str = "operator",
        feedback: str | None = None,
        note: str | None = None,
        payload: Any = ...,
        resume: bool = True,
        force: bool = False,
        via: str | None = None,
    ) -> None:
        """Records a decision about a wait (§5.4). This needs no code of the run: a worker or ``resume`` continues the run.

        Raises:
            AmbiguousWait: several waits are open, and ``wait_id`` is not given.
            DecisionConflict: the wait was decided otherwise before.
            NotDecidable, ActionUnavailable, Denied: the state machine or the resolver refuses.
            AttemptMayLive: the effect may be carried out twice; ``force`` accepts that, if the environment permits force.
        """
        loaded = await self._reader.load(run_id)
        run = loaded.run
        wait_id = wait_id or _only_wait(run, action)
        await self._find_out(run)
        command = door.decision(
            wait_id, action, actor=actor, feedback=feedback, note=note, given=payload, at=self._store.now(), resume=resume, force=force, via=via
        )
        wait = next((w for w in run.waits if w.wait_id == wait_id), None)
        if wait is not None:
            await self._may(run, wait, command)
        elif not await self._was_put(command, run):
            decisions.decide(run, command, self._store.now())
            raise NotDecidable(f"the wait {wait_id} is not open")
        item = await self._put(run_id, command, loaded)
        self._same(command, item)
        if wait is not None and wait.effect_id is not None:
            await self._elsewhere(run, wait.effect_id, command)

    async def _find_out(self, run: records.Run) -> bool:
        """Answers this run's questions about acts that another run of its lineage has settled meanwhile; returns False if there are none."""
        told = False
        for wait in run.waits:
            if wait.effect_id is None or wait.kind is not WaitKind.EFFECT:
                continue
            found = fx.find_settlement(await self._store.effects(lineage_root=run.lineage_root), wait.effect_id)
            if found is None or found.run_id == run.run_id or (found.status is fx.EffectStatus.ABANDONED and _is_given_up(wait)):
                continue
            if any(i.key == f"wait:{wait.wait_id}" for i in await self._store.inbox(run.run_id, taken=True)):
                continue
            done = found.status is fx.EffectStatus.RECORDED
            data = ((await whole(self._store, found)).result or canon.encode(None)) if done else None
            note = f"answered in the run {found.run_id}"
            given = cmd.Decide(wait.wait_id, RECORD_RESULT if done else ABANDON, ev.SYSTEM, note=note, payload=data, at=self._store.now())
            await self._put(run.run_id, given)
            told = True
        return told

    async def _elsewhere(self, run: records.Run, act: str, command: cmd.Decide) -> None:
        """Gives what a person found out about an act to the other runs of the lineage that ask the same question (§5.8, §6.5).

        Only one run carries out the act again (``reexecute``): the others are answered with its result.
        """
        if command.action not in (RECORD_RESULT, ABANDON):
            return
        about = [e for e in await self._store.effects(lineage_root=run.lineage_root) if act in (e.effect_id, e.source_effect_id)]
        told = replace(command, note=" · ".join(n for n in (command.note, f"answered in the run {run.run_id}") if n))
        for other in dict.fromkeys(e.run_id for e in about if e.run_id != run.run_id):
            there = await self._store.get(other)
            for wait in [] if there is None else [w for w in there[0].waits if w.effect_id == act and not (command.action == ABANDON and _is_given_up(w))]:
                await self._put(other, replace(told, wait_id=wait.wait_id))

    async def _was_put(self, command: cmd.Decide, run: records.Run) -> bool:
        return any(i.key == command.key for i in await self._store.inbox(run.run_id, taken=True))

    def _same(self, command: cmd.Decide, item: InboxItem) -> None:
        """Returns the recorded decision if the new one is equal (§5.6); raises a conflict if it differs."""
        there = item.command
        if isinstance(there, cmd.Decide) and _saying(there) == _saying(command):
            return
        raise DecisionConflict(f"the wait {command.wait_id} is decided already: {linked.tell(there)}")

    async def decide_each(
        self, chosen: Iterable[tuple[str, str]], action: str, *, actor: str, feedback: str | None, note: str | None, payload: Any
    ) -> list[Decided]:
        """Decides many waits in the same way, each in its own commit. A refused one says why, and does not stop the others."""
        out = []
        for run_id, wait_id in chosen:
            code = None
            try:
                await self.decide(run_id, action, wait_id=wait_id, actor=actor, feedback=feedback, note=note, payload=payload)
            except (Conflict, Rejected, UsageError) as e:
                code = e.code
            out.append(Decided(run_id, wait_id, code is None, code))
        return out

    async def _may(self, run: records.Run, wait: Any, command: cmd.Decide) -> None:
        """Refuses a decision before anything is written, if the actor, the wait's actions, or an attempt that may still act does not permit it (§5.5, §5.7, §6.5)."""
        await self._authorise(run, wait, command)
        decisions.decide(run, command, self._store.now())
        if command.force:
            if command.action != REEXECUTE:
                raise UsageError(f"there is nothing to force in {command.action}", hint="--force is for --action reexecute, where an effect may happen twice")
            self._services.place.check_force("an effect that may happen twice")
        elif command.action == REEXECUTE and wait.effect_id is not None:
            await refuse_to_repeat(self._services, wait.effect_id)

    async def allow(self, run: records.Run, wait: Any, action: str, actor: str, force: bool) -> None:
        """Checks whether an actor may answer a wait by another way than a decision (§5.7, §6.5).

        Raises:
            Denied: the resolver refused; the refusal is recorded.
            RestrictedOption: it is forced, and the environment does not permit force.
        """
        await self._authorise(run, wait, cmd.Decide(wait.wait_id, action, actor))
        if force:
            self._services.place.check_force("an effect that may happen twice")

    async def _authorise(self, run: records.Run, wait: Any, command: cmd.Decide) -> None:
        """Asks the resolver before anything enters the run; a refusal leaves an audit event (§5.7)."""
        resolver = self._services.resolver
        verdict: bool | str = True if resolver is None else resolver(command.actor, command.action, wait, run)
        if wait.who and command.actor not in wait.who and verdict is True:
            verdict = f"it is for {', '.join(wait.who)}"
        if verdict is True:
            return
        reason = verdict if isinstance(verdict, str) else "the resolver refused"
        audit = cmd.Refused(wait.wait_id, command.action, command.actor, reason, nonce=f"{self._services.entropy() % 10**12}", via=command.via)
        await self._put(run.run_id, audit)
        raise Denied(f"{command.actor} may not {command.action} {wait.wait_id}: {reason}")

    async def _put(self, run_id: str, command: cmd.AnyCommand, known: Loaded | None = None) -> InboxItem:
        """Puts a command into the inbox, and takes it out at once if the run rests. Returns the item that has this key, which may come from another caller.
        ``known``: the run as it was read a moment ago.

        Raises:
            Rejected, UsageError: the log says that the command came too late.
        """
        item = await self._store.put(InboxItem(run_id=run_id, key=command.key, command=command, put_at=self._store.now()))
        # This is done even if the item was there already: the process that put it may have died before this point.
        if known is not None and not known.lease.live(self._store.now()) and item.taken_seq is None and item.command == command:
            known = replace(known, inbox=(*(i for i in known.inbox if i.key != item.key), item))
            settled = await self.settle(run_id, known)
        else:
            settled = await self.settle(run_id) if item.taken_seq is None or item.command == command else {}
        if item.command == command and (refused := await self._outcome(item, settled)) is not None:
            raise refused
        return item

    async def _outcome(self, item: InboxItem, settled: Mapping[str, HoldfastError | None]) -> HoldfastError | None:
        """Returns why a command was refused, if it has been taken already, by any process."""
        if item.key in settled:
            return settled[item.key]
        there = await self._store.put(item)  # the item is there already; ``put`` returns its present state
        if there.taken_seq is None:
            return None  # the run's owner will take it
        return next((decisions.refusal([e.fact for e in open_row(r).events], item.key) for r in await self._store.rows(item.run_id, there.taken_seq - 1, 1)), None)

    async def at_rest(self, loaded: Loaded, draft: Draft, *, actor: str, source: cps.Source | None = None, due: int | None = None) -> bool:
        """Writes one commit to a run, decided on the run as it was loaded; returns False if a process executes the run, or another has written first."""
        if loaded.lease.live(self._store.now()):
            return False
        fence = loaded.lease.fence + 1
        if due is None and source is None and any(d.resume for d in loaded.run.decisions):
            due = AT_ONCE  # a recorded answer has made the run due; no later write may undo that
        if due is not None and source is None and not draft.results:  # the checkpoint is not needed: the process that continues the run reads its log
            journal = Journal(self._store, loaded.run, loaded.tip, fence, Progress(loaded.run.run_id))
        else:
            journal = Journal.load(self._store, loaded, fence)
            if due is None and source is None and await self.is_woken(loaded.run, journal, draft):
                due = AT_ONCE
        try:
            if source is None:
                await journal.leave(draft, lease=TOUCH, due=due, actor=actor)
            else:
                await journal.rest(draft, source, lease=TOUCH, due=due, actor=actor)
        except Conflict:
            return False
        return True

    async def is_woken(self, run: records.Run, journal: Journal, draft: Draft | None = None) -> bool:
        """Whether a signal has arrived that lets a node of this waiting run continue (§5.11). If its code is not here, a process that has the code checks."""
        progress = journal.progress
        fresh = [f for f in (draft.facts if draft is not None else ()) if isinstance(f, ev.SignalReceived)]
        if run.status not in WAITING or not (fresh or progress.news or progress.older):
            return False
        try:
            program = self._services.skills.for_run(run)
            if not program.listeners:
                return False
            if self._wakes(program, journal, fresh):
                return True
            if progress.leaves_out(program.listeners):
                await journal.catch_up()
                return self._wakes(program, journal, fresh)
        except StoreError:
            raise
        except HoldfastError:  # the code is elsewhere, or a reducer refuses; the run's driver will find and report the same
            return True
        return False

    def _wakes(self, program: Program, journal: Journal, fresh: Iterable[ev.SignalReceived]) -> bool:
        signals = superstep.write_signals(program, [(f.name, f.payload) for f in (*journal.progress.news, *fresh)])
        return superstep.wakes(program, journal.progress.checkpoint, signals, journal.progress.results)

    async def due_by_a_signal(self, run: records.Run) -> bool:
        """Whether a waiting run is to continue because of a signal alone, while its questions stay open."""
        if run.status not in WAITING or run.decisions or not run.unasked:
            return False
        loaded = await self._reader.load(run.run_id)
        return await self.is_woken(loaded.run, Journal.load(self._store, loaded, 0))

    async def bring_up(self, run: records.Run) -> bool:
        """Applies what other runs of the lineage know about the acts that this run asks about, and the contents of its inbox; returns False if there was nothing."""
        if not (await self._find_out(run) | bool(await self._store.inbox(run.run_id))):
            return False
        await self.settle(run.run_id)
        return True

    async def settle(self, run_id: str, known: Loaded | None = None) -> dict[str, HoldfastError | None]:
        """Turns the inbox items of a run at rest into events; the owner of a live run does that itself. Returns the keys that were taken, and which of them were refused
        and why. ``known``: the run as it was read a moment ago."""
        taken: dict[str, HoldfastError | None] = {}
        if known is None and (await self._reader.find(run_id))[1].live(self._store.now()):  # the lease alone tells; the log is not needed
            self._services.drivers.nudge(run_id)
            return taken
        for again in range(PATIENCE):
            loaded = known if known is not None and not again else await self._reader.load(run_id)
            if not loaded.inbox:
                break
            live = loaded.run.status in LIVE
            held = live and loaded.run.interrupted_at is not None and loaded.lease.owner is None  # the command is recorded, and the run continues when a person resumes it
            if loaded.lease.live(self._store.now()) or (live and not held):
                self._services.drivers.nudge(run_id)
                break
            first = loaded.inbox[0]
            waiting, now = [(i.key, i.command) for i in loaded.inbox], self._store.now()
            found = decisions.take(loaded.run, waiting, now)
            if found.ends:
                journal = Journal.load(self._store, loaded, 0)
                if compensation.is_told(journal):
                    break  # the process that executes the run next records what was said about its undo, and settles this then
                told = compensation.tell_only(journal.progress, decisions.take(loaded.run, waiting[:1], now).facts)
                found = found if told is None else decisions.Taken(tuple(told), (first.key,), {}, ends=False)
            if found.ends and (left := await self._leave(loaded, decisions.take(loaded.run, waiting[:1], now).facts, first)) is not None:
                if left:
                    taken[first.key] = None
                    await self._children(loaded.run)
                continue
            goes_on = any(isinstance(f, ev.WaitDecided | ev.WaitTimedOut) and f.decision.resume for f in found.facts)
            results = decisions.keep_answers(loaded.run, found.facts) if found.ends else decisions.answer_records(found.facts) if held else []
            draft = Draft(facts=list(found.facts), took=list(found.keys), results=list(results))
            due = AT_ONCE if goes_on and not found.ends and not held else None
            source = cps.Source.CANCEL if found.ends else None
            if await self.at_rest(loaded, draft, actor=getattr(first.command, "actor", ev.SYSTEM), source=source, due=due):
                taken |= {key: found.refused.get(key) for key in found.keys}
                if found.ends:
                    await self._children(loaded.run)
                if len(found.keys) == len(loaded.inbox):
                    break  # a command that has arrived since is settled by the process that put it
        return taken

    async def time_out(self, run: records.Run) -> bool:
        """Injects the timeouts that are due into a run at rest, as decisions (§5.10); returns False if none is due."""
        now = self._store.now()
        over = [(w.wait_id, w.deadline) for w in run.waits if run.status in WAITING and w.deadline is not None and w.deadline <= now]
        for wait_id, deadline in over:
            await self._put(run.run_id, cmd.FireTimeout(wait_id, deadline))
        return bool(over)

    async def _leave(self, loaded: Loaded, facts: Iterable[ev.Fact], item: InboxItem | None = None, actor: str = ev.SYSTEM, lost: Draft | None = None) -> bool | None:
        """Leaves an end that must undo effects to the process that executes the run next, because undoing needs its code (§6.11).

        Returns None if there is nothing to undo; False if another process has written first.
        """
        run = loaded.run
        draft = await compensation.leave_end(self._store, run, tuple(facts), Journal.load(self._store, loaded, 0), item)
        if draft is None:
            return None
        by = actor if item is None else getattr(item.command, "actor", ev.SYSTEM)
        return await self.at_rest(loaded, draft.join(lost or Draft()), actor=by, due=AT_ONCE)

    async def note(self, run_id: str, text: str, actor: str) -> None:
        """Records an action of an operator, if the run rests."""
        await self.at_rest(await self._reader.load(run_id), Draft(facts=[ev.NoteAdded(text)]), actor=actor)

    async def _children(self, parent: records.Run) -> None:
        """Settles what a parent that has ended put into the inboxes of its children, if they rest; owners of live children see it themselves (§10.12)."""
        for wait in parent.waits:
            if wait.kind is WaitKind.CHILD and wait.cascade and await self._store.get(wait.name) is not None:
                await self.settle(wait.name)

    async def cancel(self, run_id: str, *, actor: str = "operator", reason: str = "") -> None:
        """Asks a run to end. If it rests, or its owner is gone, it ends at once; a live run ends at its next safe boundary (§10.12).

        Raises:
            AlreadyTerminal: it has ended already.
        """
        for _ in range(PATIENCE):
            loaded = await self._reader.load(run_id)
            run, lease = loaded.run, loaded.lease
            command = door.cancel(actor=actor, reason=reason, nonce=str(run.version))
            facts = decisions.decide(run, command, self._store.now())
            told = run.status in WAITING and compensation.is_told(Journal.load(self._store, loaded, 0))
            if told or lease.live(self._store.now()):
                await self._put(run_id, command)
                return
            if loaded.inbox and run.status not in LIVE:  # earlier commands are taken first
                await self.settle(run_id)
                continue
            lost = Draft()
            if run.status in LIVE:  # its owner is gone without having released the run
                if not any(isinstance(f, ev.RunCanceled) for f in facts):
                    facts += decisions.mark_run_canceled(run)
                if lease.owner is not None:
                    lost = await surface_open(self._services, run_id, lease.owner, "owner_dead" if lease.owner_alive is Alive.NO else "expired")
            if (left := await self._leave(loaded, facts, actor=actor, lost=lost)) is not None:
                if left:
                    await self._children(run)
                    return
                continue
            late = decisions.take(decisions.fold_facts(run, facts, self._store.now()), [(i.key, i.command) for i in loaded.inbox], self._store.now())
            draft = Draft(facts=[*facts, *late.facts], took=list(late.keys), results=list(decisions.keep_answers(run, facts))).join(lost)
            if await self.at_rest(loaded, draft, actor=actor, source=cps.Source.CANCEL):
                await self._children(run)
                return
        raise Conflict(f"other processes keep changing {run_id}", hint="try again")

    async def signal(self, target: str, name: str, payload: Any = None, *, key: str | None, actor: str, tenant_id: str | None = None) -> str:
        """Sends a signal to a run, or to a thread's newest live run; a signal with the same key is delivered once (§5.11). Returns the run's id.

        Raises:
            AlreadyTerminal: the run has ended, so nothing will ask for the signal. A signal that was delivered under this key before that is found again.
        """
        now = self._store.now()
        said = door.signal(name, payload, key=key, actor=actor, fresh=f"{now}-{self._services.entropy() % 10**9}")
        run = await recipients.recipient(self._store, target, said, keyed=key is not None, tenant_id=tenant_id)
        command = replace(said, payload=door.payload(self._fitting(run, name, payload)))
        try:
            decisions.decide(run, command, now)  # raises before anything is written
        except AlreadyTerminal:
            if key is None or (received := await recipients.find_received(self._store, run.run_id, command)) is None:
                raise
            there: cmd.AnyCommand | ev.SignalReceived = received
        else:
            there = (await self._put(run.run_id, command)).command
        if isinstance(there, cmd.Signal | ev.SignalReceived) and bytes(there.payload) != bytes(command.payload):
            raise SignalConflict(f"the key {command.signal_key!r} was used with another payload for {name!r} of {run.run_id}", hint="use another key")
        return run.run_id

    def _fitting(self, run: records.Run, name: str, payload: Any) -> Any:
        """Checks a signal for a channel of that name against the channel's annotation, if this process has the skill (§3.7).

        Raises:
            InvalidInput: it does not fit.
        """
        skills = self._services.skills
        if run.skill_id not in skills.ids:
            return payload
        program = skills.find(run.skill_id, run.skill_version)
        return superstep.check_values(program, {name: payload}, "payload", program.writes)[name]

    async def answer(self, run: records.Run, payload: Any, *, actor: str = "operator") -> str:
        """Answers the one open wait of a run (§5.11). Returns the run's id.

        A wait for a signal gets the payload, and a question gets it as its answer. An approval is given by None and True as it was asked, by any other payload with that
        payload as its arguments, and it is denied by False.

        Raises:
            AmbiguousWait: several waits are open; the error names them.
            NotDecidable: nothing waits for an answer, or only for another kind of answer.
        """
        waits = [w for w in run.waits if w.human or w.kind is WaitKind.SIGNAL]
        if len(waits) > 1:
            raise AmbiguousWait(f"{len(waits)} waits are open: {', '.join(w.wait_id for w in waits)}", hint="decide one by its id")
        if not waits:
            raise NotDecidable(f"nothing waits for an answer; {run.run_id} is {run.status}", hint=f"holdfast show {run.run_id}")
        if waits[0].kind is WaitKind.SIGNAL:
            return await self.signal(run.run_id, waits[0].name, payload, actor=actor, key=None)
        action, given = answering(waits[0], payload)
        await self.decide(run.run_id, action, wait_id=waits[0].wait_id, actor=actor, payload=given)
        return run.run_id

    async def asking(self, target: str) -> records.Run:
        """Returns the run with that id, or a thread's newest live run; a run that is queued behind it has nothing to ask yet.

        Raises:
            NotDecidable: the runs of that thread have ended.
        """
        thread = None if await self._store.get(target) is not None else target
        if thread is not None and (live := await recipients.newest_live(self._store, thread)) is not None:
            return live
        if thread and await self._store.runs(RunFilter(thread_id=target, limit=1)):
            raise NotDecidable(f"nothing waits for an answer in the thread {target!r}: its runs have ended", hint=f"holdfast runs --thread {target}")
        return (await self._reader.find(target))[0]

    async def issue(self, wait_id: str, *, actor: str, ttl_us: int) -> str:
        """Creates a link that answers one wait once (§5.9). The secret is returned here and stored nowhere.

        Raises:
            NotDecidable: the wait is not open.
        """
        run, _ = await self._reader.find(wait_id.partition(".")[0])
        if not decidable(run.status, run.waits, wait_id):
            raise NotDecidable(f"{wait_id} is not open", hint=f"holdfast show {run.run_id}")
        now = self._store.now()
        secret = base64.urlsafe_b64encode(self._services.entropy().to_bytes(17, "big") + self._services.entropy().to_bytes(17, "big")).decode().rstrip("=")
        await self._store.issue_token(Token(hash_secret(secret), run.run_id, wait_id, run.tenant_id, actor, now, now + ttl_us))
        return secret

    async def redeem(
        self, secret: str, action: str, *, feedback: str | None = None, note: str | None = None, payload: Any = ..., tenant_id: str | None = None
    ) -> str:
        """Decides a wait by a link. A refused attempt does not use the link up; the resolver is asked as for any actor (§5.9). Returns the run's id.

        Raises:
            TokenRefused: the link is unknown, used or expired, or its wait is answered or closed.
            DecisionConflict: the wait was decided otherwise at the same moment.
        """
        now = self._store.now()
        token = await linked.find_token(self._store, secret, tenant_id)
        run, _ = await self._reader.find(token.run_id)
        wait = await linked.find_wait(self._store, token, run)
        if not decidable(run.status, run.waits, token.wait_id):
            raise linked.refuse_closed(run)
        command = door.decision(token.wait_id, action, actor=token.actor, feedback=feedback, note=note, given=payload, at=now)
        await self._may(run, wait, command)
        item = await self._store.redeem_token(token.hash, InboxItem(run_id=run.run_id, key=command.key, command=command, put_at=now))
        self._same(command, item)
        await self.settle(run.run_id)
        return run.run_id


def _is_given_up(wait: Wait) -> bool:
    """Whether a question asks if an act that was given up is done after all. It is asked because that is known, so no other run's giving up answers it."""
    return REEXECUTE in wait.available_actions and RECORD_RESULT not in wait.available_actions


def _only_wait(run: records.Run, action: str) -> str:
    """Returns the one open wait that an answer can mean.

    Raises:
        AmbiguousWait: several are open; the error lists them (§5.11).
        NotDecidable: none is open.
        DecisionConflict: none is open any more, and the last one was decided otherwise a moment ago (§5.6).
    """
    human = [w for w in run.waits if w.human]
    if len(human) == 1:
        return human[0].wait_id
    if len(human) > 1:
        raise AmbiguousWait(f"{len(human)} waits are open: {', '.join(w.wait_id for w in human)}", hint="name one: --wait WAIT_ID")
    if run.status in TERMINAL:
        decisions.decide(run, cmd.Decide(wait_id="", action=action, actor=""), 0)
    if run.decisions:
        last = run.decisions[-1]
        hint = f"a worker resumes it, or: holdfast resume {run.run_id} {target_of(run.target)}"
        refused = NotDecidable if last.action == action else DecisionConflict
        raise refused(f"{run.run_id} was answered already ({last.action} by {last.actor or 'somebody'}) and is queued", hint=hint)
    raise NotDecidable(f"{run.run_id} has no open question; it is {run.status}", hint=f"holdfast show {run.run_id}")


def _saying(d: cmd.Decide) -> tuple[Any, ...]:
    return (d.wait_id, d.action, d.feedback, d.note, None if d.payload is None else bytes(d.payload), d.force)

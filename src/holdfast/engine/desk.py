"""The desk: decisions, cancels and signals for runs, whoever drives them and whether anybody does (§5.4, §10.12).

A command is put into the run's inbox under a key that only one can have. If the run rests, whoever came turns it into
events at once, in one commit that takes the next fence and gives it back; if it turns out live, its owner does.
"""

from __future__ import annotations

from typing import Any

from holdfast.core import canon, decisions
from holdfast.core import checkpoint as cps
from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import run as records
from holdfast.core.commit import InboxItem
from holdfast.core.errors import AmbiguousWait, Conflict, DecisionConflict, Denied, NotDecidable
from holdfast.core.lease import TOUCH
from holdfast.core.status import LIVE, TERMINAL
from holdfast.core.waits import REEXECUTE
from holdfast.engine.driver import Driver
from holdfast.engine.effects import forced, refuse_to_repeat
from holdfast.engine.journal import Draft, Journal
from holdfast.engine.reader import Reader
from holdfast.engine.services import Services


class Desk:
    """Takes commands. ``drivers`` are the runs this process drives now; they are nudged when their inbox has news."""

    def __init__(self, services: Services, reader: Reader, drivers: dict[str, Driver]) -> None:
        self._services = services
        self._store = services.store
        self._reader = reader
        self._drivers = drivers

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
    ) -> None:
        """Records a decision about a wait (§5.4). It needs no code: a worker or ``resume`` goes on with the run.

        Raises:
            AmbiguousWait: several are open and ``wait_id`` names none.
            DecisionConflict: it was decided otherwise before.
            NotDecidable, ActionUnavailable, Denied: the state machine or the resolver says no.
        """
        run, _ = await self._reader.found(run_id)
        wait_id = wait_id or _only_wait(run, action)
        raw = None if payload is ... else canon.pack(payload, "payload")[1]
        command = cmd.Decide(wait_id=wait_id, action=action, actor=actor, feedback=feedback, note=note, payload=raw, at=self._store.now(), resume=resume)
        wait = next((w for w in run.waits if w.wait_id == wait_id), None)
        if wait is not None:
            await self._authorise(run, wait, command)
            decisions.decide(run, command, self._store.now())  # refuses before anything is written
            if action == REEXECUTE and wait.effect_id is not None and not forced(command):
                await refuse_to_repeat(self._services, wait.effect_id)
        elif not await self._was_put(command, run):
            decisions.decide(run, command, self._store.now())
            raise NotDecidable(f"the wait {wait_id} is not open")
        item = await self._store.put(InboxItem(run_id=run_id, key=command.key, command=command, put_at=self._store.now()))
        self._same(command, item)
        await self._settle(run_id)

    async def _was_put(self, command: cmd.Decide, run: records.Run) -> bool:
        return any(i.key == command.key for i in await self._store.inbox(run.run_id, taken=True))

    def _same(self, command: cmd.Decide, item: InboxItem) -> None:
        """Another decision than the one on record is a conflict; the same one comes back as it is (§5.6)."""
        there = item.command
        if isinstance(there, cmd.Decide) and _saying(there) == _saying(command):
            return
        said = f"{there.actor} decided {there.action}" if isinstance(there, cmd.Decide) else "it timed out"
        raise DecisionConflict(f"the wait {command.wait_id} is decided already: {said}")

    async def _authorise(self, run: records.Run, wait: Any, command: cmd.Decide) -> None:
        """Asks the resolver before anything enters the run; a refusal leaves an audit event (§5.7)."""
        resolver = self._services.resolver
        verdict: bool | str = True if resolver is None else resolver(command.actor, command.action, wait, run)
        if wait.who and command.actor not in wait.who and verdict is True:
            verdict = f"it is for {', '.join(wait.who)}"
        if verdict is True:
            return
        reason = verdict if isinstance(verdict, str) else "the resolver refused"
        await self.at_rest(run.run_id, Draft(facts=[ev.WaitDenied(wait.wait_id, command.action, command.actor, reason)]), actor=command.actor)
        raise Denied(f"{command.actor} may not {command.action} {wait.wait_id}: {reason}")

    async def at_rest(self, run_id: str, draft: Draft, *, actor: str, source: cps.Source | None = None, due: int | None = None) -> bool:
        """One commit on a run that nobody drives; False if somebody does, or came first."""
        loaded = await self._reader.loaded(run_id)
        if loaded.lease.live(self._store.now()):
            return False
        journal = Journal.load(self._store, loaded, loaded.lease.fence + 1)
        try:
            if source is None:
                await journal.leave(draft, lease=TOUCH, due=due, actor=actor)
            else:
                await journal.rest(draft, source, lease=TOUCH, due=due, actor=actor)
        except Conflict:
            return False
        return True

    async def _settle(self, run_id: str) -> None:
        """Turns what waits in the inbox of a run at rest into events; a live run's owner does it itself."""
        for _ in range(100):
            loaded = await self._reader.loaded(run_id)
            if not loaded.inbox or loaded.lease.live(self._store.now()) or loaded.run.status in LIVE:
                for driver in [self._drivers.get(run_id)]:
                    if driver is not None:
                        driver.nudge()
                return
            item = loaded.inbox[0]
            facts = decisions.decide(loaded.run, item.command, self._store.now())
            ends = any(isinstance(f, ev.RunCanceled | ev.RunFailed) for f in facts)
            draft = Draft(facts=list(facts) or [ev.NoteAdded(f"{item.key} changed nothing")], took=[item.key])
            due = self._store.now() if not ends and getattr(item.command, "resume", True) else None
            await self.at_rest(run_id, draft, actor=getattr(item.command, "actor", ev.SYSTEM), source=cps.Source.CANCEL if ends else None, due=due)

    async def cancel(self, run_id: str, *, actor: str = "operator", reason: str = "") -> None:
        """Asks a run to end. At rest it ends at once; a live one at its next safe boundary (§10.12).

        Raises:
            AlreadyTerminal: it has ended already.
        """
        run, lease = await self._reader.found(run_id)
        command = cmd.Cancel(actor=actor, reason=reason, nonce=str(run.version))
        facts = decisions.decide(run, command, self._store.now())
        if not lease.live(self._store.now()) and await self.at_rest(run_id, Draft(facts=list(facts)), actor=actor, source=cps.Source.CANCEL):
            await self._store.put(InboxItem(run_id=run_id, key=command.key, command=command, put_at=self._store.now()))
        driver = self._drivers.get(run_id)
        if driver is not None:
            driver.nudge()

    async def signal(self, run_id: str, name: str, payload: Any = None, *, key: str | None = None, actor: str = "operator") -> None:
        """Gives a run an outside input; the same key is delivered once (§5.11)."""
        now = self._store.now()
        raw = canon.pack(payload, "payload")[1]
        command = cmd.Signal(name=name, signal_key=key or f"{now}-{self._services.entropy() % 10**9}", payload=raw, actor=actor)
        await self._reader.found(run_id)
        await self._store.put(InboxItem(run_id=run_id, key=command.key, command=command, put_at=now))


def _only_wait(run: records.Run, action: str) -> str:
    """The one open wait an answer can mean.

    Raises:
        AmbiguousWait: several are open; lists them (§5.11).
    """
    human = [w for w in run.waits if w.human]
    if len(human) == 1:
        return human[0].wait_id
    if len(human) > 1:
        raise AmbiguousWait(f"{len(human)} waits are open: {', '.join(w.wait_id for w in human)}", hint="name one: --wait WAIT_ID")
    if run.status in TERMINAL:
        decisions.decide(run, cmd.Decide(wait_id="", action=action, actor=""), 0)
    raise NotDecidable(f"{run.run_id} waits for no decision; it is {run.status}", hint="holdfast show RUN")


def _saying(d: cmd.Decide) -> tuple[Any, ...]:
    return (d.wait_id, d.action, d.feedback, d.note, None if d.payload is None else bytes(d.payload))

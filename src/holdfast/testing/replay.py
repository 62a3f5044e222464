"""Compares a recorded run with the present code: ``replay_check``, and ``assert_replays`` for tests.

Theory of operation. The run is copied into a store in memory, cut right after its first checkpoint, and the present code
goes on from there under the same id. Every call through ``ctx`` is answered from the recording, people's answers included,
so nothing outside is touched: a call that is not recorded stops the run instead of being made. Where the code differs from
the recording there is a ``Difference``: in its calls, in which nodes ran when, in how the run ended, or in its values.
"""

from __future__ import annotations

import asyncio
import difflib
import os
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.authoring import Skill
from holdfast.core import canon
from holdfast.core import events as ev
from holdfast.core.checkpoint import Ended, StepRecord, note_end
from holdfast.core.codec import Record, decode_whole, open_row
from holdfast.core.errors import InvalidInput, RunNotFound
from holdfast.core.outcomes import ALL_SKIPPED
from holdfast.core.progress import Progress
from holdfast.core.run import Run, fold
from holdfast.core.status import LIVE, TERMINAL, WAITING, Status
from holdfast.core.waits import Decision, Wait
from holdfast.engine.base.failures import ControlFlow
from holdfast.engine.base.services import Asked
from holdfast.engine.keep.check import Checker
from holdfast.engine.keep.transfer import dossier
from holdfast.ports import Dossier, Store
from holdfast.runtime import Runtime
from holdfast.stores import MemoryStore, WorkspaceStore, open_url

Place = tuple[int, str, str]
SCHEMES = ("sqlite:", "workspace:", "memory:", "postgresql:")
CALLS = frozenset({"step", "effect", "value", "first_of", "wait"})
SHOWN = 300
_SKIPPED_BEFORE = "skipped: all it comes after was skipped"  # the same outcome in recordings of release 0.1.0
_OPENERS = frozenset({"scope", "first_of"})


class Difference(msgspec.Struct, frozen=True):
    """One difference between the code and the recording.

    ``kind`` is ``new_call``, ``missing_call``, ``other_call``, ``arguments``, ``routing``, ``outcome``, ``end``, ``waits`` or ``value``.
    ``where`` is the super-step, task and position of a call, or a channel's name. ``expected`` and ``got`` are texts for people.
    """

    kind: str
    where: str
    expected: str
    got: str

    def __str__(self) -> str:
        said = {"expected": self.expected, "got": self.got}
        if all("\n" in v for v in said.values()):
            lines = difflib.unified_diff(self.expected.splitlines(), self.got.splitlines(), "recorded", "now", n=1, lineterm="")
            return "\n".join([f"{self.where}: {_WORDS[self.kind]}", *(f"    {line}" for line in lines)])
        return "\n".join([f"{self.where}: {_WORDS[self.kind]}", *(f"    {word:<9} {_cut(v)}" for word, v in said.items())])


_WORDS = {
    "new_call": "a call that is not recorded",
    "missing_call": "a recorded call is not made any more",
    "other_call": "another call than the recorded one",
    "arguments": "the same call with other arguments",
    "routing": "other nodes run",
    "outcome": "it ends with another outcome",
    "end": "the run ends differently",
    "waits": "other waits are open",
    "value": "another value",
}


class Replayed(msgspec.Struct, frozen=True):
    """The result of running the present code against a recorded run. ``served`` is the number of recorded calls that were answered.
    ``str()`` of it is a report for people."""

    run_id: str
    skill_id: str
    differences: tuple[Difference, ...]
    served: int
    same_shape: bool
    status: str

    @property
    def same(self) -> bool:
        """Whether the code does what is recorded. A different version of the skill's graph alone does not count as a difference."""
        return not self.differences

    def __str__(self) -> str:
        calls = f"{self.served} recorded call{'' if self.served == 1 else 's'} answered"
        if self.same:
            return f"{self.skill_id} does what run {self.run_id} recorded: {calls}, {self.status}"
        head = f"{self.skill_id} does not do what run {self.run_id} recorded ({calls}):"
        shape = [] if self.same_shape else ["its graph has changed since: a run that waits is resumed only with --upgrade, or by a declared migration"]
        return "\n".join([head, *(f"  {line}" for d in self.differences for line in str(d).splitlines()), *(f"  {s}" for s in shape)])


class ReplayDiffers(AssertionError):
    """The code behaves differently from a recorded run; ``replayed.differences`` lists how."""

    def __init__(self, replayed: Replayed) -> None:
        super().__init__(str(replayed))
        self.replayed = replayed


async def replay_check(skill: Skill, recorded: str | os.PathLike[str] | Store, run_id: str | None = None, **options: Any) -> Replayed:
    """Runs the present code against a recorded run, without calling anything outside, and compares the two.

    Args:
        recorded: a run's directory as ``holdfast export`` wrote it, a folder of such directories, a store's URL, or an open store.
        run_id: the run; it may be left out if there is only one.
        options: options of ``Runtime`` that the code needs: ``skills``, ``tools``, ``policy``, ``environment``.

    Raises:
        InvalidInput: there are several runs and ``run_id`` is not given.
        RunNotFound: there is no such run.
        StoreCorrupt: the recording is damaged.
    """
    return await _Replay(await _take(recorded, run_id), skill, options).replay()


async def assert_replays(skill: Skill, recorded: str | os.PathLike[str] | Store, run_id: str | None = None, **options: Any) -> Replayed:
    """Like ``replay_check``, but fails a test if there is a difference.

    Raises:
        ReplayDiffers: an AssertionError that lists the differences.
    """
    replayed = await replay_check(skill, recorded, run_id, **options)
    if not replayed.same:
        raise ReplayDiffers(replayed)
    return replayed


# -- the recording ----------------------------------------------------------------------------------


async def _take(recorded: str | os.PathLike[str] | Store, run_id: str | None) -> Dossier:
    """Returns all that is stored of the recorded run."""
    if not isinstance(recorded, str | os.PathLike):
        return await dossier(recorded, await _only(recorded, run_id), opened=True)
    text = os.fspath(recorded)
    store: Store
    if text.startswith(SCHEMES):
        store = open_url(text)
    else:
        folder = os.path.abspath(text)
        if not os.path.isdir(folder):
            raise RunNotFound(f"there is no directory {text}", hint="holdfast export RUN DIR writes one; give it, or a store's URL and a run id")
        if os.path.isfile(os.path.join(folder, "events.jsonl")):
            folder, run_id = os.path.split(folder)
        store = WorkspaceStore(folder)
    await store.open()
    try:
        return await dossier(store, await _only(store, run_id))
    finally:
        await store.close()


async def _only(store: Store, run_id: str | None) -> str:
    if run_id is not None:
        return run_id
    found = [r async for r in Checker(store).run_ids()]
    if not found:
        raise RunNotFound("there is no recorded run to compare the code with", hint="holdfast export RUN DIR writes one")
    if len(found) > 1:
        raise InvalidInput(f"{len(found)} runs are there: {', '.join(found[:5])}", hint="name one: run_id=…")
    return found[0]


class _Past:
    """What a recorded run did, by place: super-step, task and path."""

    def __init__(self, kept: Dossier) -> None:
        self.run: Run = kept.run
        self.records: dict[Place, StepRecord] = {}
        self.asked: dict[Place, str] = {}
        self.decided: dict[Place, Decision] = {}
        self.late: set[Place] = set()
        self.planned: dict[int, list[str]] = {}
        self.ended: dict[int, dict[str, str]] = {}
        self.cut = 0
        self.barriers: dict[int, Ended] = {}
        progress = Progress(self.run.run_id, None if kept.origin is None else decode_whole(self.run.run_id, kept.origin))
        waits: dict[str, Wait] = {}
        for number, row in enumerate(kept.rows, 1):
            record = open_row(row, progress.hash)
            for result in record.results:
                if isinstance(result, StepRecord):
                    self.records[progress.checkpoint.step_of(result.task), result.task, result.path] = result
            _plan(record, self.planned, self.ended)
            for event in record.events:
                match event.fact:
                    case ev.WaitRequested(wait=wait):
                        waits[wait.wait_id] = wait
                        self.asked[wait.step, wait.task, wait.path] = wait.asked
                    case ev.WaitDecided(decision=given) if given.wait_id in waits:
                        wait = waits[given.wait_id]
                        self.decided[wait.step, wait.task, wait.path] = given
                    case ev.WaitTimedOut(decision=given) if given.wait_id in waits:
                        wait = waits[given.wait_id]
                        self.late.add((wait.step, wait.task, wait.path))
            if record.delta is not None and (how := note_end(record.delta)) is not None:
                self.barriers[record.delta.step] = how
            progress.step(record)
            if record.delta is not None and not self.cut:
                self.cut = number
        self.values = progress.checkpoint.values

    @property
    def whole(self) -> bool:
        """Whether the run came to rest by itself, so that a call that is not recorded would never have been made."""
        return self.run.status not in LIVE and not (self.run.status is Status.CANCELED and not self.run.settled)


def _plan(record: Record, planned: dict[int, list[str]], ended: dict[int, dict[str, str]]) -> None:
    """Notes which tasks began in which super-step, and with what outcome they ended."""
    for event in record.events:
        match event.fact:
            case ev.StepStarted(step=step, task=task):
                if task not in planned.setdefault(step, []):
                    planned[step].append(task)
            case ev.StepEnded(step=step, task=task, path="", outcome=outcome):
                ended.setdefault(step, {})[task] = ALL_SKIPPED if outcome == _SKIPPED_BEFORE else outcome
            case _:
                pass


class _NotOnRecord(ControlFlow):
    """Stops the run, because a call would have touched the outside. It is not an Exception, so that no handler in a node can go on from it."""


class _Answers:
    """Answers the calls of the present code from the recording, and notes where they differ."""

    def __init__(self, past: _Past, declared: bool) -> None:
        self._past = past
        self._declared = declared
        self.made: dict[Place, Asked] = {}
        self.differences: list[tuple[int, Difference]] = []
        self.served = 0

    def answer(self, call: Asked) -> StepRecord | None:
        place = (call.step, call.task, call.path)
        self.made[place] = call
        if call.run_id != self._past.run.run_id:
            raise _NotOnRecord
        record = self._past.records.get(place)
        kind = call.kind
        if record is not None and not self._declared and record.name == call.name and call.name.startswith("tool:"):
            kind = record.kind  # only the declaration of a tool says whether the tool only reads, and there is none here
        if record is not None and (record.kind, record.name) == (kind, call.name):
            if not _fits(call, record):
                self._note(call, "arguments", f"{_name(record.kind, record.name)}, with what was given to it then", f"{_name(kind, call.name)}{_spell_given(call.args)}")
            self.served += 1
            return msgspec.structs.replace(record, kind=call.kind)
        if record is not None:
            self._stop(call, "other_call", _name(record.kind, record.name))
        if kind in _OPENERS:
            return None
        wait = self._past.asked.get(place)
        if kind == "wait" and wait == call.name:
            return None  # the recorded run rested in the same wait
        if wait is not None:
            self._stop(call, "other_call", _name("wait", wait))
        if not self._past.whole and call.task not in self._past.ended.get(call.step, {}):
            raise _NotOnRecord  # the recording ends here
        self._stop(call, "new_call", "no call here")
        return None

    def find_end(self, run_id: str, step: int) -> Ended | None:
        return self._past.barriers.get(step) if run_id == self._past.run.run_id else None

    def _stop(self, call: Asked, kind: str, expected: str) -> None:
        self._note(call, kind, expected, f"{_name(call.kind, call.name)}{_spell_given(call.args)}")
        raise _NotOnRecord

    def _note(self, call: Asked, kind: str, expected: str, got: str) -> None:
        self.differences.append((call.step, Difference(kind, _where(call.step, call.task, call.path), expected, got)))


def _fits(call: Asked, record: StepRecord) -> bool:
    """Whether a call has the recorded arguments, as far as arguments can be compared."""
    if not record.digest:
        return True
    if record.kind == "effect":
        asked = [call.name, list(call.args)]
        return record.digest in (canon.fingerprint(asked, call.run_id), canon.fingerprint(asked))
    return call.digest in ("", record.digest)


class _Clock:
    """A clock that begins at the last moment of the recording and moves when something sleeps."""

    def __init__(self, at: int) -> None:
        self._at = at

    def now(self) -> int:
        return self._at

    def monotonic(self) -> float:
        return 0.0

    def pass_to(self, at: int) -> None:
        self._at = max(self._at, at)

    async def sleep(self, seconds: float) -> None:
        self.pass_to(self._at + int(seconds * 1_000_000))
        await asyncio.sleep(0)


class _Replay:
    """One recorded run under the present code."""

    def __init__(self, kept: Dossier, skill: Skill, options: Mapping[str, Any]) -> None:
        self._kept = kept
        self._skill = skill
        self._options = {**options, "skills": [skill, *options.get("skills", ())]}
        self._past = _Past(kept)
        self._answers = _Answers(self._past, "tools" in options)
        self._clock = _Clock(open_row(kept.rows[-1]).at)
        self._planned: dict[int, list[str]] = {}
        self._ended: dict[int, dict[str, str]] = {}

    async def replay(self) -> Replayed:
        past, program = self._past, self._skill.program
        if program.id != past.run.skill_id:
            raise InvalidInput(f"the run is one of {past.run.skill_id}, not of {program.id}", hint="give the skill of that run")
        clock = self._clock
        store = MemoryStore(now=clock.now)
        async with Runtime(store, clock=clock, **self._options) as rt:
            rt._services.recording = self._answers
            stopped = past.cut > 0 and await self._go(rt, store)
            now = await rt.get(past.run.run_id) if past.cut else None
            if now is not None:
                for row in await store.rows(past.run.run_id):
                    _plan(open_row(row), self._planned, self._ended)
        at = self._find_parting()  # once other nodes run, differences in calls say nothing more
        found = [*self._routes(at, stopped), *(d for step, d in self._answers.differences if at is None or step < at), *self._missing(at)]
        if now is not None and not stopped and past.whole:
            found += self._ends(now)
        return Replayed(
            past.run.run_id, past.run.skill_id, tuple(found), self._answers.served, program.fingerprint == past.run.fingerprint, str(past.run.status)
        )

    async def _go(self, rt: Runtime, store: MemoryStore) -> bool:
        """Lets the code go on from the first checkpoint until the run rests. Returns True if a call stopped it."""
        rows, run = self._kept.rows[: self._past.cut], None
        for row in rows:
            for event in open_row(row).events:
                run = fold(run, event)
        assert run is not None
        await store.adopt(Dossier(run=run, rows=rows, origin=self._kept.origin, blobs=self._kept.blobs))
        try:
            while run.status not in TERMINAL:
                run = (await rt._conductor.drive_on(run.run_id, upgrade=True, detach=True)).record
                if not await self._decide(rt, run):
                    break
        except _NotOnRecord:
            return True
        return False

    async def _decide(self, rt: Runtime, run: Run) -> bool:
        """Answers a wait as the recording did, or lets the time pass if the wait timed out there. Returns True if there was such a wait."""
        for wait in run.waits:
            place = (wait.step, wait.task, wait.path)
            if place in self._past.late and wait.deadline is not None:
                self._past.late.discard(place)
                self._clock.pass_to(wait.deadline)
                return True
            given = self._past.decided.pop(place, None)
            if given is not None and run.status in WAITING:
                payload = {} if given.payload is None else {"payload": canon.decode(given.payload)}
                await rt.decide(run.run_id, given.action, wait_id=wait.wait_id, actor=given.actor, feedback=given.feedback, note=given.note, **payload)
                return True
        return False

    # -- comparing ----------------------------------------------------------------------------------

    def _find_parting(self) -> int | None:
        """Returns the first super-step in which other nodes run than in the recording."""
        both = sorted(self._past.planned.keys() & self._planned.keys())
        return next((step for step in both if sorted(self._past.planned[step]) != sorted(self._planned[step])), None)

    def _routes(self, at: int | None, stopped: bool) -> list[Difference]:
        past = self._past
        if at is None and not stopped and past.whole:
            apart = sorted(past.planned.keys() ^ self._planned.keys())
            at = apart[0] if apart else None
        if at is not None:
            return [Difference("routing", f"step {at}", _nodes(past.planned.get(at)), _nodes(self._planned.get(at)))]
        return [
            Difference("outcome", f"step {step} {task}", past.ended[step][task], outcome)
            for step, tasks in sorted(self._ended.items())
            for task, outcome in tasks.items()
            if past.ended.get(step, {}).get(task, outcome) != outcome
        ]

    def _missing(self, at: int | None) -> list[Difference]:
        """Returns recorded calls that ended tasks did not make. Calls inside a call whose result was served (a scope, an item of a map) do not count."""
        made = self._answers.made
        served = [p for p in made if p in self._past.records]
        out = []
        for (step, task, path), record in self._past.records.items():
            if (step, task, path) in made or record.kind not in CALLS or "?" in path or "@redo" in path:
                continue
            if task not in self._ended.get(step, {}) or (at is not None and step >= at):
                continue
            if any((step, task) == p[:2] and path.startswith(p[2] + "/") for p in served):
                continue
            out.append(Difference("missing_call", _where(step, task, path), _name(record.kind, record.name), "no call here"))
        return out

    def _ends(self, now: Any) -> list[Difference]:
        """Compares how the run rests, and with which values."""
        past, run = self._past.run, now.record
        found = []
        was, here = _end(past), _end(run)
        if was != here:
            found.append(Difference("end", "the end", was, here))
        asked = [sorted(w.asked for w in r.waits) for r in (past, run)]
        if asked[0] != asked[1]:
            found.append(Difference("waits", "the end", ", ".join(asked[0]) or "none", ", ".join(asked[1]) or "none"))
        if past.result is not None and run.result is not None and past.result != run.result:
            found.append(Difference("value", "the result", *(_show(canon.decode(r)) for r in (past.result, run.result))))
        values = now.values
        for name in dict.fromkeys([*self._past.values, *values]):
            one, two = (_show(v[name]) if name in v else "nothing" for v in (self._past.values, values))
            if name not in values or name not in self._past.values or not _equal(self._past.values[name], values[name]):
                found.append(Difference("value", f"channel {name}", one, two))
        return found


# -- words ------------------------------------------------------------------------------------------


def _where(step: int, task: str, path: str) -> str:
    return f"step {step} {task}, call {path}"


def _name(kind: str, name: str) -> str:
    if kind == "wait":
        what, _, about = name.partition(":")
        return f"{what} {about!r}"
    return f"{kind} {name}" if kind != name else kind


def _spell_given(args: Iterable[Any]) -> str:
    text = ", ".join(map(repr, args))
    return f"({_cut(text)})" if text else ""


def _nodes(names: list[str] | None) -> str:
    return ", ".join(sorted(names)) if names else "nothing"


def _end(run: Run) -> str:
    why = f" ({run.stop_reason})" if run.stop_reason else ""
    error = f": {run.error.type}: {run.error.message}" if run.error is not None and run.status is Status.FAILED else ""
    return f"{run.status}{why}{error}"


def _show(value: Any) -> str:
    return value if isinstance(value, str) and "\n" in value else repr(value)


def _equal(one: Any, two: Any) -> bool:
    return bool(one == two) or canon.encode(canon.admit(one)) == canon.encode(canon.admit(two))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text)} characters)"


__all__ = ["Difference", "ReplayDiffers", "Replayed", "assert_replays", "replay_check"]

"""The matrix of situations and commands: complete, true, and the same for readers and writers (T-27)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core import decisions, describe
from holdfast.core import events as ev
from holdfast.core import waits as ws
from holdfast.core.errors import ErrorValue, HoldfastError, IllegalTransition
from holdfast.core.run import Run
from holdfast.core.status import LIVE, TERMINAL, TRANSITIONS, Status
from holdfast.core.waits import WaitKind
from tests.core.build import folded, wait
from tests.core.matrix import COMMANDS, PAGE, PEOPLE, SITUATIONS, W, after, answers_table, cell, facts, heads_table, table, with_table

PAIRS = list(itertools.product(SITUATIONS, COMMANDS))


def test_the_page_is_what_the_code_does() -> None:
    page = PAGE.read_text("utf-8")
    assert table() in page, "python -m tests.core.matrix writes it anew; read the difference before you commit it"
    assert heads_table() in page
    assert with_table(page) == page


def test_the_page_about_people_has_the_same_actions() -> None:
    page = PEOPLE.read_text("utf-8")
    assert answers_table() in page, "python -m tests.core.matrix writes it anew; read the difference before you commit it"
    assert with_table(page) == page
    assert {kind.value for kind in ws.ACTIONS} == set(re.findall(r"^\| `(\w+)` \| .* \| .* \|$", page.partition("| kind |")[2].partition("\n\n")[0], re.M)), "each kind is explained"


def test_it_covers_every_status_and_every_command() -> None:
    assert {run.status for run in SITUATIONS.values()} == set(Status)
    assert {type(c) for c in COMMANDS.values()} == set(cmd.AnyCommand.__args__)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("situation", "command"), PAIRS)
def test_each_pair_is_an_event_or_a_refusal(situation: str, command: str) -> None:
    """§2.2: what is accepted folds along the twelve edges, or §2.3's resume; what is refused has a code and a status it names nowhere else."""
    run = SITUATIONS[situation]
    found = facts(run, COMMANDS[command])
    if isinstance(found, HoldfastError):
        assert found.code not in ("error", "rejected", "usage") and found.exit_code in (2, 3, 6), found
        return
    end = after(run, found)
    resumed = command.startswith("resume") and run.status in TERMINAL
    rest = run.status is not Status.RUNNING and (Status.RUNNING, end.status) in TRANSITIONS
    assert end.status is run.status or (run.status, end.status) in TRANSITIONS or resumed or rest
    assert end.status not in TERMINAL or end.stop_reason is not None or end.status is Status.COMPLETED, "T-07"


@pytest.mark.parametrize("situation", SITUATIONS)
def test_readers_and_writers_share_one_predicate(situation: str) -> None:
    """T-27, §5.4: for every status what is shown as decidable is what decide takes."""
    run = SITUATIONS[situation]
    taken = not isinstance(facts(run, COMMANDS["decide: approve"]), HoldfastError)
    assert ws.decidable(run.status, run.waits, W) is taken
    shown = {w.wait_id: w.decidable for w in describe.run(run, None, 0).waits}
    assert shown.get(W, False) is taken
    assert describe.wait(wait(wait_id=W)).decidable is None, "a wait by itself, as in an event, is of no status"


@pytest.mark.parametrize("situation", SITUATIONS)
def test_force_changes_no_row(situation: str) -> None:
    """§7.4: it waives the policy's re-evaluation and nothing else."""
    run = SITUATIONS[situation]
    for acknowledge in (None, "step_failed"):
        plain, forced = (cell(run, cmd.Resume("ada", acknowledge=acknowledge, force=f)) for f in (False, True))
        assert plain == forced


@pytest.mark.parametrize("situation", [s for s, run in SITUATIONS.items() if run.status in (Status.COMPLETED, Status.CANCELED)])
def test_nothing_late_revives_what_has_ended(situation: str) -> None:
    """T-05, T-08: only a resume of what is resumable leaves the end; an answer that had come through all the same folds into nothing."""
    run = SITUATIONS[situation]
    for name, command in COMMANDS.items():
        found = facts(run, command)
        if not name.startswith("resume") and not isinstance(found, HoldfastError):
            end = after(run, found)
            assert replace(end, version=0) == replace(run, version=0), name
    late = after(run, (ev.WaitDecided(ws.Decision(W, "continue", "ada")),))
    assert replace(late, version=run.version) == run


# -- the named helpers by status and handoff (§5.14, §5.15) -----------------------------------------

H = "run.1.judge.0"
HANDOFF = wait(WaitKind.HANDOFF, wait_id=H, available_actions=ws.ACTIONS[WaitKind.HANDOFF])
REVIEW = wait(WaitKind.REVIEW, wait_id="run.1.@review.0", available_actions=ws.ACTIONS[WaitKind.REVIEW])
OPEN: dict[str, tuple[ev.Fact, ...]] = {
    "pending": (),
    "running": (ev.RunStarted(),),
    "interrupted": (ev.RunStarted(), ev.RunInterrupted("x")),
    "replaying": (ev.RunStarted(), ev.RunReplaying()),
    "waiting_for_human": (ev.RunStarted(), ev.RunWaitingForHuman()),
    "waiting_for_signal": (ev.RunStarted(), ev.RunWaitingForSignal()),
}
"""What a run may be in that has not ended."""
R, P, S, Q = Status.RUNNING, Status.PENDING, Status.WAITING_FOR_SIGNAL, Status.WAITING_FOR_HUMAN
DONE, STOPPED, BROKEN, NO = Status.COMPLETED, Status.CANCELED, Status.FAILED, None
# helper: its facts; whether it keeps the handoff; the status it leads to from each of OPEN, NO where there is no such way
MARKS: dict[str, tuple[Callable[[Run], decisions.Facts], bool, tuple[Status | None, ...]]] = {
    "mark_run_done": (decisions.mark_run_done, False, (NO, DONE, DONE, NO, NO, NO)),
    "mark_run_halted": (decisions.mark_run_halted, False, (STOPPED,) * 6),
    "mark_run_canceled": (decisions.mark_run_canceled, False, (STOPPED,) * 6),
    "mark_run_failed": (lambda run: decisions.mark_run_failed(run, "x", ErrorValue("E", "e")), True, (BROKEN,) * 6),
    "mark_run_interrupted": (lambda run: decisions.mark_run_interrupted(run, "x"), True, (P, R, R, Status.REPLAYING, Q, S)),
    "mark_run_awaiting_review": (lambda run: decisions.mark_run_awaiting_review(run, REVIEW), True, (NO, Q, Q, NO, NO, NO)),
    "mark_run_unattended": (lambda run: decisions.mark_run_unattended(run, (REVIEW,)), False, (STOPPED,) * 6),
}


@pytest.mark.parametrize("handoff", [False, True])
@pytest.mark.parametrize(("helper", "name", "leads"), [(m, n, leads) for m, row in MARKS.items() for n, leads in zip(OPEN, row[2], strict=True)])
def test_which_marks_keep_the_handoff(helper: str, name: str, leads: Status | None, handoff: bool) -> None:
    """T-21, T-22, T-15: failed, interrupted and human review keep it; done, halted and cancelled clear it; its history stays for ever."""
    mark, keeps, _ = MARKS[helper]
    begun = OPEN[name]
    run = folded(*begun[:1], *((ev.WaitRequested(HANDOFF),) if handoff else ()), *begun[1:])
    if leads is None:
        with pytest.raises(IllegalTransition):
            after(run, mark(run))
        return
    end = after(run, mark(run))
    assert end.status is leads
    assert (H in [w.wait_id for w in end.waits]) is (handoff and keeps)
    assert end.active_handoff == (H if handoff and keeps else None)
    assert end.seen_handoffs == ((H,) if handoff else ())
    if handoff and keeps:
        assert next(w for w in end.waits if w.wait_id == H) == HANDOFF, "its payload is what was asked"


HELPERS: dict[str, Callable[[Run, ws.Decision], decisions.Facts]] = {
    "continue": decisions.continue_handoff,
    "continue_with_waiver": decisions.continue_with_waiver_handoff,
    "retry_feedback": decisions.retry_feedback_handoff,
}


@pytest.mark.parametrize("action", HELPERS)
@pytest.mark.parametrize("name", [*OPEN, "failed"])
def test_what_the_decisions_leave(name: str, action: str) -> None:
    """§5.5, T-14: facts and no I/O; the handoff is decided, the status stays; only a waiver is kept for later gates (T-30)."""
    begun = OPEN.get(name, (ev.RunStarted(), ev.RunFailed("x", ErrorValue("E", "e"))))
    run = folded(*begun[:1], ev.WaitRequested(HANDOFF), *begun[1:])
    given = ws.Decision(H, action, "ada", feedback="because")
    end = after(run, HELPERS[action](run, given))
    assert (end.status, end.waits, end.active_handoff, end.seen_handoffs) == (run.status, (), None, (H,))
    assert end.decisions == (() if run.status in LIVE else (given,)), "a live run's owner records the answer in the same commit"
    assert end.waivers == ((given,) if action == "continue_with_waiver" else ())
    if action != "continue":
        with pytest.raises(AssertionError):
            HELPERS[action](run, replace(given, feedback=None))


@pytest.mark.parametrize("action", [*HELPERS, "halt"])
@pytest.mark.parametrize("kind", [WaitKind.HANDOFF, WaitKind.REVIEW])
def test_a_fold_of_the_facts_alone_shows_each_decision(kind: WaitKind, action: str) -> None:
    """T-14: after each of the actions, and after the resume, the status is what the events say; T-23: the decision comes first."""
    asked = wait(kind, wait_id=H, available_actions=("continue", "continue_with_waiver", "retry_feedback", "halt"))
    run = folded(ev.RunStarted(), ev.WaitRequested(asked), ev.RunWaitingForHuman())
    found = facts(run, cmd.Decide(H, action, "ada", feedback="because"))
    assert not isinstance(found, HoldfastError) and isinstance(found[0], ev.WaitDecided)
    decided = after(run, found)
    if action == "halt":
        assert (decided.status, decided.settled, decided.finished_at is not None) == (Status.CANCELED, True, True)
        return
    assert (decided.status, decided.waits) == (Status.WAITING_FOR_HUMAN, ())
    resumed = facts(decided, cmd.Resume("ada"))
    assert not isinstance(resumed, HoldfastError) and after(decided, resumed).status is Status.RUNNING

"""Every situation of a run against every command: what comes of it, as a table that the code itself makes.

``python -m tests.core.matrix`` writes it into docs/matrix.md, and the table of answers into docs/people.md; a test compares. The same situations are made with the real
engine in tests/people/test_matrix.py and held against this table.
"""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.core import commands as cmd
from holdfast.core import decisions, lanes
from holdfast.core import events as ev
from holdfast.core.errors import ErrorValue, HoldfastError
from holdfast.core.run import Run, fold_all
from holdfast.core.waits import ACTIONS, AFTER_STEP, BEFORE_STEP, KNOWN, Passage, WaitKind
from tests.core.build import decided, folded, numbered, raw, wait

PAGE = Path(__file__).resolve().parents[2] / "docs" / "matrix.md"
PEOPLE = PAGE.with_name("people.md")
NOW = 77_000_000
W = "run.1.ask.0"
BOOM = ErrorValue("ValueError", "boom")

_asked = ev.WaitRequested(wait(wait_id=W, deadline=NOW))
_signal = ev.WaitRequested(wait(WaitKind.SIGNAL, wait_id=W, name="go", available_actions=()))
_said = ev.WaitDecided(decided("approve", W))
_came = ev.WaitDecided(decided("signal", W))
_saved = ev.CheckpointSaved(b"h")
_failed = (_saved, ev.RunFailed("step_failed", BOOM))
_armed = wait(WaitKind.HANDOFF, wait_id=W, available_actions=("continue", "halt"))

SITUATIONS: dict[str, Run] = {
    "pending": folded(),
    "running": folded(ev.RunStarted()),
    "running, a question open": folded(ev.RunStarted(), _asked),
    "running, interrupted": folded(ev.RunStarted(), _asked, ev.RunInterrupted("the process ended")),
    "replaying": folded(ev.RunStarted(), ev.RunReplaying()),
    "waiting_for_human, undecided": folded(ev.RunStarted(), _asked, ev.RunWaitingForHuman()),
    "waiting_for_human, decided": folded(ev.RunStarted(), _asked, ev.RunWaitingForHuman(), _said),
    "waiting_for_signal": folded(ev.RunStarted(), _signal, ev.RunWaitingForSignal()),
    "waiting_for_signal, signal received": folded(ev.RunStarted(), _signal, ev.RunWaitingForSignal(), _came),
    "completed": folded(ev.RunStarted(), ev.RunCompleted()),
    "failed": folded(ev.RunStarted(), *_failed),
    "failed, undecided": folded(ev.RunStarted(), _asked, *_failed),
    "failed, decided": folded(ev.RunStarted(), _asked, *_failed, _said),
    "canceled": folded(ev.RunStarted(), _asked, _saved, ev.WaitClosed(W), ev.RunCanceled("canceled")),
    "canceled, settled": folded(ev.RunStarted(), _asked, _saved, ev.WaitClosed(W), ev.RunCanceled("denied", settled=True)),
    "canceled, unattended": folded(ev.RunStarted(), ev.WaitRequested(_armed), _saved, ev.RunCanceled("unattended_handoff", rearms=(W,))),
}

COMMANDS: dict[str, cmd.AnyCommand] = {
    "decide: approve": cmd.Decide(W, "approve", "ada"),
    "decide: deny": cmd.Decide(W, "deny", "ada"),
    "decide: not offered": cmd.Decide(W, "abandon", "ada"),
    "decide: by somebody who may not": cmd.Refused(W, "approve", "bob", "not you"),
    "timeout": cmd.FireTimeout(W, NOW),
    "signal": cmd.Signal("go", "k", raw(1), "ada"),
    "child ended": cmd.ChildEnded("kid", "completed", raw(1)),
    "cancel": cmd.Cancel("ada"),
    "resume": cmd.Resume("ada"),
    "resume, acknowledged": cmd.Resume("ada", acknowledge="step_failed"),
    "late result": cmd.LateResult("r.1.a@1", "sent"),
}


def facts(run: Run, command: cmd.AnyCommand) -> tuple[ev.Fact, ...] | HoldfastError:
    """What becomes of a command, or the error that refuses it."""
    try:
        return decisions.decide(run, command, NOW)
    except HoldfastError as e:
        return e


def after(run: Run, found: tuple[ev.Fact, ...]) -> Run:
    return fold_all(run, numbered(found, first=run.version + 1))


def cell(run: Run, command: cmd.AnyCommand) -> str:
    """Its events, and the status if that changes; or the code of the refusal; or that nothing changes."""
    found = facts(run, command)
    if isinstance(found, HoldfastError):
        return f"✗ {found.code}"
    if not found:
        return "–"
    status = after(run, found).status
    names = ", ".join(dict.fromkeys(f.wire for f in found))
    return names if status is run.status else f"{names} → **{status}**"


def table() -> str:
    """The matrix as Markdown: situations down, commands across."""
    lines = ["| a run that is | " + " | ".join(COMMANDS) + " |", "|---" * (len(COMMANDS) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(cell(run, c) for c in COMMANDS.values()) + " |" for name, run in SITUATIONS.items()]
    return "\n".join(lines) + "\n"


GATES = {"gate": BEFORE_STEP, "check": AFTER_STEP}
DOES = {
    ("gate", Passage.PASSES): "the step runs",
    ("check", Passage.PASSES): "the result is kept",
    ("gate", Passage.FAILS): "the step fails: rejected",
    ("check", Passage.FAILS): "the step fails: rejected",
    ("check", Passage.REDOES): "the step is done again",
    ("gate", Passage.ENDS): "the run ends, halted",
    ("check", Passage.ENDS): "the run ends, halted",
}


def gate_cell(action: str, where: str) -> str:
    """What an action does at a gate before its step, or after it; or that it may not be offered there."""
    passage = GATES[where].get(action)
    return "✗ may not be offered here" if passage is None else DOES[where, passage]


def offer_cell(action: str, kind: WaitKind) -> str:
    """Whether a question of this kind takes an action by itself: with its feedback, if it needs any."""
    return "yes" if action in ACTIONS[kind] else "–"


def actions_table() -> str:
    """Every action: at a gate before a step, after it, and which questions of the engine's own offer it."""
    asked = [k for k in ACTIONS if k is not WaitKind.GATE]
    lines = [
        "| action | at a gate before the step | at one after it | " + " | ".join(k.value for k in asked) + " |",
        "|---" * (len(asked) + 3) + "|",
    ]
    lines += [
        f"| {a} | {gate_cell(a, 'gate')} | {gate_cell(a, 'check')} | " + " | ".join(offer_cell(a, k) for k in asked) + " |"
        for a in (*KNOWN, "any other")
    ]
    return "\n".join(lines) + "\n"


ANSWERS = {
    "approve": "the run resumes",
    "deny": 'the run is halted, unless the question was asked with `on_deny="deliver"`',
    "answer": "the run resumes with the value",
    "continue": "the run resumes; the program's own judgement of the result (`verdict=`) stays as it is",
    "continue_with_waiver": "as `continue`, and the run records what you let pass and why: later steps see this waiver in `ctx.waivers`. Feedback is required",
    "retry_feedback": "the step that is to be redone runs once more, with your feedback in `ctx.feedback`. Feedback is required",
    "reject": "the step fails with the code `rejected`; a resume asks again",
    "halt": "ends the run for good",
    "record_result": "the effect happened; `payload` is its result",
    "reexecute": "the effect is done once more",
    "abandon": "the effect did not happen and is not done; the node gets a failure",
}
"""What each action does, for the page about people."""


def answers_table() -> str:
    """Every action with the kinds of questions that offer it by themselves."""
    lines = ["| action | offered by the kinds | does |", "|---|---|---|"]
    for action in KNOWN:
        kinds = ", ".join(f"`{kind.value}`" for kind, offered in ACTIONS.items() if action in offered)
        lines.append(f"| `{action}` | {kinds or 'none by default'} | {ANSWERS[action]} |")
    return "\n".join(lines) + "\n"


HEADS: dict[str, lanes.Head] = {
    "pending": lanes.Head(),
    "queued again, because its process released it": lanes.Head(),
    "left by a dead owner": lanes.Head(),
    "left by an owner whose lease has expired": lanes.Head(),
    "waiting, and answered": lanes.Head(),
    "executed here": lanes.Head(live=True, here=True),
    "executed by another process": lanes.Head(live=True),
    "executed by a frozen process, its lease not expired": lanes.Head(live=True),
    "left by a dead owner, recovery on hold": lanes.Head(held=True),
    "interrupted": lanes.Head(held=True),
    "waiting for a person": lanes.Head(waits=True),
    "waiting for a signal": lanes.Head(waits=True),
    "waiting, and answered with `--no-resume`": lanes.Head(waits=True),
    "waiting for a timer that is due": lanes.Head(),
    "waiting for a timer that is not due": lanes.Head(waits=True),
    "waiting for a child": lanes.Head(waits=True),
    "paused until a limit has room": lanes.Head(crowded=True),
    "pending, of a skill that is not here": lanes.Head(known=False),
    "pending, of another version of the graph": lanes.Head(known=False),
}
"""The heads of a lane. Each is made with the real engine in tests/people/test_heads.py."""


def head_cell(what: lanes.May, verb: str) -> str:
    """What ``invoke`` and ``resume`` do behind a head of which this may be done."""
    match what:
        case lanes.May.DRIVE:
            return "executes the head, then its own run"
        case lanes.May.AWAIT:
            return "waits for the head, then executes its own run"
        case _:
            return f"leaves its own run pending: {what}" if verb == "invoke" else f"✗ lane_blocked: {what}"


def heads_table() -> str:
    lines = ["| the head of the lane is … | invoke | resume |", "|---|---|---|"]
    lines += [
        f"| {name} | {head_cell(lanes.may(head), 'invoke')} | {head_cell(lanes.may(head), 'resume')} |" for name, head in HEADS.items()
    ]
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """The page with the tables as they are now."""
    for name, made in (("matrix", table()), ("actions", actions_table()), ("heads", heads_table()), ("answers", answers_table())):
        page = re.sub(rf"(?s)(<!-- {name} -->\n).*?(<!-- /{name} -->)", lambda m, made=made: m[1] + "\n" + made + "\n" + m[2], page)
    return page


if __name__ == "__main__":
    for page in (PAGE, PEOPLE):
        page.write_text(with_table(page.read_text("utf-8")), "utf-8")

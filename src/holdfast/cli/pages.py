"""Shows a run: as one object for programs, and as one page for a person who has to decide."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import click

from holdfast.cli import output as o
from holdfast.cli.session import Call
from holdfast.core import describe
from holdfast.core import waits as ws
from holdfast.core.compensation import TASK as UNDO_TASK
from holdfast.core.describe import EffectView
from holdfast.core.effects import MAY_LIVE, OPEN
from holdfast.core.explain import Advice
from holdfast.core.lanes import Blocked
from holdfast.core.status import TERMINAL, Condition, Status
from holdfast.core.toolcalls import place_of
from holdfast.core.views import Moment
from holdfast.core.wording import FORCED, Offered, answering, describe_action, phrase
from holdfast.engine.look.snapshot import Snapshot
from holdfast.handle import when
from holdfast.runtime import Runtime

RESTING = 4
"""The exit code for a run that has not ended: it waits for an answer, or for its turn behind another (§5.13)."""
EXITS: dict[str, int] = {
    Status.COMPLETED: 0,
    Status.FAILED: 1,
    Status.WAITING_FOR_HUMAN: 4,
    Status.WAITING_FOR_SIGNAL: 4,
    Status.CANCELED: 5,
}


# -- reading ----------------------------------------------------------------------------------------


class RunObject(dict[str, Any]):
    """What every command about one run prints: its record (§3.1), and ``values``, ``waits``, ``problems``, all of one instant.

    ``gone`` and ``behind`` are not printed. ``gone``: whether a resume is refused, because what the run's completed steps did was undone.
    ``behind``: the run of its lane because of which a resume is refused for now.
    """

    gone: bool = False
    behind: Blocked | None = None


async def run_object(rt: Runtime, run_id: str, *, deduplicated: bool = False) -> RunObject:
    return make_run_object(await rt.look.snapshot(run_id), deduplicated=deduplicated)


def make_run_object(seen: Snapshot, *, deduplicated: bool = False) -> RunObject:
    found = RunObject(describe.plain(seen.detail(deduplicated=deduplicated)))
    found.gone, found.behind = bool(seen.gone), seen.behind
    return found


# -- the short answer -------------------------------------------------------------------------------


def heading(run: Mapping[str, Any]) -> str:
    """Returns ``status · condition``, coloured by its meaning."""
    answered = run["condition"] == Condition.QUEUED and run["decisions"]
    words = [run["status"]] if run["condition"] in _SAME else [run["status"], run["condition"]]
    text = f"{_ANSWERED.get(run['decisions'][-1]['action'], 'answered')}; queued" if answered else " · ".join(words)
    return o.paint(text, o.COLOURS.get(run["condition"]), bold=True)


_ANSWERED = {ws.APPROVE: "approved", ws.DENY: "denied"}
_SAME = frozenset({Condition.FAILED, Condition.CANCELLED})
"""Conditions that say the same as the status."""


def finish(call: Call, run: RunObject) -> int:
    """Prints how a run stands after a command, and returns the exit code."""
    if call.as_json:
        o.emit(run)
    else:
        brief(call, run)
    return EXITS.get(run["status"], RESTING)


def brief(call: Call, run: RunObject) -> None:
    """Prints a few lines: how a run stands, and what to do next."""
    click.echo(f"{o.inline(run['skill_id'])} {run['run_id']}  {heading(run)}")
    for wait in run["waits"]:
        describe_question(wait)
        if call.is_kept:
            advise(answers(call, wait, alone=alone(run)), indent="      ")
    if run["cancel_requested_at"] and run["status"] not in TERMINAL:
        click.echo(f"  {o.mark('bad')} cancel requested at {o.clock(run['cancel_requested_at'])}: it ends when its current step has been cut off")
    if run["error"] is not None:
        o.prose(f"{run['stop_reason']}: {run['error']['message']}", first=f"  {o.mark('bad')} ", indent="    ")
        _frames(run["error"])
    elif run["stop_reason"]:
        click.echo(f"  stopped: {o.inline(run['stop_reason'])}")
    if run["status"] == Status.COMPLETED:
        limit = max(20, o.width() - 24)
        result = run["result"]
        o.fields((o.inline(n), o.value_line(v, limit)) for n, v in (result.items() if isinstance(result, dict) else [("result", result)]))
    if not call.is_kept:  # no other command can reach the run
        if run["status"] not in TERMINAL:
            click.echo("  the run was kept in memory and is gone now; --store names a store that lasts")
        return
    ended = [Advice("See why it ended, and what to do:", call.line("explain", run["run_id"]))] if run["condition"] == Condition.HALTED else []
    advise([*ended, *advice(call, run, gone=run.gone, behind=run.behind)])


def advise(given: Iterable[Advice], *, indent: str = "  ") -> None:
    """Prints what can be done: an explanation before its command, and each command alone on its line, so that it can be pasted."""
    for one in given:
        if one.text:
            o.prose(one.text, first=f"{indent}{o.mark('go')} ", indent=f"{indent}  ")
        if one.command:
            click.echo(f"{indent}    {one.command}" if one.text else f"{indent}{one.command}")


def advice(call: Call, run: Mapping[str, Any], *, gone: bool, behind: Blocked | None) -> list[Advice]:
    """Returns the commands that continue from here. ``gone``: what completed steps did was undone. ``behind``: the run of its lane that has to end first."""
    target = call.code(run["target"])
    if gone:
        return [Advice("Start a fork that carries out again what was undone (a resume is refused):", call.line("fork", run["run_id"], *target))]
    if behind is not None:
        why = f"The run {behind.run_id} is before it in its lane ({behind.why}). A resume is refused until that run has ended or has released the lane. See what it needs:"
        return [Advice(why, call.line("explain", behind.run_id)), *_advise(call, run, target)]
    return _advise(call, run, target)


def _advise(call: Call, run: Mapping[str, Any], target: list[str]) -> list[Advice]:
    match run["condition"]:
        case "queued":
            if run["blocked_by"]:
                return [Advice(f"It waits for its turn after {run['blocked_by']}.")]
            if (other := run["no_worker_for"]) is not None and other["offered"]:
                return _advise_change(call, run, target)
            later = run["status"] == Status.PENDING and run["not_before"]
            text = f"A worker starts it at {o.clock(run['not_before'])}. To start it now:" if later else "Execute it here, or leave it to a worker that has the skill:"
            return [Advice(text, call.line("resume", run["run_id"], *target))]
        case "failed":
            if run["waits"]:
                return []
            return [Advice("After you have fixed the cause, resume it:", call.line("resume", run["run_id"], *target, "--acknowledge", run["stop_reason"] or ""))]
        case "cancelled" | "interrupted":
            return [Advice("If it should continue after all, resume it:" if run["condition"] == "cancelled" else "Resume it where it stopped:", call.line("resume", run["run_id"], *target))]
    return []


def _advise_change(call: Call, run: Mapping[str, Any], target: list[str]) -> list[Advice]:
    """Returns what can be done with a run that no worker takes, because the code of its skill, or its folder, is not the one that it began with."""
    lacking = run["no_worker_for"]
    if lacking["workspace"] is not None and lacking["wanted"] in lacking["offered"]:
        return [Advice("It can continue only in the folder in which its tools have worked. Start a worker with that folder: Runtime(workspace=…).")]
    return [
        Advice("The skill's graph has changed. To continue this run with the code as it is now:", call.line("resume", run["run_id"], *target, "--upgrade")),
        Advice("To let a worker continue all such runs:", call.line("worker", *target, "--upgrade")),
    ]


def describe_question(wait: Mapping[str, Any]) -> None:
    """Prints an open wait: its kind and its question."""
    what = o.inline(wait["prompt"] or wait["name"] or wait["task"])
    o.prose(f"{wait['kind']}: {what}", first=f"  {o.mark('ask')} ", indent="    ", bold=len(wait["kind"]) + 2)


def show_subject(wait: Mapping[str, Any], *, indent: str, lines: int) -> None:
    """Prints what a wait shows to the person who is to answer."""
    if wait["key"] and isinstance(wait["show"], Mapping):
        _about(wait, wait["show"])
    elif wait["show"] is not None:
        o.block(wait["show"] if isinstance(wait["show"], str) else o.value_line(wait["show"], 2000), indent=indent, lines=lines)


def _about(wait: Mapping[str, Any], shown: Mapping[str, Any]) -> None:
    """Prints the effect that a wait asks about: what it was called with, what is called now if that has changed, its key, and whether its first attempt may still act."""
    ended = "that attempt has ended" if shown.get("closed", not _may_live(wait)) else "its process may still be alive"
    now = shown.get("now")
    o.fields(
        [
            ("    about", _name_call(shown) if now is None or shown.get("show") is not None else f"{o.inline(shown.get('effect', ''))}, with arguments that are not on record"),
            *([("    now", _name_call(now))] if now else []),
            ("    key", o.inline(wait["key"])),
            ("    attempted", f"{o.clock(wait['attempted_at'])}, {ended}"),
            ("    effect", o.inline(wait["effect_id"])),
            *([("    verify", f"could not find out: {o.inline(shown['verify'], 400)}")] if shown.get("verify") else []),
        ]
    )


def _name_call(shown: Mapping[str, Any]) -> str:
    return f"{o.inline(shown.get('effect', ''))} {o.inline(json.dumps(shown.get('show'), ensure_ascii=False, default=str), 400)}"


def alone(run: Mapping[str, Any]) -> bool:
    """Whether an answer without a wait's id can mean only one wait (§5.11)."""
    return sum(bool(w["available_actions"]) for w in run["waits"]) == 1


def answers(call: Call, wait: Mapping[str, Any], *, alone: bool = False) -> list[Advice]:
    """Returns what to type to answer a wait: for each action that it offers, what the action does and its command."""
    run_id, which = wait["run_id"], None if alone else wait["wait_id"]
    lines: list[tuple[str, Offered | None]] = []
    for action in wait["available_actions"]:
        forced = action == ws.REEXECUTE and _may_live(wait)
        lines.append((call.line(*answering(run_id, which, action, forced=forced)), FORCED if forced else describe_action(wait["kind"], action)))
        if wait["editable"] and action == ws.APPROVE:
            lines.append((call.line(*answering(run_id, which, action, edited=True)), None))
    if wait["kind"] == ws.WaitKind.SIGNAL and place_of(wait["name"]) is None:  # a tool runner answers by itself
        lines.append((call.line("signal", run_id, wait["name"], "--payload", "JSON"), None))
    plain = wait["kind"] in (ws.WaitKind.APPROVAL, ws.WaitKind.INPUT)  # for these, the command alone says what it does
    return [Advice("" if means is None or plain else phrase(means), line) for line, means in lines]


def _may_live(wait: Mapping[str, Any]) -> bool:
    """Whether the process that attempted the effect may still act (§6.5)."""
    shown = wait["show"]
    return isinstance(shown, Mapping) and shown.get("reason") == MAY_LIVE


# -- the page ---------------------------------------------------------------------------------------

_SIGNS: dict[str, o.Mark] = {
    "step.completed": "ok",
    "step.degraded": "part",
    "step.skipped": "skip",
    "step.failed": "bad",
    "step.retry_scheduled": "again",
    "wait.requested": "ask",
    "wait.decided": "go",
    "wait.timed_out": "go",
    "wait.denied": "bad",
    "run.completed": "ok",
    "run.failed": "bad",
    "run.canceled": "bad",
    "run.recovered": "again",
    "attempt.taken_over": "again",
    "side_effect.recorded": "ok",
    "side_effect.failed": "bad",
    "side_effect.unknown": "ask",
    "intent.sent": "ok",
    "intent.refused": "bad",
    "intent.failed": "again",
    "intent.lost": "ask",
    "intent.unknown": "ask",
    "intent.redrive": "go",
    "intent.abandoned": "bad",
}


EXPLAINED = frozenset({Condition.HALTED, Condition.INTERRUPTED, Condition.QUEUED})
"""Conditions whose reason is neither an open wait nor an error: ``explain`` says it."""


class Beside(NamedTuple):
    """What a run's page shows besides its record: its lineage, drawn; and for a run whose condition is in ``EXPLAINED``, why it is where it is
    and what would make it continue."""

    tree: list[str]
    why: str
    next: list[Advice]


MOST = 60
"""How many lines of a run's timeline and of its effects are shown without ``--full``: of the timeline the first third of them, and the last."""


def page(call: Call, run: Mapping[str, Any], seen: Snapshot, beside: Beside, *, full: bool = False) -> None:
    """Prints all that an operator needs to know of one run, the most urgent first. ``full``: however long it is."""
    now, effects = when(seen.now), seen.effects()
    click.echo(f"{o.paint(o.inline(run['skill_id']), bold=True)} {o.inline(run['skill_version'])}  {run['run_id']}  {heading(run)}")
    _facts(run, now)
    if beside.why:
        o.head("why")
        o.prose(beside.why, first="  ", indent="  ")
    if run["waits"]:
        o.head("waits for")
        for wait in run["waits"]:
            _wait(call, wait, now, alone(run))
    if run["decisions"]:
        o.head("decided, not yet used")
        for d in run["decisions"]:
            click.echo(f"  {o.mark('go')} {o.inline(d['action'])} by {o.inline(d['actor'])}, {o.ago(d['decided_at'], now)}")
    if run["error"] is not None:
        o.head("error")
        click.echo(f"  {o.mark('bad')} {o.inline(run['stop_reason'])}  {name_kind(run['error']['type'])}" + (f" in {o.inline(run['error']['where'])}" if run["error"]["where"] else ""))
        o.block(run["error"]["message"], lines=12)
        _frames(run["error"])
        if run["error"]["hint"]:
            click.echo(f"    {o.mark('go')} {o.inline(run['error']['hint'])}")
    if run["problems"]:
        o.head("problems")
        problem_lines(call, run["problems"])
    o.head("timeline")
    timeline(seen.story(), most=None if full else MOST)
    if effects:
        o.head("effects")
        shown = effects if full else effects[-MOST:]
        if left := len(effects) - len(shown):
            click.echo(o.paint(f"  … {left:,} before these (--full, or {call.line('effects', run['run_id'])})", dim=True))
        effect_table(shown)
    if run["values"]:
        o.head("values")
        limit = max(20, o.width() - 24)
        o.fields((o.inline(n), o.value_line(v, limit)) for n, v in run["values"].items())
    steps = beside.next or advice(call, run, gone=bool(seen.gone), behind=seen.behind)
    if steps:
        o.head("next")
        advise(steps)


def name_kind(kind: str) -> str:
    """Returns the name of a class of errors, without its module."""
    return o.inline(kind.rpartition(".")[2])


def _frames(error: Mapping[str, Any]) -> None:
    """Prints the lines of the user's code that raised, the innermost last, as Python prints them."""
    for frame in error["frames"]:
        click.echo(f"      File {json.dumps(frame['file'])}, line {frame['line']}, in {o.inline(frame['function'])}")
        if frame["source"]:
            click.echo(f"        {o.paint(o.inline(frame['source']), dim=True)}")


def _facts(run: Mapping[str, Any], now: dt.datetime) -> None:
    lease = run["lease"]
    ran = between(run["started_at"], run["finished_at"])
    holder = f"{o.inline(lease['owner'])} until {o.clock(lease['expires_at'])}" if lease["owner"] and run["status"] not in TERMINAL else ""
    alive = {"true": "", "false": "  (that process is dead)", "unknown": ""}.get(lease["owner_alive"], "")
    o.fields(
        [
            ("created", f"{o.clock(run['created_at'])}  ({o.ago(run['created_at'], now)})"),
            ("finished", f"{o.clock(run['finished_at'])}  ({ran} after its start)" if run["finished_at"] else ""),
            ("cancel", f"asked for at {o.clock(run['cancel_requested_at'])}" if run["cancel_requested_at"] and run["status"] not in TERMINAL else ""),
            ("stopped", o.inline(run["stop_reason"] or "") + (", for good" if run["settled"] else "")),
            ("thread", o.inline(run["thread_id"]) if run["thread_id"] != run["run_id"] else ""),
            ("lane", "" if run["lane"] == "main" else o.inline(run["lane"])),
            ("queue", "" if run["queue"] == "default" else o.inline(run["queue"])),
            ("behind", o.inline(" ".join(x for x in (run["blocked_by"], run["blocked_why"]) if x))),
            ("no worker for", "" if run["no_worker_for"] is None else o.inline(f"graph {run['no_worker_for']['wanted'][:8]}; the workers have {', '.join(x[:8] for x in run['no_worker_for']['offered']) or 'none'}")),
            ("not before", o.clock(run["not_before"])),
            ("held by", holder + alive if holder else ""),
            ("target", o.inline(run["target"] or "")),
            ("from", o.inline(run["source_checkpoint_id"] or run["source_run_id"] or "")),
            ("parent", o.inline(run["parent_run_id"] or "")),
            ("tags", ", ".join(o.inline(t) for t in run["tags"])),
            ("head", f"{o.inline(run['checkpoint_head']) + ' ' if run['checkpoint_head'] else 'no checkpoint yet,'} after {run['version']} events"),
        ]
    )


def between(start: str | None, end: str | None) -> str:
    a, b = o.moment(start), o.moment(end)
    return "" if a is None or b is None else o.span((b - a).total_seconds())


_OUTCOMES = {"recorded": "green", "reused": "green", "failed": "red", "unknown": "yellow", "attempted": "yellow", "blocked": "yellow"}


def effect_table(effects: list[EffectView]) -> None:
    """Prints one line for each effect. It says if the effect was undone, or should have been and was not (§6.11)."""
    of = {e.effect_id: e for e in effects}
    undos = {e.source_effect_id: e for e in effects if e.task == UNDO_TASK}
    o.table(
        ["status", "what", "step", "attempted", "took", "effect"],
        [
            [
                o.paint(_standing(e, undos.get(e.effect_id)), "red" if e.effect_id in undos and not e.undone else _OUTCOMES.get(str(e.status))),
                o.inline(f"{e.capability}, undoes {of[e.source_effect_id].capability}" if e.task == UNDO_TASK and e.source_effect_id in of else e.capability, 32),
                f"{e.task}.{e.path}",
                o.clock(e.attempted_at),
                between(e.attempted_at, e.settled_at),
                o.inline(e.effect_id.partition(".")[2]),
            ]
            for e in effects
        ],
    )


def _standing(effect: EffectView, undo: EffectView | None) -> str:
    if effect.undone:
        return f"{effect.status}, undone"
    if undo is None:
        return str(effect.status)
    return f"{effect.status}, undo {undo.status}" if undo.status in OPEN else f"{effect.status}, not undone"


_IF_LATE = {"halt": "the run halts", "deliver": "the run resumes without an answer", "default": "the run takes the default", "fail": "the run fails"}


def _wait(call: Call, wait: Mapping[str, Any], now: dt.datetime, alone: bool) -> None:
    describe_question(wait)
    until = deadline(wait, now, f"; {_IF_LATE.get(wait['on_timeout'], 'it ends')} {o.ago(wait['deadline'], now)} if nobody answers" if wait["deadline"] else "")
    who = f", for {', '.join(map(o.inline, wait['who']))}" if wait["who"] else ""
    click.echo(o.paint(f"      asked {o.ago(wait['requested_at'], now)} by {o.inline(wait['task'])}{who}{until}", dim=True))
    show_subject(wait, indent="      │ ", lines=24)
    advise(answers(call, wait, alone=alone), indent="      ")


def deadline(wait: Mapping[str, Any], now: dt.datetime, ahead: str = "") -> str:
    """Returns until when a wait may be answered; after its deadline, that the next worker ends it. ``ahead``: what to say before the deadline."""
    at = o.moment(wait["deadline"])
    if at is None:
        return ""
    if at <= now:
        return f"; its deadline passed {o.ago(wait['deadline'], now)}: the next worker ends it"
    return ahead or f", until {o.clock(wait['deadline'])}"


def mark_of(found: list[dict[str, Any]]) -> o.Mark:
    """Returns the sign before a summary of problems: that of an error or a warning if there is one, else ``ok``."""
    severities = {p["severity"] for p in found}
    return "bad" if "error" in severities else "warn" if "warning" in severities else "ok"


def problem_lines(call: Call, found: list[dict[str, Any]]) -> None:
    """Prints each problem, the run's id first, and what to do about it."""
    colours = {"error": "red", "warning": "yellow"}
    for p in found:
        whose = f"{o.inline(p['run_id'])}  " if p["run_id"] else ""
        click.echo(f"  {whose}{o.paint(p['severity'], colours.get(p['severity']))} {o.paint(p['code'], bold=True)}")
        click.echo(f"      {o.inline(p['message'])}")
        if p["repair_hint"]:
            click.echo(o.paint(f"      {o.inline(call.spell(p['repair_hint']))}", dim=True))


_SMALL = frozenset(
    {
        "run.queued", "run.claimed", "run.started", "run.waiting_for_human", "run.waiting_for_signal", "attempt.lease_expired", "attempt.taken_over",
        "side_effect.attempted", "ledger.appended", "step.started",
    }
)


def timeline(moments: list[Moment], *, brief: bool = False, notes: Mapping[str, str] | None = None, most: int | None = None) -> None:
    """Prints one line for each moment: when, what, how long, and what is worth knowing.

    Args:
        brief: leave out what only an operator wants to see: claims, queues, calls inside a step.
        notes: further lines, by the time after which each belongs.
        most: how many to show; if there are more, the first third of that number and the last ones.
    """
    first = o.moment(moments[0].at) if moments else None
    told = [m for m in moments if not brief or not (m.what in _SMALL or (m.what == "step.completed" and "." in m.step))]
    where = min(32, max((o.columns(m.step) for m in told), default=0))
    room = o.width()
    left_notes = dict(notes or {})
    cut = 0 if most is None or len(told) <= most else len(told) - most
    head = 0 if most is None else most // 3
    for n, m in enumerate(told):
        if head <= n < head + cut:
            if n == head:
                click.echo(o.paint(f"  {'':>9}  … {cut:,} more (--full shows them)", dim=True))
            continue
        for late in [w for w in left_notes if m.at is not None and w < m.at]:
            click.echo(f"  {'':>9}  {left_notes.pop(late)}")
        at = o.moment(m.at)
        since = f"+{(at - first).total_seconds():.3f}" if at is not None and first is not None else ""
        sign = o.mark(_SIGNS.get(m.what, "dot"))
        took = o.span(m.duration)
        left = f"  {since:>9}  {sign} {m.what:<22} {o.pad(o.inline(m.step, 32), where)}  {took:>9}"
        line = f"{left}  {o.inline(m.detail, max(10, room - o.columns(left) - 2))}".rstrip()
        click.echo(o.paint(line, dim=True) if m.what in _SMALL else line)
    for line in left_notes.values():
        click.echo(f"  {'':>9}  {line}")



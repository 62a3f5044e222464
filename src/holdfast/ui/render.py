"""Renders templates, always escaped, with the words of ``ui.words``; also renders a run's page as one file (§17.1)."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import quote

import jinja2

from holdfast.core import describe
from holdfast.core.wording import describe_action
from holdfast.engine.look.snapshot import Snapshot
from holdfast.handle import when
from holdfast.ui import drawings, words

_FILES = files("holdfast.ui")
EVENTS = 200
"""How many events a run's page shows."""


@jinja2.pass_context
def _clock(context: jinja2.runtime.Context, text: str | None) -> str:
    return words.clock(text, context["zone"])


@jinja2.pass_context
def _hour(context: jinja2.runtime.Context, text: str | None, began: str | None, ended: str | None) -> str:
    return words.hour(text, context["zone"], began, ended)


@jinja2.pass_context
def _axis(context: jinja2.runtime.Context, drawn: drawings.Timeline) -> tuple[str, str]:
    return words.axis(drawn.began, drawn.ended, context["zone"])


def _part(text: str) -> str:
    """Quotes an id as one part of a path, whatever it contains."""
    return quote(text, safe="")


def _environment() -> jinja2.Environment:
    made = jinja2.Environment(loader=jinja2.PackageLoader("holdfast.ui"), autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    made.filters.update(shown=words.show, line=words.line, fits=words.fits, span=words.span, clock=_clock, hour=_hour, axis=_axis, clean=words.clean, label=words.label, part=_part)
    made.globals.update(
        signs=words.SIGNS, effect_signs=words.EFFECT_SIGNS, between=words.between, ago=words.ago, count=words.count, command=words.command, offered=describe_action,
        answer_command=words.answer_command, form_of=words.form_of, scrolls=words.scrolls, needs_feedback=("continue_with_waiver", "retry_feedback"), needs_payload=("answer", "record_result"), zone_name=str, ZONES=words.ZONES,
    )
    return made


ENVIRONMENT = _environment()


def asset(name: str) -> bytes:
    return (_FILES / "static" / name).read_bytes()


def page(name: str, **context: Any) -> str:
    return ENVIRONMENT.get_template(name).render(**{"viewer": None, "store": "", "open": True, "alone": None, "section": "", "base": "", "here": "/", "zone": dt.UTC, **context})


class EventsPage(NamedTuple):
    """The events that a run's page shows, newest first, of one type if that was asked for: those from ``first`` to ``last``, as they are numbered."""

    shown: list[describe.EventView]
    first: int
    last: int


def newest_events(events: list[describe.EventView], kind: str | None, most: int = EVENTS) -> EventsPage:
    """Returns the newest events of those that were read, of any type or of one."""
    found = [e for e in events if kind in (None, e.event_type)]
    first = (found[-most] if len(found) > most else events[0]).seq if events else 1
    return EventsPage(found[-most:][::-1], first, events[-1].seq if events else 0)


def earlier_events(events: list[describe.EventView], before: int, kind: str | None) -> EventsPage:
    """Returns the events before the event ``before``."""
    return EventsPage([e for e in events if kind in (None, e.event_type)][::-1], max(1, before - EVENTS), before - 1)


def run_context(
    seen: Snapshot, skill: describe.SkillView | None, family: list[describe.RunView], children: list[describe.RunView], *, most: int = EVENTS, kind: str | None = None,
    events_page: EventsPage | None = None,
) -> dict[str, Any]:
    """Returns everything that a run's page shows, as of one moment. ``events_page``: earlier events in the place of the newest."""
    run, effects, steps, attempts, events, intents = seen.detail(), seen.effects(), seen.steps(), seen.attempts(), seen.events(), seen.intents()
    now, gone = when(seen.now), bool(seen.gone)
    states: dict[str, tuple[str, str]] = {}
    visits = Counter(s.name for s in steps if not s.path)
    for s in (s for s in steps if not s.path):
        state = "open" if s.outcome is None else "done" if s.outcome in ("ok", "degraded") or s.outcome.startswith("skipped") else "fail"
        note = {"open": "under way", "fail": s.outcome or ""}.get(state, words.between(s.started_at, s.ended_at))
        often = f"{visits[s.name]:,} times · " if visits[s.name] > 1 else ""
        states[s.name] = (state, often + (f"{note} · try {s.attempts}" if s.attempts > 1 else note))
    for w in run.waits:
        states[w.task.partition("~")[0]] = ("person" if w.available_actions else "waits", "waits")
    return {
        "run": run, "gone": gone, "behind": seen.behind, "now": now, "effects": sorted(effects, key=lambda e: e.status != "unknown")[:most], "effects_total": len(effects), "steps": steps,
        "attempts": attempts, "events": events_page or newest_events(events, kind, most), "events_total": run.version, "kind": kind, "events_step": EVENTS,
        "kinds": sorted({e.event_type for e in events}), "earlier": seen.walked is not None,
        "finding": words.finding(run, effects, gone=gone, behind=seen.behind), "picture": drawings.graph(drawings.list_declared(skill) if skill is not None and skill.nodes else drawings.list_taken(steps), states),
        "timeline": drawings.timeline(steps, attempts, events, now, run.finished_at, intents), "family": family, "children": children, "intents": intents[:most],
        "ledger": seen.ledger()[:most], "alone_wait": sum(bool(w.available_actions) for w in run.waits) == 1,
    }


def alone(seen: Snapshot, family: list[describe.RunView], store: str) -> str:
    """Renders a run's page as one file that needs no other, for an incident report."""
    context = run_context(seen, None, family, [], most=100_000)
    return page("run.html", **context, checkpoints=[], at=None, alone=asset("style.css").decode(), store=store)


__all__ = ["EVENTS", "EventsPage", "alone", "asset", "earlier_events", "newest_events", "page", "run_context"]

"""The first words of a page: one sentence that says what is the matter, and one that says what to do (§17.4). Pure: made only from what the page shows."""

from __future__ import annotations

import datetime as dt
import json
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.calendar import CALENDAR
from holdfast.core import wording
from holdfast.core.describe import EffectView, RunView, WaitView
from holdfast.core.errors import InvalidInput
from holdfast.core.lanes import Blocked
from holdfast.core.visible import escape
from holdfast.core.wording import answering

SIGNS = {
    "queued": ("queued", ""), "running": ("running", "live"), "replaying": ("replaying", "live"), "awaiting_phase_handoff": ("person", "person"),
    "awaiting_gate_decision": ("person", "person"), "awaiting_human_review": ("person", "person"), "awaiting_signal": ("signal", ""), "done": ("done", "good"),
    "halted": ("halted", ""), "cancelled": ("cancelled", ""), "failed": ("failed", "bad"), "unknown": ("unknown", "bad"), "interrupted": ("interrupted", "bad"),
}
EFFECT_SIGNS = {
    "recorded": ("done", "good"), "reused": ("done", "good"), "failed": ("failed", "bad"), "unknown": ("unknown", "bad"), "attempted": ("running", "live"),
    "blocked": ("halted", ""), "abandoned": ("cancelled", ""), "queued": ("queued", ""), "sending": ("running", "live"), "sent": ("done", "good"), "dead": ("failed", "bad"),
}

class Finding(msgspec.Struct, frozen=True):
    """What is the matter, and what to do."""

    sign: str
    tone: str
    what: str
    do: str


def finding(run: RunView, effects: Sequence[EffectView] = (), *, gone: bool = False, behind: Blocked | None = None) -> Finding:
    """Returns one sentence about a run, and what to do next. ``gone``: what its completed steps did was undone, so a resume is refused.
    ``behind``: the run in its lane because of which a resume is refused for now."""
    sign, tone = SIGNS.get(run.condition, ("unknown", "bad"))
    asks = [w for w in run.waits if w.available_actions]
    unknown = next((e for e in effects if e.status == "unknown"), None)
    if unknown is not None and any(w.kind == "effect" for w in asks):
        return Finding("unknown", "bad", f"Nobody knows whether {unknown.capability} happened.", "Check with its receiver whether it happened, then record what you found.")
    if asks:
        what = asks[0].prompt or asks[0].name or asks[0].task
        more = f" It is one of {len(asks)} open questions." if len(asks) > 1 else ""
        return Finding("person", "person", f"It waits for a person: {what}", f"Answer below; nothing else happens before that.{more}")
    again = "" if behind is None else f"The run {behind.run_id} is before it in its lane ({behind.why}). A resume is refused until that run has ended or has released the lane; a fork is possible now."
    if gone:
        again = "What its completed steps did was undone, so a resume is refused. Fork it: the fork carries that out again."
    match run.condition:
        case "failed":
            why = run.error.message if run.error is not None else run.stop_reason or ""
            return Finding(sign, tone, f"It failed: {why}", again or "See why, then resume it with an acknowledgement, or fork it.")
        case "interrupted":
            return Finding(sign, tone, "Its process is gone, or a person has to resume it.", "If its process is gone, a running worker that has the skill takes it over; otherwise resume it.")
        case "awaiting_signal":
            what = ", ".join(f"{w.kind} {w.name}".strip() for w in run.waits)
            return Finding(sign, tone, f"It waits for {what}.", "It resumes automatically when this arrives.")
        case "queued":
            turn = f"It waits for its turn after {run.blocked_by}." if run.blocked_by else "It is due, and no worker has taken it yet."
            return Finding(sign, tone, turn, "A worker that has the skill takes it.")
        case "running" | "replaying":
            return Finding(sign, tone, f"It is running, executed by {run.lease.owner}." if run.lease.owner else "It is running, but no process executes it now.", "You need not do anything.")
        case "done":
            return Finding(sign, tone, "It is done.", "Fork or replay it to try something else.")
        case "halted" | "cancelled":
            return Finding(sign, tone, f"It was stopped: {run.stop_reason or run.condition}.", again or "Resume it if that was a mistake." if not run.settled else "It stays as it is; a fork starts a new run from it.")
    return Finding(sign, tone, f"It is {run.status}.", "holdfast check names what is wrong.")


def label(verb: str) -> str:
    """Returns the label of a verb's button."""
    return verb.replace("_", " ").capitalize()


def command(store: str, *words: str) -> str:
    """Returns the shell command that does the same."""
    named = [] if store in ("", "sqlite:///.holdfast/runs.db") else ["--store", store]
    return shlex.join(["holdfast", *words, *named])


def answer_command(store: str, wait: WaitView, action: str, *, alone: bool, edited: bool = False) -> str:
    return command(store, *answering(wait.run_id, None if alone else wait.wait_id, action, edited=edited))


def form_of(schema: Any) -> dict[str, Any]:
    """Returns what a form asks for, by a wait's schema: an object with its fields, or one plain value. Empty if the answer can only be entered as JSON. A field
    that may be null can be left empty; ``nulls`` names those of these fields that the answer must contain."""
    if not isinstance(schema, Mapping):
        return {}
    kinds = schema.get("$defs")
    kinds = kinds if isinstance(kinds, Mapping) else {}
    top = _follow(schema, kinds)
    fields = top.get("properties")
    if top.get("type") in ("object", ["object", "null"]) and isinstance(fields, Mapping):
        found = {n: _without_null(_follow(s, kinds), kinds) for n, s in fields.items() if isinstance(s, Mapping)}
        must = top.get("required")
        needed = [n for n in must if n in found] if isinstance(must, Sequence) else []
        nulls = [n for n in needed if found[n][1]]
        made = {n: field for n, (field, _) in found.items()}
        return {"type": "object", "properties": made, "required": [n for n in needed if n not in nulls], "nulls": nulls} if made else {}
    return top if top.get("type") in PLAIN else {}


PLAIN = ("string", "integer", "number", "boolean")


def _follow(schema: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces a reference by the schema it refers to, and keeps what is beside the reference."""
    found = dict(schema)
    for _ in range(len(kinds)):
        there = kinds.get(str(found.pop("$ref", "")).removeprefix("#/$defs/"))
        if not isinstance(there, Mapping):
            break
        found = {**there, **found}
    return found


def _without_null(field: dict[str, Any], kinds: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Returns the schema of a field without null, and whether the field may be null."""
    offered = field.get("anyOf")
    ways = [_follow(way, kinds) for way in offered if isinstance(way, Mapping)] if isinstance(offered, Sequence) else []
    others = [way for way in ways if way.get("type") != "null"]
    if len(others) == 1:
        field = {**others[0], **{n: v for n, v in field.items() if n != "anyOf"}}
    elif ways:
        field = {**field, "anyOf": others}
    return field, len(others) < len(ways)


# -- words as on the command line -------------------------------------------------------------------


def clean(text: object) -> str:
    """Makes text of a run safe to show: control characters, and those that reverse the direction of a line, become visible escapes."""
    return escape(str(text), lambda c: c not in "\n\t" and unicodedata.category(c)[0] == "C")


def show(value: Any) -> str:
    """Returns a value as people read it: text as it is, everything else as JSON."""
    return clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, default=str))


def line(value: Any, most: int = 160) -> str:
    """Returns the same on one line, of at most ``most`` characters."""
    text = " ".join((value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)).split())
    return clean(text if len(text) <= most else text[: most - 1] + "…")


def fits(value: Any, most: int) -> bool:
    """Whether a value fits on one line of ``most`` characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return len(text) <= most and "\n" not in text


def scrolls(text: str) -> bool:
    """Whether a text may be taller than its box on a narrow screen; then the box must be reachable by keyboard."""
    return len(text) > 250 or text.count("\n") > 8


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON; 1, 1.0 and true are three different values."""
    return json.dumps(one, sort_keys=True, default=str) == json.dumps(other, sort_keys=True, default=str)


def span(seconds: float | None) -> str:
    """Returns a duration in the words of the command line."""
    return "–" if seconds is None else wording.span(seconds)


def moment(text: str | None) -> dt.datetime | None:
    try:
        return None if text is None else dt.datetime.fromisoformat(text)
    except ValueError:
        return None


def between(start: str | None, end: str | None) -> str:
    a, b = moment(start), moment(end)
    return "–" if a is None or b is None else span((b - a).total_seconds())


def ago(text: str | None, now: dt.datetime) -> str:
    at = moment(text)
    if at is None:
        return "–"
    seconds = (now - at).total_seconds()
    if abs(seconds) < 1:
        return "now"
    said = f"{int(abs(seconds))} s" if abs(seconds) < 60 else span(abs(seconds))
    return f"{said} ago" if seconds > 0 else f"in {said}"


def clock(text: str | None, zone: dt.tzinfo = dt.UTC) -> str:
    """Returns a time as clocks in a zone show it, with the zone's name; in UTC as on the command line."""
    at = moment(text)
    if at is None:
        return clean(text or "–")
    return at.strftime("%Y-%m-%d %H:%M:%SZ") if zone is dt.UTC else at.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S %Z")


def hour(text: str | None, zone: dt.tzinfo, began: str | None, ended: str | None) -> str:
    """Returns the time of day to the millisecond, with the day if the list goes from one day to another."""
    at, first, last = moment(text), moment(began), moment(ended)
    if at is None:
        return clean(text or "–")
    days = first is not None and last is not None and first.astimezone(zone).date() != last.astimezone(zone).date()
    return at.astimezone(zone).strftime("%m-%d %H:%M:%S.%f" if days else "%H:%M:%S.%f")[:-3]


def axis(began: str, ended: str, zone: dt.tzinfo) -> tuple[str, str]:
    """Returns the two ends of a timeline as times of day, with the days if they differ."""
    first, last = (dt.datetime.fromisoformat(text).astimezone(zone) for text in (began, ended))
    shape = "%H:%M:%S" if first.date() == last.date() else "%m-%d %H:%M"
    return first.strftime(shape), last.strftime(shape)


ZONES = (
    "UTC", "Europe/London", "Europe/Berlin", "Europe/Athens", "Africa/Lagos", "Asia/Dubai", "Asia/Kolkata", "Asia/Shanghai", "Asia/Tokyo", "Australia/Sydney",
    "America/Sao_Paulo", "America/New_York", "America/Chicago", "America/Denver", "America/Los_Angeles",
)
"""The time zones that the pages offer. Any other that is known here can be set too."""


def zone(name: str | None) -> dt.tzinfo:
    """Returns the time zone in which a viewer is shown times; UTC if they have chosen none that is known here (§17.9)."""
    return CALENDAR.zone(name) if is_known_zone(name) and name != "UTC" and name is not None else dt.UTC


def is_known_zone(name: str | None) -> bool:
    if not name or len(name) > 64 or not name.isascii():
        return False
    try:
        CALENDAR.zone(name)
    except InvalidInput:
        return False
    return True


def count(number: int, one: str, many: str) -> str:
    """Returns a number and its noun, such as ``Six things``; small numbers are in words, as in a finding."""
    words = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven", "Twelve")
    return f"{words[number] if number < len(words) else f'{number:,}'} {one if number == 1 else many}"

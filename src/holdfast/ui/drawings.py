"""The drawings of a run's page, its graph and its timeline, as numbers for SVG (§17.4). Pure.

The graph grows downwards and is at most 344 pixels wide. The timeline has one scale for everything that ran; long waits are folded.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.describe import AttemptView, EventView, IntentView, SkillView, StepView

WIDE, HIGH, GAP, ROW = 344, 46, 13, 78
FOLD = 8.0
MOST = 120
ROWS = 60
LETTER = 7.2
SMALL = 6.0


class Box(msgspec.Struct, frozen=True):
    """A node of a drawn graph. ``short``: its name, cut to fit; ``note``: ``told``, the text about the node, cut to fit."""

    name: str
    short: str
    state: str
    note: str
    told: str
    x: float
    y: float
    width: float


class Picture(msgspec.Struct, frozen=True):
    """A drawn graph: its boxes, the edges between them, each with whether it was taken, and its height."""

    boxes: list[Box]
    edges: list[tuple[str, bool]]
    height: float
    reached: int


class Node(msgspec.Struct, frozen=True):
    """A node, and the nodes before it."""

    name: str
    after: Sequence[str]


def list_declared(skill: SkillView) -> list[Node]:
    """Returns the nodes of a program, as far as it is known here."""
    return [Node(n.name, n.after) for n in skill.nodes]


def list_taken(steps: Sequence[StepView]) -> list[Node]:
    """Returns the nodes that a run has executed, if its code is not here: each comes after the nodes of the super-steps just before its own."""
    levels: dict[int, list[str]] = {}
    for s in steps:
        if not s.path and s.name not in levels.setdefault(_number(s), []):
            levels[_number(s)].append(s.name)
    found: dict[str, list[str]] = {}
    before: list[str] = []
    for number in sorted(levels):
        for name in levels[number]:
            known = found.setdefault(name, [])
            known += [b for b in before if b not in known]
        before = levels[number]
    return [Node(name, after) for name, after in found.items()]


def _number(step: StepView) -> int:
    word = step.step_id.split(".")[1]
    return int(word) if word.isdigit() else 0


def graph(nodes: Sequence[Node], states: Mapping[str, tuple[str, str]]) -> Picture | None:
    """Draws the nodes in layers. ``states``: by node, its state and the note under its name. None if there are no nodes, or too many to draw."""
    if not nodes or len(nodes) > MOST:
        return None
    depth: dict[str, int] = {}
    for node in nodes:
        depth[node.name] = max((depth.get(a, -1) + 1 for a in node.after if a in depth), default=0)
    layers: dict[int, list[str]] = {}
    for node in nodes:
        layers.setdefault(depth[node.name], []).append(node.name)
    boxes: dict[str, Box] = {}
    y = 2.0
    for level in sorted(layers):
        for start in range(0, len(layers[level]), 4):
            row = layers[level][start : start + 4]
            width = min(150.0, (WIDE - GAP * (len(row) - 1)) / len(row))
            left = (WIDE - width * len(row) - GAP * (len(row) - 1)) / 2
            for i, name in enumerate(row):
                state, note = states.get(name, ("ahead", "not yet"))
                boxes[name] = Box(name, _cut(name, width), state, _cut(note, width, SMALL), note, left + i * (width + GAP), y, width)
            y += ROW
    edges = []
    for node in nodes:
        for a in node.after:
            if a in boxes:
                taken = boxes[node.name].state != "ahead" and boxes[a].state != "ahead"
                edges.append((_edge(boxes[a], boxes[node.name]), taken))
    return Picture(list(boxes.values()), edges, y - ROW + HIGH + 4, sum(b.state != "ahead" for b in boxes.values()))


def _cut(text: str, width: float, letter: float = LETTER) -> str:
    room = max(3, int((width - 40) / letter))
    return text if len(text) <= room else text[: room - 1] + "…"


def _edge(a: Box, b: Box) -> str:
    x1, y1, x2, y2 = a.x + a.width / 2, a.y + HIGH, b.x + b.width / 2, b.y
    if y2 <= a.y:  # an edge upwards goes around the right side
        return f"M{a.x + a.width:.0f} {a.y + HIGH / 2:.0f}C{WIDE + 8} {a.y:.0f} {WIDE + 8} {y2 + HIGH:.0f} {b.x + b.width:.0f} {y2 + HIGH / 2:.0f}"
    middle = (y1 + y2) / 2
    return f"M{x1:.0f} {y1:.0f}C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2:.0f}"


# -- throughput ---------------------------------------------------------------------------------------


def throughput(slices: Sequence[tuple[int, int]], high: float = 48.0) -> list[tuple[float, float, float]]:
    """Draws the bars of the last hour: for each slice its left edge in per cent, and the heights for the runs done and the runs failed."""
    most = max((done + failed for done, failed in slices), default=0) or 1
    return [(100 * n / len(slices), high * done / most, high * failed / most) for n, (done, failed) in enumerate(slices)]


# -- the timeline -----------------------------------------------------------------------------------


class Bar(msgspec.Struct, frozen=True):
    """A part of a row, in per cent of the row's width. ``kind``: done, fail, open, gap, own or wait."""

    x: float
    width: float
    kind: str


class Line(msgspec.Struct, frozen=True):
    """A row: a node's step, an outgoing message, or who owned the run."""

    id: str
    name: str
    state: str
    bars: list[Bar]
    seconds: float | None
    why: str


class Timeline(msgspec.Struct, frozen=True):
    """All rows on one scale, from ``began`` to ``ended``. ``folds`` are the places of waits that are too long to be drawn to scale."""

    lines: list[Line]
    folds: list[tuple[float, float]]
    began: str
    ended: str
    total: float
    left_out: int
    steps: int


def timeline(
    steps: Sequence[StepView], attempts: Sequence[AttemptView], events: Sequence[EventView], now: dt.datetime, ended: str | None, intents: Sequence[IntentView] = ()
) -> Timeline | None:
    """Draws a row for each node's step, in the order in which they began; of very many, only the last. A message that a step has decided on has its row
    after that step, with each attempt to send it (§9.3)."""
    sent = [at for i in intents for d in i.attempts if (at := _at(d.ended_at or d.began_at)) is not None]
    end = now if ended is None else max([_at(ended) or now, *sent])
    top = [s for s in steps if not s.path and _at(s.started_at) is not None]
    if not top:
        return None
    start = min(t for s in top if (t := _at(s.started_at)) is not None)
    waits = _waits(events, end)
    scale = _Scale(start, max(end, start + dt.timedelta(milliseconds=1)), waits)
    tries: dict[str, list[AttemptView]] = {}
    for a in attempts:
        tries.setdefault(a.step_id, []).append(a)
    lines = [_draw_owner(events, scale, start, end, ended is not None)]
    for step in top[-ROWS:]:
        bars = []
        mine = tries.get(step.step_id, [])
        asks = step.outcome is None and any(step.step_id.endswith(f".{task}") and stopped == end for task, _, stopped in waits)
        for a in mine:
            began = _at(a.started_at) or _at(step.started_at) or start
            stopped = _at(a.ended_at) or end
            kind = "fail" if a.outcome in ("failed", "error", "lost", "rejected") else "open" if a.outcome is None else "done"
            if kind != "open" or not asks:
                bars.append(_bar(scale, began, stopped, kind))
        for task, began, stopped in waits:
            if step.step_id.endswith(f".{task}") and began >= (_at(step.started_at) or start):
                bars.append(_bar(scale, began, stopped, "wait"))
        began, stopped = _at(step.started_at) or start, _at(step.ended_at) or end
        lines.append(Line(step.step_id, step.call, "person" if asks else _state(step), bars, (stopped - began).total_seconds(), _why(step, mine)))
        lines += [_sending(i, scale, end) for i in intents if i.intent_id.rpartition("!")[0] == step.step_id]
    return Timeline(
        lines, [(scale(a), scale(b) - scale(a)) for a, b in scale.folded], start.isoformat(), end.isoformat(),
        (end - start).total_seconds(), max(0, len(top) - ROWS), len(top[-ROWS:]),
    )


_INTENT_STATES = {"sent": "done", "dead": "fail", "abandoned": "fail", "unknown": "person"}


def _sending(intent: IntentView, scale: _Scale, end: dt.datetime) -> Line:
    """Draws the row of an intent, with a bar for each attempt."""
    bars = []
    for d in intent.attempts:
        began = _at(d.began_at) or end
        kind = "open" if d.outcome is None else "done" if d.outcome == "sent" else "fail"
        bars.append(_bar(scale, began, _at(d.ended_at) or end, kind))
    made = _at(intent.created_at) or end
    error = next((d.error for d in reversed(intent.attempts) if d.error is not None), None)
    told = [intent.state if intent.state != "sent" else "", f"{len(intent.attempts)} attempts" if len(intent.attempts) > 1 else ""]
    told += ["no transport for it" if intent.no_transport_for else "", error.message if error is not None else intent.detail]
    to = f"send {intent.type} to {intent.target}" if intent.target else f"send {intent.type}"
    why = "; ".join(x for x in told if x)
    return Line(intent.intent_id, to, _INTENT_STATES.get(intent.state, "open"), bars, ((_at(intent.settled_at) or end) - made).total_seconds(), why)


LEAVES = frozenset({"run.waiting_for_human", "run.waiting_for_signal", "run.completed", "run.failed", "run.canceled", "run.handed_back"})


def _draw_owner(events: Sequence[EventView], scale: _Scale, start: dt.datetime, end: dt.datetime, over: bool) -> Line:
    """Draws the row of owners: the times in which a process had the run, and the gaps after a process was lost until the next one came."""
    bars: list[Bar] = []
    since: dt.datetime | None = None
    lost: dt.datetime | None = None
    names: list[str] = []
    last = start  # the time of the last event, which is the last sign of life of the owner
    for event in events:
        at = max(_at(event.occurred_at) or start, start)
        if event.event_type in ("run.claimed", "attempt.taken_over"):
            if lost is not None:
                bars.append(_bar(scale, lost, at, "gap"))
            lost, since = None, since or at
            names.append(str(event.payload.get("owner") or ""))
        elif event.event_type in LEAVES and since is not None:
            bars.append(_bar(scale, since, at, "own"))
            since = None
        elif event.event_type == "attempt.lease_expired":
            if since is not None:
                bars.append(_bar(scale, since, last, "own"))
            lost, since = last, None
        last = at
    if lost is not None and not over:
        bars.append(_bar(scale, lost, end, "gap"))
    elif since is not None:
        bars.append(_bar(scale, since, end, "own"))
    known = list(dict.fromkeys(n for n in names if n))
    return Line("owner", "owner", "owner", bars, None, "" if len(known) < 2 else f"{len(known)} processes, one after the other")


def _state(step: StepView) -> str:
    if step.outcome is None:
        return "open"
    return "done" if step.outcome in ("ok", "degraded") or step.outcome.startswith("skipped") else "fail"


def _why(step: StepView, tries: Sequence[AttemptView]) -> str:
    lost = next((a for a in tries if a.outcome == "lost"), None)
    said = f"{lost.owner} was lost; taken over" if lost is not None else ""
    if step.attempts > 1 and not said:
        said = f"{step.attempts} attempts"
    failure = next((a.error for a in reversed(tries) if a.error is not None), step.error)
    return "; ".join(x for x in (said, f"{failure.type}: {failure.message}" if failure is not None else "") if x)


def _bar(scale: _Scale, began: dt.datetime, stopped: dt.datetime, kind: str) -> Bar:
    x = scale(began)
    return Bar(round(x, 2), round(max(0.5, scale(stopped) - x), 2), kind)


def _waits(events: Sequence[EventView], end: dt.datetime) -> list[tuple[str, dt.datetime, dt.datetime]]:
    """Returns the waits, for a person or for something else: the task, from when, until when."""
    open_: dict[str, tuple[str, dt.datetime]] = {}
    out = []
    for event in events:
        at = _at(event.occurred_at) or end
        if event.event_type == "wait.requested":
            wait: dict[str, Any] = event.payload["wait"]
            open_[wait["wait_id"]] = (wait["task"], at)
        elif event.event_type in ("wait.decided", "wait.timed_out", "wait.closed"):
            wait_id = event.payload.get("wait_id") or event.payload.get("decision", {}).get("wait_id", "")
            if wait_id in open_:
                out.append((*open_.pop(wait_id), at))
    return [*out, *((task, at, end) for task, at in open_.values())]


class _Scale:
    """Converts times to per cent. A wait that takes more than a quarter of all time is drawn ``FOLD`` per cent wide, however long it took."""

    def __init__(self, start: dt.datetime, end: dt.datetime, waits: Sequence[tuple[str, dt.datetime, dt.datetime]]) -> None:
        self._start, self._end = start, end
        total = (end - start).total_seconds()
        self.folded: list[tuple[dt.datetime, dt.datetime]] = []
        for _, began, stopped in sorted(waits, key=lambda w: w[1]):
            began = max(began, self.folded[-1][1] if self.folded else start)
            if (stopped - began).total_seconds() > total / 4:
                self.folded.append((began, min(stopped, end)))
        self._shut = sum((b - a).total_seconds() for a, b in self.folded)
        self._drawn = max(total - self._shut, 1e-6)
        self._room = 100.0 - FOLD * len(self.folded)

    def __call__(self, at: dt.datetime) -> float:
        x, drawn = 0.0, (min(at, self._end) - self._start).total_seconds()
        for a, b in self.folded:
            if at <= a:
                break
            inside = (min(at, b) - a).total_seconds()
            drawn -= inside
            x += FOLD * inside / max((b - a).total_seconds(), 1e-6)
        return max(0.0, min(100.0, x + self._room * drawn / self._drawn))


def _at(text: str | None) -> dt.datetime | None:
    try:
        return None if text is None else dt.datetime.fromisoformat(text)
    except ValueError:
        return None

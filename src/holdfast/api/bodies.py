"""Bodies and answers of the API, one struct each. Requests are decoded and answers encoded with them, and the OpenAPI document is made from them (§16.10)."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from holdfast.core import bounds, describe
from holdfast.core.errors import InvalidInput

MOST_BYTES = 2 * 2**20
MOST_KEYS = 10_000
DEEPEST = 64
JSON = Any
Limit = Annotated[int, msgspec.Meta(ge=1, le=bounds.PAGE)]
Number = Annotated[int, msgspec.Meta(ge=0, le=bounds.BIGGEST)]
"""The number of an event or of a row."""
B = TypeVar("B", bound="Body")


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all bodies and queries: a field that is not declared is refused by name."""


# -- bodies -----------------------------------------------------------------------------------------


class Submit(Body, frozen=True, kw_only=True):
    """A run to create. ``options``: queue, priority, tags, job_id, trace_id, session_key, budgets, unattended …"""

    skill_id: str
    input: dict[str, JSON] = {}
    thread_id: str | None = None
    lane: str | None = None
    options: dict[str, JSON] = {}


class Approve(Body, frozen=True, kw_only=True):
    """Approves what a run waits for; ``payload`` holds edited arguments."""

    wait_id: str | None = None
    actor: str | None = None
    payload: JSON = msgspec.UNSET
    note: str | None = None
    reason: str | None = None


class Deny(Body, frozen=True, kw_only=True):
    """Denies what a run waits for; ``reason`` says why."""

    wait_id: str | None = None
    actor: str | None = None
    reason: str | None = None
    note: str | None = None


class Decide(Body, frozen=True, kw_only=True):
    """Takes one of the actions that a wait offers; ``payload`` is the answer, the edited arguments, or the result of
    the effect; ``record_result`` without it records null."""

    action: str
    wait_id: str | None = None
    actor: str | None = None
    payload: JSON = msgspec.UNSET
    note: str | None = None
    reason: str | None = None
    feedback: str | None = None
    resume: bool = True
    force: bool = False


class Answer(Body, frozen=True, kw_only=True):
    """Answers the wait that a link is for."""

    action: str
    payload: JSON = msgspec.UNSET
    note: str | None = None
    feedback: str | None = None


class Resume(Body, frozen=True, kw_only=True):
    """Goes on with a run. A failed one needs ``acknowledge``: its stop reason, or its head."""

    acknowledge: str | None = None
    force: bool = False
    upgrade: bool = False
    actor: str | None = None


class Cancel(Body, frozen=True, kw_only=True):
    """Asks a run to stop."""

    actor: str | None = None
    reason: str = ""


class Signal(Body, frozen=True, kw_only=True):
    """Sends a signal to a run; the same ``key`` is delivered once."""

    name: str
    payload: JSON = None
    key: str | None = None
    actor: str | None = None


class Replay(Body, frozen=True, kw_only=True):
    """A new run that is answered from this one's records."""

    from_checkpoint: str | None = None
    from_step: int | str | None = None
    effects: str | None = None
    reason: str = ""
    actor: str | None = None
    upgrade: bool = False


class Fork(Body, frozen=True, kw_only=True):
    """A new run that goes its own way from a checkpoint of this one. ``options``: tags, priority, queue, lane, effects, upgrade …"""

    from_checkpoint: str | None = None
    from_step: int | str | None = None
    set: dict[str, JSON] | None = None
    inputs: dict[str, JSON] | None = None
    reason: str = ""
    actor: str | None = None
    options: dict[str, JSON] = {}


class Repair(Body, frozen=True, kw_only=True):
    """Heals the safe shapes; without ``apply`` it says what it would do."""

    apply: bool = False
    actor: str | None = None


class Redrive(Body, frozen=True, kw_only=True):
    """Sends an outgoing message (intent) again. ``force``: also while its last sender may still be alive; it may then happen twice."""

    force: bool = False
    reason: str = ""
    actor: str | None = None


class Settle(Body, frozen=True, kw_only=True):
    """Says how an intent stands that nobody knows about: ``as`` is ``sent`` or ``abandoned``. ``result`` is the outcome of a tool call that happened."""

    outcome: Literal["sent", "abandoned"] = msgspec.field(name="as")
    result: JSON = msgspec.UNSET
    reason: str = ""
    actor: str | None = None


class Empty(Body, frozen=True, kw_only=True):
    """Nothing is said."""

    actor: str | None = None


# -- queries ----------------------------------------------------------------------------------------


class NoQuery(Body, frozen=True, kw_only=True):
    """No parameters."""


class RunsQuery(Body, frozen=True, kw_only=True):
    status: str | None = None
    condition: str | None = None
    skill_id: str | None = None
    thread_id: str | None = None
    tag: str | None = None
    text: str | None = None
    since: str | None = None
    until: str | None = None
    limit: Limit = 50
    cursor: str | None = None
    fields: str | None = None


class RunQuery(Body, frozen=True, kw_only=True):
    view: str | None = None
    fields: str | None = None
    wait: float = 0.0


class EventsQuery(Body, frozen=True, kw_only=True):
    after: Number = 0
    limit: Limit = 100
    cursor: Number | None = None


class StreamQuery(Body, frozen=True, kw_only=True):
    after: str | None = None
    modes: str | None = None
    protocol: Literal["agui", "vercel"] | None = None


class AtQuery(Body, frozen=True, kw_only=True):
    at: str | None = None


class DiffQuery(Body, frozen=True, kw_only=True):
    a: str
    b: str


class PageQuery(Body, frozen=True, kw_only=True):
    limit: Limit = 100
    cursor: str | None = None


class LedgerQuery(Body, frozen=True, kw_only=True):
    topic: str | None = None
    key: str | None = None
    limit: Limit = 100
    cursor: str | None = None


class HistoryQuery(Body, frozen=True, kw_only=True):
    limit: Limit = 100
    after: str | None = None
    cursor: str | None = None


class StateQuery(Body, frozen=True, kw_only=True):
    state: str | None = None
    limit: Limit = 100
    cursor: str | None = None


class LanesQuery(PageQuery, frozen=True, kw_only=True):
    session_key: str | None = None


class FollowQuery(Body, frozen=True, kw_only=True):
    status: str | None = None
    condition: str | None = None
    skill_id: str | None = None
    thread_id: str | None = None
    tag: str | None = None


# -- answers ----------------------------------------------------------------------------------------


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong (RFC 9457), with the codes of the command line."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str | None = None
    run_id: str | None = None
    field: str | None = None


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    runs: list[describe.RunView]
    next_cursor: str | None = None


class Events(msgspec.Struct, frozen=True, kw_only=True):
    events: list[describe.EventView]
    next_cursor: int | None = None


class Checkpoints(msgspec.Struct, frozen=True, kw_only=True):
    """Checkpoints without their values: these are fetched one by one."""

    checkpoints: list[dict[str, JSON]]
    next_cursor: str | None = None


class State(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    checkpoint_id: str
    step: int
    values: dict[str, JSON]


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    waits: list[describe.WaitView]
    next_cursor: str | None = None


class Effects(msgspec.Struct, frozen=True, kw_only=True):
    effects: list[describe.EffectView]
    next_cursor: str | None = None


class Intents(msgspec.Struct, frozen=True, kw_only=True):
    intents: list[describe.IntentView]
    next_cursor: str | None = None


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    steps: list[describe.StepView]
    next_cursor: str | None = None


class Attempts(msgspec.Struct, frozen=True, kw_only=True):
    attempts: list[describe.AttemptView]
    next_cursor: str | None = None


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    ledger: list[describe.LedgerView]
    next_cursor: str | None = None


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    ok: bool
    run_id: str
    problems: list[describe.ProblemView]


class Repaired(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    dry_run: bool
    applied: bool
    refused: str
    reason: str
    problems: list[describe.ProblemView]


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    workers: list[describe.WorkerView]
    next_cursor: str | None = None


class Lanes(msgspec.Struct, frozen=True, kw_only=True):
    lanes: list[describe.LaneView]
    next_cursor: str | None = None


class Queues(msgspec.Struct, frozen=True, kw_only=True):
    queues: list[describe.QueueView]
    next_cursor: str | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    limits: list[describe.LimitView]
    next_cursor: str | None = None


class Schedules(msgspec.Struct, frozen=True, kw_only=True):
    schedules: list[describe.ScheduleView]
    next_cursor: str | None = None


class Skills(msgspec.Struct, frozen=True, kw_only=True):
    skills: list[describe.SkillView]
    next_cursor: str | None = None


class History(msgspec.Struct, frozen=True, kw_only=True):
    history: list[dict[str, JSON]]
    next_cursor: str | None = None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    status: str


# -- decoding ---------------------------------------------------------------------------------------


def decode(data: bytes, kind: type[B]) -> B:
    """Decodes a body as its type.

    Raises:
        InvalidInput: it is not JSON, a key occurs twice, an object has too many keys, a number is out of range, a surrogate is unpaired, the nesting is too
            deep, or a field is unknown or wrong.
    """
    try:
        text = data.decode("utf-8")
        given = json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_number, parse_int=_whole) if text.strip() else {}
    except RecursionError:
        raise InvalidInput("the body is nested too deeply", hint=f"at most {DEEPEST} levels") from None
    except UnicodeDecodeError as e:
        raise InvalidInput(f"the body is not UTF-8: byte {e.start}") from None
    except json.JSONDecodeError as e:
        raise InvalidInput(f"the body is not JSON: {e}") from None
    _refuse_unsafe(given)
    return convert(given, kind, strict=True)


def convert(given: Any, kind: type[B], *, strict: bool) -> B:
    """Converts a mapping to its type; an error names the field."""
    try:
        found = msgspec.convert(given, kind, strict=strict)
    except msgspec.ValidationError as e:
        message, _, path = str(e).partition(" - at `$")
        raise InvalidInput(f"{path.strip('`.')}: {message}" if path else message, field=path.strip("`.") or _name_field(message)) from None
    if not strict:
        for name in given:  # where a number may be left out, msgspec reads the word null as None
            if getattr(found, name) is None:
                raise InvalidInput(f"{name}: {given[name]!r} is not a number", field=name, hint="leave the parameter out")
    return found


def _name_field(message: str) -> str:
    return message.partition(" field `")[2].partition("`")[0]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MOST_KEYS:
        raise InvalidInput(f"an object has {len(pairs)} keys", hint=f"at most {MOST_KEYS}")
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise InvalidInput(f"the key {twice!r} occurs twice", field=twice)
    return found


def _constant(name: str) -> Any:
    raise InvalidInput(f"{name} is not a JSON number")


def _number(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise InvalidInput(f"the number {text[:40]} is too large")
    return found


def _whole(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= (found := int(text)) < 2**63:
        raise InvalidInput(f"the number {text[:40]} is too large", hint="whole numbers of 64 bits")
    return found


def _refuse_unsafe(given: Any) -> None:
    """Refuses unpaired surrogates and values that are nested too deeply. Works without recursion."""
    stack = [(given, 0)]
    while stack:
        value, depth = stack.pop()
        if depth > DEEPEST:
            raise InvalidInput("the body is nested too deeply", hint=f"at most {DEEPEST} levels")
        if isinstance(value, str):
            if not value.isascii() and any(0xD800 <= ord(c) <= 0xDFFF for c in value):
                raise InvalidInput("the body contains an unpaired surrogate, which cannot be stored")
        elif isinstance(value, dict):
            stack += [(x, depth + 1) for pair in value.items() for x in pair]
        elif isinstance(value, list):
            stack += [(x, depth + 1) for x in value]

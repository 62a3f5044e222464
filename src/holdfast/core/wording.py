"""Wording for people, the same in every interface: what an offered action does, and how long something took."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import msgspec

from holdfast.core import waits as ws
from holdfast.core.waits import WaitKind

UNITS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))
"""For each unit: its seconds and its symbol, and the seconds and symbol of the smaller unit that is shown with it."""


def span(seconds: float) -> str:
    """Returns a duration for people to read."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
    size, unit, small, less = next(row for row in UNITS if seconds >= row[0])
    rest = int(seconds % size // small)
    return f"{int(seconds // size)} {unit}" + (f" {rest} {less}" if rest else "")


class Offered(msgspec.Struct, frozen=True):
    """An action in a person's words: ``label`` is what the person saw or wants, ``does`` its effect. ``risky``: it ends or may repeat something."""

    label: str
    does: str
    risky: bool = False


_GENERAL: Mapping[str, Offered] = {
    ws.APPROVE: Offered("Approve", "The run resumes."),
    ws.DENY: Offered("Deny", "The run halts, unless its node handles a denial.", risky=True),
    ws.ANSWER: Offered("Answer", "Your answer goes to the node that asked."),
    ws.CONTINUE: Offered("Continue", "The run resumes with the result as it is."),
    ws.WAIVE: Offered("Continue with a waiver", "The run resumes. Your waiver is recorded, and every later gate can see it."),
    ws.RETRY: Offered("Do it again with feedback", "The step runs once more and sees your feedback."),
    ws.HALT: Offered("End the run", "It ends for good and cannot be resumed.", risky=True),
    ws.REJECT: Offered("Reject", "The step counts as failed.", risky=True),
    ws.RECORD_RESULT: Offered("It happened", "The JSON that you give becomes its result (null if you give none)."),
    ws.REEXECUTE: Offered("It did not happen: do it", "It is done when the run resumes. If the first attempt went through after all, it happens twice.", risky=True),
    ws.ABANDON: Offered("It did not happen, and should not", "Holdfast does not do it, and a call of it fails."),
}
_OWN: Mapping[tuple[str, str], Offered] = {
    (WaitKind.RETRY, ws.APPROVE): Offered("Do it again although it may have happened", "The side effect may happen twice.", risky=True),
    (WaitKind.RETRY, ws.DENY): Offered("Do not do it again", "The run halts, unless its node handles a denial.", risky=True),
    (WaitKind.GATE, ws.REEXECUTE): Offered("Do it again", "The side effect is carried out once more.", risky=True),
    (WaitKind.EFFECT, ws.HALT): Offered("End the run", "It ends for good, and the outcome stays unknown.", risky=True),
    (WaitKind.BUDGET, ws.APPROVE): Offered("Let it spend more", "The run resumes with an extended budget."),
    (WaitKind.TAKEOVER, ws.APPROVE): Offered("Approve", "The run resumes; what was done is not done again."),
}
_UNKNOWN = Offered("", "One of the actions that this wait offers.")
FORCED = Offered("Do it again although it may have happened", "The first attempt may still be running: the side effect may happen twice.", risky=True)
"""The wording for doing an effect again by force (§6.5)."""


def phrase(offer: Offered) -> str:
    """Returns an action and its effect, as two sentences."""
    return f"{offer.label}. {offer.does}"


def describe_action(kind: str, action: str) -> Offered:
    """Returns the wording of an action at a wait of this kind."""
    found = _OWN.get((kind, action)) or _GENERAL.get(action)
    return found or Offered(action.replace("_", " ").capitalize(), _UNKNOWN.does)


EDIT = "Approve with other values"
"""The label that is offered beside ``approve`` if an approval may be edited."""


def answering(run_id: str, wait_id: str | None, action: str, *, forced: bool = False, edited: bool = False) -> list[str]:
    """Returns the arguments of the ``holdfast`` command that chooses an action; without ``wait_id`` the run must have one open question."""
    which = [run_id] if wait_id is None else [run_id, "--wait", wait_id]
    match action:
        case ws.APPROVE:
            return ["approve", *which, *(["--payload", "JSON"] if edited else [])]
        case ws.DENY:
            return ["deny", *which, "--reason", "WHY"]
        case ws.ANSWER | ws.RECORD_RESULT:
            return ["decide", *which, "--action", action, "--payload", "JSON"]
        case _:
            return ["decide", *which, "--action", action, *(["--feedback", "TEXT"] if action in ws.NEEDS_FEEDBACK else []), *(["--force"] if forced else [])]


YOUR_FILE = "YOUR_FILE.py"
"""The placeholder in a command for the file with a run's code, if that file is not known."""


def target_of(target: str | None) -> str:
    """Returns where a run's code is, for use in a command: the TARGET with which the run was submitted, if it is known."""
    return shlex.quote(target) if target else YOUR_FILE


__all__ = ["EDIT", "FORCED", "YOUR_FILE", "Offered", "answering", "describe_action", "phrase", "target_of"]

"""The words and places that stored bytes and clients rely on never change their meaning (§1.8, §13.2).

``tests/golden/words.txt`` lists them: tags and wire names, each stored field's place and default, enumerations, error codes.
What is new is added by ``python tests/core/test_words.py``; a line that is there already must stay true.
"""

from __future__ import annotations

import enum
import pathlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import msgspec

from holdfast.core import (
    channels,
    checkpoint,
    codec,
    commands,
    commit,
    compensation,
    effects,
    errors,
    events,
    intents,
    lease,
    outcomes,
    retry,
    run,
    status,
    waits,
)

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "words.txt"
MODULES: tuple[ModuleType, ...] = (channels, checkpoint, commands, commit, compensation, effects, errors, events, intents, lease, outcomes, retry, run, status, waits)


def _default(value: Any) -> str:
    return "required" if value is msgspec.NODEFAULT else repr(value)


def _fields(kind: type[msgspec.Struct]) -> Iterator[str]:
    for place, field in enumerate(msgspec.structs.fields(kind)):
        yield f"{place} {field.name} = {_default(field.default)}"


def words() -> Iterator[str]:
    """One fact about the stored or shown vocabulary per line."""
    yield f"format {codec.FORMAT}"
    for kind in sorted(_subclasses(events.Fact), key=lambda k: k.wire):
        yield f"event {kind.wire} tag {kind.__struct_config__.tag} hot {kind.hot}"
    for module in MODULES:
        for name, value in sorted(vars(module).items()):
            yield from _said(module, name, value)


def _said(module: ModuleType, name: str, value: Any) -> Iterator[str]:
    if not isinstance(value, type):
        if name.isupper() and isinstance(value, str | int | float):
            yield f"constant {name} = {value!r}"
        return
    if value.__module__ != module.__name__:
        return
    if issubclass(value, enum.Enum):
        yield from (f"enum {name}.{member.name} = {member.value!r}" for member in value)
    elif issubclass(value, errors.HoldfastError):
        yield f"error {name} = {value.code} exit {value.exit_code}"
    elif issubclass(value, msgspec.Struct):
        config = value.__struct_config__
        yield f"struct {name} array {config.array_like} tag {config.tag} frozen {config.frozen}"
        yield from (f"struct {name} {line}" for line in _fields(value))


def _subclasses(kind: type[events.Fact]) -> list[type[events.Fact]]:
    found = [k for sub in kind.__subclasses__() for k in (sub, *_subclasses(sub))]
    return [k for k in dict.fromkeys(found) if k.wire]


def test_what_is_stored_keeps_its_place_and_meaning() -> None:
    """§1.8: an addition is fine, a change is a new major version."""
    said = set(words())
    changed = [line for line in GOLDEN.read_text("utf-8").splitlines() if line not in said]
    assert not changed, "stored bytes would be read otherwise; if nothing was released with it: python tests/core/test_words.py"


def test_which_actions_a_wait_offers() -> None:
    """§5.5."""
    handoff = ("continue", "continue_with_waiver", "retry_feedback", "halt")
    for kind in ("approval", "gate", "retry", "takeover", "budget"):
        assert waits.ACTIONS[waits.WaitKind(kind)] == ("approve", "deny")
    assert waits.ACTIONS[waits.WaitKind.INPUT] == ("answer", "deny")
    assert waits.ACTIONS[waits.WaitKind.HANDOFF] == handoff
    assert waits.ACTIONS[waits.WaitKind.REVIEW] == ("approve", "continue", "retry_feedback", "halt")
    assert set(waits.ACTIONS[waits.WaitKind.EFFECT]) >= {"record_result", "reexecute", "abandon"}
    assert {"continue_with_waiver", "retry_feedback"} == waits.NEEDS_FEEDBACK
    assert {"halt", "deny"} == waits.HALTING
    assert set(waits.ACTIONS) == waits.HUMAN
    assert waits.WaitKind("signal") not in waits.HUMAN


def test_each_condition_has_its_class() -> None:
    """§2.9."""
    classes = {
        "live": ("queued", "running", "replaying", "awaiting_signal"),
        "operator pause": ("awaiting_phase_handoff", "awaiting_gate_decision", "awaiting_human_review"),
        "settled terminal": ("done", "halted"),
        "terminal": ("cancelled",),
        "diagnostic": ("failed", "unknown"),
        "torn": ("interrupted",),
    }
    told = {word: name for name, conditions in classes.items() for word in conditions}
    assert {c.value: k.value for c, k in status.CLASSES.items()} == told


if __name__ == "__main__":
    GOLDEN.write_text("".join(f"{line}\n" for line in words()), "utf-8")
    sys.stdout.write(f"{GOLDEN} rewritten\n")

"""A run's stream in the words of front ends: AG-UI events, and the UI message stream of Vercel's AI SDK, version 1 (§19.6).

Both encoders are pure: they are given the parts of ``rt.stream`` (modes ``events``, ``custom``, ``messages`` and ``values``) and give the objects that go over the wire, with
what these protocols ask for between them: a text that was begun is ended, a step that was begun is ended, and nothing comes after the run's end. A
text, or a message, that a step emits is text; every other chunk, a wait, and what was superseded are data of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from holdfast.core import describe
from holdfast.core.masks import NOTHING, Mask
from holdfast.handle import StreamPart

MODES = ("events", "custom", "messages", "values")
ENDS = {"run.completed": "stop", "run.failed": "error", "run.canceled": "other"}
WAITS = ("wait.requested", "wait.decided", "wait.denied", "wait.timed_out", "wait.closed")
ROLES = ("developer", "system", "assistant", "user")
Wire = dict[str, Any]


class Encoder(Protocol):
    """What turns a stream's parts into a protocol's objects. ``after``: what ends the transport's stream once the run has ended."""

    after: bytes
    headers: Mapping[str, str]

    def encode(self, part: StreamPart, mask: Mask = NOTHING) -> Iterator[Wire]: ...


class _Texts:
    """The texts that are being told, by who tells them."""

    def __init__(self) -> None:
        self.open: dict[str, tuple[str, str]] = {}  # by attempt: the step, and the text's id
        self._count = 0

    def begin(self, part: StreamPart) -> tuple[str, bool]:
        """The id of the text that this attempt tells, and whether it begins now."""
        if part.attempt_id in self.open:
            return self.open[part.attempt_id][1], False
        self._count += 1
        name = f"{part.attempt_id}#{self._count}"
        self.open[part.attempt_id] = (part.step_id, name)
        return name, True

    def end(self, *, step_id: str | None = None, attempt_id: str | None = None) -> list[str]:
        """Ends the texts of a step, of an attempt, or all; gives their ids."""
        gone = [a for a, (step, _) in self.open.items() if step_id in (None, step) and attempt_id in (None, a)]
        return [self.open.pop(a)[1] for a in gone]


def _find_wait(payload: Mapping[str, Any]) -> str:
    """The id of the wait that an event is about: its own, or that of the wait or the decision in it."""
    return str(next((part["wait_id"] for part in (payload, payload.get("wait"), payload.get("decision")) if part and "wait_id" in part), ""))


def text_of(value: Any) -> tuple[str, str] | None:
    """Who says what, where a chunk is text."""
    if isinstance(value, str):
        return "assistant", value
    if isinstance(value, Mapping) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str):
        return (value["role"] if value["role"] in ROLES else "assistant"), value["content"]
    return None


def _show(value: Any, mask: Mask) -> Any:
    return mask.record({"value": describe.value(value)})["value"]


class AgUi:
    """AG-UI events."""

    after = b""
    headers: Mapping[str, str] = {}

    def __init__(self, run_id: str, thread_id: str) -> None:
        self._run = {"threadId": thread_id, "runId": run_id}
        self._texts = _Texts()
        self._steps: list[str] = []
        self._begun = self._over = False

    def encode(self, part: StreamPart, mask: Mask = NOTHING) -> Iterator[Wire]:
        if self._over:
            return
        if not self._begun:
            self._begun = True
            yield {"type": "RUN_STARTED", **self._run}
        if part.mode == "events":
            yield from self._event(part)
        elif part.superseded:
            yield from self._end(attempt_id=part.attempt_id)
            yield self._custom("superseded", {"stepId": part.step_id, "attempt": part.attempt, "attemptId": part.attempt_id})
        elif part.mode == "values":
            yield {"type": "STATE_SNAPSHOT", "snapshot": _show(part.data, mask)}
        elif part.mode == "missed":
            yield self._custom("missed", {"attemptId": part.attempt_id, "chunks": part.data})
        elif part.mode in ("custom", "messages"):
            said = text_of(part.data)
            if said is None:
                yield self._custom("chunk", {"stepId": part.step_id, "attempt": part.attempt, "value": _show(part.data, mask)})
            elif said[1]:
                name, new = self._texts.begin(part)
                if new:
                    yield {"type": "TEXT_MESSAGE_START", "messageId": name, "role": said[0]}
                yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": name, "delta": mask.text(said[1])}

    def _event(self, part: StreamPart) -> Iterator[Wire]:
        event = part.data
        match event.type:
            case "step.started":
                name = str(event.payload.get("task", part.step_id))
                if name not in self._steps:
                    self._steps.append(name)
                    yield {"type": "STEP_STARTED", "stepName": name}
            case "step.completed" | "step.degraded" | "step.skipped" | "step.failed":
                name = str(event.payload.get("task", part.step_id))
                if not event.payload.get("path"):
                    yield from self._end(step_id=part.step_id)
                    if name in self._steps:
                        self._steps.remove(name)
                        yield {"type": "STEP_FINISHED", "stepName": name}
            case kind if kind in ENDS:
                yield from self._end()
                for name in reversed(self._steps):
                    yield {"type": "STEP_FINISHED", "stepName": name}
                self._over = True
                if kind == "run.failed":
                    error = event.payload.get("error") or {}
                    yield {"type": "RUN_ERROR", "message": str(error.get("message", "the run failed")), "code": str(error.get("code") or event.payload.get("stop_reason", "failed"))}
                else:
                    yield {"type": "RUN_FINISHED", **self._run, "outcome": {"type": "success" if kind == "run.completed" else "cancelled"}}
            case kind if kind in WAITS:
                yield self._custom(kind, event.payload)

    def _end(self, *, step_id: str | None = None, attempt_id: str | None = None) -> Iterator[Wire]:
        for name in self._texts.end(step_id=step_id, attempt_id=attempt_id):
            yield {"type": "TEXT_MESSAGE_END", "messageId": name}

    @staticmethod
    def _custom(name: str, value: Any) -> Wire:
        return {"type": "CUSTOM", "name": f"holdfast.{name}", "value": value}


class Vercel:
    """The UI message stream of the AI SDK: one assistant message, whose steps are the run's."""

    after = b"data: [DONE]\n\n"
    headers: Mapping[str, str] = {"x-vercel-ai-ui-message-stream": "v1"}

    def __init__(self, run_id: str, thread_id: str) -> None:
        self._run_id = run_id
        self._thread_id = thread_id
        self._texts = _Texts()
        self._steps = 0
        self._begun = self._over = False

    def encode(self, part: StreamPart, mask: Mask = NOTHING) -> Iterator[Wire]:
        if self._over:
            return
        if not self._begun:
            self._begun = True
            yield {"type": "start", "messageId": self._run_id, "messageMetadata": {"runId": self._run_id, "threadId": self._thread_id}}
        if part.mode == "events":
            yield from self._event(part)
        elif part.superseded:
            yield from self._end(attempt_id=part.attempt_id)
            yield {"type": "data-superseded", "data": {"stepId": part.step_id, "attempt": part.attempt, "attemptId": part.attempt_id}}
        elif part.mode == "values":
            yield {"type": "data-values", "id": "values", "data": _show(part.data, mask)}
        elif part.mode == "missed":
            yield {"type": "data-missed", "data": {"attemptId": part.attempt_id, "chunks": part.data}, "transient": True}
        elif part.mode in ("custom", "messages"):
            said = text_of(part.data)
            if said is None:
                yield {"type": "data-chunk", "data": {"stepId": part.step_id, "attempt": part.attempt, "value": _show(part.data, mask)}, "transient": True}
            elif said[1]:
                name, new = self._texts.begin(part)
                if new:
                    yield {"type": "text-start", "id": name}
                yield {"type": "text-delta", "id": name, "delta": mask.text(said[1])}

    def _event(self, part: StreamPart) -> Iterator[Wire]:
        event = part.data
        match event.type:
            case "step.started":
                self._steps += 1
                yield {"type": "start-step"}
            case "step.completed" | "step.degraded" | "step.skipped" | "step.failed" if not event.payload.get("path"):
                yield from self._end(step_id=part.step_id)
                if self._steps:
                    self._steps -= 1
                    yield {"type": "finish-step"}
            case kind if kind in ENDS:
                yield from self._end()
                yield from ({"type": "finish-step"} for _ in range(self._steps))
                self._over = True
                if kind == "run.failed":
                    error = event.payload.get("error") or {}
                    yield {"type": "error", "errorText": str(error.get("message", "the run failed"))}
                yield {"type": "finish", "finishReason": ENDS[kind]} if kind != "run.canceled" else {"type": "abort", "reason": "canceled"}
            case kind if kind in WAITS:
                yield {"type": f"data-{kind.replace('.', '-').replace('_', '-')}", "id": _find_wait(event.payload), "data": event.payload}

    def _end(self, *, step_id: str | None = None, attempt_id: str | None = None) -> Iterator[Wire]:
        for name in self._texts.end(step_id=step_id, attempt_id=attempt_id):
            yield {"type": "text-end", "id": name}


PROTOCOLS: dict[str, type[AgUi] | type[Vercel]] = {"agui": AgUi, "vercel": Vercel}

__all__ = ["MODES", "PROTOCOLS", "AgUi", "Encoder", "Vercel", "text_of"]

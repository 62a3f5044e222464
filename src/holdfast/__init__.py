"""Holdfast: durable execution for Python. Graphs and flows continue where they stopped after a crash, a restart or a wait for a person."""

from __future__ import annotations

from holdfast.lazily import lazily

__version__ = "0.1.0"

HOMES = {
    "holdfast.authoring": ("Flow", "Graph", "State", "Tool", "flow"),
    "holdfast.core.canon": ("register",),
    "holdfast.core.channels": ("append", "last", "merge", "override", "secret", "thread", "topic", "window"),
    "holdfast.core.effects": ("Absent", "Happened", "Unknown"),
    "holdfast.core.errors": (
        "Conflict", "HoldfastError", "PermanentError", "Rejected", "RunFailed", "RunWaiting", "StepFailure", "StoreError", "UsageError",
    ),
    "holdfast.core.graph": ("END", "START", "Goto", "Send", "any_of"),
    "holdfast.core.limits": ("Limit",),
    "holdfast.core.retry": ("Retry",),
    "holdfast.engine.calls.context": ("Context", "current"),
    "holdfast.handle": ("Decided", "Decision", "Run", "Schedule", "Wait"),
    "holdfast.runtime": ("Runtime", "run"),
}
__all__ = sorted(name for names in HOMES.values() for name in names)  # noqa: PLE0605
__getattr__, __dir__ = lazily(__name__, HOMES)

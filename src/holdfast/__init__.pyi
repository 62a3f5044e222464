"""Holdfast: durable execution for Python. Graphs and flows that survive."""

from __future__ import annotations

from holdfast.authoring import Flow, Graph, State, Tool, flow
from holdfast.core.canon import register
from holdfast.core.channels import append, last, merge, override, secret, thread, topic, window
from holdfast.core.effects import Absent, Happened, Unknown
from holdfast.core.errors import (
    Conflict,
    HoldfastError,
    PermanentError,
    Rejected,
    RunFailed,
    RunWaiting,
    StepFailure,
    StoreError,
    UsageError,
)
from holdfast.core.graph import END, START, Goto, Send, any_of
from holdfast.core.limits import Limit
from holdfast.core.retry import Retry
from holdfast.engine.calls.context import Context, current
from holdfast.handle import Decided, Decision, Run, Schedule, Wait
from holdfast.runtime import Runtime, run

__version__: str
HOMES: dict[str, tuple[str, ...]]

__all__ = [
    "END",
    "START",
    "Absent",
    "Conflict",
    "Context",
    "Decided",
    "Decision",
    "Flow",
    "Goto",
    "Graph",
    "Happened",
    "HoldfastError",
    "Limit",
    "PermanentError",
    "Rejected",
    "Retry",
    "Run",
    "RunFailed",
    "RunWaiting",
    "Runtime",
    "Schedule",
    "Send",
    "State",
    "StepFailure",
    "StoreError",
    "Tool",
    "Unknown",
    "UsageError",
    "Wait",
    "any_of",
    "append",
    "current",
    "flow",
    "last",
    "merge",
    "override",
    "register",
    "run",
    "secret",
    "thread",
    "topic",
    "window",
]

"""Public names are where they are documented to be, and each is the one value whose home it names."""

from __future__ import annotations

import importlib

import pytest

HOMES = {
    "holdfast.policy": ("Policy", "allow", "deny", "require_human", "degrade", "warn"),
    "holdfast.named": ("RunStore", "CheckpointStore", "EventStore", "SideEffectLedger", "CheckpointSaver", "KernelExecutor"),
    "holdfast.transports": ("Webhook", "Subprocess", "RetryAfter", "PermanentError", "Happened", "Absent", "Unknown"),
    "holdfast.tools": ("Tool", "ToolOutcome", "ExitCode", "FileExists", "FileHash", "JsonPathEquals", "HttpStatus", "Command", "Report", "Artifact"),
    "holdfast.testing": ("VirtualClock", "open_store"),
}


@pytest.mark.parametrize(("home", "name"), [(home, name) for home, names in HOMES.items() for name in names])
def test_a_public_name_is_at_home(home: str, name: str) -> None:
    module = importlib.import_module(home)
    assert name in module.__all__
    assert callable(getattr(module, name))

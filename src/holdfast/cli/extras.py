"""The modules that come with an extra, each imported when a command first asks for it. The stub beside this file declares the same names for
type checkers, so that what a command asks of such a module is checked as everything else is.
"""

from __future__ import annotations

from importlib import import_module

from holdfast.core.errors import UsageError

MODULES = {
    "api": ("holdfast.api", "serve"),
    "mcp": ("holdfast.integrations.mcp", "mcp"),
    "server": ("holdfast.api.server", "serve"),
    "telemetry": ("holdfast.telemetry", "telemetry"),
    "ui": ("holdfast.ui", "serve"),
}
"""For each name the module, and the extra that it comes with."""


def __getattr__(name: str) -> object:
    """Returns a module of an extra.

    Raises:
        UsageError: the extra is not installed.
    """
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    module, extra = MODULES[name]
    try:
        return import_module(module)
    except ImportError as e:
        raise UsageError(f"this needs {e.name}", hint=f"pip install 'holdfast[{extra}]'", code=f"{extra}_missing") from e

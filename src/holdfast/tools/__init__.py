"""Tools: what a run does to files and processes, across one boundary (§11)."""

from __future__ import annotations

from holdfast.tools.local import LocalRunner

__all__ = ["LocalRunner"]

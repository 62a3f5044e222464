"""Tools: what a run does to files and processes, across one boundary, and the evidence of it (§11)."""

from __future__ import annotations

from holdfast.authoring import Tool
from holdfast.core.evidence import Artifact, Command, ExitCode, FileExists, FileHash, HttpStatus, JsonPathEquals, Report
from holdfast.ports import ToolOutcome
from holdfast.tools.local import LocalRunner

__all__ = ["Artifact", "Command", "ExitCode", "FileExists", "FileHash", "HttpStatus", "JsonPathEquals", "LocalRunner", "Report", "Tool", "ToolOutcome"]

"""Tools are the commands that a run starts (§11). Each call may have postconditions, which are checked after it, and artifacts, which are kept."""

from __future__ import annotations

from holdfast.authoring import Tool
from holdfast.core.evidence import Artifact, Command, ExitCode, FileExists, FileHash, HttpStatus, JsonPathEquals, Report
from holdfast.ports import ToolOutcome
from holdfast.tools.local import LocalRunner

__all__ = ["Artifact", "Command", "ExitCode", "FileExists", "FileHash", "HttpStatus", "JsonPathEquals", "LocalRunner", "Report", "Tool", "ToolOutcome"]

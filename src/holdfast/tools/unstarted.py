"""Explains why a tool's process could not be started, in an error that names the tool and says what to do (§11.2). Nothing of the tool has run by then."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping

from holdfast.core.errors import StepFailure, TooLarge, ToolFailed, ToolMissing
from holdfast.machine import NO_PROGRAM
from holdfast.ports import ToolRequest

LONGEST_WORD = 32 * os.sysconf("SC_PAGE_SIZE")
LONGEST_LIST = 6 * 1024 * 1024
"""The limits of Linux: for one argument or variable, and for all of them together, however large the stack may grow."""
POINTER = 8

INSTALL = "install it, or declare Tool(…, command=…)"
SCRIPT = "a script begins with a #! line that names its interpreter, and a binary must be built for this machine"
EXECUTABLE = "make it executable: chmod +x"
FOLDER = "make the folder, or name another with cwd="


def explain(error: OSError, request: ToolRequest, cwd: str, env: Mapping[str, str]) -> StepFailure | TooLarge:
    """Makes the error that the caller gets in place of an error of the system."""
    if error.errno == errno.E2BIG:
        return _measure(request, env)
    if error.errno in NO_PROGRAM:
        why, way_out = _find_obstacle(error, request.command[0], cwd, env)
        return ToolMissing(f"the tool {request.tool} cannot be run: {why}", hint=way_out)
    way_out = "nothing of it has run; resume when the system has room again, or give the call retry="
    if error.errno in (errno.EMFILE, errno.ENFILE):
        way_out += "; more file descriptors: ulimit -n"
    return ToolFailed(f"the tool {request.tool} could not be started: {error.strerror or error}", hint=way_out)


def _find_obstacle(error: OSError, command: str, cwd: str, env: Mapping[str, str]) -> tuple[str, str]:
    """Returns what prevents the start, and what to do about it."""
    if not os.path.isdir(cwd):
        return (f"{cwd} is not a folder" if os.path.exists(cwd) else f"there is no folder {cwd}"), FOLDER
    if not os.access(cwd, os.X_OK):
        return f"the folder {cwd} may not be entered", FOLDER
    path = os.path.join(cwd, command) if os.path.dirname(command) else shutil.which(command, path=env.get("PATH", os.defpath))
    if path is None or not os.path.exists(path):
        return f"there is no command {command}", INSTALL
    if os.path.isdir(path):
        return f"{command} is a folder", INSTALL
    if error.errno == errno.ENOENT:
        return f"there is no program that the first line of {command} names", SCRIPT
    if error.errno == errno.ENOEXEC:
        return f"{command} is no program that this machine can execute", SCRIPT
    if not os.access(path, os.X_OK):
        return f"{command} is not executable", EXECUTABLE
    return f"{command}: {error.strerror or error}", INSTALL


def _measure(request: ToolRequest, env: Mapping[str, str]) -> TooLarge:
    """Finds the part of the command that is larger than the system accepts."""
    parts = {f"command[{n}]": len(os.fsencode(word)) + 1 for n, word in enumerate(request.command)}
    parts |= {f"env[{name!r}]": len(os.fsencode(f"{name}={value}")) + 1 for name, value in env.items()}
    field = max(parts, key=lambda name: parts[name])
    size, limit = parts[field], LONGEST_WORD
    if size <= limit:
        field, size, limit = "command and environment", sum(parts.values()) + POINTER * len(parts), min(os.sysconf("SC_ARG_MAX"), LONGEST_LIST)
    return TooLarge(f"{field} of {request.tool}", size, limit, hint="pass it with input=, or write it to a file in the workspace and pass the file's name")


__all__ = ["explain"]

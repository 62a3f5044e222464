"""Evidence of what a tool did (§11.4): postconditions, what was observed of each, and the one function that judges.

There are three results: the postcondition holds, it does not hold, or it could not be checked. The first accepts the attempt, the second
fails it, and the third asks a person; none of them is a new status.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core import canon
from holdfast.core.bounds import NOTE_BYTES, Declared, number, path, text, words, wrong


def _keep(condition: msgspec.Struct, **plain: Any) -> None:
    for name, value in plain.items():
        msgspec.structs.force_setattr(condition, name, value)


class ExitCode(msgspec.Struct, frozen=True, tag="exit_code", metaclass=Declared):
    """The exit code of the tool is ``code`` (0 by default)."""

    code: int = 0

    def __post_init__(self) -> None:
        number(self.code, "code", -255, 255)


class FileExists(msgspec.Struct, frozen=True, tag="file_exists", metaclass=Declared):
    """The file ``path`` exists; the path is relative to the folder in which the tool ran."""

    path: str

    def __post_init__(self) -> None:
        _keep(self, path=path(self.path, "path"))


class FileHash(msgspec.Struct, frozen=True, tag="file_hash", metaclass=Declared):
    """The file ``path`` has this SHA-256, in hex digits. If the file does not exist, the postcondition cannot be checked."""

    path: str
    sha256: str

    def __post_init__(self) -> None:
        _keep(self, path=path(self.path, "path"), sha256=text(self.sha256, "sha256"))


class JsonPathEquals(msgspec.Struct, frozen=True, tag="json_path_equals", metaclass=Declared):
    """The JSON file ``path`` has this value at the JSON pointer ``pointer`` (``/a/0/b``). If the file does not exist, the postcondition
    cannot be checked."""

    path: str
    pointer: str
    value: Any = None

    def __post_init__(self) -> None:
        _keep(self, path=path(self.path, "path"), pointer=text(self.pointer, "pointer", NOTE_BYTES, empty=True))


class HttpStatus(msgspec.Struct, frozen=True, tag="http_status", metaclass=Declared):
    """A GET request to ``url`` returns the status ``status`` (200 by default). If the address cannot be reached, the postcondition cannot
    be checked."""

    url: str
    status: int = 200

    def __post_init__(self) -> None:
        text(self.url, "url", NOTE_BYTES)
        number(self.status, "status", 100, 599)


class Command(msgspec.Struct, frozen=True, tag="command", metaclass=Declared):
    """The command ``argv`` ends with exit code 0. If it cannot be run or does not end, the postcondition cannot be checked."""

    argv: tuple[str, ...]

    def __post_init__(self) -> None:
        if isinstance(self.argv, str) or not (argv := words(self.argv, "argv")):
            raise wrong("argv", "a list of words", self.argv, 'Command(["test", "-s", "out"])')
        _keep(self, argv=tuple(argv))


Postcondition = ExitCode | FileExists | FileHash | JsonPathEquals | HttpStatus | Command
KINDS = (ExitCode, FileExists, FileHash, JsonPathEquals, HttpStatus, Command)


class Report(msgspec.Struct, frozen=True):
    """The result of one postcondition. ``ok`` is None if it could not be checked."""

    kind: str
    ok: bool | None
    detail: str = ""


class Artifact(msgspec.Struct, frozen=True):
    """A file that a tool left. It is stored under the hash of its content: ``store.blob(sha256)`` returns its bytes."""

    name: str
    size: int
    sha256: str


canon.register(Report)
canon.register(Artifact)


class Unseen(msgspec.Struct, frozen=True):
    """Nothing could be observed; ``why`` is the reason."""

    why: str


class Nowhere(msgspec.Struct, frozen=True):
    """A JSON document has nothing at a pointer."""


def kind_of(condition: Postcondition) -> str:
    return str(condition.__struct_config__.tag)


def judge(condition: Postcondition, seen: Any) -> Report:
    """Returns the report of a postcondition, from what was observed: an exit code, a digest, a value, a status, or ``Unseen``."""
    kind = kind_of(condition)
    if isinstance(seen, Unseen):
        return Report(kind, None, seen.why[:500])
    match condition:
        case ExitCode(code):
            return Report(kind, seen == code, f"it ended with {seen}" if seen != code else "")
        case FileExists(path):
            return Report(kind, bool(seen), "" if seen else f"there is no {path}")
        case FileHash(path, sha256):
            return Report(kind, seen == sha256.lower(), "" if seen == sha256.lower() else f"{path} has {seen}")
        case JsonPathEquals(path, pointer, value):
            if isinstance(seen, Nowhere):
                return Report(kind, False, f"{path} has nothing at {pointer}")
            same = _alike(seen, canon.thaw(value))
            return Report(kind, same, "" if same else f"{path} has {str(seen)[:200]!r} at {pointer}")
        case HttpStatus(url, status):
            return Report(kind, seen == status, "" if seen == status else f"{url} answers {seen}")
    return Report(kind, seen == 0, "" if seen == 0 else f"{condition.argv[0]} ended with {seen}")


def _alike(seen: Any, wanted: Any) -> bool:
    """Whether two values are equal as JSON: True is not 1."""
    if isinstance(seen, bool) != isinstance(wanted, bool):
        return False
    if isinstance(seen, dict) and isinstance(wanted, dict):
        return seen.keys() == wanted.keys() and all(_alike(v, wanted[k]) for k, v in seen.items())
    if isinstance(seen, list) and isinstance(wanted, list | tuple):
        return len(seen) == len(wanted) and all(map(_alike, seen, wanted))
    return bool(seen == wanted)


def at(document: Any, pointer: str) -> Any:
    """Returns the value at a pointer in a JSON document (RFC 6901), or ``Nowhere``."""
    if pointer and not pointer.startswith("/"):
        return Nowhere()
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict) and name in document:
            document = document[name]
        elif isinstance(document, list) and name.isascii() and name.isdigit() and int(name) < len(document):
            document = document[int(name)]
        else:
            return Nowhere()
    return document


def missing(conditions: tuple[Postcondition, ...], reports: tuple[Report, ...]) -> tuple[Report, ...]:
    """Returns the reports, and one without evidence for each postcondition on which the runner did not report."""
    if len(reports) >= len(conditions):
        return reports
    return (*reports, *(Report(kind_of(c), None, "the runner did not report on it") for c in conditions[len(reports) :]))


__all__ = [
    "KINDS", "Artifact", "Command", "ExitCode", "FileExists", "FileHash", "HttpStatus", "JsonPathEquals", "Nowhere", "Postcondition", "Report", "Unseen", "at", "judge", "kind_of",
    "missing",
]

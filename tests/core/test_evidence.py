"""Postconditions (§11.4): it holds, it does not, or nothing was seen that would tell."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest

from holdfast.core.errors import InvalidInput, UnknownOption
from holdfast.core.evidence import (
    Command,
    ExitCode,
    FileExists,
    FileHash,
    HttpStatus,
    JsonPathEquals,
    Nowhere,
    Report,
    Unseen,
    at,
    judge,
    kind_of,
    missing,
)

DIGEST = "AB" * 32

JUDGED: list[tuple[Any, Any, bool, str]] = [
    (ExitCode(0), 0, True, ""), (ExitCode(0), 3, False, "it ended with 3"), (FileExists("a"), True, True, ""), (FileExists("a"), False, False, "there is no a"),
    (FileHash("a", DIGEST), DIGEST.lower(), True, ""), (FileHash("a", DIGEST), "cd", False, "a has cd"),
    (JsonPathEquals("a", "/x", {"n": [1, "b"]}), {"n": [1, "b"]}, True, ""), (JsonPathEquals("a", "/x", 1), 2, False, "a has '2' at /x"),
    (JsonPathEquals("a", "/x", 1), True, False, "a has 'True' at /x"), (JsonPathEquals("a", "/x", {"n": 1}), {"n": 1, "m": 2}, False, "a has \"{'n': 1, 'm': 2}\" at /x"),
    (JsonPathEquals("a", "/x", [1]), [1, 2], False, "a has '[1, 2]' at /x"), (JsonPathEquals("a", "/x", 1), Nowhere(), False, "a has nothing at /x"),
    (HttpStatus("http://h", 204), 204, True, ""), (HttpStatus("http://h"), 500, False, "http://h answers 500"),
    (Command(("test", "-s", "a")), 0, True, ""), (Command(("test", "-s", "a")), 1, False, "test ended with 1"),
]


@pytest.mark.parametrize(("condition", "seen", "ok", "detail"), JUDGED, ids=[f"{kind_of(c)}-{s!r:.20}" for c, s, _, _ in JUDGED])
def test_what_was_seen_is_judged(condition: Any, seen: Any, ok: bool, detail: str) -> None:
    assert judge(condition, seen) == Report(kind_of(condition), ok, detail)
    assert judge(condition, Unseen("no such host")) == Report(kind_of(condition), None, "no such host")


DOCUMENT = {"a": [{"b/c": 1, "~": 2}], "": 3, "0": 4}


@pytest.mark.parametrize(
    ("pointer", "there"),
    [("", DOCUMENT), ("/a/0/b~1c", 1), ("/a/0/~0", 2), ("/", 3), ("/0", 4), ("/a/1", None), ("/a/x", None), ("/a/0/b/c", None), ("a", None), ("/a/²", None)],
)
def test_a_json_pointer(pointer: str, there: Any) -> None:
    """RFC 6901."""
    assert at(DOCUMENT, pointer) == (Nowhere() if there is None else there)


def test_what_a_runner_is_silent_about_is_unseen() -> None:
    wanted = (ExitCode(0), FileExists("a"))
    seen = (Report("exit_code", True),)
    assert missing(wanted, seen) == (*seen, Report("file_exists", None, "the runner did not report on it"))
    assert missing(wanted[:1], seen) == seen


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (ExitCode, {"code": "0"}, "code"), (ExitCode, {"code": True}, "code"), (FileExists, {"path": 3}, "path"), (FileExists, {"path": ""}, "path"),
    (FileHash, {"path": "a", "sha256": b"x"}, "sha256"), (JsonPathEquals, {"path": "a", "pointer": 1}, "pointer"), (HttpStatus, {"url": None}, "url"),
    (HttpStatus, {"url": "u", "status": 20}, "status"), (Command, {"argv": "test"}, "argv"), (Command, {"argv": ()}, "argv"), (Command, {"argv": [1]}, "argv"),
]


@pytest.mark.parametrize(("kind", "given", "field"), WRONG, ids=[f"{k.__name__}-{f}-{n}" for n, (k, _, f) in enumerate(WRONG)])
def test_a_postcondition_is_refused_by_its_field(kind: Any, given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        kind(**given)
    assert caught.value.field.split("[")[0] == field


def test_a_path_may_be_one() -> None:
    assert FileExists(PurePosixPath("a/b")).path == "a/b"  # type: ignore[arg-type]
    assert Command(["test"]).argv == ("test",)  # type: ignore[arg-type]
    with pytest.raises(UnknownOption) as caught:
        FileExists(pth="a")  # type: ignore[call-arg]
    assert caught.value.nearest == "path"

"""What the example does outside: git, a sample repository if there is none, and one file."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from holdfast.core.errors import NotFound, PermanentError

TIMEOUT_SECONDS = 30
MOST = 500
FIELDS = "%x1e%H%x1f%an%x1f%aI%x1f%s"


class GitFailed(PermanentError):
    """git failed; to try again is no use."""

    code = "git_failed"


def git(*words: str, cwd: str | Path, given: str | None = None) -> str:
    """Returns what git prints. The call has a timeout, and git asks the user nothing.

    Raises:
        GitFailed: git failed or is missing; the message has git's own words.
    """
    hidden = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"}
    env = {k: v for k, v in os.environ.items() if k not in hidden} | {"LC_ALL": "C.UTF-8", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", *words], cwd=cwd, env=env, input=given, capture_output=True, encoding="utf-8", errors="replace", timeout=TIMEOUT_SECONDS, check=False
        )
    except FileNotFoundError:
        raise GitFailed("git is not installed", hint="the demo reads a git repository; install git", code="git_missing") from None
    except NotADirectoryError:
        raise GitFailed(f"{cwd} is not a folder") from None
    except subprocess.TimeoutExpired:
        raise GitFailed(f"git {words[0]} took longer than {TIMEOUT_SECONDS} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise GitFailed(f"git {words[0]}: {said[0] if said else f'exit code {done.returncode}'}")
    return done.stdout


def top(path: Path) -> Path | None:
    """Returns the repository that a path is in; None outside of any.

    Raises:
        GitFailed: git is not installed.
    """
    try:
        return Path(git("rev-parse", "--show-toplevel", cwd=path).strip())
    except GitFailed as e:
        if e.code == "git_missing":
            raise
        return None


def open_named(path: Path) -> Path:
    """Returns the repository that was named.

    Raises:
        NotFound: the path is in no repository.
    """
    found = top(path) if path.is_dir() else None
    if found is None:
        raise NotFound(f"{path} is not in a git repository", hint="leave --repo out: the demo then uses the repository of the current folder, or makes a sample", code="no_repository")
    return found


def commits(path: Path) -> int:
    """Returns how many commits a repository has; 0 if none."""
    try:
        return int(git("rev-list", "--count", "HEAD", cwd=path).strip() or 0)
    except GitFailed:
        return 0


def collect(repo: str, limit: int) -> dict[str, Any]:
    """Returns the newest commits of a repository: hash, author, date, subject, and how much each changed."""
    count = max(1, min(limit, MOST))
    text = git("log", f"-{count}", "--no-merges", "--shortstat", f"--format={FIELDS}", cwd=repo)
    found = [_commit(part) for part in text.split("\x1e")[1:]]
    if not found:
        raise GitFailed("the repository has no commits yet", code="no_commits")
    return {"name": Path(repo).name, "commits": found}


def _commit(part: str) -> dict[str, Any]:
    lines = part.splitlines()
    sha, author, date, subject = [*lines[0].split("\x1f", 3), "", "", ""][:4]
    words = next((line for line in lines[1:] if " changed" in line), "").replace(",", "").split()
    numbers = {word.rstrip("s(+-)"): int(n) for n, word in itertools.pairwise(words) if n.isdigit()}
    return {
        "hash": sha[:10],
        "author": author,
        "date": date,
        "subject": subject[:300],
        "files": numbers.get("file", 0),
        "added": numbers.get("insertion", 0),
        "removed": numbers.get("deletion", 0),
    }


def write_once(path: str, text: str) -> dict[str, Any]:
    """Writes a file by an atomic replace: the whole file is there or nothing, and to write it again changes nothing."""
    data = text.encode()
    goal = Path(path)
    goal.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(data).hexdigest()
    if not (goal.is_file() and goal.read_bytes() == data):
        handle, name = tempfile.mkstemp(prefix=".notes-", dir=goal.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, goal)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    return {"path": str(goal), "bytes": len(data), "sha256": digest}


# -- a sample ---------------------------------------------------------------------------------------

_HISTORY = (
    ("Ada", "Start a parser for tide tables", "tides.py", 40),
    ("Ada", "Add a command line", "cli.py", 25),
    ("Grace", "fix: read tables with missing rows", "tides.py", 6),
    ("Ada", "feat: predict the next high water", "predict.py", 60),
    ("Grace", "docs: explain the harmonic constants", "README.md", 18),
    ("Linus", "Fix an off-by-one day at the turn of the year", "predict.py", 3),
    ("Ada", "test: compare predictions with 2024's tables", "test_predict.py", 45),
    ("Grace", "perf: cache the constants of a port", "predict.py", 12),
    ("Linus", "Remove the old text output", "cli.py", 2),
    ("Ada", "feat: plot a week in the terminal", "plot.py", 70),
    ("Grace", "fix: stop asking for a time zone twice", "cli.py", 4),
    ("Ada", "Release 1.0", "README.md", 1),
)


def sample(path: Path) -> Path:
    """Makes a small repository with a plausible history, the same every time. An existing one is left as it is."""
    if (path / ".git").is_dir() and commits(path):
        return path.resolve()
    path.mkdir(parents=True, exist_ok=True)
    git("init", "--quiet", "--initial-branch=main", cwd=path)
    git("fast-import", "--quiet", "--force", cwd=path, given=_stream())
    git("reset", "--hard", "--quiet", "main", cwd=path)
    return path.resolve()


def _stream() -> str:
    """Returns the history as git's fast-import reads it, which needs one process, no editor and no configured name."""
    out = []
    for number, (author, subject, file, lines) in enumerate(_HISTORY):
        at = 1_735_689_600 + number * 86_400 * 3
        body = "".join(f"line {n} of change {number}\n" for n in range(lines))
        who = f"{author} <{author.lower()}@example.com> {at} +0000"
        out.append(f"commit refs/heads/main\nauthor {who}\ncommitter {who}\ndata {len(subject.encode())}\n{subject}\n")
        out.append(f"M 100644 inline {file}\ndata {len(body.encode())}\n{body}\n")
    return "".join(out) + "done\n"

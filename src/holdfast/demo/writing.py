"""Writes notes from commits: by rule, or by a model behind an OpenAI-compatible endpoint.

``HOLDFAST_LLM_URL`` (such as ``https://host/v1``), ``HOLDFAST_LLM_KEY`` and ``HOLDFAST_LLM_MODEL`` name the model. They
are read when the model is asked, and the key is never recorded.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.errors import PermanentError
from holdfast.core.jsons import json_of

Commit = Mapping[str, Any]
Groups = Mapping[str, Sequence[Commit]]

_PREFIX = re.compile(r"^(?P<kind>[a-z]+)(?:\([^)]*\))?(?P<breaking>!)?:\s+(?P<rest>.+)$", re.I)
_PREFIXES = {
    "feat": "Added", "feature": "Added", "fix": "Fixed", "bugfix": "Fixed", "perf": "Faster", "docs": "Documentation", "doc": "Documentation",
    "test": "Tests and tooling", "tests": "Tests and tooling", "ci": "Tests and tooling", "build": "Tests and tooling", "chore": "Tests and tooling",
    "style": "Changed", "refactor": "Changed", "revert": "Removed",
}
_WORDS = (
    ("Fixed", r"fix(e[sd])?|correct|repair|handle|avoid|prevent|stop|resolve|bug"),
    ("Removed", r"remove|drop|delete|revert|deprecate"),
    ("Added", r"add|introduce|implement|support|create|start|allow|new"),
    ("Faster", r"speed|optimi[sz]e|cache|faster|cheaper"),
    ("Documentation", r"docs?|document|explain|describe|readme|changelog|walk"),
    ("Tests and tooling", r"tests?|ci|lint|linters?|bump|pin|release|build|raise"),
)
_FIRST = [(section, re.compile(rf"^(?:{words})\b", re.I)) for section, words in _WORDS]
_ANYWHERE = [(section, re.compile(rf"\b(?:{words})\b", re.I)) for section, words in (_WORDS[4], _WORDS[5])]
_CHEAPER = re.compile(r"\b(?:faster|cheaper|speed|cache)\b", re.I)
ORDER = ("Breaking", "Added", "Fixed", "Faster", "Changed", "Removed", "Documentation", "Tests and tooling")
_SHORTER = re.compile(r"\b(?:short(?:er)?|brief(?:er)?|less|fewer|concise)\b", re.I)
SHORT = 1
LIMIT_BYTES = 1_000_000


# -- by rule ----------------------------------------------------------------------------------------


def section(subject: str) -> tuple[str, str]:
    """Returns the section of a commit's subject, and its text in that section."""
    match = _PREFIX.match(subject)
    if match and match["kind"].lower() in _PREFIXES:
        return ("Breaking" if match["breaking"] else _PREFIXES[match["kind"].lower()]), match["rest"]
    rest = match["rest"] if match else subject
    for name, pattern in _FIRST:
        if pattern.match(rest):
            return name, subject
    if _CHEAPER.search(rest):
        return "Faster", subject
    for name, pattern in _ANYWHERE:
        if pattern.search(rest):
            return name, subject
    return "Changed", subject


def group(commits: Sequence[Commit]) -> dict[str, list[dict[str, Any]]]:
    """Returns commits by section, in the order of the notes; empty sections are left out."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ORDER}
    for commit in commits:
        name, text = section(commit["subject"])
        found[name].append({**commit, "text": text[:1].upper() + text[1:]})
    return {name: items for name, items in found.items() if items}


def by_rule(name: str, groups: Groups, feedback: str | None = None) -> str:
    """Returns notes made from the commits and from a person's feedback; the same input gives the same text.

    The rules understand one wish: shorter notes name one change in each section and count the rest. Any other feedback is only shown.
    """
    most = SHORT if feedback and _SHORTER.search(feedback) else None
    every = [c for items in groups.values() for c in items]
    dates = sorted(c["date"][:10] for c in every if c["date"])
    people = Counter(c["author"] for c in every if c["author"])
    span = "" if not dates else f" on {dates[0]}" if dates[0] == dates[-1] else f" from {dates[0]} to {dates[-1]}"
    told = ", ".join(f"{who} ({n})" for who, n in people.most_common(5)) + (f" and {len(people) - 5} more" if len(people) > 5 else "")
    added, removed = sum(c["added"] for c in every), sum(c["removed"] for c in every)
    largest = max(every, key=lambda c: c["added"] + c["removed"])
    lines = [
        f"# Release notes: {name}",
        "",
        f"{len(every)} commit{'' if len(every) == 1 else 's'}{span} by {told}: {added:,} lines added, {removed:,} removed.",
        f"The largest change: {largest['text']} ({largest['hash']}, {largest['files']} file{'' if largest['files'] == 1 else 's'}).",
    ]
    if feedback:
        lines += ["", f"> Reworked as asked: {' '.join(feedback.split())}"]
    for heading, items in groups.items():
        lines += ["", f"## {heading}", "", *(f"- {c['text']} ({c['hash']})" for c in items[:most])]
        if most is not None and len(items) > most:
            lines.append(f"- and {len(items) - most} more")
    return "\n".join(lines) + "\n"


# -- by a model -------------------------------------------------------------------------------------


def model_named() -> str:
    """Returns the name of the model to ask; empty if no endpoint is configured."""
    return (os.environ.get("HOLDFAST_LLM_MODEL") or "default") if os.environ.get("HOLDFAST_LLM_URL") else ""


def ask_model(name: str, groups: Groups, draft: str = "", feedback: str | None = None) -> str:
    """Asks an OpenAI-compatible endpoint for the notes. If the draft was sent back, the model gets it and what should change.

    Raises:
        PermanentError: the endpoint refuses, or its answer is no text; to ask again is no use.
        OSError: the endpoint cannot be reached; a retry may help.
    """
    changes = "\n".join(f"[{heading}] {c['hash']} {c['subject']}" for heading, items in groups.items() for c in items)
    messages = [
        {"role": "system", "content": "You write short release notes in Markdown for the users of a project. Use only the commits given, keep their hashes, invent nothing."},
        {"role": "user", "content": f"Project: {name}\nCommits:\n{changes}"},
    ]
    if feedback:
        messages += [{"role": "assistant", "content": draft}, {"role": "user", "content": f"Write them again. What should change: {feedback}"}]
    body = json.dumps({"model": model_named(), "messages": messages, "temperature": 0}).encode()
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("HOLDFAST_LLM_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    url = os.environ["HOLDFAST_LLM_URL"].rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise PermanentError("HOLDFAST_LLM_URL is not an http address")
    request = urllib.request.Request(f"{url.removesuffix('/chat/completions')}/chat/completions", data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=55) as answer:
            said = json_of(answer.read(LIMIT_BYTES))
        text = said["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as e:
        e.close()  # the error is the response too, and holds the connection
        if e.code in (408, 429) or e.code >= 500:
            raise OSError(f"the model's endpoint answers {e.code}") from None
        raise PermanentError(f"the model's endpoint refuses: {e.code}") from None
    except (ValueError, LookupError, TypeError) as e:
        raise PermanentError(f"the model's answer is not a chat completion: {e}") from None
    if not isinstance(text, str) or not text.strip():
        raise PermanentError("the model's answer is empty")
    return text.strip() + "\n"

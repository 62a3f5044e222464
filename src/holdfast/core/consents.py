"""What a consent covers, and whether that is still so when the step is entered again (§5.8).

A person consents to what was shown; where nothing is shown, to the step as it stood: its arguments and the state it reads. The wait keeps
a digest of that. Another wording of the question is no difference; another name or number in it is, where nothing else was shown.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from holdfast.core import canon
from holdfast.core.errors import EventUnreadable
from holdfast.core.masks import HIDDEN, mask
from holdfast.core.waits import Wait

EXCERPT_BYTES = 512
SHOWN_CHARS = 400
_WORD = re.compile(r"[\w@/.,:+\-]+")
HOW_TO_KEEP = "To keep a value from changing between a question and its answer, record it: await ctx.step(…)."


class Subject(msgspec.Struct, frozen=True):
    """What a question is about. ``reads`` is an excerpt of what the step reads, where nothing is shown."""

    covers: str
    show: Any = None
    reads: Mapping[str, Any] | None = None


def shown(show: Any, verdict: str = "") -> Subject:
    """A question that shows something: that is what it is about."""
    return Subject("show:" + canon.fingerprint([show, verdict]), show)


def read(reads: Mapping[str, Any], secret: Collection[str], verdict: str = "") -> Subject:
    """A bare question: it is about what the step reads, of which large and secret values are kept as digests."""
    return Subject("read:" + canon.fingerprint([dict(reads), verdict]), reads={n: _excerpt(v, n in secret) for n, v in reads.items()})


def _excerpt(value: Any, secret: bool) -> Any:
    if not secret and len(canon.encode(canon.admit(value))) <= EXCERPT_BYTES:
        return value
    return f"{HIDDEN if secret else '…'}{canon.fingerprint(value)[:8]}"


def packed(subject: Subject) -> bytes | None:
    return None if subject.reads is None else canon.pack(dict(subject.reads), "reads")[1]


def changed(before: Wait, prompt: str, now: Subject, secret: Collection[str] = ()) -> str | None:
    """How what is asked about differs from what a consent covered; None if it does not.

    A wait of a release that kept no digest is compared by what it showed.
    """
    if not before.covers:
        if before.show is None or canon.fingerprint(_value(before.show)) == canon.fingerprint(now.show):
            return None
    elif before.covers == now.covers:
        if now.reads is None or particulars(before.prompt) == particulars(prompt):
            return None
        return f"{before.prompt!r} was asked, and it is {prompt!r} now"
    names = mask(secret, ())
    if before.show is not None or now.show is not None:
        return f"{_text(names.value(_plain(_value(before.show))))} was shown, and it is {_text(names.value(_plain(now.show)))} now"
    was, reads = _reads(before), now.reads or {}
    differing = [n for n in dict.fromkeys((*was, *reads)) if n not in was or n not in reads or _plain(was[n]) != _plain(reads[n])]
    told = ", ".join(f"{n} was {_text(_plain(was.get(n)))} and is {_text(_plain(reads.get(n)))}" for n in differing)
    return told or "what the step reads is not what it was"


def particulars(prompt: str) -> list[str]:
    """The names and numbers in a question: its other words are wording."""
    words = [w.strip(".,:") for w in _WORD.findall(prompt)]
    return [w for n, w in enumerate(words) if any(c.isdigit() or c in "@/_" for c in w) or (n and len(w) > 1 and w[:1].isupper())]


def _reads(wait: Wait) -> Mapping[str, Any]:
    found = None if wait.reads is None else _value(wait.reads)
    return found if isinstance(found, Mapping) else {}


def _value(data: bytes | None) -> Any:
    """A stored value; what cannot be decoded here differs from everything."""
    try:
        return None if data is None else canon.decode(data)
    except EventUnreadable as e:
        return f"unreadable: {e.message}"


def _plain(value: Any) -> Any:
    return canon.reveal(canon.encode(canon.admit(value)))


def _text(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…"


__all__ = ["HOW_TO_KEEP", "Subject", "changed", "packed", "particulars", "read", "shown"]

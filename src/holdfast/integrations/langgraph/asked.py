"""Checks whether the code of a graph still asks what it asked: LangGraph identifies the questions of a node by their order alone.

Theory of operation. The code of the nodes, and of what they call in their own modules, is walked once. Its digest tells whether it is still the code
that asked, and its texts are what questions are made of. If the digest differs, the graph is driven to its questions once more before an answer is
given. A question counts as another one if a text of the code that was in the old question is still in the code, but is not in the new question. So
what a model wrote into a question, and a new wording in the code, are no difference.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

_PLAIN = (int, float, complex, bytes, bool, type(None), type(...))
_PARTS = ("func", "afunc", "bound", "steps", "nodes", "first", "middle", "last")
"""Where the runnables of LangChain and LangGraph keep functions and other runnables."""


class Code(NamedTuple):
    """What is known of the code of a graph."""

    digest: str
    texts: frozenset[str]

    @classmethod
    def of(cls, nodes: Mapping[str, Any]) -> Code:
        """Returns the code of these nodes."""
        walk = _Walk(*(part for name in sorted(nodes) for part in (name, nodes[name])))
        return cls(hashlib.sha256("\n".join(walk.facts).encode("utf-8", "surrogatepass")).hexdigest(), frozenset(walk.texts))

    def others(self, before: Any, now: Any) -> bool:
        """Whether the code now asks another question in place of this one. ``now`` is None if it asks none."""
        return bool(self._marks(before) - self._marks(now))

    def _marks(self, question: Any) -> set[str]:
        """Returns the texts of the code that are in a question: as a whole text of it, or as a phrase within one."""
        words = set(_words(question))
        return {t for t in self.texts if t in words or ((" " in t.strip() or t.endswith((" ", "?"))) and any(t in word for word in words))}


class _Walk:
    """One walk through functions: the facts that make up a digest, and the texts among them."""

    def __init__(self, *begin: Any) -> None:
        self.facts: list[str] = []
        self.texts: set[str] = set()
        seen: dict[int, Any] = {}
        left = list(begin[::-1])
        while left:  # not by recursion: a module's functions may call one another in a long chain
            value = left.pop()
            if isinstance(value, (str, *_PLAIN)):
                self.facts.append(repr(value))
                self.texts.update([value] if isinstance(value, str) and value.strip() else [])
            elif id(value) not in seen:
                seen[id(value)] = value  # kept, so that no other object gets its id meanwhile
                inside = list(self._inside(value))
                self.facts.append(f"{type(value).__qualname__} of {len(inside)}")
                left.extend(inside[::-1])

    def _inside(self, value: Any) -> Iterable[Any]:
        match value:
            case CodeType():
                self.facts += [value.co_code.hex(), *value.co_names]
                return value.co_consts
            case FunctionType():
                return (value.__code__, value.__defaults__, value.__kwdefaults__, *_walk_held(value))
            case MethodType():
                return (value.__func__,)
            case functools.partial():
                return (value.func, value.args, value.keywords)
            case list() | tuple():
                return value
            case dict():
                return [part for item in value.items() for part in item]
            case set() | frozenset():
                return sorted(value, key=repr)
            case type():
                return (value.__qualname__,)
        return [getattr(value, part, None) for part in _PARTS]


def _walk_held(function: FunctionType) -> Iterator[Any]:
    """Yields what a function uses from outside: what it closes over, and its own module's functions, texts and numbers."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not bound yet
            continue
    for name in function.__code__.co_names:
        found = function.__globals__.get(name)
        if isinstance(found, (str, *_PLAIN)) or (isinstance(found, FunctionType) and found.__module__ == function.__module__):
            yield found


def _words(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for key, inner in value.items():
                yield from (*_words(key), *_words(inner))
        case list():
            for inner in value:
                yield from _words(inner)


__all__ = ["Code"]

"""A world's diary, as text: who did what when, what went wrong, and what was written to the store.

The transcript of a run shows what is on record. The diary shows how that came about: the process, the moment in virtual time,
the fault, and things that are on no record, such as a refused write or what happened outside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.core.commit import Commit
from holdfast.core.lease import counter
from holdfast.testing.clock import VirtualClock, current_process
from holdfast.testing.invariants import Violation
from holdfast.testing.transcript import line

HEAD, BEFORE, AFTER = 8, 60, 12


class Entry(NamedTuple):
    """``at``: seconds since the world began; ``run``: the run that it concerns, if any; ``bad``: whether it is a violation."""

    at: float
    who: str
    what: str
    run: str = ""
    commit: Commit | None = None
    bad: bool = False

    def lines(self) -> Iterator[str]:
        """Returns the entry as lines of text; a commit has one line for each event."""
        what = [self.what]
        if self.commit is not None:
            events = [f"{e.seq} {line(e.fact)}" for e in self.commit.events]
            what = [f"writes to {self.run} under fence {counter(self.commit.fence)}: {events[0]}", *(f"      {e}" for e in events[1:])]
        for n, text in enumerate(what):
            yield f"{'!' if self.bad else ' '} {f'+{self.at:.3f}s' if n == 0 else '':>10}  {self.who if n == 0 else '':<8} {text}".rstrip()


class Diary:
    """All entries of a world, in order."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._entries: list[Entry] = []

    def note(self, what: str, *, who: str = "", run: str = "", commit: Commit | None = None, bad: bool = False) -> None:
        """Adds an entry. By default ``who`` is the process whose code runs."""
        process = current_process()
        self._entries.append(Entry(self._clock.elapsed, who or (process.name if process is not None else ""), what, run, commit, bad))

    @property
    def runs(self) -> list[str]:
        """The runs, in the order of their first entry."""
        return list(dict.fromkeys(e.run for e in self._entries if e.run))

    def find_concerned(self, broken: Sequence[Violation]) -> list[str]:
        """Returns the runs that the first violation is about, or all runs if it names none."""
        named = [r for r in self.runs if any(r in f"{v.run_id} {v.message}" for v in broken[:1])]
        return named or self.runs

    def tell(self, runs: Sequence[str]) -> list[str]:
        """Returns, as lines of text, what was done to these runs and what happened to the processes that did it.

        A long story is cut to its beginning and the lines around its first violation, or its last lines if it has none.
        """
        others = [r for r in self.runs if r not in runs]
        hands = {e.who for e in self._entries if e.run in runs}
        chosen = [e for e in self._entries if (e.run in runs if e.run else _befell(e, hands, others))]
        lines = [(text, entry.bad) for entry in chosen for text in entry.lines()]
        told = [text for text, _ in lines]
        end = min(next((n for n, (_, bad) in enumerate(lines) if bad), len(told)) + AFTER, len(told))
        begin = max(HEAD, end - AFTER - BEFORE)
        return [*told[:HEAD], *_tell_left_out(begin - HEAD), *told[begin:end], *_tell_left_out(len(told) - end)]


def _befell(entry: Entry, hands: set[str], others: Sequence[str]) -> bool:
    return (entry.who in hands or not entry.who) and not any(r in entry.what for r in others)


def _tell_left_out(count: int) -> list[str]:
    return [f"  … {count} lines …"] if count > 0 else []


__all__ = ["Diary", "Entry"]

"""Selection: which open waits one decision about many is meant for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.core import bounds
from holdfast.core.errors import InvalidInput
from holdfast.core.ids import node_of
from holdfast.core.run import Run
from holdfast.core.waits import HUMAN, Wait


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """What a wait must be, all at once; None means any.

    ``skill`` is a skill's id, ``step`` the node that asked, ``kind`` the kind of the wait, ``name`` what it is about: an effect's function
    or a signal's name; ``thread`` and ``tag`` are those of its run.
    """

    skill: str | None = None
    step: str | None = None
    kind: str | None = None
    name: str | None = None
    thread: str | None = None
    tag: str | None = None

    def takes(self, run: Run, wait: Wait) -> bool:
        """Whether this wait of this run is meant. What no person can answer never is."""
        return (
            wait.human
            and self.skill in (None, run.skill_id)
            and self.thread in (None, run.thread_id)
            and (self.tag is None or self.tag in run.tags)
            and self.kind in (None, str(wait.kind))
            and self.name in (None, wait.name)
            and self.step in (None, wait.task, node_of(wait.task))
        )


KINDS = tuple(sorted(str(kind) for kind in HUMAN))
CONVERTS: Mapping[str, bounds.Convert] = {
    **dict.fromkeys(Where.__struct_fields__, bounds.text),
    "tag": bounds.who,
    "kind": bounds.word(*KINDS),
}


def where(given: Any) -> Where:
    """A selection, from names to values.

    Raises:
        UnknownOption: a key that there is none of, with the nearest. InvalidInput, TooLarge: a value, by its key; or nothing at all is
            asked for, which would mean every wait there is.
    """
    found = Where(**bounds.admit(bounds.mapping(given, "where"), CONVERTS, "where"))
    if found == Where():
        raise InvalidInput("where is empty: it selects no waits", field="where", hint=f"give one or more of {', '.join(Where.__struct_fields__)}")
    return found


__all__ = ["Where", "where"]

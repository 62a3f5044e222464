"""Selection: the open waits to which one decision about many applies."""

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
    """Conditions that a wait must all meet; None means any.

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
        """Whether this wait of this run is selected. A wait that no person can answer never is."""
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
    """Returns a selection, from a mapping of names to values.

    Raises:
        UnknownOption: a key does not exist; names the nearest. InvalidInput, TooLarge: a value is wrong, named by its key; or no condition is
            given, which would select every wait.
    """
    found = Where(**bounds.admit(bounds.mapping(given, "where"), CONVERTS, "where"))
    if found == Where():
        raise InvalidInput("where is empty: it selects no waits", field="where", hint=f"give one or more of {', '.join(Where.__struct_fields__)}")
    return found


__all__ = ["Where", "where"]

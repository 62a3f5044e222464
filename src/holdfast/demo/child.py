"""A process to be killed: drives one run, and at every boundary of a commit asks on its pipes whether it may go on.

``python -m holdfast.demo.child STORE RUN`` prints ``before N`` and ``after N`` and waits for a line each time, so that
the process at the other end of the pipes can kill it exactly there.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, cast

from holdfast.core.commit import Commit, Tip
from holdfast.demo.notes import graph
from holdfast.ports import Store
from holdfast.runtime import Runtime
from holdfast.stores import open_url


class Announced:
    """A store that says when a commit is about to be made and when it has been made; everything else goes to the wrapped store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, commit: Commit) -> Tip:
        self._count += 1
        _ask(f"before {self._count}")
        tip = await self._store.commit(commit)
        _ask(f"after {self._count}")
        return tip


def _ask(text: str) -> None:
    """Blocks the whole process on purpose, so that it stops at the boundary."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
    if not sys.stdin.readline():
        raise SystemExit(3)


async def drive(url: str, run_id: str) -> None:
    """Drives the run until it rests."""
    async with Runtime(cast(Store, Announced(open_url(url))), skills=[graph]) as rt:
        await rt.resume(run_id)


if __name__ == "__main__":
    asyncio.run(drive(sys.argv[1], sys.argv[2]))

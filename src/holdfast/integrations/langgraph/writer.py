"""One commit for all who write rows of a shelf while the one before is made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from holdfast.core.bounds import sized
from holdfast.shelf import Shelf

WAIT_SECONDS = 0.002
"""How long rows that ride along wait for a commit to ride with."""
Otherwise = Callable[[], Awaitable[Mapping[str, bytes]]]
"""What is to be put in the place of a row whose key is taken."""
NOTHING: Mapping[str, Otherwise] = {}


class Writer:
    """Puts rows of a shelf, one commit after the other. A saver and its clones, which LangGraph makes at ``compile``, have one together."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._awaited: dict[str, bytes] = {}
        self._riding: dict[str, bytes] = {}
        self._written: dict[str, bytes] = {}
        self._once: dict[str, Otherwise] = {}
        self._next: asyncio.Task[None] | None = None
        self._last: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def holds(self, key: str) -> bool:
        """Whether a row with this key is on its way to the store."""
        return key in self._riding or key in self._awaited or key in self._written

    async def write(self, rows: Mapping[str, bytes], once: Mapping[str, Otherwise] = NOTHING) -> None:
        """Puts rows, together with what else is to be put now; returns when they are on disk. Those in ``once`` are put where their key is
        free; where it is taken, what their function gives is put.

        Raises:
            TooLarge: one of them is too large; those of others who write now are put all the same.
        """
        self._awaited |= _sized(rows)
        self._once |= once
        await asyncio.shield(self._commit())

    def ride(self, rows: Mapping[str, bytes], once: Mapping[str, Otherwise] = NOTHING) -> None:
        """Puts rows with the next commit; one is made if nobody else makes one soon."""
        self._riding |= _sized(rows)
        self._once |= once
        if self._next is None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WAIT_SECONDS, self._due)

    async def settle(self) -> None:
        """Returns when everything put so far is on disk."""
        if self._riding or (self._last is not None and not self._last.done()):
            await self.write({})

    def _due(self) -> None:
        self._timer = None
        if self._riding:
            # Nobody waits for this one. If it fails its rows ride with the next, whose writer hears of the error.
            self._commit().add_done_callback(lambda done: done.cancelled() or done.exception())

    def _commit(self) -> asyncio.Task[None]:
        """The commit that takes what is put now."""
        if self._next is None:
            under_way = self._last if self._last is not None and not self._last.done() else None
            self._next = self._last = asyncio.ensure_future(self._made(under_way))
        return self._next

    async def _made(self, before: asyncio.Task[None] | None) -> None:
        await asyncio.sleep(0)  # the turn's other writers join this commit
        failed: BaseException | None = None
        if before is not None:
            await asyncio.wait([before])
            failed = before.exception()
        if self._timer is not None:
            self._timer.cancel()
        riding, awaited, once = self._riding, self._awaited, self._once
        self._riding, self._awaited, self._once, self._next, self._timer = {}, {}, {}, None, None
        self._written = riding | awaited
        try:
            if failed is not None:
                raise failed  # what was put while that commit was made may build on its rows
            await self._put(self._written, once)
        except BaseException:
            # Who waits hears of the error. What rode along was promised to nobody yet: it is tried again with the next commit.
            self._once = {key: otherwise for key, otherwise in once.items() if key in riding} | self._once
            self._riding = riding | self._riding
            raise
        finally:
            self._written = {}

    async def _put(self, rows: Mapping[str, bytes], once: Mapping[str, Otherwise]) -> None:
        if not once:
            if rows:
                await self._shelf.put_many(rows)
            return
        instead: dict[str, bytes] = {}
        for key in await self._shelf.put_many(rows, once=once.keys()):
            instead |= await once[key]()
        if instead:
            await self._shelf.put_many(_sized(instead))


def _sized(rows: Mapping[str, bytes]) -> Mapping[str, bytes]:
    for key, data in rows.items():
        sized(data, key)
    return rows


__all__ = ["WAIT_SECONDS", "Writer"]

"""Group commits for a shelf: all rows that are put while one commit is made share the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from holdfast.core.bounds import check_size
from holdfast.core.errors import make_own
from holdfast.machine import note_error
from holdfast.shelf import Shelf

WAIT_SECONDS = 0.002
"""How long the rows of ``ride`` wait for the commit of another write, in seconds."""
TURNS = 3
"""How many turns of the event loop pass after a commit for which several waited, so that they can put again and share the next one."""
Otherwise = Callable[[], Awaitable[Mapping[str, bytes]]]
"""Returns what is to be put in place of a row whose key is taken."""
NOTHING: Mapping[str, Otherwise] = {}


class Writer:
    """Puts rows of a shelf, one commit after the other. A saver and its clones, which LangGraph makes at ``compile``, share one writer."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._awaited: dict[str, bytes] = {}
        self._riding: dict[str, bytes] = {}
        self._written: dict[str, bytes] = {}
        self._once: dict[str, Otherwise] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._told: list[asyncio.Future[None]] = []
        self._serving: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def holds(self, key: str) -> bool:
        """Whether a row with this key is on its way to the store."""
        return key in self._riding or key in self._awaited or key in self._written

    async def write(self, rows: Mapping[str, bytes], once: Mapping[str, Otherwise] = NOTHING) -> None:
        """Puts rows, together with what else is to be put now; returns when they are on disk. A row in ``once`` is put only if its key is
        free; if the key is taken, what its function returns is put instead.

        Raises:
            TooLarge: one of the rows is too large; rows that others write now are put all the same.
        """
        self._awaited |= _check_sizes(rows)
        self._once |= once
        # Each caller has a future of its own: a caller that is cancelled takes nothing from the others, and its rows are put all the same.
        done = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self._serve()
        await done

    def ride(self, rows: Mapping[str, bytes], once: Mapping[str, Otherwise] = NOTHING) -> None:
        """Puts rows with the next commit; makes one if nobody else makes one soon."""
        self._riding |= _check_sizes(rows)
        self._once |= once
        if not self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WAIT_SECONDS, self._due)

    async def settle(self) -> None:
        """Returns when everything put so far is on disk."""
        if self._riding or self._serving is not None:
            await self.write({})

    def _due(self) -> None:
        self._timer = None
        if self._riding:
            # Nobody waits for this commit. If it fails, its rows are put with the next commit, whose writer gets the error.
            unheard = asyncio.get_running_loop().create_future()
            unheard.add_done_callback(note_error)
            self._waiting.append(unheard)
            self._serve()

    def _serve(self) -> None:
        if self._serving is None:
            self._serving = asyncio.ensure_future(self._commits())
            self._serving.add_done_callback(self._end)

    async def _commits(self) -> None:
        """Makes one commit after the other, while somebody waits for one. Each takes all rows that were put until it begins: in this turn of the
        loop, and while the commit before was made."""
        while self._waiting:
            if self._timer is not None:
                self._timer.cancel()
            riding, awaited, once = self._riding, self._awaited, self._once
            self._riding, self._awaited, self._once, self._timer = {}, {}, {}, None
            self._told, self._waiting = self._waiting, []
            self._written = riding | awaited
            together = len(self._told) > 1
            try:
                await self._put(self._written, once)
            except BaseException as failed:
                # Everyone who waits gets the error, also who has put something since, because that may build on these rows. The rows of
                # ``ride`` were promised to nobody yet: they are tried again with the next commit.
                self._once = {key: otherwise for key, otherwise in (once | self._once).items() if key in riding or key in self._riding}
                self._riding, self._awaited = riding | self._riding, {}
                self._tell(failed)
                if not isinstance(failed, Exception):
                    raise
            else:
                told, self._told = self._told, []
                for done in told:
                    if not done.done():
                        done.set_result(None)
            finally:
                self._written = {}
            for _ in range(TURNS if together else 0):
                await asyncio.sleep(0)

    def _tell(self, failed: BaseException) -> None:
        """Gives an error to everyone who waits."""
        told, self._told, self._waiting = self._told + self._waiting, [], []
        for done in told:
            if done.done():
                continue
            if isinstance(failed, asyncio.CancelledError):
                done.cancel()
            else:
                done.set_exception(make_own(failed))

    def _end(self, serving: asyncio.Task[None]) -> None:
        """Leaves nobody waiting, even if the task was cancelled before it took anything."""
        self._serving = None
        if serving.cancelled():
            self._awaited = {}
            self._once = {key: otherwise for key, otherwise in self._once.items() if key in self._riding}
            self._tell(asyncio.CancelledError())
        elif serving.exception() is None and self._waiting:
            self._serve()  # somebody has put something between the task's end and this call

    async def _put(self, rows: Mapping[str, bytes], once: Mapping[str, Otherwise]) -> None:
        if not once:
            if rows:
                await self._shelf.put_many(rows)
            return
        instead: dict[str, bytes] = {}
        for key in await self._shelf.put_many(rows, once=once.keys()):
            instead |= await once[key]()
        if instead:
            await self._shelf.put_many(_check_sizes(instead))


def _check_sizes(rows: Mapping[str, bytes]) -> Mapping[str, bytes]:
    for key, data in rows.items():
        check_size(data, key)
    return rows


__all__ = ["WAIT_SECONDS", "Writer"]

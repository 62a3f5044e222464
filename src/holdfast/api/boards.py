"""The current state of many runs, read once for all who follow them (§16.7).

Theory of operation. Each follower of many runs is told which of them have changed. A ``Board`` is one query, such as all running runs of a tenant. As
long as it has followers, one task reads the rows of its runs after each change of the store, and then pauses for as long as the read took, so that a
store in which much happens costs a server no more than half its time. Each follower compares these rows with what it was told. The wire form of a run is
made when the first follower needs it, a few runs at a time, and is cached for the others, up to a total size. A run that a follower was told of
and that is no longer among the rows has left; it is looked up by its id, once for all followers, to tell its state now.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import msgspec

from holdfast import logs
from holdfast.core.describe import RunView
from holdfast.core.errors import HoldfastError, NotFound, Rejected, StoreCorrupt, UnsupportedFormat
from holdfast.core.lease import Lease
from holdfast.core.recent import Recent
from holdfast.core.run import Run
from holdfast.core.views import condition
from holdfast.engine.look.looker import Looker, Wanted
from holdfast.ports import Store

POLL_SECONDS = 1.0
ABREAST = 20
KEPT_BYTES = 16 * 2**20
log = logs.logger("holdfast.api")


class Stand(msgspec.Struct, frozen=True):
    """The state of a run, by which a follower knows whether it was told of it."""

    run_id: str
    version: int
    condition: str


class Left(msgspec.Struct, frozen=True):
    """A run that no longer matches a query, with its state now. If the run was pruned or cannot be read, there is only its id."""

    run_id: str
    version: int | None = None
    status: str | None = None
    condition: str | None = None


class Board:
    """The runs that match one query, newest first, as of read number ``turn``. ``followers`` is the number of followers."""

    def __init__(self, store: Store, look: Looker, wanted: Wanted) -> None:
        self._store = store
        self._look = look
        self._wanted = wanted
        self._moved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._left: tuple[int, dict[str, Left]] = (0, {})
        self._finding = asyncio.Lock()
        self.followers = 0
        self.turn = 0
        self.rows: dict[Stand, tuple[Run, Lease]] = {}

    async def news(self, turn: int, seconds: float) -> None:
        """Returns when there was a read after read number ``turn``, or after this many seconds."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._go_round())
        if self.turn == turn and not self._task.done():
            waiting = asyncio.ensure_future(self._moved.wait())
            await asyncio.wait({waiting, self._task}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        if self._task.done():
            self._task.result()  # raises an unexpected error, so that it ends the streams and not only their news

    async def find_left(self, run_ids: Sequence[str]) -> list[Left]:
        """Returns the state now of runs that have left. Followers that ask after the same read share the answers.

        Raises:
            StoreError: the store cannot be read now.
        """
        async with self._finding:
            turn, known = self._left
            if turn != self.turn:
                turn, known = self._left = (self.turn, {})
            lacking = [run_id for run_id in run_ids if run_id not in known]
            for first in range(0, len(lacking), ABREAST):
                known.update({each.run_id: each for each in await asyncio.gather(*map(self._stands_now, lacking[first : first + ABREAST]))})
            return [known[run_id] for run_id in run_ids]

    async def _stands_now(self, run_id: str) -> Left:
        try:
            run, lease = await self._look.find_row(run_id, self._wanted.tenant_id)
        except (NotFound, Rejected, StoreCorrupt, UnsupportedFormat):
            return Left(run_id)
        return Left(run_id, run.version, str(run.status), condition(run, lease, self._store.now()).value)

    def close(self) -> None:
        """Stops reading, because there are no more followers."""
        if self._task is not None:
            self._task.cancel()

    async def _go_round(self) -> None:
        while True:
            began = time.monotonic()
            try:
                found = await self._look.rows(self._wanted)
            except HoldfastError as e:  # the followers are told of changes when the store can be read again
                log.debug("runs are not followed: %s", e)
            else:
                now = self._store.now()
                self.rows = {Stand(run.run_id, run.version, condition(run, lease, now).value): (run, lease) for run, lease in found}
                self.turn += 1
                moved, self._moved = self._moved, asyncio.Event()
                moved.set()
            await asyncio.sleep(time.monotonic() - began)
            await self._store.wait_for_change(POLL_SECONDS)


class Boards:
    """The boards of a server. ``encode`` returns the wire form of a run."""

    def __init__(self, store: Store, look: Looker, encode: Callable[[RunView], bytes]) -> None:
        self._store = store
        self._look = look
        self._encode = encode
        self._boards: dict[Wanted, Board] = {}
        self._frames: Recent[Stand, bytes] = Recent(KEPT_BYTES)
        self._making = asyncio.Lock()

    @contextlib.contextmanager
    def follow(self, wanted: Wanted) -> Iterator[Board]:
        """Gives the board of a query for the time of the block."""
        board = self._boards.get(wanted)
        if board is None:
            board = self._boards[wanted] = Board(self._store, self._look, wanted)
        board.followers += 1
        try:
            yield board
        finally:
            board.followers -= 1
            if not board.followers:
                board.close()
                del self._boards[wanted]

    async def frames(self, stands: Sequence[Stand], rows: dict[Stand, tuple[Run, Lease]]) -> AsyncIterator[bytes]:
        """Yields the wire form of these runs, a few runs at a time."""
        for first in range(0, len(stands), ABREAST):
            some = stands[first : first + ABREAST]
            async with self._making:  # one follower at a time, so that no frame is made twice
                made = {stand: frame for stand in some if (frame := self._frames.get(stand)) is not None}
                lacking = [stand for stand in some if stand not in made]
                for stand, view in zip(lacking, await self._look.show_all([rows[stand] for stand in lacking]) if lacking else (), strict=True):
                    made[stand] = self._encode(view)
                    self._frames.keep(stand, made[stand], len(made[stand]))
            yield b"".join(made[stand] for stand in some)


__all__ = ["Board", "Boards", "Stand"]

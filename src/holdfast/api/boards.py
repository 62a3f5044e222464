"""Many runs as they stand, looked at once for all who follow them (§16.7).

Theory of operation. Whoever follows many runs is told which of them stand otherwise than before. A ``Board`` is one question, such as all running
runs of a tenant. As long as anybody follows it, one task reads the rows of its runs after each change of the store, and rests for as long as that took,
so that a store in which much happens costs a server no more than half its time. Each follower compares these rows with what it was told. What a run looks like on
the wire is made when the first of them needs it, a few runs at a time, and is kept for the others up to a size. A run that was told of and is among
the rows no more has left; it is looked up by its name once for all followers, to say how it stands now.
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
    """How a run stands: what tells whether somebody was told of it."""

    run_id: str
    version: int
    condition: str


class Left(msgspec.Struct, frozen=True):
    """A run that is no longer one of those that a question is about, and how it stands now: nothing but its id if it was pruned or cannot be read."""

    run_id: str
    version: int | None = None
    status: str | None = None
    condition: str | None = None


class Board:
    """The runs that one question is about, newest first, as of the ``turn``-th look. ``followers`` counts who asks."""

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
        """Returns once there was a look after the ``turn``-th, or after so many seconds."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._go_round())
        if self.turn == turn and not self._task.done():
            waiting = asyncio.ensure_future(self._moved.wait())
            await asyncio.wait({waiting, self._task}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        if self._task.done():
            self._task.result()  # what nobody expected ends the streams, and not their news alone

    async def find_left(self, run_ids: Sequence[str]) -> list[Left]:
        """How these runs stand, which have left; those who ask after the same look share the answers.

        Raises:
            StoreError: the store cannot tell now.
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
        """Nobody follows it any more."""
        if self._task is not None:
            self._task.cancel()

    async def _go_round(self) -> None:
        while True:
            began = time.monotonic()
            try:
                found = await self._look.rows(self._wanted)
            except HoldfastError as e:  # they are told of what has happened once the store is well again
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
    """The boards of a server. ``encode`` gives what a run looks like on the wire."""

    def __init__(self, store: Store, look: Looker, encode: Callable[[RunView], bytes]) -> None:
        self._store = store
        self._look = look
        self._encode = encode
        self._boards: dict[Wanted, Board] = {}
        self._frames: Recent[Stand, bytes] = Recent(KEPT_BYTES)
        self._making = asyncio.Lock()

    @contextlib.contextmanager
    def follow(self, wanted: Wanted) -> Iterator[Board]:
        """The board of a question, for as long as this lasts."""
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
        """What these runs look like on the wire, a few at a time."""
        for first in range(0, len(stands), ABREAST):
            some = stands[first : first + ABREAST]
            async with self._making:  # whoever needs the same has it made once
                made = {stand: frame for stand in some if (frame := self._frames.get(stand)) is not None}
                lacking = [stand for stand in some if stand not in made]
                for stand, view in zip(lacking, await self._look.show_all([rows[stand] for stand in lacking]) if lacking else (), strict=True):
                    made[stand] = self._encode(view)
                    self._frames.keep(stand, made[stand], len(made[stand]))
            yield b"".join(made[stand] for stand in some)


__all__ = ["Board", "Boards", "Stand"]

"""The seat of a task that waits for a commit (``ports.Seat``)."""

from __future__ import annotations

import asyncio

from holdfast.core.commit import Tip


class Awaited:
    """A seat that passes the answer on to a future."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[Tip]) -> None:
        self._future = future

    @property
    def waits(self) -> bool:
        return not self._future.done()

    def tell(self, tip: Tip) -> None:
        self._future.set_result(tip)

    def refuse(self, error: BaseException) -> None:
        self._future.set_exception(error)


__all__ = ["Awaited"]

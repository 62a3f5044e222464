"""POSTs with an ``Idempotency-Key``: reserved before they are carried out, answered once, forgotten after a day (§16.5, decisions 0049 and 0072).

The rows of a key are on a shelf, under ``t<day>/<digest of tenant, method, path and key>/<number>``. The first request has number 0. A server that finds
a reservation without an answer takes the next number if the server that made it has released it, is proven dead, or made it at least a minute ago; until
then, a request under the key is refused as in progress. A row under a day before yesterday is never read again. So whole days are deleted by their
prefix, and a deletion cannot hit a key that is used again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

import msgspec

from holdfast.api.problems import Stopped
from holdfast.core.errors import RequestConflict
from holdfast.core.lease import Alive
from holdfast.shelf import Shelf

ANSWERS = "holdfast.answers"
KEPT_US = 24 * 3600 * 1_000_000
HELD_US = 60 * 1_000_000


class Seen(msgspec.Struct, frozen=True):
    """The state of a POST's target when a server first took up the POST. From it, a later server can tell whether the POST was carried out."""

    at: int = 0
    version: int = 0
    wait_id: str = ""
    rulings: int = 0
    run_id: str = ""


class Kept(msgspec.Struct, frozen=True):
    """A request under a key: the digest of its body, the server that is processing it, if there is one, and the answer as soon as it is known."""

    digest: bytes
    at: int
    status: int = 0
    headers: dict[str, str] = {}
    body: bytes = b""
    server: str = ""
    seen: Seen = Seen()


class Turn(msgspec.Struct, frozen=True):
    """A request to carry out now. ``again``: an earlier attempt left no answer, and may have carried it out."""

    row: str
    kept: Kept
    again: bool


_decode = msgspec.msgpack.Decoder(Kept).decode
_encode = msgspec.msgpack.Encoder().encode


def place(tenant_id: str, method: str, path: str, key: str) -> str:
    """Returns the part of the place of a key's rows that does not depend on the day. A key is valid for one tenant, method and path."""
    return hashlib.sha256("\x1f".join((tenant_id, method, path, key)).encode("utf-8", "surrogatepass")).hexdigest()


def _day(at: int) -> str:
    return f"t{at // KEPT_US:06}/"


class Answers:
    """The answers in one store, for one server. ``alive`` says whether the process of another server is alive."""

    def __init__(self, shelf: Shelf, now: Callable[[], int], server: str, alive: Callable[[str], Awaitable[Alive]]) -> None:
        self._shelf = shelf
        self._now = now
        self._server = server
        self._alive = alive

    async def begin(self, place: str, data: bytes, see: Callable[[], Awaitable[Seen]]) -> Kept | Turn:
        """Returns the answer that was given under this key, or the turn to carry out the request.

        Raises:
            RequestConflict: the key was used with another body.
            Stopped: another server is processing the request.
        """
        digest = hashlib.sha256(data).digest()
        while True:
            now = self._now()
            rows = await self._rows(place, now)
            found = [kept for _, kept in rows]
            if any(kept.digest != digest for kept in found):
                raise RequestConflict("the Idempotency-Key was used with another body", hint="use another key, or the same body")
            if (answered := next((kept for kept in found if kept.status), None)) is not None:
                return answered
            if found and await self._under_way(found[-1], now):
                raise in_progress()
            mine = Kept(digest, now, server=self._server, seen=found[0].seen if found else await see())
            row = f"{_day(now)}{place}/{int(rows[-1][0].rpartition('/')[2]) + 1 if rows else 0:06}"
            if await self._shelf.add(row, _encode(mine)) is not None:
                continue  # another server was faster
            if _day(self._now()) != _day(now):  # midnight has passed: a server that looked since then has missed this row
                await self._shelf.delete(row)
                continue
            for before, _ in rows:  # the new row has their ``seen``
                await self._shelf.delete(before)
            return Turn(row, mine, bool(found))

    async def _rows(self, place: str, now: int) -> list[tuple[str, Kept]]:
        found: list[tuple[str, Kept]] = []
        for at in (now - KEPT_US, now):
            there = await self._shelf.scan(f"{_day(at)}{place}/")
            found += [(row, kept) for row, data in there if (kept := _decode(data)).at > now - KEPT_US]
        return found

    async def _under_way(self, kept: Kept, now: int) -> bool:
        if kept.server in ("", self._server):  # a request that this server is still processing is refused before this
            return False
        return kept.at > now - HELD_US and await self._alive(kept.server) is not Alive.NO

    async def end(self, turn: Turn, status: int, headers: dict[str, str], body: bytes) -> None:
        """Stores the answer."""
        await self._shelf.put(turn.row, _encode(msgspec.structs.replace(turn.kept, status=status, headers=headers, body=body)))

    async def give_back(self, turn: Turn) -> None:
        """Frees the key, because this attempt did nothing. If an earlier attempt may have done something, only lets go of the reservation."""
        if turn.again:
            await self.let_go(turn)
        else:
            await self._shelf.delete(turn.row)

    async def let_go(self, turn: Turn) -> None:
        """Keeps the reservation without a server, because the request may have been carried out: the server that gets it next finds out."""
        await self._shelf.put(turn.row, _encode(msgspec.structs.replace(turn.kept, server="")))

    async def sweep(self) -> int:
        """Deletes a part of the rows of past days. Returns how many rows it has deleted, 0 when none is left."""
        oldest = _day(self._now() - KEPT_US)
        first = await self._shelf.scan(limit=1)
        return await self._shelf.delete(first[0][0][: len(oldest) + 2]) if first and first[0][0] < oldest else 0


def in_progress() -> Stopped:
    return Stopped(409, "in_progress", "a request with this key is still being processed", hint="wait for its answer, then ask again")


__all__ = ["ANSWERS", "KEPT_US", "Answers", "Kept", "Seen", "Turn", "in_progress", "place"]

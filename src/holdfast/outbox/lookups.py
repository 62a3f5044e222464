"""Looks up host names, each in a thread of its own.

The event loop's own pool has few threads, and a look-up cannot be cancelled: a few names whose servers do not answer would block all of them,
for other receivers and for all else in this process that needs a thread. A caller that asks for a name that is being looked up waits for that
answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading

from holdfast.machine import note_error

Place = tuple[int, str]
"""An address family and an address."""


class Lookups:
    """The look-ups of one process that are in progress."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[asyncio.AbstractEventLoop, str, int], asyncio.Future[list[Place]]] = {}

    async def addresses(self, host: str, port: int) -> list[Place]:
        """Returns the addresses of a host; for an address, that address.

        Raises:
            OSError: the name cannot be resolved now.
            UnicodeError: it is not a valid name.
        """
        with contextlib.suppress(ValueError):
            return [(socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET, host)]
        loop = asyncio.get_running_loop()
        key = (loop, host, port)
        if (found := self._under_way.get(key)) is None:
            found = self._under_way[key] = loop.create_future()
            found.add_done_callback(note_error)
            threading.Thread(target=self._look, args=(key, found), name=f"holdfast-look-up-{host}", daemon=True).start()
        return await asyncio.shield(found)

    def _look(self, key: tuple[asyncio.AbstractEventLoop, str, int], found: asyncio.Future[list[Place]]) -> None:
        loop, host, port = key
        places: list[Place] = []
        failed: Exception | None = None
        try:
            places = [(family, str(place[0])) for family, _, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        except Exception as e:  # raised to the caller
            failed = e

        def tell() -> None:
            self._under_way.pop(key, None)
            if found.done():
                return
            if failed is not None:
                found.set_exception(failed)
            else:
                found.set_result(places)

        try:
            loop.call_soon_threadsafe(tell)
        except RuntimeError:  # the event loop is closed, and nobody waits any more
            self._under_way.pop(key, None)


__all__ = ["Lookups", "Place"]

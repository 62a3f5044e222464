"""A stand-alone server: uvicorn runs the application and shuts down cleanly (§16.9)."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

import uvicorn

from holdfast.api.app import GRACE_SECONDS
from holdfast.core.errors import UsageError

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class Server(uvicorn.Server):
    """Reports its addresses when it listens. After the first signal, open requests are still answered."""

    def __init__(self, config: uvicorn.Config, began: Callable[[str], None], stopping: asyncio.Event, within: AbstractAsyncContextManager[Any]) -> None:
        super().__init__(config)
        self._began = began
        self._stopping = stopping
        self._within = within

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for bound in server.sockets:
                host, port = bound.getsockname()[:2]
                self._began(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._stopping.set()  # streams end now, so that their connections can be closed
        super().handle_exit(sig, frame)

    async def serve(self, sockets: Any = None) -> None:
        with self.capture_signals():
            async with self._within:
                await self._serve(sockets)
        # uvicorn would raise the signal again after serving; this server exits normally

    def capture_signals(self) -> Any:
        return _Handled(self)


class _Handled:
    """Handles signals while the server runs. Does not raise them again afterwards, because everything was closed in the lifespan."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        for number in uvicorn.server.HANDLED_SIGNALS:
            loop.add_signal_handler(number, self._server.handle_exit, number, None)

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in uvicorn.server.HANDLED_SIGNALS:
            loop.remove_signal_handler(number)


def _listens(host: str, port: int) -> None:
    """Refuses an address on which nothing can listen, before anything is opened: uvicorn would only log the system's message and exit."""
    found: list[OSError | None] = []
    try:
        for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            found.append(_try_to_bind(family, kind, protocol, place))
    except OSError as e:
        found.append(e)
    failed = [e for e in found if e is not None]
    taken = next((e for e in failed if e.errno == errno.EADDRINUSE), None)
    if taken is not None:
        raise UsageError(f"port {port} of {host} is taken by another process", hint="--port names another; 0 takes any that is free", code="port_taken") from taken
    if len(failed) == len(found):
        raise UsageError(f"cannot listen on {host} port {port}: {failed[0].strerror or failed[0]}", hint="choose another address with --host and --port") from failed[0]


def _try_to_bind(family: int, kind: int, protocol: int, place: Any) -> OSError | None:
    """Returns why nothing can listen on an address; None if something can."""
    try:
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(place)
    except OSError as e:
        return e
    return None


def run(application: Any, host: str, port: int, began: Callable[[str], None], within: AbstractAsyncContextManager[Any]) -> Coroutine[Any, Any, None]:
    """Serves until a signal stops the server. ``within`` is entered before that, so that its error is raised here: of an error of the application's own
    start, uvicorn would only log the traceback.

    Raises:
        UsageError: nothing can listen there: the port is taken, the address is not one of this machine, or this process may not open it.
    """
    _listens(host, port)
    config = uvicorn.Config(
        application, host=host, port=port, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=GRACE_SECONDS, lifespan="on"
    )
    return Server(config, began, application.state.api.stopping, within).serve()


__all__ = ["LOOPBACK", "run"]

"""The receiver of the demo's release notes, on this machine, for as long as the demo runs.

It takes what is posted to it, and drops a repeated post with the same ``Idempotency-Key``, as a receiver should.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from holdfast.ports import Transport
from holdfast.transports import Webhook

LONGEST = 1_000_000
SECONDS = 5.0
TRANSPORTS: Mapping[str, Transport] = {"announce": Webhook(allow=("127.0.0.1",), timeout=SECONDS)}


class Receiver:
    """Listens between ``__enter__`` and ``__exit__``. ``url`` is empty if it cannot listen here; ``got`` has what was posted, by key."""

    def __init__(self) -> None:
        self.url = ""
        self.got: dict[str, bytes] = {}
        self.requests = 0
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Receiver:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            timeout = SECONDS

            def do_POST(self) -> None:
                length = self.headers.get("Content-Length", "")
                if not length.isdecimal() or int(length) > LONGEST:
                    self.send_error(413)
                    return
                body = self.rfile.read(int(length))
                receiver.requests += 1
                receiver.got.setdefault(self.headers.get("Idempotency-Key", ""), body)
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Logs nothing, because the demo itself says what was received."""

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        except OSError:
            return self
        self.url = f"http://127.0.0.1:{self._server.server_port}/notes"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="holdfast-demo-receiver", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


__all__ = ["TRANSPORTS", "Receiver"]

"""Runs the four programs against one mail server each and counts what the server got.

    uv run --with dbos --with langgraph-checkpoint-sqlite python -m examples.mail_twice

Each program drafts a mail and sends it. The server kills the program (SIGKILL) after the mail has gone out and before it
answers. Then the program is started again, until it ends.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {"plain script": ("plain", None), "LangGraph": ("on_langgraph", "langgraph.checkpoint.sqlite"), "DBOS": ("on_dbos", "dbos"), "Holdfast": ("on_holdfast", "holdfast")}
STARTS = 3


class Server(ThreadingHTTPServer):
    """Counts drafts and mails; kills the first sender after its mail has gone out."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.drafts = 0
        self.mails: list[dict[str, str]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A killed client leaves a broken connection behind; there is nothing to say about it."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/drafts":
            self.server.drafts += 1
            return self._answer({})
        self.server.mails.append(body)
        if len(self.server.mails) == 1:
            os.kill(body["pid"], signal.SIGKILL)
            return None
        return self._answer({"id": str(len(self.server.mails))})

    def do_GET(self) -> None:
        key = parse_qs(urlsplit(self.path).query).get("key", [""])[0]
        found = [str(n) for n, mail in enumerate(self.server.mails, 1) if key and mail["key"] == key]
        self._answer({"id": found[0] if found else None})

    def _answer(self, body: dict[str, object]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """The table says what happened; requests are not printed one by one."""


def play(module: str) -> tuple[int, int, int]:
    """Starts a program until it ends by itself; gives the drafts and mails that the server got, and how often it was started."""
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", f"examples.mail_twice.{module}", str(Path(folder) / "mail.db")]
        env = {**os.environ, "MAIL_SERVER": server.url, "PYTHONPATH": str(ROOT)}
        starts = 0
        done = None
        while starts < STARTS and (done is None or done.returncode == -signal.SIGKILL):
            starts += 1
            done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    server.shutdown()
    server.server_close()
    if done is None or done.returncode:
        raise SystemExit(f"{module} failed:\n{done and done.stderr}")
    return server.drafts, len(server.mails), starts


def main() -> None:
    print(f"{'':14} {'starts':>6} {'drafts':>6} {'mails':>6}")
    for name, (module, needs) in PROGRAMS.items():
        if needs is not None and importlib.util.find_spec(needs.partition(".")[0]) is None:
            print(f"{name:14} not installed here: uv run --with dbos --with langgraph-checkpoint-sqlite python -m examples.mail_twice")
            continue
        drafts, mails, starts = play(module)
        print(f"{name:14} {starts:6} {drafts:6} {mails:6}{'   sent twice' if mails > 1 else ''}")


if __name__ == "__main__":
    main()

"""Wait links: what replaces ``{wait_link}`` in an intent (§5.9).

A link answers the question that the intent's run asks. Its token is HMAC(intent, wait) under a secret that is stored outside the
database, so the token is the same at every attempt: a key that is sent twice never has another body. The store keeps only the token's hash.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from urllib.parse import unquote

from msgspec.structs import replace

from holdfast.core.commit import Settlement
from holdfast.core.errors import UsageError
from holdfast.core.intents import Intent
from holdfast.core.run import Run
from holdfast.core.tokens import Token, hash_secret
from holdfast.core.waits import DEFAULT_DEADLINE_US, Wait
from holdfast.outbox.dispatcher import NotBegun, Shut
from holdfast.outbox.transports import NotConfigured
from holdfast.ports import Store

SECRET = "HOLDFAST_SECRET"
SOON_US = 500_000
LEAST = 16


class Links:
    """Makes the links of one store. ``base_url``: where its pages are reached; without it a link is only a path."""

    def __init__(self, store: Store, base_url: Callable[[], str | None]) -> None:
        self._store = store
        self._base_url = base_url
        self._secret: bytes | None = None

    async def __call__(self, intent: Intent) -> tuple[Intent, str]:
        """Returns the intent, bound to the wait that its link answers, and the link.

        Raises:
            NotConfigured: there is no secret here.
            Shut: the run has no question yet, or never will have one.
        """
        try:
            secret = self._secret = self._secret or secret_of(self._store.url)
        except UsageError as e:
            raise NotConfigured(e) from e
        except OSError as e:
            raise NotConfigured(UsageError(f"the secret of links cannot be read or made: {e}", hint="give this process read and write access to the folder of the store")) from e
        found = await self._store.get(intent.run_id)
        if found is None:
            raise Shut(f"there is no run {intent.run_id} to answer")
        run, _ = found
        if not intent.wait_id:
            intent = await self._bind(intent, run)
        digest = hmac.new(secret, f"{intent.intent_id}\0{intent.wait_id}".encode("utf-8", "surrogatepass"), hashlib.sha256).digest()
        token = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if await self._store.token(hash_secret(token)) is None:
            now = self._store.now()
            wait = next((w for w in run.waits if w.wait_id == intent.wait_id), None)
            until = wait.deadline if wait is not None and wait.deadline is not None else now + DEFAULT_DEADLINE_US
            await self._store.issue_token(Token(hash_secret(token), run.run_id, intent.wait_id, run.tenant_id, _actor(intent, wait), now, until))
        base = (self._base_url() or "").rstrip("/").replace(" ", "%20")  # in a text, a link ends at the first space
        return intent, f"{base}/w/{token}"

    async def _bind(self, intent: Intent, run: Run) -> Intent:
        """Returns the intent with its wait. This is stored before anything is sent, so that later attempts contain the same link."""
        waits = sorted((w for w in run.waits if w.human), key=lambda w: w.requested_at or 0)
        if not waits:
            raise Shut("its run has ended, so there is nothing to answer") if run.terminal else Shut("the run has no open question yet", SOON_US)
        bound = replace(intent, wait_id=waits[0].wait_id)
        if not (await self._store.settle_intents([Settlement(intent, bound)]))[0]:
            raise NotBegun("another process has claimed or settled this message in the meantime")
        return bound


def _actor(intent: Intent, wait: Wait | None) -> str:
    """Returns the actor of an answer by link: the person who was asked, if it is exactly one; else the holder of the link."""
    return wait.who[0] if wait is not None and len(wait.who) == 1 else f"link:{intent.intent_id}"


_of_memory: dict[str, bytes] = {}


def secret_of(url: str) -> bytes:
    """Returns the secret of a store: from a file of mode 0600 beside a store in files, else from ``$HOLDFAST_SECRET``.

    Raises:
        UsageError: there is none, or others can read it.
    """
    if url.startswith("sqlite:///"):
        return _from_file(unquote(url.removeprefix("sqlite:///")) + "-secret")
    if url.startswith("workspace:"):
        return _from_file(os.path.join(unquote(url.removeprefix("workspace:")), ".secret"))
    given = os.environ.get(SECRET, "").encode()
    if url.startswith("memory:"):
        return given or _of_memory.setdefault(url, secrets.token_bytes(32))
    if len(given) < LEAST:
        raise UsageError(f"links need a secret of at least {LEAST} characters", hint=f"set ${SECRET}, the same for all processes of this store")
    return given


def _from_file(path: str) -> bytes:
    if not os.path.exists(path):
        draft = f"{path}.{secrets.token_hex(8)}"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(handle, secrets.token_hex(32).encode())
            os.fsync(handle)
        finally:
            os.close(handle)
        with contextlib.suppress(FileExistsError):  # another process was first: its secret is used
            os.link(draft, path)
        os.unlink(draft)
    if os.stat(path).st_mode & 0o077:
        raise UsageError(f"{path} can be read by others", hint=f"chmod 600 {path}")
    with open(path, "rb") as file:
        found = file.read(1024).strip()
    if len(found) < LEAST:
        raise UsageError(f"{path} holds no secret", hint="delete it: a new one is created, and the links that were sent until then stop working")
    return found


__all__ = ["Links", "secret_of"]

"""Transports: what sends one type of intent to its receiver, and what a transport can declare (§9.1, §9.4).

A transport is a function ``(payload, key)``, or an object with ``send(payload, key)`` and optionally ``dedupes``,
``verify(payload, key)``, ``on_response(intent, answer)``, ``retry``, ``timeout`` and ``limit``, the name of a limit that each sending uses. The exception that it
raises says what happened: ``PermanentError``: refused for good; ``RetryAfter``: try again later; ``MaybeSent``: it may have been sent; any other: it was not sent.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.core.blobs import Blob
from holdfast.core.bounds import amount, check_arguments, function, texts
from holdfast.core.errors import HoldfastError, InvalidInput, MaybeSent, PermanentError, UsageError
from holdfast.core.intents import Sending
from holdfast.core.limits import check_name
from holdfast.core.misused import is_function
from holdfast.core.retry import Retry, coerce
from holdfast.machine import NO_PROGRAM

TIMEOUT_SECONDS = 60.0
OUTPUT_CAP = 1024 * 1024
REFUSED_EXIT = 65  # EX_DATAERR
RETRY = Retry(max_attempts=10)
ALLOWED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER")


class NotConfigured(Exception):
    """This process lacks what an intent needs before it can be sent: a secret, a program. Another may have it, and nothing has happened."""

    def __init__(self, error: HoldfastError) -> None:
        super().__init__(error.message)
        self.error = error


class Intent(Protocol):
    """The fields of a sent intent that a hook gets."""

    intent_id: str
    run_id: str
    type: str
    key: str


class Row(msgspec.Struct, frozen=True):
    """A ledger row that ``on_response`` returns; it is stored together with the outcome of the message."""

    topic: str
    key: str
    data: Any = None


class Signal(msgspec.Struct, frozen=True):
    """A signal to a run; by default to the run that sent the message. Signals with the same ``key`` are delivered once."""

    name: str
    payload: Any = None
    key: str = ""
    run_id: str = ""


class Further(msgspec.Struct, frozen=True):
    """Another outgoing message (intent) that ``on_response`` returns. Its key is the key of the message that was answered, followed by ``:n``."""

    type: str
    payload: Any = None
    order: str = ""


Given = Row | Signal | Further | Blob
Raised = type[BaseException]


class Route(msgspec.Struct, frozen=True):
    """A transport as a dispatcher uses it. ``threaded``: its functions are plain, so each is called in a thread; ``on``: the errors after
    which it is tried again. ``admit`` is called with the store and the intent before each attempt: it returns the limit that this attempt uses, or refuses;
    ``late`` is called with an outcome that came too late to be recorded."""

    type: str
    send: Callable[[Any, str], Any]
    how: Sending
    timeout: float
    threaded: bool
    verify: Callable[[Any, str], Any] | None = None
    on_response: Callable[[Any, Any], Any] | None = None
    limit: str | None = None
    on: tuple[Raised, ...] = (Exception,)
    admit: Callable[[Any, Any], Awaitable[str | None]] | None = None
    late: Callable[[Any, Any], Awaitable[None]] | None = None


def route(type: str, transport: Any) -> Route:
    """Makes the route of a registered transport; its attributes are read once.

    Raises:
        UsageError: it is not a transport.
    """
    send = getattr(transport, "send", None)
    if send is None:
        send = transport
    if not is_function(send):
        raise UsageError(f"the transport of {type!r} is neither a function (payload, key) nor an object with send(payload, key)")
    try:
        inspect.signature(send).bind(None, "")
    except ValueError:
        pass  # a C function without a signature
    except TypeError:
        raise UsageError(f"the transport of {type!r} does not take (payload, key)", hint="def send(payload, key): …") from None
    retry = coerce(getattr(transport, "retry", None) or RETRY)
    verify = getattr(transport, "verify", None)
    timeout, limit = getattr(transport, "timeout", None), getattr(transport, "limit", None)
    how = Sending(bool(getattr(transport, "dedupes", False)), verify is not None, retry.max_attempts, retry.base_us)
    return Route(
        type, send, how, TIMEOUT_SECONDS if timeout is None else float(timeout), not asynchronous(send), verify, getattr(transport, "on_response", None),
        None if limit is None else check_name(limit, f"the limit of the transport of {type!r}"), retry.on, getattr(transport, "admit", None), getattr(transport, "late", None),
    )


def routes(transports: Mapping[str, Any], own: Mapping[str, Route] = {}) -> dict[str, Route]:
    """Returns the routes of a process by type: its transports and its ``own`` routes, but without ``own`` if one of the transports is ``alone``."""
    alone = any(getattr(t, "alone", False) for t in transports.values())
    return {**({} if alone else own), **{type: route(type, transport) for type, transport in transports.items()}}


def asynchronous(function: Callable[..., Any]) -> bool:
    """Whether the result of a function has to be awaited, as far as that can be said before it is called."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))


def read_given(answer: Any) -> list[Given]:
    """Returns what a hook returned, as values; a mapping stands for the value whose fields it has.

    Raises:
        InvalidInput: it is not one of these.
    """
    items = answer if isinstance(answer, list | tuple) else [] if answer is None else [answer]
    return [item if isinstance(item, Row | Signal | Further | Blob) else _value(item) for item in items]


def _value(item: Any) -> Given:
    if isinstance(item, Mapping):
        for kind, mark in ((Row, "topic"), (Signal, "name"), (Further, "type")):
            if mark in item:
                try:
                    return kind(**item)
                except TypeError as e:
                    raise InvalidInput(f"on_response returned a mapping that is not a valid {kind.__name__}: {e}") from None
    raise InvalidInput(
        f"on_response returned {type(item).__name__}", hint="return Row, Signal or Further of holdfast.transports, a list of them, or None"
    )


class Function:
    """A plain function as a transport, with its options: ``Function(send_mail, retry=3, timeout=5, dedupes=True)``.

    Args:
        send: a function ``(payload, key)``, plain or async.
        dedupes: whether the receiver drops a repeated key.
        retry: the number of attempts before the message is ``dead``, or a ``Retry``; its ``on`` names the errors after which another
            attempt is made.
        timeout: seconds.
        limit: the name of the limit that each attempt counts against.
        verify: asked after a sender died during an attempt: ``verify(payload, key)`` returns ``Happened(answer)``, ``Absent()`` or
            ``Unknown()``.
        on_response: a function that is called with the message and the receiver's answer; it may return ``Row``, ``Signal`` or ``Further``,
            or a list of them.
    """

    @check_arguments(send=function, verify=function, on_response=function, timeout=amount, limit=check_name, retry=coerce)
    def __init__(
        self,
        send: Callable[[Any, str], Any],
        *,
        dedupes: bool = False,
        retry: Retry | int | None = None,
        timeout: float | None = None,
        limit: str | None = None,
        verify: Callable[[Any, str], Any] | None = None,
        on_response: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self.send = send
        self.dedupes = dedupes
        self.retry = retry
        self.timeout = timeout
        self.limit = limit
        self.verify = verify
        self.on_response = on_response


class Subprocess:
    """Runs a command for each outgoing message (intent): the payload is JSON on its standard input, the key is in
    ``$HOLDFAST_IDEMPOTENCY_KEY``.

    Exit code 0 means sent, 65 permanently refused, any other a temporary failure. The text on standard output is kept as the answer.
    """

    @check_arguments(argv=texts, timeout=amount, env=texts)
    def __init__(self, argv: Sequence[str], *, dedupes: bool = False, timeout: float = TIMEOUT_SECONDS, env: Sequence[str] = ()) -> None:
        if not argv:
            raise InvalidInput("argv is empty", field="argv", hint='Subprocess(["sendmail", "-t"])')
        self._argv = tuple(argv)
        self._env = (*ALLOWED, *env)
        self.dedupes = dedupes
        self.timeout = timeout

    async def send(self, payload: Any, key: str) -> Any:
        """Runs the command with the payload as JSON on its standard input and the key in ``$HOLDFAST_IDEMPOTENCY_KEY``; returns its
        standard output."""
        env = {n: os.environ[n] for n in self._env if n in os.environ} | {"HOLDFAST_IDEMPOTENCY_KEY": key}
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(*self._argv, env=env, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        except OSError as e:
            if e.errno not in NO_PROGRAM:
                raise
            raise NotConfigured(UsageError(f"{self._argv[0]} cannot be run here", hint="install it, or name its path")) from None
        try:
            out, err, _ = await asyncio.gather(_read(process.stdout), _read(process.stderr), _feed(process.stdin, msgspec.json.encode(payload)))
            code = await process.wait()
        except BaseException:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            await process.wait()
            raise
        said = err.decode("utf-8", "replace").strip()[-500:]
        if code == REFUSED_EXIT:
            raise PermanentError(f"{self._argv[0]} refused it: {said}")
        if code < 0:
            raise MaybeSent(f"{self._argv[0]} was killed by signal {-code}")
        if code != 0:
            raise OSError(f"{self._argv[0]} ended with {code}: {said}")
        return out.decode("utf-8", "replace").replace("\0", "\ufffd")


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    """Reads a stream and returns up to the cap; the rest is read and dropped."""
    assert stream is not None
    kept = bytearray()
    while chunk := await stream.read(64 * 1024):
        kept += chunk[: OUTPUT_CAP - len(kept)]
    return bytes(kept)


async def _feed(stream: asyncio.StreamWriter | None, data: bytes) -> None:
    assert stream is not None
    try:
        stream.write(data)
        await stream.drain()
        stream.close()
        await stream.wait_closed()
    except (BrokenPipeError, ConnectionResetError):
        return  # a command need not read its input


__all__ = ["Function", "Further", "Given", "NotConfigured", "Route", "Row", "Signal", "Subprocess", "asynchronous", "read_given", "route", "routes"]

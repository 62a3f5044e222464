"""Commands that serve the store: over HTTP, to MCP clients; and the tokens for both."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import threading
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import click

from holdfast import logs, machine
from holdfast.access import SHELF, Access, FileTokens, Issued, Scope, Tokens, Unauthorized
from holdfast.cli import extras, leaving, targets
from holdfast.cli import output as o
from holdfast.cli.session import Call, export, handling, login, options, over
from holdfast.cli.times import lasting
from holdfast.core import bounds
from holdfast.core.errors import InvalidInput, StoreError, UsageError
from holdfast.core.views import iso
from holdfast.handle import when
from holdfast.runtime import Runtime

HOSTS = frozenset({"127.0.0.1", "::1", "[::1]", "localhost"})


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@click.command()
@click.argument("target", nargs=-1)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Where to listen.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8321, show_default=True, metavar="PORT", help="0 takes a free one.")
@click.option("--no-auth", is_flag=True, help="Ask for no token; on loopback only.")
@click.option("--open-metrics", is_flag=True, help="Let /metrics be read without a token.")
@click.option("--no-pages", is_flag=True, help="Serve the API alone.")
@click.option("--public-url", metavar="URL", help="The URL that browsers use, if there is a proxy; also used in the links that are sent to people.")
@click.option("--token-file", type=click.Path(dir_okay=False), metavar="F", help="A file of tokens, one a line, that are valid in addition to those of the store.")
@click.option("--log", "log_format", type=click.Choice(sorted(logs.FORMATS)), help="Log requests and decisions to standard error, as text or as JSON lines.")
@options(data=False, drives=True)
def serve(
    call: Call, target: tuple[str, ...], host: str, port: int, no_auth: bool, open_metrics: bool, no_pages: bool, public_url: str | None, token_file: str | None,
    log_format: str | None,
) -> int:
    """Serve the API and the operator's pages.

    With TARGETs it creates and executes runs. Without them it shows runs and records decisions, signals, cancels, forks and replays, and needs none of your code.
    """
    if no_auth and not _is_loopback(host):
        raise UsageError(f"--no-auth is allowed only on loopback, and {host} is not a loopback address", hint="use --host 127.0.0.1, or leave out --no-auth and make a token: holdfast token create --scopes view")
    if no_auth and token_file is not None:
        raise UsageError("--no-auth and --token-file cannot be combined", hint="give one of them")
    public_url = None if public_url is None else bounds.address(public_url, "public_url")
    api, server = extras.api, extras.server
    chosen = targets.skills(targets.several(target)) if target else []
    rt = Runtime(call.store, skills=chosen, lease=call.lease, base_url=public_url)
    tokens = None if token_file is None else FileTokens(Path(token_file), lambda: Tokens(rt.shelf(SHELF)))
    if log_format is not None:
        logs.show(log_format)

    exporting = export(rt)
    listening = asyncio.Event()

    async def tell_how_to_log_in() -> None:
        await listening.wait()
        with contextlib.suppress(StoreError):  # a client that sends a token gets the error
            if not await Tokens(rt.shelf(SHELF)).all():
                click.echo(f"the store has no token yet, so nobody can log in: {call.line('token', 'create', '--scopes', 'view,decide')}", err=True)

    async def drives(stop: asyncio.Event) -> None:
        telling = asyncio.ensure_future(tell_how_to_log_in()) if tokens is None and not no_auth else None
        async with exporting:
            await (rt.worker(stop=stop) if chosen else stop.wait())
        if telling is not None:
            telling.cancel()

    made = api.app(
        rt, tokens=False if no_auth else tokens, pages=not no_pages, open_metrics=open_metrics, drives=drives,
        hosts=sorted({*HOSTS, f"[{host}]" if ":" in host else host}) if no_auth else None, public_url=public_url,
    )

    def began(url: str) -> None:
        machine.settle()
        names = f", executes {', '.join(dict.fromkeys(s.id for s in chosen))}" if chosen else ""
        click.echo(f"serving {call.shown} at {url}{names}" + (", without tokens" if no_auth else ""), err=True)
        listening.set()

    async def whole() -> None:
        leaving.watch_threads()
        ending = asyncio.ensure_future(made.state.api.stopping.wait())
        ending.add_done_callback(lambda _: leaving.note_signal())  # nothing else ends it
        await server.run(made, host, port, began, rt)

    asyncio.run(whole())
    return 0


@click.command()
@click.argument("target", nargs=-1)
@click.option("--token-file", type=click.Path(dir_okay=False), metavar="F", help="A file with the client's access token.")
@click.option("--scopes", default="view", show_default=True, metavar="S,…", help="Without a token: what the client may do: view, submit, decide, cancel.")
@click.option("--actor", default=login, metavar="NAME", help="Without a token: the name that is recorded for what it does. [default: you]")
@options(data=False, drives=True)
def mcp(call: Call, target: tuple[str, ...], token_file: str | None, scopes: str, actor: str) -> int:
    """Serve runs, waits and decisions to an MCP client.

    An MCP client starts this command and speaks with it on standard input and output. With TARGETs it also executes runs.
    With --token-file the client may do what the token allows, to the runs of the token's tenant, for as long as the token is valid.
    """
    made = extras.mcp
    actor = bounds.text(actor, "actor", bounds.NOTE_BYTES)
    wanted = _scopes(scopes, made.SCOPES)
    given = None if token_file is None else _read_token(token_file)
    if given is not None and call.missing is not None:
        raise _refuse_token()  # no token is valid in a store that does not exist yet
    chosen = targets.skills(targets.several(target)) if target else []

    async def act(rt: Runtime) -> None:
        if given is None:
            server = made.server(rt, actor=actor, scopes=wanted)
        else:
            access = await _access(rt, given)
            allowed = made.SCOPES if Scope.ADMIN in access.scopes else tuple(s for s in made.SCOPES if s in access.scopes)

            async def check() -> None:
                if not await Tokens(rt.shelf(SHELF)).holds(access, now=rt.store.now()):
                    raise Unauthorized("the token is revoked or expired", hint="holdfast token create")

            server = made.server(rt, actor=access.actor, scopes=allowed, tenant_id=access.tenant, check=check)
        stop = asyncio.Event()
        machine.settle()
        driving = asyncio.ensure_future(rt.worker(stop=stop)) if chosen else None
        click.echo(f"serving {call.shown} to an MCP client on standard input and output", err=True)
        end = _relay()
        try:
            with handling(asyncio.get_running_loop(), lambda _: end()):
                await server.run_stdio_async()
        finally:
            stop.set()
            if driving is not None:
                await driving

    over(call, act, chosen, make=True)
    return 0


def _relay() -> Callable[[], None]:
    """Puts a pipe between standard input and its reader, because nothing else can end a read that waits. Returns the function that ends it."""
    inlet = os.dup(0)
    outlet, relay = os.pipe()
    os.dup2(outlet, 0)
    os.close(outlet)
    ended = threading.Lock()

    def end() -> None:
        if ended.acquire(blocking=False):
            os.close(relay)

    def copy() -> None:
        with contextlib.suppress(OSError):  # the other side has ended
            while data := os.read(inlet, 65_536):
                while data:
                    data = data[os.write(relay, data) :]
        end()

    threading.Thread(target=copy, name="holdfast-stdin", daemon=True).start()
    return end


def _split_scopes(text: str) -> list[str]:
    return [s.strip() for s in text.split(",") if s.strip()]


def _scopes(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the scopes that an option names.

    Raises:
        UsageError: a word is no known scope, or there is none.
    """
    words = tuple(_split_scopes(text))
    if odd := set(words) - set(known):
        raise UsageError(f"the scope {min(odd)!r} is not known", hint="scopes: " + ", ".join(known))
    if not words:
        raise UsageError("--scopes names no scope", hint="scopes: " + ", ".join(known))
    return words


def _read_token(file: str) -> str:
    try:
        return Path(file).read_text("utf-8").strip()
    except (OSError, ValueError) as e:
        raise InvalidInput(f"--token-file cannot be read: {e}", field="token_file", hint="holdfast token create --scopes view > F") from e


async def _access(rt: Runtime, text: str) -> Access:
    """Returns the access that a token gives.

    Raises:
        Unauthorized: the token is unknown, revoked or expired.
    """
    found = await Tokens(rt.shelf(SHELF)).find(text, now=rt.store.now())
    if found is None:
        raise _refuse_token()
    return found


def _refuse_token() -> Unauthorized:
    return Unauthorized("the token in the file is not known here, revoked or expired", hint="holdfast token create --scopes view > F")


@click.group()
def token() -> None:
    """Create, list and revoke the tokens that the API asks for."""


def _show(access: Access) -> dict[str, Any]:
    return {
        "id": access.id,
        "tenant_id": access.tenant_id,
        "scopes": [str(s) for s in access.scopes],
        "actor": access.actor,
        "created_at": iso(access.created_at),
        "expires_at": iso(access.expires_at),
        "revoked_at": iso(access.revoked_at),
    }


@token.command("create")
@click.option("--scopes", required=True, metavar="S,…", help="What it allows: " + ", ".join(Scope) + ".")
@click.option("--tenant", default="default", show_default=True, metavar="T", help="The tenant whose runs it may access; * means all tenants.")
@click.option("--expires", default="90d", show_default=True, metavar="T", help="How long it is valid: 12h, 90d, or never.")
@click.option("--actor", default=login, metavar="NAME", help="The name that is recorded for what it does. [default: you]")
@options()
def create(call: Call, scopes: str, tenant: str, expires: str, actor: str) -> int:
    """Create a token; it is printed once and kept as a hash."""
    span = None if expires == "never" else lasting(expires)
    if span is not None and span < dt.timedelta(seconds=1):
        raise InvalidInput(f"a token that is valid for {expires} is never valid", field="expires", hint="12h, 90d, or never")

    async def act(rt: Runtime) -> Issued:
        now = rt.store.now()
        until = None if span is None else now + span // dt.timedelta(microseconds=1)
        return await Tokens(rt.shelf(SHELF)).create(_split_scopes(scopes), now=now, tenant_id=tenant, actor=actor, expires_at=until)

    made = over(call, act, make=True, tried=act)
    a = made.access
    if call.as_json:
        o.emit({"id": a.id, "token": made.token, "tenant_id": a.tenant_id, "scopes": [str(s) for s in a.scopes], "expires_at": iso(a.expires_at), "actor": a.actor})
        return 0
    click.echo(made.token)
    click.echo(o.paint(f"{a.id}: {', '.join(a.scopes)} for tenant {o.inline(a.tenant_id)} as {o.inline(a.actor)}. The token above is shown only once", dim=True), err=True)
    return 0


@token.command("list")
@options()
def list_(call: Call) -> int:
    """List the tokens (the secrets themselves are not stored)."""

    async def act(rt: Runtime) -> tuple[list[Access], int]:
        return await Tokens(rt.shelf(SHELF)).all(), rt.store.now()

    found, now = over(call, act)
    if call.as_json:
        o.emit({"tokens": [_show(a) for a in found], "next_cursor": None})
        return 0
    if not found:
        click.echo("no tokens")
        return 0
    o.table(
        ["token", "tenant", "acts as", "created", "expires", "scopes"],
        [
            [a.id, o.inline(a.tenant_id, 24), o.inline(a.actor, 24), o.ago(when(a.created_at), when(now)), _until(a, now), " ".join(a.scopes)]
            for a in found
        ],
    )
    return 0


def _until(access: Access, now: int) -> str:
    if access.revoked_at is not None:
        return "revoked"
    return "never" if access.expires_at is None else o.ago(when(access.expires_at), when(now))


@token.command("revoke")
@click.argument("token_id", metavar="ID")
@options()
def revoke(call: Call, token_id: str) -> int:
    """Revoke a token; the next request with it is refused."""

    async def act(rt: Runtime) -> Access:
        return await Tokens(rt.shelf(SHELF)).revoke(token_id, now=rt.store.now())

    found = over(call, act)
    if call.as_json:
        o.emit(_show(found))
    else:
        click.echo(f"{found.id} is revoked")
    return 0


COMMANDS = (serve, mcp, token)

"""The application, which answers requests (§16). It decides nothing: every row of the route table turns a request into a verb of the runtime.

Theory of operation. One function serves every row: it finds out who calls, checks the scope, decodes the query and the body, calls the row's handler,
and sends the answer or the problem. A POST with an ``Idempotency-Key`` is reserved in the store before it is carried out, and its answer is stored
there afterwards (``answers``). What was seen before it was carried out is stored too, so that nothing is repeated if a server dies in between
(decisions 0049 and 0072).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from importlib.metadata import version
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Match

from holdfast import logs, meters
from holdfast.access import NOBODY, SHELF, Access, Known, Scope, Tokens, Unauthorized, check_site
from holdfast.api import bodies, metrics, openapi, streams
from holdfast.api.answers import ANSWERS, Answers, Kept, Seen, in_progress, place
from holdfast.api.boards import Boards
from holdfast.api.problems import Stopped, headers, problem, status_of
from holdfast.api.table import ROUTES, Answer, Call, Route, await_start, names_tag
from holdfast.callers import acting
from holdfast.core.bounds import address, text
from holdfast.core.errors import HoldfastError, InvalidInput, StoreError
from holdfast.engine.look.following import Cursor, modes_of
from holdfast.engine.look.looker import Wanted
from holdfast.engine.look.sources import SharedSource
from holdfast.meters import Meter
from holdfast.ports import offers_shelves
from holdfast.protocols import PROTOCOLS
from holdfast.runtime import Runtime
from holdfast.ui import SESSIONS, Pages, sweep
from holdfast.ui.requests import Path, read_length, read_path, read_place, turn_slash

log = logs.logger("holdfast.api")
log.logger.addHandler(logs.LastResort(level=logging.ERROR))
GRACE_SECONDS = 20
"""How long a server that is shutting down may take to answer open requests and to bring its runs to a safe boundary."""
SWEEP_US = 3600 * 1_000_000
SWEEP_SECONDS = 60.0
TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/@\[\]]+)(?::[0-9]+)?")
_encode = msgspec.json.Encoder().encode


class Api:
    """What the rows share: the runtime, the tokens, and the work in progress."""

    def __init__(self, rt: Runtime, tokens: Known | Mapping[str, Access] | bool | None, *, open_metrics: bool = False, public_url: str | None = None) -> None:
        self.rt = rt
        self._public_url = public_url
        self.open_metrics = open_metrics
        self.stopping = asyncio.Event()
        self.jobs: set[asyncio.Task[Any]] = set()
        self.pages: Pages | None = None
        self._given = tokens
        self._doing: set[str] = set()
        self._driver: asyncio.Task[None] | None = None
        self._meter: Meter | None = None
        self._swept: int | None = None
        self._wires = streams.Wires(SharedSource(rt.store, rt.look))
        self._boards = Boards(rt.store, rt.look, streams.encode_run)
        self.counting = contextlib.ExitStack()

    @property
    def asks(self) -> bool:
        """Whether requests need a token."""
        return self._given is not False

    @property
    def _tokens(self) -> Known:
        return Tokens(self.rt.shelf(SHELF)) if self._given is None or isinstance(self._given, bool | Mapping) else self._given

    @property
    def answers(self) -> Answers:
        """The answers that were given under keys."""
        return Answers(self.rt.shelf(ANSWERS), self.rt.store.now, self.rt.owner, self.rt.store.owner_alive)

    def meter(self) -> Meter:
        """Returns the metrics of this process. They are counted from the first call on."""
        if self._meter is None:
            self._meter = self.counting.enter_context(meters.on())
        return self._meter

    def drive(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts the coroutine that executes runs beside the server. If it ends before the server does, that is logged at once, and the server is not ready."""
        self._driver = asyncio.ensure_future(work)
        self._driver.add_done_callback(self._note_end)
        return self._driver

    def _note_end(self, driver: asyncio.Task[None]) -> None:
        failed = None if driver.cancelled() else driver.exception()
        if failed is not None or not self.stopping.is_set():
            how = "was cancelled" if driver.cancelled() else "has ended" if failed is None else f"failed: {type(failed).__name__}"
            log.error("the worker beside the server %s; the server executes no runs", how, exc_info=failed)

    async def sweep(self) -> None:
        """Deletes the answers of past days and the sessions that have ended, a few at a time. If the store fails, a later sweep tries again."""
        now, gone = self.rt.store.now(), 1
        if not offers_shelves(self.rt.store):
            return
        after: str | None = ""
        try:
            while gone and not self.stopping.is_set():
                gone = await self.answers.sweep()
                await asyncio.sleep(0)
            while after is not None and not self.stopping.is_set():
                after = await sweep(self.rt.shelf(SESSIONS), now, after)
        except HoldfastError as e:
            log.warning("old answers and sessions are not deleted yet: %s", e)

    def tidy(self) -> None:
        """Starts a sweep in the background, at most once an hour by the store's clock."""
        now = self.rt.store.now()
        if self._swept is None or now - self._swept >= SWEEP_US:
            self._swept = now
            job = asyncio.ensure_future(self.sweep())
            self.jobs.add(job)
            job.add_done_callback(self.jobs.discard)

    async def keep_tidy(self) -> None:
        """Checks once a minute whether a sweep is due, until the server stops."""
        while not self.stopping.is_set():
            self.tidy()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), SWEEP_SECONDS)

    async def find(self, token: str) -> Access | None:
        """Returns the access of a token; None if the token is not known or not valid."""
        self.tidy()
        if isinstance(self._given, Mapping):
            return self._given.get(token)
        return await self._tokens.find(token, now=self.rt.store.now())

    async def holds(self, access: Access) -> bool:
        """Whether a token that was accepted before is still valid."""
        if isinstance(self._given, Mapping):
            return access in self._given.values()
        return await self._tokens.holds(access, now=self.rt.store.now())

    async def access(self, request: Request) -> Access:
        """Returns the access of the caller. A session of the pages may read what the pages link to; only a token may act (decision 0113).

        Raises:
            Unauthorized: the request has no valid token; the message is the same whatever is wrong with it.
        """
        if not self.asks:
            return NOBODY
        given = request.headers.get("authorization")
        if given is None and self.pages is not None and request.method in ("GET", "HEAD"):
            found = await self.pages.access(request)
        else:
            kind, _, token = (given or "").partition(" ")
            found = await self.find(token.strip()) if kind.lower() == "bearer" else None
        if found is None:
            raise Unauthorized("a valid token is needed; the one given is missing, unknown, expired or revoked", hint="Authorization: Bearer TOKEN; holdfast token create")
        return found

    # -- one request --------------------------------------------------------------------------------

    async def serve(self, route: Route, request: Request) -> Response:
        run_id = request.path_params.get("run_id")
        try:
            return await self._serve(route, request)
        except HoldfastError as e:
            return answer_failure(e, run_id)

    async def _serve(self, route: Route, request: Request) -> Response:
        access = NOBODY
        if route.scope is not None and not (route.path == "/metrics" and self.open_metrics):
            access = await self.access(request)
            access.need(route.scope)
        with acting("" if route.scope is None else access.id):
            return await self._carry_out(route, request, access)

    async def _carry_out(self, route: Route, request: Request, access: Access) -> Response:
        if route.method == "POST" and not self.asks:  # without tokens, any web page could make a browser act; a browser never adds a token by itself
            check_site(request.headers, self._public_url)
        if route.body is not None and not route.matches and request.headers.get("if-match", "*").strip() != "*":
            raise Stopped(412, "no_etag", "this request is not about one run, so that no ETag can be compared", hint="leave out If-Match")
        for name, value in request.path_params.items():
            text(value, name)
        query = bodies.convert(_query(request), route.query, strict=False)
        if route.handler is None:
            return await self._special(route, request, access, query)
        if route.body is None:
            return self._answer(request, await route.handler(self._call(request, access, query, None, None)))
        data = await _body(request)
        body = bodies.decode(data, route.body)
        key = request.headers.get("idempotency-key")
        if key is None:
            return self._answer(request, await route.handler(self._call(request, access, query, body, None)))
        return await self._once(route, request, access, text(key, "Idempotency-Key"), data, lambda seen, again: self._call(request, access, query, body, key, seen, again))

    def _call(self, request: Request, access: Access, query: Any, body: Any, key: str | None, seen: Seen | None = None, again: bool = False) -> Call:
        return Call(
            rt=self.rt, access=access, path=request.path_params, query=query, body=body, key=key, seen=seen, again=again,
            trace=_trace(request.headers.get("traceparent", "")), match=request.headers.get("if-match"), jobs=self.jobs, stopping=self.stopping,
        )

    def _answer(self, request: Request, answer: Answer) -> Response:
        if request.method in ("GET", "HEAD") and "ETag" in answer.headers and names_tag(request.headers.get("if-none-match", ""), answer.headers["ETag"]):
            return Response(status_code=304, headers=dict(answer.headers))
        return Response(_encode(answer.value), answer.status, dict(answer.headers), "application/json")

    async def _once(self, route: Route, request: Request, access: Access, key: str, data: bytes, call: Callable[[Seen | None, bool], Call]) -> Response:
        """Answers a POST under a key: with the first answer again, or by carrying it out and storing the answer."""
        where = place(access.tenant_id, request.method, read_path(request.scope), key)
        if where in self._doing:
            raise in_progress()
        self._doing.add(where)
        try:
            turn = await self.answers.begin(where, data, lambda: route.sees(call(None, False)))
            if isinstance(turn, Kept):
                return Response(turn.body, turn.status, {**turn.headers, "Idempotent-Replayed": "true"}, "application/json")
            assert route.handler is not None
            try:
                response = self._answer(request, await route.handler(call(turn.kept.seen, turn.again)))
            except Exception as e:
                if isinstance(e, HoldfastError) and not isinstance(e, StoreError):
                    await self.answers.give_back(turn)
                else:  # the request may have been carried out, so the key stays taken
                    with contextlib.suppress(StoreError):
                        await self.answers.let_go(turn)
                raise
            said = {k: v for k, v in response.headers.items() if k in ("etag", "location")}
            await self.answers.end(turn, response.status_code, said, bytes(response.body))
            self.tidy()
            return response
        finally:
            self._doing.discard(where)

    # -- rows without a handler ---------------------------------------------------------------------

    async def _special(self, route: Route, request: Request, access: Access, query: Any) -> Response:
        match route.path:
            case "/v1/openapi.json":
                return Response(_encode(openapi.document(version("holdfast"))), media_type="application/json")
            case "/v1/ready":
                if self.stopping.is_set():
                    raise Stopped(503, "draining", "the server is shutting down", hint="ask another one")
                if self._driver is not None and self._driver.done():
                    raise Stopped(503, "not_executing", "the worker beside the server has ended, so that the server executes no runs", hint="the server's log says why; restart the server")
                await self.rt.store.schedules(0)
                return Response(_encode(bodies.Health(status="ready")), media_type="application/json")
            case "/metrics":
                return PlainTextResponse(await metrics.text(self.rt, access.tenant, self.meter()), media_type="text/plain; version=0.0.4")
            case "/v1/stream":
                wanted = Wanted(
                    tenant_id=access.tenant, status=query.status, condition=query.condition, skill_id=query.skill_id, thread_id=query.thread_id, tag=query.tag, limit=500
                )
                await self.rt.look.find(msgspec.structs.replace(wanted, limit=1), values=False)
                return _streaming(request, streams.many(self._boards, wanted, self._beat(request)), {})
        run_id = request.path_params["run_id"]
        run, _ = await self.rt.look.find_row(run_id, access.tenant)
        last = request.headers.get("last-event-id")
        after = _find_start(query.after, last)
        if after is not None:
            Cursor.read(after).check(run, "Last-Event-ID" if after == last else "after")
        modes = modes_of([m.strip() for m in query.modes.split(",")]) if query.modes else frozenset(("events", "custom"))
        if query.protocol is not None:
            encoder = PROTOCOLS[query.protocol](run.run_id, run.thread_id)
            return _streaming(request, streams.speak(self.rt, self._wires, run_id, access, after, self._beat(request), encoder), encoder.headers)
        return _streaming(request, streams.one(self.rt, self._wires, run_id, access, after, modes, self._beat(request)), {})

    def _beat(self, request: Request) -> streams.Beat:
        async def may_go_on() -> bool:
            try:
                (await self.access(request)).need(Scope.VIEW)
            except HoldfastError:
                return False
            return True

        return streams.Beat(may_go_on, self.stopping)


def _trace(context: str) -> str | None:
    """Returns the trace id of a ``traceparent`` header; None if it is invalid. By the rules of W3C, a later version may append fields, version 00 may not."""
    found = TRACEPARENT.fullmatch(context)
    return None if found is None or (found[1] == "00" and found[3]) else found[2]


def _find_start(after: str | None, last: str | None) -> str | None:
    """Returns where a stream begins. A browser that reconnects requests the same address as at first, and sends the id of the last event that it had.
    That id counts, unless the address names a chunk after that event."""
    begins = Cursor.read(after) if after else None
    had = Cursor.read(last, "Last-Event-ID") if last else None
    if begins is None or had is None:
        return after or last or None
    return after if begins.serial >= 0 and msgspec.structs.astuple(begins) > msgspec.structs.astuple(had) else last


def _query(request: Request) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in found:
            raise InvalidInput(f"the parameter {name!r} is given twice", field=name)
        found[name] = text(value, name, 4096, empty=True)
    return {n: v for n, v in found.items() if v != ""}


async def _body(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if read_length(request.headers) > bodies.MOST_BYTES:
        raise Stopped(413, "too_large", f"the body is larger than {bodies.MOST_BYTES} bytes", hint="keep large values outside and pass a reference")
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > bodies.MOST_BYTES:
            raise Stopped(413, "too_large", f"the body is larger than {bodies.MOST_BYTES} bytes", hint="keep large values outside and pass a reference")
    if kind != "application/json" and (data or kind):  # an empty HTML form has a type too, and is refused
        raise Stopped(415, "unsupported_media_type", f"the body must be application/json, not {kind[:80] or 'of no type'}", hint="Content-Type: application/json")
    return bytes(data)


def _streaming(request: Request, source: AsyncIterator[bytes], more: Mapping[str, str]) -> Response:
    """Returns a stream. A HEAD request gets only the headers, because nobody would end the stream."""
    media, headers = "text/event-stream", {"Cache-Control": "no-store", "X-Accel-Buffering": "no", **more}
    if request.method != "HEAD":
        return StreamingResponse(source, media_type=media, headers=headers)
    answer = Response(media_type=media, headers=headers)
    del answer.headers["content-length"]
    return answer


def answer_failure(error: HoldfastError, run_id: str | None = None) -> Response:
    """Returns the response for an error: its problem."""
    status = status_of(error)
    return Response(_encode(problem(error, run_id)), status, headers(error, status), "application/problem+json")


class Envelope:
    """Adds to every answer the request id of the caller, and headers that keep browsers from guessing content types. Logs one line for each request."""

    def __init__(self, app: Any, prefix: str = "") -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._prefix and not scope.get("root_path"):
            if f"{scope['path']}/".startswith(self._prefix + "/"):
                scope = {**scope, "root_path": self._prefix}
            else:  # the proxy has removed the prefix
                scope = {**scope, "root_path": self._prefix, "path": self._prefix + scope["path"], "raw_path": quote(self._prefix).encode() + scope.get("raw_path", b"")}
        base = scope.get("root_path", "").encode()
        given = dict(scope["headers"]).get(b"x-request-id", b"")
        mark = given if 0 < len(given) <= 128 and given.isascii() and given.decode().isprintable() else uuid.uuid4().hex.encode()
        began = False

        async def sending(message: Any) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                found = [(n, base + v if n == b"location" and v.startswith(b"/") else v) for n, v in message["headers"]]
                message["headers"] = [*found, (b"x-request-id", mark), (b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer")]
                log.info("%s %s %s", scope["method"], message["status"], mark.decode())
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except ClientDisconnect:  # the client is gone; the answer is for the log and for a proxy
            if not began:
                await answer_failure(Stopped(400, "bad_request", "the connection has ended before the body did"))(scope, receive, sending)
        except Exception as e:  # a bug here: the log gets the whole error, the caller only learns that there was one
            log.exception("%s failed: %s", mark.decode(), type(e).__name__)
            if not began:
                await answer_failure(Stopped(500, "internal", "something went wrong here", hint=f"the server's log shows the error under {mark.decode()}"))(scope, receive, sending)


def app(
    rt: Runtime, *, tokens: Known | Mapping[str, Access] | bool | None = None, pages: bool = True, open_metrics: bool = False,
    drives: Callable[[asyncio.Event], Coroutine[Any, Any, None]] | None = None, hosts: Sequence[str] | None = None, public_url: str | None = None,
) -> Starlette:
    """The API of a runtime as an ASGI application, on its own or mounted in another, as in ``Mount("/ops", holdfast.api.app(rt))``.

    New runs and decisions are only recorded, and workers execute the runs, even if this runtime has the skill. A resume executes its run here.

    Args:
        rt: an open runtime. The application does not close it.
        tokens: by default those of the store; False asks for none and is for loopback only; a mapping gives each token its ``Access``.
        pages: whether the operator's pages are served too.
        open_metrics: whether ``/metrics`` needs no token.
        hosts: the host names that requests may use (the ``Host`` header); by default any. Set it if ``tokens`` is False, so that another web site
            cannot reach the API through a name of its own for this machine.
        public_url: where browsers reach it, behind a proxy: its path is put before the links of pages, and with ``https`` cookies are
            sent over TLS only. The proxy may strip that path or pass it on.
        drives: an async function that runs beside the server, such as a worker. It gets an event, and returns after the event is set.
            If it ends before, the error is logged and ``/v1/ready`` answers 503.
    """
    public_url = None if public_url is None else address(public_url, "public_url")
    api = Api(rt, tokens, open_metrics=open_metrics, public_url=public_url)
    by_path: dict[str, dict[str, Route]] = {}
    for route in ROUTES:
        by_path.setdefault(route.path, {})[route.method] = route

    def endpoint(rows: dict[str, Route]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            row = rows["GET" if request.method == "HEAD" else request.method]
            return await api.serve(row, request)

        return answer

    routes: list[BaseRoute] = [Path(path, endpoint(rows), methods=list(rows)) for path, rows in by_path.items()]
    if pages:
        routes += make_pages(api, public_url)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        stop = asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            if not rt.opened:
                await stack.enter_async_context(rt)
            worker = api.drive(drives(stop)) if drives is not None else None

            async def end() -> float:
                """Waits until the server is told to stop, then stops executing runs, while requests are still answered.

                Returns the time of the event loop at which both must be done.
                """
                await api.stopping.wait()
                stop.set()
                rt.drain()
                return asyncio.get_running_loop().time() + GRACE_SECONDS

            ending = asyncio.ensure_future(end())
            tidying = asyncio.ensure_future(api.keep_tidy())
            try:
                yield
            finally:
                api.stopping.set()
                api.counting.close()
                left = await ending - asyncio.get_running_loop().time()
                await asyncio.wait([tidying, *api.jobs, *([worker] if worker is not None else [])], timeout=max(0, left))

    made = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _no_route})
    made.router.redirect_slashes = False  # ``_no_route`` does that
    if hosts is not None:
        made.add_middleware(Hosts, allowed=list(hosts))
    made.add_middleware(Envelope, prefix=urlsplit(public_url or "").path.rstrip("/"))
    made.state.api = api
    return made


async def _no_route(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException) or error.status_code == 404:
        turned = turn_slash(request.scope)
        if any(isinstance(route, Path) and route.matches(turned)[0] is not Match.NONE for route in request.app.routes):
            # Only the path: a proxy may reach this server under another host name and scheme than the browser does.
            asked = request.scope.get("query_string", b"").decode("latin-1")
            return RedirectResponse(read_place(turned) + (f"?{asked}" if asked else ""), 307)
        pages: Pages | None = request.app.state.api.pages
        if pages is not None and "text/html" in request.headers.get("accept", "") and not read_place(request.scope).startswith("/v1/"):
            return await pages.tell(request, Stopped(404, "not_found", "there is no such page"))
        return answer_failure(Stopped(404, "not_found", "there is no such path", hint="GET /v1/openapi.json lists them"))
    if error.status_code == 405:
        found = [route for route in request.app.routes if isinstance(route, Path) and route.matches(request.scope)[0] is not Match.NONE]
        return _refuse_method(request, {method for route in found for method in route.methods or ()})
    return answer_failure(Stopped(error.status_code, "bad_request", str(error.detail)))


def _refuse_method(request: Request, known: set[str]) -> Response:
    allow = ", ".join(sorted({*known, *(["HEAD"] if "GET" in known else [])}))
    response = answer_failure(Stopped(405, "method_not_allowed", f"this path does not support the method {request.method[:40]}", hint=allow))
    response.headers["Allow"] = allow
    return response


class Hosts:
    """Accepts only requests whose ``Host`` header has one of these names; ``*.example.org`` stands for every name below ``example.org``."""

    def __init__(self, app: Any, allowed: Sequence[str]) -> None:
        self._app = app
        self._allowed = [name.lower() for name in allowed]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or self._allows(Headers(scope=scope).get("host", "")):
            await self._app(scope, receive, send)
            return
        refused = Stopped(400, "wrong_host", "the server does not answer under the name in the Host header", hint="use one of " + ", ".join(self._allowed))
        await answer_failure(refused)(scope, receive, send)

    def _allows(self, host: str) -> bool:
        found = HOST.fullmatch(host.lower())
        return found is not None and any(
            name in ("*", found[1], found[1].strip("[]")) or (name.startswith("*.") and found[1].endswith(name[1:])) for name in self._allowed
        )


def make_pages(api: Api, public_url: str | None = None) -> list[BaseRoute]:
    """Returns the routes of the operator's pages, which use the same runtime and tokens."""

    async def go_on(run_id: str, options: dict[str, Any]) -> None:
        await await_start(api.rt, run_id, api.jobs, **options)

    def place_error(error: HoldfastError) -> tuple[int, Mapping[str, str]]:
        status = status_of(error)
        return status, headers(error, status)

    api.pages = Pages(api.rt, api.find, api.holds, go_on, place_error, asks=api.asks, public_url=public_url)
    return api.pages.routes()


__all__ = ["GRACE_SECONDS", "Api", "answer_failure", "app"]

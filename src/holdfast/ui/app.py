"""The operator's pages: the same views as everywhere, as HTML (§17). Reading and deciding work without JavaScript.

A GET changes nothing. A POST carries a token bound to the session, calls one verb, and redirects the browser to a page (§14.4, §17.8).
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute

from holdfast.access import Access, Forbidden, Scope, check_site
from holdfast.callers import acting
from holdfast.core import bounds, describe
from holdfast.core.errors import CheckpointNotFound, HoldfastError, InvalidInput, Rejected, TokenRefused
from holdfast.core.intents import MARK_SENT
from holdfast.core.jsons import json_of
from holdfast.core.toolcalls import TYPE
from holdfast.core.views import iso
from holdfast.engine.look.looker import Wanted
from holdfast.handle import when
from holdfast.ports import RunFilter
from holdfast.runtime import Runtime
from holdfast.ui import drawings, render, words
from holdfast.ui.requests import Path, read_length, read_place
from holdfast.ui.sessions import COOKIE, SHELF, Sessions, Viewer, set_cookie

MOST_BYTES = 2 * 2**20
SECURITY = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
}
TYPES = {"style.css": "text/css", "htmx.min.js": "text/javascript", "htmx.LICENSE": "text/plain", "live.js": "text/javascript"}
PAGE = 50
LANES = 200
CHECKED = 200
"""How many runs are checked against their logs while somebody waits for a page."""
ZONE = "holdfast_zone"
TRUTHS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}

Page = Callable[[Request, Viewer], Awaitable[Response]]


class Pages:
    """The pages of one runtime. ``known`` returns the access of a token, ``alive`` whether a token is still valid; ``place_error`` returns the status
    of an error and its headers."""

    def __init__(
        self, rt: Runtime, known: Callable[[str], Awaitable[Access | None]], alive: Callable[[Access], Awaitable[bool]], go_on: Callable[[str, dict[str, Any]], Awaitable[None]],
        place_error: Callable[[HoldfastError], tuple[int, Mapping[str, str]]], *, asks: bool, public_url: str | None = None,
    ) -> None:
        self._rt = rt
        self._public = public_url
        self._asks = asks
        self._go_on = go_on
        self._place_error = place_error
        self._known = known
        self._alive = alive
        self._secret = secrets.token_urlsafe(24)

    @property
    def _sessions(self) -> Sessions:
        return Sessions(self._rt.shelf(SHELF), self._known, self._alive, self._rt.store.now, without=None if self._asks else self._secret)

    async def access(self, request: Request) -> Access | None:
        """Returns the access of the session that sends the request; None without a session."""
        viewer = await self._sessions.viewer(request)
        return None if viewer is None else viewer.access

    def routes(self) -> list[BaseRoute]:
        """Returns the routes of all pages, each with its method and the scope that it needs."""
        view, decide = Scope.VIEW, Scope.DECIDE
        rows: list[tuple[str, str, Scope | None, Page]] = [
            ("/", "GET", view, self.overview),
            ("/runs", "GET", view, self.runs),
            ("/runs/selection", "POST", view, self.selection),
            ("/runs/{run_id}", "GET", view, self.run),
            ("/runs/{run_id}/answer", "POST", decide, self.answer),
            ("/runs/{run_id}/resume", "POST", decide, self.resume),
            ("/runs/{run_id}/cancel", "POST", Scope.CANCEL, self.cancel),
            ("/runs/{run_id}/fork", "GET", Scope.FORK, self.fork),
            ("/runs/{run_id}/fork", "POST", Scope.FORK, self.make_fork),
            ("/runs/{run_id}/replay", "POST", Scope.FORK, self.make_replay),
            ("/runs/{run_id}/repair", "POST", Scope.REPAIR, self.repair),
            ("/waits", "GET", view, self.waits),
            ("/effects", "GET", view, self.effects),
            ("/schedules", "GET", view, self.schedules),
            ("/schedules/{schedule_id}", "POST", Scope.ADMIN, self.schedule),
            ("/intents/{intent_id}", "POST", decide, self.intent),
            ("/queues/{queue}", "POST", Scope.ADMIN, self.queue),
            ("/workers", "GET", view, self.workers),
            ("/health", "GET", view, self.health),
        ]
        made: list[BaseRoute] = [Path(path, self._guard(scope, page), methods=[method]) for path, method, scope, page in rows]
        return [
            *made,
            *(
                Path(path, self._let_in(page), methods=[method])
                for path, method, page in (
                    ("/login", "GET", self.show_login),
                    ("/login", "POST", self.login),
                    ("/logout", "POST", self.logout),
                    ("/w/{token}", "GET", self.show_link),
                    ("/w/{token}", "POST", self.answer_link),
                    ("/zone", "POST", self.zone),
                    ("/static/{name}", "GET", self.static),
                )
            ),
        ]

    # -- around every page --------------------------------------------------------------------------

    def _guard(self, scope: Scope | None, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            viewer = await self._sessions.viewer(request)
            if viewer is None:
                return _secure(RedirectResponse(f"/login?next={quote(read_place(request.scope))}", 303))
            try:
                if scope is not None:
                    viewer.access.need(scope)
                if request.method == "POST":
                    await _check_own(request, viewer, self._public)
                with acting(viewer.access.id):
                    response = await page(request, viewer)
            except HoldfastError as e:
                response = self._answer_error(request, viewer, e)
            return _secure(response)

        return answer

    def _let_in(self, page: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                return _secure(await page(request))
            except HoldfastError as e:
                return _secure(self._answer_error(request, None, e))

        return answer

    def _answer_error(self, request: Request, viewer: Viewer | None, error: HoldfastError) -> Response:
        status, headers = self._place_error(error)
        back = None if isinstance(error, TokenRefused) else _find_form(request)
        response = self._page(request, "message.html", viewer, status=status, title=error.message, code=error.code, hint=error.hint, back=back)
        response.headers.update(headers)
        return response

    def _page(self, request: Request, name: str, viewer: Viewer | None, *, status: int = 200, **context: Any) -> HTMLResponse:
        given = {
            "viewer": viewer, "store": "" if viewer is None else self._rt.store.url, "open": not self._asks, "now": when(self._rt.store.now()), "base": _base(request),
            "zone": words.zone(request.cookies.get(ZONE)), "here": read_place(request.scope), **context,
        }
        return HTMLResponse(render.page(name, **given), status)

    async def tell(self, request: Request, error: HoldfastError) -> Response:
        """Returns an error as a page, for a browser that asks for a page that does not exist."""
        return _secure(self._answer_error(request, await self._sessions.viewer(request), error))

    def _secure(self, request: Request) -> bool:
        return request.url.scheme == "https" or urlsplit(self._public or "").scheme == "https"

    # -- looking ------------------------------------------------------------------------------------

    async def overview(self, request: Request, viewer: Viewer) -> Response:
        look, tenant = self._rt.look, viewer.access.tenant
        found = await look.overview(tenant)
        workers = await look.workers()
        return self._page(request, "overview.html", viewer, section="/", found=found, workers=workers, chart=drawings.throughput(found.lately.slices))

    async def runs(self, request: Request, viewer: Viewer) -> Response:
        q = {n: v for n, v in request.query_params.items() if v}
        tenant, zone = viewer.access.tenant, words.zone(request.cookies.get(ZONE))
        wanted = Wanted(
            tenant_id=tenant, condition=q.get("condition"), skill_id=q.get("skill"), thread_id=q.get("thread"), tag=q.get("tag"), text=q.get("q"), limit=PAGE,
            before=q.get("cursor"), since=_time(q.get("since"), "since", zone), until=_time(q.get("until"), "until", zone),
        )
        found, cursor = await self._rt.look.list_runs(wanted, values=False)
        kept = {n: v for n, v in q.items() if n != "cursor"}
        more = None if cursor is None else "/runs?" + urlencode({**kept, "cursor": cursor})
        counts = await self._rt.look.overview(tenant)
        others = urlencode({n: v for n, v in kept.items() if n != "condition"})
        return self._page(
            request, "runs.html", viewer, section="/runs", runs=found, query=q, more=more, conditions=counts.conditions, total=counts.total, others=others,
            live=urlencode(q),
        )

    async def run(self, request: Request, viewer: Viewer) -> Response:
        run_id, tenant, look = request.path_params["run_id"], viewer.access.tenant, self._rt.look
        seen = await look.glance(run_id, tenant)
        skill = next((describe.skill(p, seen.walk.progress.checkpoint) for p in self._rt.skills if p.id == seen.run.skill_id), None)
        query = request.query_params
        kind, before = query.get("event") or None, _before(query.get("before"), seen.run.version)
        earlier = None
        if before is not None:
            found = await look.events(run_id, max(0, before - 1 - render.EVENTS), min(render.EVENTS, before - 1), tenant) if before > 1 else []
            earlier = render.earlier_events(found, before, kind)
        context = render.run_context(seen, skill, await look.lineage(seen.run), await look.children(seen.run), kind=kind, events_page=earlier)
        a, b, at = query.get("a"), query.get("b"), query.get("at")
        diff = await look.diff(run_id, a, b, tenant) if a and b else None
        shown = await look.checkpoint(run_id, at, tenant) if at else None
        return self._page(request, "run.html", viewer, section="/runs", checkpoints=_points(seen), diff=diff, at=shown, **context)

    async def waits(self, request: Request, viewer: Viewer) -> Response:
        found, more = await self._rt.look.waits(viewer.access.tenant, before=request.query_params.get("cursor") or None, limit=PAGE)
        asks = sorted((w for w in found if w.available_actions), key=lambda w: (w.kind != "effect", w.deadline or "9"))
        return self._page(request, "waits.html", viewer, section="/waits", waits=asks, others=[w for w in found if not w.available_actions], more=more)

    async def effects(self, request: Request, viewer: Viewer) -> Response:
        tenant, look = viewer.access.tenant, self._rt.look
        unknown = await look.effects(tenant, statuses=("unknown",), limit=PAGE)
        unknown += await self._doubtful(tenant)
        there = {e.effect_id for e in unknown}
        newest = [e for e in await look.effects(tenant, limit=2 * PAGE) if e.effect_id not in there and e.status != "unknown"]
        asked: dict[str, describe.WaitView] = {}
        for run_id in dict.fromkeys(e.run_id for e in unknown):
            asked |= {w.effect_id: w for w in (await look.glance(run_id, tenant, check=False)).waits if w.effect_id is not None and w.available_actions}
        intents = [i for state in ("dead", "unknown", "sending", "queued") for i in await look.intents(tenant, state=state, limit=PAGE)]
        intents += (await look.intents(tenant, state="sent", limit=PAGE))[::-1]
        counts, now = (await look.tally(tenant)).effects, iso(self._rt.store.now()) or ""
        requests = {i.intent_id: bool(i.no_transport_for) or (i.lease_until is not None and i.lease_until <= now) for i in intents if i.type.startswith(TYPE)}
        return self._page(
            request, "effects.html", viewer, section="/effects", unknown=unknown, effects=newest, asked=asked, intents=intents, counts=counts,
            dead=sum(i.state == "dead" for i in intents), requests=requests,
        )

    async def _doubtful(self, tenant: str | None) -> list[describe.EffectView]:
        """Returns effects that were attempted by a process that is gone. No process has taken over their runs yet, so their stored status is not yet *unknown*."""
        attempted = await self._rt.look.effects(tenant, statuses=("attempted",), limit=PAGE)
        gone = {r for r in {e.run_id for e in attempted} if (await self._rt.look.glance(r, tenant, check=False)).record.condition == "interrupted"}
        return [e for e in attempted if e.run_id in gone]

    async def schedules(self, request: Request, viewer: Viewer) -> Response:
        return self._page(request, "schedules.html", viewer, section="/schedules", schedules=await self._rt.look.schedules(viewer.access.tenant))

    async def workers(self, request: Request, viewer: Viewer) -> Response:
        look, tenant = self._rt.look, viewer.access.tenant
        queues, limits = await look.queues(self._rt.declared, tenant), await look.limits(self._rt.declared, tenant)
        lanes = sorted(await look.lanes(tenant), key=lambda lane: -len(lane.queued))
        return self._page(
            request, "workers.html", viewer, section="/workers", workers=await look.workers(), lanes=lanes[:LANES], held=len(lanes), queues=queues, limits=limits
        )

    async def health(self, request: Request, viewer: Viewer) -> Response:
        """Checks all of a small store; of a large one, the runs that need attention and the newest runs. ``?run=`` shows what a repair would do."""
        tenant, look = viewer.access.tenant, self._rt.look
        total = sum((await look.tally(tenant)).runs.values())
        if total <= CHECKED and tenant is None:
            found = await self._rt.check()
            mine, runs = [describe.problem(p) for p in found], found.runs
        else:
            newest = await self._rt.store.runs(RunFilter(tenant_id=tenant, limit=CHECKED))
            ids = dict.fromkeys([*(r.run_id for r in (await look.overview(tenant)).need), *(run.run_id for run, _ in newest)])
            mine, runs = [describe.problem(p) for run_id in ids for p in await self._rt.check(run_id)], len(ids)
        run_id = request.query_params.get("run")
        plan = None
        if run_id:
            await look.find_row(run_id, tenant)
            plan = await self._rt.repair_run_state(run_id)
        return self._page(request, "health.html", viewer, section="/health", problems=mine, runs=runs, total=total, plan=plan)

    # -- acting -------------------------------------------------------------------------------------

    async def _mine(self, request: Request, viewer: Viewer) -> str:
        run, _ = await self._rt.look.find_row(request.path_params["run_id"], viewer.access.tenant)
        return run.run_id

    async def answer(self, request: Request, viewer: Viewer) -> Response:
        run_id, form = await self._mine(request, viewer), await _form(request)
        wait = next((w for w in (await self._rt.look.snapshot(run_id, viewer.access.tenant, check=False)).waits if w.wait_id == form.get("wait_id")), None)
        action, note = form.get("action", ""), form.get("note") or None
        actor = form.get("actor") or viewer.access.actor
        payload = _payload(form, wait) if action in ("answer", "approve", "record_result") else ...
        await self._rt.decide(
            run_id, action, wait_id=form.get("wait_id") or None, actor=actor, feedback=form.get("feedback") or None, note=note, payload=payload
        )
        return RedirectResponse(f"/runs/{run_id}", 303)

    async def resume(self, request: Request, viewer: Viewer) -> Response:
        run_id, form = await self._mine(request, viewer), await _form(request)
        await self._go_on(run_id, {"actor": viewer.access.actor, "acknowledge": form.get("acknowledge") or None})
        return RedirectResponse(f"/runs/{run_id}", 303)

    async def cancel(self, request: Request, viewer: Viewer) -> Response:
        run_id, form = await self._mine(request, viewer), await _form(request)
        await self._rt.cancel(run_id, actor=viewer.access.actor, reason=form.get("reason", ""))
        return RedirectResponse(f"/runs/{run_id}", 303)

    async def selection(self, request: Request, viewer: Viewer) -> Response:
        """First shows what will happen to which runs; once that is confirmed, does it run by run."""
        pairs = await _pairs(request)
        ids, form = [v for n, v in pairs if n == "run"][:500], dict(pairs)
        verb = form.get("verb", "")
        viewer.access.need(Scope.CANCEL if verb == "cancel" else Scope.DECIDE)
        if verb not in ("cancel", "resume"):
            raise InvalidInput(f"{verb!r} cannot be applied to several runs", hint="cancel or resume")
        chosen = [await self._rt.look.snapshot(i, viewer.access.tenant, check=False) for i in ids]
        runs, gone = [seen.record for seen in chosen], {seen.run.run_id for seen in chosen if seen.gone}
        if not form.get("sure"):
            return self._page(request, "selection.html", viewer, section="/runs", runs=runs, gone=gone, verb=verb)
        told = []
        for r in runs:
            try:
                if verb == "cancel":
                    await self._rt.cancel(r.run_id, actor=viewer.access.actor)
                else:
                    await self._go_on(r.run_id, {"actor": viewer.access.actor})
                told.append((r, "done"))
            except HoldfastError as e:
                told.append((r, e.line()))
        return self._page(request, "selected.html", viewer, section="/runs", told=told, verb=verb)

    async def fork(self, request: Request, viewer: Viewer) -> Response:
        run_id = await self._mine(request, viewer)
        seen = await self._rt.look.snapshot(run_id, viewer.access.tenant, check=False)
        points = seen.checkpoints()
        name = request.query_params.get("from") or seen.find_fork_point()
        chosen = next((p for p in points if p.checkpoint_id == name), None)
        if chosen is None:
            raise CheckpointNotFound(f"{run_id} has no checkpoint {name}", hint="choose one from the list")
        return self._page(request, "fork.html", viewer, section="/runs", run=seen.record, chosen=chosen, checkpoints=_points(seen), edits={}, changed=None, reason="")

    async def make_fork(self, request: Request, viewer: Viewer) -> Response:
        run_id, form = await self._mine(request, viewer), await _form(request)
        seen = await self._rt.look.snapshot(run_id, viewer.access.tenant, check=False)
        name = form.get("from", "")
        chosen = next((p for p in seen.checkpoints() if p.checkpoint_id == name), None)
        if chosen is None:
            raise CheckpointNotFound(f"{run_id} has no checkpoint {name}", hint="choose one from the list")
        edits = {n: _json(form[f"set.{n}"], n) for n in chosen.values if form.get(f"set.{n}", "").strip() and n not in seen.run.secrets}
        changed = {n: v for n, v in edits.items() if not words.is_same(v, chosen.values[n])}
        if not form.get("sure"):
            return self._page(request, "fork.html", viewer, section="/runs", run=seen.record, chosen=chosen, checkpoints=_points(seen), edits=edits, changed=changed, reason=form.get("reason", ""))
        made = await self._rt.fork(run_id, name, set=changed or None, reason=form.get("reason", ""), actor=viewer.access.actor, drive=False)
        return RedirectResponse(f"/runs/{made.run_id}", 303)

    async def make_replay(self, request: Request, viewer: Viewer) -> Response:
        run_id = await self._mine(request, viewer)
        made = await self._rt.replay(run_id, actor=viewer.access.actor, drive=False)
        return RedirectResponse(f"/runs/{made.run_id}", 303)

    async def repair(self, request: Request, viewer: Viewer) -> Response:
        run_id = await self._mine(request, viewer)
        done = await self._rt.repair_run_state(run_id, True, actor=viewer.access.actor)
        if done.refused:
            raise Rejected(done.reason, hint="look at the run, then decide", code=done.refused)
        return RedirectResponse(f"/runs/{run_id}", 303)

    async def intent(self, request: Request, viewer: Viewer) -> Response:
        form, actor = await _form(request), viewer.access.actor
        found = await self._rt.look.intent(request.path_params["intent_id"], viewer.access.tenant)
        reason = form.get("reason", "")
        match form.get("verb"):
            case "redrive":
                await self._rt.redrive(found.intent_id, actor=actor, reason=reason, force=form.get("force") == "1")
            case "sent" | "abandoned" as outcome:
                told = form.get("result", "").strip() if outcome == MARK_SENT else ""
                await self._rt.settle(found.intent_id, outcome, actor=actor, reason=reason, result=_json(told, "result") if told else ...)
            case _:
                raise InvalidInput("choose to send an intent again, or to settle it as sent or abandoned")
        return RedirectResponse("/effects#outbox", 303)

    async def queue(self, request: Request, viewer: Viewer) -> Response:
        form, actor, name = await _form(request), viewer.access.actor, request.path_params["queue"]
        if viewer.access.tenant is not None:
            raise Forbidden("queues are shared by all tenants, and this token is for one tenant only", hint="a token with --tenant '*'")
        match form.get("verb"):
            case "pause":
                await self._rt.pause_queue(name, actor=actor, reason=form.get("reason", ""))
            case "unpause":
                await self._rt.unpause_queue(name, actor=actor, reason=form.get("reason", ""))
            case _:
                raise InvalidInput("choose to pause or unpause the queue")
        return RedirectResponse("/workers#queues", 303)

    async def schedule(self, request: Request, viewer: Viewer) -> Response:
        found = await self._rt.look.schedule(request.path_params["schedule_id"], viewer.access.tenant)
        match (await _form(request)).get("verb"):
            case "pause":
                await self._rt.pause_schedule(found.schedule_id, actor=viewer.access.actor)
            case "unpause":
                await self._rt.unpause_schedule(found.schedule_id, actor=viewer.access.actor)
            case "trigger":
                made = await self._rt.trigger(found.schedule_id)
                return RedirectResponse(f"/runs/{made.run_id}", 303)
            case _:
                raise InvalidInput("a schedule is paused, unpaused or triggered")
        return RedirectResponse("/schedules", 303)

    # -- without a session --------------------------------------------------------------------------

    async def show_login(self, request: Request) -> Response:
        return self._page(request, "login.html", None, next=_local(request.query_params.get("next", "/")), wrong=False)

    async def login(self, request: Request) -> Response:
        await _check_own(request, None, self._public)
        form = await _form(request)
        secret = await self._sessions.begin(form.get("token", "").strip())
        if secret is None:
            return self._page(request, "login.html", None, status=401, next=_local(form.get("next", "/")), wrong=True)
        response = RedirectResponse(_local(form.get("next", "/")), 303)
        set_cookie(response, secret, secure=self._secure(request), path=_base(request) or "/")
        return response

    async def logout(self, request: Request) -> Response:
        viewer = await self._sessions.viewer(request)
        await _check_own(request, viewer, self._public)
        if viewer is not None:
            await self._sessions.end(viewer.secret)
        response = RedirectResponse("/login", 303)
        response.delete_cookie(COOKIE, path=_base(request) or "/")
        return response

    async def show_link(self, request: Request) -> Response:
        """Shows a wait to somebody without an account; a POST decides it (§14.4). The link itself is the authority."""
        token = request.path_params["token"]
        return self._page(request, "link.html", None, wait=await self._rt.look.find_linked(token), token=token, done=None)

    async def answer_link(self, request: Request) -> Response:
        token = request.path_params["token"]
        wait, form = await self._rt.look.find_linked(token), await _form(request)
        action = form.get("action", "")
        payload = _payload(form, wait) if action in ("answer", "approve", "record_result") else ...
        await self._rt.redeem(token, action, feedback=form.get("feedback") or None, note=form.get("note") or None, payload=payload)
        return self._page(request, "link.html", None, wait=wait, token=token, done=action)

    async def zone(self, request: Request) -> Response:
        """Stores the time zone of this browser in a cookie. It changes nothing else, so it needs no session."""
        form, viewer = await _form(request), await self._sessions.viewer(request)
        await _check_own(request, viewer, self._public)
        response: Response = RedirectResponse(_local(form.get("next", "/")), 303)
        name = form.get("zone", "").strip()
        if not words.is_known_zone(name):
            return self._answer_error(request, viewer, InvalidInput(f"{name!r} is not a known time zone", field="zone", hint="Europe/Berlin, UTC"))
        response.set_cookie(ZONE, name, max_age=365 * 24 * 3600, samesite="strict", secure=self._secure(request), path=_base(request) or "/")
        return response

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in TYPES:
            return Response("not found", 404)
        response = Response(render.asset(name), media_type=TYPES[name])
        response.headers["Cache-Control"] = "public, max-age=3600"
        return response


def _before(given: str | None, version: int) -> int | None:
    """Returns the event before which a run's page shows events; None for the newest.

    Raises:
        InvalidInput: it is not the number of an event.
    """
    if not given:
        return None
    if not (given.isascii() and given.isdigit() and len(given) < 18):
        raise InvalidInput(f"{given[:80]!r} is not the number of an event", field="before", hint="follow the page's own link")
    return None if int(given) > version else max(1, int(given))


def _points(seen: Any) -> list[describe.CheckpointView]:
    try:
        every: list[describe.CheckpointView] = seen.checkpoints()
    except HoldfastError:
        return []
    return every


def _secure(response: Response) -> Response:
    response.headers.update({n: v for n, v in SECURITY.items() if n not in response.headers})
    return response


def _find_form(request: Request) -> str | None:
    """Returns the path of the page whose form was sent; None if no form was sent."""
    if request.method != "POST":
        return None
    match (place := read_place(request.scope)).split("/")[1:]:
        case ["w", _]:
            return place
        case ["runs", run_id, _]:
            return f"/runs/{run_id}"
        case [kind, _]:
            return {"runs": "/runs", "schedules": "/schedules", "intents": "/effects", "queues": "/workers"}.get(kind)
    return None


def _base(request: Request) -> str:
    """Returns the path under which this application is mounted. The application adds it to redirects by itself."""
    return str(request.scope.get("root_path", ""))


def _local(place: str) -> str:
    """Returns where to go after the login: always a path of this server, whatever was asked for."""
    return place if place.startswith("/") and not place.startswith("//") and place.isprintable() and "\\" not in place else "/"


async def _check_own(request: Request, viewer: Viewer | None, public: str | None) -> None:
    """Refuses a form that does not belong to the viewer.

    Raises:
        Forbidden: the form lacks the session's token, or comes from another site.
    """
    check_site(request.headers, public, opaque=True)  # these pages send no referrer, so browsers hide the origin of their forms
    if viewer is not None and not viewer.owns((await _form(request)).get("csrf", "")):
        raise Forbidden("this form does not belong to your session", hint="load the page again, then send it")


async def _pairs(request: Request) -> list[tuple[str, str]]:
    if not hasattr(request.state, "pairs"):
        if read_length(request.headers) > MOST_BYTES:
            raise InvalidInput("the form is too large")
        data = await request.body()
        if len(data) > MOST_BYTES:
            raise InvalidInput("the form is too large")
        try:
            request.state.pairs = parse_qsl(data.decode("utf-8"), keep_blank_values=True, max_num_fields=2000, errors="strict")
        except (UnicodeDecodeError, ValueError):
            raise InvalidInput("the form cannot be read") from None
    pairs: list[tuple[str, str]] = request.state.pairs
    return pairs


async def _form(request: Request) -> dict[str, str]:
    return dict(await _pairs(request))


def _time(text: str | None, field: str, zone: dt.tzinfo) -> int | None:
    """Reads a time of a form; a time without a zone is in the viewer's zone."""
    if not text:
        return None
    try:
        at = dt.datetime.fromisoformat(text)
        return bounds.moment(at if at.tzinfo is not None else at.replace(tzinfo=zone), field)
    except ValueError:
        raise InvalidInput(f"{text!r} is not a time", field=field, hint="2026-11-21T08:00") from None


def _json(text: str, field: str) -> Any:
    try:
        return json_of(text)
    except (ValueError, RecursionError) as e:
        raise InvalidInput(f"{field} is not JSON: {e}", field=field, hint='put text in quotes: "like this"') from None


def _payload(form: Mapping[str, str], wait: describe.WaitView | None) -> Any:
    """Returns the payload of a form: its JSON, or its fields read by the wait's schema. Fields that are left empty change nothing of what is approved."""
    if form.get("payload", "").strip():
        return _json(form["payload"], "payload")
    schema = words.form_of(wait.schema) if wait is not None else {}
    if wait is not None and wait.editable and form.get("value") == "":
        return ...
    if schema.get("type") != "object" and "value" in form:
        return _parse_typed(form["value"], schema, "value")
    found = {n: _parse_typed(form[f"f.{n}"], s, n) for n, s in schema.get("properties", {}).items() if form.get(f"f.{n}", "") != ""}
    edits = wait is not None and wait.editable and not found
    left = {} if edits else {n: None for n in schema.get("nulls", []) if form.get(f"f.{n}") == ""}
    return {**left, **found} or ...


def _parse_typed(text: str, schema: Mapping[str, Any], field: str) -> Any:
    if isinstance(schema.get("enum"), list):
        return _choose(text, schema["enum"])
    match schema.get("type"):
        case "integer" | "number" | "array" | "object":
            return _json(text, field)
        case "boolean":
            if text not in TRUTHS:
                raise InvalidInput(f"{field} is true or false, not {text[:40]!r}", field=field)
            return TRUTHS[text]
        case "string":
            return text
    return _json(text, field)  # one of several types, or any: the form asks for JSON


def _choose(text: str, offered: Sequence[Any]) -> Any:
    """Returns the offered value that a form names: by its JSON, as these pages send it, or by its text. A text that names none is returned unchanged, and
    is refused later."""
    try:
        said = json_of(text)
    except (ValueError, RecursionError):
        said = text
    return next((one for one in offered if words.is_same(one, said)), text)


__all__ = ["Pages"]

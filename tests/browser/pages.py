"""What ``python -m tests.browser`` does, in Debian's chromium by Playwright."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from holdfast import Context, Runtime, flow
from holdfast.access import SHELF, Tokens
from tests.browser.tools import axe, chromium, shown

PAGES = ("/", "/runs", "/waits", "/effects", "/schedules", "/workers", "/health")
IMAGES = Path(__file__).parents[2] / "docs" / "images"


class Report:
    """What was looked at, and what was found."""

    def __init__(self) -> None:
        self.looked = 0
        self.findings: list[str] = []

    def found(self, what: str) -> None:
        self.findings.append(what)
        print("FOUND", what, flush=True)

    def hold(self, true: bool, what: str) -> None:
        self.looked += 1
        if not true:
            self.found(what)


async def places(rt: Runtime) -> list[tuple[str, str]]:
    """Every page of a store: a name for its picture, and its path."""
    found = [(path.strip("/") or "overview", path) for path in PAGES] + [("login", "/login")]
    seen: set[str] = set()
    for run in await rt.runs(limit=100):
        kind = run.condition.value if run.skill_id != "evil" else run.run_id
        asked = run.waits[0].kind if run.waits else ""
        if (name := f"run-{kind}-{asked}".strip("-")) not in seen:
            seen.add(name)
            found.append((name, f"/runs/{run.run_id}"))
            if run.skill_id == "evil" or asked == "approval":
                found.append((f"fork-{name}", f"/runs/{run.run_id}/fork"))
                link = await rt.issue_token(run.waits[0].wait_id, "grace") if run.waits and run.waits[0].kind == "approval" else None
                found += [(f"link-{name}", f"/w/{link}")] if link is not None else []
    return found


async def watched(context: BrowserContext, origin: str, report: Report) -> Page:
    """A page that tells of whatever it should not do."""
    page = await context.new_page()
    page.on("request", lambda r: report.found(f"{page.url}: asks {r.url}") if not r.url.startswith((origin, "data:")) else None)
    page.on("pageerror", lambda e: report.found(f"{page.url}: script {e}"))
    page.on("console", lambda m: report.found(f"{page.url}: console {m.text}") if m.type == "error" and "status of 40" not in m.text else None)
    return page


async def look(page: Page, url: str, name: str, report: Report, picture: Path | None, check: str) -> None:
    await page.goto(url, wait_until="load")
    wide = await page.evaluate("[document.scrollingElement.scrollWidth, innerWidth]")
    report.hold(wide[0] <= wide[1], f"{name}: scrolls sideways, {wide}")
    if picture is not None:
        await page.screenshot(path=picture, full_page=True)
    await page.evaluate(check)
    result: dict[str, Any] = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    for v in result["violations"]:
        report.found(f"{name}: axe {v['id']}: {v['help']}: {v['nodes'][0]['html'][:160]} ({len(v['nodes'])} places)")
    report.looked += 1


async def every_page(browser: Browser, folder: Path, report: Report, out: Path | None, scenes: Sequence[str], widths: Sequence[int]) -> None:
    check = axe()
    for scene in scenes:
        async with shown(scene, folder) as (origin, rt):
            for width in widths:
                for scheme in ("light", "dark"):
                    context = await browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True, timezone_id="Europe/Berlin")
                    page = await watched(context, origin, report)
                    for name, path in await places(rt):
                        label = f"{scene}-{name}-{width}-{scheme}"
                        await look(page, origin + path, label, report, out / f"{label}.png" if out is not None else None, check)
                    await context.close()


async def without_javascript(browser: Browser, folder: Path, report: Report) -> None:
    async with shown("many", folder) as (origin, rt):
        context = await browser.new_context(java_script_enabled=False, viewport={"width": 1024, "height": 900})
        page = await context.new_page()
        (first, second) = [r for r in await rt.runs(condition="awaiting_gate_decision", limit=50) if r.waits[0].kind == "approval"][:2]
        await page.goto(f"{origin}/runs/{first.run_id}")
        report.hold("Publish these notes?" in await page.inner_text("h2"), "without JavaScript: read")
        await page.click("button[value=approve]")
        report.hold((await rt.get(first.run_id)).record.decisions[0].action == "approve", "without JavaScript: approve")
        await page.goto(f"{origin}/waits")
        article = page.locator("article", has=page.locator(f"a[href$='{second.run_id}']"))
        await article.locator("input[name=note]").fill("not now")
        await article.locator("button[value=deny]").click()
        report.hold((await rt.get(second.run_id)).status == "canceled", "without JavaScript: deny")
        (failed,) = await rt.runs(condition="failed", limit=1)
        await page.goto(f"{origin}/runs/{failed.run_id}")
        await page.click("#actions button:has-text('Resume')")
        until = time.monotonic() + 60
        while (now := await rt.get(failed.run_id)).version <= failed.version and time.monotonic() < until:
            await rt.store.wait_for_change(0.5)
        report.hold(now.version > failed.version, "without JavaScript: resume")
        before = len(await rt.runs(limit=500))
        await page.goto(f"{origin}/runs/{first.run_id}")
        await page.click("#actions a:has-text('Fork')")
        await page.fill("textarea[name='set.draft']", '"another text"')
        await page.click("button:has-text('See the difference')")
        report.hold("another text" in await page.inner_text("table.diff ins"), "without JavaScript: the difference of a fork")
        await page.click("button:has-text('Start it')")
        fork = await rt.get(page.url.rpartition("/")[2])
        report.hold(fork.source_run_id == first.run_id and fork.values["draft"] == "another text" and len(await rt.runs(limit=500)) == before + 1, "without JavaScript: fork")
        await context.close()


async def by_keyboard(browser: Browser, folder: Path, report: Report) -> None:
    """Tab and Enter alone, from the overview to an answer; what has the focus is seen."""
    async with shown("one", folder) as (origin, rt):
        context = await browser.new_context(viewport={"width": 1024, "height": 900})
        page = await context.new_page()
        (run,) = await rt.runs()
        await page.goto(origin + "/")
        await tab(page, f"a[href$='/runs/{run.run_id}']", report)
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**/runs/{run.run_id}")
        await tab(page, "button[value=approve]", report)
        ring = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        report.hold(ring != "none", "by keyboard: the focus is seen")
        async with page.expect_navigation():
            await page.keyboard.press("Enter")
        report.hold((await rt.get(run.run_id)).record.decisions[0].action == "approve", "by keyboard: a wait is answered")
        await context.close()


async def tab(page: Page, selector: str, report: Report) -> None:
    for _ in range(200):
        await page.keyboard.press("Tab")
        if await page.evaluate("s => document.activeElement.matches(s)", selector):
            return
    report.found(f"by keyboard: {selector} cannot be reached")


async def alive(browser: Browser, folder: Path, report: Report) -> None:
    """What happens is on the page without a reload, in the zone of the browser."""
    async with shown("one", folder) as (origin, rt):
        context = await browser.new_context(viewport={"width": 1024, "height": 900}, timezone_id="Asia/Tokyo")
        page = await context.new_page()
        await page.goto(origin + "/")
        await page.reload()
        report.hold("JST" in await page.inner_text("footer"), "live: times in the browser's zone")
        (run,) = await rt.runs()
        await rt.approve(run.run_id, actor="ada")
        try:
            await page.wait_for_selector("h1:has-text('Nothing needs a person')", timeout=15_000)
        except Exception:
            report.found("live: the overview does not renew itself")
        report.looked += 1
        await context.close()


async def under_a_session(browser: Browser, folder: Path, report: Report) -> None:
    """§16.2: where a token is asked for, what a step emits is on its run's page too, and the raw events can be opened."""
    async with shown("none", folder, tokens=True) as (origin, rt):
        emit, end = asyncio.Event(), asyncio.Event()

        @flow("slow")
        async def slow(ctx: Context) -> None:
            await emit.wait()
            ctx.emit("what it says meanwhile")
            await end.wait()

        rt.add(slow)
        run = await rt.submit(slow, {})
        driving = asyncio.ensure_future(rt.resume(run.run_id))
        page = await watched(await browser.new_context(viewport={"width": 1024, "height": 900}), origin, report)
        made = await Tokens(rt.shelf(SHELF)).create(["view"], now=rt.store.now())
        await page.goto(origin + "/login")
        await page.fill("input[name=token]", made.token)
        await page.click("main button")
        while (await rt.get(run.run_id)).status != "running":
            await rt.store.wait_for_change(0.5)
        await page.goto(f"{origin}/runs/{run.run_id}")
        emit.set()
        try:
            await page.wait_for_selector("[data-stream] pre:has-text('what it says meanwhile')", timeout=15_000)
        except Exception:
            report.found("under a session: no live output")
        end.set()
        await driving
        await page.wait_for_selector("h2:has-text('It is done.')")  # the page renews itself once the run rests
        async with page.expect_navigation() as gone:
            await page.click("text=raw JSON")
        report.hold((await gone.value).status == 200, "under a session: the raw events")  # type: ignore[union-attr]
        await page.context.close()


PICTURES = {
    "overview": ("many", "overview", 1024, "light"), "run": ("many", "run-awaiting_gate_decision-approval", 1024, "light"),
    "inbox": ("many", "waits", 1024, "light"), "effects": ("many", "effects", 1024, "light"),
}


HEIGHTS = {"overview": 1457, "run": 1300, "inbox": 860, "effects": 1000}


async def pictures(browser: Browser, folder: Path) -> None:
    """The pictures of docs/operate.md."""
    async with shown("many", folder) as (origin, rt):
        paths = dict(await places(rt))
        for name, (_, place, width, scheme) in PICTURES.items():
            context = await browser.new_context(viewport={"width": width, "height": 860}, color_scheme=scheme, device_scale_factor=1)  # type: ignore[arg-type]
            page = await context.new_page()
            await page.goto(origin + paths[place])
            await page.screenshot(path=IMAGES / f"{name}.png", clip={"x": 0, "y": 0, "width": width, "height": HEIGHTS[name]}, full_page=True)
            await context.close()


async def main(out: Path | None, write: bool, scenes: Sequence[str], widths: Sequence[int]) -> int:
    report, began = Report(), time.monotonic()
    program, environment = chromium()
    async with async_playwright() as play:
        browser = await play.chromium.launch(executable_path=program, env={**os.environ, **environment}, args=["--no-sandbox", "--no-zygote"])
        rounds: list[Callable[[Path], Awaitable[None]]] = [
            lambda f: every_page(browser, f, report, out, scenes, widths), lambda f: without_javascript(browser, f, report), lambda f: by_keyboard(browser, f, report),
            lambda f: alive(browser, f, report), lambda f: under_a_session(browser, f, report),
        ]
        if write:
            rounds = [lambda f: pictures(browser, f)]
        for each in rounds:
            with tempfile.TemporaryDirectory() as folder:
                await each(Path(folder))
        await browser.close()
    print(f"{report.looked} looks, {len(report.findings)} findings, {time.monotonic() - began:.0f} s")
    return 1 if report.findings else 0

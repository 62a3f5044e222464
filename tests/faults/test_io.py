"""Every call by which a store reaches the disk fails once, or from then on (§1.12, X-10, X-14): nothing acknowledged is lost, what is raised is
Holdfast's own, a full disk is ``store_full``, and no half file is left.

By default a sample of the places, drawn by a seed; ``pytest -m heavy tests/faults/test_io.py`` goes through all of them.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import json
import logging
import os
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import Context, Graph, Runtime, State
from holdfast.core.errors import HoldfastError
from holdfast.engine.keep.repair import SAFE
from holdfast.ports import offers_copies, offers_shelves
from tests.faults.faulty import FULL, POSSIBLE, Faulty

Place = tuple[str, int, str, bool]
SEED = 12


class Count(State):
    n: int = 0


class Outside:
    """What was done in the world, by key."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()

    def skill(self) -> Graph[Count]:
        made = Graph("count", Count, version="1")

        @made.node(start=True)
        async def act(state: Count, ctx: Context) -> dict[str, Any]:
            await ctx.effect(self.pay, state.n, key=f"pay-{state.n}")
            ctx.record("paid", str(state.n), {"n": state.n})
            return {"n": state.n + 100}

        @made.node(after="act")
        async def ask(state: Count, ctx: Context) -> dict[str, Any]:
            await ctx.approve("go on?", show=state.n)
            return {"n": state.n + 1}

        return made

    async def pay(self, n: int) -> str:
        self.done[f"pay-{n}"] += 1
        return "x" * 70_000 if n == 1 else "paid"


class Story:
    """What a process does with a store, one thing after the other; what was acknowledged is kept in mind, to be asked for later."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.outside = Outside()
        self.kept: list[tuple[str, Callable[[Runtime], Awaitable[bool]]]] = []
        self.raised: list[BaseException] = []
        self.exported: str | None = None
        self.copied: bool | None = None

    async def tell(self) -> None:
        rt = Runtime(self.url, skills=[self.outside.skill()])
        if await self.tried(rt.__aenter__()) is None:
            return
        try:
            await self.acts(rt)
        finally:
            await self.tried(rt.close())

    async def acts(self, rt: Runtime) -> None:
        for n in (1, 2):
            run = await self.tried(rt.invoke("count", {"n": n}, thread_id=f"t{n}", key=f"k{n}"))
            if run is None:
                continue
            self.keep(f"the run {n}", self.at_least(run.run_id, run.version))
            if await self.tried(rt.decide(run.run_id, "approve", actor="ada", resume=False)) is not None:
                self.keep(f"the decision {n}", self.decided(run.run_id))
            done = await self.tried(rt.resume(run.run_id))
            if done is not None:
                self.keep(f"the end {n}", self.at_least(done.run_id, done.version))
        later = await self.tried(rt.submit("count", {"n": 3}, delay=dt.timedelta(days=1)))
        if later is not None:
            self.keep("the submission", self.at_least(later.run_id, later.version))
            if await self.tried(rt.signal(later.run_id, "news", 1, key="s")) is not None:
                self.keep("the signal", self.heard(later.run_id))
        if await self.tried(rt.schedule("count", {"n": 4}, id="s1", every=dt.timedelta(days=1))) is not None:
            self.keep("the schedule", lambda r: _has(r.schedules(), lambda s: s.id == "s1"))
        if offers_shelves(rt.store) and await self.tried(_done(rt.shelf("mine").put("a", b"row"))) is not None:
            self.keep("the shelf", lambda r: _same(r.shelf("mine").get("a"), b"row"))
        await self.tried(rt.check())
        await self.tried(rt.runs())
        if later is not None:
            self.exported = await self.tried(rt.export(later.run_id, self.folder / "exported"))
        if offers_copies(rt.store):
            self.copied = await self.tried(_done(rt.backup(self.folder / "copy.db")))

    async def tried(self, doing: Awaitable[Any]) -> Any:
        try:
            return await doing
        except (HoldfastError, OSError, apsw.Error) as e:
            self.raised.append(e)
            return None

    def keep(self, what: str, asks: Callable[[Runtime], Awaitable[bool]]) -> None:
        self.kept.append((what, asks))

    def at_least(self, run_id: str, version: int) -> Callable[[Runtime], Awaitable[bool]]:
        async def asks(rt: Runtime) -> bool:
            return bool((await rt.get(run_id)).version >= version)

        return asks

    def decided(self, run_id: str) -> Callable[[Runtime], Awaitable[bool]]:
        async def asks(rt: Runtime) -> bool:
            put = [i.key.startswith("wait:") for i in await rt.store.inbox(run_id, taken=True)]
            return any(put) or any(e.type == "wait.decided" for e in await rt.events(run_id))

        return asks

    def heard(self, run_id: str) -> Callable[[Runtime], Awaitable[bool]]:
        async def asks(rt: Runtime) -> bool:
            put = [i.key == "signal:news:s" for i in await rt.store.inbox(run_id, taken=True)]
            return any(put) or any(e.type == "signal.received" for e in await rt.events(run_id))

        return asks


async def _done(doing: Awaitable[Any]) -> bool:
    await doing
    return True


async def _has(doing: Awaitable[Any], wanted: Callable[[Any], bool]) -> bool:
    return any(wanted(each) for each in await doing)


async def _same(doing: Awaitable[Any], wanted: Any) -> bool:
    return bool(await doing == wanted)


def url_of(form: str, folder: Path) -> str:
    (folder / "store").mkdir(parents=True)
    return f"sqlite:///{folder}/store/runs.db" if form == "sqlite" else f"workspace:{folder}/store/runs"


def lived(form: str, folder: Path, plan: Place | None) -> tuple[Story, Faulty, list[str]]:
    """The story with one fault in it; what is wrong afterwards, in words."""
    story = Story(url_of(form, folder), folder)
    layer = Faulty(str(folder))
    layer.plan = plan
    wrong: list[str] = []
    unseen = threading.excepthook
    threading.excepthook = lambda given: wrong.append(f"a thread ended by {given.exc_value!r}")
    try:
        with layer.on():
            _run(story.tell(), wrong)
    finally:
        threading.excepthook = unseen
    for e in story.raised:
        if not isinstance(e, HoldfastError):
            wrong.append(f"raw {type(e).__name__}: {e}")
    if plan is not None and plan[2] in FULL and plan[0] in ("write", "mkdir", "rename") and layer.met and story.raised:
        codes = [getattr(e, "code", "") for e in story.raised]
        if "store_full" not in codes:
            wrong.append(f"a full disk is told as {codes}")
    for place, _, names in os.walk(folder):
        wrong += [f"{name} is left in {os.path.basename(place)}" for name in names if name.endswith(".tmp") and plan is not None and not plan[3]]
    if story.copied is None and (folder / "copy.db").exists():
        wrong.append("a backup that failed has its name")
    if story.exported is not None and not (Path(story.exported) / "events.jsonl").is_file():
        wrong.append("an export that was done is not there")
    _run(after(story, wrong, form), wrong)
    wrong += [f"{key} was done {count} times" for key, count in story.outside.done.items() if count > 1]
    return story, layer, wrong


def _run(doing: Any, wrong: list[str]) -> None:
    """Runs, and notes what nobody looked at: an error in a loop of the background must be seen (X-14)."""

    async def whole() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, about: wrong.append(f"unseen: {about.get('message')} {about.get('exception')!r}"))
        await doing
        gc.collect() if wrong else None

    asyncio.run(whole())


async def after(story: Story, wrong: list[str], form: str) -> None:
    """The disk is well again: a new process opens the store, and finds all that was acknowledged."""
    rt = Runtime(story.url, skills=[story.outside.skill()])
    try:
        await rt.__aenter__()
    except (HoldfastError, OSError, apsw.Error) as e:
        if story.kept or not isinstance(e, HoldfastError):
            wrong.append(f"it does not open again: {e!r}")
        return
    try:
        for what, asks in story.kept:
            try:
                if not await asks(rt):
                    wrong.append(f"{what} is lost")
            except (HoldfastError, OSError, apsw.Error) as e:
                wrong.append(f"{what} is lost: {e!r}")
        for p in await rt.check():  # a cache that fell behind its log is named, and mended from it
            if p.code in SAFE and p.run_id is not None:
                await rt.repair_run_state(p.run_id, apply=True, actor="ada")
        wrong += [f"check: {p.code}: {p.message}" for p in await rt.check() if p.severity == "error"]
        for run in await rt.runs(status="running"):
            await rt.resume(run.run_id)
    finally:
        await rt.close()


def places(form: str, folder: Path) -> list[Place]:
    """Every call of the story, with each error that it can meet: once, and from then on."""
    story, layer, wrong = lived(form, folder, None)
    assert not wrong and not story.raised and len(story.kept) >= 9, (wrong, story.raised)
    found = []
    for kind, errors in POSSIBLE.items():
        for number in range(1, layer.counts[kind] + 1):
            found += [(kind, number, error, lasting) for error in errors for lasting in (False, True)]
    return found


def told(form: str, tmp_path: Path, chosen: list[Place]) -> None:
    problems = {}
    for n, place in enumerate(chosen):
        _, layer, wrong = lived(form, tmp_path / str(n), place)
        if wrong:
            problems[place] = wrong[:4]
    assert not problems, f"{len(problems)} of {len(chosen)}: " + json.dumps([[*p, w] for p, w in list(problems.items())[:12]], indent=1)


def sample(all_: list[Place], count: int) -> list[Place]:
    """Equally over the kinds of calls."""
    rng = random.Random(SEED)
    kinds = sorted({p[0] for p in all_})
    by = {kind: [p for p in all_ if p[0] == kind] for kind in kinds}
    return [rng.choice(by[kinds[n % len(kinds)]]) for n in range(count)]


@pytest.mark.parametrize("form", ["sqlite", "workspace"])
def test_a_sample_of_places(form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    told(form, tmp_path, sample(places(form, tmp_path / "dry"), 40))


@pytest.mark.heavy
@pytest.mark.parametrize("form", ["sqlite", "workspace"])
def test_every_place(form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    told(form, tmp_path, places(form, tmp_path / "dry"))

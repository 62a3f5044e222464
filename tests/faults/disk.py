"""The bench of the disk: every call by which a store reaches it fails once, or from then on (§1.12, X-10, X-14). Nothing acknowledged is lost,
what is raised is Holdfast's own, a full disk is ``store_full``, and no half file is left.

    python -m tests.faults.disk --form sqlite --budget 20
    python -m tests.faults.disk --at 1200 --places 400

A place is a call (its kind, and its number among them), an error, and whether all later calls of that kind fail too. They are gone through in
an order that a seed mixes, so that any part of it is a fair sample; where a budget ends it, it says where to go on with ``--at``.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import gc
import logging
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import apsw

from holdfast import Context, Graph, Runtime, State
from holdfast.core.errors import HoldfastError
from holdfast.engine.keep.repair import SAFE
from holdfast.ports import offers_copies, offers_shelves
from tests.faults.faulty import FULL, POSSIBLE, Faulty

Place = tuple[str, int, str, bool]
FORMS = ("sqlite", "workspace")
SEED = 12
MEMORY = "/dev/shm"  # the errors are made up, so that no place needs a disk that is slow to sync


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


def mixed(all_: list[Place], seed: int) -> list[Place]:
    """All places, in an order in which any part is a fair sample."""
    places = list(all_)
    random.Random(seed).shuffle(places)
    return places


def sample(all_: list[Place], count: int) -> list[Place]:
    """Equally over the kinds of calls."""
    rng = random.Random(SEED)
    kinds = sorted({p[0] for p in all_})
    by = {kind: [p for p in all_ if p[0] == kind] for kind in kinds}
    return [rng.choice(by[kinds[n % len(kinds)]]) for n in range(count)]


def gone_through(form: str, folder: Path, chosen: Iterable[Place]) -> Iterator[tuple[Place, bool, list[str]]]:
    """Each place: whether the call that was to fail came at all, and what is wrong afterwards."""
    for n, place in enumerate(chosen):
        here = folder / str(n)
        _, layer, wrong = lived(form, here, place)
        shutil.rmtree(here)
        yield place, layer.met > 0, wrong


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.disk", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--form", choices=FORMS, action="append")
    parser.add_argument("--at", type=int, default=0, metavar="N", help="Begin with this place of the mixed order.")
    parser.add_argument("--places", type=int, metavar="N", help="So many of them; without it all that are left.")
    parser.add_argument("--seed", type=int, default=SEED, help="Mixes the order.")
    parser.add_argument("--budget", type=float, metavar="MINUTES", help="For each form; it stops earlier where the places are done.")
    given = parser.parse_args(words)
    logging.disable(logging.CRITICAL)
    bad = 0
    for form in given.form or FORMS:
        with tempfile.TemporaryDirectory(dir=MEMORY if os.path.isdir(MEMORY) else None) as top:
            all_ = places(form, Path(top) / "dry")
            chosen = mixed(all_, given.seed)[given.at :][: given.places]
            began, done, met, kinds = time.monotonic(), 0, 0, Counter[str]()
            for place, came, wrong in gone_through(form, Path(top), chosen):
                done, met = done + 1, met + came
                kinds[place[0]] += 1
                if wrong:
                    bad += 1
                    print(f"{form} #{given.at + done - 1} {place}: {wrong[:4]}", flush=True)
                if given.budget is not None and time.monotonic() - began > given.budget * 60:
                    break
            took = time.monotonic() - began
        left = "" if done == len(chosen) else f"; go on with --at {given.at + done}"
        print(f"{form}, seed {given.seed}: places {given.at} to {given.at + done} of {len(all_)}, {done / max(took, 0.001):.1f} a second; {met} calls failed; {bad} not as wanted{left}")
        print("  " + ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items())), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

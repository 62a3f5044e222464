"""Runs in every shape, and the ways to damage them: what the tests of check and repair share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
from msgspec.structs import replace

from holdfast.core import codec
from holdfast.core import events as ev
from holdfast.core.lease import RELEASE
from holdfast.core.run import Run
from holdfast.core.waits import Decision, Wait, WaitKind
from holdfast.testing.conformance import TTL, Clock, Script, effect
from holdfast.testing.conformance_blobs import bulk, recording
from holdfast.testing.conformance_outbox import intent
from tests.inside import OpenSqlite

HANDOFF = Wait("r1.h1", WaitKind.HANDOFF, 1, "node", prompt="go on?", available_actions=("continue", "halt"))
Build = Callable[[Any], Awaitable[Script]]


async def driven(store: Any) -> Script:
    await store.register("w", TTL)
    return await (await Script(store, "r1").begin("w")).steps(3)


async def done(store: Any) -> Script:
    return await (await driven(store)).complete()


async def waiting(store: Any) -> Script:
    return await (await driven(store)).wait()


async def long(store: Any) -> Script:
    """Long enough for a whole checkpoint."""
    await store.register("w", 100 * TTL)
    return await (await (await Script(store, "r1").begin("w")).steps(14, size=8_000)).complete()


async def asking(store: Any) -> Script:
    script = await driven(store)
    await script.write(script.commit(ev.WaitRequested(HANDOFF), ev.RunWaitingForHuman(), lease=RELEASE))
    return script


async def halted_in_part(store: Any) -> Script:
    """Somebody decided to halt, and whoever wrote that down did not carry it out (T-23)."""
    script = await asking(store)
    store.clock_forward()
    decision = Decision("r1.h1", "halt", "ann", decided_at=store.now(), asked=HANDOFF.asked)
    commit = script.touching(ev.WaitDecided(decision))
    await script.write(replace(commit, actor="ann", events=tuple(replace(e, actor="ann") for e in commit.events)))
    store.clock_forward()
    return script


async def interrupted(store: Any) -> Script:
    script = await driven(store)
    store.abandon("w")
    return script


async def torn(store: Any) -> Script:
    """Interrupted with a handoff undecided (T-101)."""
    script = await driven(store)
    await script.write(script.commit(ev.WaitRequested(HANDOFF)))
    store.abandon("w")
    return script


async def acting(store: Any) -> Script:
    script = await driven(store)
    await script.write(script.commit(ev.SideEffectAttempted("r1.x1", "k"), effects=(effect("r1", 1, "k"),)))
    store.abandon("w")
    return script


async def sending(store: Any) -> Script:
    script = await driven(store)
    await script.complete(intents=(intent("r1", "i1", store.now()),))
    await store.claim_intents("w", ("mail",), limit=1, ttl_us=1)
    store.clock_forward()
    return script


async def bulky(store: Any) -> Script:
    """With a large result, kept apart."""
    script = await driven(store)
    await script.write(recording(script, bulk(), key="k"))
    return await script.complete()


async def misjudged(store: Any) -> Script:
    script = await driven(store)
    await script.write(script.commit(ev.StepCompleted(step=9, task="node", outcome="halted: no"), lease=RELEASE))
    return script


def clocked(path: Path, clock: Clock | None = None) -> Any:
    """A store whose clock moves by hand."""
    clock = clock or Clock()
    store: Any = OpenSqlite(path, now=clock)
    store.clock_forward = lambda: clock.forward(1_000_000)
    return store


def sql(path: Path, *statements: str) -> None:
    """Statements by hand, past the store."""
    db = apsw.Connection(str(path))
    for statement in statements:
        db.execute(statement)
    db.close()


def doc(path: Path, change: Callable[[Run], Run]) -> None:
    """Edits the encoded part of the run's row."""
    db = apsw.Connection(str(path))
    (data,) = db.execute("SELECT doc FROM run").fetchone()
    db.execute("UPDATE run SET doc = ?", (codec.encode_run(change(codec.decode_run(data))),))
    db.close()


def flip(path: Path, table: str, where: str = "1", at: float = 0.5) -> None:
    """One bit of one stored value."""
    db = apsw.Connection(str(path))
    key = "rowid" if table != "whole" else "seq"
    (number, data) = db.execute(f"SELECT {key}, data FROM {table} WHERE {where} LIMIT 1").fetchone()
    changed = bytearray(data)
    changed[int(len(changed) * at)] ^= 0x10
    db.execute(f"UPDATE {table} SET data = ? WHERE {key} = ?", (bytes(changed), number))
    db.close()


def stale(path: Path) -> None:
    doc(path, lambda run: replace(run, active_handoff="r1.h1", waits=(HANDOFF,)))


def ghost(path: Path) -> None:
    doc(path, lambda run: replace(run, active_handoff="ghost"))

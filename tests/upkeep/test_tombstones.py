"""Runs that were pruned: whoever is late for one is told when it went, and by whom (§6.10, X-23)."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Runtime, State
from holdfast.core.errors import RunPruned
from holdfast.testing.conformance import refused
from tests.postgres.server import shared

STORES = ("memory", "sqlite", "workspace", "postgres")


class Note(State):
    text: str = ""


def asking() -> Graph[Note]:
    graph = Graph("asking", Note, version="1")

    @graph.node(start=True)
    async def ask(state: Note, ctx: Context) -> dict[str, Any]:
        await ctx.approve("go on?")
        return {"text": state.text * 2}

    return graph


def url_of(form: str, folder: Path) -> str:
    places = {"memory": "memory:", "sqlite": f"sqlite:///{folder}/s.db", "workspace": f"workspace:///{folder}/ws"}
    return shared().fresh("tombs") if form == "postgres" else places[form]


async def age(rt: Runtime, run_id: str) -> None:
    """Waits until a run is of some age by this process's account of the store's time. Over PostgreSQL it lags by as long as an answer took to come."""
    ended = (await rt.get(run_id)).finished_at
    assert ended is not None
    while dt.datetime.fromtimestamp(rt.store.now() / 1_000_000, dt.UTC) <= ended + dt.timedelta(microseconds=1):
        continue


@pytest.mark.parametrize("form", STORES)
async def test_whoever_is_late_for_a_pruned_run_is_told(form: str, tmp_path: Path) -> None:
    """§6.10: a get, a signal, a decision, a resume, a cancel, a fork, an export: when it went, and by whom."""
    async with Runtime(url_of(form, tmp_path), skills=[asking()]) as rt:
        run = await rt.invoke("asking", {"text": "a"})
        await rt.approve(run.run_id, actor="ada")
        stays = await rt.invoke("asking", {"text": "b"})
        await rt.export(run.run_id, tmp_path / "out")
        await age(rt, run.run_id)
        done = await rt.prune(dt.timedelta(microseconds=1), actor="eve")
        assert done.run_ids == (run.run_id,)
        late = {
            "get": rt.get(run.run_id), "signal": rt.signal(run.run_id, "go"), "decision": rt.decide(run.run_id, "approve", actor="ada"),
            "resume": rt.resume(run.run_id), "cancel": rt.cancel(run.run_id), "fork": rt.fork(run.run_id), "export": rt.export(run.run_id, tmp_path / "again"),
            "check": rt.check(run.run_id),
        }
        for what, asked in late.items():
            error = await refused(RunPruned, asked, "pruned")
            assert isinstance(error, RunPruned) and (error.by, error.run_id) == ("eve", run.run_id), what
            assert error.at > 0 and "eve" in error.message and error.exit_code == 3
        assert await refused(RunPruned, rt.import_runs(tmp_path / "out"), "pruned")
        assert [r.run_id for r in await rt.runs()] == [stays.run_id] and (await rt.check()).ok


@pytest.mark.parametrize("form", ["sqlite", "workspace", "postgres"])
async def test_another_process_is_told_too(form: str, tmp_path: Path) -> None:
    url = url_of(form, tmp_path)
    async with Runtime(url, skills=[asking()]) as rt:
        run = await rt.invoke("asking", {"text": "a"})
        await rt.approve(run.run_id, actor="ada")
        await age(rt, run.run_id)
        assert (await rt.prune(dt.timedelta(microseconds=1))).run_ids == (run.run_id,)
    async with Runtime(url) as rt:
        error = await refused(RunPruned, rt.get(run.run_id), "pruned")
        assert isinstance(error, RunPruned) and error.by == "operator"
        assert (await rt.check()).ok

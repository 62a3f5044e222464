"""X-25, §13.5: secrets are looked for where machines read: spans, streams of events, followers, encrypted exports and stores, and what is said without the key."""

from __future__ import annotations

import base64
import contextlib
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast import Runtime
from holdfast.core.errors import HoldfastError
from holdfast.encryption import Encryption, Keys
from holdfast.telemetry import traced
from tests.engine.test_encryption import contents
from tests.http.support import served
from tests.people.test_secrets_everywhere import Refuses, Secrets, lived, skill
from tests.postgres.instead import OtherStore

SEEDS = [pytest.param(n, marks=pytest.mark.heavy) if n else n for n in range(3)]


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_span_holds_one(seed: int, tmp_path: Path) -> None:
    """Names, attributes, events and statuses of all spans of a run that asks, fails and is cancelled."""
    made, spans = Secrets(seed), InMemorySpanExporter()
    url = f"sqlite:///{tmp_path}/runs.db"
    ids = await lived(url, made)
    async with Runtime(url, skills=[skill()], transports={"mail": Refuses()}) as rt, traced(rt, spans) as out:
        for run_id in ids:
            out.note(run_id)
        run = await rt.invoke("holder", {"host": "h4", **made.values()})
        await rt.deny(run.run_id, reason=f"no: {made.text}", actor="ada")
        await out.flush()
    told = [s.to_json() for s in spans.get_finished_spans()]
    assert len(told) > 10
    assert not {made_in for text in told if (made_in := tuple(made.found_in(text)))}


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_stream_holds_one(seed: int, tmp_path: Path) -> None:
    """Server-sent events of one run and of many, in every encoding that is offered, and the stream of the library."""
    made = Secrets(seed)
    url = f"sqlite:///{tmp_path}/runs.db"
    failed, _, ended = await lived(url, made)
    async with Runtime(url, skills=[skill()]) as rt:
        parts = [repr(part) async for part in rt.stream(ended, modes=("events", "custom", "values", "updates"))]
        assert parts
        async with served(rt, tokens=False) as client:
            for path in (f"/v1/runs/{ended}/stream", f"/v1/runs/{failed}/stream"):
                for more in ("", "?modes=events", "?modes=values,updates", "?protocol=ag-ui", "?protocol=vercel"):
                    answer = await client.get(path + more)
                    if answer.status_code == 200:
                        parts.append(answer.text)
        events = "".join(parts[1:])
        assert "run.canceled" in events or "run.failed" in events
    assert not {shown[:200]: found for shown in parts if "StreamPart(mode='values'" not in shown and (found := made.found_in(shown))}


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_encrypted_file_and_no_error_about_one_holds_one(seed: int, tmp_path: Path, other_store: OtherStore) -> None:
    """The store and an export of it, as bytes, as text and in base64; and what is said by a process that has another key, or none."""
    made, right, wrong = Secrets(seed), Encryption(Keys({"k1": b"1" * 32}), strict=True), Encryption(Keys({"k1": b"2" * 32}), strict=True)
    url = other_store(f"sqlite:///{tmp_path}/runs.db")
    async with Runtime(url, skills=[skill()], encryption=right) as rt:
        run = await rt.invoke("holder", {"host": "h1", **made.values()})
        await rt.approve(run.run_id, note=f"with {made.text}", actor="ada")
        await rt.signal(run.run_id, "told", made.told)
        run = await rt.resume(run.run_id)
        assert run.status == "failed"
        await rt.export(run.run_id, tmp_path / "out")
    words = {w.encode() for w in made.words if len(w) > 11}
    forms = words | {w.hex().encode() for w in words} | {base64.b64encode(w)[:-4] for w in words}
    seen = list(contents(url, tmp_path))
    assert len(seen) > 4
    assert not {name for name, data in seen for form in forms if form in data}
    said = []
    for keys in (wrong, None):
        async with Runtime(url, skills=[skill()], encryption=keys) as rt:
            said += [repr(p) for p in await rt.check()]
            for ask in (rt.get, rt.state, rt.events, rt.effects, rt.checkpoints, rt.record, rt.explain, rt.replay):
                with contextlib.suppress(HoldfastError):
                    try:
                        said.append(repr(await ask(run.run_id)))
                    except HoldfastError as e:
                        said.append(f"{e} {e.hint} {e!r}")
                        raise
    assert len(said) > 8
    assert not {text[:200]: found for text in said if (found := made.found_in(text))}

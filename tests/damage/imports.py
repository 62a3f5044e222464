"""The import bench: exported runs with nasty values anywhere beside their logs, signed anew, taken into a store in which others live (X-23).

    python -m tests.damage.imports --count 1000 --seed 6 --budget 10

Each is refused by a typed error, or taken in exactly as it says; no byte of another run changes, and nothing outside the store's folder.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from holdfast import Runtime
from holdfast.core.errors import HoldfastError
from holdfast.core.intents import ELSEWHERE, Intent
from holdfast.engine.keep.transfer import dossier
from holdfast.stores import WorkspaceStore
from tests.upkeep.test_import import NASTY, exported, others, resigned


def changed(rng: random.Random, nasty: str) -> Any:
    """A change of a line: of its encoded record, or of what people read."""

    def change(fields: dict[str, Any]) -> dict[str, Any]:
        if "data" in fields and rng.random() < 0.7:
            record = msgspec.msgpack.decode(base64.b64decode(fields["data"]))
            if isinstance(record, list) and record:
                record[rng.randrange(len(record))] = rng.choice([nasty, -1, 2**63, None, [], {"a": nasty}])
            return {**fields, "data": base64.b64encode(msgspec.msgpack.encode(record)).decode()}
        return {**fields, rng.choice(sorted(fields)): rng.choice([nasty, -1, None, [nasty]])}

    return change


async def said(source: Path, run_id: str) -> tuple[Any, ...]:
    """What a workspace says of a run beside its log."""
    store = WorkspaceStore(source)
    await store.open()
    try:
        return _beside(await dossier(store, run_id))
    finally:
        await store.close()


def _beside(d: Any) -> tuple[Any, ...]:
    ledger = [msgspec.structs.replace(r, number=0) for r in d.ledger]
    return sorted(d.effects, key=repr), sorted(d.inbox, key=repr), sorted(d.claims, key=repr), sorted(map(_without_import, d.intents), key=repr), ledger


def _without_import(intent: Intent) -> Intent:
    """An intent as it was before it was taken in, which leaves it in doubt (§9.4): an attempt elsewhere is noted, and it is due at once."""
    tries = tuple([t for t in intent.tries if t.owner != ELSEWHERE])
    return msgspec.structs.replace(intent, due=0, attempts=len(tries), tries=tries)


async def imported(folder: Path, count: int, seed: int, budget: float | None = None) -> Counter[str]:
    """Takes in so many, for ``budget`` minutes at most; counts what came of them.

    Raises:
        AssertionError: something of another run, or outside, was changed; or what was taken in is not what was said.
    """
    victim, _ = await exported(folder, "victim")
    run_id, out = await exported(folder, "guest")
    store, whole = folder / "store" / "s.db", folder / "source-victim.db"
    outside = sorted(p.name for p in folder.iterdir())
    until = None if budget is None else time.monotonic() + budget * 60
    counts: Counter[str] = Counter()
    for number in range(count):
        if until is not None and time.monotonic() > until:
            break
        rng = random.Random(f"{seed}/{number}")
        for left in (folder / "forged", store.parent):
            shutil.rmtree(left, ignore_errors=True)
        shutil.copytree(out, folder / "forged" / "out")
        store.parent.mkdir()
        for suffix in ("", "-anchor"):
            shutil.copy(f"{whole}{suffix}", f"{store}{suffix}")
        forged = folder / "forged" / "out" / run_id
        name = rng.choice(sorted(p.stem for p in forged.glob("*.jsonl") if p.stem != "events"))
        nasty = rng.choice(NASTY).replace("VICTIM", victim)
        resigned(forged, name, changed(rng, nasty))
        before = others(store, run_id)
        async with Runtime(f"sqlite:///{store}") as rt:
            try:
                await rt.import_runs(folder / "forged" / "out")
                counts["taken in"] += 1
                assert _beside(await dossier(rt.store, run_id)) == await said(folder / "forged" / "out", run_id), (number, name, nasty)
            except HoldfastError as e:
                counts["refused"] += 1
                counts[f"refused: {e.code}"] += 1
        assert others(store, run_id) == before, (number, name)
        assert sorted(p.name for p in folder.iterdir() if p.name not in ("forged", "store")) == outside, number
    return counts


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.damage.imports", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, metavar="MINUTES", help="It stops earlier where all are done.")
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        counts = asyncio.run(imported(Path(folder), given.count, given.seed, given.budget))
    total = counts["refused"] + counts["taken in"]
    print(f"{total} imports, seed {given.seed}: {counts['refused']} refused, {counts['taken in']} taken in exactly as they say; nothing else changed")
    print("  " + ", ".join(f"{n} {what.removeprefix('refused: ')}" for what, n in counts.most_common() if what.startswith("refused: ")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

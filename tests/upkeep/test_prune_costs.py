"""What pruning costs, counted: each run that goes costs the same, however many others there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.commit import DedupClaim
from holdfast.stores.sqlite import keeping
from holdfast.testing.conformance import TTL, Script
from tests.statements import counting_work
from tests.upkeep import damage as d

FEW, MANY = 20, 200


async def test_pruning_ten_times_as_many_costs_ten_times_as_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """§6.10: nothing is looked through once for each run that goes, neither the log nor the request keys. A transaction takes as many as are found:
    how many it takes by time differs from machine to machine, and each costs something of its own."""
    monkeypatch.setattr(keeping, "HELD", float("inf"))
    cost: list[int] = []
    for count in (FEW, MANY):
        with counting_work() as done:
            store = d.clocked(tmp_path / f"{count}.db")
            await store.open()
            await store.register("w", TTL)
            for n in range(count):
                claim = DedupClaim("request", "t", f"k{n}", f"r{n:04}", "digest", None)
                await (await Script(store, f"r{n:04}").begin("w", claims=(claim,))).complete()
            store.clock_forward()
            before = done.steps
            assert len((await store.prune(store.now())).run_ids) == count
            cost.append(done.steps - before)
            await store.close()
    assert cost[1] <= 1.2 * cost[0] * (MANY / FEW), cost

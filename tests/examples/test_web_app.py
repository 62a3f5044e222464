"""The web application: it records and answers, a worker beside it does the work, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from examples.web_app import app, orders
from starlette.testclient import TestClient

from examples import web_app
from holdfast import Runtime


@pytest.fixture
def charges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(web_app, "URL", f"sqlite:///{tmp_path}/orders.db")
    monkeypatch.setattr(web_app, "CHARGES", tmp_path / "charges.txt")
    return tmp_path / "charges.txt"


@pytest.fixture
def shop(charges: Path) -> Iterator[TestClient]:
    with TestClient(app) as client:
        yield client


def work() -> None:
    """What a worker process beside the application does until nothing is left."""
    import asyncio

    async def drive() -> None:
        async with Runtime(web_app.URL, skills=[orders]) as rt:
            await rt.worker(until_idle=True)

    asyncio.run(drive())


def test_an_order_is_taken_at_once_and_done_by_the_worker(shop: TestClient, charges: Path) -> None:
    order = shop.post("/orders", json={"item": "lamp", "cents": 4200}, headers={"Idempotency-Key": "a1"})
    assert order.status_code == 202 and not charges.exists()
    assert shop.post("/orders", json={"item": "lamp", "cents": 4200}, headers={"Idempotency-Key": "a1"}).json() == order.json()
    work()
    assert shop.get(f"/orders/{order.json()['order']}").json()["result"] == "lamp: charged 42.00"
    assert len(charges.read_text().splitlines()) == 1


def test_a_dear_order_waits_for_its_approval(shop: TestClient, charges: Path) -> None:
    run_id = shop.post("/orders", json={"item": "piano", "cents": 990_000}).json()["order"]
    work()
    shown = shop.get(f"/orders/{run_id}").json()
    assert shown["questions"] == ["Sell piano?"] and not charges.exists()
    assert shop.post(f"/orders/{run_id}/approve").json()["status"] == "queued"
    work()
    assert shop.get(f"/orders/{run_id}").json()["status"] == "done"


def test_errors_keep_their_codes(shop: TestClient) -> None:
    assert shop.get("/orders/nothing").json()["code"] == "run_not_found"
    assert shop.post("/orders", json={"item": "lamp"}, headers={"Idempotency-Key": "x"}).status_code in (202, 422)


def test_it_survives_a_crash_at_every_write(holdfast_crashes, charges: Path) -> None:
    """An order is charged once, wherever the process dies."""
    paid: list[int] = []

    def fresh(world: object) -> None:
        if charges.exists():
            paid.append(len(charges.read_text().splitlines()))
            charges.unlink()

    _, ends = holdfast_crashes(orders, {"item": "lamp", "cents": 4200}, fresh=fresh)
    assert len(ends) > 5 and set(paid) == {1}
    assert {end.run.result for end in ends} == {"lamp: charged 42.00"}

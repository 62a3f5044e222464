"""The web application: it records and answers, a worker beside it does the work, once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from examples.web_app import app, orders
from starlette.testclient import TestClient

from examples import web_app
from holdfast import Runtime
from holdfast.api.problems import status_of
from holdfast.core import errors
from holdfast.handle import StreamPart


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
    (asked,) = shop.get(f"/orders/{run_id}").json()["questions"]
    assert (asked["prompt"], asked["show"]) == ("Sell piano?", {"item": "piano", "cents": 990_000}) and not charges.exists()
    assert shop.post(f"/orders/{run_id}/approve", json={}).status_code == 404, "the question is named, never guessed"
    answer = {"wait_id": asked["wait_id"]}
    assert shop.post(f"/orders/{run_id}/approve", json=answer).json()["status"] == "queued"
    assert not charges.exists(), "the web process records the answer, and the worker pays"
    assert shop.post(f"/orders/{run_id}/approve", json=answer).json()["status"] == "queued", "a double click"
    work()
    assert shop.get(f"/orders/{run_id}").json()["status"] == "done"
    assert shop.post(f"/orders/{run_id}/approve", json=answer).status_code == 200, "and a late one"
    assert len(charges.read_text().splitlines()) == 1


def frames(text: str) -> list[tuple[str, str, object]]:
    """The events of a stream: id, kind and data."""
    split = [dict(line.split(": ", 1) for line in frame.splitlines()) for frame in text.split("\n\n") if frame]
    return [(f.get("id", ""), f["event"], json.loads(f["data"]).get("data")) for f in split]


def test_a_reader_that_comes_back_gets_the_rest(shop: TestClient, charges: Path) -> None:
    run_id = shop.post("/orders", json={"item": "lamp", "cents": 4200}).json()["order"]
    work()
    told = frames(shop.get(f"/orders/{run_id}/events").text)
    assert told[-2][1:] == ("events", "run.completed") and told[-1][1] == "end"
    assert frames(shop.get(f"/orders/{run_id}/events", headers={"Last-Event-ID": told[2][0]}).text) == told[3:]
    assert shop.get(f"/orders/{run_id}/events", headers={"Last-Event-ID": "no cursor"}).status_code == 422


def test_what_counts_no_more_is_told_to_the_page(shop: TestClient, charges: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = shop.post("/orders", json={"item": "lamp", "cents": 4200}).json()["order"]

    async def parts(*_: object, **__: object) -> AsyncIterator[StreamPart]:
        yield StreamPart("custom", "The card", "1.0.1.1.1", run_id, step_id="s")
        yield StreamPart("custom", None, "2.0.1.1.1", run_id, step_id="s", superseded=True)
        yield StreamPart("missed", 3, "2.0.2.1.1", run_id, step_id="s")

    monkeypatch.setattr(Runtime, "stream", parts)
    kinds = [f[1:] for f in frames(shop.get(f"/orders/{run_id}/events").text)]
    assert kinds == [("custom", "The card"), ("superseded", None), ("missed", 3), ("end", None)]


def test_errors_keep_their_codes(shop: TestClient) -> None:
    assert shop.get("/orders/nothing").json()["code"] == "run_not_found"
    assert shop.get("/orders/nothing/events").status_code == 404
    assert shop.post("/orders", json={"item": "lamp"}, headers={"Idempotency-Key": "x"}).status_code == 422


def test_errors_have_the_statuses_of_the_api() -> None:
    kinds = (errors.RunNotFound, errors.InvalidInput, errors.RequestConflict, errors.AlreadyTerminal, errors.NotDecidable, errors.DecisionConflict, errors.StoreError)
    raised = [kind("no") for kind in kinds] + [errors.QueueFull("full", code="queue_full"), errors.HoldfastError("else")]
    for error in raised:
        assert asyncio.run(web_app.refused(None, error)).status_code == status_of(error), error  # type: ignore[arg-type]


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

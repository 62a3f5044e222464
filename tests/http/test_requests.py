"""A person answers the request of a tool's call over HTTP and from the page, and the waiting run goes on with it (§6.5, §11.3, §16, §17.6)."""

from __future__ import annotations

from pathlib import Path

from holdfast import Runtime
from holdfast.core.status import Status
from tests.http.support import bearer, served, token
from tests.http.test_pages import field
from tests.outbox.conftest import Shared
from tests.tools.test_remote import Pair, graph, lose
from tests.tools.test_settled import WHY, request_of


def pair_of(tmp_path: Path) -> Pair:
    store = Shared()
    return Pair(lambda **options: Runtime(store, **options), tmp_path / "space")


async def test_over_http(tmp_path: Path) -> None:
    pair = pair_of(tmp_path)
    async with pair.worker(resolver=lambda actor, *_: actor != "eve") as rt, served(rt) as http:
        mine = bearer(await token(rt, "view", "decide"))
        run = await rt.invoke(graph, {})
        await lose(pair, rt, run.run_id)
        request = await request_of(rt, run.run_id)
        early = await http.post(f"/v1/intents/{request}/redrive", headers=mine, json={"reason": WHY})
        assert (early.status_code, early.json()["code"]) == (409, "attempt_may_live")
        refused = await http.post(f"/v1/intents/{request}/settle", headers=mine, json={"as": "sent", "actor": "eve"})
        assert (refused.status_code, refused.json()["code"]) == (403, "denied")
        again = await http.post(f"/v1/intents/{request}/redrive", headers=mine, json={"reason": WHY, "force": True})
        assert (again.status_code, again.json()["state"]) == (202, "abandoned"), again.text
        await rt.worker(until_idle=True)
        anew = await request_of(rt, run.run_id)
        wrong = await http.post(f"/v1/intents/{anew}/settle", headers=mine, json={"as": "sent", "result": {"code": 0}})
        assert (wrong.status_code, wrong.json()["field"]) == (422, "result"), wrong.text
        body = {"as": "sent", "result": {"exit_code": 0, "stdout": "by hand"}, "reason": WHY}
        settled = await http.post(f"/v1/intents/{anew}/settle", headers=mine, json=body)
        assert (settled.status_code, settled.json()["state"], settled.json()["rulings"][0]["actor"]) == (200, "sent", "ada"), settled.text
        assert (await http.post(f"/v1/intents/{anew}/settle", headers=mine, json=body)).status_code == 200, "the same again"
        other = await http.post(f"/v1/intents/{anew}/settle", headers=mine, json={"as": "sent", "result": {"exit_code": 1}})
        assert (other.status_code, other.json()["code"]) == (409, "intent_settled")
        await rt.worker(until_idle=True)
        done = (await http.get(f"/v1/runs/{run.run_id}", headers=mine)).json()
        assert (done["status"], (await rt.get(run.run_id)).values["out"], pair.count) == ("completed", "by hand", 0)


async def test_from_the_page(tmp_path: Path) -> None:
    """Where no runner can answer by itself the page offers what may be said, for a call in words that fit one."""
    pair = pair_of(tmp_path)
    async with pair.worker() as rt, served(rt, tokens=False) as http:
        first, second = [await rt.invoke(graph, {}) for _ in range(2)]
        async with pair.runner() as runner:
            await runner.dispatch(until_idle=True)
        await rt.worker(until_idle=True)
        assert pair.count == 2
        first, second = [await rt.invoke(graph, {}) for _ in range(2)]
        one, other = [await request_of(rt, r.run_id) for r in (first, second)]
        page = (await http.get("/effects")).text
        assert page.count("It happened") == 2 and "It was sent" not in page, "those that are answered need nothing"
        said = {"csrf": field(page, "csrf"), "reason": WHY}
        assert (await http.post(f"/intents/{one}", data={**said, "verb": "sent", "result": "{"})).status_code == 422
        assert (await http.post(f"/intents/{one}", data={**said, "verb": "sent", "result": '{"stdout": "by hand"}'})).status_code == 303
        assert (await http.post(f"/intents/{other}", data={**said, "verb": "abandoned", "result": ""})).status_code == 303
        await rt.worker(until_idle=True)
        done, failed = await rt.get(first.run_id), await rt.get(second.run_id)
        assert (done.status, done.values["out"]) == (Status.COMPLETED, "by hand")
        assert failed.status == Status.FAILED and failed.error is not None and f"was given up by operator ({WHY})" in failed.error.message


async def test_the_page_offers_it_for_a_runner_that_is_gone(tmp_path: Path) -> None:
    pair = pair_of(tmp_path)
    async with pair.worker() as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(graph, {})
        await lose(pair, rt, run.run_id)
        assert "It did not happen: request it again" in (await http.get("/effects")).text

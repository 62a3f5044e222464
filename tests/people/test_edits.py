"""An edit of what is approved: offered where a schema says what it is, on every surface, and nowhere else (§5.4)."""

from __future__ import annotations

import html
import re
from typing import Any, Literal

import msgspec
import pytest

from holdfast import Context, Graph, Runtime, State, flow
from holdfast.core.errors import InvalidAnswer, InvalidInput
from holdfast.core.explain import EDIT
from holdfast.core.policy import require_human
from tests.http.support import served


class Order(msgspec.Struct):
    item: str
    cents: int = 0


KINDS: dict[str, Any] = {"none": None, "fields": Order, "mapping": dict[str, int], "text": str, "number": int, "bool": bool, "choice": Literal["small", "large"]}


@flow("buy")
async def buy(ctx: Context, kind: str) -> Any:
    decision = await ctx.approve("Buy?", show={"item": "desk"}, schema=KINDS[kind])
    return decision.payload


EDITS: list[tuple[str, dict[str, str], Any]] = [
    ("fields", {"f.item": "lamp"}, {"item": "lamp"}),
    ("mapping", {"payload": '{"a": 1}'}, {"a": 1}),
    ("text", {"value": "lamp"}, "lamp"),
    ("number", {"value": "7"}, 7),
    ("bool", {"value": "false"}, False),
    ("choice", {"payload": '"large"'}, "large"),
]


def form(page: str) -> dict[str, str]:
    """What a browser sends of the page's only answer form when nothing was filled in: its fields with the values that they start with."""
    found = re.search(r'<form method="post" action="[^"]*/answer">(.*?)</form>', page, re.S)
    assert found is not None, page
    sent = {n: html.unescape(v) for n, v in re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', found[1])}
    sent |= dict.fromkeys(re.findall(r'<(?:input id="[^"]*"|textarea [^>]*?) name="([^"]+)"', found[1]), "")
    for name, options in re.findall(r'<select [^>]*name="([^"]+)"[^>]*>(.*?)</select>', found[1], re.S):
        first = re.search(r'<option(?: value="([^"]*)")?>([^<]*)<', options)
        assert first is not None
        sent[name] = first[2] if first[1] is None else first[1]
    return sent


@pytest.mark.parametrize("kind", KINDS)
async def test_an_approval_that_edits_nothing_is_possible_on_the_page(kind: str) -> None:
    async with Runtime("memory:", skills=[buy]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(buy, {"kind": kind})
        page = (await http.get(f"/runs/{run.run_id}")).text
        assert ("Edit what is approved" in page) == (kind != "none"), "an edit is offered where it can be checked"
        assert "required" not in page.partition("Edit what is approved")[2].partition("</details>")[0], "nobody has to edit"
        answered = await http.post(f"/runs/{run.run_id}/answer", data=form(page) | {"action": "approve"})
        assert answered.status_code == 303, answered.text
        assert (await rt.resume(run.run_id)).result is None


@pytest.mark.parametrize(("kind", "filled", "wanted"), EDITS)
async def test_an_edit_on_the_page_reaches_the_flow(kind: str, filled: dict[str, str], wanted: Any) -> None:
    async with Runtime("memory:", skills=[buy]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(buy, {"kind": kind})
        sent = form((await http.get(f"/runs/{run.run_id}")).text)
        assert set(filled) <= set(sent), "the form has the field"
        await http.post(f"/runs/{run.run_id}/answer", data=sent | filled | {"action": "approve"})
        assert (await rt.resume(run.run_id)).result == wanted


@pytest.mark.parametrize("kind", KINDS)
async def test_every_view_says_whether_it_can_be_edited(kind: str) -> None:
    async with Runtime("memory:", skills=[buy]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(buy, {"kind": kind})
        (shown,) = (await http.get(f"/v1/runs/{run.run_id}")).json()["waits"]
        assert shown["editable"] is (kind != "none")
        said = {a["text"]: a["command"] for a in (await rt.explain(run.run_id))["next"]}
        assert (f"{EDIT}." in said) is (kind != "none")
        assert said.get(f"{EDIT}.", "--payload JSON").endswith("--payload JSON")


async def test_a_value_without_a_schema_still_reaches_a_flow_that_reads_it() -> None:
    async with Runtime("memory:", skills=[buy]) as rt:
        run = await rt.invoke(buy, {"kind": "none"})
        assert (await rt.approve(run.run_id, payload=[1])).result == [1]
        run = await rt.invoke(buy, {"kind": "number"})
        with pytest.raises(InvalidAnswer):
            await rt.approve(run.run_id, payload="x")


async def test_a_gate_takes_no_edit() -> None:
    graph = Graph("gated", State)

    @graph.node(start=True, gate=lambda request: require_human("May it?"))
    async def pay(state: State) -> None: ...

    async with Runtime("memory:", skills=[graph]) as rt:
        run = await rt.invoke(graph)
        with pytest.raises(InvalidInput, match="cannot be edited") as caught:
            await rt.approve(run.run_id, payload={"item": "lamp"})
        assert caught.value.hint == "approve it without a payload"
        assert (await rt.approve(run.run_id)).status == "completed", "and nothing was decided by what was refused"

"""Forms of the pages: what a person consents to is shown whole, and what a form says is taken as it was meant or refused (§5.8, §17.5, §17.7)."""

from __future__ import annotations

import html
import json
import re
from typing import Any, Literal

import httpx
import msgspec
import pytest

from holdfast import Context, Graph, Runtime, State, flow
from holdfast.api import app
from holdfast.ui.requests import Path
from tests.http.support import graph, served, token
from tests.http.test_pages import field

LONG = "Dear all, " + "we thank you for your patience. " * 40
END = "Send the money to Eve."


def shown(page: str) -> str:
    """What of a page is seen, without its list of events, which repeats everything in its raw form."""
    return html.unescape(page.split('id="events"')[0])


@pytest.mark.parametrize("show", [{"draft": f"{LONG}\n\n{END}", "to": "all"}, {"lines": [LONG, END]}, {"deep": {"er": [LONG, {"end": END}]}}, f"{LONG}{END}"])
async def test_a_person_sees_all_of_what_the_consent_covers(show: Any) -> None:
    """§5.8: a decision covers what was shown; on the inbox, the run's page and the page of a link."""

    @flow("mail")
    async def mail(ctx: Context) -> None:
        await ctx.approve(f"Send this? {LONG} And delete the backup?", show=show)

    async with Runtime("memory:", skills=[mail]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(mail, {})
        link = await rt.issue_token(run.waits[0].wait_id, "grace")
        for path in ("/waits", f"/runs/{run.run_id}", f"/w/{link}"):
            page = shown((await http.get(path)).text)
            assert END in page and "And delete the backup?" in page, path


async def test_the_inbox_says_where_the_rest_is_read() -> None:
    """Fifty questions on one page cannot all be of any length; the pages of the run and of a link have one question."""

    @flow("mail")
    async def mail(ctx: Context) -> None:
        await ctx.approve("Send this?", show={"draft": "x" * 30_000 + END})

    async with Runtime("memory:", skills=[mail]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(mail, {})
        link = await rt.issue_token(run.waits[0].wait_id, "grace")
        inbox = shown((await http.get("/waits")).text)
        assert END not in inbox and "10,022 more characters" in inbox and f'href="/runs/{run.run_id}"' in inbox
        for path in (f"/runs/{run.run_id}", f"/w/{link}"):
            assert END in shown((await http.get(path)).text), path


# -- answers ------------------------------------------------------------------------------------------

PREFIX = "The third option of the contract, as both sides have read it in the last meeting, which was held in the afternoon and lasted for longer than an hour and a half, "


async def send(http: httpx.AsyncClient, run: Any, said: dict[str, str]) -> httpx.Response:
    page = (await http.get(f"/runs/{run.run_id}")).text
    form = {"csrf": field(page, "csrf"), "wait_id": run.waits[0].wait_id, "action": "answer"}
    return await http.post(f"/runs/{run.run_id}/answer", data={**form, **said})


def choices(page: str, name: str) -> list[tuple[str, str]]:
    """The options of a select: what is sent, and what is read."""
    inside = re.search(rf'name="{re.escape(name)}"[^>]*>(.*?)</select>', page, re.S)
    assert inside is not None
    return [(html.unescape(value), html.unescape(text)) for value, text in re.findall(r'<option value="([^"]*)"[^>]*>([^<]*)', inside[1]) if value]


@pytest.mark.parametrize("wanted", [(f"{PREFIX}yes", f"{PREFIX}no"), ("1", 1, 2, "a  b", "a b", '"a"', "a"), ("<b>", "it's", '"', "é\u202e", "\u2028")])
async def test_the_choice_that_was_made_is_the_answer(wanted: tuple[Any, ...]) -> None:
    """Choices that read alike, or that differ only where a line of the page is cut, are told apart."""
    asked = msgspec.defstruct("OfTheForm", [("which", Literal[wanted])])

    @flow("choose")
    async def choose(ctx: Context) -> Any:
        return (await ctx.ask("Which?", asked)).which  # type: ignore[attr-defined]

    async with Runtime("memory:", skills=[choose]) as rt, served(rt, tokens=False) as http:
        for one in wanted:
            run = await rt.invoke(choose, {})
            there = [value for value, _ in choices((await http.get(f"/runs/{run.run_id}")).text, "f.which")]
            mine = [value for value in there if type(found := json.loads(value)) is type(one) and found == one]
            assert len(mine) == 1 and (await send(http, run, {"f.which": mine[0]})).status_code == 303, there
            answer = (await rt.resume(run.run_id)).result
            assert (type(answer), answer) == (type(one), one)


@pytest.mark.parametrize("said", ["yes", "", "maybe", "TRUE", "2"])
async def test_what_is_neither_yes_nor_no_is_no_answer(said: str) -> None:
    """§3.7: whatever was no `true` was taken for False."""

    @flow("sure")
    async def sure(ctx: Context) -> Any:
        return await ctx.ask("Sure?", bool)

    async with Runtime("memory:", skills=[sure]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(sure, {})
        refused = await send(http, run, {"value": said})
        assert refused.status_code == 422 and (await rt.get(run.run_id)).status == "waiting_for_human", refused.text
        assert (await send(http, run, {"value": "false"})).status_code == 303
        assert (await rt.resume(run.run_id)).result is False


class KeptForm(msgspec.Struct):
    at: str


class LooseForm(msgspec.Struct):
    """Fields that may be null, or of several types."""

    name: str
    count: int | None
    note: str | None = None
    sure: bool | None = None
    sizes: list[int] | None = None
    by: dict[str, int] | None = None
    kept: KeptForm | None = None
    kind: Literal["a", "b"] | None = None
    either: int | str = 0
    some: Any = None


GIVEN = {"note": ("5", "5"), "sure": ("false", False), "sizes": ("[1, 2]", [1, 2]), "by": ('{"a": 1}', {"a": 1}), "kept": ('{"at": "x"}', KeptForm("x")), "kind": ('"b"', "b"), "count": ("7", 7)}
JSON = {"either": [("5", 5), ('"5"', "5")], "some": [('{"a": 1}', {"a": 1}), ("[null]", [None]), ('"x"', "x")]}


async def test_a_field_that_may_be_null_or_of_several_types_can_be_answered() -> None:
    """§17.5: whatever was typed into such a field was sent as text, so that numbers and lists were refused, and JSON for any value was taken as a string."""

    @flow("optional")
    async def optional(ctx: Context) -> Any:
        return msgspec.to_builtins(await ctx.ask("Which?", LooseForm))

    async with Runtime("memory:", skills=[optional]) as rt, served(rt, tokens=False) as http:

        async def answer(**typed: str) -> Any:
            run = await rt.invoke(optional, {})
            said = {f"f.{n}": typed.get(n, "") for n in LooseForm.__struct_fields__}
            assert (got := await send(http, run, {**said, "f.name": "n"})).status_code == 303, got.text
            return msgspec.convert((await rt.resume(run.run_id)).result, LooseForm)

        assert await answer() == LooseForm("n", None), "what may be null is left empty"
        assert await answer(**{n: text for n, (text, _) in GIVEN.items()}) == LooseForm("n", **{n: value for n, (_, value) in GIVEN.items()})  # type: ignore[arg-type]
        for name, all_ways in JSON.items():
            for text, value in all_ways:
                assert getattr(await answer(**{name: text}), name) == value, (name, text)
        run = await rt.invoke(optional, {})
        page = (await http.get(f"/runs/{run.run_id}")).text
        assert [value for value, _ in choices(page, "f.kind")] == ['"a"', '"b"'] and [value for value, _ in choices(page, "f.sure")] == ["true", "false"]
        assert re.search(r'name="f.count" type="number"(?![^>]*required)', page) and re.search(r'name="f.name" required', page)
        refused = await send(http, run, {"f.name": "n", "f.some": "no quotes"})
        assert refused.status_code == 422 and "put text in quotes" in html.unescape(refused.text)


# -- a fork -------------------------------------------------------------------------------------------


class Kinds(State):
    flag: Any = None


async def test_a_fork_keeps_its_reason_over_a_look_at_the_difference() -> None:
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        page = (await http.get(f"/runs/{run.run_id}/fork")).text
        looked = await http.post(f"/runs/{run.run_id}/fork", data={"csrf": field(page, "csrf"), "from": field(page, "from"), "reason": 'the "other" name', "look": "1"})
        assert field(looked.text, "reason") == 'the "other" name'


async def test_a_fork_changes_what_differs_in_its_kind_alone() -> None:
    """In Python 1 == True == 1.0, in JSON they are three values."""
    g = Graph("kinds", Kinds)

    @g.node(start=True)
    async def ask(state: Kinds, ctx: Context) -> None:
        await ctx.approve("Go on?")

    async with Runtime("memory:", skills=[g]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(g, {"flag": True})
        page = (await http.get(f"/runs/{run.run_id}/fork")).text
        form = {"csrf": field(page, "csrf"), "from": field(page, "from")}
        for text, wanted in (("1", 1), ("1.0", 1.0), ("true", True)):
            looked = (await http.post(f"/runs/{run.run_id}/fork", data={**form, "set.flag": text})).text
            assert ("Nothing: the same values again." in looked) == (wanted is True)
            made = await http.post(f"/runs/{run.run_id}/fork", data={**form, "set.flag": text, "sure": "1"})
            found = (await rt.get(made.headers["location"].rpartition("/")[2])).values["flag"]
            assert (type(found), found) == (type(wanted), wanted)


# -- whatever is sent ---------------------------------------------------------------------------------

FORMS = {
    "/runs/{run}/answer": {"action": "approve", "wait_id": "{wait}", "payload": "", "value": "", "feedback": "", "note": "", "actor": ""},
    "/runs/{run}/resume": {"acknowledge": ""}, "/runs/{run}/cancel": {"reason": ""}, "/runs/{run}/replay": {}, "/runs/{run}/repair": {},
    "/runs/{run}/fork": {"from": "head", "set.name": "", "reason": "", "sure": ""}, "/runs/selection": {"verb": "cancel", "run": "{run}", "sure": ""},
    "/schedules/{schedule}": {"verb": "pause"}, "/intents/none": {"verb": "redrive", "reason": "", "force": "", "result": ""}, "/queues/default": {"verb": "pause", "reason": ""},
    "/login": {"token": "", "next": ""}, "/logout": {}, "/w/{link}": {"action": "halt", "payload": "", "note": ""}, "/zone": {"zone": "", "next": ""},
}
HOSTILE = ["", "é", "\u202e", "\0", "{", "[" * 5000, "NaN", "1e999", '{"a": 1, "a": 2}', '"\\ud800"', "x" * 20_000, "9" * 400, "<script>alert(1)</script>", "//evil", "/\r\nX: y"]


@pytest.mark.parametrize("path", FORMS)
async def test_no_field_of_a_form_makes_a_5xx(path: str) -> None:
    """§16.4, §17.8: also the field of the session's own secret, which is compared before anything else is."""
    async with Runtime("memory:", skills=[g := graph()]) as rt, served(rt) as http:
        run = await rt.invoke(g, {"name": "Ada"})
        names = {"run": run.run_id, "wait": run.waits[0].wait_id, "schedule": (await rt.schedule(g, {}, every=3600)).id, "link": await rt.issue_token(run.waits[0].wait_id, "grace")}
        secret = await token(rt, "admin", tenant="*")
        fields = {n: v.format(**names) for n, v in FORMS[path].items()}
        for name in (*fields, "csrf"):
            for value in HOSTILE:
                await http.post("/login", data={"token": secret})
                csrf = field((await http.get(f"/runs/{run.run_id}")).text, "csrf")
                answer = await http.post(path.format(**names), data={"csrf": csrf, **fields, name: value})
                assert answer.status_code < 500, (name, value[:40], answer.text[-600:])
                assert "<script>alert" not in answer.text and "\u202e" not in answer.text and "evil" not in answer.headers.get("location", ""), (name, value[:40])


def test_every_form_is_among_these() -> None:
    made = app(Runtime("memory:"), pages=True)
    there = {r.path for r in made.routes if isinstance(r, Path) and "POST" in (r.methods or ()) and not r.path.startswith("/v1/")}
    assert len(there) == len(FORMS) and {p.partition("/")[0] + "/" + p.split("/")[1] for p in there} == {p.partition("/")[0] + "/" + p.split("/")[1] for p in FORMS}

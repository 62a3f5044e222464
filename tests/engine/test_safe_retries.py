"""``retry=`` never repeats what is not safe to repeat (§10.9, X-29)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Graph, Retry, State, Tool, flow
from holdfast.core import events as ev
from holdfast.core.errors import ToolFailed
from holdfast.ports import ToolOutcome, ToolRequest
from tests.engine.support import World, says

RETRY = Retry(max_attempts=3)


class Sent(State):
    n: int = 0


class Mail:
    """An act that fails as often as it is told, and counts."""

    def __init__(self, fails: int = 9) -> None:
        self.calls = 0
        self.fails = fails

    async def send(self, *args: Any) -> int:
        self.calls += 1
        if self.calls <= self.fails:
            raise ConnectionError(f"try {self.calls}")
        return self.calls


class Runner:
    """A tool runner whose tools fail as often as they are told."""

    def __init__(self, mail: Mail) -> None:
        self._mail = mail

    async def run(self, request: ToolRequest) -> ToolOutcome:
        try:
            await self._mail.send()
        except ConnectionError:
            return ToolOutcome(exit_code=1, stderr="no")
        return ToolOutcome()


def by_flow(mail: Mail, **effect: Any) -> Any:
    @flow("sender", retry=RETRY)
    async def sender(ctx: Context) -> int:
        return await ctx.effect(mail.send, **effect)

    return sender


def by_node(mail: Mail, **effect: Any) -> Any:
    graph = Graph("sender", Sent)

    @graph.node(start=True, retry=RETRY)
    async def send(state: Sent, ctx: Context) -> dict[str, Any]:
        return {"n": await ctx.effect(mail.send, **effect)}

    return graph


def declared(mail: Mail, *, key: Any = None, side_effects: str = "external_action", **effect: Any) -> Any:
    graph = Graph("sender", Sent)

    @graph.node(start=True, retry=RETRY, side_effects=side_effects, **effect)
    async def send(state: Sent) -> dict[str, Any]:
        return {"n": await mail.send()}

    return graph


def by_call(mail: Mail, **effect: Any) -> Any:
    @flow("sender")
    async def sender(ctx: Context) -> int:
        return await ctx.effect(mail.send, retry=RETRY, **effect)

    return sender


def in_a_sub_flow(mail: Mail, **effect: Any) -> Any:
    graph = Graph("outer", Sent)
    graph.subgraph("inner", by_plain_node(mail, **effect), start=True, retry=RETRY)
    return graph


def by_plain_node(mail: Mail, **effect: Any) -> Any:
    graph = Graph("inner", Sent)

    @graph.node(start=True)
    async def send(state: Sent, ctx: Context) -> dict[str, Any]:
        return {"n": await ctx.effect(mail.send, **effect)}

    return graph


def in_a_gather(mail: Mail, **effect: Any) -> Any:
    @flow("sender", retry=RETRY)
    async def sender(ctx: Context) -> int:
        return sum(await ctx.gather(ctx.effect(mail.send, **effect), ctx.step(_one)))

    return sender


def _one() -> int:
    return 1


WAYS = [by_flow, by_node, declared, by_call, in_a_gather, in_a_sub_flow]
UNSAFE: list[dict[str, Any]] = [{}, {"key": "k"}, {"side_effects": "write"}]
SAFE: list[dict[str, Any]] = [{"idempotent": True}, {"idempotent": True, "key": "k"}, {"side_effects": "read"}]


@pytest.mark.parametrize("effect", UNSAFE, ids=str)
@pytest.mark.parametrize("way", WAYS)
async def test_what_is_not_declared_idempotent_is_not_repeated_without_a_person(way: Callable[..., Any], effect: dict[str, Any]) -> None:
    mail, world = Mail(fails=2), World()
    skill = way(mail, **effect)
    async with world.runtime(skill) as rt:
        run = await rt.invoke(skill)
        for tries in (1, 2):
            assert (run.status, [w.kind for w in run.waits], mail.calls) == ("waiting_for_human", ["retry"], tries)
            run = await rt.approve(run.run_id)
        assert (run.status, mail.calls) == ("completed", 3)


@pytest.mark.parametrize("effect", SAFE, ids=str)
@pytest.mark.parametrize("way", WAYS)
async def test_what_is_safe_goes_on_by_itself(way: Callable[..., Any], effect: dict[str, Any]) -> None:
    mail = Mail(fails=2)
    skill = way(mail, **effect)
    async with World().runtime(skill) as rt:
        run = await rt.invoke(skill)
        assert (run.status, mail.calls) == ("completed", 3)


@pytest.mark.parametrize("way", WAYS)
async def test_a_denial_ends_it(way: Callable[..., Any]) -> None:
    mail = Mail()
    skill = way(mail)
    async with World().runtime(skill) as rt:
        run = await rt.deny((await rt.invoke(skill)).run_id, reason="no")
        assert (run.status, run.stop_reason, mail.calls) == ("canceled", "denied", 1)


@pytest.mark.parametrize("way", WAYS)
async def test_the_budget_survives_another_process(way: Callable[..., Any]) -> None:
    """Three means three: the attempts of a dead process count, and so does a person's consent (L-17)."""
    mail, world = Mail(), World()
    skill = way(mail)
    async with world.runtime(skill) as rt:
        run_id = (await rt.invoke(skill)).run_id
    for _ in range(2):
        async with world.runtime(skill) as rt:
            assert mail.calls < 3
            run = await rt.approve(run_id)
    assert (run.status, mail.calls) == ("failed", 3)


async def test_a_plain_failure_after_a_recorded_effect_is_tried_again_by_itself() -> None:
    """What is on record is not done again, so nothing unsafe is repeated."""
    mail, tries = Mail(fails=0), []

    @flow("sender", retry=RETRY)
    async def sender(ctx: Context) -> int:
        sent = await ctx.effect(mail.send)
        tries.append(sent)
        if len(tries) < 3:
            raise ValueError("boom")
        return sent

    async with World().runtime(sender) as rt:
        run = await rt.invoke(sender)
        assert (run.status, mail.calls, tries) == ("completed", 1, [1, 1, 1])


async def test_one_consent_does_not_cover_the_next_failure() -> None:
    """A plain failure after the consent goes on by itself; another failure of the act asks again."""
    mail, tries = Mail(fails=1), []

    @flow("sender", retry=Retry(max_attempts=5))
    async def sender(ctx: Context) -> int:
        sent = await ctx.effect(mail.send)
        tries.append(sent)
        if len(tries) == 1:
            raise ValueError("boom")
        return sent

    async with World().runtime(sender) as rt:
        run = await rt.invoke(sender)
        run = await rt.approve(run.run_id)
        assert (run.status, mail.calls, tries) == ("completed", 2, [2, 2])


@pytest.mark.parametrize(("idempotency", "asked"), [("not_supported", True), ("optional", False), ("required", False)])
@pytest.mark.parametrize("where", ["call", "node"])
async def test_tools_go_by_their_idempotency(where: str, idempotency: str, asked: bool) -> None:
    mail = Mail(fails=2)
    tools = [Tool("post", side_effects="write", idempotency=idempotency)]

    @flow("sender", retry=RETRY if where == "node" else None)
    async def sender(ctx: Context) -> int:
        return (await ctx.tool("post", retry=RETRY if where == "call" else None)).exit_code

    async with World().runtime(sender, tools=tools, tool_runner=Runner(mail)) as rt:
        run = await rt.invoke(sender)
        assert (run.status, mail.calls) == (("waiting_for_human", 1) if asked else ("completed", 3))


async def test_an_undeclared_tool_asks() -> None:
    mail = Mail(fails=2)

    @flow("sender", retry=RETRY)
    async def sender(ctx: Context) -> str:
        try:
            await ctx.tool("post")
        except ToolFailed:
            raise
        return "sent"

    async with World().runtime(sender, tool_runner=Runner(mail)) as rt:
        assert ((await rt.invoke(sender)).waits[0].kind, mail.calls) == ("retry", 1)


@pytest.mark.parametrize("after", [True, False])
async def test_a_crash_around_the_question_asks_once(after: bool) -> None:
    mail, world = Mail(fails=1), World()
    skill = by_flow(mail)
    await world.crash(skill, when=says(ev.WaitRequested), after=after)
    if not after:
        await world.recovered(skill)
    async with world.runtime(skill) as rt:
        [run] = await rt.runs()
        assert [w.kind for w in run.waits] == ["retry"] and mail.calls == 1
        assert (await rt.approve(run.run_id)).status == "completed" and mail.calls == 2

"""An agent of the OpenAI Agents SDK in a flow (§19.5)."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from agents import Agent, ModelResponse, ModelSettings, RunConfig, RunHooks, Runner, ToolOutputText, Usage, function_tool, handoff
from agents.models.interface import Model, ModelProvider
from agents.run_config import SandboxRunConfig
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from pydantic import BaseModel

from holdfast import Context, Runtime, flow
from holdfast.integrations.openai_agents import run_agent

done: list[str] = []


def call(number: int, name: str, **arguments: Any) -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(type="function_call", call_id=f"call-{number}", name=name, arguments=json.dumps(arguments))


class Stub(Model):
    """A model of three requests: look something up twice, then pay, then say so."""

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
        returned = [i for i in input if isinstance(i, dict) and i.get("type") == "function_call_output"] if isinstance(input, list) else []
        done.append(f"model {len(returned)}")
        if not returned:
            output: list[Any] = [call(1, "look_up", order="17"), call(2, "look_up", order="18")]
        elif len(returned) == 2:
            output = [call(3, "pay", cents=4200)]
        else:
            text = ResponseOutputText(type="output_text", text=f"done: {returned[-1]['output']}", annotations=[])
            output = [ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])]
        return ModelResponse(output=output, usage=Usage(requests=1, input_tokens=3, output_tokens=4, total_tokens=7), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError


@function_tool
async def look_up(order: str) -> str:
    done.append(f"look_up {order}")
    return f"order {order}"


@function_tool(needs_approval=True)
async def pay(cents: int) -> str:
    done.append(f"pay {cents}")
    return f"paid {cents}"


agent = Agent(name="desk", model=Stub(), tools=[look_up, pay])


@flow("openai-desk", version="1")
async def desk(ctx: Context, question: str) -> str:
    return str((await run_agent(ctx, agent, question, reads=["look_up"], idempotent=["pay"])).final_output)


@pytest.fixture(autouse=True)
def fresh() -> None:
    done.clear()


async def test_each_model_request_and_tool_happens_once_around_an_approval() -> None:
    async with Runtime("memory:", skills=[desk]) as rt:
        run = await rt.invoke(desk, {"question": "Pay me back."})
        assert run.status == "waiting_for_human", run.error
        assert run.waits[0].show == {"tool": "pay", "arguments": '{"cents": 4200}'}
        run = await rt.approve(run.run_id, actor="ada")
        assert (run.status, run.result) == ("completed", "done: paid 4200"), run.error
        assert sorted(done) == sorted(["model 0", "look_up 17", "look_up 18", "model 2", "pay 4200", "model 3"])
        assert [e.status.value for e in await rt.effects(run.run_id)] == ["recorded"]


async def test_a_denied_tool_is_told_to_the_model() -> None:
    async with Runtime("memory:", skills=[desk]) as rt:
        run = await rt.invoke(desk, {"question": "Pay me back."})
        run = await rt.deny(run.run_id, actor="ada", reason="no")
        assert run.status == "completed" and not any(d.startswith("pay") for d in done)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the world drops the framework's coroutines where a process dies
def test_a_crash_at_any_write_repeats_no_recorded_request(holdfast_crashes: Any) -> None:
    counts: list[list[str]] = []
    _, ends = holdfast_crashes(desk, {"question": "Pay me back."}, fresh=lambda world: (counts.append(list(done)), done.clear()))
    assert {(str(end.run.result), str(end.run.error), end.run.condition) for end in ends} == {("done: paid 4200", "None", "done")}
    assert all(c.count(one) <= 2 for c in counts for one in c)


triage = Agent(name="triage", model=Stub(), tools=[look_up])


@flow("openai-handoff", version="1")
async def handed(ctx: Context, question: str) -> str:
    """A conversation of two turns, the second with the agent that the first ended with."""
    first = await run_agent(ctx, triage, question, reads=["look_up"])
    again = await run_agent(ctx, first.last_agent, question, reads=["look_up"])
    return f"{first.final_output}; {again.last_agent.name}"


@pytest.mark.parametrize("made", [False, True], ids=["agent", "handoff"])
async def test_an_agent_that_is_handed_over_to_is_on_record(made: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a handoff that the user made, in a circle; an agent that comes out of a run goes into the next."""

    class Hands(Stub):
        async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
            done.append("triage")
            return ModelResponse(output=[call(9, "transfer_to_clerk")], usage=Usage(), response_id=None)

    class Pays(Stub):
        async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
            paid = isinstance(input[-1], dict) and input[-1].get("output") == "paid 4200"
            text = ResponseOutputText(type="output_text", text="paid", annotations=[])
            said = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
            return ModelResponse(output=[said] if paid else [call(3, "pay", cents=4200)], usage=Usage(), response_id=None)

    clerk = Agent(name="clerk", model=Pays(), tools=[look_up, pay])
    clerk.handoffs = [handoff(triage) if made else triage]
    monkeypatch.setattr(triage, "handoffs", [handoff(clerk) if made else clerk])
    monkeypatch.setattr(triage, "model", Hands())
    async with Runtime("memory:", skills=[handed]) as rt:
        run = await rt.invoke(handed, {"question": "Pay me back."})
        while run.status == "waiting_for_human":
            run = await rt.approve(run.run_id, actor="ada")
        assert (run.status, run.result) == ("completed", "paid; clerk"), run.error
        assert [(e.capability, e.status.value) for e in await rt.effects(run.run_id)] == [("pay", "recorded")] * 2
        assert done.count("pay 4200") == 2 and done.count("triage") == 1


class Asks(Stub):
    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
        text = ResponseOutputText(type="output_text", text=str(input[-1].get("output")), annotations=[])
        said = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse(output=[said if input[-1].get("output") else call(1, "ask", input="Pay me back.")], usage=Usage(), response_id=None)


class Named(ModelProvider):
    """Where agents get a model whose name alone they have."""

    def get_model(self, model_name: str | None) -> Model:
        return Asks() if model_name == "asks" else Stub()


async def test_an_agent_that_is_a_tool_is_part_of_the_tools_call() -> None:
    inner = Agent(name="inner", tools=[look_up, dataclasses.replace(pay, needs_approval=False)])
    boss = Agent(name="boss", model="asks", tools=[inner.as_tool("ask", "asks")])

    @flow("openai-boss", version="1")
    async def bossy(ctx: Context, question: str) -> str:
        return str((await run_agent(ctx, boss, question, run_config=RunConfig(model_provider=Named(), tracing_disabled=True))).final_output)

    async with Runtime("memory:", skills=[bossy]) as rt:
        run = await rt.invoke(bossy, {"question": "Pay me back."})
        assert (run.status, run.result) == ("completed", "done: paid 4200"), run.error
        assert sorted(done) == sorted(["model 0", "look_up 17", "look_up 18", "model 2", "pay 4200", "model 3"])
        assert [(e.capability, e.status.value) for e in await rt.effects(run.run_id)] == [("ask", "recorded")]


class Provides(ModelProvider):
    """Knows one model by one name."""

    def get_model(self, model_name: str | None) -> Model:
        assert model_name == "stub"
        return Stub()


class Hears(Stub):
    """Tells with which settings it is asked."""

    async def get_response(self, system_instructions: Any, input: Any, model_settings: Any, *args: Any, **options: Any) -> ModelResponse:
        done.append(f"at {model_settings.temperature}")
        return await super().get_response(system_instructions, input, *args, **options)


CONFIGS: list[tuple[Any, Any]] = [
    (None, RunConfig(model=Stub(), tracing_disabled=True)),
    ("stub", RunConfig(model_provider=Provides(), tracing_disabled=True)),
    (None, RunConfig(model="stub", model_provider=Provides(), tracing_disabled=True)),
    (None, {"model": "stub", "model_provider": Provides(), "tracing_disabled": True}),
]


@pytest.mark.parametrize(("named", "config"), CONFIGS, ids=["a model", "a provider", "a name", "a dict"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the world drops the framework's coroutines where a process dies
def test_the_models_of_a_run_config_are_asked_on_record(named: Any, config: Any, holdfast_crashes: Any) -> None:
    """Also over the approval, and wherever the process dies."""
    clerk = Agent(name="desk", model=named, tools=[look_up, pay])

    @flow("configured", version="1")
    async def configured(ctx: Context, question: str) -> str:
        return str((await run_agent(ctx, clerk, question, reads=["look_up"], idempotent=["pay"], run_config=config)).final_output)

    counts: list[list[str]] = []
    _, ends = holdfast_crashes(configured, {"question": "Pay me back."}, fresh=lambda world: (counts.append(list(done)), done.clear()))
    assert {(str(end.run.result), str(end.run.error)) for end in ends} == {("done: paid 4200", "None")}
    assert sorted(counts[1]) == sorted(["model 0", "look_up 17", "look_up 18", "model 2", "pay 4200", "model 3"]), "undisturbed"
    assert all(c.count(one) <= 2 for c in counts for one in c)


async def test_the_rest_of_a_run_config_and_the_hooks_reach_the_sdk() -> None:
    """Settings, filters, limits and hooks are the SDK's own, and the user's config is left as it was."""

    class Hooks(RunHooks[Any]):
        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            done.append(f"hook {tool.name}")

    config = RunConfig(model=Hears(), model_settings=ModelSettings(temperature=0.25), tracing_disabled=True)
    before = dict(vars(config))
    handed = Agent(name="desk", tools=[look_up, dataclasses.replace(pay, needs_approval=False)])

    @flow("hooked", version="1")
    async def hooked(ctx: Context, question: str, turns: int) -> str:
        return str((await run_agent(ctx, handed, question, run_config=config, hooks=Hooks(), max_turns=turns)).final_output)

    async with Runtime("memory:", skills=[hooked]) as rt:
        run = await rt.invoke(hooked, {"question": "Pay me back.", "turns": 5})
        assert (run.status, run.result) == ("completed", "done: paid 4200"), run.error
        assert done.count("at 0.25") == 3 and [d for d in done if d.startswith("hook")] == ["hook look_up", "hook look_up", "hook pay"]
        assert dict(vars(config)) == before
        run = await rt.invoke(hooked, {"question": "Pay me back.", "turns": 2})
        assert run.error is not None and run.error.type.endswith("MaxTurnsExceeded")


async def test_what_a_run_config_would_do_off_the_record_is_refused() -> None:
    @flow("sandboxed", version="1")
    async def sandboxed(ctx: Context, question: str) -> None:
        await run_agent(ctx, agent, question, run_config=RunConfig(sandbox=SandboxRunConfig()))

    async with Runtime("memory:", skills=[sandboxed]) as rt:
        run = await rt.invoke(sandboxed, {"question": "Pay me back."})
        assert run.error is not None and run.error.type.endswith("UsageError") and "sandbox" in run.error.message


class Order(BaseModel):
    number: str


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Order(number="17"), "number='17'"),
        ([Order(number="17")], "[Order(number='17')]"),
        ({"number": 17}, "{'number': 17}"),
        ((1, 2), "(1, 2)"),
        (ToolOutputText(text="17"), [{"type": "input_text", "text": "17"}]),
        ([ToolOutputText(text="17")], [{"type": "input_text", "text": "17"}]),
        (None, "None"),
    ],
)
async def test_what_a_tool_answers_is_told_to_the_model_as_the_sdk_tells_it(answer: Any, told: Any) -> None:
    heard: list[Any] = []

    class Hears(Stub):
        async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
            if not isinstance(input, str) and input[-1].get("type") == "function_call_output":
                heard.append(input[-1]["output"])
                text = ResponseOutputText(type="output_text", text="done", annotations=[])
                return ModelResponse(output=[ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])], usage=Usage(), response_id=None)
            return ModelResponse(output=[call(1, "find")], usage=Usage(), response_id=None)

    @function_tool
    async def find() -> Any:
        return answer

    finder = Agent(name="finder", model=Hears(), tools=[find])

    @flow("finder", version="1")
    async def finding(ctx: Context, question: str) -> str:
        return str((await run_agent(ctx, finder, question)).final_output)

    await Runner.run(finder, "17?", run_config=RunConfig(tracing_disabled=True))
    async with Runtime("memory:", skills=[finding]) as rt:
        run = await rt.invoke(finding, {"question": "17?"})
        assert (run.status, run.result) == ("completed", "done"), run.error
    assert heard == [told, told]

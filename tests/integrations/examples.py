"""Examples of Pydantic AI and of the OpenAI Agents SDK, as these projects publish them, in a flow and killed at every store write (must show 4).

    python -m tests.integrations.examples --pydantic-ai SRC --openai-agents SRC --budget 10

``SRC`` is a checkout of the project ($PYDANTIC_AI_SRC, $OPENAI_AGENTS_SRC). Of an example's source the lines in ``WRAPPED`` alone are changed: the model is a stub, the
agent has Holdfast's capability or is run by ``run_agent``, and what the program does in ``asyncio.run`` it does in a flow. Each is run once
undisturbed and then once for each store write and each side of it, with the process killed there and another one that goes on. What must
hold: the same lines are printed in the end, but for those that a tool on record printed in the process that died, and a model is asked once more at
most, which is what was under way.
An example whose packages are missing is skipped by name; ``uv run --with logfire --with rich`` brings them.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import importlib.util
import json
import os
import re
import sys
import time
import types
import warnings
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agents import ModelResponse as OpenAIResponse
from agents import Usage, set_tracing_disabled
from agents.models.interface import Model
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from holdfast import Context, Flow, current, flow
from holdfast.integrations.openai_agents import run_agent
from holdfast.integrations.pydantic_ai import HoldfastDurability
from holdfast.testing.world import World, crash_everywhere

Call = tuple[str, Mapping[str, Any]]
Answer = str | Call
"""What a stub says: a text, or the call of a tool."""

WRAPPED: dict[str, Sequence[tuple[str, str]]] = {
    "pydantic-ai": (
        (r"Agent(\[[^\]]*\])?\(\s*'(?:openai|groq):[^']*',", r"Agent\1(model(), name=name(), capabilities=[HoldfastDurability()],"),
        (r"(\w+)\.run_sync\(", r"await \1.run("),
    ),
    "openai-agents": (
        (r"\bAgent(\[\w+\])?\((?!model)", r"Agent\1(model=model(), "),
        (r"\bRunner\.run\(", "run_agent(current(), "),
    ),
}
EVERYWHERE = ((r"asyncio\.run\(main\(\)\)", "await main()"), (r"if __name__ == ['\"]__main__['\"]:", "if True:"))
asked: list[str] = []


class Example(NamedTuple):
    """An example, and what its models answer: a script for each agent, in the order in which they are made."""

    project: str
    path: str
    scripts: Sequence[Sequence[Answer]]
    typed: Sequence[str] = ()
    needs: Sequence[str] = ()


FLIGHT = {"flight_number": "SFO-AK123", "price": 350, "origin": "SFO", "destination": "ANC", "date": "2025-01-10"}
EXAMPLES = (
    Example(
        "pydantic-ai",
        "examples/pydantic_ai_examples/bank_support.py",
        [[("customer_balance", {}), ("final_result", {"support_advice": "Hello John.", "block_card": False, "risk": 1})]],
    ),
    Example("pydantic-ai", "examples/pydantic_ai_examples/roulette_wheel.py", [[("roulette_wheel", {"square": 18}), ("final_result", {"response": True})]]),
    Example(
        "pydantic-ai",
        "examples/pydantic_ai_examples/flight_booking.py",
        [
            [("extract_flights", {}), ("final_result_FlightDetails", FLIGHT)],
            [("final_result", {"response": [FLIGHT]})],
            [("final_result_SeatPreference", {"row": 1, "seat": "A"})],
        ],
        typed=("buy", "a window seat in front"),
        needs=("logfire", "rich"),
    ),
    Example("openai-agents", "examples/basic/tools.py", [[("get_weather", {"city": "Tokyo"}), "The weather in Tokyo is sunny."]]),
    Example(
        "openai-agents",
        "examples/agent_patterns/agents_as_tools.py",
        [["Hola"], ["Bonjour"], ["Ciao"], [("translate_to_spanish", {"input": "Hello"}), ("translate_to_french", {"input": "Hello"}), "Hola, Bonjour"], ["Hola! Bonjour!"]],
    ),
    Example(
        "openai-agents",
        "examples/agent_patterns/human_in_the_loop.py",
        [[("get_weather", {"city": "Oakland"}), ("get_temperature", {"city": "Oakland"}), "It is sunny, 20 degrees."]],
    ),
    Example(
        "openai-agents",
        "examples/customer_service/main.py",
        [
            ["I have no answer."],
            ["", ("update_seat", {"confirmation_number": "A1", "new_seat": "12C"}), "You sit in 12C."],
            [("transfer_to_seat_booking_agent", {}), "Goodbye."],
        ],
    ),
)


class PydanticStub:
    """Says its next answer; which one that is shows in the messages, so that it needs no memory."""

    def __init__(self, script: Sequence[Answer]) -> None:
        self._script = script

    def _next(self, messages: list[ModelMessage]) -> Answer:
        number = sum(isinstance(m, ModelResponse) for m in messages)
        asked.append(f"{self._script[-1]} {number}")
        return self._script[number]

    async def whole(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        said = self._next(messages)
        return ModelResponse(parts=[TextPart(said) if isinstance(said, str) else ToolCallPart(said[0], dict(said[1]))])

    async def pieces(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        said = self._next(messages)
        yield said if isinstance(said, str) else {0: DeltaToolCall(said[0], json.dumps(said[1]), tool_call_id=f"c{len(messages)}")}

    def model(self) -> FunctionModel:
        return FunctionModel(self.whole, stream_function=self.pieces)


class OpenAIStub(Model):
    """The same for the OpenAI Agents SDK."""

    def __init__(self, script: Sequence[Answer]) -> None:
        self._script = script

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> OpenAIResponse:
        items = input if isinstance(input, list) else []
        number = sum(isinstance(i, dict) and i.get("type") == "function_call_output" for i in items) if len(self._script) > 1 else 0
        asked.append(f"{self._script[-1]} {number}")
        said = self._script[number]
        if isinstance(said, str):
            text = ResponseOutputText(type="output_text", text=said, annotations=[])
            output: Any = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
        else:
            output = ResponseFunctionToolCall(type="function_call", call_id=f"c{number}", name=said[0], arguments=json.dumps(said[1]))
        return OpenAIResponse(output=[output], usage=Usage(requests=1, total_tokens=1), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError("no example that is run here streams")


def wrapped(example: Example, source: str) -> tuple[str, int]:
    """The source with the lines changed that wrap it, and how many changes those are."""
    changes = 0
    for pattern, instead in (*WRAPPED[example.project], *EVERYWHERE):
        source, count = re.subn(pattern, instead, source)
        changes += count
    return source, changes


def skill(example: Example, checkout: Path) -> tuple[Flow[Any, Any], int]:
    """The program as a flow; its result is what it prints."""
    file = checkout / example.path
    text, changes = wrapped(example, file.read_text("utf-8"))
    code = compile(text, str(file), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)

    async def program(ctx: Context) -> list[str]:
        said: list[str] = []
        scripts, names, typed = iter(example.scripts), iter(range(99)), iter(example.typed)
        module = types.ModuleType(f"example_{file.stem}")
        stub = PydanticStub if example.project == "pydantic-ai" else OpenAIStub
        vars(module).update(
            model=lambda: stub(next(scripts)).model() if stub is PydanticStub else stub(next(scripts)),
            name=lambda: f"agent-{next(names)}",
            print=lambda *words, **_: said.append(" ".join(map(str, words))),
            HoldfastDurability=HoldfastDurability,
            run_agent=run_agent,
            current=current,
        )
        sys.modules[module.__name__] = module
        builtins.input = lambda *_: next(typed)
        running = eval(code, vars(module))
        if running is not None:
            await running
        return said

    return flow(f"example-{file.stem}", version="1")(program), changes


def run(example: Example, checkout: Path) -> str:
    """Runs it undisturbed, and killed at every write; says how often.

    Raises:
        AssertionError: another end than the undisturbed one, or a model that was asked again for what is on record.
    """
    program, changes = skill(example, checkout)
    lives: list[list[str]] = []

    def fresh(world: World) -> None:
        lives.append(list(asked))
        asked.clear()

    asked.clear()
    whole, ends = crash_everywhere(program, {}, fresh=fresh)
    lives = [*lives[1:], list(asked)]
    assert whole.status == "completed" and whole.result, whole.error
    assert len(lives[0]) >= 2, "its models were asked"
    for end, life in zip(ends, lives[1:], strict=True):
        assert end.run.status == "completed", (end.number, end.verb, end.fault, end.run.error)
        lines = iter(whole.result)
        assert end.run.result[-1] == whole.result[-1] and all(line in lines for line in end.run.result), (end.number, end.verb, end.fault, end.run.result)
        assert len(life) <= len(lives[0]) + 1 and set(life) == set(lives[0]), (end.number, end.verb, end.fault, life)
    return f"{changes} places changed, {len(lives[0])} requests to models, killed {len(ends)} times, ended the same each time; asked again {sum(len(x) - len(lives[0]) for x in lives)} times what was under way"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pydantic-ai", default=os.environ.get("PYDANTIC_AI_SRC"), metavar="SRC")
    parser.add_argument("--openai-agents", default=os.environ.get("OPENAI_AGENTS_SRC"), metavar="SRC")
    parser.add_argument("--budget", type=float, default=10, metavar="MINUTES", help="begins no example after so many minutes")
    parser.add_argument("--only", default="", help="a part of the path of those that are run")
    given = parser.parse_args()
    sources = {"pydantic-ai": given.pydantic_ai, "openai-agents": given.openai_agents}
    end = time.monotonic() + given.budget * 60
    set_tracing_disabled(True)
    warnings.simplefilter("ignore")
    os.environ |= {"EXAMPLES_INTERACTIVE_MODE": "auto", "LOGFIRE_CONSOLE": "false"}
    passed, skipped, failed = 0, 0, 0
    for example in [e for e in EXAMPLES if given.only in e.path]:
        source = sources[example.project]
        missing = [n for n in example.needs if importlib.util.find_spec(n) is None]
        why = (
            f"no checkout of {example.project} is named"
            if source is None
            else f"the packages {', '.join(missing)} are missing"
            if missing
            else "the budget ended"
            if time.monotonic() > end
            else ""
        )
        if why:
            skipped += 1
            print(f"skipped {example.project} {example.path}: {why}", flush=True)
            continue
        if example.project == "openai-agents":
            lend_auto_mode(Path(source))
        try:
            print(f"passed {example.project} {example.path}: {run(example, Path(source))}", flush=True)
            passed += 1
        except AssertionError as e:
            print(f"FAILED {example.project} {example.path}: {e}", flush=True)
            failed += 1
    print(f"asked {passed + skipped + failed}, passed {passed}, skipped {skipped}, failed {failed}")
    return 1 if failed or not passed else 0


def lend_auto_mode(checkout: Path) -> None:
    """The module of that project's examples which they ask for input."""
    spec = importlib.util.spec_from_file_location("examples.auto_mode", checkout / "examples" / "auto_mode.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    vars(module)["print"] = lambda *_, **__: None


if __name__ == "__main__":
    sys.exit(main())

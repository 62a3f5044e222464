"""The API against its own document: ``python -m tests.http.fuzz --cases 50000`` (about as many minutes as thousands; ``--budget MINUTES`` ends it).

schemathesis makes sequences of requests out of the OpenAPI document (a run that one answer names is asked for by the next) and holds every answer against it:
no 5xx, no status, media type or shape that the document does not tell of, no traceback, no token that is not asked for. The default test run takes 500 cases.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import FlakyStrategyDefinition
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from holdfast import Runtime
from holdfast.api import app
from tests.http.scenes import Mail, many, notes

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@contextlib.contextmanager
def serving(store: str) -> Iterator[str]:
    """A server of a store with runs of each kind, in a thread of its own: where it listens."""
    up, place = threading.Event(), []
    stop: list[Any] = []

    async def serve() -> None:
        async with Runtime(store, transports={"mail": Mail()}) as rt:
            rt.add(notes())
            if store.startswith("sqlite"):
                await many(rt)
            else:
                await rt.invoke(notes(), {"repo": "holdfast"})
            server = uvicorn.Server(uvicorn.Config(app(rt, tokens=False), host="127.0.0.1", port=0, log_config=None, access_log=False, lifespan="off"))
            config = server.config
            config.load()
            server.lifespan = config.lifespan_class(config)
            await server.startup()
            place.append(server.servers[0].sockets[0].getsockname()[1])
            stop.append(server)
            up.set()
            await server.main_loop()
            await server.shutdown()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert up.wait(60)
    try:
        yield f"http://127.0.0.1:{place[0]}"
    finally:
        stop[0].should_exit = True
        thread.join(30)


def things(place: str) -> dict[str, list[str]]:
    """The ids of what is there, by the name of the parameter that takes them."""
    runs = httpx.get(place + "/v1/runs?limit=100").json()["runs"]
    return {
        "run_id": [r["run_id"] for r in runs], "thread_id": [r["thread_id"] for r in runs], "checkpoint_id": ["head", "c1", "c3"],
        "intent_id": [i["intent_id"] for i in httpx.get(place + "/v1/intents").json()["intents"]] or ["none"],
        "schedule_id": [s["schedule_id"] for s in httpx.get(place + "/v1/schedules").json()["schedules"]] or ["none"],
    }


class Enough(KeyboardInterrupt):
    """So many cases as were asked for have been sent, or the time is over."""


def fuzz(store: str, cases: int, seconds: float) -> Counter[str]:
    """Sends so many cases, or as many as fit; what was answered, by status."""
    seen: Counter[str] = Counter()
    until = time.monotonic() + seconds
    with serving(store) as place:
        schema = schemathesis.openapi.from_url(place + "/v1/openapi.json")
        schema = schema.exclude(path_regex="stream$")
        known = things(place)

        class Machine(schema.as_state_machine()):  # type: ignore[misc]
            def validate_response(self, response: Any, case: Any, **more: Any) -> None:
                case.validate_response(response, checks=CHECKS)
                assert "Traceback" not in response.text
                seen[str(response.status_code)] += 1

            def before_call(self, case: Any) -> None:
                if seen.total() >= cases or time.monotonic() > until:
                    raise Enough
                for name in case.path_parameters or {}:  # most ids that are made up lead nowhere: every other one is of something that is there
                    if name in known and (seen.total() % 4):
                        case.path_parameters[name] = known[name][seen.total() % len(known[name])]

        wanted = settings(
            max_examples=cases, stateful_step_count=10, deadline=None, database=None, derandomize=False, print_blob=True,
            phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
        )
        with contextlib.suppress(Enough):
            while True:
                # What a server answers depends on what was asked before, so that the same draws may lead elsewhere: then it begins anew.
                with contextlib.suppress(FlakyStrategyDefinition):
                    Machine.run(settings=wanted)
    return seen


if __name__ == "__main__":
    asked = argparse.ArgumentParser(prog="python -m tests.http.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--cases", type=int, default=500)
    asked.add_argument("--budget", type=float, default=90, metavar="MINUTES")
    asked.add_argument("--store", default="memory:")
    given = asked.parse_args()
    began = time.monotonic()
    found = fuzz(given.store, given.cases, given.budget * 60)
    skipped = given.cases - found.total()
    print(f"asked {given.cases}, done {found.total()}, skipped {skipped}, no answer but the document's, by status {dict(sorted(found.items()))}, {time.monotonic() - began:.0f} s")
    sys.exit(0)

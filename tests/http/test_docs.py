"""docs/http.md: every route stands there with a curl line, and every line does what it says (issue «Serve»)."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from holdfast import Runtime
from holdfast.api.table import ROUTES
from tests.http.scenes import Mail, notes
from tests.http.support import graph, served, token

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text("utf-8")
LINES = re.findall(r"\(`(\w+) (\S+)`; ([\w ]+)\):\n\n    (curl .*)\n", PAGE)
STREAMS = {"/v1/stream"}
"""These go on for ever: they are asked for, and left."""


def test_every_route_has_a_line_with_its_scope() -> None:
    told = {(method, re.sub(r"\$(\w+)", "{}", path), scope) for method, path, scope, _ in LINES}
    assert told == {(r.method, re.sub(r"/head$|{\w+}", lambda m: m[0] if m[0] == "/head" else "{}", r.path).replace("/checkpoints/{}", "/checkpoints/head"), str(r.scope or "no token")) for r in ROUTES}


def test_a_shell_fills_in_every_variable() -> None:
    """A shell replaces nothing within single quotes; and what each variable is, is said before the first line."""
    said = PAGE.partition("## Routes")[2].partition("\n\n    curl")[0]
    for *_, line in LINES:
        assert "$" not in "".join(re.findall(r""""(?:\\.|[^"\\])*"|'([^']*)'""", line)), line
        assert [name for name in re.findall(r"\$\w+", line) if f"`{name}`" not in said] == [], line


async def test_every_line_does_what_it_says() -> None:
    """Sent in the order of the page, each as it stands."""
    async with Runtime("memory:", skills=[g := graph()], transports={"mail": Mail()}) as rt, served(rt) as http:
        rt.add(n := notes())
        mail = await rt.invoke(n, {"repo": "mail", "to": "nobody"})
        await rt.dispatch(until_idle=True)
        runs = [await rt.invoke(g, {"name": "Ada"}) for _ in range(5)]
        known = dict(zip(("RUN", "OTHER", "THIRD", "FOURTH", "FIFTH"), (r.run_id for r in runs), strict=True))
        known |= {
            "DONE": (await rt.invoke(g, {"name": "quick"})).run_id, "SIGNAL": (await rt.invoke(g, {"name": "wait"})).run_id, "WAIT": runs[2].waits[0].wait_id,
            "LINK": await rt.issue_token(runs[4].waits[0].wait_id, "grace"), "INTENT": (await rt.intents(mail.run_id))[0].intent_id,
            "SCHEDULE": (await rt.schedule(g, {}, every=3600)).id, "H": "", "T": await token(rt, "admin"),
        }
        known["THREAD"] = (await rt.invoke(g, {"name": "wait"}, thread_id="t1")).thread_id
        for method, path, scope, line in LINES:
            words = shlex.split(re.sub(r"\$(\w+)", lambda m: known[m[1]], line))
            url, headers, body = "", {}, None
            rest = iter(words[1:])
            for word in rest:
                match word:
                    case "-s" | "-N":
                        pass
                    case "-H":
                        name, _, value = next(rest).partition(": ")
                        headers[name] = value
                    case "-d":
                        body = next(rest)
                    case _:
                        url = word
            assert ("Authorization" in headers) is (scope != "no token") and ("Content-Type" in headers) is (body is not None), line
            assert (method == "POST") is (body is not None), line
            if path in STREAMS:
                continue
            answer = await http.request(method, url, headers=headers, content=body)
            assert answer.status_code < 300, (line, answer.status_code, answer.text[:400])

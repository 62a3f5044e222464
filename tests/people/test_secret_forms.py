"""X-25: a secret is hidden in whatever form it is printed."""

from __future__ import annotations

import json
import logging
import traceback
import uuid
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Context, Graph, Runtime, State, append, secret
from holdfast.core.masks import HIDDEN, mask

TEXTS = st.text(st.characters(codec="utf-8"), min_size=6, max_size=40).filter(lambda t: len(t.strip()) >= 6 and len(set(t)) > 3)


@given(TEXTS)
def test_a_text_in_any_form(text: str) -> None:
    hidden = mask(["token"], [{"token": text}])
    printed = [text, repr(text), str({"a": [text]}), json.dumps({"a": text}), json.dumps({"a": text}, ensure_ascii=False), repr(text.encode()), json.dumps(json.dumps(text))]
    try:
        raise ValueError(f"no: {text!r} {text}")
    except ValueError:
        printed.append(traceback.format_exc())
    for shown in printed:
        assert text.strip() not in hidden.text(shown), shown
        assert json.dumps(text)[1:-1] not in hidden.text(shown) or json.dumps(text)[1:-1] == "", shown
    assert text not in hidden.value({text: 1, "x": [text]})


@pytest.mark.parametrize("value", [123456789, 12345.678, uuid.UUID(int=2**100 + 7), b"\x00secret\xff", {"inner-secret": 1}, ["list-secret"]])
def test_other_values(value: Any) -> None:
    """Numbers, UUIDs, bytes, and the keys of what is secret."""
    hidden = mask(["token"], [{"token": value}])
    for shown in (str(value), repr(value), json.dumps(value, default=str)):
        left = hidden.text(f"it is {shown}.")
        assert all(str(part) not in left for part in (value if isinstance(value, list | dict) else [value])), left
    if isinstance(value, uuid.UUID):
        assert value.hex not in hidden.text(value.hex) and str(value.int) not in hidden.text(str(value.int))
    if isinstance(value, int | float | bytes):
        assert hidden.value({"other": value}) == {"other": HIDDEN}


async def test_a_traceback_in_the_log_hides_it(caplog: pytest.LogCaptureFixture) -> None:
    """``ctx.log.exception`` shows the exception without what is secret in it."""
    word = 'tok"en\n\u00fc-1234'

    class Keys(State):
        token: Annotated[str, secret] = ""

    graph = Graph("keys", Keys, version="1")

    @graph.node(start=True)
    async def use(state: Keys, ctx: Context) -> None:
        try:
            raise ValueError(f"{state.token!r} is wrong: {state.token}")
        except ValueError:
            ctx.log.exception("failed with %(what)s", {"what": state.token})

    with caplog.at_level(logging.DEBUG):
        async with Runtime("memory:", skills=[graph]) as rt:
            await rt.invoke("keys", {"token": word})
    assert "failed with" in caplog.text and HIDDEN in caplog.text
    for form in (word, repr(word)[1:-1], json.dumps(word)[1:-1], "-1234"):
        assert form not in caplog.text, form


async def test_a_step_may_log_before_a_secret_channel_has_a_value(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing stands there yet; what does in another is hidden."""

    class Keys(State):
        token: Annotated[str, secret] = ""
        later: Annotated[list[str], append, secret]

    graph = Graph("keys", Keys, version="1")

    @graph.node(start=True)
    async def use(state: Keys, ctx: Context) -> None:
        ctx.log.warning("with %s", state.token)

    with caplog.at_level(logging.DEBUG):
        async with Runtime("memory:", skills=[graph]) as rt:
            run = await rt.invoke("keys", {"token": "tok-1234"})
    assert run.status == "completed" and f"with {HIDDEN}" in caplog.text

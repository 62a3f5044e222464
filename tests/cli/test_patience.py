"""What takes long says so on a terminal, and leaves no trace; in a pipe it says nothing."""

from __future__ import annotations

import asyncio
import io

import pytest

from holdfast.cli.session import Patience


class Terminal(io.StringIO):
    """A terminal that tells when something is written."""

    def __init__(self, there: bool = True) -> None:
        super().__init__()
        self.news = asyncio.Event()
        self.there = there

    def isatty(self) -> bool:
        return self.there

    def write(self, text: str) -> int:
        self.news.set()
        return super().write(text)


async def test_a_line_is_shown_while_it_lasts_and_is_gone_at_the_end() -> None:
    terminal = Terminal()
    async with Patience("checking", terminal, every=0):
        await terminal.news.wait()
        assert terminal.getvalue().startswith("\r\x1b[2Kchecking, 0 s")
    assert terminal.getvalue().endswith("\r\x1b[2K")


@pytest.mark.parametrize(("what", "there", "every"), [("checking", False, 0.0), ("", True, 0.0), ("checking", True, 1.0)])
async def test_nothing_is_shown_in_a_pipe_or_where_it_is_quick(what: str, there: bool, every: float) -> None:
    terminal = Terminal(there)
    async with Patience(what, terminal, every=every):
        for _ in range(20):
            await asyncio.sleep(0)
    assert terminal.getvalue() == ""


async def test_an_error_leaves_no_line_behind() -> None:
    terminal = Terminal()

    async def broken() -> None:
        async with Patience("checking", terminal, every=0):
            await terminal.news.wait()
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await broken()
    assert terminal.getvalue().endswith("\r\x1b[2K")

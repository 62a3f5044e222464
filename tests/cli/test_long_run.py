"""The page of a run of many steps stays a page."""

from pathlib import Path

from tests.cli.conftest import Type

LONG = '''
from holdfast import Context, flow


def one(n: int) -> int:
    return n


@flow("long", version="1")
async def long(ctx: Context, count: int) -> int:
    return len(await ctx.map(one, list(range(count)), concurrency=10))
'''


def test_show_is_bounded_and_full_shows_all(folder: Path, holdfast: Type) -> None:
    (folder / "long.py").write_text(LONG, "utf-8")
    assert holdfast("run", "long.py", "--input", '{"count": 150}').code == 0
    page, full = holdfast("show", "last").out, holdfast("show", "last", "--full").out
    assert len(page.splitlines()) < 100 and "more (--full shows them)" in page
    assert "run.submitted" in page and "run.completed" in page, "the first and the last are shown"
    assert len(full.splitlines()) > 150 and "more (--full" not in full

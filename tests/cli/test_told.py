"""What a person is told while a run needs them: what was answered, what is late, who serves what, and pages that stay short."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Type

from holdfast.cli.pages import MOST

MANY = """
from holdfast import Context, flow


def load(n: int) -> int:
    if n == 70:
        raise ValueError("shard 70 is broken")
    return n


@flow("nightly")
async def nightly(ctx: Context, count: int) -> list[int]:
    return await ctx.map(load, range(count))
"""


def test_an_answer_says_what_was_answered_and_a_second_one_who_was_first(holdfast: Type) -> None:
    run_id = holdfast("run", "work.py", "--input", '{"name": "Ada"}', "--json").json["run_id"]
    said = holdfast("approve", run_id, "--actor", "ada")
    assert said.code == 0 and "approved: Go on?" in said.out and "approved; queued" in said.out and "work.py:graph" in said.out
    again = holdfast("approve", run_id)
    assert again.code == 6 and "was answered already (approve by ada) and is queued" in again.err and f"resume {run_id} work.py:graph" in again.err


def test_a_page_of_many_calls_is_bounded_and_its_failure_told_once(folder: Path, holdfast: Type) -> None:
    (folder / "many.py").write_text(MANY, "utf-8")
    run_id = holdfast("run", "many.py", "--input", '{"count": 100}', "--json").json["run_id"]
    short, full = holdfast("show", run_id), holdfast("show", run_id, "--full")
    assert len(short.out.splitlines()) < MOST + 40 < len(full.out.splitlines())
    assert f"show {run_id} --full" in short.out or "--full" in short.out
    said = " ".join(holdfast("explain", run_id).out.split())
    assert said.count("failed in attempt") == 1 and "calls completed; their results are kept" in said


def test_wrong_words_are_answered_with_the_right_ones(holdfast: Type) -> None:
    assert "--condition interrupted" in holdfast("runs", "--status", "interrupted", "--store", "memory:").err
    assert "did you mean sqlite:///runs.db?" in holdfast("runs", "--store", "runs.db").err
    assert "'\"a text\"'" in holdfast("approve", "0" * 26, "--payload", "ok").err
    for word in ("doctor", "check"):
        said = holdfast(word, "--store", "sqlite:///typo.db")
        assert said.code == 3 and f"{Path.cwd() / 'typo.db'}" in said.err
    holdfast("migrate")
    assert "there is no run yet in sqlite:///" in holdfast("show", "last").err

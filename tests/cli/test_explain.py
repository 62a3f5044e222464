"""``explain`` on the command line: a run that waits, one that failed, one that is done, and one that is not there."""

from __future__ import annotations

from tests.cli.conftest import Type


def explained(holdfast: Type, name: str) -> tuple[str, str]:
    run_id = str(holdfast("run", "work.py", "--input", f'{{"name": "{name}"}}', "--json").json["run_id"])
    said = holdfast("explain", run_id)
    assert said.code == 0
    return run_id, said.out


def test_a_waiting_run_shows_the_question_and_what_answers_it(holdfast: Type) -> None:
    run_id, out = explained(holdfast, "Ada")
    assert "It waits for a person: Go on? (approval)." in out and f"holdfast approve {run_id}\n" in out


def test_a_failed_run_shows_the_line_that_raised(holdfast: Type) -> None:
    run_id, out = explained(holdfast, "broken")
    assert "ValueError: it is broken (" in " ".join(out.split()) and "work.py:" in out and f"holdfast resume {run_id} work.py:graph --acknowledge" in out


def test_a_done_run_is_told_in_json_too(holdfast: Type) -> None:
    run_id, _ = explained(holdfast, "quick")
    found = holdfast("explain", run_id, "--json").json
    assert list(found) == ["run_id", "happened", "why", "next"] and found["why"] == "It is done." and found["happened"][-1] == "The run completed."


def test_an_unknown_run_is_one_line(holdfast: Type) -> None:
    holdfast("run", "work.py", "--input", '{"name": "quick"}')
    said = holdfast("explain", "01kdvdna004vschfr8kqh2gh8g")
    assert said.code == 3 and said.err.startswith("run_not_found: ") and said.out == ""

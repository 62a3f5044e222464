"""What is said of a run that is not here (§6.10)."""

from holdfast.core.errors import RunNotFound, RunPruned
from holdfast.core.pruned import Tombstone, missing


def test_what_is_said_of_a_run_that_is_not_here() -> None:
    nobody = missing("r1", None)
    assert type(nobody) is RunNotFound and nobody.code == "run_not_found" and nobody.exit_code == 3
    left = missing("r1", Tombstone("r1", 1_700_000_000_000_000, "ada"))
    assert isinstance(left, RunPruned) and (left.code, left.exit_code, left.at, left.by, left.run_id) == ("pruned", 3, 1_700_000_000_000_000, "ada", "r1")
    assert "2023-11-14T22:13:20" in left.message and "by ada" in left.message and left.hint

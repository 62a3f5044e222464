"""`python -m tests.workers.pressure` says what it is not asked for rightly; its rounds are measurements, and are made by hand."""

from __future__ import annotations

import pytest

from tests.workers.pressure import main


def test_a_round_that_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["no-such-round"])
    assert "there are snapshot" in capsys.readouterr().err

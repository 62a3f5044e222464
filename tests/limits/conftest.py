"""The tests of limits run over every store, as those of the outbox do."""

from tests.outbox.conftest import open_rt

__all__ = ["open_rt"]

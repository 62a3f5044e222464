"""What of the tests of tools is about stores runs over every one, as those of the outbox do."""

from tests.outbox.conftest import open_rt

__all__ = ["open_rt"]

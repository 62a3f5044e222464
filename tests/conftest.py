"""Settings shared by all tests: how hard hypothesis tries.

``fast`` is the default: few examples, the same ones each time, so that a red run is red for everyone.
``pytest --hypothesis-profile=long`` looks for new ones.
"""

import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("fast", max_examples=50, derandomize=True, deadline=None, database=None)
settings.register_profile("long", max_examples=2_000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fast")

pytest_plugins = ["holdfast.testing.plugin", "pytester"]  # in an installed package the first comes by itself

STARTED = "holdfast.cli.main, holdfast.api.app, holdfast.testing, holdfast.telemetry, holdfast.stores.postgres.store, uvicorn"
"""What the processes import that tests start."""


def pytest_configure(config: pytest.Config) -> None:
    """Has the package compiled once, where Python is told to keep no bytecode: some hundred processes of the tests would each do it again."""
    if sys.dont_write_bytecode and not hasattr(config, "workerinput"):
        keeps = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        subprocess.run([sys.executable, "-c", f"import {STARTED}"], env=keeps, check=True)

"""Settings shared by all tests: how hard hypothesis tries.

``fast`` is the default: few examples, the same ones each time, so that a red run is red for everyone.
``pytest --hypothesis-profile=long`` looks for new ones.
"""

from hypothesis import HealthCheck, settings

settings.register_profile("fast", max_examples=50, derandomize=True, deadline=None, database=None)
settings.register_profile("long", max_examples=2_000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fast")

pytest_plugins = ["holdfast.testing.plugin", "pytester"]  # in an installed package the first comes by itself

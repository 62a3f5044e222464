"""What commands send where the standard variables of OpenTelemetry ask for it (§18), and that nothing of it touches a run."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Type, environment

from holdfast.cli import extras, session
from holdfast.core.errors import UsageError

EVERYTHING = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES, METRICS = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
CLI = Path(session.__file__).parent


class Collector:
    """Hears what is sent over OTLP: the paths of the requests."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.heard = threading.Condition()
        hear = self._hear

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self.send_response(200)
                self.end_headers()
                hear(self.path)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def _hear(self, path: str) -> None:
        with self.heard:
            self.paths.append(path)
            self.heard.notify_all()

    def wait_for(self, *paths: str) -> bool:
        with self.heard:
            return self.heard.wait_for(lambda: {*paths} <= {*self.paths}, 30)

    @property
    def kinds(self) -> set[str]:
        return {path.rpartition("/")[2] for path in self.paths}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    for name in [n for n in os.environ if n.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    made = Collector()
    serving = threading.Thread(target=made.server.serve_forever)
    serving.start()
    yield made
    made.server.shutdown()
    serving.join()
    made.server.server_close()


def environment_of(collector: Collector, variable: str) -> dict[str, str]:
    """As the standard says: the endpoint of one kind is the whole URL."""
    return {variable: collector.url + {EVERYTHING: "", TRACES: "/v1/traces", METRICS: "/v1/metrics"}[variable]}


@contextmanager
def set_to(variables: dict[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


COMMANDS: list[tuple[tuple[str, ...], int]] = [
    (("run", "work.py", "--input", '{"name": "quick"}'), 0),
    (("run", "work.py", "--input", '{"name": "Ada"}'), 4),
    (("worker", "work.py", "--until-idle"), 0),
    (("dispatch", "--until-idle"), 0),
    (("approve", "last", "work.py"), 0),
    (("resume", "last", "work.py"), 6),
    (("replay", "last", "work.py"), 4),
    (("fork", "last", "work.py"), 4),
    (("signal", "last", "news"), 0),
    (("demo", "--yes"), 0),
]


@pytest.mark.parametrize("words, code", COMMANDS, ids=lambda v: " ".join(v[:2]) if isinstance(v, tuple) else "")
@pytest.mark.parametrize("variable", [EVERYTHING, TRACES])
def test_every_command_that_executes_runs_traces_them(words: tuple[str, ...], code: int, variable: str, collector: Collector, holdfast: Type) -> None:
    holdfast("run", "work.py", "--input", '{"name": "Eve"}')
    with set_to(environment_of(collector, variable)):
        done = holdfast(*words)
    assert done.code == code and "internal" not in done.err, done.err
    assert collector.kinds <= ({"traces"} if variable == TRACES else {"traces", "metrics"})


@pytest.mark.parametrize(
    "variables, kinds",
    [
        ({EVERYTHING: ""}, "metrics traces"),
        ({TRACES: "/v1/traces"}, "traces"),
        ({METRICS: "/v1/metrics"}, "metrics"),
        ({TRACES: "/v1/traces", METRICS: "/v1/metrics"}, "metrics traces"),
        ({EVERYTHING: "", "OTEL_TRACES_EXPORTER": "none"}, "metrics"),
        ({EVERYTHING: "", "OTEL_METRICS_EXPORTER": "none"}, "traces"),
        ({EVERYTHING: "", "OTEL_SDK_DISABLED": "true"}, ""),
        ({METRICS: "/v1/metrics", "OTEL_METRICS_EXPORTER": "none"}, ""),
    ],
    ids=str,
)
def test_each_kind_goes_where_its_own_variables_say(variables: dict[str, str], kinds: str, collector: Collector, holdfast: Type) -> None:
    with set_to({name: collector.url + value if name.endswith("ENDPOINT") else value for name, value in variables.items()}):
        done = holdfast("run", "work.py", "--input", '{"name": "quick"}')
    assert done.code == 0, done.err
    assert " ".join(sorted(collector.kinds)) == kinds


def test_a_collector_that_is_away_leaves_the_run_and_its_exit_code_alone(holdfast: Type) -> None:
    with set_to({EVERYTHING: "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}):
        done = holdfast("run", "work.py", "--input", '{"name": "quick"}', "--json")
    assert done.code == 0 and done.json["status"] == "completed"


@pytest.mark.parametrize("variable", [EVERYTHING, METRICS])
@pytest.mark.parametrize("target", [(), ("work.py",)], ids=["only records", "executes"])
def test_a_server_sends_with_targets_and_without(target: tuple[str, ...], variable: str, collector: Collector, holdfast: Type) -> None:
    """A run that is only cancelled over HTTP moves in the server too."""
    holdfast("run", "work.py", "--input", '{"name": "Ada"}')
    serving = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "serve", *target, "--no-auth", "--port", "0"],
        stderr=subprocess.PIPE, text=True, env=environment() | environment_of(collector, variable) | {"OTEL_METRIC_EXPORT_INTERVAL": "200"},
    )
    try:
        assert serving.stderr is not None and "serving" in serving.stderr.readline()
        assert collector.wait_for("/v1/metrics")
    finally:
        serving.terminate()
        said = serving.communicate(timeout=60)[1]
    assert serving.returncode == 0, said
    assert "internal" not in said and "Traceback" not in said


def test_what_an_extra_brings_is_declared_for_type_checkers() -> None:
    """The stub imports each module from where it is looked for, so that a name that a module lacks is found before anybody runs the command."""
    stub = ast.parse((CLI / "extras.pyi").read_text("utf-8"))
    told = {name.asname: name.name for node in stub.body if isinstance(node, ast.Import) for name in node.names}
    assert told == {name: module for name, (module, _) in extras.MODULES.items()}
    for name, module in told.items():
        assert getattr(extras, name) is sys.modules[module]


def test_type_checkers_find_what_a_module_of_an_extra_lacks(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    lines = [f"extras.{name}.nothing_of_that_name" for name in extras.MODULES]
    wrong.write_text("\n".join(["from holdfast.cli import extras", *lines]) + "\n", "utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file=", "--no-error-summary", "--python-version", "3.11", str(wrong)]
    done = subprocess.run(command, env=environment() | {"MYPYPATH": str(CLI.parents[1])}, capture_output=True, text=True, check=False)
    assert [line.split(":")[1] for line in done.stdout.splitlines() if 'has no attribute "nothing_of_that_name"' in line] == [
        str(n) for n in range(2, 2 + len(lines))
    ], done.stdout


def test_modules_are_imported_by_name_in_few_places() -> None:
    """What ``import_module`` gives is ``Any`` or ``object`` to a type checker: each place beside a stub, or where users name their own code."""
    users = {str(p.relative_to(CLI.parent)) for p in CLI.parent.rglob("*.py") if "import_module" in p.read_text("utf-8")}
    assert users == {"cli/extras.py", "cli/targets.py", "lazily.py"}


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "holdfast.telemetry", None)
    monkeypatch.setenv(METRICS, "http://127.0.0.1:1")
    with pytest.raises(UsageError) as refused:
        _ = extras.telemetry
    assert refused.value.code == "telemetry_missing" and "holdfast[telemetry]" in refused.value.hint
    with pytest.raises(AttributeError):
        _ = extras.nothing  # type: ignore[attr-defined]

"""What importing costs, as a list of modules and never as a time, and that lazy names are as good as any."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import holdfast
from holdfast import stores

SRC = Path(holdfast.__file__).parent
MOST = 30
HEAVY = {"apsw", "asyncio", "click", "dataclasses", "inspect", "logging", "msgspec", "socket", "ssl", "typing"}
LAZY = [holdfast, stores]


def pulled_in(code: str) -> set[str]:
    """The modules that code brings into a fresh interpreter."""
    whole = f"import json, sys\nbefore = set(sys.modules)\n{code}\nprint(json.dumps(sorted(set(sys.modules) - before)))"
    done = subprocess.run([sys.executable, "-S", "-c", whole], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join([str(SRC.parent), *sys.path])})
    found: list[str] = json.loads(done.stdout)
    return set(found)


def ours(modules: set[str]) -> set[str]:
    return {m for m in modules if m.split(".")[0] == "holdfast"}


def test_the_package_alone_is_next_to_nothing() -> None:
    """targets.md: ``import holdfast``. Everything else comes with the first name that needs it."""
    found = pulled_in("import holdfast")
    assert ours(found) == {"holdfast", "holdfast.lazily"}
    assert not found & HEAVY
    assert len(found) <= MOST, sorted(found)
    assert ours(pulled_in("import holdfast.stores")) == {"holdfast", "holdfast.lazily", "holdfast.stores"}


def test_declaring_a_graph_needs_no_engine_and_no_store() -> None:
    found = pulled_in("from holdfast import Flow, Graph, State, append, flow, register")
    assert not {m.split(".")[1] for m in ours(found) if m.count(".") == 1} & {"cli", "engine", "runtime", "stores", "testing", "tools", "workers"}
    assert not found & {"apsw", "asyncio", "click", "socket", "ssl"}


@pytest.mark.parametrize("url, brought", [("memory:", {"memory"}), ("workspace:x", {"memory", "workspace"}), ("sqlite:///x.db", {"sqlite"})])
def test_a_store_comes_with_the_first_url_that_names_it(url: str, brought: set[str]) -> None:
    found = pulled_in(f"import holdfast\nholdfast.Runtime({url!r})")
    assert {m.split(".")[2] for m in ours(found) if m.startswith("holdfast.stores.")} & {"memory", "sqlite", "workspace"} == brought
    assert ("apsw" in found) == ("sqlite" in brought)
    assert not found & {"click", "holdfast.cli", "holdfast.testing", "sqlite3"}


@pytest.mark.parametrize("module", LAZY, ids=lambda m: m.__name__)
def test_lazy_names_are_the_ones_that_type_checkers_see(module: ModuleType) -> None:
    """The stub imports each name from the module where it is looked for, and exports the same names."""
    stub = ast.parse(Path(str(module.__file__) + "i").read_text("utf-8"))
    told = {(node.module, name.asname or name.name) for node in stub.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert told - {("__future__", "annotations")} == {(home, name) for home, names in module.HOMES.items() for name in names}
    [exported] = [node.value for node in stub.body if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"]
    assert sorted(ast.literal_eval(exported)) == module.__all__


@pytest.mark.parametrize("module", LAZY, ids=lambda m: m.__name__)
def test_a_lazy_name_is_as_good_as_any(module: ModuleType) -> None:
    assert set(module.__all__) <= set(dir(module))
    for home, names in module.HOMES.items():
        for name in names:
            assert getattr(module, name) is getattr(sys.modules[home], name)
            assert name in vars(module), "it is looked for once"
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'nothing'"):
        _ = module.nothing
    assert not hasattr(module, "__wrapped__")
    everything: dict[str, object] = {}
    exec(f"from {module.__name__} import *", everything)
    assert set(module.__all__) <= set(everything)

"""What machines can check about the house itself: linters, layers, names that are API, links, documents.

Each rule is a function from a text to the lines that break it, so that ``test_each_rule_can_fail`` can show
that it does. ``python tests/test_tidy.py`` rewrites the golden files; read their diff before committing it.
"""

import ast
import functools
import importlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

import holdfast
from holdfast.core import events

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden"
COMMANDS = ("pip install uv && uv run holdfast demo", "pip install uv && uv run pytest")
DEPENDENCIES = {"apsw", "click", "msgspec"}

# Tests that may sleep for real, and why. Everything else moves a clock (holdfast.testing).
MAY_SLEEP: dict[str, str] = {
    "tests/heavy/test_effects.py": "real processes are stopped past real leases",
    "tests/integrations/desks.py": "a real process is killed between two pieces of an answer",
    "tests/integrations/langgraph_turns.py": "turns of two real processes are under way together",
    "tests/limits/kills.py": "real workers are killed past real leases",
    "tests/outbox/kills.py": "real dispatchers are stopped past real leases",
    "tests/postgres/server.py": "a server takes a moment until it accepts connections",
    "tests/workers/distress.py": "real leases run out behind a proxy that forwards nothing",
    "tests/workers/failover.py": "a server takes a moment until another is in its place",
    "tests/workers/faults.py": "real workers are stopped past real leases, and real servers crash",
    "tests/workers/load.py": "the pace of real workers is measured over a span, and their steps take one",
    "tests/workers/pressure.py": "a real snapshot is held for a span, and real paces are measured over another",
}

# Tests that reach into what they test, and where that is, in src/holdfast. All others take what everybody may take.
INSIDE: dict[str, tuple[str, ...]] = {
    "tests/core/test_codec.py": ("core/codec",),
    "tests/core/test_decisions.py": ("core/decisions",),
    "tests/engine/test_threads.py": ("engine/look/threads",),
    "tests/inside.py": ("runtime", "core/canon", "machine"),  # for all tests that cannot do without
    "tests/integrations/test_langgraph_rows.py": ("integrations/langgraph",),
    "tests/integrations/test_langgraph_saver.py": ("integrations/langgraph",),
    "tests/simulation/mutants.py": ("core", "engine"),  # these are broken on purpose
    "tests/stores/test_postgres.py": ("stores/postgres",),
    "tests/stores/test_postgres_turns.py": ("stores/postgres",),
    "tests/stores/test_sqlite.py": ("stores/sqlite",),
    "tests/upkeep/test_two_processes.py": ("stores/workspace",),
    "tests/upkeep/test_workspace.py": ("stores/workspace",),
}
BY_NAME = {"getattr", "setattr", "delattr", "hasattr", "object", "patch"}
"""Verbs that reach for a member by its name, ``patch.object`` among them."""
DOCUMENTED = {"_asdict", "_current_frames", "_exit", "_fields", "_getframe", "_make", "_replace"}
"""Names that begin with an underscore and that Python's own documentation tells of."""

Found = list[tuple[int, str]]
Rule = Callable[[str], Found]


# -- what there is ----------------------------------------------------------------------------------


def tracked() -> list[Path]:
    """The files that are or are about to be in the repository; all of them where there is no repository."""
    git = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if git.returncode == 0:
        return sorted(p for name in git.stdout.split("\0") if name and (p := ROOT / name).is_file())
    return sorted(p for p in ROOT.rglob("*") if p.is_file() and not _hidden(p.relative_to(ROOT)))


def _hidden(path: Path) -> bool:
    return any(part == "__pycache__" or (part.startswith(".") and part != ".ci") for part in path.parts)


FILES = tracked()
SOURCES = [p for p in FILES if p.suffix == ".py" and p.is_relative_to(ROOT / "src")]
TESTS = [p for p in FILES if p.suffix == ".py" and p.is_relative_to(ROOT / "tests")]
PAGES = [p for p in FILES if p.suffix == ".md"]


def broken(rule: Rule, paths: list[Path]) -> str:
    """Every line that breaks the rule, as ``file:line: why``; empty if none does."""
    assert paths, "the rule was given nothing to look at"
    found = []
    for path in paths:
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}:{line}: {why}" for line, why in rule(text)]
    return "\n".join(found)


@functools.cache
def broken_in_code() -> dict[Rule, str]:
    """What each rule about code finds where it applies: file by file, so that each file is parsed once."""
    found: dict[Rule, list[str]] = {rule: [] for rule in CODE_RULES}
    for path in SOURCES + TESTS:
        for rule, applies in CODE_RULES.items():
            if applies(path):
                found[rule] += filter(None, [broken(rule, [path])])
    return {rule: "\n".join(faults) for rule, faults in found.items()}


# -- rules about code -------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def parsed(text: str) -> tuple[ast.AST, ...]:
    """All nodes of a file, the module first; kept for the rule that looks at the same file next."""
    return tuple(ast.walk(ast.parse(text)))


def late_imports(text: str) -> Found:
    """Imports inside a function: move the thing instead."""
    scopes = (n for n in parsed(text) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return [(n.lineno, "import inside a function") for f in scopes for n in ast.walk(f) if isinstance(n, ast.Import | ast.ImportFrom)]


def type_checking(text: str) -> Found:
    """The TYPE_CHECKING trick hides a cycle that import-linter should see."""
    nodes = parsed(text)
    names = ((n.lineno, n.id if isinstance(n, ast.Name) else n.attr) for n in nodes if isinstance(n, ast.Name | ast.Attribute))
    return [(line, "TYPE_CHECKING") for line, name in names if name == "TYPE_CHECKING"]


def swallowed(text: str) -> Found:
    """A handler for everything that does nothing, or a bare one, whatever it does."""
    found: Found = []
    for node in parsed(text):
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                found.append((node.lineno, "bare except"))
            elif _broad(node.type) and all(map(_idle, node.body)):
                found.append((node.lineno, "swallows every exception"))
        elif isinstance(node, ast.Call) and _dotted(node.func) in {"suppress", "contextlib.suppress"} and any(map(_broad, node.args)):
            found.append((node.lineno, "suppresses every exception"))
    return found


def _broad(node: ast.expr) -> bool:
    kinds = node.elts if isinstance(node, ast.Tuple) else [node]
    return any(_dotted(k).removeprefix("builtins.") in {"Exception", "BaseException"} for k in kinds)


def _idle(node: ast.stmt) -> bool:
    """Whether a statement does nothing about an error: pass, ``...``, continue, break, return of a constant."""
    if isinstance(node, ast.Return):
        return node.value is None or isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Pass | ast.Continue | ast.Break) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def _dotted(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def _imports(text: str) -> Iterator[tuple[int, str]]:
    """Every imported module, and every name imported from one, dotted."""
    for node in parsed(text):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{a.name}") for a in node.names)


def pickles(text: str) -> Found:
    """Nothing stored may name code to import (§14.3)."""
    banned = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "jsonpickle"}
    return [(line, f"imports {name}") for line, name in _imports(text) if name.split(".")[0] in banned]


def sleeps(text: str) -> Found:
    """Real waiting in a test: move a clock instead, or say why not in MAY_SLEEP. ``asyncio.sleep(0)`` gives way and does not wait."""
    found = [(line, f"imports {name}") for line, name in _imports(text) if name in {"time.sleep", "asyncio.sleep"}]
    for node in parsed(text):
        if isinstance(node, ast.Call) and (name := _dotted(node.func)) in {"time.sleep", "asyncio.sleep"}:
            yields = name == "asyncio.sleep" and bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
            found += [] if yields else [(node.lineno, name)]
    return found


def _private(text: str) -> list[tuple[int, str, str]]:
    """Where something reaches for a private member of anything but itself, its class, or what that inherits from: line, whose it is, and its name."""
    reached: list[tuple[int, ast.expr | str, str]] = []
    for node in parsed(text):
        match node:
            case ast.Attribute(value=whose, attr=name):
                reached.append((node.lineno, whose, name))
            case ast.ImportFrom(module=module, names=names):
                reached += [(node.lineno, module or ".", alias.name) for alias in names]
            case ast.Call(func=ast.Name(id=verb) | ast.Attribute(attr=verb), args=[whose, ast.Constant(str(name)), *_]) if verb in BY_NAME:
                reached.append((node.lineno, whose, name))
            case ast.Call(func=ast.Name(id=verb) | ast.Attribute(attr=verb), args=[ast.Constant(str(path)), *_]) if verb in BY_NAME:
                reached.append((node.lineno, *path.rpartition(".")[::2]))
    private = [r for r in reached if r[2].startswith("_") and not r[2].startswith("__") and r[2] not in DOCUMENTED]
    named = [(line, whose if isinstance(whose, str) else ast.unparse(whose), name) for line, whose, name in private]
    return [r for r in named if r[1] not in {"self", "cls", "super()"}]


def intrusions(text: str) -> Found:
    """A test that reaches for a private member: what it wants, everybody should be able to want; what only tests want has its place in tests/inside.py."""
    return [(line, f"reaches for {name} of {whose}") for line, whose, name in _private(text)]


def undocumented(text: str) -> Found:
    """A module with code says in its first line what it is."""
    module = parsed(text)[0]
    return [(1, "no docstring")] if isinstance(module, ast.Module) and module.body and not ast.get_docstring(module) else []


def impure(text: str) -> Found:
    """The core knows the standard library, msgspec and itself."""
    known = sys.stdlib_module_names | {"msgspec"}
    return [
        (line, f"imports {name}") for line, name in _imports(text) if name.split(".")[0] not in known and not name.startswith("holdfast.core.")
    ]


# -- rules about every file -------------------------------------------------------------------------


def _lines(pattern: str, why: str) -> Rule:
    regex = re.compile(pattern)
    return lambda text: [(n, f"{why}: {m[0]}") for n, line in enumerate(text.splitlines(), 1) if (m := regex.search(line))]


# The classes of one letter keep these patterns from finding themselves.
leftovers = _lines(r"\b(?:TOD[O]|FIXM[E]|XX[X])\b", "unfinished")
machine_paths = _lines(r"(?<![\w.*-])/(?:wor[k]|roo[t]|hom[e])(?![\w-])", "a path of one machine")
registry_hosts = _lines(r"(?i)pyp[i]\.org|pythonhoste[d]|crates[.]io|npmj[s]\.|artifactor[y]|proxy\.golan[g]", "a registry's host")


# -- rules about pages ------------------------------------------------------------------------------


def _prose(text: str) -> list[str]:
    """The lines of a page, those inside code fences emptied."""
    lines, fenced = [], False
    for line in text.splitlines():
        fence = line.lstrip().startswith("```")
        lines.append("" if fenced or fence else line)
        fenced ^= fence
    return lines


def _anchors(text: str) -> set[str]:
    heads = (line.lstrip("#").strip().lower() for line in _prose(text) if line.startswith("#"))
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in heads}


def dead_links(page: Path, text: str) -> Found:
    """Relative links to files or headings that are not there."""
    found: Found = []
    for number, line in enumerate(_prose(text), 1):
        for target in re.findall(r"\]\(<?([^)\s>]+)", line):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            name, _, anchor = target.partition("#")
            goal = (page.parent / name) if name else page
            if not goal.exists():
                found.append((number, f"dead link: {target}"))
            elif anchor and goal.suffix == ".md" and anchor not in _anchors(text if goal == page else goal.read_text("utf-8")):
                found.append((number, f"no such heading: {target}"))
    return found


def fences(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def unknown_names(text: str) -> Found:
    """Names that an example takes from ``holdfast`` and that are not there."""
    found: Found = []
    for block in fences(text, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module == "holdfast":
                found += [(node.lineno, f"holdfast has no {a.name}") for a in node.names if not hasattr(holdfast, a.name)]
    return found


def readme_faults(text: str) -> Found:
    """A README of at most 120 lines that opens with the two commands."""
    lines = text.splitlines()
    found: Found = [(len(lines), "longer than 120 lines")] if len(lines) > 120 else []
    opening = [line for line in lines if line][1:5]
    expected = ["```sh", *COMMANDS, "```"]
    return found + ([] if opening == expected else [(1, f"after the title come {expected}, not {opening}")])


# -- the rules, applied -----------------------------------------------------------------------------

def _in(folder: str) -> Callable[[Path], bool]:
    return lambda path: path.is_relative_to(ROOT / folder)


def _moves_a_clock(path: Path) -> bool:
    return path.is_relative_to(ROOT / "tests") and str(path.relative_to(ROOT)) not in MAY_SLEEP


def _stays_outside(path: Path) -> bool:
    return path.is_relative_to(ROOT / "tests") and str(path.relative_to(ROOT)) not in INSIDE


CODE_RULES: dict[Rule, Callable[[Path], bool]] = {
    late_imports: _in("src"),
    type_checking: _in("src"),
    swallowed: _in("src"),
    pickles: _in("src"),
    impure: _in("src/holdfast/core"),
    undocumented: lambda _path: True,
    sleeps: _moves_a_clock,
    intrusions: _stays_outside,
}
FILE_RULES: dict[str, Rule] = {"leftovers": leftovers, "machine_paths": machine_paths, "registry_hosts": registry_hosts}


@pytest.mark.parametrize("rule", CODE_RULES, ids=lambda r: r.__name__)
def test_code_keeps(rule: Rule) -> None:
    assert any(map(CODE_RULES[rule], SOURCES + TESTS)), "the rule was given nothing to look at"
    assert not (faults := broken_in_code()[rule]), f"\n{faults}"


@pytest.mark.parametrize("rule", FILE_RULES.values(), ids=FILE_RULES)
def test_every_file_keeps(rule: Rule) -> None:
    assert not (faults := broken(rule, FILES)), f"\n{faults}"


def test_what_may_sleep_does() -> None:
    idle = [name for name in MAY_SLEEP if not (ROOT / name).is_file() or not sleeps((ROOT / name).read_text("utf-8"))]
    assert not idle, f"these do not sleep any more, take them out of MAY_SLEEP: {idle}"


@pytest.mark.parametrize("name", INSIDE)
def test_what_reaches_inside_reaches_only_where_it_may(name: str) -> None:
    places = [ROOT / "src" / "holdfast" / place for place in INSIDE[name]]
    text = "\n".join(p.read_text("utf-8") for place in places for p in (sorted(place.rglob("*.py")) or [place.with_suffix(".py")]))
    reached = _private((ROOT / name).read_text("utf-8"))
    assert reached, "it reaches for nothing any more, take it out of INSIDE"
    strange = [f"{name}:{line}: {member} of {whose}" for line, whose, member in reached if not re.search(rf"\b{member}\b", text)]
    assert not strange, f"not in {' or '.join(INSIDE[name])}: {strange}"


def test_links_lead_somewhere() -> None:
    faults = [f"{p.relative_to(ROOT)}:{line}: {why}" for p in PAGES for line, why in dead_links(p, p.read_text("utf-8"))]
    assert not faults, "\n" + "\n".join(faults)


def test_readme_opens_with_the_two_commands() -> None:
    assert not (faults := broken(readme_faults, [ROOT / "README.md"])), f"\n{faults}"


def test_ci_runs_the_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    assert COMMANDS[1] in script.splitlines(), f".ci/run must hold the line: {COMMANDS[1]}"
    assert os.access(ROOT / ".ci" / "run", os.X_OK), ".ci/run must be executable"


def test_examples_on_pages_parse_and_use_names_that_exist() -> None:
    assert public_names(), "holdfast exports nothing"
    assert not (faults := broken(unknown_names, PAGES)), f"\n{faults}"


def test_the_core_install_stays_small() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {re.split(r"[^\w.-]", d)[0] for d in project["dependencies"]} == DEPENDENCIES


# -- linters ----------------------------------------------------------------------------------------

LINTERS = {
    "ruff": ["-m", "ruff", "check", "."],
    "mypy": ["-m", "mypy", "--strict"],
    "lint-imports": ["-c", "from importlinter.cli import lint_imports_command as main; main()"],
}


@pytest.mark.parametrize("command", LINTERS.values(), ids=LINTERS)
def test_linter_is_silent(command: list[str]) -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}
    done = subprocess.run([sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        pytest.fail(f"{done.stdout}{done.stderr}", pytrace=False)


# -- golden files: names that are API ---------------------------------------------------------------


def event_kinds() -> list[str]:
    """``tag wire name`` of every kind of event, by tag: both are stored and never change (§13.2)."""
    return [f"{tag} {kind.wire}" for tag, kind in sorted(events.TAGS.items())]


def public_names(module: ModuleType = holdfast) -> list[str]:
    """``__all__``, or else every name that is not a module and not private."""
    own = (n for n, v in vars(module).items() if not n.startswith("_") and n != "annotations" and not isinstance(v, ModuleType))
    return sorted(getattr(module, "__all__", None) or own)


GOLDENS: dict[str, Callable[[], list[str]]] = {"events.txt": event_kinds, "public.txt": public_names}


@pytest.mark.parametrize("name", GOLDENS)
def test_golden_file_is_true(name: str) -> None:
    now, then = GOLDENS[name](), (GOLDEN / name).read_text("utf-8").splitlines()
    gone, new = sorted(set(then) - set(now)), sorted(set(now) - set(then))
    assert now == then, f"gone: {gone}; new: {new}. If you mean it: uv run python tests/test_tidy.py, and say it in CHANGELOG.md"


def test_event_kinds_are_told_apart() -> None:
    assert len(events.KINDS) == len(events.TAGS), "two kinds of event share a tag or a wire name"


def test_public_names_exist() -> None:
    assert [n for n in public_names() if not hasattr(holdfast, n)] == []


# -- the command line -------------------------------------------------------------------------------


def commands(group: click.Group, path: str = "") -> Iterator[str]:
    """The full names of all commands that are shown in help."""
    for name, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        if not isinstance(command, click.Group):
            yield path + name
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")


def command_faults(group: click.Group, page: str) -> list[str]:
    """Commands without a place in the page, and the page's headings without a command."""
    told = set(re.findall(r"`holdfast ([a-z][a-z -]*[a-z])", "\n".join(line for line in page.splitlines() if line.startswith("#"))))
    there = set(commands(group))
    told -= {c for c in told if isinstance(found := group.get_command(click.Context(group), c), click.Group) and found.invoke_without_command}
    return [f"not in docs/cli.md: {c}" for c in sorted(there - told)] + [f"no such command: {c}" for c in sorted(told - there)]


def test_every_command_has_its_place_in_the_docs() -> None:
    groups = [v for v in vars(importlib.import_module("holdfast.cli.main")).values() if isinstance(v, click.Group)]
    assert groups, "holdfast.cli.main holds no click.Group"
    faults = command_faults(groups[0], (ROOT / "docs" / "cli.md").read_text("utf-8"))
    assert not faults, "\n" + "\n".join(faults)


# -- a rule that cannot fail is none ----------------------------------------------------------------

BAD: list[tuple[Rule, str]] = [
    (late_imports, "def f():\n    if True:\n        import os\n"),
    (type_checking, "import typing\nif typing.TYPE_CHECKING:\n    import os\n"),
    (type_checking, "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import os\n"),
    (swallowed, "try:\n    f()\nexcept Exception:\n    pass\n"),
    (swallowed, "try:\n    f()\nexcept (OSError, BaseException) as e:\n    return None\n"),
    (swallowed, "try:\n    f()\nexcept:\n    log()\n"),
    (swallowed, "with contextlib.suppress(Exception):\n    f()\n"),
    (pickles, "import pickle\n"),
    (pickles, "from pickle import loads\n"),
    (sleeps, "import time\ntime.sleep(1)\n"),
    (sleeps, "async def f():\n    await asyncio.sleep(0.1)\n"),
    (sleeps, "from asyncio import sleep\n"),
    (intrusions, "rt._services.grace = 1\n"),
    (intrusions, "def f(self):\n    return self.store._runs\n"),
    (intrusions, "monkeypatch.setattr(codec, '_upcasters', {})\n"),
    (intrusions, "monkeypatch.setattr('holdfast.core.codec._upcasters', {})\n"),
    (intrusions, "from holdfast.core.codec import _upcasters\n"),
    (undocumented, "import os\n"),
    (impure, "import apsw\n"),
    (impure, "from holdfast.ports import Store\n"),
    (leftovers, "# TO" + "DO: later\n"),
    (leftovers, "FIX" + "ME\n"),
    (machine_paths, 'path = "/ho' + 'me/ada/x"\n'),
    (machine_paths, "sqlite:////wo" + "rk/a.db\n"),
    (machine_paths, "cd /ro" + "ot\n"),
    (registry_hosts, "https://py" + "pi.org/simple\n"),
    (lambda text: dead_links(ROOT / "README.md", text), "see [it](docs/nowhere.md)\n"),
    (lambda text: dead_links(ROOT / "README.md", text), "# A\n\nsee [it](#b)\n"),
    (unknown_names, "```python\nfrom holdfast import nothing_of_the_kind\n```\n"),
    (readme_faults, "# Holdfast\n\nIt is good.\n"),
    (readme_faults, "\n".join(["# Holdfast", "```sh", *COMMANDS, "```", *"\n" * 120])),
]

GOOD: list[tuple[Rule, str]] = [
    (swallowed, "try:\n    f()\nexcept OSError:\n    pass\n"),
    (swallowed, "try:\n    f()\nexcept Exception as e:\n    keep(e)\n"),
    (sleeps, "async def f():\n    await asyncio.sleep(0)\n    await clock.sleep(5)\n"),
    (intrusions, "class A(B):\n    def f(self):\n        return self._a, super()._f(), self.__class__, self.pair._replace(a=1), getattr(self, '_b')\n"),
    (machine_paths, "src/holdfast/workers/worker.py, ./work, a/home/b, /workers\n"),
    (lambda text: dead_links(ROOT / "README.md", text), "# A b\n\nsee [it](#a-b), [us](README.md), [them](https://example.com/x)\n"),
    (readme_faults, "\n".join(["# Holdfast", "", "```sh", *COMMANDS, "```", ""])),
]


@pytest.mark.parametrize(("rule", "text"), BAD)
def test_each_rule_can_fail(rule: Rule, text: str) -> None:
    assert rule(text)


@pytest.mark.parametrize(("rule", "text"), GOOD)
def test_no_rule_fails_what_is_right(rule: Rule, text: str) -> None:
    assert rule(text) == []


def test_the_rule_about_commands_can_fail() -> None:
    group = click.Group(commands={"run": click.Command("run"), "token": click.Group(commands={"list": click.Command("list")})})
    assert command_faults(group, "### `holdfast run TARGET`\n### `holdfast token list`\n") == []
    assert command_faults(group, "### `holdfast run`\n### `holdfast gone`\n") == ["not in docs/cli.md: token list", "no such command: gone"]


if __name__ == "__main__":
    for golden, lines in GOLDENS.items():
        (GOLDEN / golden).write_text("".join(f"{line}\n" for line in lines()), "utf-8")

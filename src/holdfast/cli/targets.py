"""TARGETs: which code a command runs. Stored bytes never choose what is imported (§14.3).

A TARGET is ``package.module:name`` or ``path/to/file.py[:name]``. It comes from the command line, else from
``[tool.holdfast] skills`` in pyproject.toml, else from ``$HOLDFAST_SKILLS``, else it is holdfast's own demo.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tomllib
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.authoring import Flow, Graph, Skill
from holdfast.core.errors import HoldfastError, SkillUnknown, UsageError
from holdfast.demo.notes import graph as demo_graph
from holdfast.workspaces import away

DEMO = "holdfast.demo.notes:graph"
FORMS = "a TARGET is package.module:name or path/to/file.py[:name]"


class Target:
    """A skill and the text that names it, as recorded on its runs."""

    __slots__ = ("skill", "text")

    def __init__(self, skill: Skill, text: str) -> None:
        self.skill = skill
        self.text = text


def resolve(text: str, base: Path | None = None) -> list[Target]:
    """Returns the skills that a TARGET names; without ``:name`` all skills of its module.

    Raises:
        SkillUnknown: no such file, module or name.
        UsageError: the TARGET is malformed, or the code fails when it is imported.
    """
    place, name = _split(text)
    module = _load(place, base, text)
    if name:
        return [Target(s, text) for s in _find_named(module, name, text)]
    found = {id(v): (n, v) for n, v in vars(module).items() if isinstance(v, Graph | Flow) and not n.startswith("_")}
    if not found:
        raise SkillUnknown(f"{text} contains no graph or flow", hint="a skill is a Graph or an @flow at the top of the module")
    return [Target(v, f"{place}:{n}") for n, v in found.values()]


def value(text: str, base: Path | None = None) -> Any:
    """Returns the object that a TARGET with a name names: a mapping of transports, a list of tools, a policy, limits.

    Raises:
        SkillUnknown, UsageError: as ``resolve``, and if the TARGET names no object.
    """
    place, name = _split(text)
    found: Any = _load(place, base, text)
    if not name:
        raise UsageError(f"{text!r} names a file or module, but no object in it", hint="package.module:name or path/to/file.py:name")
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise SkillUnknown(f"{text}: there is no {part!r}", hint=FORMS) from None
    return found


def _load(place: str, base: Path | None, text: str) -> ModuleType:
    return _file(Path(place), base or Path.cwd(), text) if place.endswith(".py") else _module(place, base or Path.cwd(), text)


def _split(text: str) -> tuple[str, str]:
    place, colon, name = text.strip().rpartition(":")
    if not colon:
        place, name = name, ""
    if not place or (colon and not name) or "\0" in text:
        raise UsageError(f"{text!r} is not a TARGET", hint=FORMS)
    return place, name


def _file(path: Path, base: Path, text: str) -> ModuleType:
    full = (path if path.is_absolute() else base / path).resolve()
    if not full.is_file():
        raise SkillUnknown(f"there is no file {path}", hint=FORMS)
    folder = str(full.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = full.stem
    there = sys.modules.get(name)
    if there is not None and getattr(there, "__file__", None) == str(full):
        return there
    if there is not None or name in sys.stdlib_module_names:
        name = f"holdfast_target_{name}"
    spec = importlib.util.spec_from_file_location(name, full)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported", hint=FORMS)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as e:
        sys.modules.pop(name, None)
        raise _explain_broken(e, text) from e
    return module


def _module(name: str, base: Path, text: str) -> ModuleType:
    if str(base) not in sys.path:
        sys.path.insert(0, str(base))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name is not None and (name == e.name or name.startswith(e.name + ".")):
            raise SkillUnknown(f"there is no module {e.name!r}, which {text!r} names", hint=FORMS) from None
        raise _explain_broken(e, text) from e
    except (ValueError, TypeError) as e:
        raise UsageError(f"{text!r} is not a TARGET: {e}", hint=FORMS) from e
    except BaseException as e:
        raise _explain_broken(e, text) from e


def _explain_broken(error: BaseException, text: str) -> BaseException:
    """Returns the error of the author's code in one line, with its place."""
    if isinstance(error, HoldfastError | KeyboardInterrupt):
        return error
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "importlib" not in f.filename and "holdfast/cli/targets" not in f.filename]
    where = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f" at {error.filename}:{error.lineno}"
    return UsageError(f"{text} cannot be imported: {type(error).__name__}: {error}{where}", hint="--debug shows the traceback", code="target_broken")


def _find_named(module: ModuleType, name: str, text: str) -> list[Skill]:
    value: Any = module
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            known = ", ".join(n for n, v in vars(module).items() if isinstance(v, Graph | Flow)) or "none"
            raise SkillUnknown(f"{text} names nothing: {module.__name__} has no {part!r}", hint=f"skills there: {known}") from None
    every = list(value) if isinstance(value, list | tuple) else [value]
    if not every or not all(isinstance(s, Graph | Flow) for s in every):
        raise SkillUnknown(f"{text} is a {type(value).__name__}, not a graph or a flow", hint=FORMS)
    return every


# -- if none is named -------------------------------------------------------------------------------


def find_configured() -> list[Target]:
    """Returns the skills of this project: those in pyproject.toml, else in ``$HOLDFAST_SKILLS``, else the demo."""
    section, file = _project(Path.cwd())
    named = section.get("skills", [])
    if not isinstance(named, list) or not all(isinstance(s, str) for s in named):
        raise UsageError(f"{file}: [tool.holdfast] skills is a list of TARGETs", hint=FORMS, code="bad_project")
    base = file.parent
    if not named:
        named, base = os.environ.get("HOLDFAST_SKILLS", "").replace(",", " ").split(), Path.cwd()
    if not named:
        return [Target(demo_graph, DEMO)]
    return [t for text in named for t in resolve(text, base)]


def names_skills() -> bool:
    """Whether this project names skills, so that a command without a TARGET finds them; nothing is imported."""
    section, _ = _project(Path.cwd())
    return bool(section.get("skills") or os.environ.get("HOLDFAST_SKILLS", "").strip())


def setting(kind: str, given: str | None = None) -> Any:
    """Returns the project's ``transports``, ``tools``, ``policy`` or ``limits``: from the TARGET given, else from the one that
    ``[tool.holdfast]`` in pyproject.toml names; None if there is neither."""
    if given is not None:
        return value(given)
    section, file = _project(Path.cwd())
    named = section.get(kind)
    if named is None:
        return None
    if not isinstance(named, str):
        raise UsageError(f"{file}: [tool.holdfast] {kind} is a TARGET", hint="package.module:name or path/to/file.py:name", code="bad_project")
    return value(named, file.parent)


def workspace() -> str | None:
    """Returns where this project's tools work: ``[tool.holdfast] workspace``, a folder beside pyproject.toml or ``remote:ID``, else ``$HOLDFAST_WORKSPACE``."""
    section, file = _project(Path.cwd())
    named = section.get("workspace")
    if named is None:
        return os.environ.get("HOLDFAST_WORKSPACE") or None
    if not isinstance(named, str) or not named:
        raise UsageError(f"{file}: [tool.holdfast] workspace is a folder, or remote:ID", code="bad_project")
    return named if away(named) is not None else str(file.parent / named)


def _project(here: Path) -> tuple[dict[str, Any], Path]:
    """Returns the section of the nearest pyproject.toml, and that file; an empty section if there is none."""
    for folder in (here, *here.parents):
        file = folder / "pyproject.toml"
        if not file.is_file():
            continue
        try:
            tool = tomllib.loads(file.read_text("utf-8")).get("tool", {})
        except (OSError, ValueError) as e:
            raise UsageError(f"{file} cannot be read: {e}", code="bad_project") from e
        section = tool.get("holdfast") if isinstance(tool, dict) else None
        return (section if isinstance(section, dict) else {}), file
    return {}, here / "pyproject.toml"


def several(texts: Sequence[str]) -> list[Target]:
    """Returns the skills of the TARGETs given, else the configured ones."""
    return [t for text in texts for t in resolve(text)] if texts else find_configured()


def one(text: str | None, *, example: bool = True) -> Target:
    """Returns the one skill to run. The text may be a TARGET, or the id of a configured skill.

    Args:
        text: the TARGET, if one was given.
        example: whether the demo's skill is used if there is no TARGET at all.

    Raises:
        UsageError: several skills match, which the message lists; or none was named.
    """
    if text is None:
        found = find_configured()
        if not example and found[0].text == DEMO:
            raise UsageError(
                "no TARGET is given, and this project names no skills",
                hint='give one: path/to/file.py or package.module:name; or set skills = ["file.py"] under [tool.holdfast] in pyproject.toml; holdfast demo runs the example',
                code="no_target",
            )
    elif ":" not in text and not text.endswith(".py") and (mine := [t for t in find_configured() if t.skill.id == text]):
        found = mine
    else:
        found = resolve(text)
    if len(found) > 1:
        names = ", ".join(t.text for t in found)
        raise UsageError(f"{len(found)} skills match: {names}", hint="name one", code="ambiguous_target")
    return found[0]


def skills(targets: Iterable[Target]) -> list[Skill]:
    return [t.skill for t in targets]

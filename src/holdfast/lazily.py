"""Packages whose names are fetched when they are first asked for (PEP 562), so that importing one costs next to nothing.

Beside each such ``__init__.py`` stands an ``__init__.pyi`` with the plain imports, which type checkers and editors read; a test
holds the two together.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def _by_module(name: str) -> bool:
    """Whether this process was asked for as ``python -m name``, and is just about to find it."""
    words = sys.orig_argv
    return sys.argv[:1] == ["-m"] and (f"-m{name}" in words or (name in words and words[words.index(name) - 1] == "-m"))


if _by_module("holdfast") and sys.path and sys.path[0] in ("", os.getcwd()):
    # Python puts the current folder before its own library then. Looking at a store runs no code of that folder: what is to be run
    # from there is named, and found there by whoever runs it (``cli/targets``).
    del sys.path[0]


def lazily(package: str, homes: Mapping[str, tuple[str, ...]]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package; ``homes``: the modules that its names live in, with those names."""
    home = {name: module for module, names in homes.items() for name in names}

    def fetch(name: str) -> object:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        value: object = getattr(import_module(home[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*home, *vars(sys.modules[package])})

    return fetch, names

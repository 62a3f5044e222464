"""Packages whose names are loaded on first use (PEP 562), so that importing such a package costs almost nothing.

Beside each such ``__init__.py`` there is an ``__init__.pyi`` with the plain imports for type checkers and editors; a test
checks that both have the same names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def _by_module(name: str) -> bool:
    """Whether this process was started with ``python -m name``, and that module is just about to be found."""
    words = sys.orig_argv
    return sys.argv[:1] == ["-m"] and (f"-m{name}" in words or (name in words and words[words.index(name) - 1] == "-m"))


if _by_module("holdfast") and sys.path and sys.path[0] in ("", os.getcwd()):
    # Python then puts the current folder before its standard library. Reading a store must not run code of that folder: code to be run
    # from there is named explicitly, and found there by ``cli/targets``.
    del sys.path[0]


def lazily(package: str, homes: Mapping[str, tuple[str, ...]]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Makes ``__getattr__`` and ``__dir__`` of a package. ``homes``: the modules that define its names, each with those names."""
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
